"""Kernels of routed experts: the formula by hand, the table's physics, and the factors of engines."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.catalog.hardware_loading import load_chip
from steptime.hardware.number_formats import number_format
from steptime.physics.attention_kernels import ANY, WIDE, load_kernels
from steptime.physics.attention_kernels import select_kernel as select_attention
from steptime.physics.compute_dtype import DECODE
from steptime.physics.engine import load_engine, with_constants
from steptime.physics.expert_kernels import (
    CONSTANTS,
    EXCHANGED,
    EXCHANGED_FP4,
    STORED,
    ExpertFactor,
    ExpertKernel,
    activation_bytes,
    expert_factor,
    kernel_times,
    memory_share,
    read_factors,
    select_kernel,
    stored_kind,
    tile_size,
)
from steptime.physics.operator_time import overlap
from steptime.physics.step import decode_step
from tests.conftest import each

KERNEL = ExpertKernel(
    seconds=30e-6,
    memory_share=0.8,
    compute_share=0.5,
    fill_columns=512.0,
    tile_rows=12.0,
    activation_share=0.5,
    token_passes=10.0,
)
SHAPE = {"touched": 8, "rows": 96, "tokens": 48, "width": 4000, "columns": 1536, "matrices": 3}


def test_times_by_hand():
    """8 experts of 3 x 4,000 x 1,536 bytes at 0.8 of 4 TB/s, times 4/3; half of 96 rows of 29,216 values in 16 bits;
    ten passes of 48 tokens of 4,000 values."""
    compute, memory = kernel_times(KERNEL, **SHAPE, stored=1.0, bandwidth=4e12, peak=1e15)
    moved = 0.5 * 96 * 29_216 * 2 + 10 * 48 * 4000 * 2
    assert memory == pytest.approx(8 * 3 * 4000 * 1536 * (4 / 3) / 3.2e12 + moved / 4e12)
    assert compute == pytest.approx(2 * 3 * 4000 * 1536 * math.hypot(96, 96) / 0.5e15)
    assert activation_bytes(KERNEL, 96, 48, 4000, 1536, 3) == moved
    assert memory_share(KERNEL, 512) == 0.4


def test_more_work_never_takes_less():
    for kernel in load_kernels(ExpertKernel).values():
        for name, value in SHAPE.items():
            less, more = (
                kernel_times(kernel, **SHAPE | {name: value * factor}, stored=1.0, bandwidth=4e12, peak=1e15)
                for factor in (1, 2)
            )
            assert more[0] >= less[0]
            assert more[1] >= less[1]


def test_constants_are_physical():
    """No kernel is faster than its chip, and a call takes 2 to 120 us."""
    kernels = load_kernels(ExpertKernel)
    assert {stored for _, chips, stored in kernels if chips == ANY} == set(STORED)
    for kernel in kernels.values():
        assert 2e-6 < kernel.seconds < 120e-6
        assert 0.2 < kernel.memory_share <= 0.95
        assert 0.02 < kernel.compute_share <= 1
        assert kernel.timings > 100
        assert kernel.error < 0.5


@each(
    "name, kind",
    [("mxfp8", "fp8"), ("int8", "fp8"), *((name, name) for name in ("bf16", "fp8", "int4", "nvfp4", "mxfp4"))],
)
def test_kinds_of_stored_experts(name, kind):
    assert stored_kind(number_format(name)) == kind
    if kind == "fp8":
        assert stored_kind(replace(number_format(name), block=128)) == "fp8_block"


def test_chips_without_timings_have_the_kernel_engine_all():
    assert select_kernel("", "fp8", has_fp4=False) is load_kernels(ExpertKernel)["", ANY, "fp8"]
    assert select_kernel("hopper", "nvfp4", has_fp4=False) is load_kernels(ExpertKernel)["", "hopper", "int4"]
    assert select_kernel("blackwell", "nvfp4", has_fp4=True) is load_kernels(ExpertKernel)["", "blackwell", "nvfp4"]


def test_exchanged_experts_run_in_kernels_for_many_rows():
    """By layout, also in one array of layouts; on chips without such timings and for other formats nothing changes."""
    table = load_kernels(ExpertKernel)
    plain, exchanged = table["", "blackwell", "fp8_block"], table["", "blackwell", "fp8_block, exchanged"]
    assert exchanged.compute_share > 2 * plain.compute_share
    both = select_kernel("blackwell", "fp8_block", has_fp4=True, exchanges=np.array([False, True]))
    assert both.compute_share.tolist() == [plain.compute_share, exchanged.compute_share]
    assert select_kernel("ada", "fp8_block", has_fp4=False, exchanges=True) is table["", "ada", "fp8_block"]
    assert select_kernel("blackwell", "nvfp4", has_fp4=True, exchanges=True) is table["", "blackwell", "nvfp4"]


def test_nvfp4_experts_of_tensorrt_llm_run_in_two_kernels():
    """TRTLLM with few rows, and CUTLASS where ranks exchange tokens, which starts later and needs more rows for a tile."""
    few, many = (
        select_kernel("blackwell", "nvfp4", has_fp4=True, engine="trtllm", exchanges=exchanges) for exchanges in (False, True)
    )
    assert (few.stored, many.stored) == ("nvfp4", EXCHANGED_FP4)
    assert many.seconds > few.seconds
    assert many.tile_rows > 4 * few.tile_rows


def test_tiles_grow_with_the_rows_that_a_kernel_expects():
    """FlashInfer's tiles begin at 8 rows; a kernel that does not choose has one tile."""
    grows, fixed = replace(KERNEL, tile_growth=8.0), KERNEL
    assert [float(tile_size(grows, expected)) for expected in (0.1, 8, 20, 64, 1e6)] == [12, 12, 30, 96, 96]
    assert {float(tile_size(fixed, expected)) for expected in (0, 8, 1e6)} == {12.0}
    compute = [kernel_times(grows, **SHAPE, stored=1.0, bandwidth=4e12, peak=1e15, expected=rows)[0] for rows in (8, 64)]
    assert compute[1] / compute[0] == pytest.approx(math.hypot(96, 8 * 96) / math.hypot(96, 96))


