"""DeepSeek and models with its layers: a few dense layers, then experts.

They are DeepSeek MoE, V2, V3 and R1, Kimi K2, GLM-4.5 and Mistral Large 3, with shared and routed experts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, final

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
