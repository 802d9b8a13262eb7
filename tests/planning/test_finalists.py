"""Finalists of hand-made tables, their neighbours, and which of them wins."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import steptime as st
from steptime.physics.layout import Layout, stacked
from steptime.physics.speculative_step import drafted_sequences
from steptime.planning import finalists, simulated_rate
from steptime.planning.finalists import (
    Course,
    Finalist,
    SimulatedPool,
    _is_slow,
    _leaders,
    _limits,
    expected_figures,
    highest_met,
    list_finalists,
    neighbours,
    other_copies,
    other_divisions,
    other_readers,
    simulate_candidate,
    simulate_finalists,
    simulated_pools,
    sooner_readers,
    usual_chunk,
    with_chunks_of,
)
from steptime.planning.plan_problem import AGGREGATED, COLUMNS, DISAGGREGATED, Candidate, Pinned, Table
from steptime.planning.plan_search import best_of_families, best_of_prefill_layouts
from steptime.planning.rate_curve import GRID, Curve
from steptime.planning.session_hits import SessionCase
from steptime.planning.session_loop import FIRST_TURNS, TURNS
from steptime.planning.simulated_rate import Run
from steptime.planning.steady_state import context_deviation, mean_context
from steptime.workload.sessions import PRESETS
from tests.conftest import CHOICE_ALONE, each, engine
from tests.planning.cases import MODEL, NODES, case

NO_WAITS = Run(rate=1.0, ttft=0.0, tpot=0.0, mean_ttft=0.0, mean_tpot=0.0, batch=0.0, busy=(0.0,), worst=0.0)
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


def test_a_finalist_has_the_most_slots_of_all_levels():
    """Row 5 is row 4 with fewer slots, which a lower TPOT admits before a lower TTFT admits row 4."""
    rows = table(
        AGGREGATED,
        rate=[10.0, 9.0, 8.0, 7.0, 6.0, 4.0],
        layout=[0, 1, 2, 0, 1, 1],
        batch=[80, 60, 50, 40, 91, 46],
        replicas=[1, 1, 1, 2, 2, 2],
        chunk=[512] * 6,
        tpot=[0.020, 0.020, 0.020, 0.020, 0.020, 0.016],
        ttft=[1.00, 1.00, 1.00, 1.00, 0.40, 0.40],
    )
    levels = [st.Slo(tpot=0.02, ttft=1.0), st.Slo(tpot=0.02, ttft=0.5)]
    batches = [candidate.batch for candidate in list_finalists(case(slo=levels[0]), [rows], levels)]
    assert batches == [80, 60, 50, 40, 91]


def test_finalists_of_separate_pools_differ_in_the_prompts_of_a_pass():
    rows = table(DISAGGREGATED, rate=[5.0, 4.9, 4.8], prefill_prompts=[1, 2, 1], batch=[10, 11, 12])
    levels = [st.Slo()]
    assert [candidate.batch for candidate in list_finalists(case(), [rows], levels)] == [10, 11]


# --- neighbours ------------------------------------------------------------------------------------------------------------


def test_neighbours_of_a_shared_pool_have_all_other_chunks_the_nearest_first_and_twice_the_slots():
    def chunks(chunk: int, layout: Layout = SHARED.layout, batch: float = 16, **more) -> list[int]:
        given, base = replace(case(), **more), replace(SHARED, chunk=chunk, layout=layout, batch=batch)
        found = list(neighbours(given, base))
        (other,) = [one for one in found if one.batch != batch]
        assert other == replace(base, batch=2 * batch)
        return [one.chunk for one in found if one.batch == batch and replace(one, chunk=0) == replace(base, chunk=0)]

    assert chunks(512) == [256, 1000, 128, 1024, 2048, 4096, 8192, 16384]
    assert chunks(1000) == [512, 1024, 256, 2048, 128, 4096, 8192, 16384]
    assert chunks(16384) == [8192, 4096, 2048, 1024, 1000, 512, 256, 128]
    assert chunks(512, evidence="published") == [1000, 1024, 2048, 4096, 8192, 16384]
    assert chunks(1000, Layout(dp=2, ep=2)) == [512, 1024, 256, 2048, 128, 4096, 8192, 16384]
    # Of unequal lengths, no chunk is a whole prompt.
    uneven = replace(case().workload, input_spread=1.0)
    assert chunks(1024, workload=uneven) == [512, 2048, 256, 4096, 128, 8192, 16384]
    assert chunks(700, pinned=Pinned(chunk=700)) == []


def test_few_slots_are_doubled_with_each_chunk():
    found = list(neighbours(replace(case(), evidence="published"), replace(SHARED, batch=2)))
    assert [one.chunk for one in found if one.batch == 4] == [512, 1000, 1024, 2048, 4096, 8192, 16384]


@pytest.mark.parametrize(("evidence", "least"), [("published", 512), ("any", 128)])
def test_chunks_are_those_that_engines_have(evidence, least):
    """Short prompts share a chunk, and a chunk is a power of two where prompts are unequal; the user's own stays."""
    given = replace(case(), evidence=evidence)
    uneven = replace(given, workload=replace(given.workload, input_spread=1.0))
    short, long = replace(SHARED, chunk=43), replace(SHARED, chunk=1000)
    assert (usual_chunk(given, short).chunk, usual_chunk(given, long).chunk) == (least, 1000)
    assert (usual_chunk(uneven, short).chunk, usual_chunk(uneven, long).chunk) == (least, 1024)
    assert usual_chunk(replace(given, pinned=Pinned(chunk=43)), short) == short
    assert usual_chunk(given, APART) == APART


