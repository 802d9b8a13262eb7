r"""One forward pass: decode, prefill, or both at once, as named terms. The heart of steptime.

**Work.** A replica runs `batch` sequences of `context` tokens that each get `query` new ones, and `prompts` prompts of
`tokens` new tokens after a cached `prefix`. The batch is cut in $m$ micro-batches, and each attention group takes its part.

**Operators** take the overlap of their arithmetic and traffic (`roofline.overlap`) and run one after another, since each
needs the one before. **Collectives** follow alpha-beta (`network`) and wait for the operators of their own micro-batch.

**A cycle** joins the micro-batches and stages (`cycle`). Terms are those of whatever makes the cycle as long as it is, so that
they add up to it: collectives that hide behind operators are not among them.

**Bounds.** `lower` is the busiest resource, were all overlapped; `upper` is the sum, were nothing overlapped.

**Images.** Where the prompts of a model hold images or recordings (`readings.with_media`), the passes of its towers are added
as terms of their own (`towers`).

Left out: norms and element-wise arithmetic (under 1 % of FLOPs), sampling, the write of new cache entries ($1/L$ of the read),
the vocabulary-parallel embedding's all-reduce (one of some hundred), and switch-side reduction of collectives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from steptime.catalog.hardware_loading import SystemLike, resolve_system
from steptime.hardware.system import System
from steptime.hardware.what_if import is_scalar
from steptime.models.model import Model
from steptime.models.model_loading import ModelLike, resolve_model
from steptime.number_checks import (
    MOST_SEQUENCES,
    MOST_TOKENS,
    Array,
    Number,
    at_least_zero,
    between,
    check_shapes,
    has_nonzero,
    positive,
)
from steptime.physics.bias_correction import Anchor, Anchors
from steptime.physics.chip_memory import stage_share
from steptime.physics.chunked_evaluation import Assembly, block_slices, in_threads, split_blocks
from steptime.physics.collectives import run_hops, run_network
from steptime.physics.engine import Engine, anchored, engine_for
from steptime.physics.layout import NAMES, Layout, check_ways
from steptime.physics.layout_rules import check_rules
from steptime.physics.microbatch_pipeline import bounds, cycle
from steptime.physics.op_work import Pass, Work, build_work, ledger, slowness
from steptime.physics.operator_time import run_layers, run_stem
from steptime.physics.time_ledger import Clock, Entry, accumulate
from steptime.physics.vision_encoder import tower_passes
from steptime.result_base import Tabular, broadcast, in_words, unit
from steptime.svg import PART_NAMES, in_colours, stacked
from steptime.units import show

TIMES = ("lower", "total", "upper", "latency")
PASS_SIZES = ("batch", "context", "query", "prompts", "tokens", "prefix")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Step(Tabular):
    """The time of one step [s]: by named term and by resource, each adding up to `total`, its two bounds, and its latency.

    `terms` say what is done (projections, attention, experts, all-reduce, ...); `resources` say what it waits for (compute,
    weights, kv, activations, the domains of the network, latency, overhead). `latency` is from the start of the first
    micro-batch to the end of the last: a pass of P micro-batches through P stages lasts longer than the period at which passes
    follow one another. All share one broadcast shape.
    """

    SCHEMA: ClassVar[str] = "steptime.step/2"
    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "bound": unit("", "resource that takes the most", kind="text or list")
    }

    terms: Mapping[str, Array] = field(metadata=unit("s", "time by what is done: attention, experts, all-reduce, ..."))
    resources: Mapping[str, Array] = field(metadata=unit("s", "time by what is waited for: compute, weights, kv, ..."))
    lower: Array = field(metadata=unit("s", "lower bound: the busiest resource, were everything overlapped"))
    total: Array = field(metadata=unit("s", "the engine's estimate"))
    upper: Array = field(metadata=unit("s", "upper bound: the sum, were nothing overlapped"))
    latency: Array = field(metadata=unit("s", "from the start of the first micro-batch to the end of the last"))

    @property
    def bound(self) -> Any:
        """The resource that takes the largest part of the step."""
        names = list(self.resources)
        if not names:  # a step of no points
            return np.full(np.shape(self.total), "")
        values = np.broadcast_arrays(*self.resources.values())
        return np.array(names)[np.argmax(np.stack(values), axis=0)]

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the time with its bounds; the largest terms and resources with their shares of all points."""
        title = f"Step: {_seconds(self.total)}"
        total = float(np.sum(self.total)) or 1.0
        return title, {
            "bounds": f"{_seconds(self.lower)}, all overlapped; {_seconds(self.upper)}, nothing overlapped",
            "terms": _largest(self.terms, total),
            "waits for": _largest(self.resources, total),
        }

    def drawing(self) -> str:
        """Return what a single step waits for as a bar; "" for several."""
        if np.ndim(self.total):
            return ""
        return stacked({PART_NAMES[name]: float(value) for name, value in in_colours(self.resources).items()}, "s")

    def columns(self) -> dict[str, Any]:
        """Return a row for each point: total, bounds, what binds, and every term and resource [s]."""
        columns = {"total_s": self.total, "lower_s": self.lower, "upper_s": self.upper, "bound": self.bound}
        columns |= {f"{_worded(name)}_s": seconds for name, seconds in self.terms.items()}
        return broadcast(columns | {f"waits_for_{_worded(name)}_s": seconds for name, seconds in self.resources.items()})


