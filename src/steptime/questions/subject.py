"""Model, machine and engine of a question, loaded from names, with changed figures of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from steptime.catalog.hardware_loading import load_system, resolve_system
from steptime.errors import ConfigError, Impossible, InputError, RangeError, UnitError, UnknownName, short_repr
from steptime.hardware.energy import BANDWIDTH, CAPACITY, FLOPS, LEAST_LEFT, LINK, PARTS, flops_left, power_shares
from steptime.hardware.number_formats import with_software
from steptime.hardware.rental_prices import KINDS, kind_asked, with_rent
from steptime.hardware.system import System
from steptime.hardware.what_if import scale, settable, vary
from steptime.models.draft_models import with_draft_model
from steptime.models.model import Model, active_parameters, kv_bytes_per_token, total_parameters
from steptime.models.model_loading import load_model, resolve_model
from steptime.models.model_variants import KEYS, variant
from steptime.number_checks import at_least_zero, positive, share
from steptime.physics.engine import Engine, default_formats, engine_for, with_imbalance, with_sampling
from steptime.physics.engine_releases import GREEDY, SAMPLINGS
from steptime.physics.layout import Layout
from steptime.physics.lora_adapters import ALL_LINEAR, TERMS, USUAL_RANK, with_adapters
from steptime.questions.declaration import (
    COUNT,
    POWER,
    TEXT,
    WITHIN,
    Answer,
    Input,
    count,
    inputs_from,
    is_figure,
    number,
    read_value,
    rent,
    text,
    texts,
)
from steptime.units import parse

FORMATS = ("weights", "experts", "kv")
SCALE_UP = "scale_up.bandwidth"
# Largest number of LoRA adapters, and their largest rank: far above what engines serve.
MOST_ADAPTERS, LARGEST_RANK = 10_000, 4096
# Headings of the help.
SUBJECT_GROUP, LAYOUT_GROUP, REQUESTS_GROUP = "Model, machine and engine", "Layout", "Requests"


# The folder that every question with a system takes.
catalog_folder = partial(
    text, None, "folder with subfolders chips/, systems/, rents/, models/ or engines/, searched before the packaged catalogue",
    group=SUBJECT_GROUP, metavar="FOLDER",
)  # fmt: skip
_number_format = partial(text, None, group=SUBJECT_GROUP, metavar="FORMAT")
parallel_size = partial(count, None, broadcasts=True, separate=True, group=LAYOUT_GROUP)


@dataclass(frozen=True, kw_only=True)
class ModelOnSystem:
    """Inputs that name a model by its config, and a machine."""

    model: Any = text(MISSING, "model: catalogue name, Hugging Face id, or path to a config.json", positional=True)
    system: Any = text(MISSING, "system: catalogue name, or path to a TOML file", positional=True)


sampling_input = partial(
    text,
    meaning="how tokens are drawn: greedy, as benchmarks do, or top-p, as applications do",
    choices=SAMPLINGS,
    group=SUBJECT_GROUP,
)


@dataclass(frozen=True, kw_only=True)
class Subject(ModelOnSystem):
    """Inputs that name a model, a machine and an engine."""

    model: Any = text(
        MISSING,
        "model: catalogue name, Hugging Face id, or path (a config.json or its folder, a checkpoint file, a .gguf)",
        positional=True,
    )
    engine: Any = text(
        None,
        "serving engine: a name (`steptime engines`), a file of constants, or ideal (no losses)",
        default_words="vllm on NVIDIA chips, llama.cpp on Apple's, typical on others",
        group=SUBJECT_GROUP,
    )
    weights: str | None = _number_format(
        "number format of the weights, such as fp8, nvfp4, mxfp4, int4, bf16, or q4_k_m of GGUF files",
        default_words="as in the config",
    )
    experts: str | None = _number_format("number format of the routed experts", default_words="as the weights")
    kv: str | None = _number_format(
        "number format of the KV cache, such as fp8 or bf16 (fp8_ds_mla: the latent of MLA)", default_words="the engine's"
    )
    imbalance: Any = number(
        None,
        "expert imbalance: rows on the busiest expert-parallel rank, divided by the mean",
        default_words="computed from the engine's expert_skew",
        minimum=1.0,
        group=SUBJECT_GROUP,
    )
    sampling: str = sampling_input(GREEDY)
    software: str | None = text(
        None,
        "date of the engine's software, such as 2025-12-31 (MI300X, MI325X and MI355X only)",
        default_words="the newest measured",
        group=SUBJECT_GROUP,
        metavar="DATE",
    )
    catalog: str | None = catalog_folder()


@dataclass(frozen=True, kw_only=True)
class PricedSubject(Subject):
    """Inputs that name a model, a machine and an engine, with the rent of a chip."""

    rent: Any = rent(broadcasts=True, group=SUBJECT_GROUP)


@dataclass(frozen=True, kw_only=True)
class DraftModel:
    """What drafts the speculative tokens of a model."""

    draft_model: str | None = text(
        None,
        "what drafts speculative tokens: mtp (the model's MTP layers), eagle3 (a head), or a small model with the same "
        "vocabulary (catalogue name, Hugging Face id or path)",
        group=SUBJECT_GROUP,
        metavar="NAME",
        default_words="mtp where the model has such layers",
    )

    def check_drafting(self, drafts: Any, acceptance: Any = None) -> None:
        """Check that what drafts, and an acceptance length, have speculative tokens.

        Args:
            drafts: Number of speculative tokens per step, "auto" or None.
            acceptance: Acceptance length, or None.

        Raises:
            RangeError: There are no speculative tokens.
        """
        if drafts is not None and (isinstance(drafts, str) or np.any(np.asarray(drafts) != 0)):
            return
        for name, value in (("draft_model", self.draft_model), ("acceptance", acceptance)):
            if value is not None:
                got = "none" if drafts is None else "0"
                raise RangeError(f"{name}: needs speculative tokens, got {got}; give drafts too (--drafts 3), or leave it out")


@dataclass(frozen=True, kw_only=True)
class LoraInputs:
    """LoRA adapters that are served with the model."""

    lora_adapters: Any = count(
        0, "LoRA adapters in the memory of the chips, and in a batch (vLLM's --max-loras); 0: none", unit="adapters",
        minimum=0, maximum=MOST_ADAPTERS, group=SUBJECT_GROUP,
    )  # fmt: skip
    lora_rank: Any = count(
        None, "largest rank of a LoRA adapter", maximum=LARGEST_RANK, group=SUBJECT_GROUP,
        default_words=f"{USUAL_RANK} with LoRA adapters",
    )  # fmt: skip
    lora_target: str | None = text(
        None, "matrices that LoRA adapters change: all-linear (attention, dense layers, shared experts) or attention",
        choices=tuple(TERMS), group=SUBJECT_GROUP, default_words=f"{ALL_LINEAR} with LoRA adapters",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ParallelSizes:
    """Parallel sizes of one replica."""

    tp: Any = parallel_size(
        "tensor-parallel size", default_words="1; without any parallel size, the smallest layout that fits the model"
    )
    pp: Any = parallel_size("pipeline-parallel size: number of stages", default_words="1")
    dp: Any = parallel_size("data-parallel size: number of ranks (DP attention)", default_words="1")
    ep: Any = parallel_size("expert-parallel size", default_words="1")
    cp: Any = parallel_size("context-parallel size", default_words="1")

    def given_sizes(self) -> dict[str, int]:
        """Return the parallel sizes that the user gave.

        Returns:
            Sizes by name, without those that have their default.
        """
        return {name: value for name in SIZES if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, kw_only=True)
class PromptMedia:
    """Images and recordings that every prompt contains in addition to its text."""

    image: Any = texts(
        "image in each prompt, WIDTHxHEIGHT in pixels such as 1024x768; 1024x768*4: four images; repeatable",
        group=REQUESTS_GROUP,
        metavar="SIZE",
    )
    audio: Any = texts(
        "recording in each prompt, in seconds such as 30; 30*2: two recordings; repeatable",
        group=REQUESTS_GROUP,
        metavar="SECONDS",
    )


def with_prompt_media(model: Model, inputs: PromptMedia, text_tokens: float) -> tuple[Model, int]:
    """Return the model with the images and recordings of its prompts.

    Args:
        model: The model as loaded.
        inputs: Images and recordings of each prompt.
        text_tokens: Tokens of the text of a prompt.

    Returns:
        The model, and the tokens that each prompt gains.
    """
    if not inputs.image and not inputs.audio:
        return model, 0
    from steptime.models.blocks_vision import read_media, with_media

    media = read_media(model, inputs.image, inputs.audio)
    return with_media(model, media, text_tokens), sum(item.tokens for item in media)


def with_lora_adapters(model: Model, values: Mapping[str, Any], engine: Engine) -> Model:
    """Return the model with the LoRA adapters of a question's inputs.

    Args:
        model: The model.
        values: Inputs by name.
        engine: The engine, which may round the rank up.

    Returns:
        The model; unchanged without adapters.

    Raises:
        RangeError: A rank or matrices are given without adapters, or the model has other adapters.
    """
    declared = inputs_from(LoraInputs)
    figures = {name: read_value(name, values[name], declared[name]) for name in declared if values.get(name) is not None}
    if not (slots := figures.pop("lora_adapters", 0)):
        for name, value in figures.items():
            raise RangeError(
                f"{name}: needs LoRA adapters, got {short_repr(value)} with none; give lora_adapters too (--lora-adapters 8), "
                "or leave it out"
            )
        return model
    # A question passes its loaded model to another question, with the same inputs.
    adapted = with_adapters(
        replace(model, adapters=None), int(slots), rank=int(figures.get("lora_rank", USUAL_RANK)),
        target=figures.get("lora_target", ALL_LINEAR), engine_name=engine.kernel_engine or engine.name,
    )  # fmt: skip
    if model.adapters not in (None, adapted.adapters):
        raise RangeError("lora_adapters: the model already has other adapters; leave one of the two out")
    return adapted if model.adapters is None else model


# Names that other questions share: parallel sizes, inputs of the subject, and prefixes of inputs of a design.
SIZES = tuple(inputs_from(ParallelSizes))
SUBJECT = inputs_from(PricedSubject)
ARCH, TIMES = "arch.", "times."
# Inputs of models and machines that are not built: fields of the architecture, and parts of the chip traded within a budget.
DESIGN = {
    **{
        f"{ARCH}{name}": Input(meaning=f"{name.replace('_', ' ')} of the model, in place of the config's", kind=COUNT)
        for name in KEYS
    },
    f"{ARCH}attention": Input(meaning="kind of attention: grouped or latent, in place of the config's", kind=TEXT),
    f"{ARCH}equal": Input(meaning="number of parameters to keep constant: total or active", kind=TEXT),
    f"{ARCH}by": Input(meaning="field that compensates a change of the number of parameters", kind=TEXT),
    **{
        f"{TIMES}{part}": Input(meaning=f"factor on the {words}", broadcasts=True)
        for part, words in (
            (FLOPS, "FLOP/s of the chip"),
            (BANDWIDTH, "bandwidth of the chip's fastest memory"),
            (CAPACITY, "capacity of the chip's fastest memory"),
            (LINK, "bandwidth of the scale-up links"),
        )
    },
    WITHIN: Input(
        meaning="budget of the chip: power, or shares such as bandwidth=0.3,link=0.1; the FLOP/s take the rest", kind=TEXT
    ),
}


# A sweep asks for the same names many times.
_model = lru_cache(maxsize=256)(load_model)
_with_drafter = lru_cache(maxsize=256)(with_draft_model)
_system = lru_cache(maxsize=256)(load_system)


def read_system(values: Mapping[str, Any]) -> System:
    """Return the system of a question, without the changes to its figures.

    Args:
        values: Inputs by name; `system` is a name or a system.

    Returns:
        The system.
    """
    name, catalog = values["system"], values.get("catalog")
    return _system(name, catalog) if isinstance(name, str) else resolve_system(name)


def read_subject(values: Mapping[str, Any], sampling: str = GREEDY) -> tuple[Model, System, Engine]:
    """Return the model, system and engine of a question.

    Names with a dot, and `power`, are figures of the system that the user sets.

    Args:
        values: Inputs by name.
        sampling: How tokens are drawn where the inputs do not say it.

    Returns:
        Model, system and engine.

    Raises:
        InputError: If what drafts does not suit the model.
        RangeError: If a format, an architecture field or another input does not suit the model or the engine.
    """
    catalog, model = values.get("catalog"), read_model(values)
    if values.get("draft_model") is not None:
        model = _with_drafter(model, values["draft_model"], catalog)
    system = read_machine(values)
    if values.get("software") is not None:
        if values.get("engine") == "ideal":
            raise RangeError("software: has no meaning with engine ideal; leave one of the two out")
        system = with_software(system, values["software"])
    for name in ("experts", "imbalance"):
        if values.get(name) is not None and not model.routed:
            raise RangeError(f"{name}: needs a model with experts; {model.name} has none")
    engine = with_sampling(engine_for(system, values.get("engine"), catalog), values.get("sampling") or sampling)
    if isinstance(values["model"], str) and not values.get("weights"):
        model = default_formats(model, engine)
    model = with_lora_adapters(model, values, engine)
    imbalance = values.get("imbalance")
    return model, system, engine if imbalance is None else with_imbalance(engine, imbalance)


def read_model(values: Mapping[str, Any]) -> Model:
    """Return the model of a question, with its number formats and its changed fields of the architecture.

    Args:
        values: Inputs by name; `model` is a name or a model.

    Returns:
        The model.

    Raises:
        RangeError: If a format or a field does not suit the model, or the model is loaded already.
    """
    # Names are loaded once per process: a sweep asks for the same model many times.
    catalog, formats = values.get("catalog"), {name: values.get(name) or "" for name in FORMATS}
    arch = {name.removeprefix(ARCH): value for name, value in values.items() if name.startswith(ARCH)}
    if isinstance(values["model"], str):
        varied_model = _varied(values["model"], arch, formats, catalog) if arch else None
        return varied_model or _model(values["model"], **formats, catalog=catalog)
    overrides = [name for name, format_name in formats.items() if format_name] + [f"{ARCH}{name}" for name in arch]
    if overrides:
        raise RangeError(f"{overrides[0]}: needs a model name, got a loaded model; give it to load_model, or change the config")
    return resolve_model(values["model"])


def check_imbalance(values: Mapping[str, Any], layout: Layout) -> None:
    """Check that a layout divides its experts over ranks, where the user gives their imbalance.

    Args:
        values: Values of inputs by name.
        layout: Layout of the replica.

    Raises:
        RangeError: An imbalance is given, and each rank has all experts.
    """
    if values.get("imbalance") is not None and not np.any(np.asarray(layout.ep) > 1):
        raise RangeError(
            f"imbalance: has no effect without expert parallelism, got {short_repr(values['imbalance'])} with ep 1; give ep "
            "too (--ep), or leave it out"
        )


def read_machine(values: Mapping[str, Any]) -> System:
    """Return the system of a question with its rent and its changed figures.

    Args:
        values: Inputs by name; figures of the machine by path.

    Returns:
        The system.
    """
    system, rate = read_system(values), values.get("rent")
    changes = {
        name: value
        for name, value in values.items()
        if is_figure(name) and name != WITHIN and not name.startswith((ARCH, TIMES))
    }
    # A text names a kind of rent; a number is a rate, and one of the figures that may be an array.
    if isinstance(rate, str):
        system = with_rent(system, rate)
    elif rate is not None:
        changes["rent"] = rate
    system = vary(system, changes) if changes else system
    times = {name.removeprefix(TIMES): value for name, value in values.items() if name.startswith(TIMES)}
    return _scaled(system, times, values) if times or values.get(WITHIN) is not None else system


def read_prefill_system(values: Mapping[str, Any]) -> System | None:
    """Return the system of a prefill pool on another system, with its rent.

    A kind of rent of the first system also holds for this one; a rate, and changed figures, do not.

    Args:
        values: Inputs by name.

    Returns:
        The system; None where both pools are on one system.
    """
    name, rate = values.get("prefill_system"), values.get("prefill_rent")
    if name is None:
        if rate is not None:
            raise RangeError("prefill_rent: needs another system for prefill; give prefill_system too (--prefill-system)")
        return None
    try:
        system = _system(name, values.get("catalog")) if isinstance(name, str) else resolve_system(name)
    except UnknownName as problem:
        raise InputError(f"prefill_system: {problem}") from None
    if values.get("software") is not None and system.chip.software:
        system = with_software(system, values["software"])
    kind = values.get("rent")
    if rate is None and isinstance(kind, str) and kind_asked(kind) in KINDS:
        rate = kind
    try:
        if isinstance(rate, str):
            return with_rent(system, rate)
        return system if rate is None else vary(system, {"rent": rate})
    except InputError as problem:
        name = "rent" if values.get("prefill_rent") is None else "prefill_rent"
        raise RangeError(f"{name}: {str(problem).removeprefix('rent: ')}") from None


def _varied(name: str, arch: Mapping[str, Any], formats: Mapping[str, str], catalog: str | None) -> Model:
    """Return a variant of a model; an impossible variant refuses one point of a sweep."""
    # An error of the model itself ends the sweep; errors of the variant below refuse one point.
    _model(name, **formats, catalog=catalog)
    try:
        return variant(name, arch, **formats, catalog=catalog)
    except (ConfigError, UnknownName) as problem:
        raise RangeError(str(problem)) from None


def _scaled(system: System, times: dict[str, Any], values: Mapping[str, Any]) -> System:
    """Return a system with scaled FLOP/s, bandwidth, capacity and links."""
    for part, value in times.items():
        positive(f"{TIMES}{part}", value)
    within = values.get(WITHIN)
    if within is not None:
        shares = budget_shares(_as_it_is(values, within), within)
        if FLOPS in times:
            raise RangeError(f"{TIMES}{FLOPS}: follows from the other parts within {within}; leave one of the two out")

        # Within a budget, arithmetic takes the rest that memory and links leave.
        flops_scale = flops_left(shares, times)
        if np.any(np.asarray(flops_scale) < LEAST_LEFT):
            raise Impossible(
                f"{WITHIN}: the other parts use the whole budget of {within}, and no FLOP/s remain; scale them less"
            )
        times[FLOPS] = flops_scale
    memory = system.chip.hbm.name
    paths = {FLOPS: "chip.peak", BANDWIDTH: f"chip.{memory}.bandwidth", CAPACITY: f"chip.{memory}.capacity", LINK: SCALE_UP}
    for part, value in times.items():
        system = scale(system, paths[part], value)
    return system


# Figures of the model and the machine, which are answers of `step`, `plan` and `train`.
DESIGN_ANSWERS = {
    "parameters": Answer(meaning="stored parameters of the model"),
    "active_parameters": Answer(meaning="parameters that a token uses"),
    "kv_bytes_per_token": Answer(meaning="KV cache per token", unit="B"),
    "flops": Answer(meaning="dense bf16 rate of a chip", unit="FLOP/s"),
}


def design_answers(model: Model, system: System, answer_names: frozenset[str]) -> dict[str, Any]:
    """Return figures of a model and a machine.

    Args:
        model: The model.
        system: The machine.
        answer_names: Names of the answers.

    Returns:
        Those of `DESIGN_ANSWERS` that are in `answer_names`.
    """
    of_model = {
        "parameters": total_parameters,
        "active_parameters": active_parameters,
        "kv_bytes_per_token": kv_bytes_per_token,
    }
    answers = {name: function(model) for name, function in of_model.items() if name in answer_names}
    return answers | ({"flops": system.chip.peak.get("bf16", np.nan)} if "flops" in answer_names else {})


def _as_it_is(values: Mapping[str, Any], within: str) -> System:
    """Return the system whose parts share a budget, without changed figures of parts."""
    system = read_system(values)
    memory = system.chip.hbm.name

    # A budget trades these figures; a second value for one of them would contradict it.
    traded = (
        f"chip.{memory}.bandwidth",
        f"chip.{memory}.capacity",
        SCALE_UP,
        *(f"chip.peak.{kind}" for kind in system.chip.peak),
    )
    for path in traded:
        if path in values:
            raise RangeError(
                f"{path}: cannot be set together with {WITHIN}={within}, which trades the present parts; give times.* instead"
            )
    watts = values.get("chip.power")
    if watts is not None and np.ndim(watts):
        raise RangeError(f"chip.power: must be one number with {WITHIN}={within}, got an array")
    return system if watts is None else vary(system, {"chip.power": watts})


def budget_shares(system: System, within: str) -> dict[str, float]:
    """Return the share of a budget that each part of a chip takes.

    Args:
        system: The machine.
        within: "power" for the shares of the chip's power, or shares such as "bandwidth=0.3,link=0.1".

    Returns:
        Shares by part; arithmetic takes the rest.

    Raises:
        RangeError: If a share is not a share, or nothing is left for arithmetic.
    """
    if within == POWER:
        return power_shares(system)
    shares = dict.fromkeys(PARTS, 0.0)

    # Shares that are not given stay 0: these parts take nothing of the budget.
    for part in within.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or name not in PARTS or name == FLOPS:
            other_parts = ", ".join(other_part for other_part in PARTS if other_part != FLOPS)
            raise RangeError(
                f"{WITHIN}: must be power, or shares of {other_parts} such as bandwidth=0.3,link=0.1, got {short_repr(part)}"
            )
        if shares[name]:
            raise RangeError(f"{WITHIN}: {name} is given twice; keep one of the two")
        try:
            shares[name] = share(f"{WITHIN} {name}", parse(value), whole_too=False)
        except UnitError:
            raise RangeError(f"{WITHIN}: must have shares such as 0.3, got {short_repr(value)}") from None
    shares[FLOPS] = 1 - sum(shares.values())
    if shares[FLOPS] <= 0:
        raise RangeError(f"{WITHIN}: the shares leave nothing for arithmetic, got {within}; give a sum below 1")
    return shares


def settable_figures(values: Mapping[str, Any]) -> dict[str, Input]:
    """Return the figures of a system that are inputs of a question.

    Args:
        values: Inputs by name, with a system.

    Returns:
        Inputs by path. The rent is an input with its own declaration.
    """
    units = settable(read_system(values))
    return {
        path: Input(meaning=f"{path} of the machine", unit=unit, broadcasts=True)
        for path, unit in units.items()
        if path != "rent"
    }


# Default means of prompts and outputs of all questions with requests, in tokens.
USUAL_INPUT, USUAL_OUTPUT = 1024, 1024


def read_tier_capacities(words: str, system: System) -> dict[str, float]:
    """Return the capacities of memory tiers in a text.

    Args:
        words: Text such as "hbm=20GB,host=1TB".
        system: System, which has the tiers.

    Returns:
        Bytes by tier.

    Raises:
        RangeError: If a tier has no capacity, is given twice, or is not one of the system.
        UnitError: If a capacity is not a number of bytes.
    """
    names, tiers = [tier.name for tier in (system.chip.hbm, *system.tiers)], dict[str, float]()
    for part in words.split(","):
        name, equals, size = part.strip().partition("=")
        if not equals:
            raise RangeError(f"prefix_cache: must be TIER=CAPACITY, such as host=1TB, got {short_repr(part)}")
        if name in tiers:
            raise RangeError(f"prefix_cache: {name} is given twice; keep one")
        if name not in names:
            unknown = UnknownName("memory tier", name, names, f"Known: {', '.join(names)}.")
            raise RangeError(f"prefix_cache: {unknown}")
        try:
            capacity = parse(size, "B")
        except UnitError as problem:
            raise UnitError(f"prefix_cache: {name}: {problem}") from None
        tiers[name] = at_least_zero(f"prefix_cache: {name}", capacity, "B")
    return tiers
