r"""What makes a KV cache smaller, or reads less of it: number formats, windows, shared caches, fewer heads, latents, selection.

A technique is one or several changes of a model's attention, such as "window=1024@5of6+share=2+kv=int8": windows in five of six
layers, caches that two layers share, eight bits. Whatever their order, they are made as `CHANGE_KINDS` lists them. Layers that
keep a state or compressed entries instead of keys and values stay as they are. Lecture, section 16. What a change does to the
quality of answers is not computed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from steptime.errors import InputError, UnknownName, expect, short_repr
from steptime.hardware.number_formats import FORMATS, number_format
from steptime.models.kv_transforms import (
    INDEXES,
    LayerParts,
    in_low_rank,
    reading_another,
    selecting,
    selecting_blocks,
    windowed,
    with_kv_heads,
    with_latent,
)
from steptime.models.model import Attention, Layer, Model, in_format
from steptime.models.model_loading import KV_FORMATS, ModelLike, resolve_model
from steptime.number_checks import MOST_TOKENS
from steptime.units import count as read_count

ONCE: Final = ("kv_heads", "latent", "rank", "share")
PARTS: Final = re.compile(r"(\d+)of(\d+)")


@dataclass(frozen=True, slots=True)
class Change:
    """One change: which, its figures as written, and the layers that it is for ("" all; "full"; "local"; "5of6")."""

    name: str
    figures: str
    scope: str = ""


@dataclass(frozen=True, slots=True)
class ChangeKind:
    """A kind of change: what its figures are, what it does in words, what it costs beside, and where it comes from."""

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
        raise InputError(f"{short_repr(text)} is no whole number from 1 to {MOST_TOKENS:,}, such as 8192 or 8k")
    return number


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise InputError(f"{short_repr(text)} is no share between 0 and 1")
    return value


def _blocks(text: str) -> tuple[int, int]:
    size, _, blocks = text.partition("x")
    return _count(size), _count(blocks)


def _format(text: str) -> str:
    formats = [name for name in KV_FORMATS if name in FORMATS]
    if text not in formats:
        raise UnknownName("KV format", text, formats, "Known: " + ", ".join(formats) + ".")
    return text


ARXIV: Final = "https://arxiv.org/abs/"
CHANGE_KINDS: Final[dict[str, ChangeKind]] = {
    "kv_heads": ChangeKind(
        "KV heads", "{} KV heads", "trained so, or uptrained with a twentieth of the compute", ARXIV + "2305.13245",
        with_kv_heads, _count,
    ),
    "latent": ChangeKind(
        "rank", "a latent of {} values and a rotary key", "trained so, or converted", ARXIV + "2405.04434", with_latent, _count
    ),
    "rank": ChangeKind(
        "share of the rank", "{} of the rank of keys and values", "keys are made again at each step", ARXIV + "2407.21118",
        in_low_rank, _share,
    ),
    "share": ChangeKind(
        "layers", "{} layers share a cache", "trained so; each layer still reads it", ARXIV + "2405.12981",
        reading_another, _count,
    ),
    "window": ChangeKind(
        "tokens", "windows of {} tokens", "what is farther back reaches a token through other layers alone",
        ARXIV + "2004.05150", windowed, _count,
    ),
    "keep": ChangeKind(
        "tokens", "at most {} entries kept",
        "what was dropped is lost, whatever is asked later; prompts are reckoned with as few", ARXIV + "2306.14048",
        windowed, _count,
    ),
    "topk": ChangeKind(
        "tokens", "the best {} tokens read, by an indexer", "the index itself reads the whole context; all stays in memory",
        ARXIV + "2512.02556", selecting, _count,
    ),
    "blocks": ChangeKind(
        "tokens of a block x blocks", "the best {1} blocks of {0} tokens read", "all stays in memory", ARXIV + "2502.13189",
        selecting_blocks, _blocks,
    ),
    "kv": ChangeKind(
        "a number format", "cache in {}",
        "keys of few bits need scales by channel; int4 is unpacked and multiplied in 16 bits", ARXIV + "2402.02750", None,
        _format,
    ),
}  # fmt: skip
"""Kinds of changes by name, in the order in which they are made; formats, of what is left, last."""


def parse_technique(text: str) -> tuple[Change, ...]:
    """Return the changes that a text names, such as "window=1024@5of6+kv=int8"; raise InputError for what is none.

    >>> [change.name for change in parse_technique("window=1024@5of6+share=2+kv=int8")]
    ['window', 'share', 'kv']
    """
    changes = tuple(_change(part, text) for part in text.replace(" ", "").split("+"))
    for name in ONCE:
        if sum(change.name == name for change in changes) > 1:
            raise InputError(f"{short_repr(text)} names {name} twice; once is what can be made of it")
    return changes


def _change(part: str, technique: str) -> Change:
    name, equals, setting = part.partition("=")
    if name not in CHANGE_KINDS:
        raise UnknownName(
            "technique",
            name[:40],
            CHANGE_KINDS,
            f"Known: {', '.join(CHANGE_KINDS)}; several joined by '+', as in window=1024@5of6+kv=int8.",
        )
    figures, separator, scope = setting.partition("@")
    if not equals or not figures or (separator and not scope):
        raise InputError(
            f"{short_repr(part)} in {short_repr(technique)} needs {name}={CHANGE_KINDS[name].figures.upper().replace(' ', '_')}"
        )
    try:
        CHANGE_KINDS[name].parse(figures)
    except InputError as error:
        if isinstance(error, UnknownName):
            raise
        raise InputError(f"{name}={figures[:40]}: {error}") from None
    _fraction(scope)
    return Change(name, figures, scope)


def _fraction(scope: str) -> float:
    """Return the share of layers that a scope names; 1 for all, and for kinds of layers."""
    if scope in ("", "full", "local"):
        return 1.0
    parts = PARTS.fullmatch(scope)
    if parts is None or not 0 < int(parts[1][:9]) <= int(parts[2][:9]):
        raise InputError(f"@{scope[:40]} names no layers; known: @full, @local, and @5of6 for five of six")
    return int(parts[1]) / int(parts[2])


def with_techniques(model: ModelLike, technique: str) -> Model:
    """Return the model with the changes that `technique` names, in the order of `CHANGE_KINDS`; "" changes nothing.

    It is called by both names and has no checkpoint of its own: what there is was trained, and is stored, otherwise.

    Raises InputError for what is no technique, and where one changes nothing or does not suit the model's attention.

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
    """Say what a technique does: "windows of 1,024 tokens in 5 of 6 layers; cache in int8".

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
    """Return what to mind of each change of a technique, with its source."""
    lossy = [change for change in parse_technique(technique) if change.name != "kv" or number_format(change.figures).bytes < 1]
    return tuple(f"{change.name}: {CHANGE_KINDS[change.name].caveat} ({CHANGE_KINDS[change.name].source})" for change in lossy)


def _with_change(model: Model, change: Change) -> Model:
    """Return the model with a change in the layers that it means, as many of each kind."""
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
    """Return what a change makes of a layer: of its operators once, of each of the mixers that are meant."""
    apply = CHANGE_KINDS[change.name].apply
    ops, attention = layer.ops, layer.attention
    for number, mixer in enumerate(mixers):
        assert apply is not None
        try:
            changed_ops, changed_mixers = apply(replace(layer, attention=attention), mixer, value)
        except InputError as error:
            raise InputError(f"{change.name}={change.figures} does not suit {model.name}: {error}") from None
        ops = changed_ops if not number else (*ops, *changed_ops[len(layer.ops) :])
        attention = changed_mixers
    return ops, attention


def _changed_counts(change: Change, value: Any, counts: list[int], same: list[bool]) -> list[int]:
    """Return how many layers of each kind change: the share that is asked for, those counted in that are so already.

    Of `share` layers that read one cache, one of each kind keeps it.
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
    """Return the model with the caches of all layers, or of those that are meant, in another format; indexes keep theirs."""
    if model.kv_format not in FORMATS:
        raise InputError(f"kv={change.figures}: the cache of {model.name} is in {model.kv_format}; load it without --kv")
    new_format = number_format(change.figures)
    counts = [n if _mixers(layer, change.scope, stored=False) else 0 for layer, n in model.layers]
    if not any(counts):
        raise InputError(f"kv={change.figures} changes nothing in {model.name}: {_unchanged_reason([])}")
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
    return replace(model, layers=tuple(layers), draft=draft, kv_format=new_format.name, kv_told=True, notes=notes)


