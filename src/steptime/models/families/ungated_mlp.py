"""Decoders like Llama whose feed-forward block has two matrices.

Models: Apertus, Arcee, Nemotron-4, Jais 2, nanochat and Persimmon.
"""

from __future__ import annotations

from typing import final

from steptime.models import blocks
from steptime.models.blocks_vision import Tower, matrix, tower
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.image_tokens import lines, rule
from steptime.models.model import Layer, Op


@final
class Plain(Family):
    """Apertus, Arcee's AFM, Nemotron-4, Minitron, Jais 2, nanochat, Persimmon, Fuyu.

    Papers: arXiv 2509.14233 (Apertus) and arXiv 2402.16819 (Nemotron-4). The activation between the two matrices is a
    squared ReLU; in Apertus it is an xIELU with two learned values per layer. The norms of nanochat have no gains.
    Those of Nemotron, Jais and Persimmon are layer norms with biases.
    """

    model_types = ("apertus", "arcee", "nemotron", "jais2", "nanochat", "persimmon", "fuyu")
    default_kind = "arcee"

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, norms and a plain feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        kind, module = self.kind(c), f"layers.{index}"
        fused = kind == "persimmon"
        bias = fused or c.flag("attention_bias", default=kind == "jais2")
        block = blocks.grouped_query(
            c,
            f"{module}.self_attn",
            kv_heads=c.heads if fused else c.kv_heads,
            head_dim=c.width // c.heads if fused else c.head_dim,
            bias=bias,
            qk_norm=c.head_dim if kind == "apertus" else 0,
        )
        if fused and c.flag("qk_layernorm", default=True):
            block += blocks.head_norms(c, c.heads, c.heads, c.head_dim)

        # xIELU has two learned values per layer.
        if kind == "apertus" and c.text("hidden_act", default="xielu") == "xielu":
            block += blocks.small(c, "activation", 2)
        mlp_bias = fused or c.flag("mlp_bias", default=kind == "jais2")
        feed_forward = blocks.plain(c, f"{module}.mlp", c.integer("intermediate_size"), bias=mlp_bias)
        norms = () if kind == "nanochat" else blocks.PRE

        return blocks.decoder(c, block, feed_forward, norms=norms, norm_bias=self._has_layer_norms(c))

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return embedding, final norm and head; nanochat's norm has no gains.

        Args:
            c: Config of the language model.

        Returns:
            The operators.
        """
        ends = (blocks.embedding(c, tied=self.tied(c)), blocks.head(c))
        if self.kind(c) == "nanochat":
            return ends
        return ends[0], blocks.norm(c, "final_norm", c.width, bias=self._has_layer_norms(c)), ends[1]

    def towers(self, c: Config) -> tuple[Tower, ...]:
        """Return Fuyu's map of patches, which replaces a tower.

        Args:
            c: Config of the whole model.

        Returns:
            The towers; empty without any.
        """
        if not c.has("patch_size"):
            return ()
        patch, text = c.integer("patch_size"), c.language.width
        values = patch**2 * c.integer("num_channels", default=3)
        cuts = rule(lines, patch=patch, height=1080, width=1920, settings="a screen of 1920x1080, as in its processor")
        return (tower(c, "image", cuts, width=text, stem=(matrix(c, "vision_embed_tokens", values, text, term="patches"),)),)

    def _has_layer_norms(self, c: Config) -> bool:
        return self.kind(c) in ("nemotron", "jais2", "persimmon")
