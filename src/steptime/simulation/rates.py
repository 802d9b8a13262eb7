"""The highest rate that meets the limits, and runs that are long enough to tell."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from steptime.errors import RangeError
from steptime.machines.system import System
from steptime.models.model import Model
from steptime.planning.workload import Slo
from steptime.results import Tabular, table_of, unit
from steptime.simulation.metrics import OVERLOADED, Answers
from steptime.simulation.outcome import Simulation
from steptime.simulation.run import simulate
from steptime.simulation.traffic import Traffic, scaled
from steptime.units import show

QUANTILES = {"mean": 1.0, "p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}  # share of requests that must be served
SETTLED = 4.0  # lifetimes of a request over which others come, that a rate is judged by
LOWERED = 20  # times at most, that a rate is lowered which longer runs do not bear out
LEAST, LONGER = 4000, 4  # requests of a replica to find a rate, and times as many to confirm it
MORE, MOST = 4, 1_000_000  # times as many requests where too few came, and how many there are at most


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePoint:
    """What users see at a rate [requests/s]: TTFT and TPOT [s] at the quantile of the limits, whether all is well, why not."""

    rate: float = field(metadata=unit("requests/s", "that was tried", key="requests_per_s"))
    ttft: float = field(metadata=unit("s", "at the quantile of the limits"))
    tpot: float = field(metadata=unit("s", "at the quantile of the limits"))
    verdict: str = field(metadata=unit("", "STABLE, SATURATED or OVERLOADED"))
    good: bool = field(metadata=unit("", "whether the limits hold, and the queue does not grow"))
    why: str = field(default="", metadata=unit("", "what else is wrong"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HighestRate(Tabular):
    """The highest rate at which a deployment meets its limits, 0 where none does; as a table, every rate tried."""

    SCHEMA: ClassVar[str] = "steptime.highest-rate/1"

    rate: float = field(
        metadata=unit("requests/s", "highest at which the limits hold; 0 where none does", key="requests_per_s")
    )
    quantile: str = field(metadata=unit("", "at which they hold: mean, p50, p90, p95 or p99"))
    points: tuple[RatePoint, ...] = field(metadata=unit("", "every rate tried, lowest first"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the rate, and what users see at it."""
        at = next((point for point in self.points if point.rate == self.rate), None)
        seen = (
            {} if at is None else {f"TTFT, {self.quantile}": show(at.ttft, "s"), f"TPOT, {self.quantile}": show(at.tpot, "s")}
        )
        return f"Highest rate: {self.rate:,.3g} requests/s, of {len(self.points)} tried", seen

    def columns(self) -> dict[str, Any]:
        """Return every rate tried, lowest first."""
        return table_of(RatePoint, self.points)


def meets(answers: Answers, slo: Slo, quantile: str, lifetimes: float = SETTLED) -> bool:
    """Whether a run meets the limits at a quantile ("mean", "p50", "p90", "p95", "p99"), kept up, and was long enough to tell.

    No more requests may be rejected than the quantile leaves out, and none of a mean.
    """
    if quantile not in QUANTILES:
        raise RangeError(f"the quantile of the limits must be one of {', '.join(QUANTILES)}, not {quantile}")
    ttft, tpot = getattr(answers.ttft, quantile), getattr(answers.tpot, quantile)
    late = ttft > slo.ttft or (tpot > slo.tpot and not math.isnan(tpot))
    enough = answers.served > 0 and answers.served >= QUANTILES[quantile] * answers.sent
    return answers.verdict != OVERLOADED and enough and not late and settled(answers, lifetimes)


def _why_not(answers: Answers, quantile: str) -> str:
    """What besides limits and a growing queue keeps a rate from being good."""
    if answers.served < QUANTILES[quantile] * answers.sent:
        return f"{answers.rejected / answers.sent:.1%} rejected: {answers.rejected_why}"
    return "" if settled(answers, SETTLED) else "not settled"


