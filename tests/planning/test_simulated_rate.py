"""Draws of a run, the search for the highest rate, its confirmation, and the mean of runs."""

from __future__ import annotations

import math
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

import steptime as st
from steptime.physics.layout import Layout
from steptime.planning.finalists import SimulatedPool
from steptime.planning.simulated_rate import (
    ACCURACY,
    CONFIRM_TRIES,
    Deployment,
    Loop,
    Run,
    TooLate,
    _mean,
    confirmed,
    draw,
    highest_rate,
    lengths,
    rates_to_try,
    steady_requests,
)
from steptime.planning.steady_state import mean_context
from tests.conftest import engine
from tests.planning.cases import MODEL, NODES, equal_requests

CHAT = st.Workload(input_tokens=1000, output_tokens=201)


@pytest.mark.parametrize("spread", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("seed", [0, 5])
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


@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0])
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


# --- the highest rate ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0.5, 0.8, 0.99, 1.0, 1.01, 1.3, 2.0, 5.0])
@pytest.mark.parametrize("growth", [lambda ratio: ratio, lambda ratio: ratio**4, lambda ratio: 0.5 if ratio <= 1 else math.inf])
def test_the_highest_rate_is_enclosed(first, growth):
    """A figure that rises with the rate and meets its limit at 7 requests/s."""
    tried = list(rates_to_try(7.0 * first, lambda rate: growth(rate / 7.0)))
    good, bad = [rate for rate in tried if growth(rate / 7) <= 1], [rate for rate in tried if growth(rate / 7) > 1]
    assert tried[0] == 7.0 * first
    assert max(good) <= 7.0 * (1 + 1e-12)
    assert 7.0 < min(bad) <= (1 + ACCURACY + 1e-9) * max(good)
    assert len(tried) <= 12
    assert len(set(tried)) == len(tried)


def test_a_finer_search_takes_more_runs():
    coarse, fine = (
        list(rates_to_try(6.0, lambda rate: math.expm1(rate / 7) / math.expm1(1), accuracy=accuracy))
        for accuracy in (0.05, 0.002)
    )
    assert fine[:2] == coarse[:2]
    assert len(fine) > len(coarse)


def test_a_search_ends_where_no_rate_or_every_rate_is_good():
    assert len(list(rates_to_try(1.0, lambda _: 2.0))) == len(list(rates_to_try(1.0, lambda _: 0.5))) == 12
    # Far beyond a limit the rate falls in larger steps.
    assert [list(rates_to_try(1.0, lambda _, ratio=ratio: ratio))[1] for ratio in (1.1, 1.4, 3.0, math.inf, 0.9)] == (
        pytest.approx([1 / 1.1, 1 / 1.4, 1 / 1.1**4, 1 / 1.1**3, 1 / 0.9])
    )


def test_a_search_goes_on_from_a_rate_that_is_known_to_be_good():
    """Figures rise with the square of the rate. A rate of 5 is known: the power law through both ends is exact."""
    tried = list(rates_to_try(10.0, lambda rate: (rate / 7) ** 2, good=(5.0, (5 / 7) ** 2)))
    assert tried[:2] == pytest.approx([10.0, 7.0])
    assert min(tried) > 5.0
    assert len(tried) <= 4


def test_a_figure_that_jumps_is_found_by_halving():
    """Flat up to 7 requests/s and steep beyond: a power law would creep along the flat part."""
    tried = list(rates_to_try(20.0, lambda rate: 0.98 if rate <= 7 else (rate / 7) ** 3, good=(4.0, 0.97)))
    assert len(tried) <= 10
    assert max(rate for rate in tried if rate <= 7) >= 7 / (1 + ACCURACY) ** 1.01


class Line:
    """A deployment without a simulator: its TTFT and TPOT reach their limits at two rates."""

    above = Loop.above

    def __init__(self, ttft_at: float, tpot_at: float, factor: float = 1.0) -> None:
        self.ttft_at, self.tpot_at, self.factor = ttft_at * factor, tpot_at * factor, factor
        self.asked: list[tuple[float, float]] = []

    def quiet_ttft(self, percentile: str) -> float:
        assert percentile == "p90"
        return 0.0

    def run(
        self, rate: float, slo: st.Slo, percentile: str, tpot: float, ttft: float = 0.0, always_decode: bool = False,
        is_check: bool = False,
    ) -> Run:  # fmt: skip
        assert percentile == "p90"
        self.asked.append((rate, tpot))
        ttft, token = (rate / self.ttft_at) ** 2 * slo.ttft, rate / self.tpot_at * slo.tpot
        ratios = {"first token": ttft / slo.ttft, "speed": token / slo.tpot}
        name = max(ratios, key=lambda key: ratios[key])
        return Run(rate=rate, ttft=ttft, tpot=token, mean_ttft=ttft / 2, mean_tpot=token / 2, batch=rate, busy=(rate / 99,),
                   worst=ratios[name], binding=name)  # fmt: skip


