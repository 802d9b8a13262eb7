"""The end of runs whose requests are all there at their start: against runs walked step by step, and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from steptime.physics.engine import IDEAL
from steptime.physics.layout import Layout
from steptime.physics.step import decode_step
from steptime.validation.max_throughput import Replica
from steptime.validation.mlperf_data_sets import find_data_set
from steptime.validation.output_lengths import Lengths, integral
from steptime.validation.predictions import predict
from steptime.validation.published_deployments import count_requests
from steptime.validation.run_table import checker
from tests.conftest import each, machine, one_matrix
from tests.validation.rows import offline

MODELS = {kind: one_matrix(kv_bytes=read) for kind, read in (("spread", 1e5), ("lognormal", 1e4))}
SEATS, MEAN, PROMPT = 64, 100.0, 50.0


def step(model, batch, made):
    """Seconds of a step of sequences that have made so many tokens in the mean."""
    return float(decode_step(model, machine(), batch=batch, context=PROMPT + made, engine=IDEAL).total)


def walked(model, lengths, seats):
    """Return the time of a run of requests of these lengths, each step with those that have a seat, at their own contexts."""
    waiting, running, made, clock = list(lengths), np.empty(0), np.empty(0), 0.0
    while waiting or len(running):
        free = seats - len(running)
        running, made = np.concatenate([running, waiting[:free]]), np.concatenate([made, np.zeros(len(waiting[:free]))])
        del waiting[:free]
        clock += step(model, float(len(running)), float(np.mean(made)))
        stays = running > 1
        running, made = running[stays] - 1, made[stays] + 1
    return clock


def drawn(kind, count, rng):
    if kind == "spread":
        even = rng.permutation(np.linspace(50, 150, count).round())
        return even, Lengths(mean=MEAN, spread=0.5)
    cut = np.minimum(np.ceil(rng.lognormal(np.log(80.0), 0.9, count)), 400.0)
    return cut, Lengths(mean=float(np.mean(cut)), deviation=0.9, longest=400.0)


def replica(lengths, batch=SEATS, model=MODELS["spread"]):
    return Replica(
        model=model, system=machine(), layout=Layout(), engine=IDEAL, batch=float(batch), prompt=PROMPT, lengths=lengths
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["spread", "lognormal"])
@pytest.mark.parametrize("rounds", [1, 10])
def test_runs_walked_step_by_step(kind, rounds):
    """Ends that are left out would be 4 to 40 % of runs."""
    lengths, drawn_from = drawn(kind, rounds * SEATS, np.random.default_rng(3))
    one = replica(drawn_from, model=MODELS[kind])
    rate = SEATS / np.mean(lengths) / one.steady
    whole = walked(MODELS[kind], lengths, SEATS)
    assert one.seconds(len(lengths), rate) == pytest.approx(whole, rel=0.04)
    assert len(lengths) / rate < 0.97 * whole


def test_steps_that_take_as_long_with_one_sequence_last_as_long_as_the_longest():
    """Outputs of 100 tokens found anywhere: the last has 100 to go and the mean has 50."""
    model = one_matrix(kv_bytes=0.0)
    step = float(decode_step(model, machine(), batch=1, context=1000, engine=IDEAL).total)
    assert replica(Lengths(mean=MEAN), batch=100, model=model).end == pytest.approx(50 * step, rel=0.03)
    together = replica(Lengths(mean=MEAN), model=model).seconds(50.0, 64 / (MEAN * step))
    assert together == pytest.approx(100 * step, rel=0.01)


@each("mean, deviation, longest", [(3700.0, 1.17, 20_000.0), (100.0, 0.6, 20_000.0), (10.0, 0.5, 1e4)])
def test_outputs_that_are_cut_off_have_their_moments(mean, deviation, longest):
    lengths = Lengths(mean=mean, deviation=deviation, longest=longest)
    assert integral(lengths.survival, lengths.tokens) == pytest.approx(mean, rel=0.01)
    drawn = np.minimum(np.random.default_rng(1).lognormal(lengths._location, deviation, 400_000), longest)
    assert lengths.variation == pytest.approx(np.std(drawn) / np.mean(drawn), rel=0.02)
    left = np.mean(drawn**2) / 2 / np.mean(drawn)
    assert integral(lengths.residual_survival, lengths.tokens) == pytest.approx(left, rel=0.02)
    assert lengths.generated_tokens[0] == pytest.approx(left, rel=0.02)


def test_a_log_normal_without_a_cut_has_its_textbook_variation():
    assert Lengths(mean=100.0, deviation=1.0, longest=1e12).variation == pytest.approx(np.sqrt(np.e - 1), rel=1e-6)


def test_quantiles_of_outputs_are_those_of_the_logs():
    """DeepSeek-R1, v5.1: 54 %, 242 % and 527 % of the mean at the 50th, 90th and 99th percentiles; 20,000 tokens at most."""
    data_set = find_data_set({"part": "mlperf", "model": "DeepSeek-R1"})
    lengths = Lengths(mean=3668.0, deviation=data_set.deviation, longest=data_set.longest)
    for level, share in ((0.5, 0.54), (0.1, 2.42), (0.02, 5.27)):
        assert np.interp(-level, -lengths.survival, lengths.tokens) == pytest.approx(share * 3668, rel=0.15)


def test_requests_are_a_data_set_or_last_as_long_as_submissions():
    row = offline(model="deepseek-ai/DeepSeek-R1")
    assert count_requests(row, 1.0) == 4388
    assert count_requests(row, 13.1) == pytest.approx(13.1 * 3130)  # CoreWeave's GB300: 43,880 requests in 3,340 s
    assert np.isinf(count_requests(row | {"part": ""}, 1.0))
    assert np.isinf(count_requests(row | {"scenario": "Server"}, 1.0))
    assert np.isinf(count_requests(offline(scenario="", part="trt_max", input_tokens="7"), 1.0))


def test_few_requests_are_slow():
    few, many, endless = predict([offline(part="", requests=x) for x in ("100", "100000", "")]).output_tok_s
    assert few < 0.8 * many
    assert many == pytest.approx(endless, rel=0.01)


def test_one_request_on_many_chips_is_as_fast_as_on_one():
    alone, idle, two = predict([offline(part="", requests="1", chips=x, tp="1") for x in ("1", "1000", "2")]).output_tok_s
    assert idle == pytest.approx(alone, rel=1e-3)
    assert two == pytest.approx(alone, rel=1e-3)
    assert alone < 3.35e12 / 16.06e9
    rows = [offline(part="", requests=x, concurrency="1") for x in ("8", "9", "16")]
    eight, nine, sixteen = (float(row["requests"]) / rate for row, rate in zip(rows, predict(rows).output_tok_s, strict=True))
    assert nine == pytest.approx(2 * eight, rel=0.02)  # one replica has two, one after the other
    assert nine == pytest.approx(sixteen)


def test_a_division_that_is_not_known_is_near_the_best_for_the_run():
    """Of eight requests each has a replica, or all share one whose steps are faster."""
    given = [predict([offline(part="", tp=tp, requests="8")]).output_tok_s[0] for tp in ("1", "2", "4", "8")]
    assert 0.8 * max(given) < predict([offline(part="", tp="", requests="8")]).output_tok_s[0] < max(given)
    assert max(given) > 1.5 * given[0]


@each("wrong", ["0.5", "0", "5e-324", "x"])
def test_a_run_has_a_request_at_least(wrong):
    assert checker()(offline(requests=wrong)).startswith("requests must be")
