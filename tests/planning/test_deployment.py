"""What a plan says beside its fields."""

import math
from dataclasses import replace

import pytest

import steptime as st
from steptime.hardware.system import Rent
from steptime.planning.plan_result import (
    best_change,
    chosen_point,
    cost_changes,
    mean_resources,
    mean_terms,
    runner_up_dearer,
)
from steptime.workload.workload import limits
from tests.conftest import each
from tests.planning.cases import closed_plan, equal_requests, shared


@pytest.fixture(scope="module")
def plan():
    model, system = st.load_model("llama-3.1-8b"), st.load_system("hgx-h100")
    return closed_plan(model, system, equal_requests(input_tokens=1024, output_tokens=256), limits(speed=40, ttft=1), chips=2)


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


def test_mean_resources_of_steps_with_and_without_a_chunk():
    found = shared()
    (pool,) = found.pools
    share = pool.chunk_share
    for mean, name in ((mean_resources(pool), "resources"), (mean_terms(pool), "terms")):
        plain, mixed = getattr(pool.step, name), getattr(pool.mixed, name)
        assert set(mean) == {*plain, *mixed}
        for key, value in mean.items():
            assert value == pytest.approx((1 - share) * float(plain.get(key, 0.0)) + share * float(mixed.get(key, 0.0)))
        assert sum(mean.values()) == pytest.approx(found.tpot)
    alone = replace(pool, mixed=None, chunk_share=0.0)
    assert mean_terms(alone) == {name: float(value) for name, value in pool.step.terms.items()}
    assert pool.chips == pool.layout.chips * pool.layout.replicas


@each(
    "elasticities, name, saving",
    [
        ({"hbm_bandwidth": -0.6, "arithmetic": -0.2, "rent": 1.0}, "hbm_bandwidth", 1 - 1.1**-0.6),
        ({"hbm_bandwidth": -0.2, "kv_bytes": 0.5, "rent": 1.0}, "kv_bytes", 1 - 1.1**-0.5),
        ({"hbm_bandwidth": -0.5, "kv_bytes": 0.2}, "hbm_bandwidth", 1 - 1.1**-0.5),
        ({"arithmetic": -0.01}, "arithmetic", 1 - 1.1**-0.01),
    ],
)
def test_what_would_help_most(elasticities, name, saving):
    found = replace(shared(), elasticities=elasticities)
    assert best_change(found) == (name, pytest.approx(saving))


@each("elasticities", [{"rent": 1.0}, {}, {"arithmetic": -0.001}, {"hbm_bandwidth": 0.5, "kv_bytes": -0.5}])
def test_what_hardly_helps_is_none(elasticities):
    assert best_change(replace(shared(), elasticities=elasticities)) is None


@pytest.mark.parametrize(
    ("chips", "title"), [(4, "Plan: one matrix on 4 chips of toy"), (1, "Plan: one matrix on 1 chip of toy")]
)
def test_a_plan_in_words(chips, title):
    made = replace(
        shared(), chips=chips, tpot=2e-3, ttft=0.5, tpot_range=(1e-3, 4e-3), usd_per_million_output_tokens=2.0,
        cost_range=(1.0, 4.0), requests_per_second=10.0, layout_text="text",
    )  # fmt: skip
    said, figures = made.headline()
    assert said == f"{title}, engine ideal"
    assert figures["layout"] == f"text, batch {made.pools[0].batch:,}"
    assert figures["TPOT"] == "2.00 ms (90 % 1.00 ms to 4.00 ms)"
    assert figures["TTFT"] == "500 ms"
    assert figures["cost"] == "2.00 USD (90 % 1.00 USD to 4.00 USD) per million output tokens"
    assert figures["output"].startswith("10 requests/s, ")
    assert replace(made, feasible=False, reason="because").headline()[1] == {"not possible": "because"}


def test_a_range_of_speed_turns_that_of_tpot_round():
    """Two to eight ms a token are 125 to 500 tokens a second."""
    assert replace(shared(), tpot_range=(2e-3, 8e-3)).speed_range == pytest.approx((125, 500))


@pytest.mark.thorough
def test_a_range_of_throughput_is_that_of_cost_turned_round_and_needs_no_rent():
    model, system = st.load_model("llama-3.1-8b"), st.load_system("hgx-h100")
    work = equal_requests(input_tokens=1000, output_tokens=201)
    made = closed_plan(model, system, work, chips=1, alternatives=False)
    assert made.tokens_per_second_per_chip == pytest.approx(made.requests_per_second * 201)
    low, high = (made.usd_per_million_output_tokens / cost for cost in made.cost_range[::-1])
    least, most = made.throughput_range
    assert (least, most) == pytest.approx((made.tokens_per_second_per_chip * low, made.tokens_per_second_per_chip * high))
    assert least < made.tokens_per_second_per_chip < most
    free = closed_plan(
        model, replace(system, rent=Rent(low=math.nan, typical=math.nan, high=math.nan)), work, chips=1, alternatives=False
    )
    assert free.throughput_range == pytest.approx((least, most))
    assert shared().throughput_range is None


def test_a_front_is_a_table_of_its_points():
    made = shared()
    columns = made.columns()
    assert list(columns) == [
        "mode", "layout", "batch", "tokens_per_s_per_user", "tokens_per_s_per_chip", "usd_per_million_output_tokens", "ttft_s",
    ]  # fmt: skip
    assert columns["batch"] == [point.batch for point in made.front]
    point = chosen_point(made)
    assert (point.mode, point.layout_text, point.ttft) == (made.mode, made.layout_text, made.ttft)


def test_pools_and_points_in_words():
    made = shared()
    (pool,) = made.pools
    step, held = replace(pool.step, total=2e-3), replace(pool.memory, weights=3e9, cache=0, activations=0, reserved=0)
    pool = replace(
        pool, layout=st.Layout(tp=2, replicas=3), batch=1234, chunk=2048, step=step, memory=held, tokens_per_second=5e4
    )
    title, figures = pool.headline()
    assert title == "Pool (serve) of 6 chips: tp2 x3, batch 1,234, chunks of 2,048 tokens"
    assert figures == {"step": "2.00 ms", "rate": "50,000 tok/s", "memory per chip": "3.00 GB of 11.0 GB"}
    assert replace(pool, chunk=0).headline()[0] == "Pool (serve) of 6 chips: tp2 x3, batch 1,234"
    point = replace(
        made.front[0], layout_text="text", batch=1234, tokens_per_second_per_user=50.0, tokens_per_second_per_chip=200.0,
        usd_per_million_output_tokens=2.5,
    )  # fmt: skip
    title, figures = point.headline()
    assert title == "Point: text, batch 1,234"
    assert list(figures) == ["speed", "output", "cost"]
    assert figures["speed"].endswith("tok/s per user")
    assert figures["output"] == "200 tok/s per chip"
    assert figures["cost"] == "2.50 USD per million output tokens"
