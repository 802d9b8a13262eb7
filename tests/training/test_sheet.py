"""What a layer keeps and multiplies, against formulas worked by hand and against the model's own counts."""

from __future__ import annotations

import math

import pytest

from steptime.models.model import active_parameters, matmul_flops_per_token, total_parameters
from steptime.models.model_loading import read_model
from steptime.training.layer_profile import MODULES, draft_layer_profiles, layer_profiles, stem_profile
from tests.conftest import each
from tests.training.cases import SMALL, SPARSE, golden, gpt, model

EVERY = (SMALL, "llama-3.1-405b", SPARSE, "deepseek-ai/DeepSeek-V3", "google/gemma-2-9b", "openai/gpt-oss-120b")


def kept(name: str, place: int = 0) -> dict[str, float]:
    return layer_profiles(model(name))[place][0].module_bytes


@pytest.mark.parametrize(
    ("name", "h", "q", "k", "f", "a", "widths"),
    [("llama-3-70b", 8192, 8192, 1024, 28672, 64, 33.5), ("llama-3.1-405b", 16384, 16384, 1024, 53248, 128, 31.8)],
)
def test_a_layer_of_llama_keeps_what_its_operators_need(name, h, q, k, f, a, widths):
    """2 (2h of residual inputs, 2h of norms, q and the output of attention, k and v, three f) and a log-sum-exp a head."""
    by_hand = 2 * (2 * h + 2 * h + 2 * q + 2 * k + 3 * f) + 4 * a
    assert sum(kept(name).values()) == by_hand
    assert by_hand / h == pytest.approx(widths, abs=0.05)


def test_a_layer_of_llama_70b_keeps_274_688_bytes_of_a_token():
    assert sum(kept("llama-3-70b").values()) == 274_688
    assert kept("llama-3-70b") == {
        "attention": 2 * 8192 + 4 * 64, "norms": 4 * 8192, "mlp": 4 * 28672, "activation": 2 * 28672,
        "rest": 4 * 8192 + 2 * (8192 + 1024 + 1024),
        "mla_up_proj": 0, "shared_experts": 0, "moe": 0, "moe_input": 0, "moe_act": 0,
    }  # fmt: skip


def test_a_gpt_keeps_what_korthikanti_counts_without_masks_and_scores():
    """34 h (arXiv 2205.05198, equation 1) less two masks of dropout, h each; flash attention keeps four bytes a head."""
    for row in golden("korthikanti")["rows"]:
        shape = {name: row[name] for name in ("heads", "width", "layers")}
        ((sheet, layers),) = layer_profiles(read_model(gpt(**shape)))
        assert sum(sheet.module_bytes.values()) == (34 - 2) * row["width"] + 4 * row["heads"]
        assert (layers, sheet.scores) == (row["layers"], row["heads"])


def test_experts_keep_rows_for_each_expert_of_a_token():
    """Qwen3-30B-A3B: width 2,048, 32 heads and 4 of keys of 128, 8 of 128 experts of 768; queries and keys are normed."""
    h, q, k, experts, active, f = 2048, 4096, 512, 128, 8, 768
    found = kept(SPARSE)
    assert found["moe_input"] == 2 * active * h
    assert found["moe"] == 2 * 2 * active * f
    assert found["moe_act"] == 2 * active * f
    assert found["norms"] == 2 * (2 * h + q + k)
    assert sum(found.values()) == 8 * h + 6 * q + 6 * k + 4 * 32 + 4 * experts + 2 * active * h + 6 * f * active


def test_experts_of_a_latent_width_keep_rows_of_this_width():
    """Nemotron 3 Super, 4,096 wide: 22 of 512 experts of 1,024 x 2,688 without gates, between two projections; one shared."""
    sheet = next(p for p, _ in layer_profiles(model("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8")) if p.routed)
    assert sheet.module_bytes["moe_input"] == 2 * 22 * 1024
    assert sheet.module_bytes["moe"] == 2 * (22 * 2688 + 1024)
    assert sheet.routed_values == 4 * 22 * 1024
    assert sheet.recompute_work["moe"][0] == 2 * 2 * 4096 * 5376 + 2 * 2 * 4096 * 1024
    # Kimi K3 has gates: gate and up of 16 experts of 3,072.
    gated = next(p for p, _ in layer_profiles(model("moonshotai/Kimi-K3")) if p.routed)
    assert gated.module_bytes["moe"] == 2 * (16 * 2 * 3072 + 3584)


def test_latent_attention_keeps_latents_and_what_is_expanded_from_them():
    """DeepSeek-V3: queries of 128 heads x 192, keys and values of 128 x (128 + 128), out of 128 x 128."""
    found = kept("deepseek-ai/DeepSeek-V3")
    assert found["mla_up_proj"] == 2 * (128 * 192 + 128 * 256)
    assert found["attention"] == 2 * 128 * 128 + 4 * 128
    assert found["rest"] == 2 * (1536 + 512 + 64) + 4 * 7168  # latents of queries and keys, rotary keys; two residual inputs
    assert kept("deepseek-ai/DeepSeek-V3", 1)["shared_experts"] == 2 * 3 * 2048


