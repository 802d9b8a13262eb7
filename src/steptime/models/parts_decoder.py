"""What decoder layers of many families share: their assembly, their windows, their multi-token prediction."""

from __future__ import annotations

import math
from dataclasses import replace

from steptime.models import parts
from steptime.models.config import Config
from steptime.models.model import Layer, Op

PRE = ("input_norm", "post_norm")
DRAFT = ("enorm", "hnorm", "shared_head_norm")


def decoder(
    c: Config,
    attention: parts.Block,
    feed_forward: parts.Block,
    *,
    norms: tuple[str, ...] = PRE,
    norm_bias: bool = False,
    mixer: str = "attention",
) -> Layer:
    """A layer of a token mixer, a feed-forward block and norms over the residual stream, named for what it holds."""
    ops = (*(parts.norm(c, name, c.width, bias=norm_bias) for name in norms), *attention.ops, *feed_forward.ops)
    windows = {a.window for a in attention.attention if math.isfinite(a.window)}
    local = "".join(f", window {window:.0f}" for window in sorted(windows))
    named = [f"{mixer}{local}"] if attention.attention else []
    if feed_forward.ops:
        named.append("experts" if any(op.rows == "routed" for op in feed_forward.ops) else "feed-forward")
    return Layer(name=" + ".join(named) or "identity", ops=ops, attention=attention.attention)


def window(c: Config, index: int, *, period: int = 0, field: str = "sliding_window") -> float:
    """The sliding window [tokens] of layer `index`, infinite where attention is full.

    `layer_types` says which layers slide; without it, each `period`th layer is full, and 0 means that all slide.
    """
    if not c.has(field):
        return math.inf
    if c.has("layer_types"):
        known = ("full_attention", "sliding_attention", "chunked_attention")
        local = c.choices("layer_types", known=known, length=index + 1)[index] != "full_attention"
    else:
        local = period == 0 or (index + 1) % period != 0
    return c.integer(field) if local else math.inf


def window_of(c: Config, index: int, *, local: str, known: tuple[str, ...]) -> float:
    """The sliding window [tokens] of layer `index` where `layer_types` calls it `local`; infinite elsewhere."""
    kinds = c.choices("layer_types", known=known, length=index + 1) if c.has("layer_types") else None
    return c.integer("sliding_window") if kinds is not None and kinds[index] == local else math.inf


def entry(c: Config, field: str, index: int, *, default: int | None = None) -> int:
    """The whole number of `field` for layer `index`; the field is one number for all or a list of them."""
    value = c.raw(field, default=default)
    if not isinstance(value, list):
        return c.integer(field, default=default) if default is not None else c.integer(field)
    return Config({field: c.items(field, length=index + 1)[index]}, name=c.name, within=c.within, asked=c.asked).integer(field)


def layer_inputs(c: Config) -> tuple[Op, ...]:
    """The inputs that Gemma 3n and 4 give each layer: a table by token, a map from the embedding, and a norm."""
    size = c.depth * c.integer("hidden_size_per_layer_input")
    rows = c.integer("vocab_size_per_layer_input", default=c.vocabulary)
    return (
        replace(parts.table(c, "embed_tokens_per_layer", rows * size), outputs=size),
        parts.linear(c, "per_layer_model_projection", c.width, size, term="projections"),
        parts.norm(c, "per_layer_projection_norm", size, weights=c.integer("hidden_size_per_layer_input")),
    )


def multi_token(c: Config, layer: Layer, count: int, *, norms: tuple[str, ...] = DRAFT) -> tuple[tuple[Layer, int], ...]:
    """`count` layers that predict further tokens: norms, a map of two widths to one, `layer` (arXiv 2412.19437)."""
    if not count:
        return ()
    joined = parts.linear(c, f"layers.{c.depth}.eh_proj", 2 * c.width, c.width, term="projections")
    ops = (joined, *(parts.norm(c, name, c.width) for name in norms), *layer.ops)
    return ((replace(layer, name=f"multi-token prediction: {layer.name}", ops=ops), count),)
