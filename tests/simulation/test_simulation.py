"""The simulator obeys queueing theory, conserves requests, reads traces, and says what is wrong with input."""

from __future__ import annotations

import csv
import itertools
import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba", reason="the simulator needs the extra 'simulate'")

from engine_cross_validation import WAITS_DEVIATIONS, WAITS_USUAL, weights

import steptime as st
from steptime.catalog.hardware_loading import load_system
from steptime.errors import DataFileError, Impossible, InputError, RangeError
from steptime.models.model_loading import load_model
from steptime.physics.chip_memory import memory_per_chip
from steptime.physics.engine import label_values, load_engine, with_constants, with_launches
from steptime.physics.engine_parameters import RUN_WAITS
from steptime.physics.layout import Layout
from steptime.physics.speculative_step import drafted_step
from steptime.physics.step import mixed_step
from steptime.planning.plan_as_traffic import workload_traffic
from steptime.planning.plan_replay import replay_pools
from steptime.planning.steady_state import aggregated
from steptime.simulation import event_loop
from steptime.simulation.loop_state import (
    ATTENTION_BY_RANK,
    BUSY,
    CONTEXT_BY_RANK,
    DONE,
    REJECTED,
    SEAT_SECONDS,
    TOKEN_STEPS,
    TOKENS_BY_RANK,
    new_replicas,
)
from steptime.simulation.max_rate import highest_rate, meets, rates
from steptime.simulation.prefix_cache import Cache, Tier, use_cache
from steptime.simulation.replica_pools import PORTION, serve, serve_disaggregated, serve_disaggregated_closed, serve_tiers
from steptime.simulation.run_metrics import OVERLOADED, SATURATED, STABLE, answers, inter_token_percentiles
from steptime.simulation.scheduling_policy import Policy
from steptime.simulation.simulation_result import write_chrome_trace, write_requests
from steptime.simulation.simulator import kv_room, pool_server, simulate, user_visible_times
from steptime.simulation.step_time_model import Pace, linear_pace, sample_pace
from steptime.validation.ttft_fit import closed_loops
from steptime.validation.ttft_fit import fit as fit_first_tokens
from steptime.workload.trace_files import read_trace
from steptime.workload.traffic import Lengths, Traffic, closed_loop, merged, open_loop, scaled, with_sessions
from steptime.workload.workload import Workload
from tests.conftest import CHOICE_ALONE, each, every
from tests.planning.cases import equal_requests
from tests.simulation import reference_loop

TRACES = Path(__file__).parents[3] / "shared/data/traces"
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not beside this checkout")


def poisson(rate, n, inputs, outputs, seed=1):
    arrival = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, n))
    return Traffic(arrival=arrival, inputs=np.asarray(inputs), outputs=np.asarray(outputs))


# --- queueing theory ----------------------------------------------------------------------------------------------------


def constant_steps(seats, step):
    """Every step takes as long, whatever is in it: with one token a step a seat is a server."""
    return Pace(decode=np.r_[0.0, np.full(seats, step)], context=np.zeros(seats + 1), rows=np.array([0.0] + [step] * 4096))


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_one_seat_is_an_md1_queue(load):
    n = 200_000
    traffic = poisson(load, n, np.full(n, 1), np.full(n, 1))
    found, _, _ = serve(traffic, Policy(max_num_seqs=1), constant_steps(1, 1.0))
    wait = np.mean(found["scheduled"] - found["arrival"])
    assert wait == pytest.approx(load / (2 * (1 - load)), rel=0.03)  # Pollaczek-Khinchine


def test_one_seat_with_random_lengths_is_an_mg1_queue():
    n, load = 300_000, 0.7
    outputs = np.random.default_rng(3).geometric(0.1, n)
    traffic = poisson(load / outputs.mean(), n, np.full(n, 1), outputs)
    found, _, _ = serve(traffic, Policy(max_num_seqs=1), constant_steps(1, 1.0))
    rate = load / outputs.mean()
    expected = rate * np.mean(outputs.astype(float) ** 2) / (2 * (1 - load))
    assert np.mean(found["scheduled"] - found["arrival"]) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(("servers", "load"), [(4, 0.7), pytest.param(16, 0.9, marks=pytest.mark.slow)])
def test_many_seats_with_small_steps_are_an_mmc_queue(servers, load):
    n, mean = 300_000, 400
    random = np.random.default_rng(5)
    outputs = np.maximum(1, np.rint(random.exponential(mean, n))).astype(int)
    rate = load * servers / outputs.mean()
    traffic = poisson(rate, n, np.full(n, 1), outputs, seed=6)
    found, _, _ = serve(traffic, Policy(max_num_seqs=servers), constant_steps(servers, 1.0))
    offered = load * servers
    terms = [offered**k / math.factorial(k) for k in range(servers)]
    last = offered**servers / math.factorial(servers) / (1 - load)
    erlang = last / (sum(terms) + last)
    expected = erlang * mean / (servers * (1 - load))
    wait = np.mean(found["scheduled"] - found["arrival"]) - 0.5  # to the next step
    assert wait == pytest.approx(expected, rel=0.08)


@each("kind", ["continuous", "prefill-first", "static", "train"])
@each("kv", [math.inf, 4000])
def test_littles_law_and_conservation(kind, kv):
    random = np.random.default_rng(7)
    n = 3000
    traffic = poisson(40, n, random.integers(1, 300, n), random.integers(1, 200, n))
    policy = Policy(kind=kind, max_num_seqs=32, kv_tokens=kv, interval=0.02, max_num_batched_tokens=512)
    pace = linear_pace(step=0.004, sequence=1e-4, context=1e-8, token=1e-5, max_num_seqs=32)
    found, _rules, pool = serve(traffic, policy, pace)
    assert set(found["status"]) == {DONE}
    assert np.all(found["arrival"] <= found["scheduled"])
    assert np.all(found["scheduled"] < found["first"])
    assert np.all(found["first"] <= found["finish"])
    assert np.all((found["first"] < found["finish"]) == (found["outputs"] > 1))
    # Sequence-seconds of the slots, counted by the loop and summed over requests.
    counted, summed = pool.seconds[:, SEAT_SECONDS].sum(), (found["finish"] - found["scheduled"]).sum()
    if kind != "static" and not found["preempted"].sum():
        assert counted == pytest.approx(summed, rel=1e-9)
    elif kind == "static":  # those who are done keep their seats until the batch is
        assert counted >= summed * (1 - 1e-9)
    if kind in ("continuous", "prefill-first"):  # work conservation: the server is idle only while nobody is there
        span = found["finish"].max() - pool.seconds[0, BUSY]
        start = np.sort(found["arrival"])
        ends = np.sort(found["finish"])
        idle = start[0] + sum(max(0.0, start[k] - ends[k - 1]) for k in range(1, n) if start[k] > ends[k - 1])
        assert span == pytest.approx(idle, abs=1e-6)


def test_train_waits_twice_the_interval_at_worst_and_one_and_a_half_in_the_mean():
    n, interval = 50_000, 0.02
    traffic = poisson(200, n, np.full(n, 64), np.full(n, 1))
    policy = Policy(kind="train", interval=interval, max_num_seqs=256, max_num_batched_tokens=1 << 20)
    found, _, _ = serve(traffic, policy, linear_pace(step=1e-3, token=1e-7, max_num_seqs=256))
    ttft = found["first"] - found["arrival"]
    assert ttft.max() <= 2 * interval * (1 + 1e-6)
    assert ttft.mean() == pytest.approx(1.5 * interval, rel=0.01)
    assert np.allclose(found["first"] / interval, np.rint(found["first"] / interval), atol=1e-5)


