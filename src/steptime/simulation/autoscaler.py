r"""Autoscaler: replicas that start and stop with the load, and the cold start of each.

Every `interval` the autoscaler reads a metric $M$ of all replicas that take requests: the requests in them (`concurrency`), or
those that wait in their queues (`queue`). The rule is that of the Kubernetes autoscaler for a metric with a target $T$ per
replica. KEDA, the vLLM production stack and llm-d use it:

$$ N' = \lceil M / T \rceil, \qquad N' = N \text{ if } |M / (T N) - 1| \le 0.1, \qquad N' \le \max(2 N, N + 4) $$

$N$ counts replicas that start, too, so that a cold start does not start more of them. It is between MIN and MAX. Fewer replicas
than now must have been enough for all of `scale_down_wait`. A new replica takes requests after its cold start:

$$ t_{cold} = t_{pull} + \frac{\text{bytes of the weights}}{\text{load bandwidth}} + t_{engine} $$

Replicas that start are removed first, then those with the fewest requests. These take no new requests, and end when theirs
have ended. Rent is due from the start of a replica, its cold start included, to its end. The run begins with MIN replicas and
is accounted to its last arrival.

References:
    https://kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale/: the rule, its tolerance of 0.1, its
    interval of 15 s, and its stabilization window of 300 s for fewer replicas. An interval starts at most 4 replicas,
    or as many as there are if these are more.
    https://docs.vllm.ai/projects/production-stack/en/latest/use_cases/autoscaling-keda.html: KEDA on
    `vllm:num_requests_waiting`.
    https://llm-d.ai/docs/dev/architecture/advanced/autoscaling/keda-epp: queue depth and active requests of the endpoint
    picker.
    https://docs.nvidia.com/dynamo/v1.2.0/components/planner/planner-guide: Dynamo's planner has thresholds on queue depth.
    https://knative.dev/docs/serving/autoscaling/concurrency/: a target of 70 % of the requests that a replica may have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np

from steptime.errors import RangeError, UnknownName
from steptime.number_checks import at_least_zero, positive, whole_number
from steptime.result_base import Result, unit
from steptime.simulation.event_loop import advance, arrive, ending, idle_until
from steptime.simulation.loop_state import (
    BUSY,
    CLOCK,
    QUEUED,
    SEATS,
    Rates,
    Replicas,
    Rules,
    compiled,
    entry,
    new_replicas,
    new_requests,
)
from steptime.simulation.replica_pools import max_replicas, serve
from steptime.simulation.scheduling_policy import Policy
from steptime.simulation.step_time_model import Pace
from steptime.units import HOUR, counted
from steptime.workload.traffic import Traffic

METRICS: Final = ("concurrency", "queue")
# Kubernetes: https://kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale/
INTERVAL, SCALE_DOWN_WAIT, TOLERANCE, FACTOR, ADDITIONAL = 15.0, 300.0, 0.1, 2, 4
# Target of the requests in a replica, as a share of its slots: Knative's default target utilization.
CONCURRENCY_SHARE: Final = 0.7
# Requests that wait in a replica: the threshold of the production stack's example.
QUEUE_TARGET: Final = 5.0
# Pull of a container image of 10 GB from a registry takes 7 to 10 minutes: https://tensorfuse.io/docs/blogs/snapshotter_graphs.
IMAGE_PULL: Final = 510.0
# vLLM with Llama 3.1 8B on an L40S, with its caches on a volume: 16.06 GB of weights in 18 s; bytecode, compilation, graph
# capture and start of the engine in 10 + 13 + 7 + 34 s. Without caches: 61 + 33 s and 10 + 42 + 54 + 94 s.
# https://tensorfuse.io/docs/blogs/reducing_gpu_cold_start
LOAD_BANDWIDTH: Final = 16.06e9 / 18
ENGINE_START: Final = 64.0
# Readings of a run whose state fits in memory.
MOST_READINGS: Final = 10_000_000
# Conditions of a replica in the loop.
OFF, ACTIVE, DRAINING = range(3)
# Columns of the state of a replica: its condition, when it takes requests, and since when it is rented.
CONDITION, READY_AT, RENTED_FROM = range(3)
# Columns of the timeline: time, replicas that are rented, those that take requests, and the metric.
TIME, RENTED, READY, METRIC = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaler:
    """Limits, target and delays of an autoscaler; see the module."""

    minimum: int = field(metadata=unit("", "fewest replicas"))
    maximum: int = field(metadata=unit("", "most replicas"))
    metric: str = field(default="concurrency", metadata=unit("", "concurrency or queue"))
    target: float = field(metadata=unit("requests", "metric per replica that the autoscaler keeps"))
    interval: float = field(default=INTERVAL, metadata=unit("s", "time between two readings of the metric"))
    scale_down_wait: float = field(
        default=SCALE_DOWN_WAIT, metadata=unit("s", "time for which fewer replicas must be enough", key="scale_down_wait_s")
    )
    cold_start: float = field(default=0.0, metadata=unit("s", "time from the start of a replica to its first request"))

    def __post_init__(self) -> None:
        whole_number("autoscale: MIN", self.minimum, maximum=1 << 20)
        whole_number("autoscale: MAX", self.maximum, maximum=1 << 20)
        if self.maximum < self.minimum:
            raise RangeError(f"autoscale: MAX must be at least MIN, got {self.minimum}:{self.maximum}")
        if self.metric not in METRICS:
            raise UnknownName("metric", self.metric, METRICS, f"Known: {', '.join(METRICS)}.")
        positive("scale_target", self.target, "requests")
        positive("scale_interval", self.interval, "s", minimum=0.1)
        at_least_zero("scale_down_wait", self.scale_down_wait, "s")
        at_least_zero("cold_start", self.cold_start, "s")


def read_autoscale(text: str) -> tuple[int, int]:
    """Return the fewest and the most replicas of a text such as 2:16.

    Args:
        text: MIN:MAX.

    Returns:
        Two whole numbers.

    Raises:
        RangeError: The text has another form.

    >>> read_autoscale("2:16")
    (2, 16)
    """
    parts = text.split(":")
    if len(parts) != 2 or not all(part.strip().isascii() and part.strip().isdigit() for part in parts):
        raise RangeError(f"autoscale: must be MIN:MAX, such as 2:16, got {text[:40]!r}")
    fewest, maximum = (int(part) for part in parts)
    if fewest < 1 or maximum < fewest:
        fix = f"; did you mean {maximum}:{fewest}?" if maximum >= 1 else ""
        raise RangeError(f"autoscale: MIN must be at least 1, and MAX at least MIN, got {fewest}:{maximum}{fix}")
    return fewest, maximum


def cold_start_seconds(weight_bytes: float, *, image_pull: float, load_bandwidth: float, engine_start: float) -> float:
    """Return the time from the start of a replica to its first request.

    Args:
        weight_bytes: Weights of a replica [B].
        image_pull: Pull of the container image; 0 on hosts that have it [s].
        load_bandwidth: Bandwidth from storage to the chips of a replica [B/s].
        engine_start: Imports, compilation and graph capture [s].

    Returns:
        Seconds.

    >>> cold_start_seconds(140e9, image_pull=0.0, load_bandwidth=2e9, engine_start=64.0)
    134.0
    """
    return image_pull + weight_bytes / load_bandwidth + engine_start


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Scaling(Result):
    """What an autoscaler did in a run, next to a fixed fleet of its most replicas."""

    autoscaler: Autoscaler = field(metadata=unit("", "limits, target and delays"))
    times: Any = field(metadata=unit("s", "readings of the metric", left_out=True))
    rented: Any = field(metadata=unit("", "replicas that are rented at each reading", left_out=True))
    ready: Any = field(metadata=unit("", "replicas that take requests at each reading", left_out=True))
    starts: int = field(metadata=unit("", "replicas that started after the first ones"))
    largest: int = field(metadata=unit("", "most replicas that were rented at once"))
    replica_hours: float = field(metadata=unit("h", "rented time of all replicas to the last arrival", key="replica_hours"))
    usd: float = field(metadata=unit("USD", "rent of that time"))
    busy_share: float = field(metadata=unit("", "share of the rented time in which a replica runs steps"))
    fixed_replica_hours: float = field(
        metadata=unit("h", "time of a fixed fleet of the most replicas", key="fixed_replica_hours")
    )
    fixed_usd: float = field(metadata=unit("USD", "rent of that fleet"))
    fixed_ttft: float = field(default=math.nan, metadata=unit("s", "p90 of the time to first token of that fleet"))
    fixed_tpot: float = field(default=math.nan, metadata=unit("s", "p90 of the time per output token of that fleet"))
    fixed_within_limits: float = field(default=math.nan, metadata=unit("", "share of its requests that are within the limits"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return a title and the hours.

        Returns:
            Title and figures by label.
        """
        return f"Autoscaler: up to {counted(self.largest, 'replica')}", {
            "replica-hours": f"{self.replica_hours:,.2f} of {self.fixed_replica_hours:,.2f} with a fixed fleet",
        }