def _mixers(layer: Layer, scope: str, *, stored: bool) -> tuple[Attention, ...]:
    """Return what of a layer keeps or reads keys and values, or a latent, if a scope means it; stored: keeps them alone."""
    mixers = [a for a in layer.attention if a.name == "attention" and a.kv_bytes and (a.stored or not stored)]
    windowed = {"full": False, "local": True}.get(scope)
    return tuple(a for a in mixers if windowed is None or math.isfinite(a.window) is windowed)


def _unchanged_reason(mixers_by_layer: Iterable[tuple[Attention, ...]]) -> str:
    if not any(mixers_by_layer):
        return "none of the layers that are meant keeps keys and values"
    return "its layers are so already, or too few for it"


def _spread(counts: list[int], part: float) -> list[int]:
    """Return how many of each kind of layer are changed, in all `part` of them, spread evenly.

    >>> _spread([3, 58], 5 / 6), _spread([80], 0.5), _spread([0, 4], 1.0)
    ([3, 48], [40], [0, 4])
    """
    total = round(sum(counts) * part)
    exact = [n * part for n in counts]
    floors = [math.floor(value) for value in exact]
    for index in sorted(range(len(counts)), key=lambda i: floors[i] - exact[i])[: total - sum(floors)]:
        floors[index] += 1
    return floors
