"""Where the replicas of a plan run: which hosts, and which chips of each."""

from __future__ import annotations

from dataclasses import dataclass

from steptime.planning.deployment import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One replica of a pool: `chips` on each of its `hosts`, from the chip `first` on.

    number: its place in the pool; slot: its place among the replicas of its hosts.
    """

    role: str
    number: int
    hosts: tuple[int, ...]
    chips: int
    first: int
    slot: int

    @property
    def nodes(self) -> int:
        """Hosts that it spans."""
        return len(self.hosts)

    @property
    def variable(self) -> str:
        """Shell variable with the address of its first host."""
        return f"{self.role.upper()}_{self.number}_ADDRESS"


def spread(chips: int, host: int) -> tuple[int, int]:
    """Return the hosts that a replica of `chips` takes, and its chips on each: as few hosts as hold it in equal parts.

    >>> spread(2, 8), spread(16, 8), spread(12, 8), spread(36, 4)
    ((1, 2), (2, 8), (2, 6), (9, 4))
    """
    nodes = next(n for n in range(-(-chips // host), chips + 1) if chips % n == 0)
    return nodes, chips // nodes


def placed(plan: Plan) -> tuple[Replica, ...]:
    """Return where each replica runs: the hosts are filled in order, the replicas with most chips on a host first.

    The chips of a replica on a host are neighbours; a replica of several hosts has them to itself up to its share.
    """
    host = plan.served.host_chips
    wanted = []
    for order, pool in enumerate(plan.pools):
        nodes, each = spread(int(pool.layout.chips), host)
        wanted += [(-nodes, -each, order, pool.role, number) for number in range(int(pool.layout.replicas))]
    used: list[int] = []  # chips taken of each host
    slots: list[int] = []
    found = {}
    for minus_nodes, minus_each, order, role, number in sorted(wanted):
        nodes, each = -minus_nodes, -minus_each
        hosts = _free(used, slots, nodes, each, host)
        first, slot = max(used[h] for h in hosts), max(slots[h] for h in hosts)
        for h in hosts:
            used[h], slots[h] = first + each, slot + 1
        found[order, number] = Replica(role=role, number=number, hosts=tuple(hosts), chips=each, first=first, slot=slot)
    return tuple(found[key] for key in sorted(found))


def _free(used: list[int], slots: list[int], nodes: int, each: int, host: int) -> list[int]:
    """Return the first hosts in a row with room for `each` chips; hosts are added where there are none."""
    start = next((s for s in range(len(used)) if all(u + each <= host for u in used[s : s + nodes])), len(used))
    while len(used) < start + nodes:
        used.append(0)
        slots.append(0)
    return list(range(start, start + nodes))
