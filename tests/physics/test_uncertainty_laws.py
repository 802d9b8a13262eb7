"""Ranges: they hold the prediction, the ideal has none, and what is known less well is never surer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

import steptime as st
from steptime.errors import DataFileError
from steptime.physics.engine import Engine, constant, engine_for, load_engine, with_constants
from steptime.physics.uncertainty import (
    REGIMES,
    WIDE,
    factors,
    log_gradient,
    measured_on,
    parameter_variance,
    step_range,
    uncertain_constants,
)
from tests.conftest import each, every, examples, machine, one_matrix

SHIPPED = ("vllm", "sglang", "trtllm", "typical")
STEPS = {
    "decode": {"batch": 64, "context": 4096},
    "mixed": {"batch": 64, "context": 4096, "prompts": 1, "tokens": 1024, "prefix": 512},
    "prefill": {"prompts": 2, "tokens": 4096},
}


def made(**changes) -> Engine:
    """An engine with a fit of two constants."""
    fit = {
        "names": ["memory_efficiency", "seconds_per_step"],
        "covariance": [[0.01, 0.0], [0.0, 0.25]],
        "interval": {"tpot": {"decode": [0.8, 1.25], "mixed": [0.7, 1.5]}},
    }
    return with_constants(Engine(name="made", fit=fit | changes), {"memory_efficiency": 0.8, "seconds_per_step": 1e-3})


@pytest.mark.parametrize("phase", STEPS)
@pytest.mark.parametrize(("model", "system"), every(2, [("llama-3.1-8b", "hgx-h100"), ("deepseek-v3", "hgx-h200")]))
def test_gradient_is_the_difference_between_scalar_engines(model, system, phase):
    model, system, engine = st.load_model(model), st.load_system(system), load_engine("vllm")
    given_ = STEPS[phase] | {"layout": st.Layout(tp=8)}
    gradient = log_gradient(lambda e: st.mixed_step(model, system, engine=e, **given_).total, engine)
    assert gradient.shape == (len(uncertain_constants(engine)),)
    for name, value in zip(uncertain_constants(engine), gradient, strict=True):
        up, down = (
            float(
                st.mixed_step(model, system, engine=with_constants(engine, {name: constant(engine, name) * f}), **given_).total
            )
            for f in (np.exp(1e-3), np.exp(-1e-3))
        )
        assert value == pytest.approx(np.log(up / down) / 2e-3, abs=2e-3), name


def test_gradient_of_many_points_is_that_of_each(deepseek, rack):
    engine, batch, context = load_engine("vllm"), np.array([[8], [512]]), np.array([100, 5000, 100_000])
    layout = st.Layout(dp=8, ep=8)

    def seconds(e, b=batch, c=context):
        return st.decode_step(deepseek, rack, batch=b, context=c, layout=layout, engine=e).total

    together = log_gradient(seconds, engine, dimensions=2)
    assert together.shape == (len(uncertain_constants(engine)), 2, 3)
    one = log_gradient(lambda e: seconds(e, 512, 100), engine)
    assert together[:, 1, 0] == pytest.approx(one, abs=1e-8)


@pytest.mark.thorough
def test_many_engines_on_many_points_are_cut_in_blocks_without_a_trace():
    """Constants on a leading axis and an input large enough to be cut: each point is what it is alone."""
    model, system, batch = st.load_model("llama-3.1-8b"), st.load_system("hgx-h100"), np.arange(1, 150_001)
    engine = with_constants(load_engine("vllm"), {"memory_efficiency": np.array([[0.8], [0.7]])})
    whole = st.decode_step(model, system, batch=batch, context=100, engine=engine)
    assert whole.total.shape == (2, len(batch))
    for row, column in ((0, 0), (1, 70_000), (1, 149_999)):
        alone = with_constants(engine, {"memory_efficiency": [0.8, 0.7][row]})
        assert whole.total[row, column] == pytest.approx(
            float(st.decode_step(model, system, batch=batch[column], context=100, engine=alone).total)
        )


@pytest.mark.parametrize("phase", STEPS)
@pytest.mark.parametrize("engine", SHIPPED)
@pytest.mark.parametrize(
    ("model", "system"), every(3, [("deepseek-v3", "gb200-nvl72"), ("gpt-oss-20b", "mi300x-8"), ("gpt2", "tpu7x")])
)
def test_a_range_holds_its_prediction(model, system, engine, phase):
    model, system = st.load_model(model), st.load_system(system)
    seconds = st.mixed_step(model, system, engine=engine, **STEPS[phase]).total
    low, high = step_range(model, system, engine=engine, **STEPS[phase])
    assert 0 < low < seconds < high < np.inf


def test_the_ideal_is_a_bound_and_has_no_range():
    assert step_range(one_matrix(), machine(), engine="ideal", batch=1, context=1) is None


def test_an_engine_without_a_fit_gets_the_wide_range():
    given_ = {"batch": 8, "context": 100}
    engine = with_constants(Engine(name="rough"), {"memory_efficiency": 0.5})
    seconds = st.decode_step(one_matrix(), machine(), engine=engine, **given_).total
    assert step_range(one_matrix(), machine(), engine=engine, **given_) == pytest.approx((WIDE[0] * seconds, WIDE[1] * seconds))


@each("name", SHIPPED)
def test_chips_that_were_never_measured_get_at_least_the_wide_range(name):
    engine = load_engine(name)
    assert measured_on(engine, st.load_system("mi300x-8")) == (name in ("sglang", "typical"))
    for system in ("tpu7x", "trn2-16", "groq-rack"):
        assert not measured_on(engine, st.load_system(system))
        low, high = factors(engine, "tpot", "decode", system=st.load_system(system))
        assert low <= WIDE[0]
        assert high >= WIDE[1]
    assert measured_on(engine, st.load_system("hgx-h100"))


@given(
    variance=some.floats(0, 4),
    more=some.floats(0, 4),
    usual=some.floats(0, 1),
    regime=some.sampled_from(REGIMES),
    shares=some.tuples(some.floats(0.1, 2.0), some.floats(1.0, 3.0)),
)
def test_more_variance_never_gives_a_narrower_range(variance, more, usual, regime, shares):
    table = {regime: [shares[0], shares[0] * shares[1]]}
    engine = made(interval={"tpot": table}, parameter_variance={"tpot": {regime: usual}})
    low, high = factors(engine, "tpot", regime, variance=variance)
    wider_low, wider_high = factors(engine, "tpot", regime, variance=variance + more)
    assert wider_low <= low <= 1 <= high <= wider_high
    least_low, least_high = factors(engine, "tpot", regime)
    assert low <= least_low * (1 + 1e-12)
    assert high >= least_high * (1 - 1e-12)


@given(scale=some.floats(1, 50), seed=some.integers(0, 1000))
@examples(20)
def test_a_wider_covariance_never_gives_a_narrower_step(scale, seed):
    random = np.random.default_rng(seed)
    root = random.normal(size=(2, 2)) * 0.2
    covariance, given_ = root @ root.T, {"batch": 8, "context": 100}
    narrow = step_range(one_matrix(), machine(), engine=made(covariance=covariance.tolist()), **given_)
    wide = step_range(one_matrix(), machine(), engine=made(covariance=(scale * covariance).tolist()), **given_)
    assert wide[0] <= narrow[0]
    assert narrow[1] <= wide[1]


def test_a_step_that_rests_on_a_badly_known_constant_has_a_wider_range():
    """A small batch waits for the step's overhead, of which the engine knows little; a large one streams memory."""

    def spread(batch, engine):
        low, high = step_range(one_matrix(weights=1e7), machine(), engine=engine, batch=batch, context=1000)
        return high / low

    engine = made(covariance=[[0.0, 0.0], [0.0, 0.25]])
    assert spread(1, engine) > spread(100_000, engine) * 1.2
    assert spread(100_000, engine) == pytest.approx(1.25 / 0.8, rel=0.1)


