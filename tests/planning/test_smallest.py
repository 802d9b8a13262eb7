"""The smallest system that holds a model: what a person would rent, by hand and of the catalogue."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import steptime as st
from steptime.catalog.data_files import files
from steptime.hardware.system import Rent, System
from steptime.models.model import Attention, weight_bytes
from steptime.planning.plan_search import REQUEST, smallest_system
from tests.conftest import machine, matrix, model_of, one_matrix
from tests.planning.cases import closed_plan, equal_requests

MODEL = one_matrix(heads=8)  # 10 GB
HOLDS = 0.92  # share of a chip's memory that engines use


def made(name: str, size: int, capacity: float, usd_per_hour: float = 2.0, **more: float) -> System:
    rate = usd_per_hour / 3600
    return replace(
        machine(size=size, capacity=capacity, **more), name=name, rent=Rent(low=rate, typical=rate, high=rate, kind="ondemand")
    )


def test_the_lowest_rent_comes_first_whatever_the_memory():
    """10 GB: four chips of 3 GB for 2 USD/h each, two of 8 GB for 3 USD/h, one of 80 GB for 7."""
    four, two, one = made("four", 8, 3e9), made("two", 8, 8e9, 3.0), made("one", 8, 80e9, 7.0)
    assert smallest_system(MODEL, [four, two, one]) == (two, 2)
    assert smallest_system(MODEL, [four, one]) == (one, 1)
    assert smallest_system(MODEL, [four, made("dear", 8, 80e9, 8.5)]) == (four, 4)


def test_of_equal_rent_fewer_chips_then_less_memory_then_the_faster():
    two, one = made("two", 2, 8e9, 2.0), made("one", 1, 12e9, 4.0)
    assert smallest_system(MODEL, [two, one]) == (one, 1)
    assert smallest_system(MODEL, [one, made("large", 1, 13e9, 4.0)]) == (one, 1)
    fast = made("fast", 1, 12e9, 4.0, bandwidth=5e12)
    assert smallest_system(MODEL, [one, fast]) == (fast, 1)


def test_a_system_without_a_rent_comes_only_where_no_other_holds_the_model():
    unrented = replace(made("unrented", 1, 80e9), rent=Rent())
    rented = made("rented", 8, 3e9, 100.0)
    assert smallest_system(MODEL, [unrented, rented]) == (rented, 4)
    assert smallest_system(MODEL, [unrented, made("small", 8, 1e9)]) == (unrented, 1)
    many = replace(made("many", 8, 3e9), rent=Rent())
    assert smallest_system(MODEL, [many, unrented]) == (unrented, 1)
    assert smallest_system(MODEL, [made("small", 8, 1e9)]) is None


def test_chips_are_powers_of_two_or_the_usual_deployment():
    three = made("three", 3, 4e9)
    assert smallest_system(one_matrix(heads=3), [three]) == (three, 3)
    assert smallest_system(MODEL, [made("three", 3, 1.2e10 / HOLDS)])[1] == 1


def test_a_request_must_fit_beside_the_weights():
    """10 GB of weights and 8,192 tokens of 1 MB, or as many as the model takes; no more than engines use of a chip."""
    cache = Attention(name="attention", kv_bytes=1e6, heads=1, kv_shards=1)
    model = model_of(matrix(weights=1e10), attention=(cache,), layers=1)
    need = (weight_bytes(model) + REQUEST * 1e6) / HOLDS
    assert smallest_system(model, [made("snug", 1, 1.001 * need)])[1] == 1
    assert smallest_system(model, [made("tight", 1, 0.999 * need)]) is None
    short = replace(model, max_context=1000)
    assert smallest_system(short, [made("tight", 1, 1.001 * (weight_bytes(model) + 1e9) / HOLDS)])[1] == 1


@pytest.mark.parametrize(
    ("name", "most_chips", "most_usd_per_hour"),
    [
        ("llama-3.1-8b", 1, 1.0),
        pytest.param("llama-3.3-70b", 4, 4.0, marks=pytest.mark.thorough),
        pytest.param("deepseek-v3", 16, 20.0, marks=pytest.mark.thorough),
        pytest.param("moonshotai/Kimi-K2-Instruct", 16, 40.0, marks=pytest.mark.thorough),
    ],
)
def test_of_the_catalogue_it_is_what_a_person_would_rent(name, most_chips, most_usd_per_hour):
    """8 B on one card, 70 B on a few, 671 B and 1 T on a box; and the plan of a request on it is feasible."""
    model = st.load_model(name)
    system, chips = smallest_system(model, [st.load_system(other) for other in files("systems")])
    rent = chips * system.rent.typical * 3600
    assert chips <= most_chips
    assert math.isfinite(rent)
    assert rent <= most_usd_per_hour
    assert closed_plan(
        model, system, equal_requests(input_tokens=4096, output_tokens=512), chips=chips, alternatives=False
    ).feasible
