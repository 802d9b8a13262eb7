r"""One step (forward pass): decode, prefill, or both, as named terms.

**Work.** A replica decodes `batch` sequences of `context` tokens, each with `query` new tokens. It also prefills `prompts`
prompts of `tokens` new tokens after a cached `prefix`. The batch is split into $m$ micro-batches, and each data-parallel
rank takes its part.

**Operators** overlap their arithmetic and memory traffic (`operator_time.overlap`). They run one after another, because each
needs the result of the previous one. **Collectives** follow the alpha-beta model (`network_time`) and wait for the
operators of their micro-batch.

**A cycle** joins the micro-batches and stages (`cycle`). The terms are those of the limit that sets the cycle, so that they
add up to it: collectives that overlap with operators are not included.

**Bounds.** `lower` is the time of the busiest resource, with full overlap. `upper` is the sum, with no overlap.

**Images.** Prompts may contain images or recordings. The passes of the vision or audio towers are then added as separate
terms (`vision_encoder`).

**Cycle of micro-batches.** Let $c$, $s$ and $n$ be the seconds of one micro-batch in all stages together: on operators of
layers, on the stem (embedding and head) and on collectives. Let $h$ be its seconds on hops between stages, and $\varphi$
the share of the layers in the stage with the most layers. A stage must process all $m$ micro-batches, on its arithmetic and
on its links. A micro-batch must pass all stages before its next token:

$$ t = \max(m (\varphi c + s),\; m \varphi n,\; c + s + n + h). $$

One micro-batch on one stage takes $c + s + n$. With two, the collectives of one overlap with the operators of the other
(two-batch overlap), at the cost of reading the weights twice. With $P$ micro-batches on $P$ stages it is the looped
pipeline of lecture section 10.

Not included:

- Norms and element-wise arithmetic (under 1 % of FLOPs), and sampling.
- The write of new cache entries ($1/L$ of the read).
- The all-reduce of the vocabulary-parallel embedding (one of some hundred).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np

from steptime.catalog.hardware_loading import SystemLike
from steptime.errors import RangeError, short_repr
from steptime.hardware.system import System
from steptime.hardware.what_if import is_scalar
from steptime.models.model import Model, stored_formats
from steptime.models.model_loading import ModelLike
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
from steptime.physics.collectives import run_network
from steptime.physics.engine import Engine, anchored, engine_for, model_and_system
from steptime.physics.layout import NAMES, Layout, check_ways
from steptime.physics.layout_rules import check_rules
from steptime.physics.op_work import Pass, build_work, slowness
from steptime.physics.operator_time import run_operators, wait_for_launches
from steptime.physics.time_ledger import Clock, Entry, accumulate
from steptime.physics.vision_encoder import tower_passes
from steptime.result_base import Tabular, broadcast, in_words, unit
from steptime.svg import PART_NAMES, in_colours, stacked
from steptime.units import percent, show


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """A cycle of micro-batches: `period` and `latency` [s], and weights of the parts.

    The weights times the seconds of the parts add up to the period. Collectives that overlap with operators
    have the weight 0.
    """

    period: Number
    latency: Number
    layers: Number
    stem: Number
    links: Number
    hops: Number


def cycle(layers: Number, stem: Number, links: Number, hops: Number, *, microbatches: Number, share: Number) -> Cycle:
    r"""Return the cycle of `microbatches` micro-batches over pipeline stages.

    The latency is from the start of the first micro-batch to the end of the last. One micro-batch spends $a = \varphi
    (c + n) + s$ in the stage with the most layers, and the rest of its time elsewhere. That stage processes all $m$.
    Each takes $a$, or $t / m$ where micro-batches overlap in the stage. The latency is
    $c + s + n + h - a + \min(t, m a)$. On one stage the latency is the period. The formula is exact without collectives
    where the stem is in the stage with the most layers. With collectives it ignores how those of neighbouring micro-batches
    interlock.

    Args:
        layers: Seconds of one micro-batch on operators of layers, in all stages together.
        stem: Seconds on embedding and head.
        links: Seconds on collectives.
        hops: Seconds on transfers between stages.
        microbatches: Number of micro-batches.
        share: Share of the layers in the stage with the most layers; 1 for one stage.

    Returns:
        The cycle, with the broadcast shape of the arguments.

    >>> one = cycle(3.0, 0.0, 1.0, 0.0, microbatches=1, share=1.0)
    >>> float(one.period), float(one.latency)
    (4.0, 4.0)
    >>> two = cycle(3.0, 0.0, 1.0, 0.0, microbatches=2, share=1.0)  # collectives hide
    >>> float(two.period), float(two.layers), float(two.links)
    (6.0, 2.0, 0.0)
    >>> loop = cycle(8.0, 0.0, 0.0, 0.0, microbatches=4, share=0.25)  # (2P - 1) / P of the period
    >>> float(loop.period), float(loop.latency)
    (8.0, 14.0)
    """
    # Most searches have one micro-batch: skip the comparisons.
    chain = layers + stem + links + hops
    if not has_nonzero(microbatches - 1):
        return Cycle(period=chain, latency=chain, layers=1.0, stem=1.0, links=1.0, hops=1.0)
    by_operators, by_links = microbatches * (share * layers + stem), microbatches * share * links
    period = np.maximum(np.maximum(by_operators, by_links), chain)

    # Exactly one of three limits sets the period; its parts get the weights that add up to it.
    in_chain = chain >= period
    operators = ~in_chain & (by_operators >= by_links)
    linked = ~in_chain & ~operators
    unchained = np.where(in_chain, 1.0, 0.0)
    single = share * (layers + links) + stem
    return Cycle(
        period=period,
        latency=np.maximum(chain - single + np.minimum(period, microbatches * single), period),
        layers=unchained + operators * microbatches * share,
        stem=unchained + operators * microbatches,
        links=unchained + linked * microbatches * share,
        hops=unchained,
    )


def bounds(
    operators: dict[str, Number],
    stem: dict[str, Number],
    links: dict[str, Number],
    hops: Number,
    *,
    microbatches: Number,
    share: Number,
    host: Number = 0.0,
) -> tuple[Number, Number]:
    """Return lower and upper bound of a step [s]: full overlap and no overlap.

    Args:
        operators: Busy seconds of each resource on operators of layers, in one micro-batch.
        stem: Busy seconds of each resource on embedding and head.
        links: Busy seconds of each resource on collectives.
        hops: Seconds on transfers between stages; only in the upper bound.
        microbatches: Number of micro-batches.
        share: Share of the layers in the stage with the most layers.
        host: Seconds in which a host launches the kernels of all layers for one micro-batch; no chip is faster.

    Returns:
        Two times in seconds.
    """
    fullest = microbatches * share
    lower: Number = np.maximum(host, fullest * host) if has_nonzero(host) else 0.0
    serial: Number = 0.0
    serial_stage: Number = 0.0
    for name in dict.fromkeys((*operators, *stem, *links)):
        inside, outside = operators.get(name, 0.0) + links.get(name, 0.0), stem.get(name, 0.0)
        latency, stage = inside + outside, fullest * inside + microbatches * outside
        lower = np.maximum(lower, np.maximum(latency, stage))
        serial, serial_stage = serial + latency, serial_stage + stage
    return lower, np.maximum(np.maximum(serial + hops, serial_stage), lower)


TIMES = ("lower", "total", "upper", "latency")
# Tables of a step by name, of which `parts` may choose one.
PARTS_OF_STEP = ("terms", "resources")
PASS_SIZES = ("batch", "context", "query", "prompts", "tokens", "prefix")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Step(Tabular):
    """The time of one step [s]: by term and by resource, with bounds and latency.

    `terms` give the work (projections, attention, experts, all-reduce, ...). `resources` give the limit (compute, weights,
    kv, activations, the domains of the network, latency, overhead). Both add up to `total`. `latency` is from the start of
    the first micro-batch to the end of the last: a pass of P micro-batches through P stages lasts longer than the period
    between passes. All arrays share one broadcast shape.
    """

    SCHEMA: ClassVar[str] = "steptime.step/2"
    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "bound": unit("", "resource with the largest part of the step", kind="text or list")
    }

    terms: Mapping[str, Array] = field(metadata=unit("s", "time by kind of work: attention, experts, all-reduce, ..."))
    resources: Mapping[str, Array] = field(metadata=unit("s", "time by limiting resource: compute, weights, kv, ..."))
    lower: Array = field(metadata=unit("s", "lower bound: time of the busiest resource, with full overlap"))
    total: Array = field(metadata=unit("s", "estimated time with the engine"))
    upper: Array = field(metadata=unit("s", "upper bound: sum of all times, with no overlap"))
    latency: Array = field(metadata=unit("s", "time from the start of the first micro-batch to the end of the last"))

    @property
    def bound(self) -> Any:
        """The resource with the largest part of the step."""
        names = list(self.resources)
        # A step of no points has no resources.
        if not names:
            return np.full(np.shape(self.total), "")
        values = np.broadcast_arrays(*self.resources.values())
        return np.array(names)[np.argmax(np.stack(values), axis=0)]

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the time with its bounds, and the largest terms and resources.

        Returns:
            A title and a table of texts; shares are over all points.
        """
        title = f"Step: {_seconds(self.total)}"
        total = float(np.sum(self.total)) or 1.0
        return title, {
            "bounds": f"{_seconds(self.lower)} with full overlap; {_seconds(self.upper)} with no overlap",
            "terms": _largest(self.terms, total),
            "waits for": _largest(self.resources, total),
        }

    def drawing(self) -> str:
        """Draw the resources of one step as a bar.

        Returns:
            SVG text; "" for several points.
        """
        if np.ndim(self.total):
            return ""
        return stacked({PART_NAMES[name]: float(value) for name, value in in_colours(self.resources).items()}, "s")

    def columns(self) -> dict[str, Any]:
        """Return one row per point: total, bounds, limiting resource, terms and resources.

        Returns:
            Arrays of one shape by column name; times in seconds.
        """
        columns = {"total_s": self.total, "lower_s": self.lower, "upper_s": self.upper, "bound": self.bound}
        columns |= {f"{_worded(name)}_s": seconds for name, seconds in self.terms.items()}
        return broadcast(columns | {f"waits_for_{_worded(name)}_s": seconds for name, seconds in self.resources.items()})


