"""What a GGUF file calls modules, and what they are called here (gguf-py/gguf/constants.py of llama.cpp, TENSOR_NAMES)."""

from __future__ import annotations

import re
from typing import Final

BLOCK: Final = re.compile(r"blk\.(\d+)\.(.+)")
EXPERT: Final = re.compile(r"ffn_(gate|up|down)\.(\d+)")  # of files older than one tensor for all experts
AROUND: Final = {
    "token_embd": "embed_tokens", "output": "lm_head", "output_norm": "final_norm", "position_embd": "position_embeddings",
    "token_embd_norm": "embed_norm",
}  # fmt: skip
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


def named_here(module: str) -> str:
    """Return what a module of a GGUF file is called here.

    >>> named_here("blk.3.attn_kv_a_mqa"), named_here("blk.0.ffn_norm"), named_here("token_embd"), named_here("rope_freqs")
    ('layers.3.self_attn.kv_a_proj_with_mqa', 'layers.0.ffn_norm', 'embed_tokens', 'rope_freqs')
    """
    found = BLOCK.fullmatch(module)
    if found is None:
        return AROUND.get(module, module)
    inside = found[2]
    if expert := EXPERT.fullmatch(inside):
        return f"layers.{found[1]}.mlp.experts.{expert[2]}.{expert[1]}_proj"
    return f"layers.{found[1]}.{INSIDE.get(inside, inside)}"
