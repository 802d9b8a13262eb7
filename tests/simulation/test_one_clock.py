"""One clock of a run: with and without an anchor its latencies, throughput, busy share and dollars obey Little's law."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba", reason="the simulator needs the extra 'simulate'")

import steptime as st
from steptime.physics.bias_correction import Anchor, MeasuredRun
from steptime.simulation.scheduling_policy import Policy
from steptime.simulation.step_time_model import linear_pace, with_first_tokens
from steptime.workload.traffic import Traffic, scaled

MODEL, SYSTEM = st.load_model("llama-3.1-8b"), st.load_system("hgx-h100")
RATIOS = [None, (2.81, 1.47), (1.3, 3.0), (0.6, 0.5), (1.0, 0.2)]  # measured over predicted: time per token, first token


def anchor_of(ratios):
    if ratios is None:
        return None
    tpot, ttft = ratios
    names = {"model": MODEL.name, "system": SYSTEM.name}
    runs = tuple(MeasuredRun(name=one, load=16, context=1000, tpot=tpot, ttft=ttft, **names) for one in "abcde")
    return Anchor(source="runs.csv", engine="vllm", measured=runs, **names)


def share_inside(begin, end, start, stop):
    """The share of each interval between two times."""
    return np.clip(np.minimum(end, stop) - np.maximum(begin, start), 0, None) / np.maximum(end - begin, 1e-12)


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
        steady = np.isfinite(a.steady_from)
        start, last = a.steady_from if steady else found.requests["arrival"].min(), found.requests["arrival"].max()
        stop = last if steady else found.requests["arrival"].min() + a.seconds
        if not pools:  # decoding sequences: counted by the loop, and by request
            seconds = each * owed * share_inside(found.requests["first"], found.requests["finish"], start, stop)
            assert a.batch * a.utilisation * found.replicas * (stop - start) == pytest.approx(seconds.sum(), rel=0.02)
        if kind == "clients":  # every client has one request in the system until the last ones run out
            spans = found.requests["finish"] - found.requests["arrival"]
            arrival, replica = found.requests["arrival"], found.requests["replica"]
            end = arrival.max() if pools else min(arrival[replica == r].max() for r in np.unique(replica))
            inside = np.clip(np.minimum(found.requests["finish"], end) - found.requests["arrival"], 0, None).sum() / end
            assert inside == pytest.approx(found.traffic.clients, rel=0.02)
            if steady:  # Little's law on the steady window, within the error of few ends
                assert a.requests_per_second * a.end_to_end.mean == pytest.approx(found.traffic.clients, rel=0.1)
            else:
                assert a.requests_per_second * a.end_to_end.mean == pytest.approx(spans.sum() / a.seconds)


@pytest.mark.parametrize("pools", [{}, {"prefill": st.Layout()}], ids=["one pool", "two pools"])
def test_rates_of_a_steady_run_do_not_depend_on_its_length(pools):
    lengths = st.Lengths(mean=500, shape="lognormal", spread=1.0), st.Lengths(mean=200, shape="lognormal", spread=1.0)
    costs = []
    for requests in (3000, 30_000):
        traffic = st.open_loop(20, requests, *lengths)
        run = st.simulate(MODEL, SYSTEM, traffic, **pools)
        a, rows = run.answers, run.requests
        start, stop = a.steady_from, rows["arrival"].max()
        inside = (rows["arrival"] > start) & (rows["arrival"] <= stop)
        offered = rows["outputs"][inside].sum() / (stop - start)
        assert a.output_tokens_per_second == pytest.approx(offered, rel=0.02)
        assert a.requests_per_second == pytest.approx(inside.sum() / (stop - start), rel=0.02)
        cost = run.chips * float(run.rent.typical) / a.output_tokens_per_second * 1e6
        assert a.usd_per_million_output_tokens == pytest.approx(cost)
        # Little's law on the window: sequences that decode, and requests in the system.
        spent = share_inside(rows["arrival"], rows["finish"], start, stop) * (rows["finish"] - rows["arrival"])
        assert a.requests_per_second * a.end_to_end.mean == pytest.approx(spent.sum() / (stop - start), rel=0.03)
        costs.append(a.usd_per_million_output_tokens / (20 / traffic.rate) / (200 / traffic.outputs.mean()))
    assert costs[0] == pytest.approx(costs[1], rel=0.03)


def test_a_batch_that_arrives_at_once_counts_its_whole_run():
    traffic = Traffic(arrival=np.zeros(200), inputs=np.full(200, 500), outputs=np.full(200, 100))
    run = st.simulate(MODEL, SYSTEM, traffic)
    assert np.isnan(run.answers.steady_from)
    assert run.answers.output_tokens_per_second == pytest.approx(200 * 100 / run.answers.seconds)
    assert run.answers.requests_per_second == pytest.approx(200 / run.answers.seconds)


def test_with_first_tokens_later_leaves_capacity_as_it_was():
    pace = linear_pace(step=0.01, sequence=1e-4, token=2e-5)
    later = with_first_tokens(pace, 3.0)
    traffic = st.open_loop(50, 2000, st.Lengths(mean=500), st.Lengths(mean=50))
    from steptime.simulation.replica_pools import serve

    (one, _, busy), (two, _, same) = (serve(traffic, Policy(), each) for each in (pace, later))
    np.testing.assert_array_equal(one["finish"], two["finish"])
    np.testing.assert_array_equal(busy.seconds, same.seconds)
    assert later.extra_delay == 2
