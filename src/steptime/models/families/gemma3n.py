"""Gemma 3n: several residual streams, per-layer inputs and shared caches.

The streams are AltUp. Each layer has a low-rank bypass, LAuReL.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, final

from steptime.models import blocks
from steptime.models.blocks_vision import Tower, conformer, matrix, stored, subsampling, tower
from steptime.models.config import DEEPEST, Config
from steptime.models.families.gemma import NORMS
from steptime.models.family_registry import Family
from steptime.models.image_tokens import padded, rule, untimed
from steptime.models.model import Layer, Op

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
