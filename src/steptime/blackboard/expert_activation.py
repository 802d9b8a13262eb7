"""Experts and chips that the tokens of a batch use, and the cost of the expert exchange over racks.

Lecture sections 1, 7, 9 and 11.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from statistics import NormalDist

import numpy as np

from steptime.number_checks import Array, Number, map_unique


def experts_touched(experts: Number, active: Number, tokens: Number, evenness: Number = np.inf) -> Number:
    r"""Return the expected number of distinct experts that a batch uses.

    The number is $n (1 - (1 - k/n)^T)$ for $T$ tokens that choose $k$ of $n$ experts independently and uniformly.

    If popularities follow a gamma distribution of shape `evenness` $\kappa$, draws are negative binomial. The batch then
    uses fewer experts, $n (1 - (1 + kT / (n \kappa))^{-\kappa})$.

    Args:
        experts: Routed experts $n$ per layer.
        active: Experts $k$ per token.
        tokens: Tokens $T$ of the batch.
        evenness: Shape $\kappa$ of the gamma distribution; infinite for equal popularity.

    Returns:
        Experts per layer.

    References:
        Lecture, section 1: the expected coverage of draws.

    >>> [round(float(experts_touched(256, 8, tokens)), 1) for tokens in (1, 96)]
    [8.0, 243.9]
    >>> round(float(experts_touched(256, 8, 96, evenness=1.0)), 1)
    192.0
    """
    # expm1 and log1p keep the precision for many experts and few tokens.
    even = -experts * np.expm1(tokens * np.log1p(-np.minimum(active / experts, 1 - 1e-12)))
    if np.all(np.isinf(evenness)):
        return even
    return np.minimum(even, -experts * np.expm1(-evenness * np.log1p(tokens * active / (experts * evenness))))


def distinct_hit(experts: int, active: int, groups: Number) -> Number:
    r"""Return the expected number of groups that have at least one expert of a token.

    The number is $g \left(1 - \binom{n - n/g}{k} / \binom{n}{k}\right)$. Valid for $n$ experts spread evenly over $g$
    groups and $k$ active experts, drawn without replacement.

    Args:
        experts: Routed experts $n$ per layer.
        active: Experts $k$ per token.
        groups: Groups $g$ of experts, such as chips or nodes.

    Returns:
        Groups per token.

    References:
        Lecture, section 7.

    >>> [round(float(distinct_hit(256, 8, g)), 2) for g in (64, 32, 16, 8, 1)]
    [7.68, 7.27, 6.52, 5.29, 1.0]
    """
    # Product over the draws: the probability that none of them falls into a given group.
    elsewhere = experts - experts / groups
    missed: Number = 1.0
    for draw in range(active):
        missed = missed * (np.maximum(elsewhere - draw, 0.0) / max(experts - draw, 1))
    return groups * (1 - missed)


def nodes_hit(experts: int, active: int, groups: int, active_groups: int, nodes: Number) -> Array:
    r"""Return the expected number of nodes per token under group-limited routing.

    A token chooses `active_groups` of `groups` groups with equal probability, and then `active` of their experts. Experts
    are contiguous and spread evenly over `nodes`, without copies, so that a node may have parts of two groups.

    The result is the sum over nodes of the mean over all sets of groups of $1 - \binom{m - h}{k} / \binom{m}{k}$. There $m$
    is the number of experts in the chosen groups and $h$ the number of these on the node.

    The rule of DeepSeek takes the groups whose two best experts score highest. It reaches up to 8 % more nodes (6.1 of 18).
    With 32 copies of experts it reaches 5.3 to 6.7 of 18 nodes, depending on their placement.

    Args:
        experts: Routed experts $n$ per layer.
        active: Experts $k$ per token.
        groups: Groups of experts.
        active_groups: Groups that a token may choose experts from.
        nodes: Nodes that share the experts.

    Returns:
        Nodes per token, with the shape of `nodes`.

    References:
        arXiv 2412.19437, section 2.1.2.

    >>> [round(float(n), 2) for n in nodes_hit(256, 8, 8, 4, np.array([1, 4, 8, 18, 256]))]
    [1.0, 2.93, 3.63, 5.78, 8.0]
    """
    return map_unique(_nodes_hit, np.rint(nodes), experts, active, groups, active_groups)


@lru_cache(maxsize=1024)
def _nodes_hit(nodes: float, experts: int, active: int, groups: int, active_groups: int) -> float:
    # Overlap of each node with each group of experts, both contiguous ranges of experts.
    edges = np.arange(int(nodes) + 1) * experts / nodes
    starts = np.arange(groups) * experts / groups
    low = np.maximum(edges[:-1, None], starts)
    # Shape [nodes, groups].
    node_experts = np.maximum(np.minimum(edges[1:, None], starts + experts / groups) - low, 0.0)
    sets = np.array(list(combinations(range(groups), active_groups)))
    # Shape [nodes, sets].
    local = node_experts[:, sets].sum(axis=-1)
    # Probability that none of the draws from the chosen groups is on the node.
    among = active_groups * experts / groups
    missed = np.ones_like(local)
    for draw in range(active):
        missed *= np.maximum(among - local - draw, 0.0) / max(among - draw, 1e-12)
    return float(np.sum(np.mean(1 - missed, axis=1)))


def expected_maximum(mean: Number, variance: Number, count: Number, skew: Number = 1.0) -> Array:
    r"""Return the expected largest of several counts with one mean and variance.

    An example is the load of the busiest of `count` chips. The formula is:
    $m + b \sqrt v + \frac{b^2 - 3/4}{6} \gamma \frac{m}{m + 1/2}$ with Blom's normal score
    $b = \Phi^{-1}\left(\frac{n - 3/8}{n + 1/4}\right)$.

    The last term is the next term of the Cornish-Fisher expansion for Poisson-like counts (`skew` $\gamma$ = 1). Its factor
    damps it where most chips have no count. For one chip the result is the mean.

    Args:
        mean: Mean $m$ of each count.
        variance: Variance $v$ of each count.
        count: Number $n$ of counts.
        skew: Factor $\gamma$ on the skewness term; 1 for Poisson.

    Returns:
        Expected maximum, in the unit of `mean`.

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
    """Return the parameters that a decode step of a small batch must read.

    These are all parameters except the experts that no token uses. At a batch of 1 they are the active parameters, far
    above $k/n$ of all parameters.

    Args:
        batch: Tokens of the step.
        active: Active parameters per token.
        total: Parameters in total.
        experts: Routed experts per layer.
        active_experts: Experts per token.

    Returns:
        Parameters per step.

    References:
        Lecture, section 1, *derived*.

    >>> round(float(weights_touched(1, 37e9, 671e9, experts=256, active_experts=8)) / 1e9, 6)
    37.0
    """
    # Parameters of all routed experts together.
    routed = (total - active) / (1 - active_experts / experts)
    return total - routed + routed * experts_touched(experts, active_experts, batch) / experts


