"""GPT-NeoX and Pythia: attention in parallel to a plain feed-forward block.

They have two norms and rotary positions.
"""

from __future__ import annotations

from typing import final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer


@final
class GptNeox(Family):
    """GPT-NeoX-20B (arXiv 2204.06745), Pythia (arXiv 2304.01373) and Japanese NeoX.

    The Japanese NeoX has one bias in its last layer.
    """

    model_types = ("gpt_neox", "gpt_neox_japanese")
    tied_kinds = ("gpt_neox_japanese",)
    norm_bias = True

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms and a plain feed-forward block, all with biases.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        japanese = self.kind(c) == "gpt_neox_japanese"
        bias = not japanese and c.flag("attention_bias", default=True)
        attention = blocks.grouped_query(c, f"layers.{index}.attention", kv_heads=c.heads, bias=bias)

        # The Japanese NeoX adds the bias of its attention output only in the last layer.
        if japanese and index == c.depth - 1:
            attention += blocks.small(c, "dense_bias", c.width)
        multiple = c.integer("intermediate_multiple_size", default=4) * c.width
        hidden = multiple if japanese else c.integer("intermediate_size")
        feed_forward = blocks.plain(c, f"layers.{index}.mlp", hidden, bias=not japanese)

        return blocks.decoder(c, attention, feed_forward, norm_bias=True)
