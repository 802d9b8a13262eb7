"""Collectives by hand, on a node of eight chips at 100 GB/s (1 us a message) and nodes at 10 GB/s (5 us)."""

from __future__ import annotations

from dataclasses import replace
from math import comb

import numpy as np
import pytest

from steptime.hardware.system import Domain, Link
from steptime.physics.network_time import (
    Traffic,
    all_gather,
    all_reduce,
    all_to_all,
    exchange,
    members_by_level,
    messages,
    point_to_point,
    ring,
    ring_latency,
)
from tests.conftest import each, machine

UP, OUT = 1e11, 1e10
NODES = machine(size=8, up=UP, out=OUT, latency=1e-6, out_latency=5e-6)
MB = 1e6


def pods():
    """Nodes of eight in pods of 32, 20 GB/s and 3 us between the nodes of a pod."""
    pod = Domain(name="pod", kind="pod", size=32, link=Link(bandwidth=2e10, latency=3e-6))
    return replace(NODES, domains=(NODES.domains[0], pod, NODES.domains[1]))


def same(found: Traffic, busy, latency, calls) -> None:
    assert [float(b) for b in found.busy] == pytest.approx(list(busy), abs=1e-18)
    assert found.latency == pytest.approx(latency, abs=1e-18)
    assert found.calls == calls


def test_traffic_adds_and_multiplies():
    a, b = Traffic((1.0, 2.0), 4.0, 8.0), Traffic((10.0, 20.0), 40.0, 80.0)
    same(a + b, (11, 22), 44, 88)
    same(a * 3, (3, 6), 12, 24)
    same(a.resized(3), (3, 6), 4, 8)
    assert Traffic((1.0,), 0.0).calls == 1


@each(
    "size, stride, members",
    [
        (1, 1, (1, 1)),
        (8, 1, (8, 1)),
        (16, 1, (8, 2)),
        (12, 1, (6, 2)),  # evenly over the two nodes that it needs
        (4, 4, (2, 2)),  # chips 0, 4 | 8, 12
        (2, 8, (1, 2)),
        (3, 8, (1, 3)),
        (4, 16, (1, 4)),  # no more nodes than members
        (8, 2, (4, 2)),
        (2, 4, (2, 1)),
    ],
)
def test_members_of_a_group_on_two_levels(size, stride, members):
    assert members_by_level(NODES.domains, size, stride) == members


@each("size, stride, members", [(64, 1, (8, 4, 2)), (16, 1, (8, 2, 1)), (4, 16, (1, 2, 2)), (8, 32, (1, 1, 8))])
def test_members_of_a_group_on_three_levels(size, stride, members):
    assert members_by_level(pods().domains, size, stride) == members


def test_a_group_that_fills_its_domain_does_not_leave_it_for_a_rounding():
    """0.1 x 3 is a little more than 0.3."""
    assert members_by_level(machine(size=0.3).domains, 3, 0.1) == (3, 1)


@each(
    "topology, counts",
    [
        ("switch", {1: 0, 2: 1, 8: 1, 64: 1}),
        ("ring", {0: 0, 1: 0, 2: 1, 8: 7}),
        ("torus", {1: 0, 2: 2, 8: 3, 27: 5, 64: 6}),  # 1.5 x the cube root: 1.9, 3, 4.5, 6
    ],
)
def test_messages_in_a_row(topology, counts):
    for members, count in counts.items():
        assert messages(Link(bandwidth=1e9, topology=topology), members) == count


@each(
    "bytes_, options, busy, calls",
    [
        (MB, {}, 15e-6, 2),  # 2 x 3/4 of 1 MB; in one phase it were 30 us
        (MB / 10, {}, 3e-6, 1),  # 3 x 0.1 MB: 3 us for 1.5, to save a latency of 2 us
        (MB / 5, {}, 3e-6, 2),  # 6 us for 3 saves 2
        (MB / 5, {"overhead": 1.5e-6}, 6e-6, 1),  # and 1.5 us of overhead: 3.5
        (MB / 5, {"overhead": 0.9e-6}, 3e-6, 2),
        (MB / 10, {"efficiency": 0.5}, 1.5e-6, 2),  # 1.5 us more at half the bandwidth are 3
    ],
)
def test_all_reduce_of_four_chips_behind_a_switch(bytes_, options, busy, calls):
    """A latency of 2 us: two phases take two of them."""
    slow = machine(size=8, up=UP, out=OUT, latency=2e-6)
    same(all_reduce(slow, 4, bytes_, **options), (busy, 0), calls * 2e-6, calls)


