"""A serving engine: its losses against the physics, as a few constants.

The engine `ideal` has no losses. A file in `engines/` contains the constants of a real engine and their sources, so that a
fitted engine is data.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from steptime.catalog.data_files import check_entry_name, find, read_file
from steptime.catalog.hardware_loading import SystemLike, resolve_system
from steptime.errors import DataFileError, RangeError, UnknownName, did_you_mean, expect, short_repr
from steptime.hardware.number_formats import GGUF, SLOWER_LAUNCHES
from steptime.hardware.system import Chip, System
from steptime.models.model import Model, with_gguf_formats
from steptime.models.model_loading import ModelLike, resolve_model
from steptime.number_checks import Number, has_nonzero
from steptime.physics.attention_kernels import load_kernels
from steptime.physics.bias_correction import USUAL, Anchor, Anchors, OperatingPoint, select_anchor
from steptime.physics.compute_dtype import Computed, read_rules
from steptime.physics.engine_parameters import (
    CONSTANTS,
    DESCRIPTIONS,
    GROUP_BY_NAME,
    Experts,
    Kernels,
    Overheads,
    Room,
    Scheduler,
    find_problem,
)
from steptime.physics.engine_releases import SAMPLINGS, TOP_P, Release, read_releases, select_release
from steptime.physics.expert_kernels import ExpertFactor, ExpertKernel, read_factors
from steptime.result_base import Result, in_words
from steptime.units import percent

# Times for which the host launches steps with prompts.
# Generations of NVIDIA chips without programmatic dependent launch.
LAUNCHED_IN_TURN = ("ampere", "ampere-geforce", "ada")
LAUNCHES = ("seconds_per_launched_layer", "seconds_per_launched_kernel", "seconds_per_launched_latent_layer")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Engine(Result):
    """An engine: its constants in groups, the `fit` behind them, and their `source`.

    kernel_engine: Name of the engine whose timed kernels of experts and attention it runs; "" for those of all engines.
    arithmetic: Rules for kernels that compute in another format than the chip's best (`Computed`).
    expert_factors: Factors on the time of routed experts by chips and format, from whole runs.
    releases: Constants of older releases.
    anchor: Correction from your own runs; every step takes longer or shorter by its factor.

    The ideal engine has the defaults of every group: each efficiency is 1, each overhead is 0. Constants may be
    arrays.
    """

    name: str = "ideal"
    title: str = ""
    kernels: Kernels = Kernels()
    overheads: Overheads = Overheads()
    experts: Experts = Experts()
    scheduler: Scheduler = Scheduler()
    room: Room = Room()
    kernel_engine: str = ""
    arithmetic: tuple[Computed, ...] = ()
    expert_factors: tuple[ExpertFactor, ...] = ()
    releases: tuple[Release, ...] = ()
    fit: Mapping[str, Any] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)
    anchor: Anchor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The broadcast shape of the constants of a step: () where all are numbers."""
        groups = (self.kernels, self.overheads, self.experts)
        return np.broadcast_shapes(
            *(np.shape(getattr(group, constant_field.name)) for group in groups for constant_field in fields(group))
        )

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the name of the engine and its efficiencies.

        Returns:
            A title and a table of texts.
        """
        title = f"Engine {self.name}" + (f": {self.title[:120]}" if self.title else "")
        kernels = self.kernels
        shares = {
            "memory": kernels.memory_efficiency,
            "matrices": kernels.compute_efficiency,
            "network": kernels.network_efficiency,
        }
        reached = ", ".join(f"{name} {in_words(share, percent)}" for name, share in shares.items())
        figures = {"reaches of peak": reached}
        if self.fit.get("runs"):
            figures["fitted to"] = f"{self.fit['runs']:,} measured runs"
        return title, figures


IDEAL = Engine(name="ideal", title="no losses: every efficiency is 1, every overhead is 0")
# Default engines by vendor of the chips, each measured on these chips. vLLM itself uses only the CPU of Apple's chips
# (docs.vllm.ai, installation on Apple silicon).
DEFAULTS = {"NVIDIA": "vllm", "Apple": "llama.cpp"}
# Largest factor, or variance of a logarithm, in an engine file.
MOST_FIGURE = 1e6
FILE_KEYS = ("name", "title", "kernel_engine", "source", "constants", "arithmetic", "experts", "releases", "fit")
# Regimes of a time per token: decode, or with prefill of other requests. Regimes of a time to first token: its prompt alone, or
# behind others.
REGIMES_BY_QUANTITY = {"tpot": ("decode", "mixed"), "ttft": ("prompt", "queue")}
# The engine that stands for an unknown engine.
TYPICAL = "typical"


def engine_for(system: System, engine: Engine | str | None = None, catalog: str | os.PathLike[str] | None = None) -> Engine:
    """Return the given engine, or the default engine of the system.

    Args:
        system: The system.
        engine: An engine, its name or its file; None for the default.
        catalog: Folder of further data files.

    Returns:
        The engine.
    """
    return load_engine(DEFAULTS.get(system.chip.vendor, TYPICAL) if engine is None else engine, catalog)


def default_formats(model: Model, engine: Engine) -> Model:
    """Return a model in the default formats of an engine: those of a GGUF file (`gguf_formats`) where it runs such files.

    Args:
        model: A model in the formats of its config.
        engine: The engine.

    Returns:
        The model.
    """
    # An engine that runs GGUF files has a rule for the arithmetic of their formats.
    if all(rule.stored != GGUF for rule in engine.arithmetic):
        return model
    return with_gguf_formats(model)


def model_and_system(model: ModelLike, system: SystemLike, engine: Engine | str | None) -> tuple[Model, System]:
    """Return a model and a system. A model by name has the default formats of the engine; a loaded one is as it is.

    Args:
        model: A model, or what `load_model` accepts.
        system: A system, or what `load_system` accepts.
        engine: An engine, its name or its file; None for the default of the system.

    Returns:
        Model and system.
    """
    loaded_model, loaded_system = resolve_model(model), resolve_system(system)
    if isinstance(model, Model):
        return loaded_model, loaded_system
    return default_formats(loaded_model, engine_for(loaded_system, engine)), loaded_system


def anchored(
    engine: Engine, anchor: Anchors | Anchor | None, *, model: str, system: str, formats: tuple[str, ...] = ()
) -> Engine:
    """Return the engine with the correction for a model and a system.

    Args:
        engine: The engine.
        anchor: Corrections; None keeps those of the engine.
        model: Name of the model.
        system: Name of the system.
        formats: Formats of dense layers and of routed experts; by default unknown.

    Returns:
        The engine, unchanged where there is no correction.

    Raises:
        InputError: The runs belong to another engine.
    """
    correction = engine.anchor if anchor is None else anchor
    if correction is None:
        return engine
    selected = select_anchor(correction, model=model, system=system, engine=engine.name, formats=formats)
    return replace(engine, anchor=selected)


def ttft_factor(engine: Engine, point: OperatingPoint = USUAL) -> Number:
    """Return the factor of an anchor on the TTFT.

    It applies in addition to the factor on the steps.

    Args:
        engine: Engine.
        point: Layout, load and context.

    Returns:
        Factor; 1 without an anchor.
    """
    return 1.0 if engine.anchor is None else engine.anchor.wait_factor(point)


def at_workload(engine: Engine, load: float | None, context: float) -> Engine:
    """Return the engine whose correction takes one load and context where a step has none, and this context everywhere.

    Args:
        engine: The engine.
        load: Sequences per replica; None for that of the runs.
        context: Mean context [tokens].

    Returns:
        The engine, unchanged without an anchor.
    """
    if engine.anchor is None:
        return engine
    return replace(engine, anchor=replace(engine.anchor, usual_load=load, usual_context=context))


def with_launches(engine: Engine, factor: float) -> Engine:
    """Return the engine with a multiple of its times to launch steps with prompts of any size.

    Args:
        engine: The engine.
        factor: Factor; 0 for no limit by launches.

    Returns:
        The engine.
    """
    seconds = {name: factor * getattr(engine.overheads, name) for name in LAUNCHES}
    return replace(engine, overheads=replace(engine.overheads, **seconds, graph_tokens=0.0))


def launch_factor(engine: Engine, chip: Chip) -> Number:
    """Return the factor on the fixed times of kernels and collectives.

    Programmatic dependent launch starts a kernel while the one before it ends. Chips have it since Hopper.
    https://docs.nvidia.com/cuda/cuda-c-programming-guide/ (Programmatic Dependent Launch: compute capability 9.0)

    Args:
        engine: The engine.
        chip: The chip; its software may launch kernels more slowly (`Software.launches`).

    Returns:
        `launch_time` of the engine, 1 on older chips, times the factor of the chip's software.
    """
    early = 1.0 if chip.generation in LAUNCHED_IN_TURN else engine.overheads.launch_time
    return early * chip.reached.get(SLOWER_LAUNCHES, 1.0)


def launches_kernels(engine: Engine) -> bool:
    """Whether the host launches the kernels of steps with prompts one by one."""
    return any(has_nonzero(getattr(engine.overheads, name)) for name in LAUNCHES)


def bare(engine: Engine) -> Engine:
    """Return the engine without the correction from your own runs.

    Args:
        engine: The engine.

    Returns:
        The engine with `anchor` None.
    """
    return replace(engine, anchor=None)


def load_engine(name: str | os.PathLike[str] | Engine, catalog: str | os.PathLike[str] | None = None) -> Engine:
    """Load an engine by name or from a file.

    Args:
        name: "ideal", a file name in engines/, a path to a TOML file, or an Engine, which is returned as it is.
        catalog: Folder of further data files.

    Returns:
        The engine.

    Raises:
        UnknownName: There is no engine of that name. DataFileError: The file is malformed.
    """
    if isinstance(name, Engine):
        return name
    expect("an engine", name, (str, os.PathLike), "a name, a path or an Engine")
    name = os.fspath(name)
    if name.casefold() == "ideal":
        return IDEAL
    path = find("engines", name, catalog)
    return _load(path, path.stat().st_mtime)


@lru_cache(maxsize=64)
def _load(path: Path, _modified: float) -> Engine:
    data = read_file(path)
    constants = data.get("constants", {})
    _check_constants(path, data, constants)
    name = check_entry_name(data["name"], path) if "name" in data else path.stem
    kernel_engine = _read_kernel_engine(path, data, name)
    try:
        rules, factors = read_rules(data.get("arithmetic", [])), read_factors(data.get("experts", []))
        releases = read_releases(data.get("releases", []))
    except ValueError as problem:
        raise DataFileError(path, str(problem)) from None
    engine = Engine(
        name=name,
        title=str(data.get("title", "")),
        kernel_engine=kernel_engine,
        source=data.get("source", {}),
        arithmetic=rules,
        expert_factors=factors,
        releases=releases,
        fit=_read_fit(path, data),
    )
    return with_constants(engine, constants)


def _check_constants(path: Path, data: dict[str, Any], constants: object) -> None:
    """Raise DataFileError where a file is not an engine file or a constant is invalid."""
    unknown = [key for key in data if key not in FILE_KEYS]
    # Users often pass another kind of file; the error then names the kind.
    if unknown or not isinstance(constants, dict) or not constants:
        looks = "; it looks like a model's config.json" if "model_type" in data or "architectures" in data else ""
        looks = looks or (
            "; it looks like a chip, a system or a list of rents" if {"peak", "domains", "quotes"} & set(data) else ""
        )
        problem_words = f"{unknown[0][:40]!r} is not a key of an engine file" if unknown else "has no table [constants]"
        tables = "[source], [constants], [[arithmetic]], [[experts]], [[releases]] and [fit]"
        raise DataFileError(path, f"{problem_words}; an engine file has name, title, kernel_engine, {tables}{looks}")
    for key, value in constants.items():
        if key not in CONSTANTS:
            near = did_you_mean(key, CONSTANTS, max_names=1)
            raise DataFileError(path, f"constants.{key}: no such constant" + (f"; did you mean {near[0]}?" if near else ""))
        problem = find_problem(key, value)
        if problem:
            raise DataFileError(path, f"constants.{key}: {problem}")


def _read_kernel_engine(path: Path, data: dict[str, Any], name: str) -> str:
    """Return the engine whose timed kernels an engine runs: of its file, or else those of its name."""
    timed = sorted({engine for engine, _, _ in load_kernels(ExpertKernel) if engine})
    kernel_engine = data.get("kernel_engine", name if name in timed else "")
    if kernel_engine not in ("", *timed):
        suggested = did_you_mean(kernel_engine, timed, max_names=1) if isinstance(kernel_engine, str) else ()
        hint = f"; did you mean {suggested[0]}?" if suggested else ""
        choices = f"{', '.join(timed)}, or empty for those of all engines"
        raise DataFileError(path, f"kernel_engine: must be {choices}, got {short_repr(kernel_engine)}{hint}")
    return str(kernel_engine)


def _read_fit(path: Path, data: dict[str, Any]) -> dict[str, Any]:
    """Return the fit of an engine file: names, covariance and residual scatter."""
    fit = data.get("fit", {})
    if not fit:
        return {}

    # A range is computed from the covariance, so that a bad matrix must fail here and not as a NaN in a plan.
    names, covariance = fit.get("names"), fit.get("covariance")
    if not isinstance(names, list) or any(not isinstance(name, str) or name not in CONSTANTS for name in names):
        raise DataFileError(path, "fit.names: must be a list of names of constants")
    try:
        matrix = np.array(covariance, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise DataFileError(path, "fit.covariance: must be rows of numbers") from None
    if matrix.shape != (len(names), len(names)):
        raise DataFileError(
            path, f"fit.covariance: must be {len(names)} x {len(names)} numbers, not {' x '.join(map(str, matrix.shape))}"
        )
    if (
        not np.all(np.isfinite(matrix))
        or not np.allclose(matrix, matrix.T, atol=1e-12)
        or np.linalg.eigvalsh(matrix).min() < -1e-9
    ):
        raise DataFileError(path, "fit.covariance: must be symmetric, finite and positive semidefinite")
    _check_fit_tables(path, fit)
    return dict(fit)


def _check_fit_tables(path: Path, fit: dict[str, Any]) -> None:
    """Raise DataFileError where the tables behind a range are invalid."""
    deviations = fit.get("prior", {})
    for name, value in deviations.items() if isinstance(deviations, dict) else [("", deviations)]:
        if name not in CONSTANTS or name in fit["names"]:
            raise DataFileError(path, f"fit.prior.{name}: must be a constant that is not in fit.names")
        if not _is_figure(value) or not value > 0:
            raise DataFileError(path, f"fit.prior.{name}: must be a deviation of a logarithm above 0, not {short_repr(value)}")
    for key in ("interval", "parameter_variance"):
        tables = fit.get(key, {})
        if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
            raise DataFileError(path, f"fit.{key}: must have tables such as [fit.{key}.tpot]")
        for quantity, table in tables.items():
            regimes = REGIMES_BY_QUANTITY.get(quantity)
            if regimes is None:
                names = " or ".join(REGIMES_BY_QUANTITY)
                raise DataFileError(path, f"fit.{key}.{quantity}: unknown quantity {quantity[:40]!r}; use {names}")
            for regime, value in table.items():
                if regime not in regimes:
                    words = f"fit.{key}.{quantity}: unknown regime {regime[:40]!r}; {quantity} has {' and '.join(regimes)}"
                    if regime in chain(*REGIMES_BY_QUANTITY.values()):
                        words += "; if `steptime calibrate` wrote the file, calibrate again, or rename the keys"
                    raise DataFileError(path, words)
                numbers = value if key == "interval" else [value]
                good = isinstance(numbers, list) and all(map(_is_figure, numbers))
                place = f"fit.{key}.{quantity}.{regime}"
                if key == "interval" and not (good and len(numbers) == 2 and 0 < numbers[0] <= numbers[1]):
                    raise DataFileError(path, f"{place}: must be two factors, the lower first, not {short_repr(value)}")
                if not good or min(numbers) < 0:
                    raise DataFileError(path, f"{place}: must be a variance of at least 0, not {short_repr(value)}")

    # [fit.held]: the share of left-out runs inside their 90 % range, and the number of these runs.
    coverage = fit.get("held", {})
    for kind, value in coverage.items() if isinstance(coverage, dict) else [("", coverage)]:
        good = isinstance(value, list) and len(value) == 2 and all(map(_is_figure, value))
        if not good or not 0 <= value[0] <= 1 or value[1] < 1:
            raise DataFileError(path, f"fit.held.{kind}: must be a share and a number of runs, not {short_repr(value)}")
    vendors = fit.get("vendors", [])
    if not isinstance(vendors, list) or not all(isinstance(vendor, str) for vendor in vendors):
        raise DataFileError(path, "fit.vendors: must be a list of chip vendors")


def _is_figure(value: object) -> bool:
    """Whether a value is a number that a factor or a variance can have."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -MOST_FIGURE <= value <= MOST_FIGURE


