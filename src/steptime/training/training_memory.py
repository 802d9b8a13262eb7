r"""Bytes of the fullest chip of a training step, by what they hold.

States: weights, gradients and what the optimizer keeps, divided among copies as far as sharding goes; experts are divided among
copies of the experts, not of the model. Activations: what each layer keeps for its backward pass (`sheet`), less what is
computed again, times the micro-batches in flight on a stage (the schedule's). The last stage holds logits. Full recomputation
keeps the input of each layer and, for a moment, all of one layer.
Constants: 0.2 GB of work space, and one layer's weight gradients before they are added up (Transformer Engine's), as measured
allocator peaks of SimuMax's runs on eight B200 show.
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
from steptime.training.data_parallel import ChipParameters, expert_sharding_ranks, sharding_ranks
from steptime.training.layer_profile import ACTIVATION_BYTES, LayerProfile, draft_layer_profiles, layer_profiles, stem_profile
from steptime.training.layer_time import ALTERNATE, recomputed_modules
from steptime.training.schedules.schedule import Schedule, schedule_named
from steptime.training.stage_balance import pipeline_stages
from steptime.training.training_job import UNFUSED, TrainingJob
from steptime.training.training_layout import TrainingLayout
from steptime.training.training_stack import TrainingEngine
from steptime.training.training_step import chip_parameters, parameters_per_layer
from steptime.units import show

WORK_SPACE = 0.2e9  # bytes of libraries inside the allocator
NARROW_MODULES = (
    "norms",
    "activation",
    "moe_act",
    "moe_input",
)  # modules whose output a product reads: kept as it reads it, in 8 bits
PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "gathered", "buffers", "reserved")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainingMemory(Tabular):
    """Bytes of the fullest chip by part, arrays that broadcast alike; `capacity` is what it has."""

    SCHEMA: ClassVar[str] = "steptime.training_memory/1"
    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "allocated": unit("B", "bytes that tensors take: the sum of the parts but the reserved"),
        "used": unit("B", "bytes in use: the sum of the parts"),
        "fits": unit("", "whether they are within the capacity", kind="true or false, or list"),
    }

    weights: Number = field(metadata=unit("B", "weights"))
    gradients: Number = field(metadata=unit("B", "gradients"))
    optimizer: Number = field(metadata=unit("B", "master weights and moments"))
    activations: Number = field(metadata=unit("B", "what the backward pass needs of micro-batches in flight"))
    logits: Number = field(metadata=unit("B", "logits and their gradients"))
    gathered: Number = field(metadata=unit("B", "layers gathered for use, where weights are divided"))
    buffers: Number = field(metadata=unit("B", "one layer's weight gradients, and work space"))
    reserved: Number = field(metadata=unit("B", "what driver and libraries take"))
    capacity: Number = field(metadata=unit("B", "memory of a chip"))

    @property
    def allocated(self) -> Number:
        """Bytes of tensors."""
        total_bytes: Number = 0.0
        for name in PARTS[:-1]:
            total_bytes = total_bytes + getattr(self, name)
        return total_bytes

    @property
    def used(self) -> Number:
        """Bytes in use."""
        return self.allocated + self.reserved

    @property
    def fits(self) -> Array:
        """Whether it fits."""
        return np.asarray(self.used <= self.capacity)

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return bytes in use over capacity, and the parts."""
        fits = np.asarray(self.fits)
        verdict = "fits" if fits.all() else "does not fit" if not fits.any() else f"{int(fits.sum())} of {fits.size} fit"
        title = f"Memory of a chip: {_bytes(self.used)} of {_bytes(self.capacity)}, {verdict}"
        largest = sorted(PARTS, key=lambda name: -float(np.max(getattr(self, name))))[:4]
        return title, {name: _bytes(getattr(self, name)) for name in largest}

    def drawing(self) -> str:
        """Return the parts of a single chip's memory as a bar; "" for several."""
        if np.ndim(self.used):
            return ""
        return stacked({name: float(getattr(self, name)) for name in PARTS}, "B", total=float(self.capacity))

    def columns(self) -> dict[str, Any]:
        """Return a row for each point: bytes by part, in use and in all, and whether they fit."""
        names = (*PARTS, "used", "capacity")
        return broadcast({f"{name}_bytes": getattr(self, name) for name in names} | {"fits": self.fits})


