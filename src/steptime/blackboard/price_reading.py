"""What a price list gives away. Lecture sections 13 and 14."""

from __future__ import annotations

from steptime.blackboard.latency import utilisation
from steptime.numbers import Number


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
