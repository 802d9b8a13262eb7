"""The parts that families are built of: matrices, norms, feed-forward blocks, experts, attention.

Each part returns operators with exact parameter counts. Dimensions are those of the model's config; what runs where, and
in which format, is decided elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from steptime.hardware.number_formats import number_format
from steptime.models.config import LATENT_FP8_MIXED, Config
from steptime.models.model import Attention, Op, Rows, Split


@dataclass(frozen=True, slots=True)
class Block:
    """Part of a layer: operators with weights, and what reads the cache."""

    ops: tuple[Op, ...]
    attention: tuple[Attention, ...] = ()

    def __add__(self, addend: Block) -> Block:
        return Block(self.ops + addend.ops, self.attention + addend.attention)


def linear(
    c: Config,
    module: str,
    inputs: float,
    outputs: float,
    *,
    term: str,
    bias: bool = False,
    rows: Rows = "tokens",
    split: Split = "group",
    split_limit: float = math.inf,
) -> Op:
    """A matrix multiply of `inputs` by `outputs` values, with or without a bias."""
    return Op(
        name=module.rpartition(".")[2],
        term=term,
        weights=inputs * outputs + bias * outputs,
        flops_per_row=2 * inputs * outputs,
        format=c.weight_format(module, [(inputs, outputs)], bias=bias * outputs),
        rows=rows,
        split=split,
        split_limit=split_limit,
        inputs=inputs,
        outputs=outputs,
    )


def norm(c: Config, name: str, size: float, *, bias: bool = False, weights: float | None = None) -> Op:
    """A normalisation over `size` values, with a gain and perhaps a bias; `weights` where the gain is shared by heads."""
    gain = size if weights is None else weights
    return Op(
        name=name,
        term="norms",
        weights=gain * (1 + bias),
        flops_per_row=0,
        format=c.base_format,
        split="replicated",
        inputs=size,
        outputs=size,
    )


def small(c: Config, name: str, weights: float, *, term: str = "norms", split: Split = "replicated") -> Op:
    """Parameters that take no time of their own, such as biases, gates of one value or sinks."""
    return Op(name=name, term=term, weights=weights, flops_per_row=0, format=c.base_format, split=split)


def head_norms(c: Config, heads: int, kv_heads: int, head_dim: int, *, shared: bool = True, bias: bool = True) -> Block:
    """Layer norms of queries and keys by head: one gain (and bias) for all heads, or one for each."""
    gains = (1, 1) if shared else (heads, kv_heads)
    sizes = (heads * head_dim, kv_heads * head_dim)
    names = ("q_norm", "k_norm")
    return Block(
        tuple(norm(c, name, size, bias=bias, weights=n * head_dim) for name, size, n in zip(names, sizes, gains, strict=True))
    )


def grouped_query(
    c: Config,
    module: str,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    value_dim: int | None = None,
    width: int | None = None,
    bias: bool = False,
    output_bias: bool = False,
    qk_norm: int = 0,
    window: float = math.inf,
    stored: bool = True,
    shared_key_value: bool = False,
    gate: int = 0,
    gathers: bool = False,
) -> Block:
    """Multi-head, grouped-query or multi-query attention, by the number of KV heads.

    `qk_norm`: gains of each of the two norms on queries and keys (0: none), of a head, or of all heads together.
    `window` [tokens] of sliding-window layers.
    `stored=False` where the cache of an earlier layer is read. `gate`: outputs of a gate beside the queries. `gathers`: whether
    chips that divide the heads gather them for norms over all of them, not their sums of squares.
    """
    width, value_dim = width or c.width, value_dim or head_dim
    q, k, v = heads * head_dim, kv_heads * head_dim, kv_heads * value_dim
    term = "projections"
    ops = [linear(c, f"{module}.q_proj", width, q + gate, term=term, bias=bias, split_limit=heads)]
    if stored:
        ops.append(linear(c, f"{module}.k_proj", width, k, term=term, bias=bias, split_limit=kv_heads))
        if not shared_key_value:
            ops.append(linear(c, f"{module}.v_proj", width, v, term=term, bias=bias, split_limit=kv_heads))
    ops.append(linear(c, f"{module}.o_proj", heads * value_dim, width, term=term, bias=output_bias))
    if qk_norm:
        ops.append(norm(c, "q_norm", q, weights=qk_norm))
        if stored:
            ops.append(norm(c, "k_norm", k, weights=min(qk_norm, k)))
    attention = Attention(
        name="attention",
        kv_bytes=(k + v) * c.kv_format.bytes,
        kv_shards=kv_heads,
        flops_per_pair_decode=2 * heads * (head_dim + value_dim),
        flops_per_pair_prefill=2 * heads * (head_dim + value_dim),
        window=window,
        stored=stored,
        heads=heads,
        query_values=heads * head_dim,
        output_values=heads * value_dim,
        summed=2.0 if qk_norm > head_dim and not gathers else 0.0,
        gathered=q + k if qk_norm > head_dim and gathers else 0.0,
        arithmetic=c.kv_format.arithmetic,
    )
    return Block(tuple(ops), (attention,))


def latent(c: Config, module: str, *, heads: int | None = None, selected: float = math.inf) -> Block:
    r"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    The cache holds a latent of $r$ values and a rotary key of $d_r$ for all heads together. Decode is absorbed: queries are
    mapped into the latent space, so that a pair costs $2h(2r + d_r)$ FLOPs; prefill expands keys and values, so that a
    pair costs $2h(d_n + d_r + d_v)$ and each cached token $2rh(d_n + d_v)$ more to expand. Per token, the absorbed maps cost
    the FLOPs of `kv_b_proj`.

    With the KV format "fp8_ds_mla" the latent is FP8 with a 4-byte scale for each 128 values and the rotary key stays BF16.
    """
    heads = heads or c.heads
    rank, rotary = c.integer("kv_lora_rank"), c.integer("qk_rope_head_dim")
    plain, value = c.integer("qk_nope_head_dim"), c.integer("v_head_dim")
    bias = c.flag("attention_bias", default=False)
    term, width = "projections", c.width
    if c.has("q_lora_rank"):
        q_rank = c.integer("q_lora_rank")
        ops = [
            linear(c, f"{module}.q_a_proj", width, q_rank, term=term, bias=bias, split="replicated"),
            norm(c, "q_a_norm", q_rank),
            linear(c, f"{module}.q_b_proj", q_rank, heads * (plain + rotary), term=term, split_limit=heads),
        ]
    else:
        ops = [linear(c, f"{module}.q_proj", width, heads * (plain + rotary), term=term, split_limit=heads)]
    ops += [
        linear(c, f"{module}.kv_a_proj_with_mqa", width, rank + rotary, term=term, bias=bias, split="replicated"),
        norm(c, "kv_a_norm", rank),
        linear(c, f"{module}.kv_b_proj", rank, heads * (plain + value), term=term, split_limit=heads),
        linear(c, f"{module}.o_proj", heads * value, width, term=term, bias=bias),
    ]
    attention = Attention(
        name="attention",
        kv_bytes=latent_cache_bytes(c, rank, rotary),
        kv_shards=1,
        flops_per_pair_decode=2 * heads * (2 * rank + rotary),
        flops_per_pair_prefill=2 * heads * (plain + rotary + value),
        expand_flops=2 * rank * heads * (plain + value),
        selected=selected,
        heads=heads,
        query_values=heads * (rank + rotary),
        output_values=heads * rank,
        arithmetic=(number_format("fp8") if c.kv_name == LATENT_FP8_MIXED else c.kv_format).arithmetic,
    )
    return Block(tuple(ops), (attention,))


