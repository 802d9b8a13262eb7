"""Chips of a training run by deadline and budget, against a loop over all powers of two."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from types import SimpleNamespace

import pytest

import steptime as st
from steptime.errors import Impossible, LayoutError, RangeError
from steptime.questions.registry import find_question
from steptime.questions.train_question import run_limits, size_run
from tests.conftest import each
from tests.training.cases import FIXED

RUN = {"model": "llama-3.1-8b", "system": "hgx-h100", "batch": 512, "seq": 4096, "tokens": "1T"}
DAY = 86_400


def solve(**more):
    return find_question("train").solve(RUN | more)


@pytest.fixture(scope="module")
def sizes():
    """Seconds and dollars by chips of the runs that fit."""
    found = {}
    for chips in (2**n for n in range(3, 10)):
        asked = {"chips": chips, "seq": 4096, "batch": 512, "tokens": 1e12, "changes": False}
        run = st.train("llama-3.1-8b", "hgx-h100", layout=FIXED, **asked).run
        found[chips] = run.seconds, run.usd
    return found


def test_a_deadline_takes_the_fewest_chips_that_end_in_time(sizes):
    limit = sizes[128][0] * 1.05
    found = solve(deadline=f"{limit / DAY}d", **FIXED)
    assert found.chips == min(chips for chips, (seconds, _) in sizes.items() if seconds <= limit) == 128
    assert found.run.seconds == pytest.approx(sizes[128][0])


@pytest.mark.thorough
def test_a_budget_takes_the_fastest_run_within_it(sizes):
    limit = sizes[64][1] * 1.001
    found = solve(budget=f"${limit * 1.00001:.2f}", **FIXED)
    assert found.chips == max(chips for chips, (_, usd) in sizes.items() if usd <= limit)
    assert found.run.usd <= limit


@pytest.mark.thorough
def test_chips_that_end_in_time_must_be_within_the_budget(sizes):
    asked = FIXED | {"deadline": f"{sizes[128][0] * 1.05 / DAY}d"}
    assert solve(budget=math.ceil(sizes[128][1]), **asked).chips == 128
    with pytest.raises(Impossible, match="the cheapest, 128 chips, costs"):
        solve(budget=math.floor(sizes[128][1] * 0.99), **asked)


@each(
    "inputs, says",
    [
        ({}, "chips: give chips, or tokens with deadline or budget"),
        ({"chips": 64, "tokens": None, "deadline": "60d"}, "tokens: a deadline or a budget needs"),
        ({"tokens": None, "deadline": "60d"}, "tokens: a deadline or a budget needs"),
        ({"deadline": "60"}, "deadline: must be a duration"),
        ({"deadline": "60 fortnights"}, "deadline: must be a duration"),
        ({"deadline": "0d"}, "deadline: must be above 0"),
    ],
)
def test_wrong_limits_are_refused(inputs, says):
    with pytest.raises(RangeError, match=says):
        solve(**inputs)


def test_named_chips_have_the_probability_to_end_in_time(sizes):
    seconds, usd = sizes[64]
    found = solve(chips=64, deadline=f"{seconds * 1.5 / DAY}d", budget=math.ceil(usd * 0.6))
    assert (found.chips, set(found.limits)) == (64, {"deadline", "budget"})
    assert found.limit_probability["budget"] < 0.5 < found.limit_probability["deadline"]
    assert not solve(chips=64).limits


@pytest.mark.thorough
def test_impossible_limits_name_the_nearest():
    with pytest.raises(Impossible, match=r"the cheapest, .* chips, costs"):
        solve(budget=100)
    with pytest.raises(Impossible, match="no number of chips up to 65,536 ends within"):
        solve(deadline="1 s")


# --- laws, with stubbed runs --------------------------------------------------------------------------------------------

# Seconds and dollars by chips: cost has two minima, and 64 chips are slower than 32.
STUBBED = {8: (8000.0, 100.0), 16: (4000.0, 120.0), 32: (1500.0, 90.0), 64: (1600.0, 95.5), 128: (800.0, 300.0)}
MACHINE = SimpleNamespace(name="stub", is_box=False)


def stubbed(chips, *, stub=STUBBED):
    if chips not in stub:
        raise LayoutError(f"{chips} chips do not run")
    seconds, usd = stub[chips]
    low, high = ({"seconds": factor * seconds, "usd": factor * usd} for factor in (0.5, 2.0))
    run = SimpleNamespace(
        seconds=seconds, usd=usd, chip_hours=usd,
        low=low["seconds"], high=high["seconds"], usd_low=low["usd"], usd_high=high["usd"],
    )  # fmt: skip
    return SimpleNamespace(chips=chips, run=run)


def test_days_never_rise_with_the_budget():
    runs = [size_run(stubbed, MACHINE, budget=budget).run for budget in range(90, 400)]
    assert all(run.usd <= budget for run, budget in zip(runs, range(90, 400), strict=True))
    assert all(later.seconds <= earlier.seconds for earlier, later in pairwise(runs))
    assert (runs[0].seconds, runs[-1].seconds) == (1500, 800)


def test_a_budget_takes_more_chips_than_any_measured_run_only_if_fewer_cost_too_much():
    """The largest fitted run has 8,192 chips."""
    for usd, chips in ((50.0, 8192), (150.0, 16384)):
        stub = {8192: (100.0, usd), 16384: (60.0, 80.0)}
        assert size_run(lambda chips, stub=stub: stubbed(chips, stub=stub), MACHINE, budget=100).chips == chips


def test_a_deadline_takes_the_cheapest_chips_and_of_equal_costs_the_fewest():
    # 16 chips cost a third more than 32, which end sooner; 8 cost a ninth more than 32, and 64 and 128 cost more.
    assert [size_run(stubbed, MACHINE, deadline=limit).chips for limit in (800, 1500, 4000, 9000)] == [128, 32, 32, 32]
    # Costs within 3.5 % are equal, also across numbers of chips that cost more or do not run.
    for saved, chips in ((0.030, 8), (0.040, 64)):
        stub = {8: (100.0, 100.0), 16: (60.0, 130.0), 64: (20.0, 100.0 * (1 - saved))}
        assert size_run(lambda chips, stub=stub: stubbed(chips, stub=stub), MACHINE, deadline=200).chips == chips
    # 16 chips end in time and cost too much; 32 are within both limits.
    assert size_run(stubbed, MACHINE, deadline=4000, budget=100).chips == 32


def test_a_later_deadline_never_costs_more_than_the_error_of_a_layout():
    # Four chips cost twice as much as 64, with nothing saved by eight: qwen3-30b-a3b on HGX B200.
    stub = {4: (41.3, 3969.0), 8: (21.1, 4045.0), 16: (7.32, 2812.0), 32: (2.97, 2281.0), 64: (1.25, 1916.0)}
    costs = [size_run(lambda chips: stubbed(chips, stub=stub), MACHINE, deadline=limit).run.usd for limit in (2, 5, 10, 30, 50)]
    assert costs == [1916.0] * 5


def test_an_impossible_budget_names_the_cheapest_and_that_budget_succeeds():
    stub = {8: (8000.0, 123_456.7), 32: (1500.0, 98_723.4)}
    with pytest.raises(Impossible) as error:
        size_run(lambda chips: stubbed(chips, stub=stub), MACHINE, budget=1000)
    chips, usd = re.search(r"the cheapest, ([\d,]+) chips, costs \$([\d,]+) and", str(error.value)).groups()
    assert chips == "32"
    for budget in (float(usd.replace(",", "")), 98_700):
        assert size_run(lambda chips: stubbed(chips, stub=stub), MACHINE, budget=budget).chips == 32


def test_an_impossible_deadline_names_the_fastest_and_that_deadline_succeeds():
    with pytest.raises(Impossible, match=r"the fastest, 32 chips of stub, takes 25.0 min"):
        size_run(lambda chips: stubbed(chips, stub={n: STUBBED[n] for n in (8, 32, 64)}), MACHINE, deadline=1)
    stub = {32: (80.64 * DAY, 1.0)}
    assert size_run(lambda chips: stubbed(chips, stub=stub), MACHINE, deadline=80.6 * DAY).chips == 32


def test_a_fixed_layout_is_named_as_the_cause():
    with pytest.raises(Impossible, match=r"tp=8 pp=4 dp=8 runs on 256, 512 and 1,024 chips only"):
        solve(tokens="15T", batch=64, deadline="20d", tp=8, pp=4, dp=8)
    with pytest.raises(Impossible, match=r"no power of two up to 65,536 .* tp=8 pp=4 dp=6; give chips"):
        solve(tokens="15T", batch=96, deadline="20d", tp=8, pp=4, dp=6)


@pytest.mark.thorough
def test_limits_have_a_probability(sizes):
    """A limit at the estimate is met with one half, and at the end of the 90 % range with 95 %."""
    seconds = sizes[128][0]
    found = solve(deadline=f"{seconds}s", **FIXED)
    assert found.limits == {"deadline": seconds}
    assert found.limit_probability["deadline"] == pytest.approx(0.5, abs=1e-6)
    wide = solve(budget=math.ceil(found.run.usd_high), **FIXED)
    cheap = solve(budget=math.ceil(sizes[64][1] * 1.01), **FIXED)
    assert wide.limit_probability["budget"] > 0.5
    _, chances = run_limits(found.run, found.run.high, found.run.usd_high)
    assert chances == pytest.approx({"deadline": 0.95, "budget": 0.95})
    assert 0.5 < cheap.limit_probability["budget"] < 0.6
    assert find_question("train").read_result(cheap)["budget_probability"] == cheap.limit_probability["budget"]
