r"""One forward pass: decode, prefill, or both at once, as named terms. The heart of steptime.

**Work.** A replica runs `batch` sequences of `context` tokens that each get `query` new ones, and `prompts` prompts of
`tokens` new tokens after a cached `prefix`. The batch is cut in $m$ micro-batches, and each attention group takes its part.

**Operators** take the overlap of their arithmetic and traffic (`roofline.overlap`) and run one after another, since each
needs the one before. **Collectives** follow alpha-beta (`network`) and wait for the operators of their own micro-batch.

**A cycle.** Let $c$ and $n$ be the seconds of operators and of collectives that a micro-batch spends in all stages together,
and $\hat c$, $\hat n$ those of the fullest stage. A stage must serve all $m$ micro-batches, on its arithmetic and on its links,
and a micro-batch must pass all stages and hops $h$ before its next token:

$$ t = \max(m \hat c,\; m \hat n,\; c + n + h) $$

With one micro-batch on one stage this is $c + n$; with two, the collectives of one hide behind the operators of the other
(two-batch overlap), at the price of reading the weights twice; with $P$ on $P$ stages it is the looped pipeline of lecture
section 10. Terms are those of whichever of the three is longest, so that they add up to $t$: collectives that hide behind
operators are not among them.

**Bounds.** `lower` is the busiest resource, were all overlapped; `upper` is the sum, were nothing overlapped.

Left out: norms and element-wise arithmetic (under 1 % of FLOPs), sampling, the write of new cache entries ($1/L$ of the read),
the vocabulary-parallel embedding's all-reduce (one of some hundred), and switch-side reduction of collectives.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np

from steptime.blackboard.experts import distinct_hit
from steptime.catalog.loading import SystemLike, system_of
from steptime.errors import RangeError
from steptime.machines.system import System
from steptime.machines.what_if import is_scalar
from steptime.models.loading import ModelLike, model_of
from steptime.models.model import Attention, Model, Op
from steptime.numbers import Number
from steptime.physics import network
from steptime.physics.demand import (
    Demand,
    Work,
    attention_demands,
    chip_factor,
    kernel_counts,
    ledger,
    operator_demand,
    work_of,
)
from steptime.physics.engine import Engine, engine_for
from steptime.physics.layout import NAMES, Layout, check
from steptime.physics.memory import ACTIVATION_BYTES, stage_share
from steptime.physics.network import Traffic
from steptime.physics.roofline import compute_time, is_norm, memory_time, root, smaller_power
from steptime.results import Tabular, broadcast, in_words, unit
from steptime.units import show

BLOCK = 1 << 16  # points evaluated at once: about what a core keeps in cache


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Step(Tabular):
    """The time of one step [s]: by named term and by resource, each adding up to `total`, and its two bounds.

    `terms` say what is done (projections, attention, experts, all-reduce, ...); `resources` say what it waits for (compute,
    weights, kv, activations, the domains of the network, latency, overhead). All share one broadcast shape.
    """

    SCHEMA: ClassVar[str] = "steptime.step/1"
    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "bound": unit("", "resource that takes the most", kind="text or list")
    }

    terms: Mapping[str, Number] = field(metadata=unit("s", "time by what is done: attention, experts, all-reduce, ..."))
    resources: Mapping[str, Number] = field(metadata=unit("s", "time by what is waited for: compute, weights, kv, ..."))
    lower: Number = field(metadata=unit("s", "lower bound: the busiest resource, were everything overlapped"))
    total: Number = field(metadata=unit("s", "the engine's estimate"))
    upper: Number = field(metadata=unit("s", "upper bound: the sum, were nothing overlapped"))

    @property
    def bound(self) -> Any:
        """The resource that takes the largest part of the step."""
        names = list(self.resources)
        values = np.broadcast_arrays(*self.resources.values())
        return np.array(names)[np.argmax(np.stack(values), axis=0)]

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the time with its bounds; the largest terms and resources with their shares of all points."""
        title = f"Step: {_seconds(self.total)}"
        whole = float(np.sum(self.total)) or 1.0
        return title, {
            "bounds": f"{_seconds(self.lower)}, all overlapped; {_seconds(self.upper)}, nothing overlapped",
            "terms": _largest(self.terms, whole),
            "waits for": _largest(self.resources, whole),
        }

    def columns(self) -> dict[str, Any]:
        """Return a row for each point: total, bounds, what binds, and every term and resource [s]."""
        found = {"total_s": self.total, "lower_s": self.lower, "upper_s": self.upper, "bound": self.bound}
        found |= {f"{_worded(name)}_s": seconds for name, seconds in self.terms.items()}
        return broadcast(found | {f"waits_for_{_worded(name)}_s": seconds for name, seconds in self.resources.items()})