def test_other_layouts_are_tried_with_the_chunk_of_the_best_and_with_the_smallest():
    others = [replace(SHARED, layout=Layout(tp=4)), replace(SHARED, layout=Layout(tp=4), chunk=1024), SHARED, APART]
    found = list(with_chunks_of(case(), replace(SHARED, chunk=2048), others))
    assert {(one.layout.tp, one.chunk) for one in found} == {(4, 128), (4, 2048)}
    assert list(with_chunks_of(replace(case(), pinned=Pinned(chunk=7)), SHARED, others)) == []


def test_the_best_of_each_family_is_a_finalist():
    """Several replicas, data-parallel ranks and stages: the best of each is far behind, and the last family too far."""
    layouts = stacked([Layout(), Layout(dp=2, ep=2), Layout(pp=2, microbatches=2)])
    rows = table(AGGREGATED, rate=[10, 9, 5, 4.5, 4.2, 3, 6], layout=[0, 0, 1, 1, 2, 2, 0], replicas=[1, 1, 1, 1, 1, 2, 2])
    found = best_of_families(case(), [replace(rows, layouts=layouts, batch=np.arange(7))])
    assert [candidate.batch for candidate in found] == [0, 6, 2, 4]
    assert best_of_families(case(), [replace(rows, mode=DISAGGREGATED)]) == []


def test_the_best_of_each_prefill_layout_is_a_finalist():
    """Of 6 rows with pools, the best one of each prefill layout; that of 4 requests/s is less than 0.4 of the best."""
    rows = table(
        DISAGGREGATED, rate=[11.0, 10.0, 9.0, 8.0, 4.0, 3.0], prefill_layout=[0, 0, 1, 1, 2, 2], ttft=[9.0] + 5 * [0.1]
    )
    limited = case(slo=st.Slo(ttft=1.0, tpot=0.02))
    found = best_of_prefill_layouts(limited, [replace(rows, batch=np.arange(6))])
    assert [candidate.batch for candidate in found] == [1, 2, 4]
    slow = replace(rows, batch=np.arange(6), rate=np.array([11.0, 10.0, 9.0, 8.0, 3.9, 3.0]))
    assert [candidate.batch for candidate in best_of_prefill_layouts(limited, [slow])] == [1, 2]
    assert best_of_prefill_layouts(limited, [replace(rows, mode=AGGREGATED)]) == []
    # The four best rows of a level have two prefill layouts; the third one comes in addition.
    levels = [limited.slo]
    many = table(DISAGGREGATED, rate=[9.0, 8.9, 8.8, 8.7, 5.0], prefill_layout=[0, 0, 1, 1, 2], layout=[0, 1, 0, 1, 2])
    assert [one.prefill_layout for one in list_finalists(limited, [many], levels)][-1] == SIZES[2]


def test_other_readers_divide_about_as_many_chips():
    """Two prefill replicas of one chip: one replica of two chips with stages, ranks or parts, or of three, not of four."""
    found = list(other_readers(case(8), APART))
    assert {one.prefill_layout.chips * one.prefill_layout.replicas for one in found} == {2, 3}
    pools = [(one.prefill_layout, one.layout) for one in found]
    assert all(reader.chips * reader.replicas + decoder.chips * decoder.replicas <= 8 for reader, decoder in pools)
    assert {(one.batch, one.prompts) for one in found} == {(APART.batch, APART.prompts)}
    assert Layout(pp=2, microbatches=2) in {one.prefill_layout for one in found}
    assert APART.prefill_layout not in {one.prefill_layout for one in found}
    # Five chips, which no size but one divides: two replicas of two or three chips.
    five = replace(APART, prefill_layout=Layout(replicas=5), layout=Layout(replicas=1))
    sizes = {(one.prefill_layout.chips, one.prefill_layout.replicas) for one in other_readers(case(8), five)}
    assert {(2, 2), (3, 2)} <= sizes


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


def test_large_prefill_pools_are_also_changed_by_an_eighth():
    large = replace(APART, prefill_layout=Layout(replicas=40), layout=Layout(replicas=88))
    found = [(one.prefill_layout.replicas, one.layout.replicas) for one in neighbours(case(128), large) if one.prompts == 2]
    assert found == [(39, 89), (41, 87), (35, 93), (46, 82)]


@each("readers, binding, has_fewer", [(8, "speed", True), (7, "speed", False), (8, "first token", False)])
def test_large_pools_whose_steps_are_too_slow_are_tried_with_fewer_slots(readers, binding, has_fewer):
    apart = replace(APART, prefill_layout=Layout(replicas=readers), layout=Layout(replicas=8), batch=64)
    run = replace(simulated_rate._missed_run(1.0, 0.01), binding=binding)
    similar = finalists._similar(case(16), Finalist(candidate=apart, pools=(), run=run), [])
    assert (replace(apart, batch=64 / math.sqrt(2)) in similar) == has_fewer


@each("slots, batch, binding, has_more", [
    (64, 64.0, "saturation", True), (64, 60.0, "saturation", False), (64, 64.0, "speed", False),
    (10**6, 1e6, "saturation", False),
])  # fmt: skip
def test_a_full_decode_pool_whose_steps_are_fast_enough_is_tried_with_more_slots(slots, batch, binding, has_more):
    """Not if the slots that it has are not full, or if no more sequences fit in its memory."""
    pool = SimulatedPool(role="decode", layout=APART.layout, batch=batch, max_num_seqs=slots)
    run = replace(simulated_rate._missed_run(1.0, 0.01), binding=binding, batch=batch)
    apart = replace(APART, batch=batch)
    similar = finalists._similar(case(16), Finalist(candidate=apart, pools=(pool,), run=run), [])
    assert (replace(apart, batch=batch * math.sqrt(2)) in similar) == has_more


