"""Falcon-H1 and Bamba: Mamba-2 with attention, and gated feed-forward blocks.

In Falcon-H1 both run in parallel in every layer. In Bamba each layer has one of them, mostly Mamba-2.
"""

from __future__ import annotations

from typing import final

from steptime.models import blocks, blocks_state_space
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer

LAYER_TYPES = ("mamba", "attention", "linear_attention", "full_attention")


@final
class MambaBeside(Family):
    """Falcon-H1 (arXiv 2507.22448) and Bamba.

    In Falcon-H1 both mixers read the same norm in every layer. In Bamba each layer has one mixer.
    """

    model_types = ("falcon_h1", "bamba")

    def layer(self, c: Config, index: int) -> Layer:
        """Return Mamba-2, attention or both, two norms, and a gated feed-forward block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, parallel = f"layers.{index}", c.text("model_type", default="bamba") == "falcon_h1"
        full = parallel or self._is_full_attention(c, index)
        block = blocks.Block((blocks.norm(c, "input_norm", c.width), blocks.norm(c, "pre_ff_norm", c.width)))
        if parallel or not full:
            block += self._mamba(c, f"{module}.mamba", parallel=parallel)
        if full:
            bias = c.flag("attention_bias", default=False)
            block += blocks.grouped_query(
                c,
                f"{module}.self_attn",
                heads=c.heads,
                kv_heads=c.kv_heads,
                head_dim=c.head_dim,
                bias=bias,
                output_bias=bias,
            )

        bias = c.flag("mlp_bias", default=False)
        block += blocks.gated(c, f"{module}.feed_forward", c.integer("intermediate_size"), bias=bias)
        name = "Mamba-2 and attention" if parallel else "attention" if full else "Mamba-2"

        return Layer(name=f"{name} + feed-forward", ops=block.ops, attention=block.attention)

    def _mamba(self, c: Config, module: str, *, parallel: bool) -> blocks.Block:
        inner = c.integer("mamba_d_ssm", default=c.integer("mamba_expand", default=2) * c.width)
        heads = c.integer("mamba_n_heads", default=128)
        if inner % heads:
            raise c.error("mamba_n_heads", f"must divide the {inner} inner values, got {heads}")

        # The config may state the size of a head, which must then agree with the others.
        if c.raw("mamba_d_head", default="auto") != "auto" and c.integer("mamba_d_head") * heads != inner:
            problem = f"times {heads} heads must be the {inner} inner values, got {c.integer('mamba_d_head')}"
            raise c.error("mamba_d_head", problem)

        bias = c.flag("mamba_proj_bias", default=False)

        return blocks_state_space.mamba2(
            c,
            module,
            heads=heads,
            head_dim=inner // heads,
            groups=c.integer("mamba_n_groups", default=1),
            state_dim=c.integer("mamba_d_state", default=256),
            kernel=c.integer("mamba_d_conv", default=4),
            conv_bias=c.flag("mamba_conv_bias", default=True),
            bias=bias,
            output_bias=c.flag("projectors_bias", default=False) if parallel else bias,
            gated_norm=not parallel or c.flag("mamba_rms_norm", default=False),
        )

    def _is_full_attention(self, c: Config, index: int) -> bool:
        if c.has("layer_types") or c.has("layers_block_type"):
            kinds = c.choices("layer_types", "layers_block_type", valid_names=LAYER_TYPES, length=index + 1)
            return kinds[index] in ("attention", "full_attention")
        return index in c.indices("attn_layer_indices", default=())
