"""MPT: attention with ALiBi and a plain feed-forward block, no biases.

The embedding is tied.
"""

from __future__ import annotations

from typing import final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer


@final
class Mpt(Family):
    """MPT-7B and MPT-30B (MosaicML, 2023)."""

    model_types = ("mpt",)
    tied_kinds = model_types

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms and a plain feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, hidden = f"blocks.{index}", c.integer("expansion_ratio", default=4) * c.width
        attention = blocks.grouped_query(c, f"{module}.attn", kv_heads=c.heads)
        return blocks.decoder(c, attention, blocks.plain(c, f"{module}.ffn", hidden))
