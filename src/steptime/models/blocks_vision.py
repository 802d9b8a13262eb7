"""Rows, prompt tokens and FLOPs of images and recordings in a model's towers.

Towers: models that turn images or sound into rows for the language model.

A tower is stored with the language model and runs before a prompt with images or sound. A `Tower` has its own `Model`,
whose rows are patches of an image or frames of sound. Its `Rule` gives the rows and prompt tokens of an image or a
recording. Attention in a tower is not causal: each row reads all rows of its image, or those of its window. Operators
on merged rows, such as a projector, have `share` of an operator's arithmetic per row: a quarter if four patches become
one token.

The last functions are common to the variants of MoonViT, the tower of Kimi models.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from steptime.errors import InputError
from steptime.models.config import Config
from steptime.models.image_tokens import Cut, Medium, Rule, native, read_images, read_recordings, rule
from steptime.models.model import Attention, Kinds, Layer, Model, Op, prefill_flops, total_parameters
from steptime.number_checks import MOST_TOKENS, between
from steptime.units import counted, show

MEDIA_NAMES = {"image": "images", "audio": "recordings"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Images or recordings of one size in a prompt, with their cut and their tower."""

    medium: Medium
    cut: Cut
    tower: Tower

    @property
    def tokens(self) -> int:
        """Prompt tokens of all images or recordings of this size."""
        return self.medium.count * self.cut.tokens

    @property
    def sequences(self) -> tuple[tuple[int, int], ...]:
        """Sequences of all of them in the tower, as pairs of count and rows."""
        return tuple((self.medium.count * count, rows) for count, rows in self.cut.sequences)


def read_media(model: Model, images: str | Iterable[str] = (), audio: str | Iterable[str] = ()) -> tuple[Reading, ...]:
    """Return the rows and tokens of a prompt's images and recordings in a model.

    Args:
        model: The model with its towers.
        images: Sizes as WIDTHxHEIGHT or WIDTHxHEIGHT*COUNT [pixels].
        audio: Lengths as SECONDS or SECONDS*COUNT [s].

    Returns:
        One reading per size or length.

    Raises:
        RangeError: A size is impossible, or the model's processor refuses it.
        InputError: The model has no such tower.
    """
    media = (*read_images(images), *read_recordings(audio))
    return tuple(_reading(model, medium) for medium in media)


def _reading(model: Model, medium: Medium) -> Reading:
    tower = find_tower(model, medium.kind)
    return Reading(medium=medium, cut=tower.rule.cut(medium), tower=tower)


def find_tower(model: Model, kind: str) -> Tower:
    """Return the tower of a model for images or for sound.

    Args:
        model: The model.
        kind: "image" or "audio".

    Returns:
        The tower.

    Raises:
        InputError: The model has no such tower.
    """
    tower_or_none = next((tower for tower in model.towers if tower.kind == kind), None)
    if tower_or_none is not None:
        return tower_or_none

    # The family counts the towers but does not describe their passes.
    if any(op.term == "vision" for op in model.stem) and not model.towers:
        size = show(sum(op.total_weights for op in model.stem if op.term == "vision"))
        raise InputError(f"{kind}: {model.name} has towers of {size} parameters, but steptime does not model their time")
    having = " and ".join(MEDIA_NAMES[tower.kind] for tower in model.towers)
    reads = f"text and {having}" if having else "text"
    raise InputError(f"{kind}: {model.name} reads {reads} only; its config has no {NAMES[kind]} for {MEDIA_NAMES[kind]}")


def tower_flops(reading: Reading) -> float:
    """Return the FLOPs of a tower for all images or recordings of a reading.

    Each sequence costs one pass over its rows.

    Args:
        reading: Images or recordings of one size.

    Returns:
        FLOPs per prompt.
    """
    return sum(count * float(prefill_flops(reading.tower.model, rows)) for count, rows in reading.sequences)


