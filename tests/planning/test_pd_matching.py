"""Matching of pools against loops over all pairs, and the largest batch on its line."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.physics.layout import Layout, shaped, stacked
from steptime.physics.layout_space import pairs
from steptime.planning import pd_matching
from steptime.planning.batch_grids import batch_grid
from steptime.planning.batch_queue import PassTime
from steptime.planning.pd_matching import (
    Reader,
    _beaten,
    _best_decoders,
    _best_of_each,
    _Decoders,
    _finds_place,
    _largest,
    _matched,
)
from steptime.planning.plan_problem import COLUMNS, DISAGGREGATED, evaluate_prefill, evaluate_state, steady_state
from steptime.planning.plan_search import fitting, search
from steptime.planning.refinement import first_token_of, matched_rate
from steptime.planning.steady_state import load_shares
from tests.conftest import each, machine, sparse_matrix
from tests.planning.cases import MODEL, case

LAYOUTS = stacked([Layout(), Layout(tp=2), Layout(tp=4)])


def reader(chips: int, layout: int, rates: list[float], **more) -> Reader:
    figures = {"prompts": 2, "late": 0.0, "seats": 2.0, "rate": rates[0] / 0.8}
    return Reader(chips=chips, layout=layout, time=PassTime(first=0.01), usable=np.array(rates), **figures | more)


def decoders(chips: int, layout: int, *rows: tuple[float, ...]) -> _Decoders:
    """Rows of batch, TPOT, rate, rate of the links, load and memory."""
    batch, tpot, rate, max_rate, load, memory = (np.array(column) for column in zip(*rows, strict=True))
    layouts = np.full(len(batch), layout)
    return _Decoders(
        chips=chips, layout=layouts, batch=batch, tpot=tpot, rate=rate, max_rate=max_rate, load=load, memory=memory
    )


READERS = [reader(1, 0, [5.0, 4.9, 4.8, 4.7, 4.6, 4.5, 4.4, 4.3]), reader(2, 1, [11.0, 10.9, 10.8, 10.7], prompts=3)]
DECODERS = [
    decoders(1, 0, (4, 0.01, 3.0, 99.0, 0.2, 0.5), (8, 0.02, 4.0, 2.5, 0.5, 0.8), (2, 0.005, 6.0, 99.0, 0.95, 0.1)),
    decoders(4, 2, (16, 0.004, 30.0, 28.0, 0.3, 0.4), (64, 0.03, 44.0, 99.0, 0.95, 0.9)),
]


@pytest.mark.parametrize(
    ("system", "symmetric", "chips"),
    [
        (machine(size=8), False, 8),
        (machine(size=8), False, 5),
        (machine(size=4), True, 8),
        (machine(size=4), True, 10),
        (machine(size=4), False, 8),
    ],
)
@pytest.mark.parametrize("at_once", [1 << 16, 4])
def test_matched_pools_are_the_best_of_all_pairs(monkeypatch, system, symmetric, chips, at_once):
    monkeypatch.setattr(pd_matching, "AT_ONCE", at_once)
    given = replace(case(chips), system=system, symmetric_domains=symmetric)
    table, which = _matched(given, READERS, DECODERS, LAYOUTS)
    domain = system.scale_up.size
    domains = chips // domain if symmetric else 1
    used = chips - chips % domain if symmetric else chips
    found = {(int(which[i]), table.row(i).layout.chips, int(table.batch[i])): (table.row(i), i) for i in range(len(table))}
    assert len(found) == len(table)
    expected = {}
    for (w, first), pool in itertools.product(enumerate(READERS), DECODERS):
        for counts in zip(*pairs(float(domain), used // domains, first.chips, pool.chips), strict=True):
            n, m = (domains * int(count) for count in counts)
            for row in range(len(pool.rate)):
                flying = 1 - 1 / (pool.batch[row] * m)
                served = m * min(pool.rate[row] * flying, pool.max_rate[row])
                served = served if pool.load[row] * flying <= 0.9 else 0.0
                rate = min(n * first.usable[n - 1], served)
                key = (w, pool.chips, int(pool.batch[row]))
                if key not in expected or rate > expected[key][0]:
                    expected[key] = (rate, n, m, row, first, pool)
    assert set(found) == set(expected)
    for key, (rate, n, m, row, first, pool) in expected.items():
        candidate, i = found[key]
        assert (candidate.layout.replicas, candidate.prefill_layout.replicas) == (m, n)
        assert (candidate.prompts, candidate.chunk, candidate.mode) == (first.prompts, 0, DISAGGREGATED)
        assert candidate.prefill_layout.tp == first.chips
        assert table.rate[i] == pytest.approx(rate)
        assert (table.tpot[i], table.memory[i], table.ttft[i]) == (pool.tpot[row], pool.memory[row], 0)
        assert table.utilisation[i] == pytest.approx(rate / (n * first.rate))
        assert table.input_share[i] == pytest.approx(n * first.chips / (n * first.chips + m * pool.chips))


def test_pools_of_which_no_two_fit_have_no_match():
    table, which = _matched(case(1), READERS, DECODERS, LAYOUTS)
    assert (len(table), len(which)) == (0, 0)
    assert len(_matched(case(8), [], DECODERS, LAYOUTS)[0]) == 0


@each("slo", [st.Slo(tpot=2.9e-3), st.Slo(), st.Slo(tpot=2.5e-3), st.Slo(tpot=1e-3)])
@each("dp", [1, 4])
def test_the_largest_batch_lies_on_the_line_to_the_first_batch_beyond_a_limit(slo, dp):
    model = MODEL if dp == 1 else sparse_matrix(kv_bytes=1e4, active=1)
    layouts = [Layout(), Layout(tp=2, pp=2, microbatches=2)] if dp == 1 else [Layout(dp=4, ep=4), Layout(dp=2, ep=2)]
    given = replace(case(slo=slo), model=model, system=machine(size=4, capacity=26e9 if dp > 1 else 11e9, flops=1e30))
    wide = shaped(stacked(layouts), 1)
    unit = (wide.dp * wide.microbatches).ravel()
    grid = np.array([1, 2, 4, 16, 64, 256, 4096]) * unit[:, None]
    state = steady_state(given, DISAGGREGATED, wide, grid)
    load = load_shares(state.tpot, grid)
    batch, found_load = _largest(given, wide, grid, state, load)
    assert batch.shape == found_load.shape == (2, 1)
    for row in range(2):
        tpot, used = state.tpot[row], (state.memory.used / state.memory.capacity)[row]
        over = [float(np.log(max(t / slo.tpot, u))) for t, u in zip(tpot, used, strict=True)]
        beyond = next((i for i, x in enumerate(over) if x > 0), len(over))
        low = min(max(beyond - 1, 0), len(over) - 2)
        share = -over[low] / (over[low + 1] - over[low]) if over[low] < 0 < over[low + 1] - over[low] else 0.0
        share = min(max(share, 0.0), 1.0)
        size = grid[row, low] * (grid[row, low + 1] / grid[row, low]) ** share
        assert batch[row, 0] == max(int(size / unit[row] + 1e-9) * unit[row], grid[row, low])
        assert found_load[row, 0] == pytest.approx(load[row, low] + share * (load[row, low + 1] - load[row, low]))


def test_the_largest_batch_where_nothing_grows_is_the_last_but_one_of_the_grid():
    given, wide = case(slo=st.Slo(tpot=1.0)), shaped(stacked([Layout()]), 1)
    grid = np.array([[1, 2, 4]])
    state = steady_state(given, DISAGGREGATED, wide, grid)
    level = replace(state, tpot=np.array([[0.5, 0.5, 0.4]]), memory=replace(state.memory, cache=0.0, capacity=1e12))
    batch, load = _largest(given, wide, grid, level, np.array([[0.1, 0.2, 0.3]]))
    assert (batch.tolist(), load.tolist()) == ([[2]], [[0.2]])


@pytest.mark.parametrize("front", [True, False])
def test_decoders_that_are_kept_beat_all_others_within_their_limits(front):
    """Whatever fits and is stable is no faster, or serves no more per chip, than a decoder that is kept."""
    given = replace(case(slo=st.Slo(tpot=3.2e-3)), front=front, system=machine(size=4, capacity=11e9, up=1e11))
    layouts = [m for m in fitting(given) if m.microbatches == m.pp]
    table = stacked(layouts)
    wide = shaped(table, 1)
    grid = batch_grid(wide)
    coarse = steady_state(given, DISAGGREGATED, wide, grid)
    load = load_shares(coarse.tpot, grid)
    good = coarse.memory.fits & (load * (1 - 1 / grid) <= 0.9) & (np.array(front) | (coarse.tpot <= 3.2e-3))
    kept = []
    for pool in _best_decoders(given, table, coarse):
        for row in range(len(pool.rate)):
            layout = layouts[int(pool.layout[row])]
            state = steady_state(given, DISAGGREGATED, layout, pool.batch[row])
            assert layout.chips == pool.chips
            assert (pool.tpot[row], pool.rate[row]) == (pytest.approx(float(state.tpot)), pytest.approx(float(state.rate)))
            assert pool.memory[row] == pytest.approx(float(state.memory.used / state.memory.capacity))
            assert pool.memory[row] <= 1
            assert pool.load[row] * (1 - 1 / pool.batch[row]) <= 0.9
            assert front or pool.tpot[row] <= 3.2e-3 * (1 + 1e-9)
            kept.append((float(pool.tpot[row]), float(pool.rate[row]) / pool.chips, pool.chips))
    assert len({size for _, _, size in kept}) > 1
    for i, j in zip(*np.nonzero(good), strict=True):
        tpot, per_chip = coarse.tpot[i, j] * (1 + 1e-9), coarse.rate[i, j] / layouts[i].chips * (1 - 1e-9)
        assert any(t <= tpot and r >= per_chip and size <= layouts[i].chips for t, r, size in kept)
    for one, other in itertools.permutations(kept, 2):
        if one[2] % other[2] == 0 and one[2] >= other[2]:
            assert not (other[0] <= one[0] and other[1] >= one[1])


def test_without_a_pair_a_search_has_no_row_in_any_column():
    given = replace(case(1), system=machine(size=1, capacity=11e9))
    (table,) = search(given, (DISAGGREGATED,), fitting(given))
    assert {len(getattr(table, name)) for name in COLUMNS} == {0}


@each(
    "small, large, domain, fits",
    [
        (2, 4, 8, True),
        (3, 4, 8, False),
        (4, 16, 8, True),
        (3, 24, 8, False),  # three do not divide a domain of eight
        (16, 32, 8, True),
        (3, 6, 8, True),
        (8, 8, 8, True),
        (6, 12, 12, True),
    ],
)
def test_smaller_replicas_fit_on_the_chips_of_a_larger_one(small, large, domain, fits):
    assert _finds_place(small, large, domain) == fits


def test_smaller_replicas_beat_a_larger_one_that_is_no_faster_and_serves_no_more_per_chip():
    small = decoders(2, 1, (4, 0.03, 8.0, 9, 0, 0), (2, 0.01, 4.0, 9, 0, 0), (3, 0.02, 3.0, 9, 0, 0))  # 2, 2 and 4 per chip
    tpot = np.array([0.009, 0.01, 0.01, 0.025, 0.025, 0.03, 0.05, 0.05])
    per_chip = np.array([0.1, 2.0, 2.1, 2.0, 2.1, 4.0, 3.9, 4.1])
    assert _beaten(tpot, per_chip, small).tolist() == [False, True, False, True, False, True, True, False]


def test_best_of_each_size_is_the_first_of_the_highest():
    sizes, values = np.array([4, 1, 4, 1, 2, 4]), np.array([1.0, 5.0, 3.0, 5.0, 0.0, 3.0])
    assert _best_of_each(sizes, values).tolist() == [1, 4, 2]


def test_replicas_of_a_size_replace_a_larger_size_that_prefills_no_more():
    large = reader(2, 1, [10.0, 9.5, 9.0])
    assert pd_matching._replaces(reader(1, 0, [9.0, 5.0, 9.0, 4.75, 9.0, 4.5]), large, 8)
    assert not pd_matching._replaces(reader(1, 0, [9.0, 5.0, 9.0, 4.75, 9.0, 4.4]), large, 8)
    assert not pd_matching._replaces(reader(3, 0, [99.0, 99.0]), large, 8)


@each("stages", [1, 2])
def test_first_tokens_of_a_search_are_those_of_each_candidate(stages):
    """From two stages on, a prompt is later than the pass after it."""
    given = replace(case(slo=st.Slo(ttft=0.05)), system=machine(size=4, capacity=11e9, up=2e9))
    (table,) = search(given, (DISAGGREGATED,), [m for m in fitting(given) if m.microbatches == m.pp >= stages])
    assert len(table)
    for i in range(0, len(table), max(1, len(table) // 12)):
        candidate = table.row(i)
        state = evaluate_state(given, candidate, candidate.batch, 1)
        prefill = evaluate_prefill(given, candidate, state.tpot)
        expected = first_token_of(given, candidate, state, prefill, table.utilisation[i])
        assert table.ttft[i] == pytest.approx(float(expected))
        assert table.rate[i] <= float(matched_rate(given, candidate, state, prefill)[0]) * 1.05


def test_prefill_pools_of_several_targets_are_those_of_each():
    given = replace(case(slo=st.Slo(ttft=0.5)), system=machine(size=4, capacity=11e9, up=2e9))
    layouts = stacked([m for m in fitting(given) if m.microbatches == m.pp])
    decode = steady_state(given, DISAGGREGATED, shaped(layouts, 1), batch_grid(shaped(layouts, 1)))
    levels = (st.Slo(ttft=0.5), st.Slo(ttft=0.03))

    def pairs_of(*targets: st.Slo) -> set[tuple[object, ...]]:
        table = pd_matching.search_disaggregated(replace(given, levels=targets), layouts, decode)
        names = ("layout", "batch", "replicas", "prefill_layout", "prefill_prompts", "prefill_replicas", "rate")
        return set(zip(*(getattr(table, name).tolist() for name in names), strict=True))

    wide, tight, both = pairs_of(levels[0]), pairs_of(levels[1]), pairs_of(*levels)
    assert both == wide | tight
    assert tight - wide
    assert wide - tight
    assert pairs_of() == wide
