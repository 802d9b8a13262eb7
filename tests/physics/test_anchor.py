"""Runs of one's own as an anchor: hand numbers, and what they do to steps, ranges and plans."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.errors import InputError
from steptime.physics.bias_correction import SPREAD, WITHIN, Anchor, Anchors, Factor, select_anchor
from steptime.physics.engine import anchored, constant, load_engine, with_constants
from steptime.physics.layout import Layout
from steptime.physics.uncertainty import WIDE, distances, factors
from steptime.planning.steady_state import mean_context
from steptime.planning.step_explanation import explain_step
from steptime.questions.step_question import step_summary
from tests.planning.cases import closed_plan, equal_requests

MODEL, SYSTEM = st.load_model("llama-3.1-8b"), st.load_system("hgx-h100")
STEP = {"batch": 64, "context": 4096}
WORK = st.Workload(input_tokens=1024, output_tokens=256)


def anchor(tpot=None, ttft=None, runs=1, **more) -> Anchor:
    told = {name: None if ratio is None else Factor(runs=runs, ratio=ratio) for name, ratio in (("tpot", tpot), ("ttft", ttft))}
    names = {"model": MODEL.name, "system": SYSTEM.name, "engine": "vllm", "runs": tuple("abcdefgh"[:runs])}
    return Anchor(**({"source": "runs.csv", **names, **told} | more))


def width(limits, value) -> np.ndarray:
    return np.log([value / limits[0], limits[1] / value])


@pytest.mark.parametrize(
    ("runs", "factor", "left"),
    [
        (1, 2 ** (1 / 2), math.sqrt((0.5**2 + 2 * (1 + 0.5**2)) / 3)),  # 1.414, 0.957
        (2, 2 ** (2 / 3), math.sqrt(((1 / 3) ** 2 + 2 * (1 + (2 / 3) ** 2 / 2)) / 3)),  # 1.587, 0.923
        (10**9, 2.0, math.sqrt(2.0 / 3.0)),  # 0.816
    ],
)
def test_factor_and_width_by_hand(runs, factor, left):
    found = Factor(runs=runs, ratio=2.0)
    assert found.factor == pytest.approx(factor)
    assert found.width == pytest.approx(left)
    assert replace(found, spread=SPREAD["ttft"]).width < left


def test_width_is_what_is_left_of_two_independent_errors():
    """Constants of groups vary by b, runs within one by w: so much is left after k runs and a factor of their mean's share."""
    rng = np.random.default_rng(1)
    b, k, n = 0.18, 3, 200_000
    for name, u in SPREAD.items():
        w = b * math.sqrt(u)
        group = b * rng.standard_normal(n)
        mean = group + w * rng.standard_normal(n) / math.sqrt(k)
        left = group + w * rng.standard_normal(n) - mean * k / (k + WITHIN[name])
        assert np.std(left) / math.hypot(b, w) == pytest.approx(
            Factor(runs=k, ratio=1.0, spread=u, within=WITHIN[name]).width, rel=0.01
        )


def test_a_step_takes_the_factor_in_all_its_parts():
    plain, slower = (st.decode_step(MODEL, SYSTEM, **STEP, anchor=one) for one in (None, anchor(1.3)))
    factor = Factor(runs=1, ratio=1.3).factor
    for name in ("lower", "total", "upper", "latency"):
        assert getattr(slower, name) == pytest.approx(getattr(plain, name) * factor, rel=1e-12)
    assert sum(slower.terms.values()) == pytest.approx(float(slower.total), rel=1e-12)
    assert sum(slower.resources.values()) == pytest.approx(float(slower.total), rel=1e-12)


