"""Towers: what turns images or sound into rows of the language model; stored beside it, and run before a prompt that has them.

A `Tower` is a `Model` of its own, whose rows are patches of an image or frames of sound, and the `Rule` by which an image or
a recording becomes such rows and tokens of the prompt. Its attention is not causal: each row reads all rows of its image, or
those of its window. What runs on merged rows, such as a projector, has `share` of an operator's arithmetic a row: a quarter
where four patches become a token.

MoonViT, the tower of Kimi's models: what its variants share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from steptime.models.config import Config
from steptime.models.image_tokens import Rule, native, rule
from steptime.models.model import Attention, Layer, Model, Op, total_parameters

Kind = Literal["image", "audio"]
NAMES: dict[str, str] = {"image": "vision tower", "audio": "audio tower"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """What reads images or sound, and how these are cut for it."""

    kind: Kind
    model: Model
    rule: Rule

    @property
    def name(self) -> str:
        """What a term of a step calls it."""
        return NAMES[self.kind]


def tower(
    c: Config,
    kind: Kind,
    rule: Rule,
    *,
    width: int,
    heads: int = 1,
    layers: tuple[tuple[Layer, int], ...] = (),
    stem: tuple[Op, ...] = (),
) -> Tower:
    """A tower of `width` with what stands before and after its layers; one without layers has its stem as a layer."""
    if not layers:
        layers, stem = ((Layer(name="embedding of patches", ops=stem), 1),), ()
    name = f"the {NAMES[kind]}" + (f" of {c.name}" if c.name else "")
    model = Model(
        name=name, family=c.text("model_type", default=""), layers=layers, stem=stem, width=width, vocabulary=1, heads=heads
    )
    return Tower(kind=kind, model=model, rule=rule)


def counted(tower: Tower) -> Op:
    """All parameters of a tower and of its projector, as the language model stores them: a token of text uses none."""
    ops = (*tower.model.stem, *(op for layer, _ in tower.model.layers for op in layer.ops))
    return Op(
        name=tower.name,
        term="vision",
        weights=total_parameters(tower.model),
        flops_per_row=0,
        format=ops[0].format,
        rows="none",
        split="replicated",
        active=0,
    )


def stored(c: Config, name: str, weights: float) -> Op:
    """Parameters that no pass uses, or that take no time."""
    return Op(
        name=name, term="vision", weights=weights, flops_per_row=0, format=c.base_format, rows="none", split="replicated",
        active=0,
    )  # fmt: skip


def matrix(
    c: Config,
    name: str,
    inputs: float,
    outputs: float,
    *,
    bias: bool = True,
    share: float = 1.0,
    term: str = "projections",
    limit: float = math.inf,
) -> Op:
    """A matrix with its bias that runs on `share` of the rows, in the format of what a checkpoint does not quantise."""
    return Op(
        name=name,
        term=term,
        weights=dense(inputs, outputs, bias=bias),
        flops_per_row=2 * inputs * outputs * share,
        format=c.base_format,
        split_limit=limit,
        inputs=inputs * share,
        outputs=outputs * share,
    )


def norm(c: Config, name: str, size: float, *, bias: bool = True, share: float = 1.0) -> Op:
    """A normalisation of `size` values on `share` of the rows."""
    return Op(
        name=name, term="norms", weights=size * (1 + bias), flops_per_row=0, format=c.base_format, split="replicated",
        inputs=size * share, outputs=size * share,
    )  # fmt: skip


def positions(c: Config, weights: float, width: int) -> Op:
    """Learned positions, of which each row reads one."""
    return Op(
        name="positions", term="embedding", weights=weights, flops_per_row=0, format=c.base_format, rows="lookup", outputs=width
    )


def dense(inputs: float, outputs: float, *, bias: bool = True) -> float:
    """Parameters of a matrix with its bias."""
    return inputs * outputs + bias * outputs


def encoder(
    c: Config,
    width: int,
    hidden: int,
    heads: int,
    *,
    inner: int = 0,
    kv: int = 0,
    bias: bool = True,
    norm_bias: bool = True,
    gated: bool = False,
    norms: int = 2,
    head_gains: int = 0,
    window: float = math.inf,
) -> Layer:
    """A layer of norms, attention of `inner` values among all rows or those of a window, and a feed-forward block of `hidden`.

    kv: values of the keys and of the values; `gated`: three matrices and not two; `head_gains`: parameters of norms on queries
    and keys; window [rows].
    """
    inner = inner or width
    kv = kv or inner
    name, ups = "feed-forward", ("gate_proj", "up_proj") if gated else ("up_proj",)
    ops = (
        matrix(c, "qkv_proj", width, inner + 2 * kv, bias=bias, limit=heads),
        matrix(c, "o_proj", inner, width, bias=bias, limit=heads),
        *(matrix(c, up, width, hidden, bias=bias, term=name) for up in ups),
        matrix(c, "down_proj", hidden, width, bias=bias, term=name),
        *(norm(c, f"norm {i + 1}", width, bias=norm_bias) for i in range(norms)),
        *((norm(c, "head norms", head_gains, bias=False),) if head_gains else ()),
    )
    local = f"attention of {window:.0f} rows" if math.isfinite(window) else "attention"
    return Layer(name=f"{local} + {name}", ops=ops, attention=(bidirectional(c, inner, kv, heads, window=window),))


def bidirectional(
    c: Config, inner: int, kv: int, heads: int, *, window: float = math.inf, flops_per_row: float = 0.0
) -> Attention:
    """Attention of `inner` values in which each row reads all rows, or `window` of them; `flops_per_row` come on top."""
    return Attention(
        name="attention",
        kv_bytes=2 * kv * c.base_format.bytes,
        kv_shards=heads,
        flops_per_pair_decode=4 * inner,
        flops_per_pair_prefill=4 * inner,
        window=window,
        causal=False,
        state_flops_per_token=flops_per_row,
        heads=heads,
        query_values=inner,
        output_values=inner,
        arithmetic=c.base_format.arithmetic,
    )


def conformer(
    c: Config, *, width: int, heads: int, depth: int, kernel: int, chunk: int, past: int, future: int
) -> tuple[tuple[Layer, int], ...]:
    """Layers of a Conformer (arXiv 2303.01037): half a feed-forward block, attention in chunks, a convolution, the other half.

    Queries of a chunk read it with `past` - 1 rows before and `future` behind; their distances have a matrix of their own, that
    runs on as many distances and not on rows.
    """
    name, term = "feed-forward", "projections"
    halves = tuple(
        matrix(c, f"{direction}_proj", *sizes, bias=False, term=name)
        for direction, sizes in (("up", (width, 4 * width)), ("down", (4 * width, width))) * 2
    )
    reach, distances = chunk + max(0, past - 1) + future, past + future
    ops = (
        *halves,
        matrix(c, "qkv_proj", width, 3 * width, bias=False, limit=heads),
        matrix(c, "o_proj", width, width, bias=False, limit=heads),
        stored(c, "distances", width**2),
        matrix(c, "conv_in", width, 2 * width, bias=False, term=term),
        matrix(c, "conv_out", width, width, bias=False, term=term),
        stored(c, "depthwise convolution", kernel * width),
        *(norm(c, f"norm {i + 1}", width, bias=False) for i in range(9)),
        stored(c, "scales of queries", width // heads),
    )
    relative_flops = 2 * width * distances + 2 * kernel * width
    attention = bidirectional(c, width, width, heads, window=reach, flops_per_row=relative_flops)
    return ((Layer(name="Conformer", ops=ops, attention=(attention,)), depth),)


def subsampling(c: Config, *, features: int, first: int, second: int, width: int) -> tuple[Op, ...]:
    """Two convolutions of 3 x 3 with stride 2 over time and `features`, and a matrix to the width.

    A row is what four spectra become: the first convolution makes two times `features`/2 values of `first` channels for it.
    """
    convolutions = (
        ("conv 1", 9 * first, 2 * 9 * first * features),
        ("conv 2", 9 * first * second, 2 * 9 * first * second * features / 4),
    )
    return (
        *(
            Op(name=name, term="convolutions", weights=weights, flops_per_row=flops, format=c.base_format)
            for name, weights, flops in convolutions
        ),
        stored(c, "norms of convolutions", first + second),
        matrix(c, "input_proj", second * (features // 4), width, bias=False),
    )


SIDE = 512  # patches on a side, at most


def moonvit_heads(v: Config) -> int:
    """Return the heads of a MoonViT."""
    return v.integer("vt_num_attention_heads", default=16)


def moonvit_stem(v: Config, width: int, *, bias: bool) -> tuple[Op, ...]:
    """Return the embedding of patches and the grid of positions, which is stretched to the image."""
    grid = v.integer("init_pos_emb_height") * v.integer("init_pos_emb_width")
    embedding = matrix(v, "patch_embed", 3 * v.integer("patch_size") ** 2, width, bias=bias, term="patches")
    return embedding, positions(v, grid * width, width)


def moonvit_rule(v: Config, merge: int, max_patches: int, source: str) -> Rule:
    """Return the rule of at most so many patches of an image."""
    settings = f"at most {max_patches:,} patches, {SIDE} on a side, {source}"
    return rule(native, settings, patch=v.integer("patch_size"), merge=merge, max_patches=max_patches, max_side=SIDE)
