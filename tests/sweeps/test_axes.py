"""Axes as people write them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from steptime.errors import InputError, RangeError, UnitError, UnknownName
from steptime.questions.declaration import COUNT, RENT, TEXT, Input
from steptime.questions.registry import find_question
from steptime.sweeps.axes import made_axis, read_axes, read_values
from tests.conftest import each

BATCH, BANDWIDTH, NAME = Input(kind=COUNT), Input(unit="B/s"), Input(kind=TEXT)
STEP = find_question("step")
ON = {"model": "llama-3.1-8b", "system": "hgx-h100"}


@each(
    "text, values",
    [
        ("1:16:log2", [1, 2, 4, 8, 16]),
        ("3:20:log2", [3, 6, 12, 20]),
        ("1k,8k,64k", [1000, 8000, 64000]),
        ("0:10:3", [0, 5, 10]),
        ("1:100:3log", [1, 10, 100]),
        ("8,1:4:log2,8", [8, 1, 2, 4]),
    ],
)
def test_counts(text, values):
    assert read_values("batch", text, BATCH).tolist() == values


def test_quantities_take_the_unit_of_the_end_of_their_range():
    assert read_values("w", "4TB/s:8TB/s:3", BANDWIDTH).tolist() == [4e12, 6e12, 8e12]
    assert read_values("w", "4:8TB/s:3", BANDWIDTH).tolist() == [4e12, 6e12, 8e12]
    assert read_values("w", "400 Gb/s,0.1TB/s", BANDWIDTH).tolist() == [5e10, 1e11]


def test_a_rent_is_a_kind_or_money_an_hour():
    of = Input(kind=RENT, unit="USD/s")
    assert read_values("rent", "owned,ondemand", of) == ["owned", "ondemand"]
    assert read_values("rent", "3.6,7.2 USD/h", of) == pytest.approx([0.001, 0.002])


@given(low=some.integers(1, 10**6), factor=some.integers(2, 1000), base=some.integers(2, 16))
def test_ratios_rise_by_the_base_and_end_at_the_end(low, factor, base):
    found = read_values("batch", f"{low}:{low * factor}:log{base}", BATCH)
    assert found[0] == low
    assert found[-1] == low * factor
    assert np.all(np.diff(found) > 0)
    assert found[1:-1].tolist() == [low * base**n for n in range(1, len(found) - 1)]


@given(low=some.floats(1e-3, 1e3), span=some.floats(1.001, 1e3), many=some.integers(2, 50))
def test_values_of_equal_ratios(low, span, many):
    found = read_values("x", f"{low!r}:{low * span!r}:{many}log", Input())
    assert len(found) == many
    assert np.allclose(found[1:] / found[:-1], span ** (1 / (many - 1)))


@each(
    "text, of, words",
    [
        ("1:8", BATCH, "LOW:HIGH:N"),
        ("8:1:3", BATCH, "below HIGH"),
        ("1:8:0", BATCH, "at least 2"),
        ("0:8:log2", BATCH, "above 0"),
        ("1:8:log1", BATCH, "ratio must be above 1"),
        ("1,,2", BATCH, "empty entry"),
        ("1:2:9e9", BATCH, "9,000,000,000"),
        ("1:8:many", BATCH, "number of values"),
        ("1.5", BATCH, "whole number"),
        ("1TB", BANDWIDTH, "x: '1TB' is a quantity in B"),
        ("1", BANDWIDTH, "has no unit"),
    ],
)
def test_what_is_no_axis_is_named(text, of, words):
    with pytest.raises(InputError, match=words) as found:
        read_values("x", text, of)
    assert str(found.value).startswith("x")


def test_figures_of_a_machine_are_axes_with_their_units():
    axes, held = read_axes(STEP, ["chip.hbm.bandwidth=1TB/s,2TB/s"], ["tp=8", "rent=2"], ON)
    assert (axes[0].unit, axes[0].values.tolist()) == ("B/s", [1e12, 2e12])
    assert held["tp"] == 8
    assert held["rent"] == pytest.approx(2 / 3600)
    with pytest.raises(UnitError, match=r"^chip.hbm.bandwidth: "):
        read_axes(STEP, ["chip.hbm.bandwidth=1TB"], [], ON)
    with pytest.raises(UnknownName, match=r"did you mean chip.hbm.bandwidth"):
        read_axes(STEP, ["chip.hbm.bandwith=1TB/s"], [], ON)
    with pytest.raises(InputError, match="no system"):
        read_axes(STEP, ["chip.hbm.bandwidth=1TB/s"], [], {})


def test_a_truth_value_is_true_or_false():
    question, on = find_question("rl"), ON | {"chips": 8}
    assert read_axes(question, ["output=1k,2k"], ["off_policy=true"], on)[1]["off_policy"] is True
    assert read_axes(question, ["output=1k,2k"], ["off_policy=False"], on)[1]["off_policy"] is False
    with pytest.raises(RangeError, match=r"^off_policy: must be true or false, got 'yes'"):
        read_axes(question, ["output=1k,2k"], ["off_policy=yes"], on)


def test_an_input_is_given_once():
    with pytest.raises(InputError, match=r"batch.* twice"):
        read_axes(STEP, ["batch=1,2"], ["batch=3"], ON)
    with pytest.raises(UnknownName, match="did you mean batch"):
        read_axes(STEP, ["bacth=1,2"], [], ON)


def test_values_from_python():
    assert made_axis("batch", [1, 64.0], BATCH).values.dtype.kind == "i"
    assert made_axis("batch", "1:8:log2", BATCH).values.tolist() == [1, 2, 4, 8]
    with pytest.raises(RangeError, match="whole numbers"):
        made_axis("batch", [1.5], BATCH)
    with pytest.raises(RangeError, match="finite"):
        made_axis("w", [float("nan")], BANDWIDTH)
    with pytest.raises(RangeError, match="one axis"):
        made_axis("w", np.zeros((2, 2)), BANDWIDTH)
    with pytest.raises(RangeError, match="at least one value"):
        made_axis("model", [], NAME)
