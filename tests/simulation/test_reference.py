"""The event loop against the step-by-step engine of `reference`: the same arrivals, lengths and step times.

Both are simulations of single requests, so that they agree to rounding, and not only on average.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("numba", reason="the simulator needs the extra 'simulate'")

import steptime as st
from steptime.simulation.replica_pools import Server, serve, serve_disaggregated
from steptime.simulation.scheduling_policy import Policy
from steptime.simulation.simulator import user_visible_times
from steptime.simulation.step_time_model import linear_pace, sample_pace
from steptime.workload.traffic import Lengths, open_loop
from tests.conftest import every
from tests.simulation import reference
from tests.simulation.reference import Engine
from tests.simulation.test_simulation import mixed_seconds

STEP, SEQUENCE, CONTEXT, TOKEN, PAIR = 8e-3, 3e-5, 6e-9, 2e-5, 2e-10  # s
MOST = 1024
# Measured agreement of the figures; rounding alone.
AGREE = 1e-6


def pace_of(ranks=1, stages=1):
    """Step times; with several ranks half of a prompt's work is on its rank, and half is shared."""
    pace = linear_pace(
        step=STEP, sequence=SEQUENCE, context=CONTEXT, token=TOKEN, pair=PAIR, max_num_seqs=MOST, max_tokens=4 * 4096
    )
    if ranks > 1:
        n = np.arange(len(pace.rows))
        own, shared = (np.where(n > 0, STEP / 2 + TOKEN / 2 * share * n, 0.0) for share in (ranks, 1))
        pace = replace(pace, groups=ranks, rank_rows=own, shared_rows=shared)
    return replace(pace, stages=stages, waves=stages)


def seconds_of(ranks=1, stages=1):
    """The same times for `reference`: of a micro-batch in a stage, where every other micro-batch is like it."""

    def seconds(batches):
        b = stages * sum(len(batch.contexts) for batch in batches)
        rows = stages * sum(c for batch in batches for c, _ in batch.chunks)
        total = (STEP + SEQUENCE * b if b else 0.0) + TOKEN * rows * (1 if ranks == 1 else 0.5)
        # Decode has read the weights already.
        total += 0.0 if b or not rows else STEP * (1 if ranks == 1 else 0.5)
        work = []
        for batch in batches:
            pairs = sum(c * before + c * (c + 1) / 2 for c, before in batch.chunks)
            tokens = stages * sum(c for c, _ in batch.chunks)
            own = ranks * stages * (CONTEXT * sum(batch.contexts) + PAIR * pairs)
            if ranks > 1 and tokens:
                own += TOKEN / 2 * ranks * tokens + (0.0 if b else STEP / 2)
            work.append(own)
        return (total + max(work)) / stages

    return seconds


def drawn(rate, n, inputs, outputs, spread, seed=0):
    """Poisson arrivals, and lognormal lengths."""
    shape = "lognormal" if spread else "fixed"
    lengths = (Lengths(mean=mean, shape=shape, spread=spread) for mean in (inputs, outputs))
    return open_loop(rate, n, *lengths, seed=seed)


def requests_of(traffic, cached=0.0):
    columns = (traffic.arrival.tolist(), traffic.inputs.tolist(), traffic.outputs.tolist())
    return [reference.Request(a, i, o, min(int(cached * i), i - 1)) for a, i, o in zip(*columns, strict=True)]


def agree(rows, requests, within=AGREE):
    found = reference.figures(rows["arrival"], rows["first"], rows["finish"], rows["outputs"])
    expected = reference.figures_of(requests)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=within), name


