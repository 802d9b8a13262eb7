"""Bytes on the fullest chip of a training step, by part.

States are weights, gradients and optimizer states, divided among replicas as far as sharding goes. Experts are divided
among copies of the experts, not of the model. Activations are the saved activations of each layer (`layer_profile`) minus
the recomputed ones, times the micro-batches in flight on a stage.

The last stage has the logits. Full recomputation saves the input of each layer and, for a moment, all activations of one
layer. Selective recomputation of attention drops its scores; its output is the input of the next product and stays.

Gradients have the format in which the stack accumulates them: `grad_reduce_in_fp32` of Megatron
(https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/distributed/param_and_grad_buffer.py) is off in the recipes of
https://github.com/NVIDIA-NeMo/Megatron-Bridge/tree/main/scripts/performance/configs, so that they have 2 bytes there.

Constants: 0.2 GB of work space, and the weight gradients of one layer before they are added up (Transformer Engine).
Measured allocator peaks of SimuMax's runs on eight B200 show both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import Array, Number
from steptime.result_base import Tabular, broadcast, in_words, unit
from steptime.svg import stacked
from steptime.training.layer_profile import (
    ACTIVATION_BYTES,
    draft_layer_profiles,
    layer_profiles,
    layers_by_kind,
    pick_largest,
    pipeline_stages,
    stem_profile,
)
from steptime.training.layer_time import (
    ChipParameters,
    activation_bytes,
    expert_sharding_ranks,
    layer_passes,
    sharding_ranks,
    stem_passes,
)
from steptime.training.schedule_timeline import MemoryCurve, memory_curve
from steptime.training.schedules.schedule import Schedule, schedule_named
from steptime.training.training_job import ACTIVATIONS, OPTIMIZER, TrainingJob, TrainingLayout, host_memory
from steptime.training.training_stack import TrainingEngine
from steptime.training.training_step import chip_parameters, draft_passes, parameters_per_layer
from steptime.units import show

# Bytes of libraries inside the allocator.
WORK_SPACE = 0.2e9
# Layers whose activations are on the chip while others are in host memory: one computes, one is on its way (double buffer).
# Source: cpu_offloading_double_buffering, https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/main/docs/training/cpu-offloading.md.
BUFFERED_LAYERS = 2
PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "gathered", "buffers", "reserved")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainingMemory(Tabular):
    """Bytes on the fullest chip by part; arrays broadcast alike."""

    SCHEMA: ClassVar[str] = "steptime.training_memory/2"
    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "allocated": unit("B", "bytes of tensors: the sum of the parts without `reserved`"),
        "used": unit("B", "bytes in use: the sum of all parts"),
        "fits": unit(
            "", "whether the bytes in use are within the capacity, also in host memory", kind="true or false, or list"
        ),
    }

    weights: Number = field(metadata=unit("B", "weights"))
    gradients: Number = field(metadata=unit("B", "gradients"))
    optimizer: Number = field(metadata=unit("B", "master weights and moments"))
    activations: Number = field(metadata=unit("B", "saved activations of the micro-batches in flight"))
    logits: Number = field(metadata=unit("B", "logits and their gradients"))
    gathered: Number = field(metadata=unit("B", "layers gathered for use, where weights are sharded"))
    buffers: Number = field(metadata=unit("B", "weight gradients of one layer, and work space"))
    reserved: Number = field(metadata=unit("B", "bytes of driver and libraries"))
    capacity: Number = field(metadata=unit("B", "memory of a chip"))
    host: Number = field(default=0.0, metadata=unit("B", "offloaded states and activations in host memory, per chip"))
    host_capacity: Number = field(default=0.0, metadata=unit("B", "host memory per chip"))

    @property
    def allocated(self) -> Number:
        """Bytes of tensors."""
        return sum((getattr(self, name) for name in PARTS[:-1]), 0.0)

    @property
    def used(self) -> Number:
        """Bytes in use."""
        return self.allocated + self.reserved

    @property
    def fits(self) -> Array:
        """Whether the bytes in use are within the capacity."""
        return np.asarray((self.used <= self.capacity) & (self.host <= self.host_capacity))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return bytes in use over capacity as a title, and the largest parts.

        Returns:
            Title, and lines by name.
        """
        fits = np.asarray(self.fits)
        verdict = "fits" if fits.all() else "does not fit" if not fits.any() else f"{int(fits.sum())} of {fits.size} fit"
        title = f"Memory of a chip: {_bytes(self.used)} of {_bytes(self.capacity)}, {verdict}"
        largest = sorted(PARTS, key=lambda name: -float(np.max(getattr(self, name))))[:4]
        lines = {name: _bytes(getattr(self, name)) for name in largest}
        if np.any(np.asarray(self.host) > 0):
            lines["host memory"] = f"{_bytes(self.host)} of {_bytes(self.host_capacity)}"
        return title, lines

    def drawing(self) -> str:
        """Return the parts of the memory of one chip as a bar.

        Returns:
            Text; "" for several points.
        """
        if np.ndim(self.used):
            return ""
        return stacked({name: float(getattr(self, name)) for name in PARTS}, "B", total=float(self.capacity))

    def columns(self) -> dict[str, Any]:
        """Return one row per point: bytes by part and in use, capacity, and the fit.

        Returns:
            Values by column name.
        """
        names = (*PARTS, "used", "capacity", *(("host",) if np.any(np.asarray(self.host) > 0) else ()))
        return broadcast({f"{name}_bytes": getattr(self, name) for name in names} | {"fits": self.fits})