def constant(engine: Engine, name: str) -> Number:
    """Return one constant of the engine.

    Args:
        engine: The engine.
        name: Name of the constant.

    Returns:
        Its value, in the unit of `DESCRIPTIONS`.

    >>> constant(IDEAL, "memory_efficiency")
    1.0
    """
    value: Number = getattr(getattr(engine, GROUP_BY_NAME[name]), name)
    return value


def with_constants(engine: Engine, values: Mapping[str, Number]) -> Engine:
    """Return the engine with other values of some constants.

    Args:
        engine: The engine.
        values: Values by name, which may be arrays.

    Returns:
        The changed engine.

    >>> constant(with_constants(IDEAL, {"memory_efficiency": 0.8}), "memory_efficiency")
    0.8
    """
    by_group: dict[str, dict[str, Number]] = {}
    for name, value in values.items():
        by_group.setdefault(GROUP_BY_NAME[name], {})[name] = value
    changed: dict[str, Any] = {group: replace(getattr(engine, group), **new) for group, new in by_group.items()}
    return replace(engine, **changed)


def label_values(names: Iterable[str], values: Iterable[float]) -> dict[str, float]:
    """Return fitted values by name, as `with_constants` takes them.

    Args:
        names: Names of constants.
        values: One value per name.

    Returns:
        Values by name.
    """
    return {name: float(value) for name, value in zip(names, values, strict=True)}


