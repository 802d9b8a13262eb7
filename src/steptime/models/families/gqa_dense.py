"""Dense decoders with grouped-query attention and a gated feed-forward block.

Models: BitNet, Command R and A, GLM-4, StableLM, Phi-1 to Phi-4 and HRM-Text. Command A and Phi-3.5 may have experts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, repeat
from typing import Final, final

from steptime.models import blocks
from steptime.models.config import DEEPEST, Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer, Op


@final
class BitNet(Family):
    """BitNet b1.58 2B4T (arXiv 2504.12285).

    If the config says so, four weights of three values are packed into one byte.
    """

    model_types = ("bitnet",)

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention and a gated feed-forward block with four norms.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, hidden, bias = f"layers.{index}", c.integer("intermediate_size"), c.flag("attention_bias", default=False)
        block = blocks.grouped_query(c, f"{module}.self_attn", bias=bias)
        # The norms before the output matrices keep the activations in range for low-bit weights.
        block += blocks.Block((blocks.norm(c, "attn_sub_norm", c.width), blocks.norm(c, "ffn_sub_norm", hidden)))
        return blocks.decoder(c, block, blocks.gated(c, f"{module}.mlp", hidden))


@final
class Cohere(Family):
    """Command R and R+ (cohere), Command R7B and A (cohere2, arXiv 2504.00698).

    Three of four layers of cohere2 have a sliding window. With experts (`cohere2_moe` of transformers) the first layers
    may be dense, and shared experts run together with the routed ones.
    """

    model_types = ("cohere", "cohere2", "cohere2_moe")
    default_kind = "cohere2"
    tied_kinds = model_types

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention and feed-forward with one norm.

        Command R+ has gains for the queries and keys of each head.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        first, bias = self.kind(c) == "cohere", c.flag("attention_bias", default=False)
        block = blocks.grouped_query(
            c,
            f"layers.{index}.self_attn",
            bias=bias,
            window=math.inf if first else blocks.window(c, index, period=c.integer("sliding_window_pattern", default=4)),
        )

        # Command R+ has separate gains per head, so the norms are as wide as all heads.
        if first and c.flag("use_qk_norm", default=False):
            block += blocks.norm(c, "q_norm", c.heads * c.head_dim)
            block += blocks.norm(c, "k_norm", c.kv_heads * c.head_dim)

        return blocks.decoder(c, block, self._feed_forward(c, index), norms=("input_norm",))

    def _feed_forward(self, c: Config, index: int) -> blocks.Block:
        module = f"layers.{index}.mlp"
        if self.kind(c) != "cohere2_moe":
            return blocks.gated(c, module)
        # Leading dense layers may have another hidden width.
        if not blocks.is_sparse(c, index):
            return blocks.gated(c, module, c.integer("prefix_dense_intermediate_size", "intermediate_size"))
        hidden = c.integer("intermediate_size")
        shared = c.integer("num_shared_experts", default=0, least=0) * hidden
        return blocks.shared_and_routed(c, module, hidden, count=c.integer("num_experts"), shared=shared)


NORMS: Final = (*blocks.PRE, "post_self_attn_norm", "post_mlp_norm")


@final
class Glm(Family):
    """GLM-4 (`glm`, arXiv 2406.12793) and GLM-4-0414 (`glm4`).

    GLM-4-0414 also has norms after its blocks. Queries, keys and values have biases, the output has none. Gate and up
    matrices are fused.
    """

    model_types = ("glm", "glm4")
    default_kind = "glm4"

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, norms and a gated feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        attention = blocks.grouped_query(
            c, f"layers.{index}.self_attn", bias=c.flag("attention_bias", default=True), output_bias=False
        )
        feed_forward = blocks.gated(c, f"layers.{index}.mlp")
        # Only GLM-4-0414 has the two norms after the blocks.
        newer = self.kind(c) == "glm4"
        return blocks.decoder(c, attention, feed_forward, norms=NORMS if newer else blocks.PRE)


@final
class StableLm(Family):
    """StableLM 3B and StableLM 2 (arXiv 2402.17834).

    StableLM 2 12B runs its blocks in parallel and has one norm per head.
    """

    model_types = ("stablelm", "stablelm_epoch")
    norm_bias = True

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, one norm or two, and a gated feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module = f"layers.{index}"
        head_dim, bias = c.width // c.heads, c.flag("use_qkv_bias", default=False)
        block = blocks.grouped_query(c, f"{module}.self_attn", head_dim=head_dim, bias=bias, output_bias=False)
        if c.flag("qk_layernorm", default=False):
            block += blocks.head_norms(c, c.heads, c.kv_heads, head_dim, shared=False, bias=False)
        feed_forward = blocks.gated(c, f"{module}.mlp")
        # Parallel blocks share one norm.
        norms = ("input_norm",) if c.flag("use_parallel_residual", default=False) else blocks.PRE
        return blocks.decoder(c, block, feed_forward, norms=norms, norm_bias=True)


@final
class Phi(Family):
    """Phi-3 and Phi-4 (arXiv 2404.14219, 2412.08905), and Phi-3.5-MoE.

    The model with experts has layer norms with biases.
    """

    model_types = ("phi3", "phimoe")

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms and a feed-forward block or experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        moe, bias = self.kind(c) == "phimoe", c.flag("attention_bias", default=False)
        attention = blocks.grouped_query(c, f"layers.{index}.self_attn", bias=bias and moe, window=blocks.window(c, index))
        if moe:
            hidden, count = c.integer("intermediate_size"), c.integer("num_local_experts")
            feed_forward = blocks.experts(c, f"layers.{index}.block_sparse_moe", hidden, count=count)
        else:
            feed_forward = blocks.gated(c, f"layers.{index}.mlp")
        return blocks.decoder(c, attention, feed_forward, norm_bias=moe)

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return embedding, final norm and head; the model with experts has biases.

        Args:
            c: Config of the language model.

        Returns:
            The operators.
        """
        if self.kind(c) != "phimoe":
            return super().stem(c)
        norm, head = (
            blocks.norm(c, "final_norm", c.width, bias=True),
            blocks.head(c, bias=c.flag("lm_head_bias", default=False)),
        )
        return blocks.embedding(c, tied=self.tied(c)), norm, head


