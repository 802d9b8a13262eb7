"""MiniMax-M2: grouped-query attention and many small experts in every layer."""

from __future__ import annotations

from typing import final

from steptime.models import blocks, blocks_decoder
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer


@final
class MiniMaxM2(Family):
    """MiniMax-M2 to M2.7.

    Queries and keys are normalized over all heads together.
    """

    model_types = ("minimax_m2",)

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms and experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        attention = blocks.grouped_query(
            c,
            f"layers.{index}.self_attn",
            heads=c.heads,
            kv_heads=c.kv_heads,
            head_dim=c.head_dim,
            qk_norm=c.heads * c.head_dim if c.flag("use_qk_norm", default=True) else 0,
        )
        experts = blocks.experts(
            c,
            f"layers.{index}.block_sparse_moe",
            c.integer("intermediate_size"),
            count=c.integer("num_local_experts"),
            active=c.integer("num_experts_per_tok"),
        )
        return blocks_decoder.decoder(c, attention, experts)
