import numpy as np
import pytest

pytest.importorskip("fastapi")


import steptime as st
from tests.conftest import each
from tests.web.page_client import CLIENT


def asked(**inputs):
    answer = CLIENT.post("/api/boards/moe", json=inputs)
    assert answer.status_code == 200, answer.text
    return answer.json()


def drawn(table, column):
    """Every second number of a column; what is not drawn is not a number."""
    return [np.nan if one is None else one for one in table[column][:20:2]]


@each("law", ["clark-s-base", "ludziejewski", "abnar"])
def test_points_are_those_of_the_library(law):
    table = asked(active=1, tokens=0.1, law=law)["tables"]["mixtures"]
    rows = st.moe_board(1e9, experts=table["experts"][:20:2], tokens=0.1e12, law=law).rows
    gains = [row.gain if row.gain <= 100 else np.nan for row in rows]
    assert drawn(table, law) == pytest.approx(gains, rel=1e-12, nan_ok=True)
    assert table["weights"][:20:2] == pytest.approx([row.sparsity for row in rows], rel=1e-12)
    prices = [row.usd_per_million_tokens / rows[0].usd_per_million_tokens for row in rows]
    assert table["price"][:20:2] == pytest.approx(prices, rel=1e-12)
    inside = [gain if not row.beyond else np.nan for gain, row in zip(gains, rows, strict=True)]
    assert drawn(table, f"{law}, fitted") == pytest.approx(inside, rel=1e-12, nan_ok=True)


def test_the_lecture_has_sixty_four_experts_for_a_model_four_times_as_large():
    answer = asked(active=0.37, tokens=0.13, experts=64)
    assert answer["marks"]["gain"] == pytest.approx(3.7, rel=0.01)
    assert answer["tables"]["mixtures"]["weights"][12] == pytest.approx(22.0)


def test_more_experts_are_worth_more_and_larger_batches_make_them_cheaper():
    small, large = (asked(batch=batch)["tables"]["mixtures"] for batch in (512, 8192))
    assert np.all(np.diff(small["clark-s-base"]) > 0)
    assert np.all(np.array(large["price"]) <= np.array(small["price"]))


def test_a_law_far_outside_its_runs_says_so():
    answer = asked(law="abnar", experts=256)
    assert "fitted to" in answer["sentence"]
    assert answer["marks"]["gain"] is None


@each("wrong, field", [({"experts": 0}, "experts"), ({"law": "chinchilla"}, "law"), ({"system": "cs-3"}, "system")])
def test_wrong_input_is_told_at_its_field(wrong, field):
    answer = CLIENT.post("/api/boards/moe", json=wrong)
    assert (answer.status_code, answer.json()["detail"][0]["field"]) == (422, field)
