"""Turns the metadata of a GGUF file into the fields of a config.json.

The metadata are checked against the shapes of tensors. The names of modules and the keys are those of
gguf-py/gguf/constants.py of llama.cpp (TENSOR_NAMES). The meaning of the keys for each architecture is in
convert_hf_to_gguf.py of llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from steptime.catalog.data_files import is_dir, is_file
from steptime.errors import DataFileError, UnknownName, short_repr
from steptime.models.gguf_header import Long, read_shards, shard_paths
from steptime.models.model import Model
from steptime.models.safetensors_header import SHARD, Headers, Tensor

BLOCK: Final = re.compile(r"blk\.(\d+)\.(.+)")
# Older files have one tensor per expert.
EXPERT: Final = re.compile(r"ffn_(gate|up|down)\.(\d+)")
# Names of modules outside the layers.
AROUND: Final = {
    "token_embd": "embed_tokens", "output": "lm_head", "output_norm": "final_norm", "position_embd": "position_embeddings",
    "token_embd_norm": "embed_norm",
}  # fmt: skip
# Names of modules inside a layer.
INSIDE: Final = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj", "attn_sinks": "self_attn.sinks", "attn_gate": "self_attn.gate_proj",
    "attn_q_a": "self_attn.q_a_proj", "attn_q_b": "self_attn.q_b_proj", "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_b": "self_attn.kv_b_proj", "attn_k_b": "self_attn.kv_b_proj", "attn_v_b": "self_attn.kv_b_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "ffn_gate_inp": "mlp.router",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate", "exp_probs_b": "mlp.e_score_correction",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj", "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj", "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj", "ffn_down_exps": "mlp.experts.down_proj",
    "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
}  # fmt: skip

# Architectures of image and video models (city96/ComfyUI-GGUF, tools/convert.py).
DIFFUSION = ("flux", "sd1", "sd3", "sdxl", "aura", "hidream", "cosmos", "ltxv", "hyvid", "wan", "lumina2", "qwen_image")


def named_here(module: str) -> str:
    """Return the name of a GGUF module in steptime.

    Args:
        module: Name in the GGUF file, without ".weight".

    Returns:
        The name here; unknown names keep their ending.

    >>> named_here("blk.3.attn_kv_a_mqa"), named_here("blk.0.ffn_norm"), named_here("token_embd"), named_here("rope_freqs")
    ('layers.3.self_attn.kv_a_proj_with_mqa', 'layers.0.ffn_norm', 'embed_tokens', 'rope_freqs')
    """
    block = BLOCK.fullmatch(module)
    if block is None:
        return AROUND.get(module, module)
    inside = block[2]
    if expert := EXPERT.fullmatch(inside):
        return f"layers.{block[1]}.mlp.experts.{expert[2]}.{expert[1]}_proj"
    return f"layers.{block[1]}.{INSIDE.get(inside, inside)}"


Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Meta:
    """The metadata of a GGUF file by keys of its architecture, and its tensors."""

    path: Path
    architecture: str
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def error(self, key: str, problem: str) -> DataFileError:
        """Return the error about a key, for the caller to raise.

        Args:
            key: Key without the architecture.
            problem: What is wrong with it.

        Returns:
            The error.
        """
        return DataFileError(self.path, f"{self.architecture}.{key} {problem}")

    def has(self, key: str) -> bool:
        """Return whether a key is present.

        Args:
            key: Key without the architecture.

        Returns:
            True if it is present.
        """
        return f"{self.architecture}.{key}" in self.metadata

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a whole number from 0.

        The value may be an array with one number per layer if all are equal.

        Args:
            key: Key without the architecture.
            default: Value if the key is absent; None: absence is an error.

        Returns:
            The number.

        Raises:
            DataFileError: The key is absent, differs between layers, or is not a whole number from 0.
        """
        value = self.metadata.get(f"{self.architecture}.{key}")
        if isinstance(value, list) and value and all(element == value[0] for element in value):
            value = value[0]
        if value is None and default is not None:
            return default
        if isinstance(value, list | Long):
            raise self.error(key, "differs between layers; use a config.json of the model")
        if type(value) is not int or value < 0:
            raise self.error(key, "is missing" if value is None else f"must be a whole number from 0, got {short_repr(value)}")
        return value

    def rows(self, name: str, default: int | None = None, axis: int = -2) -> int:
        """Return the outputs of a tensor's matrix, or its size along another axis.

        Args:
            name: Name of the tensor.
            default: Value if the tensor is absent; None: absence is an error.
            axis: Axis of the shape, from the end.

        Returns:
            The size.

        Raises:
            DataFileError: The tensor is absent.
        """
        tensor = self.tensors.get(name)
        if tensor is None or len(tensor.shape) < -axis:
            if default is None:
                raise DataFileError(self.path, f"lacks the tensor {name}")
            return default
        return tensor.shape[axis]

    def any(self, *names: str) -> bool:
        """Return whether any layer has a tensor with one of these names.

        Args:
            names: Names without the layer.

        Returns:
            True if there is one.
        """
        ends = tuple(f".{name}" for name in names)
        return any(tensor.endswith(ends) for tensor in self.tensors)


