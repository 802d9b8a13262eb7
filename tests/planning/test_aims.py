"""Where candidates aim to meet limits as surely as asked, by hand; and plans that are sure of them."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.errors import RangeError
from steptime.physics.bias_correction import Anchor, MeasuredRun
from steptime.physics.layout import Layout
from steptime.physics.uncertainty import SEPARATE_POOLS
from steptime.planning.slo_probability import effective_targets, extrapolation_flags
from tests.conftest import each, engine
from tests.planning.cases import MODEL, NODES, WORK, case, closed_plan, equal_requests

TABLES = {"tpot": {"decode": [0.8, 1.25], "mixed": [0.7, 1.5]}, "ttft": {"prompt": [0.6, 1.6], "queue": [0.5, 3.0]}}
FITTED = engine(fit={"names": [], "interval": TABLES, "systems": {"toy": 100}})
CASE = replace(case(slo=st.Slo(tpot=0.02, ttft=2.0)), engine=FITTED, sure=0.95)


def test_whoever_asks_for_no_probability_aims_at_the_limits():
    assert effective_targets(replace(CASE, sure=None), Layout(tp=16), None) == (0.02, 2.0)
    assert effective_targets(replace(CASE, engine=st.load_engine("ideal")), Layout(tp=16), None) == (0.02, 2.0)


def test_a_limit_is_met_in_nineteen_of_twenty_where_the_end_of_the_range_meets_it():
    assert effective_targets(CASE, Layout(), None) == pytest.approx((0.02 / 1.25, 2 / 1.6))
    assert effective_targets(CASE, Layout(), None, prompts=0.5) == pytest.approx((0.02 / 1.5, 2 / 1.6))  # mixed
    assert effective_targets(replace(CASE, sure=0.9), Layout(), None)[0] == pytest.approx(0.02 / 1.25**0.779129)
    assert effective_targets(replace(CASE, sure=0.5), Layout(), None) == (0.02, 2.0)
    assert effective_targets(replace(CASE, aim=(0.9, 0.5)), Layout(), None) == pytest.approx((0.9 * 0.02 / 1.25, 1 / 1.6))
    assert np.isinf(effective_targets(replace(CASE, slo=st.Slo()), Layout(), None)).all()


def test_first_tokens_of_a_pool_of_their_own_err_as_those_of_mixed_runs():
    """Apart: 0.2 more in quadrature to log 1.25, and 1.5 to log 1.6."""
    tpot, ttft = effective_targets(CASE, Layout(), Layout())
    assert tpot == pytest.approx(0.02 / math.exp(math.hypot(math.log(1.25), 0.2)))
    late = math.exp(math.hypot(math.log(1.6), 1.5))
    assert ttft == pytest.approx(2 / late)
    # Half of them come 2.05 times as late as predicted, 90 % of them 0.779 of the way from there to the end of the range.
    usual = math.exp(SEPARATE_POOLS.usually)
    assert effective_targets(replace(CASE, sure=0.5), Layout(), Layout())[1] == pytest.approx(2 / usual)
    assert effective_targets(replace(CASE, sure=0.9), Layout(), Layout())[1] == pytest.approx(
        2 / (usual * (late / usual) ** 0.779129)
    )


def test_chips_that_were_never_measured_aim_at_half_of_both_limits():
    """Ranges to twice the time at least: chips of no vendor of the runs."""
    on = engine(fit={"names": [], "interval": TABLES, "systems": {"toy": 100}, "vendors": ["NVIDIA"]})
    assert effective_targets(replace(CASE, engine=on), Layout(), None) == pytest.approx((0.01, 1.0))


def test_layouts_that_were_measured_aim_closer_to_the_limit():
    """Runs of one layout share more with it than with another one, so that its range is narrower."""
    run = {"model": MODEL.name, "system": NODES.name, "formats": ("fp8", ""), "load": 8.0, "context": 1100.0}
    runs = tuple(MeasuredRun(name=name, tp=2, tpot=1.0, **run) for name in "abc")
    own = Anchor(source="x", model=MODEL.name, system=NODES.name, engine="test", formats=("fp8", ""), measured=runs)
    wide = {"tpot": {"decode": [0.3, 3.0], "mixed": [0.3, 3.0]}}
    on = replace(engine(fit={"names": [], "interval": wide, "systems": {"toy": 100}}), anchor=own)
    measured, unlike = (effective_targets(replace(CASE, engine=on), Layout(tp=tp), None)[0] for tp in (2, 4))
    assert unlike < measured < 0.02


def test_candidates_of_a_table_aim_each_for_itself():
    """Sixteen chips: 0.1 more in quadrature; two stages: 0.33."""
    found = effective_targets(CASE, Layout(tp=np.array([8, 16, 4]), pp=np.array([1, 1, 2])), None)[0]
    wide = [math.exp(math.hypot(math.log(1.25), more)) for more in (0, 0.1, 0.33)]
    assert found == pytest.approx(0.02 / np.array(wide))


def test_the_larger_of_two_pools_counts():
    words = [
        [one.words for one, there in extrapolation_flags(CASE, decode, reader) if there]
        for decode, reader in ((Layout(), Layout(tp=16)), (Layout(tp=16), Layout()), (Layout(), Layout(pp=2)))
    ]
    assert words[0] == words[1] == ["separate prefill and decode pools", "replicas of more than 8 chips"]
    assert words[2] == ["separate prefill and decode pools", "pipeline stages"]


SURES = (None, 0.5, 0.7, 0.9, 0.99)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "system", "chips", "limits"),
    [
        ("llama-3.1-8b", "hgx-h100", 2, {"tpot": 0.02, "ttft": 1.0}),
        ("llama-3.1-8b", "hgx-h100", 2, {"ttft": 0.15}),
        ("llama-3.1-70b", "hgx-h200", 8, {"tpot": 0.03}),  # pools apart with stages, until that is not sure enough
    ],
)
def test_a_surer_plan_is_as_likely_as_asked_and_never_cheaper(model, system, chips, limits):
    work = equal_requests(input_tokens=2048, output_tokens=256)
    of, on = st.load_model(model), st.load_system(system)
    found = [closed_plan(of, on, work, st.Slo(**limits), chips=chips, sure=sure, alternatives=False) for sure in SURES]
    assert [one.sure for one in found] == list(SURES)
    for one, sure in zip(found[1:], SURES[1:], strict=True):
        assert one.feasible
        assert set(one.slo_probability) == set(limits)
        assert min(one.slo_probability.values()) >= sure - 1e-6
    cost = [one.usd_per_million_output_tokens for one in found]
    assert all(later >= sooner * (1 - 0.005) for sooner, later in itertools.pairwise(cost))  # as cheap: half a percent
    assert cost[-1] > cost[0] * 1.01


def test_what_nothing_meets_so_surely_is_an_answer():
    tight = st.Slo(tpot=1e10 / 4 / 4e12 * 1.2)  # weights over four chips, and a fifth more
    assert closed_plan(MODEL, NODES, WORK, tight, engine=FITTED, alternatives=False).feasible
    never = closed_plan(MODEL, NODES, WORK, tight, engine=FITTED, sure=0.95, alternatives=False)
    assert not never.feasible
    assert (never.sure, never.slo_probability, never.distance) == (0.95, {}, ())
    assert never.reason.startswith("with probability 0.95, ")


def test_the_ideal_is_certain_whatever_is_asked():
    given = (MODEL, NODES, WORK, st.Slo(tpot=8e-3))
    asked, plain = (
        closed_plan(*given, engine="ideal", sure=0.99, alternatives=False),
        closed_plan(*given, engine="ideal", alternatives=False),
    )
    assert asked.sure == 0.99
    assert asked.slo_probability == {"tpot": 1.0}
    assert asked.usd_per_million_output_tokens == plain.usd_per_million_output_tokens


@each("sure", [0.3, 2, math.nan])
def test_a_plan_refuses_what_is_no_such_probability(sure):
    with pytest.raises(RangeError, match="sure: must be a probability from"):
        closed_plan(MODEL, NODES, WORK, engine="ideal", sure=sure, alternatives=False)


def test_a_plan_refuses_to_be_sure_of_no_limits():
    with pytest.raises(RangeError, match=r"sure: .* needs a limit"):
        closed_plan(MODEL, NODES, WORK, engine="ideal", sure=0.9, alternatives=False)
