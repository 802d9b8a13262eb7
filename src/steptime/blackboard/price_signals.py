r"""Hardware and model figures that follow from a price list.

Lecture sections 13 and 14.

A decode step at context $L$ costs $\max(1, B^*/B + L/L^*)$ of its arithmetic. Section 13 takes the context of a price step
as $L^*$ and neglects weights, so that shorter contexts are compute-bound. Section 14 takes a higher price of output than of
input as memory-bound decode at usual contexts.

One model cannot be both. The two sections together give $L^*$ and $B^*/B$.
"""

from __future__ import annotations

import numpy as np

from steptime.blackboard.decode_latency import utilisation
from steptime.number_checks import Number


def kv_bytes_from_tier(active: Number, context: Number, machine_balance: Number, weight_bytes: Number) -> Number:
    r"""Return the KV bytes per token of a model whose price steps up at a context.

    The formula is $\kappa = b_w N_{act} / (R L)$.

    Args:
        active: Active parameters per token.
        context: Context $L$ of the price step [tokens].
        machine_balance: Hardware balance $R$ from `balance`.
        weight_bytes: Bytes per parameter.

    Returns:
        Bytes per token.

    References:
        Lecture, section 13.

    >>> round(kv_bytes_from_tier(100e9, 200e3, 300, 1.0), 1)
    1666.7
    """
    return weight_bytes * active / (machine_balance * context)


def kv_bytes_from_shape(layers: Number, head_dim: Number, kv_heads: Number, value_bytes: Number = 1.0) -> Number:
    """Return the KV bytes per token of an attention shape.

    Keys and values of every layer that has its own KV cache count.

    Args:
        layers: Layers with their own KV cache.
        head_dim: Width of a head.
        kv_heads: KV heads per layer.
        value_bytes: Bytes per value.

    Returns:
        Bytes per token.

    References:
        Lecture, section 13.

    >>> kv_bytes_from_shape(1, 128, 8)
    2048.0
    """
    return layers * 2 * head_dim * kv_heads * value_bytes


def decode_utilisation(output_over_input: Number) -> Number:
    """Return the MFU of decode that a price ratio implies.

    Valid for compute-bound prefill.

    Args:
        output_over_input: Price of an output token over an input token.

    Returns:
        Share, 0 to 1.

    References:
        Lecture, section 14.

    >>> float(decode_utilisation(5.0))
    0.2
    """
    return utilisation(output_over_input)


def pass_ratio(ratio: Number, tokens: Number) -> Number:
    r"""Return memory over compute of a pass of several tokens per sequence.

    The ratio is $\rho / \lambda$. From $\lambda = \rho$ on, a pass is compute-bound.

    Args:
        ratio: Memory over compute of a decode step, $\rho$.
        tokens: Tokens $\lambda$ per sequence and pass.

    Returns:
        Ratio.

    References:
        Lecture, section 14.

    >>> pass_ratio(5.0, 5.0)
    1.0
    """
    return ratio / tokens


def joint_balanced_context(ratio: Number, multiple: Number, short: Number, long: Number) -> Number:
    """Return the context $L^*$ that satisfies sections 13 and 14 together.

    The context is $(L_2 - L_1) / (r (q - 1))$.

    Args:
        ratio: Output price over input price $r$ at context `short`.
        multiple: Output price $q$ at context `long` over output price at `short`.
        short: Context $L_1$ [tokens].
        long: Context $L_2$ [tokens].

    Returns:
        Tokens.

    References:
        Lecture, sections 13 and 14, *derived*.

    >>> round(joint_balanced_context(6, 1.5, 20e3, 400e3))
    126667
    """
    # Solves r = B*/B + L1/L* and q r = B*/B + L2/L* for L*.
    return (long - short) / (ratio * (multiple - 1))


def joint_batch_ratio(ratio: Number, multiple: Number, short: Number, long: Number) -> Number:
    """Return the best batch over the batch, $B^*/B = r - L_1/L^*$.

    The value satisfies sections 13 and 14 together. It is below 0 where no batch satisfies both.

    Args:
        ratio: Output price over input price $r$ at context `short`.
        multiple: Output price $q$ at context `long` over output price at `short`.
        short: Context $L_1$ [tokens].
        long: Context $L_2$ [tokens].

    Returns:
        Ratio.

    References:
        Lecture, sections 13 and 14, *derived*.

    >>> round(joint_batch_ratio(6, 1.5, 20e3, 400e3), 2)
    5.84
    """
    return ratio - short / joint_balanced_context(ratio, multiple, short, long)


def ratio_below_step(balanced: Number, context: Number) -> Number:
    r"""Return the output price over input price that section 13 implies at a context.

    The ratio is $\max(1, L/L^*)$ with weights neglected. *Derived*.

    Args:
        balanced: Context $L^*$ [tokens].
        context: Context $L$ [tokens].

    Returns:
        Ratio, at least 1.

    >>> float(ratio_below_step(200e3, 20e3)), float(ratio_below_step(200e3, 400e3))
    (1.0, 2.0)
    """
    return np.maximum(context / balanced, 1.0)


def usd_per_byte_read(rent: Number, bandwidth: Number, share: Number = 1.0) -> Number:
    """Return the cost to read one byte of memory. *Derived*.

    Args:
        rent: Rent of the chip [USD/s].
        bandwidth: Memory bandwidth [B/s].
        share: Share of the bandwidth that is reached.

    Returns:
        USD per byte.

    >>> round(usd_per_byte_read(2 / 3600, 3.35e12, 0.77) * 1e15, 4)
    0.2154
    """
    return rent / (bandwidth * share)


def kv_bytes_from_step(dearer: Number, tokens: Number, usd_per_byte: Number, margin: Number = 1.0) -> Number:
    r"""Return the KV bytes per token whose reads cost as much as a price step.

    The formula is $\kappa = \Delta P / (\Delta L \, c \, G)$. *Derived*. At margin 1 the result is an upper bound for any
    batch and model size, because no seller loses money on the bytes that a surcharge pays for.

    Args:
        dearer: Price step $\Delta P$ per output token [USD].
        tokens: Additional context $\Delta L$ [tokens].
        usd_per_byte: Cost $c$ of a byte that is read [USD/B].
        margin: Price over cost, $G$.

    Returns:
        Bytes per token.

    >>> round(kv_bytes_from_step(6e-6, 200e3, 2.154e-16) / 1e3)
    139
    """
    return dearer / (tokens * usd_per_byte * margin)


def usd_per_flop(rent: Number, flops: Number, share: Number = 1.0) -> Number:
    """Return the cost of one operation. *Derived*.

    Args:
        rent: Rent of the chip [USD/s].
        flops: Peak rate [FLOP/s].
        share: Share of the peak rate that is reached.

    Returns:
        USD per FLOP.

    >>> round(2 * 1e12 * usd_per_flop(3.2 / 3600, 5e15, 0.6) * 1e6, 3)
    0.593
    """
    return rent / (flops * share)


def active_from_input(input_price: Number, usd_per_operation: Number, margin: Number = 1.0) -> Number:
    """Return the active parameters whose arithmetic costs as much as an input price.

    The formula is $N = P / (2 c_{flop} G)$. *Derived*.

    Args:
        input_price: Price $P$ of an input token [USD].
        usd_per_operation: Cost $c_{flop}$ of an operation [USD/FLOP].
        margin: Price over cost, $G$.

    Returns:
        Parameters.

    >>> round(active_from_input(0.593e-6, 2.963e-19) / 1e12, 2)
    1.0
    """
    return input_price / (2 * usd_per_operation * margin)
