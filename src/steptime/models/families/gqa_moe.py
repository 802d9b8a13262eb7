"""Grouped-query attention with routed experts, and perhaps shared experts or dense blocks in parallel.

Models: Grok, DBRX, Arctic, gpt-oss, ERNIE 4.5, Hunyuan, MiMo-V2-Flash, and more models with shared experts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, final

from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.family_registry import Family
from steptime.models.model import Layer, Op

GROK_NORMS = ("pre_attention_norm", "post_attention_norm", "pre_moe_norm", "post_moe_norm")


@final
class Grok(Family):
    """Grok-1 (github.com/xai-org/grok-1) and Grok-2 (`grok.py` of SGLang).

    The published config of Grok-2 has the model_type "git", which is another model; so its `architectures` decide.
    """

    model_types = ("grok-1",)
    architectures = ("Grok1ForCausalLM", "Grok1ModelForCausalLM")

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, four norms and experts, with a dense block if `residual_moe`.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        attention = blocks.grouped_query(c, f"layers.{index}.self_attn")
        hidden, count = c.integer("intermediate_size"), c.integer("num_local_experts", "num_experts")
        expert_width = c.integer("moe_intermediate_size", default=hidden)
        feed_forward = blocks.experts(c, f"layers.{index}.block_sparse_moe", expert_width, count=count)
        if c.flag("residual_moe", default=False):
            feed_forward += blocks.gated(c, f"layers.{index}.mlp", hidden)
        return blocks.decoder(c, attention, feed_forward, norms=GROK_NORMS)


@final
class Dbrx(Family):
    """DBRX (Databricks, 2024-03)."""

    model_types = ("dbrx",)

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms and experts; their sizes are in nested configs.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, ffn = f"blocks.{index}", c.inner("ffn_config")
        kv_heads = c.inner("attn_config").integer("kv_n_heads")
        attention = blocks.grouped_query(c, f"{module}.norm_attn_norm.attn", kv_heads=kv_heads)
        hidden, count, active = (ffn.integer(name) for name in ("ffn_hidden_size", "moe_num_experts", "moe_top_k"))
        return blocks.decoder(c, attention, blocks.experts(c, f"{module}.ffn", hidden, count=count, active=active))


@final
class Arctic(Family):
    """Arctic (Snowflake, 2024-04; `modeling_arctic.py` of its checkpoint).

    The dense block is as wide as the model.
    """

    model_types = ("arctic",)

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, and a dense block or experts with a dense residual block.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        bias, hidden = c.flag("attention_bias", default=False), c.integer("intermediate_size")
        attention = blocks.grouped_query(c, f"layers.{index}.self_attn", bias=bias)
        module, period = f"layers.{index}.block_sparse_moe", c.integer("moe_layer_frequency", default=2)

        # Only every `period`th layer has experts.
        if (index + 1) % period:
            return blocks.decoder(c, attention, blocks.gated(c, f"{module}.mlp", hidden))
        experts = blocks.experts(c, module, hidden, count=c.integer("num_local_experts"))

        # With this flag a dense block runs together with the experts, with its own norm.
        if not c.flag("parallel_attn_mlp_res", default=False):
            return blocks.decoder(c, attention, experts)
        residual = blocks.gated(c, f"layers.{index}.residual_mlp", c.width)

        return blocks.decoder(c, attention, experts + residual, norms=(*blocks.PRE, "residual_norm"))


@final
class GptOss(Family):
    """gpt-oss-20b and -120b (OpenAI, model card, 2025-08)."""

    model_types = ("gpt_oss",)

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention with one sink per head, two norms, and experts with biases.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module = f"layers.{index}"

        # Without `layer_types`, even layers slide, as in the reference.
        kind = c.layer_kind(index, ("full_attention", "sliding_attention"))
        local = kind == "sliding_attention" if kind else index % 2 == 0
        window = c.integer("sliding_window") if local else math.inf
        attention = blocks.Block((blocks.small(c, "sinks", c.heads),))
        attention += blocks.grouped_query(c, f"{module}.self_attn", bias=c.flag("attention_bias", default=True), window=window)
        experts = blocks.experts(
            c,
            f"{module}.mlp",
            c.integer("intermediate_size"),
            count=c.integer("num_local_experts"),
            active=c.integer("num_experts_per_tok", "experts_per_token"),
            bias=True,
            router_bias=True,
        )
        return blocks.decoder(c, attention, experts)


@final
class Ernie(Family):
    """ERNIE 4.5, dense and with experts (Baidu, ERNIE 4.5 technical report, 2025)."""

    model_types = ("ernie4_5", "ernie4_5_moe")
    default_kind = "ernie4_5_moe"
    tied_kinds = model_types

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms, and a feed-forward block or experts.

        The router has a bias that balances the experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        bias, module = c.flag("use_bias", default=False), f"layers.{index}.mlp"
        attention = blocks.grouped_query(c, f"layers.{index}.self_attn", bias=bias)
        if not self._is_sparse(c, index):
            return blocks.decoder(c, attention, blocks.gated(c, module, bias=bias))
        hidden, count = c.integer("moe_intermediate_size"), c.integer("moe_num_experts")
        active, shared = c.integer("moe_k"), hidden * c.integer("moe_num_shared_experts", default=0, least=0)
        experts = blocks.shared_and_routed(c, module, hidden, count=count, active=active, shared=shared, shared_bias=bias)
        experts += blocks.small(c, "e_score_correction_bias", count, term="experts")

        return blocks.decoder(c, attention, experts)

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return embedding, final norm and head, which has a bias if the matrices have.

        Args:
            c: Config of the language model.

        Returns:
            The operators.
        """
        moe = self.kind(c) == "ernie4_5_moe"
        return *super().stem(c)[:2], blocks.head(c, bias=moe and c.flag("use_bias", default=False))

    def _is_sparse(self, c: Config, index: int) -> bool:
        if self.kind(c) == "ernie4_5":
            return False
        last = c.raw("moe_layer_end_index", default=-1)
        # -1 means the last layer.
        last = c.depth - 1 if last == -1 else c.integer("moe_layer_end_index", least=0)
        first = c.integer("moe_layer_start_index", default=1, least=0)
        return first <= index <= last and (index + 1) % c.integer("moe_layer_interval", default=1) == 0