def _bytes(values: Number) -> str:
    return in_words(values, lambda value: show(value, "B"))


def training_memory(
    model: Model, job: TrainingJob, system: System, engine: TrainingEngine, x: TrainingLayout, *, microbatches: Number
) -> TrainingMemory:
    """Return the memory of the fullest chip of all stages."""
    schedule = schedule_named(x.schedule)
    stem = stem_profile(model)
    layer_parameters = [parameters_per_layer(sheet, x) for sheet, _ in layer_profiles(model)]
    layer_activations, layer_peaks = zip(*(activation_bytes(sheet, job, x) for sheet, _ in layer_profiles(model)), strict=True)
    widths = [sheet.widths if job.task == "lora" else 0.0 for sheet, _ in layer_profiles(model)]
    draft = (
        [(parameters_per_layer(sheet, x), activation_bytes(sheet, job, x)[0], n) for sheet, n in draft_layer_profiles(model)]
        if job.mtp
        else []
    )
    logits = job.logit_bytes * x.micro_batch * job.seq / x.cp * stem.vocabulary / x.tp
    stream_bytes = reversible_stream_bytes(max(sheet.boundary for sheet, _ in layer_profiles(model)), job, x)
    options = []
    for stage in pipeline_stages(model, x):
        stage_parameters = chip_parameters(stage, layer_parameters, stem, x)
        stage_activations = sum((n * k for n, k in zip(stage.parts, layer_activations, strict=True)), stream_bytes)
        adapters = (
            sum((n * w for n, w in zip(stage.parts, widths, strict=True)), 0.0 * stage_parameters.dense) * job.lora_rank / x.tp
        )
        for draft_parameters, draft_activations, n in draft:
            stage_parameters = ChipParameters(
                stage_parameters.dense + stage.head * n * draft_parameters.dense,
                stage_parameters.experts + stage.head * n * draft_parameters.experts,
            )
            stage_activations = stage_activations + stage.head * n * draft_activations
        in_flight = np.where(np.asarray(x.pp) == 1, 1.0, _microbatches_in_flight(schedule, x, microbatches, stage.later))
        largest, peak_bytes = _largest_layer(layer_parameters, layer_peaks, layer_activations, stage.parts, x)
        options.append(
            _stage_memory(stage_parameters, adapters, largest, job, engine, x, stage_activations * in_flight + peak_bytes,
                    np.where(np.asarray(stage.head) > 0, logits, 0.0), copies=schedule.copies)
        )  # fmt: skip
    return _fullest_stage(options, system.chip.capacity)


def _microbatches_in_flight(schedule: Schedule, x: TrainingLayout, m: Number, later: Number) -> Number:
    """Micro-batches in flight on a stage: fewest on the last, where a schedule winds down from the first."""
    if schedule.name == "1f1b":
        return np.minimum(m, x.pp - later)
    first = np.minimum(schedule.in_flight(x.pp, m, x.virtual_stages), m)
    if schedule.name == "interleaved":
        return np.minimum(m, np.maximum(first - 2 * later / x.virtual_stages, 1.0))
    return first


