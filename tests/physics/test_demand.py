"""What a pass asks of a chip, by hand: rows, FLOPs and bytes of each kind of operator and mixer, and kernels launched."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

import steptime as st
from steptime.hardware.number_formats import number_format
from steptime.models.model import Attention, Layer
from steptime.physics.attention_kernels import load_kernels
from steptime.physics.engine import load_engine, with_constants
from steptime.physics.expert_kernels import ExpertKernel
from steptime.physics.gemm_work import COLUMNS, collect_products, demand_row, products_demand, stacked_products
from steptime.physics.layout import Layout
from steptime.physics.op_work import (
    Pass,
    Work,
    attention_demands,
    build_work,
    busiest,
    chip_factor,
    kernel_counts,
    ledger,
    routed_demand,
)
from tests.conftest import each, engine, experts, machine, matrix, model_of

NOTHING = {"batch": 0, "context": 0, "query": 1, "prompts": 0, "tokens": 0, "prefix": 0}


def work(layout=None, **given) -> Work:
    return build_work({name: np.asarray(value) for name, value in (NOTHING | given).items()}, layout or Layout())


@each(
    "given, layout, expected",
    [
        (
            {"batch": 10, "context": 100},
            Layout(),
            {"sequences": 10, "decode": 10, "everywhere": 10, "prefill": 0, "logits": 10},
        ),
        ({"batch": 10, "query": 3}, Layout(), {"sequences": 10, "decode": 30, "everywhere": 30, "logits": 30}),
        ({"batch": 10}, Layout(dp=4), {"sequences": 3, "everywhere": 10}),  # the busiest group has three
        ({"batch": 12, "query": 2}, Layout(dp=2, microbatches=3), {"sequences": 2, "decode": 4, "everywhere": 8}),
        ({"batch": 8}, Layout(dp=4), {"sequences": 2}),
        ({"prompts": 6, "tokens": 100, "prefix": 7}, Layout(), {"prompts": 6, "prefill": 600, "logits": 6, "prefix": 7}),
        ({"prompts": 6, "tokens": 100}, Layout(dp=4), {"prompts": 2, "prefill": 200, "everywhere": 600}),
        ({"prompts": 6, "tokens": 100}, Layout(dp=2, microbatches=2), {"prompts": 1.5, "prefill": 150, "everywhere": 300}),
        ({"batch": 4, "query": 2, "prompts": 1, "tokens": 50}, Layout(), {"decode": 8, "everywhere": 58, "logits": 9}),
    ],
)
def test_rows_of_a_micro_batch(given, layout, expected):
    found = work(layout, **given)
    logits = Pass(found, machine(), layout, engine()).logits
    assert {name: float(logits if name == "logits" else getattr(found, name)) for name in expected} == expected


@each(
    "prompts, groups, most",
    [
        (0, 4, 0),
        (0.25, 4, 1),  # of steps that have any
        (1.75, 4, 1),
        (4, 4, 1),
        (4.25, 4, 1.25),  # a quarter of the steps have a fifth, and with it two in a group
        (8.5, 4, 2.5),
        (1.04, 1, 1.04),
        (9, 8, 2),
    ],
)
def test_prompts_of_the_busiest_group(prompts, groups, most):
    """A mean between two whole numbers is the mean of theirs: 1.04 prompts in one group are not two."""
    assert busiest(prompts, groups) == pytest.approx(most)
    found = work(Layout(dp=groups, ep=groups), prompts=prompts, tokens=100)
    assert (found.prompts, found.prefill) == (pytest.approx(most), pytest.approx(100 * most))
    assert found.everywhere == pytest.approx(100 * prompts)


@each(
    "batch, layout, most",
    [
        (0, Layout(), 0),
        (2.5, Layout(), 2.5),
        (3.0000000000000004, Layout(), 3),
        (9, Layout(dp=8, ep=8), 2),
        (8.5, Layout(dp=8, ep=8), 1.5),
        (8.5, Layout(dp=2, ep=2, microbatches=2), 2.5),
        (10.5, Layout(dp=2, ep=2, microbatches=2), 3),
        (0.25, Layout(), 1),
    ],
)
def test_sequences_of_the_busiest_group_and_micro_batch(batch, layout, most):
    """Whole sequences are dealt out; a mean number of them is between its whole neighbours, and a step has at least one."""
    assert work(layout, batch=batch).decode == pytest.approx(most, abs=1e-9)
    assert work(layout, batch=batch).everywhere == pytest.approx(batch / layout.microbatches)


def demand(op, layout=None, system=None, on=None, **given):
    layout = layout or Layout()
    of = Pass(work(layout, **given), system or machine(), layout, on or engine())
    if op.rows == "routed":
        return routed_demand(op, of)
    chip = of.system.chip
    asked, axes = products_demand(stacked_products([(op, 1)], chip.vendor, chip.peak, of.engine.arithmetic), of)
    return demand_row(asked, 0, axes)


@each(
    "op, given, layout, flops, bytes_",
    [
        (matrix(), {"batch": 4}, Layout(), 8e9, 1e9),
        (matrix(), {"batch": 4, "query": 3}, Layout(), 24e9, 1e9),
        (matrix(), {"batch": 4}, Layout(tp=2, cp=2), 2e9, 0.25e9),
        (matrix(stored="bf16"), {"batch": 4}, Layout(), 8e9, 2e9),
        (matrix(), {"batch": 4, "prompts": 2, "tokens": 8}, Layout(), 40e9, 1e9),
        (matrix(rows="outputs"), {"batch": 4, "prompts": 2, "tokens": 8}, Layout(), 12e9, 1e9),  # the last of each prompt
        (matrix(split="replicated"), {"batch": 4}, Layout(tp=4), 8e9, 1e9),
        (matrix(rows="lookup", outputs=1000), {"batch": 4}, Layout(), 0, 0),
    ],
)
def test_matrices(op, given, layout, flops, bytes_):
    found = demand(op, layout, **given)
    assert (found.flops, found.weights) == (pytest.approx(flops), pytest.approx(bytes_))
    assert (found.peak, found.kv, found.activations) == (2e15, 0, 0)


def largest(mean, variance, count, skew=1.0):
    """The busiest of `count` by hand: Blom's score of the largest, and the next term of Cornish and Fisher."""
    if count == 1:
        return mean
    score = NormalDist().inv_cdf((count - 0.375) / (count + 0.25))
    return mean + score * variance**0.5 + (score**2 - 0.75) / 6 * skew * mean / (mean + 0.5)


