"""A small machine and the plans of it that tests share."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import steptime as st
from steptime.physics.layout import Layout
from steptime.planning import planner
from steptime.planning.plan_problem import AGGREGATED, DISAGGREGATED, PlanProblem
from steptime.planning.plan_result import Plan, Pool
from tests.conftest import CHOICE_ALONE, engine, machine, one_matrix


def equal_requests(**sizes: Any) -> st.Workload:
    """Return requests of one length, as closed forms by hand have them."""
    return st.Workload(**{"input_spread": 0.0, "output_spread": 0.0} | sizes)


def closed_plan(*subject: Any, **settings: Any) -> Plan:
    """Plan by closed forms of means over all layouts, as without numba; the choice alone unless more is asked for."""
    with patch.object(planner, "find_spec", return_value=None):
        return planner.plan(*subject, **{"percentile": "mean", "evidence": "any"} | CHOICE_ALONE | settings)


# All of a plan but its elasticities, which take most time.
WHOLE = {"alternatives": True, "front": True, "diagnostics": True}


WORK = equal_requests(input_tokens=1000, output_tokens=201)
NODES = machine(size=4, capacity=11e9, up=1e11, out=1e10, latency=1e-6, out_latency=5e-6)
MODEL = one_matrix(heads=4)
USD = 4 * 2 / 3600  # of four chips a second


def case(chips=4, slo=None) -> PlanProblem:
    limits = slo or st.Slo()
    return PlanProblem(model=MODEL, system=NODES, workload=WORK, slo=limits, limits=limits, chips=chips, engine=engine())


@cache
def shared() -> Plan:
    return closed_plan(MODEL, NODES, WORK, st.Slo(tpot=8e-3), engine="ideal", modes=(AGGREGATED,), **WHOLE)


@cache
def apart(chips=None, workload=WORK, **limits) -> Plan:
    return closed_plan(MODEL, NODES, workload, st.Slo(**limits), engine="ideal", modes=(DISAGGREGATED,), chips=chips, **WHOLE)


def made(binding=("speed",), role="serve", mode=AGGREGATED, resources=None, **more) -> Plan:
    """Return a plan that no search made, of one pool."""
    step = SimpleNamespace(resources=resources or {"weights": 0.006, "kv": 0.0035, "compute": 0.0005})
    pool = Pool(role=role, layout=Layout(), batch=8, max_num_seqs=9, step=step, memory=None, tokens_per_second=1.0)
    return Plan(
        feasible=True,
        model="toy",
        system="toy",
        engine="test",
        workload=WORK,
        slo=st.Slo(),
        chips=4,
        mode=mode,
        pools=(pool,),
        binding=binding,
        **more,
    )
