"""LongCat-Flash: two latent attentions, two dense blocks and experts per layer.

Some experts return their input.
"""

from __future__ import annotations

from typing import final

from steptime.models import blocks
from steptime.models.config import DEEPEST, Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer


@final
class LongcatFlash(Family):
    """LongCat-Flash (arXiv 2509.01322).

    A layer is two blocks in sequence, each of latent attention and a dense block. The experts read after the first
    attention, and their output is added at the end. Of a token's experts, the `zero_expert_num` that return their input
    cost nothing. If all experts are equally popular, 8 of 12 compute, and 27 B parameters are active on average
    (published: 18.6 to 31.3 B, 27 B on average).
    """

    model_types = ("longcat_flash",)

    def depth(self, c: Config) -> int:
        """Return the number of layers, each with two attentions.

        Args:
            c: Config of the language model.

        Returns:
            Number of layers.
        """
        return c.integer("num_layers", "num_hidden_layers", maximum=DEEPEST)

    def layer(self, c: Config, index: int) -> Layer:
        """Return both halves with their norms, and the experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, block = f"layers.{index}", blocks.Block(())
        for half in range(2):
            block += blocks.norm(c, f"input_norm.{half}", c.width)
            block += blocks.norm(c, f"post_norm.{half}", c.width)
            block += blocks.latent(c, f"{module}.self_attn.{half}")
            block += blocks.gated(c, f"{module}.mlps.{half}", c.integer("ffn_hidden_size", "intermediate_size"))

        # The experts run once per layer, not once per half.
        block += blocks.experts(
            c,
            f"{module}.mlp",
            c.integer("expert_ffn_hidden_size", "moe_intermediate_size"),
            count=c.integer("n_routed_experts"),
            active=c.integer("moe_topk", "num_experts_per_tok"),
            zero=c.integer("zero_expert_num", default=0, least=0),
            router_bias=c.flag("router_bias", default=False),
        )

        return Layer(name="2 x (latent attention + feed-forward) + experts", ops=block.ops, attention=block.attention)
