"""MiniMax-M2: grouped-query attention and many small experts in every layer."""

from __future__ import annotations

from typing import final

from steptime.models import blocks
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
        module, qk_norm = f"layers.{index}", c.heads * c.head_dim if c.flag("use_qk_norm", default=True) else 0
        attention = blocks.grouped_query(c, f"{module}.self_attn", qk_norm=qk_norm)
        hidden, count = c.integer("intermediate_size"), c.integer("num_local_experts")
        experts = blocks.experts(c, f"{module}.block_sparse_moe", hidden, count=count)
        return blocks.decoder(c, attention, experts)
