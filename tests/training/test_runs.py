"""Whole runs by hand: steps, ramps, failures, checkpoints, money and energy."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

import steptime as st
from steptime.models.model import total_parameters
from steptime.training.training_runs import (
    FAILURES_PER_CHIP_SECOND,
    TYPICAL_RUN_OVERHEAD,
    Phase,
    Reliability,
    daly_interval,
    failure_goodput,
    failure_losses,
    goodput,
    largest_batch_tokens,
    mean_time_between_failures,
    model_flops,
    phase_seconds,
    proposed_batch,
    run_time_range,
    training_run_cost,
    young_interval,
)
from tests.conftest import RENT, each
from tests.training.cases import CHIP, FIXED, SMALL, job, model, system

HOUR, DAY = 3600.0, 86400.0
BETWEEN = 54 * DAY / 419


def test_llama_3_failed_every_three_hours():
    """419 unexpected interruptions in 54 days on 16,384 chips: 3.09 h, 50,700 chip-hours, 4.7e-4 of a chip in a day."""
    assert mean_time_between_failures(16384) == pytest.approx(BETWEEN)
    assert pytest.approx(3.09, abs=0.005) == BETWEEN / HOUR
    assert pytest.approx(50_700, rel=2e-3) == 1 / FAILURES_PER_CHIP_SECOND / HOUR
    assert pytest.approx(4.7e-4, rel=0.01) == FAILURES_PER_CHIP_SECOND * DAY
    assert mean_time_between_failures(100_000) / 60 == pytest.approx(30, abs=0.5)


def test_youngs_interval():
    """A block of 30 s and 3.09 h between failures: 13.6 min, of which 3.7 % blocks and as much is lost."""
    found = float(young_interval(30.0, 3.09 * HOUR))
    assert found / 60 == pytest.approx(13.6, abs=0.05)
    assert 30 / found == pytest.approx(0.037, abs=5e-4)
    assert found / (2 * 3.09 * HOUR) == pytest.approx(0.037, abs=5e-4)


def test_goodput_is_about_what_is_left_of_blocks_losses_and_restarts():
    """To first order 3.7 % + 3.7 % + 600 s / 3.09 h = 5.4 %: 87.3 %; exponential failures leave 88 %."""
    every = float(young_interval(30.0, 3.09 * HOUR))
    first = 1 - 30 / every - every / (2 * 3.09 * HOUR) - 600 / (3.09 * HOUR)
    assert first == pytest.approx(0.873, abs=1e-3)
    assert float(goodput(every, 30.0, 600.0, 3.09 * HOUR)) == pytest.approx(first, abs=0.01)


@given(blocked=some.floats(1, 300), between=some.floats(3600, 1e7), restart=some.floats(0, 3000))
def test_dalys_interval_wastes_least(blocked, between, restart):
    """No interval is better than 0.1 % beyond it."""
    at = float(daly_interval(blocked, between))
    best = max(float(goodput(at * f, blocked, restart, between)) for f in (0.5, 0.7, 0.9, 0.95, 1.05, 1.1, 1.5, 2))
    assert float(goodput(at, blocked, restart, between)) >= best - 1e-3
    assert at == pytest.approx(float(young_interval(blocked, between)) - blocked, rel=0.35, abs=2 * blocked)


def test_a_checkpoint_longer_than_failures_come_is_taken_once_between_them():
    assert float(daly_interval(100.0, 40.0)) == 40
    assert float(daly_interval(100.0, 50.0)) == 50


@given(chips=some.integers(1, 100_000), restart=some.floats(0, 3600), every=some.floats(60, 1e5), blocked=some.floats(0.1, 100))
def test_goodput_is_a_share_and_falls_with_chips_and_restarts(chips, restart, every, blocked):
    between = mean_time_between_failures(chips)
    found = float(goodput(every, blocked, restart, between))
    assert 0 <= found < 1
    assert float(goodput(every, blocked, restart + 60, between)) <= found
    assert float(goodput(every, blocked, restart, mean_time_between_failures(2 * chips))) <= found


def linear(asked) -> float:
    """A step takes a second for each sequence of 4,096 tokens."""
    return asked.batch * asked.seq / 4096


def test_tokens_over_tokens_of_a_step_are_steps():
    seconds, steps = phase_seconds(Phase(tokens=4096 * 64 * 100, seq=4096, batch=64), job(), linear)
    assert (seconds, steps) == (6400, 100)


def test_a_ramp_takes_more_steps_and_the_time_of_its_tokens():
    """Eight batches from 8 to 64, a share of the tokens each; a step as long as its tokens makes the time the same."""
    tokens = 4096 * 64 * 100.0
    seconds, steps = phase_seconds(Phase(tokens=tokens, seq=4096, batch=64, first=8), job(), linear)
    assert seconds == pytest.approx(6400)
    assert steps == pytest.approx(sum(tokens / 8 / (4096 * b) for b in range(8, 65, 8)))
    flat, _ = phase_seconds(Phase(tokens=tokens, seq=4096, batch=64, first=8), job(), lambda asked: 1.0)
    assert flat == pytest.approx(steps)
    assert phase_seconds(Phase(tokens=tokens, seq=4096, batch=64, first=64), job(), linear) == (6400, 100)


def test_batches_of_a_ramp_divide_over_the_copies():
    seen = []
    phase_seconds(
        Phase(tokens=1e9, seq=4096, batch=96, first=10), job(), lambda asked: seen.append(asked.batch) or 1.0, quantum=16
    )
    assert seen
    assert all(batch % 16 == 0 for batch in seen)
    assert max(seen) == 96


def run(phases=None, on=CHIP, chips=1024, asked=None, **more):
    phases = phases or [Phase(tokens=1e12, seq=4096, batch=1024)]
    rely = Reliability(**{"overhead": 1.0} | more)
    return training_run_cost(
        model(SMALL), on, asked or job(batch=1024), phases, lambda _: 2.0, chips=chips, step_range=(0.9, 1.2), reliability=rely
    )


def test_a_run_without_failures_is_its_steps():
    found = run(rate=0.0)
    steps = 1e12 / (4096 * 1024)
    assert (found.steps, found.seconds, found.goodput, found.failures) == (steps, 2 * steps, 1, 0)
    assert found.chip_hours == pytest.approx(1024 * 2 * steps / HOUR)
    assert (found.low, found.high) == (0.9 * found.seconds, 1.2 * found.seconds)
    assert math.isinf(found.between_failures)


def test_failures_stretch_a_run_by_its_goodput():
    found, sure = run(), run(rate=0.0)
    assert found.seconds == pytest.approx(sure.seconds / found.goodput)
    assert found.failures == pytest.approx(found.seconds * 1024 * FAILURES_PER_CHIP_SECOND)
    assert found.checkpoint_every == pytest.approx(float(daly_interval(30.0, found.between_failures)))
    assert run(restart=6000.0).goodput < found.goodput < run(restart=0.0).goodput
    assert run(checkpoint=300.0).goodput < found.goodput


def test_other_overhead_stretches_a_run_and_its_goodput():
    found, plain = run(overhead=1.25), run()
    assert found.seconds == pytest.approx(1.25 * plain.seconds)
    assert found.goodput == pytest.approx(plain.goodput / 1.25)
    assert found.failures == pytest.approx(1.25 * plain.failures)
    assert (found.overhead, Reliability().run_overhead) == (1.25, TYPICAL_RUN_OVERHEAD)


def test_the_range_of_a_run_has_no_overhead_at_its_lower_end():
    assert run_time_range(0.9, 1.0) == (pytest.approx(0.9 / TYPICAL_RUN_OVERHEAD), pytest.approx(1.27 / TYPICAL_RUN_OVERHEAD))
    assert run_time_range(0.9, 1.3, 1.27) == (pytest.approx(0.9 / 1.27), pytest.approx(1.3))
    assert run_time_range(0.9, 1.0, 2.0) == (0.45, 1.0)


def test_the_bound_of_a_run_has_no_overhead():
    asked = {"chips": 64, "seq": 4096, "batch": 512, "tokens": 1e12, "layout": FIXED, "changes": False}
    found = st.train(SMALL, "hgx-h100", engine="ideal", **asked).run
    assert (found.overhead, found.low, found.high) == (1.0, found.seconds, found.seconds)
    given = st.train(SMALL, "hgx-h100", engine="ideal", reliability=Reliability(overhead=1.2), **asked).run
    assert (given.overhead, given.seconds) == (1.2, pytest.approx(1.2 * found.seconds))
    assert given.low == given.high == given.seconds
    assert st.train(SMALL, "hgx-h100", reliability=Reliability(overhead=1.5), **asked).run.overhead == 1.5


def test_money_is_rent_of_chips_and_spares():
    assert RENT.typical == pytest.approx(2 / HOUR)
    found, spared = run(), run(spares=16)
    assert found.usd == pytest.approx(2 * found.chip_hours)
    assert spared.chip_hours == pytest.approx(found.chip_hours * 1040 / 1024)
    assert (found.usd_low, found.usd_high) == (pytest.approx(0.9 * found.usd), pytest.approx(1.2 * found.usd))
    assert math.isnan(run(on=replace(CHIP, rent=replace(RENT, low=math.nan, typical=math.nan, high=math.nan))).usd)


def test_energy_is_power_of_a_chip_over_the_run():
    on = system()
    found = run(on=on)
    assert found.joules == pytest.approx(1024 * found.seconds * float(on.power.watts))
    assert found.power_basis == on.power.basis
    assert math.isnan(run().joules)


def test_a_checkpoint_of_405b_takes_14_bytes_a_parameter():
    """5.7 TB: weights in 16 bits, master copy and two moments in 32."""
    found = training_run_cost(
        model("llama-3.1-405b"), CHIP, job(), [Phase(tokens=1e12, seq=4096, batch=64)], linear, chips=8, step_range=(1, 1),
        reliability=Reliability(),
    )  # fmt: skip
    assert found.checkpoint == 14 * total_parameters(model("llama-3.1-405b"))
    assert found.checkpoint == pytest.approx(5.7e12, rel=0.01)
    assert run(asked=job(task="lora")).checkpoint == 2 * total_parameters(model(SMALL))


def test_stages_add_up():
    first, long = Phase(tokens=1e12, seq=4096, batch=1024), Phase(tokens=1e10, seq=131072, batch=32)
    both, one, other = run([first, long], rate=0.0), run([first], rate=0.0), run([long], rate=0.0)
    assert both.seconds == pytest.approx(one.seconds + other.seconds)
    assert both.tokens == 1.01e12
    assert both.flops == pytest.approx(one.flops + other.flops)
    assert other.flops == pytest.approx(1e10 * float(model_flops(model(SMALL), job(seq=131072), full=False)))


def test_a_planned_run_is_its_step_times_its_steps():
    found = st.train(SMALL, "hgx-h100", chips=64, seq=4096, batch=512, tokens=1e12, changes=False)
    useful = float(found.step.total) * 1e12 / (4096 * 512)
    assert found.run.seconds == pytest.approx(useful / found.run.goodput)
    assert found.run.flops == pytest.approx(1e12 * float(model_flops(model(SMALL), found.job, full=False)))
    assert found.run.tokens / found.run.seconds / 64 == pytest.approx(
        float(found.step.tokens_per_second_per_chip) * found.run.goodput
    )


def test_a_long_stage_is_searched_again_where_the_layout_cannot_run_it():
    phases = (Phase(tokens=1e12, seq=4096, batch=512), Phase(tokens=1e10, seq=131072, batch=16))
    found = st.train(SMALL, "hgx-h100", chips=64, seq=4096, batch=512, phases=phases, changes=False)
    alone = st.train(SMALL, "hgx-h100", chips=64, seq=131072, batch=16, changes=False)
    longest = (found.run.seconds * found.run.goodput - float(found.step.total) * 1e12 / (4096 * 512)) / (1e10 / 131072 / 16)
    assert longest >= float(alone.step.total) * (1 - 1e-6)
    assert np.isfinite(longest)


def test_goodput_of_llama_3_is_inside_the_range_of_its_failures():
    """More than 90 % on 16,384 H100 (arXiv 2407.21783, section 3.3.4), with the overhead of published runs."""
    share = failure_goodput(Reliability(), 16384)[2] / TYPICAL_RUN_OVERHEAD
    low, high = run_time_range(1.0, 1.0, losses=failure_losses(Reliability(), 16384))
    assert share / high < 0.90 < share / low < 1


def test_fast_restarts_of_100_000_chips_are_inside_the_range():
    """Restarts of 1 minute instead of 10 alone shorten a run by a quarter: 59.7 % of useful time becomes 80 %."""
    slow, fast = (failure_goodput(Reliability(restart=restart), 100_000)[2] for restart in (600.0, 60.0))
    assert (slow, fast) == (pytest.approx(0.597, abs=0.001), pytest.approx(0.80, abs=0.01))
    low, high = failure_losses(Reliability(), 100_000)
    assert low < slow / fast < 1 < high


def test_losses_that_are_given_are_certain():
    given = Reliability(rate=2 * FAILURES_PER_CHIP_SECOND, checkpoint=10.0, restart=60.0)
    assert failure_losses(given, 16384) == (1.0, 1.0)
    assert failure_losses(Reliability(rate=0.0), 16384) == (1.0, 1.0)
    # The restart alone: Daly's waste of 120 and of 1,800 s.
    certain = replace(given, restart=600.0)
    shares = [failure_goodput(replace(given, restart=seconds), 16384)[2] for seconds in (600.0, 120.0, 1800.0)]
    assert failure_losses(certain, 16384) == (pytest.approx(shares[0] / shares[1]), pytest.approx(shares[0] / shares[2]))


def test_the_range_of_a_run_has_the_uncertainty_of_its_failures():
    asked = {"chips": 4096, "seq": 4096, "batch": 4096, "tokens": 1e13, "layout": FIXED, "changes": False}
    found = st.train(SMALL, "hgx-h100", **asked).run
    known = st.train(SMALL, "hgx-h100", reliability=Reliability(restart=601.0, checkpoint=31.0, rate=5.5e-9), **asked).run
    assert found.low / found.seconds < known.low / known.seconds
    assert found.high / found.seconds > known.high / known.seconds
    assert found.goodput_low < known.goodput_low < found.goodput < found.goodput_high


@each(
    "flops, seq, chips, batch",
    [
        (6.3e24, 8192, 2048, 4096),  # 0.2920 x 6.3e24^0.3271 = 38 M tokens are 4,629 sequences: twice the chips
        (6.3e24, 8192, 4096, 4096),
        (6.3e24, 8192, 16384, 4096),  # a quarter of the chips
        (6.3e24, 8192, 2304, 4608),
        (1e20, 4096, 8, 248),  # 1.02 M tokens are 249 sequences
        (1e14, 8192, 8, 1),
    ],
)
def test_the_proposed_batch_is_the_largest_that_chips_divide(flops, seq, chips, batch):
    assert proposed_batch(flops, seq, chips) == batch
    assert batch == 1 or batch * seq <= float(largest_batch_tokens(flops))
