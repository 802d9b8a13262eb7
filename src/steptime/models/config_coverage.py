"""What steptime understands of a config: its layers, the fields that it read and those that it ignored, and how sure that is.

Sure is what equals transformers to the last parameter, for every config of that kind that was compared. A field that nothing
asked for is harmless where those configs have it too, with that value or as no part of an architecture; else it is named, with
a field of a like name that was looked for and is not there.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import resources
from itertools import pairwise
from typing import Any, Final

from steptime.errors import InputError, UnknownName, did_you_mean, short_repr
from steptime.models.config import Config
from steptime.models.family_registry import Family, known_families
from steptime.models.model import Layer, Model, total_parameters
from steptime.models.model_loading import find_family, model_kind, read_model
from steptime.models.safetensors_header import Headers
from steptime.result_base import unit
from steptime.units import show

EXACT, LIKELY, GUESS = "exact", "likely", "guess"
TRIFLES: Final = {
    "eps", "epsilon", "dropout", "pdrop", "prob", "coef", "coeff", "multiplier", "alpha", "beta", "theta", "act",
    "activation", "softcap", "softcapping", "scale", "scaling", "jitter", "dtype", "id", "ids", "temperature", "std", "range",
    "fn", "version",
    "license", "name", "path", "cache", "template", "seed", "impl", "implementation", "interleaved",
}  # fmt: skip
"""Last words of names of figures and switches that no matrix and no cache grows with, whatever their value."""
ABOUT: Final = re.compile(
    r"rope|rotary|token_(id|index)|(^|_)(bos|eos|pad|init|initializer)(_|$)|^(output|return)_|"
    r"^transformers"
)
"""The same, by any word of the name."""
LIKE: Final = 0.85  # how alike the names of two fields are before one may be a slip for the other
OPAQUE_FIELDS: Final = ("model_type", "architectures", "auto_map", "quantization_config", "compression_config")
"""Fields that are read by themselves; what is inside is not followed."""
MOST_GUESSED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignored:
    """A field that nothing asked for."""

    name: str = field(metadata=unit("", "full name"))
    value: Any = field(metadata=unit("", "as it stands there", kind="any JSON value"))
    doubtful: bool = field(metadata=unit("", "whether it may be architecture"))
    near: str = field(default="", metadata=unit("", "field of a like name that was looked for and is not there; empty: none"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of layer: which layers are of it (empty where the family does not tell), how many, and what it is."""

    layer: Layer
    count: int
    layer_indices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Understanding:
    """What a config says to steptime. sure: "exact", "likely" or "guess", with its reason."""

    model: Model
    read_as: str
    kinds: tuple[Kind, ...]
    fields: int
    ignored: tuple[Ignored, ...]
    sure: str
    why: str
    compared: int
    lacking: int = 0
    alternatives: tuple[str, ...] = ()

    @property
    def doubtful(self) -> tuple[Ignored, ...]:
        """Fields that nothing asked for, and that may be architecture."""
        return tuple(entry for entry in self.ignored if entry.doubtful)


def understand(fields: Mapping[str, Any], *, name: str = "", headers: Headers | None = None) -> Understanding:
    """Return what steptime understands of a config.json; of a kind that it does not know, as what it reads best, as a guess.

    headers: of the files of weights beside it, which hold the same tensors or not.
    Raises InputError where no family reads it, with the reason of the family that its kind names.
    """
    understanding = _known_or_guessed(fields, name)
    return understanding if headers is None or headers.missing else _compared_with_headers(understanding, fields, headers)


def _compared_with_headers(understanding: Understanding, fields: Mapping[str, Any], headers: Headers) -> Understanding:
    """Return what was understood, held to the tensors of the files: equal ones make a guess likely, others nothing exact."""
    summary = read_model(
        _as_kind(fields, understanding.read_as), name=understanding.model.name, headers=headers
    ).checkpoint.summary
    if summary is None:
        return understanding
    if not summary.differences:
        sure = LIKELY if understanding.sure == GUESS else understanding.sure
        return replace(understanding, sure=sure, why=f"{understanding.why}; the files beside it hold its tensors and no others")
    first = summary.differences[0]
    mismatches = (
        f"{first.name} ({first.bytes:+,} B) and {len(summary.differences) - 1} more"
        if len(summary.differences) > 1
        else first.name
    )
    why = f"{understanding.why}; the files beside it hold other tensors: {mismatches}"
    return replace(understanding, sure=LIKELY if understanding.sure == EXACT else understanding.sure, why=why)


