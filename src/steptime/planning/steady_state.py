r"""Steady states of a deployment: the rate and latency of a replica under load.

**Aggregated.** A token is made among $B$ sequences. Each request lives for $O - 1$ steps, so
$B/(O-1)$ new requests with their prompts arrive per step. A data-parallel rank prefills in chunks of $c$ tokens
together with its decode batch. With $n$ chunks per prompt, $a = B n/(O-1)$ chunks
arrive per step. Experts synchronize the ranks in every layer, so a step is slow when any rank prefills.
This is the case in a share $1 - u$ of steps (`mixed_step_stats`). The mean step takes

$$ t = u\, t_{decode} + (1 - u)\, t_{mixed}, \qquad t_{mixed} = t(a / (1 - u)) $$

where a slow step has its mean number of chunks. A user's time per token is $t$: the prompts of other requests
delay the steps that prefill them. The load of the prefill queue is a share of time. The queue grows without
limit if $a$ reaches the capacity of a step.

**Disaggregated.** One pool prefills whole prompts, another decodes, and the numbers of their replicas are
matched to the same rate of requests. The KV cache of each prompt moves between them before the user sees the
first token.

**Speculative decoding.** A step that verifies speculative tokens yields $a$ tokens per sequence on average. A
request lives for $(O - 1)/a$ steps, and a user's time per token is $t / a$. `physics.speculative_step` gives
the time of these steps.

**Arrivals.** Requests arrive at random. An arrival sees the mean number of other requests in flight (PASTA).
Therefore $R$ replicas in which a token is made among $B$ sequences have $R B - 1$ requests in flight. The
number in flight has a Poisson distribution, so a chip needs memory for more than the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from steptime.hardware.system import System, slower_link
from steptime.models.model import Model
from steptime.number_checks import Array, Number
from steptime.physics.bias_correction import OperatingPoint
from steptime.physics.chip_memory import Memory
from steptime.physics.engine import Engine, ttft_factor
from steptime.physics.layout import Layout
from steptime.physics.speculative_step import cache_moved, drafted_memory, drafted_step
from steptime.physics.step import Step
from steptime.planning.batch_queue import queue_wait
from steptime.planning.chunked_prefill import interleaved_prefill_share, mixed_step_stats
from steptime.workload.workload import NONE, Speculation, Workload, decode_steps, step_yield

# Standard deviations of the cache's fill level that a deployment keeps free.
SPARE_DEVIATIONS = 3.0
# Resources whose time does not depend on the batch.
FIXED = ("weights", "overhead", "latency")
# Highest utilization of a prefill queue or a link; beyond it waits are long and change over minutes.
MOST_UTILISED = 0.9
# Highest load in flight over that of an infinite batch; beyond it tokens slow down tenfold.
MOST_LOADED = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A steady state of one replica: arrays of the broadcast shape of its arguments.

    `tpot` and `ttft` are in s. `rate` [requests/s] is that of the replica with the whole batch in flight.
    `utilisation` is that of the prefill queue. `decode_only_share` is the share of steps without prefill
    chunks, and `input_share` the share of the chips' time for prefill. `max_num_seqs` counts the slots per
    replica. `growing` is the share of a step that grows with the batch. `memory` is that of a chip [B] with
    all slots taken. `lower` and `upper` are bounds of `tpot` [s].

    `decode` and `mixed` are the steps without and with prefill chunks. A mixed one has
    `chunks_per_mixed_step` chunks. Steps of a single point have terms and resources.
    """

    tpot: Array
    ttft: Array
    rate: Array
    utilisation: Array
    decode_only_share: Array
    chunks_per_mixed_step: Array
    input_share: Array
    max_num_seqs: Array
    growing: Number
    memory: Memory
    lower: Array
    upper: Array
    decode: Step
    mixed: Step | None


def fresh_tokens(workload: Workload) -> float:
    """Return the input tokens of a request that are not in the prefix cache.

    Args:
        workload: Requests.

    Returns:
        Tokens, at least 1.
    """
    return max(1.0, round(workload.input_tokens * (1 - workload.cached_share)))


