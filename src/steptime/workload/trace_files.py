"""Trace files as traffic: Azure CSV, Mooncake JSONL, JSONL of ShareGPT and vLLM.

The columns identify the format: a time, input tokens, output tokens. Times are dates, seconds, or
milliseconds for Mooncake (timestamp, input_length, output_length). Lines must be in order of time. Errors
include the line number. Requests without tokens are kept: a server rejects and counts them.

The lengths of requests in public traces are known by name.
"""

from __future__ import annotations

import csv
import datetime
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from steptime.catalog.data_files import UTF16, is_dir, is_file, require_regular_file
from steptime.errors import DataFileError, InputError, UnknownName, did_you_mean, os_problem, short_repr
from steptime.number_checks import whole_number
from steptime.workload.traffic import MAX_REQUESTS, Traffic

TIMES = ("TIMESTAMP", "timestamp", "arrival_time", "arrival")
INPUTS = ("ContextTokens", "input_length", "input_toks", "input_tokens", "prompt_tokens", "prompt_len")
OUTPUTS = ("GeneratedTokens", "output_length", "output_toks", "output_tokens", "completion_tokens", "output_len")
# Tokens per block, from the README of the trace.
MOONCAKE_BLOCK = 512
# Compressed formats by their first bytes.
PACKED = {b"\x1f\x8b": "gzip", b"PK": "zip", b"BZ": "bzip2", b"\x28\xb5": "zstandard", b"\xfd7": "xz"}


# Column names of Mooncake traces, whose times are in milliseconds.
MOONCAKE = {"timestamp", "input_length", "output_length"}
# Largest plausible tokens of a request and block number.
LARGEST = 1 << 40


def read_trace(path: str | os.PathLike[str], *, max_requests: int | None = None) -> Traffic:
    """Read the requests of a trace file.

    Args:
        path: CSV file with a header, or JSONL file.
        max_requests: Most requests to read.

    Returns:
        The traffic; the first request arrives at 0 s.

    Raises:
        DataFileError: The file cannot be read, or a line is invalid.
        InputError: `path` is not a file name.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"path: must be the name of a trace file, got {short_repr(path)}")
    place = Path(path)
    if is_dir(place):
        raise DataFileError(path, "is a folder, not a trace file")
    if not is_file(place) and not os.path.exists(place):
        raise DataFileError(short_repr(str(path)).strip("'"), "no such file")
    if max_requests is not None:
        max_requests = whole_number("requests", max_requests, maximum=MAX_REQUESTS)
    times: list[float] = []
    inputs: list[int] = []
    outputs: list[int] = []
    blocks: list[int] = []
    starts = [0]
    hashed = dated = mooncake = False
    for line, row in _read_rows(place):
        if max_requests is not None and len(times) >= max_requests:
            break
        name, value = _pick(place, line, row, TIMES, "time")
        seconds, date = _time(place, line, name, value)

        # The first row sets the format; all other rows must agree with it.
        if not times:
            hashed, dated, mooncake = "hash_ids" in row, date, row.keys() >= MOONCAKE
        if ("hash_ids" in row) != hashed:
            raise DataFileError(path, f"{'has' if not hashed else 'lacks'} hash_ids, unlike the lines before", line)
        if date != dated:
            raise DataFileError(path, f"{name}: {value!r} is {'a date' if date else 'no date'}, unlike the lines before", line)
        time = seconds * (1e-3 if mooncake else 1.0)
        if times and time < times[-1]:
            raise DataFileError(path, f"goes back in time: {time - times[-1]:.6g} s after the line before; sort it", line)
        times.append(time)
        inputs.append(_tokens(place, line, *_pick(place, line, row, INPUTS, "input tokens")))
        outputs.append(_tokens(place, line, *_pick(place, line, row, OUTPUTS, "output tokens")))
        if hashed:
            blocks.extend(_hashes(place, line, row.get("hash_ids"), inputs[-1]))
        starts.append(len(blocks))
    if not times:
        raise DataFileError(path, "contains no requests")

    # Arrivals start at 0 s.
    arrival = np.array(times)
    return Traffic(
        arrival=arrival - arrival[0],
        inputs=np.array(inputs, dtype=np.int64),
        outputs=np.array(outputs, dtype=np.int64),
        blocks=np.array(blocks, dtype=np.int64),
        starts=np.array(starts if blocks else [], dtype=np.int64),
        block_tokens=MOONCAKE_BLOCK,
        name=place.name,
    )


def _read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a file with their line numbers.

    The format is JSONL where the file starts with a brace or has that extension, else CSV.
    """
    number = 0
    require_regular_file(path)
    try:
        with path.open("rb") as raw:
            start = raw.read(4096)
        if start[:2] in UTF16:
            raise DataFileError(path, "is UTF-16 text; save it as UTF-8")
        if start[:2] in PACKED:
            raise DataFileError(path, f"is compressed ({PACKED[start[:2]]}); decompress it first")
        with path.open(encoding="utf-8-sig", newline="") as file:
            braced = start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")
            if not braced and path.suffix.casefold() not in (".json", ".jsonl"):
                reader = csv.DictReader(file)
                _check_header(path, reader.fieldnames or ())
                for row in reader:
                    number = reader.line_num
                    if None in row or None in row.values():
                        raise DataFileError(path, f"needs {len(reader.fieldnames or ())} columns", number)
                    yield number, row
                return
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                record = json.loads(line)
                if not isinstance(record, dict):
                    raise DataFileError(path, "is not a JSON object", number)
                yield number, record
    except UnicodeDecodeError as error:
        raise DataFileError(path, f"is not UTF-8 text ({error.reason})") from None
    except json.JSONDecodeError as error:
        raise DataFileError(path, f"is not valid JSON: {error.msg}", number) from None
    except (ValueError, RecursionError):
        raise DataFileError(path, "is not valid JSON: nested too deep, or a number too long", number) from None
    except csv.Error as error:
        raise DataFileError(path, f"is not valid CSV: {error}", number + 1) from None
    except OSError as error:
        raise DataFileError(path, os_problem(error)) from None


