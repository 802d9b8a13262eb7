"""The forward and the backward pass of one layer, by hand on a chip of 1 PFLOP/s."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from steptime.models.model import Attention
from steptime.physics.network_time import Traffic
from steptime.training.layer_profile import MODULES, Stem, layer_profiles
from steptime.training.layer_time import (
    FLASH_BACKWARD,
    activation_bytes,
    collective_seconds,
    concurrent_seconds,
    is_aligned,
    layer_passes,
    power_limit_factor,
    product_rates,
    recomputed_modules,
    stem_passes,
)
from steptime.training.training_job import TrainingLayout
from steptime.training.training_stack import IDEAL, load_stack
from steptime.training.training_step import step_seconds
from tests.conftest import each, experts, machine, matrix, model_of
from tests.training.cases import ALONE, CHIP, LINKED, ROWS, SMALL, SPARSE, job, lossy, model, system, toy

SEQ = 4096
TWO = job(seq=SEQ, batch=2)
RING = machine(flops=1e15, bandwidth=1e12, size=8, up=1e11, out=1e10)
SCORES = 400.0  # FLOPs of a query with a key, over all heads


def passes(of=None, on=CHIP, engine=IDEAL, asked=TWO, **layout):
    ((sheet, _),) = layer_profiles(toy() if of is None else of)
    return layer_passes(sheet, asked, on, engine, TrainingLayout(**{"micro_batch": 2} | layout))


def slow_memory(bandwidth: float):
    return machine(flops=1e15, bandwidth=bandwidth)


def test_a_product_is_two_flops_a_weight_forward_and_four_backward():
    """8,192 rows x 1e9 weights at 1 PFLOP/s: 16.384 ms, twice that backward, half of which makes gradients of weights."""
    found = passes()
    assert float(found.forward["matrices"]) == pytest.approx(16.384e-3)
    assert float(found.backward["matrices"]) == pytest.approx(2 * 16.384e-3)
    assert float(found.weights) == pytest.approx(16.384e-3)


def test_a_frozen_base_needs_no_gradients_of_weights():
    """LoRA: 4N FLOPs a token, not 6N."""
    found = passes(asked=job(seq=SEQ, batch=2, task="lora"))
    whole = found.forward["matrices"] + found.backward["matrices"]
    assert float(whole) == pytest.approx(4 / 2 * 16.384e-3)
    assert found.weights == 0


def test_attention_goes_back_two_and_a_half_times():
    """Causal pairs: 2 sequences of 4,096 x 4,097 / 2, 400 FLOPs each; five products backward against two."""
    found = passes(toy(pair_flops=SCORES))
    once = 2 * SEQ * (SEQ + 1) / 2 * SCORES / 1e15
    assert float(found.forward["attention"]) == pytest.approx(once)
    assert float(found.backward["attention"]) == pytest.approx(5 / 2 * once)
    assert FLASH_BACKWARD == 2.5


def test_attention_that_is_not_fused_computes_all_pairs_and_moves_scores():
    """All 4,096^2 pairs; six passes of 16-bit scores of 64 heads through memory of 1 TB/s."""
    of = toy(pair_flops=SCORES * 64)  # heads 100 wide, which is no multiple of 8: no matrix units, but one rate on the toy
    found = passes(of, slow_memory(1e12), asked=job(seq=SEQ, batch=2, attention="unfused"))
    products, moved = 2 * SEQ**2 * SCORES * 64 / 1e15, 6 * 2 * 2 * SEQ**2 * 64 / 1e12
    assert float(found.forward["attention"]) == pytest.approx(products + moved)
    assert float(found.backward["attention"]) == pytest.approx(2 * (products + moved))


def test_heads_are_aligned_where_their_width_is_a_multiple_of_eight():
    for width, fine in ((128, True), (150, False), (64, True), (100, False)):
        assert is_aligned(Attention(name="a", heads=64, flops_per_pair_prefill=4 * 64 * width)) is fine


def test_tensor_parallelism_divides_products_and_heads():
    one, eight = (passes(toy(pair_flops=SCORES), tp=tp) for tp in (1, 8))
    for name in ("matrices", "attention", "element-wise"):
        assert float(one.forward.get(name, 0)) == pytest.approx(8 * float(eight.forward.get(name, 0)))


@pytest.mark.parametrize("blocks", [1, 2])
def test_tensor_parallelism_gathers_and_scatters_around_blocks(blocks):
    """8,192 rows of 1,000 values in 16 bits, 7/8 of them from others at 100 GB/s; 2 collectives a block forward, 3 backward."""
    of = toy() if blocks == 1 else toy(pair_flops=SCORES)
    found = passes(of, LINKED, lossy(), tp=8)
    phase = ROWS * 1000 * 2 * 7 / 8 / 1e11
    assert float(found.forward["tensor parallel"]) == pytest.approx(2 * blocks * phase)
    assert float(found.backward["tensor parallel"]) == pytest.approx(3 * blocks * phase)
    half = passes(of, LINKED, lossy(tensor_overlap=0.5), tp=8)
    assert float(half.forward["tensor parallel"]) == pytest.approx(blocks * phase)
    assert "tensor parallel" not in passes(of, LINKED, lossy()).forward


def test_links_reach_their_share_of_bandwidth():
    found, half = (
        passes(toy(), LINKED, engine, tp=tp)
        for engine, tp in ((lossy(), 16), (lossy(scale_up_efficiency=0.5, scale_out_efficiency=0.25), 16))
    )
    up, out = ROWS * 2000 * 7 / 8 / 1e11, ROWS * 2000 / 8 * 1 / 2 / 1e10
    assert float(found.forward["tensor parallel"]) == pytest.approx(2 * (up + out))
    assert float(half.forward["tensor parallel"]) == pytest.approx(2 * (2 * up + 4 * out))


def test_context_parallelism_sends_keys_and_values_once_forward_and_twice_backward():
    """Llama 3 8B on two: 4,096 x 2,048 values in 16 bits, half of them of the other, at 100 GB/s.

    The outputs of the second of two steps are added: 2,048 rows of 4,096 values, 10 B each, and the sums of 32 heads.
    """
    ((sheet, _),) = layer_profiles(model(SMALL))
    found = layer_passes(sheet, job(seq=SEQ, batch=1), RING, lossy(), TrainingLayout(cp=2))
    once = SEQ * 2048 * 2 / 2 / 1e11
    added = SEQ / 2 * (4096 + 2 * 32) * 10 / float(RING.chip.hbm.bandwidth)
    assert float(found.forward["context parallel"]) == pytest.approx(once + added)
    assert float(found.backward["context parallel"]) == pytest.approx(2 * (once + added))
    # The first step of the ring has nothing to receive, so that half of attention can hide the exchange.
    hidden = layer_passes(sheet, job(seq=SEQ, batch=1), RING, lossy(data_overlap=1.0), TrainingLayout(cp=2))
    assert float(hidden.forward["context parallel"]) == pytest.approx(
        max(once - float(found.forward["attention"]) / 2, 0), abs=1e-12
    )


def test_a_ring_over_two_nodes_waits_for_the_link_between_them():
    """Llama 3 8B on 16 of two nodes: 15 steps of 256 rows of 2,048 values in 16 bits, at the 10 GB/s of a node's border."""
    ((sheet, _),) = layer_profiles(model(SMALL))
    found = layer_passes(sheet, job(seq=SEQ, batch=1), LINKED, lossy(), TrainingLayout(cp=16))
    added = 15 * SEQ / 16 * (4096 + 2 * 32) * 10 / float(LINKED.chip.hbm.bandwidth)
    assert float(found.forward["context parallel"]) == pytest.approx(15 * SEQ / 16 * 2048 * 2 / 1e10 + added)


