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
from steptime.training.data_parallel import Held, copies_sharing, expert_copies_sharing
from steptime.training.layer_profile import WIDE, Sheet, draft_sheets, sheets, stem_of
from steptime.training.layer_time import ALTERNATE, modules_of
from steptime.training.schedules.schedule import Schedule, schedule_named
from steptime.training.stage_balance import stages_of
from steptime.training.training_job import UNFUSED, TrainingJob
from steptime.training.training_layout import TrainingLayout
from steptime.training.training_stack import TrainingEngine
from steptime.training.training_step import held_by_sheet, held_on
from steptime.units import show

WORK_SPACE = 0.2e9  # bytes of libraries inside the allocator
NARROWED = (
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
        found: Number = 0.0
        for name in PARTS[:-1]:
            found = found + getattr(self, name)
        return found

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
        return stacked({name: float(getattr(self, name)) for name in PARTS}, "B", whole=float(self.capacity))

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
    stem = stem_of(model)
    held = [held_by_sheet(sheet, x) for sheet, _ in sheets(model)]
    kept, whole = zip(*(kept_bytes(sheet, job, x) for sheet, _ in sheets(model)), strict=True)
    widths = [sheet.widths if job.task == "lora" else 0.0 for sheet, _ in sheets(model)]
    draft = [(held_by_sheet(sheet, x), kept_bytes(sheet, job, x)[0], n) for sheet, n in draft_sheets(model)] if job.mtp else []
    logits = job.logit_bytes * x.micro_batch * job.seq / x.cp * stem.vocabulary / x.tp
    streams = streams_bytes(max(sheet.boundary for sheet, _ in sheets(model)), job, x)
    options = []
    for stage in stages_of(model, x):
        own = held_on(stage, held, stem, x)
        acts = sum((n * k for n, k in zip(stage.parts, kept, strict=True)), streams)
        adapters = sum((n * w for n, w in zip(stage.parts, widths, strict=True)), 0.0 * own.dense) * job.lora_rank / x.tp
        for each, keeps, n in draft:
            own = Held(own.dense + stage.head * n * each.dense, own.experts + stage.head * n * each.experts)
            acts = acts + stage.head * n * keeps
        in_flight = np.where(np.asarray(x.pp) == 1, 1.0, _flight(schedule, x, microbatches, stage.later))
        largest, moment = _largest(held, whole, kept, stage.parts, x)
        options.append(
            _option(own, adapters, largest, job, engine, x, acts * in_flight + moment,
                    np.where(np.asarray(stage.head) > 0, logits, 0.0), copies=schedule.copies)
        )  # fmt: skip
    return _fullest(options, system.chip.capacity)


def _flight(schedule: Schedule, x: TrainingLayout, m: Number, later: Number) -> Number:
    """Micro-batches in flight on a stage: fewest on the last, where a schedule winds down from the first."""
    if schedule.name == "1f1b":
        return np.minimum(m, x.pp - later)
    first = np.minimum(schedule.in_flight(x.pp, m, x.virtual_stages), m)
    if schedule.name == "interleaved":
        return np.minimum(m, np.maximum(first - 2 * later / x.virtual_stages, 1.0))
    return first


def kept_bytes(sheet: Sheet, job: TrainingJob, x: TrainingLayout) -> tuple[Number, Number]:
    """Return the bytes that a layer keeps of one micro-batch on a chip, and those that it holds while it runs."""
    own = x.micro_batch * job.seq / x.cp / x.tp
    narrow = job.format.bytes / WIDE if job.format.bytes < WIDE else 1.0
    kept: dict[str, Number] = {name: value * (narrow if name in NARROWED else 1.0) for name, value in sheet.kept.items()}
    kept["moe_input"] = kept["moe_input"] * x.etp  # ranks that share an expert hold its rows whole
    apart: Number = 0.0 * own  # that every rank of a tensor-parallel group holds whole
    if not job.sequence_parallel:
        apart = x.micro_batch * job.seq / x.cp * (1 - 1 / x.tp)
    scores: Number = 0.0
    if job.attention == UNFUSED:  # scores, probabilities in 16 bits, and the dropout's mask
        scores = 5.0 * x.micro_batch * job.seq * job.seq * sheet.scores / (x.tp * x.cp)
    between = sheet.residual + kept["norms"]
    whole = own * sum(kept.values()) + scores + apart * between
    if x.recompute == "full":
        return (own + apart) * sheet.boundary * WIDE, whole
    if x.recompute == "reversible":
        return 0.0 * own, whole
    if x.recompute == ALTERNATE:
        half = sheet.boundary * WIDE + kept["attention"] + sheet.product_bytes / 2 + (kept["moe"] + kept["moe_input"]) / 2
        return own * half + apart * sheet.boundary * WIDE, whole
    again = modules_of(x.recompute)
    dropped = (
        set(again) | ({"activation"} if "mlp" in again else set()) | ({"moe_act", "moe_input"} if "moe" in again else set())
    )
    found = own * sum(value for name, value in kept.items() if name not in dropped)
    if "attention" in again and job.attention != UNFUSED:  # its output is what the next product reads: it stays
        found = found + own * kept["attention"]
    found = found + apart * (between if "norms" not in dropped else sheet.residual)
    return found + (0.0 if "attention" in again else scores), whole


def streams_bytes(boundary: Number, job: TrainingJob, x: TrainingLayout) -> Number:
    """Return the bytes of both streams that reversible layers keep of one micro-batch: those that each chunk puts out."""
    if x.recompute != "reversible":
        return 0.0
    own = x.micro_batch * job.seq / x.cp / (x.tp if job.sequence_parallel else 1.0)
    return 2 * boundary * WIDE * x.virtual_stages * own


def _largest(
    held: list[Held], whole: tuple[Number, ...], kept: tuple[Number, ...], parts: tuple[Number, ...], x: TrainingLayout
) -> tuple[Held, Number]:
    """Return the parameters of a stage's largest layer, and the bytes that it holds for a moment beyond those it keeps."""
    dense: Number = 0.0
    experts: Number = 0.0
    moment: Number = 0.0
    for each, all_, some_, n in zip(held, whole, kept, parts, strict=True):
        here = np.asarray(n) > 0
        dense, experts = np.maximum(dense, here * each.dense), np.maximum(experts, here * each.experts)
        moment = np.maximum(moment, here * (all_ - some_))
    return Held(dense, experts), moment if x.recompute != "none" else 0.0 * moment


def _option(
    held: Held, adapters: Number, largest: Held, job: TrainingJob, engine: TrainingEngine, x: TrainingLayout,
    activations: Number, logits: Number, *, copies: int,
) -> dict[str, Number]:  # fmt: skip
    """Return the parts of the memory of a chip that holds these parameters."""
    ranks, expert_ranks = copies_sharing(x), expert_copies_sharing(x)
    each = {"zero1": (0, 0, 1), "zero2": (0, 1, 1), "zero3": (1, 1, 1), "none": (0, 0, 0)}[x.sharding]

    def divided(by: int) -> Number:
        return held.dense / ranks + held.experts / expert_ranks if by else held.dense + held.experts

    frozen = job.task == "lora"
    trained = 0.0 if frozen else 1.0
    states = job.states.master + job.states.moments
    weight = min(WIDE, job.format.bytes) if frozen else WIDE
    own = 0.0 if each[0] and job.states.master and not frozen else weight  # FSDP gathers the master copy itself
    whole = (held.dense + held.experts) * copies
    gradients = whole if not each[1] else divided(1)
    if x.sharding == "zero2":  # in a pipeline, those of a chunk are whole until p micro-batches have passed it
        gradients = np.minimum(gradients + np.where(np.asarray(x.pp) > 1, whole / x.virtual_stages, 0.0), whole)
    layer = largest.all
    gathered: Number = 0.0 * layer
    if each[0]:  # two layers at once, or in a pipeline all of the stage, from the first micro-batch to the last
        piped = np.asarray(x.pp) > 1
        use = weight + trained * job.gradient_bytes
        gathered = np.where(piped, use * (held.dense + held.experts), (engine.prefetched * weight + use) * layer)
    return {
        "weights": own * divided(each[0]) * copies,
        "gradients": job.gradient_bytes * (trained * gradients + adapters),
        "optimizer": trained * states * divided(each[2]) + (states + weight) * adapters,
        "activations": activations,
        "logits": logits,
        "gathered": gathered,
        "buffers": trained * WIDE * largest.dense + WORK_SPACE,
        "reserved": engine.reserved_bytes + 0.0 * layer,
    }


def _fullest(options: list[dict[str, Number]], capacity: Number) -> TrainingMemory:
    sums = [sum(option.values(), 0.0) for option in options]
    best = options[0]
    most = sums[0]
    for option, total in zip(options[1:], sums[1:], strict=True):
        more = np.asarray(total > most)
        best = {name: np.where(more, option[name], best[name]) for name in PARTS}
        most = np.where(more, total, most)
    return TrainingMemory(**{name: np.asarray(best[name]) * 1.0 for name in PARTS}, capacity=capacity)