def _seconds(values: Number) -> str:
    return in_words(values, lambda value: show(value, "s"))


def _largest(parts: Mapping[str, Number], total: float, limit: int = 3) -> str:
    """Write the largest parts with their shares."""
    sums = sorted(((float(np.sum(value)) / total, name) for name, value in parts.items()), reverse=True)
    omitted = len(sums) - limit
    return ", ".join(f"{name} {percent(share)}" for share, name in sums[:limit]) + (
        f" and {omitted} more" if omitted > 0 else ""
    )


def _worded(name: str) -> str:
    return name.replace(" ", "_").replace("-", "_")


def _clocked_step(clocks: Sequence[Clock], *, slower: Number, microbatches: Number, share: Number) -> tuple[Step, list[Entry]]:
    """Return the step over micro-batches and stages, and its entries.

    clocks: Sums of layers, of embedding and head, of collectives, and of transfers between stages, for one micro-batch.
    slower: Factor on all times (`op_work.slowness`).
    share: Share of the layers that the busiest stage has.
    """
    layers, stem, links, hops = clocks
    cycled = cycle(layers.total, stem.total, links.total, hops.total, microbatches=microbatches, share=share)
    cycled = Cycle(**{f.name: getattr(cycled, f.name) * slower for f in fields(cycled)})
    lower, upper = bounds(
        layers.busy, stem.busy, links.busy, hops.total, microbatches=microbatches, share=share, host=layers.host
    )
    lower, upper = slower * lower, slower * upper

    # Weighted by the cycle, the parts add up to its period.
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
    parts: bool | str = True,
    legal: bool = False,
) -> Step:
    """Return the time of a step that decodes sequences and prefills prompts together.

    All sizes and the fields of the layout may be arrays that broadcast.

    Args:
        model: A model, or a name as for `load_model`.
        system: A system, or a name as for `load_system`.
        batch: Sequences per replica in decode.
        context: Tokens in the KV cache of each sequence.
        query: New tokens per sequence and step; more than 1 verifies speculative tokens.
        prompts: Prompts per replica in prefill.
        tokens: New tokens of each prompt.
        prefix: Cached tokens of each prompt.
        layout: Parallel degrees; by default one chip.
        engine: An engine, or its name; by default that of the system (`engine.engine_for`). "ideal" has no
            losses.
        anchor: Correction from your own runs (`st.load_anchor`).
        parts: Whether the step has terms and resources, or the name of one of them; without them it takes half the time.
        legal: Whether the sizes and the layout are already checked, as in a search.

    Returns:
        The step, with the broadcast shape of the arguments. `uncertainty.step_range` gives the 90 % range of
        its time.

    Raises:
        LayoutError: The layout does not divide the model. RangeError: A size is negative or too large, or `parts` is unknown.
    """
    if parts not in (True, False, *PARTS_OF_STEP):
        raise RangeError(f"parts: must be True, False, {' or '.join(map(repr, PARTS_OF_STEP))}, got {short_repr(parts)}")
    model, system = model_and_system(model, system, engine)
    runs_on = engine_for(system, engine)
    if anchor is not None:
        runs_on = anchored(runs_on, anchor, model=model.name, system=system.name, formats=stored_formats(model))
    inputs = {"batch": batch, "context": context, "query": query, "prompts": prompts, "tokens": tokens, "prefix": prefix}
    layout = Layout() if layout is None else layout
    arrays = _arrays(inputs, layout, legal=legal)

    # Large inputs run in blocks that fit in cache, on all cores.
    blocks = split_blocks(arrays)
    if len(blocks) == 1 or not is_scalar(system):
        return _one_layout(model, system, runs_on, arrays, parts=parts, legal=legal)[0]
    return _filled(model, system, runs_on, arrays, blocks, parts=parts)


