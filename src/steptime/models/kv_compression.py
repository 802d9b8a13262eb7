r"""Techniques that make a KV cache smaller or read less of it.

They are number formats, windows, shared caches, fewer heads, latents and selection. A technique is one or several
changes of a model's attention, such as "window=1024@5of6+share=2+kv=int8": windows in five of six layers, caches shared
by two layers, eight bits. The changes are made in the order of `CHANGE_KINDS`, in any order of the text. Layers with a
state or with compressed entries instead of keys and values stay as they are. Lecture, section 16. The effect on the
quality of answers is not computed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from steptime.errors import InputError, UnknownName, expect, short_repr
from steptime.hardware.number_formats import FORMATS, number_format
from steptime.models.model import Attention, Layer, Model, Op, changed_drafter, in_format, with_kv
from steptime.models.model_loading import KV_FORMATS, ModelLike, resolve_model
from steptime.number_checks import MOST_TOKENS
from steptime.units import count as read_count

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
# Changes that can be made once per technique.
ONCE: Final = ("kv_heads", "latent", "rank", "share")
# A share of the layers, such as 5of6.
PARTS: Final = re.compile(r"(\d+)of(\d+)")


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a technique.

    name: kind of change. figures: its value as written. scope: layers to change: "" all, "full", "local", or "5of6".
    """

    name: str
    figures: str
    scope: str = ""


@dataclass(frozen=True, slots=True)
class ChangeKind:
    """A kind of change: its value, its effect in words, its caveat and its source."""

    figures: str
    words: str
    caveat: str
    source: str
    apply: Callable[[Layer, Attention, Any], LayerParts] | None
    parse: Callable[[str], Any]


def _count(text: str) -> int:
    try:
        number = read_count(text, "it")
    except InputError:
        number = 0
    if not 0 < number <= MOST_TOKENS:
        raise InputError(f"must be a whole number from 1 to {MOST_TOKENS:,}, such as 8192 or 8k, got {short_repr(text)}")
    return number


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise InputError(f"must be a share between 0 and 1, got {short_repr(text)}")
    return value


def _blocks(text: str) -> tuple[int, int]:
    size, _, blocks = text.partition("x")
    return _count(size), _count(blocks)


def _format(text: str) -> str:
    formats = [name for name in KV_FORMATS if name in FORMATS]
    if text not in formats:
        raise UnknownName("KV format", text, formats, "Known: " + ", ".join(formats) + ".")
    return text


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


ARXIV: Final = "https://arxiv.org/abs/"
CHANGE_KINDS: Final[dict[str, ChangeKind]] = {
    "kv_heads": ChangeKind(
        "KV heads", "{} KV heads", "needs training with it, or uptraining with a twentieth of the compute",
        ARXIV + "2305.13245", with_kv_heads, _count,
    ),
    "latent": ChangeKind(
        "rank", "a latent of {} values and a rotary key", "needs training with it, or conversion",
        ARXIV + "2405.04434", with_latent, _count,
    ),
    "rank": ChangeKind(
        "share of the rank", "{} of the rank of keys and values", "keys are expanded again at each step", ARXIV + "2407.21118",
        in_low_rank, _share,
    ),
    "share": ChangeKind(
        "layers", "{} layers share a cache", "needs training with it; each layer still reads the cache", ARXIV + "2405.12981",
        reading_another, _count,
    ),
    "window": ChangeKind(
        "tokens", "windows of {} tokens", "tokens outside the window reach a token only through other layers",
        ARXIV + "2004.05150", windowed, _count,
    ),
    "keep": ChangeKind(
        "tokens", "at most {} entries kept",
        "dropped entries are lost for all later tokens; the prefill is computed with the same limit", ARXIV + "2306.14048",
        windowed, _count,
    ),
    "topk": ChangeKind(
        "tokens", "the best {} tokens read, by an indexer",
        "the indexer still reads the whole context; the whole cache stays in memory",
        ARXIV + "2512.02556", selecting, _count,
    ),
    "blocks": ChangeKind(
        "tokens of a block x blocks", "the best {1} blocks of {0} tokens read", "the whole cache stays in memory",
        ARXIV + "2502.13189", selecting_blocks, _blocks,
    ),
    "kv": ChangeKind(
        "a number format", "cache in {}",
        "keys with few bits need scales per channel; int4 is unpacked and multiplied in 16 bits", ARXIV + "2402.02750", None,
        _format,
    ),
}  # fmt: skip
"""Kinds of changes by name, in the order in which they are made; the format comes last."""


