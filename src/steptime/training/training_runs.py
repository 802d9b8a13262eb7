"""Whole runs: steps for a budget of tokens, with batch ramps and stages of longer sequences, failures, money and energy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from steptime.errors import Impossible
from steptime.hardware.system import System
from steptime.models.model import Model, total_parameters
from steptime.training.reliability import (
    CHECKPOINT_SECONDS,
    FAILURES_PER_CHIP_SECOND,
    RESTART_SECONDS,
    daly_interval,
    goodput,
    mean_time_between_failures,
)
from steptime.training.training_flops import model_flops
from steptime.training.training_job import TrainingJob
from steptime.training.training_result import TrainingRunCost
from steptime.units import show

RAMP_POINTS = 8  # batch sizes of a ramp at which a step is timed
WEIGHT_BYTES = 2.0
MAX_LOST_INTERVALS = (
    7.0  # times between failures that a checkpoint and a restart take, beyond which a run ends never: e^-7 of it is kept
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Part of a run: tokens at a sequence length and a batch; first: the batch at which a ramp begins, growing evenly by
    tokens."""

    tokens: float
    seq: int
    batch: int
    first: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """How often chips fail, and what that costs: failures per chip-second, and seconds of a checkpoint and of a restart."""

    rate: float = FAILURES_PER_CHIP_SECOND
    checkpoint: float = CHECKPOINT_SECONDS
    restart: float = RESTART_SECONDS
    spares: int = 0


def phase_seconds(
    phase: Phase, job: TrainingJob, step_seconds: Callable[[TrainingJob], float], quantum: int = 1
) -> tuple[float, float]:
    """Return the seconds and the steps of a phase; step_seconds: of one step; quantum: sequences that a ramp grows by."""
    if phase.first is None or phase.first >= phase.batch:
        steps = phase.tokens / (phase.batch * phase.seq)
        return steps * step_seconds(replace(job, seq=phase.seq, batch=phase.batch)), steps
    batch_quanta = (
        np.linspace(phase.first, phase.batch, RAMP_POINTS) / quantum
    )  # in batches that divide over the copies as they are
    batches = np.unique(np.clip((batch_quanta.round() * quantum).astype(int), quantum, phase.batch))
    tokens_per_batch = phase.tokens / len(batches)
    ramp_parts = [
        phase_seconds(Phase(tokens=tokens_per_batch, seq=phase.seq, batch=int(b)), job, step_seconds) for b in batches
    ]
    return sum(f[0] for f in ramp_parts), sum(f[1] for f in ramp_parts)


def training_run_cost(
    model: Model, system: System, job: TrainingJob, phases: Sequence[Phase], step_seconds: Callable[[TrainingJob], float], *,
    chips: int, step_range: tuple[float, float], reliability: Reliability, quantum: int = 1,
) -> TrainingRunCost:  # fmt: skip
    """Return what a run takes; step_range: factors of the 90 % range of a step."""
    parts = [phase_seconds(phase, job, step_seconds, quantum) for phase in phases]
    useful, steps = sum(p[0] for p in parts), sum(p[1] for p in parts)
    tokens = sum(phase.tokens for phase in phases)
    mean_time = float(mean_time_between_failures(chips, reliability.rate)) if reliability.rate else math.inf
    checkpoint_interval = float(daly_interval(reliability.checkpoint, mean_time)) if math.isfinite(mean_time) else useful
    checkpoint_interval = min(checkpoint_interval, useful)
    if (reliability.checkpoint + reliability.restart) / mean_time > MAX_LOST_INTERVALS:
        raise Impossible(
            f"a run of {chips:,} chips that fail every {show(mean_time, 's')} never ends: a checkpoint takes "
            f"{show(reliability.checkpoint, 's')}, a restart {show(reliability.restart, 's')}"
        )
    goodput_share = (
        float(goodput(checkpoint_interval, reliability.checkpoint, reliability.restart, mean_time))
        if math.isfinite(mean_time)
        else 1.0
    )
    seconds = useful / goodput_share
    rented_chips = chips + reliability.spares
    rent, power = system.rent, system.power
    low, high = seconds * step_range[0], seconds * step_range[1]
    state_bytes = 0.0 if job.task == "lora" else job.states.master + job.states.moments
    return TrainingRunCost(
        tokens=tokens,
        steps=steps,
        seconds=seconds,
        low=low,
        high=high,
        goodput=goodput_share,
        failures=seconds / mean_time,
        between_failures=mean_time,
        checkpoint_every=checkpoint_interval,
        checkpoint=total_parameters(model) * (WEIGHT_BYTES + state_bytes),
        chip_hours=rented_chips * seconds / 3600,
        spares=reliability.spares,
        usd=rented_chips * seconds * float(rent.typical),
        usd_low=rented_chips * low * float(rent.low),
        usd_high=rented_chips * high * float(rent.high),
        joules=rented_chips * seconds * float(power.watts),
        power_basis=power.basis,
        flops=sum(phase.tokens * float(model_flops(model, replace(job, seq=phase.seq), full=False)) for phase in phases),
    )