@pytest.mark.slow
def test_runs_as_predicted_change_nothing_but_narrow_the_range():
    plain, same = (step_summary(MODEL, SYSTEM, **STEP, anchor=one) for one in (None, anchor(1.0, 1.0)))
    assert float(same.total) == float(plain.total) == float(same.unanchored.total)
    assert same.terms == plain.terms
    assert np.all(width(same.range, same.total) < width(plain.range, plain.total))
    before, after = (st.plan(MODEL, SYSTEM, WORK, st.Slo(tpot=0.02, ttft=1), anchor=one) for one in (None, anchor(1.0, 1.0)))
    assert (after.tpot, after.ttft, after.layout_text) == (before.tpot, before.ttft, before.layout_text)
    for name in ("tpot", "ttft"):
        narrow, wide = (width(getattr(one, f"{name}_range"), getattr(one, name)) for one in (after, before))
        assert np.all(narrow < wide)


def test_a_range_shrinks_by_the_width_and_by_that_of_its_own_quantity():
    engine = load_engine("vllm")
    for runs in (1, 4):
        own = replace(engine, anchor=anchor(1.2, runs=runs))
        before, after = (np.log(factors(one, "tpot", "decode", system=SYSTEM)) for one in (engine, own))
        np.testing.assert_allclose(after, before * Factor(runs=runs, ratio=1).width, rtol=1e-12)
        assert factors(own, "ttft", "decode") == factors(engine, "ttft", "decode")  # no run told of first tokens


def test_own_runs_on_a_system_that_was_never_measured_narrow_its_range():
    amd, engine = st.load_system("mi300x-8"), load_engine("vllm")
    own = replace(engine, anchor=anchor(1.2, system=amd.name))
    low, high = factors(own, "tpot", "decode", system=amd)
    assert low == pytest.approx(WIDE[0] ** own.anchor.tpot.width)
    assert high == pytest.approx(WIDE[1] ** own.anchor.tpot.width)
    few = [one.words for one, there in distances(engine, amd, Layout()) if there]
    assert few == ["few runs on this system"]
    assert not [one for one, there in distances(own, amd, Layout()) if there]


def test_an_explanation_adds_up_and_names_the_factor():
    own = anchored(load_engine("vllm"), anchor(1.3), model=MODEL.name, system=SYSTEM.name)
    lines = explain_step(MODEL, SYSTEM, sizes=STEP, layout=st.Layout(), engine=own)
    total = st.decode_step(MODEL, SYSTEM, **STEP, engine=own).total
    assert sum(line.seconds for line in lines) == pytest.approx(float(total), rel=1e-12)
    assert all(line.formula.endswith(" x 1.14 (your own runs)") for line in lines)


@pytest.mark.slow
def test_a_plan_takes_the_steps_and_says_what_it_was_before():
    asked = {"model": MODEL, "system": SYSTEM, "workload": WORK, "slo": st.Slo(tpot=0.02, ttft=1)}
    own = anchor(1.3, 2.0)
    plan = st.plan(**asked, anchor=own)
    assert plan.anchor is own
    pool = plan.pools[0]
    given = {"batch": pool.batch, "context": float(mean_context(WORK)), "layout": pool.layout}
    with_kv = st.load_model("llama-3.1-8b", kv="bf16")
    assert float(pool.step.total) == pytest.approx(float(st.decode_step(with_kv, SYSTEM, **given, anchor=own).total))
    assert 1 / plan.unanchored.tokens_per_second_per_user < plan.tpot < 0.02 * (1 + 1e-9)
    assert plan.unanchored.batch == pool.batch
    assert st.plan(**asked).anchor is st.plan(**asked).unanchored is None


