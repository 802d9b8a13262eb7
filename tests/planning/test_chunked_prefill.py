"""Steps with prefill chunks against their equations, written out for one point in plain numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from steptime.planning import chunked_prefill
from steptime.planning.batch_queue import queue_share
from steptime.planning.chunked_prefill import interleaved_prefill_share, mixed_step_stats
from tests.conftest import each


def slow_steps_wanted(
    share: float, load: float, slots: float, chunks: float, decode: float, first: float, more: float
) -> float:
    """The share of slow steps that follows from a share of them: the equation of `mixed_step_stats`."""
    slow = first + more * (max(load / share, 1) - 1)
    step = decode + share * (slow - decode)
    full = min(load * slow / (slots * step), 1 - 1e-9)
    rate, weight = load / (chunks * step), 1 / (slots**2 * chunks)
    odds = math.expm1(min(slots * full - math.log(1 - full ** (slots + 1)), 700))
    odds *= (math.expm1(-rate * decode) / math.expm1(-rate * slow)) ** (1 - weight) * (decode / slow) ** weight
    return odds / (1 + odds)


def slow_steps(*point: float) -> float:
    low, high = 1e-15, 1.0
    for _ in range(90):
        share = (low + high) / 2
        low, high = (share, high) if slow_steps_wanted(share, *point) > share else (low, share)
    return share


POINTS = [
    (load * slots, slots, chunks, decode, first, more)
    for slots, chunks, decode, first, more in (
        (2, 1, 0.01, 0.03, 0.002),
        (3, 4, 0.02, 0.021, 0.0),
        (8, 2, 0.01, 0.2, 0.004),
        (72, 1, 0.015, 0.05, 0.001),
    )
    for load in (0.01, 0.2, 0.5, 0.8)
]
COLUMNS = tuple(np.array(column, dtype=float) for column in zip(*POINTS, strict=True))


@pytest.mark.parametrize("bisect", [True, False])
def test_the_share_of_slow_steps_is_found_without_bisection(monkeypatch, bisect):
    """Six evaluations at once are enough at ordinary points."""
    excess, evaluated = chunked_prefill._excess, []

    def counted(share, *columns):
        evaluated.append(len(share))
        return excess(share, *columns)

    monkeypatch.setattr(chunked_prefill, "_excess", counted)
    monkeypatch.setattr(chunked_prefill, "UNSETTLED", -1.0 if bisect else 1e-5)
    found = 1 - mixed_step_stats(*COLUMNS).decode_only_share
    assert found == pytest.approx([slow_steps(*point) for point in POINTS], rel=1e-7)
    assert len(evaluated) == (46 if bisect else 6)


@pytest.mark.parametrize("replicas", [1, 6])
def test_waits_and_service_follow_from_the_share_of_slow_steps(replicas):
    stats = mixed_step_stats(*COLUMNS, replicas=replicas)
    for index, (load, slots, chunks, decode, first, more) in enumerate(POINTS):
        share = slow_steps(load, slots, chunks, decode, first, more)
        reads = max(load / share, 1)
        slow = first + more * (reads - 1)
        step = share * slow + (1 - share) * decode
        spread = (reads - 1) * (1 - (reads - 1) / (slots - 1))
        own = slow + more * spread / reads
        busy = load / step * (first + more * (slots - 1)) / slots
        rest = ((1 - share) * decode**2 + share * (slow**2 + more**2 * spread)) / (2 * step)
        queue = float(queue_share(busy, slots * replicas))
        expected = {
            "decode_only_share": 1 - share,
            "seconds": step,
            "slow": slow,
            "chunks_per_mixed_step": reads,
            "utilisation": busy,
            "service": chunks * own,
            "wait": rest + (rest + (chunks - 1) * own / 2) * queue if busy < 1 else math.inf,
        }
        for name, value in expected.items():
            assert getattr(stats, name)[index] == pytest.approx(value, rel=1e-6), (name, index)


def test_more_load_than_slots_waits_without_end():
    stats = mixed_step_stats(np.array([4.0, 6.0, 8.0]), 4, 2, 0.01, 0.05, 0.01)
    assert stats.utilisation.tolist() == [1.0, 1.5, 2.0]
    assert np.isinf(stats.wait).all()
    assert stats.chunks_per_mixed_step == pytest.approx([4.0] * 3)
    assert stats.seconds == pytest.approx([0.08] * 3)


@each("replicas", [1, 5])
@each(
    "decoding, steps, chunks, decode, slow",
    [
        (4.0, 127, 4, 0.01, 0.1),
        (20.0, 500, 2, 0.02, 0.05),
        (1.0, 1000, 30, 0.015, 0.7),
        (90.0, 100, 1, 0.01, 0.05),
        (9.0, 8, 2, 0.01, 0.02),
    ],
)
def test_the_share_of_mixed_steps_that_a_token_meets_solves_its_equation(decoding, steps, chunks, decode, slow, replicas):
    """Prompts come at the rate at which requests end; the longer a token waits for prompts, the fewer come."""

    def met(seen: float) -> tuple[float, float]:
        rate = decoding / (steps * (decode + seen * (slow - decode)))
        used = min(rate * chunks * slow, 1 - 1e-9)
        idle = 1 - rate * chunks * (slow - decode)
        share = min(rate * chunks * decode / idle, 1.0) if idle > 1e-9 else 1.0
        waiting = used / 2 * float(queue_share(used, replicas))
        extra = used ** (replicas**0.75) + waiting - (used / 2 + waiting) * share / used
        return min(max((decoding * chunks + chunks * extra) / steps, 0.0), 1.0), share

    # The error halves in each of twelve rounds.
    seen = min(decoding * chunks / steps, 1.0)
    for _ in range(12):
        wanted, share = met(seen)
        seen = (seen + wanted) / 2
    found = interleaved_prefill_share(decoding, steps, chunks, decode, slow, replicas=replicas)
    assert [float(x) for x in found] == [pytest.approx(seen, rel=1e-6), pytest.approx(share, rel=1e-6)]
    assert seen == pytest.approx(met(seen)[0], abs=2e-3)


def test_the_share_of_slow_steps_is_found_wherever_steps_with_chunks_are_long():
    """Points where the secant method fails are bisected, next to others where it does not."""
    rng = np.random.default_rng(1)
    slots = rng.choice([2.0, 3.0, 8.0, 64.0], 120)
    points = [
        rng.uniform(0.01, 0.99, 120) * slots,
        slots,
        rng.choice([1.0, 4.0, 32.0], 120),
        np.full(120, 0.01),
        0.01 * np.exp(rng.uniform(0, 6, 120)),
        0.01 * np.exp(rng.uniform(-3, 4, 120)),
    ]
    hard = (0.6140852564786954, 2, 16, 0.01, 2.8470276153025127, 0.35246067226328353)
    points = [np.append(column, value) for column, value in zip(points, hard, strict=True)]
    found = 1 - mixed_step_stats(*points).decode_only_share
    assert found[-1] == pytest.approx(0.310429, abs=1e-6)
    assert found == pytest.approx([slow_steps(*(float(c[i]) for c in points)) for i in range(121)], rel=1e-5)