def _seconds(values: Number) -> str:
    return in_words(values, lambda value: show(value, "s"))


def _largest(parts: Mapping[str, Number], whole: float, most: int = 3) -> str:
    """Write the largest parts with their shares."""
    sums = sorted(((float(np.sum(value)) / whole, name) for name, value in parts.items()), reverse=True)
    left = len(sums) - most
    return ", ".join(f"{name} {share:.0%}" for share, name in sums[:most]) + (f" and {left} more" if left > 0 else "")


def _worded(name: str) -> str:
    return name.replace(" ", "_").replace("-", "_")


class _Clock:
    """Adds up seconds by term and by resource, and the busy seconds of each resource for the bounds."""

    def __init__(self) -> None:
        self.terms: dict[str, Number] = {}
        self.resources: dict[str, Number] = {}
        self.busy: dict[str, Number] = {}
        self.total: Number = 0.0

    def add(self, term: str, seconds: Number, blame: Mapping[str, Number], busy: Mapping[str, Number]) -> None:
        """Add the seconds of an operator or a collective."""
        _add(self.terms, term, seconds)
        self.total = self.total + seconds
        for name, value in blame.items():
            _add(self.resources, name, value)
        for name, value in busy.items():
            _add(self.busy, name, value)


def _add(sums: dict[str, Number], name: str, value: Number) -> None:
    sums[name] = sums[name] + value if name in sums else value


def _run(clock: _Clock, term: str, demand: Demand, system: System, engine: Engine, count: Number = 1) -> None:
    """Add an operator's time: its arithmetic and its traffic overlapped."""
    bandwidth = system.chip.hbm.bandwidth
    compute = compute_time(count * demand.flops, demand.peak, demand.efficiency)
    blame: dict[str, Number] = {}
    if np.any(demand.kv):
        reading = engine.attention_memory_efficiency * chip_factor(system, "memory", engine)
        memory = memory_time(count * demand.kv, bandwidth, reading)
        seconds, to_compute, blame["kv"] = _overlapped(compute, memory, engine.roofline_norm)
    elif not np.any(demand.activations):
        memory = memory_time(count * demand.weights, bandwidth, demand.memory_efficiency)
        seconds, to_compute, blame["weights"] = _overlapped(compute, memory, engine.roofline_norm)
    else:
        reading = memory_time(count * demand.weights, bandwidth, demand.memory_efficiency)
        memory = reading + memory_time(count * demand.activations, bandwidth, engine.memory_efficiency)
        seconds, to_compute, to_memory = _overlapped(compute, memory, engine.roofline_norm)
        blame["weights"] = to_memory * (reading / np.maximum(memory, 1e-300))
        blame["activations"] = to_memory - blame["weights"]
    clock.add(term, seconds, {"compute": to_compute, **blame}, {"compute": compute, "memory": memory})


def _overlapped(compute: Number, memory: Number, norm: Number) -> tuple[Number, Number, Number]:
    """Return the seconds of an operator, and how they divide between arithmetic and traffic, as each brought them about."""
    larger = np.maximum(compute, memory)
    if is_norm(norm, np.inf):
        seconds, to_memory = larger, memory * (memory > compute)
    else:  # as `overlap` has it, the powers kept for the shares
        smaller = smaller_power(compute, memory, norm)
        both = 1 + smaller
        seconds = larger * root(both, norm)
        to_memory = seconds * (smaller + (memory > compute) * (1 - smaller)) / both
    return seconds, seconds - to_memory, to_memory


