"""Cost of a cached token in each memory tier, and the break-even times.

Lecture section 15.
"""

from __future__ import annotations

from steptime.blackboard.input_checks import check_positive
from steptime.number_checks import Number


def recompute_cost(active: Number, mac_rate: Number, rent: Number) -> Number:
    """Return the cost to compute one token of context again.

    Args:
        active: Active parameters per token.
        mac_rate: Multiply-accumulates per second [MAC/s].
        rent: Rent of the chips [USD/s].

    Returns:
        USD per token.

    References:
        Lecture, section 15.

    >>> round(recompute_cost(100e9, 2.25e15, 2 / 3600) * 1e6, 4)
    0.0247
    """
    return active / check_positive("mac_rate", mac_rate, "MAC/s") * rent


def hold_cost(kv_bytes_per_token: Number, capacity: Number, rent: Number) -> Number:
    """Return the cost per second to keep one token of context in a tier.

    Args:
        kv_bytes_per_token: KV cache per token of context [B].
        capacity: Capacity of the tier [B].
        rent: Rent of the tier [USD/s].

    Returns:
        USD per second and token.

    References:
        Lecture, section 15.

    >>> round(hold_cost(2048, 192e9, 2 / 3600) * 1e6 * 3600, 4)
    0.0213
    """
    return kv_bytes_per_token / check_positive("capacity", capacity, "B") * rent


def retrieve_cost(kv_bytes_per_token: Number, bandwidth: Number, rent: Number) -> Number:
    """Return the cost to read one token of context back from a tier.

    Args:
        kv_bytes_per_token: KV cache per token of context [B].
        bandwidth: Read bandwidth of the tier [B/s].
        rent: Rent of the tier [USD/s].

    Returns:
        USD per token.

    References:
        Lecture, section 15.

    >>> round(retrieve_cost(2048, 7e9, 0.1 / 3600) * 1e12, 3)
    8.127
    """
    return kv_bytes_per_token / check_positive("bandwidth", bandwidth, "B/s") * rent


def break_even_hold(drain: Number, balanced: Number) -> Number:
    """Return the time for which HBM space costs as much as recomputing a token.

    The time is $t_{drain} L^*$.

    Args:
        drain: Time to read the memory once, from `drain_seconds` [s].
        balanced: Context $L^*$ [tokens].

    Returns:
        Seconds.

    References:
        Lecture, section 15, *derived*.

    >>> break_even_hold(0.020, 200e3)
    4000.0
    """
    return drain * balanced


def break_even_hits(write_price: Number, base_price: Number, read_price: Number) -> Number:
    """Return the cache hits after which a cache write pays off.

    The number is (write - base) / (base - read).

    Args:
        write_price: Price of a token that is written to the cache.
        base_price: Price of an input token without cache.
        read_price: Price of a token that is read from the cache, in the same unit.

    Returns:
        Cache hits per cache write.

    References:
        Lecture, section 15, *derived*.

    >>> [round(break_even_hits(w, 5, 0.5), 2) for w in (6.25, 10)]
    [0.28, 1.11]
    """
    return (write_price - base_price) / (base_price - read_price)


def hold_price(write_price: Number, base_price: Number, hold: Number) -> Number:
    """Return the price per second to keep a token in a cache.

    The price is the surcharge of a cache write over plain input, per second of lifetime.

    Args:
        write_price: Price of a token that is written to the cache [USD].
        base_price: Price of an input token without cache [USD].
        hold: Lifetime of the cache entry [s].

    Returns:
        Price per second and token, in the unit of the prices.

    References:
        Lecture, section 15, *derived*.

    >>> [round(hold_price(w, 5, h) * 3600, 9) for w, h in ((6.25, 300), (10, 3600))]
    [15.0, 5.0]
    """
    return (write_price - base_price) / hold


def hold_seconds(price: Number, kv_bytes_per_token: Number, usd_per_byte_second: Number) -> Number:
    """Return the time for which a price pays the memory of one token of context.

    Args:
        price: Price per token [USD].
        kv_bytes_per_token: KV cache per token of context [B].
        usd_per_byte_second: Cost of the tier [USD/(B s)].

    Returns:
        Seconds.

    References:
        Lecture, section 15, *derived*.

    >>> round(hold_seconds(0.07e-6, 70_272, 0.020e-9 / 3600))
    179
    """
    return price / (kv_bytes_per_token * usd_per_byte_second)
