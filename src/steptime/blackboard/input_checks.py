"""Checks of divisors and sizes of the closed forms.

Symbolic cells of a spreadsheet pass unchecked.
"""

from __future__ import annotations

from numbers import Real

import numpy as np

from steptime.number_checks import Number, at_least_zero, positive


def check_positive(name: str, value: Number, unit: str) -> Number:
    """Check that a divisor is above 0.

    Args:
        name: Name of the parameter.
        value: Number or array; a symbolic cell of a spreadsheet passes unchecked.
        unit: Unit of the value, for the message.

    Returns:
        The value.

    Raises:
        RangeError: If a number is not above 0.
    """
    return positive(name, value, unit) if isinstance(value, Real | np.ndarray | list) else value


def check_size(name: str, value: Number, unit: str) -> Number:
    """Check that a size is at least 0.

    Args:
        name: Name of the parameter.
        value: Number or array; a symbolic cell of a spreadsheet passes unchecked.
        unit: Unit of the value, for the message.

    Returns:
        The value.

    Raises:
        RangeError: If a number is below 0.
    """
    return at_least_zero(name, value, unit) if isinstance(value, Real | np.ndarray | list) else value
