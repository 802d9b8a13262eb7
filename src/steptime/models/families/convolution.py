"""Attention with short convolutions: LFM, Zaya and Inkling."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import final

from steptime.models import blocks, blocks_state_space
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


@final
class Zaya(Family):
    """ZAYA1 (arXiv 2511.17127): `zaya` of transformers.

    It has compressed convolutional attention (arXiv 2510.04476). Queries and keys pass a depthwise and a grouped
    convolution. Half of the values come from the token before. A sequence keeps the inputs that the convolutions still
    need. The router is three matrices at `router_hidden_size`, with one class more than experts; this class does
    nothing.
    """

    model_types = ("zaya",)
    tied_kinds = model_types

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms, scaled residuals and experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        local = c.layer_kind(index, ("hybrid", "hybrid_sliding")) == "hybrid_sliding"
        window = c.integer("sliding_window") if local else math.inf
        attention = self._attention(c, f"layers.{index}.self_attn", window)
        experts = self._experts(c, f"layers.{index}.mlp", first=index == 0)
        return blocks.decoder(c, attention, experts)

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return embedding, the scale of its output, final norm and head.

        Args:
            c: Config of the language model.

        Returns:
            The operators.
        """
        embedding, norm, _ = super().stem(c)
        head = blocks.head(c, bias=c.flag("lm_head_bias", default=False))
        return embedding, blocks.small(c, "embedding scale", 2 * c.width), norm, head

    def _attention(self, c: Config, module: str, window: float) -> blocks.Block:
        block = blocks.grouped_query(c, module, bias=c.flag("attention_bias", default=False), window=window)
        heads, first, second = c.heads + c.kv_heads, c.integer("cca_time0", default=2), c.integer("cca_time1", default=2)
        channels = heads * c.head_dim
        grouped = blocks.linear(c, f"{module}.conv_qk_grouped", second * c.head_dim, channels, bias=True)
        ops = (
            blocks_state_space.convolution(c, channels, first, bias=True),
            replace(grouped, split_limit=c.kv_heads),
            blocks.small(c, "key scale", c.kv_heads, split="group"),
            blocks.small(c, "residual scales", 8 * c.width),
        )
        taps = first + second - 1
        state = blocks_state_space.state(c, heads=c.kv_heads, channels=channels, kernel=taps, name="convolution")

        # The values that come from the token before need its input.
        delayed = state.state_bytes + c.width * c.base_format.bytes

        return block + blocks.Block(ops, (replace(state, state_bytes=delayed, state_flops_per_token=2 * channels * first),))

    def _experts(self, c: Config, module: str, *, first: bool) -> blocks.Block:
        narrow = c.integer("router_hidden_size", default=256)
        block = blocks.experts(
            c,
            module,
            c.integer("moe_intermediate_size"),
            count=c.integer("num_experts", "num_local_experts"),
            active=c.integer("num_experts_per_tok", default=1),
            # One class of the router does nothing.
            zero=1,
            router_width=narrow,
        )
        down, fc1, fc2 = (
            blocks.linear(c, f"{module}.gate.{name}", inputs, narrow, term="experts", bias=True, split="replicated")
            for name, inputs in (("down_proj", c.width), ("fc1", narrow), ("fc2", narrow))
        )
        router = blocks.Block((down, blocks.norm(c, "router_norm", narrow), fc1, fc2))
        if not first:
            router += blocks.small(c, "router_states_scale", narrow)

        return router + block


INKLING_LAYERS = ("hybrid", "hybrid_sliding")


@final
class Inkling(Family):
    """Inkling (`inkling_text` of transformers).

    Keys, values and the outputs of both blocks pass a depthwise causal convolution. Each head maps its query to `d_rel`
    values. A table maps these to a bias for each distance up to `rel_extent` (or the window).
    """

    model_types = ("inkling_text",)

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms, convolutions, and a dense block or experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        kinds = c.choices("layer_types", valid_names=INKLING_LAYERS, length=index + 1)
        local, module = kinds[index] == "hybrid_sliding", f"layers.{index}"
        attention = self._attention(c, f"{module}.self_attn", local=local)
        feed_forward = self._experts(c, f"{module}.mlp") if blocks.is_sparse(c, index) else blocks.gated(c, f"{module}.mlp")
        scale = blocks.Block((blocks.small(c, "global_scale", 1),))
        return blocks.decoder(c, attention, feed_forward + scale)

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return embedding with its norm, final norm and head.

        Args:
            c: Config of the language model.

        Returns:
            The operators.
        """
        embedding, norm, head = super().stem(c)
        return embedding, blocks.norm(c, "embed_norm", c.width), norm, head

    def _attention(self, c: Config, module: str, *, local: bool) -> blocks.Block:
        prefix = "swa_" if local else ""
        heads = c.integer(f"{prefix}num_attention_heads", "num_attention_heads")
        kv_heads = c.integer(f"{prefix}num_key_value_heads", "num_key_value_heads")
        head_dim = c.integer(f"{prefix}head_dim", "head_dim")
        window = c.integer("sliding_window_size") if local else math.inf
        block = blocks.grouped_query(
            c, module, heads=heads, kv_heads=kv_heads, head_dim=head_dim, qk_norm=head_dim, window=window
        )
        relative, extent = c.integer("d_rel", default=16), int(window) if local else c.integer("rel_extent")

        # Every query multiplies its own values by the table of all distances.
        table = replace(
            blocks.small(c, "rel_logits_proj", relative * extent, term="projections"),
            flops_per_row=2 * heads * relative * extent,
            inputs=heads * relative,
            outputs=heads * extent,
        )
        kernel, channels = c.integer("conv_kernel_size", default=4), 2 * kv_heads * head_dim + 2 * c.width
        ops = (
            blocks.linear(c, f"{module}.r_proj", c.width, heads * relative, split_limit=heads),
            table,
            blocks_state_space.convolution(c, channels, kernel),
        )
        state = blocks_state_space.state(c, heads=kv_heads, channels=channels, kernel=kernel, name="convolution")

        return block + blocks.Block(ops, (state,))

    def _experts(self, c: Config, module: str) -> blocks.Block:
        block, shared = blocks.shared_and_routed(c, module), c.integer("n_shared_experts", default=0, least=0)
        # A second router weighs the shared experts.
        if not shared:
            return block
        weighing = blocks.linear(c, f"{module}.shared_router", c.width, shared, term="shared experts", split="replicated")
        return block + weighing
