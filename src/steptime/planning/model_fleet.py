r"""Fleet of models: several models on one budget of chips, from plans of each model on each system.

Each model needs a rate of requests within its limits, perhaps by hour of a day. `plan` finds deployments of the model on chips
of each system. Deployments have a power of two of chips, so that they fill hosts. The programs of `fleet_program` then choose
whole numbers of deployments with the lowest rent. Only deployments that may be in the cheapest fleet are planned
(`fleet_options`).

**Ranges.** A deployment serves its rate times a factor between the ends of the plan's 90 % range. With the factor $f$, the $L$
requests per second of a row need $n(f) = \lceil L / (r f) \rceil$ deployments in place of $n$. Their rent is $c n(f) / n$. The
sides $\delta_i$ of the rows add with the correlation $\rho_{ij}$ of their errors:

$$ \delta = \sqrt{\sum_{i,j} \rho_{ij} \delta_i \delta_j}, \qquad \rho_{ij} = \frac{\sigma^2_{engine} + \sigma^2_{model} [m]
   + (\sigma^2_{group} + \sigma^2_{release}) [g]}{\sigma^2 - \sigma^2_{noise}}. $$

A bracket is 1 where both rows share the model $m$, or model and system $g$; rows of different engines have no common error. The
variances are those of measured runs (`physics/run_covariance.py`). Almost all of a measured error is that of its group, so that
rows of different models hardly move together. The range in which all rows move together is an answer as well.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np

from steptime.catalog.data_files import read_file
from steptime.catalog.hardware_loading import load_system, with_rent
from steptime.errors import DataFileError, Impossible, InputError, RangeError, UnitError, did_you_mean, os_problem, short_repr
from steptime.hardware.rental_prices import has_rent
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.models.model_loading import load_model
from steptime.number_checks import MOST_RATE, Array, positive, whole_number
from steptime.physics.engine import default_formats, engine_for, load_engine
from steptime.physics.run_covariance import read_covariances
from steptime.planning.fleet_program import (
    DaySolution,
    FleetOption,
    additional_chips,
    possible_share,
    solve_day,
    solve_fleet,
    unserved_shares,
)
from steptime.planning.plan_result import Plan
from steptime.planning.planner import NO_LAYOUT, check_limits, has_simulator, likely_rate, plan
from steptime.planning.slo_probability import check_percentile
from steptime.processes import Answer, map_in_processes
from steptime.result_base import Tabular, unit
from steptime.units import HOUR, counted, parse
from steptime.workload.day_profile import HOURS, read_day
from steptime.workload.workload import Slo, Workload

MOST_MODELS, MOST_SYSTEMS, MOST_CHIPS = 100, 50, 1_000_000
# Sizes of a deployment beyond the smallest that meets the limits, each twice the one before.
LARGER: Final = 1
# A larger deployment is an option if each of its chips serves this factor more.
GAIN: Final = 1.02
# Bound of the rate of a plan, over that of closed forms. Of 174 plans, the largest ratio was 1.26; one in fifty was above 1.15.
BEYOND: Final = 1.35
# Part of a deployment above which a relaxed program uses it.
LEAST_PART: Final = 1e-6
# What the plans of options leave out.
QUICK: Final[dict[str, Any]] = {"alternatives": False, "elasticities": False, "front": False}
MODEL_KEYS: Final = (
    "name", "rate", "rates", "day", "peak_hour", "input", "output", "cached", "speed", "ttft", "percentile", "sure", "weights",
    "experts", "kv", "systems",
)  # fmt: skip
SYSTEM_KEYS: Final = ("name", "chips", "rent", "on_demand", "engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetModel:
    """A model of a fleet: its rate of requests, their lengths, and their limits."""

    name: str = field(metadata=unit("", "name of the model"))
    rate: float = field(
        metadata=unit("requests/s", "requests to serve; with a day profile the mean", key="rate_requests_per_s")
    )
    rates: tuple[float, ...] = field(
        default=(), metadata=unit("requests/s", "requests to serve by hour; empty: always the rate", key="rates_requests_per_s")
    )
    workload: Workload = field(metadata=unit("", "the requests"))
    slo: Slo = field(metadata=unit("", "the limits"))
    percentile: str = field(default="p90", metadata=unit("", "percentile of requests that meets the limits"))
    sure: float | None = field(default=None, metadata=unit("", "required probability of meeting each limit; null: about 0.5"))
    weights: str = field(default="", metadata=unit("", "number format of the weights; empty: the config's"))
    experts: str = field(default="", metadata=unit("", "number format of the routed experts; empty: that of weights"))
    kv: str = field(default="", metadata=unit("", "number format of the KV cache; empty: the engine's"))
    systems: tuple[str, ...] = field(default=(), metadata=unit("", "systems on which the model may run; empty: all"))
    loaded: Model | None = field(default=None, compare=False, metadata=unit("", "the model itself", left_out=True))

    def hourly(self) -> tuple[float, ...]:
        """Return the rates of the hours: 24 with a day profile, or one.

        Returns:
            Requests per second.
        """
        return self.rates or (self.rate,)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSystem:
    """A system of a fleet: how many chips there are, and their rent."""

    name: str = field(metadata=unit("", "name of the system"))
    chips: int = field(metadata=unit("", "chips of this kind"))
    usd_per_chip_hour: float = field(metadata=unit("USD/h", "rent of a reserved chip", key="usd_per_chip_hour"))
    on_demand: float = field(
        default=math.inf,
        metadata=unit("USD/h", "rent of a chip in hours of use only; null: none", key="on_demand_usd_per_chip_hour"),
    )
    engine: str = field(default="", metadata=unit("", "name of the engine; empty: the system's"))
    loaded: System | None = field(default=None, compare=False, metadata=unit("", "the system itself", left_out=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetChoice:
    """Deployments of one kind in a fleet."""

    model: str = field(metadata=unit("", "name of the model"))
    system: str = field(metadata=unit("", "name of the system"))
    deployments: int = field(metadata=unit("", "equal deployments; with a day profile those of the busiest hour"))
    chips: int = field(metadata=unit("", "chips of all of them"))
    layout: str = field(metadata=unit("", "layout of each, in words"))
    rate: float = field(metadata=unit("requests/s", "requests that they can serve", key="rate_requests_per_s"))
    usd_per_hour: float = field(metadata=unit("USD/h", "rent of their chips; with a day profile the mean", key="usd_per_hour"))
    usd_range: tuple[float, float] | None = field(
        default=None,
        metadata=unit("USD/h", "90 % range of that rent, for the same requests; null: none", key="usd_per_hour_range"),
    )
    by_hour: tuple[int, ...] = field(
        default=(), metadata=unit("", "deployments that run in each hour; empty without a day profile")
    )
    speed: float = field(
        default=math.nan,
        metadata=unit("tok/s", "output tokens per second of each user at the percentile", key="speed_tok_per_s"),
    )
    ttft: float = field(default=math.nan, metadata=unit("s", "time to first token at the percentile"))
    percentile: str = field(default="p90", metadata=unit("", "percentile of the two"))
    speed_limit: float | None = field(default=None, metadata=unit("tok/s", "limit on the speed; null: none", key="speed_limit"))
    ttft_limit: float = field(
        default=math.inf, metadata=unit("s", "limit on the time to first token; null: none", key="ttft_limit_s")
    )
    probability: float = field(
        default=math.nan, metadata=unit("", "probability of meeting the limit that is the hardest to meet; null: no limit")
    )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModelFleet(Tabular):
    """The cheapest deployments that serve all models, or the reason why the chips do not suffice."""

    SCHEMA: ClassVar[str] = "steptime.fleet/1"

    feasible: bool = field(metadata=unit("", "whether the chips and the budget serve all rates within the limits"))
    reason: str = field(default="", metadata=unit("", "why they do not"))
    usd_per_hour: float = field(
        default=math.nan,
        metadata=unit("USD/h", "rent of all chips; with a day profile the mean of the day", key="usd_per_hour"),
    )
    usd_range: tuple[float, float] | None = field(
        default=None, metadata=unit("USD/h", "90 % range of the rent; null: no engine has ranges", key="usd_per_hour_range")
    )
    usd_range_together: tuple[float, float] | None = field(
        default=None, metadata=unit("USD/h", "the range if all rows are off in the same way", key="usd_per_hour_range_together")
    )
    budget: float = field(default=math.inf, metadata=unit("USD/h", "limit on the rent; null: none", key="budget_usd_per_hour"))
    choices: tuple[FleetChoice, ...] = field(default=(), metadata=unit("", "deployments by model"))
    models: tuple[FleetModel, ...] = field(metadata=unit("", "the models"))
    systems: tuple[FleetSystem, ...] = field(metadata=unit("", "the systems"))
    chips_in_use: tuple[int, ...] = field(
        default=(), metadata=unit("", "chips in use, by system; of a day in its busiest hour")
    )
    reserved_chips: tuple[int, ...] = field(default=(), metadata=unit("", "chips that are rented all day, by system"))
    on_demand_chip_hours: tuple[float, ...] = field(
        default=(), metadata=unit("", "chip-hours on demand in a day, by system; empty without a day profile")
    )
    separate_usd_per_hour: float = field(
        default=math.nan,
        metadata=unit(
            "USD/h", "rent if each model had its own chips for its peak; null: too few chips", key="separate_usd_per_hour"
        ),
    )
    possible_share: float = field(
        default=math.nan, metadata=unit("", "largest share of all rates that the chips and the budget serve, at most 1")
    )
    unserved: tuple[float, ...] = field(
        default=(), metadata=unit("", "share of each model's rate that the chips leave unserved; empty for a fleet that fits")
    )
    gap: float = field(default=0.0, metadata=unit("", "largest share by which the lowest rent may be lower"))
    options: int = field(default=0, metadata=unit("", "deployments that the program chose from"))
    planned: int = field(default=0, metadata=unit("", "those from plans; the others have bounds of their rates"))
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
        low, high = self.usd_range or (math.nan, math.nan)
        spread = f" (90 %: ${low:,.2f} to ${high:,.2f})" if self.usd_range else ""
        mean = ", mean of a day" if self.on_demand_chip_hours else ""
        title = (
            f"{counted(len(self.models), 'model')} on {counted(chips, 'chip')} for ${self.usd_per_hour:,.2f} per hour{spread}"
        )
        return (title + mean, {system.name: f"{count:,} of {counted(system.chips, 'chip')}" for system, count in used})

    def columns(self) -> dict[str, Any]:
        """Return one row per kind of deployment.

        Returns:
            Columns by name.
        """
        keys = {
            "model": "model", "system": "system", "deployments": "deployments", "chips": "chips", "layout": "layout",
            "rate": "rate_requests_per_s", "usd_per_hour": "usd_per_hour", "speed": "speed_tok_per_s", "ttft": "ttft_s",
            "percentile": "percentile", "probability": "probability",
        }  # fmt: skip
        columns = {key: [getattr(choice, name) for choice in self.choices] for name, key in keys.items()}
        ends = [choice.usd_range or (math.nan, math.nan) for choice in self.choices]
        columns |= {"usd_per_hour_low": [low for low, _ in ends], "usd_per_hour_high": [high for _, high in ends]}
        if self.on_demand_chip_hours:
            columns |= {f"deployments_{hour}h": [choice.by_hour[hour] for choice in self.choices] for hour in range(HOURS)}
        return columns


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
    models = tuple(_read_model(path, place, entry) for place, entry in _entries(path, data, "models", MOST_MODELS))
    systems = tuple(_read_system(path, place, entry) for place, entry in _entries(path, data, "systems", MOST_SYSTEMS))
    names = [system.name for system in systems]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise DataFileError(path, f"systems: {repeated[0]} is there twice; add up its chips")
    for model in models:
        for name in model.systems:
            if name not in names:
                problem = f"{short_repr(name)} is not one of {', '.join(names)}"
                raise DataFileError(path, f"models ({short_repr(model.name)}): systems: {problem}")
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
        raise DataFileError(path, os_problem(problem)) from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as problem:
        raise DataFileError(path, f"is not YAML: {' '.join(str(problem).split())[:200]}") from None


def _entries(path: Path, data: Mapping[str, Any], name: str, maximum: int) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the tables of a list with their places in words: the number of the table, and the name in it."""
    entries = data.get(name)
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, Mapping) for entry in entries):
        raise DataFileError(path, f"{name}: must be a list of tables, [[{name}]], with at least one")
    if len(entries) > maximum:
        raise DataFileError(path, f"{name}: at most {maximum}, got {len(entries)}")
    return [
        (f"{name}, table {number}" + (f" ({short_repr(entry['name'])})" if "name" in entry else ""), entry)
        for number, entry in enumerate(entries, 1)
    ]


