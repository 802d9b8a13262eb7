"""Falcon: attention in parallel to a plain feed-forward block.

Attention is multi-query or grouped-query.
"""

from __future__ import annotations

from typing import final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer


@final
class Falcon(Family):
    """Falcon 7B, 40B and 180B (arXiv 2311.16867)."""

    model_types = ("falcon", "RefinedWeb", "RefinedWebModel")
    tied_kinds = model_types
    norm_bias = True

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention and feed-forward with one norm or two.

        In parallel blocks they share one norm. The newer decoder and sequential blocks have two.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, bias = f"h.{index}", c.flag("bias", default=False)
        newer = c.flag("new_decoder_architecture", default=False)
        multi_query = c.flag("multi_query", default=True)
        kv_heads = c.integer("num_kv_heads", "n_head_kv", default=c.heads) if newer else 1 if multi_query else c.heads

        # The newer decoder may use one norm for both blocks.
        two = newer and c.integer("num_ln_in_parallel_attn", default=2) == 2
        parallel = c.flag("parallel_attn", default=True)
        norms = ("ln_attn", "ln_mlp") if two or not parallel else ("input_norm",)
        attention = blocks.grouped_query(c, f"{module}.self_attention", kv_heads=kv_heads, bias=bias)
        feed_forward = blocks.plain(c, f"{module}.mlp", c.integer("ffn_hidden_size", default=4 * c.width), bias=bias)

        return blocks.decoder(c, attention, feed_forward, norms=norms, norm_bias=True)
