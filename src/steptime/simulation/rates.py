"""Simulation inside a search: the highest rate that meets the limits, and a plan replayed with its percentiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Protocol

from steptime.errors import RangeError
from steptime.machines.system import System
from steptime.models.model import Model
from steptime.physics.engine import Engine
from steptime.physics.layout import Layout
from steptime.planning.workload import Slo, Workload
from steptime.results import Result, Tabular, table_of, unit
from steptime.simulation.metrics import OVERLOADED, Answers
from steptime.simulation.outcome import Simulation
from steptime.simulation.policy import Policy
from steptime.simulation.run import simulate
from steptime.simulation.traffic import Lengths, Traffic, open_loop, scaled
from steptime.units import show

QUANTILES = {"mean": 1.0, "p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}  # share of requests that must be served
LOWER = 0.9  # of the batch, where percentiles do not hold
SETTLED, STEADY = 4.0, 20.0  # lifetimes of a request over which others come: that a rate is judged by, that a cost is
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


class PoolLike(Protocol):
    """What a replay needs of a plan's pool."""

    @property
    def role(self) -> str: ...  # noqa: D102
    @property
    def layout(self) -> Layout: ...  # noqa: D102
    @property
    def batch(self) -> int: ...  # noqa: D102
    @property
    def chunk(self) -> int: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Replay(Result):
    """A plan under random arrivals: the run that meets the limits at `quantile`, its batch and rate, and how many tries."""

    SCHEMA: ClassVar[str] = "steptime.replay/1"
    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {"answers": unit("", "the figures of the last run")}

    simulation: Simulation = field(metadata=unit("", "the last run", left_out=True))
    batch: int = field(metadata=unit("sequences", "at which the limits hold"))
    planned_batch: int = field(metadata=unit("sequences", "of the plan"))
    rate: float = field(metadata=unit("requests/s", "at which the limits hold", key="requests_per_s"))
    planned_rate: float = field(metadata=unit("requests/s", "of the plan", key="planned_requests_per_s"))
    quantile: str = field(metadata=unit("", "at which they hold: mean, p50, p90, p95 or p99"))
    good: bool = field(metadata=unit("", "whether they hold at last"))
    tried: int = field(metadata=unit("", "batches that were tried"))

    @property
    def answers(self) -> Answers:
        """The figures of the last run."""
        return self.simulation.answers

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return batch and rate against the planned ones, and the figures of the run."""
        _, figures = self.answers.headline()
        holds = "limits hold" if self.good else "limits do not hold"
        title = f"Replay: {holds} at {self.quantile} with batch {self.batch:,} of {self.planned_batch:,}"
        return title, {"rate": f"{self.rate:,.3g} of {self.planned_rate:,.3g} requests/s", **figures}


def replay(
    model: Model,
    system: System,
    workload: Workload,
    slo: Slo,
    pools: Sequence[PoolLike],
    rate: float,
    *,
    engine: Engine,
    quantile: str = "p90",
    requests: int = 4000,
    seed: int = 0,
    tries: int = 24,
) -> Replay:
    """Replay a plan's `pools` with Poisson arrivals at `rate` [requests/s], and lower batch and rate until the limits hold.

    A plan's rate fills its batch to the last seat, so that random arrivals queue without end; the rate is lowered together
    with the batch, to LOWER of the one before, until TTFT and TPOT are within the limits at `quantile`. A decode pool of its
    own keeps its batch: with fewer seats caches would wait for one, between the first token and the second.
    requests: the least.
    """
    server = pools[-1]
    prefill = pools[0].layout if len(pools) > 1 else None
    fresh = max(1, round(workload.input_tokens * (1 - workload.cached_share)))
    skipped = round(workload.input_tokens) - fresh
    traffic = partial(open_loop, inputs=Lengths(mean=fresh + skipped), outputs=Lengths(mean=workload.output_tokens), seed=seed)
    share, tried, batch, now = 1.0, 0, server.batch, rate
    while True:
        tried += 1
        batch, now = server.batch if prefill is not None else max(1, math.floor(server.batch * share)), rate * share
        groups = int(server.layout.dp)
        policy = Policy(
            max_sequences=batch if prefill is not None else batch + groups * max(1, server.chunk // fresh),
            token_budget=math.ceil(batch / groups) + (max(server.chunk, 1) if prefill is None else 2048),
        )
        run = partial(
            simulate,
            model,
            system,
            layout=server.layout,
            engine=engine,
            policy=policy,
            slo=slo,
            prefill=prefill,
            prefill_policy=None if prefill is None else _prefill_policy(pools[0], fresh),
            cached=skipped,
        )
        last = long_enough(run, traffic, now, requests, STEADY)
        good = meets(last.answers, slo, quantile)
        if good or batch == 1 or tried == tries:
            break
        share *= LOWER
    return Replay(
        simulation=last,
        batch=batch,
        planned_batch=server.batch,
        rate=now,
        planned_rate=rate,
        quantile=quantile,
        good=good,
        tried=tried,
    )


def _prefill_policy(pool: PoolLike, fresh: int) -> Policy:
    each = max(1, int(pool.batch) // int(pool.layout.dp))
    return Policy(max_sequences=max(1, int(pool.batch)), token_budget=each * fresh)


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
