"""Llama and its relatives: grouped-query attention, gated feed-forward or experts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer

if TYPE_CHECKING:
    from steptime.models.blocks_vision import Tower


@final
class Llama(Family):
    """Llama 1-3, Mistral, Mixtral, SmolLM 3, Granite 3-5, InternLM 2 and 3, and so on.

    Seed-OSS has biases on queries, keys and values, and on the output with `attention_out_bias`. Helium never has a
    bias on the output. HyperCLOVA X may have two more norms. CWM has windows in three of four layers. DiffLlama (arXiv
    2410.05258) takes the difference of two softmaxes: each head weighs values of both halves of the KV heads, with
    separate scores for each half, as in the reference.
    """

    model_types = (
        "llama", "mistral", "mistral3", "ministral", "ministral3", "mixtral", "smollm3", "granite", "granitemoe", "internlm2",
        "internlm3", "iquestcoder", "cwm", "emu3", "emu3_text_model", "helium", "hyperclovax", "seed_oss", "diffllama",
    )  # fmt: skip
    tied_kinds = ("smollm3",)

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms and a feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        kind = self.kind(c)
        internlm = kind == "internlm2"
        bias = c.flag("attention_bias", "bias", default=kind == "seed_oss") and kind != "cwm"
        output_bias = c.flag("attention_out_bias", default=False) if kind == "seed_oss" else bias and kind != "helium"
        attention = blocks.grouped_query(
            c,
            f"layers.{index}.{'attention' if internlm else 'self_attn'}",
            bias=bias,
            output_bias=output_bias,
            window=self._window(c, index),
        )
        if kind == "diffllama":
            attention = self._differential(c, attention)
        hidden = c.integer("intermediate_size")
        if c.has("num_local_experts"):
            feed_forward = blocks.experts(c, f"layers.{index}.block_sparse_moe", hidden, count=c.integer("num_local_experts"))
        else:
            module = f"layers.{index}.{'feed_forward' if internlm else 'mlp'}"
            feed_forward = blocks.gated(c, module, hidden, bias=c.flag("mlp_bias", default=False))

        sandwich = kind == "hyperclovax" and c.flag("use_post_norm", default=False)
        norms = (*blocks.PRE, "post_norm1", "post_norm2") if sandwich else blocks.PRE

        return blocks.decoder(c, attention, feed_forward, norms=norms)

    def image_tower(self, c: Config) -> Tower:
        """Return Pixtral's tower and its patch merger.

        The models are Mistral Small 3.1 and Ministral 3.

        Args:
            c: Config of the whole model.

        Returns:
            The tower.
        """
        from steptime.models.blocks_vision import encoder, matrix, norm, tower
        from steptime.models.image_tokens import longest_edge, rule

        v, text = c.inner("vision_config"), c.language.width
        width, heads, patch = v.width, v.integer("num_attention_heads", default=16), v.integer("patch_size")
        merge, bias = c.integer("spatial_merge_size", default=2), c.flag("multimodal_projector_bias", default=False)
        share = merge**-2
        stem = (
            matrix(v, "patch_conv", v.integer("num_channels", default=3) * patch**2, width, bias=False, term="patches"),
            norm(v, "pre_norm", width, bias=False),
            norm(v, "merger_norm", width, bias=False),
            matrix(v, "merging", width * merge**2, width, bias=False, share=share, term="merger"),
            matrix(v, "projector_up_proj", width, text, bias=bias, share=share, term="merger"),
            matrix(v, "projector_down_proj", text, text, bias=bias, share=share, term="merger"),
        )
        layer = encoder(v, width, v.integer("intermediate_size"), heads, bias=False, norm_bias=False, gated=True)
        longest = v.integer("image_size", default=1540)
        cuts = rule(longest_edge, patch=patch, merge=merge, longest=longest, settings=f"a longest edge of {longest:,} pixels")

        return tower(v, "image", cuts, width=width, heads=heads, layers=((layer, v.depth),), stem=stem)

    def _differential(self, c: Config, block: blocks.Block) -> blocks.Block:
        # Twice the FLOPs of plain attention: two softmaxes per head.
        flops = 2 * (2 * c.heads * (c.head_dim + c.head_dim))
        main = replace(block.attention[0], flops_per_pair_decode=flops, flops_per_pair_prefill=flops)
        return blocks.Block((*block.ops, blocks.small(c, "lambdas", 4 * c.head_dim)), (main,))

    def _window(self, c: Config, index: int) -> float:
        sliding = c.flag("use_sliding_window", default=self.kind(c) != "smollm3")
        return blocks.window(c, index) if sliding else math.inf