def _bytes(values: Number) -> str:
    return in_words(values, lambda value: show(value, "B"))


def training_memory(
    model: Model, job: TrainingJob, system: System, engine: TrainingEngine, x: TrainingLayout, *, microbatches: Number
) -> TrainingMemory:
    """Return the memory of the fullest chip of all stages.

    Args:
        model: Model to train.
        job: Sequences, formats and optimizer of a step.
        system: Chips and links.
        engine: Training stack.
        x: Training layout; its numbers may be arrays that broadcast.
        microbatches: Micro-batches per step and replica.

    Returns:
        Bytes by part.
    """
    schedule = schedule_named(x.schedule)
    stem = stem_profile(model)
    layer_parameters = [parameters_per_layer(sheet, x) for sheet, _ in layer_profiles(model)]
    layer_activations, layer_peaks = zip(*(activation_bytes(sheet, job, x) for sheet, _ in layer_profiles(model)), strict=True)
    has_adapters = job.task == "lora"
    widths = [sum(sheet.widths_of_adapters(job.adapted)) * has_adapters for sheet, _ in layer_profiles(model)]
    draft = (
        [(parameters_per_layer(sheet, x), activation_bytes(sheet, job, x)[0], n) for sheet, n in draft_layer_profiles(model)]
        if job.mtp
        else []
    )
    logits = job.logit_bytes * x.micro_batch * job.seq / x.cp * stem.vocabulary / x.tp
    stream_bytes = reversible_stream_bytes(max(sheet.boundary for sheet, _ in layer_profiles(model)), job, x)

    # The fullest stage is not known in advance: the first has most micro-batches in flight, the last has the logits.
    options = []
    for stage in pipeline_stages(model, x):
        stage_parameters = chip_parameters(stage, layer_parameters, stem, x)
        stage_activations = sum((n * k for n, k in zip(stage.parts, layer_activations, strict=True)), stream_bytes)
        adapters = (
            sum((n * w for n, w in zip(stage.parts, widths, strict=True)), 0.0 * stage_parameters.dense) * job.lora_rank / x.tp
        )
        # Multi-token-prediction layers are on the stage with the head.
        for draft_parameters, draft_activations, n in draft:
            stage_parameters = ChipParameters(
                stage_parameters.dense + stage.head * n * draft_parameters.dense,
                stage_parameters.experts + stage.head * n * draft_parameters.experts,
            )
            stage_activations = stage_activations + stage.head * n * draft_activations
        in_flight = np.where(np.asarray(x.pp) == 1, 1.0, _microbatches_in_flight(schedule, x, microbatches, stage.later))
        largest, peak_bytes = _largest_layer(layer_parameters, layer_peaks, layer_activations, stage.parts, x)
        saved_bytes, host_bytes = stage_activations * in_flight, 0.0 * stage_parameters.dense
        if job.offloads(ACTIVATIONS):
            buffered_bytes = BUFFERED_LAYERS * pick_largest(layer_activations, [(k,) for k in layer_activations])[0]
            host_bytes = saved_bytes
            saved_bytes = np.minimum(saved_bytes, buffered_bytes)
        parts = _stage_memory(
            stage_parameters, adapters, largest, job, engine, x, saved_bytes + peak_bytes,
            np.where(np.asarray(stage.head) > 0, logits, 0.0), copies=schedule.copies,
        )  # fmt: skip
        if job.offloads(OPTIMIZER):
            host_bytes, parts["optimizer"] = host_bytes + parts["optimizer"], 0.0 * parts["optimizer"]
        options.append(parts | {"host": host_bytes})
    totals = [sum((option[name] for name in PARTS), 0.0) for option in options]
    names = (*PARTS, "host")
    fullest = pick_largest(totals, [[option[name] for name in names] for option in options])
    fullest_parts = {name: np.asarray(part) * 1.0 for name, part in zip(names, fullest, strict=True)}
    tier = host_memory(system)
    return TrainingMemory(**fullest_parts, capacity=system.chip.capacity, host_capacity=0.0 if tier is None else tier.capacity)


