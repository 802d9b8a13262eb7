"""Joins a model with the headers of its checkpoint: bytes, formats, differences.

Each operator gets the format and the bytes of its tensors. Operators and weights of a layer are matched by name if their
parameters are equal, and otherwise by the part of the model, all together. The rest on both sides is a difference with a
name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from steptime.hardware.number_formats import Format, number_format
from steptime.models.checkpoint_weights import DRAFT, VISION, Weight, assemble_weights
from steptime.models.model import Checkpoint, Kinds, Layer, Model, Op
from steptime.models.safetensors_header import Headers
from steptime.result_base import unit
from steptime.units import counted, show

# Names of files or layers in a note.
NAMES_PER_NOTE = 4
# Names of the embedding in checkpoints.
TABLES = ("embed_tokens", "wte", "tok_embeddings", "word_embeddings", "embedding", "embeddings", "embed_in")
# Part of a model, by the term of an operator.
PARTS: Final = {
    "projections": "attention", "feed-forward": "feed-forward", "shared experts": "shared experts", "norms": "norms",
    "embedding": "embedding", "head": "head", "vision": "vision tower",
}  # fmt: skip
# Bytes per parameter by which layers of one kind may differ, because of the states of bitsandbytes.
BYTES_TOLERANCE: Final = 2e-3


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


@dataclass(slots=True)
class Fit:
    """The rest of a match of operators and weights.

    over: weights without an operator. short: operators without weights, with their layer (-1: none).
    """

    over: list[Weight] = field(default_factory=list)
    short: list[tuple[int, Op]] = field(default_factory=list)


def with_files(
    model: Model, layers: Sequence[Layer], headers: Headers, *, bits: int = 4, rename: Callable[[str], str] = str
) -> Model:
    """Return a model in the formats of its checkpoint, with a summary of the files and notes.

    If files of the checkpoint are missing, the formats of the config stay.

    Args:
        model: The model that its config describes.
        layers: Its layers in order.
        headers: Headers of the checkpoint.
        bits: Bits of an integer if several share a word and only the config gives them.
        rename: Maps a module name of the checkpoint to its name here.

    Returns:
        The model.
    """
    weights = assemble_weights(headers.tensors, depth=len(layers), bits=bits, rename=rename)
    summary = _summary(headers, weights)
    if headers.missing:
        return replace(model, checkpoint=Checkpoint(summary=summary), notes=(*model.notes, _missing_files_note(headers)))
    fit = Fit()
    weights, dtype_differences = _weights_in_bf16(weights, headers)

    # Towers have numbered layers too, but they belong to the stem.
    layer_weights = [w for w in weights if w.layer >= 0 and w.group not in (DRAFT, VISION)]
    other_weights = [w for w in weights if w.group == VISION or (w.layer < 0 and w.group != DRAFT)]
    model = replace(
        model,
        layers=fitted_layers(layers, layer_weights, fit),
        stem=fitted_ops(model.stem, other_weights, fit),
        draft=fitted_draft(model.draft, [w for w in weights if w.group == DRAFT], fit),
    )
    differences = tuple(sorted((*_differences(fit), *dtype_differences), key=lambda difference: -abs(difference.bytes)))
    summary = replace(summary, differences=differences)
    stored_layers = {weight.layer for weight in layer_weights}
    notes = (*model.notes, *_notes(fit, headers, stored_layers, len(layers), model.vocabulary, rename))
    return replace(model, checkpoint=Checkpoint(bytes=summary.bytes, summary=summary), notes=notes)


def _summary(headers: Headers, weights: Iterable[Weight]) -> CheckpointSummary:
    """Return the content of the files by part and by dtype, the largest first."""
    groups: dict[str, list[int]] = {}
    for weight in weights:
        counts = groups.setdefault(weight.group, [0, 0, 0, 0])
        for i, value in enumerate((len(weight.names), weight.parameters, weight.bytes, weight.scale_bytes)):
            counts[i] += value

    dtypes: dict[str, list[int]] = {}
    for tensor in headers.tensors:
        count_and_bytes = dtypes.setdefault(tensor.dtype, [0, 0])
        count_and_bytes[0] += 1
        count_and_bytes[1] += tensor.bytes

    parts = [HeldGroup(name=k, tensors=n, parameters=p, bytes=b, scales=s) for k, (n, p, b, s) in groups.items()]
    kinds = [HeldDtype(name=name, tensors=n, bytes=size) for name, (n, size) in dtypes.items()]

    return CheckpointSummary(
        kind=headers.kind,
        files=headers.files,
        missing=headers.missing,
        stated=headers.total,
        bytes=headers.bytes,
        tensors=len(headers.tensors),
        parameters=sum(part.parameters for part in parts),
        scales=sum(part.scales for part in parts),
        groups=tuple(sorted(parts, key=lambda part: -part.bytes)),
        dtypes=tuple(sorted(kinds, key=lambda kind: -kind.bytes)),
    )


def _missing_files_note(headers: Headers) -> str:
    lacking = counted(len(headers.missing), "file")
    total_text = f" of {show(headers.total, 'B')} in total" if headers.total else ""
    return (
        f"the checkpoint is incomplete: {lacking} of {headers.files + len(headers.missing)} "
        f"{'is' if len(headers.missing) == 1 else 'are'} missing ({_first_names(headers.missing)}); "
        f"{show(headers.bytes, 'B')} of tensors are present{total_text}. Weights are computed from the config"
    )


def _first_names(names: Iterable[object]) -> str:
    texts = [str(name) for name in names]
    return ", ".join(texts[:NAMES_PER_NOTE]) + (
        f" and {len(texts) - NAMES_PER_NOTE} more" if len(texts) > NAMES_PER_NOTE else ""
    )


def _weights_in_bf16(weights: list[Weight], headers: Headers) -> tuple[list[Weight], tuple[Difference, ...]]:
    """Return the weights of an FP32 checkpoint in BF16, as engines serve them.

    The second result is the difference in bytes.
    """
    fp32_weights = [weight for weight in weights if weight.format == "fp32"]
    # GGUF runs as stored; a few FP32 values in a BF16 checkpoint stay FP32.
    if headers.kind == "gguf" or 2 * sum(w.parameters for w in fp32_weights) <= sum(w.parameters for w in weights):
        return weights, ()
    bf16_weights = [replace(w, format="bf16", bytes=w.bytes // 2) if w.format == "fp32" else w for w in weights]
    saved_bytes = sum(weight.bytes - weight.bytes // 2 for weight in fp32_weights)
    label = "values in fp32 that engines serve in bf16"
    return bf16_weights, (Difference(name=label, group="all", count=len(fp32_weights), bytes=saved_bytes),)


def _notes(
    fit: Fit, headers: Headers, stored_layers: set[int], depth: int, vocabulary: int, rename: Callable[[str], str]
) -> Iterator[str]:
    """Yield notes about files that do not agree with the config."""
    missing_layers = [number for number in range(depth) if number not in stored_layers]
    if missing_layers:
        yield f"the config has {depth} layers, but the files lack {len(missing_layers)} of them: {_first_names(missing_layers)}"
    extra_layers = sorted({weight.layer for weight in fit.over if weight.layer >= depth and weight.part == "norms"})
    if extra_layers:
        yield f"the config has {depth} layers, but the files have {len(extra_layers)} more: {_first_names(extra_layers)}"

    # The first embedding whose rows differ from the vocabulary.
    for tensor in headers.tensors:
        is_table = rename(tensor.name.removesuffix(".weight")).rpartition(".")[2] in TABLES and len(tensor.shape) == 2
        of_tower = any(word in tensor.name for word in ("vision", "visual", "audio"))
        if is_table and not of_tower and tensor.shape[0] != vocabulary:
            rows = f"{tensor.shape[0]:,}"
            yield f"the config has a vocabulary of {vocabulary:,}, but the embedding of the files has {rows} rows"
            break

    if fit.short:
        names = _first_names(dict.fromkeys(op.name for _, op in fit.short))
        yield f"no tensors of the files have the parameters of the config for: {names}"
    if headers.total not in (0, headers.bytes):
        yield f"the index states {headers.total:,} B of tensors, but the files have {headers.bytes:,} B"


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


def fitted_layers(layers: Iterable[Layer], weights: Sequence[Weight], fit: Fit) -> Kinds:
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


def count_layer_kinds(layers: Iterable[Layer]) -> Kinds:
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


def fitted_draft(draft: Kinds, weights: Sequence[Weight], fit: Fit) -> Kinds:
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


def _differences(fit: Fit) -> tuple[Difference, ...]:
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
