"""The highest rate on a curve, whatever the first rate is; wider limits never select a lower one; and confirmation."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import steptime as st
from steptime.planning.rate_curve import (
    GRID,
    MOST_RATES,
    SETTLING_RUNS,
    Curve,
    _crossing,
    blend,
    confirmed_by,
    mean_run,
    place_below,
    ratios,
    with_surge,
    worst,
)
from steptime.planning.simulated_rate import Loop, Run
from steptime.simulation.run_metrics import MOST_GROWTH
from tests.conftest import each

LIMITS = st.Slo(ttft=2.0, tpot=0.02)


def at(rate: float, **more) -> Run:
    figures = {"ttft": 1.0, "tpot": 0.01, "mean_ttft": 0.5, "mean_tpot": 0.009, "batch": 8.0, "busy": (0.5, 0.25), "worst": 0.0}
    return Run(rate=rate, **figures | more)


class Line:
    """A deployment without a simulator: its TTFT and TPOT reach their limits at two rates, and its queue grows at a third."""

    above = Loop.above

    def __init__(self, ttft_at: float, tpot_at: float, grows_at: float = math.inf, power: float = 2.0) -> None:
        self.ttft_at, self.tpot_at, self.grows_at, self.power = ttft_at, tpot_at, grows_at, power
        self.asked: list[tuple[float, float, float]] = []

    def run(self, rate: float, slo: st.Slo, percentile: str, tpot: float, ttft: float = 0.0, **_) -> Run:
        assert (slo, percentile) == (LIMITS, "p90")
        self.asked.append((rate, tpot, ttft))
        first, token = (rate / self.ttft_at) ** self.power * 2.0, rate / self.tpot_at * 0.02
        grows = {"saturation": math.inf, "cause": "slots"} if rate >= self.grows_at else {}
        return at(rate, ttft=first, tpot=token, mean_ttft=first / 2, mean_tpot=token / 2, batch=rate, **grows)

    def curve(self) -> Curve:
        return Curve(lambda place: self.run(GRID**place, LIMITS, "p90", 0.01))


def test_rates_of_all_curves_are_those_of_one_grid():
    assert pytest.approx(2.0) == GRID**14
    assert [place_below(rate) for rate in (1.0, 1.99, 2.0, 0.99, 0.5)] == [0, 13, 14, -1, -14]


@each("first", [0.05, 4.0, 9.9, 10.0, 13.0, 300.0])
@each("line, binding", [(Line(10, 12), "first token"), (Line(12, 10), "speed")])
def test_the_highest_rate_is_where_power_laws_meet_the_limit(first, line, binding):
    """Both figures are power laws, so that the rate between two points is exact, and independent of the first one."""
    line.asked.clear()
    found = line.curve().highest(LIMITS, first)
    assert found.rate == pytest.approx(10.0)
    assert (found.binding, found.worst) == (binding, pytest.approx(1.0))
    assert found.ttft == pytest.approx((10 / line.ttft_at) ** 2 * 2)
    assert found.mean_tpot == pytest.approx(10 / line.tpot_at * 0.01)
    assert len(line.asked) <= (20 if first < 1 else 12)


def test_a_steep_figure_is_found_by_halving():
    line = Line(10, 90, power=60)
    assert line.curve().highest(LIMITS, 40.0).rate == pytest.approx(10.0)
    assert len(line.asked) <= 14


@each("first", [1.0, 9.0, 60.0])
@each("grows_at", np.linspace(8.0, 8.9, 4))
def test_a_queue_that_grows_ends_a_curve_at_the_last_half_step_before(first, grows_at):
    line = Line(90, 90, grows_at)
    found = line.curve().highest(LIMITS, first)
    assert grows_at / math.sqrt(GRID) * (1 - 1e-9) <= found.rate < grows_at
    assert found.binding == "slots"
    # The TPOT is the closest to its limit.
    assert found.worst == pytest.approx(found.rate / 90)


def test_wider_limits_never_select_a_lower_rate():
    """Figures that rise and fall by chance, and a queue that grows at some rate: each limit starts with another rate."""
    random = np.random.default_rng(3)
    for _ in range(20):
        noise = {place: random.uniform(0.98, 1.02) for place in range(-60, 200)}
        grows_at = random.uniform(5.0, 14.0)

        def run_at(place: float, noise=noise, grows_at=grows_at) -> Run:
            rate = GRID**place
            grows = {"saturation": math.inf} if rate > grows_at else {}
            return at(rate, ttft=noise[math.floor(place)] * (rate / 8) ** 3, tpot=rate / 1000, **grows)

        found = [
            Curve(run_at).highest(st.Slo(ttft=ttft, tpot=0.02), random.uniform(2.0, 20.0)).rate
            for ttft in np.geomspace(0.2, 20.0, 40)
        ]
        assert np.all(np.diff(found) >= 0)


def test_nothing_is_sought_below_a_least_rate():
    line = Line(10, 12)
    assert line.curve().highest(LIMITS, 20.0, least=15.0) is None
    assert min(rate for rate, _, _ in line.asked) > 15.0 / GRID**4
    hopeless = Line(1e-9, 1e-9)
    assert hopeless.curve().highest(LIMITS, 9.0) is None
    assert len(hopeless.asked) == MOST_RATES


def test_the_place_of_the_least_rate_decides_where_the_first_one_is_far_above():
    line = Line(10, 90, grows_at=11.0)
    assert line.curve().highest(LIMITS, 40.0, least=10.5) is None
    assert min(rate for rate, *_ in line.asked) >= GRID ** place_below(10.5)
    assert line.curve().highest(LIMITS, 40.0, least=9.0).rate == pytest.approx(10.0, rel=1e-3)


def test_points_of_a_curve_are_made_once():
    line = Line(10, 12)
    curve = line.curve()
    first = curve.highest(LIMITS, 8.0)
    asked = len(line.asked)
    assert curve.highest(LIMITS, 10.0) == first
    assert len(line.asked) == asked


def test_figures_are_ratios_of_their_limits_and_those_above_may_be_half_more():
    run = at(3.0, ttft=1.0, tpot=0.01, saturation=0.7, cause="memory")
    assert ratios(run, LIMITS) == {"first token": 0.5, "speed": 0.5, "memory": 0.7}
    assert ratios(replace(run, ttft_above=6.0, tpot_above=0.033), LIMITS) == pytest.approx(
        {"first token": 2.0, "speed": 1.1, "memory": 0.7}
    )
    assert worst(replace(run, ttft=math.inf), st.Slo()) == 0.7


def test_a_figure_between_two_rates_is_a_power_law():
    found = blend(at(2.0, ttft=1.0, batch=2.0), at(8.0, ttft=4.0, batch=6.0, busy=(0.9, 0.45)), 0.5, 4.0)
    assert (found.rate, found.ttft, found.batch) == (4.0, pytest.approx(2.0), 4.0)
    assert found.busy == pytest.approx((0.7, 0.35))
    assert blend(at(2.0), at(8.0, ttft=math.inf), 0.5, 4.0).ttft == 1.0


# --- confirmation ----------------------------------------------------------------------------------------------------------


def test_the_mean_of_runs_has_the_mean_of_each_figure():
    runs = [
        at(3.0),
        at(
            3.0,
            ttft=2.0,
            tpot=0.02,
            mean_ttft=1.0,
            mean_tpot=0.018,
            batch=10.0,
            busy=(0.7, 0.35),
            saturation=0.5,
            cause="slots",
        ),
    ]
    runs = [replace(run, tpot_error=error) for run, error in zip(runs, (0.3, 0.4, 0.0), strict=False)]
    found = mean_run(runs)
    assert found.tpot_error == pytest.approx(0.5 / len(runs))
    assert (found.rate, found.ttft, found.mean_ttft, found.batch, found.saturation) == (3.0, 1.5, 0.75, 9.0, 0.25)
    assert (found.tpot, found.mean_tpot, found.cause) == (pytest.approx(0.015), pytest.approx(0.0135), "slots")
    assert found.busy == pytest.approx((0.6, 0.3))


def confirmed(lines: list[Line], rate: float, start: Line, least: float = 0.0) -> Run | None:
    return confirmed_by(lines, LIMITS, "p90", start.curve()).highest(LIMITS, rate, least)


def test_a_rate_is_confirmed_where_the_mean_of_other_draws_meets_the_limits():
    lines = [Line(10 * factor, 12) for factor in (1.1, 1.0, 0.9)]
    found = confirmed(lines, 9.0, Line(10, 12))
    # Figures are power laws with one exponent, as is their mean.
    expected = 10 / math.sqrt(np.mean([1 / 1.1**2, 1, 1 / 0.9**2]))
    assert (found.rate, found.binding) == (pytest.approx(expected), "first token")
    # The first draws are also asked about a rate a twentieth higher, with more sequences at the start.
    rate, tpot, _ = lines[0].asked[0]
    above, tpot_above, _ = lines[0].asked[1]
    assert (above / rate, tpot_above / tpot) == pytest.approx((1.05, 1.4))
    assert list(dict.fromkeys(asked[0] for asked in lines[1].asked)) == pytest.approx([rate, GRID**2 * rate, GRID**3 * rate])


def test_runs_start_again_until_their_means_settle():
    """The mean TTFT is twice that at the start: the next run starts with it. One that never settles is none."""
    line = Line(10, 12)
    found = confirmed([line], 9.0, Line(10 * math.sqrt(2), 12))
    assert found.rate == pytest.approx(10.0)
    starts = [ttft for rate, _, ttft in line.asked if rate == line.asked[0][0]]
    assert starts[1] == pytest.approx(2 * starts[0])
    endless = Line(90, 90)
    run = endless.run
    endless.run = lambda rate, slo, percentile, tpot, ttft, **_: replace(
        run(rate, slo, percentile, tpot, ttft), mean_ttft=1.5 * ttft
    )
    assert confirmed([endless], 9.0, Line(90, 90)) is None
    assert len(endless.asked) == MOST_RATES * SETTLING_RUNS


def test_a_rate_at_which_requests_gather_is_not_confirmed():
    """More requests come than end, by 3 % of them above a rate of 9, and a rate a twentieth higher must have fewer."""
    line = Line(90, 90)
    run = line.run
    line.run = lambda rate, *given, **_: replace(run(rate, *given), growth=0.03 if rate > 9.0 else 0.0)
    found = confirmed([line], 9.5, Line(90, 90))
    assert found.binding == "saturation"
    assert 9.0 / 1.05 / GRID <= found.rate <= 9.0


@pytest.mark.parametrize(("power", "steep"), [(15, False), (22, True)])
def test_a_rate_near_which_the_first_token_is_late_is_not_confirmed(power, steep):
    """Limits are far away: the mean rises by the power of the rate, 5 % above 2.1 and 2.9 times."""
    line = Line(1e3, 1e3)
    run = line.run
    line.run = lambda rate, *given, **_: replace(run(rate, *given), mean_ttft=rate**power)
    start = Line(1e3, 1e3)
    begins = start.run
    start.run = lambda rate, *given, **_: replace(begins(rate, *given), mean_ttft=rate**power)
    found = confirmed([line], 9.0, start)
    assert (found is None) == steep


def test_a_rate_that_must_exceed_another_one_is_given_up_below_it():
    line = Line(9, 90)
    assert confirmed([line], 10.0, Line(9, 90)).rate == pytest.approx(9.0)
    assert confirmed([line], 10.0, Line(9, 90), least=9.8) is None


@each(
    "mean, above, saturation, cause",
    [
        # Half of the saturation that a higher rate may have; 2 of the 2.5 times by which its mean may rise.
        ({"saturation": 0.7, "cause": "memory"}, {"saturation": 0.75, "mean_ttft": 0.5}, 0.7, "memory"),
        ({}, {"saturation": 0.75, "cause": "slots", "mean_ttft": 0.5}, 0.5, "slots"),
        ({}, {"mean_ttft": 1.0}, 0.8, "prefill rate"),
        # One pool: what its batch, half as large where one sequence stands for two, fills.
        ({"busy": (0.5,), "batch": 6.0}, {"mean_ttft": 1.0, "batch": 8.0}, 0.8, "prompt queue"),
        ({"busy": (0.5,), "batch": 12.0}, {"mean_ttft": 1.0, "batch": 8.0}, 0.8, "memory"),
        ({"growth": 0.01}, {"mean_ttft": 0.5}, 0.01 / MOST_GROWTH, "saturation"),
        ({}, {"growth": 0.02, "mean_ttft": 0.5}, 2.0, "saturation"),
    ],
)
def test_a_higher_rate_shows_how_near_a_mean_run_is_to_saturation(mean, above, saturation, cause):
    asked = []

    def run(*given):
        asked.append(given)
        return at(4.2, **{"ttft": 1.25, "tpot": 0.0125} | above)

    before = at(4.0, **mean)
    loop = SimpleNamespace(above=1.05, run=run, parts=2, what_is_full=lambda batch: "memory" if batch > 5 else "prompt queue")
    found = with_surge(before, loop, LIMITS, "p90", 0.01, 0.5)
    assert asked == [(4.2, LIMITS, "p90", pytest.approx(0.014), 0.5)]
    assert (found.saturation, found.cause) == (pytest.approx(saturation), cause)
    assert (found.ttft_above, found.tpot_above, found.ttft) == (1.25, 0.0125, before.ttft)


@each(
    "low, high, attempt, place",
    [
        # Beyond the last rate within limits, whose TPOT is 2^(-4 / 14) of its limit: half of four steps, at least twice the
        # attempts less one, and at most eight.
        (10, math.inf, 0, 12),
        (10, math.inf, 2, 13),
        (10, math.inf, 9, 18),
        # Below the first rate that misses them by 2^(4 / 14).
        (-math.inf, 18, 0, 16),
        (-math.inf, 18, 3, 13),
        # A step of one at least: the limit is met exactly at place 14.
        (14, math.inf, 0, 15),
        (-math.inf, 14, 0, 13),
        # Between two: where the power law is at the limit, or the middle in each second attempt; never one of both.
        (0, 40, 0, 13),
        (0, 40, 1, 20),
        (13, 40, 0, 14),
        (12, 14, 1, 13),
        (13, 30, 0, 14),
        (-20, 15, 0, 13),
    ],
)
def test_the_next_rate_by_hand(low, high, attempt, place):
    """A TPOT that rises with the rate is at its limit at a rate of 2, which is place 14."""
    line = Line(1e9, 2.0)
    assert line.curve()._next(low, high, LIMITS, attempt) == place


def test_the_next_rate_below_a_queue_that_grows_is_three_steps_down():
    assert Line(1e9, 1e9, grows_at=1.0).curve()._next(-math.inf, 20, LIMITS, 0) == 17
    # Between two, it is in the middle.
    assert Line(1e9, 1e9, grows_at=1.0).curve()._next(-9, 20, LIMITS, 0) == 5


@each(
    "below, above, part",
    # The power law through 1/4 and 2 is at 1 after two thirds of the way.
    [(0.25, 2.0, 2 / 3), (1.0, 2.0, 0.0), (0.5, 1.0, 1.0), (0.0, 2.0, 0.5), (0.5, math.inf, 0.5), (1.2, 2.0, 0.0)],
)
def test_the_part_of_the_way_to_a_limit_by_hand(below, above, part):
    assert _crossing(below, above) == pytest.approx(part)


def test_a_start_without_figures_is_no_confirmation():
    """Where the first tokens of a short run never come, no long one is made."""
    line = Line(10, 12)
    hopeless = Curve(lambda place: at(GRID**place, ttft=math.inf, mean_ttft=math.inf, worst=math.inf))
    assert math.isinf(confirmed_by([line], LIMITS, "p90", hopeless).point(0.0).mean_ttft)
    assert line.asked == []


def test_a_rate_far_beyond_its_limits_is_run_once():
    """Limits are missed by more than 1.5: further draws and a higher rate would change nothing."""
    lines = [Line(1.0, 1e9), Line(1.0, 1e9)]
    far, close = (confirmed_by(lines, LIMITS, "p90", Line(1.0, 1e9).curve()).point(place) for place in (5.0, 3.0))
    # A TTFT that rises as the square of the rate: 2^(10 / 14) is more than 1.5, and 2^(6 / 14) less.
    assert (worst(far, LIMITS), worst(close, LIMITS)) == (pytest.approx(2 ** (10 / 14)), pytest.approx(2 ** (6 / 14)))
    assert [len(line.asked) for line in lines] == [3, 1]
    assert (far.ttft_above, close.ttft_above) == (0.0, pytest.approx(1.05**2 * close.ttft))


def settling(tpot_ends: list[float], ttft_ends: list[float]) -> tuple[SimpleNamespace, list[tuple]]:
    """Return a loop whose runs end with these means one after another, as multiples of 10 ms and of 0.5 s, and its calls."""
    calls: list[tuple] = []

    def run(rate, slo, percentile, tpot, ttft, **more):
        calls.append((round(tpot, 9), ttft, more))
        number = min(len(calls), len(tpot_ends)) - 1
        return at(rate, mean_tpot=0.01 * tpot_ends[number], mean_ttft=0.5 * ttft_ends[number])

    return SimpleNamespace(run=run, above=1.05), calls


@each(
    "tpot_ends, ttft_ends, starts, settles",
    [
        # A quarter more than at the start has settled, in one figure or both; the last run is that at a higher rate.
        ([1.25], [1.25], [(1, 1), (1.4, 1)], True),
        ([1.26, 1.26], [1.0, 1.0], [(1, 1), (1.26, 1), (1.26 * 1.4, 1)], True),
        ([1.0, 1.0], [1.26, 1.26], [(1, 1), (1, 1.26), (1.4, 1.26)], True),
        # The next start has the larger of both means.
        ([0.5, 0.5], [1.5, 1.5], [(1, 1), (1, 1.5), (1.4, 1.5)], True),
        ([2.0, 4.0, 8.0, 16.0], [1.0] * 4, [(1, 1), (2, 1), (4, 1), (8, 1)], False),
    ],
)
def test_a_run_starts_with_the_means_of_the_last_one_until_they_settle(tpot_ends, ttft_ends, starts, settles):
    loop, calls = settling(tpot_ends, ttft_ends)
    start = Curve(lambda place: at(GRID**place, mean_tpot=0.01, mean_ttft=0.5))
    found = confirmed_by([loop], LIMITS, "p90", start).point(3.0)
    assert [(tpot, ttft) for tpot, ttft, _ in calls] == [(pytest.approx(0.01 * a), 0.5 * b) for a, b in starts]
    # Prompts that are late decode as well, because their figures enter a mean; at the higher rate they need not.
    assert [more for *_, more in calls] == [{"always_decode": True}] * (len(calls) - settles) + [{}] * settles
    assert math.isfinite(found.saturation) == settles
    assert settles or found.cause == "saturation"


def test_further_draws_decode_late_prompts_as_the_first_ones_do():
    first, _ = settling([1.0], [1.0])
    second, calls = settling([1.0], [1.0])
    confirmed_by([first, second], LIMITS, "p90", Curve(lambda place: at(GRID**place, mean_tpot=0.01))).point(0.0)
    assert calls == [(0.01, 0.5, {"always_decode": True})]


def test_a_figure_of_zero_or_without_end_keeps_the_value_below():
    """Power laws need two figures above 0; a saturation above 1 belongs to the higher rate."""
    below, above = at(2.0, ttft=3.0, tpot=0.02, saturation=4.0, growth=0.1), at(8.0, ttft=0.0, tpot=math.inf, growth=0.3)
    found = blend(below, above, 0.25, 2.5)
    assert (found.ttft, found.tpot, found.saturation, found.growth) == (3.0, 0.02, 1.0, pytest.approx(0.15))
    lifted = blend(replace(below, ttft_above=1.0, tpot_above=0.01), replace(above, ttft_above=16.0, tpot_above=0.16), 0.25, 2.5)
    assert (lifted.ttft_above, lifted.tpot_above) == pytest.approx((2.0, 0.02))


def test_a_queue_that_grows_between_two_rates_binds_where_the_half_step_meets_the_limits():
    """At place 4 all is well and at 5 a queue grows: the half step decides, and then a figure between it and place 4."""

    def between(half: dict) -> Run:
        runs = {4: at(GRID**4, ttft=1.0), 4.5: at(GRID**4.5, **half), 5: at(GRID**5, saturation=math.inf, cause="memory")}
        return Curve(lambda place: runs[place])._between(4, LIMITS)

    good = between({"ttft": 2.0})
    assert (good.rate, good.binding, good.worst) == (pytest.approx(GRID**4.5), "memory", 1.0)
    grown = between({"saturation": math.inf, "cause": "slots"})
    assert (grown.rate, grown.binding, grown.worst) == (pytest.approx(GRID**4), "slots", 0.5)
    # From half of the limit to twice of it: half of the half step.
    part = between({"ttft": 4.0})
    assert (part.rate, part.binding, part.worst) == (pytest.approx(GRID**4.25), "first token", pytest.approx(1.0))
    assert part.worst <= 1