def test_a_scan_exchanges_its_rows_for_those_of_whole_sequences():
    """Nemotron-H 8B on two: half of 2,048 rows of 18,560 inputs and 8,192 outputs in 16 bits, at 100 GB/s, in both passes.

    The convolutions of LFM2 need a few rows of their neighbours only.
    """
    scan = layer_profiles(model("nvidia/Nemotron-H-8B-Base-8K"))[0][0]
    found = layer_passes(scan, job(seq=SEQ, batch=1), RING, lossy(), TrainingLayout(cp=2))
    once = SEQ / 2 * (18_560 + 8192) * 2 / 2 / 1e11
    assert float(found.forward["context parallel"]) == pytest.approx(once)
    assert float(found.backward["context parallel"]) == pytest.approx(once)
    assert layer_profiles(model("LiquidAI/LFM2-1.2B"))[0][0].rearranged == ()


def test_experts_of_a_latent_width_send_rows_of_this_width():
    """Nemotron 3 Super: 4,096 wide, experts of 1,024; dispatch and combine of 22 of 512 experts on two chips."""
    sheet = next(p for p, _ in layer_profiles(model("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8")) if p.routed)
    found = layer_passes(sheet, job(seq=SEQ, batch=1), LINKED, lossy(), TrainingLayout(ep=2))
    needed = 1 - np.prod([(256 - i) / (512 - i) for i in range(22)])
    assert float(found.forward["expert exchange"]) == pytest.approx(2 * SEQ * needed * 1024 * 2 / 1e11, rel=1e-6)


