"""The gate for numbers: what passes, and what is refused with its name, its bound and its unit."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

import steptime as st
from steptime.errors import RangeError, UnitError, short_repr
from steptime.hardware.what_if import read_figure, vary
from steptime.number_checks import (
    MOST_CHIPS,
    at_least_zero,
    between,
    check_shapes,
    limit,
    map_unique,
    positive,
    share,
    single,
    whole_number,
)
from steptime.units import count
from tests.conftest import each


def label(value):
    """Return a value as the name of a test: without an address, so that all processes name it alike."""
    return "gate" if callable(value) else "object" if type(value) is object else short_repr(value)


GATES = (whole_number, positive, at_least_zero, share, limit, lambda name, value: between(name, value, 0, 10))
NO_NUMBERS = (
    "8",
    b"8",
    None,
    True,
    np.bool_(True),
    1j,
    {},
    object(),
    ["a"],
    [[1], [1, 2]],
    np.array(["1"]),
    np.array([True]),
)


@each("gate, value", list(product(GATES, NO_NUMBERS)))
def test_what_is_no_number_is_refused_by_name(gate, value):
    with pytest.raises(RangeError, match="chips must be a number or an array of numbers, not"):
        gate("chips", value)


@each("gate, value", list(product(GATES, [math.nan, np.float32("nan"), np.array([1.0, math.nan])])))
def test_what_is_not_a_number_is_refused(gate, value):
    with pytest.raises(RangeError, match="chips must be a finite number, not nan"):
        gate("chips", value)


@pytest.mark.parametrize("value", [math.inf, -math.inf, np.array([1.0, math.inf])], ids=label)
def test_infinity_is_only_a_limit(value):
    for gate in (whole_number, positive, at_least_zero, share):
        with pytest.raises(RangeError, match=r"batch must be a finite number, not -?inf"):
            gate("batch", value)
    assert limit("limit", math.inf) == math.inf


@pytest.mark.parametrize(
    ("gate", "value", "says"),
    [
        (lambda v: whole_number("chips", v, maximum=MOST_CHIPS), 0, "chips must be at least 1, not 0"),
        (lambda v: whole_number("chips", v, maximum=MOST_CHIPS), 10**23, r"chips must be at most 200,000, not 1e\+23"),
        (lambda v: whole_number("chips", v, maximum=MOST_CHIPS), 10**5000, "not a number of some 5,000 digits"),
        (lambda v: whole_number("chips", v), 2.5, "chips must be a whole number of at least 1, not 2.5"),
        (lambda v: whole_number("chips", v), np.array([1.0, 2.5]), "chips must be a whole number of at least 1, not 2.5"),
        (lambda v: whole_number("chips", v), [1, 10**30], r"at most 1,000,000,000, not 1e\+30"),
        (lambda v: positive("bandwidth", v, "B/s"), -3e12, r"bandwidth must be greater than 0 B/s, not -3,000,000,000,000"),
        (lambda v: positive("bandwidth", v, "B/s", minimum=1), 1e-300, "bandwidth must be at least 1 B/s, not 1e-300"),
        (lambda v: positive("bandwidth", v, "B/s"), 1e300, r"bandwidth must be at most 1e\+30 B/s, not 1e\+300"),
        (
            lambda v: at_least_zero("prefix", v, "token"),
            np.array([4, -1], dtype=np.int8),
            "prefix must be at least 0 tokens, not -1",
        ),
        (lambda v: share("cached", v), 1.5, "cached must be a share of at least 0 and at most 1, not 1.5"),
        (lambda v: limit("ttft", v), 0, "ttft must be greater than 0 s, not 0"),
        (lambda v: limit("ttft", v), 1e-308, "ttft must be at least 1 ns, not 1e-299 ns"),
        (lambda v: single(token_budget=v), np.array([1, 2]), "token budget must be one number, not"),
    ],
    ids=label,
)
def test_bounds_are_told_with_their_unit(gate, value, says):
    with pytest.raises(RangeError, match=says) as caught:
        gate(value)
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize("value", [8, 8.0, np.int8(8), np.float16(8), np.uint64(8), np.array(8)], ids=label)
def test_whole_scalars_become_ints(value):
    found = whole_number("chips", value)
    assert type(found) is int
    assert found == 8


def test_arrays_pass_as_they_are_and_lists_as_arrays():
    values = np.linspace(1, 2, 5)
    assert positive("x", values) is values
    assert isinstance(positive("x", [1, 2]), np.ndarray)
    assert whole_number("x", np.zeros(0)).size == 0
    check_shapes(batch=np.ones((2, 1)), context=np.ones(3), query=1)
    with pytest.raises(RangeError, match=r"batch \(2,\), context \(3,\)"):
        check_shapes(batch=np.ones(2), context=np.ones(3))


@each(
    "text, value",
    [
        ("8k", 8000),
        ("1e3", 1000),
        ("128K", 128000),
        ("1.5M", 1_500_000),
        ("2G", 2 * 10**9),
        ("2B", 2 * 10**9),
        ("1T", 10**12),
        ("8_192", 8192),
        ("8,192", 8192),
        ("128Ki", 131072),
        ("2Mi", 2**21),
        (" 7 ", 7),
        ("4.1k", 4100),
        (8.0, 8),
    ],
)
def test_counts_are_read_as_people_write_them(text, value):
    assert count(text) == value
    assert type(count(text)) is int


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", UnitError),
        ("k", UnitError),
        ("8kk", UnitError),
        ("8 GB", UnitError),
        ("1,5", UnitError),
        ("12,34", UnitError),
        ("nan", UnitError),
        ("inf", UnitError),
        (True, UnitError),
        (None, UnitError),
        ("9" * 5000, UnitError),
        (10**5000, UnitError),
        (math.nan, UnitError),
        ("2.5", RangeError),
        ("1e23", RangeError),
        (10**23, RangeError),
        ("1e-3", RangeError),
    ],
    ids=label,
)
def test_what_is_no_count_is_refused_by_name(text, error):
    with pytest.raises(error, match=r"^tokens") as caught:
        count(text, "tokens")
    assert len(str(caught.value)) < 200


@each(
    "changes, says",
    [
        ({"rent": -1}, "rent must be greater than 0 USD/s, not -1"),
        ({"rent": math.nan}, "rent must be a finite number"),
        ({"chip.hbm.bandwidth": -1e12}, "chip.hbm.bandwidth must be greater than 0 B/s"),
        ({"chip.hbm.bandwidth": np.array([1e12, -1e12])}, "chip.hbm.bandwidth must be greater than 0 B/s"),
        ({"chip.hbm.bandwidth": "8 TB/s"}, "chip.hbm.bandwidth must be a number"),
        ({"chip.hbm.capacity": 1e-300}, "chip.hbm.capacity must be at least 1,000,000 B"),
        ({"scale_up.size": 2.5}, "scale_up.size must be a whole number of at least 1 chip, not 2.5"),
        ({"scale_up.size": np.array([8, 0])}, "scale_up.size must be at least 1 chip, not 0"),
        ({"scale_up.size": 64, "scale_out.size": 8}, "nvlink: must have at most as many chips as infiniband"),
        ({"scale_out.latency": -1e-6}, "scale_out.latency must be at least 0 s"),
        ({"chip.power": 0}, "chip.power must be greater than 0 W"),
    ],
)
def test_what_ifs_of_no_machine_are_refused(changes, says):
    with pytest.raises(RangeError, match=says):
        vary(st.load_system("hgx-h100"), changes)


def test_what_ifs_take_lists_as_arrays():
    varied = vary(st.load_system("hgx-h100"), {"scale_up.size": [8, 16], "chip.hbm.bandwidth": [3e12, 6e12]})
    assert read_figure(varied, "scale_up.size").tolist() == [8, 16]
    assert st.decode_step(st.load_model("llama-3.1-8b"), varied, batch=8, context=1000).total.shape == (2,)


@each(
    "given, says",
    [
        ({"batch": math.inf}, "batch must be a finite number, not inf"),
        ({"batch": "8"}, "batch must be a number"),
        ({"batch": 10**30}, "batch must be at most 1,000,000,000"),
        ({"context": 0}, "context must be greater than 0"),
        ({"query": 0.5}, "query must be at least 1 token, not 0.5"),
        ({"batch": np.ones(2), "context": np.ones(3)}, "do not broadcast"),
        ({"layout": st.Layout(tp=np.array([0, 1]))}, "tp must be at least 1, not 0"),
        ({"layout": st.Layout(dp=np.array([1.5]))}, "dp must be a whole number of at least 1, not 1.5"),
    ],
)
def test_steps_refuse_what_no_pass_is(given, says):
    asked = {"batch": 8, "context": 100} | given
    for ask in (st.decode_step, st.memory_per_chip):
        if ask is st.memory_per_chip and ("query" in given or "context" in given):
            continue
        with pytest.raises(st.InputError, match=says):
            ask(st.load_model("llama-3.1-8b"), st.load_system("hgx-h100"), **asked)


@each(
    "chips, says",
    [
        (2.5, "whole number of at least 1, not 2.5"),
        ("8", "chips must be a number"),
        (10**9, "at most 200,000, not 1,000,000,000"),
        (np.array([8, 16]), "chips must be one number"),
        (math.nan, "chips must be a finite number"),
        (True, "chips must be a number"),
    ],
)
def test_a_plan_takes_a_number_of_chips(chips, says):
    asked = st.Workload(input_tokens=100, output_tokens=100)
    with pytest.raises(st.InputError, match=says):
        st.plan(st.load_model("llama-3.1-8b"), st.load_system("hgx-h100"), asked, chips=chips)


@pytest.mark.slow
def test_a_plan_is_of_one_machine_and_one_workload():
    model, system = st.load_model("llama-3.1-8b"), st.load_system("hgx-h100")
    asked = st.Workload(input_tokens=100, output_tokens=100)
    many = vary(system, {"chip.hbm.bandwidth": np.array([1e12, 2e12])})
    for machine, work in ((many, asked), (system, st.Workload(input_tokens=np.array([1, 2]), output_tokens=1))):
        with pytest.raises(RangeError, match="one system, one workload"):
            st.plan(model, machine, work)
    assert st.plan(model, system, asked, chips=2.0).chips == 2


def test_workloads_and_limits_are_checked():
    for wrong in ({"input_tokens": math.inf}, {"output_tokens": "5"}, {"input_tokens": 10**23}, {"cached_share": 1.0}):
        with pytest.raises(RangeError, match=r"tokens|share"):
            st.Workload(**{"input_tokens": 1, "output_tokens": 1} | wrong)
    for wrong in (-1, 0, math.nan, "1", None):
        with pytest.raises(RangeError, match="the TPOT limit must be"):
            st.Slo(tpot=wrong)


def test_of_each_is_the_function_of_every_number():
    several = ([4, 9, 4], [[1.5, 2.0], [2.0, 1.5]], [7], [], [10**6, 3], np.arange(50.0) % 7, 3.0, [0.5] * 9, [-1.0] * 3)
    for values in several:
        found = map_unique(lambda number: 2 * number + 1, values)
        assert found.shape == np.shape(values)
        assert np.array_equal(found, 2 * np.asarray(values) + 1)


def test_of_each_asks_once_for_each_number():
    asked = []
    map_unique(lambda number: asked.append(number) or 0.0, np.array([3, 1, 3, 1, 3]))
    map_unique(lambda number: asked.append(number) or 0.0, np.array([30, 10, 30]))
    assert asked == [1, 3, 10, 30]
