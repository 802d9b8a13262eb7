"""Pools on two systems: a prefill pool on one, a decode pool on another, and the chips of each.

KV caches travel over the slower of both scale-out networks. Engines move caches between chips of one vendor, in one format.
All chips of both systems are rented: there is no division of chips between the pools. Without a number of prefill chips,
closed forms choose the whole hosts with the lowest rent per request.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from steptime.errors import RangeError
from steptime.hardware.rental_prices import has_rent
from steptime.hardware.system import System
from steptime.hardware.what_if import is_single
from steptime.models.model import Model
from steptime.number_checks import MOST_CHIPS, whole_number
from steptime.physics.compute_dtype import as_served
from steptime.physics.layout import host_chips, shaped, stacked
from steptime.planning.batch_grids import batch_grid
from steptime.planning.evidence import ANY, MEASURED, PUBLISHED, deployment_evidence
from steptime.planning.pd_matching import search_disaggregated
from steptime.planning.plan_problem import AGGREGATED, DISAGGREGATED, Candidate, PlanProblem, Table, steady_state
from steptime.planning.plan_result import Plan, SingleSystem
from steptime.planning.plan_search import fitting, rows_within

# Most prefill chips to try, over the chips that decode.
MOST_PREFILL_SHARE: Final = 4
# Ratio of the numbers of hosts that are tried first.
HOST_STEP: Final = 1.5


def check_two_systems(modes: tuple[str, ...], rate: float | None) -> tuple[str, ...]:
    """Return the mode of pools on two systems.

    Args:
        modes: Modes to search.
        rate: Rate of a fleet, or None.

    Returns:
        The mode of separate pools.

    Raises:
        RangeError: That mode is excluded, or the question is for a fleet.
    """
    if DISAGGREGATED not in modes:
        raise RangeError(
            f"mode: pools on two systems are separate, got {AGGREGATED}; use {DISAGGREGATED}, or leave out prefill_system "
            "(--prefill-system)"
        )
    if rate is not None:
        raise RangeError(
            "rate: a fleet has replicas of one system, got two systems; leave it out and multiply the plan, or leave out "
            "prefill_system (--prefill-system)"
        )
    return (DISAGGREGATED,)


def with_prefill_system(case: PlanProblem, model: Model, system: System, chips: int | tuple[int, ...] | None) -> PlanProblem:
    """Return a problem whose prefill pool is on another system.

    Args:
        case: Problem of the pool that decodes.
        model: Model as loaded.
        system: System of the prefill pool.
        chips: Its chips; None or several numbers for the most that are tried, until they are chosen.

    Returns:
        The problem.

    Raises:
        RangeError: The two systems cannot exchange KV caches, or chips are out of range.
    """
    if not is_single(system):
        raise RangeError("prefill_system: a plan takes one system for prefill, got arrays; give single numbers")
    decoding, vendor = case.system, case.system.chip.vendor
    if system.chip.vendor != vendor:
        raise RangeError(
            f"prefill_system: engines move KV caches between chips of one vendor only, got {system.name} "
            f"({system.chip.vendor or 'no vendor'}) with {decoding.name} ({vendor or 'no vendor'}); choose a system of {vendor}"
        )
    for machine in (decoding, system):
        if machine.is_box:
            raise RangeError(
                f"prefill_system: KV caches need a network between the systems, and {machine.name} has none beyond its "
                f"{int(machine.chips)} chips; choose a system with a scale-out network"
            )
    if case.engine.anchor is not None:
        raise RangeError("anchor: your own runs correct one system, got two; leave the runs out (--no-anchor)")
    formats = [as_served(model, machine, case.engine).kv_format for machine in (decoding, system)]
    if formats[0] != formats[1]:
        raise RangeError(
            f"kv: both pools need one format of the KV cache, got {formats[0]} on {decoding.name} and {formats[1]} on "
            f"{system.name}; set it with --kv {formats[0]}"
        )
    count = chips_to_try(case.chips, system) if chips is None or isinstance(chips, tuple) else chips
    number = whole_number("prefill_chips", count, maximum=MOST_CHIPS)
    if number > system.scale_out.size:
        raise RangeError(
            f"prefill_chips: must be at most {system.scale_out.size:,}, the chips in a network of {system.name}, got {number:,}"
        )
    return replace(case, prefill_system=system, prefill_chips=number)


def chips_to_try(chips: int, system: System) -> int:
    """Return the most prefill chips to try, in whole hosts.

    Args:
        chips: Chips that decode.
        system: System of the prefill pool.

    Returns:
        Chips; at least one host.
    """
    host = host_chips(system)
    hosts = min(math.ceil(MOST_PREFILL_SHARE * chips / host), int(min(system.scale_out.size, MOST_CHIPS)) // host)
    return host * max(1, hosts)


def rent_or_chips(case: PlanProblem) -> float:
    """Return what a deployment costs: its rent [USD/s], or its chips where a rent is not known.

    Args:
        case: Plan problem.

    Returns:
        Rent or chips.
    """
    rent = float(case.rent)
    return rent if math.isfinite(rent) and rent > 0 else float(case.total_chips)


def likely_prefill_chips(case: PlanProblem, evidence: str) -> list[int]:
    """Return numbers of prefill chips with the lowest cost per request by closed forms: the best one, and its neighbours.

    Args:
        case: Plan problem with two systems.
        evidence: Evidence that layouts must have.

    Returns:
        Chips of whole hosts, the best number first.
    """
    return _likely_sizes(case, evidence)[0]


class LikelyPair(NamedTuple):
    """What closed forms say of pools on two systems; pairs sort by it.

    `is_unpriced` says that a rent is missing, so that `cost` is in chip-seconds per request instead of USD. The cost is
    infinite where nothing meets the limits. `prefill_chips` are likely numbers, the one with that cost first.
    """

    is_unpriced: bool
    cost: float
    prefill_chips: tuple[int, ...]


def likely_pair(case: PlanProblem, evidence: str) -> LikelyPair:
    """Return the lowest cost per request by closed forms, over numbers of prefill chips.

    Args:
        case: Plan problem with two systems.
        evidence: Evidence that layouts must have.

    Returns:
        The cost and the numbers.
    """
    counts, cost = _likely_sizes(case, evidence)
    return LikelyPair(not (math.isfinite(float(case.rent)) and float(case.rent) > 0), cost, tuple(counts))


def _likely_sizes(case: PlanProblem, evidence: str) -> tuple[list[int], float]:
    """Return the likely numbers of prefill chips, and the cost per request of the best one."""
    assert case.prefill_system is not None
    host = host_chips(case.prefill_system)
    most_hosts = chips_to_try(case.chips, case.prefill_system) // host
    levels = (PUBLISHED, ANY) if evidence in (MEASURED, PUBLISHED) else (ANY,)
    for kind in levels:
        costs = _costs_by_hosts(replace(case, evidence=kind), host, most_hosts)
        best = min(costs, key=lambda hosts: costs[hosts])
        if math.isfinite(costs[best]):
            break
    else:
        # No number of hosts meets the limits: the plan of the largest number says why.
        return [most_hosts * host], math.inf
    counts = [hosts * host for hosts in (best, best - 1, best + 1) if 1 <= hosts <= most_hosts]
    return [chips for chips in counts if fitting(replace(case, prefill_chips=chips).prefill)], costs[best]


def _costs_by_hosts(case: PlanProblem, host: int, most_hosts: int) -> dict[int, float]:
    """Return the cost per request by closed forms of numbers of hosts: of a coarse grid, and of steps to the lowest cost."""
    layouts = fitting(case)
    if not layouts:
        return {1: math.inf}
    table = stacked(layouts)
    wide = shaped(table, 1)
    # Decode does not depend on the prefill pool.
    decode = steady_state(case, DISAGGREGATED, wide, batch_grid(wide))
    costs: dict[int, float] = {}

    def cost(hosts: int) -> float:
        if hosts not in costs:
            sized = replace(case, prefill_chips=hosts * host)
            readers = fitting(sized.prefill)
            rate = _highest_rate(sized, search_disaggregated(sized, table, decode, stacked(readers))) if readers else 0.0
            costs[hosts] = rent_or_chips(sized) / rate if rate > 0 else math.inf
        return costs[hosts]

    hosts, best = 1, 1
    while hosts <= most_hosts:
        best = min(best, hosts, key=cost)
        hosts = max(hosts + 1, int(hosts * HOST_STEP))
    while True:
        nearest = [number for number in (best - 1, best + 1) if 1 <= number <= most_hosts]
        better = min((best, *nearest), key=cost)
        if better == best:
            return costs
        best = better


def _highest_rate(case: PlanProblem, table: Table) -> float:
    """Return the highest rate within the usual targets, or within the widest ones [requests/s]; 0 without such a rate."""
    for level in (*case.levels[1:2], *case.levels[:1]):
        rows = rows_within(replace(case, slo=level), table)
        if len(rows):
            return float(np.max(table.rate[rows]))
    return 0.0


def single_system_problems(case: PlanProblem) -> Iterator[PlanProblem]:
    """Yield the problem of each of two systems alone, with whole hosts for about the same rent.

    Args:
        case: Plan problem with two systems.

    Yields:
        Problems without a second system. Without a rent, each has as many chips as both systems together.
    """
    assert case.prefill_system is not None
    systems = {system.name: system for system in (case.system, case.prefill_system)}
    is_rented = math.isfinite(float(case.rent)) and float(case.rent) > 0
    for system in systems.values():
        host = host_chips(system)
        chips = float(case.rent / system.rent.typical) if is_rented and has_rent(system.rent) else case.total_chips
        hosts = max(1, min(round(chips / host), int(min(system.scale_out.size, MOST_CHIPS)) // host))
        yield replace(
            case, system=system, chips=hosts * host, prefill_system=None, prefill_chips=0, front=False, diagnostics=False
        )


def as_single_system(plan: Plan) -> SingleSystem:
    """Return the figures of a plan on one system.

    Args:
        plan: Feasible plan.

    Returns:
        Chips, rate and cost.
    """
    return SingleSystem(
        system=plan.system,
        chips=plan.chips,
        usd_per_second=plan.usd_per_second,
        layout_text=plan.layout_text,
        requests_per_second=plan.requests_per_second,
        usd_per_million_output_tokens=plan.usd_per_million_output_tokens,
        tokens_per_second_per_chip=plan.tokens_per_second_per_chip,
    )


def pair_warning(case: PlanProblem, candidate: Candidate) -> tuple[str, ...]:
    """Return a warning that pools on two systems have no evidence, and what their layouts rest on.

    Args:
        case: Plan problem.
        candidate: Candidate.

    Returns:
        One warning; none for one system.
    """
    if case.prefill_system is None or candidate.prefill_layout is None or not case.is_pair:
        return ()
    pools = ((case.system, candidate.layout), (case.prefill_system, candidate.prefill_layout))
    is_usual = all(deployment_evidence(case.engine, system, layout, layout) == PUBLISHED for system, layout in pools)
    kinds = "Each pool has a layout of a published kind" if is_usual else "A pool has a layout that no published run has"
    return (
        f"nobody has published runs of {case.engine.name} with prefill on {case.prefill_system.name} and decode on "
        f"{case.system.name}: the prediction assumes that caches pass between them as within one system. {kinds}",
    )
