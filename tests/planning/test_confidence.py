"""How likely limits are met, by the standard normal: 1.2816 deviations hold 90 % below them, 1.6449 hold 95 %."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from steptime.errors import RangeError, UnknownName
from steptime.planning import slo_probability
from steptime.planning.slo_probability import (
    check_percentile,
    check_sure,
    deviations,
    likelihood,
    percentile_ratio,
    point,
    target_levels,
)
from steptime.workload.workload import Slo, Workload
from tests.conftest import each

RANGE = (0.008, 0.015)  # of a figure of 10 ms


@each("sure", [0.3, 0.49999, 0.9901, 1, 2, -0.9, math.nan, math.inf])
def test_what_is_no_such_probability_is_refused(sure):
    with pytest.raises(RangeError, match=r"sure: must be a probability from 0\.5 to 0\.99, got "):
        check_sure(sure)


@each("sure", [None, 0.5, 0.9, 0.99])
def test_what_is_one_is_taken(sure):
    check_sure(sure)


def test_an_end_of_a_range_is_its_95_per_cent_point():
    assert deviations(0.9) == pytest.approx(1.28155 / 1.64485, rel=1e-5)
    assert point(0.010, RANGE, 0.95) == pytest.approx(0.015)
    assert point(0.010, RANGE, 0.9) == pytest.approx(0.010 * 1.5**0.779129, rel=1e-5)
    assert point(0.010, RANGE, 0.5) == 0.010
    assert point(0.010, None, 0.99) == 0.010


@each(
    "limit, likely",
    [(0.015, 0.95), (0.008, 0.05), (0.010, 0.5), (0.010 * 1.5**0.5, 0.794583), (0.010 * 0.8**0.5, 0.205417), (math.inf, 1.0)],
)
def test_a_limit_is_met_as_likely_as_the_normal_says(limit, likely):
    """Half way to an end, in logarithms, lie 0.82243 deviations: 79.5 % are below."""
    assert likelihood(0.010, RANGE, limit) == pytest.approx(likely, abs=1e-5)


@each("limit, likely", [(0.0099, 0.0), (0.010, 1.0), (0.0101, 1.0)])
def test_what_has_no_range_is_certain(limit, likely):
    assert likelihood(0.010, None, limit) == likely
    assert likelihood(0.010, (0.010, 0.010), limit) == likely


FACTORS = some.floats(1.01, 5.0)


@given(sure=some.floats(0.5, 0.99), value=some.floats(1e-4, 10.0), low=FACTORS, high=FACTORS)
def test_what_a_figure_stays_below_so_surely_is_a_limit_met_as_surely(sure, value, low, high):
    limits = (value / low, value * high)
    assert likelihood(value, limits, point(value, limits, sure)) == pytest.approx(sure, abs=1e-6)


@given(value=some.floats(1e-4, 10.0), low=FACTORS, high=FACTORS, limit=some.floats(1e-4, 10.0), more=some.floats(1.0, 3.0))
def test_a_wider_limit_is_never_less_likely(value, low, high, limit, more):
    limits = (value / low, value * high)
    assert 0 <= likelihood(value, limits, limit) <= likelihood(value, limits, limit * more) <= 1


@pytest.mark.parametrize(
    ("ratio", "levels"),
    [
        # Shares 0.2, 1 and 1.9 of what the percentile is beyond the mean, of half of the mean at least.
        (1.2, [1.1, 1.5, 1.95]),
        (2.6, [1.32, 2.6, 4.04]),
        # From a ratio of two between the first levels there is one halfway to the percentile.
        (3.0, [1.4, 3.0, 4.8, 2.0]),
    ],
)
def test_targets_of_means_lie_around_the_percentile(monkeypatch, ratio, levels):
    monkeypatch.setattr(slo_probability, "percentile_ratio", lambda *_: ratio)
    found = target_levels("requests", Slo(ttft=6.0, tpot=0.02), "p90", simulated=True)
    assert [level.ttft for level in found] == pytest.approx([6.0 / level for level in levels])
    assert {level.tpot for level in found} == {0.02}
    (alone,) = target_levels("requests", Slo(ttft=6.0, tpot=0.02), "p90", simulated=False)
    assert (alone.ttft, alone.tpot) == (pytest.approx(6.0 / ratio), 0.02)


def test_a_percentile_of_log_normal_waits_by_hand():
    """Variances of 1 of prompts and of a half of waits: the logarithm has the deviation sqrt(log 2.5)."""
    requests = Workload(input_tokens=1000, output_tokens=100, input_spread=1.0)
    sigma = math.sqrt(math.log(2.5))
    for name, normal in (("p90", 1.2815515655), ("p95", 1.644853627), ("p99", 2.326347874)):
        assert percentile_ratio(requests, name) == pytest.approx(math.exp(normal * sigma - sigma**2 / 2))
    # The median is below the mean, which counts then.
    assert percentile_ratio(requests, "p50") == percentile_ratio(requests, "mean") == 1.0


def test_percentiles_have_names():
    assert [check_percentile(name) for name in ("mean", "p50", "p90", "p95", "p99")] == ["mean", "p50", "p90", "p95", "p99"]
    for wrong in ("p80", "", 0.9, None):
        with pytest.raises(UnknownName):
            check_percentile(wrong)
