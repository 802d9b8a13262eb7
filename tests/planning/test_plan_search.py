"""Parts of a search on hand-made columns."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import steptime as st
from steptime.hardware.system import Rent
from steptime.physics.chip_memory import weights_per_chip
from steptime.physics.layout import Layout, select_layouts, shaped, stacked
from steptime.planning import plan_search
from steptime.planning.batch_grids import batch_grid
from steptime.planning.plan_problem import AGGREGATED, COLUMNS, DISAGGREGATED, Pinned, Table, most_seats, steady_state
from steptime.planning.plan_search import (
    _aims,
    _counts,
    _highest,
    _load,
    _outdone,
    absent_because,
    chunk_sizes,
    fitting,
    held_by,
    lawful,
    ranked,
    readable,
    search,
    search_aggregated,
    smallest_system,
)
from steptime.planning.steady_state import load_shares
from tests.conftest import each, engine, machine, one_matrix, sparse_matrix
from tests.planning.cases import MODEL, WORK, case

TPOT = np.array([0.03, 0.01, 0.02, 0.02, 0.05])
RATE = np.array([4.0, 1.0, 3.0, 2.0, 3.5])


def test_highest_rate_of_those_as_fast():
    assert _highest(TPOT, RATE, np.ones(5, dtype=bool)).tolist() == [4, 1, 3, 3, 4]
    among = np.array([False, False, True, True, True])
    assert _highest(TPOT, RATE, among).tolist() == [3, 0, 3, 3, 3.5]


def table(**columns) -> Table:
    count = len(columns["tpot"])
    zeros = {name: np.zeros(count, dtype=np.int64) for name in COLUMNS} | {"batch": np.arange(count)}
    zeros |= {name: np.ones(count, dtype=np.int64) for name in ("replicas", "prefill_replicas")}
    given = {name: np.asarray(value) for name, value in columns.items()}
    return Table(
        mode=DISAGGREGATED,
        layouts=stacked([Layout()]),
        **zeros
        | {"batch": np.arange(count), "replicas": zeros["replicas"] + 1, "prefill_replicas": zeros["replicas"] + 1}
        | given,
    )


def test_candidates_are_outdone_by_pools_within_the_limits_that_are_as_fast_and_serve_as_much():
    pools = table(
        tpot=[0.02, 0.01, 0.005, 0.005, 0.005], ttft=[1.0, 1.0, 2.0, 0.5, 0.5], memory=[1.0, 0.5, 0.5, 1.1, 0.5],
        rate=[3.0, 2.0, 9.0, 9.0, 0.0],
    )  # fmt: skip
    given = case(slo=st.Slo(ttft=1.0))
    tpot = np.array([0.009, 0.01, 0.01, 0.015, 0.02, 0.02, 0.5])
    rate = np.array([0.5, 2.0, 2.1, 2.0, 3.0, 3.1, 3.0])
    assert _outdone(given, pools, tpot, rate).tolist() == [False, True, False, True, True, False, True]
    assert not _outdone(case(slo=st.Slo(ttft=0.1)), pools, tpot, rate).any()


def test_chunks_of_several_prompts_are_for_one_rank():
    assert readable(WORK, np.array([500, 1000, 1001]), Layout()).tolist() == [True, True, True]
    assert readable(WORK, np.array([500, 1000, 1001]), Layout(dp=2)).tolist() == [True, True, False]


@each(
    "chunks, alone, groups, load",
    [
        (1.0, 0.5, 4, 0.5 * 0.6 + 0.4),  # one chunk in a mixed step: more of them are more mixed steps
        (2.0, 0.25, 1, 0.5 * 0.6 + 0.4),
        (2.0, 0.8, 4, 0.5 * 0.6 + 0.4),  # 0.4 chunks a step; 0.4 x 0.8 / 0.2 is more than 1
        (2.0, 0.25, 4, 0.5 * 0.6 + 0.4 * 0.5),  # 1.5 x 0.25 / 0.75
        (2.0, 0.0, 4, 0.5 * 0.6),  # all steps are mixed
    ],
)
def test_load_of_decode_and_chunks(chunks, alone, groups, load):
    """Of a token's 10 ms, decode takes six with a load of a half."""
    state = SimpleNamespace(chunks_per_mixed_step=np.array(chunks), decode_only_share=np.array(alone), tpot=np.array(0.01))
    assert float(_load(state, np.array(0.006), np.array(0.5), np.array(groups))) == pytest.approx(load)


