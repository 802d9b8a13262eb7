"""How unlike a layout is what was measured: which ways there are, and how much wider they make a range, by hand."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from steptime.models.model_loading import load_model
from steptime.physics.engine import IDEAL, load_engine
from steptime.physics.layout import Layout
from steptime.physics.lora_adapters import with_adapters
from steptime.physics.uncertainty import (
    FEW_RUNS,
    GROUPS,
    NEW_ARCHITECTURE,
    SEPARATE_POOLS,
    STAGED,
    WIDE_REPLICA,
    distances,
    explained_step_range,
    factors,
    widening,
)
from tests.conftest import each, engine, machine

TOY = machine()
NEAR = Layout(tp=8)
FAR = (Layout(dp=18, pp=4), Layout())
TABLES = {"tpot": {"decode": [0.8, 1.25]}}


def fitted(**more):
    return engine(fit={"names": [], "interval": TABLES} | more)


def ways(on, *layouts) -> set[str]:
    """Return the words of the ways that there are."""
    return {one.words for one, there in distances(on, TOY, *(layouts or (NEAR,))) if there}


@each(
    "given, found",
    [
        ((NEAR,), set()),
        ((Layout(tp=9),), {WIDE_REPLICA.words}),
        ((Layout(tp=4, pp=2),), {STAGED.words}),
        ((NEAR, NEAR), {SEPARATE_POOLS.words}),
        ((Layout(tp=18, pp=4), NEAR), {WIDE_REPLICA.words, STAGED.words, SEPARATE_POOLS.words}),
        ((NEAR, Layout(tp=18, pp=4)), {WIDE_REPLICA.words, STAGED.words, SEPARATE_POOLS.words}),
    ],
)
def test_a_layout_is_unlike_the_runs_of_one_node(given, found):
    assert ways(fitted(), *given) == found
    assert ways(fitted(systems={"toy": 500}), *given) == found
    assert ways(fitted(systems={"other": 500}), *given) == found | {FEW_RUNS.words}


@each("runs, few", [(0, True), (29, True), (30, False)])
def test_runs_on_a_system_are_counted(runs, few):
    assert (FEW_RUNS.words in ways(fitted(systems={"toy": runs}))) == few


def test_an_engine_without_a_fit_is_not_near_and_not_far():
    assert distances(IDEAL, TOY, *FAR) == ()
    assert distances(engine(), TOY, *FAR) == ()
    assert widening(()) == (0.0, 0.0)


def test_logarithms_add_in_quadrature():
    """Squares of the lower sides: 0.04, 0.09, 0.25, 0.1089 and 0.0625, in all 0.5514; of the upper: 0.7305."""
    every = tuple((one, np.True_) for one in (SEPARATE_POOLS, WIDE_REPLICA, GROUPS, STAGED, FEW_RUNS))
    assert widening(every) == pytest.approx((0.5514**0.5, 0.7305**0.5))
    assert widening(every[:1]) == pytest.approx((0.2, 0.2))
    assert widening([(one, np.False_) for one, _ in every]) == (0.0, 0.0)


def test_speculative_tokens_widen_a_pool_that_also_prefills():
    """Runs of separate pools had them too; those of one pool did not: logarithms of 0.1 and 0.3."""
    assert widening(distances(fitted(), TOY, NEAR, drafts=True)) == pytest.approx((0.1, 0.3))
    assert widening(distances(fitted(), TOY, NEAR, NEAR, drafts=True)) == pytest.approx((0.2, 0.2))
    assert widening(distances(fitted(), TOY, NEAR, NEAR, drafts=True), "ttft") == pytest.approx((0.2, 1.5))


def test_adapters_widen_by_published_slow_downs():
    """Measured over predicted: 457 / 446 of 1.31 at least (Punica, 70B), 11.45 / 7.60 of 1.06 at most (vLLM of 2024)."""
    adapted = with_adapters(load_model("llama-3.1-8b"), 8, rank=16)
    low, high = widening(distances(fitted(), TOY, NEAR, model=adapted))
    assert math.exp(-low) == pytest.approx(457 / 446 / 1.31, rel=0.01)
    assert math.exp(high) == pytest.approx(11.45 / 7.60 / 1.06, rel=0.01)


def test_each_candidate_of_a_table_has_its_own():
    three = Layout(tp=np.array([4, 4, 2]), pp=np.array([1, 2, 1]), dp=np.array([1, 1, 8]))  # of 4, 8 and 16 chips
    found = widening(distances(fitted(), TOY, three))
    assert found[0] == pytest.approx([0.0, 0.33, 0.3])
    assert found[1] == pytest.approx([0.0, 0.33, 0.1])


@each("vendor, groups, far", [("NVIDIA", 8, False), ("AMD", 8, True), ("AMD", 1, False), ("Google", 8, False)])
def test_groups_are_far_on_chips_whose_runs_had_none(vendor, groups, far):
    on = replace(TOY, chip=replace(TOY.chip, vendor=vendor))
    found = distances(fitted(), on, Layout(dp=groups))
    assert any(there for one, there in found if one is GROUPS) == far


def test_a_range_is_wider_by_hand():
    """Scatter of 0.8 to 1.25, log 0.22314 on both sides; with 0.31 and 0.51: 0.38196 and 0.55668."""
    plain, wide = (factors(fitted(), "tpot", "decode", wider=one) for one in ((0.0, 0.0), (0.31, 0.51)))
    assert plain == pytest.approx((0.8, 1.25))
    assert wide == pytest.approx((math.exp(-0.38196), math.exp(0.55668)), rel=1e-4)


@each("name", ["vllm", "sglang", "trtllm", "typical"])
def test_more_distance_is_never_surer(name):
    """Whatever the ways: one more never narrows a range, and its ends lie on both sides of the figure."""
    on = load_engine(name)
    for count in range(5):
        for some in itertools.combinations((SEPARATE_POOLS, WIDE_REPLICA, GROUPS, STAGED, FEW_RUNS), count + 1):
            near, far = (
                [factors(on, quantity, regime, wider=widening([(one, np.True_) for one in of])) for quantity, regime in TIMES]
                for of in (some[1:], some)
            )
            assert all(low[0] <= high[0] <= 1 <= high[1] <= low[1] for low, high in zip(far, near, strict=True))


TIMES = [("tpot", "decode"), ("tpot", "mixed"), ("ttft", "prompt"), ("ttft", "queue")]


@each("name", ["vllm", "sglang", "trtllm", "typical"])
def test_shipped_engines_say_on_which_systems_they_were_fitted(name):
    fit = load_engine(name).fit
    assert fit["systems"]
    assert all(isinstance(runs, int) and runs > 0 for runs in fit["systems"].values())
    assert sum(fit["systems"].values()) == fit["runs"]


@each("name, is_new", [
    ("fla-hub/rwkv7-2.9B-world", True),
    ("microsoft/bitnet-b1.58-2B-4T", True),
    ("state-spaces/mamba-2.8b-hf", True),
    ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", False),  # ML.ENERGY
    ("Qwen/Qwen3.5-397B-A17B", False),
    ("llama-3.1-8b", False),
])  # fmt: skip
def test_architectures_without_measured_runs_say_so_and_are_wider(name, is_new):
    """The largest errors of nine in ten runs of new groups, 35 %, have a logarithm of 0.3; scatter adds in quadrature."""
    found = distances(fitted(), TOY, NEAR, model=load_model(name))
    assert (NEW_ARCHITECTURE in [one for one, there in found if there]) == is_new
    _, (low, high), shares = explained_step_range(name, "hgx-h100", engine="vllm", batch=8, context=2000)
    assert (NEW_ARCHITECTURE.words in shares) == is_new
    assert high / low > (2.0 if is_new else 1.6)
