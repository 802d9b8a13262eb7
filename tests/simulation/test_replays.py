"""A plan replayed: by its names, refused where no rate holds its limits, and held against its own steady state."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from benchmarks import plan_vs_simulation
from benchmarks.plan_vs_simulation import compare

import steptime as st
from steptime.errors import InputError, RangeError
from steptime.physics.engine import serving_engine
from steptime.simulation.loop_state import DONE, REQUEST
from steptime.simulation.run_metrics import standard_error_of_mean
from tests.conftest import CHOICE_ALONE, every
from tests.planning.cases import closed_plan, equal_requests

WORK = st.Workload(input_tokens=1024, output_tokens=256)
LIMITS = st.Slo(tpot=0.02, ttft=1.0)


@pytest.fixture(scope="module")
def plan():
    return st.plan("llama-3.1-8b", "hgx-h100", WORK, LIMITS, chips=2, modes="aggregated", **CHOICE_ALONE)


# --- by name ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_plan_is_replayed_by_the_names_it_holds(plan):
    found = st.replay(plan, requests=500)
    # The engine of a plan draws tokens with top-p; a loaded one is as in its file.
    system = st.load_system("hgx-h100")
    things = st.load_model("llama-3.1-8b"), system, serving_engine(system, "vllm")
    assert found.to_dict() == st.replay(plan, *things, requests=500).to_dict()
    assert found.good
    assert found.reason == ""
    assert found.limits.is_met
    assert found.rate <= found.planned_rate == plan.requests_per_second
    assert (found.batch, found.planned_batch) == (plan.pools[-1].max_num_seqs, plan.pools[-1].batch)


@pytest.mark.thorough
def test_a_replay_costs_what_its_rate_costs(plan):
    again = st.replay(plan)
    cost = again.simulation.chips * float(again.simulation.rent.typical) / (again.rate * WORK.output_tokens) * 1e6
    assert np.isfinite(again.answers.steady_from)
    assert again.answers.usd_per_million_output_tokens == pytest.approx(cost, rel=0.05)


@pytest.mark.parametrize("what", every(3, ["model", "system", "engine"]))
def test_what_the_name_does_not_stand_for_has_to_be_given(what, closed_forms):
    things = {
        "model": st.load_model("llama-3.1-8b", weights="fp8") if what == "model" else "llama-3.1-8b",
        "system": st.vary("hgx-h100", {"chip.hbm.bandwidth": 4e12}) if what == "system" else "hgx-h100",
    }
    engine = st.load_engine("vllm")
    if what == "engine":
        engine = replace(engine, kernels=replace(engine.kernels, memory_efficiency=0.5))
    made = st.plan(*things.values(), WORK, LIMITS, chips=1, engine=engine, **CHOICE_ALONE)
    for replayed in (st.replay, compare):
        with pytest.raises(InputError, match=r"a plan contains only names, and .* differs from its inputs: a .* step takes"):
            replayed(made)
    assert st.replay(made, *things.values(), engine, requests=200).rate > 0


def test_a_small_difference_has_the_digits_that_show_it(closed_forms):
    faster = st.vary("hgx-h100", {"chip.hbm.bandwidth": 1.0001 * float(st.load_system("hgx-h100").chip.hbm.bandwidth)})
    made = st.plan("llama-3.1-8b", faster, WORK, LIMITS, chips=1, **CHOICE_ALONE)
    with pytest.raises(InputError) as told:
        st.replay(made)
    taken, planned = re.search(r"takes (.+) instead of (.+)\. Give", str(told.value)).groups()
    assert taken != planned


@pytest.mark.thorough
def test_a_name_that_loads_nothing_says_what_to_give(plan):
    for what in ("model", "system", "engine"):
        with pytest.raises(
            InputError, match=f"a plan contains only the name of its {what}: unknown {what} 'mine'.*Give {what}="
        ):
            st.replay(replace(plan, **{what: "mine"}))


@pytest.mark.slow
def test_requests_beyond_the_models_context_are_replayed_as_they_were_planned():
    """Mixtral's config states 32,768 tokens; the plan warns, and its replay serves what was planned."""
    workload = equal_requests(input_tokens=40_000, output_tokens=200)
    found = st.plan("mixtral-8x7b", "hgx-h100", workload, st.Slo(tpot=1 / 15, ttft=20), **CHOICE_ALONE)
    assert any("exceed the model's context of 32,768" in warning for warning in found.warnings)
    answers = compare(found, requests=300)
    assert answers.steady
    assert answers.tpot_ratio == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("mode", every(2, ["aggregated", "disaggregated"]))
