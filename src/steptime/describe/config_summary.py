"""Summary of an unknown config.json: layers, ignored fields and certainty."""

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

    def columns(self) -> dict[str, Any]:
        """Return one row per group of layers.

        Returns:
            Columns by name, each with one value per group.
        """
        return columns_by_key(ConfigLayers, self.layers)


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
