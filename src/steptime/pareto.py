"""Pareto fronts and constrained minima over arrays."""

from __future__ import annotations

from typing import Any

import numpy as np


def pareto(gain: Any, other_gain: Any) -> Any:
    """Return the indices of the points that no other beats in both, in order of falling `gain`.

    Points with a value that is not finite never belong to it; of equal points the first does.

    >>> pareto(np.array([1.0, 2.0, 3.0, 2.0]), np.array([9.0, 5.0, 1.0, 4.0])).tolist()
    [2, 1, 0]
    """
    gain, second_gain = np.asarray(gain, dtype=float), np.asarray(other_gain, dtype=float)
    order = np.lexsort((-second_gain, -gain))
    order = order[np.isfinite(gain[order]) & np.isfinite(second_gain[order])]
    best_before = (
        np.maximum.accumulate(np.concatenate(([-np.inf], second_gain[order][:-1]))) if len(order) else second_gain[order]
    )
    return order[second_gain[order] > best_before]
