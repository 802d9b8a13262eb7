"""What a run says: latencies, throughput, how full the machine was, and whether it kept up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steptime.hardware.unit_cost import usd_per_million
from steptime.planning.workload import Slo
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
    SEAT_SECONDS,
    SHORTEST,
    WIDTH,
    Replicas,
    Rules,
)
from steptime.simulation.traffic import Traffic
from steptime.units import show

STABLE, SATURATED, OVERLOADED = "STABLE", "SATURATED", "OVERLOADED"
INSTANTS = 64  # of each third of a run, at which its queue is looked at
GROWTH, MIN_QUEUE = 1.5, 8  # from how many times as many, and from how many requests on, a queue is said to grow
DRAIN = 0.1  # or from what share of the time of arrivals on, that it takes to be seated after the last


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """A quantity over requests: mean, median and high quantiles."""

    mean: float = field(metadata=unit("", "mean"))
    p50: float = field(metadata=unit("", "median"))
    p90: float = field(metadata=unit("", "what nine in ten stay below"))
    p95: float = field(metadata=unit("", "what 95 in a hundred stay below"))
    p99: float = field(metadata=unit("", "what 99 in a hundred stay below"))


def quantiles(values: Any) -> Percentiles:
    """Return mean and quantiles of values; NaN where there are none.

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
    """What the requests of one class (0 is served first) see [s], and the share of those sent that are within their limits."""

    rank: int = field(metadata=unit("", "class; 0 is served first"))
    served: int = field(metadata=unit("requests", "served to the end"))
    ttft: Percentiles = field(metadata=unit("s", "time to first token"))
    tpot: Percentiles = field(metadata=unit("s", "time per output token after the first"))
    within_limits: float = field(metadata=unit("", "share of those sent"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Answers(Result):
    """The figures of one run. Times in seconds; rates per second from the first arrival to the last token."""

    sent: int = field(metadata=unit("requests", "that came"))
    served: int = field(metadata=unit("requests", "served to the end"))
    rejected: int = field(metadata=unit("requests", "that can never be served"))
    rejected_why: str = field(metadata=unit("", "why they cannot"))
    preemptions: int = field(metadata=unit("", "times that a sequence lost its room"))
    seconds: float = field(metadata=unit("s", "from the first arrival to the last token", key="duration_s"))
    arriving: float = field(metadata=unit("s", "from the first to the last arrival"))
    wait: Percentiles = field(metadata=unit("s", "from arrival to the first seat, and for one in a decode pool of its own"))
    ttft: Percentiles = field(metadata=unit("s", "time to first token, from arrival"))
    tpot: Percentiles = field(metadata=unit("s", "time per output token after the first"))
    inter_token: Percentiles = field(metadata=unit("s", "between two tokens of a request, stalls included"))
    end_to_end: Percentiles = field(metadata=unit("s", "from arrival to the last token"))
    requests_per_second: float = field(metadata=unit("requests/s", "served"))
    input_tokens_per_second: float = field(metadata=unit("tok/s", "prompt tokens of served requests"))
    output_tokens_per_second: float = field(metadata=unit("tok/s", "output tokens"))
    goodput: float = field(metadata=unit("requests/s", "requests within the limits"))
    within_limits: float = field(metadata=unit("", "share of the requests sent that are within the limits"))
    utilisation: float = field(metadata=unit("", "share of time in which a replica works"))
    pool_utilisation: tuple[float, ...] = field(metadata=unit("", "the same by pool, the one that reads prompts first"))
    batch: float = field(metadata=unit("sequences", "mean number that decode, while a replica works", key="mean_batch"))
    kv: float = field(metadata=unit("", "mean share of the KV cache that is taken", key="kv_share"))
    queue: float = field(metadata=unit("requests", "mean number that wait", key="mean_waiting"))
    usd_per_million_output_tokens: float = field(
        metadata=unit("USD", "whole rent over output tokens, per million", key="usd_per_million_output_tokens")
    )
    usd_per_million_total_tokens: float = field(
        metadata=unit("USD", "whole rent over input and output tokens, per million", key="usd_per_million_total_tokens")
    )
    verdict: str = field(metadata=unit("", "STABLE, SATURATED or OVERLOADED"))
    why: str = field(metadata=unit("", "what the verdict rests on"))
    classes: tuple[ClassAnswers, ...] = field(default=(), metadata=unit("", "by class, where there are several"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return whether it kept up, what users see, throughput and cost."""
        cost = self.usd_per_million_output_tokens
        return f"Answers: {self.verdict}, {self.served:,} of {self.sent:,} requests served", {
            "TTFT": show_percentiles(self.ttft),
            "TPOT": show_percentiles(self.tpot),
            "output": f"{show(self.output_tokens_per_second, 'tok/s')}, {show(self.requests_per_second)} requests/s",
            "cost": f"{show(cost, 'USD')} per million output tokens" if math.isfinite(cost) else "no rent known",
        }


def show_percentiles(times: Percentiles) -> str:
    """Write the mean, the 90th and the 99th percentile of times [s]."""
    return f"mean {show(times.mean, 's')}, p90 {show(times.p90, 's')}, p99 {show(times.p99, 's')}"


def served(requests: Any) -> Any:
    """Return the requests that were served: all of them without a copy where none was rejected."""
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
    """Return the figures of finished requests; `pools` are the replicas that did the work.

    slo: the limits, or those of each class in order (the last stands for all further ones).
    """
    done = served(requests)
    rejected = requests[requests["status"] == REJECTED]
    ttft, total = done["first"] - done["arrival"], done["finish"] - done["arrival"]
    tpot = (done["finish"] - done["first"]) / np.maximum(done["outputs"] - 1, 1)
    several = done["outputs"] > 1
    wait = done["scheduled"] - done["arrival"] + np.nan_to_num(done["resumed"] - done["moved"])
    began = float(np.min(requests["arrival"])) if len(requests) else 0.0
    seconds = float(np.max(done["finish"])) - began if len(done) else math.nan
    good = _meets_limits(done, ttft, tpot, slo)
    outputs, inputs = float(done["outputs"].sum()), float(done["inputs"].sum())
    replicas = [p for _, p in pools]
    busy_seconds = [float(p.seconds[:, BUSY].sum()) for p in replicas]
    why_not = _why_rejected(rejected, pools)
    verdict, why = _verdict(traffic, done, pools) if len(done) else (OVERLOADED, f"no request can be served: {why_not}")
    decoders, rent = _decoders(pools), usd_per_second * seconds
    return Answers(
        sent=len(requests),
        served=len(done),
        rejected=len(rejected),
        rejected_why=why_not,
        preemptions=int(requests["preempted"].sum()),
        seconds=seconds,
        arriving=float(np.max(requests["arrival"])) - began if len(requests) else 0.0,
        wait=quantiles(wait),
        ttft=quantiles(ttft),
        tpot=quantiles(tpot[several]),
        inter_token=inter_token_percentiles(replicas),
        end_to_end=quantiles(total),
        requests_per_second=len(done) / seconds,
        input_tokens_per_second=inputs / seconds,
        output_tokens_per_second=outputs / seconds,
        goodput=float(good.sum()) / seconds,
        within_limits=float(good.sum()) / len(requests) if len(requests) else math.nan,
        utilisation=sum(busy_seconds) / (seconds * sum(len(p.count) for p in replicas)),
        pool_utilisation=tuple(busy / (seconds * len(p.count)) for busy, p in zip(busy_seconds, replicas, strict=True)),
        batch=_mean_while_busy(decoders, lambda _, p: p.seconds[:, DECODE_SECONDS].sum()),
        kv=_mean_while_busy(
            decoders, lambda rules, p: p.seconds[:, BUSY].sum() - p.seconds[:, BLOCK_SECONDS].sum() / max(rules.blocks, 1)
        ),
        queue=float(wait.sum()) / seconds,
        usd_per_million_output_tokens=float(usd_per_million(rent, outputs)) if outputs else math.nan,
        usd_per_million_total_tokens=float(usd_per_million(rent, outputs + inputs)) if outputs else math.nan,
        verdict=verdict,
        why=why,
        classes=_by_class(requests, done, good, ttft, tpot),
    )


def _by_class(requests: Any, done: Any, good: Any, ttft: Any, tpot: Any) -> tuple[ClassAnswers, ...]:
    """Return what the requests of each class see; nothing where there is one class."""
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
    """Return TTFT and TPOT [s] of each request that was served; TPOT of those with more than one output token.

    requests: rows of `state.REQUEST`, those that are done or all.
    """
    done = served(requests)
    tpot = (done["finish"] - done["first"]) / np.maximum(done["outputs"] - 1, 1)
    return {"TTFT": done["first"] - done["arrival"], "TPOT": tpot[done["outputs"] > 1]}


def _decoders(pools: list[tuple[Rules, Replicas]]) -> list[tuple[Rules, Replicas]]:
    """The pools that decode; the last where none does."""
    return [(rules, p) for rules, p in pools if p.seconds[:, DECODE_SECONDS].any()] or pools[-1:]


def _mean_while_busy(pools: list[tuple[Rules, Replicas]], total: Callable[[Rules, Replicas], Any]) -> float:
    """The sum of `total` of pools over the seconds that their replicas work; 0 where none does."""
    busy = sum(float(p.seconds[:, BUSY].sum()) for _, p in pools)
    return sum(float(total(rules, p)) for rules, p in pools) / busy if busy else 0.0


def _why_rejected(rejected: Any, pools: list[tuple[Rules, Replicas]]) -> str:
    """Say how many requests were rejected for which of the reasons."""
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
    """Return the times between tokens, from a histogram 1 % wide (a run of equal steps counts with its mean)."""
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
    """How many of the requests that `came` [s] were not `seated` [s] yet, at some times [s].

    >>> waiting(np.array([0.0, 1.0, 2.0]), np.array([0.0, 5.0, 6.0]), np.array([0.5, 2.5, 5.5])).tolist()
    [0, 2, 1]
    """
    return np.searchsorted(np.sort(came), times, side="right") - np.searchsorted(np.sort(seated), times, side="right")


def _queue_growth(came: Any, seated: Any, seats: int) -> str:
    """Say that a queue grows: its least in the last third of the arrivals is well above that of the third before, or what waits
    at the end takes a good part of the run to be seated.

    A queue that bursts fill and that empties again has a least of next to nothing, and soon empties.
    """
    first, last = float(came.min()), float(came.max())
    least = waiting(came, seated, np.linspace(first, last, 3 * INSTANTS)).reshape(3, INSTANTS).min(axis=1)
    min_queue = max(MIN_QUEUE, 0.01 * len(came), 0.05 * seats)
    if least[2] > max(GROWTH * least[1], min_queue):
        return f"the queue grows: no fewer than {least[1]:,} wait in the middle third of the run, {least[2]:,} in the last"
    waiting_at_end, drain = int(waiting(came, seated, last)), float(seated.max()) - last
    if waiting_at_end > min_queue and drain > DRAIN * (last - first):
        return f"{waiting_at_end:,} wait at the last arrival, and the last of them {show(drain, 's')} longer"
    return ""


def _verdict(traffic: Traffic, done: Any, pools: list[tuple[Rules, Replicas]]) -> tuple[str, str]:
    """Say whether the servers keep up: no queue may grow, and most requests must not wait longer than they are read."""
    moved = done[np.isfinite(done["resumed"])]
    queue = done["scheduled"] - done["ready"] + np.nan_to_num(done["resumed"] - done["moved"])
    prefill_seconds, waits = float(np.median(done["first"] - done["scheduled"])), float(np.median(queue))
    if not traffic.clients:
        seats = [rules.seats * len(p.count) for rules, p in pools]
        has_decode_pool = len(moved) > 0
        grows = _queue_growth(done["arrival"], done["scheduled"], seats[0] if has_decode_pool else sum(seats))
        grows = grows or (has_decode_pool and _queue_growth(moved["moved"], moved["resumed"], seats[-1])) or ""
        if grows:
            return OVERLOADED, grows
    wait_text = f"the median request waits {show(waits, 's')} in the queue for a seat"
    if waits > prefill_seconds:
        return SATURATED, f"{wait_text}, longer than its prompt is read ({show(prefill_seconds, 's')})"
    return STABLE, f"{wait_text}; its prompt is read in {show(prefill_seconds, 's')}"


def timeline(requests: Any, pools: list[tuple[Rules, Replicas]], points: int = 400) -> dict[str, Any]:
    """Return what happened over time on a grid: sequences decoding, share of cache taken, requests waiting."""
    end = max(float(p.seconds[:, CLOCK].max()) for _, p in pools)
    grid = np.linspace(0.0, end, points)
    decoding, used_blocks, room = np.zeros(points), np.zeros(points), 0.0
    for rules, p in _decoders(pools):
        room += float(rules.blocks) * len(p.count)
        for r in range(len(p.count)):
            rows = p.records[r, : p.count[r, RECORDED]]
            if len(rows):
                rows_at = np.clip(np.searchsorted(rows[:, 0], grid, side="left"), 0, len(rows) - 1)
                over = grid > rows[-1, 0]
                decoding += np.where(over, 0, rows[rows_at, 2])
                used_blocks += np.where(over, 0, rules.blocks - rows[rows_at, 3])
    done = served(requests)
    moved = done[np.isfinite(done["resumed"])]
    queue = waiting(done["arrival"], done["scheduled"], grid) + waiting(moved["moved"], moved["resumed"], grid)
    return {"seconds": grid, "decoding": decoding, "kv": used_blocks / max(room, 1.0), "waiting": queue}


def little(requests: Any, p: Replicas) -> tuple[float, float]:
    """Return both sides of Little's law for the seats [sequence seconds]: counted by the loop, and summed over requests.

    They are equal where no sequence was preempted.
    """
    done = served(requests)
    return float(p.seconds[:, SEAT_SECONDS].sum()), float((done["finish"] - done["scheduled"]).sum())
