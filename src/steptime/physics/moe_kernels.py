"""MoE kernels: kernel launches and memory traffic of routed experts.

Both depend on the format of the weights and on the vendor of the chip.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """How the products of routed experts run.

    extra_kernels: Kernels in addition to the products.
    quantising: Kernels that quantise inputs, where products run in 4 or 8 bits.
    wide, narrow, per_matrix: Values of 16 bits that pass through memory for each row. `wide` counts the width of the row.
    Each chip that shares an expert moves it whole, because each chip has a part of every sum. `narrow` counts the expert's
    columns on the chip. `per_matrix` counts these columns once for each matrix of the expert.
    source: Where the kernels were read.
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
"""Rows: a sort reads and writes them, the first products read them, the last product writes them, and the sum reads them.
Columns of all products but the last: the product writes them, the activation reads and writes them, and the last reads them."""
FUSED: Final = Chain(
    extra_kernels=0,
    quantising=1,
    wide=2.25,
    narrow=0.5,
    source="FlashInfer, trtllm_fp4_block_scale_moe; triton_kernels, matmul_ogs",
)
"""One chain sorts and activates within the products. Rows are read in 4 bits, written in 16 bits, and the sum reads them.
Columns are written and read in 4 bits."""
TWO_STAGES: Final = Chain(
    extra_kernels=1,
    quantising=2,
    wide=2.5,
    narrow=3.0,
    source="github.com/ROCm/aiter, aiter/fused_moe.py: moe_sorting, then fused_moe_2stages, which engines take on AMD's chips",
)
"""The first products activate and the last product sums. Rows are read in 8 bits, and their sums are read and written. Columns
are written, quantised (read in 16 bits, written in 8 bits) and read."""
AMD: Final = "AMD"
# Arithmetic of nvfp4, of mxfp4, and of weights that a chip converts to 16 bits.
FOUR, SIX, SIXTEEN = "fp4", "fp6", "bf16"


def four_bits(vendor: str) -> tuple[str, ...]:
    """Return the arithmetic with both factors in four bits on a vendor's chips.

    AMD runs formats for 6-bit arithmetic with 4-bit inputs, at the same rate (aiter, per_1x32).

    Args:
        vendor: Vendor of the chip.

    Returns:
        Names of arithmetic.
    """
    return (FOUR, SIX) if vendor == AMD else (FOUR,)


def multiplied_in(computed: tuple[str, ...], peak: Collection[str]) -> str:
    """Return the first arithmetic that the chip has.

    Args:
        computed: Arithmetic that can multiply the weights, best first.
        peak: Arithmetic that the chip has.

    Returns:
        A name of arithmetic; 16 bits where the chip has no other.

    >>> multiplied_in(("fp4", "fp8", "bf16"), ("fp8", "bf16")), multiplied_in(("fp6", "bf16"), ("fp8", "bf16"))
    ('fp8', 'bf16')
    """
    return next((kind for kind in computed if kind in peak), SIXTEEN)


def kernel_chain(stored: str, kind: str, vendor: str) -> Chain:
    """Return how routed experts run on the chips of a vendor.

    Args:
        stored: The best arithmetic for the stored format.
        kind: The arithmetic in which the chip multiplies the weights.
        vendor: Vendor of the chip.

    Returns:
        The chain of kernels.

    >>> [kernel_chain(*pair, "NVIDIA").extra_kernels
    ...  for pair in (("fp8", "fp8"), ("fp4", "fp4"), ("fp4", "bf16"), ("fp6", "bf16"))]
    [3, 0, 3, 0]
    >>> [kernel_chain(dtype, dtype, "AMD").extra_kernels for dtype in ("fp8", "fp6")]
    [1, 1]
    """
    # NVIDIA's fused kernels exist for 4-bit products, and for mxfp4 weights in any arithmetic.
    if vendor == AMD:
        return TWO_STAGES
    return FUSED if kind == FOUR or stored == SIX else SEPARATE_KERNELS
