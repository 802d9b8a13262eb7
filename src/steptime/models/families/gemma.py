"""Gemma 1 to 4, Gemma 3n and VaultGemma: local and global attention.

The embedding is tied. Gemma 3n and Gemma 4 have inputs per layer, and later layers share caches.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final, final

from steptime.models import blocks
from steptime.models.blocks_vision import Tower, conformer, encoder, matrix, norm, positions, stored, subsampling, tower
from steptime.models.config import DEEPEST, Config
from steptime.models.family_registry import Family
from steptime.models.image_tokens import frames, padded, pooled, rule, samples, untimed
from steptime.models.model import Layer, Op

NORMS: Final[tuple[str, ...]] = ("input_norm", "post_attention_norm", "pre_norm", "post_norm")


@final
class Gemma(Family):
    """Gemma, Gemma 2, Gemma 3 and VaultGemma.

    Papers: arXiv 2403.08295, 2408.00118, 2503.19786 and 2510.15001. Gemma 1 has no windows. Gemma 1 and VaultGemma have
    no norms after their blocks; VaultGemma otherwise equals Gemma 2.
    """

    model_types = ("gemma", "gemma2", "gemma3", "gemma3_text", "vaultgemma")
    default_kind = "gemma3_text"
    tied_kinds = model_types

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two or four norms and a gated feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        kind = self.kind(c)
        third = kind.startswith("gemma3")

        # Gemma 3 has one global layer per five local ones, Gemma 2 one per local one.
        period = c.integer("sliding_window_pattern", "_sliding_window_pattern", default=6 if third else 2)
        bias = c.flag("attention_bias", default=False)
        attention = blocks.grouped_query(
            c,
            f"layers.{index}.self_attn",
            bias=bias,
            qk_norm=c.head_dim if third else 0,
            window=math.inf if kind == "gemma" else blocks.window(c, index, period=period),
        )
        feed_forward = blocks.gated(c, f"layers.{index}.mlp")

        return blocks.decoder(c, attention, feed_forward, norms=blocks.PRE if kind in ("gemma", "vaultgemma") else NORMS)

    def image_tower(self, c: Config) -> Tower:
        """Return SigLIP and its projector, which runs on pooled patches.

        Args:
            c: Config of the whole model.

        Returns:
            The tower.
        """
        from steptime.models.blocks_vision import dense, encoder, matrix, norm, positions, stored, tower
        from steptime.models.image_tokens import rule, square

        v = c.inner("vision_config")
        width, hidden, heads = v.width, v.integer("intermediate_size"), v.integer("num_attention_heads", default=16)
        patch, side = v.integer("patch_size"), v.integer("image_size")
        patches, tokens = (side // patch) ** 2, c.integer("mm_tokens_per_image", default=256)
        if not patches:
            raise v.error("image_size", f"must be at least one patch of {patch}, got {side}")
        # SigLIP's pooling head is stored, but not used here: a query, attention, two norms and a feed-forward block.
        attention = width + dense(width, 3 * width) + dense(width, width) + 2 * width
        pooling_head = attention + dense(width, hidden) + dense(hidden, width)
        stem = (
            matrix(v, "patch_embedding", v.integer("num_channels", default=3) * patch**2, width, term="patches"),
            positions(v, patches * width, width),
            norm(v, "post_norm", width),
            *((stored(v, "head", pooling_head),) if v.flag("vision_use_head", default=False) else ()),
            norm(v, "soft_norm", width, bias=False, share=tokens / patches),
            matrix(v, "projector", width, c.language.width, bias=False, share=tokens / patches, term="merger"),
        )
        cuts = rule(square, side=side, patch=patch, tokens=tokens, settings="no pan and scan, as in the published preprocessor")
        layers = ((encoder(v, width, hidden, heads), v.depth),)

        return tower(v, "image", cuts, width=width, heads=heads, layers=layers, stem=stem)


# Parameters of the models of timm with these names.
TOWERS: Final = {"mobilenetv5_300m_enc": 294_126_912}
CONVOLUTIONS: Final = (
    "its tower for images is a MobileNet-V5; steptime counts its parameters, but does not model its time; each image is 256 "
    "tokens of the prompt"
)


@final
class Gemma3n(Family):
    """Gemma 3n (`gemma3n` of transformers).

    AltUp: arXiv 2301.13310, LAuReL: arXiv 2411.07501. The last `num_kv_shared_layers` layers read the cache of the last
    earlier layer of their kind.
    """

    model_types = ("gemma3n", "gemma3n_text")
    tied_kinds = model_types

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, a feed-forward block, AltUp, LAuReL and the per-layer input.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, width = f"layers.{index}", c.width
        attention = blocks.grouped_query(
            c,
            f"{module}.self_attn",
            qk_norm=c.head_dim,
            bias=c.flag("attention_bias", default=False),
            window=blocks.window(c, index, period=5),
            stored=index < c.depth - c.integer("num_kv_shared_layers", default=15, least=0),
        )
        rank, feed_forward = (
            c.integer("laurel_rank"),
            blocks.gated(c, f"{module}.mlp", blocks.entry(c, "intermediate_size", index)),
        )
        feed_forward += self._altup(c)
        feed_forward += blocks.linear(c, f"{module}.laurel.linear_left", width, rank, term="feed-forward")
        feed_forward += blocks.linear(c, f"{module}.laurel.linear_right", rank, width, term="feed-forward")
        feed_forward += blocks.layer_input(c, module)
        norms = (*NORMS, "altup_scale", "altup_router_norm", "laurel_norm", "per_layer_input_norm")

        return blocks.decoder(c, attention, feed_forward, norms=norms)

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return the embeddings, the maps between streams, the final norm and the head.

        Args:
            c: Config of the language model.

        Returns:
            The operators.
        """
        streams = range(1, c.integer("altup_num_inputs", maximum=DEEPEST))
        embedding, norm, head = super().stem(c)
        maps = (f"{name}.{i}" for name in ("altup_projections", "altup_unembed_projections") for i in streams)
        projections = (blocks.linear(c, name, c.width, c.width) for name in maps)
        return embedding, *blocks.layer_inputs(c), *projections, norm, head

    def image_tower(self, c: Config) -> Tower:
        """Return the parameters of a MobileNet-V5 with its embedder.

        Args:
            c: Config of the whole model.

        Returns:
            The tower.
        """
        v = c.inner("vision_config")
        name = v.text("architecture", default="mobilenetv5_300m_enc")
        if name not in TOWERS:
            raise v.error("architecture", f"must be one of {', '.join(TOWERS)}, got {name!r:.60}")
        stem = (stored(v, "convolutions", TOWERS[name]), *self._embedder(v, c.language.width))
        return tower(v, "image", rule(untimed, reason=f"{c.name or 'this model'}: {CONVOLUTIONS}"), width=v.width, stem=stem)

    def _altup(self, c: Config) -> Op:
        """Return the prediction and correction of the streams.

        They are two maps of a router's outputs, and a product with all streams.
        """
        streams = c.integer("altup_num_inputs", maximum=DEEPEST)
        maps, router = streams**2 * (streams + 1), c.width * streams
        # The router runs before and after the layer.
        flops, values = 2 * (maps + 2 * router + streams**2 * c.width), streams * c.width
        op = blocks.small(c, "altup", maps + router, term="feed-forward")
        return replace(op, flops_per_row=flops, inputs=values, outputs=values)

    def _embedder(self, v: Config, text: int, share: float = 1.0) -> tuple[Op, ...]:
        """Return the embedder of images or sound: a table, two norms and a matrix."""
        return (
            stored(v, "embedding and norms", v.width * (v.integer("vocab_size") + 2)),
            matrix(v, "embedding_projection", v.width, text, bias=False, share=share, term="merger"),
        )

    def audio_tower(self, c: Config) -> Tower:
        """Return the Conformer of the Universal Speech Model (arXiv 2303.01037).

        Every fourth of its rows is kept.

        Args:
            c: Config of the whole model.

        Returns:
            The tower.
        """
        a = c.inner("audio_config")
        width, heads = a.width, a.integer("conf_num_attention_heads")
        first, second = (blocks.entry(a, "sscp_conv_channel_size", i) for i in range(2))
        reduced = a.integer("conf_reduction_factor", default=4)
        layers = conformer(
            a,
            width=width,
            heads=heads,
            depth=a.integer("conf_num_hidden_layers", maximum=DEEPEST),
            kernel=a.integer("conf_conv_kernel_size"),
            chunk=a.integer("conf_attention_chunk_size", default=12),
            past=a.integer("conf_attention_context_left", default=13, least=0),
            future=a.integer("conf_attention_context_right", default=0, least=0),
        )
        convolutions = subsampling(a, features=a.integer("input_feat_size"), first=first, second=second, width=width)
        stem = (*convolutions, *self._embedder(a, c.language.width, 1 / reduced))
        cuts = rule(padded, tokens=c.integer("audio_soft_tokens_per_image", default=188), reduced=reduced)

        return tower(a, "audio", cuts, width=width, heads=heads, layers=layers, stem=stem)


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
