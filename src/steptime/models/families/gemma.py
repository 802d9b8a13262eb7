"""Gemma 2 and 3: local and global attention layers, four norms a layer, tied embeddings."""

from __future__ import annotations

from typing import Final, final

from steptime.models import parts, parts_decoder
from steptime.models.config import Config
from steptime.models.family import Family
from steptime.models.model import Layer, Op
from steptime.models.parts_tower import block, dense, tower

NORMS: Final[tuple[str, ...]] = ("input_norm", "post_attention_norm", "pre_norm", "post_norm")


@final
class Gemma(Family):
    """Gemma 2 (arXiv 2408.00118) and Gemma 3 (arXiv 2503.19786)."""

    model_types = ("gemma2", "gemma3", "gemma3_text")

    def tied(self, c: Config) -> bool:
        """Gemma shares embedding and head unless a config says otherwise."""
        return c.flag("tie_word_embeddings", default=True)

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, four norms and a gated feed-forward block."""
        third = c.text("model_type", default="gemma3_text").startswith("gemma3")
        bias = c.flag("attention_bias", default=False)
        attention = parts.grouped_query(
            c,
            f"layers.{index}.self_attn",
            heads=c.heads,
            kv_heads=c.kv_heads,
            head_dim=c.head_dim,
            bias=bias,
            output_bias=bias,
            qk_norm=c.head_dim if third else 0,
            window=parts_decoder.window(c, index, period=c.integer("sliding_window_pattern", default=6 if third else 2)),
        )
        feed_forward = parts.gated(c, f"layers.{index}.mlp", c.integer("intermediate_size"))
        return parts_decoder.decoder(c, attention, feed_forward, norms=NORMS)

    def vision(self, c: Config) -> tuple[Op, ...]:
        """Return the SigLIP tower and its projector, if the config has them."""
        if not c.has("vision_config"):
            return ()
        v = c.inner("vision_config")
        patch = v.integer("patch_size")
        weights = dense(v.integer("num_channels", default=3) * patch**2, v.width)
        weights += (v.integer("image_size") // patch) ** 2 * v.width
        weights += v.depth * block(v.width, v.integer("intermediate_size")) + 2 * v.width
        projector = dense(v.width, self.text(c).width, bias=False) + v.width
        return tower(v, "vision_tower", weights), tower(v, "multi_modal_projector", projector)
