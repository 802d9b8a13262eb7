"""Results at the edges of what is asked: no points at all, no rent, names where systems go, things of another kind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import steptime as st
from tests.conftest import CHOICE_ALONE, each


def test_a_step_of_no_points_is_an_empty_table():
    step = st.decode_step("llama-3.1-8b", "hgx-h100", batch=np.array([], dtype=int), context=10)
    assert step.total.shape == step.bound.shape == (0,)
    assert step.to_dict()["total_s"] == step.to_dict()["bound"] == []
    assert step.to_csv().startswith("total_s,")


@pytest.mark.slow
def test_no_rent_is_said_in_words():
    plan = st.plan("llama-3.1-8b", "m3-ultra", st.Workload(input_tokens=100, output_tokens=100))
    assert "cost: no rent known" in repr(plan)
    assert "rent: not known" in repr(st.load_system("m3-ultra"))
    assert "rent: 2.00 USD/h per chip" in repr(st.vary("m3-ultra", {"rent": 2}))


def test_a_system_that_is_named_can_be_varied():
    named = st.vary("hgx-h100", {"chip.hbm.bandwidth": 16e12})
    assert named.chip.hbm.bandwidth == st.vary(st.load_system("hgx-h100"), {"chip.hbm.bandwidth": 16e12}).chip.hbm.bandwidth
    assert named.chip.hbm.bandwidth == 16e12


ENGINE = Path(st.__file__).parent / "data" / "engines" / "vllm.toml"
WORK = st.Workload(input_tokens=100, output_tokens=10)


@pytest.mark.thorough
def test_an_engine_may_be_a_path_and_a_mode_a_word(closed_forms):
    by_path = st.decode_step("llama-3.1-8b", "hgx-h100", batch=1, context=10, engine=ENGINE)
    assert by_path.total == st.decode_step("llama-3.1-8b", "hgx-h100", batch=1, context=10, engine="vllm").total
    assert st.plan("llama-3.1-8b", "hgx-h100", WORK, modes="aggregated", **CHOICE_ALONE).mode == "aggregated"


@each(
    "asked, says",
    [
        (lambda: st.decode_step("llama-3.1-8b", "hgx-h100", batch=1, context=1, engine={}), "an engine is a name"),
        (lambda: st.decode_step("llama-3.1-8b", "hgx-h100", batch=1, context=1, layout="tp8"), "a layout is a Layout"),
        (lambda: st.plan("llama-3.1-8b", "hgx-h100", {"input_tokens": 1}, alternatives=False), "a workload is a Workload"),
        (lambda: st.plan("llama-3.1-8b", "hgx-h100", WORK, {"ttft": 1}, alternatives=False), "a pair of limits is a Slo"),
        (lambda: st.simulate("llama-3.1-8b", "hgx-h100", [1, 2]), "the traffic is a Traffic"),
        (lambda: st.open_loop(20, 10, 512, 1), "the length of inputs is a Lengths"),
    ],
)
def test_things_of_another_kind_are_refused(asked, says):
    with pytest.raises(st.InputError, match=says):
        asked()


@pytest.mark.slow
def test_bounds_are_the_same_to_the_last_bit_in_every_process():
    code = (
        "import steptime as st; x = st.Layout(tp=2, dp=8, ep=16, pp=2, microbatches=2)\n"
        "steps = [st.decode_step('deepseek-v3', 'hgx-h200', batch=b, context=4097, layout=x) for b in (64, 77, 301)]\n"
        "print([float(step.upper).hex() for step in steps])"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(told) == 1
