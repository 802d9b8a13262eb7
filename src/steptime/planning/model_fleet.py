r"""Fleet of models: several models on one budget of chips, as a mixed-integer program over plans.

Each model $m$ needs $R_m$ requests per second within its limits. An option $o$ is a deployment of one model on $k_o$
chips of one system, found by `plan`. It serves $r_o$ requests per second for $c_o$ USD per hour. The program chooses
whole numbers $n_o$ of deployments:

$$ \min \sum_o c_o n_o, \qquad \sum_{o \in m} \min(1, r_o / R_m) n_o \ge 1, \qquad \sum_{o \in s} k_o n_o \le K_s, \qquad
   \sum_o c_o n_o \le B $$

$K_s$ is the number of chips of each system, and $B$ the budget. A deployment that serves more than the rate counts as the
rate. This keeps the whole-number solutions and a coefficient of 1: the solver's tolerance cannot serve a small rate with no
deployment. If no fleet is feasible, a second program finds the largest share of all rates that fits. This share is the
reason. Deployments have a power of two of chips, so that they fill hosts.

References:
    Huangfu and Hall, "Parallelizing the dual revised simplex method", 2018: HiGHS, in `scipy.optimize.milp`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from steptime.catalog.data_files import read_file
from steptime.catalog.hardware_loading import load_system, with_rent
from steptime.errors import DataFileError, InputError, RangeError, did_you_mean, install_hint, short_repr
from steptime.hardware.rental_prices import has_rent
from steptime.models.model_loading import load_model
from steptime.number_checks import Array, positive
from steptime.physics.engine import default_formats
from steptime.planning.planner import plan
from steptime.result_base import Tabular, unit
from steptime.units import HOUR, counted, parse
from steptime.workload.workload import Slo, Workload

MOST_MODELS, MOST_SYSTEMS, MOST_CHIPS, MOST_RATE = 100, 50, 1_000_000, 1e6
# Sizes of a deployment beyond the smallest that meets the limits, each twice the one before.
LARGER: Final = 1
# A larger deployment is an option if each of its chips serves this factor more.
GAIN: Final = 1.02
# Longest time of the solver [s], and the gap to the optimum at which it stops.
PATIENCE, GAP = 60.0, 1e-6
MODEL_KEYS: Final = ("name", "rate", "input", "output", "cached", "speed", "ttft", "weights", "experts", "kv", "systems")
SYSTEM_KEYS: Final = ("name", "chips", "rent", "engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetModel:
    """A model of a fleet: its rate of requests, their lengths, and their limits."""

    name: str = field(metadata=unit("", "name of the model"))
    rate: float = field(metadata=unit("requests/s", "requests to serve", key="rate_requests_per_s"))
    workload: Workload = field(metadata=unit("", "the requests"))
    slo: Slo = field(metadata=unit("", "the limits"))
    weights: str = field(default="", metadata=unit("", "number format of the weights; empty: the config's"))
    experts: str = field(default="", metadata=unit("", "number format of the routed experts; empty: that of weights"))
    kv: str = field(default="", metadata=unit("", "number format of the KV cache; empty: the engine's"))
    systems: tuple[str, ...] = field(default=(), metadata=unit("", "systems on which the model may run; empty: all"))


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSystem:
    """A system of a fleet: how many chips there are, and their rent."""

    name: str = field(metadata=unit("", "name of the system"))
    chips: int = field(metadata=unit("", "chips of this kind"))
    usd_per_chip_hour: float = field(metadata=unit("USD/h", "rent of a chip", key="usd_per_chip_hour"))
    engine: str = field(default="", metadata=unit("", "name of the engine; empty: the system's"))


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOption:
    """One deployment of a model on chips of one system."""

    model: int = field(metadata=unit("", "position of the model"))
    system: int = field(metadata=unit("", "position of the system"))
    chips: int = field(metadata=unit("", "chips of the deployment"))
    rate: float = field(metadata=unit("requests/s", "requests that it serves within the limits", key="rate_requests_per_s"))
    usd_per_hour: float = field(metadata=unit("USD/h", "rent of its chips", key="usd_per_hour"))
    layout: str = field(default="", metadata=unit("", "layout in words"))


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetChoice:
    """Deployments of one kind in a fleet."""

    model: str = field(metadata=unit("", "name of the model"))
    system: str = field(metadata=unit("", "name of the system"))
    deployments: int = field(metadata=unit("", "equal deployments"))
    chips: int = field(metadata=unit("", "chips of all of them"))
    layout: str = field(metadata=unit("", "layout of each, in words"))
    rate: float = field(metadata=unit("requests/s", "requests that they can serve", key="rate_requests_per_s"))
    usd_per_hour: float = field(metadata=unit("USD/h", "rent of their chips", key="usd_per_hour"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModelFleet(Tabular):
    """The cheapest deployments that serve all models, or the reason why the chips do not suffice."""

    SCHEMA: ClassVar[str] = "steptime.fleet/1"

    feasible: bool = field(metadata=unit("", "whether the chips and the budget serve all rates within the limits"))
    reason: str = field(default="", metadata=unit("", "why they do not"))
    usd_per_hour: float = field(default=math.nan, metadata=unit("USD/h", "rent of all chips in use", key="usd_per_hour"))
    budget: float = field(default=math.inf, metadata=unit("USD/h", "limit on the rent; null: none", key="budget_usd_per_hour"))
    choices: tuple[FleetChoice, ...] = field(default=(), metadata=unit("", "deployments by model"))
    models: tuple[FleetModel, ...] = field(metadata=unit("", "the models"))
    systems: tuple[FleetSystem, ...] = field(metadata=unit("", "the systems"))
    chips_in_use: tuple[int, ...] = field(default=(), metadata=unit("", "chips in use, by system"))
    possible_share: float = field(
        default=math.nan, metadata=unit("", "largest share of all rates that the chips and the budget serve, at most 1")
    )
    options: int = field(default=0, metadata=unit("", "deployments that the program chose from"))
    plan_seconds: float = field(default=0.0, metadata=unit("s", "time of the plans", key="plan_s"))
    solve_seconds: float = field(default=0.0, metadata=unit("s", "time of the program", key="solve_s"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the rent or the reason, and the chips of each system.

        Returns:
            A title and a table of texts.
        """
        if not self.feasible:
            return f"No fleet for {counted(len(self.models), 'model')}: {self.reason}", {}
        chips = sum(self.chips_in_use)
        used = zip(self.systems, self.chips_in_use, strict=True)
        return (
            f"{counted(len(self.models), 'model')} on {counted(chips, 'chip')} for ${self.usd_per_hour:,.2f} per hour",
            {system.name: f"{count:,} of {system.chips:,} chips" for system, count in used},
        )

    def columns(self) -> dict[str, Any]:
        """Return one row per kind of deployment.

        Returns:
            Columns by name.
        """
        names = ("model", "system", "deployments", "chips", "layout", "rate", "usd_per_hour")
        keys = {"rate": "rate_requests_per_s"}
        return {keys.get(name, name): [getattr(choice, name) for choice in self.choices] for name in names}