def parse_technique(text: str) -> tuple[Change, ...]:
    """Return the changes in the text of a technique.

    Args:
        text: Changes joined by "+", such as "window=1024@5of6+kv=int8".

    Returns:
        The changes in the order of the text.

    Raises:
        UnknownName: A kind of change or a number format is unknown.
        InputError: A value or a selection of layers is malformed.

    >>> [change.name for change in parse_technique("window=1024@5of6+share=2+kv=int8")]
    ['window', 'share', 'kv']
    """
    changes = tuple(_change(part, text) for part in text.replace(" ", "").split("+"))
    for name in ONCE:
        if sum(change.name == name for change in changes) > 1:
            raise InputError(f"{name}: must be given once, got it twice in {short_repr(text)}")
    return changes


def _change(part: str, technique: str) -> Change:
    name, equals, setting = part.partition("=")
    if name not in CHANGE_KINDS:
        raise UnknownName(
            "technique",
            name[:40],
            CHANGE_KINDS,
            f"Known: {', '.join(CHANGE_KINDS)}; join several with '+', as in window=1024@5of6+kv=int8.",
        )

    figures, separator, scope = setting.partition("@")
    if not equals or not figures or (separator and not scope):
        form = f"{name}={CHANGE_KINDS[name].figures.upper().replace(' ', '_')}"
        raise InputError(f"technique: change must be {form}, got {short_repr(part)} in {short_repr(technique)}")

    try:
        CHANGE_KINDS[name].parse(figures)
    except InputError as error:
        if isinstance(error, UnknownName):
            raise
        raise InputError(f"{name}={figures[:40]}: {error}") from None

    _fraction(scope)

    return Change(name, figures, scope)


def _fraction(scope: str) -> float:
    """Return the share of the layers in a scope such as 5of6; 1 for other scopes."""
    if scope in ("", "full", "local"):
        return 1.0
    parts = PARTS.fullmatch(scope)
    if parts is None or not 0 < int(parts[1][:9]) <= int(parts[2][:9]):
        raise InputError(f"@{scope[:40]}: unknown selection of layers; known: @full, @local, and @5of6 for five of six")
    return int(parts[1]) / int(parts[2])


def with_techniques(model: ModelLike, technique: str) -> Model:
    """Return a model with the changes of a technique, in the order of `CHANGE_KINDS`.

    The name of the changed model includes the technique. It has no checkpoint, because the published weights were trained
    without the change.

    Args:
        model: A model, or what `load_model` accepts.
        technique: Changes joined by "+"; "" for none.

    Returns:
        The changed model.

    Raises:
        InputError: The technique is malformed, changes nothing, or does not suit the model's attention.

    >>> from steptime.models.model import kv_bytes_per_token
    >>> kv_bytes_per_token(with_techniques("llama-3.3-70b", "kv_heads=1+share=2+kv=fp8"))
    10240.0
    """
    changed_model = resolve_model(model)
    expect("a technique", technique, str, "a text such as 'window=1024@5of6+kv=int8'")
    for change in (
        sorted(parse_technique(technique), key=lambda item: list(CHANGE_KINDS).index(item.name)) if technique.strip() else ()
    ):
        changed_model = _with_kv_format(changed_model, change) if change.name == "kv" else _with_change(changed_model, change)
    if changed_model is model or not technique.strip():
        return changed_model
    return replace(
        changed_model,
        name=f"{changed_model.name}, {technique}",
        checkpoint=replace(changed_model.checkpoint, place="", bytes=0, summary=None),
    )


