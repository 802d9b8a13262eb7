"""Energy: the price of electricity, joules per token, and power in words."""

from __future__ import annotations

import re

from steptime.errors import InputError, RangeError, UnitError, short_repr
from steptime.hardware.figure_bounds import DEAREST_ENERGY
from steptime.hardware.system import Power, Rent
from steptime.number_checks import Number, between
from steptime.units import MILLION, parse, show

BASES = {
    "all-in": "all-in, with its share of host, network and cooling",
    "rack": "its share of the rack, without cooling",
    "whole": "the whole machine, without cooling",
    "chip": "limit of the chip, without host, network and cooling",
    "given": "as given",
}


def read_electricity(price: str | float) -> float:
    """Read a price of electricity.

    A bare number in a text is USD per kWh.

    Args:
        price: A text such as "0.08", "0.08/kWh" or "80 USD/MWh", or a number in USD/J.

    Returns:
        USD per joule.

    Raises:
        RangeError: The price is negative or above 10 USD/kWh. UnitError: The text is not a price.

    >>> round(read_electricity("0.08/kWh") * 3.6e6, 6), round(read_electricity("80 USD/MWh") * 3.6e6, 6)
    (0.08, 0.08)
    """
    # A bare number, and a number before a slash, get the unit that people leave out.
    if isinstance(price, str):
        text = "/".join(part.strip() for part in price.split("/"))
        bare = re.fullmatch(r"[-+0-9.,eE_]+", text)
        value = _parse_price(f"{text} USD/kWh" if bare else re.sub(r"^([-+0-9.,eE_]+)/", r"\1 USD/", text), price)
    elif isinstance(price, bool) or not isinstance(price, int | float):
        raise InputError(f"electricity: must be a text such as '0.08/kWh' or a number in USD/J, got {short_repr(price)}")
    else:
        value = float(price)
    if not 0 <= value <= DEAREST_ENERGY:
        raise RangeError(f"electricity: must cost from 0 to 10 USD/kWh, got {_price_in_words(price, value)}")
    return float(between("electricity", value, 0.0, DEAREST_ENERGY, "USD/J"))


def _price_in_words(price: str | float, value: float) -> str:
    return short_repr(price) if isinstance(price, str) else f"{short_repr(price)} USD/J ({show(value, 'USD/J')})"


def _parse_price(text: str, price: str) -> float:
    try:
        return parse(text, "USD/J")
    except UnitError:
        raise UnitError(f"electricity: {short_repr(price)} is not a price in USD per kWh; use 0.08 or 0.08/kWh") from None


def joules_per_token(chips: Number, watts: Number, tokens_per_second: Number) -> Number:
    """Return the energy of a token.

    Args:
        chips: Number of chips.
        watts: Power of one chip [W].
        tokens_per_second: Throughput of all chips [tok/s].

    Returns:
        Joules per token.

    >>> joules_per_token(8, 1000, 4000)
    2.0
    """
    return chips * watts / tokens_per_second


def electricity_per_million(joules: Number, usd_per_joule: Number) -> Number:
    """Return the cost of electricity for a million tokens.

    Args:
        joules: Energy of a token [J].
        usd_per_joule: Price of electricity [USD/J].

    Returns:
        USD per million tokens.

    >>> round(electricity_per_million(3.6, 0.08 / 3.6e6), 6)
    0.08
    """
    return joules * usd_per_joule * MILLION


def counted_by(rent: Rent) -> str:
    """Describe whether a rent includes electricity.

    A rented chip runs in the lessor's data center, so that its rent includes electricity. The sources of cost of ownership
    do not state their parts.

    Args:
        rent: The rent.

    Returns:
        A clause that continues "electricity ..., ".
    """
    return {
        "contract": "not added, because the rent includes it",
        "ondemand": "not added, because the rent includes it",
        "owned": "not added, because this cost of ownership may include it (its source does not say)",
        "assumed": "not added, because this rent may include it (its source does not say)",
        "given": "not added; add it if your rent does not include it",
    }.get(rent.kind, "the only known cost here")


def power_in_words(power: Power) -> str:
    """Describe the power of a chip with basis, date and grade.

    Args:
        power: The power.

    Returns:
        Text.

    >>> power_in_words(Power(watts=700.0, basis="chip", date="2022-03-22", grade="vendor"))
    '700 W per chip (limit of the chip, without host, network and cooling; vendor, 2022-03-22)'
    """
    origin = ", ".join(filter(None, (power.grade if power.grade != "given" else "", power.date)))
    basis = BASES.get(power.basis, power.basis) + (f"; {origin}" if origin else "")
    return f"{show(float(power.watts), 'W')} per chip ({basis})"
