"""The parts of a layer, and the assembly of decoder layers that many families share.

A part is matrices, norms, feed-forward, experts or attention: operators with exact parameter counts. Dimensions come from
the model's config. The placement on chips and the number formats of the arithmetic are decided elsewhere.

Further parts are sliding windows, multi-token prediction, routed together with shared experts (DeepSeek-V2, arXiv
2405.04434, section 2.2), and DeepSeek's sparse attention (arXiv 2512.02556): latent attention over the tokens that an
indexer selects.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from steptime.hardware.number_formats import Format, number_format
from steptime.models.config import LATENT_FP8_MIXED, Config
from steptime.models.model import Attention, Kinds, Layer, Op, Rows, Split

# Norms of a layer that normalizes the input of each block.
PRE = ("input_norm", "post_norm")
# Norms of a multi-token-prediction layer.
DRAFT = ("enorm", "hnorm", "shared_head_norm")


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a layer: operators with weights, and token mixers that read a cache."""

    ops: tuple[Op, ...]
    attention: tuple[Attention, ...] = ()

    def __add__(self, addend: Block | Op) -> Block:
        if isinstance(addend, Op):
            return Block((*self.ops, addend), self.attention)
        return Block(self.ops + addend.ops, self.attention + addend.attention)


def linear(
    c: Config,
    module: str,
    inputs: float,
    outputs: float,
    *,
    term: str = "projections",
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
    sizes = {"q_norm": heads * head_dim, "k_norm": kv_heads * head_dim}
    return Block(tuple(norm(c, name, size, bias=bias, weights=head_dim if shared else size) for name, size in sizes.items()))


def grouped_query(
    c: Config,
    module: str,
    *,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    value_dim: int | None = None,
    width: int | None = None,
    bias: bool = False,
    output_bias: bool | None = None,
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
        heads: Query heads; None: those of the model.
        kv_heads: Key and value heads; None: those of the model.
        head_dim: Values per query and key head; None: those of the model.
        value_dim: Values per value head; None: `head_dim`.
        width: Input and output width; None: that of the model.
        bias: Whether queries, keys and values have biases.
        output_bias: Whether the output projection has a bias; None: as `bias`.
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
    heads, kv_heads, head_dim = heads or c.heads, kv_heads or c.kv_heads, head_dim or c.head_dim
    width, value_dim = width or c.width, value_dim or head_dim
    output_bias = bias if output_bias is None else output_bias

    # A layer that reads the cache of another layer has no keys and values.
    q, k, v = heads * head_dim, kv_heads * head_dim, kv_heads * value_dim
    ops = [linear(c, f"{module}.q_proj", width, q + gate, bias=bias, split_limit=heads)]
    if stored:
        ops.append(linear(c, f"{module}.k_proj", width, k, bias=bias, split_limit=kv_heads))
        if not shared_key_value:
            ops.append(linear(c, f"{module}.v_proj", width, v, bias=bias, split_limit=kv_heads))

    ops.append(linear(c, f"{module}.o_proj", heads * value_dim, width, bias=output_bias))

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


def latent(c: Config, module: str) -> Block:
    r"""Return multi-head latent attention.

    The cache has a latent of $r$ values and a rotary key of $d_r$ values for all heads together. Decode is absorbed:
    queries are mapped into the latent space, so a pair costs $2h(2r + d_r)$ FLOPs. Prefill expands keys and values, so a
    pair costs $2h(d_n + d_r + d_v)$, and the expansion costs $2rh(d_n + d_v)$ per cached token. The absorbed maps of a
    token cost the FLOPs of `kv_b_proj`.

    With the KV format "fp8_ds_mla", the latent is in FP8 with a 4-byte scale per 128 values, and the rotary key is in BF16:
    656 B for 512 + 64 values.

    Args:
        c: Config of the model.
        module: Path of the module.

    Returns:
        The operators and the token mixer.

    References:
        DeepSeek-V2, arXiv 2405.04434, section 2.1.
    """
    heads, width = c.heads, c.width
    rank, rotary = c.integer("kv_lora_rank"), c.integer("qk_rope_head_dim")
    plain, value = c.integer("qk_nope_head_dim"), c.integer("v_head_dim")
    bias = c.flag("attention_bias", default=False)

    # The down-projections are narrow, so every chip has them; the heads are split after them.
    if c.has("q_lora_rank"):
        q_rank = c.integer("q_lora_rank")
        ops = [
            linear(c, f"{module}.q_a_proj", width, q_rank, bias=bias, split="replicated"),
            norm(c, "q_a_norm", q_rank),
            linear(c, f"{module}.q_b_proj", q_rank, heads * (plain + rotary), split_limit=heads),
        ]
    else:
        # Small DeepSeek models have no latent of the queries.
        ops = [linear(c, f"{module}.q_proj", width, heads * (plain + rotary), split_limit=heads)]

    ops += [
        linear(c, f"{module}.kv_a_proj_with_mqa", width, rank + rotary, bias=bias, split="replicated"),
        norm(c, "kv_a_norm", rank),
        linear(c, f"{module}.kv_b_proj", rank, heads * (plain + value), split_limit=heads),
        linear(c, f"{module}.o_proj", heads * value, width, bias=bias),
    ]
    mixed = c.kv_name == LATENT_FP8_MIXED
    attention = Attention(
        name="attention",
        kv_bytes=rank + 4 * math.ceil(rank / 128) + 2 * rotary if mixed else (rank + rotary) * c.kv_format.bytes,
        flops_per_pair_decode=2 * heads * (2 * rank + rotary),
        flops_per_pair_prefill=2 * heads * (plain + rotary + value),
        expand_flops=2 * rank * heads * (plain + value),
        heads=heads,
        query_values=heads * (rank + rotary),
        output_values=heads * rank,
        arithmetic=(number_format("fp8") if mixed else c.kv_format).arithmetic,
    )

    return Block(tuple(ops), (attention,))


def gated(
    c: Config,
    module: str,
    hidden: int | None = None,
    *,
    width: int | None = None,
    bias: bool = False,
    term: str = "feed-forward",
) -> Block:
    """Return a gated feed-forward block of three matrices (SwiGLU, GeGLU).

    Args:
        c: Config of the model.
        module: Path of the module.
        hidden: Hidden width; None: `intermediate_size` of the config.
        width: Input and output width; None: that of the model.
        bias: Whether the matrices have biases.
        term: Term of the step time.

    Returns:
        The operators.
    """
    hidden = c.integer("intermediate_size") if hidden is None else hidden
    gate = linear(c, f"{module}.gate_proj", width or c.width, hidden, term=term, bias=bias)
    return Block((gate, *plain(c, module, hidden, width=width, bias=bias, term=term).ops))


def plain(
    c: Config,
    module: str,
    hidden: int | None = None,
    *,
    width: int | None = None,
    bias: bool = False,
    term: str = "feed-forward",
) -> Block:
    """Return a feed-forward block of two matrices (GELU, ReLU).

    Args:
        c: Config of the model.
        module: Path of the module.
        hidden: Hidden width; None: `intermediate_size` of the config.
        width: Input and output width; None: that of the model.
        bias: Whether the matrices have biases.
        term: Term of the step time.

    Returns:
        The operators.
    """
    width, hidden = width or c.width, c.integer("intermediate_size") if hidden is None else hidden
    up = linear(c, f"{module}.up_proj", width, hidden, term=term, bias=bias)
    return Block((up, linear(c, f"{module}.down_proj", hidden, width, term=term, bias=bias)))


def experts(
    c: Config,
    module: str,
    hidden: int,
    *,
    count: int,
    active: float | None = None,
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
        active: Experts per token; None: `num_experts_per_tok` of the config.
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
    width, active = width or c.width, c.integer("num_experts_per_tok") if active is None else active
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


def decoder(
    c: Config,
    attention: Block,
    feed_forward: Block = Block(()),
    *,
    norms: tuple[str, ...] = PRE,
    norm_bias: bool = False,
    mixer: str = "attention",
) -> Layer:
    """Return a layer of a token mixer, a feed-forward block and norms.

    Args:
        c: Config of the language model.
        attention: The token mixer.
        feed_forward: The feed-forward block or experts.
        norms: Names of the norms over the residual stream.
        norm_bias: Whether these norms have a bias.
        mixer: Name of the token mixer in the name of the layer.

    Returns:
        The layer, named by its parts.
    """
    ops = (*(norm(c, name, c.width, bias=norm_bias) for name in norms), *attention.ops, *feed_forward.ops)

    # The name shows windows and experts, so kinds of layers differ in name.
    windows = {a.window for a in attention.attention if math.isfinite(a.window)}
    local = "".join(f", window {window:.0f}" for window in sorted(windows))
    labels = [f"{mixer}{local}"] if attention.attention else []
    if feed_forward.ops:
        labels.append("experts" if any(op.rows == "routed" for op in feed_forward.ops) else "feed-forward")
    return Layer(name=" + ".join(labels) or "identity", ops=ops, attention=attention.attention)


def window(c: Config, index: int, *, period: int = 0, field: str = "sliding_window") -> float:
    """Return the sliding window of a layer.

    `layer_types` gives the sliding layers. Without it, each `period`th layer has full attention; with period 0, all layers
    slide.

    Args:
        c: Config of the language model.
        index: Layer number, from 0.
        period: Layers from one full layer to the next; 0: no full layer.
        field: Name of the field with the size of the window.

    Returns:
        Tokens; infinite for full attention.
    """
    if not c.has(field):
        return math.inf
    kind = c.layer_kind(index, ("full_attention", "sliding_attention", "chunked_attention"))
    local = kind != "full_attention" if kind else period == 0 or (index + 1) % period != 0
    return c.integer(field) if local else math.inf


def entry(c: Config, field: str, index: int, *, default: int | None = None) -> int:
    """Return the whole number of a field for one layer.

    Args:
        c: Config of the language model.
        field: Name of a field with one number for all layers, or a list with one per layer.
        index: Layer number, from 0.
        default: Value if the field is absent; None: absence is an error.

    Returns:
        The number.
    """
    value = c.raw(field, default=default)
    if not isinstance(value, list):
        return c.integer(field, default=default) if default is not None else c.integer(field)

    # A small config names the field in its errors.
    return Config({field: c.items(field, length=index + 1)[index]}, name=c.name, within=c.within, lookups=c.lookups).integer(
        field
    )


def layer_inputs(c: Config) -> tuple[Op, ...]:
    """Return the operators of per-layer inputs in Gemma 3n and 4.

    Args:
        c: Config of the language model.

    Returns:
        A table by token, a map from the embedding, and a norm.
    """
    size = c.depth * c.integer("hidden_size_per_layer_input")
    rows = c.integer("vocab_size_per_layer_input", default=c.vocabulary)
    return (
        replace(table(c, "embed_tokens_per_layer", rows * size), outputs=size),
        linear(c, "per_layer_model_projection", c.width, size),
        norm(c, "per_layer_projection_norm", size, weights=c.integer("hidden_size_per_layer_input")),
    )


def layer_input(c: Config, module: str) -> Block:
    """Return the gate and the projection of a layer's input in Gemma 3n and 4.

    Args:
        c: Config of the language model.
        module: Path of the layer.

    Returns:
        Two matrices.
    """
    inputs = c.integer("hidden_size_per_layer_input")
    gate = linear(c, f"{module}.per_layer_input_gate", c.width, inputs, term="feed-forward")
    return Block((gate, linear(c, f"{module}.per_layer_projection", inputs, c.width, term="feed-forward")))


def multi_token(c: Config, layer: Layer, count: int, *, norms: tuple[str, ...] = DRAFT) -> Kinds:
    """Return the layers of multi-token prediction (arXiv 2412.19437).

    Each has norms, a map of two widths to one, and a full layer.

    Args:
        c: Config of the language model.
        layer: The full layer.
        count: Number of such layers.
        norms: Names of the norms.

    Returns:
        The layer with its count; empty for 0.
    """
    if not count:
        return ()
    joined = linear(c, f"layers.{c.depth}.eh_proj", 2 * c.width, c.width)
    ops = (joined, *(norm(c, name, c.width) for name in norms), *layer.ops)
    return ((replace(layer, name=f"multi-token prediction: {layer.name}", ops=ops), count),)


def shared_and_routed(
    c: Config,
    module: str,
    hidden: int | None = None,
    *,
    count: int | None = None,
    active: int | None = None,
    shared: int | None = None,
    groups: tuple[int, int] = (1, 1),
    shared_module: str = "shared_experts",
    shared_bias: bool = False,
) -> Block:
    """Return a router, routed experts, and shared experts for every token.

    The defaults are the fields of DeepSeek's configs.

    Args:
        c: Config of the language model.
        module: Path of the module.
        hidden: Hidden width of a routed expert; None: `moe_intermediate_size`.
        count: Number of routed experts; None: `n_routed_experts`.
        active: Routed experts per token; None: `num_experts_per_tok`.
        shared: Hidden width of all shared experts together, 0: none; None: `n_shared_experts` times `hidden`.
        groups: All groups of experts, and the groups that a token may use.
        shared_module: Name of the module of the shared experts.
        shared_bias: Whether the shared experts have biases.

    Returns:
        The operators.
    """
    hidden = c.integer("moe_intermediate_size") if hidden is None else hidden
    count = c.integer("n_routed_experts") if count is None else count
    shared = c.integer("n_shared_experts", default=0, least=0) * hidden if shared is None else shared
    block = experts(c, module, hidden, count=count, active=active, groups=groups)
    if not shared:
        return block
    return block + gated(c, f"{module}.{shared_module}", shared, bias=shared_bias, term="shared experts")


def with_expert_format(block: Block, stored: Format) -> Block:
    """Return experts whose routed weights are stored in another format.

    Args:
        block: Router and experts.
        stored: Format of the routed experts.

    Returns:
        The changed block.
    """
    return Block(tuple(replace(op, format=stored) if op.rows == "routed" else op for op in block.ops), block.attention)


def expert_groups(c: Config) -> tuple[int, int]:
    """Return the groups of experts of DeepSeek's routers, `n_group` and `topk_group`.

    Args:
        c: Config of the language model.

    Returns:
        All groups, and the groups that a token may use.
    """
    return c.integer("n_group", default=1), c.integer("topk_group", default=1)


def is_sparse(c: Config, index: int, *, dense: int = 0) -> bool:
    """Return whether a layer has experts.

    `mlp_layer_types` decides. Without it, the number of leading dense layers and the period of layers with experts decide.

    Args:
        c: Config of the language model.
        index: Layer number, from 0.
        dense: Default number of leading dense layers.

    Returns:
        True for a layer with experts.
    """
    if kind := c.layer_kind(index, ("dense", "sparse"), "mlp_layer_types"):
        return kind == "sparse"
    first = c.integer("first_k_dense_replace", default=dense, least=0, maximum=c.depth)
    return index >= first and index % c.integer("moe_layer_freq", default=1) == 0


def selecting(block: Block, tokens: float) -> Block:
    """Return latent attention that reads only the selected tokens.

    Prefill also runs in the latent space, because each query has its own selection.

    Args:
        block: Latent attention.
        tokens: Tokens that a query reads.

    Returns:
        The changed block.
    """
    main = block.attention[0]
    main = replace(main, selected=tokens, flops_per_pair_prefill=main.flops_per_pair_decode, expand_flops=0.0)
    return Block(block.ops, (main,))


def indexer(c: Config, module: str) -> Block:
    r"""Return the indexer of sparse attention.

    With $H$ heads of $d$ values, the score of a cached token costs $2H(d + 1)$ FLOPs. The indexer caches one key per
    token in FP8 with a 4-byte scale per 128 values, for any format of the latent.

    Args:
        c: Config of the language model.
        module: Path of the module.

    Returns:
        The operators and the cache of the indexer.
    """
    heads, dim = c.integer("index_n_heads"), c.integer("index_head_dim")
    ops = (
        linear(c, f"{module}.wq_b", c.integer("q_lora_rank"), heads * dim, split="replicated"),
        linear(c, f"{module}.wk", c.width, dim, split="replicated"),
        norm(c, "index_key_norm", dim, bias=True),
        replace(linear(c, f"{module}.weights_proj", c.width, heads, split="replicated"), format=c.base_format),
    )

    # One key of all heads per token; the scale takes 4 bytes per 128 values.
    index = Attention(
        name="indexer",
        query_values=heads * dim,
        kv_bytes=dim + 4 * math.ceil(dim / 128),
        flops_per_pair_decode=2 * heads * (dim + 1),
        flops_per_pair_prefill=2 * heads * (dim + 1),
        arithmetic=number_format("fp8").arithmetic,
        kv_format="fp8",
    )

    return Block(ops, (index,))
