"""Qwen3-Next and Qwen3.5: gated DeltaNet in three of four layers, gated attention.

The models are dense or have experts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, final

from steptime.models import blocks, blocks_state_space
from steptime.models.config import Config
from steptime.models.families.qwen import shared_expert_gate, third_tower
from steptime.models.family_registry import Family
from steptime.models.model import Layer

if TYPE_CHECKING:
    from steptime.models.blocks_vision import Tower

KINDS = ("linear_attention", "full_attention")


@final
class QwenHybrid(Family):
    r"""Gated DeltaNet (arXiv 2412.06464) and gated attention.

    Kinds: `qwen3_next`, `qwen3_5`, `qwen3_5_moe` of transformers. A DeltaNet layer keeps one state of $d_k \times d_v$
    per value head. A token decays it, reads it with its key, adds the corrected outer product, and reads it with its
    query: 7 FLOPs per value. The queries, keys and values pass a short convolution.
    """

    model_types = ("qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text")

    def layer(self, c: Config, index: int) -> Layer:
        """Return DeltaNet or gated attention, two norms, and a dense block or experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        return self._layer(c, f"layers.{index}", full=self._is_full_attention(c, index), sparse=self._is_sparse(c, index))

    def draft(self, c: Config) -> tuple[tuple[Layer, int], ...]:
        """Return the multi-token-prediction layers: a projection and attention layers.

        Args:
            c: Config of the language model.

        Returns:
            Pairs of layer and count; empty without such layers.
        """
        count = c.integer("mtp_num_hidden_layers", default=0, least=0)
        if not count:
            return ()
        layer = self._layer(c, "mtp.layers.0", full=True, sparse=self._is_sparse(c, c.depth - 1))
        joined = blocks.linear(c, "mtp.fc", 2 * c.width, c.width)
        norms = tuple(blocks.norm(c, name, c.width) for name in ("embedding_norm", "hidden_norm", "mtp_norm"))
        # The projection and its norms run once, before the first layer.
        first = replace(layer, name=f"multi-token prediction: {layer.name}", ops=(joined, *norms, *layer.ops))
        return ((first, 1), (layer, count - 1)) if count > 1 else ((first, 1),)

    def image_tower(self, c: Config) -> Tower:
        """Return the tower of Qwen3-VL.

        Args:
            c: Config of the whole model.

        Returns:
            The tower.
        """
        return third_tower(c.inner("vision_config"))

    def _layer(self, c: Config, module: str, *, full: bool, sparse: bool) -> Layer:
        mixer = self._attention(c, f"{module}.self_attn") if full else self._delta(c, f"{module}.linear_attn")
        if sparse:
            feed_forward = self._experts(c, f"{module}.mlp")
        else:
            feed_forward = blocks.gated(c, f"{module}.mlp", c.integer("intermediate_size"))
        return blocks.decoder(c, mixer, feed_forward, mixer="gated attention" if full else "gated DeltaNet")

    def _attention(self, c: Config, module: str) -> blocks.Block:
        bias = c.flag("attention_bias", default=False)
        gate = c.heads * c.head_dim if c.flag("attn_output_gate", default=True) else 0
        return blocks.grouped_query(c, module, bias=bias, qk_norm=c.head_dim, gate=gate)

    def _delta(self, c: Config, module: str) -> blocks.Block:
        key_heads, value_heads = c.integer("linear_num_key_heads"), c.integer("linear_num_value_heads")
        key_dim, value_dim = c.integer("linear_key_head_dim"), c.integer("linear_value_head_dim")
        if value_heads % key_heads:
            raise c.error("linear_num_value_heads", f"must be a multiple of the {key_heads} key heads, got {value_heads}")
        keys, values = key_heads * key_dim, value_heads * value_dim

        # Qwen3-Next fuses the projections by inputs, Qwen3.5 separates them.
        if self.kind(c) == "qwen3_next":
            sizes = {"in_proj_qkvz": 2 * keys + 2 * values, "in_proj_ba": 2 * value_heads}
        else:
            sizes = {"in_proj_qkv": 2 * keys + values, "in_proj_z": values} | dict.fromkeys(
                ("in_proj_b", "in_proj_a"), value_heads
            )
        return blocks_state_space.delta(
            c,
            module,
            [blocks.linear(c, f"{module}.{name}", c.width, size, split_limit=key_heads) for name, size in sizes.items()],
            key_heads=key_heads,
            value_heads=value_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            kernel=c.integer("linear_conv_kernel_dim"),
            decays=2 * value_heads,
            norm="gated_norm",
            output="out_proj",
        )

    def _experts(self, c: Config, module: str) -> blocks.Block:
        count, shared = c.integer("num_experts"), c.integer("shared_expert_intermediate_size")
        experts = blocks.shared_and_routed(c, module, count=count, shared=shared, shared_module="shared_expert")
        return experts + shared_expert_gate(c, module)

    def _is_full_attention(self, c: Config, index: int) -> bool:
        if kind := c.layer_kind(index, KINDS):
            return kind == "full_attention"
        return (index + 1) % c.integer("full_attention_interval", default=4) == 0

    def _is_sparse(self, c: Config, index: int) -> bool:
        if not c.has("num_experts") or index in c.items("mlp_only_layers", default=()):
            return False
        return (index + 1) % c.integer("decoder_sparse_step", default=1) == 0