def test_a_tie_goes_to_two_phases_and_one_member_sends_nothing():
    """Two chips: both ways move the same bytes, and one phase saves a latency, where there is one."""
    free = machine(size=8, up=UP, out=OUT)
    same(all_reduce(free, 2, MB), (10e-6, 0), 0, 2)
    same(all_reduce(NODES, 2, MB), (10e-6, 0), 1e-6, 1)
    same(all_reduce(NODES, 1, MB), (0, 0), 0, 0)


def test_all_reduce_over_two_levels_hands_on_what_is_left():
    """16 chips: 2 x 7/8 MB inside, then 2 x 1/2 of the eighth that is left between two nodes; latencies of both, twice."""
    same(all_reduce(NODES, 16, MB), (17.5e-6, 12.5e-6), 12e-6, 4)
    same(all_reduce(NODES, 16, 1.0), (17.5e-12, 12.5e-12), 12e-6, 4)  # however short: no one phase beyond a switch
    same(all_reduce(NODES, 12, MB), (2 * 5 / 6 * 1e-5, 1 / 6 * 1e-4), 12e-6, 4)  # six in each


def test_all_reduce_of_strided_groups_crosses_nodes_sooner():
    same(all_reduce(NODES, 2, MB, stride=8), (0, 1e-4), 10e-6, 2)
    same(all_reduce(NODES, 4, MB, stride=4), (10e-6, 50e-6), 12e-6, 4)
    same(all_reduce(NODES, 2, MB, stride=4), (10e-6, 0), 1e-6, 1)


def test_all_reduce_over_three_levels():
    """1 MB: 2 x 7/8 at 100 GB/s; 1/8 MB: 2 x 3/4 at 20 GB/s; 1/32 MB: 2 x 1/2 at 10 GB/s."""
    same(all_reduce(pods(), 64, MB), (17.5e-6, 9.375e-6, 3.125e-6), 18e-6, 6)


def test_a_switch_that_adds_up_wins_for_long_messages():
    """100 MB among 8 chips: (1 + 1/8) ms and 65 us instead of 2 x 7/8 ms. Not for 10 MB, for two chips, nor between nodes."""
    link = replace(NODES.domains[0].link, sums=True)
    summing = replace(NODES, domains=(replace(NODES.domains[0], link=link), *NODES.domains[1:]))
    same(all_reduce(summing, 8, 100 * MB), (1.125e-3, 0), 65e-6, 1)
    for size, stride, bytes_ in ((8, 1, 10 * MB), (2, 1, 1e9), (16, 1, 1e9), (4, 8, 1e9), (1, 1, 1e9)):
        plain = all_reduce(NODES, size, bytes_, stride)
        same(all_reduce(summing, size, bytes_, stride), map(float, plain.busy), plain.latency, plain.calls)
    both = all_reduce(summing, 8, np.array([MB, 100 * MB]), efficiency=0.5)
    assert list(both.busy[0]) == pytest.approx([17.5e-6, 1.125e-3])


def test_all_reduce_on_a_machine_of_one_domain():
    alone = replace(NODES, domains=NODES.domains[:1])
    same(all_reduce(alone, 4, 1000.0), (3e-8,), 1e-6, 1)
    same(all_reduce(alone, 4, MB), (15e-6,), 2e-6, 2)


@pytest.mark.parametrize(("topology", "rounds"), [("ring", 3), ("torus", 3)])
def test_rings_and_tori_reduce_in_two_phases(topology, rounds):
    """Four chips: three hops of a ring; 1.5 x the cube root of 4 is 2.4, so three of a torus."""
    same(all_reduce(machine(size=8, up=UP, latency=1e-6, topology=topology), 4, 1000.0), (1.5e-8, 0), 2 * rounds * 1e-6, 2)