# --- policies -----------------------------------------------------------------------------------------------------------


def pace_for(seats):
    return linear_pace(step=0.005, sequence=5e-5, context=2e-9, token=2e-5, max_num_seqs=seats)


def test_fast_tier_waits_less_and_slow_tier_more_on_one_pool():
    fast = open_loop(4, 2000, Lengths(mean=300), Lengths(mean=200), seed=1)
    slow = open_loop(30, 15000, Lengths(mean=300), Lengths(mean=200), seed=2)
    found, _, _ = serve(merged([fast, slow]), Policy(max_num_seqs=32), pace_for(32))
    alone, _, _ = serve(replace(merged([fast, slow]), rank=np.zeros(0, dtype=int)), Policy(max_num_seqs=32), pace_for(32))
    ttft, mixed = found["first"] - found["arrival"], alone["first"] - alone["arrival"]
    assert ttft[found["rank"] == 0].mean() < 0.2 * mixed.mean()
    assert ttft[found["rank"] == 1].mean() >= mixed.mean()


def test_tiers_on_pools_of_their_own():
    """A fast pool with few seats is faster for each user; the two pools do not touch each other."""
    fast = open_loop(4, 1000, Lengths(mean=300), Lengths(mean=200), seed=1)
    slow = open_loop(20, 5000, Lengths(mean=300), Lengths(mean=200), seed=2)
    found, used = serve_tiers(
        merged([fast, slow]), [(Policy(max_num_seqs=8), pace_for(64), 1), (Policy(max_num_seqs=64), pace_for(64), 2)]
    )
    alone, _, _ = serve(fast, Policy(max_num_seqs=8), pace_for(64))
    assert np.array_equal(found["finish"][found["rank"] == 0], alone["finish"])
    assert set(found["replica"][found["rank"] == 1]) == {1, 2}
    slos = (st.Slo(tpot=1.01 * (0.005 + 8 * 5e-5) + 0.01), st.Slo(tpot=1e-6))
    by_class = answers(merged([fast, slow]), found, used, slo=slos)
    assert [c.rank for c in by_class.classes] == [0, 1]
    assert by_class.classes[0].tpot.mean < by_class.classes[1].tpot.mean
    assert by_class.classes[0].within_limits > 0.9
    assert by_class.classes[1].within_limits == 0
    assert by_class.within_limits == pytest.approx(by_class.classes[0].within_limits / 6)
    with pytest.raises(RangeError, match="one per class"):
        serve_tiers(merged([fast, slow]), [(Policy(max_num_seqs=8), pace_for(64), 1)])


def test_continuous_batching_beats_static_and_prefill_first_trades_tpot_for_ttft():
    traffic = open_loop(25, 5000, Lengths(mean=400), Lengths(mean=100, shape="uniform", spread=0.9))
    found = {}
    for kind in ("continuous", "prefill-first", "static"):
        policy = Policy(kind=kind, max_num_seqs=64, max_num_batched_tokens=512)
        requests, rules, pool = serve(traffic, policy, pace_for(64))
        found[kind] = answers(traffic, requests, [(rules, pool)], slo=st.Slo())
    assert found["continuous"].end_to_end.mean < found["static"].end_to_end.mean
    assert found["prefill-first"].ttft.mean < found["continuous"].ttft.mean
    assert found["prefill-first"].inter_token.p99 > found["continuous"].inter_token.p50


def test_drafts_shorten_what_they_should():
    traffic = open_loop(1, 300, Lengths(mean=100), Lengths(mean=121))
    plain, _, _ = serve(traffic, Policy(max_num_seqs=16), pace_for(16))
    drafted, _, _ = serve(traffic, Policy(max_num_seqs=16, speculative_tokens=3, acceptance_length=2.5), pace_for(16))
    ratio = np.mean(plain["finish"] - plain["first"]) / np.mean(drafted["finish"] - drafted["first"])
    assert ratio == pytest.approx(2.5, rel=0.03)


def test_replicas_share_the_load_and_least_loaded_is_no_worse():
    traffic = open_loop(
        88, 20000, Lengths(mean=300, shape="lognormal", spread=1.5), Lengths(mean=150, shape="lognormal", spread=1.5)
    )
    waits = {}
    for route in ("round-robin", "least-loaded"):
        found, _, _pool = serve(traffic, Policy(max_num_seqs=24, route=route), pace_for(24), replicas=4)
        assert set(found["replica"]) == {0, 1, 2, 3}
        waits[route] = np.mean(found["first"] - found["arrival"])
    assert waits["least-loaded"] < waits["round-robin"]
    one, _, _ = serve(replace(traffic, arrival=traffic.arrival * 4), Policy(max_num_seqs=24), pace_for(24))
    assert waits["round-robin"] == pytest.approx(np.mean(one["first"] - one["arrival"]), rel=0.5)


def test_separate_pools_keep_prefill_out_of_decode():
    traffic = open_loop(20, 4000, Lengths(mean=2000), Lengths(mean=100))
    pool = (Policy(max_num_seqs=64), pace_for(64), 1)
    found, _ = serve_disaggregated(traffic, pool, pool, lambda rows: 0.01 + 0.0 * rows["inputs"])
    together, _, _ = serve(traffic, Policy(max_num_seqs=64), pace_for(64), replicas=2)
    assert set(found["status"]) == {DONE}

    def tpot(q):
        return np.mean((q["finish"] - q["first"]) / (q["outputs"] - 1))

    assert tpot(found) < tpot(together)
    assert np.min(found["finish"] - found["first"]) > 0.01 + 99 * 0.005


def test_a_decode_pool_that_cannot_keep_up_is_overloaded(llama):
    """Prompts are read at once, but caches wait for a seat: that wait is neither TTFT nor hidden."""
    given = {"prefill": st.Layout(replicas=4), "policy": Policy(max_num_seqs=16), "engine": load_engine("vllm")}
    found = simulate(*llama, open_loop(100, 4000, Lengths(mean=100), Lengths(mean=1000)), **given)
    a = found.answers
    assert a.verdict == OVERLOADED
    assert a.queue > 100
    assert a.ttft.p99 < 1
    assert np.max(found.timeline["waiting"]) > 1000
    lengths = {"inputs": Lengths(mean=100), "outputs": Lengths(mean=1000)}
    best = highest_rate(
        rates(*llama, lambda rate, n: open_loop(rate, n, **lengths), requests=500, **given), slo=st.Slo(), percentile="p90"
    )
    assert best.rate < 1.1 * 16 / (999 * a.inter_token.p50)


def test_the_prefix_cache_is_that_of_the_replicas_that_read_prompts(llama):
    lengths = Lengths(mean=2000), Lengths(mean=100)
    traffic = with_sessions(open_loop(20, 1000, *lengths), prefixes=100, prefix_tokens=1900)
    cache = Cache(tiers=(Tier(name="hbm", capacity=8e9, bandwidth=1e12),))

    def rate(readers, servers, route="round-robin"):
        found = simulate(
            *llama, traffic, layout=st.Layout(replicas=servers), cache=cache, policy=Policy(route=route),
            prefill=st.Layout(replicas=readers) if readers else None,
        engine="ideal")  # fmt: skip
        if route == "prefix-aware":
            assert np.array_equal(found.requests["replica"], found.cache.route)
        return found.cache.hit_rate

    assert rate(1, 8) == rate(0, 1)
    assert rate(8, 1) == rate(0, 8)
    assert rate(4, 2, "prefix-aware") == rate(0, 4, "prefix-aware") > rate(4, 2)
    for bad in (Policy(route="least-loaded"), Policy(route="prefix-aware")):
        clients = replace(traffic, clients=8 if bad.route == "prefix-aware" else 0, arrival=np.zeros(1000))
        with pytest.raises(RangeError, match=f"cache: cannot be combined with {bad.route} routing"):
            simulate(*llama, clients, cache=cache, policy=bad, engine="ideal")


