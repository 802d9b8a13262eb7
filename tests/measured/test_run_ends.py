"""The end of runs whose requests are all there at their start: against runs walked step by step, and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from steptime.measured.run_ends import Lengths, Replica
from steptime.measured.settings import LEAST_SECONDS, requests_of
from steptime.measured.validation import predict
from steptime.physics.engine import IDEAL
from steptime.physics.layout import Layout
from steptime.physics.step import decode_step
from tests.conftest import machine, one_matrix
from tests.measured.rows import offline

MODEL = one_matrix(kv_bytes=1e4)
SEATS, MEAN = 64, 100.0


def times(most):
    """Seconds of a step of 0, 1, ... sequences."""
    found = decode_step(MODEL, machine(), batch=np.arange(1.0, most + 1), context=1000, engine=IDEAL).total
    return np.concatenate([[0.0], np.asarray(found)])


def walked(lengths, seats, seconds):
    """Return the time of a run of requests of these lengths, each step with those that have a seat."""
    waiting, running, clock = list(lengths), np.empty(0), 0.0
    while waiting or len(running):
        free = seats - len(running)
        running = np.concatenate([running, waiting[:free]])
        del waiting[:free]
        clock += seconds[len(running)]
        running = running[running > 1] - 1
    return clock


def drawn(kind, count, rng):
    if kind == "spread":
        even = rng.permutation(np.linspace(50, 150, count).round())
        return even, Lengths(mean=MEAN, spread=0.5)
    cut = np.minimum(np.ceil(rng.exponential(106.0, count)), 300.0)
    return cut, Lengths(mean=float(np.mean(cut)), longest=300.0)


def replica(lengths, batch=SEATS, model=MODEL):
    return Replica(
        model=model, system=machine(), layout=Layout(), engine=IDEAL, batch=float(batch), context=1000.0, lengths=lengths
    )


@pytest.mark.parametrize("kind", ["spread", "exponential"])
@pytest.mark.parametrize("rounds", [1, 10])
def test_runs_walked_step_by_step(kind, rounds):
    """Ends that are left out would be 4 to 40 % of runs."""
    seconds, rng = times(SEATS), np.random.default_rng(3)
    lengths, drawn_from = drawn(kind, rounds * SEATS, rng)
    rate = SEATS / np.mean(lengths) / seconds[SEATS]
    whole = walked(lengths, SEATS, seconds)
    assert replica(drawn_from).seconds(len(lengths), rate) == pytest.approx(whole, rel=0.02)
    assert len(lengths) / rate < 0.97 * whole


def test_steps_that_take_as_long_with_one_sequence_last_as_long_as_the_longest():
    """Outputs of 100 tokens found anywhere: the last has 100 to go and the mean has 50."""
    model = one_matrix(kv_bytes=0.0)
    step = float(decode_step(model, machine(), batch=1, context=1000, engine=IDEAL).total)
    assert replica(Lengths(mean=MEAN), batch=100, model=model).end == pytest.approx(50 * step, rel=0.03)
    together = replica(Lengths(mean=MEAN), model=model).seconds(50.0, 64 / (MEAN * step))
    assert together == pytest.approx(100 * step, rel=0.01)


def test_whole_data_sets_for_ten_minutes():
    row = offline(model="deepseek-ai/DeepSeek-R1")
    assert requests_of(row, 1.0, 0.0) == 4388  # more than ten minutes
    assert requests_of(row, 4388 / LEAST_SECONDS, 0.0) == 4388
    assert requests_of(row, 4400 / LEAST_SECONDS, 0.0) == 8776
    assert requests_of(row, 4400 / LEAST_SECONDS, 10.0) == 4388
    assert np.isinf(requests_of(row | {"part": ""}, 1.0, 0.0))
    assert np.isinf(requests_of(offline(scenario="", part="trt_max", input_tokens="7"), 1.0, 0.0))


def test_few_requests_are_slow():
    few, many, endless = predict([offline(part="", requests=x) for x in ("100", "100000", "")]).output_tok_s
    assert few < 0.8 * many
    assert many == pytest.approx(endless, rel=0.01)