def test_candidates_are_ranked_in_steps_of_half_a_percent():
    given = case(slo=st.Slo(tpot=0.05, ttft=1.0))
    # Highest first; 0.4 % less but faster; 0.6 % less; too slow, late, large, idle; below 0.6 of the highest; exactly that.
    mine = table(
        tpot=[0.04, 0.03, 0.01, 0.06, 0.01, 0.01, 0.01, 0.01, 0.05],
        ttft=[1.0, 1.0, 1.0, 0.5, 1.1, 0.5, 0.5, 0.5, 0.5],
        memory=[1.0, 1.0, 1.0, 0.5, 0.5, 1.1, 0.5, 0.5, 0.5],
        rate=[10.0, 9.96, 9.94, 99.0, 99.0, 99.0, 0.0, 5.9, 6.0],
    )
    assert [candidate.batch for candidate in ranked(given, [mine])] == [1, 0, 2, 8]
    assert [candidate.batch for candidate in ranked(given, [mine], limit=2)] == [1, 0]
    other = replace(table(tpot=[0.02, 0.001], ttft=[0.1, 0.1], rate=[9.97, 9.99]), mode=AGGREGATED)
    modes = [(candidate.mode, candidate.batch) for candidate in ranked(given, [mine, other], limit=2)]
    assert modes == [(AGGREGATED, 1), (AGGREGATED, 0), (DISAGGREGATED, 1), (DISAGGREGATED, 0)]
    assert ranked(given, [replace(mine, rate=0 * mine.rate)]) == []


def test_layouts_are_held_whose_weights_leave_room():
    """10 GB of weights on chips of 11 GB, of which an engine uses 0.9 and keeps 1 GB."""
    given = replace(case(), engine=engine(memory_share=0.9, reserved_bytes=1e9))
    every = lawful(given)
    held = held_by(given, every)
    assert held == [one for one in every if float(weights_per_chip(given.model, one)) < 8.9e9]
    assert 0 < len(held) < len(every)
    assert held_by(given, []) == []
    (reason,) = absent_because(given, Layout())
    assert reason == "its weights take 10.0 GB of a chip, which has 8.90 GB"
    assert absent_because(given, held[0]) == []
    assert absent_because(replace(case(), system=machine(size=4, capacity=10e9)), Layout())


@pytest.mark.parametrize("model", [MODEL, sparse_matrix(kv_bytes=1e4, active=2)], ids=["dense", "sparse"])
def test_batches_that_can_be_stable_are_evaluated(monkeypatch, model):
    """Prompt tokens of a step of each rank fit the largest chunk; memory has room for spare slots, or for the batch."""
    given = replace(case(), sure=0.9, model=model, system=machine(size=4, capacity=26e9 if model is not MODEL else 11e9))
    layouts = fitting(given)
    wide = shaped(stacked(layouts), 1)
    grid = batch_grid(wide)
    decode = steady_state(given, DISAGGREGATED, wide, grid)
    taken = []
    monkeypatch.setattr(plan_search, "_read_beside", lambda *arguments: taken.append(arguments[-1]))
    search_aggregated(given, stacked(layouts), decode)
    sizes, load, most = chunk_sizes(WORK), load_shares(decode.tpot, grid), most_seats(WORK, decode, wide)
    expected = np.zeros(grid.shape, dtype=bool)
    for i, layout in enumerate(layouts):
        for j, batch in enumerate(grid[i].tolist()):
            flying = 1 - 1 / (batch * layout.replicas)
            work = batch * flying * 1000 / 200 / layout.dp
            stable = 1e-4 * sizes[0] < work < 0.9 * sizes[-1] or batch * layout.replicas <= 1
            roomy = bool(decode.memory.fits[i, j]) and load[i, j] * flying <= 0.9
            expected[i, j] = stable and (roomy or most[i, j] >= batch) and (j == 0 or grid[i, j] > grid[i, j - 1])
    assert np.array_equal(taken[0], expected)
    assert 0 < expected.sum() < expected.size


def test_candidates_of_a_search_have_room_and_a_prompt_queue_that_empties():
    """With prompts as long as answers, many batches that fit have too many prompts for a chunk of each step."""
    given = replace(case(slo=st.Slo(ttft=10.0)), front=True, workload=replace(WORK, input_tokens=8000))
    (found,) = search(given, (AGGREGATED,), fitting(given))
    assert len(found) > 20
    layouts = replace(select_layouts(found.layouts, found.layout), replicas=found.replicas)
    state = steady_state(given, AGGREGATED, layouts, found.batch, found.chunk, quick=True)
    assert (state.utilisation.max() < 0.9, np.all(np.isfinite(state.ttft)), found.memory.max() <= 1) == (True, True, True)


