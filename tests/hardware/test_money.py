"""Money by hand: four chips at 2 USD an hour that make 800 tokens a second."""

from __future__ import annotations

import math

import pytest

from steptime.hardware.rental_prices import deployment_rent, margin, nodes_needed, revenue, sequences_in_flight, usd_per_million


def test_rent_and_cost_of_a_million_tokens():
    """8 USD an hour over 2.88 million tokens."""
    rent = deployment_rent(4, 2 / 3600)
    assert rent * 3600 == pytest.approx(8)
    assert usd_per_million(rent, 800) == pytest.approx(8 / 2.88)


def test_a_day_of_tokens():
    """1,000 a second are 86.4 million a day."""
    assert nodes_needed(86.4e6 * 3, 1000) == pytest.approx(3)
    assert nodes_needed(6000, 1000, seconds=2) == 3


def test_revenue_counts_cached_input_once():
    """Ten million in, four of them cached, three out, at 2, 0.5 and 8 USD a million: 12 + 2 + 24."""
    income = revenue(10e6, 4e6, 3e6, price_in=2.0, price_cached=0.5, price_out=8.0)
    assert income == pytest.approx(38)
    assert margin(income, 19) == pytest.approx(1)
    assert margin(19, 38) == pytest.approx(-0.5)


def test_littles_law_and_unknown_rents():
    assert sequences_in_flight(800, 50) == 16
    assert math.isnan(usd_per_million(deployment_rent(4, math.nan), 800))