class Scaled(NamedTuple):
    """Requests, rules and replicas of a run, its timeline, starts, and rented seconds."""

    requests: Any
    rules: Rules
    pool: Replicas
    line: Any
    starts: int
    rented_seconds: float


def serve_autoscaled(traffic: Traffic, policy: Policy, pace: Pace, autoscaler: Autoscaler, *, cached: Any = 0) -> Scaled:
    """Serve open-loop traffic on replicas that start and stop with the load.

    Args:
        traffic: Requests in order of arrival.
        policy: Scheduling policy; requests go to replicas that take them, in turn or to the one with the fewest requests.
        pace: Step times.
        autoscaler: The autoscaler.
        cached: Prompt tokens already in the cache, by request.

    Returns:
        The run.

    Raises:
        RangeError: The traffic, the policy or the stages cannot be combined with an autoscaler.
    """
    if traffic.clients:
        raise RangeError("autoscale: needs requests at a rate or of a trace, got clients of a closed loop")
    if pace.stages > 1:
        raise RangeError("autoscale: replicas with pipeline stages are not simulated; use pp = 1, or the ideal engine")
    if policy.route not in ("round-robin", "least-loaded"):
        raise RangeError(f"autoscale: route must be round-robin or least-loaded, got {policy.route}")
    if policy.kind == "static":
        raise RangeError("autoscale: static batches wait for requests that may go to new replicas; use another policy")
    readings = float(traffic.arrival[-1]) / autoscaler.interval
    if readings > MOST_READINGS:
        raise RangeError(f"scale_interval: a run has at most {MOST_READINGS:,} readings, got {readings:,.0f}; read less often")
    if autoscaler.minimum == autoscaler.maximum:
        return _fixed(traffic, policy, pace, autoscaler, cached)
    # Replicas that end need their own places while others start.
    places = 2 * autoscaler.maximum
    if places > max_replicas(policy):
        raise RangeError(f"autoscale: MAX must be at most {max_replicas(policy) // 2:,} in memory, got {autoscaler.maximum:,}")
    if int(np.max(traffic.ranks, initial=0)) >= policy.ranks:
        policy = replace(policy, ranks=1 + int(np.max(traffic.ranks)))
    rules = policy.rules(groups=pace.groups, stages=pace.stages, waves=pace.waves)
    rules = rules._replace(before=pace.before, before_token=pace.before_token, extra_delay=pace.extra_delay)
    requests = new_requests(traffic.arrival, traffic.inputs, traffic.outputs, traffic.ranks, cached, 0.0)
    pool = new_replicas(rules, places)
    state = np.zeros((places, 3))
    state[: autoscaler.minimum, CONDITION] = ACTIVE
    last = float(traffic.arrival[-1])
    line = np.zeros((int(last / autoscaler.interval) + 2, 4))
    # A wait beyond the run needs no more readings than the run has.
    memory = min(math.ceil(autoscaler.scale_down_wait / autoscaler.interval), len(line))
    window = np.zeros(max(1, memory), dtype=np.int64)
    kind, is_least_loaded = METRICS.index(autoscaler.metric), policy.route == "least-loaded"
    limits, times = (autoscaler.minimum, autoscaler.maximum), (autoscaler.interval, autoscaler.cold_start)
    control = np.array([*limits, kind, autoscaler.target, *times, is_least_loaded], dtype=np.float64)
    totals = np.zeros(3)
    _serve(requests, pool, rules, pace.rates, state, line, window, control, totals, np.zeros(0, dtype=np.int64))
    return Scaled(requests, rules, pool, line[: int(totals[2])], int(totals[1]), float(totals[0]))


