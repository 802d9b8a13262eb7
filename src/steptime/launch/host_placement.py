"""Placement of the replicas of a plan: their hosts, and their chips on each host.

A replica takes the smallest number of hosts that hold it in equal parts, and has its own chips on each. All replicas together
take the smallest number of hosts that hold such parts. If the scale-up domain of a rack joins several hosts, replicas stay
inside a domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from steptime.physics.layout import equal_parts
from steptime.planning.plan_result import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One replica of a pool, with the same number of chips on each of its hosts.

    Attributes:
        role: Role of its pool: serve, prefill or decode.
        number: Position in the pool.
        hosts: Numbers of its hosts.
        devices: Numbers of its chips on each host.
        slot: Number that no other replica on its hosts has.
    """

    role: str
    number: int
    hosts: tuple[int, ...]
    devices: tuple[tuple[int, ...], ...]
    slot: int

    @property
    def nodes(self) -> int:
        """Number of hosts."""
        return len(self.hosts)

    @property
    def chips(self) -> int:
        """Chips on each host."""
        return len(self.devices[0])

    @property
    def is_symmetric(self) -> bool:
        """Whether it has the same chip numbers on each of its hosts."""
        return len(set(self.devices)) == 1

    @property
    def variable(self) -> str:
        """Shell variable with the address of its first host."""
        return f"{self.role.upper()}_{self.number}_ADDRESS"


@dataclass(frozen=True, slots=True)
class Kind:
    """Replicas of one size: their number, places per replica, and chips per place."""

    replicas: int
    nodes: int
    chips_per_place: int

    @property
    def parts(self) -> int:
        """Number of parts of all replicas; a part is the chips of a replica on one place."""
        return self.replicas * self.nodes


NONE = Kind(0, 1, 1)
# Numbers of the hosts or the domain of each replica of a kind.
Places = list[tuple[int, ...]]


def in_words(numbers: Sequence[int]) -> str:
    """Return numbers as a text with ranges.

    Args:
        numbers: Numbers in any order.

    Returns:
        Text such as "0 to 2, 7".

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


def racks(plan: Plan, replicas: Sequence[Replica]) -> tuple[tuple[int, ...], ...]:
    """Return the hosts of each scale-up domain that joins several hosts.

    Args:
        plan: The plan.
        replicas: Placement of all replicas.

    Returns:
        Numbers of hosts by domain; empty if there is one domain, a replica needs two, or pools are on two systems.
    """
    if plan.prefill_served is not None:
        return ()
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
    """Return the placement of each replica, pool by pool.

    Replicas with the most hosts, then with the most chips per host, get the first chips.

    Args:
        plan: The plan.

    Returns:
        Replicas in the order of the pools.
    """
    if plan.prefill_served is not None:
        return _on_two_systems(plan)
    host = plan.served.host_chips
    kinds = [Kind(int(p.layout.replicas), *equal_parts(int(p.layout.chips), host)) for p in plan.pools]
    order = sorted(range(len(kinds)), key=lambda n: (-kinds[n].nodes, -kinds[n].chips_per_place, n))
    places_by_kind = _in_domains([kinds[n] for n in order], host, plan.served.domain_chips)

    # Used chips of each host.
    used: dict[int, int] = {}
    slots: dict[int, int] = {}
    placed_replicas = {}
    for n, places in zip(order, places_by_kind, strict=True):
        for number, hosts in enumerate(places):
            devices = tuple(tuple(used.get(h, 0) + chip for chip in range(kinds[n].chips_per_place)) for h in hosts)

            # A slot gives each replica on a host its own ports.
            slot = max(slots.get(h, 0) for h in hosts)
            used |= {h: chips[-1] + 1 for h, chips in zip(hosts, devices, strict=True)}
            slots |= dict.fromkeys(hosts, slot + 1)
            placed_replicas[n, number] = Replica(
                role=plan.pools[n].role, number=number, hosts=hosts, devices=devices, slot=slot
            )
    return tuple(placed_replicas[key] for key in sorted(placed_replicas))


def _on_two_systems(plan: Plan) -> tuple[Replica, ...]:
    """Return the placement of pools on two systems: the hosts of the prefill pool first, then those of the decode pool."""
    prefill, decode = plan.pools
    first = place_replicas(replace(plan, pools=(prefill,), served=plan.served_by("prefill"), prefill_served=None))
    second = place_replicas(replace(plan, pools=(decode,), prefill_served=None))
    after = 1 + max(host for replica in first for host in replica.hosts)
    return first + tuple(replace(replica, hosts=tuple(after + host for host in replica.hosts)) for replica in second)


def _in_domains(kinds: Sequence[Kind], host: int, domain: int) -> list[Places]:
    """Return the hosts of each replica, inside scale-up domains of several hosts.

    Replicas that do not fit in one domain are placed on hosts regardless of domains.
    """
    # A domain is one place for whole replicas; then hosts are assigned within each domain.
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

        # Equal parts take more hosts than a domain has: replicas may leave their domain.
        if host_count * host > domain:
            return _on_hosts(kinds, host)
        for places, mine in zip(host_places, local_places, strict=True):
            places += [tuple(number * (domain // host) + h for h in hosts) for hosts in mine]
    return host_places


def _on_hosts(kinds: Sequence[Kind], host: int) -> list[Places]:
    """Return the places of each replica of one or two kinds, on the fewest hosts.

    >>> _on_hosts([Kind(1, 9, 4), Kind(5, 7, 1)], 4)[1][-1]
    (11, 12, 13, 14, 15, 16, 17)
    """
    counts = _parts_per_place(kinds[0], kinds[1] if len(kinds) > 1 else NONE, host)
    return [_assign_places(kind, [count[n] for count in counts]) for n, kind in enumerate(kinds)]


def _parts_per_place(first: Kind, second: Kind, host: int) -> list[tuple[int, int]]:
    """Return the parts of each kind on every place, for the smallest number of places.

    The places with the most parts of the first kind come first. The search is exact: after each place it stores the largest
    number of parts of the second kind for each number of the first. A place has at most one part of a replica. Any such counts
    can be assigned to the replicas, because all replicas have the same number of parts.
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

    # The choices are followed back from the last place to the first.
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
    """Return the places of each replica from the number of parts on each place.

    Places in a row are tried first, then always the places with the most parts left.
    """
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
