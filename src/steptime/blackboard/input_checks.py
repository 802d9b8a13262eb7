"""Checks of what closed forms divide by, which let symbolic cells of a spreadsheet pass."""

from __future__ import annotations

from numbers import Real

import numpy as np

from steptime.number_checks import Number, at_least_zero, positive


def check_positive(name: str, value: Number, unit: str) -> Number:
    """Return a divisor.

    Args:
        name: of the parameter.
        value: number or array; a cell of a spreadsheet passes unchecked.
        unit: of the value, for the message.

    Raises:
        RangeError: if a number is not above 0.
    """
    return positive(name, value, unit) if isinstance(value, Real | np.ndarray | list) else value


def check_size(name: str, value: Number, unit: str) -> Number:
    """Return a size of at least 0; see `check_positive`."""
    return at_least_zero(name, value, unit) if isinstance(value, Real | np.ndarray | list) else value
