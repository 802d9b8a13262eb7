"""The parts of a layer: matrices, norms, feed-forward, experts, attention.

Each part returns operators with exact parameter counts. Dimensions come from the model's config. The placement on chips
and the number formats of the arithmetic are decided elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from steptime.hardware.number_formats import number_format
from steptime.models.config import LATENT_FP8_MIXED, Config
from steptime.models.model import Attention, Op, Rows, Split


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a layer: operators with weights, and token mixers that read a cache."""

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
    """Return a matrix multiply with or without a bias.

    Args:
        c: Config of the model.
        module: Path of the module; its last part is the name of the operator.
        inputs: Input values per row.
        outputs: Output values per row.
        term: Term of the step time.
        bias: Whether it has a bias.
        rows: Rows of the input.
        split: How chips share the weights.
        split_limit: Most chips that can share them.

    Returns:
        The operator.
    """
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
    """Return a normalization with a gain and perhaps a bias.

    Args:
        c: Config of the model.
        name: Name of the operator.
        size: Values per row.
        bias: Whether it has a bias.
        weights: Parameters of the gain; None: `size`. Fewer if heads share the gain.

    Returns:
        The operator.
    """
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
    """Return parameters whose time is negligible, such as biases, gates or sinks.

    Args:
        c: Config of the model.
        name: Name of the operator.
        weights: Number of parameters.
        term: Term of the step time.
        split: How chips share the weights.

    Returns:
        The operator, without FLOPs.
    """
    return Op(name=name, term=term, weights=weights, flops_per_row=0, format=c.base_format, split=split)


def head_norms(c: Config, heads: int, kv_heads: int, head_dim: int, *, shared: bool = True, bias: bool = True) -> Block:
    """Return layer norms of queries and keys per head.

    Args:
        c: Config of the model.
        heads: Query heads.
        kv_heads: Key and value heads.
        head_dim: Values per head.
        shared: Whether all heads share one gain.
        bias: Whether the norms have biases.

    Returns:
        Two norms.
    """
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
    """Return multi-head, grouped-query or multi-query attention.

    Args:
        c: Config of the model.
        module: Path of the module.
        heads: Query heads.
        kv_heads: Key and value heads.
        head_dim: Values per query and key head.
        value_dim: Values per value head; None: `head_dim`.
        width: Input and output width; None: that of the model.
        bias: Whether queries, keys and values have biases.
        output_bias: Whether the output projection has a bias.
        qk_norm: Gains of each of the two norms on queries and keys, of one head or of all heads together; 0: no norms.
        window: Sliding window [tokens]; infinite for full attention.
        stored: False if the layer reads the cache of an earlier layer.
        shared_key_value: Whether one matrix makes keys and values; both are still cached.
        gate: Outputs of a gate in the query projection.
        gathers: Whether chips that divide the heads gather queries and keys for norms over all heads; otherwise they
            all-reduce the sums of squares.

    Returns:
        The operators and the token mixer.
    """
    width, value_dim = width or c.width, value_dim or head_dim

    # A layer that reads the cache of another layer has no keys and values.
    q, k, v = heads * head_dim, kv_heads * head_dim, kv_heads * value_dim
    term = "projections"
    ops = [linear(c, f"{module}.q_proj", width, q + gate, term=term, bias=bias, split_limit=heads)]
    if stored:
        ops.append(linear(c, f"{module}.k_proj", width, k, term=term, bias=bias, split_limit=kv_heads))
        if not shared_key_value:
            ops.append(linear(c, f"{module}.v_proj", width, v, term=term, bias=bias, split_limit=kv_heads))

    ops.append(linear(c, f"{module}.o_proj", heads * value_dim, width, term=term, bias=output_bias))

    # Engines that split the heads need a collective only for norms over all heads.
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
    r"""Return multi-head latent attention.

    The cache has a latent of $r$ values and a rotary key of $d_r$ values for all heads together. Decode is absorbed:
    queries are
    mapped into the latent space, so a pair costs $2h(2r + d_r)$ FLOPs. Prefill expands keys and values, so a pair costs
    $2h(d_n + d_r + d_v)$, and the expansion costs $2rh(d_n + d_v)$ per cached token. The absorbed maps of a token cost
    the FLOPs
    of `kv_b_proj`.

    With the KV format "fp8_ds_mla", the latent is in FP8 with a 4-byte scale per 128 values, and the rotary key is in BF16.

    Args:
        c: Config of the model.
        module: Path of the module.
        heads: Query heads; None: those of the model.
        selected: Tokens that a query reads; infinite: all.

    Returns:
        The operators and the token mixer.

    References:
        DeepSeek-V2, arXiv 2405.04434, section 2.1.
    """
    heads = heads or c.heads
    rank, rotary = c.integer("kv_lora_rank"), c.integer("qk_rope_head_dim")
    plain, value = c.integer("qk_nope_head_dim"), c.integer("v_head_dim")
    bias = c.flag("attention_bias", default=False)
    term, width = "projections", c.width

    # The down-projections are narrow, so every chip has them; the heads are split after them.
    if c.has("q_lora_rank"):
        q_rank = c.integer("q_lora_rank")
        ops = [
            linear(c, f"{module}.q_a_proj", width, q_rank, term=term, bias=bias, split="replicated"),
            norm(c, "q_a_norm", q_rank),
            linear(c, f"{module}.q_b_proj", q_rank, heads * (plain + rotary), term=term, split_limit=heads),
        ]
    else:
        # Small DeepSeek models have no latent of the queries.
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
    """Return the latent cache of one token in one layer.

    The format "fp8_ds_mla" takes 656 B for 512 + 64 values.

    Args:
        c: Config of the model.
        rank: Values of the latent.
        rotary: Values of the rotary key.

    Returns:
        Bytes.
    """
    if c.kv_name == LATENT_FP8_MIXED:
        return rank + 4 * math.ceil(rank / 128) + 2 * rotary
    return (rank + rotary) * c.kv_format.bytes


