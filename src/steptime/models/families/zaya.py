"""ZAYA1: attention with convolutions at a reduced width, experts, a deep router."""

from __future__ import annotations

from dataclasses import replace
from typing import final

from steptime.models import blocks, blocks_decoder, blocks_state_space
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

    def tied(self, c: Config) -> bool:
        """Return whether embedding and head share one matrix; the default is True.

        Args:
            c: Config of the language model.

        Returns:
            True if the head stores the matrix of the embedding.
        """
        return c.flag("tie_word_embeddings", default=True)

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms, scaled residuals and experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        window = blocks_decoder.window_tokens(c, index, local="hybrid_sliding", layer_types=("hybrid", "hybrid_sliding"))
        attention = self._attention(c, f"layers.{index}.self_attn", window)
        experts = self._experts(c, f"layers.{index}.mlp", first=index == 0)
        return blocks_decoder.decoder(c, attention, experts)

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
        bias, term = c.flag("attention_bias", default=False), "projections"
        block = blocks.grouped_query(
            c,
            module,
            heads=c.heads,
            kv_heads=c.kv_heads,
            head_dim=c.head_dim,
            bias=bias,
            output_bias=bias,
            window=window,
        )
        heads, first, second = c.heads + c.kv_heads, c.integer("cca_time0", default=2), c.integer("cca_time1", default=2)
        channels = heads * c.head_dim
        grouped = blocks.linear(c, f"{module}.conv_qk_grouped", second * c.head_dim, channels, term=term, bias=True)
        ops = (
            blocks_state_space.convolution(c, channels, first, bias=True),
            replace(grouped, split_limit=c.kv_heads),
            blocks.small(c, "key scale", c.kv_heads, split="group"),
            blocks.small(c, "residual scales", 8 * c.width),
        )
        state = blocks_state_space.state(
            c, heads=c.kv_heads, values=0, flops_per_value=0, channels=channels, kernel=first + second - 1, name="convolution"
        )

        # The values that come from the token before need its input.
        delayed = state.state_bytes + c.width * c.base_format.bytes

        return block + blocks.Block(ops, (replace(state, state_bytes=delayed, state_flops_per_token=2 * channels * first),))

    def _experts(self, c: Config, module: str, *, first: bool) -> blocks.Block:
        narrow, term = c.integer("router_hidden_size", default=256), "experts"
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
        router = (
            blocks.linear(c, f"{module}.gate.down_proj", c.width, narrow, term=term, bias=True, split="replicated"),
            blocks.norm(c, "router_norm", narrow),
            blocks.linear(c, f"{module}.gate.fc1", narrow, narrow, term=term, bias=True, split="replicated"),
            blocks.linear(c, f"{module}.gate.fc2", narrow, narrow, term=term, bias=True, split="replicated"),
            *(() if first else (blocks.small(c, "router_states_scale", narrow),)),
        )

        return blocks.Block(router) + block