def read_fleet(path: str | Path) -> tuple[tuple[FleetModel, ...], tuple[FleetSystem, ...], float]:
    """Read the file of a fleet: TOML, JSON or YAML with `models`, `systems` and perhaps `budget`.

    Args:
        path: Path of the file.

    Returns:
        Models, systems, and the budget in USD per hour (infinite without one).

    Raises:
        DataFileError: The file is malformed; the message names the place and the fix.
    """
    path = Path(path)
    data = _read_yaml(path) if path.suffix.lower() in (".yaml", ".yml") else read_file(path)
    if not isinstance(data, Mapping):
        raise DataFileError(path, "must be a table with models and systems")
    _refuse_unknown(path, "", data, ("models", "systems", "budget"))
    models = tuple(_read_model(path, f"models.{i}", entry) for i, entry in _entries(path, data, "models", MOST_MODELS))
    systems = tuple(_read_system(path, f"systems.{i}", entry) for i, entry in _entries(path, data, "systems", MOST_SYSTEMS))
    names = [system.name for system in systems]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise DataFileError(path, f"systems: {repeated[0]} is there twice; add up its chips")
    for model in models:
        for name in model.systems:
            if name not in names:
                raise DataFileError(path, f"models: {model.name}: systems: {short_repr(name)} is not one of {', '.join(names)}")
    budget = math.inf if data.get("budget") is None else _number(path, "budget", data["budget"], 1e12)
    return models, systems, budget