def latent_cache_bytes(c: Config, rank: int, rotary: int) -> float:
    """Bytes of one token's latent cache in one layer; "fp8_ds_mla" is 656 for 512 + 64 values."""
    if c.kv_name == LATENT_FP8_MIXED:
        return rank + 4 * math.ceil(rank / 128) + 2 * rotary
    return (rank + rotary) * c.kv_format.bytes


def gated(
    c: Config, module: str, hidden: int, *, width: int | None = None, bias: bool = False, term: str = "feed-forward"
) -> Block:
    """A gated feed-forward block (SwiGLU, GeGLU): three matrices."""
    width = width or c.width
    return Block(
        (
            linear(c, f"{module}.gate_proj", width, hidden, term=term, bias=bias),
            linear(c, f"{module}.up_proj", width, hidden, term=term, bias=bias),
            linear(c, f"{module}.down_proj", hidden, width, term=term, bias=bias),
        )
    )


def plain(
    c: Config, module: str, hidden: int, *, width: int | None = None, bias: bool = False, term: str = "feed-forward"
) -> Block:
    """A feed-forward block of two matrices (GELU, ReLU)."""
    width = width or c.width
    return Block(
        (
            linear(c, f"{module}.up_proj", width, hidden, term=term, bias=bias),
            linear(c, f"{module}.down_proj", hidden, width, term=term, bias=bias),
        )
    )


