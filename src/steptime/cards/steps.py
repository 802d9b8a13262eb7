"""What there is to know about one step: its time, range and ideal, what a chip holds, and the rates that it comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from steptime.catalog.loading import SystemLike, system_of
from steptime.models.loading import ModelLike, model_of
from steptime.numbers import Number
from steptime.physics.engine import IDEAL, Engine, engine_for
from steptime.physics.layout import Layout
from steptime.physics.memory import Memory, memory_per_chip
from steptime.physics.step import Step, mixed_step
from steptime.physics.uncertainty import step_range
from steptime.results import unit


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
    memory: Memory = field(metadata=unit("", "of a chip"))

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


def step_card(
    model: ModelLike,
    system: SystemLike,
    *,
    layout: Layout | None = None,
    engine: Engine | str | None = None,
    **given: Number,
) -> StepCard:
    """Return the step that decodes and prefills what is `given`, as `mixed_step` takes it, with all that goes with it.

    A step that decodes holds the cache of its batch; one that only prefills that of its prompts.
    """
    of, on = model_of(model), system_of(system)
    layout, runs_on = layout or Layout(), engine_for(on, engine)
    asked: dict[str, Number] = {"batch": 0, "context": 0, "query": 1, "prompts": 0, "tokens": 0, "prefix": 0, **given}
    found = mixed_step(of, on, **asked, layout=layout, engine=runs_on)
    limits = step_range(of, on, **asked, layout=layout, engine=runs_on)
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
        memory=memory_per_chip(
            of,
            on,
            batch=asked["batch"] if decodes else asked["prompts"],
            context=asked["context"] if decodes else asked["tokens"] + asked["prefix"],
            layout=layout,
            engine=runs_on,
            step_tokens=rows / layout.dp,
        ),
    )
