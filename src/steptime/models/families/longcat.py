"""LongCat-Flash: two latent attentions and two dense blocks a layer, and experts beside them, some of which do nothing."""

from __future__ import annotations

from typing import final

from steptime.models import blocks
from steptime.models.config import DEEPEST, Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer


@final
class LongcatFlash(Family):
    """LongCat-Flash (arXiv 2509.01322).

    A layer is two of latent attention and a dense block in a row; the experts read after the first attention and are added
    at the end. Of the experts that a token chooses, the `zero_expert_num` that return their input cost nothing: with all
    alike popular, 8 of 12 compute, and 27 B parameters are active on average (published: 18.6 to 31.3 B, 27 B on average).
    """

    model_types = ("longcat_flash",)

    def depth(self, c: Config) -> int:
        """Number of layers, each of two attentions."""
        return c.integer("num_layers", "num_hidden_layers", maximum=DEEPEST)

    def layer(self, c: Config, index: int) -> Layer:
        """Return both halves with their norms, and the experts."""
        module, block = f"layers.{index}", blocks.Block(())
        for half in range(2):
            block += blocks.Block(tuple(blocks.norm(c, f"{name}.{half}", c.width) for name in ("input_norm", "post_norm")))
            block += blocks.latent(c, f"{module}.self_attn.{half}")
            block += blocks.gated(c, f"{module}.mlps.{half}", c.integer("ffn_hidden_size", "intermediate_size"))
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
