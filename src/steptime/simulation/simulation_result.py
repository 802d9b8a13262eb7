"""Simulation result: figures, requests, timeline and settings of a finished run.

A run exports its requests as CSV or parquet, and its timeline as a Chrome trace.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from steptime.atomic_files import temporary_file, write_text_atomically
from steptime.errors import DataFileError, InputError
from steptime.hardware.system import Rent
from steptime.physics.bias_correction import Anchor
from steptime.physics.layout import Layout, show_layout
from steptime.result_base import Tabular, unit
from steptime.simulation.autoscaler import Scaling
from steptime.simulation.loop_state import DONE, REJECTED
from steptime.simulation.prefix_cache import CacheUse
from steptime.simulation.run_metrics import Answers, Judged, at_percentile
from steptime.simulation.scheduling_policy import Policy
from steptime.simulation.step_time_model import Pace
from steptime.workload.traffic import Traffic

# Points of the timeline in JSON.
POINTS = 100
COLUMNS = {
    "arrival_s": "arrival",
    "input_tokens": "inputs",
    "output_tokens": "outputs",
    "rank": "rank",
    "cached_tokens": "cached",
    "scheduled_s": "scheduled",
    "first_s": "first",
    "finish_s": "finish",
    "preemptions": "preempted",
    "replica": "replica",
}
# With a separate decode pool: arrival of the cache there, and first slot there.
DISAGGREGATED_COLUMNS = {
    "moved_s": "moved",
    "resumed_s": "resumed",
}
OVER_TIME = {"time_s": "seconds", "decoding": "decoding", "kv_share": "kv", "waiting": "waiting"}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Simulation(Tabular):
    """A finished run: its figures, every request, the timeline and the settings.

    `requests` has rows of `loop_state.REQUEST`. `pace` includes the error of its coefficients. `limited` says
    whether any class has a limit. As a table, it has one row per request.
    """

    SCHEMA: ClassVar[str] = "steptime.simulation/2"
    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "over_time": unit(
            "", f"about {POINTS} points: time_s, sequences decoding, kv_share in use, requests waiting", key="timeline"
        )
    }

    model: str = field(metadata=unit("", "name of the model"))
    system: str = field(metadata=unit("", "name of the system"))
    engine: str = field(metadata=unit("", "name of the engine"))
    layout: Layout = field(metadata=unit("", "layout of a replica that decodes, and number of replicas"))
    limits: Judged | None = field(default=None, metadata=unit("", "whether the limits are met; null without limits"))
    answers: Answers = field(metadata=unit("", "figures of the run"))
    requests: Any = field(metadata=unit("", "every request", left_out=True))
    timeline: dict[str, Any] = field(metadata=unit("", "state of the run over time", left_out=True))
    traffic: Traffic = field(metadata=unit("", "requests that arrived"))
    policy: Policy = field(metadata=unit("", "scheduling policy"))
    pace: Pace = field(metadata=unit("", "accuracy of the step times"))
    replicas: int = field(metadata=unit("", "replicas that decode"))
    chips: int = field(metadata=unit("", "chips of all pools"))
    cache: CacheUse | None = field(default=None, metadata=unit("", "use of the prefix cache"))
    prefill_replicas: int = field(default=0, metadata=unit("", "replicas that only prefill"))
    prefill_system: str = field(
        default="", metadata=unit("", "system of the replicas that only prefill; empty: that of the others")
    )
    fast_replicas: int = field(default=0, metadata=unit("", "replicas that serve only the fast class"))
    limited: bool = field(default=False, metadata=unit("", "whether any class has a limit"))
    rent: Rent = field(default=Rent(), metadata=unit("", "rent per chip: kind, term, date, grade and source"))
    anchor: Anchor | None = field(default=None, metadata=unit("", "your own runs that correct the times; null: no such runs"))
    scaling: Scaling | None = field(default=None, metadata=unit("", "replicas over time; null: their number is fixed"))

    @property
    def output_tokens_per_second_per_chip(self) -> float:
        """Output tokens per second over all chips."""
        return self.answers.output_tokens_per_second / self.chips

    @property
    def over_time(self) -> dict[str, list[float]]:
        """The timeline in about `POINTS` points."""
        step = max(1, len(self.timeline["seconds"]) // POINTS)
        return {key: np.asarray(self.timeline[name])[::step].tolist() for key, name in OVER_TIME.items()}

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return a title and the main figures of the run.

        Returns:
            Title with model, chips and engine; figures by label.
        """
        title, figures = self.answers.headline()
        chips = f"{self.chips:,} chip{'s' * (self.chips > 1)} of {self.system}"
        subject = f"{self.model} on {chips} ({show_layout(self.layout)}), engine {self.engine}"
        verdict = {"verdict": title.removeprefix("Answers: ")}
        if self.limits is not None:
            slo_text = f"{self.limits.verdict} {at_percentile(self.limits.percentile)}: {self.limits.count}"
            return f"Simulation: {subject}", {"limits": slo_text, **verdict, **figures}
        return f"Simulation: {subject}", {**verdict, **figures}

    def columns(self) -> dict[str, Any]:
        """Return one row per request: times from the start of the run [s], tokens, status.

        Returns:
            Columns by name.
        """
        return request_columns(self.requests)


def request_columns(requests: Any) -> dict[str, Any]:
    """Return finished requests as columns with units in their names.

    Args:
        requests: Finished requests, rows of `REQUEST`.

    Returns:
        Columns by name.
    """
    names = COLUMNS | (DISAGGREGATED_COLUMNS if np.isfinite(requests["moved"]).any() else {})
    status = np.select([requests["status"] == DONE, requests["status"] == REJECTED], ["served", "rejected"], "unserved")
    return {key: requests[name] for key, name in names.items()} | {"status": status}


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
