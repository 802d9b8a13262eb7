"""Model, machine and engine of a question, from names or from what was loaded, with other figures of the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from steptime.catalog.hardware_loading import load_system, resolve_system
from steptime.errors import ConfigError, Impossible, RangeError, UnitError, UnknownName, short_repr
from steptime.hardware.power_budget import BANDWIDTH, CAPACITY, FLOPS, LEAST_LEFT, LINK, PARTS, flops_left, power_shares
from steptime.hardware.rental_prices import with_rent
from steptime.hardware.software_maturity import with_software
from steptime.hardware.system import System
from steptime.hardware.what_if import scale, settable, vary
from steptime.models.model import Model, active_parameters, kv_bytes_per_token, total_parameters
from steptime.models.model_loading import load_model, resolve_model
from steptime.models.model_variants import KEYS, variant
from steptime.number_checks import positive, share
from steptime.physics.engine import Engine, engine_for, with_imbalance
from steptime.questions.declaration import COUNT, TEXT, Answer, Input, count, inputs_from, number, rent, text, texts
from steptime.units import parse

FORMATS = ("weights", "experts", "kv")
POWER, SCALE_UP = "power", "scale_up.bandwidth"
# Headings of the help.
SUBJECT_GROUP, LAYOUT_GROUP, REQUESTS_GROUP = "Model, machine and engine", "Layout", "Requests"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Which model runs on which machine under which engine."""

    model: Any = text(
        MISSING,
        "catalogue name, Hugging Face id, or path: a config.json or its folder, a checkpoint's file, a .gguf",
        positional=True,
    )
    system: Any = text(MISSING, "catalogue name, or path to a TOML file", positional=True)
    engine: Any = text(
        None,
        "serving engine: a name (`steptime engines`), a file of constants, or ideal, the physical bound",
        default_words="vllm on NVIDIA chips, typical on others",
        group=SUBJECT_GROUP,
    )
    weights: str | None = text(
        None,
        "number format of the weights: fp8, nvfp4, mxfp4, int4, bf16, ...",
        default_words="as in the config",
        group=SUBJECT_GROUP,
        metavar="FORMAT",
    )
    experts: str | None = text(
        None, "number format of routed experts", default_words="as the weights", group=SUBJECT_GROUP, metavar="FORMAT"
    )
    kv: str | None = text(
        None,
        "number format of the KV cache: fp8, bf16, ... (fp8_ds_mla: the latent of MLA)",
        default_words="as the engine keeps it",
        group=SUBJECT_GROUP,
        metavar="FORMAT",
    )
    imbalance: Any = number(
        None,
        "token-expert rows on the busiest expert-parallel rank over the mean",
        default_words="the engine's",
        minimum=1.0,
        group=SUBJECT_GROUP,
    )
    software: str | None = text(
        None,
        "date of the engine's software, such as 2025-12-31 (MI300X, MI325X and MI355X only)",
        default_words="the newest measured",
        group=SUBJECT_GROUP,
        metavar="DATE",
    )
    catalog: str | None = text(
        None,
        "folder with chips/, systems/, rents/, models/ or engines/ that is searched before the packaged ones",
        group=SUBJECT_GROUP,
        metavar="FOLDER",
    )


@dataclass(frozen=True, kw_only=True)
class PricedSubject(Subject):
    """A subject whose chips are rented."""

    rent: Any = rent(
        None,
        "rent: owned (cost of ownership), contract, ondemand, or USD per chip-hour such as 2.10",
        unit="USD/s",
        broadcasts=True,
        default_words="the newest known of contract and on demand",
        group=SUBJECT_GROUP,
        metavar="KIND",
    )


@dataclass(frozen=True, kw_only=True)
class ParallelSizes:
    """How one replica is laid over chips."""

    tp: Any = count(
        None, "tensor-parallel size", broadcasts=True, separate=True, group=LAYOUT_GROUP,
        default_words="1; the smallest layout that holds the model if no size is given",
    )  # fmt: skip
    pp: Any = count(None, "pipeline stages", broadcasts=True, separate=True, group=LAYOUT_GROUP, default_words="1")
    dp: Any = count(
        None, "data-parallel ranks (DP attention)", broadcasts=True, separate=True, group=LAYOUT_GROUP, default_words="1"
    )
    ep: Any = count(None, "expert-parallel size", broadcasts=True, separate=True, group=LAYOUT_GROUP, default_words="1")
    cp: Any = count(None, "context-parallel size", broadcasts=True, separate=True, group=LAYOUT_GROUP, default_words="1")