LIMITS = st.Slo(ttft=2.0, tpot=0.02)


@pytest.mark.parametrize(("line", "binding"), [(Line(10, 12), "first token"), (Line(12, 10), "speed")])
def test_the_run_at_the_highest_rate_names_what_a_higher_one_misses(line, binding):
    found = highest_rate(line, LIMITS, "p90", 8.0, 0.5)
    assert 10 / (1 + ACCURACY) <= found.rate <= 10 * (1 + 1e-12)
    assert found.worst <= 1
    assert found.binding == binding
    # Each run starts with the sequences that the last one within the limits had.
    assert line.asked[0] == (8.0, 0.5)
    good = 8.0
    for (before, _), (_, tpot) in zip(line.asked, line.asked[1:], strict=False):
        good = before if before <= 10 else good
        assert tpot == pytest.approx(good / line.tpot_at * 0.02 / 2)


def test_a_candidate_that_does_not_serve_enough_costs_one_run():
    line = Line(10, 12)
    assert highest_rate(line, LIMITS, "p90", 8.0, 0.5, least=10.5) is None
    assert len(line.asked) == 1
    found = highest_rate(line, LIMITS, "p90", 2.0, 0.5, least=9.0)
    assert 10 / (1 + ACCURACY) <= found.rate <= 10 * (1 + 1e-12)
    assert [rate for rate, _ in line.asked[1:3]] == pytest.approx([9.0, 9.9])
    assert highest_rate(line, LIMITS, "p90", 1000.0, 0.5) is None


# --- confirmation ----------------------------------------------------------------------------------------------------------


def at(rate: float, **more) -> Run:
    figures = {"ttft": 1.0, "tpot": 0.01, "mean_ttft": 0.5, "mean_tpot": 0.009, "batch": 8.0, "busy": (0.5, 0.25), "worst": 1.0}
    return Run(rate=rate, **figures | more)


def test_the_mean_of_runs_has_the_mean_of_each_figure():
    runs = [
        at(3.0),
        at(3.0, ttft=2.0, tpot=0.02, mean_ttft=1.0, mean_tpot=0.018, batch=10.0, busy=(0.7, 0.35), worst=0.5),
    ]
    found = _mean(runs)
    assert (found.rate, found.ttft, found.mean_ttft, found.batch, found.worst) == (3.0, 1.5, 0.75, 9.0, 0.75)
    assert (found.tpot, found.mean_tpot) == (pytest.approx(0.015), pytest.approx(0.0135))
    assert found.busy == pytest.approx((0.6, 0.3))


def test_a_rate_is_confirmed_where_the_mean_of_other_draws_meets_the_limits():
    lines = [Line(10, 12, factor) for factor in (1.1, 1.0, 0.99)]
    found = confirmed(lines, at(9.9, binding="speed"), LIMITS, "p90")
    assert (found.rate, found.binding) == (9.9, "speed")
    assert found.ttft == pytest.approx(np.mean([(9.9 / line.ttft_at) ** 2 * 2 for line in lines]))
    # The mean TTFT is twice that at the start, so that runs start again; the first draws are also asked about a rate a
    # twentieth higher, with more sequences at the start.
    assert [rate for rate, _ in lines[0].asked] == pytest.approx([9.9, 9.9, 9.9 * 1.05])
    assert [tpot for _, tpot in lines[0].asked] == pytest.approx([0.009, 0.009, 0.0126])
    settled = [Line(10, 12, factor) for factor in (1.1, 1.0, 0.99)]
    assert confirmed(settled, at(9.9, mean_ttft=0.9), LIMITS, "p90").rate == 9.9
    assert [rate for rate, _ in settled[0].asked] == pytest.approx([9.9, 9.9 * 1.05])


def test_a_rate_at_which_requests_gather_is_not_confirmed():
    """More requests come than end, by 3 % of them above a rate of 9: a deployment that fills slowly is too small.

    A rate a twentieth higher starts with more sequences, which must become fewer.
    """
    line = Line(90, 90)
    run = line.run
    line.run = lambda rate, *given, **_: replace(run(rate, *given), growth=0.03 if rate > 9.0 else 0.005)
    found = confirmed([line], at(9.5), LIMITS, "p90")
    assert 9.0 / 1.05 / 1.025 <= found.rate <= 9.0 / 1.05