def test_a_chip_without_units_for_eight_bit_floats_computes_in_sixteen():
    """TPU v5p has 459 TFLOP/s in both, and twice as many in int8."""
    tpu = system("tpu-v5p")
    rates = {dtype: product_rates(job(dtype=dtype), tpu, load_stack("maxtext"))[0] for dtype in ("bf16", "fp8", "int8")}
    assert rates["fp8"] == rates["bf16"] < rates["int8"]


def test_small_products_and_short_rows_take_longer_per_flop():
    """1,000 inputs to 1,000 outputs: 2 x 1,000 x 1e6 outputs that the chip could have made, at 1 PFLOP/s, are 2 us.

    Gradients of weights sum over the rows, so that their lost outputs cost 2 x 2,048 x 1e6 / 1e15 s.
    """
    of = model_of(matrix(name="q_proj", inputs=1000, outputs=1000, weights=1e6), layers=1)
    plain = passes(of, asked=job(seq=2048, batch=1), micro_batch=1)
    filled = passes(
        of, asked=job(seq=2048, batch=1), engine=replace(lossy(fill_share=0.5), fill_outputs={"bf16": 2e6}), micro_batch=1
    )
    assert float(filled.forward["matrices"] - plain.forward["matrices"]) == pytest.approx(2e-6)
    assert float(filled.backward["matrices"] - plain.backward["matrices"]) == pytest.approx(2e-6 + 2 * 2048 * 1e6 / 1e15)


def test_a_scan_passes_the_states_of_its_chunks_through_memory():
    """States of 1 MB in chunks of 128 tokens at 1 TB/s: 12 bytes of each value of 4 forward, 34 backward."""
    state = Attention(name="state", state_bytes=1e6, state_flops_per_token=1e6, heads=8)
    found = passes(model_of(matrix(name="q_proj", inputs=0, outputs=0), attention=(state,), layers=1), on=slow_memory(1e12))
    assert float(found.forward["attention"]) == pytest.approx(ROWS * 12 / 4 * 1e6 / 128 / 1e12, rel=1e-6)
    assert float(found.backward["attention"]) == pytest.approx(ROWS * 34 / 4 * 1e6 / 128 / 1e12, rel=1e-6)


def test_dualpipe_hides_expert_exchanges_behind_another_micro_batch():
    of = model_of(experts(weights=1e6, inputs=1000, outputs=1000, columns=500), layers=1)
    plain, hidden = (
        passes(of, LINKED, lossy(), asked=job(seq=SEQ, batch=1), micro_batch=1, pp=2, ep=2, schedule=schedule)
        for schedule in ("1f1b", "dualpipe")
    )
    assert float(hidden.forward["expert exchange"]) < float(plain.forward["expert exchange"])


