import numpy as np
import pytest

pytest.importorskip("fastapi")


import steptime as st
from steptime.lecture.current_figures import build_pair
from tests.web.page_client import CLIENT

LLAMA = {"model": "llama-3.1-8b", "system": "hgx-h100", "batch": 64, "context": 8192}
PARTS = ("compute", "weights", "kv", "network", "overhead")


def asked(**inputs):
    answer = CLIENT.post("/api/boards/cost", json=LLAMA | inputs)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_points_are_the_rent_times_the_step_over_the_batch():
    table = asked()["tables"]["costs"]
    picked = list(range(0, len(table["batch"]), 7))[:10]
    batches = np.array([table["batch"][n] for n in picked])
    step = st.decode_step("llama-3.1-8b", "hgx-h100", batch=batches, context=8192, layout=st.Layout(tp=8))
    rent = st.load_system("hgx-h100").rent
    for column, each in (("total", rent.typical), ("low", rent.low), ("high", rent.high)):
        assert [table[column][n] for n in picked] == pytest.approx(step.total * each * 8 / batches * 1e6, rel=1e-12)
    parts = np.sum([[table[name][n] for n in picked] for name in PARTS], axis=0)
    assert parts == pytest.approx([table["total"][n] for n in picked], rel=1e-12)


def test_the_floor_is_the_larger_of_arithmetic_and_cache():
    pair = build_pair(st.load_model("llama-3.1-8b"), st.load_system("hgx-h100"), context=8192)
    each = max(pair.active / pair.mac_rate, 8192 * pair.kv_bytes / pair.bandwidth)
    assert asked(rent=2)["marks"]["floor"] == pytest.approx(each * 8 * 2 / 3600 * 1e6, rel=1e-12)


def test_money_is_in_proportion_to_the_rent_and_a_slow_mode_never_costs_more():
    one, two = asked(rent=1), asked(rent=2)
    assert two["marks"]["total"] == pytest.approx(2 * one["marks"]["total"], rel=1e-12)
    assert two["marks"]["slow"] <= two["marks"]["total"]
    assert two["marks"]["slow_batch"] <= two["marks"]["room"]


def test_what_does_not_fit_is_an_answer():
    answer = asked(model="deepseek-ai/DeepSeek-V3")
    assert "do not fit" in answer["sentence"]
    assert answer["marks"]["slow"] is None
    assert len(answer["tables"]["costs"]["total"]) > 60


@pytest.mark.parametrize(("wrong", "field"), [({"batch": 1e9}, "batch"), ({"system": "m3-ultra"}, "rent")])
def test_wrong_input_is_told_at_its_field(wrong, field):
    answer = CLIENT.post("/api/boards/cost", json=LLAMA | wrong)
    assert (answer.status_code, answer.json()["detail"][0]["field"]) == (422, field)
