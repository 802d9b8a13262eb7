"""Gemma 4: global layers with wider heads, experts beside a dense block, embeddings for each layer, shared caches."""

from __future__ import annotations

import math
from typing import final

from steptime.models import parts, parts_decoder
from steptime.models.config import Config
from steptime.models.families.gemma import NORMS
from steptime.models.family import Family
from steptime.models.model import Layer, Op
from steptime.models.parts_tower import dense, tower


@final
class Gemma4(Family):
    """Gemma 4 (`gemma4` and `gemma4_unified` of transformers).

    With `attention_k_eq_v` global layers have no value matrix; keys and values are still cached apart, for only keys
    are rotated. The last `num_kv_shared_layers` layers read the cache of the last layer of their kind before them,
    so that a prompt needs them for its last token only; engines that skip them for the others are not counted on.
    """

    model_types = ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text")

    def tied(self, c: Config) -> bool:
        """Gemma shares embedding and head unless a config says otherwise."""
        return c.flag("tie_word_embeddings", default=True)

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, norms, a feed-forward block, and experts and the layer's input where the model has them."""
        module, hidden = f"layers.{index}", c.integer("intermediate_size")
        own = index < c.depth - c.integer("num_kv_shared_layers", default=0, least=0)
        if not own and c.flag("use_double_wide_mlp", default=False):
            hidden *= 2
        feed_forward, norms = parts.gated(c, f"{module}.mlp", hidden), NORMS
        if c.flag("enable_moe_block", default=False):
            feed_forward += self._experts(c, module)
            norms += ("post_norm_1", "post_norm_2", "pre_norm_2")
        inputs = c.integer("hidden_size_per_layer_input", default=0, least=0)
        if inputs:
            gate = parts.linear(c, f"{module}.per_layer_input_gate", c.width, inputs, term="feed-forward")
            projection = parts.linear(c, f"{module}.per_layer_projection", inputs, c.width, term="feed-forward")
            feed_forward += parts.Block((gate, projection))
            norms += ("per_layer_input_norm",)
        return parts_decoder.decoder(c, self._attention(c, index, own=own), feed_forward, norms=norms)

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return the embeddings, of tokens and for each layer, the final norm and the head."""
        inputs = parts_decoder.layer_inputs(c) if c.integer("hidden_size_per_layer_input", default=0, least=0) else ()
        token = parts.embedding(c, tied=self.tied(c))
        return (token, *inputs, parts.norm(c, "final_norm", c.width), parts.head(c))

    def vision(self, c: Config) -> tuple[Op, ...]:
        """Return the towers for images and sound and their embedders, as far as the config has them."""
        unified, text = c.text("model_type", default="gemma4") == "gemma4_unified", self.text(c).width
        found: list[Op] = []
        if c.has("vision_config"):
            v = c.inner("vision_config")
            found += self._patches(v, text) if unified else self._vision(v, text)
        if c.has("audio_config"):
            a = c.inner("audio_config")
            inner = a.integer("audio_embed_dim") if unified else a.integer("output_proj_dims")
            found += [] if unified else [tower(a, "audio_tower", self._audio(a))]
            found.append(tower(a, "embed_audio", inner * text))
        return tuple(found)

    def _attention(self, c: Config, index: int, *, own: bool) -> parts.Block:
        window, bias = parts_decoder.window(c, index, period=6), c.flag("attention_bias", default=False)
        local = math.isfinite(window)
        same = not local and c.flag("attention_k_eq_v", default=False)
        head_dim = c.head_dim if local else c.integer("global_head_dim", default=c.head_dim)
        kv_heads = c.integer("num_global_key_value_heads", default=c.kv_heads) if same else c.kv_heads
        return parts.grouped_query(
            c,
            f"layers.{index}.self_attn",
            heads=c.heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            bias=bias,
            output_bias=bias,
            qk_norm=head_dim,
            window=window,
            stored=own,
            shared_key_value=same,
        )

    def _experts(self, c: Config, module: str) -> parts.Block:
        count = c.integer("num_experts")
        experts = parts.experts(c, module, c.integer("moe_intermediate_size"), count=count, active=c.integer("top_k_experts"))
        return experts + parts.Block((parts.small(c, "router_scales", c.width + count, term="experts"),))

    def _vision(self, v: Config, text: int) -> list[Op]:
        width, hidden, head_dim = v.width, v.integer("intermediate_size"), v.head_dim
        kv = v.kv_heads * head_dim
        layer = 2 * width * (v.heads * head_dim + kv) + 2 * head_dim + 3 * width * hidden + 4 * width
        patches = 3 * v.integer("patch_size") ** 2 * width + 2 * v.integer("position_embedding_size") * width
        return [tower(v, "vision_tower", patches + v.depth * layer), tower(v, "embed_vision", width * text)]

    def _patches(self, v: Config, text: int) -> list[Op]:
        """Embed patches without a tower: norms, one matrix, positions of two axes, and the map to the text's width."""
        width, patch = v.integer("mm_embed_dim"), 3 * v.integer("model_patch_size") ** 2
        weights = 2 * patch + dense(patch, width) + 4 * width + 2 * v.integer("mm_posemb_size") * width
        return [tower(v, "embed_vision", weights + v.integer("output_proj_dims", default=width) * text)]

    def _audio(self, a: Config) -> float:
        """Parameters of a Conformer without relative positions of its own past one matrix a layer."""
        width, kernel = a.width, a.integer("conv_kernel_size")
        feed_forwards = 2 * (2 * dense(width, 4 * width, bias=False) + 2 * width)
        attention = 5 * width**2 + width // a.heads + 2 * width
        convolution = 3 * width**2 + kernel * width + 2 * width
        layers = a.depth * (feed_forwards + attention + convolution + width)
        first, second = (parts_decoder.entry(a, "subsampling_conv_channels", i) for i in range(2))
        frequencies = a.integer("input_feat_size", default=128) // 4
        subsampling = 9 * first * (1 + second) + first + second + second * frequencies * width
        return layers + subsampling + dense(width, a.integer("output_proj_dims"))
