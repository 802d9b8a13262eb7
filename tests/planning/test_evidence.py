"""Evidence for layouts, one by one and in tables; and what a plan prefers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.physics.layout import Layout, stacked
from steptime.planning.evidence import ANY, MEASURED, PUBLISHED, deployment_evidence, layout_evidence
from steptime.planning.plan_problem import AGGREGATED, DISAGGREGATED, Pinned
from steptime.planning.plan_search import chunk_sizes, fitting, lawful, search
from tests.conftest import engine, machine
from tests.planning.cases import NODES, case

RUNS = engine(fit={"names": [], "interval": {}, "ranks": 30, "systems": {"toy": 30, "amd": 500}})
TOY, AMD = machine(vendor="NVIDIA"), replace(machine(vendor="AMD"), name="amd")
# Layouts with their evidence, and that of ranks on AMD chips where it differs.
ROWS = [
    (Layout(), MEASURED, MEASURED),
    (Layout(tp=8), MEASURED, MEASURED),
    (Layout(dp=8, ep=8), MEASURED, PUBLISHED),
    (Layout(tp=2, dp=4, ep=8), MEASURED, PUBLISHED),
    (Layout(dp=3, ep=3), ANY, ANY),  # neither a power of two nor whole nodes
    (Layout(dp=5, tp=8, ep=40), PUBLISHED, PUBLISHED),  # five nodes of eight chips
    (Layout(tp=16), PUBLISHED, PUBLISHED),  # more chips than were measured
    (Layout(dp=72, ep=72), PUBLISHED, PUBLISHED),
    (Layout(tp=4, dp=3, ep=12), ANY, ANY),
    (Layout(tp=3), ANY, ANY),
    (Layout(tp=6, dp=4, ep=24), ANY, ANY),  # three nodes, but six chips for the heads
    (Layout(tp=2, pp=2), ANY, ANY),
    (Layout(tp=2, cp=2), ANY, ANY),
    (Layout(tp=2, microbatches=2), PUBLISHED, PUBLISHED),
    (Layout(tp=4, replicas=3), MEASURED, MEASURED),  # any number of replicas
]


@pytest.mark.parametrize(("system", "column"), [(TOY, 1), (AMD, 2)])
def test_layouts_of_a_table_have_the_evidence_of_each(system, column):
    layouts, expected = [row[0] for row in ROWS], [row[column] for row in ROWS]
    assert [deployment_evidence(RUNS, system, layout) for layout in layouts] == expected
    measured, published = layout_evidence(stacked(layouts), RUNS, system)
    assert measured.tolist() == [kind == MEASURED for kind in expected]
    assert published.tolist() == [kind != ANY for kind in expected]


def test_few_runs_on_a_system_measure_nothing_there():
    few = replace(RUNS, fit=RUNS.fit | {"systems": {"toy": 29}})
    for unfitted in (few, replace(RUNS, fit={}), st.load_engine("ideal")):
        assert deployment_evidence(unfitted, TOY, Layout(tp=8)) == PUBLISHED
        assert not np.any(layout_evidence(stacked([Layout(), Layout(tp=8)]), unfitted, TOY)[0])


def test_data_parallel_ranks_are_measured_with_runs_of_them():
    """Of the shipped engines only TensorRT-LLM has enough; SGLang and vLLM publish them."""
    few = replace(RUNS, fit=RUNS.fit | {"ranks": 29})
    kinds = [[deployment_evidence(one, TOY, layout) for layout in (Layout(tp=8), Layout(dp=8, ep=8))] for one in (RUNS, few)]
    assert kinds == [[MEASURED, MEASURED], [MEASURED, PUBLISHED]]
    shipped = {name: int(st.load_engine(name).fit["ranks"]) for name in ("sglang", "trtllm", "vllm")}
    assert shipped["trtllm"] > 45
    assert 30 > shipped["vllm"] > shipped["sglang"] == 0


def test_separate_pools_are_published_at_best():
    assert deployment_evidence(RUNS, TOY, Layout(tp=8), Layout(tp=4)) == PUBLISHED
    assert deployment_evidence(RUNS, TOY, Layout(tp=8), Layout(tp=2, pp=2)) == ANY
    assert deployment_evidence(RUNS, TOY, Layout(tp=3), Layout(tp=8)) == ANY


def test_a_search_takes_only_layouts_with_the_evidence_asked_for():
    given = replace(case(), engine=RUNS)
    every = lawful(given)
    kinds = [deployment_evidence(RUNS, given.system, layout) for layout in every]
    assert {MEASURED, PUBLISHED, ANY} <= set(kinds)
    assert lawful(replace(given, evidence=MEASURED)) == [
        layout for layout, kind in zip(every, kinds, strict=True) if kind == MEASURED
    ]
    assert lawful(replace(given, evidence=PUBLISHED)) == [
        layout for layout, kind in zip(every, kinds, strict=True) if kind != ANY
    ]
    pinned = lawful(replace(given, pinned=Pinned(sizes=(("tp", 2), ("pp", 1)))))
    assert pinned == [layout for layout in every if (layout.tp, layout.pp) == (2, 1)] != []


def test_runs_had_one_pool_and_chunks_of_512_tokens_and_more():
    given = replace(case(), engine=RUNS, evidence=MEASURED)
    (table,) = search(given, (AGGREGATED, DISAGGREGATED), fitting(given))
    assert (table.mode, min(table.chunk)) == (AGGREGATED, 512)
    assert search(given, (DISAGGREGATED,), fitting(given)) == []
    other = replace(given, evidence=PUBLISHED)
    modes = [table.mode for table in search(other, (AGGREGATED, DISAGGREGATED), fitting(other))]
    assert modes == [AGGREGATED, DISAGGREGATED]


def test_chunks_are_powers_of_two_and_one_whole_prompt():
    requests = st.Workload(input_tokens=3000, output_tokens=1)
    powers = [128, 256, 512, 1024, 2048, 4096, 8192, 16384]
    assert chunk_sizes(requests).tolist() == sorted([*powers, 3000])
    assert chunk_sizes(requests, MEASURED).tolist() == sorted([*powers[2:], 3000])
    assert chunk_sizes(requests, ANY, 700).tolist() == [700]
    long = st.Workload(input_tokens=50_000, output_tokens=1)
    assert chunk_sizes(long, PUBLISHED).tolist() == powers[2:]


@pytest.mark.thorough
def test_a_plan_of_a_real_model_prefers_what_was_measured(closed_forms):
    """Llama 70B on eight H100: one pool without pipeline stages, although other layouts would be a third cheaper."""
    found = st.plan(
        "llama-3.1-70b", "hgx-h100", st.Workload(input_tokens=1000, output_tokens=200), st.Slo(tpot=0.02, ttft=1.0),
        engine="vllm", chips=8, alternatives=False, elasticities=False, front=False,
    )  # fmt: skip
    assert (
        found.evidence
        == MEASURED
        == deployment_evidence(st.load_engine("vllm"), st.load_system("hgx-h100"), found.pools[0].layout)
    )
    assert (len(found.pools), found.pools[0].layout.pp) == (1, 1)
    assert found.unmeasured is not None
    assert found.unmeasured.usd_per_million_output_tokens < 0.9 * found.usd_per_million_output_tokens


@pytest.mark.thorough
def test_the_cheapest_layout_of_all_costs_at_most_the_cheapest_published_one():
    """DeepSeek-V3 on 16 H200, with simulations: a rough search of all layouts finds 3.44 USD; published pools cost 2.03."""
    asked = {"chips": 16, "alternatives": False, "elasticities": False, "front": False}
    subject = "deepseek-v3", "hgx-h200", st.Workload(input_tokens=4096, output_tokens=1024), st.Slo(tpot=0.04, ttft=4)
    preferred, published, free = (st.plan(*subject, evidence=level, **asked) for level in (MEASURED, PUBLISHED, ANY))
    assert preferred.evidence == MEASURED
    assert preferred.unmeasured.usd_per_million_output_tokens <= published.usd_per_million_output_tokens * (1 + 1e-9)
    assert preferred.unmeasured.usd_per_million_output_tokens == pytest.approx(free.usd_per_million_output_tokens, rel=0.05)


TABLES = {"tpot": {"decode": [0.9, 1.1], "mixed": [0.9, 1.2]}, "ttft": {"prompt": [0.9, 1.1], "queue": [0.9, 1.2]}}


@pytest.mark.parametrize(
    ("name", "expected"), [("toy", MEASURED), pytest.param("other", PUBLISHED, marks=pytest.mark.thorough)]
)
def test_a_plan_tells_what_layouts_with_less_evidence_would_cost(name, expected, closed_forms):
    """On a system with measured runs, and on one without."""
    on, given = replace(NODES, name=name), case()
    subject = (given.model, on, given.workload, st.Slo(tpot=5e-3))
    asked = {"engine": replace(RUNS, fit=RUNS.fit | {"interval": TABLES}), "alternatives": False, "elasticities": False}
    found = st.plan(*subject, **asked, front=False)
    free = st.plan(*subject, **asked, front=False, diagnostics=False, evidence=ANY)
    assert (found.evidence, free.unmeasured) == (expected, None)
    if expected == MEASURED:
        assert found.unmeasured.layout_text == free.layout_text != found.layout_text
        # The line on it rests on fewer finalists.
        cost = free.usd_per_million_output_tokens
        assert cost * (1 - 1e-9) <= found.unmeasured.usd_per_million_output_tokens <= 1.05 * cost
        assert free.usd_per_million_output_tokens < found.usd_per_million_output_tokens
    else:
        # The cheapest of all layouts was published.
        assert (found.unmeasured, found.layout_text) == (None, free.layout_text)
