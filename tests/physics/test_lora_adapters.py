"""LoRA adapters: bytes of their slots, and time of their products, by hand; and laws."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.cli.views.step_view import _remedy
from steptime.errors import InputError, RangeError
from steptime.models.model import Layer
from steptime.models.model_loading import load_model
from steptime.physics.chip_memory import memory_per_chip, weights_per_chip
from steptime.physics.engine import IDEAL, load_engine
from steptime.physics.layout import Layout
from steptime.physics.lora_adapters import (
    ATTENTION,
    adapted_names,
    adapter_bytes,
    adapter_kernels,
    adapter_parameters,
    distinct_adapters,
    slot_rank,
    with_adapters,
)
from steptime.physics.speculative_step import drafter
from steptime.physics.step import decode_step, mixed_step, prefill_step
from steptime.physics.uncertainty import WITH_ADAPTERS, distances, step_range
from steptime.questions.step_question import STEP
from tests.conftest import each, engine, every, experts, machine, matrix, model_of

LLAMA = load_model("llama-3.1-8b")
MATRIX = matrix(name="q_proj", term="projections", weights=3e6, inputs=1000.0, outputs=3000.0)
TOY = model_of(MATRIX)
ONE = {"layout": Layout(), "engine": IDEAL}


def test_parameters_of_an_adapter_are_those_that_peft_prints():
    """PEFT on Llama 3 8B with r=16: trainable params 41,943,040 (all-linear), 13,631,488 (q, k, v and o).

    By hand: 16 x 32 x (8,192 + 5,120 + 5,120 + 8,192 + 3 x 18,432).
    """
    assert adapter_parameters(with_adapters(LLAMA, 1, rank=16)) == 41_943_040
    assert adapter_parameters(with_adapters(LLAMA, 1, rank=16, target=ATTENTION)) == 13_631_488
    assert adapter_parameters(LLAMA) == 0


@each(
    "tp, inputs, outputs",
    [
        # All of A where outputs are divided; all of B where inputs are divided.
        (1, 6 * 4096 + 14336, 3 * 4096 + 2 * 1024 + 2 * 14336),
        (2, 5 * 4096 + (4096 + 14336) / 2, (4096 + 2 * 1024 + 2 * 14336) / 2 + 2 * 4096),
        # Eight KV heads are shared by pairs of 16 chips.
        (16, 5 * 4096 + (4096 + 14336) / 16, (4096 + 2 * 14336) / 16 + 2 * 1024 / 8 + 2 * 4096),
    ],
)
def test_slots_on_a_chip_by_hand(tp, inputs, outputs):
    """Eight slots of rank 16 in 32 layers and two bytes; at one chip 8 x 83,886,080 B."""
    layout = Layout(tp=tp)
    slots = weights_per_chip(with_adapters(LLAMA, 8, rank=16), layout) - weights_per_chip(LLAMA, layout)
    assert slots == pytest.approx(8 * 16 * 32 * 2 * (inputs + outputs), rel=1e-12)
    assert tp > 1 or slots == 8 * 83_886_080


def test_matrices_of_a_state_space_mixer_that_divide_their_inputs():
    """Jamba-1.5-Mini at rank 16, counted by hand: x_proj has the inputs of a chip, and its outputs whole."""
    jamba = with_adapters(load_model("ai21labs/AI21-Jamba-1.5-Mini"), 1, rank=16)
    assert adapter_bytes(jamba, Layout()) == 76_247_040
    assert adapter_bytes(jamba, Layout(tp=8)) == 23_719_936


def test_stages_divide_the_slots():
    adapted, sizes = with_adapters(LLAMA, 8, rank=16), {"batch": 1, "context": 100, "engine": "vllm"}
    plain, more = (memory_per_chip(model, "hgx-h100", layout=Layout(pp=4), **sizes) for model in (LLAMA, adapted))
    assert more.weights - plain.weights == pytest.approx(2 * 83_886_080)
    assert more.cache == plain.cache


def test_time_of_a_decode_step_by_hand():
    """4 slots of rank 8, 4 sequences: 4 (1 - 0.75^4) = 2.734375 distinct adapters, each 8 x 4,000 x 2 B in ten layers.

    At 4 TB/s 0.4375 us; an ideal chip hides 4 x 10 x 2 x 8 x 4,000 FLOP.
    """
    plain = decode_step(TOY, machine(), batch=4, context=10, **ONE)
    adapted = decode_step(with_adapters(TOY, 4, rank=8), machine(), batch=4, context=10, **ONE)
    assert adapted.terms["LoRA adapters"] == pytest.approx(2.734375 * 8 * 4000 * 2 * 10 / 4e12)
    assert adapted.total - plain.total == pytest.approx(0.4375e-6)
    assert sum(adapted.terms.values()) == pytest.approx(adapted.total)
    assert sum(adapted.resources.values()) == pytest.approx(adapted.total)


def test_arithmetic_of_a_prompt_by_hand():
    """1,000 tokens of one prompt, at 2 PFLOP/s and without traffic: 2 x 8 x 4,000 FLOP a token and layer."""
    fast = machine(bandwidth=1e30)
    times = [prefill_step(model, fast, tokens=1000, **ONE).total for model in (TOY, with_adapters(TOY, 4, rank=8))]
    assert times[1] - times[0] == pytest.approx(1000 * 10 * 2 * 8 * 4000 / 2e15)


def test_activations_of_a_prompt_by_hand():
    """Shrink reads 1,000 values of 2 B and writes 8 sums of 4 B; expand reads these, and reads and writes 3,000 values."""
    moving = engine(activation_traffic=1.0)
    slow = machine(flops=1e30)
    times = [
        prefill_step(model, slow, tokens=1000, layout=Layout(), engine=moving).total
        for model in (TOY, with_adapters(TOY, 1, rank=8))
    ]
    moved = 1000 * 10 * (1000 * 2 + 2 * 8 * 4 + 2 * 3000 * 2) + 10 * 8 * 4000 * 2
    assert times[1] - times[0] == pytest.approx(moved / 4e12)


def test_kernels_of_a_layer_by_hand():
    """Llama has four products with their own inputs per layer: two kernels each, three with vLLM."""
    adapted = with_adapters(LLAMA, 8, rank=16)
    assert adapter_kernels(adapted, "sglang") == 32 * 4 * 2
    assert adapter_kernels(adapted, "vllm") == 32 * 4 * 3
    launching = engine(seconds_per_kernel=1e-6)
    times = [
        decode_step(model, machine(), batch=1, context=10, layout=Layout(), engine=launching).total
        for model in (TOY, with_adapters(TOY, 1, rank=8))
    ]
    assert times[1] - times[0] == pytest.approx(10 * 2 * 1e-6 + 8 * 4000 * 2 * 10 / 4e12)


def test_groups_of_chips_divide_one_of_two_matrices():
    """Two chips halve the 3,000 outputs of B, and read all 1,000 inputs of A; the other way round where inputs are divided."""
    for op, values in ((MATRIX, 1000 + 1500), (replace(MATRIX, name="o_proj"), 500 + 3000)):
        model = with_adapters(model_of(op), 1, rank=8)
        step = decode_step(model, machine(), batch=1, context=10, layout=Layout(tp=2), engine=IDEAL)
        assert step.terms["LoRA adapters"] == pytest.approx(8 * values * 2 * 10 / 4e12)


def test_distinct_adapters_are_at_most_slots_and_requests():
    requests = np.array([0.0, 0.25, 1.0, 3.0, 500.0])
    for slots in (1, 2, 8, 64):
        distinct = distinct_adapters(slots, requests)
        assert np.all(distinct <= np.minimum(slots, requests) + 1e-9)
        assert np.all(np.diff(distinct) >= 0)


@pytest.mark.parametrize("name", every(4, ["ideal", "vllm", "sglang", "trtllm", "typical"]))
def test_more_adapters_or_rank_are_never_faster(name):
    sizes = {"batch": np.array([1, 32, 256]), "context": 1000, "prompts": np.array([0, 0, 1]), "tokens": 500}
    for tp in (1, 8):
        on = {"layout": Layout(tp=tp), "engine": name}
        plain = mixed_step(LLAMA, "hgx-h100", **sizes, **on).total
        by_slots = [mixed_step(with_adapters(LLAMA, n, rank=16), "hgx-h100", **sizes, **on).total for n in (1, 2, 8, 64)]
        by_rank = [mixed_step(with_adapters(LLAMA, 8, rank=r), "hgx-h100", **sizes, **on).total for r in (8, 16, 64, 256)]
        # Launches by the host hide the products of adapters in a step with prompts.
        for slower in (by_slots[0], by_rank[0]):
            assert np.all(slower >= plain * (1 - 1e-12))
            assert np.all(slower[:2] > plain[:2])
        assert all(np.all(np.diff(times, axis=0) >= -1e-12) for times in (by_slots, by_rank))


def test_memory_is_linear_in_slots_and_rank():
    base = weights_per_chip(LLAMA, Layout(tp=2))
    one = weights_per_chip(with_adapters(LLAMA, 1, rank=8), Layout(tp=2)) - base
    for slots, rank in ((5, 8), (1, 64), (7, 32)):
        assert weights_per_chip(with_adapters(LLAMA, slots, rank=rank), Layout(tp=2)) - base == slots * rank / 8 * one


def test_a_model_without_adapters_is_unchanged_to_the_bit():
    """No adapters are no input; a drafter has none either."""
    values = {"model": "llama-3.1-8b", "system": "hgx-h100", "batch": 32}
    assert st.ask("step", **values) == st.ask("step", **values, lora_adapters=0)
    deepseek = with_adapters(load_model("deepseek-v3"), 4, rank=16)
    assert drafter(deepseek).adapters is None


def test_routed_experts_have_no_adapters():
    layer = model_of(MATRIX, experts(inputs=1000.0, outputs=1000.0), matrix(name="router", term="experts", inputs=10.0))
    assert adapted_names(with_adapters(layer, 1, rank=8)) == ("q_proj",)
    deepseek = with_adapters(load_model("deepseek-v3"), 4, rank=16)
    assert {"q_a_proj", "o_proj", "down_proj"} <= {*adapted_names(deepseek)}
    assert not {"router", "experts", "lm_head"} & {*adapted_names(deepseek)}
    with pytest.raises(InputError, match="no matrices"):
        with_adapters(replace(TOY, layers=((Layer(name="empty", ops=()), 3),)), 1, rank=8)


def test_ranks_of_slots_are_those_of_vllm():
    """https://docs.vllm.ai/en/stable/api/vllm/config/lora/: 1, 8, 16, 32, 64, 128, 256, 320, 512."""
    assert [slot_rank(rank, "vllm") for rank in (1, 2, 8, 17, 257, 321)] == [1, 8, 8, 32, 320, 512]
    with pytest.raises(RangeError, match="at most 512"):
        slot_rank(513, "vllm")


