"""Numbers from outside: published parameter counts and KV tables, DeepSeek's production day, known bandwidth ratios."""

from __future__ import annotations

import pytest

import steptime as st
from steptime.hardware import rental_prices as cost
from steptime.models.model import active_parameters, draft_parameters, total_parameters
from steptime.physics.chip_memory import memory_per_chip
from steptime.physics.layout import Layout
from steptime.physics.step import decode_step, prefill_step
from tests.conftest import each
from tests.published import DIFFERENT, KV, RATIOS, agrees, counted, ratios


@each("entry", KV)
def test_kv_bytes_as_published(entry):
    """Each figure of tests/golden/kv_bytes.toml, or a difference that is known and explained on docs/models.md."""
    assert agrees(entry) is ((entry["model"], entry["bytes"]) not in DIFFERENT), counted(entry)


@pytest.mark.parametrize("entry", RATIOS, ids=lambda e: e["model"])
def test_cache_and_flops_of_deepseek_v4_over_v3_2(entry):
    """Stated as whole per cents without their formats; the counts lie within two points, and docs/models.md shows both."""
    cache, flops = ratios(entry)
    assert cache == pytest.approx(entry["cache"], abs=0.02)
    assert flops == pytest.approx(entry["flops"], abs=0.022)


# Parameters, exact: the hub's safetensors metadata of each repository ("Model size").
PARAMETERS = {
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "meta-llama/Llama-3.1-405B": 405_853_388_800,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "mistralai/Mixtral-8x22B-v0.1": 140_620_634_112,
    "google/gemma-2-9b": 9_241_705_984,
    "openai-community/gpt2": 124_439_808,
}


@each("name", PARAMETERS)
def test_parameters_exactly(name):
    assert total_parameters(st.load_model(name)) == PARAMETERS[name]


@each(
    "name, total, active, tolerance",
    [
        ("deepseek-ai/DeepSeek-V3", 671e9, 37e9, 0.02),  # arXiv 2412.19437, abstract
        ("deepseek-ai/DeepSeek-V2-Lite", 15.7e9, 2.4e9, 0.12),  # arXiv 2405.04434, appendix B; 2.4 B omits the embedding
        ("Qwen/Qwen3-235B-A22B", 235e9, 22e9, 0.01),  # arXiv 2505.09388, table 2
        ("Qwen/Qwen3-30B-A3B", 30.5e9, 3.3e9, 0.02),  # model card
        ("moonshotai/Kimi-K2-Instruct", 1.04e12, 32.6e9, 0.015),  # arXiv 2507.20534, table 2
        ("mistralai/Mixtral-8x22B-v0.1", 141e9, 39e9, 0.01),  # Mistral AI, "Cheaper, better, faster, stronger"
        ("openai/gpt-oss-120b", 116.83e9, 5.71e9, 0.001),  # model card, table 1; active with the embedding of 0.58 B
        ("openai/gpt-oss-20b", 20.91e9, 4.19e9, 0.001),  # model card, table 1; active with the embedding of 0.58 B
    ],
)
def test_parameters_as_published(name, total, active, tolerance):
    model = st.load_model(name)
    assert total_parameters(model) == pytest.approx(total, rel=max(tolerance, 0.015) if "Kimi" in name else 0.005)
    assert active_parameters(model) == pytest.approx(active, rel=tolerance)


def test_multi_token_prediction_module_of_deepseek():
    """685 B on the hub = 671 B + a 14 B module that repeats embedding and head (README_WEIGHTS.md: 11.5 B unique)."""
    assert draft_parameters(st.load_model("deepseek-ai/DeepSeek-V3")) == pytest.approx(11.5e9, rel=0.01)


# --- DeepSeek's production day: github.com/deepseek-ai/open-infra-index, 202502OpenSourceWeek, day 6 ------------------------

INPUT, CACHED, OUTPUT = 608e9, 342e9, 168e9
PREFILL, DECODE = 73_700, 14_800  # tok/s per node of eight H800
NODES = 226.75
CONTEXT = 4989
SPEED = 21  # the middle of 20-22 tok/s


