"""Export of a run: requests as CSV or parquet, the timeline as a Chrome trace."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from steptime.atomic_files import temporary_file, write_text_atomically
from steptime.errors import DataFileError, InputError
from steptime.simulation.loop_state import DONE
from steptime.simulation.simulation_result import Simulation, request_columns

# Microseconds per second; the Chrome trace counts microseconds.
MICRO = 1e6


def check_paths(requests: str, chrome: str) -> None:
    """Check before a run that its files can be written after it.

    Args:
        requests: File for requests, or empty.
        chrome: File for the Chrome trace, or empty.

    Raises:
        DataFileError: The folder does not exist, or the path is a folder.
        InputError: The file for requests is neither .csv nor .parquet.
    """
    for path in filter(None, (requests, chrome)):
        if not Path(path).resolve().parent.is_dir():
            raise DataFileError(path, "cannot be written: its folder does not exist")
        if Path(path).is_dir():
            raise DataFileError(path, "is a folder")
    if requests and Path(requests).suffix.casefold() not in (".csv", ".parquet"):
        raise InputError(f"requests: must be a .csv or .parquet file, got {requests}")


def write_requests(path: str | os.PathLike[str], requests: Any) -> None:
    """Write one row per request to a .csv or .parquet file.

    Args:
        path: File; .parquet needs pyarrow.
        requests: Finished requests, rows of `REQUEST`.

    Raises:
        InputError: The format is not known, or pyarrow is missing.
        DataFileError: The file cannot be written.
    """
    place = Path(path)
    check_paths(str(path), "")
    columns = request_columns(requests)
    try:
        if place.suffix.casefold() == ".parquet":
            try:
                import pyarrow
                from pyarrow import parquet
            except ImportError:
                raise InputError("parquet files need pyarrow: pip install pyarrow, or write a .csv file") from None
            with temporary_file(place) as temporary:
                parquet.write_table(pyarrow.table(columns), temporary)
            return
        with temporary_file(place) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))
    except OSError as error:
        raise DataFileError(path, f"cannot be written: {error.strerror}") from None


def write_chrome_trace(path: str | os.PathLike[str], simulation: Simulation, *, max_requests: int = 20_000) -> int:
    """Write a Chrome trace (chrome://tracing, ui.perfetto.dev) of a run.

    It shows prefill, decode and counters. A process is a replica that prefills.

    Args:
        path: File to write.
        simulation: Finished run.
        max_requests: Most requests to write.

    Returns:
        Number of requests that were left out.

    Raises:
        DataFileError: The file cannot be written.
    """
    every = simulation.requests[simulation.requests["status"] == DONE]
    done = every[:max_requests]
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": int(r), "args": {"name": f"replica {int(r)}"}}
        for r in np.unique(done["replica"])
    ]
    lanes: dict[int, list[float]] = {}
    for row in done:
        replica = int(row["replica"])
        # A lane of the trace shows one request at a time: take the first lane that is free.
        free = lanes.setdefault(replica, [])
        lane = next((k for k, end in enumerate(free) if end <= row["scheduled"]), len(free))
        free[lane:] = [row["finish"], *free[lane + 1 :]]
        resumed = "first" if np.isnan(row["resumed"]) else "resumed"
        for name, begin, end in (("prefill", "scheduled", "first"), ("decode", resumed, "finish")):
            events.append(
                {
                    "name": name,
                    "ph": "X",
                    "pid": replica,
                    "tid": lane,
                    "ts": row[begin] * MICRO,
                    "dur": (row[end] - row[begin]) * MICRO,
                    "args": {
                        "input_tokens": int(row["inputs"]),
                        "output_tokens": int(row["outputs"]),
                        "wait_s": float(row["scheduled"] - row["arrival"]),
                        "preempted": int(row["preempted"]),
                    },
                }
            )

    # Counters of the timeline are shown in addition to the requests.
    line = simulation.timeline
    for name in ("decoding", "waiting", "kv"):
        events += [
            {"name": name, "ph": "C", "pid": 0, "ts": t * MICRO, "args": {name: float(v)}}
            for t, v in zip(line["seconds"].tolist(), line[name].tolist(), strict=True)
        ]
    try:
        write_text_atomically(path, json.dumps({"traceEvents": events}))
    except OSError as error:
        raise DataFileError(path, f"cannot be written: {error.strerror}") from None
    return len(every) - len(done)
