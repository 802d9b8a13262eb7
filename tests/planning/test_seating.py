"""Requests that queue for seats: against a simulation of a server whose pace depends on how many it serves, and by hand."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

import steptime as st
from steptime.planning.plan_problem import queued
from tests.conftest import every
from tests.planning.cases import closed_plan, equal_requests


def served(rate, fixed, each, seats, arrivals, seed):
    """Return mean in flight, wait and life of unit jobs that come at random, of which `seats` advance at once.

    Each advances by 1 / (fixed + each x number) a second. All have the same work, so that they end in the order they began.
    """
    draw = np.random.default_rng(seed)
    came = np.cumsum(draw.exponential(1 / rate, arrivals))
    now = done = 0.0  # done: work that a job has seen that was there from the start
    ends: deque[tuple[float, float]] = deque()
    queue: deque[float] = deque()
    waits, lives, number = [], [], 0
    while number < arrivals or ends:
        leaves = now + (ends[0][0] - done) * (fixed + each * len(ends)) if ends else np.inf
        arrives = came[number] if number < arrivals else np.inf
        then = min(leaves, arrives)
        if ends:
            done += (then - now) / (fixed + each * len(ends))
        now = then
        if arrives <= leaves:
            queue.append(now)
            number += 1
        else:
            lives.append(now - ends.popleft()[1])
        while queue and len(ends) < seats:
            waits.append(now - queue.popleft())
            ends.append((done + 1.0, now))
    return np.mean(waits), np.mean(lives)


@pytest.mark.parametrize(
    ("seats", "growing", "load"),
    every(5, [(8, 0.3, 0.6), (8, 0.3, 0.75), (24, 0.2, 0.8), (24, 0.5, 0.7), (80, 0.3, 0.8), (80, 0.6, 0.75), (80, 0.1, 0.9)]),
)
def test_waits_for_a_seat_are_those_of_a_simulation(seats, growing, load):
    """Within a third of them, or 3 % of a life: of `load` of the seats taken in the mean, were there no end of them."""
    mean = load * seats
    each = growing / (mean + 1)
    fixed = 1 - growing
    life = fixed + each * (mean + 1)  # 1 s, as tokens see it
    wait, _ = served(mean / life, fixed, each, seats, 40_000, 1)
    _, found = queued(np.float64(mean), (fixed + each * seats), seats, growing, (fixed + each * seats) / life)
    assert float(found) == pytest.approx(wait, rel=0.34, abs=0.03)


def test_nobody_waits_for_seats_without_end():
    assert float(queued(np.float64(10.0), 1.0, 1e6, 0.3, 1.0)[1]) < 1e-100


def test_a_chip_that_holds_three_requests_serves_three():
    """65.5 of 73.6 GB are weights: room for three requests of 8,704 tokens of 262,144 B, and three deviations of their sum."""
    system = st.vary(st.load_system("hgx-h100"), {"chip.hbm.capacity": 80e9})
    found = closed_plan("qwen3-32b", system, equal_requests(input_tokens=8192, output_tokens=1024), chips=1, alternatives=False)
    (pool,) = found.pools
    assert found.feasible
    assert (pool.batch, pool.max_num_seqs, pool.queued) == (3, 3, True)
    assert float(pool.memory.cache) == pytest.approx(3 * 8704 * 262_144, rel=1e-6)
    assert pool.kv_tokens_per_rank == pytest.approx(float(pool.memory.cache_room) / 262_144, rel=1e-6)
    longer = 3 * (1 / 12) ** 0.5 * 1024
    assert 3 * 8704 + longer * 3**0.5 <= pool.kv_tokens_per_rank < 4 * 8704 + longer * 4**0.5


@pytest.mark.thorough
def test_memory_of_more_slots_than_fit_is_full():
    plan = st.plan(
        "llama-3.3-70b", "hgx-h100", st.Workload(input_tokens=8192, output_tokens=1024), st.Slo(tpot=0.1), chips=4,
        sizes={"tp": 4}, max_num_seqs=400, alternatives=False, elasticities=False, front=False,
        diagnostics=False, quick=True,
    )  # fmt: skip
    (pool,) = plan.pools
    assert pool.max_num_seqs == 400
    assert float(pool.memory.used) == pytest.approx(float(pool.memory.capacity), rel=1e-9)
    assert pool.kv_tokens_per_rank < 400 * 9216


def test_seats_that_memory_has_no_room_for_are_queued_for():
    """Two chips with room for four, beside 1.92 GB for collectives.

    The rate is nine tenths of what a search over rates of the simulator finds, or more.
    """
    system = st.vary(st.load_system("hgx-h100"), {"chip.hbm.capacity": 82.1e9})
    found = closed_plan(
        "llama-3.1-70b", system, equal_requests(input_tokens=4096, output_tokens=512), st.Slo(tpot=1 / 30, ttft=2), chips=2,
        alternatives=False,
    )  # fmt: skip
    (pool,) = found.pools
    assert pool.queued
    assert pool.max_num_seqs == 4
    assert pool.memory.fits
    assert found.requests_per_second > 0.1
