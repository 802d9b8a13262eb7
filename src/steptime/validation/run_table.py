"""Run table: columns of measured serving runs, their CSV reader, checks of each row, and the kind of a run.

A row of a closed loop has the number of requests in flight. It may have speculative tokens, and separate pools. Other rows have
a scenario instead: all requests at once (MLPerf's Offline), the highest rate within limits (Server, Interactive), or the
highest throughput at given lengths (`part` trt_max).
"""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Callable, Container, Hashable, Iterable, Mapping
from functools import cache, lru_cache, partial
from operator import itemgetter
from typing import Final

import numpy as np

from steptime.catalog.data_files import files, folded, require_regular_file
from steptime.catalog.hardware_loading import load_system
from steptime.errors import DataFileError, InputError, UnknownName, did_you_mean, os_problem, short_repr
from steptime.hardware.number_formats import number_format
from steptime.hardware.system import System
from steptime.models.model import Model, gguf_formats, with_outputs
from steptime.models.model_loading import load_model
from steptime.number_checks import Array
from steptime.physics import uncertainty
from steptime.physics.compute_dtype import as_served
from steptime.physics.engine import TYPICAL, Engine
from steptime.physics.engine_releases import SAMPLINGS, TOP_P
from steptime.physics.layout import READ_ENGINES, Layout
from steptime.physics.layout_rules import check
from steptime.units import count, counted
from steptime.workload.workload import MOST_DRAFTS