def test_a_full_cache_queues_or_preempts():
    traffic = open_loop(20, 2000, Lengths(mean=500), Lengths(mean=500))
    for when, some in (("recompute", True), ("queue", False)):
        found, _, _ = serve(traffic, Policy(max_num_seqs=64, kv_tokens=10_000, when_full=when), pace_for(64))
        assert set(found["status"]) == {DONE}
        assert bool(found["preempted"].sum()) is some


def test_prefix_cache_saves_prefill_tier_by_tier():
    traffic = with_sessions(open_loop(5, 2000, Lengths(mean=1024), Lengths(mean=32)), prefixes=8, prefix_tokens=768)
    pace = pace_for(64)
    fast = Tier(name="hbm", capacity=16 * 16 * 64 * 1000, bandwidth=1e12)
    slow = Tier(name="host", capacity=1e12, bandwidth=1e10)
    small = use_cache(Cache(tiers=(fast,)), traffic, pace, bytes_per_token=1000)
    both = use_cache(Cache(tiers=(fast, slow)), traffic, pace, bytes_per_token=1000)
    assert 0 < small.hit_rate < both.hit_rate <= 0.75
    assert both.hit_rate == pytest.approx(0.75, abs=0.01)
    assert both.hit_tokens[1] > 0
    assert both.load.sum() == pytest.approx(both.bytes_read[1] / 1e10)
    crawl = use_cache(Cache(tiers=(fast, replace(slow, bandwidth=1e5))), traffic, pace, bytes_per_token=1000)
    assert crawl.recomputed > 0
    assert crawl.load.sum() == 0
    plain, _, _ = serve(traffic, Policy(max_num_seqs=64), pace)
    hit, _, _ = serve(traffic, Policy(max_num_seqs=64), pace, cached=both.cached, load=both.load)
    assert np.mean(hit["first"] - hit["arrival"]) < 0.6 * np.mean(plain["first"] - plain["arrival"])
    aware = use_cache(Cache(tiers=(fast,)), traffic, pace, bytes_per_token=1000, replicas=4, route="prefix-aware")
    spread = use_cache(Cache(tiers=(fast,)), traffic, pace, bytes_per_token=1000, replicas=4)
    assert aware.hit_rate > spread.hit_rate
    assert np.bincount(aware.route).min() > 100


# --- a model on a system ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama():
    return st.load_model("llama-3.1-8b"), st.load_system("hgx-h100")


@pytest.mark.parametrize(
    ("name", "system", "layout", "most"),
    [
        ("llama-3.1-8b", "hgx-h100", st.Layout(), 0.01),
        ("deepseek-v3", "gb200-nvl72", st.Layout(dp=72, ep=72), 0.01),
        ("gpt-oss-120b", "hgx-h100", st.Layout(tp=4), 0.01),
        ("gemma-3-27b", "hgx-h100", st.Layout(tp=2), 0.08),  # windows bend the line through contexts
    ],
)
def test_coefficients_stand_for_steps(name, system, layout, most):
    pace = sample_pace(st.load_model(name), st.load_system(system), layout=layout, engine="ideal")
    assert pace.decode_error < most
    assert pace.mixed_error < most


def test_steps_of_unequal_contexts_take_their_mean_where_a_window_ends_long_ones():
    """Log-normal prompts of 4,000 tokens: a window of 4,096 reads 3,000 tokens of a mean context of 4,500."""
    model, system, batch = st.load_model("mistralai/Mistral-7B-v0.1"), st.load_system("tpu-8t"), 91
    requests = Workload(input_tokens=4000, output_tokens=500, input_spread=1.0, output_spread=1.0)
    traffic = workload_traffic(requests, 1.0, 4000, seed=1, exact=True, longest=32_768)
    given = {"layout": st.Layout(), "engine": st.load_engine("ideal")}
    pace = pool_server(model, system, given["engine"], traffic, given["layout"], Policy(max_num_seqs=128), 1).pace
    # Sequences that decode at a time, in the middle of their output on average.
    contexts = np.repeat(traffic.inputs + traffic.outputs / 2, np.ceil(traffic.outputs / 100).astype(int))
    sums = batch, batch * np.mean(contexts)
    decode = st.decode_step(model, system, batch=batch, context=contexts, **given).total
    assert float(pace.seconds(*sums)) == pytest.approx(np.mean(decode), rel=0.01)
    # The line does not enter the factor on steps with prompts.
    assert np.max(np.abs(pace.joint - 1)) < 0.05


def test_coefficients_count_the_prompts_whose_experts_are_uneven():
    """A pass of 64 prompts of 2,000 tokens on eight ranks takes as long as its step; that of eight prompts is longer."""
    model, system = st.load_model("deepseek-v3"), st.load_system("hgx-h200")
    given = {"layout": st.Layout(dp=8, ep=8, redundant_experts=8), "engine": "vllm"}
    size = given | {"max_num_batched_tokens": 16_000, "contexts": (1, 2500), "has_mixed_steps": False}
    sent = (0, 0, 128_000, 64 * 2000 * 2001 / 2, 128_000)
    for prompts, tokens in ((64, 2000), (8, 16_000)):
        pace = sample_pace(model, system, prompt_tokens=tokens, **size)
        step = st.prefill_step(model, system, prompts=prompts, tokens=tokens, **given)
        without_attention = float(step.total - step.terms["attention"])
        assert float(pace.seconds(*sent[:3])) == pytest.approx(without_attention, rel=0.01)
        assert pace.mixed_error < 0.05
    assert float(sample_pace(model, system, **size).seconds(*sent)) == pytest.approx(float(pace.seconds(*sent)))


def test_passes_of_more_rows_than_the_table_take_the_time_of_their_step():
    """A pass of 1,024 prompts of 580 tokens has 594,000 rows; the last of the 131,072 in the table hold one prompt more."""
    model, system = st.load_model("Qwen/Qwen3-Next-80B-A3B-Instruct"), st.load_system("tpu-v5e")
    given = {"layout": st.Layout(dp=64, ep=64, redundant_experts=64), "engine": "typical"}
    pace = sample_pace(model, system, **given, max_num_seqs=4096, max_num_batched_tokens=9280, prompt_tokens=580, check=False)
    for prompts in (256, 1024):
        step = st.prefill_step(model, system, prompts=prompts, tokens=580, **given)
        expected = float(step.total - step.terms["attention"])
        assert float(pace.seconds(0, 0, prompts * 580)) == pytest.approx(expected, rel=0.03)


