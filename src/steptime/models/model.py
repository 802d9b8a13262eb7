r"""Models: the work of a forward pass, independent of any chip.

A `Model` is layers and a stem (embedding, final norm, head, multi-token prediction). A `Layer` is matrix multiplies and
other operators with weights (`Op`) and token mixers that read a cache (`Attention`). All counts are exact integers in
parameters, FLOPs (a multiply and an add are two) and values. The bytes follow from the number format.

With $T$ rows of tokens, an `Op` costs $2 \cdot$ weights $\cdot T$ FLOPs and reads its weights once. In an `Attention`, a
query at context $L$ costs `flops_per_pair` for each cached token that it reads, and reads $\kappa$ bytes of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from steptime.hardware.number_formats import GGUF, GGUF_HEAD, GGUF_MIXTURES, Format, number_format
from steptime.number_checks import Number
from steptime.result_base import Result
from steptime.units import show

if TYPE_CHECKING:
    from steptime.models.blocks_vision import Media, Tower
    from steptime.models.checkpoint import CheckpointSummary

Rows = Literal["tokens", "outputs", "routed", "lookup", "none"]
"""Rows of an operator's input.

tokens: every token of the step. outputs: tokens whose logits are needed. routed: token-expert pairs of routed experts.
lookup: rows of a table; only the looked-up rows are read. none: stored, but not run in a plain step.
"""

Split = Literal["group", "replicated", "experts"]
"""How chips share an operator's weights.

