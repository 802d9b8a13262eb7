"""What a token costs, at its floor and unbatched. Lecture section 2."""

from __future__ import annotations

import numpy as np

from steptime.numbers import Number


def cost_per_token(seconds: Number, batch: Number, chips: Number, rent: Number) -> Number:
    """USD per token of a step that makes `batch` tokens on `chips` rented at `rent` [USD per chip-second]. Section 2.

    >>> round(cost_per_token(0.02, 2000, 72, 2 / 3600) * 1e6, 3)
    0.4
    """
    return rent * chips * seconds / batch


def unbatched_penalty(machine_balance: Number, sparsity: Number) -> Number:
    r"""Cost of a token at batch 1 over its floor, no KV: $R \sigma$. Section 2, *derived*.

    >>> unbatched_penalty(300, 8)
    2400
    """
    return machine_balance * sparsity


def batch_for_cost(multiple: Number, best_batch: Number, context: Number = 0.0, balanced_context: Number = np.inf) -> Number:
    r"""Batch at which a token costs `multiple` of its compute floor: $B^*/(m - L/L^*)$. Section 2, *derived*.

    >>> float(batch_for_cost(1.5, 2400.0))
    1600.0
    """
    room = multiple - context / balanced_context
    return np.where(room > 0, best_batch / np.where(room > 0, room, 1.0), np.inf)