def test_coefficients_have_the_attention_of_calls_with_prompts_and_sequences():
    """FlashAttention 2 on an RTX PRO 6000: 128 sequences of 1,000 tokens take twice as long with a prompt of 512 tokens."""
    model, system = st.load_model("llama-3.1-8b"), st.load_system("rtx-pro-6000-8")
    given = {"layout": st.Layout(), "engine": "vllm"}
    pace = sample_pace(model, system, contexts=(500.0, 1500.0), **given)
    assert pace.mixed_error < 0.04
    step = st.mixed_step(model, system, batch=128, context=1000, prompts=1, tokens=512, **given)
    apart = float(st.decode_step(model, system, batch=128, context=1000, **given).terms["attention"])
    apart += float(st.prefill_step(model, system, prompts=1, tokens=512, **given).terms["attention"])
    assert float(step.terms["attention"]) > 1.5 * apart
    ours = mixed_seconds(pace.rates, 128, 128 * 1000.0, 1, 512)
    assert ours == pytest.approx(float(step.total), rel=0.03)


def test_simulation_agrees_with_the_steady_state_of_plan(llama):
    """A closed loop that keeps every seat full decodes at the TPOT of the closed form."""
    model, system = llama
    batch, inputs, outputs = 64, 512, 512
    traffic = closed_loop(batch, 20 * batch, Lengths(mean=inputs), Lengths(mean=outputs, shape="uniform", spread=0.5))
    found = simulate(
        model, system, traffic, policy=Policy(max_num_seqs=batch, max_num_batched_tokens=512 + batch), engine="ideal"
    )
    state = aggregated(
        model, system, equal_requests(input_tokens=inputs, output_tokens=outputs), layout=st.Layout(), batch=batch, chunk=512,
        engine=st.load_engine("ideal"),
    )  # fmt: skip
    assert found.answers.tpot.mean == pytest.approx(float(state.tpot), rel=0.05)
    assert found.answers.batch == pytest.approx(batch, rel=0.05)


def test_a_lone_prompt_waits_for_its_own_attention_group():
    """One prompt on a replica of many attention groups is read by one of them; many prompts share all."""
    model, system, layout = st.load_model("deepseek-v3"), st.load_system("gb200-nvl72"), st.Layout(dp=8, ep=8)
    policy = Policy(max_num_batched_tokens=4096, max_num_seqs=64)
    for prompts in (1, 8):
        traffic = Traffic(arrival=np.zeros(prompts), inputs=np.full(prompts, 4096), outputs=np.full(prompts, 1))
        found = simulate(model, system, traffic, layout=layout, policy=policy, engine="ideal")
        expected = st.prefill_step(model, system, tokens=4096, prompts=prompts, layout=layout, engine="ideal").total
        assert found.answers.ttft.mean == pytest.approx(float(expected), rel=0.05)


def mixed_seconds(rates, batch, context, prompts, tokens):
    """The loop's time of a step in which whole prompts are dealt to the data-parallel ranks in turn."""
    groups = rates.groups
    replicas = new_replicas(Policy().rules(groups=groups), 1)
    of_rank = np.bincount(np.arange(prompts) % groups, minlength=groups)
    attention = rates.pair * tokens * (tokens + 1) / 2 + rates.key * tokens
    replicas.ranks[0, :groups, TOKENS_BY_RANK], replicas.ranks[0, :groups, ATTENTION_BY_RANK] = (
        of_rank * tokens,
        of_rank * attention,
    )
    replicas.ranks[0, :groups, CONTEXT_BY_RANK] = context / groups
    work = prompts * tokens, prompts * attention, prompts
    return event_loop.mixed_time(replicas, rates, 0, batch, context, CONTEXT_BY_RANK, *work, 1)


@pytest.mark.parametrize(("prompts", "engine"), every(3, list(product((1, 2, 4, 8, 9, 13, 16), ("vllm", "ideal")))))
def test_a_step_in_which_some_groups_read_takes_the_time_of_that_step(prompts, engine):
    """Experts see the rows of all groups, all else those of the busiest: the same step as `mixed_step` of so many prompts."""
    model, system, layout = st.load_model("deepseek-v3"), st.load_system("hgx-h200"), st.Layout(dp=8, ep=8)
    batch, context, tokens = 480, 2250.0, 512
    given = {"layout": layout, "engine": st.load_engine(engine)}
    found = sample_pace(
        model, system, max_num_seqs=batch, max_num_batched_tokens=1200, contexts=(2000.0, 2500.0), **given
    ).rates
    took = mixed_seconds(found, batch, batch * context, prompts, tokens)
    expected = st.mixed_step(model, system, batch=batch, context=context, prompts=prompts, tokens=tokens, **given).total
    # Experts of two prompts of one rank are taken as those of one request, and as less even.
    assert took == pytest.approx(float(expected), rel=0.055 if prompts > 8 else 0.045)


@pytest.mark.parametrize(
    ("name", "layout", "drafts", "prompts", "tokens"),
    [
        ("qwen3-8b", st.Layout(), 0, 1, (400, 470, 485)),
        ("qwen3-8b", st.Layout(), 3, 1, (300, 380, 390)),
        ("qwen3-8b", st.Layout(pp=2, microbatches=2), 0, 2, (400, 490, 500)),
        ("qwen3-30b-a3b", st.Layout(dp=4, ep=4), 0, 1, (490, 520)),
        ("qwen3-30b-a3b", st.Layout(dp=4, ep=4), 0, 4, (490, 520)),
    ],
)
def test_steps_of_the_loop_are_launched_where_those_of_the_chips_are(name, layout, drafts, prompts, tokens):
    """vLLM has graphs of up to 512 tokens of a rank; speculative tokens count, and those of other ranks do not."""
    model, system, engine = st.load_model(name), st.load_system("hgx-h100"), st.load_engine("vllm")
    batch, context = 32, 1000.0
    pace = sample_pace(model, system, layout=layout, engine=engine, max_num_seqs=64, contexts=(500.0, 1500.0), query=drafts + 1)
    given = {"batch": batch, "context": context, "prompts": prompts, "drafts": drafts, "layout": layout}
    is_launched = set()
    for size in tokens:
        took = mixed_seconds(pace.rates, batch, batch * context, prompts, size)
        expected, unlimited = (
            float(drafted_step(model, system, tokens=size, **given, engine=runs_on).total)
            for runs_on in (engine, with_launches(engine, 0.0))
        )
        assert took == pytest.approx(expected, rel=0.05)
        is_launched.add(expected > 1.2 * unlimited)
    assert is_launched == {False, True}


def test_prompts_beside_decode_in_a_pipeline_take_the_time_of_that_step():
    """Overheads hide in the cycle of four stages where prompts are long: the sum of both parts is up to 5 % more."""
    model, system, layout = st.load_model("llama-3.3-70b"), st.load_system("hgx-b200"), st.Layout(tp=2, pp=4, microbatches=4)
    engine = with_launches(st.load_engine("vllm"), 0.0)
    pace = sample_pace(
        model, system, layout=layout, engine=engine, max_num_seqs=512, max_num_batched_tokens=2048, contexts=(1000, 1300)
    )
    apart = replace(pace, joint=None)
    for batch, prompts in ((300, 1), (300, 2), (430, 1), (430, 2)):
        step = st.mixed_step(
            model, system, batch=batch, context=1150, prompts=prompts, tokens=1000, layout=layout, engine=engine
        ).total
        rows = prompts * 1000
        sums = batch, batch * 1150.0, rows, rows * 1001 / 2, float(rows)
        assert mixed_seconds(pace.rates, batch, batch * 1150.0, prompts, 1000) == pytest.approx(float(step), rel=0.012)
        assert float(pace.seconds(*sums, prompts)) == pytest.approx(float(step), rel=0.012)
        assert mixed_seconds(apart.rates, batch, batch * 1150.0, prompts, 1000) > 1.005 * float(step)