def settled(answers: Answers, lifetimes: float) -> bool:
    """Whether requests came for so many times as long as the median of them takes: before, a server has not filled up."""
    return answers.served == 0 or answers.arriving >= lifetimes * answers.end_to_end.p50


def long_enough(
    run: Callable[[Traffic], Simulation], traffic: Callable[[float, int], Traffic], rate: float, requests: int, lifetimes: float
) -> Simulation:
    """Return the run of as many requests, from `requests` to MOST, as it takes to settle or to be overloaded.

    traffic: from a rate [requests/s] and a number of requests; its mean rate is set to `rate`, not that of the sample drawn.
    """
    while True:
        came = traffic(rate, requests)
        found = run(scaled(came, rate / came.rate) if math.isfinite(came.rate) else came)
        if settled(found.answers, lifetimes) or found.answers.verdict == OVERLOADED or requests >= MOST:
            return found
        requests = min(MORE * requests, MOST)


def highest_rate(
    run: Callable[[float], Answers],
    *,
    slo: Slo,
    quantile: str = "p99",
    start: float = 1.0,
    tolerance: float = 0.02,
    longer: Callable[[float], Answers] | None = None,
) -> HighestRate:
    """Return the highest rate [requests/s] at which `run(rate)` meets the limits, and every rate tried, by rate.

    Doubling finds a rate that fails, bisection closes in to `tolerance`; 0 where even `start` / 1024 fails. What is found must
    hold in a `longer` run too, or the rate is lowered by the tolerance until it does.
    """
    points: list[RatePoint] = []

    def good(rate: float, run: Callable[[float], Answers] = run) -> bool:
        found = run(rate)
        well = meets(found, slo, quantile)
        points.append(
            RatePoint(
                rate=rate,
                ttft=getattr(found.ttft, quantile),
                tpot=getattr(found.tpot, quantile),
                verdict=found.verdict,
                good=well,
                why="" if well else _why_not(found, quantile),
            )
        )
        return well

    low, high = 0.0, start
    if good(start):
        low = start
        while low < start * 2**20:
            high = 2 * low
            if not good(high):
                break
            low = high
    else:
        while high > start / 1024:
            if good(high / 2):
                low = high / 2
                break
            high /= 2
    while low > 0 and high / low > 1 + tolerance:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if good(middle) else (low, middle)
    for _ in range(LOWERED if low > 0 else 0):
        if longer is None or good(low, longer):
            break
        low /= 1 + tolerance
    tried = sorted({point.rate: point for point in points}.values(), key=lambda point: point.rate)
    return HighestRate(rate=low, quantile=quantile, points=tuple(tried))


def rates(
    model: Model, system: System, traffic: Callable[[float, int], Traffic], *, requests: int = 4000, **given: Any
) -> Callable[[float], Answers]:
    """Return a function from a rate [requests/s] to the answers of a run that is long enough.

    traffic: from a rate and a number of requests, at least `requests`; `given` goes to `simulate`.
    """

    run = partial(simulate, model, system, **given)
    return lambda rate: long_enough(run, traffic, rate, requests, SETTLED).answers


def find_rate(
    model: Model,
    system: System,
    traffic: Callable[[float, int], Traffic],
    *,
    slo: Slo,
    quantile: str = "p99",
    requests: int | None = None,
    **given: Any,
) -> HighestRate:
    """Return the highest rate [requests/s] within `slo` at a quantile, and every rate tried: see `highest_rate`.

    requests: the least of a run, LEAST for each replica unless given; the rate must hold for LONGER times as many.
    """
    replicas = int(given["layout"].replicas) + int(given.get("fast_replicas", 0))
    least = LEAST * replicas if requests is None else requests
    run, longer = (rates(model, system, traffic, requests=n * least, slo=slo, **given) for n in (1, LONGER))
    return highest_rate(run, slo=slo, quantile=quantile, longer=longer)