def experts(
    c: Config,
    module: str,
    hidden: int,
    *,
    count: int,
    active: float,
    width: int | None = None,
    matrices: int = 3,
    bias: bool = False,
    router_bias: bool = False,
    groups: tuple[int, int] = (1, 1),
    router_width: int | None = None,
    zero: int = 0,
) -> Block:
    """A router and routed experts of `matrices` matrices (3 with a gate) each; `groups`: (all, chosen) groups of experts.

    `zero` further experts of the router return their input: of the `active` that a token chooses, as many as all are alike
    popular on average need no arithmetic.
    """
    width = width or c.width
    if active > count + zero:
        raise c.error("num_experts_per_tok", f"must be at most the {count + zero} experts, not {active}")
    if count % groups[0]:
        raise c.error("n_group", f"must divide the {count} experts, not {groups[0]}")
    if groups[1] > groups[0]:
        raise c.error("topk_group", f"must be at most the {groups[0]} groups, not {groups[1]}")
    outputs = count + zero
    router = linear(
        c, f"{module}.router", router_width or c.width, outputs, term="experts", bias=router_bias, split="replicated"
    )
    matrix = width * hidden
    biases = bias * ((matrices - 1) * hidden + width)
    shapes = [(width, hidden)] * (matrices - 1) + [(hidden, width)]
    routed = Op(
        name="experts",
        term="experts",
        weights=matrices * matrix + biases,
        flops_per_row=2 * matrices * matrix,
        format=c.weight_format(f"{module}.experts.0.up_proj", shapes, bias=biases),
        rows="routed",
        split="experts",
        inputs=width,
        outputs=width,
        experts=count,
        active=active * count / outputs if zero else active,
        expert_groups=groups[0],
        active_groups=groups[1],
        columns=hidden,
    )
    return Block((router, routed))


def embedding(c: Config, *, tied: bool, rows: int | None = None, width: int | None = None) -> Op:
    """A table of which each token looks up one row. Where it is tied, the head stores it."""
    rows, width = rows or c.vocabulary, width or c.width
    return Op(
        name="embed_tokens",
        term="embedding",
        weights=0 if tied else rows * width,
        flops_per_row=0,
        format=c.base_format,
        rows="lookup",
        outputs=width,
    )


def table(c: Config, name: str, weights: float) -> Op:
    """Another table that is looked up, such as learned positions."""
    return Op(
        name=name, term="embedding", weights=weights, flops_per_row=0, format=c.base_format, rows="lookup", outputs=c.width
    )


def head(c: Config, *, bias: bool = False, vocabulary: int | None = None, module: str = "lm_head") -> Op:
    """The output head; a tied one is the embedding's matrix, stored once and read here."""
    return linear(c, module, c.width, vocabulary or c.vocabulary, term="head", bias=bias, rows="outputs")
