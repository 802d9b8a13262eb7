r"""Steady states of a deployment: what a replica delivers when requests keep coming.

**Aggregated.** $B$ sequences decode; each lives for $O - 1$ steps, so that a step brings $B/(O-1)$ new requests and their
prompts. An attention group reads prompts in chunks of $c$ tokens beside its decode batch, in a share $f$ of the steps:

$$ f = \frac{B I}{(O - 1)\, c\, d}, \qquad t = (1 - f)\, t_{decode} + f\, t_{mixed} $$

with $d$ attention groups and $I$ fresh input tokens. A user's time per token is $t$: the prompts of other requests delay the
steps that read them. The prompt queue is served at utilisation $f$, so $f < 1$ or the queue grows without end.

**Disaggregated.** One pool prefills whole prompts, another decodes, and the numbers of their replicas are matched to the same
rate of requests. The KV cache of each prompt moves between them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.machines.system import System
from steptime.models.model import Model, cache_bytes
from steptime.numbers import Array, Number
from steptime.physics.engine import Engine
from steptime.physics.layout import Layout
from steptime.physics.memory import Memory, memory_per_chip, sequences_that_fit
from steptime.physics.step import Step, decode_step, mixed_step, prefill_step
from steptime.planning.queueing import highest_utilisation, lockstep_wait, queue_wait
from steptime.planning.workload import Workload

SPARE_DEVIATIONS = 3.0  # standard deviations of the cache's fill that a deployment keeps free
STARTING = 0.1  # share of a closed loop's requests that start with it: benchmarks send ten for each one in flight
MOST_UTILISED = 0.95  # of a prompt queue: beyond it waits are long and drift for minutes
DRIFT = 0.005  # of an output: requests of equal length drift apart by as much, since hosts and clients do not keep step
STEP_TOKENS = 2048  # that engines read in a step by default: their activations take memory


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A steady state of one replica: arrays of one shape, that of layouts, batches and chunks broadcast together.

    tpot, ttft [s]; rate [requests/s of the replica]; utilisation of the prompt queue, input_share of the chips' time [share];
    memory of a chip [B]; lower, upper: bounds of tpot [s]; decode, mixed: the steps without and with a prompt chunk.
    """

    tpot: Array
    ttft: Array
    rate: Array
    utilisation: Array
    input_share: Array
    memory: Memory
    lower: Array
    upper: Array
    decode: Step
    mixed: Step | None


def fresh_tokens(workload: Workload) -> float:
    """Input tokens of a request that are not in the prefix cache, at least one."""
    return max(1.0, round(workload.input_tokens * (1 - workload.cached_share)))


def decode_steps(workload: Workload) -> float:
    """Decode steps of a request: the first token comes from prefill."""
    return max(1.0, workload.output_tokens - 1)


def mean_context(workload: Workload) -> float:
    """Mean context of a decoding sequence [tokens]."""
    return workload.input_tokens + workload.output_tokens / 2


def room_context(workload: Workload, sequences: Number) -> Number:
    r"""Context per sequence for which a group of `sequences` needs room [tokens]: the mean and three standard deviations.

    Contexts are spread evenly over the output, with standard deviation $O/\sqrt{12}$; that of their mean falls with $\sqrt n$.
    """
    spare: Number = SPARE_DEVIATIONS * workload.output_tokens / np.sqrt(12 * np.maximum(sequences, 1))
    kept: Number = np.minimum(workload.output_tokens / 2, spare)
    return mean_context(workload) + kept


