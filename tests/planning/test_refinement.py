"""Batches near a candidate, evaluated together, against each of them on its own."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.physics.layout import Layout
from steptime.planning import refinement
from steptime.planning.batch_grids import batches_around, closer_batches, nearby_batches, with_less
from steptime.planning.plan_problem import AGGREGATED, DISAGGREGATED, Candidate, evaluate_state
from steptime.planning.plan_search import chunk_sizes
from steptime.planning.refinement import (
    _load,
    _peaks,
    _prefill_rates,
    _promising,
    best,
    decode_rate,
    evaluate_occupancy,
    matched_rate,
    planned_prefill,
    prefill_rate,
    refined,
    served_by,
    within,
)
from steptime.planning.steady_state import load_shares
from tests.conftest import engine, every, machine
from tests.planning.cases import WORK, case

TABLES = {"tpot": {"decode": [0.9, 1.1], "mixed": [0.9, 1.2]}, "ttft": {"prompt": [0.9, 1.1], "queue": [0.9, 1.2]}}
FITTED = engine(fit={"names": [], "interval": TABLES})
TIGHT = machine(size=4, capacity=11e9, up=2e9)


def grid_by_hand(given, candidate: Candidate, row: np.ndarray, batches: np.ndarray, tpot: float | None = None):
    """Return TPOT and rate of all batches and chunks of a candidate; 0 where they are beyond a limit."""
    sizes = chunk_sizes(WORK) if candidate.mode == AGGREGATED else np.array([0])
    state = evaluate_state(given, candidate, batches[:, None], np.maximum(sizes, 1)[None, :])
    seats = evaluate_occupancy(given, state, candidate, batches[:, None])
    rates = decode_rate(given, state, candidate, batches[:, None], seats)
    prefill = planned_prefill(given, candidate, state.tpot if tpot is None else tpot)
    rates = rates if prefill is None else np.minimum(rates, prefill_rate(given, candidate, prefill))
    good = within(given, state, seats, candidate.layout, candidate.prefill_layout)
    found = np.zeros((len(batches), len(sizes)))
    for (i, batch), (j, chunk) in itertools.product(enumerate(batches), enumerate(sizes)):
        load = load_shares(state.tpot[: len(row), j], row)[i % len(row)]
        flying = 1 - 1 / (batch * candidate.layout.replicas)
        stable = load * flying <= 0.9 or bool(np.broadcast_to(seats.capped, state.tpot.shape)[i, j])
        several = candidate.layout.dp > 1 and chunk > WORK.input_tokens
        if good[i, j] and stable and not several:
            found[i, j] = rates[i, j]
    return np.broadcast_to(state.tpot, found.shape), found, sizes


def highest_by_hand(given, candidate: Candidate, *, closer: bool) -> tuple[float, float]:
    """Return the highest rate of the batches near a candidate, and its batch."""
    unit = candidate.layout.dp * candidate.layout.microbatches
    row = (closer_batches if closer else nearby_batches)(np.array([[float(candidate.batch)]]), np.array([[unit]]))
    batches = (with_less(row, unit) if closer else row)[0]
    # The TPOT is not known yet: assume the limit.
    _, rates, _ = grid_by_hand(given, candidate, row[0], batches, min(given.slo.tpot, 0.03))
    return float(rates.max()), float(batches[rates.max(axis=1).argmax()])


SHARED = [
    Candidate(mode=AGGREGATED, layout=Layout(replicas=4), batch=60, chunk=512),
    Candidate(mode=AGGREGATED, layout=Layout(tp=2, microbatches=2), batch=40, chunk=512),
    Candidate(mode=AGGREGATED, layout=Layout(replicas=2), batch=1, chunk=512),
]
APART = [
    Candidate(mode=DISAGGREGATED, layout=Layout(replicas=3), batch=60, prefill_layout=Layout(), prompts=1),
    Candidate(mode=DISAGGREGATED, layout=Layout(), batch=60, prefill_layout=Layout(replicas=3), prompts=2),
    Candidate(mode=DISAGGREGATED, layout=Layout(tp=2), batch=9, prefill_layout=Layout(tp=2), prompts=1),
]


@pytest.mark.parametrize(
    ("slo", "sure"), every(2, [(st.Slo(tpot=4e-3, ttft=0.1), 0.9), (st.Slo(tpot=4e-3), 0.7), (st.Slo(), None)])
)
@pytest.mark.parametrize(("candidates", "closer"), [(SHARED, True), (APART, False), (APART, True)])
def test_peaks_of_many_candidates_are_those_of_each_batch(slo, sure, candidates, closer):
    given = replace(case(slo=slo), system=TIGHT, engine=FITTED, sure=sure)
    mode = candidates[0].mode
    every = [*SHARED, *APART]
    found = _peaks(given, mode, every, _prefill_rates(given, every), closer=closer)
    assert [replace(c, batch=0) for _, c in found] == [replace(c, batch=0) for c in candidates]
    for (rate, candidate), one in zip(found, candidates, strict=True):
        expected, batch = highest_by_hand(given, one, closer=closer)
        assert rate == pytest.approx(expected, rel=1e-9)
        assert candidate.batch == batch or not expected
        assert expected > 0 or sure is not None
    assert _peaks(given, mode, [c for c in every if c.mode != mode], {}, closer=closer) == []


def test_the_promising_come_by_their_rate():
    given = replace(case(), system=TIGHT)
    every = [*SHARED, *APART]
    rates = [rate for rate, _ in _promising(given, every, _prefill_rates(given, every), closer=False)]
    assert rates == sorted(rates, reverse=True)
    assert len(rates) == 6


def test_batches_with_less_have_the_load_of_the_whole_ones():
    tpot, batch = np.array([[1.0, 1.5, 2.0, 0.9, 1.4, 1.9]]), np.array([[8.0, 16.0, 24.0]])
    load = load_shares(tpot[:, :3], batch)
    assert _load(tpot, batch).tolist() == np.tile(load, 2).tolist()
    assert _load(tpot[:, :3], batch).tolist() == load.tolist()


@pytest.mark.parametrize(("base", "closely"), [(0, 7), (1000, 16)])
def test_only_contenders_within_three_percent_are_evaluated_more_closely(monkeypatch, base, closely):
    """At most 64 layouts, of which at most 16 more closely, and as many refined as asked for."""
    made = [Candidate(mode=AGGREGATED, layout=Layout(replicas=n), batch=8, chunk=512) for n in range(200, 100, -1)]
    evaluated, tuned = [], []

    def promising(_given, candidates, _prefill_rates, *, closer):
        evaluated.append([c.layout.replicas for c in candidates])
        return sorted((((c.layout.replicas + base) / 200, c) for c in candidates), key=lambda one: -one[0])

    def refined(_given, candidate):
        tuned.append(candidate.layout.replicas)
        return refinement.Peak(candidate.layout.replicas / 200, 0.01, candidate)

    monkeypatch.setattr(refinement, "_promising", promising)
    monkeypatch.setattr(refinement, "refined", refined)
    again = [replace(made[0], batch=9), *made, replace(made[1], prompts=2)]
    peaks = best(case(), again)
    assert evaluated == [list(range(200, 136, -1)), list(range(200, 200 - closely, -1))]
    assert tuned == [200, 199, 198]
    assert [peak.candidate.layout.replicas for peak in peaks] == [200, 199, 198]
    tuned.clear()
    best(case(), [one for copies in itertools.repeat(made[:1], 3) for one in copies] + made[1:], finalists=2)
    assert tuned == [200, 199]


def test_of_layouts_within_a_quarter_of_a_percent_the_fastest_is_first(monkeypatch):
    """0.998 of the best rate counts as equal, 0.997 does not."""
    figures = {1: (1.0, 0.03), 2: (0.998, 0.02), 3: (0.997, 0.01), 4: (0.998, 0.03)}
    made = [Candidate(mode=AGGREGATED, layout=Layout(replicas=n), batch=8, chunk=512) for n in figures]
    monkeypatch.setattr(refinement, "_promising", lambda _case, some, _rates, closer: [(1.0, one) for one in some])
    monkeypatch.setattr(refinement, "refined", lambda _case, one: refinement.Peak(*figures[one.layout.replicas], one))
    assert [peak.candidate.layout.replicas for peak in best(case(), made, finalists=4)] == [2, 1, 4, 3]


@pytest.mark.parametrize("candidate", [SHARED[0], APART[0]])
def test_what_a_candidate_serves_is_the_rate_of_its_pools(candidate):
    given = replace(case(), system=TIGHT)
    state = evaluate_state(given, candidate, candidate.batch, max(candidate.chunk, 1))
    prefill = planned_prefill(given, candidate, state.tpot)
    assert served_by(given, candidate) == float(matched_rate(given, candidate, state, prefill)[0])


@pytest.mark.parametrize(
    ("candidate", "slo"),
    every(
        2,
        [
            (SHARED[0], st.Slo(tpot=3e-3)),
            (SHARED[0], st.Slo()),
            (SHARED[1], st.Slo(tpot=6e-3, ttft=0.1)),
            (replace(SHARED[1], batch=70), st.Slo()),
            (APART[0], st.Slo(tpot=2.65e-3)),
            (SHARED[2], st.Slo()),
            (APART[1], st.Slo(ttft=0.05)),
        ],
    ),
)
def test_a_refined_batch_is_the_fastest_of_those_that_serve_as_much(candidate, slo):
    """Within a quarter of a percent; whole sequences of each rank and micro-batch before half a sequence less."""
    given = replace(case(slo=slo), system=machine(size=4, capacity=11e9))
    unit = candidate.layout.dp * candidate.layout.microbatches
    row = batches_around(candidate.batch, unit)
    batches = row if unit == 1 else np.concatenate([row, row - 0.5])
    tpot, rates, sizes = grid_by_hand(given, candidate, row, batches)
    cheap = [(i, j) for i, j in np.ndindex(rates.shape) if rates[i, j] >= rates.max() * 0.9975 > 0]
    whole = [(i, j) for i, j in cheap if i < len(row)] or cheap
    i, j = min(whole, key=lambda place: tpot[place])
    found = refined(given, candidate)
    assert (found.candidate.batch, found.candidate.chunk) == (batches[i], sizes[j])
    assert (found.rate, found.tpot) == (pytest.approx(rates[i, j]), pytest.approx(tpot[i, j]))
    assert replace(found.candidate, batch=candidate.batch, chunk=candidate.chunk) == candidate
