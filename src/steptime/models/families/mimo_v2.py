"""MiMo-V2-Flash: full attention in one of six layers, short windows in the others.

Keys are wider than values. Most layers have experts.
"""

from __future__ import annotations

import math
from typing import final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer


@final
class MiMoV2(Family):
    """MiMo-V2-Flash: `mimo_v2_flash` of transformers, 309B parameters and 15B active.

    Paper: arXiv 2601.02780. Window layers have another number of KV heads, and one sink per head. The config has no
    multi-token-prediction layers, although the checkpoint has some; they are not counted.
    """

    model_types = ("mimo_v2_flash",)

    def layer(self, c: Config, index: int) -> Layer:
        """Return full or window attention, two norms, and a dense block or experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, local, sparse = f"layers.{index}", self._is_local(c, index), self._is_sparse(c, index)
        attention = self._attention(c, f"{module}.self_attn", local=local)
        if sparse:
            feed_forward = blocks.shared_and_routed(c, f"{module}.mlp", groups=blocks.expert_groups(c))
        else:
            feed_forward = blocks.gated(c, f"{module}.mlp", c.integer("intermediate_size"))
        return blocks.decoder(c, attention, feed_forward)

    def _attention(self, c: Config, module: str, *, local: bool) -> blocks.Block:
        heads = c.integer("swa_num_attention_heads", default=c.heads) if local else c.heads
        kv_heads = c.integer("swa_num_key_value_heads", default=2 * c.kv_heads) if local else c.kv_heads
        if heads % kv_heads:
            raise c.error("swa_num_key_value_heads", f"must divide the {heads} query heads, got {kv_heads}")
        block = blocks.grouped_query(
            c,
            module,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=c.integer("swa_head_dim", default=c.head_dim) if local else c.head_dim,
            value_dim=c.integer("swa_v_head_dim", "v_head_dim") if local else c.integer("v_head_dim"),
            bias=c.flag("attention_bias", default=False),
            output_bias=False,
            window=c.integer("sliding_window", "sliding_window_size") if local else math.inf,
        )
        name = "add_swa_attention_sink_bias" if local else "add_full_attention_sink_bias"

        return block + blocks.small(c, "sinks", heads) if c.flag(name, default=local) else block

    def _is_local(self, c: Config, index: int) -> bool:
        if kind := c.layer_kind(index, ("full_attention", "sliding_attention")):
            return kind == "sliding_attention"
        if c.has("hybrid_layer_pattern"):
            return c.marked("hybrid_layer_pattern", index)
        # Without a list: layer 0 and every sixth layer have full attention.
        return index > 0 and (index + 1) % 6 != 0

    def _is_sparse(self, c: Config, index: int) -> bool:
        if c.has("moe_layer_freq") and not c.has("mlp_layer_types"):
            return c.marked("moe_layer_freq", index)
        return blocks.is_sparse(c, index, dense=1)
