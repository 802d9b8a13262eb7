r"""The highest request rate of a candidate, by simulation of its requests.

Closed forms rank thousands of candidates (`plan_search`). They treat waits as means, which is not enough where prompts
are unequal, outputs are short, or queues are nearly full. Therefore the finalists serve drawn requests one by one in
the event loop of `simulation`, and a plan reports what the loop shows.

Four things make a short run enough:

- It starts in the steady state. At time 0, every decode replica has the sequences that it would have in the long run.
  Long outputs are met more often (`steady_requests`). Some prompts wait as well.
- All candidates and rates use the same draws. Their sample means are exact.
- Of many equal replicas, a few are simulated with their share of the requests.
- Requests count if they arrive after the first waits have passed, and before the last ones would see an emptying server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.physics.engine import Engine
from steptime.physics.layout import Layout
from steptime.planning.plan_as_traffic import (
    PoolLike,
    decode_policy,
    longest_context,
    prefill_policy,
    skipped_tokens,
    within_context,
    workload_prompts,
)
from steptime.planning.session_result import SessionRun
from steptime.planning.steady_state import MOST_LOADED, mean_context
from steptime.simulation.loop_state import BUSY, CLOCK, DONE, Replicas
from steptime.simulation.replica_pools import Server, serve
from steptime.simulation.run_metrics import MOST_GROWTH, PERCENTILES, in_flight_growth, queue_growth
from steptime.simulation.scheduling_policy import Policy
from steptime.simulation.simulator import pipeline_delay_seconds, pool_server, transfer_seconds, visible_first_and_last
from steptime.workload.traffic import Traffic
from steptime.workload.workload import NONE, Slo, Speculation, Workload, decode_steps

# Requests of a run: the fewest, and the most that are simulated of many equal replicas.
LEAST_REQUESTS, MOST_REQUESTS = 2000, 6000
# Most requests in flight, waiting ones included, over the slots of all replicas.
WAITING = 1.5
# Most replicas that are simulated of many equal ones, and sequences in them below which there may be more: a request finds a
# free slot among many replicas of few sequences more often than among few.
MOST_REPLICAS, FEW_SEQUENCES = 8, 640
# Sequences of a decode replica from which a part of it stands for the whole: many sequences hardly differ from their mean.
PART_SEQUENCES = 2048
# Pipelines run each step of each micro-batch. Output tokens below which their runs may have more replicas, and more requests
# than a few.
FEW_PIPELINE_TOKENS, FEW_REQUESTS = 2_000_000, 500
# Mean lifetimes of a request for which requests arrive, and with very many in flight.
LIFETIMES, FEWEST_LIFETIMES = 4.0, 2.0
# Mean times from arrival to last token that a run must last at least.
LEAST_SOJOURNS = 1.0
# Seconds between requests that never meet.
QUIET_GAP = 1e4
# Share of the arrivals that does not count at the start, and lifetimes at the end.
START_SHARE, END_LIFETIMES = 0.1, 1.0
# Share of the slots, or of the cache, in use on average from which requests wait for them.
NEARLY_FULL = 0.85
# Relative accuracy of the rate, and factor of the first steps towards it.
ACCURACY, STRIDE = 0.02, 1.1
# Most runs of one candidate.
MOST_RUNS = 12
# The winner is confirmed with other draws: seeds, output tokens, and the range of factors on the length of a run. Queues
# of short outputs take the most lifetimes to settle, and theirs are the quickest runs.
CONFIRM_SEEDS, CONFIRM_TOKENS, CONFIRM_FACTORS = (1000, 2000), 3_000_000, (3.0, 20.0)
# The smallest factor where a replica is a pipeline.
PIPELINE_FACTOR = 1.0
# At a rate higher by this factor, no figure may be further beyond its limit than this ratio. The mean TTFT may rise by the
# third number: where a queue is so steep, no run predicts another one.
CONFIRM_ABOVE, CONFIRM_WORST, STEEP_TTFT = 1.05, 1.5, 2.5
# Ratio of the first draws beyond which no other draws are tried: those of draws differ by some 3 %.
FAR_BEYOND = 1.07
# Sequences at the start of the run at that rate, over those at the confirmed one. They must become fewer, apart from chance.
CONFIRM_START, CHANCE_GROWTH = 1.4, 0.01
# Runs in which means must settle, and the ratio to those at the start up to which they have.
SETTLING_RUNS, UNSETTLED = 4, 1.25
# Prompts that wait at the start, over those that wait or are processed in the long run: in a pass that takes all which
# came during the last one, a prompt waits for half a pass on average, and two thirds of those present are in the pass.
PRESENT = 2 / 3
# Where a rate is not confirmed, it falls by a factor between the root and the square of this one, at most this many times.
# Where the slope is known from two misses, it may fall by the fourth power.
CONFIRM_FALL, CONFIRM_TRIES = 0.975, 20
# Ratio of the lowest rate that is not confirmed to the highest one that is, below which no rate between them is tried. Where
# a power law through both says that the highest rate is within its root, none is tried either.
CONFIRM_ACCURACY = 1.025
# Least exponent of a figure in the rate that is assumed.
CONFIRM_SLOPE = 0.3


class Draws(NamedTuple):
    """Draws of unit mean, common to all candidates: gaps between arrivals, and deviates of input and output lengths."""

    gaps: Any
    inputs: Any
    outputs: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What serves: the model on a system, and the pools of a plan, of which the last one decodes.

    The prefill pool may be on a second system.
    """

    model: Model
    system: System
    engine: Engine
    workload: Workload
    pools: tuple[PoolLike, ...]
    speculation: Speculation = NONE
    prefill_system: System | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The figures of one run.

    `ttft` and `tpot` [s] are those at the percentile of the limits, next to their means. `batch` counts the sequences
    that decode in a replica, on average. `busy` is the share of time in which each pool works. `worst` is the largest
    ratio of a figure to its limit: at most 1 if the run meets all of them, infinite if a queue grows. `binding` names
    that figure. `growth` is the share of the requests that came and did not end, after the start. `session` is what turns of
    sessions found in the prefix cache.
    """

    rate: float
    ttft: float
    tpot: float
    mean_ttft: float
    mean_tpot: float
    batch: float
    busy: tuple[float, ...]
    worst: float
    binding: str = ""
    growth: float = 0.0
    session: SessionRun | None = None


def draw(workload: Workload, requests: int, seed: int) -> Draws:
    """Draw the arrivals and lengths of requests.

    Args:
        workload: Requests.
        requests: Number of requests.
        seed: Random seed.

    Returns:
        Draws whose sample means are those of the workload.
    """
    random = np.random.default_rng(seed)
    gaps = random.exponential(size=requests)
    prompts = workload_prompts(workload)
    inputs = lengths(random.standard_normal(requests), float(prompts.fresh + prompts.skipped), float(workload.input_spread))
    outputs = lengths(random.standard_normal(requests), float(workload.output_tokens), float(workload.output_spread))
    return Draws(gaps / np.mean(gaps), inputs, outputs)


def lengths(normal: Any, mean: float, spread: float) -> Any:
    """Return log-normal lengths, whole numbers of at least 1 token.

    Args:
        normal: Standard normal deviates.
        mean: Mean [tokens].
        spread: Standard deviation over the mean.

    Returns:
        Tokens, of the shape of `normal`.

    >>> lengths(np.array([-1.0, 0.0, 1.0]), 100.0, 0.0).tolist(), lengths(np.array([-1.0, 0.0, 1.0]), 100.0, 0.5).tolist()
    ([100, 100, 100], [58, 93, 149])
    """
    if spread == 0 or not len(normal):
        return np.full(len(normal), max(1, round(mean)), dtype=np.int64)
    sigma = math.sqrt(math.log1p(spread**2))
    raw = np.exp(sigma * normal)
    # The sample has the mean of the distribution, so that the load of a run is the one asked for.
    return np.maximum(1, np.rint(raw * (mean / np.mean(raw)))).astype(np.int64)


def steady_requests(workload: Workload, count: int, longest: float, seed: int) -> Traffic:
    r"""Draw the requests that decode at a time in the steady state.

    The output of such a request has the density $o f(o) / E[O]$, because long outputs are met for longer. The request has
    made a uniform share of it.

    Args:
        workload: Requests.
        count: Number of requests.
        longest: Longest context [tokens].
        seed: Random seed.

    Returns:
        Requests that arrive at 0 s: the context so far as input, and the tokens that are left as output.
    """
    random = np.random.default_rng(seed)
    inputs = lengths(random.standard_normal(count), float(workload.input_tokens), float(workload.input_spread))
    sigma = math.sqrt(math.log1p(float(workload.output_spread) ** 2))
    # Weighting a log-normal density by its argument moves its logarithm by the variance.
    outputs = float(workload.output_tokens) * np.exp(sigma * random.standard_normal(count) + sigma**2 / 2)
    progress = outputs * random.random(count)
    context = np.minimum(np.rint(inputs + progress), longest - 1)
    remaining = np.clip(np.rint(outputs - progress), 1, longest - context)
    return Traffic(arrival=np.zeros(count), inputs=context.astype(np.int64), outputs=remaining.astype(np.int64))


class Loop:
    """Runs of one deployment at any rate, with the step times of its pools sampled once.

    Args:
        deployment: What serves.
        rate: Expected request rate of the deployment [requests/s], which gives the length of a run.
        lifetime: Expected lifetime of a request [s].
        seed: Random seed.
        factor: Factor on the length of a run.
        memo: Step times and draws that runs of other deployments share.
    """

    # Factor on the rate of the run that confirms it from above.
    above = CONFIRM_ABOVE

    def __init__(
        self,
        deployment: Deployment,
        rate: float,
        lifetime: float,
        *,
        seed: int = 0,
        factor: float = 1.0,
        memo: dict[Any, Any] | None = None,
    ) -> None:
        self.deployment, self.lifetime, self.seed = deployment, lifetime, seed
        model, system, engine = deployment.model, deployment.system, deployment.engine
        server = deployment.pools[-1]
        reader = deployment.pools[0] if len(deployment.pools) > 1 else None
        self.prompts = workload_prompts(deployment.workload)
        # Closed forms of a nearly full queue have any wait, for which a run need not last longer.
        in_flight = min(max(rate * lifetime, 1.0), WAITING * server.max_num_seqs * int(server.layout.replicas))
        self.lifetime = in_flight / rate
        lifetimes = factor * min(LIFETIMES, max(FEWEST_LIFETIMES, MOST_REQUESTS / in_flight))

        # A few of many equal replicas show the same queues; each gets its share of the requests.
        largest_count, least = factor * MOST_REQUESTS, factor * LEAST_REQUESTS
        if int(server.layout.pp) > 1:
            least = min(least, max(FEW_PIPELINE_TOKENS / float(deployment.workload.output_tokens), FEW_REQUESTS))
        replicas = int(server.layout.replicas)
        most_replicas = max(MOST_REPLICAS, int(self._few_sequences(lifetimes) * replicas / in_flight))
        enough = replicas * min(1.0, largest_count / (lifetimes * in_flight))
        server_replicas = min(max(1, math.ceil(enough)), most_replicas)
        whole_share = server_replicas / replicas
        self.readers = 0 if reader is None else max(1, math.ceil(int(reader.layout.replicas) * whole_share - 1e-9))
        self.parts = 1 if reader is None or int(server.layout.pp) > 1 else max(1, server.max_num_seqs // PART_SEQUENCES)
        server_replicas = min(server_replicas, max(1, round(enough * self.parts)))
        self.share = server_replicas / (replicas * self.parts)
        self.read_share = self.share if reader is None else self.readers / int(reader.layout.replicas)
        # Few different counts: draws and step times are shared.
        self.count = int(2 ** (math.ceil(4 * math.log2(max(least, lifetimes * in_flight * self.read_share))) / 4))
        memo = {} if memo is None else memo
        key = ("draws", deployment.workload, self.count, seed)
        if key not in memo:
            memo[key] = draw(deployment.workload, self.count, seed)
        self.draws = memo[key]
        self.longest = longest_context(deployment.workload, model)
        model = replace(model, max_context=max(float(model.max_context), float(self.longest)))
        self.inputs, self.outputs = within_context(self.draws.inputs, self.draws.outputs, self.longest)

        # Step times depend on the range of lengths, not on the rate.
        sample = Traffic(arrival=np.zeros(self.count), inputs=self.inputs, outputs=self.outputs)
        policy = decode_policy(
            server, self.prompts.fresh, has_prefill_pool=reader is not None, speculation=deployment.speculation
        )

        def pool(layout: Layout, policy: Policy, replicas: int, second: System | None = None) -> Server:
            # More slots than asked for make the same step times serve several candidates.
            seats = 2 ** math.ceil(math.log2(policy.max_num_seqs))
            mixes = reader is None
            role = (mixes, second is None)
            key = ("pace", replace(layout, replicas=1), seats, policy.max_num_batched_tokens, policy.chunk, role)
            if key not in memo:
                wide = replace(policy, max_num_seqs=seats)
                memo[key] = pool_server(
                    model, second or system, engine, sample, layout, wide, replicas, check=False, has_mixed_steps=mixes
                )
            return Server(
                replace(memo[key].policy, max_num_seqs=policy.max_num_seqs, chunk=policy.chunk), memo[key].pace, replicas
            )

        self.whole_server = pool(server.layout, policy, server_replicas)
        self.server = part_of_server(self.whole_server, self.parts)
        self.reader: Server | None = None
        self.sent: Callable[[Any], Any] | None = None
        if reader is not None:
            policy = prefill_policy(reader, self.prompts.fresh, deployment.speculation)
            self.reader = pool(reader.layout, policy, self.readers, deployment.prefill_system)
            self.sent = transfer_seconds(
                model, system, server.layout, reader.layout, self.reader, drafts=deployment.speculation.drafts,
                prefill_system=deployment.prefill_system,
            )  # fmt: skip

    def run(
        self,
        rate: float,
        slo: Slo,
        percentile: str,
        tpot: float,
        ttft: float = 0.0,
        *,
        always_decode: bool = False,
        is_check: bool = False,
    ) -> Run:
        """Serve the requests at a rate.

        Args:
            rate: Rate of the whole deployment [requests/s].
            slo: Limits.
            percentile: Percentile of the limits: "mean", "p50", "p90", "p95" or "p99".
            tpot: Expected time per output token [s], which gives the sequences at the start.
            ttft: Expected time to first token [s], which gives the prompts that wait at the start.
            always_decode: Decode even where prompts are already too late, for figures that enter a mean.
            is_check: Stop as soon as the limit on TTFT is certainly missed; the figures then are infinite.

        Returns:
            The figures.
        """
        arrival = np.cumsum(self.draws.gaps) / (rate * self.read_share)
        waiting = min(int(PRESENT * rate * self.read_share * ttft), self.count)
        traffic = Traffic(
            arrival=np.concatenate([np.zeros(waiting), arrival]),
            inputs=np.concatenate([self.inputs[self.count - waiting :], self.inputs]),
            outputs=np.concatenate([self.outputs[self.count - waiting :], self.outputs]),
        )
        steps = float(decode_steps(self.deployment.workload, self.deployment.speculation))
        accepted = self.server.policy.acceptance_length
        at_start = int(min(rate * self.share * steps * accepted * tpot, self.server.policy.max_num_seqs * self.server.replicas))
        longest = min(float(self.longest), float(self.server.policy.kv_tokens))
        started = steady_requests(self.deployment.workload, at_start, longest, self.seed + 1)
        skipped = skipped_tokens(self.prompts, traffic.inputs)
        is_missed = TooLate(self._counted(traffic.arrival), slo.ttft, percentile)
        settings: dict[str, Any] = {"stop": is_missed} if is_check and math.isfinite(slo.ttft) else {}
        if self.reader is None:
            served, rules, pool = serve(
                joined_traffic(started, traffic), self.server.policy, self.server.pace, replicas=self.server.replicas,
                cached=np.concatenate([started.inputs, skipped]), **settings,
            )  # fmt: skip
            if is_missed.is_certain:
                return _missed_run(rate, tpot)
            requests, ends = served[len(started) :], served["finish"][: len(started)]
            queue = ("serve", requests["arrival"], requests["scheduled"], rules.seats * self.server.replicas)
            return self._figures(requests, ends, [queue], (busy_share(pool),), rate, slo, percentile)
        requests, prefill_queue, busy = self._prefill(traffic, skipped, **settings)
        if is_missed.is_certain:
            return _missed_run(rate, tpot)
        # Prompts that are already too late need no decode.
        late = _percentile(percentile, (requests["first"] - requests["arrival"])[self._counted(requests["arrival"])]) / slo.ttft
        if late > 1 and not always_decode:
            first = late * slo.ttft
            return Run(
                rate=rate, ttft=first, tpot=tpot, mean_ttft=first, mean_tpot=tpot, batch=0.0, busy=(busy, 0.0),
                worst=math.inf if queue_growth(*prefill_queue[1:]) else late, binding="first token",
            )  # fmt: skip
        requests, ends, decoded, decode_busy = self._decode(requests, started)
        return self._figures(requests, ends, [prefill_queue, decoded], (busy, decode_busy), rate, slo, percentile)

    def quiet_ttft(self, percentile: str) -> float:
        """Return the TTFT of requests that are alone, which no rate can shorten.

        Args:
            percentile: Percentile of the limits.

        Returns:
            Seconds at the percentile.
        """
        pool = self.reader or self.server
        traffic = Traffic(
            arrival=QUIET_GAP * np.arange(self.count, dtype=np.float64),
            inputs=self.inputs,
            outputs=np.minimum(self.outputs, 1),
        )
        requests, _, _ = serve(traffic, pool.policy, pool.pace, cached=skipped_tokens(self.prompts, self.inputs))
        done = requests["status"] == DONE
        begins = requests["first"] + pipeline_delay_seconds(requests, pool)
        return _percentile(percentile, (begins - requests["arrival"])[done]) if np.any(done) else math.inf

    def _few_sequences(self, lifetimes: float) -> float:
        """Return the sequences in flight below which more replicas than usual are simulated."""
        tokens = lifetimes * float(self.deployment.workload.output_tokens)
        is_pipeline = int(self.deployment.pools[-1].layout.pp) > 1
        return min(FEW_SEQUENCES, FEW_PIPELINE_TOKENS / tokens) if is_pipeline else FEW_SEQUENCES

    def _what_is_full(self, batch: float) -> str:
        """Return why the queue of one pool grows: for slots, for cache, or for prefill between decode steps."""
        policy = self.server.policy
        if batch >= NEARLY_FULL * policy.max_num_seqs:
            return "slots"
        cached = batch * float(mean_context(self.deployment.workload))
        return "memory" if cached >= NEARLY_FULL * policy.kv_tokens else "prompt queue"

    def _load(self, batch: float) -> float:
        """Return the load of decode at a batch: the relative time that a step gains, over the relative gain of its batch."""
        last = len(self.server.pace.decode) - 1
        low = min(max(1, int(batch)), last)
        high = min(math.ceil(1.1 * low), last)
        if high <= low:
            return 0.0
        context = float(mean_context(self.deployment.workload))
        first, second = (float(self.server.pace.seconds(size, size * context)) for size in (low, high))
        return (second / first - 1) / (high / low - 1)

    def _counted(self, arrival: Any) -> Any:
        """Return which requests count: those after the start and before the end of the arrivals."""
        end = float(arrival[-1])
        counted = (arrival > START_SHARE * end) & (arrival < end - END_LIFETIMES * self.lifetime)
        return counted if np.count_nonzero(counted) >= LEAST_REQUESTS / 10 else arrival > START_SHARE * end

    def _prefill(self, traffic: Traffic, skipped: Any, **settings: Any) -> tuple[Any, Any, float]:
        """Return requests after the prefill pool, its queue, and the share of time in which it works."""
        assert self.reader is not None
        only = replace(traffic, outputs=np.minimum(traffic.outputs, 1))
        requests, rules, pool = serve(
            only, self.reader.policy, self.reader.pace, replicas=self.reader.replicas, cached=skipped, **settings
        )
        requests["outputs"] = traffic.outputs
        queue = ("prefill", requests["arrival"], requests["scheduled"], rules.seats * self.reader.replicas)
        return requests, queue, busy_share(pool)

    def _decode(self, requests: Any, started: Traffic) -> tuple[Any, Any, Any, float]:
        """Return requests after the decode pool, the ends of those of the start, its queue, and its share of time at work."""
        assert self.sent is not None
        # A smaller share of the decode replicas may be simulated: prompts go to them in turn.
        if self.share < self.read_share:
            turns = np.floor(np.arange(len(requests) + 1) * (self.share / self.read_share))
            requests = requests[np.diff(turns) > 0]
        go_on = np.flatnonzero((requests["status"] == DONE) & (requests["outputs"] > 1))
        moved_at = (requests["finish"] + self.sent(requests))[go_on]
        order = np.argsort(moved_at, kind="stable")
        go_on, moved_at = go_on[order], moved_at[order]
        moved = Traffic(arrival=moved_at, inputs=requests["inputs"][go_on], outputs=requests["outputs"][go_on])
        both = joined_traffic(started, moved)
        pace = replace(self.server.pace, before=0.0, before_token=0.0)
        served, rules, pool = serve(both, self.server.policy, pace, replicas=self.server.replicas, cached=both.inputs)
        ends, served = served["finish"][: len(started)], served[len(started) :]
        requests["finish"][go_on], requests["preempted"][go_on], requests["status"][go_on] = (
            served["finish"], served["preempted"], served["status"],
        )  # fmt: skip
        requests["moved"][go_on], requests["resumed"][go_on] = moved_at, served["scheduled"]
        return requests, ends, ("decode", moved_at, served["scheduled"], rules.seats * self.server.replicas), busy_share(pool)

    def _visible(self, requests: Any) -> tuple[Any, Any]:
        """Return the times of the first and the last token that users see [s]."""
        late = pipeline_delay_seconds(requests, self.reader or self.server)
        return visible_first_and_last(requests, self.server.pace, late, self.server.policy.acceptance_length)

    def _figures(
        self, served: Any, ends: Any, queues: Any, busy: tuple[float, ...], rate: float, slo: Slo, percentile: str
    ) -> Run:
        """Return the figures of served requests. `ends` are the times at which those of the start end [s]."""
        begins, ends_at = self._visible(served)
        arrival, outputs = served["arrival"].copy(), served["outputs"].copy()
        counted, share = self._counted(arrival), PERCENTILES[percentile]
        done = counted & (served["status"] == DONE)
        if np.count_nonzero(done) < min(share, 0.99) * np.count_nonzero(counted) or not np.any(done):
            return Run(rate=rate, ttft=math.inf, tpot=math.inf, mean_ttft=math.inf, mean_tpot=math.inf, batch=0.0, busy=busy,
                       worst=math.inf, binding="memory")  # fmt: skip
        ttft = (begins - arrival)[done]
        several = done & (outputs > 1)
        decoding = (ends_at - begins)[several]
        tpot = decoding / (outputs[several] - 1) if len(decoding) else np.zeros(1)
        arrivals = arrival[counted]
        span = float(arrivals[-1] - arrivals[0]) if len(arrivals) > 1 else math.inf
        first, token = _percentile(percentile, ttft), _percentile(percentile, tpot)
        # A run that is shorter than the times that it measures has not reached a steady state.
        sojourn = float(np.mean((ends_at - arrival)[done]))
        is_short = float(arrival[-1]) < LEAST_SOJOURNS * sojourn
        grows = next((role for role, came, seated, seats in queues if len(came) and queue_growth(came, seated, seats)), "")
        batch = float(np.sum(decoding)) / span / self.server.replicas
        ratios = {"first token": first / slo.ttft, "speed": token / slo.tpot, "saturation": self._load(batch) / MOST_LOADED}
        if grows:
            causes = {"prefill": "prefill rate", "serve": self._what_is_full(batch), "decode": "saturation"}
            ratios[causes[grows]] = math.inf
        elif is_short:
            ratios["prompt queue"] = math.inf
        binding = max(ratios, key=lambda name: ratios[name])
        return Run(
            rate=rate, ttft=first, tpot=token, mean_ttft=float(np.mean(ttft)), mean_tpot=float(np.mean(tpot)),
            batch=batch * self.parts, busy=busy, worst=ratios[binding], binding=binding,
            growth=in_flight_growth(
                served["arrival"], np.append(served["finish"], ends), START_SHARE * float(served["arrival"].max())
            ),
        )  # fmt: skip


class TooLate:
    """Whether enough counted requests are late that a run certainly misses its limit on TTFT.

    Args:
        counted: Which requests count.
        limit: Limit on TTFT [s].
        percentile: Percentile of the limit.
    """

    def __init__(self, counted: Any, limit: float, percentile: str) -> None:
        self.counted, self.limit, self.is_certain = counted, limit, False
        self.share = None if percentile == "mean" else PERCENTILES[percentile]

    def __call__(self, served: Any) -> bool:
        """Return whether the limit is missed, for any times of the requests without a first token.

        Args:
            served: Requests of the run, those that count last.

        Returns:
            True or false.
        """
        requests = served[len(served) - len(self.counted) :]
        ttft = (requests["first"] - requests["arrival"])[self.counted]
        count = len(ttft)
        if self.share is None:
            self.is_certain = bool(np.nansum(ttft) > self.limit * count)
        else:
            # A quantile lies between two values: two more are enough in any case.
            self.is_certain = bool(np.count_nonzero(ttft > self.limit) > (1 - self.share) * count + 2)
        return self.is_certain


def _missed_run(rate: float, tpot: float) -> Run:
    """Return a run that was stopped because its limit on TTFT is missed."""
    return Run(
        rate=rate, ttft=math.inf, tpot=tpot, mean_ttft=math.inf, mean_tpot=tpot, batch=0.0, busy=(), worst=math.inf,
        binding="first token",
    )  # fmt: skip


def part_of_server(server: Server, parts: int) -> Server:
    """Return a pool whose replicas have a part of the slots and of the cache, with the step times of the whole.

    Args:
        server: Pool that decodes.
        parts: Number of equal parts of a replica.

    Returns:
        The pool.
    """
    if parts == 1:
        return server
    policy = replace(
        server.policy, max_num_seqs=server.policy.max_num_seqs // parts, kv_tokens=float(server.policy.kv_tokens) / parts
    )
    pace = replace(server.pace, decode=server.pace.decode[::parts], context=parts * server.pace.context[::parts])
    return Server(policy, pace, server.replicas)


def _percentile(percentile: str, values: Any) -> float:
    """Return the mean or a quantile of values."""
    return float(np.mean(values) if percentile == "mean" else np.quantile(values, PERCENTILES[percentile]))


def joined_traffic(first: Traffic, second: Traffic) -> Traffic:
    """Return the requests of both, in this order.

    Args:
        first: Requests.
        second: Further requests.

    Returns:
        The traffic.
    """
    return Traffic(
        arrival=np.concatenate([first.arrival, second.arrival]),
        inputs=np.concatenate([first.inputs, second.inputs]),
        outputs=np.concatenate([first.outputs, second.outputs]),
    )


def busy_share(pool: Replicas) -> float:
    """Return the share of time in which the replicas of a pool work.

    Args:
        pool: Replicas after a run.

    Returns:
        Share.
    """
    return float(np.sum(pool.seconds[:, BUSY]) / np.sum(np.maximum(pool.seconds[:, CLOCK], 1e-12)))


def rates_to_try(
    first: float, worst: Callable[[float], float], *, good: tuple[float, float] = (0.0, 0.0), accuracy: float = ACCURACY
) -> Iterator[float]:
    """Yield rates until the highest one within the limits is enclosed.

    Args:
        first: First rate.
        worst: Function from a rate to the largest ratio of a figure to its limit.
        good: A lower rate that is known to meet the limits, and its ratio.
        accuracy: Relative accuracy.

    Yields:
        Rates to run.
    """
    (low, low_ratio), (high, high_ratio), now = good, (math.inf, math.inf), first
    bends, last = False, None
    for _ in range(MOST_RUNS):
        yield now
        ratio = worst(now)
        # A power law that misses the limit twice on one side does not fit: from then on, halving is safe.
        bends = bends or (bool(low) and math.isfinite(high) and (ratio <= 1) == last)
        last = ratio <= 1
        if ratio <= 1:
            low, low_ratio = now, ratio
        else:
            high, high_ratio = now, ratio
        if low and math.isfinite(high):
            if high / low <= 1 + accuracy:
                return
            now = math.sqrt(low * high) if bends else _between(low, low_ratio, high, high_ratio, accuracy)
        elif low:
            now = low * min(max(1 / max(ratio, 1e-9), STRIDE), STRIDE**4)
        else:
            now = high / (STRIDE**3 if math.isinf(ratio) else min(max(ratio, STRIDE), STRIDE**4))


def _between(low: float, low_ratio: float, high: float, high_ratio: float, accuracy: float) -> float:
    """Return where a power law through both rates is at its limit; near one of them, where the bracket closes on it."""
    middle = math.sqrt(low * high)
    if high / low <= (1 + accuracy) ** 2:
        return middle
    return float(min(max(_at_limit(low, low_ratio, high, high_ratio), low * (1 + accuracy)), high / (1 + accuracy)))


def _at_limit(low: float, low_ratio: float, high: float, high_ratio: float) -> float:
    """Return where a power law through two rates is at its limit; their geometric mean where none crosses it."""
    if low_ratio <= 0 or not 1 < high_ratio < math.inf:
        return math.sqrt(low * high)
    return float(low * (high / low) ** (-math.log(low_ratio) / math.log(high_ratio / low_ratio)))


def highest_rate(
    loop: Loop, slo: Slo, percentile: str, first: float, tpot: float, ttft: float = 0.0, *, least: float = 0.0
) -> Run | None:
    """Return the run at the highest rate within the limits; `binding` names what a higher one would miss.

    Args:
        loop: Deployment.
        slo: Limits.
        percentile: Percentile of the limits.
        first: First rate [requests/s].
        tpot: Expected time per output token [s].
        ttft: Expected time to first token [s].
        least: Rate that must be exceeded [requests/s].

    Returns:
        The run; None where no rate above `least` meets the limits.
    """
    runs: dict[float, Run] = {}

    def worst(rate: float) -> float:
        return runs[rate].worst

    if least:
        runs[least] = loop.run(least, slo, percentile, tpot, ttft, is_check=True)
        if runs[least].worst > 1:
            return None
        first = max(first, least * STRIDE)
    for rate in rates_to_try(first, worst, good=(least, runs[least].worst if least else 0.0)):
        runs[rate] = loop.run(rate, slo, percentile, tpot, ttft)
        if runs[rate].worst <= 1:
            tpot, ttft = runs[rate].mean_tpot, runs[rate].mean_ttft
        elif len(runs) == 1 and loop.quiet_ttft(percentile) > slo.ttft:
            return None
    good = [run for run in runs.values() if run.worst <= 1]
    if not good:
        return None
    best = max(good, key=lambda run: run.rate)
    above = min((run for run in runs.values() if run.rate > best.rate), key=lambda run: run.rate, default=best)
    return replace(best, binding=above.binding)


def confirmed(loops: Sequence[Loop], run: Run, slo: Slo, percentile: str, least: float = 0.0) -> Run | None:
    """Return the mean of runs with other draws, at a rate that they confirm.

    What is best among many on the same draws was partly lucky with them. Near saturation, a few percent of load decide
    whether a queue grows. Therefore a slightly higher rate must not be far beyond the limits.

    Args:
        loops: The deployment with several draws, none of which chose it.
        run: Run at the highest rate.
        slo: Limits.
        percentile: Percentile of the limits.
        least: Rate that must be exceeded [requests/s].

    Returns:
        The mean run; None where no rate near that of `run` and above `least` is confirmed.
    """
    rate, misses, best, binding = run.rate, list[tuple[float, float]](), None, run.binding
    missed_run = run
    for _ in range(CONFIRM_TRIES):
        if rate <= least:
            break
        mean_run, ratio = _confirmation(loops, run, rate, slo, percentile)
        if ratio <= 1:
            best = mean_run
        else:
            misses.append((rate, ratio))
            missed_run, binding = mean_run, mean_run.binding
        if best is None:
            rate *= _fall(misses)
        elif not misses or misses[-1][0] <= best.rate * CONFIRM_ACCURACY:
            break
        else:
            rate = _at_limit(best.rate, best.worst, misses[-1][0], missed_run.worst)
            if rate <= best.rate * math.sqrt(CONFIRM_ACCURACY):
                break
    return best and replace(best, binding=binding)


def _confirmation(loops: Sequence[Loop], run: Run, rate: float, slo: Slo, percentile: str) -> tuple[Run, float]:
    """Return the mean of runs at a rate, and its ratio.

    The ratio is at most 1 if the runs, and one at a higher rate, confirm the rate. Otherwise `binding` names why.
    """
    tpot, ttft = run.mean_tpot, run.mean_ttft
    for _ in range(SETTLING_RUNS):
        # A run that is far from the limits needs no other.
        first = loops[0].run(rate, slo, percentile, tpot, ttft, always_decode=True)
        other_loops = loops[1:] if first.worst <= FAR_BEYOND else ()
        mean = _mean([first, *(loop.run(rate, slo, percentile, tpot, ttft, always_decode=True) for loop in other_loops)])
        if mean.worst > 1:
            return mean, max(mean.worst, 1 + mean.growth)
        if mean.growth > MOST_GROWTH:
            return replace(mean, binding="saturation"), 1 + mean.growth
        # A run that starts with fewer requests than it ends with has not settled: the next one starts with more.
        if mean.mean_ttft <= UNSETTLED * ttft and mean.mean_tpot <= UNSETTLED * tpot:
            break
        tpot, ttft = max(tpot, mean.mean_tpot), max(ttft, mean.mean_ttft)
    else:
        return replace(mean, binding="saturation"), UNSETTLED
    # Near saturation, the number of sequences settles over many lifetimes. Where it falls, it settles below that at the start.
    above = loops[0].run(loops[0].above * rate, slo, percentile, CONFIRM_START * tpot, ttft)
    queue = "prompt queue" if len(mean.busy) == 1 else "prefill rate"
    ratio, binding = max(
        (above.worst / CONFIRM_WORST, above.binding),
        (above.mean_ttft / (STEEP_TTFT * mean.mean_ttft), queue),
        (1 + above.growth - CHANCE_GROWTH, "saturation"),
    )
    return replace(mean, binding=binding), ratio


def _fall(misses: Sequence[tuple[float, float]]) -> float:
    """Return the factor on the last rate, by the slope of the ratio between the last two."""
    rate, ratio = misses[-1]
    if math.isinf(ratio):
        return CONFIRM_FALL**2
    slope, largest_fall = CONFIRM_SLOPE, CONFIRM_FALL**2
    if len(misses) > 1 and math.isfinite(misses[-2][1]):
        slope = max(math.log(misses[-2][1] / ratio) / math.log(misses[-2][0] / rate), CONFIRM_SLOPE)
        largest_fall = CONFIRM_FALL**4
    return float(min(max(ratio ** (-1 / slope), largest_fall), math.sqrt(CONFIRM_FALL)))


def _mean(runs: Sequence[Run]) -> Run:
    """Return the mean of runs at one rate."""
    names = ("ttft", "tpot", "mean_ttft", "mean_tpot", "batch", "worst", "growth")
    figures: dict[str, Any] = {name: sum(getattr(run, name) for run in runs) / len(runs) for name in names}
    busy = tuple(sum(shares) / len(runs) for shares in zip(*(run.busy for run in runs), strict=True))
    return replace(runs[0], busy=busy, **figures)
