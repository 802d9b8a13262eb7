"""Replica placement: numbers of replicas of one or two sizes in scale-up domains.

A replica that fits into a domain is inside one domain. A larger replica starts where another replica ended, so that it uses
the minimum number of domains. Its data-parallel ranks divide the domain, so that no rank spans two domains.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from steptime.number_checks import Array, Number, divisors

# Up to this number of domains, each is filled independently. Of more domains, some are filled equally.
INDIVIDUAL_DOMAINS = 32


def replicas(domain: Number, chips: int, chips_per_replica: int) -> int:
    """Return the number of replicas that fit in `chips` chips.

    Args:
        domain: Chips of a scale-up domain; the last domain may be incomplete.
        chips: Chips of the deployment.
        chips_per_replica: Chips of one replica.

    Returns:
        Number of replicas.

    >>> replicas(8, 32, 3), replicas(8, 20, 3), replicas(8, 20, 12), replicas(72, 20, 3)
    (8, 5, 1, 6)
    """
    domain_chips = int(min(domain, chips))
    if not domain_chips or chips_per_replica > domain_chips:
        return chips // chips_per_replica
    return int(chips // domain_chips * (domain_chips // chips_per_replica) + chips % domain_chips // chips_per_replica)


def stays_inside(domain: Number, *pools: tuple[int, int]) -> bool:
    """Whether transfers between pools stay inside a scale-up domain.

    This is true where one domain contains all pools, or where several equal domains contain the same replicas
    each.

    Args:
        domain: Chips of a scale-up domain.
        pools: Chips per replica and number of replicas, for each pool.

    Returns:
        True or false.

    >>> stays_inside(8, (4, 1), (4, 1)), stays_inside(8, (4, 2), (4, 2)), stays_inside(8, (4, 3), (4, 1))
    (True, True, False)
    """
    return any(
        sum(chips_per_replica * (count // k) for chips_per_replica, count in pools) <= domain
        for k in divisors(math.gcd(*(n for _, n in pools)))
    )


@lru_cache(maxsize=8192)
def pairs(domain: float, chips: int, first: int, second: int) -> tuple[Array, Array]:
    """Return the numbers of replicas of two sizes that fit together.

    There is at least one of each size. Only maximal pairs are returned: neither number can rise without a decrease of the
    other. The arrays are cached: do not write to them.

    Args:
        domain: Chips of a scale-up domain.
        chips: Chips of the deployment.
        first: Chips of a replica of the first size.
        second: Chips of a replica of the second size.

    Returns:
        Numbers of the first size in rising order, and numbers of the second size: two arrays of one shape.

    >>> [n.tolist() for n in pairs(8, 8, 3, 2)], [n.tolist() for n in pairs(8, 32, 6, 6)]
    ([[1, 2], [2, 1]], [[1, 2, 3], [3, 2, 1]])
    """
    largest = _max_second_counts(int(min(domain, chips)), chips, first, second)
    # A pair is maximal if no larger number of the first size leaves as many of the second.
    least_better = np.append(np.maximum.accumulate(largest[::-1])[::-1][1:], 0)
    counts = np.nonzero((largest > least_better) & (np.arange(len(largest)) > 0))[0]
    return counts, largest[counts]


@lru_cache(maxsize=4096)
def _max_second_counts(domain: int, chips: int, first: int, second: int) -> Array:
    """Return the maximum number of the second size, for each number of the first size.

    The result has the shape (maximum number of the first size + 1,).
    """
    if not domain or domain == chips:
        return _second_beside_first(chips, first, second)
    # The second size may have larger data-parallel ranks, which must be placed first.
    coarse = math.gcd(second, domain) > math.gcd(first, domain)
    if first > domain and not (second > domain and coarse):
        return _counts_next_to_large(domain, chips, first, second)
    if second > domain:
        return _inverse(_counts_next_to_large(domain, chips, second, first))
    if domain // second < domain // first:
        return _inverse(_max_second_counts(domain, chips, second, first))
    inside = _repeat_domains(_second_beside_first(domain, first, second), chips // domain)
    return _max_plus_convolution(inside, _second_beside_first(chips % domain, first, second))


def _second_beside_first(chips: int, first: int, second: int) -> Array:
    """Return the maximum number of the second size in one domain of `chips`.

    There is one value for each number of the first size.
    """
    counts: Array = (chips - first * np.arange(chips // first + 1)) // second
    return counts


def _counts_next_to_large(domain: int, chips: int, large: int, second_chips: int) -> Array:
    """Return the maximum number of another size, for each number of large replicas.

    Large replicas exceed a domain and take the first chips, one after another. Other large replicas follow directly where
    their data-parallel ranks fit the rest of the last domain. These ranks divide a domain. Otherwise they start in the next
    domain.
    """
    used = large * np.arange(chips // large + 1)
    # Chips of the domains with at least one large replica.
    touched = -(-used // domain) * domain
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
    """Swap the two sizes: maximum of the first size for each number of the second."""
    falling = np.maximum.accumulate(largest[::-1])[::-1]
    positions: Array = np.searchsorted(-falling, -np.arange(falling[0] + 1), side="right") - 1
    return positions


def _repeat_domains(counts: Array, domains: int) -> Array:
    """Return the maximum numbers in `domains` domains, each with the numbers `counts`.

    The result is exact for up to about the square of `INDIVIDUAL_DOMAINS` domains. Of more domains, most are
    filled in equal groups.
    """
    same = max(1, domains // INDIVIDUAL_DOMAINS)
    if same == 1:
        return _power(counts, domains)
    grouped = _power(counts, domains // same - 1)
    wide = np.full(same * (len(grouped) - 1) + 1, -1)
    wide[::same] = same * grouped
    return _max_plus_convolution(_power(counts, domains - same * (domains // same - 1)), wide)


def _power(counts: Array, domains: int) -> Array:
    """Return the maximum numbers in `domains` independent domains, by doubling."""
    if domains == 0:
        return np.zeros(1, dtype=np.int64)
    half = _power(counts, domains // 2)
    both = _max_plus_convolution(half, half)
    return _max_plus_convolution(both, counts) if domains % 2 else both


def _max_plus_convolution(first_counts: Array, second_counts: Array) -> Array:
    """Return the maximum of the second size when each number of the first is divided.

    The first size is divided over two places in all ways; -1 marks an impossible number.
    """
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