ALONE = 56 / 63  # the 8 experts of a token differ from one another


@each(
    "layout, batch, touched, rows",
    [
        (Layout(), 1, 8, 8),
        (Layout(), 96, 64 * (1 - 0.875**96), 768),  # 8 of 64 each
        (Layout(dp=8, ep=8), 96, 8, largest(96, 96 * ALONE, 8)),
        (
            Layout(dp=8, ep=8),
            4,
            largest(8 * (1 - 0.875**4), 8 * 0.875**4 * (1 - 0.875**4), 8, 2 * 0.875**4 - 1),
            largest(4, 4 * ALONE, 8),
        ),
        (Layout(dp=8, ep=8, redundant_experts=8), 96, 9, largest(96, 96 * ALONE, 8)),  # 9 slots, 8 of 72 each
        (Layout(dp=8, ep=8), 1, largest(1, 0.875, 8, 0.75), largest(1, ALONE, 8)),
        (Layout(dp=32, ep=32), 1, largest(0.25, 0.25 * 0.875, 32, 0.75), largest(0.25, 0.25 * ALONE, 32)),
        (Layout(tp=2, dp=4, ep=4), 96, 16 / 2, largest(192, 192 * ALONE, 4) / 2),  # two chips share an expert
    ],
)
def test_routed_experts(layout, batch, touched, rows):
    """64 experts of 1e8 weights, 8 a token: those of the busiest chip, which are more than the mean."""
    found = demand(experts(), layout, batch=batch)
    assert found.weights == pytest.approx(touched * 1e8, rel=1e-5)
    assert found.flops == pytest.approx(rows * 2e8)


def test_experts_of_a_fraction_of_a_token_touch_a_fraction_of_one():
    """Half a prompt token a micro-batch, on 32 ways: the busiest chip has at most the half."""
    found = demand(experts(), Layout(dp=32, ep=32, microbatches=2), prompts=1, tokens=1)
    assert found.weights == pytest.approx(0.5 * 1e8)