def _seconds(values: Number) -> str:
    return in_words(values, lambda value: show(value, "s"))


def _largest(parts: Mapping[str, Number], total: float, limit: int = 3) -> str:
    """Write the largest parts with their shares."""
    sums = sorted(((float(np.sum(value)) / total, name) for name, value in parts.items()), reverse=True)
    omitted = len(sums) - limit
    return ", ".join(f"{name} {share:.0%}" for share, name in sums[:limit]) + (f" and {omitted} more" if omitted > 0 else "")


def _worded(name: str) -> str:
    return name.replace(" ", "_").replace("-", "_")


def _evaluate(
    model: Model,
    system: System,
    layout: Layout,
    engine: Engine,
    work: Work,
    *,
    merged: bool | None = None,
    parts: bool = True,
) -> tuple[Step, list[Entry]]:
    """Return the step of one micro-batch's work, cycled over micro-batches and stages, and the entries that add up to it.

    merged: whether operators that take the same time together as apart are joined; by default where that is exact. parts:
    whether the step has terms and resources.
    """
    is_mergeable = not has_nonzero(engine.kernels.activation_traffic) and not has_nonzero(engine.kernels.fill_bytes)
    explained, merged = merged is not None, is_mergeable if merged is None else merged
    totals = ledger(model, merged=merged)
    layers, stem, links, hops = (Clock(explained=explained, parts=parts) for _ in range(4))
    context = Pass(work, system, layout, engine)
    run_layers(layers, totals, model, context, merged=merged)
    run_stem(stem, model, context, merged=merged)
    run_network(links, model, work, system, layout, engine)
    run_hops(hops, model, work, system, layout, engine)
    share, m = stage_share(model, layout), layout.microbatches
    cycled = cycle(layers.total, stem.total, links.total, hops.total, microbatches=m, share=share)
    slower = slowness(system, engine)
    cycled = cycled.slowed(slower)
    lower, upper = bounds(layers.busy, stem.busy, links.busy, hops.total, microbatches=m, share=share)
    lower, upper = slower * lower, slower * upper
    terms: dict[str, Number] = {}
    resources: dict[str, Number] = {}
    entries: list[Entry] = []
    for part, cycle_counts in ((layers, cycled.layers), (stem, cycled.stem), (links, cycled.links), (hops, cycled.hops)):
        accumulate(terms, part.terms, cycle_counts)
        accumulate(resources, part.resources, cycle_counts)
        entries += [replace(entry, weight=cycle_counts) for entry in part.entries]
    shape = np.broadcast_shapes(np.shape(cycled.period), np.shape(upper), np.shape(lower))

    def full(value: Number) -> Any:
        totals = np.asarray(value, dtype=np.float64)
        return totals if totals.shape == shape else np.broadcast_to(totals, shape)

    step = Step(
        terms={name: full(value) for name, value in terms.items()},
        resources={name: full(value) for name, value in resources.items() if has_nonzero(value)},
        lower=full(lower),
        total=full(cycled.period),
        upper=full(np.maximum(upper, cycled.period)),
        latency=full(cycled.latency),
    )
    return step, entries


