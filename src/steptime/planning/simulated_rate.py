r"""Runs of a candidate that serve drawn requests at a rate.

Closed forms rank thousands of candidates (`plan_search`). They treat waits as means, which is not enough where prompts
are unequal, outputs are short, or queues are nearly full. Therefore the finalists serve drawn requests one by one in
the event loop of `simulation`, and a plan reports what the loop shows. `rate_curve` finds their highest rates.

Five things make a short run enough:

- It starts in the steady state. At time 0, every decode replica has the sequences that it would have in the long run.
  Long outputs are met more often (`steady_requests`). Some prompts wait as well.
- All candidates and rates use the same draws. Their sample means are exact.
- Of many equal replicas, a few are simulated with their share of the requests.
- Where a replica has thousands of sequences, each simulated one stands for several (`coarse_server`).
- Requests count if they arrive after the first waits have passed, and before the last ones would see an emptying server.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.physics.engine import Engine
from steptime.planning.plan_as_traffic import (
    PoolLike,
    decode_policy,
    longest_context,
    prefill_policy,
    skipped_tokens,
    within_context,
    workload_prompts,
)
from steptime.planning.session_hits import SessionRun
from steptime.planning.steady_state import MOST_LOADED, mean_context
from steptime.simulation.loop_state import BUSY, CLOCK, DONE, Replicas
from steptime.simulation.replica_pools import Server, serve
from steptime.simulation.run_metrics import PERCENTILES, in_flight_growth, queue_growth, standard_error_of_mean
from steptime.simulation.simulator import pipeline_delay_seconds, pool_server, transfer_seconds, visible_first_and_last
from steptime.workload.traffic import Traffic
from steptime.workload.workload import NONE, Slo, Speculation, Workload, decode_steps

# Requests of a run: the fewest, and the most that are simulated of many equal replicas.
LEAST_REQUESTS, MOST_REQUESTS = 2000, 6000
# Prompt tokens whose prefill takes a run as long as an output token. Requests of fewer output tokens than QUICK_TOKENS, prefill
# included, take so little time that a run has more of them, up to a factor.
TOKENS_PER_STEP, QUICK_TOKENS, MOST_QUICK = 128, 256, 2.0
# Most requests in flight, waiting ones included, over the slots of all replicas.
WAITING = 1.5
# Most replicas that are simulated of many equal ones, and sequences in them below which there may be more: a request finds a
# free slot among many replicas of few sequences more often than among few.
MOST_REPLICAS, FEW_SEQUENCES = 8, 640
# Most pipelines that are simulated: their runs have few requests, of which each replica needs those of several lifetimes.
MOST_PIPELINES = 4
# Fewest sequences that are simulated where one stands for several, in a replica and in a data-parallel rank, and fewest decode
# steps of a mean output.
COARSE_SEQUENCES, COARSE_RANK_SEQUENCES, COARSE_STEPS = 2048, 64, 32
# Most sequences for which one stands, and fewest requests of such a run: a queue before prefill has as many as elsewhere.
MOST_PARTS, COARSE_REQUESTS = 64, 8_000
# Pipelines run each step of each micro-batch. Output tokens below which their runs may have more replicas, and more requests
# than a few.
FEW_PIPELINE_TOKENS, FEW_REQUESTS = 2_000_000, 500
# Mean lifetimes of a request for which requests arrive, and with very many in flight.
LIFETIMES, FEWEST_LIFETIMES = 4.0, 2.0
# Mean times from arrival to last token that a run must last at least.
LEAST_SOJOURNS = 1.0
# Fewest random numbers that are drawn at once.
FEWEST_DEVIATES = 4096
# Square of the requests of a queue at the start from which they are put in order beforehand.
MANY_MOVES = 1_000_000
# Seconds between requests that never meet.
QUIET_GAP = 1e4
# Share of the arrivals that does not count at the start, and lifetimes at the end.
START_SHARE, END_LIFETIMES = 0.1, 1.0
# Share of the slots, or of the cache, in use on average from which requests wait for them.
NEARLY_FULL = 0.85
# The winner is confirmed with other draws: seeds, output tokens, and the range of factors on the length of a run. Queues
# of short outputs take the most lifetimes to settle, and theirs are the quickest runs.
CONFIRM_SEEDS, CONFIRM_TOKENS, CONFIRM_FACTORS = (1000, 2000), 3_000_000, (3.0, 20.0)
# The smallest factor where a replica is a pipeline, and where thousands of sequences hardly differ from their mean.
PIPELINE_FACTOR, MANY_FACTOR = 1.0, 2.0
# Factor on the rate of the run that confirms one from above.
CONFIRM_ABOVE = 1.05
# Prompts that wait at the start, over those that wait or are processed in the long run: in a pass that takes all which
# came during the last one, a prompt waits for half a pass on average, and two thirds of those present are in the pass.
PRESENT = 2 / 3


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
    that decode in a replica, on average. `busy` is the share of time in which each pool works. `saturation` does not depend
    on limits: it is at most 1 in a steady state, and infinite if a queue grows; `cause` names what grows. `worst` is the
    largest ratio of a figure to its limit: at most 1 if the run meets all of them. `binding` names that figure. `growth` is
    the share of the requests that came and did not end, after the start. `ttft_above` and `tpot_above` [s] are those at a
    slightly higher rate, 0 if there was no such run. `tpot_error` is the relative standard error of the mean TPOT where limits
    are on means. `session` is what turns of sessions found in the prefix cache.
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
    saturation: float = 0.0
    cause: str = "saturation"
    growth: float = 0.0
    ttft_above: float = 0.0
    tpot_above: float = 0.0
    tpot_error: float = 0.0
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
    shares, for_inputs, for_outputs = deviates(requests, seed)
    gaps, prompts = -np.log1p(-shares), workload_prompts(workload)
    inputs = lengths(for_inputs, float(prompts.fresh + prompts.skipped), float(workload.input_spread))
    outputs = lengths(for_outputs, float(workload.output_tokens), float(workload.output_spread))
    return Draws(gaps / np.mean(gaps), inputs, outputs)


def deviates(count: int, seed: int) -> tuple[Any, Any, Any]:
    """Return random numbers: uniform ones, and two normal ones. More of them begin with the same numbers.

    Args:
        count: How many of each.
        seed: Random seed.

    Returns:
        Arrays of that length.
    """
    uniform, first, second = _deviates(1 << max(count - 1, FEWEST_DEVIATES).bit_length(), seed)
    return uniform[:count], first[:count], second[:count]


@lru_cache(maxsize=16)
def _deviates(count: int, seed: int) -> tuple[Any, Any, Any]:
    streams = [np.random.default_rng((seed, stream)) for stream in range(3)]
    return streams[0].random(count), streams[1].standard_normal(count), streams[2].standard_normal(count)


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
    shares, for_inputs, for_outputs = deviates(count, seed)
    inputs = lengths(for_inputs, float(workload.input_tokens), float(workload.input_spread))
    sigma = math.sqrt(math.log1p(float(workload.output_spread) ** 2))
    # Weighting a log-normal density by its argument moves its logarithm by the variance.
    outputs = float(workload.output_tokens) * np.exp(sigma * for_outputs + sigma**2 / 2)
    progress = outputs * shares
    context = np.minimum(np.rint(inputs + progress), longest - 1)
    remaining = np.clip(np.rint(outputs - progress), 1, longest - context)
    return Traffic(arrival=np.zeros(count), inputs=context.astype(np.int64), outputs=remaining.astype(np.int64))


class Loop:
    """Runs of one deployment at any rate, with the step times of its pools sampled once.

    Args:
        deployment: What serves.
        rate: Expected request rate of the deployment [requests/s], which gives the length of a run.
        lifetime: Expected lifetime of a request [s].
        first: Time to first token in it [s].
        seed: Random seed.
        factor: Factor on the length of a run.
        memo: Step times and draws that runs of other deployments share.
    """

    # Factor on the rate of the run that confirms it from above.
    above = CONFIRM_ABOVE
    # Most sequences for which one stands.
    most_parts = MOST_PARTS

    def __init__(
        self,
        deployment: Deployment,
        rate: float,
        lifetime: float,
        *,
        first: float = 0.0,
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
        replicas, slots = int(server.layout.replicas), WAITING * server.max_num_seqs * int(server.layout.replicas)
        in_flight = min(max(rate * lifetime, 1.0), slots)
        self.parts = self._sequences_for_one(in_flight / replicas)
        if self.parts > 1:
            shorter = min(first, lifetime) + max(lifetime - first, 0.0) / self.parts
            in_flight = min(max(rate * shorter, 1.0), slots / self.parts)
        self.lifetime = in_flight / rate
        lifetimes = factor * min(LIFETIMES, max(FEWEST_LIFETIMES, MOST_REQUESTS / in_flight))

        # A few of many equal replicas show the same queues; each gets its share of the requests.
        largest_count = factor * MOST_REQUESTS
        least = self._fewest_requests(factor)
        usual_replicas = MOST_PIPELINES if int(server.layout.pp) > 1 else MOST_REPLICAS
        most_replicas = max(usual_replicas, int(self._few_sequences(lifetimes) * replicas / in_flight))
        enough = replicas * min(1.0, largest_count / (lifetimes * in_flight))
        server_replicas = min(max(1, math.ceil(enough)), most_replicas)
        whole_share = server_replicas / replicas
        self.readers = 0 if reader is None else max(1, math.ceil(int(reader.layout.replicas) * whole_share - 1e-9))
        self.share = whole_share
        self.read_share = self.share if reader is None else self.readers / int(reader.layout.replicas)
        # Few different counts: draws and step times are shared.
        self.count = int(2 ** (math.ceil(4 * math.log2(max(least, lifetimes * in_flight * self.read_share))) / 4))
        memo = {} if memo is None else memo
        self._draw_requests(memo)
        model = replace(model, max_context=max(float(model.max_context), float(self.longest)))

        # Step times depend on the range of lengths, not on the rate.
        sample = Traffic(arrival=np.zeros(self.count), inputs=self.inputs, outputs=self.outputs)
        policy = decode_policy(
            server, self.prompts.fresh, engine, has_prefill_pool=reader is not None, speculation=deployment.speculation
        )

        sides = [(server.layout, policy, server_replicas, system)]
        if reader is not None:
            reader_policy = prefill_policy(reader, self.prompts.fresh, deployment.speculation)
            sides.append((reader.layout, reader_policy, self.readers, deployment.prefill_system or system))
        pools: list[Server] = []
        for layout, policy, replicas, machine in sides:
            # More slots than asked for make the same step times serve several candidates.
            seats = 2 ** math.ceil(math.log2(policy.max_num_seqs))
            role = (reader is None, machine is system)
            key = ("pace", replace(layout, replicas=1), seats, policy.max_num_batched_tokens, policy.chunk, role)
            if key not in memo:
                wide = replace(policy, max_num_seqs=seats)
                memo[key] = pool_server(
                    model, machine, engine, sample, layout, wide, replicas, prompt_tokens=float(self.prompts.fresh),
                    check=False, has_mixed_steps=reader is None,
                )  # fmt: skip
            fitted = replace(memo[key].policy, max_num_seqs=policy.max_num_seqs, chunk=policy.chunk)
            pools.append(Server(fitted, memo[key].pace, replicas))

        self.whole_server, self.reader = pools[0], pools[1] if reader is not None else None
        self.accepted = self.whole_server.policy.acceptance_length
        self.server = self._coarse_server(in_flight * self.parts / int(server.layout.replicas))
        self.sent: Callable[[Any], Any] | None = None
        if reader is not None and self.reader is not None:
            self.sent = transfer_seconds(
                model, system, server.layout, reader.layout, self.reader, drafts=deployment.speculation.drafts,
                prefill_system=deployment.prefill_system,
            )  # fmt: skip

    def _draw_requests(self, memo: dict[Any, Any]) -> None:
        """Draw the requests, as within the longest context."""
        deployment = self.deployment
        self.longest = longest_context(deployment.workload, deployment.model)
        key = ("draws", deployment.workload, self.count, self.seed)
        if key not in memo:
            draws = draw(deployment.workload, self.count, self.seed)
            memo[key] = draws, *within_context(draws.inputs, draws.outputs, self.longest)
        self.draws, self.inputs, self.outputs = memo[key]
        if self.parts > 1:
            # Where one sequence stands for several, an output takes a whole number of their steps.
            tokens = self.parts * float(deployment.speculation.acceptance)
            further = np.rint(np.rint((self.outputs - 1) / tokens) * tokens)
            self.outputs = 1 + further.astype(np.int64)

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
        if self.parts > 1:
            self.server = self._coarse_server(self._in_flight(rate, tpot))
        arrival = np.cumsum(self.draws.gaps) / (rate * self.read_share)
        begin = self.count - min(int(PRESENT * rate * self.read_share * ttft), self.count)
        present = Traffic(arrival=np.zeros(self.count - begin), inputs=self.inputs[begin:], outputs=self.outputs[begin:])
        traffic = joined_traffic(
            by_length(present, self.reader or self.server),
            Traffic(arrival=arrival, inputs=self.inputs, outputs=self.outputs),
        )
        skipped = skipped_tokens(self.prompts, traffic.inputs)
        is_missed = TooLate(self._counted(traffic.arrival), slo.ttft, percentile)
        settings: dict[str, Any] = {"stop": is_missed} if is_check and math.isfinite(slo.ttft) else {}
        if self.reader is None:
            started = self.started(rate, tpot)
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
        waits = (requests["first"] - requests["arrival"])[self._counted(requests["arrival"])]
        first = _percentile(percentile, waits)
        if first > slo.ttft and not always_decode:
            late, saturation = first / slo.ttft, math.inf if queue_growth(*prefill_queue[1:]) else 0.0
            settled = START_SHARE * float(requests["arrival"].max())
            return Run(
                rate=rate, ttft=first, tpot=tpot, mean_ttft=float(np.mean(waits)), mean_tpot=tpot, batch=0.0, busy=(busy, 0.0),
                worst=max(late, saturation), binding="first token", saturation=saturation, cause="prefill rate",
                growth=in_flight_growth(requests["arrival"], requests["finish"], settled),
            )  # fmt: skip
        requests, ends, decoded, decode_busy = self._decode(requests, self.started(rate, tpot))
        return self._figures(requests, ends, [prefill_queue, decoded], (busy, decode_busy), rate, slo, percentile)

    def started(self, rate: float, tpot: float) -> Traffic:
        """Return the requests that decode at the start of a run.

        Args:
            rate: Rate of the whole deployment [requests/s].
            tpot: Expected time per output token [s].

        Returns:
            Requests, at most as many as there are slots.
        """
        count = self._in_flight(rate, tpot) * self.server.replicas / self.parts
        slots = self.server.policy.max_num_seqs * self.server.replicas
        longest = min(float(self.longest), float(self.server.policy.kv_tokens))
        started = steady_requests(self.deployment.workload, int(min(count, slots)), longest, self.seed + 1)
        return by_length(started, self.server) if self.reader is None else started

    def expected_tpot(self, rate: float, prefill_share: float) -> float:
        """Return the mean time per output token at a rate, which gives the sequences at the start of a run.

        Decode steps take their sampled times.

        Args:
            rate: Rate of the whole deployment [requests/s].
            prefill_share: Share of time for prefill between decode steps at this rate.

        Returns:
            Seconds.
        """
        context = float(mean_context(self.deployment.workload))
        pace = self.server.pace
        end = min(len(pace.decode), self.server.policy.max_num_seqs + 1)
        batch = np.arange(1, end)
        seconds = (pace.decode[1:end] + pace.context[1:end] * batch * context) / self.accepted
        tpot = seconds / (1 - min(prefill_share, MOST_LOADED))
        stays = np.flatnonzero(self._in_flight(rate, tpot) / self.parts <= batch)
        return float(tpot[stays[0] if len(stays) else -1])

    def _in_flight(self, rate: float, tpot: Any) -> Any:
        """Return the sequences of a replica that decode at a rate of the whole deployment, given the time per output token."""
        steps = float(decode_steps(self.deployment.workload, self.deployment.speculation))
        return rate * self.share / self.server.replicas * steps * self.accepted * tpot

    def _coarse_server(self, batch: float) -> Server:
        """Return the pool that decodes, in which each sequence stands for several of a batch of a whole replica."""
        return coarse_server(self.whole_server, self.parts, batch, float(mean_context(self.deployment.workload)))

    def quiet_ttft(self, percentile: str) -> float:
        """Return the TTFT of requests that are alone, which no rate can shorten.

        Args:
            percentile: Percentile of the limits.

        Returns:
            Seconds at the percentile.
        """
        inputs = np.sort(self.inputs)
        if percentile != "mean":
            # A longer prompt is never earlier, so that the quantile follows from two requests. The longest one shows whether
            # the pool rejects some.
            place = PERCENTILES[percentile] * (len(inputs) - 1)
            low_place = int(place)
            low, high, longest = self._alone_ttft(inputs[[low_place, min(low_place + 1, len(inputs) - 1), -1]])
            if math.isfinite(longest):
                return float(low + (place - low_place) * (high - low))
        seconds = self._alone_ttft(inputs)
        done = np.isfinite(seconds)
        return _percentile(percentile, seconds[done]) if np.any(done) else math.inf

    def _alone_ttft(self, inputs: Any) -> Any:
        """Return the TTFT [s] of requests that never meet; infinite where the pool rejects one."""
        pool = self.reader or self.server
        count = len(inputs)
        traffic = Traffic(
            arrival=QUIET_GAP * np.arange(count, dtype=np.float64), inputs=inputs, outputs=np.ones(count, dtype=np.int64)
        )
        requests, _, _ = serve(traffic, pool.policy, pool.pace, cached=skipped_tokens(self.prompts, inputs))
        begins = requests["first"] + pipeline_delay_seconds(requests, pool)
        return np.where(requests["status"] == DONE, begins - requests["arrival"], math.inf)

    def _fewest_requests(self, factor: float) -> float:
        """Return the fewest requests of a run: more of short outputs, and fewer of pipelines, whose runs take longest."""
        output = float(self.deployment.workload.output_tokens)
        if self.parts > 1:
            least = factor * COARSE_REQUESTS
        else:
            length = output + float(self.prompts.fresh) / TOKENS_PER_STEP
            least = max(factor, min(QUICK_TOKENS / length, MOST_QUICK)) * LEAST_REQUESTS
        if int(self.deployment.pools[-1].layout.pp) > 1:
            least = min(least, max(FEW_PIPELINE_TOKENS / output, FEW_REQUESTS))
        return least

    def _sequences_for_one(self, sequences: float) -> int:
        """Return for how many sequences of a replica one stands. Pipelines run each micro-batch as it is."""
        layout, workload = self.deployment.pools[-1].layout, self.deployment.workload
        if int(layout.pp) > 1:
            return 1
        steps = float(decode_steps(workload, self.deployment.speculation))
        enough = max(COARSE_SEQUENCES, COARSE_RANK_SEQUENCES * int(layout.dp))
        return max(1, int(min(sequences / enough, steps / COARSE_STEPS, self.most_parts)))

    def _few_sequences(self, lifetimes: float) -> float:
        """Return the sequences in flight below which more replicas than usual are simulated."""
        tokens = lifetimes * float(self.deployment.workload.output_tokens)
        is_pipeline = int(self.deployment.pools[-1].layout.pp) > 1
        return min(FEW_SEQUENCES, FEW_PIPELINE_TOKENS / tokens) if is_pipeline else FEW_SEQUENCES

    def what_is_full(self, batch: float) -> str:
        """Return why the queue of one pool grows: for slots, for cache, or for prefill between decode steps.

        Args:
            batch: Sequences of a replica that decode.

        Returns:
            "slots", "memory" or "prompt queue".
        """
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

    def _decoding(self, requests: Any, begins: Any, ends: Any) -> Any:
        """Return the seconds from the first to the last token that users see, also where one sequence stands for several."""
        if self.parts == 1:
            return ends - begins
        # Each step of such a sequence stands for several. The wait for a slot and the steps before the first token come once.
        raw, last = visible_first_and_last(
            requests, replace(self.server.pace, answer=0.0), pipeline_delay_seconds(requests, self.reader or self.server)
        )
        joined = np.fmax(raw, requests["resumed"])
        return np.maximum(self.parts * (last - joined) + joined - begins, 0.0)

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
                       worst=math.inf, binding="memory", saturation=math.inf, cause="memory")  # fmt: skip
        ttft = (begins - arrival)[done]
        several = done & (outputs > 1)
        decoding = self._decoding(served, begins, ends_at)[several]
        tpot = decoding / (outputs[several] - 1) if len(decoding) else np.zeros(1)
        arrivals = arrival[counted]
        span = float(arrivals[-1] - arrivals[0]) if len(arrivals) > 1 else math.inf
        first, token = _percentile(percentile, ttft), _percentile(percentile, tpot)
        # A run that is shorter than the times that it measures has not reached a steady state.
        sojourn = float(np.mean((ends_at - arrival)[done]))
        is_short = float(arrival[-1]) < LEAST_SOJOURNS * sojourn
        grows = next((role for role, came, seated, seats in queues if len(came) and queue_growth(came, seated, seats)), "")
        # Times per token contain the wait for a slot of a decode pool, during which a sequence does not decode.
        waits = np.nan_to_num(served["resumed"] - served["moved"])[several]
        decodes = float(np.sum(decoding) - np.sum(waits)) / self.parts / span / self.server.replicas
        batch = min(decodes, float(self.server.policy.max_num_seqs))
        saturation, cause = self._load(batch) / MOST_LOADED, "saturation"
        if grows:
            causes = {"prefill": "prefill rate", "serve": self.what_is_full(batch), "decode": "saturation"}
            saturation, cause = math.inf, causes[grows]
        elif is_short:
            saturation, cause = math.inf, "prompt queue" if self.reader else self.what_is_full(batch)
        worst, binding = max((first / slo.ttft, "first token"), (token / slo.tpot, "speed"), (saturation, cause))
        return Run(
            rate=rate, ttft=first, tpot=token, mean_ttft=float(np.mean(ttft)), mean_tpot=float(np.mean(tpot)),
            batch=batch * self.parts, busy=busy, worst=worst, binding=binding, saturation=saturation, cause=cause,
            tpot_error=standard_error_of_mean(tpot) if percentile == "mean" else 0.0,
            growth=in_flight_growth(
                served["arrival"], np.append(served["finish"], ends), START_SHARE * float(served["arrival"].max())
            ),
        )  # fmt: skip


class TooLate:
    """Whether enough counted requests are late that a run certainly misses its limit on TTFT.

    Args:
        counted: Which requests count; they follow each other.
        limit: Limit on TTFT [s].
        percentile: Percentile of the limit.
    """

    def __init__(self, counted: Any, limit: float, percentile: str) -> None:
        self.limit, self.is_certain = limit, False
        # Places from the end, because the requests at the start of a run come first.
        places = np.flatnonzero(counted)
        self.counted = slice(int(places[0]) - len(counted), int(places[-1]) + 1 - len(counted) or None)
        self.share = None if percentile == "mean" else PERCENTILES[percentile]

    def __call__(self, served: Any) -> bool:
        """Return whether the limit is missed, for any times of the requests without a first token.

        Args:
            served: Requests of the run, those that count last.

        Returns:
            True or false.
        """
        requests = served[self.counted]
        ttft = requests["first"] - requests["arrival"]
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


def coarse_server(server: Server, parts: int, batch: float, context: float) -> Server:
    r"""Return a pool in which each sequence that decodes stands for several.

    Such a sequence makes $k$ tokens a step, so that $1/k$ as many are there, for $1/k$ as many steps. Prompts come, are
    chunked and go to data-parallel ranks as in the whole pool. A sum of contexts has deviations $\sqrt k$ times as large, of
    which $1/\sqrt k$ enter the time of a step. The remaining contexts have their mean.

    Args:
        server: Pool that decodes.
        parts: Sequences for which one stands, k.
        batch: Expected sequences of the whole replica, next to which prompts are chunked.
        context: Mean context of a sequence [tokens].

    Returns:
        The pool.
    """
    if parts == 1:
        return server
    policy, pace, deviating = server.policy, server.pace, 1 / math.sqrt(parts)
    policy = replace(
        policy,
        max_num_seqs=math.ceil(policy.max_num_seqs / parts),
        kv_tokens=float(policy.kv_tokens) / parts,
        acceptance_length=parts * policy.acceptance_length,
        speculative_tokens=parts * (policy.speculative_tokens + 1) - 1,
    )
    sequences = np.arange(0, len(pace.decode), parts)
    contexts = pace.context[sequences]
    beyond = (1 - 1 / parts) * batch
    tables: dict[str, Any] = {
        "decode": pace.decode[sequences] + (1 - deviating) * contexts * sequences * context,
        "context": deviating * parts * contexts,
        "rows": _rows_beyond(pace.rows, beyond),
        "shared_rows": _rows_beyond(pace.shared_rows, beyond),
        "rank_rows": _rows_beyond(pace.rank_rows, beyond / pace.groups),
        "joint": _coarse_axis(pace.joint, parts),
        "slack": _coarse_axis(pace.slack, parts),
        "least": None if pace.least is None else pace.least[sequences],
        "query": parts * pace.query,
    }
    return Server(policy, replace(pace, **tables), server.replicas)


def _rows_beyond(table: Any, rows: float) -> Any:
    """Return the times of further rows of a pass, whose last slope continues its table."""
    if table is None:
        return None
    begin, last = min(round(rows), len(table) - 2), len(table) - 1
    return np.asarray(table)[begin : last + 1]


def _coarse_axis(table: Any, parts: int) -> Any:
    """Return a table whose first axis has sequences of which each stands for several."""
    if table is None or len(table) < 2:
        return table
    place = np.minimum(np.log2(1 + parts * (2.0 ** np.arange(len(table)) - 1)), len(table) - 1)
    below = np.minimum(place.astype(np.int64), len(table) - 2)
    part = (place - below)[:, None]
    return (1 - part) * np.asarray(table)[below] + part * np.asarray(table)[below + 1]


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


def by_length(present: Traffic, server: Server) -> Traffic:
    """Return requests that come at once, in the order in which their queues have them: the shortest is ready first.

    Replicas and data-parallel ranks get requests in turn. Each keeps its queue, so that runs are the same. The event loop moves
    a request past all longer ones that came before. This takes the square of their number where they are not in order.

    Args:
        present: Requests that arrive at the same time.
        server: Pool that reads them.

    Returns:
        The requests in that order.
    """
    queues = server.replicas * server.pace.groups
    if server.pace.before_token <= 0 or len(present) ** 2 < MANY_MOVES * queues:
        return present
    queue = np.arange(len(present)) % queues
    order = np.empty(len(present), dtype=np.int64)
    order[np.argsort(queue, kind="stable")] = np.lexsort((present.inputs, queue))
    return replace(present, inputs=present.inputs[order], outputs=present.outputs[order])


def busy_share(pool: Replicas) -> float:
    """Return the share of time in which the replicas of a pool work.

    Args:
        pool: Replicas after a run.

    Returns:
        Share.
    """
    return float(np.sum(pool.seconds[:, BUSY]) / np.sum(np.maximum(pool.seconds[:, CLOCK], 1e-12)))