def test_constants_of_experts():
    """64 experts, 8 a token, 96 tokens: 64 x (1 - (1 + 96 x 8 / 64)^-1) = 64 x 12/13 are hit at an evenness of 1."""
    given = {"batch": 96}
    plain = demand(experts(), **given)
    assert demand(experts(), on=engine(expert_evenness=1.0), **given).weights == pytest.approx(64 * 12 / 13 * 1e8)
    assert demand(experts(), on=engine(expert_imbalance=1.5), **given) == plain  # of one chip
    uneven, even = (demand(experts(), Layout(dp=2, ep=2), on=engine(expert_imbalance=x), **given) for x in (1.5, 1.0))
    assert uneven.flops == pytest.approx(1.5 * 384 * 2e8)
    assert even == demand(experts(), Layout(dp=2, ep=2), **given)  # what chance alone gives, and no less
    assert uneven.weights == even.weights
    slow = engine(compute_efficiency=0.1, memory_efficiency=0.1, activation_traffic=1.0, fill_bytes=300.0)
    assert demand(experts(), on=slow, **given) == plain  # constants of dense products


def test_constants_of_matrices():
    slow = engine(expert_time=10.0, compute_efficiency=0.5, memory_efficiency=0.8)
    found = demand(matrix(), on=slow, batch=1)
    assert (found.efficiency, found.memory_efficiency) == (0.5, 0.8)
    narrow = engine(memory_efficiency=0.8, narrow_efficiency=0.75)
    assert demand(matrix(stored="mxfp4"), on=narrow, batch=1).memory_efficiency == pytest.approx(0.6)
    assert demand(matrix(stored="fp8"), on=narrow, batch=1).memory_efficiency == 0.8
    five = replace(matrix(), format=replace(number_format("fp4"), bytes=5 / 8))  # 5 bits are not fewer than 5
    assert demand(five, on=narrow, batch=1).memory_efficiency == 0.8


@each(
    "stored, rate, reached",
    [
        ("int4", 2e12, 2e12 * 0.515625 / 4e12),  # 2e12 weights of 4.125 bits a second, of 4 TB/s
        ("int4", 1e13, 0.5),  # more than memory delivers
        ("nvfp4", 2e12, 0.5),  # which the chip multiplies as they are
        ("fp8", 2e12, 0.5),
        ("bf16", 2e12, 0.5),
    ],
)
def test_weights_are_unpacked_no_faster_than_the_chip_can(stored, rate, reached):
    system = machine()
    system = replace(system, chip=replace(system.chip, peak={"fp4": 4e15, "fp8": 2e15, "bf16": 1e15}))
    slow = engine(memory_efficiency=0.5, unpack_rate=rate)
    assert demand(matrix(stored=stored), system=system, on=slow, batch=1).memory_efficiency == pytest.approx(reached)


@each("stored, reached", [("nvfp4", 0.3), ("fp8", 0.5), ("int4", 0.5)])
def test_products_of_four_bits_reach_less_of_their_peak(stored, reached):
    """0.6 of 0.5, where the chip multiplies 4-bit numbers as they are; on a chip without, 0.5 of what it does instead."""
    system, slow = machine(), engine(compute_efficiency=0.5, fp4_efficiency=0.6)
    with_fp4, without = (
        replace(system, chip=replace(system.chip, peak=peak))
        for peak in ({"fp4": 4e15, "fp8": 2e15, "bf16": 1e15}, {"fp8": 2e15, "bf16": 1e15})
    )
    assert demand(matrix(stored=stored), system=with_fp4, on=slow, batch=1).efficiency == pytest.approx(reached)
    assert demand(matrix(stored=stored), system=without, on=slow, batch=1).efficiency == pytest.approx(0.5)


def test_activations_of_an_operator():
    """12 rows of 1,000 values in and 4,000 out in 16 bits, half of it through memory; outputs are divided, inputs are not."""
    half, op = engine(activation_traffic=0.5), matrix(inputs=1000, outputs=4000)
    given = {"batch": 4, "query": 3}
    assert demand(op, **given).activations == 0
    assert demand(op, on=half, **given).activations == pytest.approx(12 * 5000 * 2 / 2)
    assert demand(op, Layout(tp=4), on=half, **given).activations == pytest.approx(12 * 2000 * 2 / 2)
    assert demand(replace(op, name="down_proj"), Layout(tp=4), on=half, **given).activations == pytest.approx(12 * 4250 * 2 / 2)
    looked = matrix(rows="lookup", outputs=1000)
    given |= {"prompts": 1, "tokens": 8}
    assert demand(looked, on=half, **given).activations == pytest.approx(20 * 1000 * 2 / 2)
    assert demand(looked, Layout(tp=4), on=half, **given).activations == pytest.approx(20 * 1000 * 2 / 4 / 2)