def _run_collective(
    clock: _Clock, term: str, traffic: Traffic, system: System, engine: Engine, *, pipelined: bool = False
) -> None:
    """Add a collective: its levels one after another, or at once where tokens are forwarded as they come."""
    busy = {d.kind: b / engine.network_efficiency for d, b in zip(system.domains, traffic.busy, strict=True) if np.any(b)}
    blame: dict[str, Number] = dict(busy)
    moving: Number = 0.0
    if pipelined and len(busy) > 1:
        for b in busy.values():
            moving = np.maximum(moving, b)
        left = moving
        for kind, b in reversed(busy.items()):
            blame[kind] = np.where(b >= moving, left, 0.0)
            left = left - blame[kind]
    else:
        for b in busy.values():
            moving = moving + b
    waiting = blame["latency"] = traffic.latency
    if np.any(engine.seconds_per_collective):
        blame["overhead"] = traffic.calls * engine.seconds_per_collective
        waiting = waiting + blame["overhead"]
    clock.add(term, moving + waiting, blame, {**busy, "latency": waiting})


def _run_network(links: _Clock, model: Model, work: Work, system: System, layout: Layout, engine: Engine) -> None:
    """Add the collectives of all layers."""
    rows = work.decode + work.prefill
    row_bytes = rows * model.width * ACTIVATION_BYTES
    apart = np.where(np.asarray(layout.dp) > 1, 1.0, 0.0)  # attention groups that exchange tokens
    sparse = sum(n for layer, n in model.layers if layer.routed)
    blocks = sum(n * (bool(layer.attention) + any(op.term == "feed-forward" for op in layer.ops)) for layer, n in model.layers)
    reductions = blocks + sparse * (1 - apart)
    if np.any(np.asarray(layout.group) > 1):
        once = network.all_reduce(
            system, layout.group, row_bytes, overhead=engine.seconds_per_collective, efficiency=engine.network_efficiency
        )
        _run_collective(links, "all-reduce", once * reductions, system, engine)
    if np.any(np.asarray(layout.cp) > 1):
        for attention, n in ledger(model, merged=True).mixers:
            _run_collective(links, "context exchange", _context_exchange(attention, work, system, layout) * n, system, engine)
    if sparse and np.any(apart):
        for layer, n in model.layers:
            if layer.routed:
                _run_exchange(links, layer.routed, n * apart, model, work, system, layout, engine)


def _context_exchange(a: Attention, work: Work, system: System, layout: Layout) -> Traffic:
    """Gather queries over the chips that divide a context, scatter partial outputs, and gather the cache of prompt prefixes."""
    values = work.decode * (a.query_values + a.output_values) / layout.tp * ACTIVATION_BYTES
    gathered = network.all_gather(system, layout.cp, values)
    if not np.any(work.prompts):
        return gathered
    cached = work.prompts * np.minimum(work.prefix, a.window * a.stride) * a.kv_bytes / np.minimum(layout.tp, a.kv_shards)
    return gathered + network.all_gather(system, layout.cp, cached)


def _run_exchange(
    clock: _Clock, op: Op, count: Number, model: Model, work: Work, system: System, layout: Layout, engine: Engine
) -> None:
    """Add dispatch of tokens to their experts and combination of what comes back, which differ in bytes only."""
    sharing, active = layout.stage / layout.ep, round(op.active)
    reach = op.active_groups if op.expert_groups > 1 else np.inf
    per_byte = network.exchange(
        system,
        layout.ep,
        work.everywhere / layout.stage,
        model.width,
        experts=op.experts,
        active=active,
        reach=reach,
        stride=sharing,
    )
    gathered = None
    if np.any(sharing > 1):
        rows = work.everywhere * distinct_hit(op.experts, active, layout.ep) / layout.ep
        gathered = network.all_gather(system, sharing, rows * model.width)
    for term, value_bytes in (
        ("dispatch", min(ACTIVATION_BYTES, max(1.0, op.format.bytes))),
        ("combine", ACTIVATION_BYTES),
    ):
        _run_collective(clock, term, per_byte.resized(value_bytes) * count, system, engine, pipelined=True)
        if gathered is not None:
            _run_collective(clock, term, gathered.resized(value_bytes) * count, system, engine)


def _layer_overhead(model: Model, engine: Engine) -> Number:
    return sum(count * getattr(engine, f"seconds_per_{name}") for name, count in kernel_counts(model).items())


