"""OLMo 2 and 3, OLMoE and EXAONE 4: norms on queries and keys, and, save in OLMoE, on what a block returns."""

from __future__ import annotations

from typing import final

from steptime.models import parts, parts_decoder
from steptime.models.config import Config
from steptime.models.family import Family
from steptime.models.model import Layer


@final
class Olmo(Family):
    """OLMo 2 (arXiv 2501.00656), OLMo 3, OLMoE (arXiv 2409.02060) and EXAONE 4.0 (arXiv 2507.11407).

    OLMo normalises queries and keys over all heads together, EXAONE each head.
    """

    model_types = ("olmo2", "olmo3", "olmoe", "exaone4")

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms and a feed-forward block or experts."""
        kind, bias = c.text("model_type", default="olmo3"), c.flag("attention_bias", default=False)
        attention = parts.grouped_query(
            c,
            f"layers.{index}.self_attn",
            heads=c.heads,
            kv_heads=c.kv_heads,
            head_dim=c.head_dim,
            bias=bias,
            output_bias=bias,
            qk_norm=c.head_dim if kind == "exaone4" else c.heads * c.head_dim,
            gathers=True,  # vLLM 0.19, models/olmo2.py: _apply_qk_norm
            window=parts_decoder.window(c, index, period=4),
        )
        module, hidden = f"layers.{index}.mlp", c.integer("intermediate_size")
        if kind != "olmoe":
            return parts_decoder.decoder(c, attention, parts.gated(c, module, hidden))
        count, active = c.integer("num_experts"), c.integer("num_experts_per_tok")
        return parts_decoder.decoder(c, attention, parts.experts(c, module, hidden, count=count, active=active))
