"""StarCoder2: grouped-query attention, a plain feed-forward block, and biases."""

from __future__ import annotations

from typing import final

from steptime.models import blocks, blocks_decoder
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer


@final
class StarCoder2(Family):
    """StarCoder2 (arXiv 2402.19173)."""

    model_types = ("starcoder2",)
    norm_bias = True

    def tied(self, c: Config) -> bool:
        """Return whether embedding and head share one matrix; the default is True.

        Args:
            c: Config of the language model.

        Returns:
            True if the head stores the matrix of the embedding.
        """
        return c.flag("tie_word_embeddings", default=True)

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms and a plain feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        bias = c.flag("use_bias", default=True)
        attention = blocks.grouped_query(
            c,
            f"layers.{index}.self_attn",
            heads=c.heads,
            kv_heads=c.kv_heads,
            head_dim=c.head_dim,
            bias=bias,
            output_bias=bias,
            window=blocks_decoder.window(c, index),
        )
        feed_forward = blocks.plain(c, f"layers.{index}.mlp", c.integer("intermediate_size"), bias=bias)
        return blocks_decoder.decoder(c, attention, feed_forward, norm_bias=True)
