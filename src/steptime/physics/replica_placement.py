"""How many replicas of one size, or of two, find a place in scale-up domains.

A replica that fits into a domain lies inside one. A larger one begins where another ended, so that it touches as few domains as
it can; its attention groups divide the domain, and so none of them straddles two.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from steptime.number_checks import Array, Number, divisors

ALIKE = 32  # domains of which each is filled in its own way; of more, some are filled alike


def replicas(domain: Number, chips: int, each: int) -> int:
    """Return how many replicas of `each` chips fit in `chips` in domains of `domain` chips, the last one perhaps not whole.

    >>> replicas(8, 32, 3), replicas(8, 20, 3), replicas(8, 20, 12), replicas(72, 20, 3)
    (8, 5, 1, 6)
    """
    whole = int(min(domain, chips))
    if not whole or each > whole:
        return chips // each
    return int(chips // whole * (whole // each) + chips % whole // each)


def stays_inside(domain: Number, *pools: tuple[int, int]) -> bool:
    """Whether what one pool sends another stays in a domain: one holds all, or several alike hold as many replicas each.

    pools: chips of a replica, and how many there are.

    >>> stays_inside(8, (4, 1), (4, 1)), stays_inside(8, (4, 2), (4, 2)), stays_inside(8, (4, 3), (4, 1))
    (True, True, False)
    """
    return any(sum(each * (many // k) for each, many in pools) <= domain for k in divisors(math.gcd(*(n for _, n in pools))))


@lru_cache(maxsize=8192)
def pairs(domain: float, chips: int, first: int, second: int) -> tuple[Array, Array]:
    """Return how many replicas of `first` and of `second` chips fit together, at least one of each: arrays of one shape.

    Only pairs to whose one number nothing can be added without taking from the other, by rising numbers of the first. They
    are remembered, and not to be written to.

    >>> [n.tolist() for n in pairs(8, 8, 3, 2)], [n.tolist() for n in pairs(8, 32, 6, 6)]
    ([[1, 2], [2, 1]], [[1, 2, 3], [3, 2, 1]])
    """
    most = _most_of_second(int(min(domain, chips)), chips, first, second)
    least_better = np.append(np.maximum.accumulate(most[::-1])[::-1][1:], 0)  # with more of the first
    counts = np.nonzero((most > least_better) & (np.arange(len(most)) > 0))[0]
    return counts, most[counts]


@lru_cache(maxsize=4096)
def _most_of_second(domain: int, chips: int, first: int, second: int) -> Array:
    """Return the most replicas of the second size beside each number of the first: shape (most of the first + 1,)."""
    if not domain or domain == chips:
        return _beside(chips, first, second)
    coarse = math.gcd(second, domain) > math.gcd(first, domain)  # groups of the second may be larger, and go first
    if first > domain and not (second > domain and coarse):
        return _left_by_large(domain, chips, first, second)
    if second > domain:
        return _inverse(_left_by_large(domain, chips, second, first))
    if domain // second < domain // first:
        return _inverse(_most_of_second(domain, chips, second, first))
    inside = _alike(_beside(domain, first, second), chips // domain)
    return _sums(inside, _beside(chips % domain, first, second))


def _beside(chips: int, first: int, second: int) -> Array:
    """Return how many of the second size find room beside each number of the first in one domain of `chips`."""
    found: Array = (chips - first * np.arange(chips // first + 1)) // second
    return found


def _left_by_large(domain: int, chips: int, large: int, other: int) -> Array:
    """Return how many of another size find room beside each number of replicas that are larger than a domain.

    The large ones take the first chips, one after another. Others that are larger too follow at once where any groups of
    theirs, which divide a domain, fit what the large ones leave of one; else in the next domain.
    """
    used = large * np.arange(chips // large + 1)
    touched = -(-used // domain) * domain  # chips of the domains that have some of them
    rest = np.maximum(chips - np.minimum(touched, chips), 0)
    if other > domain:
        aligned = math.gcd(large, domain) % math.gcd(other, domain) == 0
        found: Array = (chips - used if aligned else rest) // other
    else:
        found = (np.minimum(touched, chips) - used) // other + rest // domain * (domain // other) + rest % domain // other
    return found


def _inverse(most: Array) -> Array:
    """Return the most of the first size beside each number of the second, from the most of the second beside the first."""
    falling = np.maximum.accumulate(most[::-1])[::-1]
    found: Array = np.searchsorted(-falling, -np.arange(falling[0] + 1), side="right") - 1
    return found


def _alike(one: Array, domains: int) -> Array:
    """Return what fits into so many domains, each of which holds what `one` does.

    Exact up to `ALIKE` squared domains or so; of more, all but some are filled in groups that are alike.
    """
    same = max(1, domains // ALIKE)
    if same == 1:
        return _power(one, domains)
    grouped = _power(one, domains // same - 1)
    wide = np.full(same * (len(grouped) - 1) + 1, -1)
    wide[::same] = same * grouped
    return _sums(_power(one, domains - same * (domains // same - 1)), wide)


def _power(one: Array, domains: int) -> Array:
    """Return what fits into `domains` domains, each filled in its own way, by doubling."""
    if domains == 0:
        return np.zeros(1, dtype=np.int64)
    half = _power(one, domains // 2)
    both = _sums(half, half)
    return _sums(both, one) if domains % 2 else both


def _sums(left: Array, right: Array) -> Array:
    """Return the most of the second size over all ways to divide each number of the first over two places; -1: none there."""
    if np.count_nonzero(left >= 0) > np.count_nonzero(right >= 0):
        left, right = right, left
    found = np.zeros(len(left) + len(right) - 1, dtype=np.int64)
    there = np.nonzero(right >= 0)[0]
    everywhere = len(there) == len(right)
    most_right = right[there]
    for number in np.nonzero(left >= 0)[0]:
        place: Array | slice = slice(number, number + len(right)) if everywhere else there + number
        found[place] = np.maximum(found[place], most_right + left[number])
    return found
