"""Maximum rate and fewest replicas within the limits, by runs that are long enough to be steady.

The load is drawn requests, a trace played faster or slower, or the clients of a closed loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

from steptime.errors import Impossible, RangeError
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import whole_number
from steptime.result_base import Tabular, unit
from steptime.simulation.run_metrics import (
    MOST_GROWTH,
    OVERLOADED,
    PERCENTILES,
    SATURATED,
    Answers,
    Judged,
    in_flight_growth,
    judge,
    latencies,
    quantiles,
    served,
)
from steptime.simulation.simulation_result import Simulation
from steptime.simulation.simulator import simulate
from steptime.units import counted, in_digits, percent, request_rate, show
from steptime.workload.traffic import Traffic, checked, scaled
from steptime.workload.workload import Slo

# Minimum duration of the arrivals of a run, in median lifetimes of a request.
SETTLED_LIFETIMES = 4.0
# Most times that a rate is reduced because a longer run does not confirm it.
MAX_REDUCTIONS = 20
# Requests per replica to find a rate, and the factor on them to confirm it.
MIN_REQUESTS, CONFIRM_FACTOR = 4000, 4
# Factor on the requests of a run that is too short, and the maximum.
REQUESTS_FACTOR, MAX_REQUESTS = 4, 1_000_000
# Least time of the arrivals of a run that shows whether replicas are enough, in times until it is steady.
LEAST_FILLS = 5.0
# Most replicas that are tried.
MOST_REPLICAS = 1024
# Requests per client; their common start is then less than the 1 % that p99 leaves out.
REQUESTS_PER_CLIENT = 200
# The same with separate pools, where the time of a run grows with the square of the requests.
REQUESTS_PER_CLIENT_DISAGGREGATED = 20
UNSETTLED = "not settled"
# Reasons for which a longer run may show more.
TOO_SHORT, GROWS = "the run is too short for a steady state", "the requests in flight grow"


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePoint:
    """Latency and verdict at one rate; TTFT and TPOT [s] at the limits' percentile."""

    rate: float = field(
        metadata=unit("requests/s", "request rate; in a closed loop the rate of the clients", key="requests_per_s")
    )
    scale: float | None = field(default=None, metadata=unit("", "factor on the rate of the trace; null without a trace"))
    clients: int | None = field(default=None, metadata=unit("", "clients of a closed loop; null otherwise"))
    requests: int = field(metadata=unit("", "requests of the run; the highest rate is confirmed with more"))
    ttft: float = field(metadata=unit("s", "time to first token at the percentile of the limits"))
    tpot: float = field(metadata=unit("s", "time per output token at the percentile of the limits"))
    verdict: str = field(metadata=unit("", "STABLE, SATURATED or OVERLOADED"))
    good: bool = field(metadata=unit("", "whether the limits are met and the queue does not grow"))
    why: str = field(default="", metadata=unit("", "other reason why the rate is not good"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HighestRate(Tabular):
    """The highest rate at which a deployment meets its limits; as a table, every rate.

    The rate is 0 where no rate meets them. With a trace, `scale` is the factor on its rate. In a closed loop,
    `clients` is the largest number of clients within the limits, and the rate is the one that they produce.
    """

    SCHEMA: ClassVar[str] = "steptime.highest-rate/2"
    ROWS: ClassVar[tuple[str, type]] = ("points", RatePoint)

    rate: float = field(
        metadata=unit("requests/s", "highest rate within the limits; 0 where no rate meets them", key="requests_per_s")
    )
    scale: float | None = field(default=None, metadata=unit("", "factor on the rate of the trace; null without a trace"))
    clients: int | None = field(default=None, metadata=unit("", "most clients of a closed loop; null otherwise"))
    percentile: str = field(metadata=unit("", "percentile of the limits: mean, p50, p90, p95 or p99"))
    points: tuple[RatePoint, ...] = field(metadata=unit("", "every rate tried, lowest first"))

    @property
    def best(self) -> RatePoint | None:
        """The point of the answer; None where no rate is within the limits."""
        return next((p for p in self.points if p.rate == self.rate and p.clients == self.clients and p.rate > 0), None)

    @property
    def cut_short(self) -> bool:
        """Whether the true rate may be higher, because a run is too short.

        The next higher rate then misses no limit, but its run has not settled.
        """
        above = [p for p in self.points if p.rate > self.rate and not p.good] if self.clients is None else []
        return bool(above) and above[0].why == UNSETTLED

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return a title and the latencies at the highest rate.

        Returns:
            Title with the rate; latencies by label.
        """
        point = self.best
        latencies = (
            {}
            if point is None
            else {f"TTFT, {self.percentile}": show(point.ttft, "s"), f"TPOT, {self.percentile}": show(point.tpot, "s")}
        )
        if self.clients is not None:
            return (
                f"Most clients: {self.clients:,}, with {request_rate(self.rate)}; {len(self.points)} loads tried",
                latencies,
            )
        times = "" if self.scale is None else f" ({in_digits(self.scale)} times the rate of the trace)"
        return f"Highest rate: {request_rate(self.rate)}{times}; {len(self.points)} rates tried", latencies


def fewest_replicas(is_met: Callable[[int], bool], largest: int) -> int | None:
    """Return the fewest replicas that meet the limits: twice as many until they do, then between the last two.

    Args:
        is_met: Whether a number of replicas meets them.
        largest: Most replicas to try.

    Returns:
        The number; None where even the most do not.

    >>> fewest_replicas(lambda count: count >= 5, 64), fewest_replicas(lambda count: False, 64)
    (5, None)
    """
    too_few, count = 0, 1
    while not is_met(count):
        if count == largest:
            return None
        too_few, count = count, min(2 * count, largest)
    while count - too_few > 1:
        middle = (too_few + count) // 2
        if is_met(middle):
            count = middle
        else:
            too_few = middle
    return count


class FewestReplicas(NamedTuple):
    """The fewest replicas within the limits, the requests that they served, and the limits that one replica less would miss."""

    replicas: int
    traffic: Traffic
    fewer: str


def find_replicas(
    model: Model,
    system: System,
    traffic: Callable[[int], Traffic],
    *,
    requests: int,
    slo: Slo,
    percentile: str,
    **settings: Any,
) -> FewestReplicas:
    """Return the fewest replicas of a deployment within the limits, in a steady state.

    Runs have more and more requests until the arrivals last several times as long as the replicas need to fill. A number of
    replicas is enough if its requests meet the limits, with and without the start and the end of the run. Neither its queue
    nor its requests in flight may grow.

    Args:
        model: Model.
        system: System.
        traffic: Function from a number of requests to a traffic; a trace may have fewer.
        requests: Requests of the first run.
        slo: Limits.
        percentile: "mean", "p50", "p90", "p95" or "p99".
        settings: Arguments of `simulate`, with `layout`.

    Returns:
        The replicas.

    Raises:
        Impossible: No number of replicas is enough, or the runs are too short to show it.
    """
    layout, requests_per_run = settings.pop("layout"), requests
    runs: dict[int, tuple[Traffic, str]] = {}

    def is_enough(count: int) -> bool:
        nonlocal requests_per_run
        while True:
            sample = traffic(requests_per_run)
            pool = replace(layout, replicas=count)
            run = simulate(model, system, sample, layout=pool, slo=slo, percentile=percentile, **settings)
            why = _why_not_enough(run, slo, percentile)
            is_last = len(sample) < requests_per_run or requests_per_run >= MAX_REQUESTS
            if why == TOO_SHORT and is_last:
                raise Impossible(
                    f"the fewest replicas are not known: the arrivals of {counted(len(sample), 'request')} last "
                    f"{show(run.answers.arriving, 's')}, too short for a steady state; use a lower rate or a longer trace"
                )
            if why not in (TOO_SHORT, GROWS) or is_last:
                break
            requests_per_run = min(REQUESTS_FACTOR * requests_per_run, MAX_REQUESTS)
        runs[count] = sample, why
        return not why

    largest = max(1, int(min(MOST_REPLICAS, system.scale_out.size / layout.chips)))
    count = fewest_replicas(is_enough, largest)
    if count is None:
        raise Impossible(f"no number of replicas up to {largest:,} is enough; with {largest:,}: {runs[largest][1]}")
    return FewestReplicas(count, runs[count][0], runs.get(count - 1, (None, ""))[1])


def _why_not_enough(run: Simulation, slo: Slo, percentile: str) -> str:
    """Return why the replicas of a run are not shown to be enough; empty if they are."""
    a, arrival = run.answers, run.requests["arrival"]
    # While replicas fill, latencies are lower than in the steady state: what misses the limits misses them in longer runs too.
    judged = judge(a, slo, percentile)
    if not judged.is_met:
        return judged.why
    first, last = float(arrival.min()), float(arrival.max())
    fill = a.steady_from - first
    if not last - first >= LEAST_FILLS * fill:
        return TOO_SHORT
    # Requests at the start and at the end meet fewer others.
    times = latencies(run.requests[(arrival >= a.steady_from) & (arrival < last - fill)])
    steady = judge(replace(a, ttft=quantiles(times["TTFT"]), tpot=quantiles(times["TPOT"])), slo, percentile)
    if not steady.is_met:
        return steady.why
    done = served(run.requests)
    if in_flight_growth(done["arrival"], done["finish"], a.steady_from) > MOST_GROWTH:
        return GROWS
    # Requests always wait for a static batch.
    return a.why if a.verdict == SATURATED and run.policy.kind != "static" else ""


def meets(answers: Answers, slo: Slo, percentile: str, lifetimes: float = SETTLED_LIFETIMES) -> bool:
    """Whether a run meets the limits at a percentile and is long enough.

    Args:
        answers: Figures of the run.
        slo: Limits.
        percentile: "mean", "p50", "p90", "p95" or "p99"; see `judge`.
        lifetimes: Minimum duration of the arrivals, in median request lifetimes.

    Returns:
        True if both hold.
    """
    return judge(answers, slo, percentile).is_met and settled(answers, lifetimes)


def _why_not(answers: Answers, judged: Judged) -> str:
    """Return why a rate fails, apart from limits and a growing queue."""
    if answers.served < PERCENTILES[judged.percentile] * answers.sent:
        return f"{percent(answers.rejected / answers.sent, 1)} rejected: {answers.rejected_why}"
    return UNSETTLED if judged.is_met else ""


def settled(answers: Answers, lifetimes: float) -> bool:
    """Whether the arrivals lasted long enough for the servers to fill up.

    Args:
        answers: Figures of the run.
        lifetimes: Minimum duration, in median request lifetimes.

    Returns:
        True if they did, or if no request was served.
    """
    return answers.served == 0 or answers.arriving >= lifetimes * answers.end_to_end.p50


def run_until_settled(
    run: Callable[[Traffic], Simulation], traffic: Callable[[float, int], Traffic], rate: float, requests: int, lifetimes: float
) -> Simulation:
    """Run with more and more requests until the run settles or is overloaded.

    Args:
        run: Function that runs a traffic.
        traffic: Function from a rate [requests/s] and a number of requests to a traffic; its sample is scaled
            to `rate`.
        rate: Request rate [requests/s].
        requests: Requests of the first run; at most MAX_REQUESTS in the last.
        lifetimes: Minimum duration of the arrivals, in median request lifetimes.

    Returns:
        The last run.
    """
    while True:
        requests_at_rate = traffic(rate, requests)
        simulation = run(
            scaled(requests_at_rate, rate / requests_at_rate.rate) if math.isfinite(requests_at_rate.rate) else requests_at_rate
        )
        answers = simulation.answers
        if settled(answers, lifetimes) or requests >= MAX_REQUESTS:
            return simulation
        # While replicas fill, waits grow in any run. A growing queue is certain after twice as many lifetimes, without waits.
        if answers.verdict == OVERLOADED and answers.arriving >= 2 * lifetimes * (answers.end_to_end.p50 - answers.wait.p50):
            return simulation
        requests = min(REQUESTS_FACTOR * requests, MAX_REQUESTS)


def highest_load(good: Callable[[float], bool], *, start: float, tolerance: float, is_integer: bool = False) -> float:
    """Return the highest load for which a condition is true.

    Doubling finds a load that fails, and bisection reduces the interval to `tolerance`.

    Args:
        good: Condition on a load; it must be false above some load.
        start: First load.
        tolerance: Relative accuracy.
        is_integer: True if loads are whole numbers.

    Returns:
        The load; 0 where even `start` / 1024, or a whole load of 1, fails.

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
    """Return the highest load within the limits, and a point for each load tried.

    `point` gives the rate of a load. The result must also be within the limits in a `longer` run. Otherwise
    the load is reduced, by the tolerance or to the next lower load tried, until it is.
    """
    points: dict[float, RatePoint] = {}

    def good(load: float, run: Callable[[float], Answers] = run) -> bool:
        answers = run(load)
        judged = judge(answers, slo, percentile)
        well = meets(answers, slo, percentile)
        why = "" if well else _why_not(answers, judged)
        figures: dict[str, Any] = {"ttft": judged.ttft, "tpot": judged.tpot, "verdict": answers.verdict}
        points[load] = RatePoint(**point(load, answers), requests=answers.sent, **figures, good=well, why=why)
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
    """Return the highest rate at which a run meets the limits.

    Doubling finds a rate that fails, and bisection reduces the interval to `tolerance`. The result must also
    be within the limits in a `longer` run. Otherwise the rate is reduced by the tolerance until it is.

    Args:
        run: Function from a rate [requests/s] to the figures of a run.
        slo: Limits.
        percentile: "mean", "p50", "p90", "p95" or "p99".
        start: First rate [requests/s].
        tolerance: Relative accuracy.
        longer: The same function with more requests, or None.

    Returns:
        The rate and every rate tried; 0 where even `start` / 1024 fails.
    """
    settings: dict[str, Any] = {"slo": slo, "percentile": percentile, "start": start, "tolerance": tolerance, "longer": longer}
    rate, points = _search_load(run, lambda rate, _: {"rate": rate}, **settings)
    return HighestRate(rate=rate, percentile=percentile, points=points)


def rates(
    model: Model, system: System, traffic: Callable[[float, int], Traffic], *, requests: int = 4000, **settings: Any
) -> Callable[[float], Answers]:
    """Return a function from a rate to the figures of a run that is long enough.

    Args:
        model: Model.
        system: System.
        traffic: Function from a rate [requests/s] and a number of requests to a traffic.
        requests: Minimum number of requests.
        settings: Arguments of `simulate`.

    Returns:
        The function.
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
    """Return the highest rate of a deployment within the limits; see `highest_rate`.

    Args:
        model: Model.
        system: System.
        traffic: Function from a rate [requests/s] and a number of requests to a traffic.
        slo: Limits.
        percentile: "mean", "p50", "p90", "p95" or "p99".
        requests: Minimum of a run; by default MIN_REQUESTS per replica. The result is confirmed with
            CONFIRM_FACTOR times as many.
        settings: Arguments of `simulate`, with `layout`.

    Returns:
        The rate and every rate tried.
    """
    replicas = int(settings["layout"].replicas) + int(settings.get("fast_replicas", 0))
    least = MIN_REQUESTS * replicas if requests is None else requests
    run, longer = (rates(model, system, traffic, requests=n * least, slo=slo, **settings) for n in (1, CONFIRM_FACTOR))
    return highest_rate(run, slo=slo, percentile=percentile, longer=longer)


def find_scale(
    model: Model, system: System, trace: Traffic, *, slo: Slo, percentile: str = "p99", tolerance: float = 0.02, **settings: Any
) -> HighestRate:
    """Return the highest factor on the rate of a trace within the limits.

    Times of arrival are divided by the factor, so that lengths, their order and bursts stay. The trace is not
    repeated. Where it would last less than SETTLED_LIFETIMES of a request, `cut_short` is true.

    Args:
        model: Model.
        system: System.
        trace: Open-loop traffic with at least two times of arrival.
        slo: Limits.
        percentile: "mean", "p50", "p90", "p95" or "p99".
        tolerance: Relative accuracy.
        settings: Arguments of `simulate`.

    Returns:
        The factor, its rate, and every rate tried.

    Raises:
        RangeError: The traffic is a closed loop, or all requests arrive at one time.
    """
    trace = checked(trace)
    if trace.clients or not math.isfinite(trace.rate):
        raise RangeError(
            "trace: must have requests at two or more times, got one time or a closed loop; use an open-loop trace"
        )

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
    """Return the largest number of closed-loop clients within the limits.

    Each client has one request in flight.

    Args:
        model: Model.
        system: System.
        traffic: Function from a number of clients and of requests to a traffic.
        slo: Limits; a limit on TTFT is required.
        percentile: "mean", "p50", "p90", "p95" or "p99".
        start: First number of clients.
        requests: Minimum number of requests.
        tolerance: Relative accuracy.
        settings: Arguments of `simulate`.

    Returns:
        The number, its rate, and every number tried.

    Raises:
        RangeError: There is no limit on TTFT, so that clients could wait for a slot without end.
    """
    if math.isinf(slo.ttft):
        raise RangeError("slo: the number of clients needs a limit on TTFT, got none; give Slo(ttft=...)")
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