def _common(m: Meta) -> Fields:
    """Return the fields of every architecture."""
    heads, width, depth = m.integer("attention.head_count"), m.integer("embedding_length"), m.integer("block_count")
    if not 0 < heads <= width:
        raise m.error("attention.head_count", f"must be from 1 to the width {width}, got {heads}")
    fields: Fields = {
        "hidden_size": width,
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "num_key_value_heads": m.integer("attention.head_count_kv", heads) or heads,
        "head_dim": m.integer("attention.key_length", m.rows("blk.0.attn_q.weight", width) // heads),
        "vocab_size": m.rows("token_embd.weight"),
        "tie_word_embeddings": "output.weight" not in m.tensors,
        "attention_bias": m.any("attn_q.bias", "attn_qkv.bias"),
        "mlp_bias": m.any("ffn_up.bias"),
    }
    if m.has("context_length"):
        fields["max_position_embeddings"] = m.integer("context_length")
    if m.has("feed_forward_length"):
        fields["intermediate_size"] = m.integer("feed_forward_length")
    if m.integer("attention.sliding_window", 0):
        fields["sliding_window"] = m.integer("attention.sliding_window")

    # Metadata and tensors are independent claims, so one is checked by the other.
    columns = m.rows("token_embd.weight", axis=-1)
    if columns != width:
        raise m.error("embedding_length", f"is {width:,}, but token_embd has {columns:,} columns")

    return fields


def _experts(m: Meta, count: str, *, width: str = "moe_intermediate_size") -> Fields:
    """Return the fields of routed experts; `count` is the field of their number."""
    hidden = _expert_width(m, "ffn_up_exps", m.integer("expert_feed_forward_length", 0))
    return {count: m.integer("expert_count"), "num_experts_per_tok": m.integer("expert_used_count"), width: hidden}


def _expert_width(m: Meta, name: str, default: int | None = 0) -> int:
    """Return the hidden width of experts from the first tensor of a name.

    The first layers of many models are dense.
    """
    ending = f".{name}.weight"
    return m.rows(next((tensor for tensor in m.tensors if tensor.endswith(ending)), ending[1:]), default)


def _routed(kind: str, count: str = "num_local_experts") -> Callable[[Meta], Fields]:
    """Return a reader of models whose only hidden width is that of the experts."""
    return lambda m: {"model_type": kind, **_experts(m, count, width="intermediate_size")}


def _llama(m: Meta) -> Fields:
    return _routed("mixtral")(m) if m.integer("expert_count", 0) else {"model_type": "llama"}


def _qwen_moe(kind: str) -> Callable[[Meta], Fields]:
    def fields(m: Meta) -> Fields:
        shared = _expert_width(m, "ffn_up_shexp")
        return {"model_type": kind, **_experts(m, "num_experts"), "shared_expert_intermediate_size": shared}

    return fields


def _moe(kind: str) -> Callable[[Meta], Fields]:
    """Return a reader of leading dense layers, then shared and routed experts.

    Multi-token-prediction layers come last in the file.
    """

    def fields(m: Meta) -> Fields:
        experts = _experts(m, "n_routed_experts")
        hidden = experts["moe_intermediate_size"]
        # The block count of llama.cpp includes the multi-token-prediction layers.
        draft_layers = m.integer("nextn_predict_layers", 0)
        return {
            **experts,
            "model_type": kind,
            "n_shared_experts": _expert_width(m, "ffn_up_shexp") // hidden if hidden else 0,
            "first_k_dense_replace": m.integer("leading_dense_block_count", 0),
            "n_group": m.integer("expert_group_count", 1) or 1,
            "topk_group": m.integer("expert_group_used_count", 1) or 1,
            "num_nextn_predict_layers": draft_layers,
            "num_hidden_layers": m.integer("block_count") - draft_layers,
            "use_qk_norm": m.any("attn_q_norm.weight"),
        }

    return fields


def _deepseek(m: Meta) -> Fields:
    """Return the fields of latent attention.

    Newer files give the sizes of heads in keys with `_mla`, and those of the latent in the other keys.
    """
    rope = m.integer("rope.dimension_count")
    ranks = {"q_lora_rank": m.integer("attention.q_lora_rank")} if m.integer("attention.q_lora_rank", 0) else {}
    return {
        **_moe("deepseek_v3")(m),
        **ranks,
        "head_dim": None,
        "num_key_value_heads": m.integer("attention.head_count"),
        "kv_lora_rank": m.integer("attention.kv_lora_rank"),
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": m.integer("attention.key_length_mla", m.integer("attention.key_length", 0)) - rope,
        "v_head_dim": m.integer("attention.value_length_mla", m.integer("attention.value_length", 0)),
    }


def _falcon(m: Meta) -> Fields:
    kv_heads = m.integer("attention.head_count_kv", 1)
    newer, hidden = m.any("attn_norm_2.weight"), m.integer("feed_forward_length", 4 * m.integer("embedding_length"))
    attention = {"new_decoder_architecture": newer, "multi_query": kv_heads == 1, "num_kv_heads": kv_heads}
    return {"model_type": "falcon", **attention, "ffn_hidden_size": hidden}


def _stablelm(m: Meta) -> Fields:
    switches = {"use_parallel_residual": not m.any("ffn_norm.weight"), "qk_layernorm": m.any("attn_q_norm.weight")}
    return {"model_type": "stablelm", "use_qkv_bias": m.any("attn_q.bias"), **switches}


def _gpt2(kind: str) -> Callable[[Meta], Fields]:
    def fields(m: Meta) -> Fields:
        single = m.integer("attention.head_count_kv", 0) == 1
        sizes = {"n_positions": m.rows("position_embd.weight"), "n_inner": m.integer("feed_forward_length")}
        return {"model_type": kind, "multi_query": single, **sizes}

    return fields


def _ernie(m: Meta) -> Fields:
    experts = _experts(m, "moe_num_experts")
    hidden = experts["moe_intermediate_size"]
    return {
        **experts,
        "model_type": "ernie4_5_moe",
        "moe_k": experts["num_experts_per_tok"],
        "moe_num_shared_experts": _expert_width(m, "ffn_up_shexp") // hidden if hidden else 0,
        "moe_layer_start_index": m.integer("leading_dense_block_count", 0),
        "moe_layer_interval": m.integer("interleave_moe_layer_step", 1) or 1,
    }


def _hunyuan(m: Meta) -> Fields:
    shared, experts = _expert_width(m, "ffn_up_shexp", None), _experts(m, "num_experts")
    shared_expert = {"moe_topk": experts["num_experts_per_tok"], "num_shared_expert": 1, "intermediate_size": shared}
    return {**experts, "model_type": "hunyuan_v1_moe", "use_qk_norm": m.any("attn_q_norm.weight"), **shared_expert}


ARCHITECTURES: Final[dict[str, str | Callable[[Meta], Fields]]] = {
    "llama": _llama, "mistral3": "mistral", "granite": "granite", "smollm3": "smollm3", "granitemoe": _routed("granitemoe"),
    "internlm2": "internlm2", "seed_oss": lambda m: {
        "model_type": "seed_oss", "attention_out_bias": m.any("attn_output.bias"),
    },
    "qwen2": lambda m: {"model_type": "qwen2", "qkv_bias": m.any("attn_q.bias")}, "qwen2moe": _qwen_moe("qwen2_moe"),
    "qwen3": "qwen3", "qwen3moe": _qwen_moe("qwen3_moe"), "gemma": "gemma", "gemma2": "gemma2", "gemma3": "gemma3_text",
    "phi3": "phi3", "deepseek": _moe("deepseek"), "deepseek2": _deepseek, "glm4": "glm4", "chatglm": "glm",
    "glm4moe": _moe("glm4_moe"), "gpt-oss": _routed("gpt_oss"), "starcoder2": "starcoder2",
    "starcoder": _gpt2("gpt_bigcode"), "gpt2": _gpt2("gpt2"), "gptneox": "gpt_neox",
    "command-r": lambda m: {"model_type": "cohere", "use_qk_norm": m.any("attn_q_norm.weight")}, "cohere2": "cohere2",
    "olmo": "olmo", "olmo2": lambda m: {"model_type": "olmo3" if m.integer("attention.sliding_window", 0) else "olmo2"},
    "olmoe": _routed("olmoe", "num_experts"), "falcon": _falcon, "stablelm": _stablelm, "exaone4": "exaone4",
    "dots1": _moe("dots1"), "ernie4_5": "ernie4_5", "ernie4_5-moe": _ernie, "hunyuan-moe": _hunyuan, "nemotron": "nemotron",
    "arcee": "arcee", "minimax-m2": _routed("minimax_m2"),
}  # fmt: skip
"""The `model_type` of each GGUF architecture, or a reader of it and of further fields."""


def config_fields(meta: Meta) -> Fields:
    """Return the fields of a config.json for the metadata of a GGUF file.

    Args:
        meta: Metadata and tensors.

    Returns:
        The fields.

    Raises:
        DataFileError: A key or a tensor is missing or wrong.
    """
    dtype_values: dict[str, int] = {}
    for tensor in meta.tensors.values():
        dtype_values[tensor.dtype] = dtype_values.get(tensor.dtype, 0) + tensor.values

    # The type of most values counts as the quantization of the model.
    main = max(dtype_values, key=lambda name: dtype_values[name])
    quantized = main not in ("F32", "F16", "BF16")
    quantization = {"quantization_config": {"quant_method": "gguf", "type": main.lower()}} if quantized else {}
    reader = ARCHITECTURES[meta.architecture]
    further_fields = {"model_type": reader} if isinstance(reader, str) else reader(meta)
    return {**_common(meta), "torch_dtype": "bfloat16" if main == "BF16" else "float16", **further_fields, **quantization}


def _meta(path: Path) -> tuple[Meta, int]:
    metadata, tensors, files = read_shards(path)
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        problem = "is missing" if architecture is None else f"must be a text, got {short_repr(architecture)}"
        raise DataFileError(path, f"general.architecture {problem}")
    if architecture in DIFFUSION:
        problem = f"general.architecture is {short_repr(architecture)}: a diffusion model, which denoises images or video"
        raise DataFileError(path, f"{problem}; steptime has models that generate tokens (`steptime models` lists them)")
    if architecture not in ARCHITECTURES:
        hint = f"Known: {', '.join(sorted(ARCHITECTURES))}. A config.json of the same model works instead."
        raise UnknownName("architecture of a GGUF file", architecture, ARCHITECTURES, hint)
    if not tensors:
        raise DataFileError(path, "has no tensors; a file with only a vocabulary is not a model")
    return Meta(path, architecture, metadata, {tensor.name: tensor for tensor in tensors}), files


def fields_of_file(path: Path) -> Fields:
    """Return the fields of a config.json for a GGUF file.

    Args:
        path: The file.

    Returns:
        The fields.
    """
    return config_fields(_meta(path)[0])


def gguf_path(path: Path) -> Path:
    """Return the GGUF file of a path.

    Args:
        path: The file, or a folder with one GGUF model; its shards count as one.

    Returns:
        The first file of the model.

    Raises:
        DataFileError: The folder has no GGUF model, or several.
    """
    if not is_dir(path):
        return path
    # A file mmproj is a vision tower in its own file.
    files = [file for file in sorted(path.glob("*.gguf")) if is_file(file) and not file.name.startswith("mmproj")]
    first_files = {_stem(file): file for file in reversed(files)}
    if not first_files:
        raise DataFileError(path, "has neither a config.json nor a GGUF file")
    if len(first_files) > 1:
        raise DataFileError(
            path, f"has {len(first_files)} GGUF models; give the path of one: {', '.join(sorted(first_files)[:4])}, ..."
        )
    return next(iter(first_files.values()))


def _stem(path: Path) -> str:
    numbered = SHARD.fullmatch(path.name)
    return numbered[1] if numbered else path.stem


@lru_cache(maxsize=64)
def model_of_file(path: Path, _signature: tuple[Any, ...], kv_format: str = "") -> Model:
    """Return the model of a GGUF file, each layer in the types of its tensors.

    Args:
        path: The file.
        _signature: Signature of the files, the key of the cache.
        kv_format: Number format of the KV cache; "": bf16.

    Returns:
        The model.
    """
    from steptime.models.model_loading import read_model

    meta, files = _meta(path)
    headers = Headers(kind="gguf", tensors=tuple(meta.tensors.values()), files=files)
    model = read_model(config_fields(meta), name=_stem(path), kv_format=kv_format, headers=headers, renamed=named_here)
    place = str(shard_paths(path)[0].resolve())
    return replace(model, checkpoint=replace(model.checkpoint, place=place))
