"""The lecture's closed forms of prices (sections 5, 13 to 15), exact, and their joint reading."""

from __future__ import annotations

import math

import pytest

from steptime import blackboard as bb
from steptime.pricing.price_inversion import Ideal, read_prices
from steptime.pricing.price_list import PriceList, Rates

TIERED = PriceList(
    provider="a", model="b",
    rates=(Rates(input=1.0, output=6.0), Rates(above_tokens=200e3, input=1.0, output=9.0)),
)  # fmt: skip


@pytest.mark.parametrize(("weight_bytes", "kappa"), [(1.0, 1666.7), (0.5, 833.3), (2.0, 3333.3)])
def test_kv_bytes_of_a_threshold(weight_bytes, kappa):
    assert bb.kv_bytes_from_tier(1e11, 2e5, 300, weight_bytes) == pytest.approx(kappa, rel=1e-3)
    found = read_prices(TIERED, ideal=Ideal(weight_bytes=weight_bytes)).ideal
    assert found.kv_bytes == pytest.approx(kappa, rel=1e-3)


def test_shape_and_utilisation():
    assert bb.kv_bytes_from_shape(1, 128, 8) == 2048
    assert bb.decode_utilisation(5.0) == pytest.approx(0.20, abs=1e-12)
    assert read_prices({"input": 5, "output": 25}).ideal.decode_utilisation == pytest.approx(0.20, abs=1e-12)


def test_a_fast_mode():
    assert bb.batch_ratio(6, 2.5) == 15
    assert bb.speed_ceiling(6, 2.5) == pytest.approx(2.8)
    found = read_prices({"input": 5, "output": 25, "services": [{"name": "fast", "input": 30, "output": 150, "speed": 2.5}]})
    assert found["fast_mode"].ideal == pytest.approx(15)
    assert "ceiling 2.8 times" in found["fast_mode"].ideal_from
    assert bb.batch_ratio(2, 2.5) == 5
    assert bb.speed_ceiling(2, 2.5) == pytest.approx(4)


def test_holding_against_remaking():
    assert bb.break_even_hold(0.020, 200e3) == pytest.approx(4000)
    assert read_prices(TIERED).ideal.hbm_break_even == pytest.approx(4000)
    assert bb.recompute_cost(100e9, 4.5e15 / 2, 2 / 3600) * 1e6 == pytest.approx(0.0247, abs=5e-5)


def test_hits_and_premiums_of_caches():
    found = read_prices({"input": 5, "output": 25, "cache_read": 0.5, "cache_write": 6.25, "cache_write_long": 10,
                         "hold": "5 min", "hold_long": "1 h"})  # fmt: skip
    assert found["hits_short"].value == pytest.approx(0.2778, abs=1e-4)
    assert found["hits_long"].value == pytest.approx(1.1111, abs=1e-4)
    assert found["hits_short"].reason.endswith("rounded up: 1")
    assert found["hits_long"].reason.endswith("rounded up: 2")
    assert found["hold_price_short"].value == pytest.approx(15)
    assert found["hold_price_long"].value == pytest.approx(5)
    assert found.ideal.hits == pytest.approx((0.2778, 1.1111), abs=1e-4)


def test_joint_reading_of_a_step_and_a_ratio():
    found = read_prices(TIERED, ideal=Ideal(balance=300, active=1e11, weight_bytes=1, short=20e3, long=400e3)).ideal
    assert found.balanced == pytest.approx(126_667, rel=1e-3)
    assert found.joint_kv_bytes == pytest.approx(2632, rel=1e-3)
    assert found.joint_batch == pytest.approx(5.84, abs=5e-3)
    assert bb.joint_balanced_context(5, 1.5, 20e3, 300e3) == pytest.approx(112_000, rel=1e-9)


def test_two_sections_read_apart_contradict_each_other():
    found = read_prices(TIERED).ideal
    assert not found.consistent
    assert found.ratio_left == 1
    cheap = PriceList(
        provider="a", model="b", rates=(Rates(input=1.0, output=1.0), Rates(above_tokens=200e3, input=1, output=2))
    )
    assert read_prices(cheap).ideal.consistent
    assert math.isnan(read_prices({"input": 1, "output": 5}).ideal.kv_bytes)