def mixed_step(
    model: ModelLike,
    system: SystemLike,
    *,
    batch: Number = 0,
    context: Number = 0,
    query: Number = 1,
    prompts: Number = 0,
    tokens: Number = 0,
    prefix: Number = 0,
    layout: Layout | None = None,
    engine: Engine | str | None = None,
    anchor: Anchors | Anchor | None = None,
    parts: bool = True,
    legal: bool = False,
) -> Step:
    """Return the time of a step that decodes `batch` sequences and prefills `prompts` chunks beside them.

    batch [sequences per replica] at context [tokens], each getting query [tokens]; prompts [per replica] of tokens [new tokens
    each] after prefix [cached tokens each]. All numbers and the fields of layout may be arrays that broadcast.
    The engine is that of the system (`engine.default_engine`) unless named; "ideal" is the bound that physics sets, and
    `uncertainty.step_range` says how sure the time of a real one is. anchor: one's own runs (`st.load_anchor`).
    model and system may be named, as for `load_model` and `load_system`. parts: whether the step has terms and resources, too;
    without them it takes half as long. legal: whether sizes and layouts are known to be sound, as those of a search.
    Raises LayoutError where the layout does not divide the model, RangeError for negative sizes or no work at all.
    """
    model, system = resolve_model(model), resolve_system(system)
    runs_on = engine_for(system, engine)
    if anchor is not None:
        runs_on = anchored(runs_on, anchor, model=model.name, system=system.name)
    inputs = {"batch": batch, "context": context, "query": query, "prompts": prompts, "tokens": tokens, "prefix": prefix}
    layout = Layout() if layout is None else layout
    arrays = _arrays(inputs, layout) if legal else _checked(inputs, layout)
    blocks = split_blocks(arrays)
    if len(blocks) == 1 or not is_scalar(system):
        return _one_block(model, system, runs_on, arrays, parts=parts, legal=legal)
    return _filled(model, system, runs_on, arrays, blocks, parts=parts)


def ledger_of_step(
    model: Model,
    system: System,
    sizes: Mapping[str, Number],
    *,
    layout: Layout | None = None,
    engine: Engine | str | None = None,
) -> tuple[Step, list[Entry]]:
    """Return a step and every operator, collective and overhead behind it, as recorded: their `counted` seconds add up to it.

    sizes: the arguments of `mixed_step`.
    """
    inputs = {name: sizes.get(name, 1 if name == "query" else 0) for name in PASS_SIZES}
    arrays = _checked(inputs, Layout() if layout is None else layout)
    return _one_layout(model, system, engine_for(system, engine), arrays, merged=False)


def _checked(inputs: dict[str, Number], layout: Layout) -> dict[str, Any]:
    """Return the arguments of a step and the axes of its layout as arrays; raise RangeError for sizes out of bounds."""
    for name, value in inputs.items():
        largest = MOST_SEQUENCES if name in ("batch", "prompts") else MOST_TOKENS
        if name == "query":
            between(name, value, 1, largest, "token")
        else:
            at_least_zero(name, value, maximum=largest)
    checked_layout = check_ways(layout)
    arrays = _arrays(inputs, checked_layout)
    check_shapes(**arrays)
    return arrays


def _arrays(inputs: dict[str, Number], layout: Layout) -> dict[str, Any]:
    values = inputs | {name: getattr(layout, name) for name in NAMES}
    return {name: np.asarray(value) for name, value in values.items()}


def _filled(
    model: Model, system: System, engine: Engine, arrays: dict[str, Any], blocks: list[dict[str, Any]], *, parts: bool
) -> Step:
    """Return the steps of blocks as one, along the axis that was cut; constants of an engine may have axes before it."""
    places = block_slices(blocks)
    assemblies = {
        name: Assembly(places[-1].stop, axis=-max(a.ndim for a in arrays.values())) for name in ("terms", "resources", "")
    }

    def fill(number: int) -> tuple[list[str], list[str]]:
        step = _one_block(model, system, engine, blocks[number], parts=parts)
        assemblies["terms"].put(places[number], step.terms)
        assemblies["resources"].put(places[number], step.resources)
        assemblies[""].put(places[number], {name: getattr(step, name) for name in TIMES})
        return list(step.terms), list(step.resources)

    orders = in_threads(fill, range(len(blocks)))
    terms, resources = (dict.fromkeys(name for order in orders for name in order[k]) for k in range(2))
    return Step(
        terms={name: assemblies["terms"].arrays[name] for name in terms},
        resources={name: assemblies["resources"].arrays[name] for name in resources},
        **{name: assemblies[""].arrays[name] for name in TIMES},
    )


def _one_block(
    model: Model, system: System, engine: Engine, arrays: dict[str, Any], *, parts: bool, legal: bool = False
) -> Step:
    return _one_layout(model, system, engine, arrays, parts=parts, legal=legal)[0]


