"""Ends of an input at which limits are missed, and the part of its range within which they are met."""

from __future__ import annotations

import numpy as np
import pytest

from steptime.questions.declaration import Answer, Input, Question
from steptime.sweeps.parameter_ranges import Unsure
from steptime.sweeps.sensitivity import BEYOND, is_missed, reaches, sensitivity


def cost(given, wanted):
    """Cost of a deployment whose limit is out of reach from x = 2 on, and that falls off a cliff before."""
    x, y = float(given["x"]), float(given["y"])
    if x >= 2:
        return {"reason": "no layout reaches the limit"}
    return {"usd": x * y * (100 if x > 1.5 else 1)}


PLAN = Question(
    name="served", meaning="a plan", inputs={"x": Input(), "y": Input(), "limit": Input()},
    answers={"usd": Answer(meaning="cost", unit="USD")}, ask=cost, shows=("usd",), limits=("limit",),
)  # fmt: skip


def swings(high, **held):
    found = sensitivity(PLAN, answer="usd", vary={"x": (0.5, high), "y": (0.8, 1.25)}, x=1.0, y=1.0, workers=1, **held)
    return {one.name: one for one in found.swings}, found


@pytest.mark.parametrize("high", [1.9, 2.5])
def test_sensitivity_of_an_input_with_a_cliff_ends_where_the_limit_is_met(high):
    one, found = swings(high, limit=1.0)
    assert one["x"].missed == "high"
    assert one["x"].high == high
    assert one["x"].feasible_range[0] == 0.5
    assert 1.45 < one["x"].feasible_range[1] <= 1.5
    assert one["x"].at_met[1] == pytest.approx(one["x"].feasible_range[1])
    assert one["y"].missed == ""
    assert one["y"].feasible_range == (0.8, 1.25)
    squares = np.square([np.log(one["x"].feasible_range[1] / 0.5), np.log(1.25 / 0.8)])
    assert one["x"].share == pytest.approx(squares[0] / squares.sum())
    assert [each.name for each in found.ranked] == ["x", "y"]
    assert found.evaluations > 5


def test_sensitivity_without_limits_keeps_ends_without_an_answer():
    one, found = swings(2.5)
    assert one["x"].missed == ""
    assert np.isnan(one["x"].at_high)
    assert found.decisive == [one["x"]]


def test_is_missed_of_rates_takes_the_lower_side():
    answers = np.array([1.0, 0.9 / BEYOND, 5.0, np.nan])
    assert is_missed(answers, 1.0, lower_is_better=False).tolist() == [False, True, False, True]


def test_reaches_without_any_other_value_is_the_base():
    one = Unsure(name="x", description="x", low=1.0, base=2.0, high=4.0, basis="")

    def nothing(inputs, points):
        return np.full(len(points["x"]), np.nan)

    met = reaches([one], [(0, 1)], 7.0, nothing, lower_is_better=True)
    assert (met[0, 1].value, met[0, 1].answer) == (2.0, 7.0)
