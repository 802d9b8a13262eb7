"""A ranking of models and systems for one workload and one SLO: the cheapest plan of each pair, and what reverses the order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from steptime.catalog.data_files import files
from steptime.catalog.hardware_loading import SystemLike, resolve_system
from steptime.errors import InputError, RangeError, short_repr
from steptime.hardware.rental_prices import KINDS, kind_asked
from steptime.hardware.rental_prices import with_rent as rented
from steptime.hardware.system import Rent, System
from steptime.models.model import Model
from steptime.models.model_loading import ModelLike, resolve_model
from steptime.number_checks import MOST_CHIPS, whole_number
from steptime.physics.engine import Engine, engine_for, load_engine
from steptime.planning.plan_result import Plan
from steptime.planning.planner import MODES, check_limits, plan
from steptime.planning.workload import Slo, Workload
from steptime.processes import map_in_processes
from steptime.sweeps.break_even import flips
from steptime.sweeps.ranking_result import Ranking, Standing

# Value of `chips` for the cheapest number of chips.
ANY: Final = "any"
# Bounds of the largest number of chips that the search for the cheapest number tries.
SCANNED, MOST_SCANNED = 64, 1024


def compare(
    models: ModelLike | Sequence[ModelLike],
    systems: SystemLike | Sequence[SystemLike] | None,
    workload: Workload,
    slo: Slo | None = None,
    *,
    chips: int | str | None = None,
    engine: Engine | str | None = None,
    modes: str | tuple[str, ...] = MODES,
    rent: str | float | None = None,
    sure: float | None = None,
    catalog: str | None = None,
) -> Ranking:
    """Return the cheapest plan of each model on each system, the cheapest pair first.

    Args:
        models: One or several names, paths or models.
        systems: One or several names, paths or systems; None: all systems of the catalogue.
        workload: Requests to serve.
        slo: Limits on mean latencies; None: no limits.
        chips: Chips of each system; by default one scale-up domain. "any" searches the cheapest number among powers of two
            up to the larger of a domain and `SCANNED`.
        engine: Engine of all plans; by default each system's own.
        modes: Deployment modes, as for `plan`.
        rent: Kind of rent ("owned", "contract", "ondemand"), or USD per chip-hour for all systems. A system without that
            kind has no cost.
        sure: Required probability that a plan meets each limit, as for `plan`.
        catalog: Folder that is searched before the packaged catalogue.

    Returns:
        One standing per pair; a pair without a plan has a `reason`.

    Raises:
        InputError: If an input is wrong for all pairs.
        RangeError: If there is nothing to compare, or `chips` is out of bounds.
    """
    loaded = list({model.name: model for model in map(resolve_model, _several(models))}.values())
    distinct_systems, labels = _told_apart(files("systems", catalog) if systems is None else _several(systems))
    if not loaded or not distinct_systems:
        raise RangeError(f"{'models' if not loaded else 'systems'}: needs at least one to compare, got none")
    if isinstance(chips, str) and chips != ANY:
        raise RangeError(f"chips: must be a number or {ANY!r}, got {short_repr(chips)}")
    slo = slo or Slo()
    if chips is not None and chips != ANY:
        whole_number("chips", chips, maximum=MOST_CHIPS)

    # Inputs of all pairs are checked here, since errors of one plan are only reasons.
    check_limits(sure, slo)
    engine = load_engine(engine, catalog) if isinstance(engine, str) else engine
    machines = [_rented(system, rent) for system in distinct_systems]

    # Alternatives cost time: they are computed later, and only for the first two.
    plan_options: dict[str, Any] = {
        "engine": engine,
        "modes": modes,
        "sure": sure,
        "alternatives": False,
        "elasticities": False,
    }
    pairs = [(model, system, label) for model in loaded for system, label in zip(machines, labels, strict=True)]
    stand = partial(_standing, workload=workload, slo=slo, chips=chips, plan_options=plan_options)
    standings = tuple(_placed(map_in_processes(stand, pairs)))
    ranking = Ranking(workload=workload, slo=slo, standings=standings)
    return replace(ranking, flips=tuple(flips(ranking, pairs, plan_options)))


def _several(subjects: Any) -> list[Any]:
    return list(subjects) if isinstance(subjects, list | tuple) else [subjects]


def _told_apart(candidates: Iterable[SystemLike]) -> tuple[list[System], list[str]]:
    """Return distinct systems, and labels for those that share a name."""
    systems: list[System] = []
    labels: list[str] = []
    for candidate in candidates:
        system = resolve_system(candidate)
        if system in systems:
            continue
        has_namesake = any(earlier.name == system.name for earlier in systems)
        labels.append(
            f"{system.name} ({candidate if isinstance(candidate, str) else len(systems) + 1})" if has_namesake else ""
        )
        systems.append(system)
    return systems, labels


def _rented(system: System, rent: str | float | None) -> System:
    """Return a system with a rent of the given kind; without any rent if unknown."""
    if rent is None:
        return system
    try:
        return rented(system, rent)
    except RangeError:
        if not isinstance(rent, str) or kind_asked(rent) not in KINDS:
            raise
        return replace(system, rent=Rent())


def _counts(system: System, chips: int | str | None) -> list[int | None]:
    if chips != ANY:
        return [chips if isinstance(chips, int) else None]
    max_chips = int(min(max(system.scale_up.size, SCANNED), system.scale_out.size, MOST_SCANNED))
    domain = int(min(system.scale_up.size, max_chips))
    return sorted({*(2**n for n in range(max_chips.bit_length()) if 2**n <= max_chips), domain})


def _standing(
    pair: tuple[Model, System, str], *, workload: Workload, slo: Slo, chips: int | str | None, plan_options: dict[str, Any]
) -> Standing:
    """Return the best plan of a model on a system, over the numbers of chips to try."""
    model, system, label = pair
    identity: dict[str, Any] = {
        "model": model.name, "system": system.name, "vendor": system.chip.vendor, "year": system.chip.year, "rent": system.rent,
        "label": label,
    }  # fmt: skip

    # A number of chips without a plan is skipped; the last reason stays if all have none.
    best, reason = None, ""
    for count in _counts(system, chips):
        try:
            candidate = plan(model, system, workload, slo, chips=count, **plan_options)
        except InputError as problem:
            reason = str(problem)
            continue
        if not candidate.feasible:
            reason = candidate.reason
        elif best is None or _value(candidate) > _value(best):
            best = candidate
    if best is None:
        return Standing(feasible=False, reason=reason, **identity)
    watts = float(best.power.watts)
    runs, rests = _rests_on(best, system, plan_options["engine"])
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
        power_basis=best.power.basis,
        runs=runs,
        rests_on=rests,
        plan=best,
        **identity,
    )


def _value(candidate: Plan) -> float:
    """Return a value that is larger for a better plan.

    It is output per dollar, or per chip if no rent is known.
    """
    cost = candidate.usd_per_million_output_tokens
    return 1 / cost if math.isfinite(cost) else candidate.tokens_per_second_per_chip


def _rests_on(best: Plan, system: System, engine: Engine | str | None) -> tuple[int, str]:
    """Return the number of measured runs on this system, and the basis of the range."""
    if best.cost_range is None and best.tpot_range is None:
        return 0, "a physical bound instead of a prediction"
    fit = engine_for(system, engine).fit
    runs = int(fit.get("systems", {}).get(system.name, 0))
    if runs:
        words = f"{runs:,} run{'s' * (runs > 1)} on it"
    elif system.chip.vendor in fit.get("vendors", ()):
        words = f"runs on other chips of {system.chip.vendor}"
    else:
        words = f"no run on a chip of {system.chip.vendor}"
    return runs, words + (f"; beyond the measured runs: {', '.join(best.distance)}" if best.distance else "")


def _placed(standings: Iterable[Standing]) -> Iterator[Standing]:
    """Yield standings in order, each with its place and whether it ties the first."""
    ordered = sorted(standings, key=_order)
    able = [standing for standing in ordered if standing.feasible]
    priced = [standing for standing in able if math.isfinite(standing.usd_per_million_output_tokens)]
    # Places count either costs or, if no rent is known at all, output per chip.
    counted = priced or able
    for standing in ordered:
        if standing not in counted:
            yield standing
            continue
        cost_range, least = standing.cost_range or (math.nan, math.nan), counted[0].cost_range or (math.nan, math.nan)
        # Unknown ranges are NaN, which compare as not tied.
        yield replace(standing, place=counted.index(standing) + 1, tied=cost_range[0] < least[1])


def _order(standing: Standing) -> tuple[bool, bool, float, str]:
    cost = standing.usd_per_million_output_tokens
    fallback = -standing.tokens_per_second_per_chip if standing.feasible else 0.0
    return not standing.feasible, not math.isfinite(cost), cost if math.isfinite(cost) else fallback, standing.system
