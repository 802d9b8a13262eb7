"""The board of systems side by side: its numbers are those of plans."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi")


import steptime as st
from tests.web.page_client import CLIENT

GIVEN = {"model": "llama-3.1-8b", "systems": "hgx-h100, hgx-b200", "prompt": 1024, "output": 256, "speed": 40.0, "ttft": 1.0}


def ask(**given):
    return CLIENT.post("/api/boards/compare", json=GIVEN | given)


@pytest.mark.thorough
def test_numbers_are_those_of_a_comparison(monkeypatch, closed_forms):
    # What would reverse the order is not on the board.
    monkeypatch.setattr("steptime.sweeps.ranking.flips", lambda *_: ())
    found = ask().json()["tables"]["systems"]
    workload = st.Workload(input_tokens=1024, output_tokens=256)
    right = st.compare("llama-3.1-8b", ["hgx-h100", "hgx-b200"], workload, st.Slo(tpot=1 / 40, ttft=1.0)).standings
    assert found["system"] == [one.system for one in right]
    for at, one in enumerate(right):
        told = (
            found["cost"][at],
            found["low"][at],
            found["high"][at],
            found["speed"][at],
            found["ttft"][at],
            found["per_chip"][at],
        )
        cost, speed = one.usd_per_million_output_tokens, one.tokens_per_second_per_user
        assert told == pytest.approx((cost, *one.cost_range, speed, one.ttft, one.tokens_per_second_per_chip), rel=1e-12)


def test_more_speed_costs_no_less_and_the_cheapest_is_first(closed_forms):
    answers = [ask(speed=speed).json() for speed in (40, 120)]
    slow, fast = (answer["tables"]["systems"] for answer in answers)
    assert slow["cost"] == sorted(slow["cost"])
    assert min(fast["cost"]) >= min(slow["cost"]) * (1 - 1e-9)
    # The note on measured runs stands where runs are drawn, here nowhere.
    assert all(answer["notes"] == answer["tables"]["runs"]["system"] == [] for answer in answers)


@pytest.mark.thorough
def test_what_does_not_fit_stands_last_with_its_reason(closed_forms):
    found = ask(model="deepseek-ai/DeepSeek-V3", systems="hgx-h100,hgx-b200", ttft=10.0, speed=20.0).json()["tables"]["systems"]
    assert found["system"] == ["hgx-b200", "hgx-h100"]
    assert found["cost"][1] is None
    assert "does not fit" in found["reason"][1]


def test_wrong_inputs_are_told_with_their_field():
    for systems in ("hgx-h100,nope", "", "a,b,c,d,e,f,g"):
        found = ask(systems=systems)
        assert found.status_code == 422
        assert found.json()["detail"][0]["field"] == "systems"


@pytest.mark.thorough
def test_models_stand_side_by_side_on_one_system(closed_forms):
    body = {"models": "llama-3.1-8b, qwen3-32b", "systems": "hgx-h100", "prompt": 1000, "output": 200, "speed": 30, "ttft": 2}
    table = CLIENT.post("/api/boards/compare", json=body).json()["tables"]["systems"]
    assert table["system"] == ["Llama-3.1-8B", "Qwen3-32B"]
    for name, cost in zip(("llama-3.1-8b", "qwen3-32b"), table["cost"], strict=True):
        own = st.plan(
            name, "hgx-h100", st.Workload(input_tokens=1000, output_tokens=200), st.Slo(tpot=1 / 30, ttft=2),
            alternatives=False, elasticities=False,
        )  # fmt: skip
        assert cost == pytest.approx(own.usd_per_million_output_tokens, rel=1e-12)


def test_too_many_bars_are_refused_at_their_field():
    answer = CLIENT.post("/api/boards/compare", json={"models": "llama-3.1-8b, qwen3-32b"})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["field"] == "models"
