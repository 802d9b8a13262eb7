"""What steptime understands of a config that is new to it: layers, fields, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from steptime.models.config_coverage import Ignored, described, places, understand
from steptime.models.model import (
    active_parameters,
    draft_parameters,
    kv_bytes_per_token,
    layer_kv_bytes,
    state_bytes,
    total_parameters,
    weight_bytes,
)
from steptime.models.safetensors_header import read_headers
from steptime.result_base import Tabular, columns_by_key, unit
from steptime.units import show


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigLayers:
    """Layers that are alike."""

    layers: str = field(metadata=unit("", "their numbers, from 0; empty: not told"))
    count: int = field(metadata=unit("", "how many there are"))
    description: str = field(metadata=unit("", "heads, cache, feed-forward block, experts"))
    parameters: float = field(metadata=unit("", "of one of them"))
    active: float = field(metadata=unit("", "of one of them that a token uses", key="active_parameters"))
    kv_bytes: float = field(metadata=unit("B/token", "of the cache of one of them", key="kv_bytes_per_token"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ConfigCard(Tabular):
    """What `steptime models --new FILE` shows."""

    SCHEMA: ClassVar[str] = "steptime.config/2"

    name: str = field(metadata=unit("", "of the model"))
    read_as: str = field(metadata=unit("", "kind of model (`model_type`) that it was read as"))
    sure: str = field(metadata=unit("", "exact, likely or guess"))
    why: str = field(metadata=unit("", "what that rests on"))
    alternatives: tuple[str, ...] = field(metadata=unit("", "kinds that it reads as well as, where the kind is a guess"))
    parameters: float = field(metadata=unit("", "all that are stored", key="total_parameters"))
    active: float = field(metadata=unit("", "that one token uses", key="active_parameters"))
    draft: float = field(
        metadata=unit("", "of multi-token-prediction layers, which are not in the total", key="draft_parameters")
    )
    weight_bytes: float = field(metadata=unit("B", "of all stored weights"))
    kv_bytes: float = field(metadata=unit("B/token", "while no window is full", key="kv_bytes_per_token"))
    state_bytes: float = field(metadata=unit("B", "of a sequence, whatever its length"))
    layers: tuple[ConfigLayers, ...] = field(metadata=unit("", "kinds of layers in order of their first"))
    stem: Mapping[str, float] = field(metadata=unit("", "parameters before and after the layers"))
    fields: int = field(metadata=unit("", "of the config"))
    ignored: tuple[Ignored, ...] = field(metadata=unit("", "that nothing asked for"))
    notes: tuple[str, ...] = field(metadata=unit("", "what to mind"))

    @property
    def doubtful(self) -> tuple[Ignored, ...]:
        """Fields that nothing asked for, and that may be architecture."""
        return tuple(field for field in self.ignored if field.doubtful)

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return how it was read, its size and its cache."""
        return f"Config of {self.name}, read as {self.read_as}: {self.sure}", {
            "parameters": f"{show(self.parameters)}, {show(self.active)} for a token",
            "cache": f"{self.kv_bytes:,.0f} B a token",
            "not understood": ", ".join(field.name for field in self.doubtful) or "nothing",
        }

    def columns(self) -> dict[str, Any]:
        """Return a row for each kind of layers."""
        return columns_by_key(ConfigLayers, self.layers)


def config_card(fields: Mapping[str, Any], *, name: str = "", folder: Path | None = None) -> ConfigCard:
    """Return what steptime understands of the fields of a config.json; raise InputError where it reads none of it.

    folder: where files of weights may lie, whose headers tell more.
    """
    understanding = understand(fields, name=name, headers=None if folder is None else read_headers(folder))
    model = understanding.model
    return ConfigCard(
        name=model.name,
        read_as=understanding.read_as,
        sure=understanding.sure,
        why=understanding.why,
        alternatives=understanding.alternatives,
        parameters=total_parameters(model),
        active=active_parameters(model),
        draft=draft_parameters(model),
        weight_bytes=weight_bytes(model),
        kv_bytes=kv_bytes_per_token(model),
        state_bytes=state_bytes(model),
        layers=tuple(
            ConfigLayers(
                layers=places(kind.layer_indices) if kind.layer_indices else "",
                count=kind.count,
                description=described(kind.layer),
                parameters=sum(op.total_weights for op in kind.layer.ops),
                active=sum(op.active_weights for op in kind.layer.ops),
                kv_bytes=layer_kv_bytes(kind.layer),
            )
            for kind in understanding.kinds
        ),
        stem={op.name: op.total_weights for op in model.stem},
        fields=understanding.fields,
        ignored=understanding.ignored,
        notes=model.notes,
    )
