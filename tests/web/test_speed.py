"""The board of speed and cost: its numbers are those of the roofline's questions."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi")


import steptime as st
from steptime.lecture.current_figures import build_pair
from tests.web.page_client import CLIENT

GIVEN = {"model": "openai/gpt-oss-120b", "system": "hgx-h100", "context": 4096}


def ask(**given):
    return CLIENT.post("/api/boards/speed", json=GIVEN | given)


def test_numbers_are_those_of_the_roofline():
    found, right = ask().json(), st.roofline("openai/gpt-oss-120b", "hgx-h100", context=4096)
    named = found["tables"]["points"]
    points = {one: cost for names, cost in zip(named["name"], named["cost"], strict=True) for one in names.split(", ")}
    assert points["cheapest"] == pytest.approx(right["cost at that batch"].full, rel=1e-12)
    for name in ("1.5x", "2x", "2.5x"):
        assert points[name] / points["cheapest"] == pytest.approx(right[f"price of {name} the speed"].full, rel=1e-12)
    assert 1 / found["marks"]["ceiling"] == pytest.approx(right["floor of a step"].full, rel=1e-12)
    assert 1 / found["marks"]["floor"] == pytest.approx(right["floor of a step"].closed, rel=1e-12)
    closed = found["tables"]["closed"]
    pair = build_pair(st.load_model("openai/gpt-oss-120b"), st.load_system("hgx-h100"), context=4096)
    for place in range(0, 60, 6):
        assert 1 / closed["speed"][place] == pytest.approx(pair.step_seconds(closed["batch"][place]), rel=1e-12)


def test_the_board_is_cheaper_than_the_full_model_and_speed_is_dear():
    marks = [ask(speed=speed).json()["marks"] for speed in (40, 80, 160)]
    assert [one["cost"] for one in marks] == sorted(one["cost"] for one in marks)
    assert all(one["closed"] < one["cost"] for one in marks)


def test_the_closed_form_at_a_speed_lies_on_its_curve():
    closed = ask().json()["tables"]["closed"]
    for place in (3, 20, 40):
        assert ask(speed=closed["speed"][place]).json()["marks"]["closed"] == pytest.approx(closed["cost"][place], rel=1e-9)


def test_beyond_the_fastest_nothing_is_to_be_had():
    found = ask(speed=2000).json()
    assert found["marks"]["cost"] is None
    assert "out of reach" in found["sentence"]
    alone = ask(model="deepseek-ai/DeepSeek-V3").json()
    assert "do not fit" in alone["sentence"]
    assert alone["tables"]["full"]["speed"] == []


def test_a_wrong_input_is_told_with_its_field():
    found = ask(context=1_000_000)
    assert found.status_code == 422
    assert found.json()["detail"][0]["field"] == "context"
