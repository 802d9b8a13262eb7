"""Models and systems under one workload and one pair of limits: the cheapest plan of each, and what would flip the order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Final

from steptime.aside import spread
from steptime.catalog.files import files
from steptime.catalog.loading import SystemLike, system_of
from steptime.errors import InputError, RangeError, shown
from steptime.machines.rents import kind_and_date, known
from steptime.machines.rents import with_rent as rented
from steptime.machines.system import Rent, System
from steptime.models.loading import ModelLike, model_of
from steptime.models.model import Model
from steptime.numbers import MOST_CHIPS, whole
from steptime.physics.engine import Engine, engine_for, load_engine
from steptime.planning.deployment import Plan
from steptime.planning.planner import MODES, plan
from steptime.planning.workload import Slo, Workload
from steptime.results import Tabular, table_of, unit
from steptime.units import show

ANY: Final = "any"  # number of chips: the best of several
COST: Final = "usd_per_million_output_tokens"
OTHERS: Final = {"NVIDIA": ("vllm", "sglang", "trtllm"), "AMD": ("vllm", "sglang")}  # engines that serve on a maker's chips


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The cheapest plan of one model on one system, or why there is none."""

    place: int = field(default=0, metadata=unit("", "by cost from 1; by output per chip where no rent is known; 0: no plan"))
    tied: bool = field(default=False, metadata=unit("", "whether its range of cost overlaps with that of the cheapest"))
    model: str = field(metadata=unit("", "name of the model"))
    system: str = field(metadata=unit("", "name of the system"))
    vendor: str = field(metadata=unit("", "who makes the chip"))
    year: int = field(metadata=unit("", "of the chip"))
    feasible: bool = field(metadata=unit("", "whether anything meets the limits"))
    reason: str = field(default="", metadata=unit("", "why nothing does"))
    engine: str = field(default="", metadata=unit("", "name of the engine"))
    chips: int = field(default=0, metadata=unit("", "chips that are rented"))
    layout_text: str = field(default="", metadata=unit("", "layout of each pool in words", key="layout"))
    usd_per_million_output_tokens: float = field(
        default=math.nan, metadata=unit("USD", "rent of all chips over output tokens, prompts included", key=COST)
    )
    cost_range: tuple[float, float] | None = field(default=None, metadata=unit("USD", "90 % range", key=f"{COST}_range"))
    prefill_usd_per_million_tokens: float = field(
        default=math.nan, metadata=unit("USD", "rent of the chip-time that prompts take", key="prefill_usd_per_million_tokens")
    )
    decode_usd_per_million_tokens: float = field(
        default=math.nan, metadata=unit("USD", "rent of the chip-time that outputs take", key="decode_usd_per_million_tokens")
    )
    tokens_per_second_per_user: float = field(
        default=math.nan, metadata=unit("tok/s", "output that each user sees", key="tokens_per_s_per_user")
    )
    ttft: float = field(default=math.nan, metadata=unit("s", "mean time to first token"))
    tokens_per_second_per_chip: float = field(
        default=math.nan, metadata=unit("tok/s", "output over all chips", key="tokens_per_s_per_chip")
    )
    tokens_per_second_per_kilowatt: float = field(
        default=math.nan, metadata=unit("tok/s", "output for each kW that chips draw", key="tokens_per_s_per_kw")
    )
    rent: Rent = field(default=Rent(), metadata=unit("", "of a chip: its kind, term, date and grade, and where it stands"))
    runs: int = field(default=0, metadata=unit("", "measured runs on this system that the engine was fitted to"))
    rests_on: str = field(default="", metadata=unit("", "what the range rests on"))
    plan: Plan | None = field(default=None, metadata=unit("", "the plan itself", left_out=True))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Ranking(Tabular):
    """Pairs of models and systems, the cheapest first; then those without a rent, by output per chip; then without a plan.

    flips: what would turn the order of the first two round: rent, formats, engine.
    """

    SCHEMA: ClassVar[str] = "steptime.ranking/1"

    workload: Workload = field(metadata=unit("", "what is asked"))
    slo: Slo = field(metadata=unit("", "the limits"))
    standings: tuple[Standing, ...] = field(metadata=unit("", "one for each pair, the cheapest first"))
    flips: tuple[str, ...] = field(default=(), metadata=unit("", "what would flip the order of the first two, or does not"))

    @property
    def text(self) -> str:
        """The answer in a sentence."""
        found = [one for one in self.standings if one.feasible]
        if not found:
            return "Nothing meets the limits: " + (
                self.standings[0].reason if self.standings else "there is nothing to compare"
            )
        first = found[0]
        if not known(first.rent):
            return (
                f"No rent is known; {_pair(first, self)} gives most: {show(first.tokens_per_second_per_chip, 'tok/s')} a chip."
            )
        ties = sum(one.tied for one in found[1:])
        others = f"; {ties} other{'s' * (ties > 1)} of {len(found) - 1} may be as cheap: the ranges overlap" if ties else ""
        span = "" if first.cost_range is None else f" (90 % range {_usd(first.cost_range[0])} to {_usd(first.cost_range[1])})"
        cost = f"{_usd(first.usd_per_million_output_tokens)} per million output tokens, prompts included{span}"
        return f"{_pair(first, self)} is cheapest: {cost}{others}."

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return how many pairs there are, and the first five."""
        figures = {
            f"{one.model} on {one.system}": _usd(one.usd_per_million_output_tokens) if one.feasible else one.reason[:100]
            for one in self.standings[:5]
        }
        return f"Ranking of {len(self.standings):,} pairs of model and system", figures

    def columns(self) -> dict[str, Any]:
        """Return a row for each pair; a rent by its kind, date and USD/s, a range by its two ends."""
        found = {
            name: values for name, values in table_of(Standing, self.standings).items() if name not in ("rent", f"{COST}_range")
        }
        for end, name in enumerate((f"{COST}_low", f"{COST}_high")):
            found[name] = [math.nan if one.cost_range is None else one.cost_range[end] for one in self.standings]
        found["rent_usd_per_s"] = [float(one.rent.typical) for one in self.standings]
        return found | {"rent": [kind_and_date(one.rent) for one in self.standings]}


def compare(
    models: ModelLike | Sequence[ModelLike],
    systems: SystemLike | Sequence[SystemLike] | None,
    workload: Workload,
    slo: Slo | None = None,
    *,
    chips: int | str | None = None,
    engine: Engine | str | None = None,
    modes: str | tuple[str, ...] = MODES,
    rent: str | None = None,
    sure: float | None = None,
    catalog: str | None = None,
) -> Ranking:
    """Return the cheapest plan of each model on each system (None: on all of the catalogue), the cheapest pair first.

    chips: of each system; by default one scale-up domain; "any" for the number that is cheapest, of powers of two up to a
    domain. engine: one for all; by default each system's own. rent: of one kind ("owned", "contract", "ondemand") or in USD a
    chip-hour for all; a system without that kind has none. Others are as for `plan`. Raises InputError for what is wrong with
    the question as a whole; what is wrong with a pair is its `reason`.
    """
    loaded = [model_of(one) for one in _several(models)]
    asked = [system_of(one) for one in (files("systems", catalog) if systems is None else _several(systems))]
    if not loaded or not asked:
        raise RangeError(f"there is no {'model' if not loaded else 'system'} to compare")
    if isinstance(chips, str) and chips != ANY:
        raise RangeError(f"chips is a number or {ANY!r}, not {shown(chips)}")
    slo = slo or Slo()
    if chips is not None and chips != ANY:
        whole("chips", chips, most=MOST_CHIPS)
    engine = load_engine(engine, catalog) if isinstance(engine, str) else engine
    machines = [_rented(system, rent) for system in asked]
    given: dict[str, Any] = {"engine": engine, "modes": modes, "sure": sure, "levers": False}
    pairs = [(model, system) for model in loaded for system in machines]
    stand = partial(_standing, workload=workload, slo=slo, chips=chips, given=given)
    standings = tuple(_placed(spread(stand, pairs)))
    found = Ranking(workload=workload, slo=slo, standings=standings)
    return replace(found, flips=tuple(_flips(found, loaded, machines, given)))


def _several(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [given]


def _rented(system: System, rent: str | None) -> System:
    """Return a system with a rent of the kind asked for; with none where none of that kind is known of it."""
    if rent is None:
        return system
    try:
        return rented(system, rent)
    except RangeError:
        if rent.strip().casefold().replace("-", "") not in ("owned", "contract", "ondemand", "assumed"):
            raise
        return replace(system, rent=Rent())


def _counts(system: System, chips: int | str | None) -> list[int | None]:
    if chips != ANY:
        return [chips if isinstance(chips, int) else None]
    most = int(min(system.chips, system.scale_up.size))
    return [*(2**n for n in range(most.bit_length()) if 2**n < most), most]


def _standing(
    pair: tuple[Model, System], *, workload: Workload, slo: Slo, chips: int | str | None, given: dict[str, Any]
) -> Standing:
    """Return where a model stands on a system: the best of its plans on so many chips."""
    model, system = pair
    told: dict[str, Any] = {
        "model": model.name, "system": system.name, "vendor": system.chip.vendor, "year": system.chip.year, "rent": system.rent,
    }  # fmt: skip
    best, reason = None, ""
    for count in _counts(system, chips):
        try:
            found = plan(model, system, workload, slo, chips=count, **given)
        except InputError as problem:
            reason = str(problem)
            continue
        if not found.feasible:
            reason = found.reason
        elif best is None or _value(found) > _value(best):
            best = found
    if best is None:
        return Standing(feasible=False, reason=reason, **told)
    watts = float(best.power.watts)
    runs, rests = _rests_on(best, system, given["engine"])
    return Standing(
        feasible=True,
        engine=best.engine,
        chips=best.chips,
        layout_text=best.layout_text,
        usd_per_million_output_tokens=best.usd_per_million_output_tokens,
        cost_range=best.cost_range,
        prefill_usd_per_million_tokens=best.prefill_usd_per_million_tokens,
        decode_usd_per_million_tokens=best.decode_usd_per_million_tokens,
        tokens_per_second_per_user=best.tokens_per_second_per_user,
        ttft=best.ttft,
        tokens_per_second_per_chip=best.tokens_per_second_per_chip,
        tokens_per_second_per_kilowatt=1e3 * best.tokens_per_second_per_chip / watts,
        runs=runs,
        rests_on=rests,
        plan=best,
        **told,
    )


def _value(found: Plan) -> float:
    """Return what is larger for a better plan: output per dollar, or per chip where no rent is known."""
    cost = found.usd_per_million_output_tokens
    return 1 / cost if math.isfinite(cost) else found.tokens_per_second_per_chip


def _rests_on(found: Plan, system: System, engine: Engine | str | None) -> tuple[int, str]:
    """Return how many runs on this system the engine was fitted to, and in words what its range rests on."""
    if found.cost_range is None and found.tpot_range is None:
        return 0, "a bound, no prediction"
    fit = engine_for(system, engine).fit
    runs = int(fit.get("systems", {}).get(system.name, 0))
    if runs:
        words = f"{runs:,} run{'s' * (runs > 1)} on it"
    elif system.chip.vendor in fit.get("vendors", ()):
        words = f"runs on other chips of {system.chip.vendor}"
    else:
        words = f"no run on a chip of {system.chip.vendor}"
    return runs, words + (f"; {len(found.distance)} way{'s' * (len(found.distance) > 1)} beyond them" if found.distance else "")


def _placed(standings: Iterable[Standing]) -> Iterator[Standing]:
    """Yield standings in their order, each with its place and whether it is tied with the first."""
    ordered = sorted(standings, key=_order)
    first = next((one for one in ordered if one.feasible), None)
    for place, one in enumerate(ordered, start=1):
        if not one.feasible or first is None:
            yield one
            continue
        own, least = one.cost_range or (math.nan, math.nan), first.cost_range or (math.nan, math.nan)
        tied = own[0] < least[1]  # false where either is not known
        yield replace(one, place=place, tied=tied)


def _order(one: Standing) -> tuple[bool, bool, float, str]:
    cost = one.usd_per_million_output_tokens
    rest = -one.tokens_per_second_per_chip if one.feasible else 0.0
    return not one.feasible, not math.isfinite(cost), cost if math.isfinite(cost) else rest, one.system


# --- what would flip the order ------------------------------------------------------------------------------------------


def _flips(found: Ranking, models: list[Model], systems: list[System], given: dict[str, Any]) -> Iterator[str]:
    """Say by what rent, format or engine the second would be cheaper than the first."""
    priced = [one for one in found.standings if one.feasible and math.isfinite(one.usd_per_million_output_tokens)]
    if len(priced) < 2:
        return
    first, second = priced[:2]
    a, b = first.usd_per_million_output_tokens, second.usd_per_million_output_tokens
    rent = float(second.rent.typical)
    yield (
        f"rent: {_pair(second, found)} would be as cheap at {show(rent * a / b, 'USD/s')} a chip, not {show(rent, 'USD/s')}, "
        f"or {_pair(first, found)} as dear at {show(float(first.rent.typical) * b / a, 'USD/s')}"
    )
    subjects = [
        (
            next(m for m in models if m.name == one.model),
            next(s for s in systems if s.name == one.system),
            one.chips,
        )
        for one in (first, second)
    ]
    jobs: list[tuple[Model, System, int, dict[str, Any]]] = [(*subject, given | {"levers": True}) for subject in subjects]
    engines = [name for name in _common(first, second) if name != first.engine or name != second.engine]
    if given["engine"] is None:
        jobs += [(*subject, given | {"engine": name}) for name in engines for subject in subjects]
    else:
        engines = []
    plans = spread(partial(_tried, workload=found.workload, slo=found.slo), jobs)
    yield from _format_flips(found, first, second, plans[:2])
    for name, one, other in zip(engines, plans[2::2], plans[3::2], strict=True):
        if one is not None and other is not None:
            x, y = one.usd_per_million_output_tokens, other.usd_per_million_output_tokens
            holds = "the order holds" if x <= y else "the order flips"
            yield f"engine: with {name} on both, {_usd(x)} and {_usd(y)}: {holds}"


def _common(first: Standing, second: Standing) -> list[str]:
    return [name for name in OTHERS.get(first.vendor, ()) if name in OTHERS.get(second.vendor, ())]


def _tried(job: tuple[Model, System, int, dict[str, Any]], *, workload: Workload, slo: Slo) -> Plan | None:
    model, system, chips, given = job
    try:
        found = plan(model, system, workload, slo, chips=chips, **given)
    except InputError:
        return None
    return found if found.feasible else None


def _format_flips(found: Ranking, first: Standing, second: Standing, plans: Sequence[Plan | None]) -> Iterator[str]:
    """Say what other formats of weights, experts and cache do to the first two."""
    saved: list[dict[str, float]] = [
        {
            lever.option: lever.usd_per_million_output_tokens
            for lever in (one.levers if one is not None else ())
            if lever.option.startswith(("--weights", "--experts", "--kv"))
        }
        for one in plans
    ]
    for option in dict.fromkeys([*saved[0], *saved[1]]):
        a, b = (costs.get(option, math.nan) for costs in saved)
        if math.isfinite(a) and math.isfinite(b):
            yield f"format: with {option} on both, {_usd(a)} and {_usd(b)}: the order {'holds' if a <= b else 'flips'}"
        elif math.isfinite(b):
            less = b < first.usd_per_million_output_tokens
            words = f"format: with {option}, {_pair(second, found)} would cost {_usd(b)}"
            yield f"{words}, {'less' if less else 'still more'} than the first"


def _pair(one: Standing, found: Ranking) -> str:
    several = len({each.model for each in found.standings}) > 1
    return f"{one.model} on {one.system}" if several else one.system


def _usd(value: float) -> str:
    return f"${value:,.2f}" if value >= 1 else f"${value:#.3g}"