def test_a_rate_that_must_exceed_another_one_is_given_up_below_it():
    """The first draws confirm a rate of 9; with 9.3 to exceed, no lower rate is tried."""
    line = Line(9, 90)
    assert 9.0 / 1.025 <= confirmed([line], at(10.0), LIMITS, "p90").rate <= 9.0
    line.asked.clear()
    assert confirmed([line], at(10.0), LIMITS, "p90", least=9.3) is None
    assert min(rate for rate, _ in line.asked) > 9.3


def test_a_run_that_never_settles_is_not_confirmed():
    """Each run ends with a first token half again as late as the one at its start."""
    line = Line(90, 90)
    run = line.run
    line.run = lambda rate, slo, percentile, tpot, ttft, **_: replace(
        run(rate, slo, percentile, tpot, ttft), mean_ttft=1.5 * ttft
    )
    assert confirmed([line], at(9.0), LIMITS, "p90") is None


def test_a_rate_that_was_lucky_falls_until_other_draws_confirm_it():
    lines = [Line(10, 12, factor) for factor in (0.97, 0.96, 0.95)]
    found = confirmed(lines, at(10.0), LIMITS, "p90")
    expected = 10 / math.sqrt(np.mean([(1 / line.factor) ** 2 for line in lines]))
    assert 0.975 * expected <= found.rate <= expected
    assert found.worst <= 1


def test_a_rate_near_a_queue_that_grows_is_not_confirmed():
    """A slightly higher rate is far beyond the limits: twice the fall."""
    cliff = Line(10, 12)
    run = cliff.run
    cliff.run = lambda rate, *given, **_: replace(run(rate, *given), worst=math.inf) if rate > 9.0 else run(rate, *given)
    found = confirmed([cliff], at(9.0), LIMITS, "p90")
    assert found.rate == pytest.approx(9.0 * 0.975**2)
    hopeless = Line(1e-3, 1e-3)
    assert confirmed([hopeless], at(9.0), LIMITS, "p90") is None
    assert len(hopeless.asked) == CONFIRM_TRIES


@pytest.mark.parametrize(
    ("figure", "power", "steep"),
    [("mean_ttft", 15, False), ("mean_ttft", 22, True)],
)
def test_a_rate_near_which_the_first_token_is_late_is_not_confirmed(figure, power, steep):
    """Limits are far away: the mean rises by the power of the rate, 5 % above 2.1 and 2.9 times."""
    line = Line(90, 90)
    run = line.run
    line.run = lambda rate, *given, **_: replace(run(rate, *given), **{figure: rate**power})
    assert (confirmed([line], at(9.0), LIMITS, "p90") is None) == steep


# --- runs ------------------------------------------------------------------------------------------------------------------


def deployment(workload: st.Workload, replicas: int = 1, slots: int = 64, **more) -> Deployment:
    pool = SimulatedPool(role="serve", layout=Layout(replicas=replicas), batch=32, max_num_seqs=slots, chunk=1024)
    return Deployment(model=MODEL, system=NODES, engine=engine(), workload=workload, pools=(pool,), **more)


def test_many_equal_replicas_are_simulated_by_a_few_with_their_share():
    one, eight, many = loops = [Loop(deployment(CHAT, replicas), 50.0 * replicas, 1.0) for replicas in (1, 8, 64)]
    assert [loop.server.replicas / loop.share for loop in loops] == [1, 8, 64]
    # As many as have 640 sequences, of which each has 50.
    assert many.server.replicas == 12
    # Four lifetimes bring 200 requests: at least 2,000, up to the next quarter of a power of two.
    assert one.count == 2048
    limits = st.Slo(tpot=1.0, ttft=100.0)
    alone, some, most = (loop.run(50.0 / loop.share * loop.server.replicas, limits, "mean", 4e-3) for loop in loops)
    for name in ("mean_tpot", "mean_ttft", "batch"):
        assert getattr(most, name) == pytest.approx(getattr(some, name), rel=0.03)
    # Several replicas share their load: there are fewer in one place.
    assert most.mean_ttft < alone.mean_ttft
    assert eight.share == 1


