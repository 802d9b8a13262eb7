r"""The time of one training step, by what is done.

A stage takes $f_i + b_i$ for a micro-batch; the slowest one sets the pace, and the others wait for the pipeline to fill and
drain: $T = m \max_i (f_i + b_i) + \mathrm{idle}$, the idle time that of the schedule for stages of mean length, which is
exact for equal ones; where one layout says the layers of each stage, its step is walked through instead. To that come
exchanges of data-parallel copies that nothing hides, the optimizer, and what a step takes whatever its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import Array, Number, some
from steptime.physics import network_time
from steptime.physics.layout import shard_count
from steptime.training.data_parallel import Held, copies_sharing, expert_copies_sharing, exposed, optimizer_seconds
from steptime.training.layer_profile import WIDE, Sheet, Stem, draft_sheets, sheets, stem_of
from steptime.training.layer_time import Passes, Terms, layer_passes, product_rates, seconds_of, stem_passes
from steptime.training.pipeline_simulator import walk
from steptime.training.schedules.schedule import schedule_named
from steptime.training.stage_balance import Stage, stages_of
from steptime.training.training_job import TrainingJob
from steptime.training.training_layout import TrainingLayout
from steptime.training.training_stack import TrainingEngine

ONE_WAY: Final = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2")  # schedules whose last device has the last chunk
FILLED: Final = 4  # micro-batches a stage with which a pipeline is filled, and waits as long as with any more


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds of one micro-batch forward and backward on the slowest stage, by term, of a mean stage, and of each of
    `stages_of`."""

    forward: Terms
    backward: Terms
    slowest: tuple[Number, Number]
    mean: tuple[Number, Number, Number]  # forward, backward, weight gradients of it
    each: tuple[tuple[Number, Number], ...]


@dataclass(frozen=True, slots=True)
class Seconds:
    """A step [s]: by term, in all, what the pipeline leaves idle, and the number of micro-batches."""

    terms: Terms
    total: Number
    idle: Number
    microbatches: Number
    stages: StageTimes


def step_seconds(
    model: Model, job: TrainingJob, system: System, engine: TrainingEngine, x: TrainingLayout, *, slower: Number = 1.0,
    stages: StageTimes | None = None, held: Held | None = None,
) -> Seconds:  # fmt: skip
    """Return the seconds of a step of a layout that is legal; fields of the layout and the job may be arrays.

    slower: factor on all times. stages, held: of the layout, where they are known from one that differs in neither.
    """
    if stages is None:
        passes = [layer_passes(sheet, job, system, engine, x) for sheet, _ in sheets(model)]
        stages = stage_times(model, job, system, engine, x, passes)
    m = job.batch / (x.dp * x.micro_batch)
    schedule = schedule_named(x.schedule)
    f, b, w = stages.mean
    hop = hop_seconds(model, job, system, engine, x)
    piped = np.asarray(x.pp) > 1
    waits = schedule.idle(x.pp, m, x.virtual_stages, f, b, w) + schedule.stagger(x.pp, x.virtual_stages, f, b, w)
    idle = np.where(piped, np.maximum(waits, 0.0), 0.0)
    if x.layers and not any(np.ndim(value) for value in (x.pp, m, *stages.slowest)) and x.pp > 1:
        idle = np.asarray(max(walked_idle(x, stages, int(m)), 0.0))
    held = held_by_stage(model, x) if held is None else held
    apart = exposed(held, job, system, engine, x, forward=stages.slowest[0], backward=stages.slowest[1], microbatches=m)
    terms: Terms = {}
    for part in (stages.forward, stages.backward):
        for name, value in part.items():
            terms[name] = terms.get(name, 0.0) + m * value
    terms["pipeline hops"] = np.where(piped, hop * schedule.hops(x.pp, m, x.virtual_stages), 0.0)
    terms["pipeline idle"] = idle
    terms["data parallel"] = apart
    terms["optimizer"] = optimizer_seconds(held, job, system, x)
    if job.optimizer == "muon" and job.trained:
        terms["optimizer"] = terms["optimizer"] + muon_seconds(model, job, system, engine, x)
    if some(engine.constants.seconds_per_step):
        terms["step"] = engine.constants.seconds_per_step
    total: Number = 0.0
    terms = {name: value * slower for name, value in terms.items() if some(value)}
    for value in terms.values():
        total = total + value
    return Seconds(terms, total, idle * slower, m, stages)


def muon_seconds(model: Model, job: TrainingJob, system: System, engine: TrainingEngine, x: TrainingLayout) -> Number:
    """Seconds of Muon's Newton-Schulz iterations, each matrix on one of the ranks that share it (arXiv 2502.16982)."""
    dense = sum(n * sheet.orthogonal[0] for sheet, n in sheets(model))
    experts = sum(n * sheet.orthogonal[1] for sheet, n in sheets(model))
    _, rate = product_rates(job, system, engine)
    ranks, expert_ranks = copies_sharing(x), expert_copies_sharing(x)
    return (dense / (x.tp * ranks) + experts / (x.ep * x.etp * expert_ranks)) / x.pp / rate


