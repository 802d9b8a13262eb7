"""Changes of rent, number format or engine that reverse the order of the two cheapest entries of a ranking."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from steptime.errors import InputError
from steptime.hardware.number_formats import number_format
from steptime.hardware.rental_prices import kind_in_words, rents_by_kind
from steptime.hardware.system import System
from steptime.hardware.unit_cost import usd
from steptime.models.model import Model, with_formats
from steptime.physics.kv_dtype import with_small_cache
from steptime.planning.plan_result import Plan
from steptime.planning.planner import plan
from steptime.planning.workload import Slo, Workload
from steptime.processes import map_in_processes
from steptime.sweeps.ranking_result import Ranking, Standing
from steptime.units import show

# Options that change a number format.
FORMATS: Final = ("--weights", "--experts", "--kv")
Job = tuple[Model, System, int, dict[str, Any]]
# Serving engines by the vendor of the chip.
ENGINES_BY_VENDOR: Final = {
    "NVIDIA": ("vllm", "sglang", "trtllm"),
    "AMD": ("vllm", "sglang"),
}


def flips(ranking: Ranking, pairs: list[tuple[Model, System, str]], plan_options: dict[str, Any]) -> Iterator[str]:
    """Yield sentences on the rent, format or engine that would reverse the order.

    Args:
        ranking: Ranking whose first two entries are compared.
        pairs: Model, system and label of each entry.
        plan_options: Options of the plans of the ranking.

    Yields:
        One sentence per rent, format and engine.
    """
    if len(ranking.priced) < 2:
        return
    first, second = ranking.priced[:2]
    both = (first, second)
    by_name = {(model.name, system.name, label): (model, system) for model, system, label in pairs}
    subjects = [by_name[standing.model, standing.system, standing.label] for standing in both]
    if subjects[0][1] != subjects[1][1]:
        yield from _rent_flips(ranking, first, second, [system for _, system in subjects])

    # The plans of both entries name their cheaper formats only with alternatives.
    with_levers = plan_options | {"alternatives": True}
    jobs: list[Job] = [(*subject, standing.chips, with_levers) for subject, standing in zip(subjects, both, strict=True)]
    engines = [name for name in _common(first, second) if name != first.engine or name != second.engine]

    # An engine that the user chose is not in question.
    if plan_options["engine"] is None:
        jobs += [(*job[:3], plan_options | {"engine": name}) for name in engines for job in jobs[:2]]
    else:
        engines = []
    find_plan = partial(_feasible_plan, workload=ranking.workload, slo=ranking.slo)

    # All plans are found in one call, so that processes share the work.
    plans = map_in_processes(find_plan, jobs)
    yield from _format_flips(jobs[:2], plans[:2], find_plan)
    for name, first_plan, second_plan in zip(engines, plans[2::2], plans[3::2], strict=True):
        yield from _both(f"engine: with {name}", first_plan, second_plan)
    if plan_options["engine"] is None and first.engine != second.engine and not engines:
        yield (
            f"engine: {first.engine} for the first and {second.engine} for {ranking.called(second)}; "
            "no engine of this comparison serves both"
        )


def _rent_flips(ranking: Ranking, first: Standing, second: Standing, systems: Sequence[System]) -> Iterator[str]:
    """Yield the break-even rents, and the costs of both with each common kind of rent."""
    # Cost is proportional to rent, so that the break-even rent is the rent times the ratio of costs.
    a, b = first.usd_per_million_output_tokens, second.usd_per_million_output_tokens
    first_rent, second_rent = float(first.rent.typical), float(second.rent.typical)
    yield (
        f"rent: both cost the same if {ranking.called(second)} rents for {show(second_rent * a / b, 'USD/s')} per chip instead "
        f"of {show(second_rent, 'USD/s')}, or the first for {show(first_rent * b / a, 'USD/s')} "
        f"instead of {show(first_rent, 'USD/s')}"
    )
    kinds = [rents_by_kind(system) for system in systems]
    for kind in kinds[0]:
        if kind in kinds[1] and (first.rent.kind, second.rent.kind) != (kind, kind):
            x, y = a * float(kinds[0][kind].typical) / first_rent, b * float(kinds[1][kind].typical) / second_rent
            order = "stays" if x <= y else "reverses"
            yield (
                f"rent: both at the kind {kind_in_words(kinds[0][kind])!r}: {ranking.called(first)} costs {usd(x)} and "
                f"{ranking.called(second)} {usd(y)}; the order {order}"
            )


def _both(words: str, first: Plan | None, second: Plan | None) -> Iterator[str]:
    """Yield the costs of both with one choice; nothing if neither has a plan with it."""
    x, y = (math.nan if candidate is None else candidate.usd_per_million_output_tokens for candidate in (first, second))
    if math.isfinite(x) and math.isfinite(y):
        yield f"{words} on both: first {usd(x)}, second {usd(y)}; the order {'stays' if x <= y else 'reverses'}"
    elif math.isfinite(x) or math.isfinite(y):
        which, cost = ("first", x) if math.isfinite(x) else ("second", y)
        yield f"{words}: only the {which} has a plan, at {usd(cost)}"


def _common(first: Standing, second: Standing) -> list[str]:
    return [name for name in ENGINES_BY_VENDOR.get(first.vendor, ()) if name in ENGINES_BY_VENDOR.get(second.vendor, ())]


def _feasible_plan(job: Job, *, workload: Workload, slo: Slo) -> Plan | None:
    model, system, chips, options = job
    try:
        candidate = plan(model, system, workload, slo, chips=chips, **options)
    except InputError:
        return None
    return candidate if candidate.feasible else None


def _format_flips(jobs: Sequence[Job], plans: Sequence[Plan | None], find_plan: Callable[[Job], Plan | None]) -> Iterator[str]:
    """Yield the costs of both with each number format that makes one of them cheaper."""
    # Only formats that are an alternative of at least one of the two plans are tried.
    options = [
        lever.option
        for candidate in plans
        if candidate is not None
        for lever in candidate.alternatives
        if lever.option.startswith(FORMATS)
    ]
    option_jobs = [(option, job) for option in dict.fromkeys(options) for job in jobs]
    new_plans = map_in_processes(
        find_plan, [(_stored(job[0], option), *job[1:3], job[3] | {"alternatives": False}) for option, job in option_jobs]
    )
    for row in range(0, len(option_jobs), 2):
        yield from _both(f"format: with {option_jobs[row][0]}", new_plans[row], new_plans[row + 1])


def _stored(model: Model, option: str) -> Model:
    """Return a model in the format of a lever's option."""
    name, stored = option.split()
    if name == "--kv":
        return with_small_cache(model)
    stored_format = number_format(stored)
    return with_formats(model, weights=stored_format if name == "--weights" else None, experts=stored_format)
