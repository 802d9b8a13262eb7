"""Jamba: seven layers of Mamba per layer of attention; half of them have experts."""

from __future__ import annotations

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
        if full:
            mixer = blocks.grouped_query(c, f"{module}.self_attn")
        else:
            mixer = blocks_state_space.jamba_mixer(c, f"{module}.mamba", norms=True)
        hidden = c.integer("intermediate_size")
        if sparse:
            count, active = c.integer("num_experts", default=16), c.integer("num_experts_per_tok", default=2)
            feed_forward = blocks.experts(c, f"{module}.feed_forward", hidden, count=count, active=active)
        else:
            feed_forward = blocks.gated(c, f"{module}.feed_forward", hidden)
        norms, name = ("input_norm", "pre_ff_norm"), "attention" if full else "Mamba"

        return blocks.decoder(c, mixer, feed_forward, norms=norms, mixer=name)

    def _is_selected(self, c: Config, name: str, index: int, default: tuple[int, int]) -> bool:
        period = c.integer(f"{name}_period", default=default[0])
        offset = c.integer(f"{name}_offset", default=default[1], least=0)
        if offset >= period:
            raise c.error(f"{name}_offset", f"must be less than the period {period}, got {offset}")
        return index % period == offset
