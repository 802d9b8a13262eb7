"""Launch commands of a prefill pool on one system and a decode pool on another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from steptime.launch.host_placement import place_replicas
from steptime.launch.launch_commands import ENGINES, launch_commands, launch_files
from steptime.launch.serve_args import serve_args_for_pool
from tests.launch.conftest import pool
from tests.launch.reading import commands


@pytest.fixture
def pair(build):
    """Return a plan whose prefill pool is on hosts of 4 chips with 50 TB of memory, and whose decode pool is on hosts of 8."""
    plan = build(pool("prefill", batch=4, chunk=0, tp=4, replicas=2), pool("decode", batch=20, chunk=0, dp=8, ep=8))
    other = replace(plan.served, host_chips=4, domain_chips=4, memory=5e13)
    return replace(plan, prefill_served=other, prefill_system="node", prefill_chips=8, chips=8)


def test_pools_on_two_systems_have_hosts_of_their_own(pair):
    replicas = place_replicas(pair)
    assert [(r.role, r.hosts, r.chips) for r in replicas] == [
        ("prefill", (0,), 4), ("prefill", (1,), 4), ("decode", (2,), 8),
    ]  # fmt: skip
    assert serve_args_for_pool(pair, pair.pools[0]).served.memory == 5e13
    assert serve_args_for_pool(pair, pair.pools[1]).served.memory == pair.served.memory


@pytest.mark.parametrize("engine", ENGINES)
def test_commands_of_pools_on_two_systems_name_the_system_of_each_host(pair, engine):
    lines = launch_commands(pair, engine)
    assert sum("hosts 0 to 1: node, host 2: box" in line for line in lines) == 1
    assert len(commands(lines)) >= 2
    files = launch_files(pair, engine)
    assert {"prefill-0.sh", "prefill-1.sh", "decode-0.sh", "router.sh"} <= set(files)
    assert "HOST_2" in files["addresses.sh"]
    assert "8 chips of node for prefill and 8 chips of box for decode" in files["README.md"]
    assert "add a nodeSelector" in files["dynamo.yaml"]
