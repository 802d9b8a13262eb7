"""Steady states by hand: how often steps bring prompts, what users wait for, and what replicas deliver."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.errors import RangeError
from steptime.models.model import Attention
from steptime.physics.layout import Layout
from steptime.physics.step import decode_step, mixed_step, prefill_step
from steptime.planning.steady import (
    aggregated,
    closed_loop,
    decode_pool,
    decode_steps,
    first_token,
    fresh_tokens,
    mean_context,
    prefill_pool,
    queue_limit,
    room_context,
    seats,
    transfer_seconds,
    ttft_seen,
)
from tests.conftest import engine, experts, machine, matrix, model_of, one_matrix

KV = Attention(name="kv", kv_bytes=1000.0, kv_shards=64, heads=64)
DENSE = one_matrix()  # 2.5 ms of weights in a step, 10 us of arithmetic a row, 10 kB a token of cache
SPARSE = model_of(experts(weights=1e8), attention=(KV,))
CHIP = machine()
WORK = st.Workload(input_tokens=1000, output_tokens=201)
IDEAL = engine()


@pytest.mark.parametrize(
    ("sizes", "fresh", "steps", "context"),
    [
        ((1000, 201, 0.0), 1000, 200, 1100.5),
        ((1000, 201, 0.25), 750, 200, 1100.5),
        ((1000, 1, 0.0), 1000, 1, 1000.5),  # the first token comes from prefill
        ((1000, 2, 0.0), 1000, 1, 1001),
        ((10, 3, 0.99), 1, 2, 11.5),  # at least one
    ],
)
def test_what_a_request_brings(sizes, fresh, steps, context):
    workload = st.Workload(input_tokens=sizes[0], output_tokens=sizes[1], cached_share=sizes[2])
    assert (fresh_tokens(workload), decode_steps(workload), mean_context(workload)) == (fresh, steps, context)


@pytest.mark.parametrize(("sequences", "context"), [(0, 1201), (1, 1201), (3, 1201), (12, 1150.75), (300, 1110.55)])
def test_room_for_three_deviations_of_the_mean_context(sequences, context):
    """201 / sqrt(12 n) each, at most half of the output: 3 x 201 / 12 = 50.25 of twelve, a fifth of it of 300."""
    assert room_context(WORK, sequences) == pytest.approx(context)


def test_sizes_of_a_workload_and_limits():
    with pytest.raises(RangeError, match="input tokens must be at least 1 token, not 0"):
        st.Workload(input_tokens=0, output_tokens=5)
    for share in (-0.1, 1.0):
        with pytest.raises(RangeError, match="cached share must be a share of at least 0 and below 1"):
            st.Workload(input_tokens=1, output_tokens=1, cached_share=share)
    for name in ("ttft", "tpot"):
        with pytest.raises(RangeError, match=f"the {name.upper()} limit must be greater than 0 s, not 0"):
            st.Slo(**{name: 0})
    assert st.Workload(input_tokens=1, output_tokens=1).cached_share == 0
    assert st.Slo().ttft == st.Slo().tpot == np.inf


def test_decode_and_prompts_that_share_a_chip():
    """16 sequences, 200 steps, prompts of 1,000 in chunks of 500: 0.16 of the steps have a chunk, and a user waits for both."""
    state = aggregated(DENSE, CHIP, WORK, layout=Layout(), batch=16, chunk=500, engine=IDEAL)
    alone = float(decode_step(DENSE, CHIP, batch=16, context=1100.5, engine="ideal").total)
    mixed = float(mixed_step(DENSE, CHIP, batch=16, context=1100.5, prompts=1, tokens=500, prefix=250, engine="ideal").total)
    assert state.utilisation == pytest.approx(0.16)
    assert state.decode.total == alone
    assert state.mixed.total == pytest.approx(mixed)
    tpot = 0.84 * alone + 0.16 * mixed
    assert state.tpot == pytest.approx(tpot)
    assert state.ttft == pytest.approx(tpot / 2 + 2 * mixed + 2 * mixed / 2 * 0.16 / 0.84)
    assert state.rate == pytest.approx(16 / (200 * tpot))
    assert state.input_share == pytest.approx(0.16 * (mixed - alone) / tpot)
    assert state.lower == pytest.approx(0.84 * float(state.decode.lower) + 0.16 * float(state.mixed.lower))
    assert state.upper == pytest.approx(0.84 * float(state.decode.upper) + 0.16 * float(state.mixed.upper))


def test_memory_of_decode_and_prompts_that_share_a_chip():
    """16 sequences and 0.16 of a prompt, 17 in all, with room for the contexts of 16; and a step of 516 tokens."""
    held = aggregated(DENSE, CHIP, WORK, layout=Layout(), batch=16, chunk=500, engine=IDEAL).memory
    assert held.cache == pytest.approx(17 * 1e4 * (1100.5 + 3 * 201 / (12 * 16) ** 0.5))
    assert held.activations == pytest.approx(516 * 2 * 2000)
    assert held.weights == 10e9


def test_prompts_that_share_a_chunk():
    """Chunks of 2,500: two prompts of 1,000 in each, 0.04 of the steps; nothing of a prompt before its chunk."""
    state = aggregated(DENSE, CHIP, WORK, layout=Layout(), batch=16, chunk=2500, engine=IDEAL)
    mixed = float(mixed_step(DENSE, CHIP, batch=16, context=1100.5, prompts=2, tokens=1000, prefix=0, engine="ideal").total)
    assert state.utilisation == pytest.approx(0.04)
    assert state.mixed.total == pytest.approx(mixed)
    assert state.ttft == pytest.approx(float(state.tpot) / 2 + mixed + mixed / 2 / 2 * 0.04 / 0.96)
    assert state.memory.activations == pytest.approx(2016 * 2 * 2000)


def test_cached_prompts_come_before_a_chunk():
    """A quarter cached: 750 fresh in chunks of 500 leave 1.5 chunks, two passes; after 250 + 125 tokens in the mean."""
    cached = replace(WORK, cached_share=0.25)
    state = aggregated(DENSE, CHIP, cached, layout=Layout(), batch=16, chunk=500, engine=IDEAL)
    mixed = float(mixed_step(DENSE, CHIP, batch=16, context=1100.5, prompts=1, tokens=500, prefix=375, engine="ideal").total)
    assert state.utilisation == pytest.approx(0.12)
    assert state.mixed.total == pytest.approx(mixed)
    assert state.ttft == pytest.approx(float(state.tpot) / 2 + 2 * mixed * (1 + 0.12 / 0.88 / 2))


def test_groups_read_prompts_each():
    """Four groups: a quarter of the share each, four prompts a step, and room for one more in a group."""
    layout = Layout(dp=4, ep=4, microbatches=2)
    state = aggregated(SPARSE, CHIP, WORK, layout=layout, batch=64, chunk=500, engine=IDEAL)
    assert state.utilisation == pytest.approx(0.16)
    mixed = mixed_step(SPARSE, CHIP, batch=64, context=1100.5, prompts=4, tokens=500, prefix=250, layout=layout, engine="ideal")
    assert state.mixed.total == pytest.approx(float(mixed.total))
    assert state.memory.cache == pytest.approx(17 * 1e4 * (1100.5 + 3 * 201 / (12 * 16) ** 0.5))
    assert state.memory.activations == pytest.approx(516 / 2 * 2 * 2000)


def test_a_prompt_queue_that_is_full_grows_without_end():
    state = aggregated(DENSE, CHIP, WORK, layout=Layout(), batch=np.array([99, 100, 300]), chunk=500, engine=IDEAL)
    assert state.utilisation == pytest.approx([0.99, 1.0, 3.0])
    assert np.isfinite(state.ttft).tolist() == [True, False, False]
    assert state.tpot[2] == pytest.approx(state.mixed.total[2])
    assert state.memory.cache[2] == pytest.approx(301 * 1e4 * (1100.5 + 3 * 201 / (12 * 300) ** 0.5))


def test_a_pool_that_only_decodes():
    """400 sequences, 200 steps each: two requests a step."""
    state = decode_pool(DENSE, CHIP, WORK, layout=Layout(), batch=400, engine=IDEAL)
    step = decode_step(DENSE, CHIP, batch=400, context=1100.5, engine="ideal")
    assert state.tpot == step.total
    assert state.rate == pytest.approx(2 / float(step.total))
    assert (state.ttft, state.utilisation, state.input_share) == (0, 0, 0)
    assert (state.lower, state.upper, state.mixed) == (step.lower, step.upper, None)
    assert state.memory.cache == pytest.approx(400 * 1e4 * (1100.5 + 3 * 201 / (12 * 400) ** 0.5))
    groups = decode_pool(SPARSE, CHIP, WORK, layout=Layout(dp=4, ep=4), batch=400, engine=IDEAL)
    assert groups.memory.cache == pytest.approx(100 * 1e4 * (1100.5 + 3 * 201 / (12 * 100) ** 0.5))


def test_a_pool_that_only_prefills():
    """Two prompts a group of four: a pass of eight; a quarter of the prompt is cached."""
    layout, cached = Layout(dp=4, ep=4, microbatches=2), replace(WORK, cached_share=0.25)
    pool = prefill_pool(SPARSE, CHIP, cached, layout=layout, prompts=2, engine=IDEAL, ttft=np.inf)
    step = prefill_step(SPARSE, CHIP, tokens=750, prompts=8, prefix=250, layout=layout, engine="ideal")
    assert pool.seconds == pytest.approx(float(step.total))
    assert pool.seats == 8
    assert pool.rate == pytest.approx(8 / float(step.total))
    assert pool.most_utilised == 0.95
    assert pool.memory.cache == pytest.approx(4 * 1e4 * 1000)  # a pass under way and one being sent: 16 over four groups
    assert pool.memory.activations == pytest.approx(2 * 750 / 2 * 2 * 2000)
    assert prefill_pool(SPARSE, CHIP, cached, layout=layout, prompts=2, engine=IDEAL, ttft=1e-6).most_utilised == 0
    half = prefill_pool(SPARSE, CHIP, cached, layout=layout, prompts=2, engine=IDEAL, ttft=np.inf, ceiling=0.5)
    assert half.most_utilised == 0.5


def test_how_busy_a_prefill_pool_may_be():
    """One prompt at a time: a limit of 1.5 passes leaves half a pass to wait, 0.5 of the time."""
    given = {"layout": Layout(), "prompts": 1, "engine": IDEAL}
    once = float(prefill_pool(DENSE, CHIP, WORK, ttft=np.inf, **given).seconds)
    pool = prefill_pool(DENSE, CHIP, WORK, ttft=1.5 * once, **given)
    assert pool.most_utilised == pytest.approx(0.5, abs=1e-6)
    assert first_token(pool, 0.5, IDEAL) == pytest.approx(1.5 * once)
    slow = engine(seconds_per_request=0.1, first_token_factor=2.0)
    assert first_token(pool, 0.5, slow) == pytest.approx(0.1 + 2 * 1.5 * once)
    assert prefill_pool(DENSE, CHIP, WORK, ttft=0.1 + 3 * once, **given | {"engine": slow}).most_utilised == pytest.approx(
        0.5, abs=1e-6
    )


def test_what_an_engine_adds_to_a_first_token():
    slow = engine(seconds_per_request=0.1, first_token_factor=2.0)
    assert ttft_seen(0.3, slow) == pytest.approx(0.7)
    assert queue_limit(0.7, slow) == pytest.approx(0.3)
    state = aggregated(DENSE, CHIP, WORK, layout=Layout(), batch=16, chunk=500, engine=slow)
    ideal = aggregated(DENSE, CHIP, WORK, layout=Layout(), batch=16, chunk=500, engine=IDEAL)
    assert state.ttft == pytest.approx(0.1 + 2 * float(ideal.ttft))


# --- closed loops ----------------------------------------------------------------------------------------------------------


def loop(on=IDEAL, model=DENSE, system=CHIP, layout=None, concurrency=16, **given):
    return closed_loop(
        model,
        system,
        layout=layout or Layout(),
        concurrency=concurrency,
        input_tokens=1000,
        output_tokens=200,
        engine=on,
        **given,
    )


def test_a_closed_loop_brings_a_prompt_for_each_that_ends():
    """16 requests of 200 tokens: 0.08 prompts a step; a first token waits for half a step, the prompt, the queue, the start."""
    tpot, ttft, step = loop()
    t = float(decode_step(DENSE, CHIP, batch=16, context=1100, engine="ideal").total)
    p = float(prefill_step(DENSE, CHIP, tokens=1000, engine="ideal").total)
    assert step.total == t
    assert tpot == pytest.approx(t + 16 / 200 * p)
    busy, start = 16 * p / (16 * p + 200 * t), 0.1 * 16 * p / 2
    assert ttft == pytest.approx(t / 2 + p * (1 + busy) + start)
    assert loop(starting=1.0)[1] == pytest.approx(t / 2 + p * (1 + busy) + 10 * start)


@pytest.mark.parametrize(("spread", "drift"), [(0.0, 0.005), (0.5, 0.5)])
def test_requests_that_start_together_stay_together_unless_they_differ(spread, drift):
    """An engine that reads prompts first: of the share w = CP / (CP + s O t) half of the prefill comes before a first token."""
    on = engine(prefill_first=1.0)
    t = float(decode_step(DENSE, CHIP, batch=16, context=1100, engine="ideal").total)
    burst = 16 * float(prefill_step(DENSE, CHIP, tokens=1000, engine="ideal").total)
    w = burst / (burst + drift * 200 * t)
    tpot, ttft, _ = loop(on, spread=spread)
    assert tpot == pytest.approx(t + burst / 200 * (1 - w / 2))
    busy = burst / (burst + 200 * t)
    assert ttft == pytest.approx(t / 2 + burst / 16 * (1 + busy) + w * burst / 2 + (1 - w) * 0.1 * burst / 2)


def test_groups_of_a_closed_loop_read_prompts_each():
    layout = Layout(dp=4, ep=4)
    tpot, _, _ = loop(model=SPARSE, layout=layout, concurrency=64)
    t = float(decode_step(SPARSE, CHIP, batch=64, context=1100, layout=layout, engine="ideal").total)
    p = float(prefill_step(SPARSE, CHIP, tokens=1000, prompts=4, layout=layout, engine="ideal").total)
    assert tpot == pytest.approx(t + 64 / 4 / 200 * p)


def test_requests_without_room_wait_for_a_seat():
    """Room for ten caches of 1,100 tokens beside 10 GB of weights and a step of 2,048 tokens; six wait 0.6 of a request."""
    small = machine(capacity=10e9 + 10 * 1.1e7 + 2048 * 4000 + 1)
    tpot, ttft, step = loop(system=small)
    enough, first, ten = loop(concurrency=10)
    assert (tpot, step.total) == (enough, ten.total)
    assert ttft == pytest.approx(float(first) + 6 / 10 * 200 * float(tpot))
    held = {"context": 1100, "layout": Layout(), "engine": IDEAL}
    assert seats(DENSE, small, wanted=16, **held) == 10
    assert seats(DENSE, small, wanted=9, **held) == 9
    one = machine(capacity=10e9 + 1.1e7 + 2048 * 4000 + 1)
    assert seats(DENSE, one, wanted=16, **held) == 1
    assert seats(DENSE, machine(capacity=1e9), wanted=16, **held) == 16  # who measured them had found room


def test_the_cache_of_a_prompt_moves_over_the_links_of_its_group():
    """1,000 tokens of 10 kB over four links: 10 MB / 4 at 100 or 10 GB/s, and one message."""
    nodes = machine(up=1e11, out=1e10, latency=1e-6, out_latency=5e-6)
    given = {"model": one_matrix(), "system": nodes, "workload": WORK, "sender_chips": 4}
    assert transfer_seconds(within_domain=True, **given) == pytest.approx(1e-6 + 1e7 / 4e11)
    assert transfer_seconds(within_domain=False, **given) == pytest.approx(5e-6 + 1e7 / 4e10)
    assert model_of(matrix()).depth == 10
