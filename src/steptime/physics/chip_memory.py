r"""Memory of one chip: weights, KV cache and activations, and whether they fit.

With $P$ pipeline stages, a chip has $1/P$ of the layers, for all sequences in flight. So pipeline stages divide the
weights. They do not divide the KV cache of a batch that grows with the number of stages: with $B = P b$ sequences a chip
has $b L \kappa / E$ bytes of cache for every $P$ (lecture, section 10).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from steptime.catalog.hardware_loading import SystemLike, resolve_system
from steptime.hardware.system import System
from steptime.models.model import Attention, Model, Op, cache_bytes, cache_entries
from steptime.models.model_loading import ModelLike
from steptime.number_checks import MOST_SEQUENCES, MOST_TOKENS, Array, Number, at_least_zero, check_shapes, positive
from steptime.physics.engine import Engine, engine_for, model_and_system
from steptime.physics.layout import NAMES, Layout, check_ways, shard_count
from steptime.physics.layout_rules import check_rules
from steptime.physics.lora_adapters import adapter_bytes
from steptime.result_base import Tabular, broadcast, in_words, unit
from steptime.svg import stacked
from steptime.units import show

# Share of a chip's memory that buffers of collectives take at most: 0.2 GiB on chips of 24 GB, 1.8 GiB on those of 80 GB.
# https://github.com/vllm-project/vllm/pull/14447, https://github.com/vllm-project/vllm/pull/10511
LARGEST_BUFFER_SHARE = 0.025
# Bytes per activation value: engines keep activations in 16 bits.
ACTIVATION_BYTES = 2.0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Memory(Tabular):
    """The bytes on one chip by part, as arrays that broadcast together.

    `capacity` is the part of the chip's memory that the engine may use, such as 92 % with vLLM.
    """

    SCHEMA: ClassVar[str] = "steptime.memory/2"
    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "used": unit("B", "bytes in use: the sum of the parts"),
        "fits": unit("", "whether the bytes in use are within the capacity", kind="true or false, or list"),
    }

    weights: Number = field(metadata=unit("B", "weights, on the chip with the most weights"))
    cache: Number = field(metadata=unit("B", "KV cache and recurrent states of the sequences in flight"))
    activations: Number = field(metadata=unit("B", "live activations"))
    reserved: Number = field(metadata=unit("B", "memory that the engine reserves"))
    capacity: Number = field(metadata=unit("B", "memory of a chip that the engine may use"))
    chip_capacity: Number = field(
        default=math.nan, metadata=unit("B", "memory of a chip as its driver counts it; null: not known", key="chip_bytes")
    )

    @property
    def used(self) -> Number:
        """Bytes in use."""
        return self.weights + self.cache + self.activations + self.reserved

    @property
    def cache_room(self) -> Number:
        """Bytes that the engine leaves to the KV cache."""
        return self.capacity - self.weights - self.activations - self.reserved

    @property
    def fits(self) -> Array:
        """Whether the bytes in use are within the capacity."""
        return np.asarray(self.used <= self.capacity)

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return bytes in use and capacity, and the parts.

        Returns:
            A title and a table of texts.
        """
        fits = np.asarray(self.fits)
        verdict = "fits" if fits.all() else "does not fit" if not fits.any() else f"{int(fits.sum())} of {fits.size} fit"
        title = f"Memory of a chip: {_bytes(self.used)} of {_bytes(self.capacity)}, {verdict}"
        return title, {name: _bytes(getattr(self, name)) for name in ("weights", "cache", "activations", "reserved")}

    def drawing(self) -> str:
        """Draw the parts of one chip's memory as a bar.

        Returns:
            SVG text; "" for several points.
        """
        if np.ndim(self.used):
            return ""
        parts = {name: float(getattr(self, name)) for name in ("weights", "cache", "activations", "reserved")}
        return stacked(parts, "B", total=float(self.capacity))

    def columns(self) -> dict[str, Any]:
        """Return one row per point: bytes by part, and whether they fit.

        Returns:
            Arrays of one shape by column name.
        """
        names = ("weights", "cache", "activations", "reserved", "used", "capacity")
        return broadcast({f"{name}_bytes": getattr(self, name) for name in names} | {"fits": self.fits})


def _bytes(values: Number) -> str:
    return in_words(values, lambda value: show(value, "B"))


def expert_slots(op: Op, layout: Layout) -> Number:
    """Return the number of experts on one chip, with redundant copies.

    Args:
        op: Routed experts of a layer.
        layout: Parallel degrees; fields may be arrays.

    Returns:
        Experts per chip, rounded up.
    """
    return np.ceil((op.experts + layout.redundant_experts) / layout.ep)


def stage_share(model: Model, layout: Layout) -> Number:
    """Return the share of the layers in the pipeline stage with the most layers.

    Args:
        model: The model.
        layout: Parallel degrees; fields may be arrays.

    Returns:
        A share above 0, at most 1.
    """
    return np.ceil(model.depth / np.asarray(layout.pp)) / model.depth


