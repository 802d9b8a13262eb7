"""Granite with sliding windows and sinks, and Granite with shared experts."""

from __future__ import annotations

import math
from typing import final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer


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
