"""Board: parts of a decode step against the batch. Lecture sections 1 and 4."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from steptime.lecture.current_figures import Pair, build_pair
from steptime.physics.uncertainty import explained_step_range
from steptime.svg import PART_NAMES, PARTS, in_colours
from steptime.units import counted, in_digits, show
from steptime.web.board import Answer, Board, Figure, Shared, question_input, slider
from steptime.web.page_subject import Replica, decode_call, load_replica, show_step_sum, step_command

MAX_BATCH: Final = 65_536
BATCHES: Final = np.geomspace(1, MAX_BATCH, 65)


class Inputs(Shared):
    """A batch and a context on a number of chips."""

    batch: int = question_input("step.batch", 256, high=MAX_BATCH, log=True)
    context: int = question_input("step.context", 8192, high=4_194_304, log=True)
    chips: int = slider(0, 0, 1024, "chips", "chips", "Chips of the replica; 0: the scale-up domain.", is_advanced=True, step=1)


def answer(inputs: Inputs) -> Answer:
    """Return the step over all batches, and at the chosen batch.

    Args:
        inputs: Inputs of the board.

    Returns:
        Tables, figures and sentence.
    """
    replica = load_replica(inputs, inputs.chips)
    steps, room = replica.step(BATCHES, inputs.context), float(replica.room(inputs.context))
    pair = build_pair(replica.model, replica.system, context=inputs.context)
    arguments: dict[str, Any] = {"batch": inputs.batch, "context": inputs.context, "layout": replica.layout}
    step, limits, _ = explained_step_range(replica.model, replica.system, **arguments, engine=replica.engine)
    total = float(step.total)
    low, high = (float(np.ravel(end)[0]) for end in limits) if limits else (total, total)
    parts = {name: float(seconds) for name, seconds in in_colours(step.resources).items()}
    best, fits = pair.balance * pair.sparsity, inputs.batch <= room
    bounds = {"total": steps.total, "lower": steps.lower, "upper": steps.upper}
    return Answer(
        tables={"steps": {"batch": BATCHES, **in_colours(steps.resources, BATCHES.shape), **bounds}},
        marks={
            "batch": inputs.batch, "total": total, "low": low, "high": high, "room": room,
            "best_batch": best if best <= MAX_BATCH else None, "floor": pair.floor,
        },
        sentence=_sentence(inputs, total, parts, fits=fits),
        figures=(
            Figure("step", total, "s", "Time of one decode step of the full model."),
            Figure("90 % low", low, "s"),
            Figure("90 % high", high, "s"),
            Figure("speed of each user", 1 / total, "tok/s"),
            Figure("output of all users", inputs.batch / total, "tok/s"),
            Figure("B*", best, "sequences", "Balance of the machine times the model's sparsity."),
            Figure("floor", pair.floor, "s", "Blackboard: the whole domain reads every weight once."),
            Figure("memory is full at", room, "sequences"),
        ),
        formula=(
            show_step_sum(parts, total),
            f"B* = R x N_tot/N_act = {pair.balance:,.0f} x {pair.sparsity:.3g} = {best:,.0f} sequences",
            f"floor = b_w N_tot / W = {show(pair.bytes_of_weight * pair.total, 'B')} / {show(pair.bandwidth, 'B/s')} "
            f"= {show(pair.floor, 's')} on {pair.chips} chips",
        ),
        command=step_command(inputs, replica),
        python=decode_call(inputs, replica),
        notes=tuple(_notes(inputs, replica, pair, total, fits=fits)),
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


def _notes(inputs: Inputs, replica: Replica, pair: Pair, total: float, *, fits: bool) -> Iterator[str]:
    if not fits:
        yield f"the weights and {counted(inputs.batch, 'cache')} do not fit these chips"
    if replica.chips != pair.chips:
        domain = counted(pair.chips, "chip")
        yield f"B* and the floor are for the {domain} of the scale-up domain, the curves for {replica.chips}"
    elif total < pair.floor:
        yield "the blackboard's floor reads every weight; a small batch reads only its experts and few rows of the embedding"
    if inputs.context > replica.model.max_context:
        yield f"a context of {inputs.context:,} tokens exceeds the {replica.model.max_context:,.0f} of the model"


BOARD = Board(
    name="step", title="Why is a token not faster?", order=10, section=1, inputs=Inputs, answer=answer,
    spoken={"model": "deepseek-ai/DeepSeek-V3", "system": "gb200-nvl72", "batch": 2000, "context": 1, "engine": "ideal"},
    today={"model": "deepseek-ai/DeepSeek-V3", "system": "gb300-nvl72", "batch": 1024, "context": 8192},
)  # fmt: skip