def _microbatches_in_flight(schedule: Schedule, x: TrainingLayout, m: Number, later: Number) -> Number:
    """Return the micro-batches in flight on a stage; the last stage has the fewest."""
    if schedule.name == "1f1b":
        return np.minimum(m, x.pp - later)
    first = np.minimum(schedule.in_flight(x.pp, m, x.virtual_stages), m)
    if schedule.name == "interleaved":
        return np.minimum(m, np.maximum(first - 2 * later / x.virtual_stages, 1.0))
    return first


def reversible_stream_bytes(boundary: Number, job: TrainingJob, x: TrainingLayout) -> Number:
    """Return the bytes of both streams that reversible layers save per micro-batch.

    Each chunk saves its output.

    Args:
        boundary: Values per row of the residual stream.
        job: Sequences, formats and optimizer of a step.
        x: Training layout; its numbers may be arrays that broadcast.

    Returns:
        Bytes per chip; 0 without reversible layers.
    """
    if x.recompute != "reversible":
        return 0.0
    chip_rows = x.micro_batch * job.seq / x.cp / (x.tp if job.sequence_parallel else 1.0)
    return 2 * boundary * ACTIVATION_BYTES * x.virtual_stages * chip_rows


def _largest_layer(
    layer_parameters: list[ChipParameters],
    layer_peaks: tuple[Number, ...],
    layer_activations: tuple[Number, ...],
    parts: tuple[Number, ...],
    x: TrainingLayout,
) -> tuple[ChipParameters, Number]:
    """Return the parameters of the largest layer of a stage, and its temporary bytes.

    The temporary bytes are those beyond the saved ones.
    """
    dense: Number = 0.0
    experts: Number = 0.0
    peak_bytes: Number = 0.0
    for parameters, layer_peak, stored_bytes, n in zip(layer_parameters, layer_peaks, layer_activations, parts, strict=True):
        is_present = np.asarray(n) > 0
        dense, experts = np.maximum(dense, is_present * parameters.dense), np.maximum(experts, is_present * parameters.experts)
        peak_bytes = np.maximum(peak_bytes, is_present * (layer_peak - stored_bytes))
    return ChipParameters(dense, experts), peak_bytes if x.recompute != "none" else 0.0 * peak_bytes


