"""Figures and words that follow from the fields of a plan made by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

import steptime as st
from steptime.hardware.system import Power, Rent
from steptime.physics.chip_memory import Memory
from steptime.physics.layout import Layout
from steptime.physics.uncertainty import SEPARATE_POOLS
from steptime.planning.plan_result import (
    Point,
    best_change,
    cost_changes,
    mean_resources,
    mean_terms,
    runner_up_dearer,
)
from tests.planning.cases import made

MEMORY = Memory(weights=40e9, cache=20e9, activations=4e9, reserved=1e9, capacity=80e9)
POINT = Point(
    mode="aggregated",
    layout_text="tp=2",
    batch=1200,
    tokens_per_second_per_user=40.0,
    tokens_per_second_per_chip=2000.0,
    usd_per_million_output_tokens=3.0,
    ttft=1.0,
)
# 40 requests of 201 tokens a second on four chips of 700 W.
PLAN = made(
    tpot=0.02,
    tpot_range=(0.016, 0.025),
    ttft=0.5,
    layout_text="tp=2",
    requests_per_second=40.0,
    power=Power(watts=700.0),
    electricity=0.1 / 3.6e6,
    usd_per_second=8 / 3600,
    usd_per_million_output_tokens=3.0,
    cost_range=(2.5, 4.0),
    front=(POINT, replace(POINT, tokens_per_second_per_user=80.0, usd_per_million_output_tokens=9.0)),
)
PLAN = replace(PLAN, slo=st.Slo(tpot=0.025, ttft=0.4), pools=(replace(PLAN.pools[0], layout=Layout(tp=2), memory=MEMORY),))


def test_figures_that_follow():
    assert (PLAN.idle_chips, PLAN.tokens_per_second_per_user) == (2, 50.0)
    assert PLAN.speed_range == pytest.approx((40.0, 62.5))
    assert PLAN.tokens_per_second_per_chip == pytest.approx(40 * 201 / 4)
    joules = 4 * 700 / (40 * 201)
    assert PLAN.joules_per_output_token == pytest.approx(joules)
    assert PLAN.electricity_usd_per_million_output_tokens == pytest.approx(joules * 1e6 * 0.1 / 3.6e6)
    assert replace(PLAN, tpot_range=None).speed_range is None


def test_limits_are_met_as_likely_as_their_ranges_say():
    assert PLAN.slo_probability == {"tpot": pytest.approx(0.95), "ttft": 0.0}
    assert replace(PLAN, slo=st.Slo(ttft=0.5)).slo_probability == {"ttft": 1.0}
    assert replace(PLAN, feasible=False).slo_probability == {}


def test_first_tokens_of_separate_pools_are_usually_twice_as_late_as_predicted():
    """0.5 s predicted, 1.027 s at the median, 4 s at the end of the range: half of the way there is 0.8224 deviations."""
    apart = replace(PLAN, ttft_range=(0.3, 4.0), distance=(SEPARATE_POOLS.words,))
    usual = 0.5 * math.exp(0.72)
    for limit, likely in ((usual, 0.5), (4.0, 0.95), (0.3, 0.05), (math.sqrt(4.0 * usual), 0.794583)):
        assert replace(apart, slo=st.Slo(ttft=limit)).slo_probability == {"ttft": pytest.approx(likely, abs=1e-5)}


def test_headline_has_the_main_figures():
    title, figures = PLAN.headline()
    assert title == "Plan: toy on 4 chips of toy, engine test"
    assert replace(PLAN, chips=1).headline()[0].startswith("Plan: toy on 1 chip of toy")
    assert figures["layout"] == "tp=2, batch 8"
    assert figures["TPOT"] == "20.0 ms (90 % 16.0 ms to 25.0 ms)"
    assert figures["TTFT"] == "500 ms"
    assert figures["cost"] == "3.00 USD (90 % 2.50 USD to 4.00 USD) per million output tokens"
    assert figures["output"] == f"40 requests/s, {40 * 201 / 4:,.0f} tok/s per chip, 0.348 J per token"
    assert "rent" not in figures
    rented = replace(PLAN, rent=Rent(low=0.01, typical=0.01, high=0.01), power=Power(), usd_per_million_output_tokens=math.nan)
    figures = rented.headline()[1]
    assert figures["rent"].startswith("8.00 USD/h, ")
    assert figures["cost"] == "no rent known"
    assert figures["output"].endswith("per chip")
    assert replace(PLAN, feasible=False, reason="x" * 300).headline()[1] == {"not possible": "x" * 200}


def test_headline_of_a_pool_and_of_a_point():
    pool = replace(PLAN.pools[0], batch=1200, chunk=2048, tokens_per_second=5e4, step=SimpleNamespace(total=0.01))
    title, figures = pool.headline()
    assert title == "Pool (serve) of 2 chips: tp2, batch 1,200, chunks of 2,048 tokens"
    assert figures == {"step": "10.0 ms", "rate": "50,000 tok/s", "memory per chip": "65.0 GB of 80.0 GB"}
    assert replace(pool, chunk=0).headline()[0].endswith("batch 1,200")
    title, figures = POINT.headline()
    assert title == "Point: tp=2, batch 1,200"
    assert figures["cost"] == "3.00 USD per million output tokens"
    assert replace(POINT, usd_per_million_output_tokens=math.nan).headline()[1]["cost"] == "no rent known"


def test_drawing_has_the_front_the_plan_and_the_memory():
    drawing = PLAN.drawing()
    assert "tok/s per user" in drawing
    assert "USD per million output tokens" in drawing
    assert PLAN.pools[0].memory.drawing() in drawing
    assert drawing.count("<circle") == 1
    assert replace(PLAN, feasible=False).drawing() == ""


def test_the_mean_step_of_a_pool_weighs_steps_with_chunks():
    """A quarter of the steps has chunks; without such steps the others count alone."""
    plain = SimpleNamespace(terms={"weights": 4.0}, resources={"compute": 1.0})
    mixed = SimpleNamespace(terms={"weights": 8.0, "attention": 2.0}, resources={"memory": 4.0})
    pool = SimpleNamespace(step=plain, mixed=mixed, chunk_share=0.25)
    assert mean_terms(pool) == {"weights": 5.0, "attention": 0.5}
    assert mean_resources(pool) == {"compute": 0.75, "memory": 1.0}
    assert mean_terms(SimpleNamespace(step=plain, mixed=None, chunk_share=0.25)) == {"weights": 4.0}


def test_changes_by_a_tenth_follow_from_elasticities():
    """1.1 to the power of -0.5 is 4.7 % less; bytes of the cache fall by a tenth; the rent is no figure of hardware."""
    plan = replace(PLAN, elasticities={"bandwidth": -0.5, "kv_bytes": 0.75, "rent": -9.0})
    assert cost_changes(plan)["bandwidth"] == pytest.approx(1.1**-0.5 - 1)
    assert best_change(plan) == ("kv_bytes", pytest.approx(1 - 1.1**-0.75))
    assert best_change(replace(plan, elasticities={"bandwidth": -0.5})) == ("bandwidth", pytest.approx(1 - 1.1**-0.5))
    assert best_change(replace(plan, elasticities={"bandwidth": -0.005})) is None
    assert best_change(replace(plan, elasticities={"bandwidth": -0.0055})) is not None
    assert best_change(replace(plan, elasticities={"rent": -1.0})) is None


def test_a_runner_up_costs_more_or_puts_out_less():
    """4 USD in place of 3; without a rent 2,010 tokens/s per chip in place of 1,500."""
    second = replace(POINT, usd_per_million_output_tokens=4.0, tokens_per_second_per_chip=1500.0)
    assert runner_up_dearer(replace(PLAN, runner_up=second)) == pytest.approx(1 / 3)
    free = replace(PLAN, runner_up=second, usd_per_million_output_tokens=math.inf)
    assert runner_up_dearer(free) == pytest.approx(2010 / 1500 - 1)
    assert math.isnan(runner_up_dearer(PLAN))


def test_a_plan_on_two_systems_counts_and_names_both():
    pair = replace(PLAN, prefill_system="other", prefill_chips=2, prefill_power=Power(watts=1000.0))
    assert (pair.total_chips, pair.idle_chips, pair.is_pair) == (6, 4, True)
    assert pair.machines_text == "2 chips of other for prefill and 4 chips of toy for decode"
    same = replace(pair, prefill_system="toy")
    assert (same.is_pair, PLAN.is_pair) == (False, False)
    assert same.machines_text == "6 chips of toy (2 for prefill, 4 for decode)"
    assert PLAN.machines_text == "4 chips of toy"
    assert pair.tokens_per_second_per_chip == pytest.approx(40 * 201 / 6)
    assert pair.joules_per_output_token == pytest.approx((4 * 700 + 2 * 1000) / (40 * 201))
    served = replace(pair, prefill_served=replace(pair.served, host_chips=3))
    assert (served.served_by("prefill").host_chips, served.served_by("decode")) == (3, pair.served)
    assert pair.served_by("prefill") == pair.served
    rented = replace(pair, rent=Rent(low=1.0, typical=1.0, high=1.0, kind="spot"), prefill_rent=PLAN.rent)
    assert rented.rent_kinds.endswith("(other)")
    assert "(toy), " in rented.rent_kinds
    assert "(" not in replace(rented, prefill_rent=None).rent_kinds.replace("(kind not stated)", "")
