"""Runs of one's own as an anchor: hand numbers, and what they do to steps, ranges and plans."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.errors import InputError
from steptime.physics.bias_correction import USUAL, Anchor, Anchors, MeasuredRun, OperatingPoint, select_anchor
from steptime.physics.engine import anchored, constant, load_engine, serving_engine, with_constants
from steptime.physics.layout import Layout
from steptime.physics.run_covariance import read_covariances
from steptime.physics.uncertainty import distances, factors, widening
from steptime.planning.plan_result import mean_terms
from steptime.planning.steady_state import mean_context
from steptime.planning.step_explanation import explain_step
from steptime.questions.step_question import step_summary
from tests.conftest import CHOICE_ALONE, each, engine
from tests.planning.cases import closed_plan, equal_requests

MODEL, SYSTEM = st.load_model("llama-3.1-8b"), st.load_system("hgx-h100")
STEP = {"batch": 64, "context": 4096}
WORK = st.Workload(input_tokens=1024, output_tokens=256)
FORMATS = ("bf16", "")
TPOT = read_covariances()["tpot"]
HERE = OperatingPoint(layout=Layout(), load=64, context=4096)


def anchor(tpot=None, ttft=None, runs=1, *, load=64.0, context=4096.0, **more) -> Anchor:
    """Runs of one chip with these ratios, repeated."""
    names = {"model": MODEL.name, "system": SYSTEM.name, "engine": "vllm"} | more
    run = {"model": names["model"], "system": names["system"], "version": names.get("version", ""), "formats": FORMATS}
    measured = [MeasuredRun(name="abcdefgh"[i], load=load, context=context, tpot=tpot, ttft=ttft, **run) for i in range(runs)]
    return Anchor(**({"source": "runs.csv", "formats": FORMATS} | names), measured=tuple(measured))


def width(limits, value) -> np.ndarray:
    return np.log([value / limits[0], limits[1] / value])


@pytest.mark.parametrize("runs", [1, 4])
def test_correction_at_repeated_runs_has_their_share_of_the_variance(runs):
    """Repeats share all but noise: the mean of k runs has the variance C + noise / k."""
    log, half = anchor(2.0, runs=runs).correction("tpot", HERE)
    shared = TPOT.total - TPOT.noise
    share = shared / (shared + TPOT.noise / runs)
    assert log == pytest.approx(share * math.log(2.0))
    square = math.log(2.0) ** 2 / (shared + TPOT.noise / runs)
    scale = math.sqrt((TPOT.degrees + square) / (TPOT.degrees + 1))  # repeats are one point
    assert half == pytest.approx(TPOT.quantile * scale * math.sqrt(TPOT.total - share * shared))


@each("name", ["chips", "load"])
def test_runs_are_as_near_as_their_chips_and_loads_in_doublings(name):
    """A run of 2 says as much of 4 and of 1 as one of 1 of 2, and less of 8."""

    def factor(size, measured):
        own = anchor(2.0)
        runs = tuple(replace(run, **{name: measured}) for run in own.measured)
        return float(replace(own, measured=runs).log_factor("tpot", replace(HERE, **{name: size})))

    assert factor(4, 2) == pytest.approx(factor(1, 2)) == pytest.approx(factor(2, 1))
    assert factor(8, 2) == pytest.approx(factor(4, 1))
    assert factor(8, 2) < factor(4, 2) < factor(2, 2)


def test_runs_of_another_model_say_less_than_the_scatter_of_an_engine():
    own = replace(anchor(1.0), model="another", system="another")
    on = engine(fit={"interval": {"tpot": {"decode": [0.8, 1.25]}}})
    assert float(own.half_width("tpot", HERE)) > math.log(1.25)
    ends = factors(replace(on, anchor=own), "tpot", "decode", point=HERE)
    assert ends == pytest.approx(factors(on, "tpot", "decode"))


def test_factors_on_steps_and_waits_make_the_correction_of_a_first_token():
    both = anchor(1.3, 2.0)
    log, _ = both.correction("ttft", HERE)
    assert both.step_factor(HERE) * both.wait_factor(HERE) == pytest.approx(np.exp(log))
    assert both.wait_factor(HERE) > 1


def anchor_of(*runs: MeasuredRun, **more) -> Anchor:
    names = {"model": MODEL.name, "system": SYSTEM.name}
    return Anchor(source="runs.csv", engine="vllm", measured=runs, **({"formats": FORMATS} | names | more))


def run_of(ratio, name="a", **more) -> MeasuredRun:
    names = {"model": MODEL.name, "system": SYSTEM.name, "formats": FORMATS, "load": 64, "context": 4096}
    return MeasuredRun(name=name, tpot=ratio, **(names | more))


def test_repeats_of_one_point_narrow_the_range_towards_the_shared_noise_only():
    jitter = np.exp(np.random.default_rng(0).normal(0, 0.01, 50))
    one, many = anchor_of(run_of(1.0)), anchor_of(*(run_of(float(x), str(i)) for i, x in enumerate(jitter)))
    far = OperatingPoint(layout=Layout(), load=64 * 1024, context=4096)
    assert many.half_width("tpot", far) == pytest.approx(float(one.half_width("tpot", far)), rel=0.05)
    least = TPOT.quantile * math.sqrt(TPOT.noise)
    assert least < many.half_width("tpot", HERE) < one.half_width("tpot", HERE)
    assert many.half_width("tpot", HERE) == pytest.approx(least, rel=0.05)


def test_runs_that_agree_do_not_scale_the_range_down():
    agreeing = anchor_of(*(run_of(1.0, str(load), load=load) for load in (1, 2, 4, 8, 16, 32, 64, 128)))
    assert agreeing.scale("tpot") == 1
    assert agreeing.half_width("tpot", HERE) > TPOT.quantile * math.sqrt(TPOT.noise)


def test_repeats_that_disagree_raise_the_noise_by_hand():
    two = anchor_of(run_of(1.0), run_of(math.exp(0.6), "b"))
    noise = TPOT.noise * (TPOT.degrees + 2 * 0.3**2 / TPOT.noise) / (TPOT.degrees + 1)
    shared = TPOT.total - TPOT.noise
    log, _ = two.correction("tpot", HERE)
    assert log == pytest.approx(0.3 * shared / (shared + noise / 2))


def test_runs_in_three_formats_have_factors_among_their_ratios_and_a_range():
    ratios = {"bf16": 2.14, "fp8": 1.89, "int4": 2.18}
    runs = [run_of(ratio, name, formats=(name, "")) for name, ratio in ratios.items()]
    for formats in ((), ("bf16", ""), ("fp8", "")):
        found = anchor_of(*runs, formats=formats)
        assert 1.89 < found.tpot.factor < 2.18
        assert math.log(found.tpot.high) > TPOT.quantile * math.sqrt(TPOT.noise)
        for layout in (None, Layout(), Layout(tp=2)):
            assert found.half_width("tpot", replace(HERE, layout=layout)) > TPOT.quantile * math.sqrt(TPOT.noise)


def test_unknown_formats_and_layouts_share_less_than_known_ones():
    known, unknown = anchor_of(run_of(1.3)), anchor_of(run_of(1.3), formats=())
    shared = TPOT.engine + TPOT.model + TPOT.group + TPOT.release
    for own, layout in ((known, None), (unknown, Layout())):
        log, _ = own.correction("tpot", replace(HERE, layout=layout))
        assert log == pytest.approx(shared / TPOT.total * math.log(1.3))


@each(
    "layout, load, context, left",
    [
        (Layout(), 128, 4096, (("group", "layout", "layout_release"), 1.0, 0.0)),
        (Layout(), 64, 16384, (("group", "layout", "layout_release"), 0.0, 2.0)),
        (Layout(tp=2), 64, 4096, (("group",), 0.0, 0.0)),
        (Layout(cp=2), 256, 4096, (("group",), 2.0, 0.0)),
    ],
)
def test_correction_falls_with_load_context_and_layout_by_hand(layout, load, context, left):
    levels, doublings, contexts = left
    near = math.exp(-(doublings**2) / (2 * TPOT.doublings**2) - contexts**2 / (2 * TPOT.context_doublings**2))
    shared = TPOT.engine + TPOT.model + TPOT.release + near * sum(getattr(TPOT, name) for name in levels)
    log, _ = anchor(1.3).correction("tpot", OperatingPoint(layout=layout, load=load, context=context))
    assert log == pytest.approx(shared / TPOT.total * math.log(1.3))


def test_correction_falls_from_curve_to_group_to_model_to_engine():
    logs = []
    for model, system, layout, load in (
        (MODEL.name, SYSTEM.name, Layout(), 64),
        (MODEL.name, SYSTEM.name, Layout(), 256),
        (MODEL.name, SYSTEM.name, Layout(tp=2), 256),
        (MODEL.name, "hgx-h200", Layout(), 64),
        ("other", SYSTEM.name, Layout(), 64),
    ):
        target = select_anchor(anchor(1.3, 1.3), model=model, system=system, engine="vllm", formats=FORMATS)
        point = OperatingPoint(layout=layout, load=load, context=4096)
        logs.append([float(target.correction(name, point)[0]) for name in ("tpot", "ttft")])
    assert np.all(np.diff(logs, axis=0) < 0)
    assert np.min(logs) > 0
    assert logs[0][0] > 0.95 * math.log(1.3)


def test_other_formats_and_releases_share_less():
    same = anchor(1.3)
    for other in (replace(same, formats=("fp8", "")), replace(same, version="0.9")):
        assert 0 < other.correction("tpot", HERE)[0] < same.correction("tpot", HERE)[0]
        assert other.half_width("tpot", HERE) > same.half_width("tpot", HERE)


def test_range_is_the_error_left_by_draws_of_the_covariance():
    """Draw the errors of a run and of another at twice the load; the deviation of what is left is that of the range."""
    rng = np.random.default_rng(1)
    near = math.exp(-1 / (2 * TPOT.doublings**2))
    const, falls = TPOT.engine + TPOT.model + TPOT.release, TPOT.group + TPOT.layout + TPOT.layout_release
    shared = const + near * falls
    draws = rng.multivariate_normal([0, 0], [[TPOT.total, shared], [shared, TPOT.total]], 200_000)
    left = draws[:, 1] - shared / TPOT.total * draws[:, 0]
    one = anchor(math.exp(math.sqrt(TPOT.total)))  # one standard deviation: the scale is 1
    half = one.half_width("tpot", OperatingPoint(layout=Layout(), load=128, context=4096))
    assert half / TPOT.quantile == pytest.approx(np.std(left), rel=0.01)


@each("ratio", [0.05, 0.4, 0.7, 1.0, 1.3, 3.0, 20.0])
def test_corrected_range_contains_the_run(ratio):
    engine = replace(load_engine("vllm"), anchor=anchor(ratio, ratio))
    for quantity in ("tpot", "ttft"):
        log = float(engine.anchor.correction(quantity, HERE)[0])
        low, high = factors(engine, quantity, "decode", system=SYSTEM, point=HERE)
        assert math.exp(log) * low <= ratio <= math.exp(log) * high


def test_a_step_takes_the_factor_in_all_its_parts():
    plain, slower = (st.decode_step(MODEL, SYSTEM, **STEP, anchor=one) for one in (None, anchor(1.3)))
    factor = float(anchor(1.3).step_factor(HERE))
    for name in ("lower", "total", "upper", "latency"):
        assert getattr(slower, name) == pytest.approx(getattr(plain, name) * factor, rel=1e-12)
    assert sum(slower.terms.values()) == pytest.approx(float(slower.total), rel=1e-12)
    assert sum(slower.resources.values()) == pytest.approx(float(slower.total), rel=1e-12)


def test_step_with_arrays_takes_the_factor_of_each_point():
    own, batch, tp = anchor(1.3), np.array([[8], [64], [512]]), np.array([1, 2])
    layout = Layout(tp=tp)
    plain, slower = (
        st.decode_step(MODEL, SYSTEM, batch=batch, context=4096, layout=layout, anchor=one).total for one in (None, own)
    )
    point = OperatingPoint(layout=layout, load=batch, context=4096)
    np.testing.assert_allclose(slower / plain, own.step_factor(point), rtol=1e-12)
    assert np.ptp(slower / plain) > 0.01


def test_prefill_step_takes_the_usual_load_of_the_runs():
    plain, slower = (st.mixed_step(MODEL, SYSTEM, prompts=1, tokens=512, anchor=one).total for one in (None, anchor(1.3)))
    assert slower / plain == pytest.approx(float(anchor(1.3).step_factor(HERE)))


def test_a_step_without_its_correction_is_that_of_the_engine():
    own, plain = (step_summary(MODEL, SYSTEM, **STEP, anchor=one) for one in (anchor(1.3), None))
    assert float(own.unanchored.total) == float(plain.total) < float(own.total)
    assert plain.unanchored is None


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
        assert np.all(narrow <= wide)


def test_a_range_is_the_narrower_of_that_of_the_engine_and_that_of_the_runs():
    engine, own = load_engine("vllm"), replace(load_engine("vllm"), anchor=anchor(1.0))
    before = np.abs(np.log(factors(engine, "tpot", "decode", system=SYSTEM)))
    for load in (64, 256, 4096):
        point = OperatingPoint(layout=Layout(), load=load, context=4096)
        after = np.abs(np.log(factors(own, "tpot", "decode", system=SYSTEM, point=point)))
        np.testing.assert_allclose(after, np.minimum(before, own.anchor.half_width("tpot", point)), rtol=1e-12)
    assert factors(own, "ttft", "decode") == factors(engine, "ttft", "decode")  # no run told of first tokens


def test_own_runs_on_a_system_that_was_never_measured_narrow_its_range():
    amd, engine = st.load_system("mi300x-8"), load_engine("vllm")
    own = replace(engine, anchor=anchor(1.2, system=amd.name))
    low, high = factors(own, "tpot", "decode", system=amd, point=HERE)
    half = own.anchor.half_width("tpot", HERE)
    assert (low, high) == (pytest.approx(math.exp(-half)), pytest.approx(math.exp(half)))
    few = [one.words for one, there in distances(engine, amd, Layout()) if there]
    assert few == ["few runs on this system"]
    assert not [one for one, there in distances(own, amd, Layout()) if there]


def test_runs_of_another_system_leave_the_distance_of_a_system_without_runs():
    amd, own = st.load_system("mi300x-8"), anchor(1.2)
    engine = anchored(load_engine("vllm"), own, model=MODEL.name, system=amd.name)
    assert not engine.anchor.has_group
    assert [one.words for one, there in distances(engine, amd, Layout()) if there] == ["few runs on this system"]
    low, _ = factors(engine, "tpot", "decode", system=amd, wider=widening(distances(engine, amd, Layout())))
    assert low < math.exp(-0.25)


def test_an_explanation_adds_up_and_names_the_factor():
    own = anchored(load_engine("vllm"), anchor(1.3), model=MODEL.name, system=SYSTEM.name, formats=FORMATS)
    lines = explain_step(MODEL, SYSTEM, sizes=STEP, layout=st.Layout(), engine=own)
    total = st.decode_step(MODEL, SYSTEM, **STEP, engine=own).total
    assert sum(line.seconds for line in lines) == pytest.approx(float(total), rel=1e-12)
    factor = f"{float(own.anchor.step_factor(HERE)):.4g}"
    assert all(line.formula.endswith(f" x {factor} (your own runs)") for line in lines)


@pytest.mark.slow
def test_a_plan_takes_the_steps_and_says_what_it_was_before():
    asked = {"model": MODEL, "system": SYSTEM, "workload": WORK, "slo": st.Slo(tpot=0.02, ttft=1)}
    own = anchor(1.3, 2.0)
    plan = st.plan(**asked, anchor=own)
    assert plan.anchor.measured == own.measured
    pool = plan.pools[0]
    given = {"batch": pool.batch, "context": float(mean_context(WORK)), "layout": pool.layout}
    with_kv, engine = st.load_model("llama-3.1-8b", kv="bf16"), serving_engine(SYSTEM, None)  # a plan samples by top-p
    step = st.decode_step(with_kv, SYSTEM, **given, engine=engine, anchor=own)
    assert float(pool.step.total) == pytest.approx(float(step.total))
    assert 1 / plan.unanchored.tokens_per_second_per_user < plan.tpot < 0.02 * (1 + 1e-9)
    assert plan.unanchored.batch == pool.batch
    assert st.plan(**asked).anchor is st.plan(**asked).unanchored is None


@each("ratios", [None, (1.3, 1.3), (1.8, 1.0)])
def test_steps_of_a_plan_agree_with_its_time_per_token(ratios, closed_forms):
    """First tokens as predicted, with slower steps, take prefill work as predicted: in the run and in the steps."""
    pytest.importorskip("numba")
    own = None if ratios is None else anchor(*ratios, load=32.0, context=8704.0)
    work = st.Workload(input_tokens=8192, output_tokens=1024)
    plan = st.plan(MODEL, SYSTEM, work, chips=1, anchor=own, **CHOICE_ALONE)
    (pool,) = plan.pools
    assert pool.chunk_share > 0.3
    assert sum(mean_terms(pool).values()) == pytest.approx(plan.mean_tpot, rel=0.04)


@pytest.mark.slow
def test_first_tokens_have_a_factor_of_their_own():
    """Without waits in front of the queue, and with the same batch, all of a first token is made of steps."""
    prompt = {"model": MODEL, "system": SYSTEM, "workload": equal_requests(input_tokens=1024, output_tokens=1)}
    prompt["engine"] = with_constants(load_engine("vllm"), {"seconds_before_queue": 0, "seconds_before_queue_per_token": 0})
    near = {"load": 2.0, "context": 1024.0}
    assert anchor(1.3, **near).wait_factor() == anchor(None, 2.0, **near).step_factor() == 1
    sooner, later = (closed_plan(**prompt, anchor=anchor(1.3, ttft, **near)) for ttft in (1.3, 2.0))
    assert later.pools[0].batch == sooner.pools[0].batch
    point = OperatingPoint(
        layout=later.pools[0].layout, load=later.pools[0].batch, context=float(mean_context(prompt["workload"]))
    )
    expected = anchor(1.3, 2.0, **near).wait_factor(point) / anchor(1.3, 1.3, **near).wait_factor(point)
    assert later.ttft / sooner.ttft == pytest.approx(float(expected), rel=0.02)  # the wait for a seat is not part of it


def test_a_simulation_takes_both_factors():
    pytest.importorskip("numba")
    names = ("seconds_before_queue", "seconds_before_queue_per_token", "steps_before_answer")
    engine = with_constants(load_engine("vllm"), dict.fromkeys(names, 0.0))
    assert constant(engine, "seconds_before_queue") == 0
    traffic = st.closed_loop(1, 20, st.Lengths(mean=512), st.Lengths(mean=32))
    own = anchor(1.3, 0.5, load=1.0, context=float(np.mean(traffic.inputs) + np.mean(traffic.outputs) / 2))
    before, after = (st.simulate(MODEL, SYSTEM, traffic, engine=engine, anchor=one) for one in (None, own))
    point = OperatingPoint(layout=Layout())
    first = float(own.step_factor(point) * own.wait_factor(point))
    assert after.anchor.measured == own.measured
    assert after.answers.tpot.mean / before.answers.tpot.mean == pytest.approx(float(own.step_factor(point)), rel=1e-6)
    assert after.answers.ttft.mean / before.answers.ttft.mean == pytest.approx(first, rel=1e-6)
    served = after.requests
    assert np.all(served["arrival"] <= served["scheduled"])
    assert np.all(served["scheduled"] < served["first"])
    assert np.all(served["first"] < served["finish"])


def test_a_plan_is_replayed_with_the_runs_that_it_rests_on(closed_forms):
    pytest.importorskip("numba")
    from steptime.planning.plan_as_traffic import load_plan_inputs

    plan = st.plan(MODEL, SYSTEM, WORK, chips=1, anchor=anchor(1.3), **CHOICE_ALONE)
    assert load_plan_inputs(plan)[2].anchor == plan.anchor


def test_the_last_version_of_a_group_is_that_of_the_target():
    both = Anchors(source="runs.csv", anchors=(anchor(1.1, version="0.1"), anchor(1.2, version="0.2")))
    chosen = select_anchor(both, model=MODEL.name, system=SYSTEM.name, engine="vllm", formats=FORMATS)
    assert chosen.version == "0.2"
    assert [run.version for run in chosen.measured] == ["0.1", "0.2"]
    # The newer run says more.
    assert math.log(1.15) < chosen.correction("tpot", HERE)[0] < math.log(1.2)


def test_runs_of_another_engine_are_refused_naming_both():
    asked = f"{MODEL.name} on {SYSTEM.name} with engine vllm"
    with pytest.raises(InputError) as caught:
        st.plan(MODEL, SYSTEM, WORK, anchor=anchor(1.1, engine="sglang"))
    got = f"{MODEL.name} on {SYSTEM.name} with engine sglang"
    assert str(caught.value).startswith(f"runs.csv: has no runs of {asked}, got runs of {got}")
    for ask in (st.decode_step, st.step_range, step_summary):
        with pytest.raises(InputError, match="has no runs of"):
            ask(MODEL, SYSTEM, **STEP, anchor=anchor(1.1, engine="sglang"))
    with pytest.raises(InputError, match="has no runs of"):
        st.plan(MODEL, SYSTEM, WORK, engine=replace(load_engine("vllm"), anchor=anchor(1.1, engine="sglang")))


def test_the_ideal_engine_has_no_runs_and_what_is_no_anchor_is_refused():
    with pytest.raises(InputError, match=r"has no runs of .* with engine ideal"):
        st.plan(MODEL, SYSTEM, WORK, engine="ideal", anchor=anchor(1.1))
    with pytest.raises(InputError, match=r"an anchor is what st\.load_anchor gives, not 'runs.csv'"):
        st.decode_step(MODEL, SYSTEM, **STEP, anchor="runs.csv")


@each("count, further", [(1, ""), (2, ""), (3, " and 1 more"), (5, " and 3 more")])
def test_a_refusal_names_two_groups_and_counts_the_others(count, further):
    groups = [anchor(1.1, engine="sglang", system=f"system-{n}") for n in range(count)]
    with pytest.raises(InputError) as caught:
        select_anchor(Anchors(source="runs.csv", anchors=tuple(groups)), model=MODEL.name, system=SYSTEM.name, engine="vllm")
    named = ", and of ".join(f"{MODEL.name} on system-{n} with engine sglang" for n in range(min(count, 2)))
    assert f"got runs of {named}{further}; use runs of the same engine" in str(caught.value)


def test_the_worst_ratios_of_a_time_are_those_of_runs_that_measured_it():
    """Three at most are named, the furthest from 1 first: 0.4 is further from it than 2."""
    both = anchor_of(run_of(2.0, "a"), run_of(None, "b", ttft=1.5), run_of(0.4, "c"))
    assert both._worst("tpot") == "Measured over predicted time per token: 0.40 (c, 64 at once), 2.00 (a, 64 at once)."
    assert both._worst("ttft") == "Measured over predicted time to first token: 1.50 (b, 64 at once)."
    assert anchor_of(run_of(2.0))._worst("ttft") == "No run of this model and system measured first tokens."
    assert anchor_of(run_of(1.019))._worst("tpot") == "Measured time per token: as predicted."
    five = anchor_of(*(run_of(ratio, f"{ratio}") for ratio in (1.1, 1.2, 1.3, 1.4, 1.5)))
    three = "1.50 (1.5, 64 at once), 1.40 (1.4, 64 at once), 1.30 (1.3, 64 at once)"
    assert five._worst("tpot").endswith(f": {three}, and 2 closer to 1.")
    # Runs of another system are not among them.
    assert anchor_of(run_of(2.0, "a"), run_of(9.0, "b", system="hgx-a100"))._worst("tpot").endswith(": 2.00 (a, 64 at once).")


def test_the_usual_load_and_context_are_geometric_means_in_doublings():
    """Loads of 1 and 16, and contexts of 1 and 1,024 tokens: 2^2 and 2^5. Fewer than one count as one."""
    own = anchor_of(run_of(1.0, load=0.25, context=1.0), run_of(1.0, "b", load=16, context=1024))
    assert [float(x) for x in own._coordinates(USUAL, own.measured)] == pytest.approx([2.0, 5.0])
    # A step without sequences takes both; one of half a sequence counts as one of it.
    point = OperatingPoint(load=np.array([0.0, 0.5, 8.0]), context=np.array([64.0, 0.5, 256.0]))
    load, context = own._coordinates(point, own.measured)
    assert load.tolist() == pytest.approx([2.0, 0.0, 3.0])
    assert context.tolist() == pytest.approx([5.0, 0.0, 8.0])
    # Runs of other systems count only where there are none of this one.
    with_others = (*own.measured, run_of(1.0, "c", system="hgx-a100", load=1024))
    assert float(own._coordinates(USUAL, with_others)[0]) == pytest.approx(2.0)
    assert float(own._coordinates(USUAL, with_others[-1:])[0]) == pytest.approx(10.0)
    fixed = replace(own, usual_load=32.0, usual_context=128.0)
    assert [float(x) for x in fixed._coordinates(USUAL, own.measured)] == pytest.approx([5.0, 7.0])


@each("runs, most", [(1, 0), (16, 4), (100, 16), (2, 1)])
def test_more_runs_outside_their_range_than_chance_has_are_a_warning(runs, most):
    """A tenth of n runs and two deviations of 0.3 sqrt(n): 0.7, 4 and 16 of 1, 16 and 100; 1.05 of 2."""
    measured = tuple(run_of(1.0, str(n)) for n in range(runs))
    few, many = (replace(anchor_of(*measured), outside_range=tuple(map(str, range(n)))) for n in (most, most + 1))
    assert few.warning == ""
    assert many.warning.startswith("Your run lies" if runs == 1 else f"{most + 1} of your {runs} runs lie")
    # What may explain runs far outside their range is said in any case.
    told = replace(few, far_outside=("3",), explanations=("Run '3' has tp 2.", "Run '4' has tp 4."))
    assert told.warning == "Run '3' has tp 2."


def test_a_correction_counts_its_runs():
    one, two = (anchor_of(*(run_of(1.5, name) for name in names)) for names in ("a", "ab"))
    assert one.text({"tpot": 1.5}).startswith("Corrected by 1 run that you measured (runs.csv): steps x 1.50 here.")
    assert two.text(None).startswith("Corrected by 2 runs that you measured (runs.csv): each step by its load.")
    assert two.text({}).startswith("Corrected by 2 runs that you measured (runs.csv): steps x 1 here.")
    assert replace(one, version="0.9").text({"tpot": 1.5}).startswith("Corrected by 1 run that you measured (runs.csv, 0.9)")
    assert "--no-anchor" not in one.text(None)
    assert replace(one, is_stored=True).text(None).endswith(" --no-anchor ignores these runs.")


def test_runs_of_other_systems_are_summed_up_as_all_runs():
    """The median of 1.2, 1.5 and 3, which say little of this system: the factor is closer to 1."""
    ratios = {"a": 1.2, "b": 3.0, "c": 1.5}
    others = anchor_of(*(run_of(ratio, name, system="hgx-a100") for name, ratio in ratios.items()))
    found = others.tpot
    assert (found.runs, found.ratio) == (3, pytest.approx(1.5))
    assert 1 < found.factor < 1.5
    assert others.ttft is None
    assert others.text({"tpot": 1.01}).startswith("Your runs are of other models or systems; the prediction is unchanged.")
    assert "None of them is of this model and system" in others.text({"tpot": 1.03})
    mixed = anchor_of(*others.measured, run_of(1.1, "d"))
    assert (mixed.tpot.runs, mixed.tpot.ratio) == (4, pytest.approx(1.1))


def test_a_run_is_one_sequence_on_one_chip_unless_it_says_otherwise():
    run = MeasuredRun(name="a", model="m", system="s")
    assert (run.load, run.context, run.tp, run.pp, run.dp, run.ep) == (1, 1, 1, 1, 1, 1)
    assert (run.version, run.formats, run.tpot, run.ttft) == ("", (), None, None)


def test_a_correction_has_the_runs_and_remarks_of_all_groups_of_its_engine():
    """The newest group of the model and system comes last; its source and explanations are named first."""
    first = replace(
        anchor_of(run_of(1.1, "a", system="hgx-a100"), system="hgx-a100"), source="old.csv", outside_range=("a",),
        far_outside=("a",), explanations=("Run 'a' has tp 2.",), left_out=("x: no model",),
    )  # fmt: skip
    second = replace(
        anchor_of(run_of(1.2, "b")), source="new.csv", version="0.9", outside_range=("b", "a"), far_outside=("b",),
        explanations=("Run 'b' has tp 4.",), left_out=("x: no model", "y: no system"),
    )  # fmt: skip
    other = replace(anchor_of(run_of(9.0, "c")), engine="sglang")
    both = Anchors(source="x", anchors=(second, other, first))
    found = select_anchor(both, model=MODEL.name, system=SYSTEM.name, engine="vllm", formats=FORMATS)
    assert (found.runs, found.source, found.version, found.formats) == (("a", "b"), "new.csv, old.csv", "0.9", FORMATS)
    assert (found.outside_range, found.far_outside) == (("a", "b"), ("a", "b"))
    assert found.explanations == ("Run 'b' has tp 4.", "Run 'a' has tp 2.")
    assert found.left_out == ("x: no model", "y: no system")
    # Of a system without runs, the release is not known.
    far = select_anchor(both, model=MODEL.name, system="l40s-8", engine="vllm")
    assert (far.model, far.system, far.version, far.formats) == (MODEL.name, "l40s-8", "", ())


def test_a_table_of_corrections_has_a_row_per_group():
    groups = (anchor(1.25, version="0.9", runs=2), anchor(None, 1.5, system="hgx-a100"))
    table = Anchors(source="x", anchors=groups).columns()
    assert (table["system"], table["version"], table["runs"]) == ([SYSTEM.name, "hgx-a100"], ["0.9", ""], [2, 1])
    assert table["tpot_ratio"] == [pytest.approx(1.25), None]
    assert table["ttft_ratio"] == [None, pytest.approx(1.5)]
    assert table["tpot_factor"] == [pytest.approx(groups[0].tpot.factor), None]
    assert table["ttft_factor"] == [None, pytest.approx(groups[1].ttft.factor)]
