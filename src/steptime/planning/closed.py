"""Closed loops: as many requests in flight as there are clients, each of which asks again when it is answered."""

from __future__ import annotations

import numpy as np

from steptime.machines.system import System
from steptime.models.model import Model
from steptime.numbers import Number
from steptime.physics.engine import Engine
from steptime.physics.layout import Layout
from steptime.physics.memory import sequences_that_fit
from steptime.physics.step import Step, decode_step, prefill_step

STARTING = 0.1  # share of a closed loop's requests that start with it: benchmarks send ten for each one in flight
DRIFT = 0.005  # of an output: requests of equal length drift apart by as much, since hosts and clients do not keep step
STEP_TOKENS = 2048  # that engines read in a step by default: their activations take memory


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
    running = running_of(model, system, context=context, layout=layout, engine=engine, wanted=concurrency)
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
    return tpot, closed_ttft(queued, engine) + waiting, decode


def running_of(model: Model, system: System, *, context: Number, layout: Layout, engine: Engine, wanted: Number) -> Number:
    """Return how many of the `wanted` sequences [per replica] run at once: as many as have room for `context` [tokens].

    Where this count leaves room for none, all of them run: the run was made, so that its server found room.
    """
    fit = sequences_that_fit(model, system, context=context, layout=layout, engine=engine, step_tokens=STEP_TOKENS)
    return np.where(fit >= 1, np.minimum(wanted, np.maximum(fit, 1)), wanted)


def closed_ttft(queued: Number, engine: Engine) -> Number:
    """Return the time to first token [s] of a closed loop in which a prompt queue takes `queued` [s] (`closed_loop`)."""
    return engine.scheduler.seconds_per_request + engine.scheduler.first_token_factor * queued
