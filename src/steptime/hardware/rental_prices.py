"""Rental prices of chips by kind, and the cost of tokens that follows from rent and throughput."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Final

import numpy as np

from steptime.errors import InputError, RangeError, UnitError, UnknownName, short_repr
from steptime.hardware.system import Rent, System, checked
from steptime.number_checks import Number
from steptime.result_base import in_words
from steptime.units import DAY, HOUR, MILLION, USER_SET, parse, show

KINDS: Final = ("owned", "contract", "ondemand", "assumed")
"""Kinds of rent that a data file may state."""

RENTED: Final = ("contract", "ondemand", "assumed")
"""Kinds for plans by default; the first one at equal grade and date. Without any of them a plan uses `owned`."""

OWNERS: Final = ("", "hyperscaler", "neocloud")


def has_rent(rent: Rent) -> bool:
    """Whether a rent is known.

    Args:
        rent: The rent.

    Returns:
        True or false.
    """
    return bool(np.all(np.isfinite(rent.typical)))


def kind_in_words(rent: Rent) -> str:
    """Describe the kind of a rent.

    Args:
        rent: The rent.

    Returns:
        Text.

    >>> kind_in_words(Rent(kind="contract", term="three-year")), kind_in_words(Rent(kind="owned", owner="hyperscaler"))
    ('three-year contract', 'cost of ownership of a hyperscaler')
    >>> kind_in_words(Rent(kind="ondemand"))
    'on demand'
    """
    if rent.kind == "contract":
        return f"{rent.term} contract".strip()
    if rent.kind == "owned":
        return "cost of ownership" + (f" of a {rent.owner}" if rent.owner else "")
    if rent.kind == "ondemand":
        return "on demand" + (f" ({rent.term})" if rent.term else "")
    return {"assumed": "assumed by its source, kind not stated", USER_SET: "as given"}.get(rent.kind, "kind not stated")


def origin_in_words(rent: Rent) -> str:
    """Describe kind, date and grade of a rent.

    Args:
        rent: The rent.

    Returns:
        Text.

    >>> origin_in_words(Rent(typical=2 / 3600, kind="ondemand", date="2026-03-10", grade="reported"))
    'on demand, 2026-03-10, reported'
    """
    grade = "" if rent.grade == USER_SET else rent.grade
    return ", ".join(filter(None, (kind_in_words(rent), rent.date, grade)))


def kind_and_date(rent: Rent) -> str:
    """Describe kind and date of a rent.

    Args:
        rent: The rent.

    Returns:
        Text.
    """
    return ", ".join(filter(None, (kind_in_words(rent), rent.date)))


def rent_in_words(rent: Rent) -> str:
    """Describe the rent of one chip with kind, date and grade.

    Args:
        rent: The rent.

    Returns:
        Text.
    """
    return f"{in_words(rent.typical, lambda value: show(value, 'USD/s'))} per chip, {origin_in_words(rent)}"


def rents_by_kind(system: System) -> dict[str, Rent]:
    """Return the known rents of a system's chip.

    Args:
        system: The system.

    Returns:
        Rents by kind.
    """
    return {rent.kind: rent for rent in system.rents}


def kind_asked(text: str) -> str:
    """Normalize the spelling of a kind to that of data files: on-demand is ondemand.

    Args:
        text: A kind.

    Returns:
        The spelling of data files.
    """
    return text.strip().casefold().replace("-", "").replace(" ", "")


def with_rent(system: System, rent: str | float) -> System:
    """Return the system with another rent.

    Args:
        system: The system.
        rent: A kind ("owned", "contract", "ondemand"), or USD per chip-hour such as 2.10, "2.10" or "2.10
            USD/h".

    Returns:
        The changed system.

    Raises:
        RangeError: The system has no rent of that kind, or the price is out of range. The message names the
            known kinds.
        InputError: The argument is neither a text nor a number.
    """
    if isinstance(rent, bool) or not isinstance(rent, str | int | float):
        raise InputError(f"rent: must be a kind, or USD per chip-hour such as 2.10 or '2.10 USD/h', got {short_repr(rent)}")
    if isinstance(rent, str) and (kind := kind_asked(rent)) in KINDS:
        return replace(system, rent=_rent_by_kind(system, kind))

    # A number is USD per chip-hour, although figures are in USD/s elsewhere.
    value = _parse_rent(rent) if isinstance(rent, str) else rent / HOUR
    if value <= 0:
        raise RangeError(f"rent: must be greater than 0 USD/h, got {short_repr(rent)}")
    try:
        usd_per_second = checked("rent", value, "USD/s")
    except RangeError:
        raise RangeError(f"rent: must be from 0.01 to 3,600 USD per chip-hour, got {short_repr(rent)}") from None
    return replace(
        system,
        rent=Rent(
            low=usd_per_second, typical=usd_per_second, high=usd_per_second, kind=USER_SET, grade=USER_SET, note="set by hand"
        ),
    )


def _rent_by_kind(system: System, kind: str) -> Rent:
    have = rents_by_kind(system)
    if kind in have:
        return have[kind]
    offered = ", ".join(f"{name} ({show(float(rent.typical), 'USD/s')})" for name, rent in have.items()) or "none"
    hint = "use a known kind, or USD per chip-hour such as --rent 2.10"
    raise RangeError(f"rent: no {kind} rent of {system.chip.name} is known; known: {offered}; {hint}")


def _parse_rent(text: str) -> float:
    """Read USD per chip-hour; a bare number is in this unit."""
    if not any(character.isdigit() for character in text):
        hint = "A rent is owned, contract, ondemand, or USD per chip-hour such as 2.10."
        raise UnknownName("kind of rent", text, KINDS, hint)
    # Blanks are reduced to single ones first: adjacent `\s*` would backtrack over a long run of them.
    price_match = re.fullmatch(
        r"\$? ?([^\s$/]+?) ?(?:\$|USD)? ?(?:(?:/|per) ?(?:h|hr|hour)\.?)?", " ".join(text.split()), re.IGNORECASE
    )
    try:
        return parse(price_match[1], "") / 3600 if price_match else parse(text, "USD/s")
    except UnitError:
        expected = "must be a kind (owned, contract, ondemand) or USD per chip-hour, such as 2.10 or '2.10 USD/h'"
        raise UnitError(f"rent: {expected}, got {short_repr(text)}") from None


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
