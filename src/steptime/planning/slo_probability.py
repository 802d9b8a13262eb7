"""SLO probability: how likely limits are met, and targets for a given probability.

The 90 % range of a figure reaches from its 5 % to its 95 % quantile. Each side is taken as half of a
log-normal distribution.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from steptime.errors import RangeError, UnknownName
from steptime.number_checks import Array, Number, single
from steptime.physics.bias_correction import OperatingPoint
from steptime.physics.layout import Layout
from steptime.physics.uncertainty import WAITS, Distance, distances, factors, has_range, latency_regime, usual_delay, widening
from steptime.planning.plan_problem import PlanProblem
from steptime.planning.steady_state import mean_context
from steptime.workload.workload import Slo, Speculation, Workload

NORMAL: Final = NormalDist()
# Standard deviations at the end of a 90 % range.
EDGE: Final = NORMAL.inv_cdf(0.95)
# Percentiles as quantiles; "mean" is no quantile.
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
# Variance of waits, over their squared mean, in addition to that of the prompts.
WAIT_VARIANCE = 0.5
# Where the levels of the TTFT lie between its mean and its percentile, as shares of their ratio less 1.
TTFT_LEVELS = (0.2, 1.0, 1.9)
# Ratio of the first two from which there is a level between them, and its share: at p99 they are far apart.
LARGE_STEP, BETWEEN = 2.0, 0.5


def percentile_ratio(workload: Workload, percentile: str) -> float:
    """Return about how much longer a TTFT at a percentile is than the mean.

    The TTFT is taken as log-normal. Its variance is that of the prompts and of waits.

    Args:
        workload: Requests.
        percentile: "mean", "p50", "p90", "p95" or "p99".

    Returns:
        Ratio, at least 1.

    >>> requests = Workload(input_tokens=1000, output_tokens=100)
    >>> percentile_ratio(requests, "mean"), round(percentile_ratio(requests, "p90"), 2)
    (1.0, 2.16)
    """
    if percentile not in QUANTILES:
        return 1.0
    sigma = math.sqrt(math.log1p(float(workload.input_spread) ** 2 + WAIT_VARIANCE))
    return max(1.0, math.exp(NORMAL.inv_cdf(QUANTILES[percentile]) * sigma - sigma**2 / 2))


def target_levels(workload: Workload, slo: Slo, percentile: str, *, simulated: bool) -> list[Slo]:
    """Return targets of the means that stand for limits at a percentile: the widest, the usual and the narrowest one.

    Where the first two are far apart, one between them is the last.

    Args:
        workload: Requests.
        slo: Limits at the percentile.
        percentile: Percentile of the limits.
        simulated: Whether finalists are simulated, so that several levels are worth a try.

    Returns:
        Targets; one without a simulation.
    """
    if not simulated:
        return [Slo(ttft=slo.ttft / percentile_ratio(workload, percentile), tpot=slo.tpot)]
    beyond = max(percentile_ratio(workload, percentile), 1.5) - 1
    ratios = [1 + share * beyond for share in (*TTFT_LEVELS, BETWEEN)]
    return [
        Slo(ttft=slo.ttft / ratio, tpot=slo.tpot) for ratio in (ratios if ratios[1] > LARGE_STEP * ratios[0] else ratios[:-1])
    ]


def check_percentile(percentile: str) -> str:
    """Return a percentile if it is a valid one.

    Args:
        percentile: "mean", "p50", "p90", "p95" or "p99".

    Returns:
        The percentile.

    Raises:
        UnknownName: It is not one of these.
    """
    percentiles = ("mean", *QUANTILES)
    if not isinstance(percentile, str) or percentile not in percentiles:
        raise UnknownName("percentile", percentile, percentiles, f"Known: {', '.join(percentiles)}.")
    return percentile


def check_sure(sure: float | None) -> None:
    """Check a probability.

    Args:
        sure: Probability, or None.

    Raises:
        RangeError: It is not between 0.5 and 0.99.
    """
    single(sure=sure)
    if sure is not None and not 0.5 <= sure <= 0.99:
        raise RangeError(f"sure: must be a probability from 0.5 to 0.99, got {sure:g}; give for example 0.9")


def deviations(sure: float) -> float:
    """Return the position of a quantile within the upper half of a 90 % range.

    The scale is logarithmic: 0 is the median, and 1 is the end of the range.

    Args:
        sure: Probability of the quantile, 0 to 1.

    Returns:
        Position.

    >>> round(deviations(0.95), 6), deviations(0.5)
    (1.0, 0.0)
    """
    return NORMAL.inv_cdf(sure) / EDGE


def point(value: float, limits: tuple[float, float] | None, sure: float) -> float:
    """Return the value that a figure stays below with a given probability.

    Args:
        value: Median of the figure.
        limits: Its 90 % range, or None.
        sure: Probability, at least 0.5.

    Returns:
        The quantile; the figure itself without a range.

    >>> round(point(1.0, (0.5, 2.0), 0.95), 6), point(1.0, (0.5, 2.0), 0.5), point(1.0, None, 0.9)
    (2.0, 1.0, 1.0)
    """
    if limits is None:
        return value
    return float(value * (limits[1] / value) ** deviations(sure))


def likelihood(value: float, limits: tuple[float, float] | None, limit: float) -> float:
    """Return the probability that a figure stays below a limit.

    Args:
        value: Median of the figure.
        limits: Its 90 % range, or None.
        limit: Upper limit.

    Returns:
        Probability; 0 or 1 without a range.

    >>> likelihood(1.0, (0.5, 2.0), 1.0), round(likelihood(1.0, (0.5, 2.0), 2.0), 3), round(likelihood(1.0, (0.5, 2.0), 0.5), 3)
    (0.5, 0.95, 0.05)
    """
    if limits is None or math.isinf(limit):
        return float(value <= limit * (1 + 1e-9))
    away = math.log(limit / value)
    side = math.log(limits[1] / value) if away > 0 else math.log(value / limits[0])
    if side <= 0:
        return float(away >= 0)
    return NORMAL.cdf(EDGE * away / side)


def extrapolation_flags(
    case: PlanProblem, layout: Layout, reader: Layout | None, batch: Number = 0.0
) -> tuple[tuple[Distance, Array], ...]:
    """Return in which ways candidates differ from measured runs.

    Args:
        case: Plan problem.
        layout: Layouts of the decode replica; may hold arrays.
        reader: Layouts of a separate prefill pool, or None.
        batch: Sequences that decode on a replica.

    Returns:
        Pairs of a kind of distance and booleans by candidate.
    """
    of_decode, of_prefill = pool_flags(case, layout, reader, batch)
    return tuple((flag, np.logical_or(first, second)) for (flag, first), (_, second) in zip(of_decode, of_prefill, strict=True))


def pool_flags(
    case: PlanProblem, layout: Layout, reader: Layout | None, batch: Number = 0.0
) -> tuple[tuple[tuple[Distance, Array], ...], tuple[tuple[Distance, Array], ...]]:
    """Return in which ways the pool that decodes and the one that prefills differ from measured runs.

    On two systems each pool differs by itself from the runs of its system.

    Args:
        case: Plan problem.
        layout: Layouts of the decode replica; may hold arrays.
        reader: Layouts of a separate prefill pool, or None.
        batch: Sequences that decode on a replica.

    Returns:
        Pairs of a kind of distance and booleans by candidate, for each pool; the same ones on one system.
    """
    reach = case.workload.input_tokens + case.workload.output_tokens
    kinds: dict[str, Any] = {"model": case.model, "drafts": bool(case.speculation.drafts)}
    if reader is None or case.prefill_system is None:
        flags = distances(case.engine, case.system, layout, reader, **kinds, context=reach, batch=batch)
        return flags, flags
    of_decode = distances(case.engine, case.system, layout, layout, **kinds, context=reach, batch=batch)
    return of_decode, distances(case.engine, case.prefill_system, reader, reader, **kinds, context=reach)


def decode_widening(flags: tuple[tuple[Distance, Array], ...], speculation: Speculation) -> tuple[Number, Number]:
    """Return the logarithms by which the range of a time per token widens.

    An acceptance length that is a prior is a separate error, independent of the distance from measured runs.

    Args:
        flags: Differences from measured runs, and whether they apply.
        speculation: Speculative tokens.

    Returns:
        Logarithms below and above.
    """
    low, high = widening(flags)
    fewer, additional = speculation.log_range
    return np.hypot(low, fewer), np.hypot(high, additional)


def effective_targets(case: PlanProblem, layout: Layout, reader: Layout | None, prompts: Number = 0.0) -> tuple[Number, Number]:
    """Return the targets of TPOT and TTFT for the probability `case.sure`.

    They are below the limits by the upper part of the range. `case.aim` corrects for the uncertainty that is
    known only for a single candidate.

    Args:
        case: Plan problem.
        layout: Layouts of the decode replica.
        reader: Layouts of a separate prefill pool, or None.
        prompts: Share of the time of a token that prefill chunks take.

    Returns:
        TPOT and TTFT [s].
    """
    if case.sure is None or not has_range(case.engine):
        return case.slo.tpot, case.slo.ttft
    regime = latency_regime(prompts)
    # Whether first tokens wait for others is not known yet either.
    first = case.system if reader is None else case.prefill.system
    of_decode, of_prefill = pool_flags(case, layout, reader)
    tpot_wider, ttft_wider = decode_widening(of_decode, case.speculation), widening(of_prefill, "ttft")
    # The load is not known yet: own runs count as at their load.
    point = OperatingPoint(layout=layout, context=mean_context(case.workload))
    slow = factors(case.engine, "tpot", regime, system=case.system, wider=tpot_wider, point=point)[1]
    late = factors(case.engine, "ttft", WAITS[0], system=first, wider=ttft_wider, point=point)[1]
    share, usual = deviations(case.sure), usual_delay(of_prefill)
    return case.slo.tpot * case.aim[0] / slow**share, case.slo.ttft * case.aim[1] / (usual * (late / usual) ** share)