@each("stored", ["fp8", "bf16", "nvfp4", "mxfp4"])
def test_calls_of_expert_kernels_are_not_counted_as_kernels(stored):
    found = kernel_counts(model_of(experts(stored=stored)), "NVIDIA", ("fp4", "fp6", "fp8", "bf16"))
    assert (found["kernel"], found["quantised_kernel"], found["expert_layer"]) == (0, 0, 10)


def test_products_of_eight_bits_reach_less_of_their_peak_with_or_without_block_scales():
    """0.7 of 0.5; 0.8 with block scales where the chip has 4-bit arithmetic; none of it where products run in 16 bits."""
    system, slow = machine(), engine(compute_efficiency=0.5, eight_bit_efficiency=0.7, block_efficiency=0.8)
    chips = {
        four: replace(system, chip=replace(system.chip, peak={"fp8": 2e15, "bf16": 1e15} | ({"fp4": 4e15} if four else {})))
        for four in (False, True)
    }
    for stored, four, share in (("fp8", True, 0.35), ("fp8", False, 0.35), ("bf16", True, 0.5)):
        assert demand(matrix(stored=stored), system=chips[four], on=slow, batch=1).efficiency == pytest.approx(share)
    old = replace(system, chip=replace(system.chip, peak={"bf16": 1e15}))
    assert demand(matrix(stored="fp8"), system=old, on=slow, batch=1).efficiency == pytest.approx(0.5)


def test_formats_of_six_bits_run_in_four_where_amd_has_no_six():
    system = machine()
    four = replace(system, chip=replace(system.chip, vendor="AMD", peak={"fp4": 4e15, "fp8": 2e15, "bf16": 1e15}))
    slow = engine(compute_efficiency=0.5, fp4_efficiency=0.6)
    found = demand(matrix(stored="mxfp4"), system=four, on=slow, batch=1)
    assert (found.peak, found.efficiency) == (4e15, pytest.approx(0.3))


def test_short_sums_reach_less_of_the_peak():
    """Sums of 1,000 values of 2 bytes with 500 bytes to fill: 4/5. Divided by two where a block's second product is, 2/3."""
    slow, given = engine(compute_efficiency=0.5, fill_bytes=500.0), {"batch": 1}
    first = matrix(weights=4e6, inputs=1000, outputs=4000, stored="bf16")
    assert demand(first, on=slow, **given).efficiency == pytest.approx(0.5 * 4 / 5)
    assert demand(first, Layout(tp=2), on=slow, **given).efficiency == pytest.approx(0.5 * 4 / 5)
    second = replace(first, name="down_proj")
    assert demand(second, Layout(tp=2), on=slow, **given).efficiency == pytest.approx(0.5 * 2 / 3)
    eight, unknown = replace(first, format=number_format("fp8")), replace(first, outputs=8000)  # no one product
    assert demand(eight, on=slow, **given).efficiency == pytest.approx(0.5 * 2 / 3)
    assert demand(unknown, on=slow, **given).efficiency == pytest.approx(0.5)


def test_many_products_at_once_ask_for_what_each_does_alone():
    """Whole, divided and second of a block, narrow, on logits, looked up; points of two axes, constants of a third."""
    real = engine(
        compute_efficiency=np.array([0.5, 0.6, 0.7]).reshape(3, 1, 1), fill_bytes=300.0, activation_traffic=0.5,
        narrow_efficiency=0.8, unpack_rate=1e12,
    )  # fmt: skip
    ops = [
        matrix(weights=4e6, inputs=1000, outputs=4000),
        matrix(weights=4e6, inputs=4000, outputs=1000, stored="bf16", split="replicated"),
        replace(matrix(weights=8e6, inputs=2000, outputs=4000), name="down_proj"),
        matrix(stored="int4", inputs=10, outputs=20, split_limit=3),
        matrix(rows="outputs", inputs=100, outputs=100),
        matrix(rows="lookup", outputs=1000),
    ]
    layout, given = Layout(tp=np.array([[1], [2], [8]])), {"batch": np.array([1, 8, 64, 512]), "prompts": 1, "tokens": 30}
    of = Pass(work(layout, **given), machine(), layout, real)
    every, axes = products_demand(stacked_products([(op, 2) for op in ops], "", of.system.chip.peak, ()), of)
    assert axes == 3
    for place, op in enumerate(ops):
        alone, _ = products_demand(stacked_products([(op, 2)], "", of.system.chip.peak, ()), of)
        for name in ("flops", "peak", "weights", "activations", "efficiency", "memory_efficiency"):
            left, right = (getattr(demand_row(one, row, 3), name) for one, row in ((every, place), (alone, 0)))
            assert np.broadcast_to(left, (3, 3, 4)) == pytest.approx(np.broadcast_to(right, (3, 3, 4)), rel=1e-12), (
                op.name,
                name,
            )


