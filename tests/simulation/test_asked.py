"""Requests, schedules and caches as they are asked for: what is taken where nothing is said."""

import math
from unittest.mock import patch

import numpy as np
import pytest

import steptime as st
from steptime.errors import InputError
from steptime.physics.engine import load_engine
from steptime.simulation import loop_state
from steptime.simulation.loop_state import DONE, REJECTED, REQUEST
from steptime.simulation.max_rate import find_rate
from steptime.simulation.prefix_cache import cache_with_capacities
from steptime.simulation.run_metrics import latencies
from steptime.simulation.scheduling_policy import policy_for
from steptime.workload.traffic import Lengths, draw_traffic
from tests.conftest import each

SIZES = Lengths(mean=128), Lengths(mean=16)


def test_how_many_requests_are_drawn_unless_told():
    assert len(draw_traffic(*SIZES, rate=5.0)) == 10_000
    assert (len(draw_traffic(*SIZES, clients=7)), draw_traffic(*SIZES, clients=7).clients) == (70, 7)
    assert len(draw_traffic(*SIZES, rate=5.0, requests=12)) == len(draw_traffic(*SIZES, clients=7, requests=12)) == 12


def test_a_share_of_the_rate_is_a_class_of_its_own():
    made = draw_traffic(*SIZES, rate=100.0, requests=4000, fast_share=0.25, seed=3)
    assert np.bincount(made.ranks).tolist() == [1000, 3000]
    for rank, rate in ((0, 25.0), (1, 75.0)):
        came = made.arrival[made.ranks == rank]
        assert (len(came) - 1) / (came[-1] - came[0]) == pytest.approx(rate, rel=0.1)


@each(
    "given, says",
    [
        ({}, "rate, clients: one of the two"), ({"rate": 1.0, "fast_share": 1.0}, "fast_share: must be"),
        ({"rate": 1.0, "fast_share": -0.1}, "fast_share: must be"),
        ({"rate": 1.0, "fast_share": 0.5, "requests": 1}, "two classes need at least 2"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn(given, says):
    with pytest.raises(InputError, match=says):
        draw_traffic(*SIZES, **given)


def test_a_schedule_is_the_engines_unless_told():
    system = st.load_system("hgx-h100")
    vllm, sglang = load_engine("vllm"), load_engine("sglang")
    usual = policy_for(vllm, system, prompt=1000.0)
    assert (usual.kind, usual.max_num_batched_tokens, usual.max_num_seqs, usual.kv_tokens) == (
        "continuous",
        2048,
        256,
        math.inf,
    )
    assert usual.interval == pytest.approx(system.chip.hbm.capacity / system.chip.hbm.bandwidth)
    assert policy_for(sglang, system, prompt=1000.0).kind == "prefill-first"
    told = policy_for(
        vllm, system, prompt=1.0, kind="train", max_num_batched_tokens=64, kv_tokens=1e5, interval=0.5, patience=2.0
    )
    assert (told.kind, told.max_num_batched_tokens, told.kv_tokens, told.interval, told.patience) == (
        "train",
        64,
        1e5,
        0.5,
        2.0,
    )


def test_a_cache_has_the_machines_tiers_and_the_capacities_given():
    system, model = st.load_system("gb200-nvl72"), st.load_model("llama-3.1-8b")
    cache = cache_with_capacities(model, system, st.Layout(tp=2), {"ssd": 1e12, "host": 1e11})
    assert [(tier.name, tier.capacity) for tier in cache.tiers] == [("hbm", 0.0), ("host", 1e11), ("ssd", 1e12)]
    bandwidths = {tier.name: tier.bandwidth for tier in (system.chip.hbm, *system.tiers)}
    # Both chips load their heads; all chips load the same latent vectors of MLA.
    assert [tier.bandwidth for tier in cache.tiers] == pytest.approx([2 * bandwidths[tier.name] for tier in cache.tiers])
    latent = cache_with_capacities(st.load_model("deepseek-v3"), system, st.Layout(tp=2), {"host": 1e11})
    assert [tier.bandwidth for tier in latent.tiers] == pytest.approx([bandwidths[tier.name] for tier in latent.tiers])
    whole = cache_with_capacities(model, system, st.Layout(tp=2), {"hbm": 2 * system.chip.hbm.capacity})
    assert whole.tiers[0].capacity == 372e9
    with pytest.raises(InputError, match="at most 397 GB"):
        cache_with_capacities(model, system, st.Layout(tp=2), {"hbm": 2.01 * system.chip.capacity})
    with pytest.raises(InputError, match="did you mean host"):
        cache_with_capacities(model, system, st.Layout(), {"hots": 1.0})


def test_latencies_are_those_of_served_requests():
    requests = np.zeros(3, dtype=REQUEST)
    requests["status"], requests["outputs"] = (DONE, DONE, REJECTED), (5, 1, 9)
    requests["arrival"], requests["first"], requests["finish"] = (1, 2, 3), (1.5, 2.25, 4), (3.5, 2.25, 5)
    found = latencies(requests)
    assert found["TTFT"].tolist() == [0.5, 0.25]
    assert found["TPOT"].tolist() == [0.5]


def test_a_rate_is_found_with_so_many_requests_a_replica():
    seen = []

    def traffic(rate, requests):
        seen.append(requests)
        return draw_traffic(*SIZES, rate=rate, requests=requests)

    model, system = st.load_model("llama-3.1-8b"), st.load_system("hgx-h100")
    policy = policy_for(load_engine("vllm"), system, prompt=128.0, max_num_seqs=4)
    given = {"slo": st.Slo(ttft=0.2), "layout": st.Layout(replicas=2), "policy": policy}
    found = find_rate(model, system, traffic, requests=50, **given)
    assert found.rate > 1
    assert any(point.rate == found.rate and point.good for point in found.points)
    assert {50, 200} <= set(seen)
    seen.clear()
    with patch("steptime.simulation.max_rate.highest_rate", lambda run, **more: (run(1.0), more["longer"](1.0))):
        find_rate(model, system, traffic, **given)
    assert {seen[0], seen[-1]} == {8000, 32_000}


def test_without_a_place_for_its_cache_the_simulator_still_compiles():
    kinds = []

    def njit(cache=False, **_):
        kinds.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    with patch.object(loop_state, "njit", njit):
        assert loop_state.compiled(abs) is abs
    assert kinds == [True, False]
