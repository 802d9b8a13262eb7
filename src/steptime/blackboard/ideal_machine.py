"""The ideal machine: multiplies per second, balance and drain time.

Lecture sections 0 and 4.
"""

from __future__ import annotations

from steptime.blackboard.input_checks import check_positive, check_size
from steptime.number_checks import Number


def multiplies(flops: Number) -> Number:
    """Return the multiply-accumulates per second of a dense FLOP/s rate.

    A data sheet counts a multiply and an add as two operations.

    Args:
        flops: Dense rate of the data sheet [FLOP/s].

    Returns:
        Multiply-accumulates per second [MAC/s].

    >>> multiplies(1978.9e12)
    989450000000000.0
    """
    return flops / 2


def balance(mac_rate: Number, weight_bytes: Number, bandwidth: Number) -> Number:
    """Return the hardware balance $R = F b_w / W$, about 300.

    The balance is the number of multiplies in the time in which memory delivers one weight. The example is an H100 in FP8.

    Args:
        mac_rate: Multiply-accumulates per second [MAC/s].
        weight_bytes: Bytes per parameter.
        bandwidth: Memory bandwidth [B/s].

    Returns:
        Multiplies per weight.

    >>> round(balance(multiplies(1978.9e12), 1.0, 3.35e12), 1)
    295.4
    """
    bandwidth = check_positive("bandwidth", bandwidth, "B/s")
    return mac_rate * weight_bytes / bandwidth


def drain_seconds(capacity: Number, bandwidth: Number) -> Number:
    """Return the time to read a memory once, capacity over bandwidth.

    A step that reads the full memory cannot be faster.

    Args:
        capacity: Capacity of the memory [B].
        bandwidth: Memory bandwidth [B/s].

    Returns:
        Seconds.

    >>> drain_seconds(288e9, 20e12)
    0.0144
    """
    return check_size("capacity", capacity, "B") / check_positive("bandwidth", bandwidth, "B/s")
