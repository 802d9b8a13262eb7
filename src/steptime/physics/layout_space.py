"""Which layouts a search looks at: ways worth trying, less those that break a rule (`rules`)."""

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

LARGEST_REPLICA = 256  # chips; larger ones are tried only where one scale-up domain is larger
STAGES = (1, 2, 3, 4, 6, 8, 9, 12, 16)
CONTEXT_WAYS = (1, 2, 4, 8)


def legal(
    model: Model, system: System, chips: int, *, microbatches: tuple[int, ...] = (1, 2), engine: Engine | None = None
) -> list[Layout]:
    """Return the layouts of `model` whose replicas fit `chips` chips, with as many replicas as fit.

    An attention group stays inside the scale-up domain; a stage may span several. microbatches: micro-batches a stage.
    engine: leaves out what it cannot run; by default any can.
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


DEGREES = tuple(name for name in NAMES if name != "replicas")  # of one replica


def proposed(facts: Facts, chips: int, microbatches: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the `WAYS` worth trying, whatever the rules say of them: ways that divide heads, and sizes of every magnitude.

    More chips only add to them, so that no deployment is lost by renting one more: what does not fit into its replicas idles.
    """
    domain = int(min(facts.domain, chips))
    largest = min(chips, max(domain, LARGEST_REPLICA))
    heads = [t for t in divisors(facts.heads) if t <= domain]
    for tp, pp, cp in product(heads, [p for p in STAGES if p <= min(facts.depth, chips)], CONTEXT_WAYS):
        for dp in groups(largest // (tp * cp * pp), shared=facts.experts > 0, domain=facts.domain_chips):
            for ep in expert_ways(tp * cp * dp, dp, facts.experts):
                copies = -facts.experts % ep  # redundant experts with which every chip holds as many
                for parts in microbatches:
                    yield tp, pp, dp, ep, cp, pp * parts, copies


def not_tried(layout: Layout, facts: Facts, chips: int, microbatches: tuple[int, ...] = (1, 2)) -> str:
    """Return which axis keeps a layout out of those worth trying, "" where it is among them."""
    proposals = list(proposed(facts, chips, microbatches))
    for index, name in enumerate(DEGREES):
        degrees = sorted({x[index] for x in proposals})
        proposals = [x for x in proposals if x[index] == getattr(layout, name)]
        if not proposals:
            return f"{name}={getattr(layout, name)} is not tried here; ways that are: {', '.join(map(str, degrees))}"
    return ""


LADDER = (1, 3, 5, 7, 9, 11, 13)  # times powers of two: eight even steps to an octave, of which one is left out


def groups(largest: int, *, shared: bool, domain: Number = math.inf) -> list[int]:
    """Return the attention groups worth trying, up to `largest`: the rungs of a ladder, and what divides a scale-up domain.

    Above `LARGEST_REPLICA` the rungs are powers of two.

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
    """Return the expert parallel ways worth trying: none, or all chips of the stage (as many as there are experts for).

    >>> expert_ways(72, 72, 256), expert_ways(8, 1, 4), expert_ways(8, 8, 4), expert_ways(8, 1, 0)
    ((1, 72), (1, 4), (1,), (1,))
    """
    if not experts:
        return (1,)
    largest = max(w for w in divisors(stage) if w <= experts)
    return tuple(sorted({1, largest} if dp == 1 or largest == stage else {1}))