def test_dualpipe_dispatches_in_eight_bits_and_returns_sums_in_sixteen():
    """1 B per value and a scale of 4 B per 128 values, then 2 B: 3.03 of the 4 B that bf16 sends; both hide."""
    of = model_of(experts(weights=1e7, inputs=1000, outputs=1000, columns=500), layers=1)
    wide, narrow = (
        passes(of, LINKED, lossy(), asked=job(seq=SEQ, batch=1, dtype=dtype), micro_batch=1, pp=2, ep=2, schedule="dualpipe")
        for dtype in ("bf16", "fp8")
    )
    share = float(narrow.forward["expert exchange"] / wide.forward["expert exchange"])
    assert share == pytest.approx((1 + 4 / 128 + 2) / 4)
    plain = [
        passes(of, LINKED, lossy(), asked=job(seq=SEQ, batch=1, dtype=dtype), micro_batch=1, ep=2).forward["expert exchange"]
        for dtype in ("bf16", "fp8")
    ]
    assert float(plain[0]) == float(plain[1])


def test_a_pair_of_passes_hides_the_exchanges_of_both():
    """The exchange of a pass takes longer than computing forward, and less than half of both passes: 20 of 132 send."""
    of = model_of(experts(weights=2e6, inputs=1000, outputs=1000, columns=500), layers=1)
    asked = job(seq=SEQ, batch=2)
    plain, hidden = (
        passes(of, LINKED, lossy(), asked=replace(asked, overlapped_exchange=flag), micro_batch=1, ep=2)
        for flag in (False, True)
    )
    whole, computing = float(plain.forward["expert exchange"]), float(hidden.forward["experts"])
    assert computing < whole < (computing + float(hidden.backward["experts"])) / 2
    for terms in (hidden.forward, hidden.backward):
        assert float(terms["expert exchange"]) == pytest.approx(whole * 20 / 132)
    alone = passes(of, LINKED, lossy(), asked=replace(asked, batch=1, overlapped_exchange=True), micro_batch=1, ep=2)
    assert float(alone.forward["expert exchange"]) == pytest.approx(whole)


def test_levels_of_an_exchange_run_one_after_another_or_at_the_same_time():
    traffic = Traffic(busy=(2.0, 3.0), latency=0.5)
    stack = lossy(scale_up_efficiency=0.5, scale_out_efficiency=0.6)
    assert float(collective_seconds(traffic, stack)) == pytest.approx(0.5 + 4 + 5)
    assert float(concurrent_seconds(traffic, stack)) == pytest.approx(0.5 + 5)


def test_context_parallelism_divides_rows_and_pairs():
    one, four = (passes(toy(pair_flops=SCORES), cp=cp) for cp in (1, 4))
    for name in ("matrices", "attention"):
        assert float(one.forward[name]) == pytest.approx(4 * float(four.forward[name]))


def test_experts_send_rows_to_each_chip_that_holds_one_of_theirs():
    """Two chips of 64 experts, 8 of a token: it needs the other chip but for (1/2)^8, about; dispatch and combine."""
    of = model_of(experts(weights=1e6, inputs=1000, outputs=1000, columns=500), layers=1)
    found = passes(of, LINKED, lossy(), asked=job(seq=SEQ, batch=1), micro_batch=1, ep=2)
    needed = 1 - np.prod([(32 - i) / (64 - i) for i in range(8)])
    both = 2 * SEQ * needed * 1000 * 2 / 1e11
    assert float(found.forward["expert exchange"]) == pytest.approx(both, rel=1e-6)
    assert float(found.backward["expert exchange"]) == pytest.approx(both, rel=1e-6)
    hidden = passes(of, LINKED, lossy(expert_overlap=1.0), asked=job(seq=SEQ, batch=1), micro_batch=1, ep=2)
    assert float(hidden.forward["expert exchange"]) == 0


def test_routed_products_are_those_of_active_experts_at_their_own_rate():
    of = model_of(experts(weights=1e6), layers=1)
    fast, half = passes(of), passes(of, engine=lossy(expert_efficiency=0.5))
    assert float(fast.forward["experts"]) == pytest.approx(ROWS * 8 * 2e6 / 1e15)
    assert float(half.forward["experts"]) == pytest.approx(2 * float(fast.forward["experts"]))


def test_a_product_of_few_rows_reads_its_weights():
    """1e9 weights of 2 B at 1 TB/s: 2 ms; 2 rows of arithmetic take 4 us."""
    found = passes(on=slow_memory(1e12), asked=job(seq=2, batch=1), micro_batch=1)
    assert float(found.forward["matrices"]) == pytest.approx(2e-3, rel=1e-4)
    narrow = passes(on=slow_memory(1e12), asked=job(seq=2, batch=1, dtype="fp8"), micro_batch=1)
    assert float(narrow.forward["matrices"]) == pytest.approx(1e-3, rel=1e-4)