def stage_times(
    model: Model, job: TrainingJob, system: System, engine: TrainingEngine, x: TrainingLayout, passes: list[Passes]
) -> StageTimes:
    """Return the times of the slowest and of a mean stage, from those of a layer of each kind."""
    head = stem_passes(stem_of(model), job, system, engine, x)
    extra = draft_passes(model, job, system, engine, x) if job.mtp else (0.0, 0.0)
    sums = [(one.total("forward"), one.total("backward")) for one in passes]

    def taken(parts: Sequence[Number], ended: Number) -> tuple[Number, Number]:
        of = [sum((n * s[k] for n, s in zip(parts, sums, strict=True)), ended * (head[k] + extra[k])) for k in (0, 1)]
        return of[0], of[1]

    stages = stages_of(model, x)
    each = tuple(taken(stage.parts, stage.head) for stage in stages)
    slowest, parts, ended = each[0], stages[0].parts, stages[0].head
    for times, stage in zip(each[1:], stages[1:], strict=True):
        more = np.asarray(times[0] + times[1] > slowest[0] + slowest[1])
        slowest = np.where(more, times[0], slowest[0]), np.where(more, times[1], slowest[1])
        parts = tuple(np.where(more, own, other) for own, other in zip(stage.parts, parts, strict=True))
        ended = np.where(more, stage.head, ended)
    forward, backward = ({}, {})  # type: tuple[Terms, Terms]
    for at, (terms, direction) in enumerate(((forward, "forward"), (backward, "backward"))):
        for n, one in zip(parts, passes, strict=True):
            for name, value in getattr(one, direction).items():
                terms[name] = terms.get(name, 0.0) + n * value
        terms["head"] = ended * head[at]
        if job.mtp:
            terms["multi-token prediction"] = ended * extra[at]
    counts = [n for _, n in model.layers]
    forwards, backwards = taken(counts, 1.0)
    weights = sum((n * one.weights for n, one in zip(counts, passes, strict=True)), 0.0) + head[1] / 2
    return StageTimes(forward, backward, slowest, (forwards / x.pp, backwards / x.pp, weights / x.pp), each)


def chunk_times(x: TrainingLayout, stages: StageTimes, chunks: int) -> tuple[Array, Array, Array]:
    """Return the seconds of one micro-batch forward, backward, and of weight gradients, by (device, chunk).

    Where a layout says its layers, those of a device are divided evenly among its chunks; else chunks take the mean, but for
    the first and the last of schedules that go one way.
    """
    pp, v = int(x.pp), int(x.virtual_stages)
    each = np.array([[float(np.asarray(t)) / v for t in one] for one in stages.each])
    mean = [float(np.asarray(t)) / v for t in stages.mean]
    forward, backward = (np.full((pp, chunks), mean[k]) for k in (0, 1))
    for k, times in enumerate((forward, backward)):
        if x.layers:
            times[:] = each[:, k : k + 1]
        elif chunks == v and schedule_named(x.schedule).name in ONE_WAY:
            times[0, 0], times[-1, -1] = each[0, k], each[-1, k]
    return forward, backward, np.minimum(mean[2], backward / 2)


def walked_idle(x: TrainingLayout, stages: StageTimes, microbatches: int) -> float:
    """Return the seconds that the slowest stage waits in a step, by a walk through as many micro-batches as fill the pipeline:
    each further one takes the slowest stage's time."""
    few = min(microbatches, FILLED * int(x.pp))
    order = schedule_named(x.schedule).order(int(x.pp), few, int(x.virtual_stages))
    done = walk(order, *chunk_times(x, stages, order.chunks))
    return float(done.total) - few * float(np.asarray(stages.slowest[0] + stages.slowest[1]))


def draft_passes(
    model: Model, job: TrainingJob, system: System, engine: TrainingEngine, x: TrainingLayout
) -> tuple[Number, Number]:
    """Seconds of the multi-token-prediction layers forward and backward, each with a pass through the head."""
    head = stem_passes(stem_of(model), job, system, engine, x)
    found = [0.0, 0.0]  # type: list[Number]
    for sheet, n in draft_sheets(model):
        one = layer_passes(sheet, job, system, engine, x)
        found = [found[0] + n * (one.total("forward") + head[0]), found[1] + n * (one.total("backward") + head[1])]
    return found[0], found[1]


def hop_seconds(model: Model, job: TrainingJob, system: System, engine: TrainingEngine, x: TrainingLayout) -> Number:
    """Seconds in which a micro-batch's activations pass from a stage to the next."""
    if not np.any(np.asarray(x.pp) > 1):
        return 0.0
    sent = x.micro_batch * job.seq / x.cp / (1.0 if job.whole_hops else x.tp) * model.width * WIDE
    hops = network_time.point_to_point(system, x.pp, sent, x.stage)
    return seconds_of(hops, engine) / x.pp


def held_by_sheet(sheet: Sheet, x: TrainingLayout) -> Held:
    """Parameters of one layer on one chip."""
    dense: Number = sheet.small
    experts: Number = 0.0
    for product in sheet.products:
        if product.routed:
            experts = experts + product.weights / (x.ep * x.etp)
        else:
            dense = dense + product.weights / (1 if product.replicated else shard_count(product.limit, x.tp))
    return Held(dense, experts)


def held_on(stage: Stage, layers: list[Held], stem: Stem, x: TrainingLayout) -> Held:
    """Parameters of a chip of a stage, from those of a layer of each kind; an embedding that is the head is held once."""
    around = np.maximum(stage.embedding, stage.head) if stem.shared else stage.head
    own = stem.head * around + (0.0 if stem.shared else stem.embedding * stage.embedding)
    return Held(
        sum((n * h.dense for n, h in zip(stage.parts, layers, strict=True)), own / x.tp),
        sum((n * h.experts for n, h in zip(stage.parts, layers, strict=True)), 0.0),
    )


def held_by_stage(model: Model, x: TrainingLayout) -> Held:
    """Parameters of a chip of the fullest stage."""
    layers = [held_by_sheet(sheet, x) for sheet, _ in sheets(model)]
    fullest, *others = [held_on(stage, layers, stem_of(model), x) for stage in stages_of(model, x)]
    for one in others:
        more = np.asarray(one.all > fullest.all)
        fullest = Held(np.where(more, one.dense, fullest.dense), np.where(more, one.experts, fullest.experts))
    return fullest
