"""Where the replicas of a plan run: which hosts, and which chips of each.

A replica takes as few hosts as hold it in equal parts, each with a list of its own chips, and all replicas together take the
fewest hosts that hold such parts. In racks whose scale-up domain joins several hosts, replicas stay inside a domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steptime.planning.plan_result import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One replica of a pool: on each of its `hosts` equally many chips, whose numbers on the host are in `devices`.

    number: its place in the pool; slot: a number that no other replica of its hosts has.
    """

    role: str
    number: int
    hosts: tuple[int, ...]
    devices: tuple[tuple[int, ...], ...]
    slot: int

    @property
    def nodes(self) -> int:
        """Hosts that it spans."""
        return len(self.hosts)

    @property
    def chips(self) -> int:
        """Chips that it has on each of its hosts."""
        return len(self.devices[0])

    @property
    def alike(self) -> bool:
        """Whether it has the same chips on each of its hosts."""
        return len(set(self.devices)) == 1

    @property
    def variable(self) -> str:
        """Shell variable with the address of its first host."""
        return f"{self.role.upper()}_{self.number}_ADDRESS"


@dataclass(frozen=True, slots=True)
class Kind:
    """Replicas that are alike: how many, on how many places each, with how many chips on each place."""

    replicas: int
    nodes: int
    each: int

    @property
    def parts(self) -> int:
        """Parts of all of them."""
        return self.replicas * self.nodes


NONE = Kind(0, 1, 1)
Places = list[tuple[int, ...]]  # of each replica of a kind, the numbers of its hosts, or of its domain


def in_words(numbers: Sequence[int]) -> str:
    """Return numbers with those that follow each other as ranges.

    >>> in_words([3]), in_words([0, 1, 2, 7])
    ('3', '0 to 2, 7')
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def spread(chips: int, host: int) -> tuple[int, int]:
    """Return the hosts that a replica of `chips` takes, and its chips on each: as few hosts as hold it in equal parts.

    >>> spread(2, 8), spread(16, 8), spread(12, 8), spread(36, 4)
    ((1, 2), (2, 8), (2, 6), (9, 4))
    """
    nodes = next(n for n in range(-(-chips // host), chips + 1) if chips % n == 0)
    return nodes, chips // nodes


def racks(plan: Plan, replicas: Sequence[Replica]) -> tuple[tuple[int, ...], ...]:
    """Return the hosts of each scale-up domain that joins several, where there are more domains and no replica needs two."""
    each = plan.served.domain_chips // plan.served.host_chips
    hosts = sorted({host for r in replicas for host in r.hosts})
    if each < 2 or hosts[-1] < each or any(r.hosts[0] // each != r.hosts[-1] // each for r in replicas):
        return ()
    return tuple(tuple(h for h in hosts if h // each == rack) for rack in range(hosts[-1] // each + 1))


def placed(plan: Plan) -> tuple[Replica, ...]:
    """Return where each replica runs, pool by pool; those with most hosts, then most chips on one, have the first chips."""
    host = plan.served.host_chips
    kinds = [Kind(int(p.layout.replicas), *spread(int(p.layout.chips), host)) for p in plan.pools]
    order = sorted(range(len(kinds)), key=lambda n: (-kinds[n].nodes, -kinds[n].each, n))
    found = _in_domains([kinds[n] for n in order], host, plan.served.domain_chips)
    used: dict[int, int] = {}  # chips taken of each host
    slots: dict[int, int] = {}
    made = {}
    for n, places in zip(order, found, strict=True):
        for number, hosts in enumerate(places):
            devices = tuple(tuple(used.get(h, 0) + chip for chip in range(kinds[n].each)) for h in hosts)
            slot = max(slots.get(h, 0) for h in hosts)
            used |= {h: own[-1] + 1 for h, own in zip(hosts, devices, strict=True)}
            slots |= dict.fromkeys(hosts, slot + 1)
            made[n, number] = Replica(role=plan.pools[n].role, number=number, hosts=hosts, devices=devices, slot=slot)
    return tuple(made[key] for key in sorted(made))


def _in_domains(kinds: Sequence[Kind], host: int, domain: int) -> list[Places]:
    """Return the hosts of each replica of each kind, inside scale-up domains of several hosts where the replicas fit one."""
    whole = [Kind(k.replicas, 1, k.nodes * k.each) for k in kinds]
    if domain <= host or sum(k.replicas * k.each for k in whole) <= domain or max(k.each for k in whole) > domain:
        return _on_hosts(kinds, host)
    inside = _on_hosts(whole, domain)
    found: list[Places] = [[] for _ in kinds]
    for number in range(1 + max(place for places in inside for (place,) in places)):
        own = [Kind(places.count((number,)), k.nodes, k.each) for k, places in zip(kinds, inside, strict=True)]
        here = _on_hosts(own, host)
        taken = 1 + max(h for places in here for hosts in places for h in hosts)
        if taken * host > domain:  # equal parts take more hosts than a domain has: then no replica is sure to stay inside
            return _on_hosts(kinds, host)
        for places, mine in zip(found, here, strict=True):
            places += [tuple(number * (domain // host) + h for h in hosts) for hosts in mine]
    return found


def _on_hosts(kinds: Sequence[Kind], host: int) -> list[Places]:
    """Return the places of each replica of one or two kinds: the fewest of `host` chips, by number.

    >>> _on_hosts([Kind(1, 9, 4), Kind(5, 7, 1)], 4)[1][-1]
    (11, 12, 13, 14, 15, 16, 17)
    """
    counts = _filled(kinds[0], kinds[1] if len(kinds) > 1 else NONE, host)
    return [_dealt(kind, [count[n] for count in counts]) for n, kind in enumerate(kinds)]


def _filled(first: Kind, second: Kind, host: int) -> list[tuple[int, int]]:
    """Return how many parts of each kind every place has, for as few places as hold all; the fullest with the first come first.

    Exact: after each place it knows the most parts of the second kind beside each number of the first. A place has at most one
    part of a replica, and any such counts can be dealt to the replicas, which all have equally many parts.
    """
    ways = range(min(first.replicas, host // first.each) + 1)
    beside = [min(second.replicas, (host - first.each * n) // second.each) for n in ways]
    most = np.full(first.parts + 1, -1)
    most[0] = 0
    taken = []
    while most[-1] < second.parts:
        tried = np.full((len(beside), len(most)), -1)
        for n, more in enumerate(beside):
            tried[n, n:] = np.where(most[: len(most) - n] >= 0, most[: len(most) - n] + more, -1)
        taken.append(np.argmax(tried, axis=0))
        most = np.max(tried, axis=0)
    left, found = first.parts, []
    for choice in reversed(taken):
        n = int(choice[left])
        left -= n
        found.append((n, beside[n]))
    counts, rest = [], second.parts
    for n, more in sorted(found, reverse=True):
        counts.append((n, min(more, rest)))
        rest -= min(more, rest)
    return counts


def _dealt(kind: Kind, counts: Sequence[int]) -> Places:
    """Return the places of each replica from the parts on each place: the first in a row, else always those with most left."""
    for first_in_a_row in (True, False):
        left, found = list(counts), []
        for _ in range(kind.replicas):
            free = [place for place, parts in enumerate(left) if parts]
            free = free if first_in_a_row else sorted(free, key=lambda place: -left[place])
            found.append(tuple(sorted(free[: kind.nodes])))
            for place in found[-1]:
                left[place] -= 1
        if all(len(places) == kind.nodes for places in found):
            break
    return found
