"""RWKV 4 and 7: a recurrence in every layer, and no attention.

The feed-forward block also reads the token before.
"""

from __future__ import annotations

import math
from typing import final

from steptime.models import blocks, blocks_state_space
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer

SUMS = 3
"""Values per channel of an RWKV-4 state: numerator, denominator and the largest exponent so far."""
GENERALISED = blocks_state_space.DECAY + blocks_state_space.READOUT + 2 * blocks_state_space.OUTER + blocks_state_space.READOUT
"""FLOPs per value of an RWKV-7 state: decay, product with the removal key, removal, addition, product with receptance."""


@final
class Rwkv(Family):
    r"""RWKV-4 and RWKV-7.

    Papers: arXiv 2305.13048 (`rwkv` of transformers) and arXiv 2503.14456 (`rwkv7` of flash-linear-attention). Both
    blocks mix each input with that of the token before, which is stored with the state. RWKV-7 keeps a matrix of $d
    \times d$ per head, under a generalized delta rule. Decay, learning rate, value residual and gate come from low-rank
    matrices. The first layer has no value residual.
    """

    model_types = ("rwkv", "rwkv7")
    norm_bias = True

    def heads(self, c: Config) -> int:
        """Return the heads of the state; in RWKV-4 each channel is a head.

        Args:
            c: Config of the language model.

        Returns:
            Number of heads.
        """
        return c.width // c.integer("head_dim", default=64) if self.kind(c) == "rwkv7" else self._inner(c)

    def layer(self, c: Config, index: int) -> Layer:
        """Return the recurrence, norms and the feed-forward block.

        The first layer also normalizes the embedding.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module = f"blocks.{index}"
        norms = ("ln1", "ln2", "ln0") if index == 0 else ("ln1", "ln2")
        if self.kind(c) == "rwkv7":
            mixer = self._time_mix7(c, f"{module}.attention", first=index == 0)
            feed_forward = self._channel_mix7(c, f"{module}.feed_forward")
        else:
            mixer = self._time_mix4(c, f"{module}.attention")
            feed_forward = self._channel_mix4(c, f"{module}.feed_forward")
        return blocks.decoder(c, mixer, feed_forward, norms=norms, norm_bias=True, mixer="recurrence")

    def _time_mix4(self, c: Config, module: str) -> blocks.Block:
        inner = self._inner(c)
        ops = (
            *(blocks.linear(c, f"{module}.{name}", c.width, inner) for name in ("key", "value", "receptance")),
            blocks.linear(c, f"{module}.output", inner, c.width),
            blocks.small(c, "decay, bonus and mixing", 2 * inner + 3 * c.width, split="group"),
        )
        flops = blocks_state_space.DECAY + blocks_state_space.OUTER
        state = blocks_state_space.state(
            c, heads=inner, values=SUMS * inner, flops_per_value=flops, channels=2 * c.width, kernel=2
        )
        return blocks.Block(ops, (state,))

    def _channel_mix4(self, c: Config, module: str) -> blocks.Block:
        hidden, term = c.integer("intermediate_size", default=4 * c.width), "feed-forward"
        ops = (
            blocks.linear(c, f"{module}.key", c.width, hidden, term=term),
            blocks.linear(c, f"{module}.receptance", c.width, c.width, term=term),
            blocks.linear(c, f"{module}.value", hidden, c.width, term=term),
            blocks.small(c, "mixing", 2 * c.width),
        )
        return blocks.Block(ops)

    def _time_mix7(self, c: Config, module: str, *, first: bool) -> blocks.Block:
        width, dim = c.width, c.integer("head_dim", default=64)
        if width % dim:
            raise c.error("head_dim", f"must divide the width {width}, got {dim}")
        ranks = {"w": "decay_low_rank_dim", "a": "a_low_rank_dim", "g": "gate_low_rank_dim"}

        # The value residual adds the values of the first layer, so that layer has none.
        ranks |= {} if first else {"v": "v_low_rank_dim"}

        # Each vector comes from two low-rank matrices, at steps 0 and 2 of a sequence of modules.
        narrow = tuple(
            blocks.linear(c, f"{module}.{name}_lora.{step}", *sizes, bias=step == 2 and name != "g")
            for name, rank in ((name, c.integer(field)) for name, field in ranks.items())
            for step, sizes in ((0, (width, rank)), (2, (rank, width)))
        )
        wide = tuple(blocks.linear(c, f"{module}.{name}_proj", width, width, split_limit=width // dim) for name in "rkvo")
        vectors = (blocks.small(c, "mixing, keys and bonus", 9 * width), blocks.norm(c, "g_norm", width, bias=True))
        state = blocks_state_space.state(
            c, heads=width // dim, values=width * dim, flops_per_value=GENERALISED, channels=2 * width, kernel=2
        )

        return blocks.Block((*wide, *narrow, *vectors), (state,))

    def _channel_mix7(self, c: Config, module: str) -> blocks.Block:
        hidden = c.integer("intermediate_size", default=math.ceil(c.number("hidden_ratio", default=4) * c.width))
        key = blocks.linear(c, f"{module}.key", c.width, hidden, term="feed-forward")
        value = blocks.linear(c, f"{module}.value", hidden, c.width, term="feed-forward")
        return blocks.Block((key, value, blocks.small(c, "mixing", c.width)))

    def _inner(self, c: Config) -> int:
        return c.integer("attention_hidden_size", default=c.width)
