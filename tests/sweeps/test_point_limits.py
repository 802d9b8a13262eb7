"""Sizes of axes, which are checked before any array is built."""

from __future__ import annotations

import time

import pytest

import steptime as st
from steptime.errors import RangeError
from steptime.questions.declaration import COUNT, Input
from steptime.questions.step_question import STEP
from steptime.sweeps import axes
from steptime.sweeps.axes import count_values, read_axes, read_values
from tests.conftest import each

FIXED = {"model": "llama-3.1-8b", "system": "hgx-h100"}


@pytest.mark.parametrize(
    "over", [["batch=1:1e9:100000000"], ["batch=1:1e9:40000000", "context=1:1e6:10000"], ["times.link=1:2:60000000"]]
)
def test_axes_with_too_many_points_are_refused_before_values_are_made(over, monkeypatch):
    monkeypatch.setattr(axes.np, "linspace", lambda *_: pytest.fail("an array was built"))
    started = time.perf_counter()
    with pytest.raises(RangeError, match="fit in memory"):
        read_axes(STEP, over, [], FIXED)
    assert time.perf_counter() - started < 2


def test_sweep_of_texts_with_too_many_points_is_refused_before_values_are_made(monkeypatch):
    monkeypatch.setattr(axes.np, "linspace", lambda *_: pytest.fail("an array was built"))
    with pytest.raises(RangeError, match="fit in memory"):
        st.sweep("step", {"batch": "1:1e9:40000000", "context": "1:1e6:10000"}, **FIXED)


@each("text", ["1:4096:log2", "1:100:10", "1:3000:7log", "5", "1,2,8:16:3"])
def test_count_values_is_at_least_the_number_made(text):
    assert count_values("batch", text, Input(kind=COUNT)) >= len(read_values("batch", text, Input(kind=COUNT)))
