"""Steady states by hand: how often steps bring prompts, what users wait for, and what replicas deliver."""

from __future__ import annotations

from dataclasses import replace
from math import exp

import numpy as np
import pytest

import steptime as st
from steptime.errors import RangeError
from steptime.models.model import Attention
from steptime.physics.layout import Layout
from steptime.physics.step import decode_step, mixed_step, prefill_step
from steptime.planning.chunked_prefill import interleaved_prefill_share
from steptime.planning.prefill_pool import first_token, prefill_pool, within_limit
from steptime.planning.steady_state import (
    State,
    Transfer,
    aggregated,
    decode_pool,
    decode_steps,
    fresh_tokens,
    grown,
    in_flight,
    kv_transfer,
    longest_prefix,
    mean_context,
    seats_for,
    split_chunks,
    ttft_seen,
)
from tests.conftest import each, engine, experts, machine, model_of, one_matrix
from tests.planning.cases import equal_requests

KV = Attention(name="kv", kv_bytes=1000.0, kv_shards=64, heads=64)
DENSE = one_matrix()  # 2.5 ms of weights in a step, 10 us of arithmetic a row, 10 kB a token of cache
LIGHT = one_matrix(kv_bytes=1e-6)  # whose cache costs nothing
SPARSE = model_of(experts(weights=1e8), attention=(KV,))
CHIP = machine()
WORK = equal_requests(input_tokens=1000, output_tokens=201)
IDEAL = engine()


@each(
    "sizes, fresh, steps, context",
    [
        ((1000, 201, 0.0), 1000, 200, 1100.5),
        ((1000, 201, 0.25), 750, 200, 1100.5),
        ((1000, 1, 0.0), 1000, 1, 1000.5),  # the first token comes from prefill
        ((1000, 2, 0.0), 1000, 1, 1001),
        ((10, 3, 0.99), 1, 2, 11.5),  # at least one
    ],
)
def test_what_a_request_brings(sizes, fresh, steps, context):
    workload = equal_requests(input_tokens=sizes[0], output_tokens=sizes[1], cached_share=sizes[2])
    assert (fresh_tokens(workload), decode_steps(workload), mean_context(workload)) == (fresh, steps, context)


@each(
    "sizes, sequences, growing, expected",
    [
        ((1000, 201), 100, 0, 131),  # 100 + 3 sqrt(100 x (1 + (201 / 1,100.5)^2 / 12)) = 130.04
        ((1000, 201), 0, 0, 0),
        ((1000, 201), 1, 0, 5),  # 1 + 3.004
        ((100_000, 1), 100, 0, 130),  # contexts all alike: Poisson's deviation alone
        ((1, 199_998), 100, 0, 135),  # from nothing to twice the mean: 100 + 3 sqrt(100 x 4 / 3) = 134.64
        ((100_000, 1), 100, 0.75, 160),  # steps of which three quarters grow with the batch: twice the deviation
        ((100_000, 1), 100, 0.99, 195),  # at most those of a load of 0.9: 100 + 3 sqrt(1000) = 194.87
    ],
)
def test_room_for_what_is_in_cache_to_vary(sizes, sequences, growing, expected):
    assert seats_for(equal_requests(input_tokens=sizes[0], output_tokens=sizes[1]), sequences, growing) == expected


@pytest.mark.thorough
def test_the_number_in_a_server_that_they_share_is_negative_binomial():
    """Requests of one second's work, each of which N slow down to 1 / (3 + N): of a load of 0.6 the mean is 6, the variance 15.

    A simulation; exact for any work.
    """
    draw, left, sums = np.random.default_rng(5), np.zeros(0), np.zeros(3)
    coming = draw.exponential(1 / 0.6)
    for _ in range(60_000):
        slow = 3.0 + len(left)
        step = min(coming, float(np.min(left, initial=np.inf)) * slow)
        sums += step * np.array([1.0, len(left), len(left) ** 2])
        left, coming = left - step / slow, coming - step
        left = left[left > 1e-12]
        if coming <= 1e-12:
            left, coming = np.append(left, 1.0), draw.exponential(1 / 0.6)
    mean, square = sums[1:] / sums[0]
    assert (mean, square - mean**2) == (pytest.approx(6, rel=0.05), pytest.approx(15, rel=0.1))


