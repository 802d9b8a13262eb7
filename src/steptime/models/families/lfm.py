"""LFM 2 and 3: short gated convolutions and grouped-query attention.

Most layers have convolutions. The models are dense or have experts.
"""

from __future__ import annotations

import math
from typing import final

from steptime.models import blocks, blocks_decoder, blocks_state_space
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer, Op

LAYER_TYPES = ("conv", "full_attention", "sliding_attention")


@final
class Lfm(Family):
    """LFM2 (arXiv 2511.23404), LFM2-MoE and LFM3 of Liquid AI.

    A convolution layer projects its input to two gates and values. The product of the values with one gate passes a
    causal convolution of `conv_L_cache` taps. Between tokens, the layer keeps all inputs of the taps except one. LFM3
    has a gate per head and norms after its blocks.
    """

    model_types = ("lfm2", "lfm2_moe", "lfm3")

    def tied(self, c: Config) -> bool:
        """Return whether embedding and head share one matrix; the default is True.

        Args:
            c: Config of the language model.

        Returns:
            True if the head stores the matrix of the embedding.
        """
        return c.flag("tie_word_embeddings", "tie_embedding", default=True)

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
        if self._is_version_3(c) and c.flag("use_sandwich_norm", default=True):
            norms += ("post_operator_norm", "post_ffn_norm")
        name = "convolution" if kind == "conv" else "attention"
        return blocks_decoder.decoder(c, mixer, self._feed_forward(c, f"{module}.feed_forward", index), norms=norms, mixer=name)

    def _attention(self, c: Config, module: str, kind: str) -> blocks.Block:
        bias = self._is_version_3(c) and c.flag("attention_bias", default=False)
        block = blocks.grouped_query(
            c,
            module,
            heads=c.heads,
            kv_heads=c.kv_heads,
            head_dim=c.head_dim,
            bias=bias,
            output_bias=bias,
            qk_norm=c.head_dim,
            window=c.integer("sliding_window") if kind == "sliding_attention" else math.inf,
        )
        gate: tuple[Op, ...] = ()
        if self._is_version_3(c) and c.flag("use_attention_gate", default=True):
            gate = (blocks.linear(c, f"{module}.g_proj", c.width, c.heads, term="projections", split_limit=c.heads),)

        return block + blocks.Block(gate)

    def _convolution(self, c: Config, module: str) -> blocks.Block:
        taps, bias = c.integer("conv_L_cache", default=3), c.flag("conv_bias", default=False)
        ops = (
            blocks.linear(c, f"{module}.in_proj", c.width, 3 * c.width, term="projections", bias=bias),
            blocks_state_space.convolution(c, c.width, taps, bias=bias),
            blocks.linear(c, f"{module}.out_proj", c.width, c.width, term="projections", bias=bias),
        )
        state = blocks_state_space.state(
            c, heads=c.width, values=0, flops_per_value=0, channels=c.width, kernel=taps, name="convolution"
        )
        return blocks.Block(ops, (state,))

    def _feed_forward(self, c: Config, module: str, index: int) -> blocks.Block:
        kind = c.text("model_type", default="lfm2")
        if kind == "lfm2_moe" and index >= c.integer("num_dense_layers", default=2, least=0):
            return blocks_decoder.shared_and_routed(
                c,
                module,
                c.integer("moe_intermediate_size"),
                count=c.integer("num_experts", "num_local_experts"),
                active=c.integer("num_experts_per_tok"),
                shared=0,
            )

        hidden = c.integer("block_ff_dim", "intermediate_size")
        if kind == "lfm2" and c.flag("block_auto_adjust_ff_dim", default=True):
            # The reference shrinks the width for three matrices, then rounds it up.
            hidden = 2 * hidden // 3
            if c.has("block_ffn_dim_multiplier"):
                multiple = c.integer("block_multiple_of", default=256)
                hidden = -(-int(c.number("block_ffn_dim_multiplier") * hidden) // multiple) * multiple

        return blocks.gated(c, module, hidden)

    def _kind(self, c: Config, index: int) -> str:
        if c.has("layer_types"):
            return c.choices("layer_types", valid_names=LAYER_TYPES, length=index + 1)[index]
        full = c.indices("full_attn_idxs", default=range(c.depth))
        return "full_attention" if index in full else "conv"

    def _is_version_3(self, c: Config) -> bool:
        return c.text("model_type", default="lfm2") == "lfm3"
