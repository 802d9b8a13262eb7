r"""What makes a KV cache smaller, or reads less of it: number formats, windows, shared caches, fewer heads, latents, selection.

A technique is one or several changes of a model's attention, such as "window=1024@5of6+share=2+kv=int8": windows in five of six
layers, caches that two layers share, eight bits. Whatever their order, they are made as `WAYS` lists them. Layers that keep a
state or compressed entries instead of keys and values stay as they are. Lecture, section 16. What a change does to the quality
of answers is not computed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from steptime.errors import InputError, UnknownName, expect, shown
from steptime.machines.formats import FORMATS, number_format
from steptime.models.loading import KV_FORMATS, ModelLike, model_of
from steptime.models.model import Attention, Layer, Model, Op, in_format
from steptime.numbers import MOST_TOKENS
from steptime.units import count as read_count

ROTARY: Final = 64  # values of the rotary key that a latent keeps beside it (DeepSeek-V2, arXiv 2405.04434, section 2.1.3)
INDEX_HEADS, INDEX_DIM = 64, 128  # of DeepSeek-V3.2's indexer (its config.json; arXiv 2512.02556)
INDEX_BYTES: Final = INDEX_DIM + 4  # its key in FP8 with one scale
INDEXES: Final = ("indexer", "block index")
ONCE: Final = ("kv_heads", "latent", "rank", "share")
KEYS: Final = ("k_proj", "v_proj", "k_norm", "kv_a_proj_with_mqa", "kv_a_norm")  # what makes the entries of a cache
PARTS: Final = re.compile(r"(\d+)of(\d+)")

Made = tuple[tuple[Op, ...], tuple[Attention, ...]]


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


# --- what each does to a layer ------------------------------------------------------------------------------------------


def _others(layer: Layer, a: Attention) -> tuple[Attention, ...]:
    return tuple(other for other in layer.attention if other is not a)


def _ops(layer: Layer, changed: Mapping[str, Op | None], added: Iterable[Op] = ()) -> tuple[Op, ...]:
    """Return the operators of a layer with some of them changed or, where None stands for them, left out."""
    kept = (changed.get(op.name, op) if op.term in ("projections", "norms") else op for op in layer.ops)
    return (*(op for op in kept if op is not None), *added)


def _sized(op: Op, share: float, *, limit: float | None = None) -> Op:
    """Return an operator with `share` of its outputs."""
    return replace(
        op, weights=op.weights * share, flops_per_row=op.flops_per_row * share, outputs=op.outputs * share,
        split_limit=op.split_limit if limit is None else limit,
    )  # fmt: skip


def _named(layer: Layer, name: str) -> Op:
    found = next((op for op in layer.ops if op.name == name), None)
    if found is None:
        raise InputError(f"its attention has no {name}, which the change needs")
    return found


def _is_latent(layer: Layer) -> bool:
    return any(op.name == "kv_a_proj_with_mqa" for op in layer.ops)


def _grouped_alone(layer: Layer) -> None:
    if _is_latent(layer):
        raise InputError("it keeps one latent for all heads, no keys and values; latent=R makes that smaller")


def _window(layer: Layer, a: Attention, tokens: int) -> Made:
    """Return a layer that keeps so many tokens, its index too."""
    kept = (
        replace(one, window=min(one.window, tokens / one.stride)) if one.name in INDEXES else one for one in _others(layer, a)
    )
    return layer.ops, (replace(a, window=min(a.window, tokens)), *kept)


def _shared(layer: Layer, a: Attention, _: int) -> Made:
    """Return a layer that reads the cache of the one before it, and makes no keys and values; an index stays its own."""
    kept = {op.name: None for op in layer.ops if op.name in KEYS}
    return _ops(layer, kept), (replace(a, stored=False), *_others(layer, a))


def _kv_heads(layer: Layer, a: Attention, heads: int) -> Made:
    _grouped_alone(layer)
    if a.heads % heads:
        raise InputError(f"{heads} KV heads do not divide its {a.heads} query heads")
    share = heads / a.kv_shards
    changed = {op.name: _sized(op, share, limit=heads) for op in layer.ops if op.name in ("k_proj", "v_proj")}
    return _ops(layer, changed), (replace(a, kv_bytes=a.kv_bytes * share, kv_shards=heads), *_others(layer, a))


def _latent(layer: Layer, a: Attention, rank: int) -> Made:
    if _is_latent(layer):
        return _narrower(layer, a, rank)
    heads = a.heads
    key, value = a.query_values / heads, a.output_values / heads
    if rank > heads * (key + value):
        raise InputError(f"a latent of {rank:,} values is more than the {heads * (key + value):,.0f} that its heads have")
    q, k = _named(layer, "q_proj"), next((op for op in layer.ops if op.name == "k_proj"), _named(layer, "q_proj"))
    entry = a.kv_bytes / (a.kv_shards * (key + value))  # bytes of a value
    down, up, more = q.inputs * (rank + ROTARY), rank * heads * (key + value), q.inputs * heads * ROTARY
    q = replace(q, weights=q.weights + more, flops_per_row=q.flops_per_row + 2 * more, outputs=q.outputs + heads * ROTARY)
    made = replace(
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
        a, kv_bytes=(rank + ROTARY) * entry, kv_shards=1, flops_per_pair_decode=2 * heads * (2 * rank + ROTARY),
        flops_per_pair_prefill=2 * heads * (key + ROTARY + value), expand_flops=2 * up,
        query_values=heads * (rank + ROTARY), output_values=heads * rank, summed=0.0, gathered=0.0,
    )  # fmt: skip
    gone: dict[str, Op | None] = {"k_proj": None, "v_proj": None, "q_norm": None, "k_norm": None}
    added = (made, norm, expand) if a.stored else (expand,)
    return _ops(layer, {"q_proj": q, **gone}, added), (mixer, *_others(layer, a))


def _narrower(layer: Layer, a: Attention, rank: int) -> Made:
    """Return a layer of latent attention with a latent of another rank."""
    heads, before = a.heads, a.output_values / a.heads
    rotary = a.query_values / heads - before
    share, whole = rank / before, (rank + rotary) / (before + rotary)
    down, up = _named(layer, "kv_a_proj_with_mqa"), _named(layer, "kv_b_proj")
    norm = _named(layer, "kv_a_norm")
    changed = {
        down.name: _sized(down, whole),
        up.name: replace(up, weights=up.weights * share, flops_per_row=up.flops_per_row * share, inputs=rank),
        norm.name: replace(norm, weights=norm.weights * share, inputs=rank, outputs=rank),
    }
    absorbed = a.flops_per_pair_prefill == a.flops_per_pair_decode
    decode = 2 * heads * (2 * rank + rotary)
    mixer = replace(
        a, kv_bytes=a.kv_bytes * whole, flops_per_pair_decode=decode, expand_flops=a.expand_flops * share,
        flops_per_pair_prefill=decode if absorbed else a.flops_per_pair_prefill,
        query_values=heads * (rank + rotary), output_values=heads * rank,
    )  # fmt: skip
    return _ops(layer, changed), (mixer, *_others(layer, a))


def _low_rank(layer: Layer, a: Attention, share: float) -> Made:
    """Return a layer whose keys and values are kept in `share` of their rank.

    Values' second factor is part of the output projection; keys are made again for each entry that is read, since positions
    turn them: 2 x rank x key FLOPs for each KV head.
    """
    _grouped_alone(layer)
    key, value = a.query_values / a.heads, a.output_values / a.heads
    k, v, o = _named(layer, "k_proj"), _named(layer, "v_proj"), _named(layer, "o_proj")
    again = a.kv_shards * share * key * key  # parameters of the keys' second factor
    changed = {
        "k_proj": replace(_sized(k, share), weights=k.weights * share + again),
        "v_proj": _sized(v, share),
        "o_proj": replace(o, weights=o.weights * share, flops_per_row=o.flops_per_row * share, inputs=o.inputs * share),
    }
    added = 2 * a.kv_shards * share * key * key + 2 * a.heads * value * (share - 1)
    mixer = replace(
        a, kv_bytes=a.kv_bytes * share, flops_per_pair_decode=a.flops_per_pair_decode + added,
        output_values=a.output_values * share,
    )  # fmt: skip
    return _ops(layer, changed), (mixer, *_others(layer, a))


def _top(layer: Layer, a: Attention, tokens: int) -> Made:
    """Return a layer that reads the best `tokens`, by an indexer as DeepSeek-V3.2 has: heads of its own, one key a token."""
    if min(a.window, a.selected) <= tokens:
        return layer.ops, layer.attention
    main = replace(a, selected=min(a.selected, tokens))
    if _is_latent(layer):  # prefill runs in the latent space too, as each query has tokens of its own
        main = replace(main, flops_per_pair_prefill=a.flops_per_pair_decode, expand_flops=0.0)
    if math.isfinite(a.selected):  # by an index of its own, or by that of an earlier layer
        return layer.ops, (main, *_others(layer, a))
    query = next((op for op in layer.ops if op.name == "q_b_proj"), _named(layer, "q_proj") if not _is_latent(layer) else None)
    width = query.inputs if query is not None else _named(layer, "kv_a_proj_with_mqa").inputs
    stream = _named(layer, "o_proj").outputs
    like = _named(layer, "o_proj")

    def matrix(name: str, inputs: float, outputs: float) -> Op:
        return replace(
            like, name=name, weights=inputs * outputs, flops_per_row=2 * inputs * outputs, inputs=inputs, outputs=outputs,
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
    return (*layer.ops, *added), (main, *_others(layer, a), index)


def _chosen_blocks(layer: Layer, a: Attention, figures: tuple[int, int]) -> Made:
    """Return a layer that reads the best blocks, by the score of one mean key a block, as MoBA does (arXiv 2502.13189)."""
    size, chosen = figures
    if a.window <= size * chosen or math.isfinite(a.selected):
        return layer.ops, layer.attention
    value = next((op.outputs for op in layer.ops if op.name == "v_proj"), 0.0)
    key = next((op.outputs for op in layer.ops if op.name == "k_proj"), value)
    share = 1.0 if _is_latent(layer) or not key else key / (key + value)
    scores = 2 * a.query_values
    index = Attention(
        name="block index", kv_bytes=a.kv_bytes * share, kv_shards=a.kv_shards, flops_per_pair_decode=scores,
        flops_per_pair_prefill=scores, stride=float(size), window=a.window / size, heads=a.heads,
        query_values=a.query_values, arithmetic=a.arithmetic, stored=a.stored,
    )  # fmt: skip
    return layer.ops, (replace(a, selected=min(a.selected, size * chosen)), *_others(layer, a), index)


ARXIV: Final = "https://arxiv.org/abs/"
WAYS: Final[dict[str, Way]] = {
    "kv_heads": Way(
        "KV heads", "{} KV heads", "trained so, or uptrained with a twentieth of the compute", ARXIV + "2305.13245",
        _kv_heads, _count,
    ),
    "latent": Way(
        "rank", "a latent of {} values and a rotary key", "trained so, or converted", ARXIV + "2405.04434", _latent, _count
    ),
    "rank": Way(
        "share of the rank", "{} of the rank of keys and values", "keys are made again at each step", ARXIV + "2407.21118",
        _low_rank, _share,
    ),
    "share": Way(
        "layers", "{} layers share a cache", "trained so; each layer still reads it", ARXIV + "2405.12981", _shared, _count
    ),
    "window": Way(
        "tokens", "windows of {} tokens", "what is farther back reaches a token through other layers alone",
        ARXIV + "2004.05150", _window, _count,
    ),
    "keep": Way(
        "tokens", "at most {} entries kept",
        "what was dropped is lost, whatever is asked later; prompts are reckoned with as few", ARXIV + "2306.14048",
        _window, _count,
    ),
    "topk": Way(
        "tokens", "the best {} tokens read, by an indexer", "the index itself reads the whole context; all stays in memory",
        ARXIV + "2512.02556", _top, _count,
    ),
    "blocks": Way(
        "tokens of a block x blocks", "the best {1} blocks of {0} tokens read", "all stays in memory", ARXIV + "2502.13189",
        _chosen_blocks, _blocks,
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