def test_the_number_in_a_server_that_they_share_varies_more():
    """Of a load of 0.6 the mean is 6, the variance 15. A token is made among seven, and g = 7 / 10, of which 6 / 7 count."""
    steps = decode_pool(DENSE, CHIP, WORK, layout=Layout(), batch=7, engine=IDEAL)
    slower = replace(steps.decode, resources={"weights": 3.0, "compute": 7.0}, total=10.0)
    assert grown(slower, 10.0, 7) == pytest.approx(0.6)
    assert seats_for(equal_requests(input_tokens=100_000, output_tokens=1), 6, 0.6) == np.ceil(6 + 3 * np.sqrt(15))


def room(sequences: float, batch: int, state: State, step: float) -> float:
    """Seats by hand, three deviations of the tokens in cache, whose variance is larger where less of a step is fixed."""
    fixed = sum(float(state.decode.resources.get(name, 0.0)) for name in ("weights", "overhead", "latency"))
    grows = (1 - fixed / step) * (1 - 1 / batch)
    return float(np.ceil(sequences + 3 * np.sqrt(sequences * 1.00278 / (1 - min(grows, 0.9)))))


@each("chunk, cut", [(500, (500, 2, 1)), (334, (334, 3, 1)), (1000, (1000, 1, 1)), (1999, (1000, 1, 1)), (3000, (1000, 1, 3))])
def test_how_prompts_are_cut(chunk, cut):
    """A prompt of 1,000 tokens: two chunks of 500, three of 334; three prompts in a chunk of 3,000."""
    assert split_chunks(WORK, chunk) == cut


@each(
    "cached, tokens, reads, prefix",
    [(0.0, 250, 1, 375), (0.0, 250, 3, 625), (0.0, 250, 9, 750), (0.25, 250, 1, 500), (0.25, 750, 5, 250), (0.0, 1000, 8, 0)],
)
def test_the_longest_prefix_of_several_chunks(cached, tokens, reads, prefix):
    """Of three places among four chunks the last is 4 x 3/4 - 1/2 = 2.5, of nine the last one; after 250 tokens in cache."""
    assert longest_prefix(replace(WORK, cached_share=cached), tokens, reads) == pytest.approx(prefix)


@each("batch, replicas, share", [(4, 2, 7 / 8), (1, 10, 0.9), (100, 1, 0.99), (1, 1, 0.0)])
def test_an_arrival_finds_the_mean_number_of_others(batch, replicas, share):
    """R B sequences share tokens where R B - 1 are in flight in the mean, and one more comes."""
    assert in_flight(batch, replicas) == pytest.approx(share)


def test_sizes_of_a_workload_and_limits():
    with pytest.raises(RangeError, match="input tokens must be at least 1 token, not 0"):
        equal_requests(input_tokens=0, output_tokens=5)
    for share in (-0.1, 1.0):
        with pytest.raises(RangeError, match="cached share must be a share of at least 0 and below 1"):
            equal_requests(input_tokens=1, output_tokens=1, cached_share=share)
    for name in ("ttft", "tpot"):
        with pytest.raises(RangeError, match=f"the {name.upper()} limit must be greater than 0 s, not 0"):
            st.Slo(**{name: 0})
    assert equal_requests(input_tokens=1, output_tokens=1).cached_share == 0
    assert st.Slo().ttft == st.Slo().tpot == np.inf


def vacations(rate: float, service: float, idle: float) -> float:
    """The mean wait of M/G/1 whose server goes away for `idle` when nobody waits: lambda S^2 / (2 (1 - rho)) + V / 2."""
    return rate * service**2 / (2 * (1 - rate * service)) + idle / 2


