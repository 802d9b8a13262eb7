"""Which values a figure of a machine may have, by its unit: far beyond what is built, near enough to compute with."""

from __future__ import annotations

from typing import Final

from steptime.number_checks import LARGEST, MOST_CHIPS, Number, between, positive, whole_number
from steptime.units import HOUR

# of what must be above 0: far below any machine that serves a model, so that a slipped prefix is no answer
SMALLEST: Final = {"B": 1e6, "B/s": 1e6, "FLOP/s": 1e9, "W": 0.1, "kg": 1e-3}
SCALED: Final = 1e3 * LARGEST  # of a figure that was multiplied to see what it is worth
LARGEST_BY_UNIT: Final = {"s": 100.0, "USD/B": 1e6}  # of what may be 0: latencies and prices of memory
# USD/s of a chip; a number that was meant in USD/h lies outside
CHEAPEST: Final = 0.01 / HOUR
DEAREST: Final = 1.0
DEAREST_ENERGY: Final = 10 / 3.6e6  # USD/J: 10 USD/kWh


def checked(name: str, value: Number, unit: str, *, largest: float = LARGEST) -> Number:
    """Return a figure of a machine in base units; raise RangeError, naming it, where it is not one that a machine can have.

    largest: of rates and capacities.

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
