"""What there is to know about one step: its time, range and ideal, what a chip holds, and the rates that it comes to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np

from steptime.catalog.hardware_loading import SystemLike, system_of
from steptime.describe.image_cost import ImageCost, cost_of
from steptime.errors import LayoutError, RangeError, UnknownName
from steptime.models.model import Model
from steptime.models.model_loading import ModelLike, model_of
from steptime.number_checks import Number
from steptime.physics.bias_correction import Anchor, Anchors
from steptime.physics.chip_memory import Memory, memory_per_chip
from steptime.physics.engine import IDEAL, Engine, anchored, bare, engine_for
from steptime.physics.extrapolation import distances
from steptime.physics.layout import Layout, show_layout
from steptime.physics.step import Step, mixed_step
from steptime.physics.uncertainty import step_and_range
from steptime.result_base import broadcast, key_of, unit

PHASES = ("decode", "prefill", "mixed")
ASKED = ("batch", "context", "query", "prompts", "tokens", "prefix")
Range = tuple[Number, Number]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StepCard(Step):
    """Everything that `steptime step` shows: the step and what was asked. What a phase does not have is 0."""

    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **Step.DERIVED,
        "tokens_per_second_per_user": unit("tok/s", "that each sequence gets", key="tokens_per_s_per_user"),
        "output_tokens_per_second_per_chip": unit("tok/s", "decoded", key="output_tokens_per_s_per_chip"),
        "prompt_tokens_per_second_per_chip": unit("tok/s", "read", key="prompt_tokens_per_s_per_chip"),
    }

    model: str = field(metadata=unit("", "name of the model"))
    system: str = field(metadata=unit("", "name of the system"))
    engine: str = field(metadata=unit("", "name of the engine"))
    layout: Layout = field(metadata=unit("", "how a replica is laid over chips"))
    phase: str = field(metadata=unit("", "decode, prefill or mixed"))
    batch: Number = field(metadata=unit("sequences", "that decode in a replica"))
    context: Number = field(metadata=unit("tokens", "of each of them"))
    query: Number = field(metadata=unit("tokens", "that each gets in the pass"))
    prompts: Number = field(metadata=unit("prompts", "in the pass"))
    tokens: Number = field(metadata=unit("tokens", "new ones of each prompt", key="prompt_tokens"))
    prefix: Number = field(metadata=unit("tokens", "cached ones before them"))
    range: tuple[Number, Number] | None = field(metadata=unit("s", "90 % range of the total; null for the ideal engine"))
    ideal: Step | None = field(metadata=unit("", "the same step, were nothing lost; null for the ideal engine"))
    anchor: Anchor | None = field(default=None, metadata=unit("", "one's own runs that it rests on; null: none"))
    unanchored: Step | None = field(default=None, metadata=unit("", "the same step without them"))
    memory: Memory = field(metadata=unit("", "of a chip"))
    notes: tuple[str, ...] = field(default=(), metadata=unit("", "what to mind about the answer"))
    images: ImageCost | None = field(default=None, metadata=unit("", "images and recordings of each prompt; null: none"))

    @property
    def tokens_per_second_per_user(self) -> Number:
        """Tokens per second that each sequence gets."""
        return self.query * (self.batch > 0) / self.total

    @property
    def output_tokens_per_second_per_chip(self) -> Number:
        """Tokens decoded per second over the chips of the replica."""
        return self.batch * self.query / self.layout.chips / self.total

    @property
    def prompt_tokens_per_second_per_chip(self) -> Number:
        """Prompt tokens read per second over the chips of the replica."""
        return self.prompts * self.tokens / self.layout.chips / self.total

    def rates(self) -> dict[str, tuple[Number, Range | None]]:
        """Return the rates [tok/s] that the phase has, by name, each with its 90 % range where the engine has one."""
        names = [f"{kind}_tokens_per_second_per_chip" for kind in ("output", "prompt")]
        values = {name: getattr(self, name) for name in ("tokens_per_second_per_user", *names)}
        return {name: (value, self._ends(value)) for name, value in values.items() if value > 0}

    def _ends(self, rate: Number) -> Range | None:
        """Return a rate at the slow and at the fast end of the step's range."""
        return None if self.range is None else (rate * self.total / self.range[1], rate * self.total / self.range[0])

    def columns(self) -> dict[str, Any]:
        """Return what was asked, the rates and the memory beside the row of the step."""
        what = {"model": self.model, "system": self.system, "engine": self.engine, "layout": show_layout(self.layout)}
        asked = {key_of(f.name, f.metadata): getattr(self, f.name) for f in fields(self) if f.name in ASKED}
        low, high = self.range or (np.nan, np.nan)
        came = {
            "low_s": low, "high_s": high,
            "tokens_per_s_per_user": self.tokens_per_second_per_user,
            "output_tokens_per_s_per_chip": self.output_tokens_per_second_per_chip,
            "prompt_tokens_per_s_per_chip": self.prompt_tokens_per_second_per_chip,
            "memory_bytes": self.memory.used, "fits": self.memory.fits,
        }  # fmt: skip
        row: dict[str, Any] = broadcast({**what, "phase": self.phase, **asked, **came, **Step.columns(self)})
        return row


