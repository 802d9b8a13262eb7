"""Summaries of models: parts, formats, KV cache and arithmetic.

An unknown config.json has another summary: layers, ignored fields, and the certainty of its family.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from steptime.catalog.data_files import files
from steptime.catalog.hardware_loading import load_system
from steptime.describe import make_card
from steptime.errors import InputError
from steptime.hardware.rental_prices import deployment_rent
from steptime.hardware.system import System
from steptime.models.checkpoint import CheckpointSummary
from steptime.models.config_coverage import Ignored, described, places, understand
from steptime.models.model import (
    Model,
    Op,
    active_parameters,
    cache_bytes,
    cache_bytes_read,
    decode_flops_per_token,
    draft_bytes,
    draft_parameters,
    growing_kv_bytes_per_token,
    kv_bytes_per_token,
    layer_kv_bytes,
    prefill_flops,
    state_bytes,
    total_parameters,
    weight_bytes,
)
from steptime.models.model_loading import load_model
from steptime.models.safetensors_header import read_headers
from steptime.planning.plan_search import smallest_system
from steptime.result_base import Result, Tabular, unit
from steptime.units import show


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigLayers:
    """A group of equal layers."""

    layers: str = field(metadata=unit("", "indices of the layers, from 0; empty: not known"))
    count: int = field(metadata=unit("", "number of layers"))
    description: str = field(metadata=unit("", "heads, cache, feed-forward block and experts of a layer"))
    parameters: float = field(metadata=unit("", "parameters of one layer"))
    active: float = field(metadata=unit("", "parameters of one layer that a token uses", key="active_parameters"))
    kv_bytes: float = field(metadata=unit("B/token", "KV cache of one layer", key="kv_bytes_per_token"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ConfigCard(Tabular):
    """The summary of an unknown config (`steptime models --new FILE`)."""

    SCHEMA: ClassVar[str] = "steptime.config/2"
    ROWS: ClassVar[tuple[str, type]] = ("layers", ConfigLayers)

    name: str = field(metadata=unit("", "name of the model"))
    read_as: str = field(metadata=unit("", "model family (`model_type`) whose rules were used"))
    sure: str = field(metadata=unit("", "certainty of the family: exact, likely or guess"))
    why: str = field(metadata=unit("", "reason for the certainty"))
    alternatives: tuple[str, ...] = field(metadata=unit("", "families that fit equally well, if the family is a guess"))
    parameters: float = field(metadata=unit("", "all stored parameters", key="total_parameters"))
    active: float = field(metadata=unit("", "parameters that one token uses", key="active_parameters"))
    draft: float = field(
        metadata=unit("", "parameters of multi-token-prediction layers, not in the total", key="draft_parameters")
    )
    weight_bytes: float = field(metadata=unit("B", "all stored weights"))
    kv_bytes: float = field(metadata=unit("B/token", "KV cache while no window is full", key="kv_bytes_per_token"))
    state_bytes: float = field(metadata=unit("B", "recurrent state of a sequence, independent of its length"))
    layers: tuple[ConfigLayers, ...] = field(metadata=unit("", "groups of equal layers, in order of the first layer"))
    stem: Mapping[str, float] = field(metadata=unit("", "parameters before and after the layers"))
    fields: int = field(metadata=unit("", "number of fields of the config"))
    ignored: tuple[Ignored, ...] = field(metadata=unit("", "fields that were not used"))
    notes: tuple[str, ...] = field(metadata=unit("", "caveats"))

    @property
    def doubtful(self) -> tuple[Ignored, ...]:
        """Fields that were not used and may describe the architecture."""
        return tuple(field for field in self.ignored if field.doubtful)

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the family, the size and the cache.

        Returns:
            Title, and figures by name.
        """
        return f"Config of {self.name}, read as {self.read_as}: {self.sure}", {
            "parameters": f"{show(self.parameters)}, {show(self.active)} for a token",
            "cache": f"{self.kv_bytes:,.0f} B a token",
            "not understood": ", ".join(field.name for field in self.doubtful) or "nothing",
        }


