r"""Bytes per chip: weights, KV cache, activations, and whether they fit.

A chip of stage $i$ of $P$ holds $1/P$ of the layers, for all sequences in flight. So pipeline stages divide the weights, but
not the cache of a batch that grows with them: with $B = P b$ sequences a chip holds $b L \kappa / E$ whatever $P$ is (lecture,
section 10).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from steptime.catalog.hardware_loading import SystemLike, resolve_system
from steptime.hardware.system import System
from steptime.models.model import Attention, Model, Op, cache_entries
from steptime.models.model_loading import ModelLike, resolve_model
from steptime.number_checks import MOST_SEQUENCES, MOST_TOKENS, Array, Number, at_least_zero, check_shapes, positive
from steptime.physics.engine import Engine, engine_for
from steptime.physics.layout import NAMES, Layout, check_ways, shard_count
from steptime.physics.layout_rules import check_rules
from steptime.result_base import Tabular, broadcast, in_words, unit
from steptime.svg import stacked
from steptime.units import show

ACTIVATION_BYTES = 2.0  # engines keep activations in 16 bits


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Memory(Tabular):
    """The bytes of one chip by part, arrays that broadcast alike; `capacity` is what the engine may use of its memory."""

    SCHEMA: ClassVar[str] = "steptime.memory/2"
    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "used": unit("B", "bytes in use: the sum of the parts"),
        "fits": unit("", "whether they are within the capacity", kind="true or false, or list"),
    }

    weights: Number = field(metadata=unit("B", "weights on the fullest chip"))
    cache: Number = field(metadata=unit("B", "KV cache and state of the sequences in flight"))
    activations: Number = field(metadata=unit("B", "live activations"))
    reserved: Number = field(metadata=unit("B", "what the engine keeps for itself"))
    capacity: Number = field(metadata=unit("B", "memory of a chip that the engine may use"))

    @property
    def used(self) -> Number:
        """Bytes in use."""
        return self.weights + self.cache + self.activations + self.reserved

    @property
    def fits(self) -> Array:
        """Whether it fits."""
        return np.asarray(self.used <= self.capacity)

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return bytes in use over capacity, and the parts."""
        fits = np.asarray(self.fits)
        verdict = "fits" if fits.all() else "does not fit" if not fits.any() else f"{int(fits.sum())} of {fits.size} fit"
        title = f"Memory of a chip: {_bytes(self.used)} of {_bytes(self.capacity)}, {verdict}"
        return title, {name: _bytes(getattr(self, name)) for name in ("weights", "cache", "activations", "reserved")}

    def drawing(self) -> str:
        """Return the parts of a single chip's memory as a bar; "" for several."""
        if np.ndim(self.used):
            return ""
        parts = {name: float(getattr(self, name)) for name in ("weights", "cache", "activations", "reserved")}
        return stacked(parts, "B", total=float(self.capacity))

    def columns(self) -> dict[str, Any]:
        """Return a row for each point: bytes by part, in use and in all, and whether they fit."""
        names = ("weights", "cache", "activations", "reserved", "used", "capacity")
        return broadcast({f"{name}_bytes": getattr(self, name) for name in names} | {"fits": self.fits})


def _bytes(values: Number) -> str:
    return in_words(values, lambda value: show(value, "B"))


def weight_ways(op: Op, layout: Layout) -> Number:
    """Ways that the weights of one operator are divided inside an attention group, by the chip that holds most of them."""
    return shard_count(_most_ways(op), layout.group)


def _most_ways(op: Op) -> float:
    return 1.0 if op.split == "replicated" else op.split_limit


def expert_slots(op: Op, layout: Layout) -> Number:
    """Experts that one chip holds, redundant copies among them."""
    return np.ceil((op.experts + layout.redundant_experts) / layout.ep)


def stage_share(model: Model, layout: Layout) -> Number:
    """Share of the layers that the fullest pipeline stage holds."""
    return np.ceil(model.depth / np.asarray(layout.pp)) / model.depth


def op_bytes(op: Op, layout: Layout) -> Number:
    """Bytes per chip of one operator's weights."""
    if op.rows == "routed":
        sharing = layout.stage / layout.ep
        return expert_slots(op, layout) * op.weights * op.stored * op.format.bytes / sharing
    return op.total_weights * op.format.bytes / weight_ways(op, layout)


@lru_cache(maxsize=256)
def _divided(model: Model) -> tuple[dict[float, float], tuple[tuple[Op, int], ...]]:
    """Return the bytes of weights of all layers by the most ways that they are divided, and routed experts, counted."""
    plain: dict[float, float] = {}
    routed = []
    for layer, n in model.layers:
        for op in layer.ops:
            if op.rows == "routed":
                routed.append((op, n))
            else:
                plain[_most_ways(op)] = plain.get(_most_ways(op), 0.0) + n * op.total_weights * op.format.bytes
    return plain, tuple(routed)


@lru_cache(maxsize=256)
def _widest(model: Model) -> dict[float, float]:
    """Return the most values that a row reads and writes in an operator, by the most ways that it is divided."""
    widest: dict[float, float] = {}
    for layer, _ in model.layers:
        for op in layer.ops:
            shards, rows = (1.0, op.active) if op.rows == "routed" else (_most_ways(op), 1)
            widest[shards] = max(widest.get(shards, 0.0), rows * (op.inputs + op.outputs))
    return widest