def mean_context(workload: Workload) -> Number:
    r"""Return the mean context of a decoding sequence.

    A sequence with a long output decodes for longer, so that a step meets it more often. Outputs $O$ with the
    coefficient of variation $c$ have the mean position $E[O^2] / 2 E[O] = \bar O (1 + c^2) / 2$.

    Args:
        workload: Requests.

    Returns:
        Tokens.

    >>> from dataclasses import replace
    >>> requests = Workload(input_tokens=1000, output_tokens=200, output_spread=0)
    >>> float(mean_context(requests)), float(mean_context(replace(requests, output_spread=1.0)))
    (1100.0, 1200.0)
    """
    position: Number = workload.output_tokens * (1 + np.square(workload.output_spread)) / 2
    return workload.input_tokens + position


def context_deviation(workload: Workload) -> Number:
    r"""Return the standard deviation of the context of a decoding sequence.

    The position in a log-normal output has the mean square $E[O^3] / 3 E[O] = \bar O^2 (1 + c^2)^3 / 3$. Equal outputs
    give the uniform distribution, $\bar O^2 / 12$.

    Args:
        workload: Requests.

    Returns:
        Tokens.

    >>> from dataclasses import replace
    >>> equal = Workload(input_tokens=1000, output_tokens=120, input_spread=0, output_spread=0)
    >>> [round(float(context_deviation(replace(equal, input_spread=spread))), 3) for spread in (0.0, 0.5)]
    [34.641, 501.199]
    """
    stretch = 1 + np.square(workload.output_spread)
    position = np.square(workload.output_tokens) * (stretch**3 / 3 - stretch**2 / 4)
    deviation: Number = np.sqrt(np.square(workload.input_spread * workload.input_tokens) + position)
    return deviation


def seats_for(workload: Workload, sequences: Number, growing: Number = 0.0) -> Array:
    r"""Return the slots that a replica needs for a mean number of sequences in flight.

    If the step time did not depend on the batch, the number of sequences would be a Poisson number. With the
    standard deviation $s$ of contexts, the tokens in the cache would have the variance $B (\bar L^2 + s^2)$. Where a
    share $g$ of a step grows with the batch, an arrival slows all others, and more stay. The
    variance is then $1 / (1 - g)$ times that, as in a processor-sharing queue. The result has room for
    `SPARE_DEVIATIONS` standard deviations above the mean.

    Args:
        workload: Requests.
        sequences: Mean sequences in flight per replica.
        growing: Share of a step that grows with the batch $g$.

    Returns:
        Sequences per replica, whole numbers.
    """
    varied = (1 + np.square(context_deviation(workload) / mean_context(workload))) / (1 - np.clip(growing, 0.0, MOST_LOADED))
    seats: Array = np.ceil(sequences + SPARE_DEVIATIONS * np.sqrt(sequences * varied) - 1e-9)
    return seats


def grown(decode: Step, seconds: Number, batch: Number) -> Number:
    """Return the share of steps that grows with the sequences in flight.

    The waits in `FIXED` do not grow with the batch. Experts that only larger batches use are not separated.

    Args:
        decode: Step without prefill chunks.
        seconds: Mean time of all steps [s].
        batch: Sequences per replica.

    Returns:
        Share.
    """
    fixed: Number = sum(decode.resources.get(name, 0.0) for name in FIXED)
    return (1 - fixed / seconds) * in_flight(batch, 1)


def split_chunks(workload: Workload, chunk: Number) -> tuple[Array, Array, Array]:
    """Return how prompts are divided into prefill chunks.

    Args:
        workload: Requests.
        chunk: Chunk size [tokens].

    Returns:
        Prompt tokens per chunk, chunks per prompt, and prompts per chunk.
    """
    fresh = fresh_tokens(workload)
    tokens = np.minimum(chunk, fresh)
    return tokens, np.ceil(fresh / tokens - 1e-9), np.maximum(1.0, np.floor(chunk / fresh + 1e-9))


