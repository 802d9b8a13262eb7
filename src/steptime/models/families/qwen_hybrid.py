"""Qwen3-Next and Qwen3.5: gated DeltaNet in three of four layers, gated attention.

The models are dense or have experts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

from steptime.models import blocks, blocks_decoder, blocks_state_space
from steptime.models.blocks_vision import Tower
from steptime.models.config import Config
from steptime.models.families.qwen import third_tower
from steptime.models.family_registry import Family
from steptime.models.model import Layer

KINDS = ("linear_attention", "full_attention")


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
        joined = blocks.linear(c, "mtp.fc", 2 * c.width, c.width, term="projections")
        norms = tuple(blocks.norm(c, name, c.width) for name in ("embedding_norm", "hidden_norm", "mtp_norm"))
        # The projection and its norms run once, before the first layer.
        first = replace(layer, name=f"multi-token prediction: {layer.name}", ops=(joined, *norms, *layer.ops))
        return ((first, 1), (layer, count - 1)) if count > 1 else ((first, 1),)

    def towers(self, c: Config) -> tuple[Tower, ...]:
        """Return the tower of Qwen3-VL, if the config has it.

        Args:
            c: Config of the whole model.

        Returns:
            The towers; empty without any.
        """
        return (third_tower(c.inner("vision_config")),) if c.has("vision_config") else ()

    def _layer(self, c: Config, module: str, *, full: bool, sparse: bool) -> Layer:
        block = blocks.Block((blocks.norm(c, "input_norm", c.width), blocks.norm(c, "post_norm", c.width)))
        block += self._attention(c, f"{module}.self_attn") if full else self._delta(c, f"{module}.linear_attn")
        block += (
            self._experts(c, f"{module}.mlp") if sparse else blocks.gated(c, f"{module}.mlp", c.integer("intermediate_size"))
        )
        name = f"{'gated attention' if full else 'gated DeltaNet'} + {'experts' if sparse else 'feed-forward'}"
        return Layer(name=name, ops=block.ops, attention=block.attention)

    def _attention(self, c: Config, module: str) -> blocks.Block:
        bias = c.flag("attention_bias", default=False)
        return blocks.grouped_query(
            c,
            module,
            heads=c.heads,
            kv_heads=c.kv_heads,
            head_dim=c.head_dim,
            bias=bias,
            output_bias=bias,
            qk_norm=c.head_dim,
            gate=c.heads * c.head_dim if c.flag("attn_output_gate", default=True) else 0,
        )

    def _delta(self, c: Config, module: str) -> blocks.Block:
        key_heads, value_heads = c.integer("linear_num_key_heads"), c.integer("linear_num_value_heads")
        key_dim, value_dim = c.integer("linear_key_head_dim"), c.integer("linear_value_head_dim")
        if value_heads % key_heads:
            raise c.error("linear_num_value_heads", f"must be a multiple of the {key_heads} key heads, got {value_heads}")
        keys, values, kernel = key_heads * key_dim, value_heads * value_dim, c.integer("linear_conv_kernel_dim")
        fused = c.text("model_type", default="qwen3_next") == "qwen3_next"

        # Qwen3-Next fuses the projections by inputs, Qwen3.5 separates them.
        outputs = (
            {"in_proj_qkvz": 2 * keys + 2 * values, "in_proj_ba": 2 * value_heads}
            if fused
            else {
                "in_proj_qkv": 2 * keys + values,
                "in_proj_z": values,
                "in_proj_b": value_heads,
                "in_proj_a": value_heads,
            }
        )
        term, channels = "projections", 2 * keys + values
        ops = (
            *(
                blocks.linear(c, f"{module}.{name}", c.width, size, term=term, split_limit=key_heads)
                for name, size in outputs.items()
            ),
            blocks_state_space.convolution(c, channels, kernel),
            blocks.small(c, "steps and decay", 2 * value_heads, split="group"),
            blocks.norm(c, "gated_norm", values, weights=value_dim),
            blocks.linear(c, f"{module}.out_proj", values, c.width, term=term),
        )
        state = blocks_state_space.state(
            c,
            heads=key_heads,
            values=value_heads * key_dim * value_dim,
            flops_per_value=blocks_state_space.DECAY
            + blocks_state_space.READOUT
            + blocks_state_space.OUTER
            + blocks_state_space.READOUT,
            channels=channels,
            kernel=kernel,
        )

        return blocks.Block(ops, (state,))

    def _experts(self, c: Config, module: str) -> blocks.Block:
        shared = c.integer("shared_expert_intermediate_size")
        block = blocks_decoder.shared_and_routed(
            c,
            module,
            c.integer("moe_intermediate_size"),
            count=c.integer("num_experts"),
            active=c.integer("num_experts_per_tok"),
            shared=shared,
            shared_module="shared_expert",
        )
        gate = blocks.linear(c, f"{module}.shared_expert_gate", c.width, 1, term="shared experts", split="replicated")
        return block + blocks.Block((gate,))

    def _is_full_attention(self, c: Config, index: int) -> bool:
        if c.has("layer_types"):
            return bool(c.choices("layer_types", valid_names=KINDS, length=index + 1)[index] == "full_attention")
        return (index + 1) % c.integer("full_attention_interval", default=4) == 0

    def _is_sparse(self, c: Config, index: int) -> bool:
        if not c.has("num_experts") or index in c.items("mlp_only_layers", default=()):
            return False
        return (index + 1) % c.integer("decoder_sparse_step", default=1) == 0