def _one_layout(
    model: Model,
    system: System,
    engine: Engine,
    arrays: dict[str, Any],
    *,
    merged: bool | None = None,
    parts: bool = True,
    legal: bool = False,
) -> tuple[Step, list[Entry]]:
    layout = Layout(**{name: arrays[name] for name in NAMES})
    if not legal:
        check_rules(layout, model, system)
    layout = Layout(**{name: arrays[name] * 1.0 for name in NAMES})  # as what they divide: mixed kinds are slow to combine
    step, entries = _evaluate(model, system, layout, engine, build_work(arrays, layout), merged=merged, parts=parts)
    for tower_pass in tower_passes(model.media, arrays, layout):
        tower_step, tower_entries = _evaluate(
            tower_pass.model, system, tower_pass.layout, engine, tower_pass.work, merged=merged, parts=parts
        )
        step, entries = (
            add_passes(step, [(tower_pass.share, tower_step)], tower_pass.term),
            entries + tower_pass.entries(tower_entries),
        )
    return step, entries


def scale_step(step: Step, factor: Number) -> Step:
    """Return a step that takes `factor` times as long in all its parts."""
    if np.all(np.asarray(factor) == 1):
        return step
    return Step(
        terms={name: seconds * factor for name, seconds in step.terms.items()},
        resources={name: seconds * factor for name, seconds in step.resources.items()},
        lower=step.lower * factor,
        total=step.total * factor,
        upper=step.upper * factor,
        latency=step.latency * factor,
    )


def first_step(step: Step, dimensions: int) -> Step:
    """Return the first of steps along a leading axis that some of a step's parts may have."""

    def first(value: Array) -> Array:
        return np.asarray(value[0] if np.ndim(value) > dimensions else value)

    return Step(
        terms={name: first(value) for name, value in step.terms.items()},
        resources={name: first(value) for name, value in step.resources.items()},
        **{name: first(getattr(step, name)) for name in TIMES},
    )


def add_passes(step: Step, passes: Iterable[tuple[Number, Step]], term: str | None) -> Step:
    """Return a step with passes after it, each so many times; their time is of `term`, or of their own terms for None."""
    rows = [(1.0, step), *passes]
    after = sum((count * single.total for count, single in rows[1:]), np.zeros_like(step.total))
    shape = np.broadcast_shapes(np.shape(step.total), np.shape(after))

    def weighted_sum(name: str) -> Array:
        total: Array = np.broadcast_to(sum((count * getattr(single, name) for count, single in rows), np.asarray(0.0)), shape)
        return total

    def summed(parts: Iterable[tuple[Number, Mapping[str, Array]]]) -> dict[str, Array]:
        sums: dict[str, Number] = {}
        for count, seconds_by_key in parts:
            for key, seconds in seconds_by_key.items():
                sums[key] = sums.get(key, 0.0) + count * seconds
        return {key: np.broadcast_to(np.asarray(seconds), shape) for key, seconds in sums.items()}

    term_rows = [(count, single.terms) for count, single in rows]
    return Step(
        terms=summed(term_rows if term is None else [term_rows[0], (1.0, {term: after})]),
        resources=summed((count, single.resources) for count, single in rows),
        lower=weighted_sum("lower"),
        total=weighted_sum("total"),
        upper=weighted_sum("upper"),
        latency=weighted_sum("latency"),
    )


def decode_step(
    model: ModelLike,
    system: SystemLike,
    *,
    batch: Number,
    context: Number,
    query: Number = 1,
    layout: Layout | None = None,
    engine: Engine | str | None = None,
    anchor: Anchors | Anchor | None = None,
) -> Step:
    """Return the time in which each of `batch` sequences at `context` [tokens] gets its next token.

    `batch` counts the sequences of one replica, all attention groups together. `query` > 1 verifies drafted tokens.
    """
    positive("batch", batch, maximum=MOST_SEQUENCES)
    positive("context", context, maximum=MOST_TOKENS)
    return mixed_step(model, system, batch=batch, context=context, query=query, layout=layout, engine=engine, anchor=anchor)


def prefill_step(
    model: ModelLike,
    system: SystemLike,
    *,
    tokens: Number,
    prompts: Number | None = None,
    prefix: Number = 0,
    layout: Layout | None = None,
    engine: Engine | str | None = None,
    anchor: Anchors | Anchor | None = None,
) -> Step:
    """Return the time in which `prompts` prompts of `tokens` new tokens are read, each after a cached `prefix`.

    By default every attention group reads one prompt.
    """
    layout = check_ways(Layout() if layout is None else layout)
    prompts = layout.dp if prompts is None else prompts
    positive("tokens", tokens, maximum=MOST_TOKENS)
    positive("prompts", prompts, maximum=MOST_SEQUENCES)
    inputs: dict[str, Any] = {"prompts": prompts, "tokens": tokens, "prefix": prefix}
    return mixed_step(model, system, **inputs, layout=layout, engine=engine, anchor=anchor)