def test_a_part_of_a_large_decode_replica_stands_for_the_whole():
    """A quarter of the slots with a quarter of the requests: each step takes as long as that of the whole."""
    pools = (
        SimulatedPool(role="prefill", layout=Layout(replicas=8), batch=4, max_num_seqs=4),
        SimulatedPool(role="decode", layout=Layout(), batch=500, max_num_seqs=1024),
    )
    served = replace(deployment(st.Workload(input_tokens=20, output_tokens=100)), pools=pools)
    loops = []
    for sequences in (256, 2048):
        with mock.patch("steptime.planning.simulated_rate.PART_SEQUENCES", sequences):
            loops.append(Loop(served, 700.0, 0.3))
    part, whole = loops
    assert (part.parts, part.server.replicas / part.share) == (4, 4)
    assert (whole.parts, whole.share) == (1, 1)
    for size in (1, 100, 256):
        expected = whole.server.pace.seconds(4 * size, 4 * size * 60.0)
        assert part.server.pace.seconds(size, size * 60.0) == pytest.approx(expected)
    runs = [loop.run(700.0, st.Slo(tpot=1.0, ttft=100.0), "p90", 3e-3, 0.1) for loop in loops]
    for name in ("mean_tpot", "tpot", "batch", "mean_ttft"):
        assert getattr(runs[0], name) == pytest.approx(getattr(runs[1], name), rel=0.05)


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


def test_a_run_obeys_littles_law_and_the_decode_steps_of_equal_requests():
    """At a low rate, of one sequence at a time: 200 steps of 2.5 ms, which read 10 GB at 4 TB/s."""
    requests = equal_requests(input_tokens=1000, output_tokens=201)
    loop = Loop(deployment(requests), 0.2, 0.6)
    found = loop.run(0.02, st.Slo(tpot=1.0, ttft=100.0), "p50", 2.5e-3)
    assert found.tpot == pytest.approx(2.5e-3, rel=0.01)
    assert found.batch == pytest.approx(0.02 * 200 * found.mean_tpot, rel=0.1)
    assert found.busy[0] == pytest.approx(0.02 * (200 * 2.5e-3 + found.mean_ttft), rel=0.1)


def test_runs_start_in_the_steady_state():
    """As many sequences as the rate times their lifetime; the figures are those of a run of three times the length."""
    short, long = (Loop(deployment(CHAT), 40.0, 1.2, factor=factor) for factor in (1.0, 3.0))
    runs = [loop.run(40.0, st.Slo(tpot=1.0, ttft=100.0), "p90", 4e-3) for loop in (short, long)]
    assert long.count > 2 * short.count
    for name in ("tpot", "mean_tpot", "batch"):
        assert getattr(runs[0], name) == pytest.approx(getattr(runs[1], name), rel=0.07)


@pytest.mark.parametrize(
    ("slots", "kv_tokens", "cause"), [(60, math.inf, "slots"), (99, 60e3, "memory"), (99, math.inf, "prompt queue")]
)
def test_a_queue_that_grows_names_what_is_full(slots, kv_tokens, cause):
    """55 sequences of 1,101 tokens on average: of 60 slots, or a cache of 60,000 tokens."""
    loop = Loop(deployment(CHAT, slots=slots), 40.0, 1.2)
    loop.server = loop.server._replace(policy=replace(loop.server.policy, kv_tokens=kv_tokens))
    assert loop._what_is_full(55.0) == cause


def test_a_rate_beyond_what_a_replica_serves_lets_its_queue_grow():
    loop = Loop(deployment(CHAT, slots=16), 100.0, 1.0)
    assert loop.run(1000.0, st.Slo(), "p90", 5e-3).worst == math.inf
    # 16 slots of 200 steps, which take 2.5 ms and more.
    found = highest_rate(loop, st.Slo(), "p90", 60.0, 5e-3)
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


def test_requests_that_are_alone_wait_for_nobody():
    """A prompt of 1,000 tokens; no rate has a shorter TTFT, and none is sought where the limit is below it."""
    loop = Loop(deployment(equal_requests(input_tokens=1000, output_tokens=201)), 40.0, 1.2)
    alone = loop.quiet_ttft("p90")
    assert alone == pytest.approx(loop.quiet_ttft("mean"))
    assert 0.9 * alone <= loop.run(0.02, st.Slo(tpot=1.0, ttft=100.0), "mean", 2.5e-3).mean_ttft <= 1.5 * alone
    with mock.patch.object(loop, "run", wraps=loop.run) as runs:
        assert highest_rate(loop, st.Slo(tpot=1.0, ttft=0.9 * alone), "p90", 40.0, 4e-3) is None
        assert runs.call_count == 1