def _fixed(traffic: Traffic, policy: Policy, pace: Pace, autoscaler: Autoscaler, cached: Any) -> Scaled:
    """Serve traffic on replicas whose number cannot change."""
    requests, rules, pool = serve(traffic, policy, pace, replicas=autoscaler.minimum, cached=cached)
    last = float(traffic.arrival[-1])
    line = np.full((int(last / autoscaler.interval) + 1, 4), float(autoscaler.minimum))
    line[:, TIME] = np.arange(len(line)) * autoscaler.interval
    return Scaled(requests, rules, pool, line, 0, autoscaler.minimum * last)


@compiled
def _metric(p: Replicas, state: Any, kind: float) -> float:
    """Return the metric of all replicas that take requests, and of those that start."""
    value = 0.0
    for r in range(len(state)):
        if state[r, CONDITION] == ACTIVE:
            value += p.count[r, QUEUED]
            if kind == 0.0:
                value += p.count[r, SEATS]
    return value


@compiled
def _count(state: Any, now: float, ready: bool) -> int:
    """Return the replicas that are not to end; with `ready` those of them that take requests."""
    n = 0
    for r in range(len(state)):
        if state[r, CONDITION] == ACTIVE and (not ready or state[r, READY_AT] <= now):
            n += 1
    return n