def test_targets_of_a_probability_are_those_of_each_mode():
    """90 % of ranges that end at 1.25 of decode and 1.5 of mixed steps, and 0.2 more, in logarithms, of separate pools."""
    tables = {"tpot": {"decode": [0.8, 1.25], "mixed": [0.7, 1.5]}, "ttft": {"prompt": [0.6, 1.6], "queue": [0.5, 3.0]}}
    on = engine(fit={"names": [], "interval": tables, "systems": {"toy": 100}})
    given = replace(case(slo=st.Slo(tpot=0.02, ttft=2.0)), engine=on, sure=0.95)
    columns = table(tpot=[0.01, 0.01], ttft=[1.0, 1.0], rate=[1.0, 1.0], input_share=[0.0, 0.9])
    tpot, ttft = _aims(given, replace(columns, mode=AGGREGATED))
    assert tpot == pytest.approx([0.02 / 1.25, 0.02 / 1.5])
    assert ttft == pytest.approx(2 / 1.6)
    tpot, ttft = _aims(given, columns)
    assert np.broadcast_to(tpot, 2) == pytest.approx([0.02 / np.exp(np.hypot(np.log(1.25), 0.2))] * 2)
    assert np.broadcast_to(ttft, 2) == pytest.approx([2 / np.exp(np.hypot(np.log(1.6), 1.5))] * 2)


def test_one_layout_that_holds_a_request_is_enough():
    """5.01 GB for each of two chips' half of 10 GB leave no room for a request of 82 MB; a quarter on each of four does."""
    model, system = one_matrix(heads=8), machine(size=4, capacity=5.01e9 / 0.92)
    assert smallest_system(model, [replace(system, chips=4)])[1] == 4


def test_what_cannot_become_the_best_is_not_evaluated(monkeypatch):
    """Layouts and batches that are evaluated with chunks: each once, the promising first, and not all."""
    given = replace(case(), front=True)
    layouts = fitting(given)
    wide = shaped(stacked(layouts), 1)
    grid = batch_grid(wide)
    decode = steady_state(given, DISAGGREGATED, wide, grid)
    read, taken = plan_search._read_beside, []

    def counted(*arguments):
        taken.append(arguments[-1].copy())
        return read(*arguments)

    monkeypatch.setattr(plan_search, "_read_beside", counted)

    def evaluated(problem, disaggregated=None):
        taken.clear()
        search_aggregated(problem, stacked(layouts), decode, disaggregated)
        return taken

    first, then = (part.copy() for part in evaluated(given))
    assert not np.any(first & then)
    new = np.diff(grid, axis=1, prepend=0) > 0
    assert not np.any((first | then) & ~new)
    rate = decode.rate * wide.replicas
    best_first = max(rate[first])
    assert np.all(rate[first] >= 0.9 * np.array([max(rate[first & (decode.tpot <= t)]) for t in decode.tpot[first]]))
    assert rate[then].max(initial=0) <= best_first
    sure = evaluated(replace(given, sure=0.9))
    assert len(sure) == 1
    assert np.all(sure[0] >= (first | then))
    fast = evaluated(replace(given, front=False, slo=st.Slo(tpot=2.8e-3)))
    assert np.all(decode.tpot[fast[0] | fast[1]] <= 2.8e-3 * (1 + 1e-9))
    (all_of_them,) = (part.sum() for part in evaluated(replace(given, front=False, sure=0.9, slo=st.Slo(tpot=2.8e-3))))
    assert all_of_them == sure[0].sum()
    pools = table(tpot=[1e-9], ttft=[0.0], memory=[0.5], rate=[1e9])
    assert not np.any(np.logical_or(*evaluated(given, pools)))


@each("chips, counts", [(8, [1, 2, 4, 8]), (6, [1, 2, 4, 6]), (1, [1]), (72, [1, 2, 4, 8, 16, 32, 64, 72])])
def test_chips_that_a_person_would_rent_are_powers_of_two_and_the_usual_number(chips, counts):
    assert list(_counts(machine(size=chips))) == counts


