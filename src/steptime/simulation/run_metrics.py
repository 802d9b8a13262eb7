"""Run metrics: latency percentiles, throughput, utilization, overload, and limits at a percentile."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steptime.errors import UnknownName
from steptime.hardware.rental_prices import usd_per_million
from steptime.result_base import Result, unit
from steptime.simulation.loop_state import (
    BLOCK_SECONDS,
    BUSY,
    CLOCK,
    DECODE_SECONDS,
    DONE,
    GAPS,
    RECORDED,
    REJECTED,
    SHORTEST,
    WIDTH,
    Replicas,
    Rules,
)
from steptime.units import percent, show
from steptime.workload.traffic import Traffic
from steptime.workload.workload import Slo

STABLE, SATURATED, OVERLOADED = "STABLE", "SATURATED", "OVERLOADED"
# Instants in each third of a run at which the queue is evaluated.
INSTANTS = 64
# A queue grows if it is larger by this factor, and has at least this number of requests.
GROWTH, MIN_QUEUE = 1.5, 8
# It also grows if requests need this share of the time of arrivals to get a slot after the last arrival.
DRAIN = 0.1
# Share of the requests that arrive by which those in flight may rise: a deployment that is a little too small fills slowly.
MOST_GROWTH = 0.02
# Parts of a run whose means give the standard error of its mean.
PARTS = 20
# A run that starts empty is full after this percentile of the times in a slot. Arrivals of a steady run last this many times as
# long.
FILL_PERCENTILE, LEAST_FILLS = 95, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Mean, median and high percentiles of a quantity over requests."""

    mean: float = field(metadata=unit("", "mean"))
    p50: float = field(metadata=unit("", "median"))
    p90: float = field(metadata=unit("", "90th percentile"))
    p95: float = field(metadata=unit("", "95th percentile"))
    p99: float = field(metadata=unit("", "99th percentile"))


