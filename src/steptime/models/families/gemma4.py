"""Gemma 4: wider global heads, experts with a dense block, per-layer inputs.

Later layers share caches.
"""

from __future__ import annotations

import math
from typing import Final, final

from steptime.models import blocks
from steptime.models.blocks_vision import Tower, conformer, encoder, matrix, norm, positions, subsampling, tower
from steptime.models.config import Config
from steptime.models.families.gemma import NORMS
from steptime.models.family_registry import Family
from steptime.models.image_tokens import frames, pooled, rule, samples
from steptime.models.model import Layer, Op

SOFT: Final = "at most {} tokens per image, as in the published preprocessor; requests may set 70 to 1,120"


@final
class Gemma4(Family):
    """Gemma 4 (`gemma4` and `gemma4_unified` of transformers).

    With `attention_k_eq_v` global layers have no value matrix. Keys and values are still cached separately, because
    only keys are rotated. The last `num_kv_shared_layers` layers read the cache of the last earlier layer of their
    kind. A prompt needs these layers for its last token only, but the time here assumes that engines run them for all
    tokens.
    """

    model_types = ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text")
    tied_kinds = model_types

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, norms, a feed-forward block, and experts if present.

        The layer also has its per-layer input if the model has one.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, hidden = f"layers.{index}", c.integer("intermediate_size")
        has_cache = index < c.depth - c.integer("num_kv_shared_layers", default=0, least=0)

        # Layers without their own cache may have a feed-forward block of twice the width.
        if not has_cache and c.flag("use_double_wide_mlp", default=False):
            hidden *= 2
        feed_forward, norms = blocks.gated(c, f"{module}.mlp", hidden), NORMS
        if c.flag("enable_moe_block", default=False):
            feed_forward += self._experts(c, module)
            norms += ("post_norm_1", "post_norm_2", "pre_norm_2")

        if c.integer("hidden_size_per_layer_input", default=0, least=0):
            feed_forward += blocks.layer_input(c, module)
            norms += ("per_layer_input_norm",)

        return blocks.decoder(c, self._attention(c, index, has_cache=has_cache), feed_forward, norms=norms)

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return the token and per-layer embeddings, the final norm and the head.

        Args:
            c: Config of the language model.

        Returns:
            The operators.
        """
        inputs = blocks.layer_inputs(c) if c.integer("hidden_size_per_layer_input", default=0, least=0) else ()
        embedding, norm, head = super().stem(c)
        return embedding, *inputs, norm, head

    def image_tower(self, c: Config) -> Tower:
        """Return the vision tower, or the embedder of patches of the unified model.

        Args:
            c: Config of the whole model.

        Returns:
            The tower.
        """
        v, text = c.inner("vision_config"), c.language.width
        tokens = c.integer("vision_soft_tokens_per_image", default=280)
        return self._patches(v, text) if self.kind(c) == "gemma4_unified" else self._vision(v, text, tokens)

    def audio_tower(self, c: Config) -> Tower:
        """Return the Conformer, or the embedder of samples of the unified model.

        Args:
            c: Config of the whole model.

        Returns:
            The tower.
        """
        a, text = c.inner("audio_config"), c.language.width
        return self._samples(a, text) if self.kind(c) == "gemma4_unified" else self._audio(a, text)

    def _attention(self, c: Config, index: int, *, has_cache: bool) -> blocks.Block:
        window, bias = blocks.window(c, index, period=6), c.flag("attention_bias", default=False)
        local = math.isfinite(window)
        same = not local and c.flag("attention_k_eq_v", default=False)
        head_dim = c.head_dim if local else c.integer("global_head_dim", default=c.head_dim)

        # Global layers with one matrix for keys and values have another number of KV heads.
        kv_heads = c.integer("num_global_key_value_heads", default=c.kv_heads) if same else c.kv_heads

        return blocks.grouped_query(
            c,
            f"layers.{index}.self_attn",
            kv_heads=kv_heads,
            head_dim=head_dim,
            bias=bias,
            qk_norm=head_dim,
            window=window,
            stored=has_cache,
            shared_key_value=same,
        )

    def _experts(self, c: Config, module: str) -> blocks.Block:
        count = c.integer("num_experts")
        experts = blocks.experts(c, module, c.integer("moe_intermediate_size"), count=count, active=c.integer("top_k_experts"))
        return experts + blocks.small(c, "router_scales", c.width + count, term="experts")

    def _vision(self, v: Config, text: int, tokens: int) -> Tower:
        width, heads, patch, pool = v.width, v.heads, v.integer("patch_size"), v.integer("pooling_kernel_size", default=3)
        inner, kv = heads * v.head_dim, v.kv_heads * v.head_dim
        stem = (
            matrix(v, "input_proj", 3 * patch**2, width, bias=False, term="patches"),
            positions(v, 2 * v.integer("position_embedding_size") * width, 2 * width),
            matrix(v, "embedding_projection", width, text, bias=False, share=pool**-2, term="merger"),
        )
        layer = encoder(
            v,
            width,
            v.integer("intermediate_size"),
            heads,
            inner=inner,
            kv=kv,
            bias=False,
            norm_bias=False,
            gated=True,
            norms=4,
            head_gains=2 * v.head_dim,
        )
        cuts = rule(pooled, patch=patch, pool=pool, max_tokens=tokens, settings=SOFT.format(tokens))

        return tower(v, "image", cuts, width=width, heads=heads, layers=((layer, v.depth),), stem=stem)

    def _patches(self, v: Config, text: int) -> Tower:
        """Return an embedding of patches without a tower.

        It has norms, one matrix, positions of two axes, and a map to the width of the text.
        """
        width, side = v.integer("mm_embed_dim"), v.integer("model_patch_size")
        pixels, pool, tokens = (
            3 * side**2,
            v.integer("pooling_kernel_size", default=3),
            v.integer("num_soft_tokens", default=280),
        )
        stem = (
            norm(v, "patch_norm", pixels),
            matrix(v, "patch_dense", pixels, width, term="patches"),
            *(norm(v, name, width) for name in ("embedding_norm", "position_norm")),
            positions(v, 2 * v.integer("mm_posemb_size") * width, 2 * width),
            matrix(v, "embedding_projection", v.integer("output_proj_dims", default=width), text, bias=False, term="merger"),
        )
        cuts = rule(pooled, patch=max(1, side // pool), pool=pool, max_tokens=tokens, merged=True, settings=SOFT.format(tokens))
        return tower(v, "image", cuts, width=width, stem=stem)

    def _samples(self, a: Config, text: int) -> Tower:
        """Return an embedding of samples of sound without a tower."""
        inner = a.integer("audio_embed_dim")
        stem = (matrix(a, "embed_audio", inner, text, bias=False, term="merger"),)
        return tower(a, "audio", rule(samples, samples=inner), width=text, stem=stem)

    def _audio(self, a: Config, text: int) -> Tower:
        """Return a Conformer whose relative positions have one matrix per layer."""
        width, outputs = a.width, a.integer("output_proj_dims")
        first, second = (blocks.entry(a, "subsampling_conv_channels", i) for i in range(2))
        layers = conformer(
            a,
            width=width,
            heads=a.heads,
            depth=a.depth,
            kernel=a.integer("conv_kernel_size"),
            chunk=a.integer("attention_chunk_size", default=12),
            past=a.integer("attention_context_left", default=13, least=0),
            future=a.integer("attention_context_right", default=0, least=0),
        )
        features = a.integer("input_feat_size", default=128)
        stem = (
            *subsampling(a, features=features, first=first, second=second, width=width),
            matrix(a, "output_proj", width, outputs),
            matrix(a, "embedding_projection", outputs, text, bias=False, term="merger"),
        )

        return tower(a, "audio", rule(frames), width=width, heads=a.heads, layers=layers, stem=stem)