def _check_header(path: Path, names: Sequence[str]) -> None:
    folded = [name.strip().casefold() for name in names]
    twice = next((name for name, plain in zip(names, folded, strict=True) if folded.count(plain) > 1), None)
    if twice is not None:
        raise DataFileError(path, f"has the column {short_repr(twice.strip())} twice", 1)


def _pick(path: Path, line: int, row: dict[str, Any], names: tuple[str, ...], quantity: str) -> tuple[str, Any]:
    """Return the name and the value of the first column that a row has, in any case."""
    folded = {key.strip().casefold(): key for key in row}
    for name in names:
        if name.casefold() in folded:
            key = folded[name.casefold()]
            return key, row[key]
    if "conversations" in row:
        raise DataFileError(path, f"contains conversations as text; count their tokens and give {names[0]} for each", line)
    mark = next((mark for mark in ";\t|" if len(row) == 1 and mark in next(iter(row))), "")
    if mark:
        raise DataFileError(path, f"separates its columns by {mark!r}; separate them by commas", line)
    raise DataFileError(
        path, f"has no {quantity}: needs one of {', '.join(names)}, got {short_repr(', '.join(map(str, row)))}", line
    )


def _time(path: Path, line: int, name: str, value: Any) -> tuple[float, bool]:
    """Return a time [s], and whether it is a date; dates without an offset are UTC."""
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)
    except OverflowError:
        seconds = math.inf
    except (TypeError, ValueError):
        try:
            date = datetime.datetime.fromisoformat(str(value).strip())
        except ValueError:
            raise DataFileError(path, f"{name}: {short_repr(value)} is neither seconds nor a date", line) from None
        date = date if date.tzinfo else date.replace(tzinfo=datetime.UTC)
        return (date - datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)) / datetime.timedelta(seconds=1), True
    if not abs(seconds) < LARGEST:
        raise DataFileError(path, f"{name}: {short_repr(value)} is not a time", line)
    return seconds, False


def _tokens(path: Path, line: int, name: str, value: Any) -> int:
    """Return a number of tokens."""
    try:
        count = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        count = math.nan
    if not (0 <= count < LARGEST and count == int(count)):
        raise DataFileError(path, f"{name}: {short_repr(value)} is not a number of tokens", line)
    return int(count)


