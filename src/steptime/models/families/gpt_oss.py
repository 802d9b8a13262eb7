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
        kinds = (
            c.choices("layer_types", valid_names=("full_attention", "sliding_attention"), length=index + 1)
            if c.has("layer_types")
            else ["sliding_attention" if i % 2 == 0 else "full_attention" for i in range(index + 1)]
        )
        local = kinds[index] == "sliding_attention"
        bias = c.flag("attention_bias", default=True)
        block = blocks.Block(
            (
                blocks.norm(c, "input_norm", c.width),
                blocks.norm(c, "post_norm", c.width),
                blocks.small(c, "sinks", c.heads),
            )
        )
        block += blocks.grouped_query(
            c,
            f"{module}.self_attn",
            heads=c.heads,
            kv_heads=c.kv_heads,
            head_dim=c.head_dim,
            bias=bias,
            output_bias=bias,
            window=c.integer("sliding_window") if local else math.inf,
        )
        block += blocks.experts(
            c,
            f"{module}.mlp",
            c.integer("intermediate_size"),
            count=c.integer("num_local_experts"),
            active=c.integer("num_experts_per_tok", "experts_per_token"),
            bias=True,
            router_bias=True,
        )
        window = f", window {c.integer('sliding_window')}" if local else ""

        return Layer(name=f"attention{window} + experts", ops=block.ops, attention=block.attention)
