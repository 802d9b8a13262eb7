"""Grok-1 and Grok-2: eight wide experts and four norms per layer.

Grok-2 also has a dense block in parallel to the experts.
"""

from __future__ import annotations

from typing import final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer

NORMS = ("pre_attention_norm", "post_attention_norm", "pre_moe_norm", "post_moe_norm")


@final
class Grok(Family):
    """Grok-1 (github.com/xai-org/grok-1) and Grok-2 (`grok.py` of SGLang).

    The published config of Grok-2 has the model_type "git", which is another model; so its `architectures` decide.
    """

    model_types = ("grok-1",)
    architectures = ("Grok1ForCausalLM", "Grok1ModelForCausalLM")

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, four norms and experts, with a dense block if `residual_moe`.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        attention = blocks.grouped_query(c, f"layers.{index}.self_attn")
        hidden, count = c.integer("intermediate_size"), c.integer("num_local_experts", "num_experts")
        expert_width = c.integer("moe_intermediate_size", default=hidden)
        feed_forward = blocks.experts(c, f"layers.{index}.block_sparse_moe", expert_width, count=count)
        if c.flag("residual_moe", default=False):
            feed_forward += blocks.gated(c, f"layers.{index}.mlp", hidden)
        return blocks.decoder(c, attention, feed_forward, norms=NORMS)