def config_card(fields: Mapping[str, Any], *, name: str = "", folder: Path | None = None) -> ConfigCard:
    """Summarize the fields of a config.json.

    Args:
        fields: Fields of the config.
        name: Name of the model.
        folder: Folder of weight files, whose headers add exact shapes; None: none.

    Returns:
        Layers, sizes and ignored fields.

    Raises:
        InputError: The config has no known architecture.
    """
    # Headers of weight files add exact shapes where they are present.
    understanding = understand(fields, name=name, headers=None if folder is None else read_headers(folder))
    model = understanding.model
    layers = (
        ConfigLayers(
            # The indices of some groups of layers are not known.
            layers=places(kind.layer_indices) if kind.layer_indices else "",
            count=kind.count,
            description=described(kind.layer),
            parameters=sum(op.total_weights for op in kind.layer.ops),
            active=sum(op.active_weights for op in kind.layer.ops),
            kv_bytes=layer_kv_bytes(kind.layer),
        )
        for kind in understanding.kinds
    )
    return make_card(
        ConfigCard, understanding, name=model.name, parameters=total_parameters(model), active=active_parameters(model),
        draft=draft_parameters(model), weight_bytes=weight_bytes(model), kv_bytes=kv_bytes_per_token(model),
        state_bytes=state_bytes(model), layers=tuple(layers), stem={op.name: op.total_weights for op in model.stem},
        notes=model.notes,
    )  # fmt: skip


