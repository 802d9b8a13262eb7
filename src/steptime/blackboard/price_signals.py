"""What a price list gives away. Lecture sections 13 and 14.

A decode step of context $L$ costs $\\max(1, B^*/B + L/L^*)$ of its arithmetic. Section 13 reads the context of a price step as
$L^*$ with weights neglected, so that shorter contexts are bound by arithmetic; section 14 reads output dearer than input as
bound by memory, at the contexts that are usual. One model cannot be both; read together they give $L^*$ and $B^*/B$.
"""

from __future__ import annotations

import numpy as np

from steptime.blackboard.decode_latency import utilisation
from steptime.number_checks import Number


def kv_bytes_from_tier(active: Number, context: Number, machine_balance: Number, weight_bytes: Number) -> Number:
    r"""KV bytes per token of a model whose price steps up at `context`: $\kappa = b_w N_{act} / (R L)$. Section 13.

    >>> round(kv_bytes_from_tier(100e9, 200e3, 300, 1.0), 1)
    1666.7
    """
    return weight_bytes * active / (machine_balance * context)


def kv_bytes_from_shape(layers: Number, head_dim: Number, kv_heads: Number, value_bytes: Number = 1.0) -> Number:
    """KV bytes per token of an attention shape: keys and values of every layer that keeps its own. Section 13.

    >>> kv_bytes_from_shape(1, 128, 8)
    2048.0
    """
    return layers * 2 * head_dim * kv_heads * value_bytes


def decode_utilisation(output_over_input: Number) -> Number:
    """MFU of decode when output costs `output_over_input` times input and prefill is compute-bound. Section 14.

    >>> float(decode_utilisation(5.0))
    0.2
    """
    return utilisation(output_over_input)


def pass_ratio(ratio: Number, tokens: Number) -> Number:
    r"""Memory over compute of a pass of $\lambda$ tokens a sequence, $\rho / \lambda$. Section 14.

    At $\lambda = \rho$ a pass turns compute-bound.

    >>> pass_ratio(5.0, 5.0)
    1.0
    """
    return ratio / tokens


def joint_balanced_context(ratio: Number, multiple: Number, short: Number, long: Number) -> Number:
    r"""Context $L^* = (L_2 - L_1) / (r (q - 1))$ at which both hold: sections 13 and 14 together, *derived*.

    ratio: $r$, output over input price at a context `short` [tokens]; multiple: $q$, what output costs more at `long` [tokens].

    >>> round(joint_balanced_context(6, 1.5, 20e3, 400e3))
    126667
    """
    return (long - short) / (ratio * (multiple - 1))


def joint_batch_ratio(ratio: Number, multiple: Number, short: Number, long: Number) -> Number:
    r"""Best batch over batch, $B^*/B = r - L_1/L^*$, of the same; below 0 where no batch fits both. *Derived*.

    >>> round(joint_batch_ratio(6, 1.5, 20e3, 400e3), 2)
    5.84
    """
    return ratio - short / joint_balanced_context(ratio, multiple, short, long)


def ratio_below_step(balanced: Number, context: Number) -> Number:
    r"""Output over input price that section 13 alone leaves at a context: $\max(1, L/L^*)$, weights neglected. *Derived*.

    >>> float(ratio_below_step(200e3, 20e3)), float(ratio_below_step(200e3, 400e3))
    (1.0, 2.0)
    """
    return np.maximum(context / balanced, 1.0)


def usd_per_byte_read(rent: Number, bandwidth: Number, share: Number = 1.0) -> Number:
    """USD to read a byte of memory: rent [USD/s] over the `share` of a bandwidth [B/s] that is reached. *Derived*.

    >>> round(usd_per_byte_read(2 / 3600, 3.35e12, 0.77) * 1e15, 4)
    0.2154
    """
    return rent / (bandwidth * share)


def kv_bytes_from_step(dearer: Number, tokens: Number, usd_per_byte: Number, margin: Number = 1.0) -> Number:
    r"""KV bytes per token whose reading costs what a price step asks: $\kappa = \Delta P / (\Delta L \, c \, G)$. *Derived*.

    dearer: of an output token [USD]; tokens: of context by which it is longer; usd_per_byte: $c$ [USD/B]; margin: $G$, price
    over cost. At margin 1 a bound that needs neither batch nor size: no seller loses on the bytes that a surcharge pays for.

    >>> round(kv_bytes_from_step(6e-6, 200e3, 2.154e-16) / 1e3)
    139
    """
    return dearer / (tokens * usd_per_byte * margin)


def usd_per_flop(rent: Number, flops: Number, share: Number = 1.0) -> Number:
    """USD of an operation: rent [USD/s] over the `share` of a peak rate [FLOP/s] that is reached. *Derived*.

    >>> round(2 * 1e12 * usd_per_flop(3.2 / 3600, 5e15, 0.6) * 1e6, 3)
    0.593
    """
    return rent / (flops * share)


def active_from_input(input_price: Number, usd_per_operation: Number, margin: Number = 1.0) -> Number:
    r"""Active parameters of which an input token at a price [USD] pays the arithmetic: $N = P / (2 c_{flop} G)$. *Derived*.

    >>> round(active_from_input(0.593e-6, 2.963e-19) / 1e12, 2)
    1.0
    """
    return input_price / (2 * usd_per_operation * margin)
