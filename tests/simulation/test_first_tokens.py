"""First tokens of the simulator by hand: through the stages of a pipeline, over the links between pools; as plans have them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("numba", reason="the simulator needs the extra 'simulate'")

import steptime as st
from steptime.physics.layout import Layout
from steptime.planning.prefill_pool import first_token, prefill_pool
from steptime.planning.steady_state import aggregated
from steptime.simulation.scheduling_policy import Policy
from steptime.simulation.simulator import simulate
from steptime.workload.traffic import Lengths, Traffic, open_loop
from tests.conftest import each, engine, every, machine, one_matrix
from tests.planning.cases import MODEL, NODES, WORK, closed_plan, equal_requests

LIGHT = replace(one_matrix(kv_bytes=1e-6), width=1)  # a cache and activations that cost nothing; 20 GFLOP a token
ONE = equal_requests(input_tokens=1000, output_tokens=11)
ONCE = Policy(max_num_seqs=1, max_num_batched_tokens=4096)


def lone(model, system, *, layout=None, outputs=11, on=None, max_tokens=4096, **given) -> tuple[float, float]:
    """The first token and the last [s] of a single request of 1,000 tokens."""
    traffic = Traffic(arrival=np.zeros(1), inputs=np.array([1000]), outputs=np.array([outputs]))
    policy = Policy(max_num_batched_tokens=max_tokens)
    found = simulate(model, system, traffic, layout=layout or Layout(), policy=policy, engine=on or engine(), **given).requests
    return float(found["first"][0]), float(found["finish"][0])


@each("stages", [1, 2, 5])
def test_a_lone_prompt_is_under_way_through_all_stages(stages):
    """10 ms of one chip; in P parts through P stages (2P - 1) / P of 10 ms / P, or of the 2.5 ms of weights of each part."""
    layout = Layout(pp=stages, microbatches=stages)
    period = max(10e-3, 2.5e-3 * stages) / stages
    expected = period * (2 * stages - 1) / stages
    planned = prefill_pool(LIGHT, machine(), ONE, layout=layout, prompts=1, engine=engine())
    assert float(first_token(planned, 1e-9, 1)) == pytest.approx(expected, rel=1e-4)
    assert lone(LIGHT, machine(), layout=layout, max_tokens=1000)[0] == pytest.approx(expected, rel=1e-4)
    apart = lone(LIGHT, machine(), prefill=layout, max_tokens=1000)
    assert apart[0] == pytest.approx(expected, rel=1e-4)
    # A prompt that fits in one micro-batch passes one stage after the other.
    whole = lone(LIGHT, machine(), layout=layout, max_tokens=1000 * stages)
    assert whole[0] == pytest.approx(10e-3, rel=1e-4)
    assert apart[1] - apart[0] == pytest.approx(10 * 2.5e-3, rel=1e-3)  # a pool of one chip decodes


@pytest.mark.parametrize(
    ("prefill", "links"), [(Layout(), 1), (Layout(tp=4), 4), (Layout(pp=2, microbatches=2), 2), (Layout(tp=2, cp=2), 4)]
)
def test_a_cache_is_there_before_the_first_token_is_seen(prefill, links):
    """10 kB a token of 1,000 over 1 GB/s of each chip that read it: 10 ms over one link, after the pass."""
    read, sent = (
        lone(replace(one_matrix(kv_bytes=kv_bytes), width=1), machine(up=1e9), prefill=prefill)[0]
        for kv_bytes in (1e-6, 1000.0)
    )
    assert sent - read == pytest.approx(1e7 / (links * 1e9), rel=5e-3)


@pytest.mark.parametrize(("chips", "seconds"), [(7, 10e-3 + 1e-6), (8, 100e-3 + 5e-6)])
def test_caches_cross_nodes_where_one_does_not_hold_all_chips(chips, seconds):
    """One chip reads and the others decode; 10 MB at 1 GB/s inside a node of eight chips, at 0.1 GB/s beyond it."""
    model = replace(one_matrix(kv_bytes=1000.0), width=1)
    system = machine(up=1e9, out=1e8, latency=1e-6, out_latency=5e-6)
    first, _ = lone(model, system, prefill=Layout(), layout=Layout(replicas=chips))
    assert first == pytest.approx(10e-3 + seconds, rel=1e-3)


def test_a_first_token_is_seen_some_steps_after_its_cache_is_there():
    """0.1 s and 10 us a token before the queue; three steps of 2.5 ms until it is seen, the last token not late."""
    slow = engine(seconds_before_queue=0.1, seconds_before_queue_per_token=1e-5, steps_before_answer=3)
    (first, finish), (seen, end) = (lone(LIGHT, machine(), prefill=Layout(), on=on) for on in (engine(), slow))
    assert seen - first == pytest.approx(0.11 + 3 * 2.5e-3, rel=1e-3)
    assert end - finish == pytest.approx(0.11, rel=1e-3)
    short = lone(LIGHT, machine(), prefill=Layout(), on=slow, outputs=2)
    assert short[0] == pytest.approx(short[1])  # a token that comes with the last


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_prompts_that_wait_for_a_pool_wait_as_planned(load):
    """Passes of 10 ms, one prompt each: M/D/1, a wait of 10 ms x rho / (2 (1 - rho))."""
    traffic = open_loop(100 * load, 30_000, Lengths(mean=1000), Lengths(mean=2), seed=1)
    found = simulate(LIGHT, machine(), traffic, prefill=Layout(), prefill_policy=ONCE, engine=engine()).requests
    seen = float(np.mean(found["first"] - found["arrival"]))
    expected = 10e-3 * (1 + load / (2 * (1 - load)))
    assert seen == pytest.approx(expected, rel=0.05)
    pool = prefill_pool(LIGHT, machine(), ONE, layout=Layout(), prompts=1, engine=engine())
    assert float(first_token(pool, load, 1)) == pytest.approx(expected, rel=1e-4)


def test_a_plan_of_pools_is_what_a_simulation_of_it_finds():
    """Four chips at the plan's own rate: times of a token within 4 %, first tokens within 15 %."""
    limits = st.Slo(tpot=6e-3, ttft=0.1)
    found = closed_plan(MODEL, NODES, WORK, limits, engine="ideal", modes=("disaggregated",), alternatives=False)
    traffic = open_loop(found.requests_per_second, 30_000, Lengths(mean=1000), Lengths(mean=201), seed=2)
    reader, server = found.pools
    seen = simulate(
        MODEL, NODES, traffic, engine="ideal", layout=server.layout, policy=Policy(max_num_seqs=server.max_num_seqs),
        prefill=reader.layout,
        prefill_policy=Policy(max_num_seqs=reader.max_num_seqs, max_num_batched_tokens=1000 * reader.max_num_seqs),
    ).requests[3000:]  # fmt: skip
    assert np.mean((seen["finish"] - seen["first"]) / 200) == pytest.approx(found.tpot, rel=0.04)
    assert np.mean(seen["first"] - seen["arrival"]) == pytest.approx(found.ttft, rel=0.15)