def _refuse_unknown(path: Path, place: str, entry: Mapping[str, Any], keys: Sequence[str]) -> None:
    unknown = [str(key) for key in entry if key not in keys]
    if unknown:
        near = did_you_mean(unknown[0], keys, max_names=1)
        hint = f"did you mean {near[0]}?" if near else f"use {', '.join(keys)}"
        raise DataFileError(path, f"{place + ': ' if place else ''}{unknown[0][:60]}: unknown key; {hint}")


# Units of numbers in the file, which have none there.
PLAIN_UNITS: Final = {
    "ttft": " of seconds, such as 2", "speed": " of tokens/s, such as 30", "rate": " of requests/s, such as 2",
}  # fmt: skip


def _number(path: Path, place: str, value: Any, maximum: float, *, is_whole: bool = False) -> float:
    try:
        number = parse(value) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise RangeError(f"must be a number, got {short_repr(value)}")
        if is_whole:
            whole_number(place, number, maximum=maximum)
        positive(place, number, maximum=maximum)
    except UnitError:
        key = place.rpartition(": ")[2]
        raise DataFileError(path, f"{place}: must be a number{PLAIN_UNITS.get(key, '')}, got {short_repr(value)}") from None
    except InputError as problem:
        words = str(problem)
        raise DataFileError(path, words if words.startswith(place) else f"{place}: {words}") from None
    return float(number)


