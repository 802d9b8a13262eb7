"""Limits of a plan: a speed for a time per token, and units that were mixed up."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import steptime as st


def test_slo_of_a_speed_is_that_of_its_time_per_token():
    assert st.Slo(speed=40, ttft=2) == st.Slo(tpot=0.025, ttft=2)
    assert replace(st.Slo(speed=40), ttft=1) == st.Slo(tpot=0.025, ttft=1)
    assert st.Slo().tpot == st.Slo(ttft=1).tpot == math.inf


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tpot": 40}, r"tpot must be at most 10 s, got 40; .*give the speed"),
        ({"ttft": 1e6}, r"ttft must be at most 86400 s, got 1e\+06; .*give the speed"),
        ({"speed": 0}, "speed must be greater than 0"),
        ({"speed": 0.01}, "speed must be at least 0.1"),
        ({"speed": 40, "tpot": 0.025}, "give one of the two"),
    ],
)
def test_slo_beyond_any_service_is_refused(given, says):
    with pytest.raises(st.InputError, match=says):
        st.Slo(**given)
