"""A serving engine: what it loses against the physics, as a few constants.

`ideal` loses nothing. An engine file in `engines/` holds the constants of a real one, with where they came from, so that a
fitted engine is data. Every constant is physical and shared by all models and chips.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping as MappingABC
from dataclasses import dataclass, field, fields, replace
from typing import Any

from steptime import catalog as catalogue
from steptime.errors import DataFileError, RangeError, did_you_mean
from steptime.hardware import Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Constants of an engine. Efficiencies are shares of peak, overheads are seconds.

    memory_efficiency, compute_efficiency, expert_efficiency, attention_efficiency (of its arithmetic),
    attention_memory_efficiency, network_efficiency: share of the peak rate that operators reach. seconds_per_layer,
    seconds_per_collective, seconds_per_step, seconds_per_sequence: fixed costs. roofline_norm: how well arithmetic and
    traffic of one operator overlap.
    activation_traffic: share of activations that go through memory. expert_imbalance: rows on the busiest chip over the mean.
    reserved_bytes: memory per chip that the engine keeps for itself; memory_share: share of the rest that it uses.
    """

    name: str = "ideal"
    title: str = ""
    memory_efficiency: Number = 1.0
    compute_efficiency: Number = 1.0
    expert_efficiency: Number = 1.0
    attention_efficiency: Number = 1.0
    attention_memory_efficiency: Number = 1.0
    network_efficiency: Number = 1.0
    seconds_per_layer: Number = 0.0
    seconds_per_collective: Number = 0.0
    seconds_per_step: Number = 0.0
    seconds_per_sequence: Number = 0.0
    roofline_norm: Number = math.inf
    activation_traffic: Number = 0.0
    expert_imbalance: Number = 1.0
    reserved_bytes: Number = 0.0
    memory_share: Number = 1.0
    source: MappingABC[str, Any] = field(default_factory=dict)


IDEAL = Engine(name="ideal", title="the bound that physics sets: every efficiency 1, every overhead 0")
SHARES = ("memory_share", "activation_traffic")
CONSTANTS = tuple(f.name for f in fields(Engine) if f.name not in ("name", "title", "source"))


def load_engine(name: str | Engine = "ideal", catalog: str | os.PathLike[str] | None = None) -> Engine:
    """Return the engine of a name ("ideal", or a file of engines/), a path to a TOML file, or an Engine as it is."""
    if isinstance(name, Engine):
        return name
    if name.casefold() == "ideal":
        return IDEAL
    path = catalogue.find("engines", name, catalog)
    data = catalogue.read_file(path)
    constants = data.get("constants", {})
    for key, value in constants.items():
        if key not in CONSTANTS:
            near = did_you_mean(key, CONSTANTS, most=1)
            raise DataFileError(path, f"constants.{key}: no such constant" + (f"; did you mean {near[0]}?" if near else ""))
        if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
            raise DataFileError(path, f"constants.{key}: must be a number of at least 0, not {value!r}")
        if key.endswith("efficiency") and value == 0:
            raise DataFileError(path, f"constants.{key}: must be greater than 0")
    return Engine(
        name=str(data.get("name", path.stem)),
        title=str(data.get("title", "")),
        source=data.get("source", {}),
        **constants,
    )


def with_imbalance(engine: Engine, imbalance: float) -> Engine:
    """Return the engine with another expert imbalance, the rows on the busiest chip over the mean (at least 1)."""
    if not imbalance >= 1:
        raise RangeError(f"imbalance must be at least 1, not {imbalance:g}")
    return replace(engine, expert_imbalance=imbalance)
