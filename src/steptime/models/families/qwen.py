"""Qwen 2 to 3, MiMo-7B, and the vision-language models of Qwen.

They have grouped-query attention, and a gated feed-forward block or experts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer, Op

if TYPE_CHECKING:
    from steptime.models.blocks_vision import Tower


@final
class Qwen(Family):
    """Qwen 1.5 to 2.5, Qwen 3, and MiMo-7B, which has the layers of Qwen 2.

    Qwen 1.5 to 2.5 have biases on queries, keys and values. Qwen 3 has norms on queries and keys.
    """

    model_types = (
        "qwen2", "qwen2_moe", "qwen2_5_vl", "qwen2_5_vl_text", "qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_text",
        "qwen3_vl_moe", "qwen3_vl_moe_text", "mimo",
    )  # fmt: skip
    default_kind = "qwen3"

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms and a feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        third = self.kind(c).startswith("qwen3")
        bias = c.flag("attention_bias", default=False) if third else c.flag("qkv_bias", default=True)
        attention = blocks.grouped_query(
            c,
            f"layers.{index}.self_attn",
            bias=bias,
            output_bias=bias and third,
            qk_norm=c.head_dim if third else 0,
            window=self._window(c, index),
        )
        return blocks.decoder(c, attention, self._feed_forward(c, f"layers.{index}.mlp", index))

    def draft(self, c: Config) -> tuple[tuple[Layer, int], ...]:
        """Return MiMo's multi-token-prediction layers; Qwen has none.

        Args:
            c: Config of the language model.

        Returns:
            Pairs of layer and count; empty without such layers.
        """
        count = c.integer("num_nextn_predict_layers", default=0, least=0)
        norms = ("token_layernorm", "hidden_layernorm", "final_layernorm")
        return blocks.multi_token(c, self.layer(c, c.depth - 1), count, norms=norms)

    def image_tower(self, c: Config) -> Tower:
        """Return the vision tower with its mergers, if the config has it.

        Args:
            c: Config of the whole model.

        Returns:
            The tower.
        """
        v = c.inner("vision_config")
        return third_tower(v) if self.kind(c).startswith("qwen3") else self._second_tower(v)

    def _feed_forward(self, c: Config, module: str, index: int) -> blocks.Block:
        has_experts = c.has("num_experts") or c.has("num_local_experts")
        sparse = has_experts and (index + 1) % c.integer("decoder_sparse_step", default=1) == 0
        if not sparse or index in c.items("mlp_only_layers", default=()):
            return blocks.gated(c, module)
        shared = c.integer("shared_expert_intermediate_size", default=0, least=0)
        count = c.integer("num_experts", "num_local_experts")
        experts = blocks.shared_and_routed(c, module, count=count, shared=shared, shared_module="shared_expert")
        return experts + shared_expert_gate(c, module) if shared else experts

    def _window(self, c: Config, index: int) -> float:
        if not c.flag("use_sliding_window", default=False):
            return math.inf
        # Without a list, layers from `max_window_layers` on slide.
        first = 0 if c.has("layer_types") else c.integer("max_window_layers", default=0, least=0)
        return blocks.window(c, index) if index >= first else math.inf

    def _second_tower(self, v: Config) -> Tower:
        from steptime.models.blocks_vision import encoder, matrix, norm, tower
        from steptime.models.image_tokens import resized, rule

        """Return the tower of Qwen2.5-VL.

        Most layers have windows of patches. A merger joins four patches.
        """
        width, hidden, heads = v.width, v.integer("intermediate_size"), v.integer("num_heads", default=16)
        patch, merge, depth = v.integer("patch_size"), v.integer("spatial_merge_size"), v.integer("depth")

        # A window covers `side` by `side` patches.
        side = max(1, v.integer("window_size", default=112) // patch)
        full_attention_layers = v.indices("fullatt_block_indexes", default=(7, 15, 23, 31))
        full = len({index for index in full_attention_layers if index < depth})
        layers = tuple(
            (encoder(v, width, hidden, heads, norm_bias=False, gated=True, window=window), count)
            for window, count in ((side**2, depth - full), (math.inf, full))
            if count
        )
        share, merged = merge**-2, width * merge**2
        stem = (
            matrix(v, "patch_embed", pixels_of_patch(v), width, bias=False, term="patches"),
            norm(v, "merger_norm", width, bias=False),
            matrix(v, "merger_up_proj", merged, merged, share=share, term="merger"),
            matrix(v, "merger_down_proj", merged, v.integer("out_hidden_size"), share=share, term="merger"),
        )
        settings = "3,136 to 12,845,056 pixels, as in the published preprocessor of Qwen2.5-VL"
        cuts = rule(resized, patch=patch, merge=merge, min_pixels=56**2, max_pixels=16384 * 28**2, settings=settings)

        return tower(v, "image", cuts, width=width, heads=heads, layers=layers, stem=stem)


def shared_expert_gate(c: Config, module: str) -> Op:
    """Return the gate of the shared expert.

    Args:
        c: Config of the language model.
        module: Path of the module of the experts.

    Returns:
        The operator.
    """
    return blocks.linear(c, f"{module}.shared_expert_gate", c.width, 1, term="shared experts", split="replicated")


def third_tower(v: Config) -> Tower:
    """Return the tower of Qwen3-VL and Qwen3.5.

    It has learned positions and a merger of four patches, and one more merger for each deep stack.

    Args:
        v: Config of the tower.

    Returns:
        The tower.
    """
    from steptime.models.blocks_vision import encoder, matrix, norm, positions, tower
    from steptime.models.image_tokens import resized, rule

    width, hidden, heads = v.integer("hidden_size"), v.integer("intermediate_size"), v.integer("num_heads", default=16)
    patch, merge = v.integer("patch_size", default=16), v.integer("spatial_merge_size", default=2)
    share, merged, outputs = merge**-2, width * merge**2, v.integer("out_hidden_size")
    stacked = len(v.items("deepstack_visual_indexes", default=()))
    mergers = (
        matrix(v, "merger_up_proj", merged, merged, share=share, term="merger"),
        matrix(v, "merger_down_proj", merged, outputs, share=share, term="merger"),
    )
    stem = (
        matrix(v, "patch_embed", pixels_of_patch(v), width, term="patches"),
        positions(v, v.integer("num_position_embeddings", default=2304) * width, width),
        norm(v, "merger_norm", width),
        *mergers,
        *(op for _ in range(stacked) for op in (norm(v, "stacked_norm", merged, share=share), *mergers)),
    )
    settings = "65,536 to 16,777,216 pixels, as in the published preprocessors of Qwen3-VL and Qwen3.5"
    cuts = rule(resized, patch=patch, merge=merge, min_pixels=256**2, max_pixels=4096**2, settings=settings)
    layers = ((encoder(v, width, hidden, heads), v.integer("depth", "num_hidden_layers")),)

    return tower(v, "image", cuts, width=width, heads=heads, layers=layers, stem=stem)


def pixels_of_patch(v: Config) -> int:
    """Return the values of a patch; an image counts as two frames of a video.

    Args:
        v: Config of the tower.

    Returns:
        Values.
    """
    channels = v.integer("in_channels", "in_chans", default=3)
    return channels * v.integer("temporal_patch_size", default=2) * v.integer("patch_size", default=16) ** 2
