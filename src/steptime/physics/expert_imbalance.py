r"""Expert imbalance: rows of the busiest expert-parallel rank over the mean, and what redundant experts change.

**Popularity.** The loads of the $n$ experts of a layer are log-normal with the coefficient of variation $c$ (the engine
constant `expert_skew`). Token counts of DeepSeek-V3 layers on MMLU Pro fit a log-normal best
(github.com/deepseek-ai/DeepEP/pull/393).

**Without copies** experts lie in the order of the checkpoint, at random to their popularity. The load of one of $g$ ranks over
the mean then has the variance of a sample without replacement, $c^2 (g-1)/(n-1)$. `placement_excess` is the expected maximum.

**With copies** an engine replicates the experts with the largest load per copy and packs them evenly (EPLB). The error of
the forecast remains (`load_error`). So does the largest load of a copy (`largest_copy`), if it is more than the mean of a rank.

**Requests.** Tokens of one request use similar experts, so that a batch of few requests differs from the usual popularity.

**Chance.** The tokens of one batch fluctuate around these loads (`expected_maximum`). Independent deviations add in quadrature.

**Check.** DeepSeek-R1 ran on 32 GB200 with 4,096 requests and 8 experts each (TensorRT-LLM, tech blog 4, table 1). The busiest
rank had 2.56 times the mean rows without copies, and 1.109 times with 32 copies, on average over layers. On 36 ranks it had
1.115 times with 32 copies. With the measured $c$ of 1.28 these functions give 2.34, 1.11 and 1.11.

Left out: the exchange of rows, which waits for the busiest rank too, and the time to move copies. Ranks with unequal numbers
of experts are taken as equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np

from steptime.blackboard.expert_activation import expected_maximum
from steptime.number_checks import Array, Number, has_nonzero, map_unique

# Deviation of an expert's share of the tokens of one request, over the deviation of the shares of experts. SGLang on 32 H100
# with 32 copies took 59,337 / 50,302 times as long as with even experts, with micro-batches of 64 prompts of 4,096 tokens.
# https://lmsys.org/blog/2025-05-05-large-scale-ep (overall throughput). Qwen3.6-35B in steps of a few prompts on four ranks has
# 1.35 rows of the busiest over the mean, and 1.35 here with three (github.com/ai-dynamo/aiconfigurator, routing capture).
REQUEST_SPREAD: Final = 2.1
# Standard deviation of an expert's load over its forecast. After EPLB the ranks of DeepSeek-R1 deviate by 52.0 of 1,024 rows on
# 32 ranks and by 53.9 on 36, of which chance is 32. With the loads of its slots, an expert deviates by 0.100 in both, at 4,096
# requests. https://nvidia.github.io/TensorRT-LLM/blogs/tech_blog/blog4_Scaling_Expert_Parallelism_in_TensorRT-LLM.html, table 1
FORECAST_ERROR: Final = math.sqrt(0.1**2 - (REQUEST_SPREAD * 1.28) ** 2 / 4096)
# Mean load of a copy over the largest: greedy replication leaves loads between half of it and all of it.
COPY_SHARE: Final = 0.75
# Halvings of an interval of logarithms, to a relative error below 1e-6.
HALVINGS: Final = 24
# Skews for which loads of copies are computed, where there are more: samples of an uncertain skew.
GRID: Final = 128
# Copies of one expert that the sum over copies counts.
MOST_COPIES: Final = 64
# Smallest coefficient of variation, which avoids a division by 0.
SMALLEST: Final = 1e-6


def busiest_rows(
    mean: Number, chance: Number, requests: Number, skew: Number, experts: int, ranks: Number, copies: Number
) -> Number:
    r"""Return the expected rows of the busiest expert-parallel rank.

    Without copies they are $m + \sqrt{a^2 + m^2 (e^2 + f^2)}$, with chance $a$, `placement_excess` $e$ and `load_error` $f$ of
    the requests. With copies they are $m p + \sqrt{a^2 + m^2 f^2}$ with the `packing` $p$, and $f$ of requests and forecast.
    They are never more than without copies.

    Args:
        mean: Mean rows $m$ of a rank.
        chance: Expected excess of the busiest rank with equal popularity [rows].
        requests: Requests of the batch.
        skew: Coefficient of variation of the popularity of experts.
        experts: Routed experts per layer.
        ranks: Expert-parallel ranks.
        copies: Redundant experts.

    Returns:
        Rows. All arguments except `experts` broadcast.

    References:
        github.com/deepseek-ai/EPLB; placement by chance and by EPLB agree with drawn loads (tests/physics).

    >>> [round(float(busiest_rows(1024, 64.0, 4096, 1.28, 256, 32, copies)), -1) for copies in (0, 32)]
    [2400.0, 1130.0]
    """
    if not has_nonzero(skew):
        return mean + chance
    spread = np.square(REQUEST_SPREAD * skew) / np.maximum(requests, 1.0)
    score = expected_maximum(0.0, 1.0, ranks, 0.0)
    usual = load_error(score, spread, 1 + np.square(skew), experts, ranks)
    placed = np.square(placement_excess(score, skew, experts, ranks)) + np.square(usual)
    unbalanced: Number = mean + np.sqrt(np.square(chance) + np.square(mean) * placed)
    if not has_nonzero(copies):
        return unbalanced
    forecast = load_error(score, spread + FORECAST_ERROR**2, per_skew(copy_square, skew, copies, experts), experts, ranks)
    full = packing(per_skew(largest_copy, skew, copies, experts), experts, ranks)
    balanced = mean * full + np.hypot(chance, mean * forecast)
    return np.where(np.asarray(copies) > 0, np.minimum(unbalanced, balanced), unbalanced)


def placement_excess(score: Number, skew: Number, experts: int, ranks: Number) -> Array:
    r"""Return the excess of the busiest rank over the mean, with experts placed at random.

    A shifted log-normal has the first three moments of a rank's share. The variance is $v = c^2 \frac{g-1}{n-1}$, and the third
    moment is $c^4 (3 + c^2) \frac{(g-1)(g-2)}{(n-1)(n-2)}$. With its skewness $\gamma$, $t = 2 \sinh(\frac13
    \operatorname{asinh}\frac\gamma2)$, $\omega^2 = \log(1 + t^2)$ and Blom's normal score $b$, the expected maximum is
    $\sqrt v \, (e^{\omega b - 3 \omega^2 / 8} - 1) / t$.

    Args:
        score: Normal score $b$: the expected maximum of as many standard normal deviates as there are ranks.
        skew: Coefficient of variation $c$ of the popularity of experts.
        experts: Routed experts $n$ per layer.
        ranks: Expert-parallel ranks $g$.

    Returns:
        Excess over the mean, as a share of the mean.

    >>> numbers = np.array([1, 2, 8, 32, 256])
    >>> placement_excess(expected_maximum(0.0, 1.0, numbers, 0.0), 1.0, 256, numbers).round(2).tolist()
    [0.0, 0.04, 0.26, 0.97, 7.03]
    """
    squared, parts = np.square(skew), np.asarray(ranks) - 1.0
    variance = squared * parts / max(experts - 1, 1)
    third = np.square(squared) * (3 + squared) * parts * np.maximum(parts - 1, 0) / max((experts - 1) * (experts - 2), 1)
    skewness = third / np.maximum(variance, SMALLEST**2) ** 1.5
    tail = np.maximum(2 * np.sinh(np.arcsinh(skewness / 2) / 3), SMALLEST)
    width = np.sqrt(np.log1p(np.square(tail)))
    excess = np.sqrt(variance) * np.expm1(width * score - 0.375 * np.square(width)) / tail
    return np.where(parts > 0, np.maximum(excess, 0.0), 0.0)


def packing(largest: Number, experts: int, ranks: Number) -> Array:
    """Return the load of the fullest rank over the mean after replication and packing.

    A copy cannot be divided: the rank with the largest copy has at least its load.

    Args:
        largest: Largest load of a copy over the mean load of an expert (`largest_copy`).
        experts: Routed experts per layer.
        ranks: Expert-parallel ranks.

    Returns:
        A factor of at least 1. Packing of unequal copies leaves up to 0.1 more, where a rank has two or three slots.

    >>> [round(float(packing(largest_copy(32, 256, 1.0), 256, ranks)), 2) for ranks in (32, 144, 288)]
    [1.0, 1.16, 2.31]
    """
    factor: Array = np.maximum(largest * ranks / experts, 1.0)
    return factor


def load_error(score: Number, variance: Number, square: Number, experts: int, ranks: Number) -> Array:
    r"""Return the excess of the busiest rank from loads that deviate from the usual or forecast ones.

    Let each expert's load deviate by the share $\delta$ of it, and $q$ be the mean square of loads per copy (`copy_square`).
    Then a rank's share has the variance $\delta^2 g q / n$.

    Args:
        score: Normal score of the largest of $g$ ranks, as in `placement_excess`.
        variance: Variance $\delta^2$ of an expert's load over the expected one.
        square: Mean square $q$; 1 plus the square of the skew without copies.
        experts: Routed experts $n$ per layer.
        ranks: Expert-parallel ranks $g$.

    Returns:
        Excess over the mean, as a share of the mean.

    >>> round(float(load_error(expected_maximum(0.0, 1.0, 32, 0.0), 0.01, copy_square(32, 256, 1.28), 256, 32)), 3)
    0.084
    """
    return np.asarray(score * np.sqrt(variance * ranks / experts * square))


def per_skew(function: Callable[..., float], skew: Number, copies: Number, experts: int) -> Array:
    """Evaluate `largest_copy` or `copy_square` for pairs of skew and copies.

    Args:
        function: Function of copies, experts and skew.
        skew: Coefficient of variation of the popularity of experts; of many values, `GRID` are evaluated and interpolated.
        copies: Redundant experts.
        experts: Routed experts per layer.

    Returns:
        Results in the broadcast shape of skew and copies.

    >>> per_skew(largest_copy, 1.28, np.array([8, 32, 128]), 256).round(2).tolist()
    [4.21, 2.3, 1.08]
    """
    skews, count_of_experts = np.asarray(skew, dtype=np.float64), float(experts)
    if skews.ndim == 0:
        return map_unique(function, copies, count_of_experts, float(skews))
    unique = np.unique(skews)
    values = unique if unique.size <= GRID else np.linspace(unique[0], unique[-1], GRID)
    skews, counts = np.broadcast_arrays(skews, copies)
    results = np.zeros(skews.shape)
    for count in np.unique(counts):
        places = counts == count
        computed = [function(float(count), count_of_experts, float(value)) for value in values]
        results[places] = np.interp(skews[places], values, computed)
    return results


def _exceeded(load: float, width: float) -> float:
    """Return the share of experts above a load; the logarithm of loads has the deviation `width` and the mean load is 1."""
    return 0.5 * math.erfc((math.log(load) / width + width / 2) / math.sqrt(2))


@lru_cache(maxsize=4096)
def largest_copy(copies: float, experts: float, skew: float) -> float:
    r"""Return the largest load of a copy after replication, over the mean load of an expert.

    Greedy replication gives copies to the experts with the largest load per copy. It ends at the load $t$ with
    $\sum_{j \ge 1} P(x > j t) = r/n$ for $r$ copies.

    Args:
        copies: Redundant experts $r$.
        experts: Routed experts $n$ per layer.
        skew: Coefficient of variation of the popularity of experts.

    Returns:
        A load.

    >>> [round(largest_copy(copies, 256, 1.28), 2) for copies in (8, 32, 128)]
    [4.21, 2.3, 1.08]
    """
    width = math.sqrt(math.log1p(max(skew, SMALLEST) ** 2))
    if copies <= 0:
        return math.inf
    low, high = -5.0, math.log(experts)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        load = math.exp(middle)
        needed = 0.0
        for count in range(1, MOST_COPIES):
            further = experts * _exceeded(count * load, width)
            needed += further
            if needed > copies or further < SMALLEST * copies:
                break
        low, high = (middle, high) if needed > copies else (low, middle)
    return math.exp(high)


@lru_cache(maxsize=4096)
def copy_square(copies: float, experts: float, skew: float) -> float:
    """Return the mean over experts of load times load per copy, in units of the mean load of an expert.

    Loads below the largest copy have one copy, and loads above it are divided.

    Args:
        copies: Redundant experts.
        experts: Routed experts per layer.
        skew: Coefficient of variation of the popularity of experts.

    Returns:
        Mean square; 1 plus the square of the skew without copies.

    >>> [round(copy_square(copies, 256, 1.0), 2) for copies in (0, 8, 32)]
    [2.0, 1.56, 1.2]
    """
    width, largest = math.sqrt(math.log1p(max(skew, SMALLEST) ** 2)), largest_copy(copies, experts, skew)
    if math.isinf(largest):
        return 1 + skew**2
    # Partial moments of a log-normal: those of order k are a log-normal's share with the logarithm shifted by k variances.
    undivided = (1 + skew**2) * (1 - _exceeded(largest * math.exp(-2 * width**2), width))
    return undivided + COPY_SHARE * largest * _exceeded(largest * math.exp(-(width**2)), width)
