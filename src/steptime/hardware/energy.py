"""Energy: electricity per token, and the power budget of a chip.

**Power budget.** Moving a bit costs energy: $p = 8 e W$ watts at $W$ bytes per second and $e$ joules per bit. The model
assigns the rest of the power to arithmetic and its supply of data, in proportion to its rate. Take a chip of power $P$ with
$w$ times the bandwidth and $l$ times the link bandwidth. It has $f = (P - w p_w - l p_l) / p_f$ times the FLOP/s, with $p_f
= P - p_w - p_l$.

The bits of a link count once: a chip sends as many as it receives, and the energy of a bit is that of both ends. Capacity
takes almost no power, so that the model ignores it.

References:
    Both reported. HBM2: 3.9 pJ per bit (O'Connor et al., Fine-Grained DRAM, MICRO 2017,
    https://doi.org/10.1145/3123939.3124545). Long-reach SerDes: 5.5 pJ per bit, the comparison value for
    NVLink-C2C
    (https://www.besthub.dev/articles/why-nvidia-s-nvlink-c2c-is-redefining-gpu-cpu-interconnects-f3c3b77f8d87).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

from steptime.errors import InputError, RangeError, UnitError, UnknownName, short_repr
from steptime.hardware.system import DEAREST_ENERGY, Power, Rent, System
from steptime.number_checks import Number, between
from steptime.units import MILLION, parse, show

MEMORY_JOULES_PER_BIT: Final = 3.9e-12
LINK_JOULES_PER_BIT: Final = 5.5e-12
FLOPS, BANDWIDTH, CAPACITY, LINK = "flops", "bandwidth", "capacity", "link"
PARTS: Final = (FLOPS, BANDWIDTH, CAPACITY, LINK)
# Share of the arithmetic below which a design counts as impossible.
LEAST_LEFT: Final = 0.01


def moving_watts(bytes_per_second: Number, joules_per_bit: Number) -> Number:
    """Return the power of moving bits.

    Args:
        bytes_per_second: Bandwidth [B/s].
        joules_per_bit: Energy of one bit [J].

    Returns:
        Watts.

    >>> round(moving_watts(3.35e12, 3.9e-12), 1)
    104.5
    """
    return 8 * bytes_per_second * joules_per_bit


def power_shares(system: System) -> dict[str, float]:
    """Return the share of a chip's power for each of its parts.

    Args:
        system: The system.

    Returns:
        Shares by part; they add up to 1.

    Raises:
        RangeError: The power of the chip is unknown, or its memory and links would take all of it.
    """
    watts = float(system.chip.power_w)
    if not math.isfinite(watts):
        raise RangeError(
            f"chip.power: unknown for {system.chip.name}; set it with --set chip.power=700W, or set your own weights"
        )
    if system.chip.hbm.name != "hbm":
        hint = "set your own shares with --within bandwidth=0.3,link=0.1"
        raise RangeError(f"{system.chip.hbm.name}: the energy per bit is known only for HBM; {hint}")

    # Arithmetic gets the power that memory and links leave.
    memory = float(moving_watts(system.chip.hbm.bandwidth, MEMORY_JOULES_PER_BIT))
    links = float(moving_watts(system.scale_up.link.bandwidth, LINK_JOULES_PER_BIT))
    if memory + links >= watts:
        raise RangeError(f"{system.chip.name}: memory and links would take {memory + links:,.0f} W of its {watts:,.0f} W")
    return {FLOPS: (watts - memory - links) / watts, BANDWIDTH: memory / watts, CAPACITY: 0.0, LINK: links / watts}


def flops_left(shares: Mapping[str, float], times: Mapping[str, Number]) -> Number:
    """Return the FLOP/s that remain within a power budget, relative to the chip.

    Args:
        shares: Share of power by part; they add up to 1.
        times: Rate of each other part, relative to the chip.

    Returns:
        A factor on the FLOP/s; negative where the other parts exceed the budget.

    >>> round(float(flops_left({"flops": 0.8, "bandwidth": 0.15, "link": 0.05}, {"bandwidth": 2.0})), 4)
    0.8125
    """
    other_power: Number = sum(share * times.get(part, 1.0) for part, share in shares.items() if part != FLOPS)
    factor: Number = (1 - other_power) / shares[FLOPS]
    return factor


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


GRIDS: Final[Mapping[str, float]] = {
    "australia": 525.0, "brazil": 110.0, "canada": 191.0, "china": 525.0, "france": 41.0, "germany": 330.0, "india": 670.0,
    "japan": 477.0, "netherlands": 254.0, "norway": 28.0, "poland": 589.0, "singapore": 497.0, "south-korea": 417.0,
    "spain": 154.0, "sweden": 35.0, "uae": 468.0, "uk": 217.0, "us": 384.0, "world": 458.0,
}  # fmt: skip
"""CO2 equivalents of a kWh over the life of its plants [g/kWh], yearly means of 2024 or 2025.

Reported: Ember, Yearly Electricity Data, through https://ourworldindata.org/grapher/carbon-intensity-electricity (CC BY 4.0).
"""
# CO2 of a kWh from lignite is about 1,100 g; no grid has more [g/kWh].
MOST_CARBON: Final = 2000.0


def read_carbon(carbon: str | float) -> float:
    """Read the CO2 of a grid.

    Args:
        carbon: A grid of `GRIDS`, a text such as "384" or "384 g/kWh", or a number in g/kWh.

    Returns:
        CO2 of a kWh [g].

    Raises:
        UnknownName: There is no such grid. RangeError: The number is negative or above `MOST_CARBON`.

    >>> read_carbon("US"), read_carbon("25 g/kWh"), read_carbon(400)
    (384.0, 25.0, 400.0)
    """
    if isinstance(carbon, bool) or not isinstance(carbon, str | int | float):
        raise InputError(f"carbon: must be a grid or a number in g/kWh, got {short_repr(carbon)}")
    text = str(carbon).strip().casefold().replace(" ", "-").replace("_", "-")
    if text in GRIDS:
        return GRIDS[text]
    number = re.fullmatch(r"([-+0-9.e]+?)-?(g(co2e?)?/kwh)?", text)
    try:
        value = float(number[1]) if number else math.nan
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise UnknownName("grid", carbon, GRIDS, f"Give a number in g/kWh, or one of {', '.join(GRIDS)}.")
    if not 0 <= value <= MOST_CARBON:
        raise RangeError(f"carbon: must be from 0 to {MOST_CARBON:,.0f} g/kWh, got {short_repr(carbon)}")
    return value


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
