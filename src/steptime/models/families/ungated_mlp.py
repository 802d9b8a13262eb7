"""Decoders whose feed-forward block has two matrices, without a gate.

Models: GPT-1, GPT-2, GPT-Neo, GPT-J, GPT-NeoX, StarCoder, Apertus, Arcee, Nemotron-4, Jais 2, nanochat, Persimmon, BLOOM,
MPT, OPT and Falcon.
"""

from __future__ import annotations

import math
from typing import final

from steptime.models import blocks
from steptime.models.blocks_vision import Tower, matrix, tower
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.image_tokens import lines, rule
from steptime.models.model import Layer, Op


@final
class Gpt2(Family):
    """GPT-1, GPT-2 in its four sizes, GPT-Neo, StarCoder 1 and CTRL.

    Kinds: `openai-gpt`, `gpt2`, `gpt_neo`, `gpt_bigcode` (arXiv 2305.06161) and `ctrl`. StarCoder 1 has one KV head for all
    queries. Every second layer of GPT-Neo has a window, and only its output projection has a bias. CTRL (arXiv 1909.05858)
    computes its positions and has a bias on its head.
    """

    model_types = ("gpt2", "gpt-sw3", "openai-gpt", "gpt_bigcode", "gpt_neo", "ctrl")
    tied_kinds = model_types
    norm_bias = True

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms with biases and a plain feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, kind = f"h.{index}", self.kind(c)
        hidden = c.integer("n_inner", "intermediate_size", "dff", default=4 * c.width)
        single = kind == "gpt_bigcode" and c.flag("multi_query", default=True)
        attention = blocks.grouped_query(
            c,
            f"{module}.attn",
            kv_heads=1 if single else c.heads,
            bias=kind != "gpt_neo",
            output_bias=True,
            window=self._window(c, index) if kind == "gpt_neo" else math.inf,
        )
        feed_forward = blocks.plain(c, f"{module}.mlp", hidden, bias=True)

        return blocks.decoder(c, attention, feed_forward, norms=("ln_1", "ln_2"), norm_bias=True)

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return the embedding, learned positions, the final norm and the head.

        Args:
            c: Config of the language model.

        Returns:
            The operators.
        """
        positions = blocks.table(c, "positions", c.integer("n_positions", "max_position_embeddings") * c.width)
        embedding, norm, head = super().stem(c)
        if self.kind(c) == "ctrl":
            return embedding, norm, blocks.head(c, bias=True)
        return (embedding, positions, head) if self.kind(c) == "openai-gpt" else (embedding, positions, norm, head)

    def _window(self, c: Config, index: int) -> float:
        kind = c.layer_kind(index, ("global", "local"), "attention_layers")
        # Without a list, GPT-Neo alternates global and local layers, and begins with a global one.
        local = kind == "local" if kind else index % 2 == 1
        return c.integer("window_size", default=256) if local else math.inf


@final
class GptJ(Family):
    """GPT-J-6B (Wang and Komatsuzaki, 2021) and CodeGen (arXiv 2203.13474)."""

    model_types = ("gptj", "codegen")
    norm_bias = True
    head_bias = True

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention without biases, feed-forward with biases, and one norm.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module = f"h.{index}"
        attention = blocks.grouped_query(c, f"{module}.attn", kv_heads=c.heads)
        feed_forward = blocks.plain(c, f"{module}.mlp", c.integer("n_inner", default=4 * c.width), bias=True)
        return blocks.decoder(c, attention, feed_forward, norms=("ln_1",), norm_bias=True)


@final
class GptNeox(Family):
    """GPT-NeoX-20B (arXiv 2204.06745), Pythia (arXiv 2304.01373) and Japanese NeoX.

    The Japanese NeoX has one bias in its last layer.
    """

    model_types = ("gpt_neox", "gpt_neox_japanese")
    tied_kinds = ("gpt_neox_japanese",)
    norm_bias = True

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms and a plain feed-forward block, all with biases.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        japanese = self.kind(c) == "gpt_neox_japanese"
        bias = not japanese and c.flag("attention_bias", default=True)
        attention = blocks.grouped_query(c, f"layers.{index}.attention", kv_heads=c.heads, bias=bias)

        # The Japanese NeoX adds the bias of its attention output only in the last layer.
        if japanese and index == c.depth - 1:
            attention += blocks.small(c, "dense_bias", c.width)
        multiple = c.integer("intermediate_multiple_size", default=4) * c.width
        hidden = multiple if japanese else c.integer("intermediate_size")
        feed_forward = blocks.plain(c, f"layers.{index}.mlp", hidden, bias=not japanese)

        return blocks.decoder(c, attention, feed_forward, norm_bias=True)


@final
class Plain(Family):
    """Apertus, Arcee's AFM, Nemotron-4, Minitron, Jais 2, nanochat, Persimmon, Fuyu.

    Papers: arXiv 2509.14233 (Apertus) and arXiv 2402.16819 (Nemotron-4). The activation between the two matrices is a
    squared ReLU; in Apertus it is an xIELU with two learned values per layer. The norms of nanochat have no gains.
    Those of Nemotron, Jais and Persimmon are layer norms with biases.
    """

    model_types = ("apertus", "arcee", "nemotron", "jais2", "nanochat", "persimmon", "fuyu")
    default_kind = "arcee"

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, norms and a plain feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        kind, module = self.kind(c), f"layers.{index}"
        fused = kind == "persimmon"
        bias = fused or c.flag("attention_bias", default=kind == "jais2")
        block = blocks.grouped_query(
            c,
            f"{module}.self_attn",
            kv_heads=c.heads if fused else c.kv_heads,
            head_dim=c.width // c.heads if fused else c.head_dim,
            bias=bias,
            qk_norm=c.head_dim if kind == "apertus" else 0,
        )
        if fused and c.flag("qk_layernorm", default=True):
            block += blocks.head_norms(c, c.heads, c.heads, c.head_dim)

        # xIELU has two learned values per layer.
        if kind == "apertus" and c.text("hidden_act", default="xielu") == "xielu":
            block += blocks.small(c, "activation", 2)
        mlp_bias = fused or c.flag("mlp_bias", default=kind == "jais2")
        feed_forward = blocks.plain(c, f"{module}.mlp", bias=mlp_bias)
        norms = () if kind == "nanochat" else blocks.PRE

        return blocks.decoder(c, block, feed_forward, norms=norms, norm_bias=self._has_layer_norms(c))

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return embedding, final norm and head; nanochat's norm has no gains.

        Args:
            c: Config of the language model.

        Returns:
            The operators.
        """
        ends = (blocks.embedding(c, tied=self.tied(c)), blocks.head(c))
        if self.kind(c) == "nanochat":
            return ends
        return ends[0], blocks.norm(c, "final_norm", c.width, bias=self._has_layer_norms(c)), ends[1]

    def towers(self, c: Config) -> tuple[Tower, ...]:
        """Return Fuyu's map of patches, which replaces a tower.

        Args:
            c: Config of the whole model.

        Returns:
            The towers; empty without any.
        """
        if not c.has("patch_size"):
            return ()
        patch, text = c.integer("patch_size"), c.language.width
        values = patch**2 * c.integer("num_channels", default=3)
        cuts = rule(lines, patch=patch, height=1080, width=1920, settings="a screen of 1920x1080, as in its processor")
        return (tower(c, "image", cuts, width=text, stem=(matrix(c, "vision_embed_tokens", values, text, term="patches"),)),)

    def _has_layer_norms(self, c: Config) -> bool:
        return self.kind(c) in ("nemotron", "jais2", "persimmon")


