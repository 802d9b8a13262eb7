"""Model, machine and engine of a question, from names or from what was loaded, with other figures of the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from steptime.catalog.hardware_loading import load_system, system_of
from steptime.errors import ConfigError, Impossible, RangeError, UnitError, UnknownName, shown
from steptime.hardware.power_budget import BANDWIDTH, CAPACITY, FLOPS, LEAST_LEFT, LINK, PARTS, flops_left, power_shares
from steptime.hardware.rental_prices import with_rent
from steptime.hardware.system import System
from steptime.hardware.what_if import scale, settable, vary
from steptime.models.model import Model, active_parameters, kv_bytes_per_token, total_parameters
from steptime.models.model_loading import load_model, model_of
from steptime.models.model_variants import KEYS, variant
from steptime.number_checks import positive, share
from steptime.physics.engine import Engine, engine_for, with_imbalance
from steptime.sweep.question_inputs import COUNT, RENT, TEXT, Answer, Input
from steptime.units import parse

FORMATS = ("weights", "experts", "kv")
POWER, SCALE_UP = "power", "scale_up.bandwidth"
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
ARCH, TIMES, WITHIN = "arch.", "times.", "within"
DESIGN = {
    **{
        f"{ARCH}{name}": Input(meaning=f"{name.replace('_', ' ')} of the model, in place of its own", kind=COUNT)
        for name in KEYS
    },
    f"{ARCH}attention": Input(meaning="grouped or latent, in place of the model's own", kind=TEXT),
    f"{ARCH}equal": Input(meaning="total or active: parameters that stay, whatever else changes", kind=TEXT),
    f"{ARCH}by": Input(meaning="the field that makes up for a change of parameters", kind=TEXT),
    f"{TIMES}flops": Input(meaning="times the machine's FLOP/s", broadcasts=True),
    f"{TIMES}bandwidth": Input(meaning="times the bandwidth of its fastest memory", broadcasts=True),
    f"{TIMES}capacity": Input(meaning="times the capacity of it", broadcasts=True),
    f"{TIMES}link": Input(meaning="times the bandwidth of the scale-up links", broadcasts=True),
    WITHIN: Input(
        meaning="power: FLOP/s make room for the other parts of the chip; or shares, as bandwidth=0.3,link=0.1", kind=TEXT
    ),
}
"""Inputs of models and machines that are not built: fields of the architecture, and parts of the chip, traded in a budget."""


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
    arch = {name.removeprefix(ARCH): value for name, value in given.items() if name.startswith(ARCH)}
    if isinstance(given["model"], str):
        found = _varied(given["model"], arch, formats, catalog) if arch else None
        model = found or _model(given["model"], **formats, catalog=catalog)
    else:
        model = model_of(given["model"])
        told = [name for name, of in formats.items() if of] + [f"{ARCH}{name}" for name in arch]
        if told:
            raise RangeError(f"{told[0]} is for a model that is named; load_model and its config take it for others")
    system = read_system(given)
    rent = given.get("rent")
    apart = (ARCH, TIMES)
    changes = {name: value for name, value in given.items() if ("." in name and not name.startswith(apart)) or name == "power"}
    if isinstance(rent, str):
        system = with_rent(system, rent)
    elif rent is not None:
        changes["rent"] = rent
    system = vary(system, changes) if changes else system
    system = _scaled(system, given)
    engine = engine_for(system, given.get("engine"), catalog)
    imbalance = given.get("imbalance")
    return model, system, engine if imbalance is None else with_imbalance(engine, imbalance)


def _varied(name: str, arch: Mapping[str, Any], formats: Mapping[str, str], catalog: str | None) -> Model:
    """Return a variant of a model; one that cannot be is refused alone, and others are asked."""
    _model(name, **formats, catalog=catalog)
    try:
        return variant(name, arch, **formats, catalog=catalog)
    except (ConfigError, UnknownName) as problem:
        raise RangeError(str(problem)) from None


def _scaled(system: System, given: Mapping[str, Any]) -> System:
    """Return a system with so many times the FLOP/s, bandwidth, capacity and links, within a budget where one is given."""
    times = {name.removeprefix(TIMES): value for name, value in given.items() if name.startswith(TIMES)}
    for part, value in times.items():
        positive(f"{TIMES}{part}", value)
    within = given.get(WITHIN)
    if within is not None:
        if FLOPS in times:
            raise RangeError(f"{TIMES}{FLOPS} follows from the other parts within {within}; leave one of the two out")
        left = flops_left(shares_of(_as_it_is(given, within), within), times)
        if np.any(np.asarray(left) < LEAST_LEFT):
            raise Impossible(f"the other parts leave no room for arithmetic within {within}")
        times[FLOPS] = left
    memory = system.chip.hbm.name
    paths = {FLOPS: "chip.peak", BANDWIDTH: f"chip.{memory}.bandwidth", CAPACITY: f"chip.{memory}.capacity", LINK: SCALE_UP}
    for part, value in times.items():
        system = scale(system, paths[part], value)
    return system


MADE = {
    "parameters": Answer(meaning="stored parameters of the model"),
    "active_parameters": Answer(meaning="parameters that a token uses"),
    "kv_bytes_per_token": Answer(meaning="what a token adds to a full cache", unit="B"),
    "flops": Answer(meaning="16-bit rate of a chip, dense", unit="FLOP/s"),
}
"""What models and machines are that were asked about: answers of every question that has them."""


def made(model: Model, system: System, wanted: frozenset[str]) -> dict[str, Any]:
    """Return what a model and a machine are, of what is wanted."""
    told: dict[str, Callable[[], Any]] = {
        "parameters": lambda: total_parameters(model),
        "active_parameters": lambda: active_parameters(model),
        "kv_bytes_per_token": lambda: kv_bytes_per_token(model),
        "flops": lambda: system.chip.peak.get("bf16", np.nan),
    }
    return {name: of() for name, of in told.items() if name in wanted}


def _as_it_is(given: Mapping[str, Any], within: str) -> System:
    """Return the system whose parts share a budget; raise RangeError for figures of them that are set beside it."""
    system = read_system(given)
    memory = system.chip.hbm.name
    traded = (
        f"chip.{memory}.bandwidth",
        f"chip.{memory}.capacity",
        SCALE_UP,
        *(f"chip.peak.{kind}" for kind in system.chip.peak),
    )
    for path in traded:
        if path in given:
            raise RangeError(
                f"{path} is set beside {WITHIN}={within}, which trades parts of the chip as it is: give times.* instead"
            )
    watts = given.get("chip.power")
    if watts is not None and np.ndim(watts):
        raise RangeError(f"chip.power is one number where parts share {WITHIN}={within}")
    return system if watts is None else vary(system, {"chip.power": watts})


def shares_of(system: System, within: str) -> dict[str, float]:
    """Return the share of a budget that each part of a chip takes: of its power, or as told, arithmetic taking the rest.

    Raises RangeError for shares that are none, or that leave nothing for arithmetic.
    """
    if within == POWER:
        return power_shares(system)
    shares = dict.fromkeys(PARTS, 0.0)
    for text in within.split(","):
        name, equals, value = text.strip().partition("=")
        if not equals or name not in PARTS or name == FLOPS:
            others = ", ".join(part for part in PARTS if part != FLOPS)
            raise RangeError(
                f"{WITHIN} is power, or shares of a budget of {others}, as bandwidth=0.3,link=0.1; not {shown(text)}"
            )
        if shares[name]:
            raise RangeError(f"{WITHIN} has {name} twice; keep one of the two")
        try:
            shares[name] = share(f"{WITHIN} {name}", parse(value), whole_too=False)
        except UnitError:
            raise RangeError(f"{WITHIN}: {shown(value)} is no share, such as 0.3") from None
    shares[FLOPS] = 1 - sum(shares.values())
    if shares[FLOPS] <= 0:
        raise RangeError(f"{WITHIN} {within} leaves nothing of the budget for arithmetic")
    return shares


def figures_of(given: Mapping[str, Any]) -> dict[str, Input]:
    """Return the figures of a system that a question can be asked with: rent is an input of its own."""
    units = settable(read_system(given))
    return {
        path: Input(meaning=f"{path} of the machine", unit=of, broadcasts=True) for path, of in units.items() if path != "rent"
    }
