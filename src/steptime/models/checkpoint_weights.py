"""Assembles the tensors of a checkpoint into weights: values and their scales.

Tools mark the role of a tensor by the ending of its name: `weight`, `weight_scale_inv`, `qweight`, `qzeros`, `g_idx`,
`weight_packed`, `weight.absmax`, `gate_up_proj_blocks` and others. The ending shows whether a tensor has values, or data to
unpack them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from steptime.models.safetensors_header import BITS, Tensor

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


def module_group(module: str) -> str:
    """Return the part of a model of a module, from its name.

    Args:
        module: Path of the module.

    Returns:
        Name of the part, one of `GROUPS`, or "other".

    >>> module_group("model.layers.3.mlp.experts.7.up_proj"), module_group("model.layers.3.mlp.gate"), module_group("lm_head")
    ('routed experts', 'router', 'head')
    """
    return _groups(_NUMBER.sub("0", module))[0]


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
