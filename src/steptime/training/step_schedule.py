"""Simulated schedule of a training step, with the lengths of its chunks."""

from __future__ import annotations

import numpy as np

from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.training.schedule_timeline import Timeline, simulate_step, timeline
from steptime.training.schedules.schedule import schedule_named
from steptime.training.training_planner import Training
from steptime.training.training_stack import TrainingEngine, on_chip
from steptime.training.training_step import chunk_times, step_seconds

# Largest stages x micro-batches x virtual stages of a plot; a longer step shows fewer micro-batches.
MAX_ITEMS = 200_000


def step_timeline(model: Model, system: System, training: Training, engine: TrainingEngine) -> Timeline | None:
    """Return the timeline of a training step.

    Of a very long step only the first micro-batches are simulated, as many as a plot can show.

    Args:
        model: Model to train.
        system: Chips and links.
        training: Result of `train`.
        engine: Training stack.

    Returns:
        Timeline; None without a pipeline.
    """
    x = training.step.layout
    pp, v = int(x.pp), int(x.virtual_stages)
    if pp == 1:
        return None
    schedule = schedule_named(x.schedule)
    m = int(np.asarray(training.step.microbatches))
    if pp * v * m > MAX_ITEMS:
        m = max(MAX_ITEMS // (pp * v) // pp * pp, 2 * pp)
    # The simulation takes the same times as the closed form of the step.
    tuned, slower = on_chip(engine, system, experts=model.routed)
    stages = step_seconds(model, training.job, system, tuned, x, slower=slower).stages
    order = schedule.order(pp, m, v)
    forward, backward, weights = (float(slower) * times for times in chunk_times(x, stages, order.chunks))
    return timeline(simulate_step(order, forward, backward, weights))