def test_each_prompt_of_a_replay_has_its_share_in_the_cache(mode):
    """Nine tenths of a mean prompt would leave eight times the tokens of prompts of a spread of 2 to prefill."""
    workload = st.Workload(input_tokens=4000, output_tokens=100, cached_share=0.9, input_spread=2.0)
    plan = closed_plan("llama-3.1-8b", "hgx-h100", workload, LIMITS, chips=2, modes=mode, **CHOICE_ALONE)
    found = st.replay(plan, requests=1000)
    requests = found.simulation.requests
    assert np.all(requests["cached"] == requests["inputs"] * 9 // 10)
    assert np.std(requests["inputs"]) > np.mean(requests["inputs"])


def test_there_is_no_replay_of_nothing():
    nothing = st.plan("llama-3.1-8b", "hgx-h100", WORK, st.Slo(tpot=1e-5), chips=1, **CHOICE_ALONE)
    for replayed in (st.replay, compare):
        with pytest.raises(RangeError, match="plan: must be feasible"):
            replayed(nothing)
        with pytest.raises(InputError, match="a plan is a Plan"):
            replayed("llama-3.1-8b")


# --- refused ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_plan_whose_limits_hold_at_no_rate_is_refused(plan):
    """Prompts are read for longer than the limit allows, whatever the rate: the mean of a plan hides it, a replay does not."""
    tight = replace(plan, slo=st.Slo(ttft=1e-3))
    found = st.replay(tight, requests=200)
    assert not found.good
    assert "with random arrivals the limits are not met at p90, down to" in found.reason
    assert "(9 % of the plan's" in found.reason
    assert "> 1.00 ms" in found.reason
    assert not found.limits.is_met


@pytest.mark.thorough
def test_seats_stay_and_the_rate_is_lowered(plan):
    """The limit on the first token holds at less than the plan's rate; a lower quantile lets more through."""
    tight = replace(plan, slo=st.Slo(tpot=0.02, ttft=0.3))
    strict, loose = (st.replay(tight, requests=1000, percentile=q) for q in ("p99", "p50"))
    assert strict.good
    assert strict.batch == plan.pools[-1].max_num_seqs
    assert strict.rate < loose.rate <= plan.requests_per_second
    assert strict.rate == pytest.approx(strict.planned_rate * 0.98 ** (strict.attempts - 1) ** 2)


# --- beside its steady state --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", every(2, ["aggregated", "disaggregated"]))
def test_a_plan_of_one_attention_group_is_what_its_replay_finds(mode):
    """Without queues for seats, the time per token and the tokens delivered are those of the closed form."""
    workload = equal_requests(input_tokens=2000, output_tokens=500)
    made = closed_plan("llama-3.3-70b", "hgx-h100", workload, LIMITS_70B, modes=mode, **CHOICE_ALONE)
    found = compare(made, requests=8000)
    assert found.steady
    assert found.made_tpot_ratio == pytest.approx(1, abs=0.06)
    assert found.cost_ratio == pytest.approx(1, abs=0.02)
    assert found.cost == pytest.approx(made.usd_per_million_output_tokens, rel=0.02)
    assert found.batch == pytest.approx(made.pools[-1].batch, rel=0.08)
    assert found.counted >= 8000
    assert found.preemptions == 0


LIMITS_70B = st.Slo(tpot=1 / 40, ttft=1)


def test_littles_law_in_the_window(plan):
    """Sequences that decode = requests a second x seconds that each decodes."""
    found = compare(plan, requests=4000)
    replicas = int(plan.pools[-1].layout.replicas)
    assert found.batch * replicas == pytest.approx(found.rate * (WORK.output_tokens - 1) * found.made_tpot, rel=0.02)
    assert found.tokens_per_second == pytest.approx(found.rate * WORK.output_tokens, rel=0.02)
    assert found.seats >= plan.pools[-1].max_num_seqs > plan.pools[-1].batch


def test_at_half_the_rate_steps_are_shorter(plan):
    """The rate is the plan's own and is not lowered: a plan that says half of it has half of it, and fewer in flight."""
    slower = replace(plan, requests_per_second=plan.requests_per_second / 2)
    whole, half = (compare(one, requests=3000) for one in (plan, slower))
    assert half.rate == whole.rate / 2
    assert half.made_tpot < 0.9 * whole.made_tpot
    assert half.batch < 0.5 * whole.batch
    assert half.cost == pytest.approx(2 * whole.cost, rel=0.05)


def test_what_an_engine_adds_before_the_answer_is_told_apart():
    """The answer comes some decode steps late: the first token that much later, and the rest that much sooner."""
    work = equal_requests(input_tokens=1024, output_tokens=256)
    plan = closed_plan("llama-3.1-8b", "hgx-h100", work, LIMITS, chips=2, modes="aggregated", **CHOICE_ALONE)
    slow = st.load_engine("vllm")
    slow = replace(slow, scheduler=replace(slow.scheduler, steps_before_answer=10.0))
    found = compare(plan, "llama-3.1-8b", "hgx-h100", slow, requests=2000)
    assert found.ttft - found.made_ttft == pytest.approx(10 * found.made_tpot, rel=0.02)
    assert found.tpot == pytest.approx(found.made_tpot * (1 - 10 / 255), rel=1e-3)


def test_more_than_it_can_serve_is_not_steady(plan):
    found = compare(replace(plan, requests_per_second=3 * plan.requests_per_second), requests=2000)
    assert not found.steady
    assert "the queue grows" in repr(found)


def rows(*times) -> np.ndarray:
    """Requests as (arrival, first, finish, outputs), all done on one pool."""
    made = np.zeros(len(times), dtype=REQUEST)
    made["status"], made["resumed"] = DONE, np.nan
    for row, (arrival, first, finish, outputs) in zip(made, times, strict=True):
        row["arrival"], row["first"], row["finish"], row["outputs"] = arrival, first, finish, outputs
    return made


def test_tokens_and_sequences_between_two_times_by_hand():
    """One request makes its first token at 1 s and ten more until 11 s; another its only one at 4 s."""
    requests = rows((0.0, 1.0, 11.0, 11), (3.0, 4.0, 4.0, 1))
    by = partial(plan_vs_simulation._tokens_generated_by, requests)
    assert [by(t) for t in (0.5, 1.0, 3.5, 6.0, 20.0)] == [0, 1, 3.5, 7, 12]
    assert plan_vs_simulation._decode_sequence_seconds(requests, 2.0, 6.0) == 4
    assert plan_vs_simulation._decode_sequence_seconds(requests, 0.0, 20.0) == 10


def test_the_error_of_a_mean_that_drifts_is_larger():
    even = np.random.default_rng(0).normal(10, 1, 4000)
    drifting = even + np.linspace(-3, 3, 4000)
    assert standard_error_of_mean(even) == pytest.approx(1 / 10 / np.sqrt(4000), rel=0.5)
    assert standard_error_of_mean(drifting) > 10 * standard_error_of_mean(even)
    assert np.isnan(standard_error_of_mean(even[:5]))