# Varied requests with a limit on the first token of 99 %.
LATE = {"workload": st.Workload(input_tokens=4000, output_tokens=500, input_spread=1.0, output_spread=1.0)}
LATE |= {"slo": st.Slo(tpot=1 / 50, ttft=0.5), "percentile": "p99", **CHOICE_ALONE}


@pytest.mark.thorough
def test_any_mode_serves_as_much_as_one_pool():
    """Two pools of 32 chips lose to other draws what one pool gains: the best of each mode is confirmed."""
    rates = {
        modes: st.plan("mistralai/Mistral-7B-v0.1", "tpu-8t", chips=32, modes=modes, **LATE).requests_per_second
        for modes in (("aggregated", "disaggregated"), ("aggregated",))
    }
    both, one_pool = rates.values()
    assert both > 0.98 * one_pool


@pytest.mark.thorough
def test_pools_of_many_chips_have_prefill_replicas_for_their_prompts():
    """Without larger steps of prefill pools 64 chips serve less than in one pool."""
    rates = [
        st.plan("mistralai/Mistral-7B-v0.1", "tpu-8t", chips=64, modes=modes, **LATE).requests_per_second
        for modes in (("aggregated", "disaggregated"), ("aggregated",))
    ]
    assert rates[0] > 1.01 * rates[1]


def test_leaders_are_the_best_of_each_mode_with_four_fifths_of_the_best_rate():
    first, second, near, far = (
        Finalist(candidate=candidate, pools=(), run=replace(NO_WAITS, rate=rate))
        for candidate, rate in ((SHARED, 10.0), (replace(SHARED, chunk=256), 9.9), (APART, 8.0), (APART, 7.9))
    )
    assert _leaders([first, second, near]) == [first, near]
    assert _leaders([first, second, far]) == [first]


# --- the best of them ------------------------------------------------------------------------------------------------------


@pytest.fixture
def rates(monkeypatch):
    """Simulated and confirmed rates by chunk instead of simulations; and what was simulated, with the rate to exceed."""
    simulated, confirmed, asked = {}, {}, []

    def made(candidate: Candidate, rate: float) -> Finalist:
        run = Run(rate=rate, ttft=0, tpot=0, mean_ttft=0, mean_tpot=0, batch=0, busy=(0,), worst=1.0)
        return Finalist(candidate=candidate, pools=(), run=run)

    def simulate(_case, candidate, least):
        # Twice the slots serve no more.
        if candidate.batch != SHARED.batch:
            return None
        asked.append((candidate.chunk, round(least, 3)))
        rate = simulated.get((candidate.layout.tp, candidate.chunk), simulated.get(candidate.chunk, 0.0))
        return made(candidate, rate) if rate > least else None

    def confirm(_case, finalist, least):
        rate = confirmed.get(finalist.candidate.chunk, finalist.run.rate)
        return made(finalist.candidate, rate) if rate > least else None

    monkeypatch.setattr(finalists, "highest_met", lambda _case, candidates: 1.0 if candidates and simulated else 0.0)
    monkeypatch.setattr(finalists, "simulate_candidate", simulate)
    monkeypatch.setattr(finalists, "_confirmed", confirm)
    return simulated, confirmed, asked


def of_chunks(*chunks: int) -> list[Candidate]:
    return [replace(SHARED, chunk=chunk) for chunk in chunks]


def test_neighbours_of_the_best_are_tried_twice(rates):
    simulated, _, asked = rates
    simulated.update({512: 5.0, 1000: 6.0, 1024: 7.0, 2048: 8.0, 4096: 9.0})
    found = simulate_finalists(case(), of_chunks(512))
    tried = [(256, 5.0), (1000, 5.0), (128, 6.0), (1024, 6.0), (2048, 7.0), (4096, 8.0), (8192, 9.0), (16384, 9.0)]
    # Others may be one step of the grid of rates below the best.
    assert asked == [(512, 1.0), *((chunk, round(best / GRID, 3)) for chunk, best in tried)]
    assert [(one.candidate.chunk, one.run.rate) for one in found][:2] == [(4096, 9.0), (2048, 8.0)]


def test_neighbours_of_the_best_of_a_mode_must_exceed_that_one(rates):
    simulated, _, asked = rates
    simulated.update({512: 5.0, 0: 4.5})
    simulate_finalists(case(), [APART, SHARED])
    floors = {chunk > 0: {least for tried, least in asked[2:] if (tried > 0) == (chunk > 0)} for chunk, _ in asked}
    assert floors == {True: {round(5.0 / GRID, 3)}, False: {round(4.5 / GRID, 3)}}


def test_candidates_must_exceed_the_best_so_far(rates):
    simulated, _, asked = rates
    simulated.update({512: 5.0, 4096: 4.0, 8192: 6.0})
    found = simulate_finalists(case(), of_chunks(512, 4096, 8192))
    assert asked[:3] == [(512, 1.0), (4096, round(5.0 / GRID, 3)), (8192, round(5.0 / GRID, 3))]
    assert [one.candidate.chunk for one in found] == [8192, 512]
    assert [chunk for chunk, _ in asked[3:]] == [16384, 2048, 1024, 1000, 256, 128]


def test_the_best_is_the_first_that_is_confirmed_above_the_next(rates):
    simulated, confirmed, _ = rates
    simulated.update({128: 5.0, 1000: 6.0, 8192: 7.0})
    confirmed.update({8192: 5.5, 1000: 5.9, 128: 1.0})
    found = simulate_finalists(case(), of_chunks(128, 1000, 8192))
    # The third, with 5 in its run, cannot reach the 5.9 of the second.
    assert [(one.candidate.chunk, one.run.rate) for one in found] == [(1000, 5.9), (8192, 5.5), (128, 5.0)]
    # A rate that was not confirmed is no runner-up where it exceeds the best one.
    simulated.update({128: 6.0, 1000: 6.1})
    found = simulate_finalists(case(), of_chunks(128, 1000, 8192))
    assert [(one.candidate.chunk, one.run.rate) for one in found] == [(1000, 5.9), (8192, 5.5)]


