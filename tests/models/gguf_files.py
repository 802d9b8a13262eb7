"""Writes small GGUF files: headers with metadata and tensors, and zeros where the weights would be.

The layout is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; block sizes are those of ggml-common.h.
"""

from __future__ import annotations

import struct
from math import prod
from pathlib import Path

TYPES = {  # number, values of a block, bytes of a block
    "F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q5_0": (6, 32, 22), "Q8_0": (8, 32, 34), "Q2_K": (10, 256, 84),
    "Q3_K": (11, 256, 110), "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210), "IQ4_XS": (23, 256, 136),
    "BF16": (30, 1, 2), "MXFP4": (39, 32, 17),
}  # fmt: skip


def text(value: str, order: str) -> bytes:
    raw = value.encode()
    return struct.pack(f"{order}Q", len(raw)) + raw


def value(one, order: str) -> bytes:
    """A value with its type before it: whole numbers as u32, or i64 below 0, texts, flags, lists of one of these."""
    if isinstance(one, list):
        items = [value(item, order) for item in one]
        return (
            struct.pack(f"{order}I", 9)
            + (items[0][:4] if items else struct.pack(f"{order}I", 4))
            + (struct.pack(f"{order}Q", len(one)) + b"".join(item[4:] for item in items))
        )
    if isinstance(one, bool):
        return struct.pack(f"{order}I?", 7, one)
    if isinstance(one, float):
        return struct.pack(f"{order}If", 6, one)
    if isinstance(one, int):
        return struct.pack(f"{order}II", 4, one) if one >= 0 else struct.pack(f"{order}Iq", 11, one)
    return struct.pack(f"{order}I", 8) + text(one, order)


def size_of(kind: str, shape) -> int:
    """Bytes of a tensor of a type."""
    _, values, size = TYPES[kind]
    return prod(shape) // values * size