def test_element_wise_operators_move_bytes_twice_as_many_backward():
    """Llama 3 8B: two norms (4h), two residual additions (6h), rotary q and k (2q + 2k), an activation (3f)."""
    h, q, k, f = 4096, 4096, 1024, 14336
    ((sheet, _),) = layer_profiles(model(SMALL))
    assert sheet.element_values == 4 * h + 6 * h + 2 * (q + k) + 3 * f
    found = layer_passes(sheet, job(seq=SEQ, batch=1), slow_memory(1e12), lossy(memory_efficiency=0.5), ALONE)
    once = SEQ * sheet.element_values * 2 / 1e12 / 0.5
    assert float(found.forward["element-wise"]) == pytest.approx(once)
    assert float(found.backward["element-wise"]) == pytest.approx(2 * once)


def test_launches_add_what_they_take_longer_than_the_chip():
    plain = passes()
    busy = {direction: float(plain.total(direction)) for direction in ("forward", "backward")}
    hidden, exposed_launches = (passes(engine=lossy(seconds_per_layer=seconds)) for seconds in (busy["forward"] / 3, 1.0))
    assert float(hidden.forward["launch"]) == float(hidden.backward["launch"]) == 0
    assert float(exposed_launches.total("forward")) == pytest.approx(1.0)
    assert float(exposed_launches.total("backward")) == pytest.approx(2.0)
    assert "launch" not in plain.forward


def test_the_host_waits_for_the_sizes_of_groups_of_experts():
    ((sheet, _),) = layer_profiles(model(SPARSE))
    sparse = layer_passes(sheet, TWO, CHIP, lossy(seconds_per_expert_layer=2e-3), ALONE)
    assert (float(sparse.forward["launch"]), float(sparse.backward["launch"])) == (2e-3, 4e-3)


def test_each_expert_of_a_chip_is_launched_unless_one_kernel_has_all():
    """64 experts over four ranks of two chips each: 8 experts' time on a chip, twice as long backward."""
    ((sheet, _),) = layer_profiles(model_of(experts(weights=1e6, inputs=1000, outputs=1000, columns=500), layers=1))
    x = TrainingLayout(dp=8, ep=4, etp=2)
    alone, grouped = (
        layer_passes(sheet, replace(TWO, grouped_experts=flag), LINKED, lossy(seconds_per_local_expert=1e-3), x)
        for flag in (False, True)
    )
    assert float(alone.forward["launch"]) == pytest.approx(64 / (4 * 2) * 1e-3)
    assert float(alone.backward["launch"]) == pytest.approx(2 * 64 / (4 * 2) * 1e-3)
    assert "launch" not in grouped.forward or not float(grouped.forward["launch"])
    assert [load_stack(name).grouped_experts for name in ("automodel", "torchtitan", "maxtext", "megatron", "typical")] == (
        [True] * 3 + [False] * 2
    )


def test_adapters_of_fewer_products_move_less_and_hold_less():
    """Llama 3 8B, forward: each adapter reads its input and moves four times its output."""
    ((sheet, _),) = layer_profiles(model(SMALL))
    assert sheet.adapted_widths["qkv"] == (3 * 4096, 4096 + 2 * 1024)
    assert sheet.adapted_widths["output"] == (4096, 4096)
    assert sheet.adapted_widths["mlp"] == (2 * 4096 + 14336, 2 * 14336 + 4096)
    found = layer_passes(
        sheet, job(seq=SEQ, batch=1, task="lora", adapted=("qkv",)), slow_memory(1e12), lossy(memory_efficiency=0.5), ALONE
    )
    assert float(found.forward["adapters"]) == pytest.approx(SEQ * (3 * 4096 + 4 * 6144) * 2 / 1e12 / 0.5)
    assert float(found.backward["adapters"]) == pytest.approx(SEQ * (5 * 3 * 4096 + 2 * 6144) * 2 / 1e12 / 0.5)


