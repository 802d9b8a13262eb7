r"""Cost of a token: at its minimum, without batching, in a fast mode, and from a cache. Lecture sections 2, 5 and 15.

The inverse forms give hardware and model figures that follow from a price list. Lecture sections 13 and 14.

A decode step at context $L$ costs $\max(1, B^*/B + L/L^*)$ of its arithmetic. Section 13 takes the context of a price step
as $L^*$ and neglects weights, so that shorter contexts are compute-bound. Section 14 takes a higher price of output than of
input as memory-bound decode at usual contexts. One model cannot be both. The two sections together give $L^*$ and $B^*/B$.
"""

from __future__ import annotations

import numpy as np

from steptime.blackboard.decode_latency import check_positive, utilisation
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


def speed_for_price(price: Number, price_ratio: Number, speed_ratio: Number) -> Number:
    """Return the speed that a price buys on the same hardware, $1 + u (1 - 1/p)$.

    A known fast mode gives $u = (s-1)/(1-1/q)$. Valid if all modes are memory-bound.

    Args:
        price: Price over the price of the base mode, $p$.
        price_ratio: Price of the known fast mode over the price of the base mode, $q$.
        speed_ratio: Speed of the known fast mode over the speed of the base mode, $s$.

    Returns:
        Speed over the speed of the base mode.

    References:
        Lecture, section 5, *derived*.

    >>> round(speed_for_price(6, 6, 2.5), 9), round(speed_for_price(100, 6, 2.5), 9)
    (2.5, 2.782)
    """
    return 1 + kv_over_weights(price_ratio, speed_ratio) * (1 - 1 / price)


def kv_bytes_from_tier(active: Number, context: Number, machine_balance: Number, weight_bytes: Number) -> Number:
    r"""Return the KV bytes per token of a model whose price steps up at a context.

    The formula is $\kappa = b_w N_{act} / (R L)$.

    Args:
        active: Active parameters per token.
        context: Context $L$ of the price step [tokens].
        machine_balance: Hardware balance $R$ from `balance`.
        weight_bytes: Bytes per parameter.

    Returns:
        Bytes per token.

    References:
        Lecture, section 13.

    >>> round(kv_bytes_from_tier(100e9, 200e3, 300, 1.0), 1)
    1666.7
    """
    return weight_bytes * active / (machine_balance * context)


def kv_bytes_from_shape(layers: Number, head_dim: Number, kv_heads: Number, value_bytes: Number = 1.0) -> Number:
    """Return the KV bytes per token of an attention shape.

    Keys and values of every layer that has its own KV cache count.

    Args:
        layers: Layers with their own KV cache.
        head_dim: Width of a head.
        kv_heads: KV heads per layer.
        value_bytes: Bytes per value.

    Returns:
        Bytes per token.

    References:
        Lecture, section 13.

    >>> kv_bytes_from_shape(1, 128, 8)
    2048.0
    """
    return layers * 2 * head_dim * kv_heads * value_bytes


def decode_utilisation(output_over_input: Number) -> Number:
    """Return the MFU of decode that a price ratio implies.

    Valid for compute-bound prefill.

    Args:
        output_over_input: Price of an output token over an input token.

    Returns:
        Share, 0 to 1.

    References:
        Lecture, section 14.

    >>> float(decode_utilisation(5.0))
    0.2
    """
    return utilisation(output_over_input)


def pass_ratio(ratio: Number, tokens: Number) -> Number:
    r"""Return memory over compute of a pass of several tokens per sequence.

    The ratio is $\rho / \lambda$. From $\lambda = \rho$ on, a pass is compute-bound.

    Args:
        ratio: Memory over compute of a decode step, $\rho$.
        tokens: Tokens $\lambda$ per sequence and pass.

    Returns:
        Ratio.

    References:
        Lecture, section 14.

    >>> pass_ratio(5.0, 5.0)
    1.0
    """
    return ratio / tokens


