"""DeepSeek and models with its layers: a few dense layers, then experts.

They are DeepSeek MoE, V2, V3 and R1, Kimi K2, GLM-4.5 and Mistral Large 3, with shared and routed experts. In DeepSeek-V3.2
and GLM-5, an indexer selects the tokens of attention.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, final

from steptime.errors import short_repr
from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer

if TYPE_CHECKING:
    from steptime.models.blocks_vision import Tower


DENSE = ("minicpm3", "youtu")
BIASED = ("minicpm3", "deepseek_v2")


@final
class DeepSeek(Family):
    """DeepSeekMoE, V2 and V3, and models with the same layers.

    Papers: arXiv 2401.06066, 2405.04434, 2412.19437. Attention is latent if the config has a `kv_lora_rank`, and otherwise
    grouped-query (DeepSeekMoE, GLM-4.5). MiniCPM 3 and Youtu have no experts. A.X K1 has a norm after the experts.
    """

    model_types = (
        "deepseek", "deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25", "glm4_moe", "glm4_moe_lite", "mistral_large_3",
        "minicpm3", "youtu", "axk1",
    )  # fmt: skip
    tied_kinds = DENSE

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms, and a dense block or experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        return self._layer(c, index, sparse=self._is_sparse(c, index))

    def draft(self, c: Config) -> tuple[tuple[Layer, int], ...]:
        """Return the multi-token-prediction layers: norms, a projection, a full layer.

        Args:
            c: Config of the language model.

        Returns:
            Pairs of layer and count; empty without such layers.
        """
        count = c.integer("num_nextn_predict_layers", default=0, least=0)
        return blocks.multi_token(c, self._layer(c, c.depth, sparse=True), count) if count else ()

    def image_tower(self, c: Config) -> Tower:
        """Return MoonViT and its projector (Kimi K2.5).

        Args:
            c: Config of the whole model.

        Returns:
            The tower.
        """
        from steptime.models.blocks_vision import encoder, matrix, moonvit_rule, moonvit_stem, norm, tower

        v = c.inner("vision_config")
        width, hidden = v.integer("vt_hidden_size"), v.integer("vt_intermediate_size")
        heads = v.integer("vt_num_attention_heads", default=16)

        # The field is one number, or a list with one per axis.
        merge = [blocks.entry(v, "merge_kernel_size", axis, default=2) for axis in range(2)]
        outputs, share = v.integer("mm_hidden_size", default=width), 1 / math.prod(merge)
        merged = outputs * math.prod(merge)
        stem = (
            *moonvit_stem(v, width, bias=True),
            norm(v, "final_norm", width),
            norm(v, "projector_norm", outputs),
            matrix(v, "projector_up_proj", merged, merged, share=share, term="merger"),
            matrix(v, "projector_down_proj", merged, c.language.width, share=share, term="merger"),
        )
        layers = ((encoder(v, width, hidden, heads), v.integer("vt_num_hidden_layers")),)
        rule = moonvit_rule(v, merge[0], 16384, "as in the published preprocessor of Kimi K2.5")

        return tower(v, "image", rule, width=width, heads=heads, layers=layers, stem=stem)

    def _layer(self, c: Config, index: int, *, sparse: bool) -> Layer:
        latent = c.has("kv_lora_rank")
        module = f"layers.{index}.self_attn"
        attention = blocks.latent(c, module) if latent else self._grouped_query(c, module)
        module = f"layers.{index}.mlp"
        feed_forward = self._experts(c, module) if sparse else self._dense(c, module)
        norms = (*blocks.PRE, "post_mlp_norm") if sparse and self.kind(c) == "axk1" else blocks.PRE
        mixer = "latent attention" if latent else "attention"
        return blocks.decoder(c, attention, feed_forward, norms=norms, mixer=mixer)

    def _is_sparse(self, c: Config, index: int) -> bool:
        return self.kind(c) not in DENSE and blocks.is_sparse(c, index)

    def _dense(self, c: Config, module: str) -> blocks.Block:
        bias = self.kind(c) in BIASED and c.flag("mlp_bias", default=False)
        return blocks.gated(c, module, c.integer("intermediate_size"), bias=bias)

    def _grouped_query(self, c: Config, module: str) -> blocks.Block:
        bias = c.flag("attention_bias", default=False)
        # GLM-4.5 has biases on queries, keys and values only.
        output_bias = bias and not self.kind(c).startswith("glm")
        qk_norm = c.head_dim if c.flag("use_qk_norm", default=False) else 0
        return blocks.grouped_query(c, module, bias=bias, output_bias=output_bias, qk_norm=qk_norm)

    def _experts(self, c: Config, module: str) -> blocks.Block:
        bias = self.kind(c) in BIASED and c.flag("mlp_bias", default=False)
        return blocks.shared_and_routed(c, module, shared_bias=bias, groups=blocks.expert_groups(c))


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
