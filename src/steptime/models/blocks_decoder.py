"""Parts that decoder layers of many families share.

They are the assembly of a layer, sliding windows, multi-token prediction, and routed experts together with shared experts
as in DeepSeek-V2 (arXiv 2405.04434, section 2.2). DeepSeek's sparse attention (arXiv 2512.02556) is latent attention over
the tokens that an indexer selects.
"""

from __future__ import annotations

import math
from dataclasses import replace

from steptime.hardware.number_formats import number_format
from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.model import Attention, Layer, Op

# Norms of a layer that normalizes the input of each block.
PRE = ("input_norm", "post_norm")
# Norms of a multi-token-prediction layer.
DRAFT = ("enorm", "hnorm", "shared_head_norm")


def decoder(
    c: Config,
    attention: blocks.Block,
    feed_forward: blocks.Block,
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
    ops = (*(blocks.norm(c, name, c.width, bias=norm_bias) for name in norms), *attention.ops, *feed_forward.ops)

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
    if c.has("layer_types"):
        layer_types = ("full_attention", "sliding_attention", "chunked_attention")
        local = c.choices("layer_types", valid_names=layer_types, length=index + 1)[index] != "full_attention"
    else:
        local = period == 0 or (index + 1) % period != 0
    return c.integer(field) if local else math.inf


def window_tokens(c: Config, index: int, *, local: str, layer_types: tuple[str, ...]) -> float:
    """Return the sliding window of a layer whose `layer_types` is `local`.

    Args:
        c: Config of the language model.
        index: Layer number, from 0.
        local: Name of sliding layers.
        layer_types: All allowed names.

    Returns:
        Tokens; infinite for other layers and without `layer_types`.
    """
    kinds = c.choices("layer_types", valid_names=layer_types, length=index + 1) if c.has("layer_types") else None
    return c.integer("sliding_window") if kinds is not None and kinds[index] == local else math.inf


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
        replace(blocks.table(c, "embed_tokens_per_layer", rows * size), outputs=size),
        blocks.linear(c, "per_layer_model_projection", c.width, size, term="projections"),
        blocks.norm(c, "per_layer_projection_norm", size, weights=c.integer("hidden_size_per_layer_input")),
    )


def multi_token(c: Config, layer: Layer, count: int, *, norms: tuple[str, ...] = DRAFT) -> tuple[tuple[Layer, int], ...]:
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
    joined = blocks.linear(c, f"layers.{c.depth}.eh_proj", 2 * c.width, c.width, term="projections")
    ops = (joined, *(blocks.norm(c, name, c.width) for name in norms), *layer.ops)
    return ((replace(layer, name=f"multi-token prediction: {layer.name}", ops=ops), count),)


def shared_and_routed(
    c: Config,
    module: str,
    hidden: int,
    *,
    count: int,
    active: int,
    shared: int,
    groups: tuple[int, int] = (1, 1),
    shared_module: str = "shared_experts",
    shared_bias: bool = False,
) -> blocks.Block:
    """Return a router, routed experts, and shared experts for every token.

    Args:
        c: Config of the language model.
        module: Path of the module.
        hidden: Hidden width of a routed expert.
        count: Number of routed experts.
        active: Routed experts per token.
        shared: Hidden width of all shared experts together; 0: none.
        groups: All groups of experts, and the groups that a token may use.
        shared_module: Name of the module of the shared experts.
        shared_bias: Whether the shared experts have biases.

    Returns:
        The operators.
    """
    block = blocks.experts(c, module, hidden, count=count, active=active, groups=groups)
    if not shared:
        return block
    return block + blocks.gated(c, f"{module}.{shared_module}", shared, bias=shared_bias, term="shared experts")


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
    if c.has("mlp_layer_types"):
        return c.choices("mlp_layer_types", valid_names=("dense", "sparse"), length=index + 1)[index] == "sparse"
    first = c.integer("first_k_dense_replace", default=dense, least=0, maximum=c.depth)
    return index >= first and index % c.integer("moe_layer_freq", default=1) == 0


def selecting(block: blocks.Block, tokens: float) -> blocks.Block:
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
    return blocks.Block(block.ops, (main,))


def indexer(c: Config, module: str) -> blocks.Block:
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
    term = "projections"
    ops = (
        blocks.linear(c, f"{module}.wq_b", c.integer("q_lora_rank"), heads * dim, term=term, split="replicated"),
        blocks.linear(c, f"{module}.wk", c.width, dim, term=term, split="replicated"),
        blocks.norm(c, "index_key_norm", dim, bias=True),
        replace(
            blocks.linear(c, f"{module}.weights_proj", c.width, heads, term=term, split="replicated"),
            format=c.base_format,
        ),
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

    return blocks.Block(ops, (index,))
