"""How the tools that write checkpoints store a matrix: its values, and the scales and zero points beside them.

Read in the tools' own sources: DeepSeek-V3's inference/fp8_cast_bf16.py, NVIDIA Model Optimizer (export/quant_utils.py),
transformers' mxfp4, AutoGPTQ and GPTQModel (QuantLinear), AutoAWQ (WQLinear_GEMM), compressed-tensors, bitsandbytes
(QuantState.as_dict).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from steptime.machines.formats import Format, Packing, number_format, packed_bytes

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


def stored(format: Format, matrices: Iterable[tuple[int, int]], *, base: Format, bias: int = 0, beside: int = 0) -> Format:
    """Return `format` with the bytes that a parameter takes in these (inputs, outputs) with `bias` values in `base`.

    beside: bytes of scales of the cache that stand with them. A format without a packing keeps its bytes.

    >>> blocks = fp8_blocks((128, 128))
    >>> round(stored(blocks, [(7168, 576)], base=number_format("bf16")).bytes * 7168 * 576)
    4129888
    """
    matrices = list(matrices)
    packing = format.packing
    if packing is None and not beside and (not bias or format.bytes == base.bytes):
        return format
    values = sum(inputs * outputs for inputs, outputs in matrices)
    if packing is None:
        held = values * format.bytes
    else:
        dtype = {"fp16": "float16", "fp32": "float32"}.get(base.name, "bfloat16")
        held = sum(packed_bytes(packing, inputs, outputs) for inputs, outputs in matrices)
        if packing.state:
            nested = packing.nested > 0
            held += sum(state_bytes(packing.state, (m, n), dtype, nested=nested) for n, m in matrices)
    if not values + bias:
        return format
    return replace(format, bytes=(held + bias * base.bytes + beside) / (values + bias), packing=None)
