r"""Steady states of a deployment: what a replica delivers when requests keep coming.

**Aggregated.** A token is made among $B$ sequences; each request lives for $O - 1$ steps, so that a step brings $B/(O-1)$ new
requests and their prompts. An attention group reads prompts in chunks of $c$ tokens beside its decode batch; a step brings
$a = B n/(O-1)$ of them, $n$ to a prompt. Experts synchronise the groups in every layer, so that a step is slow when any group
reads: a share $1 - u$ of steps, which `mixed_step_stats` finds, and

$$ t = u\, t_{decode} + (1 - u)\, t_{mixed}, \qquad t_{mixed} = t(a / (1 - u)) $$

with the chunks that a slow step has in the mean. A user's time per token is $t$: the prompts of other requests delay the steps
that read them. The load of the prompt queue is a share of time: it grows without end where $a$ reaches what a step can read.

**Disaggregated.** One pool prefills whole prompts, another decodes, and the numbers of their replicas are matched to the same
rate of requests. The KV cache of each prompt moves between them before its first token is seen.

**Drafts.** A step that verifies drafts yields $a$ tokens of a sequence in the mean: a request lives for $(O - 1)/a$ steps, and
a user's time per token is $t / a$. Steps with their drafts are those of `physics.drafts`.

**Arrivals.** Requests come at random. One that arrives sees the mean number of others in flight (PASTA), so that $R$ replicas
in which a token is made among $B$ sequences have $R B - 1$ requests in flight; and the number in flight varies as a Poisson
one, so that a chip needs room for more than the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import Array, Number
from steptime.physics.chip_memory import Memory
from steptime.physics.engine import Engine
from steptime.physics.layout import Layout
from steptime.physics.speculative_step import cache_moved, drafted_memory, drafted_step
from steptime.physics.step import Step
from steptime.planning.batch_queue import queue_wait
from steptime.planning.chunked_prefill import interleaved_prefill_share, mixed_step_stats
from steptime.planning.speculative_config import NONE, Speculation, decode_steps, step_yield
from steptime.planning.workload import Workload

SPARE_DEVIATIONS = 3.0  # standard deviations of the cache's fill that a deployment keeps free
FIXED = ("weights", "overhead", "latency")  # what a step waits for whatever its batch
MOST_UTILISED = 0.9  # of a prompt queue or a link: beyond it waits are long and drift for minutes
MOST_LOADED = 0.9  # share of those in flight in the rate that ever larger batches tend to: beyond it tokens slow down tenfold


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A steady state of one replica: arrays of one shape, that of layouts, batches and chunks broadcast together.

    tpot, ttft [s]; rate [requests/s of the replica, were as many in flight as the batch]; utilisation: share of time in which
    prompts are read or wait; decode_only_share: share of steps that read none; input_share of the chips' time [share]; max_num_seqs [sequences]
    that a replica has room for; growing: share of a step that grows with the batch; memory of a chip [B] with those seats;
    lower, upper: bounds of tpot [s]; decode, mixed: the steps without and with prompt chunks, of which a mixed one has `chunks_per_mixed_step`
    (and terms and resources where there is one point alone).
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
    """Input tokens of a request that are not in the prefix cache, at least one."""
    return max(1.0, round(workload.input_tokens * (1 - workload.cached_share)))


def mean_context(workload: Workload) -> float:
    """Mean context of a decoding sequence [tokens]."""
    return workload.input_tokens + workload.output_tokens / 2


def seats_for(workload: Workload, sequences: Number, growing: Number = 0.0) -> Array:
    r"""Sequences that a replica needs room for where `sequences` are in flight in the mean.

    Contexts $L$ are spread evenly over the output. Were steps as long with more of them, their number would be Poisson's, and
    the tokens in cache had the variance $B (\bar L^2 + O^2 / 12)$. Where a share $g$ of a step grows with the batch
    (`growing`), who comes slows all others down, and more stay: the variance is $1 / (1 - g)$ times that, as in a queue that
    shares its server. Room for `SPARE_DEVIATIONS` of it above the mean.
    """
    spread = 1 + np.square(workload.output_tokens / mean_context(workload)) / 12
    varied = spread / (1 - np.clip(growing, 0.0, MOST_LOADED))
    seats: Array = np.ceil(sequences + SPARE_DEVIATIONS * np.sqrt(sequences * varied) - 1e-9)
    return seats


def grown(decode: Step, seconds: Number, batch: Number) -> Number:
    """Share of steps of `seconds` that grows with the batch, by those in flight, where a `decode` step reads no prompt.

    What it waits for whatever the batch does not grow (`FIXED`); experts that only larger batches touch are not told apart.
    """
    fixed: Number = sum(decode.resources.get(name, 0.0) for name in FIXED)
    return (1 - fixed / seconds) * in_flight(batch, 1)


def split_chunks(workload: Workload, chunk: Number) -> tuple[Array, Array, Array]:
    """Return how prompts are cut into chunks of `chunk` tokens: tokens read at once, chunks of a prompt, prompts in a chunk."""
    fresh = fresh_tokens(workload)
    tokens = np.minimum(chunk, fresh)
    return tokens, np.ceil(fresh / tokens - 1e-9), np.maximum(1.0, np.floor(chunk / fresh + 1e-9))


def longest_prefix(workload: Workload, tokens: Number, reads: Number) -> Number:
    r"""Mean of the longest prefix [tokens] among `reads` chunks of `tokens`, each anywhere in its prompt.

    The attention group that reads it works longest. Of $j$ positions among $n$ it is $n j / (j + 1) - 1/2$ chunks, at most
    $n - 1$: exact for one, within 4 % of the prompt for more.
    """
    fresh = fresh_tokens(workload)
    chunks = fresh / tokens
    return workload.input_tokens - fresh + tokens * np.minimum(chunks * reads / (reads + 1) - 0.5, chunks - 1)


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

    batch [sequences per replica], chunk [prompt tokens per attention group in a step that has any]; all broadcast. quick: slow
    steps have the chunks that they would have if arrivals did not depend on steps, $a / (1 - e^{-a})$, for a search.
    legal: whether layouts and sizes are known to be sound.
    """
    tokens, chunks, together = split_chunks(workload, chunk)
    steps, slots = decode_steps(workload, speculation), layout.dp * together
    decode_sequences = np.maximum(batch * in_flight(batch, layout.replicas), 1e-6)  # that decode, whose prompts are read
    coming = decode_sequences * chunks / steps  # chunks that a step brings
    arguments: dict[str, Any] = {
        "batch": batch, "context": mean_context(workload), "drafts": speculation.drafts, "layout": layout, "engine": engine,
        "legal": legal,
    }  # fmt: skip
    decode_only = drafted_step(model, system, **arguments)

    def slow(reads: Number) -> Step:
        prefix = longest_prefix(workload, tokens, reads)
        return drafted_step(model, system, prompts=reads, tokens=tokens, prefix=prefix, **arguments, parts=np.ndim(coming) == 0)

    def single_slot_load(mixed_step: Step) -> tuple[Array, Array]:
        """Return the share of steps that read where one prompt is read at once, as tokens see it, and the load of all steps."""
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

    if quick or not np.any(np.asarray(slots) > 1):
        reads = np.clip(coming / -np.expm1(-coming), 1.0, slots)
        first = slow(reads)
        extra_per_chunk = np.where(
            np.asarray(layout.dp) == 1, (first.total - decode_only.total) / reads, 0.0
        )  # groups read side by side
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
        is_single = slow(1.0)
        observed, load = single_slot_load(is_single)
        mixed_stats = mixed_step_stats(load, slots, chunks, decode_only.total, is_single.total, 0.0, replicas=layout.replicas)
        reads = np.minimum(mixed_stats.chunks_per_mixed_step, slots)
        extra_per_chunk = np.where(reads > 1, (slow(reads).total - is_single.total) / np.maximum(reads - 1, 1e-9), 0.0)
        mixed_stats = mixed_step_stats(
            load, slots, chunks, decode_only.total, is_single.total, extra_per_chunk, replicas=layout.replicas
        )
        first = slow(np.minimum(mixed_stats.chunks_per_mixed_step, slots))  # all chunks that come are read: reads x slow steps
        seconds = first.total
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
                mixed_stats.wait + mixed_stats.service + (first.latency - first.total),
                tpot,
                layout,
                engine,
                speculation,
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
    """Return the steady state of a replica that only decodes. legal: whether layouts and sizes are known to be sound."""
    arguments: dict[str, Any] = {
        "context": mean_context(workload), "drafts": speculation.drafts, "layout": layout, "engine": engine, "legal": legal,
    }  # fmt: skip
    step, gained = drafted_step(model, system, batch=batch, **arguments), step_yield(workload, speculation)
    nothing = np.zeros_like(step.total)
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
    r"""Share of the rate that ever larger batches tend to, at each batch of the last axis: $d \log t / d \log B$.

    A step that takes $\beta + \alpha B$ delivers at most $1 / \alpha$ tokens a second, and at $B$ the share
    $\alpha B / (\beta + \alpha B)$ of that, as a queue that shares its server. tpot [s] and batch [sequences] have one shape,
    at least two batches, which may stand twice.

    >>> load_shares(np.array([2.0, 2.2]), np.array([10.0, 11.0])).round(2).tolist()  # 1 + B / 10
    [1.0, 1.0]
    >>> load_shares(np.array([2.0, 2.0, 4.0, 4.0]), np.array([10.0, 10.0, 40.0, 40.0])).round(2).tolist()
    [0.5, 0.5, 0.5, 0.5]
    """
    step = np.diff(np.broadcast_to(np.log(batch), np.shape(tpot)), axis=-1)
    has_step = step > 0
    slope = np.where(has_step, np.diff(np.log(tpot), axis=-1) / np.where(has_step, step, 1.0), 0.0)
    place, last = np.arange(slope.shape[-1]), slope.shape[-1] - 1
    before = np.maximum.accumulate(
        np.where(has_step, place, 0), axis=-1
    )  # the nearest slope at or before each, and at or after
    after = np.minimum.accumulate(np.where(has_step, place, last)[..., ::-1], axis=-1)[..., ::-1]
    slopes = np.take_along_axis(has_step, before, axis=-1), np.take_along_axis(has_step, after, axis=-1)
    earlier, later = (np.take_along_axis(slope, position, axis=-1) for position in (before, after))
    earlier, later = np.where(slopes[0], earlier, later), np.where(slopes[1], later, earlier)
    left_slopes, right = np.concatenate([later[..., :1], earlier], axis=-1), np.concatenate([later, earlier[..., -1:]], axis=-1)
    load: Array = (left_slopes + right) / 2
    return load