def with_imbalance(engine: Engine, imbalance: float) -> Engine:
    """Return the engine with a known expert imbalance, in place of the one from `expert_skew`.

    Args:
        engine: The engine.
        imbalance: Rows on the busiest expert-parallel rank divided by the mean; at least 1.

    Returns:
        The changed engine.

    Raises:
        RangeError: The imbalance is out of range.
    """
    if imbalance == 0 or find_problem("expert_imbalance", imbalance):
        maximum = DESCRIPTIONS["expert_imbalance"]["most"]
        raise RangeError(f"imbalance must be at least 1 and at most {maximum:,.0f}, not {imbalance:g}")
    return with_constants(engine, {"expert_imbalance": imbalance})


def at_release(engine: Engine, version: str) -> Engine:
    """Return an engine with the constants of a release.

    Args:
        engine: The engine.
        version: Version of the release.

    Returns:
        The engine, unchanged for a release of its file.
    """
    release = select_release(engine.releases, version)
    if release is None:
        return engine
    entries = engine.expert_factors
    slower = tuple(replace(entry, factor=entry.factor * release.experts.get(entry.stored, 1.0)) for entry in entries)
    return with_constants(replace(engine, expert_factors=slower), release.constants)


def serving_engine(system: System, engine: Engine | str | None = None, catalog: str | os.PathLike[str] | None = None) -> Engine:
    """Return the engine of an application: requests of an engine by name, or by default, draw tokens with top-p.

    Args:
        system: The system.
        engine: An engine, which is taken as it is; its name or its file; None for the default of the system.
        catalog: Folder of further data files.

    Returns:
        The engine.
    """
    loaded = engine_for(system, engine, catalog)
    return loaded if isinstance(engine, Engine) else with_sampling(loaded, TOP_P)


def with_sampling(engine: Engine, sampling: str) -> Engine:
    """Return an engine whose requests draw their tokens greedily or with top-p.

    Args:
        engine: The engine.
        sampling: One of `SAMPLINGS`.

    Returns:
        The engine.
    """
    if sampling not in SAMPLINGS:
        raise UnknownName("sampling", sampling, SAMPLINGS, f"Known: {', '.join(SAMPLINGS)}.")
    return with_constants(engine, {"top_p_share": 1.0}) if sampling == TOP_P else engine