def _text(path: Path, place: str, entry: Mapping[str, Any], key: str, *, required: bool = False) -> str:
    value = entry.get(key, "")
    if not isinstance(value, str) or (required and not value):
        raise DataFileError(path, f"{place}: {key}: must be a text, got {short_repr(value)}")
    return value


def _read_model(path: Path, place: str, entry: Mapping[str, Any]) -> FleetModel:
    _refuse_unknown(path, place, entry, MODEL_KEYS)
    name = _text(path, place, entry, "name", required=True)
    missing = [key for key in ("input", "output") if key not in entry]
    if missing or ("rate" not in entry and "rates" not in entry):
        key = "rate" if not missing else missing[0]
        raise DataFileError(path, f"{place}: {key}: is missing; {name} needs rate (or 24 rates), input and output")
    # As in `plan`, requests have whole numbers of tokens on average.
    sizes = {key: _number(path, f"{place}: {key}", entry[key], 1e9, is_whole=True) for key in ("input", "output")}
    limits = {key: _number(path, f"{place}: {key}", entry[key], 1e9) for key in ("speed", "ttft") if key in entry}
    systems = entry.get("systems", [])
    if not isinstance(systems, list) or not all(isinstance(system, str) for system in systems):
        raise DataFileError(path, f"{place}: systems: must be a list of names, got {short_repr(systems)}")
    formats = {key: _text(path, place, entry, key) for key in ("weights", "experts", "kv")}
    rate, rates = _read_rates(path, place, entry)
    cached = entry.get("cached", 0.0)
    if isinstance(cached, bool) or not isinstance(cached, int | float) or not 0 <= cached < 1:
        problem = f"cached: must be a share of at least 0 and below 1, such as 0.5, got {short_repr(cached)}"
        raise DataFileError(path, f"{place}: {problem}")
    try:
        workload = Workload(input_tokens=sizes["input"], output_tokens=sizes["output"], cached_share=cached)
        slo = Slo(ttft=limits.get("ttft", math.inf), speed=limits.get("speed"))
        percentile = check_percentile(entry.get("percentile", "p90"))
        check_limits(sure := entry.get("sure"), slo)
        loaded = load_model(name, weights=formats["weights"], experts=formats["experts"], kv=formats["kv"])
    except InputError as problem:
        raise DataFileError(path, f"{place}: {problem}") from None
    return FleetModel(
        name=name, rate=rate, rates=rates, workload=workload, slo=slo, percentile=percentile, sure=sure,
        systems=tuple(systems), loaded=loaded, **formats,
    )  # fmt: skip


