r"""TTFT of benchmark runs: constants of the waits that are not part of a step.

Each run is a closed loop of C clients that all send a request at the start.

The simulation gives the time in the prefill queue and the prefill itself, $Q$. Other waits are not part of a step. They are:

- $a + b I$ seconds before a request with $I$ prompt tokens enters the queue (HTTP, tokenization);
- $n$ decode steps until its first token appears;
- $w$ more decode steps if data-parallel ranks wait until each has a prompt;
- $i - 1$ more decode steps if the deployment checks for new output every $i$ steps.

$$ TTFT = a + b I + Q(a + b I) + (n + w [d > 1] + i - 1)\, t. $$

The first requests of a run wait $s$ seconds more, for kernels that are compiled and tuned at first use. Some public runs on
SGLang report means and medians. Their means are later by 2 to 8 s for each of the first requests than a queue explains, for any
number of these requests. A mean includes this wait for the share of requests that start a run. A median does not.

vLLM's server tokenizes up to $T$ = 32 prompts together in one thread (`TOKENIZED_TOGETHER`). So the first requests of a run
enter the queue when all prompts of their batch are tokenized. The mean includes $b I (\min(C, T) - 1)$ for their share. Later
batches are tokenized while the chips run the prefill of earlier ones.

$Q$ depends slightly on $a$ and $b$: a later request finds others in the queue. `fit` fits the five constants to measured times,
in their logarithms, with a prior. Its loss almost ignores outliers, because deployments have flags that no column records
(tokens sent in groups, batches that wait to fill, limits on sequences).

The prior is the same for all engines: one step generates the token and one more runs ahead. The rest of the step in progress
when a request arrives is part of $Q$.
"""

from __future__ import annotations

import math
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
from steptime.simulation.scheduling_policy import Policy, engine_policy_kind, engine_token_budget, engine_when_full
from steptime.simulation.simulator import kv_room
from steptime.simulation.step_time_model import Pace, sample_pace
from steptime.validation.closed_loop import CACHE_BLOCK, DRIFT
from steptime.validation.run_table import group_positions
from steptime.workload.traffic import Lengths, closed_loop

# Scatter of log(TTFT) of correctly recorded runs; repeats of one run differ by 4 %.
NOISE = 0.05
# Start values of a [s] and n.
STARTS = ((0.003, 1.0), (0.02, 3.0), (0.003, 8.0), (0.003, 30.0))
# Start values of s [s], combined with each of these.
STARTING = (0.03, 1.0, 3.0)
# Prompts that a server tokenizes at once, by engine: vLLM, utils/async_utils.py, AsyncMicrobatchTokenizer (max_batch_size 32,
# ThreadPoolExecutor with one worker). Others tokenize prompts one by one, while chips run the prefill of earlier ones.
TOKENIZED_TOGETHER = {"vllm": 32.0}
# Simulated rounds with MANY_CLIENTS or more, and with fewer; the rounds after the first represent the rest of the run.
ROUNDS, ROUNDS_OF_FEW_CLIENTS, MANY_CLIENTS = 4, 10, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Loops:
    """Simulated closed loops; arrays of one shape.

    queued, half: mean and median time from entry in the queue to the end of prefill [s]; step: mean time of a decode step [s];
    prompt: mean prompt tokens; groups: data-parallel ranks; interval: decode steps between two checks for new output; starting:
    share of the requests that start the run; batch: prompts that are tokenized together at the start.
    """

    queued: Array
    half: Array
    step: Array
    prompt: Array
    groups: Array
    interval: Array
    starting: Array
    batch: Array

    def ttft(self, constants: Array, *, median: bool = False) -> Array:
        """Return the time to first token.

        Args:
            constants: Constants in the order of `RUN_WAITS`.
            median: Whether to return the median instead of the mean.

        Returns:
            Seconds, of shape (runs,).
        """
        a, b, n, w, start = constants
        steps = n + w * (self.groups > 1) + self.interval - 1
        tokenized = b * self.prompt
        waited = self.half if median else self.queued + self.starting * (start + tokenized * (self.batch - 1))
        seconds: Array = a + tokenized + waited + steps * self.step
        return seconds