@final
class Hunyuan(Family):
    """Hunyuan-Large (arXiv 2411.02265) and Hunyuan-A13B.

    With cross-layer attention, only each `cla_share_factor`th layer has keys and values; the others read its cache.
    Heads of Hunyuan-Large have width / heads values, those of A13B have `attention_head_dim`.
    """

    model_types = ("hunyuan", "hunyuan_v1_moe")
    default_kind = "hunyuan_v1_moe"

    def layer(self, c: Config, index: int) -> Layer:
        """Return attention, two norms, shared and routed experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        large = self.kind(c) == "hunyuan"
        head_dim = c.head_dim if large else c.integer("attention_head_dim", "head_dim", default=c.head_dim)
        shared_cache = c.flag("use_cla", default=False) and index % c.integer("cla_share_factor", default=1) != 0
        bias = c.flag("attention_bias", default=False)
        attention = blocks.grouped_query(
            c,
            f"layers.{index}.self_attn",
            head_dim=head_dim,
            bias=bias,
            qk_norm=head_dim if c.flag("use_qk_norm", default=True) else 0,
            stored=not shared_cache,
        )

        # The config gives one number, or a list with one per layer.
        hidden = blocks.entry(c, "intermediate_size", index)
        experts = blocks.shared_and_routed(
            c,
            f"layers.{index}.mlp",
            blocks.entry(c, "moe_intermediate_size", index, default=hidden),
            count=blocks.entry(c, "num_experts", index),
            active=blocks.entry(c, "moe_topk", index),
            shared=hidden * blocks.entry(c, "num_shared_expert", index, default=1),
            shared_module="shared_mlp",
        )

        return blocks.decoder(c, attention, experts)


@final
class MiMoV2(Family):
    """MiMo-V2-Flash: `mimo_v2_flash` of transformers, 309B parameters and 15B active.

    Paper: arXiv 2601.02780. Window layers have another number of KV heads, and one sink per head. The config has no
    multi-token-prediction layers, although the checkpoint has some; they are not counted.
    """

    model_types = ("mimo_v2_flash",)

    def layer(self, c: Config, index: int) -> Layer:
        """Return full or window attention, two norms, and a dense block or experts.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer.
        """
        module, local, sparse = f"layers.{index}", self._is_local(c, index), self._is_sparse(c, index)
        attention = self._attention(c, f"{module}.self_attn", local=local)
        if sparse:
            feed_forward = blocks.shared_and_routed(c, f"{module}.mlp", groups=blocks.expert_groups(c))
        else:
            feed_forward = blocks.gated(c, f"{module}.mlp")
        return blocks.decoder(c, attention, feed_forward)

    def _attention(self, c: Config, module: str, *, local: bool) -> blocks.Block:
        heads = c.integer("swa_num_attention_heads", default=c.heads) if local else c.heads
        kv_heads = c.integer("swa_num_key_value_heads", default=2 * c.kv_heads) if local else c.kv_heads
        if heads % kv_heads:
            raise c.error("swa_num_key_value_heads", f"must divide the {heads} query heads, got {kv_heads}")
        block = blocks.grouped_query(
            c,
            module,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=c.integer("swa_head_dim", default=c.head_dim) if local else c.head_dim,
            value_dim=c.integer("swa_v_head_dim", "v_head_dim") if local else c.integer("v_head_dim"),
            bias=c.flag("attention_bias", default=False),
            output_bias=False,
            window=c.integer("sliding_window", "sliding_window_size") if local else math.inf,
        )
        name = "add_swa_attention_sink_bias" if local else "add_full_attention_sink_bias"

        return block + blocks.small(c, "sinks", heads) if c.flag(name, default=local) else block

    def _is_local(self, c: Config, index: int) -> bool:
        if kind := c.layer_kind(index, ("full_attention", "sliding_attention")):
            return kind == "sliding_attention"
        if c.has("hybrid_layer_pattern"):
            return c.marked("hybrid_layer_pattern", index)
        # Without a list: layer 0 and every sixth layer have full attention.
        return index > 0 and (index + 1) % 6 != 0

    def _is_sparse(self, c: Config, index: int) -> bool:
        if c.has("moe_layer_freq") and not c.has("mlp_layer_types"):
            return c.marked("moe_layer_freq", index)
        return blocks.is_sparse(c, index, dense=1)


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
            return blocks.gated(c, module, bias=bias)
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