@each("chip, tokens, seconds", [("gb200", 96, 304e-6), ("gb200", 128, 337e-6), ("b200", 320, 371e-6)])
def test_expert_parallelism_fills_tiles_with_few_rows(chip, tokens, seconds):
    """DeepSeek-V3's experts in 8-bit blocks on one of eight chips, evenly loaded, as timed alone: aiconfigurator-core 0.12.0,
    systems/data, sglang 0.5.14, sglang_flashinfer_trtllm_moe. With one tile at any load, they took 20 to 30 % less."""
    kernel, chip = select_kernel("blackwell", "fp8_block", has_fp4=True, engine="sglang"), load_chip(chip)[0]
    given = {"touched": 32, "rows": tokens, "tokens": tokens, "width": 7168, "columns": 2048, "matrices": 3, "stored": 1.0}
    rates = {"bandwidth": chip.hbm.bandwidth, "peak": chip.peak["fp8"]}
    compute, memory = kernel_times(kernel, **given, **rates, expected=tokens * 8 / 32)
    assert kernel.seconds + overlap(compute, memory, 2.5) == pytest.approx(seconds, rel=0.25)


def test_factors_scale_the_whole_time_of_experts():
    """A factor of 1.5 on hopper's experts makes experts and calls 1.5 times as long, and nothing else."""
    vllm = with_constants(load_engine("vllm"), {"expert_call": 1.0})
    parts = []
    for factor in (1.0, 1.5):
        engine = replace(vllm, expert_factors=(ExpertFactor(chips="hopper", stored="fp8_block", factor=factor),))
        parts.append(decode_step("deepseek-v3", "hgx-h200", batch=16, context=1000, layout=st.Layout(tp=8), engine=engine))
    calls = 58 * load_kernels(ExpertKernel)["vllm", "hopper", "fp8_block"].seconds
    routed = [float(step.terms["experts"]) for step in parts]
    assert routed[1] == pytest.approx(1.5 * routed[0], rel=0.01)  # the router has no factor
    assert float(parts[1].terms["overhead"] - parts[0].terms["overhead"]) == pytest.approx(0.5 * calls)
    assert float(parts[1].terms["attention"]) == float(parts[0].terms["attention"])


def test_exchanged_experts_have_a_factor_of_their_own():
    """Ranks that exchange tokens run other kernels, whose factor is that of "fp8_block, exchanged"."""
    vllm, given = load_engine("vllm"), {"batch": 512, "context": 1000, "layout": st.Layout(dp=8, ep=8)}
    plain = ExpertFactor(chips="blackwell", stored="fp8_block", factor=2.0)
    times = [
        float(decode_step("deepseek-v3", "hgx-b200", engine=replace(vllm, expert_factors=factors), **given).terms["experts"])
        for factors in ((plain,), (plain, ExpertFactor(chips="blackwell", stored=EXCHANGED, factor=1.5)))
    ]
    assert times[1] == pytest.approx(1.5 * times[0], rel=0.02)  # the router has no factor


