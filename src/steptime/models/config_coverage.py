"""How much of a config steptime reads: layers, read and ignored fields.

A result is exact if every compared config of this kind has the same number of parameters as transformers. An ignored field
is harmless if those configs have it too, with this value or as no part of an architecture. Any other ignored field is
listed, with a field of a similar name that was looked up but is absent.
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
from steptime.models.model_loading import find_family, read_model
from steptime.models.safetensors_header import Headers
from steptime.result_base import unit
from steptime.units import counted, show

EXACT, LIKELY, GUESS = "exact", "likely", "guess"
TRIFLES: Final = {
    "eps", "epsilon", "dropout", "pdrop", "prob", "coef", "coeff", "multiplier", "alpha", "beta", "theta", "act",
    "activation", "softcap", "softcapping", "scale", "scaling", "jitter", "dtype", "id", "ids", "temperature", "std", "range",
    "fn", "version",
    "license", "name", "path", "cache", "template", "seed", "impl", "implementation", "interleaved",
}  # fmt: skip
"""Last words of field names that never change the size of a matrix or a cache."""
ABOUT: Final = re.compile(
    r"rope|rotary|token_(id|index)|(^|_)(bos|eos|pad|init|initializer)(_|$)|^(output|return)_|"
    r"^transformers"
)
"""Words anywhere in field names that never change the size of a matrix or a cache."""
# Similarity of two field names from which one may be a misspelling of the other.
LIKE: Final = 0.85
OPAQUE_FIELDS: Final = ("model_type", "architectures", "auto_map", "quantization_config", "compression_config")
"""Fields whose content is read as a whole, not field by field."""
# Further guesses with an equal fit that are shown.
MOST_GUESSED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignored:
    """A field of a config that was not looked up."""

    name: str = field(metadata=unit("", "full name of the field"))
    value: Any = field(metadata=unit("", "value in the config", kind="any JSON value"))
    doubtful: bool = field(metadata=unit("", "whether it may be part of the architecture"))
    near: str = field(default="", metadata=unit("", "absent field of a similar name that was looked up; empty: none"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of layer with its count and its layer numbers.

    `layer_indices` is empty if the family does not give the order.
    """

    layer: Layer
    count: int
    layer_indices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Understanding:
    """The model that steptime reads from a config, with its confidence.

    sure: "exact", "likely" or "guess". why: the reason.
    """

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
        """Ignored fields that may be part of the architecture."""
        return tuple(entry for entry in self.ignored if entry.doubtful)


def understand(fields: Mapping[str, Any], *, name: str = "", headers: Headers | None = None) -> Understanding:
    """Return what steptime reads from a config.json, with its confidence.

    An unknown kind is read as the family with the best fit, as a guess.

    Args:
        fields: Fields of the config.
        name: Name of the model.
        headers: Headers of the files of weights in the same folder; their tensors confirm the result or not.

    Returns:
        The model, its layers, the ignored fields and the confidence.

    Raises:
        InputError: No family reads the config.
    """
    understanding = _known_or_guessed(fields, name)
    return understanding if headers is None or headers.missing else _compared_with_headers(understanding, fields, headers)


def _compared_with_headers(understanding: Understanding, fields: Mapping[str, Any], headers: Headers) -> Understanding:
    """Return a result after comparison with the tensors of the files.

    Equal tensors make a guess likely; other tensors make an exact result likely.
    """
    summary = read_model(
        _as_kind(fields, understanding.read_as), name=understanding.model.name, headers=headers
    ).checkpoint.summary
    if summary is None:
        return understanding
    if not summary.differences:
        sure = LIKELY if understanding.sure == GUESS else understanding.sure
        return replace(understanding, sure=sure, why=f"{understanding.why}; the files next to it have exactly its tensors")

    first = summary.differences[0]
    mismatches = (
        f"{first.name} ({first.bytes:+,} B) and {len(summary.differences) - 1} more"
        if len(summary.differences) > 1
        else first.name
    )
    why = f"{understanding.why}; the files next to it have other tensors: {mismatches}"

    return replace(understanding, sure=LIKELY if understanding.sure == EXACT else understanding.sure, why=why)


