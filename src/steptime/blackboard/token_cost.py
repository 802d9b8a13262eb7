"""What a token costs, at its floor and unbatched. Lecture section 2.

What a fast mode's price says about its batch. Lecture section 5.
"""

from __future__ import annotations

import numpy as np

from steptime.number_checks import Number


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


def batch_ratio(price_ratio: Number, speed_ratio: Number) -> Number:
    """How many times smaller the batch of a fast mode is: price ratio times speed ratio. Section 5, *derived*.

    >>> batch_ratio(6, 2.5)
    15.0
    """
    return price_ratio * speed_ratio


def kv_over_weights(price_ratio: Number, speed_ratio: Number) -> Number:
    r"""KV time over weight time of the base mode, both modes memory-bound: $(s-1)/(1-1/q)$. Section 5, *derived*.

    >>> round(kv_over_weights(6, 2.5), 9)
    1.8
    """
    return (speed_ratio - 1) / (1 - 1 / price_ratio)


def speed_ceiling(price_ratio: Number, speed_ratio: Number) -> Number:
    r"""Largest speed-up at any price on the same hardware: $1 + (s-1)/(1-1/q)$. Section 5, *derived*.

    >>> round(speed_ceiling(6, 2.5), 9)
    2.8
    """
    return 1 + kv_over_weights(price_ratio, speed_ratio)
