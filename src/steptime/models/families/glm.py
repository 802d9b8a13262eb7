"""GLM-4: grouped-query attention with few KV heads, and two or four norms."""

from __future__ import annotations

from typing import Final, final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer

NORMS: Final = (*blocks.PRE, "post_self_attn_norm", "post_mlp_norm")


@final
class Glm(Family):
    """GLM-4 (`glm`, arXiv 2406.12793) and GLM-4-0414 (`glm4`).

    GLM-4-0414 also has norms after its blocks. Queries, keys and values have biases, the output has none. Gate and up
    matrices are fused.
    """

    model_types = ("glm", "glm4")
    default_kind = "glm4"

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, norms and a gated feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        attention = blocks.grouped_query(
            c, f"layers.{index}.self_attn", bias=c.flag("attention_bias", default=True), output_bias=False
        )
        feed_forward = blocks.gated(c, f"layers.{index}.mlp", c.integer("intermediate_size"))
        # Only GLM-4-0414 has the two norms after the blocks.
        newer = self.kind(c) == "glm4"
        return blocks.decoder(c, attention, feed_forward, norms=NORMS if newer else blocks.PRE)
