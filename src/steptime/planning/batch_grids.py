"""Batches that a search evaluates: a coarse grid of all sizes, and closer ones around a candidate.

A batch counts the sequences of a replica. Where its data-parallel ranks and micro-batches divide it, the busiest of them has
a whole number; a single rank varies between whole numbers, so that fractions are means.
"""

from __future__ import annotations

import numpy as np

from steptime.number_checks import Array, Number, distinct
from steptime.physics.layout import Layout

# Sequences per replica; more are in no search.
MOST_SEQUENCES = 65536
# Factor around the batch of a search within which the best batch is sought.
AROUND = 1.5
# Factors on the batch of a search, which estimates the load of a pool less accurately.
FAR = (*np.geomspace(0.25, 0.9, 16), 1.25, 1.3, 1.4, AROUND)
# Closer factors, since the largest batch within a limit may lie between two batches of a search.
CLOSE = np.linspace(0.96, 1.2, 13)
# Below this number of sequences per rank and micro-batch, fractional batches are tried, in steps of 1 / PARTS.
FEW_SEQUENCES, PARTS = 4, 8
# Sequences that are subtracted from a batch of several ranks.
HALF = 0.5
# From this batch on, a single rank varies by whole sequences; below it, by 1 / FINEST of the batch or 1 / PARTS.
FINEST = 128
# Includes the batch itself.
BATCH_FACTORS = np.sort([*FAR, *CLOSE])
# Whole sequences per rank around a batch that is evaluated more closely.
NEXT = np.arange(-3.0, 7.0)


def batches(maximum: float, per_octave: int = 2) -> Array:
    """Return batch sizes to try, evenly spaced in their logarithm.

    Args:
        maximum: Largest batch that must be covered.
        per_octave: Batch sizes per factor of two.

    Returns:
        Whole numbers from 1 to at least `maximum`.

    >>> batches(8).tolist()
    [1, 2, 3, 4, 6, 8]
    """
    count = int(np.ceil(np.log2(max(maximum, 1)) * per_octave)) + 1
    return distinct(np.ceil(2 ** (np.arange(count) / per_octave) - 1e-9)).astype(np.int64)


def batch_grid(wide: Layout) -> Array:
    """Return batch sizes to try for each layout.

    The minimum is one sequence per micro-batch and data-parallel rank.

    Args:
        wide: Layouts, of shape (n, 1).

    Returns:
        Sequences per replica, of shape (n, batches).
    """
    grid: Array = np.maximum(batches(MOST_SEQUENCES)[None, :], wide.dp * wide.microbatches)
    return grid


def batches_around(middle: float, unit: int) -> Array:
    """Return the batches to evaluate around one.

    They are whole numbers of sequences per data-parallel rank and micro-batch, and fractions where these are
    few. A single rank varies between two whole numbers, so that its mean lies between them. With several
    ranks, the busiest one has no more than a whole number.

    Args:
        middle: Batch of a search.
        unit: Data-parallel ranks times micro-batches.

    Returns:
        Sequences per replica, smallest first.

    >>> batches_around(8, 8).tolist()[:5], batches_around(64, 8).tolist()
    ([8.0, 9.0, 10.0, 11.0, 12.0], [40.0, 48.0, 56.0, 64.0, 72.0, 80.0, 88.0, 96.0, 104.0])
    >>> [batches_around(middle, 1).tolist()[:3] for middle in (8.0, 70.0, 400.0)]
    [[5.0, 5.125, 5.25], [46.0, 46.25, 46.5], [266.0, 267.0, 268.0]]
    """
    near = max(1, round(middle / unit))
    low, high = max(1, int(near / AROUND)), int(near * AROUND) + 1
    whole_batches = np.linspace(low, high, min(256, high - low + 1)).astype(np.int64)
    parts = FINE[(low <= FINE) & (high >= FINE)] if unit == 1 else np.arange(low, min(high, FEW_SEQUENCES), 1 / PARTS)
    return unit * distinct(np.concatenate([whole_batches, parts])).astype(np.float64)


def with_less(batch: Array, unit: Number) -> Array:
    """Append batches with half a sequence less, which a limit may just allow.

    A single rank with one micro-batch already has fractions between its batches.

    Args:
        batch: Sequences per replica, along the last axis.
        unit: Data-parallel ranks times micro-batches.

    Returns:
        The batches, then those with less.

    >>> with_less(np.array([[8.0, 16.0]]), 8).tolist(), with_less(np.array([[8.0, 16.0]]), 1).tolist()
    ([[8.0, 16.0, 7.5, 15.5]], [[8.0, 16.0, 8.0, 16.0]])
    """
    return np.concatenate([batch, batch - np.where(np.asarray(unit) == 1, 0.0, HALF)], axis=-1)


def spacing(batch: Number) -> Number:
    """Return the spacing of batches of one rank: about a hundredth, from 1/8 to 1.

    Args:
        batch: Sequences of the rank.

    Returns:
        Sequences between two batches to try.

    >>> spacing(np.array([1.0, 16.0, 32.0, 127.0, 128.0, 999.0])).tolist()
    [0.125, 0.125, 0.25, 0.5, 1.0, 1.0]
    """
    return np.clip(2.0 ** np.floor(np.log2(batch)) / FINEST, 1 / PARTS, 1.0)


FINE = np.concatenate([np.arange(2**n, 2 ** (n + 1), float(spacing(2.0**n))) for n in range(FINEST.bit_length() - 1)])


def nearby_batches(middle: Array, unit: Array) -> Array:
    """Return a row of batches around each batch of a search.

    Near batches are as close as in `batches_around`, others are whole numbers. Only whole numbers can fill all slots
    (`capped_occupancy`).

    Args:
        middle: Batches of a search, of shape (n, 1).
        unit: Data-parallel ranks times micro-batches of each, of shape (n, 1).

    Returns:
        Sequences per replica, of shape (n, batches).

    >>> [row.tolist()[::8] for row in nearby_batches(np.array([[2.0], [64.0]]), np.array([[1], [8]]))]
    [[1.0, 1.0, 1.875, 2.25, 3.0], [16.0, 32.0, 64.0, 72.0, 96.0]]
    """
    per_unit = middle / unit * BATCH_FACTORS
    near = np.where(np.isin(BATCH_FACTORS, CLOSE) & (unit == 1), spacing(per_unit), 1.0)
    part = np.where(per_unit < FEW_SEQUENCES, 1 / PARTS, near)
    rounded: Array = unit * np.maximum(1, np.round(per_unit / part) * part)
    return rounded


def closer_batches(middle: Array, unit: Array) -> Array:
    """Return a row of batches that are closer to a batch than those of `nearby_batches`.

    Args:
        middle: Batches of a search, of shape (n, 1).
        unit: Data-parallel ranks times micro-batches of each, of shape (n, 1).

    Returns:
        Sequences per replica, of shape (n, batches).

    >>> [row.tolist()[::3] for row in closer_batches(np.array([[64.0], [10.0]]), np.array([[8], [1]]))]
    [[40.0, 64.0, 88.0, 112.0], [9.625, 10.0, 10.375, 10.75]]
    """
    part = np.where(unit == 1, spacing(middle), 1.0)
    rounded: Array = unit * np.maximum((np.round(middle / unit / part) + NEXT) * part, 1.0)
    return rounded