def _as_kind(fields: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return a config with another kind of model."""
    changed = {**fields, "model_type": kind}
    inner = fields.get("text_config")
    if isinstance(inner, Mapping) and fields.get("model_type") != kind:
        changed["text_config"] = {**inner, "model_type": kind}
    return changed


def _known_or_guessed(fields: Mapping[str, Any], name: str) -> Understanding:
    try:
        return _understanding(fields, name)
    except UnknownName as unknown:
        # Another unknown name, such as a number format, is an error of the config.
        if unknown.args and "architecture" not in str(unknown):
            raise
        inner = fields.get("text_config")
        if isinstance(inner, Mapping) and inner.get("model_type") in known_families():
            understanding = _understanding(inner, name)
            problem = f"{short_repr(fields.get('model_type'))} is an unknown kind of model, and its other parts are not counted"
            return replace(understanding, sure=LIKELY, why=f"{problem}; its text_config has the kind {understanding.read_as!r}")

        # Read the config with every family, and take the best fit.
        guesses = sorted(_family_guesses(fields, name), key=_likeness)
        if not guesses:
            raise
        best = guesses[0]
        best = _understanding({**_as_kind(fields, best.read_as), "architectures": None}, name)
        close_guesses = [guess for guess in guesses[1 : 1 + MOST_GUESSED] if len(guess.doubtful) == len(best.doubtful)]
        alternatives = tuple(f"{guess.read_as} ({show(total_parameters(guess.model))})" for guess in close_guesses)
        kind = short_repr(fields.get("model_type"))
        why = f"{kind} is an unknown kind of model; its fields fit {best.read_as!r}"
        why += (
            f", with {counted(len(best.doubtful), 'field')} unread that may be part of the architecture"
            if best.doubtful
            else ""
        )
        return replace(best, sure=GUESS, why=why, alternatives=alternatives)


def _likeness(guess: Understanding) -> tuple[int, ...]:
    """Return a sort key of guesses, the best first.

    It counts doubtful and other unread fields, usual fields that are absent, and compared configs.
    """
    unread = [entry for entry in guess.ignored if not is_trifle(entry.name.rpartition(".")[2])]
    return len(guess.doubtful), len(unread), guess.lacking, -guess.compared


def _understanding(fields: Mapping[str, Any], name: str) -> Understanding:
    understanding, c = _understood_fields(fields, name), Config(fields, name=name)
    return replace(understanding, kinds=_kinds(find_family(c)[1], c, understanding.model))


def _understood_fields(fields: Mapping[str, Any], name: str) -> Understanding:
    """Return a result without the layer numbers of the kinds."""
    read_fields: set[str] = set()
    model = read_model(fields, name=name, lookups=read_fields)
    kind, _ = find_family(Config(fields, name=name))
    ignored = tuple(ignored_fields(fields, read_fields))
    compared = _facts()["compared"].get(kind, 0)
    doubtful = sum(entry.doubtful for entry in ignored)
    lacking = _missing_fields(fields, read_fields, kind)
    unseen = f"lacks {', '.join(lacking[:3])}" if lacking else _uncompared_switch(fields, read_fields, kind)
    if not compared:
        sure, why = LIKELY, f"no config of {kind!r} was compared with transformers"
    elif doubtful:
        sure, why = (
            LIKELY,
            f"{counted(doubtful, 'field')} that may be part of the architecture {'was' if doubtful == 1 else 'were'} not read",
        )
    elif unseen:
        sure, why = LIKELY, f"no compared config of {kind!r} {unseen}"
    else:
        sure = EXACT
        configs = "the one compared config" if compared == 1 else f"all {compared} compared configs"
        why = f"{configs} of {kind!r} {'has' if compared == 1 else 'have'} exactly the parameters of transformers"

    return Understanding(
        model=model, read_as=kind, kinds=(), fields=sum(1 for _ in leaves(fields)), ignored=ignored,
        sure=sure, why=why, compared=compared, lacking=len(lacking),
    )  # fmt: skip


def _family_guesses(fields: Mapping[str, Any], name: str) -> Iterator[Understanding]:
    """Yield the result of each family that can read a config."""
    for family in {id(family_class): family_class for family_class in known_families().values()}.values():
        kind = max(
            (k for k in family.model_types if k in known_families()), key=lambda k: _facts()["compared"].get(k, 0), default=""
        )
        if not kind:
            continue

        # A quantization does not change the architecture, and may not be readable.
        plainly = {**_as_kind(fields, kind), "architectures": None, "quantization_config": None}
        try:
            yield _understood_fields(plainly, name)
        except InputError:
            continue


def _kinds(family: Family, c: Config, model: Model) -> tuple[Kind, ...]:
    """Return the kinds of layers in order, with layer numbers if they are known."""
    inner = c.language
    try:
        layers = list(family.iter_layers(inner))
    except (InputError, NotImplementedError):
        layers = []
    # The kinds of the model may differ from those of the family; then the order is unknown.
    if Counter(layers) != Counter(dict(model.layers)):
        return tuple(Kind(layer=layer, count=count) for layer, count in model.layers)
    places: dict[Layer, list[int]] = {}
    for index, layer in enumerate(layers):
        places.setdefault(layer, []).append(index)
    return tuple(Kind(layer=layer, count=len(indices), layer_indices=tuple(indices)) for layer, indices in places.items())


# --- ignored fields -----------------------------------------------------------------------------------------------------


def leaves(fields: Mapping[str, Any], within: str = "", entered: frozenset[str] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield the full names and values of fields.

    Args:
        fields: Table of fields.
        within: Full name of the table; "": the config.
        entered: Full names of the tables to enter; None: all.

    Yields:
        Pairs of name and value; a table that is not entered is one value.
    """
    for key, value in fields.items():
        full = f"{within}.{key}" if within else str(key)
        if isinstance(value, Mapping) and (entered is None or full in entered) and key not in OPAQUE_FIELDS:
            yield from leaves(value, full, entered)
        else:
            yield full, value


def ignored_fields(fields: Mapping[str, Any], lookups: set[str]) -> Iterator[Ignored]:
    """Yield the fields that were not looked up, in their order.

    Null fields are left out.

    Args:
        fields: Fields of the config.
        lookups: Full names of the fields that were looked up.

    Yields:
        The ignored fields.
    """
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
    """Return whether a field of this name never sets a size or kind of a layer.

    Args:
        key: Name of the field without its table.

    Returns:
        True if it cannot be part of the architecture.

    >>> [is_trifle(key) for key in ("rms_norm_eps", "bos_token_id", "attention_dropout", "num_heads", "decoder_sparse_steps")]
    [True, True, True, False, False]
    """
    return key.casefold().rpartition("_")[2] in TRIFLES or bool(ABOUT.search(key.casefold()))


def plain(value: Any) -> str:
    """Return a value in the form in which harmless values are stored.

    Args:
        value: Value of a field.

    Returns:
        Short JSON; for a list, its distinct values.
    """
    if isinstance(value, list):
        value = sorted({json.dumps(element, sort_keys=True) for element in value})[:8]
    return json.dumps(value, sort_keys=True)[:80]


def _missing_fields(fields: Mapping[str, Any], read_fields: set[str], kind: str) -> list[str]:
    """Return the fields of all compared configs of a kind that this config lacks.

    The default for an absent field was not compared.
    """
    compared_fields = _facts()["read"].get(kind, {})
    return [
        name
        for name, values in compared_fields.items()
        if None not in values and name in read_fields and _field_value(fields, name) is None
    ]


def _uncompared_switch(fields: Mapping[str, Any], read_fields: set[str], kind: str) -> str:
    """Return a switch whose value no compared config of a kind has; "" without any."""
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
    """Return the results of comparisons with transformers.

    They are the number of compared configs by kind, and field values that change nothing.
    """
    text = (resources.files("steptime") / "data" / "config_fields.json").read_text(encoding="utf-8")
    facts: dict[str, Any] = json.loads(text)
    return facts


# --- words --------------------------------------------------------------------------------------------------------------


def places(indices: Sequence[int]) -> str:
    """Return layer numbers in words: ranges, or a regular sequence.

    Args:
        indices: Layer numbers, from 0.

    Returns:
        The text.

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
    """Return the parts of a layer in words.

    Args:
        layer: The layer.

    Returns:
        Its mixers with heads and cache, and its feed-forward block or experts.
    """
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
        words.append("norms on queries and keys")

    return "; ".join(words) or layer.name


def _mixer(layer: Layer, index: int) -> str:
    a = layer.attention[index]
    if a.state_bytes:
        return f"{a.name} of {a.state_bytes:,.0f} B per sequence"
    if a.name != "attention":
        return f"{a.name}, {a.kv_bytes:,.0f} B per entry" + (f" of {a.stride:g} tokens" if a.stride > 1 else "")
    if any(op.name == "kv_a_proj_with_mqa" for op in layer.ops):
        rank = a.output_values / a.heads
        text = f"{a.heads} heads, latent of {rank:g} + {a.query_values / a.heads - rank:g}"
    else:
        text = f"{a.heads} heads of {a.query_values / a.heads:g}, {a.kv_shards} KV heads"
    if a.window < 1e18:
        text += f", window {a.window:,.0f}"
    if a.selected < 1e18:
        text += f", {a.selected:,.0f} selected"
    return text + ("" if a.stored else ", cache of an earlier layer")
