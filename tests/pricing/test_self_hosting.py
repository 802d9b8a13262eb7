"""Own chips against an API: costs by hand, the break-even volume, and the command."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

import steptime as st
from steptime.cli.views.prices_view import self_hosting_view
from steptime.errors import InputError, RangeError
from steptime.planning.fleet import MONTH, size_fleet
from steptime.pricing.self_hosting import _cheapest_fleet, _plan_sizes, break_even_rate
from steptime.units import DAY, MILLION
from tests.cli.test_commands import run

AMOUNT = some.floats(0.01, 100)


@given(AMOUNT, AMOUNT, AMOUNT, some.integers(1, 8), some.integers(0, 3))
def test_both_cost_the_same_at_the_break_even_rate(price, capacity, host_rent, per_host, spare):
    rate = break_even_rate(price, capacity, host_rent, per_host=per_host, spare=spare)
    if math.isnan(rate):
        # Even full hosts without spares cost more.
        assert host_rent / per_host / capacity > price * 0.99 or spare
        return

    def own(requests: float) -> float:
        return size_fleet(
            requests, served=capacity, replica_chips=1, host_chips=per_host, chip_rent=host_rent / per_host, output_tokens=1,
            spare=spare,
        ).usd_per_month / MONTH  # fmt: skip

    assert own(rate) <= rate * price * (1 + 1e-6)
    assert all(own(share * rate) > share * rate * price for share in (0.3, 0.7, 0.99))


def test_a_volume_by_hand():
    """100 million tokens a day of requests of 1,250 tokens: 0.926 a second."""
    found = st.compare_self_hosting("llama-3.1-8b", "hgx-h100", tokens_per_day=1e8, mix="1000:250", chips=1)
    api, own = found.provisions[-2], found.provisions[-1]
    assert found.rate == pytest.approx(1e8 / 1250 / DAY)
    for provision in found.provisions:
        assert provision.usd_per_month == pytest.approx(provision.usd_per_request * found.rate * MONTH)
        assert provision.usd_per_million_tokens == pytest.approx(provision.usd_per_request * MILLION / 1250)
    assert own.usd_per_month == found.fleet.usd_per_month
    # Eight replicas of one chip fill a host, whose full load is eight times that of one.
    capacity = found.rate / found.fleet.utilisation / found.fleet.replicas
    full = found.fleet.usd_per_month / found.fleet.hosts / MONTH / 8 / capacity
    assert found.break_even_utilisation == pytest.approx(full / api.usd_per_request)
    market = st.survey_prices("llama-3.1-8b", mix="1000:250", chips=8)
    assert api.usd_per_request == pytest.approx(market.median_price)


@pytest.fixture
def search():
    """Plans by chips: 16 do not hold the model, 32 and 64 serve the rate on 64 and 48 chips, for 9 and 7 USD a month."""

    def planned(chips: int) -> Any:
        asked.append(chips)
        if chips == 16:
            raise InputError("does not fit")
        fleets = {32: SimpleNamespace(chips=64, usd_per_month=9.0), 64: SimpleNamespace(chips=48, usd_per_month=7.0)}
        return SimpleNamespace(chips=chips, fleet=fleets.get(chips))

    asked: list[int] = []
    return planned, asked


def test_own_chips_have_the_plan_of_the_cheapest_fleet(search):
    planned, asked = search
    assert _cheapest_fleet(planned, [8, 16, 32, 64, 128]).chips == 64
    # With 64 chips one plan serves everything.
    assert asked == [8, 16, 32, 64]
    assert _cheapest_fleet(planned, [8, 16]).fleet is None
    with pytest.raises(InputError, match="does not fit"):
        _cheapest_fleet(planned, [16])


def test_sizes_of_plans_double_from_the_usual_one():
    assert _plan_sizes(st.load_system("hgx-h200")) == [8, 16, 32, 64]
    assert _plan_sizes(st.load_system("gb200-nvl72")) == [72]


@pytest.mark.parametrize(("usd_per_month", "words"), [(2.0, "own / API is 2x"), (5e9, "own / API is more than 1,000x")])
def test_a_ratio_above_a_thousand_has_no_digits(usd_per_month, words):
    base = st.compare_self_hosting("llama-3.1-8b", "hgx-h100", tokens_per_day=1e8, mix="1000:250", chips=1)
    api, own = (replace(one, usd_per_month=usd) for one, usd in zip(base.provisions[-2:], (1.0, usd_per_month), strict=True))
    assert words in self_hosting_view(replace(base, provisions=(api, own))).sentence


def test_what_cannot_be_compared():
    with pytest.raises(InputError):
        st.compare_self_hosting("gpt-2", "hgx-h100", tokens_per_day=1e8)
    with pytest.raises(RangeError):
        st.compare_self_hosting("llama-3.1-8b", "hgx-h100", tokens_per_day=0)
    slow = st.compare_self_hosting("llama-3.1-8b", "hgx-h100", tokens_per_day=1e8, speed=1e5)
    assert (slow.feasible, slow.fleet, bool(slow.reason), bool(slow.provisions)) == (False, None, True, True)


def test_the_command():
    shown = run("prices llama-3.1-8b --self-host hgx-h100 --tokens-per-day 100M --mix 1000:250 --chips 1 --json")
    found = st.compare_self_hosting("llama-3.1-8b", "hgx-h100", tokens_per_day=1e8, mix="1000:250", chips=1)
    data = json.loads(shown.stdout)
    assert data["provisions"][-1]["usd_per_month"] == pytest.approx(found.provisions[-1].usd_per_month)
    assert run("prices llama-3.1-8b --self-host hgx-h100").returncode == 2
    assert run("prices llama-3.1-8b --self-host hgx-h100 --tokens-per-day 100M --date 2026-03-01").returncode == 2
