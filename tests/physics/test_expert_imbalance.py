"""The busiest expert-parallel rank: published counts, drawn loads with EPLB, laws, and the effect on steps and ranges."""

from __future__ import annotations

import heapq
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

import steptime as st
from steptime.blackboard.expert_activation import expected_maximum
from steptime.errors import DataFileError
from steptime.physics.engine import IDEAL, load_engine, with_constants, with_imbalance
from steptime.physics.expert_imbalance import (
    FORECAST_ERROR,
    REQUEST_SPREAD,
    busiest_rows,
    copy_square,
    largest_copy,
    load_error,
    packing,
    per_skew,
    placement_excess,
)
from steptime.physics.layout_space import copy_counts
from steptime.physics.uncertainty import constants_covariance, step_range, uncertain_constants
from tests.conftest import each, every

COUNTED = 1.28
"""Skew of DeepSeek-R1: 164.1 tokens of deviation at 128 per expert (TensorRT-LLM, tech blog 4, table 1)."""


def normal_score(ranks):
    return expected_maximum(0.0, 1.0, ranks, 0.0)


def factor(skew, experts, ranks, copies=0, tokens=1e9, active=8, requests=1e12):
    """Rows of the busiest rank over the mean."""
    mean = tokens * active / ranks
    chance = expected_maximum(mean, mean * (experts - active) / (experts - 1), ranks) - mean
    return float(busiest_rows(mean, chance, requests, skew, experts, ranks, copies)) / mean


def drawn_popularity(generator, skew, experts):
    """Log-normal loads with a mean of 1."""
    width = math.sqrt(math.log1p(skew**2))
    return np.exp(width * generator.standard_normal(experts) - width**2 / 2)


