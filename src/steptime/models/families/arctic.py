"""Snowflake Arctic: a dense transformer with 128 experts parallel to its layers."""

from __future__ import annotations

from typing import final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer


@final
class Arctic(Family):
    """Arctic (Snowflake, 2024-04; `modeling_arctic.py` of its checkpoint).

    The dense block is as wide as the model.
    """

    model_types = ("arctic",)

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, and a dense block or experts with a dense residual block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        bias, hidden = c.flag("attention_bias", default=False), c.integer("intermediate_size")
        attention = blocks.grouped_query(c, f"layers.{index}.self_attn", bias=bias)
        module, period = f"layers.{index}.block_sparse_moe", c.integer("moe_layer_frequency", default=2)

        # Only every `period`th layer has experts.
        if (index + 1) % period:
            return blocks.decoder(c, attention, blocks.gated(c, f"{module}.mlp", hidden))
        experts = blocks.experts(c, module, hidden, count=c.integer("num_local_experts"))

        # With this flag a dense block runs together with the experts, with its own norm.
        if not c.flag("parallel_attn_mlp_res", default=False):
            return blocks.decoder(c, attention, experts)
        residual = blocks.gated(c, f"layers.{index}.residual_mlp", c.width)

        return blocks.decoder(c, attention, experts + residual, norms=(*blocks.PRE, "residual_norm"))
