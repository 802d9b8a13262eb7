"""Limits on the points of a sweep, checked before an array is built: memory and time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from steptime.errors import RangeError
from steptime.units import DAY, HOUR, MINUTE, in_digits

# Points whose answers fit in the memory of a laptop.
MOST_POINTS: Final = 50_000_000
# Longest sweep that is started [s].
LONGEST: Final = 30 * DAY


def check_points(lengths: Sequence[int], seconds: float) -> None:
    """Raise an error for more points than fit in memory, or than finish in time.

    Args:
        lengths: Number of values of each axis.
        seconds: Time of one point [s].

    Raises:
        RangeError: If there are too many points, or they take more than `LONGEST`.
    """
    points = math.prod(lengths)
    takes = points * seconds
    product = f"{' x '.join(f'{n:,}' for n in lengths)} are {points:,} points"
    if points > MOST_POINTS:
        raise RangeError(
            f"axes: {product}; at most {MOST_POINTS:,} fit in memory, and they would take about {duration(takes)}; "
            "give fewer values, or sweep in parts"
        )
    if takes > LONGEST:
        raise RangeError(f"axes: {product}, which would take about {duration(takes)} on one core; give fewer values")


def duration(seconds: float) -> str:
    """Return a time in words.

    Args:
        seconds: Time [s].

    Returns:
        Text such as "3.3 minutes".

    >>> duration(0.2), duration(200), duration(5 * 86400), duration(4e11)
    ('less than a second', '3.3 minutes', '5 days', '12,700 years')
    """
    for size, name in ((365.25 * DAY, "years"), (DAY, "days"), (HOUR, "hours"), (MINUTE, "minutes")):
        if seconds >= 2 * size:
            digits = 2 if seconds < 100 * size else 3
            return f"{in_digits(seconds / size, digits)} {name}"
    return "less than a second" if seconds < 1 else f"{in_digits(seconds, 2)} seconds"