@pytest.mark.thorough
def test_a_slot_more_or_less_changes_no_pipeline_below_them():
    """Micro-batches are unequal: their times beyond the table must not depend on the place of its last stair."""
    requests = Workload(input_tokens=8367, output_tokens=1774, output_spread=1.5)
    traffic = workload_traffic(requests, 3.6, 400, seed=4, exact=True, longest=131_072)
    runs = [
        simulate(
            st.load_model("llama-3.3-70b"), st.load_system("cs-3"), traffic, layout=st.Layout(pp=8, microbatches=8),
            engine="typical", policy=st.Policy(max_num_seqs=slots, max_num_batched_tokens=1024 + slots, chunk=1024),
        ).requests
        for slots in (56, 57, 64)
    ]  # fmt: skip
    tpots = [float(np.mean((run["finish"] - run["first"]) / np.maximum(run["outputs"] - 1, 1))) for run in runs]
    assert max(tpots) < 1.035 * min(tpots)


@each("batch, rows", [(0, 1), (1, 3), (5, 40), (63, 100), (7, 1000), (900, 12)])
def test_the_factor_of_joint_steps_lies_between_powers_of_two(batch, rows):
    table = np.random.default_rng(3).uniform(0.8, 1.2, (7, 8))
    assert event_loop.joint_factor(table, batch, rows) == pytest.approx(reference_loop._joint(table, batch, rows))
    assert event_loop.joint_factor(table, 3, 7) == pytest.approx(table[2, 3])
    assert event_loop.joint_factor(np.ones((1, 1)), batch, rows) == 1


def test_overload_is_told_and_ends(llama):
    slow = simulate(*llama, open_loop(1e4, 20_000, Lengths(mean=512), Lengths(mean=128)), engine="ideal")
    assert slow.answers.verdict == OVERLOADED
    assert slow.answers.served == 20_000
    assert simulate(*llama, open_loop(5, 2000, Lengths(mean=512), Lengths(mean=128)), engine="ideal").answers.verdict == STABLE


def test_seeds_reproduce(llama):
    def run(seed):
        given = Lengths(mean=300, shape="lognormal", spread=1)
        return simulate(*llama, open_loop(20, 500, given, given, seed=seed), engine="ideal").answers

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_highest_rate_meets_the_limits_and_a_little_more_does_not(llama):
    slo = st.Slo(tpot=0.008, ttft=0.2)
    lengths = {"inputs": Lengths(mean=1024), "outputs": Lengths(mean=128)}
    run = rates(*llama, lambda rate, n: open_loop(rate, n, **lengths), requests=1500, slo=slo, engine="ideal")
    found = highest_rate(run, slo=slo, percentile="p99")
    best, points = found.rate, found.points
    assert best > 1
    assert [p.rate for p in points] == sorted(p.rate for p in points)
    assert all(p.good == (p.rate <= best) for p in points)
    assert run(best).tpot.p99 <= slo.tpot
    assert run(1.1 * best).tpot.p99 > slo.tpot


@pytest.mark.thorough
def test_the_highest_rate_of_many_replicas_is_theirs(llama):
    """A run is long enough to fill a deployment, whatever its size: four times the replicas take four times the rate."""
    lengths = {"inputs": Lengths(mean=256), "outputs": Lengths(mean=256)}

    def best(replicas, requests):
        layout, policy = st.Layout(replicas=replicas), Policy(max_num_seqs=64)
        run = rates(
            *llama,
            lambda rate, n: open_loop(rate, n, **lengths),
            requests=requests,
            layout=layout,
            policy=policy,
            engine="ideal",
        )
        return highest_rate(run, slo=st.Slo(), percentile="p90", tolerance=0.05).rate

    one = best(1, 4000)
    assert best(4, 16_000) == pytest.approx(4 * one, rel=0.05)
    assert best(1, 1) == pytest.approx(one, rel=0.2)


@pytest.mark.thorough
def test_a_highest_rate_holds_in_a_longer_run(llama):
    """What a short run takes for a rate that is kept up is lowered until a long one bears it out."""
    lengths = {"inputs": Lengths(mean=300), "outputs": Lengths(mean=100)}
    run, longer = (
        rates(*llama, lambda rate, n: open_loop(rate, n, **lengths), requests=n, policy=Policy(max_num_seqs=32), engine="ideal")
        for n in (200, 8000)
    )
    quick = highest_rate(run, slo=st.Slo(), percentile="p90").rate
    found = highest_rate(run, slo=st.Slo(), percentile="p90", longer=longer)
    sure, points = found.rate, found.points
    assert 0.8 * quick < sure <= quick
    assert all(p.good for p in points if p.rate <= sure)
    assert longer(sure).verdict != OVERLOADED


@pytest.mark.thorough
def test_a_decode_pool_keeps_its_seats_in_a_replay(llama):
    """With fewer seats caches would wait for one, which counts as time per token."""
    model, system = llama
    workload, slo = st.Workload(input_tokens=2048, output_tokens=256), st.Slo(tpot=1 / 40, ttft=1)
    plan = st.plan(model, system, workload, slo, chips=8, modes=("disaggregated",), **CHOICE_ALONE)
    found = replay_pools(model, system, workload, slo, plan.pools, plan.requests_per_second, engine=load_engine("vllm"))
    assert found.good
    assert found.batch == plan.pools[-1].max_num_seqs > found.planned_batch == plan.pools[-1].batch
    assert found.rate > 0.6 * found.planned_rate


def test_rejected_requests_are_beyond_every_limit(llama):
    traffic = open_loop(2, 400, Lengths(mean=300, shape="lognormal", spread=1), Lengths(mean=20))
    found = simulate(*llama, traffic, policy=Policy(kv_tokens=400), slo=st.Slo(ttft=100), engine="ideal").answers
    assert 0.1 * found.sent < found.rejected < 0.9 * found.sent
    assert found.within_limits == pytest.approx(found.served / found.sent)
    assert found.rejected_why == "larger than a replica's KV cache of 400 tokens"
    assert not meets(found, st.Slo(), "p95")
    assert meets(found, st.Slo(), "p50")
    nothing = simulate(*llama, traffic, policy=Policy(kv_tokens=16), engine="ideal").answers
    assert nothing.verdict == OVERLOADED
    assert nothing.why == "no request can be served: larger than a replica's KV cache of 16 tokens"


def test_a_queue_that_bursts_fill_and_that_empties_again_does_not_grow(llama):
    """What counts is not how many wait at some moment, but whether all are ever served in between."""
    burst = np.concatenate([np.full(200, 40.0 * k) for k in range(10)])
    lengths = {"inputs": np.full(2000, 300), "outputs": np.full(2000, 100)}
    policy = Policy(max_num_seqs=32)
    bursts = simulate(*llama, Traffic(arrival=burst, **lengths), policy=policy, engine="ideal").answers
    assert bursts.verdict == SATURATED
    assert bursts.utilisation < 0.5
    rush = np.concatenate([np.linspace(0, 60, 500), np.linspace(60, 72, 1500)])  # 8 requests/s, then 125
    ends = simulate(*llama, Traffic(arrival=rush, **lengths), policy=policy, engine="ideal").answers
    assert ends.verdict == OVERLOADED
    assert "wait at the last arrival" in ends.why
    steady = simulate(*llama, Traffic(arrival=np.linspace(0, 20, 2000), **lengths), policy=policy, engine="ideal").answers
    assert steady.verdict == OVERLOADED
    assert "the queue grows" in steady.why


