"""Why a layout is not among those that a plan looks at."""

from __future__ import annotations

import steptime as st
from steptime.physics.engine import load_engine
from steptime.planning.plan_problem import PlanProblem
from steptime.planning.plan_search import absent_because, fitting
from tests.planning.cases import equal_requests


def test_copies_of_experts_are_those_that_make_them_even():
    """4 x 72 = 256 + 32: no engine exchanges tokens over chips with unequal numbers; one more copy per chip is tried."""
    model, system = st.load_model("deepseek-v3"), st.load_system("gb200-nvl72")
    asked, engine = equal_requests(input_tokens=100, output_tokens=100), load_engine("vllm")
    case = PlanProblem(model=model, system=system, workload=asked, slo=st.Slo(), chips=72, engine=engine)
    copied = st.Layout(dp=72, ep=72, redundant_experts=32)
    assert copied in fitting(case)
    assert absent_because(case, copied) == []
    assert absent_because(case, st.Layout(dp=72, ep=72)) == [
        "256 experts do not divide evenly over ep=72 chips, as vllm needs; try redundant_experts=32"
    ]
    assert absent_because(case, st.Layout(dp=64, ep=64, redundant_experts=64)) == []
    more = absent_because(case, st.Layout(dp=64, ep=64, redundant_experts=128))
    assert more == ["redundant_experts=128 is not tried here; the search tries 0, 64"]