def test_a_range_with_adapters_is_wider_on_both_sides():
    on = {"layout": Layout(), "engine": load_engine("vllm"), "batch": 32, "context": 1000}
    ratios = []
    for model in (LLAMA, with_adapters(LLAMA, 8, rank=16, engine_name="vllm")):
        total = mixed_step(model, "hgx-h100", **on).total
        ratios.append([end / total for end in step_range(model, "hgx-h100", **on)])
    (low, high), (lower, higher) = ratios
    assert lower < low < 1 < high < higher
    flags = distances(load_engine("vllm"), st.load_system("hgx-h100"), Layout(), model=model)
    assert [flag for flag, applies in flags if applies] == [WITH_ADAPTERS]


@each("given", [{"lora_rank": 16}, {"lora_target": "attention"}, {"lora_adapters": 0, "lora_rank": 16}])
@each("question", ["step", "plan"])
def test_a_rank_or_matrices_need_adapters(question, given):
    with pytest.raises(RangeError, match="lora_adapters"):
        st.ask(question, model="llama-3.1-8b", system="hgx-h100", **given)


def test_a_loaded_model_keeps_its_adapters_and_refuses_others():
    adapted, values = with_adapters(LLAMA, 8, rank=16), {"system": "hgx-h100", "batch": 32}
    asked = st.ask("step", model=adapted, **values)
    assert asked == st.ask("step", model=adapted, **values, lora_adapters=8)
    assert asked["time"] == st.ask("step", model="llama-3.1-8b", **values, lora_adapters=8)["time"]
    with pytest.raises(RangeError, match="other adapters"):
        st.ask("step", model=adapted, **values, lora_adapters=9)