def longest_prefix(workload: Workload, tokens: Number, reads: Number) -> Number:
    """Return the mean of the longest prefix among the chunks of a step.

    Each chunk is anywhere in its prompt. The data-parallel rank with the longest prefix works longest. Of $j$
    positions among $n$ it is $n j / (j + 1) - 1/2$ chunks, at most $n - 1$. Exact for one chunk, within 4 %
    of the prompt for more.

    Args:
        workload: Requests.
        tokens: Tokens per chunk.
        reads: Chunks in the step.

    Returns:
        Tokens.
    """
    fresh = fresh_tokens(workload)
    chunks = fresh / tokens
    prefix: Number = workload.input_tokens - fresh + tokens * np.minimum(chunks * reads / (reads + 1) - 0.5, chunks - 1)
    return prefix + longer_prefix(workload)


def longer_prefix(workload: Workload) -> Number:
    r"""Return how much longer the mean prefix of a prompt token is where prompts are unequal.

    A prompt of $n$ new tokens after $m$ cached ones scores $n m + n^2 / 2$ pairs. Over unequal prompts, whose
    coefficient of variation is $c$, both products have $1 + c^2$ times the value of the mean prompt.

    Args:
        workload: Requests.

    Returns:
        Tokens.

    >>> float(longer_prefix(Workload(input_tokens=1000, output_tokens=1, input_spread=2.0)))
    2000.0
    """
    fresh = fresh_tokens(workload)
    longer: Number = np.square(workload.input_spread) * (workload.input_tokens - fresh / 2)
    return longer


