"""What must hold of every list: scaling, margins, and that nothing is known from nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from steptime.pricing.bundled_prices import table
from steptime.pricing.price_inversion import read_prices
from steptime.pricing.price_list import PriceList, Rates, checked
from tests.conftest import each, examples

prices = some.floats(0.05, 50)
factors = some.floats(0.2, 5)
BLIND = ("memory_bound_share", "kv_bytes_from_levels", "kv_bytes_from_hit", "tier_multiplier")


@some.composite
def lists(draw):
    """Return a list, often with a step, caches and a fast mode."""
    paid, out = draw(prices), draw(some.floats(1, 8))
    base = Rates(
        input=paid, output=paid * out, cache_read=paid * draw(some.sampled_from([0.1, 0.5, 1.0])),
        cache_write=paid * draw(some.floats(1, 2)), cache_write_long=paid * draw(some.floats(2, 3)),
    )  # fmt: skip
    rates = [base]
    if draw(some.booleans()):
        above = draw(some.sampled_from([32e3, 128e3, 200e3, 272e3, 512e3]))
        up, upper = draw(some.floats(1, 3)), draw(some.floats(1, 3))
        rates.append(replace(base, above_tokens=above, input=paid * up, output=paid * out * upper))
    if draw(some.booleans()):
        rates.append(base.times(draw(some.floats(1.1, 8))).__class__(service="fast", input=paid * 2, output=paid * out * 2))
    return PriceList(
        provider="a", model="b", rates=tuple(rates), hold=300.0, hold_long=3600.0, speeds={"fast": draw(some.floats(1.1, 3))},
        storage=draw(some.sampled_from([math.nan, 1.0])),
    )  # fmt: skip


@given(lists(), factors)
@examples(30)
def test_scaling_all_prices(listed, factor):
    before, after = read_prices(listed, draws=2000), read_prices(listed.scaled(factor), draws=2000)
    kv, scaled = before["kv_bytes_per_token"], after["kv_bytes_per_token"]
    assert kv.identifiable == scaled.identifiable
    if kv.identifiable:
        assert scaled.bound == pytest.approx(factor * kv.bound)
        np.testing.assert_allclose(scaled.interval, np.multiply(kv.interval, factor))
    for name in ("active", "total"):
        power = sum(table("priors")[name]["log10"][1:])
        one, other = before[f"{name}_parameters"], after[f"{name}_parameters"]
        assert other.value == pytest.approx(one.value * factor**power)
        np.testing.assert_allclose(other.interval, np.multiply(one.interval, factor**power))
    assert after["active_parameters"].bound == pytest.approx(factor * before["active_parameters"].bound)
    for name in (one.name for one in before.readings if one.name.startswith("hold_price")):
        assert after[name].value == pytest.approx(factor * before[name].value, abs=1e-9)
    for one, other in zip(before.readings, after.readings, strict=True):
        assert one.identifiable == other.identifiable
        if one.name.startswith(("hits", "fast")) and one.identifiable:
            assert other.value == pytest.approx(one.value, abs=1e-9)
            assert other.ideal == pytest.approx(one.ideal, nan_ok=True)
    assert after.ideal.ratio == pytest.approx(before.ideal.ratio)
    assert after.ideal.joint_batch == pytest.approx(before.ideal.joint_batch, nan_ok=True)


@given(lists())
@examples(30)
def test_nothing_is_known_from_nothing(listed):
    found = read_prices(listed, draws=200)
    for name in BLIND:
        one = found[name]
        assert not one.identifiable
        assert one.interval is None
        assert math.isnan(one.value)
        assert one.reason


@given(lists(), some.floats(0.5, 10))
@examples(30)
def test_doubling_the_margin_halves_the_bytes(listed, margin):
    one, two = (read_prices(listed, margin=times * margin, draws=2000)["kv_bytes_per_token"] for times in (1, 2))
    if one.identifiable:
        assert two.value == pytest.approx(one.value / 2)
        np.testing.assert_allclose(two.interval, np.divide(one.interval, 2))
        assert two.bound == pytest.approx(one.bound)


@pytest.mark.thorough
@given(lists(), some.floats(1, 5), some.floats(1, 3), some.floats(1, 3), some.integers(0, 50))
@examples(60)
def test_a_wider_prior_never_narrows_an_interval(listed, middle, width, more, seed):
    given_ = [f"{middle / spread}..{middle * spread}" for spread in (width, width * more)]
    ends = [read_prices(listed, margin=text, seed=seed)["kv_bytes_per_token"].interval for text in given_]
    if ends[0] is not None:
        assert ends[1][1] / ends[1][0] >= ends[0][1] / ends[0][0] * (1 - 1e-9)


def test_the_seed_decides_and_nothing_else():
    one, two, other = (read_prices("openai/gpt-6-sol", seed=seed)["kv_bytes_per_token"] for seed in (3, 3, 4))
    assert one == two
    assert one.interval != other.interval


def test_flat_lists_and_odd_ones_are_answered():
    flat = read_prices({"input": 2, "output": 10})
    assert not flat["kv_bytes_per_token"].identifiable
    assert "no price step" in flat["kv_bytes_per_token"].reason
    rounded = read_prices({"input": 1, "output": 1, "tiers": [{"above_tokens": 32_000, "input": 1, "output": 1 + 2**-36}]})
    assert not rounded["kv_bytes_per_token"].identifiable
    steep = read_prices({"input": 2, "output": 10, "tiers": [{"above_tokens": 200_000, "input": 4, "output": 15}]})
    assert "input price increases more than the output price" in steep["kv_bytes_per_token"].reason
    only = read_prices({"input": 2, "output": 10, "tiers": [{"above_tokens": 200_000, "input": 4, "output": 10}]})
    assert "only the input price increases" in only["kv_bytes_per_token"].reason
    single = read_prices({"input": 1, "output": 1})
    assert single["active_parameters"].identifiable
    free_hits = read_prices({"input": 2, "output": 10, "cache_read": 0, "cache_write": 2.5})
    assert free_hits["hits_short"].value == pytest.approx(0.25)
    undiscounted = read_prices({"input": 2, "output": 10, "cache_read": 2, "cache_write": 2.5})
    assert "no discount" in undiscounted["hits_short"].reason
    free_input = read_prices({"input": 0, "output": 10})
    assert not free_input["active_parameters"].identifiable


@each("write", [0.0, 1.0, 1.999])
def test_a_write_below_the_input_price_asks_nothing_for_holding(write):
    found = read_prices({"input": 2, "output": 10, "cache_read": 0.2, "cache_write": write, "hold": "5 min"})
    for name in ("hold_price_short", "memory_tiers"):
        assert not found[name].identifiable
    assert "less than new input" in found["hold_price_short"].reason
    assert "no write price above input" in found["memory_tiers"].reason
    both = read_prices({"input": 2, "output": 10, "cache_write": write, "hold": "5 min", "storage": 1.0})
    assert len(both["memory_tiers"].words) == 1
    assert "-" not in both["memory_tiers"].words[0]


def test_a_write_at_the_input_price_holds_for_nothing():
    found = read_prices({"input": 2, "output": 10, "cache_write": 2, "hold": "5 min"})
    assert found["hold_price_short"].value == 0
    assert not found["memory_tiers"].identifiable


def test_checked_lists_stay_as_they_are():
    listed = PriceList(provider="a", model="b", rates=(Rates(input=1.0, output=2.0),))
    assert checked(listed) is listed