def _evaluate(model: Model, system: System, layout: Layout, engine: Engine, work: Work) -> Step:
    """Return the step of one micro-batch's work, cycled over micro-batches and stages."""
    found = ledger(model, merged=not np.any(engine.activation_traffic))
    layers, stem, links = _Clock(), _Clock(), _Clock()
    for op in found.layers:
        _run(layers, op.term, operator_demand(op, work, system, layout, engine), system, engine)
    for mixer, n in found.mixers:
        for demand in attention_demands(mixer, work, system, layout, engine).values():
            _run(layers, "attention", demand, system, engine, n)
    for op in found.stem:
        if op.rows != "none":
            _run(stem, op.term, operator_demand(op, work, system, layout, engine), system, engine)
    _run_network(links, model, work, system, layout, engine)
    overhead = _layer_overhead(model, engine)
    if np.any(overhead):
        layers.add("overhead", overhead, {"overhead": overhead}, {"overhead": overhead})
    fixed = engine.seconds_per_step + engine.seconds_per_sequence * work.sequences
    if np.any(fixed):
        stem.add("overhead", fixed, {"overhead": fixed}, {"overhead": fixed})

    share, m = stage_share(model, layout), layout.microbatches
    hops = _Clock()
    if np.any(np.asarray(layout.pp) > 1):
        bytes_ = (work.decode + work.prefill) * model.width * ACTIVATION_BYTES / layout.group
        _run_collective(hops, "pipeline", network.point_to_point(system, layout.pp, bytes_, layout.stage), system, engine)
    chain = layers.total + stem.total + links.total + hops.total
    parts: list[tuple[_Clock, Number]]
    if np.all(np.asarray(m) == 1):
        total, parts = chain, [(clock, 1.0) for clock in (layers, stem, links, hops)]
    else:
        by_operators, by_links = m * (share * layers.total + stem.total), m * share * links.total
        total = np.maximum(np.maximum(by_operators, by_links), chain)
        in_chain = chain >= total
        operators = ~in_chain & (by_operators >= by_links)
        linked = ~in_chain & ~operators
        alone = np.where(in_chain, 1.0, 0.0)
        parts = [
            (layers, alone + operators * m * share),
            (stem, alone + operators * m),
            (links, alone + linked * m * share),
            (hops, alone),
        ]
    terms: dict[str, Number] = {}
    resources: dict[str, Number] = {}
    for clock, times in parts:
        for name, seconds in clock.terms.items():
            _add(terms, name, seconds * times)
        for name, seconds in clock.resources.items():
            _add(resources, name, seconds * times)

    lower: Number = 0.0
    serial: Number = 0.0
    serial_stage: Number = 0.0
    fullest = m * share
    for name in {*layers.busy, *stem.busy, *links.busy}:
        inside, outside = layers.busy.get(name, 0.0) + links.busy.get(name, 0.0), stem.busy.get(name, 0.0)
        whole, stage = inside + outside, fullest * inside + m * outside
        lower = np.maximum(lower, np.maximum(whole, stage))
        serial, serial_stage = serial + whole, serial_stage + stage
    upper = np.maximum(serial + hops.total, serial_stage)
    shape = np.broadcast_shapes(np.shape(total), np.shape(upper), np.shape(lower))

    def full(value: Number) -> Any:
        return np.broadcast_to(np.asarray(value, dtype=np.float64), shape)

    return Step(
        terms={name: full(value) for name, value in terms.items()},
        resources={name: full(value) for name, value in resources.items() if np.any(value)},
        lower=full(lower),
        total=full(total),
        upper=full(np.maximum(upper, total)),
    )


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
) -> Step:
    """Return the time of a step that decodes `batch` sequences and prefills `prompts` chunks beside them.

    batch [sequences per replica] at context [tokens], each getting query [tokens]; prompts [per replica] of tokens [new tokens
    each] after prefix [cached tokens each]. All numbers and the fields of layout may be arrays that broadcast.
    The engine is that of the system (`engine.default_engine`) unless named; "ideal" is the bound that physics sets, and
    `uncertainty.step_range` says how sure the time of a real one is.
    model and system may be named, as for `load_model` and `load_system`.
    Raises LayoutError where the layout does not divide the model, RangeError for negative sizes or no work at all.
    """
    model, system = model_of(model), system_of(system)
    layout, runs_on = layout or Layout(), engine_for(system, engine)
    for name, value in (
        ("batch", batch),
        ("context", context),
        ("prompts", prompts),
        ("tokens", tokens),
        ("prefix", prefix),
    ):
        if not np.all(np.asarray(value) >= 0):
            raise RangeError(f"{name} must be at least 0, not {np.min(value)}")
    if not np.all(np.asarray(query) >= 1):
        raise RangeError(f"query must be at least 1 token, not {np.min(query)}")
    inputs = {
        "batch": batch,
        "context": context,
        "query": query,
        "prompts": prompts,
        "tokens": tokens,
        "prefix": prefix,
    }
    inputs |= {name: getattr(layout, name) for name in NAMES}
    arrays = {name: np.asarray(value) for name, value in inputs.items()}
    blocks = _blocks(arrays) if is_scalar(system) else [arrays]
    if len(blocks) == 1:
        return _one_block(model, system, runs_on, arrays)
    with ThreadPoolExecutor(min(len(blocks), os.cpu_count() or 1)) as pool:
        steps = list(pool.map(partial(_one_block, model, system, runs_on), blocks))
    return _joined_steps(steps, axis=-max(a.ndim for a in arrays.values()))


