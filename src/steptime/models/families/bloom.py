"""BLOOM: multi-head attention with ALiBi, a plain feed-forward block, biases.

All matrices have biases, and the embedding has a norm.
"""

from __future__ import annotations

from typing import final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer, Op


@final
class Bloom(Family):
    """BLOOM (arXiv 2211.05100)."""

    model_types = ("bloom",)
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
        module = f"h.{index}"
        attention = blocks.grouped_query(c, f"{module}.self_attention", kv_heads=c.heads, bias=True)
        return blocks.decoder(c, attention, blocks.plain(c, f"{module}.mlp", 4 * c.width, bias=True), norm_bias=True)

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return embedding with its norm, final norm and head, by default tied.

        Args:
            c: Config of the language model.

        Returns:
            The operators.
        """
        embedding, norm, head = super().stem(c)
        return embedding, blocks.norm(c, "embedding_norm", c.width, bias=True), norm, head
