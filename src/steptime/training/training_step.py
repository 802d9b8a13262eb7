r"""Time of one training step, by term.

A stage takes $f_i + b_i$ for a micro-batch. The slowest stage sets the pace, and the others wait while the pipeline fills
and drains: $T = m \max_i (f_i + b_i) + \mathrm{idle}$. The idle time is that of the schedule for stages of mean length,
which is exact for equal stages. A layout that gives the layers of each stage is simulated instead.

Exposed exchanges of data-parallel replicas, the optimizer and a fixed time per step come in addition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import Array, Number, has_nonzero
from steptime.physics import network_time
from steptime.physics.layout import shard_count
from steptime.training.layer_profile import (
    ACTIVATION_BYTES,
    LayerProfile,
    Stage,
    Stem,
    draft_layer_profiles,
    layer_profiles,
    pick_largest,
    pipeline_stages,
    stem_profile,
)
from steptime.training.layer_time import (
    ChipParameters,
    Passes,
    Terms,
    collective_seconds,
    expert_sharding_ranks,
    exposed_exchange_seconds,
    layer_passes,
    optimizer_seconds,
    product_rates,
    sharding_ranks,
    stem_passes,
)
from steptime.training.schedule_timeline import simulate_step
from steptime.training.schedules.schedule import schedule_named
from steptime.training.training_job import TrainingJob, TrainingLayout
from steptime.training.training_stack import TrainingEngine

# Schedules whose last device has the last chunk.
ONE_WAY: Final = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2")
# Micro-batches per stage that fill a pipeline; more of them do not change its idle time.
FILL_MICROBATCHES: Final = 4


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds of one micro-batch, forward and backward, by stage.

    forward, backward: on the slowest stage, by term. mean: on a mean stage. per_stage: on each of `pipeline_stages`.
    """

    forward: Terms
    backward: Terms
    slowest: tuple[Number, Number]
    # Forward, backward, and the part of the backward pass for weight gradients.
    mean: tuple[Number, Number, Number]
    per_stage: tuple[tuple[Number, Number], ...]


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step [s]: time by term, total, and number of micro-batches."""

    terms: Terms
    total: Number
    microbatches: Number
    stages: StageTimes


def step_seconds(
    model: Model, job: TrainingJob, system: System, engine: TrainingEngine, x: TrainingLayout, *,
    stages: StageTimes | None = None, parameters: ChipParameters | None = None,
) -> StepTime:  # fmt: skip
    """Return the time of a step on a legal layout.

    Fields of the layout and the job may be arrays.

    Args:
        model: Model to train.
        job: Sequences, formats and optimizer of a step.
        system: Chips and links.
        engine: Training stack.
        x: Training layout; its numbers may be arrays that broadcast.
        stages: Stage times of the layout; computed if None.
        parameters: Parameters on the fullest chip; computed if None.

    Returns:
        Seconds by term and in total.
    """
    if stages is None:
        passes = [layer_passes(sheet, job, system, engine, x) for sheet, _ in layer_profiles(model)]
        stages = stage_times(model, job, system, engine, x, passes)

    # Idle time: the closed form of the schedule, or a simulation where the layers of each stage are given.
    m = job.batch / (x.dp * x.micro_batch)
    schedule = schedule_named(x.schedule)
    f, b, w = stages.mean
    hop = hop_seconds(model, job, system, engine, x)
    has_pipeline = np.asarray(x.pp) > 1
    schedule_idle = schedule.idle(x.pp, m, x.virtual_stages, f, b, w) + schedule.stagger(x.pp, x.virtual_stages, f, b, w)
    idle = np.where(has_pipeline, np.maximum(schedule_idle, 0.0), 0.0)
    if x.layers and not any(np.ndim(value) for value in (x.pp, m, *stages.slowest)) and x.pp > 1:
        idle = np.asarray(max(simulated_idle_seconds(x, stages, int(m)), 0.0))
    parameters = fullest_stage_parameters(model, x) if parameters is None else parameters
    exchange_seconds = exposed_exchange_seconds(
        parameters, job, system, engine, x, forward=stages.slowest[0], backward=stages.slowest[1], microbatches=m,
        layers=model.depth / x.pp,
    )  # fmt: skip

    # Terms of the slowest stage, which sets the pace.
    terms: Terms = {}
    for part in (stages.forward, stages.backward):
        for name, value in part.items():
            terms[name] = terms.get(name, 0.0) + m * value
    terms["pipeline hops"] = np.where(has_pipeline, hop * schedule.hops(x.pp, m, x.virtual_stages), 0.0)
    terms["pipeline idle"] = idle
    terms["data parallel"] = exchange_seconds
    terms["optimizer"] = optimizer_seconds(parameters, job, system, x)
    if job.optimizer == "muon" and job.trained:
        terms["optimizer"] = terms["optimizer"] + muon_seconds(model, job, system, engine, x)
    if has_nonzero(engine.constants.seconds_per_step):
        terms["step"] = engine.constants.seconds_per_step

    terms = {name: value / engine.speed for name, value in terms.items() if has_nonzero(value)}
    return StepTime(terms, sum(terms.values(), 0.0), m, stages)


def muon_seconds(model: Model, job: TrainingJob, system: System, engine: TrainingEngine, x: TrainingLayout) -> Number:
    """Return the time of the Newton-Schulz iterations of Muon.

    Each matrix is on one of the ranks that share it.

    Args:
        model: Model to train.
        job: Sequences, formats and optimizer of a step.
        system: Chips and links.
        engine: Training stack.
        x: Training layout; its numbers may be arrays that broadcast.

    Returns:
        Seconds per step.

    References:
        arXiv 2502.16982.
    """
    dense = sum(n * sheet.orthogonal[0] for sheet, n in layer_profiles(model))
    experts = sum(n * sheet.orthogonal[1] for sheet, n in layer_profiles(model))
    _, rate = product_rates(job, system, engine)
    ranks, expert_ranks = sharding_ranks(x), expert_sharding_ranks(x)
    return (dense / (x.tp * ranks) + experts / (x.ep * x.etp * expert_ranks)) / x.pp / rate


def stage_times(
    model: Model, job: TrainingJob, system: System, engine: TrainingEngine, x: TrainingLayout, passes: list[Passes]
) -> StageTimes:
    """Return the times of the slowest and of a mean stage.

    Args:
        model: Model to train.
        job: Sequences, formats and optimizer of a step.
        system: Chips and links.
        engine: Training stack.
        x: Training layout; its numbers may be arrays that broadcast.
        passes: Forward and backward pass of one layer of each kind.

    Returns:
        Seconds of one micro-batch.
    """
    head_seconds = stem_passes(stem_profile(model), job, system, engine, x)
    draft_seconds = draft_passes(model, job, system, engine, x) if job.mtp else (0.0, 0.0)
    sums = [(layer_pass.total("forward"), layer_pass.total("backward")) for layer_pass in passes]

    def sum_passes(layer_counts: Sequence[Number], head_weight: Number) -> tuple[Number, Number]:
        direction_seconds = [
            sum((n * s[k] for n, s in zip(layer_counts, sums, strict=True)), head_weight * (head_seconds[k] + draft_seconds[k]))
            for k in (0, 1)
        ]
        return direction_seconds[0], direction_seconds[1]

    # Select the slowest stage point by point, because the layout may be an array.
    stages = pipeline_stages(model, x)
    stage_seconds = tuple(sum_passes(stage.parts, stage.head) for stage in stages)
    forward_seconds, backward_seconds, head_share, *slowest_parts = pick_largest(
        [sum(times) for times in stage_seconds],
        [(*times, stage.head, *stage.parts) for times, stage in zip(stage_seconds, stages, strict=True)],
    )

    # Split the time of the slowest stage into terms.
    forward, backward = ({}, {})  # type: tuple[Terms, Terms]
    for direction_index, (terms, direction) in enumerate(((forward, "forward"), (backward, "backward"))):
        for n, layer_pass in zip(slowest_parts, passes, strict=True):
            for name, value in getattr(layer_pass, direction).items():
                terms[name] = terms.get(name, 0.0) + n * value
        terms["head"] = head_share * head_seconds[direction_index]
        if job.mtp:
            terms["multi-token prediction"] = head_share * draft_seconds[direction_index]

    # The mean stage has an equal part of all layers and of the head.
    counts = [n for _, n in model.layers]
    forwards, backwards = sum_passes(counts, 1.0)
    weights = sum((n * layer_pass.weights for n, layer_pass in zip(counts, passes, strict=True)), 0.0) + head_seconds[1] / 2
    slowest = forward_seconds, backward_seconds
    return StageTimes(forward, backward, slowest, (forwards / x.pp, backwards / x.pp, weights / x.pp), stage_seconds)


def chunk_times(x: TrainingLayout, stages: StageTimes, chunks: int) -> tuple[Array, Array, Array]:
    """Return the times of one micro-batch by device and chunk.

    If the layout gives its layers, the time of a device is divided evenly among its chunks. Otherwise chunks take the mean
    time, except the first and the last chunk of schedules with one direction.

    Args:
        x: Training layout; its numbers may be arrays that broadcast.
        stages: Stage times of the layout.
        chunks: Chunks per device.

    Returns:
        Seconds forward, backward and of weight gradients, each (devices, chunks).
    """
    pp, v = int(x.pp), int(x.virtual_stages)
    stage_seconds = np.array([[float(np.asarray(t)) / v for t in stage_pair] for stage_pair in stages.per_stage])
    mean = [float(np.asarray(t)) / v for t in stages.mean]
    forward, backward = (np.full((pp, chunks), mean[k]) for k in (0, 1))
    for k, times in enumerate((forward, backward)):
        if x.layers:
            times[:] = stage_seconds[:, k : k + 1]
        elif chunks == v and schedule_named(x.schedule).name in ONE_WAY:
            times[0, 0], times[-1, -1] = stage_seconds[0, k], stage_seconds[-1, k]
    return forward, backward, np.minimum(mean[2], backward / 2)


def simulated_idle_seconds(x: TrainingLayout, stages: StageTimes, microbatches: int) -> float:
    """Return the time that the slowest stage waits in a step, from a simulation.

    The simulation has enough micro-batches to fill the pipeline. Each further one takes the time of the slowest stage.

    Args:
        x: Training layout; its numbers may be arrays that broadcast.
        stages: Stage times of the layout.
        microbatches: Micro-batches per step and replica.

    Returns:
        Seconds per step.
    """
    microbatch_count = min(microbatches, FILL_MICROBATCHES * int(x.pp))
    order = schedule_named(x.schedule).order(int(x.pp), microbatch_count, int(x.virtual_stages))
    simulation = simulate_step(order, *chunk_times(x, stages, order.chunks))
    return float(simulation.total) - microbatch_count * float(np.asarray(stages.slowest[0] + stages.slowest[1]))


def draft_passes(
    model: Model, job: TrainingJob, system: System, engine: TrainingEngine, x: TrainingLayout
) -> tuple[Number, Number]:
    """Return the time of the multi-token-prediction layers, forward and backward.

    Each layer includes a pass through the head.

    Args:
        model: Model to train.
        job: Sequences, formats and optimizer of a step.
        system: Chips and links.
        engine: Training stack.
        x: Training layout; its numbers may be arrays that broadcast.

    Returns:
        Seconds forward and backward of one micro-batch.
    """
    head_seconds = stem_passes(stem_profile(model), job, system, engine, x)
    seconds = [0.0, 0.0]  # type: list[Number]
    for sheet, n in draft_layer_profiles(model):
        layer_pass = layer_passes(sheet, job, system, engine, x)
        seconds = [
            seconds[0] + n * (layer_pass.total("forward") + head_seconds[0]),
            seconds[1] + n * (layer_pass.total("backward") + head_seconds[1]),
        ]
    return seconds[0], seconds[1]


def hop_seconds(model: Model, job: TrainingJob, system: System, engine: TrainingEngine, x: TrainingLayout) -> Number:
    """Return the time of the activations of a micro-batch from a stage to the next.

    This is the mean over all boundaries. The last stage of a loop sends activations to the first one, as its next chunk.

    Args:
        model: Model to train.
        job: Sequences, formats and optimizer of a step.
        system: Chips and links.
        engine: Training stack.
        x: Training layout; its numbers may be arrays that broadcast.

    Returns:
        Seconds per hop.
    """
    if not np.any(np.asarray(x.pp) > 1):
        return 0.0
    sent_bytes = x.micro_batch * job.seq / x.cp / (1.0 if job.whole_hops else x.tp) * model.width * ACTIVATION_BYTES
    traffic = network_time.point_to_point(system, x.pp, sent_bytes, x.stage, returned=sent_bytes)
    return collective_seconds(traffic, engine) / x.pp


def parameters_per_layer(sheet: LayerProfile, x: TrainingLayout) -> ChipParameters:
    """Return the parameters of one layer on one chip.

    Args:
        sheet: Profile of the layer.
        x: Training layout; its numbers may be arrays that broadcast.

    Returns:
        Dense and expert parameters.
    """
    dense_parameters: Number = sheet.small
    expert_parameters: Number = 0.0
    for product in sheet.products:
        if product.routed:
            expert_parameters = expert_parameters + product.weights / (x.ep * x.etp)
        else:
            dense_parameters = dense_parameters + product.weights / (
                1 if product.replicated else shard_count(product.limit, x.tp)
            )
    return ChipParameters(dense_parameters, expert_parameters)


def chip_parameters(stage: Stage, layers: list[ChipParameters], stem: Stem, x: TrainingLayout) -> ChipParameters:
    """Return the parameters on a chip of a stage.

    An embedding that is also the head counts once.

    Args:
        stage: Layers of the stage.
        layers: Parameters of a layer of each kind on one chip.
        stem: Embedding and head.
        x: Training layout; its numbers may be arrays that broadcast.

    Returns:
        Dense and expert parameters.
    """
    largest_share = np.maximum(stage.embedding, stage.head) if stem.shared else stage.head
    stem_parameters = stem.head * largest_share + (0.0 if stem.shared else stem.embedding * stage.embedding)
    return ChipParameters(
        sum((n * h.dense for n, h in zip(stage.parts, layers, strict=True)), stem_parameters / x.tp),
        sum((n * h.experts for n, h in zip(stage.parts, layers, strict=True)), 0.0),
    )


def fullest_stage_parameters(model: Model, x: TrainingLayout) -> ChipParameters:
    """Return the parameters on a chip of the fullest stage.

    Args:
        model: Model to train.
        x: Training layout; its numbers may be arrays that broadcast.

    Returns:
        Dense and expert parameters.
    """
    layers = [parameters_per_layer(sheet, x) for sheet, _ in layer_profiles(model)]
    options = [chip_parameters(stage, layers, stem_profile(model), x) for stage in pipeline_stages(model, x)]
    return ChipParameters(*pick_largest([p.all for p in options], [(p.dense, p.experts) for p in options]))
