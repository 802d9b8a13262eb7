"""One forward pass as a question: its time, rates, cost and memory over any of its inputs, arrays among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from steptime.errors import InputError, RangeError, UnknownName
from steptime.hardware.unit_cost import rent_of, usd_per_million
from steptime.number_checks import MOST_SEQUENCES, MOST_TOKENS, at_least_zero, positive
from steptime.physics.chip_memory import memory_per_chip
from steptime.physics.default_layout import default_layout
from steptime.physics.layout import Layout
from steptime.physics.step import mixed_step
from steptime.physics.uncertainty import has_range, step_range
from steptime.sweep.axes import Axis
from steptime.sweep.question_inputs import COUNT, TEXT, Answer, Input, Question
from steptime.sweep.resolve_inputs import DESIGN, FORMATS, MADE, SUBJECT, WITHIN, made, read_subject

PHASES = ("decode", "prefill", "mixed")
WAYS = {
    "tp": "tensor parallel ways", "pp": "pipeline stages", "dp": "attention groups", "ep": "expert parallel ways",
    "cp": "context parallel ways",
}  # fmt: skip
TIME, LOW, HIGH = "time", "time_low", "time_high"
COST = "usd_per_million_tokens"


def _count(meaning: str, unit: str = "", apart: bool = False) -> Input:
    return Input(meaning=meaning, unit=unit, kind=COUNT, broadcasts=True, apart=apart)


INPUTS = {
    **SUBJECT,
    **DESIGN,
    "phase": Input(meaning="decode, prefill or mixed", kind=TEXT),
    "batch": _count("sequences that decode in one replica", "sequences"),
    "context": _count("tokens of context of each", "tokens"),
    "query": _count("tokens that each gets in the pass", "tokens"),
    "prompts": _count("prompts in the pass; by default one for each attention group", "prompts"),
    "tokens": _count("new tokens of each prompt", "tokens"),
    "prefix": _count("cached tokens before them", "tokens"),
    **{name: _count(meaning, apart=True) for name, meaning in WAYS.items()},
    "microbatches": _count("parts of the batch in flight; by default one a stage", apart=True),
}
ANSWERS = {
    TIME: Answer(meaning="time of the pass", unit="s"),
    LOW: Answer(meaning="lower end of its 90 % range", unit="s"),
    HIGH: Answer(meaning="upper end of its 90 % range", unit="s"),
    "tokens_per_second_per_user": Answer(meaning="tokens that each sequence gets", unit="tok/s"),
    "tokens_per_second_per_chip": Answer(meaning="tokens decoded and read by a chip", unit="tok/s"),
    COST: Answer(meaning="rent over tokens decoded and read, per million", unit="USD"),
    f"{COST}_low": Answer(meaning="lower end of its 90 % range, by the range of the time", unit="USD"),
    f"{COST}_high": Answer(meaning="upper end of its 90 % range", unit="USD"),
    "memory_share": Answer(meaning="share of a chip's memory that is taken"),
    "fits": Answer(meaning="whether it fits (1) or not (0)"),
    "bound": Answer(meaning="what takes the most of the time", text=True),
    **MADE,
}
RANGES = frozenset({LOW, HIGH, f"{COST}_low", f"{COST}_high"})


def ask(given: Mapping[str, Any], wanted: frozenset[str]) -> dict[str, Any]:
    """Return the answers about one pass, or about arrays of them."""
    model, system, engine = read_subject(given)
    ways: dict[str, Any] = {name: given.get(name, 1) for name in WAYS}
    layout = Layout(**ways, microbatches=given.get("microbatches", ways["pp"]))
    work = _work(given, layout)
    step = mixed_step(model, system, **work, layout=layout, engine=engine)
    prefill = given.get("phase", "decode") == "prefill"
    tokens = work["prompts"] * work["tokens"] + work["batch"] * work["query"]
    rent = rent_of(layout.chips, system.rent.typical)
    found = {
        TIME: step.total,
        "tokens_per_second_per_user": np.nan if prefill else work["query"] / step.total,
        "tokens_per_second_per_chip": tokens / layout.chips / step.total,
        COST: usd_per_million(rent, tokens / step.total),
    }
    if wanted & RANGES:
        ends = step_range(model, system, **work, layout=layout, engine=engine) if has_range(engine) else None
        for side, end in zip(("low", "high"), ends or (np.nan, np.nan), strict=True):
            found[f"{TIME}_{side}"] = end
            found[f"{COST}_{side}"] = usd_per_million(rent, tokens / end)
    if wanted & {"memory_share", "fits"}:
        rows = work["batch"] * work["query"] + work["prompts"] * work["tokens"]
        held = memory_per_chip(
            model, system, **_in_flight(work), layout=layout, engine=engine, step_tokens=rows / np.asarray(layout.dp)
        )
        found |= {"memory_share": held.used / held.capacity, "fits": held.fits}
    if "bound" in wanted:
        found["bound"] = step.bound
    return found | made(model, system, wanted)


def with_layout(question: Question, fixed: Mapping[str, Any], axes: Sequence[Axis] = ()) -> dict[str, Any]:
    """Return fixed inputs with the default layout of their model and system, where no way is given and it is not one chip.

    Args:
        question: A question of one layout, or any other, whose inputs stay as they are.
        fixed: Inputs of every point.
        axes: Inputs that vary; the least of their values must fit. A model or system that varies keeps one chip.

    Returns:
        The inputs, with tp, pp and ep where the model does not fit one chip.
    """
    values = {**fixed, **{axis.name: axis.values for axis in axes}}
    named = any(axis.name in ("model", "system", *FORMATS) for axis in axes)
    if named or "tp" not in question.inputs or set(WAYS) & values.keys() or not {"model", "system"} <= values.keys():
        return dict(fixed)
    try:
        model, system, engine = read_subject({name: value for name, value in fixed.items() if name != WITHIN})
    except InputError:
        return dict(fixed)  # the question itself says what is wrong
    lengths = ("tokens", "prefix") if values.get("phase") == "prefill" else ("context",)
    if "output" in question.inputs:
        lengths = ("input", "output")
    usual = {"context": 4096, "tokens": 8192, "prefix": 0, "input": 1024, "output": 256}
    context = sum(float(np.min(values.get(name, usual[name]))) for name in lengths)
    batch = values.get("batch", 1) if lengths == ("context",) else 1
    layout = default_layout(model, system, engine=engine, batch=batch, context=context)
    return {**fixed, **{name: int(getattr(layout, name)) for name in WAYS if getattr(layout, name) > 1}}


def _in_flight(work: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sequences whose cache is held, those that are read among them, and their mean context [tokens]."""
    sequences = work["batch"] + work["prompts"]
    tokens = work["batch"] * work["context"] + work["prompts"] * (work["tokens"] + work["prefix"])
    return {"batch": sequences, "context": tokens / sequences}