def test_what_was_worse_than_a_lucky_one_is_tried_again(rates):
    """The rate of 7 falls to 5, and the layout with 6 was not kept; others of the lucky layout would lose as much."""
    simulated, confirmed, asked = rates
    simulated.update({8192: 7.0, 4096: 6.0, 16384: 6.5, (4, 8192): 0.0, (4, 16384): 0.0})
    confirmed[8192] = 5.0
    others = [replace(SHARED, chunk=8192), replace(SHARED, chunk=4096, layout=Layout(tp=4))]
    found = simulate_finalists(case(), others)
    assert (4096, round(7.0 / GRID, 3)) in asked
    assert (4096, 5.0) in asked
    best = [(one.candidate.layout.tp, one.candidate.chunk, one.run.rate) for one in found]
    assert best[:2] == [(4, 4096, 6.0), (2, 8192, 5.0)]


def test_chunks_that_no_step_fills_are_not_tried(rates):
    """Prompts have 1,000 tokens: chunks of 1,000 and 1,024 serve the same, so that larger ones would."""
    simulated, _, asked = rates
    simulated.update({256: 6.5, 512: 6.5, 1000: 7.0, 1024: 7.01, 2048: 9.0})
    found = simulate_finalists(case(), of_chunks(512))
    assert {chunk for chunk, _ in asked} == {128, 256, 512, 1000, 1024}
    assert found[0].run.rate == 7.01
    simulated.update({1024: 7.02})
    assert simulate_finalists(case(), of_chunks(512))[0].run.rate == 9.0


def test_other_divisions_are_half_and_twice_the_ranks_with_any_copies(monkeypatch):
    """Sixteen chips: one replica of eight ranks, or two of four; more ranks, other TP and pools are no such divisions."""
    sizes = ((8, 8, 0), (8, 8, 8), (4, 4, 0), (4, 4, 4), (2, 2, 0), (8, 4, 0))
    layouts = [Layout(tp=2, dp=dp, ep=2 * ep, redundant_experts=copies) for dp, ep, copies in sizes]
    monkeypatch.setattr(finalists, "fitting", lambda _case: [*layouts, Layout(tp=1, dp=4, ep=8)])
    large = replace(SHARED, layout=layouts[0], batch=10, chunk=512)
    found = list(other_divisions(case(16), large))
    assert found == [replace(large, layout=replace(one, replicas=2), batch=5.0) for one in layouts[2:4]]
    small = replace(large, layout=replace(layouts[2], replicas=2))
    found = [(one.layout, one.batch) for one in other_divisions(case(16), small)]
    assert found == [(layouts[0], 20), (layouts[1], 20), (replace(layouts[4], replicas=4), 5.0)]
    assert list(other_divisions(case(16), replace(APART, layout=layouts[0]))) == []
    assert list(other_divisions(case(16), replace(large, layout=Layout(dp=8)))) == []


def test_sooner_readers_read_a_lone_prompt_on_more_chips(monkeypatch):
    """Readers of one chip are too late: four chips and two read a prompt sooner, with room for decode replicas of one chip."""
    monkeypatch.setattr(finalists, "fitting", lambda _case: SIZES)
    limited = case(8, st.Slo(ttft=0.5))
    found = sooner_readers(limited, [SHARED, APART])
    assert [one.prefill_layout.tp for one in found] == [4, 2]
    assert (found[0].layout.tp, found[0].layout.replicas, found[0].prompts) == (1, 4, 1)
    assert sooner_readers(limited, [replace(APART, prefill_layout=SIZES[2])]) == []
    assert sooner_readers(case(8), [APART]) == []
    assert sooner_readers(limited, [SHARED]) == []


def test_other_copies_divide_experts_in_another_way_without_copies_first(monkeypatch):
    """Experts in slices become whole experts without copies; whole ones get other numbers of copies, or become slices."""
    slices, *whole = [Layout(tp=4, ep=ep, redundant_experts=copies) for ep, copies in ((1, 0), (4, 0), (4, 4))]
    monkeypatch.setattr(finalists, "fitting", lambda _case: [slices, *whole, Layout(tp=2, ep=2), Layout(tp=4, pp=2)])
    from_slices, from_whole = (replace(SHARED, layout=replace(one, replicas=2)) for one in (slices, whole[0]))
    assert list(other_copies(case(8), from_slices)) == [from_whole]
    assert [one.layout for one in other_copies(case(8), from_whole)] == [replace(one, replicas=2) for one in (slices, whole[1])]
    # A model without experts has one division.
    monkeypatch.setattr(finalists, "fitting", lambda _case: [slices])
    assert list(other_copies(case(8), from_slices)) == []


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


def test_a_fourth_finalist_is_confirmed_only_if_the_largest_gain_makes_it_the_best(rates):
    """The first loses a tenth with other draws, and two are behind it: they gain at most 6.3 / 6.8, of which 6.7 has 6.2."""
    simulated, confirmed, _ = rates
    simulated.update({128: 7.0, 1000: 6.9, 8192: 6.8, 4096: 6.7})
    confirmed.update({128: 6.3, 1000: 6.2, 8192: 6.1, 4096: 6.7})
    found = simulate_finalists(case(), of_chunks(128, 1000, 8192, 4096))
    assert [(one.candidate.chunk, one.run.rate) for one in found] == [(128, 6.3)]
    # A third is confirmed whatever two others lost.
    confirmed.update({8192: 6.75})
    found = simulate_finalists(case(), of_chunks(128, 1000, 8192))
    assert (found[0].candidate.chunk, found[0].run.rate) == (8192, 6.75)


