"""Architectures of GGUF files against transformers and llama.cpp: the tensors that transformers builds, named by gguf-py.

A small model of each kind is built without weights; llama.cpp's own map of names says what its converter calls each tensor, and
the metadata are those that `convert_hf_to_gguf.py` writes. All parameters must be found again, but for biases of routers.
"""

from __future__ import annotations

from math import prod

import pytest

import steptime as st
from steptime.models.model import total_parameters
from tests.models import gguf_files

pytestmark = pytest.mark.slow

SIZES = {
    "hidden_size": 128, "intermediate_size": 320, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
    "vocab_size": 256, "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MOE = {"num_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
BESIDE = {
    "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 96,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
}  # fmt: skip
LATENT = {
    "kv_lora_rank": 64, "q_lora_rank": None, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32,
    "num_key_value_heads": 8,
}  # fmt: skip
KINDS = [  # what transformers calls it, what llama.cpp does, and fields besides
    ("llama", "llama", {}), ("mixtral", "llama", {"num_local_experts": 8, "num_experts_per_tok": 2}), ("mistral", "llama", {}),
    ("granite", "granite", {}), ("smollm3", "smollm3", {}), ("seed_oss", "seed_oss", {"head_dim": 16}),
    ("qwen2", "qwen2", {}), ("qwen2_moe", "qwen2moe", {**MOE, "shared_expert_intermediate_size": 192}),
    ("qwen3", "qwen3", {"head_dim": 32}), ("qwen3_moe", "qwen3moe", {**MOE, "head_dim": 32}),
    ("gemma", "gemma", {"head_dim": 32}), ("gemma2", "gemma2", {"head_dim": 32, "sliding_window": 64}),
    ("gemma3_text", "gemma3", {"head_dim": 32, "sliding_window": 64}), ("phi3", "phi3", {}),
    ("deepseek_v2", "deepseek2", {**BESIDE, **LATENT, "topk_method": "greedy"}),
    ("deepseek_v3", "deepseek2", {**BESIDE, **LATENT, "q_lora_rank": 48}), ("glm4", "glm4", {"head_dim": 16}),
    ("glm", "chatglm", {"head_dim": 16}), ("glm4_moe", "glm4moe", {**BESIDE, "head_dim": 32, "use_qk_norm": True}),
    ("gpt_oss", "gpt-oss", {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 32, "sliding_window": 64}),
    ("starcoder2", "starcoder2", {}), ("gpt_neox", "gptneox", {}), ("cohere", "command-r", {}),
    ("cohere2", "cohere2", {"sliding_window": 64}), ("olmo", "olmo", {}), ("olmo2", "olmo2", {}),
    ("olmo3", "olmo2", {"sliding_window": 64}), ("olmoe", "olmoe", {"num_experts": 8, "num_experts_per_tok": 2}),
    ("stablelm", "stablelm", {}), ("stablelm", "stablelm", {"use_qkv_bias": True}),
    ("exaone4", "exaone4", {"sliding_window": 64}), ("dots1", "dots1", {**BESIDE, "head_dim": 32}),
    ("ernie4_5", "ernie4_5", {"head_dim": 16}),
    ("hunyuan_v1_moe", "hunyuan-moe", {"num_experts": 8, "moe_topk": 2, "head_dim": 32}),
    ("nemotron", "nemotron", {}), ("arcee", "arcee", {}),
    ("minimax_m2", "minimax-m2", {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 32}),
]  # fmt: skip
BALANCE = "exp_probs_b"


def stacked(name: str, shape: tuple[int, ...], fused_last: bool) -> dict[str, tuple[int, ...]]:
    """Experts as the converter writes them: gate, up and down apart, outputs before inputs."""
    layer, kind = name.split(".")[2], "bias" if name.endswith("bias") else "weight"
    if "down_proj" in name:
        return {f"blk.{layer}.ffn_down_exps.{kind}": shape}
    if kind == "bias":
        half: tuple[int, ...] = (shape[0], shape[1] // 2)
    else:
        half = (shape[0], shape[2] // 2, shape[1]) if fused_last else (shape[0], shape[1] // 2, shape[2])
    return {f"blk.{layer}.ffn_{part}_exps.{kind}": half for part in ("gate", "up")}


def tensors_of(package, model, kind: str, architecture: str):
    """The tensors of a model by the names of llama.cpp, with their shapes."""
    number = next(one for one, name in package.MODEL_ARCH_NAMES.items() if name == architecture)
    names, found = package.get_tensor_name_map(number, SIZES["num_hidden_layers"]), {}
    for name, values in model.state_dict().items():
        shape = tuple(values.shape)
        if "inv_freq" in name or (name == "lm_head.weight" and model.config.tie_word_embeddings):
            continue
        if ".experts." in name and "correction" not in name:
            found |= stacked(name, shape, kind == "gpt_oss")
            continue
        ways = (name, name.replace("_correction_bias", "_correction.bias"), name.replace("gate.wg", "gate"))
        there = [names.get_name(way, try_suffixes=(".weight", ".bias")) for way in ways]
        if "e_score_correction" in name:
            there.append(f"blk.{name.split('.')[2]}.{BALANCE}.bias")
        told = next((one for one in there if one), None)
        assert told, name
        found[told] = shape
    return found


def metadata_of(config, architecture: str) -> dict:
    """The metadata that the converter writes for a config."""

    def first(*names):
        return next((value for name in names if (value := getattr(config, name, None)) is not None), None)

    heads = config.num_attention_heads
    told = {
        "block_count": config.num_hidden_layers, "embedding_length": config.hidden_size, "context_length": 512,
        "feed_forward_length": config.intermediate_size, "attention.head_count": heads,
        "attention.head_count_kv": heads if architecture == "gptneox" else first("num_key_value_heads"),
        "attention.key_length": first("head_dim"),
        "expert_count": first("num_local_experts", "num_experts", "n_routed_experts"),
        "expert_used_count": first("num_experts_per_tok", "moe_topk"),
        "leading_dense_block_count": first("first_k_dense_replace"),
        "expert_feed_forward_length": first("moe_intermediate_size"), "attention.sliding_window": first("sliding_window"),
    }  # fmt: skip
    if architecture == "deepseek2":
        rank, rope = config.kv_lora_rank, config.qk_rope_head_dim
        told |= {
            "attention.head_count_kv": 1, "attention.key_length": rank + rope, "attention.value_length": rank,
            "attention.key_length_mla": config.qk_nope_head_dim + rope, "attention.value_length_mla": config.v_head_dim,
            "attention.q_lora_rank": config.q_lora_rank, "attention.kv_lora_rank": rank, "rope.dimension_count": rope,
        }  # fmt: skip
    kept = {f"{architecture}.{key}": value for key, value in told.items() if value is not None}
    return {"general.architecture": architecture, **kept}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "architecture", "more"), KINDS)
def test_parameters_are_those_that_transformers_builds(kind, architecture, more, tmp_path):
    package, torch = pytest.importorskip("gguf"), pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.CONFIG_MAPPING[kind](**{**SIZES, **more})
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    shapes = tensors_of(package, model, kind, architecture)
    held = {name: ("F32" if len(shape) == 1 else "BF16", shape) for name, shape in shapes.items()}
    read = st.load_model(gguf_files.written(tmp_path / "small.gguf", metadata_of(config, architecture), held))
    apart = {name: shape for name, shape in shapes.items() if BALANCE in name}
    assert total_parameters(read) == sum(map(prod, shapes.values())) - sum(map(prod, apart.values()))
    assert {one.name for one in read.checkpoint.summary.differences} <= {f"blk.N.{BALANCE}.bias"}
    assert read.notes == ()
