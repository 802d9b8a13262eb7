"""Energy of plans at their load: power of pools, electricity, carbon, and grids."""

from __future__ import annotations

import math

import pytest

from steptime.catalog.hardware_loading import load_system
from steptime.errors import InputError
from steptime.hardware.energy import GRIDS, read_carbon
from steptime.physics.chip_power import energy_coefficients
from steptime.planning.planner import plan
from steptime.workload.workload import Slo, Workload

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


@pytest.mark.parametrize(
    ("carbon", "says"), [("frnace", "france"), ("-1", "from 0"), (5000, "2,000"), (True, "grid"), ("", "grid")]
)
def test_read_carbon_refuses_other_values(carbon, says):
    with pytest.raises(InputError, match=says):
        read_carbon(carbon)