def test_decode_and_prompts_that_share_a_chip():
    """16 sequences, one the arrival, 200 steps, prompts of 1,000 in chunks of 500: some 0.15 of the steps have a chunk."""
    state = aggregated(DENSE, CHIP, WORK, layout=Layout(), batch=16, chunk=500, engine=IDEAL)
    alone = float(decode_step(DENSE, CHIP, batch=16, context=1100.5, engine="ideal").total)
    mixed = float(mixed_step(DENSE, CHIP, batch=16, context=1100.5, prompts=1, tokens=500, prefix=250, engine="ideal").total)
    assert state.decode.total == alone
    assert state.mixed.total == pytest.approx(mixed)
    seen, _ = interleaved_prefill_share(15, 200, 2, alone, mixed)
    assert 0.15 < seen < 0.16
    assert (state.decode_only_share, state.chunks_per_mixed_step) == (pytest.approx(1 - seen), 1)
    tpot = (1 - seen) * alone + seen * mixed
    assert state.tpot == pytest.approx(tpot)
    assert state.rate == pytest.approx(16 / (200 * tpot))
    rate = 15 / (200 * tpot)
    assert state.utilisation == pytest.approx(rate * 2 * mixed)  # of time: each request takes two slow steps
    assert state.ttft == pytest.approx(vacations(rate, 2 * mixed, alone) + 2 * mixed)
    assert state.input_share == pytest.approx(seen * (mixed - alone) / tpot)
    assert state.lower == pytest.approx((1 - seen) * float(state.decode.lower) + seen * float(state.mixed.lower))
    assert state.upper == pytest.approx((1 - seen) * float(state.decode.upper) + seen * float(state.mixed.upper))


def test_memory_of_decode_and_prompts_that_share_a_chip():
    """16 sequences and 0.15 that read, of a mean step of 2.97 ms 2.5 are weights: 30 seats; and a step of 516 tokens."""
    state = aggregated(DENSE, CHIP, WORK, layout=Layout(), batch=16, chunk=500, engine=IDEAL)
    assert float(state.decode.resources["weights"]) == pytest.approx(2.5e-3)
    assert state.max_num_seqs == room(16.16, 16, state, float(state.tpot)) == 30
    assert state.memory.cache == pytest.approx(30 * 1e4 * 1100.5)
    assert state.memory.activations == pytest.approx(516 * 2 * 2000)
    assert state.memory.weights == 10e9


def test_prompts_that_share_a_chunk():
    """Chunks of 2,500 hold two prompts of 1,000: 0.075 prompts a step, some of them two in one; nothing before them."""
    state = aggregated(DENSE, CHIP, WORK, layout=Layout(), batch=16, chunk=2500, engine=IDEAL)
    assert float(state.chunks_per_mixed_step * (1 - state.decode_only_share)) == pytest.approx(15 / 200)
    assert 1 < float(state.chunks_per_mixed_step) < 1.1
    given = {"batch": 16, "context": 1100.5, "tokens": 1000, "prefix": 0, "engine": "ideal"}
    once, twice = (float(mixed_step(DENSE, CHIP, prompts=n, **given).total) for n in (1, 2))
    assert state.mixed.total == pytest.approx(once + (float(state.chunks_per_mixed_step) - 1) * (twice - once), rel=1e-3)
    assert state.memory.activations == pytest.approx(2016 * 2 * 2000)
    alone = aggregated(DENSE, CHIP, WORK, layout=Layout(), batch=16, chunk=1000, engine=IDEAL)
    assert state.utilisation == pytest.approx(float(alone.utilisation), rel=0.15)  # two places, that take twice as long
    assert state.tpot == pytest.approx(float(alone.tpot), rel=0.01)
    assert state.ttft == pytest.approx(float(alone.ttft), rel=0.1)  # a queue that is seldom busy