@dataclass(frozen=True, kw_only=True)
class PromptMedia:
    """Images and recordings that every prompt contains in addition to its text."""

    image: Any = texts(
        "an image in each prompt, WIDTHxHEIGHT in pixels such as 1024x768; 1024x768*4 for four; repeatable",
        group=REQUESTS_GROUP,
        metavar="SIZE",
    )
    audio: Any = texts(
        "a recording in each prompt, in seconds such as 30; 30*2 for two; repeatable", group=REQUESTS_GROUP, metavar="SECONDS"
    )


def with_prompt_media(model: Model, inputs: PromptMedia, text_tokens: float) -> tuple[Model, int]:
    """Return the model with the images and recordings of its prompts, and the tokens that each prompt gains.

    Args:
        model: the model as loaded.
        inputs: images and recordings of each prompt.
        text_tokens: tokens of the text of a prompt.
    """
    if not inputs.image and not inputs.audio:
        return model, 0
    from steptime.models.multimodal_inputs import read_media, with_media

    media = read_media(model, inputs.image, inputs.audio)
    return with_media(model, media, text_tokens), sum(item.tokens for item in media)


SIZES = tuple(inputs_from(ParallelSizes))
SUBJECT = inputs_from(PricedSubject)
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


def read_system(values: Mapping[str, Any]) -> System:
    """Return the system of a question, without what is changed of it."""
    name, catalog = values["system"], values.get("catalog")
    return _system(name, catalog) if isinstance(name, str) else resolve_system(name)


def read_subject(values: Mapping[str, Any]) -> tuple[Model, System, Engine]:
    """Return model, system and engine; names with a dot, and power, are figures of the system that are set."""
    catalog = values.get("catalog")
    formats = {name: values.get(name) or "" for name in FORMATS}
    arch = {name.removeprefix(ARCH): value for name, value in values.items() if name.startswith(ARCH)}
    if isinstance(values["model"], str):
        varied_model = _varied(values["model"], arch, formats, catalog) if arch else None
        model = varied_model or _model(values["model"], **formats, catalog=catalog)
    else:
        model = resolve_model(values["model"])
        overrides = [name for name, format_name in formats.items() if format_name] + [f"{ARCH}{name}" for name in arch]
        if overrides:
            raise RangeError(f"{overrides[0]} is for a model that is named; load_model and its config take it for others")
    system = read_machine(values)
    if values.get("software") is not None:
        if values.get("engine") == "ideal":
            raise RangeError("software is of a real engine, and the engine is ideal")
        system = with_software(system, values["software"])
    for name in ("experts", "imbalance"):
        if values.get(name) is not None and not model.routed:
            raise RangeError(f"{name} needs a model with experts; {model.name} has none")
    engine = engine_for(system, values.get("engine"), catalog)
    imbalance = values.get("imbalance")
    return model, system, engine if imbalance is None else with_imbalance(engine, imbalance)


def read_machine(values: Mapping[str, Any]) -> System:
    """Return the system of a question, with the rent and the figures that are set or scaled."""
    system, rate = read_system(values), values.get("rent")
    changes = {
        name: value for name, value in values.items() if ("." in name and not name.startswith((ARCH, TIMES))) or name == "power"
    }
    if isinstance(rate, str):
        system = with_rent(system, rate)
    elif rate is not None:
        changes["rent"] = rate
    return _scaled(vary(system, changes) if changes else system, values)


def _varied(name: str, arch: Mapping[str, Any], formats: Mapping[str, str], catalog: str | None) -> Model:
    """Return a variant of a model; one that cannot be is refused alone, and others are asked."""
    _model(name, **formats, catalog=catalog)
    try:
        return variant(name, arch, **formats, catalog=catalog)
    except (ConfigError, UnknownName) as problem:
        raise RangeError(str(problem)) from None


