"""The question `step`: time, rates, cost and memory of one forward pass, for scalars or arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from steptime.catalog.hardware_loading import SystemLike
from steptime.errors import InputError, LayoutError, RangeError, short_repr
from steptime.hardware.number_formats import missing_units
from steptime.hardware.rental_prices import deployment_rent, usd_per_million
from steptime.hardware.system import System
from steptime.models.draft_models import drafter_words
from steptime.models.model import Model, stored_formats
from steptime.models.model_loading import ModelLike
from steptime.number_checks import MOST_SEQUENCES, MOST_TOKENS, Number
from steptime.physics.bias_correction import Anchor, Anchors
from steptime.physics.chip_memory import Memory, weights_per_chip
from steptime.physics.chip_power import StepEnergy, step_energy
from steptime.physics.compute_dtype import as_served, has_rule
from steptime.physics.engine import IDEAL, Engine, anchored, bare, engine_for, model_and_system
from steptime.physics.layout import Layout, show_layout
from steptime.physics.layout_space import default_layout
from steptime.physics.speculative_step import drafted_memory, drafted_step
from steptime.physics.step import Step
from steptime.physics.uncertainty import distances, explained_step_range, has_range, step_range, unmeasured_engine_warning
from steptime.questions.declaration import WITHIN, Answer, Question, bind, count, inputs_from, number, read_value, text
from steptime.questions.subject import (
    DESIGN,
    DESIGN_ANSWERS,
    FORMATS,
    SIZES,
    USUAL_INPUT,
    USUAL_OUTPUT,
    DraftModel,
    LoraInputs,
    ParallelSizes,
    PricedSubject,
    PromptMedia,
    check_imbalance,
    design_answers,
    parallel_size,
    read_subject,
    with_prompt_media,
)
from steptime.result_base import broadcast, json_key, unit
from steptime.units import show, speed_change
from steptime.workload.workload import MOST_DRAFTS, NONE, Speculation, choose_speculation

if TYPE_CHECKING:
    from steptime.questions.image_cost import ImageCost

PHASES = ("decode", "prefill", "mixed")
PASS_GROUP = "The pass"
TIME, LOW, HIGH = "time", "time_low", "time_high"
COST = "usd_per_million_tokens"
WATTS, JOULES = "chip_watts", "joules_per_token"
# A size of the pass, in tokens unless the declaration has another unit.
_size = partial(count, unit="tokens", broadcasts=True, maximum=MOST_TOKENS, group=PASS_GROUP)


@dataclass(frozen=True, kw_only=True)
class StepInputs(PricedSubject, DraftModel, LoraInputs, ParallelSizes, PromptMedia):
    """Inputs of `step`: model, machine, layout, and the sizes of one forward pass."""

    phase: str = text("decode", "phase of the pass: decode, prefill or mixed", choices=PHASES, group=PASS_GROUP)
    batch: Any = _size(1, "decode batch: sequences in one replica", unit="sequences", maximum=MOST_SEQUENCES)
    context: Any = _size(4096, "context of each decoding sequence in tokens; 4k is 4,000")
    query: Any = _size(1, "query tokens per sequence: 1, or 1 more than the speculative tokens to verify")
    prompts: Any = _size(
        None,
        "number of prompts in the pass",
        unit="prompts",
        maximum=MOST_SEQUENCES,
        default_words="one per data-parallel rank",
    )
    tokens: Any = _size(8192, "prompt tokens to prefill, per prompt")
    prefix: Any = _size(0, "cached tokens (prefix-cache hit) before the prompt tokens of each prompt", minimum=0)
    drafts: Any = count(
        0, "speculative tokens that the step verifies and drafts, in place of query", unit="tokens", minimum=0,
        maximum=MOST_DRAFTS, group=PASS_GROUP,
    )  # fmt: skip
    acceptance: Any = number(
        None, "acceptance length: output tokens per step with drafts, from 1 to drafts + 1", unit="tokens", group=PASS_GROUP,
        default_words="measured, or the prior of what drafts",
    )  # fmt: skip
    microbatches: Any = parallel_size("number of micro-batches in flight", default_words="one per stage")


# Inputs without a meaning in a phase.
IDLE = {
    "decode": ("prompts", "tokens", "prefix", "image", "audio"),
    "prefill": ("batch", "context", "query", "acceptance"),
    "mixed": (),
}
# Sizes of a pass without decode and without prefill.
NO_PASS = {"batch": 0, "context": 0, "query": 1, "prompts": 0, "tokens": 0, "prefix": 0}
Range = tuple[Number, Number]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StepSummary(Step):
    """One step with its inputs, range, memory and notes, as `steptime step` shows it.

    A quantity that a phase does not have is 0.
    """

    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **Step.DERIVED,
        "tokens_per_second_per_user": unit("tok/s", "output speed of each sequence", key="tokens_per_s_per_user"),
        "output_tokens_per_second_per_chip": unit("tok/s", "decode throughput per chip", key="output_tokens_per_s_per_chip"),
        "prompt_tokens_per_second_per_chip": unit("tok/s", "prefill throughput per chip", key="prompt_tokens_per_s_per_chip"),
    }

    model: str = field(metadata=unit("", "name of the model"))
    system: str = field(metadata=unit("", "name of the system"))
    engine: str = field(metadata=unit("", "name of the engine"))
    layout: Layout = field(metadata=unit("", "layout of a replica"))
    phase: str = field(metadata=unit("", "decode, prefill or mixed"))
    batch: Number = field(metadata=unit("sequences", "decode batch of a replica"))
    context: Number = field(metadata=unit("tokens", "context of each decoding sequence"))
    query: Number = field(metadata=unit("tokens", "query tokens per sequence"))
    prompts: Number = field(metadata=unit("prompts", "prompts in the pass"))
    tokens: Number = field(metadata=unit("tokens", "prompt tokens to prefill, per prompt", key="prompt_tokens"))
    prefix: Number = field(metadata=unit("tokens", "cached tokens (prefix-cache hit) before the prompt tokens of each prompt"))
    range: tuple[Number, Number] | None = field(metadata=unit("s", "90 % range of the total; null for the ideal engine"))
    range_shares: Mapping[str, float] = field(
        default_factory=dict, metadata=unit("share", "what the upper half of the range is made of, as shares of its square")
    )
    ideal: Step | None = field(metadata=unit("", "the same step without losses; null for the ideal engine"))
    anchor: Anchor | None = field(default=None, metadata=unit("", "your own runs that correct the times; null: none"))
    unanchored: Step | None = field(default=None, metadata=unit("", "the same step without that correction"))
    memory: Memory = field(metadata=unit("", "memory of a chip"))
    adapters: int = field(default=0, metadata=unit("", "slots of LoRA adapters", left_out=True))
    adapter_bytes: Number = field(default=0.0, metadata=unit("B", "their bytes on a chip, part of the weights", left_out=True))
    weights: str = field(default="", metadata=unit("", "number format of the weights, and of the routed experts if it differs"))
    notes: tuple[str, ...] = field(default=(), metadata=unit("", "notes on the answer"))
    images: ImageCost | None = field(default=None, metadata=unit("", "images and recordings of each prompt; null: none"))
    speculation: Speculation = field(default=NONE, metadata=unit("", "speculative tokens and acceptance length"))
    energy: StepEnergy | None = field(
        default=None, metadata=unit("", "power of a chip at this load and energy per token; null: the power is not known")
    )

    @property
    def tokens_per_second_per_user(self) -> Number:
        """Output speed of each sequence [tok/s]."""
        return _step_yield(self.query, self.speculation) * (self.batch > 0) / self.total

    @property
    def output_tokens_per_second_per_chip(self) -> Number:
        """Decode throughput per chip of the replica [tok/s]."""
        return self.batch * _step_yield(self.query, self.speculation) / self.layout.chips / self.total

    @property
    def prompt_tokens_per_second_per_chip(self) -> Number:
        """Prefill throughput per chip of the replica [tok/s]."""
        return self.prompts * self.tokens / self.layout.chips / self.total

    def rates(self) -> dict[str, tuple[Number, Range | None]]:
        """Return the rates of the phase, each with its 90 % range.

        Returns:
            Rate [tok/s] and range by name; the ideal engine has no range (None).
        """
        names = [f"{kind}_tokens_per_second_per_chip" for kind in ("output", "prompt")]
        values = {name: getattr(self, name) for name in ("tokens_per_second_per_user", *names)}
        if self.range is None:
            return {name: (value, None) for name, value in values.items() if value > 0}
        # The slow end of the step gives the low end of a rate; prompts yield no accepted tokens.
        plain, decoding = self.range, _with_prior(self.total, self.range, self.speculation)
        ends = {name: plain if name.startswith("prompt") else decoding for name in values}
        return {
            name: (value, (value * self.total / ends[name][1], value * self.total / ends[name][0]))
            for name, value in values.items()
            if value > 0
        }

    def columns(self) -> dict[str, Any]:
        """Return one row: inputs, rates and memory, then the terms of the step.

        Returns:
            Columns by name; several rows if the inputs are arrays.
        """
        subject = {"model": self.model, "system": self.system, "engine": self.engine, "layout": show_layout(self.layout)}
        sizes = {json_key(f.name, f.metadata): getattr(self, f.name) for f in fields(self) if f.name in NO_PASS}
        low, high = self.range or (np.nan, np.nan)
        came = {
            "low_s": low, "high_s": high,
            "tokens_per_s_per_user": self.tokens_per_second_per_user,
            "output_tokens_per_s_per_chip": self.output_tokens_per_second_per_chip,
            "prompt_tokens_per_s_per_chip": self.prompt_tokens_per_second_per_chip,
            "memory_bytes": self.memory.used, "fits": self.memory.fits,
        }  # fmt: skip
        row: dict[str, Any] = broadcast({**subject, "phase": self.phase, **sizes, **came, **Step.columns(self)})
        return row


def _step_yield(query: Number, speculation: Speculation) -> Number:
    """Return the tokens of a sequence per step: accepted ones with drafts, else all query tokens."""
    return speculation.acceptance if speculation.drafts else query


def _with_prior(total: Number, ends: Range, speculation: Speculation) -> Range:
    """Return the range of a time per accepted token, as a range of the step: both errors in quadrature."""
    if speculation.acceptance_range is None:
        return ends
    fewer, additional = speculation.log_range
    below, above = np.log(total / ends[0]), np.log(ends[1] / total)
    return total * np.exp(-np.hypot(below, fewer)), total * np.exp(np.hypot(above, additional))


def pass_speculation(inputs: StepInputs, model: Model) -> Speculation:
    """Return the speculative tokens of a pass.

    Args:
        inputs: Checked inputs of the question.
        model: The model with its drafter.

    Returns:
        Drafts and acceptance length; none without drafts.

    Raises:
        RangeError: Drafts together with query tokens.
        InputError: Nothing can draft for the model.
    """
    if not inputs.drafts:
        return NONE
    if np.any(np.asarray(inputs.query) != 1):
        raise RangeError(
            f"query: is drafts + 1 with {inputs.drafts} drafts, got {short_repr(inputs.query)}; leave one of the two out"
        )
    return choose_speculation(model, inputs.drafts, inputs.acceptance)


def pass_sizes(inputs: StepInputs, layout: Layout) -> dict[str, Any]:
    """Return the sizes of a pass as arguments of `mixed_step`.

    Args:
        inputs: Checked inputs of the question.
        layout: Layout of the replica.

    Returns:
        Sizes by argument name; a size that the phase does not have is 0.

    Raises:
        RangeError: If a sequence has more query tokens than context.
        LayoutError: If the batch is smaller than the number of micro-batches.
    """
    sizes: dict[str, Any] = dict(NO_PASS)
    if inputs.phase != "prefill":
        query = inputs.drafts + 1 if inputs.drafts else inputs.query
        sizes |= {"batch": inputs.batch, "context": inputs.context, "query": query}
        if np.any(np.asarray(query) > np.asarray(inputs.context)):
            raise RangeError(f"query: must be at most the context of {short_repr(inputs.context)}, got {short_repr(query)}")

        # As many micro-batches as stages is the default, which a smaller batch leaves partly empty.
        parts, fewest = int(np.max(layout.microbatches)), int(np.min(inputs.batch))

        # More micro-batches than stages need a batch of at least one sequence each.
        if parts > int(np.max(layout.pp)) and parts > fewest:
            raise LayoutError(f"a batch of {fewest:,} cannot be cut into {parts:,} micro-batches")
    if inputs.phase != "decode":
        prompts = layout.dp if inputs.prompts is None else inputs.prompts
        sizes |= {"prompts": prompts, "tokens": inputs.tokens, "prefix": inputs.prefix}
    return sizes


def pass_memory(
    model: Model, system: System, sizes: Mapping[str, Any], *, layout: Layout, engine: Engine, drafts: int = 0
) -> Memory:
    """Return the memory of a chip during a pass: weights, KV cache and activations.

    Args:
        model: The model.
        system: The machine.
        sizes: Sizes of the pass, from `pass_sizes`.
        layout: Layout of the replica.
        engine: The serving engine.
        drafts: Speculative tokens per sequence and step; above 0 the drafter takes memory too.

    Returns:
        Used memory by part, and capacity [B].
    """
    # Memory takes one mean context for all sequences, so that the caches of batch and prompts are averaged.
    sequences = sizes["batch"] + sizes["prompts"]
    cached = sizes["batch"] * sizes["context"] + sizes["prompts"] * (sizes["tokens"] + sizes["prefix"])
    rows = sizes["batch"] * sizes["query"] + sizes["prompts"] * sizes["tokens"]
    return drafted_memory(
        model, system, drafts=drafts, batch=sequences, context=cached / sequences, layout=layout, engine=engine,
        step_tokens=rows / np.asarray(layout.dp) / np.asarray(layout.microbatches),
    )  # fmt: skip


def step_summary(
    model: ModelLike,
    system: SystemLike,
    *,
    layout: Layout | None = None,
    engine: Engine | str | None = None,
    anchor: Anchors | Anchor | None = None,
    speculation: Speculation = NONE,
    **sizes: Number,
) -> StepSummary:
    """Return one pass with its range, ideal time, memory and notes.

    Args:
        model: Catalogue name, path or model.
        system: Catalogue name, path or system.
        layout: Layout of the replica; one chip by default.
        engine: Name or engine; the system's by default.
        anchor: The user's own runs, which correct the times.
        speculation: Speculative tokens, which the step verifies and drafts.
        **sizes: Sizes of the pass, as arguments of `mixed_step`.

    Returns:
        The step and everything that `steptime step` shows.
    """
    model, system = model_and_system(model, system, engine)
    layout, runs_on = layout or Layout(), engine_for(system, engine)
    model = as_served(model, system, runs_on)
    engine = anchored(runs_on, anchor, model=model.name, system=system.name, formats=stored_formats(model))
    work: dict[str, Any] = {**NO_PASS, **sizes}
    drafts = speculation.drafts
    timed: Callable[..., Step] = partial(drafted_step, **work, drafts=drafts, layout=layout)
    step, limits, shares = explained_step_range(model, system, **work, layout=layout, engine=engine, drafts=drafts)

    notes = []
    if drafts and np.any(work["batch"] > 0):
        plain = timed(model, system, query=1, drafts=0, engine=engine).total
        gained = float(np.mean(speculation.acceptance * plain / step.total))
        notes.append(
            f"without drafts a step takes {show(float(np.mean(plain)), 's')}; with drafts, tokens come {speed_change(gained)}"
        )
    if drafts and (words := drafter_words(model)):
        notes.append(words)
    if model.adapters is not None:
        plain = timed(replace(model, adapters=None), system, engine=engine).total
        longer = 100 * (float(np.mean(step.total / plain)) - 1)
        notes.append(f"without LoRA adapters a step takes {show(float(np.mean(plain)), 's')}; with them {longer:.1f} % longer")
    reach = np.max(np.maximum(work["context"], work["tokens"] + work["prefix"]))
    if reach > model.max_context:
        notes.append(f"a context of {reach:,} tokens exceeds the {model.max_context:,.0f} of the model")
    # Where the engine has a rule for a format, the chip's units do not decide.
    formats = [name for name in stored_formats(model) if not has_rule(engine.arithmetic, name)]
    if without_units := missing_units(formats, system.chip.peak, system.name):
        notes.append(without_units)
    # The ideal engine is a bound without a range, so that no distance from measured runs applies.
    flags = () if limits is None else distances(
        engine, system, layout, model=model, drafts=bool(drafts), context=reach, batch=work["batch"]
    )  # fmt: skip
    if unmeasured := unmeasured_engine_warning(engine, system):
        notes.append(unmeasured)
    if differences := [flag.words for flag, applies in flags if np.any(applies)]:
        notes.append(f"wider range, because the measured runs differ from this step: {', '.join(differences)}")
    images = None
    if model.media is not None:
        from steptime.questions.image_cost import media_cost

        images = media_cost(model, model.media.readings)
    decodes, prefills = bool(np.any(work["batch"] > 0)), bool(np.any(work["prompts"] * work["tokens"] > 0))

    # A `StepSummary` is a `Step` with more fields, so that all terms are copied.
    terms: dict[str, Any] = {f.name: getattr(step, f.name) for f in fields(Step)}
    return StepSummary(
        **terms,
        model=model.name,
        system=system.name,
        engine=engine.name,
        layout=layout,
        phase="mixed" if decodes and prefills else "decode" if decodes else "prefill",
        **work,
        range=limits,
        range_shares=shares,
        ideal=None if limits is None else timed(model, system, engine=IDEAL),
        anchor=engine.anchor,
        unanchored=timed(model, system, engine=bare(engine)) if engine.anchor else None,
        memory=pass_memory(model, system, work, layout=layout, engine=engine, drafts=drafts),
        adapters=0 if model.adapters is None else model.adapters.slots,
        adapter_bytes=weights_per_chip(model, layout) - weights_per_chip(replace(model, adapters=None), layout),
        weights=", experts in ".join(dict.fromkeys(filter(None, stored_formats(model)))),
        notes=(*notes, *model.notes),
        images=images,
        speculation=speculation,
        energy=step_energy(
            model, system, work, layout=layout, engine=engine, seconds=step.total, tokens=_all_tokens(work, speculation),
            time_range=limits,
        ),
    )  # fmt: skip


def _all_tokens(sizes: Mapping[str, Any], speculation: Speculation) -> Number:
    """Return the decode and prefill tokens of a step, over all sequences of the replica."""
    tokens: Number = sizes["prompts"] * sizes["tokens"] + sizes["batch"] * _step_yield(sizes["query"], speculation)
    return tokens


def bind_pass(values: Mapping[str, Any]) -> tuple[StepInputs, Model, System, Engine, Layout]:
    """Return the inputs of a pass, and the objects that they name.

    Args:
        values: Values of `StepInputs` by name, and figures of the machine by path.

    Returns:
        Checked inputs, model, system, engine, and layout.

    Raises:
        RangeError: If the phase does not use an input that is given, or a drafter has no drafts.
    """
    phase = values.get("phase") or "decode"
    for name in IDLE.get(phase, ()):
        if (value := values.get(name)) is not None and np.size(value):
            other_phase = "prefill" if phase == "decode" else "decode"
            raise RangeError(
                f"{name}: has no meaning in phase {phase}; give phase={other_phase} or phase=mixed, or leave it out"
            )
    inputs = bind(StepInputs, values, "step")
    inputs.check_drafting(values.get("drafts"), inputs.acceptance)
    model, system, engine = read_subject(values)
    model = as_served(model, system, engine)
    # Images and recordings are part of the prompts, and lengthen their prefill.
    if inputs.phase != "decode":
        model, gained = with_prompt_media(model, inputs, float(np.mean(inputs.tokens)))
        inputs = replace(inputs, tokens=inputs.tokens + gained) if gained else inputs
    sizes = inputs.given_sizes()
    layout = Layout(**sizes, microbatches=sizes.get("pp", 1) if inputs.microbatches is None else inputs.microbatches)
    return inputs, model, system, engine, layout


def solve(values: Mapping[str, Any]) -> StepSummary:
    """Return one pass with all its answers.

    Args:
        values: Values of `StepInputs` by name, and figures of the machine by path.

    Returns:
        The step with range, memory and notes.
    """
    inputs, model, system, engine, layout = bind_pass(with_layout(STEP, values))
    check_imbalance(values, layout)
    speculation = pass_speculation(inputs, model)
    return step_summary(model, system, layout=layout, engine=engine, speculation=speculation, **pass_sizes(inputs, layout))


ANSWERS = {
    TIME: Answer(meaning="time of the pass", unit="s"),
    LOW: Answer(meaning="lower end of its 90 % range", unit="s"),
    HIGH: Answer(meaning="upper end of its 90 % range", unit="s"),
    "tokens_per_second_per_user": Answer(meaning="output speed of each sequence", unit="tok/s"),
    "tokens_per_second_per_chip": Answer(meaning="throughput per chip, decode and prefill tokens", unit="tok/s"),
    COST: Answer(meaning="rent per million decode and prefill tokens", unit="USD"),
    f"{COST}_low": Answer(meaning="lower end of its 90 % range, from the range of the time", unit="USD"),
    f"{COST}_high": Answer(meaning="upper end of its 90 % range", unit="USD"),
    WATTS: Answer(meaning="power of a chip at this load, without host, network and cooling", unit="W"),
    JOULES: Answer(meaning="energy of all chips per decode and prefill token, with host, network and cooling", unit="J"),
    "memory_share": Answer(meaning="used share of a chip's memory"),
    "fits": Answer(meaning="whether it fits (1) or not (0)"),
    "bound": Answer(meaning="the largest term of the time", text=True),
    **DESIGN_ANSWERS,
}
RANGES = frozenset({LOW, HIGH, f"{COST}_low", f"{COST}_high"})


def ask(values: Mapping[str, Any], answer_names: frozenset[str]) -> dict[str, Any]:
    """Return the answers about one pass, or about arrays of passes.

    Args:
        values: Values of `StepInputs` by name, and figures of the machine by path; scalars or arrays that broadcast.
        answer_names: Names of the answers; empty for all.

    Returns:
        Answers by name, in base units, with the shape of the inputs.
    """
    answer_names = answer_names or frozenset(ANSWERS)
    inputs, model, system, engine, layout = bind_pass(values)
    check_imbalance(values, layout)
    speculation, sizes = pass_speculation(inputs, model), pass_sizes(inputs, layout)
    drafts, gained = speculation.drafts, _step_yield(sizes["query"], speculation)
    step = drafted_step(model, system, **sizes, drafts=drafts, layout=layout, engine=engine)
    tokens = _all_tokens(sizes, speculation)

    # Rates and costs count all chips of the replica.
    rent_rate = deployment_rent(layout.chips, system.rent.typical)
    answers = {
        TIME: step.total,
        "tokens_per_second_per_user": np.nan if inputs.phase == "prefill" else gained / step.total,
        "tokens_per_second_per_chip": tokens / layout.chips / step.total,
        COST: usd_per_million(rent_rate, tokens / step.total),
    }

    # Ranges and memory cost more than the step itself, so that they are computed only if a caller wants them.
    if answer_names & RANGES:
        ends = step_range(model, system, **sizes, layout=layout, engine=engine, drafts=drafts) if has_range(engine) else None
        paid_ends = None if ends is None else _with_prior(step.total, ends, speculation)
        for number_of_end, side in enumerate(("low", "high")):
            answers[f"{TIME}_{side}"] = np.nan if ends is None else ends[number_of_end]
            end = np.nan if paid_ends is None else paid_ends[number_of_end]
            answers[f"{COST}_{side}"] = usd_per_million(rent_rate, tokens / end)
    if answer_names & {"memory_share", "fits"}:
        memory = pass_memory(model, system, sizes, layout=layout, engine=engine, drafts=drafts)
        answers |= {"memory_share": memory.used / memory.capacity, "fits": memory.fits}
    if answer_names & {WATTS, JOULES}:
        energy = step_energy(model, system, sizes, layout=layout, engine=engine, seconds=step.total, tokens=tokens)
        answers[WATTS], answers[JOULES] = (np.nan, np.nan) if energy is None else (energy.watts, energy.joules_per_token)
    if "bound" in answer_names:
        answers["bound"] = step.bound
    return answers | design_answers(model, system, answer_names)


# Questions about one serving layout.
WITH_LAYOUT = ("step", "simulate")


def with_layout(question: Question, fixed: Mapping[str, Any], axes: Sequence[Any] = ()) -> dict[str, Any]:
    """Return fixed inputs with the default layout of their model and system.

    The inputs stay as they are in three cases: the user gives a parallel size, the model fits on one chip, or model or system
    vary.

    Args:
        question: A question of `WITH_LAYOUT`; the inputs of any other question stay as they are.
        fixed: Inputs of every point.
        axes: Inputs that vary; the layout must fit the smallest of their values.

    Returns:
        The inputs, with tp, pp and ep if the model does not fit on one chip.
    """
    values = {**fixed, **{axis.name: axis.values for axis in axes}}
    values = {name: value for name, value in values.items() if value is not None}
    # A plan searches its layout, and training has another one.
    has_layout = question.name not in WITH_LAYOUT or not values.keys().isdisjoint(SIZES)
    is_subject_varied = any(axis.name in ("model", "system", *FORMATS) for axis in axes)
    if has_layout or is_subject_varied or not {"model", "system"} <= values.keys():
        return dict(fixed)
    try:
        model, system, engine = read_subject({name: value for name, value in fixed.items() if name != WITHIN})
    except InputError:
        return dict(fixed)  # the question itself reports the error

    # The KV cache that the layout must hold depends on the question: a prompt, a context, or prompt and output.
    lengths = ("tokens", "prefix") if values.get("phase") == "prefill" else ("context",)
    if "output" in question.inputs:
        lengths = ("input", "output")

    # Defaults of the questions that have these inputs.
    usual = {"context": 4096, "tokens": 8192, "prefix": 0, "input": USUAL_INPUT, "output": USUAL_OUTPUT, "batch": 1}

    def size(name: str) -> Any:
        # A size may be a text such as 8k.
        value = values.get(name, usual[name])
        return read_value(name, value, question.inputs[name]) if isinstance(value, str) else value

    context = sum(float(np.min(size(name))) for name in lengths)
    batch = size("batch") if lengths == ("context",) else 1
    layout = default_layout(as_served(model, system, engine), system, engine=engine, batch=batch, context=context)
    return {**fixed, **{name: int(getattr(layout, name)) for name in SIZES if getattr(layout, name) > 1}}


STEP = Question(
    name="step",
    meaning="one forward pass: its time, rates, cost and memory",
    inputs={**inputs_from(StepInputs), **DESIGN},
    answers=ANSWERS,
    ask=ask,
    solve=solve,
    figures=True,
    vectorised=True,
    threads=True,
    shows=(TIME, "tokens_per_second_per_user", "tokens_per_second_per_chip", COST, "memory_share"),
    bands={TIME: (LOW, HIGH), COST: (f"{COST}_low", f"{COST}_high")},
    seconds=4e-7,
)
