"""Fit of engine constants to one run that was recorded request by request, for the figures of docs/simulate.md.

The run is replayed with the same arrivals, lengths and limits. The fit changes the constants with the largest effect on the
replay. It minimizes the squared errors of first and last token times, in the logarithms of the constants. A shipped engine is
the prior. A constant that the run does not determine stays near its usual value, so the result applies to other machines. An
example is arithmetic efficiency when a slow link dominates.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from steptime.catalog.hardware_loading import load_system
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.models.model_loading import load_model
from steptime.number_checks import Array
from steptime.physics.engine import Engine, constant, label_values, with_constants
from steptime.physics.layout import Layout
from steptime.simulation.loop_state import DONE
from steptime.simulation.replica_pools import serve
from steptime.simulation.scheduling_policy import Policy
from steptime.simulation.step_time_model import sample_pace
from steptime.workload.traffic import Traffic

# Deviation of the logarithm of a deployment's constant from that of its engine.
PRIOR = {
    "memory_efficiency": 0.1,
    "compute_efficiency": 0.15,
    "attention_time": 0.2,
    "chip_departure": 0.5,
    "seconds_per_kernel": 0.3,
    "seconds_per_step": 0.7,
    "seconds_per_sequence": 0.7,
}
# Relative scatter of mean times between two runs of the same requests.
NOISE = 0.02
# Step of a logarithm for derivatives; a replay is not smooth for smaller steps.
STEP = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A recorded run of one replica: requests, their times [s], and how it was served.

    queued, scheduled, first, last: end of the host's work before the queue, of the queue, of the first and of the last token.
    """

    traffic: Traffic
    queued: Array
    scheduled: Array
    first: Array
    last: Array
    model: Model
    system: System
    layout: Layout
    policy: Policy


# Recorded runs of vLLM 0.19 (casys-kaist/LLMServingSim): folder, model, system, layout, and limits by its meta.json.
RECORDED = (
    ("RTX4090_Llama-3.1-8B", "llama-3.1-8b", "rtx-4090-8", Layout(), (256, 41_408)),
    ("RTXPRO6000_Qwen3-32B", "qwen3-32b", "rtx-pro-6000-2", Layout(tp=2), (128, 400_000)),
)


def read_recorded(folder: Path) -> list[Recorded]:
    """Read the recorded runs of `RECORDED`.

    Args:
        folder: Folder of their folders.

    Returns:
        The runs; times start with the first arrival.
    """
    runs = []
    for name, model, system, layout, (slots, tokens) in RECORDED:
        rows = [json.loads(line) for line in (folder / name / "requests.jsonl").read_text(encoding="utf-8").splitlines()]
        column = {name: np.array([row[name] for row in rows]) for name in rows[0] if name != "request_id"}
        # Clients and engine have two clocks.
        offset = np.min(column["queued_ts"] - column["arrival_time"])
        start = column["arrival_time"].min() + offset
        traffic = Traffic(
            arrival=column["arrival_time"] + offset - start, inputs=column["input_toks"], outputs=column["output_toks"]
        )
        queued, scheduled, first, last = (
            column[f"{event}_ts"] - start for event in ("queued", "scheduled", "first_token", "last_token")
        )
        policy = Policy(max_num_seqs=slots, max_num_batched_tokens=2048, kv_tokens=tokens)
        runs.append(
            Recorded(
                traffic=traffic,
                queued=queued,
                scheduled=scheduled,
                first=first,
                last=last,
                model=load_model(model),
                system=load_system(system),
                layout=layout,
                policy=policy,
            )
        )
    return runs


def replay(run: Recorded, engine: Engine) -> Any:
    """Simulate a recorded run with an engine.

    Args:
        run: Recorded run.
        engine: Engine of the replay.

    Returns:
        Requests with their times, as rows of `loop_state.REQUEST`.
    """
    inputs, outputs = np.asarray(run.traffic.inputs), np.asarray(run.traffic.outputs)
    pace = sample_pace(
        run.model,
        run.system,
        layout=run.layout,
        engine=engine,
        max_num_seqs=run.policy.max_num_seqs,
        max_num_batched_tokens=run.policy.max_num_batched_tokens,
        contexts=(float(np.percentile(inputs, 5)), float(np.percentile(inputs + outputs, 95))),
        check=False,
    )
    requests, _, _ = serve(run.traffic, run.policy, pace)
    return requests


def differences(run: Recorded, requests: Any) -> Array:
    """Compare replayed with recorded times.

    Args:
        run: Recorded run.
        requests: Replayed requests.

    Returns:
        Replayed minus recorded time of the first token, the last token and decode, each divided by its recorded mean, of shape
        (3, requests).
    """
    arrival, done = np.asarray(run.traffic.arrival), requests["status"] == DONE
    decode = run.last - run.first
    parts = (
        (requests["first"] - run.first) / np.mean(run.first - arrival),
        (requests["finish"] - run.last) / np.mean(run.last - arrival),
        (requests["finish"] - requests["first"] - decode) / np.mean(decode),
    )
    return np.where(done, np.stack(parts), 1.0)


def fit(run: Recorded, prior: Engine) -> Engine:
    """Fit the constants of `PRIOR` to a recorded run.

    Link constants stay unchanged: a slow link and slow arithmetic look the same in one run, and link speed belongs to the
    system.

    Args:
        run: Recorded run.
        prior: Engine to start from.

    Returns:
        The fitted engine.
    """
    # A constant of zero has no logarithm, so it is not fitted.
    names = [n for n in PRIOR if float(constant(prior, n)) > 0]
    mean, deviation = np.log([float(constant(prior, n)) for n in names]), np.array([PRIOR[n] for n in names])

    def engine(logs: Array) -> Engine:
        return with_constants(prior, label_values(names, np.exp(logs)))

    def residuals(logs: Array) -> Array:
        off = differences(run, replay(run, engine(logs)))
        return np.concatenate([(off / NOISE / np.sqrt(off.shape[1])).ravel(), (logs - mean) / deviation])

    # Central differences: one-sided ones are too noisy for a replay.
    def slopes(logs: Array) -> Array:
        moves = STEP * np.eye(len(names))
        return np.stack([(residuals(logs + move) - residuals(logs - move)) / (2 * STEP) for move in moves], axis=1)

    best = least_squares(residuals, mean, jac=slopes, x_scale=deviation, max_nfev=25, xtol=1e-3, ftol=1e-4)
    return replace(engine(best.x), name=f"{prior.name}, fitted to {len(run.traffic)} requests", fit={})
