"""OLMo 1 to 3, OLMoE, FlexOLMo and EXAONE 4: norms on queries and keys.

OLMo 1 has no such norms. Most other models have norms after their blocks.
"""

from __future__ import annotations

import math
from typing import final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer, Op


@final
class Olmo(Family):
    """OLMo, OLMo 2 and 3, OLMoE, FlexOLMo and EXAONE 4.0.

    Papers: arXiv 2402.00838, 2501.00656, 2409.02060 (OLMoE), 2507.07024 (FlexOLMo) and 2507.11407 (EXAONE 4.0). OLMo
    normalizes queries and keys over all heads together, EXAONE per head. The norms of OLMo 1 have no gains.
    """

    model_types = ("olmo", "olmo2", "olmo3", "olmoe", "flex_olmo", "exaone4")
    default_kind = "olmo3"

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms and a feed-forward block or experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        kind, bias = self.kind(c), c.flag("attention_bias", default=False)
        attention = blocks.grouped_query(
            c,
            f"layers.{index}.self_attn",
            bias=bias,
            qk_norm=self._gains(c, kind),
            # vLLM 0.19, models/olmo2.py: _apply_qk_norm.
            gathers=True,
            window=blocks.window(c, index, period=4) if kind in ("olmo3", "exaone4") else math.inf,
        )
        module, hidden = f"layers.{index}.mlp", c.integer("intermediate_size")
        if kind not in ("olmoe", "flex_olmo"):
            norms = () if kind == "olmo" else blocks.PRE
            return blocks.decoder(c, attention, blocks.gated(c, module, hidden), norms=norms)

        count = c.integer("num_experts", "num_local_experts")

        return blocks.decoder(c, attention, blocks.experts(c, module, hidden, count=count))

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return embedding, final norm and head; the norm of OLMo 1 has no gains.

        Args:
            c: Config of the language model.

        Returns:
            The operators.
        """
        embedding, norm, head = super().stem(c)
        return (embedding, head) if self.kind(c) == "olmo" else (embedding, norm, head)

    def _gains(self, c: Config, kind: str) -> int:
        if kind == "olmo":
            return 0
        return c.head_dim if kind == "exaone4" else c.heads * c.head_dim
