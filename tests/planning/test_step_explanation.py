"""Parts of the lines of an explained step."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from steptime.physics.bias_correction import USUAL
from steptime.physics.layout import Layout
from steptime.physics.network_time import Traffic
from steptime.physics.op_work import Demand
from steptime.physics.speculative_step import drafted_step
from steptime.physics.time_ledger import Entry
from steptime.planning import step_explanation
from steptime.planning.step_explanation import _line, _over, _passes, _slower, equations, explain_step
from steptime.workload.workload import Speculation
from tests.conftest import each, engine, machine
from tests.physics.test_drafts import MODEL as DRAFTS
from tests.planning.cases import MODEL, WORK, made


@each(
    "share, text",
    [
        (1.0, ""),
        (0.9996, ""),
        (1.0004, ""),
        (0.9994, " / 0.999"),
        (1.25, " / 1.250"),
        (0.1, " / 0.100"),
        (0.01234, " / 0.0123"),
    ],
)
def test_a_share_that_is_one_is_not_shown(share, text):
    assert _over(share) == text


@pytest.mark.parametrize(("count", "formula", "seconds"), [(1.0, "2.00 ms", 0.002), (1.5, "1.5 x 2.00 ms", 0.003)])
def test_passes_of_draft_layers_are_counted(count, formula, seconds):
    line = _passes(count, 0.002, "draft")
    assert (line.formula, line.name, line.seconds) == (formula, "draft", pytest.approx(seconds))


@each("sizes", [{"batch": 8, "context": 1000}, {"prompts": 2, "tokens": 500},
                {"batch": 8, "context": 1000, "prompts": 2, "tokens": 500, "prefix": 100}])  # fmt: skip
def test_lines_of_a_step_that_drafts_add_up_to_it(sizes):
    given = {"drafts": 3, "layout": Layout(), "engine": engine()}
    lines = explain_step(DRAFTS, machine(), sizes=sizes | {"query": 4}, **given)
    step = drafted_step(DRAFTS, machine(), **sizes, **given)
    assert sum(line.seconds for line in lines) == pytest.approx(step.total, rel=1e-9)


@each(
    "term, count, name, formula",
    [
        ("overhead", 1, "n", "1 x f"),
        ("overhead", 3, "n", "3 x f"),
        ("all-reduce", 1, "n", "(f)"),
        ("all-reduce", 3, "n", "3 x (f)"),
        ("attention", 1, "n", "f"),
        ("attention", 3, "n x 3", "f"),
    ],
)
def test_a_line_counts_its_instances(term, count, name, formula):
    line = _line(term, "n", "f", count, 0.5)
    assert (line.term, line.name, line.formula, line.seconds) == (term, name, formula, 0.5)


def test_factors_on_all_times_end_a_formula(monkeypatch):
    anchored = replace(engine(), anchor=SimpleNamespace(step_factor=lambda point: 1.23456))
    assert _slower(machine(), engine(), USUAL) == ""
    assert _slower(machine(), anchored, USUAL) == " x 1.235 (your own runs)"
    monkeypatch.setattr(step_explanation, "software_factor", lambda *_: 1.25)
    assert _slower(machine(), engine(), USUAL) == " x 1.25 (software)"
    assert _slower(machine(), anchored, USUAL) == " x 1.25 (software) x 1.235 (your own runs)"


def test_equations_of_steps_with_chunks_and_speculative_tokens_have_their_numbers():
    """Two prompts of 1,000 in a chunk of 2,500 and two ranks; of 8 sequences half is an arrival; 200 / 1.6 = 125 steps."""
    (pool,) = made(resources={}).pools
    pool = replace(
        pool, layout=Layout(dp=2, ep=2, replicas=2), chunk=2500, chunk_share=0.25, chunks_per_mixed_step=1.5,
        step=SimpleNamespace(total=0.01), mixed=SimpleNamespace(total=0.03),
    )  # fmt: skip
    drafts = Speculation(drafts=1, acceptance=1.6, source="given")
    lines = equations(MODEL, pool, WORK, utilisation=0.5, speculation=drafts)
    assert lines[0] == "batch 8 = 4 sequences x 2 data-parallel ranks"
    assert lines[1].startswith("mean context of decode 1,100 = input + output x (1 + output spread^2) / 2 = ")
    assert "/ ((output - 1) / accepted) = 7.5 x 1 / 125 = 0.060: 1.5 in each mixed step," in lines[2]
    assert lines[2].endswith("the share f = 0.250")
    assert lines[3] == "time per step = (1 - f) x 10.0 ms + f x 30.0 ms = 15.0 ms"
    assert lines[4] == "prefill queue: 4 slots for a chunk per step, in use for 50.0 % of the time"
    assert lines[6] == "time per token = 15.0 ms / 1.6 = 9.38 ms"
    plain = equations(MODEL, replace(pool, mixed=None, layout=Layout(microbatches=2), batch=1), WORK, utilisation=0.5)
    assert plain == ["batch 1 = 1 sequence x 1 data-parallel rank, in 2 micro-batches", lines[1]]
    staged = equations(MODEL, replace(pool, mixed=None, layout=Layout(pp=2), batch=1), WORK, utilisation=0.5)
    assert staged[-1] == "the fullest of 2 stages contains 50.0 % of the layers"


def test_a_roofline_has_the_share_of_each_call_and_of_the_bandwidth():
    """Three of four calls' work in one instance: 3 TFLOP at half of 2 PFLOP/s, and 3 GB at 4 TB/s in 1 ms, 0.75 of it."""
    demand = Demand(4e12, 2e15, weights=1e9, activations=2e9, kv=1e9, efficiency=0.5)
    entry = Entry(term="x", name="x", seconds=0.0, count=2, compute=6e-3, memory=2e-3, demand=demand, times=1.5)
    text = step_explanation._once(entry, machine(), engine(roofline_norm=4.0))
    assert text == "4-norm(3.00 TFLOP / 2.00 PFLOP/s / 0.500 = 3.00 ms, 3.00 GB / 4.00 TB/s / 0.750 = 1.00 ms)"
    assert step_explanation._once(entry, machine(), engine()).startswith("max(")
    # An operator without arithmetic has its traffic alone, and one that moves nothing no share of the bandwidth.
    copy = replace(entry, demand=replace(demand, flops=0.0))
    assert step_explanation._once(copy, machine(), engine()) == "3.00 GB / 4.00 TB/s / 0.750 = 1.00 ms"
    still = replace(entry, memory=0.0, demand=Demand(4e12, 2e15))
    assert step_explanation._once(still, machine(), engine()).endswith(", 0 B / 4.00 TB/s = 0 ns)")


