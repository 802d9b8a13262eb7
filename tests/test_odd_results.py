"""Results at the edges of what is asked: no points at all, no rent, names where systems go."""

from __future__ import annotations

import numpy as np

import steptime as st


def test_a_step_of_no_points_is_an_empty_table():
    step = st.decode_step("llama-3.1-8b", "hgx-h100", batch=np.array([], dtype=int), context=10)
    assert step.total.shape == step.bound.shape == (0,)
    assert step.to_dict()["total_s"] == step.to_dict()["bound"] == []
    assert step.to_csv().startswith("total_s,")


def test_no_rent_is_said_in_words():
    plan = st.plan("llama-3.1-8b", "m3-ultra", st.Workload(input_tokens=100, output_tokens=100))
    assert "cost: no rent known" in repr(plan)
    assert "rent: not known" in repr(st.load_system("m3-ultra"))
    assert "rent: 2.00 USD/h a chip" in repr(st.vary("m3-ultra", {"rent": 2 / 3600}))


def test_a_system_that_is_named_can_be_varied():
    named = st.vary("hgx-h100", {"chip.hbm.bandwidth": 16e12})
    assert named.chip.hbm.bandwidth == st.vary(st.load_system("hgx-h100"), {"chip.hbm.bandwidth": 16e12}).chip.hbm.bandwidth
    assert named.chip.hbm.bandwidth == 16e12
