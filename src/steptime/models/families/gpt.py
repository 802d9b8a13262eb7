"""GPT-1, GPT-2, GPT-Neo, StarCoder 1, GPT-J and GPT-NeoX: plain feed-forward blocks.

The blocks of GPT-J and GPT-NeoX are in parallel, and their positions are rotary.
"""

from __future__ import annotations

import math
from typing import final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer, Op


@final
class Gpt2(Family):
    """GPT-1, GPT-2 in its four sizes, GPT-Neo, StarCoder 1 and CTRL.

    Kinds: `openai-gpt`, `gpt2`, `gpt_neo`, `gpt_bigcode` (arXiv 2305.06161) and `ctrl`. StarCoder 1 has one KV head for all
    queries. Every second layer of GPT-Neo has a window, and only its output projection has a bias. CTRL (arXiv 1909.05858)
    computes its positions and has a bias on its head.
    """

    model_types = ("gpt2", "gpt-sw3", "openai-gpt", "gpt_bigcode", "gpt_neo", "ctrl")
    tied_kinds = model_types
    norm_bias = True

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms with biases and a plain feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, kind = f"h.{index}", self.kind(c)
        hidden = c.integer("n_inner", "intermediate_size", "dff", default=4 * c.width)
        single = kind == "gpt_bigcode" and c.flag("multi_query", default=True)
        attention = blocks.grouped_query(
            c,
            f"{module}.attn",
            kv_heads=1 if single else c.heads,
            bias=kind != "gpt_neo",
            output_bias=True,
            window=self._window(c, index) if kind == "gpt_neo" else math.inf,
        )
        feed_forward = blocks.plain(c, f"{module}.mlp", hidden, bias=True)

        return blocks.decoder(c, attention, feed_forward, norms=("ln_1", "ln_2"), norm_bias=True)

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return the embedding, learned positions, the final norm and the head.

        Args:
            c: Config of the language model.

        Returns:
            The operators.
        """
        positions = blocks.table(c, "positions", c.integer("n_positions", "max_position_embeddings") * c.width)
        embedding, norm, head = super().stem(c)
        if self.kind(c) == "ctrl":
            return embedding, norm, blocks.head(c, bias=True)
        return (embedding, positions, head) if self.kind(c) == "openai-gpt" else (embedding, positions, norm, head)

    def _window(self, c: Config, index: int) -> float:
        kind = c.layer_kind(index, ("global", "local"), "attention_layers")
        # Without a list, GPT-Neo alternates global and local layers, and begins with a global one.
        local = kind == "local" if kind else index % 2 == 1
        return c.integer("window_size", default=256) if local else math.inf


@final
class GptJ(Family):
    """GPT-J-6B (Wang and Komatsuzaki, 2021) and CodeGen (arXiv 2203.13474)."""

    model_types = ("gptj", "codegen")
    norm_bias = True
    head_bias = True

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention without biases, feed-forward with biases, and one norm.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module = f"h.{index}"
        attention = blocks.grouped_query(c, f"{module}.attn", kv_heads=c.heads)
        feed_forward = blocks.plain(c, f"{module}.mlp", c.integer("n_inner", default=4 * c.width), bias=True)
        return blocks.decoder(c, attention, feed_forward, norms=("ln_1",), norm_bias=True)


@final
class GptNeox(Family):
    """GPT-NeoX-20B (arXiv 2204.06745), Pythia (arXiv 2304.01373) and Japanese NeoX.

    The Japanese NeoX has one bias in its last layer.
    """

    model_types = ("gpt_neox", "gpt_neox_japanese")
    tied_kinds = ("gpt_neox_japanese",)
    norm_bias = True

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms and a plain feed-forward block, all with biases.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        japanese = self.kind(c) == "gpt_neox_japanese"
        bias = not japanese and c.flag("attention_bias", default=True)
        attention = blocks.grouped_query(c, f"layers.{index}.attention", kv_heads=c.heads, bias=bias)

        # The Japanese NeoX adds the bias of its attention output only in the last layer.
        if japanese and index == c.depth - 1:
            attention += blocks.small(c, "dense_bias", c.width)
        multiple = c.integer("intermediate_multiple_size", default=4) * c.width
        hidden = multiple if japanese else c.integer("intermediate_size")
        feed_forward = blocks.plain(c, f"layers.{index}.mlp", hidden, bias=not japanese)

        return blocks.decoder(c, attention, feed_forward, norm_bias=True)