SMALL = one_matrix(weights=1e8, kv_bytes=1e4, heads=1)  # 0.25 ms of weights, 27.5 us of cache a sequence
STREAM = machine(flops=1e30)


def replica(model, batch):
    """A replica of one chip that decodes `batch` sequences in the plan, and its simulation at the rate that keeps one fewer."""
    state = aggregated(model, STREAM, WORK, layout=Layout(), batch=batch, chunk=1000, engine=engine())
    rate = float(state.rate) * (batch - 1) / batch
    policy = Policy(max_num_seqs=4096, max_num_batched_tokens=1000 + int(state.max_num_seqs))
    traffic = open_loop(rate, 120_000, Lengths(mean=1000), Lengths(mean=201), seed=3)
    return state, simulate(model, STREAM, traffic, policy=policy, engine=engine()).requests


@pytest.mark.parametrize(("model", "batch"), every(3, [(SMALL, 20), (SMALL, 60), (LIGHT, 60)]))
def test_an_arrival_finds_one_sequence_fewer_than_share_its_tokens(model, batch):
    """B - 1 in flight in the mean, whether steps grow with them or not, and a time per token as of B: within 4 %."""
    state, found = replica(model, batch)
    starts, ends = np.sort(found["first"]), np.sort(found["finish"])
    seen = np.searchsorted(starts, found["arrival"]) - np.searchsorted(ends, found["arrival"])
    assert np.mean(seen[8000:]) == pytest.approx(batch - 1, rel=0.04)
    assert np.mean((found["finish"] - found["first"]) / 200) == pytest.approx(float(state.tpot), rel=0.04)


def test_prompts_beside_decode_wait_as_planned():
    """Steps of 2.5 ms that stream weights, 0.295 of a prompt in each: half a step, a step, and 0.295 / 0.705 of half a one."""
    state, found = replica(LIGHT, 60)
    expected = 2.5e-3 * (0.5 + 1 + 0.5 * 0.295 / 0.705)
    assert float(state.ttft) == pytest.approx(expected, rel=1e-3)
    assert np.mean(found["first"] - found["arrival"]) == pytest.approx(expected, rel=0.04)
