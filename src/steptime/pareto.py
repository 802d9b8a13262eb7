"""Pareto fronts of two gains over arrays."""

from __future__ import annotations

from typing import Any

import numpy as np


def pareto(gain: Any, other_gain: Any) -> Any:
    """Return the indices of the Pareto front of two gains.

    A point is on the front if no other point is better in both. Points with a value that is not finite are never on it. Of
    equal points the first one is.

    Args:
        gain: Values of shape (points,); larger is better.
        other_gain: Values of shape (points,); larger is better.

    Returns:
        Indices in order of falling `gain`.

    >>> pareto(np.array([1.0, 2.0, 3.0, 2.0]), np.array([9.0, 5.0, 1.0, 4.0])).tolist()
    [2, 1, 0]
    """
    gain, second_gain = np.asarray(gain, dtype=float), np.asarray(other_gain, dtype=float)

    # In order of falling gain, a point is on the front if its second gain exceeds all before.
    order = np.lexsort((-second_gain, -gain))
    order = order[np.isfinite(gain[order]) & np.isfinite(second_gain[order])]
    best_before = (
        np.maximum.accumulate(np.concatenate(([-np.inf], second_gain[order][:-1]))) if len(order) else second_gain[order]
    )
    return order[second_gain[order] > best_before]
