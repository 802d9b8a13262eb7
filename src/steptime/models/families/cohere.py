"""Command R, R+ and A: attention in parallel to feed-forward, with one norm.

The embedding is tied.
"""

from __future__ import annotations

import math
from typing import final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer


@final
class Cohere(Family):
    """Command R and R+ (cohere), Command R7B and A (cohere2, arXiv 2504.00698).

    Three of four layers of cohere2 have a sliding window. With experts (`cohere2_moe` of transformers) the first layers
    may be dense, and shared experts run together with the routed ones.
    """

    model_types = ("cohere", "cohere2", "cohere2_moe")
    default_kind = "cohere2"
    tied_kinds = model_types

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention and feed-forward with one norm.

        Command R+ has gains for the queries and keys of each head.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        first, bias = self.kind(c) == "cohere", c.flag("attention_bias", default=False)
        block = blocks.grouped_query(
            c,
            f"layers.{index}.self_attn",
            bias=bias,
            window=math.inf if first else blocks.window(c, index, period=c.integer("sliding_window_pattern", default=4)),
        )

        # Command R+ has separate gains per head, so the norms are as wide as all heads.
        if first and c.flag("use_qk_norm", default=False):
            block += blocks.norm(c, "q_norm", c.heads * c.head_dim)
            block += blocks.norm(c, "k_norm", c.kv_heads * c.head_dim)

        return blocks.decoder(c, block, self._feed_forward(c, index), norms=("input_norm",))

    def _feed_forward(self, c: Config, index: int) -> blocks.Block:
        module = f"layers.{index}.mlp"
        if self.kind(c) != "cohere2_moe":
            return blocks.gated(c, module, c.integer("intermediate_size"))
        # Leading dense layers may have another hidden width.
        if not blocks.is_sparse(c, index):
            return blocks.gated(c, module, c.integer("prefix_dense_intermediate_size", "intermediate_size"))
        hidden = c.integer("intermediate_size")
        shared = c.integer("num_shared_experts", default=0, least=0) * hidden
        return blocks.shared_and_routed(c, module, hidden, count=c.integer("num_experts"), shared=shared)