def wait_constants(engine: Engine) -> Array:
    """Return the wait constants of an engine.

    Args:
        engine: Engine.

    Returns:
        Constants in the order of `RUN_WAITS`.
    """
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
    slots: Number = math.inf,
    budget: Number = 0.0,
    hits: Number = 0.0,
    engine: Engine,
    seed: int = 0,
) -> Loops:
    """Simulate closed loops of one model on one system.

    Parallel sizes and all arrays broadcast to one entry per run. Lengths are drawn evenly from (1 ± spread) times the mean,
    with a spread of at least `closed_loop.DRIFT`. Runs with the same layout share a model of step times. Free KV cache limits
    the requests in flight, as the engine does it (`engine_when_full`). If no request fits by this estimate, there is no limit,
    because the run was measured. Prefill has priority if `engine.scheduler.prefill_first`.

    Args:
        model: Model.
        system: System.
        layout: Parallel sizes.
        concurrency: Requests in flight.
        input_tokens: Mean prompt tokens.
        output_tokens: Mean output tokens.
        requests: Requests of the whole loop; at least one per client.
        spread: Spread of lengths as a share of the mean.
        drafts: Speculative tokens per step.
        acceptance: Tokens that a step yields.
        interval: Decode steps between two checks for new output.
        slots: Most requests that run at once; infinite without a limit.
        budget: Prompt tokens of a data-parallel rank in a step; 0 for the engine's own.
        hits: Share of requests whose prompt is in the prefix cache.
        engine: Engine.
        seed: Random seed.

    Returns:
        Waits and step times, of shape (runs,).
    """
    columns = np.broadcast_arrays(*(np.asarray(x) for x in (layout.tp, layout.pp, layout.dp, layout.ep, concurrency)))
    table = np.stack([x.ravel() for x in columns], axis=1).astype(np.int64)
    n = len(table)
    inputs, outputs = (np.broadcast_to(np.maximum(x, 2.0), n) for x in (input_tokens, output_tokens))
    spreads, gained = (np.broadcast_to(x, n) for x in (np.maximum(spread, DRIFT), acceptance))
    stated, hits = np.broadcast_to(budget, n), np.broadcast_to(hits, n)
    # Each data-parallel rank has a limit of its own, so that ranks need not have equal numbers of requests.
    at_once = np.minimum(np.broadcast_to(slots, n), table[:, 4] * table[:, 2]).astype(np.int64)
    total = np.broadcast_to(np.maximum(np.ceil(requests), table[:, 4]), n)
    longest = (1 + spreads) * np.stack([inputs, outputs])
    kind = engine_policy_kind(engine)
    queued, half, step, prompt = (np.full(n, np.nan) for _ in range(4))

    # Runs with one layout share one model of step times.
    for indices in group_positions(map(tuple, table[:, :4].tolist())):
        tp, pp, dp, ep = table[indices[0], :4].tolist()
        run_layout = Layout(tp=tp, pp=pp, dp=dp, ep=ep, microbatches=pp)
        long = longest.sum(axis=0)
        defaults = [
            engine_token_budget(engine, prompt=float(longest[0, k]), batch=table[k, 4] / run_layout.dp) for k in indices
        ]
        budgets = [int(stated[k]) or tokens for k, tokens in zip(indices, defaults, strict=True)]
        pace = sample_pace(
            model, system, layout=run_layout, engine=engine, max_num_seqs=int(max(at_once[indices])),
            max_num_batched_tokens=max(budgets), contexts=(float(min(inputs[indices])), float(max(long[indices]))),
            query=drafts + 1, check=False,
        )  # fmt: skip
        for k, tokens, default in zip(indices, budgets, defaults, strict=True):
            context = float(inputs[k] + outputs[k] / 2)
            room = kv_room(model, system, layout=run_layout, engine=engine, context=context, step_tokens=default, drafts=drafts)
            policy = Policy(
                kind=kind,
                max_num_seqs=int(at_once[k]),
                max_num_batched_tokens=tokens,
                kv_tokens=room if room >= long[k] else math.inf,
                when_full=engine_when_full(engine),
                speculative_tokens=drafts,
                acceptance_length=float(gained[k]),
            )
            lengths = float(inputs[k]), float(outputs[k]), float(spreads[k]), float(hits[k])
            queued[k], half[k], step[k], prompt[k] = _loop(pace, policy, int(table[k, 4]), lengths, int(total[k]), seed)
    intervals = np.broadcast_to(np.asarray(interval, dtype=np.float64), n)
    share = np.minimum(table[:, 4] / total, 1.0)
    together = np.minimum(table[:, 4], TOKENIZED_TOGETHER.get(engine.kernel_engine, 1.0))
    return Loops(
        queued=queued, half=half, step=step * gained, prompt=prompt, groups=table[:, 2], interval=intervals, starting=share,
        batch=together,
    )  # fmt: skip


