"""Which layouts a search looks at: ways worth trying, less those that break a rule (`rules`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from steptime.machines.system import System
from steptime.models.model import Model
from steptime.physics.engine import Engine
from steptime.physics.layout import NAMES, Layout, stacked
from steptime.physics.rules import Facts, allowed, facts_of

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
    facts = facts_of(model, system, chips=chips, engine=engine)
    tried = list(dict.fromkeys(proposed(facts, chips, microbatches)))
    if not tried:
        return []
    kept = allowed(stacked(tried), facts)
    return [replace(x, replicas=replicas(system, chips, int(x.chips))) for x, good in zip(tried, kept, strict=True) if good]


def proposed(facts: Facts, chips: int, microbatches: tuple[int, ...]) -> Iterator[Layout]:
    """Yield the layouts worth trying: ways that divide heads, domains and stages evenly, whatever the rules say of them."""
    domain = int(min(facts.domain, chips))
    largest = min(chips, max(domain, LARGEST_REPLICA))
    heads = [t for t in divisors(facts.heads) if t <= domain]
    for tp, pp, cp in product(heads, [p for p in STAGES if p <= min(facts.depth, chips)], CONTEXT_WAYS):
        for dp in groups(largest // (tp * cp * pp), shared=facts.experts > 0):
            for ep in expert_ways(tp * cp * dp, dp, facts.experts):
                for parts in microbatches:
                    yield Layout(tp=tp, pp=pp, dp=dp, ep=ep, cp=cp, microbatches=pp * parts)


def not_tried(layout: Layout, facts: Facts, chips: int, microbatches: tuple[int, ...] = (1, 2)) -> str:
    """Return which axis keeps a layout out of those worth trying, "" where it is among them."""
    found = list(proposed(facts, chips, microbatches))
    for name in NAMES:
        if name == "replicas":
            continue
        ways = sorted({int(getattr(x, name)) for x in found})
        found = [x for x in found if getattr(x, name) == getattr(layout, name)]
        if not found:
            return f"{name}={getattr(layout, name)} is not tried here; ways that are: {', '.join(map(str, ways))}"
    return ""


def replicas(system: System, chips: int, each: int) -> int:
    """Return how many replicas of `each` chips fit in `chips`: whole ones in each scale-up domain, where they fit in one."""
    domain = min(system.scale_up.size, chips)
    if each > domain:
        return chips // each
    return int(chips // domain * (domain // each) + chips % domain // each)


def divisors(number: int) -> list[int]:
    """Return the divisors of `number`, smallest first.

    >>> divisors(72)
    [1, 2, 3, 4, 6, 8, 9, 12, 18, 24, 36, 72]
    """
    return [d for d in range(1, number + 1) if number % d == 0]


def groups(most: int, *, shared: bool) -> list[int]:
    """Return the attention groups worth trying: all that divide evenly into the chips, and the powers of two below.

    >>> groups(12, shared=True), groups(12, shared=False), groups(0, shared=True)
    ([1, 2, 3, 4, 6, 8, 12], [1], [])
    """
    if most < 1:
        return []
    if not shared:
        return [1]
    return sorted(set(divisors(most)) | {2**n for n in range(most.bit_length()) if 2**n <= most})


def expert_ways(stage: int, dp: int, experts: int) -> list[int]:
    """Return the expert parallel ways worth trying: none, or all chips of the stage (as many as there are experts for).

    >>> expert_ways(72, 72, 256), expert_ways(8, 1, 4), expert_ways(8, 8, 4), expert_ways(8, 1, 0)
    ([1, 72], [1, 4], [1], [1])
    """
    if not experts:
        return [1]
    most = max(w for w in divisors(stage) if w <= experts)
    return sorted({1, most} if dp == 1 or most == stage else {1})
