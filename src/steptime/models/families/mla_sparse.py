"""Hunyuan V4, A.X K2 and dots.3 Note: gated latent attention, and experts.

Attention reads selected tokens or a window.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer, Op

LAYER_TYPES = ("indexed_attention", "full_attention", "sliding_attention")


@final
class LatentSparse(Family):
    """Hunyuan V4 (`hy_v4`), A.X K2 (`axk2`) and the text part of dots.3 Note.

    Kinds are those of transformers; dots.3 Note is `dots3_note`. All have a gate on the output of latent attention.
    Hunyuan has a gate per value, sinks, and residual streams mixed as in hyper-connections (arXiv 2409.19606). A.X has
    a gate per value from the latent of the queries, and norms gated by a low-rank matrix. dots has a gate per head. An
    indexer as in DeepSeek-V3.2 selects tokens (arXiv 2512.02556). Most layers of dots have a window instead. "Shared"
    layers of Hunyuan use the selection of the layer before them.
    """

    model_types = ("hy_v4", "axk2", "dots3_note", "dots3_note_text")

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention with or without indexer, norms, and a dense block or experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        kind, module, sparse = self.kind(c), f"layers.{index}", blocks.is_sparse(c, index, dense=1)
        block = self._attention(c, index, kind)
        if kind == "axk2":
            block += blocks.Block(self._gated_norms(c, count=1 + sparse))
        if kind == "hy_v4":
            maps = 2 * self._streams(c)
            block += self._streamed(c, "attn_hc", maps=maps, scales=2)
            block += self._streamed(c, "ffn_hc", maps=maps, scales=2)
        if sparse:
            expert_width = c.integer("shared_experts_intermediate_size", "moe_intermediate_size")
            feed_forward = blocks.shared_and_routed(
                c,
                f"{module}.mlp",
                count=c.integer("n_routed_experts", "num_local_experts"),
                shared=c.integer("n_shared_experts", default=0, least=0) * expert_width,
                groups=blocks.expert_groups(c),
            )
        else:
            feed_forward = blocks.gated(c, f"{module}.mlp", c.integer("intermediate_size"))

        return blocks.decoder(c, block, feed_forward, mixer="gated latent attention")

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return embedding, final norm, head, and the join of Hunyuan's residual streams.

        Args:
            c: Config of the language model.

        Returns:
            The operators.
        """
        if self.kind(c) != "hy_v4":
            return super().stem(c)
        return *super().stem(c), self._streamed(c, "hc_head", maps=self._streams(c), scales=1)

    def _attention(self, c: Config, index: int, kind: str) -> blocks.Block:
        module = f"layers.{index}.self_attn"
        block = blocks.latent(c, module)
        rank, values = c.integer("q_lora_rank"), c.heads * c.integer("v_head_dim")
        if kind == "axk2":
            queries = c.heads * (c.integer("qk_nope_head_dim") + c.integer("qk_rope_head_dim"))
            # A.X makes queries and gate from the latent of the queries in one matrix.
            fused = blocks.linear(c, f"{module}.q_gate_proj", 2 * rank, queries + values, split_limit=c.heads)
            block = blocks.Block(tuple(fused if op.name == "q_b_proj" else op for op in block.ops), block.attention)
        else:
            outputs = values if kind == "hy_v4" else c.heads
            block += blocks.linear(c, f"{module}.g_proj", c.width, outputs, split_limit=c.heads)
            rotary = c.integer("qk_rope_head_dim")
            block += blocks.small(c, "sinks", c.heads) if kind == "hy_v4" else blocks.norm(c, "k_norm", rotary)
        mixer = c.layer_kind(index, LAYER_TYPES)
        if mixer == "sliding_attention":
            return blocks.Block(block.ops, (replace(block.attention[0], window=c.integer("sliding_window")),))
        if mixer == "full_attention":
            return block
        block = blocks.selecting(block, c.integer("index_topk"))
        # "Shared" layers use the selection of the layer before them.
        has_indexer = c.layer_kind(index, ("full", "shared"), "indexer_types") != "shared"
        return block + blocks.indexer(c, f"{module}.indexer") if has_indexer else block

    def _gated_norms(self, c: Config, *, count: int) -> tuple[Op, ...]:
        rank = c.integer("gated_norm_rank", default=16)
        narrow = blocks.linear(c, "norm_gate.fc1", c.width, rank, split="replicated")
        wide = blocks.linear(c, "norm_gate.fc2", rank, c.width, split="replicated")
        return (narrow, wide) * count

    def _streamed(self, c: Config, name: str, *, maps: int, scales: int) -> Op:
        wide = self._streams(c) * c.width
        op = blocks.small(c, name, maps * wide + maps + scales, term="hyper-connections")
        outputs = c.width if scales == 1 else wide + c.width
        return replace(op, flops_per_row=2 * wide * (maps + scales), inputs=scales * wide, outputs=outputs)

    def _streams(self, c: Config) -> int:
        return c.integer("hc_mult", default=4)