def test_products_measured_alone_are_as_long_as_their_sums_say():
    """DeepGEMM on H800 (README of 2025-02, 4,096 rows): TFLOP/s by sums of FP8 values, within 4 % with writing of outputs."""
    measured = {512: 590, 1536: 990, 2048: 1025, 7168: 1304, 16384: 1358}
    filled = {k: 1418 / (1 + (300 + 419) / k) for k in measured}
    assert filled == pytest.approx(measured, rel=0.03)


def test_arithmetic_in_the_rate_of_the_format():
    system = machine()
    two = replace(system, chip=replace(system.chip, peak={"bf16": 1e15, "fp8": 2e15}))
    assert demand(matrix(stored="fp8"), system=two, batch=1).peak == 2e15
    assert demand(matrix(stored="bf16"), system=two, batch=1).peak == 1e15


KV = Attention(
    name="kv", kv_bytes=1000.0, kv_shards=4, heads=8, flops_per_pair_decode=30.0, flops_per_pair_prefill=50.0
)  # fmt: skip
STATE = Attention(name="state", state_bytes=600.0, state_flops_per_token=70.0, heads=4)


def mixer(a, layout=None, on=None, **given):
    layout = layout or Layout()
    return attention_demands(a, work(layout, **given), machine(), layout, on or engine())


DECODE = {"batch": 6, "context": 100}


@each(
    "a, given, layout, flops, bytes_",
    [
        (KV, DECODE, Layout(), 6 * 30 * 100, 6 * 100_000),
        (KV, DECODE | {"query": 3}, Layout(), 18 * 30 * 100, 6 * 100_000),  # the cache is read once for three
        (KV, DECODE, Layout(tp=2), 6 * 30 * 100 / 2, 6 * 50_000),
        (KV, DECODE, Layout(tp=8), 6 * 30 * 100 / 8, 6 * 25_000),  # four heads are held twice
        (KV, DECODE, Layout(tp=2, cp=2), 6 * 30 * 100 / 4, 6 * 25_000),
        (KV, DECODE, Layout(dp=2, ep=2), 3 * 30 * 100, 3 * 100_000),
        (replace(KV, stride=4.0), DECODE, Layout(), 6 * 30 * 25, 6 * 25_000),
        (replace(KV, window=40.0), DECODE, Layout(), 6 * 30 * 40, 6 * 40_000),
        (replace(KV, selected=10.0), DECODE, Layout(), 6 * 30 * 10, 6 * 10_000),
        (STATE, DECODE, Layout(), 6 * 70, 6 * 2 * 600),  # read and written
        (STATE, DECODE | {"query": 3}, Layout(), 18 * 70, 6 * 2 * 600),
        (STATE, DECODE, Layout(tp=2), 6 * 70 / 2, 6 * 2 * 300),
        (STATE, DECODE, Layout(tp=8), 6 * 70 / 8, 6 * 2 * 150),  # four heads
        (STATE, DECODE, Layout(tp=2, cp=2), 6 * 70 / 2, 6 * 2 * 300),  # a state is not divided by context
    ],
)
def test_mixers_in_decode(a, given, layout, flops, bytes_):
    found = mixer(a, layout, **given)
    assert set(found) == {"decode"}
    assert (found["decode"].flops, found["decode"].kv) == (pytest.approx(flops), pytest.approx(bytes_))
    assert found["decode"].weights == 0


PREFILL = {"prompts": 2, "tokens": 10}  # 55 pairs each; after 100 cached tokens 1,055


