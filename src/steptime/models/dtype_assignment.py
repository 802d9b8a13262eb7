"""How the tools that write checkpoints store a matrix: its values, and the scales and zero points beside them.

Read in the tools' own sources: DeepSeek-V3's inference/fp8_cast_bf16.py, NVIDIA Model Optimizer (export/quant_utils.py),
transformers' mxfp4, AutoGPTQ and GPTQModel (QuantLinear), AutoAWQ (WQLinear_GEMM), compressed-tensors, bitsandbytes
(QuantState.as_dict).

Gives a model the formats in which its checkpoint stores it: each operator the bytes of the tensors that make it.

Operators and weights of a layer meet by their names where their parameters are equal, else by the part of the model that they
are of, all together. What is left on either side is a difference, and is named.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from steptime.hardware.number_formats import Format, Packing, number_format, packed_bytes
from steptime.models.checkpoint_summary import Difference
from steptime.models.checkpoint_weights import Weight
from steptime.models.model import Layer, Op

SCALAR: Final = 4  # bytes of a scale of a whole matrix, in fp32
NESTED: Final = 256  # scales of bitsandbytes that share a scale of their own
CODEBOOK: Final = {"4": 16 * 4, "nested": 256 * 4}  # bytes of the values that codes of bitsandbytes stand for, in fp32


def fp8_blocks(block: tuple[int, int]) -> Format:
    """FP8 with a scale in fp32 for each block of (outputs, inputs): weight, weight_scale_inv."""
    rows, columns = block
    plain = number_format("fp8", values_per_scale=rows * columns, scale_bytes=4, block=max(block))
    return replace(plain, packing=Packing(columns=columns, rows=rows, scale=4))


def per_matrix(name: str, *, scales: int, scale: int = SCALAR) -> Format:
    """8 bits with `scales` scales of `scale` bytes for each matrix: of the weights, and of inputs where those are fixed."""
    return replace(number_format(name), packing=Packing(fixed=scales * scale))


def per_output(name: str, *, scale: int, fixed: int = 0) -> Format:
    """8 bits with a scale of `scale` bytes for each output, and `fixed` bytes besides."""
    return replace(number_format(name), packing=Packing(scale=scale, fixed=fixed))


def small_blocks(name: str, *, scalars: int = 0) -> Format:
    """NVFP4, MXFP4 or MXFP8: a scale of a byte for 16 or 32 values, and `scalars` scales in fp32 for each matrix."""
    bits = 8 if name == "mxfp8" else 4
    columns = 16 if name == "nvfp4" else 32
    return replace(number_format(name), packing=Packing(bits=bits, columns=columns, scale=1, fixed=scalars * SCALAR))


def integers(bits: int, group: int, *, zeros: bool, index: bool = False, fixed: int = 0, scale: int = 2) -> Format:
    """Integers of GPTQ, AWQ or compressed-tensors, packed into words of 32 bits; `group` 0: a scale for each output.

    zeros: whether zero points are stored; index: whether the group of each input is.
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
    """4 bits of bitsandbytes: a scale for 64 values, in fp32 or, `nested`, in 8 bits; the tables of both; a state in JSON."""
    fixed = CODEBOOK["4"] + (CODEBOOK["nested"] if nested else 0)
    scale = 1 + 4 / NESTED if nested else 4
    plain = number_format("int4", values_per_scale=block, scale_bytes=scale)
    packing = Packing(bits=4, columns=block, scale=4, fixed=fixed, flat=True, nested=NESTED if nested else 0, state=kind)
    return replace(plain, packing=packing)


def state_bytes(kind: str, shape: tuple[int, int], dtype: str, *, nested: bool) -> int:
    """Bytes of the state that bitsandbytes stores in JSON beside a matrix of `shape`, (outputs, inputs).

    Where scales are nested, it holds the mean of the scales in digits, which no config tells: most have 17 to 20 characters.

    >>> state_bytes("nf4", (4096, 4096), "bfloat16", nested=False)
    82
    """
    state: dict[str, object] = {"quant_type": kind, "blocksize": 64, "dtype": dtype, "shape": list(shape)}
    if nested:
        state |= {"nested_blocksize": NESTED, "nested_dtype": "float32", "nested_offset": 0.04405477270483971}
    return len(json.dumps(state))


