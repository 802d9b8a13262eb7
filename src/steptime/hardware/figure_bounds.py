"""Bounds of hardware figures by unit: wide enough for all real chips.

They are narrow enough that no product of figures overflows.
"""

from __future__ import annotations

from typing import Final

from steptime.number_checks import LARGEST, MOST_CHIPS, Number, between, positive, whole_number
from steptime.units import HOUR

# Lower bounds of positive figures. They are far below real chips, and reject a figure with a wrong prefix.
SMALLEST: Final = {"B": 1e6, "B/s": 1e6, "FLOP/s": 1e9, "W": 0.1, "kg": 1e-3}
# Upper bound of a figure that a sensitivity analysis has multiplied.
SCALED: Final = 1e3 * LARGEST
# Upper bounds of figures that may be 0: latencies and prices of memory.
LARGEST_BY_UNIT: Final = {"s": 100.0, "USD/B": 1e6}
# USD/s of a chip; they reject a rent that the user gave in USD/h.
CHEAPEST: Final = 0.01 / HOUR
DEAREST: Final = 1.0
# USD/J: 10 USD/kWh.
DEAREST_ENERGY: Final = 10 / 3.6e6


def checked(name: str, value: Number, unit: str, *, largest: float = LARGEST) -> Number:
    """Return a figure of a chip or system, after a check of its bounds.

    Args:
        name: Name of the figure, for the message.
        value: Value in base units, or an array.
        unit: Base unit of the figure.
        largest: Upper bound of rates and capacities.

    Returns:
        The value.

    Raises:
        RangeError: No chip can have this value; the message names the figure.

    >>> checked("chip.hbm.bandwidth", 8e12, "B/s")
    8000000000000.0
    >>> checked("rent", -1, "USD/s")
    Traceback (most recent call last):
        ...
    steptime.errors.RangeError: rent must be greater than 0 USD/s, not -1
    """
    if unit == "" and name.endswith("size"):
        return whole_number(name, value, maximum=MOST_CHIPS, unit="chip")
    if unit == "USD/s":
        return positive(name, value, unit, minimum=CHEAPEST, maximum=DEAREST)
    if unit in LARGEST_BY_UNIT:
        return between(name, value, 0.0, LARGEST_BY_UNIT[unit], unit)
    return positive(name, value, unit, minimum=SMALLEST.get(unit, 1e-9), maximum=largest)