def tower_parameters(readings: Iterable[Reading]) -> float:
    """Return the parameters of the towers that run, each tower once.

    Args:
        readings: Images and recordings of a prompt.

    Returns:
        Parameters.
    """
    return sum(total_parameters(tower.model) for tower in {reading.tower.kind: reading.tower for reading in readings}.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """Images and recordings of a prompt, and all its `tokens` including text."""

    readings: tuple[Reading, ...]
    tokens: float

    @property
    def words(self) -> str:
        """Images and recordings in words, with their sizes."""
        sizes = (
            (
                counted(reading.medium.count, "image" if reading.medium.kind == "image" else "recording"),
                reading.medium.size_text,
            )
            for reading in self.readings
        )
        return " and ".join(f"{count} of {size}" for count, size in sizes)


def media_tokens(readings: Iterable[Reading]) -> int:
    """Return the prompt tokens of images and recordings.

    Args:
        readings: Images and recordings of a prompt.

    Returns:
        Tokens.
    """
    return sum(reading.tokens for reading in readings)


def with_media(model: Model, readings: tuple[Reading, ...], text: float) -> Model:
    """Return a model whose every prompt includes images and recordings.

    The prompts are longer by `media_tokens`; the caller adds these tokens to a step. A step with a part of a prompt has the
    same part of the towers' time (`physics.towers`).

    Args:
        model: The model.
        readings: Images and recordings of a prompt; if empty, the model stays as it is.
        text: Text tokens of a prompt.

    Returns:
        The model with `media` and notes.

    Raises:
        RangeError: The prompt has too many tokens.
    """
    if not readings:
        return model
    media = Media(readings=readings, tokens=text + media_tokens(readings))
    between("tokens of a prompt with its images", media.tokens, 1, MOST_TOKENS, "token")
    return replace(model, media=media, notes=(*model.notes, *media_notes(media)))


def media_notes(media: Media) -> tuple[str, ...]:
    """Return notes about image tokens, settings, and the accuracy of the time.

    Args:
        media: Images and recordings of a prompt.

    Returns:
        Two notes.
    """

    # One tower may read images of several sizes; its settings are written once.
    towers = {reading.tower.name: reading.tower.rule.settings for reading in media.readings}
    settings = "; ".join(dict.fromkeys(text for text in towers.values() if text))
    return (
        f"each prompt of {media.tokens:,.0f} tokens includes {media.words}: {media_tokens(media.readings):,} tokens"
        + (f" (settings: {settings})" if settings else ""),
        f"the {' and the '.join(towers)} runs before the prefill on the same chips with tensor parallelism; "
        "no measured run has a tower, so the ranges are those of text",
    )


Kind = Literal["image", "audio"]
NAMES: dict[str, str] = {"image": "vision tower", "audio": "audio tower"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """An encoder of images or sound, and the rule that cuts its inputs."""

    kind: Kind
    model: Model
    rule: Rule

    @property
    def name(self) -> str:
        """Name of the tower in the terms of a step."""
        return NAMES[self.kind]


def tower(
    c: Config, kind: Kind, rule: Rule, *, width: int, heads: int = 1, layers: Kinds = (), stem: tuple[Op, ...] = ()
) -> Tower:
    """Return a tower with its layers and the operators before and after them.

    Without layers, the stem becomes one layer.

    Args:
        c: Config of the tower.
        kind: "image" or "audio".
        rule: Rule that gives rows and tokens.
        width: Width of the tower.
        heads: Attention heads.
        layers: Kinds of layers with their counts.
        stem: Operators before and after the layers.

    Returns:
        The tower.
    """
    # A model needs a layer; an embedding without a tower has only a stem.
    if not layers:
        layers, stem = ((Layer(name="embedding of patches", ops=stem), 1),), ()
    name = f"the {NAMES[kind]}" + (f" of {c.name}" if c.name else "")
    model = Model(
        name=name, family=c.text("model_type", default=""), layers=layers, stem=stem, width=width, vocabulary=1, heads=heads
    )
    return Tower(kind=kind, model=model, rule=rule)


def tower_op(tower: Tower) -> Op:
    """Return all parameters of a tower as one operator that text tokens do not run.

    Args:
        tower: The tower with its projector.

    Returns:
        The operator.
    """
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
    """Return parameters that no pass uses, or whose time is negligible.

    Args:
        c: Config of the tower.
        name: Name of the operator.
        weights: Number of parameters.

    Returns:
        The operator, without FLOPs.
    """
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
    """Return a matrix that runs on a share of the rows, in the unquantized format.

    Args:
        c: Config of the tower.
        name: Name of the operator.
        inputs: Input values.
        outputs: Output values.
        bias: Whether it has a bias.
        share: Share of the rows on which it runs.
        term: Term of the step time.
        limit: Most chips that can share its weights.

    Returns:
        The operator.
    """
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
    """Return a normalization on a share of the rows.

    Args:
        c: Config of the tower.
        name: Name of the operator.
        size: Values per row.
        bias: Whether it has a bias.
        share: Share of the rows on which it runs.

    Returns:
        The operator.
    """
    return Op(
        name=name, term="norms", weights=size * (1 + bias), flops_per_row=0, format=c.base_format, split="replicated",
        inputs=size * share, outputs=size * share,
    )  # fmt: skip


def positions(c: Config, weights: float, width: int) -> Op:
    """Return learned positions; each row reads one.

    Args:
        c: Config of the tower.
        weights: Number of parameters.
        width: Values per position.

    Returns:
        The operator.
    """
    return Op(
        name="positions", term="embedding", weights=weights, flops_per_row=0, format=c.base_format, rows="lookup", outputs=width
    )


def dense(inputs: float, outputs: float, *, bias: bool = True) -> float:
    """Return the parameters of a matrix.

    Args:
        inputs: Input values.
        outputs: Output values.
        bias: Whether it has a bias.

    Returns:
        Parameters.
    """
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
    """Return a layer of norms, bidirectional attention and a feed-forward block.

    Args:
        c: Config of the tower.
        width: Width of the tower.
        hidden: Hidden width of the feed-forward block.
        heads: Attention heads.
        inner: Values of the queries; 0: `width`.
        kv: Values of the keys, and of the values; 0: `inner`.
        bias: Whether matrices have biases.
        norm_bias: Whether norms have biases.
        gated: Whether the feed-forward block has three matrices, not two.
        norms: Number of norms.
        head_gains: Parameters of norms on queries and keys.
        window: Rows that a row reads; infinite: all of its image.

    Returns:
        The layer.
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
    """Return attention in which each row reads all rows, or those of its window.

    Args:
        c: Config of the tower.
        inner: Values of the queries.
        kv: Values of the keys, and of the values.
        heads: Attention heads.
        window: Rows that a row reads; infinite: all.
        flops_per_row: Further FLOPs per row.

    Returns:
        The token mixer.
    """
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


def conformer(c: Config, *, width: int, heads: int, depth: int, kernel: int, chunk: int, past: int, future: int) -> Kinds:
    """Return the layers of a Conformer (arXiv 2303.01037).

    A layer is half a feed-forward block, attention in chunks, a convolution, and the other half. Queries of a chunk
    read the chunk, `past` - 1 rows before it and `future` rows after it. One matrix per layer encodes distances; it
    runs once per distance, not per row.

    Args:
        c: Config of the tower.
        width: Width of the tower.
        heads: Attention heads.
        depth: Number of layers.
        kernel: Taps of the convolution.
        chunk: Rows of a chunk.
        past: Rows before a query, with itself.
        future: Rows after a query.

    Returns:
        The layer with its count.
    """
    name, term = "feed-forward", "projections"
    halves = tuple(
        matrix(c, f"{direction}_proj", *sizes, bias=False, term=name)
        for direction, sizes in (("up", (width, 4 * width)), ("down", (4 * width, width))) * 2
    )

    # A query reads its whole chunk, so the number of rows does not depend on its place in the chunk.
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

    # Relative positions and the depthwise convolution run per row, but not as a matrix on the rows.
    relative_flops = 2 * width * distances + 2 * kernel * width
    attention = bidirectional(c, width, width, heads, window=reach, flops_per_row=relative_flops)

    return ((Layer(name="Conformer", ops=ops, attention=(attention,)), depth),)


def subsampling(c: Config, *, features: int, first: int, second: int, width: int) -> tuple[Op, ...]:
    """Return two convolutions of stride 2 over time and features, and a matrix.

    The kernels are 3 x 3. Four spectra become one row: the first convolution makes two times `features`/2 values of `first`
    channels for it.

    Args:
        c: Config of the tower.
        features: Values of a spectrum.
        first: Channels of the first convolution.
        second: Channels of the second convolution.
        width: Width of the tower.

    Returns:
        The operators.
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


# Most patches on a side.
SIDE = 512


def moonvit_stem(v: Config, width: int, *, bias: bool) -> tuple[Op, ...]:
    """Return the patch embedding and the grid of positions of a MoonViT.

    The grid is stretched to the size of the image.

    Args:
        v: Config of the tower.
        width: Width of the tower.
        bias: Whether the embedding has a bias.

    Returns:
        The operators.
    """
    grid = v.integer("init_pos_emb_height") * v.integer("init_pos_emb_width")
    embedding = matrix(v, "patch_embed", 3 * v.integer("patch_size") ** 2, width, bias=bias, term="patches")
    return embedding, positions(v, grid * width, width)


def moonvit_rule(v: Config, merge: int, max_patches: int, source: str) -> Rule:
    """Return the rule of a MoonViT with a limit on patches.

    Args:
        v: Config of the tower.
        merge: Patches on a side that become one token.
        max_patches: Most patches of an image.
        source: Source of the limit in words.

    Returns:
        The rule.
    """
    settings = f"at most {max_patches:,} patches and {SIDE} on a side, {source}"
    return rule(native, settings, patch=v.integer("patch_size"), merge=merge, max_patches=max_patches, max_side=SIDE)