def test_what_the_fitted_runs_already_hold_is_not_counted_twice():
    engine = made(parameter_variance={"tpot": {"decode": 0.3}})
    given_ = {"batch": 8, "context": 100}
    seconds = st.decode_step(one_matrix(), machine(), engine=engine, **given_).total
    assert step_range(one_matrix(), machine(), engine=engine, **given_) == pytest.approx((0.8 * seconds, 1.25 * seconds))


def test_variance_of_a_sum_of_constants():
    """$\\log(a b^2)$ with variances 0.01 and 0.25 that do not covary: 0.01 + 4 x 0.25."""
    engine = made()
    gradient = log_gradient(lambda e: e.kernels.memory_efficiency * e.overheads.seconds_per_step**2, engine)
    assert parameter_variance(gradient, engine) == pytest.approx(1.01)


@pytest.mark.slow
def test_a_fit_says_what_its_runs_hold():
    """The mean variance over the fitted runs and the makers of their chips, which the ranges of other runs are measured by."""
    pytest.importorskip("scipy")
    from engine_cross_validation import known_from

    from steptime.validation.engine_fit import calibrated_engine
    from steptime.validation.predictions import grouped, predict

    row = {
        "id": "a", "model": "llama-3.1-8b", "system": "mi300x-8", "engine": "vllm", "input_tokens": "1024",
        "output_tokens": "256", "tp": "1", "pp": "1", "dp": "1", "ep": "1", "weight_dtype": "bf16", "expert_dtype": "",
        "ttft_s": "0.1",
    }  # fmt: skip
    rows = [row | {"concurrency": str(c), "tpot_s": str(t)} for c, t in ((1, 0.006), (8, 0.007), (64, 0.012))]
    prior = load_engine("vllm")
    known = known_from(grouped(rows), prior)
    assert known["vendors"] == ["AMD"]
    for table in known["parameter_variance"].values():
        assert all(0 < mean < 1 for mean in table.values())
    mine = calibrated_engine(rows, name="mine", prior=prior)
    assert mine.fit["vendors"] == ["AMD", "NVIDIA"]
    found, before = predict(rows, engine=mine), predict(rows, engine=prior)
    assert np.all(found.tpot_high / found.tpot < before.tpot_high / before.tpot)  # measured now


