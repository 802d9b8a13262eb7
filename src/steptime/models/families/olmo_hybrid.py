"""OLMo Hybrid: gated DeltaNet in three of four layers, attention in the fourth.

Attention layers have norms after their blocks.
"""

from __future__ import annotations

from typing import final

from steptime.models import blocks, blocks_state_space
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer

KINDS = ("linear_attention", "full_attention")


@final
class OlmoHybrid(Family):
    """OLMo Hybrid: `olmo_hybrid` of transformers.

    Gated DeltaNet (arXiv 2412.06464) has a separate projection for each input.
    """

    model_types = ("olmo_hybrid",)

    def layer(self, c: Config, index: int) -> Layer:
        """Return DeltaNet or attention, two norms and a gated feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, full = f"layers.{index}", self._is_full_attention(c, index)
        mixer = self._attention(c, f"{module}.self_attn") if full else self._delta(c, f"{module}.linear_attn")
        feed_forward = blocks.gated(c, f"{module}.mlp", c.integer("intermediate_size"))
        norms, name = ("first_norm", "second_norm"), "attention" if full else "gated DeltaNet"
        return blocks.decoder(c, mixer, feed_forward, norms=norms, mixer=name)

    def _attention(self, c: Config, module: str) -> blocks.Block:
        bias = c.flag("attention_bias", default=False)
        return blocks.grouped_query(c, module, bias=bias, qk_norm=c.heads * c.head_dim)

    def _delta(self, c: Config, module: str) -> blocks.Block:
        key_heads = c.integer("linear_num_key_heads", default=c.heads)
        value_heads = c.integer("linear_num_value_heads", default=c.heads)
        if value_heads % key_heads:
            raise c.error("linear_num_value_heads", f"must be a multiple of the {key_heads} key heads, got {value_heads}")
        key_dim, value_dim = c.integer("linear_key_head_dim"), c.integer("linear_value_head_dim")
        keys, values = key_heads * key_dim, value_heads * value_dim
        sizes = {"q": keys, "k": keys, "v": values, "a": value_heads, "b": value_heads, "g": values}
        return blocks_state_space.delta(
            c,
            module,
            [blocks.linear(c, f"{module}.{name}_proj", c.width, size, split_limit=key_heads) for name, size in sizes.items()],
            key_heads=key_heads,
            value_heads=value_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            kernel=c.integer("linear_conv_kernel_dim", default=4),
            decays=2 * value_heads,
        )

    def _is_full_attention(self, c: Config, index: int) -> bool:
        # Without a list, every fourth layer has full attention.
        return (c.layer_kind(index, KINDS) or KINDS[index % 4 == 3]) == "full_attention"
