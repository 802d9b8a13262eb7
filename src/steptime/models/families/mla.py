"""Multi-head latent attention: DeepSeek and models with its layers, sparse or not.

A few dense layers, then shared and routed experts: DeepSeek MoE, V2, V3 and R1, Kimi K2, GLM-4.5, Mistral Large 3 and LongCat.
In DeepSeek-V3.2, GLM-5 and others, an indexer selects the tokens of attention.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, final

from steptime.errors import short_repr
from steptime.models import blocks
from steptime.models.config import DEEPEST, Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer, Op

if TYPE_CHECKING:
    from steptime.models.blocks_vision import Tower


DENSE = ("minicpm3", "youtu")
BIASED = ("minicpm3", "deepseek_v2")


@final
class DeepSeek(Family):
    """DeepSeekMoE, V2 and V3, and models with the same layers.

    Papers: arXiv 2401.06066, 2405.04434, 2412.19437. Attention is latent if the config has a `kv_lora_rank`, and otherwise
    grouped-query (DeepSeekMoE, GLM-4.5). MiniCPM 3 and Youtu have no experts. A.X K1 has a norm after the experts.
    """

    model_types = (
        "deepseek", "deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25", "glm4_moe", "glm4_moe_lite", "mistral_large_3",
        "minicpm3", "youtu", "axk1",
    )  # fmt: skip
    tied_kinds = DENSE

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms, and a dense block or experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        return self._layer(c, index, sparse=self._is_sparse(c, index))

    def draft(self, c: Config) -> tuple[tuple[Layer, int], ...]:
        """Return the multi-token-prediction layers: norms, a projection, a full layer.

        Args:
            c: Config of the language model.

        Returns:
            Pairs of layer and count; empty without such layers.
        """
        count = c.integer("num_nextn_predict_layers", default=0, least=0)
        return blocks.multi_token(c, self._layer(c, c.depth, sparse=True), count) if count else ()

    def image_tower(self, c: Config) -> Tower:
        """Return MoonViT and its projector (Kimi K2.5).

        Args:
            c: Config of the whole model.

        Returns:
            The tower.
        """
        from steptime.models.blocks_vision import encoder, matrix, moonvit_rule, moonvit_stem, norm, tower

        v = c.inner("vision_config")
        width, hidden = v.integer("vt_hidden_size"), v.integer("vt_intermediate_size")
        heads = v.integer("vt_num_attention_heads", default=16)

        # The field is one number, or a list with one per axis.
        merge = [blocks.entry(v, "merge_kernel_size", axis, default=2) for axis in range(2)]
        outputs, share = v.integer("mm_hidden_size", default=width), 1 / math.prod(merge)
        merged = outputs * math.prod(merge)
        stem = (
            *moonvit_stem(v, width, bias=True),
            norm(v, "final_norm", width),
            norm(v, "projector_norm", outputs),
            matrix(v, "projector_up_proj", merged, merged, share=share, term="merger"),
            matrix(v, "projector_down_proj", merged, c.language.width, share=share, term="merger"),
        )
        layers = ((encoder(v, width, hidden, heads), v.integer("vt_num_hidden_layers")),)
        rule = moonvit_rule(v, merge[0], 16384, "as in the published preprocessor of Kimi K2.5")

        return tower(v, "image", rule, width=width, heads=heads, layers=layers, stem=stem)

    def _layer(self, c: Config, index: int, *, sparse: bool) -> Layer:
        latent = c.has("kv_lora_rank")
        module = f"layers.{index}.self_attn"
        attention = blocks.latent(c, module) if latent else self._grouped_query(c, module)
        module = f"layers.{index}.mlp"
        feed_forward = self._experts(c, module) if sparse else self._dense(c, module)
        norms = (*blocks.PRE, "post_mlp_norm") if sparse and self.kind(c) == "axk1" else blocks.PRE
        mixer = "latent attention" if latent else "attention"
        return blocks.decoder(c, attention, feed_forward, norms=norms, mixer=mixer)

    def _is_sparse(self, c: Config, index: int) -> bool:
        return self.kind(c) not in DENSE and blocks.is_sparse(c, index)

    def _dense(self, c: Config, module: str) -> blocks.Block:
        bias = self.kind(c) in BIASED and c.flag("mlp_bias", default=False)
        return blocks.gated(c, module, bias=bias)

    def _grouped_query(self, c: Config, module: str) -> blocks.Block:
        bias = c.flag("attention_bias", default=False)
        # GLM-4.5 has biases on queries, keys and values only.
        output_bias = bias and not self.kind(c).startswith("glm")
        qk_norm = c.head_dim if c.flag("use_qk_norm", default=False) else 0
        return blocks.grouped_query(c, module, bias=bias, output_bias=output_bias, qk_norm=qk_norm)

    def _experts(self, c: Config, module: str) -> blocks.Block:
        bias = self.kind(c) in BIASED and c.flag("mlp_bias", default=False)
        return blocks.shared_and_routed(c, module, shared_bias=bias, groups=blocks.expert_groups(c))


@final
class DeepSeekSparse(Family):
    r"""DeepSeek sparse attention (arXiv 2512.02556, section 2.1).

    Each layer is one of DeepSeek-V3 with an indexer of $H$ heads of $d$ values. The score of a cached token costs $2H(d
    + 1)$ FLOPs. The indexer caches one key per token in FP8 with a 4-byte scale per 128 values, for any format of the
    latent: 132 B for 128 values. Attention then reads the `index_topk` best tokens. Prefill also runs in the latent
    space, because each query has its own selection. The masked multi-head form for prompts shorter than `index_topk` is
    left out. It would save 13 % of the FLOPs of 2048 tokens in DeepSeek-V3.2, and less for shorter prompts. In GLM-5.2,
    "shared" layers use the selection of the "full" layer before them, and have neither an indexer nor its cache.
    Structure: `deepseek_v32` and `glm_moe_dsa` of transformers.
    """

    model_types = ("deepseek_v32", "glm_moe_dsa")

    def layer(self, c: Config, index: int) -> Layer:
        """Return latent attention, an indexer if full, and a dense block or experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        return self._layer(c, index, full=self._is_full_attention(c, index), sparse=blocks.is_sparse(c, index, dense=3))

    def draft(self, c: Config) -> tuple[tuple[Layer, int], ...]:
        """Return the multi-token-prediction layers: norms, a projection, a full layer.

        Args:
            c: Config of the language model.

        Returns:
            Pairs of layer and count; empty without such layers.
        """
        count = c.integer("num_nextn_predict_layers", default=0, least=0)
        return blocks.multi_token(c, self._layer(c, c.depth, full=True, sparse=True), count) if count else ()

    def _layer(self, c: Config, index: int, *, full: bool, sparse: bool) -> Layer:
        module = f"layers.{index}"
        attention = self._attention(c, f"{module}.self_attn", full=full)
        if sparse:
            count, groups = c.integer("n_routed_experts", "num_experts"), blocks.expert_groups(c)
            feed_forward = blocks.shared_and_routed(c, f"{module}.mlp", count=count, groups=groups)
        else:
            feed_forward = blocks.gated(c, f"{module}.mlp")

        # Layers without an indexer must differ in name.
        return blocks.decoder(c, attention, feed_forward, mixer=f"sparse latent attention{' + indexer' if full else ''}")

    def _attention(self, c: Config, module: str, *, full: bool) -> blocks.Block:
        # The indexer reads the latent of the queries, so the config must have one.
        c.integer("q_lora_rank")
        block = blocks.selecting(blocks.latent(c, module), c.integer("index_topk"))
        return block + blocks.indexer(c, f"{module}.indexer") if full else block

    def _is_full_attention(self, c: Config, index: int) -> bool:
        if kind := c.layer_kind(index, ("full", "shared"), "indexer_types"):
            return kind == "full"
        if c.has("index_topk_pattern"):
            pattern = c.raw("index_topk_pattern")
            marks = list(pattern) if isinstance(pattern, str) else c.items("index_topk_pattern")
            if len(marks) <= index or marks[index] not in ("F", "S", "full", "shared"):
                raise c.error("index_topk_pattern", f"must have F or S for each layer, got {short_repr(pattern)}")
            return marks[index] in ("F", "full")
        # Without a list, the first layers and each `freq`th layer after them have an indexer.
        offset = c.integer("index_skip_topk_offset", default=2, least=0)
        return max(index - offset + 1, 0) % c.integer("index_topk_freq", default=1) == 0


