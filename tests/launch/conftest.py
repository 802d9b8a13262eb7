"""Plans of one pool, or two, whose every figure a test gives."""

from __future__ import annotations

from dataclasses import replace

import pytest

import steptime as st
from steptime.physics.layout import Layout
from steptime.planning.launch_facts import Served
from steptime.planning.plan_result import Plan, Pool
from tests.conftest import machine, one_matrix
from tests.planning.cases import WORK, closed_plan

PLAN = closed_plan(one_matrix(heads=1), machine(size=1), WORK, engine="ideal")
SERVED = Served(
    checkpoint="org/m", weights="bf16", experts="bf16", kv="bf16", checkpoint_weights="bf16", checkpoint_experts="bf16",
    checkpoint_kv="bf16", routed_experts=256, max_context=5000, vendor="NVIDIA", memory=1e14, fabric="nvlink", domain_chips=8,
    arithmetic=("bf16", "fp8"),
)  # fmt: skip


def pool(role: str = "serve", *, batch: int = 10, chunk: int = 512, kv_tokens_per_rank: float = 9e9, **layout) -> Pool:
    return Pool(
        role=role, layout=Layout(**layout), batch=batch, max_num_seqs=batch, chunk=chunk, kv_tokens_per_rank=kv_tokens_per_rank,
        step=PLAN.pools[0].step, memory=PLAN.pools[0].memory, tokens_per_second=1.0,
    )  # fmt: skip


@pytest.fixture(scope="session")
def build():
    """Return the maker of plans: pools, and what differs in what is served."""

    def made(*pools: Pool, workload: st.Workload | None = None, **served) -> Plan:
        return replace(
            PLAN,
            model="m",
            pools=pools,
            served=replace(SERVED, **served),
            workload=workload or PLAN.workload,
            system="box",
            chips=sum(p.chips for p in pools),
        )

    return made
