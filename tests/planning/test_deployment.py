"""What a plan says beside its fields."""

import math
from dataclasses import replace

import pytest

import steptime as st
from steptime.planning.deployment import chosen_point, cost_changes, runner_up_dearer
from steptime.planning.workload import limits


@pytest.fixture(scope="module")
def plan():
    model, system = st.load_model("llama-3.1-8b"), st.load_system("hgx-h100")
    return st.plan(model, system, st.Workload(input_tokens=1024, output_tokens=256), limits(speed=40, ttft=1), chips=2)


def test_limits_are_times(plan):
    assert (plan.slo.tpot, plan.slo.ttft) == (0.025, 1)
    assert limits() == st.Slo(tpot=math.inf, ttft=math.inf)


def test_the_plan_is_a_point_beside_its_runner_up(plan):
    mine = chosen_point(plan)
    assert mine.tokens_per_second_per_user == pytest.approx(1 / plan.tpot)
    assert mine.tokens_per_second_per_chip == pytest.approx(plan.requests_per_second * 256 / 2)
    assert (mine.batch, mine.ttft, mine.layout_text) == (plan.pools[-1].batch, plan.ttft, plan.layout_text)
    assert mine.usd_per_million_output_tokens == plan.usd_per_million_output_tokens


def test_cost_changes_are_those_of_ten_percent_more():
    plan = type("Plan", (), {"elasticities": {"rent": 1.0, "bandwidth": -1.0, "capacity": 0.0}})
    changes = cost_changes(plan)
    assert changes == pytest.approx({"rent": 0.1, "bandwidth": 1 / 1.1 - 1, "capacity": 0.0})


def test_the_runner_up_is_compared_in_money_or_without_a_rent_in_output(plan):
    mine = chosen_point(plan)
    cost = 1.25 * mine.usd_per_million_output_tokens
    other = replace(mine, usd_per_million_output_tokens=cost, tokens_per_second_per_chip=mine.tokens_per_second_per_chip / 2)
    assert runner_up_dearer(replace(plan, runner_up=other)) == pytest.approx(0.25)
    free = replace(plan, runner_up=other, usd_per_million_output_tokens=math.nan)
    assert runner_up_dearer(free) == pytest.approx(1.0)
    assert math.isnan(runner_up_dearer(replace(plan, runner_up=None)))
