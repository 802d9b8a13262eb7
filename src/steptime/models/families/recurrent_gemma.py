"""RecurrentGemma: two layers of a gated linear recurrence per layer of attention.

Attention has a sliding window.
"""

from __future__ import annotations

from typing import final

from steptime.models import blocks, blocks_state_space
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer

LAYER_TYPES = ("recurrent", "attention", "linear_attention", "sliding_attention")


@final
class RecurrentGemma(Family):
    """RecurrentGemma (arXiv 2404.07839; Griffin, arXiv 2402.19427).

    A recurrent layer has two branches. One branch passes a convolution and the RG-LRU, whose state is one FP32 value
    per channel. The two gates of the RG-LRU are block matrices, with one block per head. `intermediate_size` counts
    gate and value together.
    """

    model_types = ("recurrent_gemma",)
    tied_kinds = model_types

    def layer(self, c: Config, index: int) -> Layer:
        """Return the recurrence or attention, two norms, and a gated feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module = f"layers.{index}"
        full = self._is_full_attention(c, index)
        mixer = self._attention(c, f"{module}.temporal_block") if full else self._recurrent(c, f"{module}.temporal_block")
        feed_forward = blocks.gated(c, f"{module}.mlp_block", c.integer("intermediate_size") // 2, bias=True)
        norms, name = ("temporal_norm", "channel_norm"), "attention" if full else "gated recurrence"
        return blocks.decoder(c, mixer, feed_forward, norms=norms, mixer=name)

    def _attention(self, c: Config, module: str) -> blocks.Block:
        window = c.integer("attention_window_size", "sliding_window", default=2048)
        bias = c.flag("attention_bias", default=False)
        return blocks.grouped_query(c, module, bias=bias, output_bias=True, window=window)

    def _recurrent(self, c: Config, module: str) -> blocks.Block:
        channels, kernel = c.integer("lru_width", default=c.width), c.integer("conv1d_width", default=4)
        if channels % c.heads:
            raise c.error("lru_width", f"must be a multiple of the {c.heads} heads, got {channels}")
        gates = (
            blocks.linear(c, f"{module}.{name}", channels // c.heads, channels, bias=True, split_limit=c.heads)
            for name in ("input_gate", "recurrent_gate")
        )
        ops = (
            blocks.linear(c, f"{module}.linear_y", c.width, channels, bias=True),
            blocks.linear(c, f"{module}.linear_x", c.width, channels, bias=True),
            blocks_state_space.convolution(c, channels, kernel, bias=True),
            *gates,
            blocks.small(c, "recurrent_param", channels, split="group"),
            blocks.linear(c, f"{module}.linear_out", channels, c.width, bias=True),
        )
        flops = blocks_state_space.DECAY + blocks_state_space.OUTER
        state = blocks_state_space.state(
            c, heads=c.heads, values=channels, flops_per_value=flops, channels=channels, kernel=kernel
        )

        return blocks.Block(ops, (state,))

    def _is_full_attention(self, c: Config, index: int) -> bool:
        if c.has("layers_block_type") or c.has("_block_types") or c.has("block_types"):
            # The config may give one period of the pattern, so the index wraps around.
            kinds = c.choices("layers_block_type", "_block_types", "block_types", valid_names=LAYER_TYPES)
            if not kinds:
                raise c.error("block_types", "must name at least one kind of layer")
            return kinds[index % len(kinds)] in ("attention", "sliding_attention")
        return index % 3 == 2
