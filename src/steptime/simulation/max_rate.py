"""The highest rate that meets the limits (drawn, of a trace or of clients), and runs that are long enough to tell."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from steptime.errors import RangeError
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import whole_number
from steptime.planning.workload import Slo
from steptime.result_base import Tabular, columns_by_key, unit
from steptime.simulation.run_metrics import OVERLOADED, Answers
from steptime.simulation.simulation_result import Simulation
from steptime.simulation.simulator import simulate
from steptime.simulation.slo_check import PERCENTILES, Judged, judge
from steptime.simulation.traffic import Traffic, checked, scaled
from steptime.units import in_digits, show

SETTLED_LIFETIMES = 4.0  # lifetimes of a request over which others come, that a rate is judged by
MAX_REDUCTIONS = 20  # times at most, that a rate is lowered which longer runs do not bear out
MIN_REQUESTS, CONFIRM_FACTOR = 4000, 4  # requests of a replica to find a rate, and times as many to confirm it
REQUESTS_FACTOR, MAX_REQUESTS = 4, 1_000_000  # times as many requests where too few came, and how many there are at most
REQUESTS_PER_CLIENT = 200  # requests of each client, so that their common start is less than the hundredth that p99 leaves out
REQUESTS_PER_CLIENT_DISAGGREGATED = 20  # of each on separate pools, where a run costs as much as their square
UNSETTLED = "not settled"


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePoint:
    """What users see at a rate [requests/s]: TTFT and TPOT [s] at the percentile of the limits, and the verdict."""

    rate: float = field(metadata=unit("requests/s", "that was tried; of clients, what they brought", key="requests_per_s"))
    scale: float | None = field(default=None, metadata=unit("", "times as fast as the trace; null without a trace"))
    clients: int | None = field(default=None, metadata=unit("", "of a closed loop; null otherwise"))
    ttft: float = field(metadata=unit("s", "at the percentile of the limits"))
    tpot: float = field(metadata=unit("s", "at the percentile of the limits"))
    verdict: str = field(metadata=unit("", "STABLE, SATURATED or OVERLOADED"))
    good: bool = field(metadata=unit("", "whether the limits hold, and the queue does not grow"))
    why: str = field(default="", metadata=unit("", "what else is wrong"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HighestRate(Tabular):
    """The highest rate at which a deployment meets its limits, 0 where none does; as a table, every rate tried.

    Of a trace, `scale` says how many times as fast it was played; of a closed loop, `clients` how many of them hold, and the
    rate is what they bring.
    """

    SCHEMA: ClassVar[str] = "steptime.highest-rate/2"

    rate: float = field(
        metadata=unit("requests/s", "highest at which the limits hold; 0 where none does", key="requests_per_s")
    )
    scale: float | None = field(default=None, metadata=unit("", "times as fast as the trace; null without a trace"))
    clients: int | None = field(default=None, metadata=unit("", "most of a closed loop; null otherwise"))
    percentile: str = field(metadata=unit("", "at which they hold: mean, p50, p90, p95 or p99"))
    points: tuple[RatePoint, ...] = field(metadata=unit("", "every rate tried, lowest first"))

    @property
    def best(self) -> RatePoint | None:
        """The point of the answer; None where no rate is within the limits."""
        return next((p for p in self.points if p.rate == self.rate and p.clients == self.clients and p.rate > 0), None)

    @property
    def cut_short(self) -> bool:
        """Whether more may hold: the next higher rate misses no limit, but its run is too short to tell."""
        above = [p for p in self.points if p.rate > self.rate and not p.good] if self.clients is None else []
        return bool(above) and above[0].why == UNSETTLED

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the rate, and what users see at it."""
        point = self.best
        latencies = (
            {}
            if point is None
            else {f"TTFT, {self.percentile}": show(point.ttft, "s"), f"TPOT, {self.percentile}": show(point.tpot, "s")}
        )
        if self.clients is not None:
            return (
                f"Most clients: {self.clients:,}, bringing {in_digits(self.rate)} requests/s, of {len(self.points)} tried",
                latencies,
            )
        times = "" if self.scale is None else f" ({in_digits(self.scale)} times as fast as the trace)"
        return f"Highest rate: {in_digits(self.rate)} requests/s{times}, of {len(self.points)} tried", latencies

    def columns(self) -> dict[str, Any]:
        """Return every rate tried, lowest first."""
        return columns_by_key(RatePoint, self.points)


