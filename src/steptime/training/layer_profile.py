"""Work and memory of a layer in training, and the layers of each pipeline stage.

A profile has sums over the operators of a layer, per row of tokens, before any parallelism. A model has two or three kinds
of layers, so that a search over layouts works on a few numbers.

The saved activations follow from the operators. Attention, an activation or a norm reads the output of a product and saves
it. Products that close a block (`CLOSING`) write to the residual stream and save their input instead. A norm of the
residual stream saves its input and its output.

Source: Korthikanti et al., arXiv 2205.05198, section 4, for GPT. With flash attention, gated feed-forward blocks and
grouped queries this gives $2(4h + 2q + 2k + 3f + 2a)$ bytes per token. The peak is within 1 % of measured ones.

**Stages.** Layers that are a multiple of the chunks are divided evenly. If only layers plus embedding and head are a
multiple, the first and the last chunk have one layer less (Llama 3 405B: 126 + 2 = 8 x 16). In other cases all chunks but the
last have as many layers, rounded up. The last has the remainder, the head and layers for further tokens (61 layers
of DeepSeek-V3 on 16 stages: 15 x 4 + 1). A layout may give the layers of each chunk itself. Source: pipeline layouts in
https://github.com/NVIDIA-NeMo/Megatron-Bridge/tree/main/src/megatron/bridge/recipes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from steptime.models.model import Attention, Layer, Model, Op
from steptime.number_checks import Number
from steptime.physics.layout import CLOSING
from steptime.training.schedules.schedule import schedule_named
from steptime.training.training_job import TrainingLayout, read_layers

# Bytes of a saved activation: 16 bits, for any format of the products.
ACTIVATION_BYTES = 2.0
# Bytes of the log-sum-exp that flash attention saves per head and row.
SUM_BYTES = 4.0
# Products of a gated expert: gate, up and down.
GATED_PRODUCTS = 3
# Passes of a quantized value: a read and a write.
QUANTISE_PASSES = 2
# Grouped GEMMs of routed experts: gate and up together, and down.
EXPERT_GEMMS = 2
MODULES = ("attention", "norms", "activation", "mlp", "moe_act", "mla_up_proj", "shared_experts", "moe_input", "moe")
"""Modules that can be recomputed, by engine names."""
PARTS_OF_MODULES = {"mlp": ("activation",), "moe": ("moe_input", "moe_act", "shared_experts")}
"""Modules inside others: `MoELayer.forward` computes shared experts inside its checkpoint,
https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/transformer/moe/moe_layer.py."""


# Groups of products with LoRA adapters: those of the inputs and of the output of attention, and those of feed-forward blocks.
ADAPTED = ("qkv", "output", "mlp")


@dataclass(frozen=True, slots=True)
class Product:
    """Matrix products of a layer that tensor parallelism divides alike.

    flops [FLOP per row], weights [parameters] and inputs, outputs [values per row] are sums over the products. whole_inputs,
    whole_outputs: the part of them that each rank has undivided: inputs of products whose columns are divided, and outputs of
    those whose rows are divided, before they are summed. depth, whole_depth: lengths of the sums of outputs, and the part
    that is not divided; products of one input are one GEMM, and `gemms` counts them. experts, active: of routed experts, in
    total and per token. limit: largest tensor parallel degree that divides them. For routed experts, `weights` counts all
    experts and `flops` those of one token.
    """

    flops: float
    weights: float
    inputs: float
    outputs: float
    whole_inputs: float = 0.0
    whole_outputs: float = 0.0
    depth: float = 0.0
    whole_depth: float = 0.0
    gemms: int = 1
    experts: int = 1
    active: float = 1.0
    limit: float = math.inf
    replicated: bool = False
    routed: bool = False
    # Whether engines compute it in 8 or 4 bits if the job uses such a format.
    narrow: bool = True


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """Work and memory of one kind of layer.

    element_values: values per row that norms and residual additions read or write; sequence parallelism divides these rows.
    module_bytes: bytes per row and module; "rest" is outside all modules. recompute_work: FLOPs and element values per row
    to compute a module again.
    """

    products: tuple[Product, ...]
    attention: tuple[Attention, ...]
    element_values: float
    quantised_values: float
    module_bytes: dict[str, float]
    # Values per row of the input of the layer.
    boundary: float
    # Bytes per row that all dense products write.
    product_bytes: float
    # Bytes per row that norms of the residual stream read.
    residual: float
    recompute_work: dict[str, tuple[float, float]]
    # Blocks around which tensor parallelism gathers and scatters.
    blocks: int
    routed: Op | None
    # Values per row that are permuted to experts and back, read and written.
    routed_values: float
    # Element values and quantized values per row of gated experts, inside the products where one kernel has them.
    fused_values: float
    # Values per row of keys and values that context parallelism exchanges.
    exchanged: float
    # Values per row that enter and leave a scan, which context parallelism exchanges for those of other rows.
    rearranged: tuple[float, ...]
    # Parameters of norms and other small operators.
    small: float
    # Inputs and outputs of dense products, by the groups of `ADAPTED`.
    adapted_widths: dict[str, tuple[float, float]]
    # FLOPs of five Newton-Schulz iterations: of dense products, and of all experts.
    orthogonal: tuple[float, float]
    # Values per row that the convolution and the scan of a state read and write, and the channels of the scan.
    scanned: float
    scan_channels: float
    # Heads whose scores are written to memory where attention is not fused.
    scores: float

    def widths_of_adapters(self, groups: tuple[str, ...]) -> tuple[float, float]:
        """Return the inputs and outputs of the dense products that have LoRA adapters.

        Args:
            groups: Groups of `ADAPTED`.

        Returns:
            Inputs and outputs; their sum is the parameters of an adapter of rank 1.
        """
        inputs, outputs = (sum(self.adapted_widths[group][side] for group in groups) for side in (0, 1))
        return inputs, outputs


@dataclass(frozen=True, slots=True)
class Stem:
    """Embedding and head: parameters of both, and FLOPs per row of the head."""

    embedding: float
    head: float
    head_flops: float
    # Whether head and embedding are one matrix.
    shared: bool
    vocabulary: int
    width: int


@lru_cache(maxsize=256)
def layer_profiles(model: Model) -> tuple[tuple[LayerProfile, int], ...]:
    """Return the profile of each kind of layer with the number of layers.

    Args:
        model: Model to train.

    Returns:
        Profile and count of each kind.
    """
    return tuple((layer_profile(layer, model), n) for layer, n in model.layers)


@lru_cache(maxsize=256)
def draft_layer_profiles(model: Model) -> tuple[tuple[LayerProfile, int], ...]:
    """Return the profiles of the multi-token-prediction layers with their number.

    Args:
        model: Model to train.

    Returns:
        Profile and count of each kind.
    """
    return tuple((layer_profile(layer, model), n) for layer, n in model.draft)


@lru_cache(maxsize=256)
def stem_profile(model: Model) -> Stem:
    """Return the profile of embedding and head.

    Towers for images are left out; a text-only step does not use them.

    Args:
        model: Model to train.

    Returns:
        Embedding and head.
    """
    embedding = sum(op.total_weights for op in model.stem if op.term == "embedding")
    heads = [op for op in model.stem if op.rows == "outputs"]
    return Stem(
        embedding=embedding,
        head=sum(op.total_weights for op in heads),
        head_flops=sum(op.flops_per_row for op in heads),
        shared=not any(op.total_weights for op in model.stem if op.name == "embed_tokens"),
        vocabulary=model.vocabulary,
        width=model.width,
    )


def layer_profile(layer: Layer, model: Model) -> LayerProfile:
    """Return the profile of one layer.

    Args:
        layer: Layer of the model.
        model: Model to train.

    Returns:
        Work and memory per row.
    """
    ops, width = layer.ops, model.width
    # Group the operators: products, norms and routed experts.
    matrices = [op for op in ops if op.flops_per_row and op.rows in ("tokens", "routed")]
    norms = [op for op in ops if op.term == "norms" and op.inputs]
    routed = layer.routed
    active = routed.active if routed else 0.0
    expert_columns = routed.columns if routed else 0.0
    # Experts of a latent width get and return rows of this width, not of the residual stream.
    expert_width = routed.inputs if routed else 0.0
    gated = GATED_PRODUCTS if routed and routed.flops_per_row >= 5 * expert_width * max(expert_columns, 1) else 2

    def total(size: Callable[[Op], float], operators: list[Op]) -> float:
        return float(sum(size(op) for op in operators))

    def within(term: str, *, latent: bool | None = None) -> list[Op]:
        return [
            op
            for op in matrices
            if op.term == term and op.rows == "tokens" and (latent is None or _is_latent_expansion(op) == latent)
        ]

    # Projections into the latent width of experts, and back.
    latents = [op for op in within("experts") if op.name != "router"]

    # Saved activations by module: outputs of products, and inputs of products that close a block.
    activation_bytes = {
        "attention": ACTIVATION_BYTES * total(lambda op: op.inputs, [op for op in within("projections") if op.name in CLOSING])
        + SUM_BYTES * sum(a.heads for a in layer.attention if not a.state_bytes),
        "norms": ACTIVATION_BYTES * total(lambda op: op.outputs, norms),
        "mlp": ACTIVATION_BYTES * total(lambda op: op.outputs * (op.name not in CLOSING), within("feed-forward")),
        "activation": ACTIVATION_BYTES * total(lambda op: op.inputs * (op.name in CLOSING), within("feed-forward")),
        "mla_up_proj": ACTIVATION_BYTES * total(lambda op: op.outputs, within("projections", latent=True)),
        "shared_experts": ACTIVATION_BYTES * total(_stored_values, within("shared experts")),
        "moe": ACTIVATION_BYTES
        * (active * (gated - 1) * expert_columns + total(lambda op: op.inputs, [op for op in latents if op.inputs < width])),
        "moe_input": ACTIVATION_BYTES * active * expert_width,
        "moe_act": ACTIVATION_BYTES * active * expert_columns,
    }
    plain_projections = [op for op in within("projections", latent=False) if op.name not in CLOSING]
    # Outputs of other projections, inputs of norms, and the logits and probabilities of routers.
    routers = [op for op in matrices if op.name == "router"]
    activation_bytes["rest"] = ACTIVATION_BYTES * (
        total(lambda op: op.outputs, plain_projections)
        + total(lambda op: op.inputs, [op for op in norms if op.inputs == width])
        # The router saves logits and probabilities.
        + total(lambda op: 2 * op.outputs, routers)
    )

    # Checkpoints (`mlp`, `shared_experts`, `moe`) run a whole block again, with its closing product; other modules discard
    # their output. Source: `recompute_modules` in
    # https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/transformer/transformer_config.py.
    # FLOPs and element values per row to compute a module again; `layer_time` adds the attention pass.
    shared_experts = within("shared experts")
    shared_work = total(lambda op: op.flops_per_row, shared_experts), total(_stored_values, shared_experts)
    latent_flops = total(lambda op: op.flops_per_row, latents)
    recompute_work = {
        "attention": (0.0, 0.0),
        "norms": (0.0, total(lambda op: op.inputs + op.outputs, norms)),
        "mlp": (total(lambda op: op.flops_per_row, within("feed-forward")), total(_stored_values, within("feed-forward"))),
        "activation": (0.0, 3 * total(lambda op: op.inputs * (op.name in CLOSING), within("feed-forward"))),
        "mla_up_proj": (total(lambda op: op.flops_per_row, within("projections", latent=True)), 0.0),
        "shared_experts": shared_work,
        "moe_input": (0.0, 2 * expert_width * active),
        # The products of routed experts and their exchange come from the forward pass.
        "moe": (shared_work[0] + latent_flops, shared_work[1] + active * (4 * expert_width + 3 * expert_columns)),
        "moe_act": (0.0, 3 * active * expert_columns),
    }
    has_state = any(a.state_bytes for a in layer.attention)
    scan_inputs = total(lambda op: op.outputs, plain_projections) if has_state else 0.0
    scan_channels = (
        total(lambda op: op.inputs, [op for op in within("projections") if op.name in CLOSING]) if has_state else 0.0
    )
    return LayerProfile(
        products=_products(matrices),
        attention=layer.attention,
        element_values=_element_values(layer, norms, width),
        quantised_values=total(lambda op: op.inputs * (active if op.rows == "routed" else 1), _distinct_inputs(matrices))
        + active * expert_columns,
        module_bytes=activation_bytes,
        boundary=float(width),
        product_bytes=ACTIVATION_BYTES * total(lambda op: op.outputs, [op for op in matrices if op.rows == "tokens"]),
        residual=ACTIVATION_BYTES * total(lambda op: op.inputs, [op for op in norms if op.inputs == width]),
        recompute_work=recompute_work,
        blocks=bool(layer.attention) + bool(within("feed-forward") or within("shared experts")),
        routed=routed,
        routed_values=4 * expert_width * active,
        # An activation reads gate and up and writes their product, which is quantized: read and written.
        fused_values=(3 + QUANTISE_PASSES) * active * expert_columns if gated == GATED_PRODUCTS else 0.0,
        exchanged=sum(_exchanged_values(a) for a in layer.attention),
        # A convolution needs a few rows of the neighbours only.
        rearranged=(scan_inputs, scan_channels) if any(_has_scan(a) for a in layer.attention) else (),
        small=total(lambda op: op.total_weights, [op for op in ops if op not in matrices]),
        adapted_widths=_adapted_widths(matrices),
        orthogonal=(
            total(_newton_schulz, [op for op in matrices if op.rows == "tokens"]),
            routed.experts * 3 * _newton_schulz_of(expert_width, expert_columns) if routed and expert_columns else 0.0,
        ),
        # The convolution reads and writes the inputs, the scan reads them and writes its outputs.
        scanned=3 * scan_inputs + scan_channels,
        scan_channels=scan_channels,
        scores=float(sum(a.heads for a in layer.attention if not a.state_bytes)),
    )


def _adapted_widths(matrices: list[Op]) -> dict[str, tuple[float, float]]:
    """Return the inputs and outputs of dense products by the groups of `ADAPTED`."""
    widths = dict.fromkeys(ADAPTED, (0.0, 0.0))
    for op in matrices:
        if op.rows == "tokens" and op.name != "router":
            group = "mlp" if op.term != "projections" else "output" if op.name in CLOSING else "qkv"
            inputs, outputs = widths[group]
            widths[group] = inputs + op.inputs, outputs + op.outputs
    return widths


def _newton_schulz(op: Op) -> float:
    return _newton_schulz_of(op.inputs, op.outputs)


def _newton_schulz_of(rows: float, columns: float) -> float:
    """Return the FLOPs of five iterations of Muon: $5 (4 m^2 n + 2 m^3)$.

    m is the smaller side (Jordan, "Muon", 2024).
    """
    m, n = min(rows, columns), max(rows, columns)
    return 5 * (4 * m * m * n + 2 * m**3)


def _is_latent_expansion(op: Op) -> bool:
    """Return whether an operator expands a latent into queries, keys or values."""
    return op.name in ("q_b_proj", "kv_b_proj")


def _stored_values(op: Op) -> float:
    return op.inputs if op.name in CLOSING else op.outputs


def _distinct_inputs(matrices: list[Op]) -> list[Op]:
    """Return one operator for each distinct input, which is quantized once."""
    operator_by_input = {(op.inputs, op.term, op.name in CLOSING): op for op in matrices if op.name != "router"}
    return list(operator_by_input.values())


def _exchanged_values(a: Attention) -> float:
    """Return the number of key and value elements per token, after expansion."""
    if a.state_bytes or not a.stored:
        return 0.0
    # Expanded keys and values of all heads: half of the FLOPs of a query-key pair, which are two per value.
    if a.expand_flops:
        return a.flops_per_pair_prefill / 2
    return a.kv_bytes / ACTIVATION_BYTES


def _has_scan(a: Attention) -> bool:
    """Return whether a mixer passes a recurrent state on, not only a few rows for a convolution."""
    return a.state_bytes > 0 and a.name != "convolution"


def _element_values(layer: Layer, norms: list[Op], width: int) -> float:
    """Return the values that element-wise operators of a forward pass read and write.

    Norms read and write. A residual addition reads two values and writes one. An activation reads the outputs of the
    products and writes its product. Rotary positions read and write queries and keys.
    """
    values = sum(op.inputs + op.outputs for op in norms)
    blocks = bool(layer.attention) + any(op.term in ("feed-forward", "experts") for op in layer.ops)
    values += 3 * width * blocks
    for op in layer.ops:
        if op.term in ("feed-forward", "shared experts"):
            values += _stored_values(op)
        if op.term == "projections" and op.name in ("q_proj", "k_proj", "q_b_proj"):
            values += 2 * op.outputs
    if layer.routed:
        values += 3 * layer.routed.active * layer.routed.columns
    return float(values)


def _depth(operators: list[Op], fused: list[Op]) -> float:
    """Return the lengths of the sums of the outputs of GEMMs; experts are two GEMMs, of which gate and up are one."""
    counted = [op for op in operators if op.rows == "routed" or op.name == "router" or op in fused]
    return float(sum(op.inputs + op.columns if op.rows == "routed" else op.inputs for op in counted))


def _row_inputs(op: Op) -> float:
    """Return the values that the products of an operator read per row of tokens."""
    return op.active * (op.inputs + op.columns) if op.rows == "routed" else op.inputs


def _row_outputs(op: Op) -> float:
    """Return the values that the products of an operator write per row of tokens; experts write gate and up too."""
    if op.rows != "routed":
        return op.outputs
    inside = op.flops_per_row / (2 * op.inputs) - op.columns if op.columns else 0.0
    return op.active * (op.outputs + inside)


def _products(matrices: list[Op]) -> tuple[Product, ...]:
    """Return the products of a layer; products that are divided alike are summed."""
    # Few groups instead of many operators keep a search over layouts fast.
    groups: dict[tuple[float, bool, bool, bool], list[Op]] = {}
    for op in matrices:
        routed = op.rows == "routed"
        key = (op.split_limit, op.split == "replicated", routed, op.name != "router")
        groups.setdefault(key, []).append(op)
    # Queries, keys and values are one GEMM even where their heads allow unlike degrees.
    fused = _distinct_inputs(matrices)
    return tuple(
        Product(
            flops=float(sum(op.flops_per_row * (op.active if routed else 1) for op in same)),
            weights=float(sum(op.total_weights for op in same)),
            inputs=float(sum(_row_inputs(op) for op in same)),
            outputs=float(sum(_row_outputs(op) for op in same)),
            whole_inputs=float(sum(op.inputs for op in same if op.name not in CLOSING and not routed)),
            whole_outputs=float(sum(op.outputs for op in same if op.name in CLOSING and not routed)),
            depth=_depth(same, fused),
            whole_depth=_depth([op for op in same if op.name not in CLOSING and not routed], fused),
            gemms=sum(op in fused for op in same) if not routed else EXPERT_GEMMS * len(same),
            experts=max(op.experts for op in same),
            active=max(op.active for op in same) if routed else 1.0,
            limit=limit,
            replicated=replicated,
            routed=routed,
            narrow=narrow,
        )
        for (limit, replicated, routed, narrow), same in groups.items()
    )


# The embedding and the head count as one layer each.
STEM_LAYERS = 2


@dataclass(frozen=True, slots=True)
class Stage:
    """Layers of each kind on a pipeline device, and its share of embedding and head.

    A share of 1 is the whole embedding or head. later: number of devices before it. With two copies of the model, one in
    each direction, all values are the mean of both.
    """

    parts: tuple[Number, ...]
    embedding: Number
    head: Number
    later: Number

    @property
    def layers(self) -> Number:
        """Layers of all kinds."""
        return sum(self.parts, 0.0)


@dataclass(frozen=True, slots=True)
class LayerCounts:
    """Layers of the first stage, of the fullest middle stage, and of the last stage."""

    first: Number
    middle: Number
    last: Number


def deal_layers(depth: int, x: TrainingLayout) -> LayerCounts:
    """Return the numbers of layers on the stages of a layout.

    Args:
        depth: Layers of the model.
        x: Training layout; its numbers may be arrays that broadcast.

    Returns:
        Layers of the first, the fullest middle and the last stage.

    >>> d = deal_layers(126, TrainingLayout(pp=16, virtual_stages=8, tp=8))
    >>> float(d.first), float(d.middle), float(d.last)
    (7.0, 8.0, 7.0)
    >>> d = deal_layers(80, TrainingLayout(pp=8, virtual_stages=5)); float(d.first), float(d.last)
    (10.0, 10.0)
    """
    # Three cases: even, even with embedding and head as layers, or uneven.
    chunks = np.asarray(x.pp * x.virtual_stages)
    is_even = depth % chunks == 0
    is_slotted = ~is_even & ((depth + STEM_LAYERS) % chunks == 0) & (chunks > 1)
    layers_per_chunk = np.where(is_slotted, (depth + STEM_LAYERS) / chunks, np.ceil(depth / chunks))
    middle = np.where(is_even | is_slotted, layers_per_chunk * x.virtual_stages, np.ceil(depth / np.asarray(x.pp)))
    ends = middle - is_slotted
    # The last stage of an uneven division has the remaining layers, the head and layers for further tokens.
    remaining_layers = depth - middle * (np.asarray(x.pp) - 1)
    is_uneven = ~is_even & ~is_slotted
    remainder = np.where(remaining_layers >= 1, np.minimum(remaining_layers, middle), np.floor(depth / np.asarray(x.pp)))
    last = np.where(is_uneven, remainder, ends)
    return LayerCounts(np.where(np.asarray(x.pp) == 1, depth, ends), np.where(np.asarray(x.pp) == 1, depth, middle),
                 np.where(np.asarray(x.pp) == 1, depth, last))  # fmt: skip


def pick_largest(sizes: Sequence[Number], options: Sequence[Sequence[Number]]) -> list[Number]:
    """Return the option with the largest size, point by point; of equal ones the first.

    Args:
        sizes: Size of each option; may be arrays that broadcast.
        options: Numbers of each option, such as the times of a stage.

    Returns:
        Numbers of the largest option.

    >>> [part.tolist() for part in pick_largest([np.array([1, 5]), 3], [(10, 11), (20, 21)])]
    [[20, 10], [21, 11]]
    """
    largest, largest_option = sizes[0], list(options[0])
    for size, option in zip(sizes[1:], options[1:], strict=True):
        is_larger = np.asarray(size > largest)
        largest = np.where(is_larger, size, largest)
        largest_option = [np.where(is_larger, new_part, part) for new_part, part in zip(option, largest_option, strict=True)]
    return largest_option


def max_chunks(model: Model) -> int:
    """Return the largest number of chunks of a model.

    Each chunk has at least one layer, or the embedding or the head.

    Args:
        model: Model to train.

    Returns:
        Chunks.
    """
    return model.depth + STEM_LAYERS


def has_dense_prologue(counts: list[int]) -> bool:
    """Return whether the first kind of layer is only at the beginning of a model.

    Dense layers before experts are an example: one in eight layers or fewer.

    Args:
        counts: Layers of each kind, in the order of the model.

    Returns:
        True if the first kind is a prologue.

    >>> has_dense_prologue([3, 58]), has_dense_prologue([21, 21]), has_dense_prologue([32])
    (True, False, False)
    """
    return len(counts) > 1 and counts[0] * 8 <= sum(counts)


def stage_layers_by_kind(model: Model, layers: Number, *, first: bool) -> list[Any]:
    """Return the number of layers of each kind on a stage.

    Kinds that alternate are mixed evenly.

    Args:
        model: Model to train.
        layers: Layers of the stage.
        first: Whether it is the first stage.

    Returns:
        Layers per kind.
    """
    counts = [n for _, n in model.layers]
    depth = sum(counts)
    if not has_dense_prologue(counts):
        return [layers * (n / depth) for n in counts]
    other_layers = depth - counts[0]
    prologue_layers = np.minimum(layers, counts[0]) if first else np.where(np.asarray(layers) >= depth, counts[0], 0.0)
    return [prologue_layers, *((layers - prologue_layers) * (n / other_layers) for n in counts[1:])]


def layers_by_kind(model: Model, start: int, stop: int) -> list[float]:
    """Return the number of layers of each kind in a range of layers.

    Kinds that alternate are mixed evenly.

    Args:
        model: Model to train.
        start: First layer of the range.
        stop: Layer after the range.

    Returns:
        Layers per kind.
    """
    counts = [n for _, n in model.layers]
    if not has_dense_prologue(counts):
        return [(stop - start) * n / model.depth for n in counts]
    prologue_layers = max(min(stop, counts[0]) - start, 0)
    return [float(prologue_layers), *((stop - start - prologue_layers) * n / (model.depth - counts[0]) for n in counts[1:])]


def pipeline_stages(model: Model, x: TrainingLayout) -> tuple[Stage, ...]:
    """Return the stages of a layout that may be the slowest or the fullest, in order.

    These are all stages if the layout gives its layers; else the first, the fullest middle and the last stage.

    Args:
        model: Model to train.
        x: Training layout; its numbers may be arrays that broadcast.

    Returns:
        Stages.
    """
    copies = schedule_named(x.schedule).copies
    if x.layers:
        return _stages_from_layers(model, x, read_layers(x.layers))
    layer_counts, has_no_pipeline = deal_layers(model.depth, x), np.asarray(x.pp) == 1
    first, middle, last = (
        tuple(stage_layers_by_kind(model, layers, first=place == 0))
        for place, layers in enumerate((layer_counts.first, layer_counts.middle, layer_counts.last))
    )
    if copies == 1:
        return Stage(first, 1.0, 1.0 * has_no_pipeline, 0.0), Stage(middle, 0.0, 0.0, 1.0), Stage(last, 0.0, 1.0, x.pp - 1.0)

    # Two copies of the model, one in each direction: a device has the mean of a stage and its mirror.
    mean_parts = tuple(np.where(has_no_pipeline, a, (a + b) / 2) for a, b in zip(first, last, strict=True))
    stem_share = np.where(has_no_pipeline, 1.0, 0.5)
    return Stage(mean_parts, stem_share, stem_share, 0.0), Stage(middle, 0.0, 0.0, 1.0)


def _stages_from_layers(model: Model, x: TrainingLayout, counts: tuple[int, ...]) -> tuple[Stage, ...]:
    """Return all stages of a layout that gives the layers of each chunk.

    The chunks are on devices as in the paths of the schedule.
    """
    pp, chunks = int(np.max(x.pp)), len(counts)
    starts = np.concatenate([[0], np.cumsum(counts)])
    kinds = np.array([layers_by_kind(model, int(a), int(b)) for a, b in pairwise(starts)])
    paths = schedule_named(x.schedule).paths(pp, int(np.max(x.virtual_stages))) if pp > 1 else np.zeros((1, chunks, 2), int)
    stage_rows = np.zeros((pp, kinds.shape[1] + 2))
    for path in paths:
        np.add.at(stage_rows[:, :-2], path[:, 0], kinds / len(paths))
        stage_rows[path[0, 0], -2] += 1 / len(paths)
        stage_rows[path[-1, 0], -1] += 1 / len(paths)
    return tuple(
        Stage(tuple(map(float, row[:-2])), float(row[-2]), float(row[-1]), float(n)) for n, row in enumerate(stage_rows)
    )


def layers_of_chunks(depth: int, stages: Sequence[int]) -> list[int]:
    """Return the layers of each chunk, in the order of a micro-batch.

    Chunks differ by at most one layer. Chunks with one more are on middle devices first, then on the first device, and last
    on the device with the head.

    Args:
        depth: Layers of the model.
        stages: Device of each chunk.

    Returns:
        Layers per chunk.

    >>> layers_of_chunks(61, range(4))
    [15, 16, 15, 15]
    """
    base, extra = divmod(depth, len(stages))
    counts, extra_by_stage = [base] * len(stages), dict.fromkeys(stages, 0)
    for _ in range(extra):
        candidates = [n for n, count in enumerate(counts) if count == base]
        chunk = min(candidates, key=lambda n: (extra_by_stage[stages[n]], stages[n] == stages[-1], stages[n] == stages[0], n))
        counts[chunk] += 1
        extra_by_stage[stages[chunk]] += 1
    return counts
