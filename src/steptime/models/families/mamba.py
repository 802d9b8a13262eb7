"""Mamba 1 and 2 and Falcon-Mamba: a norm and a state-space mixer per layer."""

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
