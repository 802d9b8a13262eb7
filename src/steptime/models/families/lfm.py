"""LFM 2 and 3: short gated convolutions and grouped-query attention.

Most layers have convolutions. The models are dense or have experts.
"""

from __future__ import annotations

import math
from typing import final

from steptime.models import blocks, blocks_state_space
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer

LAYER_TYPES = ("conv", "full_attention", "sliding_attention")


@final
class Lfm(Family):
    """LFM2 (arXiv 2511.23404), LFM2-MoE and LFM3 of Liquid AI.

    A convolution layer projects its input to two gates and values. The product of the values with one gate passes a
    causal convolution of `conv_L_cache` taps. Between tokens, the layer keeps all inputs of the taps except one. LFM3
    has a gate per head and norms after its blocks.
    """

    model_types = ("lfm2", "lfm2_moe", "lfm3")
    tie_fields = ("tie_word_embeddings", "tie_embedding")
    tied_kinds = model_types

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention or a convolution, norms, and a dense block or experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, kind = f"layers.{index}", self._kind(c, index)
        mixer = self._convolution(c, f"{module}.conv") if kind == "conv" else self._attention(c, f"{module}.self_attn", kind)
        norms: tuple[str, ...] = ("operator_norm", "ffn_norm")
        if self.kind(c) == "lfm3" and c.flag("use_sandwich_norm", default=True):
            norms += ("post_operator_norm", "post_ffn_norm")
        name = "convolution" if kind == "conv" else "attention"
        return blocks.decoder(c, mixer, self._feed_forward(c, f"{module}.feed_forward", index), norms=norms, mixer=name)

    def _attention(self, c: Config, module: str, kind: str) -> blocks.Block:
        bias = self.kind(c) == "lfm3" and c.flag("attention_bias", default=False)
        block = blocks.grouped_query(
            c,
            module,
            bias=bias,
            qk_norm=c.head_dim,
            window=c.integer("sliding_window") if kind == "sliding_attention" else math.inf,
        )
        if self.kind(c) == "lfm3" and c.flag("use_attention_gate", default=True):
            block += blocks.linear(c, f"{module}.g_proj", c.width, c.heads, split_limit=c.heads)
        return block

    def _convolution(self, c: Config, module: str) -> blocks.Block:
        taps, bias = c.integer("conv_L_cache", default=3), c.flag("conv_bias", default=False)
        ops = (
            blocks.linear(c, f"{module}.in_proj", c.width, 3 * c.width, bias=bias),
            blocks_state_space.convolution(c, c.width, taps, bias=bias),
            blocks.linear(c, f"{module}.out_proj", c.width, c.width, bias=bias),
        )
        state = blocks_state_space.state(c, heads=c.width, channels=c.width, kernel=taps, name="convolution")
        return blocks.Block(ops, (state,))

    def _feed_forward(self, c: Config, module: str, index: int) -> blocks.Block:
        kind = self.kind(c)
        if kind == "lfm2_moe" and index >= c.integer("num_dense_layers", default=2, least=0):
            count = c.integer("num_experts", "num_local_experts")
            return blocks.experts(c, module, c.integer("moe_intermediate_size"), count=count)

        hidden = c.integer("block_ff_dim", "intermediate_size")
        if kind == "lfm2" and c.flag("block_auto_adjust_ff_dim", default=True):
            # The reference shrinks the width for three matrices, then rounds it up.
            hidden = 2 * hidden // 3
            if c.has("block_ffn_dim_multiplier"):
                multiple = c.integer("block_multiple_of", default=256)
                hidden = -(-int(c.number("block_ffn_dim_multiplier") * hidden) // multiple) * multiple

        return blocks.gated(c, module, hidden)

    def _kind(self, c: Config, index: int) -> str:
        if kind := c.layer_kind(index, LAYER_TYPES):
            return kind
        return "full_attention" if index in c.indices("full_attn_idxs", default=range(c.depth)) else "conv"
