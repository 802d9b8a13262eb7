"""StableLM: layer norms with biases, blocks in sequence or in parallel."""

from __future__ import annotations

from typing import final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer


@final
class StableLm(Family):
    """StableLM 3B and StableLM 2 (arXiv 2402.17834).

    StableLM 2 12B runs its blocks in parallel and has one norm per head.
    """

    model_types = ("stablelm", "stablelm_epoch")
    norm_bias = True

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, one norm or two, and a gated feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module = f"layers.{index}"
        head_dim, bias = c.width // c.heads, c.flag("use_qkv_bias", default=False)
        block = blocks.grouped_query(c, f"{module}.self_attn", head_dim=head_dim, bias=bias, output_bias=False)
        if c.flag("qk_layernorm", default=False):
            block += blocks.head_norms(c, c.heads, c.kv_heads, head_dim, shared=False, bias=False)
        feed_forward = blocks.gated(c, f"{module}.mlp", c.integer("intermediate_size"))
        # Parallel blocks share one norm.
        norms = ("input_norm",) if c.flag("use_parallel_residual", default=False) else blocks.PRE
        return blocks.decoder(c, block, feed_forward, norms=norms, norm_bias=True)
