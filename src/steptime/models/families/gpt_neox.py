"""GPT-NeoX and Pythia: attention beside a plain feed-forward block, two norms, rotary positions."""

from __future__ import annotations

from typing import final

from steptime.models import parts, parts_decoder
from steptime.models.config import Config
from steptime.models.family import Family
from steptime.models.model import Layer


@final
class GptNeox(Family):
    """GPT-NeoX-20B (arXiv 2204.06745) and Pythia (arXiv 2304.01373)."""

    model_types = ("gpt_neox",)
    norm_bias = True

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms and a plain feed-forward block, all with biases."""
        bias = c.flag("attention_bias", default=True)
        attention = parts.grouped_query(
            c,
            f"layers.{index}.attention",
            heads=c.heads,
            kv_heads=c.heads,
            head_dim=c.head_dim,
            bias=bias,
            output_bias=bias,
        )
        feed_forward = parts.plain(c, f"layers.{index}.mlp", c.integer("intermediate_size"), bias=True)
        return parts_decoder.decoder(c, attention, feed_forward, norm_bias=True)
