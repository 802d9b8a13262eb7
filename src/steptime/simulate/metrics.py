"""What a run says: latencies, throughput, how full the machine was, and whether it kept up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from steptime.cost import usd_per_million
from steptime.simulate.pool import (
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
from steptime.simulate.traffic import Traffic
from steptime.workload import Slo

STABLE, SATURATED, OVERLOADED = "STABLE", "SATURATED", "OVERLOADED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A quantity over requests: mean, median and high quantiles."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


def spread(values: Any) -> Spread:
    """Return mean and quantiles of values; NaN where there are none.

    >>> spread(np.arange(101.0)).p90
    90.0
    """
    if not len(values):
        return Spread(mean=math.nan, p50=math.nan, p90=math.nan, p95=math.nan, p99=math.nan)
    found = np.percentile(values, (50, 90, 95, 99))
    return Spread(
        mean=float(np.mean(values)), p50=found[0].item(), p90=found[1].item(), p95=found[2].item(), p99=found[3].item()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassAnswers:
    """What the requests of one class (0 is served first) see [s], and the share of them within their limits."""

    rank: int
    served: int
    ttft: Spread
    tpot: Spread
    within_limits: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The figures of one run. Times in seconds, rates per second, over the `seconds` from the first arrival to the last token.

    sent, served, rejected: requests; preemptions: times that a sequence lost its room. wait: from arrival to the first seat;
    inter_token: between two tokens of a request, stalls included. goodput: requests per second within the limits.
    utilisation: share of time in which a replica works; batch: mean sequences that decode, while it works; kv: mean share of
    the cache that is taken; queue: mean requests that wait.
    """

    sent: int
    served: int
    rejected: int
    preemptions: int
    seconds: float
    wait: Spread
    ttft: Spread
    tpot: Spread
    inter_token: Spread
    end_to_end: Spread
    requests_per_second: float
    input_tokens_per_second: float
    output_tokens_per_second: float
    goodput: float
    within_limits: float
    utilisation: float
    batch: float
    kv: float
    queue: float
    usd_per_million_output_tokens: float
    usd_per_million_tokens: float
    verdict: str
    why: str
    classes: tuple[ClassAnswers, ...] = ()


def answers(
    traffic: Traffic,
    requests: Any,
    pools: list[tuple[Rules, Replicas]],
    *,
    slo: Slo | tuple[Slo, ...],
    usd_per_second: float = math.nan,
) -> Answers:
    """Return the figures of finished requests; `pools` are the replicas that did the work, the last of them decodes.

    slo: the limits, or those of each class in order (the last stands for all further ones).
    """
    done = requests[requests["status"] == DONE]
    ttft, total = done["first"] - done["arrival"], done["finish"] - done["arrival"]
    tpot = (done["finish"] - done["first"]) / np.maximum(done["outputs"] - 1, 1)
    several = done["outputs"] > 1
    wait = done["scheduled"] - done["arrival"]
    began = float(np.min(requests["arrival"])) if len(requests) else 0.0
    seconds = float(np.max(done["finish"])) - began if len(done) else math.nan
    limits = slo if isinstance(slo, tuple) else (slo,)
    own = np.minimum(done["rank"], len(limits) - 1)
    most_ttft, most_tpot = np.array([s.ttft for s in limits])[own], np.array([s.tpot for s in limits])[own]
    good = (ttft <= most_ttft) & ((tpot <= most_tpot) | ~several)
    ranks = np.unique(done["rank"])
    outputs, inputs = float(done["outputs"].sum()), float(done["inputs"].sum())
    replicas = [p for _, p in pools]
    verdict, why = _verdict(traffic, done, wait, pools)
    return Answers(
        sent=len(requests),
        served=len(done),
        rejected=int((requests["status"] == REJECTED).sum()),
        preemptions=int(requests["preempted"].sum()),
        seconds=seconds,
        wait=spread(wait),
        ttft=spread(ttft),
        tpot=spread(tpot[several]),
        inter_token=gaps(replicas),
        end_to_end=spread(total),
        requests_per_second=len(done) / seconds,
        input_tokens_per_second=inputs / seconds,
        output_tokens_per_second=outputs / seconds,
        goodput=float(good.sum()) / seconds,
        within_limits=float(good.mean()) if len(done) else math.nan,
        utilisation=float(
            np.sum([p.seconds[:, BUSY].sum() for p in replicas]) / (seconds * sum(len(p.count) for p in replicas))
        ),
        batch=float(replicas[-1].seconds[:, DECODE_SECONDS].sum() / max(replicas[-1].seconds[:, BUSY].sum(), 1e-300)),
        kv=_kv(*pools[-1]),
        queue=float(wait.sum()) / seconds,
        usd_per_million_output_tokens=float(usd_per_million(usd_per_second * seconds, outputs)) if outputs else math.nan,
        usd_per_million_tokens=float(usd_per_million(usd_per_second * seconds, outputs + inputs)) if outputs else math.nan,
        verdict=verdict,
        why=why,
        classes=tuple(
            ClassAnswers(
                rank=int(k),
                served=int(mine.sum()),
                ttft=spread(ttft[mine]),
                tpot=spread(tpot[mine & several]),
                within_limits=float(good[mine].mean()),
            )
            for k in (ranks if len(ranks) > 1 else ())
            if (mine := done["rank"] == k) is not None
        ),
    )


