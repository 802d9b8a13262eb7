"""The parts of a chip in a budget."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from steptime.catalog.hardware_loading import load_system
from steptime.errors import RangeError
from steptime.hardware.energy import flops_left, power_shares


def test_shares_of_an_h100_by_hand():
    shares = power_shares(load_system("hgx-h100"))
    assert shares["bandwidth"] == pytest.approx(8 * 3.35e12 * 3.9e-12 / 700)  # 105 of 700 W
    assert shares["link"] == pytest.approx(8 * 450e9 * 5.5e-12 / 700)  # 19.8 W, as the source has it
    assert sum(shares.values()) == pytest.approx(1)


@pytest.mark.thorough
@given(bandwidth=some.floats(0.1, 3), link=some.floats(0.1, 3))
def test_what_is_left_spends_the_budget(bandwidth, link):
    shares = {"flops": 0.7, "bandwidth": 0.2, "capacity": 0.0, "link": 0.1}
    left = flops_left(shares, {"bandwidth": bandwidth, "link": link})
    assert 0.7 * left + 0.2 * bandwidth + 0.1 * link == pytest.approx(1)


def test_a_power_that_is_not_known_is_said():
    system = load_system("hgx-h100")
    unknown = dataclasses.replace(system, chip=dataclasses.replace(system.chip, power_w=math.nan))
    with pytest.raises(RangeError, match=r"chip\.power: unknown"):
        power_shares(unknown)
    weak = dataclasses.replace(system, chip=dataclasses.replace(system.chip, power_w=100.0))
    with pytest.raises(RangeError, match="would take 124 W of its 100 W"):
        power_shares(weak)


def test_memory_whose_energy_is_not_known_is_said():
    with pytest.raises(RangeError, match="known only for HBM"):
        power_shares(load_system("cs-3"))