def _read_rates(path: Path, place: str, entry: Mapping[str, Any]) -> tuple[float, tuple[float, ...]]:
    """Return the mean rate of a model, and its 24 rates; none without a day profile."""
    if "rates" in entry:
        if clash := [key for key in ("rate", "day") if key in entry]:
            raise DataFileError(path, f"{place}: {clash[0]}: rates has the rate of each hour; leave one of the two out")
        rates = entry["rates"]
        if not isinstance(rates, list) or len(rates) != HOURS:
            words = f"must be a list of {HOURS} requests/s, one for each hour, got {_size(rates)}"
            raise DataFileError(path, f"{place}: rates: {words}")
        # An hour without requests is possible.
        hours = [0.0 if rate == 0 else _number(path, f"{place}: rates.{h}", rate, MOST_RATE) for h, rate in enumerate(rates)]
        if not sum(hours):
            raise DataFileError(path, f"{place}: rates: must have an hour above 0 requests/s")
        day: Any = hours
        rate = sum(hours) / HOURS
    else:
        rate, day = _number(path, f"{place}: rate", entry["rate"], MOST_RATE), entry.get("day")
    if day is None:
        if "peak_hour" in entry:
            problem = 'peak_hour: moves the peak of a day profile; give one too, such as day = "chat"'
            raise DataFileError(path, f"{place}: {problem}")
        return rate, ()
    try:
        shape = read_day(day, entry.get("peak_hour"))
    except InputError as problem:
        raise DataFileError(path, f"{place}: {problem}") from None
    return rate, tuple(float(rate * share) for share in shape)


def _size(value: Any) -> str:
    return counted(len(value), "value") if isinstance(value, list) else short_repr(value)


def _read_system(path: Path, place: str, entry: Mapping[str, Any]) -> FleetSystem:
    _refuse_unknown(path, place, entry, SYSTEM_KEYS)
    name = _text(path, place, entry, "name", required=True)
    if "chips" not in entry:
        raise DataFileError(path, f"{place}: chips: is missing; give the chips of {name}, such as chips = 8")
    chips = entry["chips"]
    if isinstance(chips, bool) or not isinstance(chips, int) or not 1 <= chips <= MOST_CHIPS:
        raise DataFileError(path, f"{place}: chips: must be a whole number from 1 to {MOST_CHIPS:,}, got {short_repr(chips)}")
    try:
        system, engine = load_system(name), _text(path, place, entry, "engine")
        if engine:
            load_engine(engine)
        system = with_rent(system, entry["rent"]) if "rent" in entry else system
    except InputError as problem:
        raise DataFileError(path, f"{place}: {problem}") from None
    if not has_rent(system.rent):
        raise DataFileError(path, f'{place}: rent: is not known for {name}; give it, such as rent = "2.10"')
    rent = float(system.rent.typical * HOUR)
    on_demand = math.inf
    if "on_demand" in entry:
        try:
            on_demand = float(with_rent(system, entry["on_demand"]).rent.typical * HOUR)
        except InputError as problem:
            raise DataFileError(path, f"{place}: on_demand: {problem}") from None
        if not on_demand >= rent:
            raise DataFileError(
                path,
                f"{place}: on_demand: must be at least the reserved rent, ${rent:,.2f} per hour, got ${on_demand:,.2f}",
            )
    return FleetSystem(
        name=system.name, chips=chips, usd_per_chip_hour=rent, on_demand=on_demand, engine=engine,
        loaded=system,
    )  # fmt: skip


