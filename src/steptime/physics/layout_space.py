"""Layout space: the layouts that a search considers, the default layout, and places of replicas in domains.

**Default.** The default layout is the smallest conventional layout that fits: one chip where the model fits on one chip. A
conventional layout is the layout of `vllm serve --tensor-parallel-size N`: tensor parallelism inside the scale-up domain,
experts over all chips, and pipeline stages beyond the domain. Sizes are powers of two.

**Placement.** Replicas of one or two sizes share scale-up domains. A replica that fits into a domain is inside one domain.
A larger replica starts where another replica ended, so that it uses the minimum number of domains. Its data-parallel ranks
divide the domain, so that no rank spans two domains.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Final

import numpy as np

from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import Array, Number, divisors
from steptime.physics.chip_memory import memory_per_chip
from steptime.physics.engine import Engine
from steptime.physics.layout import NAMES, Facts, Layout, collect_facts, select_layouts, stacked, unstacked
from steptime.physics.layout_rules import allowed

# Chips; larger replicas are tried only where one scale-up domain is larger.
LARGEST_REPLICA = 256
STAGES = (1, 2, 3, 4, 6, 8, 9, 12, 16)
CONTEXT_WAYS = (1, 2, 4, 8)


def legal(
    model: Model, system: System, chips: int, *, microbatches: tuple[int, ...] = (1, 2), engine: Engine | None = None
) -> list[Layout]:
    """Return the layouts of a model whose replicas fit a number of chips.

    A data-parallel rank stays inside the scale-up domain; a stage may span several domains.

    Args:
        model: The model.
        system: The system.
        chips: Chips of the deployment.
        microbatches: Micro-batches per stage to try.
        engine: Excludes layouts that this engine cannot run; by default no layout is excluded.

    Returns:
        Layouts, each with as many replicas as fit.
    """
    return unstacked(legal_table(model, system, chips, microbatches=microbatches, engine=engine))


def legal_table(
    model: Model, system: System, chips: int, *, microbatches: tuple[int, ...] = (1, 2), engine: Engine | None = None
) -> Layout:
    """Return the layouts of `legal` as one layout, which takes less time where most of them are left out later.

    Args:
        model: The model.
        system: The system.
        chips: Chips of the deployment.
        microbatches: Micro-batches per stage to try.
        engine: Excludes layouts that this engine cannot run; by default no layout is excluded.

    Returns:
        One layout with fields of shape (layouts,).
    """
    return _legal(collect_facts(model, system, engine=engine), chips, microbatches)


@lru_cache(maxsize=16)
def _legal(facts: Facts, chips: int, microbatches: tuple[int, ...]) -> Layout:
    """Return the layouts that the facts allow; number formats of one model have the same."""
    proposals = list(dict.fromkeys(proposed(facts, chips, microbatches)))
    if not proposals:
        return stacked([])
    layouts = Layout(**dict(zip(DEGREES, np.array(proposals).T, strict=True)))
    sizes = np.broadcast_to(layouts.chips, (len(proposals),)).tolist()
    replica_counts = {size: replicas(facts.domain_chips, chips, size) for size in set(sizes)}
    counted = replace(layouts, replicas=np.array([replica_counts[size] for size in sizes]))
    return select_layouts(counted, allowed(layouts, facts))


# The fields of a layout that describe one replica.
DEGREES = tuple(name for name in NAMES if name != "replicas")


def proposed(facts: Facts, chips: int, microbatches: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the degrees to try, before any rule excludes them.

    These are divisors of the heads, and sizes of every scale. More chips only add proposals, so that a larger deployment
    loses no layout. Chips that its replicas do not use stay idle.

    Args:
        facts: Facts of model and system.
        chips: Chips of the deployment.
        microbatches: Micro-batches per stage to try.

    Yields:
        Degrees in the order of `DEGREES`.
    """
    domain = int(min(facts.domain, chips))
    largest = min(chips, max(domain, LARGEST_REPLICA))
    heads = [t for t in divisors(facts.heads) if t <= domain]
    for tp, pp, cp in product(heads, [p for p in STAGES if p <= min(facts.depth, chips)], CONTEXT_WAYS):
        for dp in groups(largest // (tp * cp * pp), shared=facts.experts > 0, domain=facts.domain_chips):
            for ep in expert_ways(tp * cp * dp, dp, facts.experts):
                for copies, parts in product(copy_counts(facts.experts, ep), microbatches):
                    yield tp, pp, dp, ep, cp, pp * parts, copies


def not_tried(layout: Layout, facts: Facts, chips: int, microbatches: tuple[int, ...] = (1, 2)) -> str:
    """Return the axis that excludes a layout from the proposals.

    Args:
        layout: A layout of plain numbers.
        facts: Facts of model and system.
        chips: Chips of the deployment.
        microbatches: Micro-batches per stage to try.

    Returns:
        A message; "" where the layout is among the proposals.
    """
    proposals = list(proposed(facts, chips, microbatches))
    for index, name in enumerate(DEGREES):
        degrees = sorted({x[index] for x in proposals})
        proposals = [x for x in proposals if x[index] == getattr(layout, name)]
        if not proposals:
            return f"{name}={getattr(layout, name)} is not tried here; the search tries {', '.join(map(str, degrees))}"
    return ""


# Odd factors of the numbers of ranks to try. Times powers of two they give seven of the eight even steps per octave.
LADDER = (1, 3, 5, 7, 9, 11, 13)


def groups(largest: int, *, shared: bool, domain: Number = math.inf) -> list[int]:
    """Return the numbers of data-parallel ranks to try, up to `largest`.

    These are the odd numbers of `LADDER` times powers of two, and the divisors of a scale-up domain. Above
    `LARGEST_REPLICA` they are powers of two.

    Args:
        largest: Largest number of ranks.
        shared: Whether ranks share routed experts; without, one rank is enough.
        domain: Chips of a scale-up domain.

    Returns:
        Numbers in rising order.

    >>> groups(9, shared=True), groups(9, shared=False), groups(0, shared=True)
    ([1, 2, 3, 4, 5, 6, 7, 8, 9], [1], [])
    >>> groups(40, shared=True)[13:], groups(34, shared=True, domain=34)[13:]
    ([14, 16, 18, 20, 22, 24, 26, 28, 32, 36, 40], [14, 16, 17, 18, 20, 22, 24, 26, 28, 32, 34])
    """
    if largest < 1:
        return []
    if not shared:
        return [1]
    rungs = {odd * 2**n for odd in LADDER for n in range(largest.bit_length()) if odd == 1 or odd * 2**n <= LARGEST_REPLICA}
    domain_divisors = divisors(int(domain)) if math.isfinite(domain) else ()
    return sorted(degree for degree in rungs.union(domain_divisors) if degree <= largest)


@lru_cache(maxsize=4096)
def expert_ways(stage: int, dp: int, experts: int) -> tuple[int, ...]:
    """Return the expert-parallel degrees to try: 1, or all chips of the stage.

    A single data-parallel rank with fewer experts than chips also tries the largest divisor of the stage that leaves one
    expert per chip.

    Args:
        stage: Chips of a stage.
        dp: Data-parallel ranks of the stage.
        experts: Routed experts of the model; 0 for a dense model.

    Returns:
        Degrees in rising order.

    >>> expert_ways(72, 72, 256), expert_ways(8, 1, 4), expert_ways(8, 8, 4), expert_ways(8, 1, 0)
    ((1, 72), (1, 4), (1,), (1,))
    """
    if not experts:
        return (1,)
    largest = max(w for w in divisors(stage) if w <= experts)
    return tuple(sorted({1, largest} if dp == 1 or largest == stage else {1}))


def copy_counts(experts: int, ep: int) -> tuple[int, ...]:
    """Return the numbers of redundant experts to try.

    These are the fewest that give every rank the same number of experts, and one more per rank. Public deployments have one
    or two copies per rank.

    Args:
        experts: Routed experts of the model; 0 for a dense model.
        ep: Expert-parallel degree.

    Returns:
        Numbers in rising order.

    References:
        32 copies on 32 ranks (prefill) and on 72 ranks: lmsys.org/blog/2025-05-05-large-scale-ep. 32 copies on 32 and 36
        ranks: TensorRT-LLM, tech blog 4.

    >>> copy_counts(256, 32), copy_counts(256, 24), copy_counts(256, 1), copy_counts(0, 1)
    ((0, 32), (8, 32), (0,), (0,))
    """
    fewest = -experts % ep
    return (fewest, fewest + ep) if ep > 1 else (fewest,)


# Chips of one replica: eight racks of 72 hold every model of the catalogue.
MOST_CHIPS: Final = 1024
LAYOUT_DEGREES: Final = ("tp", "pp", "dp", "ep", "cp")


def default_layout(
    model: Model, system: System, *, engine: Engine | None = None, batch: Number = 1, context: Number = 1
) -> Layout:
    """Return the smallest conventional layout that fits, one chip where possible.

    Args:
        model: The model.
        system: The system.
        engine: Excludes layouts that this engine cannot run; by default no layout is excluded.
        batch: Sequences in flight in the replica, which should fit where a scale-up domain allows it; the
            minimum of an array.
        context: Context of each sequence [tokens]; the minimum of an array.

    Returns:
        A layout of one replica. It is one chip where no layout fits the model, so that the answer names memory
        as the reason.
    """
    sequences, tokens = float(np.min(batch)), float(np.min(context))
    sizes = _sizes(system)

    # First the weights with one sequence, then the requested batch where it does not need a second scale-up domain.
    smallest = _smallest(model, system, engine, sizes, 1.0, tokens)
    if smallest is None or int(smallest.chips) == 1 or sequences <= 1:
        return smallest or Layout()
    inside = [chips for chips in sizes if int(smallest.chips) <= chips <= max(system.scale_up.size, int(smallest.chips))]
    return _smallest(model, system, engine, inside, sequences, tokens) or smallest


def _sizes(system: System) -> list[int]:
    largest = int(min(MOST_CHIPS, system.scale_out.size))
    return [2**n for n in range(largest.bit_length())]


def _smallest(
    model: Model, system: System, engine: Engine | None, sizes: Sequence[int], batch: float, context: float
) -> Layout | None:
    """Return the conventional layout on the fewest chips that fits the sequences."""
    for chips in sizes:
        layouts = [
            candidate
            for candidate in legal(model, system, chips, microbatches=(1,), engine=engine)
            if int(candidate.chips) == chips and int(candidate.dp) == int(candidate.cp) == 1
        ]
        if not layouts:
            continue
        # As few pipeline stages as possible, then as many expert-parallel ranks as possible.
        layout = min(layouts, key=lambda candidate: (int(candidate.pp), -int(candidate.ep)))
        if bool(np.all(memory_per_chip(model, system, batch=batch, context=context, layout=layout).fits)):
            degrees = {name: int(getattr(layout, name)) for name in LAYOUT_DEGREES}
            return Layout(**degrees, microbatches=degrees["pp"])
    return None


def most_spread(layouts: Sequence[Layout]) -> Layout:
    """Return the layout with the most chips.

    Experts are spread over all chips, with data-parallel attention. Without experts, heads are divided.

    Args:
        layouts: Layouts of one replica each; at least one.

    Returns:
        One of the layouts.
    """
    size = max(int(layout.chips) for layout in layouts)
    largest_layouts = [layout for layout in layouts if int(layout.chips) == size]
    return max(largest_layouts, key=lambda layout: (int(layout.ep), -int(layout.tp) if layout.ep > 1 else int(layout.tp)))


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
