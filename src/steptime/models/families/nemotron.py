"""Nemotron-H, Nemotron 3 and Llama-Nemotron: the layers of a model differ.

A layer of Nemotron-H is Mamba-2, attention, feed-forward or experts. Llama-Nemotron reduced the layers of Llama.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from steptime.models import blocks, blocks_state_space
from steptime.models.config import DEEPEST, Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer

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
