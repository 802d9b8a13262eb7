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
        block = blocks.Block(tuple(blocks.norm(c, name, c.width, bias=True) for name in norms))
        block += blocks.grouped_query(
            c,
            f"{module}.self_attention",
            heads=c.heads,
            kv_heads=kv_heads,
            head_dim=c.head_dim,
            bias=bias,
            output_bias=bias,
        )
        block += blocks.plain(c, f"{module}.mlp", c.integer("ffn_hidden_size", default=4 * c.width), bias=bias)

        return Layer(name="attention + feed-forward", ops=block.ops, attention=block.attention)
