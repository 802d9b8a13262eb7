"""Any number of chips: one more never serves less, what idles is said and paid, and both pools find a place."""

from __future__ import annotations

from dataclasses import replace

import pytest

import steptime as st
from steptime.errors import InputError
from steptime.models.model import Attention
from steptime.physics.engine import IDEAL, Engine, load_engine
from steptime.planning.plan_problem import DISAGGREGATED, PlanProblem
from steptime.planning.plan_search import fitting, search
from tests.conftest import machine, matrix, model_of
from tests.physics.test_placement import fits
from tests.planning.cases import closed_plan, equal_requests

CHAT = equal_requests(input_tokens=2000, output_tokens=500)
LIMITS = st.Slo(tpot=0.04, ttft=2.0)
MODES = ("aggregated", "disaggregated")


def plan(model, system, chips, *, engine=None, modes=MODES) -> st.Plan:
    return closed_plan(model, system, CHAT, LIMITS, chips=chips, engine=engine, modes=modes, alternatives=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "system", "engine", "counts"),
    [
        ("mixtral-8x7b", "hgx-h100", "ideal", (2, 3, 5, 11)),
        ("phi-4", "mi300x-8", None, (1, 3, 7, 9)),
        pytest.param("deepseek-v3", "gb200-nvl72", "vllm", (48, 71, 83), marks=pytest.mark.slow),
        pytest.param("qwen3-235b-a22b", "hgx-h200", "sglang", (8, 11, 13, 23), marks=pytest.mark.slow),
        pytest.param("llama-3.1-70b", "hgx-b200", None, (2, 3, 7, 8, 17), marks=pytest.mark.slow),
    ],
)
def test_more_chips_serve_no_less(model, system, engine, counts):
    """To within half a percent, by which the fastest of equals is chosen; and the rent is of all chips, idle ones too."""
    most = 0.0
    for chips in counts:
        found = plan(model, system, chips, engine=engine)
        assert found.requests_per_second >= most * 0.995
        most = max(most, found.requests_per_second)
        assert found.idle_chips == chips - sum(pool.chips for pool in found.pools) >= 0
        paid = found.usd_per_million_output_tokens * found.requests_per_second * CHAT.output_tokens / 1e6
        assert paid == pytest.approx(found.usd_per_second)
        assert found.usd_per_second == pytest.approx(chips * plan_rent(system))


def plan_rent(system: str) -> float:
    return float(st.load_system(system).rent.typical)


@pytest.mark.parametrize(
    ("model", "chips"), [("llama-3.2-3b", 32), ("qwen2.5-14b", 20), ("deepseek-v3", 32), ("mixtral-8x7b", 27)]
)
def test_both_pools_find_a_place_in_boxes_of_eight(model, chips):
    """Every candidate of a search whose replicas fit a box, by an independent packer; none has room for one more of either."""
    described, system = st.load_model(model), st.load_system("hgx-h200")
    case = PlanProblem(model=described, system=system, workload=CHAT, slo=LIMITS, chips=chips, engine=load_engine("ideal"))
    (table,) = search(case, (DISAGGREGATED,), fitting(case))
    layouts = table.layouts.chips.tolist()
    columns = (table.prefill_layout, table.layout, table.prefill_replicas, table.replicas)
    told = {(layouts[first], layouts[second], int(x), int(y)) for first, second, x, y in zip(*columns, strict=True)}
    boxed = [(first, second, x, y) for first, second, x, y in told if max(first, second) <= 8]
    assert boxed or min(layouts) > 4
    for first, second, x, y in boxed:
        assert fits(8, chips, first, second, (x, y))
        assert not fits(8, chips, first, second, (x + 1, y))
        assert not fits(8, chips, first, second, (x, y + 1))


@pytest.mark.thorough
def test_idle_chips_are_said():
    found = plan("llama-3.1-70b", "hgx-h100", 7, engine="vllm", modes="aggregated")
    assert found.layout_text.startswith("tp2")  # KV heads allow 1, 2, 4, 8, and one chip holds no 70 billion parameters
    assert (found.idle_chips, found.to_dict()["idle_chips"]) == (1, 1)
    assert plan("llama-3.1-70b", "hgx-h100", 8, engine="vllm").idle_chips == 0


@pytest.mark.slow
def test_no_engine_is_given_layouts_that_it_refuses():
    """Llama-3.2-3B on three of 24 heads, and 14,336 columns on five chips, were plans once."""
    assert {plan("llama-3.2-3b", "hgx-h100", 6, engine=e).pools[-1].layout.tp for e in ("vllm", "typical")} <= {1, 2, 4}
    mixtral = plan("mixtral-8x7b", "hgx-h100", 5)
    for pool in mixtral.pools:
        assert 14_336 * pool.layout.ep % int(pool.layout.stage) == 0
        assert (8 + pool.layout.redundant_experts) % pool.layout.ep == 0


def test_what_an_engine_does_not_start_is_no_lack_of_memory():
    """Three chips of 4 GB hold 9 GB in three parts only, and four KV heads do not come in three."""
    cache = Attention(name="kv", kv_bytes=1000.0, kv_shards=4, heads=12)
    model = model_of(matrix(weights=9e9), attention=(cache,), heads=12, layers=1)
    system = machine(size=3, capacity=4e9)
    assert plan(model, system, 3, engine="ideal").feasible
    says = "typical cannot start a layout that fits, such as tp3: tp=3 and the 4 KV heads of toy do not divide each other"
    with pytest.raises(InputError, match=says):
        plan(model, system, 3, engine=engine_named("typical"))


def engine_named(name: str) -> Engine:
    return replace(IDEAL, name=name)
