"""What the search looks at and finds, against trying all by hand on small machines."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest

import steptime as st
from steptime.physics.chip_memory import sequences_per_group
from steptime.physics.layout import ENGINE, Layout, facts_of_engine
from steptime.physics.layout_rules import reasons
from steptime.physics.layout_space import legal
from steptime.planning import pd_matching
from steptime.planning.batch_grids import batches
from steptime.planning.plan_problem import AGGREGATED, COLUMNS, DISAGGREGATED, PlanProblem, evaluate_prefill, evaluate_state
from steptime.planning.plan_search import PROMISING, chunk_sizes, fitting, ranked, search
from steptime.planning.prefill_pool import first_token, prefill_pool, within_limit
from steptime.planning.refinement import matched_rate
from steptime.planning.steady_state import aggregated, decode_pool
from tests.conftest import each, engine, every, experts, machine, model_of, one_matrix, sparse_matrix
from tests.planning.cases import equal_requests

WORK = equal_requests(input_tokens=1000, output_tokens=201)
IDEAL = engine()
SMALL = machine(size=4, capacity=11e9)  # 10 GB of weights and some 80 sequences a chip


def case(model=None, system=SMALL, slo=None, chips=4, workload=WORK, on=IDEAL) -> PlanProblem:
    return PlanProblem(
        model=model or one_matrix(heads=4), system=system, workload=workload, slo=slo or st.Slo(), chips=chips, engine=on
    )


def test_batches_to_try():
    assert batches(1).tolist() == [1]
    assert batches(0.5).tolist() == [1]
    assert batches(16).tolist() == [1, 2, 3, 4, 6, 8, 12, 16]
    assert batches(8, per_octave=1).tolist() == [1, 2, 4, 8]
    assert batches(9, per_octave=1).tolist() == [1, 2, 4, 8, 16]


@each(
    "tokens, cached, evidence, sizes",
    [
        (1000, 0.0, "any", [128, 256, 512, 1000, 1024, 2048, 4096, 8192, 16384]),
        (1000, 0.0, "measured", [512, 1000, 1024, 2048, 4096, 8192, 16384]),
        (4096, 0.5, "any", [128, 256, 512, 1024, 2048, 4096, 8192, 16384]),
        (60, 0.0, "published", [60, 512, 1024, 2048, 4096, 8192, 16384]),
        (10_000_000, 0.0, "any", [128, 256, 512, 1024, 2048, 4096, 8192, 16384]),
    ],
)
def test_chunks_to_try(tokens, cached, evidence, sizes):
    """Powers of two, and a whole prompt, however short: nobody published small chunks."""
    found = chunk_sizes(equal_requests(input_tokens=tokens, output_tokens=1, cached_share=cached), evidence).tolist()
    assert found == sizes


@each(
    "two_batch, able",
    [(0, [True, False, False, True, False]), (1, [True, False, True, True, False]), (2, [True] * 5)],
)
def test_which_micro_batches_an_engine_overlaps(two_batch, able):
    layouts = (
        Layout(tp=8),
        Layout(tp=8, microbatches=2),
        Layout(dp=8, ep=8, microbatches=2),
        Layout(pp=2, microbatches=2),
        Layout(pp=2, microbatches=4),
    )
    facts = facts_of_engine(engine(two_batch=two_batch))
    assert [not reasons(m, facts, scopes=(ENGINE,)) for m in layouts] == able


@each(
    "capacity, constants, least",
    [
        (11e9, {}, 1),
        (10e9, {}, 2),  # weights that fill it leave no room
        (5.1e9, {}, 2),
        (5.0e9, {}, 3),
        (11e9, {"memory_share": 0.5}, 2),
        (11e9, {"reserved_bytes": 2e9}, 2),
        (2.4e9, {}, 9),
    ],
)
def test_layouts_that_leave_room(capacity, constants, least):
    """10 GB of weights on so many chips at least: four chips hold no more than 10 GB in all."""
    found = fitting(case(system=machine(size=4, capacity=capacity), on=engine(**constants)))
    assert min((m.group * m.pp for m in found), default=9) == least


def test_layouts_that_an_engine_runs():
    found = fitting(case(on=engine(two_batch=1)))
    assert found == [m for m in legal(one_matrix(heads=4), SMALL, 4) if m.microbatches == m.pp]


SPARSE = model_of(experts(weights=1e7, count=16, active=2), attention=sparse_matrix().layers[0][0].attention, heads=2)


@pytest.mark.parametrize(
    ("model", "workload"),
    [
        pytest.param(one_matrix(heads=2), WORK, id="dense", marks=pytest.mark.thorough),
        pytest.param(SPARSE, WORK, id="sparse", marks=pytest.mark.slow),
        pytest.param(one_matrix(heads=2), equal_requests(input_tokens=100, output_tokens=2), id="one step"),
    ],
)
def test_prompts_that_share_chips_are_tried_in_every_layout_batch_and_chunk(monkeypatch, model, workload):
    monkeypatch.setattr("steptime.planning.plan_search.FIRST", 0.0)
    given = case(model, machine(size=4, capacity=11e9), workload=workload)
    layouts = fitting(given)
    (table,) = search(given, (AGGREGATED,), layouts)
    found = {}
    for i in range(len(table)):
        candidate = table.row(i)
        found[replace(candidate.layout, replicas=1), candidate.batch, candidate.chunk] = i
        assert candidate.mode == AGGREGATED
        assert candidate.prefill_layout is None
    assert len(found) == len(table)
    expected = {}
    sizes, fresh, steps = chunk_sizes(workload), workload.input_tokens, workload.output_tokens - 1
    for layout in layouts:
        one = replace(layout, replicas=1)
        unit = layout.dp * layout.microbatches
        tries = np.unique(np.maximum(batches(4000), unit))
        given_ = {"layout": layout, "batch": tries[:, None], "engine": IDEAL}
        state = aggregated(model, given.system, workload, chunk=sizes[None, :], quick=True, **given_)
        fits = np.broadcast_to(decode_pool(model, given.system, workload, **given_).memory.fits, state.rate.shape)
        work = np.broadcast_to(tries[:, None] * fresh / (steps * layout.dp), state.rate.shape)  # prompt tokens of a step
        kept = fits & state.memory.fits & np.isfinite(state.ttft)
        kept &= (state.utilisation < 0.9) & (work < 0.9 * sizes[-1]) & (work > 1e-4 * sizes[0])
        used = state.memory.used / state.memory.capacity
        rate = state.rate * (layout.replicas - 1 / tries[:, None])  # one of all that share tokens is the arrival itself
        for i, j in zip(*np.nonzero(kept), strict=True):
            figures = (state.tpot, state.ttft, rate, state.utilisation, state.input_share, used)
            expected[one, int(tries[i]), int(sizes[j])] = (layout, [float(figure[i, j]) for figure in figures])
    for layout, batch, chunk in set(found) - set(expected):  # without room for spare seats, requests queue for those there are
        one = {"layout": layout, "batch": batch, "chunk": chunk, "engine": IDEAL}
        whole, room = aggregated(model, given.system, workload, **one), 11e9
        each = float(whole.memory.cache / sequences_per_group(whole.max_num_seqs, layout))
        assert not whole.memory.fits
        assert float(whole.memory.used - whole.memory.cache) + each * batch / layout.dp < room
    found = {key: row for key, row in found.items() if key in expected}
    for layout, batch, chunk in sorted(set(expected) - set(found), key=str)[::7]:
        if layout.dp > 1 and chunk > fresh:
            continue  # several prompts in a chunk, of which the busiest of several groups would often have two
        given_ = {"layout": layout, "chunk": chunk, "engine": IDEAL, "quick": True}
        near = batch * np.array([0.71, 1.0, 1.41])  # the slope of log t over log B, on one of both sides
        slopes = np.diff(np.log(aggregated(model, given.system, workload, batch=near, **given_).tpot)) / np.diff(np.log(near))
        assert np.max(slopes) > 0.65  # at the batch beyond nine tenths of the rate that ever larger ones tend to
    columns = np.array([table.tpot, table.ttft, table.rate, table.utilisation, table.input_share, table.memory]).T
    many = [key for key, i in found.items() if key[1] * table.replicas[i] >= 10]  # of fewer seats, requests may queue for one
    assert columns[[found[key] for key in many]] == pytest.approx(np.array([expected[key][1] for key in many]))
    few = [key for key in found if key not in set(many)]
    more = columns[[found[key] for key in few]] - np.array([expected[key][1] for key in few])
    assert np.all(more[:, 1:3] >= -1e-9)  # later first tokens, and more served
    assert all(table.row(found[key]).layout == expected[key][0] for key in found)


@pytest.mark.parametrize("slo", every(2, [st.Slo(ttft=0.02), st.Slo()]))
@pytest.mark.parametrize("up", [pytest.param(1e30, marks=pytest.mark.thorough), 2e9])
def test_pools_apart_are_matched_for_the_highest_rate(slo, up):
    """Every two sizes in every number: the best of all prefill layouts is reached; links carry nine tenths at most."""
    given = case(slo=slo, system=machine(size=4, capacity=11e9, up=up))
    layouts = [m for m in fitting(given) if m.microbatches == m.pp]
    (table,) = search(given, (DISAGGREGATED,), layouts)

    @cache
    def usable(layout, prompts, replicas):
        """Requests/s of each of so many replicas, and its pool."""
        moved = 1e7 / (up * layout.group * layout.pp)
        pool = prefill_pool(given.model, given.system, WORK, layout=layout, prompts=prompts, engine=IDEAL)
        pool = within_limit(pool, slo.ttft - moved, replicas)
        each = float(pool.rate * pool.most_utilised) if pool.memory.fits else 0.0
        return min(each, 0.9 * layout.dp / moved), pool

    def most(size, replicas):
        ways = product([m for m in layouts if m.chips == size], (1, 2, 4, 8, 16))
        return max(usable(layout, prompts, replicas)[0] for layout, prompts in ways)

    assert len(table)
    highest: dict[tuple[int, ...], float] = {}
    for i in range(len(table)):
        candidate = table.row(i)
        key = (candidate.prefill_layout.chips, int(table.layout[i]), candidate.batch)
        highest[key] = max(highest.get(key, 0.0), float(table.rate[i]))
    for i in range(0, len(table), max(1, len(table) // 40)):
        candidate = table.row(i)
        assert candidate.mode == DISAGGREGATED
        size, other = candidate.prefill_layout.chips, candidate.layout.chips
        state = evaluate_state(given, candidate, candidate.batch, 1)

        def served(replicas: int, batch=candidate.batch, each=float(state.rate)) -> float:
            return each * max(replicas * batch - 1, 0) / batch

        readers, decoders = candidate.prefill_layout.replicas, candidate.layout.replicas
        each, pool = usable(replace(candidate.prefill_layout, replicas=1), candidate.prompts, readers)
        assert table.rate[i] == pytest.approx(min(readers * each, served(decoders)))
        best_rate = max(min(n * most(size, n), served((4 - n * size) // other)) for n in range(1, (4 - other) // size + 1))
        assert highest[size, int(table.layout[i]), candidate.batch] == pytest.approx(best_rate)
        assert table.tpot[i] == pytest.approx(float(state.tpot))
        assert table.utilisation[i] == pytest.approx(table.rate[i] / (readers * float(pool.rate)))
        moved = 1e7 / (up * candidate.prefill_layout.group * candidate.prefill_layout.pp)
        busy = table.rate[i] / readers * moved / candidate.prefill_layout.dp
        sent = moved + moved / 2 * busy / (1 - busy)
        assert table.ttft[i] == pytest.approx(float(first_token(pool, table.utilisation[i], readers)) + sent)
        assert table.memory[i] == pytest.approx(float(state.memory.used / state.memory.capacity))
        assert table.memory[i] <= 1
        assert readers * size + decoders * other <= 4
    readable = {m.chips for m in layouts if most(m.chips, 1) > 0}
    sizes = {(table.row(i).prefill_layout.chips, table.row(i).layout.chips) for i in range(len(table))}
    assert sizes <= {(size, other) for size in readable for other in {m.chips for m in layouts} if size + other <= 4}
    kept = {  # a size whose chips smaller replicas use as well is not tried
        size
        for size in readable
        if not any(
            size % less == 0
            and all(size // less * most(less, size // less * n) >= most(size, n) for n in range(1, 4 // size + 1))
            for less in readable
            if less < size
        )
    }
    assert {size for size, _ in sizes} == {size for size in kept if size < 4}


@pytest.mark.parametrize(("model", "ttft"), every(3, list(product(("dense", "sparse"), (np.inf, 0.02)))))
def test_what_is_outdone_is_not_missed(monkeypatch, model, ttft):
    """Whatever a search of all layouts and batches finds, one without those that are outdone finds something as good."""
    given = case(
        {"dense": one_matrix(heads=12), "sparse": SPARSE}[model], machine(size=8, capacity=11e9), slo=st.Slo(ttft=ttft)
    )
    layouts = fitting(given)
    (found,) = search(given, (AGGREGATED,), layouts)
    monkeypatch.setattr("steptime.planning.plan_search.FIRST", 0.0)
    (every,) = search(given, (AGGREGATED,), layouts)
    assert len(found) < len(every)
    mine, all_ = (np.nonzero((table.ttft <= ttft) & (table.memory <= 1))[0] for table in (found, every))
    for row in all_:
        as_fast = mine[found.tpot[mine] <= every.tpot[row] * (1 + 1e-9)]
        assert np.max(found.rate[as_fast]) >= every.rate[row] * (1 - 1e-9)


@pytest.mark.parametrize(("model", "size"), every(5, list(product(("dense", "sparse"), (3, 4, 16)))))
def test_sizes_that_smaller_ones_replace_are_not_missed(monkeypatch, model, size):
    """Whatever a search of all sizes finds, one without those finds something as fast that serves as many requests."""
    given = case({"dense": one_matrix(heads=12), "sparse": SPARSE}[model], machine(size=size, capacity=11e9), chips=16)
    layouts = [m for m in fitting(given) if m.microbatches == m.pp]
    (found,) = search(given, (DISAGGREGATED,), layouts)
    monkeypatch.setattr(pd_matching, "_beaten", lambda tpot, *_: np.zeros(len(tpot), dtype=bool))
    monkeypatch.setattr(pd_matching, "_replaces", lambda *_: False)
    (every,) = search(given, (DISAGGREGATED,), layouts)
    assert len(found) < len(every)
    for tpot, rate in zip(every.tpot, every.rate, strict=True):
        assert np.max(found.rate[found.tpot <= tpot * (1 + 1e-9)]) >= rate * (1 - 1e-9)


def test_every_group_and_micro_batch_decodes_a_sequence():
    given = case(SPARSE, machine(size=8, capacity=11e9), chips=8)
    for table in search(given, (AGGREGATED, DISAGGREGATED), fitting(given)):
        found = [table.row(i) for i in range(len(table))]
        assert found
        assert all(c.batch >= c.layout.dp * c.layout.microbatches for c in found)
        assert {c.layout.dp for c in found} >= {1, 2, 4}
        assert all(isinstance(c.chunk, int) and (c.chunk == 0) == (c.mode == DISAGGREGATED) for c in found)


def test_chips_too_few_for_two_pools_have_none():
    given = case(chips=1, system=machine(size=1, capacity=11e9))
    assert [len(table) for table in search(given, (DISAGGREGATED,), fitting(given))] == [0]
    assert len(search(given, (AGGREGATED, DISAGGREGATED), fitting(given))) == 2
    late = case(slo=st.Slo(ttft=1e-6))
    assert [len(table) for table in search(late, (DISAGGREGATED,), fitting(late))] == [0]


def test_candidates_within_the_limits_come_by_cost_and_the_fastest_of_those_that_cost_the_same_first(monkeypatch):
    """In steps of half a percent from the highest rate; of pools apart, rates are those of the states of each."""
    slo = st.Slo(tpot=3e-3, ttft=0.05)
    given = case(slo=slo)
    tables = search(given, (AGGREGATED, DISAGGREGATED), fitting(given))
    promising = ranked(given, tables, limit=10**6)
    monkeypatch.setattr("steptime.planning.plan_search.PROMISING", 0.0)
    found = ranked(given, tables, limit=10**6)
    kept = [
        (float(table.rate[i]), float(table.tpot[i]))
        for table in tables
        for i in range(len(table))
        if table.tpot[i] <= 3e-3 and table.ttft[i] <= 0.05 and table.memory[i] <= 1 and table.rate[i] > 0
    ]
    highest = max(rate for rate, _ in kept)
    assert len(found) == len(kept) > 100
    assert len(promising) == sum(rate >= PROMISING * highest for rate, _ in kept) > 40
    kept.sort(key=lambda one: (int(np.log(highest / one[0]) / 0.005), one[1]))
    apart = [(c, kept[n]) for n, c in enumerate(found) if c.mode == DISAGGREGATED]
    assert apart
    for candidate, (rate, tpot) in apart[:: max(1, len(apart) // 20)]:
        state = evaluate_state(given, candidate, candidate.batch, 1)
        assert tpot == pytest.approx(float(state.tpot))
        sustained, _ = matched_rate(given, candidate, state, evaluate_prefill(given, candidate, state.tpot))
        assert rate == pytest.approx(float(sustained), rel=0.05)  # a search finds utilisation to a fortieth
    modes = {c.mode for c in ranked(given, tables, limit=1)}
    assert modes == {AGGREGATED, DISAGGREGATED}
    assert len(ranked(given, tables, limit=3)) == 6


def test_a_batch_that_is_hardly_cheaper_does_not_come_before_a_faster_one():
    """One candidate serves 0.4 % more at a hundred times the time per token."""
    given = case()
    (table,) = search(given, (AGGREGATED,), fitting(given)[:1])
    two = replace(table, **{name: getattr(table, name)[:2] for name in COLUMNS})
    two = replace(two, rate=np.array([1.004, 1.0]), tpot=np.array([0.1, 0.001]), ttft=np.zeros(2))
    assert [c.batch for c in ranked(given, [two])] == [two.batch[1], two.batch[0]]
    dear = replace(two, rate=np.array([1.006, 1.0]))
    assert [c.batch for c in ranked(given, [dear])] == [two.batch[0], two.batch[1]]
