"""Puts the tensors of a checkpoint together to weights: the values of a module, with the scales that stand beside them.

Tools name what they store by endings: `weight`, `weight_scale_inv`, `qweight`, `qzeros`, `g_idx`, `weight_packed`,
`weight.absmax`, `gate_up_proj_blocks` and their like. An ending says whether a tensor holds values, or what unpacks them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from steptime.models.safetensors_header import BITS, Tensor

VALUES: Final = r"weight|_?weight_qdata|weight_packed|qweight|blocks|bias"
AUXILIARY_ROLES: Final = (
    r"weight_scale_inv|_?weight_scale(?:_2)?|weight_global_scale|input_scale(?:_inv|_ub)?|input_global_scale|input_amax|"
    r"_?weight_zero_point|weight_shape|weight_g_idx|g_idx|scales|biases|qzeros|zeros|SCB|weight_format|_?weight_block_size|"
    r"weight\.(?:absmax|quant_map|nested_absmax|nested_quant_map|quant_state\.\w+)|[kqv]_scale|kv_scale|output_scale|"
    r"prob_scale|pre_quant_scale|scale_inv|scale"
)
_ENDING: Final = re.compile(rf"(?:{AUXILIARY_ROLES}|{VALUES})")
LOOSE: Final = ("k_scale", "v_scale", "q_scale", "kv_scale", "prob_scale", "output_scale", "input_scale")
"""What stands beside no values of its own module: scales of the cache and of activations."""
_NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.)")
_VALUES: Final = re.compile(VALUES)
FUSED: Final = re.compile(rf"(.+\.(?:gate_up_proj|up_proj|gate_proj|down_proj|w[123]))_({AUXILIARY_ROLES}|scale|blocks|bias)")
PACKED: Final = ("U8", "I8", "I32", "U32")
OF_DTYPE: Final = {
    "BF16": "bf16", "F16": "fp16", "F32": "fp32", "F64": "fp32", "I8": "int8", "U8": "int8", "F4": "fp4", "F8_E4M3": "fp8",
    "F8_E5M2": "fp8", "F8_E4M3FNUZ": "fp8", "F8_E5M2FNUZ": "fp8",
}  # fmt: skip
"""Formats by dtype, of values that nothing packs; GGUF's types go by their own names."""

LAYER: Final = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|blk)\.(\d+)(?:\.|$)")
VISION, DRAFT = "vision tower", "draft layers"
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
# characters; real names have at most some 150, and the time of a search may grow with their square
LONGEST_MODULE: Final = 500
_GROUPS: Final = tuple((name, re.compile(pattern)) for name, pattern in GROUPS)


@dataclass(slots=True)
class Weight:
    """What a checkpoint holds of one module: its parameters, their format and bytes, and the `scale_bytes` [B] among them.

    group: part of the model, the layers that predict further tokens and the vision tower each one; part: that within a layer.
    block: columns that share a scale with the rows beside them.
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
    """Return which part of a model a module is of, and which of its layer, by its name without numbers."""
    groups = [name for name, pattern in _GROUPS if pattern.search(module[:LONGEST_MODULE])]
    return next(iter(groups), "other"), next((name for name in groups if name != DRAFT), "other")


def module_group(module: str) -> str:
    """Return which part of a model a module is of, by its name.

    >>> module_group("model.layers.3.mlp.experts.7.up_proj"), module_group("model.layers.3.mlp.gate"), module_group("lm_head")
    ('routed experts', 'router', 'head')
    """
    return _groups(_NUMBER.sub("0", module))[0]


def parted(name: str) -> tuple[str, str]:
    """Return the module of a tensor and what the tensor is of it.

    >>> parted("model.layers.0.self_attn.q_proj.weight_scale_inv"), parted("model.layers.0.mlp.experts.gate_up_proj_blocks")
    (('model.layers.0.self_attn.q_proj', 'weight_scale_inv'), ('model.layers.0.mlp.experts.gate_up_proj', 'blocks'))
    """
    module, _, role = name.rpartition(".")
    if module and not _ENDING.fullmatch(role):
        outer, _, before = module.rpartition(".")  # as in weight.absmax, weight.quant_state.bitsandbytes__nf4
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
    """Return the weights that tensors make; layers from `depth` on predict further tokens.

    bits: of integers in words, where nothing tells; rename: what the modules of another tool are called here.
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
    """Add what another tool keeps in two tensors and is one matrix here."""
    weight.parameters, weight.bytes = weight.parameters + second.parameters, weight.bytes + second.bytes
    weight.scale_bytes += second.scale_bytes
    weight.names += second.names


