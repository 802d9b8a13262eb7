"""OPT: multi-head attention, a plain feed-forward block, learned positions.

It has biases and a tied embedding.
"""

from __future__ import annotations

from typing import final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer, Op


@final
class Opt(Family):
    """OPT (arXiv 2205.01068), XGLM (arXiv 2112.10668) and BioGPT.

    The layers are the same. XGLM computes its positions.
    """

    model_types = ("opt", "xglm", "biogpt")
    tied_kinds = model_types

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms and a plain feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, bias = f"layers.{index}", c.flag("enable_bias", default=True)
        attention = blocks.grouped_query(c, f"{module}.self_attn", kv_heads=c.heads, bias=bias)
        feed_forward = blocks.plain(c, module, c.integer("ffn_dim", "intermediate_size"), bias=bias)
        norms = blocks.PRE if c.flag("layer_norm_elementwise_affine", default=True) else ()
        return blocks.decoder(c, attention, feed_forward, norms=norms, norm_bias=True)

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return embedding, positions, final norm and head.

        There are two more positions than tokens. Embeddings narrower than the model have two more maps.

        Args:
            c: Config of the language model.

        Returns:
            The operators.
        """
        width = c.integer("word_embed_proj_dim", default=c.width)
        # OPT reserves two positions before the first token.
        rows = c.integer("max_position_embeddings") + 2 if self.kind(c) != "xglm" else 0
        ops = [blocks.embedding(c, tied=self.tied(c), width=width)]
        if rows:
            ops.append(blocks.table(c, "positions", rows * c.width))
        # OPT-350M has narrower embeddings than layers.
        if width != c.width:
            ops.append(blocks.linear(c, "project_in", width, c.width))
            ops.append(blocks.linear(c, "project_out", c.width, width))
        gains = c.flag("layer_norm_elementwise_affine", default=True)
        if gains and c.flag("do_layer_norm_before", default=True) and not c.flag("_remove_final_layer_norm", default=False):
            ops.append(blocks.norm(c, "final_norm", c.width, bias=True))
        return *ops, blocks.linear(c, "lm_head", width, c.vocabulary, term="head", rows="outputs")
