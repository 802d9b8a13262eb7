"""Whether a computed number bears out what was said."""

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
    """Return the verdict on a number that was said, by one computed number or by several that stand side by side.

    It holds within the relative `tolerance`, else within the `factor` up or down, else it fails. "at least" and "at most" ask
    for one side alone. Several numbers (chips, laws, models) must all do: undecided where some are within the factor and
    some are not.

    >>> verdict([2400.0], 2400), verdict([5441.0], 2400, factor=3), verdict([295.0, 900.0], 300), verdict([900.0], 300)
    ('holds', 'holds within a factor', 'undecided', 'fails')
    """
    if relation not in RELATIONS:
        raise RangeError(f"a number is about, at least or at most what was said, not {relation!r}")
    if not computed or any(math.isnan(value) for value in computed):
        return UNDECIDED
    grades = {_grade(value, stated, tolerance, factor, relation) for value in computed}
    if FAILS in grades:
        return FAILS if len(grades) == 1 else UNDECIDED
    return FACTOR if FACTOR in grades else HOLDS


def _grade(value: float, stated: float, tolerance: float, factor: float, relation: str) -> str:
    if (relation == "at least" and value >= stated) or (relation == "at most" and value <= stated):
        return HOLDS
    if abs(value - stated) <= tolerance * abs(stated) + 1e-12 * abs(stated):
        return HOLDS
    if value * stated <= 0:
        return FAILS
    return FACTOR if max(value / stated, stated / value) <= factor else FAILS