@each(
    "a, given, layout, flops, bytes_",
    [
        (KV, PREFILL, Layout(), 2 * 50 * 55, 2 * 10_000),
        (KV, PREFILL | {"prefix": 100}, Layout(), 2 * 50 * 1055, 2 * 110_000),
        (KV, PREFILL, Layout(tp=8), 2 * 50 * 55 / 8, 2 * 2_500),
        (KV, PREFILL, Layout(tp=2, cp=2), 2 * 50 * 55 / 4, 2 * 2_500),
        (replace(KV, stride=5.0), PREFILL | {"prefix": 100}, Layout(), 2 * 50 * 211, 2 * 22_000),
        # a window of 40 after 100 tokens: 40 pairs a token, 40 of the cache and the ten new ones
        (replace(KV, window=40.0), PREFILL | {"prefix": 100}, Layout(), 2 * 50 * 400, 2 * 50_000),
        (replace(KV, window=40.0), PREFILL | {"prefix": 20}, Layout(), 2 * 50 * 255, 2 * 30_000),
        (replace(KV, window=8.0, stride=5.0), PREFILL | {"prefix": 100}, Layout(), 2 * 50 * 80, 2 * 10_000),
        (replace(KV, expand_flops=900.0), PREFILL | {"prefix": 100}, Layout(), 2 * (50 * 1055 + 900 * 100), 2 * 110_000),
        (replace(KV, expand_flops=900.0), PREFILL, Layout(), 2 * 50 * 55, 2 * 10_000),  # no cached latents to expand
        (STATE, PREFILL, Layout(), 2 * 70 * 10, 2 * 2 * 600),
        (STATE, PREFILL, Layout(tp=8), 2 * 70 * 10 / 8, 2 * 2 * 150),
        (KV, PREFILL | {"prefix": 100}, Layout(dp=2, ep=2), 50 * 1055, 110_000),
    ],
)
def test_mixers_in_prefill(a, given, layout, flops, bytes_):
    found = mixer(a, layout, **given)
    assert set(found) == {"prefill"}
    assert (found["prefill"].flops, found["prefill"].kv) == (pytest.approx(flops), pytest.approx(bytes_))


@each("batch, busy", [(1, 1 / 8), (6, 6 / 8), (8, 1.0), (8.25, 8.25 / 10), (9, 9 / 16), (20, 20 / 24), (64, 1.0)])
def test_parts_of_a_chip_idle_where_each_reads_a_whole_context(batch, busy):
    """Eight parts, a sequence each at a time: nine sequences take two rounds. Prompts and grouped heads are split as ever."""
    latent = replace(KV, expand_flops=900.0)
    whole, split = (
        mixer(latent, on=engine(latent_contexts=parts), batch=batch, context=100, **PREFILL) for parts in (8, math.inf)
    )
    assert whole["decode"].efficiency == pytest.approx(busy)
    assert whole["decode"].memory_efficiency == pytest.approx(busy)
    assert (whole["decode"].flops, whole["decode"].kv) == (split["decode"].flops, split["decode"].kv)
    assert whole["prefill"] == split["prefill"]
    assert split["decode"].memory_efficiency == 1
    assert mixer(KV, on=engine(latent_contexts=8), batch=batch, context=100) == mixer(KV, batch=batch, context=100)


def test_attention_takes_as_long_for_one_sequence_as_for_as_many_as_there_are_parts():
    kernel = engine(latent_contexts=76)
    took = [
        float(st.decode_step("deepseek-v3", "gb200-nvl72", batch=n, context=8704, engine=kernel).terms["attention"])
        for n in (1, 40, 76, 77, 152)
    ]
    assert took[1] == pytest.approx(took[0])
    assert took[2] == pytest.approx(took[0])
    assert took[3] == pytest.approx(2 * took[0])
    assert took[4] == pytest.approx(2 * took[0])


def test_mixers_decode_and_read_prompts_in_one_step():
    found = mixer(KV, **DECODE | PREFILL)
    assert found["decode"].flops == 6 * 30 * 100
    assert found["prefill"].flops == 2 * 50 * 55
    assert {one.efficiency for one in found.values()} == {1.0}
    assert {one.peak for one in found.values()} == {2e15}


def test_no_engine_reads_faster_than_the_data_sheet():
    fast = machine(reached={"memory": 0.9625})
    engines = [engine(chip_departure=1.0, memory_efficiency=share) for share in (0.6, 0.9)]
    found = [demand(matrix(), system=fast, on=one, batch=1).memory_efficiency for one in engines]
    assert found == [pytest.approx(0.75), 1.0]


