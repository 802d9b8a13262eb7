"""Fronts of measured layouts: comparisons by hand, and the figures of docs/fronts.md from the runs."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from fit_fronts import Compared, Front, Point, compared, fronts, holds, left_out, optimism

from steptime.planning.plan_intervals import OPTIMISM, OPTIMISM_DEVIATION
from steptime.validation.run_table import read_runs
from tests.conftest import each
from tests.validation.rows import SHARED

RUNS = [SHARED / name for name in ("serving.csv", "serving_models.csv", "serving_groups.csv")]


def points(speeds, rates, factor):
    """A layout whose prediction is a multiple of what was measured, at the same speeds, within 20 %."""
    return [
        Point((speed, rate), (speed, rate * factor), (0.8 * rate * factor, 1.2 * rate * factor))
        for speed, rate in zip(speeds, rates, strict=True)
    ]


def test_layouts_are_compared_at_equal_speed():
    """One delivers 100 to 400 at speeds of 40 to 10 and is predicted at half of it; the other one delivers 0.8 of the first."""
    speeds = (10.0, 20.0, 40.0)
    found = compared({"a": points(speeds, (400, 200, 100), 0.5), "b": points(speeds, (320, 160, 80), 1.25)})
    assert len(found) == 9
    for one in found:
        assert (one.best, one.chosen, one.reached) == pytest.approx((1.0, 1.25, 0.8))
        assert one.limits == pytest.approx((0.8, 1.2))


def test_a_choice_that_does_not_reach_the_speed_delivers_nothing():
    slow = [Point((10.0, 400.0), (50.0, 900.0), (800.0, 1000.0)), Point((5.0, 500.0), (5.0, 950.0), (900.0, 1000.0))]
    others = {name: points((5.0, 40.0), (450.0, 100.0), 1.0) for name in "bc"}
    last = compared({"a": slow, **others})[-1]
    assert last.reached == 0
    assert math.isnan(last.chosen)


@each("off, deviation, held", [(1.0, 0, True), (1.3, 0, False), (0.75, 0, False), (1.3, 0.15, True)])
def test_a_range_holds_the_measured_one(off, deviation, held):
    """A range of 0.8 to 1.25 times the prediction, which is off by a factor; the mean optimism moves it."""
    point = Compared(off, off, 1.0, (0.8 * off, 1.25 * off))
    assert holds(point, 0.0, deviation) == held
    assert holds(point, math.log(off), 0.0)


def front(model, *chosen):
    return Front(model, "toy", "vllm", 3, tuple(Compared(one, one, 1.0, (0.99 * one, 1.01 * one)) for one in chosen))


def test_optimism_is_the_mean_of_fronts_and_that_of_the_other_models_where_one_is_scored():
    rows = [front("a", 1.2), front("b", 1.0), front("b", 1.1, 1.1, 9.0)]
    assert optimism(rows)[0] == pytest.approx(np.mean(np.log([1.2, 1.0, 1.1])))
    assert left_out(rows)[0] == optimism(rows[1:])
    assert left_out(rows)[1] == left_out(rows)[2] == optimism(rows[:1])


@pytest.mark.slow
def test_fronts_are_what_the_docs_and_ranges_say():
    if not all(path.exists() for path in RUNS):
        pytest.skip("the measured runs are not beside this checkout")
    rows = fronts([row for path in RUNS for row in read_runs(path, skip_bad=True)[0]])
    others = left_out(rows)
    assert len(rows) >= 19
    assert optimism(rows) == (pytest.approx(OPTIMISM, abs=0.005), pytest.approx(OPTIMISM_DEVIATION, abs=0.02))
    best = np.array([one.median("best") for one in rows])
    corrected = best / np.exp([other[0] for other in others])
    assert 0.95 <= np.median(best) <= 1.05
    assert 0.95 <= np.median(corrected) <= 1.05
    assert np.quantile(corrected, 0.9) < np.quantile(best, 0.9) < 1.25
    assert 0.85 <= np.mean([one.held(*other) for one, other in zip(rows, others, strict=True)]) <= 0.95
    reached = [one.median("reached") for one in rows]
    assert np.median(reached) >= 0.95
    assert np.quantile(reached, 0.1) >= 0.88
