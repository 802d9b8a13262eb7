"""xLSTM: a matrix memory per head and a gated feed-forward block, no attention."""

from __future__ import annotations

from typing import final

from steptime.models import blocks, blocks_state_space
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer


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
