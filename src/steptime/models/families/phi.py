"""Phi-1 to Phi-4 and Phi-3.5-MoE: attention, and a feed-forward block or experts.

The blocks of Phi-1, Phi-1.5 and Phi-2 are in parallel.
"""

from __future__ import annotations

from typing import final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer, Op


@final
class Phi(Family):
    """Phi-3 and Phi-4 (arXiv 2404.14219, 2412.08905), and Phi-3.5-MoE.

    The model with experts has layer norms with biases.
    """

    model_types = ("phi3", "phimoe")

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms and a feed-forward block or experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        moe, bias = self.kind(c) == "phimoe", c.flag("attention_bias", default=False)
        attention = blocks.grouped_query(c, f"layers.{index}.self_attn", bias=bias and moe, window=blocks.window(c, index))
        hidden = c.integer("intermediate_size")
        if moe:
            count = c.integer("num_local_experts")
            feed_forward = blocks.experts(c, f"layers.{index}.block_sparse_moe", hidden, count=count)
        else:
            feed_forward = blocks.gated(c, f"layers.{index}.mlp", hidden)

        return blocks.decoder(c, attention, feed_forward, norm_bias=moe)

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return embedding, final norm and head; the model with experts has biases.

        Args:
            c: Config of the language model.

        Returns:
            The operators.
        """
        if self.kind(c) != "phimoe":
            return super().stem(c)
        norm, head = (
            blocks.norm(c, "final_norm", c.width, bias=True),
            blocks.head(c, bias=c.flag("lm_head_bias", default=False)),
        )
        return blocks.embedding(c, tied=self.tied(c)), norm, head


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