def _kv(rules: Rules, p: Replicas) -> float:
    busy = float(p.seconds[:, BUSY].sum())
    return 1 - float(p.seconds[:, BLOCK_SECONDS].sum()) / max(busy * rules.blocks, 1e-300)


def gaps(replicas: list[Replicas]) -> Spread:
    """Return the times between tokens, from a histogram 1 % wide (a run of equal steps counts with its mean)."""
    counts = np.sum([p.gaps.sum(axis=0) for p in replicas], axis=0)
    total = counts.sum()
    if not total:
        return spread(())
    middles = SHORTEST * np.exp((np.arange(GAPS) + 0.5) * WIDTH)
    reached = np.cumsum(counts) / total
    at = [float(middles[np.searchsorted(reached, share)]) for share in (0.5, 0.9, 0.95, 0.99)]
    return Spread(mean=float((counts * middles).sum() / total), p50=at[0], p90=at[1], p95=at[2], p99=at[3])


def _verdict(traffic: Traffic, done: Any, wait: Any, pools: list[tuple[Rules, Replicas]]) -> tuple[str, str]:
    """Say whether the servers keep up: the queue must not grow, and most requests must not wait longer than they read."""
    if not len(done):
        return OVERLOADED, "no request was served"
    seats = sum(rules.seats * len(p.count) for rules, p in pools)
    read = np.median(done["first"] - done["scheduled"])
    waits = float(np.median(wait))
    if not traffic.clients:
        last = float(done["arrival"].max())
        middle = (float(done["arrival"].min()) + last) / 2
        queued = [int(((done["arrival"] <= t) & (done["scheduled"] > t)).sum()) for t in (middle, last)]
        if queued[1] > max(1.5 * queued[0], 0.01 * len(done), 8) and queued[1] > 0.05 * seats:
            return OVERLOADED, f"the queue grows: {queued[0]:,} wait at half time, {queued[1]:,} at the last arrival"
    if waits > read:
        return SATURATED, f"the median request waits {waits:.3g} s for a seat, longer than its prompt is read ({read:.3g} s)"
    return STABLE, f"the median request waits {waits:.3g} s for a seat; its prompt is read in {read:.3g} s"


def timeline(requests: Any, rules: Rules, p: Replicas, points: int = 400) -> dict[str, Any]:
    """Return what happened over time on a grid: sequences decoding, share of cache taken, requests waiting."""
    end = float(p.seconds[:, CLOCK].max())
    grid = np.linspace(0.0, end, points)
    decoding, taken = np.zeros(points), np.zeros(points)
    for r in range(len(p.count)):
        rows = p.records[r, : p.count[r, RECORDED]]
        if len(rows):
            at = np.clip(np.searchsorted(rows[:, 0], grid, side="left"), 0, len(rows) - 1)
            over = grid > rows[-1, 0]
            decoding += np.where(over, 0, rows[at, 2])
            taken += np.where(over, 0, 1 - rows[at, 3] / rules.blocks)
    done = requests[requests["status"] == DONE]
    waiting = np.searchsorted(np.sort(done["arrival"]), grid, side="right") - np.searchsorted(
        np.sort(done["scheduled"]), grid, side="right"
    )
    return {"seconds": grid, "decoding": decoding, "kv": taken / len(p.count), "waiting": waiting}


def little(requests: Any, p: Replicas) -> tuple[float, float]:
    """Return both sides of Little's law for the seats [sequence seconds]: counted by the loop, and summed over requests.

    They are equal where no sequence was preempted.
    """
    done = requests[requests["status"] == DONE]
    return float(p.seconds[:, SEAT_SECONDS].sum()), float((done["finish"] - done["scheduled"]).sum())
