"""Board: step time and price against the context. Lecture sections 13 and 16."""

from __future__ import annotations

from typing import Final

import numpy as np

from steptime.blackboard.token_cost import cost_per_token, kv_bytes_from_tier
from steptime.lecture.current_figures import build_pair
from steptime.number_checks import Array
from steptime.svg import PARTS, in_colours
from steptime.units import MILLION, percent, show
from steptime.web.board import Answer, Board, Figure, Shared, question_input, slider
from steptime.web.page_subject import Replica, decode_call, load_replica, show_step_sum, step_command

MIN_CONTEXT, MAX_CONTEXT, POINTS = 64, 4_194_304, 65
# Context above which prices are higher [tokens], lecture section 13.
SPOKEN: Final = 200_000
# Points of each refinement of the longest context that fits.
FINER: Final = 257
# Round seconds of an axis that shows seconds and USD.
ROUND: Final = 10.0 ** np.arange(-7, 4)


class Inputs(Shared):
    """A context at a batch on some chips."""

    context: int = question_input("step.context", 8192, MIN_CONTEXT, MAX_CONTEXT, log=True)
    batch: int = question_input("step.batch", 256, high=65_536, log=True)
    chips: int = slider(0, 0, 1024, "chips", "chips", "Chips of the replica; 0: the scale-up domain.", is_advanced=True, step=1)


def answer(inputs: Inputs) -> Answer:
    """Return the step over all contexts, and at the chosen context.

    Args:
        inputs: Inputs of the board.

    Returns:
        Tables, figures and sentence.
    """
    replica = load_replica(inputs, inputs.chips)
    contexts = np.unique(np.append(np.geomspace(MIN_CONTEXT, MAX_CONTEXT, POINTS), inputs.context))
    steps = replica.step(inputs.batch, contexts)
    total, parts = np.asarray(steps.total), in_colours(steps.resources, np.shape(contexts))
    usd = np.asarray(cost_per_token(total, inputs.batch, replica.chips, replica.rent)) * MILLION
    index = int(np.searchsorted(contexts, inputs.context))
    chosen_parts = {name: float(seconds[index]) for name, seconds in parts.items()}
    # The first context is short enough to stand for "no context".
    step_seconds, times = float(total[index]), float(total[index] / total[0])
    twice, wall = _first(contexts, total / total[0], 2.0), _wall(inputs, replica, contexts)
    grown = {name: chosen_parts[name] - float(parts[name][0]) for name in PARTS}
    model, pair = replica.model, build_pair(replica.model, replica.system, context=inputs.context)
    spoken = float(kv_bytes_from_tier(pair.active, SPOKEN, pair.balance, pair.bytes_of_weight))
    return Answer(
        tables={
            "steps": {"context": contexts, **parts, "total": total, "lower": steps.lower, "upper": steps.upper, "usd": usd},
            "prices": {"seconds": ROUND, "usd": ROUND * float(usd[index]) / step_seconds},
        },
        marks={
            "context": inputs.context, "total": step_seconds, "usd": float(usd[index]),
            "knee": pair.knee if pair.knee < MAX_CONTEXT else None,
            "wall": wall if wall < MAX_CONTEXT else None,
        },
        sentence=_sentence(inputs, step_seconds, times, chosen_parts["kv"] / step_seconds, grown, wall),
        figures=(
            Figure("step", step_seconds, "s", "Time of one decode step of the full model."),
            Figure("per million tokens", float(usd[index]), "USD", "Output tokens, at the typical rent."),
            Figure("over a short context", times, "x", "Step time over that of a short context."),
            Figure("L*", pair.knee, "tokens", "Knee: reading the KV cache takes as long as the arithmetic."),
            Figure("step doubles at", twice, "tokens", "Context with twice the step time of a short context."),
            Figure("memory is full at", wall, "tokens", "Longest context that fits at this batch."),
            Figure("the model's longest", float(model.max_context), "tokens"),
        ),
        formula=(
            f"L* = b_w N_act / (R kappa) = {pair.bytes_of_weight:.3g} bytes x {pair.active:.3g} / ({pair.balance:,.0f} x "
            f"{pair.kv_bytes:,.0f} bytes) = {pair.knee:,.0f} tokens",
            f"with the arithmetic of attention, L* = {pair.knee_with_attention:,.0f} tokens",
            show_step_sum(chosen_parts, step_seconds),
        ),
        notes=(
            f"a knee at the lecture's {SPOKEN:,} tokens needs a KV cache of {show(spoken, 'B')} per token; this model reads "
            f"{show(pair.kv_bytes, 'B')}",
            *((f"longest context: {model.max_context:,.0f} tokens",) if inputs.context > model.max_context else ()),
        ),
        command=step_command(inputs, replica),
        python=decode_call(inputs, replica),
    )  # fmt: skip


def _first(contexts: Array, values: Array, level: float) -> float:
    """Return the context at which rising values reach a level; infinity if never."""
    over = int(np.argmax(values >= level))
    if not over:
        return np.inf
    two = slice(over - 1, over + 1)
    return float(np.exp(np.interp(level, values[two], np.log(contexts[two]))))


def _wall(inputs: Inputs, replica: Replica, contexts: Array) -> float:
    """Return the longest context at which the batch fits; 0: never, infinity: always."""
    for _ in range(3):
        fits = int(np.sum(replica.room(contexts) >= inputs.batch))
        if fits in (0, len(contexts)):
            return np.inf if fits else 0.0
        # Refine between the last context that fits and the first that does not.
        contexts = np.geomspace(contexts[fits - 1], contexts[fits], FINER)
    return float(np.floor(contexts[0]))


def _sentence(inputs: Inputs, total: float, times: float, share: float, grown: dict[str, float], wall: float) -> str:
    words = f"At {inputs.context:,} tokens a step of {inputs.batch:,} sequences takes {show(total, 's')}"
    longer = f"{times:.3g} times as long as" if times >= 1.05 else "hardly longer than"
    words += f", {longer} at a short context; {percent(share)} of the step reads KV caches. "
    if inputs.context > wall:
        return words + (
            f"The memory is full at {wall:,.0f} tokens." if wall else "This batch does not fit the memory at any context."
        )
    if inputs.context <= 4 * MIN_CONTEXT:
        return words + "Such a short context adds almost no time; move the slider to a longer one."
    if times < 1.1:
        return words + "Nearly all of the step is independent of the context: here context is almost free."
    if max(grown, key=lambda name: grown[name]) == "compute":
        return words + "Most of the added time is the arithmetic of attention, which the blackboard leaves out."
    return words + "Most of the added time reads the KV cache: each sequence has its own, so a larger batch does not help."


BOARD = Board(
    name="context", title="What does a longer context cost?", order=20, section=13, inputs=Inputs, answer=answer,
    spoken={"system": "gb200-nvl72", "batch": 2000, "context": SPOKEN, "engine": "ideal", "kv": "fp8"},
    today={"system": "gb300-nvl72", "batch": 512, "context": 32_768},
)  # fmt: skip
