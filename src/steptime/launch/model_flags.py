"""The numbers of a model that flags of training stacks need: plain GPTs and Llamas, with experts or latent attention.

They come from the operators of a `Model`, so that your own config works like one of the catalogue. Features that such flags
cannot express (windows, linear or sparse attention, parallel layers) are listed in words.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from steptime.models.model import Layer, Model, Op
from steptime.training.stage_balance import has_dense_prologue

# Families whose attention has a bias by distance, without position embeddings or rotation.
ALIBI = ("bloom", "mpt")
# Norms of the residual stream in a plain layer.
WHOLE_NORM = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Latent attention: ranks of queries (0: none) and keys, and the parts of a head.

    A head has plain, rotary and value dimensions.
    """

    query_rank: int
    rank: int
    plain: int
    rotary: int
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Routed experts of a layer.

    count: all experts. active: experts per token. width: hidden size of one. shared: hidden size of the shared experts.
    groups: expert groups, and groups that a token uses.
    """

    count: int
    active: int
    width: int
    shared: int
    groups: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model in the numbers of training flags.

    head: query dimensions per head. hidden: hidden size of dense feed-forward blocks. dense: layers before those with experts.
    drafts: multi-token-prediction layers. odd: features that flags cannot express, in words.
    """

    layers: int
    width: int
    heads: int
    groups: int
    head: int
    hidden: int
    vocabulary: int
    gated: bool
    tied: bool
    learned_positions: bool
    rms: bool
    bias: bool
    qkv_bias: bool
    query_norms: bool
    latent: Latent | None
    experts: Experts | None
    dense: int
    drafts: int
    odd: tuple[str, ...]


def model_shape(model: Model, seq: float) -> Shape:
    """Return the numbers of a model for training flags.

    Args:
        model: The model.
        seq: Sequence length [tokens]; longer windows have no effect.

    Returns:
        The shape, with the features that flags cannot express.

    >>> import steptime as st
    >>> shape = model_shape(st.load_model("llama-3.1-8b"), 8192)
    >>> shape.width, shape.groups, shape.hidden, shape.odd
    (4096, 8, 14336, ())
    """
    # First and last kind of layer: dense layers come before those with experts.
    kinds = [layer for layer, _ in model.layers]
    first, last = kinds[0], kinds[-1]
    query, out = _find_op(first, "q_b_proj") or _find_op(first, "q_proj"), _find_op(first, "o_proj")
    inner = [op for layer in kinds for op in layer.ops if op.term == "feed-forward"]
    keys, values = _find_op(first, "k_proj"), _find_op(first, "v_proj")
    latent = _latent(first, model.heads)
    experts = _experts(last)
    norms = [op for op in first.ops if op.term == "norms" and op.inputs == model.width and op.name not in ("q_norm", "k_norm")]
    head = int(query.outputs / model.heads) if query else 0

    # Without a key projection of that name, every head has its own keys.
    groups = int(keys.outputs / head) if keys and head else model.heads
    return Shape(
        layers=model.depth,
        width=model.width,
        heads=model.heads,
        groups=groups,
        head=head,
        hidden=int(max((op.inputs for op in inner if op.name == "down_proj"), default=experts.width if experts else 0)),
        vocabulary=model.vocabulary,
        gated=any(op.name == "gate_proj" for op in inner) or _gated(last.routed),
        tied=not any(op.name == "embed_tokens" and op.total_weights for op in model.stem),
        learned_positions=any(op.name == "positions" for op in model.stem),
        rms=all(op.total_weights <= op.inputs for op in norms),
        bias=_biased(out) or any(map(_biased, inner)),
        qkv_bias=_biased(query) or _biased(values),
        query_norms=_find_op(first, "q_norm") is not None,
        latent=latent,
        experts=experts,
        dense=model.layers[0][1] if len(kinds) > 1 and not first.routed and last.routed else 0,
        drafts=sum(n for _, n in model.draft),
        odd=tuple(_odd(model, seq, len(norms), head)),
    )


def _find_op(layer: Layer, name: str) -> Op | None:
    return next((op for op in layer.ops if op.name == name and op.term != "shared experts"), None)


def _biased(op: Op | None) -> bool:
    return op is not None and op.weights > op.inputs * op.outputs


def _gated(routed: Op | None) -> bool:
    return routed is not None and routed.columns > 0 and routed.flops_per_row >= 5 * routed.inputs * routed.columns


def _latent(layer: Layer, heads: int) -> Latent | None:
    keys, expanded, out = _find_op(layer, "kv_a_proj_with_mqa"), _find_op(layer, "kv_b_proj"), _find_op(layer, "o_proj")
    query, ranked = _find_op(layer, "q_b_proj") or _find_op(layer, "q_proj"), _find_op(layer, "q_a_proj")
    if keys is None or expanded is None or query is None or out is None:
        return None
    rank = int(expanded.inputs)
    rotary = int(keys.outputs) - rank
    return Latent(
        query_rank=int(ranked.outputs) if ranked else 0,
        rank=rank,
        plain=int(query.outputs / heads) - rotary,
        rotary=rotary,
        value=int(out.inputs / heads),
    )


def _experts(layer: Layer) -> Experts | None:
    routed = layer.routed
    if routed is None:
        return None
    shared = [op for op in layer.ops if op.term == "shared experts" and op.name == "down_proj"]
    return Experts(
        count=routed.experts,
        active=int(routed.active),
        width=routed.columns,
        shared=int(sum(op.inputs for op in shared)),
        groups=(routed.expert_groups, routed.active_groups),
    )


def _odd(model: Model, seq: float, norms: int, head: int) -> list[str]:
    """Return the features that flags of plain models cannot express."""
    kinds, oddities = [layer for layer, _ in model.layers], []
    mixers = [a for layer in kinds for a in layer.attention]
    if any(a.state_bytes for a in mixers) or any(not layer.attention for layer in kinds):
        oddities.append("layers with a recurrent state, or without attention")
    if any(a.window < seq for a in mixers):
        oddities.append(f"windows of {min(a.window for a in mixers):,.0f} tokens in sequences of {seq:,.0f}")
    if any(a.selected < seq or a.stride > 1 for a in mixers):
        oddities.append("sparse attention")
    if any(not a.stored for a in mixers):
        oddities.append("layers that share keys and values")

    # A dense prologue before layers with experts is plain; any other alternation is not.
    mixed = len(kinds) > 1 and len({layer.routed is None for layer in kinds}) > 1
    if len(kinds) > 2 or (len(kinds) > 1 and not (mixed and has_dense_prologue([n for _, n in model.layers]))):
        oddities.append("layers of several kinds that alternate")
    if norms != WHOLE_NORM:
        oddities.append(f"{norms} norms of the residual stream in a layer, not {WHOLE_NORM}")
    wide = [op for layer in kinds for op in layer.ops if op.name == "q_norm" and op.total_weights > head]
    if wide:
        oddities.append("norms of queries over all heads")
    if any(op.name == "sinks" for layer in kinds for op in layer.ops):
        oddities.append("attention sinks")
    if model.family in ALIBI:
        oddities.append("attention biased by distance (ALiBi)")
    if not all(_plain(a.flops_per_pair_prefill) for a in mixers):
        oddities.append("attention of an unknown kind")
    return oddities


def _plain(flops: float) -> bool:
    return flops > 0 and math.isfinite(flops)
