"""The batch and the context at which memory and arithmetic take equal time. Lecture section 3."""

from __future__ import annotations

import numpy as np

from steptime.number_checks import Number


def optimal_batch(
    machine_balance: Number, sparsity: Number, context: Number = 0.0, balanced_context: Number = np.inf
) -> Number:
    r"""Batch at which memory and compute take equal time: $B^* = R\sigma / (1 - L/L^*)$; infinite beyond $L^*$. Section 3.

    >>> float(optimal_batch(300, 256 / 32)), round(float(optimal_batch(300, 671 / 37)))
    (2400.0, 5441)
    """
    room = 1 - context / balanced_context
    return np.where(room > 0, machine_balance * sparsity / np.where(room > 0, room, 1.0), np.inf)


def balanced_context(active: Number, weight_bytes: Number, machine_balance: Number, kv_bytes_per_token: Number) -> Number:
    r"""Context $L^* = b_w N_{act} / (R \kappa)$ at which reading KV takes as long as the arithmetic. Sections 1 and 13.

    >>> round(balanced_context(37e9, 1.0, 295.0, 35136))
    3570
    """
    return weight_bytes * active / (machine_balance * kv_bytes_per_token)