def header(metadata: dict, tensors: dict, *, version: int = 3, order: str = "<", alignment: int = 32) -> tuple[bytes, int]:
    """The bytes of a header up to the first tensor, and those of the tensors with what pads them; shapes are outputs first."""
    found = b"GGUF" + struct.pack(f"{order}IQQ", version, len(tensors), len(metadata))
    for key, one in metadata.items():
        found += text(key, order) + value(one, order)
    at = 0
    for name, (kind, shape) in tensors.items():
        sizes = tuple(reversed(shape))
        found += text(name, order) + struct.pack(f"{order}I{len(sizes)}QIQ", len(sizes), *sizes, TYPES[kind][0], at)
        at += -(-size_of(kind, shape) // alignment) * alignment
    return found + bytes(-len(found) % alignment), at


def written(path: Path, metadata: dict, tensors: dict, **told) -> Path:
    """Write a file."""
    begin, size = header(metadata, tensors, **told)
    path.write_bytes(begin + bytes(size))
    return path


def llama(layers: int = 4):
    """Llama in Q4_K with half of the values and of the down-projections in Q6_K, as Q4_K_M mixes them, and rope_freqs."""
    width, hidden, heads, kv_heads, head, rows = 256, 768, 4, 2, 64, 512
    metadata = {
        "general.architecture": "llama", "general.name": "Small Llama", "llama.block_count": layers,
        "llama.context_length": 8192, "llama.embedding_length": width, "llama.feed_forward_length": hidden,
        "llama.attention.head_count": heads, "llama.attention.head_count_kv": kv_heads, "llama.rope.dimension_count": head,
        "llama.rope.freq_base": 500000.0, "llama.vocab_size": rows, "general.file_type": 15,
        "tokenizer.ggml.tokens": [f"t{i}" for i in range(rows)], "tokenizer.ggml.scores": [0.0] * rows,
    }  # fmt: skip
    tensors = {"token_embd.weight": ("Q4_K", (rows, width)), "rope_freqs.weight": ("F32", (head // 2,))}
    for layer in range(layers):
        more, place = "Q6_K" if layer % 2 else "Q4_K", f"blk.{layer}."
        tensors |= {
            f"{place}attn_norm.weight": ("F32", (width,)),
            f"{place}attn_q.weight": ("Q4_K", (heads * head, width)),
            f"{place}attn_k.weight": ("Q4_K", (kv_heads * head, width)),
            f"{place}attn_v.weight": (more, (kv_heads * head, width)),
            f"{place}attn_output.weight": ("Q4_K", (width, heads * head)),
            f"{place}ffn_norm.weight": ("F32", (width,)),
            f"{place}ffn_gate.weight": ("Q4_K", (hidden, width)),
            f"{place}ffn_up.weight": ("Q4_K", (hidden, width)),
            f"{place}ffn_down.weight": (more, (width, hidden)),
        }
    return metadata, tensors | {"output_norm.weight": ("F32", (width,)), "output.weight": ("Q6_K", (rows, width))}


def qwen3moe(layers: int = 2):
    """Qwen 3 with experts in Q8_0."""
    width, hidden, heads, kv_heads, head, rows, experts = 128, 96, 4, 2, 64, 256, 8
    metadata = {
        "general.architecture": "qwen3moe", "qwen3moe.block_count": layers, "qwen3moe.context_length": 40960,
        "qwen3moe.embedding_length": width, "qwen3moe.feed_forward_length": 384, "qwen3moe.attention.head_count": heads,
        "qwen3moe.attention.head_count_kv": kv_heads, "qwen3moe.attention.key_length": head,
        "qwen3moe.attention.value_length": head, "qwen3moe.expert_count": experts, "qwen3moe.expert_used_count": 2,
        "qwen3moe.expert_feed_forward_length": hidden,
    }  # fmt: skip
    tensors = {"token_embd.weight": ("Q8_0", (rows, width)), "output.weight": ("Q8_0", (rows, width))}
    for layer in range(layers):
        place = f"blk.{layer}."
        tensors |= {
            f"{place}attn_norm.weight": ("F32", (width,)),
            f"{place}attn_q.weight": ("Q8_0", (heads * head, width)),
            f"{place}attn_k.weight": ("Q8_0", (kv_heads * head, width)),
            f"{place}attn_v.weight": ("Q8_0", (kv_heads * head, width)),
            f"{place}attn_q_norm.weight": ("F32", (head,)),
            f"{place}attn_k_norm.weight": ("F32", (head,)),
            f"{place}attn_output.weight": ("Q8_0", (width, heads * head)),
            f"{place}ffn_norm.weight": ("F32", (width,)),
            f"{place}ffn_gate_inp.weight": ("F32", (experts, width)),
            f"{place}ffn_gate_exps.weight": ("Q8_0", (experts, hidden, width)),
            f"{place}ffn_up_exps.weight": ("Q8_0", (experts, hidden, width)),
            f"{place}ffn_down_exps.weight": ("Q8_0", (experts, width, hidden)),
        }
    return metadata, tensors | {"output_norm.weight": ("F32", (width,))}


def deepseek2(layers: int = 3):
    """DeepSeek-V3 as newer converters write it: keys and values of the latent apart, one dense layer, biases that balance."""
    width, hidden, heads, rows, experts, q_rank, rank, rope, plain, value_dim = 256, 256, 4, 512, 4, 256, 256, 64, 128, 128
    metadata = {
        "general.architecture": "deepseek2", "deepseek2.block_count": layers, "deepseek2.context_length": 163840,
        "deepseek2.embedding_length": width, "deepseek2.feed_forward_length": 768, "deepseek2.attention.head_count": heads,
        "deepseek2.attention.head_count_kv": 1, "deepseek2.attention.key_length": rank + rope,
        "deepseek2.attention.value_length": rank, "deepseek2.attention.key_length_mla": plain + rope,
        "deepseek2.attention.value_length_mla": value_dim, "deepseek2.attention.q_lora_rank": q_rank,
        "deepseek2.attention.kv_lora_rank": rank, "deepseek2.rope.dimension_count": rope,
        "deepseek2.leading_dense_block_count": 1, "deepseek2.expert_count": experts, "deepseek2.expert_used_count": 2,
        "deepseek2.expert_shared_count": 1, "deepseek2.expert_feed_forward_length": hidden,
    }  # fmt: skip
    tensors = {"token_embd.weight": ("Q4_K", (rows, width)), "output.weight": ("Q6_K", (rows, width))}
    for layer in range(layers):
        place = f"blk.{layer}."
        tensors |= {
            f"{place}attn_norm.weight": ("F32", (width,)),
            f"{place}attn_q_a.weight": ("Q4_K", (q_rank, width)),
            f"{place}attn_q_a_norm.weight": ("F32", (q_rank,)),
            f"{place}attn_q_b.weight": ("Q4_K", (heads * (plain + rope), q_rank)),
            f"{place}attn_kv_a_mqa.weight": ("Q8_0", (rank + rope, width)),
            f"{place}attn_kv_a_norm.weight": ("F32", (rank,)),
            f"{place}attn_k_b.weight": ("Q8_0", (heads, rank, plain)),
            f"{place}attn_v_b.weight": ("Q8_0", (heads, value_dim, rank)),
            f"{place}attn_output.weight": ("Q4_K", (width, heads * value_dim)),
            f"{place}ffn_norm.weight": ("F32", (width,)),
        }
        if layer == 0:
            sizes = {"ffn_gate": (768, width), "ffn_up": (768, width), "ffn_down": (width, 768)}
            tensors |= {f"{place}{name}.weight": ("Q4_K", shape) for name, shape in sizes.items()}
            continue
        for name, shape in {"gate": (hidden, width), "up": (hidden, width), "down": (width, hidden)}.items():
            tensors[f"{place}ffn_{name}_exps.weight"] = ("Q4_K", (experts, *shape))
            tensors[f"{place}ffn_{name}_shexp.weight"] = ("Q5_K", shape)
        tensors[f"{place}ffn_gate_inp.weight"] = ("F32", (experts, width))
        tensors[f"{place}exp_probs_b.bias"] = ("F32", (experts,))
    return metadata, tensors | {"output_norm.weight": ("F32", (width,))}
