"""StarCoder2: grouped-query attention, a plain feed-forward block, and biases."""

from __future__ import annotations

from typing import final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer


@final
class StarCoder2(Family):
    """StarCoder2 (arXiv 2402.19173)."""

    model_types = ("starcoder2",)
    tied_kinds = model_types
    norm_bias = True

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms and a plain feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        bias = c.flag("use_bias", default=True)
        attention = blocks.grouped_query(c, f"layers.{index}.self_attn", bias=bias, window=blocks.window(c, index))
        feed_forward = blocks.plain(c, f"layers.{index}.mlp", c.integer("intermediate_size"), bias=bias)
        return blocks.decoder(c, attention, feed_forward, norm_bias=True)