def in_flight(batch: Number, replicas: Number) -> Array:
    r"""Share of `batch` [sequences of a replica] that is in flight in the mean, where a token is made among so many.

    An arrival finds the mean number of others and makes one more: $R B - 1$ of $R B$. One seat alone serves one at a time, and
    has a share of its own (`seating`).

    >>> in_flight(4, 2).tolist(), in_flight(1, 1).tolist()
    (0.875, 0.0)
    """
    share: Array = 1 - 1 / (np.asarray(batch, dtype=np.float64) * replicas)
    return share


def ttft_seen(
    workload: Workload, prefill_seconds: Number, tpot: Number, layout: Layout, engine: Engine, speculation: Speculation = NONE
) -> Number:
    """Return the time to first token [s] that a user sees where a prompt is `prefill_seconds` [s] after it is in the queue.

    An engine adds the time before the queue and the decode steps until a token is seen: those of the simulator. A step takes
    as long as its tokens, of `tpot` [s] each. layout: of the replica that decodes. All of it is as much longer as own runs say.
    """
    latency = before_queue(workload, engine) + prefill_seconds + answer_tokens(workload, layout, engine, speculation) * tpot
    return latency * waited(engine)


def waited(engine: Engine) -> float:
    """Return the factor on first tokens that one's own runs tell, beside that on the steps which they are made of."""
    return 1.0 if engine.anchor is None else engine.anchor.wait