def ledger_of_step(
    model: Model,
    system: System,
    sizes: Mapping[str, Number],
    *,
    layout: Layout | None = None,
    engine: Engine | str | None = None,
) -> tuple[Step, list[Entry]]:
    """Return a step, and the operators, collectives and overheads behind it.

    Args:
        model: The model.
        system: The system.
        sizes: Sizes of `mixed_step` by name.
        layout: Parallel degrees; by default one chip.
        engine: An engine, or its name; by default the engine of the system.

    Returns:
        The step, and its entries, whose `counted` seconds add up to its total.
    """
    inputs = {name: sizes.get(name, 1 if name == "query" else 0) for name in PASS_SIZES}
    arrays = _arrays(inputs, Layout() if layout is None else layout)
    return _one_layout(model, system, engine_for(system, engine), arrays, merged=False)


def _arrays(inputs: dict[str, Number], layout: Layout, *, legal: bool = False) -> dict[str, Any]:
    """Return the sizes of a step and the fields of its layout as arrays; they are checked unless `legal`."""
    for name, value in () if legal else inputs.items():
        largest = MOST_SEQUENCES if name in ("batch", "prompts") else MOST_TOKENS
        if name == "query":
            between(name, value, 1, largest, "token")
        else:
            at_least_zero(name, value, maximum=largest)
    layout = layout if legal else check_ways(layout)
    arrays = {name: np.asarray(value) for name, value in (inputs | {n: getattr(layout, n) for n in NAMES}).items()}
    if not legal:
        check_shapes(**arrays)
    return arrays


