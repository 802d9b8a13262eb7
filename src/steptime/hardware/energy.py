"""Energy: the price of electricity, joules per token, and what a rent says of it."""

from __future__ import annotations

import re

from steptime.errors import InputError, RangeError, UnitError, short_repr
from steptime.hardware.figure_bounds import DEAREST_ENERGY
from steptime.hardware.system import Power, Rent
from steptime.number_checks import Number, between
from steptime.units import MILLION, parse, show

BASES = {
    "all-in": "all-in, its share of host, network and cooling counted",
    "rack": "its share of the rack's, cooling not counted",
    "whole": "the whole machine, cooling not counted",
    "chip": "the limit of the chip alone, host, network and cooling not counted",
    "given": "as given",
}


def read_electricity(price: str | float) -> float:
    """Return a price of electricity [USD/J] from a text, "0.08", "0.08/kWh" or "80 USD/MWh", or a number of USD/J.

    A bare number in a text is USD per kWh. Raises RangeError for what is negative or above 10 USD/kWh.

    >>> round(read_electricity("0.08/kWh") * 3.6e6, 6), round(read_electricity("80 USD/MWh") * 3.6e6, 6)
    (0.08, 0.08)
    """
    if isinstance(price, str):
        text = "/".join(part.strip() for part in price.split("/"))
        bare = re.fullmatch(r"[-+0-9.,eE_]+", text)
        value = _parse_price(f"{text} USD/kWh" if bare else re.sub(r"^([-+0-9.,eE_]+)/", r"\1 USD/", text), price)
    elif isinstance(price, bool) or not isinstance(price, int | float):
        raise InputError(f"electricity is a text such as '0.08/kWh' or a number of USD/J, not {short_repr(price)}")
    else:
        value = float(price)
    if not 0 <= value <= DEAREST_ENERGY:
        raise RangeError(f"electricity must cost from 0 to 10 USD/kWh, not {_price_in_words(price, value)}")
    return float(between("electricity", value, 0.0, DEAREST_ENERGY, "USD/J"))


def _price_in_words(price: str | float, value: float) -> str:
    return short_repr(price) if isinstance(price, str) else f"{short_repr(price)} USD/J, which are {show(value, 'USD/J')}"


def _parse_price(text: str, price: str) -> float:
    try:
        return parse(text, "USD/J")
    except UnitError:
        raise UnitError(f"electricity: {short_repr(price)} is no price in USD per kWh, such as 0.08 or 0.08/kWh") from None


def joules_per_token(chips: Number, watts: Number, tokens_per_second: Number) -> Number:
    """Joules per token: chips, watts of one [W], tokens_per_second of all [tok/s] -> [J].

    >>> joules_per_token(8, 1000, 4000)
    2.0
    """
    return chips * watts / tokens_per_second


def electricity_per_million(joules: Number, usd_per_joule: Number) -> Number:
    """USD of electricity per million tokens: joules of a token [J], usd_per_joule [USD/J] -> [USD].

    >>> round(electricity_per_million(3.6, 0.08 / 3.6e6), 6)
    0.08
    """
    return joules * usd_per_joule * MILLION


def counted_by(rent: Rent) -> str:
    """Say whether a rent pays for electricity already, so far as is known.

    A rented chip runs in the lessor's hall. Sources of cost of ownership here do not say what they count.
    """
    return {
        "contract": "which the rent pays already: not to be added",
        "ondemand": "which the rent pays already: not to be added",
        "owned": "which this cost of ownership may count already (its source does not say): not added",
        "assumed": "which this rent may count already (its source does not say): not added",
        "given": "not added: add it if the rent that you gave leaves it out",
    }.get(rent.kind, "the only cost that is known here")


def power_in_words(power: Power) -> str:
    """Return what a chip draws, its basis, date and grade.

    >>> power_in_words(Power(watts=700.0, basis="chip", date="2022-03-22", grade="vendor"))
    '700 W a chip (the limit of the chip alone, host, network and cooling not counted; vendor, 2022-03-22)'
    """
    origin = ", ".join(filter(None, (power.grade if power.grade != "given" else "", power.date)))
    basis = BASES.get(power.basis, power.basis) + (f"; {origin}" if origin else "")
    return f"{show(float(power.watts), 'W')} a chip ({basis})"
