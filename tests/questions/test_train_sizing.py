"""Chips of a training run by deadline and budget, against a loop over all powers of two."""

from __future__ import annotations

import math

import pytest

import steptime as st
from steptime.errors import Impossible, RangeError
from steptime.questions.registry import find_question

RUN = {"model": "llama-3.1-8b", "system": "hgx-h100", "batch": 512, "seq": 4096, "tokens": "1T"}
DAY = 86_400


def solve(**more):
    return find_question("train").solve(RUN | more)


@pytest.fixture(scope="module")
def sizes():
    """Seconds and dollars by chips of the runs that fit."""
    found = {}
    for chips in (2**n for n in range(3, 10)):
        run = st.train("llama-3.1-8b", "hgx-h100", chips=chips, seq=4096, batch=512, tokens=1e12, changes=False).run
        found[chips] = run.seconds, run.usd
    return found


def test_a_deadline_takes_the_fewest_chips_that_end_in_time(sizes):
    limit = sizes[128][0] * 1.05
    found = solve(deadline=f"{limit / DAY}d")
    assert found.chips == min(chips for chips, (seconds, _) in sizes.items() if seconds <= limit) == 128
    assert found.run.seconds == pytest.approx(sizes[128][0])


def test_a_budget_takes_the_fastest_run_within_it(sizes):
    limit = sizes[64][1] * 1.001
    found = solve(budget=math.ceil(limit))
    assert found.chips == max(chips for chips, (_, usd) in sizes.items() if usd <= limit)
    assert found.run.usd <= limit


def test_chips_that_end_in_time_must_be_within_the_budget(sizes):
    deadline = f"{sizes[128][0] * 1.05 / DAY}d"
    assert solve(deadline=deadline, budget=math.ceil(sizes[128][1])).chips == 128
    with pytest.raises(Impossible, match="128, cost"):
        solve(deadline=deadline, budget=math.floor(sizes[128][1] * 0.99))


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({}, "chips: is missing"),
        ({"chips": 8, "deadline": "60d"}, "deadline: it chooses the number of chips"),
        ({"tokens": None, "deadline": "60d"}, "tokens: a deadline or a budget needs"),
        ({"deadline": "60"}, "deadline: must be a duration"),
        ({"deadline": "0d"}, "deadline: must be above 0"),
    ],
)
def test_wrong_limits_are_refused(inputs, says):
    with pytest.raises(RangeError, match=says):
        solve(**inputs)


def test_impossible_limits_name_the_nearest():
    with pytest.raises(Impossible, match="the cheapest takes"):
        solve(budget=100)
    with pytest.raises(Impossible, match="no number of chips up to 65,536 ends within"):
        solve(deadline="1 s")
