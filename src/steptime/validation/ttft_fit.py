r"""Time to first token of benchmark runs: each row a closed loop of C clients that all ask at once at first.

The simulated queue gives what a request waits for prompts before it and for its own. On top of it comes what no step time
holds: $a + b I$ seconds before the request is in the queue (HTTP, tokenising $I$ tokens), and $n$ decode steps until its first
token is seen, $w$ more where attention groups wait until each has a prompt, and $i - 1$ more where the deployment looks for
what is new every $i$ steps:

$$ TTFT = a + b I + Q(a + b I) + (n + w [d > 1] + i - 1)\, t $$

The first requests of a run wait $s$ seconds more, for kernels that are compiled and tuned at first use: where public runs on
SGLang tell means beside medians, means are 2 to 8 s later for each of the first requests than a queue explains, whatever their
number. A mean holds that of the share of requests that start a run; of a median, nobody is among them.

$Q$ depends on $a$ and $b$ a little: who comes later finds others before him. `fit` fits the five to measured times in their
logarithms, with a prior and a loss that all but ignores runs far off: deployments have flags (tokens sent in groups, batches
that wait to fill, limits on sequences) that no column tells. Runs of one model on one system share such flags, so that they
count as `MOST_PER_PAIR` of them at most, and the prior, one for all engines, says what few of them leave open: one step makes
the token and one more runs ahead. What is left of the step under way when a request comes is part of $Q$.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import Array, Number
from steptime.physics.engine import Engine, constant
from steptime.physics.engine_parameters import RUN_WAITS
from steptime.physics.layout import Layout
from steptime.simulation.loop_state import DONE
from steptime.simulation.replica_pools import serve
from steptime.simulation.scheduling_policy import Policy, engine_policy_kind, engine_token_budget
from steptime.simulation.simulator import kv_room
from steptime.simulation.step_time_model import Pace, sample_pace
from steptime.simulation.traffic import Lengths, closed_loop
from steptime.validation.closed_loop import DRIFT

USUAL = np.log([0.012, 3e-6, 2.0, 2.0, 1.0])
# of their logarithms, before any run
PRIOR_DEVIATIONS = np.array([0.5, 0.5, 0.3, 1.5, 1.0])
# of a prior: a constant that is zero has no logarithm
LEAST = np.array([1e-4, 1e-8, 0.1, 0.1, 1e-3])
# of a user's deployment about an engine
OWN_DEVIATIONS = np.array([0.5, 0.5, 0.5, 0.5, 1.0])
# runs that those of one model on one system count as, at most
MOST_PER_PAIR = 10.0
# scatter of log(TTFT) of runs that are what they seem: repeats of one run differ by 4 %
NOISE = 0.05
# of a [s] and n, for the fit
STARTS = ((0.003, 1.0), (0.02, 3.0), (0.003, 8.0), (0.003, 30.0))
# of s [s], with each of those
STARTING = (0.03, 1.0, 3.0)
# Rounds simulated with MANY_CLIENTS or more, and with fewer; the last stand for all others.
ROUNDS, ROUNDS_OF_FEW_CLIENTS, MANY_CLIENTS = 4, 10, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Loops:
    """Closed loops, all arrays of one shape: what each waits and how it goes on.

    queued, half: mean and median time from the place in the queue to the end of the prompt [s]; step: mean time of a decode
    step [s]; prompt: mean prompt tokens; groups: attention groups; interval: decode steps between two looks at what is new;
    starting: share of its requests that start it.
    """

    queued: Array
    half: Array
    step: Array
    prompt: Array
    groups: Array
    interval: Array
    starting: Array

    def ttft(self, constants: Array, *, median: bool = False) -> Array:
        """Mean or median time to first token [s] with `constants` in the order of RUN_WAITS."""
        a, b, n, w, start = constants
        steps = n + w * (self.groups > 1) + self.interval - 1
        waited = self.half if median else self.queued + start * self.starting
        seconds: Array = a + b * self.prompt + waited + steps * self.step
        return seconds


def wait_constants(engine: Engine) -> Array:
    """Return the constants of an engine in the order of RUN_WAITS."""
    return np.array([float(constant(engine, name)) for name in RUN_WAITS])


def closed_loops(
    model: Model,
    system: System,
    *,
    layout: Layout,
    concurrency: Array,
    input_tokens: Array,
    output_tokens: Array,
    requests: Array,
    spread: Number = 0.0,
    drafts: int = 0,
    acceptance: Number = 1.0,
    interval: Number = 1.0,
    engine: Engine,
    seed: int = 0,
) -> Loops:
    """Simulate closed loops of one model on one system; ways of `layout` and all others broadcast, one entry a run.

    input_tokens and output_tokens are means; lengths are drawn evenly from (1 ± spread) of them, at least `closed.DRIFT`.
    requests: of the whole loop, at least one of each client. Runs that share a layout share a pace. Requests in flight are
    limited by the cache that the chips have room for; where by this count not one request has room, nothing limits them, since
    the run was made. Prompts come first where `engine.scheduler.prefill_first`.
    """
    columns = np.broadcast_arrays(*(np.asarray(x) for x in (layout.tp, layout.pp, layout.dp, layout.ep, concurrency)))
    table = np.stack([x.ravel() for x in columns], axis=1).astype(np.int64)
    n = len(table)
    inputs, outputs = (np.broadcast_to(np.maximum(x, 2.0), n) for x in (input_tokens, output_tokens))
    spreads, gained = (np.broadcast_to(x, n) for x in (np.maximum(spread, DRIFT), acceptance))
    total = np.broadcast_to(np.maximum(np.ceil(requests), table[:, 4]), n)
    longest = (1 + spreads) * np.stack([inputs, outputs])
    kind = engine_policy_kind(engine)
    queued, half, step, prompt = (np.full(n, np.nan) for _ in range(4))
    for indices, run_layout in _group_by_layout(table[:, :4]):
        clients, long = table[indices, 4], longest.sum(axis=0)
        budget = [engine_token_budget(engine, prompt=float(longest[0, k]), batch=table[k, 4] / run_layout.dp) for k in indices]
        pace = sample_pace(
            model, system, layout=run_layout, engine=engine, max_num_seqs=int(max(clients)), max_num_batched_tokens=max(budget),
            contexts=(float(min(inputs[indices])), float(max(long[indices]))), query=drafts + 1, check=False,
        )  # fmt: skip
        for k, tokens in zip(indices, budget, strict=True):
            context = float(inputs[k] + outputs[k] / 2)
            room = kv_room(model, system, layout=run_layout, engine=engine, context=context, step_tokens=tokens, drafts=drafts)
            policy = Policy(
                kind=kind,
                max_num_seqs=int(table[k, 4]),
                max_num_batched_tokens=tokens,
                kv_tokens=room if room >= long[k] else math.inf,
                when_full="queue",
                speculative_tokens=drafts,
                acceptance_length=float(gained[k]),
            )
            queued[k], half[k], step[k], prompt[k] = _loop(
                pace, policy, int(table[k, 4]), (float(inputs[k]), float(outputs[k]), float(spreads[k])), int(total[k]), seed
            )
    intervals = np.broadcast_to(np.asarray(interval, dtype=np.float64), n)
    share = np.minimum(table[:, 4] / total, 1.0)
    return Loops(
        queued=queued, half=half, step=step * gained, prompt=prompt, groups=table[:, 2], interval=intervals, starting=share
    )


def _group_by_layout(sizes: Array) -> Iterator[tuple[Array, Layout]]:
    """Rows that share ways of parallelism (tp, pp, dp, ep), and their layout."""
    for row in np.unique(sizes, axis=0):
        tp, pp, dp, ep = (int(x) for x in row)
        yield np.flatnonzero((sizes == row).all(axis=1)), Layout(tp=tp, pp=pp, dp=dp, ep=ep, microbatches=pp)


def _loop(
    pace: Pace, policy: Policy, clients: int, lengths: tuple[float, float, float], total: int, seed: int
) -> tuple[float, float, float, float]:
    """Mean and median time of one loop from the queue to the end of a prompt [s]; means of time between tokens [s], prompt."""
    inputs, outputs, spread = lengths
    shape: dict[str, Any] = {"shape": "uniform", "spread": spread}
    n = min(total, clients * (ROUNDS if clients >= MANY_CLIENTS else ROUNDS_OF_FEW_CLIENTS))
    traffic = closed_loop(clients, n, Lengths(mean=inputs, **shape), Lengths(mean=outputs, **shape), seed=seed)
    requests, _, _ = serve(traffic, policy, pace)
    served = requests["status"] == DONE
    weight = served * np.where(np.arange(n) < clients, 1.0, (total - clients) / max(n - clients, 1))
    if not weight.any():
        return math.nan, math.nan, math.nan, math.nan
    between = (requests["finish"] - requests["first"]) / np.maximum(requests["outputs"] - 1, 1)
    means = (
        np.average(np.where(served, figures, 0.0), weights=weight)
        for figures in (requests["first"] - requests["ready"], between, requests["inputs"])
    )
    queued, step, prompt = map(float, means)
    return queued, _weighted_median(requests["first"] - requests["ready"], weight), step, prompt


def _weighted_median(values: Array, weight: Array) -> float:
    """Median of values that count as often as `weight` says.

    >>> _weighted_median(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 5.0]))
    2.0
    """
    order = np.argsort(values)
    sums = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(sums, sums[-1] / 2)])


def fit(
    parts: list[Loops],
    measured: Array,
    medians: Array,
    mean: Array = USUAL,
    deviation: Array = PRIOR_DEVIATIONS,
    pairs: list[str] | None = None,
) -> Array:
    """Return the constants, in the order of RUN_WAITS, fitted to measured TTFT [s] of loops in the order of `parts`.

    medians: which of them are medians, not means. mean and deviation: prior of the constants' logarithms. pairs: a label of
    each part; runs of one label count as `MOST_PER_PAIR` at most. By default each counts as one.
    """
    from scipy.optimize import least_squares

    all_loops = Loops(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in Loops.__slots__})
    has_ttft = np.isfinite(measured) & np.isfinite(np.where(medians, all_loops.half, all_loops.queued))
    loops = Loops(**{name: getattr(all_loops, name)[has_ttft] for name in Loops.__slots__})
    log_ttft, half = np.log(measured[has_ttft]), medians[has_ttft]
    weight: Number = 1.0
    if pairs is not None:
        labels = np.repeat(np.array(pairs, dtype=object), [len(part.queued) for part in parts])[has_ttft]
        weight = weights(labels)

    def residuals(logs: Array) -> Array:
        constants = np.exp(logs)
        predicted = np.where(half, loops.ttft(constants, median=True), loops.ttft(constants))
        errors = (np.log(predicted) - log_ttft) / NOISE
        soft = weight * np.sign(errors) * np.sqrt(np.log1p(errors**2))
        return np.concatenate([soft, (logs - mean) / deviation])

    starts = [mean, *(np.array([math.log(a), mean[1], math.log(n), mean[3], math.log(s)]) for a, n in STARTS for s in STARTING)]
    best = min((least_squares(residuals, start) for start in starts), key=lambda solution: solution.cost)
    constants: Array = np.exp(best.x)
    return constants


def weights(labels: Array) -> Array:
    """Return the weight of each run's error, so that the squares of those of one label add up to at most `MOST_PER_PAIR`.

    >>> weights(np.array(["a"] * 40 + ["b"]))[[0, 40]].tolist()
    [0.5, 1.0]
    """
    _, place, count = np.unique(labels.astype(str), return_inverse=True, return_counts=True)
    run_weights: Array = np.sqrt(np.minimum(1.0, MOST_PER_PAIR / count))[place]
    return run_weights