class Pair(NamedTuple):
    """A model of a fleet on a system of it, with their positions."""

    m: int
    s: int
    model: FleetModel
    system: FleetSystem

    def with_inputs(self, function: Callable[..., Answer]) -> Callable[..., Answer]:
        """Return `plan` or `likely_rate` of this pair."""
        model, system = self.model, self.system
        machine, engine = system.loaded or load_system(system.name), system.engine or None
        loaded = model.loaded or load_model(model.name, weights=model.weights, experts=model.experts, kv=model.kv)
        loaded = loaded if model.weights else default_formats(loaded, engine_for(machine, engine))
        return partial(
            function, loaded, machine, model.workload, model.slo, engine=engine, percentile=model.percentile, sure=model.sure
        )

    def sizes(self) -> list[int]:
        """Return the chips of possible deployments: powers of two."""
        return _sizes(min(self.system.chips, int((self.system.loaded or load_system(self.system.name)).chips)))


def fleet_options(
    models: Sequence[FleetModel],
    systems: Sequence[FleetSystem],
    in_use: Callable[[tuple[FleetOption, ...]], Iterable[int] | None] | None = None,
) -> tuple[list[FleetOption], dict[tuple[int, int], str], int]:
    """Return deployments of each model on each system, and why a model has none on a system.

    Sizes are powers of two: the smallest within the limits, and larger ones whose chips serve more. A plan takes several times
    as long as its closed forms. With `in_use`, the options of a pair begin as bounds: `BEYOND` times their rates by closed
    forms. Plans replace the bounds of each pair that the answer uses, until it uses plans alone: no option that is still a
    bound would make it cheaper.

    Args:
        models: The models.
        systems: The systems.
        in_use: Positions of the options that the answer uses, None without an answer; by default all are planned.

    Returns:
        Options from plans; reasons by position of model and system; and the number of options with those that are bounds.
    """
    pairs = {
        (m, s): Pair(m, s, model, system)
        for m, model in enumerate(models)
        for s, system in enumerate(systems)
        if not model.systems or system.name in model.systems
    }
    by_pair: dict[tuple[int, int], list[FleetOption]] = {}
    reasons: dict[tuple[int, int], str] = {}

    def add_plans(places: Sequence[tuple[int, int]]) -> None:
        answers = map_in_processes(_planned_options, [pairs[place] for place in places])
        for place, (options, reason) in zip(places, answers, strict=True):
            by_pair[place] = options
            # A pair without a reason has options.
            reasons[place] = reason

    def homeless() -> list[int]:
        return [m for m in range(len(models)) if not any(options for place, options in by_pair.items() if place[0] == m)]

    if in_use is None or not has_simulator():
        add_plans(list(pairs))
    else:
        # Workers inherit the compiled simulator from this process.
        import_module("steptime.planning.finalists")
        by_pair = dict(zip(pairs, map_in_processes(_likely_options, list(pairs.values())), strict=True))
    while True:
        # The reasons of a model without an option are those of its plans.
        new = [place for place in pairs if place[0] in homeless() and place not in reasons]
        if not new and in_use is not None and not homeless():
            options = tuple(option for pair_options in by_pair.values() for option in pair_options)
            positions = in_use(options)
            used = options if positions is None else [options[position] for position in positions]
            new = list(dict.fromkeys(place for option in used if (place := (option.model, option.system)) not in reasons))
        if not new:
            break
        add_plans(new)
    for m in homeless():
        # A quick search does not say which limit is too short.
        unreached = [(pair.sizes()[-1], pair.s) for place, pair in pairs.items() if pair.m == m and reasons[place] == NO_LAYOUT]
        if unreached:
            chips, s = max(unreached)
            reasons[m, s] = _in_keys(pairs[m, s].with_inputs(plan)(chips=chips, **QUICK).reason) or NO_LAYOUT
    planned = [option for place, pair_options in by_pair.items() if place in reasons for option in pair_options]
    considered = sum(map(len, by_pair.values()))
    return planned, {place: reason for place, reason in reasons.items() if reason}, considered


def _likely_options(pair: Pair) -> list[FleetOption]:
    """Return the deployments of a model on a system with bounds of their rates."""
    options: list[FleetOption] = []
    likely = pair.with_inputs(likely_rate)
    for chips in pair.sizes():
        if rate := likely(chips=chips):
            rent = chips * pair.system.usd_per_chip_hour
            options.append(FleetOption(model=pair.m, system=pair.s, chips=chips, rate=BEYOND * rate, usd_per_hour=rent))
        if len(options) > LARGER:
            break
    return options


