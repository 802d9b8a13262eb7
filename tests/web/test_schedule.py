"""The board of training schedules: intervals of the walk, and closed forms."""

import numpy as np
import pytest

pytest.importorskip("fastapi")


from steptime.training.schedule_timeline import simulate_step
from steptime.training.schedules.schedule import schedule_named
from steptime.web.boards.schedule import NAMES
from tests.conftest import each
from tests.web.page_client import CLIENT

ROUTE = "/api/boards/schedule"


def test_its_boxes_are_those_of_the_walk():
    shown = CLIENT.post(ROUTE, json={"schedule": "interleaved", "stages": 4, "microbatches": 8, "virtual": 2}).json()
    done = simulate_step(schedule_named("interleaved").order(4, 8, 2), 0.5, 1.0, 0.5)
    boxes = shown["tables"]["boxes"]
    np.testing.assert_allclose(boxes["start"], done.start, rtol=1e-12)
    np.testing.assert_allclose(boxes["end"], done.end, rtol=1e-12)
    assert shown["marks"]["idle"] == pytest.approx(float(done.idle.max()), rel=1e-12)
    assert shown["marks"]["held"] == pytest.approx(float(done.in_flight.max()), rel=1e-12)


@each("name", NAMES)
def test_the_walk_is_as_the_closed_form_says(name):
    shown = CLIENT.post(ROUTE, json={"schedule": name, "stages": 4, "microbatches": 12}).json()
    figures = {figure["name"]: figure["value"] for figure in shown["figures"]}
    assert figures["idle, simulated"] == pytest.approx(figures["idle, closed form"], rel=1e-12)
    assert figures["in flight, simulated"] == pytest.approx(figures["in flight, closed form"], rel=1e-12)


def test_more_microbatches_leave_a_smaller_share_idle():
    shares = [CLIENT.post(ROUTE, json={"microbatches": m}).json()["marks"]["share"] for m in (4, 8, 16, 32)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == pytest.approx(3 / 7, rel=1e-12)


def test_a_schedule_that_cannot_run_is_an_answer_with_the_others():
    shown = CLIENT.post(ROUTE, json={"schedule": "dualpipe", "stages": 5}).json()
    assert "even number of stages" in shown["sentence"]
    assert shown["tables"]["boxes"]["start"] == []
    assert "1f1b" in shown["tables"]["schedules"]["name"]
    assert "dualpipe" not in shown["tables"]["schedules"]["name"]


def test_an_unknown_schedule_is_told_at_its_field():
    answer = CLIENT.post(ROUTE, json={"schedule": "2f2b"})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["field"] == "schedule"