@final
class StarCoder2(Family):
    """StarCoder2 (arXiv 2402.19173)."""

    model_types = ("starcoder2",)
    tied_kinds = model_types
    norm_bias = True

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms and a plain feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        bias = c.flag("use_bias", default=True)
        attention = blocks.grouped_query(c, f"layers.{index}.self_attn", bias=bias, window=blocks.window(c, index))
        feed_forward = blocks.plain(c, f"layers.{index}.mlp", bias=bias)
        return blocks.decoder(c, attention, feed_forward, norm_bias=True)


@final
class Bloom(Family):
    """BLOOM (arXiv 2211.05100)."""

    model_types = ("bloom",)
    tied_kinds = model_types
    norm_bias = True

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms and a plain feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module = f"h.{index}"
        attention = blocks.grouped_query(c, f"{module}.self_attention", kv_heads=c.heads, bias=True)
        return blocks.decoder(c, attention, blocks.plain(c, f"{module}.mlp", 4 * c.width, bias=True), norm_bias=True)

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return embedding with its norm, final norm and head, by default tied.

        Args:
            c: Config of the language model.

        Returns:
            The operators.
        """
        embedding, norm, head = super().stem(c)
        return embedding, blocks.norm(c, "embedding_norm", c.width, bias=True), norm, head


@final
class Mpt(Family):
    """MPT-7B and MPT-30B (MosaicML, 2023)."""

    model_types = ("mpt",)
    tied_kinds = model_types

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms and a plain feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, hidden = f"blocks.{index}", c.integer("expansion_ratio", default=4) * c.width
        attention = blocks.grouped_query(c, f"{module}.attn", kv_heads=c.heads)
        return blocks.decoder(c, attention, blocks.plain(c, f"{module}.ffn", hidden))


@final
class Opt(Family):
    """OPT (arXiv 2205.01068), XGLM (arXiv 2112.10668) and BioGPT.

    The layers are the same. XGLM computes its positions.
    """

    model_types = ("opt", "xglm", "biogpt")
    tied_kinds = model_types

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms and a plain feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, bias = f"layers.{index}", c.flag("enable_bias", default=True)
        attention = blocks.grouped_query(c, f"{module}.self_attn", kv_heads=c.heads, bias=bias)
        feed_forward = blocks.plain(c, module, c.integer("ffn_dim", "intermediate_size"), bias=bias)
        norms = blocks.PRE if c.flag("layer_norm_elementwise_affine", default=True) else ()
        return blocks.decoder(c, attention, feed_forward, norms=norms, norm_bias=True)

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return embedding, positions, final norm and head.

        There are two more positions than tokens. Embeddings narrower than the model have two more maps.

        Args:
            c: Config of the language model.

        Returns:
            The operators.
        """
        width = c.integer("word_embed_proj_dim", default=c.width)
        # OPT reserves two positions before the first token.
        rows = c.integer("max_position_embeddings") + 2 if self.kind(c) != "xglm" else 0
        ops = [blocks.embedding(c, tied=self.tied(c), width=width)]
        if rows:
            ops.append(blocks.table(c, "positions", rows * c.width))
        # OPT-350M has narrower embeddings than layers.
        if width != c.width:
            ops.append(blocks.linear(c, "project_in", width, c.width))
            ops.append(blocks.linear(c, "project_out", c.width, width))
        gains = c.flag("layer_norm_elementwise_affine", default=True)
        if gains and c.flag("do_layer_norm_before", default=True) and not c.flag("_remove_final_layer_norm", default=False):
            ops.append(blocks.norm(c, "final_norm", c.width, bias=True))
        return *ops, blocks.linear(c, "lm_head", width, c.vocabulary, term="head", rows="outputs")