def describe_technique(technique: str) -> str:
    """Return a technique in words.

    Args:
        technique: Changes joined by "+".

    Returns:
        The changes, separated by semicolons.

    >>> describe_technique("window=1024@5of6+kv=int8")
    'windows of 1,024 tokens in 5 of 6 layers; cache in int8'
    """
    return "; ".join(_words(change) for change in parse_technique(technique))


def _words(change: Change) -> str:
    kind = CHANGE_KINDS[change.name]
    value = kind.parse(change.figures)
    figures = value if isinstance(value, tuple) else (value,)
    text = kind.words.format(*(f"{figure:,}" if isinstance(figure, int) else figure for figure in figures))
    places = {"": "", "full": " in layers without windows", "local": " in layers with windows"}
    part = PARTS.fullmatch(change.scope)
    text = text.replace("1 KV heads", "1 KV head") if value == 1 else text
    return text + (f" in {part[1]} of {part[2]} layers" if part else places[change.scope])


def technique_caveats(technique: str) -> tuple[str, ...]:
    """Return the caveat of each change of a technique, with its source.

    Args:
        technique: Changes joined by "+".

    Returns:
        One text per change; number formats of a byte or more have no caveat.
    """
    lossy = [change for change in parse_technique(technique) if change.name != "kv" or number_format(change.figures).bytes < 1]
    return tuple(f"{change.name}: {CHANGE_KINDS[change.name].caveat} ({CHANGE_KINDS[change.name].source})" for change in lossy)


def _with_change(model: Model, change: Change) -> Model:
    """Return the model with a change in a share of the layers of each kind."""
    value = CHANGE_KINDS[change.name].parse(change.figures)
    mixers_by_layer = [_mixers(layer, change.scope, stored=change.name == "share") for layer, _ in model.layers]
    counts = [n if mixers else 0 for (_, n), mixers in zip(model.layers, mixers_by_layer, strict=True)]
    layer_changes = [
        _changed_layer(model, change, layer, mixers, value)
        for (layer, _), mixers in zip(model.layers, mixers_by_layer, strict=True)
    ]
    same = [
        layer_change == (layer.ops, layer.attention)
        for layer_change, (layer, _) in zip(layer_changes, model.layers, strict=True)
    ]
    layers: list[tuple[Layer, int]] = []
    for (layer, n), (ops, attention), changed in zip(
        model.layers, layer_changes, _changed_counts(change, value, counts, same), strict=True
    ):
        if changed:
            name = f"{layer.name}, {_words(replace(change, scope=''))}"
            layers.append((replace(layer, name=name, ops=ops, attention=attention), changed))
        if n > changed:
            layers.append((layer, n - changed))

    if tuple(layers) == model.layers:
        raise InputError(
            f"{change.name}={change.figures} changes nothing in {model.name}: {_unchanged_reason(mixers_by_layer)}"
        )

    return replace(model, layers=tuple(layers), notes=(*model.notes, _words(change)))


def _changed_layer(model: Model, change: Change, layer: Layer, mixers: tuple[Attention, ...], value: Any) -> LayerParts:
    """Return the operators and mixers of a layer after changes of selected mixers."""
    apply = CHANGE_KINDS[change.name].apply
    ops, attention = layer.ops, layer.attention
    for number, mixer in enumerate(mixers):
        # Only the number format has no function, and `with_techniques` treats it apart.
        assert apply is not None
        try:
            changed_ops, changed_mixers = apply(replace(layer, attention=attention), mixer, value)
        except InputError as error:
            raise InputError(f"{change.name}={change.figures} does not suit {model.name}: {error}") from None

        # A second mixer must not add the changed operators twice, only its own new ones.
        ops = changed_ops if not number else (*ops, *changed_ops[len(layer.ops) :])
        attention = changed_mixers
    return ops, attention


