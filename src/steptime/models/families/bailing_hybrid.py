"""Ling and Ring with linear attention: delta and latent attention, and experts.

Five layers of Kimi delta attention alternate with one layer of gated latent attention.
"""

from __future__ import annotations

from typing import final

from steptime.models import blocks, blocks_decoder, blocks_state_space
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

    def tied(self, c: Config) -> bool:  # noqa: ARG002 - the config does not matter
        """Return False, because the reference stores both matrices.

        Args:
            c: Config of the language model.

        Returns:
            True if the head stores the matrix of the embedding.
        """
        return False

    def layer(self, c: Config, index: int) -> Layer:
        """Return delta or latent attention, two norms, and a dense block or experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, full, sparse = f"layers.{index}", self._is_full_attention(c, index), blocks_decoder.is_sparse(c, index, dense=2)
        block = blocks.Block((blocks.norm(c, "input_norm", c.width), blocks.norm(c, "post_norm", c.width)))
        block += self._latent(c, f"{module}.self_attn") if full else self._delta(c, f"{module}.self_attn")
        if sparse:
            hidden = c.integer("moe_intermediate_size")
            block += blocks_decoder.shared_and_routed(
                c,
                f"{module}.mlp",
                hidden,
                count=c.integer("num_experts", "num_local_experts"),
                active=c.integer("num_experts_per_token", "num_experts_per_tok"),
                shared=c.integer("num_shared_experts", "n_shared_experts", default=0, least=0) * hidden,
                groups=(
                    c.integer("num_expert_group", "n_group", default=1),
                    c.integer("topk_group", default=1),
                ),
            )
        else:
            block += blocks.gated(c, f"{module}.mlp", c.integer("intermediate_size"))

        name = f"{'latent attention' if full else 'delta attention'} + {'experts' if sparse else 'feed-forward'}"

        return Layer(name=name, ops=block.ops, attention=block.attention)

    def _latent(self, c: Config, module: str) -> blocks.Block:
        # One gate per head, not per value.
        gate = blocks.linear(c, f"{module}.g_proj", c.width, c.heads, term="projections", split_limit=c.heads)
        return blocks.latent(c, module) + blocks.Block((gate,))

    def _delta(self, c: Config, module: str) -> blocks.Block:
        heads, dim = c.integer("linear_num_heads", default=c.heads), c.integer("linear_head_dim", "head_dim", default=128)
        inner, term = heads * dim, "projections"
        convolution, decays, state = blocks_state_space.delta(
            c,
            key_heads=heads,
            value_heads=heads,
            key_dim=dim,
            value_dim=dim,
            kernel=c.integer("linear_conv_kernel_dim", "short_conv_kernel_size", default=4),
            decays=inner + heads,
        )
        ops = (
            *(
                blocks.linear(c, f"{module}.{name}_proj", c.width, inner, term=term, split_limit=heads)
                for name in ("q", "k", "v", "f", "g")
            ),
            blocks.linear(c, f"{module}.b_proj", c.width, heads, term=term, split_limit=heads),
            convolution,
            decays,
            blocks.norm(c, "output_norm", inner, weights=dim),
            blocks.linear(c, f"{module}.o_proj", inner, c.width, term=term),
        )

        return blocks.Block(ops, (state,))

    def _is_full_attention(self, c: Config, index: int) -> bool:
        if c.has("layer_types"):
            return c.choices("layer_types", valid_names=KINDS, length=index + 1)[index] == "full_attention"
        # The last layer of each group has full attention.
        return (index + 1) % c.integer("layer_group_size", default=6) == 0