def test_recomputed_moe_has_its_shared_experts_once():
    _, (sheet, _) = layer_profiles(model("deepseek-ai/DeepSeek-V3"))

    def again(recompute):
        return float(layer_passes(sheet, TWO, CHIP, lossy(), TrainingLayout(recompute=recompute)).backward["recompute"])

    assert sheet.recompute_work["moe"][0] == sheet.recompute_work["shared_experts"][0] == 3 * 2 * 7168 * 2048
    assert again("moe+shared_experts+moe_act") == again("moe") > again("shared_experts")
    kept = [float(activation_bytes(sheet, TWO, TrainingLayout(recompute=r))[0]) for r in ("moe", "moe+shared_experts")]
    assert kept[0] == kept[1]


def test_recomputed_experts_run_the_whole_block_and_its_exchange_again():
    of = model_of(experts(weights=1e6, inputs=1000, outputs=1000, columns=500), layers=1)
    found = passes(of, LINKED, lossy(), asked=job(seq=SEQ, batch=1), micro_batch=1, ep=2, recompute="moe")
    moved = SEQ * 8 * (4 * 1000 + 3 * 500) * 2 / float(LINKED.chip.hbm.bandwidth)
    again = float(found.forward["experts"] + found.forward["expert exchange"]) + moved
    assert float(found.backward["recompute"]) == pytest.approx(again)


def test_an_overlapped_exchange_costs_the_multiprocessors_that_send():
    """A fused step of experts in mxfp8: 20 of 132 multiprocessors send for as long as the exchange takes."""
    of = model_of(experts(weights=1e7, inputs=1000, outputs=1000, columns=500), layers=1)
    asked = job(seq=SEQ, batch=2, dtype="mxfp8")
    plain, hidden = (
        passes(of, LINKED, lossy(), asked=replace(asked, fused_experts=fused), micro_batch=1, ep=2) for fused in (False, True)
    )
    whole = float(plain.forward["expert exchange"])
    assert whole < float(hidden.forward["experts"])
    assert float(hidden.forward["expert exchange"]) == pytest.approx(whole * 20 / 132)


def test_attention_and_head_of_a_fused_step_in_eight_bits():
    of = toy(pair_flops=SCORES)
    asked = job(seq=SEQ, batch=2, dtype="mxfp8", fused_experts=True)
    wide, narrow = (passes(of, asked=replace(asked, narrow_attention=flag)) for flag in (False, True))
    assert float(wide.forward["attention"] / narrow.forward["attention"]) == pytest.approx(1.2 / 0.74)
    plain = passes(of, asked=replace(asked, fused_experts=False, narrow_attention=True))
    assert float(plain.forward["attention"]) == float(wide.forward["attention"])
    stem = Stem(embedding=0, head=1e8, head_flops=2e8, shared=False, vocabulary=0, width=1000)
    b200 = system("hgx-b200")
    seconds = [float(stem_passes(stem, replace(asked, narrow_head=flag), b200, IDEAL, ALONE)[0]) for flag in (False, True)]
    assert seconds[0] == pytest.approx(2 * seconds[1], rel=0.02)


@pytest.mark.parametrize("recompute", ["full", "reversible"])
def test_full_recomputation_is_one_more_forward_pass(recompute):
    """Products and pairs alike: 4/3 of the FLOPs of a step without attention."""
    found = passes(recompute=recompute)
    assert float(found.backward["recompute"]) == pytest.approx(float(passes().total("forward")))
    assert float(found.total("forward") + found.total("backward")) == pytest.approx(4 * 16.384e-3)


def test_modules_are_computed_again_at_their_own_cost():
    """Llama 3 8B: gate, up and down are 6 h f FLOPs a token; selective is core attention; parts add up."""
    h, f = 4096, 14336
    ((sheet, _),) = layer_profiles(model(SMALL))

    def again(recompute):
        x = TrainingLayout(recompute=recompute)
        return float(layer_passes(sheet, job(seq=SEQ, batch=1), CHIP, IDEAL, x).backward.get("recompute", 0.0))

    attention = SEQ * (SEQ + 1) / 2 * 4 * 4096 / 1e15
    assert again("none") == 0
    assert again("mlp") == pytest.approx(SEQ * 6 * h * f / 1e15)
    assert again("selective") == again("attention") == pytest.approx(attention)
    assert again("mlp+attention") == pytest.approx(again("mlp") + again("attention"))
    products = SEQ * (2 * (2 * h * h + 2 * h * 1024) + 6 * h * f) / 1e15
    assert again("alternate") == pytest.approx(products / 2, rel=1e-6)
    assert again("full") == pytest.approx(products + attention, rel=1e-6)


