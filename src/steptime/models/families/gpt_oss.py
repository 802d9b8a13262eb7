"""gpt-oss: full and sliding-window attention with sinks, experts in MXFP4."""

from __future__ import annotations

import math
from typing import final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer


@final
class GptOss(Family):
    """gpt-oss-20b and -120b (OpenAI, model card, 2025-08)."""

    model_types = ("gpt_oss",)

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention with one sink per head, two norms, and experts with biases.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module = f"layers.{index}"

        # Without `layer_types`, even layers slide, as in the reference.
        kind = c.layer_kind(index, ("full_attention", "sliding_attention"))
        local = kind == "sliding_attention" if kind else index % 2 == 0
        window = c.integer("sliding_window") if local else math.inf
        attention = blocks.Block((blocks.small(c, "sinks", c.heads),))
        attention += blocks.grouped_query(c, f"{module}.self_attn", bias=c.flag("attention_bias", default=True), window=window)
        experts = blocks.experts(
            c,
            f"{module}.mlp",
            c.integer("intermediate_size"),
            count=c.integer("num_local_experts"),
            active=c.integer("num_experts_per_tok", "experts_per_token"),
            bias=True,
            router_bias=True,
        )
        return blocks.decoder(c, attention, experts)