def test_a_chip_departs_from_the_usual_share_of_its_data_sheet():
    """Usual are 0.77 of bandwidth and 0.74 of arithmetic."""
    chip = machine(reached={"memory": 0.385, "compute": 1.48})
    assert chip_factor(chip, "memory", engine(chip_departure=1.0)) == pytest.approx(0.5)
    assert chip_factor(chip, "compute", engine(chip_departure=1.0)) == pytest.approx(2)
    assert chip_factor(chip, "memory", engine(chip_departure=0.5)) == pytest.approx(0.5**0.5)
    assert chip_factor(chip, "memory", engine()) == 1
    assert chip_factor(machine(), "memory", engine(chip_departure=1.0)) == 1
    found = demand(matrix(), system=chip, on=engine(chip_departure=1.0, compute_efficiency=0.5, memory_efficiency=0.8), batch=1)
    assert (found.efficiency, found.memory_efficiency) == (pytest.approx(1.0), pytest.approx(0.4))


FULL = Layer(
    name="full",
    ops=(
        matrix(name="q", term="projections", inputs=10),
        matrix(name="k", term="projections", inputs=10),  # shares its input with q: one kernel
        matrix(name="o", term="projections", inputs=20, stored="bf16"),
        experts(inputs=10),
        matrix(name="norm", flops_per_weight=0.0, inputs=30),
        matrix(name="stored", rows="none", inputs=40),
    ),
    attention=(replace(KV, expand_flops=1.0, selected=5.0), KV),
)
RECURRENT = Layer(name="recurrent", ops=(matrix(inputs=10),), attention=(STATE,))


def test_kernel_engine_a_pass():
    """Three layers of the one kind, two of the other: q with k and o are two kernels, and the experts' are not among them."""
    model = replace(model_of(), layers=((FULL, 3), (RECURRENT, 2)))
    assert kernel_counts(model, peak=("fp8", "bf16")) == {
        "layer": 5,
        "kernel": 3 * 2 + 2,
        "quantised_kernel": 3 * 1 + 2,
        "expert_layer": 3,
        "latent_layer": 3,
        "state_layer": 2,
        "selected_layer": 3,
    }


def test_equal_operators_are_one_of_their_sum():
    """q and k of three layers: six of 1e9 weights; o, in 16 bits, is one of its own, and so are experts."""
    found = ledger(replace(model_of(), layers=((FULL, 3),)), merged=True)
    by_name = {op.name: op for op, _ in found.layers}
    assert by_name["q"].weights == 6e9
    assert by_name["q"].flops_per_row == 12e9
    assert by_name["q"].inputs == 60
    assert by_name["o"].weights == 3e9
    assert by_name["experts"].weights == 3e8
    assert set(by_name) == {"q", "o", "experts", "norm", "stored"}
    assert found.mixers == ((FULL.attention[0], 3), (KV, 3))
    apart = ledger(replace(model_of(), layers=((FULL, 3),)), merged=False)
    assert [op.name for op, _ in apart.layers] == ["q", "k", "o", "experts", "norm", "stored"]
    assert [op.inputs for op, _ in apart.layers] == [30, 30, 60, 30, 90, 120]
    assert [n for _, n in apart.layers] == [3] * 6
    assert {op.name: n for op, n in found.layers} == {"q": 6, "o": 3, "experts": 3, "norm": 3, "stored": 3}


def test_an_operator_without_weights_is_one_of_its_own():
    """A scale: no weights, some FLOPs."""
    scale = replace(matrix(name="scale"), weights=0.0, flops_per_row=7.0)
    ((one, times), (other, _)) = ledger(model_of(matrix(), scale, layers=2), merged=True).layers
    assert (one.weights, times, other.weights, other.flops_per_row) == (2e9, 2, 0, 14)


def test_outputs_of_merged_operators_add_up():
    two = Layer(name="two", ops=(matrix(name="a", outputs=5), matrix(name="b", outputs=7)))
    ((one, times),) = ledger(replace(model_of(), layers=((two, 3),)), merged=True).layers
    assert (one.outputs, times) == (36, 6)


@each("merged", [True, False])
@each("name", ["deepseek-v3", "gpt-oss-20b", "gemma-3-27b"])
def test_a_ledger_holds_all_weights_of_the_layers(name, merged):
    model = st.load_model(name)
    total = sum(n * op.total_weights for layer, n in model.layers for op in layer.ops)
    assert sum(op.total_weights for op, _ in ledger(model, merged=merged).layers) == pytest.approx(total)