@final
class LongcatFlash(Family):
    """LongCat-Flash (arXiv 2509.01322).

    A layer is two blocks in sequence, each of latent attention and a dense block. The experts read after the first
    attention, and their output is added at the end. Of a token's experts, the `zero_expert_num` that return their input
    cost nothing. If all experts are equally popular, 8 of 12 compute, and 27 B parameters are active on average
    (published: 18.6 to 31.3 B, 27 B on average).
    """

    model_types = ("longcat_flash",)

    def depth(self, c: Config) -> int:
        """Return the number of layers, each with two attentions.

        Args:
            c: Config of the language model.

        Returns:
            Number of layers.
        """
        return c.integer("num_layers", "num_hidden_layers", maximum=DEEPEST)

    def layer(self, c: Config, index: int) -> Layer:
        """Return both halves with their norms, and the experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, block = f"layers.{index}", blocks.Block(())
        for half in range(2):
            block += blocks.norm(c, f"input_norm.{half}", c.width)
            block += blocks.norm(c, f"post_norm.{half}", c.width)
            block += blocks.latent(c, f"{module}.self_attn.{half}")
            block += blocks.gated(c, f"{module}.mlps.{half}", c.integer("ffn_hidden_size", "intermediate_size"))

        # The experts run once per layer, not once per half.
        block += blocks.experts(
            c,
            f"{module}.mlp",
            c.integer("expert_ffn_hidden_size", "moe_intermediate_size"),
            count=c.integer("n_routed_experts"),
            active=c.integer("moe_topk", "num_experts_per_tok"),
            zero=c.integer("zero_expert_num", default=0, least=0),
            router_bias=c.flag("router_bias", default=False),
        )

        return Layer(name="2 x (latent attention + feed-forward) + experts", ops=block.ops, attention=block.attention)


LAYER_TYPES = ("indexed_attention", "full_attention", "sliding_attention")


@final
class LatentSparse(Family):
    """Hunyuan V4 (`hy_v4`), A.X K2 (`axk2`) and the text part of dots.3 Note.

    Kinds are those of transformers; dots.3 Note is `dots3_note`. All have a gate on the output of latent attention.
    Hunyuan has a gate per value, sinks, and residual streams mixed as in hyper-connections (arXiv 2409.19606). A.X has
    a gate per value from the latent of the queries, and norms gated by a low-rank matrix. dots has a gate per head. An
    indexer as in DeepSeek-V3.2 selects tokens (arXiv 2512.02556). Most layers of dots have a window instead. "Shared"
    layers of Hunyuan use the selection of the layer before them.
    """

    model_types = ("hy_v4", "axk2", "dots3_note", "dots3_note_text")

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention with or without indexer, norms, and a dense block or experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        kind, module, sparse = self.kind(c), f"layers.{index}", blocks.is_sparse(c, index, dense=1)
        block = self._attention(c, index, kind)
        if kind == "axk2":
            block += blocks.Block(self._gated_norms(c, count=1 + sparse))
        if kind == "hy_v4":
            maps = 2 * self._streams(c)
            block += self._streamed(c, "attn_hc", maps=maps, scales=2)
            block += self._streamed(c, "ffn_hc", maps=maps, scales=2)
        if sparse:
            expert_width = c.integer("shared_experts_intermediate_size", "moe_intermediate_size")
            feed_forward = blocks.shared_and_routed(
                c,
                f"{module}.mlp",
                count=c.integer("n_routed_experts", "num_local_experts"),
                shared=c.integer("n_shared_experts", default=0, least=0) * expert_width,
                groups=blocks.expert_groups(c),
            )
        else:
            feed_forward = blocks.gated(c, f"{module}.mlp")

        return blocks.decoder(c, block, feed_forward, mixer="gated latent attention")

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return embedding, final norm, head, and the join of Hunyuan's residual streams.

        Args:
            c: Config of the language model.

        Returns:
            The operators.
        """
        if self.kind(c) != "hy_v4":
            return super().stem(c)
        return *super().stem(c), self._streamed(c, "hc_head", maps=self._streams(c), scales=1)

    def _attention(self, c: Config, index: int, kind: str) -> blocks.Block:
        module = f"layers.{index}.self_attn"
        block = blocks.latent(c, module)
        rank, values = c.integer("q_lora_rank"), c.heads * c.integer("v_head_dim")
        if kind == "axk2":
            queries = c.heads * (c.integer("qk_nope_head_dim") + c.integer("qk_rope_head_dim"))
            # A.X makes queries and gate from the latent of the queries in one matrix.
            fused = blocks.linear(c, f"{module}.q_gate_proj", 2 * rank, queries + values, split_limit=c.heads)
            block = blocks.Block(tuple(fused if op.name == "q_b_proj" else op for op in block.ops), block.attention)
        else:
            outputs = values if kind == "hy_v4" else c.heads
            block += blocks.linear(c, f"{module}.g_proj", c.width, outputs, split_limit=c.heads)
            rotary = c.integer("qk_rope_head_dim")
            block += blocks.small(c, "sinks", c.heads) if kind == "hy_v4" else blocks.norm(c, "k_norm", rotary)
        mixer = c.layer_kind(index, LAYER_TYPES)
        if mixer == "sliding_attention":
            return blocks.Block(block.ops, (replace(block.attention[0], window=c.integer("sliding_window")),))
        if mixer == "full_attention":
            return block
        block = blocks.selecting(block, c.integer("index_topk"))
        # "Shared" layers use the selection of the layer before them.
        has_indexer = c.layer_kind(index, ("full", "shared"), "indexer_types") != "shared"
        return block + blocks.indexer(c, f"{module}.indexer") if has_indexer else block

    def _gated_norms(self, c: Config, *, count: int) -> tuple[Op, ...]:
        rank = c.integer("gated_norm_rank", default=16)
        narrow = blocks.linear(c, "norm_gate.fc1", c.width, rank, split="replicated")
        wide = blocks.linear(c, "norm_gate.fc2", rank, c.width, split="replicated")
        return (narrow, wide) * count

    def _streamed(self, c: Config, name: str, *, maps: int, scales: int) -> Op:
        wide = self._streams(c) * c.width
        op = blocks.small(c, name, maps * wide + maps + scales, term="hyper-connections")
        outputs = c.width if scales == 1 else wide + c.width
        return replace(op, flops_per_row=2 * wide * (maps + scales), inputs=scales * wide, outputs=outputs)

    def _streams(self, c: Config) -> int:
        return c.integer("hc_mult", default=4)
