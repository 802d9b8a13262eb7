"""How many replicas of one size, or of two, find a place in scale-up domains.

A replica that fits into a domain lies inside one. A larger one begins where another ended, so that it touches as few domains as
it can; its attention groups divide the domain, and so none of them straddles two.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from steptime.number_checks import Array, Number, divisors

INDIVIDUAL_DOMAINS = 32  # domains of which each is filled in its own way; of more, some are filled alike


def replicas(domain: Number, chips: int, chips_per_replica: int) -> int:
    """Return how many replicas fit in `chips` chips in domains of `domain` chips; the last domain may be incomplete.

    >>> replicas(8, 32, 3), replicas(8, 20, 3), replicas(8, 20, 12), replicas(72, 20, 3)
    (8, 5, 1, 6)
    """
    domain_chips = int(min(domain, chips))
    if not domain_chips or chips_per_replica > domain_chips:
        return chips // chips_per_replica
    return int(chips // domain_chips * (domain_chips // chips_per_replica) + chips % domain_chips // chips_per_replica)


def stays_inside(domain: Number, *pools: tuple[int, int]) -> bool:
    """Whether what one pool sends another stays in a domain: one holds all, or several alike hold as many replicas each.

    pools: chips of a replica, and how many there are.

    >>> stays_inside(8, (4, 1), (4, 1)), stays_inside(8, (4, 2), (4, 2)), stays_inside(8, (4, 3), (4, 1))
    (True, True, False)
    """
    return any(
        sum(chips_per_replica * (count // k) for chips_per_replica, count in pools) <= domain
        for k in divisors(math.gcd(*(n for _, n in pools)))
    )


@lru_cache(maxsize=8192)
def pairs(domain: float, chips: int, first: int, second: int) -> tuple[Array, Array]:
    """Return how many replicas of `first` and of `second` chips fit together, at least one of each: arrays of one shape.

    Only pairs to whose one number nothing can be added without taking from the other, by rising numbers of the first. They
    are remembered, and not to be written to.

    >>> [n.tolist() for n in pairs(8, 8, 3, 2)], [n.tolist() for n in pairs(8, 32, 6, 6)]
    ([[1, 2], [2, 1]], [[1, 2, 3], [3, 2, 1]])
    """
    largest = _max_second_counts(int(min(domain, chips)), chips, first, second)
    least_better = np.append(np.maximum.accumulate(largest[::-1])[::-1][1:], 0)  # with more of the first
    counts = np.nonzero((largest > least_better) & (np.arange(len(largest)) > 0))[0]
    return counts, largest[counts]


@lru_cache(maxsize=4096)
def _max_second_counts(domain: int, chips: int, first: int, second: int) -> Array:
    """Return the most replicas of the second size beside each number of the first: shape (most of the first + 1,)."""
    if not domain or domain == chips:
        return _second_beside_first(chips, first, second)
    coarse = math.gcd(second, domain) > math.gcd(first, domain)  # groups of the second may be larger, and go first
    if first > domain and not (second > domain and coarse):
        return _counts_next_to_large(domain, chips, first, second)
    if second > domain:
        return _inverse(_counts_next_to_large(domain, chips, second, first))
    if domain // second < domain // first:
        return _inverse(_max_second_counts(domain, chips, second, first))
    inside = _repeat_domains(_second_beside_first(domain, first, second), chips // domain)
    return _max_plus_convolution(inside, _second_beside_first(chips % domain, first, second))


def _second_beside_first(chips: int, first: int, second: int) -> Array:
    """Return how many of the second size find room beside each number of the first in one domain of `chips`."""
    counts: Array = (chips - first * np.arange(chips // first + 1)) // second
    return counts


def _counts_next_to_large(domain: int, chips: int, large: int, second_chips: int) -> Array:
    """Return how many of another size find room beside each number of replicas that are larger than a domain.

    The large ones take the first chips, one after another. Others that are larger too follow at once where any groups of
    theirs, which divide a domain, fit what the large ones leave of one; else in the next domain.
    """
    used = large * np.arange(chips // large + 1)
    touched = -(-used // domain) * domain  # chips of the domains that have some of them
    unused = np.maximum(chips - np.minimum(touched, chips), 0)
    if second_chips > domain:
        aligned = math.gcd(large, domain) % math.gcd(second_chips, domain) == 0
        counts: Array = (chips - used if aligned else unused) // second_chips
    else:
        counts = (
            (np.minimum(touched, chips) - used) // second_chips
            + unused // domain * (domain // second_chips)
            + unused % domain // second_chips
        )
    return counts


def _inverse(largest: Array) -> Array:
    """Return the most of the first size beside each number of the second, from the most of the second beside the first."""
    falling = np.maximum.accumulate(largest[::-1])[::-1]
    positions: Array = np.searchsorted(-falling, -np.arange(falling[0] + 1), side="right") - 1
    return positions


def _repeat_domains(counts: Array, domains: int) -> Array:
    """Return what fits into so many domains, each of which holds what `counts` does.

    Exact up to `ALIKE` squared domains or so; of more, all but some are filled in groups that are alike.
    """
    same = max(1, domains // INDIVIDUAL_DOMAINS)
    if same == 1:
        return _power(counts, domains)
    grouped = _power(counts, domains // same - 1)
    wide = np.full(same * (len(grouped) - 1) + 1, -1)
    wide[::same] = same * grouped
    return _max_plus_convolution(_power(counts, domains - same * (domains // same - 1)), wide)


def _power(counts: Array, domains: int) -> Array:
    """Return what fits into `domains` domains, each filled in its own way, by doubling."""
    if domains == 0:
        return np.zeros(1, dtype=np.int64)
    half = _power(counts, domains // 2)
    both = _max_plus_convolution(half, half)
    return _max_plus_convolution(both, counts) if domains % 2 else both


def _max_plus_convolution(first_counts: Array, second_counts: Array) -> Array:
    """Return the most of the second size over all ways to divide each number of the first over two places; -1: none there."""
    if np.count_nonzero(first_counts >= 0) > np.count_nonzero(second_counts >= 0):
        first_counts, second_counts = second_counts, first_counts
    sums = np.zeros(len(first_counts) + len(second_counts) - 1, dtype=np.int64)
    occupied = np.nonzero(second_counts >= 0)[0]
    everywhere = len(occupied) == len(second_counts)
    most_right = second_counts[occupied]
    for number in np.nonzero(first_counts >= 0)[0]:
        place: Array | slice = slice(number, number + len(second_counts)) if everywhere else occupied + number
        sums[place] = np.maximum(sums[place], most_right + first_counts[number])
    return sums
