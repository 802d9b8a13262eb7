"""Candidates by hand: what a case rents, how one is told from another, rows of tables, and states of one replica."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.physics.layout import Layout, stacked
from steptime.planning.plan_problem import (
    AGGREGATED,
    COLUMNS,
    DISAGGREGATED,
    Candidate,
    PlanProblem,
    Table,
    evaluate_prefill,
    evaluate_state,
    joined,
    moving,
    pass_limit,
)
from tests.conftest import each, engine, machine, one_matrix
from tests.planning.cases import equal_requests

WORK = equal_requests(input_tokens=1000, output_tokens=201)
CASE = PlanProblem(model=one_matrix(), system=machine(), workload=WORK, slo=st.Slo(), chips=6, engine=engine())
SHARED = Candidate(mode=AGGREGATED, layout=Layout(tp=2, microbatches=2, replicas=3), batch=100, chunk=512)
APART = Candidate(
    mode=DISAGGREGATED,
    layout=Layout(tp=2, replicas=2),
    batch=100,
    prefill_layout=Layout(tp=1, microbatches=2, replicas=4),
    prompts=3,
)


def test_a_case_rents_all_its_chips():
    """Six at 2 USD an hour."""
    assert CASE.rent == pytest.approx(12 / 3600)


def test_a_candidate_in_a_line():
    assert SHARED.text == "tp2 mb2 x3"
    assert APART.text == "prefill mb2 x4 + decode tp2 x2"


@each(
    "changes, same",
    [
        ({"batch": 7, "chunk": 8}, True),
        ({"layout": Layout(tp=2, replicas=3)}, True),
        ({"layout": Layout(tp=2, microbatches=4, replicas=3)}, True),
        ({"layout": Layout(tp=4, replicas=3)}, False),
        ({"layout": Layout(tp=2, replicas=2)}, False),
        ({"mode": DISAGGREGATED}, False),
        ({"prefill_layout": Layout()}, False),
    ],
)
def test_candidates_that_differ_in_batch_chunk_and_micro_batches_are_alike(changes, same):
    assert (replace(SHARED, **changes).same == SHARED.same) is same


def test_pools_of_prompts_that_differ_in_micro_batches_are_alike():
    assert replace(APART, prefill_layout=Layout(replicas=4), prompts=1).same == APART.same
    assert replace(APART, prefill_layout=Layout(replicas=5)).same != APART.same


def table(mode: str) -> Table:
    figures = {name: np.array([0.5, 1.5]) for name in COLUMNS}
    whole = {
        "layout": [1, 0], "batch": [10, 20], "chunk": [512, 1024], "replicas": [3, 4], "prefill_layout": [0, 1],
        "prefill_prompts": [2, 5], "prefill_replicas": [6, 7],
    }  # fmt: skip
    columns = figures | {name: np.array(value) for name, value in whole.items()}
    return Table(mode=mode, layouts=stacked([Layout(tp=2), Layout(tp=4)]), **columns)


def test_rows_of_a_table():
    shared = table(AGGREGATED)
    assert len(shared) == 2
    assert shared.row(0) == Candidate(mode=AGGREGATED, layout=Layout(tp=4, replicas=3), batch=10, chunk=512)
    assert shared.row(1) == Candidate(mode=AGGREGATED, layout=Layout(tp=2, replicas=4), batch=20, chunk=1024)
    assert table(DISAGGREGATED).row(1) == Candidate(
        mode=DISAGGREGATED,
        layout=Layout(tp=2, replicas=4),
        batch=20,
        chunk=1024,
        prefill_layout=Layout(tp=4, replicas=7),
        prompts=5,
    )
    row = table(DISAGGREGATED).row(0)
    assert {type(value) for value in (row.batch, row.chunk, row.prompts, row.layout.replicas)} == {int}


def test_tables_end_to_end():
    both = joined(AGGREGATED, stacked([Layout(tp=2), Layout(tp=4)]), [table(AGGREGATED), table(AGGREGATED)])
    assert both.batch.tolist() == [10, 20, 10, 20]
    assert both.tpot.tolist() == [0.5, 1.5] * 2
    assert both.mode == AGGREGATED
    assert both.row(2) == table(AGGREGATED).row(0)
    nothing = joined(DISAGGREGATED, stacked([]), [])
    assert len(nothing) == 0
    assert nothing.layout.dtype == np.int64


def test_a_state_is_that_of_one_replica_at_any_batch():
    """Decode alone: 2.5 ms of weights over two chips, 1,100.5 tokens of 10 kB a sequence over two."""
    state = evaluate_state(CASE, APART, np.array([1, 10]), 0)
    assert state.mixed is None
    expected = [(1e10 + n * 1100.5 * 1e4) / 2 / 4e12 for n in (1, 10)]
    assert state.tpot == pytest.approx(expected)
    assert state.rate == pytest.approx([n / (200 * t) for n, t in zip((1, 10), expected, strict=True)])
    shared = evaluate_state(CASE, replace(SHARED, layout=Layout(tp=2, replicas=3)), 10, 500)
    assert shared.decode_only_share == pytest.approx(
        1 - (10 - 1 / 3) * 2 / 200, abs=0.006
    )  # two chunks of a prompt in one slot
    assert shared.tpot > expected[1]


def test_a_pool_of_prompts_is_that_of_one_replica():
    """Three prompts of 1,000 tokens of 20 GFLOP at 2 PFLOP/s, in two micro-batches: 30 ms."""
    assert evaluate_prefill(CASE, SHARED) is None
    pool = evaluate_prefill(CASE, APART)
    assert pool.seats == 3
    assert pool.step.total == pytest.approx(30e-3, rel=1e-3)
    assert pool.rate == pytest.approx(100, rel=1e-3)
    assert pool.most_utilised == pytest.approx(0.9)
    soon = evaluate_prefill(replace(CASE, slo=st.Slo(ttft=0.0105)), APART)
    assert soon.most_utilised < 0.5


LINKED = machine(up=1e11, out=1e10, latency=1e-6, out_latency=5e-6)  # eight chips in a node


@pytest.mark.parametrize(("chips", "latency", "bandwidth"), [(8, 1e-6, 1e11), (9, 5e-6, 1e10)])
def test_caches_move_inside_a_node_where_it_holds_all_chips(chips, latency, bandwidth):
    """10 MB of a prompt over the two chips that read it."""
    sent = moving(replace(CASE, system=LINKED, chips=chips), Layout(tp=2))
    assert (sent.latency, sent.moving) == (latency, pytest.approx(1e7 / (2 * bandwidth)))


def test_a_limit_on_first_tokens_is_less_what_comes_to_a_pass():
    """1 s less 1 us and 50 us for the cache, 0.1 s before the queue, and three steps of 20 ms."""
    on = engine(seconds_before_queue=0.1, steps_before_answer=3)
    given = replace(CASE, system=LINKED, engine=on)
    assert pass_limit(given, Layout(tp=2), Layout(), 0.02, 1.0) == pytest.approx(1 - 51e-6 - 0.1 - 0.06)
    assert np.isinf(pass_limit(given, Layout(), Layout(), 0.02, np.inf))