def weights_per_chip(model: Model, layout: Layout) -> Number:
    """Return the bytes of weights on the fullest chip, without multi-token-prediction layers.

    Embedding and head are on the first and the last stage, so that with pipeline stages a chip holds one of them.
    """
    plain, routed = _divided(model)
    layers: Number = np.asarray(0.0)
    for shards, bytes_ in plain.items():
        layers = layers + bytes_ / shard_count(shards, layout.group)
    for op, n in routed:
        layers = layers + n * op_bytes(op, layout)
    layers = layers * stage_share(model, layout)
    first: Number = np.asarray(0.0)
    last: Number = np.asarray(0.0)
    for op in model.stem:
        if op.term in ("embedding", "vision"):
            first = first + op_bytes(op, layout)
        else:
            last = last + op_bytes(op, layout)
    stem = np.where(np.asarray(layout.pp) > 1, np.maximum(first, last), first + last)
    return layers + stem


def sequences_per_group(batch: Number, layout: Layout) -> Number:
    """Sequences whose cache the busiest attention group holds."""
    return np.ceil(batch / np.asarray(layout.dp) - 1e-9)


def cache_ways(attention: Attention, layout: Layout) -> Number:
    """Ways that a KV cache is divided: by heads, of which the busiest chip has a whole number, and by context."""
    return shard_count(attention.kv_shards, layout.tp) * layout.cp


def state_ways(attention: Attention, layout: Layout) -> Number:
    """Ways that the state of a recurrent mixer is divided, by its heads."""
    return shard_count(attention.heads, layout.tp)


def cache_per_sequence(model: Model, context: Number, layout: Layout) -> Number:
    """Bytes of one sequence's cache on one chip: KV divided by heads as far as they go, and by context parallelism."""
    total: Number = np.asarray(0.0)
    for layer, n in model.layers:
        for a in layer.attention:
            cached_bytes = a.kv_bytes * cache_entries(a, context) / cache_ways(a, layout) if a.stored else 0.0
            total = total + n * (cached_bytes + a.state_bytes / state_ways(a, layout))
    return total * stage_share(model, layout)


def activations_per_chip(model: Model, tokens: Number, layout: Layout) -> Number:
    """Bytes of live activations for `tokens` [per attention group]: the residual stream twice, and the largest operator."""
    largest: Number = np.asarray(0.0)
    for shards, values in _widest(model).items():
        largest = np.maximum(largest, values / shard_count(shards, layout.group))
    return tokens * ACTIVATION_BYTES * (2 * model.width + largest)


def memory_per_chip(
    model: ModelLike,
    system: SystemLike,
    *,
    batch: Number,
    context: Number,
    layout: Layout | None = None,
    engine: Engine | str | None = None,
    step_tokens: Number = 0.0,
    legal: bool = False,
) -> Memory:
    """Return what a chip holds when `batch` sequences of `context` [tokens] are in flight in one replica.

    `step_tokens`: tokens that one attention group works on at once (by default one for each of its sequences).
    legal: whether sizes and layouts are known to be sound, as those of a search.
    Raises LayoutError where the layout cannot run the model.
    """
    model, system = resolve_model(model), resolve_system(system)
    layout, runs_on = Layout() if layout is None else layout, engine_for(system, engine)
    if not legal:
        batch = at_least_zero("batch", batch, maximum=MOST_SEQUENCES)
        context = at_least_zero("context", context, maximum=MOST_TOKENS)
        step_tokens, layout = at_least_zero("step tokens", step_tokens), check_ways(layout)
        check_shapes(batch=batch, context=context, step_tokens=step_tokens, **{name: getattr(layout, name) for name in NAMES})
        check_rules(layout, model, system)
    sequences = sequences_per_group(batch, layout)
    return Memory(
        weights=weights_per_chip(model, layout),
        cache=sequences * cache_per_sequence(model, context, layout),
        activations=activations_per_chip(model, np.maximum(sequences / layout.microbatches, step_tokens), layout),
        reserved=runs_on.room.reserved_bytes,
        capacity=system.chip.capacity * runs_on.room.memory_share,
    )


def sequences_that_fit(
    model: Model,
    system: System,
    *,
    context: Number,
    layout: Layout | None = None,
    engine: Engine | str | None = None,
    step_tokens: Number = 0.0,
    is_integer: bool = True,
) -> Number:
    """Return how many sequences of `context` [tokens] one replica can hold; below 1 the weights leave no room.

    Infinite for a model without a cache. is_integer: whether parts of a sequence are left out.
    """
    layout = check_ways(Layout() if layout is None else layout)
    context = positive("context", context, "token", minimum=1e-6, maximum=MOST_TOKENS)
    empty = memory_per_chip(model, system, batch=0, context=context, layout=layout, engine=engine, step_tokens=step_tokens)
    bytes_per_sequence, room = cache_per_sequence(model, context, layout), np.maximum(empty.capacity - empty.used, -1.0)
    endless = np.where(room < 0, -1.0, np.inf)  # sequences without a cache take no room
    sequences = room / np.where(bytes_per_sequence > 0, bytes_per_sequence, 1.0)
    return np.where(bytes_per_sequence > 0, np.floor(sequences) if is_integer else sequences, endless) * layout.dp
