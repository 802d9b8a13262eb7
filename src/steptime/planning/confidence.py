"""How likely a plan meets its limits, and where it has to aim to meet them with a given probability.

The range of a figure reaches from its 5 % point to its 95 % point; each side is taken for half of a log-normal distribution.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final

from steptime.errors import RangeError
from steptime.numbers import single

NORMAL: Final = NormalDist()
EDGE: Final = NORMAL.inv_cdf(0.95)  # deviations at which a 90 % range ends


def check_sure(sure: float | None) -> None:
    """Raise RangeError for a probability out of bounds."""
    single(sure=sure)
    if sure is not None and not 0.5 <= sure <= 0.99:
        raise RangeError(f"sure is a probability from 0.5 to 0.99, such as 0.9, not {sure:g}")


def point(value: float, limits: tuple[float, float] | None, sure: float) -> float:
    """Return what a figure stays below with probability `sure`, of at least one half; the figure itself without a range.

    >>> round(point(1.0, (0.5, 2.0), 0.95), 6), point(1.0, (0.5, 2.0), 0.5), point(1.0, None, 0.9)
    (2.0, 1.0, 1.0)
    """
    if limits is None:
        return value
    return value * (limits[1] / value) ** (NORMAL.inv_cdf(sure) / EDGE)


def likelihood(value: float, limits: tuple[float, float] | None, limit: float) -> float:
    """Return how likely a figure stays below a `limit`: 0 or 1 without a range.

    >>> likelihood(1.0, (0.5, 2.0), 1.0), round(likelihood(1.0, (0.5, 2.0), 2.0), 3), round(likelihood(1.0, (0.5, 2.0), 0.5), 3)
    (0.5, 0.95, 0.05)
    """
    if limits is None or math.isinf(limit):
        return float(value <= limit * (1 + 1e-9))
    away = math.log(limit / value)
    side = math.log(limits[1] / value) if away > 0 else math.log(value / limits[0])
    if side <= 0:
        return float(away >= 0)
    return NORMAL.cdf(EDGE * away / side)
