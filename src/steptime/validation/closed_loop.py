r"""Closed loops in closed form: a constant number of requests in flight, with and without speculative tokens.

A new request follows each request that ends. While a request decodes, the prompts of the $C - 1$ others arrive. Their
prefill $P$ delays it. If the engine runs prefill first, $P$ is a separate pass. With chunked prefill, $P$ is the time that the
chunks add to the decode step. Plans and the simulator use the same rule.

A step with $k$ speculative tokens yields $a$ tokens per sequence on average. $O$ output tokens have $O - 1$ intervals. This
gives the time per token.

$$ t = t_{step} / a + \frac{C - 1}{O - 1} P. $$

An engine that runs prefill first starts the requests of a burst together: they share passes up to its token budget, so that
$P$ is smaller for them. They end together unless their lengths differ.
In the $r$-th round of all clients the share $1 / (1 + r x)$ is still together. Here $x = s O t_{step} / (a C P)$. The
spread $s$ of lengths is a share of the mean, at least `DRIFT`. The average share $\omega$ over $R$ rounds waits for half of the
prefill burst before the first token.

$$ \omega = \frac{1}{x (R - 1)} \ln \frac{1 + R x}{1 + x}. $$

Of the $C$ requests, those run whose KV caches fit in memory. The others wait for a slot, and this wait is part of TTFT.

A decode-only pool has no prefill: $t = t_{step} / a$.

Source: conservation of requests (Little's law), lecture section 4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from steptime.blackboard.expert_activation import expected_maximum
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import Array, Number
from steptime.physics.engine import Engine, at_release, with_sampling
from steptime.physics.engine_releases import GREEDY
from steptime.physics.layout import Layout
from steptime.physics.speculative_step import drafted_sequences, drafted_step
from steptime.physics.step import Step, mixed_step
from steptime.validation.published_deployments import with_contexts, with_launch, with_schedule
from steptime.validation.run_table import AXES

# Share of a closed loop's requests that start with it: benchmarks send ten per request in flight.
STARTING = 0.1
# Drift as a share of the output: requests of equal length separate because hosts and clients are not synchronized.
DRIFT = 0.005
# Default prefill tokens per step; their activations take memory.
STEP_TOKENS = 2048
# Tokens of a block of the KV cache. Of a prompt that the prefix cache holds, the last block is computed again (vLLM,
# v1/core/kv_cache_manager.py, max_cache_hit_length).
CACHE_BLOCK = 16
# Tokens of a pass of a static batch (-ub of llama-batched-bench in the public runs).
STATIC_TOKENS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Measured runs that share model, formats, drafts, system and engine; arrays of shape (runs,).

    Lengths are means. concurrency and requests (of the whole run) are those of one of `replicas`. spread: spread of lengths as
    a share of the mean. drafts: speculative tokens per step; acceptance: tokens that a step yields, NaN if unknown. interval:
    decode steps between two checks for new output. slots: most sequences that a replica runs at once; infinite without a
    limit. budget: prompt tokens of a data-parallel rank in a step; 0 for the engine's own. hits: share of requests whose
    prompt is in the prefix cache. prompts: whether the same chips run prefill; False for the decode pool of separate pools.
    contexts: value of `latent_contexts`. launch: constants that its script changes. version: a release of the engine;
    sampling: how tokens were drawn; is_median: whether the measured time per token is the median of intervals between tokens.
    is_static: whether all requests of a run are one static batch: the prefill of all of them, then decode steps. schedule:
    "first" or "mixed" (`run_table.PREFILL_SCHEDULE`); "" for the engine's own.
    """

    index: Array
    model: Model
    system: System
    engine: str
    layout: Layout
    concurrency: Array
    input_tokens: Array
    output_tokens: Array
    spread: Array
    requests: Array
    replicas: Array
    acceptance: Array
    interval: Array
    slots: Array
    budget: Array
    hits: Array
    drafts: int = 0
    prompts: bool = True
    contexts: float = math.inf
    launch: tuple[tuple[str, float], ...] = ()
    version: str = ""
    sampling: str = GREEDY
    is_median: bool = False
    is_static: bool = False
    schedule: str = ""

    def launched(self, engine: Engine) -> Engine:
        """Return the engine of these runs: its release, its sampling, its limit on contexts and its schedule of prefill.

        Args:
            engine: An engine as its file describes it.

        Returns:
            The engine.
        """
        engine = with_contexts(with_sampling(at_release(engine, self.version), self.sampling), self.contexts)
        return with_schedule(with_launch(engine, self.launch), self.schedule)

    def loop(self) -> dict[str, Any]:
        """Return the arguments that the closed form and the simulation share.

        Returns:
            Values by argument.
        """
        lengths = ("input_tokens", "output_tokens", "spread")
        names = ("model", "system", "layout", "concurrency", *lengths, "drafts", "interval", "slots", "budget", "hits")
        return {name: getattr(self, name) for name in names}

    def select(self, positions: Array) -> Runs:
        """Select some of the runs.

        Args:
            positions: Positions, or booleans of shape (runs,).

        Returns:
            The selected runs.
        """
        sizes: dict[str, Any] = {name: getattr(self.layout, name)[positions] for name in (*AXES, "microbatches")}
        attributes = {f.name: getattr(self, f.name) for f in fields(self)}
        arrays: dict[str, Any] = {name: value[positions] for name, value in attributes.items() if isinstance(value, np.ndarray)}
        return replace(self, **arrays, layout=Layout(**sizes))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """Times of closed loops, as arrays of one shape.

    tpot: mean time per output token [s]; ttft and ttft_median: mean and median time to first token [s]; running: sequences that
    have a slot; decode: their decode step; decode_share: share of `tpot` that is decode; prompt_seconds: prefill of a prompt
    alone.
    """

    tpot: Array
    ttft: Array
    ttft_median: Array
    running: Array
    decode: Step
    decode_share: Array
    prompt_seconds: Array


