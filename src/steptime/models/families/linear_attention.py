"""Hybrids of linear and softmax attention: Bailing (Ling, Ring), Kimi Linear, Qwen3-Next and Qwen3.5."""

from __future__ import annotations

from dataclasses import replace
from typing import final

from steptime.errors import short_repr
from steptime.models import blocks, blocks_state_space
from steptime.models.blocks_vision import Tower, encoder, matrix, moonvit_rule, moonvit_stem, norm, tower
from steptime.models.config import Config
from steptime.models.families.qwen import shared_expert_gate, third_tower
from steptime.models.family_registry import Family
from steptime.models.model import Layer, Op

KINDS = ("linear_attention", "full_attention")


@final
class BailingHybrid(Family):
    """Ling and Ring with linear attention: `bailing_hybrid` of transformers.

    The delta attention has one decay per channel (arXiv 2510.26692) and gates of full rank. Latent attention has one
    gate per head.
    """

    model_types = ("bailing_hybrid",)
    # The reference stores both matrices.
    tie_fields = ()

    def layer(self, c: Config, index: int) -> Layer:
        """Return delta or latent attention, two norms, and a dense block or experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, full, sparse = f"layers.{index}", self._is_full_attention(c, index), blocks.is_sparse(c, index, dense=2)
        mixer = self._latent(c, f"{module}.self_attn") if full else self._delta(c, f"{module}.self_attn")
        feed_forward = self._experts(c, f"{module}.mlp") if sparse else blocks.gated(c, f"{module}.mlp")
        return blocks.decoder(c, mixer, feed_forward, mixer="latent attention" if full else "delta attention")

    def _experts(self, c: Config, module: str) -> blocks.Block:
        hidden = c.integer("moe_intermediate_size")
        return blocks.shared_and_routed(
            c,
            module,
            hidden,
            count=c.integer("num_experts", "num_local_experts"),
            active=c.integer("num_experts_per_token", "num_experts_per_tok"),
            shared=c.integer("num_shared_experts", "n_shared_experts", default=0, least=0) * hidden,
            groups=(c.integer("num_expert_group", "n_group", default=1), c.integer("topk_group", default=1)),
        )

    def _latent(self, c: Config, module: str) -> blocks.Block:
        # One gate per head, not per value.
        gate = blocks.linear(c, f"{module}.g_proj", c.width, c.heads, split_limit=c.heads)
        return blocks.latent(c, module) + gate

    def _delta(self, c: Config, module: str) -> blocks.Block:
        heads, dim = c.integer("linear_num_heads", default=c.heads), c.integer("linear_head_dim", "head_dim", default=128)
        inner = heads * dim
        outputs = dict.fromkeys("qkvfg", inner) | {"b": heads}
        return blocks_state_space.delta(
            c,
            module,
            [blocks.linear(c, f"{module}.{name}_proj", c.width, size, split_limit=heads) for name, size in outputs.items()],
            key_heads=heads,
            value_heads=heads,
            key_dim=dim,
            value_dim=dim,
            kernel=c.integer("linear_conv_kernel_dim", "short_conv_kernel_size", default=4),
            decays=inner + heads,
        )

    def _is_full_attention(self, c: Config, index: int) -> bool:
        if kind := c.layer_kind(index, KINDS):
            return kind == "full_attention"
        # The last layer of each group has full attention.
        return (index + 1) % c.integer("layer_group_size", default=6) == 0


@final
class KimiLinear(Family):
    r"""Kimi Linear and Kimi K3.

    Papers: arXiv 2510.26692 (`kimi_linear` of transformers) and arXiv 2607.24653.

    Kimi delta attention has one state of $d \times d$ per head, like gated DeltaNet, but one decay per channel: 7 FLOPs
    per value. Full layers have latent attention without rotary positions. Kimi K3 adds a gate to both kinds. Its routed
    experts work on a latent of `routed_expert_hidden_size` values, with a norm before the projection back. It also has
    attention residuals: each block of a layer, and the head, weighs the outputs of earlier groups of
    `attn_res_block_size` layers by a norm and a vector. The sums over these groups are left out; they are activations,
    at most nine vectors of the width that are read twice per layer. K3's structure is that of its checkpoint's tensors.
    Published: 2.8T parameters and 104B active
    (https://docs.nvidia.com/nemo/automodel/model-coverage/large-language-models/moonshotai/kimi-k3.md).
    """

    model_types = ("kimi_linear", "kimi_k3")
    # The checkpoint stores both matrices.
    tie_fields = ()

    def layer(self, c: Config, index: int) -> Layer:
        """Return delta or latent attention, two norms, and a dense block or experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, full, sparse = f"layers.{index}", self._is_full_attention(c, index), blocks.is_sparse(c, index, dense=1)
        mixer = blocks.Block((*self._residual(c, "attention_res"), *self._residual(c, "mlp_res")))
        mixer += self._latent(c, f"{module}.self_attn") if full else self._delta(c, f"{module}.self_attn")
        feed_forward = self._experts(c, f"{module}.block_sparse_moe") if sparse else blocks.gated(c, f"{module}.mlp")
        return blocks.decoder(c, mixer, feed_forward, mixer="latent attention" if full else "delta attention")

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return embedding, final norm, head, and the residual attention before the norm.

        Args:
            c: Config of the language model.

        Returns:
            The operators.
        """
        return (*super().stem(c), *self._residual(c, "output_res"))

    def image_tower(self, c: Config) -> Tower:
        """Return Kimi K3's MoonViT, by default without biases, and its projector.

        Args:
            c: Config of the whole model.

        Returns:
            The tower.
        """
        v = c.inner("vision_config")
        width, bias = v.integer("vt_hidden_size"), v.flag("attn_bias", default=False)
        heads = v.integer("vt_num_attention_heads", default=16)
        norm_bias = v.text("norm_type", default="rmsnorm") == "layernorm"
        layer = encoder(
            v,
            width,
            v.integer("vt_intermediate_size"),
            heads,
            inner=v.integer("qkv_hidden_size", default=width),
            bias=bias,
            norm_bias=norm_bias,
        )
        merge = v.items("merge_kernel_size", default=(2, 2))
        if len(merge) != 2 or not all(isinstance(n, int) and 0 < n < 1000 for n in merge):
            raise v.error("merge_kernel_size", f"must be two whole numbers, got {short_repr(merge)}")
        merged, share = v.integer("mm_hidden_size", default=width) * merge[0] * merge[1], 1 / (merge[0] * merge[1])
        text = v.integer("text_hidden_size", default=c.language.width)
        stem = (
            *moonvit_stem(v, width, bias=v.flag("patch_embed_proj_bias", default=False)),
            norm(v, "final_norm", width, bias=norm_bias),
            matrix(v, "projector_up_proj", merged, merged, bias=False, share=share, term="merger"),
            matrix(v, "projector_down_proj", merged, text, bias=False, share=share, term="merger"),
            norm(v, "projector_norm", text, bias=False, share=share),
        )
        rule = moonvit_rule(v, merge[0], 65536, "reported for the preprocessor of Kimi K3")
        layers = ((layer, v.integer("vt_num_hidden_layers")),)

        return tower(v, "image", rule, width=width, heads=heads, layers=layers, stem=stem)

    def _latent(self, c: Config, module: str) -> blocks.Block:
        block = blocks.latent(c, module)
        if not c.flag("mla_use_output_gate", default=False):
            return block
        values = c.heads * c.integer("v_head_dim")
        return block + blocks.linear(c, f"{module}.g_proj", c.width, values, split_limit=c.heads)

    def _delta(self, c: Config, module: str) -> blocks.Block:
        # transformers writes these fields at the top.
        a = c.inner("linear_attn_config") if c.has("linear_attn_config") else c
        heads, dim = a.integer("linear_num_heads", "num_heads"), a.integer("linear_head_dim", "head_dim")
        inner = heads * dim
        full_gate = a.flag("use_full_rank_gate", default=False)
        wide = {"q_proj": c.width, "k_proj": c.width, "v_proj": c.width, "f_b_proj": dim}
        wide |= {"g_proj": c.width} if full_gate else {"g_b_proj": dim}
        narrow = ("f_a_proj",) if full_gate else ("f_a_proj", "g_a_proj")
        projections = (
            *(blocks.linear(c, f"{module}.{name}", size, inner, split_limit=heads) for name, size in wide.items()),
            *(blocks.linear(c, f"{module}.{name}", c.width, dim, split="replicated") for name in narrow),
            blocks.linear(c, f"{module}.b_proj", c.width, heads, split_limit=heads),
        )
        return blocks_state_space.delta(
            c,
            module,
            projections,
            key_heads=heads,
            value_heads=heads,
            key_dim=dim,
            value_dim=dim,
            kernel=a.integer("linear_conv_kernel_dim", "short_conv_kernel_size", default=4),
            decays=inner + heads,
        )

    def _experts(self, c: Config, module: str) -> blocks.Block:
        hidden = c.integer("moe_intermediate_size")
        latent = c.integer("routed_expert_hidden_size", default=c.width)
        block = blocks.experts(
            c,
            module,
            hidden,
            count=c.integer("num_experts", "n_routed_experts"),
            active=c.integer("num_experts_per_token", "num_experts_per_tok"),
            width=latent,
            groups=(c.integer("num_expert_group", default=1), c.integer("topk_group", default=1)),
        )
        shared = c.integer("num_shared_experts", default=0, least=0) * hidden
        if shared:
            block += blocks.gated(c, f"{module}.shared_experts", shared, term="shared experts")
        if not c.has("routed_expert_hidden_size"):
            return block
        down = blocks.linear(c, f"{module}.routed_expert_down_proj", c.width, latent, term="experts")
        up = blocks.linear(c, f"{module}.routed_expert_up_proj", latent, c.width, term="experts")
        norms = (blocks.norm(c, "latent_norm", latent),) if c.flag("latent_moe_use_norm", default=False) else ()

        # The checkpoint quantizes only the routed experts.
        projections = (replace(op, format=c.base_format) for op in (down, up))

        return block + blocks.Block((*projections, *norms))

    def _residual(self, c: Config, name: str) -> tuple[Op, ...]:
        if not c.has("attn_res_block_size"):
            return ()
        # Check the field; its value changes only activations.
        c.integer("attn_res_block_size")
        return (blocks.norm(c, name, c.width, weights=2 * c.width),)

    def _is_full_attention(self, c: Config, index: int) -> bool:
        if kind := c.layer_kind(index, KINDS):
            return kind == "full_attention"
        # The config of the linear attention counts layers from 1.
        a = c.inner("linear_attn_config")
        full, linear = index + 1 in a.items("full_attn_layers"), index + 1 in a.items("kda_layers")
        if full == linear:
            raise a.error("full_attn_layers", f"or 'kda_layers' must list layer {index + 1}, but not both")
        return full


@final
class QwenHybrid(Family):
    r"""Gated DeltaNet (arXiv 2412.06464) and gated attention.

    Kinds: `qwen3_next`, `qwen3_5`, `qwen3_5_moe` of transformers. A DeltaNet layer keeps one state of $d_k \times d_v$
    per value head. A token decays it, reads it with its key, adds the corrected outer product, and reads it with its
    query: 7 FLOPs per value. The queries, keys and values pass a short convolution.
    """

    model_types = ("qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text")

    def layer(self, c: Config, index: int) -> Layer:
        """Return DeltaNet or gated attention, two norms, and a dense block or experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        return self._layer(c, f"layers.{index}", full=self._is_full_attention(c, index), sparse=self._is_sparse(c, index))

    def draft(self, c: Config) -> tuple[tuple[Layer, int], ...]:
        """Return the multi-token-prediction layers: a projection and attention layers.

        Args:
            c: Config of the language model.

        Returns:
            Pairs of layer and count; empty without such layers.
        """
        count = c.integer("mtp_num_hidden_layers", default=0, least=0)
        if not count:
            return ()
        layer = self._layer(c, "mtp.layers.0", full=True, sparse=self._is_sparse(c, c.depth - 1))
        joined = blocks.linear(c, "mtp.fc", 2 * c.width, c.width)
        norms = tuple(blocks.norm(c, name, c.width) for name in ("embedding_norm", "hidden_norm", "mtp_norm"))
        # The projection and its norms run once, before the first layer.
        first = replace(layer, name=f"multi-token prediction: {layer.name}", ops=(joined, *norms, *layer.ops))
        return ((first, 1), (layer, count - 1)) if count > 1 else ((first, 1),)

    def image_tower(self, c: Config) -> Tower:
        """Return the tower of Qwen3-VL.

        Args:
            c: Config of the whole model.

        Returns:
            The tower.
        """
        return third_tower(c.inner("vision_config"))

    def _layer(self, c: Config, module: str, *, full: bool, sparse: bool) -> Layer:
        mixer = self._attention(c, f"{module}.self_attn") if full else self._delta(c, f"{module}.linear_attn")
        feed_forward = self._experts(c, f"{module}.mlp") if sparse else blocks.gated(c, f"{module}.mlp")
        return blocks.decoder(c, mixer, feed_forward, mixer="gated attention" if full else "gated DeltaNet")

    def _attention(self, c: Config, module: str) -> blocks.Block:
        bias = c.flag("attention_bias", default=False)
        gate = c.heads * c.head_dim if c.flag("attn_output_gate", default=True) else 0
        return blocks.grouped_query(c, module, bias=bias, qk_norm=c.head_dim, gate=gate)

    def _delta(self, c: Config, module: str) -> blocks.Block:
        key_heads, value_heads = c.integer("linear_num_key_heads"), c.integer("linear_num_value_heads")
        key_dim, value_dim = c.integer("linear_key_head_dim"), c.integer("linear_value_head_dim")
        if value_heads % key_heads:
            raise c.error("linear_num_value_heads", f"must be a multiple of the {key_heads} key heads, got {value_heads}")
        keys, values = key_heads * key_dim, value_heads * value_dim

        # Qwen3-Next fuses the projections by inputs, Qwen3.5 separates them.
        if self.kind(c) == "qwen3_next":
            sizes = {"in_proj_qkvz": 2 * keys + 2 * values, "in_proj_ba": 2 * value_heads}
        else:
            sizes = {"in_proj_qkv": 2 * keys + values, "in_proj_z": values} | dict.fromkeys(
                ("in_proj_b", "in_proj_a"), value_heads
            )
        return blocks_state_space.delta(
            c,
            module,
            [blocks.linear(c, f"{module}.{name}", c.width, size, split_limit=key_heads) for name, size in sizes.items()],
            key_heads=key_heads,
            value_heads=value_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            kernel=c.integer("linear_conv_kernel_dim"),
            decays=2 * value_heads,
            norm="gated_norm",
            output="out_proj",
        )

    def _experts(self, c: Config, module: str) -> blocks.Block:
        count, shared = c.integer("num_experts"), c.integer("shared_expert_intermediate_size")
        experts = blocks.shared_and_routed(c, module, count=count, shared=shared, shared_module="shared_expert")
        return experts + shared_expert_gate(c, module)

    def _is_full_attention(self, c: Config, index: int) -> bool:
        if kind := c.layer_kind(index, KINDS):
            return kind == "full_attention"
        return (index + 1) % c.integer("full_attention_interval", default=4) == 0

    def _is_sparse(self, c: Config, index: int) -> bool:
        if not c.has("num_experts") or index in c.items("mlp_only_layers", default=()):
            return False
        return (index + 1) % c.integer("decoder_sparse_step", default=1) == 0
