"""The board of price lists read backward."""

import numpy as np
import pytest

pytest.importorskip("fastapi")


import steptime as st
from tests.web.page_client import CLIENT

ROUTE = "/api/boards/prices"
LIST = {"input": 2, "output": 12, "cache_read": 0.2, "tiers": [{"above_tokens": 200_000, "input": 4, "output": 18}]}


def test_its_readings_are_those_of_the_library():
    shown = CLIENT.post(ROUTE, json={}).json()
    found = st.read_prices(LIST)
    sizes = dict(zip(shown["tables"]["bytes"]["name"], shown["tables"]["bytes"]["bytes"], strict=True))
    assert sizes["price break only"] == pytest.approx(100e9 / (300 * 200_000), rel=1e-12)
    assert sizes["break and ratio"] == pytest.approx(found.ideal.joint_kv_bytes, rel=1e-12)
    kv = found["kv_bytes_per_token"]
    for name, value in (("low", kv.interval[0]), ("high", kv.interval[1]), ("median", kv.value), ("bound", kv.bound)):
        assert shown["marks"][name] == pytest.approx(value, rel=1e-12)
    prices = shown["tables"]["prices"]
    below = np.array(prices["context"]) <= 200_000
    assert set(np.array(prices["output"])[below]) == {12}
    assert set(np.array(prices["output"])[~below]) == {18}
    joint = np.array(prices["together"]) / 2
    expected = found.ideal.joint_batch + np.array(prices["context"]) / found.ideal.balanced
    np.testing.assert_allclose(joint, expected, rtol=1e-12)


def test_a_later_break_means_fewer_bytes():
    sizes = [
        CLIENT.post(ROUTE, json={"tier": tier}).json()["tables"]["bytes"]["bytes"][0] for tier in (50_000, 200_000, 800_000)
    ]
    assert sizes == sorted(sizes, reverse=True)


def test_a_list_without_a_step_of_output_is_not_identifiable():
    shown = CLIENT.post(ROUTE, json={"dearer": 12}).json()
    assert not shown["marks"]["identifiable"]
    assert "does not determine" in shown["sentence"]
    assert shown["tables"]["bytes"]["bytes"][0] is None


def test_a_hit_dearer_than_input_is_told_at_its_field():
    answer = CLIENT.post(ROUTE, json={"cached": 3})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["field"] == "cached"
