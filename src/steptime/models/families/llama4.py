"""Llama 4: chunked attention with some full layers, experts, and a vision tower.

Every layer or every other layer has experts.
"""

from __future__ import annotations

from typing import final

from steptime.models import blocks
from steptime.models.blocks_vision import Tower, encoder, matrix, norm, positions, stored, tower
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.image_tokens import rule, tiles
from steptime.models.model import Layer


@final
class Llama4(Family):
    """Llama 4 Scout and Maverick (`llama4` of transformers)."""

    model_types = ("llama4", "llama4_text")

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms, and a dense block or routed and shared experts.

        The norms on queries have no gain.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        bias = c.flag("attention_bias", default=False)
        attention = blocks.grouped_query(
            c,
            f"layers.{index}.self_attn",
            bias=bias,
            window=blocks.window(c, index, period=c.integer("no_rope_layer_interval", default=4), field="attention_chunk_size"),
        )
        module, hidden = f"layers.{index}.feed_forward", c.integer("intermediate_size")
        if not self._is_sparse(c, index):
            return blocks.decoder(c, attention, blocks.gated(c, module, c.integer("intermediate_size_mlp")))

        # The shared expert is as wide as a routed one.
        experts = blocks.shared_and_routed(
            c, module, hidden, count=c.integer("num_local_experts"), shared=hidden, shared_module="shared_expert"
        )

        return blocks.decoder(c, attention, experts)

    def image_tower(self, c: Config) -> Tower:
        """Return the vision tower, its adapter and the projector.

        Args:
            c: Config of the whole model.

        Returns:
            The tower.
        """
        v = c.inner("vision_config")
        width, hidden, heads = v.width, v.integer("intermediate_size"), v.integer("num_attention_heads", default=16)
        patch, side = v.integer("patch_size"), v.integer("image_size")
        patches, ratio = (side // patch) ** 2, v.number("pixel_shuffle_ratio", default=0.5)
        if not 0 < ratio <= 1:
            raise v.error("pixel_shuffle_ratio", f"must be above 0 and at most 1, got {ratio:g}")
        shuffled = round(ratio**-2)
        if not patches:
            raise v.error("image_size", f"must be at least one patch of {patch}, got {side}")

        # One row more, for the class token.
        rows = patches + 1
        inner, outputs, share = v.integer("projector_input_dim"), v.integer("projector_output_dim"), patches / shuffled / rows
        pixels = v.integer("num_channels", default=3) * patch**2
        stem = (
            matrix(v, "patch_embedding", pixels, width, bias=False, share=patches / rows, term="patches"),
            stored(v, "class_embedding", width),
            positions(v, rows * width, width),
            norm(v, "pre_norm", width),
            norm(v, "post_norm", width),
            matrix(v, "adapter_up_proj", hidden, inner, bias=False, share=share, term="merger"),
            matrix(v, "adapter_down_proj", outputs, outputs, bias=False, share=share, term="merger"),
            matrix(v, "projector", v.integer("vision_output_dim"), c.language.width, bias=False, share=share, term="merger"),
        )
        cuts = rule(
            tiles,
            side=side,
            patch=patch,
            shuffled=shuffled,
            max_tiles=16,
            settings="at most 16 tiles, as in the published preprocessor",
        )
        layers = ((encoder(v, width, hidden, heads), v.depth),)

        return tower(v, "image", cuts, width=width, heads=heads, layers=layers, stem=stem)

    def notes(self, c: Config) -> tuple[str, ...]:
        """Return a note about the model of chunked attention.

        Args:
            c: Config of the language model.

        Returns:
            The notes; empty without any.
        """
        if not c.has("attention_chunk_size"):
            return ()
        chunk = c.integer("attention_chunk_size")
        return (f"chunked attention is modelled as a sliding window of {chunk} tokens; a query within a chunk reads fewer",)

    def _is_sparse(self, c: Config, index: int) -> bool:
        if c.has("moe_layers"):
            return index in c.items("moe_layers")
        return (index + 1) % c.integer("interleave_moe_layer_step", default=1) == 0