def test_unmeasured_experts_have_a_factor_of_their_own():
    factors = (ExpertFactor(chips="hopper", stored="fp8", factor=0.9, runs=7),)
    assert expert_factor(factors, "hopper", "fp8", 2.0) == 0.9
    assert expert_factor(factors, "hopper", "bf16", 2.0) == 2.0
    engine = replace(load_engine("vllm"), expert_factors=())
    slow = with_constants(engine, {"unmeasured_expert_time": 2.0})
    one, two = (decode_step("qwen3-30b-a3b", "hgx-h100", batch=8, context=1000, engine=e) for e in (engine, slow))
    assert float(two.terms["experts"]) == pytest.approx(2 * float(one.terms["experts"]), rel=0.01)  # the router has none


def test_the_range_is_wider_without_runs_of_the_experts():
    from steptime.physics.uncertainty import step_range

    engine = load_engine("vllm")
    inputs = {"batch": 64, "context": 1000, "layout": st.Layout(tp=8)}
    widths = []
    for used in (engine, replace(engine, expert_factors=())):
        low, high = step_range("minimax-m2.5", "hgx-h200", engine=used, **inputs)
        widths.append(float(np.log(high / low)))
    assert widths[1] > widths[0] + 0.005


@each(
    "entries, words",
    [
        ({}, "list of tables"),
        ([{"chips": "hopper"}], "needs chips, stored and factor"),
        ([{"chips": "hopper", "stored": "fp8", "factor": 1, "x": 1}], "needs chips, stored and factor"),
        ([{"chips": "hopper", "stored": "fp8", "factor": 0}], "factor must be from 0.1 to 10"),
        ([{"chips": "hopper", "stored": "fp8", "factor": True}], "factor must be from 0.1 to 10"),
        ([{"chips": "hopper", "stored": "fp9", "factor": 1}], "stored one of bf16"),
        ([{"chips": 3, "stored": "fp8", "factor": 1}], "chips must be a text"),
        ([{"chips": "hopper", "stored": "fp8", "factor": 1, "runs": -1}], "runs must be a whole number"),
    ],
)
def test_bad_tables_are_refused(entries, words):
    with pytest.raises(ValueError, match=words):
        read_factors(entries)


def test_engines_run_kernel_engine_their_own():
    """gpt-oss on Hopper: vLLM and SGLang call OpenAI's Triton kernels, which start in half the time of TensorRT-LLM's."""
    names = ("vllm", "sglang", "trtllm", "mine")
    kernels = {name: select_kernel("hopper", "mxfp4", has_fp4=False, engine=name) for name in names}
    constants = {name: [getattr(kernel, constant) for constant in CONSTANTS] for name, kernel in kernels.items()}
    assert constants["vllm"] == constants["sglang"]
    assert kernels["trtllm"].seconds > 2 * kernels["vllm"].seconds
    assert kernels["mine"] is load_kernels(ExpertKernel)["", "hopper", "mxfp4"]
    vllm = load_engine("vllm")
    one, other = (
        decode_step("gpt-oss-120b", "hgx-h100", batch=16, context=1000, engine=engine)
        for engine in (vllm, replace(vllm, kernel_engine=""))
    )
    factor = expert_factor(vllm.expert_factors, "hopper", "mxfp4") * vllm.experts.expert_call
    mine, theirs = (select_attention(DECODE, "hopper", WIDE, engine=name).seconds for name in ("mine", "vllm"))
    calls = factor * (kernels["mine"].seconds - kernels["vllm"].seconds) + vllm.kernels.attention_time * (mine - theirs)
    assert float(other.terms["overhead"] - one.terms["overhead"]) == pytest.approx(36 * calls)


@each(
    "experts, tokens, ranks, seconds",
    # vLLM 0.24's Marlin on one L40S: gpt-oss experts (2,880 x 2,880, 4 active, balanced) split over ranks (AIConfigurator).
    [(32, 80, 1, 676e-6), (32, 128, 4, 204e-6), (128, 320, 4, 732e-6), (128, 128, 2, 1378e-6), (128, 160, 1, 2624e-6)],
)
def test_vllm_multiplies_mxfp4_experts_on_ada_as_it_was_timed(experts, tokens, ranks, seconds):
    """Kernels of all engines together, most of them SGLang's, took three times as long at these sizes."""
    kernel, l40s = select_kernel("ada", "mxfp4", has_fp4=False, engine="vllm"), st.load_system("l40s-8").chip
    compute, memory = kernel_times(
        kernel, touched=min(experts, 4 * tokens), rows=4 * tokens, tokens=tokens, width=2880, columns=2880 / ranks, matrices=3,
        stored=0.5 + 1 / 32, bandwidth=l40s.hbm.bandwidth, peak=l40s.peak["bf16"],
    )  # fmt: skip
    assert kernel.seconds + math.hypot(compute, memory) == pytest.approx(seconds, rel=0.2)
