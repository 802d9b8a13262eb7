"""DeepSeek-V3.2 and GLM-5: latent attention over tokens that an indexer selects."""

from __future__ import annotations

from typing import final

from steptime.errors import short_repr
from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer


@final
class DeepSeekSparse(Family):
    r"""DeepSeek sparse attention (arXiv 2512.02556, section 2.1).

    Each layer is one of DeepSeek-V3 with an indexer of $H$ heads of $d$ values. The score of a cached token costs $2H(d
    + 1)$ FLOPs. The indexer caches one key per token in FP8 with a 4-byte scale per 128 values, for any format of the
    latent: 132 B for 128 values. Attention then reads the `index_topk` best tokens. Prefill also runs in the latent
    space, because each query has its own selection. The masked multi-head form for prompts shorter than `index_topk` is
    left out. It would save 13 % of the FLOPs of 2048 tokens in DeepSeek-V3.2, and less for shorter prompts. In GLM-5.2,
    "shared" layers use the selection of the "full" layer before them, and have neither an indexer nor its cache.
    Structure: `deepseek_v32` and `glm_moe_dsa` of transformers.
    """

    model_types = ("deepseek_v32", "glm_moe_dsa")

    def layer(self, c: Config, index: int) -> Layer:
        """Return latent attention, an indexer if full, and a dense block or experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        return self._layer(c, index, full=self._is_full_attention(c, index), sparse=blocks.is_sparse(c, index, dense=3))

    def draft(self, c: Config) -> tuple[tuple[Layer, int], ...]:
        """Return the multi-token-prediction layers: norms, a projection, a full layer.

        Args:
            c: Config of the language model.

        Returns:
            Pairs of layer and count; empty without such layers.
        """
        count = c.integer("num_nextn_predict_layers", default=0, least=0)
        return blocks.multi_token(c, self._layer(c, c.depth, full=True, sparse=True), count) if count else ()

    def _layer(self, c: Config, index: int, *, full: bool, sparse: bool) -> Layer:
        module = f"layers.{index}"
        attention = self._attention(c, f"{module}.self_attn", full=full)
        if sparse:
            count, groups = c.integer("n_routed_experts", "num_experts"), blocks.expert_groups(c)
            feed_forward = blocks.shared_and_routed(c, f"{module}.mlp", count=count, groups=groups)
        else:
            feed_forward = blocks.gated(c, f"{module}.mlp", c.integer("intermediate_size"))

        # Layers without an indexer must differ in name.
        return blocks.decoder(c, attention, feed_forward, mixer=f"sparse latent attention{' + indexer' if full else ''}")

    def _attention(self, c: Config, module: str, *, full: bool) -> blocks.Block:
        # The indexer reads the latent of the queries, so the config must have one.
        c.integer("q_lora_rank")
        block = blocks.selecting(blocks.latent(c, module), c.integer("index_topk"))
        return block + blocks.indexer(c, f"{module}.indexer") if full else block

    def _is_full_attention(self, c: Config, index: int) -> bool:
        if kind := c.layer_kind(index, ("full", "shared"), "indexer_types"):
            return kind == "full"
        if c.has("index_topk_pattern"):
            pattern = c.raw("index_topk_pattern")
            marks = list(pattern) if isinstance(pattern, str) else c.items("index_topk_pattern")
            if len(marks) <= index or marks[index] not in ("F", "S", "full", "shared"):
                raise c.error("index_topk_pattern", f"must have F or S for each layer, got {short_repr(pattern)}")
            return marks[index] in ("F", "full")
        # Without a list, the first layers and each `freq`th layer after them have an indexer.
        offset = c.integer("index_skip_topk_offset", default=2, least=0)
        return max(index - offset + 1, 0) % c.integer("index_topk_freq", default=1) == 0
