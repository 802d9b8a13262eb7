"""The board of trains: the simulation beside the closed form."""

import numpy as np
import pytest

pytest.importorskip("fastapi")


import steptime as st
from steptime.simulation.scheduling_policy import Policy
from tests.web.page_client import CLIENT

ROUTE = "/api/boards/trains"


def test_its_requests_are_those_of_the_simulator():
    shown = CLIENT.post(ROUTE, json={"step": 20, "rate": 500, "seats": 64, "seed": 3}).json()
    traffic = st.open_loop(500, 400, st.Lengths(mean=1), st.Lengths(mean=1), seed=3)
    policy = Policy(kind="train", interval=0.02, max_num_seqs=64)
    requests = st.simulate("llama-3.1-8b", "hgx-h100", traffic, policy=policy, engine="ideal").requests
    for name, of in (("arrival", "arrival"), ("departure", "scheduled"), ("end", "finish")):
        np.testing.assert_allclose(shown["tables"]["requests"][name][:10], requests[of][:10], rtol=1e-12)
    assert shown["marks"]["simulated_mean"] == pytest.approx((requests["finish"] - requests["arrival"]).mean(), rel=1e-12)


def test_a_request_takes_one_to_two_steps_while_trains_are_not_full_and_a_shorter_step_helps():
    slow, fast = (CLIENT.post(ROUTE, json={"step": step, "rate": 300}).json() for step in (40, 10))
    for shown, step in ((slow, 0.04), (fast, 0.01)):
        took = shown["tables"]["waits"]["simulated"]
        assert min(took) >= step * (1 - 1e-9)
        assert max(took) <= 2 * step * (1 + 1e-9)
        assert shown["marks"]["simulated_mean"] == pytest.approx(1.5 * step, rel=0.05)
    assert fast["marks"]["simulated_worst"] < slow["marks"]["simulated_mean"]


def test_too_few_seats_are_an_answer():
    shown = CLIENT.post(ROUTE, json={"rate": 1000, "seats": 5}).json()
    assert "the queue grows" in shown["sentence"]
    assert shown["marks"]["simulated_worst"] > 10 * shown["marks"]["worst"]


def test_a_wrong_rate_is_told_at_its_field():
    answer = CLIENT.post(ROUTE, json={"rate": -1})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["field"] == "rate"
