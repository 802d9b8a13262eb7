"""Energy of plans at their load: power of pools, electricity, carbon, and grids."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from steptime.catalog.hardware_loading import load_system
from steptime.errors import InputError
from steptime.hardware.energy import GRIDS, read_carbon
from steptime.physics.chip_power import energy_coefficients
from steptime.physics.layout import Layout
from steptime.planning import plan_energy
from steptime.planning.planner import plan
from steptime.workload.workload import Slo, Workload
from tests.conftest import each
from tests.planning.cases import case, made

WORK, LIMITS = Workload(input_tokens=2048, output_tokens=512), Slo(tpot=0.03, ttft=2)
QUICK = {"alternatives": False, "elasticities": False, "front": False, "quick": True}


def test_plan_energy_is_power_over_rate_with_price_and_carbon(closed_forms):
    found = plan("llama-3.1-8b", "hgx-h100", WORK, LIMITS, chips=8, electricity="0.1/kWh", carbon="france", **QUICK)
    energy, output = found.energy, found.requests_per_second * 512
    assert energy.joules == pytest.approx(energy.total_watts / output)
    assert energy.total_watts == pytest.approx(8 * (energy.chip_watts + 670))
    assert 446 < energy.chip_watts < 700
    assert energy.joules < found.joules_per_output_token
    assert energy.joules_range[0] < energy.joules < energy.joules_range[1]
    # 0.1 USD and 41 g per kWh of 3.6 MJ.
    assert energy.electricity_usd == pytest.approx(energy.joules * 1e6 / 3.6e6 * 0.1)
    assert energy.carbon_grams == pytest.approx(energy.joules * 1e6 / 3.6e6 * 41)
    assert energy.tokens_per_second_per_megawatt == pytest.approx(1e6 / energy.joules)
    assert energy.rent_per_megawatt_hour == pytest.approx(found.usd_per_second * 3600 / (energy.total_watts / 1e6))


def test_plan_energy_of_separate_pools_counts_static_power_of_waiting_prefill(closed_forms):
    found = plan("llama-3.1-8b", "hgx-h100", WORK, LIMITS, chips=8, modes="disaggregated", **QUICK)
    assert found.pools[0].role == "prefill"
    assert found.utilisation < 1
    assert energy_coefficients(load_system("hgx-h100")).static < found.energy.chip_watts < 700


@pytest.mark.thorough
def test_plan_energy_unknown_power_or_price_is_none(closed_forms):
    assert plan("llama-3.1-8b", "tpu-v6e", WORK, LIMITS, chips=8, **QUICK).energy is None
    energy = plan("llama-3.1-8b", "hgx-h100", WORK, LIMITS, chips=1, **QUICK).energy
    assert math.isnan(energy.electricity_usd)
    assert math.isnan(energy.carbon_grams)


def test_read_carbon_takes_grids_and_numbers():
    assert read_carbon("UK") == GRIDS["uk"] == 217
    assert read_carbon("South Korea") == GRIDS["south-korea"]
    assert read_carbon("120 gCO2/kWh") == read_carbon(120) == 120
    assert read_carbon(0) == 0


@each("carbon, says", [("frnace", "france"), ("-1", "from 0"), (5000, "2,000"), (True, "grid"), ("", "grid")])
def test_read_carbon_refuses_other_values(carbon, says):
    with pytest.raises(InputError, match=says):
        read_carbon(carbon)


# --- by hand ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def watts(monkeypatch):
    """Chips of 100 W when they wait, 50 W around each, and 200 W and 100 W over the factor on the times of a pool."""
    figures = {"toy": (100.0, 0.1, "a"), "other": (10.0, 0.3, "b")}
    known = {name: SimpleNamespace(static=static, spread=part, source=s) for name, (static, part, s) in figures.items()}
    monkeypatch.setattr(plan_energy, "energy_coefficients", lambda system: known.get(system.name))
    monkeypatch.setattr(plan_energy, "surrounding_watts", lambda _: 50.0)
    monkeypatch.setattr(plan_energy, "_pool_power", lambda *given: lambda factor: 2 * given[-1].static + 100 / factor)
    return known


def loaded(**more):
    plan = made(requests_per_second=10.0, usd_per_second=0.02, **more)
    speed = plan.tokens_per_second_per_chip
    return replace(plan, throughput_range=(speed / 2, speed * 1.25), pools=(replace(plan.pools[0], layout=Layout(tp=2)),))


def test_the_energy_of_a_plan_by_hand(watts):
    """Two of four chips work: 2 x 100 W + 2 x 300 W + 4 x 50 W are 1 kW for 2,010 tokens/s.

    Steps of twice the time leave 900 W for half of the tokens, and of 0.8 of it 1,050 W for five quarters.
    """
    found = plan_energy.plan_energy(case(), loaded(), price=1e-6, carbon=36.0)
    joules, margin = 1000 / 2010, 1.645 * 0.1 * 800 / 1000
    assert (found.chip_watts, found.total_watts, found.joules) == pytest.approx((200.0, 1000.0, joules))
    assert found.joules_range == pytest.approx(
        (joules * math.exp(-math.hypot(math.log(0.84), margin)), joules * math.exp(math.hypot(math.log(1.8), margin)))
    )
    assert found.tokens_per_second_per_megawatt == pytest.approx(2.01e6)
    # $0.02 a second for 1 kW are $20 a second for a megawatt; 1 J costs a millionth of a dollar and 0.01 g.
    assert found.rent_per_megawatt_hour == pytest.approx(20 * 3600)
    assert (found.electricity_usd, found.carbon_grams, found.carbon) == pytest.approx((joules, joules * 10, 36.0))
    assert found.coefficients == "a"
    assert plan_energy.plan_energy(case(), replace(loaded(), throughput_range=None)).joules_range is None
    assert plan_energy.plan_energy(case(), replace(loaded(), feasible=False)) is None
    del watts["toy"]
    assert plan_energy.plan_energy(case(), loaded()) is None


def test_the_energy_of_two_systems_is_that_of_their_own_pools(watts):
    """Prefill on 2 of 3 chips of 10 W when they wait: 10 + 2 x 120 W; decode as before 800 W, and 7 x 50 W around them."""
    other = replace(case().system, name="other")
    given = replace(case(), prefill_system=other, prefill_chips=3)
    plan = replace(loaded(), prefill_system="other", prefill_chips=3)
    plan = replace(plan, pools=(replace(plan.pools[0], role="prefill"), plan.pools[0]))
    found = plan_energy.plan_energy(given, plan)
    assert (found.total_watts, found.chip_watts) == pytest.approx((250 + 800 + 350, 1050 / 7))
    assert found.coefficients == "a and b"
    # The larger spread counts for both.
    assert math.log(found.joules_range[1] / found.joules) >= 1.645 * 0.3 * 1050 / 1400
    del watts["other"]
    assert plan_energy.plan_energy(given, plan) is None


def test_fixed_pools_on_one_system_each_take_their_own_power(watts):
    """Prefill on 3 chips of 300 W, decode as before 800 W, and 7 x 50 W around them."""
    plan = replace(loaded(), prefill_system="toy", prefill_chips=3)
    plan = replace(plan, pools=(replace(plan.pools[0], role="prefill", layout=Layout(tp=3)), plan.pools[0]))
    same = case()
    found = plan_energy.plan_energy(replace(same, prefill_system=same.system, prefill_chips=3), plan)
    assert found.total_watts == pytest.approx(900 + 800 + 350)


def test_the_power_of_a_pool_is_the_energy_of_its_steps_over_their_time(monkeypatch):
    """Three steps of 2 s, half of it drafts, for each of 4 s with a chunk; 50 J and 100 J a second for what is verified."""
    verified = {False: 1.0, True: 4.0}
    monkeypatch.setattr(plan_energy, "as_served", lambda model, *_: model)
    monkeypatch.setattr(plan_energy, "step_given", lambda pool, workload, *, mixed, drafts: (mixed, drafts))
    monkeypatch.setattr(plan_energy, "step_work", lambda *given, **_: (SimpleNamespace(total=verified[given[2][0]]), 50.0))
    monkeypatch.setattr(plan_energy, "chip_joules", lambda energy, work, seconds: work + 100 * seconds)
    energy = SimpleNamespace(static=30.0)
    step, mixed = SimpleNamespace(total=2.0), SimpleNamespace(total=4.0)

    def power(factor, **more):
        pool = SimpleNamespace(
            **{"role": "serve", "step": step, "mixed": mixed, "chunk_share": 0.25, "layout": Layout()} | more
        )
        plan = replace(made(), utilisation=0.5)
        return plan_energy._pool_power(case(), plan, pool, case().system, energy)(factor)

    assert power(1.0) == pytest.approx((0.75 * 150 * 2 + 0.25 * 450) / 2.5)
    assert power(2.0) == pytest.approx((0.75 * 250 * 2 + 0.25 * 850) / 5.0)
    assert power(1.0, mixed=None) == power(1.0, chunk_share=0.0) == pytest.approx(150.0)
    # Prefill that works half of the time waits for the other half.
    assert power(1.0, role="prefill", mixed=None) == pytest.approx(0.5 * 150 + 0.5 * 30)