def _read_yaml(path: Path) -> Any:
    try:
        import yaml
    except ImportError:
        raise DataFileError(path, "YAML needs PyYAML: pip install pyyaml; or write the file as TOML") from None
    try:
        text = path.read_text(encoding="utf-8")
        if len(text) > 1_000_000:
            raise DataFileError(path, "is larger than 1 MB")
        return yaml.safe_load(text)
    except OSError as problem:
        raise DataFileError(path, problem.strerror or str(problem)) from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as problem:
        raise DataFileError(path, f"is not YAML: {' '.join(str(problem).split())[:200]}") from None


def _entries(path: Path, data: Mapping[str, Any], name: str, maximum: int) -> list[tuple[int, Mapping[str, Any]]]:
    entries = data.get(name)
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, Mapping) for entry in entries):
        raise DataFileError(path, f"{name}: must be a list of tables, [[{name}]], with at least one")
    if len(entries) > maximum:
        raise DataFileError(path, f"{name}: at most {maximum}, got {len(entries)}")
    return list(enumerate(entries))


def _refuse_unknown(path: Path, place: str, entry: Mapping[str, Any], keys: Sequence[str]) -> None:
    unknown = [str(key) for key in entry if key not in keys]
    if unknown:
        near = did_you_mean(unknown[0], keys, max_names=1)
        hint = f"did you mean {near[0]}?" if near else f"use {', '.join(keys)}"
        raise DataFileError(path, f"{place + '.' if place else ''}{unknown[0][:60]}: unknown key; {hint}")


def _number(path: Path, place: str, value: Any, maximum: float, kind: str = "") -> float:
    try:
        number = parse(value, kind) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise RangeError(f"must be a number, got {short_repr(value)}")
        positive(place, number, maximum=maximum)
    except InputError as problem:
        words = str(problem)
        raise DataFileError(path, words if words.startswith(place) else f"{place}: {words}") from None
    return float(number)


def _text(path: Path, place: str, entry: Mapping[str, Any], key: str, *, required: bool = False) -> str:
    value = entry.get(key, "")
    if not isinstance(value, str) or (required and not value):
        raise DataFileError(path, f"{place}.{key}: must be a text, got {short_repr(value)}")
    return value


def _read_model(path: Path, place: str, entry: Mapping[str, Any]) -> FleetModel:
    _refuse_unknown(path, place, entry, MODEL_KEYS)
    name = _text(path, place, entry, "name", required=True)
    missing = [key for key in ("rate", "input", "output") if key not in entry]
    if missing:
        raise DataFileError(path, f"{place}.{missing[0]}: is missing; {name} needs rate, input and output")
    sizes = {key: _number(path, f"{place}.{key}", entry[key], 1e9) for key in ("input", "output")}
    limits = {key: _number(path, f"{place}.{key}", entry[key], 1e9) for key in ("speed", "ttft") if key in entry}
    systems = entry.get("systems", [])
    if not isinstance(systems, list) or not all(isinstance(system, str) for system in systems):
        raise DataFileError(path, f"{place}.systems: must be a list of names, got {short_repr(systems)}")
    try:
        workload = Workload(input_tokens=sizes["input"], output_tokens=sizes["output"], cached_share=entry.get("cached", 0.0))
        slo = Slo(ttft=limits.get("ttft", math.inf), speed=limits.get("speed"))
    except InputError as problem:
        raise DataFileError(path, f"{place}: {problem}") from None
    formats = {key: _text(path, place, entry, key) for key in ("weights", "experts", "kv")}
    rate = _number(path, f"{place}.rate", entry["rate"], MOST_RATE)
    try:
        load_model(name, weights=formats["weights"], experts=formats["experts"], kv=formats["kv"])
    except InputError as problem:
        raise DataFileError(path, f"{place}: {problem}") from None
    return FleetModel(name=name, rate=rate, workload=workload, slo=slo, systems=tuple(systems), **formats)


