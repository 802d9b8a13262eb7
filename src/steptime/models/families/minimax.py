"""MiniMax-Text-01, M2 and M3: experts, with three kinds of attention.

They are lightning attention, grouped-query attention, and attention to blocks that an indexer selects.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

from steptime.models import blocks, blocks_state_space
from steptime.models.blocks_vision import Tower, encoder, matrix, norm, tower
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.image_tokens import resized, rule
from steptime.models.model import Attention, Layer

KINDS = ("linear_attention", "full_attention")


@final
class MiniMaxLightning(Family):
    r"""MiniMax-Text-01 (arXiv 2501.08313): `minimax` of transformers.

    A lightning layer keeps $d \times d$ values per head, in FP32 as in MiniMax's own code. A token decays them, adds an
    outer product and multiplies them by its query.
    """

    model_types = ("minimax_text_01", "minimax")

    def layer(self, c: Config, index: int) -> Layer:
        """Return lightning or softmax attention, two norms, and experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, full = f"layers.{index}", self._is_full_attention(c, index)
        mixer = blocks.grouped_query(c, f"{module}.self_attn") if full else self._lightning(c, f"{module}.self_attn")
        experts = blocks.shared_and_routed(
            c,
            f"{module}.block_sparse_moe",
            c.integer("intermediate_size"),
            count=c.integer("num_local_experts"),
            shared=c.integer("shared_intermediate_size", default=0, least=0),
        )

        return blocks.decoder(c, mixer, experts, mixer="attention" if full else "lightning attention")

    def _lightning(self, c: Config, module: str) -> blocks.Block:
        inner = c.heads * c.head_dim
        ops = (
            blocks.linear(c, f"{module}.qkv_proj", c.width, 3 * inner, split_limit=c.heads),
            blocks.linear(c, f"{module}.output_gate", c.width, inner, split_limit=c.heads),
            blocks.norm(c, "state_norm", inner),
            blocks.linear(c, f"{module}.out_proj", inner, c.width),
        )
        state = blocks_state_space.state(
            c,
            heads=c.heads,
            values=inner * c.head_dim,
            flops_per_value=blocks_state_space.DECAY + blocks_state_space.OUTER + blocks_state_space.READOUT,
        )
        # The norm over all heads needs an all-reduce: vLLM 0.19, linear_attn.py, MiniMaxText01RMSNormTP.
        return blocks.Block(ops, (replace(state, summed=1.0),))

    def _is_full_attention(self, c: Config, index: int) -> bool:
        if kind := c.layer_kind(index, KINDS):
            return kind == "full_attention"
        # 0 is lightning, 1 is softmax.
        return c.marked("attn_type_list", index)


@final
class MiniMaxM2(Family):
    """MiniMax-M2 to M2.7.

    Queries and keys are normalized over all heads together.
    """

    model_types = ("minimax_m2",)

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms and experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, qk_norm = f"layers.{index}", c.heads * c.head_dim if c.flag("use_qk_norm", default=True) else 0
        attention = blocks.grouped_query(c, f"{module}.self_attn", qk_norm=qk_norm)
        hidden, count = c.integer("intermediate_size"), c.integer("num_local_experts")
        experts = blocks.experts(c, f"{module}.block_sparse_moe", hidden, count=count)
        return blocks.decoder(c, attention, experts)


