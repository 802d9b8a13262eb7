"""The steps and equations that an explanation shows of a plan's pools, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.cli.views.plan_view import explain_json
from steptime.models.model import Attention, Layer
from steptime.physics.compute_dtype import as_served
from steptime.physics.layout import Layout
from steptime.physics.step import mixed_step
from steptime.planning.plan_result import Pool
from steptime.planning.steady_state import aggregated
from steptime.planning.step_explanation import equations, explain_step, sources, step_given
from tests.conftest import each, engine, experts, machine, matrix, model_of, one_matrix
from tests.planning.cases import closed_plan, equal_requests

WORK = equal_requests(input_tokens=1000, output_tokens=201, cached_share=0.25)
NODES = machine(size=8, up=1e11, out=1e10, latency=1e-6, out_latency=5e-6)
KV = Attention(name="kv", kv_bytes=1000.0, kv_shards=64, heads=64, flops_per_pair_decode=1e7, flops_per_pair_prefill=10.0)
PLAN = closed_plan(one_matrix(heads=1), machine(size=1), WORK, engine="ideal", modes=("aggregated",))


def pool(role="serve", batch=64, chunk=500, reads=1.0, mixed=True, **layout) -> Pool:
    return replace(
        PLAN.pools[0],
        role=role,
        batch=batch,
        chunk=chunk,
        chunks_per_mixed_step=reads,
        layout=Layout(**layout),
        mixed=PLAN.pools[0].mixed if mixed else None,
    )


@each(
    "given, mixed, expected",
    [
        ({}, False, {"batch": 64, "context": 1100.5, "query": 1}),
        ({}, True, {"batch": 64, "context": 1100.5, "query": 1, "prompts": 1, "tokens": 500, "prefix": 250 + 125}),
        (
            {"dp": 4, "reads": 3.0},  # the longest prefix of three is that of the last chunk
            True,
            {"batch": 64, "context": 1100.5, "query": 1, "prompts": 3, "tokens": 500, "prefix": 250 + 250},
        ),
        (
            {"chunk": 1600, "reads": 1.5},
            True,
            {"batch": 64, "context": 1100.5, "query": 1, "prompts": 1.5, "tokens": 750, "prefix": 250},
        ),
        ({"mixed": False}, True, {"batch": 64, "context": 1100.5, "query": 1}),
        ({"role": "prefill", "batch": 8}, False, {"prompts": 8, "tokens": 750, "prefix": 250}),
    ],
)
def test_the_step_of_a_pool(given, mixed, expected):
    assert step_given(pool(**given), WORK, mixed=mixed) == expected


@pytest.mark.parametrize(("chunk", "dp"), [(500, 1), (1600, 1), (500, 4)])
def test_the_step_shown_is_the_one_planned(chunk, dp):
    model, system, layout = model_of(experts(), attention=(KV,)), machine(), Layout(dp=dp, ep=dp)
    state = aggregated(model, system, WORK, layout=layout, batch=64, chunk=chunk, engine=engine())
    planned = pool(chunk=chunk, reads=float(state.chunks_per_mixed_step), dp=dp, ep=dp)
    for mixed, step in ((False, state.decode), (True, state.mixed)):
        shown = mixed_step(model, system, engine="ideal", layout=layout, **step_given(planned, WORK, mixed=mixed))
        assert shown.total == pytest.approx(float(step.total))


def test_equations_carry_their_numbers():
    """63 x 2 / 200 = 0.63 chunks a step: in half of them, 1.28 in each."""
    given = replace(pool(reads=1.28, dp=4, ep=4), chunk_share=0.5)
    text = equations(one_matrix(), given, WORK, utilisation=0.25)
    step, mixed = (float(one.total) for one in (PLAN.pools[0].step, PLAN.pools[0].mixed))
    assert text[0] == "batch 64 = 16 sequences x 4 data-parallel ranks"
    assert text[1].startswith("mean context of decode 1,100 = input + output x (1 + output spread^2) / 2 = ")
    assert text[2] == (
        "chunks per step = (batch - 1 / replicas) x chunks per prompt / (output - 1) = 63 x 2 / 200 = 0.630: "
        "1.28 in each mixed step, and a token meets mixed steps with the share f = 0.500"
    )
    assert text[3].startswith("time per token = (1 - f) x ")
    value, unit = text[3].rpartition("= ")[2].split()
    assert float(value) * {"s": 1, "ms": 1e-3, "us": 1e-6}[unit] == pytest.approx(0.5 * step + 0.5 * mixed, rel=0.01)
    assert text[4] == "prefill queue: 4 slots for a chunk per step, in use for 25.0 % of the time"
    assert len(text) == 5
    alone = equations(one_matrix(), replace(pool(), chunk_share=0.64), WORK, utilisation=0.9)
    assert alone[4] == "prefill queue: 1 slot for a chunk per step, in use for 90.0 % of the time"


@pytest.mark.parametrize("mode", ["aggregated", "disaggregated"])
def test_lines_of_a_plan_add_up_to_the_steps_of_its_pools(mode):
    """Of an engine that keeps a small cache where nothing else is told: the steps are those of the model as it is served."""
    told, system, on = replace(one_matrix(heads=4), kv_told=False), machine(size=4, capacity=11e9), engine(small_kv=1.0)
    found = closed_plan(told, system, WORK, engine=on, modes=(mode,), alternatives=False)
    assert as_served(told, system, on) != told
    for shown in explain_json(told, system, found, on)["pools"]:
        for one in shown["passes"]:
            assert sum(line.seconds for line in one["lines"]) == pytest.approx(float(one["total_s"]))


def test_equations_of_groups_and_stages():
    text = equations(one_matrix(), pool(mixed=False, batch=66, dp=4, pp=3, microbatches=3), WORK, utilisation=0.0)
    assert text[0] == "batch 66 = 17 sequences x 4 data-parallel ranks, in 3 micro-batches"
    assert text[-1] == "the fullest of 3 stages contains 40.0 % of the layers"
    assert len(text) == 3
    two = equations(one_matrix(), pool(mixed=False, pp=2), WORK, utilisation=0.0)
    assert two[-1] == "the fullest of 2 stages contains 50.0 % of the layers"


STEM = (
    matrix(name="head", term="head", rows="outputs", weights=2e9),
    matrix(name="embedding", term="embedding", rows="lookup"),
)
GIVEN = {"batch": 64, "context": 4096, "prompts": 2, "tokens": 100, "prefix": 50}


def lines_of(model, on, layout):
    step = mixed_step(model, NODES, layout=layout, engine=on, **GIVEN)
    return step, explain_step(model, NODES, sizes=GIVEN, layout=layout, engine=on)


@each(
    "op, on, layout",
    [
        (experts(), engine(), Layout(tp=2, dp=2, ep=2)),
        (experts(), engine(), Layout(tp=2, pp=2)),
        (experts(), engine(), Layout(cp=2)),
        (matrix(name="other"), engine(memory_efficiency=0.8, compute_efficiency=0.5, roofline_norm=2.0), Layout(tp=2)),
        (matrix(name="other"), engine(attention_time=1.5), Layout(tp=2)),
        (matrix(name="other"), engine(seconds_per_layer=1e-5, seconds_per_step=1e-3), Layout()),
    ],
)
def test_lines_add_up_to_their_terms(op, on, layout):
    """One micro-batch; each line of a term among those of its term, the longest first."""
    step, lines = lines_of(model_of(matrix(), op, attention=(KV,), stem=STEM), on, layout)
    terms = [name for name, value in step.terms.items() if float(value) > 0]
    assert [line.term for line in lines] == sorted((line.term for line in lines), key=terms.index)
    for term in terms:
        seconds = [line.seconds for line in lines if line.term == term]
        assert sum(seconds) == pytest.approx(float(step.terms[term]), rel=1e-9)
        assert seconds == sorted(seconds, reverse=True)


def formulas(lines) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in lines:
        collective = line.term in ("dispatch", "combine", "all-reduce")
        found.setdefault(line.term if collective else line.name, []).append(line.formula)
    return found


def test_lines_say_what_is_divided_by_what():
    """32 sequences and a prompt of a hundred tokens in a group of two chips; 264 rows everywhere, 66 a chip."""
    model = model_of(matrix(), experts(), attention=(KV,), stem=STEM)
    _, lines = lines_of(model, engine(memory_efficiency=0.8, compute_efficiency=0.5), Layout(tp=2, dp=2, ep=2))
    said = formulas(lines)
    assert said["matrix x 10"] == ["max(132 GFLOP / 2.00 PFLOP/s / 0.500 = 132 µs, 500 MB / 4.00 TB/s / 0.800 = 156 µs)"]
    assert said["head"] == ["max(66.0 GFLOP / 2.00 PFLOP/s / 0.500 = 66.0 µs, 1.00 GB / 4.00 TB/s / 0.800 = 312 µs)"]
    assert said["kv, decode x 10"] == ["max(655 GFLOP / 2.00 PFLOP/s = 328 µs, 65.5 MB / 4.00 TB/s = 16.4 µs)"]
    # 132 rows of 1,000 values of 2 bytes, half of them twice, in each of two blocks of ten layers
    assert said["all-reduce"] == ["20 x (up 264 kB / 100 GB/s = 2.64 µs + 1.00 µs latency)"]
    # 8 of 64 experts are all on the own side of 0.24 % of the rows; then a chip lacks half of 264 rows
    assert said["dispatch"] == [
        "10 x (up 132 kB / 100 GB/s = 1.32 µs + 1.00 µs latency)",
        "10 x (up 65.8 kB / 100 GB/s = 658 ns + 1.00 µs latency)",
    ]
    assert said["combine"][1] == "10 x (up 132 kB / 100 GB/s = 1.32 µs + 1.00 µs latency)"


def test_lines_of_overheads_and_stages():
    """132 rows of 264 go through each of two stages, divided over two chips; a layer with experts has three blocks."""
    model = model_of(matrix(), experts(), attention=(KV,), stem=STEM)
    on = engine(seconds_per_step=1.0, seconds_per_layer=1e-3, seconds_per_collective=1e-5, network_efficiency=0.5)
    said = formulas(lines_of(model, on, Layout(tp=2, pp=2))[1])
    assert said["host work per step"] == ["1 x 1.00 s"]
    assert said["small kernels per layer"] == ["10 x 1.00 ms"]
    assert said["of a micro-batch through 2 stages"] == [
        "(up 264 kB / 100 GB/s / 0.500 = 5.28 µs + 2.00 µs latency + 2 x 10.0 µs)"
    ]
    assert said["all-reduce"] == ["30 x (up 528 kB / 100 GB/s / 0.500 = 10.6 µs + 1.00 µs latency + 1 x 10.0 µs)"]
    joined = formulas(lines_of(model, engine(roofline_norm=2.0), Layout(tp=2))[1])["matrix x 10"]
    assert joined == ["2-norm(264 GFLOP / 2.00 PFLOP/s = 132 µs, 500 MB / 4.00 TB/s = 125 µs)"]


def test_equal_collectives_of_two_kinds_of_layer_are_one_line():
    """Five layers of each: as long as both together."""
    layers = ((Layer(name="a", ops=(experts(),)), 5), (Layer(name="b", ops=(experts(),)), 5))
    step, lines = lines_of(replace(model_of(), layers=layers), engine(), Layout(dp=4, ep=4))
    (line,) = (line for line in lines if line.term == "dispatch")
    assert line.seconds == pytest.approx(float(step.terms["dispatch"]))


def test_sources_of_a_step_end_with_the_rent():
    found = sources(st.load_system("hgx-h100"))
    names = [name for name, *_ in found]
    assert names[-1] == "rent"
    values = {name: value for name, value, *_ in found}
    assert values["chip.hbm.bandwidth"] == "3.35 TB/s"
    assert values["chip.hbm.capacity"] == "80 GB on the label; the driver counts 85.5 GB"
    assert not any(name.startswith("chip.power") for name in names)
    assert all(np.array([len(row) for row in found]) == 5)
