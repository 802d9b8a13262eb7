"""One clock of a run: with and without an anchor its latencies, throughput, busy share and dollars obey Little's law."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba", reason="the simulator needs the extra 'simulate'")

import steptime as st
from steptime.physics.bias_correction import Anchor, Factor
from steptime.simulation.scheduling_policy import Policy
from steptime.simulation.step_time_model import linear_pace, with_first_tokens
from steptime.workload.traffic import Traffic, scaled

MODEL, SYSTEM = st.load_model("llama-3.1-8b"), st.load_system("hgx-h100")
RATIOS = [None, (2.81, 1.47), (1.3, 3.0), (0.6, 0.5), (1.0, 0.2)]  # measured over predicted: time per token, first token


def anchor_of(ratios):
    if ratios is None:
        return None
    tpot, ttft = (Factor(runs=5, ratio=ratio) for ratio in ratios)
    return Anchor(
        source="runs.csv", model=MODEL.name, system=SYSTEM.name, engine="vllm", runs=tuple("abcde"), tpot=tpot, ttft=ttft
    )


def recorded(draw, n=1500):
    """A recorded trace in miniature: lognormal lengths and gaps, the first request well after the start of the clock."""
    gaps = draw.lognormal(-4.5, 1.0, n)
    lengths = (np.clip(draw.lognormal(mean, 0.8, n).astype(np.int64), 1, 4000) for mean in (6.0, 4.5))
    inputs, outputs = lengths
    return Traffic(name="recorded", arrival=5 + np.cumsum(gaps), inputs=inputs, outputs=outputs)


def traffic_of(kind, seed):
    draw = np.random.default_rng(seed)
    if kind == "recorded":
        return scaled(recorded(draw), float(draw.uniform(0.3, 3.0)))
    inputs = st.Lengths(mean=int(draw.integers(200, 3000)), shape="lognormal", spread=0.7)
    outputs = st.Lengths(mean=int(draw.integers(40, 400)), shape="lognormal", spread=0.7)
    if kind == "clients":
        return st.closed_loop(int(draw.integers(1, 100)), 1500, inputs, outputs, seed=seed)
    return st.open_loop(float(draw.uniform(1, 60)), 1500, inputs, outputs, seed=seed)  # many of them overloaded


@pytest.mark.slow
@pytest.mark.parametrize("ratios", RATIOS)
@pytest.mark.parametrize("kind", ["poisson", "clients", "recorded"])
@pytest.mark.parametrize("pools", [{}, {"prefill": st.Layout()}], ids=["one pool", "two pools"])
def test_simulate_with_and_without_anchor_obeys_littles_law(kind, ratios, pools):
    engine = st.load_engine("vllm")
    for seed in range(3):
        layout = st.Layout(replicas=1 + seed)
        found = st.simulate(
            MODEL, SYSTEM, traffic_of(kind, seed), engine=engine, layout=layout, anchor=anchor_of(ratios), **pools
        )
        a, pace = found.answers, found.pace
        assert 0 < a.utilisation <= 1
        assert all(share <= 1 for share in a.pool_utilisation)
        assert a.seconds >= found.timeline["seconds"][-1] - found.requests["arrival"].min() - 1e-9
        assert a.output_tokens_per_second * a.usd_per_million_output_tokens / 1e6 == pytest.approx(
            found.chips * float(found.rent.typical)
        )
        owed = found.requests["outputs"] - 1
        tpot = (found.requests["finish"] - found.requests["first"]) / np.maximum(owed, 1)
        unseen = np.minimum(
            pace.answer * found.policy.acceptance_length, owed
        )  # steps that decode before the first token is seen
        each = tpot * owed / np.maximum(owed - unseen, 1e-9) * (owed > unseen)
        if not pools:  # decoding sequences: counted by the loop, and throughput x time
            decoding = a.requests_per_second * float(np.mean(each * owed))
            assert a.batch * a.utilisation * found.replicas == pytest.approx(decoding, rel=0.02)
        if kind == "clients":  # every client has one request in the system until the last ones run out
            spans = found.requests["finish"] - found.requests["arrival"]
            arrival, replica = found.requests["arrival"], found.requests["replica"]
            end = arrival.max() if pools else min(arrival[replica == r].max() for r in np.unique(replica))
            inside = np.clip(np.minimum(found.requests["finish"], end) - found.requests["arrival"], 0, None).sum() / end
            assert inside == pytest.approx(found.traffic.clients, rel=0.02)
            assert a.requests_per_second * a.end_to_end.mean == pytest.approx(spans.sum() / a.seconds)


def test_with_first_tokens_later_leaves_capacity_as_it_was():
    pace = linear_pace(step=0.01, sequence=1e-4, token=2e-5)
    later = with_first_tokens(pace, 3.0)
    traffic = st.open_loop(50, 2000, st.Lengths(mean=500), st.Lengths(mean=50))
    from steptime.simulation.replica_pools import serve

    (one, _, busy), (two, _, same) = (serve(traffic, Policy(), each) for each in (pace, later))
    np.testing.assert_array_equal(one["finish"], two["finish"])
    np.testing.assert_array_equal(busy.seconds, same.seconds)
    assert later.extra_delay == 2