def running_sequences(
    model: Model, system: System, *, context: Number, layout: Layout, engine: Engine, concurrency: Number, drafts: int = 0
) -> Number:
    """Return how many of the concurrent sequences run at once in a replica.

    If no sequence fits by this estimate, all of them run: the run was measured, so the server had room.

    Args:
        model: Model.
        system: System.
        context: Tokens in the KV cache of each sequence.
        layout: Parallel sizes.
        engine: Engine.
        concurrency: Sequences per replica.
        drafts: Speculative tokens per step.

    Returns:
        Running sequences, with the broadcast shape of the arguments.
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
    slots: Number = np.inf,
    budget: Number = 0.0,
    hits: Number = 0.0,
    prompts: bool = True,
    engine: Engine,
) -> ClosedLoop:
    """Compute the times of closed loops in one replica.

    Numbers are arrays that broadcast.

    Args:
        model: Model.
        system: System.
        layout: Parallel sizes.
        concurrency: Requests in flight per replica.
        input_tokens: Mean prompt tokens.
        output_tokens: Mean output tokens.
        spread: Spread of lengths as a share of the mean.
        starting: Share of all requests that arrive together at the start. The mean request waits for half of this burst;
            the median request is not part of it.
        drafts: Speculative tokens per step.
        acceptance: Tokens that a step yields per sequence.
        interval: Decode steps between two checks for new output; a first token appears `interval - 1` steps later.
        slots: Most sequences that the replica runs at once; further clients wait.
        budget: Prompt tokens of a data-parallel rank in a step; 0 for the engine's own.
        hits: Share of requests whose prompt is in the prefix cache; all prompts count as their mean.
        prompts: Whether the same chips run prefill. A decode-only pool has no TTFT.
        engine: Engine.

    Returns:
        Times [s], running sequences and the decode step.
    """
    context = input_tokens + output_tokens / 2
    running = running_sequences(
        model, system, context=context, layout=layout, engine=engine, concurrency=concurrency, drafts=drafts
    )
    running = np.minimum(running, slots)
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
            prompt_seconds=nothing,
        )
    arguments: dict[str, Any] = {"prompts": layout.dp, "drafts": drafts, "layout": layout, "engine": engine}
    cached = hits * np.maximum(np.asarray(input_tokens) - CACHE_BLOCK, 0.0)
    new_tokens = input_tokens - cached
    prefill_only = drafted_step(model, system, tokens=new_tokens, prefix=cached, **arguments, parts=False).total
    budget = np.where(np.asarray(budget) > 0, budget, engine.scheduler.step_tokens)
    chunks = np.where(budget > 0, np.ceil(new_tokens / np.maximum(budget, 1)), 1.0)
    mixed_step = drafted_step(
        model,
        system,
        tokens=new_tokens / chunks,
        # Mean prefix of a prefill chunk.
        prefix=cached + new_tokens * (1 - 1 / chunks) / 2,
        batch=running,
        context=context,
        **arguments,
        parts=False,
    )

    # Prefill first: a separate pass. Chunked prefill: the time that the chunks add to decode steps.
    first = np.asarray(engine.scheduler.prefill_first) > 0.5
    prefill, prompt_seconds = (
        np.where(first, prefill_only, chunks * (mixed_step.total - decode.total)),
        np.where(first, prefill_only, chunks * mixed_step.total),
    )
    # Prompts that wait together share passes.
    shared = np.clip(np.floor(budget / new_tokens), 1.0, np.maximum(np.asarray(running) / layout.dp, 1.0))
    wave = prefill
    if np.any(first & (shared > 1)):
        arguments["prompts"] = layout.dp * shared
        pass_seconds = drafted_step(model, system, tokens=new_tokens, prefix=cached, **arguments, parts=False).total
        wave = np.where(first & (shared > 1), pass_seconds / shared, prefill)
    burst, decoding = running / layout.dp * wave, output_tokens * decode_tpot
    together = engine.scheduler.prefill_first * staying(np.maximum(spread, DRIFT) * decoding / burst, 1 / starting)
    prefill = together * wave + (1 - together) * prefill
    delay = np.maximum(np.asarray(running) - 1, 0.0) / layout.dp * prefill
    tpot = decode_tpot + delay / np.maximum(np.asarray(output_tokens) - 1, 1.0) * (1 - together / 2)
    busy = burst / (burst + decoding)
    median = decode.total / 2 + prompt_seconds + prefill * busy + together * burst / 2
    mean = median + (1 - together) * starting * burst / 2

    # Requests without a slot wait until a running one ends.
    later = (concurrency - running) / running * output_tokens * tpot + (interval - 1) * decode.total
    return ClosedLoop(
        tpot=tpot,
        ttft=np.asarray(closed_ttft(mean, engine) + later),
        ttft_median=np.asarray(closed_ttft(median, engine) + later),
        running=np.asarray(running),
        decode=decode,
        decode_share=decode_tpot / tpot,
        prompt_seconds=np.asarray(prefill_only),
    )


def staying(drift: Number, rounds: Number) -> Number:
    """Return the mean share of a burst that is still together.

    The error was measured on simulations of ten rounds of public runs on SGLang. It is 1.4 % on average if lengths were
    drawn at random (721 runs), and by 5 % if all lengths were equal (185).

    Args:
        drift: Drift $x$ per round (module docstring).
        rounds: Rounds to average over.

    Returns:
        Share from 0 to 1.

    >>> [round(float(staying(x, 10.0)), 3) for x in (1e-9, 0.1, 1.0)], round(float(staying(1.0, 1.0)), 3)
    ([1.0, 0.664, 0.189], 0.5)
    """
    drift, later_rounds = np.maximum(drift, 1e-6), np.maximum(np.asarray(rounds) - 1, 1e-6)
    share: Number = np.log1p(later_rounds * drift / (1 + drift)) / (later_rounds * drift)
    return share


def round_time(wait: Number, decoding: Number, *, spread: Number, clients: Number, rounds: Number) -> Array:
    r"""Return the mean time of a round of a closed loop, including its tail.

    While the last requests finish, the other clients are idle. A request takes $W$: its wait for the first token and $D$ of
    decode. Lengths drawn evenly from $(1 \pm s)$ times the mean separate the clients by $s D \sqrt{R / 3}$ in $R$ rounds. The
    loop ends with the last of $C$ clients, $b_C$ deviations later (`expected_maximum`). The delay is at most half a request,
    because a free client takes the next request:

    $$ t = W + \min(b_C\, s\, D \sqrt{R / 3},\ W / 2) / R. $$

    The error is below 1 % for simulated loops of ten rounds with 4 to 1,024 clients. Public runs that report the mean of all
    times deliver 97.5 % of $C / W$ at the median (176 closed loops). Runs on separate pools deliver 96.0 % (127).

    Args:
        wait: Time to first token [s].
        decoding: Time in decode per request [s].
        spread: Spread of lengths as a share of the mean.
        clients: Requests in flight.
        rounds: Requests per client.

    Returns:
        Seconds per round.

    >>> [round(10 / float(round_time(1.0, 9.0, spread=1 / 9, clients=c, rounds=10)), 3) for c in (1, 4, 16, 64, 1024)]
    [1.0, 0.981, 0.969, 0.959, 0.952]
    """
    lag = expected_maximum(0.0, np.square(spread * np.asarray(decoding)) * rounds / 3, clients)
    residence = wait + decoding
    round_seconds: Array = residence + np.minimum(lag, residence / 2) / rounds
    return round_seconds


def solve_closed_loops(runs: Runs, engine: Engine) -> ClosedLoop:
    """Solve the closed loops of a group of runs in closed form.

    Args:
        runs: Group of runs.
        engine: Engine; its constants may be arrays of shape (n, 1).

    Returns:
        Times of the runs, of shape (runs,) or (n, runs).
    """
    engine = runs.launched(engine)
    if runs.is_static:
        return static_batch(runs, engine)
    starting = np.minimum(1.0, runs.concurrency / runs.requests)
    return closed_loop(**runs.loop(), starting=starting, acceptance=runs.acceptance, prompts=runs.prompts, engine=engine)


def static_batch(runs: Runs, engine: Engine) -> ClosedLoop:
    """Return the times of static batches, such as those of `llama-batched-bench`.

    The prompts of a batch share passes of `STATIC_TOKENS` tokens. A longer prompt takes several passes.

    Args:
        runs: Group of runs.
        engine: Engine.

    Returns:
        Decode steps of the whole batch; TTFT is the prefill of the whole batch.
    """
    shared: dict[str, Any] = {"layout": runs.layout, "engine": engine}
    context = runs.input_tokens + runs.output_tokens / 2
    decode = mixed_step(runs.model, runs.system, batch=runs.concurrency, context=context, **shared)
    tokens = np.minimum(runs.input_tokens, STATIC_TOKENS)
    together = np.clip(np.floor(STATIC_TOKENS / runs.input_tokens), 1.0, runs.concurrency)
    prefill: Array = np.zeros_like(decode.total)
    for start in range(0, int(np.max(runs.input_tokens)), STATIC_TOKENS):
        pass_seconds = mixed_step(
            runs.model, runs.system, prompts=together, tokens=tokens, prefix=float(start), parts=False, **shared
        ).total
        # The last chunk of a prompt may be shorter.
        part = np.clip((runs.input_tokens - start) / tokens, 0.0, 1.0)
        prefill = prefill + part * pass_seconds * np.ceil(runs.concurrency / together)
    ones = np.ones_like(decode.total)
    running = runs.concurrency * ones
    return ClosedLoop(
        tpot=decode.total, ttft=prefill, ttft_median=prefill, running=running, decode=decode, decode_share=ones,
        prompt_seconds=prefill,
    )  # fmt: skip


def closed_ttft(queued: Number, engine: Engine) -> Number:
    """Return TTFT of a closed loop.

    Args:
        queued: Time in the prefill queue [s].
        engine: Engine with its fixed wait and its factor on the queue.

    Returns:
        Time to first token [s].
    """
    return engine.scheduler.seconds_per_request + engine.scheduler.first_token_factor * queued
