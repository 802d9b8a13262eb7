"""Draws of a run, its start, its length and its figures."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

import steptime as st
from steptime.physics.layout import Layout
from steptime.planning import simulated_rate
from steptime.planning.finalists import SimulatedPool
from steptime.planning.rate_curve import GRID, Curve
from steptime.planning.simulated_rate import (
    Deployment,
    Loop,
    Run,
    TooLate,
    _coarse_axis,
    busy_share,
    by_length,
    coarse_server,
    draw,
    lengths,
    steady_requests,
)
from steptime.planning.steady_state import mean_context
from steptime.simulation.loop_state import BUSY, CLOCK, DONE, new_requests
from steptime.simulation.replica_pools import Server
from steptime.workload.traffic import Traffic
from tests.conftest import each, engine
from tests.planning.cases import MODEL, NODES, equal_requests

CHAT = st.Workload(input_tokens=1000, output_tokens=201)


@each("spread", [0.0, 0.5, 2.0])
@each("seed", [0, 5])
def test_draws_have_the_means_and_spreads_of_the_workload(spread, seed):
    requests = st.Workload(input_tokens=1000, output_tokens=201, input_spread=spread, output_spread=spread)
    drawn = draw(requests, 5000, seed)
    assert np.mean(drawn.gaps) == pytest.approx(1.0)
    # Lengths are whole tokens.
    assert np.mean(drawn.inputs) == pytest.approx(1000, rel=1e-4)
    assert np.mean(drawn.outputs) == pytest.approx(201, rel=1e-3)
    assert min(drawn.inputs.min(), drawn.outputs.min()) >= 1
    log_deviation = math.sqrt(math.log1p(spread**2))
    assert np.std(np.log(drawn.inputs)) == pytest.approx(log_deviation, rel=0.05, abs=1e-12)
    assert (drawn.inputs.dtype, drawn.outputs.dtype) == (np.int64, np.int64)


def test_draws_are_those_of_their_seed():
    first, again, other = (draw(CHAT, 100, seed) for seed in (1, 1, 2))
    assert np.array_equal(first.gaps, again.gaps)
    assert np.array_equal(first.inputs, again.inputs)
    assert not np.array_equal(first.inputs, other.inputs)
    # Another workload has the same draws in other units.
    longer = draw(replace(CHAT, input_tokens=2000), 100, 1)
    assert np.array_equal(longer.gaps, first.gaps)
    assert longer.inputs / first.inputs == pytest.approx(2.0, rel=0.02)


def test_lengths_are_at_least_one_token():
    assert lengths(np.array([-3.0, 0.0, 3.0]), 1.0, 2.0).min() == 1
    assert lengths(np.array([-3.0, 0.0, 3.0]), 7.4, 0.0).tolist() == [7, 7, 7]


@each("spread", [0.0, 0.5, 1.0])
def test_requests_in_flight_are_those_that_last(spread):
    """Of an output they have made as much as is left on average: its mean square over twice its mean."""
    requests = st.Workload(input_tokens=1000, output_tokens=400, input_spread=0.3, output_spread=spread)
    found = steady_requests(requests, 40_000, math.inf, 3)
    left = 400 * (1 + spread**2) / 2
    assert np.mean(found.outputs) == pytest.approx(left, rel=0.03)
    assert np.mean(found.inputs) == pytest.approx(float(mean_context(requests)), rel=0.01)
    assert np.all(found.arrival == 0)


def test_nothing_is_in_flight_at_a_low_rate():
    assert len(steady_requests(CHAT, 0, 1e4, 3)) == len(lengths(np.zeros(0), 10.0, 1.0)) == 0


def test_requests_in_flight_end_within_the_longest_context():
    found = steady_requests(CHAT, 1000, 1200.0, 3)
    assert np.max(found.inputs + found.outputs) <= 1200
    assert found.outputs.min() >= 1
    assert np.count_nonzero(found.inputs == 1199) > 10


# --- runs ------------------------------------------------------------------------------------------------------------------


def deployment(workload: st.Workload, replicas: int = 1, slots: int = 64, **more) -> Deployment:
    pool = SimulatedPool(role="serve", layout=Layout(replicas=replicas), batch=32, max_num_seqs=slots, chunk=1024)
    return Deployment(model=MODEL, system=NODES, engine=engine(), workload=workload, pools=(pool,), **more)


def test_many_equal_replicas_are_simulated_by_a_few_with_their_share():
    one, eight, many = loops = [Loop(deployment(CHAT, replicas), 50.0 * replicas, 1.0) for replicas in (1, 8, 64)]
    assert [loop.server.replicas / loop.share for loop in loops] == [1, 8, 64]
    # As many as have 640 sequences, of which each has 50.
    assert many.server.replicas == 12
    # Four lifetimes bring 200 requests: at least 256 / 209 of 2,000, up to the next quarter of a power of two.
    assert one.count == 2896
    limits = st.Slo(tpot=1.0, ttft=100.0)
    alone, some, most = (loop.run(50.0 / loop.share * loop.server.replicas, limits, "mean", 4e-3) for loop in loops)
    # Prompts go to twelve replicas in turn more evenly than to eight.
    for name, share in (("mean_tpot", 0.03), ("mean_ttft", 0.06), ("batch", 0.03)):
        assert getattr(most, name) == pytest.approx(getattr(some, name), rel=share)
    # Several replicas share their load: there are fewer in one place.
    assert most.mean_ttft < alone.mean_ttft
    assert eight.share == 1


def coarse_and_whole(pools, workload, rate, lifetime):
    """Return a loop whose sequences stand for several, and one whose sequences do not."""
    served = replace(deployment(workload), pools=pools)
    loops = []
    for most in (4, 1):
        sizes = {"COARSE_SEQUENCES": 64, "COARSE_RANK_SEQUENCES": 16, "COARSE_STEPS": 8}
        module = "steptime.planning.simulated_rate"
        with mock.patch.multiple(module, **sizes), mock.patch.object(Loop, "most_parts", most):
            loops.append(Loop(served, rate, lifetime))
    return loops


def test_one_sequence_of_a_decode_pool_stands_for_several():
    """A quarter of the sequences for a quarter of the steps: each step takes as long as that of the whole."""
    pools = (
        SimulatedPool(role="prefill", layout=Layout(replicas=8), batch=4, max_num_seqs=4),
        SimulatedPool(role="decode", layout=Layout(), batch=500, max_num_seqs=1024),
    )
    coarse, whole = coarse_and_whole(pools, st.Workload(input_tokens=20, output_tokens=100), 700.0, 0.4)
    assert (coarse.parts, whole.parts, coarse.share, whole.share) == (4, 1, 1, 1)
    policy = coarse.server.policy
    assert (policy.acceptance_length, policy.speculative_tokens, policy.max_num_seqs) == (4, 3, 256)
    # An output takes a whole number of steps of four tokens after its first token.
    steps = (coarse.outputs - 1) / 4
    assert np.array_equal(steps, np.rint(steps))
    assert np.max(np.abs(coarse.outputs - coarse.draws.outputs)) <= 2
    # By Little's law 700 x 99 x 3 ms, 207.9 sequences decode at the start.
    assert [len(loop.started(700.0, 3e-3)) for loop in (coarse, whole)] == [51, 207]
    context = float(mean_context(coarse.deployment.workload))
    for size in (1, 100, 256):
        expected = whole.server.pace.seconds(4 * size, 4 * size * context)
        assert coarse.server.pace.seconds(size, size * context) == pytest.approx(expected)
    runs = [loop.run(700.0, st.Slo(tpot=1.0, ttft=100.0), "p90", 3e-3, 0.1) for loop in (coarse, whole)]
    for name in ("mean_tpot", "tpot", "batch", "mean_ttft"):
        assert getattr(runs[0], name) == pytest.approx(getattr(runs[1], name), rel=0.05)


def test_one_sequence_next_to_chunks_stands_for_several():
    """Prompts come and are chunked as in the whole pool, next to decode steps as long as there."""
    pools = (SimulatedPool(role="serve", layout=Layout(), batch=600, max_num_seqs=2048, chunk=512),)
    coarse, whole = coarse_and_whole(pools, equal_requests(input_tokens=200, output_tokens=200), 200.0, 1.0)
    assert (coarse.parts, coarse.server.policy.chunk) == (3, 512)
    # Deviations of contexts are larger in fewer sequences, of which a part enters.
    assert coarse.server.pace.context[100] == pytest.approx(math.sqrt(3) * whole.server.pace.context[300])
    runs = [loop.run(200.0, st.Slo(tpot=1.0, ttft=100.0), "p90", 3.4e-3, 0.007) for loop in (coarse, whole)]
    for name in ("mean_tpot", "tpot", "batch", "mean_ttft", "ttft"):
        assert getattr(runs[0], name) == pytest.approx(getattr(runs[1], name), rel=0.06)


def test_a_prompt_that_is_late_saves_its_decode_unless_its_figures_enter_a_mean():
    pools = (
        SimulatedPool(role="prefill", layout=Layout(), batch=1, max_num_seqs=1),
        SimulatedPool(role="decode", layout=Layout(), batch=8, max_num_seqs=64),
    )
    loop = Loop(replace(deployment(CHAT), pools=pools), 20.0, 1.0)
    short, whole = (loop.run(20.0, st.Slo(ttft=1e-3), "mean", 3e-3, always_decode=whole) for whole in (False, True))
    assert (short.batch, short.busy[1]) == (0.0, 0.0)
    assert whole.batch == pytest.approx(20 * 200 * whole.mean_tpot, rel=0.1)
    assert short.worst == pytest.approx(short.ttft / 1e-3)
    assert whole.worst > 1
    # Its mean stays that of all prompts where the limit is at a percentile.
    late = loop.run(20.0, st.Slo(ttft=1e-3), "p99", 3e-3)
    assert late.mean_ttft == short.ttft < late.ttft


def test_requests_in_flight_rise_where_more_come_than_a_replica_serves():
    loop = Loop(deployment(CHAT, slots=16), 100.0, 1.0)
    calm, crowded = (loop.run(rate, st.Slo(), "p90", 5e-3) for rate in (15.0, 200.0))
    assert abs(calm.growth) < 0.01
    # 16 slots of 200 steps of some 3 ms serve about 26 requests/s.
    assert crowded.growth == pytest.approx(1 - 26 / 200, abs=0.03)


def test_a_run_that_is_shorter_than_its_requests_shows_no_steady_state():
    loop = Loop(deployment(CHAT), 2000.0, 0.05)
    found = loop.run(10_000.0, st.Slo(), "mean", 3e-3)
    assert (found.worst, found.binding) == (math.inf, "slots")
    # Requests of a few milliseconds need no long run.
    short = equal_requests(input_tokens=128, output_tokens=3)
    assert math.isfinite(Loop(deployment(short), 100.0, 0.01).run(100.0, st.Slo(), "mean", 3e-3).worst)


def test_a_run_obeys_littles_law_and_the_decode_steps_of_equal_requests():
    """At a low rate, of one sequence at a time: 200 steps of 2.5 ms, which read 10 GB at 4 TB/s."""
    requests = equal_requests(input_tokens=1000, output_tokens=201)
    loop = Loop(deployment(requests), 0.2, 0.6)
    found = loop.run(0.02, st.Slo(tpot=1.0, ttft=100.0), "p50", 2.5e-3)
    assert found.tpot == pytest.approx(2.5e-3, rel=0.01)
    assert found.batch == pytest.approx(0.02 * 200 * found.mean_tpot, rel=0.1)
    assert found.busy[0] == pytest.approx(0.02 * (200 * 2.5e-3 + found.mean_ttft), rel=0.1)


def test_a_time_per_token_leaves_out_the_first_token():
    """Outputs of 5 tokens: four steps of 2.5 ms after the first token, which prefill has."""
    loop = Loop(deployment(equal_requests(input_tokens=1000, output_tokens=5)), 0.2, 0.1)
    assert loop.run(0.02, st.Slo(), "p50", 2.5e-3).tpot == pytest.approx(2.5e-3, rel=0.02)


def test_pipelines_of_long_outputs_have_fewer_sequences_in_more_replicas():
    """Two million output tokens: four lifetimes of 500 requests of 1,000 tokens; at most 640, as without stages."""
    stages = SimulatedPool(role="serve", layout=Layout(pp=2, microbatches=2), batch=8, max_num_seqs=64, chunk=512)
    for tokens, few in ((1000, 500.0), (100, 640.0)):
        served = deployment(equal_requests(input_tokens=100, output_tokens=tokens))
        assert Loop(replace(served, pools=(stages,)), 1.0, 1.0)._few_sequences(4.0) == few
        assert Loop(served, 1.0, 1.0)._few_sequences(4.0) == 640


def test_figures_that_a_run_does_not_have_are_zero():
    run = Run(rate=1.0, ttft=0.5, tpot=0.01, mean_ttft=0.5, mean_tpot=0.01, batch=1.0, busy=(0.5,), worst=0.0)
    assert (run.saturation, run.growth, run.ttft_above, run.tpot_above, run.session) == (0.0, 0.0, 0.0, 0.0, None)


def test_the_time_per_token_at_the_start_follows_from_the_rate():
    """At a low rate it is that of one sequence alone. Then as many sequences decode as come in their time."""
    loop = Loop(deployment(CHAT), 40.0, 1.2)
    alone = float(loop.server.pace.seconds(1, float(mean_context(CHAT))))
    assert loop.expected_tpot(1e-3, 0.0) == pytest.approx(alone, rel=1e-3)
    times = [loop.expected_tpot(rate, 0.0) for rate in (10.0, 20.0, 40.0, 60.0, 1e4)]
    assert np.all(np.diff(times) > 0)
    sequences = math.ceil(loop._in_flight(40.0, times[2]))
    expected = loop.server.pace.seconds(sequences, sequences * float(mean_context(CHAT)))
    assert times[2] == pytest.approx(float(expected), rel=0.01)
    # Prefill takes half of the time.
    assert loop.expected_tpot(1e-3, 0.5) == pytest.approx(2 * alone, rel=1e-3)


def test_a_longer_run_begins_with_the_draws_of_a_shorter_one():
    short, long = (draw(CHAT, count, 3) for count in (1000, 4000))
    for name in ("gaps", "inputs", "outputs"):
        ratio = getattr(long, name)[:1000] / getattr(short, name)
        assert np.median(ratio) == pytest.approx(1.0, abs=0.1)
        assert np.percentile(ratio, (5, 95)) == pytest.approx(np.median(ratio), rel=0.05)


def test_runs_start_in_the_steady_state():
    """As many sequences as the rate times their lifetime; the figures are those of a run of three times the length."""
    short, long = (Loop(deployment(CHAT), 40.0, 1.2, factor=factor) for factor in (1.0, 3.0))
    runs = [loop.run(40.0, st.Slo(tpot=1.0, ttft=100.0), "p90", 4e-3) for loop in (short, long)]
    assert long.count > 2 * short.count
    for name in ("tpot", "mean_tpot", "batch"):
        assert getattr(runs[0], name) == pytest.approx(getattr(runs[1], name), rel=0.07)


@each("slots, kv_tokens, cause", [(60, math.inf, "slots"), (99, 60e3, "memory"), (99, math.inf, "prompt queue")])
def test_a_queue_that_grows_names_what_is_full(slots, kv_tokens, cause):
    """55 sequences of 1,101 tokens on average: of 60 slots, or a cache of 60,000 tokens."""
    loop = Loop(deployment(CHAT, slots=slots), 40.0, 1.2)
    loop.server = loop.server._replace(policy=replace(loop.server.policy, kv_tokens=kv_tokens))
    assert loop.what_is_full(55.0) == cause


def test_a_rate_beyond_what_a_replica_serves_lets_its_queue_grow():
    loop = Loop(deployment(CHAT, slots=16), 100.0, 1.0)
    assert loop.run(1000.0, st.Slo(), "p90", 5e-3).worst == math.inf
    # 16 slots of 200 steps, which take 2.5 ms and more.
    found = Curve(lambda place: loop.run(GRID**place, st.Slo(), "p90", 5e-3)).highest(st.Slo(), 60.0)
    assert 16 < found.rate < 16 / (200 * 2.5e-3)
    assert found.binding == "slots"
    assert found.worst < 0.1


def test_unequal_draws_of_few_requests_end_within_the_context_of_the_model():
    short = replace(deployment(replace(CHAT, input_spread=3.0)), model=replace(MODEL, max_context=1500))
    loop = Loop(short, 10.0, 1.0)
    assert np.max(loop.inputs + loop.outputs) <= 1500
    assert loop.inputs.max() == 1499


def test_separate_pools_wait_for_a_pass_and_the_transfer_of_the_cache():
    """Alone: 10 ms of arithmetic for 1,000 tokens in one pass, then 10 MB over the links; then steps of 2.5 ms."""
    requests = equal_requests(input_tokens=1000, output_tokens=201)
    pools = (
        SimulatedPool(role="prefill", layout=Layout(replicas=2), batch=1, max_num_seqs=1),
        SimulatedPool(role="decode", layout=Layout(replicas=2), batch=8, max_num_seqs=64),
    )
    loop = Loop(replace(deployment(requests), pools=pools), 0.2, 0.6)
    assert (loop.share, loop.read_share, loop.readers) == (1.0, 1.0, 2)
    found = loop.run(0.02, st.Slo(tpot=1.0, ttft=100.0), "p50", 2.5e-3)
    moved = 1000 * 1e4 / 1e10
    assert found.ttft == pytest.approx(0.010 + moved, rel=0.3)
    assert found.tpot == pytest.approx(2.5e-3, rel=0.01)
    # The shares of time in which two replicas of each pool work.
    assert found.busy[0] == pytest.approx(0.02 * 0.010 / 2, rel=0.15)
    assert found.busy[1] == pytest.approx(0.02 * 200 * 2.5e-3 / 2, rel=0.15)


def test_sequences_that_wait_for_a_slot_of_a_decode_pool_do_not_decode():
    """Two slots, in use for 200 steps of 2.5 ms for 3.4 requests/s; times per token contain the wait for a slot."""
    requests = equal_requests(input_tokens=1000, output_tokens=201)
    pools = (
        SimulatedPool(role="prefill", layout=Layout(), batch=1, max_num_seqs=1),
        SimulatedPool(role="decode", layout=Layout(), batch=2, max_num_seqs=2),
    )
    found = Loop(replace(deployment(requests), pools=pools), 3.4, 0.6).run(3.4, st.Slo(), "mean", 2.5e-3)
    assert found.mean_tpot > 1.2 * 2.5e-3
    assert found.batch == pytest.approx(3.4 * 200 * 2.5e-3, rel=0.05)


def test_a_few_of_many_prefill_replicas_have_their_share_of_the_requests():
    pools = (
        SimulatedPool(role="prefill", layout=Layout(replicas=48), batch=1, max_num_seqs=1),
        SimulatedPool(role="decode", layout=Layout(replicas=64), batch=8, max_num_seqs=64),
    )
    loop = Loop(replace(deployment(CHAT), pools=pools), 64 * 20.0, 1.0)
    assert (loop.server.replicas, loop.readers) == (32, 24)
    assert loop.share == loop.read_share == 1 / 2
    long = Loop(replace(deployment(CHAT), pools=pools), 64 * 20.0, 4.0)
    assert (long.server.replicas, long.readers) == (8, 6)
    found = loop.run(64 * 20.0, st.Slo(tpot=1.0, ttft=100.0), "mean", 3e-3)
    # 20 requests/s of each decode replica, 200 tokens each.
    assert found.batch == pytest.approx(20 * 200 * found.mean_tpot, rel=0.1)
    assert found.busy[0] == pytest.approx(64 / 48 * 20 * 0.010, rel=0.1)


# --- runs that stop early --------------------------------------------------------------------------------------------------


def test_a_limit_is_missed_for_certain_once_enough_requests_are_late():
    """Of 100 counted requests, more than 10 beyond the limit decide at p90, and their sum decides at the mean."""
    served = np.zeros(110, dtype=[("arrival", float), ("first", float)])
    served["first"] = np.nan
    counted = np.ones(100, dtype=bool)
    at_p90, at_mean = TooLate(counted, 1.0, "p90"), TooLate(counted, 1.0, "mean")
    # Requests before those that count, and early ones, decide nothing.
    served["first"][:10] = 50.0
    assert not at_p90(served)
    served["first"][10:21] = 2.0
    assert not at_p90(served)
    served["first"][21:23] = 2.0
    assert (at_p90(served), at_p90.is_certain) == (True, True)
    assert not at_mean(served)
    served["first"][23] = 80.0
    assert at_mean(served)


@pytest.mark.parametrize("percentile", ["mean", "p90"])
def test_a_run_that_stops_early_misses_its_limit_as_a_whole_one_does(percentile):
    loop = Loop(deployment(CHAT), 60.0, 1.2)
    for rate, ttft in ((40.0, 100.0), (40.0, 0.001), (300.0, 0.3)):
        slo = st.Slo(tpot=1.0, ttft=ttft)
        whole, check = (loop.run(rate, slo, percentile, 4e-3, is_check=is_check) for is_check in (False, True))
        assert (check.worst > 1) == (whole.worst > 1)
        assert check == whole or math.isinf(check.worst)
        if math.isinf(check.worst):
            assert (check.rate, check.mean_tpot, check.batch, check.busy) == (rate, 4e-3, 0.0, ())
            assert (check.binding, check.mean_ttft, check.saturation) == ("first token", math.inf, 0.0)


def test_requests_that_are_alone_wait_for_nobody():
    """A prompt of 1,000 tokens; no rate has a shorter TTFT."""
    loop = Loop(deployment(equal_requests(input_tokens=1000, output_tokens=201)), 40.0, 1.2)
    alone = loop.quiet_ttft("p90")
    assert alone == pytest.approx(loop.quiet_ttft("mean"))
    assert 0.9 * alone <= loop.run(0.02, st.Slo(tpot=1.0, ttft=100.0), "mean", 2.5e-3).mean_ttft <= 1.5 * alone


@pytest.mark.parametrize("kv_tokens", [math.inf, 2000.0])
def test_requests_that_are_alone_have_the_quantile_of_those_that_the_pool_takes(kv_tokens):
    loop = Loop(deployment(CHAT), 40.0, 1.2)
    policy = replace(loop.server.policy, kv_tokens=min(float(loop.server.policy.kv_tokens), kv_tokens))
    loop.server = loop.server._replace(policy=policy)
    seconds = loop._alone_ttft(loop.inputs)
    assert bool(np.all(np.isfinite(seconds))) == math.isinf(kv_tokens)
    assert loop.quiet_ttft("p90") == pytest.approx(np.quantile(seconds[np.isfinite(seconds)], 0.9))
    assert loop.quiet_ttft("mean") == pytest.approx(np.mean(seconds[np.isfinite(seconds)]))


def test_requests_at_the_start_keep_their_queue_and_stand_in_its_order():
    """Two replicas of one rank: even places have one queue. Few are left as they are."""
    inputs = np.random.default_rng(0).integers(1, 100, 4000)
    present = Traffic(arrival=np.zeros(4000), inputs=inputs, outputs=np.arange(4000))
    server = SimpleNamespace(replicas=2, pace=SimpleNamespace(groups=1, before_token=1e-6))
    ordered = by_length(present, server)
    for queue in (0, 1):
        assert np.all(np.diff(ordered.inputs[queue::2]) >= 0)
        assert sorted(ordered.outputs[queue::2]) == list(range(queue, 4000, 2))
    assert np.array_equal(ordered.inputs, inputs[ordered.outputs])
    # The square of their number is below a million for each queue.
    few, many = (Traffic(arrival=np.zeros(n), inputs=np.arange(n)[::-1], outputs=np.ones(n)) for n in (1414, 1415))
    assert by_length(few, server) is few
    assert by_length(many, server).inputs[0] == 0


def test_the_load_of_decode_is_the_gain_of_a_step_over_that_of_its_batch():
    """Steps of 1 s and 0.1 s per sequence: 1.5 s for 5 and 1.6 s for 6, which is a 15th more for a fifth more sequences."""
    loop = Loop(deployment(CHAT), 40.0, 1.2)
    pace = SimpleNamespace(decode=np.zeros(8), seconds=lambda size, tokens: 1 + 0.1 * size)
    loop.server = loop.server._replace(pace=pace)
    assert loop._load(5.9) == pytest.approx(1 / 3)
    # The table ends at 7 sequences; less than one is one.
    assert loop._load(7.0) == 0.0
    assert loop._load(0.2) == pytest.approx(0.1 / 1.1)


def test_outputs_of_one_token_need_no_decode():
    pools = (
        SimulatedPool(role="prefill", layout=Layout(), batch=1, max_num_seqs=1),
        SimulatedPool(role="decode", layout=Layout(), batch=8, max_num_seqs=64),
    )
    requests = equal_requests(input_tokens=1000, output_tokens=1)
    found = Loop(replace(deployment(requests), pools=pools), 1.0, 0.1).run(1.0, st.Slo(ttft=100.0), "mean", 3e-3)
    assert (found.busy[1], found.batch, found.mean_tpot) == (0.0, 0.0, 0.0)
    assert found.mean_ttft == pytest.approx(0.010, rel=0.02)


def test_a_coarse_pool_reads_prompts_next_to_the_sequences_that_it_does_not_have():
    """Of 400 sequences a quarter are simulated: a chunk comes after 300 more rows, of which each of four ranks has 75."""
    whole = Loop(deployment(CHAT), 40.0, 1.2).server
    rows = np.arange(1000.0)
    pace = replace(whole.pace, rows=rows, shared_rows=2 * rows, rank_rows=3 * rows, groups=4)
    coarse = coarse_server(whole._replace(pace=pace), 4, 400.0, 1000.0).pace
    assert (coarse.rows[0], coarse.shared_rows[0], coarse.rank_rows[0]) == (300, 600, 225)
    assert (coarse.rows[-1], coarse.rank_rows[-1]) == (999, 3 * 999)
    # A table that is shorter ends with its last slope.
    short = coarse_server(whole._replace(pace=replace(pace, rows=rows[:100])), 4, 400.0, 1000.0).pace
    assert short.rows.tolist() == [98, 99]


# --- parts of a run by hand -----------------------------------------------------------------------------------------------


def bare_loop(**attributes) -> Loop:
    """Return a loop with these attributes alone, without step times."""
    loop = Loop.__new__(Loop)
    vars(loop).update(attributes)
    return loop


def test_requests_after_a_tenth_of_the_arrivals_and_before_the_last_lifetime_count():
    """Of 1,000 arrivals in 1,000 s those from 100 s to 950 s; where fewer than 200 are left, the end counts too."""
    arrival = np.arange(1, 1001, dtype=float)
    counted = bare_loop(lifetime=50.0)._counted(arrival)
    assert (np.flatnonzero(counted)[0], np.flatnonzero(counted)[-1], counted.sum()) == (100, 948, 849)
    for lifetime, count in ((699.0, 200), (700.0, 900)):
        assert bare_loop(lifetime=lifetime)._counted(arrival).sum() == count


def test_a_smaller_share_of_decode_replicas_gets_prompts_in_turn(monkeypatch):
    """Half of the decode share: every second prompt, in the order in which its cache arrives, if it has further tokens."""
    requests = new_requests(np.arange(8.0), np.arange(100, 108), np.array([1, 5, 5, 5, 5, 1, 5, 5]), 0, 0, 0.0)
    requests["finish"], requests["status"] = np.arange(8.0) + 10, DONE
    requests["status"][7] = 0
    seen = []

    def serve(both, policy, pace, *, replicas, cached):
        seen.append((both, pace, replicas, cached))
        served = new_requests(both.arrival, both.inputs, both.outputs, 0, 0, 0.0)
        served["finish"], served["scheduled"], served["status"] = both.arrival + 100, both.arrival + 1, DONE
        served["preempted"] = 3
        return served, SimpleNamespace(seats=4), SimpleNamespace(seconds=np.ones((1, 8)))

    monkeypatch.setattr(simulated_rate, "serve", serve)
    pace = replace(Loop(deployment(CHAT), 40.0, 1.2).server.pace, before=1.0, before_token=1.0)
    # The cache of prompt 103 comes last.
    loop = bare_loop(
        share=0.2, read_share=0.4, sent=lambda rows: np.where(rows["inputs"] == 103, 9.0, 0.5),
        server=Server(SimpleNamespace(), pace, 3),
    )  # fmt: skip
    started = Traffic(arrival=np.zeros(2), inputs=np.array([7, 8]), outputs=np.array([2, 2]))
    found, ends, queue, busy = loop._decode(requests.copy(), started)
    both, pace, replicas, cached = seen[0]
    assert found["inputs"].tolist() == [101, 103, 105, 107]
    assert both.inputs.tolist() == [7, 8, 101, 103]
    assert both.arrival.tolist() == [0, 0, 11.5, 22.0]
    assert (pace.before, pace.before_token, replicas, cached.tolist()) == (0.0, 0.0, 3, [7, 8, 101, 103])
    assert (ends.tolist(), busy) == ([100, 100], 1.0)
    assert found["finish"].tolist() == [111.5, 122.0, 15.0, 17.0]
    assert (found["moved"][:2].tolist(), found["resumed"][:2].tolist()) == ([11.5, 22.0], [12.5, 23.0])
    assert (found["preempted"].tolist(), queue[0], queue[3]) == ([3, 3, 0, 0], "decode", 12)
    # Equal shares have all prompts; the one whose cache comes last decodes last.
    loop.share = 0.4
    all_, *_ = loop._decode(requests.copy(), started)
    assert (len(all_), seen[1][0].inputs.tolist()) == (8, [7, 8, 101, 102, 104, 106, 103])


def test_a_prefill_pool_has_the_seats_of_all_replicas(monkeypatch):
    """Its requests have one token there, and all of theirs afterwards."""
    seen = []

    def serve(traffic, policy, pace, *, replicas, cached):
        seen.append((traffic.outputs.tolist(), policy, pace, replicas, cached))
        served = new_requests(traffic.arrival, traffic.inputs, traffic.outputs, 0, 0, 0.0)
        served["scheduled"] = traffic.arrival + 1
        return served, SimpleNamespace(seats=4), SimpleNamespace(seconds=np.full((3, 8), 2.0))

    monkeypatch.setattr(simulated_rate, "serve", serve)
    came = Traffic(arrival=np.arange(3.0), inputs=np.array([7, 8, 9]), outputs=np.array([0, 1, 50]))
    requests, queue, busy = bare_loop(reader=Server("policy", "pace", 3))._prefill(came, "skipped")
    assert seen == [([0, 1, 1], "policy", "pace", 3, "skipped")]
    assert (requests["outputs"].tolist(), busy) == ([0, 1, 50], 1.0)
    assert (queue[0], queue[1].tolist(), queue[2].tolist(), queue[3]) == ("prefill", [0, 1, 2], [1, 2, 3], 12)


def test_the_share_of_time_at_work_is_that_of_all_replicas():
    seconds = np.zeros((2, max(BUSY, CLOCK) + 1))
    seconds[:, BUSY], seconds[:, CLOCK] = (3.0, 1.0), (4.0, 4.0)
    assert busy_share(SimpleNamespace(seconds=seconds)) == 0.5
    assert busy_share(SimpleNamespace(seconds=0 * seconds)) == 0.0


@each(
    "layout, tokens, sequences, parts",
    [
        (Layout(), 2001, 2048 * 3.9, 3),  # of 2,048 sequences each
        (Layout(dp=64), 2001, 4096 * 3.0, 3),  # of 64 sequences of each of 64 ranks
        (Layout(), 65, 1e6, 2),  # of 32 steps
        (Layout(), 33, 1e6, 1),
        (Layout(), 10_001, 1e6, 64),
        (Layout(), 2001, 10.0, 1),
        (Layout(pp=2, microbatches=2), 2001, 1e6, 1),
    ],
)
def test_sequences_for_which_one_stands_by_hand(layout, tokens, sequences, parts):
    served = deployment(equal_requests(input_tokens=100, output_tokens=tokens))
    loop = bare_loop(deployment=replace(served, pools=(replace(served.pools[0], layout=layout),)))
    assert loop._sequences_for_one(sequences) == parts


def test_a_table_by_powers_of_two_is_read_where_each_row_stands_for_several():
    """Rows 0, 1, 2 and 3 have 0, 1, 3 and 7 sequences; of three times as many, 3 are in row 2, and more end the table."""
    table = np.array([[0.0], [10.0], [20.0], [40.0]])
    assert _coarse_axis(table, 3)[:, 0] == pytest.approx([0, 20, 40, 40])
    # Of twice as many, 2 are between rows 1 and 2, and 6 between rows 2 and 3.
    between = 10 + 10 * (math.log2(3) - 1), 20 + 20 * (math.log2(7) - 2)
    assert _coarse_axis(table, 2)[:, 0] == pytest.approx([0, *between, 40])
    assert _coarse_axis(None, 3) is None
    one = table[:1]
    assert _coarse_axis(one, 3) is one
    assert _coarse_axis(table[:2], 1)[:, 0].tolist() == [0.0, 10.0]


def test_a_coarse_pool_has_a_part_of_the_slots_and_as_many_tokens_a_step():
    """Of 66 slots and 1,000 tokens of cache a quarter; steps of 4 sequences, whose contexts deviate twice as much."""
    whole = Loop(deployment(CHAT), 40.0, 1.2).server
    policy = replace(whole.policy, max_num_seqs=66, kv_tokens=1000.0, acceptance_length=1.5, speculative_tokens=2)
    count = len(whole.pace.decode)
    pace = replace(whole.pace, decode=1.0 + np.arange(count), context=np.full(count, 1e-3))
    coarse = coarse_server(Server(policy, pace, 2), 4, 40.0, 100.0)
    found = coarse.policy
    assert (found.max_num_seqs, found.kv_tokens, found.acceptance_length, found.speculative_tokens) == (17, 250.0, 6.0, 11)
    # Half of the contexts have their mean; the others are twice as long for half as much.
    assert coarse.pace.decode[:3] == pytest.approx([1.0, 5 + 4 * 0.1 / 2, 9 + 8 * 0.1 / 2])
    assert coarse.pace.context[1] == pytest.approx(2e-3)
    assert (coarse.replicas, len(coarse.pace.decode)) == (2, -(-count // 4))
    same = Server(policy, pace, 2)
    assert coarse_server(same, 1, 40.0, 100.0) is same


def test_sequences_at_the_start_by_littles_law_are_at_most_the_slots():
    """200 steps of 5 ms at 10 requests/s: 10 sequences, and at most the slots. A cache of 1,100 tokens ends contexts."""
    loop = Loop(deployment(CHAT), 40.0, 1.2)
    assert (len(loop.started(10.0, 5e-3)), len(loop.started(100.0, 5e-3))) == (10, loop.server.policy.max_num_seqs)
    loop.server = loop.server._replace(policy=replace(loop.server.policy, kv_tokens=1100.0))
    started = loop.started(10.0, 5e-3)
    assert np.max(started.inputs + started.outputs) <= 1100
    assert started.inputs.max() == 1099


def test_more_random_numbers_begin_with_those_of_fewer():
    """They are drawn in powers of two, of 8,192 at least, from three streams."""
    for few, many in zip(simulated_rate.deviates(3, 1), simulated_rate.deviates(10_000, 1), strict=True):
        assert (len(few), len(many)) == (3, 10_000)
        assert np.array_equal(few, many[:3])
    uniform, first, second = simulated_rate.deviates(100, 2)
    assert (uniform.min() >= 0, uniform.max() < 1, np.array_equal(first, second)) == (True, True, False)
    assert np.array_equal(uniform, np.random.default_rng((2, 0)).random(100))


def test_a_run_that_was_stopped_has_its_rate_and_no_figures():
    found = simulated_rate._missed_run(3.0, 0.01)
    assert (found.rate, found.tpot, found.mean_tpot, found.batch, found.busy) == (3.0, 0.01, 0.01, 0.0, ())
    assert (found.ttft, found.mean_ttft, found.worst, found.binding) == (math.inf, math.inf, math.inf, "first token")


@each(
    "slots, rate, lifetime, count, lasts",
    [
        (4000, 1000.0, 1.0, 4096, 1.0),  # four lifetimes of 1,000 requests
        (4000, 1000.0, 2.0, 6888, 2.0),  # three of 2,000, up to the next quarter of a power of two
        (4000, 2000.0, 2.0, 8192, 2.0),  # two of 4,000 at least
        (64, 1000.0, 1.0, 2896, 0.096),  # no more than 1.5 times the slots are in flight
        (64, 10.0, 1.0, 2896, 1.0),  # 201 output tokens, and prompts that take as long as 8: 256 / 209 of 2,000
        (64, 0.1, 1.0, 2896, 10.0),  # one at least
    ],
)
def test_lengths_of_runs_by_hand(slots, rate, lifetime, count, lasts):
    loop = Loop(deployment(CHAT, slots=slots), rate, lifetime)
    assert (loop.count, loop.lifetime, loop.parts) == (count, pytest.approx(lasts), 1)


@each("first, lasts", [(0.0, 0.3), (0.2, 0.4), (0.6, 0.6), (9.0, 0.6)])
def test_where_one_sequence_stands_for_two_decode_takes_half_the_time(first, lasts):
    """At 10,000 requests/s for 0.6 s, 6,000 sequences are in flight; the part until the first token is as long."""
    served = deployment(equal_requests(input_tokens=100, output_tokens=2001), slots=9000)
    loop = Loop(served, 1e4, 0.6, first=first)
    assert (loop.parts, loop.lifetime) == (2, pytest.approx(lasts))


@each("inputs, output, count", [(128, 255, 2048), (128, 127, 4096), (32640, 1, 2048), (64, 8, 4096)])
def test_runs_of_short_requests_have_up_to_twice_as_many(inputs, output, count):
    assert Loop(deployment(equal_requests(input_tokens=inputs, output_tokens=output)), 10.0, 1.0).count == count


def test_a_longer_run_has_more_requests_by_its_factor():
    """Three times 2,000 requests at least: 6,000."""
    assert Loop(deployment(CHAT), 10.0, 1.0, factor=3.0).count == 6888


def test_pipelines_have_few_requests_in_four_replicas_or_as_many_as_have_640_sequences():
    """3,840 are in flight on 64 replicas, 60 on each: two lifetimes of 8,000 tokens leave 125 sequences, of 1,000 all 640."""
    stages = SimulatedPool(role="serve", layout=Layout(pp=2, microbatches=2, replicas=64), batch=8, max_num_seqs=64, chunk=512)
    for tokens, count, replicas in ((8000, 512, 4), (1000, 2048, 10)):
        served = replace(deployment(equal_requests(input_tokens=100, output_tokens=tokens)), pools=(stages,))
        loop = Loop(served, 64 * 10.0, 6.0)
        assert (loop.server.replicas, loop.count >= count) == (replicas, True)


def test_as_few_replicas_are_simulated_as_have_requests_enough():
    """Two lifetimes of 8,000 in flight on eight replicas: three of them have 6,000 requests, and 9,000 of a longer run."""
    for factor, count in ((1.0, 6888), (1.5, 9741)):
        loop = Loop(deployment(CHAT, replicas=8, slots=1100), 4000.0, 2.0, factor=factor)
        assert (loop.server.replicas, loop.share, loop.parts, loop.count) == (3, 3 / 8, 1, count)
