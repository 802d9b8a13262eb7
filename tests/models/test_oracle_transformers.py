"""The reference implementations as oracle: parameters equal to the last one, FLOPs of a prompt within a per cent.

Every model of the catalogue whose architecture `transformers` implements is built on PyTorch's meta device from the
same config. Needs the extra `oracle`.
"""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

import steptime as st
from steptime.catalog.data_files import files, read_file
from steptime.models.model import active_parameters, cache_bytes, matmul_flops_per_token, pairs, prefill_flops, total_parameters
from steptime.models.model_loading import read_model

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

CONFIGS = {name: data["config"] for name, path in sorted(files("models").items()) if "config" in (data := read_file(path))}

SAME_LAYERS = {"kimi_k2": "deepseek_v3", "mistral_large_3": "deepseek_v3", "mimo": "qwen2", "internlm2": "llama"}
"""Architectures that transformers has under another name."""

UNKNOWN = {
    "arctic": "removed from transformers",
    "bailing_moe_v2": "code of the checkpoint only",
    "deepseek": "code of the checkpoint only",
    "deepseek_ref": "fields of DeepSeek's own inference code; deepseek_v4 covers the shape",
    "git": "Grok-2's config names another model; code of SGLang only",
    "grok-1": "code of the checkpoint only",
    "hunyuan": "code of the checkpoint only",
    "kimi_k3": "code of the checkpoint only",
    "minimax_m3": "fields of the checkpoint's own code; minimax_m3_vl covers the shape",
    "minimax_text_01": "fields of the checkpoint's own code",
    "rwkv7": "code of flash-linear-attention only",
    "nemotron-nas": "code of the checkpoint only",
    "step3_vl": "code of the checkpoint only",
}

FLAT = {"step3p5": "step3p7", "step3p7": "step3p7"}
"""Architectures whose catalogue configs hold at the top what transformers nests in text_config."""

TOWERS = re.compile(r"(^|\.)(vision|visual|audio|multi_modal|mm_projector|embed_vision|embed_audio)")
EXPERTS = re.compile(r"\.experts\.|\.block_sparse_moe\.(in|out)put_linear\.")
COUNTS = ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_k", "moe_top_k")