def aggregated(
    model: Model,
    system: System,
    workload: Workload,
    *,
    layout: Layout,
    batch: Number,
    chunk: Number,
    engine: Engine,
    speculation: Speculation = NONE,
    quick: bool = False,
    legal: bool = False,
) -> State:
    """Return the steady state in which decode and prefill share the chips.

    All arguments broadcast.

    Args:
        model: Model.
        system: System.
        workload: Requests.
        layout: Layout of the replica.
        batch: Sequences per replica.
        chunk: Prompt tokens per data-parallel rank in a step with prefill.
        engine: Engine.
        speculation: Speculative tokens.
        quick: For a search: slow steps have $a / (1 - e^{-a})$ chunks, as if arrivals did not depend on
            steps.
        legal: True if layouts and sizes are already checked.

    Returns:
        The steady state.
    """
    tokens, chunks, together = split_chunks(workload, chunk)
    steps, slots = decode_steps(workload, speculation), layout.dp * together
    # Mean number of decoding sequences, whose prompts were prefilled.
    decode_sequences = np.maximum(batch * in_flight(batch, layout.replicas), 1e-6)
    # Chunks that arrive per step.
    coming = decode_sequences * chunks / steps
    arguments: dict[str, Any] = {
        "batch": batch, "context": mean_context(workload), "drafts": speculation.drafts, "layout": layout, "engine": engine,
        "legal": legal,
    }  # fmt: skip
    is_point = np.ndim(coming) == 0
    decode_only = drafted_step(model, system, **arguments, parts=is_point or "resources")

    mixed = partial(drafted_step, model, system, tokens=tokens, **arguments, parts=is_point)

    def single_slot_load(mixed_step: Step) -> tuple[Array, Array]:
        """Return the shares of steps with prefill where one prompt is prefilled at a time.

        The first is the share that a token meets, the second the share of all steps.
        """
        times: list[Any] = [
            decode_sequences,
            steps,
            chunks,
            decode_only.total,
            mixed_step.total,
            layout.replicas,
            slots,
            coming,
        ]
        *samples, at_once, load = np.broadcast_arrays(*times)
        is_single = at_once <= 1
        observed, load = np.ones(load.shape), load.copy()
        if np.any(is_single):
            *arguments, replicas = (x[is_single] for x in samples)
            observed[is_single], load[is_single] = interleaved_prefill_share(*arguments, replicas=replicas)
        return observed, load

    # A search uses one evaluation of the mixed step; otherwise a second one gives the time per further chunk.
    if quick or not np.any(np.asarray(slots) > 1):
        reads = np.clip(coming / -np.expm1(-coming), 1.0, slots)
        first = mixed(prompts=reads, prefix=longest_prefix(workload, tokens, reads))
        # Several data-parallel ranks prefill in parallel, so that a further chunk adds no time.
        extra_per_chunk = np.where(np.asarray(layout.dp) == 1, (first.total - decode_only.total) / reads, 0.0)
        observed, load = single_slot_load(first)
        mixed_stats = mixed_step_stats(
            load,
            slots,
            chunks,
            decode_only.total,
            first.total - extra_per_chunk * (reads - 1),
            extra_per_chunk,
            replicas=layout.replicas,
        )
        seconds = mixed_stats.slow
    else:
        one_chunk = mixed(prompts=1.0, prefix=longest_prefix(workload, tokens, 1.0))
        observed, load = single_slot_load(one_chunk)
        mixed_stats = mixed_step_stats(load, slots, chunks, decode_only.total, one_chunk.total, 0.0, replicas=layout.replicas)
        reads = np.minimum(mixed_stats.chunks_per_mixed_step, slots)
        several = mixed(prompts=reads, prefix=longest_prefix(workload, tokens, reads))
        extra_per_chunk = np.where(reads > 1, (several.total - one_chunk.total) / np.maximum(reads - 1, 1e-9), 0.0)
        mixed_stats = mixed_step_stats(
            load, slots, chunks, decode_only.total, one_chunk.total, extra_per_chunk, replicas=layout.replicas
        )
        # Every chunk that arrives is prefilled: reads x slow steps.
        reads = np.minimum(mixed_stats.chunks_per_mixed_step, slots)
        first = mixed(prompts=reads, prefix=longest_prefix(workload, tokens, reads))
        seconds = first.total

    # With one slot, tokens meet another share of mixed steps than the share of all steps.
    quiet = np.where(np.asarray(slots) > 1, mixed_stats.decode_only_share, 1 - observed)

    def mean(a: Array, b: Array) -> Array:
        mixed: Array = quiet * a + (1 - quiet) * b
        return mixed

    step, gained = mean(decode_only.total, seconds), step_yield(workload, speculation)
    tpot = step / gained
    growing = grown(decode_only, step, batch)
    seats = seats_for(workload, batch + np.minimum(load, slots), growing)
    memory = drafted_memory(
        model,
        system,
        drafts=speculation.drafts,
        batch=seats,
        context=mean_context(workload),
        layout=layout,
        engine=engine,
        step_tokens=(batch * (speculation.drafts + 1) / layout.dp + tokens * together) / layout.microbatches,
        legal=legal,
    )
    return State(
        tpot=tpot,
        ttft=np.asarray(
            ttft_seen(
                workload,
                mixed_stats.wait * (1 + np.square(workload.input_spread)) + mixed_stats.service + (first.latency - first.total),
                tpot,
                layout,
                engine,
                speculation,
                batch,
            )
        ),
        rate=np.asarray(batch / (steps * step)),
        utilisation=mixed_stats.utilisation,
        decode_only_share=quiet,
        chunks_per_mixed_step=mixed_stats.chunks_per_mixed_step,
        input_share=(1 - quiet) * (seconds - decode_only.total) / step,
        max_num_seqs=seats,
        growing=growing,
        memory=memory,
        lower=mean(decode_only.lower, first.lower) / gained,
        upper=mean(decode_only.upper, first.upper) / gained,
        decode=decode_only,
        mixed=first,
    )