def test_cached_prompts_come_before_a_chunk():
    """A quarter cached: 750 fresh in chunks of 500 take two; after 250 + 125 tokens in the mean."""
    cached = replace(WORK, cached_share=0.25)
    state = aggregated(DENSE, CHIP, cached, layout=Layout(), batch=16, chunk=500, engine=IDEAL)
    alone = float(decode_step(DENSE, CHIP, batch=16, context=1100.5, engine="ideal").total)
    mixed = float(mixed_step(DENSE, CHIP, batch=16, context=1100.5, prompts=1, tokens=500, prefix=375, engine="ideal").total)
    seen, _ = interleaved_prefill_share(15, 200, 2, alone, mixed)
    assert state.decode_only_share == pytest.approx(1 - seen)
    assert state.mixed.total == pytest.approx(mixed)
    rate = 15 / (200 * ((1 - seen) * alone + seen * mixed))
    assert state.ttft == pytest.approx(vacations(rate, 2 * mixed, alone) + 2 * mixed)


def test_groups_read_prompts_each():
    """Four groups, 0.63 chunks a step: more steps are quiet than the 0.84^4 of groups that know nothing of one another."""
    layout = Layout(dp=4, ep=4, microbatches=2)
    state = aggregated(SPARSE, CHIP, WORK, layout=layout, batch=64, chunk=500, engine=IDEAL)
    quiet, reads = float(state.decode_only_share), float(state.chunks_per_mixed_step)
    assert 0.8425**4 < quiet < 0.8425**4 + 0.1
    assert reads * (1 - quiet) == pytest.approx(0.63)
    given = {"batch": 64, "context": 1100.5, "layout": layout, "engine": "ideal"}
    mixed = mixed_step(SPARSE, CHIP, prompts=reads, tokens=500, prefix=500 * (2 * reads / (reads + 1) - 0.5), **given)
    assert state.mixed.total == pytest.approx(float(mixed.total))
    alone = float(decode_step(SPARSE, CHIP, **given).total)
    assert state.tpot == pytest.approx(quiet * alone + (1 - quiet) * float(mixed.total))
    assert state.max_num_seqs == room(64.64, 64, state, float(state.tpot)) == 89
    assert state.memory.cache == pytest.approx(23 * 1e4 * 1100.5)  # 23 of 89 in a group
    assert state.memory.activations == pytest.approx(516 / 2 * 2 * 2000)


def test_a_search_takes_arrivals_that_do_not_depend_on_steps():
    """0.63 chunks a step: 0.63 / (1 - e^-0.63) = 1.349 in a slow one; times near those of the whole reckoning."""
    given = {"layout": Layout(dp=4, ep=4), "batch": 64, "chunk": 500, "engine": IDEAL}
    quick, slow = (aggregated(SPARSE, CHIP, WORK, quick=quick, **given) for quick in (True, False))
    reads = 0.63 / (1 - exp(-0.63))
    mixed = mixed_step(
        SPARSE, CHIP, batch=64, context=1100.5, prompts=reads, tokens=500, prefix=500 * (2 * reads / (reads + 1) - 0.5),
        layout=given["layout"], engine="ideal",
    )  # fmt: skip
    assert quick.mixed.total == pytest.approx(float(mixed.total))
    assert quick.tpot == pytest.approx(float(slow.tpot), rel=0.03)
    assert quick.ttft == pytest.approx(float(slow.ttft), rel=0.1)


