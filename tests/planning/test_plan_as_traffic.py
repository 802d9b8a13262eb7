"""A plan as requests and schedules of the simulator, in plain numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import steptime as st
from steptime.errors import InputError, RangeError
from steptime.physics.layout import Layout
from steptime.planning import plan_as_traffic
from steptime.planning.finalists import SimulatedPool
from steptime.planning.plan_as_traffic import (
    LONGEST,
    Prompts,
    decode_policy,
    load_plan_inputs,
    load_prefill_system,
    longest_context,
    prefill_policy,
    skipped_tokens,
    within_context,
    workload_prompts,
    workload_traffic,
)
from steptime.planning.simulated_rate import draw
from steptime.workload.workload import Speculation
from tests.conftest import each
from tests.planning.cases import MODEL, NODES, equal_requests, made, shared


@each("tokens, cached, fresh, skipped", [(1000, 0.0, 1000, 0), (1000, 0.25, 750, 250), (3, 0.9, 1, 2), (7, 0.5, 4, 3)])
def test_prompts_have_whole_tokens_and_at_least_one_to_prefill(tokens, cached, fresh, skipped):
    found = workload_prompts(equal_requests(input_tokens=tokens, output_tokens=9, cached_share=cached))
    assert found == Prompts(fresh=fresh, skipped=skipped)


def test_each_prompt_has_the_same_cached_share_in_whole_tokens():
    """A quarter of each, rounded down: 99 tokens have 24."""
    assert skipped_tokens(Prompts(fresh=750, skipped=250), np.array([4, 99, 1000])).tolist() == [1, 24, 250]


def test_contexts_end_with_the_model_or_with_mean_requests_beyond_it():
    requests = equal_requests(input_tokens=1000, output_tokens=201)
    longest = [longest_context(requests, replace(MODEL, max_context=tokens)) for tokens in (500, 1201, 4096, 1 << 41)]
    assert longest == [1201, 1201, 4096, LONGEST]


def test_requests_are_cut_at_the_longest_context_and_keep_their_means():
    """The others are longer by what is cut."""
    inputs, outputs = within_context(np.array([10, 20, 300]), np.array([5, 10, 60]), 300)
    assert (inputs + outputs).max() <= 300
    assert (inputs.mean(), outputs.mean()) == pytest.approx((110, 25), rel=0.02)
    requests = st.Workload(input_tokens=18_000, output_tokens=1200)
    draws = draw(requests, 20_000, 1)
    inputs, outputs = within_context(draws.inputs, draws.outputs, 40_960)
    assert (inputs + outputs).max() <= 40_960 < draws.inputs.max()
    assert (inputs.mean(), outputs.mean()) == pytest.approx((18_000, 1200), rel=2e-3)
    unchanged = within_context(draws.inputs, draws.outputs, 1 << 40)
    assert np.array_equal(unchanged, (draws.inputs, draws.outputs))


def test_requests_that_exceed_the_context_on_average_are_as_long_as_it_allows():
    inputs, outputs = within_context(np.array([10, 99, 200]), np.array([50, 50, 50]), 100)
    assert np.all(inputs + outputs <= 100)
    assert (inputs.min(), outputs.min()) >= (1, 1)
    inputs, outputs = within_context(np.array([10**9]), np.array([1]), 1000)
    assert (inputs.tolist(), outputs.tolist()) == ([999], [1])
    inputs, outputs = within_context(np.array([10]), np.array([50]), 1)
    assert (inputs.tolist(), outputs.tolist()) == ([1], [1])


def test_exact_traffic_has_the_rate_and_the_mean_lengths_of_the_workload():
    requests = st.Workload(input_tokens=1000, output_tokens=201, input_spread=0.5, output_spread=0.5)
    exact, drawn = (workload_traffic(requests, 4.0, 500, seed=3, exact=exact) for exact in (True, False))
    assert exact.rate == pytest.approx(4.0)
    assert (np.mean(exact.inputs), np.mean(exact.outputs)) == pytest.approx((1000, 201), rel=2e-3)
    assert drawn.rate != pytest.approx(4.0, rel=1e-3)
    assert np.mean(drawn.inputs) != pytest.approx(1000, rel=2e-3)
    cut = workload_traffic(requests, 4.0, 500, seed=3, longest=900)
    assert 899 <= (cut.inputs + cut.outputs).max() <= 900


POOL = SimulatedPool(role="serve", layout=Layout(dp=4), batch=30, max_num_seqs=42, chunk=512)
VLLM, TRTLLM = map(st.load_engine, ("vllm", "trtllm"))
DRAFTS = Speculation(drafts=2, acceptance=1.7, source="given")


def test_a_pool_that_serves_has_slots_for_the_prompts_of_a_step():
    """42 slots on 4 ranks are 11 tokens of each; a chunk of 512 has two prompts of 250 tokens on each rank."""
    found = decode_policy(POOL, 250, VLLM, has_prefill_pool=False)
    assert (found.max_num_seqs, found.max_num_batched_tokens, found.chunk) == (42 + 8, 11 + 512, 512.0)
    assert (found.speculative_tokens, found.acceptance_length, found.route) == (0, 1.0, "least-loaded")
    long = decode_policy(POOL, 1000, VLLM, has_prefill_pool=False, speculation=DRAFTS)
    assert (long.max_num_seqs, long.max_num_batched_tokens) == (42 + 4, 11 * 3 + 512)
    assert (long.speculative_tokens, long.acceptance_length) == (2, 1.7)
    # Where requests wait for slots, there are no others; without chunks a step takes one token of prompts.
    assert decode_policy(replace(POOL, queued=True), 250, VLLM, has_prefill_pool=False).max_num_seqs == 42
    bare = decode_policy(replace(POOL, chunk=0), 250, VLLM, has_prefill_pool=False)
    assert (bare.max_num_seqs, bare.max_num_batched_tokens, bare.chunk) == (42 + 4, 11 + 1, 1.0)


def test_a_pool_that_decodes_computes_lost_caches_again():
    found = decode_policy(POOL, 250, VLLM, has_prefill_pool=True)
    assert (found.max_num_seqs, found.max_num_batched_tokens, found.chunk) == (42, 11 + 2048, math.inf)


def test_a_pool_waits_for_room_or_preempts_as_its_engine():
    found = [decode_policy(POOL, 250, engine, has_prefill_pool=False).when_full for engine in (VLLM, TRTLLM)]
    assert found == ["recompute", "queue"]


def test_a_pool_that_prefills_has_passes_of_its_prompts_and_slots_for_short_ones():
    found = prefill_policy(replace(POOL, batch=9), 250, DRAFTS)
    assert (found.max_num_seqs, found.max_num_batched_tokens, found.speculative_tokens) == (36, 2 * 250, 2)
    one = prefill_policy(replace(POOL, batch=0), 250)
    assert (one.max_num_seqs, one.max_num_batched_tokens, one.speculative_tokens) == (4, 250, 0)


@each("longest, context", [(500, 1201), (5000, 5000)])
def test_the_model_of_a_plan_has_a_context_for_its_requests(longest, context):
    model, system, runs_on = load_plan_inputs(shared(), replace(MODEL, max_context=longest), NODES, "ideal")
    assert (model.max_context, model.layers, system, runs_on.name) == (context, MODEL.layers, NODES, "ideal")


def test_the_system_of_prefill_is_that_of_the_plan():
    pair = replace(made(), prefill_system="hgx-h100", prefill_chips=8)
    assert load_prefill_system(pair).name == "hgx-h100"
    assert load_prefill_system(pair, "hgx-h200").name == "hgx-h200"
    assert load_prefill_system(made()) is None
    with pytest.raises(RangeError, match="one system, toy"):
        load_prefill_system(made(), "hgx-h100")
    with pytest.raises(InputError, match="Give prefill_system="):
        load_prefill_system(replace(pair, prefill_system="nowhere"))


@pytest.mark.parametrize(("seconds", "differs"), [(0.01, False), (0.01 * (1 + 0.9e-6), False), (0.01 * (1 + 1.1e-6), True),
                                                  (0.01 * (1 - 1.1e-6), True)])  # fmt: skip
def test_a_plan_is_refused_whose_step_takes_another_time(monkeypatch, seconds, differs):
    asked = []

    def step(model, system, **given):
        asked.append(given)
        return SimpleNamespace(total=seconds)

    monkeypatch.setattr(plan_as_traffic, "drafted_step", step)
    plan = replace(made(), speculation=DRAFTS)
    pool = replace(plan.pools[0], step=SimpleNamespace(total=0.01))
    loaded = SimpleNamespace(name="x")
    if differs:
        with pytest.raises(InputError, match="a serve step takes "):
            plan_as_traffic._check(plan, pool, loaded, loaded, loaded)
    else:
        plan_as_traffic._check(plan, pool, loaded, loaded, loaded)
    assert asked == [{"layout": pool.layout, "engine": loaded, "drafts": 2, "batch": 8, "context": 1100.5}]