@compiled
def _desired(metric: float, replicas: int, window: Any, turn: int, control: Any) -> int:
    """Return the replicas that the rule asks for, within its limits; the window has the last ones."""
    target, limit = control[3], max(FACTOR * replicas, replicas + ADDITIONAL)
    desired = replicas
    if abs(metric / (target * replicas) - 1.0) > TOLERANCE:
        desired = int(np.ceil(metric / target))
    desired = min(max(desired, int(control[0])), int(control[1]))
    window[turn % len(window)] = desired
    if desired < replicas:
        for k in range(len(window)):
            desired = max(desired, window[k])
        desired = min(desired, replicas)
    return min(desired, limit)


@compiled
def _start(state: Any, now: float, cold_start: float) -> bool:
    """Start a replica in a free place; false without a free place."""
    for r in range(len(state)):
        if state[r, CONDITION] == OFF:
            state[r, CONDITION], state[r, READY_AT], state[r, RENTED_FROM] = ACTIVE, now + cold_start, now
            return True
    return False


@compiled
def _end(p: Replicas, state: Any, now: float) -> None:
    """Let a replica take no more requests: the last one that starts, or else that with the fewest requests."""
    last_place, lowest = -1, np.inf
    for r in range(len(state)):
        if state[r, CONDITION] != ACTIVE:
            continue
        # A replica that is not ready has no requests; of two, the later one ends.
        load = float(p.count[r, SEATS] + p.count[r, QUEUED])
        if state[r, READY_AT] > now:
            load = -state[r, READY_AT]
        if load < lowest:
            last_place, lowest = r, load
    if last_place >= 0:
        state[last_place, CONDITION] = DRAINING


@compiled
def _release(p: Replicas, state: Any, now: float, totals: Any) -> None:
    """Return the replicas whose last request has ended, and count their rented time."""
    for r in range(len(state)):
        if state[r, CONDITION] == DRAINING and p.count[r, SEATS] == 0 and p.count[r, QUEUED] == 0:
            state[r, CONDITION] = OFF
            totals[0] += now - state[r, RENTED_FROM]


@compiled
def _route(p: Replicas, rules: Rules, state: Any, now: float, i: int, control: Any) -> int:
    """Return the replica of a request: that with the fewest requests, or the next one in turn, of those that take requests."""
    ready = _count(state, now, True)
    turn, best, lowest = i % ready, -1, np.inf
    place = 0
    for r in range(len(state)):
        if state[r, CONDITION] != ACTIVE or state[r, READY_AT] > now:
            continue
        load = float(p.count[r, SEATS] + p.count[r, QUEUED])
        if rules.tracks:
            for g in range(rules.groups):
                load += ending(p, rules, r, g, now)
        if control[6] == 0.0:
            load = 0.0 if place == turn else 1.0
        elif place < turn:
            # Of equals the next one in turn.
            load += 1e-6
        if load < lowest:
            best, lowest = r, load
        place += 1
    return best