def test_words_for_recomputation():
    assert recomputed_modules("none") == ()
    assert recomputed_modules("full") == MODULES
    assert recomputed_modules("selective") == ("attention",)
    assert recomputed_modules("norms+moe_act") == ("norms", "moe_act")
    assert recomputed_modules("moe+norms+moe_act+shared_experts") == ("moe", "norms")


@each(
    "dtype, peak, constant",
    [
        ("bf16", 989e12, "compute_efficiency"),
        ("fp8", 1979e12, "eight_bit_efficiency"),
        ("mxfp8", 1979e12, "block_efficiency"),
    ],
)
def test_rates_of_products_by_format(dtype, peak, constant):
    """Data sheet of the H100 SXM: 989 TFLOP/s dense in bf16, 1,979 in fp8."""
    h100 = system()
    fast, wide = product_rates(job(dtype=dtype), h100, lossy())
    assert float(fast) == pytest.approx(peak, rel=2e-3)
    assert float(wide) == pytest.approx(989e12, rel=2e-3)
    slower, _ = product_rates(job(dtype=dtype), h100, lossy(**{constant: 0.5}))
    assert float(slower) == pytest.approx(float(fast) / 2)


@each("dtype", ["bf16", "fp8", "int8", "nvfp4"])
def test_arrays_of_peak_rates_give_the_steps_of_each_rate(dtype):
    """An 8-bit rate at or below that of 16 bits is no unit of its own, whatever the other elements are."""
    on, kind = system("hgx-b200"), {"nvfp4": "fp4"}.get(dtype, dtype)
    asked, layout, stack = job(seq=SEQ, batch=8, dtype=dtype), TrainingLayout(tp=2, dp=4), load_stack("megatron")

    def seconds(rate):
        chip = replace(on.chip, peak={**on.chip.peak, kind: rate})
        return step_seconds(model(SMALL), asked, replace(on, chip=chip), stack, layout).total

    rates = np.array([1e15, 2e15, 5e15, 9e15])
    together = seconds(rates)
    assert together == pytest.approx([float(seconds(rate)) for rate in rates], rel=1e-12)
    assert together[0] > together[-1]


def test_four_bits_have_a_share_of_their_own():
    b200 = system("hgx-b200")
    fast, _ = product_rates(job(dtype="nvfp4"), b200, lossy())
    half, wide = product_rates(job(dtype="nvfp4"), b200, lossy(four_bit_efficiency=0.5))
    assert float(half) == pytest.approx(float(fast) / 2)
    assert float(fast) == pytest.approx(4 * float(wide), rel=0.02)


def test_chips_below_a_watt_for_a_tflop_sustain_less():
    """H100: 700 W for 989 TFLOP/s; A100: 400 W for 312, which is enough."""
    half = lossy(power_exponent=0.5)
    assert float(power_limit_factor(system(), half)) == pytest.approx((700 / 989.4) ** 0.5, rel=2e-3)
    assert float(power_limit_factor(system("hgx-a100"), half)) == 1
    assert float(power_limit_factor(system(), IDEAL)) == 1
    assert float(power_limit_factor(CHIP, half)) == 1  # whose power is not known


def test_the_head_is_a_product_of_every_token_and_twelve_bytes_a_logit():
    stem = Stem(embedding=0, head=1e8, head_flops=2e8, shared=False, vocabulary=100_000, width=1000)
    forward, backward = stem_passes(stem, job(seq=SEQ, batch=1), slow_memory(1e12), IDEAL, TrainingLayout(tp=2))
    product, loss = SEQ * 1e8 / 1e15, SEQ * 100_000 / 2 * 12 / 1e12
    assert float(forward) == pytest.approx(product + loss / 3)
    assert float(backward) == pytest.approx(2 * product + loss * 2 / 3)
