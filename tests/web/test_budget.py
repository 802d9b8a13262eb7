"""The board of budgets: the bill against size, and overtraining against the tokens served."""

import numpy as np
import pytest

pytest.importorskip("fastapi")


import steptime as st
from steptime.scaling.scaling_laws import loss, tokens_for
from tests.conftest import each
from tests.web.page_client import CLIENT

ROUTE = "/api/boards/budget"


def test_its_bill_is_six_n_d_and_what_serving_takes():
    shown = CLIENT.post(ROUTE, json={"served": 200, "law": "hoffmann"}).json()
    found = st.budget("100B@200T", st.Demand(served=200e12), law="hoffmann")
    best, price = found.choice, found.rent / (989.4e12 * found.mfu)
    bill = shown["tables"]["bill"]
    sizes = np.array(bill["params"][50:60])
    tokens = tokens_for("hoffmann", sizes, loss("hoffmann", 100e9, 200e12))
    np.testing.assert_allclose(np.array(bill["training"][50:60]) / best.usd * best.total_flop, 6 * sizes * tokens, rtol=1e-12)
    np.testing.assert_allclose(np.array(bill["serving"][50:60]) / best.usd * best.total_flop, 2 * sizes * 600e12, rtol=1e-12)
    assert shown["marks"]["params"] == pytest.approx(best.params, rel=1e-12)
    assert best.usd / best.total_flop == pytest.approx(price, rel=1e-3)


def test_the_least_is_the_least_and_more_served_means_smaller_models_trained_longer():
    few, many = (CLIENT.post(ROUTE, json={"served": served}).json() for served in (20, 2000))
    for shown in (few, many):
        assert min(usd for usd in shown["tables"]["bill"]["total"] if usd) == pytest.approx(shown["marks"]["usd"], rel=1e-9)
    assert many["marks"]["params"] < few["marks"]["params"]
    assert many["marks"]["ratio"] > few["marks"]["ratio"]
    ratios = few["tables"]["ratios"]
    assert np.interp(2000e12, ratios["served"], ratios["hoffmann"]) == pytest.approx(many["marks"]["ratio"], rel=0.02)


def test_sizes_that_no_tokens_make_as_good_have_no_bill():
    bill = CLIENT.post(ROUTE, json={}).json()["tables"]["bill"]
    assert bill["total"][0] is None
    assert bill["total"][-1] > 0


@each("quality", ["large", "100B@", "no-such-model@1T"])
def test_a_wrong_quality_is_told_at_its_field(quality):
    answer = CLIENT.post(ROUTE, json={"quality": quality})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["field"] == "quality"
    # The message names the field of the page, not the option of the command line.
    assert "--" not in answer.json()["detail"][0]["msg"]
