"""Energy by hand: prices of electricity, joules of a token, and where a machine's power comes from."""

from __future__ import annotations

import math

import pytest

import steptime as st
from steptime.hardware.energy import counted_by, electricity_per_million, joules_per_token, power_in_words, read_electricity
from steptime.hardware.system import Power, Rent
from steptime.units import show
from tests.conftest import each

KWH = 3.6e6


@each("text", ["0.08", "0.08/kWh", " 0.08 / kWh", "0.08 USD/kWh", "80/MWh", "80 USD/MWh", 0.08 / KWH])
def test_a_price_of_electricity_as_people_write_it(text):
    assert read_electricity(text) == pytest.approx(0.08 / KWH)


@each(
    "text, says",
    [
        ("x", "'x' is not a price in USD per kWh; use 0.08 or 0.08/kWh"),
        ("", "is not a price"),
        ("0.08/h", "is not a price"),
        ("0.08 EUR/kWh", "is not a price"),
        ("-0.1", "from 0 to 10 USD/kWh, got '-0.1'"),
        ("11", "from 0 to 10 USD/kWh, got '11'"),
        (0.08, "288,000 USD/kWh"),
        (math.nan, "from 0 to 10"),
        (True, "a text such as"),
        (None, "a text such as"),
    ],
)
def test_a_price_that_is_none_is_refused(text, says):
    with pytest.raises(st.InputError, match=says):
        read_electricity(text)


def test_a_free_kilowatt_hour_costs_nothing():
    assert read_electricity("0") == 0
    assert electricity_per_million(5.0, 0.0) == 0


def test_joules_of_a_token_by_hand():
    """Eight chips of 1.37 kW that make 3,000 tokens a second: 3.65 J each, a million 1.01 kWh, 8.1 cents at 8 cents."""
    joules = joules_per_token(8, 1370, 3000)
    assert joules == pytest.approx(3.6533, rel=1e-4)
    assert electricity_per_million(joules, 0.08 / KWH) == pytest.approx(joules * 1e6 / KWH * 0.08)
    assert show(0.08 / KWH, "USD/J") == "0.08 USD/kWh"


@each(
    "name, watts, basis, grade",
    [
        ("hgx-h100", 1370, "all-in", "reported"),  # InferenceX, August 2026
        ("gb300-nvl72", 2120, "all-in", "reported"),
        ("vr200-nvl72", 230e3 / 72, "rack", "recalled"),
        ("hgx-a100", 400, "chip", "vendor"),
        ("m3-ultra", 270, "whole", "recalled"),
    ],
)
def test_where_a_systems_power_comes_from(name, watts, basis, grade):
    system = st.load_system(name)
    assert (system.power.watts, system.power.basis) == (pytest.approx(watts), basis)
    assert system.power.grade == system.figures["power"].grade
    assert system.power.grade == grade or name == "vr200-nvl72"


def test_power_that_nobody_published_is_not_known_and_can_be_given():
    unknown = st.load_system("tpu-v6e")
    assert math.isnan(unknown.power.watts)
    given = st.vary(unknown, {"power": 300.0})
    assert (given.power.watts, given.power.basis, given.power.grade) == (300, "given", "given")
    assert power_in_words(given.power) == "300 W per chip (as given)"


def test_the_limit_of_a_chip_is_its_power_only_where_nothing_better_is_known():
    alone, counted = (st.vary(name, {"chip.power": 500.0}) for name in ("hgx-a100", "hgx-h100"))
    assert (alone.power.watts, alone.power.basis, alone.power.grade) == (500, "chip", "given")
    assert alone.figures["power"].grade == "given"
    assert counted.power == st.load_system("hgx-h100").power
    assert counted.chip.power_w == 500


def test_what_a_rent_says_of_electricity():
    assert "the rent includes it" in counted_by(Rent(kind="contract"))
    assert "the rent includes it" in counted_by(Rent(kind="ondemand"))
    assert "may include it" in counted_by(Rent(kind="owned"))
    assert "add it if" in counted_by(Rent(kind="given"))
    assert power_in_words(Power(watts=1370.0, basis="all-in", grade="reported", date="2026-08-01")) == (
        "1.37 kW per chip (all-in, with its share of host, network and cooling; reported, 2026-08-01)"
    )
