"""How likely a plan meets its limits, and where it has to aim to meet them with a given probability.

The range of a figure reaches from its 5 % point to its 95 % point; each side is taken for half of a log-normal distribution.

Where candidates have to aim: at the limits, or so far below them that they are met with the probability asked for.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final

from steptime.errors import RangeError
from steptime.number_checks import Array, Number, single
from steptime.physics.extrapolation import Distance, distances, widening
from steptime.physics.layout import Layout
from steptime.physics.uncertainty import factors, has_range, latency_regime
from steptime.planning.plan_problem import PlanProblem

NORMAL: Final = NormalDist()
EDGE: Final = NORMAL.inv_cdf(0.95)  # deviations at which a 90 % range ends


def check_sure(sure: float | None) -> None:
    """Raise RangeError for a probability out of bounds."""
    single(sure=sure)
    if sure is not None and not 0.5 <= sure <= 0.99:
        raise RangeError(f"sure is a probability from 0.5 to 0.99, such as 0.9, not {sure:g}")


def deviations(sure: float) -> float:
    """Return how far towards the end of a 90 % range, in logarithms, the point lies below which a figure stays with `sure`.

    >>> round(deviations(0.95), 6), deviations(0.5)
    (1.0, 0.0)
    """
    return NORMAL.inv_cdf(sure) / EDGE


def point(value: float, limits: tuple[float, float] | None, sure: float) -> float:
    """Return what a figure stays below with probability `sure`, of at least one half; the figure itself without a range.

    >>> round(point(1.0, (0.5, 2.0), 0.95), 6), point(1.0, (0.5, 2.0), 0.5), point(1.0, None, 0.9)
    (2.0, 1.0, 1.0)
    """
    if limits is None:
        return value
    return float(value * (limits[1] / value) ** deviations(sure))


def likelihood(value: float, limits: tuple[float, float] | None, limit: float) -> float:
    """Return how likely a figure stays below a `limit`: 0 or 1 without a range.

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


def extrapolation_flags(case: PlanProblem, layout: Layout, reader: Layout | None) -> tuple[tuple[Distance, Array], ...]:
    """Return in which ways candidates are unlike what was measured; their layouts may hold arrays, `reader` reads prompts."""
    return distances(case.engine, case.system, layout, reader, drafts=bool(case.speculation.drafts))


def effective_targets(case: PlanProblem, layout: Layout, reader: Layout | None, prompts: Number = 0.0) -> tuple[Number, Number]:
    """Return where TPOT and TTFT have to be [s]: below the limits by what the range at `case.sure` holds above a figure.

    prompts: share of a token's time that goes to others' prompts. `case.aim` sets right what is known of a candidate alone.
    """
    if case.sure is None or not has_range(case.engine):
        return case.slo.tpot, case.slo.ttft
    flags = extrapolation_flags(case, layout, reader)
    regime = latency_regime(prompts)
    waiting = regime if reader is None else "mixed"
    slow = factors(case.engine, "tpot", regime, system=case.system, wider=widening(flags))[1]
    late = factors(case.engine, "ttft", waiting, system=case.system, wider=widening(flags, "ttft"))[1]
    share = deviations(case.sure)
    return case.slo.tpot * case.aim[0] / slow**share, case.slo.ttft * case.aim[1] / late**share