def test_what_others_gain_says_little_of_a_fourth_design_unless_three_designs_are_known(monkeypatch, rates):
    """Three chunks of one layout lose a tenth: another layout is confirmed all the same, unless three layouts lost as much."""
    simulated, confirmed, _ = rates
    monkeypatch.setattr(finalists, "expected_figures", lambda *_: [])
    confirmed.update({128: 6.3, 1000: 6.2, 8192: 6.1, 4096: 6.5})
    for degrees, best in (((2, 2, 2, 4), (4, 6.5)), ((2, 4, 1, 8), (2, 6.3))):
        simulated.clear()
        simulated.update(dict(zip(zip(degrees, (128, 1000, 8192, 4096), strict=True), (7.0, 6.9, 6.8, 6.7), strict=True)))
        found = simulate_finalists(case(), [replace(SHARED, layout=Layout(tp=tp), chunk=chunk) for tp, chunk in simulated])
        assert (found[0].candidate.layout.tp, found[0].run.rate) == best


def test_a_second_search_starts_at_the_best_rate_that_is_confirmed(rates):
    """After 5 and 5.5, another layout that would have 5.34 at most is not confirmed, although it beats the first one."""
    simulated, confirmed, _ = rates
    simulated.update({128: 7.0, 1000: 6.95, 8192: 6.9, (4, 4096): 6.7, (4, 128): 0.0, (4, 1000): 0.0, (4, 8192): 0.0})
    confirmed.update({128: 5.0, 1000: 5.5, 8192: 5.2, 4096: 5.3})
    found = simulate_finalists(case(), [*of_chunks(128, 1000, 8192), replace(SHARED, layout=Layout(tp=4), chunk=4096)])
    assert [(one.candidate.chunk, one.run.rate) for one in found] == [(1000, 5.5), (128, 5.0)]


def test_the_best_of_each_family_joins_the_best_four():
    """Ranks and stages serve half of what others do: four better rows hide them. They may take three times the TPOT."""
    layouts = stacked([*(Layout(tp=tp) for tp in range(1, 6)), Layout(dp=2, ep=2), Layout(pp=2, microbatches=2)])
    rows = table(
        AGGREGATED,
        rate=[10.0, 9.9, 9.8, 9.7, 9.6, 4.9, 5.0, 5.1],
        layout=[0, 1, 2, 3, 4, 5, 6, 6],
        batch=[80, 70, 60, 50, 40, 30, 20, 10],
        tpot=[0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.055, 0.065],
    )
    rows = replace(rows, layouts=layouts)
    levels = [st.Slo(tpot=0.02)]
    assert [one.batch for one in list_finalists(case(slo=levels[0]), [rows], levels)] == [80, 70, 60, 50, 30, 20]
    # A rough search has the best one alone.
    assert [one.batch for one in list_finalists(replace(case(slo=levels[0]), rough=True), [rows], levels)] == [80]


def test_limits_of_a_candidate_for_a_probability_are_those_of_its_regime():
    """Chunks of 512 tokens take 61 % of the time of 200 sequences, and chunks of one token hardly any."""
    tables = {"tpot": {"decode": [0.8, 1.25], "mixed": [0.7, 1.5]}, "ttft": {"prompt": [0.6, 1.6], "queue": [0.5, 3.0]}}
    on = engine(fit={"names": [], "interval": tables, "systems": {"toy": 100}})
    given = replace(case(slo=st.Slo(tpot=0.02, ttft=2.0)), engine=on, sure=0.95)
    mixed, decode = (_limits(given, replace(SHARED, batch=200, chunk=chunk)) for chunk in (512, 1))
    assert (mixed.tpot, mixed.ttft) == (pytest.approx(0.02 / 1.5), pytest.approx(2 / 1.6))
    assert (decode.tpot, decode.ttft) == (pytest.approx(0.02 / 1.25), pytest.approx(2 / 1.6))
    assert _limits(replace(given, sure=None), SHARED) == given.limits


def course_of(run, *, bound=math.inf, loop=True, ttft=math.inf, rate=2.0) -> Course:
    """A course whose runs are those of a function, with requests that are alone waiting for 0.5 s."""
    course = Course.__new__(Course)
    course.case, course.limits, course.rate = SimpleNamespace(percentile="p90"), st.Slo(tpot=0.02, ttft=ttft), rate
    course.missed, course.hoped, course.bound, course.curve = math.inf, math.inf, bound, Curve(run)
    course.__dict__ |= {"run": run, "loop": SimpleNamespace(quiet_ttft=lambda percentile: 0.5) if loop else None}
    return course


def test_a_run_beyond_its_limits_bounds_the_rates_that_may_meet_them():
    """A TPOT of four times the limit needs a rate that is lower by the sixth root of four, at least."""
    asked = []

    def run(place, **_):
        asked.append(place)
        return replace(NO_WAITS, rate=GRID**place, tpot=0.02 if place <= 0 else 0.08)

    course = course_of(run)
    assert not course.meets(14)
    assert course.hoped == pytest.approx(2 / 4 ** (1 / 6))
    assert not course.meets(20)
    assert course.hoped == pytest.approx(2 / 4 ** (1 / 6))
    assert not course.meets(7)
    assert course.hoped == pytest.approx(math.sqrt(2) / 4 ** (1 / 6))
    assert course.meets(0)
    assert course.meets(0)
    assert asked == [14, 20, 7, 0]
    assert not course_of(run, bound=1.9).meets(14)
    assert len(asked) == 4


