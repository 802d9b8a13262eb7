"""Granite 4 with Mamba-2, and Granite with windows and sinks or with shared experts."""

from __future__ import annotations

import math
from typing import final

from steptime.models import blocks, blocks_state_space
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer


@final
class GraniteHybrid(Family):
    """Granite 4.0-H: `granitemoehybrid` of transformers.

    Gate and up matrices of the shared block are fused.
    """

    model_types = ("granitemoehybrid",)

    def layer(self, c: Config, index: int) -> Layer:
        """Return Mamba-2 or attention, two norms, the shared block, and perhaps experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, full = f"layers.{index}", self._is_full_attention(c, index)
        if full:
            mixer = blocks.grouped_query(c, f"{module}.self_attn", bias=c.flag("attention_bias", default=False))
        else:
            mixer = blocks_state_space.bamba_mixer(c, f"{module}.mamba")
        count = c.integer("num_local_experts", default=8, least=0)

        # Without experts, the shared block is the feed-forward block of the layer.
        shared, term = c.integer("shared_intermediate_size", default=1024), "shared experts" if count else "feed-forward"
        up = blocks.linear(c, f"{module}.shared_mlp.input_linear", c.width, 2 * shared, term=term)
        block = blocks.Block((up, blocks.linear(c, f"{module}.shared_mlp.output_linear", shared, c.width, term=term)))
        if count:
            hidden, active = c.integer("intermediate_size"), c.integer("num_experts_per_tok", default=2)
            block += blocks.experts(c, f"{module}.block_sparse_moe", hidden, count=count, active=active)

        return blocks.decoder(c, mixer, block, mixer="attention" if full else "Mamba-2")

    def _is_full_attention(self, c: Config, index: int) -> bool:
        mixers = ("mamba", "attention", "linear_attention", "full_attention")
        kinds = c.choices("layer_types", "layers_block_type", valid_names=mixers, length=index + 1)
        return kinds[index] in ("attention", "full_attention")


@final
class GraniteSwa(Family):
    """Granite with sinks and sliding windows, or with shared experts.

    Kinds: `granite_swa` and `granitemoe_swa` have windows in three of four layers; `granitemoeshared` has none.
    """

    model_types = ("granite_swa", "granitemoe_swa", "granitemoeshared")
    tied_kinds = ("granite_swa",)

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms and a feed-forward block or experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        kind, module, bias = self.kind(c), f"layers.{index}", c.flag("attention_bias")
        local = kind.endswith("_swa")
        window = blocks.window(c, index, period=4) if local else math.inf
        block = blocks.grouped_query(c, f"{module}.self_attn", bias=bias, window=window)

        # The variants with windows have one sink per head.
        if local:
            block += blocks.small(c, "sinks", c.heads)
        hidden = c.integer("intermediate_size")
        if kind == "granite_swa":
            feed_forward = blocks.gated(c, f"{module}.mlp", hidden, bias=c.flag("mlp_bias", default=False))
        else:
            feed_forward = blocks.shared_and_routed(
                c,
                f"{module}.block_sparse_moe",
                hidden,
                count=c.integer("num_local_experts"),
                shared=c.integer("shared_intermediate_size", default=0, least=0),
                shared_module="shared_mlp",
            )

        return blocks.decoder(c, block, feed_forward)
