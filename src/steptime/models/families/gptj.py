"""GPT-J: attention in parallel to a plain feed-forward block, with one norm.

The head has a bias.
"""

from __future__ import annotations

from typing import final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer


@final
class GptJ(Family):
    """GPT-J-6B (Wang and Komatsuzaki, 2021) and CodeGen (arXiv 2203.13474)."""

    model_types = ("gptj", "codegen")
    norm_bias = True
    head_bias = True

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention without biases, feed-forward with biases, and one norm.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module = f"h.{index}"
        attention = blocks.grouped_query(c, f"{module}.attn", kv_heads=c.heads)
        feed_forward = blocks.plain(c, f"{module}.mlp", c.integer("n_inner", default=4 * c.width), bias=True)
        return blocks.decoder(c, attention, feed_forward, norms=("ln_1",), norm_bias=True)