@pytest.fixture(scope="module")
def auto() -> Any:
    """Return transformers' auto module, quiet and offline."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    return transformers.models.auto


def as_transformers(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config as transformers reads it: its own kind, unquantised, with fields where it looks for them."""
    fields = copy.deepcopy(config)
    if fields["model_type"] == "gemma3n":
        fields = {"tie_word_embeddings": True} | fields["text_config"]  # its tower is timm's
    elif fields["model_type"] in FLAT:
        fields = {"model_type": FLAT[fields["model_type"]], "text_config": fields}
    text = fields.get("text_config") or {}
    if "tie_word_embeddings" in text:
        fields.setdefault("tie_word_embeddings", text["tie_word_embeddings"])
    for part in (fields, text):
        part.pop("quantization_config", None)
    rope = fields.get("rope_scaling") or {}
    if rope.get("type") == "longrope":  # without these transformers refuses the config; they hold no parameters
        rotated = int(fields["hidden_size"] / fields["num_attention_heads"] * fields.get("partial_rotary_factor", 1.0))
        factors = dict.fromkeys(("short_factor", "long_factor"), [1.0] * (rotated // 2))
        fields["rope_scaling"] = factors | {"short_mscale": 1.0, "long_mscale": 1.0} | rope
    if "attention_head_dim" in fields:
        fields.setdefault("head_dim", fields["attention_head_dim"])
    fields["model_type"] = SAME_LAYERS.get(fields["model_type"], fields["model_type"])
    return fields


def built(auto: Any, config: dict[str, Any], device: str, **options: Any) -> Any:
    """Return transformers' model of the config with random or, on the meta device, without weights."""
    import torch

    fields = as_transformers(config)
    kind = fields.pop("model_type")
    ours = auto.configuration_auto.AutoConfig.for_model(kind, **fields)
    seeing = kind in auto.modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    model = auto.AutoModelForImageTextToText if seeing else auto.AutoModelForCausalLM
    with torch.device(device):
        return model.from_config(ours, **options)


def routed_share(config: dict[str, Any]) -> float:
    """Return the share of routed experts that a token uses."""
    text = config.get("text_config") or config
    fields = text | (text.get("ffn_config") or {})
    of, chosen = (next((fields[n] for n in names if fields.get(n)), 1) for names in (COUNTS, CHOSEN))
    first = [value[0] if isinstance(value, list) else value for value in (chosen, of)]
    idle = text.get("zero_expert_num", 1 if text.get("model_type") == "zaya" else 0)  # chosen alike often, without weights
    return first[0] / (first[1] + idle)


def spare(config: dict[str, Any]) -> int:
    """Return the parameters that the reference allots to experts that return their input, which no checkpoint has."""
    idle = config.get("zero_expert_num", 0)
    return idle and config["num_layers"] * idle * 2 * config["expert_ffn_hidden_size"] * config["hidden_size"]


def compared(auto: Any, name: str) -> dict[str, Any]:
    """Return the verdict on a model that transformers can build: its parameters, total and active, equal or not."""
    config = CONFIGS[name]
    reference = built(auto, config, "meta")
    sizes = {n: p.numel() for n, p in reference.named_parameters()}
    unused = spare(config)
    routed = sum(size for n, size in sizes.items() if EXPERTS.search(n)) - unused
    towers = sum(size for n, size in sizes.items() if TOWERS.search(n))
    text = sum(sizes.values()) - towers - unused
    if not towers:  # Gemma 3n, whose tower was left out
        config = {name: value for name, value in config.items() if name not in ("vision_config", "audio_config")}
    # a config without a tower describes the text part, though transformers adds one
    total = text + (towers if "vision_config" in config else 0)
    active = text - routed * (1 - routed_share(config))
    model = read_model(config, name=name)
    equal = total_parameters(model) == total and math.isclose(active_parameters(model), active, abs_tol=0.5)
    kind = as_transformers(config)["model_type"]
    return {"verdict": "equal" if equal else "differs", "reference": kind, "total": total}


def held_to_what_is_published(name: str) -> dict[str, Any]:
    """Return the verdict on a model that transformers lacks: another model's equal shape, or how far the maker's total is."""
    model = st.load_model(name)
    total, stated = total_parameters(model), model.published.get("total")
    row = {"why": UNKNOWN[CONFIGS[name]["model_type"]], "total": int(total)}
    same = [n for n in CONFIGS if CONFIGS[n].get("model_type") not in UNKNOWN and total_parameters(st.load_model(n)) == total]
    if same:
        return {"verdict": "same shape", "as": same[0]} | row
    if not stated:
        return {"verdict": "no reference"} | row
    nominal = "nominal" in str(model.published.get("basis"))
    return {"verdict": "nominal" if nominal else "published", "deviation": round(total / stated - 1, 4)} | row


def verdict(auto: Any, name: str) -> dict[str, Any]:
    """Return the line of docs/oracle.json that a model should have."""
    return held_to_what_is_published(name) if CONFIGS[name].get("model_type") in UNKNOWN else compared(auto, name)


TABLE = Path(__file__).parents[2] / "docs" / "oracle.json"
ORACLE = json.loads(TABLE.read_text(encoding="utf-8"))["models"] if TABLE.is_file() else {}
WITHIN = 0.005
BEYOND = {
    "stepfun-ai/step3": "the maker counts 5 B of a vision tower, which the config at hand leaves out",
    "xai-org/grok-1": "announced as 314 B; the published shape gives 315.7 B, and the difference is not explained",
    "moonshotai/Kimi-K3": "stated as 2.8 T, to which the count rounds",
}
"""Models that transformers lacks and whose count is further than half a per cent from the maker's total."""


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_equal_the_reference(auto: Any, name: str) -> None:
    """Each verdict is the one that docs/oracle.json holds; `python -m tests.models.oracle_verdicts` writes it."""
    found = verdict(auto, name)
    assert found["verdict"] != "differs"
    assert found == ORACLE.get(name)
    if found["verdict"] == "published":
        assert (abs(found["deviation"]) > WITHIN) == (name in BEYOND)


def test_the_table_of_verdicts_has_every_model_and_no_other() -> None:
    assert sorted(ORACLE) == sorted(CONFIGS)


BASE = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 128,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
LATENT = {
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 12,
    "num_key_value_heads": 4, "head_dim": 8,
}  # fmt: skip
SHARED = {
    "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 32, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
LOCAL = {"num_local_experts": 8, "num_experts_per_tok": 2}
MIXED = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 8}
GPT = {"n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 512, "vocab_size": 128, "tie_word_embeddings": False}
GEMMA = BASE | MIXED | {"head_dim": 24, "tie_word_embeddings": True}

TINY: dict[str, dict[str, Any]] = {
    "llama": BASE,
    "mistral": BASE | {"sliding_window": 8},
    "ministral3": BASE | {
        "head_dim": 24,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 2.0, "beta_fast": 32.0, "beta_slow": 1.0,
                            "original_max_position_embeddings": 64, "llama_4_scaling_beta": 0.1},
    },
    "mixtral": BASE | LOCAL,
    "smollm3": BASE | {"pad_token_id": 0},
    "granite": BASE,
    "granitemoe": BASE | LOCAL,
    "qwen2": BASE,
    "qwen2_moe": BASE | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                         "shared_expert_intermediate_size": 48, "use_sliding_window": False},
    "qwen3": BASE | {"head_dim": 24},
    "qwen3_moe": BASE | {"head_dim": 24, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                         "decoder_sparse_step": 2},
    "deepseek_v2": BASE | LATENT | SHARED | {"topk_method": "greedy"},
    "deepseek_v3": BASE | LATENT | SHARED,
    "glm4_moe": BASE | SHARED | {"head_dim": 16, "attention_bias": True, "use_qk_norm": True},
    "glm4_moe_lite": BASE | LATENT | SHARED,
    "gpt_oss": BASE | LOCAL | MIXED | {"head_dim": 16},
    "phi3": BASE | {"pad_token_id": 0, "sliding_window": 8},
    "phimoe": BASE | LOCAL | {"attention_bias": True, "lm_head_bias": True, "sliding_window": 512},
    "olmo2": BASE,
    "olmo3": BASE | MIXED,
    "olmoe": BASE | {"num_experts": 8, "num_experts_per_tok": 2},
    "exaone4": BASE | MIXED,
    "cohere": BASE | {"use_qk_norm": True},
    "cohere2": BASE | MIXED,
    "minimax_m2": BASE | LOCAL | {"head_dim": 24, "rotary_dim": 12},
    "ernie4_5_moe": BASE | {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 32, "moe_num_shared_experts": 2,
                            "moe_layer_start_index": 1, "moe_layer_end_index": -1, "moe_layer_interval": 1},
    "hunyuan_v1_moe": BASE | {"num_experts": 8, "moe_topk": 2, "num_shared_expert": 1, "head_dim": 16},
    "llama4_text": BASE | LOCAL | {"intermediate_size_mlp": 128, "interleave_moe_layer_step": 2, "head_dim": 16,
                                   "attention_chunk_size": 64, "pad_token_id": 0},
    "gemma2": GEMMA,
    "gemma3_text": GEMMA,
    "gemma3n_text": GEMMA | {"laurel_rank": 8, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 128,
                             "altup_num_inputs": 4, "num_kv_shared_layers": 2, "intermediate_size": [96] * 4,
                             "activation_sparsity_pattern": [0.0] * 4},
    "gemma4_text": GEMMA | {"global_head_dim": 32, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 128,
                            "num_kv_shared_layers": 2, "use_double_wide_mlp": True, "enable_moe_block": True,
                            "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 32},
    "gpt2": GPT | {"tie_word_embeddings": True},
    "gptj": GPT | {"rotary_dim": 8},
    "gpt_neox": BASE,
    "falcon": BASE | {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 2},
    "opt": BASE | {"ffn_dim": 96, "word_embed_proj_dim": 64, "tie_word_embeddings": True},
    "bloom": {"hidden_size": 64, "n_layer": 3, "n_head": 4, "vocab_size": 128, "tie_word_embeddings": True},
    "mpt": {"d_model": 64, "n_heads": 4, "n_layers": 3, "expansion_ratio": 4, "max_seq_len": 512, "vocab_size": 128,
            "tie_word_embeddings": True},
    "starcoder2": BASE | {"sliding_window": 8},
    "dbrx": {"d_model": 64, "n_heads": 4, "n_layers": 3, "max_seq_len": 512, "vocab_size": 128,
             "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
             "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 8, "moe_top_k": 2, "ffn_act_fn": {"name": "silu"},
                            "hidden_size": 64}},
}  # fmt: skip
"""A small model of each family, given alike to both sides."""

EVERY_EXPERT = ("llama4_text",)
"""Architectures whose reference sends every token through every expert and zeroes what is not chosen."""


DELTA = {
    "head_dim": 24, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "layer_types": ["linear_attention", "full_attention"] * 2,
}  # fmt: skip
EXPERTS_DELTA = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48}