def _work(given: Mapping[str, Any], layout: Layout) -> dict[str, Any]:
    phase = given.get("phase", "decode")
    if phase not in PHASES:
        raise UnknownName("phase", phase, PHASES, f"Known: {', '.join(PHASES)}.")
    idle = {"decode": ("prompts", "tokens", "prefix"), "prefill": ("batch", "context", "query"), "mixed": ()}[phase]
    for name in idle:
        if name in given:
            other = "prefill" if phase == "decode" else "decode"
            raise RangeError(f"{name} has no part in phase {phase}; give phase={other} or phase=mixed, or leave it out")
    work: dict[str, Any] = {"batch": 0, "context": 0, "query": 1, "prompts": 0, "tokens": 0, "prefix": 0}
    if phase != "prefill":
        work |= {name: given.get(name, usual) for name, usual in (("batch", 1), ("context", 4096), ("query", 1))}
        positive("batch", work["batch"], most=MOST_SEQUENCES)
        positive("context", work["context"], most=MOST_TOKENS)
    if phase != "decode":
        work |= {
            "prompts": given.get("prompts", layout.dp),
            "tokens": given.get("tokens", 8192),
            "prefix": given.get("prefix", 0),
        }
        positive("prompts", work["prompts"], most=MOST_SEQUENCES)
        positive("tokens", work["tokens"], most=MOST_TOKENS)
        at_least_zero("prefix", work["prefix"], most=MOST_TOKENS)
    return work


STEP = Question(
    name="step",
    meaning="one forward pass: its time, rates, cost and memory",
    inputs=INPUTS,
    answers=ANSWERS,
    ask=ask,
    figures=True,
    vectorised=True,
    threads=True,
    needs=("model", "system"),
    shows=(TIME, "tokens_per_second_per_user", "tokens_per_second_per_chip", COST, "memory_share"),
    bands={TIME: (LOW, HIGH), COST: (f"{COST}_low", f"{COST}_high")},
    seconds=4e-7,
)
