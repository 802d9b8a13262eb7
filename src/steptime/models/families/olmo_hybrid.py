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
        block = blocks.Block((blocks.norm(c, "first_norm", c.width), blocks.norm(c, "second_norm", c.width)))
        block += self._attention(c, f"{module}.self_attn") if full else self._delta(c, f"{module}.linear_attn")
        block += blocks.gated(c, f"{module}.mlp", c.integer("intermediate_size"))
        name = "attention" if full else "gated DeltaNet"
        return Layer(name=f"{name} + feed-forward", ops=block.ops, attention=block.attention)

    def _attention(self, c: Config, module: str) -> blocks.Block:
        bias = c.flag("attention_bias", default=False)
        return blocks.grouped_query(
            c,
            module,
            heads=c.heads,
            kv_heads=c.kv_heads,
            head_dim=c.head_dim,
            bias=bias,
            output_bias=bias,
            qk_norm=c.heads * c.head_dim,
        )

    def _delta(self, c: Config, module: str) -> blocks.Block:
        key_heads = c.integer("linear_num_key_heads", default=c.heads)
        value_heads = c.integer("linear_num_value_heads", default=c.heads)
        if value_heads % key_heads:
            raise c.error("linear_num_value_heads", f"must be a multiple of the {key_heads} key heads, got {value_heads}")
        key_dim, value_dim = c.integer("linear_key_head_dim"), c.integer("linear_value_head_dim")
        keys, values, term = key_heads * key_dim, value_heads * value_dim, "projections"
        convolution, decays, state = blocks_state_space.delta(
            c,
            key_heads=key_heads,
            value_heads=value_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            kernel=c.integer("linear_conv_kernel_dim", default=4),
            decays=2 * value_heads,
        )
        sizes = {"q": keys, "k": keys, "v": values, "a": value_heads, "b": value_heads, "g": values}
        ops = (
            *(
                blocks.linear(c, f"{module}.{name}_proj", c.width, size, term=term, split_limit=key_heads)
                for name, size in sizes.items()
            ),
            convolution,
            decays,
            blocks.norm(c, "output_norm", values, weights=value_dim),
            blocks.linear(c, f"{module}.o_proj", values, c.width, term=term),
        )

        return blocks.Block(ops, (state,))

    def _is_full_attention(self, c: Config, index: int) -> bool:
        if c.has("layer_types"):
            return c.choices("layer_types", valid_names=KINDS, length=index + 1)[index] == "full_attention"
        # Without a list, every fourth layer has full attention.
        return index % 4 == 3
