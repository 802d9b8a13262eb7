"""Speculative tokens, searches and loads of several rows in a steady state."""

from __future__ import annotations

import numpy as np
import pytest

import steptime as st
from steptime.physics.layout import Layout
from steptime.planning import steady_state
from steptime.planning.steady_state import aggregated, answer_tokens, decode_pool, load_shares, longest_prefix
from steptime.workload.workload import Speculation
from tests.conftest import engine, machine, one_matrix, sparse_matrix
from tests.planning.cases import WORK, equal_requests

DRAFTS = Speculation(drafts=1, acceptance=1.6, source="given")


def test_steps_that_yield_more_than_a_token_make_tokens_faster():
    """1.6 tokens a step: 125 steps for 200 tokens."""
    model, system = st.load_model("deepseek-v3"), st.load_system("hgx-h200")
    given = {"layout": Layout(tp=8), "batch": 16, "engine": engine(), "speculation": DRAFTS}
    state = decode_pool(model, system, WORK, **given)
    assert float(state.tpot) == pytest.approx(float(state.decode.total) / 1.6)
    assert float(state.lower) == pytest.approx(float(state.decode.lower) / 1.6)
    assert float(state.upper) == pytest.approx(float(state.decode.upper) / 1.6)
    assert float(state.rate) == pytest.approx(16 / (125 * float(state.decode.total)))
    assert (float(state.decode_only_share), float(state.input_share), float(state.chunks_per_mixed_step)) == (1, 0, 0)


def test_tokens_before_the_answer_are_those_of_its_steps():
    on = engine(steps_before_answer=3, steps_to_balance=2)
    assert float(answer_tokens(WORK, Layout(), on, DRAFTS)) == pytest.approx(3 * 1.6)
    assert float(answer_tokens(WORK, Layout(dp=2, ep=2), on, DRAFTS)) == pytest.approx(5 * 1.6)
    short = equal_requests(input_tokens=10, output_tokens=4)
    assert float(answer_tokens(short, Layout(dp=2, ep=2), on)) == 3


def test_loads_of_several_rows_are_those_of_each():
    batch = np.array([[4.0, 4.0, 8.0, 16.0, 16.0], [1.0, 2.0, 2.0, 4.0, 8.0], [1.0, 2.0, 4.0, 8.0, 16.0]])
    tpot = np.array([[1.0, 1.0, 1.2, 1.8, 1.8], [1.0, 1.1, 1.1, 1.5, 2.5], [1.0, 1.3, 2.0, 3.8, 7.5]])
    together = load_shares(tpot, batch)
    for row in range(3):
        assert together[row].tolist() == load_shares(tpot[row], batch[row]).tolist()
    slopes = [np.log(1.2) / np.log(2), np.log(1.5) / np.log(2)]
    assert together[0] == pytest.approx([slopes[0], slopes[0], np.mean(slopes), slopes[1], slopes[1]])
    # From 4 to 16 the time doubles, and from 16 to 64 it is four times as long: equal batches are between both.
    assert load_shares(np.array([1.0, 2.0, 2.0, 8.0]), np.array([4, 16, 16, 64])) == pytest.approx([0.5, 0.75, 0.75, 1.0])


@pytest.mark.parametrize(
    ("quick", "layout", "chunk", "steps"),
    [
        (False, Layout(), 500, 2),  # one prompt at a time: a step without a chunk, one with
        (True, Layout(), 500, 2),
        (False, Layout(), 3000, 4),  # with one, with several, and with the number that follows
        (True, Layout(), 3000, 2),
        (False, Layout(dp=4, ep=4), 500, 4),
        (True, Layout(dp=4, ep=4), 500, 2),
    ],
)
def test_a_search_evaluates_one_step_with_chunks(monkeypatch, quick, layout, chunk, steps):
    evaluate, calls = steady_state.drafted_step, []

    def counted(*arguments, **keywords):
        calls.append((float(keywords.get("prompts", 0)), float(keywords.get("prefix", 0))))
        return evaluate(*arguments, **keywords)

    monkeypatch.setattr(steady_state, "drafted_step", counted)
    model = one_matrix() if layout.dp == 1 else sparse_matrix()
    state = aggregated(model, machine(), WORK, layout=layout, batch=16, chunk=chunk, engine=engine(), quick=quick)
    assert len(calls) == steps
    slots = layout.dp * max(chunk // 1000, 1)
    # Of 16 sequences, one is the arrival itself; 200 steps a request.
    coming = 15 * max(1000 // chunk, 1) / 200
    first = coming / (1 - np.exp(-coming)) if quick and slots > 1 else 1.0
    assert calls[1] == pytest.approx((first, float(longest_prefix(WORK, min(chunk, 1000), first))))
    assert 1 <= float(state.chunks_per_mixed_step) <= slots
