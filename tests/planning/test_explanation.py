"""What `--explain` prints is what the step recorded: its lines add up to the step."""

from __future__ import annotations

import numpy as np
import pytest

import steptime as st
from steptime.physics.engine import load_engine
from steptime.physics.step import mixed_step
from steptime.planning.step_explanation import explain_step
from tests.conftest import every

ENGINES = ("ideal", "vllm", "sglang", "trtllm", "typical")
GIVEN = {
    "decode": {"batch": 576, "context": 4096},
    "verified drafts": {"batch": 576, "context": 4096, "query": 3},
    "mixed": {"batch": 576, "context": 4096, "prompts": 4, "tokens": 512, "prefix": 1000},
    "prefill": {"prompts": 72, "tokens": 2048},
}
LAYOUTS = {
    "deepseek-v3": [
        st.Layout(dp=72, ep=72),
        st.Layout(dp=72, ep=72, microbatches=2),
        st.Layout(tp=4, dp=6, ep=24, pp=3, microbatches=3),
        st.Layout(tp=8, cp=2, pp=2, microbatches=4),
    ],
    "gpt-oss-120b": [st.Layout(tp=8, ep=8), st.Layout(dp=8, ep=8, microbatches=2)],
    "Qwen/Qwen3-Next-80B-A3B-Instruct": [st.Layout(tp=2), st.Layout(tp=2, pp=2, microbatches=2)],
    "llama-3.1-70b": [st.Layout(tp=8), st.Layout(tp=4, pp=2, microbatches=2), st.Layout(tp=8, microbatches=2)],
}


@pytest.mark.parametrize("engine", every(3, ENGINES))
@pytest.mark.parametrize(("model", "layout"), every(2, [(m, x) for m, found in LAYOUTS.items() for x in found]), ids=str)
def test_the_lines_add_up_to_the_step_and_to_each_term(model, layout, engine):
    described, machine, runs_on = st.load_model(model), st.load_system("gb200-nvl72"), load_engine(engine)
    for name, given in GIVEN.items():
        step = mixed_step(described, machine, **given, layout=layout, engine=runs_on)
        lines = explain_step(described, machine, sizes=given, layout=layout, engine=runs_on)
        assert sum(line.seconds for line in lines) == pytest.approx(float(step.total), rel=1e-9), name
        for term, seconds in step.terms.items():
            told = sum(line.seconds for line in lines if line.term == term)
            assert told == pytest.approx(float(seconds), rel=1e-9, abs=1e-15), (name, term)


def test_a_formula_holds_the_numbers_of_one_instance():
    """Llama-3.1-8B on one H100: a layer's down projection has 4,096 x 14,336 weights of 2 bytes, 117 MB."""
    model, system = st.load_model("llama-3.1-8b"), st.load_system("hgx-h100")
    lines = explain_step(model, system, sizes={"batch": 1, "context": 1}, layout=st.Layout(), engine=load_engine("ideal"))
    (down,) = (line for line in lines if line.name.startswith("down_proj"))
    assert down.name == "down_proj x 32"
    assert "117 MFLOP / 990 TFLOP/s" in down.formula or "117 MFLOP / 989 TFLOP/s" in down.formula
    assert "117 MB / 3.35 TB/s = 35.1 µs" in down.formula
    assert down.seconds == pytest.approx(32 * 4096 * 14336 * 2 / 3.35e12, rel=1e-3)


def test_what_hides_behind_operators_is_told_with_no_time():
    """Two micro-batches: the collectives of one pass while the other computes, and count nothing in the step."""
    model, system = st.load_model("deepseek-v3"), st.load_system("gb200-nvl72")
    layout = st.Layout(dp=72, ep=72, microbatches=2)
    given = {"batch": 72 * 256, "context": 4096}
    lines = explain_step(model, system, sizes=given, layout=layout, engine=load_engine("ideal"))
    exchanged = [line for line in lines if line.term in ("dispatch", "combine")]
    assert exchanged
    assert all(line.seconds == 0 for line in exchanged)
    assert np.all([line.seconds > 0 for line in lines if line.term == "experts"])
