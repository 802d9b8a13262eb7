"""The steps and equations that an explanation shows of a plan's pools, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.physics.layout import Layout
from steptime.physics.step import mixed_step
from steptime.planning.deployment import Pool
from steptime.planning.explanation import equations, sources, step_given
from steptime.planning.planner import plan
from steptime.planning.steady import aggregated
from tests.conftest import engine, machine, one_matrix

WORK = st.Workload(input_tokens=1000, output_tokens=201, cached_share=0.25)
PLAN = plan(one_matrix(heads=1), machine(size=1), WORK, engine="ideal", modes=("aggregated",))


def pool(role="serve", batch=64, chunk=500, mixed=True, **layout) -> Pool:
    return replace(
        PLAN.pools[0],
        role=role,
        batch=batch,
        chunk=chunk,
        layout=Layout(**layout),
        mixed=PLAN.pools[0].mixed if mixed else None,
    )


@pytest.mark.parametrize(
    ("given", "mixed", "expected"),
    [
        ({}, False, {"batch": 64, "context": 1100.5, "query": 1}),
        ({}, True, {"batch": 64, "context": 1100.5, "query": 1, "prompts": 1, "tokens": 500, "prefix": 250 + 125}),
        ({"dp": 4}, True, {"batch": 64, "context": 1100.5, "query": 1, "prompts": 4, "tokens": 500, "prefix": 375}),
        ({"chunk": 1600}, True, {"batch": 64, "context": 1100.5, "query": 1, "prompts": 2, "tokens": 750, "prefix": 250}),
        ({"mixed": False}, True, {"batch": 64, "context": 1100.5, "query": 1}),
        ({"role": "prefill", "batch": 8}, False, {"prompts": 8, "tokens": 750, "prefix": 250}),
    ],
)
def test_the_step_of_a_pool(given, mixed, expected):
    assert step_given(pool(**given), WORK, mixed=mixed) == expected


@pytest.mark.parametrize("chunk", [500, 1600])
def test_the_step_shown_is_the_one_planned(chunk):
    model, system = one_matrix(), machine()
    state = aggregated(model, system, WORK, layout=Layout(), batch=64, chunk=chunk, engine=engine())
    for mixed, planned in ((False, state.decode), (True, state.mixed)):
        shown = mixed_step(model, system, engine="ideal", **step_given(pool(chunk=chunk), WORK, mixed=mixed))
        assert shown.total == pytest.approx(float(planned.total))


def test_equations_carry_their_numbers():
    """64 x 750 / (200 x 500 x 1) = 0.48."""
    text = equations(one_matrix(), replace(pool(), chunk_share=0.48), WORK)
    step, mixed = (float(one.total) for one in (PLAN.pools[0].step, PLAN.pools[0].mixed))
    assert text[0] == "batch 64 = 64 sequences x 1 attention groups"
    assert text[1] == "mean context 1,100 = input + output / 2"
    assert text[2].endswith("= 64 x 750 / (200 x 500 x 1) = 0.480")
    assert text[3].startswith("time per token = (1 - f) x ")
    value, unit = text[3].rpartition("= ")[2].split()
    assert float(value) * {"s": 1, "ms": 1e-3, "us": 1e-6}[unit] == pytest.approx(0.52 * step + 0.48 * mixed, rel=0.01)
    assert len(text) == 4


def test_equations_of_groups_and_stages():
    text = equations(one_matrix(), pool(mixed=False, batch=66, dp=4, pp=3, microbatches=3), WORK)
    assert text[0] == "batch 66 = 17 sequences x 4 attention groups, in 3 micro-batches"
    assert text[-1] == "the fullest of 3 stages holds 40.0% of the layers"
    assert len(text) == 3


def test_sources_of_a_step_end_with_the_rent():
    found = sources(st.load_system("hgx-h100"))
    names = [name for name, *_ in found]
    assert names[-1] == "rent"
    assert "chip.hbm.bandwidth" in names
    assert not any(name.startswith("chip.power") for name in names)
    assert all(np.array([len(row) for row in found]) == 5)