@final
class MiniMaxM3(Family):
    """MiniMax-M3: `minimax_m3_vl` of transformers, with the text part `minimax_m3`.

    In sparse layers an indexer of a few heads scores every cached token. It takes the best score in each block of 128
    and keeps the best blocks for each KV group, always with the last one. It caches one key per token in the format of
    the KV cache. The multi-token-prediction layer is assumed to equal the last layer of the model, after two norms and
    a projection.
    """

    model_types = ("minimax_m3", "minimax_m3_vl", "minimax_m3_vl_text")

    def layer(self, c: Config, index: int) -> Layer:
        """Return full or block-sparse attention, two norms, and a dense block or experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module = f"layers.{index}"
        indexed, sparse = self._is_indexed(c, index), self._is_sparse(c, index)
        block = blocks.Block((blocks.norm(c, "input_norm", c.width), blocks.norm(c, "post_norm", c.width)))
        block += self._attention(c, f"{module}.self_attn", indexed=indexed)
        if sparse:
            block += self._experts(c, f"{module}.block_sparse_moe")
        else:
            block += blocks.gated(c, f"{module}.mlp", c.integer("dense_intermediate_size"))
        name = f"{'block-sparse attention' if indexed else 'attention'} + {'experts' if sparse else 'feed-forward'}"
        return Layer(name=name, ops=block.ops, attention=block.attention)

    def draft(self, c: Config) -> tuple[tuple[Layer, int], ...]:
        """Return the multi-token-prediction layers.

        Args:
            c: Config of the language model.

        Returns:
            Pairs of layer and count; empty without such layers.
        """
        count = c.integer("num_nextn_predict_layers", "num_mtp_modules", default=0, least=0)
        return blocks.multi_token(c, self.layer(c, c.depth - 1), count)

    def image_tower(self, c: Config) -> Tower:
        """Return the tower and the projector, which projects patches and then merges four.

        Args:
            c: Config of the whole model.

        Returns:
            The tower.
        """
        v = c.inner("vision_config")
        merging = v.inner("img_token_compression_config") if v.has("img_token_compression_config") else v
        width, text, heads = v.integer("hidden_size"), c.language.width, v.integer("num_attention_heads", default=16)
        patch, merge = v.integer("patch_size", default=14), merging.integer("spatial_merge_size", default=2)
        pixels = v.integer("num_channels", default=3) * merging.integer("temporal_patch_size", default=2) * patch**2
        hidden, share = c.integer("projector_hidden_size", default=text), merge**-2
        stem = (
            matrix(v, "patch_embedding", pixels, width, bias=False, term="patches"),
            norm(v, "pre_norm", width),
            matrix(v, "projector_up_proj", width, hidden, term="merger"),
            matrix(v, "projector_down_proj", hidden, text, term="merger"),
            matrix(v, "merger_up_proj", text * merge**2, hidden, share=share, term="merger"),
            matrix(v, "merger_down_proj", hidden, text, share=share, term="merger"),
        )
        settings = "3,136 to 451,584 pixels, as in the processor of transformers"
        cuts = rule(resized, patch=patch, merge=merge, min_pixels=4 * 28**2, max_pixels=672**2, settings=settings)
        layers = ((encoder(v, width, v.integer("intermediate_size"), heads), v.integer("num_hidden_layers")),)

        return tower(v, "image", cuts, width=width, heads=heads, layers=layers, stem=stem)

    def _attention(self, c: Config, module: str, *, indexed: bool) -> blocks.Block:
        block = blocks.grouped_query(c, module, qk_norm=c.head_dim if c.flag("use_qk_norm", default=True) else 0)
        if not indexed:
            return block

        # transformers writes these fields at the top.
        s = c.inner("sparse_attention_config") if c.has("sparse_attention_config") else c
        heads, dim = s.integer("sparse_num_index_heads", "index_n_heads"), s.integer("sparse_index_dim", "index_head_dim")
        count = s.integer("sparse_topk_blocks", "index_topk_blocks")
        selected = count * s.integer("sparse_block_size", "index_block_size")
        main = replace(block.attention[0], selected=selected)
        ops = (
            blocks.linear(c, f"{module}.index_q_proj", c.width, heads * dim, split="replicated"),
            blocks.linear(c, f"{module}.index_k_proj", c.width, dim, split="replicated"),
            blocks.norm(c, "index_q_norm", heads * dim, weights=dim),
            blocks.norm(c, "index_k_norm", dim),
        )
        index = Attention(
            name="indexer",
            query_values=heads * dim,
            kv_bytes=dim * c.kv_format.bytes,
            flops_per_pair_decode=2 * heads * dim,
            flops_per_pair_prefill=2 * heads * dim,
            heads=heads,
            arithmetic=c.kv_format.arithmetic,
        )

        return blocks.Block(block.ops + ops, (main, index))

    def _experts(self, c: Config, module: str) -> blocks.Block:
        hidden = c.integer("moe_intermediate_size", "intermediate_size")
        block = blocks.shared_and_routed(
            c,
            module,
            hidden,
            count=c.integer("num_local_experts"),
            shared=c.integer("n_shared_experts", default=1, least=0) * c.integer("shared_intermediate_size", default=hidden),
        )
        # The checkpoint names the matrices of experts w1 to w3, and its patterns use these names.
        stored = c.weight_format(f"{module}.experts.0.w1")
        return blocks.with_expert_format(block, stored)

    def _is_indexed(self, c: Config, index: int) -> bool:
        if not c.has("sparse_attention_config"):
            kinds = ("full_attention", "minimax_m3_sparse")
            listed = c.choices("layer_types", valid_names=kinds, length=index + 1) if c.has("layer_types") else None
            return listed is not None and listed[index] == "minimax_m3_sparse"
        s = c.inner("sparse_attention_config")
        return s.flag("use_sparse_attention", default=True) and s.marked("sparse_attention_freq", index)

    def _is_sparse(self, c: Config, index: int) -> bool:
        if c.has("mlp_layer_types") or not c.has("moe_layer_freq"):
            return blocks.is_sparse(c, index)
        return c.marked("moe_layer_freq", index)