def _as_kind(fields: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return a config as one of another kind."""
    changed = {**fields, "model_type": kind}
    inner = fields.get("text_config")
    if isinstance(inner, Mapping) and fields.get("model_type") != kind:
        changed["text_config"] = {**inner, "model_type": kind}
    return changed


def _known_or_guessed(fields: Mapping[str, Any], name: str) -> Understanding:
    try:
        return _understanding(fields, name)
    except UnknownName as unknown:
        if unknown.args and "architecture" not in str(unknown):
            raise
        inner = fields.get("text_config")
        if isinstance(inner, Mapping) and inner.get("model_type") in known_families():
            understanding = _understanding(inner, name)
            problem = (
                f"{short_repr(fields.get('model_type'))} is no kind that steptime knows, and what else it holds is not counted"
            )
            return replace(understanding, sure=LIKELY, why=f"{problem}; its text_config says {understanding.read_as!r}")
        guesses = sorted(_family_guesses(fields, name), key=_likeness)
        if not guesses:
            raise
        best = guesses[0]
        best = _understanding({**_as_kind(fields, best.read_as), "architectures": None}, name)
        close_guesses = [guess for guess in guesses[1 : 1 + MOST_GUESSED] if len(guess.doubtful) == len(best.doubtful)]
        alternatives = tuple(f"{guess.read_as} ({show(total_parameters(guess.model))})" for guess in close_guesses)
        kind = short_repr(fields.get("model_type"))
        why = f"{kind} is no kind that steptime knows; its fields read as those of {best.read_as!r}"
        why += f", and leave {_count(len(best.doubtful))} unread that may be architecture" if best.doubtful else ""
        return replace(best, sure=GUESS, why=why, alternatives=alternatives)


def _likeness(guess: Understanding) -> tuple[int, ...]:
    """Return how little a guess is like a config: fields it does not read, those its kind has else, how few were compared."""
    unread = [entry for entry in guess.ignored if not is_trifle(entry.name.rpartition(".")[2])]
    return len(guess.doubtful), len(unread), guess.lacking, -guess.compared


def _understanding(fields: Mapping[str, Any], name: str) -> Understanding:
    understanding, c = _understood_fields(fields, name), Config(fields, name=name)
    return replace(understanding, kinds=_kinds(find_family(c), c, understanding.model))


def _understood_fields(fields: Mapping[str, Any], name: str) -> Understanding:
    """Return what is understood but for the places of layers."""
    read_fields: set[str] = set()
    model = read_model(fields, name=name, lookups=read_fields)
    kind = model_kind(Config(fields, name=name))
    ignored = tuple(ignored_fields(fields, read_fields))
    compared = _facts()["compared"].get(kind, 0)
    doubtful = sum(entry.doubtful for entry in ignored)
    lacking = _missing_fields(fields, read_fields, kind)
    unseen = f"lacks {', '.join(lacking[:3])}" if lacking else _uncompared_switch(fields, read_fields, kind)
    if not compared:
        sure, why = LIKELY, f"no config of {kind!r} was compared with the code of transformers"
    elif doubtful:
        sure, why = LIKELY, f"{_count(doubtful)} that may be architecture {'was' if doubtful == 1 else 'were'} not read"
    elif unseen:
        sure, why = LIKELY, f"no config of {kind!r} that was compared with the code of transformers {unseen}"
    else:
        sure = EXACT
        configs = "the one config" if compared == 1 else f"all {compared} configs"
        why = (
            f"{configs} of {kind!r} that {'was' if compared == 1 else 'were'} compared equal transformers to the last parameter"
        )
    return Understanding(
        model=model, read_as=kind, kinds=(), fields=sum(1 for _ in leaves(fields)), ignored=ignored,
        sure=sure, why=why, compared=compared, lacking=len(lacking),
    )  # fmt: skip


def _family_guesses(fields: Mapping[str, Any], name: str) -> Iterator[Understanding]:
    """Yield what each family makes of a config, those that read it at all."""
    for family in {id(family_class): family_class for family_class in known_families().values()}.values():
        kind = max(
            (k for k in family.model_types if k in known_families()), key=lambda k: _facts()["compared"].get(k, 0), default=""
        )
        if not kind:
            continue
        plainly = {**_as_kind(fields, kind), "architectures": None, "quantization_config": None}
        try:
            yield _understood_fields(plainly, name)
        except InputError:
            continue


def _kinds(family: Family, c: Config, model: Model) -> tuple[Kind, ...]:
    """Return the kinds of layers of a model in order of their first, with the places of each where its family tells them."""
    inner = family.text(c)
    try:
        layers = list(family.iter_layers(inner))
    except (InputError, NotImplementedError):
        layers = []
    if Counter(layers) != Counter(dict(model.layers)):
        return tuple(Kind(layer=layer, count=count) for layer, count in model.layers)
    places: dict[Layer, list[int]] = {}
    for index, layer in enumerate(layers):
        places.setdefault(layer, []).append(index)
    return tuple(Kind(layer=layer, count=len(indices), layer_indices=tuple(indices)) for layer, indices in places.items())


# --- fields that nothing asked for --------------------------------------------------------------------------------------


def leaves(fields: Mapping[str, Any], within: str = "", entered: frozenset[str] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield the full names and values of fields; tables are entered where something asked for what is inside."""
    for key, value in fields.items():
        full = f"{within}.{key}" if within else str(key)
        if isinstance(value, Mapping) and (entered is None or full in entered) and key not in OPAQUE_FIELDS:
            yield from leaves(value, full, entered)
        else:
            yield full, value


def ignored_fields(fields: Mapping[str, Any], lookups: set[str]) -> Iterator[Ignored]:
    """Yield the fields that nothing asked for, in their order; those that are null say nothing."""
    entered = frozenset(name.rpartition(".")[0] for name in lookups)
    missing = sorted({name for name in lookups if _field_value(fields, name) is None})
    harmless = _facts()["ignored"]
    for full, value in leaves(fields, entered=entered):
        key = full.rpartition(".")[2]
        if value is None or full in lookups or key in OPAQUE_FIELDS or key.startswith("_"):
            continue
        harmless_values = harmless.get(key)
        doubtful = not is_trifle(key) and (harmless_values is None or plain(value) not in harmless_values)
        near = did_you_mean(full, missing, max_names=1, cutoff=LIKE) if doubtful else []
        yield Ignored(name=full, value=value, doubtful=doubtful, near=near[0] if near else "")


def is_trifle(key: str) -> bool:
    """Whether a field of that name cannot tell the size or kind of a matrix, a mixer or a cache.

    >>> [is_trifle(key) for key in ("rms_norm_eps", "bos_token_id", "attention_dropout", "num_heads", "decoder_sparse_steps")]
    [True, True, True, False, False]
    """
    return key.casefold().rpartition("_")[2] in TRIFLES or bool(ABOUT.search(key.casefold()))


def plain(value: Any) -> str:
    """Return a value as it is kept beside harmless fields: short JSON; of lists the distinct values."""
    if isinstance(value, list):
        value = sorted({json.dumps(element, sort_keys=True) for element in value})[:8]
    return json.dumps(value, sort_keys=True)[:80]


def _missing_fields(fields: Mapping[str, Any], read_fields: set[str], kind: str) -> list[str]:
    """Return the fields that all compared configs of a kind have and this one lacks: its silence was not compared."""
    compared_fields = _facts()["read"].get(kind, {})
    return [
        name
        for name, values in compared_fields.items()
        if None not in values and name in read_fields and _field_value(fields, name) is None
    ]


def _uncompared_switch(fields: Mapping[str, Any], read_fields: set[str], kind: str) -> str:
    """Say which switch no compared config of a kind sets as this one does; "" for none."""
    compared_fields = _facts()["read"].get(kind, {})
    for name, values in compared_fields.items():
        value = _field_value(fields, name)
        if isinstance(value, bool | str) and values and plain(value) not in values:
            return f"has {name} {plain(value)}"
    uncompared_switches = [
        name
        for name in read_fields
        if name not in compared_fields and isinstance(_field_value(fields, name), bool) and not is_trifle(name)
    ]
    return f"has {min(uncompared_switches)}" if uncompared_switches else ""


def _field_value(fields: Mapping[str, Any], name: str) -> Any:
    value: Any = fields
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


@lru_cache(maxsize=1)
def _facts() -> dict[str, Any]:
    """Return what comparisons with transformers showed: configs compared by kind, and values of fields that change nothing."""
    text = (resources.files("steptime") / "data" / "config_fields.json").read_text(encoding="utf-8")
    facts: dict[str, Any] = json.loads(text)
    return facts


def _count(number: int) -> str:
    return f"{number} field" + ("" if number == 1 else "s")


# --- words --------------------------------------------------------------------------------------------------------------


def places(indices: Sequence[int]) -> str:
    """Write the numbers of layers: ranges, or every how many.

    >>> places((0, 1, 2)), places((5, 11, 17, 23)), places((3,)), places((0, 1, 4, 6, 7))
    ('0-2', '5, 11, ..., 23', '3', '0-1, 4, 6-7')
    """
    if len(indices) > 2 and len({b - a for a, b in pairwise(indices)}) == 1 and indices[1] - indices[0] > 1:
        return f"{indices[0]}, {indices[1]}, ..., {indices[-1]}"
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], index]
        else:
            runs.append([index, index])
    words = [f"{first}" if first == last else f"{first}-{last}" for first, last in runs]
    return ", ".join(words) if len(words) <= 4 else f"{words[0]}, {words[1]}, ..., {words[-1]}"