def stored(format: Format, matrices: Iterable[tuple[int, int]], *, base: Format, bias: int = 0, scale_bytes: int = 0) -> Format:
    """Return `format` with the bytes that a parameter takes in these (inputs, outputs) with `bias` values in `base`.

    scale_bytes: bytes of scales of the cache that stand with them. A format without a packing keeps its bytes.

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
        dtype = {"fp16": "float16", "fp32": "float32"}.get(base.name, "bfloat16")
        total_bytes = sum(packed_bytes(packing, inputs, outputs) for inputs, outputs in matrices)
        if packing.state:
            nested = packing.nested > 0
            total_bytes += sum(state_bytes(packing.state, (m, n), dtype, nested=nested) for n, m in matrices)
    if not values + bias:
        return format
    return replace(format, bytes=(total_bytes + bias * base.bytes + scale_bytes) / (values + bias), packing=None)


PARTS: Final = {
    "projections": "attention", "feed-forward": "feed-forward", "shared experts": "shared experts", "norms": "norms",
    "embedding": "embedding", "head": "head", "vision": "vision tower",
}  # fmt: skip
BYTES_TOLERANCE: Final = 2e-3  # bytes of a parameter by which layers of one kind may differ, as states of bitsandbytes do
Counted = tuple[tuple[Layer, int], ...]


@dataclass(slots=True)
class Fit:
    """What was found: `over`, weights that no operator takes; `short`, operators that no weight makes, with their layer."""

    over: list[Weight] = field(default_factory=list)
    short: list[tuple[int, Op]] = field(default_factory=list)


def model_part(op: Op) -> str:
    """Return the part of a model that an operator is of, as `weights` calls it."""
    if op.term == "experts":
        return "routed experts" if op.rows == "routed" else "router"
    return PARTS.get(op.term, "other")


def fitted_ops(ops: Sequence[Op], weights: Iterable[Weight], fit: Fit, layer: int = -1) -> tuple[Op, ...]:
    """Return the operators of a layer with the formats of its weights."""
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
        """Give each set of operators the weights of its name, where their parameters are equal."""
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

    meet(lambda op: f"{model_part(op)}.{op.name}", lambda weight: f"{weight.part}.{weight.module.rpartition('.')[2]}")
    meet(model_part, lambda weight: weight.part)
    for index in list(open_ops):
        if matches := next((w for w in pool if w.parameters == open_ops[index].total_weights), None):
            give([index], [matches])
    meet(lambda _: "", lambda _: "")
    for index, op in open_ops.items():
        part_weights = [weight for weight in pool if weight.part == model_part(op)]
        formats[index] = _format(op, part_weights) if part_weights else op.format
        fit.short.append((layer, op))
    fit.over += pool
    return tuple(replace(op, format=formats[index]) if index in formats else op for index, op in enumerate(ops))


def _with_parameters(weights: Iterable[Weight]) -> list[Weight]:
    """Return weights that have parameters; what has none, such as scales of the cache, goes with another of its part."""
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
    """Return the weights that have as many parameters as that: all, or all but one; none where that cannot be."""
    total = sum(weight.parameters for weight in weights)
    if not weights or total < parameters:
        return []
    if total == parameters:
        return list(weights)
    extra = next((i for i, weight in enumerate(weights) if total - weight.parameters == parameters), None)
    return [] if extra is None else [weight for i, weight in enumerate(weights) if i != extra]


def _format(op: Op, weights: Sequence[Weight]) -> Format:
    """Return the format that most parameters of some weights have, with the bytes that one of them takes."""
    by_name: dict[str, int] = {}
    for weight in weights:
        by_name[weight.format] = by_name.get(weight.format, 0) + weight.parameters
    name = max(by_name, key=lambda name: by_name[name])
    parameters = sum(weight.parameters for weight in weights)
    format = op.format if op.format.name == name else number_format(name)
    block = format.block or max((weight.block for weight in weights if weight.format == name), default=0)
    return replace(format, bytes=sum(w.bytes for w in weights) / max(parameters, 1), block=block, packing=None)


def fitted_layers(layers: Iterable[Layer], weights: Sequence[Weight], fit: Fit) -> Counted:
    """Return the kinds of layers with their counts, each in the formats of its own weights."""
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
    """Count layers of one kind; where the bytes of a parameter differ by a hair, the kind has their mean."""
    kinds: dict[Layer, list[Layer]] = {}
    for layer in layers:
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
    """Return a layer with its formats in its name, where another kind has the same name: the most of its bytes first."""
    if sum(kind.name == layer.name for kind, _ in kinds) == 1:
        return layer
    format_bytes: dict[str, float] = {}
    for op in layer.ops:
        if op.flops_per_row:
            format_bytes[op.format.name] = format_bytes.get(op.format.name, 0.0) + op.total_weights * op.format.bytes
    formats = sorted(format_bytes, key=lambda name: -format_bytes[name])
    return replace(layer, name=f"{layer.name}, {' and '.join(formats[:3])}") if formats else layer


def fitted_draft(draft: Counted, weights: Sequence[Weight], fit: Fit) -> Counted:
    """Return the multi-token-prediction layers in the formats of their weights."""
    if not draft or not weights:
        fit.over += weights
        return draft
    numbers = sorted({weight.layer for weight in weights if weight.layer >= 0})
    plain_layers = [layer for layer, n in draft for _ in range(n)]
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
    """Return what is left on either side, as one line for what differs in the number of its layer alone."""
    totals: dict[tuple[str, str], list[int]] = {}
    for weight in fit.over:
        for name in [weight.module] if len(weight.names) > 1 else weight.names:
            count_and_bytes = totals.setdefault((re.sub(r"(?<=\.)\d+(?=\.)", "N", name), weight.group), [0, 0])
            count_and_bytes[0] += 1
            count_and_bytes[1] += weight.bytes
    for layer, op in fit.short:
        prefix = "layers.N." if layer >= 0 else ""
        count_and_bytes = totals.setdefault((f"{prefix}{op.name}, which the model counts", model_part(op)), [0, 0])
        count_and_bytes[0] += 1
        count_and_bytes[1] -= round(op.total_weights * op.format.bytes)
    mismatches = [Difference(name=label, group=group, count=n, bytes=size) for (label, group), (n, size) in totals.items()]
    return tuple(sorted(mismatches, key=lambda mismatch: -abs(mismatch.bytes)))