PLAIN, DRAFTED, POOLS = "aggregated", uncertainty.DRAFTED, uncertainty.POOLS
OFFLINE, SERVER, INTERACTIVE, HIGHEST = "offline", "server", "interactive", "maximum"
LOOPS: Final = (PLAIN, DRAFTED)
SCENARIOS: Final = {"Offline": OFFLINE, "Server": SERVER, "Interactive": INTERACTIVE}
MLPERF: Final = "mlperf"
MAXIMUM: Final = "trt_max"
PARTS: Final = ("ix_aggregated", "ix_mtp", "ix_disaggregated", MLPERF, MAXIMUM)
NO_DRAFTS: Final = ("", "none")
# Most prompt tokens of a data-parallel rank in a step.
TOKEN_BUDGET: Final = "max_num_batched_tokens"
PREFILL_WAYS: Final = {"prefill_tp": "tp", "prefill_dp": "dp", "prefill_ep": "ep"}
WHOLE_NUMBER_COLUMNS: Final = (
    "drafted",
    "decode_workers",
    "prefill_workers",
    *PREFILL_WAYS,
    "chips",
    "stream_interval",
    "max_num_seqs",
    TOKEN_BUDGET,
)
"""Columns with whole numbers of at least 1 (drafted: at least 0), or empty."""
KIND_COLUMNS: Final = ("scenario", "part", "spec", "acceptance", *WHOLE_NUMBER_COLUMNS)
"""Columns that determine the kind of a run; all are optional."""
# Spread of lengths drawn evenly from 0.8 to 1.0 of nominal, as InferenceX and similar benchmarks do.
DRAWN_SPREAD = 1 / 9
# Names of public runs with such lengths; other runs have fixed lengths. Runs of a "gap analysis" are copies of InferenceX's.
# A day or "cfg" alone does not make a name theirs; the number of clients (_c64) is in each of their names.
DRAWN_IDS = re.compile(r"\d{4}[-_]\d{2}[-_]\d{2}_.*_c\d|.*_c\d+.*cfg\d|.*gap_analysis")
AXES = ("tp", "pp", "dp", "ep")
NUMBERS = ("input_tokens", "output_tokens", "concurrency", *AXES)
# The engine whose runs have weights of GGUF files.
LLAMA_CPP: Final = "llama.cpp"
COLUMNS = ("id", "model", "system", "engine", *NUMBERS, "weight_dtype", "expert_dtype")
MEASURED = ("ttft_s", "tpot_s")
# Longest credible time [s]; longer values were milliseconds.
LONGEST_SECONDS = {"ttft_s": 1e4, "ttft_median_s": 1e4, "tpot_s": 10.0}
# Bad rows that one message names.
MOST_PROBLEMS = 5
# Measured means of a run.
MEANS = ("input_mean", "output_mean", "concurrency_mean")
SPREAD, REQUESTS = "length_spread", "requests"
# Measured throughputs of the whole deployment [tok/s].
RATES = ("output_tok_s", "total_tok_s")
LIMITS = ("ttft_limit_s", "tpot_limit_s")
# How tokens were drawn, and what `tpot_s` is.
SAMPLING, STATISTIC = "sampling", "tpot_statistic"
MEAN, MEDIAN_INTERVAL = "mean", "median interval"
# Whether prompts run before decode steps or within them (SGLang's --enable-mixed-chunk); by default as the engine does.
PREFILL_SCHEDULE = "prefill_schedule"
PREFILL_FIRST, MIXED = "first", "mixed"
CHOICES: Final = {SAMPLING: SAMPLINGS, STATISTIC: (MEAN, MEDIAN_INTERVAL), PREFILL_SCHEDULE: (PREFILL_FIRST, MIXED)}
# Mean prompts [tokens] of the tasks of ML.ENERGY, which does not publish them: short chats, and questions with four answers.
TASK_PROMPTS: Final = {"lm-arena-chat": 150.0, "gpqa": 250.0}
OPTIONAL = (
    "measured", "engine_version", "kv_dtype", *MEANS, SPREAD, REQUESTS, "ttft_median_s", *RATES, *LIMITS, *KIND_COLUMNS,
    *CHOICES, "task",
)  # fmt: skip
# Format of the output projections of attention, where it is not that of the other projections. No file has this column; scripts
# of public runs say it (`published_deployments.output_format`).
OUTPUT_FORMAT: Final = "output_dtype"
# Prompts from which a load generator draws those of its requests, where they repeat and the engine has a prefix cache. No file
# has this column either (`published_deployments.repeats_prompts`).
DISTINCT_PROMPTS: Final = "distinct_prompts"
# Columns with the origin of a run. Only predictions of MLPerf use them: boards of two chips (note).
UNREAD = ("note", "acceptance_assumed")
# Maximum of a length, a number of requests or a parallel size.
LARGEST = 1e8
QUOTE = "'"
# Maximum tokens per second.
LARGEST_RATE = 1e12
POSITIVE = (*MEASURED, "ttft_median_s", *MEANS, REQUESTS, *RATES, *LIMITS)
CHECKED = (*NUMBERS, "system", "model", "weight_dtype", "expert_dtype", "kv_dtype")
# Known engine names; a similar name is a misspelling.
ENGINES = (*READ_ENGINES, TYPICAL)


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


def is_static_batch(row: Mapping[str, str]) -> bool:
    """Whether a run is one static batch, as its note states.

    Args:
        row: Run.

    Returns:
        True or false.

    >>> is_static_batch({"note": "static batch: ttft_s is the prefill of the whole batch"}), is_static_batch({})
    (True, False)
    """
    return (row.get("note") or "").startswith("static batch")


def release_label(row: Mapping[str, str]) -> str:
    """Return the release of a run's engine: its version, or the month of an unknown version.

    Args:
        row: Run.

    Returns:
        Version or month; "" where the run states neither.

    >>> release_label({"engine_version": "0.9.1", "measured": "2026-01-02"})
    '0.9.1'
    >>> release_label({"engine_version": "sglang nan", "measured": "2026-01-02"})
    '2026-01'
    """
    version = (row.get("engine_version") or "").strip()
    return version if any(mark.isdigit() for mark in version) else (row.get("measured") or version)[:7]


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