def aggregated(
    model: Model, system: System, workload: Workload, *, layout: Layout, batch: Number, chunk: Number, engine: Engine
) -> State:
    """Return the steady state in which decode and prefill share the chips.

    batch [sequences per replica], chunk [prompt tokens per attention group in a step that has any]; all broadcast.
    """
    fresh, steps = fresh_tokens(workload), decode_steps(workload)
    prefix = workload.input_tokens - fresh
    tokens = np.minimum(chunk, fresh)
    together = np.maximum(1.0, np.floor(chunk / fresh))  # prompts that share a chunk
    groups = layout.dp
    share = batch * fresh / (steps * tokens * together * groups)
    context = mean_context(workload)
    alone = decode_step(model, system, batch=batch, context=context, layout=layout, engine=engine)
    mixed = mixed_step(
        model,
        system,
        batch=batch,
        context=context,
        prompts=together * groups,
        tokens=tokens,
        prefix=prefix + (fresh - tokens) / 2,
        layout=layout,
        engine=engine,
    )
    used = np.minimum(share, 1.0)

    def mean(a: Array, b: Array) -> Array:
        mixed: Array = a + used * (b - a)
        return mixed

    tpot = mean(alone.total, mixed.total)
    service = np.ceil(fresh / tokens) * mixed.total
    sequences = batch / groups
    return State(
        tpot=tpot,
        ttft=np.asarray(ttft_seen(tpot / 2 + service + queue_wait(service / together, share), engine)),
        rate=np.asarray(batch / (steps * tpot)),
        utilisation=share,
        input_share=used * (mixed.total - alone.total) / tpot,
        memory=memory_per_chip(
            model,
            system,
            batch=batch + groups * together * used,
            context=room_context(workload, sequences),
            layout=layout,
            engine=engine,
            step_tokens=(sequences + tokens * together) / layout.microbatches,
        ),
        lower=mean(alone.lower, mixed.lower),
        upper=mean(alone.upper, mixed.upper),
        decode=alone,
        mixed=mixed,
    )


