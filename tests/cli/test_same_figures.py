"""A command and the function of its name give the same figures, with nothing said of the engine."""

from __future__ import annotations

import json

import pytest

import steptime as st
from steptime.units import show
from tests.cli.test_commands import run

SYSTEMS = ("hgx-h100", "mi300x")  # of a maker whose chips were measured, and of another: other default engines
MODEL = "llama-3.1-8b"
APART = {"search_s", "interval_s"}  # how long the search took; what trains alone have


def printed(words: str) -> dict:
    shown = run(f"{words} --json")
    assert shown.returncode in (0, 1), shown.stderr
    return json.loads(shown.stdout)


def same(one: object, other: object, place: str = "") -> None:
    """Hold every figure of `other`, as JSON reads it, to that of `one` at the same place."""
    if isinstance(other, dict):
        assert isinstance(one, dict)
        for key in other.keys() - APART:
            same(one[key], other[key], f"{place}.{key}")
    elif isinstance(other, list):
        assert len(one) == len(other), place
        for at, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            same(mine, theirs, f"{place}[{at}]")
    elif isinstance(other, float):
        assert one == pytest.approx(other, rel=1e-12), place
    else:
        assert one == other, place


@pytest.mark.parametrize("system", SYSTEMS)
def test_steps(system):
    said = printed(f"step {MODEL} {system} --batch 8 --context 4096 --tp 2")
    step = st.decode_step(MODEL, system, batch=8, context=4096, layout=st.Layout(tp=2))
    for key in ("total", "lower", "latency"):
        same(said[f"{key}_s"], float(getattr(step, key)), key)
    assert said["terms_s"] == pytest.approx(json.loads(step.to_json())["terms_s"])
    memory = json.loads(st.memory_per_chip(MODEL, system, batch=8, context=4096, layout=st.Layout(tp=2)).to_json())
    same(said["memory"], {key: value for key, value in memory.items() if key != "schema"})
    said = printed(f"step {MODEL} {system} --phase prefill --tokens 2048")
    same(said["total_s"], float(st.prefill_step(MODEL, system, tokens=2048).total), "total")


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_plans(system):
    said = printed(f"plan {MODEL} {system} --input 1000 --output 200 --speed 30 --ttft 2 --chips 2")
    slo = st.Slo(tpot=1 / 30, ttft=2)
    plan = st.plan(MODEL, system, st.Workload(input_tokens=1000, output_tokens=200), slo, chips=2)
    same(said, json.loads(plan.to_json()))


@pytest.mark.parametrize("system", SYSTEMS)
def test_simulations(system):
    pytest.importorskip("numba", reason="needs the extra `simulate`")
    said = printed(f"simulate {MODEL} {system} --rate 4 --requests 200 --input 512 --output 64 --seed 3")
    lengths = (st.Lengths(mean=mean, shape="lognormal", spread=1.0) for mean in (512, 64))
    found = json.loads(st.simulate(MODEL, system, st.open_loop(4, 200, *lengths, seed=3)).to_json())
    for key in found.keys() - APART:
        same(said[key], found[key], key)


def test_terms_of_a_plan_stand_under_the_mean_step_that_they_add_up_to(closed_forms):
    words = f"plan {MODEL} hgx-h100 --chips 1 --speed 30"
    server = printed(words)["pools"][-1]
    terms = [(1 - server["chunk_share"]) * sum(server["step"]["terms_s"].values())]
    terms.append(server["chunk_share"] * sum(server["mixed"]["terms_s"].values()))
    assert f"Where the {show(sum(terms), 's')} of a mean step go" in run(f"{words} --full").stdout