def test_a_run_that_was_stopped_rules_out_all_higher_rates():
    asked = []

    def run(place, **settings):
        asked.append((place, settings))
        return replace(NO_WAITS, mean_ttft=math.inf if place >= 5 else 0.0, ttft=math.inf if place >= 5 else 0.0)

    course = course_of(run)
    assert [course.meets(place) for place in (7, 8, 7, 5, 6, 4)] == [False] * 5 + [True]
    assert asked == [(place, {"is_check": True}) for place in (7, 5, 4)]
    assert list(course.curve.points) == [4]


@each(
    "more, serves",
    [({}, True), ({"ttft": 0.5}, True), ({"ttft": 0.49}, False), ({"rate": 0.0}, False)],
)
def test_a_candidate_may_serve_if_requests_that_are_alone_meet_the_limit(more, serves):
    assert course_of(lambda place: NO_WAITS, **more).may_serve() == serves


def test_the_rate_of_a_course_is_that_of_its_slower_pool():
    """90 % of 200 requests/s of each prefill replica of 10 ms; and 8 sequences of each of two that decode for 2.5 ms."""
    slow = Course(case(8), replace(APART, prefill_layout=Layout(), prompts=1, layout=Layout(replicas=2), batch=400))
    assert slow.rate == pytest.approx(0.9 * 100, rel=0.01)
    assert slow.bound == pytest.approx(1.1 * 100, rel=0.01)
    fast = Course(case(8), APART)
    (expected,) = expected_figures(case(8), [APART])
    assert (fast.rate, fast.tpot, fast.ttft) == (expected.rate, expected.tpot, expected.ttft)
    # All slots may be in use, for more than 8 sequences.
    slots = fast.pools[-1].max_num_seqs
    assert slots > 8
    assert fast.bound == pytest.approx(1.1 * expected.rate * slots / 8)


@each("candidate", [SHARED, APART])
def test_a_run_starts_with_the_sequences_that_decode_in_it(candidate):
    """A window of 4,096 tokens: closed forms with a mean context of 4,500 have up to twice the time per token of the run."""
    model, system = st.load_model("mistralai/Mistral-7B-v0.1"), st.load_system("tpu-8t")
    given = replace(case(8), model=model, system=system, engine=st.load_engine("typical"), workload=LATE["workload"])
    course = Course(given, replace(candidate, layout=Layout(replicas=5), batch=96, chunk=4096 * (candidate is SHARED)))
    run = course.run(math.log(course.rate) / math.log(GRID))
    assert course.loop.expected_tpot(course.rate, course.prefill_share) == pytest.approx(run.mean_tpot, rel=0.15)


@each("place", [-40, 40, 120])
def test_a_run_below_the_rate_of_closed_forms_starts_with_a_share_of_their_waits(place):
    """Of prefill and of the first token; above that rate, prompts wait no longer."""
    course, rate = Course(replace(case(8), percentile="mean"), SHARED), GRID**place
    vars(course)["loop"] = SimpleNamespace(
        expected_tpot=lambda *given: ("tpot", *given), run=lambda *given, **settings: (given, settings)
    )
    share = course.prefill_share * rate / course.rate
    given = rate, course.limits, "mean", ("tpot", rate, share), min(1.0, rate / course.rate) * course.ttft
    assert course.run(place, is_check=True) == (given, {"is_check": True})


def test_a_run_starts_with_a_first_token_of_at_most_twice_the_decode(monkeypatch):
    """Of 10 ms per token, with as many steps as an output has tokens; a prefill pool keeps its own."""
    figures = expected_figures(case(8), [SHARED])[0]._replace(ttft=1e6, tpot=0.01)
    monkeypatch.setattr(finalists, "expected_figures", lambda *given: [figures])
    assert Course(case(8), SHARED).ttft == pytest.approx(2 * 0.01 * float(case(8).workload.output_tokens))
    assert Course(case(8), APART).ttft == 1e6


def courses(monkeypatch, *made):
    """Courses with a rate of closed forms and one that they meet, and what was asked of each."""
    listed = [SimpleNamespace(rate=rate, hoped=math.inf, asked=[], served=served, quiet=quiet) for rate, served, quiet in made]

    def meets(course):
        return lambda place: course.asked.append(place) or GRID**place <= course.served

    for course in listed:
        course.meets, course.may_meet, course.loop = meets(course), lambda place: True, object()
        course.may_serve = lambda course=course: course.quiet
    monkeypatch.setattr(finalists, "expected_figures", lambda *_: None)
    monkeypatch.setattr(finalists, "_course", lambda _case, number: listed[number])
    return highest_met(case(), range(len(listed))), [course.asked for course in listed]


def test_a_rate_that_some_candidate_serves_is_sought_in_longer_steps(monkeypatch):
    """From 2 down, place 14 of the grid: a step, two, three, up to eight."""
    found, asked = courses(monkeypatch, (2.0, 1.0, True))
    assert asked == [[14, 13, 11, 8, 4, -1]]
    assert found == pytest.approx(GRID**-1)
    # None that is slower than 1 / 1.3 of the rate is asked for it.
    found, asked = courses(monkeypatch, (2.0, 0.1, True), (1.5, 1.92, True))
    assert asked == [[14, 13], [13]]
    assert found == pytest.approx(GRID**13)


def test_candidates_that_serve_no_rate_end_the_search(monkeypatch):
    """Those that are too late when alone are not asked after three rates; one that never meets them is asked 24 times."""
    assert courses(monkeypatch, (0.0, 9.0, True)) == (0.0, [[]])
    assert courses(monkeypatch) == (0.0, [])
    assert courses(monkeypatch, (2.0, 0.0, False)) == (0.0, [[14, 13, 11]])
    found, (asked,) = courses(monkeypatch, (2.0, 0.0, True))
    assert (found, len(asked)) == (0.0, 24)
    assert set(np.diff(asked[8:])) == {-8}
    # A slow one is the only one.
    assert courses(monkeypatch, (0.5, 9.0, True)) == (pytest.approx(0.5), [[-14]])


