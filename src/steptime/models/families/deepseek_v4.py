"""DeepSeek-V4: a sliding window with a compressed cache, and residual streams."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import final

from steptime.errors import short_repr
from steptime.hardware.number_formats import number_format
from steptime.models import blocks
from steptime.models.config import LATENT_FP8_MIXED, Config
from steptime.models.family_registry import Family
from steptime.models.model import Attention, Layer, Op

SPARSE, HEAVY = 4, 128
RATIOS = {"sliding_attention": 0, "compressed_sparse_attention": SPARSE, "heavily_compressed_attention": HEAVY}
# Values of a cached entry that share one scale.
SCALED = 64


@final
class DeepSeekV4(Family):
    r"""DeepSeek-V4 Flash and Pro: `deepseek_v4` of transformers.

    Formats and buffers are those of DeepSeek's inference code.

    Keys and values are one head of $d$ values. Every layer attends to the last `sliding_window` tokens. Its entry in
    `compress_ratios` adds one of three things: nothing (0), the `index_topk` best of one entry per 4 tokens (compressed
    sparse attention), or all of one entry per 128 tokens (heavily compressed attention). An entry is a gated mean over
    its tokens; with ratio 4, the tokens before them are included. A compressor buffers the FP32 inputs of its
    unfinished entry. These are the entries "buffer" below; each token reads `selected` rows of them on average.

    With the KV format "fp8_ds_mla" an entry of 512 values takes 584 B: 448 in FP8, 64 rotary ones in BF16, 7 scales and
    one byte of padding (vLLM pull request 56893). The indexer's keys are 128 B in FP8 with a 4-byte scale; FP4 keys
    would take half. At 1M tokens the cache takes 8.9 kB (Pro) and 6.2 kB (Flash) per token in BF16, and 5.5 and 3.9 kB in
    "fp8_ds_mla".

    The residual is `hc_mult` streams. FP32 maps mix them before and after each block (hyper-connections). Projections of
    compressors stay in the base format. The hash routers of the first layers store a table of indices and no parameters.
    """

    model_types = ("deepseek_v4", "deepseek_ref")

    def layer(self, c: Config, index: int) -> Layer:
        """Return window and compressed attention, experts, norms and hyper-connections.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        return self._layer(c, index, self._ratios(c, c.depth)[index])

    def iter_layers(self, c: Config) -> Iterator[Layer]:
        """Yield the layers; the ratios are read once.

        Args:
            c: Config of the language model.

        Returns:
            Iterator over the layers.
        """
        return (self._layer(c, index, ratio) for index, ratio in enumerate(self._ratios(c, c.depth)))

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return embedding, final norm, head, and the map that joins the streams.

        Args:
            c: Config of the language model.

        Returns:
            The operators.
        """
        return (*super().stem(c), self._joiner(c))

    def draft(self, c: Config) -> tuple[tuple[Layer, int], ...]:
        """Return the multi-token-prediction layers.

        Each has norms, two projections, a layer, and its own map that joins the streams.

        Args:
            c: Config of the language model.

        Returns:
            Pairs of layer and count; empty without such layers.
        """
        count = c.integer("num_nextn_predict_layers", default=0, least=0)
        if not count:
            return ()
        ratios = self._ratios(c, 0)[c.depth :]
        layer = self._layer(c, c.depth, ratios[0] if ratios else 0)
        joined = tuple(blocks.linear(c, f"mtp.0.{name}", c.width, c.width) for name in ("e_proj", "h_proj"))
        norms = tuple(blocks.norm(c, name, c.width) for name in ("enorm", "hnorm", "final_norm"))
        ops = (*joined, *norms, *layer.ops, self._joiner(c))
        return ((replace(layer, name=f"multi-token prediction: {layer.name}", ops=ops), count),)

    def _layer(self, c: Config, index: int, ratio: int) -> Layer:
        module = f"layers.{index}"
        norms = (blocks.norm(c, "attn_norm", c.width), blocks.norm(c, "ffn_norm", c.width))
        block = blocks.Block((*norms, self._mixer(c, "hc_attn"), self._mixer(c, "hc_ffn")))
        block += self._attention(c, f"{module}.attn", ratio)
        if ratio:
            block += self._compressor(c, f"{module}.attn.compressor", c.head_dim, ratio)
        if ratio == SPARSE:
            block += self._indexer(c, f"{module}.attn.indexer", ratio)
        block += self._experts(c, f"{module}.ffn")
        kind = {0: "window", SPARSE: "window and compressed sparse", HEAVY: "window and heavily compressed"}[ratio]
        return Layer(name=f"{kind} attention + experts", ops=block.ops, attention=block.attention)

    def _attention(self, c: Config, module: str, ratio: int) -> blocks.Block:
        heads, dim, rank = c.heads, c.head_dim, c.integer("q_lora_rank")
        groups, inner = c.integer("o_groups"), heads * dim
        if inner % groups:
            raise c.error("o_groups", f"must divide the {inner} outputs of all heads, got {groups}")
        middle = groups * c.integer("o_lora_rank")
        # Each group of heads has its own part of the first output matrix.
        grouped = blocks.linear(c, f"{module}.wo_a", inner // groups, middle, split_limit=groups)
        ops = (
            blocks.linear(c, f"{module}.wq_a", c.width, rank, split="replicated"),
            blocks.norm(c, "q_norm", rank),
            blocks.linear(c, f"{module}.wq_b", rank, inner, split_limit=heads),
            blocks.linear(c, f"{module}.wkv", c.width, dim, split="replicated"),
            blocks.norm(c, "kv_norm", dim),
            blocks.small(c, "sinks", heads),
            replace(grouped, inputs=inner),
            blocks.linear(c, f"{module}.wo_b", middle, c.width),
        )
        window = Attention(
            name="window",
            kv_bytes=self._entry_bytes(c),
            flops_per_pair_decode=4 * heads * dim,
            flops_per_pair_prefill=4 * heads * dim,
            window=c.integer("sliding_window"),
            heads=heads,
            query_values=inner,
            output_values=inner,
            arithmetic=(number_format("fp8") if c.kv_name == LATENT_FP8_MIXED else c.kv_format).arithmetic,
        )
        if not ratio:
            return blocks.Block(ops, (window,))
        selected = c.integer("index_topk") if ratio == SPARSE else math.inf
        compressed = replace(
            window, name="compressed", window=math.inf, stride=ratio, selected=selected, query_values=0, output_values=0
        )

        return blocks.Block(ops, (window, compressed))

    def _compressor(self, c: Config, module: str, dim: int, ratio: int) -> blocks.Block:
        # With ratio 4, two series of entries overlap.
        series = 2 if ratio == SPARSE else 1
        matrices = (blocks.linear(c, f"{module}.{x}", c.width, series * dim, split="replicated") for x in ("wkv", "wgate"))
        ops = (
            *(replace(op, format=c.base_format) for op in matrices),
            blocks.small(c, "positions", ratio * series * dim),
            blocks.norm(c, "compressor_norm", dim),
        )
        buffer = Attention(
            name="buffer",
            kv_bytes=2 * series * dim * number_format("fp32").bytes,
            window=series * ratio,
            selected=series,
            state_flops_per_token=2 * series * dim,
        )

        return blocks.Block(ops, (buffer,))

    def _indexer(self, c: Config, module: str, ratio: int) -> blocks.Block:
        block = blocks.indexer(c, module)
        # The keys come from a compressor, not from a matrix of the indexer.
        ops = tuple(op for op in block.ops if op.name not in ("wk", "index_key_norm"))
        compressor = self._compressor(c, f"{module}.compressor", c.integer("index_head_dim"), ratio)
        return blocks.Block(ops, (replace(block.attention[0], stride=ratio),)) + compressor

    def _experts(self, c: Config, module: str) -> blocks.Block:
        shared = c.integer("n_shared_experts", default=1, least=0) * c.integer("moe_intermediate_size")
        block = blocks.shared_and_routed(c, module, shared=shared)
        stored = c.weight_format(f"{module}.experts.0.w1")
        # The quantization names FP8 although the experts are in FP4, which only `expert_dtype` shows.
        if stored.name == "fp8" and c.text("expert_dtype", default="fp8") == "fp4":
            stored = number_format("mxfp4")
        return blocks.with_expert_format(block, stored)

    def _mixer(self, c: Config, name: str) -> Op:
        streams, width = c.integer("hc_mult", default=4), c.width
        maps = (2 + streams) * streams
        op = blocks.small(c, name, maps * streams * width + maps + 3, term="hyper-connections")
        flops = 2 * streams * width * (maps + streams + 2)
        inputs, outputs = (2 * streams + 1) * width, (streams + 1) * width
        return replace(op, flops_per_row=flops, format=number_format("fp32"), inputs=inputs, outputs=outputs)

    def _joiner(self, c: Config) -> Op:
        streams, width = c.integer("hc_mult", default=4), c.width
        op = blocks.small(c, "hc_head", streams * streams * width + streams + 1, term="hyper-connections")
        flops = 2 * streams * width * (streams + 1)
        return replace(op, flops_per_row=flops, format=number_format("fp32"), inputs=streams * width, outputs=width)

    def _entry_bytes(self, c: Config) -> float:
        if c.kv_name != LATENT_FP8_MIXED:
            return c.head_dim * c.kv_format.bytes
        rotary = c.integer("qk_rope_head_dim")
        if rotary > c.head_dim:
            raise c.error("qk_rope_head_dim", f"must be at most the {c.head_dim} values of a head, got {rotary}")
        # One scale per 64 FP8 values, and one byte of padding.
        plain = c.head_dim - rotary
        return plain + 2 * rotary + math.ceil(plain / SCALED) + 1

    def _ratios(self, c: Config, length: int) -> list[int]:
        if c.has("compress_ratios") or not c.has("layer_types"):
            ratios = c.items("compress_ratios", length=length)
            for position, ratio in enumerate(ratios):
                if isinstance(ratio, bool) or ratio not in RATIOS.values():
                    raise c.error(f"compress_ratios[{position}]", f"must be 0, {SPARSE} or {HEAVY}, got {short_repr(ratio)}")
        else:
            ratios = [RATIOS[kind] for kind in c.choices("layer_types", valid_names=tuple(RATIOS), length=length)]
        return [int(ratio) for ratio in (ratios[:length] if length else ratios)]
