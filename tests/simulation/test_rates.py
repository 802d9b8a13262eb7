"""The highest rate of a trace and of a closed loop: laws, and the answer run once more."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import steptime as st
from steptime.errors import RangeError
from steptime.simulation.max_rate import find_clients, find_rate, find_scale, highest_load, run_until_settled
from steptime.simulation.prefix_cache import Cache, Tier
from steptime.workload.traffic import repeated_share, scaled, with_sessions
from tests.conftest import CHOICE_ALONE, each

SIZES = {"inputs": st.Lengths(mean=512), "outputs": st.Lengths(mean=64)}
LIMITS = st.Slo(ttft=0.3, tpot=0.02)


@pytest.fixture(scope="module")
def things():
    return st.load_model("llama-3.1-8b"), st.load_system("hgx-h100")


@pytest.fixture(scope="module")
def given():
    return {"slo": LIMITS, "percentile": "p95", "layout": st.Layout(), "engine": st.load_engine("vllm")}


def bursty(n=1500, rate=6.0):
    return st.open_loop(rate, n, st.Lengths(mean=512, shape="lognormal", spread=1), SIZES["outputs"], kind="gamma", burst=8)


# --- the search ---------------------------------------------------------------------------------------------------------


@each("true", [1, 2, 3, 17, 40, 49])
@each("start", [1, 8, 50])
def test_a_whole_number_is_found_from_anywhere(true, start):
    tried = []

    def good(load):
        tried.append(load)
        return load <= true

    assert highest_load(good, start=start, tolerance=0.02, is_integer=True) == true
    assert all(load == int(load) >= 1 for load in tried)
    assert len(tried) == len(set(tried))


def test_nothing_holds_is_zero():
    assert highest_load(lambda load: False, start=8, tolerance=0.02, is_integer=True) == 0
    assert highest_load(lambda load: False, start=1.0, tolerance=0.02) == 0


# --- traces -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def of_trace(things, given):
    return bursty(), find_scale(*things, bursty(), **given)


def test_a_trace_is_scaled_in_time_and_keeps_lengths_and_bursts(things, given, of_trace):
    trace, found = of_trace
    assert found.rate == pytest.approx(found.scale * trace.rate)
    assert found.scale not in (0, 1)
    again = st.simulate(*things, scaled(trace, found.scale), **given)
    assert again.limits.is_met
    assert (found.best.ttft, found.best.requests) == (again.answers.ttft.p95, again.answers.sent)
    more = st.simulate(*things, scaled(trace, 1.05 * found.scale), **given)
    assert not more.limits.is_met
    assert not found.cut_short
    assert found.clients is None


def test_bursts_cost_rate(things, given, of_trace):
    """The same mean lengths, evenly drawn, come at a higher rate: what is lost when a trace is told by its means."""
    trace, found = of_trace
    even = replace(trace, arrival=np.linspace(0, float(trace.arrival[-1]), len(trace)))
    assert find_scale(*things, even, **given).rate > 1.1 * found.rate


def test_the_answer_does_not_depend_on_how_fast_the_trace_is_to_begin_with(things, given, of_trace):
    trace, found = of_trace
    faster = find_scale(*things, scaled(trace, 3.0), **given)
    assert faster.rate == pytest.approx(found.rate, rel=0.03)
    assert faster.scale == pytest.approx(found.scale / 3, rel=0.03)


def test_a_trace_that_is_too_short_to_tell_says_so(things, given):
    """Sixteen requests never fill a server, however fast they come."""
    found = find_scale(*things, bursty(16), **(given | {"slo": st.Slo(ttft=10.0)}))
    assert found.cut_short
    assert next(p for p in found.points if p.rate > found.rate).why == "not settled"


def test_a_run_in_which_replicas_fill_is_repeated_though_its_queue_grows():
    """Requests take 0.5 s besides waits of 0.1 s (a run of 1 s), and of 40 s after 16 times as many."""
    sent = []

    def run(requests):
        sent.append(len(requests))
        seconds, wait = len(requests) / 100, 0.1 if len(sent) < 3 else 40.0
        lived = SimpleNamespace(p50=wait + 0.5)
        return SimpleNamespace(answers=SimpleNamespace(
            verdict="OVERLOADED", served=1, arriving=seconds, end_to_end=lived, wait=SimpleNamespace(p50=wait),
        ))  # fmt: skip

    def traffic(rate, count):
        return st.Traffic(arrival=np.arange(count) / rate, inputs=np.full(count, 10), outputs=np.full(count, 10))

    last = run_until_settled(run, traffic, 100.0, 100, 20.0)
    assert sent == [100, 400, 1600, 6400]
    assert last.answers.wait.p50 == 40


@pytest.mark.thorough
def test_a_replay_of_many_replicas_serves_the_rate_that_eight_of_them_serve():
    """8-token outputs on 72 replicas: 4,000 requests end while the replicas fill."""
    deployment = st.plan(
        "gpt-oss-120b", "gb200-nvl72", workload=st.Workload(input_tokens=32_000, output_tokens=8, cached_share=0.99),
        slo=st.Slo(ttft=10.0), percentile="p99", **CHOICE_ALONE,
    )  # fmt: skip
    assert st.replay(deployment).rate == pytest.approx(deployment.requests_per_second)


@pytest.mark.parametrize("n", [1, 2])
def test_a_trace_of_one_moment_has_no_rate(things, given, n):
    moment = st.Traffic(arrival=np.zeros(n), inputs=np.full(n, 10), outputs=np.full(n, 10))
    with pytest.raises(RangeError, match="two or more times"):
        find_scale(*things, moment, **given)


@pytest.mark.thorough
def test_a_prefix_cache_raises_the_rate_of_a_trace(things, given):
    trace = with_sessions(st.open_loop(5, 400, st.Lengths(mean=4096), SIZES["outputs"]), prefixes=4, prefix_tokens=3840)
    cache = Cache(tiers=(Tier(name="hbm", capacity=8e9, bandwidth=1e12),))
    bare, kept = (find_scale(*things, trace, cache=one, **given).rate for one in (None, cache))
    assert kept > 1.5 * bare


@pytest.mark.thorough
def test_separate_pools_have_a_highest_rate_of_a_trace(things, given, of_trace):
    trace, found = of_trace
    apart = find_scale(*things, trace, prefill=st.Layout(replicas=2), **given)
    assert apart.rate > 1.05 * found.rate  # prompts no longer hold up the tokens of others
    assert st.simulate(*things, scaled(trace, apart.scale), prefill=st.Layout(replicas=2), **given).limits.is_met


# --- closed loops -------------------------------------------------------------------------------------------------------


def loop(clients, requests):
    return st.closed_loop(clients, requests, **SIZES)


@pytest.mark.thorough
def test_the_most_clients_hold_and_one_more_does_not(things, given):
    found = find_clients(*things, loop, start=8, **given)
    assert 20 < found.clients < 200
    for clients, met in ((found.clients, True), (found.clients + max(1, found.clients // 40), False)):
        assert st.simulate(*things, loop(clients, 200 * clients), **given).limits.is_met is met
    assert find_clients(*things, loop, start=50, **given).clients == pytest.approx(found.clients, rel=0.03, abs=1)


def test_the_rate_of_clients_is_littles_law(things, given):
    """Each client has one request in flight: clients = rate x time of a request."""
    found = find_clients(*things, loop, start=16, **given)
    one = st.simulate(*things, loop(found.clients, 200 * found.clients), **given).answers
    assert found.rate == pytest.approx(found.clients / one.end_to_end.mean, rel=0.02)
    assert found.scale is None


@pytest.mark.thorough
def test_the_most_clients_of_separate_pools(things, given):
    found = find_clients(*things, loop, start=8, prefill=st.Layout(), **given)
    assert found.clients >= 1
    assert found.best.good


def test_clients_need_a_limit_on_the_first_token(things, given):
    with pytest.raises(RangeError, match="limit on TTFT"):
        find_clients(*things, loop, **(given | {"slo": st.Slo(tpot=0.02)}))


def test_no_client_is_within_an_impossible_limit(things, given):
    found = find_clients(*things, loop, **(given | {"slo": st.Slo(ttft=1e-3)}))
    assert (found.clients, found.rate, found.best) == (0, 0.0, None)


# --- drawn rates --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_drawn_rate_has_neither_scale_nor_clients(things, given):
    found = find_rate(*things, lambda rate, n: st.open_loop(rate, n, **SIZES), requests=500, **given)
    assert found.best.rate == found.rate > 1
    assert (found.scale, found.clients) == (None, None)
    apart = partial(find_rate, *things, lambda rate, n: st.open_loop(rate, n, **SIZES), requests=500, **given)
    assert apart(prefill=st.Layout()).rate > 1


def test_the_share_of_blocks_that_repeat():
    one = st.Traffic(arrival=[0.0, 1.0], inputs=[1024, 512], outputs=[1, 1], blocks=[7, 8, 7], starts=[0, 2, 3])
    assert repeated_share(one) == pytest.approx(1 / 3)
    assert repeated_share(replace(one, blocks=[], starts=[])) == 0
