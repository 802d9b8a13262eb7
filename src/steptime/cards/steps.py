"""What there is to know about one step: its time and range, what it delivers for each user and chip, and its memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from steptime.errors import LayoutError, RangeError, UnknownName
from steptime.machines.system import System
from steptime.models.model import Model
from steptime.physics.engine import IDEAL, Engine
from steptime.physics.layout import Layout
from steptime.physics.memory import Memory, memory_per_chip
from steptime.physics.step import Step, mixed_step
from steptime.physics.uncertainty import step_range

PHASES = ("decode", "prefill", "mixed")
Range = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Tokens per second, with the 90 % range where the engine has one."""

    value: float
    range: Range | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCard:
    """One step of a model on a layout.

    given: batch, context, query, prompts, tokens and prefix, those that the phase has. range [s]: 90 % of measured steps;
    ideal: the same step, were nothing lost; both None for the ideal engine. rates [tok/s]: of each user, and of output and of
    prompts on each chip. excess [B]: what does not fit a chip. notes: what to mind about the answer.
    """

    model: str
    system: str
    chip: str
    engine: str
    phase: str
    layout: Layout
    given: Mapping[str, int]
    step: Step
    range: Range | None
    ideal: Step | None
    memory: Memory
    rates: Mapping[str, Rate]
    notes: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether weights, cache and activations fit a chip."""
        return bool(self.memory.fits)

    @property
    def excess(self) -> float:
        """Bytes too much on a chip; 0 where all fits."""
        return max(0.0, float(self.memory.used - self.memory.capacity))


def step_card(
    model: Model,
    system: System,
    *,
    phase: str = "decode",
    batch: int = 1,
    context: int = 4096,
    query: int = 1,
    prompts: int | None = None,
    tokens: int = 8192,
    prefix: int = 0,
    layout: Layout,
    engine: Engine,
) -> StepCard:
    """Return everything that `steptime step` shows.

    Of decode, `batch` sequences of `context` [tokens] get `query` tokens each; of prefill, `prompts` (one for each attention
    group unless given) of `tokens` after `prefix` [tokens]; phase "mixed" is both at once.
    """
    if phase not in PHASES:
        raise UnknownName("phase", phase, PHASES, f"Known: {', '.join(PHASES)}.")
    decodes, prefills = phase != "prefill", phase != "decode"
    given: dict[str, int] = {"batch": batch, "context": context, "query": query} if decodes else {}
    if prefills:
        given |= {"prompts": int(layout.dp) if prompts is None else prompts, "tokens": tokens, "prefix": prefix}
    _check(given, layout)
    step = mixed_step(model, system, **given, layout=layout, engine=engine)
    limits = step_range(model, system, **given, layout=layout, engine=engine)
    low_high = None if limits is None else (float(limits[0]), float(limits[1]))
    rows = given.get("prompts", 0) * given.get("tokens", 0)
    return StepCard(
        model=model.name,
        system=system.name,
        chip=system.chip.name,
        engine=engine.name,
        phase=phase,
        layout=layout,
        given=given,
        step=step,
        range=low_high,
        ideal=None if limits is None else mixed_step(model, system, **given, layout=layout, engine=IDEAL),
        memory=memory_per_chip(
            model,
            system,
            batch=batch if decodes else given["prompts"],
            context=context if decodes else tokens + prefix,
            layout=layout,
            engine=engine,
            step_tokens=rows / layout.dp,
        ),
        rates=_rates(given, rows, float(step.total), low_high, int(layout.chips)),
        notes=_notes(model, given),
    )


def _check(given: Mapping[str, int], layout: Layout) -> None:
    """Raise RangeError for a size of nothing, and LayoutError for more parts of the batch than it has sequences."""
    for name in ("batch", "context", "query", "prompts", "tokens"):
        if name in given and given[name] < 1:
            raise RangeError(f"--{name} must be at least 1, not {given[name]}")
    if given.get("prefix", 0) < 0:
        raise RangeError(f"--prefix must be at least 0, not {given['prefix']}")
    if given.get("query", 1) > given.get("context", 1):
        raise RangeError(f"--query {given['query']} is more than the --context of {given['context']} that holds it")
    parts = int(layout.microbatches)
    if "batch" in given and parts > int(layout.pp) and parts > given["batch"]:
        raise LayoutError(f"a batch of {given['batch']:,} cannot be cut into {parts:,} micro-batches")


def _rates(given: Mapping[str, int], rows: int, seconds: float, limits: Range | None, chips: int) -> dict[str, Rate]:
    """Return tokens per second of each user and chip, fastest and slowest at the ends of the step's range."""

    def rate(amount: float) -> Rate:
        return Rate(value=amount / seconds, range=limits and (amount / limits[1], amount / limits[0]))

    found = {}
    if "batch" in given:
        found["tokens_per_second_per_user"] = rate(given["query"])
        found["output_tokens_per_second_per_chip"] = rate(given["batch"] * given["query"] / chips)
    if rows:
        found["prompt_tokens_per_second_per_chip"] = rate(rows / chips)
    return found


def _notes(model: Model, given: Mapping[str, int]) -> tuple[str, ...]:
    reach = max(given.get("context", 0), given.get("tokens", 0) + given.get("prefix", 0))
    if reach <= model.max_context:
        return model.notes
    return (f"a context of {reach:,} tokens exceeds the {model.max_context:,.0f} of the model", *model.notes)


def as_row(card: StepCard) -> dict[str, Any]:
    """Return a card as what JSON and CSV hold: the step's own figures beside what was asked."""
    ideal = card.ideal
    return {
        "model": card.model,
        "system": card.system,
        "engine": card.engine,
        "layout": card.layout,
        "phase": card.phase,
        **card.given,
        "bound": str(card.step.bound),
        "terms": card.step.terms,
        "resources": card.step.resources,
        "lower": card.step.lower,
        "total": card.step.total,
        "upper": card.step.upper,
        "range": card.range,
        "ideal": ideal and {name: getattr(ideal, name) for name in ("lower", "total", "upper")},
        "memory": asdict(card.memory) | {"fits": card.fits},
        "rates": {name: asdict(rate) for name, rate in card.rates.items()},
        "notes": card.notes,
    }
