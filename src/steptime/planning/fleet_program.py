r"""Programs of a fleet: mixed-integer programs that choose deployments of several models on given chips.

Each model $m$ needs $R_{mh}$ requests per second in hour $h$. An option $o$ is a deployment of one model on $k_o$ chips of one
system that serves $r_o$ requests per second. $n_{oh}$ whole deployments run in an hour. A system $s$ has $K_s$ chips. Reserved
chips $u_s$ cost $p_s$ USD per hour all day; chips on demand $d_{sh}$ cost $q_s$ in the hours that they run:

$$ \min \sum_s p_s u_s + \frac{1}{H} \sum_{s,h} q_s d_{sh}, \qquad \sum_{o \in m} \min(1, r_o / R_{mh}) n_{oh} \ge 1, \qquad
   \sum_{o \in s} k_o n_{oh} \le u_s + d_{sh} \le K_s. $$

The cost is at most the budget $B$. All models share the chips of an hour, so that models whose peaks differ need fewer chips
than the sum of their peaks. Without a day profile there is one hour, and each deployment in use is rented:

$$ \min \sum_o c_o n_o, \qquad \sum_{o \in m} \min(1, r_o / R_m) n_o \ge 1, \qquad \sum_{o \in s} k_o n_o \le K_s, \qquad
   \sum_o c_o n_o \le B. $$

A deployment that serves more than the rate counts as the rate. This keeps the whole-number solutions and a coefficient of 1:
the solver's tolerance cannot serve a small rate with no deployment. Where nothing fits, further programs find the largest
share of all rates that fits, the smallest shares that remain unserved, and the cheapest additional chips.

References:
    Huangfu and Hall, "Parallelizing the dual revised simplex method", 2018: HiGHS, in `scipy.optimize.milp`.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from steptime.errors import InputError, install_hint
from steptime.number_checks import Array
from steptime.result_base import unit

# Longest time of the solver [s], and the gap to the optimum at which it stops. For an hour of a large day, the gap and the
# nodes of its search, which unlike seconds are the same on every machine.
PATIENCE: Final = 60.0
GAP, HOUR_GAP, HOUR_NODES = 1e-6, 5e-3, 20
# Variables of a program up to which a day is solved to `GAP`.
SMALL: Final = 400
# Weight of a chip in use relative to its rent, so that of two fleets with equal rent the smaller one counts.
TIE: Final = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOption:
    """One deployment of a model on chips of one system."""

    model: int = field(metadata=unit("", "position of the model"))
    system: int = field(metadata=unit("", "position of the system"))
    chips: int = field(metadata=unit("", "chips of the deployment"))
    rate: float = field(metadata=unit("requests/s", "requests that it serves within the limits", key="rate_requests_per_s"))
    usd_per_hour: float = field(metadata=unit("USD/h", "rent of its chips", key="usd_per_hour"))
    layout: str = field(default="", metadata=unit("", "layout in words"))
    speed: float = field(default=math.nan, metadata=unit("tok/s", "output tokens per second of each user at the percentile"))
    ttft: float = field(default=math.nan, metadata=unit("s", "time to first token at the percentile"))
    probability: float = field(default=math.nan, metadata=unit("", "smallest probability of meeting a limit; null: no limit"))
    slowest: float = field(default=1.0, metadata=unit("", "rate at the low end of its 90 % range, over the rate"))
    fastest: float = field(default=1.0, metadata=unit("", "rate at the high end of its 90 % range, over the rate"))
    engine: str = field(default="", metadata=unit("", "name of the engine"))


class DaySolution(NamedTuple):
    """Deployments by option and hour, chips by system, their mean rent [USD/h], and the gap to the optimum."""

    counts: Array
    reserved: Array
    on_demand: Array
    usd_per_hour: float
    gap: float


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
    rows = [(served, np.ones(len(rates)), np.inf), (used, -np.inf, np.asarray(chips, dtype=float))]
    answer = _minimum(rent + tie * size, rows + _budget_row(rent, budget))
    return None if answer is None else np.round(answer.x)


def solve_day(
    options: Sequence[FleetOption],
    rates: Any,
    chips: Sequence[int],
    reserved_rent: Sequence[float],
    on_demand_rent: Sequence[float] | None = None,
    budget: float = math.inf,
    *,
    is_draft: bool = False,
) -> DaySolution | None:
    """Return the deployments of each hour, and the reserved and on-demand chips, with the lowest mean rent.

    Args:
        options: Deployments; their rent is not used.
        rates: Requests per second of each model (row) in each hour (column).
        chips: Chips of each system.
        reserved_rent: Rent of a reserved chip of each system [USD/h], due all day.
        on_demand_rent: Rent of a chip on demand [USD/h], due in hours of use; infinite where a system has no such rent.
        budget: Limit on the mean rent [USD/h].
        is_draft: Of a large day, return the relaxed program, which has fractions of deployments.

    Returns:
        The solution; None if the chips or the budget do not suffice.

    Raises:
        InputError: scipy is not installed, or the solver found no answer in time.

    >>> both = [FleetOption(model=m, system=0, chips=1, rate=1.0, usd_per_hour=2.0) for m in (0, 1)]
    >>> day = solve_day(both, [[3.0, 1.0], [1.0, 3.0]], [8], [2.0])
    >>> day.counts.tolist(), day.reserved.tolist(), day.usd_per_hour
    ([[3.0, 1.0], [1.0, 3.0]], [4.0], 8.0)
    >>> day = solve_day(both, [[3.0, 1.0], [1.0, 1.0]], [8], [2.0], [3.0])
    >>> day.reserved.tolist(), day.on_demand.tolist(), day.usd_per_hour
    ([2.0], [[2.0, 0.0]], 7.0)
    """
    rates = np.asarray(rates, dtype=float)
    hours, systems, deployments = rates.shape[1], len(chips), len(options)
    if not options:
        return None
    limits, price = np.asarray(chips, dtype=float), np.asarray(reserved_rent, dtype=float)
    extra = np.full(systems, np.inf) if on_demand_rent is None else np.asarray(on_demand_rent, dtype=float)
    size = np.array([option.chips for option in options], dtype=float)
    used = np.zeros((systems, deployments))
    used[[option.system for option in options], np.arange(deployments)] = size

    has_extra = np.isfinite(extra)
    settings = (options, rates, limits, price, np.where(has_extra, extra, np.inf), used, budget)
    is_small = (deployments + systems) * hours + systems <= SMALL
    solved = _whole_day(*settings, integral=is_small)
    if solved is None:
        return None
    counts, bound = solved
    if is_draft and not is_small:
        return DaySolution(counts, np.zeros(systems), np.zeros((systems, hours)), bound, 0.0)
    if not is_small:
        by_hour = _hour_by_hour(options, rates, limits, price, extra, used, counts)
        if by_hour is None:
            # The order of the hours was wrong: the program of all hours finds an answer, or proves that no answer exists.
            solved = _whole_day(*settings, integral=True)
            if solved is None:
                return None
            by_hour = solved[0]
        counts = by_hour
    counts = _fewer_kinds(options, rates, counts, used, _reserved_by_system(used @ counts, price, extra))
    # For these deployments the best mix of rents follows by system: a chip is reserved if its hours on demand cost more.
    in_use = used @ counts
    reserved = _reserved_by_system(in_use, price, extra)
    demand_chips = np.maximum(in_use - reserved[:, None], 0.0)
    mean_rent = float(price @ reserved + np.sum(np.where(has_extra, extra, 0.0)[:, None] * demand_chips) / hours)
    if mean_rent > budget * (1 + GAP):
        return None
    return DaySolution(counts, reserved, demand_chips, mean_rent, max(0.0, 1 - bound / mean_rent) if mean_rent > 0 else 0.0)


def _whole_day(
    options: Sequence[FleetOption],
    rates: Array,
    limits: Array,
    price: Array,
    extra: Array,
    used: Array,
    budget: float,
    *,
    integral: bool,
) -> tuple[Array, float] | None:
    """Return deployments by option and hour, and a lower bound of the rent; without `integral` they are fractions."""
    from scipy import sparse

    hours, systems, deployments = rates.shape[1], len(limits), len(options)
    size, place = used.sum(axis=0), [option.system for option in options]
    # Columns: deployments by hour, then reserved chips, then chips on demand by hour.
    eye = sparse.eye_array(systems, format="csr")
    per_hour = sparse.kron(np.ones((hours, 1)), eye)
    demand = sparse.eye_array(systems * hours, format="csr")
    nothing = sparse.csr_array((hours * rates.shape[0], systems + systems * hours))
    no_counts = sparse.csr_array((systems * hours, deployments * hours))
    cover = sparse.block_diag([sparse.csr_array(_served(options, rates[:, hour])) for hour in range(hours)])
    rows: list[tuple[Any, Any, Any]] = [
        # Hours without requests need no deployment.
        (sparse.hstack([cover, nothing]), (rates.T > 0).astype(float).ravel(), np.inf),
        (sparse.hstack([sparse.kron(sparse.eye_array(hours), used), -per_hour, -demand]), -np.inf, 0.0),
        (sparse.hstack([no_counts, per_hour, demand]), -np.inf, np.tile(limits, hours)),
    ]
    has_extra = np.isfinite(extra)
    rent = np.concatenate([np.zeros(deployments * hours), price, np.tile(np.where(has_extra, extra, 0.0), hours) / hours])
    tie = np.concatenate([np.tile(size * TIE * price[place] / hours, hours), np.zeros(systems * (hours + 1))])
    largest = np.concatenate([np.full(deployments * hours, np.inf), limits, np.tile(np.where(has_extra, limits, 0.0), hours)])
    integrality = np.concatenate([np.full(deployments * hours, float(integral)), np.zeros(systems * (hours + 1))])
    answer = _minimum(rent + tie, rows + _budget_row(rent, budget), integral=integrality, largest=largest)
    if answer is None:
        return None
    counts = answer.x[: deployments * hours].reshape(hours, deployments).T
    return np.round(counts) if integral else counts, float(rent @ answer.x) - TIE * float(
        price[place] * size @ counts.mean(axis=1)
    )


def _hour_by_hour(
    options: Sequence[FleetOption],
    rates: Array,
    limits: Array,
    price: Array,
    extra: Array,
    used: Array,
    fractions: Array,
) -> Array | None:
    """Return whole deployments by option and hour, near the fractions of the relaxed program.

    Each hour is a small program with the chips that are reserved so far: those of the relaxed program, and those of earlier
    hours. The hours with the most chips come first, twice. Further chips cost their rent of a day, or that on demand.
    """
    hours, systems, deployments = rates.shape[1], len(limits), len(options)
    in_use = used @ fractions
    base = np.floor(_reserved_by_system(in_use, price, extra) + 1e-6)
    counts = np.zeros((deployments, hours))
    size, place = used.sum(axis=0), [option.system for option in options]
    # Without a rent on demand an hour's further chips are reserved for the day.
    further = np.where(np.isfinite(extra), extra / hours, price)
    order = np.argsort(-in_use.sum(axis=0), kind="stable")
    for turn in range(2):
        for hour in order:
            busy_hours = np.delete(used @ counts, hour, axis=1) if turn else used @ counts
            free = np.where(
                np.isfinite(extra), base, np.maximum(base if not turn else 0.0, busy_hours.max(axis=1, initial=0.0))
            )
            rows = [
                (np.hstack([_served(options, rates[:, hour]), np.zeros((len(rates), systems))]),
                 (rates[:, hour] > 0).astype(float), np.inf),
                (np.hstack([used, -np.eye(systems)]), -np.inf, free),
            ]  # fmt: skip
            cost = np.concatenate([size * TIE * price[place] / hours, further])
            largest = np.concatenate([np.full(deployments, np.inf), np.maximum(limits - free, 0.0)])
            integral = np.concatenate([np.ones(deployments), np.zeros(systems)])
            answer = _minimum(cost, rows, integral=integral, largest=largest, gap=HOUR_GAP, nodes=HOUR_NODES)
            if answer is None:
                return None
            counts[:, hour] = np.round(answer.x[:deployments])
    return counts


def _fewer_kinds(options: Sequence[FleetOption], rates: Array, counts: Array, used: Array, reserved: Array) -> Array:
    """Return deployments with fewer kinds on the same chips.

    A kind goes if another of its model and system serves as much. Many days have equal rents, and the solver's may start
    another layout in each hour. The kind with the fewest chip-hours is the first to go. Reserved chips without use are free.

    >>> small, large = (FleetOption(model=0, system=0, chips=k, rate=k, usd_per_hour=k) for k in (1, 2))
    >>> hours = np.array([[4.0, 3.0]]), np.array([[2.0, 1.0], [1.0, 1.0]])
    >>> _fewer_kinds([small, large], *hours, np.array([[1.0, 2.0]]), np.array([4.0])).tolist()
    [[0.0, 0.0], [2.0, 2.0]]
    """
    size = used.sum(axis=0)
    for first in np.argsort(size * counts.sum(axis=1), kind="stable"):
        option = options[first]
        for second, candidate in enumerate(options):
            is_alike = (candidate.model, candidate.system) == (option.model, option.system) and second != first
            if not is_alike or not counts[first].any() or not counts[second].any():
                continue
            free = size[first] * counts[first] + np.maximum(reserved[option.system] - used[option.system] @ counts, 0.0)
            changed = counts.copy()
            changed[first] = 0.0
            served = np.array([kind.rate * (kind.model == option.model) for kind in options]) @ changed
            additional = np.ceil(np.maximum(rates[option.model] - served, 0.0) / candidate.rate - 1e-9)
            if np.all(additional * size[second] <= free):
                changed[second] += additional
                counts = changed
    return counts


def _reserved_by_system(in_use: Array, reserved_rents: Array, on_demand_rents: Array) -> Array:
    """Return the reserved chips of each system, from its chips in use in each hour."""
    return np.array([_reserved_chips(*row) for row in zip(in_use, reserved_rents, on_demand_rents, strict=True)])


def _reserved_chips(in_use: Array, reserved_rent: float, on_demand_rent: float) -> float:
    """Return the reserved chips with the lowest rent: each is used in at least the share of hours that pays for it.

    >>> _reserved_chips(np.array([4.0, 2.0, 2.0, 1.0]), 2.0, 4.0), _reserved_chips(np.array([4.0, 2.0]), 2.0, math.inf)
    (2.0, 4.0)
    """
    ordered = np.sort(in_use)[::-1]
    # The k-th largest hour is worth its reservation if k hours on demand cost more than all hours reserved.
    hours = math.ceil(len(in_use) * reserved_rent / on_demand_rent - 1e-9) if math.isfinite(on_demand_rent) else 1
    return float(ordered[max(hours, 1) - 1]) if hours <= len(ordered) else 0.0


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
    rows = [
        (np.hstack([served, -np.ones((len(rates), 1))]), np.zeros(len(rates)), np.inf),
        (np.hstack([used, np.zeros((len(chips), 1))]), -np.inf, np.asarray(chips, dtype=float)),
        *_budget_row(np.append(rent, 0.0), budget),
    ]
    integral, largest = np.append(np.ones(len(rent)), 0), np.append(np.full(len(rent), np.inf), 1.0)
    answer = _minimum(np.append(np.zeros(len(rent)), -1.0), rows, integral=integral, largest=largest)
    return 0.0 if answer is None else float(min(answer.x[-1], 1.0))


def unserved_shares(options: Sequence[FleetOption], rates: Sequence[float], chips: Sequence[int]) -> Array:
    """Return the share of each model's rate that the chips leave unserved, with the smallest sum.

    Args:
        options: Deployments.
        rates: Requests per second of each model.
        chips: Chips of each system.

    Returns:
        Shares by model, 0 where all requests are served.

    >>> one = FleetOption(model=0, system=0, chips=1, rate=1.0, usd_per_hour=2.0)
    >>> two = FleetOption(model=1, system=0, chips=4, rate=1.0, usd_per_hour=8.0)
    >>> unserved_shares([one, two], [2.0, 1.0], [5]).tolist()
    [0.5, 0.0]
    """
    served, used, _ = _program(options, rates, len(chips))
    models, deployments = len(rates), len(options)
    rows = [
        (np.hstack([served, np.eye(models)]), np.ones(models), np.inf),
        (np.hstack([used, np.zeros((len(chips), models))]), -np.inf, np.asarray(chips, dtype=float)),
    ]
    # Of two answers with equal shares the one with fewer chips counts.
    size = np.array([option.chips for option in options], dtype=float)
    cost = np.concatenate([TIE * size / max(1.0, float(sum(chips))), np.ones(models)])
    integral = np.concatenate([np.ones(deployments), np.zeros(models)])
    answer = _minimum(cost, rows, integral=integral, largest=np.concatenate([np.full(deployments, np.inf), np.ones(models)]))
    shares: Array = np.ones(models) if answer is None else answer.x[deployments:]
    return np.where(shares > 1e-6, shares, 0.0)


def additional_chips(
    options: Sequence[FleetOption], rates: Sequence[float], chips: Sequence[int], rents: Sequence[float]
) -> Array | None:
    """Return the cheapest chips by system with which all rates are served.

    Args:
        options: Deployments.
        rates: Requests per second of each model.
        chips: Chips of each system.
        rents: Rent of a chip of each system [USD/h].

    Returns:
        Whole numbers by system; None if a model has no option.

    >>> one = FleetOption(model=0, system=0, chips=4, rate=1.0, usd_per_hour=8.0)
    >>> additional_chips([one], [2.5], [8, 8], [2.0, 1.0]).tolist()
    [4.0, 0.0]
    """
    served, used, _ = _program(options, rates, len(chips))
    systems, deployments = len(chips), len(options)
    rows = [
        (np.hstack([served, np.zeros((len(rates), systems))]), np.ones(len(rates)), np.inf),
        (np.hstack([used, -np.eye(systems)]), -np.inf, np.asarray(chips, dtype=float)),
    ]
    answer = _minimum(np.concatenate([np.zeros(deployments), np.asarray(rents, dtype=float)]), rows)
    return None if answer is None else np.round(answer.x[deployments:])


def _served(options: Sequence[FleetOption], rates: Any) -> Array:
    """Return the share of a model's rate that each option serves, at most 1, by model and option."""
    served = np.zeros((len(rates), len(options)))
    for column, option in enumerate(options):
        rate = rates[option.model]
        served[option.model, column] = 1.0 if option.rate >= rate else option.rate / rate
    return served


