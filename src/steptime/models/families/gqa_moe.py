"""Grok, DBRX and Arctic: grouped-query attention, and experts of one width.

Grok-2 and Arctic also have dense blocks in parallel to the experts.
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


@final
class Dbrx(Family):
    """DBRX (Databricks, 2024-03)."""

    model_types = ("dbrx",)

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms and experts; their sizes are in nested configs.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, ffn = f"blocks.{index}", c.inner("ffn_config")
        kv_heads = c.inner("attn_config").integer("kv_n_heads")
        attention = blocks.grouped_query(c, f"{module}.norm_attn_norm.attn", kv_heads=kv_heads)
        hidden, count, active = (ffn.integer(name) for name in ("ffn_hidden_size", "moe_num_experts", "moe_top_k"))
        return blocks.decoder(c, attention, blocks.experts(c, f"{module}.ffn", hidden, count=count, active=active))


@final
class Arctic(Family):
    """Arctic (Snowflake, 2024-04; `modeling_arctic.py` of its checkpoint).

    The dense block is as wide as the model.
    """

    model_types = ("arctic",)

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, and a dense block or experts with a dense residual block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        bias, hidden = c.flag("attention_bias", default=False), c.integer("intermediate_size")
        attention = blocks.grouped_query(c, f"layers.{index}.self_attn", bias=bias)
        module, period = f"layers.{index}.block_sparse_moe", c.integer("moe_layer_frequency", default=2)

        # Only every `period`th layer has experts.
        if (index + 1) % period:
            return blocks.decoder(c, attention, blocks.gated(c, f"{module}.mlp", hidden))
        experts = blocks.experts(c, module, hidden, count=c.integer("num_local_experts"))

        # With this flag a dense block runs together with the experts, with its own norm.
        if not c.flag("parallel_attn_mlp_res", default=False):
            return blocks.decoder(c, attention, experts)
        residual = blocks.gated(c, f"layers.{index}.residual_mlp", c.width)

        return blocks.decoder(c, attention, experts + residual, norms=(*blocks.PRE, "residual_norm"))
