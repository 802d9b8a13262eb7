"""Joins a model with the headers of its checkpoint: bytes, formats, differences.

Each operator gets the format and the bytes of its tensors. Operators and weights of a layer are matched by name if their
parameters are equal, and otherwise by the part of the model, all together. The rest on both sides is a difference with a
name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from steptime.hardware.number_formats import Format, number_format
from steptime.models.model import Checkpoint, Kinds, Layer, Model, Op
from steptime.models.safetensors_header import BITS, Headers, Tensor
from steptime.result_base import unit
from steptime.units import counted, show

# Endings of tensors with values.
VALUES: Final = r"weight|_?weight_qdata|weight_packed|qweight|blocks|bias"
# Endings of tensors that unpack values.
AUXILIARY_ROLES: Final = (
    r"weight_scale_inv|_?weight_scale(?:_2)?|weight_global_scale|input_scale(?:_inv|_ub)?|input_global_scale|input_amax|"
    r"_?weight_zero_point|weight_shape|weight_g_idx|g_idx|scales|biases|qzeros|zeros|SCB|weight_format|_?weight_block_size|"
    r"weight\.(?:absmax|quant_map|nested_absmax|nested_quant_map|quant_state\.\w+)|[kqv]_scale|kv_scale|output_scale|"
    r"prob_scale|pre_quant_scale|scale_inv|scale"
)
_ENDING: Final = re.compile(rf"(?:{AUXILIARY_ROLES}|{VALUES})")
LOOSE: Final = ("k_scale", "v_scale", "q_scale", "kv_scale", "prob_scale", "output_scale", "input_scale")
"""Roles of tensors whose module has no values: scales of the KV cache and of activations."""
_NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.)")
_VALUES: Final = re.compile(VALUES)
# Names of fused experts, whose ending is joined with "_" instead of ".".
FUSED: Final = re.compile(rf"(.+\.(?:gate_up_proj|up_proj|gate_proj|down_proj|w[123]))_({AUXILIARY_ROLES}|scale|blocks|bias)")
# dtypes that may contain several packed values.
PACKED: Final = ("U8", "I8", "I32", "U32")
OF_DTYPE: Final = {
    "BF16": "bf16", "F16": "fp16", "F32": "fp32", "F64": "fp32", "I8": "int8", "U8": "int8", "F4": "fp4", "F8_E4M3": "fp8",
    "F8_E5M2": "fp8", "F8_E4M3FNUZ": "fp8", "F8_E5M2FNUZ": "fp8",
}  # fmt: skip
"""Formats of unpacked values by dtype; types of GGUF keep their names."""

# Layer number in the name of a module.
LAYER: Final = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|blk)\.(\d+)(?:\.|$)")
VISION, DRAFT = "vision tower", "draft layers"
# Parts of a model in order of precedence, with a pattern of module names.
GROUPS: Final = (
    (VISION, r"vision|visual|vit\b|image|multi_modal|mm_projector|\bmerger\b|audio|speech|patch_"),
    (DRAFT, r"\bmtp|\bnextn|\beagle|eh_proj|\benorm\b|\bhnorm\b|shared_head"),
    ("router", r"(?:gate|router|shared_expert_gate|e_score_correction|router\..*|expert_bias)(?:_bias)?$"),
    ("norms", r"norm[^.]*$|(?:^|\.)ln_\w+$"),
    ("routed experts", r"\bexperts\b"),
    ("shared experts", r"shared_(?:expert|mlp)|share_expert"),
    ("embedding", r"embed|\bwte\b|\bwpe\b"),
    ("head", r"lm_head|^(?:model\.)?output$|^head$"),
    ("attention", r"attn|attention|\bmixer\b|\bsinks$|\bmamba\b|[qkvo]_proj"),
    ("feed-forward", r"\bmlp|ffn|feed_forward|(?:gate|up|down)_proj|\bw[123]$"),
)
# Characters. Real names have at most about 150; the time of a search may grow with the square.
LONGEST_MODULE: Final = 500
_GROUPS: Final = tuple((name, re.compile(pattern)) for name, pattern in GROUPS)


@dataclass(slots=True)
class Weight:
    """The stored weight of one module: its parameters, their format and their bytes.

    group: part of the model; the multi-token-prediction layers and the vision tower are parts. part: part within a layer.
    block: columns of a two-dimensional block with one scale. scale_bytes [B]: scales, included in `bytes`.
    """

    module: str
    group: str
    part: str
    layer: int
    format: str = "fp32"
    block: int = 0
    parameters: int = 0
    bytes: int = 0
    scale_bytes: int = 0
    names: list[str] = field(default_factory=list)


@lru_cache(maxsize=4096)
def _groups(module: str) -> tuple[str, str]:
    """Return the part of the model and the part of the layer of a module name."""
    groups = [name for name, pattern in _GROUPS if pattern.search(module[:LONGEST_MODULE])]
    return next(iter(groups), "other"), next((name for name in groups if name != DRAFT), "other")


def parted(name: str) -> tuple[str, str]:
    """Return the module of a tensor and the role of the tensor in it.

    Args:
        name: Name of the tensor.

    Returns:
        Path of the module, and the ending.

    >>> parted("model.layers.0.self_attn.q_proj.weight_scale_inv"), parted("model.layers.0.mlp.experts.gate_up_proj_blocks")
    (('model.layers.0.self_attn.q_proj', 'weight_scale_inv'), ('model.layers.0.mlp.experts.gate_up_proj', 'blocks'))
    """
    module, _, role = name.rpartition(".")
    if module and not _ENDING.fullmatch(role):
        # Endings with dots, such as weight.absmax and weight.quant_state.bitsandbytes__nf4.
        outer, _, before = module.rpartition(".")
        further, _, first = outer.rpartition(".")
        splits = ((outer, f"{before}.{role}"), (further, f"{first}.{before}.{role}"))
        module, role = next(((owner, ending) for owner, ending in splits if owner and _ENDING.fullmatch(ending)), ("", ""))
    if module:
        return module, role
    fused = FUSED.fullmatch(name)
    return (fused[1], fused[2]) if fused else (name, "weight")


def assemble_weights(
    tensors: Iterable[Tensor], *, depth: int, bits: int = 4, rename: Callable[[str], str] = str
) -> list[Weight]:
    """Return the weights that a checkpoint's tensors form.

    Args:
        tensors: The tensors.
        depth: Layers of the model; layers with a higher number are multi-token-prediction layers.
        bits: Bits of an integer if several share a word and the tensors do not show it.
        rename: Maps a module name of the checkpoint to its name here.

    Returns:
        The weights.
    """
    modules: dict[str, dict[str, Tensor]] = {}
    for tensor in tensors:
        module, role = parted(tensor.name)
        roles = modules.setdefault(module, {})
        roles[role if role not in roles else tensor.name] = tensor
    joined: dict[str, Weight] = {}
    for module, roles in modules.items():
        weight = _weight(rename(module), roles, depth, bits)
        if weight.module in joined:
            _join(joined[weight.module], weight)
        else:
            joined[weight.module] = weight
    return list(joined.values())


def _join(weight: Weight, second: Weight) -> None:
    """Add a second tensor to a weight that another tool stores in two tensors."""
    weight.parameters, weight.bytes = weight.parameters + second.parameters, weight.bytes + second.bytes
    weight.scale_bytes += second.scale_bytes
    weight.names += second.names


def _weight(module: str, roles: dict[str, Tensor], depth: int, bits: int) -> Weight:
    numbered = LAYER.search(module)
    layer = int(numbered[1]) if numbered and len(numbered[1]) < 6 else -1
    group, part = _groups(_NUMBER.sub("0", module))

    # Layers of a tower have numbers too, which are not those of the language model.
    if group == VISION:
        layer = -1
    elif layer >= depth:
        group = DRAFT

    weight = Weight(module, group, part, layer, names=[tensor.name for tensor in roles.values()])

    # The largest tensor of values decides the format of the module.
    has_values, largest = _has_values(roles), -1
    for role, tensor in roles.items():
        weight.bytes += tensor.bytes
        # A scale without values in its module counts as scale only if its role says so.
        if not _VALUES.fullmatch(role) and (has_values or role in LOOSE):
            weight.scale_bytes += tensor.bytes
            continue
        parameters, format = _values(role, tensor, roles, bits)
        weight.parameters += parameters
        if role != "bias" and parameters > largest:
            weight.format, largest = format, parameters
            weight.block = _block(tensor, _scales(roles))

    # A module with only a bias has the format of the bias.
    if largest < 0 and "bias" in roles:
        weight.format = _values("bias", roles["bias"], roles, bits)[1]

    return weight


def _block(tensor: Tensor, scales: Tensor | None) -> int:
    """Return the columns of a two-dimensional block with one scale, as a power of two.

    Return 0 without such blocks.
    """
    if scales is None or not len(scales.shape) == len(tensor.shape) >= 2 or min(*scales.shape, *tensor.shape) < 1:
        return 0
    rows, columns = (math.ceil(tensor.shape[i] / scales.shape[i]) for i in (-2, -1))
    return 1 << (max(rows, columns) - 1).bit_length() if min(rows, columns) > 1 else 0


def _has_values(roles: dict[str, Tensor]) -> bool:
    return any(_VALUES.fullmatch(role) and role != "bias" for role in roles)


def _values(role: str, tensor: Tensor, roles: dict[str, Tensor], bits: int) -> tuple[int, str]:
    """Return the parameters of a tensor of values, and their format."""
    if tensor.dtype not in BITS:
        # A type of GGUF, whose sizes are unpacked.
        return tensor.values, tensor.dtype.lower()
    per = _per_value(role, tensor, roles, bits)
    scales = _scales(roles)
    if per > 1:
        blocked = scales is not None and scales.dtype.startswith(("F8", "U8")) and "weight.absmax" not in roles
        narrow = "int4" if not blocked or scales is None else "nvfp4" if scales.dtype.startswith("F8_E4") else "mxfp4"
        return round(tensor.values * per), narrow if per >= 8 or tensor.dtype in ("U8", "I8") else "int8"
    if tensor.dtype.startswith("F8") and scales is not None and scales.dtype in ("U8", "F8_E8M0") and len(scales.shape) > 1:
        in_rows = scales.shape[-1] * 32 == tensor.shape[-1]
        return tensor.values, "mxfp8" if in_rows else "fp8"
    return tensor.values, OF_DTYPE.get(tensor.dtype, "fp32")


def _scales(tensor_roles: dict[str, Tensor]) -> Tensor | None:
    roles = ("weight_scale_inv", "weight_scale", "_weight_scale", "scales", "scale", "scale_inv", "weight.absmax")
    return next((tensor_roles[role] for role in roles if role in tensor_roles), None)


def _per_value(role: str, tensor: Tensor, roles: dict[str, Tensor], bits: int) -> float:
    """Return the parameters per stored value: 2 in a byte, 8 in a word, 1 unpacked."""
    if role == "bias" or tensor.dtype not in PACKED:
        return 1

    # MLX calls packed values "weight", but stores "scales" with them.
    words = role in ("qweight", "weight_packed") or role.endswith("_qdata") or "scales" in roles
    if words and tensor.dtype in ("I32", "U32"):
        return 32 / (_bits_of_words(roles) or bits)
    if role in ("blocks", "weight_packed") or "weight.absmax" in roles or (tensor.dtype == "U8" and role.endswith("_qdata")):
        return 2
    scales = _scales(roles)
    if tensor.dtype in ("U8", "I8") and scales is not None and len(scales.shape) == len(tensor.shape) > 1:
        shared = tensor.shape[-1] / max(scales.shape[-1], 1)
        # A scale for 8 or 16 bytes is a scale for 16 or 32 values of 4 bits.
        if shared in (8, 16) and scales.dtype.startswith(("F8", "U8")):
            return 2
        # ModelOpt's W4A16 packs along the outputs.
        if scales.shape[0] == 2 * tensor.shape[0]:
            return 2

    return 1


def _bits_of_words(roles: dict[str, Tensor]) -> int:
    """Return the bits of an integer of GPTQ or AWQ, from the packed zero points; or 0."""
    zeros, scales = roles.get("qzeros"), roles.get("scales")
    if zeros is None or scales is None or not zeros.shape or not scales.shape or not scales.shape[-1]:
        return 0
    word_bits = 32 * zeros.shape[-1] / scales.shape[-1]
    return int(word_bits) if word_bits in (2, 3, 4, 8) else 0


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
        Name of the part, as in `GROUPS`.
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
