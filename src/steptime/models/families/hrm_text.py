"""HRM-Text: two stacks of layers that run several times in turn on each token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, repeat
from typing import final

from steptime.models import blocks
from steptime.models.config import DEEPEST, Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer, Op


@final
class HrmText(Family):
    """HRM-Text (`hrm_text` of transformers; hierarchical reasoning, arXiv 2506.21734).

    The low stack runs `L_cycles` times, then the high stack runs once; this repeats `H_cycles` times. Each run reads
    the weights again and has its own cache. The weights are stored once. Norms have no gains.
    """

    model_types = ("hrm_text",)

    def depth(self, c: Config) -> int:
        """Return the number of layers that run, each as often as it runs.

        Args:
            c: Config of the language model.

        Returns:
            Number of layers.
        """
        low, high = c.integer("L_cycles", default=3, maximum=DEEPEST), c.integer("H_cycles", default=2, maximum=DEEPEST)
        layers = self._stack(c) * (low + 1) * high
        if layers > DEEPEST:
            raise c.error("H_cycles", f"makes {layers:,} layers from {self._stack(c)}; the limit is {DEEPEST:,}")
        return layers

    def iter_layers(self, c: Config) -> Iterator[Layer]:
        """Yield the layers of both stacks, then their repeated runs with stored weights.

        Args:
            c: Config of the language model.

        Returns:
            Iterator over the layers.
        """
        # All layers are equal; only the first run of each stack stores weights.
        first, stored = self.layer(c, 0), 2 * self._stack(c)
        repeated_layer = replace(first, name=f"{first.name}, again", ops=tuple(replace(op, stored=False) for op in first.ops))
        return chain(repeat(first, stored), repeat(repeated_layer, self.depth(c) - stored))

    def layer(self, c: Config, index: int) -> Layer:  # noqa: ARG002 - all are alike
        """Return gated attention and a gated feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        bias, inner = c.flag("attention_bias", default=False), c.heads * c.head_dim
        block = blocks.grouped_query(c, "layers.self_attn", kv_heads=c.heads, bias=bias)
        gate = blocks.linear(c, "layers.self_attn.gate_proj", c.width, inner, bias=bias, split_limit=c.heads)
        feed_forward = blocks.gated(c, "layers.mlp", c.integer("intermediate_size"), bias=c.flag("mlp_bias", default=False))
        return blocks.decoder(c, block + gate, feed_forward, norms=(), mixer="gated attention")

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return embedding, the first state of the low stack, and head.

        Args:
            c: Config of the language model.

        Returns:
            The operators.
        """
        return blocks.embedding(c, tied=self.tied(c)), blocks.small(c, "z_L_init", c.width), blocks.head(c)

    def _stack(self, c: Config) -> int:
        return c.integer("num_layers_per_stack", maximum=DEEPEST)
