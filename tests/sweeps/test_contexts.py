"""How long a context may be: held to single steps and memory, to laws, and as a user types it."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.physics.chip_memory import sequences_that_fit
from steptime.physics.compute_dtype import as_served
from steptime.physics.engine import engine_for
from steptime.physics.layout_space import legal
from steptime.sweeps.context_limit import tokens
from tests.cli.test_commands import run
from tests.conftest import each

PAIR = "llama-3.3-70b", "hgx-h100"


@pytest.fixture(scope="module")
def found():
    return st.context_walls(*PAIR, techniques=["kv=int4", "keep=8192"], tpot=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("tpot", [0.02, 0.05])
def test_a_wall_is_where_no_layout_goes_on(tpot):
    found = st.context_walls(*PAIR, techniques=[], tpot=tpot).base
    system, engine = st.load_system(PAIR[1]), engine_for(st.load_system(PAIR[1]), None)
    model = as_served(st.load_model(PAIR[0]), system, engine)

    def holds(context):
        for layout in legal(model, system, 8, microbatches=(1,), engine=engine):
            one = replace(layout, replicas=1)
            if layout.pp == 1 and sequences_that_fit(model, system, context=context, layout=one, engine=engine) >= 1:
                step = st.decode_step(model, system, batch=1, context=context, layout=one, engine=engine)
                if float(step.total) <= tpot:
                    return True
        return False

    assert holds(found.longest)
    assert not holds(found.longest * 1.01)


@pytest.mark.thorough
def test_figures_at_the_length_asked_are_those_of_a_step(found):
    for one in found.walls:
        model = st.with_techniques(st.load_model(PAIR[0]), one.technique)
        ways = {"tp": 8} if one.layout == "tp8" else {one.layout[:2]: int(one.layout[2:])}
        step = st.decode_step(model, PAIR[1], batch=one.batch, context=found.context, layout=st.Layout(**ways))
        assert one.step == pytest.approx(float(step.total), rel=1e-9)
        assert one.step <= found.tpot
        rent = float(st.load_system(PAIR[1]).rent.typical)
        assert one.usd_per_million == pytest.approx(1e6 * rent * one.chips * one.step / one.batch)
        low, high = one.step_range
        assert low < one.step < high


@pytest.mark.slow
def test_laws_of_walls(found):
    base, int4, keep = found.walls
    assert not found.priced
    assert base.longest_priced == pytest.approx(found.context, rel=0.01)  # for what it costs now, as long as now
    # A cache of a quarter, in kernels that reach less of the bandwidth.
    assert int4.longest > 2.5 * base.longest
    assert math.isinf(keep.longest)
    faster = st.context_walls(*PAIR, techniques=[], tpot=0.015).base
    assert faster.longest < base.longest
    dearer, cheaper = (st.context_walls(*PAIR, techniques=[], tpot=0.03, usd_per_million=usd).base for usd in (20, 5))
    assert cheaper.longest_priced < dearer.longest_priced <= dearer.longest == base.longest
    low, high = base.longest_range
    assert low <= base.longest <= high
    never = st.context_walls(*PAIR, techniques=[], tpot=0.001)
    assert (never.base.longest, never.base.batch) == (0, 0)
    assert "no context" in never.text
    assert "at most" in never.reason
    assert tokens(never.base.longest) == "no length"
    large = st.context_walls("deepseek-v3", "hgx-h100", techniques=[])
    assert "673 GB" in large.reason
    share = st.context_walls("deepseek-v3", "mi355x-8", techniques=["share=2"], context=32_768)
    assert share.walls[1].longest_priced > 0.99 * share.base.longest_priced  # what cannot hurt does not
    far = st.context_walls("gpt-oss-120b", "hgx-b200", techniques=["kv_heads=1"], tpot=1.0)
    assert tokens(far.walls[1].longest) == "over 536 M tokens"


def test_curves_rise(found):
    for lengths, cost in found.curves:
        assert (np.diff(cost) >= -0.02 * cost[1:]).all()
        assert len(lengths) == len(cost) > 20


@pytest.mark.parametrize(
    ("engine", "shorter"),
    [
        ("vllm", {"kv=fp8": "kernels for fp8", "rank=0.5": "8.8 times the arithmetic"}),
        pytest.param("ideal", {}, marks=pytest.mark.thorough),
    ],
)
def test_a_technique_that_reads_less_and_reaches_less_says_why(engine, shorter):
    """FlashAttention-3 on H100 was timed at 29 to 46 % of 3.35 TB/s for one KV head of a long context, 12 to 20 % in fp8."""
    found = st.context_walls("llama-3.1-8b", "hgx-h100", techniques=["kv=fp8", "kv=int4", "rank=0.5"], engine=engine)
    base, *others = found.walls
    assert all(wall.read_bytes < base.read_bytes for wall in others)
    assert {wall.technique for wall in others if wall.longest < base.longest} == set(shorter)
    assert len(found.notes) == len(shorter)
    for note, (technique, cause) in zip(found.notes, shorter.items(), strict=True):
        assert note.startswith(technique)
        assert cause in note
    # A token has 4,096 bytes in each of 32 layers.
    step = st.decode_step("llama-3.1-8b", "hgx-h100", batch=1, context=base.longest, layout=st.Layout(tp=8), engine=engine)
    seconds = float(step.terms["attention"])
    assert base.read_share == pytest.approx(base.longest * 32 * 4096 / (8 * 3.35e12 * seconds))
    assert base.read_share == pytest.approx(1.0) if engine == "ideal" else 0.29 < base.read_share < 0.46


@pytest.mark.slow
def test_as_a_user_types_it(tmp_path):
    words = "context llama-3.1-8b hgx-h100 --technique kv=int4 --technique window=1024@5of6 --speed 40"
    shown = run(f"{words} --csv {tmp_path / 'walls.csv'} --plot {tmp_path / 'walls.svg'}")
    assert shown.returncode == 0, shown.stderr
    assert "tokens of context at 40 tok/s" in shown.stdout.splitlines()[0]
    assert "window=1024@5of6" in shown.stdout
    assert (tmp_path / "walls.csv").read_text().count("\n") == 4
    assert "<svg" in (tmp_path / "walls.svg").read_text()
    told = json.loads(run(f"{words} --json").stdout)
    assert told["schema"] == "steptime.context_walls/2"
    assert [one["technique"] for one in told["walls"]] == ["", "kv=int4", "window=1024@5of6"]


@pytest.mark.thorough
def test_what_meets_no_limit_leaves_with_1():
    shown = run("context deepseek-v3 hgx-h100")
    assert shown.returncode == 1
    assert "its weights take 673 GB" in " ".join(shown.stdout.split())


@each(
    "words, match",
    [
        ("--technique windw=1024", "window"),
        ("--technique latent", "latent=RANK"),
        ("--speed 0", "--speed"),
        ("--speed -3", "--speed"),
        ("--usd -1", "USD"),
        ("--usd nan", "--usd"),
        ("--context 3", "context"),
        ("--chips 0.5", "chips"),
        ("--chips 0", "--chips"),
        ("--technique keep=1e12", "1,000,000,000"),
        ("--plot walls.doc", "--plot"),
    ],
)
def test_wrong_input_is_one_line(words, match):
    shown = run(f"context llama-3.1-8b hgx-h100 {words}")
    assert shown.returncode == 2
    assert match in shown.stderr
    assert len(shown.stderr.strip().splitlines()) <= 3, shown.stderr