def meets(answers: Answers, slo: Slo, percentile: str, lifetimes: float = SETTLED_LIFETIMES) -> bool:
    """Whether a run meets the limits at a percentile (see `judge`), and was long enough to tell."""
    return judge(answers, slo, percentile).is_met and settled(answers, lifetimes)


def _why_not(answers: Answers, judged: Judged) -> str:
    """What besides limits and a growing queue keeps a rate from being good."""
    if answers.served < PERCENTILES[judged.percentile] * answers.sent:
        return f"{answers.rejected / answers.sent:.1%} rejected: {answers.rejected_why}"
    return UNSETTLED if judged.is_met else ""


def settled(answers: Answers, lifetimes: float) -> bool:
    """Whether requests came for so many times as long as the median of them takes: before, a server has not filled up."""
    return answers.served == 0 or answers.arriving >= lifetimes * answers.end_to_end.p50


def run_until_settled(
    run: Callable[[Traffic], Simulation], traffic: Callable[[float, int], Traffic], rate: float, requests: int, lifetimes: float
) -> Simulation:
    """Return the run of as many requests, from `requests` to MOST, as it takes to settle or to be overloaded.

    traffic: from a rate [requests/s] and a number of requests; its mean rate is set to `rate`, not that of the sample drawn.
    """
    while True:
        requests_at_rate = traffic(rate, requests)
        simulation = run(
            scaled(requests_at_rate, rate / requests_at_rate.rate) if math.isfinite(requests_at_rate.rate) else requests_at_rate
        )
        if settled(simulation.answers, lifetimes) or simulation.answers.verdict == OVERLOADED or requests >= MAX_REQUESTS:
            return simulation
        requests = min(REQUESTS_FACTOR * requests, MAX_REQUESTS)


