"""Mixtures of experts: which experts and chips a batch touches, and the exchange between them. Lecture sections 1 and 7."""

from __future__ import annotations

import numpy as np

from steptime.numbers import Number


def experts_touched(experts: Number, active: Number, tokens: Number, evenness: Number = np.inf) -> Number:
    r"""Expected number of distinct experts that a batch uses: $n (1 - (1 - k/n)^T)$, fewer where some are more popular.

    experts $n$, active $k$ [per token], tokens $T$ -> [experts]. Tokens choose independently and, by default, uniformly
    (lecture, section 1: the expected coverage of draws). With popularities that follow a gamma distribution of shape
    `evenness` $\kappa$, draws are negative binomial, and $n (1 - (1 + kT / (n \kappa))^{-\kappa})$ experts are hit.

    >>> [round(float(experts_touched(256, 8, tokens)), 1) for tokens in (1, 96)]
    [8.0, 243.9]
    >>> round(float(experts_touched(256, 8, 96, evenness=1.0)), 1)
    192.0
    """
    even = -experts * np.expm1(tokens * np.log1p(-np.minimum(active / experts, 1 - 1e-12)))
    if np.all(np.isinf(evenness)):
        return even
    return np.minimum(even, -experts * np.expm1(-evenness * np.log1p(tokens * active / (experts * evenness))))


def distinct_hit(experts: int, active: int, groups: Number) -> Number:
    r"""Expected number of `groups` that hold at least one of a token's experts.

    $g \left(1 - \binom{n - n/g}{k} / \binom{n}{k}\right)$: experts $n$ spread evenly over $g$ groups, $k$ active ones drawn
    without return. Source: lecture, section 7.

    >>> [round(float(distinct_hit(256, 8, g)), 2) for g in (64, 32, 16, 8, 1)]
    [7.68, 7.27, 6.52, 5.29, 1.0]
    """
    kept = experts - experts / groups
    missed: Number = 1.0
    for drawn in range(active):
        missed = missed * (np.maximum(kept - drawn, 0.0) / max(experts - drawn, 1))
    return groups * (1 - missed)


def weights_touched(batch: Number, active: Number, total: Number, *, experts: int, chosen: int) -> Number:
    """Parameters that a step must fetch when few tokens touch few experts: all but the untouched experts. Section 1, *derived*.

    At a batch of one it is the active parameters, far above n/k all of them.

    >>> round(float(weights_touched(1, 37e9, 671e9, experts=256, chosen=8)) / 1e9, 6)
    37.0
    """
    routed = (total - active) / (1 - chosen / experts)  # parameters of all routed experts together
    return total - routed + routed * experts_touched(experts, chosen, batch) / experts


def experts_per_chip(experts: Number, chips: Number) -> Number:
    """Experts that each chip holds. Section 7.

    >>> experts_per_chip(256, 64)
    4.0
    """
    return experts / chips


def exchange_bytes(tokens: Number, width: Number, value_bytes: Number, *, experts: int, active: int, chips: Number) -> Number:
    """Bytes that a chip sends to dispatch (or to combine) its `tokens` over `chips`, once per chip hit. Section 7, *derived*.

    `value_bytes` is the sum of both directions' bytes per value where both are meant.

    >>> round(float(exchange_bytes(32, 7168, 1, experts=256, active=8, chips=64)) / 1e6, 2)
    1.76
    """
    return tokens * distinct_hit(experts, active, chips) * width * value_bytes
