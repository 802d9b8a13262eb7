"""What decoder layers of many families share: their assembly, their windows, their multi-token prediction.

Routed experts beside shared ones, as DeepSeek-V2 has them (arXiv 2405.04434, section 2.2).

DeepSeek's sparse attention (arXiv 2512.02556): latent attention over the tokens that an indexer selects.
"""

from __future__ import annotations

import math
from dataclasses import replace

from steptime.hardware.number_formats import number_format
from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.model import Attention, Layer, Op

PRE = ("input_norm", "post_norm")
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
    """A layer of a token mixer, a feed-forward block and norms over the residual stream, named for what it holds."""
    ops = (*(blocks.norm(c, name, c.width, bias=norm_bias) for name in norms), *attention.ops, *feed_forward.ops)
    windows = {a.window for a in attention.attention if math.isfinite(a.window)}
    local = "".join(f", window {window:.0f}" for window in sorted(windows))
    labels = [f"{mixer}{local}"] if attention.attention else []
    if feed_forward.ops:
        labels.append("experts" if any(op.rows == "routed" for op in feed_forward.ops) else "feed-forward")
    return Layer(name=" + ".join(labels) or "identity", ops=ops, attention=attention.attention)


def window(c: Config, index: int, *, period: int = 0, field: str = "sliding_window") -> float:
    """The sliding window [tokens] of layer `index`, infinite where attention is full.

    `layer_types` says which layers slide; without it, each `period`th layer is full, and 0 means that all slide.
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
    """The sliding window [tokens] of layer `index` where `layer_types` calls it `local`; infinite elsewhere."""
    kinds = c.choices("layer_types", valid_names=layer_types, length=index + 1) if c.has("layer_types") else None
    return c.integer("sliding_window") if kinds is not None and kinds[index] == local else math.inf


def entry(c: Config, field: str, index: int, *, default: int | None = None) -> int:
    """The whole number of `field` for layer `index`; the field is one number for all or a list of them."""
    value = c.raw(field, default=default)
    if not isinstance(value, list):
        return c.integer(field, default=default) if default is not None else c.integer(field)
    return Config({field: c.items(field, length=index + 1)[index]}, name=c.name, within=c.within, lookups=c.lookups).integer(
        field
    )


def layer_inputs(c: Config) -> tuple[Op, ...]:
    """The inputs that Gemma 3n and 4 give each layer: a table by token, a map from the embedding, and a norm."""
    size = c.depth * c.integer("hidden_size_per_layer_input")
    rows = c.integer("vocab_size_per_layer_input", default=c.vocabulary)
    return (
        replace(blocks.table(c, "embed_tokens_per_layer", rows * size), outputs=size),
        blocks.linear(c, "per_layer_model_projection", c.width, size, term="projections"),
        blocks.norm(c, "per_layer_projection_norm", size, weights=c.integer("hidden_size_per_layer_input")),
    )


def multi_token(c: Config, layer: Layer, count: int, *, norms: tuple[str, ...] = DRAFT) -> tuple[tuple[Layer, int], ...]:
    """`count` layers that predict further tokens: norms, a map of two widths to one, `layer` (arXiv 2412.19437)."""
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
    """A router, `count` gated experts of `hidden` values, and a gated block of `shared` values for every token."""
    block = blocks.experts(c, module, hidden, count=count, active=active, groups=groups)
    if not shared:
        return block
    return block + blocks.gated(c, f"{module}.{shared_module}", shared, bias=shared_bias, term="shared experts")


def is_sparse(c: Config, index: int, *, dense: int = 0) -> bool:
    """Whether layer `index` has experts: by `mlp_layer_types`, else by the leading dense layers and the period."""
    if c.has("mlp_layer_types"):
        return c.choices("mlp_layer_types", valid_names=("dense", "sparse"), length=index + 1)[index] == "sparse"
    first = c.integer("first_k_dense_replace", default=dense, least=0, maximum=c.depth)
    return index >= first and index % c.integer("moe_layer_freq", default=1) == 0


def selecting(block: blocks.Block, tokens: float) -> blocks.Block:
    """Return latent attention that reads the best `tokens`; prefill runs in the latent space too, as each query has its own."""
    main = block.attention[0]
    main = replace(main, selected=tokens, flops_per_pair_prefill=main.flops_per_pair_decode, expand_flops=0.0)
    return blocks.Block(block.ops, (main,))


def indexer(c: Config, module: str) -> blocks.Block:
    r"""The indexer of $H$ heads of $d$ values: a score of a cached token costs $2H(d + 1)$ FLOPs.

    Its one key a token is cached in FP8 with a 4-byte scale for each 128 values, whatever the format of the latent.
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
