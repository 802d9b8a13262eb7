"""Verdicts: whether a computed number confirms the number of the lecture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from steptime.errors import RangeError

HOLDS, FACTOR, FAILS, UNDECIDED = VERDICTS = ("holds", "holds within a factor", "fails", "undecided")
RELATIONS: Final = ("about", "at least", "at most")


def verdict(
    computed: Sequence[float], stated: float, *, tolerance: float = 0.05, factor: float = 2.0, relation: str = "about"
) -> str:
    """Return the verdict on a stated number from one or several computed numbers.

    The number holds within the relative `tolerance`; otherwise it holds within the `factor` up or down; otherwise it
    fails. "at least" and "at most" test one side only. Several computed numbers (chips, laws, models) must all agree:
    the verdict is undecided if some fail and others do not, or if a number is missing.

    Args:
        computed: Computed numbers in the unit of `stated`.
        stated: Number of the lecture.
        tolerance: Relative distance within which a number holds.
        factor: Largest ratio, up or down, within which a number holds within a factor.
        relation: about, at least or at most.

    Returns:
        holds, holds within a factor, fails or undecided.

    Raises:
        RangeError: The relation is unknown.

    >>> verdict([2400.0], 2400), verdict([5441.0], 2400, factor=3), verdict([295.0, 900.0], 300), verdict([900.0], 300)
    ('holds', 'holds within a factor', 'undecided', 'fails')
    """
    if relation not in RELATIONS:
        raise RangeError(f"relation: must be about, at least or at most, got {relation!r}")
    if not computed or any(math.isnan(value) for value in computed):
        return UNDECIDED
    # Each number gets its own grade; the verdict combines them.
    grades = {_grade(value, stated, tolerance, factor, relation) for value in computed}
    # Numbers that disagree about a failure decide nothing.
    if FAILS in grades:
        return FAILS if len(grades) == 1 else UNDECIDED
    return FACTOR if FACTOR in grades else HOLDS


def _grade(value: float, stated: float, tolerance: float, factor: float, relation: str) -> str:
    if (relation == "at least" and value >= stated) or (relation == "at most" and value <= stated):
        return HOLDS
    if abs(value - stated) <= tolerance * abs(stated) + 1e-12 * abs(stated):
        return HOLDS
    # Numbers of opposite sign have no ratio.
    if value * stated <= 0:
        return FAILS
    return FACTOR if max(value / stated, stated / value) <= factor else FAILS
