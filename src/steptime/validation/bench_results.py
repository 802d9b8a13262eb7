"""Measured runs of a user: CSV files, rows, and results of serving benchmarks, which are converted to rows.

Files of two load generators are read; `harness_results` converts the files of five further harnesses to the first form:

- `vllm bench serve --save-result` (earlier `benchmarks/benchmark_serving.py`): one JSON object per file, or with
  `--append-result` one per line. https://github.com/vllm-project/vllm/blob/main/vllm/benchmarks/serve.py
- `python -m sglang.bench_serving --output-file` (later `sglang.benchmark.serving`): one JSON object per line.
  https://github.com/sgl-project/sglang/blob/main/python/sglang/bench_serving.py

Both files contain mean times and total tokens, so mean lengths follow. They do not contain the machine, the layout and the
formats. These come from `overrides`, by column, or from vLLM's `--metadata tp=4 system=hgx-h200`, or from SGLang's
server_info.

**Requests in flight.** A closed loop keeps `max_concurrency` requests in flight. Open arrivals keep, on average, the requests
that arrive during one request (Little's law): $X (TTFT + (O - 1) TPOT)$ at $X$ requests per second. If all requests were sent
at once without a limit, $X (O - 1) TPOT$ requests decode and the others wait. TTFT then measures this wait, so it is omitted.

**Lengths.** The means are in the file. The spread of lengths around the mean comes from the lengths themselves if the file has
them, or from SGLang's `random_range_ratio`. Otherwise it has the usual value (`run_table.DRAWN_SPREAD`).
"""

from __future__ import annotations

import json
import math
import os
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from steptime.catalog.data_files import files, is_dir, is_file, require_regular_file
from steptime.catalog.hardware_loading import load_system
from steptime.errors import DataFileError, InputError, RangeError, UnknownName, install_hint, os_problem, short_repr
from steptime.hardware.number_formats import number_format
from steptime.models.model_loading import load_model
from steptime.number_checks import MOST_CHIPS, whole_number
from steptime.physics.engine import TYPICAL, load_engine
from steptime.units import count
from steptime.validation.harness_results import HARNESS_NAMES, inferencex_columns, is_inferencex, split_results
from steptime.validation.run_table import AXES, COLUMNS, DRAWN_SPREAD, OPTIONAL, REQUESTS, SPREAD, as_read, checker, read_runs

OPTIONS = {
    "model": "--model NAME", "engine": "--engine NAME", "system": "--system NAME", "tp": "--tp WAYS", "pp": "--pp STAGES",
    "dp": "--dp GROUPS", "ep": "--ep WAYS", "weight_dtype": "--weights FORMAT", "expert_dtype": "--experts FORMAT",
    "kv_dtype": "--kv FORMAT",
}  # fmt: skip
SETTING_COLUMNS = {option.removeprefix("--").split()[0]: column for column, option in OPTIONS.items()}
"""Values that result files lack: the argument, and the column of a run that it fills."""
Place = str | os.PathLike[str]
Runs = Place | Sequence[Place] | Sequence[Mapping[str, Any]]
# Defaults of columns that may be missing: parallel sizes of 1, and the engine's default formats.
MAY_LACK = {"pp": "1", "dp": "1", "ep": "1", "expert_dtype": "", "kv_dtype": ""}
# Engine by the first letters of the `backend` field.
ENGINES = {"vllm": "vllm", "openai": "vllm", "sglang": "sglang", "trt": "trtllm", "tensorrt": "trtllm"}
# Suffixes of the run files in a folder.
SUFFIXES = (".json", ".jsonl", ".csv")
# First line of a YAML document: a key, or the mark of a document. The header of a CSV has commas.
YAML_START = re.compile(r"(---\s*$|%YAML |[\w'\"-]+:(\s|$))")
# Credible range of a time, a length or a count.
SMALLEST_CREDIBLE, LARGEST_CREDIBLE = 1e-9, 1e15
# Prefix cache hit rate [%]; above it the prompts of a run were not new.
CACHED = 1.0


