"""Why a layout is not among those that a plan looks at."""

from __future__ import annotations

import steptime as st
from steptime.physics.engine import load_engine
from steptime.planning.candidates import Case
from steptime.planning.search import absent_because, fitting


def test_copies_of_experts_are_told_as_not_tried():
    model, system = st.load_model("deepseek-v3"), st.load_system("gb200-nvl72")
    asked, engine = st.Workload(input_tokens=100, output_tokens=100), load_engine("vllm")
    case = Case(model=model, system=system, workload=asked, slo=st.Slo(), chips=72, engine=engine)
    copied = st.Layout(dp=72, ep=72, redundant_experts=32)
    assert copied not in fitting(case)
    assert absent_because(case, copied) == ["redundant_experts=32 is not tried here; ways that are: 0"]
    assert absent_because(case, st.Layout(dp=72, ep=72)) == []
