"""Batches around one: how many, and where they begin and end."""

from __future__ import annotations

import numpy as np

from steptime.physics.layout import Layout
from steptime.planning.batch_grids import batch_grid, batches, batches_around, closer_batches, nearby_batches
from tests.conftest import each


@each(
    "middle, unit, count, first, last",
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


def test_batches_near_one_of_a_search_are_a_quarter_to_half_more_and_closest_around_it():
    """Factors of 0.25 to 0.9 and 1.25 to 1.5 in whole sequences, and of 0.96 to 1.2 in steps of 2 % and of half a sequence."""
    (found,) = nearby_batches(np.array([[100.0]]), np.array([[1]])).tolist()
    assert found[:2] == [25.0, 27.0]
    assert found[15:] == [90, 96, 98, 100, 102, 104, 106, 108, 110, 112, 114, 116, 118, 120, 125, 130, 140, 150]
    # Ranks have whole numbers of sequences, and eighths below four.
    (ranks,) = nearby_batches(np.array([[100.0]]), np.array([[4]])).tolist()
    assert (ranks[0], ranks[-1], len(ranks)) == (24.0, 152.0, 33)
    assert all(batch % 4 == 0 for batch in ranks)
    (few,) = nearby_batches(np.array([[8.0]]), np.array([[4]])).tolist()
    assert (few[0], few[-1], {batch % 0.5 for batch in few}) == (4.0, 12.0, {0.0})


def test_closer_batches_have_three_sequences_less_to_six_more():
    assert closer_batches(np.array([[64.0], [40.0], [2.0]]), np.array([[8], [1], [1]])).tolist() == [
        [8.0 * n for n in range(5, 15)],
        [40 + n / 4 for n in range(-3, 7)],
        [2 + n / 8 for n in range(-3, 7)],
    ]


def test_a_grid_reaches_65536_sequences_in_two_steps_an_octave_from_one_of_each_rank():
    wide = Layout(dp=np.array([[1], [8]]), ep=np.array([[1], [8]]), microbatches=np.array([[1], [2]]))
    grid = batch_grid(wide)
    assert grid[0, :6].tolist() == [1, 2, 3, 4, 6, 8]
    assert (grid[0, -1], grid[1, 0], grid[1, -1], set(grid[1, :6].tolist())) == (65536, 16, 65536, {16})
    assert batches(1.0).tolist() == [1]
    assert batches(9.0, 1).tolist() == [1, 2, 4, 8, 16]