def experts_per_chip(experts: Number, chips: Number) -> Number:
    """Return the experts on each chip.

    Args:
        experts: Routed experts $n$ per layer.
        chips: Chips that share the experts.

    Returns:
        Experts per chip and layer.

    References:
        Lecture, section 7.

    >>> experts_per_chip(256, 64)
    4.0
    """
    return experts / chips


def exchange_bytes(tokens: Number, width: Number, value_bytes: Number, *, experts: int, active: int, chips: Number) -> Number:
    """Return the bytes that a chip sends to dispatch its tokens to experts.

    A token goes once to each chip that has one of its experts. The combine sends the same amount back.

    Args:
        tokens: Tokens of the chip.
        width: Values per token.
        value_bytes: Bytes per value; the sum of both directions for dispatch and combine together.
        experts: Routed experts $n$ per layer.
        active: Experts per token.
        chips: Chips that share the experts.

    Returns:
        Bytes per chip.

    References:
        Lecture, section 7, *derived*.

    >>> round(float(exchange_bytes(32, 7168, 1, experts=256, active=8, chips=64)) / 1e6, 2)
    1.76
    """
    return tokens * distinct_hit(experts, active, chips) * width * value_bytes


def across_racks(racks: Number, bandwidth_ratio: Number) -> Number:
    r"""Return the time of an exchange over several racks, relative to one rack.

    The ratio is $\max(1/r, \beta (r-1)/r)$.

    Args:
        racks: Racks $r$.
        bandwidth_ratio: Scale-up bandwidth over scale-out bandwidth, $\beta$.

    Returns:
        Ratio; above 1 the exchange is slower.

    References:
        Lecture, section 7.

    >>> float(across_racks(2, 8))
    4.0
    """
    return np.maximum(1 / racks, bandwidth_ratio * (racks - 1) / racks)


def two_level_exchange(racks: Number, bandwidth_ratio: Number, copies: Number) -> Number:
    r"""Return the time of an exchange in two levels over several racks, relative to one rack.

    A token crosses once to each rack that has one of its experts, and fast links spread its copies there. With $k$ copies
    per token a token reaches $h = r (1 - (1 - 1/r)^k)$ racks, of which the share $(r-1)/r$ is remote. Both levels overlap:
    the ratio is $\max(1, \beta h (r-1) / (r k))$.

    Args:
        racks: Racks $r$.
        bandwidth_ratio: Scale-up bandwidth over scale-out bandwidth, $\beta$.
        copies: Copies $k$ of a token inside one rack: the chips with one of its experts.

    Returns:
        Ratio; 1 as fast as one rack.

    References:
        arXiv 2412.19437, section 3.2.2; lecture, section 7, *derived*.

    >>> [round(float(two_level_exchange(r, 8, 8)), 2) for r in (1, 2, 4, 8)]
    [1.0, 1.0, 2.7, 4.59]
    """
    reached = experts_touched(racks, 1.0, copies)
    return np.maximum(1.0, bandwidth_ratio * reached * (racks - 1) / (racks * copies))


def pipeline_condition(active: Number, layers_per_stage: Number, bandwidth_ratio: Number) -> Number:
    r"""Return scale-up time over scale-out time of a stage, $2 k \ell / \beta$.

    The hop between racks is hidden from 1 on.

    Args:
        active: Experts $k$ per token.
        layers_per_stage: Layers $\ell$ per pipeline stage.
        bandwidth_ratio: Scale-up bandwidth over scale-out bandwidth, $\beta$.

    Returns:
        Ratio.

    References:
        Lecture, section 9.

    >>> pipeline_condition(8, 1, 8)
    2.0
    """
    return 2 * active * layers_per_stage / bandwidth_ratio


def floor_of_domain(total: Number, weight_bytes: Number, chips: Number, bandwidth: Number) -> Number:
    """Return the minimum step latency of a scale-up domain.

    All chips of the domain read the weights of one step together.

    Args:
        total: Parameters in total.
        weight_bytes: Bytes per parameter.
        chips: Chips of the domain.
        bandwidth: Memory bandwidth per chip [B/s].

    Returns:
        Seconds per step.

    References:
        Lecture, section 11.

    >>> round(floor_of_domain(5e12, 0.5, 72, 8e12) * 1e3, 1)
    4.3
    """
    return weight_bytes * total / (chips * bandwidth)