def decode_pool(
    model: Model,
    system: System,
    workload: Workload,
    *,
    layout: Layout,
    batch: Number,
    engine: Engine,
    speculation: Speculation = NONE,
    legal: bool = False,
) -> State:
    """Return the steady state of a replica that only decodes.

    Args:
        model: Model.
        system: System.
        workload: Requests.
        layout: Layout of the replica.
        batch: Sequences per replica.
        engine: Engine.
        speculation: Speculative tokens.
        legal: True if layouts and sizes are already checked.

    Returns:
        The steady state.
    """
    arguments: dict[str, Any] = {
        "context": mean_context(workload), "drafts": speculation.drafts, "layout": layout, "engine": engine, "legal": legal,
    }  # fmt: skip
    is_point = np.ndim(batch) == 0 and np.ndim(layout.chips) == 0
    step = drafted_step(model, system, batch=batch, **arguments, parts=is_point or "resources")
    gained = step_yield(workload, speculation)
    nothing = np.zeros_like(step.total)

    # A decode pool needs slots for more than the mean number of sequences.
    growing = grown(step, step.total, batch)
    seats = seats_for(workload, batch, growing)
    memory = drafted_memory(model, system, batch=seats, **arguments)
    return State(
        tpot=step.total / gained,
        ttft=nothing,
        rate=batch / (decode_steps(workload, speculation) * step.total),
        utilisation=nothing,
        decode_only_share=nothing + 1,
        chunks_per_mixed_step=nothing,
        input_share=nothing,
        max_num_seqs=seats,
        growing=growing,
        memory=memory,
        lower=step.lower / gained,
        upper=step.upper / gained,
        decode=step,
        mixed=None,
    )


def load_shares(tpot: Array, batch: Number) -> Array:
    r"""Return the rate over that of an infinite batch: $d \log t / d \log B$.

    A step that takes $\beta + \alpha B$ delivers at most $1 / \alpha$ tokens/s. At $B$ it delivers the share
    $\alpha B / (\beta + \alpha B)$ of that, as a processor-sharing queue.

    Args:
        tpot: TPOT by batch along the last axis [s].
        batch: Batches along the last axis [sequences], at least two; equal neighbours are allowed.

    Returns:
        Shares, with the shape of `tpot`.

    >>> load_shares(np.array([2.0, 2.2]), np.array([10.0, 11.0])).round(2).tolist()  # 1 + B / 10
    [1.0, 1.0]
    >>> load_shares(np.array([2.0, 2.0, 4.0, 4.0]), np.array([10.0, 10.0, 40.0, 40.0])).round(2).tolist()
    [0.5, 0.5, 0.5, 0.5]
    """
    step = np.diff(np.broadcast_to(np.log(batch), np.shape(tpot)), axis=-1)
    has_step = step > 0
    slope = np.where(has_step, np.diff(np.log(tpot), axis=-1) / np.where(has_step, step, 1.0), 0.0)
    place, last = np.arange(slope.shape[-1]), slope.shape[-1] - 1
    # The nearest valid slope at or before each position, and at or after it.
    before = np.maximum.accumulate(np.where(has_step, place, 0), axis=-1)
    after = np.minimum.accumulate(np.where(has_step, place, last)[..., ::-1], axis=-1)[..., ::-1]
    slopes = np.take_along_axis(has_step, before, axis=-1), np.take_along_axis(has_step, after, axis=-1)
    earlier, later = (np.take_along_axis(slope, position, axis=-1) for position in (before, after))
    earlier, later = np.where(slopes[0], earlier, later), np.where(slopes[1], later, earlier)
    left_slopes, right = np.concatenate([later[..., :1], earlier], axis=-1), np.concatenate([later, earlier[..., -1:]], axis=-1)
    load: Array = (left_slopes + right) / 2
    return load


def in_flight(batch: Number, replicas: Number) -> Array:
    """Return the share of the batch that is in flight on average.

    An arrival finds the mean number of other requests and adds one: $R B - 1$ of $R B$. A single slot serves
    one request at a time and has a different share (`admission`).

    Args:
        batch: Sequences per replica $B$ among which a token is made.
        replicas: Replicas $R$.

    Returns:
        Share.

    >>> in_flight(4, 2).tolist(), in_flight(1, 1).tolist()
    (0.875, 0.0)
    """
    share: Array = 1 - 1 / (np.asarray(batch, dtype=np.float64) * replicas)
    return share


