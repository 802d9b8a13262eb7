"""Cost of whole runs: steps for a token budget, failures, money and energy.

Runs may have batch ramps and phases with longer sequences.
"""

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

# Batch sizes of a ramp at which a step is timed.
RAMP_POINTS = 8
# Bytes per weight in a checkpoint.
WEIGHT_BYTES = 2.0
# Largest checkpoint plus restart time, in units of the mean time between failures.
# Above it the goodput is below e^-7, and a run never ends.
MAX_LOST_INTERVALS = 7.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Part of a run: tokens at one sequence length and batch.

    first: batch at the start of a ramp, which grows evenly with the tokens; None without a ramp.
    """

    tokens: float
    seq: int
    batch: int
    first: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """Failure rate and its costs.

    rate: failures per chip-second. checkpoint, restart: seconds of a checkpoint and of a restart. spares: spare chips.
    """

    rate: float = FAILURES_PER_CHIP_SECOND
    checkpoint: float = CHECKPOINT_SECONDS
    restart: float = RESTART_SECONDS
    spares: int = 0


def phase_seconds(
    phase: Phase, job: TrainingJob, step_seconds: Callable[[TrainingJob], float], quantum: int = 1
) -> tuple[float, float]:
    """Return the time and the number of steps of a phase.

    Args:
        phase: Part of the run.
        job: Sequences, formats and optimizer of a step.
        step_seconds: Function that returns the seconds of a step of a job.
        quantum: Sequences by which a batch ramp grows.

    Returns:
        Seconds, and steps.
    """
    if phase.first is None or phase.first >= phase.batch:
        steps = phase.tokens / (phase.batch * phase.seq)
        return steps * step_seconds(replace(job, seq=phase.seq, batch=phase.batch)), steps

    # Round the ramp to batches that divide over the replicas of the layout.
    batch_quanta = np.linspace(phase.first, phase.batch, RAMP_POINTS) / quantum
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
    """Return the cost of a run.

    Args:
        model: Model to train.
        system: Chips and links.
        job: Sequences, formats and optimizer of a step.
        phases: Parts of the run.
        step_seconds: Function that returns the seconds of a step of a job.
        chips: Chips in total.
        step_range: Factors of the 90 % range of a step.
        reliability: Failure rate, checkpoint and restart times.
        quantum: Sequences by which a batch ramp grows.

    Returns:
        Time, chip-hours, money and energy.

    Raises:
        Impossible: If failures are so frequent that the run never ends.
    """
    parts = [phase_seconds(phase, job, step_seconds, quantum) for phase in phases]
    useful, steps = sum(p[0] for p in parts), sum(p[1] for p in parts)
    tokens = sum(phase.tokens for phase in phases)

    # Goodput: the optimal time between checkpoints, at most the length of the run.
    mean_time = float(mean_time_between_failures(chips, reliability.rate)) if reliability.rate else math.inf
    checkpoint_interval = float(daly_interval(reliability.checkpoint, mean_time)) if math.isfinite(mean_time) else useful
    checkpoint_interval = min(checkpoint_interval, useful)
    if (reliability.checkpoint + reliability.restart) / mean_time > MAX_LOST_INTERVALS:
        raise Impossible(
            f"a run on {chips:,} chips with a failure every {show(mean_time, 's')} never ends: a checkpoint takes "
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