def highest_load(good: Callable[[float], bool], *, start: float, tolerance: float, is_integer: bool = False) -> float:
    """Return the highest load at which `good(load)` holds: doubling finds one that fails, bisection closes in to `tolerance`.

    0 where even `start` / 1024 fails, or a load of 1 where loads are `whole` numbers.

    >>> highest_load(lambda clients: clients <= 37, start=8, tolerance=0.02, is_integer=True)
    37
    """
    low, high, least = 0.0, start, 1.0 if is_integer else start / 1024
    if good(start):
        low = start
        while low < start * 2**20:
            high = 2 * low
            if not good(high):
                break
            low = high
    while low == 0 and high > least:
        half = max(1, high // 2) if is_integer else high / 2
        low, high = (half, high) if good(half) else (0.0, half)
    while low > 0 and high / low > 1 + tolerance and not (is_integer and high - low <= 1):
        middle = min(max(round(math.sqrt(low * high)), low + 1), high - 1) if is_integer else math.sqrt(low * high)
        low, high = (middle, high) if good(middle) else (low, middle)
    return low


def _search_load(
    run: Callable[[float], Answers],
    point: Callable[[float, Answers], dict[str, Any]],
    *,
    slo: Slo,
    percentile: str,
    start: float,
    tolerance: float,
    longer: Callable[[float], Answers] | None = None,
    is_integer: bool = False,
) -> tuple[float, tuple[RatePoint, ...]]:
    """Return the highest load that meets the limits, and a point for each load tried; `point` gives the rate of a load.

    What is found must hold in a `longer` run too, or the load is lowered until it does, by the tolerance or to the next lower
    that was tried: what only a short run bore out is not left above the answer.
    """
    points: dict[float, RatePoint] = {}

    def good(load: float, run: Callable[[float], Answers] = run) -> bool:
        answers = run(load)
        judged = judge(answers, slo, percentile)
        well = meets(answers, slo, percentile)
        why = "" if well else _why_not(answers, judged)
        figures: dict[str, Any] = {"ttft": judged.ttft, "tpot": judged.tpot, "verdict": answers.verdict}
        points[load] = RatePoint(**point(load, answers), **figures, good=well, why=why)
        return well

    low = highest_load(good, start=start, tolerance=tolerance, is_integer=is_integer)
    for _ in range(MAX_REDUCTIONS if low > 0 and longer is not None else 0):
        if good(low, longer or run):
            break
        low = max(low / (1 + tolerance), *(load for load in points if load < low), 0.0)
    return low, tuple(points[load] for load in sorted(points))


def highest_rate(
    run: Callable[[float], Answers],
    *,
    slo: Slo,
    percentile: str = "p99",
    start: float = 1.0,
    tolerance: float = 0.02,
    longer: Callable[[float], Answers] | None = None,
) -> HighestRate:
    """Return the highest rate [requests/s] at which `run(rate)` meets the limits, and every rate tried, by rate.

    Doubling finds a rate that fails, bisection closes in to `tolerance`; 0 where even `start` / 1024 fails. What is found must
    hold in a `longer` run too, or the rate is lowered by the tolerance until it does.
    """
    settings: dict[str, Any] = {"slo": slo, "percentile": percentile, "start": start, "tolerance": tolerance, "longer": longer}
    rate, points = _search_load(run, lambda rate, _: {"rate": rate}, **settings)
    return HighestRate(rate=rate, percentile=percentile, points=points)


def rates(
    model: Model, system: System, traffic: Callable[[float, int], Traffic], *, requests: int = 4000, **settings: Any
) -> Callable[[float], Answers]:
    """Return a function from a rate [requests/s] to the answers of a run that is long enough.

    traffic: from a rate and a number of requests, at least `requests`; `settings` goes to `simulate`.
    """

    run = partial(simulate, model, system, **settings)
    return lambda rate: run_until_settled(run, traffic, rate, requests, SETTLED_LIFETIMES).answers


def find_rate(
    model: Model,
    system: System,
    traffic: Callable[[float, int], Traffic],
    *,
    slo: Slo,
    percentile: str = "p99",
    requests: int | None = None,
    **settings: Any,
) -> HighestRate:
    """Return the highest rate [requests/s] within `slo` at a percentile, and every rate tried: see `highest_rate`.

    requests: the least of a run, LEAST for each replica unless given; the rate must hold for LONGER times as many.
    """
    replicas = int(settings["layout"].replicas) + int(settings.get("fast_replicas", 0))
    least = MIN_REQUESTS * replicas if requests is None else requests
    run, longer = (rates(model, system, traffic, requests=n * least, slo=slo, **settings) for n in (1, CONFIRM_FACTOR))
    return highest_rate(run, slo=slo, percentile=percentile, longer=longer)


def find_scale(
    model: Model, system: System, trace: Traffic, *, slo: Slo, percentile: str = "p99", tolerance: float = 0.02, **settings: Any
) -> HighestRate:
    """Return how many times as fast a trace may be played within `slo`, and the rate [requests/s] that this is.

    Times of arrival are divided by one number, so that lengths, their order and bursts stay. The trace is not repeated: where
    it would last less than SETTLED_LIFETIMES of a request, `cut_short` is true. `settings` go to `simulate`.
    """
    trace = checked(trace)
    if trace.clients or not math.isfinite(trace.rate):
        raise RangeError("a trace needs requests at two times at least to be played faster or slower")

    def run(scale: float) -> Answers:
        return simulate(model, system, scaled(trace, scale), slo=slo, **settings).answers

    def point(scale: float, _: Answers) -> dict[str, Any]:
        return {"rate": scale * trace.rate, "scale": scale}

    scale, points = _search_load(run, point, slo=slo, percentile=percentile, start=1.0, tolerance=tolerance)
    return HighestRate(rate=scale * trace.rate, scale=scale, percentile=percentile, points=points)


def find_clients(
    model: Model,
    system: System,
    traffic: Callable[[int, int], Traffic],
    *,
    slo: Slo,
    percentile: str = "p99",
    start: int = 16,
    requests: int = 0,
    tolerance: float = 0.02,
    **settings: Any,
) -> HighestRate:
    """Return the most clients of a closed loop within `slo`, each with one request in flight, and the rate that they bring.

    traffic: from clients and a number of requests, at least `requests`; start: clients that are tried first. `settings` goes to
    `simulate`. Raises RangeError without a limit on the first token: clients may wait for a seat without end.
    """
    if math.isinf(slo.ttft):
        raise RangeError("the most clients need a limit on the first token: without one any number may wait for a seat")
    requests_per_client = REQUESTS_PER_CLIENT if settings.get("prefill") is None else REQUESTS_PER_CLIENT_DISAGGREGATED
    start = whole_number("clients", start)

    def run(clients: float) -> Answers:
        arrivals = traffic(int(clients), max(requests, requests_per_client * int(clients)))
        return simulate(model, system, arrivals, slo=slo, **settings).answers

    def point(clients: float, answers: Answers) -> dict[str, Any]:
        return {"rate": answers.requests_per_second, "clients": int(clients)}

    max_clients, points = _search_load(
        run, point, slo=slo, percentile=percentile, start=start, tolerance=tolerance, is_integer=True
    )
    rate = next((p.rate for p in points if p.clients == max_clients), 0.0)
    return HighestRate(rate=rate, clients=int(max_clients), percentile=percentile, points=points)
