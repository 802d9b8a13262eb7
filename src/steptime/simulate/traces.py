"""Trace files as traffic: Azure's CSV, Mooncake's JSONL with block hashes, and request JSONL of ShareGPT or vLLM runs.

The columns tell the format: a time, tokens in, tokens out. Times are dates, seconds, or (Mooncake) milliseconds. Lines must be
in order of time; what is wrong is told with its line. Requests of no tokens are kept: a server rejects and counts them.
"""

from __future__ import annotations

import csv
import datetime
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from steptime.errors import DataFileError
from steptime.simulate.traffic import Traffic

TIMES = ("TIMESTAMP", "timestamp", "arrival_time", "arrival")
INPUTS = ("ContextTokens", "input_length", "input_toks", "input_tokens", "prompt_tokens", "prompt_len")
OUTPUTS = ("GeneratedTokens", "output_length", "output_toks", "output_tokens", "completion_tokens", "output_len")
MOONCAKE_BLOCK = 512  # tokens; the trace's README


def read_trace(path: str | os.PathLike[str], *, most: int | None = None) -> Traffic:
    """Return the requests of a trace file (CSV with a header, or JSONL), at most the first `most`."""
    place = Path(path)
    if not place.is_file():
        raise DataFileError(path, "no such file")
    times: list[float] = []
    inputs: list[int] = []
    outputs: list[int] = []
    blocks: list[int] = []
    starts = [0]
    for line, row in _rows(place):
        if most is not None and len(times) >= most:
            break
        mooncake = "hash_ids" in row
        time = _time(place, line, *_pick(place, line, row, TIMES, "time")) * (1e-3 if mooncake else 1.0)
        if times and time < times[-1]:
            raise DataFileError(path, f"goes back in time: {time - times[-1]:.6g} s after the line before; sort it", line)
        times.append(time)
        inputs.append(_tokens(place, line, *_pick(place, line, row, INPUTS, "input tokens")))
        outputs.append(_tokens(place, line, *_pick(place, line, row, OUTPUTS, "output tokens")))
        if mooncake:
            blocks.extend(row["hash_ids"])
        starts.append(len(blocks))
    if not times:
        raise DataFileError(path, "holds no requests")
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


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            if path.suffix.casefold() == ".csv":
                reader = csv.DictReader(file)
                for row in reader:
                    if None in row or None in row.values():
                        raise DataFileError(path, f"needs {len(reader.fieldnames or ())} columns", reader.line_num)
                    yield reader.line_num, row
                return
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                found = json.loads(line)
                if not isinstance(found, dict):
                    raise DataFileError(path, "is not a JSON object", number)
                yield number, found
    except UnicodeDecodeError as error:
        raise DataFileError(path, f"is not UTF-8 text ({error.reason})") from None
    except json.JSONDecodeError as error:
        raise DataFileError(path, f"is not valid JSON: {error.msg}", number) from None
    except csv.Error as error:
        raise DataFileError(path, f"is not valid CSV: {error}", reader.line_num) from None


def _pick(path: Path, line: int, row: dict[str, Any], names: tuple[str, ...], what: str) -> tuple[str, Any]:
    for name in names:
        if name in row:
            return name, row[name]
    raise DataFileError(path, f"has no {what}: none of {', '.join(names)} is among {', '.join(map(str, row))}", line)


def _time(path: Path, line: int, name: str, value: Any) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        try:
            date = datetime.datetime.fromisoformat(str(value).strip())
        except ValueError:
            raise DataFileError(path, f"{name}: {value!r} is neither seconds nor a date", line) from None
        epoch = datetime.datetime(2000, 1, 1, tzinfo=date.tzinfo)
        return (date - epoch) / datetime.timedelta(seconds=1)
    if not math.isfinite(found):
        raise DataFileError(path, f"{name}: {value!r} is not a time", line)
    return found


def _tokens(path: Path, line: int, name: str, value: Any) -> int:
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if isinstance(value, bool) or not (math.isfinite(found) and found >= 0 and found == int(found)):
        raise DataFileError(path, f"{name}: {value!r} is not a number of tokens", line)
    return int(found)
