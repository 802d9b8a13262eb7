r"""What makes a KV cache smaller, or reads less of it: number formats, windows, shared caches, fewer heads, latents, selection.

A technique is one or several changes of a model's attention, such as "window=1024@5of6+share=2+kv=int8": windows in five of six
layers, caches that two layers share, eight bits. Whatever their order, they are made as `WAYS` lists them. Layers that keep a
state or compressed entries instead of keys and values stay as they are. Lecture, section 16. What a change does to the quality
of answers is not computed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from steptime.errors import InputError, UnknownName, expect, shown
from steptime.hardware.number_formats import FORMATS, number_format
from steptime.models.kv_transforms import (
    INDEXES,
    Made,
    in_low_rank,
    reading_another,
    selecting,
    selecting_blocks,
    windowed,
    with_kv_heads,
    with_latent,
)
from steptime.models.model import Attention, Layer, Model, in_format
from steptime.models.model_loading import KV_FORMATS, ModelLike, model_of
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
class Way:
    """A kind of change: what its figures are, what it does in words, what it costs beside, and where it comes from."""

    figures: str
    words: str
    caveat: str
    source: str
    apply: Callable[[Layer, Attention, Any], Made] | None
    read: Callable[[str], Any]


def _count(text: str) -> int:
    try:
        number = read_count(text, "it")
    except InputError:
        number = 0
    if not 0 < number <= MOST_TOKENS:
        raise InputError(f"{shown(text)} is no whole number from 1 to {MOST_TOKENS:,}, such as 8192 or 8k")
    return number


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise InputError(f"{shown(text)} is no share between 0 and 1")
    return value


def _blocks(text: str) -> tuple[int, int]:
    size, _, chosen = text.partition("x")
    return _count(size), _count(chosen)


def _format(text: str) -> str:
    known = [name for name in KV_FORMATS if name in FORMATS]
    if text not in known:
        raise UnknownName("KV format", text, known, "Known: " + ", ".join(known) + ".")
    return text


ARXIV: Final = "https://arxiv.org/abs/"
WAYS: Final[dict[str, Way]] = {
    "kv_heads": Way(
        "KV heads", "{} KV heads", "trained so, or uptrained with a twentieth of the compute", ARXIV + "2305.13245",
        with_kv_heads, _count,
    ),
    "latent": Way(
        "rank", "a latent of {} values and a rotary key", "trained so, or converted", ARXIV + "2405.04434", with_latent, _count
    ),
    "rank": Way(
        "share of the rank", "{} of the rank of keys and values", "keys are made again at each step", ARXIV + "2407.21118",
        in_low_rank, _share,
    ),
    "share": Way(
        "layers", "{} layers share a cache", "trained so; each layer still reads it", ARXIV + "2405.12981",
        reading_another, _count,
    ),
    "window": Way(
        "tokens", "windows of {} tokens", "what is farther back reaches a token through other layers alone",
        ARXIV + "2004.05150", windowed, _count,
    ),
    "keep": Way(
        "tokens", "at most {} entries kept",
        "what was dropped is lost, whatever is asked later; prompts are reckoned with as few", ARXIV + "2306.14048",
        windowed, _count,
    ),
    "topk": Way(
        "tokens", "the best {} tokens read, by an indexer", "the index itself reads the whole context; all stays in memory",
        ARXIV + "2512.02556", selecting, _count,
    ),
    "blocks": Way(
        "tokens of a block x blocks", "the best {1} blocks of {0} tokens read", "all stays in memory", ARXIV + "2502.13189",
        selecting_blocks, _blocks,
    ),
    "kv": Way(
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
    found = tuple(_change(part, text) for part in text.replace(" ", "").split("+"))
    for name in ONCE:
        if sum(change.name == name for change in found) > 1:
            raise InputError(f"{shown(text)} names {name} twice; once is what can be made of it")
    return found


def _change(part: str, whole: str) -> Change:
    name, equals, rest = part.partition("=")
    if name not in WAYS:
        raise UnknownName(
            "technique", name[:40], WAYS, f"Known: {', '.join(WAYS)}; several joined by '+', as in window=1024@5of6+kv=int8."
        )
    figures, at, scope = rest.partition("@")
    if not equals or not figures or (at and not scope):
        raise InputError(f"{shown(part)} in {shown(whole)} needs {name}={WAYS[name].figures.upper().replace(' ', '_')}")
    try:
        WAYS[name].read(figures)
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
    found = PARTS.fullmatch(scope)
    if found is None or not 0 < int(found[1][:9]) <= int(found[2][:9]):
        raise InputError(f"@{scope[:40]} names no layers; known: @full, @local, and @5of6 for five of six")
    return int(found[1]) / int(found[2])


def with_techniques(model: ModelLike, technique: str) -> Model:
    """Return the model with the changes that `technique` names, in the order of `WAYS`; "" changes nothing.

    It is called by both names and has no checkpoint of its own: what there is was trained, and is stored, otherwise.

    Raises InputError for what is no technique, and where one changes nothing or does not suit the model's attention.

    >>> from steptime.models.model import kv_bytes_per_token
    >>> kv_bytes_per_token(with_techniques("llama-3.3-70b", "kv_heads=1+share=2+kv=fp8"))
    10240.0
    """
    found = model_of(model)
    expect("a technique", technique, str, "a text such as 'window=1024@5of6+kv=int8'")
    for change in sorted(parse_technique(technique), key=lambda one: list(WAYS).index(one.name)) if technique.strip() else ():
        found = _in_formats(found, change) if change.name == "kv" else _changed(found, change)
    if found is model or not technique.strip():
        return found
    return replace(found, name=f"{found.name}, {technique}", checkpoint=replace(found.checkpoint, place="", bytes=0, held=None))


def words_of(technique: str) -> str:
    """Say what a technique does: "windows of 1,024 tokens in 5 of 6 layers; cache in int8".

    >>> words_of("window=1024@5of6+kv=int8")
    'windows of 1,024 tokens in 5 of 6 layers; cache in int8'
    """
    return "; ".join(_words(change) for change in parse_technique(technique))


def _words(change: Change) -> str:
    way = WAYS[change.name]
    value = way.read(change.figures)
    figures = value if isinstance(value, tuple) else (value,)
    told = way.words.format(*(f"{one:,}" if isinstance(one, int) else one for one in figures))
    places = {"": "", "full": " in layers without windows", "local": " in layers with windows"}
    part = PARTS.fullmatch(change.scope)
    told = told.replace("1 KV heads", "1 KV head") if value == 1 else told
    return told + (f" in {part[1]} of {part[2]} layers" if part else places[change.scope])


def caveats_of(technique: str) -> tuple[str, ...]:
    """Return what to mind of each change of a technique, with its source."""
    told = [one for one in parse_technique(technique) if one.name != "kv" or number_format(one.figures).bytes < 1]
    return tuple(f"{one.name}: {WAYS[one.name].caveat} ({WAYS[one.name].source})" for one in told)


def _changed(model: Model, change: Change) -> Model:
    """Return the model with a change in the layers that it means, as many of each kind."""
    value = WAYS[change.name].read(change.figures)
    meant = [_mixers(layer, change.scope, stored=change.name == "share") for layer, _ in model.layers]
    counts = [n if mixers else 0 for (_, n), mixers in zip(model.layers, meant, strict=True)]
    made = [_made(model, change, layer, mixers, value) for (layer, _), mixers in zip(model.layers, meant, strict=True)]
    same = [one == (layer.ops, layer.attention) for one, (layer, _) in zip(made, model.layers, strict=True)]
    layers: list[tuple[Layer, int]] = []
    for (layer, n), (ops, attention), some in zip(model.layers, made, _taken(change, value, counts, same), strict=True):
        if some:
            name = f"{layer.name}, {_words(replace(change, scope=''))}"
            layers.append((replace(layer, name=name, ops=ops, attention=attention), some))
        if n > some:
            layers.append((layer, n - some))
    if tuple(layers) == model.layers:
        raise InputError(f"{change.name}={change.figures} changes nothing in {model.name}: {_why_nothing(meant)}")
    return replace(model, layers=tuple(layers), notes=(*model.notes, _words(change)))


def _made(model: Model, change: Change, layer: Layer, mixers: tuple[Attention, ...], value: Any) -> Made:
    """Return what a change makes of a layer: of its operators once, of each of the mixers that are meant."""
    apply = WAYS[change.name].apply
    ops, attention = layer.ops, layer.attention
    for number, mixer in enumerate(mixers):
        assert apply is not None
        try:
            found, left = apply(replace(layer, attention=attention), mixer, value)
        except InputError as error:
            raise InputError(f"{change.name}={change.figures} does not suit {model.name}: {error}") from None
        ops = found if not number else (*ops, *found[len(layer.ops) :])
        attention = left
    return ops, attention


def _taken(change: Change, value: Any, counts: list[int], same: list[bool]) -> list[int]:
    """Return how many layers of each kind change: the share that is asked for, those counted in that are so already.

    Of `share` layers that read one cache, one of each kind keeps it.
    """
    taken = _dealt(counts, _fraction(change.scope))
    if change.name == "share":
        return [n - math.ceil(n / value) for n in taken]
    already = sum(n for n, one in zip(counts, same, strict=True) if one)
    if already and PARTS.fullmatch(change.scope):
        others = [0 if one else n for n, one in zip(counts, same, strict=True)]
        wanted = max(0, sum(taken) - already)
        return _dealt(others, wanted / sum(others)) if sum(others) else others
    return [0 if one else n for n, one in zip(taken, same, strict=True)]


def _in_formats(model: Model, change: Change) -> Model:
    """Return the model with the caches of all layers, or of those that are meant, in another format; indexes keep theirs."""
    if model.kv_format not in FORMATS:
        raise InputError(f"kv={change.figures}: the cache of {model.name} is in {model.kv_format}; load it without --kv")
    then = number_format(change.figures)
    counts = [n if _mixers(layer, change.scope, stored=False) else 0 for layer, n in model.layers]
    if not any(counts):
        raise InputError(f"kv={change.figures} changes nothing in {model.name}: {_why_nothing([])}")
    own = then.name if change.scope else ""

    def kept(a: Attention) -> Attention:
        if a.name == "buffer" or not a.kv_bytes or (a.name in INDEXES and a.kv_format):
            return a
        return replace(in_format(a, number_format(a.kv_format or model.kv_format), then), kv_format=own)

    layers: list[tuple[Layer, int]] = []
    for (layer, n), some in zip(model.layers, _dealt(counts, _fraction(change.scope)), strict=True):
        if some:
            layers.append((replace(layer, attention=tuple(map(kept, layer.attention))), some))
        if n > some:
            layers.append((layer, n - some))
    notes = (*model.notes, _words(change))
    if change.scope:
        return replace(model, layers=tuple(layers), notes=notes)
    draft = tuple((replace(layer, attention=tuple(map(kept, layer.attention))), n) for layer, n in model.draft)
    return replace(model, layers=tuple(layers), draft=draft, kv_format=then.name, kv_told=True, notes=notes)


def _mixers(layer: Layer, scope: str, *, stored: bool) -> tuple[Attention, ...]:
    """Return what of a layer keeps or reads keys and values, or a latent, if a scope means it; stored: keeps them alone."""
    found = [a for a in layer.attention if a.name == "attention" and a.kv_bytes and (a.stored or not stored)]
    windowed = {"full": False, "local": True}.get(scope)
    return tuple(a for a in found if windowed is None or math.isfinite(a.window) is windowed)


def _why_nothing(meant: Iterable[tuple[Attention, ...]]) -> str:
    if not any(meant):
        return "none of the layers that are meant keeps keys and values"
    return "its layers are so already, or too few for it"


def _dealt(counts: list[int], part: float) -> list[int]:
    """Return how many of each kind of layer are changed, in all `part` of them, spread evenly.

    >>> _dealt([3, 58], 5 / 6), _dealt([80], 0.5), _dealt([0, 4], 1.0)
    ([3, 48], [40], [0, 4])
    """
    total = round(sum(counts) * part)
    exact = [n * part for n in counts]
    taken = [math.floor(value) for value in exact]
    for at in sorted(range(len(counts)), key=lambda i: taken[i] - exact[i])[: total - sum(taken)]:
        taken[at] += 1
    return taken
