"""Board: parts of a decode step against the batch. Lecture sections 1 and 4."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from steptime.lecture.current_figures import Pair, build_pair
from steptime.models.model import Model
from steptime.physics.chip_memory import sequences_that_fit
from steptime.physics.layout import Layout
from steptime.physics.step import decode_step
from steptime.physics.uncertainty import step_and_range
from steptime.svg import PART_NAMES, PARTS, in_colours
from steptime.units import counted, in_digits, show
from steptime.web.board import Answer, Board, Figure, Shared, bar_inputs, slider
from steptime.web.page_export import command, decode_call, layout_options, python, show_step_sum
from steptime.web.page_subject import load_subject, single_stage_layout

POINTS = 65
MAX_BATCH = 65_536


class Inputs(Shared):
    """A batch and a context on a number of chips."""

    batch: int = slider(256, 1, MAX_BATCH, "batch", "sequences", "Sequences that decode at once in one replica.", log=True)
    context: int = slider(8192, 1, 4_194_304, "context", "tokens", "Tokens of context of each sequence.", log=True)
    chips: int = slider(0, 0, 1024, "chips", "chips", "Chips of the replica; 0: the scale-up domain.", is_advanced=True, step=1)


@dataclass(frozen=True, slots=True)
class Curve:
    """The step over all batches, and the figures that do not depend on the batch."""

    steps: dict[str, Any]
    layout: Layout
    pair: Pair
    room: float


@lru_cache(maxsize=256)
def step_curve(shared: Shared, context: int, chips: int) -> Curve:
    """Return the step over all batches at a context.

    Args:
        shared: Inputs of the bar.
        context: Tokens of each sequence.
        chips: Chips of the replica; 0: the scale-up domain.

    Returns:
        Step by batch, layout, blackboard numbers, and sequences that fit.
    """
    subject = load_subject(shared)
    model, system, engine = subject.model, subject.system, subject.engine
    layout, batches = single_stage_layout(shared, chips), np.geomspace(1, MAX_BATCH, POINTS)
    decode_steps = decode_step(model, system, batch=batches, context=context, layout=layout, engine=engine)
    room = float(sequences_that_fit(model, system, context=context, layout=layout, engine=engine))
    bounds = {"total": decode_steps.total, "lower": decode_steps.lower, "upper": decode_steps.upper}
    steps = {"batch": batches, **in_colours(decode_steps.resources, np.shape(batches)), **bounds}
    return Curve(steps, layout, build_pair(model, system, context=context), max(room, 0.0))


def answer(inputs: Inputs) -> Answer:
    """Return the step over all batches, and at the chosen batch.

    Args:
        inputs: Inputs of the board.

    Returns:
        Tables, figures and sentence.
    """
    subject = load_subject(inputs)
    curve = step_curve(bar_inputs(inputs), inputs.context, inputs.chips)
    layout, pair, room = curve.layout, curve.pair, curve.room
    arguments: dict[str, Any] = {"batch": inputs.batch, "context": inputs.context, "layout": layout, "engine": subject.engine}
    step, limits = step_and_range(subject.model, subject.system, **arguments)
    total = float(step.total)
    low, high = (float(np.ravel(end)[0]) for end in limits) if limits else (total, total)
    parts = {name: float(seconds) for name, seconds in in_colours(step.resources).items()}
    best, fits = pair.balance * pair.sparsity, inputs.batch <= room
    options = {"--batch": inputs.batch, "--context": inputs.context, **layout_options(layout)}
    return Answer(
        tables={"steps": curve.steps},
        marks={
            "batch": inputs.batch, "total": total, "low": low, "high": high, "room": room if np.isfinite(room) else None,
            "best_batch": best if best <= MAX_BATCH else None, "floor": pair.floor,
        },
        sentence=_sentence(inputs, total, parts, fits=fits),
        figures=(
            Figure(name="step", value=total, unit="s", words="Time of one decode step of the full model."),
            Figure(name="90 % low", value=low, unit="s"),
            Figure(name="90 % high", value=high, unit="s"),
            Figure(name="speed of each user", value=1 / total, unit="tok/s"),
            Figure(name="output of all users", value=inputs.batch / total, unit="tok/s"),
            Figure(name="B*", value=best, unit="sequences", words="Balance of the machine times the model's sparsity."),
            Figure(name="floor", value=pair.floor, unit="s", words="Blackboard: the whole domain reads every weight once."),
            Figure(name="memory is full at", value=room, unit="sequences"),
        ),
        formula=(
            show_step_sum(parts, total),
            f"B* = R x N_tot/N_act = {pair.balance:,.0f} x {pair.sparsity:.3g} = {best:,.0f} sequences",
            f"floor = b_w N_tot / W = {show(pair.bytes_of_weight * pair.total, 'B')} / {show(pair.bandwidth, 'B/s')} "
            f"= {show(pair.floor, 's')} on {pair.chips} chips",
        ),
        command=command("step", inputs, options),
        python=python(decode_call(inputs, layout, batch=inputs.batch, context=inputs.context)),
        notes=tuple(_notes(inputs, subject.model, pair, int(layout.chips), total, fits=fits)),
    )  # fmt: skip


# Effect of a larger batch, by the largest part of the step.
SHARED: Final = {
    "weights": "The weights are read once for all sequences: a larger batch shares them.",
    "overhead": "The engine's overhead is the largest part and occurs once per step: a larger batch shares it.",
    "network": "Communication between chips is the largest part.",
    "kv": "Reading KV caches is the largest part: each sequence has its own, so a larger batch helps little.",
    "compute": "Arithmetic is the largest part: a larger batch takes longer nearly in proportion.",
}


def _sentence(inputs: Inputs, total: float, parts: dict[str, float], *, fits: bool) -> str:
    # The largest part decides the sentence; parts below 2 % are not listed.
    longest = max(PARTS, key=lambda name: parts[name])
    other_parts = [
        name for name in sorted(PARTS, key=lambda name: -parts[name]) if name != longest and parts[name] > 0.02 * total
    ]
    listed = ", ".join(f"{PART_NAMES[name]} {show(parts[name], 's')}" for name in (longest, *other_parts))
    words = (
        f"A step of {counted(inputs.batch, 'sequence')} takes {show(total, 's')}, or {in_digits(1 / total)} tok/s per user: "
        f"{listed}. {SHARED[longest]}"
    )
    return words if fits else words + " They do not fit the memory of these chips."


def _notes(inputs: Inputs, model: Model, pair: Pair, chips: int, total: float, *, fits: bool) -> Iterator[str]:
    if not fits:
        yield f"the weights and {counted(inputs.batch, 'cache')} do not fit these chips"
    if chips != pair.chips:
        yield f"B* and the floor are for the {counted(pair.chips, 'chip')} of the scale-up domain, the curves for {chips}"
    elif total < pair.floor:
        yield "the blackboard's floor reads every weight; a small batch reads only its experts and few rows of the embedding"
    if inputs.context > model.max_context:
        yield f"a context of {inputs.context:,} tokens exceeds the {model.max_context:,.0f} of the model"


BOARD = Board(
    name="step",
    title="Why is a token not faster?",
    order=10,
    section=1,
    inputs=Inputs,
    answer=answer,
    spoken={"model": "deepseek-ai/DeepSeek-V3", "system": "gb200-nvl72", "batch": 2000, "context": 1, "engine": "ideal"},
    today={"model": "deepseek-ai/DeepSeek-V3", "system": "gb300-nvl72", "batch": 1024, "context": 8192},
)