def _read_system(path: Path, place: str, entry: Mapping[str, Any]) -> FleetSystem:
    _refuse_unknown(path, place, entry, SYSTEM_KEYS)
    name = _text(path, place, entry, "name", required=True)
    chips = entry.get("chips")
    if isinstance(chips, bool) or not isinstance(chips, int) or not 1 <= chips <= MOST_CHIPS:
        raise DataFileError(path, f"{place}.chips: must be a whole number from 1 to {MOST_CHIPS:,}, got {short_repr(chips)}")
    try:
        system = load_system(name)
        system = with_rent(system, entry["rent"]) if "rent" in entry else system
    except InputError as problem:
        raise DataFileError(path, f"{place}: {problem}") from None
    if not has_rent(system.rent):
        raise DataFileError(path, f'{place}.rent: is not known for {name}; give it, such as rent = "2.10"')
    rent = float(system.rent.typical * HOUR)
    return FleetSystem(name=system.name, chips=chips, usd_per_chip_hour=rent, engine=_text(path, place, entry, "engine"))


def fleet_options(
    models: Sequence[FleetModel], systems: Sequence[FleetSystem]
) -> tuple[list[FleetOption], dict[tuple[int, int], str]]:
    """Return deployments of each model on each system, and why a model has none on a system.

    Sizes are powers of two: the smallest within the limits, and larger ones whose chips serve more.

    Args:
        models: The models.
        systems: The systems.

    Returns:
        Options, and reasons by position of model and system.
    """
    options: list[FleetOption] = []
    reasons: dict[tuple[int, int], str] = {}
    machines = [load_system(system.name) for system in systems]
    for m, model in enumerate(models):
        config_model = load_model(model.name, weights=model.weights, experts=model.experts, kv=model.kv)
        for s, (system, machine) in enumerate(zip(systems, machines, strict=True)):
            if model.systems and system.name not in model.systems:
                continue
            loaded = config_model if model.weights else default_formats(config_model, system.engine or None)
            best, larger, reason = 0.0, 0, "no size fits"
            for chips in _sizes(min(system.chips, machine.chips)):
                deployment = plan(
                    loaded, machine, model.workload, model.slo, chips=chips, engine=system.engine or None, quick=True,
                    alternatives=False, elasticities=False, front=False, diagnostics=False,
                )  # fmt: skip
                if not deployment.feasible:
                    reason = deployment.reason
                    if best:
                        break
                    continue
                per_chip = deployment.requests_per_second / chips
                if per_chip > best * (GAIN if best else 1.0):
                    rent = chips * system.usd_per_chip_hour
                    options.append(
                        FleetOption(
                            model=m,
                            system=s,
                            chips=chips,
                            rate=deployment.requests_per_second,
                            usd_per_hour=rent,
                            layout=deployment.layout_text,
                        )
                    )
                    best = per_chip
                if larger >= LARGER:
                    break
                larger += 1
            if not best:
                reasons[m, s] = reason
    return options, reasons


def _sizes(maximum: int) -> list[int]:
    return [1 << power for power in range(maximum.bit_length()) if 1 << power <= maximum]