def described(layer: Layer) -> str:
    """Say what a layer is made of: its mixers with heads and cache, its feed-forward block or experts."""
    words = [_mixer(layer, index) for index in range(len(layer.attention))]
    ops = {op.name: op for op in layer.ops}
    routed = layer.routed
    if routed is not None:
        groups = f" in {routed.active_groups} of {routed.expert_groups} groups" if routed.expert_groups > 1 else ""
        wide = f" of {routed.columns:,}" if routed.columns else ""
        words.append(f"{routed.experts} experts{wide}, {routed.active:g} active{groups}")
    for term in ("shared experts", "feed-forward"):
        up = next(
            (
                op
                for op in layer.ops
                if op.term == term and op.flops_per_row and op.name.startswith(("up", "gate_up", "fc", "gate"))
            ),
            None,
        )
        if up is not None:
            words.append(f"{'shared experts' if term == 'shared experts' else 'feed-forward'} of {up.outputs:,.0f}")
    if any(name in ops for name in ("q_norm", "k_norm")):
        words.append("norms of queries and keys")
    return "; ".join(words) or layer.name


def _mixer(layer: Layer, index: int) -> str:
    a = layer.attention[index]
    if a.state_bytes:
        return f"{a.name} of {a.state_bytes:,.0f} B a sequence"
    if a.name != "attention":
        return f"{a.name}, {a.kv_bytes:,.0f} B an entry" + (f" of {a.stride:g} tokens" if a.stride > 1 else "")
    if any(op.name == "kv_a_proj_with_mqa" for op in layer.ops):
        rank = a.output_values / a.heads
        text = f"{a.heads} heads on a latent of {rank:g} + {a.query_values / a.heads - rank:g}"
    else:
        text = f"{a.heads} heads of {a.query_values / a.heads:g}, {a.kv_shards} for keys and values"
    if a.window < 1e18:
        text += f", window {a.window:,.0f}"
    if a.selected < 1e18:
        text += f", {a.selected:,.0f} selected"
    return text + ("" if a.stored else ", cache of an earlier layer")
