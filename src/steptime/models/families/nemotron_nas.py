"""Llama-Nemotron: a Llama whose layers were reduced by an architecture search."""

from __future__ import annotations

from typing import final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer

# Hidden sizes are rounded up to a multiple of it (`modeling_decilm.py` of the checkpoint).
MULTIPLE = 256


@final
class NemotronNas(Family):
    """Llama-Nemotron Super and Ultra (arXiv 2505.00949).

    `block_configs` describes each layer.
    """

    model_types = ("nemotron-nas",)
    architectures = ("DeciLMForCausalLM",)

    def layer(self, c: Config, index: int) -> Layer:
        """Return the remaining attention and feed-forward block, each with its norm.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        # A small config names the entry of the list in its errors.
        field = f"block_configs[{index}]"
        block = Config({field: c.items("block_configs", length=index + 1)[index]}, name=c.name, lookups=c.lookups).inner(field)
        attention, norms = self._attention(c, block.inner("attention"), f"layers.{index}.self_attn")
        feed_forward, feed_forward_norms = self._feed_forward(c, block.inner("ffn"), f"layers.{index}.mlp")
        return blocks.decoder(c, attention, feed_forward, norms=norms + feed_forward_norms)

    def _attention(self, c: Config, a: Config, module: str) -> tuple[blocks.Block, tuple[str, ...]]:
        if a.flag("no_op", default=False):
            return blocks.Block(()), ()
        if a.flag("replace_with_linear", default=False):
            matrix = blocks.linear(c, f"{module}.linear_attn", c.width, c.width)
            return blocks.Block((matrix,)), ("input_norm",)

        group, bias = a.integer("n_heads_in_group"), c.flag("attention_bias", default=False)
        if c.heads % group:
            raise a.error("n_heads_in_group", f"must divide the {c.heads} query heads, got {group}")
        window = blocks.window(a, 0, field="window_length")
        return blocks.grouped_query(c, module, kv_heads=c.heads // group, bias=bias, window=window), ("input_norm",)

    def _feed_forward(self, c: Config, f: Config, module: str) -> tuple[blocks.Block, tuple[str, ...]]:
        if f.flag("no_op", default=False):
            return blocks.Block(()), ()
        if f.flag("replace_with_linear", default=False):
            matrix = blocks.linear(c, f"{module}.linear_mlp", c.width, c.width, term="feed-forward")
            return blocks.Block((matrix,)), ("post_norm",)
        # As in the reference: two thirds of a multiple of the width, rounded up.
        hidden = -(-int(2 * f.number("ffn_mult") * c.width / 3) // MULTIPLE) * MULTIPLE
        return blocks.gated(c, module, hidden, bias=c.flag("mlp_bias", default=False)), ("post_norm",)
