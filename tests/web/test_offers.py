"""Board of sellers: the price of a request by hand, and what has no sellers."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi")

from steptime.web.boards.offers import Inputs, answer
from steptime.web.page_subject import WrongField


def test_price_of_a_request_is_that_of_its_tokens():
    data = answer(Inputs(model="deepseek-v3", prompt=1000, output=500, cached=0.5)).to_dict()
    rows = data["tables"]["offers"]
    for price, given, written, cached in zip(*(rows[key] for key in ("price", "input", "output", "cache_read")), strict=True):
        # Without a cache price cached input costs as much as input.
        assert price == pytest.approx((500 * given + 500 * (given if cached is None else cached) + 500 * written) / 1e6)
    assert rows["price"] == sorted(rows["price"])
    assert data["figures"][0]["value"] == rows["price"][0]
    assert data["command"] == "steptime prices deepseek-v3 --mix 1000:500:0.5"


def test_models_without_sellers_are_refused_at_their_field():
    for model in ("gpt2", '{"model_type": "llama"}'):
        with pytest.raises(WrongField) as refused:
            answer(Inputs(model=model))
        assert refused.value.field == "model"
