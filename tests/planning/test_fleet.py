"""Fleets by hand, and the hosts of replicas."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

import steptime as st
from steptime.errors import Impossible, RangeError, UnitError
from steptime.hardware.system import Power
from steptime.physics.layout import Layout
from steptime.planning import plan_replay, planner
from steptime.planning.fleet import MONTH, replicas_within, size_fleet
from steptime.planning.plan_figures import _hosts, _hosts_warning
from steptime.planning.plan_problem import AGGREGATED, DISAGGREGATED, Candidate
from tests.conftest import each, machine
from tests.planning.cases import MODEL, NODES, WORK, case, closed_plan, made


@each(
    "rate, replica, host, spare, replicas, hosts",
    [
        (9.0, 2, 8, 0, 3, 1),  # four replicas share a host
        (9.1, 2, 8, 0, 4, 1),
        (9.1, 2, 8, 1, 4, 2),
        (9.0, 3, 8, 0, 3, 2),  # two on a host, whose last two chips idle
        (9.0, 8, 8, 2, 3, 5),
        (9.0, 12, 8, 0, 3, 6),  # two whole hosts each
        (9.0, 16, 8, 1, 3, 8),
        (0.01, 4, 8, 0, 1, 1),  # at least one
        (300.0, 1, 4, 0, 100, 25),
    ],
)
def test_a_fleet_has_whole_replicas_on_whole_hosts(rate, replica, host, spare, replicas, hosts):
    """Each replica serves 3 requests/s of 500 tokens; a chip costs 2 USD/h."""
    fleet = size_fleet(
        rate, served=3.0, replica_chips=replica, host_chips=host, chip_rent=2 / 3600, output_tokens=500, spare=spare
    )
    assert (fleet.rate, fleet.spare, fleet.replica_chips) == (rate, spare, replica)
    assert (fleet.replicas, fleet.hosts, fleet.chips) == (replicas, hosts, hosts * host)
    assert fleet.utilisation == pytest.approx(rate / (3 * replicas))
    assert fleet.usd_per_month == pytest.approx(hosts * host * 2 * 730.5)
    assert fleet.usd_per_million_output_tokens == pytest.approx(hosts * host * 2 / 3600 / (rate * 500) * 1e6)
    assert pytest.approx(730.5 * 3600) == MONTH


@pytest.mark.parametrize(("chips", "hosts"), [(1, 3), pytest.param(4, 9, marks=pytest.mark.thorough)])
def test_a_plan_for_a_rate_has_the_fleet_of_its_replicas(chips, hosts):
    """Replicas of one pool are bought one by one."""
    given = {"engine": "ideal", "modes": (AGGREGATED,), "chips": chips, "alternatives": False, "elasticities": False}
    one = closed_plan(MODEL, NODES, WORK, st.Slo(tpot=8e-3), **given)
    served = one.requests_per_second / one.pools[0].layout.replicas
    found = closed_plan(MODEL, NODES, WORK, st.Slo(tpot=8e-3), **given, rate=7.5 * served, spare=1).fleet
    assert one.fleet is None
    assert (found.replicas, found.spare, found.replica_chips) == (8, 1, one.pools[0].layout.chips)
    assert (found.hosts, found.chips) == (hosts, 4 * hosts)
    assert found.utilisation == pytest.approx(7.5 / 8)
    # As much as the plan tells, for the chips in use.
    used = found.usd_per_million_output_tokens * found.utilisation * 8 * found.replica_chips / found.chips
    assert used == pytest.approx(one.usd_per_million_output_tokens)


@each(
    "power, replica, replicas",
    [(8000.0, 8, 1), (15_999.0, 8, 1), (16_000.0, 8, 2), (16_000.0, 3, 4), (47_000.0, 12, 2), (1e6, 1, 1000)],
)
def test_a_power_supplies_whole_hosts(power, replica, replicas):
    """Hosts of 8 chips take 8 kW."""
    sizes = {"replica_chips": replica, "host_chips": 8, "chip_watts": 1000.0}
    assert replicas_within(power, **sizes) == replicas
    fleet = size_fleet(3.0 * replicas, served=3.0, chip_rent=1.0, output_tokens=500, **sizes)
    assert fleet.watts <= power < fleet.watts + 8000 * max(1, -(-replica // 8))


def test_a_replica_on_several_hosts_needs_the_power_of_all_of_them():
    """12 chips are two hosts of 8 chips at 1 kW."""
    sizes = {"replica_chips": 12, "host_chips": 8, "chip_watts": 1000.0}
    with pytest.raises(Impossible, match=r"take 16\.0 kW, more than the 15\.9 kW"):
        replicas_within(15_900.0, **sizes)
    assert replicas_within(16_000.0, **sizes) == 1


@pytest.mark.thorough
def test_the_largest_fleet_within_a_power_and_its_refusals():
    given = {"engine": "ideal", "modes": (AGGREGATED,), "alternatives": False, "elasticities": False}
    powered = replace(NODES, power=Power(watts=1000.0, basis="given"))

    def fleet(**options):
        return closed_plan(MODEL, powered, WORK, st.Slo(tpot=8e-3), **given, **options)

    found = fleet(power_cap="40kW", spare=1)
    served = found.requests_per_second / found.pools[0].layout.replicas
    assert (found.fleet.hosts, found.fleet.watts, found.fleet.power_cap) == (10, 40_000, 40_000)
    assert found.fleet.rate == pytest.approx(served * found.fleet.replicas)
    assert found.fleet.utilisation == pytest.approx(1)
    assert fleet(power_cap=40_000.0, rate=served).fleet.replicas == 1
    for options, words in (
        ({"power_cap": "40kW", "rate": 1000 * found.fleet.rate}, "40.0 kW supply"),
        ({"power_cap": "40kW", "spare": 100_000}, "all of them spare"),
        ({"power_cap": "1kW"}, "the hosts of one replica take 4.00 kW"),
    ):
        short = fleet(**options)
        assert (short.feasible, short.fleet) == (False, None)
        assert words in short.reason
    with pytest.raises(UnitError, match=r"power_cap: 'abc' is not a number in W"):
        fleet(power_cap="abc")
    with pytest.raises(RangeError, match=r"--set power=1\.5kW"):
        closed_plan(MODEL, replace(NODES, power=Power()), WORK, st.Slo(tpot=8e-3), **given, power_cap="1MW")


@pytest.mark.parametrize(("needed", "replicas"), [(1, 2), (3, 3), (5, 5), (99, 6)])
def test_a_fleet_of_few_replicas_has_as_many_as_drawn_requests_need(monkeypatch, needed, replicas):
    """A replica of six serves 2 requests/s next to the others; few replicas have longer queues."""
    tried = []

    def replay_pools(*given, **_):
        tried.append((given[3], given[4][0].layout.replicas, given[5]))
        return SimpleNamespace(good=tried[-1][1] >= needed)

    monkeypatch.setattr(plan_replay, "replay_pools", replay_pools)
    deployment = made()
    deployment = replace(deployment, pools=(replace(deployment.pools[0], layout=Layout(replicas=6)),))
    given = replace(case(), limits=st.Slo(tpot=0.01, ttft=1.0))
    assert planner._fewest_replicas(given, deployment, 3.5, 2.0, 6) == replicas
    assert all((slo.tpot, slo.ttft, rate) == pytest.approx((0.011, 1.1, 3.5)) for slo, _, rate in tried)
    assert planner._fewest_replicas(given, deployment, 13.0, 2.0, 6) == 7
    monkeypatch.setattr(planner, "has_simulator", lambda: False)
    assert planner._fewest_replicas(given, deployment, 3.5, 2.0, 6) == 2


@pytest.mark.parametrize(("rate", "chips", "warns"), [(0.4, 8, True), (0.6, 8, False), (0.4, 4, False)])
def test_a_replica_on_several_hosts_that_is_hardly_used_is_named(monkeypatch, rate, chips, warns):
    """Of one request/s; hosts have four chips."""
    deployment = made(requests_per_second=1.0)
    pool = replace(deployment.pools[0], layout=Layout(tp=chips))
    deployment = replace(deployment, pools=(pool,), served=replace(deployment.served, host_chips=4))
    found = planner._with_fleet(case(), deployment, rate, 0, math.inf)
    assert found.fleet.utilisation == pytest.approx(rate)
    assert any(f"{chips} chips of a replica" in words for words in found.warnings) == warns


def test_separate_pools_are_one_unit_of_a_fleet():
    given = {"engine": "ideal", "modes": (DISAGGREGATED,), "alternatives": False, "elasticities": False}
    found = closed_plan(MODEL, NODES, WORK, st.Slo(tpot=8e-3), **given, rate=1000.0)
    used = sum(pool.chips for pool in found.pools)
    assert len(found.pools) == 2
    assert found.fleet.replica_chips == used
    assert found.fleet.replicas == -(-1000 // found.requests_per_second)


@each(
    "given, says",
    [({"rate": 0.0}, "rate must be"), ({"rate": 1.0, "spare": -1}, "spare must be"), ({"rate": 1.0, "spare": 1.5}, "spare")],
)
def test_rates_and_spares_that_are_none_are_refused(given, says):
    with pytest.raises(st.InputError, match=says):
        closed_plan(MODEL, NODES, WORK, engine="ideal", modes=(AGGREGATED,), chips=1, alternatives=False, **given)


@each(
    "pools, hosts",
    [
        ([Layout(tp=2, replicas=4)], 1),
        ([Layout(tp=2, replicas=5)], 2),
        ([Layout(tp=3, replicas=5)], 3),
        ([Layout(tp=12, replicas=2)], 4),  # six chips of four hosts
        ([Layout(tp=12), Layout(tp=2, replicas=2)], 2),  # the others on the chips that are left
        ([Layout(tp=12), Layout(tp=2, replicas=3)], 3),
        ([Layout(replicas=2), Layout(tp=2)], 1),
        ([Layout(replicas=3), Layout(tp=5, replicas=2)], 2),
        ([Layout(tp=3, replicas=2), Layout(tp=5, replicas=2)], 2),
    ],
)
def test_small_replicas_share_the_hosts_of_larger_ones(pools, hosts):
    assert _hosts(pools, 8) == hosts


def test_a_plan_warns_of_more_hosts_than_its_chips_fill():
    """Five replicas of three chips are two hosts of eight in chips, and three in hosts."""
    five = Candidate(mode=AGGREGATED, layout=Layout(tp=3, replicas=5), batch=8, chunk=512)
    (text,) = _hosts_warning(replace(case(15), system=machine(size=8)), five)
    assert text.startswith("laid out so, it takes 3 hosts of 8 chips (24 chips),")
    apart = Candidate(mode=DISAGGREGATED, layout=Layout(tp=2), batch=8, prefill_layout=Layout(replicas=2), prompts=1)
    assert _hosts_warning(case(4), apart) == ()


def test_spare_replicas_need_a_rate():
    """Only a fleet has spare replicas; without a rate they would have no effect."""
    with pytest.raises(RangeError, match="rate"):
        st.plan("llama-3.1-8b", "hgx-h100", st.Workload(input_tokens=1000, output_tokens=200), spare=1)