def _planned_options(pair: Pair) -> tuple[list[FleetOption], str]:
    """Return the deployments of a model on a system, or why there is none."""
    options: list[FleetOption] = []
    best, larger, reason = 0.0, 0, "no size fits"
    search = pair.with_inputs(plan)
    for chips in pair.sizes():
        try:
            deployment = search(chips=chips, **QUICK, quick=True, diagnostics=False)
        # The weights or the requests do not fit so few chips.
        except Impossible as problem:
            reason = _in_keys(str(problem))
            continue
        if not deployment.feasible:
            reason = _in_keys(deployment.reason)
            if best:
                break
            continue
        per_chip = deployment.requests_per_second / chips
        if per_chip > best * (GAIN if best else 1.0):
            options.append(_as_option(deployment, pair.m, pair.s, chips * pair.system.usd_per_chip_hour))
            best = per_chip
        if larger >= LARGER:
            break
        larger += 1
    return options, "" if best else reason


def _sizes(maximum: int) -> list[int]:
    return [1 << power for power in range(maximum.bit_length())]


def _in_keys(reason: str) -> str:
    """Return the reason of a plan with keys of the file in place of options of `plan`.

    >>> _in_keys("With --chips 4 it would fit, or with --weights fp8; take another --percentile")
    'With 4 chips it would fit, or with weights = "fp8"; take another percentile'
    """
    reason = re.sub(r"--chips ([0-9,]+)", r"\1 chips", reason)
    reason = re.sub(r"--(weights|experts|kv|percentile|engine) ([a-z0-9_.]*[a-z0-9_])", r'\1 = "\2"', reason)
    return re.sub(r"--([a-z])", r"\1", reason)


def _as_option(deployment: Plan, model: int, system: int, rent: float) -> FleetOption:
    """Return a plan as an option of the program."""
    throughput = deployment.tokens_per_second_per_chip
    low, high = deployment.throughput_range or (throughput, throughput)
    return FleetOption(
        model=model,
        system=system,
        chips=deployment.chips,
        rate=deployment.requests_per_second,
        usd_per_hour=rent,
        layout=deployment.layout_text,
        speed=deployment.tokens_per_second_per_user,
        ttft=deployment.ttft,
        probability=min(deployment.slo_probability.values(), default=math.nan),
        slowest=low / throughput,
        fastest=high / throughput,
        engine=deployment.engine,
    )


def plan_fleet(models: Sequence[FleetModel], systems: Sequence[FleetSystem], budget: float = math.inf) -> ModelFleet:
    """Return the cheapest deployments that serve several models on given chips.

    If a model has rates by hour, deployments run by hour, and all models share the chips of an hour.

    Args:
        models: Models with rates and limits.
        systems: Systems with their chips and rents.
        budget: Limit on the rent [USD/h]; with rates by hour on its mean.

    Returns:
        The fleet; without an answer `feasible` is false, and `reason` has the reason.
    """
    start = time.perf_counter()
    hours = max(len(model.hourly()) for model in models)
    rates = np.array([np.broadcast_to(model.hourly(), hours) for model in models], dtype=float)
    solving = 0.0

    def in_use(options: tuple[FleetOption, ...]) -> list[int] | None:
        nonlocal solving
        begun = time.perf_counter()
        day = _solve(options, rates, systems, budget, is_draft=True)
        counts = None if day is None else day.counts.max(axis=1)
        if day is not None and hours > 1 and (separate := _separate(options, rates, systems)) is not None:
            counts = counts + separate
        solving += time.perf_counter() - begun
        return None if counts is None else np.flatnonzero(counts > LEAST_PART).tolist()

    options, reasons, considered = fleet_options(models, systems, in_use)
    nothing = ModelFleet(
        feasible=False, models=tuple(models), systems=tuple(systems), budget=budget, options=considered,
        planned=len(options), plan_seconds=time.perf_counter() - start - solving, possible_share=0.0,
    )  # fmt: skip
    homeless = [m for m in range(len(models)) if all(option.model != m for option in options)]
    if homeless:
        m = homeless[0]
        causes = [f"{systems[s].name}: {reason.rstrip('.')}" for (model, s), reason in reasons.items() if model == m]
        reason = f"{models[m].name} meets its limits on no system ({'; '.join(causes) or 'no system is allowed'})"
        unserved = tuple(float(model in homeless) for model in range(len(models)))
        return replace(nothing, reason=reason, unserved=unserved)
    begun = time.perf_counter()
    day = _solve(options, rates, systems, budget)
    if day is None:
        why_not = _why_not(options, models, systems, rates, budget)
        return replace(nothing, **why_not, solve_seconds=solving + time.perf_counter() - begun)
    choices = _rows(options, day, models, systems, rates)
    parts = tuple(option for option, count in zip(options, day.counts.max(axis=1), strict=True) if count)
    sides = _range_of_rows(choices, _correlations(parts))
    used = np.zeros((len(systems), hours))
    np.add.at(used, [option.system for option in options], np.array([option.chips for option in options])[:, None] * day.counts)
    return replace(
        nothing,
        feasible=True,
        usd_per_hour=day.usd_per_hour,
        usd_range=sides and _moved(day.usd_per_hour, sides),
        usd_range_together=sides and _moved(day.usd_per_hour, _range_of_rows(choices, np.ones((len(parts), len(parts))))),
        choices=choices,
        chips_in_use=tuple(int(chips) for chips in used.max(axis=1)),
        reserved_chips=tuple(int(chips) for chips in day.reserved),
        on_demand_chip_hours=tuple(float(chips) for chips in day.on_demand.sum(axis=1)) if hours > 1 else (),
        separate_usd_per_hour=_rent(options, _separate(options, rates, systems)) if hours > 1 else day.usd_per_hour,
        possible_share=1.0,
        gap=day.gap,
        solve_seconds=solving + time.perf_counter() - begun,
    )