def _wrong_kind(row: Mapping[str, str]) -> str:
    """Return the problem with the columns that determine the kind of a run; "" if there is no problem."""
    if not any(map(row.get, KIND_COLUMNS)):
        return ""
    if row.get("scenario") and row["scenario"] not in SCENARIOS:
        return str(UnknownName("scenario", row["scenario"], SCENARIOS, f"Known: {', '.join(SCENARIOS)}."))
    # Other labels of a collection mean nothing here; a misspelt one would change the kind of the run.
    if row.get("part") and row["part"] not in PARTS and (near := did_you_mean(row["part"], PARTS, max_names=1, cutoff=0.75)):
        return f"unknown part {short_repr(row['part'])}; did you mean {near[0]}?"
    for name in WHOLE_NUMBER_COLUMNS:
        if row.get(name) and (problem := _wrong_whole(name, row[name], least=0 if name == "drafted" else 1)):
            return problem
    return _wrong_drafts(row) or _wrong_pools(row)


def _wrong_whole(name: str, text: str, least: int = 1) -> str:
    if not text:
        return f"{name} is empty"
    try:
        value = float(text)
    except ValueError:
        return f"{name} must be a number, got {short_repr(text)}{_as_digits(text)}"
    if not (value >= least and value % 1 == 0):
        return f"{name} must be a whole number of at least {least}, got {short_repr(text)}"
    return f"{name} must be at most {LARGEST:,.0f}, got {short_repr(text)}" if value > LARGEST else ""


def _as_digits(text: str) -> str:
    """Return what to write for a number with a suffix; "" for another text.

    >>> _as_digits("1k"), _as_digits("many")
    ('; write 1000', '')
    """
    try:
        return f"; write {count(text)}"
    except InputError:
        return ""


