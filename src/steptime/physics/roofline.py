r"""The time of one operator on one chip, from its FLOPs and bytes.

An ideal chip computes and streams memory at once: $t = \max(F / P, Q / W)$ for $F$ FLOPs at peak rate $P$ and $Q$ bytes at
bandwidth $W$ (Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009). A real one overlaps them imperfectly, which
a $p$-norm of the two describes: $p = \infty$ is the ideal, $p = 1$ no overlap.
"""

from __future__ import annotations

import numpy as np

from steptime.number_checks import Number

TINY = 1e-300  # instead of nothing, where it divides
HALVES = range(2, 9)  # twice the norms whose powers are products and a square root


def compute_time(flops: Number, peak: Number, efficiency: Number = 1.0) -> Number:
    """Time of the arithmetic: flops [FLOP], peak [FLOP/s], efficiency [share of peak] -> [s].

    >>> compute_time(2 * 37e9, 5e15)
    1.48e-05
    """
    return flops / (peak * efficiency)


def memory_time(bytes_moved: Number, bandwidth: Number, efficiency: Number = 1.0) -> Number:
    """Time of the traffic: bytes_moved [B], bandwidth [B/s], efficiency [share of bandwidth] -> [s].

    >>> memory_time(671e9, 72 * 8e12)
    0.0011649305555555556
    """
    return bytes_moved / (bandwidth * efficiency)


def overlap(compute: Number, memory: Number, norm: Number = np.inf) -> Number:
    r"""Time of an operator whose arithmetic and traffic overlap: $(a^p + b^p)^{1/p}$, the larger of the two at $p = \infty$.

    compute, memory [s] -> [s]. Lies between max(compute, memory) and compute + memory for every norm >= 1.

    >>> float(overlap(3.0, 4.0)), float(overlap(3.0, 4.0, 2)), float(overlap(3.0, 4.0, 1))
    (4.0, 5.0, 7.0)
    """
    larger = np.maximum(compute, memory)
    if is_norm(norm, np.inf):
        return larger
    seconds: Number = larger * root(1 + smaller_power(compute, memory, norm), norm)
    return seconds


def is_norm(norm: Number, value: float) -> bool:
    """Whether a norm is the one number `value`, for which there is a shorter way; the general one holds for all."""
    return bool(np.ndim(norm) == 0 and norm == value)


def smaller_power(compute: Number, memory: Number, norm: Number) -> Number:
    """Ratio of the smaller to the larger of two times, to the power `norm`: what the smaller adds in `overlap`, 0 to 1.

    >>> float(smaller_power(1.0, 2.0, 4)), float(smaller_power(0.0, 0.0, 4))
    (0.0625, 0.0)
    """
    larger = np.maximum(compute, memory)
    ratio = np.minimum(compute, memory) / np.maximum(larger, TINY)
    halves = 2 * norm if np.ndim(norm) == 0 else np.nan
    if halves not in HALVES:
        return ratio**norm
    power: Number = ratio * 1.0 if halves % 2 == 0 else ratio * np.sqrt(ratio)  # products are ten times as quick as powers
    for _ in range(int(norm) - 1):
        power = power * ratio
    return power


def root(value: Number, norm: Number) -> Number:
    """The `norm`-th root of a number above 0.

    >>> round(float(root(16.0, 4)), 12), round(float(root(27.0, 3)), 12)
    (2.0, 3.0)
    """
    value_root: Number = value if is_norm(norm, 1) else np.exp(np.log(value) / norm)  # twice as quick as a power
    return value_root
