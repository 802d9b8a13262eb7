"""Ling and Ring with linear attention: delta and latent attention, and experts.

Five layers of Kimi delta attention alternate with one layer of gated latent attention.
"""

from __future__ import annotations

from typing import final

from steptime.models import blocks, blocks_state_space
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer

KINDS = ("linear_attention", "full_attention")


@final
class BailingHybrid(Family):
    """Ling and Ring with linear attention: `bailing_hybrid` of transformers.

    The delta attention has one decay per channel (arXiv 2510.26692) and gates of full rank. Latent attention has one
    gate per head.
    """

    model_types = ("bailing_hybrid",)
    # The reference stores both matrices.
    tie_fields = ()

    def layer(self, c: Config, index: int) -> Layer:
        """Return delta or latent attention, two norms, and a dense block or experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, full, sparse = f"layers.{index}", self._is_full_attention(c, index), blocks.is_sparse(c, index, dense=2)
        mixer = self._latent(c, f"{module}.self_attn") if full else self._delta(c, f"{module}.self_attn")
        feed_forward = (
            self._experts(c, f"{module}.mlp") if sparse else blocks.gated(c, f"{module}.mlp", c.integer("intermediate_size"))
        )
        return blocks.decoder(c, mixer, feed_forward, mixer="latent attention" if full else "delta attention")

    def _experts(self, c: Config, module: str) -> blocks.Block:
        hidden = c.integer("moe_intermediate_size")
        return blocks.shared_and_routed(
            c,
            module,
            hidden,
            count=c.integer("num_experts", "num_local_experts"),
            active=c.integer("num_experts_per_token", "num_experts_per_tok"),
            shared=c.integer("num_shared_experts", "n_shared_experts", default=0, least=0) * hidden,
            groups=(c.integer("num_expert_group", "n_group", default=1), c.integer("topk_group", default=1)),
        )

    def _latent(self, c: Config, module: str) -> blocks.Block:
        # One gate per head, not per value.
        gate = blocks.linear(c, f"{module}.g_proj", c.width, c.heads, split_limit=c.heads)
        return blocks.latent(c, module) + gate

    def _delta(self, c: Config, module: str) -> blocks.Block:
        heads, dim = c.integer("linear_num_heads", default=c.heads), c.integer("linear_head_dim", "head_dim", default=128)
        inner = heads * dim
        outputs = dict.fromkeys("qkvfg", inner) | {"b": heads}
        return blocks_state_space.delta(
            c,
            module,
            [blocks.linear(c, f"{module}.{name}_proj", c.width, size, split_limit=heads) for name, size in outputs.items()],
            key_heads=heads,
            value_heads=heads,
            key_dim=dim,
            value_dim=dim,
            kernel=c.integer("linear_conv_kernel_dim", "short_conv_kernel_size", default=4),
            decays=inner + heads,
        )

    def _is_full_attention(self, c: Config, index: int) -> bool:
        if kind := c.layer_kind(index, KINDS):
            return kind == "full_attention"
        # The last layer of each group has full attention.
        return (index + 1) % c.integer("layer_group_size", default=6) == 0