def gated(
    c: Config, module: str, hidden: int, *, width: int | None = None, bias: bool = False, term: str = "feed-forward"
) -> Block:
    """Return a gated feed-forward block of three matrices (SwiGLU, GeGLU).

    Args:
        c: Config of the model.
        module: Path of the module.
        hidden: Hidden width.
        width: Input and output width; None: that of the model.
        bias: Whether the matrices have biases.
        term: Term of the step time.

    Returns:
        The operators.
    """
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
    """Return a feed-forward block of two matrices (GELU, ReLU).

    Args:
        c: Config of the model.
        module: Path of the module.
        hidden: Hidden width.
        width: Input and output width; None: that of the model.
        bias: Whether the matrices have biases.
        term: Term of the step time.

    Returns:
        The operators.
    """
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
    """Return a router and routed experts.

    Args:
        c: Config of the model.
        module: Path of the module.
        hidden: Hidden width of an expert.
        count: Number of experts.
        active: Experts per token.
        width: Input and output width of an expert; None: that of the model.
        matrices: Matrices per expert; 3 with a gate.
        bias: Whether the experts have biases.
        router_bias: Whether the router has a bias.
        groups: All groups of experts, and the groups that a token may use.
        router_width: Input width of the router; None: that of the model.
        zero: Further choices of the router that return their input. They take their equal share of the `active` choices of
            a token, and need no arithmetic.

    Returns:
        The router and the routed experts.

    Raises:
        ConfigError: Counts or groups do not fit together.
    """
    width = width or c.width
    if active > count + zero:
        raise c.error("num_experts_per_tok", f"must be at most the {count + zero} experts, got {active}")
    if count % groups[0]:
        raise c.error("n_group", f"must divide the {count} experts, got {groups[0]}")
    if groups[1] > groups[0]:
        raise c.error("topk_group", f"must be at most the {groups[0]} groups, got {groups[1]}")
    outputs = count + zero

    # Each chip decides for its own tokens, so every chip has the whole router.
    router = linear(
        c, f"{module}.router", router_width or c.width, outputs, term="experts", bias=router_bias, split="replicated"
    )
    matrix = width * hidden
    biases = bias * ((matrices - 1) * hidden + width)

    # The bytes of scales depend on the shapes of the matrices.
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
    """Return the embedding, a table in which each token looks up one row.

    Args:
        c: Config of the model.
        tied: Whether the head stores the matrix.
        rows: Rows of the table; None: the vocabulary.
        width: Values per row; None: the width of the model.

    Returns:
        The operator.
    """
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
    """Return another lookup table, such as learned positions.

    Args:
        c: Config of the model.
        name: Name of the operator.
        weights: Number of parameters.

    Returns:
        The operator.
    """
    return Op(
        name=name, term="embedding", weights=weights, flops_per_row=0, format=c.base_format, rows="lookup", outputs=c.width
    )


def head(c: Config, *, bias: bool = False, vocabulary: int | None = None, module: str = "lm_head") -> Op:
    """Return the output head.

    The head stores the matrix of a tied embedding, and reads it in each step.

    Args:
        c: Config of the model.
        bias: Whether it has a bias.
        vocabulary: Outputs; None: the vocabulary of the model.
        module: Path of the module.

    Returns:
        The operator.
    """
    return linear(c, module, c.width, vocabulary or c.vocabulary, term="head", bias=bias, rows="outputs")
