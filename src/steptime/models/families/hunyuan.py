"""Hunyuan-Large and Hunyuan-A13B: shared and routed experts in every layer.

Layers may share caches.
"""

from __future__ import annotations

from typing import final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer


@final
class Hunyuan(Family):
    """Hunyuan-Large (arXiv 2411.02265) and Hunyuan-A13B.

    With cross-layer attention, only each `cla_share_factor`th layer has keys and values; the others read its cache.
    Heads of Hunyuan-Large have width / heads values, those of A13B have `attention_head_dim`.
    """

    model_types = ("hunyuan", "hunyuan_v1_moe")
    default_kind = "hunyuan_v1_moe"

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms, shared and routed experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        large = self.kind(c) == "hunyuan"
        head_dim = c.head_dim if large else c.integer("attention_head_dim", "head_dim", default=c.head_dim)
        shared_cache = c.flag("use_cla", default=False) and index % c.integer("cla_share_factor", default=1) != 0
        bias = c.flag("attention_bias", default=False)
        attention = blocks.grouped_query(
            c,
            f"layers.{index}.self_attn",
            head_dim=head_dim,
            bias=bias,
            qk_norm=head_dim if c.flag("use_qk_norm", default=True) else 0,
            stored=not shared_cache,
        )

        # The config gives one number, or a list with one per layer.
        hidden = blocks.entry(c, "intermediate_size", index)
        experts = blocks.shared_and_routed(
            c,
            f"layers.{index}.mlp",
            blocks.entry(c, "moe_intermediate_size", index, default=hidden),
            count=blocks.entry(c, "num_experts", index),
            active=blocks.entry(c, "moe_topk", index),
            shared=hidden * blocks.entry(c, "num_shared_expert", index, default=1),
            shared_module="shared_mlp",
        )

        return blocks.decoder(c, attention, experts)