def _stage_memory(
    parameters: ChipParameters, adapters: Number, largest: ChipParameters, job: TrainingJob, engine: TrainingEngine,
    x: TrainingLayout, activations: Number, logits: Number, *, copies: int,
) -> dict[str, Number]:  # fmt: skip
    """Return the parts of the memory of a chip with these parameters."""
    ranks, expert_ranks = sharding_ranks(x), expert_sharding_ranks(x)
    is_sharded = {"zero1": (0, 0, 1), "zero2": (0, 1, 1), "zero3": (1, 1, 1), "none": (0, 0, 0)}[x.sharding]

    def divided(sharded: int) -> Number:
        return (
            parameters.dense / ranks + parameters.experts / expert_ranks if sharded else parameters.dense + parameters.experts
        )

    # A frozen base has no gradients and no optimizer states, and may be stored in a narrow format.
    frozen = job.task == "lora"
    trained = 0.0 if frozen else 1.0
    states = job.states.master + job.states.moments
    bytes_per_weight = min(ACTIVATION_BYTES, job.format.bytes) if frozen else ACTIVATION_BYTES
    # FSDP gathers the master copy itself and has no separate weights.
    stored_weight_bytes = 0.0 if is_sharded[0] and job.states.master and not frozen else bytes_per_weight
    stage_weights = (parameters.dense + parameters.experts) * copies
    gradients = stage_weights if not is_sharded[1] else divided(1)
    # In a pipeline, the gradients of a chunk stay unsharded until p micro-batches have passed it.
    if x.sharding == "zero2":
        gradients = np.minimum(gradients + np.where(np.asarray(x.pp) > 1, stage_weights / x.virtual_stages, 0.0), stage_weights)
    layer = largest.all
    gathered: Number = 0.0 * layer
    # Gathered weights: the current and the prefetched layers; in a pipeline the whole stage, for the whole step. A part with
    # one copy is not gathered, but cast where the stored weights are a master copy.
    if is_sharded[0]:
        is_cast = stored_weight_bytes == 0.0

        def gathered_bytes(part: ChipParameters, layers: float) -> Number:
            sizes = ((part.dense, ranks), (part.experts, expert_ranks))
            weights = sum(np.where((np.asarray(n) > 1) | is_cast, layers * bytes_per_weight * p, 0.0) for p, n in sizes)
            return weights + sum(np.where(np.asarray(n) > 1, trained * job.gradient_bytes * p, 0.0) for p, n in sizes)

        gathered = np.where(
            np.asarray(x.pp) > 1, gathered_bytes(parameters, 1.0), gathered_bytes(largest, engine.prefetched + 1)
        )
    return {
        "weights": stored_weight_bytes * divided(is_sharded[0]) * copies,
        "gradients": job.gradient_bytes * (trained * gradients + adapters),
        "optimizer": trained * states * divided(is_sharded[2]) + (states + bytes_per_weight) * adapters,
        "activations": activations,
        "logits": logits,
        "gathered": gathered,
        "buffers": trained * ACTIVATION_BYTES * largest.dense + WORK_SPACE,
        "reserved": engine.reserved_bytes + 0.0 * layer,
    }


def memory_by_layer(
    model: Model, job: TrainingJob, system: System, engine: TrainingEngine, x: TrainingLayout, memory: TrainingMemory, *,
    microbatches: int,
) -> MemoryCurve:  # fmt: skip
    """Return the memory of a chip without pipeline stages over micro-batches that follow one another.

    Each layer saves its activations when its forward pass starts and frees them when its backward pass ends. Kinds of layers
    that alternate are mixed evenly, as in pipeline stages.

    Args:
        model: Model to train.
        job: Sequences, formats and optimizer of a step.
        system: Chips and links.
        engine: Training stack.
        x: Training layout of plain numbers with one stage.
        memory: Memory of the chip at its peak.
        microbatches: Micro-batches to show.

    Returns:
        Memory over time.
    """
    sheets = [sheet for sheet, _ in layer_profiles(model)]
    layers = np.array([layers_by_kind(model, n, n + 1) for n in range(model.depth)])
    passes = [layer_passes(sheet, job, system, engine, x) for sheet in sheets]
    forward, backward = (layers @ [float(layer.total(direction)) for layer in passes] for direction in ("forward", "backward"))
    head = np.array(stem_passes(stem_profile(model), job, system, engine, x), dtype=float)
    saved_by_kind = [float(activation_bytes(sheet, job, x)[0]) for sheet in sheets]
    saved = np.cumsum(layers @ saved_by_kind)
    saved += float(reversible_stream_bytes(max(sheet.boundary for sheet in sheets), job, x))
    at_head = saved[-1]
    # Multi-token-prediction layers run with the head.
    if job.mtp:
        head += np.array(draft_passes(model, job, system, engine, x), dtype=float)
        at_head += sum(n * float(activation_bytes(sheet, job, x)[0]) for sheet, n in draft_layer_profiles(model))
    if job.offloads(ACTIVATIONS):
        saved, at_head = (np.minimum(part, BUFFERED_LAYERS * max(saved_by_kind)) for part in (saved, at_head))

    # The peak contains the logits and the temporary bytes of the largest layer. Both are drawn until the backward pass of the
    # last layer ends; each earlier layer has the temporary bytes in its backward pass.
    temporary_bytes = float(memory.activations) - at_head
    levels = np.concatenate([saved, [at_head, at_head], saved[::-1] + temporary_bytes])
    levels[model.depth + 2] = at_head + temporary_bytes
    logits = np.zeros(len(levels))
    logits[model.depth : model.depth + 3] = float(memory.logits)
    durations = np.concatenate([forward, head, backward[::-1]]) / float(engine.speed)
    seconds = np.append(0.0, np.cumsum(np.tile(durations, microbatches)))
    repeated = (np.append(np.tile(part, microbatches), 0.0) for part in (levels, logits))
    return memory_curve(0, seconds, memory, **dict(zip(("activations", "logits"), repeated, strict=True)))