MIXERS: dict[str, dict[str, Any]] = {
    "deepseek_v32": BASE | LATENT | SHARED | {"index_head_dim": 16, "index_n_heads": 2, "index_topk": 8},
    "glm_moe_dsa": BASE | LATENT | SHARED | {
        "index_head_dim": 16, "index_n_heads": 2, "index_topk": 8, "indexer_types": ["full", "shared"] * 2,
        "mlp_layer_types": ["dense"] + ["sparse"] * 3,
    },
    "granitemoehybrid": BASE | LOCAL | {
        "layer_types": ["mamba", "attention"] * 2, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16,
        "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_chunk_size": 16, "shared_intermediate_size": 48,
    },
    "mimo_v2_flash": BASE | {
        "head_dim": 24, "v_head_dim": 16, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_head_dim": 24,
        "swa_v_head_dim": 16, "sliding_window": 8, "sliding_window_size": 8, "hybrid_layer_pattern": [0, 1, 0, 1],
        "layer_types": ["full_attention", "sliding_attention"] * 2,
        "moe_layer_freq": [0, 1, 1, 1], "moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "n_group": 1, "topk_group": 1, "partial_rotary_factor": 0.5,
    },
    "nemotron_h": BASE | {
        "hybrid_override_pattern": "ME*-", "head_dim": 16, "mamba_head_dim": 16, "mamba_num_heads": 8, "n_groups": 2,
        "ssm_state_size": 16, "conv_kernel": 4, "chunk_size": 16, "expand": 2, "n_routed_experts": 8, "n_group": 1,
        "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 32, "topk_group": 1,
        "moe_shared_expert_intermediate_size": 48, "mlp_hidden_act": "relu2",
    },
    "qwen3_next": BASE | DELTA | EXPERTS_DELTA,
    "qwen3_5_text": BASE | DELTA,
    "qwen3_5_moe_text": BASE | DELTA | EXPERTS_DELTA,
}  # fmt: skip
"""Models whose mixers the reference computes in another way (in chunks, densely): only their matrices are compared."""