def test_groups_of_many_sizes_at_once():
    sizes = np.array([1, 2, 4, 16])
    together = all_reduce(NODES, sizes, np.full(4, 1e5))
    for i, size in enumerate(sizes):
        one = all_reduce(NODES, int(size), 1e5)
        assert [b[i] for b in together.busy] == pytest.approx([float(b) for b in one.busy])
        assert together.latency[i] == pytest.approx(float(one.latency))
        assert together.calls[i] == one.calls


def test_all_gather_is_half_an_all_reduce_in_two_phases():
    same(all_gather(NODES, 4, MB), (7.5e-6, 0), 1e-6, 1)
    same(all_gather(NODES, 16, MB), (8.75e-6, 6.25e-6), 6e-6, 2)
    same(all_gather(NODES, 4, MB, stride=4), (5e-6, 25e-6), 6e-6, 2)


def test_an_exchange_inside_a_node():
    """100 tokens of 1 kB to one of four experts on four chips: three in four leave their chip."""
    same(exchange(NODES, 4, 100, 1000, experts=4, active=1), (75_000 / UP, 0), 1e-6, 1)
    same(exchange(NODES, 1, 100, 1000, experts=4, active=1), (0, 0), 0, 0)


def test_an_exchange_between_nodes_sends_each_token_once_a_node():
    """16 experts on 16 chips, two active: two chips; 2 x (1 - C(8,2) / C(16,2)) = 2 x (1 - 28/120) = 23/15 of two nodes."""
    up, out = 2 * 15 / 16 * 1e5 / UP, 23 / 15 * 1 / 2 * 1e5 / OUT
    same(exchange(NODES, 16, 100, 1000, experts=16, active=2), (up, out), 6e-6, 1)


def test_node_limited_routing():
    """DeepSeek-V3: 8 of 256 experts, out of 4 of 8 groups. On eight nodes, one a group, a group is missed by all eight with
    C(96, 8) / C(128, 8); on 18 nodes parts of groups lie on more of them (Monte Carlo: 5.778)."""
    given = {"experts": 256, "active": 8}
    limited = exchange(NODES, 64, 100, 1000, expert_groups=8, active_groups=4, **given)
    hit = 4 * (1 - comb(96, 8) / comb(128, 8))
    assert hit == pytest.approx(3.63, abs=0.005)
    assert limited.busy[1] == pytest.approx(hit * 7 / 8 * 1e5 / OUT)
    assert exchange(NODES, 64, 100, 1000, **given).busy[1] == pytest.approx(5.29 * 7 / 8 * 1e5 / OUT, rel=1e-3)
    chips = 32 * (1 - comb(124, 8) / comb(128, 8))  # of the 32 that hold the chosen groups, four experts each
    assert limited.busy[0] == pytest.approx(chips * 63 / 64 * 1e5 / UP)
    wide = exchange(NODES, 144, 100, 1000, expert_groups=8, active_groups=4, **given)
    assert wide.busy[1] == pytest.approx(5.778 * 17 / 18 * 1e5 / OUT, rel=1e-3)


def test_an_exchange_of_strided_groups():
    """Four groups of experts, four chips apart: two nodes; of four experts one is active."""
    same(exchange(NODES, 4, 100, 1000, experts=4, active=1, stride=4), (75_000 / UP, 50_000 / OUT), 6e-6, 1)
    same(exchange(NODES, 2, 100, 1000, experts=4, active=1, stride=8), (0, 50_000 / OUT), 5e-6, 1)


def test_exchanges_of_many_sizes_at_once():
    sizes = np.array([1, 4, 16])
    together = exchange(NODES, sizes, 100, 1000, experts=16, active=2)
    for i, size in enumerate(sizes):
        one = exchange(NODES, int(size), 100, 1000, experts=16, active=2)
        assert [np.broadcast_to(b, 3)[i] for b in together.busy] == pytest.approx([float(b) for b in one.busy])
        assert together.latency[i] == pytest.approx(float(one.latency))
        assert together.calls[i] == one.calls


