"""Run kinds: closed loops with and without speculative tokens, separate pools, and throughputs under a scenario.

A row of a closed loop has the number of requests in flight. Other rows have a scenario instead: all requests at once (MLPerf's
Offline), the highest rate within limits (Server, Interactive), or the highest throughput at given lengths (`part` trt_max).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from steptime.errors import UnknownName, short_repr
from steptime.physics import uncertainty
from steptime.planning.speculative_config import MOST_DRAFTS

PLAIN, DRAFTED, POOLS = "aggregated", uncertainty.DRAFTED, uncertainty.POOLS
OFFLINE, SERVER, INTERACTIVE, HIGHEST = "offline", "server", "interactive", "maximum"
LOOPS: Final = (PLAIN, DRAFTED)
SCENARIOS: Final = {"Offline": OFFLINE, "Server": SERVER, "Interactive": INTERACTIVE}
MLPERF: Final = "mlperf"
MAXIMUM: Final = "trt_max"
PARTS: Final = ("ix_aggregated", "ix_mtp", "ix_disaggregated", MLPERF, MAXIMUM)
NO_DRAFTS: Final = ("", "none")
PREFILL_WAYS: Final = {"prefill_tp": "tp", "prefill_dp": "dp", "prefill_ep": "ep"}
WHOLE_NUMBER_COLUMNS: Final = ("drafted", "decode_workers", "prefill_workers", *PREFILL_WAYS, "chips", "stream_interval")
"""Columns with whole numbers of at least 1 (drafted: at least 0), or empty."""
KIND_COLUMNS: Final = ("scenario", "part", "spec", "acceptance", *WHOLE_NUMBER_COLUMNS)
"""Columns that determine the kind of a run; all are optional."""
LARGEST: Final = 1e8


def run_kind(row: Mapping[str, str]) -> str:
    """Return the kind of a run.

    Args:
        row: Run.

    Returns:
        One of `LOOPS`, `POOLS`, `SCENARIOS` or `HIGHEST`.

    >>> run_kind({}), run_kind({"drafted": "2.0"}), run_kind({"drafted": "2", "decode_workers": "1"})
    ('aggregated', 'drafted', 'pools')
    >>> run_kind({"scenario": "Offline", "part": "mlperf"}), run_kind({"part": "trt_max"})
    ('offline', 'maximum')
    """
    if scenario := row.get("scenario"):
        return SCENARIOS[scenario]
    if row.get("part") == MAXIMUM:
        return HIGHEST
    if row.get("decode_workers"):
        return POOLS
    return DRAFTED if is_drafted(row) else PLAIN


def kind_label(row: Mapping[str, str]) -> str:
    """Return the label of a run's kind in error tables.

    Separate pools with and without speculative tokens have different labels.

    Args:
        row: Run.

    Returns:
        Label.
    """
    kind = run_kind(row)
    return f"{POOLS}, drafted" if kind == POOLS and is_drafted(row) else kind


def is_drafted(row: Mapping[str, str]) -> bool:
    """Check whether a run used speculative tokens.

    Args:
        row: Run.

    Returns:
        True if `drafted` or `spec` records them.
    """
    return count_drafts(row) > 0 or (row.get("spec") or "").casefold() not in NO_DRAFTS


def count_drafts(row: Mapping[str, str]) -> int:
    """Return the speculative tokens per step of a run.

    Args:
        row: Run.

    Returns:
        Tokens per step; 0 if not recorded.
    """
    return int(float(row.get("drafted") or 0))


def wrong_kind(row: Mapping[str, str]) -> str:
    """Check the columns that determine the kind of a run.

    Args:
        row: Run.

    Returns:
        Description of the problem; "" if there is no problem.
    """
    if not any(map(row.get, KIND_COLUMNS)):
        return ""
    for name, options in (("scenario", tuple(SCENARIOS)), ("part", PARTS)):
        if row.get(name) and row[name] not in options:
            return str(UnknownName(name, row[name], options, f"Known: {', '.join(options)}."))
    for name in WHOLE_NUMBER_COLUMNS:
        if row.get(name) and (problem := _wrong_whole(name, row[name], least=0 if name == "drafted" else 1)):
            return problem
    return _wrong_drafts(row) or _wrong_pools(row)


def _wrong_whole(name: str, text: str, least: int) -> str:
    try:
        value = float(text)
    except ValueError:
        return f"{name} must be a number, got {short_repr(text)}"
    if not (value >= least and value % 1 == 0):
        return f"{name} must be a whole number of at least {least}, got {short_repr(text)}"
    return f"{name} must be at most {LARGEST:,.0f}, got {short_repr(text)}" if value > LARGEST else ""


def _wrong_drafts(row: Mapping[str, str]) -> str:
    drafts, text = count_drafts(row), row.get("acceptance")
    if drafts > MOST_DRAFTS:
        return f"drafted must be at most {MOST_DRAFTS} tokens, got {drafts}"
    if not text:
        return ""
    try:
        good = 1 <= float(text) <= drafts + 1
    except ValueError:
        good = False
    limit_text = f"drafted + 1 = {drafts + 1}"
    return "" if good else f"acceptance must be the tokens that a step yields, from 1 to {limit_text}, got {short_repr(text)}"


def _wrong_pools(row: Mapping[str, str]) -> str:
    pools = [name for name in ("decode_workers", "prefill_workers", *PREFILL_WAYS) if row.get(name)]
    missing = [name for name in ("decode_workers", "prefill_workers", "prefill_tp") if not row.get(name)]
    if not pools or not missing:
        return ""
    return f"{pools[0]} belongs to separate pools, which also need {' and '.join(missing)}"
