r"""The cost of moving data between chips, on nested domains.

The alpha-beta model (Hockney 1994; Thakur, Rabenseifner and Gropp 2005): a message of $n$ bytes takes $\alpha + n/W$. A group
of chips is packed: members fill the inner domain first, then spread over outer ones. Collectives are hierarchical: each
level moves what the levels below it could not finish. Every function returns one `Traffic` with the seconds that each
level's link is busy and the seconds of latency, so that the caller can overlap or add them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.blackboard.expert_activation import distinct_hit, nodes_hit
from steptime.hardware.system import Domain, Link, System
from steptime.number_checks import Number


@dataclass(frozen=True, slots=True)
class Traffic:
    """Seconds that each link level is busy, inner to outer, seconds of latency, and how often all members wait for all."""

    busy: tuple[Number, ...]
    latency: Number
    calls: Number = 1.0

    def __add__(self, addend: Traffic) -> Traffic:
        busy = tuple(a + b for a, b in zip(self.busy, addend.busy, strict=True))
        return Traffic(busy, self.latency + addend.latency, self.calls + addend.calls)

    def __mul__(self, times: Number) -> Traffic:
        return Traffic(tuple(b * times for b in self.busy), self.latency * times, self.calls * times)

    def resized(self, factor: Number) -> Traffic:
        """The same collective with `factor` times the bytes."""
        return Traffic(tuple(b * factor for b in self.busy), self.latency, self.calls)


def members_by_level(domains: tuple[Domain, ...], size: Number, stride: Number = 1) -> tuple[Number, ...]:
    """How many members of a packed group of `size`, one every `stride` chips, meet at each level; their product is `size`.

    A group of 144 on racks of 72 is 72 in a rack times 2 racks. Groups that do not divide a domain are spread evenly over
    as many domains as they need.

    >>> from steptime.hardware.system import Domain, Link
    >>> rack = Domain(name="rack", kind="scale-up", size=72, link=Link(bandwidth=9e11))
    >>> hall = Domain(name="hall", kind="scale-out", size=float("inf"), link=Link(bandwidth=5e10))
    >>> [tuple(map(float, members_by_level((rack, hall), n))) for n in (8, 72, 144)]
    [(8.0, 1.0), (72.0, 1.0), (72.0, 2.0)]
    """
    members = []
    outer = np.asarray(size, dtype=np.float64)  # groups still apart once the levels below have met
    for domain in domains[:-1]:
        outer_members = np.minimum(np.ceil(size * stride / domain.size - 1e-9), outer)
        members.append(outer / outer_members)
        outer = outer_members
    return (*members, outer)


def messages(link: Link, members: Number) -> Number:
    """Messages in a row that one phase of a collective needs: one across a switch or mesh, a half ring on a torus."""
    if link.topology == "ring":
        return np.maximum(members - 1, 0)
    if link.topology == "torus":
        return np.where(members > 1, np.ceil(np.cbrt(members) * 1.5), 0)  # half of each of three axes
    return (members > 1) * 1.0


def all_reduce(
    system: System, size: Number, bytes_: Number, stride: Number = 1, *, overhead: Number = 0.0, efficiency: Number = 1.0
) -> Traffic:
    r"""Sum `bytes_` [B per chip] over a group and give every member the sum, in the faster of two ways.

    In two phases, reduce-scatter and all-gather, at each level: $2 (g-1)/g \cdot n / W$ on a level of $g$ members, and $1/g$ of
    the data on the next. In one, behind a switch: each member reads what the $g - 1$ others hold, $(g-1) n / W$, which saves a
    latency and so wins for the short messages of decoding. `size` [chips], `bytes_` [B]; [s]. overhead [s] of each phase and
    the share of bandwidth reached (`efficiency`) decide between them and are the caller's to add.
    """
    two = _reduce_and_gather(system, size, bytes_, stride)
    link = system.domains[0].link
    members, *beyond = members_by_level(system.domains, size, stride)
    if link.topology in ("ring", "torus"):
        return two
    moved = (members - 1) * bytes_ / link.bandwidth
    traffic = Traffic((moved, *(0.0 for _ in beyond)), (members > 1) * link.latency, (members > 1) * 1.0)
    within = np.asarray(beyond[0] <= 1) if beyond else np.asarray(True)
    saved = (
        two.latency - traffic.latency + (two.calls - traffic.calls) * overhead - (traffic.busy[0] - two.busy[0]) / efficiency
    )
    direct = within & (saved > 0)
    if not np.any(direct):
        return two
    busy = tuple(np.where(direct, a, b) for a, b in zip(traffic.busy, two.busy, strict=True))
    return Traffic(busy, np.where(direct, traffic.latency, two.latency), np.where(direct, traffic.calls, two.calls))


def _reduce_and_gather(system: System, size: Number, bytes_: Number, stride: Number) -> Traffic:
    """An all-reduce in two phases at each level: twice what either phase alone takes."""
    busy: list[Number] = []
    latency: Number = 0.0
    calls: Number = 0.0
    for domain, members in zip(system.domains, members_by_level(system.domains, size, stride), strict=True):
        if not np.any(members > 1):
            busy.append(0.0)
            continue
        shard_bytes = bytes_ / members
        busy.append((bytes_ - shard_bytes) * (2 / domain.link.bandwidth))
        latency = latency + 2 * messages(domain.link, members) * domain.link.latency
        calls = calls + 2.0 * (members > 1)
        bytes_ = shard_bytes
    return Traffic(tuple(busy), latency, calls)


def all_gather(system: System, size: Number, bytes_: Number, stride: Number = 1) -> Traffic:
    r"""Give every member of a group the `bytes_` [B] that they hold together: half an all-reduce. Also a reduce-scatter."""
    return _reduce_and_gather(system, size, bytes_, stride) * 0.5


def exchange(
    system: System,
    size: Number,
    tokens: Number,
    token_bytes: Number,
    *,
    experts: int,
    active: int,
    expert_groups: int = 1,
    active_groups: int = 1,
    stride: Number = 1,
) -> Traffic:
    r"""Send each token to the chips that hold its experts, once per chip and once per outer domain (dispatch, or combine).

    size: chips over which the experts are spread; tokens [per chip]; token_bytes [B]; experts and active as routed, out of
    `active_groups` of `expert_groups` groups where routing is limited to some. A token crosses each outer link once for every
    domain that it needs and is copied inside it, as DeepEP does, so a level carries the distinct groups hit at that level.
    Source: lecture, section 7; DeepSeek-V3, arXiv 2412.19437, section 3.2.2.
    """
    members = members_by_level(system.domains, size, stride)
    busy: list[Number] = []
    latency: Number = 0.0
    groups = np.asarray(size, dtype=np.float64)  # groups to tell apart at this level: chips, then nodes, then pods
    for domain, local_members in zip(system.domains, members, strict=True):
        if not np.any(local_members > 1):
            busy.append(0.0)
            continue
        limited = expert_groups > active_groups
        hit: Number = (
            nodes_hit(experts, active, expert_groups, active_groups, groups)
            if limited
            else distinct_hit(experts, active, groups)
        )
        away = np.where(local_members > 1, (groups - 1) / groups, 0.0)
        busy.append(tokens * (hit * away * token_bytes / domain.link.bandwidth))
        latency = latency + messages(domain.link, local_members) * domain.link.latency
        groups = groups / local_members
    return Traffic(tuple(busy), latency, (np.asarray(size) > 1) * 1.0)


def point_to_point(system: System, size: Number, bytes_: Number, stride: Number) -> Traffic:
    """Pass `bytes_` [B per chip] along a loop of `size` stages, `stride` chips apart: each hop at the level it crosses.

    The last hop brings only token ids back to the first stage: a latency without bytes.
    """
    members = members_by_level(system.domains, size, stride)
    busy: list[Number] = []
    latency: Number = 0.0
    outer = np.asarray(size, dtype=np.float64)
    looped = np.where(outer > 1, 1.0, 0.0)
    for domain, local_members in zip(system.domains, members, strict=True):
        if not np.any(local_members > 1):
            busy.append(0.0)
            continue
        hops = outer - outer / local_members
        outer = outer / local_members
        back = looped * np.where((local_members > 1) & (outer <= 1), 1.0, 0.0)
        busy.append(hops * bytes_ / domain.link.bandwidth)
        latency = latency + (hops + back) * domain.link.latency
    return Traffic(tuple(busy), latency, np.asarray(size, dtype=np.float64) * looped)