@each(
    "size, stride, busy, latency",
    [
        (4, 2, (3e-5, 0), 4e-6),  # chips 0, 2, 4, 6 of a node: three hops with data, one with token ids
        (4, 8, (0, 3e-4), 20e-6),  # one stage a node
        (4, 4, (2e-5, 1e-4), 12e-6),  # 0 to 4 and 8 to 12 inside, 4 to 8 between, and back to 0 between
        (2, 1, (1e-5, 0), 2e-6),
        (2, 8, (0, 1e-4), 10e-6),
    ],
)
def test_a_loop_of_stages(size, stride, busy, latency):
    same(point_to_point(NODES, size, MB, stride), busy, latency, size)


def test_the_last_stage_of_a_loop_sends_bytes_back_where_it_has_some():
    """Stages of four chips: 8 to 12 and 0 to 4 inside a node, 4 to 8 and the way back between nodes."""
    same(point_to_point(NODES, 4, MB, 4, returned=MB), (2e-5, 2e-4), 12e-6, 4)


def test_one_stage_passes_nothing_on():
    same(point_to_point(NODES, 1, MB, 8), (0, 0), 0, 0)
    together = point_to_point(NODES, np.array([1, 2, 4]), MB, 4)
    assert together.calls.tolist() == [0, 2, 4]
    assert together.latency == pytest.approx([0, 2e-6, 12e-6])
    assert together.busy[1] == pytest.approx([0, 0, 1e-4])
    assert together.busy[0] == pytest.approx([0, 1e-5, 2e-5])


def test_a_loop_over_three_levels():
    """Eight stages of eight chips: one a node, four a pod: six hops inside pods, one between, and the way back between."""
    same(point_to_point(pods(), 8, MB, 8), (0, 6 * MB / 2e10, 1 * MB / OUT), 6 * 3e-6 + 2 * 5e-6, 8)


def test_a_ring_over_two_nodes_is_as_slow_as_the_link_between_them():
    """16 of 1 MB each: 15 steps of 1 MB over the one link of a border; inside a node, 7 steps of its links."""
    same(ring(NODES, 16, MB), (0, 15 * MB / OUT), 15 * 5e-6, 1)
    same(ring(NODES, 8, MB), (7 * MB / UP, 0), 7 * 1e-6, 1)
    same(ring(NODES, 4, MB, 8), (0, 3 * MB / OUT), 3 * 5e-6, 1)
    same(ring(NODES, 1, MB), (0, 0), 0, 0)
    same(ring(pods(), 16, MB), (0, 15 * MB / 2e10, 0), 15 * 3e-6, 1)
    # Within a domain, a ring moves as many bytes as an all-gather.
    assert ring(NODES, 8, MB).busy == pytest.approx(all_gather(NODES, 8, 8 * MB).busy)
    assert [float(b) for b in ring(NODES, np.array([8.0, 16.0]), MB).busy[1]] == pytest.approx([0, 15 * MB / OUT])


def test_an_all_to_all_sends_each_member_its_part():
    """16 of two nodes: 7 of 16 parts to the own node, 8 of 16 to the other one."""
    same(all_to_all(NODES, 16, MB), (7 / 16 * MB / UP, 8 / 16 * MB / OUT), 1e-6 + 5e-6, 1)
    same(all_to_all(NODES, 4, MB, 8), (0, 3 / 4 * MB / OUT), 5e-6, 1)
    same(all_to_all(NODES, 1, MB), (0, 0), 0, 0)
    assert sum(all_to_all(pods(), 64, MB).busy) == pytest.approx(MB / 64 * (7 / UP + 24 / 2e10 + 32 / OUT))


def test_a_ring_of_nccl_takes_a_step_for_each_further_chip():
    """Of 2,047 steps, 255 cross nodes of eight: 255 x 4 us + 1,792 x 1.9 us. A torus of 64 takes half of each axis."""
    assert ring_latency(NODES, 8) == pytest.approx(7 * 1.9e-6)
    assert ring_latency(NODES, 2048) == pytest.approx(255 * 4e-6 + 1792 * 1.9e-6)
    # Every eighth chip: all steps cross nodes.
    assert ring_latency(NODES, 16, 8) == pytest.approx(15 * 4e-6)
    inner, outer = NODES.domains
    torus = replace(inner, size=64, link=replace(inner.link, topology="torus"))
    assert ring_latency(replace(NODES, domains=(torus, outer)), 64) == pytest.approx(6 * 1e-6)