def read_rows(
    runs: Runs, settings: Mapping[str, str | int], skip_bad: bool, catalog: str | None
) -> tuple[list[dict[str, str]], list[str]]:
    """Read rows of text from files, or from rows of any values.

    Args:
        runs: File, folder, several of them, or rows as dicts by column.
        settings: Values that JSON results lack, by argument.
        skip_bad: Whether to leave out bad runs instead of raising.
        catalog: Folder of additional catalogue entries.

    Returns:
        The rows, and a description of each row that was left out.

    Raises:
        InputError: A run is bad and `skip_bad` is False, or no run is left.
    """
    for name in settings:
        if name not in SETTING_COLUMNS:
            raise UnknownName("argument", name, SETTING_COLUMNS, f"Known: {', '.join(SETTING_COLUMNS)}.")
    overrides = {SETTING_COLUMNS[name]: str(value) for name, value in settings.items() if value not in ("", None)}
    if not isinstance(runs, str | os.PathLike | Iterable):
        raise InputError(f"runs: must be files, folders, or rows as dicts by column, got {short_repr(runs)}")
    places = _places(runs)
    if places and all(isinstance(place, str | os.PathLike) for place in places):
        return read_files(places, overrides=overrides, skip_bad=skip_bad, catalog=catalog)
    if not places or not all(isinstance(row, Mapping) for row in places):
        raise InputError(
            "runs: must be files, folders, or rows as dicts by column; `steptime validate --columns` lists the columns"
        )
    if overrides:
        raise RangeError(f"{next(iter(settings))} applies to JSON results only; a row has a column for it")
    return _check_rows(places, skip_bad, catalog)


def _places(runs: Runs) -> list[Any]:
    """Return one path, or several paths or rows, as a list."""
    return [runs] if isinstance(runs, str | os.PathLike) else list(runs)


def file_names(runs: Runs) -> list[str]:
    """Return the names of the files of runs.

    Args:
        runs: Files or rows.

    Returns:
        Names without folders; none for rows.
    """
    return [Path(place).resolve().name for place in _places(runs) if isinstance(place, str | os.PathLike)]


def _check_rows(
    rows: Sequence[Mapping[str, Any]], skip_bad: bool, catalog: str | None
) -> tuple[list[dict[str, str]], list[str]]:
    """Return rows as texts, and a description of each row that was left out."""
    find_problem, systems = checker(catalog), files("systems", catalog)
    good: list[dict[str, str]] = []
    problems: list[str] = []
    for number, row in enumerate(rows):
        texts = dict.fromkeys(OPTIONAL, "") | {str(key): "" if value is None else str(value) for key, value in row.items()}
        texts = as_read(texts, systems)
        missing = [name for name in COLUMNS if name not in texts]
        problem = f"lacks the columns {', '.join(missing)}" if missing else find_problem(texts)
        if problem and not skip_bad:
            raise InputError(f"row {number}: {problem}")
        if problem:
            problems.append(f"row {number}: {problem}")
        else:
            good.append(texts)
    if not good:
        raise InputError("no runs" + (f": {problems[0]}" if problems else ""))
    return good, problems


def read_files(
    paths: Iterable[str | os.PathLike[str]],
    *,
    overrides: Mapping[str, str] | None = None,
    skip_bad: bool = False,
    catalog: str | None = None,
) -> tuple[list[dict[str, str]], list[str]]:
    """Read runs from files and folders, CSV or JSON results.

    Args:
        paths: Files or folders.
        overrides: Values by column that JSON results lack.
        skip_bad: Whether to leave out bad runs instead of raising.
        catalog: Folder of additional catalogue entries.

    Returns:
        The rows, and a description of each run that was left out.

    Raises:
        DataFileError: A run is bad and `skip_bad` is False (with its line).
        RangeError: `overrides` are given without a JSON file.
        InputError: No file has a usable run.
    """
    run_files = [path for name in paths for path in _files(Path(name))]
    results = [path for path in run_files if _first_lines(path)]

    # A CSV has a column for each of these values, so an override would contradict it.
    if overrides and not results:
        raise RangeError(
            f"{OPTIONS[next(iter(overrides))].split()[0]} applies to JSON results only; {run_files[0]} has a column for it"
        )
    _check_given(overrides or {}, catalog)
    rows: list[dict[str, str]] = []
    problems: list[str] = []
    for path in run_files:
        if path in results:
            new_rows, wrong = read_results(path, overrides or {}, skip_bad=skip_bad, catalog=catalog)
        else:
            new_rows, wrong = read_runs(path, skip_bad=skip_bad, catalog=catalog)
        rows += new_rows
        problems += [f"{path.name}: {problem}" for problem in wrong] if len(run_files) > 1 else wrong
    if not rows:
        raise InputError(f"{', '.join(map(str, paths))}: has no runs" + (f": {problems[0]}" if problems else ""))
    return rows, problems