def op_bytes(op: Op, layout: Layout) -> Number:
    """Return the bytes per chip of one operator's weights.

    Args:
        op: Operator of a layer or of the stem.
        layout: Parallel degrees; fields may be arrays.

    Returns:
        Bytes on the chip with the largest shard.
    """
    if op.rows == "routed":
        sharing = layout.stage / layout.ep
        return expert_slots(op, layout) * op.weights * op.stored * op.format.bytes / sharing
    shards = shard_count(1.0 if op.split == "replicated" else op.split_limit, layout.group)
    return op.total_weights * op.format.bytes / shards


@lru_cache(maxsize=256)
def _divided(model: Model) -> tuple[dict[float, float], list[tuple[Op, int]], dict[float, float]]:
    """Return weight bytes by maximum shards, the routed experts, and maximum values per row of an operator by shards."""
    plain: dict[float, float] = {}
    routed: list[tuple[Op, int]] = []
    widest: dict[float, float] = {}
    for layer, n in model.layers:
        for op in layer.ops:
            if op.rows == "routed":
                shards, rows = 1.0, op.active
                routed.append((op, n))
            else:
                shards, rows = 1.0 if op.split == "replicated" else op.split_limit, 1
                plain[shards] = plain.get(shards, 0.0) + n * op.total_weights * op.format.bytes
            widest[shards] = max(widest.get(shards, 0.0), rows * (op.inputs + op.outputs))
    return plain, routed, widest


def weights_per_chip(model: Model, layout: Layout) -> Number:
    """Return the bytes of weights on the chip with the most weights, with the slots of LoRA adapters.

    The weights of multi-token-prediction layers are not included. Embedding and head are on the first and the last stage,
    so that with pipeline stages a chip has one of them.

    Args:
        model: The model.
        layout: Parallel degrees; fields may be arrays.

    Returns:
        Bytes per chip.
    """
    plain, routed, _ = _divided(model)
    layers: Number = np.asarray(0.0)
    for shards, bytes_ in plain.items():
        layers = layers + bytes_ / shard_count(shards, layout.group)
    for op, n in routed:
        layers = layers + n * op_bytes(op, layout)
    if model.adapters is not None:
        layers = layers + adapter_bytes(model, layout)
    layers = layers * stage_share(model, layout)

    # The embedding and vision towers run on the first stage, the head on the last.
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
    """Return the number of sequences of the busiest data-parallel rank.

    Args:
        batch: Sequences per replica.
        layout: Parallel degrees; fields may be arrays.

    Returns:
        Sequences, rounded up.
    """
    return np.ceil(batch / np.asarray(layout.dp) - 1e-9)


def cache_ways(attention: Attention, layout: Layout) -> Number:
    """Return the number of shards of a KV cache: by whole heads and by context.

    Args:
        attention: A token mixer with a KV cache.
        layout: Parallel degrees; fields may be arrays.

    Returns:
        Number of shards, from the chip with the most heads.
    """
    return shard_count(attention.kv_shards, layout.tp) * layout.cp


def state_ways(attention: Attention, layout: Layout) -> Number:
    """Return the number of shards of a recurrent mixer's state: by whole heads.

    Args:
        attention: A token mixer with a recurrent state.
        layout: Parallel degrees; fields may be arrays.

    Returns:
        Number of shards, from the chip with the most heads.
    """
    return shard_count(attention.heads, layout.tp)


def cache_per_sequence(model: Model, context: Number, layout: Layout) -> Number:
    """Return the bytes of one sequence's cache on one chip.

    The KV cache is divided by heads, at most one head per shard, and by context parallelism.

    Args:
        model: The model.
        context: Tokens in the KV cache of the sequence.
        layout: Parallel degrees; fields may be arrays.

    Returns:
        Bytes per sequence and chip: KV cache and recurrent states.
    """
    total: Number = np.asarray(0.0)
    for layer, n in model.layers:
        for a in layer.attention:
            cached_bytes = a.kv_bytes * cache_entries(a, context) / cache_ways(a, layout) if a.stored else 0.0
            total = total + n * (cached_bytes + a.state_bytes / state_ways(a, layout))
    return total * stage_share(model, layout)


def cache_parts(model: Model, layout: Layout) -> Number:
    """Return the number of chips among which the KV cache of one request is divided.

    Each chip of its data-parallel rank has a part. Heads that several chips have a copy of do not divide it.

    Args:
        model: The model.
        layout: Parallel degrees; fields may be arrays.

    Returns:
        Bytes that a token adds to a long context, over those on one chip; 1 where tokens add nothing.

    >>> from steptime.models.model_loading import load_model
    >>> [round(float(cache_parts(load_model(name), Layout(tp=8)))) for name in ("llama-3.1-8b", "deepseek-v3")]
    [8, 1]
    """
    on_chip = cache_per_sequence(model, 1 << 14, layout) - cache_per_sequence(model, 1 << 13, layout)
    in_all = cache_bytes(model, 1 << 14) - cache_bytes(model, 1 << 13)
    return np.where(np.asarray(on_chip) > 0, in_all / np.maximum(on_chip, 1e-300), 1.0)