def _changed_counts(change: Change, value: Any, counts: list[int], same: list[bool]) -> list[int]:
    """Return the number of changed layers of each kind.

    Layers that already have the change count as changed. Of `share` layers that share a cache, one of each kind keeps it.
    """
    shares = _spread(counts, _fraction(change.scope))
    if change.name == "share":
        return [n - math.ceil(n / value) for n in shares]
    already = sum(n for n, is_same in zip(counts, same, strict=True) if is_same)
    if already and PARTS.fullmatch(change.scope):
        candidates = [0 if is_same else n for n, is_same in zip(counts, same, strict=True)]
        count = max(0, sum(shares) - already)
        return _spread(candidates, count / sum(candidates)) if sum(candidates) else candidates
    return [0 if is_same else n for n, is_same in zip(shares, same, strict=True)]


def _with_kv_format(model: Model, change: Change) -> Model:
    """Return the model with the caches of selected layers in another format.

    Indexes keep their format.
    """
    if model.kv_format not in FORMATS:
        raise InputError(f"kv={change.figures}: the cache of {model.name} is in {model.kv_format}; load the model without --kv")
    new_format = number_format(change.figures)
    counts = [n if _mixers(layer, change.scope, stored=False) else 0 for layer, n in model.layers]
    if not any(counts):
        raise InputError(f"kv={change.figures} changes nothing in {model.name}: {_unchanged_reason([])}")

    # Layers that differ from the model carry the name of their format.
    format_name = new_format.name if change.scope else ""

    def with_format(a: Attention) -> Attention:
        if a.name == "buffer" or not a.kv_bytes or (a.name in INDEXES and a.kv_format):
            return a
        return replace(in_format(a, number_format(a.kv_format or model.kv_format), new_format), kv_format=format_name)

    layers: list[tuple[Layer, int]] = []
    for (layer, n), count in zip(model.layers, _spread(counts, _fraction(change.scope)), strict=True):
        if count:
            layers.append((replace(layer, attention=tuple(map(with_format, layer.attention))), count))
        if n > count:
            layers.append((layer, n - count))

    notes = (*model.notes, _words(change))
    if change.scope:
        return replace(model, layers=tuple(layers), notes=notes)
    draft = tuple((replace(layer, attention=tuple(map(with_format, layer.attention))), n) for layer, n in model.draft)

    drafter = changed_drafter(model, lambda small: with_kv(small, new_format))

    return replace(
        model, layers=tuple(layers), draft=draft, drafter=drafter, kv_format=new_format.name, kv_told=True, notes=notes
    )


def _mixers(layer: Layer, scope: str, *, stored: bool) -> tuple[Attention, ...]:
    """Return the mixers of a layer in a scope; stored: only mixers that store a cache."""
    mixers = [a for a in layer.attention if a.name == "attention" and a.kv_bytes and (a.stored or not stored)]
    windowed = {"full": False, "local": True}.get(scope)
    return tuple(a for a in mixers if windowed is None or math.isfinite(a.window) is windowed)


def _unchanged_reason(mixers_by_layer: Iterable[tuple[Attention, ...]]) -> str:
    if not any(mixers_by_layer):
        return "no selected layer caches keys and values"
    return "its layers already have it, or are too few"


def _spread(counts: list[int], part: float) -> list[int]:
    """Return the number of changed layers of each kind, `part` of all, spread evenly.

    >>> _spread([3, 58], 5 / 6), _spread([80], 0.5), _spread([0, 4], 1.0)
    ([3, 48], [40], [0, 4])
    """

    # Round the sum, then give the remaining layers to the largest fractions.
    total = round(sum(counts) * part)
    exact = [n * part for n in counts]
    floors = [math.floor(value) for value in exact]
    for index in sorted(range(len(counts)), key=lambda i: floors[i] - exact[i])[: total - sum(floors)]:
        floors[index] += 1
    return floors