@pytest.mark.thorough
def test_a_plan_has_less_room_and_slower_tokens_with_adapters():
    values = {"model": "llama-3.1-8b", "system": "hgx-h100", "chips": 1, "tp": 1, "speed": 40, "percentile": "mean"}
    plain, adapted = (st.ask("plan", **values, **more) for more in ({}, {"lora_adapters": 32, "lora_rank": 64}))
    assert adapted["usd_per_million_output_tokens"] > plain["usd_per_million_output_tokens"]
    assert adapted["batch"] < plain["batch"]


@each(
    "name, parts",
    [
        ("llama-3.1-8b", "attention and dense layers"),
        ("deepseek-v3", "attention, dense layers and shared experts"),
        ("ai21labs/AI21-Jamba-1.5-Mini", "attention, recurrent mixers and dense layers"),
        ("mamba-2.8b", "recurrent mixers"),
    ],
)
def test_the_note_names_all_parts_with_adapters(name, parts):
    assert any(f" on the matrices of {parts};" in note for note in with_adapters(load_model(name), 8, rank=16).notes)


def test_a_model_without_attention_has_adapters_on_its_recurrent_mixers_only():
    mamba = load_model("mamba-2.8b")
    with pytest.raises(InputError, match=r"lora_target: .* no attention"):
        with_adapters(mamba, 8, rank=16, target=ATTENTION)


def test_step_says_how_many_adapters_fit():
    """An adapter of rank 512 takes 32 x 41,943,040 x 2 B = 2.68 GB; one more than those that would fit does not fit."""
    subject = {"model": "llama-3.1-8b", "system": "hgx-h100", "lora_rank": 512, "tp": 1}
    step = STEP.solve({**subject, "lora_adapters": 10_000})
    assert step.adapter_bytes == pytest.approx(10_000 * 41_943_040 * 32 * 2)
    remedy = _remedy(step)
    fitting = int(re.search(r"--lora-adapters (\d+)", remedy)[1])
    assert "weights" not in remedy
    fits = [STEP.solve({**subject, "lora_adapters": slots}).memory.fits for slots in (fitting, fitting + 1)]
    assert fits == [True, False]


def test_step_without_room_for_one_token_suggests_no_context():
    step = STEP.solve({"model": "llama-3.1-8b", "system": "hgx-h100", "batch": 100_000, "context": 100_000})
    assert "--context" not in _remedy(step)
    assert "1 token" in _remedy(step)
