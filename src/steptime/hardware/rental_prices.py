"""Rental prices by kind: known rents of a chip, and systems with another rent."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import numpy as np

from steptime.errors import InputError, RangeError, UnitError, UnknownName, short_repr
from steptime.hardware.figure_bounds import checked
from steptime.hardware.system import Rent, System
from steptime.provenance import USER_SET
from steptime.result_base import in_words
from steptime.units import HOUR, parse, show

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
