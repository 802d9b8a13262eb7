"""How far unsure inputs swing an answer: by hand, exactly where a rent is all that matters, and what ranges rest on."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.errors import InputError, RangeError, UnknownName
from steptime.hardware.rental_prices import usd
from steptime.hardware.what_if import in_force
from steptime.physics.engine import load_engine
from steptime.physics.uncertainty import step_range
from steptime.scaling.scaling_laws import with_constant
from steptime.sweeps.parameter_ranges import HALF_WIDTHS
from steptime.sweeps.sensitivity import sensitivity
from steptime.sweeps.sensitivity_result import Swing
from steptime.units import GRADES
from tests.conftest import each

STEP = {"model": "llama-3.3-70b", "system": "hgx-h100", "tp": 8, "batch": 256}
PLAN = {"model": "llama-3.1-8b", "system": "hgx-h100", "chips": 1, "mode": "aggregated", "speed": 40}
COST = "usd_per_million_tokens"


def by_name(found) -> dict[str, Swing]:
    return {one.name: one for one in found.swings}


@pytest.fixture(scope="module")
def step():
    return st.sensitivity("step", **STEP)


def test_the_tornado_of_a_closed_form_as_by_hand():
    """Capacity over bandwidth: 80 GB at 4 TB/s drain in 20 ms."""
    found = sensitivity(
        "blackboard.drain_seconds", vary={"bandwidth": "3TB/s:5TB/s", "capacity": (78e9, 82e9)}, bandwidth=4e12, capacity=80e9
    )
    one, other = found.swings
    assert found.base == 0.02
    assert (one.name, one.at_low, one.at_high) == ("bandwidth", pytest.approx(80e9 / 3e12), pytest.approx(80e9 / 5e12))
    assert (other.name, other.at_low, other.at_high) == ("capacity", pytest.approx(0.0195), pytest.approx(0.0205))
    swings = np.square(np.log([5 / 3, 82 / 78]))
    assert [one.share, other.share] == pytest.approx(swings / swings.sum())
    assert found.text.startswith("Measure the bandwidth first (bandwidth)")
    assert "about 99 %" in found.text


def test_a_cost_moves_exactly_with_the_rent(step):
    rent = by_name(step)["rent"]
    system = st.load_system("hgx-h100")
    assert (rent.low, rent.base, rent.high) == (system.rent.low, system.rent.typical, system.rent.high)
    assert rent.at_low / step.base == pytest.approx(rent.low / rent.base, rel=1e-12)
    assert rent.at_high == pytest.approx(step.base, rel=1e-12)
    assert "three-year contract, quotes of the year to 2026-09" in rent.basis
    assert "rent" not in by_name(sensitivity("step", answer="time", **STEP))  # no money is asked for
    assert "rent" not in by_name(sensitivity("step", rent=2, **STEP))  # it was told


def test_the_base_and_each_end_are_what_the_question_answers(step):
    model, system, engine = st.load_model("llama-3.3-70b"), st.load_system("hgx-h100"), load_engine("vllm")
    ask = {"batch": 256, "context": 4096, "layout": st.Layout(tp=8)}
    seconds = float(st.decode_step(model, system, engine=engine, **ask).total)
    assert step.base == pytest.approx(system.rent.typical * 8 * seconds / 256 * 1e6)
    bandwidth = by_name(step)["chip.hbm.bandwidth"]
    slower = st.vary(system, {"chip.hbm.bandwidth": bandwidth.low})
    ratio = float(st.decode_step(model, slower, engine=engine, **ask).total) / seconds
    assert bandwidth.at_low == pytest.approx(step.base * ratio)
    assert by_name(step)["scatter"].at_high == pytest.approx(step.base * by_name(step)["scatter"].high)
    context = by_name(step)["context"]
    assert (context.low, context.high) == (3277, 5120)


@pytest.mark.slow
def test_the_engine_alone_makes_the_range_that_a_step_states():
    found = sensitivity("step", answer="time", sobol=True, samples=4096, **STEP)
    model, system = "llama-3.3-70b", "hgx-h100"
    low, high = step_range(model, system, batch=256, context=4096, layout=st.Layout(tp=8))
    seconds = found.base
    engine = [one for one in found.swings if one.name == "scatter" or one.basis.startswith(("fitted", "a prior"))]
    for side, end in (("at_low", low), ("at_high", high)):
        logs = [math.log(one.at_high / seconds) if side == "at_high" else math.log(min(one.at_low, one.at_high) / seconds)
                for one in engine if one.name == "scatter"]  # fmt: skip
        # Errors of constants are correlated, effects are not quite linear, and constants with a small effect have no row.
        constants = [0.5 * math.log(one.at_high / one.at_low) for one in engine if one.name != "scatter"]
        # A step that is more certain than the fitted runs keeps their range.
        usual = 1.645**2 * load_engine("vllm").fit["parameter_variance"]["tpot"]["decode"]
        squares = [x * x for x in logs] + [max(usual, sum(x * x for x in constants))]
        assert math.sqrt(sum(squares)) == pytest.approx(abs(math.log(end / seconds)), rel=0.05)


def test_grades_have_widths_in_their_order():
    widths = [HALF_WIDTHS[grade] for grade in GRADES]
    assert set(HALF_WIDTHS) == set(GRADES)
    assert widths == sorted(widths)


def test_what_ranges_rest_on(step):
    found = by_name(step)
    assert found["chip.hbm.bandwidth"].basis == "data sheet, 3 %"
    assert found["scale_up.latency"].basis == "a guess, a factor of 2"
    assert (found["scale_up.latency"].low, found["scale_up.latency"].high) == pytest.approx((0.5e-6, 2e-6))
    assert found["memory_efficiency"].basis == "fitted to 914 runs"
    assert "914" in found["scatter"].basis
    assert found["context"].basis == "assumed, 25 %"
    assert all(one.low <= one.base <= one.high for one in step.swings)
    assert not [name for name in found if "expert" in name or "latent" in name or name.startswith("scale_out")]
    vllm = load_engine("vllm")
    fitted, sigma = float(vllm.kernels.memory_efficiency), math.sqrt(vllm.fit["covariance"][0][0])
    assert found["memory_efficiency"].high == pytest.approx(fitted * math.exp(1.645 * sigma))


def test_the_largest_swing_is_first_and_shares_add_up(step):
    swings = [one.swing for one in step.swings]
    assert swings == sorted(swings, reverse=True)
    assert sum(one.share for one in step.swings) == pytest.approx(1)
    assert step.order[:2] == [one.name for one in step.ranked[:2]]
    assert set(step.order[:2]) == {"scatter", "rent"}
    assert f"({step.order[0]})" in step.text


def test_a_layout_unlike_those_measured_makes_the_engine_less_sure():
    rack = sensitivity("step", model="deepseek-v3", system="gb200-nvl72", dp=72, ep=72, batch=4096)
    found = by_name(rack)
    assert found["scatter"].basis.endswith("outside the measured runs")
    assert found["scatter"].high > 1.6
    assert found["expert_skew"].low == pytest.approx(1.28 * math.exp(-1.645 * 0.6))
    assert found["expert_skew"].at_high > found["expert_skew"].at_low
    assert found["expert_skew"].share > 0
    told = by_name(sensitivity("step", model="deepseek-v3", system="gb200-nvl72", dp=72, ep=72, batch=4096, imbalance=1.1))
    assert "expert_skew" not in told


def test_the_ideal_engine_has_no_error_and_a_figure_that_is_set_is_known():
    found = by_name(sensitivity("step", engine="ideal", **{"chip.hbm.bandwidth": 3.2e12}, **STEP))
    assert not {"scatter", "memory_efficiency", "chip.hbm.bandwidth"} & set(found)
    assert "chip.peak" in found


def test_a_constant_that_is_infinite_takes_the_middle_of_its_range():
    found = by_name(sensitivity("step", model="deepseek-v3", system="gb200-nvl72", tp=8, vary={"latent_contexts": (10, 100)}))
    assert found["latent_contexts"].base == 55
    assert "middle" in found["latent_contexts"].basis
    assert found["latent_contexts"].at_low < found["latent_contexts"].at_high  # 64 keep ten parts busier than a hundred


def test_all_rates_of_a_chip_move_together_but_one_that_is_given():
    asked = {"model": "llama-3.3-70b", "system": "hgx-h100", "tp": 8, "phase": "prefill", "answer": "time", "engine": "ideal"}
    clock = by_name(sensitivity("step", **asked))["chip.peak"]
    assert clock.at_low > clock.at_high
    ranged = by_name(sensitivity("step", vary={"chip.peak.bf16": "900TFLOP/s:1.1PFLOP/s"}, **asked))
    assert ranged["chip.peak"].swing == pytest.approx(0, abs=1e-12)
    assert ranged["chip.peak.bf16"].swing > clock.swing


def test_the_scatter_of_an_engine_that_knows_no_software_of_chips_is_the_same():
    engine = load_engine("vllm")
    without = replace(engine, kernels=replace(engine.kernels, chip_departure=0.0))
    found = sensitivity("step", engine=without, **STEP)
    assert by_name(found)["scatter"].at_low == pytest.approx(found.base * by_name(found)["scatter"].low)


def test_indices_of_a_step_with_their_confidence():
    found = st.sensitivity("step", sobol=True, samples=256, seed=3, **STEP)
    for one in found.swings:
        assert one.first_range[0] <= one.first <= one.first_range[1]
        assert one.first <= one.total + 0.05
    assert sum(one.first for one in found.swings) <= 1.1
    assert found.spread[0] < found.median < found.spread[1]
    assert found.evaluations == 1 + 2 * len(found.swings) + 256 * (len(found.swings) + 2)
    again = st.sensitivity("step", sobol=True, samples=256, seed=3, **STEP)
    assert [one.first for one in again.swings] == [one.first for one in found.swings]


@pytest.mark.slow
def test_a_plan_is_made_anew_at_each_end():
    found = by_name(sensitivity("plan", workers=1, vary={"input": (512, 2048)}, **PLAN))
    work = st.Workload(input_tokens=2048, output_tokens=1024)
    plan = st.plan("llama-3.1-8b", "hgx-h100", work, st.Slo(tpot=1 / 40), chips=1, modes="aggregated", alternatives=False)
    assert found["input"].at_high == pytest.approx(plan.usd_per_million_output_tokens)
    assert found["scatter"].at_low < found["scatter"].at_high
    assert {"output", "rent", "chip.hbm.capacity"} <= set(found)
    assert "batch" not in found


@pytest.mark.thorough
def test_a_plan_without_what_figures_are_worth_is_the_same_plan(closed_forms):
    asked = ("llama-3.1-8b", "hgx-h100", st.Workload(input_tokens=512, output_tokens=128), st.Slo(tpot=1 / 40))
    whole, short = (
        st.plan(*asked, chips=1, modes="aggregated", alternatives=False, elasticities=worth) for worth in (True, False)
    )
    assert short.elasticities == {} != whole.elasticities
    assert short.usd_per_million_output_tokens == whole.usd_per_million_output_tokens
    assert short.layout_text == whole.layout_text


def test_an_end_without_an_answer_comes_first_with_its_reason():
    found = sensitivity("step", vary={"tp": (7, 8)}, engine="ideal", **STEP)
    first = found.swings[0]
    assert first.name == "tp"
    assert math.isnan(first.at_low)
    assert first.at_high == found.base
    assert first.reason in found.notes[0]
    assert found.text.startswith("Measure the tensor-parallel size first (tp): ")
    assert "no answer" in found.text
    assert found.order[0] == "tp"
    assert sum(one.share for one in found.swings) == pytest.approx(1)


@pytest.mark.slow
def test_indices_are_not_told_where_many_samples_have_no_answer():
    found = sensitivity("step", vary={"tp": (1, 8)}, engine="ideal", sobol=True, samples=64, **STEP)
    assert found.samples == 0
    assert "of 64 samples have no answer" in found.notes[-1]
    assert found.swings[0].first is None


def test_a_function_of_ones_own():
    found = sensitivity(lambda x, y=2.0: x * y, vary={"x": (1.0, 3.0)}, x=2.0)
    assert (found.base, found.swings[0].at_low, found.swings[0].at_high) == (4, 2, 6)


@each(
    "given, kind, says",
    [
        ({"answer": "tpot"}, UnknownName, "unknown answer of step"),
        ({"answer": "bound"}, InputError, "bound is a text"),
        ({"vary": {"contxt": (1, 2)}}, UnknownName, "did you mean context"),
        ({"vary": {"memory_eficiency": (0.5, 1)}}, UnknownName, "did you mean .*memory_efficiency"),
        ({"vary": {"chip.hbm.bandwith": (1e12, 9e12)}}, UnknownName, "did you mean chip.hbm.bandwidth"),
        ({"vary": {"context": "1k"}}, RangeError, "LOW:HIGH, such as 1k:8k"),
        (
            {"vary": {"context": "8k:16k"}},
            RangeError,
            "4,096 is outside",
        ),
        ({"vary": {"context": (9, 1)}}, RangeError, "below high"),
        ({"vary": {"context": 5}}, RangeError, "two numbers"),
        ({"vary": {"memory_efficiency": (-1, 1)}}, RangeError, "memory_efficiency must be from 0.001 to 1.25"),
        ({"vary": {"latent_contexts": (0, 76)}}, RangeError, "latent_contexts must be at least 1"),
        ({"vary": {"chip.hbm.bandwidth": "3:4"}}, InputError, "chip.hbm.bandwidth: '3' has no unit"),
        ({"vary": {"chip.hbm.bandwidth": "3GB:4GB"}}, InputError, "is a quantity in B, but one in B/s is needed"),
        ({"vary": {"engine": "a:b"}}, InputError, "engine: "),
        ({"vary": {"max-context": (1, 2)}}, UnknownName, "unknown input of step"),
        ({"samples": 64}, RangeError, "samples: "),
        ({"sobol": True, "samples": 1000}, RangeError, "512 or 1,024"),
        ({"sobol": True, "samples": 2}, RangeError, "a power of two from 16 to 1,048,576"),
        ({"sobol": True, "samples": 2**20}, RangeError, "1,048,576 samples of 1[0-9] inputs are .* would take"),
        ({"seed": -1}, RangeError, "seed: must be a whole number"),
        ({"tp": 7}, InputError, "7"),
        ({"batch": [1, 64]}, RangeError, "batch: must be one value"),
        ({"workers": 0}, RangeError, "workers: must be a whole number"),
    ],
)
def test_what_cannot_be_asked_is_refused(given, kind, says):
    with pytest.raises(kind, match=says):
        sensitivity("step", **(STEP | given))


def test_money_without_a_rent_says_what_to_give():
    with pytest.raises(InputError, match="no rent is known: give one"):
        sensitivity("step", model="llama-3.3-70b", system="hgx-h20", tp=8)
    assert sensitivity("step", model="llama-3.3-70b", system="hgx-h20", tp=8, answer="time").base > 0


def test_nothing_is_unsure_of_a_closed_form_until_it_is_told():
    with pytest.raises(InputError, match="give ranges, --vary"):
        sensitivity("blackboard.drain_seconds", capacity=80e9, bandwidth=4e12)
    with pytest.raises(InputError, match="needs capacity"):
        sensitivity("blackboard.drain_seconds", vary={"bandwidth": (1e12, 2e12)})


def test_the_result_is_a_table(step):
    table = step.to_dataframe()
    assert list(table["name"]) == [one.name for one in step.swings]
    data = step.to_dict()
    assert data["schema"] == "steptime.sensitivity/2"
    assert data["swings"][0]["name"] == step.swings[0].name
    assert data["text"] == step.text
    assert usd(step.base)
    assert step.order[0] in repr(step)


def test_memory_that_is_made_unsure_starts_from_what_a_driver_counts():
    """A figure that is put back as it is changes nothing: 85.5 GB of an H100, not the 80 of its label."""
    system = st.load_system("hgx-h100")
    assert in_force(system, "chip.hbm.capacity") == system.chip.capacity > system.chip.hbm.capacity
    assert st.vary(system, {"chip.hbm.capacity": in_force(system, "chip.hbm.capacity")}).chip.capacity == system.chip.capacity
    assert in_force(system, "chip.hbm.bandwidth") == system.chip.hbm.bandwidth


@pytest.mark.thorough
def test_a_lifetime_budget_swings_most_with_its_traffic():
    """Served FLOP are N x traffic x lifetime: four times the traffic and twice the lifetime move what twice of each moves."""
    asked = {"match_quality": "8B@15T", "tokens_served": "1M/s", "lifetime": "60d"}
    found = sensitivity("budget", answer="over_chinchilla", **asked)
    swings = by_name(found)
    assert set(swings) == {"tokens_served", "lifetime", "eta", "rl_share", "alpha", "beta"}
    assert (swings["tokens_served"].low, swings["tokens_served"].high) == pytest.approx((0.25e6, 4e6))
    assert found.swings[0].name in ("tokens_served", "eta")
    for name in ("tokens_served", "lifetime", "eta"):
        assert swings[name].at_low < found.base < swings[name].at_high
    longer = st.ask("budget", **(asked | {"lifetime": "120d"}))["over_chinchilla"]
    assert swings["lifetime"].at_high == pytest.approx(float(longer))
    assert swings["rl_share"].at_high == pytest.approx(found.base)  # RL changes the cost, not the size
    # A flatter law in parameters (a low alpha) asks for larger models.
    assert swings["alpha"].at_low < found.base < swings["alpha"].at_high


def test_an_exponent_moves_with_the_other_constants_of_its_law():
    law = st.load_law("epoch")
    moved = with_constant(law, "alpha", law.constants["alpha"] * 1.02)
    place, other = (law.spread.names.index(name) for name in ("alpha", "A"))
    slope = law.spread.correlations[place][other] * law.spread.deviations[other] / law.spread.deviations[place]
    step = moved.constants["alpha"] - law.constants["alpha"]
    step = math.log(1.02) if "alpha" in law.spread.logs else step
    change = (
        math.log(moved.constants["A"] / law.constants["A"])
        if "A" in law.spread.logs
        else moved.constants["A"] - law.constants["A"]
    )
    assert change == pytest.approx(slope * step)
    with pytest.raises(InputError, match="joint errors"):
        with_constant(st.load_law("kaplan"), "alpha", 0.1)
