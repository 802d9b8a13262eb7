"""Dollars per byte and operation, against figures worked by hand and published."""

from __future__ import annotations

import pytest

import steptime as st
from steptime import blackboard as bb
from steptime.hardware.rental_prices import revenue, usd_per_million
from steptime.pricing.kv_storage_cost import holds, tiers
from steptime.pricing.price_inversion import read_prices
from tests.conftest import CHOICE_ALONE


def test_a_petabyte_read():
    assert bb.usd_per_byte_read(2 / 3600, 3.35e12, 0.77) * 1e15 == pytest.approx(0.2154, abs=5e-5)


def test_a_step_at_margin_one():
    per_byte = bb.usd_per_byte_read(2 / 3600, 3.35e12, 0.77)
    assert bb.kv_bytes_from_step(6e-6, 200e3, per_byte) == pytest.approx(139e3, rel=5e-3)
    reason = read_prices("google/gemini-3.1-pro")["kv_bytes_per_token"].reason
    assert "6 USD/M more above 200,000 tokens" in reason
    assert " 139 kB" in reason


def test_a_trillion_parameters_on_gb200():
    assert 2e12 * bb.usd_per_flop(3.2 / 3600, 5e15, 0.60) * 1e6 == pytest.approx(0.593, abs=5e-4)
    assert bb.active_from_input(0.593e-6, bb.usd_per_flop(3.2 / 3600, 5e15, 0.60)) == pytest.approx(1e12, rel=1e-3)


def test_ninety_tokens_a_second():
    assert usd_per_million(1.41 / 3600, 90) == pytest.approx(4.35, abs=5e-3)


def test_the_day_of_deepseek(closed_forms):
    """open-infra-index, day 6: 608e9 tokens in, 342e9 of them hits, 168e9 out, 226.75 nodes of 8 at 2 USD an hour."""
    paid = revenue(608e9, 342e9, 168e9, price_in=0.55, price_cached=0.14, price_out=2.19)
    cost = 226.75 * 8 * 2 * 24
    assert paid / cost == pytest.approx(6.456, rel=1e-3)
    found = st.plan(
        "deepseek-r1",
        st.with_rent("hgx-h800", "2 USD/h"),
        st.Workload(input_tokens=608 / 168 * 1000, output_tokens=1000, cached_share=342 / 608),
        st.Slo(tpot=1 / 21),
        chips=176,
        **CHOICE_ALONE,
    )
    low, high = found.cost_range
    assert low < 0.518 < high
    assert cost / 168e9 * 1e6 == pytest.approx(0.518, abs=5e-4)


def test_storage_by_tier():
    """Gemini 2.5 Pro asks 4.50 USD per million token-hours: at margin 1 225 kB in HBM, 9 MB in DRAM, 640 MB in flash."""
    found = read_prices("google/gemini-2.5-pro")
    assert found["hold_price"].value == 4.5
    words = "; ".join(found["memory_tiers"].words)
    for told in ("HBM (up to 225 kB", "DRAM (up to 9.00 MB", "flash (up to 643 MB"):
        assert told in words
    dearer = read_prices("google/gemini-2.5-pro", hold={"hbm": 0.040})["memory_tiers"]
    assert "HBM (up to 112 kB" in dearer.words[0]


def test_drain_excludes_slow_tiers_from_short_lifetimes():
    """Five minutes are over before disk (20 h) or flash (9 min) can be read; an hour is enough for flash."""
    found = read_prices("anthropic/claude-opus-4-6")["memory_tiers"].words
    short, long = (next(one for one in found if one.startswith(name)) for name in ("short", "long"))
    assert "flash" not in short
    assert "flash" in long
    assert "disk" not in short + long


def test_what_a_hit_pays_for():
    """DeepSeek-V3: 70,272 B a token, hits at 0.07 USD/M: HBM 179 s, DRAM 2 h, flash 142 h at margin 1."""
    hbm, dram, flash, disk = holds(70_272, 0.0429, 0.07, tiers())
    assert hbm.hit_pays == pytest.approx(179, abs=1)
    assert dram.hit_pays == pytest.approx(2 * 3600, rel=0.01)
    assert flash.hit_pays == pytest.approx(142 * 3600, rel=0.01)
    assert hbm.break_even == pytest.approx(110, abs=1)
    assert disk.hit_pays > flash.hit_pays