def solve_fleet(
    options: Sequence[FleetOption], rates: Sequence[float], chips: Sequence[int], budget: float = math.inf
) -> Array | None:
    """Return the number of deployments of each option with the lowest rent.

    Of two fleets with equal rent, the one with fewer chips counts.

    Args:
        options: Deployments.
        rates: Requests per second of each model.
        chips: Chips of each system.
        budget: Limit on the rent [USD/h].

    Returns:
        Whole numbers by option; None if the chips or the budget do not suffice.

    Raises:
        InputError: scipy is not installed, or the solver found no optimum in time.

    >>> small = FleetOption(model=0, system=0, chips=1, rate=2.0, usd_per_hour=2.0)
    >>> large = FleetOption(model=0, system=0, chips=4, rate=10.0, usd_per_hour=8.0)
    >>> solve_fleet([large], [1e-6], [8]).tolist()
    [1.0]
    >>> solve_fleet([small, large], [11.0], [8]).tolist(), solve_fleet([small], [11.0], [4])
    ([1.0, 1.0], None)
    """
    if not options:
        return None
    served, used, rent = _program(options, rates, len(chips))
    tie = GAP * float(np.max(rent)) / max(1.0, float(sum(chips)))
    size = np.array([option.chips for option in options], dtype=float)
    answer = _minimum(rent + tie * size, served, used, rent, np.ones(len(rates)), chips, budget)
    return None if answer is None else np.round(answer)


def possible_share(
    options: Sequence[FleetOption], rates: Sequence[float], chips: Sequence[int], budget: float = math.inf
) -> float:
    """Return the largest share of all rates that the chips and the budget serve, at most 1.

    Args:
        options: Deployments.
        rates: Requests per second of each model.
        chips: Chips of each system.
        budget: Limit on the rent [USD/h].

    Returns:
        A share; 0 if a model has no option.
    """
    if not options:
        return 0.0
    served, used, rent = _program(options, rates, len(chips))
    # The share is one more variable, which counts against each rate.
    wider = np.hstack([served, -np.ones((len(rates), 1))])
    gain = np.append(np.zeros(len(options)), -1.0)
    answer = _minimum(
        gain, wider, np.hstack([used, np.zeros((len(chips), 1))]), np.append(rent, 0.0), np.zeros(len(rates)), chips, budget,
        share=True,
    )  # fmt: skip
    return 0.0 if answer is None else float(min(answer[-1], 1.0))


def _program(options: Sequence[FleetOption], rates: Sequence[float], systems: int) -> tuple[Array, Array, Array]:
    """Return the share of a model's rate (at most 1), chips by system, and rent of each option."""
    served, used = np.zeros((len(rates), len(options))), np.zeros((systems, len(options)))
    for column, option in enumerate(options):
        rate = rates[option.model]
        served[option.model, column] = 1.0 if option.rate >= rate else option.rate / rate
        used[option.system, column] = option.chips
    return served, used, np.array([option.usd_per_hour for option in options])


def _minimum(
    cost: Array,
    served: Array,
    used: Array,
    rent: Array,
    shares: Array,
    chips: Sequence[int],
    budget: float,
    *,
    share: bool = False,
) -> Array | None:
    """Return the variables of the program; None if it has no solution."""
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
    except ImportError:
        raise InputError(f"a fleet needs scipy: {install_hint('simulate')}") from None
    constraints = [LinearConstraint(served, lb=shares), LinearConstraint(used, ub=np.asarray(chips, dtype=float))]
    if math.isfinite(budget):
        constraints.append(LinearConstraint(rent[None, :], ub=budget))
    integral, largest = np.ones(len(cost)), np.full(len(cost), np.inf)
    if share:
        integral[-1], largest[-1] = 0, 1.0
    solved = milp(
        cost, integrality=integral, bounds=Bounds(0, largest), constraints=constraints,
        options={"time_limit": PATIENCE, "mip_rel_gap": GAP},
    )  # fmt: skip
    if solved.x is None and solved.status == 2:
        return None
    if solved.x is None:
        raise InputError(f"fleet: the solver found no answer in {PATIENCE:g} s; leave out models or systems")
    answer: Array = solved.x
    return answer