def _weight(module: str, roles: dict[str, Tensor], depth: int, bits: int) -> Weight:
    numbered = LAYER.search(module)
    layer = int(numbered[1]) if numbered and len(numbered[1]) < 6 else -1
    group, part = _groups(_NUMBER.sub("0", module))
    if group == VISION:
        layer = -1
    elif layer >= depth:
        group = DRAFT
    weight = Weight(module, group, part, layer, names=[tensor.name for tensor in roles.values()])
    has_values, largest = _has_values(roles), -1
    for role, tensor in roles.items():
        weight.bytes += tensor.bytes
        if not _VALUES.fullmatch(role) and (has_values or role in LOOSE):
            weight.scale_bytes += tensor.bytes
            continue
        parameters, format = _values(role, tensor, roles, bits)
        weight.parameters += parameters
        if role != "bias" and parameters > largest:
            weight.format, largest = format, parameters
            weight.block = _block(tensor, _scales(roles))
    if largest < 0 and "bias" in roles:
        weight.format = _values("bias", roles["bias"], roles, bits)[1]
    return weight


def _block(tensor: Tensor, scales: Tensor | None) -> int:
    """Return the columns that share a scale with the rows beside them: the power of two that fits; 0 without such blocks."""
    if scales is None or not len(scales.shape) == len(tensor.shape) >= 2 or min(*scales.shape, *tensor.shape) < 1:
        return 0
    rows, columns = (math.ceil(tensor.shape[i] / scales.shape[i]) for i in (-2, -1))
    return 1 << (max(rows, columns) - 1).bit_length() if min(rows, columns) > 1 else 0


def _has_values(roles: dict[str, Tensor]) -> bool:
    return any(_VALUES.fullmatch(role) and role != "bias" for role in roles)


def _values(role: str, tensor: Tensor, roles: dict[str, Tensor], bits: int) -> tuple[int, str]:
    """Return how many parameters a tensor of values holds, and their format."""
    if tensor.dtype not in BITS:  # a type of GGUF
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
    """Return how many parameters a stored value holds: 2 in a byte, 8 in a word, 1 where nothing packs them."""
    if role == "bias" or tensor.dtype not in PACKED:
        return 1
    words = role in ("qweight", "weight_packed") or role.endswith("_qdata") or "scales" in roles  # the last: of MLX
    if words and tensor.dtype in ("I32", "U32"):
        return 32 / (_bits_of_words(roles) or bits)
    if role in ("blocks", "weight_packed") or "weight.absmax" in roles or (tensor.dtype == "U8" and role.endswith("_qdata")):
        return 2
    scales = _scales(roles)
    if tensor.dtype in ("U8", "I8") and scales is not None and len(scales.shape) == len(tensor.shape) > 1:
        shared = tensor.shape[-1] / max(scales.shape[-1], 1)
        if shared in (8, 16) and scales.dtype.startswith(("F8", "U8")):  # 16 or 32 values of 4 bits
            return 2
        if scales.shape[0] == 2 * tensor.shape[0]:  # packed along the outputs, as ModelOpt's W4A16
            return 2
    return 1


def _bits_of_words(roles: dict[str, Tensor]) -> int:
    """Return the bits of an integer of GPTQ or AWQ, by how zero points are packed; 0 where there are none."""
    zeros, scales = roles.get("qzeros"), roles.get("scales")
    if zeros is None or scales is None or not zeros.shape or not scales.shape or not scales.shape[-1]:
        return 0
    word_bits = 32 * zeros.shape[-1] / scales.shape[-1]
    return int(word_bits) if word_bits in (2, 3, 4, 8) else 0
