"""What kind of run a row is: closed loops with and without drafts, separate pools, and throughputs under a scenario.

A row of a closed loop says how many requests are in flight. Others say a scenario instead: all requests at once (MLPerf's
Offline), the highest rate within limits (Server, Interactive), or the highest throughput at lengths (`part` trt_max).
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
"""Columns that hold whole numbers of at least 1 (drafted: 0), or nothing."""
KIND_COLUMNS: Final = ("scenario", "part", "spec", "acceptance", *WHOLE_NUMBER_COLUMNS)
"""Columns that say what kind of run it was; a row may lack them all."""
LARGEST: Final = 1e8


def run_kind(row: Mapping[str, str]) -> str:
    """Return the kind of run that a row is.

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
    """Return what an error table calls the kind of a row: pools that draft stand apart."""
    kind = run_kind(row)
    return f"{POOLS}, drafted" if kind == POOLS and is_drafted(row) else kind


def is_drafted(row: Mapping[str, str]) -> bool:
    """Whether a row says that its run drafted."""
    return count_drafts(row) > 0 or (row.get("spec") or "").casefold() not in NO_DRAFTS


def count_drafts(row: Mapping[str, str]) -> int:
    """Return the tokens that a run drafted in a step; 0 where the row does not tell."""
    return int(float(row.get("drafted") or 0))


def wrong_kind(row: Mapping[str, str]) -> str:
    """Return what is wrong with the columns that say what kind of run it was, "" for nothing."""
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
        return f"{name} is {short_repr(text)}, not a number"
    if not (value >= least and value % 1 == 0):
        return f"{name} must be a whole number of at least {least}, not {short_repr(text)}"
    return f"{name} must be at most {LARGEST:,.0f}, not {short_repr(text)}" if value > LARGEST else ""


def _wrong_drafts(row: Mapping[str, str]) -> str:
    drafts, text = count_drafts(row), row.get("acceptance")
    if drafts > MOST_DRAFTS:
        return f"drafted must be at most {MOST_DRAFTS} tokens, not {drafts}"
    if not text:
        return ""
    try:
        good = 1 <= float(text) <= drafts + 1
    except ValueError:
        good = False
    limit_text = f"drafted + 1 = {drafts + 1}"
    return "" if good else f"acceptance is the tokens that a step yields, from 1 to {limit_text}, not {short_repr(text)}"


def _wrong_pools(row: Mapping[str, str]) -> str:
    pools = [name for name in ("decode_workers", "prefill_workers", *PREFILL_WAYS) if row.get(name)]
    missing = [name for name in ("decode_workers", "prefill_workers", "prefill_tp") if not row.get(name)]
    if not pools or not missing:
        return ""
    return f"{pools[0]} is of separate pools, which need {' and '.join(missing)} too"
