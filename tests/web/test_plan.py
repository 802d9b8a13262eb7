"""The board of the cheapest deployment: its numbers are the planner's."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi")


import steptime as st
from tests.web.page_client import CLIENT

pytestmark = pytest.mark.usefixtures("closed_forms")
GIVEN = {"model": "openai/gpt-oss-120b", "system": "hgx-h100", "prompt": 2048, "output": 512, "ttft": 2.0}


def ask(**given):
    return CLIENT.post("/api/boards/plan", json=GIVEN | given)


def plan(speed):
    workload = st.Workload(input_tokens=2048, output_tokens=512)
    return st.plan(
        "openai/gpt-oss-120b", "hgx-h100", workload, st.Slo(tpot=1 / speed, ttft=2.0), alternatives=False, elasticities=False
    )


def test_numbers_are_those_of_a_plan():
    found, right = ask(speed=40).json(), plan(40)
    front = found["tables"]["front"]
    assert front["cost"][:10] == pytest.approx([one.usd_per_million_output_tokens for one in right.front[:10]], rel=1e-12)
    assert front["speed"][:10] == pytest.approx([one.tokens_per_second_per_user for one in right.front[:10]], rel=1e-12)
    marks = found["marks"]
    assert (marks["x"], marks["y"]) == pytest.approx((1 / right.tpot, right.usd_per_million_output_tokens), rel=1e-12)
    assert (marks["low"], marks["high"]) == pytest.approx(right.cost_range, rel=1e-12)
    assert len(found["tables"]["chips"]["role"]) == right.chips
    first_token = next(one["value"] for one in found["figures"] if one["name"] == "first token")
    assert first_token == pytest.approx(right.ttft, rel=1e-12)
    assert right.unmeasured is not None
    assert any(right.unmeasured.layout_text in note for note in found["notes"])
    bars = found["tables"]["bars"]
    cache = [
        size
        for row, part, size in zip(bars["row"], bars["part"], bars["size"], strict=True)
        if "memory" in row and part == "kv"
    ]
    assert cache == pytest.approx([float(pool.memory.cache) for pool in right.pools], rel=1e-12)


def test_a_rough_answer_is_near_and_a_faster_one_dearer():
    settled = ask(speed=40).json()
    rough = ask(speed=40, coarse=True).json()
    assert rough["marks"]["rough"]
    assert not settled["marks"]["rough"]
    assert rough["marks"]["y"] == pytest.approx(settled["marks"]["y"], rel=0.2)
    costs = [ask(speed=speed, coarse=True).json()["marks"]["y"] for speed in (20, 60, 100)]
    assert costs == sorted(costs)


@pytest.mark.thorough
def test_what_is_too_fast_or_too_large_is_answered():
    fast = ask(speed=1000).json()
    assert not fast["marks"]["feasible"]
    assert "meets these limits" in fast["sentence"]
    assert len(fast["tables"]["front"]["cost"]) > 3
    large = ask(model="deepseek-ai/DeepSeek-V3").json()
    assert "does not fit" in large["sentence"]
    assert large["tables"]["front"]["cost"] == []


def test_a_wrong_input_is_told_with_its_field():
    found = ask(chips=-1)
    assert found.status_code == 422
    assert found.json()["detail"][0]["field"] == "chips"
