"""Attention kernels: the formulas by hand, the table's physics, and the factor of an engine."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.catalog.hardware_loading import load_chip
from steptime.hardware.number_formats import number_format
from steptime.models.model import Attention
from steptime.physics.attention_kernels import (
    ANY,
    CONSTANTS,
    HEADS,
    NARROW,
    OPERATIONS,
    WIDE,
    AttentionKernel,
    JointKernel,
    decode_entries,
    joint_pairs,
    load_kernels,
    padding,
    prefill_pairs,
    select_kernel,
)
from steptime.physics.compute_dtype import DECODE, LATENT_DECODE, LATENT_PREFILL, PREFILL
from steptime.physics.engine import IDEAL, load_engine, with_constants
from steptime.physics.layout import Layout
from steptime.physics.op_work import attention_demands, build_work, busy_parts, has_joint_calls, software_factor
from steptime.physics.operator_time import compute_time, memory_time, overlap
from steptime.physics.step import decode_step, ledger_of_step, mixed_step, prefill_step
from tests.conftest import each, engine, machine

HOPPER = st.load_system("hgx-h200")
KERNELS = with_constants(IDEAL, {"attention_time": 1.0})
GROUPED = Attention(
    name="attention", kv_bytes=2 * 8 * 128 * 2, kv_shards=8, heads=32, flops_per_pair_decode=2 * 32 * 256,
    flops_per_pair_prefill=2 * 32 * 256, query_values=32 * 128, output_values=32 * 128,
)  # fmt: skip


def demands(a: Attention, engine=KERNELS, system=HOPPER, layout=None, **sizes):
    layout = Layout() if layout is None else layout
    empty = {"batch": 0, "context": 0, "query": 1, "prompts": 0, "tokens": 0, "prefix": 0}
    inputs = {name: np.asarray(value) for name, value in (empty | sizes).items()}
    return attention_demands(a, build_work(inputs, layout), system, layout, engine)


def test_decode_by_hand():
    """Sixteen sequences of 1,000 entries on two chips, each with four of the eight KV heads."""
    kernel = select_kernel(DECODE, "hopper", WIDE)
    found = demands(GROUPED, layout=Layout(tp=2), batch=16, context=1000)["decode"]
    entries = (1000 + kernel.tile_entries) * math.hypot(1, kernel.fill_rows / (16 * 4))
    assert found.kv == pytest.approx(16 * entries * 2 * 4 * 128 * 2)
    assert found.flops == pytest.approx(16 * entries * 2 * 16 * 256)
    assert (found.efficiency, found.memory_efficiency) == (kernel.compute_share, kernel.memory_share)
    assert found.seconds == kernel.seconds
    assert found.peak == HOPPER.chip.peak["bf16"]


def test_prefill_by_hand():
    """Two prompts of 1,000 tokens after 500 cached ones on two chips: 16 heads of 256 values each."""
    kernel = select_kernel(PREFILL, "hopper", WIDE)
    found = demands(GROUPED, layout=Layout(tp=2), prompts=2, tokens=1000, prefix=500)["prefill"]
    pairs, rows = 2 * (1000 * 500 + 1000 * 1001 / 2), 2000
    met = math.hypot(16 * (pairs + kernel.tile_entries * rows), kernel.fill_rows * (1000 + kernel.tile_entries))
    assert found.flops == pytest.approx(2 * (256 + kernel.pair_values) * met)
    assert found.kv == pytest.approx(2 * 1500 * 2 * 4 * 128 * 2)
    assert found.activations == pytest.approx(kernel.activation_passes * rows * (16 * 256 * 2 + 2 * 4 * 128 * 2))
    assert found.efficiency == kernel.compute_share
    assert found.seconds == kernel.seconds


@pytest.mark.parametrize("system", ["hgx-h100", "hgx-b200"])
def test_one_new_token_after_a_cached_prefix_is_about_a_decode_step(system):
    """Both read the cache once, and engines divide it among the parts of a chip."""
    given = {"engine": "vllm", "layout": st.Layout(tp=8)}
    for prefix in (8_000, 120_000):
        first = mixed_step("llama-3.1-70b", system, batch=0, context=1, prompts=1, tokens=1, prefix=prefix, **given).total
        assert 0.6 < float(first / decode_step("llama-3.1-70b", system, batch=1, context=prefix, **given).total) < 1.4


def test_a_faster_chip_is_not_slower_after_a_long_prefix():
    given = {"engine": "vllm", "layout": st.Layout(tp=8), "batch": 64, "context": 4000, "prompts": 1, "tokens": 64}
    slow, fast = (mixed_step("llama-3.1-70b", name, prefix=120_000, **given).total for name in ("hgx-h100", "hgx-b200"))
    assert fast < slow


def test_queries_of_a_sequence_share_a_tile():
    """Eight heads per KV head fill an eighth of a tile of 64 rows: two queries take hardly longer; 128 heads fill two tiles."""
    assert float(padding(8.0, 2.0)) == 0.5
    assert float(padding(128.0, 2.0)) == 1.0
    one, two = (
        decode_step(
            "llama-3.1-70b", "hgx-h100", engine="vllm", layout=st.Layout(tp=8), batch=64, context=32_000, query=query
        ).total
        for query in (1, 2)
    )
    assert 1 < float(two / one) < 1.08


def test_pairs_and_entries_by_hand():
    """Three heads of 100 pairs and 10 rows with 5 more each, beside 60 rows of 7 + 5 entries; a quarter of a chip is idle."""
    kernel = AttentionKernel(tile_entries=5.0, fill_rows=60.0)
    assert prefill_pairs(kernel, 100.0, 10.0, 3.0, 7.0) == pytest.approx(math.hypot(450, 720))
    assert decode_entries(kernel, 15.0, 80.0) == pytest.approx(20 * 1.25)
    assert prefill_pairs(AttentionKernel(), 100.0, 10.0, 3.0, 7.0) == 300
    assert decode_entries(AttentionKernel(), 15.0, 80.0) == 15


def test_the_ideal_engine_reads_what_it_needs():
    found = demands(GROUPED, engine=IDEAL, batch=16, context=1000, prompts=2, tokens=1000)
    assert found["decode"].kv == 16 * 1000 * 2 * 8 * 128 * 2
    assert found["prefill"].flops == pytest.approx(2 * 32 * 256 * 2 * 1000 * 1001 / 2)
    assert found["prefill"].activations == found["prefill"].seconds == found["decode"].seconds == 0


def test_parts_of_a_chip_work_in_rounds_of_whole_sequences():
    """76 parts: 77 sequences take a second round, which the mean of 76.5 has in half of the steps."""
    counts = np.array([0.5, 19, 19.5, 76, 76.5, 77, 151.5, 152, 152.5])
    rounds = np.array([1, 1, 1, 1, 1.5, 2, 2, 2, 2.5])
    assert busy_parts(counts, 76) == pytest.approx(counts / (76 * rounds))
    assert busy_parts(counts[1:3], np.array([76, np.inf])) == pytest.approx([0.25, 1.0])


def test_software_for_a_chip_is_slower_for_engines_that_depart():
    slow = machine(reached={"software": 0.8})
    assert software_factor(slow, engine(chip_departure=np.array([0.0, 1.0]))) == pytest.approx([1, 1.25])
    assert software_factor(machine(), engine(chip_departure=1.0)) == 1


def test_a_step_without_new_tokens_of_a_prompt_calls_no_kernel_for_it():
    found = demands(GROUPED, batch=16, context=1000, prompts=1, tokens=np.array([0, 100]))["prefill"]
    assert (found.flops[0], found.seconds[0]) == (0, 0)
    assert (found.flops[1] > 0, found.seconds[1] > 0) == (True, True)


def test_constants_are_physical():
    """No kernel is faster than its chip, a call takes up to 0.1 ms, and at most 188 rows fill a chip in decode."""
    kernels = load_kernels(AttentionKernel)
    assert {(operation, form) for operation, _, chips, form, _ in kernels if chips == ANY} == {
        (operation, form) for operation in OPERATIONS for form in (WIDE, NARROW)
    }
    for (operation, _, _, form, most), kernel in kernels.items():
        assert form in (WIDE, NARROW)
        assert 0 <= kernel.seconds < 1e-4
        assert 0.1 < kernel.memory_share <= 1
        assert 0.02 < kernel.compute_share <= 1
        assert 0 <= kernel.tile_entries < 1500
        assert kernel.fill_rows < (188 if operation in (DECODE, LATENT_DECODE) else 300 * 128)
        assert most in HEADS
        assert operation == LATENT_DECODE or math.isinf(most)
        assert kernel.timings > 100
        assert kernel.error < 0.3
        unused = {"pair_values", "fill_rows", "activation_passes"} - set(CONSTANTS[operation])
        assert all(getattr(kernel, name) == 0 for name in unused)


def test_prefill_reaches_less_than_the_usual_share():
    """A quarter to two thirds of the rate with 32,768 tokens and 128 values a head; less for short prompts and few heads."""
    cases = (("hopper", WIDE, 0.4, 0.65), ("hopper", NARROW, 0.25, 0.4), ("blackwell", NARROW, 0.2, 0.35))
    for chips, form, low, high in cases:
        kernel, shares = select_kernel(PREFILL, chips, form), []
        for tokens, heads in ((32_768, 32), (2048, 32), (2048, 4)):
            pairs = tokens * (tokens + 1) / 2
            met = prefill_pairs(kernel, pairs, tokens, heads, tokens) * (1 + kernel.pair_values / 256)
            shares.append(heads * pairs / met * kernel.compute_share)
        assert low < shares[0] < high
        assert shares == sorted(shares, reverse=True)


def test_kernels_by_format():
    """Decode by the format of the cache, prefill by that of the arithmetic, which a rule of the engine may choose."""
    table = load_kernels(AttentionKernel)
    small = replace(GROUPED, arithmetic=number_format("fp8").arithmetic)
    found = demands(small, batch=4, context=1000, prompts=1, tokens=1000)
    assert found["decode"].memory_efficiency == table[DECODE, "", "hopper", NARROW, math.inf].memory_share
    assert found["prefill"].efficiency == table[PREFILL, "", "hopper", NARROW, math.inf].compute_share
    latent = replace(small, expand_flops=1.0)
    vllm, trtllm = (
        demands(latent, engine=with_constants(load_engine(name), {"attention_time": 1.0}), prompts=1, tokens=1000)["prefill"]
        for name in ("vllm", "trtllm")
    )
    assert vllm.efficiency == table[LATENT_PREFILL, "", "hopper", WIDE, math.inf].compute_share
    assert trtllm.efficiency == table[LATENT_PREFILL, "", "hopper", NARROW, math.inf].compute_share
    assert trtllm.peak == pytest.approx(2 * vllm.peak, rel=1e-3)


def test_engines_run_kernel_engine_their_own():
    """A cache of 8 bits on Hopper: TensorRT-LLM's kernels take less than vLLM's; others have those of all engines."""
    kernels = {name: select_kernel(DECODE, "hopper", NARROW, engine=name) for name in ("vllm", "trtllm", "mine")}
    seconds = {}
    for name, kernel in kernels.items():
        entries = 32 * decode_entries(kernel, 8000, 32 * 8)
        seconds[name] = kernel.seconds + entries * 2048 / (kernel.memory_share * 4.8e12)
    assert 1.2 * seconds["trtllm"] < 1.1 * seconds["mine"] < 1.1 * seconds["vllm"]
    assert kernels["mine"] is load_kernels(AttentionKernel)[DECODE, "", "hopper", NARROW, math.inf]


def test_chips_without_timings_have_the_kernel_engine_all():
    assert (
        select_kernel(LATENT_DECODE, "cdna4", NARROW) is load_kernels(AttentionKernel)[LATENT_DECODE, "", ANY, NARROW, math.inf]
    )


@pytest.mark.parametrize(("heads", "measured"), [(16, 0.202e-3), (32, 0.305e-3), (64, 0.259e-3), (128, 0.259e-3)])
def test_decode_from_latents_by_the_heads_of_a_chip(heads, measured):
    """TensorRT-LLM 1.3 on a B200, 256 sequences of 8,191 latents in 8 bits (aiconfigurator-core 0.12.0, systems/data)."""
    kernel, chip = select_kernel(LATENT_DECODE, "blackwell", NARROW, engine="trtllm", heads=float(heads)), load_chip("b200")[0]
    entries = 256 * decode_entries(kernel, 8192.0, 256.0)
    compute = 2 * heads * (576 + 512) * entries / (kernel.compute_share * chip.peak["fp8"])
    moved = 576 * entries / (kernel.memory_share * chip.hbm.bandwidth)
    assert kernel.seconds + overlap(compute, moved, 2.5) == pytest.approx(measured, rel=0.08)


@each("tp", [2, 4, 8])
def test_a_chip_decodes_latents_with_the_kernel_of_its_heads(tp):
    """128 heads on some chips as a chip of its own with their share of heads."""
    wide = Attention(
        name="latent", kv_bytes=1.0, heads=128, expand_flops=1.0, flops_per_pair_decode=2e5, flops_per_pair_prefill=1.0
    )
    few = replace(wide, heads=128 // tp, flops_per_pair_decode=2e5 / tp)
    given = {"engine": load_engine("trtllm"), "system": st.load_system("hgx-b200"), "batch": 64, "context": 1000}
    divided, whole = (demands(a, layout=layout, **given)["decode"] for a, layout in ((wide, Layout(tp=tp)), (few, Layout())))
    for name in ("flops", "kv", "seconds", "efficiency", "memory_efficiency"):
        assert float(getattr(divided, name)) == pytest.approx(float(getattr(whole, name)))


def test_layouts_in_an_array_have_the_kernels_of_their_heads():
    """Tensor parallelism over 1, 2, 4, 8 and 16 chips leaves 128, 64, 32, 16 and 8 heads."""
    ways = np.array([1, 2, 4, 8, 16])
    kernel = select_kernel(LATENT_DECODE, "blackwell", WIDE, heads=128 / ways)
    alone = [select_kernel(LATENT_DECODE, "blackwell", WIDE, heads=128.0 / int(tp)) for tp in ways]
    for name in CONSTANTS[LATENT_DECODE]:
        assert list(getattr(kernel, name)) == [getattr(one, name) for one in alone]
    assert len({id(one) for one in alone}) == 4


def test_recurrent_mixers_have_the_rates_of_dense_products():
    engine = with_constants(KERNELS, {"memory_efficiency": 0.8, "compute_efficiency": 0.7})
    state = Attention(name="state", state_bytes=1e6, state_flops_per_token=1e6)
    for found in demands(state, engine=engine, batch=4, context=100, prompts=1, tokens=100).values():
        assert (found.memory_efficiency, found.efficiency, found.seconds) == (0.8, 0.7, 0.0)


def test_a_factor_scales_the_whole_time_of_attention():
    vllm = load_engine("vllm")
    one, two = (
        mixed_step("llama-3.1-8b", "hgx-h200", batch=8, context=4000, prompts=1, tokens=2000, engine=engine)
        for engine in (with_constants(vllm, {"attention_time": factor}) for factor in (1.0, 2.0))
    )
    calls = 32 * sum(select_kernel(operation, "hopper", WIDE, engine="vllm").seconds for operation in (DECODE, PREFILL))
    assert float(two.terms["attention"]) == pytest.approx(2 * float(one.terms["attention"]))
    assert float(two.terms["overhead"] - one.terms["overhead"]) == pytest.approx(calls)


def test_calls_are_counted_where_there_are_rows():
    """In an array of steps, one without prompts has no call of prefill."""
    sizes = {"batch": np.array([0, 8, 8]), "context": 100, "prompts": np.array([1, 0, 1]), "tokens": 100}
    step = mixed_step("llama-3.1-8b", "hgx-h200", engine=KERNELS, **sizes)
    prefill, decode = (32 * select_kernel(operation, "hopper", WIDE).seconds for operation in (PREFILL, DECODE))
    assert step.terms["overhead"].tolist() == pytest.approx([prefill, decode, prefill + decode])


def test_lines_name_the_calls():
    entries = ledger_of_step(
        st.load_model("llama-3.1-8b"), HOPPER, {"batch": 8, "context": 100, "prompts": 1, "tokens": 100}, engine=KERNELS
    )[1]
    calls = [entry for entry in entries if entry.name == "calls of attention kernels"]
    seconds = sum(select_kernel(operation, "hopper", WIDE).seconds for operation in (DECODE, PREFILL))
    assert [(float(entry.seconds), entry.count) for entry in calls] == [(pytest.approx(32 * seconds), 32)]


def test_a_prompt_in_parts_takes_no_less_than_whole():
    """Each part reads the parts before it and fills less of the chip."""
    sizes = {"system": "hgx-h200", "engine": KERNELS}
    whole = float(prefill_step("llama-3.1-8b", tokens=8192, **sizes).terms["attention"])
    parts = sum(float(prefill_step("llama-3.1-8b", tokens=2048, prefix=2048 * k, **sizes).terms["attention"]) for k in range(4))
    assert whole < parts < 1.6 * whole


def test_few_sequences_do_not_fill_kernels_that_share_no_context():
    """MLA on L40S: one sequence takes as long as ten, on H200 a fifth of the time of ten."""
    ratios = {}
    for system in ("hgx-h200", "l40s-8"):
        one, ten = (
            decode_step("deepseek-v2-lite", system, batch=batch, context=16_000, engine=KERNELS).terms["attention"]
            for batch in (1, 10)
        )
        ratios[system] = float(ten / one)
    assert ratios["l40s-8"] < 1.2
    assert ratios["hgx-h200"] > 5


# FlashAttention 2: prompts and decoding sequences in one call.
SERVER, VLLM = st.load_system("rtx-pro-6000-8"), with_constants(load_engine("vllm"), {"attention_time": 1.0})
MIXED = {"batch": 64, "context": 1024, "prompts": 1, "tokens": 512}


def seconds_of(demand, system):
    memory = memory_time(demand.kv, system.chip.hbm.bandwidth, demand.memory_efficiency)
    return float(overlap(compute_time(demand.flops, demand.peak, demand.efficiency), memory, 2.5))


def test_pairs_of_a_decoding_sequence_with_prompts_by_hand():
    """64 rows that meet 900 + 100 entries, and a block of 8 entries for each 64 tokens of the longest prompt."""
    joint, kernel = load_kernels(JointKernel)["vllm", "workstation-blackwell", WIDE], AttentionKernel(tile_entries=100.0)
    assert joint_pairs(joint, kernel, 900.0, 640.0) == 64 * 1000 + 10 * 8 * 64
    assert joint_pairs(joint, kernel, 900.0, 1.0) == 64 * 1000 + 8 * 64
    free = JointKernel(engine="", chips="", form="", tile_rows=1, block_entries=0, timed_compute=1)
    assert joint_pairs(free, AttentionKernel(), 900.0, 640.0) == 900


def test_decode_with_prompts_by_hand():
    """64 sequences on two chips with 16 of the 32 heads each: tiles of 64 rows at the rate of prefill, and the same cache."""
    kernel, sizes = select_kernel(PREFILL, "workstation-blackwell", WIDE), {"layout": Layout(tp=2), "system": SERVER}
    phases = demands(GROUPED, VLLM, **sizes, **MIXED)
    found = phases["decode with prompts"]
    pairs = 64 * (1024 + kernel.tile_entries) + 8 * 512
    assert list(phases) == ["decode with prompts", "prefill"]
    assert float(found.flops) == pytest.approx(64 * 16 * pairs * 2 * (256 + kernel.pair_values))
    assert float(found.efficiency) == pytest.approx(kernel.compute_share)
    assert float(found.kv) == pytest.approx(float(demands(GROUPED, VLLM, **sizes, batch=64, context=1024)["decode"].kv))
    assert found.peak == SERVER.chip.peak["bf16"]
    # Of a prompt of one token too, with a block of 8 entries for its 64 rows.
    least = demands(GROUPED, VLLM, **sizes, **MIXED | {"tokens": 1})["decode with prompts"]
    pairs = 64 * (1024 + kernel.tile_entries) + 8 * 64
    assert float(least.flops) == pytest.approx(64 * 16 * pairs * 2 * (256 + kernel.pair_values))


def test_one_of_four_micro_batches_with_a_prompt_has_a_share_of_both_calls():
    alone, always = demands(GROUPED, VLLM, SERVER, batch=64, context=1024), demands(GROUPED, VLLM, SERVER, **MIXED)
    found = demands(GROUPED, VLLM, SERVER, layout=Layout(microbatches=4), **(MIXED | {"batch": 256}))
    for call, share, whole in (("decode", 0.75, alone), ("decode with prompts", 0.25, always)):
        for name in ("flops", "kv", "seconds"):
            assert float(getattr(found[call], name)) == pytest.approx(share * float(getattr(whole[call], name)))


def test_chips_whose_products_reach_more_than_the_timed_chip_compute_tiles_faster():
    """Prompts were timed on an L40S, which reaches 0.6 of its data sheet in plain products; a GeForce RTX 4090 0.95."""
    share = select_kernel(PREFILL, "ada", WIDE).compute_share
    for system, factor in (("l40s-8", 1.0), ("rtx-4090-8", 0.95 / 0.6)):
        found = demands(GROUPED, VLLM, st.load_system(system), **MIXED)["decode with prompts"]
        assert float(found.efficiency) == pytest.approx(share * factor)


@each(
    "system, sizes, measured",
    [
        ("rtx-pro-6000-8", (64, 1024, 512, 0), 348.577 - 24.9173),
        ("rtx-pro-6000-8", (64, 4096, 16, 0), 1436.27 - 7.76533),
        ("rtx-pro-6000-8", (64, 256, 2048, 0), 393.527 - 172.609),
        ("rtx-4090-8", (64, 1024, 512, 0), 707.612 - 41.0747),
        ("rtx-4090-8", (64, 4096, 16, 0), 2355.72 - 9.546),
        ("rtx-4090-8", (64, 256, 2048, 0), 718.559 - 336.126),
    ],
)
def test_decode_with_prompts_takes_what_vllm_took(system, sizes, measured):
    """Microseconds of a layer of Llama-3.1-8B in LLMServingSim's tables (vLLM 0.19), without those of the prompt."""
    batch, context, tokens, prefix = sizes
    machine = st.load_system(system)
    found = demands(GROUPED, VLLM, machine, batch=batch, context=context, prompts=1, tokens=tokens, prefix=prefix)
    assert 1e6 * seconds_of(found["decode with prompts"], machine) == pytest.approx(measured, rel=0.17)


