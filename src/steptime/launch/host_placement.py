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
    def is_symmetric(self) -> bool:
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
    chips_per_place: int

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
    hosts_per_domain = plan.served.domain_chips // plan.served.host_chips
    hosts = sorted({host for r in replicas for host in r.hosts})
    if (
        hosts_per_domain < 2
        or hosts[-1] < hosts_per_domain
        or any(r.hosts[0] // hosts_per_domain != r.hosts[-1] // hosts_per_domain for r in replicas)
    ):
        return ()
    return tuple(tuple(h for h in hosts if h // hosts_per_domain == rack) for rack in range(hosts[-1] // hosts_per_domain + 1))


def place_replicas(plan: Plan) -> tuple[Replica, ...]:
    """Return where each replica runs, pool by pool; those with most hosts, then most chips on one, have the first chips."""
    host = plan.served.host_chips
    kinds = [Kind(int(p.layout.replicas), *spread(int(p.layout.chips), host)) for p in plan.pools]
    order = sorted(range(len(kinds)), key=lambda n: (-kinds[n].nodes, -kinds[n].chips_per_place, n))
    places_by_kind = _in_domains([kinds[n] for n in order], host, plan.served.domain_chips)
    used: dict[int, int] = {}  # chips taken of each host
    slots: dict[int, int] = {}
    placed_replicas = {}
    for n, places in zip(order, places_by_kind, strict=True):
        for number, hosts in enumerate(places):
            devices = tuple(tuple(used.get(h, 0) + chip for chip in range(kinds[n].chips_per_place)) for h in hosts)
            slot = max(slots.get(h, 0) for h in hosts)
            used |= {h: chips[-1] + 1 for h, chips in zip(hosts, devices, strict=True)}
            slots |= dict.fromkeys(hosts, slot + 1)
            placed_replicas[n, number] = Replica(
                role=plan.pools[n].role, number=number, hosts=hosts, devices=devices, slot=slot
            )
    return tuple(placed_replicas[key] for key in sorted(placed_replicas))


def _in_domains(kinds: Sequence[Kind], host: int, domain: int) -> list[Places]:
    """Return the hosts of each replica of each kind, inside scale-up domains of several hosts where the replicas fit one."""
    single_place_kinds = [Kind(k.replicas, 1, k.nodes * k.chips_per_place) for k in kinds]
    if (
        domain <= host
        or sum(k.replicas * k.chips_per_place for k in single_place_kinds) <= domain
        or max(k.chips_per_place for k in single_place_kinds) > domain
    ):
        return _on_hosts(kinds, host)
    inside = _on_hosts(single_place_kinds, domain)
    host_places: list[Places] = [[] for _ in kinds]
    for number in range(1 + max(place for places in inside for (place,) in places)):
        domain_kinds = [
            Kind(places.count((number,)), k.nodes, k.chips_per_place) for k, places in zip(kinds, inside, strict=True)
        ]
        local_places = _on_hosts(domain_kinds, host)
        host_count = 1 + max(h for places in local_places for hosts in places for h in hosts)
        if host_count * host > domain:  # equal parts take more hosts than a domain has: then no replica is sure to stay inside
            return _on_hosts(kinds, host)
        for places, mine in zip(host_places, local_places, strict=True):
            places += [tuple(number * (domain // host) + h for h in hosts) for hosts in mine]
    return host_places


def _on_hosts(kinds: Sequence[Kind], host: int) -> list[Places]:
    """Return the places of each replica of one or two kinds: the fewest of `host` chips, by number.

    >>> _on_hosts([Kind(1, 9, 4), Kind(5, 7, 1)], 4)[1][-1]
    (11, 12, 13, 14, 15, 16, 17)
    """
    counts = _parts_per_place(kinds[0], kinds[1] if len(kinds) > 1 else NONE, host)
    return [_assign_places(kind, [count[n] for count in counts]) for n, kind in enumerate(kinds)]


def _parts_per_place(first: Kind, second: Kind, host: int) -> list[tuple[int, int]]:
    """Return how many parts of each kind every place has, for as few places as hold all; the fullest with the first come first.

    Exact: after each place it knows the most parts of the second kind beside each number of the first. A place has at most one
    part of a replica, and any such counts can be dealt to the replicas, which all have equally many parts.
    """
    first_counts = range(min(first.replicas, host // first.chips_per_place) + 1)
    second_counts = [min(second.replicas, (host - first.chips_per_place * n) // second.chips_per_place) for n in first_counts]
    max_second = np.full(first.parts + 1, -1)
    max_second[0] = 0
    choices = []
    while max_second[-1] < second.parts:
        candidates = np.full((len(second_counts), len(max_second)), -1)
        for n, extra in enumerate(second_counts):
            candidates[n, n:] = np.where(max_second[: len(max_second) - n] >= 0, max_second[: len(max_second) - n] + extra, -1)
        choices.append(np.argmax(candidates, axis=0))
        max_second = np.max(candidates, axis=0)
    unplaced, chosen_counts = first.parts, []
    for choice in reversed(choices):
        n = int(choice[unplaced])
        unplaced -= n
        chosen_counts.append((n, second_counts[n]))
    counts, remaining = [], second.parts
    for n, extra in sorted(chosen_counts, reverse=True):
        counts.append((n, min(extra, remaining)))
        remaining -= min(extra, remaining)
    return counts


def _assign_places(kind: Kind, counts: Sequence[int]) -> Places:
    """Return the places of each replica from the parts on each place: the first in a row, else always those with most left."""
    for first_in_a_row in (True, False):
        free_parts, replica_places = list(counts), []
        for _ in range(kind.replicas):
            free = [place for place, parts in enumerate(free_parts) if parts]
            free = free if first_in_a_row else sorted(free, key=lambda place: -free_parts[place])
            replica_places.append(tuple(sorted(free[: kind.nodes])))
            for place in replica_places[-1]:
                free_parts[place] -= 1
        if all(len(places) == kind.nodes for places in replica_places):
            break
    return replica_places
