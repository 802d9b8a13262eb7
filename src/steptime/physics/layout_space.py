"""Layout space: the layouts that a search considers, which break no rule."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import product

import numpy as np

from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import Number, divisors
from steptime.physics.engine import Engine
from steptime.physics.layout import NAMES, Layout
from steptime.physics.layout_constraints import Facts, collect_facts
from steptime.physics.layout_rules import allowed
from steptime.physics.replica_placement import replicas

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
    facts = collect_facts(model, system, chips=chips, engine=engine)
    proposals = list(dict.fromkeys(proposed(facts, chips, microbatches)))
    if not proposals:
        return []
    layouts = Layout(**dict(zip(DEGREES, np.array(proposals).T, strict=True)))
    sizes = np.broadcast_to(layouts.chips, (len(proposals),)).tolist()
    replica_counts = {size: replicas(system.scale_up.size, chips, size) for size in set(sizes)}
    is_legal = allowed(layouts, facts)
    return [
        Layout(**dict(zip(DEGREES, degrees, strict=True)), replicas=replica_counts[size])
        for degrees, size, good in zip(proposals, sizes, is_legal, strict=True)
        if good
    ]


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
                # Redundant experts that give every chip the same number of experts.
                copies = -facts.experts % ep
                for parts in microbatches:
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