def _blocks(arrays: dict[str, Any]) -> list[dict[str, Any]]:
    """Cut large input along its first axis, so that a block stays in cache and blocks run on all cores."""
    shape = np.broadcast_shapes(*(a.shape for a in arrays.values()))
    size = int(np.prod(shape))
    if size < 2 * BLOCK or shape[0] == 1:
        return [arrays]
    rows = max(1, BLOCK * shape[0] // size)
    along = {name for name, a in arrays.items() if a.ndim == len(shape) and a.shape[0] > 1}
    return [
        {name: a[first : first + rows] if name in along else a for name, a in arrays.items()}
        for first in range(0, shape[0], rows)
    ]


def _joined_steps(steps: list[Step], axis: int) -> Step:
    """Join the steps of blocks along the axis that was cut; constants of an engine may have axes before it."""

    def joined(name: str) -> dict[str, Any]:
        tables = [getattr(step, name) for step in steps]
        keys = dict.fromkeys(key for table in tables for key in table)
        return {
            key: np.concatenate(
                [t[key] if key in t else np.zeros(s.total.shape) for t, s in zip(tables, steps, strict=True)], axis=axis
            )
            for key in keys
        }

    return Step(
        terms=joined("terms"),
        resources=joined("resources"),
        **{name: np.concatenate([getattr(step, name) for step in steps], axis=axis) for name in ("lower", "total", "upper")},
    )


def _one_block(model: Model, system: System, engine: Engine, given: dict[str, Any]) -> Step:
    layout = Layout(**{name: given[name] for name in NAMES})
    check(layout, model, system)
    return _evaluate(model, system, layout, engine, work_of(given, layout))


def decode_step(
    model: ModelLike,
    system: SystemLike,
    *,
    batch: Number,
    context: Number,
    query: Number = 1,
    layout: Layout | None = None,
    engine: Engine | str | None = None,
) -> Step:
    """Return the time in which each of `batch` sequences at `context` [tokens] gets its next token.

    `batch` counts the sequences of one replica, all attention groups together. `query` > 1 verifies drafted tokens.
    """
    for name, value in (("batch", batch), ("context", context)):
        if not np.all(np.asarray(value) > 0):
            raise RangeError(f"{name} must be greater than 0, not {np.min(value)}")
    return mixed_step(model, system, batch=batch, context=context, query=query, layout=layout, engine=engine)


def prefill_step(
    model: ModelLike,
    system: SystemLike,
    *,
    tokens: Number,
    prompts: Number | None = None,
    prefix: Number = 0,
    layout: Layout | None = None,
    engine: Engine | str | None = None,
) -> Step:
    """Return the time in which `prompts` prompts of `tokens` new tokens are read, each after a cached `prefix`.

    By default every attention group reads one prompt.
    """
    layout = layout or Layout()
    prompts = layout.dp if prompts is None else prompts
    for name, value in (("tokens", tokens), ("prompts", prompts)):
        if not np.all(np.asarray(value) > 0):
            raise RangeError(f"{name} must be greater than 0, not {np.min(value)}")
    return mixed_step(model, system, prompts=prompts, tokens=tokens, prefix=prefix, layout=layout, engine=engine)
