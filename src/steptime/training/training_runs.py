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
MOST_LOST = (
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
    phase: Phase, job: TrainingJob, seconds_of: Callable[[TrainingJob], float], quantum: int = 1
) -> tuple[float, float]:
    """Return the seconds and the steps of a phase; seconds_of: of one step; quantum: sequences that a ramp grows by."""
    if phase.first is None or phase.first >= phase.batch:
        steps = phase.tokens / (phase.batch * phase.seq)
        return steps * seconds_of(replace(job, seq=phase.seq, batch=phase.batch)), steps
    parts = np.linspace(phase.first, phase.batch, RAMP_POINTS) / quantum  # in batches that divide over the copies as they are
    batches = np.unique(np.clip((parts.round() * quantum).astype(int), quantum, phase.batch))
    each = phase.tokens / len(batches)
    found = [phase_seconds(Phase(tokens=each, seq=phase.seq, batch=int(b)), job, seconds_of) for b in batches]
    return sum(f[0] for f in found), sum(f[1] for f in found)


def cost_of(
    model: Model, system: System, job: TrainingJob, phases: Sequence[Phase], seconds_of: Callable[[TrainingJob], float], *,
    chips: int, sure: tuple[float, float], reliability: Reliability, quantum: int = 1,
) -> TrainingRunCost:  # fmt: skip
    """Return what a run takes; sure: factors of the 90 % range of a step."""
    parts = [phase_seconds(phase, job, seconds_of, quantum) for phase in phases]
    useful, steps = sum(p[0] for p in parts), sum(p[1] for p in parts)
    tokens = sum(phase.tokens for phase in phases)
    between = float(mean_time_between_failures(chips, reliability.rate)) if reliability.rate else math.inf
    every = float(daly_interval(reliability.checkpoint, between)) if math.isfinite(between) else useful
    every = min(every, useful)
    if (reliability.checkpoint + reliability.restart) / between > MOST_LOST:
        raise Impossible(
            f"a run of {chips:,} chips that fail every {show(between, 's')} never ends: a checkpoint takes "
            f"{show(reliability.checkpoint, 's')}, a restart {show(reliability.restart, 's')}"
        )
    kept = float(goodput(every, reliability.checkpoint, reliability.restart, between)) if math.isfinite(between) else 1.0
    seconds = useful / kept
    rented = chips + reliability.spares
    rent, power = system.rent, system.power
    low, high = seconds * sure[0], seconds * sure[1]
    trained = 0.0 if job.task == "lora" else job.states.master + job.states.moments
    return TrainingRunCost(
        tokens=tokens,
        steps=steps,
        seconds=seconds,
        low=low,
        high=high,
        goodput=kept,
        failures=seconds / between,
        between_failures=between,
        checkpoint_every=every,
        checkpoint=total_parameters(model) * (WEIGHT_BYTES + trained),
        chip_hours=rented * seconds / 3600,
        spares=reliability.spares,
        usd=rented * seconds * float(rent.typical),
        usd_low=rented * low * float(rent.low),
        usd_high=rented * high * float(rent.high),
        joules=rented * seconds * float(power.watts),
        power_basis=power.basis,
        flops=sum(phase.tokens * float(model_flops(model, replace(job, seq=phase.seq), full=False)) for phase in phases),
    )
