"""Limits on the points of a sweep: how many fit in memory, and how long they may take. Checked before an array is built."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from steptime.errors import RangeError
from steptime.units import DAY, HOUR, MINUTE, in_digits

MOST_POINTS: Final = 50_000_000
"""Points whose answers fit in the memory of a laptop."""
LONGEST: Final = 30 * DAY  # s of work that is begun


def check_points(lengths: Sequence[int], seconds: float) -> None:
    """Raise RangeError for more points than fit in memory, or than can be waited for.

    Args:
        lengths: Number of values of each axis.
        seconds: Time of one point [s].
    """
    points = math.prod(lengths)
    takes = points * seconds
    product = f"{' x '.join(f'{n:,}' for n in lengths)} are {points:,} points"
    if points > MOST_POINTS:
        raise RangeError(
            f"{product}; they would take some {duration(takes)}, and at most {MOST_POINTS:,} fit in memory: give fewer values, "
            "or sweep in parts"
        )
    if takes > LONGEST:
        raise RangeError(f"{product}, and would take some {duration(takes)} on one core: give fewer values")


def duration(seconds: float) -> str:
    """Write a time as people say it.

    >>> duration(0.2), duration(200), duration(5 * 86400), duration(4e11)
    ('less than a second', '3.3 minutes', '5 days', '12,700 years')
    """
    for size, name in ((365.25 * DAY, "years"), (DAY, "days"), (HOUR, "hours"), (MINUTE, "minutes")):
        if seconds >= 2 * size:
            digits = 2 if seconds < 100 * size else 3
            return f"{in_digits(seconds / size, digits)} {name}"
    return "less than a second" if seconds < 1 else f"{in_digits(seconds, 2)} seconds"
