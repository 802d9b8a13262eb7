"""Changes of one layer by the techniques of `kv_compression`.

Each function returns the operators and the mixers of the layer after a change of one mixer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from steptime.errors import InputError
from steptime.hardware.number_formats import number_format
from steptime.models.model import Attention, Layer, Op

# Values of the rotary key that is cached with a latent (DeepSeek-V2, arXiv 2405.04434, section 2.1.3).
ROTARY: Final = 64
# Heads and values per head of DeepSeek-V3.2's indexer (its config.json; arXiv 2512.02556).
INDEX_HEADS, INDEX_DIM = 64, 128
# Bytes of a key of the indexer, in FP8 with one scale.
INDEX_BYTES: Final = INDEX_DIM + 4
INDEXES: Final = ("indexer", "block index")
# Operators that make the entries of a cache.
KEYS: Final = ("k_proj", "v_proj", "k_norm", "kv_a_proj_with_mqa", "kv_a_norm")

LayerParts = tuple[tuple[Op, ...], tuple[Attention, ...]]
"""The operators and mixers of a layer."""


def _other_mixers(layer: Layer, a: Attention) -> tuple[Attention, ...]:
    return tuple(mixer for mixer in layer.attention if mixer is not a)


def _ops(layer: Layer, changed: Mapping[str, Op | None], added: Iterable[Op] = ()) -> tuple[Op, ...]:
    """Return the operators of a layer, changed or, for None, removed by name."""
    ops = (changed.get(op.name, op) if op.term in ("projections", "norms") else op for op in layer.ops)
    return (*(op for op in ops if op is not None), *added)


def _scaled(op: Op, share: float, *, limit: float | None = None) -> Op:
    """Return an operator with `share` of its outputs."""
    return replace(
        op, weights=op.weights * share, flops_per_row=op.flops_per_row * share, outputs=op.outputs * share,
        split_limit=op.split_limit if limit is None else limit,
    )  # fmt: skip


def _op(layer: Layer, name: str) -> Op:
    match = next((op for op in layer.ops if op.name == name), None)
    if match is None:
        raise InputError(f"its attention has no {name}, but the change needs it")
    return match


def _is_latent(layer: Layer) -> bool:
    return any(op.name == "kv_a_proj_with_mqa" for op in layer.ops)


def _check_grouped(layer: Layer) -> None:
    if _is_latent(layer):
        raise InputError("its cache is one latent for all heads, not keys and values; use latent=R for a smaller latent")


def windowed(layer: Layer, a: Attention, tokens: int) -> LayerParts:
    """Return a layer whose cache and index keep at most `tokens` tokens.

    Args:
        layer: The layer.
        a: Its mixer.
        tokens: Tokens of the window.

    Returns:
        The operators and mixers.
    """
    mixers = (
        replace(mixer, window=min(mixer.window, tokens / mixer.stride)) if mixer.name in INDEXES else mixer
        for mixer in _other_mixers(layer, a)
    )
    return layer.ops, (replace(a, window=min(a.window, tokens)), *mixers)


def reading_another(layer: Layer, a: Attention, _: int) -> LayerParts:
    """Return a layer that reads the cache of the layer before it.

    It makes no keys and values. It keeps its own index.

    Args:
        layer: The layer.
        a: Its mixer.
        _: Layers that share a cache, unused.

    Returns:
        The operators and mixers.
    """
    dropped_ops = {op.name: None for op in layer.ops if op.name in KEYS}
    return _ops(layer, dropped_ops), (replace(a, stored=False), *_other_mixers(layer, a))


def with_kv_heads(layer: Layer, a: Attention, heads: int) -> LayerParts:
    """Return a layer with another number of KV heads.

    Args:
        layer: The layer.
        a: Its mixer.
        heads: KV heads.

    Returns:
        The operators and mixers.

    Raises:
        InputError: The layer has latent attention, or the number does not divide its query heads.
    """
    _check_grouped(layer)
    if a.heads % heads:
        raise InputError(f"kv_heads: must divide its {a.heads} query heads, got {heads}")
    share = heads / a.kv_shards
    changed = {op.name: _scaled(op, share, limit=heads) for op in layer.ops if op.name in ("k_proj", "v_proj")}
    return _ops(layer, changed), (replace(a, kv_bytes=a.kv_bytes * share, kv_shards=heads), *_other_mixers(layer, a))


def with_latent(layer: Layer, a: Attention, rank: int) -> LayerParts:
    """Return a layer that caches a latent and a rotary key for all heads.

    A layer that has latent attention gets a latent of `rank` values.

    Args:
        layer: The layer.
        a: Its mixer.
        rank: Values of the latent.

    Returns:
        The operators and mixers.

    Raises:
        InputError: The latent has more values than all heads.
    """
    if _is_latent(layer):
        return _with_lower_rank(layer, a, rank)
    heads = a.heads
    key, value = a.query_values / heads, a.output_values / heads
    if rank > heads * (key + value):
        raise InputError(f"latent: must be at most {heads * (key + value):,.0f}, the values of all its heads, got {rank:,}")
    q, k = _op(layer, "q_proj"), next((op for op in layer.ops if op.name == "k_proj"), _op(layer, "q_proj"))

    # The new cache keeps the number format of the old one.
    bytes_per_value = a.kv_bytes / (a.kv_shards * (key + value))
    down, up, rotary_weights = q.inputs * (rank + ROTARY), rank * heads * (key + value), q.inputs * heads * ROTARY

    # Queries get a rotary part per head, as in DeepSeek-V2.
    q = replace(
        q,
        weights=q.weights + rotary_weights,
        flops_per_row=q.flops_per_row + 2 * rotary_weights,
        outputs=q.outputs + heads * ROTARY,
    )

    # The down-projection and its norm make the cache, so a layer that reads another cache drops them.
    down_projection = replace(
        k, name="kv_a_proj_with_mqa", weights=down, flops_per_row=2 * down, outputs=rank + ROTARY, split="replicated",
        split_limit=math.inf,
    )  # fmt: skip
    norm = replace(
        k, name="kv_a_norm", term="norms", weights=rank, flops_per_row=0, inputs=rank, outputs=rank, split="replicated",
        split_limit=math.inf,
    )  # fmt: skip
    expand = replace(
        k, name="kv_b_proj", weights=up, flops_per_row=2 * up, inputs=rank, outputs=heads * (key + value), split_limit=heads
    )
    mixer = replace(
        a, kv_bytes=(rank + ROTARY) * bytes_per_value, kv_shards=1, flops_per_pair_decode=2 * heads * (2 * rank + ROTARY),
        flops_per_pair_prefill=2 * heads * (key + ROTARY + value), expand_flops=2 * up,
        query_values=heads * (rank + ROTARY), output_values=heads * rank, summed=0.0, gathered=0.0,
    )  # fmt: skip
    gone: dict[str, Op | None] = {"k_proj": None, "v_proj": None, "q_norm": None, "k_norm": None}
    added = (down_projection, norm, expand) if a.stored else (expand,)

    return _ops(layer, {"q_proj": q, **gone}, added), (mixer, *_other_mixers(layer, a))


def _with_lower_rank(layer: Layer, a: Attention, rank: int) -> LayerParts:
    """Return a layer of latent attention with a latent of another rank."""
    heads, before = a.heads, a.output_values / a.heads
    rotary = a.query_values / heads - before
    share, entry_share = rank / before, (rank + rotary) / (before + rotary)
    down, up = _op(layer, "kv_a_proj_with_mqa"), _op(layer, "kv_b_proj")
    norm = _op(layer, "kv_a_norm")
    changed = {
        down.name: _scaled(down, entry_share),
        up.name: replace(up, weights=up.weights * share, flops_per_row=up.flops_per_row * share, inputs=rank),
        norm.name: replace(norm, weights=norm.weights * share, inputs=rank, outputs=rank),
    }

    # Sparse attention runs the prefill in the latent space too.
    absorbed = a.flops_per_pair_prefill == a.flops_per_pair_decode
    decode = 2 * heads * (2 * rank + rotary)
    mixer = replace(
        a, kv_bytes=a.kv_bytes * entry_share, flops_per_pair_decode=decode, expand_flops=a.expand_flops * share,
        flops_per_pair_prefill=decode if absorbed else a.flops_per_pair_prefill,
        query_values=heads * (rank + rotary), output_values=heads * rank,
    )  # fmt: skip

    return _ops(layer, changed), (mixer, *_other_mixers(layer, a))


def in_low_rank(layer: Layer, a: Attention, share: float) -> LayerParts:
    """Return a layer that caches its keys and values in a lower rank.

    The second factor of the values is merged into the output projection. Keys are expanded again for each entry that is
    read, because rotary positions apply after the expansion: 2 x rank x key FLOPs per KV head.

    Args:
        layer: The layer.
        a: Its mixer.
        share: Share of the rank that is kept.

    Returns:
        The operators and mixers.

    Raises:
        InputError: The layer has latent attention.
    """
    _check_grouped(layer)
    key, value = a.query_values / a.heads, a.output_values / a.heads
    k, v, o = _op(layer, "k_proj"), _op(layer, "v_proj"), _op(layer, "o_proj")

    # Parameters of the second factor of the keys.
    factor_weights = a.kv_shards * share * key * key
    changed = {
        "k_proj": replace(_scaled(k, share), weights=k.weights * share + factor_weights),
        "v_proj": _scaled(v, share),
        "o_proj": replace(o, weights=o.weights * share, flops_per_row=o.flops_per_row * share, inputs=o.inputs * share),
    }
    added = 2 * a.kv_shards * share * key * key + 2 * a.heads * value * (share - 1)
    mixer = replace(
        a, kv_bytes=a.kv_bytes * share, flops_per_pair_decode=a.flops_per_pair_decode + added,
        output_values=a.output_values * share,
    )  # fmt: skip

    return _ops(layer, changed), (mixer, *_other_mixers(layer, a))


def selecting(layer: Layer, a: Attention, tokens: int) -> LayerParts:
    """Return a layer that reads the best tokens by an indexer as in DeepSeek-V3.2.

    The indexer has its own heads and caches one key per token.

    Args:
        layer: The layer.
        a: Its mixer.
        tokens: Tokens that a query reads.

    Returns:
        The operators and mixers; unchanged if the layer reads no more tokens.
    """
    if min(a.window, a.selected) <= tokens:
        return layer.ops, layer.attention
    main = replace(a, selected=min(a.selected, tokens))
    if _is_latent(layer):
        # Prefill also runs in the latent space, because each query has its own selection.
        main = replace(main, flops_per_pair_prefill=a.flops_per_pair_decode, expand_flops=0.0)
    if math.isfinite(a.selected):
        # The layer already has an index, or uses that of an earlier layer.
        return layer.ops, (main, *_other_mixers(layer, a))

    # The indexer reads the latent of the queries, or else the residual stream.
    query = next((op for op in layer.ops if op.name == "q_b_proj"), _op(layer, "q_proj") if not _is_latent(layer) else None)
    width = query.inputs if query is not None else _op(layer, "kv_a_proj_with_mqa").inputs
    stream = _op(layer, "o_proj").outputs
    o_proj = _op(layer, "o_proj")

    def matrix(name: str, inputs: float, outputs: float) -> Op:
        return replace(
            o_proj, name=name, weights=inputs * outputs, flops_per_row=2 * inputs * outputs, inputs=inputs, outputs=outputs,
            split="replicated", split_limit=math.inf,
        )  # fmt: skip

    added = (
        matrix("index_q_proj", width, INDEX_HEADS * INDEX_DIM),
        matrix("index_k_proj", stream, INDEX_DIM),
        matrix("index_weights_proj", stream, INDEX_HEADS),
        replace(matrix("index_key_norm", INDEX_DIM, 2), term="norms", flops_per_row=0.0, inputs=INDEX_DIM, outputs=INDEX_DIM),
    )
    flops = 2 * INDEX_HEADS * (INDEX_DIM + 1)
    index = Attention(
        name="indexer", kv_bytes=INDEX_BYTES, flops_per_pair_decode=flops, flops_per_pair_prefill=flops, window=a.window,
        query_values=INDEX_HEADS * INDEX_DIM, arithmetic=number_format("fp8").arithmetic, kv_format="fp8", stored=a.stored,
    )  # fmt: skip

    return (*layer.ops, *added), (main, *_other_mixers(layer, a), index)


def selecting_blocks(layer: Layer, a: Attention, figures: tuple[int, int]) -> LayerParts:
    """Return a layer that reads the best blocks, as in MoBA (arXiv 2502.13189).

    The score of a block comes from one mean key.

    Args:
        layer: The layer.
        a: Its mixer.
        figures: Tokens of a block, and blocks that a query reads.

    Returns:
        The operators and mixers; unchanged if the layer reads no more tokens or already selects.
    """
    size, blocks = figures
    if a.window <= size * blocks or math.isfinite(a.selected):
        return layer.ops, layer.attention

    # Only keys make the index, so its entry is the keys' share of the cache.
    value = next((op.outputs for op in layer.ops if op.name == "v_proj"), 0.0)
    key = next((op.outputs for op in layer.ops if op.name == "k_proj"), value)
    share = 1.0 if _is_latent(layer) or not key else key / (key + value)
    scores = 2 * a.query_values
    index = Attention(
        name="block index", kv_bytes=a.kv_bytes * share, kv_shards=a.kv_shards, flops_per_pair_decode=scores,
        flops_per_pair_prefill=scores, stride=float(size), window=a.window / size, heads=a.heads,
        query_values=a.query_values, arithmetic=a.arithmetic, stored=a.stored,
    )  # fmt: skip
    return layer.ops, (replace(a, selected=min(a.selected, size * blocks)), *_other_mixers(layer, a), index)
