"""DBRX: grouped-query attention and 16 experts in every layer."""

from __future__ import annotations

from typing import final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer


@final
class Dbrx(Family):
    """DBRX (Databricks, 2024-03)."""

    model_types = ("dbrx",)

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms and experts; their sizes are in nested configs.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, ffn = f"blocks.{index}", c.inner("ffn_config")
        kv_heads = c.inner("attn_config").integer("kv_n_heads")
        attention = blocks.grouped_query(c, f"{module}.norm_attn_norm.attn", kv_heads=kv_heads)
        hidden, count, active = (ffn.integer(name) for name in ("ffn_hidden_size", "moe_num_experts", "moe_top_k"))
        return blocks.decoder(c, attention, blocks.experts(c, f"{module}.ffn", hidden, count=count, active=active))
