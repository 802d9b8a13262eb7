"""Where a cached token should be kept, and for how long. Lecture section 15."""

from __future__ import annotations

from steptime.blackboard.input_checks import check_positive
from steptime.number_checks import Number


def recompute_cost(active: Number, mac_rate: Number, rent: Number) -> Number:
    """USD to make one token of context again. active [parameters], mac_rate [MAC/s], rent [USD/s]. Section 15.

    >>> round(recompute_cost(100e9, 2.25e15, 2 / 3600) * 1e6, 4)
    0.0247
    """
    return active / check_positive("mac_rate", mac_rate, "MAC/s") * rent


def hold_cost(kv_bytes_per_token: Number, capacity: Number, rent: Number) -> Number:
    """USD per second to hold one token of context in a tier of `capacity` [B] that costs `rent` [USD/s]. Section 15.

    >>> round(hold_cost(2048, 192e9, 2 / 3600) * 1e6 * 3600, 4)
    0.0213
    """
    return kv_bytes_per_token / check_positive("capacity", capacity, "B") * rent


def retrieve_cost(kv_bytes_per_token: Number, bandwidth: Number, rent: Number) -> Number:
    """USD to read one token of context back at `bandwidth` [B/s] from a tier that costs `rent` [USD/s]. Section 15.

    >>> round(retrieve_cost(2048, 7e9, 0.1 / 3600) * 1e12, 3)
    8.127
    """
    return kv_bytes_per_token / check_positive("bandwidth", bandwidth, "B/s") * rent


def break_even_hold(drain: Number, balanced: Number) -> Number:
    r"""Seconds for which holding a token in HBM costs as much as making it again: $t_{drain} L^*$. Section 15, *derived*.

    >>> break_even_hold(0.020, 200e3)
    4000.0
    """
    return drain * balanced


def break_even_hits(write_price: Number, base_price: Number, read_price: Number) -> Number:
    """Cache hits after which writing to a cache is cheaper than not: (write - base) / (base - read). Section 15, *derived*.

    >>> [round(break_even_hits(w, 5, 0.5), 2) for w in (6.25, 10)]
    [0.28, 1.11]
    """
    return (write_price - base_price) / (base_price - read_price)


def hold_price(write_price: Number, base_price: Number, hold: Number) -> Number:
    """USD per second that holding a token is paid with, by what writing costs above reading: `hold` [s]. Section 15, *derived*.

    >>> [round(hold_price(w, 5, h) * 3600, 9) for w, h in ((6.25, 300), (10, 3600))]
    [15.0, 5.0]
    """
    return (write_price - base_price) / hold


def hold_seconds(price: Number, kv_bytes_per_token: Number, usd_per_byte_second: Number) -> Number:
    """Seconds for which a price [USD] pays the place of one token of context in a tier. Section 15, *derived*.

    >>> round(hold_seconds(0.07e-6, 70_272, 0.020e-9 / 3600))
    179
    """
    return price / (kv_bytes_per_token * usd_per_byte_second)