def joint_balanced_context(ratio: Number, multiple: Number, short: Number, long: Number) -> Number:
    """Return the context $L^*$ that satisfies sections 13 and 14 together.

    The context is $(L_2 - L_1) / (r (q - 1))$.

    Args:
        ratio: Output price over input price $r$ at context `short`.
        multiple: Output price $q$ at context `long` over output price at `short`.
        short: Context $L_1$ [tokens].
        long: Context $L_2$ [tokens].

    Returns:
        Tokens.

    References:
        Lecture, sections 13 and 14, *derived*.

    >>> round(joint_balanced_context(6, 1.5, 20e3, 400e3))
    126667
    """
    # Solves r = B*/B + L1/L* and q r = B*/B + L2/L* for L*.
    return (long - short) / (ratio * (multiple - 1))


def joint_batch_ratio(ratio: Number, multiple: Number, short: Number, long: Number) -> Number:
    """Return the best batch over the batch, $B^*/B = r - L_1/L^*$.

    The value satisfies sections 13 and 14 together. It is below 0 where no batch satisfies both.

    Args:
        ratio: Output price over input price $r$ at context `short`.
        multiple: Output price $q$ at context `long` over output price at `short`.
        short: Context $L_1$ [tokens].
        long: Context $L_2$ [tokens].

    Returns:
        Ratio.

    References:
        Lecture, sections 13 and 14, *derived*.

    >>> round(joint_batch_ratio(6, 1.5, 20e3, 400e3), 2)
    5.84
    """
    return ratio - short / joint_balanced_context(ratio, multiple, short, long)


def ratio_below_step(balanced: Number, context: Number) -> Number:
    r"""Return the output price over input price that section 13 implies at a context.

    The ratio is $\max(1, L/L^*)$ with weights neglected. *Derived*.

    Args:
        balanced: Context $L^*$ [tokens].
        context: Context $L$ [tokens].

    Returns:
        Ratio, at least 1.

    >>> float(ratio_below_step(200e3, 20e3)), float(ratio_below_step(200e3, 400e3))
    (1.0, 2.0)
    """
    return np.maximum(context / balanced, 1.0)


def usd_per_byte_read(rent: Number, bandwidth: Number, share: Number = 1.0) -> Number:
    """Return the cost to read one byte of memory. *Derived*.

    Args:
        rent: Rent of the chip [USD/s].
        bandwidth: Memory bandwidth [B/s].
        share: Share of the bandwidth that is reached.

    Returns:
        USD per byte.

    >>> round(usd_per_byte_read(2 / 3600, 3.35e12, 0.77) * 1e15, 4)
    0.2154
    """
    return rent / (bandwidth * share)


def kv_bytes_from_step(price_step: Number, tokens: Number, usd_per_byte: Number, margin: Number = 1.0) -> Number:
    r"""Return the KV bytes per token whose reads cost as much as a price step.

    The formula is $\kappa = \Delta P / (\Delta L \, c \, G)$. *Derived*. At margin 1 the result is an upper bound for any batch
    and model size. No seller loses money on the bytes that a surcharge pays for.

    Args:
        price_step: Price step $\Delta P$ per output token [USD].
        tokens: Additional context $\Delta L$ [tokens].
        usd_per_byte: Cost $c$ of a byte that is read [USD/B].
        margin: Price over cost, $G$.

    Returns:
        Bytes per token.

    >>> round(kv_bytes_from_step(6e-6, 200e3, 2.154e-16) / 1e3)
    139
    """
    return price_step / (tokens * usd_per_byte * margin)


def usd_per_flop(rent: Number, flops: Number, share: Number = 1.0) -> Number:
    """Return the cost of one operation. *Derived*.

    Args:
        rent: Rent of the chip [USD/s].
        flops: Peak rate [FLOP/s].
        share: Share of the peak rate that is reached.

    Returns:
        USD per FLOP.

    >>> round(2 * 1e12 * usd_per_flop(3.2 / 3600, 5e15, 0.6) * 1e6, 3)
    0.593
    """
    return rent / (flops * share)


def active_from_input(input_price: Number, usd_per_operation: Number, margin: Number = 1.0) -> Number:
    """Return the active parameters whose arithmetic costs as much as an input price.

    The formula is $N = P / (2 c_{flop} G)$. *Derived*.

    Args:
        input_price: Price $P$ of an input token [USD].
        usd_per_operation: Cost $c_{flop}$ of an operation [USD/FLOP].
        margin: Price over cost, $G$.

    Returns:
        Parameters.

    >>> round(active_from_input(0.593e-6, 2.963e-19) / 1e12, 2)
    1.0
    """
    return input_price / (2 * usd_per_operation * margin)


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