def _solve(
    options: Sequence[FleetOption], rates: Array, systems: Sequence[FleetSystem], budget: float, *, is_draft: bool = False
) -> DaySolution | None:
    """Return the deployments by hour; with one hour, all chips in use are reserved."""
    chips, rents = [system.chips for system in systems], [system.usd_per_chip_hour for system in systems]
    if rates.shape[1] > 1:
        return solve_day(options, rates, chips, rents, [system.on_demand for system in systems], budget, is_draft=is_draft)
    counts = solve_fleet(options, rates[:, 0].tolist(), chips, budget)
    if counts is None:
        return None
    used = np.zeros(len(systems))
    np.add.at(used, [option.system for option in options], [count * o.chips for count, o in zip(counts, options, strict=True)])
    return DaySolution(counts[:, None], used, np.zeros((len(systems), 1)), _rent(options, counts), 0.0)


def _separate(options: Sequence[FleetOption], rates: Array, systems: Sequence[FleetSystem]) -> Array | None:
    """Return deployments on reserved chips for the sum of all peaks; None if there are too few chips."""
    return solve_fleet(options, rates.max(axis=1).tolist(), [system.chips for system in systems])


def _rent(options: Sequence[FleetOption], counts: Array | None) -> float:
    """Return the rent of deployments [USD/h]; NaN without an answer."""
    if counts is None:
        return math.nan
    return sum(float(count) * option.usd_per_hour for count, option in zip(counts, options, strict=True))


def _rows(
    options: Sequence[FleetOption], day: DaySolution, models: Sequence[FleetModel], systems: Sequence[FleetSystem], rates: Array
) -> tuple[FleetChoice, ...]:
    """Return a row for each option in use; the rent of a system is divided by chip-hours."""
    hours, rows = rates.shape[1], []
    chip_hours = np.array([option.chips for option in options]) * day.counts.sum(axis=1)
    by_system = np.zeros(len(systems))
    np.add.at(by_system, [option.system for option in options], chip_hours)
    on_demand = day.on_demand.sum(axis=1)
    for o, option in enumerate(options):
        counts = day.counts[o]
        if not counts.max():
            continue
        model, system = models[option.model], systems[option.system]
        if hours == 1:
            rent = float(counts[0]) * option.usd_per_hour
        else:
            extra = system.on_demand * on_demand[option.system] / hours if on_demand[option.system] else 0.0
            system_rent = system.usd_per_chip_hour * float(day.reserved[option.system]) + extra
            rent = system_rent * float(chip_hours[o] / by_system[option.system])
        # The requests of a model are divided by what its deployments can serve.
        can_serve = np.zeros(hours)
        for position, option_j in enumerate(options):
            if option_j.model == option.model:
                can_serve += option_j.rate * day.counts[position]
        load = rates[option.model] * option.rate * counts / np.maximum(can_serve, 1e-300)
        rows.append(
            FleetChoice(
                model=model.name,
                system=system.name,
                deployments=int(counts.max()),
                chips=int(counts.max()) * option.chips,
                layout=option.layout,
                rate=float(counts.max()) * option.rate,
                usd_per_hour=rent,
                usd_range=_row_range(option, counts, load, rent),
                by_hour=tuple(int(count) for count in counts) if hours > 1 else (),
                speed=option.speed,
                ttft=option.ttft,
                percentile=model.percentile,
                speed_limit=1 / float(model.slo.tpot) if math.isfinite(model.slo.tpot) else None,
                ttft_limit=float(model.slo.ttft),
                probability=option.probability,
            )
        )
    return tuple(rows)


