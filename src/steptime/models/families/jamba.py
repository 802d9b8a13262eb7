"""Jamba: seven layers of Mamba per layer of attention; half of them have experts."""

from __future__ import annotations

import math
from typing import final

from steptime.models import blocks, blocks_state_space
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer


@final
class Jamba(Family):
    """Jamba and Jamba-1.5 (arXiv 2403.19887, 2408.12570): `jamba` of transformers.

    The layers are Mamba-1 with norms on step, B and C.
    """

    model_types = ("jamba",)

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention or Mamba, two norms, and a dense block or experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module = f"layers.{index}"

        # The defaults are those of Jamba: periods 8 and 2, offsets 4 and 1.
        full = self._is_selected(c, "attn_layer", index, (8, 4))
        sparse = c.integer("num_experts", default=16) > 1 and self._is_selected(c, "expert_layer", index, (2, 1))
        block = blocks.Block((blocks.norm(c, "input_norm", c.width), blocks.norm(c, "pre_ff_norm", c.width)))
        if full:
            block += blocks.grouped_query(c, f"{module}.self_attn", heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim)
        else:
            block += self._mamba(c, f"{module}.mamba")

        hidden = c.integer("intermediate_size")
        if sparse:
            count, active = c.integer("num_experts", default=16), c.integer("num_experts_per_tok", default=2)
            block += blocks.experts(c, f"{module}.feed_forward", hidden, count=count, active=active)
        else:
            block += blocks.gated(c, f"{module}.feed_forward", hidden)

        name = f"{'attention' if full else 'Mamba'} + {'experts' if sparse else 'feed-forward'}"

        return Layer(name=name, ops=block.ops, attention=block.attention)

    def _mamba(self, c: Config, module: str) -> blocks.Block:
        automatic = c.raw("mamba_dt_rank", default="auto") == "auto"
        return blocks_state_space.mamba1(
            c,
            module,
            inner=c.integer("mamba_expand", default=2) * c.width,
            state_dim=c.integer("mamba_d_state", default=16),
            rank=math.ceil(c.width / 16) if automatic else c.integer("mamba_dt_rank"),
            kernel=c.integer("mamba_d_conv", default=4),
            conv_bias=c.flag("mamba_conv_bias", default=True),
            bias=c.flag("mamba_proj_bias", default=False),
            norms=True,
        )

    def _is_selected(self, c: Config, name: str, index: int, default: tuple[int, int]) -> bool:
        period = c.integer(f"{name}_period", default=default[0])
        offset = c.integer(f"{name}_offset", default=default[1], least=0)
        if offset >= period:
            raise c.error(f"{name}_offset", f"must be less than the period {period}, got {offset}")
        return index % period == offset
