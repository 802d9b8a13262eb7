"""Zamba 1 and 2: Mamba in every layer, and a transformer block shared by layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import final

from steptime.models import blocks as parts
from steptime.models import blocks_state_space
from steptime.models.config import DEEPEST, Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer, Op

LAYER_TYPES = ("mamba", "linear_attention", "hybrid")


@final
class Zamba(Family):
    """Zamba (arXiv 2405.16712; Mamba-1) and Zamba 2 (arXiv 2411.15242; Mamba-2).

    In a hybrid layer the shared block reads the residual stream and the embedding together, twice the width. Its output
    passes a matrix of this layer before Mamba. The weights of the block are stored once and read in each hybrid layer.
    Each hybrid layer has its own cache. Zamba 2 has `num_mem_blocks` such blocks in turn, and low-rank adapters per
    layer.
    """

    model_types = ("zamba", "zamba2")
    default_kind = "zamba2"
    tied_kinds = model_types

    def iter_layers(self, c: Config) -> Iterator[Layer]:
        """Yield the layers; the first use of a shared block stores its weights.

        Args:
            c: Config of the language model.

        Yields:
            The layers in the order of the model.
        """
        blocks, hybrid_layers = c.integer("num_mem_blocks", default=1) if self.kind(c) == "zamba2" else 1, 0
        for index, kind in enumerate(self._kinds(c)):
            yield self._layer(c, index, hybrid=kind == "hybrid", stored=hybrid_layers < blocks)
            hybrid_layers += kind == "hybrid"

    def layer(self, c: Config, index: int) -> Layer:
        """Return Mamba, with the shared block before it in hybrid layers.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        return self._layer(c, index, hybrid=self._kinds(c)[index] == "hybrid", stored=True)

    def _layer(self, c: Config, index: int, *, hybrid: bool, stored: bool) -> Layer:
        module, second = f"layers.{index}", self.kind(c) == "zamba2"
        build = self._mamba2 if second else blocks_state_space.jamba_mixer
        block, name = build(c, f"{module}.mamba"), "Mamba-2" if second else "Mamba"
        if hybrid:
            block += parts.linear(c, f"{module}.linear", c.width, c.width)
            shared = self._shared(c, f"{module}.shared_transformer")
            block += parts.Block(tuple(replace(op, stored=stored) for op in shared.ops), shared.attention)
            block += parts.Block(self._adapters(c, module) if second else ())
            name = f"shared attention + {name}"
        return parts.decoder(c, block, norms=("input_norm",), mixer=name)

    def _shared(self, c: Config, module: str) -> parts.Block:
        wide = c.integer("attention_hidden_size", default=2 * c.width)
        head_dim = c.integer("attention_head_dim", default=wide // c.heads)
        attention = parts.grouped_query(c, f"{module}.self_attn", head_dim=head_dim, width=wide)
        output = parts.linear(c, f"{module}.o_proj", c.heads * head_dim, c.width)
        # The output matrix maps from twice the width to the width of the model.
        ops = (*(op for op in attention.ops if op.name != "o_proj"), output)
        bias = c.flag("add_bias_linear", default=False) and self.kind(c) == "zamba2"
        hidden = c.integer("ffn_hidden_size", "intermediate_size")
        norms = parts.Block((parts.norm(c, "shared_norm", wide), parts.norm(c, "pre_ff_norm", c.width)))
        return norms + parts.Block(ops, attention.attention) + parts.gated(c, f"{module}.feed_forward", hidden, bias=bias)

    def _adapters(self, c: Config, module: str) -> tuple[Op, ...]:
        rank, hidden = c.integer("adapter_rank", default=128), c.integer("ffn_hidden_size", "intermediate_size")
        wide = c.integer("attention_hidden_size", default=2 * c.width)
        outputs = {"gate_up": (c.width, 2 * hidden)}
        if c.flag("use_shared_attention_adapter", default=False):
            outputs |= dict.fromkeys(("q", "k", "v"), (wide, wide))
        return tuple(
            parts.linear(c, f"{module}.{name}_adapter{step}", *sizes)
            for name, (inputs, size) in outputs.items()
            for step, sizes in enumerate(((inputs, rank), (rank, size)))
        )

    def _mamba2(self, c: Config, module: str) -> parts.Block:
        inner, heads = c.integer("mamba_expand", default=2) * c.width, c.integer("n_mamba_heads", default=8)
        if inner % heads:
            raise c.error("n_mamba_heads", f"must divide the {inner} inner values, got {heads}")
        return blocks_state_space.mamba2(
            c,
            module,
            heads=heads,
            head_dim=inner // heads,
            groups=c.integer("mamba_ngroups", default=1),
            state_dim=c.integer("mamba_d_state", default=64),
            kernel=c.integer("mamba_d_conv", default=4),
            conv_bias=True,
            bias=c.flag("add_bias_linear", default=False),
        )

    def _kinds(self, c: Config) -> list[str]:
        if c.has("layers_block_type") or c.has("layer_types"):
            return c.choices("layers_block_type", "layer_types", valid_names=LAYER_TYPES, length=c.depth)[: c.depth]
        if self.kind(c) == "zamba2":
            hybrid = c.indices("hybrid_layer_ids")
            return ["hybrid" if index in hybrid else "mamba" for index in range(c.depth)]
        period = c.integer("attn_layer_period", default=6, maximum=DEEPEST)
        offset = c.integer("attn_layer_offset", default=4, least=0)
        # Zamba 1 puts its first hybrid layer at 2, and the others in a period after it.
        return ["hybrid" if i == 2 or (i > 2 and (i - 3) % period == offset) else "mamba" for i in range(c.depth)]
