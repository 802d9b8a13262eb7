"""Model, machine and engine of a question, from names or from what was loaded, with other figures of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from steptime.catalog.loading import load_system, system_of
from steptime.errors import RangeError
from steptime.machines.rents import with_rent
from steptime.machines.system import System
from steptime.machines.what_if import settable, vary
from steptime.models.loading import load_model, model_of
from steptime.models.model import Model
from steptime.physics.engine import Engine, engine_for, with_imbalance
from steptime.sweeping.inputs import RENT, TEXT, Input

FORMATS = ("weights", "experts", "kv")
SUBJECT = {
    "model": Input(meaning="model: a name, a path or a Hugging Face id", kind=TEXT),
    "system": Input(meaning="system: a name or a path", kind=TEXT),
    "engine": Input(meaning="serving engine; by default vllm on NVIDIA chips, typical on others", kind=TEXT),
    "weights": Input(meaning="format of the weights", kind=TEXT),
    "experts": Input(meaning="format of routed experts", kind=TEXT),
    "kv": Input(meaning="format of the KV cache", kind=TEXT),
    "imbalance": Input(meaning="rows on the busiest expert chip over the mean"),
    "rent": Input(meaning="owned, contract, ondemand, or USD a chip-hour", unit="USD/s", kind=RENT, broadcasts=True),
    "catalog": Input(meaning="a folder of one's own models, systems and engines", kind=TEXT),
}


@lru_cache(maxsize=256)
def _model(name: str, weights: str, experts: str, kv: str, catalog: str | None) -> Model:
    return load_model(name, weights=weights, experts=experts, kv=kv, catalog=catalog)


@lru_cache(maxsize=256)
def _system(name: str, catalog: str | None) -> System:
    return load_system(name, catalog)


def read_system(given: Mapping[str, Any]) -> System:
    """Return the system of a question, without what is changed of it."""
    name, catalog = given["system"], given.get("catalog")
    return _system(name, catalog) if isinstance(name, str) else system_of(name)


def read_subject(given: Mapping[str, Any]) -> tuple[Model, System, Engine]:
    """Return model, system and engine; names with a dot, and power, are figures of the system that are set."""
    catalog = given.get("catalog")
    formats = {name: given.get(name) or "" for name in FORMATS}
    if isinstance(given["model"], str):
        model = _model(given["model"], **formats, catalog=catalog)
    else:
        model = model_of(given["model"])
        told = [name for name, of in formats.items() if of]
        if told:
            raise RangeError(f"{told[0]} is for a model that is named; load_model(..., {told[0]}=...) sets it")
    system = read_system(given)
    rent = given.get("rent")
    changes = {name: value for name, value in given.items() if "." in name or name == "power"}
    if isinstance(rent, str):
        system = with_rent(system, rent)
    elif rent is not None:
        changes["rent"] = rent
    system = vary(system, changes) if changes else system
    engine = engine_for(system, given.get("engine"), catalog)
    imbalance = given.get("imbalance")
    return model, system, engine if imbalance is None else with_imbalance(engine, imbalance)


def figures_of(given: Mapping[str, Any]) -> dict[str, Input]:
    """Return the figures of a system that a question can be asked with: rent is an input of its own."""
    units = settable(read_system(given))
    return {
        path: Input(meaning=f"{path} of the machine", unit=of, broadcasts=True) for path, of in units.items() if path != "rent"
    }