def ttft_seen(
    workload: Workload,
    prefill_seconds: Number,
    tpot: Number,
    layout: Layout,
    engine: Engine,
    speculation: Speculation = NONE,
    batch: Number | None = None,
) -> Number:
    """Return the TTFT that a user sees.

    An engine adds the time before the queue, and the decode steps until a token is sent. The simulator uses
    the same delays. The factor of an anchor applies to the sum.

    Args:
        workload: Requests.
        prefill_seconds: Time from the queue to the end of prefill [s].
        tpot: TPOT [s].
        layout: Layout of the replica that decodes.
        engine: Engine.
        speculation: Speculative tokens.
        batch: Sequences per replica, for the correction by own runs; by default the usual load of the runs.

    Returns:
        Seconds.
    """
    latency = before_queue(workload, engine) + prefill_seconds + answer_tokens(workload, layout, engine, speculation) * tpot
    return latency * ttft_factor(engine, OperatingPoint(layout=layout, load=batch, context=mean_context(workload)))


def before_queue(workload: Workload, engine: Engine) -> Number:
    """Return the time from a request's arrival to its place in the queue.

    Args:
        workload: Requests.
        engine: Engine.

    Returns:
        Seconds.
    """
    wait = engine.scheduler
    return wait.seconds_before_queue + wait.seconds_before_queue_per_token * workload.input_tokens


def answer_tokens(workload: Workload, layout: Layout, engine: Engine, speculation: Speculation = NONE) -> Number:
    """Return the tokens that decode yields before the user sees the first one.

    Args:
        workload: Requests.
        layout: Layout of the replica that decodes.
        engine: Engine.
        speculation: Speculative tokens.

    Returns:
        Tokens per request, at most all.
    """
    wait = engine.scheduler
    steps = wait.steps_before_answer + wait.steps_to_balance * (np.asarray(layout.dp) > 1)
    return np.minimum(steps * step_yield(workload, speculation), workload.output_tokens - 1)


def delivered(rate: Number, batch: Number, replicas: Number, maximum: Number = np.inf) -> Number:
    """Return the request rate of all replicas of a decode pool.

    Args:
        rate: Rate of a replica with its whole batch in flight [requests/s].
        batch: Sequences per replica.
        replicas: Replicas.
        maximum: Highest rate at which the links deliver caches to a replica [requests/s].

    Returns:
        Requests/s.

    >>> float(delivered(10.0, 4, 2)), float(delivered(10.0, 4, 2, 5.0))
    (17.5, 10.0)
    """
    rate_delivered: Number = replicas * np.minimum(rate * in_flight(batch, replicas), maximum)
    return rate_delivered


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Transfer of KV caches from a prefill replica to another pool.

    `latency` is in s. `moving` [s] is the time that the links of a data-parallel rank need for one prompt.
    `groups` counts the ranks that send at the same time.
    """

    latency: Number
    moving: Number
    groups: Number

    def seconds(self, rate: Number) -> Number:
        """Return the transfer time of a cache, including the wait for the links.

        Args:
            rate: Request rate of a prefill replica [requests/s].

        Returns:
            Seconds.
        """
        return self.latency + self.moving + queue_wait(self.moving, rate * self.moving / self.groups)

    @property
    def max_rate(self) -> Number:
        """Highest rate that the links can carry [requests/s per prefill replica]."""
        return MOST_UTILISED * self.groups / self.moving


def kv_transfer(
    model: Model,
    system: System,
    workload: Workload,
    *,
    layout: Layout,
    within_domain: bool,
    drafts: int = 0,
    prefill_system: System | None = None,
) -> Transfer:
    """Return how KV caches leave a prefill replica.

    Each cache uses all links of the data-parallel rank that made it. Between two systems, these are the slower links of
    both scale-out networks.

    Args:
        model: Model.
        system: System.
        workload: Requests.
        layout: Layout of the prefill replica.
        within_domain: True for scale-up links, False for scale-out links.
        drafts: Speculative tokens, whose layers also have a cache.
        prefill_system: System of the prefill pool, if it is another one.

    Returns:
        The transfer.
    """
    link = (system.scale_up if within_domain else system.scale_out).link
    link = link if prefill_system is None else slower_link(link, prefill_system.scale_out.link)
    moving = cache_moved(model, workload.input_tokens, drafts) / (link.bandwidth * layout.group * layout.pp)
    return Transfer(latency=link.latency, moving=np.maximum(moving, 1e-12), groups=layout.dp)
