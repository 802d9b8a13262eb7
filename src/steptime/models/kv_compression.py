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

    return replace(model, layers=tuple(layers), draft=draft, kv_format=new_format.name, kv_told=True, notes=notes)


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
