"""Passes of a batch server against their equations, written out for one point in plain numbers."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from steptime.planning import batch_queue
from steptime.planning.batch_queue import LEVELS, PassTime, arrivals, highest_utilisation, passes, queue_share, upper_tail
from tests.conftest import each

FLAT = PassTime(first=0.4)
BENT = PassTime(first=0.2, slope_to_kink=0.01, kink=4, beyond=0.02, bend=12, far=0.03)
JUMP = PassTime(first=0.2, slope_to_kink=0.01, kink=4, jump=0.1, beyond=0.02, bend=10, far=0.03)
ROWS = PassTime(first=0.2, slope_to_kink=0.002, kink=6, jump=0.08, beyond=0.001, bend=20, far=0.002, row_jump=0.05)


def poisson_below(count: int, mean: float) -> float:
    return math.exp(-mean) * sum(mean**n / math.factorial(n) for n in range(count))


def one_state(rate: float, time: PassTime, seats: float, replicas: int) -> dict[str, float]:
    """Passes of a server whose passes do not jump: the equations of `passes`, solved by bisection."""
    dealt = min(replicas, 16)
    least, most = float(time.first), float(time(seats))

    def idle(tau: float) -> tuple[float, float]:
        nobody = max(poisson_below(dealt, dealt * rate * tau), 1e-250)
        pause = min(max(poisson_below(dealt + 1, dealt * rate * tau) / nobody / rate - tau, 0.0), 1 / rate)
        return nobody * (1 - min(rate * tau / seats, 1.0) ** (seats + 1)), pause

    low, high = least, most
    for _ in range(80):
        tau = (low + high) / 2
        empty, pause = idle(tau)
        follows = min(max(float(time.smooth()(np.float64(rate * (tau + empty * pause)))), least), most)
        low, high = (tau, high) if follows > tau else (low, tau)
    empty, pause = idle(tau)
    prompts = rate * (tau + empty * pause)
    slope = float(time.slope(prompts))
    varied = max((prompts - 1) * (1 - (prompts - 1) / max(seats - 1, 1)), 0) / dealt / max(1 - (rate * slope) ** 2, 1e-3)
    service = min(tau + slope * varied / max(prompts, 1), most)
    during = max(prompts - empty, 0)
    busy = tau / (tau + empty * pause)
    met = during / prompts * min(during / (rate * tau), 1)
    rest = (tau + slope**2 * varied / tau) / 2
    wait = (met + busy * float(queue_share(rate * service / seats, seats * replicas))) * rest
    return {
        "prompts": min(max(prompts, 1), seats),
        "seconds": tau,
        "busy": busy,
        "wait": wait if rate * most < seats else math.inf,
        "service": service,
        "slope": float(time.slope(prompts)),
    }


def all_rows(rate: float, time: PassTime, seats: float, replicas: int) -> dict[str, float]:
    """Passes of a server that changes between rows: shares of the rows by their odds, one row after the other."""
    rows = max(math.ceil(seats / time.kink) if time.row_jump else 2, 2)
    states, weights = [], [1.0]
    for row in range(rows):
        first = time.first + time.jump * (row > 0) + time.row_jump * max(row - 1, 0)
        more = {"slope_to_kink": time.slope_to_kink, "beyond": time.beyond, "bend": time.bend, "far": time.far}
        states.append(one_state(rate, PassTime(first=first, kink=time.kink, **more), seats, replicas))
    spread = [math.sqrt(max(s["prompts"], 1) / (1 - min(rate * s["slope"], 0.95) ** 2) / min(replicas, 16)) for s in states]
    for row in range(rows - 1):
        end = time.kink * (row + 1)
        up = float(upper_tail(np.float64((end + 0.5 - states[row]["prompts"]) / spread[row]))) if end < seats else 0.0
        down = 1 - float(upper_tail(np.float64((end + 0.5 - states[row + 1]["prompts"]) / spread[row + 1])))
        weights.append(weights[-1] * up / down)
    shares = np.array(weights) / sum(weights)
    taken = shares * [s["prompts"] for s in states]
    by = {"prompts": shares, "seconds": shares, "busy": shares, "wait": taken / taken.sum(), "service": taken / taken.sum()}
    return {name: sum(w * s[name] for w, s in zip(weight, states, strict=True) if w > 1e-12) for name, weight in by.items()}


@pytest.mark.parametrize("time", [FLAT, BENT], ids=["flat", "bent"])
@each("seats", [2, 9, 40])
@each("replicas", [1, 3, 40])
def test_passes_solve_their_equations(time, seats, replicas):
    full = seats / float(time(seats))
    rates = full * np.array([1e-3, 0.05, 0.3, 0.6, 0.9, 0.99, 1.1])
    together = passes(rates, time, seats, replicas=replicas)
    for index, rate in enumerate(rates):
        expected = one_state(float(rate), time, seats, replicas)
        for name in ("prompts", "seconds", "busy", "wait", "service"):
            assert getattr(together, name)[index] == pytest.approx(expected[name], rel=2e-6), (name, rate)


@each("time", [BENT, ROWS, PassTime(first=0.2, slope_to_kink=0.05, variance=0.7)])
def test_a_server_of_one_request_is_the_queue_of_pollaczek_and_khinchine(time):
    """W = rho / (1 - rho) s (1 + c^2) / 2, whatever further requests of a pass would take."""
    busy = np.array([0.05, 0.5, 0.9])
    found = passes(busy / 0.2, time, 1)
    assert found.wait == pytest.approx(busy / (1 - busy) * 0.2 * (1 + time.variance) / 2)
    assert found.busy == pytest.approx(busy)
    for name, value in (("prompts", 1.0), ("seconds", 0.2), ("service", 0.2)):
        assert getattr(found, name) == pytest.approx(value)


@each("time, seats", [(JUMP, 12), (JUMP, 3), (JUMP, 4), (ROWS, 24), (ROWS, 33), (ROWS, 5)])
@each("replicas", [1, 4])
def test_passes_that_jump_change_between_their_rows(time, seats, replicas):
    # Bends at whole rows: a pass with the time of a jump never reaches the longest pass of its row.
    rates = seats / float(time(seats)) * np.array([0.05, 0.4, 0.7, 0.85])
    together = passes(rates, time, seats, replicas=replicas)
    for index, rate in enumerate(rates):
        expected = all_rows(float(rate), time, seats, replicas)
        for name in ("prompts", "seconds", "busy", "wait", "service"):
            assert getattr(together, name)[index] == pytest.approx(expected[name], rel=1e-5), (name, rate)


def test_arrivals_of_unequal_numbers_of_replicas_are_those_of_each():
    counts = np.array([1, 2, 7, 16, 40])
    nobody, next_nobody = arrivals(counts)(0.7)
    for index, count in enumerate(np.minimum(counts, 16)):
        assert nobody[index] == pytest.approx(poisson_below(count, 0.7 * count))
        assert next_nobody[index] == pytest.approx(poisson_below(count + 1, 0.7 * count))
    never, next_never = arrivals(3)(1e4)
    assert 0 < never <= 1e-240
    assert next_never <= 1e-200


def level_by_level(limit: float, seconds: list[float], ceiling: float) -> float:
    """Walk the levels up to the first that is too late, and interpolate on the line to it."""
    if seconds[0] > limit:
        return 0.0
    for index, later in enumerate(seconds[1:]):
        if later > limit:
            share = (limit - seconds[index]) / (later - seconds[index])
            return ceiling * (LEVELS[index] + share * (LEVELS[index + 1] - LEVELS[index]))
    return ceiling


@each("late", [0.0, 0.6])
@each("seats, replicas", [(1, 1), (8, 1), (8, 5)])
def test_highest_utilisation_lies_on_the_line_between_two_levels(late, seats, replicas):
    limits = np.array([0.19, 0.21, 0.25, 0.3, 0.34, 0.4, 0.5, 0.7, 1.0, 2.0, 9.0])
    found = highest_utilisation(limits, BENT, seats, 0.9, late=late, replicas=replicas)
    queue = passes(0.9 * LEVELS * seats / BENT(seats), BENT, seats, replicas=replicas)
    seconds = (queue.wait + queue.service * (1 + late)).tolist()
    expected = [level_by_level(limit, seconds, 0.9) for limit in limits]
    assert found == pytest.approx(expected, rel=1e-9)
    assert 0 < sum(0 < x < 0.9 for x in expected) < len(limits)


def test_highest_utilisation_of_many_rows_is_that_of_each(monkeypatch):
    """From many rows on a coarser grid of levels comes first: with the same answer, for fewer levels."""
    limits = np.geomspace(0.19, 3.0, 60)
    alone = highest_utilisation(limits, BENT, 8, 0.9)
    monkeypatch.setattr(batch_queue, "MANY_ROWS", 60)
    evaluated = []
    every = passes

    def counted(rate, *arguments, **keywords):
        evaluated.append(np.shape(rate)[-1])
        return every(rate, *arguments, **keywords)

    monkeypatch.setattr(batch_queue, "passes", counted)
    many = highest_utilisation(
        limits, PassTime(first=np.full(60, 0.2), slope_to_kink=0.01, kink=4, beyond=0.02, bend=12, far=0.03), 8, 0.9
    )
    assert many == pytest.approx(alone, rel=1e-12)
    assert evaluated == [7, 3]


def test_replicas_of_unequal_seats_have_the_passes_of_each():
    seats = np.array([5, 9, 24])
    together = passes(20.0, ROWS, seats, replicas=2)
    for index, count in enumerate(seats):
        alone = passes(20.0, ROWS, count, replicas=2)
        assert together.wait[index] == pytest.approx(float(alone.wait), rel=1e-9)
        assert together.prompts[index] == pytest.approx(float(alone.prompts), rel=1e-9)


def test_upper_tail_is_that_of_the_normal_distribution_within_two_percent():
    away = np.linspace(-4, 2, 25)
    assert upper_tail(away) == pytest.approx([NormalDist().cdf(-x) for x in away], rel=0.021)
