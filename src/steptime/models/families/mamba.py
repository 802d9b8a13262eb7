"""Mamba and hybrids of Mamba and attention: Mamba 1 and 2, Falcon-H1, Bamba, Jamba, Zamba and Nemotron."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import final

from steptime.models import blocks, blocks_state_space
from steptime.models.config import DEEPEST, Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer, Op


@final
class Mamba(Family):
    """Mamba, Mamba-2, Codestral Mamba and Falcon-Mamba.

    Papers: arXiv 2312.00752, 2405.21060 and 2410.05355 (Falcon-Mamba). Falcon-Mamba's norms on step, B and C have no gains.
    """

    model_types = ("mamba", "mamba2", "falcon_mamba")
    tied_kinds = ("mamba", "falcon_mamba")

    def layer(self, c: Config, index: int) -> Layer:
        """Return one norm and the mixer.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, second = f"layers.{index}.mixer", self.kind(c) == "mamba2"
        mixer = self._mamba2(c, module) if second else self._mamba1(c, module)
        return blocks.decoder(c, mixer, norms=("norm",), mixer="Mamba-2" if second else "Mamba")

    def heads(self, c: Config) -> int:
        """Return the heads of the state; in Mamba-1 each channel is a head.

        Args:
            c: Config of the language model.

        Returns:
            Number of heads.
        """
        return c.integer("num_heads", default=128) if self.kind(c) == "mamba2" else self._inner(c)

    def _mamba1(self, c: Config, module: str) -> blocks.Block:
        automatic = c.raw("time_step_rank", default="auto") == "auto"
        return blocks_state_space.mamba1(
            c,
            module,
            inner=self._inner(c),
            state_dim=c.integer("state_size", default=16),
            rank=math.ceil(c.width / 16) if automatic else c.integer("time_step_rank"),
            kernel=c.integer("conv_kernel", default=4),
            conv_bias=c.flag("use_conv_bias", default=True),
            bias=c.flag("use_bias", default=False),
        )

    def _mamba2(self, c: Config, module: str) -> blocks.Block:
        heads, head_dim = c.integer("num_heads", default=128), c.integer("head_dim", default=64)
        inner = c.integer("expand", default=2) * c.width

        # The config states all three, so they must agree.
        if heads * head_dim != inner:
            raise c.error("num_heads", f"times {head_dim} values must be the {inner} inner values, got {heads}")

        return blocks_state_space.mamba2(
            c,
            module,
            heads=heads,
            head_dim=head_dim,
            groups=c.integer("n_groups", default=8),
            state_dim=c.integer("state_size", default=128),
            kernel=c.integer("conv_kernel", default=4),
            conv_bias=c.flag("use_conv_bias", default=True),
            bias=c.flag("use_bias", default=False),
        )

    def _inner(self, c: Config) -> int:
        return c.integer("intermediate_size", default=c.integer("expand", default=2) * c.width)


LAYER_TYPES = ("mamba", "attention", "linear_attention", "full_attention")


