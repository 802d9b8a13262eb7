"""Plans at their edges: one seat, limits that hardly anything keeps, links that are full, one token out."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

import steptime as st
from steptime.launch.launch_commands import launch_commands
from steptime.physics.speculative_step import cache_moved
from steptime.planning import planner
from steptime.planning.plan_problem import Candidate, capped_occupancy, evaluate_state, filled
from steptime.units import parse
from tests.planning.cases import case, closed_plan, equal_requests

SHORT = equal_requests(input_tokens=8192, output_tokens=16)


@pytest.mark.thorough
def test_few_at_a_time_serve_no_more_than_their_time_allows():
    """Where a first token has hardly time for its prompt, a token is made among less than two; less than one is in flight."""
    found = closed_plan(
        "qwen3-32b", "hgx-a100", equal_requests(input_tokens=32000, output_tokens=100), st.Slo(ttft=3.2), alternatives=False
    )
    assert 1 <= found.pools[-1].batch < 2
    assert found.pools[-1].layout.replicas == 1
    lone = found.ttft + 99 * found.tpot  # with the wait for the seat
    taken = found.requests_per_second * lone
    assert taken < 1
    read = closed_plan(
        "qwen3-32b", "hgx-a100", equal_requests(input_tokens=32000, output_tokens=100), st.Slo(ttft=80_000), alternatives=False
    )
    assert found.ttft <= 3.2 + 1e-9
    assert read.usd_per_million_output_tokens <= found.usd_per_million_output_tokens * (1 + 1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["ideal", pytest.param("vllm", marks=pytest.mark.slow)])
def test_a_later_first_token_never_costs_more(engine):
    """Through the limits at which the only seat, two seats and many are best."""
    limits = (0.245, 0.26, 0.28, 0.3, 0.4) if engine == "ideal" else (0.5, 0.8, 1.03, 1.07, 1.5)
    asked = {"engine": engine, "alternatives": False, "percentile": "mean", "evidence": "any"}
    # Closed forms of few sequences are rough: a plan simulates them.
    found = closed_plan if engine == "ideal" else planner.plan
    rates = [found("llama-3.3-70b", "hgx-h100", SHORT, st.Slo(tpot=0.02, ttft=t), **asked).requests_per_second for t in limits]
    assert all(later >= sooner * (1 - 0.005) for sooner, later in pairwise(rates))
    assert rates[-1] > 0


def test_the_soonest_first_token_that_is_told_can_be_had():
    asked = {"engine": "ideal", "alternatives": False}
    refused = closed_plan("llama-3.3-70b", "hgx-h100", SHORT, st.Slo(ttft=0.2), **asked)
    assert not refused.feasible
    soonest = float(refused.reason.split("the earliest comes after ")[1].split(" ms")[0]) / 1e3
    assert closed_plan("llama-3.3-70b", "hgx-h100", SHORT, st.Slo(ttft=soonest * 1.01), **asked).feasible
    assert not closed_plan("llama-3.3-70b", "hgx-h100", SHORT, st.Slo(ttft=soonest * 0.98), **asked).feasible


def test_the_soonest_first_token_is_that_of_low_rates():
    """Few long prompts on one chip: at the highest rate the mean wait is many times the prefill."""
    asked = {"model": "llama-3.1-8b", "system": "l40s-8", "chips": 1, "percentile": "mean", "alternatives": False}
    work = st.Workload(input_tokens=50_000, output_tokens=500, cached_share=0.97)
    refused = closed_plan(**asked, workload=work, slo=st.Slo(ttft=0.1))
    soonest = parse(refused.reason.split("the earliest comes after ")[1].split(". ")[0], "s")
    assert closed_plan(**asked, workload=work, slo=st.Slo(ttft=soonest * 1.01)).feasible
    assert not closed_plan(**asked, workload=work, slo=st.Slo(ttft=soonest * 0.95)).feasible


@pytest.mark.thorough
@pytest.mark.parametrize("percentile", ["mean", "p90"])
def test_the_soonest_first_token_of_a_simulated_refusal_can_be_had_and_no_sooner_one(percentile):
    """The named time is at the percentile, as the limit is, and that of requests that meet one another at random."""
    settings = {"percentile": percentile, "alternatives": False, "elasticities": False, "front": False}
    work = st.Workload(input_tokens=1024, output_tokens=256)
    asked = partial(planner.plan, "llama-3.1-8b", "l40s-8", work, chips=1, **settings)
    refused = asked(st.Slo(ttft=0.02, tpot=0.05))
    soonest = parse(refused.reason.split("the earliest comes after ")[1].split(". ")[0], "s")
    assert asked(st.Slo(ttft=soonest, tpot=0.05)).feasible
    assert not asked(st.Slo(ttft=0.85 * soonest, tpot=0.05)).feasible


def test_a_decode_pool_takes_in_no_more_caches_than_its_links_carry():
    work = equal_requests(input_tokens=4096, output_tokens=8)
    found = closed_plan("llama-3.1-8b", "hgx-b200", work, modes="disaggregated", chips=64, engine="ideal", alternatives=False)
    decode = found.pools[-1].layout
    caches = found.requests_per_second * float(cache_moved(st.load_model("llama-3.1-8b"), 4096, 0))  # B/s
    link = st.load_system("hgx-b200").scale_out.link
    taken = caches / (int(decode.chips * decode.replicas) * link.bandwidth)
    assert 0.3 < taken <= 0.9 + 1e-9


def test_a_prompt_of_a_million_tokens_and_one_token_out_is_served():
    found = closed_plan("llama-3.1-8b", "hgx-h100", equal_requests(input_tokens=1_000_000, output_tokens=1), alternatives=False)
    assert found.feasible
    assert found.requests_per_second > 0


@pytest.mark.thorough
def test_decode_pools_of_vllm_have_no_stages():
    """NixlConnector of vLLM 0.33 refuses them: 8 x 4090 had such a plan."""
    work = equal_requests(input_tokens=1024, output_tokens=1024)
    found = closed_plan("qwen3-14b", "rtx-4090-8", work, st.Slo(tpot=0.05, ttft=2), alternatives=False)
    assert found.mode == "aggregated" or int(found.pools[-1].layout.pp) == 1
    pools = closed_plan("qwen3-14b", "rtx-4090-8", work, st.Slo(tpot=0.05, ttft=2), modes="disaggregated", alternatives=False)
    assert not pools.feasible or int(pools.pools[-1].layout.pp) == 1


def test_seats_are_those_of_all_replicas():
    """A prompt of 1 s and 200 x 1 s of decode: M/D/2 of 201 s, whose tokens are made in 200 of them, wherever the seats are."""
    one = Candidate(mode="aggregated", layout=st.Layout(), batch=2)
    state = replace(evaluate_state(case(), one, 2, 500), tpot=np.float64(1.0), ttft=np.float64(1.0))
    share, wait = filled(201.0, 40.0, 2)
    for batch, replicas in ((2, 1), (1, 2)):
        found = capped_occupancy(case(), state, batch, st.Layout(replicas=replicas), 41.0)
        assert bool(found.capped)
        assert (float(found.wait), float(wait)) == (pytest.approx(40.0), pytest.approx(40.0))
        assert float(found.share) == pytest.approx(float(share) * 200 / 201)
        assert float(found.share) > 0.5
    assert not bool(
        capped_occupancy(case(), state, 2, st.Layout(replicas=2), 41.0).capped
    )  # four seats in all: an open batch is as good
    late = capped_occupancy(case(), state, 2, st.Layout(), 0.9)
    assert (float(late.wait), float(late.share)) == (0, 0.5)


@pytest.mark.thorough
@pytest.mark.parametrize(("speed", "least", "most"), [(98, 80, 92), (92, 36, 44)])
def test_a_token_may_be_made_among_less_than_two_in_the_mean(speed, least, most):
    """DeepSeek-V3 on eight H200: alone 9.5 ms, two at once 10.2; at 98 tok/s a token meets seven eighths of another."""
    pytest.importorskip("numba")
    from benchmarks.plan_vs_simulation import compare

    work, slo = equal_requests(input_tokens=1024, output_tokens=1024), st.Slo(tpot=1 / speed, ttft=0.2)
    found = closed_plan("deepseek-v3", "hgx-h200", work, slo, alternatives=False)
    assert found.pools[-1].batch % 1 > 0
    assert least < found.usd_per_million_output_tokens < most
    held = compare(found, requests=600)
    assert held.steady
    assert held.tpot_ratio == pytest.approx(1, abs=0.05)
    assert held.ttft_ratio == pytest.approx(1, abs=0.05)


@pytest.mark.thorough
def test_a_token_may_be_made_among_five_and_a_half_in_the_mean():
    """GLM-4.5 on eight H200 at 60 tok/s: five are cheaper than 16.7 ms allows, and six are too many for it."""
    pytest.importorskip("numba")
    from benchmarks.plan_vs_simulation import compare

    work = equal_requests(input_tokens=4096, output_tokens=512)
    found = closed_plan("glm-4.5", "hgx-h200", work, st.Slo(tpot=1 / 60, ttft=2), alternatives=False)
    pool = found.pools[-1]
    assert 5 < pool.batch < 6
    assert found.usd_per_million_output_tokens < 26
    below, itself, above = (
        float(st.mixed_step("glm-4.5", "hgx-h200", batch=batch, context=4352, layout=pool.layout).total)
        for batch in (5, 5.5, 6)
    )
    assert itself == pytest.approx((below + above) / 2, rel=2e-3)
    assert pool.max_num_seqs > pool.batch
    kept = st.memory_per_chip("glm-4.5", "hgx-h200", batch=pool.max_num_seqs, context=4352, layout=pool.layout)
    assert float(pool.memory.cache) == pytest.approx(float(kept.cache))  # whole sequences have to fit
    assert f"--max-num-seqs {pool.max_num_seqs} " in " ".join(launch_commands(found, "vllm"))
    held = compare(found, requests=600)
    assert held.steady
    assert held.tpot_ratio == pytest.approx(1, abs=0.05)
    assert held.ttft_ratio == pytest.approx(1, abs=0.05)


@pytest.mark.thorough
def test_a_limit_that_closed_forms_just_miss_is_left_to_the_simulator():
    asked = st.Workload(input_tokens=23660, output_tokens=14, input_spread=0.5, output_spread=0.0)
    limits = st.Slo(ttft=71.9, tpot=1.465)
    of_grok = partial(
        st.plan, "xai-org/grok-2", "rtx-pro-6000-workstation-2", asked, chips=8, evidence="any", diagnostics=False
    )
    found = of_grok(slo=limits, alternatives=False, elasticities=False)
    assert found.feasible
    assert found.tpot <= limits.tpot
    assert not of_grok(slo=replace(limits, tpot=0.1)).feasible
