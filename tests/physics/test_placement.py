"""Where replicas find a place: against every way to pack them, chip by chip, and by hand."""

from __future__ import annotations

from functools import cache

import numpy as np

from steptime.physics.layout_space import pairs, replicas
from tests.conftest import each


def domains_of(size: int, chips: int) -> tuple[int, ...]:
    return (size,) * (chips // size) + ((chips % size,) if chips % size else ())


@cache
def packs(room: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    """Whether pieces of these sizes, the largest first, find room, each inside one place: by trying every place for each."""
    if not sizes:
        return True
    tried = set()
    for place, free in enumerate(room):
        if free >= sizes[0] and free not in tried:
            tried.add(free)
            left = tuple(sorted((*room[:place], free - sizes[0], *room[place + 1 :])))
            if packs(left, sizes[1:]):
                return True
    return False


def fits(size: int, chips: int, first: int, second: int, counts: tuple[int, int]) -> bool:
    pieces = sorted((first,) * counts[0] + (second,) * counts[1], reverse=True)
    return packs(tuple(sorted(domains_of(size, chips))), tuple(pieces))


@each("size", [4, 5, 8])
def test_two_sizes_are_packed_as_well_as_can_be(size):
    """Every pair that is told fits, and one more of either does not beside the other."""
    for chips in (size - 1, size, 2 * size + 3, 3 * size):
        for first in range(1, size + 1):
            for second in range(1, size + 1):
                counts, most = pairs(size, chips, first, second)
                told = dict(zip(counts.tolist(), most.tolist(), strict=True))
                for x in range(1, chips // first + 1):
                    best = max((y for y in range(chips // second + 1) if fits(size, chips, first, second, (x, y))), default=0)
                    assert max((y for n, y in told.items() if n >= x), default=0) == best


def test_two_sizes_of_which_the_review_could_not_place_any():
    """Two of 6 and three of 6 chips need five boxes of 8; four hold four."""
    counts, most = pairs(8, 32, 6, 6)
    assert (counts.tolist(), most.tolist()) == ([1, 2, 3], [3, 2, 1])
    assert not fits(8, 32, 6, 6, (2, 3))
    assert replicas(8, 32, 6) == 4


@each(
    "domain, chips, first, second, found",
    [
        (8, 8, 8, 1, []),  # no room for one of each
        (8, 9, 8, 1, [(1, 1)]),
        (72, 70, 40, 5, [(1, 6)]),  # fewer chips than a domain
        (8, 32, 5, 3, [(1, 7), (2, 6), (3, 5), (4, 4)]),
        (8, 32, 12, 3, [(1, 5), (2, 2)]),  # 12 chips leave half a box: 1 + 2 x 2
        (8, 32, 3, 12, [(2, 2), (5, 1)]),
        (8, 64, 24, 16, [(1, 2), (2, 1)]),
        (8, 36, 12, 12, [(1, 2), (2, 1)]),  # one after another
        (6, 33, 9, 8, [(1, 2), (2, 1)]),  # groups of 3 and of 2 chips: the second begin in boxes of their own, 12 + 21, 18 + 15
        (6, 33, 8, 9, [(1, 2), (2, 1)]),
    ],
)
def test_pairs_by_hand(domain, chips, first, second, found):
    assert list(zip(*(n.tolist() for n in pairs(domain, chips, first, second)), strict=True)) == found


def test_many_boxes_are_nearly_as_good_as_each_filled_for_itself():
    """Of 1,152 boxes, 36 each are alike: never more than fits by chips, and within a replica or two of a hand-made plan."""
    counts, most = pairs(8, 9216, 3, 5)
    assert np.all(counts * 3 + most * 5 <= 9216)
    assert int(most[counts >= 1152][0]) == 1152  # one of each in every box
    assert np.all(np.diff(counts) > 0)
    assert np.all(np.diff(most) < 0)


def test_one_more_chip_takes_no_place_away():
    for first, second in ((3, 5), (2, 7), (6, 4), (12, 3), (3, 12), (24, 16)):
        before: dict[int, int] = {}
        for chips in range(8, 60):
            counts, most = pairs(8, chips, first, second)
            now = dict(zip(counts.tolist(), most.tolist(), strict=True))
            assert all(any(x >= n and y >= beside for x, y in now.items()) for n, beside in before.items())
            before = now
    for expert_count in range(1, 30):
        found = [replicas(8, chips, expert_count) for chips in range(1, 100)]
        assert found == sorted(found)