@each(
    "system, engine, kv",
    [
        ("hgx-h100", "vllm", ""),
        ("hgx-b200", "vllm", ""),
        ("l40s-8", "sglang", ""),
        ("l40s-8", "vllm", "fp8"),
        ("l40s-8", "ideal", ""),
    ],
)
def test_other_kernels_take_prompts_and_sequences_in_their_own_calls(system, engine, kv):
    """FlashAttention 3, TensorRT-LLM's kernels, FlashInfer, and caches of 8 bits."""
    model, machine, runs_on = st.load_model("llama-3.1-8b", kv=kv), st.load_system(system), load_engine(engine)
    assert not has_joint_calls(model, machine, runs_on)
    assert has_joint_calls(st.load_model("llama-3.1-8b"), st.load_system("l40s-8"), load_engine("vllm"))
    mixer = model.layers[0][0].attention[0]
    assert list(demands(mixer, runs_on, machine, **MIXED)) == ["decode", "prefill"]


def test_a_latent_has_its_own_calls():
    assert not has_joint_calls(st.load_model("deepseek-v3"), st.load_system("hgx-a100"), load_engine("vllm"))


def test_steps_without_both_do_not_change():
    """A kernel for both is in no step of decode or prefill alone; a step with both takes longer with it."""
    given = {"model": "llama-3.1-8b", "system": SERVER, "batch": 64, "context": 1024}
    other = replace(VLLM, kernel_engine="")
    for sizes in ({"prompts": 0, "tokens": 1}, {"batch": 0, "prompts": 1, "tokens": 512}, {"prompts": 1, "tokens": 512}):
        with_both, apart = (mixed_step(**(given | sizes), engine=engine).total for engine in (VLLM, other))
        longer = sizes.get("batch", 64) and sizes["prompts"]
        assert (float(with_both) > 1.05 * float(apart)) if longer else float(with_both) == float(apart)