@pytest.mark.parametrize("quick", [False, True])
def test_chunks_of_any_size_bring_the_same_prompts(quick):
    """A machine that only computes: a token takes 64 x 10 us, and the 320 prompt tokens of a step 3.2 ms, however cut."""
    sizes = np.array([125, 250, 500, 1000, 2000, 4000, 8000])
    given = {"layout": Layout(), "chunk": sizes, "engine": IDEAL, "quick": quick}
    state = aggregated(LIGHT, machine(bandwidth=1e30), WORK, batch=np.array([[2], [64]]), **given)
    kept = (state.utilisation < 1) & (sizes > 1000)  # of one prompt at once, tokens see more than come
    assert np.sum(kept[1]) >= 3
    expected = np.broadcast_to(1e-5 * (np.array([[2], [64]]) + np.array([[1], [63]]) * 1000 / 200), kept.shape)
    assert state.tpot[kept] == pytest.approx(expected[kept], rel=1e-3)
    assert np.all((state.tpot >= expected * (1 - 1e-3))[state.utilisation < 1])
    load = np.broadcast_to(np.array([[1], [63]]) / 200, kept.shape)
    assert (state.chunks_per_mixed_step * (1 - state.decode_only_share))[kept] == pytest.approx(load[kept])


def test_a_prompt_queue_that_is_full_grows_without_end():
    """80, 101 and 301 sequences, of whom one arrives, bring 0.79, 1 and 3 chunks a step to one slot."""
    state = aggregated(DENSE, CHIP, WORK, layout=Layout(), batch=np.array([80, 101, 301]), chunk=500, engine=IDEAL)
    assert state.decode_only_share[1:] == pytest.approx([0.0, 0.0], abs=1e-6)
    assert 0.1 < state.decode_only_share[0] < 0.21
    assert np.all(state.utilisation[1:] >= 1)
    assert 0.79 < state.utilisation[0] < 1
    assert np.isfinite(state.ttft).tolist() == [True, False, False]
    assert state.tpot[2] == pytest.approx(state.mixed.total[2])


def test_more_sequences_wait_longer_and_serve_more():
    batch = np.arange(8, 90, 8)[:, None]
    state = aggregated(SPARSE, CHIP, WORK, layout=Layout(dp=4, ep=4), batch=batch, chunk=np.array([500, 2000]), engine=IDEAL)
    for rising in (state.tpot, state.ttft, state.rate, state.utilisation, state.max_num_seqs):
        assert np.all(np.diff(rising, axis=0) > 0)
    assert np.all((state.lower <= state.tpot * (1 + 1e-12)) & (state.tpot <= state.upper * (1 + 1e-12)))


def test_a_pool_that_only_decodes():
    """400 sequences, 200 steps each: two requests a step, and room for more where steps grow with the batch."""
    state = decode_pool(DENSE, CHIP, WORK, layout=Layout(), batch=400, engine=IDEAL)
    step = decode_step(DENSE, CHIP, batch=400, context=1100.5, engine="ideal")
    assert state.tpot == step.total
    assert state.rate == pytest.approx(2 / float(step.total))
    assert (state.ttft, state.utilisation, state.input_share, state.decode_only_share, state.chunks_per_mixed_step) == (
        0,
        0,
        0,
        1,
        0,
    )
    assert (state.lower, state.upper, state.mixed) == (step.lower, step.upper, None)
    assert state.max_num_seqs == room(400, 400, state, float(step.total)) > 451
    assert state.memory.cache == pytest.approx(float(state.max_num_seqs) * 1e4 * 1100.5)
    groups = decode_pool(SPARSE, CHIP, WORK, layout=Layout(dp=4, ep=4), batch=400, engine=IDEAL)
    held = room(400, 400, groups, float(groups.tpot))
    assert groups.memory.cache == pytest.approx(np.ceil(held / 4) * 1e4 * 1100.5)


# --- pools of prompts ------------------------------------------------------------------------------------------------------