@final
class MambaBeside(Family):
    """Falcon-H1 (arXiv 2507.22448) and Bamba.

    In Falcon-H1 both mixers read the same norm in every layer. In Bamba each layer has one mixer.
    """

    model_types = ("falcon_h1", "bamba")
    default_kind = "bamba"

    def layer(self, c: Config, index: int) -> Layer:
        """Return Mamba-2, attention or both, two norms, and a gated feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, parallel = f"layers.{index}", self.kind(c) == "falcon_h1"
        full = parallel or self._is_full_attention(c, index)
        mixer = blocks.Block(())
        if parallel or not full:
            mixer += self._mamba(c, f"{module}.mamba", parallel=parallel)
        if full:
            mixer += blocks.grouped_query(c, f"{module}.self_attn", bias=c.flag("attention_bias", default=False))
        bias = c.flag("mlp_bias", default=False)
        feed_forward = blocks.gated(c, f"{module}.feed_forward", bias=bias)
        name = "Mamba-2 and attention" if parallel else "attention" if full else "Mamba-2"

        return blocks.decoder(c, mixer, feed_forward, norms=("input_norm", "pre_ff_norm"), mixer=name)

    def _mamba(self, c: Config, module: str, *, parallel: bool) -> blocks.Block:
        inner = c.integer("mamba_d_ssm", default=c.integer("mamba_expand", default=2) * c.width)
        output_bias = c.flag("projectors_bias", default=False) if parallel else None
        gated_norm = not parallel or c.flag("mamba_rms_norm", default=False)
        return blocks_state_space.bamba_mixer(c, module, inner, output_bias=output_bias, gated_norm=gated_norm)

    def _is_full_attention(self, c: Config, index: int) -> bool:
        if kind := c.layer_kind(index, LAYER_TYPES, "layer_types", "layers_block_type"):
            return kind in ("attention", "full_attention")
        return index in c.indices("attn_layer_indices", default=())


@final
class Jamba(Family):
    """Jamba and Jamba-1.5 (arXiv 2403.19887, 2408.12570): `jamba` of transformers.

    The layers are Mamba-1 with norms on step, B and C.
    """

    model_types = ("jamba",)

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention or Mamba, two norms, and a dense block or experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module = f"layers.{index}"

        # The defaults are those of Jamba: periods 8 and 2, offsets 4 and 1.
        full = self._is_selected(c, "attn_layer", index, (8, 4))
        sparse = c.integer("num_experts", default=16) > 1 and self._is_selected(c, "expert_layer", index, (2, 1))
        if full:
            mixer = blocks.grouped_query(c, f"{module}.self_attn")
        else:
            mixer = blocks_state_space.jamba_mixer(c, f"{module}.mamba", norms=True)
        hidden = c.integer("intermediate_size")
        if sparse:
            count, active = c.integer("num_experts", default=16), c.integer("num_experts_per_tok", default=2)
            feed_forward = blocks.experts(c, f"{module}.feed_forward", hidden, count=count, active=active)
        else:
            feed_forward = blocks.gated(c, f"{module}.feed_forward", hidden)
        norms, name = ("input_norm", "pre_ff_norm"), "attention" if full else "Mamba"

        return blocks.decoder(c, mixer, feed_forward, norms=norms, mixer=name)

    def _is_selected(self, c: Config, name: str, index: int, default: tuple[int, int]) -> bool:
        period = c.integer(f"{name}_period", default=default[0])
        offset = c.integer(f"{name}_offset", default=default[1], least=0)
        if offset >= period:
            raise c.error(f"{name}_offset", f"must be less than the period {period}, got {offset}")
        return index % period == offset


ZAMBA_LAYERS = ("mamba", "linear_attention", "hybrid")


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
            block += blocks.linear(c, f"{module}.linear", c.width, c.width)
            shared = self._shared(c, f"{module}.shared_transformer")
            block += blocks.Block(tuple(replace(op, stored=stored) for op in shared.ops), shared.attention)
            block += blocks.Block(self._adapters(c, module) if second else ())
            name = f"shared attention + {name}"
        return blocks.decoder(c, block, norms=("input_norm",), mixer=name)

    def _shared(self, c: Config, module: str) -> blocks.Block:
        wide = c.integer("attention_hidden_size", default=2 * c.width)
        head_dim = c.integer("attention_head_dim", default=wide // c.heads)
        attention = blocks.grouped_query(c, f"{module}.self_attn", head_dim=head_dim, width=wide)
        output = blocks.linear(c, f"{module}.o_proj", c.heads * head_dim, c.width)
        # The output matrix maps from twice the width to the width of the model.
        ops = (*(op for op in attention.ops if op.name != "o_proj"), output)
        bias = c.flag("add_bias_linear", default=False) and self.kind(c) == "zamba2"
        hidden = c.integer("ffn_hidden_size", "intermediate_size")
        norms = blocks.Block((blocks.norm(c, "shared_norm", wide), blocks.norm(c, "pre_ff_norm", c.width)))
        return norms + blocks.Block(ops, attention.attention) + blocks.gated(c, f"{module}.feed_forward", hidden, bias=bias)

    def _adapters(self, c: Config, module: str) -> tuple[Op, ...]:
        rank, hidden = c.integer("adapter_rank", default=128), c.integer("ffn_hidden_size", "intermediate_size")
        wide = c.integer("attention_hidden_size", default=2 * c.width)
        outputs = {"gate_up": (c.width, 2 * hidden)}
        if c.flag("use_shared_attention_adapter", default=False):
            outputs |= dict.fromkeys(("q", "k", "v"), (wide, wide))
        return tuple(
            blocks.linear(c, f"{module}.{name}_adapter{step}", *sizes)
            for name, (inputs, size) in outputs.items()
            for step, sizes in enumerate(((inputs, rank), (rank, size)))
        )

    def _mamba2(self, c: Config, module: str) -> blocks.Block:
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
            return c.choices("layers_block_type", "layer_types", valid_names=ZAMBA_LAYERS, length=c.depth)[: c.depth]
        if self.kind(c) == "zamba2":
            hybrid = c.indices("hybrid_layer_ids")
            return ["hybrid" if index in hybrid else "mamba" for index in range(c.depth)]
        period = c.integer("attn_layer_period", default=6, maximum=DEEPEST)
        offset = c.integer("attn_layer_offset", default=4, least=0)
        # Zamba 1 puts its first hybrid layer at 2, and the others in a period after it.
        return ["hybrid" if i == 2 or (i > 2 and (i - 3) % period == offset) else "mamba" for i in range(c.depth)]


MARKS = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
# Fields that list the kinds of layers, by names or by marks.
KIND_FIELDS = ("layers_block_type", "hybrid_override_pattern")
NAMES = {"linear_attention": "mamba", "full_attention": "attention"}


@final
class NemotronH(Family):
    """Nemotron-H (arXiv 2504.03624) and Nemotron 3 (arXiv 2512.20848).

    Kind: `nemotron_h` of transformers. Feed-forward blocks and experts have two matrices with a squared ReLU between
    them. With `moe_latent_size` the routed experts work on a projection of the residual stream, and their output is
    projected back. The router and the shared expert work on the full width.
    """

    model_types = ("nemotron_h",)
    # The reference stores both matrices.
    tie_fields = ()

    def depth(self, c: Config) -> int:
        """Return the number of layers, which is the length of the pattern.

        Args:
            c: Config of the language model.

        Returns:
            Number of layers.
        """
        return len(self._kinds(c, *KIND_FIELDS))

    def layer(self, c: Config, index: int) -> Layer:
        """Return one norm and one mixer.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        return self._layer(c, self._kinds(c, *KIND_FIELDS)[index], f"layers.{index}")

    def iter_layers(self, c: Config) -> Iterator[Layer]:
        """Yield the layers; the pattern is read once.

        Args:
            c: Config of the language model.

        Returns:
            Iterator over the layers.
        """
        return (self._layer(c, kind, f"layers.{i}") for i, kind in enumerate(self._kinds(c, *KIND_FIELDS)))

    def draft(self, c: Config) -> tuple[tuple[Layer, int], ...]:
        """Return the multi-token-prediction module: norms, a projection, its layers.

        Args:
            c: Config of the language model.

        Returns:
            Pairs of layer and count; empty without such layers.
        """
        count = c.integer("num_nextn_predict_layers", default=0, least=0)
        if not count:
            return ()

        fields = ("mtp_layers_block_type", "mtp_hybrid_override_pattern")
        kinds = self._kinds(c, *fields) if any(map(c.has, fields)) else ["attention", "moe"]
        joined = (
            blocks.linear(c, "mtp.layers.0.eh_proj", 2 * c.width, c.width),
            *(blocks.norm(c, name, c.width) for name in ("enorm", "hnorm", "final_norm")),
        )
        layers = [self._layer(c, kind, f"mtp.layers.{index}") for index, kind in enumerate(kinds)]

        return ((Layer(name="multi-token prediction: projection", ops=joined), count), *((layer, count) for layer in layers))

    def _layer(self, c: Config, kind: str, module: str) -> Layer:
        build = {"mamba": self._mamba, "attention": self._attention, "mlp": self._feed_forward, "moe": self._experts}[kind]
        block = build(c, f"{module}.mixer")
        if kind in ("mlp", "moe"):
            return blocks.decoder(c, blocks.Block(()), block, norms=("norm",))
        return blocks.decoder(c, block, norms=("norm",), mixer="Mamba-2" if kind == "mamba" else "attention")

    def _kinds(self, c: Config, listed: str, pattern: str) -> list[str]:
        if c.has(listed) or not c.has(pattern):
            kind_names = (*MARKS.values(), *NAMES)
            # transformers uses two sets of names for the mixers.
            kinds = [NAMES.get(kind, kind) for kind in c.choices(listed, valid_names=kind_names)]
        else:
            marks = c.text(pattern)
            if unknown := set(marks) - set(MARKS):
                raise c.error(
                    pattern, f"has unknown marks {', '.join(map(repr, sorted(unknown)))}; known: {', '.join(map(repr, MARKS))}"
                )
            kinds = [MARKS[mark] for mark in marks]
        if not 0 < len(kinds) <= DEEPEST:
            raise c.error(listed if c.has(listed) else pattern, f"must name 1 to {DEEPEST} layers, got {len(kinds)}")
        return kinds

    def _mamba(self, c: Config, module: str) -> blocks.Block:
        return blocks_state_space.mamba2(
            c,
            module,
            heads=c.integer("mamba_num_heads"),
            head_dim=c.integer("mamba_head_dim"),
            groups=c.integer("n_groups", "mamba_n_groups"),
            state_dim=c.integer("ssm_state_size"),
            kernel=c.integer("conv_kernel", "mamba_d_conv"),
            conv_bias=c.flag("use_conv_bias", "mamba_conv_bias", default=True),
            bias=c.flag("use_bias", default=False),
        )

    def _attention(self, c: Config, module: str) -> blocks.Block:
        return blocks.grouped_query(c, module, head_dim=c.integer("head_dim", "attention_head_dim", default=128))

    def _feed_forward(self, c: Config, module: str) -> blocks.Block:
        return blocks.plain(c, module, bias=c.flag("mlp_bias", default=False))

    def _experts(self, c: Config, module: str) -> blocks.Block:
        bias, latent = c.flag("mlp_bias", default=False), c.integer("moe_latent_size", default=c.width)
        block = blocks.experts(
            c,
            module,
            c.integer("moe_intermediate_size"),
            count=c.integer("n_routed_experts"),
            width=latent,
            matrices=2,
            groups=blocks.expert_groups(c),
        )
        shared = c.integer("moe_shared_expert_intermediate_size")
        block += blocks.plain(c, f"{module}.shared_experts", shared, bias=bias, term="shared experts")
        if c.has("moe_latent_size"):
            block += blocks.linear(c, f"{module}.fc1_latent_proj", c.width, latent, term="experts", bias=bias)
            block += blocks.linear(c, f"{module}.fc2_latent_proj", latent, c.width, term="experts", bias=bias)
        return block


