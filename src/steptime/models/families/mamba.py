"""Mamba 1 and 2, Falcon-Mamba, Falcon-H1, Bamba and Jamba.

The last three add attention and feed-forward blocks. In Falcon-H1 both mixers run in parallel in every layer.
"""

from __future__ import annotations

import math
from typing import final

from steptime.models import blocks, blocks_state_space
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer


@final
class Mamba(Family):
    """Mamba, Mamba-2, Codestral Mamba and Falcon-Mamba.

    Papers: arXiv 2312.00752, 2405.21060 and 2410.05355 (Falcon-Mamba). Falcon-Mamba's norms on step, B and C have no gains.
    """

    model_types = ("mamba", "mamba2", "falcon_mamba")
    tied_kinds = ("mamba", "falcon_mamba")

    def layer(self, c: Config, index: int) -> Layer:
        """Return one norm and the mixer.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, second = f"layers.{index}.mixer", self.kind(c) == "mamba2"
        mixer = self._mamba2(c, module) if second else self._mamba1(c, module)
        return blocks.decoder(c, mixer, norms=("norm",), mixer="Mamba-2" if second else "Mamba")

    def heads(self, c: Config) -> int:
        """Return the heads of the state; in Mamba-1 each channel is a head.

        Args:
            c: Config of the language model.

        Returns:
            Number of heads.
        """
        return c.integer("num_heads", default=128) if self.kind(c) == "mamba2" else self._inner(c)

    def _mamba1(self, c: Config, module: str) -> blocks.Block:
        automatic = c.raw("time_step_rank", default="auto") == "auto"
        return blocks_state_space.mamba1(
            c,
            module,
            inner=self._inner(c),
            state_dim=c.integer("state_size", default=16),
            rank=math.ceil(c.width / 16) if automatic else c.integer("time_step_rank"),
            kernel=c.integer("conv_kernel", default=4),
            conv_bias=c.flag("use_conv_bias", default=True),
            bias=c.flag("use_bias", default=False),
        )

    def _mamba2(self, c: Config, module: str) -> blocks.Block:
        heads, head_dim = c.integer("num_heads", default=128), c.integer("head_dim", default=64)
        inner = c.integer("expand", default=2) * c.width

        # The config states all three, so they must agree.
        if heads * head_dim != inner:
            raise c.error("num_heads", f"times {head_dim} values must be the {inner} inner values, got {heads}")

        return blocks_state_space.mamba2(
            c,
            module,
            heads=heads,
            head_dim=head_dim,
            groups=c.integer("n_groups", default=8),
            state_dim=c.integer("state_size", default=128),
            kernel=c.integer("conv_kernel", default=4),
            conv_bias=c.flag("use_conv_bias", default=True),
            bias=c.flag("use_bias", default=False),
        )

    def _inner(self, c: Config) -> int:
        return c.integer("intermediate_size", default=c.integer("expand", default=2) * c.width)


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
