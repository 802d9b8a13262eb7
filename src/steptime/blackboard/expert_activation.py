"""Mixtures of experts: which experts and chips a batch touches, and the exchange between them. Lecture sections 1 and 7."""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from statistics import NormalDist

import numpy as np

from steptime.number_checks import Array, Number, map_unique


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
    elsewhere = experts - experts / groups
    missed: Number = 1.0
    for draw in range(active):
        missed = missed * (np.maximum(elsewhere - draw, 0.0) / max(experts - draw, 1))
    return groups * (1 - missed)


def nodes_hit(experts: int, active: int, groups: int, active_groups: int, nodes: Number) -> Array:
    r"""Expected number of nodes that hold at least one of a token's experts, where routing is limited to groups of experts.

    A token chooses `active_groups` of `groups` groups, all equally likely, and then `active` of their experts. Experts are
    contiguous and spread evenly over `nodes`, with no copies, so that a node may hold parts of two groups: the sum over nodes,
    in the mean over all sets of groups, of $1 - \binom{m - h}{k} / \binom{m}{k}$, with $m$ experts in the chosen groups and $h$
    of them on the node. DeepSeek's own rule takes the groups whose two best experts score highest, which hits up to 8 % more
    nodes (6.1 of 18); with 32 copies of experts it is 5.3 to 6.7 of 18 by their placement. Source: arXiv 2412.19437, section
    2.1.2.

    >>> [round(float(n), 2) for n in nodes_hit(256, 8, 8, 4, np.array([1, 4, 8, 18, 256]))]
    [1.0, 2.93, 3.63, 5.78, 8.0]
    """
    return map_unique(_nodes_hit, np.rint(nodes), experts, active, groups, active_groups)


@lru_cache(maxsize=1024)
def _nodes_hit(nodes: float, experts: int, active: int, groups: int, active_groups: int) -> float:
    edges = np.arange(int(nodes) + 1) * experts / nodes
    starts = np.arange(groups) * experts / groups
    low = np.maximum(edges[:-1, None], starts)
    node_experts = np.maximum(np.minimum(edges[1:, None], starts + experts / groups) - low, 0.0)  # [nodes, groups]
    sets = np.array(list(combinations(range(groups), active_groups)))
    local = node_experts[:, sets].sum(axis=-1)  # [nodes, sets]
    among = active_groups * experts / groups
    missed = np.ones_like(local)
    for draw in range(active):
        missed *= np.maximum(among - local - draw, 0.0) / max(among - draw, 1e-12)
    return float(np.sum(np.mean(1 - missed, axis=1)))


def expected_maximum(mean: Number, variance: Number, count: Number, skew: Number = 1.0) -> Array:
    r"""Expected largest of `count` equal counts of a mean and a variance: of the busiest of so many chips.

    $m + b \sqrt v + \frac{b^2 - 3/4}{6} \gamma \frac{m}{m + 1/2}$ with Blom's normal score
    $b = \Phi^{-1}\left(\frac{n - 3/8}{n + 1/4}\right)$ and the next term of Cornish and Fisher for counts like Poisson's
    (`skew` $\gamma$ = 1), damped where most chips have none. The mean itself for one chip.

    >>> [round(float(expected_maximum(8.0, 8.0, n)), 2) for n in (1, 8, 64)]
    [8.0, 12.26, 15.35]
    """
    score = map_unique(_score, count)
    further = np.maximum(np.square(score) - 0.75, -0.75) / 6 * skew * mean / (mean + 0.5)
    largest: Array = mean + np.where(np.asarray(count) > 1, score * np.sqrt(variance) + further, 0.0)
    return largest


@lru_cache(maxsize=4096)
def _score(count: float) -> float:
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


def weights_touched(batch: Number, active: Number, total: Number, *, experts: int, active_experts: int) -> Number:
    """Parameters that a step must fetch when few tokens touch few experts: all but the untouched experts. Section 1, *derived*.

    At a batch of one it is the active parameters, far above n/k all of them.

    >>> round(float(weights_touched(1, 37e9, 671e9, experts=256, active_experts=8)) / 1e9, 6)
    37.0
    """
    routed = (total - active) / (1 - active_experts / experts)  # parameters of all routed experts together
    return total - routed + routed * experts_touched(experts, active_experts, batch) / experts


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