def plan_fleet(models: Sequence[FleetModel], systems: Sequence[FleetSystem], budget: float = math.inf) -> ModelFleet:
    """Return the cheapest deployments that serve several models on given chips.

    Args:
        models: Models with rates and limits.
        systems: Systems with their chips and rents.
        budget: Limit on the rent [USD/h].

    Returns:
        The fleet; without an answer `feasible` is false, and `reason` has the reason.
    """
    start = time.perf_counter()
    options, reasons = fleet_options(models, systems)
    planned = time.perf_counter()
    rates, chips = [model.rate for model in models], [system.chips for system in systems]
    shared: dict[str, Any] = {
        "models": tuple(models), "systems": tuple(systems), "budget": budget, "options": len(options),
        "plan_seconds": planned - start,
    }  # fmt: skip
    homeless = [m for m in range(len(models)) if all(option.model != m for option in options)]
    if homeless:
        m = homeless[0]
        causes = [f"{systems[s].name}: {reason.rstrip('.')}" for (model, s), reason in reasons.items() if model == m]
        reason = f"{models[m].name} meets its limits on no system ({'; '.join(causes) or 'no system is allowed'})"
        return ModelFleet(feasible=False, reason=reason, possible_share=0.0, **shared)
    counts = solve_fleet(options, rates, chips, budget)
    if counts is None:
        share = possible_share(options, rates, chips, budget)
        reason = _why_not(options, models, systems, budget, share)
        return ModelFleet(
            feasible=False, reason=reason, possible_share=share, solve_seconds=time.perf_counter() - planned, **shared
        )
    choices = tuple(
        FleetChoice(
            model=models[option.model].name,
            system=systems[option.system].name,
            deployments=int(count),
            chips=int(count) * option.chips,
            layout=option.layout,
            rate=float(count) * option.rate,
            usd_per_hour=float(count) * option.usd_per_hour,
        )
        for option, count in zip(options, counts, strict=True)
        if count
    )
    in_use = tuple(sum(choice.chips for choice in choices if choice.system == system.name) for system in systems)
    return ModelFleet(
        feasible=True, usd_per_hour=sum(choice.usd_per_hour for choice in choices), choices=choices, chips_in_use=in_use,
        possible_share=1.0, solve_seconds=time.perf_counter() - planned, **shared,
    )  # fmt: skip


def _why_not(
    options: Sequence[FleetOption],
    models: Sequence[FleetModel],
    systems: Sequence[FleetSystem],
    budget: float,
    share: float,
) -> str:
    """Say whether the budget or the chips are too small, and what would suffice."""
    rates, chips = [model.rate for model in models], [system.chips for system in systems]
    if math.isfinite(budget):
        counts = solve_fleet(options, rates, chips)
        if counts is not None:
            rent = sum(count * option.usd_per_hour for count, option in zip(counts, options, strict=True))
            return f"the cheapest fleet costs ${rent:,.2f} per hour, above the budget of ${budget:,.2f}; raise the budget"
    endless = solve_fleet(options, rates, [MOST_CHIPS * len(models)] * len(systems))
    needs = ""
    if endless is not None:
        by_system = [0] * len(systems)
        for count, option in zip(endless, options, strict=True):
            by_system[option.system] += int(count) * option.chips
        additions = [
            f"{need - system.chips:,} more of {system.name}"
            for need, system in zip(by_system, systems, strict=True)
            if need > system.chips
        ]
        needs = f"; the cheapest fleet without that limit takes {' and '.join(additions)}" if additions else ""
    return f"the chips serve at most {math.floor(1000 * share) / 10:g} % of all rates{needs}"
