"""The ideal machine: multiplies per second, balance and drain time. Lecture sections 0 and 4."""

from __future__ import annotations

from steptime.blackboard.input_checks import check_positive, check_size
from steptime.number_checks import Number


def multiplies(flops: Number) -> Number:
    """Multiply-accumulates per second of a data sheet's dense FLOP/s, which counts a multiply and an add as two.

    >>> multiplies(1978.9e12)
    989450000000000.0
    """
    return flops / 2


def balance(mac_rate: Number, weight_bytes: Number, bandwidth: Number) -> Number:
    r"""Hardware balance $R = F b_w / W$: multiplies per weight that memory can deliver. Dimensionless, about 300.

    mac_rate [MAC/s], weight_bytes [B/parameter], bandwidth [B/s]. H100 in FP8:

    >>> round(balance(multiplies(1978.9e12), 1.0, 3.35e12), 1)
    295.4
    """
    bandwidth = check_positive("bandwidth", bandwidth, "B/s")
    return mac_rate * weight_bytes / bandwidth


def drain_seconds(capacity: Number, bandwidth: Number) -> Number:
    """Time to read a memory once, capacity / bandwidth [s]: no step of a full machine can be faster, and none need be slower.

    >>> drain_seconds(288e9, 20e12)
    0.0144
    """
    return check_size("capacity", capacity, "B") / check_positive("bandwidth", bandwidth, "B/s")
