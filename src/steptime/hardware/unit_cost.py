"""Money: from rent and throughput to USD per million tokens, and to a day's bill."""

from __future__ import annotations

import math

from steptime.number_checks import Number
from steptime.units import DAY, MILLION, in_digits


def usd_per_million(usd_per_second: Number, tokens_per_second: Number) -> Number:
    """USD per million tokens: usd_per_second [USD/s] of all chips, tokens_per_second [tok/s] -> [USD].

    >>> round(usd_per_million(8 * 2 / 3600, 14_800), 4)
    0.3003
    """
    return usd_per_second / tokens_per_second * MILLION


def deployment_rent(chips: Number, usd_per_chip_second: Number) -> Number:
    """Rent of a deployment [USD/s]: chips, usd_per_chip_second [USD/s].

    >>> round(deployment_rent(226.75 * 8, 2 / 3600) * 86400)
    87072
    """
    return chips * usd_per_chip_second


def nodes_needed(tokens: Number, tokens_per_second_per_node: Number, seconds: Number = DAY) -> Number:
    """Nodes that work through `tokens` in `seconds` at a rate per node.

    >>> round(nodes_needed(608e9, 73_700), 1), round(nodes_needed(168e9, 14_800), 1)
    (95.5, 131.4)
    """
    return tokens / (tokens_per_second_per_node * seconds)


def revenue(
    tokens_in: Number,
    cached_in: Number,
    tokens_out: Number,
    *,
    price_in: Number,
    price_cached: Number,
    price_out: Number,
) -> Number:
    """Revenue of tokens at prices in USD per million: fresh input, input served from a cache, output -> [USD].

    >>> round(revenue(608e9, 342e9, 168e9, price_in=0.55, price_cached=0.14, price_out=2.19))
    562100
    """
    fresh = tokens_in - cached_in
    return (fresh * price_in + cached_in * price_cached + tokens_out * price_out) / MILLION


def margin(income: Number, expense: Number) -> Number:
    """Profit over cost.

    >>> round(margin(562_027, 87_072), 2)
    5.45
    """
    return (income - expense) / expense


def sequences_in_flight(tokens_per_second: Number, tokens_per_second_per_user: Number) -> Number:
    """Sequences that decode at once, by Little's law: throughput over what each user gets.

    >>> round(sequences_in_flight(14_800, 21))
    705
    """
    return tokens_per_second / tokens_per_second_per_user


def usd(value: float) -> str:
    """Write dollars with three digits, millions and billions with a letter.

    >>> usd(1234.5), usd(0.3), usd(0.05018), usd(0.0), usd(6_994_061.63), usd(217.73), usd(12)
    ('$1,230', '$0.300', '$0.0502', '$0.00', '$6.99 M', '$218', '$12.0')
    """
    if not math.isfinite(value):
        return "unknown"
    for scale, letter in ((1e9, " B"), (1e6, " M")):
        if abs(value) >= 0.9995 * scale:
            return f"${in_digits(value / scale) if value >= 999.5 * scale else f'{value / scale:#.3g}'}{letter}"
    if value and abs(value) < 999.5:
        return f"${value:.{max(0, 2 - math.floor(math.log10(abs(value) * (1 + 5e-4))))}f}"
    return f"${in_digits(value)}" if value else "$0.00"
