r"""Roofline: the time of one operator on one chip, from its FLOPs and bytes.

An ideal chip computes and streams memory at once: $t = \max(F / P, Q / W)$ for $F$ FLOPs at peak rate $P$ and $Q$ bytes at
bandwidth $W$. A real chip overlaps them imperfectly, which a $p$-norm of the two times describes: $p = \infty$ is ideal, $p
= 1$ is no overlap.

References:
    Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

import numpy as np

from steptime.number_checks import Number

# Replaces 0 as a divisor.
TINY = 1e-300
# Twice the norms whose powers are products and a square root.
HALVES = range(2, 9)


def compute_time(flops: Number, peak: Number, efficiency: Number = 1.0) -> Number:
    """Return the time of arithmetic.

    Args:
        flops: FLOP.
        peak: FLOP/s.
        efficiency: Share of peak.

    Returns:
        Seconds.

    >>> compute_time(2 * 37e9, 5e15)
    1.48e-05
    """
    return flops / (peak * efficiency)


def memory_time(bytes_moved: Number, bandwidth: Number, efficiency: Number = 1.0) -> Number:
    """Return the time of memory traffic.

    Args:
        bytes_moved: Bytes.
        bandwidth: Bytes per second.
        efficiency: Share of bandwidth.

    Returns:
        Seconds.

    >>> memory_time(671e9, 72 * 8e12)
    0.0011649305555555556
    """
    return bytes_moved / (bandwidth * efficiency)


def overlap(compute: Number, memory: Number, norm: Number = np.inf) -> Number:
    r"""Return the time of an operator whose arithmetic and traffic overlap.

    The time is $(a^p + b^p)^{1/p}$, which is the larger of the two at $p = \infty$. For every norm >= 1 it is between
    max(compute, memory) and compute + memory.

    Args:
        compute: Seconds of arithmetic.
        memory: Seconds of memory traffic.
        norm: p of the p-norm.

    Returns:
        Seconds.

    >>> float(overlap(3.0, 4.0)), float(overlap(3.0, 4.0, 2)), float(overlap(3.0, 4.0, 1))
    (4.0, 5.0, 7.0)
    """
    larger = np.maximum(compute, memory)
    if is_norm(norm, np.inf):
        return larger
    seconds: Number = larger * root(1 + smaller_power(compute, memory, norm), norm)
    return seconds


def is_norm(norm: Number, value: float) -> bool:
    """Whether a norm is the single number `value`, which has a faster formula.

    Args:
        norm: p of the p-norm, or an array.
        value: The special value.

    Returns:
        True or false; the general formula is valid in both cases.
    """
    return bool(np.ndim(norm) == 0 and norm == value)


def smaller_power(compute: Number, memory: Number, norm: Number) -> Number:
    """Return the ratio of the smaller to the larger time, to the power `norm`.

    This is the part that the smaller time adds in `overlap`.

    Args:
        compute: Seconds of arithmetic.
        memory: Seconds of memory traffic.
        norm: p of the p-norm.

    Returns:
        A number from 0 to 1.

    >>> float(smaller_power(1.0, 2.0, 4)), float(smaller_power(0.0, 0.0, 4))
    (0.0625, 0.0)
    """
    larger = np.maximum(compute, memory)
    ratio = np.minimum(compute, memory) / np.maximum(larger, TINY)
    halves = 2 * norm if np.ndim(norm) == 0 else np.nan
    if halves not in HALVES:
        return ratio**norm
    # Products are ten times faster than powers.
    power: Number = ratio * 1.0 if halves % 2 == 0 else ratio * np.sqrt(ratio)
    for _ in range(int(norm) - 1):
        power = power * ratio
    return power


def root(value: Number, norm: Number) -> Number:
    """Return the `norm`-th root of a number.

    Args:
        value: A number above 0.
        norm: p of the p-norm.

    Returns:
        The root.

    >>> round(float(root(16.0, 4)), 12), round(float(root(27.0, 3)), 12)
    (2.0, 3.0)
    """
    # exp and log are twice as fast as a power.
    value_root: Number = value if is_norm(norm, 1) else np.exp(np.log(value) / norm)
    return value_root
