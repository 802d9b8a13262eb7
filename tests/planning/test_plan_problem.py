"""Slots of a replica against the formulas of their queues, in plain numbers; and tables of candidates."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from steptime.physics.chip_memory import Memory
from steptime.physics.engine_rules import most_sequences
from steptime.physics.layout import Layout, stacked
from steptime.planning.batch_queue import LEVELS, queue_share, upper_tail
from steptime.planning.plan_problem import (
    AGGREGATED,
    DISAGGREGATED,
    Candidate,
    Pinned,
    Table,
    _occupied_memory,
    capped_occupancy,
    evaluate_state,
    filled,
    is_equal,
    joined,
    kv_cache_tokens,
    most_seats,
    moving,
    pass_limit,
    queued,
    slots_memory,
    steady_state,
)
from steptime.planning.steady_state import aggregated
from tests.conftest import each, engine
from tests.planning.cases import WORK, case

CASE = case()
STATE = evaluate_state(CASE, Candidate(mode=AGGREGATED, layout=Layout(), batch=4), 4, 500)


def memory(capacity: float, cache: float = 50.0) -> Memory:
    return Memory(weights=40.0, cache=cache, activations=10.0, reserved=0.0, capacity=capacity)


def filled_by_hand(life: float, room: float, seats: float) -> tuple[float, float]:
    """Walk the levels up to the first whose wait is too long, on the line to it."""
    levels = (0.9 * LEVELS).tolist()
    waits = (life / 2 * queue_share(0.9 * LEVELS, seats)).tolist()
    if room < 0:
        return 0.0, 0.0
    for i in range(len(levels) - 1):
        if waits[i + 1] > room:
            part = (room - waits[i]) / (waits[i + 1] - waits[i])
            return levels[i] + part * (levels[i + 1] - levels[i]), room
    return levels[-1], waits[-1]


@each(
    "life, room, seats",
    [(10.0, 2.0, 2), (10.0, 0.3, 16), (4.0, 1e3, 1), (4.0, -1e-9, 1), (4.0, 0.0, 3), (1.0, 0.25, 64)],
)
def test_slots_are_filled_as_far_as_the_wait_allows(life, room, seats):
    expected = filled_by_hand(life, room, seats)
    assert [float(x) for x in filled(life, room, seats)] == pytest.approx(expected, rel=1e-9, abs=1e-12)


def queued_by_hand(mean: float, life: float, seats: float, growing: float, slower: float) -> tuple[float, float]:
    """Beyond the last slot the distribution falls by the share of slots in use per request: half of an exponential wait."""
    share = min(mean * slower / seats, 1.0)
    free = max(1 - share, 1e-9)
    deviation = math.sqrt(mean / max(1 - growing, 0.05))
    below = min(max((seats - mean) / deviation, -6.0), 30.0)
    full = math.exp(-(below**2) / 2) / math.sqrt(2 * math.pi) / deviation / free
    return share, full / (full + 1 - float(upper_tail(np.float64(below)))) * life / (2 * seats * free)


@each(
    "given",
    [(6.0, 2.0, 8, 0.3, 1.1), (6.0, 2.0, 8, 0.0, 1.0), (7.9, 1.0, 8, 0.99, 1.2), (60.0, 3.0, 70, 0.5, 1.05), (9, 1, 7, 0.2, 1)],
)
def test_waits_for_a_slot_by_hand(given):
    assert [float(x) for x in queued(*given)] == pytest.approx(queued_by_hand(*given))


@each("dp", [1, 4])
@each("capacity", [40.0, 52.0, 55.6, 60.0, 61.0, 75.0, 103.0, 230.0, 1000.0])
def test_most_seats_are_as_many_as_fit_at_their_longest(dp, capacity):
    """Each of n sequences may have half of its output more than the mean, many together three deviations of it."""
    state = replace(STATE, max_num_seqs=np.float64(10 * dp), memory=memory(capacity))
    each, extra = 5.0, 201 / 1100.5

    def taken(n: int) -> float:
        return each * (n + extra * min(n / 2, 3 * math.sqrt(n / 12)))

    expected = max(n for n in range(400) if taken(n) <= max(capacity - 50.0, 0.0) + 1e-9)
    assert most_seats(WORK, state, Layout(dp=dp, ep=dp)) == expected * dp


def test_most_seats_of_a_model_without_a_cache_have_no_end():
    assert 1e6 < most_seats(WORK, replace(STATE, memory=memory(100.0, cache=0.0)), Layout()) <= 1 << 20
    assert most_seats(WORK, replace(STATE, memory=memory(1e12, cache=1e-3)), Layout()) == 1 << 20


def occupied_by_hand(
    state, batch: float, layout: Layout, limit: float, slots: float
) -> tuple[float, float, bool, float, float]:
    """Return share in flight, wait, whether requests queue, slots and bytes of cache, case by case."""
    replicas, tpot, ttft = layout.replicas, float(state.tpot), float(state.ttft)
    spare, growing = bool(state.memory.fits) and float(state.max_num_seqs) <= slots, float(state.growing)
    open_share = 1 - 1 / (batch * replicas)
    life = ttft + 200 * tpot if math.isfinite(ttft) else 0.0
    room = min(limit - ttft, life / 4) if math.isfinite(ttft) else -math.inf
    share, wait = filled_by_hand(life, room, batch * replicas)
    share *= 200 * tpot / life if life else 0.0
    seats = min(float(most_seats(WORK, state, layout)), slots)
    slower = 1 + growing * max(seats / batch - 1, 0)
    mean = float(state.rate) * open_share * life * replicas
    busy, later = queued_by_hand(max(mean, 1e-30), life * slower, max(seats, 1) * replicas, growing, slower)
    queues = not spare and seats >= batch and busy <= 0.9 and later <= room
    fills = seats >= batch and batch % 1 == 0 and share > (open_share if spare or queues else 0.0)
    taken = batch if fills else seats
    cache = float(state.memory.cache)
    if fills or queues:
        n = math.ceil(taken / layout.dp)
        cache = cache / float(state.max_num_seqs / layout.dp) * (n + 201 / 1100.5 * min(n / 2, 3 * math.sqrt(n / 12)))
    return (
        share if fills else open_share,
        wait if fills else later if queues else 0.0,
        fills or queues,
        taken if fills or queues else float(state.max_num_seqs),
        cache,
    )


@pytest.mark.parametrize(("dp", "replicas", "slots"), [(1, 1, math.inf), (1, 3, math.inf), (2, 1, math.inf), (1, 1, 6)])
def test_occupancy_of_slots_case_by_case(dp, replicas, slots):
    """Few slots are filled where the limit allows; without room for spare slots requests queue for those there are.

    Slots of the user are no more than that: where they are fewer than the spare ones, requests queue for them.
    """
    given = replace(CASE, pinned=Pinned(max_num_seqs=None if slots == math.inf else slots))
    layout = Layout(dp=dp, ep=dp, replicas=replicas)
    capacities, batches, times, firsts = (70.0, 101.0, 160.0), (1.0, 2.0, 2.5, 4.0, 8.0), (0.01, 0.05), (0.3, math.inf)
    every = itertools.product(capacities, batches, times, firsts, (0.0, 0.6), (0.4, 2.0), (0.31, 1.0, math.inf))
    points = [np.array(column) for column in zip(*list(every)[::7], strict=True)]

    def state(capacity, tpot, ttft, growing, rate):
        figures = {"tpot": tpot, "ttft": ttft, "growing": growing, "rate": rate, "memory": memory(capacity)}
        return replace(STATE, max_num_seqs=np.float64(10 * dp), **figures)

    capacity, batch, tpot, ttft, growing, rate, limit = points
    found = capped_occupancy(given, state(capacity, tpot, ttft, growing, rate), batch * dp, layout, limit)
    measured = (found.share, found.wait, found.capped, found.max_num_seqs, found.memory.cache)
    kinds = set()
    for index in range(len(limit)):
        capacity, batch, tpot, ttft, growing, rate, most = (column[index] for column in points)
        expected = occupied_by_hand(state(capacity, tpot, ttft, growing, rate), batch * dp, layout, most, slots)
        got = [float(np.broadcast_to(column, limit.shape)[index]) for column in measured]
        assert got == pytest.approx([float(x) for x in expected], rel=1e-9, abs=1e-12)
        kinds.add((bool(expected[2]), expected[3] == batch * dp))
    assert kinds == {(True, True), (True, False), (False, False)}


@each("seats, beyond", [(0, None), (2, 1.0), (12, 3.0), (48, 6.0)])
def test_slots_have_room_for_the_longest_contexts(seats, beyond):
    """Half of an output for each of a few sequences, three deviations of the sum of many: 3 sqrt(n / 12)."""
    state = replace(STATE, max_num_seqs=np.float64(10), memory=memory(100.0))
    cache = float(_occupied_memory(WORK, state, seats, Layout()).cache)
    assert cache == pytest.approx(50.0 if beyond is None else 5.0 * (seats + beyond * 201 / 1100.5))


LAYOUTS = stacked([Layout(), Layout(tp=2)])


def rows(mode: str, count: int, first: int = 0) -> Table:
    numbers = np.arange(first, first + count)
    return Table(
        mode=mode, layouts=LAYOUTS, layout=numbers % 2, batch=numbers + 4, chunk=numbers * 100,
        replicas=numbers + 1, prefill_layout=1 - numbers % 2, prefill_prompts=numbers + 2, prefill_replicas=numbers + 3,
        tpot=numbers, ttft=numbers, rate=numbers, utilisation=numbers, input_share=numbers, memory=numbers,
    )  # fmt: skip


def test_rows_of_a_table_are_candidates():
    assert rows(AGGREGATED, 3).row(1) == Candidate(mode=AGGREGATED, layout=Layout(tp=2, replicas=2), batch=5, chunk=100)
    assert rows(DISAGGREGATED, 3).row(2) == Candidate(
        mode=DISAGGREGATED, layout=Layout(replicas=3), batch=6, chunk=200, prefill_layout=Layout(tp=2, replicas=5), prompts=4
    )
    both = joined(AGGREGATED, LAYOUTS, [rows(AGGREGATED, 2), rows(AGGREGATED, 3, 7)])
    assert both.rate.tolist() == [0, 1, 7, 8, 9]
    assert len(joined(AGGREGATED, LAYOUTS, [])) == 0


def test_chips_of_whole_domains_are_used_where_domains_are_alike():
    given = replace(CASE, chips=11)
    assert (given.used, replace(given, symmetric_domains=True).used) == (11, 8)


def test_caches_stay_in_a_domain_that_holds_all_chips_or_is_like_the_others():
    """10 MB at 0.1 TB/s within a domain of four, at 10 GB/s beyond."""
    within, beyond = (pytest.approx(1.0001e-4, rel=1e-3), 1e-6), (pytest.approx(1e-3, rel=1e-3), 5e-6)
    for chips, alike, expected in ((4, False, within), (5, False, beyond), (8, True, within), (8, False, beyond)):
        sent = moving(replace(CASE, chips=chips, symmetric_domains=alike), Layout())
        assert (float(sent.moving), float(sent.latency)) == expected


def test_the_limit_of_a_pass_leaves_out_all_other_delays(monkeypatch):
    """0.1 s before the queue and 10 us a token, 3 steps of 20 ms before the answer, the transfer."""
    on = engine(seconds_before_queue=0.1, seconds_before_queue_per_token=1e-5, steps_before_answer=3)
    given = replace(CASE, engine=on)
    sent = moving(given, Layout())
    expected = 2.0 - 0.1 - 0.01 - 0.06 - float(sent.moving + sent.latency)
    assert float(pass_limit(given, Layout(), Layout(), 0.02, 2.0)) == pytest.approx(expected)
    # Own runs whose first tokens came twice as late as predicted.
    monkeypatch.setattr("steptime.planning.plan_problem.ttft_factor", lambda engine, point: 2.0)
    assert float(pass_limit(given, Layout(), Layout(), 0.02, 2.0)) == pytest.approx(expected / 2)


def test_single_states_are_computed_once_and_grids_each_time():
    given, one = case(), Candidate(mode=AGGREGATED, layout=Layout(), batch=4)
    assert evaluate_state(given, one, 4, 500) is evaluate_state(given, one, 4, 500)
    assert evaluate_state(given, one, 4, 500) is not evaluate_state(given, one, 5, 500)
    assert evaluate_state(given, one, np.array([4, 5]), 500).tpot.shape == (2,)
    assert len(given.memo) == 2


def test_slots_take_no_more_cache_than_there_is_room_for():
    """Ten sequences take 50 of 100 bytes; twenty all that weights and activations leave, thirty no more."""
    state = replace(STATE, max_num_seqs=np.float64(10), memory=memory(160.0))
    caches = [float(slots_memory(state, slots, Layout()).cache) for slots in (4, 20, 22, 30)]
    assert caches == [20.0, 100.0, 110.0, 110.0]
    # Two ranks have five sequences each: three slots are two on the fuller one.
    assert float(slots_memory(state, 3, Layout(dp=2, ep=2)).cache) == pytest.approx(20.0)
    full = replace(state, memory=memory(45.0))
    assert float(slots_memory(full, 4, Layout()).cache) == 0.0


def test_tokens_of_cache_that_fit_are_in_proportion_to_the_room():
    """A cache of 50 bytes has 1,000 tokens; 110 bytes are free for it. Without a cache there is no end."""
    assert kv_cache_tokens(memory(160.0), 1000) == pytest.approx(2200.0)
    assert kv_cache_tokens(memory(160.0, cache=0.0), 1000) == math.inf


def test_requests_are_equal_without_a_spread_of_both_lengths():
    def equal(first: float, second: float) -> bool:
        return bool(is_equal(replace(WORK, input_spread=first, output_spread=second)))

    assert [equal(0, 0), equal(0.1, 0), equal(0, 0.1), equal(0.1, 0.1)] == [True, False, False, False]


def test_slots_of_the_user_are_at_most_those_of_the_engine():
    given = replace(CASE, engine=replace(CASE.engine, name="llama.cpp"))
    most = most_sequences("llama.cpp")
    assert (CASE.slots, given.slots) == (math.inf, most)
    pinned = [replace(given, pinned=Pinned(max_num_seqs=slots)).slots for slots in (8, 10**6)]
    assert pinned == [8, most]
    # A batch beyond the slots serves nothing; one that is at least 9/8 may be between.
    few = replace(CASE, pinned=Pinned(max_num_seqs=4))
    rates = steady_state(few, AGGREGATED, Layout(), np.array([2.0, 4.0, 5.0]), 500).rate
    assert (rates[0] > 0, rates[1] > 0, rates[2]) == (True, True, 0.0)
    one = replace(CASE, pinned=Pinned(max_num_seqs=1))
    assert float(steady_state(one, AGGREGATED, Layout(), 1.125, 500).rate) > 0
    assert float(steady_state(one, AGGREGATED, Layout(), 1.25, 500).rate) == 0


def test_a_search_approximates_the_chunks_of_a_step():
    batch = np.array([2.0, 16.0, 64.0])
    given = {"layout": Layout(), "batch": batch, "chunk": 4000}
    for quick in (True, False):
        state = aggregated(CASE.model, CASE.system, CASE.workload, **given, quick=quick, **CASE.settings)
        assert np.array_equal(steady_state(CASE, AGGREGATED, Layout(), batch, 4000, quick=quick).tpot, state.tpot)
    assert np.any(steady_state(CASE, AGGREGATED, Layout(), batch, 4000, quick=True).tpot != state.tpot)


def test_candidates_that_differ_in_batch_chunk_and_micro_batches_are_the_same():
    one = Candidate(mode=DISAGGREGATED, layout=Layout(ep=4, dp=4), batch=4, prefill_layout=Layout(tp=2), prompts=1)
    layout = replace(one.layout, microbatches=2)
    assert replace(one, batch=8, chunk=100, prompts=3, layout=layout).same == one.same
    assert replace(one, layout=replace(one.layout, redundant_experts=4)).same != one.same
    assert replace(one, layout=replace(one.layout, redundant_experts=4)).design == one.design
    assert replace(one, prefill_layout=Layout(tp=4)).design != one.design
    assert replace(one, prefill_layout=None).same != one.same