def _hashes(path: Path, line: int, value: Any, tokens: int) -> list[int]:
    """Return the block hashes of a prompt: a whole number for each block it begins."""
    if not isinstance(value, list) or not all(type(k) is int and abs(k) < 1 << 63 for k in value):
        raise DataFileError(path, f"hash_ids: {short_repr(value)} is not a list of whole numbers, one for each block", line)
    if len(value) != -(-tokens // MOONCAKE_BLOCK):
        raise DataFileError(
            path, f"hash_ids: {len(value)} blocks of {MOONCAKE_BLOCK} tokens do not match {tokens:,} tokens", line
        )
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceLengths:
    """Mean input and output tokens of the requests of a trace, and standard deviations over the means.

    `caution` says that the requests are too few; it is empty where they are enough.
    """

    input_tokens: int
    output_tokens: int
    input_spread: float
    output_spread: float
    source: str = ""
    caution: str = ""


# Requests below which a spread of lengths or a percentile says little.
FEW_REQUESTS: Final = 30


def few_requests_caution(requests: int) -> str:
    """Say that some requests are too few for a distribution.

    Args:
        requests: Number of requests.

    Returns:
        A sentence without a period; empty where the requests are enough.

    >>> few_requests_caution(1), few_requests_caution(100)
    ('one request gives no distribution of lengths and latencies', '')
    """
    if requests >= FEW_REQUESTS:
        return ""
    amount = "one request gives no" if requests == 1 else f"{requests} requests give no reliable"
    return f"{amount} distribution of lengths and latencies"


# Traces of one hour each: 19,366, 8,819 and 12,031 requests.
AZURE: Final = "https://github.com/Azure/AzurePublicDataset, LLM inference traces of 2023 (Patel et al., ISCA 2024)"
MOONCAKE_SOURCE: Final = "https://github.com/kvcache-ai/Mooncake, conversation trace (Qin et al., FAST 2025)"
PUBLIC_TRACES: Final = {
    "azure-chat": TraceLengths(
        input_tokens=1155, output_tokens=211, input_spread=0.960, output_spread=0.771, source=f"{AZURE}, conversations"
    ),
    "azure-code": TraceLengths(
        input_tokens=2048, output_tokens=28, input_spread=0.964, output_spread=2.147, source=f"{AZURE}, code completion"
    ),
    "mooncake": TraceLengths(
        input_tokens=12035, output_tokens=343, input_spread=1.313, output_spread=0.729, source=MOONCAKE_SOURCE
    ),
}


def check_arrivals(name: str) -> None:
    """Raise InputError for the name of a public trace in place of a file, because only its lengths are known.

    Args:
        name: Path of a trace file.

    Raises:
        InputError: There is no such file, and the name is that of a public trace, or near to one.
    """
    near = did_you_mean(name, PUBLIC_TRACES, 1)
    if near and Path(name).name == name and not Path(name).suffix and not Path(name).exists():
        trace = PUBLIC_TRACES[near[0]]
        raise InputError(
            f"trace: no file {short_repr(name)}, and of the public trace {near[0]} only lengths are known; give the path of a "
            f"file, or a rate with these lengths: --rate R --input {trace.input_tokens} --output {trace.output_tokens} "
            f"--spread {trace.input_spread:.3g} --output-spread {trace.output_spread:.3g}"
        )


def trace_lengths(name: str) -> TraceLengths:
    """Return the lengths of requests in a public trace or a file.

    Args:
        name: Name of a public trace, or path of a trace file.

    Returns:
        Means and spreads of the requests with input and output.

    Raises:
        UnknownName: There is no such trace and no such file.
        InputError: The file has no request with input and output.

    >>> trace_lengths("azure-code").output_tokens
    28
    """
    from steptime.catalog.data_files import is_file
    from steptime.workload.trace_files import read_trace

    if name in PUBLIC_TRACES:
        return PUBLIC_TRACES[name]
    path = Path(name)
    if not is_file(path) and path.name == name and not path.suffix:
        raise UnknownName("trace", name, PUBLIC_TRACES, f"Known: {', '.join(PUBLIC_TRACES)}; a path to a trace file works too.")
    requests = read_trace(path)
    served = (requests.inputs > 0) & (requests.outputs > 0)
    if not np.any(served):
        raise InputError(f"trace: {short_repr(name)} has no request with input and output tokens")
    inputs, outputs = requests.inputs[served], requests.outputs[served]
    return TraceLengths(
        input_tokens=max(1, round(float(inputs.mean()))), output_tokens=max(1, round(float(outputs.mean()))),
        input_spread=float(inputs.std() / inputs.mean()), output_spread=float(outputs.std() / outputs.mean()), source=name,
        caution=few_requests_caution(len(inputs)),
    )  # fmt: skip
