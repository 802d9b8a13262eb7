r"""Closed loops in closed form: as many requests in flight as there are clients, with drafts and without.

Every request that ends is followed by another, so that $C$ of them with $O$ tokens each bring $C/O$ prompts for each token of
all, whose prefill $P$ delays all who decode: by a pass of its own where the engine reads prompts first, by as much as it makes
a step longer where chunks are read beside decode, as plans and the simulator have it. A step of $k$ drafts yields $a$ tokens of
each sequence in the mean:

$$ t = t_{step} / a + (C/O) P $$

An engine that reads prompts first starts the requests of a burst together, and they end together unless their lengths differ:
in the $r$-th round of all clients the share $1 / (1 + r x)$ is still together, with $x = s O t_{step} / (a C P)$ and $s$ how
far lengths reach to both sides of their means, at least `DRIFT`. Of the share $\omega$ in the mean of $R$ rounds, half of the
prefill is waited for before the first token:

$$ \omega = \frac{1}{x (R - 1)} \ln \frac{1 + R x}{1 + x} $$

Of the $C$ requests, those run whose caches fit in memory; the others wait for a seat, and their wait is part of the first
token.

A pool that only decodes has no prompts of its own: $t = t_{step} / a$.

Source: conservation of requests (Little's law), lecture section 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from steptime.blackboard.expert_activation import expected_maximum
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import Array, Number
from steptime.physics.engine import Engine
from steptime.physics.layout import Layout
from steptime.physics.speculative_step import drafted_sequences, drafted_step
from steptime.physics.step import Step
from steptime.validation.published_deployments import with_contexts

if TYPE_CHECKING:
    from steptime.validation.predictions import Runs

# share of a closed loop's requests that start with it: benchmarks send ten for each one in flight
STARTING = 0.1
# of an output: requests of equal length drift apart by as much, since hosts and clients do not keep step
DRIFT = 0.005
# that engines read in a step by default: their activations take memory
STEP_TOKENS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """Times of closed loops: arrays of one shape.

    tpot, ttft, ttft_median [s]: mean time per token, mean and median first token; running: sequences that have a seat; decode:
    their step; decode_share: share of `tpot` that is a sequence's own steps.
    """

    tpot: Array
    ttft: Array
    ttft_median: Array
    running: Array
    decode: Step
    decode_share: Array


def running_sequences(
    model: Model, system: System, *, context: Number, layout: Layout, engine: Engine, concurrency: Number, drafts: int = 0
) -> Number:
    """Return how many of `concurrency` sequences [per replica] run at once: as many as have room for `context` [tokens].

    Where this count leaves room for none, all of them run: the run was made, so that its server found room.
    """
    fit = drafted_sequences(
        model, system, context=context, drafts=drafts, layout=layout, engine=engine, step_tokens=STEP_TOKENS
    )
    return np.where(fit >= 1, np.minimum(concurrency, np.maximum(fit, 1)), concurrency)


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
    drafts: int = 0,
    acceptance: Number = 1.0,
    interval: Number = 1.0,
    prompts: bool = True,
    engine: Engine,
) -> ClosedLoop:
    """Return the times of closed loops of `concurrency` requests in one replica; numbers are arrays that broadcast.

    starting: share of the requests of the whole loop that come together at its start; half of the burst is the wait of the mean
    one, and no median one is among them. drafts [tokens a step] and acceptance [tokens that a step yields]. interval [decode
    steps] between two looks at what is new: a first token is seen `interval - 1` steps later. prompts: whether the same chips
    read them; a pool that only decodes has no first tokens.
    """
    context = input_tokens + output_tokens / 2
    running = running_sequences(
        model, system, context=context, layout=layout, engine=engine, concurrency=concurrency, drafts=drafts
    )
    decode = drafted_step(model, system, drafts=drafts, batch=running, context=context, layout=layout, engine=engine)
    decode_tpot = decode.total / acceptance
    if not prompts:
        nothing = np.full_like(decode_tpot, np.nan)
        return ClosedLoop(
            tpot=decode_tpot,
            ttft=nothing,
            ttft_median=nothing,
            running=np.asarray(running),
            decode=decode,
            decode_share=np.ones_like(decode_tpot),
        )
    arguments: dict[str, Any] = {"prompts": layout.dp, "drafts": drafts, "layout": layout, "engine": engine}
    prefill_only = drafted_step(model, system, tokens=input_tokens, **arguments, parts=False).total
    chunks = _chunks(input_tokens, engine)
    mixed_step = drafted_step(
        model,
        system,
        tokens=input_tokens / chunks,
        # of a chunk in the mean
        prefix=input_tokens * (1 - 1 / chunks) / 2,
        batch=running,
        context=context,
        **arguments,
        parts=False,
    )
    first = np.asarray(engine.scheduler.prefill_first) > 0.5
    prefill, prompt_seconds = (
        np.where(first, prefill_only, chunks * (mixed_step.total - decode.total)),
        np.where(first, prefill_only, chunks * mixed_step.total),
    )
    burst, decoding = running / layout.dp * prefill, output_tokens * decode_tpot
    together = engine.scheduler.prefill_first * staying(np.maximum(spread, DRIFT) * decoding / burst, 1 / starting)
    tpot = decode_tpot + burst / output_tokens * (1 - together / 2)
    busy = burst / (burst + decoding)
    median = decode.total / 2 + prompt_seconds + prefill * busy + together * burst / 2
    mean = median + (1 - together) * starting * burst / 2
    later = (concurrency - running) / running * output_tokens * tpot + (interval - 1) * decode.total
    return ClosedLoop(
        tpot=tpot,
        ttft=np.asarray(closed_ttft(mean, engine) + later),
        ttft_median=np.asarray(closed_ttft(median, engine) + later),
        running=np.asarray(running),
        decode=decode,
        decode_share=decode_tpot / tpot,
    )


def _chunks(tokens: Number, engine: Engine) -> Number:
    """Return in how many chunks an engine reads a prompt."""
    budget = np.asarray(engine.scheduler.step_tokens)
    return np.where(budget > 0, np.ceil(tokens / np.maximum(budget, 1)), 1.0)


def staying(drift: Number, rounds: Number) -> Number:
    r"""Share of a burst that is still together in the mean of so many rounds, with a `drift` of $x$ in each.

    Against simulations of ten rounds of public runs on SGLang, times per token are off by 1.4 % in the mean where lengths were
    drawn (721 runs), by 5 % where all were alike (185).

    >>> [round(float(staying(x, 10.0)), 3) for x in (1e-9, 0.1, 1.0)], round(float(staying(1.0, 1.0)), 3)
    ([1.0, 0.664, 0.189], 0.5)
    """
    drift, later_rounds = np.maximum(drift, 1e-6), np.maximum(np.asarray(rounds) - 1, 1e-6)
    share: Number = np.log1p(later_rounds * drift / (1 + drift)) / (later_rounds * drift)
    return share


def round_time(wait: Number, decoding: Number, *, spread: Number, clients: Number, rounds: Number) -> Array:
    r"""Return the time of a closed loop [s] over the rounds of its clients: while the last requests end, others are over.

    A request takes $W$: its `wait` for the first token and $D$ of `decoding` [s]. Lengths drawn evenly from $(1 \pm s)$ of
    their mean part clients by $s D \sqrt{R / 3}$ in $R$ rounds, and the loop ends with the last of $C$: $b_C$ deviations later
    (`expected_maximum`), at most half a request, since whoever is free takes the next one:

    $$ t = W + \min(b_C\, s\, D \sqrt{R / 3},\ W / 2) / R $$

    Within 1 % of simulated loops of ten rounds, of 4 to 1,024 clients. Public runs that tell the means of all times deliver
    97.5 % of $C / W$ at the median (176 closed loops), on separate pools 96.0 % (127).

    >>> [round(10 / float(round_time(1.0, 9.0, spread=1 / 9, clients=c, rounds=10)), 3) for c in (1, 4, 16, 64, 1024)]
    [1.0, 0.981, 0.969, 0.959, 0.952]
    """
    lag = expected_maximum(0.0, np.square(spread * np.asarray(decoding)) * rounds / 3, clients)
    residence = wait + decoding
    round_seconds: Array = residence + np.minimum(lag, residence / 2) / rounds
    return round_seconds


def solve_closed_loops(runs: Runs, engine: Engine) -> ClosedLoop:
    """Return the closed loops of a group in closed form; constants of the engine may be arrays of shape (n, 1)."""
    starting = np.minimum(1.0, runs.concurrency / runs.requests)
    engine = with_contexts(engine, runs.contexts)
    return closed_loop(**runs.loop(), starting=starting, acceptance=runs.acceptance, prompts=runs.prompts, engine=engine)


def closed_ttft(queued: Number, engine: Engine) -> Number:
    """Return the time to first token [s] of a closed loop in which a prompt queue takes `queued` [s] (`closed_loop`)."""
    return engine.scheduler.seconds_per_request + engine.scheduler.first_token_factor * queued