@pytest.mark.slow
def test_first_tokens_have_a_factor_of_their_own():
    """Without waits in front of the queue, and with the same batch, all of a first token is made of steps: F over f remains."""
    prompt = {"model": MODEL, "system": SYSTEM, "workload": equal_requests(input_tokens=1024, output_tokens=1)}
    prompt["engine"] = with_constants(load_engine("vllm"), {"seconds_before_queue": 0, "seconds_before_queue_per_token": 0})
    own = anchor(1.3, 2.0)
    assert own.step * own.wait == pytest.approx(Factor(runs=1, ratio=2.0).factor)
    assert (anchor(1.3).wait, anchor(None, 2.0).step) == (1, 1)
    sooner, later = (closed_plan(**prompt, anchor=anchor(1.3, ttft)) for ttft in (1.3, 2.0))
    assert later.pools[0].batch == sooner.pools[0].batch
    assert later.ttft / sooner.ttft == pytest.approx(own.wait, rel=0.02)  # the wait for a seat is not part of it


def test_a_simulation_takes_both_factors():
    pytest.importorskip("numba")
    names = ("seconds_before_queue", "seconds_before_queue_per_token", "steps_before_answer")
    engine = with_constants(load_engine("vllm"), dict.fromkeys(names, 0.0))
    assert constant(engine, "seconds_before_queue") == 0
    traffic = st.closed_loop(1, 20, st.Lengths(mean=512), st.Lengths(mean=32))
    before, after = (st.simulate(MODEL, SYSTEM, traffic, engine=engine, anchor=one) for one in (None, anchor(1.3, 0.5)))
    assert after.anchor == anchor(1.3, 0.5)
    assert after.answers.tpot.mean / before.answers.tpot.mean == pytest.approx(Factor(runs=1, ratio=1.3).factor, rel=1e-6)
    assert after.answers.ttft.mean / before.answers.ttft.mean == pytest.approx(Factor(runs=1, ratio=0.5).factor, rel=1e-6)
    served = after.requests
    assert np.all(served["arrival"] <= served["scheduled"])
    assert np.all(served["scheduled"] < served["first"])
    assert np.all(served["first"] < served["finish"])


def test_a_plan_is_replayed_with_the_runs_that_it_rests_on():
    pytest.importorskip("numba")
    from steptime.planning.plan_as_traffic import load_plan_inputs

    plan = st.plan(MODEL, SYSTEM, WORK, chips=1, anchor=anchor(1.3))
    assert load_plan_inputs(plan)[2].anchor == plan.anchor


def test_the_last_version_of_a_group_is_taken():
    both = Anchors(source="runs.csv", anchors=(anchor(1.1, version="0.1"), anchor(1.2, version="0.2")))
    assert select_anchor(both, model=MODEL.name, system=SYSTEM.name, engine="vllm").version == "0.2"


@pytest.mark.parametrize("wrong", [{"model": "other"}, {"system": "hgx-b200"}, {"engine": "sglang"}])
def test_runs_of_another_group_are_refused_naming_both(wrong):
    names = {"model": MODEL.name, "system": SYSTEM.name, "engine": "vllm"}
    there, asked = (f"{one['model']} on {one['system']} with engine {one['engine']}" for one in (names | wrong, names))
    with pytest.raises(InputError) as caught:
        st.plan(MODEL, SYSTEM, WORK, anchor=anchor(1.1, **wrong))
    assert str(caught.value).startswith(f"runs.csv: has no runs of {asked}, got runs of {there}")
    for ask in (st.decode_step, st.step_range, step_summary):
        with pytest.raises(InputError, match="has no runs of"):
            ask(MODEL, SYSTEM, **STEP, anchor=anchor(1.1, **wrong))
    with pytest.raises(InputError, match="has no runs of"):
        st.plan(MODEL, SYSTEM, WORK, engine=replace(load_engine("vllm"), anchor=anchor(1.1, **wrong)))


def test_the_ideal_engine_has_no_runs_and_what_is_no_anchor_is_refused():
    with pytest.raises(InputError, match=r"has no runs of .* with engine ideal"):
        st.plan(MODEL, SYSTEM, WORK, engine="ideal", anchor=anchor(1.1))
    with pytest.raises(InputError, match=r"an anchor is what st\.load_anchor gives, not 'runs.csv'"):
        st.decode_step(MODEL, SYSTEM, **STEP, anchor="runs.csv")
