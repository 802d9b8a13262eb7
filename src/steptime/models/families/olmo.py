"""OLMo 1 to 3, OLMoE, FlexOLMo, EXAONE 4 and OLMo Hybrid.

Most have norms on queries and keys, and after their blocks. OLMo Hybrid has gated DeltaNet in three of four layers.
"""

from __future__ import annotations

import math
from typing import final

from steptime.models import blocks, blocks_state_space
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer, Op


@final
class Olmo(Family):
    """OLMo, OLMo 2 and 3, OLMoE, FlexOLMo and EXAONE 4.0.

    Papers: arXiv 2402.00838, 2501.00656, 2409.02060 (OLMoE), 2507.07024 (FlexOLMo) and 2507.11407 (EXAONE 4.0). OLMo
    normalizes queries and keys over all heads together, EXAONE per head. The norms of OLMo 1 have no gains.
    """

    model_types = ("olmo", "olmo2", "olmo3", "olmoe", "flex_olmo", "exaone4")
    default_kind = "olmo3"

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms and a feed-forward block or experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        kind, bias = self.kind(c), c.flag("attention_bias", default=False)
        attention = blocks.grouped_query(
            c,
            f"layers.{index}.self_attn",
            bias=bias,
            qk_norm=self._gains(c, kind),
            # vLLM 0.19, models/olmo2.py: _apply_qk_norm.
            gathers=True,
            window=blocks.window(c, index, period=4) if kind in ("olmo3", "exaone4") else math.inf,
        )
        module, hidden = f"layers.{index}.mlp", c.integer("intermediate_size")
        if kind not in ("olmoe", "flex_olmo"):
            norms = () if kind == "olmo" else blocks.PRE
            return blocks.decoder(c, attention, blocks.gated(c, module, hidden), norms=norms)

        count = c.integer("num_experts", "num_local_experts")

        return blocks.decoder(c, attention, blocks.experts(c, module, hidden, count=count))

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return embedding, final norm and head; the norm of OLMo 1 has no gains.

        Args:
            c: Config of the language model.

        Returns:
            The operators.
        """
        embedding, norm, head = super().stem(c)
        return (embedding, head) if self.kind(c) == "olmo" else (embedding, norm, head)

    def _gains(self, c: Config, kind: str) -> int:
        if kind == "olmo":
            return 0
        return c.head_dim if kind == "exaone4" else c.heads * c.head_dim


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
        feed_forward = blocks.gated(c, f"{module}.mlp")
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