@each("name", EVERY)
def test_products_and_what_is_small_are_all_of_the_model(name):
    """FLOPs and parameters of sheets and stem are the model's."""
    whole = model(name)
    found = [(n, sheet, p) for sheet, n in layer_profiles(whole) for p in sheet.products]
    stem = stem_profile(whole)
    assert sum(n * p.flops for n, _, p in found) + stem.head_flops == pytest.approx(matmul_flops_per_token(whole), rel=1e-12)
    small = sum(n * sheet.small for sheet, n in layer_profiles(whole))
    beside = total_parameters(whole) - sum(n * p.weights for n, _, p in found) - small
    tied = stem.embedding + stem.head if not stem.shared else stem.head
    assert beside == pytest.approx(tied, rel=1e-3)  # the last norm
    assert sum(op.weights == 0 for layer, _ in whole.layers for op in layer.ops if op.flops_per_row) == 0


@each("name", EVERY)
def test_each_module_can_be_computed_again(name):
    for sheet, _ in layer_profiles(model(name)):
        assert set(MODULES) == set(sheet.module_bytes) - {"rest"} == set(sheet.recompute_work)
        assert min(sheet.module_bytes.values()) >= 0
        products = sum(p.flops for p in sheet.products)
        assert sum(flops for flops, _ in sheet.recompute_work.values()) < products


def test_computing_a_module_again_costs_its_own_products():
    """Llama 3 70B: a checkpoint runs gate, up and down, 6 h f FLOPs; norms read and write 4 h values; an activation three f."""
    again = layer_profiles(model("llama-3-70b"))[0][0].recompute_work
    h, f = 8192, 28672
    assert again["mlp"] == (6 * h * f, 3 * f)
    assert again["norms"] == (0, 4 * h)
    assert again["activation"] == (0, 3 * f)
    assert again["attention"] == (0, 0)


def test_computing_experts_again_is_a_forward_pass_of_the_block():
    """Rows of 8 experts in and out of the block and of its exchange, and an activation; products are in the forward pass."""
    sheet = layer_profiles(model(SPARSE))[0][0]
    routed = next(p for p in sheet.products if p.routed)
    assert sheet.recompute_work["moe"] == (0, 8 * (4 * 2048 + 3 * 768))
    assert routed.flops == 2 * 3 * 2048 * 768 * 8
    assert routed.weights == 3 * 2048 * 768 * 128


def test_keys_and_values_are_what_context_parallelism_sends():
    """Llama 3 70B: eight heads of 128, keys and values; DeepSeek-V3: 128 heads of keys of 192 and of values of 128."""
    assert layer_profiles(model("llama-3-70b"))[0][0].exchanged == 2 * 8 * 128
    assert layer_profiles(model("deepseek-ai/DeepSeek-V3"))[0][0].exchanged == 128 * (192 + 128)


def test_a_tied_embedding_is_one_matrix():
    tied, apart = stem_profile(model("google/gemma-2-9b")), stem_profile(model(SMALL))
    assert (tied.shared, apart.shared) == (True, False)
    assert tied.head == 256_000 * 3584
    assert apart.head == apart.embedding == 128_256 * 4096
    assert apart.head_flops == 2 * apart.head


def test_blocks_are_those_that_tensor_parallelism_gathers_around():
    assert layer_profiles(model(SMALL))[0][0].blocks == 2
    assert all(not sheet.routed or sheet.blocks == 1 for sheet, _ in layer_profiles(model(SPARSE)))


def test_multi_token_prediction_layers_are_layers_of_experts():
    ((sheet, n),) = draft_layer_profiles(model("deepseek-ai/DeepSeek-V3"))
    body = layer_profiles(model("deepseek-ai/DeepSeek-V3"))[1][0]
    assert n == 1
    assert sheet.module_bytes["moe"] == body.module_bytes["moe"]
    assert sum(p.flops for p in sheet.products) == pytest.approx(
        sum(p.flops for p in body.products) + 2 * 2 * 7168 * 7168, rel=1e-6
    )  # the projection of two hidden states to one
    assert draft_layer_profiles(model(SMALL)) == ()


def test_active_parameters_are_two_flops_each():
    for name in EVERY[:4]:
        whole = model(name)
        stem = stem_profile(whole)
        flops = sum(n * p.flops for sheet, n in layer_profiles(whole) for p in sheet.products) + stem.head_flops
        assert flops == pytest.approx(2 * (active_parameters(whole) - (0 if stem.shared else stem.embedding)), rel=2e-3)
        assert math.isfinite(flops)
