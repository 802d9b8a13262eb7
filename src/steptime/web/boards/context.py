"""Board: step time and price against the context. Lecture sections 13 and 16."""

from __future__ import annotations

from typing import Final

import numpy as np

from steptime.blackboard.token_cost import cost_per_token, kv_bytes_from_tier
from steptime.lecture.current_figures import build_pair
from steptime.number_checks import Array
from steptime.physics.chip_memory import sequences_that_fit
from steptime.physics.step import decode_step
from steptime.svg import PARTS, in_colours
from steptime.units import MILLION, show
from steptime.web.board import Answer, Board, Figure, Shared, slider
from steptime.web.page_export import command, decode_call, layout_options, python, show_step_sum
from steptime.web.page_subject import Subject, load_subject, single_stage_layout

MIN_CONTEXT, MAX_CONTEXT, POINTS = 64, 4_194_304, 65
# Context above which prices are higher [tokens], lecture section 13.
SPOKEN: Final = 200_000
# Points of each refinement of the longest context that fits.
FINER: Final = 257
# Round seconds of an axis that shows seconds and USD.
ROUND: Final = 10.0 ** np.arange(-7, 4)


class Inputs(Shared):
    """A context at a batch on some chips."""

    context: int = slider(8192, MIN_CONTEXT, MAX_CONTEXT, "context", "tokens", "Tokens of context of each sequence.", log=True)
    batch: int = slider(256, 1, 65_536, "batch", "sequences", "Sequences that decode at once in one replica.", log=True)
    chips: int = slider(0, 0, 1024, "chips", "chips", "Chips of the replica; 0: the scale-up domain.", is_advanced=True, step=1)


def answer(inputs: Inputs) -> Answer:
    """Return the step over all contexts, and at the chosen context.

    Args:
        inputs: Inputs of the board.

    Returns:
        Tables, figures and sentence.
    """
    subject = load_subject(inputs)
    model, system, engine = subject.model, subject.system, subject.engine
    layout = single_stage_layout(inputs, inputs.chips)
    contexts = np.unique(np.append(np.geomspace(MIN_CONTEXT, MAX_CONTEXT, POINTS), inputs.context))
    steps = decode_step(model, system, batch=inputs.batch, context=contexts, layout=layout, engine=engine)
    parts = in_colours(steps.resources, np.shape(contexts))
    total = np.asarray(steps.total)
    usd = np.asarray(cost_per_token(total, inputs.batch, layout.chips, float(np.asarray(system.rent.typical)))) * MILLION
    index = int(np.searchsorted(contexts, inputs.context))
    step_seconds, times = float(total[index]), float(total[index] / total[0])
    # The first context is short enough to stand for "no context".
    twice = _first(contexts, total / total[0], 2.0)
    grown = {name: float(parts[name][index] - parts[name][0]) for name in PARTS}
    wall, pair = _wall(inputs, subject, contexts), build_pair(model, system, context=inputs.context)
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
        sentence=_sentence(inputs, step_seconds, times, float(parts["kv"][index]) / step_seconds, grown, wall),
        figures=(
            Figure(name="step", value=step_seconds, unit="s", words="Time of one decode step of the full model."),
            Figure(name="per million tokens", value=float(usd[index]), unit="USD", words="Output tokens, at the typical rent."),
            Figure(name="over a short context", value=times, unit="x", words="Step time over that of a short context."),
            Figure(name="L*", value=pair.knee, unit="tokens",
                   words="Knee: reading the KV cache takes as long as the arithmetic."),
            Figure(name="step doubles at", value=twice, unit="tokens",
                   words="Context with twice the step time of a short context."),
            Figure(name="memory is full at", value=wall, unit="tokens", words="Longest context that fits at this batch."),
            Figure(name="the model's longest", value=float(model.max_context), unit="tokens"),
        ),
        formula=(
            f"L* = b_w N_act / (R kappa) = {pair.bytes_of_weight:.3g} bytes x {pair.active:.3g} / ({pair.balance:,.0f} x "
            f"{pair.kv_bytes:,.0f} bytes) = {pair.knee:,.0f} tokens",
            f"with the arithmetic of attention, L* = {pair.knee_with_attention:,.0f} tokens",
            show_step_sum({name: float(parts[name][index]) for name in PARTS}, step_seconds),
        ),
        notes=(
            f"a knee at the lecture's {SPOKEN:,} tokens needs a KV cache of {show(spoken, 'B')} per token; this model reads "
            f"{show(pair.kv_bytes, 'B')}",
            *((f"longest context: {model.max_context:,.0f} tokens",) if inputs.context > model.max_context else ()),
        ),
        command=command("step", inputs, {"--batch": inputs.batch, "--context": inputs.context, **layout_options(layout)}),
        python=python(decode_call(inputs, layout, batch=inputs.batch, context=inputs.context)),
    )  # fmt: skip


def _first(contexts: Array, values: Array, level: float) -> float:
    """Return the context at which rising values reach a level; infinity if never."""
    over = int(np.argmax(values >= level))
    if not over:
        return np.inf
    two = slice(over - 1, over + 1)
    return float(np.exp(np.interp(level, values[two], np.log(contexts[two]))))


def _wall(inputs: Inputs, subject: Subject, contexts: Array) -> float:
    """Return the longest context at which the batch fits; 0: never, infinity: always."""
    layout = single_stage_layout(inputs, inputs.chips)
    for _ in range(3):
        room = sequences_that_fit(subject.model, subject.system, context=contexts, layout=layout, engine=subject.engine)
        fits = int(np.sum(np.asarray(room) >= inputs.batch))
        if fits in (0, len(contexts)):
            return np.inf if fits else 0.0
        # Refine between the last context that fits and the first that does not.
        contexts = np.geomspace(contexts[fits - 1], contexts[fits], FINER)
    return float(np.floor(contexts[0]))


def _sentence(inputs: Inputs, total: float, times: float, share: float, grown: dict[str, float], wall: float) -> str:
    words = f"At {inputs.context:,} tokens a step of {inputs.batch:,} sequences takes {show(total, 's')}"
    longer = f"{times:.3g} times as long as" if times >= 1.05 else "hardly longer than"
    words += f", {longer} at a short context; {share:.0%} of the step reads KV caches. "
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