def _as_number(text: str) -> float:
    """Return the number in a cell; NaN for another text."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _wrong_drafts(row: Mapping[str, str]) -> str:
    drafts, text = count_drafts(row), row.get("acceptance")
    if drafts > MOST_DRAFTS:
        return f"drafted must be at most {MOST_DRAFTS} tokens, got {drafts}"
    if not text or 1 <= _as_number(text) <= drafts + 1:
        return ""
    limit_text = f"drafted + 1 = {drafts + 1}"
    return f"acceptance must be the tokens that a step yields, from 1 to {limit_text}, got {short_repr(text)}"


def _wrong_pools(row: Mapping[str, str]) -> str:
    pools = [name for name in ("decode_workers", "prefill_workers", *PREFILL_WAYS) if row.get(name)]
    missing = [name for name in ("decode_workers", "prefill_workers", "prefill_tp") if not row.get(name)]
    if not pools or not missing:
        return ""
    return f"{pools[0]} belongs to separate pools, which also need {' and '.join(missing)}"


def read_runs(
    path: str | os.PathLike[str], *, skip_bad: bool = False, catalog: str | None = None
) -> tuple[list[dict[str, str]], list[str]]:
    """Read a CSV of measured serving runs.

    Args:
        path: CSV file.
        skip_bad: Whether to leave out bad rows instead of raising.
        catalog: Folder of additional catalogue entries.

    Returns:
        The rows, and a description of each row that was left out.

    Raises:
        DataFileError: A column is missing, or a row is bad and `skip_bad` is False (with its line).
    """
    find_problem, systems = checker(catalog), files("systems", catalog)
    require_regular_file(path)
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            twice = next((name for name in header if name and header.count(name) > 1), None)
            if twice is not None:
                raise DataFileError(path, f"has the column {short_repr(twice)} twice", 1)
            if problem := _wrong_header(header):
                raise DataFileError(path, problem, 1)
            column_count = len(header)
            header += [name for name in CHECKED if name not in header]
            rows, problems, first_line = [], [], 0
            for cells in filter(None, reader):
                # Short rows get empty cells; long rows are an error, because their columns are ambiguous.
                row = as_read(dict(zip(header, cells + [""] * (len(header) - len(cells)), strict=False)), systems)
                beyond = f"it has {len(cells)} cells, the header {column_count}" if len(cells) > column_count else ""
                problem = beyond or find_problem(row)
                if problem:
                    first_line = first_line or reader.line_num
                    problems.append(f"line {reader.line_num}: {problem}")
                else:
                    rows.append(row)
                # The first bad rows are named together, so that one correction of the file is enough.
                if not skip_bad and len(problems) == MOST_PROBLEMS:
                    break
    except OSError as error:
        raise DataFileError(path, os_problem(error)) from None
    except UnicodeDecodeError as error:
        raise DataFileError(path, f"is not a CSV file in UTF-8 ({error.reason} at byte {error.start})") from None
    except (csv.Error, ValueError) as error:
        raise DataFileError(path, f"is not a CSV file in UTF-8: {error!s:.200}") from None
    if problems and not skip_bad:
        listed = "; ".join([problems[0].partition(": ")[2], *problems[1:]])
        raise DataFileError(path, f"{listed.rstrip('.')}; --skip-bad leaves such rows out", first_line)
    if not rows:
        raise DataFileError(path, "has no runs" + (f": {problems[0]}" if problems else ""))
    return rows, problems


def as_read(row: Mapping[str, str], systems: Container[str]) -> dict[str, str]:
    """Return a row with catalogue names in their case, lengths that are no whole numbers as means, and the facts of its task.

    A nominal length or a fixed concurrency is a whole number. Any other number is a mean, so it goes to the column of means
    where that is empty. Rows of a task of ML.ENERGY get its prompts, its sampling and what its time per token is.

    Args:
        row: Run.
        systems: Names of the catalogue's systems.

    Returns:
        The row.

    >>> row = as_read({"input_tokens": "1023.7", "engine": "vLLM", "system": "HGX_H100"}, ["hgx-h100"])
    >>> row["input_tokens"], row["input_mean"], row["engine"], row["system"]
    ('1024', '1023.7', 'vllm', 'hgx-h100')
    """
    out = dict(row)
    for name, catalogue_names in (("engine", ENGINES), ("system", systems)):
        if folded(out.get(name) or "") in catalogue_names:
            out[name] = folded(out[name])
    if out.get("task") in TASK_PROMPTS:
        # ML.ENERGY: real prompts and ends, tokens drawn with top-p, and the median of intervals between tokens.
        out["input_tokens"] = out.get("input_tokens") or f"{TASK_PROMPTS[out['task']]:.0f}"
        out[SAMPLING], out[STATISTIC] = out.get(SAMPLING) or TOP_P, out.get(STATISTIC) or MEDIAN_INTERVAL
    for name, mean in zip(NUMBERS, MEANS, strict=False):
        value = _as_number(out.get(name) or "")
        # Under a scenario the concurrency is a limit.
        if 1 < value < LARGEST and value % 1 and not (name == "concurrency" and out.get("scenario")):
            out[mean] = out.get(mean) or out[name]
            out[name] = f"{value:.0f}"
    return out


def _wrong_header(header: list[str]) -> str:
    """Return the problem with the column names; "" if there is no problem."""
    if not any(header):
        return "is empty: give a CSV table, whose first line names the columns, or the JSON of a benchmark"
    missing = [name for name in COLUMNS if name not in header]
    if len(header) == 1 and (mark := next((mark for mark in ";\t|" if mark in header[0]), "")):
        return f"separates its columns by {mark!r}; separate them by commas"
    if missing:
        near = {name: did_you_mean(name, set(header) - set(COLUMNS), max_names=1, cutoff=0.7) for name in missing}
        hints = [
            f"{name} ({suggestions[0]} is not a known column)" if suggestions else name for name, suggestions in near.items()
        ]
        words = f"lacks the column{'s' if len(missing) > 1 else ''} {', '.join(hints)}"
        return f"{words}; `steptime validate --columns` lists all columns"
    for name in MEASURED:
        misnamed_column = next(
            (column for column in header if re.fullmatch(name[:-1] + "?(|m|u|n|ms|us|ns|sec|seconds)", column.lower())), ""
        )
        if name not in header and misnamed_column:
            return f"has the column {misnamed_column}, which is not read: times stand in {name}, in seconds"
    return ""


def in_runs(count: int) -> str:
    """Format a number of runs.

    Args:
        count: Number of runs.

    Returns:
        Number and unit, in singular or plural.

    >>> in_runs(1), in_runs(1672)
    ('1 run', '1,672 runs')
    """
    return counted(count, "run")


def checker(catalog: str | None = None) -> Callable[[Mapping[str, str]], str]:
    """Return a function that checks a row.

    It reads each name of the catalogue once.

    Args:
        catalog: Folder of additional catalogue entries.

    Returns:
        Function from a row to a description of its problem; "" if there is no problem.
    """
    # Files have thousands of rows but few distinct names and cells, so the checks are cached.
    system = lru_cache(maxsize=None)(partial(load_system, catalog=catalog))
    model = lru_cache(maxsize=None)(partial(load_model, catalog=catalog))
    names = lru_cache(maxsize=None)(partial(_wrong_name, system, model))
    cells = lru_cache(maxsize=None)(partial(_wrong_cell, names))
    checked = itemgetter(*CHECKED)

    def find_problem(row: Mapping[str, str]) -> str:
        if problem := _misspelt(row["engine"]) or _wrong_measure(row) or _wrong_kind(row):
            return problem
        kind = run_kind(row)
        if kind in LOOPS:
            return cells(*checked(row))
        if kind == POOLS:
            prefill = {axis: row.get(name) or "1" for name, axis in PREFILL_WAYS.items()}
            return cells(*checked(row)) or cells(*checked({**row, **prefill}))
        # A scenario may leave these columns empty.
        return cells(*checked({**row, "concurrency": row["concurrency"] or "1", "tp": row["tp"] or "1"}))

    return find_problem


@cache
def _misspelt(engine: str) -> str:
    """Suggest the engine for a misspelt name; "" for a known name and for other names, which use the typical engine."""
    near = () if engine in ENGINES else did_you_mean(engine, ENGINES, max_names=1, cutoff=0.75)
    return f"unknown engine {short_repr(engine)}; did you mean {near[0]}?" if near else ""


def unread_columns(rows: Iterable[Mapping[str, str]]) -> list[str]:
    """Return the columns that no code uses, with a suggestion for misspellings.

    Args:
        rows: Runs.

    Returns:
        Column names.

    >>> unread_columns([{"id": "a", "note": "", "host": "x", "acceptence": "2"}])
    ['host', 'acceptence (acceptance?)']
    """
    known_columns = {*COLUMNS, *MEASURED, *OPTIONAL, *UNREAD}
    names = dict.fromkeys(name for row in rows for name in row if name not in known_columns and name)
    near = {name: did_you_mean(name, known_columns, max_names=1, cutoff=0.8) for name in names}
    return [
        f"{short_repr(name).strip(QUOTE)} ({near[name][0]}?)" if near[name] else short_repr(name).strip(QUOTE) for name in names
    ]


def _wrong_measure(row: Mapping[str, str]) -> str:
    for name in POSITIVE:
        text = row.get(name)
        if not text:
            continue
        value = _as_number(text)
        if not 0 < value < math.inf:
            kind = "time" if name.endswith("_s") and name not in RATES else "number"
            return f"{name} must be a {kind} greater than 0, got {short_repr(text)}"
        if value > (longest := LONGEST_SECONDS.get(name, math.inf)):
            hint = f"times are in seconds, not in milliseconds; write {value / 1000:g}"
            return f"{name} must be at most {longest:,.0f} s, got {short_repr(text)}: {hint}"
        if name == REQUESTS and value < 1:
            return f"{name} must be at least 1, got {short_repr(text)}"
        if value > (maximum := LARGEST_RATE if name in RATES else LARGEST):
            return f"{name} must be at most {maximum:,.0f}, got {short_repr(text)}"
    for name, choices in CHOICES.items():
        if row.get(name) and row[name] not in choices:
            return f"{name} must be {' or '.join(choices)}, got {short_repr(row[name])}"
    spread = row.get(SPREAD) or "0"
    if 0 <= _as_number(spread) <= 1:
        return ""
    return f"{SPREAD} must be a share from 0 (equal lengths) to 1, got {short_repr(spread)}"


def length_spread(row: Mapping[str, str]) -> float:
    """Return the spread of a run's lengths as a share of the mean.

    The value is in the column, or follows from the name of the run (`DRAWN_IDS`).

    Args:
        row: Run.

    Returns:
        Share from 0 (equal lengths) to 1.

    >>> length_spread({"id": "2026_04_06_llama_c64"}) == length_spread({"id": "llama_c64_cfg7"}) == DRAWN_SPREAD
    True
    >>> [length_spread({"id": name}) for name in ("llama_c64", "2026-11-20 prod", "my-cfg-3")]
    [0.0, 0.0, 0.0]
    >>> length_spread({"id": "llama_c64", "length_spread": "0.5"})
    0.5
    """
    if row.get(SPREAD):
        return float(row[SPREAD])
    return DRAWN_SPREAD if DRAWN_IDS.match(row["id"]) else 0.0


def _wrong_cell(names: Callable[..., str], *cells: str) -> str:
    """Return the problem with the cells of `CHECKED`; "" if there is no problem."""
    for name, text in zip(NUMBERS, cells, strict=False):
        if problem := _wrong_whole(name, text):
            return problem
    return names(*cells[len(NUMBERS) - len(AXES) :])


def _wrong_name(system: Callable[..., System], model: Callable[..., Model], *cells: str) -> str:
    """Return the problem with the parallel sizes, names and formats of a run; "" if there is no problem."""
    *sizes, machine, name, weights, experts, kv = cells
    try:
        described = model(name, weights=weights or "bf16", experts=experts or weights or "bf16", kv=kv)
        check(Layout(**{n: int(float(size)) for n, size in zip(AXES, sizes, strict=True)}), described, system(machine))
    except InputError as problem:
        return str(problem)
    return ""


def numbers(rows: Iterable[Mapping[str, str]], name: str, missing: float = math.nan) -> Array:
    """Return the numbers of one column.

    Args:
        rows: Runs.
        name: Column.
        missing: Value of empty cells.

    Returns:
        Numbers, of shape (rows,).
    """
    return np.array([float(row.get(name) or missing) for row in rows])


def group_positions(keys: Iterable[Hashable]) -> list[Array]:
    """Group positions by key.

    Args:
        keys: Key of each position.

    Returns:
        Positions of each distinct key, in the order of their first position.

    >>> [group.tolist() for group in group_positions("abca")]
    [[0, 3], [1], [2]]
    """
    groups: dict[Hashable, list[int]] = {}
    for position, key in enumerate(keys):
        groups.setdefault(key, []).append(position)
    return [np.array(group) for group in groups.values()]


def served_model(row: Mapping[str, str], system: System, engine: Engine, catalog: str | None) -> Model:
    """Load the model of a run in its formats.

    Args:
        row: Run.
        system: System.
        engine: Engine, for the default format of the KV cache.
        catalog: Folder of additional catalogue entries.

    Returns:
        The model.
    """
    weights = row["weight_dtype"] or "bf16"
    if engine.name == LLAMA_CPP:
        weights, experts = gguf_formats(weights, row["expert_dtype"])
        row = {**row, "expert_dtype": experts}
    kv = row.get("kv_dtype") or ""
    model = load_model(row["model"], weights=weights, experts=row["expert_dtype"] or weights, kv=kv, catalog=catalog)
    if row.get(OUTPUT_FORMAT):
        model = with_outputs(model, number_format(row[OUTPUT_FORMAT]))
    return as_served(model, system, engine)