@final
class Falcon(Family):
    """Falcon 7B, 40B and 180B (arXiv 2311.16867)."""

    model_types = ("falcon", "RefinedWeb", "RefinedWebModel")
    tied_kinds = model_types
    norm_bias = True

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention and feed-forward with one norm or two.

        In parallel blocks they share one norm. The newer decoder and sequential blocks have two.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, bias = f"h.{index}", c.flag("bias", default=False)
        newer = c.flag("new_decoder_architecture", default=False)
        multi_query = c.flag("multi_query", default=True)
        kv_heads = c.integer("num_kv_heads", "n_head_kv", default=c.heads) if newer else 1 if multi_query else c.heads

        # The newer decoder may use one norm for both blocks.
        two = newer and c.integer("num_ln_in_parallel_attn", default=2) == 2
        parallel = c.flag("parallel_attn", default=True)
        norms = ("ln_attn", "ln_mlp") if two or not parallel else ("input_norm",)
        attention = blocks.grouped_query(c, f"{module}.self_attention", kv_heads=kv_heads, bias=bias)
        feed_forward = blocks.plain(c, f"{module}.mlp", c.integer("ffn_hidden_size", default=4 * c.width), bias=bias)

        return blocks.decoder(c, attention, feed_forward, norms=norms, norm_bias=True)
