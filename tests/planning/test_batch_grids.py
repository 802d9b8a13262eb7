"""Batches around one: how many, and where they begin and end."""

from __future__ import annotations

import pytest

from steptime.planning.batch_grids import batches_around


@pytest.mark.parametrize(
    ("middle", "unit", "count", "first", "last"),
    [
        (1, 1, 9, 1.0, 2.0),  # eighths
        (1, 8, 9, 8.0, 16.0),
        (30, 4, 9, 20.0, 52.0),  # eight per unit: five to thirteen
        (700, 1, 256, 466.0, 1051.0),  # at most 256, none of them fractions
    ],
)
def test_batches_around_one_reach_from_two_thirds_to_three_halves(middle, unit, count, first, last):
    found = batches_around(middle, unit)
    assert (len(found), found[0], found[-1]) == (count, first, last)
    assert sorted(set(found.tolist())) == found.tolist()