def aggregated(traffic, *, ranks=1, stages=1, replicas=1, route="round-robin", router=reference.round_robin, cached=0.0,
               room=math.inf, budget=2048, within=AGREE):  # fmt: skip
    """Compare replicas that do all; `budget` counts for all micro-batches of a rank."""
    policy = Policy(max_num_seqs=512, max_num_batched_tokens=budget, route=route, block=1, kv_tokens=room)
    requests = requests_of(traffic, cached)
    rows, _, _ = serve(traffic, policy, pace_of(ranks, stages), replicas=replicas, cached=[r.cached for r in requests])
    settings = {"seats": 512, "budget": budget // stages, "room": room, "ranks": ranks, "stages": stages}
    engines = [Engine(seconds_of(ranks, stages), **settings) for _ in range(replicas)]
    reference.serve(requests, engines, router)
    agree(rows, requests, within)


def pools(traffic, *, ranks=1, stages=1, prompts=2, inputs=2000, replicas=2, route="round-robin", router=reference.round_robin):
    """Compare a prefill pool, whose pass has the tokens of `prompts` prompts per rank, with a decode pool behind it."""
    prefill = Policy(max_num_seqs=2 * prompts * ranks, max_num_batched_tokens=prompts * inputs, route=route)
    decode = Policy(max_num_seqs=512, max_num_batched_tokens=4096)
    servers = Server(prefill, pace_of(ranks, stages), replicas), Server(decode, pace_of(), 1)
    rows, _ = serve_disaggregated(traffic, *servers, lambda q: 0.01 + 1e-6 * q["inputs"])
    settings = {"seats": 2 * prompts * ranks, "budget": prompts * inputs // stages, "ranks": ranks, "stages": stages}
    readers = [Engine(seconds_of(ranks, stages), **settings) for _ in range(replicas)]
    requests, decoders = requests_of(traffic), [Engine(seconds_of(), seats=512, budget=4096)]
    reference.serve_pools(requests, readers, decoders, lambda r: 0.01 + 1e-6 * r.inputs, router)
    agree(user_visible_times(rows, pace_of()), requests)


SPREADS = pytest.mark.parametrize("spread", every(3, [1.0, 0.0, 1.5]))


@SPREADS
def test_aggregated_replicas_step_by_step(spread):
    """Chunks beside decode; short outputs; long prompts; a cached share."""
    aggregated(drawn(6, 400, 2000, 50, spread))
    aggregated(drawn(14, 400, 2000, 8, spread))
    aggregated(drawn(0.9, 200, 20_000, 50, spread))
    aggregated(drawn(20, 400, 2000, 8, spread), cached=0.5)


@SPREADS
def test_a_full_cache_step_by_step(spread):
    """Preemption takes the last request, and its tokens are computed again; who is preempted in a tie may differ."""
    aggregated(drawn(10, 300, 1000, 100, spread), room=20_000, within=0.01)


@SPREADS
def test_routers_step_by_step(spread):
    """A request that ends with the step under way counts until the step ends."""
    aggregated(drawn(24, 400, 2000, 20, spread), replicas=4)
    aggregated(drawn(24, 400, 2000, 20, spread), replicas=4, route="least-loaded", router=reference.least_loaded)


@SPREADS
def test_data_parallel_ranks_step_by_step(spread):
    """Each rank has its queue and its tokens of a step, and the slowest one sets the time of all."""
    aggregated(drawn(10, 300, 2000, 30, spread), ranks=4)
    aggregated(drawn(10, 300, 2000, 8, spread), ranks=8)


@SPREADS
@pytest.mark.parametrize("stages", [2, 4])
def test_pipelines_step_by_step(stages, spread):
    """Micro-batches of unequal size hold up those behind them."""
    aggregated(drawn(10, 300, 2000, 30, spread), stages=stages)
    aggregated(drawn(20, 300, 500, 8, spread), stages=stages, budget=1024)


@SPREADS
def test_pools_step_by_step(spread):
    pools(drawn(30, 300, 2000, 20, spread), route="least-loaded", router=reference.least_loaded)
    pools(drawn(40, 300, 2000, 8, spread), ranks=4, prompts=1)
    pools(drawn(30, 300, 2000, 8, spread), stages=2)
    pools(drawn(30, 300, 2000, 8, spread), stages=4, prompts=1)
    pools(drawn(20, 300, 2000, 8, spread), stages=2, ranks=2)


@pytest.mark.slow
@SPREADS
@pytest.mark.parametrize("seed", [1, 2])
def test_longer_runs_step_by_step(spread, seed):
    aggregated(drawn(6, 4000, 2000, 200, spread, seed))
    aggregated(drawn(10, 4000, 2000, 100, spread, seed), ranks=8)
    aggregated(drawn(15, 3000, 2000, 100, spread, seed), stages=4)
    aggregated(drawn(10, 3000, 2000, 100, spread, seed), stages=2, ranks=2)
    aggregated(drawn(60, 4000, 2000, 100, spread, seed), replicas=8, route="least-loaded", router=reference.least_loaded)
    pools(drawn(30, 4000, 2000, 100, spread, seed), stages=4, prompts=4)
    pools(drawn(8, 2000, 8000, 100, spread, seed), stages=2, ranks=2, inputs=8000)


def test_random_routing_waits_longer_than_routing_by_load():
    """Poisson arrivals at each replica: an M/D/1 queue at half load waits for half a service, and the lowest load for less."""
    traffic = drawn(4 * 0.5 / (STEP + 100 * TOKEN), 20_000, 100, 1, 0.0)
    waits = {}
    for route in ("random", "least-loaded"):
        rows, _, _ = serve(traffic, Policy(max_num_seqs=1, route=route), linear_pace(step=STEP, token=TOKEN), replicas=4)
        waits[route] = float(np.mean(rows["scheduled"] - rows["arrival"])) / (STEP + 100 * TOKEN)
    assert waits["random"] == pytest.approx(0.5, rel=0.05)
    assert waits["least-loaded"] < 0.25 * waits["random"]


@pytest.mark.parametrize(
    ("model", "layout"),
    [("gemma-3-27b", st.Layout(tp=4, microbatches=2)), ("deepseek-v3", st.Layout(dp=16, ep=16, microbatches=2))],
)
def test_two_micro_batches_hide_attention_behind_slow_links(model, layout):
    """PCIe links last longer than the operators that they overlap with: a longer prefix costs nothing until it is longer."""
    pace = sample_pace(
        st.load_model(model), st.load_system("l40s-8"), layout=layout, engine="ideal", max_num_seqs=512,
        max_num_batched_tokens=4096, contexts=(8000, 12_000),
    )  # fmt: skip
    assert pace.mixed_error < 0.025


@pytest.mark.thorough
def test_prompts_on_all_ranks_with_two_micro_batches_take_the_time_of_that_step():
    """16,000 prompt tokens: their all-to-all is as long as the operators, of which one rank has an eighth."""
    model, system, layout = st.load_model("qwen3-next-80b-a3b"), st.load_system("mi300x-8"), st.Layout(dp=8, microbatches=2)
    given = {"layout": layout, "engine": "ideal"}
    pace = sample_pace(
        model, system, max_num_seqs=9568, max_num_batched_tokens=3196, contexts=(2000, 2300), check=False, **given
    )
    for prompts in (1, 4, 8):
        step = st.mixed_step(model, system, batch=2392, context=2150, prompts=prompts, tokens=2000, prefix=0, **given)
        assert mixed_seconds(pace.rates, 2392, 2392 * 2150.0, prompts, 2000) == pytest.approx(float(step.total), rel=0.025)