def _program(options: Sequence[FleetOption], rates: Sequence[float], systems: int) -> tuple[Array, Array, Array]:
    """Return the share of a model's rate (at most 1), chips by system, and rent of each option."""
    used = np.zeros((systems, len(options)))
    used[[option.system for option in options], np.arange(len(options))] = [option.chips for option in options]
    return _served(options, rates), used, np.array([option.usd_per_hour for option in options])


def _budget_row(rent: Array, budget: float) -> list[tuple[Any, Any, Any]]:
    """Return the row that keeps the rent within the budget; none without one."""
    return [(rent[None, :], -np.inf, budget)] if math.isfinite(budget) else []


def _minimum(
    cost: Array,
    rows: Sequence[tuple[Any, Any, Any]],
    *,
    integral: Array | None = None,
    largest: Array | None = None,
    gap: float = GAP,
    nodes: int = 0,
) -> Any:
    """Return the solved program of `scipy.optimize.milp`; None if it has no solution."""
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
    except ImportError:
        raise InputError(f"a fleet needs scipy: {install_hint('simulate')}") from None
    with _quiet_solver():
        solved = milp(
            cost,
            integrality=np.ones(len(cost)) if integral is None else integral,
            bounds=Bounds(0, np.full(len(cost), np.inf) if largest is None else largest),
            constraints=[LinearConstraint(matrix, lb=low, ub=high) for matrix, low, high in rows],
            options={"time_limit": PATIENCE, "mip_rel_gap": gap, **({"node_limit": nodes} if nodes else {})},
        )
    if solved.x is None and solved.status == 2:
        return None
    if solved.x is None and nodes:
        return _minimum(cost, rows, integral=integral, largest=largest, gap=gap)
    if solved.x is None:
        raise InputError(f"fleet: the solver found no answer in {PATIENCE:g} s; leave out models or systems")
    return solved


@contextmanager
def _quiet_solver() -> Iterator[None]:
    """Discard what the solver's C++ code prints: the output of the process may be JSON."""
    try:
        output, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    except OSError:
        # The process has no output.
        yield
        return
    sys.stdout.flush()
    os.dup2(nothing, 1)
    try:
        yield
    finally:
        # Lines in a buffer would be printed at the end of the process.
        with suppress(OSError, AttributeError, TypeError):
            ctypes.CDLL(None).fflush(None)
        os.dup2(output, 1)
        os.close(output)
        os.close(nothing)