@compiled
def _read_metric(
    q: Any,
    p: Replicas,
    rules: Rules,
    rates: Rates,
    state: Any,
    line: Any,
    window: Any,
    control: Any,
    totals: Any,
    following: Any,
    tick: int,
) -> None:
    """Run all replicas to a reading of the metric, and start or end some."""
    now = tick * control[4]
    for r in range(len(state)):
        if state[r, CONDITION] != OFF and (p.count[r, SEATS] > 0 or p.count[r, QUEUED] > 0) and p.seconds[r, CLOCK] < now:
            advance(q, p, rules, rates, r, now, True, following)
    _release(p, state, now, totals)
    replicas = _count(state, now, False)
    metric = _metric(p, state, control[2])
    desired = _desired(metric, replicas, window, tick, control)
    for _ in range(desired - replicas):
        if _start(state, now, control[5]):
            totals[1] += 1
    for _ in range(replicas - desired):
        _end(p, state, now)
    _release(p, state, now, totals)
    rented = 0
    for r in range(len(state)):
        rented += state[r, CONDITION] != OFF
    line[tick, TIME], line[tick, RENTED] = now, rented
    line[tick, READY], line[tick, METRIC] = _count(state, now, True), metric


@entry
def _serve(
    q: Any,
    p: Replicas,
    rules: Rules,
    rates: Rates,
    state: Any,
    line: Any,
    window: Any,
    control: Any,
    totals: Any,
    following: Any,
) -> None:
    """Send all requests in order of arrival, and read the metric at every interval until the last arrival.

    `totals` counts the rented seconds, the starts, and the rows of the timeline.
    """
    interval, tick, last = control[4], 0, q[len(q) - 1].arrival
    for k in range(len(window)):
        window[k] = int(control[0])
    for i in range(len(q)):
        t = q[i].arrival
        while tick * interval <= t:
            _read_metric(q, p, rules, rates, state, line, window, control, totals, following, tick)
            tick += 1
        # A replica with the fewest requests needs the state of all of them at this time.
        if control[6] != 0.0:
            for r in range(len(state)):
                if (
                    state[r, CONDITION] == ACTIVE
                    and p.seconds[r, CLOCK] < t
                    and (p.count[r, SEATS] > 0 or p.count[r, QUEUED] > 0)
                ):
                    advance(q, p, rules, rates, r, t, True, following)
        r = _route(p, rules, state, t, i, control)
        if p.seconds[r, CLOCK] < t and (p.count[r, SEATS] > 0 or p.count[r, QUEUED] > 0):
            advance(q, p, rules, rates, r, t, control[6] != 0.0, following)
        if p.count[r, SEATS] == 0 and p.count[r, QUEUED] == 0 and p.seconds[r, CLOCK] < t:
            idle_until(p, r, t)
        arrive(q, p, rules, r, i)
    for r in range(len(state)):
        if state[r, CONDITION] != OFF:
            totals[0] += last - state[r, RENTED_FROM]
        if p.count[r, SEATS] > 0 or p.count[r, QUEUED] > 0:
            advance(q, p, rules, rates, r, np.inf, False, following)
    totals[2] = tick


def account(
    autoscaler: Autoscaler, run: Scaled, fixed: Any, *, usd_per_replica_second: float, fixed_ttft: float, fixed_tpot: float
) -> Scaling:
    """Return the replicas over time, and the hours and dollars next to those of a fixed fleet.

    Args:
        autoscaler: The autoscaler.
        run: The run.
        fixed: Share of the requests of the fixed fleet that are within the limits.
        usd_per_replica_second: Rent of a replica [USD/s].
        fixed_ttft: p90 of the time to first token of the fixed fleet [s].
        fixed_tpot: p90 of the time per output token of the fixed fleet [s].

    Returns:
        The account.
    """
    span = float(run.requests["arrival"][-1])
    largest = int(run.line[:, RENTED].max())
    fixed_seconds = largest * span
    return Scaling(
        autoscaler=autoscaler,
        times=run.line[:, TIME],
        rented=run.line[:, RENTED].astype(int),
        ready=run.line[:, READY].astype(int),
        starts=run.starts,
        largest=largest,
        replica_hours=run.rented_seconds / HOUR,
        usd=run.rented_seconds * usd_per_replica_second,
        busy_share=min(1.0, float(run.pool.seconds[:, BUSY].sum()) / run.rented_seconds) if run.rented_seconds else math.nan,
        fixed_replica_hours=fixed_seconds / HOUR,
        fixed_usd=fixed_seconds * usd_per_replica_second,
        fixed_ttft=fixed_ttft,
        fixed_tpot=fixed_tpot,
        fixed_within_limits=float(fixed),
    )
