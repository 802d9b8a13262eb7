r"""Bytes per chip: weights, KV cache, activations, and whether they fit.

A chip of stage $i$ of $P$ holds $1/P$ of the layers, for all sequences in flight. So pipeline stages divide the weights, but
not the cache of a batch that grows with them: with $B = P b$ sequences a chip holds $b L \kappa / E$ whatever $P$ is (lecture,
section 10).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.errors import RangeError
from steptime.machines.system import System
from steptime.models.model import Layer, Model, Op, cache_entries
from steptime.numbers import Number
from steptime.physics.engine import IDEAL, Engine
from steptime.physics.layout import Mapping

ACTIVATION_BYTES = 2.0  # engines keep activations in 16 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes per chip by part, all broadcast alike; `capacity` is what the chip has."""

    weights: Number
    cache: Number
    activations: Number
    reserved: Number
    capacity: Number

    @property
    def used(self) -> Number:
        """Bytes in use."""
        return self.weights + self.cache + self.activations + self.reserved

    @property
    def fits(self) -> Number:
        """Whether it fits."""
        return self.used <= self.capacity


def weight_ways(op: Op, mapping: Mapping) -> Number:
    """Chips over which the weights of one operator are divided, inside an attention group."""
    return 1 if op.split == "replicated" else np.minimum(mapping.group, op.split_limit)


def expert_slots(op: Op, mapping: Mapping) -> Number:
    """Experts that one chip holds, redundant copies among them."""
    return np.ceil((op.experts + mapping.redundant_experts) / mapping.ep)


def stage_share(model: Model, mapping: Mapping) -> Number:
    """Share of the layers that the fullest pipeline stage holds."""
    return np.ceil(model.depth / np.asarray(mapping.pp)) / model.depth


def op_bytes(op: Op, mapping: Mapping) -> Number:
    """Bytes per chip of one operator's weights."""
    if op.rows == "routed":
        sharing = mapping.stage / mapping.ep
        return expert_slots(op, mapping) * op.weights * op.format.bytes / sharing
    return op.total_weights * op.format.bytes / weight_ways(op, mapping)


def _layer_bytes(layers: tuple[tuple[Layer, int], ...], mapping: Mapping) -> Number:
    return sum((n * sum(op_bytes(op, mapping) for op in layer.ops) for layer, n in layers), np.asarray(0.0))


def weights_per_chip(model: Model, mapping: Mapping, *, draft: bool = False) -> Number:
    """Bytes of weights on the fullest chip; `draft` adds the multi-token-prediction layers.

    Embedding and head are on the first and the last stage, so that with pipeline stages a chip holds one of them.
    """
    layers = _layer_bytes(model.layers, mapping) * stage_share(model, mapping)
    first: Number = np.asarray(0.0)
    last: Number = np.asarray(0.0)
    for op in model.stem:
        if op.term in ("embedding", "vision"):
            first = first + op_bytes(op, mapping)
        else:
            last = last + op_bytes(op, mapping)
    stem = np.where(np.asarray(mapping.pp) > 1, np.maximum(first, last), first + last)
    return layers + stem + (_layer_bytes(model.draft, mapping) if draft else 0.0)


def sequences_per_group(batch: Number, mapping: Mapping) -> Number:
    """Sequences whose cache the busiest attention group holds."""
    return np.ceil(batch / np.asarray(mapping.dp) - 1e-9)


def cache_per_sequence(model: Model, context: Number, mapping: Mapping) -> Number:
    """Bytes of one sequence's cache on one chip: KV divided by heads as far as they go, and by context parallelism."""
    total: Number = np.asarray(0.0)
    for layer, n in model.layers:
        for a in layer.attention:
            ways = np.minimum(mapping.tp, a.kv_shards) * mapping.cp
            kept = a.kv_bytes * cache_entries(a, context) / ways if a.stored else 0.0
            total = total + n * (kept + a.state_bytes / np.minimum(mapping.tp, a.heads))
    return total * stage_share(model, mapping)


def activations_per_chip(model: Model, tokens: Number, mapping: Mapping) -> Number:
    """Bytes of live activations for `tokens` [per attention group]: the residual stream twice, and the largest operator."""
    largest: Number = np.asarray(0.0)
    for layer, _ in model.layers:
        for op in layer.ops:
            rows = op.active if op.rows == "routed" else 1
            ways = weight_ways(op, mapping) if op.rows != "routed" else 1
            largest = np.maximum(largest, rows * op.inputs / ways + rows * op.outputs / ways)
    return tokens * ACTIVATION_BYTES * (2 * model.width + largest)


def memory_per_chip(
    model: Model,
    system: System,
    *,
    batch: Number,
    context: Number,
    mapping: Mapping | None = None,
    engine: Engine = IDEAL,
    step_tokens: Number = 0.0,
    draft: bool = False,
) -> Memory:
    """Return what a chip holds when `batch` sequences of `context` [tokens] are in flight in one replica.

    `step_tokens`: tokens that one attention group works on at once (by default one for each of its sequences).
    """
    if np.any(np.asarray(batch) < 0) or np.any(np.asarray(context) < 0):
        raise RangeError("batch and context must be at least 0")
    mapping = mapping or Mapping()
    sequences = sequences_per_group(batch, mapping)
    return Memory(
        weights=weights_per_chip(model, mapping, draft=draft),
        cache=sequences * cache_per_sequence(model, context, mapping),
        activations=activations_per_chip(model, np.maximum(sequences / mapping.microbatches, step_tokens), mapping),
        reserved=engine.reserved_bytes,
        capacity=system.chip.hbm.capacity * engine.memory_share,
    )


def sequences_that_fit(
    model: Model,
    system: System,
    *,
    context: Number,
    mapping: Mapping | None = None,
    engine: Engine = IDEAL,
    step_tokens: Number = 0.0,
    draft: bool = False,
) -> Number:
    """Return how many sequences of `context` [tokens] one replica can hold; below 1 the weights leave no room."""
    mapping = mapping or Mapping()
    empty = memory_per_chip(
        model, system, batch=0, context=context, mapping=mapping, engine=engine, step_tokens=step_tokens, draft=draft
    )
    each = np.maximum(cache_per_sequence(model, context, mapping), 1e-300)
    return np.floor(np.maximum(empty.capacity - empty.used, -1.0) / each) * mapping.dp