def test_time_before_the_queue_is_no_queue(llama):
    """An idle server is stable, however long requests are under way to it."""
    engine = with_constants(load_engine("vllm"), {"seconds_before_queue": 1.0})
    found = simulate(*llama, open_loop(0.1, 50, Lengths(mean=20), Lengths(mean=20)), engine=engine).answers
    assert found.verdict == STABLE
    assert found.wait.mean > 1


@pytest.mark.parametrize(("replicas", "clients"), [(2, 10), (3, 10), (4, 4), (5, 3), (8, 256)])
def test_replicas_share_the_clients_of_a_closed_loop(replicas, clients):
    """Each serves its own: what one replica does with a share of the clients, several do beside each other."""
    n = 40 * clients
    lengths = Lengths(mean=50, shape="uniform", spread=0.9), Lengths(mean=30, shape="uniform", spread=0.9)
    traffic, policy = closed_loop(clients, n, *lengths, seed=2), Policy(max_num_seqs=8)
    found, _, _ = serve(traffic, policy, pace_for(8), replicas=replicas)
    used = min(replicas, clients)
    assert np.array_equal(found["replica"], np.arange(n) % clients % used)
    moves = sorted([(time, 1) for time in found["arrival"]] + [(time, -1) for time in found["finish"]])
    flight = np.cumsum([move for _, move in moves])
    assert np.max(flight) == clients
    for r in range(used):
        mine = found["replica"] == r
        alone = replace(traffic, inputs=traffic.inputs[mine], outputs=traffic.outputs[mine], arrival=traffic.arrival[mine])
        alone = replace(alone, clients=int((np.arange(clients) % used == r).sum()))
        np.testing.assert_array_equal(serve(alone, policy, pace_for(8))[0]["finish"], found["finish"][mine])


def test_a_long_closed_loop_is_served_once():
    """Beyond the portion in which progress is told too, and with requests that are rejected."""
    n, clients = PORTION + 5000, PORTION + 1000
    inputs = np.where(np.arange(n) % 1000 == 7, 0, 20)
    traffic = Traffic(arrival=np.zeros(n), inputs=inputs, outputs=np.full(n, 3), clients=clients)
    found, _, pool = serve(traffic, Policy(max_num_seqs=64), pace_for(64))
    assert set(found["status"]) == {DONE, REJECTED}
    assert (found["status"] == DONE).sum() == (inputs > 0).sum()
    assert pool.seconds[:, TOKEN_STEPS].sum() == 2 * (inputs > 0).sum()


def test_first_tokens_are_seen_late_and_ends_are_not():
    """Clients ask again when an answer ends, so that no client has two requests under way."""
    pace = replace(pace_for(16), answer=10.0)
    traffic = closed_loop(16, 400, Lengths(mean=40, shape="uniform", spread=0.5), Lengths(mean=25, shape="uniform", spread=0.5))
    made = serve(traffic, Policy(max_num_seqs=16), pace)[0]
    found = user_visible_times(made, pace)
    each = (made["finish"] - made["first"]) / (made["outputs"] - 1)
    np.testing.assert_allclose(found["first"] - made["first"], 10 * each)
    np.testing.assert_array_equal(np.sort(found["arrival"])[16:], np.sort(found["finish"])[:-16])


def test_a_static_batch_leaves_when_it_is_full_or_its_patience_ends():
    traffic = Traffic(arrival=np.array([0.0, 1, 2, 3, 50]), inputs=np.full(5, 10), outputs=np.full(5, 5))
    found, _, _ = serve(traffic, Policy(kind="static", max_num_seqs=4, patience=1000), pace_for(4))
    assert found["scheduled"].tolist() == [3, 3, 3, 3, 1050]
    found, _, _ = serve(traffic, Policy(kind="static", max_num_seqs=4, patience=1.5), pace_for(4))
    assert found["scheduled"].tolist() == [1.5, 1.5, 3.5, 3.5, 51.5]


def test_no_train_is_missed_by_rounding():
    """Hundreds of thousands of intervals add up to no departure too many: while trains are not full, none waits for two."""
    step = 0.02
    traffic = open_loop(10, 40_000, Lengths(mean=1), Lengths(mean=10))
    found, _, _ = serve(traffic, Policy(kind="train", max_num_seqs=256, interval=step), constant_steps(256, 0.5 * step))
    assert np.max(found["first"] - found["arrival"]) <= 2 * step * (1 + 1e-6)


def test_who_joins_a_batch_that_is_held_up_waits_for_its_own_part():
    """One sequence decodes while 50 prompts are read: it alone waits for all of them."""
    arrival = np.concatenate([[0.0], np.full(50, 1.0)])
    traffic = Traffic(arrival=arrival, inputs=np.full(51, 100), outputs=np.full(51, 200))
    policy = Policy(kind="prefill-first", max_num_seqs=64, max_num_batched_tokens=100)
    found, _, pool = serve(traffic, policy, pace_for(64))
    whole = np.sum(found["finish"] - found["first"])
    assert inter_token_percentiles([pool]).mean * pool.gaps.sum() == pytest.approx(whole, rel=0.01)


def test_steps_twice_as_slow_are_a_server_twice_as_slow(llama):
    """With arrivals twice as far apart, every time doubles."""
    given = Lengths(mean=300), Lengths(mean=60)
    once = simulate(*llama, open_loop(20, 400, *given, seed=1), engine="ideal").answers
    twice = simulate(*llama, open_loop(10, 400, *given, seed=1), slowness=2.0, engine="ideal").answers
    assert twice.ttft.p99 == pytest.approx(2 * once.ttft.p99, rel=1e-6)
    assert twice.tpot.mean == pytest.approx(2 * once.tpot.mean, rel=1e-6)


@pytest.mark.thorough
def test_a_plan_replayed_keeps_its_limits_at_a_lower_rate(llama):
    model, system = llama
    workload, slo = st.Workload(input_tokens=1024, output_tokens=256), st.Slo(tpot=0.02, ttft=1.0)
    for mode in ("aggregated", "disaggregated"):
        plan = st.plan(model, system, workload, slo, chips=2, modes=(mode,), engine="ideal", **CHOICE_ALONE)
        rate = plan.requests_per_second
        found = replay_pools(model, system, workload, slo, plan.pools, rate, engine=st.load_engine("ideal"), requests=3000)
        assert found.good
        assert found.rate <= plan.requests_per_second
        assert found.rate > 0.4 * plan.requests_per_second
        assert found.simulation.answers.tpot.p90 <= slo.tpot


def loops(model, system, engine, layout=None):  # of one, 16 and 64 clients
    runs = {"concurrency": np.array([1, 16, 64]), "input_tokens": np.array([1024, 1024, 128])}
    runs["requests"] = 10 * runs["concurrency"]
    return closed_loops(
        model, system, layout=layout or st.Layout(), output_tokens=np.array([128, 128, 1024]), engine=engine, **runs
    )


