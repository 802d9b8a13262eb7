"""BitNet b1.58: Llama's layer with a norm before the last matrix of each block."""

from __future__ import annotations

from typing import final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer


@final
class BitNet(Family):
    """BitNet b1.58 2B4T (arXiv 2504.12285).

    If the config says so, four weights of three values are packed into one byte.
    """

    model_types = ("bitnet",)

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention and a gated feed-forward block with four norms.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, hidden, bias = f"layers.{index}", c.integer("intermediate_size"), c.flag("attention_bias", default=False)
        block = blocks.grouped_query(c, f"{module}.self_attn", bias=bias)
        # The norms before the output matrices keep the activations in range for low-bit weights.
        block += blocks.Block((blocks.norm(c, "attn_sub_norm", c.width), blocks.norm(c, "ffn_sub_norm", hidden)))
        return blocks.decoder(c, block, blocks.gated(c, f"{module}.mlp", hidden))
