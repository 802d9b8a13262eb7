"""90 % ranges by hand, on a machine that waits for memory alone: times go as 1 / memory efficiency."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from steptime.physics.engine import load_engine
from steptime.physics.step import decode_step, mixed_step
from steptime.physics.uncertainty import (
    _value_and_slopes,
    factors,
    half_width,
    has_range,
    interval_coverage_words,
    latency_regime,
    log_gradient,
    measured_on,
    parameter_variance,
    range_shares,
    step_range,
    widest,
    with_variances,
)
from steptime.questions.step_question import step_summary
from tests.conftest import each, engine, machine, one_matrix

STREAM = machine(flops=1e30)
TABLES = {"tpot": {"decode": [0.8, 1.25], "mixed": [0.7, 1.5]}, "ttft": {"prompt": [0.6, 1.7]}}


def fitted(**more):
    fit = {"names": ["memory_efficiency"], "covariance": [[0.04]], "interval": TABLES}
    return engine(memory_efficiency=0.8, fit=fit | more)


@each("share, regime", [(0.0, "decode"), (0.15, "decode"), (0.1501, "mixed"), (1.0, "mixed")])
def test_regimes(share, regime):
    assert str(latency_regime(share)) == regime


def test_half_of_a_range():
    """sqrt(0.3^2 + 1.645^2 x 0.04) = 0.445."""
    assert half_width(0.3, 0.04) == pytest.approx(math.sqrt(0.09 + 1.645**2 * 0.04))
    assert half_width(0.3, -1.0) == pytest.approx(0.3)
    assert half_width(0.0, 0.25) == pytest.approx(1.645 * 0.5)


@each(
    "quantity, regime, low, high",
    [
        ("tpot", "decode", 0.8, 1.25),
        ("tpot", "mixed", 0.7, 1.5),
        ("ttft", "prompt", 0.6, 1.7),
        ("ttft", "queue", 0.5, 2.0),  # of which the file says nothing
        ("other", "decode", 0.5, 2.0),
    ],
)
def test_factors_of_left_out_runs(quantity, regime, low, high):
    assert factors(fitted(), quantity, regime) == (pytest.approx(low), pytest.approx(high))
    both = factors(fitted(), quantity, np.array([regime, regime]))
    assert both[0].tolist() == pytest.approx([low, low])


def test_factors_lie_on_both_sides_of_a_prediction():
    """Runs that were all slower, or all faster, than predicted."""
    assert factors(fitted(interval={"tpot": {"decode": [1.1, 1.4]}}), "tpot", "decode") == (1, pytest.approx(1.4))
    assert factors(fitted(interval={"tpot": {"decode": [0.7, 0.9]}}), "tpot", "decode") == (pytest.approx(0.7), 1)


def test_variance_beyond_that_of_the_runs_widens():
    on = fitted(parameter_variance={"tpot": {"decode": 0.01}})
    wide = math.sqrt(math.log(1.25) ** 2 + 1.645**2 * 0.03)
    assert factors(on, "tpot", "decode", variance=0.04) == (pytest.approx(math.exp(-wide)), pytest.approx(math.exp(wide)))
    assert factors(on, "tpot", "decode", variance=0.005) == (pytest.approx(0.8), pytest.approx(1.25))
    # Near the capacity of a queue the derivative has no bound, and neither has the range.
    assert factors(on, "tpot", "decode", variance=1e6) == (0, math.inf)
    more = math.sqrt(math.log(1.5) ** 2 + 1.645**2 * 0.04)
    assert factors(on, "tpot", "mixed", variance=0.04)[1] == pytest.approx(math.exp(more))  # no variance of runs is known


def test_chips_of_other_makers_have_at_least_half_to_twice():
    on = fitted(vendors=["NVIDIA"])
    assert measured_on(on, machine(vendor="NVIDIA"))
    assert not measured_on(on, machine(vendor="AMD"))
    assert measured_on(fitted(), machine(vendor="AMD"))  # an engine that does not say
    assert factors(on, "tpot", "decode", system=machine(vendor="AMD")) == (0.5, 2)
    assert factors(on, "tpot", "decode", system=machine(vendor="NVIDIA")) == (pytest.approx(0.8), pytest.approx(1.25))
    far = fitted(vendors=["NVIDIA"], interval={"tpot": {"decode": [0.3, 4.0]}})
    assert factors(far, "tpot", "decode", system=machine(vendor="AMD")) == (pytest.approx(0.3), pytest.approx(4))


def test_the_widest_of_all_regimes():
    assert widest(fitted(), machine()) == (pytest.approx(0.7), pytest.approx(1.5))
    crossed = fitted(interval={"tpot": {"decode": [0.6, 1.2], "mixed": [0.9, 1.6]}})
    assert widest(crossed, machine()) == (pytest.approx(0.6), pytest.approx(1.6))
    far = (-math.hypot(math.log(0.6), 0.2), math.hypot(math.log(1.6), 0.3))
    assert np.log(widest(crossed, machine(), (0.2, 0.3))) == pytest.approx(far)


def reading(on, context=1):
    """Seconds that a step streams weights, which go as 1 / memory efficiency, and seconds of its overhead."""
    terms = decode_step(one_matrix(kv_bytes=1e-6), STREAM, batch=1, context=context, engine=on).terms
    return terms["feed-forward"], terms["overhead"]


def test_gradients_and_variances_of_a_product():
    """a^-1 b^2: 0.04 + 4 x 0.01 - 2 x 2 x 0.005."""
    fit = {"names": ["memory_efficiency", "seconds_per_step"], "covariance": [[0.04, 0.005], [0.005, 0.01]]}
    on = engine(memory_efficiency=0.8, seconds_per_step=3.0, fit=fit)
    gradient = log_gradient(lambda e: reading(e)[0] * reading(e)[1] ** 2, on)
    assert gradient == pytest.approx([-1, 2], abs=1e-4)
    assert parameter_variance(gradient, on) == pytest.approx(0.06, abs=1e-4)
    assert parameter_variance(np.array([[1.0, 0.0], [0.0, 1.0]]), on) == pytest.approx([0.04, 0.01])
    assert parameter_variance(np.array([1.0]), engine()) == 0
    ((one, its), (two, other)) = with_variances(lambda e: (reading(e)[0], 5.0), on)
    assert (one, its) == (pytest.approx(2.5e-3 / 0.8), pytest.approx(0.04, rel=1e-3))
    assert (two, other) == (5, 0)


def test_gradients_of_many_values():
    on, contexts = engine(memory_efficiency=0.8, seconds_per_step=1.0, fit=fitted().fit), np.array([1, 2, 3])
    gradient = log_gradient(lambda e: reading(e, contexts)[0], on, dimensions=1)
    assert gradient == pytest.approx(np.array([[-1.0, -1.0, -1.0]]), abs=1e-4)
    assert log_gradient(lambda e: contexts * 1.0, on, dimensions=1) == pytest.approx(np.zeros((1, 3)))


@each(
    "given, regime",
    [
        ({"batch": 4, "context": 10}, "decode"),
        ({"prompts": 1, "tokens": 10}, "mixed"),
        ({"batch": 4, "context": 10, "prompts": 1, "tokens": 10}, "mixed"),
        ({"batch": 4, "context": 10, "prompts": 1, "tokens": 0}, "decode"),
        ({"batch": 4, "context": 10, "prompts": 0, "tokens": 10}, "decode"),
        ({"batch": 4, "context": 10, "prompts": 1}, "decode"),
        ({"batch": 4, "context": 10, "tokens": 10}, "decode"),
        ({"prompts": 1, "tokens": 1}, "mixed"),
    ],
)
def test_the_range_of_a_step(given, regime):
    on = fitted(parameter_variance={"tpot": {"decode": 0.01, "mixed": 0.02}})
    model = one_matrix(kv_bytes=1e-6)
    excess = 0.04 - {"decode": 0.01, "mixed": 0.02}[regime]
    seconds = float(mixed_step(model, STREAM, engine=on, **given).total)
    low, high = step_range(model, STREAM, engine=on, **given)
    for value, factor in ((seconds / low, 1 / TABLES["tpot"][regime][0]), (high / seconds, TABLES["tpot"][regime][1])):
        assert math.log(value) == pytest.approx(math.sqrt(math.log(factor) ** 2 + 1.645**2 * excess), rel=1e-3)


def test_ranges_of_many_steps_are_those_of_each():
    batch = np.array([1, 200, 3000])
    low, high = step_range(one_matrix(), machine(), engine=fitted(), batch=batch, context=1000)
    for i, one in enumerate(batch):
        alone = step_range(one_matrix(), machine(), engine=fitted(), batch=int(one), context=1000)
        assert (low[i], high[i]) == (pytest.approx(float(alone[0])), pytest.approx(float(alone[1])))


def test_only_a_bound_has_no_range():
    assert not has_range(load_engine("ideal"))
    assert has_range(engine())


def test_the_widest_on_chips_that_were_never_measured():
    on = fitted(vendors=["NVIDIA"])
    assert widest(on, machine(vendor="AMD")) == (0.5, 2)
    assert widest(on, machine(vendor="NVIDIA")) == (pytest.approx(0.7), pytest.approx(1.5))


def test_what_takes_no_time_has_no_gradient():
    assert log_gradient(lambda e: 0.0 * e.kernels.memory_efficiency, fitted()).tolist() == [0.0]


def test_a_time_that_a_constant_makes_from_nothing_has_no_slope():
    """Zero seconds, a few of them once the constant moves: no share of the time is its."""
    assert list(_value_and_slopes(np.array([0.0, 1.0]), fitted(), 0)[1]) == [0.0]
    assert list(_value_and_slopes(np.array([1.0, 0.0]), fitted(), 0)[1]) == [0.0]


def test_a_step_unlike_what_was_measured_has_the_wider_range_of_a_plan():
    import steptime as st

    # With copies of experts, so that the doubt about their skew adds little.
    rack = {"layout": st.Layout(dp=72, ep=72, redundant_experts=104), "batch": 4096, "context": 4096}
    low, high = st.step_range("deepseek-v3", "gb200-nvl72", **rack)
    total = float(st.decode_step("deepseek-v3", "gb200-nvl72", **rack).total)
    near_low, near_high = st.step_range("deepseek-v3", "hgx-h200", layout=st.Layout(dp=8, ep=8), batch=64, context=4096)
    near = float(st.decode_step("deepseek-v3", "hgx-h200", layout=st.Layout(dp=8, ep=8), batch=64, context=4096).total)
    assert high / total > 1.2 * near_high / near
    assert low / total < 0.93 * near_low / near
    # more than 8 chips 0.1, few runs on the system 0.46 above: added to what left-out runs scatter, in quadrature
    assert high / total == pytest.approx(np.exp(np.sqrt(np.log(near_high / near) ** 2 + 0.1**2 + 0.46**2)), rel=0.1)


def test_how_many_runs_were_in_their_range_is_told_by_kind():
    held = {"left_out": [0.9, 1234], "drafted": [0.8, 20], "AMD": [0.75, 12]}
    one = engine(title="x", fit={"held": held, "vendors": ["NVIDIA"], "names": [], "interval": {}})
    both = engine(title="x", fit={"held": held, "vendors": ["NVIDIA", "AMD"], "names": [], "interval": {}})

    def words(on, vendor="NVIDIA", drafts=False, pools=False):
        return interval_coverage_words(on, machine(vendor=vendor), drafts=drafts, pools=pools)

    every = "90 % of 1,234 left-out runs"
    assert words(one) == words(both) == (every,)
    assert (words(one, "AMD"), words(both, "AMD")) == ((every,), (every, "75 % of 12 on AMD chips"))
    # Of a vendor without a count nothing is said; of a kind of runs, that there is none.
    assert words(both, "Intel") == (every,)
    assert words(one, drafts=True) == (every, "80 % of 20 with speculative tokens")
    pools = f"no run with separate pools was measured with {one.name}"
    assert words(one, pools=True) == words(one, drafts=True, pools=True) == (every, pools)
    assert words(engine()) == ()


def test_shares_of_a_range_add_up_and_small_ones_are_together():
    """The upper half of the range is log 1.25, and two differences of 0.2 and 0.01 from measured runs."""
    on = fitted(parameter_variance={"tpot": {"decode": 1.0}})
    differences = {"far": (0.2, True), "near": (0.01, np.array([False, True])), "never": (9.0, False)}
    flags = [(SimpleNamespace(words=words, high=high), applies) for words, (high, applies) in differences.items()]
    total = math.log(1.25) ** 2 + 0.2**2 + 0.01**2
    found = range_shares(on, np.array([0.0]), flags)
    assert found == {
        "a group of runs that no fit has seen": pytest.approx(math.log(1.25) ** 2 / total),
        "far": pytest.approx(0.04 / total), "others": pytest.approx(1e-4 / total),
    }  # fmt: skip
    # First tokens have their own range, 1.7, and their own difference.
    late = [(SimpleNamespace(words="far", high=0.2, late=0.5), True)]
    first = range_shares(on, np.array([0.0]), late, "prompt", "ttft")
    assert first["far"] == pytest.approx(0.25 / (0.25 + float(np.log(factors(on, "ttft", "prompt")[1])) ** 2))
    # A slope of 2 in a constant of variance 0.04: 0.16, of which the fitted runs have 0.06.
    wide = range_shares(fitted(parameter_variance={"tpot": {"decode": 0.06}}), np.array([2.0]))
    own, group = 1.6448536**2 * 0.1, math.log(1.25) ** 2
    assert wide["memory_efficiency"] == pytest.approx(own / (own + group), rel=1e-4)
    assert next(iter(wide)) == "memory_efficiency"


@pytest.mark.parametrize(
    ("system", "engine", "is_warned", "names_another"),
    [
        ("m4-max", "typical", True, True), ("m4-max", None, False, False), ("m4-max", "ideal", False, False),
        ("tpu7x", None, True, False), ("hgx-h100", None, False, False),
    ],
)  # fmt: skip
def test_a_step_of_an_engine_without_runs_says_which_engine_has_some(system, engine, is_warned, names_another):
    """Servers' kernels pad each expert to a tile, so that `typical` takes five times as long on an M4 Max as llama.cpp."""
    step = step_summary("gpt-oss-20b", system, batch=1, context=4000, engine=engine)
    notes = [note for note in step.notes if "no measured run" in note]
    assert len(notes) == is_warned
    assert any("--engine llama.cpp" in note for note in notes) == names_another