def activations_per_chip(model: Model, tokens: Number, layout: Layout) -> Number:
    """Return the bytes of live activations: residual stream (twice) and one operator.

    The operator is the one with the most input and output values per chip.

    Args:
        model: The model.
        tokens: Tokens per data-parallel rank.
        layout: Parallel degrees; fields may be arrays.

    Returns:
        Bytes per chip.
    """
    largest: Number = np.asarray(0.0)
    for shards, values in _divided(model)[2].items():
        largest = np.maximum(largest, values / shard_count(shards, layout.group))
    return tokens * ACTIVATION_BYTES * (2 * model.width + largest)


def sampling_per_sequence(model: Model, engine: Engine) -> Number:
    """Return the bytes of one sequence in the sampler: the chip that samples has the logits of the whole vocabulary.

    Args:
        model: The model.
        engine: The engine.

    Returns:
        Bytes per sequence.
    """
    return model.vocabulary * engine.room.sampling_bytes


def reserved_per_chip(engine: Engine, system: System, layout: Layout) -> Number:
    """Return the bytes that an engine reserves on a chip, with the buffers of collectives where a replica has several chips.

    Args:
        engine: The engine.
        system: The system.
        layout: Parallel degrees; fields may be arrays.

    Returns:
        Bytes per chip.
    """
    buffers = np.minimum(engine.room.collective_bytes, LARGEST_BUFFER_SHARE * system.chip.capacity)
    return engine.room.reserved_bytes + buffers * (np.asarray(layout.chips) > 1)


def words_of_excess(excess: float) -> str:
    """Say by how much the weights exceed a chip's memory.

    Args:
        excess: Bytes of a chip's weights above its memory [B].

    Returns:
        Sentence without a full stop; "" where they fit.

    >>> words_of_excess(2e9), words_of_excess(0.0)
    ('the weights need 2.00 GB more than the memory of a chip', '')
    """
    return f"the weights need {show(excess, 'B')} more than the memory of a chip" if excess > 0 else ""


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
    """Return the bytes on one chip with `batch` sequences in flight in one replica.

    Args:
        model: A model, or its name.
        system: A system, or its name.
        batch: Sequences per replica.
        context: Tokens in the KV cache of each sequence.
        layout: Parallel degrees; by default one chip.
        engine: An engine, or its name; by default the engine of the system.
        step_tokens: Tokens that one data-parallel rank processes at once; by default one for each of its
            sequences.
        legal: Whether the sizes and the layout are already checked, as in a search.

    Returns:
        The bytes by part, with the broadcast shape of the arguments.

    Raises:
        LayoutError: The layout cannot run the model.
    """
    model, system = model_and_system(model, system, engine)
    layout, runs_on = Layout() if layout is None else layout, engine_for(system, engine)

    # A search checks its sizes and layouts once, before it calls this thousands of times.
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
        activations=activations_per_chip(model, np.maximum(sequences / layout.microbatches, step_tokens), layout)
        + sequences * sampling_per_sequence(model, runs_on),
        reserved=reserved_per_chip(runs_on, system, layout),
        capacity=system.chip.capacity * runs_on.room.memory_share,
        chip_capacity=system.chip.capacity,
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
    """Return the number of sequences whose KV cache fits in one replica.

    Args:
        model: The model.
        system: The system.
        context: Tokens in the KV cache of each sequence.
        layout: Parallel degrees; by default one chip.
        engine: An engine, or its name; by default the engine of the system.
        step_tokens: Tokens that one data-parallel rank processes at once.
        is_integer: Whether to round down to whole sequences per data-parallel rank.

    Returns:
        Sequences per replica. Below 1 the weights leave no room; infinite for a model without a cache.
    """
    layout = check_ways(Layout() if layout is None else layout)
    context = positive("context", context, "token", minimum=1e-6, maximum=MOST_TOKENS)
    empty = memory_per_chip(model, system, batch=0, context=context, layout=layout, engine=engine, step_tokens=step_tokens)
    bytes_per_sequence = cache_per_sequence(model, context, layout) + sampling_per_sequence(
        model, engine_for(resolve_system(system), engine)
    )
    return sequences_in_room(empty, bytes_per_sequence, layout, is_integer=is_integer)


def sequences_in_room(empty: Memory, bytes_per_sequence: Number, layout: Layout, *, is_integer: bool = True) -> Number:
    """Return the number of sequences of some bytes that fit in one replica.

    Args:
        empty: Memory of a chip without sequences.
        bytes_per_sequence: Bytes of a sequence on a chip.
        layout: Parallel degrees; fields may be arrays.
        is_integer: Whether to round down to whole sequences per data-parallel rank.

    Returns:
        Sequences per replica. Below 1 the weights leave no room; infinite for sequences without bytes.
    """
    room = np.maximum(empty.capacity - empty.used, -1.0)

    # Sequences without a cache take no room, so that any number fits, or none if the weights do not fit.
    endless = np.where(room < 0, -1.0, np.inf)
    sequences = room / np.where(bytes_per_sequence > 0, bytes_per_sequence, 1.0)
    return np.where(bytes_per_sequence > 0, np.floor(sequences) if is_integer else sequences, endless) * layout.dp
