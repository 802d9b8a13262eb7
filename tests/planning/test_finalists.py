"""Finalists of hand-made tables, their neighbours, and which of them wins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.physics.layout import Layout, stacked
from steptime.planning import finalists
from steptime.planning.finalists import (
    Finalist,
    list_finalists,
    neighbours,
    simulate_candidate,
    simulate_finalists,
    simulated_pools,
)
from steptime.planning.plan_problem import AGGREGATED, COLUMNS, DISAGGREGATED, Candidate, Pinned, Table
from steptime.planning.simulated_rate import Run
from tests.planning.cases import case

SIZES = [Layout(tp=tp) for tp in (1, 2, 4)]
SHARED = Candidate(mode=AGGREGATED, layout=Layout(tp=2, replicas=2), batch=8, chunk=512)
APART = Candidate(mode=DISAGGREGATED, layout=Layout(replicas=2), batch=8, prefill_layout=Layout(replicas=2), prompts=2)


def table(mode: str, **columns) -> Table:
    count = len(columns["rate"])
    values = {name: np.ones(count, dtype=np.int64) for name in COLUMNS} | {"memory": np.full(count, 0.5)}
    values |= {"tpot": np.full(count, 0.01), "ttft": np.full(count, 0.1), "layout": np.zeros(count, dtype=np.int64)}
    values |= {"prefill_layout": np.zeros(count, dtype=np.int64)}
    return Table(mode=mode, layouts=stacked(SIZES), **values | {name: np.asarray(value) for name, value in columns.items()})


def test_finalists_are_the_best_four_of_each_level_of_the_targets():
    """Rates fall; the levels of the TTFT, and 1 and 1 / 1.2 of the TPOT, admit rows 0 to 7, then others."""
    rows = table(
        AGGREGATED,
        rate=[10.0, 9.9, 9.5, 9.0, 8.5, 8.0, 7.5, 7.0],
        layout=[0, 0, 1, 2, 0, 1, 2, 0],
        batch=[80, 79, 60, 50, 40, 30, 20, 10],
        replicas=[1, 1, 1, 1, 2, 2, 3, 4],
        chunk=[512, 256, 512, 512, 512, 512, 512, 512],
        tpot=[0.020, 0.020, 0.020, 0.018, 0.016, 0.016, 0.016, 0.016],
        ttft=[1.00, 1.00, 1.00, 1.00, 1.00, 0.40, 0.40, 0.40],
    )
    levels = [st.Slo(tpot=0.02, ttft=1.0), st.Slo(tpot=0.02, ttft=0.5)]
    found = list_finalists(case(slo=levels[0]), [rows], levels)
    # Row 1 is row 0 with another chunk. Then four that are a sixth faster, of which row 4 is known; then those soon enough.
    assert [candidate.batch for candidate in found] == [80, 60, 50, 40, 30, 20, 10]
    assert [candidate.batch for candidate in list_finalists(case(slo=levels[0]), [rows], levels[:1])] == [
        80, 60, 50, 40, 30, 20, 10
    ]  # fmt: skip
    tight = [st.Slo(tpot=0.017, ttft=0.5)]
    assert [candidate.batch for candidate in list_finalists(case(slo=tight[0]), [rows], tight)] == [30, 20, 10]


def test_finalists_of_separate_pools_differ_in_the_prompts_of_a_pass():
    rows = table(DISAGGREGATED, rate=[5.0, 4.9, 4.8], prefill_prompts=[1, 2, 1], batch=[10, 11, 12])
    levels = [st.Slo()]
    assert [candidate.batch for candidate in list_finalists(case(), [rows], levels)] == [10, 11]


# --- neighbours ------------------------------------------------------------------------------------------------------------


def test_neighbours_of_a_shared_pool_have_all_other_chunks_the_nearest_first():
    def chunks(chunk: int, layout: Layout = SHARED.layout, **more) -> list[int]:
        given = replace(case(), **more)
        found = list(neighbours(given, replace(SHARED, chunk=chunk, layout=layout)))
        assert all(replace(one, chunk=0, layout=layout) == replace(SHARED, chunk=0, layout=layout) for one in found)
        return [one.chunk for one in found]

    assert chunks(512) == [256, 1000, 128, 1024, 2048, 4096, 8192, 16384]
    assert chunks(1000) == [512, 1024, 256, 2048, 128, 4096, 8192, 16384]
    assert chunks(16384) == [8192, 4096, 2048, 1024, 1000, 512, 256, 128]
    assert chunks(512, evidence="published") == [1000, 1024, 2048, 4096, 8192, 16384]
    # Chunks of several prompts are for one rank.
    assert chunks(1000, Layout(dp=2, ep=2)) == [512, 256, 128]
    assert chunks(700, pinned=Pinned(chunk=700)) == []


def test_neighbours_of_separate_pools_have_other_prompts_and_a_replica_more_or_less():
    found = list(neighbours(case(8), APART))
    prompts, counts = found[:2], found[2:]
    assert sorted(one.prompts for one in prompts) == [1, 4]
    assert all(replace(one, prompts=2) == APART for one in prompts)
    assert [(one.prefill_layout.replicas, one.layout.replicas) for one in counts] == [(1, 7), (3, 5)]
    assert {one.prompts for one in counts} == {2}
    (more, *_) = neighbours(case(8), replace(APART, prompts=1))
    assert more.prompts == 2
    # All domains of four have the same pools.
    alike = list(neighbours(replace(case(8), symmetric_domains=True), replace(APART, layout=Layout(replicas=4), prompts=1)))
    assert [(one.prefill_layout.replicas, one.layout.replicas) for one in alike[1:]] == [(4, 4)]


# --- the best of them ------------------------------------------------------------------------------------------------------


@pytest.fixture
def rates(monkeypatch):
    """Simulated and confirmed rates by chunk instead of simulations; and what was simulated, with the rate to exceed."""
    simulated, confirmed, asked = {}, {}, []

    def made(candidate: Candidate, rate: float) -> Finalist:
        run = Run(rate=rate, ttft=0, tpot=0, mean_ttft=0, mean_tpot=0, batch=0, busy=(0,), worst=1.0)
        return Finalist(candidate=candidate, pools=(), run=run)

    def simulate(_case, candidate, least):
        asked.append((candidate.chunk, least))
        rate = simulated.get(candidate.chunk, 0.0)
        return made(candidate, rate) if rate > least else None

    def confirm(_case, finalist):
        rate = confirmed.get(finalist.candidate.chunk, finalist.run.rate)
        return made(finalist.candidate, rate) if rate else None

    monkeypatch.setattr(finalists, "simulate_candidate", simulate)
    monkeypatch.setattr(finalists, "_confirmed", confirm)
    return simulated, confirmed, asked


def of_chunks(*chunks: int) -> list[Candidate]:
    return [replace(SHARED, chunk=chunk) for chunk in chunks]


def test_neighbours_of_the_best_are_tried_twice(rates):
    simulated, _, asked = rates
    simulated.update({512: 5.0, 1000: 6.0, 1024: 7.0, 2048: 8.0, 4096: 9.0})
    found = simulate_finalists(case(), of_chunks(512))
    tried = [(512, 0.0), (256, 5.0), (1000, 5.0), (128, 6.0), (1024, 6.0), (2048, 7.0), (4096, 8.0), (8192, 9.0), (16384, 9.0)]
    assert asked == tried
    assert [(one.candidate.chunk, one.run.rate) for one in found][:2] == [(4096, 9.0), (2048, 8.0)]


def test_candidates_must_exceed_the_best_so_far(rates):
    simulated, _, asked = rates
    simulated.update({512: 5.0, 4096: 4.0, 8192: 6.0})
    found = simulate_finalists(case(), of_chunks(512, 4096, 8192))
    assert asked[:3] == [(512, 0.0), (4096, 5.0), (8192, 5.0)]
    assert [one.candidate.chunk for one in found] == [8192, 512]
    assert [chunk for chunk, _ in asked[3:]] == [16384, 2048, 1024, 1000, 256, 128]


def test_the_best_is_the_first_that_is_confirmed_above_the_next(rates):
    simulated, confirmed, _ = rates
    simulated.update({128: 5.0, 1000: 6.0, 8192: 7.0})
    confirmed.update({8192: 5.5, 1000: 5.9, 128: 1.0})
    found = simulate_finalists(case(), of_chunks(128, 1000, 8192))
    # The third, with 5 in its run, cannot reach the 5.9 of the second.
    assert [(one.candidate.chunk, one.run.rate) for one in found] == [(1000, 5.9), (8192, 5.5), (128, 5.0)]


def test_what_is_not_confirmed_is_no_plan(rates):
    simulated, confirmed, _ = rates
    simulated.update({128: 5.0, 8192: 7.0})
    confirmed[8192] = 0.0
    found = simulate_finalists(case(), of_chunks(128, 8192))
    assert found[0].candidate.chunk == 128
    confirmed[128] = 0.0
    assert simulate_finalists(case(), of_chunks(128, 8192)) == []
    simulated.clear()
    assert simulate_finalists(case(), of_chunks(128, 8192)) == []


def test_pools_of_a_run_have_slots_for_two_fifths_more_sequences():
    (pool,) = simulated_pools(case(), replace(SHARED, layout=Layout(tp=4), batch=40))
    assert (pool.role, pool.batch, pool.chunk, pool.queued) == ("serve", 40, 512, False)
    assert pool.max_num_seqs >= 56 + 3 * 56**0.5
    pinned = replace(case(), pinned=Pinned(max_num_seqs=45))
    assert simulated_pools(pinned, replace(SHARED, batch=40))[0].max_num_seqs == 45
    reader, server = simulated_pools(case(), replace(APART, prefill_layout=Layout(dp=2, ep=2), prompts=3))
    assert (reader.role, reader.batch, reader.max_num_seqs, server.role) == ("prefill", 6, 6, "decode")


@pytest.mark.parametrize("candidate", [replace(SHARED, batch=16), replace(APART, batch=16)])
def test_a_candidate_has_the_rate_that_its_limits_allow(candidate):
    """TPOT of decode steps of 1.25 and 2.5 ms at least, with a limit that a batch of some twenty meets."""
    given = case(slo=st.Slo(tpot=3e-3, ttft=0.5))
    given = replace(given, percentile="p90")
    found = simulate_candidate(given, candidate, 0.0)
    assert found.run.worst <= 1
    assert found.run.tpot <= 3e-3
    assert found.run.ttft <= 0.5
    assert simulate_candidate(given, candidate, 1.2 * found.run.rate) is None
    strict = replace(given, limits=st.Slo(tpot=1e-3, ttft=0.5))
    assert simulate_candidate(strict, candidate, 0.0) is None
