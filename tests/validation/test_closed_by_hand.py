"""Closed loops without drafts by hand: prompts that come as others end, bursts, room, and what an engine adds."""

from __future__ import annotations

import numpy as np
import pytest

from steptime.physics.engine import IDEAL
from steptime.physics.layout import Layout
from steptime.physics.step import decode_step, mixed_step, prefill_step
from steptime.validation.closed_loop import closed_loop, closed_ttft, running_sequences
from tests.conftest import each, engine, machine
from tests.planning.test_steady import CHIP, DENSE, SPARSE


def loop(on=IDEAL, model=DENSE, system=CHIP, layout=None, concurrency=16, **given):
    found = closed_loop(
        model,
        system,
        layout=layout or Layout(),
        concurrency=concurrency,
        input_tokens=1000,
        output_tokens=200,
        engine=on,
        **given,
    )
    return found.tpot, found.ttft, found.decode


def test_a_closed_loop_brings_a_prompt_for_each_that_ends():
    """The prompts of 15 others in 199 intervals; a first token waits for half a step, the prompt, the queue, the start.

    A prompt that is read beside decode makes a step longer by less than a pass of its own takes: weights are read once.
    """
    tpot, ttft, step = loop()
    beside = {"batch": 16, "context": 1100, "engine": "ideal"}
    t = float(decode_step(DENSE, CHIP, **beside).total)
    both = float(mixed_step(DENSE, CHIP, prompts=1, tokens=1000, **beside).total)
    p = both - t
    assert p < float(prefill_step(DENSE, CHIP, tokens=1000, engine="ideal").total)
    assert step.total == t
    assert tpot == pytest.approx(t + 15 / 199 * p)
    assert loop(concurrency=1)[0] == pytest.approx(float(decode_step(DENSE, CHIP, batch=1, context=1100, engine="ideal").total))
    busy, start = 16 * p / (16 * p + 200 * t), 0.1 * 16 * p / 2
    assert ttft == pytest.approx(t / 2 + both + p * busy + start)
    assert loop(starting=1.0)[1] == pytest.approx(t / 2 + both + p * busy + 10 * start)


def test_a_prompt_is_read_in_as_many_chunks_as_the_engine_takes():
    """1,000 tokens in steps of 400: three chunks, each beside a step of 16 and after a third of the prompt in the mean."""
    beside = {"batch": 16, "context": 1100, "engine": "ideal"}
    t = float(decode_step(DENSE, CHIP, **beside).total)
    chunk = float(mixed_step(DENSE, CHIP, prompts=1, tokens=1000 / 3, prefix=1000 / 3, **beside).total)
    assert loop(engine(step_tokens=400.0))[0] == pytest.approx(t + 15 / 199 * 3 * (chunk - t))


@each("hits, new", [(1.0, 16), (0.5, 508)])
def test_of_a_prompt_in_the_prefix_cache_the_last_block_is_read(hits, new):
    """Half of the prompts of 1,000 tokens known: 984 / 2 tokens less each in the mean, which are a prefix to attend to."""
    beside = {"batch": 16, "context": 1100, "engine": "ideal"}
    t = float(decode_step(DENSE, CHIP, **beside).total)
    both = float(mixed_step(DENSE, CHIP, prompts=1, tokens=new, prefix=1000 - new, **beside).total)
    assert loop(hits=hits)[0] == pytest.approx(t + 15 / 199 * (both - t))


@pytest.mark.parametrize(("spread", "drift"), [(0.0, 0.005), (0.5, 0.5)])
def test_requests_that_start_together_stay_together_unless_they_differ(spread, drift):
    """An engine that reads prompts first: of the share w that is together half of the prefill comes before a first token.

    In the r-th of ten rounds 1 / (1 + r x) are, with x = s O t / CP; their mean as an integral over r.
    """
    on = engine(prefill_first=1.0)
    t = float(decode_step(DENSE, CHIP, batch=16, context=1100, engine="ideal").total)
    burst = 16 * float(prefill_step(DENSE, CHIP, tokens=1000, engine="ideal").total)
    rounds, x = 1 + 9 * (np.arange(100_000) + 0.5) / 100_000, drift * 200 * t / burst
    w = np.mean(1 / (1 + rounds * x))
    tpot, ttft, _ = loop(on, spread=spread)
    assert tpot == pytest.approx(t + burst * 15 / 16 / 199 * (1 - w / 2))
    busy = burst / (burst + 200 * t)
    assert ttft == pytest.approx(t / 2 + burst / 16 * (1 + busy) + w * burst / 2 + (1 - w) * 0.1 * burst / 2)


def test_groups_of_a_closed_loop_read_prompts_each():
    layout = Layout(dp=4, ep=4)
    tpot, _, _ = loop(model=SPARSE, layout=layout, concurrency=64)
    t = float(decode_step(SPARSE, CHIP, batch=64, context=1100, layout=layout, engine="ideal").total)
    given = {"batch": 64, "context": 1100, "layout": layout, "engine": "ideal"}
    both = float(mixed_step(SPARSE, CHIP, tokens=1000, prompts=4, **given).total)
    assert tpot == pytest.approx(t + 63 / 4 / 199 * (both - t))


def test_requests_without_room_wait_for_a_seat():
    """Room for ten caches of 1,100 tokens beside 10 GB of weights and a step of 2,048 tokens; six wait 0.6 of a request."""
    small = machine(capacity=10e9 + 10 * 1.1e7 + 2048 * 4000 + 1)
    tpot, ttft, step = loop(system=small)
    enough, first, ten = loop(concurrency=10)
    assert (tpot, step.total) == (enough, ten.total)
    assert ttft == pytest.approx(float(first) + 6 / 10 * 200 * float(tpot))
    held = {"context": 1100, "layout": Layout(), "engine": IDEAL}
    assert running_sequences(DENSE, small, concurrency=16, **held) == 10
    assert running_sequences(DENSE, small, concurrency=9, **held) == 9
    one = machine(capacity=10e9 + 1.1e7 + 2048 * 4000 + 1)
    assert running_sequences(DENSE, one, concurrency=16, **held) == 1
    assert running_sequences(DENSE, machine(capacity=1e9), concurrency=16, **held) == 16  # who measured them had found room


def test_what_an_engine_adds_to_a_first_token_of_a_closed_loop():
    """0.1 s a request, and twice what an orderly queue takes."""
    tpot, ttft, _ = loop(engine(seconds_per_request=0.1, first_token_factor=2.0))
    assert (tpot, ttft) == (loop()[0], pytest.approx(0.1 + 2 * float(loop()[1])))
    assert closed_ttft(0.3, engine(seconds_per_request=0.1, first_token_factor=2.0)) == pytest.approx(0.7)
    assert loop(engine(seconds_before_queue=0.1, steps_before_answer=3))[1] == loop()[1]
