"""ZAYA1: attention with convolutions at a reduced width, experts, a deep router."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import final

from steptime.models import blocks, blocks_state_space
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer, Op


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