def _loop(
    pace: Pace, policy: Policy, clients: int, lengths: tuple[float, float, float, float], total: int, seed: int
) -> tuple[float, float, float, float]:
    """Return mean and median time from the queue to the end of prefill [s], mean time between tokens [s], and mean prompt.

    lengths: mean prompt and output, their spread, and the share of prompts in the prefix cache.
    """
    inputs, outputs, spread, hits = lengths
    shape: dict[str, Any] = {"shape": "uniform", "spread": spread}
    n = min(total, clients * (ROUNDS if clients >= MANY_CLIENTS else ROUNDS_OF_FEW_CLIENTS))
    traffic = closed_loop(clients, n, Lengths(mean=inputs, **shape), Lengths(mean=outputs, **shape), seed=seed)
    is_known = np.random.default_rng((seed, n)).random(n) < hits
    cached = np.where(is_known, np.maximum(traffic.inputs - CACHE_BLOCK, 0), 0)
    requests, _, _ = serve(traffic, policy, pace, cached=cached)
    served = requests["status"] == DONE

    # The first round has the start burst; the other simulated rounds represent the rest of the run.
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
    """Return the median of weighted values.

    >>> _weighted_median(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 5.0]))
    2.0
    """
    order = np.argsort(values)
    sums = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(sums, sums[-1] / 2)])


def fit(parts: list[Loops], measured: Array, medians: Array, mean: Array, deviation: Array, weight: Number = 1.0) -> Array:
    """Fit the wait constants to measured TTFT.

    Args:
        parts: Simulated loops, by group.
        measured: Measured TTFT [s], in the order of `parts`.
        medians: Whether each value is a median instead of a mean.
        mean: Prior mean of the logarithms of the constants.
        deviation: Prior deviation of the logarithms.
        weight: Weight of the errors, one for all runs or of shape (runs,).

    Returns:
        Constants in the order of `RUN_WAITS`.
    """
    from scipy.optimize import least_squares

    all_loops = Loops(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in Loops.__slots__})
    has_ttft = np.isfinite(measured) & np.isfinite(np.where(medians, all_loops.half, all_loops.queued))
    loops = Loops(**{name: getattr(all_loops, name)[has_ttft] for name in Loops.__slots__})
    log_ttft, half = np.log(measured[has_ttft]), medians[has_ttft]
    weight = np.broadcast_to(weight, len(has_ttft))[has_ttft]

    def residuals(logs: Array) -> Array:
        constants = np.exp(logs)
        predicted = np.where(half, loops.ttft(constants, median=True), loops.ttft(constants))
        errors = (np.log(predicted) - log_ttft) / NOISE
        soft = weight * np.sign(errors) * np.sqrt(np.log1p(errors**2))
        return np.concatenate([soft, (logs - mean) / deviation])

    # The loss has several local minima; keep the best of several starts.
    starts = [mean, *(np.array([math.log(a), mean[1], math.log(n), mean[3], math.log(s)]) for a, n in STARTS for s in STARTING)]
    best = min((least_squares(residuals, start) for start in starts), key=lambda solution: solution.cost)
    constants: Array = np.exp(best.x)
    return constants