VISION = {
    "hidden_size": 32, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2, "image_size": 56,
    "patch_size": 14, "num_channels": 3, "projector_input_dim": 40, "projector_output_dim": 48, "vision_output_dim": 48,
    "pixel_shuffle_ratio": 0.5, "model_type": "llama4_vision_model",
}  # fmt: skip
SMALL = [
    *(fields | {"model_type": kind} for kind, fields in (TINY | MIXERS).items()),
    {"model_type": "llama4", "text_config": TINY["llama4_text"] | {"model_type": "llama4_text"}, "vision_config": VISION},
    TINY["opt"] | {"model_type": "opt", "word_embed_proj_dim": 32, "do_layer_norm_before": False},
    TINY["granite"] | {"model_type": "granite", "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    TINY["starcoder2"] | {"model_type": "starcoder2", "use_bias": False},
]


@pytest.mark.parametrize("config", SMALL, ids=lambda config: config["model_type"])
def test_parameters_of_small_models_equal_the_reference(auto: Any, config: dict[str, Any]) -> None:
    total = sum(parameter.numel() for parameter in built(auto, config, "meta").parameters())
    assert total_parameters(read_model(config)) == total


@pytest.mark.parametrize("kind", [kind for kind in TINY if "kv_lora_rank" not in TINY[kind] and kind != "falcon"])
def test_cache_equals_the_reference(auto: Any, kind: str) -> None:
    """Values that the reference caches; it expands latents and Falcon's shared heads first, so those are left out."""
    import torch

    config, tokens = TINY[kind] | {"model_type": kind}, 6
    reference = built(auto, config, "cpu").eval().requires_grad_(False)
    cache = reference(torch.arange(tokens)[None] + 3, use_cache=True).past_key_values
    values = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers if layer.keys is not None)
    assert cache_bytes(read_model(config, kv_format="bf16"), tokens) == 2 * values