def test_pools_of_a_run_have_slots_for_two_fifths_more_sequences():
    (pool,) = simulated_pools(case(), replace(SHARED, layout=Layout(tp=4), batch=40))
    assert (pool.role, pool.batch, pool.chunk, pool.queued) == ("serve", 40, 512, False)
    assert pool.max_num_seqs >= 56 + 3 * 56**0.5
    pinned = replace(case(), pinned=Pinned(max_num_seqs=45))
    assert simulated_pools(pinned, replace(SHARED, batch=40))[0].max_num_seqs == 45
    reader, server = simulated_pools(case(), replace(APART, prefill_layout=Layout(dp=2, ep=2), prompts=3))
    assert (reader.role, reader.batch, reader.max_num_seqs, server.role) == ("prefill", 6, 6, "decode")


@pytest.mark.parametrize("prompts", [1, 2])
def test_the_first_token_of_a_pass_is_that_of_both_stages(prompts):
    """Two micro-batches of a prompt, with 10 ms of arithmetic, need three of four parts of it; a pass begins every 5 ms."""
    pipeline = replace(APART, prefill_layout=Layout(pp=2, microbatches=2, replicas=3), prompts=prompts)
    (found,) = expected_figures(case(8), [pipeline])
    assert found.ttft == pytest.approx(0.0075 * prompts, rel=0.01)
    assert found.prefill_rate == pytest.approx(3 * 200, rel=0.01)
    assert (found.slots, found.capped) == (17, False)


def test_a_prefill_pool_whose_prompts_do_not_fit_serves_nothing():
    """Next to weights of 10 of 11 GB, a pass and the one before it of 32 prompts of 10 MB fit; those of 64 do not."""
    fits, large = (replace(APART, prompts=prompts) for prompts in (32, 64))
    assert [found.prefill_rate > 0 for found in expected_figures(case(), [fits, large])] == [True, False]
    assert simulate_candidate(case(), large, 0.0) is None


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


# --- confirmation ----------------------------------------------------------------------------------------------------------


@each(
    "layout, batch, tokens, is_slow",
    [
        # 500 requests of 2,001 tokens are more than half of two million.
        (Layout(pp=2, microbatches=2), 8, 2001, True),
        (Layout(pp=2, microbatches=2), 8, 2000, False),
        (Layout(pp=2, microbatches=2), 5001, 100, True),
        (Layout(pp=2, microbatches=2), 5000, 100, False),
        (Layout(tp=2), 5001, 2001, False),
    ],
)
def test_pipelines_of_many_tokens_or_sequences_are_slow(layout, batch, tokens, is_slow):
    given = replace(case(), workload=replace(case().workload, output_tokens=tokens))
    assert _is_slow(given, replace(SHARED, layout=layout, batch=batch)) == is_slow


@pytest.fixture
def confirmation(monkeypatch):
    """Lengths and draws of the runs that confirm a finalist, whose figures are those of its course: 0.5 s and 10 ms."""
    loops, curves = [], []
    run = Run(rate=10.0, ttft=0, tpot=0, mean_ttft=0.4, mean_tpot=0.02, batch=0, busy=(0,), worst=1.0)
    course = SimpleNamespace(rate=40.0, ttft=0.5, tpot=0.01, limits=st.Slo(ttft=2.0), curve="start", deployment=None)

    def made(_deployment, rate, lifetime, *turns, memo, **settings):
        loops.append(((rate, lifetime), settings | ({"count": turns[1]} if turns else {})))
        return len(loops)

    def confirmed_by(numbers, limits, _percentile, start, *far):
        curves.append((len(numbers), limits.ttft, start, *far))
        return SimpleNamespace(highest=lambda _limits, first, least: replace(run, rate=first) if first > least else None)

    monkeypatch.setattr(finalists, "_course", lambda *_: course)
    monkeypatch.setattr(finalists, "Loop", made)
    monkeypatch.setattr(finalists, "SessionLoop", made)
    monkeypatch.setattr(finalists, "confirmed_by", confirmed_by)

    def confirm(given, candidate, least=0.0):
        loops.clear()
        curves.clear()
        return finalists._confirmed(given, Finalist(candidate=candidate, pools=(), run=run), least)

    return confirm, loops, curves


def factors(loops) -> list[float]:
    return [settings["factor"] for _, settings in loops]


def outputs(tokens: int, **more):
    return replace(case(), workload=replace(case().workload, output_tokens=tokens, input_tokens=1280), **more)


def test_runs_that_confirm_are_as_long_as_their_tokens_allow(confirmation):
    """By Little's law 40 x (0.5 + 1000 x 0.01) = 420 in flight, four lifetimes of which are 1,680 requests.

    They have 1,000 output tokens each. The prefill of 1,280 tokens of 2,000 requests takes as long as 10 tokens of each. In all
    1.7 million, so that three million tokens are less than the least factor of 3. Outputs of 500 tokens have 220 in flight.
    """
    confirm, loops, curves = confirmation
    assert confirm(outputs(1000), SHARED).run.rate == 10.0
    assert [given for given, _ in loops] == [(40.0, pytest.approx(0.5 + 999 * 0.01))] * 2
    assert [settings["seed"] for _, settings in loops] == [1000, 2000]
    assert factors(loops) == [3.0, 3.0]
    assert curves == [(2, 2.0, "start", 1.5)]
    confirm(outputs(500), SHARED)
    assert factors(loops) == pytest.approx([3e6 / (880 * 500 + 2000 * 10)] * 2)
    # At most 20 times; twenty million tokens where pools are on two systems.
    confirm(outputs(250), SHARED)
    assert factors(loops) == [20.0, 20.0]
    confirm(outputs(1000, prefill_system=case().system), SHARED)
    assert factors(loops) == pytest.approx([2e7 / (1680 * 1000 + 2000 * 10)] * 2)


