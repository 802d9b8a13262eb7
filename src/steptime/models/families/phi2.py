"""Phi-1, Phi-1.5 and Phi-2: attention in parallel to a plain feed-forward block.

They have one norm per layer and biases everywhere.
"""

from __future__ import annotations

from typing import final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer


@final
class Phi2(Family):
    """Phi-1 to Phi-2 (arXiv 2306.11644, 2309.05463): `phi` of transformers."""

    model_types = ("phi", "phi-msft")
    norm_bias = True
    head_bias = True

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention and feed-forward with one norm.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module = f"layers.{index}"
        block = blocks.grouped_query(c, f"{module}.self_attn", bias=True)
        if c.flag("qk_layernorm", default=False):
            block += blocks.head_norms(c, c.heads, c.kv_heads, c.width // c.heads)
        feed_forward = blocks.plain(c, f"{module}.mlp", c.integer("intermediate_size"), bias=True)
        return blocks.decoder(c, block, feed_forward, norms=("input_norm",), norm_bias=True)
