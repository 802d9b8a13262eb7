"""Figures of a plan by hand: those of its run, and ranges, shares and pools in its proportion."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

import steptime as st
from steptime.physics.layout import Layout
from steptime.physics.step import Step
from steptime.planning import plan_figures
from steptime.planning.evidence import ANY
from steptime.planning.plan_figures import (
    Selection,
    _bound,
    _evidence,
    _input_share,
    _pools,
    _prefill_share,
    _shown_figures,
    _transfer,
    _weighted_sum,
    bound_point,
    delivered,
    plan_point,
    shown_batch,
)
from steptime.planning.plan_problem import AGGREGATED, DISAGGREGATED, Candidate, Pinned
from steptime.planning.simulated_rate import Run
from tests.conftest import engine
from tests.planning.cases import USD, case

PAIR = Layout(tp=2)
TOGETHER = Candidate(mode=AGGREGATED, layout=replace(PAIR, replicas=2), batch=12, chunk=500)
APART = Candidate(mode=DISAGGREGATED, layout=PAIR, batch=12, prefill_layout=PAIR, prompts=2)
RUN = Run(
    rate=50.0, ttft=0.04, tpot=0.004, mean_ttft=0.02, mean_tpot=0.003, batch=9.0, busy=(0.6,), worst=0.9, session="turns"
)  # fmt: skip


def test_a_shown_batch_is_whole_from_eight_sequences_on():
    shown = [shown_batch(batch) for batch in (0.2, 1.2, 2.07, 7.9, 8.0, 8.4, 8.6)]
    assert shown == [1.125, 1.25, 2.125, 7.875, 8.0, 8.0, 9.0]


def test_a_plan_has_the_figures_of_its_run_and_ranges_of_closed_forms_in_proportion(monkeypatch):
    """A run of 4 ms per token and 40 ms to the first one, at 50 requests/s of 201 tokens, for 4 chips at $2 an hour."""
    closed = {
        "tpot": 0.002, "ttft": 0.01, "utilisation": 0.3, "requests_per_second": 80.0, "usd_per_million_output_tokens": 0.1,
    }  # fmt: skip
    state, prefill, _ = plan_figures._figures(case(), TOGETHER)
    monkeypatch.setattr(plan_figures, "_figures", lambda *_: (state, prefill, closed))
    ranges = {"tpot_range": (0.001, 0.003), "ttft_range": (0.005, 0.03), "cost_range": None, "throughput_range": (60.0, 88.0)}
    monkeypatch.setattr(plan_figures, "candidate_ranges", lambda *given: ranges if given[4] == 0.3 else {})
    found = delivered(case(), Selection(TOGETHER, RUN))
    assert {name: found[name] for name in ("tpot", "ttft", "mean_tpot", "mean_ttft", "utilisation", "session_run")} == {
        "tpot": 0.004, "ttft": 0.04, "mean_tpot": 0.003, "mean_ttft": 0.02, "utilisation": 0.3, "session_run": "turns",
    }  # fmt: skip
    usd = USD / (50 * 201) * 1e6
    assert found["usd_per_million_output_tokens"] == pytest.approx(usd)
    # The TPOT is twice that of closed forms, the TTFT four times, the rate 5/8.
    assert found["tpot_range"] == pytest.approx((0.002, 0.006))
    assert found["ttft_range"] == pytest.approx((0.02, 0.12))
    assert (found["cost_range"], found["throughput_range"]) == (None, pytest.approx((37.5, 55.0)))
    assert found["tpot_bounds"] == pytest.approx((2 * state.lower, 2 * state.upper))
    assert found["cost_bounds"] == pytest.approx((usd * state.lower / state.tpot, usd * state.upper / state.tpot))
    # Little's law: 50 requests/s for 20 ms and 200 steps of 3 ms.
    assert found["concurrency"] == pytest.approx(50 * (0.02 + 200 * 0.003))
    assert found["usd_per_request"] == pytest.approx(USD / 50)
    share = state.input_share
    assert found["prefill_usd_per_million_tokens"] == pytest.approx(USD * share / (50 * 1000) * 1e6)
    assert found["decode_usd_per_million_tokens"] == pytest.approx(USD * (1 - share) / (50 * 201) * 1e6)
    assert (found["transfer_seconds"], found["mode"], found["layout_text"]) == (0.0, AGGREGATED, TOGETHER.text)


def test_a_queue_without_a_finite_wait_has_the_ranges_of_a_smaller_batch(monkeypatch):
    """Each has nine tenths of the sequences in flight, until 9 has a finite wait; the pool shows 12."""
    batches: list[float] = []
    state, prefill, closed = plan_figures._figures(case(), TOGETHER)
    monkeypatch.setattr(plan_figures, "candidate_ranges", lambda *_: {})

    def show(finite_from: float) -> dict:
        def figures(_, candidate):
            batches.append(candidate.batch)
            return state, prefill, closed | {"ttft": 1.0 if candidate.batch <= finite_from else math.inf}

        batches.clear()
        monkeypatch.setattr(plan_figures, "_figures", figures)
        return delivered(case(), Selection(TOGETHER))

    found = show(9)
    replicas = TOGETHER.layout.replicas
    assert batches == pytest.approx([(1 + 0.9**n * (12 * replicas - 1)) / replicas for n in range(4)])
    assert (found["ttft"], found["pools"][0].batch) == (1.0, 12)
    # After twenty batches it gives up.
    assert show(0)["ttft"] == math.inf
    assert len(batches) == 20


def test_figures_of_closed_forms_are_means_and_waits_at_a_percentile():
    """No percentile is above the mean of equal requests: its ratio is that of the log-normal prompts."""
    closed = {"tpot": 0.002, "ttft": 0.01}
    spread = replace(case(), percentile="p90", workload=st.Workload(input_tokens=1000, output_tokens=201))
    ratio = plan_figures.percentile_ratio(spread.workload, "p90")
    found = _shown_figures(spread, Selection(TOGETHER), closed)
    assert ratio > 1
    assert found == {"tpot": 0.002, "mean_tpot": 0.002, "mean_ttft": 0.01, "ttft": pytest.approx(0.01 * ratio)}


def test_a_run_without_second_tokens_has_the_time_of_a_step_and_two_pools_the_use_of_the_first():
    closed = {"tpot": 0.002, "ttft": 0.01, "utilisation": 0.3}
    found = _shown_figures(case(), Selection(TOGETHER, replace(RUN, tpot=0.0, mean_tpot=0.0, busy=(0.6, 0.2))), closed)
    assert (found["tpot"], found["mean_tpot"], found["utilisation"]) == (0.002, 0.002, 0.6)


def test_points_of_a_run_and_of_a_faster_engine_by_hand(monkeypatch):
    """The other engine has half of the TPOT and twice the rate: so do its points, from those of the run."""
    fast = replace(case(), engine=engine(title="fast"))
    by_title = {
        "": {"tpot": 0.002, "ttft": 0.02, "requests_per_second": 80.0, "usd_per_million_output_tokens": 0.4},
        "fast": {"tpot": 0.001, "ttft": 0.015, "requests_per_second": 160.0, "usd_per_million_output_tokens": 0.2},
    }
    closed = {"utilisation": 0.5}
    monkeypatch.setattr(plan_figures, "_figures", lambda given, _: (None, None, by_title[given.engine.title] | closed))
    now, bound = plan_point(case(), Selection(TOGETHER, RUN)), bound_point(case(), fast, Selection(TOGETHER, RUN))
    usd = USD / (50 * 201) * 1e6
    for point, speed, chip, cost, ttft in ((now, 250, 50 * 201 / 4, usd, 0.04), (bound, 500, 100 * 201 / 4, usd / 2, 0.03)):
        assert (point.mode, point.batch, point.layout_text) == (AGGREGATED, 12, TOGETHER.text)
        assert point.tokens_per_second_per_user == pytest.approx(speed)
        assert point.tokens_per_second_per_chip == pytest.approx(chip)
        assert (point.usd_per_million_output_tokens, point.ttft) == pytest.approx((cost, ttft))


def test_bounds_of_two_pools_are_the_mean_of_theirs():
    state, step = SimpleNamespace(tpot=2.0, lower=1.0, upper=5.0), SimpleNamespace(total=10.0, lower=8.0, upper=15.0)
    assert (_bound(state, None, "lower"), _bound(state, None, "upper")) == (0.5, 2.5)
    both = SimpleNamespace(step=step)
    assert (_bound(state, both, "lower"), _bound(state, both, "upper")) == pytest.approx((0.65, 2.0))


def test_input_tokens_bear_their_share_of_chip_seconds_or_of_two_rents():
    """2 chips for 1/10 s, and 2 for 1/5 s: a third. With chips of three times the rent for prefill, three fifths."""
    state, prefill = SimpleNamespace(rate=5.0, input_share=0.2), SimpleNamespace(rate=10.0)
    assert _input_share(case(), APART, state, None) == 0.2
    assert _input_share(case(), APART, state, prefill) == pytest.approx(1 / 3)
    dear = case().system
    dear = replace(dear, rent=replace(dear.rent, low=6 / 3600, typical=6 / 3600, high=6 / 3600))
    pair = replace(case(), prefill_system=dear, prefill_chips=2)
    assert _input_share(pair, APART, state, prefill) == pytest.approx(0.6 / (0.6 + 0.4))


def test_steps_are_added_with_their_weights():
    """A quarter of a prefill step and three quarters of a decode step, term by term."""

    def step(scale, **tables):
        return Step(**dict.fromkeys(("lower", "total", "upper", "latency"), scale), **tables)

    first = step(4.0, terms={"weights": 3.0, "kv": 1.0}, resources={"compute": 4.0})
    second = step(8.0, terms={"weights": 8.0}, resources={"memory": 8.0})
    found = _weighted_sum((0.75, first), (0.25, second))
    assert [found.lower, found.total, found.upper, found.latency] == [5.0] * 4
    assert found.terms == {"weights": 0.75 * 3 + 0.25 * 8, "kv": 0.75}
    assert found.resources == {"compute": 3.0, "memory": 2.0}


def test_first_tokens_that_come_sooner_than_steps_take_shorten_the_prefill_of_a_run(monkeypatch):
    assert _prefill_share(case(), Selection(TOGETHER), PAIR) == 1.0
    for factor, share in ((0.8, 0.8), (1.3, 1.0)):
        monkeypatch.setattr(plan_figures, "ttft_factor", lambda *_, factor=factor: factor)
        assert _prefill_share(case(), Selection(TOGETHER), PAIR) == 1.0
        assert _prefill_share(case(), Selection(TOGETHER, RUN), PAIR) == share


def test_pools_take_the_shorter_prefill_of_a_run(monkeypatch):
    """Prefill of 0.8 of its time: a mixed step is a fifth nearer to a decode step, and a pass takes 0.8 of its time."""
    monkeypatch.setattr(plan_figures, "ttft_factor", lambda *_: 0.8)
    state, prefill, _ = plan_figures._figures(case(), TOGETHER)
    (pool,) = _pools(case(), Selection(TOGETHER, RUN), state, prefill, 50.0)
    assert pool.mixed.total == pytest.approx(0.2 * state.decode.total + 0.8 * state.mixed.total)
    assert (pool.step.total, pool.role, pool.batch, pool.chunk) == (state.decode.total, "serve", 12.0, 500)
    assert pool.chunk_share == pytest.approx(1 - state.decode_only_share)
    assert pool.tokens_per_second == pytest.approx(50 * 201)
    state, prefill, _ = plan_figures._figures(case(), APART)
    first, second = _pools(case(), Selection(APART, RUN), state, prefill, 50.0)
    assert first.step.total == pytest.approx(0.8 * prefill.step.total)
    assert (first.role, second.role, first.layout, first.batch) == ("prefill", "decode", PAIR, prefill.seats)
    assert (first.tokens_per_second, second.tokens_per_second) == pytest.approx((50 * 1000, 50 * 201))


def test_pools_of_a_run_have_its_slots_and_room_to_sample_for_them():
    state, prefill, _ = plan_figures._figures(case(), TOGETHER)
    closed = _pools(case(), Selection(TOGETHER), state, prefill, 50.0)[0]
    slots = SimpleNamespace(max_num_seqs=40, queued=True)
    pool = _pools(case(), Selection(TOGETHER, RUN, (slots,)), state, prefill, 50.0)[0]
    assert (pool.max_num_seqs, pool.queued) == (40, True)
    assert closed.max_num_seqs < 40
    limited = _pools(replace(case(), pinned=Pinned(max_num_seqs=10)), Selection(TOGETHER), state, prefill, 50.0)[0]
    assert (limited.max_num_seqs, limited.batch) == (10, 10.0)


def test_a_cache_crosses_to_the_decode_pool_at_the_rate_of_a_prefill_replica(monkeypatch):
    rates = []
    link = SimpleNamespace(seconds=lambda rate: rates.append(rate) or 0.25)
    monkeypatch.setattr(plan_figures, "moving", lambda *_: link)
    both = replace(APART, prefill_layout=replace(PAIR, replicas=2))
    assert (_transfer(case(), TOGETHER, 30.0), _transfer(case(), both, 30.0), rates) == (0.0, 0.25, [15.0])


def test_nobody_has_published_runs_of_small_chunks_or_of_two_systems(monkeypatch):
    monkeypatch.setattr(plan_figures, "deployment_evidence", lambda *_: "measured")
    assert _evidence(case(), replace(TOGETHER, chunk=2048)) == "measured"
    assert _evidence(case(), replace(TOGETHER, chunk=8)) == ANY
    assert _evidence(replace(case(), prefill_system=replace(case().system, name="other"), prefill_chips=2), APART) == ANY