def test_runs_of_pipelines_of_many_sequences_and_of_rough_searches_are_shorter(confirmation):
    """With 420 in flight: a pipeline has a factor of 3 / 1.7 at least 1; 2,049 in a replica have 2 at least."""
    confirm, loops, curves = confirmation
    pipeline = replace(SHARED, layout=Layout(pp=2, microbatches=2))
    confirm(outputs(1000), pipeline)
    assert factors(loops) == pytest.approx([3e6 / (1680 * 1000 + 2000 * 10)] * 2)
    # 40 x (0.5 + 0.01 x 5120) is 2,068 in flight: more than 2,048 of one replica, and not of two.
    for layout, least in ((Layout(), 2.0), (Layout(replicas=2), 3.0)):
        confirm(outputs(5120), replace(SHARED, layout=layout))
        assert factors(loops) == [least, least]
    # A rough search draws once, for a factor of 1.5 to 4, and goes on beyond the limits only next to another plan.
    for least, far in ((0.0, 1.0), (0.1, 1.5)):
        confirm(outputs(250, rough=True, at_least=least), SHARED)
        assert (factors(loops), curves) == ([4.0], [(1, 2.0, "start", far)])
    confirm(outputs(5120, rough=True), SHARED)
    assert factors(loops) == [1.5]
    # Of a pipeline it is half as long as a usual run.
    for tokens in (250, 5120):
        confirm(outputs(tokens, rough=True), pipeline)
        assert factors(loops) == [0.5]


def test_a_rough_search_asks_a_pipeline_for_the_least_rate_first(confirmation):
    confirm, _, _ = confirmation
    pipeline = replace(SHARED, layout=Layout(pp=2, microbatches=2))
    assert confirm(outputs(1000), pipeline, least=9.0).run.rate == 10.0
    assert confirm(outputs(1000, rough=True), SHARED, least=9.0).run.rate == 10.0
    # The least rate itself is not above it.
    assert confirm(outputs(1000, rough=True), pipeline, least=9.0) is None
    assert confirm(outputs(1000), SHARED, least=10.0) is None


def test_turns_of_sessions_confirm_with_a_short_run_and_two_long_ones(confirmation):
    """Runs with sessions contain loads, for which the search left half a second of the limit."""
    confirm, loops, curves = confirmation
    given = replace(case(), turns=SessionCase(PRESETS["chat"], None, 0.5))
    assert confirm(given, SHARED).run.rate == 10.0
    assert [settings for _, settings in loops] == [
        {"seed": 1000, "count": FIRST_TURNS}, {"seed": 1000, "count": TURNS}, {"seed": 2000, "count": TURNS}
    ]  # fmt: skip
    lifetime = 0.4 + (given.workload.output_tokens - 1) * 0.02
    assert [given for given, _ in loops] == [(10.0, pytest.approx(lifetime))] * 3
    assert [(count, ttft) for count, ttft, _ in curves] == [(1, 2.5), (2, 2.5)]
    assert curves[0][2] == "start"
    assert confirm(given, SHARED, least=10.0) is None
    assert len(loops) == 1


# --- what is easier costs no more --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_fewer_output_tokens_cost_no_more_where_few_prefill_layouts_keep_long_waits_short():
    """At p99 of long prompts a few deep pipelines read soon enough, on chips that replicas of two stages do not fill."""
    rates = []
    for tokens in (335, 251):
        load = st.Workload(input_tokens=8161, output_tokens=tokens, cached_share=0.5444, input_spread=1.0, output_spread=0.0)
        plan = st.plan(
            "Qwen/Qwen3-Next-80B-A3B-Instruct", "strix-halo", load, st.Slo(tpot=0.79925, ttft=9.6811), chips=16,
            percentile="p99", evidence="any", alternatives=False, elasticities=False, diagnostics=False, front=False,
        )  # fmt: skip
        rates.append(plan.requests_per_second)
        assert plan.pools[0].layout.pp >= 3
    assert rates[1] >= 0.99 * rates[0]


@pytest.mark.thorough
def test_all_modes_serve_as_much_as_one_of_them():
    """Separate pools lead at first; layouts like the best shared one have other batches, and serve a fifth more."""
    load = st.Workload(input_tokens=4000, output_tokens=4000, cached_share=0.9, input_spread=0.5, output_spread=0.5)
    shared, all_modes = (
        st.plan(
            "granite-3.1-8b-instruct", "cs-3", load, st.Slo(speed=20, ttft=0.5), modes=modes, alternatives=False,
            elasticities=False, diagnostics=False, front=False,
        ).requests_per_second
        for modes in ((AGGREGATED,), (AGGREGATED, DISAGGREGATED))
    )  # fmt: skip
    assert all_modes >= 0.99 * shared


def test_a_decode_pool_has_no_more_slots_than_contexts_that_fit_in_its_memory():
    """A deviation of all contexts is left free: slots beyond would preempt sequences again and again."""
    for spread in (0.0, 1.0):
        asked = replace(case(), workload=replace(case().workload, output_spread=spread))
        mean, deviation = float(mean_context(asked.workload)), float(context_deviation(asked.workload))
        settings = {"context": mean, "drafts": 0, "layout": Layout(), "engine": asked.engine, "step_tokens": 2048}
        room = mean * float(drafted_sequences(MODEL, NODES, **settings))
        found = finalists._fitting_sequences(asked, Layout())
        assert found * mean + deviation * math.sqrt(found) <= room
        assert (found + 1) * mean + deviation * math.sqrt(found + 1) > room
