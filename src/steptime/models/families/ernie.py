"""ERNIE 4.5: grouped-query attention, with a dense block or experts.

The first layers of the models with experts are dense.
"""

from __future__ import annotations

from typing import final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer, Op


@final
class Ernie(Family):
    """ERNIE 4.5, dense and with experts (Baidu, ERNIE 4.5 technical report, 2025)."""

    model_types = ("ernie4_5", "ernie4_5_moe")
    default_kind = "ernie4_5_moe"
    tied_kinds = model_types

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms, and a feed-forward block or experts.

        The router has a bias that balances the experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        bias, module = c.flag("use_bias", default=False), f"layers.{index}.mlp"
        attention = blocks.grouped_query(c, f"layers.{index}.self_attn", bias=bias)
        if not self._is_sparse(c, index):
            return blocks.decoder(c, attention, blocks.gated(c, module, c.integer("intermediate_size"), bias=bias))
        hidden, count = c.integer("moe_intermediate_size"), c.integer("moe_num_experts")
        active, shared = c.integer("moe_k"), hidden * c.integer("moe_num_shared_experts", default=0, least=0)
        experts = blocks.shared_and_routed(c, module, hidden, count=count, active=active, shared=shared, shared_bias=bias)
        experts += blocks.small(c, "e_score_correction_bias", count, term="experts")

        return blocks.decoder(c, attention, experts)

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return embedding, final norm and head, which has a bias if the matrices have.

        Args:
            c: Config of the language model.

        Returns:
            The operators.
        """
        moe = self.kind(c) == "ernie4_5_moe"
        return *super().stem(c)[:2], blocks.head(c, bias=moe and c.flag("use_bias", default=False))

    def _is_sparse(self, c: Config, index: int) -> bool:
        if self.kind(c) == "ernie4_5":
            return False
        last = c.raw("moe_layer_end_index", default=-1)
        # -1 means the last layer.
        last = c.depth - 1 if last == -1 else c.integer("moe_layer_end_index", least=0)
        first = c.integer("moe_layer_start_index", default=1, least=0)
        return first <= index <= last and (index + 1) % c.integer("moe_layer_interval", default=1) == 0