def activation_bytes(sheet: LayerProfile, job: TrainingJob, x: TrainingLayout) -> tuple[Number, Number]:
    """Return the bytes that a layer keeps of one micro-batch on a chip, and those that it holds while it runs."""
    chip_rows = x.micro_batch * job.seq / x.cp / x.tp
    dtype_ratio = job.format.bytes / ACTIVATION_BYTES if job.format.bytes < ACTIVATION_BYTES else 1.0
    module_bytes: dict[str, Number] = {
        name: value * (dtype_ratio if name in NARROW_MODULES else 1.0) for name, value in sheet.module_bytes.items()
    }
    module_bytes["moe_input"] = module_bytes["moe_input"] * x.etp  # ranks that share an expert hold its rows whole
    replicated_rows: Number = 0.0 * chip_rows  # that every rank of a tensor-parallel group holds whole
    if not job.sequence_parallel:
        replicated_rows = x.micro_batch * job.seq / x.cp * (1 - 1 / x.tp)
    scores: Number = 0.0
    if job.attention == UNFUSED:  # scores, probabilities in 16 bits, and the dropout's mask
        scores = 5.0 * x.micro_batch * job.seq * job.seq * sheet.scores / (x.tp * x.cp)
    replicated_bytes = sheet.residual + module_bytes["norms"]
    peak_bytes = chip_rows * sum(module_bytes.values()) + scores + replicated_rows * replicated_bytes
    if x.recompute == "full":
        return (chip_rows + replicated_rows) * sheet.boundary * ACTIVATION_BYTES, peak_bytes
    if x.recompute == "reversible":
        return 0.0 * chip_rows, peak_bytes
    if x.recompute == ALTERNATE:
        alternate_bytes = (
            sheet.boundary * ACTIVATION_BYTES
            + module_bytes["attention"]
            + sheet.product_bytes / 2
            + (module_bytes["moe"] + module_bytes["moe_input"]) / 2
        )
        return chip_rows * alternate_bytes + replicated_rows * sheet.boundary * ACTIVATION_BYTES, peak_bytes
    recomputed = recomputed_modules(x.recompute)
    dropped = (
        set(recomputed)
        | ({"activation"} if "mlp" in recomputed else set())
        | ({"moe_act", "moe_input"} if "moe" in recomputed else set())
    )
    stored_bytes = chip_rows * sum(value for name, value in module_bytes.items() if name not in dropped)
    if "attention" in recomputed and job.attention != UNFUSED:  # its output is what the next product reads: it stays
        stored_bytes = stored_bytes + chip_rows * module_bytes["attention"]
    stored_bytes = stored_bytes + replicated_rows * (replicated_bytes if "norms" not in dropped else sheet.residual)
    return stored_bytes + (0.0 if "attention" in recomputed else scores), peak_bytes


def reversible_stream_bytes(boundary: Number, job: TrainingJob, x: TrainingLayout) -> Number:
    """Return the bytes of both streams that reversible layers keep of one micro-batch: those that each chunk puts out."""
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
    """Return the parameters of a stage's largest layer, and the bytes that it holds for a moment beyond those it keeps."""
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
    """Return the parts of the memory of a chip that holds these parameters."""
    ranks, expert_ranks = sharding_ranks(x), expert_sharding_ranks(x)
    is_sharded = {"zero1": (0, 0, 1), "zero2": (0, 1, 1), "zero3": (1, 1, 1), "none": (0, 0, 0)}[x.sharding]

    def divided(sharded: int) -> Number:
        return (
            parameters.dense / ranks + parameters.experts / expert_ranks if sharded else parameters.dense + parameters.experts
        )

    frozen = job.task == "lora"
    trained = 0.0 if frozen else 1.0
    states = job.states.master + job.states.moments
    bytes_per_weight = min(ACTIVATION_BYTES, job.format.bytes) if frozen else ACTIVATION_BYTES
    stored_weight_bytes = (
        0.0 if is_sharded[0] and job.states.master and not frozen else bytes_per_weight
    )  # FSDP gathers the master copy itself
    stage_weights = (parameters.dense + parameters.experts) * copies
    gradients = stage_weights if not is_sharded[1] else divided(1)
    if x.sharding == "zero2":  # in a pipeline, those of a chunk are whole until p micro-batches have passed it
        gradients = np.minimum(gradients + np.where(np.asarray(x.pp) > 1, stage_weights / x.virtual_stages, 0.0), stage_weights)
    layer = largest.all
    gathered: Number = 0.0 * layer
    if is_sharded[0]:  # two layers at once, or in a pipeline all of the stage, from the first micro-batch to the last
        has_pipeline = np.asarray(x.pp) > 1
        gathered_bytes = bytes_per_weight + trained * job.gradient_bytes
        gathered = np.where(
            has_pipeline,
            gathered_bytes * (parameters.dense + parameters.experts),
            (engine.prefetched * bytes_per_weight + gathered_bytes) * layer,
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


def _fullest_stage(options: list[dict[str, Number]], capacity: Number) -> TrainingMemory:
    sums = [sum(option.values(), 0.0) for option in options]
    fullest_parts = options[0]
    largest_bytes = sums[0]
    for option, total in zip(options[1:], sums[1:], strict=True):
        is_larger = np.asarray(total > largest_bytes)
        fullest_parts = {name: np.where(is_larger, option[name], fullest_parts[name]) for name in PARTS}
        largest_bytes = np.where(is_larger, total, largest_bytes)
    return TrainingMemory(**{name: np.asarray(fullest_parts[name]) * 1.0 for name in PARTS}, capacity=capacity)