def decode_pool(model: Model, system: System, workload: Workload, *, layout: Layout, batch: Number, engine: Engine) -> State:
    """Return the steady state of a replica that only decodes."""
    step = decode_step(model, system, batch=batch, context=mean_context(workload), layout=layout, engine=engine)
    return State(
        tpot=step.total,
        ttft=np.zeros_like(step.total),
        rate=batch / (decode_steps(workload) * step.total),
        utilisation=np.zeros_like(step.total),
        input_share=np.zeros_like(step.total),
        memory=memory_per_chip(
            model,
            system,
            batch=batch,
            context=room_context(workload, batch / layout.dp),
            layout=layout,
            engine=engine,
        ),
        lower=step.lower,
        upper=step.upper,
        decode=step,
        mixed=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """A replica that only prefills: arrays of one shape.

    seconds of a pass [s] that reads `seats` prompts; rate [requests/s]; most_utilised: the highest utilisation within the limit
    [share]; memory of a chip [B]; step: the pass.
    """

    seconds: Array
    seats: Number
    rate: Array
    most_utilised: Array
    memory: Memory
    step: Step


def prefill_pool(
    model: Model,
    system: System,
    workload: Workload,
    *,
    layout: Layout,
    prompts: Number,
    engine: Engine,
    ttft: Number,
    ceiling: float = MOST_UTILISED,
) -> Prefill:
    """Return what a prefill replica delivers with `prompts` [per attention group] in a pass, and how busy it may be."""
    fresh = fresh_tokens(workload)
    seats = prompts * layout.dp
    step = prefill_step(
        model, system, tokens=fresh, prompts=seats, prefix=workload.input_tokens - fresh, layout=layout, engine=engine
    )
    return Prefill(
        seconds=step.total,
        seats=seats,
        rate=seats / step.total,
        most_utilised=np.asarray(highest_utilisation(step.total, queue_limit(ttft, engine), seats, ceiling)),
        memory=memory_per_chip(
            model,
            system,
            batch=2 * seats,  # one pass under way, one being sent on
            context=workload.input_tokens,
            layout=layout,
            engine=engine,
            step_tokens=prompts * fresh / layout.microbatches,
        ),
        step=step,
    )


def closed_loop(
    model: Model,
    system: System,
    *,
    layout: Layout,
    concurrency: Number,
    input_tokens: Number,
    output_tokens: Number,
    spread: Number = 0.0,
    starting: Number = STARTING,
    engine: Engine,
) -> tuple[Number, Number, Step]:
    r"""Return mean TPOT and TTFT [s] of a closed loop of `concurrency` requests in one replica, and its decode step.

    Every request that ends is followed by another, so that a decode step brings $C/O$ prompts, whose prefill $P$ delays all
    who decode: $t = t_{decode} + (C/O) P$. An engine that reads prompts first starts the requests of a burst together, and they
    end together unless their lengths differ: of the share $\omega = CP / (CP + s O t_{decode})$ that stays together, half of
    the prefill is waited for before the first token. $s$ is `spread`, how far lengths reach to both sides of their means, at
    least `DRIFT`. Of the $C$ requests, those run whose caches fit in memory; the others wait for a seat, and their wait is part
    of TTFT. starting: share of the requests of the whole loop that come together at its start.

    Source: conservation of requests (Little's law), lecture section 4.
    """
    groups, context = layout.dp, input_tokens + output_tokens / 2
    running = seats(model, system, context=context, layout=layout, engine=engine, wanted=concurrency)
    decode = decode_step(model, system, batch=running, context=context, layout=layout, engine=engine)
    prefill = prefill_step(model, system, tokens=input_tokens, prompts=groups, layout=layout, engine=engine).total
    in_group = running / groups
    burst = in_group * prefill
    together = engine.scheduler.prefill_first * burst / (burst + np.maximum(spread, DRIFT) * output_tokens * decode.total)
    tpot = decode.total + burst / output_tokens * (1 - together / 2)
    busy = burst / (burst + output_tokens * decode.total)
    started = starting * burst / 2
    queued = decode.total / 2 + prefill * (1 + busy) + together * burst / 2 + (1 - together) * started
    waiting = (concurrency - running) / running * output_tokens * tpot
    return tpot, ttft_seen(queued, engine) + waiting, decode


def seats(model: Model, system: System, *, context: Number, layout: Layout, engine: Engine, wanted: Number) -> Number:
    """Return how many of the `wanted` sequences [per replica] run at once: as many as have room for `context` [tokens].

    Where this count leaves room for none, all of them run: the run was made, so that its server found room.
    """
    fit = sequences_that_fit(model, system, context=context, layout=layout, engine=engine, step_tokens=STEP_TOKENS)
    return np.where(fit >= 1, np.minimum(wanted, np.maximum(fit, 1)), wanted)


def first_token(prefill: Prefill, utilisation: Number, engine: Engine) -> Number:
    """Return the mean time to first token [s] of a prefill replica at a utilisation [share]."""
    return ttft_seen(prefill.seconds + lockstep_wait(prefill.seconds, utilisation, prefill.seats), engine)


def ttft_seen(queued: Number, engine: Engine) -> Number:
    """Return the time to first token [s] that a user sees where an orderly prompt queue takes `queued` [s].

    An engine adds `seconds_per_request` before the prompt is read, and stretches the queue by `first_token_factor`.
    """
    return engine.scheduler.seconds_per_request + engine.scheduler.first_token_factor * queued


def queue_limit(ttft: Number, engine: Engine) -> Number:
    """Return how long an orderly prompt queue may take [s] for a time to first token of `ttft` [s]; inverts `ttft_seen`."""
    return (ttft - engine.scheduler.seconds_per_request) / engine.scheduler.first_token_factor


def transfer_seconds(model: Model, system: System, workload: Workload, *, sender_chips: Number, within_domain: bool) -> Number:
    """Time to move the KV cache of one prompt between pools [s], over all links of the attention group that made it."""
    link = (system.scale_up if within_domain else system.scale_out).link
    return link.latency + cache_bytes(model, workload.input_tokens) / (link.bandwidth * sender_chips)