@pytest.mark.parametrize(
    ("fit", "says"),
    [
        ("[fit.interval.tpot]\ndecode = [1.2]", "fit.interval.tpot.decode: must be two factors"),
        ("[fit.interval.tpot]\ndecode = [2.0, 0.5]", "fit.interval.tpot.decode: must be two factors"),
        ('[fit.interval.tpot]\ndecode = "wide"', "fit.interval.tpot.decode: must be two factors"),
        ("[fit]\ninterval = 3", "fit.interval: must have tables"),
        ("[fit.parameter_variance.tpot]\nmixed = -1.0", "fit.parameter_variance.tpot.mixed: must be a variance"),
        ('[fit]\nvendors = "NVIDIA"', "fit.vendors: must be a list"),
        ("[fit]\nheld = 0.9", "fit.held.: must be a share and a number of runs, not 0.9"),
        ("[fit.held]\nall = [1.1, 20]", "fit.held.all: must be a share and a number of runs"),
    ],
)
def test_a_broken_fit_is_named(tmp_path, fit, says):
    path = tmp_path / "broken.toml"
    section, _, rest = fit.partition("\n")
    head = '[constants]\nmemory_efficiency = 0.8\n[fit]\nnames = ["memory_efficiency"]\ncovariance = [[0.01]]\n'
    path.write_text(head + (rest if section == "[fit]" else fit))
    with pytest.raises(DataFileError, match=says.replace("[", r"\[")):
        load_engine(str(path))


def test_the_default_engine_is_a_real_one():
    assert engine_for(st.load_system("gb200-nvl72")).name == "vllm"
    for system in ("tpu7x", "trn2-16", "mi300x-8", "cs-3"):
        assert engine_for(st.load_system(system)).name == "typical"
    assert engine_for(st.load_system("m3-ultra")).name == "llama.cpp"


def test_a_step_on_an_apple_chip_is_that_of_llama_cpp():
    """A decoded token of Llama 2 7B in Q4_0 takes 12.04 ms on an M4 Max: github.com/ggml-org/llama.cpp/discussions/4167."""
    step = st.decode_step(st.load_model("llama-2-7b", weights="q4_0"), "m4-max", batch=1, context=64)
    assert float(step.total) == pytest.approx(12.04e-3, rel=0.1)
    # A model by name has the formats of its GGUF file.
    by_name = st.decode_step("gpt-oss-20b", "m4-max", batch=1, context=64)
    assert float(by_name.total) == float(st.decode_step("gpt-oss-20b", "m4-max", batch=1, context=64, engine="llama.cpp").total)
