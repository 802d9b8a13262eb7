"""Gemma 1 to 3 and VaultGemma: local and global attention, two or four norms.

The embedding is tied.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer

if TYPE_CHECKING:
    from steptime.models.blocks_vision import Tower

NORMS: Final[tuple[str, ...]] = ("input_norm", "post_attention_norm", "pre_norm", "post_norm")


@final
class Gemma(Family):
    """Gemma, Gemma 2, Gemma 3 and VaultGemma.

    Papers: arXiv 2403.08295, 2408.00118, 2503.19786 and 2510.15001. Gemma 1 has no windows. Gemma 1 and VaultGemma have
    no norms after their blocks; VaultGemma otherwise equals Gemma 2.
    """

    model_types = ("gemma", "gemma2", "gemma3", "gemma3_text", "vaultgemma")
    default_kind = "gemma3_text"
    tied_kinds = model_types

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two or four norms and a gated feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        kind = self.kind(c)
        third = kind.startswith("gemma3")

        # Gemma 3 has one global layer per five local ones, Gemma 2 one per local one.
        period = c.integer("sliding_window_pattern", "_sliding_window_pattern", default=6 if third else 2)
        bias = c.flag("attention_bias", default=False)
        attention = blocks.grouped_query(
            c,
            f"layers.{index}.self_attn",
            bias=bias,
            qk_norm=c.head_dim if third else 0,
            window=math.inf if kind == "gemma" else blocks.window(c, index, period=period),
        )
        feed_forward = blocks.gated(c, f"layers.{index}.mlp", c.integer("intermediate_size"))

        return blocks.decoder(c, attention, feed_forward, norms=blocks.PRE if kind in ("gemma", "vaultgemma") else NORMS)

    def image_tower(self, c: Config) -> Tower:
        """Return SigLIP and its projector, which runs on pooled patches.

        Args:
            c: Config of the whole model.

        Returns:
            The tower.
        """
        from steptime.models.blocks_vision import dense, encoder, matrix, norm, positions, stored, tower
        from steptime.models.image_tokens import rule, square

        v = c.inner("vision_config")
        width, hidden, heads = v.width, v.integer("intermediate_size"), v.integer("num_attention_heads", default=16)
        patch, side = v.integer("patch_size"), v.integer("image_size")
        patches, tokens = (side // patch) ** 2, c.integer("mm_tokens_per_image", default=256)
        if not patches:
            raise v.error("image_size", f"must be at least one patch of {patch}, got {side}")
        # SigLIP's pooling head is stored, but not used here: a query, attention, two norms and a feed-forward block.
        attention = width + dense(width, 3 * width) + dense(width, width) + 2 * width
        pooling_head = attention + dense(width, hidden) + dense(hidden, width)
        stem = (
            matrix(v, "patch_embedding", v.integer("num_channels", default=3) * patch**2, width, term="patches"),
            positions(v, patches * width, width),
            norm(v, "post_norm", width),
            *((stored(v, "head", pooling_head),) if v.flag("vision_use_head", default=False) else ()),
            norm(v, "soft_norm", width, bias=False, share=tokens / patches),
            matrix(v, "projector", width, c.language.width, bias=False, share=tokens / patches, term="merger"),
        )
        cuts = rule(square, side=side, patch=patch, tokens=tokens, settings="no pan and scan, as in the published preprocessor")
        layers = ((encoder(v, width, hidden, heads), v.depth),)

        return tower(v, "image", cuts, width=width, heads=heads, layers=layers, stem=stem)
