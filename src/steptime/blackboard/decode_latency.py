"""Time of a decode step and its bound, memory or arithmetic.

Lecture sections 1 and 4.
"""

from __future__ import annotations

import numpy as np

from steptime.blackboard.input_checks import check_positive
from steptime.number_checks import Number


def compute_seconds(batch: Number, active: Number, mac_rate: Number) -> Number:
    """Return the time of the arithmetic of a decode step, $B N_{act} / F$.

    Args:
        batch: Sequences per decode step.
        active: Active parameters per token.
        mac_rate: Multiply-accumulates per second [MAC/s].

    Returns:
        Seconds per step.

    References:
        Lecture, section 1.

    >>> round(compute_seconds(2400, 37e9, 1.8e17) * 1e3, 3)
    0.493
    """
    return batch * active / check_positive("mac_rate", mac_rate, "MAC/s")


def weight_seconds(total: Number, weight_bytes: Number, bandwidth: Number) -> Number:
    """Return the time to stream every weight once, $b_w N_{tot} / W$.

    This is the minimum latency of a decode step.

    Args:
        total: Parameters in total.
        weight_bytes: Bytes per parameter.
        bandwidth: Memory bandwidth [B/s].

    Returns:
        Seconds per step.

    References:
        Lecture, sections 1 and 4.

    >>> round(weight_seconds(671e9, 1.0, 8 * 3.35e12) * 1e3, 1)
    25.0
    """
    return weight_bytes * total / check_positive("bandwidth", bandwidth, "B/s")


def kv_read_seconds(batch: Number, context: Number, kv_bytes_per_token: Number, bandwidth: Number) -> Number:
    r"""Return the time to stream the KV cache of all sequences, $B L \kappa / W$.

    Valid if the sequences share no prefix.

    Args:
        batch: Sequences per decode step.
        context: Tokens in the KV cache of each sequence.
        kv_bytes_per_token: KV cache per token of context [B].
        bandwidth: Memory bandwidth [B/s].

    Returns:
        Seconds per step.

    References:
        Lecture, section 1.

    >>> kv_read_seconds(256, 4096, 70_272, 8e12)
    0.009210691584
    """
    return batch * context * kv_bytes_per_token / check_positive("bandwidth", bandwidth, "B/s")


def step_seconds(
    batch: Number,
    context: Number,
    *,
    active: Number,
    total: Number,
    weight_bytes: Number,
    kv_bytes_per_token: Number,
    mac_rate: Number,
    bandwidth: Number,
) -> Number:
    r"""Return the time of a decode step, $\max(t_{comp}, t_w + t_{kv})$.

    Valid for perfect overlap of memory reads and arithmetic.

    Args:
        batch: Sequences per decode step.
        context: Tokens in the KV cache of each sequence.
        active: Active parameters per token.
        total: Parameters in total.
        weight_bytes: Bytes per parameter.
        kv_bytes_per_token: KV cache per token of context [B].
        mac_rate: Multiply-accumulates per second [MAC/s].
        bandwidth: Memory bandwidth [B/s].

    Returns:
        Seconds per step.

    References:
        Lecture, section 1.

    >>> step = step_seconds(64, 1000, active=8e9, total=8e9, weight_bytes=2, kv_bytes_per_token=131072,
    ...                     mac_rate=4.95e14, bandwidth=3.35e12)
    >>> round(float(step) * 1e3, 2)
    7.28
    """
    # Weights and KV cache share the memory bandwidth, so that their times add; arithmetic overlaps with both.
    memory = weight_seconds(total, weight_bytes, bandwidth) + kv_read_seconds(batch, context, kv_bytes_per_token, bandwidth)
    return np.maximum(compute_seconds(batch, active, mac_rate), memory)


def memory_over_compute(batch: Number, context: Number, best_batch: Number, balanced_context: Number) -> Number:
    r"""Return memory time over compute time, $\rho = B^*/B + L/L^*$.

    Cost over its minimum is $\max(1, \rho)$.

    Args:
        batch: Sequences per decode step.
        context: Tokens in the KV cache of each sequence.
        best_batch: Batch $B^*$ at which memory and arithmetic take equal time.
        balanced_context: Context $L^*$ at which KV reads take as long as the arithmetic [tokens].

    Returns:
        Ratio $\rho$; above 1 the step is memory-bound.

    References:
        Lecture, section 1, *derived*.

    >>> memory_over_compute(2400.0, 0.0, 2400.0, 200e3), memory_over_compute(1e30, 400e3, 2400.0, 200e3)
    (1.0, 2.0)
    """
    return best_batch / batch + context / balanced_context


def utilisation(ratio: Number) -> Number:
    r"""Return the model FLOPs utilization, $1/\max(1, \rho)$.

    Args:
        ratio: Memory time over compute time, $\rho$.

    Returns:
        Share, 0 to 1.

    References:
        Lecture, section 1.

    >>> float(utilisation(2.0))
    0.5
    """
    return 1 / np.maximum(1.0, ratio)


def throughput(batch: Number, interval: Number) -> Number:
    """Return the tokens per second of a batch that makes one step per interval.

    Args:
        batch: Sequences per decode step.
        interval: Time between decode steps [s].

    Returns:
        Tokens per second.

    References:
        Lecture, section 4.

    >>> throughput(2000, 1 / 64)
    128000.0
    """
    return batch / check_positive("interval", interval, "s")
