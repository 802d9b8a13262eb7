"""GPT-1, GPT-2, GPT-Neo and StarCoder 1: plain feed-forward, learned positions.

They have biases and a tied embedding.
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
    norm_bias = True

    def tied(self, c: Config) -> bool:
        """Return whether embedding and head share one matrix; the default is True.

        Args:
            c: Config of the language model.

        Returns:
            True if the head stores the matrix of the embedding.
        """
        return c.flag("tie_word_embeddings", default=True)

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms with biases and a plain feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, kind = f"h.{index}", c.text("model_type", default="gpt2")
        hidden = c.integer("n_inner", "intermediate_size", "dff", default=4 * c.width)
        single = kind == "gpt_bigcode" and c.flag("multi_query", default=True)
        block = blocks.Block(tuple(blocks.norm(c, name, c.width, bias=True) for name in ("ln_1", "ln_2")))
        block += blocks.grouped_query(
            c,
            f"{module}.attn",
            heads=c.heads,
            kv_heads=1 if single else c.heads,
            head_dim=c.head_dim,
            bias=kind != "gpt_neo",
            output_bias=True,
            window=self._window(c, index) if kind == "gpt_neo" else math.inf,
        )
        block += blocks.plain(c, f"{module}.mlp", hidden, bias=True)

        return Layer(name="attention + feed-forward", ops=block.ops, attention=block.attention)

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return the embedding, learned positions, the final norm and the head.

        Args:
            c: Config of the language model.

        Returns:
            The operators.
        """
        positions = c.integer("n_positions", "max_position_embeddings")
        kind = c.text("model_type", default="gpt2")
        return (
            blocks.embedding(c, tied=self.tied(c)),
            *(() if kind == "ctrl" else (blocks.table(c, "positions", positions * c.width),)),
            *(() if kind == "openai-gpt" else (blocks.norm(c, "final_norm", c.width, bias=True),)),
            blocks.head(c, bias=kind == "ctrl"),
        )

    def _window(self, c: Config, index: int) -> float:
        if c.has("attention_layers"):
            local = c.choices("attention_layers", valid_names=("global", "local"), length=index + 1)[index] == "local"
        else:
            # GPT-Neo alternates global and local layers, and begins with a global one.
            local = index % 2 == 1
        return c.integer("window_size", default=256) if local else math.inf
