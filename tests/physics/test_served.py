"""A model as an engine serves it: whose KV cache is kept in 8 bits, and what that halves."""

from __future__ import annotations

from dataclasses import replace

import pytest

import steptime as st
from steptime.hardware.number_formats import number_format
from steptime.models.model import Attention, kv_bytes_per_token, weight_bytes, with_formats
from steptime.physics.compute_dtype import as_served, is_narrow, with_small_cache
from steptime.simulation.simulator import simulate
from steptime.workload.traffic import Lengths, open_loop
from tests.conftest import each, engine, experts, machine, matrix, model_of

WIDE, NARROW = number_format("bf16").arithmetic, number_format("fp8").arithmetic
KV = Attention(name="kv", kv_bytes=1000.0, kv_shards=8, heads=8, arithmetic=WIDE)
SMALL = engine(small_kv=1.0)


def chips(fp4: bool):
    system = machine()
    return replace(system, chip=replace(system.chip, peak=system.chip.peak | ({"fp4": 4e15} if fp4 else {})))


@each(
    "ops, without, with_fp4",
    [
        ((matrix(stored="bf16"),), False, False),
        ((matrix(stored="fp8"),), True, True),
        ((matrix(stored="nvfp4"),), True, True),
        ((matrix(stored="fp8", weights=2e9), matrix(stored="bf16", name="other")), True, True),  # most of its matrices
        ((matrix(stored="fp8"), matrix(stored="bf16", name="other", weights=2e9)), False, False),
        ((matrix(stored="bf16"), experts(stored="nvfp4")), False, True),  # experts in 4 bits, where they are computed so
        ((matrix(stored="bf16"), experts(stored="fp8")), False, False),
        ((matrix(stored="fp8"), experts(stored="bf16")), True, True),
    ],
)
def test_which_models_are_computed_in_eight_bits_or_fewer(ops, without, with_fp4):
    model = model_of(*ops, attention=(KV,))
    assert (is_narrow(model, False), is_narrow(model, True)) == (without, with_fp4)
    for fp4, narrow in ((False, without), (True, with_fp4)):
        assert (as_served(model, chips(fp4), SMALL) != model) is narrow
        assert as_served(model, chips(fp4), engine()) == model  # an engine that keeps 16 bits


def test_a_small_cache_has_half_the_bytes_and_the_arithmetic_of_eight_bits():
    """Of ten layers with 1,000 B a token each: 5,000 B in all; told from then on."""
    model = model_of(matrix(), attention=(KV,))
    small = as_served(model, chips(False), SMALL)
    assert (kv_bytes_per_token(model), kv_bytes_per_token(small)) == (10_000, 5_000)
    (layer, n), *_ = small.layers
    assert (n, layer.attention[0].arithmetic) == (10, NARROW)
    assert (small.kv_format, small.kv_told) == ("fp8", True)
    assert as_served(small, chips(False), SMALL) == small
    assert layer.ops == model.layers[0][0].ops


def test_what_was_told_stays():
    told = replace(model_of(matrix(), attention=(KV,)), kv_told=True)
    assert as_served(told, chips(True), SMALL) == told


def test_states_and_what_is_kept_in_fewer_bits_stay():
    state = Attention(name="state", kv_bytes=0.0, kv_shards=8, heads=8, state_bytes=500.0, arithmetic=WIDE)
    small = replace(KV, name="small", arithmetic=NARROW, kv_format="fp8")
    model = model_of(matrix(), attention=(KV, state, small))
    found = with_small_cache(model)
    assert [a.kv_bytes for a in found.layers[0][0].attention] == [500.0, 0.0, 1000.0]
    assert found.layers[0][0].attention[1:] == (state, small)


@each(
    "name, given, told",
    [("deepseek-ai/DeepSeek-V3", {}, False), ("deepseek-ai/DeepSeek-V3", {"kv": "bf16"}, True), ("llama-3.1-8b", {}, False)],
)
def test_a_cache_is_told_by_who_asks(name, given, told):
    assert st.load_model(name, **given).kv_told is told


@pytest.mark.slow
def test_plans_and_simulations_keep_the_same_cache():
    """DeepSeek-V3 is computed in 8 bits: with the small cache of an engine as if fp8 was asked for, and bf16 where that was."""
    rack, work = st.load_system("gb200-nvl72"), st.Workload(input_tokens=1000, output_tokens=100)
    on, given = engine(small_kv=1.0), {"chips": 8, "modes": ("aggregated",), "alternatives": False}
    untold, small, wide = (
        st.plan(st.load_model("deepseek-ai/DeepSeek-V3", **kv), rack, work, engine=on, **given)
        for kv in ({}, {"kv": "fp8"}, {"kv": "bf16"})
    )
    assert untold.tpot == small.tpot
    assert untold.pools[0].memory.cache == small.pools[0].memory.cache
    plain = st.plan(st.load_model("deepseek-ai/DeepSeek-V3"), rack, work, engine=engine(), **given)
    assert plain.tpot == wide.tpot
    # Rates of plans are known to 1 %.
    assert untold.usd_per_million_output_tokens <= 1.01 * wide.usd_per_million_output_tokens
    pytest.importorskip("numba", reason="the simulator needs the extra 'simulate'")
    model, box = model_of(matrix(), attention=(KV,)), machine(capacity=20e9)
    traffic = open_loop(1.0, 2, Lengths(mean=1000), Lengths(mean=100))
    halved, full = (simulate(model, box, traffic, engine=on).policy.kv_tokens for on in (SMALL, engine()))
    assert halved == pytest.approx(2 * full, rel=0.01)


def test_four_bit_integers_are_multiplied_in_sixteen_bits_and_leave_the_cache_as_it_is():
    small = with_formats(st.load_model("llama-3.1-70b"), weights=number_format("int4"))
    assert not is_narrow(small, True)
    assert as_served(small, st.load_system("hgx-h200"), st.load_engine("vllm")).kv_format == "bf16"


def test_a_format_that_a_checkpoint_has_keeps_its_own_scales():
    """Kimi-K2.5: 4 bits and two bytes for each 32 values; `--experts int4` is the same, not one for each 128."""
    own = st.load_model("kimi-k2.5")
    asked = with_formats(own, experts=number_format("int4"))
    assert weight_bytes(asked) == weight_bytes(own)