def eplb(loads, copies, ranks):
    """Replicate the expert with the largest load per copy, then give each copy to the least loaded rank with a free slot."""
    counts = np.ones(len(loads), dtype=int)
    for _ in range(copies):
        counts[np.argmax(loads / counts)] += 1
    experts = np.repeat(np.arange(len(loads)), counts)
    experts = experts[np.argsort(-(loads / counts)[experts], kind="stable")]
    free, heap, place = np.full(ranks, len(experts) // ranks), [(0.0, rank) for rank in range(ranks)], []
    for expert in experts:
        load, rank = heapq.heappop(heap)
        place.append(rank)
        free[rank] -= 1
        if free[rank]:
            heapq.heappush(heap, (load + loads[expert] / counts[expert], rank))
    return counts, experts, np.array(place)


@each("ranks, copies, measured, within", [(32, 0, 2.564, 0.10), (32, 32, 1.109, 0.01), (36, 32, 1.115, 0.01)])
def test_factor_of_deepseek_r1_is_near_the_counted_one(ranks, copies, measured, within):
    """Mean over layers and steps of the busiest rank over the mean, with 1,024 rows a rank (of 36: as many)."""
    found = factor(COUNTED, 256, ranks, copies, tokens=128 * ranks, requests=128 * ranks)
    assert found == pytest.approx(measured, rel=within)


def test_busiest_expert_of_deepseek_r1_is_near_the_counted_one():
    """One expert per rank: 11.95 times the mean."""
    assert factor(COUNTED, 256, 256, tokens=4096) == pytest.approx(11.948, rel=0.1)


@pytest.mark.parametrize("skew", every(3, [1.28, 0.5, 2.0]))
@pytest.mark.parametrize(("experts", "ranks"), [(256, 4), (256, 8), (256, 32), (256, 128), (128, 16), (32, 8)])
def test_random_placement_agrees_with_drawn_loads(skew, experts, ranks):
    generator = np.random.default_rng(1)
    drawn = [drawn_popularity(generator, skew, experts) for _ in range(1500)]
    largest = np.mean([loads.reshape(ranks, -1).sum(1).max() / loads.sum() * ranks for loads in drawn])
    assert 1 + float(placement_excess(normal_score(ranks), skew, experts, ranks)) == pytest.approx(largest, rel=0.08)


@pytest.mark.parametrize("skew", every(3, [1.28, 0.5, 2.0]))
@pytest.mark.parametrize(
    ("experts", "ranks", "copies"),
    [(256, 8, 8), (256, 24, 8), (256, 32, 32), (256, 64, 64), (256, 72, 32), (256, 144, 32), (256, 288, 32), (128, 32, 32)],
)
def test_replication_and_packing_agree_with_eplb(skew, experts, ranks, copies):
    """The largest copy, the fullest rank, and the mean square of loads per copy; packing leaves a tenth at most."""
    generator, found = np.random.default_rng(2), []
    for _ in range(40):
        loads = drawn_popularity(generator, skew, experts)
        loads /= loads.mean()
        counts, expert, place = eplb(loads, copies, ranks)
        copy_loads = (loads / counts)[expert]
        fullest = np.bincount(place, copy_loads, minlength=ranks).max() * ranks / experts
        found.append((copy_loads.max(), fullest, np.sum(copy_loads**2) / experts))
    largest, fullest, square = np.mean(found, axis=0)
    assert largest_copy(copies, experts, skew) == pytest.approx(largest, rel=0.06)
    assert float(packing(largest_copy(copies, experts, skew), experts, ranks)) == pytest.approx(fullest, rel=0.1)
    assert copy_square(copies, experts, skew) == pytest.approx(square, rel=0.13)


@pytest.mark.parametrize(
    ("copies", "tokens", "requests"),
    every(3, [(0, 4096, 4096), (32, 4096, 4096), (0, 128, 128), (32, 128, 128), (0, 2**17, 64), (32, 2**17, 64)]),
)
def test_rows_of_drawn_batches_agree(copies, tokens, requests):
    """A forecast, EPLB on it, loads with its error and that of the requests, and tokens drawn from the loads."""
    generator, experts, ranks, found = np.random.default_rng(3), 256, 32, []
    for _ in range(150):
        forecast = drawn_popularity(generator, COUNTED, experts)
        width = math.sqrt(math.log1p(FORECAST_ERROR**2 + (REQUEST_SPREAD * COUNTED) ** 2 / requests))
        loads = forecast * np.exp(width * generator.standard_normal(experts))
        in_order = (1, np.arange(experts), np.arange(experts) // 8)
        counts, expert, place = eplb(forecast, copies, ranks) if copies else in_order
        rows = generator.multinomial(tokens * 8, (loads / counts)[expert] / loads.sum())
        found.append(np.bincount(place, rows, minlength=ranks).max() * ranks / (tokens * 8))
    assert factor(COUNTED, experts, ranks, copies, tokens, requests=requests) == pytest.approx(np.mean(found), rel=0.06)


def test_tokens_of_few_prompts_are_as_uneven_as_in_published_runs():
    """SGLang, 32 H100, 16,384 tokens each of prompts of 4,096: 59,337 tok/s a node with even experts, 50,302 with EPLB."""
    model, system = st.load_model("deepseek-v3", kv="bf16"), st.load_system("hgx-h100")
    layout = st.Layout(dp=32, ep=32, microbatches=2, redundant_experts=32)
    engine, work = load_engine("sglang"), {"tokens": 4096, "prompts": 4 * 32, "layout": layout}
    even, uneven = (
        float(st.prefill_step(model, system, engine=on, **work).total) for on in (with_imbalance(engine, 1), engine)
    )
    assert uneven / even == pytest.approx(59_337 / 50_302, abs=0.03)
    # Longer prompts are fewer, and slower by more than their attention: 57,674, 54,543 and 50,302 tok/s.
    rates = [
        1 / float(st.prefill_step(model, system, engine=engine, **work | {"tokens": 4096 // n, "prompts": n * 128}).total)
        for n in (1, 2, 4)
    ]
    assert rates[1] / rates[0] == pytest.approx(54_543 / 50_302, rel=0.05)
    assert rates[2] / rates[0] == pytest.approx(57_674 / 50_302, rel=0.05)
    # Qwen3.6-35B, 256 experts on four ranks, steps of a few prompts: 1.35.
    assert factor(COUNTED, 256, 4, tokens=8192, requests=3) == pytest.approx(1.35, abs=0.05)


LAWFUL = {
    "skew": some.floats(0.01, 3.0),
    "ranks": some.sampled_from((2, 4, 8, 16, 32, 64, 128)),
    "copies": some.integers(0, 8).map(lambda n: 32 * n),
    "tokens": some.floats(1.0, 1e6),
    "requests": some.floats(1.0, 1e6),
}


@given(**LAWFUL)
def test_more_copies_or_tokens_never_raise_the_factor_and_more_ranks_never_lower_it(skew, ranks, copies, tokens, requests):
    found = factor(skew, 256, ranks, copies, tokens, requests=requests)
    assert found >= 1
    assert factor(skew, 256, ranks, copies + 32, tokens, requests=requests) <= found * (1 + 1e-6)
    assert factor(skew, 256, ranks, copies, 2 * tokens, requests=requests) <= found * (1 + 1e-9)
    assert factor(skew, 256, ranks, copies, tokens, requests=2 * requests) <= found * (1 + 1e-9)
    assert factor(skew, 256, 2 * ranks, copies, tokens, requests=requests) >= found * (1 - 1e-9)
    assert factor(1.1 * skew, 256, ranks, copies, tokens, requests=requests) >= found * (1 - 1e-3)


@given(**LAWFUL)
def test_rows_of_a_rank_are_at_most_all_rows(skew, ranks, copies, tokens, requests):
    """The factor is at most the number of ranks, and a rank of few experts has at most a row per expert and token."""
    layout = st.Layout(dp=ranks, ep=ranks, redundant_experts=copies)
    if (256 + copies) % ranks:
        return
    model, system = st.load_model("deepseek-v3"), st.load_system("gb200-nvl72")
    engine = with_constants(IDEAL, {"expert_skew": skew})
    entry = st.decode_step(model, system, batch=round(tokens) + ranks, context=1, layout=layout, engine=engine)
    alone = st.decode_step(model, system, batch=round(tokens) + ranks, context=1, layout=st.Layout(), engine=IDEAL)
    assert entry.terms["experts"] <= alone.terms["experts"] * (1 + 1e-9)


def test_even_popularity_and_many_tokens_are_even():
    assert factor(0.0, 256, 32, tokens=1e12) == pytest.approx(1, abs=1e-5)
    assert factor(1e-9, 256, 32, 32, tokens=1e12) == pytest.approx(1, abs=1e-5)
    assert factor(1.28, 256, 1) == 1
    # Without skew copies change nothing, and chance alone is left.
    assert factor(0.0, 256, 32, 32, tokens=64) == factor(0.0, 256, 32, tokens=64)
    assert factor(0.0, 256, 32, tokens=64) == pytest.approx(factor(1e-9, 256, 32, tokens=64))


def test_worked_by_hand():
    """Two ranks: the variance is c^2 / (n - 1), the normal score 0.589, and there is no skewness."""
    score = normal_score(2)
    assert float(score) == pytest.approx(0.5895, abs=1e-4)
    assert float(placement_excess(score, 1.5, 10, 2)) == pytest.approx(1.5 / 3 * 0.5895, abs=1e-4)
    # As many slots as ranks: the largest copy is a rank, and its load is t n_ranks / n_experts.
    assert float(packing(largest_copy(256, 256, 1.0), 256, 512)) == pytest.approx(2 * largest_copy(256, 256, 1.0))
    # Three times the copies and no two of one expert with a load below t: n P(x > t) = r for large t.
    width = math.sqrt(math.log(2))
    share = 0.5 * math.erfc((math.log(20.0) / width + width / 2) / math.sqrt(2))
    assert largest_copy(round(1e6 * share), 10**6, 1.0) == pytest.approx(20.0, rel=0.01)
    assert copy_square(0, 256, 1.28) == pytest.approx(1 + 1.28**2)
    assert float(load_error(normal_score(32), 0.01, 2.0, 256, 32)) == pytest.approx(
        0.1 * math.sqrt(32 / 256 * 2) * float(normal_score(32))
    )


def test_arrays_of_skews_ranks_and_copies_are_those_of_each():
    ranks, copies, skews = np.array([8, 32, 32]), np.array([8, 0, 32]), np.array([[0.5], [1.28]])
    found = busiest_rows(100.0, 10.0, 50.0, skews, 256, ranks, copies)
    assert found.shape == (2, 3)
    for i, j in np.ndindex(found.shape):
        assert found[i, j] == pytest.approx(
            float(busiest_rows(100.0, 10.0, 50.0, skews[i, 0], 256, ranks[j], copies[j])), rel=1e-9
        )


def test_many_skews_are_interpolated():
    skews = np.random.default_rng(0).uniform(0.2, 4.0, 500)
    found = per_skew(largest_copy, skews, 32, 256)
    assert found[:20] == pytest.approx([largest_copy(32, 256, float(skew)) for skew in skews[:20]], rel=1e-4)


@each("experts, ep, copies", [(256, 32, (0, 32)), (256, 28, (24, 52)), (256, 1, (0,)), (0, 1, (0,))])
def test_copies_that_a_search_tries(experts, ep, copies):
    assert copy_counts(experts, ep) == copies


def test_redundant_experts_change_a_step():
    """DeepSeek-V3 on 28 ranks with 1,120 sequences, and a prompt, whose experts compute."""
    model, system = st.load_model("deepseek-v3"), st.load_system("gb200-nvl72")
    without, with_copies = (st.Layout(dp=28, ep=28, redundant_experts=copies) for copies in (0, 24))
    for inputs in ({"batch": 1120, "context": 8192}, {"prompts": 28, "tokens": 4096}):
        times = [
            st.mixed_step(model, system, layout=layout, engine="vllm", **inputs).total for layout in (without, with_copies)
        ]
        assert times[1] < times[0]
    # More copies than balance needs read more weights.
    small = {"batch": 112, "context": 1}
    few, many = (
        st.decode_step(model, system, layout=st.Layout(dp=32, ep=32, redundant_experts=copies), engine="vllm", **small)
        for copies in (32, 224)
    )
    assert many.terms["experts"] > few.terms["experts"]


def test_a_known_imbalance_replaces_the_skew():
    model, system, layout = st.load_model("deepseek-v3"), st.load_system("gb200-nvl72"), st.Layout(dp=32, ep=32)
    inputs = {"prompts": 32, "tokens": 8192, "layout": layout}
    vllm = with_constants(load_engine("vllm"), {"roofline_norm": math.inf})
    twice, thrice = (
        st.mixed_step(model, system, engine=with_imbalance(vllm, ratio), **inputs).terms["experts"] for ratio in (2.0, 3.0)
    )
    assert thrice == pytest.approx(1.5 * twice, rel=2e-3)
    skewed = with_constants(with_imbalance(vllm, 2.0), {"expert_skew": 3.0})
    assert st.mixed_step(model, system, engine=skewed, **inputs).terms["experts"] == twice


def test_an_old_engine_file_with_an_imbalance_keeps_it(tmp_path):
    path = tmp_path / "old.toml"
    path.write_text("[constants]\nexpert_imbalance = 1.3\n")
    engine = load_engine(path)
    assert (engine.experts.expert_imbalance, engine.experts.expert_skew) == (1.3, 0.0)
    model, system, layout = st.load_model("deepseek-v3"), st.load_system("gb200-nvl72"), st.Layout(dp=8, ep=8)
    inputs = {"prompts": 64, "tokens": 8192, "layout": layout}
    old, even = (st.mixed_step(model, system, engine=on, **inputs).terms["experts"] for on in (engine, IDEAL))
    assert old == pytest.approx(1.3 * even, rel=0.01)


@each("name", ["vllm", "sglang", "trtllm", "typical"])
def test_shipped_engines_have_the_counted_skew_and_its_doubt(name):
    engine = load_engine(name)
    assert (engine.experts.expert_skew, engine.experts.expert_imbalance) == (COUNTED, 0.0)
    assert engine.fit["prior"]["expert_skew"] == 0.6
    variances = dict(zip(uncertain_constants(engine), np.diagonal(constants_covariance(engine)), strict=True))
    assert (variances["expert_skew"], variances["unmeasured_expert_time"]) == pytest.approx((0.36, 0.0225))
    assert np.all(np.diagonal(constants_covariance(engine)) > 0)


def test_the_doubt_about_the_skew_widens_the_range_of_a_step():
    """Prefill on 32 ranks, with and without the prior deviation; copies leave less doubt, a known ratio none."""
    engine = load_engine("vllm")
    prior = {name: deviation for name, deviation in engine.fit["prior"].items() if name != "expert_skew"}
    certain = replace(engine, fit=engine.fit | {"prior": prior})

    def width(on, copies=0):
        layout = st.Layout(dp=32, ep=32, redundant_experts=copies)
        low, high = step_range("deepseek-v3", "gb200-nvl72", engine=on, prompts=32, tokens=8192, layout=layout)
        return math.log(high / low)

    assert width(engine) > 1.2 * width(certain)
    assert width(engine, 32) < 0.95 * width(engine)
    assert width(with_imbalance(engine, 1.5)) == pytest.approx(width(with_imbalance(certain, 1.5)))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("expert_skew = 0", "fit.prior.expert_skew: must be a deviation of a logarithm above 0, not 0"),
        ('expert_skew = "x"', "fit.prior.expert_skew: must be a deviation of a logarithm above 0"),
        ("skew = 0.5", "fit.prior.skew: must be a constant that is not in fit.names"),
        ("memory_efficiency = 0.5", "fit.prior.memory_efficiency: must be a constant that is not in fit.names"),
    ],
)
def test_a_wrong_prior_is_refused(tmp_path, text, says):
    path = tmp_path / "wrong.toml"
    path.write_text(
        "[constants]\nmemory_efficiency = 0.8\n[fit]\nruns = 9\nnames = ['memory_efficiency']\ncovariance = [[0.01]]\n"
        f"[fit.prior]\n{text}\n"
    )
    with pytest.raises(DataFileError, match=says.replace("[", r"\[")):
        load_engine(path)
