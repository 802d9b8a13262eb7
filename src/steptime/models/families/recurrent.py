"""Decoders with a recurrent state of fixed size: RWKV, xLSTM and RecurrentGemma."""

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


@final
class Xlstm(Family):
    r"""xLSTM-7B (arXiv 2503.13427): mLSTM layers only.

    A head keeps a matrix of $d_k \times d_v$, a normalizer of $d_k$ values and one largest exponent, in FP32.
    """

    model_types = ("xlstm",)
    # The reference stores both matrices.
    tie_fields = ()

    def depth(self, c: Config) -> int:
        """Return the number of blocks.

        Args:
            c: Config of the language model.

        Returns:
            Number of layers.
        """
        return c.integer("num_blocks", "num_hidden_layers", maximum=1000)

    def layer(self, c: Config, index: int) -> Layer:
        """Return the matrix memory, two norms and a gated feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, bias = f"blocks.{index}", c.flag("use_bias", default=False)
        # As in the reference: round the width up to a multiple.
        unit = c.integer("ffn_round_up_to_multiple_of", default=64)
        hidden = -(-int(c.number("ffn_proj_factor", default=2.667) * c.width) // unit) * unit
        memory = self._memory(c, f"{module}.mlstm_layer", bias=bias)
        feed_forward, norms = blocks.gated(c, f"{module}.ffn", hidden, bias=bias), ("norm_mlstm", "norm_ffn")
        return blocks.decoder(c, memory, feed_forward, norms=norms, norm_bias=bias, mixer="matrix memory")

    def _memory(self, c: Config, module: str, *, bias: bool) -> blocks.Block:
        heads = c.heads
        keys = int(c.number("qk_dim_factor", default=0.5) * c.width)
        values = int(c.number("v_dim_factor", default=1.0) * c.width)
        if keys % heads or values % heads:
            raise c.error("num_heads", f"must divide the {keys} values of keys and the {values} of values, got {heads}")
        sizes = {"q": keys, "k": keys, "v": values, "ogate_preact": values}
        gates = ("igate_preact", "fgate_preact")
        ops = (
            *(blocks.linear(c, f"{module}.{name}", c.width, n, bias=bias, split_limit=heads) for name, n in sizes.items()),
            *(blocks.linear(c, f"{module}.{name}", c.width, heads, bias=True, split_limit=heads) for name in gates),
            blocks.norm(c, "multihead_norm", values, bias=bias),
            blocks.linear(c, f"{module}.out_proj", values, c.width, bias=bias),
        )
        state = blocks_state_space.state(
            c,
            heads=heads,
            values=keys * values / heads + keys + heads,
            flops_per_value=blocks_state_space.DECAY + blocks_state_space.OUTER + blocks_state_space.READOUT,
        )

        return blocks.Block(ops, (state,))


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