def flops_of(auto: Any, config: dict[str, Any], tokens: int) -> dict[str, int]:
    """Return the FLOPs of the reference's prompt of `tokens`, logits of all of them, by operator."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    options = {"attn_implementation": "eager", "dtype": torch.float32}
    reference = built(auto, config, "cpu", **options).eval().requires_grad_(False)
    if reference._can_set_experts_implementation():
        reference.set_experts_implementation("eager")
    with FlopCounterMode(display=False) as counter:
        reference(torch.arange(tokens)[None] % 100 + 3, use_cache=False)
    return {str(operator): flops for operator, flops in counter.get_flop_counts()["Global"].items()}


def expected_flops(model: st.Model, tokens: int, *, every_expert: bool = False) -> float:
    """Return what the reference should compute for a prompt: logits of every token, every pair, perhaps every expert."""
    logits = (tokens - 1) * sum(op.flops_per_row for op in model.stem if op.rows == "outputs")
    square = sum(
        count * a.flops_per_pair_prefill * (tokens**2 - float(pairs(a, tokens, 0.0)))
        for layer, count in model.layers
        for a in layer.attention
    )  # eager attention computes every pair and masks
    idle = sum(
        count * op.flops_per_row * (op.experts - op.active) * tokens
        for layer, count in model.layers
        for op in layer.ops
        if op.rows == "routed"
    )
    return float(prefill_flops(model, tokens)) + logits + square + (idle if every_expert else 0.0)


@pytest.mark.parametrize("kind", TINY)
def test_prompt_flops_equal_the_reference(auto: Any, kind: str) -> None:
    config, tokens = TINY[kind] | {"model_type": kind}, 48
    expected = expected_flops(read_model(config), tokens, every_expert=kind in EVERY_EXPERT)
    assert math.isclose(sum(flops_of(auto, config, tokens).values()), expected, rel_tol=0.01)


@pytest.mark.parametrize("kind", MIXERS)
def test_matrix_flops_equal_the_reference(auto: Any, kind: str) -> None:
    config, tokens = MIXERS[kind] | {"model_type": kind}, 48
    measured = flops_of(auto, config, tokens)
    matrices = measured["aten.mm"] + measured.get("aten.addmm", 0)
    assert math.isclose(matrices, matmul_flops_per_token(read_model(config)) * tokens, rel_tol=0.01)