def quantiles(values: Any) -> Percentiles:
    """Return the mean and the percentiles of values.

    Args:
        values: Array of values.

    Returns:
        Percentiles; NaN without values.

    >>> quantiles(np.arange(101.0)).p90
    90.0
    """
    if not len(values):
        return Percentiles(mean=math.nan, p50=math.nan, p90=math.nan, p95=math.nan, p99=math.nan)
    percentiles = np.percentile(values, (50, 90, 95, 99))
    return Percentiles(
        mean=float(np.mean(values)),
        p50=percentiles[0].item(),
        p90=percentiles[1].item(),
        p95=percentiles[2].item(),
        p99=percentiles[3].item(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassAnswers:
    """Latencies [s] of one class of requests, and the share within its limits."""

    rank: int = field(metadata=unit("", "class of priority; 0 is served first"))
    served: int = field(metadata=unit("requests", "requests that were served"))
    ttft: Percentiles = field(metadata=unit("s", "time to first token"))
    tpot: Percentiles = field(metadata=unit("s", "time per output token after the first"))
    within_limits: float = field(metadata=unit("", "share of the class's requests that are within its limits"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Answers(Result):
    """The figures of one run.

    Times are in seconds. Latencies are those of all requests. Rates, cost and means over time are those of the steady state,
    from `steady_from` to the last arrival; without a steady state, those from the first arrival to the last token.
    """

    sent: int = field(metadata=unit("requests", "requests that arrived"))
    served: int = field(metadata=unit("requests", "requests that were served"))
    rejected: int = field(metadata=unit("requests", "requests that cannot be served"))
    rejected_why: str = field(metadata=unit("", "why requests were rejected"))
    preemptions: int = field(metadata=unit("", "number of preemptions"))
    seconds: float = field(metadata=unit("s", "time from the first arrival to the last token", key="duration_s"))
    arriving: float = field(metadata=unit("s", "time from the first to the last arrival"))
    steady_from: float = field(
        metadata=unit(
            "s", "time of the run from which it is steady; null: the run is too short, or all requests arrive at once"
        )
    )
    wait: Percentiles = field(
        metadata=unit("s", "wait from arrival to the first slot, plus the wait in a separate decode pool")
    )
    ttft: Percentiles = field(metadata=unit("s", "time from arrival to the first token"))
    tpot: Percentiles = field(metadata=unit("s", "time per output token after the first"))
    inter_token: Percentiles = field(metadata=unit("s", "time between two tokens of a request, including stalls"))
    end_to_end: Percentiles = field(metadata=unit("s", "time from arrival to the last token"))
    requests_per_second: float = field(metadata=unit("requests/s", "requests served per second"))
    input_tokens_per_second: float = field(metadata=unit("tok/s", "prompt tokens of served requests per second"))
    output_tokens_per_second: float = field(metadata=unit("tok/s", "output tokens per second"))
    goodput: float = field(metadata=unit("requests/s", "requests within the limits per second"))
    within_limits: float = field(metadata=unit("", "share of the requests sent that are within the limits"))
    utilisation: float = field(metadata=unit("", "share of time in which a replica is busy"))
    pool_utilisation: tuple[float, ...] = field(metadata=unit("", "utilization by pool; the prefill pool is the first"))
    batch: float = field(
        metadata=unit("sequences", "mean number of decoding sequences while a replica is busy", key="mean_batch")
    )
    kv: float = field(metadata=unit("", "mean share of the KV cache in use", key="kv_share"))
    queue: float = field(metadata=unit("requests", "mean number of waiting requests", key="mean_waiting"))
    usd_per_million_output_tokens: float = field(
        metadata=unit("USD", "rent per million output tokens", key="usd_per_million_output_tokens")
    )
    usd_per_million_total_tokens: float = field(
        metadata=unit("USD", "rent per million input and output tokens", key="usd_per_million_total_tokens")
    )
    verdict: str = field(metadata=unit("", "STABLE, SATURATED or OVERLOADED"))
    why: str = field(metadata=unit("", "reason for the verdict"))
    classes: tuple[ClassAnswers, ...] = field(default=(), metadata=unit("", "figures by class, where there are several"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return a title and the main figures of the run.

        Returns:
            Title with the verdict and the requests; latencies, throughput and cost by label.
        """
        cost = self.usd_per_million_output_tokens
        return f"Answers: {self.verdict}, {self.served:,} of {self.sent:,} requests served", {
            "TTFT": show_percentiles(self.ttft),
            "TPOT": show_percentiles(self.tpot),
            "output": f"{show(self.output_tokens_per_second, 'tok/s')}, {show(self.requests_per_second)} requests/s",
            "cost": f"{show(cost, 'USD')} per million output tokens" if math.isfinite(cost) else "no rent known",
        }


def show_percentiles(times: Percentiles) -> str:
    """Show the mean and the 90th and 99th percentile of times.

    Args:
        times: Percentiles of times [s].

    Returns:
        Text.
    """
    return f"mean {show(times.mean, 's')}, p90 {show(times.p90, 's')}, p99 {show(times.p99, 's')}"


def served(requests: Any) -> Any:
    """Return the requests that were served, without a copy if all were.

    Args:
        requests: Finished requests, rows of `REQUEST`.

    Returns:
        Rows of `REQUEST`.
    """
    done = requests["status"] == DONE
    return requests if done.all() else requests[done]


def answers(
    traffic: Traffic,
    requests: Any,
    pools: list[tuple[Rules, Replicas]],
    *,
    slo: Slo | tuple[Slo, ...],
    usd_per_second: float = math.nan,
) -> Answers:
    """Return the figures of finished requests.

    Args:
        traffic: Traffic.
        requests: Finished requests, rows of `REQUEST`.
        pools: Rules and replicas of each pool.
        slo: Limits, or limits by class; the last one applies to all further classes.
        usd_per_second: Rent of all chips [USD/s].

    Returns:
        The figures.
    """
    done = served(requests)
    rejected = requests[requests["status"] == REJECTED]
    ttft, total = done["first"] - done["arrival"], done["finish"] - done["arrival"]
    tpot = (done["finish"] - done["first"]) / np.maximum(done["outputs"] - 1, 1)
    several = done["outputs"] > 1

    # Disaggregated requests wait twice: for prefill and for decode.
    wait = done["scheduled"] - done["arrival"] + np.nan_to_num(done["resumed"] - done["moved"])
    began, last = (float(time(requests["arrival"])) if len(requests) else 0.0 for time in (np.min, np.max))
    ended = float(np.max(done["finish"])) if len(done) else math.nan
    good = _meets_limits(done, ttft, tpot, slo)

    # Rates count in the steady state: the start, while the replicas fill, and the end, while they empty, would lower them.
    steady_from = _steady_from(done, began, last)
    window = (began, ended) if math.isnan(steady_from) else (steady_from, last)
    span = window[1] - window[0]
    ends = _inside(done["finish"], done["finish"], window) > 0
    # The first token comes at once, the others one after the other.
    outputs = float(_inside(done["first"], done["first"], window).sum())
    outputs += float(((done["outputs"] - 1) * _inside(done["first"], done["finish"], window)).sum())
    inputs = float((done["inputs"] * _inside(done["scheduled"], done["first"], window)).sum())
    waiting_seconds = (wait * _inside(done["arrival"], done["arrival"] + wait, window)).sum()
    replicas = [p for _, p in pools]
    # Rounding must not make a busy replica busier than always.
    busy_seconds = [float(np.minimum(_totals(p, window)[0], span * len(p.count))) for p in replicas]
    decoders = [(rules, _totals(p, window)) for rules, p in _decoders(pools)]
    decoders_busy = max(sum(float(totals[0]) for _, totals in decoders), 1e-12)
    why_not = _why_rejected(rejected, pools)
    verdict, why = _verdict(traffic, done, pools) if len(done) else (OVERLOADED, f"no request can be served: {why_not}")
    rent = usd_per_second * span
    return Answers(
        sent=len(requests),
        served=len(done),
        rejected=len(rejected),
        rejected_why=why_not,
        preemptions=int(requests["preempted"].sum()),
        seconds=ended - began,
        arriving=last - began,
        steady_from=steady_from,
        wait=quantiles(wait),
        ttft=quantiles(ttft),
        tpot=quantiles(tpot[several]),
        inter_token=inter_token_percentiles(replicas),
        end_to_end=quantiles(total),
        requests_per_second=float(ends.sum()) / span,
        input_tokens_per_second=inputs / span,
        output_tokens_per_second=outputs / span,
        goodput=float((good & ends).sum()) / span,
        within_limits=float(good.sum()) / len(requests) if len(requests) else math.nan,
        utilisation=sum(busy_seconds) / (span * sum(len(p.count) for p in replicas)),
        pool_utilisation=tuple(busy / (span * len(p.count)) for busy, p in zip(busy_seconds, replicas, strict=True)),
        batch=sum(float(totals[1]) for _, totals in decoders) / decoders_busy,
        kv=sum(float(totals[0] - totals[2] / max(rules.blocks, 1)) for rules, totals in decoders) / decoders_busy,
        queue=float(waiting_seconds) / span,
        usd_per_million_output_tokens=float(usd_per_million(rent, outputs)) if outputs else math.nan,
        usd_per_million_total_tokens=float(usd_per_million(rent, outputs + inputs)) if outputs else math.nan,
        verdict=verdict,
        why=why,
        classes=_by_class(requests, done, good, ttft, tpot),
    )


def _by_class(requests: Any, done: Any, good: Any, ttft: Any, tpot: Any) -> tuple[ClassAnswers, ...]:
    """Return the figures of each class; empty with one class."""
    ranks, several = np.unique(requests["rank"]), done["outputs"] > 1
    classes = []
    for rank in ranks if len(ranks) > 1 else ():
        mine = done["rank"] == rank
        classes.append(
            ClassAnswers(
                rank=int(rank),
                served=int(mine.sum()),
                ttft=quantiles(ttft[mine]),
                tpot=quantiles(tpot[mine & several]),
                within_limits=float(good[mine].sum()) / int((requests["rank"] == rank).sum()),
            )
        )
    return tuple(classes)


def _meets_limits(done: Any, ttft: Any, tpot: Any, slo: Slo | tuple[Slo, ...]) -> Any:
    """Return which finished requests meet the limits of their class."""
    limits = slo if isinstance(slo, tuple) else (slo,)
    class_index = np.minimum(done["rank"], len(limits) - 1)
    ttft_limit, tpot_limit = np.array([s.ttft for s in limits])[class_index], np.array([s.tpot for s in limits])[class_index]
    return (ttft <= ttft_limit) & ((tpot <= tpot_limit) | (done["outputs"] <= 1))


def latencies(requests: Any) -> dict[str, Any]:
    """Return the TTFT and TPOT of each request that was served.

    Args:
        requests: Rows of `REQUEST`.

    Returns:
        "TTFT" [s] of all, and "TPOT" [s] of requests with more than one output token.
    """
    done = served(requests)
    tpot = (done["finish"] - done["first"]) / np.maximum(done["outputs"] - 1, 1)
    return {"TTFT": done["first"] - done["arrival"], "TPOT": tpot[done["outputs"] > 1]}


def _decoders(pools: list[tuple[Rules, Replicas]]) -> list[tuple[Rules, Replicas]]:
    """Return the pools that decode; the last pool if none does."""
    return [(rules, p) for rules, p in pools if p.seconds[:, DECODE_SECONDS].any()] or pools[-1:]


def _steady_from(done: Any, began: float, last: float) -> float:
    """Return the time from which a run is steady; NaN if its arrivals do not last long enough.

    Waits do not count, because they are as long as the run where a queue grows.
    """
    in_slot = done["finish"] - done["scheduled"] - np.nan_to_num(done["resumed"] - done["moved"])
    fill = float(np.percentile(in_slot, FILL_PERCENTILE)) if len(done) else math.inf
    return began + fill if last - began >= max(LEAST_FILLS * fill, 1e-12) else math.nan


def _inside(begin: Any, end: Any, window: tuple[float, float]) -> Any:
    """Return the share of each interval inside a window; of an interval without length, whether it is inside."""
    length = end - begin
    common = np.minimum(end, window[1]) - np.maximum(begin, window[0])
    return np.where(length > 0, np.maximum(common, 0) / np.where(length > 0, length, 1), common >= 0)


def _totals(p: Replicas, window: tuple[float, float]) -> Any:
    """Return the busy, decoding and block seconds of all replicas in a window."""
    totals = np.zeros(3)
    for r in range(len(p.count)):
        last = p.seconds[r, [CLOCK, BUSY, DECODE_SECONDS, BLOCK_SECONDS]]
        rows = p.records[r, : p.count[r, RECORDED]][:, [0, 3, 4, 5]]
        for time, sign in ((window[0], -1), (window[1], 1)):
            k = int(np.searchsorted(rows[:, 0], time))
            before, after = rows[k - 1] if k else np.zeros(4), rows[k] if k < len(rows) else last
            share = min(max(0.0, (time - before[0]) / max(after[0] - before[0], 1e-12)), 1.0)
            totals += sign * (before + share * (after - before))[1:]
    return totals


def in_flight_growth(arrival: Any, finish: Any, start: float) -> float:
    """Return by how much the requests in flight rise from a time to the last arrival, as a share of those that arrive.

    Args:
        arrival: Times of arrival [s].
        finish: Times of the last token [s], also of requests that are in flight at the start of the run.
        start: Time after the start of the run [s].

    Returns:
        Share.

    >>> in_flight_growth(np.array([0.0, 1.0, 2.0, 3.0, 4.0]), np.array([1.5, 2.5, 9.0, 9.0, 9.0]), 1.0)
    0.3333333333333333
    """
    arrived = np.count_nonzero(arrival > start)
    ended = np.count_nonzero((finish > start) & (finish <= arrival.max()))
    return float((arrived - ended) / arrived)


def _why_rejected(rejected: Any, pools: list[tuple[Rules, Replicas]]) -> str:
    """Return how many requests were rejected for each reason."""
    room = rejected["inputs"] + rejected["outputs"]
    longest = min(rules.longest for rules, _ in pools)
    tokens = min(rules.kv_tokens for rules, _ in pools)
    empty = (rejected["inputs"] < 1) | (rejected["outputs"] < 1)
    long = ~empty & (room > longest)
    reasons = (
        (empty, "without input or output tokens"),
        (long, f"longer than the context of {longest:,} tokens"),
        (~empty & ~long, f"larger than a replica's KV cache of {tokens:,} tokens"),
    )
    counts = [(int(which.sum()), reason) for which, reason in reasons if which.any()]
    return counts[0][1] if len(counts) == 1 else ", ".join(f"{n:,} {reason}" for n, reason in counts)


def inter_token_percentiles(replicas: list[Replicas]) -> Percentiles:
    """Return the percentiles of inter-token times, from a histogram 1 % wide.

    A run of equal steps counts with its mean.

    Args:
        replicas: Replicas of each pool.

    Returns:
        Percentiles [s].
    """
    counts = np.sum([p.gaps.sum(axis=0) for p in replicas], axis=0)
    total = counts.sum()
    if not total:
        return quantiles(())
    middles = SHORTEST * np.exp((np.arange(GAPS) + 0.5) * WIDTH)
    reached = np.cumsum(counts) / total
    percentiles = [float(middles[np.searchsorted(reached, share)]) for share in (0.5, 0.9, 0.95, 0.99)]
    return Percentiles(
        mean=float((counts * middles).sum() / total),
        p50=percentiles[0],
        p90=percentiles[1],
        p95=percentiles[2],
        p99=percentiles[3],
    )


def waiting(came: Any, seated: Any, times: Any) -> Any:
    """Return how many requests had arrived and had no slot, at some times.

    Args:
        came: Times of arrival [s].
        seated: Times of the first slot [s].
        times: Times [s].

    Returns:
        Number of requests at each time.

    >>> waiting(np.array([0.0, 1.0, 2.0]), np.array([0.0, 5.0, 6.0]), np.array([0.5, 2.5, 5.5])).tolist()
    [0, 2, 1]
    """
    return _waiting(np.sort(came), np.sort(seated), times)


def _waiting(came: Any, seated: Any, times: Any) -> Any:
    """Return the result of `waiting` for sorted times of arrival and of slots."""
    return np.searchsorted(came, times, side="right") - np.searchsorted(seated, times, side="right")


def standard_error_of_mean(values: Any) -> float:
    """Return the relative standard error of a mean of values that follow each other, from the means of equal parts.

    Args:
        values: Values in their order.

    Returns:
        Share of the mean; NaN for few values.

    >>> round(standard_error_of_mean(np.tile(np.repeat([1.0, 3.0], 100), 10)), 3), standard_error_of_mean(np.ones(39))
    (0.115, nan)
    """
    if len(values) < 2 * PARTS:
        return math.nan
    means = np.array([part.mean() for part in np.array_split(values, PARTS)])
    return float(means.std(ddof=1) / math.sqrt(PARTS) / means.mean())


def queue_growth(came: Any, seated: Any, seats: int) -> str:
    """Return a sentence if a queue grows, else an empty text.

    A queue grows if its minimum in the last third of the arrivals is well above that in the middle third. It
    also grows if the requests that wait at the end take a large part of the run to get a slot. A queue that
    bursts fill has a minimum near zero, and it empties soon.

    Args:
        came: Times of arrival [s].
        seated: Times of the first slot [s].
        seats: Slots of the pool.

    Returns:
        The sentence.
    """
    came, seated = np.sort(came), np.sort(seated)
    first, last = float(came[0]), float(came[-1])

    # The minimum of a third is robust: a burst that empties again does not count as growth.
    least = _waiting(came, seated, np.linspace(first, last, 3 * INSTANTS)).reshape(3, INSTANTS).min(axis=1)
    min_queue = max(MIN_QUEUE, 0.01 * len(came), 0.05 * seats)
    if least[2] > max(GROWTH * least[1], min_queue):
        grown = f"from at least {least[1]:,} " * bool(least[1]) + f"to at least {least[2]:,} requests"
        return f"the queue grows {grown} in the last third of the run"
    waiting_at_end, drain = int(_waiting(came, seated, last)), float(seated[-1]) - last
    if waiting_at_end > min_queue and drain > DRAIN * (last - first):
        return f"{waiting_at_end:,} requests wait at the last arrival, and the last of them waits {show(drain, 's')} longer"
    return ""


def _verdict(traffic: Traffic, done: Any, pools: list[tuple[Rules, Replicas]]) -> tuple[str, str]:
    """Return the verdict and its reason.

    OVERLOADED: a queue grows. SATURATED: the median request waits longer than its prefill takes.
    """
    moved = done[np.isfinite(done["resumed"])]
    queue = done["scheduled"] - done["ready"] + np.nan_to_num(done["resumed"] - done["moved"])
    prefill_seconds, waits = float(np.median(done["first"] - done["scheduled"])), float(np.median(queue))
    if not traffic.clients:
        seats = [rules.seats * len(p.count) for rules, p in pools]
        has_decode_pool = len(moved) > 0
        grows = queue_growth(done["arrival"], done["scheduled"], seats[0] if has_decode_pool else sum(seats))
        grows = grows or (has_decode_pool and queue_growth(moved["moved"], moved["resumed"], seats[-1])) or ""
        if grows:
            return OVERLOADED, grows
    wait_words = f"waits {show(waits, 's')} in the queue for a slot" if waits > 0 else "does not wait for a slot"
    wait_text = f"the median request {wait_words}"
    if waits > prefill_seconds:
        return SATURATED, f"{wait_text}, longer than its prefill takes ({show(prefill_seconds, 's')})"
    return STABLE, f"{wait_text}; its prefill takes {show(prefill_seconds, 's')}"


def timeline(requests: Any, pools: list[tuple[Rules, Replicas]], points: int = 400) -> dict[str, Any]:
    """Return the state of the run on a time grid.

    Args:
        requests: Finished requests, rows of `REQUEST`.
        pools: Rules and replicas of each pool.
        points: Number of points.

    Returns:
        Arrays: time [s], decoding sequences, share of the KV cache in use, waiting requests.
    """
    end = max(float(p.seconds[:, CLOCK].max()) for _, p in pools)
    grid = np.linspace(0.0, end, points)

    # Only pools that decode have a KV cache that fills over time.
    decoding, used_blocks, room = np.zeros(points), np.zeros(points), 0.0
    for rules, p in _decoders(pools):
        room += float(rules.blocks) * len(p.count)
        for r in range(len(p.count)):
            rows = p.records[r, : p.count[r, RECORDED]]
            if len(rows):
                rows_at = np.clip(np.searchsorted(rows[:, 0], grid, side="left"), 0, len(rows) - 1)
                over = grid > rows[-1, 0]
                decoding += np.where(over, 0, rows[rows_at, 1])
                used_blocks += np.where(over, 0, rules.blocks - rows[rows_at, 2])
    done = served(requests)
    moved = done[np.isfinite(done["resumed"])]
    queue = waiting(done["arrival"], done["scheduled"], grid) + waiting(moved["moved"], moved["resumed"], grid)
    return {"seconds": grid, "decoding": decoding, "kv": used_blocks / max(room, 1.0), "waiting": queue}


PASSED, MISSED = "MET", "MISSED"
PER_TOKEN = "time per token"
# Share of requests that must be served.
PERCENTILES = {"mean": 1.0, "p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
# Default percentile at which limits must be met.
DEFAULT_PERCENTILE = "p99"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Judged(Result):
    """A run compared with its limits: MET or MISSED at a percentile."""

    verdict: str = field(metadata=unit("", "MET or MISSED"))
    is_met: bool = field(metadata=unit("", "whether the verdict is MET"))
    percentile: str = field(metadata=unit("", "percentile of the limits: mean, p50, p90, p95 or p99"))
    within: int = field(metadata=unit("requests", "requests that meet all their limits", key="requests_within"))
    sent: int = field(metadata=unit("requests", "requests that arrived", key="requests_sent"))
    ttft: float = field(metadata=unit("s", "time to first token at the percentile"))
    ttft_limit: float = field(metadata=unit("s", "limit on the time to first token; null: no limit, or limits by class"))
    tpot: float = field(metadata=unit("s", "time per output token at the percentile"))
    tpot_limit: float = field(metadata=unit("s", "limit on the time per output token; null: no limit, or limits by class"))
    why: str = field(metadata=unit("", "reason for the verdict"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return a title and the reason.

        Returns:
            Title with the verdict; reason and number of requests by label.
        """
        return f"Limits: {self.verdict} {at_percentile(self.percentile)}", {"because": self.why, "requests": self.count}

    @property
    def count(self) -> str:
        """How many requests meet all their limits, in words."""
        if not self.within:
            return f"0 of {self.sent:,} requests meet all limits"
        share = self.within / self.sent
        words = "fewer than 0.1 %" if share < 0.001 else percent(share, 1)
        return f"{self.within:,} of {self.sent:,} requests ({words}) meet all limits"


def at_percentile(percentile: str) -> str:
    """Return the percentile of limits in words: "at p99", or "on average".

    Args:
        percentile: "mean", "p50", "p90", "p95" or "p99".

    Returns:
        Words.
    """
    return "on average" if percentile == "mean" else f"at {percentile}"


def check_percentile(percentile: str) -> str:
    """Return a percentile if it is a valid one.

    Args:
        percentile: "mean", "p50", "p90", "p95" or "p99".

    Returns:
        The percentile.

    Raises:
        UnknownName: It is not one of these.
    """
    if not isinstance(percentile, str) or percentile not in PERCENTILES:
        raise UnknownName("percentile", percentile, PERCENTILES, f"Known: {', '.join(PERCENTILES)}.")
    return percentile


def judge(answers: Answers, slo: Slo | tuple[Slo, ...], percentile: str = DEFAULT_PERCENTILE) -> Judged:
    """Compare a run with its limits at a percentile.

    With limits by class, each class is compared with its own. The share of rejected requests must not exceed
    what the percentile leaves out; with the mean, it must be 0. A run whose queue grows meets no limit,
    because it would miss the limits later.

    Args:
        answers: Figures of the run.
        slo: Limits, or limits by class.
        percentile: "mean", "p50", "p90", "p95" or "p99".

    Returns:
        The verdict and its reason.
    """
    share, figures, late = PERCENTILES[check_percentile(percentile)], [], False
    for name, ttft, tpot, limits in _figures_by_class(answers, slo):
        for metric, times, limit in (("first token", ttft, limits.ttft), (PER_TOKEN, tpot, limits.tpot)):
            value = getattr(times, percentile)
            if math.isfinite(limit) and not math.isnan(value):
                late |= value > limit
                sign = ">" if value > limit else "≤"
                figures.append(f"{name}{metric} {show(value, 's')} {sign} {show(limit, 's')}{_as_speed(metric, limit)}")

    # A run that rejects or accumulates requests meets no limit, even if the served ones are fast.
    if short := answers.served < share * answers.sent or not answers.served:
        figures.append(f"{percent(answers.rejected / max(answers.sent, 1), 1)} rejected: {answers.rejected_why}")
    if grows := answers.verdict == OVERLOADED and answers.served > 0:
        figures.append("the queue grows during the run, and so do all waits")
    is_met, target = not (late or short or grows), slo[0] if isinstance(slo, tuple) and len(slo) == 1 else slo
    return Judged(
        verdict=PASSED if is_met else MISSED,
        is_met=is_met,
        percentile=percentile,
        within=round(answers.within_limits * answers.sent) if answers.sent else 0,
        sent=answers.sent,
        ttft=getattr(answers.ttft, percentile),
        ttft_limit=math.inf if isinstance(target, tuple) else target.ttft,
        tpot=getattr(answers.tpot, percentile),
        tpot_limit=math.inf if isinstance(target, tuple) else target.tpot,
        why="; ".join(figures),
    )


def _as_speed(metric: str, limit: float) -> str:
    """Return a limit on the time per token as a speed, in brackets."""
    return f" ({show(1 / limit, 'tok/s')})" if metric == PER_TOKEN and limit > 0 else ""


def _figures_by_class(answers: Answers, slo: Slo | tuple[Slo, ...]) -> list[tuple[str, Percentiles, Percentiles, Slo]]:
    """Return pairs of latencies and limits: of all requests, or of each class."""
    if isinstance(slo, Slo):
        return [("", answers.ttft, answers.tpot, slo)]
    if not answers.classes:
        return [("", answers.ttft, answers.tpot, slo[0])]
    return [(f"class {c.rank}: ", c.ttft, c.tpot, slo[min(c.rank, len(slo) - 1)]) for c in answers.classes]
