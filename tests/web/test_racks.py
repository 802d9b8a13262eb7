"""The board of racks: its numbers are those of the exchange and of the closed forms."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("fastapi")


import steptime as st
from steptime.physics.network_time import exchange
from tests.web.page_client import CLIENT

GIVEN = {"model": "deepseek-ai/DeepSeek-V3", "system": "hgx-h100", "batch": 512, "context": 4096}


def ask(**given):
    return CLIENT.post("/api/boards/racks", json=GIVEN | given)


def test_numbers_are_those_of_the_exchange_and_of_the_board():
    found = ask(racks=4).json()["tables"]
    model, system = st.load_model("deepseek-v3"), st.load_system("hgx-h100")
    op = next(layer.routed for layer, _ in model.layers if layer.routed is not None)
    limits = {"expert_groups": op.expert_groups, "active_groups": op.active_groups}
    times = []
    for racks in range(1, 9):
        moved = exchange(system, 8 * racks, 64, 2 * model.width, experts=256, active=8, **limits)
        times.append(max(float(np.asarray(one)) for one in moved.busy) + float(np.asarray(moved.latency)))
    assert found["exchange"]["experts"] == pytest.approx([one / times[0] for one in times], rel=1e-12)
    assert found["exchange"]["board"] == pytest.approx([1.0, *(9 * (r - 1) / r for r in range(2, 9))], rel=1e-12)


def test_racks_divide_weights_but_no_cache():
    held = ask().json()["tables"]["held"]
    assert held["kv"] == pytest.approx([held["kv"][0]] * 8, rel=1e-12)
    assert [one * racks for one, racks in zip(held["weights"], held["racks"], strict=True)] == pytest.approx(
        [held["weights"][0]] * 8
    )


def test_what_does_not_fit_and_models_without_experts_are_answered():
    full = ask(batch=65536, context=65536).json()
    assert not full["marks"]["fits"]
    assert "more than its memory" in full["sentence"]
    dense = ask(model="llama-3.1-8b").json()
    assert "exchange" not in dense["tables"]
    assert "no experts" in dense["sentence"]


def test_a_wrong_input_is_told_with_its_field():
    found = ask(racks=9)
    assert found.status_code == 422
    assert found.json()["detail"][0]["field"] == "racks"
