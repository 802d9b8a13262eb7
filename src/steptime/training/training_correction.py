"""Training correction: the factor and the range of a training step that follow from your own runs.

A layout that a search chose is expected to run slower than predicted (`training_evidence.SearchOptimism`). A run with this
layout has measured this shortfall as well. Its ratio is therefore over the predicted time with the shortfall. A repeat
of the same run is then not corrected twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from steptime.physics.bias_correction import Anchor, MeasuredRun, OperatingPoint
from steptime.physics.run_covariance import TRAINING
from steptime.training.training_job import TrainingJob, TrainingLayout
from steptime.training.training_stack import TrainingEngine

# Degrees that runs of one layout share.
SHARED_DEGREES = ("tp", "pp", "dp", "ep", "cp")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCorrection:
    """The correction of a step: factor on its time, and 90 % range around the corrected time as factors."""

    factor: float
    low: float
    high: float


def own_correction(
    engine: TrainingEngine, job: TrainingJob, layout: TrainingLayout, *, low: float, high: float, shortfall: float = 1.0
) -> OwnCorrection:
    """Return the correction of a step by your own runs.

    Args:
        engine: Training stack, with the runs bound to the model and the system.
        job: Sequences and formats of the step.
        layout: Training layout.
        low: Lower end of the 90 % range without runs, as a factor on the time.
        high: Upper end of it.
        shortfall: Expected measured over predicted time of a searched layout.

    Returns:
        Factor 1 and the given range without runs; the narrower of both ranges with runs.
    """
    if engine.anchor is None:
        return OwnCorrection(factor=1.0, low=low, high=high)
    anchor = replace(engine.anchor, formats=layout_settings(job, layout))
    anchor = replace(anchor, measured=tuple(_beyond(run, anchor, layout, shortfall) for run in anchor.measured))
    log, half = (float(np.asarray(value)) for value in anchor.correction(TRAINING, step_point(job, layout)))
    if np.exp(2 * half) < high / low:
        low, high = float(np.exp(-half)), float(np.exp(half))
    return OwnCorrection(factor=float(np.exp(log)), low=low, high=high)


def layout_settings(job: TrainingJob, layout: TrainingLayout) -> tuple[str, ...]:
    """Return what runs of one layout share in addition to their degrees.

    Args:
        job: Sequences and formats of the step.
        layout: Training layout.

    Returns:
        Number format, micro-batch, virtual stages, sharding, recomputation and schedule.
    """
    sizes = (str(int(np.asarray(size))) for size in (layout.micro_batch, layout.virtual_stages))
    return (job.dtype, *sizes, layout.sharding, layout.recompute, layout.schedule)


def step_point(job: TrainingJob, layout: TrainingLayout) -> OperatingPoint:
    """Return where the covariance of runs places a training step.

    Args:
        job: Sequences and formats of the step.
        layout: Training layout.

    Returns:
        Layout, sequences per step, their length, and chips.
    """
    return OperatingPoint(layout=layout, load=job.batch, context=job.seq, chips=layout.chips)


def _beyond(run: MeasuredRun, anchor: Anchor, layout: TrainingLayout, shortfall: float) -> MeasuredRun:
    """Return a run with the searched layout relative to the prediction with its shortfall; other runs unchanged."""
    is_same = (run.model, run.system, run.formats) == (anchor.model, anchor.system, anchor.formats) and all(
        getattr(run, name) == getattr(layout, name) for name in SHARED_DEGREES
    )
    if not is_same or run.training_step is None:
        return run
    return replace(run, training_step=run.training_step / shortfall)