def _filled(
    model: Model, system: System, engine: Engine, arrays: dict[str, Any], blocks: list[dict[str, Any]], *, parts: bool | str
) -> Step:
    """Return the steps of blocks as one, along the axis of the split.

    Constants of an engine may have axes before it.
    """
    places = block_slices(blocks)
    assemblies = {
        name: Assembly(places[-1].stop, axis=-max(a.ndim for a in arrays.values())) for name in ("terms", "resources", "")
    }

    def fill(number: int) -> tuple[list[str], list[str]]:
        step = _one_layout(model, system, engine, blocks[number], parts=parts)[0]
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


def _one_layout(
    model: Model,
    system: System,
    engine: Engine,
    arrays: dict[str, Any],
    *,
    merged: bool | None = None,
    parts: bool | str = True,
    legal: bool = False,
) -> tuple[Step, list[Entry]]:
    """Return the step of a model and its towers, and its entries.

    merged: Whether operators that take the same time together as separately are joined; by default where that is exact.
    parts: Whether the step has terms and resources, or the name of one of them.
    """
    layout = Layout(**{name: arrays[name] for name in NAMES})
    if not legal:
        check_rules(layout, model, system)
    # Floats, like the values that they divide: numpy is slow with mixed dtypes.
    layout = Layout(**{name: arrays[name] * 1.0 for name in NAMES})
    slower = slowness(system, engine, layout, arrays)
    towers = [] if model.media is None else [*tower_passes(model.media, arrays, layout)]
    passes = [(model, layout, build_work(arrays, layout)), *((tower.model, tower.layout, tower.work) for tower in towers)]
    is_mergeable = not has_nonzero(engine.kernels.activation_traffic) and not has_nonzero(engine.kernels.fill_bytes)
    explained, merged = merged is not None, is_mergeable if merged is None else merged
    has_terms, has_resources = (parts in (True, name) for name in PARTS_OF_STEP)
    results = []
    for part, part_layout, work in passes:
        # One clock per part, because the parts count differently in the cycle.
        clocks = layers, stem, links, hops = [
            Clock(explained=explained, has_terms=has_terms, has_resources=has_resources) for _ in range(4)
        ]
        context = Pass(work, system, part_layout, engine)
        run_operators(layers, stem, part, context, merged=merged)
        run_network(links, hops, part, context)
        wait_for_launches(layers, links, part, context)
        share = stage_share(part, part_layout)
        results.append(_clocked_step(clocks, slower=slower, microbatches=part_layout.microbatches, share=share))
    step, entries = results[0]
    for tower, (tower_step, tower_entries) in zip(towers, results[1:], strict=True):
        step, entries = add_passes(step, [(tower.share, tower_step)], tower.term), entries + tower.entries(tower_entries)
    return step, entries


