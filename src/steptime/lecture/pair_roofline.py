"""The question `roofline`: the blackboard's answers for a model and a system, by closed form and by the full model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np

from steptime.blackboard.decode_latency import balance, drain_seconds, mean_wait, multiplies, worst_wait
from steptime.blackboard.expert_activation import across_racks, pipeline_condition, weights_touched
from steptime.blackboard.token_cost import cost_per_token
from steptime.blackboard.training_compute import optimal_batch
from steptime.catalog.hardware_loading import SystemLike
from steptime.errors import InputError, RangeError
from steptime.hardware.system import System
from steptime.lecture.current_figures import CONTEXT, Pair, build_pair
from steptime.models.model import Model, with_formats
from steptime.models.model_loading import ModelLike
from steptime.models.quantization import release_format
from steptime.number_checks import Array, whole_number
from steptime.physics.chip_memory import memory_per_chip
from steptime.physics.compute_dtype import as_served
from steptime.physics.engine import Engine, engine_for, model_and_system
from steptime.physics.layout_space import legal
from steptime.physics.step import decode_step
from steptime.questions.declaration import Answer as QuestionAnswer
from steptime.questions.declaration import bind, count, inputs_from, question_of_result
from steptime.questions.subject import PricedSubject, read_subject
from steptime.result_base import Tabular, columns_by_key, unit
from steptime.units import MILLION, percent, show

# Balance R of the lecture, section 3.
SPOKEN_BALANCE: Final = 300.0
# Speeds over the cheapest one whose price is shown.
SPEEDS: Final = (1.5, 2.0, 2.5)
# Bytes of a weight; scales are left out, as on the blackboard.
STORED: Final = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5}
# Smallest share of attention in the arithmetic that gets a note.
NOTED: Final = 0.1


@dataclass(frozen=True, slots=True)
class Answer:
    """One question of the blackboard with its answers; a missing answer is NaN."""

    name: str = field(metadata=unit("", "quantity"))
    section: int = field(metadata=unit("", "section of the lecture"))
    formula: str = field(metadata=unit("", "closed form"))
    spoken: float = field(default=math.nan, metadata=unit("", "number of the lecture; null: no number", key="spoken"))
    closed: float = field(
        default=math.nan, metadata=unit("", "closed form for this model and system; null: no value", key="closed_form")
    )
    full: float = field(default=math.nan, metadata=unit("", "result of the full model; null: no value", key="full_model"))
    unit: str = field(default="", metadata=unit("", "unit of the numbers"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Roofline(Tabular):
    """The lecture's blackboard for one model on one scale-up domain."""

    SCHEMA: ClassVar[str] = "steptime.roofline/2"

    model: str = field(metadata=unit("", "name of the model"))
    system: str = field(metadata=unit("", "name of the system"))
    engine: str = field(metadata=unit("", "engine of the full model"))
    chips: int = field(metadata=unit("", "chips of the scale-up domain"))
    context: int = field(metadata=unit("tokens", "context of each sequence"))
    active: float = field(metadata=unit("", "active parameters", key="active_parameters"))
    total: float = field(metadata=unit("", "total parameters", key="total_parameters"))
    kv_bytes: float = field(metadata=unit("B", "KV cache read per token of context", key="kv_bytes_per_token"))
    kv_format: str = field(metadata=unit("", "number format of the KV cache"))
    answers: tuple[Answer, ...] = field(metadata=unit("", "questions of the blackboard with their answers"))
    notes: tuple[str, ...] = field(metadata=unit("", "differences between closed forms and full model"))

    def __getitem__(self, name: str) -> Answer:
        """Return the answer of a name; raise InputError for an unknown name."""
        match = next((answer for answer in self.answers if answer.name == name), None)
        if match is None:
            raise InputError(f"the roofline has no answer {name!r}; known: {', '.join(answer.name for answer in self.answers)}")
        return match

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the subject and the main answers.

        Returns:
            Title, and figures by name.
        """
        names = ("B*, cache left out", "L*, the knee", "floor of a step")
        return f"Roofline of {self.model} on {self.chips} chips of {self.system}", {
            name: show(self[name].closed, self[name].unit) for name in names
        }

    def columns(self) -> dict[str, Any]:
        """Return one row per question.

        Returns:
            Columns by name, each with one value per question.
        """
        return columns_by_key(Answer, self.answers)


@dataclass(frozen=True)
class Front:
    """Points of the full model that fit the memory: step time, cost, and batch of the whole domain."""

    # Seconds of a step.
    seconds: Array
    # Chip-seconds per token.
    chip_seconds: Array
    # Sequences on all chips of the domain, over all replicas, as in the closed forms.
    batch: Array

    def cheapest(self, speed: float = 0.0) -> int:
        """Return the cheapest point at a minimum speed.

        Args:
            speed: Minimum speed of each sequence [tok/s].

        Returns:
            Index of the point; -1 if no point is fast enough.
        """
        cost = np.where(self.seconds * speed <= 1 + 1e-9, self.chip_seconds, np.inf)
        best = int(np.argmin(cost)) if cost.size else -1
        return best if best >= 0 and np.isfinite(cost[best]) else -1


def roofline(
    model: ModelLike,
    system: SystemLike,
    *,
    context: int = CONTEXT,
    weights: str | None = None,
    engine: Engine | str | None = None,
) -> Roofline:
    """Answer the blackboard's questions for a model on one scale-up domain.

    Args:
        model: Model, or name of the catalogue.
        system: System, or name of the catalogue.
        context: Tokens of each sequence.
        weights: Number format of the weights; None: the config's format.
        engine: Engine of the full model; None: the system's default engine.

    Returns:
        One answer per question: the lecture's number, the closed form and the full model.

    Raises:
        RangeError: The weights and one sequence do not fit the domain, or the context is too long for the model.
    """
    described, machine = model_and_system(model, system, engine)
    used = engine_for(machine, engine)
    if weights is not None:
        form = release_format(described.name, weights)
        described = with_formats(described, weights=form, experts=form)
    context = whole_number("the context", context, unit="token")
    if context > described.max_context:
        raise RangeError(f"{described.name} has a context of at most {described.max_context:,.0f} tokens, not {context:,}")
    # The engine stores the cache as in a step or a plan.
    described = as_served(described, machine, used)
    pair = build_pair(described, machine, context=context)
    if pair.room < 1:
        raise RangeError(
            f"{described.name} and one sequence of {context:,} tokens need more than the {show(pair.capacity, 'B')} of the "
            f"{pair.chips} chips of a domain of {machine.name}; use a larger domain, smaller weights or a shorter context"
        )
    # The full model runs once; all answers read its points.
    front = full_model_front(described, machine, used, pair)
    rent = float(np.asarray(machine.rent.typical))
    answers = (*_balance(machine, pair), *_times(machine, pair, front), *_money(pair, rent, front), *_racks(machine, pair))
    return Roofline(
        model=described.name, system=machine.name, engine=used.name, chips=pair.chips, context=context, active=pair.active,
        total=pair.total, kv_bytes=pair.kv_bytes, kv_format=described.kv_format, answers=answers,
        notes=tuple(_notes(pair, front, rent)),
    )  # fmt: skip


def _balance(system: System, pair: Pair) -> Iterator[Answer]:
    """Yield R by number format, the sparsity, and the balanced batches."""
    chip, formula = system.chip, "R = F b_w / W"
    for name, stored in STORED.items():
        if name in chip.peak:
            ratio = balance(multiplies(float(chip.peak[name])), stored, float(chip.hbm.bandwidth))
            yield Answer(f"R in {name}", 3, formula, SPOKEN_BALANCE, float(ratio))
    yield Answer("R as stored", 3, formula, SPOKEN_BALANCE, pair.balance)
    yield Answer("sparsity", 3, "sigma = N_tot / N_act", closed=pair.sparsity)
    best = float(optimal_batch(pair.balance, pair.sparsity))
    yield Answer("B*, cache left out", 3, "B* = R sigma", SPOKEN_BALANCE * pair.sparsity, best)
    yield Answer("B* at this context", 3, "R sigma / (1 - L/L*)", closed=pair.best_batch)


def _times(system: System, pair: Pair, front: Front) -> Iterator[Answer]:
    hbm = system.chip.hbm
    drain = float(drain_seconds(float(hbm.capacity), float(hbm.bandwidth)))
    fastest = float(np.min(front.seconds)) if front.seconds.size else math.nan
    yield Answer("L*, the knee", 13, "b_w N_act / (R kappa)", 200e3, pair.knee, unit="tokens")
    yield Answer("floor of a step", 4, "b_w N_tot / W", closed=pair.floor, full=fastest, unit="s")
    yield Answer("drain of the memory", 4, "C / W", 0.020, drain, unit="s")
    yield Answer("mean wait of trains", 4, "1.5 drains", 0.030, float(mean_wait(drain)), unit="s")
    yield Answer("worst wait of trains", 4, "2 drains", 0.040, float(worst_wait(drain)), unit="s")


def price_of_speed(pair: Pair, batch: float, speed: float) -> float:
    """Return the price of a higher speed in the closed form, as a ratio. Section 5.

    Both points are memory-bound: a step takes t_w + u B.

    Args:
        pair: Model on one scale-up domain.
        batch: Sequences at the base speed.
        speed: Speed over the base speed.

    Returns:
        Cost of a token over its cost at the base speed; infinite if the weights alone take too long.
    """
    base = float(pair.step_seconds(batch))
    sequence_seconds = pair.context * pair.kv_bytes / pair.bandwidth
    cache_seconds = base / speed - pair.floor
    if cache_seconds <= 0 or sequence_seconds <= 0:
        return math.inf
    return (base / speed) / (cache_seconds / sequence_seconds) / (base / batch)


def _money(pair: Pair, rent: float, front: Front) -> Iterator[Answer]:
    """Yield costs, prices of speed and the greatest speed.

    The base of the closed form is B*, or the largest batch that fits the memory if that is smaller. The base of the
    full model is its cheapest point.
    """
    base = min(pair.best_batch, pair.room)
    cheapest, is_single = front.cheapest(), front.batch == 1
    dear = float(np.min(front.chip_seconds[is_single])) * rent * MILLION if is_single.any() else math.nan
    yield Answer("batch that is cheapest", 2, "min(B*, largest that fits)", closed=base, full=_figure_at(front.batch, cheapest))
    usual = _figure_at(front.chip_seconds, cheapest)
    for name, batch, full in (("cost at that batch", base, usual * rent * MILLION), ("cost at batch 1", 1.0, dear)):
        cost = float(cost_per_token(pair.step_seconds(batch), batch, pair.chips, rent)) * MILLION
        yield Answer(name, 2, "rent t / B", closed=cost, full=full, unit="USD/Mtok")
    seconds = _figure_at(front.seconds, cheapest)
    for speed in SPEEDS:
        faster = front.cheapest(speed / seconds) if cheapest >= 0 else -1
        price, full = price_of_speed(pair, base, speed), _figure_at(front.chip_seconds, faster) / usual
        yield Answer(f"price of {speed:g}x the speed", 5, "(B/s) / B', t_w + u B' = t/s", closed=price, full=full, unit="x")
    greatest = float(pair.step_seconds(base)) / pair.floor
    fastest = seconds / float(np.min(front.seconds)) if cheapest >= 0 else math.nan
    yield Answer("greatest speed", 5, "t / t_w", closed=greatest, full=fastest, unit="x")


def _figure_at(values: Array, place: int) -> float:
    return float(values[place]) if place >= 0 else math.nan


def _racks(system: System, pair: Pair) -> Iterator[Answer]:
    """Yield the cost of leaving the domain; nothing for a server without a network."""
    if system.is_box:
        return
    ratio = float(system.scale_up.link.bandwidth) / float(system.scale_out.link.bandwidth)
    yield Answer("links inside over outside", 8, "beta", 8.0, ratio, unit="x")
    if pair.experts > 1:
        two, hidden = float(across_racks(2, ratio)), float(pipeline_condition(pair.active_experts, 1, ratio))
        yield Answer("experts over two racks", 7, "max(1/2, beta/2)", 4.0, two, unit="x")
        yield Answer("pipeline hidden from 1", 9, "2 k l / beta", 2.0, hidden)


def full_model_front(model: Model, system: System, engine: Engine, pair: Pair) -> Front:
    """Return the points of the full model.

    One pipeline stage; experts are either fully spread or fully copied; batches double.

    Args:
        model: The model.
        system: The system.
        engine: Engine of the full model.
        pair: Model on one scale-up domain, with the context.

    Returns:
        Points that fit the memory.
    """
    layout_points: list[tuple[Array, Array, Array]] = []
    for layout in legal(model, system, pair.chips, microbatches=(1,), engine=engine):
        size = int(layout.tp * layout.dp)
        # Replicas of a power of two, or of the whole domain, are enough for a front.
        whole_domain = size == pair.chips or not size & (size - 1)
        if layout.pp > 1 or layout.cp > 1 or layout.ep not in (1, size) or not whole_domain:
            continue
        batch = layout.dp * 2 ** np.arange(0, 15)
        fits = np.asarray(memory_per_chip(model, system, batch=batch, context=pair.context, layout=layout, engine=engine).fits)
        # Only points that fit the memory enter the front.
        if not fits.any():
            continue
        batch = batch[np.broadcast_to(fits, batch.shape)]
        step = decode_step(model, system, batch=batch, context=pair.context, layout=layout, engine=engine)
        seconds = np.broadcast_to(step.total, batch.shape)
        layout_points.append((seconds, size * seconds / batch, batch * (pair.chips / size)))
    parts = zip(*layout_points, strict=True) if layout_points else [[np.zeros(0)]] * 3
    return Front(*(np.concatenate(arrays) for arrays in parts))


def _notes(pair: Pair, front: Front, rent: float) -> Iterator[str]:
    """Yield the differences between the closed forms and the full model."""
    if pair.attention_ratio > NOTED:
        knee = pair.knee_with_attention
        effect = "it takes longer than reading the cache, so L* does not exist"
        if not math.isinf(knee):
            effect = f"with it, L* is {float(f'{knee:.3g}'):,.0f} tokens"
        ratio = f"{pair.attention_ratio:.2g} times that of the weights here"
        yield f"the closed forms ignore the arithmetic of attention: {ratio}; {effect}"
    if pair.experts > 1:
        touched = weights_touched(1, pair.active, pair.total, experts=pair.experts, active_experts=pair.active_experts)
        yield (
            f"a batch of one reads only {percent(float(touched) / pair.total, 1)} of the weights: the closed forms of the "
            "shortest step and of batch 1 are too high"
        )
    if math.isinf(pair.best_batch):
        yield "above L*, no batch is compute-bound (B*: none): the largest batch that fits is the cheapest"
    elif pair.room < pair.best_batch:
        yield f"the memory fits {pair.room:,.0f} sequences of this context, fewer than B*"
    if not front.seconds.size:
        yield "the full model has no layout of one domain whose memory fits the model and one sequence"
    else:
        yield "the full model adds communication, overheads, lost efficiency and memory; its batches double"
        if not (front.batch == 1).any():
            yield f"no layout of the full model runs one sequence on all {pair.chips} chips: its cost at batch 1 is missing"
    if math.isnan(rent):
        yield "the rent of this system is not known: costs are missing, prices of speed are shown"


@dataclass(frozen=True, kw_only=True)
class RooflineInputs(PricedSubject):
    """A model on one scale-up domain of a system."""

    context: Any = count(CONTEXT, "context of each sequence in tokens (k is 1,000)", unit="tokens", group="Workload")


def solve(values: Mapping[str, Any]) -> Roofline:
    """Return the blackboard's answers for a model on a system.

    Args:
        values: Values of `RooflineInputs` by name, and figures of the machine by path.

    Returns:
        Roofline with one answer per question.
    """
    inputs = bind(RooflineInputs, values, "roofline")
    model, system, engine = read_subject(values)
    return roofline(model, system, context=inputs.context, engine=engine)


ROOFLINE = question_of_result(
    "roofline",
    "the lecture's numbers for a model on one scale-up domain",
    inputs=inputs_from(RooflineInputs),
    solve=solve,
    answers={
        "active_parameters": QuestionAnswer(meaning="active parameters", source="active"),
        "total_parameters": QuestionAnswer(meaning="total parameters", source="total"),
        "kv_bytes_per_token": QuestionAnswer(meaning="KV cache read per token of context", unit="B", source="kv_bytes"),
        "chips": QuestionAnswer(meaning="chips of the scale-up domain", unit="chips"),
    },
    figures=True,
    seconds=0.05,
)
