"""The content of a checkpoint's files, from their headers.

Storage of quantized matrices, and assignment of stored formats to operators.

Values, scales and zero points are counted as the tools store them. Sources: DeepSeek-V3's inference/fp8_cast_bf16.py,
NVIDIA Model Optimizer (export/quant_utils.py), transformers' mxfp4, AutoGPTQ and GPTQModel (QuantLinear), AutoAWQ
(WQLinear_GEMM), compressed-tensors, bitsandbytes (QuantState.as_dict).

For a model with a checkpoint, each operator gets the format and the bytes of its tensors. Operators and weights of a layer
are matched by name if their parameters are equal, and otherwise by the part of the model, all together. The rest on both
sides is a difference with a name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from steptime.hardware.number_formats import Format, Packing, number_format, packed_bytes
from steptime.models.checkpoint_weights import Weight
from steptime.models.model import Layer, Op
from steptime.result_base import unit


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGroup:
    """The tensors of one part of a model."""

    name: str = field(metadata=unit("", "part of the model"))
    tensors: int = field(metadata=unit("", "number of tensors"))
    parameters: int = field(metadata=unit("", "parameters, unpacked"))
    bytes: int = field(metadata=unit("B", "bytes of its tensors", key="bytes"))
    scales: int = field(metadata=unit("B", "bytes of scales and zero points, included in bytes", key="scale_bytes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDtype:
    """The tensors of one dtype."""

    name: str = field(metadata=unit("", "dtype in the header"))
    tensors: int = field(metadata=unit("", "number of tensors"))
    bytes: int = field(metadata=unit("B", "bytes of its tensors", key="bytes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Tensors that the model does not count, or operators that the files do not have."""

    name: str = field(metadata=unit("", "tensors or operators, with N for the layer number"))
    group: str = field(metadata=unit("", "part of the model"))
    count: int = field(metadata=unit("", "number of tensors or operators"))
    bytes: int = field(metadata=unit("B", "bytes on disk minus bytes in the model", key="bytes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSummary:
    """The exact content of a checkpoint's files, and its differences from the model."""

    kind: str = field(metadata=unit("", "safetensors or gguf"))
    files: int = field(metadata=unit("", "files present"))
    missing: tuple[str, ...] = field(default=(), metadata=unit("", "missing files"))
    stated: int = field(default=0, metadata=unit("B", "size of all tensors in the index; 0: not given", key="stated_bytes"))
    bytes: int = field(metadata=unit("B", "size of all tensors in the files present", key="bytes"))
    tensors: int = field(metadata=unit("", "number of tensors"))
    parameters: int = field(metadata=unit("", "parameters, unpacked"))
    scales: int = field(metadata=unit("B", "bytes of scales and zero points", key="scale_bytes"))
    groups: tuple[HeldGroup, ...] = field(default=(), metadata=unit("", "bytes by part of the model"))
    dtypes: tuple[HeldDtype, ...] = field(default=(), metadata=unit("", "bytes by dtype"))
    differences: tuple[Difference, ...] = field(
        default=(), metadata=unit("", "differences between the files and the model; empty: none")
    )


# Bytes of a scale of a whole matrix, in FP32.
SCALAR: Final = 4
# Scales of bitsandbytes that share one second-level scale.
NESTED: Final = 256
# Bytes of the codebooks of bitsandbytes, in FP32.
CODEBOOK: Final = {"4": 16 * 4, "nested": 256 * 4}


def fp8_blocks(block: tuple[int, int]) -> Format:
    """Return FP8 with one FP32 scale per block (weight, weight_scale_inv).

    Args:
        block: Outputs and inputs of a block.

    Returns:
        The format.
    """
    rows, columns = block
    plain = number_format("fp8", values_per_scale=rows * columns, scale_bytes=4, block=max(block))
    return replace(plain, packing=Packing(columns=columns, rows=rows, scale=4))


def per_matrix(name: str, *, scales: int, scale: int = SCALAR) -> Format:
    """Return an 8-bit format with scales per matrix.

    Args:
        name: Name of the format.
        scales: Scales per matrix: one of the weights, and one of the inputs if it is static.
        scale: Bytes of a scale.

    Returns:
        The format.
    """
    return replace(number_format(name), packing=Packing(fixed=scales * scale))


def per_output(name: str, *, scale: int, fixed: int = 0) -> Format:
    """Return an 8-bit format with one scale per output.

    Args:
        name: Name of the format.
        scale: Bytes of a scale.
        fixed: Further bytes per matrix.

    Returns:
        The format.
    """
    return replace(number_format(name), packing=Packing(scale=scale, fixed=fixed))


def small_blocks(name: str, *, scalars: int = 0) -> Format:
    """Return NVFP4, MXFP4 or MXFP8, with a one-byte scale per 16 or 32 values.

    Args:
        name: Name of the format.
        scalars: FP32 scales per matrix.

    Returns:
        The format.
    """
    bits = 8 if name == "mxfp8" else 4
    columns = 16 if name == "nvfp4" else 32
    return replace(number_format(name), packing=Packing(bits=bits, columns=columns, scale=1, fixed=scalars * SCALAR))


def integers(bits: int, group: int, *, zeros: bool, index: bool = False, fixed: int = 0, scale: int = 2) -> Format:
    """Return integers of GPTQ, AWQ or compressed-tensors, packed into 32-bit words.

    Args:
        bits: Bits of an integer, 4 or 8.
        group: Values that share a scale; 0: all inputs of an output.
        zeros: Whether zero points are stored.
        index: Whether the group of each input is stored.
        fixed: Further bytes per matrix.
        scale: Bytes of a scale.

    Returns:
        The format.
    """
    plain = number_format("int4" if bits == 4 else "int8", values_per_scale=group, scale_bytes=scale)
    words = Packing(
        bits=bits,
        word=4,
        columns=group,
        scale=scale,
        zero_bits=bits if zeros else 0,
        per_input=4 if index else 0,
        fixed=fixed,
    )
    return replace(plain, packing=words)


def bitsandbytes_4bit(kind: str, *, nested: bool, block: int = 64) -> Format:
    """Return the 4-bit format of bitsandbytes.

    Each block of values has a scale in FP32, or in 8 bits if nested. Codebooks and a state in JSON are stored too.

    Args:
        kind: "nf4" or "fp4".
        nested: Whether the scales are quantized.
        block: Values that share a scale.

    Returns:
        The format.
    """
    fixed = CODEBOOK["4"] + (CODEBOOK["nested"] if nested else 0)
    scale = 1 + 4 / NESTED if nested else 4
    plain = number_format("int4", values_per_scale=block, scale_bytes=scale)
    packing = Packing(bits=4, columns=block, scale=4, fixed=fixed, flat=True, nested=NESTED if nested else 0, state=kind)
    return replace(plain, packing=packing)


def state_bytes(kind: str, shape: tuple[int, int], dtype: str, *, nested: bool) -> int:
    """Return the bytes of the JSON state that bitsandbytes stores with a matrix.

    If the scales are nested, the state has their mean in decimal digits. No config gives their number; most means have
    17 to 20 characters.

    Args:
        kind: "nf4" or "fp4".
        shape: Outputs and inputs of the matrix.
        dtype: dtype of the unquantized matrix.
        nested: Whether the scales are quantized.

    Returns:
        Bytes.

    >>> state_bytes("nf4", (4096, 4096), "bfloat16", nested=False)
    82
    """
    state: dict[str, object] = {"quant_type": kind, "blocksize": 64, "dtype": dtype, "shape": list(shape)}
    if nested:
        state |= {"nested_blocksize": NESTED, "nested_dtype": "float32", "nested_offset": 0.04405477270483971}
    return len(json.dumps(state))


def stored(format: Format, matrices: Iterable[tuple[int, int]], *, base: Format, bias: int = 0, scale_bytes: int = 0) -> Format:
    """Return a format with the bytes per parameter that matrices of given shapes have.

    A format without a packing keeps its bytes.

    Args:
        format: The format with its packing.
        matrices: Shapes of the matrices as (inputs, outputs).
        base: Format of the biases.
        bias: Number of values of the biases.
        scale_bytes: Bytes of KV cache scales stored with the matrices.

    Returns:
        The format, without its packing.

    >>> blocks = fp8_blocks((128, 128))
    >>> round(stored(blocks, [(7168, 576)], base=number_format("bf16")).bytes * 7168 * 576)
    4129888
    """
    matrices = list(matrices)
    packing = format.packing
    if packing is None and not scale_bytes and (not bias or format.bytes == base.bytes):
        return format
    values = sum(inputs * outputs for inputs, outputs in matrices)
    if packing is None:
        total_bytes = values * format.bytes
    else:
        # The state of bitsandbytes names the dtype, so its length depends on it.
        dtype = {"fp16": "float16", "fp32": "float32"}.get(base.name, "bfloat16")
        total_bytes = sum(packed_bytes(packing, inputs, outputs) for inputs, outputs in matrices)
        if packing.state:
            nested = packing.nested > 0
            total_bytes += sum(state_bytes(packing.state, (m, n), dtype, nested=nested) for n, m in matrices)
    if not values + bias:
        return format

    return replace(format, bytes=(total_bytes + bias * base.bytes + scale_bytes) / (values + bias), packing=None)


# Part of a model, by the term of an operator.
PARTS: Final = {
    "projections": "attention", "feed-forward": "feed-forward", "shared experts": "shared experts", "norms": "norms",
    "embedding": "embedding", "head": "head", "vision": "vision tower",
}  # fmt: skip
# Bytes per parameter by which layers of one kind may differ, because of the states of bitsandbytes.
BYTES_TOLERANCE: Final = 2e-3
Counted = tuple[tuple[Layer, int], ...]


@dataclass(slots=True)
class Fit:
    """The rest of a match of operators and weights.

    over: weights without an operator. short: operators without weights, with their layer (-1: none).
    """

    over: list[Weight] = field(default_factory=list)
    short: list[tuple[int, Op]] = field(default_factory=list)


def model_part(op: Op) -> str:
    """Return the part of a model to which an operator belongs.

    Args:
        op: The operator.

    Returns:
        Name of the part, as in `checkpoint_weights`.
    """
    if op.term == "experts":
        return "routed experts" if op.rows == "routed" else "router"
    return PARTS.get(op.term, "other")


def fitted_ops(ops: Sequence[Op], weights: Iterable[Weight], fit: Fit, layer: int = -1) -> tuple[Op, ...]:
    """Return the operators of a layer in the formats of its weights.

    Args:
        ops: The operators.
        weights: The weights.
        fit: Collects what does not match.
        layer: Layer number, from 0; -1: the stem.

    Returns:
        The operators, in order.
    """
    formats: dict[int, Format] = {}
    open_ops = dict(enumerate(op for op in ops))
    open_ops = {index: op for index, op in open_ops.items() if op.total_weights}
    pool = _with_parameters(weights)

    def give(indices: list[int], matches: list[Weight]) -> None:
        for index in indices:
            formats[index] = _format(open_ops[index], matches)
        for index in indices:
            del open_ops[index]
        used_ids = set(map(id, matches))
        pool[:] = [weight for weight in pool if id(weight) not in used_ids]

    def meet(of_op: Callable[[Op], str], of_weight: Callable[[Weight], str]) -> None:
        """Match sets of operators and weights with one name and equal parameters."""
        sets: dict[str, list[int]] = {}
        for index, op in open_ops.items():
            sets.setdefault(of_op(op), []).append(index)
        by_name: dict[str, list[Weight]] = {}
        for weight in pool:
            by_name.setdefault(of_weight(weight), []).append(weight)
        for name, indices in sets.items():
            parameters = sum(open_ops[index].total_weights for index in indices)
            if matches := _weights_with_parameters(by_name.get(name, ()), parameters):
                give(indices, matches)

    # Match by part and name first, then by part, then by parameters, then all of the layer together.
    meet(lambda op: f"{model_part(op)}.{op.name}", lambda weight: f"{weight.part}.{weight.module.rpartition('.')[2]}")
    meet(model_part, lambda weight: weight.part)
    for index in list(open_ops):
        if matches := next((w for w in pool if w.parameters == open_ops[index].total_weights), None):
            give([index], [matches])

    meet(lambda _: "", lambda _: "")

    # An operator without matching weights gets the format of other weights of its part, as a guess.
    for index, op in open_ops.items():
        part_weights = [weight for weight in pool if weight.part == model_part(op)]
        formats[index] = _format(op, part_weights) if part_weights else op.format
        fit.short.append((layer, op))

    fit.over += pool

    return tuple(replace(op, format=formats[index]) if index in formats else op for index, op in enumerate(ops))


def _with_parameters(weights: Iterable[Weight]) -> list[Weight]:
    """Return the weights that have parameters.

    The bytes of a weight without parameters, such as a scale of the cache, are added to another weight of its part.
    """
    all_weights = list(weights)
    parameter_weights = [weight for weight in all_weights if weight.parameters]
    for weight in all_weights:
        if weight.parameters:
            continue
        position = next((i for i, candidate in enumerate(parameter_weights) if candidate.part == weight.part), None)
        if position is None:
            parameter_weights.append(weight)
        else:
            target = parameter_weights[position]
            parameter_weights[position] = replace(
                target, bytes=target.bytes + weight.bytes, scale_bytes=target.scale_bytes + weight.scale_bytes
            )
    return parameter_weights


def _weights_with_parameters(weights: Sequence[Weight], parameters: float) -> list[Weight]:
    """Return the weights with this sum of parameters: all, or all except one, or none."""
    total = sum(weight.parameters for weight in weights)
    if not weights or total < parameters:
        return []
    if total == parameters:
        return list(weights)
    extra = next((i for i, weight in enumerate(weights) if total - weight.parameters == parameters), None)
    return [] if extra is None else [weight for i, weight in enumerate(weights) if i != extra]


def _format(op: Op, weights: Sequence[Weight]) -> Format:
    """Return the most frequent format of some weights, with their bytes per parameter."""
    by_name: dict[str, int] = {}
    for weight in weights:
        by_name[weight.format] = by_name.get(weight.format, 0) + weight.parameters
    name = max(by_name, key=lambda name: by_name[name])
    parameters = sum(weight.parameters for weight in weights)
    format = op.format if op.format.name == name else number_format(name)
    block = format.block or max((weight.block for weight in weights if weight.format == name), default=0)
    return replace(format, bytes=sum(w.bytes for w in weights) / max(parameters, 1), block=block, packing=None)


def fitted_layers(layers: Iterable[Layer], weights: Sequence[Weight], fit: Fit) -> Counted:
    """Return the kinds of layers with counts, each in the formats of its weights.

    Args:
        layers: The layers in order.
        weights: The weights of all layers.
        fit: Collects what does not match.

    Returns:
        Pairs of layer and count.
    """
    by_layer: dict[int, list[Weight]] = {}
    for weight in weights:
        by_layer.setdefault(weight.layer, []).append(weight)
    formatted = []
    for number, layer in enumerate(layers):
        if any(op.total_weights for op in layer.ops):
            formatted.append(replace(layer, ops=fitted_ops(layer.ops, by_layer.pop(number, ()), fit, number)))
        else:
            formatted.append(layer)
    fit.over += [weight for unused in by_layer.values() for weight in unused]
    return count_layer_kinds(formatted)


def count_layer_kinds(layers: Iterable[Layer]) -> Counted:
    """Count equal layers.

    Layers are equal if their bytes per parameter round to the same multiple of `BYTES_TOLERANCE`; the kind then has
    their mean.

    Args:
        layers: The layers in order.

    Returns:
        Pairs of layer and count.
    """
    kinds: dict[Layer, list[Layer]] = {}
    for layer in layers:
        # Rounded bytes make nearly equal layers compare as equal.
        ops = tuple(replace(op, format=replace(op.format, bytes=round(op.format.bytes / BYTES_TOLERANCE))) for op in layer.ops)
        kinds.setdefault(replace(layer, ops=ops), []).append(layer)
    layer_kinds = []
    for same in kinds.values():
        first = same[0]
        if any(layer != first for layer in same):
            means = (sum(layer.ops[i].format.bytes for layer in same) / len(same) for i in range(len(first.ops)))
            formats = [replace(op.format, bytes=mean) for op, mean in zip(first.ops, means, strict=True)]
            first = replace(first, ops=tuple(replace(op, format=f) for op, f in zip(first.ops, formats, strict=True)))
        layer_kinds.append((first, len(same)))
    return tuple((_with_formats_in_name(layer, layer_kinds), n) for layer, n in layer_kinds)


def _with_formats_in_name(layer: Layer, kinds: Iterable[tuple[Layer, int]]) -> Layer:
    """Return a layer with its formats in its name if another kind has the same name."""
    if sum(kind.name == layer.name for kind, _ in kinds) == 1:
        return layer
    format_bytes: dict[str, float] = {}
    for op in layer.ops:
        if op.flops_per_row:
            format_bytes[op.format.name] = format_bytes.get(op.format.name, 0.0) + op.total_weights * op.format.bytes
    formats = sorted(format_bytes, key=lambda name: -format_bytes[name])
    return replace(layer, name=f"{layer.name}, {' and '.join(formats[:3])}") if formats else layer


def fitted_draft(draft: Counted, weights: Sequence[Weight], fit: Fit) -> Counted:
    """Return the multi-token-prediction layers in the formats of their weights.

    Args:
        draft: Pairs of layer and count.
        weights: Their weights.
        fit: Collects what does not match.

    Returns:
        Pairs of layer and count.
    """
    if not draft or not weights:
        fit.over += weights
        return draft

    numbers = sorted({weight.layer for weight in weights if weight.layer >= 0})
    plain_layers = [layer for layer, n in draft for _ in range(n)]

    # Tools number the draft layers differently, so one layer takes all draft weights.
    if len(plain_layers) == 1:
        sets = [list(weights)]
    elif len(numbers) == len(plain_layers):
        sets = [[weight for weight in weights if weight.layer == number] for number in numbers]
        sets[0] += [weight for weight in weights if weight.layer < 0]
    else:
        fit.over += weights
        fit.short += [(-1, op) for layer in plain_layers for op in layer.ops if op.total_weights]
        return draft

    return count_layer_kinds(
        replace(layer, ops=fitted_ops(layer.ops, layer_weights, fit))
        for layer, layer_weights in zip(plain_layers, sets, strict=True)
    )


def differences(fit: Fit) -> tuple[Difference, ...]:
    """Return the unmatched operators and weights.

    Args:
        fit: The rest of the match.

    Returns:
        One difference per name without layer number, the largest first.
    """
    totals: dict[tuple[str, str], list[int]] = {}
    for weight in fit.over:
        for name in [weight.module] if len(weight.names) > 1 else weight.names:
            count_and_bytes = totals.setdefault((re.sub(r"(?<=\.)\d+(?=\.)", "N", name), weight.group), [0, 0])
            count_and_bytes[0] += 1
            count_and_bytes[1] += weight.bytes
    for layer, op in fit.short:
        prefix = "layers.N." if layer >= 0 else ""
        count_and_bytes = totals.setdefault((f"{prefix}{op.name}, counted by the model only", model_part(op)), [0, 0])
        count_and_bytes[0] += 1
        count_and_bytes[1] -= round(op.total_weights * op.format.bytes)
    mismatches = [Difference(name=label, group=group, count=n, bytes=size) for (label, group), (n, size) in totals.items()]
    return tuple(sorted(mismatches, key=lambda mismatch: -abs(mismatch.bytes)))
