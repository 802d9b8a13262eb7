"""Grouped-query attention with shared and routed experts.

Models: EXAONE MoE, Hunyuan V3, Solar Open, dots.llm1, Trinity, Laguna and others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer, Op

SANDWICH: Final = ("post_attention_norm", "post_mlp_norm")
COUNT: Final = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
SHARED: Final = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")


@dataclass(frozen=True)
class Kind:
    """The parts in which one of these models differs from the plain layer.

    gated: whether attention has a gate per value, or per head (Laguna).
    """

    qk_norm: bool = True
    sinks: bool = False
    sandwich: bool = False
    gated: bool = False
    gate_bias: bool = False
    balance: bool = False
    output_bias: bool = True


KINDS: Final = {
    "exaone_moe": Kind(),
    "hy_v3": Kind(),
    "dots1": Kind(),
    "mellum": Kind(),
    "solar_open": Kind(qk_norm=False, output_bias=False),
    "aria_text": Kind(qk_norm=False),
    "flint": Kind(sinks=True),
    "kolibri1": Kind(sandwich=True),
    "afmoe": Kind(sandwich=True, gated=True, balance=True),
    "beam": Kind(sandwich=True, gated=True, gate_bias=True),
    "bailing_moe": Kind(qk_norm=False),
    "bailing_moe_v2": Kind(),
    "laguna": Kind(gated=True, balance=True),
}


@final
class ExpertsBeside(Family):
    """Grouped-query attention with shared and routed experts, in several variants.

    Models: EXAONE MoE, Hunyuan V3, dots.llm1 (arXiv 2506.05767), Solar Open, Mellum, Trinity (`afmoe`), Laguna, Ling, Aria.
    `KINDS` lists the parts in which they differ: norms on queries and keys, norms after the blocks, sinks, a gate on the
    attention output, and biases that balance the experts. These biases are counted if the checkpoint stores them as
    parameters.
    """

    model_types = tuple(KINDS)

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, norms, and a dense block or experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        model_type = c.text("model_type")
        if model_type not in KINDS:
            raise c.error("model_type", f"must be one of {', '.join(KINDS)}, got {model_type!r}")
        kind, module = KINDS[model_type], f"layers.{index}"
        heads = blocks.entry(c, "num_attention_heads_per_layer", index, default=c.heads)
        if heads % c.kv_heads:
            raise c.error("num_attention_heads_per_layer", f"must be multiples of the {c.kv_heads} KV heads, got {heads}")
        bias = c.flag("attention_bias", "use_qkv_bias", default=False)
        block = blocks.grouped_query(
            c,
            f"{module}.self_attn",
            heads=heads,
            bias=bias,
            output_bias=c.flag("use_bias", default=bias) and kind.output_bias,
            qk_norm=c.head_dim if c.flag("use_qk_norm", default=kind.qk_norm) else 0,
            window=blocks.window(c, index, period=4),
        )
        if kind.gated:
            block += self._gate(c, f"{module}.self_attn", heads)
        if kind.gate_bias:
            block += blocks.small(c, "gate_bias", heads, split="group")
        if kind.sinks:
            block += blocks.small(c, "sinks", heads)
        norms = (*blocks.PRE, *SANDWICH) if kind.sandwich else blocks.PRE

        return blocks.decoder(c, block, self._feed_forward(c, f"{module}.mlp", index, kind), norms=norms)

    def _gate(self, c: Config, module: str, heads: int) -> Op:
        # Only Laguna has a gate per head; the others have one per value.
        wide = c.raw("gating", default="per-head") not in (True, "per-head") or c.text("model_type") != "laguna"
        outputs = heads * c.head_dim if wide else heads
        return blocks.linear(c, f"{module}.gate_proj", c.width, outputs, split_limit=heads)

    def _feed_forward(self, c: Config, module: str, index: int, kind: Kind) -> blocks.Block:
        bias = c.flag("mlp_bias", default=False)
        if not self._is_sparse(c, index):
            return blocks.gated(c, module, c.integer("intermediate_size"), bias=bias)
        hidden = c.integer("moe_intermediate_size", "intermediate_size")
        count = c.integer(*COUNT)
        shared = c.integer("shared_expert_intermediate_size", default=hidden * c.integer(*SHARED, default=0, least=0), least=0)
        block = blocks.shared_and_routed(
            c,
            module,
            hidden,
            count=count,
            active=c.integer("num_experts_per_tok", "moe_topk"),
            shared=shared,
            shared_bias=bias,
            groups=blocks.expert_groups(c),
        )

        return block + blocks.small(c, "balance", count, term="experts") if kind.balance else block

    def _is_sparse(self, c: Config, index: int) -> bool:
        dense_layers = c.indices("mlp_only_layers", default=())
        # Configs list dense layers, or give their number at the start.
        if index in dense_layers or index < c.integer("num_dense_layers", default=0, least=0):
            return False
        return blocks.is_sparse(c, index) and (index + 1) % c.integer("decoder_sparse_step", default=1) == 0