group: split over all chips of a tensor-parallel group, at most `split_limit` ways, such as the number of heads.
replicated: every chip of the group stores them. experts: expert parallel.
"""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Op(Result):
    """An operator with weights.

    weights [parameters] is for one instance (one expert for routed experts); flops_per_row [FLOP]; `inputs` and
    `outputs` [values per row] are the activations that it reads and writes. Routed experts have `experts` instances;
    each token uses `active` of them, and each is `columns` wide inside (0: unknown). `format` is the number format of
    the stored weights. An operator with `stored=False` runs with the weights of an earlier operator, as in a block that
    several layers share. It reads these weights again, but they are not counted again.
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
        """Return the parameters and their format as a title without rows.

        Returns:
            The title, and an empty table.
        """
        multiplier = f"{self.experts} x " if self.experts > 1 else ""
        return f"Op {self.name} ({self.term}): {multiplier}{show(self.weights)} parameters in {self.format.name}", {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    r"""A token mixer that reads a cache.

    A query at context $L$ reads $\min(L/s, w, k)$ entries: $s$ = `stride` tokens share an entry, $w$ = `window` limits
    the stored entries, and $k$ = `selected` limits the entries that are read. Each entry has `kv_bytes` [B]; tensor
    parallelism can divide it `kv_shards` ways (KV heads; 1 for a latent). The FLOPs per entry differ if decode works on
    the latent and prefill on expanded heads; `expand_flops` [FLOP per cached token] is the cost of the expansion of a
    cached prefix. In decode, chips that divide a context exchange `query_values` and `output_values` [values per
    token]. A mixer with a state instead of a cache reads and writes `state_bytes` [B per sequence] at every step. Chips
    that divide the heads all-reduce `summed` [values per token] before the mixer: sums of squares for norms over all
    heads. Or they gather `gathered` [values per token]: all queries and keys. A layer that reads the cache of another
    layer has `stored=False`. `kv_format` is the format of entries that do not follow the model's format. In a tower,
    attention is not `causal`: each query reads all entries of its image, or `window` of them.
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
        """Return the parameters and the numbers of operators and mixers as a title.

        Returns:
            The title, and an empty table.
        """
        size = show(sum(op.total_weights for op in self.ops))
        return f"Layer {self.name}: {size} parameters, {len(self.ops)} operators, {len(self.attention)} token mixers", {}


Kinds = tuple[tuple[Layer, int], ...]
"""Kinds of layers with their counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The location of a model's weights, and their stored formats.

    place: Hugging Face id or local folder; "" if unknown. weights, experts ("" without experts) and kv: formats of the
    dense layers, of the routed experts and of the KV cache. remote_code: whether the repository has its own code, from
    `auto_map` in its config or from the source in a file of the catalogue. bytes: exact size of all tensors of its
    files; 0 unless a complete checkpoint is in the same folder as the config. summary: content of the files.
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
    """A transformer: kinds of layers with counts, the stem, and the source of both."""

    name: str
    family: str = ""
    layers: Kinds
    stem: tuple[Op, ...] = ()
    # Multi-token-prediction layers, stored but not run in a plain step.
    draft: Kinds = ()
    width: int
    vocabulary: int
    heads: int = 1
    max_context: float = math.inf
    kv_format: str = "bf16"
    # Whether the user or the checkpoint gives the format of the KV cache; if not, an engine may choose another one.
    kv_told: bool = False
    source: Mapping[str, str] = field(default_factory=dict, hash=False)
    published: Mapping[str, Number] = field(default_factory=dict, hash=False)
    notes: tuple[str, ...] = ()
    checkpoint: Checkpoint = Checkpoint()
    # Towers that encode images and sound.
    towers: tuple[Tower, ...] = field(default=(), metadata={"left_out": True})
    # Images and recordings in every prompt.
    media: Media | None = field(default=None, metadata={"left_out": True})
    # The separate drafter of speculative tokens; None: the multi-token-prediction layers, if any.
    drafter: Drafter | None = field(default=None, metadata={"left_out": True})
    # LoRA adapters that are served with the model; None: the model without adapters.
    adapters: LoraAdapters | None = field(default=None, metadata={"left_out": True})

    def __hash__(self) -> int:
        """Hash the fields that differ between most models.

        Caches need the hash in every step; equality compares all fields.
        """
        return hash((self.name, self.kv_format, self.width, len(self.layers), self.checkpoint))

    @property
    def depth(self) -> int:
        """Number of layers."""
        return sum(count for _, count in self.layers)

    @property
    def routed(self) -> bool:
        """Whether a layer has routed experts."""
        return any(layer.routed for layer, _ in self.layers)

    @property
    def can_draft(self) -> bool:
        """Whether something drafts speculative tokens: a separate drafter, or multi-token-prediction layers."""
        return self.drafter is not None or bool(self.draft)

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the name, and rows for parameters, weights, cache and context.

        Returns:
            The title, and texts by row label.
        """
        growing, full = growing_kv_bytes_per_token(self), kv_bytes_per_token(self)
        cache = f"{full:,.0f} B per token in {self.kv_format}" + (
            f", {growing:,.0f} B per token once all windows are full" if growing != full else ""
        )
        state = state_bytes(self)
        return f"Model {self.name}" + (f" ({self.family})" if self.family else ""), {
            "parameters": f"{show(total_parameters(self))}, {show(active_parameters(self))} active per token",
            "weights": show(weight_bytes(self), "B"),
            "layers": f"{self.depth}, width {self.width:,}, {self.heads} heads",
            "KV cache": cache + (f", and {show(state, 'B')} of state" if state else ""),
            "context": f"{self.max_context:,.0f} tokens" if math.isfinite(self.max_context) else "no published limit",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraAdapters:
    """LoRA adapters of one model in the memory of its chips.

    slots: Adapters at a time. rank: Rank of each slot. target: Matrices that they adapt, "all-linear" or "attention".
    """

    slots: int
    rank: int
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """A separate drafter of speculative tokens: an EAGLE-3 head or a small model.

    method: eagle3 or draft_model. model: what one draft pass runs; operators with `stored=False` use weights of the large
    model. entry: operators that run once per step before the first pass (the fusion of features of EAGLE-3). place:
    Hugging Face id or folder of the weights; "" if no public one is known. source: where the shapes come from.
    """

    method: Literal["eagle3", "draft_model"]
    model: Model
    entry: tuple[Op, ...] = ()
    place: str = ""
    source: str = ""


def changed_drafter(model: Model, change: Callable[[Model], Model]) -> Drafter | None:
    """Return the drafter of a model after a change of the layers of one draft pass.

    Args:
        model: The model.
        change: Function of a model that returns the changed model.

    Returns:
        The drafter; None without one.
    """
    return None if model.drafter is None else replace(model.drafter, model=change(model.drafter.model))


def cache_entries(attention: Attention, context: Number) -> Number:
    """Return the entries that the cache of one sequence stores.

    Args:
        attention: The token mixer.
        context: Tokens of the sequence.

    Returns:
        Entries, with the shape of `context`.
    """
    return np.minimum(context / attention.stride, attention.window)


def entries_read(attention: Attention, context: Number) -> Number:
    """Return the entries that one query reads.

    Args:
        attention: The token mixer.
        context: Tokens of the sequence.

    Returns:
        Entries, with the shape of `context`.
    """
    return np.minimum(cache_entries(attention, context), attention.selected)


def pairs(attention: Attention, tokens: Number, prefix: Number) -> Number:
    r"""Return the query-entry pairs of new tokens after a cached prefix.

    The number is $\sum_{i=1}^{n} \min((p+i)/s, w, k)$. If attention is not causal, every query reads as much as the
    last one.

    Args:
        attention: The token mixer.
        tokens: Number of queries $n$.
        prefix: Cached tokens $p$ before them.

    Returns:
        Pairs, with the shape of `tokens` and `prefix`.

    >>> from steptime.models.model import Attention, pairs
    >>> float(pairs(Attention(name="full"), 4, 0)), float(pairs(Attention(name="local", window=2), 4, 0))
    (10.0, 7.0)
    >>> float(pairs(Attention(name="patches", causal=False), 4, 0))
    16.0
    """
    if not attention.causal:
        return tokens * entries_read(attention, prefix + tokens)

    # The pairs grow with the position until the window or the selection is full, and are constant after that.
    limit = np.minimum(attention.window, attention.selected)
    growing: Number = np.clip(np.floor(limit * attention.stride) - prefix, 0.0, tokens)
    flat: Number = np.where(tokens > growing, (tokens - growing) * np.where(np.isfinite(limit), limit, 0.0), 0.0)
    return (growing * prefix + growing * (growing + 1) / 2) / attention.stride + flat


def _ops(layers: Kinds, stem: tuple[Op, ...] = ()) -> Iterator[tuple[int, Op]]:
    """Yield the operators of all kinds of layers and of a stem, each with its count."""
    yield from ((n, op) for layer, n in layers for op in layer.ops)
    yield from ((1, op) for op in stem)


def _mixers(model: Model) -> Iterator[tuple[int, Attention]]:
    """Yield the token mixers of all kinds of layers, each with its count."""
    return ((n, a) for layer, n in model.layers for a in layer.attention)


def total_parameters(model: Model) -> float:
    """Return the stored parameters without the multi-token-prediction layers.

    Args:
        model: The model.

    Returns:
        Parameters.
    """
    return sum(n * op.total_weights for n, op in _ops(model.layers, model.stem))


def active_parameters(model: Model) -> float:
    """Return the parameters that one token uses.

    Routed experts that the token does not use are left out.

    Args:
        model: The model.

    Returns:
        Parameters.
    """
    return sum(n * op.active_weights for n, op in _ops(model.layers, model.stem))


def draft_parameters(model: Model) -> float:
    """Return the parameters of the multi-token-prediction layers.

    Args:
        model: The model.

    Returns:
        Parameters.
    """
    return sum(n * op.total_weights for n, op in _ops(model.draft))


def weight_bytes(model: Model) -> float:
    """Return the size of the weights without the multi-token-prediction layers.

    Args:
        model: The model.

    Returns:
        Bytes, rounded to an integer.
    """
    return float(round(sum(n * op.total_weights * op.format.bytes for n, op in _ops(model.layers, model.stem))))


def draft_bytes(model: Model) -> float:
    """Return the size of the weights of the multi-token-prediction layers.

    Args:
        model: The model.

    Returns:
        Bytes, rounded to an integer.
    """
    return float(round(sum(n * op.total_weights * op.format.bytes for n, op in _ops(model.draft))))


def kv_bytes_per_token(model: Model) -> float:
    """Return the bytes that one more token adds to the KV cache.

    This is the figure of published tables: no window is full yet.

    Args:
        model: The model.

    Returns:
        Bytes per token and sequence.

    >>> from steptime.models.model import Attention, Layer, Model, kv_bytes_per_token
    >>> gqa = Layer(name="layer", ops=(), attention=(Attention(name="attention", kv_bytes=2 * 8 * 128 * 2),))
    >>> kv_bytes_per_token(Model(name="llama-3-70b", layers=((gqa, 80),), width=8192, vocabulary=128256))
    327680.0
    """
    return sum(n * layer_kv_bytes(layer) for layer, n in model.layers) * 1.0


def layer_kv_bytes(layer: Layer) -> float:
    """Return the bytes that one more token adds to the KV cache of one layer.

    Args:
        layer: The layer; no window of it is full yet.

    Returns:
        Bytes per token and sequence.
    """
    return sum(a.kv_bytes / a.stride * a.stored for a in layer.attention)


def growing_kv_bytes_per_token(model: Model) -> float:
    """Return the bytes that one more token adds once every window is full.

    Args:
        model: The model.

    Returns:
        Bytes per token and sequence.
    """
    return sum(n * a.kv_bytes / a.stride * a.stored for n, a in _mixers(model) if math.isinf(a.window)) * 1.0


def state_bytes(model: Model) -> float:
    """Return the recurrent state of one sequence, which does not grow with context.

    Args:
        model: The model.

    Returns:
        Bytes per sequence.
    """
    return sum(n * a.state_bytes for n, a in _mixers(model)) * 1.0


def cache_bytes(model: Model, context: Number) -> Number:
    """Return the KV cache and state of one sequence.

    Args:
        model: The model.
        context: Tokens of the sequence.

    Returns:
        Bytes, with the shape of `context`.
    """
    return sum(n * (a.kv_bytes * cache_entries(a, context) * a.stored + a.state_bytes) for n, a in _mixers(model))


def cached_token_bytes(model: Model) -> float:
    """Return the KV cache that a token adds to a long context.

    Args:
        model: Model as it is served.

    Returns:
        Bytes per token.
    """
    return float(cache_bytes(model, 1 << 14) - cache_bytes(model, 1 << 13)) / (1 << 13)


def cache_bytes_read(model: Model, context: Number) -> Number:
    """Return the KV cache and state that one decode token reads.

    Args:
        model: The model.
        context: Tokens of the sequence.

    Returns:
        Bytes, with the shape of `context`.
    """
    return sum(n * (a.kv_bytes * entries_read(a, context) + a.state_bytes) for n, a in _mixers(model))


def matmul_flops_per_token(model: Model, *, logits: bool = True) -> float:
    """Return the FLOPs per token of the operators with weights.

    Args:
        model: The model.
        logits: Whether to count the head; prompt tokens except the last need no logits.

    Returns:
        FLOPs per token.

    >>> from steptime.hardware.number_formats import number_format
    >>> op = Op(name="up", term="feed-forward", weights=100, flops_per_row=200, format=number_format("bf16"))
    >>> matmul_flops_per_token(Model(name="m", layers=((Layer(name="l", ops=(op,)), 3),), width=10, vocabulary=1))
    600.0
    """
    # Lookups do no arithmetic, and "none" does not run.
    counted = ("tokens", "routed", "outputs") if logits else ("tokens", "routed")
    return sum(n * op.flops_per_row * op.active for n, op in _ops(model.layers, model.stem) if op.rows in counted) * 1.0


def decode_flops_per_token(model: Model, context: Number) -> Number:
    """Return the FLOPs of one decode token: operators with weights, and attention.

    Args:
        model: The model.
        context: Tokens of the sequence.

    Returns:
        FLOPs, with the shape of `context`.
    """
    attention = sum(
        n * (a.flops_per_pair_decode * entries_read(a, context) + a.state_flops_per_token) for n, a in _mixers(model)
    )
    return matmul_flops_per_token(model) + attention


def prefill_flops(model: Model, tokens: Number, prefix: Number = 0.0) -> Number:
    """Return the FLOPs of the prefill of one prompt, with logits of its last token.

    Args:
        model: The model.
        tokens: New tokens of the prompt.
        prefix: Tokens already in the KV cache.

    Returns:
        FLOPs, with the shape of `tokens` and `prefix`.
    """
    head = sum(op.flops_per_row for op in model.stem if op.rows == "outputs")
    attention = sum(
        n * (a.flops_per_pair_prefill * pairs(a, tokens, prefix) + a.expand_flops * prefix + a.state_flops_per_token * tokens)
        for n, a in _mixers(model)
    )
    return matmul_flops_per_token(model, logits=False) * tokens + attention + head


def in_format(a: Attention, now: Format, then: Format) -> Attention:
    """Return a token mixer with its cache in another format.

    Args:
        a: The token mixer.
        now: Present format of its cache.
        then: New format of its cache.

    Returns:
        The changed mixer.
    """
    return replace(a, kv_bytes=a.kv_bytes * then.bytes / now.bytes, arithmetic=then.arithmetic)


def with_kv(model: Model, format: Format) -> Model:
    """Return a model with its KV cache in another format.

    The result is the same as loading the config with that format. Caches with their own format keep it (most indexes of
    sparse attention), and so do buffers.

    Args:
        model: The model.
        format: New format of the KV cache.

    Returns:
        The changed model.
    """
    old_format = number_format(model.kv_format)

    def with_format(a: Attention) -> Attention:
        # Buffers store FP32 inputs, and indexes have a fixed format.
        keeps_format = a.name == "buffer" or a.kv_format or not a.kv_bytes
        return a if keeps_format else in_format(a, old_format, format)

    def changed(layers: Kinds) -> Kinds:
        return tuple((replace(layer, attention=tuple(map(with_format, layer.attention))), n) for layer, n in layers)

    drafter = changed_drafter(model, lambda small: with_kv(small, format))
    return replace(model, layers=changed(model.layers), draft=changed(model.draft), kv_format=format.name, drafter=drafter)


# Terms whose weights checkpoints store in narrow formats.
STORED = ("projections", "feed-forward", "experts", "shared experts")
WIDE_ATTENTION = ("nvfp4", "mxfp4")
"""Formats in which published checkpoints of models with experts keep attention in bf16.

Sources: nvidia/MiniMax-M2.7-NVFP4 (recipe in https://github.com/NVIDIA/Model-Optimizer/pull/2437), the -NVFP4 of Kimi-K2
(pull 655), and amd/DeepSeek-R1-0528-MXFP4 (its card: exclude_layers "*self_attn*"). nvidia/DeepSeek-R1-0528-FP4-v2 also
quantizes its output projections (`with_outputs`).
"""
# Output projection of attention, which some releases quantize besides.
OUTPUT: Final = "o_proj"


def with_formats(model: Model, *, weights: Format | None = None, experts: Format | None = None) -> Model:
    """Return a model with its weights in other number formats.

    Embeddings, head, norms and routers keep their format, as in engines. GGUF files also quantize embeddings and head; the bits
    of their mixtures are means over the file with both. If
    `weights` is in `WIDE_ATTENTION` and the model has experts, projections of attention are in bf16.

    Args:
        model: The model.
        weights: Format of all weights except routed experts; None: unchanged.
        experts: Format of the routed experts; None: unchanged.

    Returns:
        The changed model.
    """
    attention = weights
    if weights is not None and weights.name in WIDE_ATTENTION and model.routed:
        attention = number_format("bf16")

    def stored(op: Op) -> Op:
        # Routers decide with small differences, so engines keep them in high precision.
        if op.name == "router" or op.term not in STORED:
            return op
        new = experts if op.rows == "routed" else attention if op.term == "projections" else weights
        # An operator already in this format keeps the scales of its checkpoint.
        return op if new is None or new.name == op.format.name else replace(op, format=new)

    def changed(layers: Kinds) -> Kinds:
        return tuple((replace(layer, ops=tuple(stored(op) for op in layer.ops)), n) for layer, n in layers)

    stem = model.stem
    if weights is not None and weights.arithmetic[-1] == GGUF:
        is_mixture = weights.name in GGUF_MIXTURES
        head = weights if is_mixture else max(weights, number_format(GGUF_HEAD), key=lambda format: format.bytes)
        tables = {"lookup": weights, "outputs": head}
        stem = tuple(replace(op, format=tables[op.rows]) if op.rows in tables else op for op in stem)
    return replace(model, layers=changed(model.layers), draft=changed(model.draft), stem=stem)


def with_outputs(model: Model, format: Format) -> Model:
    """Return a model with the output projections of attention in another number format.

    Args:
        model: The model.
        format: The format.

    Returns:
        The changed model.
    """

    def changed(layer: Layer) -> Layer:
        return replace(layer, ops=tuple(replace(op, format=format) if op.name == OUTPUT else op for op in layer.ops))

    return replace(model, layers=tuple((changed(layer), n) for layer, n in model.layers))


def stored_formats(model: Model) -> tuple[str, str]:
    """Return the main formats of the dense layers and of the routed experts.

    Embeddings, head, norms and routers are left out, because engines do not quantize them.

    Args:
        model: The model.

    Returns:
        Names of the formats with the most parameters: dense layers, and routed experts ("" without experts).
    """
    dense: dict[str, float] = {}
    routed: dict[str, float] = {}
    for layer, n in model.layers:
        for op in layer.ops:
            if op.term in STORED and op.name != "router":
                format = routed if op.rows == "routed" else dense
                format[op.format.name] = format.get(op.format.name, 0.0) + n * op.total_weights
    return max(dense, key=lambda name: dense[name], default=""), max(routed, key=lambda name: routed[name], default="")


# Experts that GGUF files keep as they are in the original checkpoint.
GGUF_EXPERTS: Final = "mxfp4"


def gguf_formats(weights: str, experts: str) -> tuple[str, str]:
    """Return the formats of a GGUF file for the formats of a checkpoint, or for those that a run of llama.cpp states.

    8-bit weights are q8_0. Files of ggml-org with experts in MXFP4 (gpt-oss) have all other matrices in q8_0, although the
    original checkpoint has them in bf16.

    Args:
        weights: Format of all weights except routed experts.
        experts: Format of routed experts; "" without experts.

    Returns:
        Formats of weights and of experts.

    References:
        huggingface.co/ggml-org/gpt-oss-20b-GGUF: 12.1 GB; with bf16 it would have 13.8 GB.

    >>> gguf_formats("int8", ""), gguf_formats("bf16", "mxfp4"), gguf_formats("q4_0", "q4_0")
    (('q8_0', ''), ('q8_0', 'mxfp4'), ('q4_0', 'q4_0'))
    """
    eight_bits = {"int8": "q8_0"}
    if experts == GGUF_EXPERTS and weights == "bf16":
        weights = "int8"
    return eight_bits.get(weights, weights), eight_bits.get(experts, experts)


def default_experts(model: Model, weights: str) -> str:
    """Return the format of routed experts where only that of the weights is given.

    Args:
        model: The model as in its config.
        weights: Format of the weights.

    Returns:
        The format of the weights; for formats of GGUF files mxfp4, if the experts are in it.
    """
    in_file = number_format(weights).arithmetic[-1] == GGUF
    return GGUF_EXPERTS if in_file and stored_formats(model)[1] == GGUF_EXPERTS else weights


@lru_cache(maxsize=64)
def with_gguf_formats(model: Model) -> Model:
    """Return a model in the formats of the GGUF file that people run, with a note where they are not those of its config.

    Args:
        model: The model as in its config.

    Returns:
        The model.
    """
    before = stored_formats(model)
    weights, experts = gguf_formats(*before)
    if (weights, experts) == before:
        return model
    words = f"weights as in its GGUF file: {weights}" + (f", experts {experts}" if experts else "")
    formats = {"weights": number_format(weights), "experts": number_format(experts) if experts else None}
    return replace(with_formats(model, **formats), notes=(*model.notes, words))
