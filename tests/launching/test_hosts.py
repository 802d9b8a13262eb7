"""Replicas on hosts: as few as hold them, none on chips of another."""

from __future__ import annotations

import pytest

from steptime.launching.hosts import placed
from tests.launching.conftest import pool
from tests.launching.draws import plans


def test_no_chip_of_a_host_is_taken_twice_and_no_host_is_overfull():
    for made, *_ in plans():
        taken = [(host, r.first + n) for r in placed(made) for host in r.hosts for n in range(r.chips)]
        assert len(taken) == len(set(taken)) == sum(p.chips for p in made.pools)
        assert all(chip < made.served.host_chips for _, chip in taken)
        slots = [(host, r.slot) for r in placed(made) for host in r.hosts]
        assert len(slots) == len(set(slots))


def test_small_replicas_share_what_larger_ones_leave(build):
    """Two chips and six are one host of eight: the six lie first."""
    first, second = placed(build(pool("prefill", tp=2), pool("decode", tp=6)))
    assert (first.hosts, first.first, first.chips, first.slot) == ((0,), 6, 2, 1)
    assert (second.hosts, second.first, second.chips, second.slot) == ((0,), 0, 6, 0)


def test_replicas_of_several_hosts_take_equal_parts(build):
    """Twelve chips on hosts of eight: six on each of two; two chips are left on every host for smaller replicas."""
    found = placed(build(pool("prefill", tp=2, replicas=2), pool("decode", dp=12, ep=12, replicas=2)))
    assert [(r.role, r.hosts, r.first) for r in found] == [
        ("prefill", (0,), 6),
        ("prefill", (1,), 6),
        ("decode", (0, 1), 0),
        ("decode", (2, 3), 0),
    ]


@pytest.mark.parametrize(("host", "nodes"), [(8, 2), (4, 4), (72, 1)])
def test_hosts_are_as_large_as_the_machine_tells(build, host, nodes):
    (only,) = placed(build(pool(tp=16), host_chips=host))
    assert only.nodes == nodes
