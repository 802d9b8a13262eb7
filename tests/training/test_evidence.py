"""Evidence of layouts, the most conventional of equals, corrections of searches, and stacks where they ran."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.errors import UnknownName
from steptime.training.training_evidence import (
    LAYOUT_ERROR,
    MEASURED_FORMATS,
    SearchOptimism,
    is_measured_kind,
    search_optimism,
    unlike_measured_runs,
)
from steptime.training.training_job import TrainingLayout
from steptime.training.training_planner import SEARCH_TERM, corrected_step, training_job
from steptime.training.training_stack import (
    IDEAL,
    largest_gemm_share,
    on_chip,
    step_time_range,
    training_engine,
)
from steptime.training.training_step import step_seconds
from steptime.validation.training_run_table import read_training_runs
from tests.conftest import each
from tests.training.cases import CHIP, SHARED, SMALL, SPARSE, job, model, system

LARGE = {"chips": 512, "seq": 8192, "batch": 512, "changes": False}


def measured(asked, *, experts=False, stack="megatron-lm", **layout):
    return bool(is_measured_kind(TrainingLayout(**layout), asked, training_engine(stack, system()), experts=experts))


@each(
    "seq, layout, is_measured",
    [
        (8192, {"tp": 8, "pp": 8, "cp": 2, "virtual_stages": 8, "schedule": "interleaved", "dp": 8}, True),  # 405B of MLPerf
        (8192, {"tp": 8, "cp": 4, "dp": 8}, False),  # 2,048 tokens a rank
        (4096, {"cp": 2, "dp": 8}, False),
        (131_072, {"tp": 8, "cp": 16, "dp": 8}, True),  # Llama 3, table 4
        (8192, {"tp": 16, "dp": 8}, False),
        (8192, {"pp": 32, "dp": 2}, False),
        (8192, {"pp": 16, "dp": 16, "micro_batch": 4}, False),  # one micro-batch for 16 stages
        (8192, {"pp": 8, "dp": 8, "schedule": "zb-h1"}, False),
        (8192, {"pp": 8, "dp": 8, "sharding": "zero3"}, False),
        (8192, {"dp": 64, "sharding": "zero3"}, True),
        (8192, {"dp": 512, "sharding": "zero3"}, True),  # MPT 7B
        (8192, {"dp": 1024, "sharding": "zero3"}, False),
        (8192, {"dp": 1024, "sharding": "zero3", "sharding_group": 512}, True),
    ],
)
def test_kinds_are_measured_within_the_limits_of_runs(seq, layout, is_measured):
    assert measured(job(seq=seq, batch=64), **layout) is is_measured


@each(
    "layout, is_measured",
    [({"ep": 64, "pp": 4, "dp": 64}, True), ({"ep": 8, "tp": 4, "dp": 16}, False), ({"ep": 128, "dp": 128}, False),
     ({"ep": 8, "cp": 2, "dp": 16}, False), ({"ep": 8, "etp": 2, "dp": 16}, False)],
)  # fmt: skip
def test_kinds_of_experts_are_measured_within_the_limits_of_their_runs(layout, is_measured):
    assert measured(job(seq=8192, batch=4096), experts=True, **layout) is is_measured


def test_a_stack_that_always_shards_weights_ran_with_pipelines():
    layout = {"pp": 8, "dp": 8, "sharding": "zero3"}
    assert measured(job(seq=8192), stack="torchtitan", **layout)
    assert not measured(job(seq=8192), stack="typical", **layout)


@each(
    "dtype, name, says",
    [("int8", "hgx-h100", "no fitted run on chips of NVIDIA has int8"), ("int8", "tpu-v5p", ""), ("fp8", "mi300x-8", ""),
     ("bf16", "mi300x-8", "no fitted run on chips of AMD has bf16"), ("fp8", "hgx-h100", "")],
)  # fmt: skip
def test_formats_without_runs_on_chips_of_a_maker_are_said(dtype, name, says):
    asked = training_job(system(name), training_engine(None, system(name)), seq=4096, batch=64, dtype=dtype)
    assert "; ".join(unlike_measured_runs(training_engine(None, system(name)), system(name), asked, 8)) == says


@pytest.mark.thorough
def test_formats_with_runs_are_those_of_the_measured_runs():
    paths = [SHARED, SHARED.with_name("training_more.csv")]
    if not SHARED.exists():
        pytest.skip("the measured training runs lie beside the repository and are not there")
    formats: dict[str, set[str]] = {}
    for path in paths:
        for run in read_training_runs(path)[0]:
            if not isinstance(run, str):
                formats.setdefault(run.system.chip.vendor, set()).add(run.job.dtype)
    assert formats == {vendor: set(named) for vendor, named in MEASURED_FORMATS.items()}


def test_a_search_takes_a_measured_kind_and_says_what_another_would_save():
    found = st.train("llama-3.1-70b", "hgx-h100", **LARGE)
    every = st.train("llama-3.1-70b", "hgx-h100", **LARGE, evidence="any")
    assert found.evidence == "measured"
    assert found.step.layout.cp <= 2
    assert every.searched.count == found.searched.count
    fastest, seconds = found.searched.fastest()
    recommended = float(found.step.total) / found.search_factor
    measured = found.searched.fastest(measured=True)[1]
    assert found.unmeasured_saving == pytest.approx(1 - seconds / recommended if seconds < measured else 0.0)
    assert found.unmeasured == (st.training_step.__globals__["show_training_layout"](fastest) if seconds < measured else "")
    assert every.evidence == "measured" or every.unmeasured == ""
    with pytest.raises(UnknownName, match="evidence"):
        st.train(SMALL, "hgx-h100", chips=8, batch=64, evidence="some")


def test_of_layouts_within_the_error_the_one_with_fewest_choices_is_taken():
    found = st.train("llama-3.1-70b", "hgx-h100", **LARGE)
    best = found.searched.fastest(measured=True)[1]
    close = 0
    fewest = math.inf
    for group in found.searched.groups:
        within = group.fits & group.measured & (group.seconds <= best * math.exp(LAYOUT_ERROR))
        close += int(within.sum())
        fewest = min([fewest, *group.choices[within].tolist()])
    assert found.close_layouts == close > 1
    x = found.step.layout
    assert sum(degree > 1 for degree in (x.tp, x.pp, x.cp, x.virtual_stages)) + (x.recompute != "none") == fewest


def test_a_search_without_a_measured_kind_that_fits_takes_any():
    """Eight H100 hold half a million tokens a sequence of 8B only by context parallelism of a kind without runs."""
    found = st.train(SMALL, "hgx-h100", chips=8, seq=8192, batch=8, layout={"cp": 8}, changes=False)
    assert found.evidence == "any"
    assert found.unmeasured == ""


def test_the_allowance_of_a_search_lengthens_the_bubble_as_all_else():
    step = st.training_step(SMALL, system(), seq=4096, batch=64, layout=TrainingLayout(pp=4, dp=2), engine="megatron-lm")
    searched = corrected_step(step, SearchOptimism(factor=1.25, high=1.3))
    assert float(searched.bubble) == pytest.approx(float(step.bubble))
    assert float(step.bubble) > 0


def test_a_searched_layout_is_slower_than_its_prediction_and_a_given_one_is_not():
    found = st.train("llama-3.1-70b", "hgx-h100", **LARGE)
    x = found.step.layout
    axes = {"tp": x.tp, "pp": x.pp, "cp": x.cp, "virtual_stages": x.virtual_stages, "micro_batch": x.micro_batch,
            "recompute": x.recompute}  # fmt: skip
    given = st.train("llama-3.1-70b", "hgx-h100", **LARGE, layout=axes)
    factor = search_optimism(training_engine(found.step.stack, system()), system(), experts=False).factor
    assert given.search_factor == 1
    assert found.search_factor == factor > 1
    assert float(found.step.total) == pytest.approx(factor * float(given.step.total))
    assert float(found.step.terms[SEARCH_TERM]) == pytest.approx((factor - 1) * float(given.step.total))
    assert sum(map(float, found.step.terms.values())) == pytest.approx(float(found.step.total))
    assert float(found.step.mfu_causal) == pytest.approx(float(given.step.mfu_causal) / factor)
    assert float(found.step.high / found.step.total) >= float(given.step.high / given.step.total)
    assert float(found.step.low / found.step.total) == pytest.approx(float(given.step.low / given.step.total))


def test_a_run_of_a_searched_layout_takes_the_corrected_steps():
    found = st.train("llama-3.1-70b", "hgx-h100", **LARGE, tokens=1e12)
    useful = found.run.steps * float(found.step.total)
    assert found.run.seconds == pytest.approx(useful / found.run.goodput, rel=1e-3)


def test_the_bound_has_no_correction():
    found = st.train(SMALL, "hgx-h100", chips=8, batch=64, engine="ideal", changes=False)
    assert found.search_factor == 1
    assert SEARCH_TERM not in found.step.terms


@each("experts", [False, True])
@each("name", ["megatron", "megatron-lm", "typical", "maxtext", "llm-foundry"])
def test_no_search_is_made_faster(name, experts):
    assert search_optimism(training_engine(name, system()), system(), experts=experts).factor >= 1


def test_a_stack_is_as_fast_as_its_runs_only_where_it_ran():
    recipes, typical = (training_engine(name, system()) for name in ("megatron", "typical"))
    assert recipes.speed_on("h100") == recipes.speed
    assert not recipes.has_run_on("a100")
    assert recipes.speed_on("a100") == typical.speed
    slow = training_engine("megatron-deepspeed", system())
    assert slow.speed_on("h100") == slow.speed < typical.speed
    assert step_time_range(recipes, system("hgx-a100"), experts=False) == step_time_range(recipes, CHIP, experts=False)


def test_factors_of_a_stack_and_of_a_new_chip_are_not_multiplied():
    """The recipes were as fast on chips that a fit left out, so that their speed holds on a chip without runs."""
    recipes, typical = (training_engine(name, system()) for name in ("megatron", "typical"))
    assert recipes.speed_on("a chip without runs") == recipes.speed
    assert typical.speed_on("a chip without runs") == pytest.approx(typical.speed * typical.elsewhere)
    assert typical.elsewhere < 1


@each("on", ["hgx-a100", "hgx-h100", "hgx-b200", "gb300-nvl72"])
def test_no_product_in_16_bits_is_faster_than_timed_ones(on):
    """Even a stack that claims to reach its data sheet; the bound does reach it."""
    engine = training_engine("megatron", system(on))
    perfect = replace(engine, speed=2.0, constants=replace(IDEAL.constants, exposed_writes=0.0))
    asked, x = job(seq=8192, batch=64), TrainingLayout(dp=8)
    found = step_seconds(model(SMALL), asked, system(on), on_chip(perfect, system(on), experts=False), x)
    bound = step_seconds(model(SMALL), asked, system(on), IDEAL, x)
    share = largest_gemm_share(system(on).chip.name)
    assert float(found.terms["matrices"] / bound.terms["matrices"]) >= (1 - 1e-9) / share


@pytest.mark.thorough
def test_the_gain_of_tuned_recipes_is_a_change_where_they_ran():
    dense = st.train("llama-3.1-70b", "hgx-h100", chips=64, seq=8192, batch=128)
    tuned = st.train("llama-3.1-70b", "hgx-h100", chips=64, seq=8192, batch=128, engine="megatron", changes=False)
    told = {change.description: change.faster for change in dense.changes}
    gain = float(dense.step.total / tuned.step.total)
    assert told["recipes tuned by NVIDIA (--engine megatron)"] == pytest.approx(gain, rel=1e-6)
    older = st.train(SMALL, "hgx-a100", chips=8, seq=4096, batch=64)
    assert not any("tuned" in change.description for change in older.changes)


def test_experts_of_the_busiest_rank_take_longer():
    even, busy = (
        st.training_step(SPARSE, "hgx-h100", seq=4096, batch=64, layout=TrainingLayout(dp=8, ep=8), expert_imbalance=ratio)
        for ratio in (1.0, 1.5)
    )
    assert float(busy.terms["experts"]) == pytest.approx(1.5 * float(even.terms["experts"]), rel=0.05)
    assert np.all(busy.memory.activations > even.memory.activations)


def test_tensor_parallelism_divides_the_inputs_or_the_outputs_of_a_product():
    """Outputs of products whose rows are divided are whole on each rank, so that more ranks write more in all.

    The backward pass writes gradients of inputs (once for queries, keys and values, and once for gate and up), which are whole
    where the columns are divided, and adds gradients of weights of 4 B, which it reads and writes once a micro-batch.
    """
    writes = replace(IDEAL, constants=replace(IDEAL.constants, exposed_writes=1.0))
    asked, on = job(seq=8192, batch=8), system()
    seconds = [
        float(step_seconds(model(SMALL), asked, on, stack, TrainingLayout(tp=tp, dp=8 // tp)).terms["matrices"])
        for stack in (IDEAL, writes)
        for tp in (1, 8)
    ]
    written = [(seconds[place + 2] - seconds[place]) * on.chip.hbm.bandwidth / (8192 * 32 * 2) for place in (0, 1)]
    q, kv, ffn, h = 4096, 1024, 14336, 4096
    added = (h * (2 * q + 2 * kv) + 3 * h * ffn) * 2 * 4 / (8192 * 2)
    # Eight replicas add gradients of all weights for a sequence each; eight ranks add an eighth of them for eight.
    assert written[0] == pytest.approx(q + 2 * kv + 2 * ffn + 2 * h + 2 * h + q + ffn + added)
    assert written[1] == pytest.approx(q + 2 * kv + 2 * ffn + 8 * 2 * h + 8 * 2 * h + q + ffn + added)


def test_the_search_of_deepseek_v3_finds_the_layout_of_its_paper():
    """16 stages, 64 expert-parallel ranks, DualPipe; norms, up-projections and activations are computed again.

    arXiv 2412.19437, sections 3.2.1, 3.2.3 and 3.2.4: on 2,048 H800 in fp8.
    """
    found = st.train(
        "deepseek-v3",
        "hgx-h800",
        chips=2048,
        seq=4096,
        batch=15360,
        dtype="fp8",
        optimizer="adamw-bf16",
        mtp=True,
        changes=False,
    )
    x = found.step.layout
    assert (x.tp, x.pp, x.cp, x.ep, x.schedule) == (1, 16, 1, 64, "dualpipe")
    assert x.recompute == "norms+mla_up_proj+moe_act"
    assert found.evidence == "measured"


def test_dualpipe_is_a_measured_kind_of_the_model_that_ran_with_it():
    x = TrainingLayout(pp=16, ep=64, dp=64, schedule="dualpipe")
    asked, stack = job(seq=4096, batch=15360), training_engine("typical", system())
    assert is_measured_kind(x, asked, stack, experts=True, family=model("deepseek-v3").family)
    assert not is_measured_kind(x, asked, stack, experts=True, family=model(SPARSE).family)


def test_a_searched_layout_of_a_mixture_of_experts_has_a_schedule_that_stacks_start():
    found = st.train(SPARSE, "hgx-h100", chips=256, seq=4096, batch=1024, changes=False)
    assert found.evidence == "measured"
    assert found.step.layout.schedule in ("1f1b", "interleaved")


@each("name, on, asked", [("phi-4", "tpu-v6e", {"chips": 16, "batch": 128, "seq": 32_768}), ("llama-3-8b", "hgx-h100", LARGE)])
def test_any_layout_is_taken_only_where_it_is_faster_than_all_measured_kinds(name, on, asked):
    known, of_all = (st.train(name, on, **asked | {"changes": False}, evidence=evidence) for evidence in ("measured", "any"))
    faster = of_all.step.total < known.step.total
    assert faster if of_all.evidence == "any" else of_all.step.total < known.step.total * math.exp(LAYOUT_ERROR)
