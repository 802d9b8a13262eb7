"""A small machine and the plans of it that tests share."""

from __future__ import annotations

import steptime as st
from steptime.planning.plan_problem import AGGREGATED, DISAGGREGATED, PlanProblem
from steptime.planning.plan_result import Plan
from steptime.planning.planner import plan
from tests.conftest import engine, machine, one_matrix

WORK = st.Workload(input_tokens=1000, output_tokens=201)
NODES = machine(size=4, capacity=11e9, up=1e11, out=1e10, latency=1e-6, out_latency=5e-6)
MODEL = one_matrix(heads=4)
USD = 4 * 2 / 3600  # of four chips a second


def case(chips=4, slo=None) -> PlanProblem:
    return PlanProblem(model=MODEL, system=NODES, workload=WORK, slo=slo or st.Slo(), chips=chips, engine=engine())


def shared() -> Plan:
    return plan(MODEL, NODES, WORK, st.Slo(tpot=8e-3), engine="ideal", modes=(AGGREGATED,))


def apart(chips=None, workload=WORK, **limits) -> Plan:
    return plan(MODEL, NODES, workload, st.Slo(**limits), engine="ideal", modes=(DISAGGREGATED,), chips=chips)
