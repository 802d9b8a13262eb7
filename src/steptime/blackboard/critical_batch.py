"""Batch and context at which memory and arithmetic take equal time.

Lecture section 3.
"""

from __future__ import annotations

import numpy as np

from steptime.number_checks import Number


def optimal_batch(
    machine_balance: Number, sparsity: Number, context: Number = 0.0, balanced_context: Number = np.inf
) -> Number:
    r"""Return the batch at which memory and arithmetic take equal time.

    The batch is $B^* = R\sigma / (1 - L/L^*)$; it is infinite from $L^*$ on.

    Args:
        machine_balance: Hardware balance $R$ from `balance`.
        sparsity: Total over active parameters, at least 1.
        context: Tokens in the KV cache of each sequence.
        balanced_context: Context $L^*$ at which KV reads take as long as the arithmetic [tokens].

    Returns:
        Sequences.

    References:
        Lecture, section 3.

    >>> float(optimal_batch(300, 256 / 32)), round(float(optimal_batch(300, 671 / 37)))
    (2400.0, 5441)
    """
    room = 1 - context / balanced_context
    # The inner `where` avoids a division by zero in the branch that the outer one discards.
    return np.where(room > 0, machine_balance * sparsity / np.where(room > 0, room, 1.0), np.inf)


def balanced_context(active: Number, weight_bytes: Number, machine_balance: Number, kv_bytes_per_token: Number) -> Number:
    r"""Return the context at which KV reads take as long as the arithmetic.

    The context is $L^* = b_w N_{act} / (R \kappa)$.

    Args:
        active: Active parameters per token.
        weight_bytes: Bytes per parameter.
        machine_balance: Hardware balance $R$ from `balance`.
        kv_bytes_per_token: KV cache per token of context [B].

    Returns:
        Tokens.

    References:
        Lecture, sections 1 and 13.

    >>> round(balanced_context(37e9, 1.0, 295.0, 35136))
    3570
    """
    return weight_bytes * active / (machine_balance * kv_bytes_per_token)