def scale_step(step: Step, factor: Number) -> Step:
    """Return a step with all times multiplied by `factor`.

    Args:
        step: The step.
        factor: A factor, or an array.

    Returns:
        The step.
    """
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
    """Return the first of several steps along a leading axis.

    Some parts of the step may lack this axis.

    Args:
        step: Steps along a leading axis.
        dimensions: Number of axes without the leading axis.

    Returns:
        The step.
    """
    terms, resources, times = (
        {name: np.asarray(value[0] if np.ndim(value) > dimensions else value) for name, value in values.items()}
        for values in (step.terms, step.resources, {name: getattr(step, name) for name in TIMES})
    )
    return Step(terms=terms, resources=resources, **times)


def add_passes(step: Step, passes: Iterable[tuple[Number, Step]], term: str | None) -> Step:
    """Return a step followed by further passes.

    Args:
        step: The step.
        passes: Pairs of a number of passes and the step of one pass.
        term: The term of their time; None for the terms of each pass.

    Returns:
        The step.
    """
    # The passes may have more axes than the step, so that every part is broadcast to the common shape.
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
    """Return the time of one decode step: each sequence gets its next token.

    Args:
        model: A model, or a name as for `load_model`.
        system: A system, or a name as for `load_system`.
        batch: Sequences per replica, over all data-parallel ranks.
        context: Tokens in the KV cache of each sequence.
        query: New tokens per sequence; more than 1 verifies speculative tokens.
        layout: Parallel degrees; by default one chip.
        engine: An engine, or its name; by default the engine of the system.
        anchor: Correction from your own runs (`st.load_anchor`).

    Returns:
        The step, with the broadcast shape of the arguments.
    """
    positive("batch", batch)
    positive("context", context)
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
    """Return the time of one prefill step.

    Args:
        model: A model, or a name as for `load_model`.
        system: A system, or a name as for `load_system`.
        tokens: New tokens of each prompt.
        prompts: Prompts per replica; by default one per data-parallel rank.
        prefix: Cached tokens of each prompt.
        layout: Parallel degrees; by default one chip.
        engine: An engine, or its name; by default the engine of the system.
        anchor: Correction from your own runs (`st.load_anchor`).

    Returns:
        The step, with the broadcast shape of the arguments.
    """
    layout = check_ways(Layout() if layout is None else layout)
    prompts = layout.dp if prompts is None else prompts
    positive("tokens", tokens)
    positive("prompts", prompts)
    inputs: dict[str, Any] = {"prompts": prompts, "tokens": tokens, "prefix": prefix}
    return mixed_step(model, system, **inputs, layout=layout, engine=engine, anchor=anchor)
