"""Small checkpoints of published formats, with the names, dtypes and shapes that the tools which write them give.

Each function returns a config and its tensors by name, (dtype, shape). Sources: DeepSeek-V3's inference/fp8_cast_bf16.py;
NVIDIA Model Optimizer, export/unified_export_hf.py; openai/gpt-oss-20b; AutoGPTQ's and GPTQModel's QuantLinear; AutoAWQ's
WQLinear_GEMM; compressed-tensors' PackedQuantizationCompressor; bitsandbytes' QuantState.as_dict.
"""

from __future__ import annotations

import json
from math import ceil, prod
from pathlib import Path

import numpy as np

WIDTH, HIDDEN, HEADS, KV_HEADS, HEAD, ROWS, LAYERS = 256, 576, 4, 2, 64, 320, 3
KEPT = {"BF16": 2, "F16": 2, "F32": 4, "U8": 1, "I8": 1, "F8_E4M3": 1, "I32": 4, "I64": 8}
WORDS = {
    "BF16": "bfloat16", "F16": "float16", "F32": "float32", "U8": "uint8", "I8": "int8", "F8_E4M3": "float8_e4m3fn",
    "I32": "int32", "I64": "int64",
}  # fmt: skip
MATRICES = {
    "self_attn.q_proj": (WIDTH, HEADS * HEAD),
    "self_attn.k_proj": (WIDTH, KV_HEADS * HEAD),
    "self_attn.v_proj": (WIDTH, KV_HEADS * HEAD),
    "self_attn.o_proj": (HEADS * HEAD, WIDTH),
    "mlp.gate_proj": (WIDTH, HIDDEN),
    "mlp.up_proj": (WIDTH, HIDDEN),
    "mlp.down_proj": (HIDDEN, WIDTH),
}


def llama(matrix, *, base="BF16", config=None):
    """A Llama whose matrices `matrix(inputs, outputs)` stores, by the endings of their names."""
    fields = {
        "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": HIDDEN, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "vocab_size": ROWS,
        "torch_dtype": WORDS[base], "tie_word_embeddings": False,
    }  # fmt: skip
    tensors = {"model.embed_tokens.weight": (base, (ROWS, WIDTH)), "lm_head.weight": (base, (ROWS, WIDTH))}
    tensors["model.norm.weight"] = (base, (WIDTH,))
    for layer in range(LAYERS):
        place = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{place}{norm}.weight"] = (base, (WIDTH,))
        for name, (inputs, outputs) in MATRICES.items():
            for ending, held in matrix(inputs, outputs).items():
                tensors[f"{place}{name}.{ending}"] = held
    return fields | (config or {}), tensors


def bf16():
    return llama(lambda n, m: {"weight": ("BF16", (m, n))})


def fp16():
    return llama(lambda n, m: {"weight": ("F16", (m, n))}, base="F16")


def fp8_tensor():
    told = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "ignore": ["lm_head"]}
    fields, tensors = llama(
        lambda n, m: {"weight": ("F8_E4M3", (m, n)), "weight_scale": ("F32", ()), "input_scale": ("F32", ())},
        config={"quantization_config": told},
    )
    for layer in range(LAYERS):
        for name in "kv":
            tensors[f"model.layers.{layer}.self_attn.{name}_proj.{name}_scale"] = ("F32", ())
    return fields, tensors