def test_closed_loops_of_many_rows(llama):
    found = loops(*llama, st.load_engine("ideal"))
    ttft = found.ttft(np.zeros(5))
    alone = st.prefill_step(*llama, tokens=1024, engine="ideal").total
    assert ttft[0] == pytest.approx(float(alone), rel=0.02)
    assert ttft[1] > ttft[0]
    assert np.all(found.step > 0)
    room = kv_room(*llama, layout=st.Layout(), engine=st.load_engine("ideal"), context=1000, step_tokens=2048)
    memory = memory_per_chip(*llama, batch=room // 1000, context=1000, step_tokens=2048, engine="ideal")
    assert memory.fits


def test_first_tokens_wait_for_the_host_and_for_steps(llama):
    """Alone, a request waits for its own prompt, its way to the queue and the steps until it is seen, and for nothing else."""
    constants = np.array([0.03, 1e-5, 4.0, 10.0, 0.0])
    engine = with_constants(st.load_engine("ideal"), label_values(RUN_WAITS, constants))
    found = loops(*llama, engine)
    alone = float(st.prefill_step(*llama, tokens=1024, engine="ideal").total)
    assert found.ttft(constants)[0] == pytest.approx(0.03 + 1e-5 * 1024 + alone + 4 * found.step[0], rel=0.02)
    grouped = replace(found, groups=np.full(3, 2))
    late = grouped.ttft(constants) - grouped.ttft(np.array([0.03, 1e-5, 4.0, 0.0, 0.0]))
    np.testing.assert_allclose(late, 10 * grouped.step)
    traffic = closed_loop(1, 10, Lengths(mean=1024), Lengths(mean=128))
    seen = simulate(*llama, traffic, engine=engine).answers
    assert seen.ttft.mean == pytest.approx(found.ttft(constants)[0], rel=0.02)
    assert seen.tpot.mean == pytest.approx(found.step[0] * (1 - 4 / 127), rel=0.01)  # the last token is not seen late
    assert seen.wait.mean == pytest.approx(0.03 + 1e-5 * 1024)


def test_the_start_of_a_run_is_in_the_mean_by_the_share_of_requests_that_start_it(llama):
    """Ten requests for each client: a tenth of two seconds, and nothing in the median."""
    found = loops(*llama, st.load_engine("ideal"))
    start = np.array([0.0, 0.0, 0.0, 0.0, 2.0])
    np.testing.assert_allclose(found.ttft(start) - found.ttft(np.zeros(5)), 0.2)
    np.testing.assert_array_equal(found.ttft(start, median=True), found.ttft(np.zeros(5), median=True))


@pytest.mark.thorough
def test_a_set_of_many_runs_counts_as_few(llama):
    """Where most runs are of one set, another set of few is heard too: between what either alone says."""
    parts = [loops(*llama, st.load_engine("ideal"), st.Layout(tp=tp)) for tp in (1, *([2] * 20))]
    says = [np.array([0.02, 3e-6, steps, 2.0, 1.0]) for steps in (2.0, *([8.0] * 20))]
    times = np.concatenate([part.ttft(constants) for part, constants in zip(parts, says, strict=True)])
    none = np.zeros(len(times), dtype=bool)
    sets = np.repeat(["a", "b"], [len(parts[0].queued), sum(len(part.queued) for part in parts[1:])])
    prior = WAITS_USUAL, WAITS_DEVIATIONS
    alike = fit_first_tokens(parts, times, none, *prior, weights(sets))
    assert alike[2] < fit_first_tokens(parts, times, none, *prior)[2]
    np.testing.assert_allclose(weights(np.array(["a"] * 40 + ["b"]))[[0, 40]], [0.5, 1.0])


def test_the_fit_of_first_tokens_finds_what_made_them(llama):
    """Constants that made the times are found again, with one run in six off by a factor of ten."""
    truth = np.array([0.02, 6e-6, 4.0, 2.0, 1.0])
    parts = [loops(*llama, st.load_engine("ideal"), st.Layout(tp=tp)) for tp in (1, 2, 4, 8)]
    times = np.concatenate([part.ttft(truth) for part in parts])
    times[::6] *= 10
    found = fit_first_tokens(parts, times, np.zeros(len(times), dtype=bool), WAITS_USUAL, WAITS_DEVIATIONS)
    np.testing.assert_allclose(np.concatenate([p.ttft(found) for p in parts])[1:6], times[1:6], rtol=0.05)


# --- files and wrong input ----------------------------------------------------------------------------------------------


@needs_traces
def test_azure_hour(llama):
    traffic = read_trace(TRACES / "AzureLLMInferenceTrace_conv_2023.csv")
    assert len(traffic) == 19_366
    assert (traffic.inputs[0], traffic.outputs[0]) == (374, 44)
    assert traffic.arrival[1] == pytest.approx(4.314579)
    found = simulate(*llama, traffic, engine="ideal")
    assert found.answers.served + found.answers.rejected == 19_366
    assert scaled(traffic, 2).rate == pytest.approx(2 * traffic.rate)


@needs_traces
def test_mooncake_hashes_become_hits(llama):
    traffic = read_trace(TRACES / "mooncake_conversation_trace.jsonl", max_requests=3000)
    assert traffic.starts[1] == 14
    tiers = Cache(tiers=(Tier(name="hbm", capacity=1e15, bandwidth=1e12),))
    found = simulate(
        *llama, traffic, layout=st.Layout(replicas=8), policy=Policy(route="prefix-aware"), cache=tiers, engine="ideal"
    )
    assert 0.05 < found.cache.hit_rate < 0.6
    assert found.answers.served == 3000


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n1,5,5\n0.5,5,5\n", "a.csv:3: goes back in time"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n1,5,5\n2,x,5\n", "a.csv:3: ContextTokens: 'x'"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n1,5,5\n2,5\n", "a.csv:3: needs 3 columns"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,5,5\n", "a.csv:2: TIMESTAMP: 'yesterday'"),
        ("a.csv", "time,in,out\n1,5,5\n", "a.csv:2: has no time"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "contains no requests"),
        ("a.jsonl", '{"timestamp": 0, "input_length": 5, "output_length": 5}\n{"timestamp"', "a.jsonl:2: is not valid JSON"),
        ("a.jsonl", '{"timestamp": 0, "input_length": -5, "output_length": 5}\n', "a.jsonl:1: input_length: -5"),
        ("a.jsonl", '{"timestamp": NaN, "input_length": 5, "output_length": 5}\n', "a.jsonl:1: timestamp"),
        ("a.jsonl", "[1, 2]\n", "a.jsonl:1: is not a JSON object"),
    ],
)
def test_broken_traces_name_the_line(tmp_path, name, text, says):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(DataFileError, match=says.replace("(", r"\(")):
        read_trace(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": null}', "a:1: hash_ids: None is not a list"),
        ('{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2.5]}', "is not a list of whole numbers"),
        ('{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, true]}', "is not a list of whole numbers"),
        (
            '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1]}',
            "1 blocks of 512 tokens do not match 600",
        ),
        ('{"timestamp": 0, "input_length": 1e30, "output_length": 5}', "a:1: input_length: 1e.30 is not a number of tokens"),
        (
            '{"timestamp": 1' + "0" * 400 + ', "input_length": 1, "output_length": 5}',
            "a:1: timestamp: a number of some 400 digits is not a time",
        ),
        ('{"timestamp": true, "input_length": 1, "output_length": 5}', "timestamp: True is not a time"),
        ('{"arrival": 1' + "0" * 5000 + "}", "a:1: is not valid JSON: nested too deep, or a number too long"),
        ('{"arrival": ' + "[" * 100_000, "a:1: is not valid JSON"),
        ('{"conversations": [{"from": "human", "value": "Hi"}]}', "contains conversations as text; count their tokens"),
        ("arrival,input_tokens,output_tokens\n0,5,5\n2024-01-01,5,5", "a:3: arrival: '2024-01-01' is a date, unlike"),
        ("\x1f\x8b\x08", "is compressed .gzip.; decompress it first"),
    ],
)
def test_odd_traces_get_one_message(tmp_path, text, says):
    path = tmp_path / "a"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DataFileError, match=says):
        read_trace(path)