def test_production_day_nodes():
    nodes = cost.nodes_needed(INPUT, PREFILL) + cost.nodes_needed(OUTPUT, DECODE)
    assert nodes == pytest.approx(NODES, rel=0.001)


def test_production_day_cost_and_revenue():
    bill = cost.deployment_rent(NODES * 8, 2 / 3600) * 86400
    assert bill == pytest.approx(87_072, abs=0.5)
    income = cost.revenue(INPUT, CACHED, OUTPUT, price_in=0.55, price_cached=0.14, price_out=2.19)
    assert income == pytest.approx(562_027, rel=2e-4)
    assert cost.margin(562_027, bill) == pytest.approx(5.45, abs=0.005)
    assert cost.deployment_rent(8, st.load_system("hgx-h800").rent.typical) * 3600 == pytest.approx(16)


def test_production_day_sequences_and_cache(deepseek):
    sequences = cost.sequences_in_flight(DECODE, SPEED)
    assert sequences == pytest.approx(705, abs=1)
    assert sequences / 8 == pytest.approx(88, abs=0.2)
    unit = Layout(dp=144, ep=144, redundant_experts=32)
    memory = memory_per_chip(deepseek, st.load_system("hgx-h800"), batch=88 * 144, context=CONTEXT, layout=unit, engine="ideal")
    assert memory.cache == pytest.approx(88 * CONTEXT * 70_272)
    assert memory.cache == pytest.approx(30.9e9, rel=0.002)
    assert memory.fits


def test_production_day_rates_lie_below_the_ideal(deepseek, capsys):
    """The bound that physics sets lies above what was measured; the ratio is what software and idling cost."""
    system = st.load_system("hgx-h800")
    decode = decode_step(
        deepseek,
        system,
        batch=88 * 144,
        context=CONTEXT,
        layout=Layout(dp=144, ep=144, redundant_experts=32, microbatches=2),
        engine="ideal",
    )
    decode_rate = 88 * 8 / float(decode.total)
    fresh = 1 - CACHED / INPUT
    prompt = 4096
    prefill = prefill_step(
        deepseek, system, tokens=prompt * fresh, prefix=prompt * (1 - fresh), prompts=64,
        layout=Layout(dp=32, ep=32, redundant_experts=32, microbatches=2),
        engine="ideal",
    )  # fmt: skip
    prefill_rate = 64 * prompt / 4 / float(prefill.total)
    with capsys.disabled():
        print(
            f"\nDeepSeek's day on hgx-h800, ideal over measured: decode {decode_rate:,.0f} / {DECODE:,} tok/s a node = "
            f"{decode_rate / DECODE:.2f}, prefill {prefill_rate:,.0f} / {PREFILL:,} = {prefill_rate / PREFILL:.2f}"
        )
    assert 1 < decode_rate / DECODE < 5
    assert 1 < prefill_rate / PREFILL < 5
    assert prefill.lower < prefill.total < prefill.upper


def test_expert_parallel_bound_of_the_isca_paper():
    """32 tokens x 9 copies x 7,168 values x (1 B + 2 B) at 50 GB/s: 120.96 us each way of the two, 67 tok/s in 61 layers.

    DeepSeek, arXiv 2505.09343, section 2.3.2: (1 B + 2 B) x 32 x 9 x 7K / 50 GB/s = 120.96 us a micro-batch.
    """
    from steptime.blackboard.expert_activation import exchange_bytes

    seconds = 32 * 9 * 7000 * 3 / 50e9
    assert seconds == pytest.approx(120.96e-6, rel=1e-4)
    assert 1 / (2 * seconds * 61) == pytest.approx(67, rel=0.02)
    hit = exchange_bytes(32, 7000, 3, experts=256, active=8, chips=256) / 50e9
    assert hit == pytest.approx(seconds * 8 / 9, rel=1e-3)  # the ninth copy is the shared expert's