def test_ranks_share_the_prompt_tokens_of_a_step(monkeypatch):
    """Four sequences have 15,000 prompt tokens each for one step: 11,250 of each of four ranks, and 45,000 of one rank."""
    work = replace(WORK, input_tokens=15_000, output_tokens=2)
    given = replace(case(), sure=0.9, model=sparse_matrix(kv_bytes=1e3, active=1), system=machine(size=4), workload=work)
    layouts = [Layout(tp=4, ep=4), Layout(dp=4, ep=4)]
    wide = shaped(stacked(layouts), 1)
    grid = np.array([[1, 4], [1, 4]])
    monkeypatch.setattr(plan_search, "batch_grid", lambda _: grid)
    taken = []
    monkeypatch.setattr(plan_search, "_read_beside", lambda *arguments: taken.append(arguments[-1]))
    search_aggregated(given, stacked(layouts), steady_state(given, DISAGGREGATED, wide, grid))
    assert taken[0].tolist() == [[True, False], [True, True]]


def test_systems_are_tried_by_rent_chips_memory_and_bandwidth():
    """Powers of two below the usual number, and that one; systems without a rent come last."""
    assert [list(_counts(SimpleNamespace(chips=n))) for n in (1, 4, 6)] == [[1], [1, 2, 4], [1, 2, 4, 6]]
    paid = machine(capacity=10e9, bandwidth=3e12)
    free = replace(paid, rent=Rent(low=np.nan, typical=np.nan, high=np.nan))
    assert plan_search._order(paid, 4) == (4 * 2 / 3600, 4, 40e9, -3e12)
    assert plan_search._order(free, 4) == (np.inf, 4, 40e9, -3e12)


def test_the_best_of_each_group_is_kept_where_closed_forms_say_six_tenths_of_the_highest():
    """Groups by prefill layout: the highest rate of each, the highest first; rows beyond the limits do not count."""
    given = case(slo=st.Slo(tpot=0.05, ttft=1.0))
    least = plan_search.HOPEFUL * 10.0
    columns = {
        "tpot": [0.01, 0.01, 0.01, 0.06, 0.01, 0.01], "ttft": [0.5] * 6, "rate": [7.0, 10.0, 9.0, 99.0, least, 0.99 * least],
        "prefill_layout": [0, 0, 1, 1, 2, 3],
    }  # fmt: skip
    layouts = stacked([Layout(), Layout(tp=2), Layout(tp=4), Layout(tp=8)])
    mine = replace(table(**columns), layouts=layouts)
    assert plan_search.rows_within(given, mine).tolist() == [0, 1, 2, 4, 5]
    found = plan_search.best_of_prefill_layouts(given, [replace(mine, mode=AGGREGATED), mine])
    assert [candidate.batch for candidate in found] == [1, 2, 4]
    assert plan_search.best_of_prefill_layouts(given, [replace(mine, rate=0 * mine.rate)]) == []


def test_rows_at_their_limits_are_within_them():
    given = case(slo=st.Slo(tpot=0.05, ttft=1.0))
    columns = {"tpot": [0.05, 0.051, 0.05, 0.05, 0.05], "ttft": [1.0, 1.0, 1.01, 1.0, 1.0]}
    mine = table(**columns, memory=[1.0, 1.0, 1.0, 1.01, 1.0], rate=[1.0, 1.0, 1.0, 1.0, 0.0])
    assert plan_search.rows_within(given, mine).tolist() == [0]


@pytest.mark.parametrize(("chunk", "batches"), [(480, [4, 64]), (520, [4, 64, 91]), (100_000, [4, 64, 91, 128])])
def test_prompt_tokens_of_a_step_fill_less_than_nine_tenths_of_the_largest_chunk(monkeypatch, chunk, batches):
    """Batches of 4, 64 and 91 bring 15, 315 and 450 prompt tokens a step; one less is in flight."""
    given = replace(case(), sure=0.9, system=machine(size=4, capacity=1e15), pinned=Pinned(chunk=chunk))
    table = stacked([Layout(tp=4)])
    wide = shaped(table, 1)
    grid = batch_grid(wide)
    taken = []
    monkeypatch.setattr(plan_search, "_read_beside", lambda *arguments: taken.append(arguments[-1]))
    search_aggregated(given, table, steady_state(given, DISAGGREGATED, wide, grid))
    found = grid[0][taken[0][0]].tolist()
    assert [batch for batch in (4, 64, 91, 128) if batch in found] == batches
