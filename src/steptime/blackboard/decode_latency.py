"""The ideal machine and a decode step on it: balance, drain time, time of a step and its bound, wait for a batch.

Lecture sections 0, 1 and 4. Sections 15 and 16: cost of long contexts, and savings of sparse attention.
"""

from __future__ import annotations

from numbers import Real

import numpy as np

from steptime.number_checks import Number, at_least_zero, positive


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
    return check_positive("capacity", capacity, "B", or_zero=True) / check_positive("bandwidth", bandwidth, "B/s")


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


def worst_wait(interval: Number) -> Number:
    r"""Return the worst latency of a train that departs every interval, $2 \Delta$.

    A request waits for one interval and rides for one. Valid while the train is not full.

    Args:
        interval: Seconds between departures.

    Returns:
        Seconds.

    References:
        Lecture, section 4.

    >>> worst_wait(0.020)
    0.04
    """
    return 2 * interval


def mean_wait(interval: Number) -> Number:
    r"""Return the mean latency of evenly spread arrivals, $1.5 \Delta$.

    Valid while the train is not full.

    Args:
        interval: Seconds between departures.

    Returns:
        Seconds.

    References:
        Lecture, section 4, *derived*.

    >>> mean_wait(0.020)
    0.03
    """
    return 1.5 * interval


def sparse_reads(context: Number, tokens_per_block: Number) -> Number:
    r"""Return the fewest entries that block-sparse attention reads, $2 \sqrt{m L}$.

    Attention reads $L/s$ summaries of blocks of $s$ tokens, and $m$ selected blocks. The best block size is
    $s = \sqrt{L/m}$.

    Args:
        context: Context $L$ [tokens].
        tokens_per_block: Number $m$ of selected blocks.

    Returns:
        Entries per query.

    References:
        Lecture, section 16, *derived*.

    >>> float(sparse_reads(1e6, 1.0))
    2000.0
    """
    return 2 * np.sqrt(tokens_per_block * context)


def attention_equals_weights(active: Number, layers: Number, heads: Number, head_dim: Number) -> Number:
    """Return the context at which attention multiplies as much as the weights.

    The context is $N_{act} / (2 n h d)$.

    Args:
        active: Active parameters per token.
        layers: Layers $n$.
        heads: Query heads $h$ per layer.
        head_dim: Width $d$ of a head.

    Returns:
        Tokens.

    References:
        Lecture, section 15, *derived*.

    >>> round(attention_equals_weights(70.6e9, 80, 64, 128), -3)
    54000.0
    """
    return active / (2 * layers * heads * head_dim)


def check_positive(name: str, value: Number, unit: str, *, or_zero: bool = False) -> Number:
    """Check that a divisor is above 0.

    Args:
        name: Name of the parameter.
        value: Number or array; a symbolic cell of a spreadsheet passes unchecked.
        unit: Unit of the value, for the message.
        or_zero: Whether 0 is allowed.

    Returns:
        The value.

    Raises:
        RangeError: If a number is not above 0, or below 0 if 0 is allowed.
    """
    check = at_least_zero if or_zero else positive
    return check(name, value, unit) if isinstance(value, Real | np.ndarray | list) else value