def test_operators_of_one_ratio_of_flops_to_weights_are_one():
    """2 FLOPs a weight each, whatever their sizes; not where the same FLOPs go with other weights, which may stream."""
    alike = ledger(model_of(matrix(name="a"), matrix(name="b", weights=3e9), layers=1), merged=True).layers
    assert [(op.weights, op.flops_per_row, n) for op, n in alike] == [(4e9, 8e9, 2)]
    apart = ledger(
        model_of(matrix(name="a"), matrix(name="b", weights=2e9, flops_per_weight=1.0), layers=1), merged=True
    ).layers
    assert [(op.weights, op.flops_per_row, n) for op, n in apart] == [(1e9, 2e9, 1), (2e9, 2e9, 1)]


def test_matrices_of_one_format_are_one_whatever_the_bytes_of_their_scales():
    """1e9 weights of 1.0002 bytes and 3e9 of 1.0004: 4e9 of the mean, 1.00035."""
    few, many = (replace(number_format("fp8"), bytes=size) for size in (1.0002, 1.0004))
    model = model_of(replace(matrix(name="a"), format=few), replace(matrix(name="b", weights=3e9), format=many), layers=1)
    ((op, n),) = ledger(model, merged=True).layers
    assert (op.weights, op.format.bytes, n) == (4e9, pytest.approx(1.00035, rel=1e-12), 2)
    assert [op.format.bytes for op, _ in ledger(model, merged=False).layers] == [1.0002, 1.0004]


def test_products_of_one_width_run_apart_where_one_takes_what_the_other_makes():
    """Llama: queries, keys and values together, their output, gate and up together, down; Qwen3 two norms of heads more."""
    llama, qwen = (kernel_counts(st.load_model(name))["kernel"] for name in ("llama-3.1-70b", "qwen3-32b"))
    assert (llama, qwen) == (80 * 4, 64 * (4 + 2))


def test_tokens_of_all_ranks_pass_each_chip_unless_ranks_exchange_them():
    """2 of 8 experts on 4 chips: a chip receives 1 - (6/8)(5/7) = 13/28 of the tokens where ranks exchange them."""
    model, kernel = st.load_model("qwen3-30b-a3b"), load_kernels(ExpertKernel)["vllm", "blackwell", "bf16"]
    routed = next(op for layer, _ in model.layers for op in layer.ops if op.rows == "routed")
    op, given = replace(routed, experts=8, active=2), {"batch": 4096, "context": 1}
    vllm = replace(load_engine("vllm"), expert_factors=())
    exchanged, gathered = (
        demand(op, Layout(dp=4, ep=4), st.load_system("hgx-b200"), with_constants(vllm, {"gathers_tokens": gathers}), **given)
        for gathers in (0.0, 1.0)
    )
    passes = 2 * 4096 * op.inputs * kernel.token_passes
    assert gathered.activations - exchanged.activations == pytest.approx(passes * 15 / 28)
    assert gathered.flops == exchanged.flops


@each("largest", [1, 2, 3, 5, 100])
def test_parts_of_products_are_all_products_in_their_order(largest):
    """Those of layers come first, then those of the stem."""
    stem = matrix(name="head"), matrix(name="second")
    model = model_of(matrix(), *(matrix(name=name, outputs=7) for name in "abc"), stem=stem)
    whole = collect_products(model, merged=False, vendor="", peak=("bf16", "fp8"), rules=())
    parts = [*whole.parts(largest)]
    assert (whole.stem, len(whole.ops), max(len(part.ops) for part in parts)) == (4, 6, min(largest, 6))
    assert [op for part in parts for op in part.ops] == [*whole.ops]
    assert [row < part.stem for part in parts for row in range(len(part.ops))] == [row < 4 for row in range(6)]
    for name in COLUMNS:
        assert np.array_equal(np.concatenate([getattr(part, name) for part in parts]), getattr(whole, name))


def test_eight_bits_in_blocks_are_another_kind_on_chips_of_four_bits():
    fp8 = number_format("fp8")
    model = model_of(replace(matrix(), format=replace(fp8, block=128)), matrix(name="other", outputs=7))
    for more, eight, blocked in (((), [True, True], [False, False]), (("fp4",), [False, True], [True, False])):
        found = collect_products(model, merged=False, vendor="", peak=("bf16", "fp8", *more), rules=())
        assert (found.eight.tolist(), found.blocked.tolist()) == (eight, blocked)