def before_queue(workload: Workload, engine: Engine) -> Number:
    """Seconds from a request's arrival to its place in the queue."""
    wait = engine.scheduler
    return wait.seconds_before_queue + wait.seconds_before_queue_per_token * workload.input_tokens


def answer_tokens(workload: Workload, layout: Layout, engine: Engine, speculation: Speculation = NONE) -> Number:
    """Tokens of a request that decode steps yield from the end of its prompt until its first is seen, at most all."""
    wait = engine.scheduler
    steps = wait.steps_before_answer + wait.steps_to_balance * (np.asarray(layout.dp) > 1)
    return np.minimum(steps * step_yield(workload, speculation), workload.output_tokens - 1)


def delivered(rate: Number, batch: Number, replicas: Number, maximum: Number = np.inf) -> Number:
    """Return the requests/s of all `replicas` of a decode pool: what those in flight of `batch` make of `rate` in each.

    most [requests/s]: that the links into one replica take caches in.

    >>> float(delivered(10.0, 4, 2)), float(delivered(10.0, 4, 2, 5.0))
    (17.5, 10.0)
    """
    rate_delivered: Number = replicas * np.minimum(rate * in_flight(batch, replicas), maximum)
    return rate_delivered


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """How the KV caches of prompts move from a prefill replica to another pool.

    latency [s]; moving [s] that the links of an attention group are busy with a prompt; groups that send at the same time.
    """

    latency: Number
    moving: Number
    groups: Number

    def seconds(self, rate: Number) -> Number:
        """Seconds of a cache on its way, the wait for the links among them, at a rate [requests/s of a prefill replica]."""
        return self.latency + self.moving + queue_wait(self.moving, rate * self.moving / self.groups)

    @property
    def max_rate(self) -> Number:
        """The highest rate that the links carry [requests/s of a prefill replica]."""
        return MOST_UTILISED * self.groups / self.moving


def kv_transfer(
    model: Model, system: System, workload: Workload, *, layout: Layout, within_domain: bool, drafts: int = 0
) -> Transfer:
    """Return how caches leave a prefill replica of `layout`: each over all links of the attention group that made it."""
    link = (system.scale_up if within_domain else system.scale_out).link
    moving = cache_moved(model, workload.input_tokens, drafts) / (link.bandwidth * layout.group * layout.pp)
    return Transfer(latency=link.latency, moving=np.maximum(moving, 1e-12), groups=layout.dp)
