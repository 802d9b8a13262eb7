"""MiniMax-Text-01: lightning attention in seven of eight layers, and experts.

The eighth layer has softmax attention.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

from steptime.models import blocks, blocks_state_space
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer

KINDS = ("linear_attention", "full_attention")


@final
class MiniMaxLightning(Family):
    r"""MiniMax-Text-01 (arXiv 2501.08313): `minimax` of transformers.

    A lightning layer keeps $d \times d$ values per head, in FP32 as in MiniMax's own code. A token decays them, adds an
    outer product and multiplies them by its query.
    """

    model_types = ("minimax_text_01", "minimax")

    def layer(self, c: Config, index: int) -> Layer:
        """Return lightning or softmax attention, two norms, and experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, full = f"layers.{index}", self._is_full_attention(c, index)
        mixer = blocks.grouped_query(c, f"{module}.self_attn") if full else self._lightning(c, f"{module}.self_attn")
        experts = blocks.shared_and_routed(
            c,
            f"{module}.block_sparse_moe",
            c.integer("intermediate_size"),
            count=c.integer("num_local_experts"),
            shared=c.integer("shared_intermediate_size", default=0, least=0),
        )

        return blocks.decoder(c, mixer, experts, mixer="attention" if full else "lightning attention")

    def _lightning(self, c: Config, module: str) -> blocks.Block:
        inner = c.heads * c.head_dim
        ops = (
            blocks.linear(c, f"{module}.qkv_proj", c.width, 3 * inner, split_limit=c.heads),
            blocks.linear(c, f"{module}.output_gate", c.width, inner, split_limit=c.heads),
            blocks.norm(c, "state_norm", inner),
            blocks.linear(c, f"{module}.out_proj", inner, c.width),
        )
        state = blocks_state_space.state(
            c,
            heads=c.heads,
            values=inner * c.head_dim,
            flops_per_value=blocks_state_space.DECAY + blocks_state_space.OUTER + blocks_state_space.READOUT,
        )
        # The norm over all heads needs an all-reduce: vLLM 0.19, linear_attn.py, MiniMaxText01RMSNormTP.
        return blocks.Block(ops, (replace(state, summed=1.0),))

    def _is_full_attention(self, c: Config, index: int) -> bool:
        if kind := c.layer_kind(index, KINDS):
            return kind == "full_attention"
        # 0 is lightning, 1 is softmax.
        return c.marked("attn_type_list", index)