def test_traces_as_spreadsheets_and_other_zones_write_them(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\ufefftimestamp,contexttokens,generatedtokens\n2024-01-01 18:00:00+02:00,5,6\n2024-01-01 16:00:01Z,7,8\n")
    found = read_trace(path)
    assert found.arrival.tolist() == [0, 1]
    assert (found.inputs.tolist(), found.outputs.tolist()) == ([5, 7], [6, 8])
    path.write_text(
        '{"timestamp": 0, "input_length": 6, "output_length": 5}\n{"timestamp": 500, "input_length": 6, "output_length": 5}'
    )
    assert read_trace(path).arrival.tolist() == [0, 0.5]  # milliseconds, as Mooncake names them
    with pytest.raises(DataFileError, match="is a folder"):
        read_trace(tmp_path)


def test_what_cannot_be_served_is_rejected_and_counted():
    traffic = Traffic(arrival=np.arange(5.0), inputs=np.array([10, 0, 10, 5000, 10]), outputs=np.array([10, 5, 0, 5, 400]))
    found, _, _ = serve(traffic, Policy(max_num_seqs=4, kv_tokens=1000, max_context=300), pace_for(4))
    assert found["status"].tolist() == [DONE, REJECTED, REJECTED, REJECTED, REJECTED]
    clients = replace(traffic, arrival=np.zeros(5), clients=2)
    found, _, _ = serve(clients, Policy(max_num_seqs=4, kv_tokens=1000, max_context=300), pace_for(4))
    assert (found["status"] == REJECTED).sum() == 4


@each(
    "make, says",
    [
        (lambda: Policy(kind="sorted"), "unknown policy"),
        (lambda: Policy(kind="train"), "interval"),
        (lambda: Policy(max_num_seqs=0), "max_num_seqs"),
        (lambda: Policy(acceptance_length=3, speculative_tokens=1), "between 1 and"),
        (lambda: Lengths(mean=0), "at least 1 token"),
        (lambda: Lengths(mean=5, shape="normal"), "unknown length"),
        (lambda: open_loop(0, 5, Lengths(mean=5), Lengths(mean=5)), "greater than 0"),
        (lambda: closed_loop(0, 5, Lengths(mean=5), Lengths(mean=5)), "concurrency"),
        (lambda: Cache(tiers=()), "at least one tier"),
    ],
)
def test_wrong_settings_are_told(make, says):
    with pytest.raises(InputError, match=says):
        make()


def test_no_room_for_the_model_is_told(llama):
    with pytest.raises(Impossible, match="leave no room"):
        simulate(st.load_model("llama-3.1-70b"), llama[1], open_loop(1, 10, Lengths(mean=10), Lengths(mean=10)), engine="ideal")


@pytest.mark.parametrize("clients", [1, 7])
def test_a_closed_loop_on_separate_pools(llama, clients):
    """A client asks again the moment its answer ends, so that as many requests as clients are on their way, never more."""
    n = 8 * clients
    lengths = (Lengths(mean=700, shape="uniform", spread=0.2), Lengths(mean=60, shape="uniform", spread=0.2))
    found = simulate(*llama, closed_loop(clients, n, *lengths), prefill=st.Layout(), engine="ideal").requests
    assert set(found["status"]) == {DONE}
    np.testing.assert_array_equal(np.sort(found["arrival"][clients:]), np.sort(found["finish"])[: n - clients])
    moves = sorted([(time, 1) for time in found["arrival"]] + [(time, -1) for time in found["finish"]])
    assert max(np.cumsum([move for _, move in moves])) == clients
    assert np.all(found["first"] > found["arrival"])
    assert np.all(found["finish"] > found["first"])


@pytest.mark.thorough
def test_requests_as_parquet(llama, tmp_path):
    """What a parquet file holds is what the run says, column by column."""
    parquet = pytest.importorskip("pyarrow.parquet")
    found = simulate(*llama, open_loop(20, 50, Lengths(mean=300), Lengths(mean=40)), engine="ideal")
    write_requests(tmp_path / "requests.parquet", found.requests)
    table = parquet.read_table(tmp_path / "requests.parquet")
    assert table.num_rows == 50
    names = {"arrival_s": "arrival", "first_s": "first", "finish_s": "finish", "input_tokens": "inputs", "replica": "replica"}
    for column, name in names.items():
        np.testing.assert_array_equal(table[column].to_numpy(), found.requests[name])
    assert set(table["status"].to_pylist()) == {"served"}


def test_files(tmp_path, llama):
    found = simulate(*llama, open_loop(5, 50, Lengths(mean=100), Lengths(mean=20)), engine="ideal")
    write_requests(tmp_path / "r.csv", found.requests)
    rows = list(csv.DictReader((tmp_path / "r.csv").read_text().splitlines()))
    assert len(rows) == 50
    assert float(rows[7]["finish_s"]) == found.requests["finish"][7]
    write_chrome_trace(tmp_path / "t.json", found)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {e["name"] for e in events} >= {"prefill", "decode", "kv", "waiting"}
    assert found.to_dict()["answers"]["served"] == 50
    with pytest.raises(InputError, match=r"\.csv or \.parquet"):
        write_requests(tmp_path / "r.txt", found.requests)


@each("clients", [1, 2, 7])
def test_a_closed_loop_on_separate_pools_is_what_open_arrivals_at_its_times_are(clients):
    """The fixed point: sent at the times found, as open traffic, requests end when the next ones were sent."""
    shape = {"shape": "lognormal", "spread": 1.0}
    pool = (Policy(max_num_seqs=4), pace_for(4), 1)
    traffic = closed_loop(clients, 10 * clients, Lengths(mean=1000, **shape), Lengths(mean=200, **shape), seed=3)

    def sent(rows):
        return 0.0123 + 1e-7 * rows["inputs"]

    found, _ = serve_disaggregated_closed(traffic, pool, pool, sent)
    assert set(found["status"]) == {DONE}
    ends = np.sort(found["finish"])
    np.testing.assert_array_equal(np.sort(found["arrival"])[clients:], ends[: len(ends) - clients])
    again, _ = serve_disaggregated(replace(traffic, arrival=found["arrival"], clients=0), pool, pool, sent)
    np.testing.assert_array_equal(again["finish"], found["finish"])


@pytest.mark.parametrize(
    ("engine", "layout", "sizes"),
    [
        ("trtllm", Layout(), (10,)),
        ("trtllm", Layout(tp=8), (10,)),
        ("trtllm", Layout(tp=4, pp=2, microbatches=2), (10,)),
        ("vllm", Layout(), (10, 508, 560)),
        ("vllm", Layout(tp=8), (10, 508, 560)),
        ("vllm", Layout(tp=4, pp=2, microbatches=2), (1120,)),
    ],
)
def test_step_times_have_the_launches_of_the_host(engine, layout, sizes):
    """Mixed steps on several chips are bound by the host (vLLM: above 512 tokens), which sums of coefficients cannot tell."""
    model, system = load_model("llama-3.1-8b"), load_system("hgx-h100")
    pace = sample_pace(model, system, layout=layout, engine=engine, max_num_seqs=64, contexts=(50, 5000))
    assert pace.mixed_error < 0.05
    for batch, tokens in itertools.product((0, 7, 64), sizes):
        exact = mixed_step(model, system, engine=engine, layout=layout, batch=batch, context=100, prompts=1, tokens=tokens)
        found = pace.seconds(batch, 100 * batch, tokens, tokens * (tokens + 1) / 2, tokens, 1)
        assert float(found) == pytest.approx(float(exact.total), rel=0.05)
