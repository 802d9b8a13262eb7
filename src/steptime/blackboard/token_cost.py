"""Cost per token at its minimum and without batching. Lecture section 2.

The price of a fast mode also gives its batch. Lecture section 5.
"""

from __future__ import annotations

import numpy as np

from steptime.number_checks import Number


def cost_per_token(seconds: Number, batch: Number, chips: Number, rent: Number) -> Number:
    """Return the cost per token of a decode step.

    Args:
        seconds: Time of the step [s].
        batch: Tokens per step.
        chips: Chips that run the step.
        rent: Rent [USD per chip-second].

    Returns:
        USD per token.

    References:
        Lecture, section 2.

    >>> round(cost_per_token(0.02, 2000, 72, 2 / 3600) * 1e6, 3)
    0.4
    """
    return rent * chips * seconds / batch


def unbatched_penalty(machine_balance: Number, sparsity: Number) -> Number:
    r"""Return the cost per token at batch 1 over its minimum, $R \sigma$.

    Valid without KV reads.

    Args:
        machine_balance: Hardware balance $R$ from `balance`.
        sparsity: Total over active parameters, at least 1.

    Returns:
        Ratio.

    References:
        Lecture, section 2, *derived*.

    >>> unbatched_penalty(300, 8)
    2400
    """
    return machine_balance * sparsity


def batch_for_cost(multiple: Number, best_batch: Number, context: Number = 0.0, balanced_context: Number = np.inf) -> Number:
    """Return the batch at which a token costs a multiple of its compute cost.

    The batch is $B^*/(m - L/L^*)$; it is infinite where no batch reaches the multiple.

    Args:
        multiple: Cost over compute cost, $m$.
        best_batch: Batch $B^*$ at which memory and arithmetic take equal time.
        context: Tokens in the KV cache of each sequence.
        balanced_context: Context $L^*$ at which KV reads take as long as the arithmetic [tokens].

    Returns:
        Sequences.

    References:
        Lecture, section 2, *derived*.

    >>> float(batch_for_cost(1.5, 2400.0))
    1600.0
    """
    room = multiple - context / balanced_context
    # The inner `where` avoids a division by zero in the branch that the outer one discards.
    return np.where(room > 0, best_batch / np.where(room > 0, room, 1.0), np.inf)


def batch_ratio(price_ratio: Number, speed_ratio: Number) -> Number:
    """Return the batch of the base mode over the batch of a fast mode.

    The ratio is the price ratio times the speed ratio.

    Args:
        price_ratio: Price of the fast mode over the price of the base mode, $q$.
        speed_ratio: Speed of the fast mode over the speed of the base mode, $s$.

    Returns:
        Ratio.

    References:
        Lecture, section 5, *derived*.

    >>> batch_ratio(6, 2.5)
    15.0
    """
    return price_ratio * speed_ratio


def kv_over_weights(price_ratio: Number, speed_ratio: Number) -> Number:
    """Return KV time over weight time of the base mode, $(s-1)/(1-1/q)$.

    Valid if both modes are memory-bound.

    Args:
        price_ratio: Price of the fast mode over the price of the base mode, $q$.
        speed_ratio: Speed of the fast mode over the speed of the base mode, $s$.

    Returns:
        Ratio.

    References:
        Lecture, section 5, *derived*.

    >>> round(kv_over_weights(6, 2.5), 9)
    1.8
    """
    return (speed_ratio - 1) / (1 - 1 / price_ratio)


def speed_ceiling(price_ratio: Number, speed_ratio: Number) -> Number:
    """Return the largest speed-up at any price on the same hardware.

    The speed-up is $1 + (s-1)/(1-1/q)$.

    Args:
        price_ratio: Price of the fast mode over the price of the base mode, $q$.
        speed_ratio: Speed of the fast mode over the speed of the base mode, $s$.

    Returns:
        Ratio.

    References:
        Lecture, section 5, *derived*.

    >>> round(speed_ceiling(6, 2.5), 9)
    2.8
    """
    return 1 + kv_over_weights(price_ratio, speed_ratio)
