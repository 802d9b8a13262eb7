"""Unit cost: USD per million tokens from rent and throughput, and a day's bill."""

from __future__ import annotations

import math

from steptime.number_checks import Number
from steptime.units import DAY, MILLION


def usd_per_million(usd_per_second: Number, tokens_per_second: Number) -> Number:
    """Return the cost of a million tokens.

    Args:
        usd_per_second: Rent of all chips [USD/s].
        tokens_per_second: Throughput of all chips [tok/s].

    Returns:
        USD per million tokens.

    >>> round(usd_per_million(8 * 2 / 3600, 14_800), 4)
    0.3003
    """
    return usd_per_second / tokens_per_second * MILLION


def deployment_rent(chips: Number, usd_per_chip_second: Number) -> Number:
    """Return the rent of a deployment.

    Args:
        chips: Number of chips.
        usd_per_chip_second: Rent of one chip [USD/s].

    Returns:
        USD per second.

    >>> round(deployment_rent(226.75 * 8, 2 / 3600) * 86400)
    87072
    """
    return chips * usd_per_chip_second


def nodes_needed(tokens: Number, tokens_per_second_per_node: Number, seconds: Number = DAY) -> Number:
    """Return the nodes that process `tokens` within `seconds`.

    Args:
        tokens: Number of tokens.
        tokens_per_second_per_node: Throughput of one node [tok/s].
        seconds: Time; by default one day.

    Returns:
        Number of nodes, not rounded.

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
    """Return the revenue of tokens at API prices.

    Args:
        tokens_in: Input tokens, cached tokens included.
        cached_in: Input tokens from a cache.
        tokens_out: Output tokens.
        price_in: USD per million fresh input tokens.
        price_cached: USD per million cached input tokens.
        price_out: USD per million output tokens.

    Returns:
        USD.

    >>> round(revenue(608e9, 342e9, 168e9, price_in=0.55, price_cached=0.14, price_out=2.19))
    562100
    """
    # Input tokens from a cache have a separate, lower price.
    fresh = tokens_in - cached_in
    return (fresh * price_in + cached_in * price_cached + tokens_out * price_out) / MILLION


def margin(income: Number, expense: Number) -> Number:
    """Return profit divided by cost.

    Args:
        income: Revenue [USD].
        expense: Cost [USD].

    Returns:
        A ratio.

    >>> round(margin(562_027, 87_072), 2)
    5.45
    """
    return (income - expense) / expense


def sequences_in_flight(tokens_per_second: Number, tokens_per_second_per_user: Number) -> Number:
    """Return the sequences in decode at once, by Little's law.

    Args:
        tokens_per_second: Throughput [tok/s].
        tokens_per_second_per_user: Output rate of one sequence [tok/s].

    Returns:
        Number of sequences.

    >>> round(sequences_in_flight(14_800, 21))
    705
    """
    return tokens_per_second / tokens_per_second_per_user


def usd(value: float) -> str:
    """Write dollars with three digits, millions and billions with a letter.

    Args:
        value: USD.

    Returns:
        Text such as "$1,230" or "$6.99 M".

    >>> usd(1234.5), usd(0.3), usd(0.05018), usd(0.0), usd(6_994_061.63), usd(99.95), usd(12), usd(-5.5)
    ('$1,230', '$0.300', '$0.0502', '$0.00', '$6.99 M', '$100', '$12.0', '-$5.50')
    >>> usd(292e6), usd(999.6e6), usd(999_499), usd(2e12)
    ('$292 M', '$1.00 B', '$999,000', '$2,000 B')
    """
    if not math.isfinite(value):
        return "unknown"
    if not value:
        return "$0.00"

    # Rounded first: 999,600,000 is 1.00 B, not 1,000 M.
    rounded = float(f"{abs(value):.3g}")
    scale, letter = next(((s, name) for s, name in ((1e9, " B"), (1e6, " M")) if rounded >= s), (1.0, ""))
    amount = rounded / scale
    decimals = max(0, 2 - math.floor(math.log10(amount)))
    return f"{'-' if value < 0 else ''}${amount:,.{decimals}f}{letter}"