def asked_of(
    phase: str,
    layout: Layout,
    *,
    batch: int = 1,
    context: int = 4096,
    query: int = 1,
    prompts: int | None = None,
    tokens: int = 8192,
    prefix: int = 0,
) -> dict[str, int]:
    """Return what a phase takes of what may be asked, as `mixed_step` takes it, and raise InputError where it makes no sense.

    Of decode, `batch` sequences of `context` [tokens] get `query` tokens each; of prefill, `prompts` (one for each attention
    group unless given) of `tokens` after `prefix` [tokens]; phase "mixed" is both at once.
    """
    if phase not in PHASES:
        raise UnknownName("phase", phase, PHASES, f"Known: {', '.join(PHASES)}.")
    given = {"batch": batch, "context": context, "query": query} if phase != "prefill" else {}
    if phase != "decode":
        given |= {"prompts": int(layout.dp) if prompts is None else prompts, "tokens": tokens, "prefix": prefix}
    for name, value in given.items():
        least = 0 if name == "prefix" else 1
        if value < least:
            raise RangeError(f"--{name} must be at least {least}, not {value}")
    if given.get("query", 1) > given.get("context", 1):
        raise RangeError(f"--query {query} is more than the --context of {context} that holds it")
    parts = int(layout.microbatches)
    if "batch" in given and parts > int(layout.pp) and parts > batch:
        raise LayoutError(f"a batch of {batch:,} cannot be cut into {parts:,} micro-batches")
    return given


def _notes(model: Model, asked: Mapping[str, Number], unlike: Iterable[str]) -> tuple[str, ...]:
    reach = np.max(np.maximum(asked["context"], asked["tokens"] + asked["prefix"]))
    beyond = (
        (f"a context of {reach:,} tokens exceeds the {model.max_context:,.0f} of the model",)
        if reach > model.max_context
        else ()
    )
    ways = ", ".join(unlike)
    wider = (f"unlike what was measured, and so of a wider range: {ways}",) if ways else ()
    return (*beyond, *wider, *model.notes)


def step_card(
    model: ModelLike,
    system: SystemLike,
    *,
    layout: Layout | None = None,
    engine: Engine | str | None = None,
    anchor: Anchors | Anchor | None = None,
    **given: Number,
) -> StepCard:
    """Return the step that decodes and prefills what is `given`, as `mixed_step` takes it, with all that goes with it.

    A step that decodes holds the cache of its batch; one that only prefills that of its prompts. anchor: one's own runs.
    """
    of, on = model_of(model), system_of(system)
    layout = layout or Layout()
    runs_on = anchored(engine_for(on, engine), anchor, model=of.name, system=on.name)
    asked: dict[str, Any] = {"batch": 0, "context": 0, "query": 1, "prompts": 0, "tokens": 0, "prefix": 0, **given}
    found, limits = step_and_range(of, on, **asked, layout=layout, engine=runs_on)
    ways = () if limits is None else distances(runs_on, on, layout)
    unlike = [one.words for one, there in ways if np.any(there)]
    rows = asked["prompts"] * asked["tokens"]
    step: dict[str, Any] = {f.name: getattr(found, f.name) for f in fields(Step)}
    sizes: dict[str, Any] = dict(asked)
    decodes, prefills = bool(asked["batch"] > 0), bool(rows > 0)
    return StepCard(
        **step,
        model=of.name,
        system=on.name,
        engine=runs_on.name,
        layout=layout,
        phase="mixed" if decodes and prefills else "decode" if decodes else "prefill",
        **sizes,
        range=limits,
        ideal=None if limits is None else mixed_step(of, on, **asked, layout=layout, engine=IDEAL),
        anchor=runs_on.anchor,
        unanchored=mixed_step(of, on, **asked, layout=layout, engine=bare(runs_on)) if runs_on.anchor else None,
        memory=memory_per_chip(
            of,
            on,
            batch=asked["batch"] if decodes else asked["prompts"],
            context=asked["context"] if decodes else asked["tokens"] + asked["prefix"],
            layout=layout,
            engine=runs_on,
            step_tokens=rows / layout.dp,
        ),
        notes=_notes(of, asked, unlike),
        images=None if of.media is None else cost_of(of, of.media.readings),
    )
