"""The kernels that run routed experts: how many stand beside their products, and what they move, by format and vendor."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """How the products of experts are run.

    beside: kernels beside the products; quantising: those that quantise inputs, where products are in 4 or 8 bits. Of each row
    so many values of 16 bits go through memory: `wide` times as many as it is wide, whole on each of the chips that share an
    expert, since each has a part of every sum, and `narrow` times the columns that each of these has, and `each` times those of
    each of its matrices.
    """

    extra_kernels: int
    quantising: int
    wide: float
    narrow: float = 0.0
    per_matrix: float = 0.0
    source: str


SEPARATE_KERNELS: Final = Chain(
    extra_kernels=3,
    quantising=2,
    wide=5.0,
    per_matrix=2.0,
    source="vLLM 0.19, layers/fused_moe/fused_moe.py: moe_align_block_size, silu_and_mul, moe_sum",
)
"""Rows are sorted (read and written), read by the first products, written by the last, read by the sum; the columns of all but
the last are written, read by the activation, written again and read."""
FUSED: Final = Chain(
    extra_kernels=0,
    quantising=1,
    wide=2.25,
    narrow=0.5,
    source="FlashInfer, trtllm_fp4_block_scale_moe; triton_kernels, matmul_ogs",
)
"""One chain sorts and activates within the products: rows are read in 4 bits, written in 16 and read by the sum; columns are
written and read in 4 bits."""
TWO_STAGES: Final = Chain(
    extra_kernels=1,
    quantising=2,
    wide=2.5,
    narrow=3.0,
    source="github.com/ROCm/aiter, aiter/fused_moe.py: moe_sorting, then fused_moe_2stages, which engines take on AMD's chips",
)
"""The first products activate and the last add up: rows are read in 8 bits, and their sums read and written; columns are
written, quantised (read in 16 bits, written in 8) and read."""
AMD: Final = "AMD"
FOUR, SIX, SIXTEEN = "fp4", "fp6", "bf16"  # arithmetic: of nvfp4, of mxfp4, and of what a chip widens


def four_bits(vendor: str) -> tuple[str, ...]:
    """Return the arithmetic whose products have both factors in four bits on the chips of a vendor.

    Formats that arithmetic of 6 bits can multiply are run with inputs in 4 bits on AMD's, at the same rate (aiter, per_1x32).
    """
    return (FOUR, SIX) if vendor == AMD else (FOUR,)


def multiplied_in(computed: tuple[str, ...], peak: Collection[str]) -> str:
    """Return the first arithmetic of those that weights can be multiplied in which the chip has, 16 bits for none.

    >>> multiplied_in(("fp4", "fp8", "bf16"), ("fp8", "bf16")), multiplied_in(("fp6", "bf16"), ("fp8", "bf16"))
    ('fp8', 'bf16')
    """
    return next((kind for kind in computed if kind in peak), SIXTEEN)


def kernel_chain(stored: str, kind: str, vendor: str) -> Chain:
    """Return how experts run whose arithmetic is `stored` and which are multiplied in `kind`, on the chips of a vendor.

    >>> [kernel_chain(*pair, "NVIDIA").extra_kernels
    ...  for pair in (("fp8", "fp8"), ("fp4", "fp4"), ("fp4", "bf16"), ("fp6", "bf16"))]
    [3, 0, 3, 0]
    >>> [kernel_chain(dtype, dtype, "AMD").extra_kernels for dtype in ("fp8", "fp6")]
    [1, 1]
    """
    if vendor == AMD:
        return TWO_STAGES
    return FUSED if kind == FOUR or stored == SIX else SEPARATE_KERNELS
