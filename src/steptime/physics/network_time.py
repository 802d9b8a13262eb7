r"""Network time: the cost of moving data between chips, on nested domains.

The alpha-beta model: a message of $n$ bytes takes $\alpha + n/W$. A group of chips is packed: its members fill the inner
domain first, and then further outer domains. Collectives are hierarchical: each level moves the data that the levels below
cannot finish. Every function returns one `Traffic`: busy seconds of each link level and seconds of latency. The caller can
overlap them or add them.

References:
    Hockney 1994; Thakur, Rabenseifner and Gropp 2005.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.blackboard.expert_activation import distinct_hit, nodes_hit
from steptime.hardware.system import Domain, Link, System
from steptime.number_checks import Array, Number, has_nonzero


@dataclass(frozen=True, slots=True)
class Traffic:
    """Busy seconds of each link level, latency [s], and calls of a collective.

    busy: Seconds per level, inner to outer.
    calls: Number of times that all members wait for all members.
    """

    busy: tuple[Number, ...]
    latency: Number
    calls: Number = 1.0

    def __add__(self, addend: Traffic) -> Traffic:
        busy = tuple(a + b for a, b in zip(self.busy, addend.busy, strict=True))
        return Traffic(busy, self.latency + addend.latency, self.calls + addend.calls)

    def __mul__(self, times: Number) -> Traffic:
        return Traffic(tuple(b * times for b in self.busy), self.latency * times, self.calls * times)

    def resized(self, factor: Number) -> Traffic:
        """Return the same collective with `factor` times the bytes.

        Args:
            factor: A factor, or an array.

        Returns:
            The traffic; latency and calls do not change.
        """
        return Traffic(tuple(b * factor for b in self.busy), self.latency, self.calls)

    def called(self, share: Number) -> Traffic:
        """Return the same bytes in a share of the calls.

        Args:
            share: Share of the steps with this collective, or an array.

        Returns:
            The traffic; busy seconds do not change.
        """
        return Traffic(self.busy, self.latency * share, self.calls * share)


def members_by_level(domains: tuple[Domain, ...], size: Number, stride: Number = 1) -> tuple[Number, ...]:
    """Return the members of a packed group that meet at each level.

    A group of 144 on racks of 72 has 72 members in a rack, times 2 racks. A group that does not divide a domain is spread
    evenly over the minimum number of domains.

    Args:
        domains: Domains, inner to outer.
        size: Members of the group.
        stride: The group has one member every `stride` chips.

    Returns:
        Members per level, inner to outer; their product is `size`.

    >>> from steptime.hardware.system import Domain, Link
    >>> rack = Domain(name="rack", kind="scale-up", size=72, link=Link(bandwidth=9e11))
    >>> hall = Domain(name="hall", kind="scale-out", size=float("inf"), link=Link(bandwidth=5e10))
    >>> [tuple(map(float, members_by_level((rack, hall), n))) for n in (8, 72, 144)]
    [(8.0, 1.0), (72.0, 1.0), (72.0, 2.0)]
    """
    members = []
    # Parts of the group that are still separate above the levels so far.
    outer = np.asarray(size, dtype=np.float64)
    for domain in domains[:-1]:
        outer_members = np.minimum(np.ceil(size * stride / domain.size - 1e-9), outer)
        members.append(outer / outer_members)
        outer = outer_members
    return (*members, outer)


def messages(link: Link, members: Number) -> Number:
    """Return the sequential messages of one phase of a collective.

    A switch or a mesh needs one, a ring one per further member, and a torus half of each of its three axes.

    Args:
        link: Link of the domain.
        members: Members at this level.

    Returns:
        Number of messages; 0 for one member.
    """
    if link.topology == "ring":
        return np.maximum(members - 1, 0)
    if link.topology == "torus":
        # Half of each of three axes.
        return np.where(members > 1, np.ceil(np.cbrt(members) * 1.5), 0)
    return (members > 1) * 1.0


# Fixed time of an all-reduce that the switch adds up: NCCL takes 61 to 90 us beyond the transfer of 17 to 134 MB among 8 H100
# or H200, and the transfer has the share of bandwidth of other collectives (0.69 of 450 GB/s). Timings of AIConfigurator
# (github.com/ai-dynamo/aiconfigurator, Apache-2.0). On B200 the chips' own sums are as fast up to 134 MB.
SUM_SECONDS = 65e-6


def all_reduce(
    system: System, size: Number, bytes_: Number, stride: Number = 1, *, overhead: Number = 0.0, efficiency: Number = 1.0
) -> Traffic:
    r"""Sum `bytes_` over a group and give every member the sum, by the faster method.

    Two phases, reduce-scatter and all-gather, at each level: $2 (g-1)/g \cdot n / W$ on a level of $g$ members, and $1/g$
    of the data on the next level. One phase, behind a switch: each member reads the data of the $g - 1$ others in $(g-1) n
    / W$. This saves one latency and is faster for the short messages of decode. A switch that adds up (`Link.sums`): each
    member sends its data once and receives $1/g$ of the sums twice, in $(1 + 1/g) n / W$; faster for long prompts.

    Args:
        system: The system.
        size: Chips of the group.
        bytes_: Bytes per chip.
        stride: The group has one member every `stride` chips.
        overhead: Seconds of each phase. It is used for the choice only; the caller adds it.
        efficiency: Share of link bandwidth. It is used for the choice only; the caller divides by it.

    Returns:
        Traffic in seconds at full bandwidth.
    """
    members, *beyond = by_level = members_by_level(system.domains, size, stride)
    two = _reduce_and_gather(system, by_level, bytes_)
    link = system.domains[0].link
    if link.topology in ("ring", "torus"):
        return two

    # One phase pays off where the saved latency and overhead exceed the additional transfer time.
    moved = (members - 1) * bytes_ / link.bandwidth
    traffic = Traffic((moved, *(0.0 for _ in beyond)), link.latency, 1.0)
    within = np.asarray(beyond[0] <= 1) if beyond else np.asarray(True)
    saved = (
        two.latency - traffic.latency + (two.calls - traffic.calls) * overhead - (traffic.busy[0] - two.busy[0]) / efficiency
    )
    fastest = choose(traffic, two, within & (saved > 0))
    if not link.sums:
        return fastest
    moved = (1 + 1 / members) * bytes_ / link.bandwidth
    summed = Traffic((moved, *(0.0 for _ in beyond)), SUM_SECONDS, 1.0)
    saved = (fastest.busy[0] - moved) / efficiency + fastest.latency - SUM_SECONDS + (fastest.calls - summed.calls) * overhead
    return choose(summed, fastest, within & (members > 2) & (saved > 0))


def choose(first: Traffic, second: Traffic, is_first: Number) -> Traffic:
    """Return the first traffic where a condition holds, and the second elsewhere.

    Args:
        first: A traffic.
        second: A traffic over the same levels.
        is_first: A condition, or an array.

    Returns:
        The traffic.
    """
    if not has_nonzero(is_first):
        return second
    busy = tuple(np.where(is_first, a, b) for a, b in zip(first.busy, second.busy, strict=True))
    return Traffic(busy, np.where(is_first, first.latency, second.latency), np.where(is_first, first.calls, second.calls))


def _reduce_and_gather(system: System, by_level: tuple[Number, ...], bytes_: Number) -> Traffic:
    """Return an all-reduce in two phases at each level: twice the time of one phase."""
    busy: list[Number] = []
    latency: Number = 0.0
    calls: Number = 0.0
    for domain, members in zip(system.domains, by_level, strict=True):
        if not has_nonzero(members > 1):
            busy.append(0.0)
            continue
        shard_bytes = bytes_ / members
        busy.append((bytes_ - shard_bytes) * (2 / domain.link.bandwidth))
        latency = latency + 2 * messages(domain.link, members) * domain.link.latency
        calls = calls + 2.0 * (members > 1)
        bytes_ = shard_bytes
    return Traffic(tuple(busy), latency, calls)


def all_gather(system: System, size: Number, bytes_: Number, stride: Number = 1) -> Traffic:
    """Return the traffic of an all-gather, or of a reduce-scatter: half an all-reduce.

    Args:
        system: The system.
        size: Chips of the group.
        bytes_: Bytes that every member has at the end.
        stride: The group has one member every `stride` chips.

    Returns:
        Traffic in seconds at full bandwidth.
    """
    return _reduce_and_gather(system, members_by_level(system.domains, size, stride), bytes_) * 0.5


# One step of a ring of NCCL within a node and between nodes. NCCL sends as its own cost model finds it fastest: the layers of a
# model among many chips by LL128, whose `hwLatencies` these are (ring, NVLink and network;
# https://github.com/NVIDIA/nccl/blob/master/src/graph/tuning.cc).
RING_STEP_SECONDS = (1.9e-6, 4e-6)


def ring_latency(system: System, size: Number, stride: Number = 1) -> Number:
    """Return the fixed time of an all-gather or a reduce-scatter around a ring, as NCCL does both.

    Of its `size - 1` steps, one fewer than the nodes crosses them. On a ring or torus of chips it is the latency of the links.

    Args:
        system: The system.
        size: Chips of the group.
        stride: The group has one member every `stride` chips.

    Returns:
        Seconds.

    References:
        `nInterSteps` of https://github.com/NVIDIA/nccl/blob/master/src/graph/tuning.cc.
    """
    seconds: Number = 0.0
    parts: Number = 1.0
    levels = zip(system.domains, members_by_level(system.domains, size, stride), strict=True)
    for level, (domain, members) in reversed([*enumerate(levels)]):
        if domain.link.topology in ("ring", "torus"):
            seconds = seconds + messages(domain.link, members) * domain.link.latency
        else:
            seconds = seconds + (members - 1) * parts * RING_STEP_SECONDS[min(level, 1)]
        parts = parts * members
    return seconds


def ring(system: System, size: Number, bytes_: Number, stride: Number = 1) -> Traffic:
    """Pass the data of every member around a ring, so that every member sees the data of all others.

    Each of `size - 1` steps ends when the slowest link of the ring has passed the data of one member on. This is the link
    of the outermost level that the ring crosses: at the border of a domain one chip alone sends to the next domain.

    Args:
        system: The system.
        size: Members of the ring.
        bytes_: Bytes of each member.
        stride: The ring has one member every `stride` chips.

    Returns:
        Traffic in seconds at full bandwidth.

    References:
        `flash_attn_p2p_communicate` in https://github.com/NVIDIA/TransformerEngine/blob/main/transformer_engine/pytorch/
        attention/dot_product_attention/context_parallel.py.
    """
    steps = np.asarray(size, dtype=np.float64) - 1
    busy: list[Number] = []
    latency: Number = 0.0
    is_slowest: Array = np.asarray(steps > 0)
    for domain, members in zip(system.domains[::-1], members_by_level(system.domains, size, stride)[::-1], strict=True):
        crosses = is_slowest & (np.asarray(members) > 1)
        busy.insert(0, crosses * steps * bytes_ / domain.link.bandwidth)
        latency = latency + crosses * steps * domain.link.latency
        is_slowest = is_slowest & ~crosses
    return Traffic(tuple(busy), latency, (steps > 0) * 1.0)


def all_to_all(system: System, size: Number, bytes_: Number, stride: Number = 1) -> Traffic:
    """Send an equal part of the data of each member to every other member.

    Args:
        system: The system.
        size: Members of the group.
        bytes_: Bytes of each member, of which it keeps its own part.
        stride: The group has one member every `stride` chips.

    Returns:
        Traffic in seconds at full bandwidth.
    """
    busy: list[Number] = []
    latency: Number = 0.0
    # Members inside the domain of a level; those beyond the domain below are reached over the links of this level.
    inside: Number = 1.0
    for domain, members in zip(system.domains, members_by_level(system.domains, size, stride), strict=True):
        busy.append((members - 1) * inside / size * bytes_ / domain.link.bandwidth)
        latency = latency + messages(domain.link, members) * domain.link.latency
        inside = inside * members
    return Traffic(tuple(busy), latency, (np.asarray(size) > 1) * 1.0)


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
    """Send each token to the chips of its experts (dispatch), or back (combine).

    A token crosses each outer link once for every domain that it needs, and is copied inside the domain, as in DeepEP. So
    each level carries one copy per distinct group with an active expert at that level.

    Args:
        system: The system.
        size: Chips over which the experts are spread.
        tokens: Tokens per chip.
        token_bytes: Bytes per token.
        experts: Routed experts.
        active: Active experts per token.
        expert_groups: Groups of experts, for routing that is limited to some groups.
        active_groups: Groups per token.
        stride: The group has one member every `stride` chips.

    Returns:
        Traffic in seconds at full bandwidth.

    References:
        Lecture, section 7; DeepSeek-V3, arXiv 2412.19437, section 3.2.2.
    """
    members = members_by_level(system.domains, size, stride)
    busy: list[Number] = []
    latency: Number = 0.0
    # Separate destinations at this level: chips, then nodes, then pods.
    groups = np.asarray(size, dtype=np.float64)
    for domain, local_members in zip(system.domains, members, strict=True):
        if not has_nonzero(local_members > 1):
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


def point_to_point(system: System, size: Number, bytes_: Number, stride: Number, returned: Number = 0.0) -> Traffic:
    """Pass data along a loop of pipeline stages.

    Each hop uses the level that it crosses. The last hop leads back to the first stage. When a model decodes, it brings only
    token ids: a latency without bytes.

    Args:
        system: The system.
        size: Number of stages.
        bytes_: Bytes per chip.
        stride: Chips between neighbouring stages.
        returned: Bytes per chip of the last hop.

    Returns:
        Traffic in seconds at full bandwidth.
    """
    members = members_by_level(system.domains, size, stride)
    busy: list[Number] = []
    latency: Number = 0.0
    outer = np.asarray(size, dtype=np.float64)
    looped = np.where(outer > 1, 1.0, 0.0)
    for domain, local_members in zip(system.domains, members, strict=True):
        if not has_nonzero(local_members > 1):
            busy.append(0.0)
            continue
        hops = outer - outer / local_members
        outer = outer / local_members
        back = looped * np.where((local_members > 1) & (outer <= 1), 1.0, 0.0)
        busy.append((hops * bytes_ + back * returned) / domain.link.bandwidth)
        latency = latency + (hops + back) * domain.link.latency
    return Traffic(tuple(busy), latency, np.asarray(size, dtype=np.float64) * looped)
