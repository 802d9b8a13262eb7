"""Replicas on hosts: as few as hold them, none on chips of another."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import pytest

from steptime.launch.host_placement import place_replicas, racks
from steptime.physics.layout import equal_parts
from tests.conftest import every
from tests.launch.conftest import pool
from tests.launch.draws import drawn, plans


def check(made):
    """Hold a plan's replicas to what any placement must keep, and return the hosts that they take."""
    replicas, host = place_replicas(made), made.served.host_chips
    taken = [(h, chip) for r in replicas for h, own in zip(r.hosts, r.devices, strict=True) for chip in own]
    assert len(taken) == len(set(taken)) == sum(p.chips for p in made.pools)
    assert all(0 <= chip < host for _, chip in taken)
    slots = [(h, r.slot) for r in replicas for h in r.hosts]
    assert len(slots) == len(set(slots))
    for p in made.pools:
        own = [r for r in replicas if r.role == p.role]
        assert [r.number for r in own] == list(range(int(p.layout.replicas)))
        assert {(r.nodes, r.chips) for r in own} == {equal_parts(int(p.layout.chips), host)}
        assert all(list(r.hosts) == sorted(set(r.hosts)) and len(r.devices) == r.nodes for r in own)
        assert all(len(devices) == r.chips for r in own for devices in r.devices)
    return {h for h, _ in taken}


@drawn
def test_no_chip_of_a_host_is_taken_twice_and_no_host_is_overfull(count):
    for made, *_ in plans(count):
        check(made)


# --- as few hosts as there can be ---------------------------------------------------------------------------------------


@cache
def found_room(free: tuple[int, ...], replicas: tuple[tuple[int, int], ...]) -> bool:
    """Whether replicas (of so many hosts, of so many chips on each) find room, by trying every choice of hosts for each."""
    if not replicas:
        return True
    nodes, each = replicas[0]
    seen = set()
    for hosts in combinations([h for h, chips in enumerate(free) if chips >= each], nodes):
        left = tuple(sorted(chips - each * (h in hosts) for h, chips in enumerate(free)))
        if left not in seen:
            seen.add(left)
            if found_room(left, replicas[1:]):
                return True
    return False


def fewest(host: int, replicas: list[tuple[int, int]]) -> int:
    return next(n for n in range(1, 99) if found_room((host,) * n, tuple(sorted(replicas, reverse=True))))


@pytest.mark.parametrize("host", every(2, [4, 3, 8]))
def test_no_choice_of_hosts_takes_fewer(build, host):
    """Every pair of up to three replicas of one size and two of another, of up to ten chips each."""
    tried = 0
    for first in range(1, 11):
        for second in range(first, 11):
            for numbers in ((1, 2), (3, 1), (3, 2)):
                nodes = (equal_parts(first, host), equal_parts(second, host))
                if sum(n * parts for n, (parts, _) in zip(numbers, nodes, strict=True)) > 16:
                    continue  # too many choices to try them all
                pools = [
                    pool(role, tp=size, replicas=n)
                    for role, size, n in zip(("prefill", "decode"), (first, second), numbers, strict=True)
                ]
                hosts = check(build(*pools, host_chips=host, domain_chips=host))
                assert hosts == set(
                    range(fewest(host, [parts for n, parts in zip(numbers, nodes, strict=True) for _ in range(n)]))
                )
                tried += 1
    assert tried > 100


def test_five_sevens_beside_nine_whole_hosts_are_eighteen(build):
    """Of a rack of hosts of four: 36 chips on nine, 35 single chips on nine others, where neighbours took 14."""
    made = build(pool("prefill", tp=7, replicas=5), pool("decode", dp=36, ep=36), host_chips=4, domain_chips=72)
    assert check(made) == set(range(18))
    assert fewest(4, [(7, 1)] * 5) == 9
    assert {r.is_symmetric for r in place_replicas(made)} == {True, False}


def test_threes_share_a_host_where_twos_then_fill_the_other(build):
    """Two hosts of eight hold five twos beside two threes if the threes share a host, and four if they do not."""
    made = build(pool("prefill", tp=2, replicas=5), pool("decode", tp=3, replicas=2))
    assert check(made) == {0, 1}


# --- where they lie -----------------------------------------------------------------------------------------------------


def test_small_replicas_share_what_larger_ones_leave(build):
    """Two chips and six are one host of eight: the six lie first."""
    first, second = place_replicas(build(pool("prefill", tp=2), pool("decode", tp=6)))
    assert (first.hosts, first.devices, first.slot) == ((0,), ((6, 7),), 1)
    assert (second.hosts, second.devices, second.slot) == ((0,), (tuple(range(6)),), 0)


def test_replicas_of_several_hosts_take_equal_parts(build):
    """Twelve chips on hosts of eight: six on each of two; two chips are left on every host for smaller replicas."""
    found = place_replicas(build(pool("prefill", tp=2, replicas=2), pool("decode", dp=12, ep=12, replicas=2)))
    assert [(r.role, r.hosts, r.devices[0][0]) for r in found] == [
        ("prefill", (0,), 6),
        ("prefill", (1,), 6),
        ("decode", (0, 1), 0),
        ("decode", (2, 3), 0),
    ]


@pytest.mark.parametrize(("host", "nodes"), [(8, 2), (4, 4), (72, 1)])
def test_hosts_are_as_large_as_the_machine_tells(build, host, nodes):
    (only,) = place_replicas(build(pool(tp=16), host_chips=host))
    assert only.nodes == nodes


# --- racks --------------------------------------------------------------------------------------------------------------


def test_no_replica_leaves_a_rack_that_holds_it(build):
    """Three of 32 chips on racks of 72 in hosts of four: two in the first rack, one in the next, as with twos beside them."""
    made = build(pool("prefill", tp=2, replicas=24), pool("decode", dp=32, ep=32, replicas=3), host_chips=4, domain_chips=72)
    assert check(made) == set(range(18)) | set(range(18, 36))
    assert all(len({h // 18 for h in r.hosts}) == 1 for r in place_replicas(made))
    assert racks(made, place_replicas(made)) == (tuple(range(18)), tuple(range(18, 36)))


def test_replicas_larger_than_a_rack_follow_each_other(build):
    made = build(pool(dp=96, ep=96, replicas=2), host_chips=4, domain_chips=72)
    assert [r.hosts for r in place_replicas(made)] == [tuple(range(24)), tuple(range(24, 48))]
    assert racks(made, place_replicas(made)) == ()


def test_parts_that_take_more_hosts_than_a_rack_has_are_told_of_no_rack(build):
    """Thirty-seven chips part equally into single chips of 37 hosts, more than the 18 of a rack."""
    made = build(pool(tp=37, replicas=3), host_chips=4, domain_chips=72)
    assert len(check(made)) == 37
    assert racks(made, place_replicas(made)) == ()
