r"""Models: what a forward pass does, independent of any chip.

A `Model` is layers and a stem (embedding, final norm, head, multi-token prediction). A `Layer` is matrix multiplies and
other operators with weights (`Op`) and token mixers that read a cache (`Attention`). All counts are exact integers in
parameters, FLOPs (a multiply and an add are two) and values; bytes come from the number format.

With $T$ rows of tokens, an `Op` costs $2 \cdot$ weights $\cdot T$ FLOPs and reads its weights once. An `Attention` of a
query at context $L$ costs `flops_per_pair` for each cached token that it reads, and reads $\kappa$ bytes of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from steptime.hardware.number_formats import Format, number_format
from steptime.number_checks import Number
from steptime.result_base import Result
from steptime.units import show

if TYPE_CHECKING:
    from steptime.models.blocks_vision import Tower
    from steptime.models.checkpoint_summary import CheckpointSummary
    from steptime.models.multimodal_inputs import Media

Rows = Literal["tokens", "outputs", "routed", "lookup", "none"]
"""What the rows of an operator's input are: every token of the step; tokens whose logits are needed; token-expert pairs
of routed experts; rows looked up in a table, of which only those are read; none: stored but not run in a plain step."""

Split = Literal["group", "replicated", "experts"]
"""Which chips share an operator's weights: group (all chips of an attention group, at most `split_limit` ways, such as the
number of heads), replicated (every chip of the group has them), experts (expert parallel)."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Op(Result):
    """An operator with weights.

    weights [parameters] of one instance (one expert for routed experts); flops_per_row [FLOP]; `inputs` and `outputs`
    [values per row] are what it reads and writes besides weights. Routed experts have `experts` instances, `active` of
    which each token uses, and each is `columns` wide inside (0: not known). `format` is how the weights are stored.
    An operator that runs with the weights of an earlier one, as in a block that several layers share, has `stored=False`:
    it reads them again, and does not count them again.
    """

    name: str
    term: str
    weights: float
    flops_per_row: float
    format: Format
    rows: Rows = "tokens"
    split: Split = "group"
    split_limit: float = math.inf
    inputs: float = 0.0
    outputs: float = 0.0
    experts: int = 1
    active: float = 1
    expert_groups: int = 1
    active_groups: int = 1
    columns: int = 0
    stored: bool = True

    @property
    def total_weights(self) -> float:
        """All stored parameters."""
        return self.weights * self.experts * self.stored

    @property
    def active_weights(self) -> float:
        """Parameters that one token uses."""
        return self.weights * self.active * self.stored

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return its parameters and their format."""
        multiplier = f"{self.experts} x " if self.experts > 1 else ""
        return f"Op {self.name} ({self.term}): {multiplier}{show(self.weights)} parameters in {self.format.name}", {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    r"""A token mixer that reads a cache.

    A query at context $L$ reads $\min(L/s, w, k)$ entries, where $s$ = `stride` tokens share an entry, $w$ = `window`
    bounds what is kept and $k$ = `selected` what is read. Each entry is `kv_bytes` [B]; `kv_shards` is how often tensor
    parallelism can divide it (KV heads; 1 for a latent). FLOPs per entry read differ where decode works on the latent
    and prefill on expanded heads; `expand_flops` [FLOP per cached token] is what expanding a cached prefix costs.
    `query_values` and `output_values` [values per token] are what chips that divide a context exchange in decode.
    `state_bytes` [B per sequence] is read and written at every step by mixers with a state instead of a cache.
    `summed` [values per token] is what chips that divide its heads add up before it: sums of squares, of norms over all heads;
    `gathered` [values per token] what they gather instead, queries and keys one after the other.
    A layer that reuses another's cache has `stored=False`. `kv_format` names the format of entries that have one of their own.
    In a tower attention is not `causal`: each query reads all entries of its image, or `window` of them.
    """

    name: str
    kv_bytes: float = 0.0
    kv_shards: int = 1
    flops_per_pair_decode: float = 0.0
    flops_per_pair_prefill: float = 0.0
    expand_flops: float = 0.0
    window: float = math.inf
    selected: float = math.inf
    stride: float = 1.0
    state_bytes: float = 0.0
    state_flops_per_token: float = 0.0
    stored: bool = True
    causal: bool = True
    heads: int = 1
    query_values: float = 0.0
    output_values: float = 0.0
    summed: float = 0.0
    gathered: float = 0.0
    arithmetic: tuple[str, ...] = ("bf16", "fp16", "tf32", "fp32")
    kv_format: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Layer(Result):
    """One kind of layer: its operators with weights and its token mixers."""

    name: str
    ops: tuple[Op, ...]
    attention: tuple[Attention, ...] = ()

    @property
    def routed(self) -> Op | None:
        """The routed experts, if the layer has any."""
        return next((op for op in self.ops if op.rows == "routed"), None)

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return its parameters, and how many operators and mixers it has."""
        size = show(sum(op.total_weights for op in self.ops))
        return f"Layer {self.name}: {size} parameters, {len(self.ops)} operators, {len(self.attention)} token mixers", {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Where the weights lie that a config describes, and how they are stored there.

    place: Hugging Face id or local folder; "" where the config tells neither. weights, experts ("" without any) and kv: formats
    of the dense layers, of the routed experts and of the KV cache. remote_code: whether the repository brings code of its own,
    by the `auto_map` of its config, or by the source that a file of the catalogue gives where it leaves that field out.
    bytes: of all tensors of its files, exactly; 0 where no whole checkpoint lies beside the config. summary: of the files.
    """

    place: str = ""
    weights: str = ""
    experts: str = ""
    kv: str = ""
    remote_code: bool = False
    bytes: int = 0
    summary: CheckpointSummary | None = field(default=None, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Model(Result):
    """A transformer: kinds of layers with their counts, the stem around them, and where the description comes from."""

    name: str
    family: str = ""
    layers: tuple[tuple[Layer, int], ...]
    stem: tuple[Op, ...] = ()
    draft: tuple[tuple[Layer, int], ...] = ()  # multi-token-prediction layers, stored but not run in a plain step
    width: int
    vocabulary: int
    heads: int = 1
    max_context: float = math.inf
    kv_format: str = "bf16"
    kv_told: bool = False  # whether that was asked for or the checkpoint says so: else an engine may keep another
    source: Mapping[str, str] = field(default_factory=dict, hash=False)
    published: Mapping[str, Number] = field(default_factory=dict, hash=False)
    notes: tuple[str, ...] = ()
    checkpoint: Checkpoint = Checkpoint()
    towers: tuple[Tower, ...] = field(default=(), metadata={"left_out": True})  # that read images and sound for it
    media: Media | None = field(default=None, metadata={"left_out": True})  # what its prompts hold of them

    def __hash__(self) -> int:
        """Hash what tells most models apart: caches ask for it in every step, and equality decides."""
        return hash((self.name, self.kv_format, self.width, len(self.layers), self.checkpoint))

    @property
    def depth(self) -> int:
        """Number of layers."""
        return sum(count for _, count in self.layers)

    @property
    def routed(self) -> bool:
        """Whether a layer sends tokens to experts."""
        return any(layer.routed for layer, _ in self.layers)

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return its parameters, weights, cache and context."""
        growing, full = growing_kv_bytes_per_token(self), kv_bytes_per_token(self)
        cache = f"{full:,.0f} B a token in {self.kv_format}" + (
            f", {growing:,.0f} B without windows" if growing != full else ""
        )
        state = state_bytes(self)
        return f"Model {self.name}" + (f" ({self.family})" if self.family else ""), {
            "parameters": f"{show(total_parameters(self))}, {show(active_parameters(self))} for a token",
            "weights": show(weight_bytes(self), "B"),
            "layers": f"{self.depth}, {self.width:,} wide, {self.heads} heads",
            "KV cache": cache + (f", and {show(state, 'B')} of state" if state else ""),
            "context": f"{self.max_context:,.0f} tokens" if math.isfinite(self.max_context) else "no limit stated",
        }


def cache_entries(attention: Attention, context: Number) -> Number:
    """Entries that the cache of one sequence keeps at `context` [tokens]."""
    return np.minimum(context / attention.stride, attention.window)


def entries_read(attention: Attention, context: Number) -> Number:
    """Entries that one query reads at `context` [tokens]."""
    return np.minimum(cache_entries(attention, context), attention.selected)


def pairs(attention: Attention, tokens: Number, prefix: Number) -> Number:
    r"""Query-entry pairs of `tokens` queries after a cached `prefix`: $\sum_{i=1}^{n} \min((p+i)/s, w, k)$.

    Where attention is not causal, every query reads what the last one does.

    >>> from steptime.models.model import Attention, pairs
    >>> float(pairs(Attention(name="full"), 4, 0)), float(pairs(Attention(name="local", window=2), 4, 0))
    (10.0, 7.0)
    >>> float(pairs(Attention(name="patches", causal=False), 4, 0))
    16.0
    """
    if not attention.causal:
        return tokens * entries_read(attention, prefix + tokens)
    limit = np.minimum(attention.window, attention.selected)
    growing: Number = np.clip(np.floor(limit * attention.stride) - prefix, 0.0, tokens)
    flat: Number = np.where(tokens > growing, (tokens - growing) * np.where(np.isfinite(limit), limit, 0.0), 0.0)
    return (growing * prefix + growing * (growing + 1) / 2) / attention.stride + flat


def total_parameters(model: Model) -> float:
    """Stored parameters of the model itself, multi-token-prediction layers not counted."""
    return sum(n * sum(op.total_weights for op in layer.ops) for layer, n in model.layers) + sum(
        op.total_weights for op in model.stem
    )


def active_parameters(model: Model) -> float:
    """Parameters that one token uses: all but the routed experts that it is not sent to."""
    return sum(n * sum(op.active_weights for op in layer.ops) for layer, n in model.layers) + sum(
        op.active_weights for op in model.stem
    )


def draft_parameters(model: Model) -> float:
    """Parameters of the multi-token-prediction layers."""
    return sum(n * sum(op.total_weights for op in layer.ops) for layer, n in model.draft)


def weight_bytes(model: Model) -> float:
    """Bytes of all stored weights, multi-token-prediction layers not counted."""
    layers = sum(n * sum(op.total_weights * op.format.bytes for op in layer.ops) for layer, n in model.layers)
    return float(round(layers + sum(op.total_weights * op.format.bytes for op in model.stem)))


def draft_bytes(model: Model) -> float:
    """Bytes of the weights of the multi-token-prediction layers."""
    return float(round(sum(n * sum(op.total_weights * op.format.bytes for op in layer.ops) for layer, n in model.draft)))


def kv_bytes_per_token(model: Model) -> float:
    """Bytes that one more token adds to a full cache while no window is full: the figure of published tables.

    >>> from steptime.models.model import Attention, Layer, Model, kv_bytes_per_token
    >>> gqa = Layer(name="layer", ops=(), attention=(Attention(name="attention", kv_bytes=2 * 8 * 128 * 2),))
    >>> kv_bytes_per_token(Model(name="llama-3-70b", layers=((gqa, 80),), width=8192, vocabulary=128256))
    327680.0
    """
    return sum(n * layer_kv_bytes(layer) for layer, n in model.layers) * 1.0


def layer_kv_bytes(layer: Layer) -> float:
    """Bytes that one more token adds to the cache of one layer while no window is full."""
    return sum(a.kv_bytes / a.stride * a.stored for a in layer.attention)


def growing_kv_bytes_per_token(model: Model) -> float:
    """Bytes that one more token adds once every window is full."""
    return sum(
        n * a.kv_bytes / a.stride * a.stored * math.isinf(a.window) for layer, n in model.layers for a in layer.attention
    ) * 1.0  # fmt: skip


def state_bytes(model: Model) -> float:
    """Bytes of recurrent state that one sequence holds, whatever its context."""
    return sum(n * a.state_bytes for layer, n in model.layers for a in layer.attention) * 1.0


def cache_bytes(model: Model, context: Number) -> Number:
    """Bytes of cache and state that one sequence of `context` [tokens] holds."""
    return sum(
        n * (a.kv_bytes * cache_entries(a, context) * a.stored + a.state_bytes)
        for layer, n in model.layers
        for a in layer.attention
    )


def cache_bytes_read(model: Model, context: Number) -> Number:
    """Bytes of cache and state that one decode token reads at `context` [tokens]."""
    return sum(
        n * (a.kv_bytes * entries_read(a, context) + a.state_bytes) for layer, n in model.layers for a in layer.attention
    )


def matmul_flops_per_token(model: Model, *, logits: bool = True) -> float:
    """FLOPs per token in operators with weights; a prompt token needs no `logits`.

    >>> from steptime.hardware.number_formats import number_format
    >>> op = Op(name="up", term="feed-forward", weights=100, flops_per_row=200, format=number_format("bf16"))
    >>> matmul_flops_per_token(Model(name="m", layers=((Layer(name="l", ops=(op,)), 3),), width=10, vocabulary=1))
    600.0
    """
    counted = ("tokens", "routed", "outputs") if logits else ("tokens", "routed")
    layers = sum(n * op.flops_per_row * op.active for layer, n in model.layers for op in layer.ops if op.rows in counted)
    return (layers + sum(op.flops_per_row * op.active for op in model.stem if op.rows in counted)) * 1.0


def decode_flops_per_token(model: Model, context: Number) -> Number:
    """FLOPs of one decode token at `context` [tokens]: operators with weights, and attention."""
    attention = sum(
        n * (a.flops_per_pair_decode * entries_read(a, context) + a.state_flops_per_token)
        for layer, n in model.layers
        for a in layer.attention
    )
    return matmul_flops_per_token(model) + attention


def prefill_flops(model: Model, tokens: Number, prefix: Number = 0.0) -> Number:
    """FLOPs of a prompt of `tokens` after a cached `prefix`, logits of its last token only."""
    head = sum(op.flops_per_row for op in model.stem if op.rows == "outputs")
    attention = sum(
        n * (a.flops_per_pair_prefill * pairs(a, tokens, prefix) + a.expand_flops * prefix + a.state_flops_per_token * tokens)
        for layer, n in model.layers
        for a in layer.attention
    )
    return matmul_flops_per_token(model, logits=False) * tokens + attention + head


def in_format(a: Attention, now: Format, then: Format) -> Attention:
    """Return a mixer with its cache in another format than `now`."""
    return replace(a, kv_bytes=a.kv_bytes * then.bytes / now.bytes, arithmetic=then.arithmetic)


def with_kv(model: Model, format: Format) -> Model:
    """Return the model with its KV cache in another format, as when its config is read with that format.

    Caches in a format of their own keep it (most indexes of sparse attention), as buffers do.
    """
    old_format = number_format(model.kv_format)

    def with_format(a: Attention) -> Attention:
        keeps_format = a.name == "buffer" or a.kv_format or not a.kv_bytes
        return a if keeps_format else in_format(a, old_format, format)

    def changed(layers: tuple[tuple[Layer, int], ...]) -> tuple[tuple[Layer, int], ...]:
        return tuple((replace(layer, attention=tuple(map(with_format, layer.attention))), n) for layer, n in layers)

    return replace(model, layers=changed(model.layers), draft=changed(model.draft), kv_format=format.name)


STORED = ("projections", "feed-forward", "experts", "shared experts")  # terms whose weights checkpoints store in narrow formats
WIDE_ATTENTION = ("nvfp4", "mxfp4")
"""Formats whose published checkpoints of models with experts leave attention in bf16.

nvidia/MiniMax-M2.7-NVFP4 (recipe in https://github.com/NVIDIA/Model-Optimizer/pull/2437), the -NVFP4 of Kimi-K2 (pull 655), and
amd/DeepSeek-R1-0528-MXFP4 (its card: exclude_layers "*self_attn*"). nvidia/DeepSeek-R1-0528-FP4-v2 narrows its output
projections too, which is left out here.
"""


def with_formats(model: Model, *, weights: Format | None = None, experts: Format | None = None) -> Model:
    """Return the model with its weights stored in other formats: routed experts in `experts`, all else in `weights`.

    Embeddings, head, norms and routers keep their own format, as engines keep them. Projections of attention are in bf16 beside
    experts where `weights` is of `WIDE_ATTENTION`.
    """
    attention = weights
    if weights is not None and weights.name in WIDE_ATTENTION and model.routed:
        attention = number_format("bf16")

    def stored(op: Op) -> Op:
        if op.name == "router" or op.term not in STORED:
            return op
        new = experts if op.rows == "routed" else attention if op.term == "projections" else weights
        return op if new is None or new.name == op.format.name else replace(op, format=new)  # its own scales stay

    def changed(layers: tuple[tuple[Layer, int], ...]) -> tuple[tuple[Layer, int], ...]:
        return tuple((replace(layer, ops=tuple(stored(op) for op in layer.ops)), n) for layer, n in layers)

    return replace(model, layers=changed(model.layers), draft=changed(model.draft))


def stored_formats(model: Model) -> tuple[str, str]:
    """Return the names of the formats that hold most of the dense layers and of the routed experts ("" without any).

    Embeddings, head, norms and routers are left out, as engines leave them as they are.
    """
    dense: dict[str, float] = {}
    routed: dict[str, float] = {}
    for layer, n in model.layers:
        for op in layer.ops:
            if op.term in STORED and op.name != "router":
                format = routed if op.rows == "routed" else dense
                format[op.format.name] = format.get(op.format.name, 0.0) + n * op.total_weights
    return max(dense, key=lambda name: dense[name], default=""), max(routed, key=lambda name: routed[name], default="")