def _scaled(system: System, values: Mapping[str, Any]) -> System:
    """Return a system with so many times the FLOP/s, bandwidth, capacity and links, within a budget where one is given."""
    times = {name.removeprefix(TIMES): value for name, value in values.items() if name.startswith(TIMES)}
    for part, value in times.items():
        positive(f"{TIMES}{part}", value)
    within = values.get(WITHIN)
    if within is not None:
        if FLOPS in times:
            raise RangeError(f"{TIMES}{FLOPS} follows from the other parts within {within}; leave one of the two out")
        flops_scale = flops_left(budget_shares(_as_it_is(values, within), within), times)
        if np.any(np.asarray(flops_scale) < LEAST_LEFT):
            raise Impossible(f"the other parts leave no room for arithmetic within {within}")
        times[FLOPS] = flops_scale
    memory = system.chip.hbm.name
    paths = {FLOPS: "chip.peak", BANDWIDTH: f"chip.{memory}.bandwidth", CAPACITY: f"chip.{memory}.capacity", LINK: SCALE_UP}
    for part, value in times.items():
        system = scale(system, paths[part], value)
    return system


DESIGN_ANSWERS = {
    "parameters": Answer(meaning="stored parameters of the model"),
    "active_parameters": Answer(meaning="parameters that a token uses"),
    "kv_bytes_per_token": Answer(meaning="what a token adds to a full cache", unit="B"),
    "flops": Answer(meaning="16-bit rate of a chip, dense", unit="FLOP/s"),
}
"""What models and machines are that were asked about: answers of every question that has them."""


def design_answers(model: Model, system: System, answer_names: frozenset[str]) -> dict[str, Any]:
    """Return what a model and a machine are, of what is wanted."""
    computations: dict[str, Callable[[], Any]] = {
        "parameters": lambda: total_parameters(model),
        "active_parameters": lambda: active_parameters(model),
        "kv_bytes_per_token": lambda: kv_bytes_per_token(model),
        "flops": lambda: system.chip.peak.get("bf16", np.nan),
    }
    return {name: compute() for name, compute in computations.items() if name in answer_names}


def _as_it_is(values: Mapping[str, Any], within: str) -> System:
    """Return the system whose parts share a budget; raise RangeError for figures of them that are set beside it."""
    system = read_system(values)
    memory = system.chip.hbm.name
    traded = (
        f"chip.{memory}.bandwidth",
        f"chip.{memory}.capacity",
        SCALE_UP,
        *(f"chip.peak.{kind}" for kind in system.chip.peak),
    )
    for path in traded:
        if path in values:
            raise RangeError(
                f"{path} is set beside {WITHIN}={within}, which trades parts of the chip as it is: give times.* instead"
            )
    watts = values.get("chip.power")
    if watts is not None and np.ndim(watts):
        raise RangeError(f"chip.power is one number where parts share {WITHIN}={within}")
    return system if watts is None else vary(system, {"chip.power": watts})


def budget_shares(system: System, within: str) -> dict[str, float]:
    """Return the share of a budget that each part of a chip takes: of its power, or as told, arithmetic taking the rest.

    Raises RangeError for shares that are none, or that leave nothing for arithmetic.
    """
    if within == POWER:
        return power_shares(system)
    shares = dict.fromkeys(PARTS, 0.0)
    for part in within.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or name not in PARTS or name == FLOPS:
            other_parts = ", ".join(other_part for other_part in PARTS if other_part != FLOPS)
            raise RangeError(
                f"{WITHIN} is power, or shares of a budget of {other_parts}, as bandwidth=0.3,link=0.1; not {short_repr(part)}"
            )
        if shares[name]:
            raise RangeError(f"{WITHIN} has {name} twice; keep one of the two")
        try:
            shares[name] = share(f"{WITHIN} {name}", parse(value), whole_too=False)
        except UnitError:
            raise RangeError(f"{WITHIN}: {short_repr(value)} is no share, such as 0.3") from None
    shares[FLOPS] = 1 - sum(shares.values())
    if shares[FLOPS] <= 0:
        raise RangeError(f"{WITHIN} {within} leaves nothing of the budget for arithmetic")
    return shares


def settable_figures(values: Mapping[str, Any]) -> dict[str, Input]:
    """Return the figures of a system that a question can be asked with: rent is an input of its own."""
    units = settable(read_system(values))
    return {
        path: Input(meaning=f"{path} of the machine", unit=unit, broadcasts=True)
        for path, unit in units.items()
        if path != "rent"
    }
