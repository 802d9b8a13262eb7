"""The newer families against the reference: parameters, caches and FLOPs of small models, given alike to both sides."""

from __future__ import annotations

import math
from typing import Any

import pytest

from steptime.models.model import cache_bytes, matmul_flops_per_token, total_parameters
from steptime.models.model_loading import read_model
from tests.models.test_oracle_transformers import BASE, GEMMA, LATENT, MIXED, SHARED, auto, built, expected_flops, flops_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
__all__ = ["auto"]

ROUTED = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_shared_experts": 1}
SPARSE = {"mlp_layer_types": ["dense"] + ["sparse"] * 3}
GPT = {"n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 512, "vocab_size": 128}

TINY: dict[str, dict[str, Any]] = {
    "glm": BASE | {"head_dim": 16, "pad_token_id": 0},
    "glm4": BASE | {"head_dim": 16, "pad_token_id": 0},
    "seed_oss": BASE | {"head_dim": 24, "pad_token_id": 0},
    "helium": BASE | {"head_dim": 16},
    "hyperclovax": BASE | {"head_dim": 16},
    "cwm": BASE | MIXED | {"head_dim": 16, "pad_token_id": 0},
    "diffllama": BASE | {"head_dim": 16},
    "arcee": BASE | {"head_dim": 16},
    "apertus": BASE | {"pad_token_id": 0},
    "nemotron": BASE | {"head_dim": 16},
    "jais2": BASE | {"head_dim": 16},
    "nanochat": BASE,
    "persimmon": BASE | {"num_key_value_heads": 4},
    "phi": BASE,
    "stablelm": BASE | {"qk_layernorm": True, "use_qkv_bias": True},
    "gemma": BASE | {"head_dim": 24, "tie_word_embeddings": True},
    "vaultgemma": GEMMA | {"query_pre_attn_scalar": 24},
    "ernie4_5": BASE | {"head_dim": 16, "tie_word_embeddings": True},
    "olmo": BASE,
    "flex_olmo": BASE | {"num_experts": 8, "num_experts_per_tok": 2, "pad_token_id": 0},
    "exaone_moe": BASE | MIXED | ROUTED | SPARSE | {"head_dim": 16},
    "hy_v3": BASE | ROUTED | SPARSE | {"head_dim": 24},
    "dots1": BASE | SHARED | {"head_dim": 16},
    "solar_open": BASE | SHARED | {"head_dim": 24, "first_k_dense_replace": 0},
    "afmoe": BASE | MIXED | ROUTED | {"head_dim": 16, "num_dense_layers": 1},
    "laguna": BASE | MIXED | ROUTED | SPARSE | {"head_dim": 24, "shared_expert_intermediate_size": 48, "pad_token_id": 0},
    "flint": BASE | MIXED | ROUTED | {"head_dim": 24, "shared_expert_intermediate_size": 48, "mlp_only_layers": [0]},
    "kolibri1": BASE | MIXED | ROUTED | {"head_dim": 24, "shared_expert_intermediate_size": 48},
    "mellum": BASE | MIXED | ROUTED | {"head_dim": 24, "num_shared_experts": 0},
    "beam": BASE | MIXED | ROUTED | SPARSE | {"head_dim": 24, "n_group": 1, "topk_group": 1, "num_shared_experts": 0},
    "cohere2_moe": BASE | MIXED | ROUTED | SPARSE | {"head_dim": 16, "num_shared_experts": 1},
    "granite_swa": BASE | MIXED,
    "granitemoeshared": BASE | {"num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 48},
    "bitnet": BASE,
    "gpt_bigcode": GPT,
    "codegen": GPT | {"rotary_dim": 8},
    "gpt_neo": {"hidden_size": 64, "num_heads": 4, "num_layers": 2, "vocab_size": 128, "max_position_embeddings": 512,
                "attention_types": [[["global", "local"], 1]], "window_size": 64},
    "minicpm3": BASE | LATENT,
    "youtu": BASE | LATENT,
    "axk1": BASE | LATENT | SHARED | SPARSE,
}  # fmt: skip
"""Decoders whose whole pass PyTorch's counter sees."""

MAMBA2 = {
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2,
    "mamba_chunk_size": 16,
}  # fmt: skip
HYBRID = {"layer_types": ["linear_attention", "full_attention"] * 2}
STATES: dict[str, dict[str, Any]] = {
    "mamba": {"hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 128, "state_size": 8},
    "falcon_mamba": {"hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 128, "state_size": 8},
    "mamba2": {"hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 128, "num_heads": 8, "head_dim": 16, "n_groups": 2,
               "state_size": 16, "chunk_size": 16},
    "falcon_h1": BASE | MAMBA2 | {"head_dim": 16, "mamba_d_ssm": 128},
    "bamba": BASE | MAMBA2 | {"attn_layer_indices": [1, 3]},
    "lfm2": BASE | {"layer_types": ["conv", "full_attention"] * 2, "tie_word_embeddings": True},
    "lfm2_moe": BASE | ROUTED | {"layer_types": ["conv", "full_attention"] * 2, "tie_word_embeddings": True,
                                 "num_dense_layers": 1},
    "lfm3": BASE | {"layer_types": ["conv", "full_attention", "conv", "sliding_attention"], "sliding_window": 8, "head_dim": 16,
                    "tie_word_embeddings": True, "pad_token_id": 0},
    "rwkv": {"hidden_size": 64, "attention_hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
             "vocab_size": 128},
    "xlstm": {"hidden_size": 128, "num_hidden_layers": 3, "num_heads": 4, "vocab_size": 128, "chunk_size": 16},
    "olmo_hybrid": BASE | HYBRID | {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
                                    "linear_value_head_dim": 16, "pad_token_id": 0},
    "bailing_hybrid": BASE | LATENT | HYBRID | SPARSE | {"q_lora_rank": None, "head_dim": 16, "num_local_experts": 8,
                                                         "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1,
                                                         "topk_group": 1, "n_shared_experts": 1, "pad_token_id": 0},
    "zamba2": BASE | {"num_key_value_heads": 4, "n_mamba_heads": 8, "mamba_headdim": 16, "mamba_d_state": 16,
                      "mamba_ngroups": 1, "chunk_size": 16, "adapter_rank": 8, "num_mem_blocks": 1, "tie_word_embeddings": True,
                      "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"], "use_mamba_kernels": False},
}  # fmt: skip
"""Models whose mixers the reference computes in another way (in chunks, in kernels): their matrices are compared."""

MULTIPLIED = {"mamba": 2 * 128 * 8 * 3, "falcon_mamba": 2 * 128 * 8 * 3}
"""FLOPs a token that the reference puts into matrix multiplies beside its matrices: the read of the state by C."""


@pytest.mark.parametrize("kind", TINY | STATES)
def test_parameters_equal_the_reference(auto: Any, kind: str) -> None:
    config = (TINY | STATES)[kind] | {"model_type": kind}
    reference = built(auto, config, "meta")
    total = sum(parameter.numel() for parameter in reference.parameters())
    assert total_parameters(read_model(reference.config.to_dict())) == total


@pytest.mark.parametrize("kind", [kind for kind in TINY if "kv_lora_rank" not in TINY[kind]])
def test_cache_equals_the_reference(auto: Any, kind: str) -> None:
    import torch

    config, tokens = TINY[kind] | {"model_type": kind}, 6
    reference = built(auto, config, "cpu").eval().requires_grad_(False)
    cache = reference(torch.arange(tokens)[None] + 3, use_cache=True).past_key_values
    values = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers if layer.keys is not None)
    assert cache_bytes(read_model(reference.config.to_dict(), kv_format="bf16"), tokens) == 2 * values


@pytest.mark.parametrize("kind", TINY)
def test_prompt_flops_equal_the_reference(auto: Any, kind: str) -> None:
    config, tokens = TINY[kind] | {"model_type": kind}, 48
    stored = built(auto, config, "meta").config.to_dict()
    assert math.isclose(sum(flops_of(auto, config, tokens).values()), expected_flops(read_model(stored), tokens), rel_tol=0.01)


@pytest.mark.parametrize("kind", STATES)
def test_matrix_flops_equal_the_reference(auto: Any, kind: str) -> None:
    config, tokens = STATES[kind] | {"model_type": kind}, 48
    measured = flops_of(auto, config, tokens)
    model = read_model(built(auto, config, "meta").config.to_dict())
    counted = ("aten.mm", "aten.addmm", "aten.bmm") if kind in MULTIPLIED else ("aten.mm", "aten.addmm")
    matrices = sum(measured.get(name, 0) for name in counted)
    assert math.isclose(matrices, (matmul_flops_per_token(model) + MULTIPLIED.get(kind, 0)) * tokens, rel_tol=0.01)