@final
class Phi2(Family):
    """Phi-1 to Phi-2 (arXiv 2306.11644, 2309.05463): `phi` of transformers."""

    model_types = ("phi", "phi-msft")
    norm_bias = True
    head_bias = True

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention and feed-forward with one norm.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module = f"layers.{index}"
        block = blocks.grouped_query(c, f"{module}.self_attn", bias=True)
        if c.flag("qk_layernorm", default=False):
            block += blocks.head_norms(c, c.heads, c.kv_heads, c.width // c.heads)
        feed_forward = blocks.plain(c, f"{module}.mlp", bias=True)
        return blocks.decoder(c, block, feed_forward, norms=("input_norm",), norm_bias=True)


@final
class HrmText(Family):
    """HRM-Text (`hrm_text` of transformers; hierarchical reasoning, arXiv 2506.21734).

    The low stack runs `L_cycles` times, then the high stack runs once; this repeats `H_cycles` times. Each run reads
    the weights again and has its own cache. The weights are stored once. Norms have no gains.
    """

    model_types = ("hrm_text",)

    def depth(self, c: Config) -> int:
        """Return the number of layers that run, each as often as it runs.

        Args:
            c: Config of the language model.

        Returns:
            Number of layers.
        """
        low, high = c.integer("L_cycles", default=3, maximum=DEEPEST), c.integer("H_cycles", default=2, maximum=DEEPEST)
        layers = self._stack(c) * (low + 1) * high
        if layers > DEEPEST:
            raise c.error("H_cycles", f"makes {layers:,} layers from {self._stack(c)}; the limit is {DEEPEST:,}")
        return layers

    def iter_layers(self, c: Config) -> Iterator[Layer]:
        """Yield the layers of both stacks, then their repeated runs with stored weights.

        Args:
            c: Config of the language model.

        Returns:
            Iterator over the layers.
        """
        # All layers are equal; only the first run of each stack stores weights.
        first, stored = self.layer(c, 0), 2 * self._stack(c)
        repeated_layer = replace(first, name=f"{first.name}, again", ops=tuple(replace(op, stored=False) for op in first.ops))
        return chain(repeat(first, stored), repeat(repeated_layer, self.depth(c) - stored))

    def layer(self, c: Config, index: int) -> Layer:  # noqa: ARG002 - all are alike
        """Return gated attention and a gated feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        bias, inner = c.flag("attention_bias", default=False), c.heads * c.head_dim
        block = blocks.grouped_query(c, "layers.self_attn", kv_heads=c.heads, bias=bias)
        gate = blocks.linear(c, "layers.self_attn.gate_proj", c.width, inner, bias=bias, split_limit=c.heads)
        feed_forward = blocks.gated(c, "layers.mlp", bias=c.flag("mlp_bias", default=False))
        return blocks.decoder(c, block + gate, feed_forward, norms=(), mixer="gated attention")

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return embedding, the first state of the low stack, and head.

        Args:
            c: Config of the language model.

        Returns:
            The operators.
        """
        return blocks.embedding(c, tied=self.tied(c)), blocks.small(c, "z_L_init", c.width), blocks.head(c)

    def _stack(self, c: Config) -> int:
        return c.integer("num_layers_per_stack", maximum=DEEPEST)
