"""A training step and the fastest layout: what terms, efficiencies, ranges, changes and scaling say."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.errors import DataFileError, UnknownName
from steptime.training.training_alternatives import MIN_SPEEDUP, strong_and_weak_scaling
from steptime.training.training_evidence import LAYOUT_ERROR
from steptime.training.training_job import AXES, show_training_layout
from steptime.training.training_planner import EXPOSED_TERMS
from steptime.training.training_runs import model_flops
from steptime.training.training_stack import (
    CONSTANTS,
    DEFAULT_RANGE,
    IDEAL,
    age_constants,
    cap_rates,
    constant_error,
    decimal_year,
    on_chip,
    step_time_range,
    training_engine,
)
from steptime.training.training_step import step_seconds
from tests.conftest import each, every
from tests.training.cases import CHIP, FIXED, SMALL, SPARSE, job, model, system, toy

ASKED = {"seq": 4096, "batch": 64}
PIPED = st.TrainingLayout(tp=2, pp=4, virtual_stages=2, dp=2, schedule="interleaved")


@pytest.fixture(scope="module")
def found():
    """The fastest layout of eight chips, and what would make it faster."""
    return st.train(SMALL, "hgx-h100", chips=8, **ASKED)


def step(name=SMALL, layout=None, **given):
    return st.training_step(name, "hgx-h100", layout=layout or st.TrainingLayout(dp=8), **ASKED | given)


@each("layout", [st.TrainingLayout(dp=8), PIPED, st.TrainingLayout(cp=2, dp=4, recompute="full", sharding="zero3")])
def test_a_step_is_the_sum_of_its_terms(layout):
    found = step(layout=layout, engine="typical")
    assert float(found.total) == pytest.approx(sum(float(value) for value in found.terms.values()))
    assert str(found.bound) == max(found.terms, key=lambda name: float(found.terms[name]))
    exposed = sum(float(value) for name, value in found.terms.items() if name in EXPOSED_TERMS)
    assert float(np.asarray(found.exposed)) == pytest.approx(exposed)
    assert float(np.asarray(found.bubble)) == pytest.approx(float(found.terms.get("pipeline idle", 0)) / float(found.total))
    assert found.microbatches == 64 / float(layout.dp)


def test_efficiencies_are_flops_over_time_chips_and_peak():
    """989.4 TFLOP/s dense in bf16, twice that in fp8; full recomputation counts a forward pass more in HFU."""
    for dtype, peak in (("bf16", 989.4e12), ("fp8", 1978.9e12)):
        found = step(dtype=dtype)
        tokens = 64 * 4096 / float(found.total) / 8
        for rate, full in ((found.mfu_causal, False), (found.mfu_full, True)):
            flops = float(model_flops(model(SMALL), job(**ASKED), full=full))
            assert float(rate) == pytest.approx(flops * tokens / peak, rel=1e-3)
    assert float(found.hfu) == float(found.mfu_full)
    again = step(layout=st.TrainingLayout(dp=8, recompute="full"))
    assert float(again.hfu / again.mfu_full) == pytest.approx(4 / 3, abs=0.03)


def test_an_ideal_step_of_a_toy_by_hand():
    """64 sequences of 4,096 rows x 8e9 weights x 6 FLOPs on eight chips of 1 PFLOP/s."""
    found = step_seconds(toy(), job(**ASKED), CHIP, IDEAL, st.TrainingLayout(dp=8))
    assert float(found.total) == pytest.approx(64 * 4096 * 8e9 * 6 / 8 / 1e15)
    piped = step_seconds(toy(), job(**ASKED), CHIP, IDEAL, st.TrainingLayout(pp=4, dp=2))
    assert float(piped.total) == pytest.approx((32 + 3) / 32 * float(found.total))  # (m + p - 1) / m, m = 32
    virtual = step_seconds(
        toy(), job(**ASKED), CHIP, IDEAL, st.TrainingLayout(pp=4, dp=2, virtual_stages=2, schedule="interleaved")
    )
    assert float(virtual.total) == pytest.approx((32 + 3 / 2) / 32 * float(found.total))


def test_the_slowest_stage_sets_the_pace():
    """Eight layers on three stages: 3, 3 and 2; 32 micro-batches of the fullest and the idle time of mean ones."""
    one = float(step_seconds(toy(layers=1), job(seq=4096, batch=1), CHIP, IDEAL, st.TrainingLayout()).total)
    found = step_seconds(toy(), job(seq=4096, batch=32), CHIP, IDEAL, st.TrainingLayout(pp=3))
    assert float(found.total) == pytest.approx((32 * 3 + 2 * 8 / 3) * one)


def test_arrays_share_one_shape():
    found = step(layout=st.TrainingLayout(dp=np.array([1, 2, 4, 8])), batch=np.array([[64], [128]]))
    assert found.total.shape == found.mfu_causal.shape == (2, 4)
    one = step(layout=st.TrainingLayout(dp=4), batch=128)
    assert float(found.total[1, 2]) == pytest.approx(float(one.total))
    assert float(np.broadcast_to(found.memory.used, (2, 4))[1, 2]) == pytest.approx(float(one.memory.used))


def test_the_fastest_layout_is_at_least_as_fast_as_any_given(found):
    for x in (st.TrainingLayout(dp=8), st.TrainingLayout(tp=2, dp=4), st.TrainingLayout(tp=8)):
        one = step(layout=x)
        assert not one.fits or float(found.step.total) / found.search_factor <= float(one.total) * math.exp(LAYOUT_ERROR)
    assert found.step.fits
    assert found.chips == float(found.step.layout.chips) == 8
    assert found.evaluated_layouts == found.searched.count
    assert found.runner_up_slower >= 1
    assert found.runner_up != show_training_layout(found.step.layout)


def test_changes_are_those_that_bring_something_most_first(found):
    faster = [change.faster for change in found.changes]
    assert faster == sorted(faster, reverse=True)
    assert min(faster) >= MIN_SPEEDUP
    told = {change.description: change.faster for change in found.changes}
    assert 1 < told["twice the FLOP/s"] <= 2
    narrow = st.train(SMALL, "hgx-h100", chips=8, dtype="fp8", changes=False, **ASKED)
    assert told["--dtype fp8"] == pytest.approx(float(found.step.total / narrow.step.total), rel=1e-6)
    assert st.train(SMALL, "hgx-h100", chips=8, **ASKED, changes=False).changes == ()


def test_words_say_what_binds():
    found = st.train(SMALL, "hgx-h100", chips=8, **ASKED, changes=False)
    assert "of a step is matrix multiplies" in found.why
    assert "of memory free" in found.why
    deep = {"pp": 8, "dp": 1, "micro_batch": 1, "virtual_stages": 1}
    few = st.train(SMALL, "hgx-h100", chips=8, seq=4096, batch=8, layout=deep, changes=False)
    assert "the pipeline is idle for " in few.why
    assert "(8 micro-batches over 8 stages)" in few.why


def test_layouts_as_text():
    assert repr(PIPED) == "TrainingLayout(tp2 pp4 vpp2 dp2 mbs1 zero1, interleaved, recompute none)"
    assert (
        show_training_layout(st.TrainingLayout(dp=8, sharding="zero3", sharding_group=4))
        == "dp8 mbs1 zero3 over 4, recompute none"
    )
    assert set(st.TrainingLayout().columns()) == set(AXES)
    assert (PIPED.chips, PIPED.stage) == (16, 4)


@pytest.mark.thorough
def test_scaling_keeps_or_grows_the_batch():
    on = system()
    found = strong_and_weak_scaling(
        model(SMALL), on, chips=64, engine=training_engine("megatron-lm", on), job=job(seq=4096, batch=512)
    )
    strong, weak = ([p for p in found.points if p.kind == kind] for kind in ("strong", "weak"))
    assert [p.chips for p in strong] == [p.chips for p in weak] == [8, 16, 32, 64, 128, 256, 512]
    assert {p.batch for p in strong} == {512}
    assert {p.batch / p.chips for p in weak} == {8}
    rates = [p.tokens_per_second_per_chip for p in strong]
    assert rates[0] > rates[-1]
    middle = next(p for p in strong if p.chips == 64)
    whole = st.train(SMALL, "hgx-h100", chips=64, seq=4096, batch=512, engine="megatron-lm", changes=False)
    assert middle.seconds == pytest.approx(float(whole.step.total))


@pytest.mark.thorough
def test_scaling_takes_layouts_of_the_evidence_that_the_user_gives():
    whole = st.train("deepseek-v3", "hgx-h100", chips=1024, seq=4096, batch=1024, changes=False, evidence="any")
    found = strong_and_weak_scaling(
        whole.model, whole.system, chips=1024, engine=training_engine(None, whole.system), job=whole.job, evidence="any"
    )
    same = next(p for p in found.points if p.kind == "strong" and p.chips == 1024)
    assert same.seconds == pytest.approx(float(whole.step.total))


def test_ranges_are_wider_for_chips_and_models_that_a_fit_has_not_seen():
    stack = training_engine("typical", system())
    dense, sparse = (step_time_range(stack, system(), experts=experts) for experts in (False, True))
    strange = step_time_range(stack, CHIP, experts=False)
    for low, high in (dense, sparse, strange):
        assert low < 1 < high
    assert sparse[1] / sparse[0] > dense[1] / dense[0]
    assert step_time_range(IDEAL, system(), experts=False) == (1, 1)
    assert step_time_range(replace(stack, fit={}), system(), experts=False) == DEFAULT_RANGE


def test_stacks_by_vendor_name_and_file(tmp_path):
    assert training_engine(None, system()).name == "typical"
    assert training_engine(None, system("tpu-v5p")).name == "maxtext"
    assert training_engine(None, CHIP).name == "typical"
    assert training_engine("Ideal", CHIP) is IDEAL
    mine = tmp_path / "mine.toml"
    mine.write_text('name = "mine"\nspeed = 2.0\n[constants]\ncompute_efficiency = 0.5\n', encoding="utf-8")
    assert training_engine(mine, CHIP).constants.compute_efficiency == 0.5
    with pytest.raises(UnknownName):
        training_engine("jax", CHIP)
    for text, says in (
        ('name = "m"\n[constants]\ncompute_efficiency = 7.0\n', "must be from 0 to 1.25"),
        ('name = "m"\n[constants]\ncompute = 0.7\n', "no such constant; did you mean"),
        ('name = "m"\n[constants]\ncompute_efficiency = "x"\n', "must be a number"),
        ('name = "m"\ncolour = "red"\n[constants]\n', "'colour' is not a key of a training stack"),
        ('name = "m"\n', "has no table"),
    ):
        broken = tmp_path / f"{abs(hash(text))}.toml"
        broken.write_text(text, encoding="utf-8")
        with pytest.raises(DataFileError, match=says):
            training_engine(broken, CHIP)
    assert all(constant_error(name, told["least"]) == "" for name, told in CONSTANTS.items())


def test_speed_and_age_are_factors_on_all_times():
    """A gain of 0.1 a year since mid-2024; none is counted beyond the newest run of the fit."""
    stack = replace(IDEAL, speed=2.0, fit={"until": 2026.0}, chips={"toy": {"speed": 0.5, "attention": 0.5}})
    stack = replace(stack, constants=replace(stack.constants, yearly_gain=0.1, expert_yearly_gain=0.3))
    tuned = on_chip(stack, CHIP, experts=False, date="2024-06")
    assert tuned.constants.attention_efficiency == 0.5
    assert float(tuned.speed) == pytest.approx(np.exp(0.1 * (decimal_year("2024-06") - 2024.5)))
    for date, years in (("2025-06", decimal_year("2025-06") - 2024.5), ("2030", 1.5), ("", 1.5)):
        assert float(on_chip(stack, CHIP, experts=False, date=date).speed) == pytest.approx(np.exp(0.1 * years))
        assert float(on_chip(stack, CHIP, experts=True, date=date).speed) == pytest.approx(np.exp(0.1 * years))


def test_software_for_experts_gains_in_their_kernels_alone():
    """By 0.3 a year: the rate of grouped products, up to that of dense ones, and the work around them."""
    c = replace(IDEAL.constants, expert_yearly_gain=0.3, expert_efficiency=0.5, seconds_per_expert_layer=1e-3)
    older = age_constants(c, 1.5)
    assert older.expert_efficiency == pytest.approx(0.5 * np.exp(0.45))
    assert older.seconds_per_expert_layer == pytest.approx(1e-3 * np.exp(-0.45))


def test_no_rate_is_above_the_data_sheet():
    """A factor of 2 on the speed of all lifts none above it: rates are at most the factor on times."""
    found = cap_rates(replace(IDEAL.constants, compute_efficiency=0.8, eight_bit_efficiency=1.1, memory_efficiency=0.3), 0.5)
    assert float(found.compute_efficiency) == 0.5
    assert float(found.eight_bit_efficiency) == 1.0
    assert float(found.memory_efficiency) == 0.3


@pytest.mark.parametrize("name", every(2, [SMALL, SPARSE]))
def test_results_are_a_dictionary_with_units(name):
    found = st.train(name, "hgx-h100", chips=16, **ASKED, tokens=1e12, changes=False).to_dict()
    assert found["step"]["total_s"] > 0
    assert found["step"]["memory"]["used_bytes"] <= found["step"]["memory"]["capacity_bytes"]
    assert found["run"]["tokens"] == 1e12


def test_the_table_of_a_run_has_days_and_dollars():
    columns = st.train("llama-3-8b", "hgx-h100", chips=64, batch=256, tokens=1e12, layout=FIXED, changes=False).columns()
    assert columns["days"][0] == pytest.approx(columns["run_s"][0] / 86_400)
    assert columns["usd_low"][0] < columns["usd"][0] < columns["usd_high"][0]
    # The range of the cost is that of the time.
    assert columns["usd_high"][0] / columns["usd"][0] == pytest.approx(columns["run_high_s"][0] / columns["run_s"][0])
