"""Inkling: relative positions from a table, short convolutions, and experts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import final

from steptime.models import blocks, blocks_state_space
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer, Op

LAYER_TYPES = ("hybrid", "hybrid_sliding")


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
        kinds = c.choices("layer_types", valid_names=LAYER_TYPES, length=index + 1)
        local, module = kinds[index] == "hybrid_sliding", f"layers.{index}"
        attention = self._attention(c, f"{module}.self_attn", local=local)
        if blocks.is_sparse(c, index):
            feed_forward = self._experts(c, f"{module}.mlp")
        else:
            feed_forward = blocks.gated(c, f"{module}.mlp", c.integer("intermediate_size"))
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
