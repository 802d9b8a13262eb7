"""What a fast mode's price says about its batch. Lecture section 5."""

from __future__ import annotations

from steptime.numbers import Number


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