def test_a_transfer_has_the_bytes_of_each_level_its_latency_and_its_calls():
    """Two calls of 2 and 4 ms on links of 100 and 10 GB/s, at half of their rates."""
    system, on = machine(size=4, up=1e11, out=1e10), engine(network_efficiency=0.5)
    traffic = Traffic((4e-3, 8e-3), 2e-6, calls=6)
    entry = Entry(term="dispatch", name="", seconds=0.0, count=2, traffic=traffic, seconds_each=1e-6)
    up, out = "up 200 MB / 100 GB/s / 0.500 = 4.00 ms", "out 40.0 MB / 10.0 GB/s / 0.500 = 8.00 ms"
    assert step_explanation._once(entry, system, on) == f"{up} + {out} + 1.00 µs latency + 3 x 1.00 µs"
    together = step_explanation._once(replace(entry, at_once=True, seconds_each=0.0), system, on)
    assert together == f"max({up}, {out}) + 1.00 µs latency"
    inside = replace(entry, at_once=True, traffic=Traffic((4e-3, 0.0), 0.0), seconds_each=0.0)
    assert step_explanation._once(inside, system, on) == up
    name = step_explanation._name(entry, Layout(tp=2, dp=4, ep=8))
    assert name == "of tokens to their experts on 8 chips"
    assert step_explanation._name(replace(entry, name="of {sharing}"), Layout(tp=8, ep=4)) == "of 2"
    wait = Entry(term="overhead", name="host", seconds=0.0, seconds_each=2e-3)
    assert (step_explanation._once(wait, system, on), step_explanation._name(wait, Layout())) == ("2.00 ms", "host")
