"""Ranges of plans by hand: an engine with one badly known constant, on a machine that waits for memory alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

import steptime as st
from steptime.hardware.rental_prices import usd_per_million
from steptime.physics.layout import Layout
from steptime.planning import plan_intervals
from steptime.planning.plan_intervals import CHOICE_WORDS, OPTIMISM, OPTIMISM_DEVIATION, candidate_ranges, chosen_range
from steptime.planning.plan_problem import AGGREGATED, DISAGGREGATED, Candidate, PlanProblem, evaluate_prefill, evaluate_state
from steptime.planning.refinement import matched_rate
from tests.conftest import engine, machine, one_matrix
from tests.planning.cases import closed_plan, equal_requests

WORK = equal_requests(input_tokens=1000, output_tokens=201)
TABLES = {"tpot": {"decode": [0.8, 1.25], "mixed": [0.7, 1.5]}, "ttft": {"prompt": [0.6, 1.7], "queue": [0.5, 3.0]}}
NARROW, BROAD = 0.0, 0.04  # variance of the logarithm of memory efficiency
STREAM = machine(flops=1e30)


@pytest.fixture
def without_optimism(monkeypatch):
    """Leave only the ranges of steps."""
    monkeypatch.setattr(plan_intervals, "OPTIMISM", 0.0)
    monkeypatch.setattr(plan_intervals, "OPTIMISM_DEVIATION", 0.0)


def fitted(variance: float, **more):
    fit = {"names": ["memory_efficiency"], "covariance": [[variance]], "interval": TABLES}
    return engine(memory_efficiency=0.8, fit=fit | more)


def ranges(candidate: Candidate, on, system=STREAM, workload=WORK):
    case = PlanProblem(model=one_matrix(kv_bytes=1e-6), system=system, workload=workload, slo=st.Slo(), chips=8, engine=on)
    state = evaluate_state(case, candidate, candidate.batch, max(candidate.chunk, 1))
    prefill = evaluate_prefill(case, candidate, state.tpot)
    rate, busy = matched_rate(case, candidate, state, prefill)
    found = candidate_ranges(case, candidate, state, prefill, busy)
    cost = usd_per_million(case.rent, rate * workload.output_tokens)
    return found, state, cost, prefill


def shares(batch: int, chunk: int = 2048) -> Candidate:
    return Candidate(mode=AGGREGATED, layout=Layout(), batch=batch, chunk=chunk)


def test_the_ideal_has_none():
    case = PlanProblem(model=one_matrix(), system=STREAM, workload=WORK, slo=st.Slo(), chips=8, engine=st.load_engine("ideal"))
    state = evaluate_state(case, shares(10), 10, 2048)
    found = candidate_ranges(case, shares(10), state, None, 0.5)
    assert found == dict.fromkeys(("tpot_range", "ttft_range", "cost_range", "throughput_range"))


def test_shares_of_the_ranges_say_what_they_are_made_of():
    """Speed errs by 1.25 as a group, cost also by the choice of the layout: 1.645 x 0.15 of the logarithm."""
    found, *_ = ranges(shares(40), fitted(NARROW))
    group = "a group of runs that no fit has seen"
    assert found["range_shares"]["speed"] == found["range_shares"]["first token"] == {group: pytest.approx(1.0)}
    own, choice = np.log(1.25) ** 2, (1.645 * OPTIMISM_DEVIATION) ** 2
    assert found["range_shares"]["cost"] == pytest.approx(
        {CHOICE_WORDS: choice / (own + choice), group: own / (own + choice)}, rel=1e-6
    )


@pytest.mark.usefixtures("without_optimism")
def test_a_decode_that_is_known_errs_as_runs_did():
    """All time is decode, since prompts are read beside it for nothing; cost follows the time of a token."""
    found, state, cost, _ = ranges(shares(40), fitted(NARROW))
    assert found["tpot_range"] == pytest.approx((0.8 * float(state.tpot), 1.25 * float(state.tpot)))
    assert found["ttft_range"] == pytest.approx((0.6 * float(state.ttft), 1.7 * float(state.ttft)))
    assert found["cost_range"] == pytest.approx((0.8 * cost, 1.25 * cost))
    # Of each chip, whose rent buys these tokens.
    tokens = [STREAM.rent.typical / usd * 1e6 for usd in found["cost_range"][::-1]]
    assert found["throughput_range"] == pytest.approx(tuple(tokens))


def test_a_constant_that_is_badly_known_widens_it():
    """All times go as 1 / memory efficiency: variance 0.04, less the 0.01 of runs; q^2 + 1.645^2 x 0.03."""
    found, state, _, _ = ranges(shares(40), fitted(BROAD, parameter_variance={"tpot": {"decode": 0.01}}))
    low, high = (np.exp(sign * np.sqrt(np.log(q) ** 2 + 1.645**2 * 0.03)) for sign, q in ((-1, 0.8), (1, 1.25)))
    assert found["tpot_range"] == pytest.approx((low * float(state.tpot), high * float(state.tpot)), rel=1e-4)
    late, later = (np.exp(sign * np.sqrt(np.log(q) ** 2 + 1.645**2 * 0.04)) for sign, q in ((-1, 0.6), (1, 1.7)))
    assert found["ttft_range"] == pytest.approx((late * float(state.ttft), later * float(state.ttft)), rel=1e-4)


@pytest.mark.usefixtures("without_optimism")
def test_time_that_goes_to_prompts_is_mixed():
    """At 20 TFLOP/s a chunk takes some hundred decode steps: most of the time."""
    found, state, cost, _ = ranges(shares(40), fitted(NARROW), machine(flops=2e13))
    assert state.decode.total < 0.5 * state.tpot
    assert found["tpot_range"] == pytest.approx((0.7 * float(state.tpot), 1.5 * float(state.tpot)))
    assert found["ttft_range"] == pytest.approx((0.6 * float(state.ttft), 1.7 * float(state.ttft)))
    assert found["cost_range"] == pytest.approx((0.7 * cost, 1.5 * cost))


def wider(low: float, high: float, late: float = 0.2) -> tuple[float, float]:
    """Two factors with what pools of their own add, of which no run was fitted: logarithms of 0.2 on both sides, in squares."""
    return np.exp(-np.hypot(np.log(low), 0.2)), np.exp(np.hypot(np.log(high), late))


@pytest.mark.usefixtures("without_optimism")
def test_pools_apart_err_together():
    """Decode by its own table, prefill by that of mixed runs: the slower pool sets the cost."""
    decode_bound = Candidate(mode=DISAGGREGATED, layout=Layout(), batch=40, prefill_layout=Layout(replicas=7), prompts=1)
    found, state, cost, prefill = ranges(decode_bound, fitted(NARROW))
    low, high = wider(0.8, 1.25)
    assert found["tpot_range"] == pytest.approx((low * float(state.tpot), high * float(state.tpot)))
    first = float(prefill.step.total)
    late = wider(0.6, 1.7, 1.5)  # first tokens of public pools came much later than predicted
    assert found["ttft_range"][0] > late[0] * first
    assert found["ttft_range"][1] / found["ttft_range"][0] == pytest.approx(late[1] / late[0])
    assert found["cost_range"] == pytest.approx((low * cost, high * cost))
    prefill_bound = Candidate(mode=DISAGGREGATED, layout=Layout(replicas=7), batch=40, prefill_layout=Layout(), prompts=1)
    found, _, cost, _ = ranges(prefill_bound, fitted(NARROW), machine(flops=2e13))
    low, high = wider(0.7, 1.5)
    assert found["cost_range"] == pytest.approx((low * cost, high * cost))
    found, _, cost, _ = ranges(prefill_bound, fitted(BROAD))
    low, high = (np.exp(sign * np.sqrt(np.log(q) ** 2 + 1.645**2 * 0.04)) for sign, q in ((-1, 0.7), (1, 1.5)))
    assert found["cost_range"] == pytest.approx(tuple(x * cost for x in wider(low, high)), rel=1e-4)


@pytest.mark.usefixtures("without_optimism")
def test_chips_that_were_never_measured_have_at_least_half_to_twice():
    on = fitted(NARROW, vendors=["NVIDIA"])
    found, state, cost, _ = ranges(shares(40), on)
    assert found["tpot_range"] == pytest.approx((0.5 * float(state.tpot), 2 * float(state.tpot)))
    assert found["ttft_range"] == pytest.approx((0.5 * float(state.ttft), 2 * float(state.ttft)))
    assert found["cost_range"] == pytest.approx((0.5 * cost, 2 * cost))
    apart = Candidate(mode=DISAGGREGATED, layout=Layout(replicas=7), batch=40, prefill_layout=Layout(), prompts=1)
    found, _, cost, _ = ranges(apart, on, machine(flops=2e13))
    low, high = wider(0.7, 1.5)
    assert found["cost_range"] == pytest.approx((min(low, 0.5) * cost, max(high, 2) * cost))


@pytest.mark.usefixtures("without_optimism")
def test_a_plan_carries_its_ranges():
    found = closed_plan(one_matrix(heads=1), STREAM, WORK, chips=1, engine=fitted(NARROW), alternatives=False)
    assert found.tpot_range == pytest.approx((0.8 * found.tpot, 1.25 * found.tpot))
    assert found.cost_range == pytest.approx(tuple(f * found.usd_per_million_output_tokens for f in (0.8, 1.25)))
    assert found.speed_range == pytest.approx((1 / (1.25 * found.tpot), 1 / (0.8 * found.tpot)))
    assert found.throughput_range == pytest.approx(tuple(found.tokens_per_second_per_chip / f for f in (1.25, 0.8)))


def test_the_choice_of_the_best_moves_and_widens_the_range():
    """Deviations of independent errors of the logarithm add as squares, and the middle falls by the mean optimism."""
    assert chosen_range(7.0, 7.0, 7.0) == pytest.approx(
        [7 * math.exp(-OPTIMISM + side * 1.645 * OPTIMISM_DEVIATION) for side in (-1, 1)]
    )
    low, high = chosen_range(1.0, 0.5, 3.0)
    assert math.log(low) == pytest.approx(-OPTIMISM - math.sqrt(math.log(2) ** 2 + (1.645 * OPTIMISM_DEVIATION) ** 2))
    assert math.log(high) == pytest.approx(-OPTIMISM + math.sqrt(math.log(3) ** 2 + (1.645 * OPTIMISM_DEVIATION) ** 2))
    assert chosen_range(1.0, 0.0, 2.0)[0] == 0.0
    settings = {"chips": 1, "engine": fitted(NARROW), "alternatives": False}
    searched, own = (closed_plan(one_matrix(heads=1), STREAM, WORK, **settings, **more) for more in ({}, {"sizes": {"tp": 1}}))
    assert own.cost_range[0] > searched.cost_range[0]
    assert own.cost_range[1] < searched.cost_range[1]
    assert own.tpot_range == pytest.approx(searched.tpot_range)
