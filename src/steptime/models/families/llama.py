"""Llama and its relatives: grouped-query attention, gated feed-forward or experts; Llama 4 and Granite."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, final

from steptime.models import blocks, blocks_state_space
from steptime.models.blocks_vision import Tower, encoder, matrix, norm, positions, stored, tower
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.image_tokens import rule, tiles
from steptime.models.model import Layer

if TYPE_CHECKING:
    from steptime.models.blocks_vision import Tower


@final
class Llama(Family):
    """Llama 1-3, Mistral, Mixtral, SmolLM 3, Granite 3-5, InternLM 2 and 3, and so on.

    Seed-OSS has biases on queries, keys and values, and on the output with `attention_out_bias`. Helium never has a
    bias on the output. HyperCLOVA X may have two more norms. CWM has windows in three of four layers. DiffLlama (arXiv
    2410.05258) takes the difference of two softmaxes: each head weighs values of both halves of the KV heads, with
    separate scores for each half, as in the reference.
    """

    model_types = (
        "llama", "mistral", "mistral3", "ministral", "ministral3", "mixtral", "smollm3", "granite", "granitemoe", "internlm2",
        "internlm3", "iquestcoder", "cwm", "emu3", "emu3_text_model", "helium", "hyperclovax", "seed_oss", "diffllama",
    )  # fmt: skip
    tied_kinds = ("smollm3",)

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms and a feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        kind = self.kind(c)
        internlm = kind == "internlm2"
        bias = c.flag("attention_bias", "bias", default=kind == "seed_oss") and kind != "cwm"
        output_bias = c.flag("attention_out_bias", default=False) if kind == "seed_oss" else bias and kind != "helium"
        attention = blocks.grouped_query(
            c,
            f"layers.{index}.{'attention' if internlm else 'self_attn'}",
            bias=bias,
            output_bias=output_bias,
            window=blocks.window(c, index) if c.flag("use_sliding_window", default=kind != "smollm3") else math.inf,
        )
        if kind == "diffllama":
            attention = self._differential(c, attention)
        hidden = c.integer("intermediate_size")
        if c.has("num_local_experts"):
            feed_forward = blocks.experts(c, f"layers.{index}.block_sparse_moe", hidden, count=c.integer("num_local_experts"))
        else:
            module = f"layers.{index}.{'feed_forward' if internlm else 'mlp'}"
            feed_forward = blocks.gated(c, module, hidden, bias=c.flag("mlp_bias", default=False))

        sandwich = kind == "hyperclovax" and c.flag("use_post_norm", default=False)
        norms = (*blocks.PRE, "post_norm1", "post_norm2") if sandwich else blocks.PRE

        return blocks.decoder(c, attention, feed_forward, norms=norms)

    def image_tower(self, c: Config) -> Tower:
        """Return Pixtral's tower and its patch merger.

        The models are Mistral Small 3.1 and Ministral 3.

        Args:
            c: Config of the whole model.

        Returns:
            The tower.
        """
        from steptime.models.blocks_vision import encoder, matrix, norm, tower
        from steptime.models.image_tokens import longest_edge, rule

        v, text = c.inner("vision_config"), c.language.width
        width, heads, patch = v.width, v.integer("num_attention_heads", default=16), v.integer("patch_size")
        merge, bias = c.integer("spatial_merge_size", default=2), c.flag("multimodal_projector_bias", default=False)
        share = merge**-2
        stem = (
            matrix(v, "patch_conv", v.integer("num_channels", default=3) * patch**2, width, bias=False, term="patches"),
            norm(v, "pre_norm", width, bias=False),
            norm(v, "merger_norm", width, bias=False),
            matrix(v, "merging", width * merge**2, width, bias=False, share=share, term="merger"),
            matrix(v, "projector_up_proj", width, text, bias=bias, share=share, term="merger"),
            matrix(v, "projector_down_proj", text, text, bias=bias, share=share, term="merger"),
        )
        layer = encoder(v, width, v.integer("intermediate_size"), heads, bias=False, norm_bias=False, gated=True)
        longest = v.integer("image_size", default=1540)
        cuts = rule(longest_edge, patch=patch, merge=merge, longest=longest, settings=f"a longest edge of {longest:,} pixels")

        return tower(v, "image", cuts, width=width, heads=heads, layers=((layer, v.depth),), stem=stem)

    def _differential(self, c: Config, block: blocks.Block) -> blocks.Block:
        # Twice the FLOPs of plain attention: two softmaxes per head.
        flops = 2 * (2 * c.heads * (c.head_dim + c.head_dim))
        main = replace(block.attention[0], flops_per_pair_decode=flops, flops_per_pair_prefill=flops)
        return blocks.Block((*block.ops, blocks.small(c, "lambdas", 4 * c.head_dim)), (main,))


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


@final
class GraniteHybrid(Family):
    """Granite 4.0-H: `granitemoehybrid` of transformers.

    Gate and up matrices of the shared block are fused.
    """

    model_types = ("granitemoehybrid",)

    def layer(self, c: Config, index: int) -> Layer:
        """Return Mamba-2 or attention, two norms, the shared block, and perhaps experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, full = f"layers.{index}", self._is_full_attention(c, index)
        if full:
            mixer = blocks.grouped_query(c, f"{module}.self_attn", bias=c.flag("attention_bias", default=False))
        else:
            mixer = blocks_state_space.bamba_mixer(c, f"{module}.mamba")
        count = c.integer("num_local_experts", default=8, least=0)

        # Without experts, the shared block is the feed-forward block of the layer.
        shared, term = c.integer("shared_intermediate_size", default=1024), "shared experts" if count else "feed-forward"
        up = blocks.linear(c, f"{module}.shared_mlp.input_linear", c.width, 2 * shared, term=term)
        block = blocks.Block((up, blocks.linear(c, f"{module}.shared_mlp.output_linear", shared, c.width, term=term)))
        if count:
            hidden, active = c.integer("intermediate_size"), c.integer("num_experts_per_tok", default=2)
            block += blocks.experts(c, f"{module}.block_sparse_moe", hidden, count=count, active=active)

        return blocks.decoder(c, mixer, block, mixer="attention" if full else "Mamba-2")

    def _is_full_attention(self, c: Config, index: int) -> bool:
        mixers = ("mamba", "attention", "linear_attention", "full_attention")
        kinds = c.choices("layer_types", "layers_block_type", valid_names=mixers, length=index + 1)
        return kinds[index] in ("attention", "full_attention")


