"""Step3, Step-3.5 and Step-3.7: factorized or gated attention, and experts.

Step3 has multi-matrix factorized attention. The others have gated attention with windows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import final

from steptime.errors import short_repr
from steptime.models import blocks
from steptime.models.blocks_vision import Tower, encoder, matrix, norm, positions, stored, tower
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.image_tokens import crops, rule
from steptime.models.model import Layer

KINDS = ("full_attention", "sliding_attention")


@final
class StepFun(Family):
    """Step3 (arXiv 2507.19427), Step-3.5-Flash and Step-3.7-Flash.

    Step-3.7 is `step3p7` of transformers. Step3 has one KV head. Its queries pass a narrow projection, a norm and a
    second matrix. It has 316B parameters without its tower and 321B with it (https://github.com/stepfun-ai/Step3). A
    config without `vision_config` gives 316B. Step-3.5 and 3.7 have norms on queries and keys, and a gate of one value per
    head. With `attention_other_setting`, window layers have more query heads. Their multi-token-prediction
    layers are counted without the copies of embedding and head in some checkpoints.
    """

    model_types = ("step3_vl", "step3_text", "step3p5", "step3p7")

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms, and a dense block or experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        return self._layer(c, index, index in self._sparse_layers(c))

    def iter_layers(self, c: Config) -> Iterator[Layer]:
        """Yield the layers; the list of layers with experts is read once.

        Args:
            c: Config of the language model.

        Returns:
            Iterator over the layers.
        """
        sparse = self._sparse_layers(c)
        return (self._layer(c, index, index in sparse) for index in range(c.depth))

    def draft(self, c: Config) -> tuple[tuple[Layer, int], ...]:
        """Return the multi-token-prediction layers: norms, a projection and a layer.

        Args:
            c: Config of the language model.

        Returns:
            Pairs of layer and count; empty without such layers.
        """
        count = c.integer("num_nextn_predict_layers", default=0, least=0)
        if count > c.depth:
            raise c.error("num_nextn_predict_layers", f"must be at most the {c.depth} layers, got {count}")
        sparse = self._sparse_layers(c)
        layers = (self._layer(c, index, index in sparse) for index in range(c.depth, c.depth + count))
        return tuple(Counter(blocks.multi_token(c, layer, 1)[0][0] for layer in layers).items())

    def image_tower(self, c: Config) -> Tower:
        """Return the tower, its merging convolutions of stride 2, and the projector.

        Args:
            c: Config of the whole model.

        Returns:
            The tower.
        """
        v, text = c.inner("vision_config"), c.language
        older = text.has("share_q_dim")
        width = v.integer("width", "hidden_size", default=1792 if older else 1536)
        patch, side = v.integer("patch_size", default=14), v.integer("image_size", default=728)
        patches = (side // patch) ** 2
        if not patches:
            raise v.error("image_size", f"must be at least one patch of {patch}, got {side}")
        pixels, heads = v.integer("num_channels", default=3) * patch**2, v.integer("heads", "num_attention_heads", default=16)
        if older:
            hidden, out = v.integer("intermediate_size", default=3072), v.integer("output_hidden_size", default=4096)
            convolutions, merged, extra_op = (
                ((4 * width, out), (9 * out, 2 * out)),
                2 * out,
                stored(v, "class_embedding", width),
            )
        else:
            hidden = int(width * v.number("mlp_ratio", default=8960 / 1536))
            convolutions, merged = ((9 * width, 2 * width), (9 * 2 * width, 4 * width)), 4 * width
            extra_op = norm(v, "pre_norm", width)

        layer, bias = encoder(v, width, hidden, heads), c.flag("projector_bias", default=older)

        # The newer tower scales the output of each block by a vector.
        if not older:
            layer = replace(layer, ops=(*layer.ops, stored(v, "layer scales", 2 * width)))
        stem = (
            matrix(v, "patch_embedding", pixels, width, bias=older, term="patches"),
            positions(v, (patches + older) * width, width),
            extra_op,
            *(matrix(v, f"downsampler{i}", *sizes, share=4.0**-i, term="merger") for i, sizes in enumerate(convolutions, 1)),
            matrix(v, "projector", merged, text.width, bias=bias, share=1 / 16, term="merger"),
        )
        settings = "crops of 504 pixels, as in the processor of transformers"
        cuts = rule(crops, side=side, crop=504, patch=patch, settings=settings)
        layers = ((layer, v.integer("layers", "num_hidden_layers")),)

        return tower(v, "image", cuts, width=width, heads=heads, layers=layers, stem=stem)

    def _layer(self, c: Config, index: int, sparse: bool) -> Layer:
        module = f"layers.{index}"
        if c.has("share_q_dim"):
            attention = self._factorised(c, f"{module}.self_attn")
        else:
            attention = self._gated(c, f"{module}.self_attn", local=self._is_local(c, index))
        if not sparse:
            return blocks.decoder(c, attention, blocks.gated(c, f"{module}.mlp"))

        shared = c.integer("share_expert_dim", "share_expert_dims", default=0, least=0)
        experts = blocks.experts(
            c,
            f"{module}.moe",
            c.integer("moe_intermediate_size"),
            count=c.integer("moe_num_experts", "n_routed_experts", "num_experts"),
            active=c.integer("moe_top_k", "num_experts_per_tok"),
        )
        if shared:
            experts += blocks.gated(c, f"{module}.share_expert", shared, term="shared experts")
        return blocks.decoder(c, attention, experts)

    def _factorised(self, c: Config, module: str) -> blocks.Block:
        narrow = c.integer("share_q_dim")
        kv_heads = c.integer("num_attention_groups", default=1)
        block = blocks.grouped_query(c, module, kv_heads=kv_heads)
        queries = (
            blocks.linear(c, f"{module}.q_proj", c.width, narrow, split="replicated"),
            blocks.norm(c, "inter_norm", narrow),
            blocks.linear(c, f"{module}.wq", narrow, c.heads * c.head_dim, split_limit=c.heads),
        )
        return blocks.Block(queries + block.ops[1:], block.attention)

    def _gated(self, c: Config, module: str, *, local: bool) -> blocks.Block:
        heads, kv_heads = c.heads, c.integer("num_attention_groups", "num_key_value_heads")
        if local and c.has("attention_other_setting"):
            window_heads = c.inner("attention_other_setting")
            heads = window_heads.integer("num_attention_heads")
            kv_heads = window_heads.integer("num_attention_groups", default=kv_heads)
        # transformers writes the heads of window layers at the top.
        elif local:
            heads = c.integer("num_sliding_attention_heads", default=heads)
        if heads % kv_heads:
            raise c.error("num_attention_groups", f"must divide the {heads} query heads, got {kv_heads}")
        bias, window = c.flag("attention_bias", default=False), c.integer("sliding_window") if local else math.inf
        block = blocks.grouped_query(c, module, heads=heads, kv_heads=kv_heads, bias=bias, qk_norm=c.head_dim, window=window)
        if c.flag("use_head_wise_attn_gate", default=True):
            block += blocks.linear(c, f"{module}.g_proj", c.width, heads, split_limit=heads)
        return block

    def _is_local(self, c: Config, index: int) -> bool:
        if not c.has("layer_types"):
            return False
        kinds = c.choices("layer_types", valid_names=KINDS, length=min(index + 1, c.depth))
        return index < len(kinds) and kinds[index] == "sliding_attention"

    def _sparse_layers(self, c: Config) -> frozenset[int]:
        if c.has("moe_layers_enum"):
            listed = c.raw("moe_layers_enum")
            # The field is a text such as "3,4,5", or a list.
            items = (
                [item for item in listed.split(",") if item.strip()] if isinstance(listed, str) else c.items("moe_layers_enum")
            )
            if not all(isinstance(item, int) or (isinstance(item, str) and item.strip().isdecimal()) for item in items):
                raise c.error("moe_layers_enum", f"must list layers, such as '3,4,5', got {short_repr(listed)}")
            return frozenset(int(item) for item in items)
        return frozenset(index for index in range(c.depth) if blocks.is_sparse(c, index, dense=3))