def test_a_pool_that_only_prefills():
    """Two prompts a group of four: passes of up to eight, four of them side by side; a quarter of the prompt is cached."""
    layout, cached = Layout(dp=4, ep=4, microbatches=2), replace(WORK, cached_share=0.25)
    pool = prefill_pool(SPARSE, CHIP, cached, layout=layout, prompts=2, engine=IDEAL)
    one, four, six, eight = (  # half of the groups have both prompts at six
        float(prefill_step(SPARSE, CHIP, tokens=750, prompts=n, prefix=250, layout=layout, engine="ideal").total)
        for n in (1, 4, 6, 8)
    )
    assert (pool.seats, pool.step.total) == (8, eight)
    assert pool.time(np.array([1, 4, 6, 8])) == pytest.approx([one, four, six, eight])
    assert pool.time(np.array([2, 5, 7])) == pytest.approx([one + (four - one) / 3, (four + six) / 2, (six + eight) / 2])
    assert pool.rate == pytest.approx(8 / eight)
    assert (pool.late, pool.most_utilised) == (0, pytest.approx(0.9))
    assert pool.memory.cache == pytest.approx(4 * 1e4 * 1000)  # a pass under way and one being sent: 16 over four groups
    assert pool.memory.activations == pytest.approx(2 * 750 / 2 * 2 * 2000)
    assert within_limit(pool, 1e-6, 1).most_utilised == 0


def test_a_group_with_a_second_prompt_holds_up_all_others():
    """12 groups: the thirteenth prompt makes one group work twice as long, and the pass a third longer and more."""
    model, system, engine = st.load_model("deepseek-v3"), st.load_system("gb200-nvl72"), st.load_engine("vllm")
    work, layout = (
        equal_requests(input_tokens=8192, output_tokens=1024),
        Layout(dp=12, ep=12, microbatches=2, redundant_experts=8),
    )
    time = prefill_pool(model, system, work, layout=layout, prompts=2, engine=engine).time
    counts = np.array([1, 12, 13, 18, 24])
    steps = prefill_step(model, system, tokens=8192, prompts=counts, layout=layout, engine=engine).total
    assert time(counts) == pytest.approx(steps, rel=1e-9)
    assert float(steps[2]) > 1.33 * float(steps[1])


def test_how_busy_a_prefill_pool_may_be():
    """One prompt at a time: a limit of 1.5 passes leaves half a pass to wait, 0.5 of the time."""
    given = {"layout": Layout(), "prompts": 1, "engine": IDEAL}
    once = float(prefill_pool(DENSE, CHIP, WORK, **given).step.total)
    pool = within_limit(prefill_pool(DENSE, CHIP, WORK, **given), 1.5 * once, 1)
    assert pool.most_utilised == pytest.approx(0.5, abs=1e-3)
    assert first_token(pool, 0.5, 1) == pytest.approx(1.5 * once)
    assert float(first_token(pool, 0.5, 2)) < 1.5 * once  # two that share their queue


@each("stages, prompts", [(2, 1), (2, 2), (5, 5)])
def test_a_prompt_is_under_way_through_all_stages(stages, prompts):
    """P micro-batches through P stages last (2P - 1) / P of the period at which passes follow one another."""
    layout = Layout(pp=stages, microbatches=stages)
    pool = prefill_pool(LIGHT, CHIP, WORK, layout=layout, prompts=prompts, engine=IDEAL)
    period = prompts * 10e-3 / stages  # 1,000 tokens of 20 GFLOP at 2 PFLOP/s: 10 ms on one chip
    assert pool.step.total == pytest.approx(period, rel=1e-6)
    assert 1 + pool.late == pytest.approx((2 * stages - 1) / stages)
    alone = prefill_pool(LIGHT, CHIP, WORK, layout=layout, prompts=1, engine=IDEAL)
    seldom = first_token(alone, 1e-6, 1)  # nobody waits
    assert seldom == pytest.approx((2 * stages - 1) / stages * max(10e-3, 2.5e-3 * stages) / stages, rel=1e-4)


