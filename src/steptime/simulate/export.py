"""A run as files and as JSON: every request as CSV or parquet, the timeline as a Chrome trace, the figures as a dictionary."""

from __future__ import annotations

import csv
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from steptime.errors import DataFileError, InputError
from steptime.simulate.pool import DONE, REJECTED
from steptime.simulate.run import Simulation
from steptime.simulate.search import Replay

COLUMNS = ("arrival", "inputs", "outputs", "rank", "cached", "scheduled", "first", "finish", "preempted", "replica")
MICRO = 1e6  # the Chrome trace counts microseconds


def report(simulation: Simulation, *, points: int = 100) -> dict[str, Any]:
    """Return the figures of a run, its timeline in `points` points, and what it was run with."""
    step = max(1, len(simulation.timeline["seconds"]) // points)
    cache = simulation.cache
    found = {
        "answers": simulation.answers,
        "traffic": simulation.traffic.name,
        "clients": simulation.traffic.clients,
        "rate": simulation.traffic.rate,
        "policy": asdict(simulation.policy),
        "chips": simulation.chips,
        "replicas": simulation.replicas,
        "prefill_replicas": simulation.prefill_replicas,
        "pace": {"decode_error": simulation.pace.decode_error, "mixed_error": simulation.pace.mixed_error},
        "timeline": {name: np.asarray(values)[::step] for name, values in simulation.timeline.items()},
    }
    if cache is not None:
        found["cache"] = {
            "hit_rate": cache.hit_rate,
            "recomputed_tokens": cache.recomputed,
            "tiers": [
                {"name": name, "hit_tokens": hit, "bytes_read": read, "bytes_written": written}
                for name, hit, read, written in zip(
                    cache.tiers, cache.hit_tokens, cache.bytes_read, cache.bytes_written, strict=True
                )
            ],
        }
    return found


def replay_report(found: Replay) -> dict[str, Any]:
    """Return what a replay of a plan found: batch and rate against the planned ones, and the figures of the run."""
    names = ("batch", "planned_batch", "rate", "planned_rate", "quantile", "good", "tried")
    return {name: getattr(found, name) for name in names} | {"answers": found.simulation.answers}


def write_requests(path: str | os.PathLike[str], requests: Any) -> None:
    """Write one row a request to a .csv or a .parquet file (which needs pyarrow): seconds, tokens, and status."""
    place = Path(path)
    status = np.select([requests["status"] == DONE, requests["status"] == REJECTED], ["served", "rejected"], "unserved")
    columns = {name: requests[name] for name in COLUMNS} | {"status": status}
    try:
        if place.suffix == ".parquet":
            try:
                import pyarrow
                from pyarrow import parquet
            except ImportError:
                raise InputError("parquet files need pyarrow: pip install pyarrow, or write a .csv file") from None
            parquet.write_table(pyarrow.table(columns), place)
            return
        if place.suffix != ".csv":
            raise InputError(f"{path}: requests are written to a .csv or a .parquet file")
        with place.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))
    except OSError as error:
        raise DataFileError(path, f"cannot be written: {error.strerror}") from None


def write_chrome_trace(path: str | os.PathLike[str], simulation: Simulation, *, most: int = 20_000) -> None:
    """Write a Chrome trace (chrome://tracing, ui.perfetto.dev): wait, prefill and decode of `most` requests, counters."""
    events: list[dict[str, Any]] = []
    done = simulation.requests[simulation.requests["status"] == DONE][:most]
    lanes: dict[int, list[float]] = {}
    for row in done:
        replica = int(row["replica"])
        free = lanes.setdefault(replica, [])
        lane = next((k for k, end in enumerate(free) if end <= row["scheduled"]), len(free))
        free[lane:] = [row["finish"], *free[lane + 1 :]]
        for name, begin, end in (("prefill", "scheduled", "first"), ("decode", "first", "finish")):
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
    line = simulation.timeline
    for name in ("decoding", "waiting", "kv"):
        events += [
            {"name": name, "ph": "C", "pid": 0, "ts": t * MICRO, "args": {name: float(v)}}
            for t, v in zip(line["seconds"].tolist(), line[name].tolist(), strict=True)
        ]
    try:
        Path(path).write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    except OSError as error:
        raise DataFileError(path, f"cannot be written: {error.strerror}") from None