def _row_range(option: FleetOption, counts: Array, load: Array, rent: float) -> tuple[float, float] | None:
    """Return the 90 % range of the rent of a row, whose deployments serve its load in whole numbers.

    >>> one = FleetOption(model=0, system=0, chips=1, rate=10.0, usd_per_hour=2.0, slowest=0.6, fastest=1.5)
    >>> _row_range(one, np.array([3.0]), np.array([30.0]), 6.0), _row_range(one, np.array([1.0]), np.array([4.0]), 2.0)
    ((4.0, 10.0), (2.0, 2.0))
    """
    if option.slowest == option.fastest:
        return None
    ends = [float(np.ceil(load / (option.rate * factor) - 1e-9).sum()) for factor in (option.fastest, option.slowest)]
    now = float(counts.sum())
    return rent * min(ends[0], now) / now, rent * max(ends[1], now) / now


def _correlations(options: Sequence[FleetOption]) -> Array:
    """Return the correlation of the errors of deployments, by shared model, system and engine.

    >>> one = FleetOption(model=0, system=0, chips=1, rate=1.0, usd_per_hour=1.0, engine="vllm")
    >>> rho = _correlations([one, replace(one, chips=2), replace(one, model=1), replace(one, engine="sglang")])
    >>> [round(float(value), 1) for value in rho[0]]
    [1.0, 0.9, 0.0, 0.0]
    """
    errors = read_covariances()["tpot"]
    total = errors.total - errors.noise
    matrix = np.eye(len(options))
    for i, first in enumerate(options):
        for j, second in enumerate(options):
            if i == j or first.engine != second.engine:
                continue
            same_model = first.model == second.model
            same_group = same_model and first.system == second.system
            shared = errors.engine + errors.model * same_model + (errors.group + errors.release) * same_group
            matrix[i, j] = shared / total
    return matrix


def _range_of_rows(rows: Sequence[FleetChoice], correlation: Array) -> tuple[float, float] | None:
    """Return how far the sum of the rows reaches below and above, from the sides of the rows; None if no row has a range.

    >>> ends = {"usd_per_hour": 10.0, "usd_range": (7.0, 14.0)}
    >>> row = FleetChoice(model="a", system="b", deployments=1, chips=1, layout="", rate=1.0, **ends)
    >>> _range_of_rows([row, row], np.ones((2, 2))), [round(side, 3) for side in _range_of_rows([row, row], np.eye(2))]
    ((6.0, 8.0), [4.243, 5.657])
    """
    if all(row.usd_range is None for row in rows):
        return None
    ends = [row.usd_range or (row.usd_per_hour, row.usd_per_hour) for row in rows]
    below = np.array([row.usd_per_hour - low for row, (low, _) in zip(rows, ends, strict=True)])
    above = np.array([high - row.usd_per_hour for row, (_, high) in zip(rows, ends, strict=True)])
    return tuple(math.sqrt(float(side @ correlation @ side)) for side in (below, above))  # type: ignore[return-value]


def _moved(rent: float, sides: tuple[float, float] | None) -> tuple[float, float] | None:
    return None if sides is None else (rent - sides[0], rent + sides[1])


def _why_not(
    options: Sequence[FleetOption],
    models: Sequence[FleetModel],
    systems: Sequence[FleetSystem],
    rates: Array,
    budget: float,
) -> dict[str, Any]:
    """Return whether the budget or the chips are too small, which models do not fit, and what would suffice."""
    chips = [system.chips for system in systems]
    if math.isfinite(budget) and (day := _solve(options, rates, systems, math.inf)) is not None:
        rent = f"${day.usd_per_hour:,.2f} per hour"
        share = possible_share(options, rates.max(axis=1).tolist(), chips, budget)
        reason = f"the cheapest fleet costs {rent}, above the budget of ${budget:,.2f}; raise the budget"
        return {"reason": reason, "possible_share": share, "unserved": (0.0,) * len(models)}
    # Chips limit each hour by itself: the tightest hour is the reason.
    shares = [possible_share(options, rates[:, hour].tolist(), chips) for hour in range(rates.shape[1])]
    hour = int(np.argmin(shares))
    tightest = rates[:, hour].tolist()
    unserved = unserved_shares(options, tightest, chips)
    words = [f"{_percent(part)} of the requests of {models[m].name}" for m, part in enumerate(unserved) if part]
    additional = additional_chips(options, tightest, chips, [system.usd_per_chip_hour for system in systems])
    chips_by_system = [] if additional is None else zip(additional, systems, strict=True)
    extra = [f"{counted(int(n), 'more chip')} of {system.name}" for n, system in chips_by_system if n]
    hour_words = f"at {hour} h " if rates.shape[1] > 1 else ""
    reason = f"{hour_words}the chips leave {' and '.join(words) or 'a part of the requests'} unserved"
    reason += f"; {' and '.join(extra)} would serve them" if extra else ""
    reason += f" (these chips serve all models at {math.floor(1000 * shares[hour]) / 10:g} % of their rates)"
    return {"reason": reason, "possible_share": shares[hour], "unserved": tuple(float(part) for part in unserved)}


def _percent(share: float) -> str:
    return f"{math.ceil(1000 * share - 1e-6) / 10:g} %"