# Contexts of the tables of a card [tokens].
CONTEXTS = (1024, 8192, 32768, 131072, 1048576)
NAME, FAMILY = unit("", "name in the catalogue or in the config"), unit("", "architecture")
TOTAL, ACTIVE = unit("", "all stored parameters"), unit("", "parameters that one token uses")
SHARE = unit("", "active over total parameters")
WEIGHTS = unit("B", "all stored weights")
KV_FORMAT = unit("", "number format of the KV cache")
KV = unit("B/token", "bytes that one more token adds to the KV cache while no window is full", key="kv_bytes_per_token")
GROWING = unit(
    "B/token", "bytes that one more token adds to the KV cache once every window is full", key="growing_kv_bytes_per_token"
)
STATE = unit("B", "recurrent state of a sequence, independent of its length", key="state_bytes_per_sequence")
CONTEXT = unit("tokens", "context of the figures")
AT_CONTEXT = unit("B", "KV cache and state of a sequence at that context", key="cache_bytes_at_context")
EQUAL = unit("tokens", "context at which a token reads as many bytes of KV cache as all weights; null: never")
LONGEST = unit("tokens", "longest context of the config; null: not stated")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """One kind of layer."""

    kind: str = field(metadata=unit("", "kind of layer"))
    count: int = field(metadata=unit("", "number of layers"))
    parameters: float = field(metadata=unit("", "parameters of one layer"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCounts:
    """Parameters of a model."""

    total: float = field(metadata=TOTAL)
    active: float = field(metadata=ACTIVE)
    active_share: float = field(metadata=SHARE)
    draft: float = field(metadata=unit("", "parameters of multi-token-prediction layers, not in the total"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRow:
    """The KV cache of one sequence at one context."""

    context: int = field(metadata=unit("tokens", "tokens of the sequence"))
    bytes: float = field(metadata=unit("B", "KV cache and state", key="cache_bytes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopsRow:
    """FLOP of a token at one context."""

    context: int = field(metadata=unit("tokens", "tokens of the sequence or of the prompt"))
    decode: float = field(metadata=unit("FLOP", "FLOP of a decode token"))
    prefill: float = field(metadata=unit("FLOP", "mean FLOP of a prompt token"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallestSystem:
    """The system of the catalogue that fits a model and a request at the lowest rent."""

    name: str = field(metadata=unit("", "name in the catalogue"))
    chips: int = field(metadata=unit("", "chips that fit the model and a request: a power of two, or all"))
    title: str = field(metadata=unit("", "description"))
    rent: float = field(metadata=unit("USD/s", "typical rent of those chips; null: not known"))
    rent_kind: str = field(metadata=unit("", "owned, contract, ondemand or assumed; empty: rent not known"))
    rent_term: str = field(metadata=unit("", "term of a contract, or billing of on-demand rent"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModelCard(Result):
    """The summary of a model (`steptime models NAME`)."""

    SCHEMA: ClassVar[str] = "steptime.model/2"

    name: str = field(metadata=NAME)
    family: str = field(metadata=FAMILY)
    layers: tuple[LayerRow, ...] = field(metadata=unit("", "kinds of layers"))
    width: int = field(metadata=unit("", "values of the residual stream"))
    heads: int = field(metadata=unit("", "query heads"))
    vocabulary: int = field(metadata=unit("", "rows of the embedding"))
    max_context: float = field(metadata=LONGEST)
    parameters: ParameterCounts = field(metadata=unit("", "counted from the config"))
    published: Mapping[str, Any] = field(metadata=unit("", "figures of the maker: total, active, basis, grade"))
    counted_over_published: Mapping[str, float] = field(
        metadata=unit("", "counted over published parameters: total and active, if published")
    )
    parts: Mapping[str, float] = field(
        metadata=unit("", "parameters by part: projections, experts, ...", key="parameters_by_part")
    )
    weight_bytes: float = field(metadata=WEIGHTS)
    weight_bytes_by_format: Mapping[str, float] = field(
        metadata=unit("B", "weights by number format", key="weight_bytes_by_format")
    )
    draft_weight_bytes: float = field(
        metadata=unit("B", "weights of multi-token-prediction layers, not in the total", key="draft_weight_bytes")
    )
    checkpoint_bytes: int = field(
        metadata=unit("B", "exact bytes of all tensors in the folder of the config; 0: no complete checkpoint")
    )
    checkpoint: CheckpointSummary | None = field(
        metadata=unit("", "contents of the weight files by their headers; null: no files")
    )
    kv_format: str = field(metadata=KV_FORMAT)
    kv_bytes_per_token: float = field(metadata=KV)
    growing_kv_bytes_per_token: float = field(metadata=GROWING)
    state_bytes_per_sequence: float = field(metadata=STATE)
    context: int = field(metadata=CONTEXT)
    cache_bytes_at_context: float = field(metadata=AT_CONTEXT)
    cache_bytes: tuple[CacheRow, ...] = field(metadata=unit("", "KV cache of a sequence by context", key="cache_by_context"))
    context_of_equal_reads: float = field(metadata=EQUAL)
    flops_per_token: tuple[FlopsRow, ...] = field(metadata=unit("", "FLOP of a token by context", key="flop_by_context"))
    smallest_system: SmallestSystem | None = field(
        metadata=unit("", "smallest system that fits the model; null: no system of the catalogue")
    )
    source: Mapping[str, str] = field(metadata=unit("", "source of the config: url, date, grade"))
    notes: tuple[str, ...] = field(metadata=unit("", "caveats"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return parameters, weights and KV cache.

        Returns:
            Title, and figures by name.
        """
        return f"Card of {self.name} ({self.family})", {
            "parameters": f"{show(self.parameters.total)}, {show(self.parameters.active)} for a token",
            "weights": show(self.weight_bytes, "B"),
            "cache": f"{show(self.cache_bytes_at_context, 'B')} at {self.context:,} tokens",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """One row of the comparison of models."""

    name: str = field(metadata=NAME)
    family: str = field(metadata=FAMILY)
    total_parameters: float = field(metadata=TOTAL)
    active_parameters: float = field(metadata=ACTIVE)
    active_share: float = field(metadata=SHARE)
    weight_bytes: float = field(metadata=WEIGHTS)
    kv_format: str = field(metadata=KV_FORMAT)
    kv_bytes_per_token: float = field(metadata=KV)
    growing_kv_bytes_per_token: float = field(metadata=GROWING)
    state_bytes_per_sequence: float = field(metadata=STATE)
    context: int = field(metadata=CONTEXT)
    cache_bytes_at_context: float = field(metadata=AT_CONTEXT)
    decode_flops_per_token: float = field(
        metadata=unit("FLOP", "FLOP of a decode token at that context", key="decode_flop_per_token")
    )
    context_of_equal_reads: float = field(metadata=EQUAL)
    max_context: float = field(metadata=LONGEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """One row of the list of models; an unreadable model has a problem and no figures."""

    name: str = field(metadata=NAME)
    family: str = field(default="", metadata=FAMILY)
    total_parameters: float = field(default=math.nan, metadata=TOTAL)
    active_parameters: float = field(default=math.nan, metadata=ACTIVE)
    kv_bytes_per_token: float = field(default=math.nan, metadata=KV)
    weight_bytes: float = field(default=math.nan, metadata=WEIGHTS)
    grade: str = field(default="", metadata=unit("", "trust grade of the config"))
    problem: str = field(default="", metadata=unit("", "reason why the config cannot be read"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModelTable(Tabular):
    """Models of the catalogue (`steptime models`)."""

    SCHEMA: ClassVar[str] = "steptime.models/2"
    ROWS: ClassVar[tuple[str, type]] = ("models", ModelRow)

    models: tuple[ModelRow, ...] = field(metadata=unit("", "one row per model"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the number of models and the first three names.

        Returns:
            Title, and figures by name.
        """
        return f"{len(self.models)} models", {"first": ", ".join(row.name for row in self.models[:3])}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison(Tabular):
    """Models in a table (`steptime models A B`)."""

    SCHEMA: ClassVar[str] = "steptime.comparison/2"
    ROWS: ClassVar[tuple[str, type]] = ("models", ComparisonRow)

    models: tuple[ComparisonRow, ...] = field(metadata=unit("", "one row per model"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the number of models and their parameters.

        Returns:
            Title, and figures by name.
        """
        sizes = {row.name: f"{show(row.total_parameters)}, {show(row.active_parameters)} active" for row in self.models[:5]}
        return f"Comparison of {len(self.models)} models", sizes


def _sum_by(model: Model, name: Callable[[Op], str], size: Callable[[Op], float]) -> dict[str, float]:
    """Return the sum of a size over all operators, by name; names without a size are left out."""
    sums: dict[str, float] = {}
    for op, count in [(op, n) for layer, n in model.layers for op in layer.ops] + [(op, 1) for op in model.stem]:
        sums[name(op)] = sums.get(name(op), 0.0) + count * size(op)
    return {key: value for key, value in sums.items() if value}


def context_of_equal_reads(model: Model) -> float:
    """Return the context whose KV cache takes as many bytes to read as all weights.

    Args:
        model: The model.

    Returns:
        Tokens; infinity if no context does.
    """
    need = weight_bytes(model)
    low, high = 1.0, 1e12
    # With windows or recurrent layers the bytes read may never reach the weights.
    if float(cache_bytes_read(model, high)) < need:
        return math.inf
    # Bisect on a logarithmic scale: the bytes read grow with the context.
    while high / low > 1.0001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if float(cache_bytes_read(model, middle)) < need else (low, middle)
    return round(high)


def model_card(model: Model, *, context: int) -> ModelCard:
    """Return the summary of a model.

    Args:
        model: The model.
        context: Context of the figures [tokens].

    Returns:
        Parameters, formats, KV cache, FLOP and the smallest system that fits.
    """
    figures = _figures(model, context)
    total, active = figures["total_parameters"], figures["active_parameters"]
    # All systems of the catalogue are candidates.
    smallest = smallest_system(model, [load_system(name) for name in files("systems")])
    # Bytes of a weight include the scales of block formats.
    bytes_by_format = _sum_by(model, lambda op: op.format.name, lambda op: op.total_weights * op.format.bytes)
    contexts = [c for c in sorted({*CONTEXTS, context}) if c <= max(model.max_context, context)]
    return make_card(
        ModelCard,
        model,
        **{name: figure for name, figure in figures.items() if name in ModelCard.__dataclass_fields__},
        layers=tuple(
            LayerRow(kind=layer.name, count=n, parameters=sum(op.total_weights for op in layer.ops))
            for layer, n in model.layers
        ),
        parameters=ParameterCounts(total=total, active=active, active_share=active / total, draft=draft_parameters(model)),
        # Some makers publish only one of both counts.
        counted_over_published={
            kind: float(value / model.published[kind])
            for kind, value in (("total", total), ("active", active))
            if model.published.get(kind)
        },
        parts=_sum_by(model, lambda op: op.term, lambda op: op.total_weights),
        weight_bytes_by_format={name: float(round(value)) for name, value in bytes_by_format.items()},
        draft_weight_bytes=draft_bytes(model),
        checkpoint_bytes=model.checkpoint.bytes,
        checkpoint=model.checkpoint.summary,
        cache_bytes=tuple(CacheRow(context=c, bytes=float(cache_bytes(model, c))) for c in contexts),
        flops_per_token=tuple(
            FlopsRow(context=c, decode=float(decode_flops_per_token(model, c)), prefill=float(prefill_flops(model, c)) / c)
            for c in contexts
        ),
        smallest_system=None if smallest is None else _smallest(*smallest),
    )


def _smallest(system: System, chips: int) -> SmallestSystem:
    # The rent is that of the chips in use, not of the whole system.
    rent = float(deployment_rent(chips, system.rent.typical))
    kind, term = system.rent.kind, system.rent.term
    return make_card(SmallestSystem, system, chips=chips, rent=rent, rent_kind=kind, rent_term=term)


def _sizes(model: Model) -> dict[str, Any]:
    """Return the figures of the list of models."""
    return {
        "total_parameters": total_parameters(model), "active_parameters": active_parameters(model),
        "kv_bytes_per_token": kv_bytes_per_token(model), "weight_bytes": weight_bytes(model),
    }  # fmt: skip


def _figures(model: Model, context: int) -> dict[str, Any]:
    """Return the figures of the comparison of models at a context."""
    sizes = _sizes(model)
    return {
        **sizes, "active_share": sizes["active_parameters"] / sizes["total_parameters"], "context": context,
        "growing_kv_bytes_per_token": growing_kv_bytes_per_token(model), "state_bytes_per_sequence": state_bytes(model),
        "cache_bytes_at_context": float(cache_bytes(model, context)),
        "decode_flops_per_token": float(decode_flops_per_token(model, context)),
        "context_of_equal_reads": context_of_equal_reads(model),
    }  # fmt: skip


def compared(models: Iterable[Model], *, context: int) -> Comparison:
    """Compare models in a table.

    Args:
        models: The models.
        context: Context of the figures [tokens].

    Returns:
        One row per model.
    """
    return Comparison(models=tuple(make_card(ComparisonRow, model, **_figures(model, context)) for model in models))


def model_table(like: str = "", catalog: str | None = None) -> ModelTable:
    """Return the models whose name contains a text.

    An unreadable model is listed with the reason.

    Args:
        like: Part of the name, in any case; empty: all models.
        catalog: Folder that is searched before the catalogue; None: none.

    Returns:
        One row per model.
    """
    rows = []
    for name, path in files("models", catalog).items():
        if like.casefold() in name.casefold():
            try:
                model = load_model(str(path))
                rows.append(make_card(ModelRow, model, **_sizes(model), grade=model.source.get("grade", ""), problem=""))
            # One bad file must not hide the rest of the list.
            except InputError as problem:
                rows.append(ModelRow(name=name, problem=str(problem)))
    return ModelTable(models=tuple(rows))
