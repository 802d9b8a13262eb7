"""GPT-2: multi-head attention, a plain GELU feed-forward block, biases everywhere, learned positions, tied embeddings."""

from __future__ import annotations

from typing import final

from steptime.models import parts
from steptime.models.config import Config
from steptime.models.family import Family
from steptime.models.model import Layer, Op


@final
class Gpt2(Family):
    """GPT-2 in its four sizes."""

    model_types = ("gpt2",)
    norm_bias = True

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms with biases and a plain feed-forward block."""
        module = f"h.{index}"
        hidden = c.integer("n_inner", default=4 * c.width)
        block = parts.Block(tuple(parts.norm(c, name, c.width, bias=True) for name in ("ln_1", "ln_2")))
        block += parts.grouped_query(
            c, f"{module}.attn", heads=c.heads, kv_heads=c.heads, head_dim=c.head_dim, bias=True, output_bias=True
        )
        block += parts.plain(c, f"{module}.mlp", hidden, bias=True)
        return Layer(name="attention + feed-forward", ops=block.ops, attention=block.attention)

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return the embedding, learned positions, the final norm and the tied head."""
        positions = c.integer("n_positions", "max_position_embeddings")
        return (
            parts.embedding(c, tied=True),
            parts.table(c, "positions", positions * c.width),
            parts.norm(c, "final_norm", c.width, bias=True),
            parts.head(c),
        )