def nvfp4():
    told = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
    return llama(
        lambda n, m: {
            "weight": ("U8", (m, n // 2)),
            "weight_scale": ("F8_E4M3", (m, n // 16)),
            "weight_scale_2": ("F32", ()),
            "input_scale": ("F32", ()),
        },
        config={"quantization_config": told},
    )


def nvfp4_packed():
    weights = {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group", "symmetric": True}
    inputs = {**weights, "dynamic": "local"}
    groups = {"group_0": {"weights": weights, "input_activations": inputs, "targets": ["Linear"]}}
    told = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]}
    return llama(
        lambda n, m: {
            "weight_packed": ("U8", (m, n // 2)),
            "weight_scale": ("F8_E4M3", (m, n // 16)),
            "weight_global_scale": ("F32", (1,)),
            "input_global_scale": ("F32", (1,)),
        },
        config={"quantization_config": told},
    )


def mxfp8():
    told = {"quant_method": "modelopt", "quant_algo": "MXFP8", "ignore": ["lm_head"]}
    return llama(
        lambda n, m: {"weight": ("F8_E4M3", (m, n)), "weight_scale": ("U8", (m, n // 32))},
        config={"quantization_config": told},
    )


def gptq():
    told = {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False, "sym": True}
    return llama(
        lambda n, m: {
            "qweight": ("I32", (n // 8, m)),
            "qzeros": ("I32", (ceil(n / 64), m // 8)),
            "scales": ("F16", (ceil(n / 64), m)),
            "g_idx": ("I32", (n,)),
        },
        base="F16",
        config={"quantization_config": told},
    )


def awq():
    told = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
    return llama(
        lambda n, m: {
            "qweight": ("I32", (n, m // 8)),
            "qzeros": ("I32", (n // 64, m // 8)),
            "scales": ("F16", (n // 64, m)),
        },
        base="F16",
        config={"quantization_config": told},
    )


def packed(*, symmetric=True):
    weights = {"num_bits": 4, "type": "int", "group_size": 64, "strategy": "group", "symmetric": symmetric, "actorder": None}
    groups = {"group_0": {"weights": weights, "input_activations": None, "targets": ["Linear"]}}
    told = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups, "ignore": ["lm_head"]}

    def matrix(n, m):
        held = {
            "weight_packed": ("I32", (m, n // 8)),
            "weight_scale": ("BF16", (m, n // 64)),
            "weight_shape": ("I64", (2,)),
        }
        return held if symmetric else held | {"weight_zero_point": ("I32", (m // 8, n // 64))}

    return llama(matrix, config={"quantization_config": told})


def fp8_channel():
    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
    inputs = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
    groups = {"group_0": {"weights": weights, "input_activations": inputs, "targets": ["Linear"]}}
    told = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": groups, "ignore": ["lm_head"]}
    return llama(
        lambda n, m: {"weight": ("F8_E4M3", (m, n)), "weight_scale": ("BF16", (m, 1))},
        config={"quantization_config": told},
    )


def nf4(*, nested=False):
    told = {
        "quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": nested, "bnb_4bit_compute_dtype": "bfloat16",
    }  # fmt: skip

    def matrix(n, m):
        blocks = ceil(n * m / 64)
        state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [m, n]}
        held = {"weight": ("U8", (n * m // 2, 1)), "weight.quant_map": ("F32", (16,))}
        if nested:
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.04405477270483971}
            held["weight.absmax"] = ("U8", (blocks,))
            held["weight.nested_absmax"] = ("F32", (ceil(blocks / 256),))
            held["weight.nested_quant_map"] = ("F32", (256,))
        else:
            held["weight.absmax"] = ("F32", (blocks,))
        return held | {"weight.quant_state.bitsandbytes__nf4": ("U8", (len(json.dumps(state)),))}

    return llama(matrix, config={"quantization_config": told})


def fp8_blocks():
    """DeepSeek-V3: latent attention, one dense layer, experts, a layer that predicts further tokens."""
    heads, rank, q_rank, rope, plain, value, hidden, experts = 4, 64, 96, 32, 64, 64, 192, 4
    told = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    fields = {
        "model_type": "deepseek_v3", "hidden_size": WIDTH, "intermediate_size": HIDDEN, "moe_intermediate_size": hidden,
        "num_hidden_layers": 2, "num_attention_heads": heads, "num_key_value_heads": heads, "vocab_size": ROWS,
        "kv_lora_rank": rank, "q_lora_rank": q_rank, "qk_rope_head_dim": rope, "qk_nope_head_dim": plain,
        "v_head_dim": value, "n_routed_experts": experts, "num_experts_per_tok": 2, "n_shared_experts": 1,
        "first_k_dense_replace": 1, "num_nextn_predict_layers": 1, "n_group": 1, "topk_group": 1, "torch_dtype": "bfloat16",
        "quantization_config": told,
    }  # fmt: skip
    tensors = {}

    def matrix(name, inputs, outputs):
        tensors[f"{name}.weight"] = ("F8_E4M3", (outputs, inputs))
        tensors[f"{name}.weight_scale_inv"] = ("F32", (ceil(outputs / 128), ceil(inputs / 128)))

    def gated(name, width):
        matrix(f"{name}.gate_proj", WIDTH, width)
        matrix(f"{name}.up_proj", WIDTH, width)
        matrix(f"{name}.down_proj", width, WIDTH)

    for name, shape in {"model.embed_tokens": (ROWS, WIDTH), "lm_head": (ROWS, WIDTH), "model.norm": (WIDTH,)}.items():
        tensors[f"{name}.weight"] = ("BF16", shape)
    for layer in range(3):
        place = f"model.layers.{layer}."
        attention = f"{place}self_attn."
        matrix(f"{attention}q_a_proj", WIDTH, q_rank)
        matrix(f"{attention}q_b_proj", q_rank, heads * (plain + rope))
        matrix(f"{attention}kv_a_proj_with_mqa", WIDTH, rank + rope)
        matrix(f"{attention}kv_b_proj", rank, heads * (plain + value))
        matrix(f"{attention}o_proj", heads * value, WIDTH)
        norms = {"input_layernorm": WIDTH, "post_attention_layernorm": WIDTH}
        norms |= {"self_attn.q_a_layernorm": q_rank, "self_attn.kv_a_layernorm": rank}
        for name, size in norms.items():
            tensors[f"{place}{name}.weight"] = ("BF16", (size,))
        if layer == 0:
            gated(f"{place}mlp", HIDDEN)
            continue
        tensors[f"{place}mlp.gate.weight"] = ("BF16", (experts, WIDTH))
        tensors[f"{place}mlp.gate.e_score_correction_bias"] = ("F32", (experts,))
        gated(f"{place}mlp.shared_experts", hidden)
        for expert in range(experts):
            gated(f"{place}mlp.experts.{expert}", hidden)
    ahead = "model.layers.2."
    tensors[f"{ahead}eh_proj.weight"] = ("BF16", (WIDTH, 2 * WIDTH))
    for name in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"{ahead}{name}.weight"] = ("BF16", (WIDTH,))
    for name in ("embed_tokens", "shared_head.head"):
        tensors[f"{ahead}{name}.weight"] = ("BF16", (ROWS, WIDTH))
    told["modules_to_not_convert"] = ["eh_proj"]
    return fields, tensors


def mxfp4():
    """gpt-oss: experts in MXFP4 with biases in bf16, all experts of a layer in one tensor."""
    experts, hidden = 4, 192
    fields = {
        "model_type": "gpt_oss", "hidden_size": WIDTH, "intermediate_size": hidden, "num_hidden_layers": 2,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "vocab_size": ROWS,
        "num_local_experts": experts, "num_experts_per_tok": 2, "sliding_window": 128, "torch_dtype": "bfloat16",
        "quantization_config": {
            "quant_method": "mxfp4",
            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
        },
    }  # fmt: skip
    tensors = {"model.embed_tokens.weight": ("BF16", (ROWS, WIDTH)), "lm_head.weight": ("BF16", (ROWS, WIDTH))}
    tensors["model.norm.weight"] = ("BF16", (WIDTH,))
    for layer in range(2):
        place = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{place}{norm}.weight"] = ("BF16", (WIDTH,))
        tensors[f"{place}self_attn.sinks"] = ("BF16", (HEADS,))
        for name, (inputs, outputs) in list(MATRICES.items())[:4]:
            tensors[f"{place}{name}.weight"] = ("BF16", (outputs, inputs))
            tensors[f"{place}{name}.bias"] = ("BF16", (outputs,))
        tensors[f"{place}mlp.router.weight"] = ("BF16", (experts, WIDTH))
        tensors[f"{place}mlp.router.bias"] = ("BF16", (experts,))
        for name, inputs, outputs in (("gate_up_proj", WIDTH, 2 * hidden), ("down_proj", hidden, WIDTH)):
            tensors[f"{place}mlp.experts.{name}_blocks"] = ("U8", (experts, outputs, inputs // 32, 16))
            tensors[f"{place}mlp.experts.{name}_scales"] = ("U8", (experts, outputs, inputs // 32))
            tensors[f"{place}mlp.experts.{name}_bias"] = ("BF16", (experts, outputs))
    return fields, tensors


def written(folder: Path, fields: dict, tensors: dict, *, shards: int = 2) -> Path:
    """Write a checkpoint with the safetensors package, in shards with an index, or in one file."""
    from safetensors import TensorSpec, serialize_file

    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    sizes = {name: prod(shape) * KEPT[dtype] for name, (dtype, shape) in tensors.items()}
    zeros = np.zeros(max(sizes.values()), dtype=np.uint8)  # every tensor's bytes; it outlives the calls below
    held = {
        name: TensorSpec(dtype=WORDS[dtype], shape=list(shape), data_ptr=zeros.ctypes.data, data_len=sizes[name])
        for name, (dtype, shape) in tensors.items()
    }
    if shards == 1:
        serialize_file(held, str(folder / "model.safetensors"), {"format": "pt"})
        return folder
    places = {name: f"model-{1 + i % shards:05d}-of-{shards:05d}.safetensors" for i, name in enumerate(held)}
    for file in dict.fromkeys(places.values()):
        part = {name: one for name, one in held.items() if places[name] == file}
        serialize_file(part, str(folder / file), {"format": "pt"})
    index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