def _files(path: Path) -> list[Path]:
    """Return the path itself, or the run files of a folder."""
    if not is_dir(path):
        return [path]
    try:
        inside = sorted(p for p in path.iterdir() if p.suffix in SUFFIXES and is_file(p))
    except OSError as error:
        raise DataFileError(path, os_problem(error)) from None
    if not inside:
        raise DataFileError(path, f"is a folder without a {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file")
    return inside


def _check_given(overrides: Mapping[str, str], catalog: str | None) -> None:
    """Raise InputError for an invalid name or number in `overrides`."""
    for axis in AXES:
        if axis in overrides:
            whole_number(axis, count(overrides[axis], axis), maximum=MOST_CHIPS)
    if "system" in overrides:
        load_system(overrides["system"], catalog)
    if "engine" in overrides:
        load_engine(overrides["engine"], catalog)
    if "model" in overrides:
        load_model(overrides["model"], catalog=catalog)
    for column in ("weight_dtype", "expert_dtype"):
        if column in overrides:
            number_format(overrides[column])


def _first_lines(path: Path) -> str:
    """Return the format of a results file, "json" or "yaml"; "" for a table."""
    require_regular_file(path)
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            start = file.read(4096)
    except OSError as error:
        raise DataFileError(short_repr(str(path)).strip("'"), os_problem(error)) from None
    # The name has a zero byte.
    except ValueError:
        raise DataFileError(short_repr(str(path)).strip("'"), "no such file") from None
    if start.lstrip()[:1] in ("{", "["):
        return "json"
    line = next((line for line in start.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    return "yaml" if YAML_START.match(line) else ""


def _yaml_objects(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    """Yield the line and the value of each YAML document, or an InputError."""
    if find_spec("yaml") is None:
        raise DataFileError(path, f"is YAML, which PyYAML reads: {install_hint('launch')}")
    import yaml

    try:
        for document in yaml.compose_all(text, Loader=yaml.SafeLoader):
            loader = yaml.SafeLoader("")
            yield document.start_mark.line + 1, loader.construct_document(document)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or "nested too deep, or a value of a wrong form"
        yield (mark.line + 1 if mark else 1), InputError(f"is not valid YAML: {reason!s:.100}")


def read_results(
    path: Path, overrides: Mapping[str, str], *, skip_bad: bool = False, catalog: str | None = None
) -> tuple[list[dict[str, str]], list[str]]:
    """Read the rows of a JSON results file.

    Args:
        path: JSON or JSON Lines file.
        overrides: Values by column that the file lacks.
        skip_bad: Whether to leave out bad runs instead of raising.
        catalog: Folder of additional catalogue entries.

    Returns:
        The rows, and a description of each run that was left out.

    Raises:
        DataFileError: The file is not UTF-8, or a run is bad and `skip_bad` is False.
        NotTold: A run lacks a column that a prediction needs.
    """
    require_regular_file(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataFileError(path, f"is not UTF-8 text ({error.reason} at byte {error.start})") from None
    find_problem = checker(catalog)
    rows, problems = [], []

    # One file may have several runs; then the number makes their ids unique.
    parsed = _yaml_objects(path, text) if _first_lines(path) == "yaml" else objects(text)
    values = [(line, result) for line, value in parsed for result in split_results(value)]
    for number, (line, value) in enumerate(values, 1):
        try:
            row = convert_result(value, overrides, id_=path.name if len(values) == 1 else f"{path.name}:{number}")
        except InputError as error:
            problem = str(error)
        else:
            # Neither the file nor the user gives required columns.
            if untold := tuple(c for c in OPTIONS if not row[c] and MAY_LACK.get(c) != ""):
                raise NotTold(path, untold, line)
            problem = find_problem(row)
            if problem.startswith("unknown model") and "model" not in overrides:
                problem += "; --model NAME replaces it"
        if problem and not skip_bad:
            raise DataFileError(path, f"{str(problem).rstrip('.')}; --skip-bad leaves such runs out", line)
        if problem:
            problems.append(f"line {line}: {problem}")
        else:
            rows.append(row)
    return rows, problems


class NotTold(DataFileError):
    """Error for a result that lacks required `columns` of a run."""

    def __init__(self, path: object, columns: tuple[str, ...], line: int | None = None) -> None:
        self.columns = columns
        options = _joined([OPTIONS[column] for column in columns])
        super().__init__(path, f"has no {_joined(columns)} of the run: give {options}", line)


def _joined(names: Sequence[str]) -> str:
    """Return names as a list in words."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def objects(text: str) -> Iterator[tuple[int, Any]]:
    """Parse a text of JSON values one after another.

    Args:
        text: JSON, JSON Lines, or several JSON values in sequence.

    Yields:
        The line and the value; members of a list one by one; an InputError for invalid JSON.

    >>> [value for _, value in objects('{"a": 1}\\n{"a": 2} [{"a": 3}]')]
    [{'a': 1}, {'a': 2}, {'a': 3}]
    """
    decoder = json.JSONDecoder()
    position, line = 0, 1
    while something := re.compile(r"\S").search(text, position):
        start = something.start()
        line += text.count("\n", position, start)
        try:
            value, position = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            # Continue at the next line that starts an object: one broken value does not hide the others.
            following = text.find("\n{", start + 1)
            place, reason = line, "nested too deep, or a number too long"
            if isinstance(error, json.JSONDecodeError):
                # The parser sees the error of the last value at its place, that of others in the value that follows.
                place, reason = error.lineno if following < 0 else line, error.msg
            yield place, InputError(f"is not valid JSON: {reason}")
            position = len(text) if following < 0 else following
        else:
            yield from ((line, member) for member in (value if isinstance(value, list) else [value]))
        line += text.count("\n", start, position)


def convert_result(result: Any, overrides: Mapping[str, str], *, id_: str) -> dict[str, str]:
    """Convert one benchmark result to a row of a run.

    Args:
        result: Parsed JSON value, or an InputError from the parser.
        overrides: Values by column that replace those of the result.
        id_: Name of the row.

    Returns:
        The row; "" for unknown columns. Times are means [s]. `input_mean`, `output_mean` [tokens per request] and
        `concurrency_mean` are measured.

    Raises:
        InputError: The result is not a steady run.
    """
    if isinstance(result, InputError):
        raise result
    if is_inferencex(result):
        filled = dict.fromkeys(OPTIONS, "") | MAY_LACK | inferencex_columns(result) | dict(overrides)
        return {"id": id_, **filled}
    if not isinstance(result, dict) or not {"completed", "duration", "total_input_tokens"} <= result.keys():
        raise InputError(f"is not a result of {HARNESS_NAMES}")
    server = result.get("server_info") if isinstance(result.get("server_info"), dict) else {}
    _refuse(result, server or {})
    requests = _positive(result, "completed")
    means = {key: _positive(result, f"total_{key}_tokens") / requests for key in ("input", "output")}
    if means["output"] <= 1:
        raise InputError("has one output token per request, so it has no time per output token")
    tpot = _positive(result, "mean_tpot_ms") / 1e3
    ttft = _positive(result, "mean_ttft_ms") / 1e3 if result.get("mean_ttft_ms") else None
    rate = requests / _positive(result, "duration")

    # Requests in flight are not in the file; they follow from the load and the measured times.
    flight, at_once = _in_flight(result, rate=rate, ttft=ttft, decoding=tpot * (means["output"] - 1))
    backend = str(result.get("backend") or result.get("endpoint_type") or "")
    engine = next((name for start, name in ENGINES.items() if backend.startswith(start)), TYPICAL)
    settings = dict.fromkeys(OPTIONS, "") | MAY_LACK | _read_server_info(server or {}) | {"engine": engine} | _written(result)
    date = re.match(r"(\d{4})(\d\d)(\d\d)-", str(result.get("date", "")))
    return {
        "id": id_,
        "engine_version": str(server.get("version", "") if server else ""),
        "measured": "-".join(date.groups()) if date else "",
        **settings,
        **overrides,
        **{f"{key}_tokens": str(max(1, round(mean))) for key, mean in means.items()},
        **{f"{key}_mean": f"{mean:.6g}" for key, mean in means.items()},
        SPREAD: f"{_spread(result):.4g}",
        REQUESTS: f"{requests:.0f}",
        "concurrency": str(max(1, round(flight))),
        "concurrency_mean": f"{flight:.6g}",
        "ttft_s": "" if ttft is None or at_once else f"{ttft:.6g}",
        "tpot_s": f"{tpot:.6g}",
    }


def _positive(result: Mapping[str, Any], key: str) -> float:
    """Return a number that must exist in the result and be above 0."""
    value = result.get(key)
    if value is None:
        hint = ": run it with --percentile-metrics ttft,tpot,itl" if key == "mean_tpot_ms" else ""
        raise InputError(f"lacks {key}{hint}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not SMALLEST_CREDIBLE < value < LARGEST_CREDIBLE:
        raise InputError(f"{key} must be a number greater than 0, got {short_repr(value)}")
    return float(value)


def _spread(result: Mapping[str, Any]) -> float:
    """Return the spread of output lengths as a share of their mean, for a uniform distribution with their deviation."""
    lengths, ratio, deviation = result.get("output_lens"), result.get("random_range_ratio"), result.get("std_output_tokens")
    if isinstance(lengths, list) and len(lengths) > 1 and all(isinstance(n, int) and n > 0 for n in lengths):
        return float(min(1.0, math.sqrt(3) * statistics.pstdev(lengths) / statistics.fmean(lengths)))
    if isinstance(deviation, int | float) and deviation >= 0:
        mean = result["total_output_tokens"] / result["completed"]
        return float(min(1.0, math.sqrt(3) * deviation / mean))
    # SGLang draws lengths from `ratio` times the longest to the longest.
    if isinstance(ratio, int | float) and 0 <= ratio <= 1:
        return float((1 - ratio) / (1 + ratio))
    return DRAWN_SPREAD


def _refuse(result: Mapping[str, Any], server: Mapping[str, Any]) -> None:
    """Raise InputError for a run that the model of a steady, plain deployment does not describe."""
    completed, errors = result["completed"], result.get("errors")
    sent = len(errors) if isinstance(errors, list) and errors else result.get("num_prompts")
    failed = result.get("failed")

    # Old versions have no count of failed requests.
    if failed is None and isinstance(sent, int) and isinstance(completed, int):
        failed = sent - completed
    if completed == 0:
        raise InputError("completed no request")
    if isinstance(failed, int | float) and failed > 0:
        raise InputError(f"has {failed!s:.40} failed requests and {completed!s:.40} completed ones")
    cache = result.get("cache_report")
    drafts = server.get("speculative_algorithm") or result.get("accept_length")
    hits = cache.get("cache_hit_rate_pct") if isinstance(cache, dict) else None
    for wrong, reason in (
        (drafts or any(key.startswith("spec_decode_") for key in result), "used speculative decoding"),
        (any(key.startswith("diffusion_") for key in result), "used a diffusion model"),
        (result.get("ramp_up_strategy"), "increased its request rate over time"),
        (result.get("total_input_vision_tokens"), "has images in its prompts"),
        (isinstance(hits, int | float) and hits > CACHED, "found prompts in a prefix cache"),
        (
            "decode" in server or server.get("disaggregation_mode", "null") not in (None, "null"),
            "ran prefill and decode on separate chips",
        ),
    ):
        if wrong:
            raise InputError(f"{reason}, which is not modelled")


def _in_flight(result: Mapping[str, Any], *, rate: float, ttft: float | None, decoding: float) -> tuple[float, bool]:
    """Return mean requests in flight (at least 1), and whether all were sent at once.

    Rate in completed requests/s; TTFT and time in decode in s.
    """
    limit = _positive(result, "max_concurrency") if result.get("max_concurrency") is not None else math.inf
    if result.get("request_rate") in (None, "inf", math.inf):
        at_once = limit == math.inf
        return max(1.0, rate * decoding if at_once else min(limit, result["completed"])), at_once
    # Little's law needs the time of a whole request: measured if possible, else TTFT plus decode.
    latency = next((_positive(result, key) / 1e3 for key in ("mean_e2el_ms", "mean_e2e_latency_ms") if key in result), None)
    if latency is None:
        latency = (_positive(result, "mean_ttft_ms") / 1e3 if ttft is None else ttft) + decoding
    return max(1.0, min(limit, rate * latency)), False


def _written(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the columns in a vLLM result: the model, and those of --metadata."""
    settings = {"model": result.get("model_id"), **{key: result.get(key) for key in OPTIONS if key != "model"}}
    return {key: str(value) for key, value in settings.items() if isinstance(value, str | int) and str(value)}


def _read_server_info(server: Mapping[str, Any]) -> dict[str, str]:
    """Return the columns in SGLang's server_info: model, parallel sizes, 8-bit KV cache.

    With data-parallel attention, tp_size and dp_size depend on flags and version, so tp and dp are "".
    """
    settings = {"model": server.get("model_path"), **{axis: server.get(f"{axis}_size") for axis in AXES}}
    if any(isinstance(n, int) and n > 1 for n in (server.get("dp_size"), server.get("attn_dp_size"))):
        settings |= {"tp": "", "dp": ""}
    if str(server.get("kv_cache_dtype", "")).startswith("fp8"):
        settings["kv_dtype"] = "fp8"
    return {key: str(value) for key, value in settings.items() if value is not None}