# Hidden sizes are rounded up to a multiple of it (`modeling_decilm.py` of the checkpoint).
MULTIPLE = 256


@final
class NemotronNas(Family):
    """Llama-Nemotron Super and Ultra (arXiv 2505.00949).

    `block_configs` describes each layer.
    """

    model_types = ("nemotron-nas",)
    architectures = ("DeciLMForCausalLM",)

    def layer(self, c: Config, index: int) -> Layer:
        """Return the remaining attention and feed-forward block, each with its norm.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        # A small config names the entry of the list in its errors.
        field = f"block_configs[{index}]"
        block = Config({field: c.items("block_configs", length=index + 1)[index]}, name=c.name, lookups=c.lookups).inner(field)
        attention, norms = self._attention(c, block.inner("attention"), f"layers.{index}.self_attn")
        feed_forward, feed_forward_norms = self._feed_forward(c, block.inner("ffn"), f"layers.{index}.mlp")
        return blocks.decoder(c, attention, feed_forward, norms=norms + feed_forward_norms)

    def _attention(self, c: Config, a: Config, module: str) -> tuple[blocks.Block, tuple[str, ...]]:
        if a.flag("no_op", default=False):
            return blocks.Block(()), ()
        if a.flag("replace_with_linear", default=False):
            matrix = blocks.linear(c, f"{module}.linear_attn", c.width, c.width)
            return blocks.Block((matrix,)), ("input_norm",)

        group, bias = a.integer("n_heads_in_group"), c.flag("attention_bias", default=False)
        if c.heads % group:
            raise a.error("n_heads_in_group", f"must divide the {c.heads} query heads, got {group}")
        window = blocks.window(a, 0, field="window_length")
        return blocks.grouped_query(c, module, kv_heads=c.heads // group, bias=bias, window=window), ("input_norm",)

    def _feed_forward(self, c: Config, f: Config, module: str) -> tuple[blocks.Block, tuple[str, ...]]:
        if f.flag("no_op", default=False):
            return blocks.Block(()), ()
        if f.flag("replace_with_linear", default=False):
            matrix = blocks.linear(c, f"{module}.linear_mlp", c.width, c.width, term="feed-forward")
            return blocks.Block((matrix,)), ("post_norm",)
        # As in the reference: two thirds of a multiple of the width, rounded up.
        hidden = -(-int(2 * f.number("ffn_mult") * c.width / 3) // MULTIPLE) * MULTIPLE
        return blocks.gated(c, module, hidden, bias=c.flag("mlp_bias", default=False)), ("post_norm",)