def test_stages_of_a_replica_that_also_decodes_delay_its_first_tokens():
    """Two stages: what a chunk is under way beyond its step is added to the wait and the two steps of its prompt."""
    layout = Layout(pp=2, microbatches=2)
    state = aggregated(LIGHT, CHIP, WORK, layout=layout, batch=16, chunk=500, engine=IDEAL)
    given = {"batch": 16, "context": 1100.5, "layout": layout, "engine": "ideal"}
    alone = float(decode_step(LIGHT, CHIP, **given).total)
    mixed = mixed_step(LIGHT, CHIP, prompts=1, tokens=500, prefix=250, **given)
    once = float(mixed.total)
    seen, _ = interleaved_prefill_share(15, 200, 2, alone, once)
    rate = 15 / (200 * ((1 - seen) * alone + seen * once))
    beyond = float(mixed.latency) - once
    assert beyond == pytest.approx(once / 2, rel=1e-3)
    assert state.ttft == pytest.approx(vacations(rate, 2 * once, alone) + 2 * once + beyond)


def test_what_an_engine_adds_to_a_first_token():
    """0.1 s and 10 us a token before the queue, 3 steps of 20 ms until it is seen, 2 more where groups wait for prompts."""
    slow = engine(seconds_before_queue=0.1, seconds_before_queue_per_token=1e-5, steps_before_answer=3, steps_to_balance=2)
    assert ttft_seen(WORK, 0.3, 0.02, Layout(), slow) == pytest.approx(0.1 + 0.01 + 0.3 + 0.06)
    assert ttft_seen(WORK, 0.3, 0.02, Layout(dp=4, ep=4), slow) == pytest.approx(0.41 + 0.1)
    short = replace(WORK, output_tokens=2)  # whose one token after the first comes with it
    assert ttft_seen(short, 0.3, 0.02, Layout(), slow) == pytest.approx(0.41 + 0.02)
    state = aggregated(DENSE, CHIP, WORK, layout=Layout(), batch=16, chunk=500, engine=slow)
    ideal = aggregated(DENSE, CHIP, WORK, layout=Layout(), batch=16, chunk=500, engine=IDEAL)
    assert state.ttft == pytest.approx(0.11 + float(ideal.ttft) + 3 * float(ideal.tpot))
    assert state.tpot == ideal.tpot
    old = engine(seconds_per_request=0.1, first_token_factor=2.0)  # of closed loops alone
    assert aggregated(DENSE, CHIP, WORK, layout=Layout(), batch=16, chunk=500, engine=old).ttft == ideal.ttft


@pytest.mark.parametrize(("near", "latency", "bandwidth"), [(True, 1e-6, 1e11), (False, 5e-6, 1e10)])
def test_the_cache_of_a_prompt_moves_over_the_links_of_its_group(near, latency, bandwidth):
    """1,000 tokens of 10 kB over four chips a group and two stages: 10 MB / 8 at 100 or 10 GB/s, and one message."""
    nodes = machine(up=1e11, out=1e10, latency=1e-6, out_latency=5e-6)
    layout = Layout(tp=4, pp=2, microbatches=2)
    found = kv_transfer(one_matrix(), nodes, WORK, layout=layout, within_domain=near)
    moving = 1e7 / (8 * bandwidth)
    assert (found.latency, found.moving, found.groups) == (latency, pytest.approx(moving), 1)
    assert found.seconds(1e-9) == pytest.approx(latency + moving)
    assert found.seconds(0.8 / moving) == pytest.approx(latency + moving + moving * 0.8 / 0.4)
    assert found.max_rate == pytest.approx(0.9 / moving)


def test_groups_send_caches_side_by_side():
    """Two groups at 1.2 of what one could carry: 0.6 of each, a wait of 0.6 / 0.8 of a transfer; at 2 without end."""
    sent = Transfer(latency=0.5, moving=2.0, groups=2)
    assert sent.seconds(0.6) == pytest.approx(0.5 + 2 + 2 * 0.6 / 0.8)
    assert sent.max_rate == pytest.approx(0.9)
    assert np.isinf(sent.seconds(1.0))