@final
class GraniteSwa(Family):
    """Granite with sinks and sliding windows, or with shared experts.

    Kinds: `granite_swa` and `granitemoe_swa` have windows in three of four layers; `granitemoeshared` has none.
    """

    model_types = ("granite_swa", "granitemoe_swa", "granitemoeshared")
    tied_kinds = ("granite_swa",)

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms and a feed-forward block or experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        kind, module, bias = self.kind(c), f"layers.{index}", c.flag("attention_bias")
        local = kind.endswith("_swa")
        window = blocks.window(c, index, period=4) if local else math.inf
        block = blocks.grouped_query(c, f"{module}.self_attn", bias=bias, window=window)

        # The variants with windows have one sink per head.
        if local:
            block += blocks.small(c, "sinks", c.heads)
        hidden = c.integer("intermediate_size")
        if kind == "granite_swa":
            feed_forward = blocks.gated(c, f"{module}.mlp", hidden, bias=c.flag("mlp_bias", default=False))
        else:
            feed_forward = blocks.shared_and_routed(
                c,
                f"{module}.block_sparse_moe",
                hidden,
                count=c.integer("num_local_experts"),
                shared=c.integer("shared_intermediate_size", default=0, least=0),
                shared_module="shared_mlp",
            )

        return blocks.decoder(c, block, feed_forward)
