"""Falcon-H1 and Bamba: Mamba-2 with attention, and gated feed-forward blocks.

In Falcon-H1 both run in parallel in every layer. In Bamba each layer has one of them, mostly Mamba-2.
"""

from __future__ import annotations

from typing import final

from steptime.models import blocks, blocks_state_space
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer

LAYER_TYPES = ("mamba", "attention", "linear_attention", "full_attention")


@final
class MambaBeside(Family):
    """Falcon-H1 (arXiv 2507.22448) and Bamba.

    In Falcon-H1 both mixers read the same norm in every layer. In Bamba each layer has one mixer.
    """

    model_types = ("falcon_h1", "bamba")
    default_kind = "bamba"

    def layer(self, c: Config, index: int) -> Layer:
        """Return Mamba-2, attention or both, two norms, and a gated feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, parallel = f"layers.{index}", self.kind(c) == "falcon_h1"
        full = parallel or self._is_full_attention(c, index)
        mixer = blocks.Block(())
        if parallel or not full:
            mixer += self._mamba(c, f"{module}.mamba", parallel=parallel)
        if full:
            mixer += blocks.grouped_query(c, f"{module}.self_attn", bias=c.flag("attention_bias", default=False))
        bias = c.flag("mlp_bias", default=False)
        feed_forward = blocks.gated(c, f"{module}.feed_forward", c.integer("intermediate_size"), bias=bias)
        name = "Mamba-2 and attention" if parallel else "attention" if full else "Mamba-2"

        return blocks.decoder(c, mixer, feed_forward, norms=("input_norm", "pre_ff_norm"), mixer=name)

    def _mamba(self, c: Config, module: str, *, parallel: bool) -> blocks.Block:
        inner = c.integer("mamba_d_ssm", default=c.integer("mamba_expand", default=2) * c.width)
        output_bias = c.flag("projectors_bias", default=False) if parallel else None
        gated_norm = not parallel or c.flag("mamba_rms_norm", default=False)
        return blocks_state_space.bamba_mixer(c, module, inner, output_bias=output_bias, gated_norm=gated_norm)

    def _is_full_attention(self, c: Config, index: int) -> bool:
        if kind := c.layer_kind(index, LAYER_TYPES, "layer_types", "layers_block_type"):
            return kind in ("attention", "full_attention")
        return index in c.indices("attn_layer_indices", default=())
