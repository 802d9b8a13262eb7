r"""Maximum throughput under a scenario: all requests at once, the highest rate within limits, or the highest at given lengths.

In MLPerf's Offline scenario all requests are present at the start. Server and Interactive have Poisson arrivals, and 99 % of
requests must meet the limits. Maximum throughput is the best result of a benchmark over all loads. Each is the highest rate of
a steady state with prefill and decode on the same chips (`steady_state.aggregated`). The search covers batch sizes that fit in
memory and prefill chunk sizes. If a run has no layout, it covers layouts too. The number of replicas is the number that fits on
the chips. `concurrency`, if present, is the maximum batch of a replica, as MLPerf submissions set it.

**Tail.** A run that starts with all its requests takes longer than a steady state, because its last requests finish with fewer
and fewer others. While requests wait for slots, a replica delivers its steady-state rate. After that, of the $B$ sequences in
flight, $B\,S_e(x)$ remain $x$ tokens later. $S_e$ is the share of requests in progress with more than $x$ tokens left. Steps
with fewer sequences take almost the same time. A run of $n$ requests at $r$ per second therefore takes

$$ T = n / r + \int_0^\infty t(B\,S_e(x))\,dx - t(B) \int_0^\infty S_e(x)\,dx $$

with $t$ the time of a step. Sequences with more than $x$ tokens left have generated $\int_x^\infty S_e / S_e(x)$ tokens when
the last request starts, and $x$ more since then.

For example, outputs of DeepSeek-R1 have 3,700 tokens on average and 20,000 at most. Eight B200 spend a third of MLPerf's ten
minutes in the tail. The steady state itself assumes outputs of equal length.

Source: renewal theory (residual life), $S_e(x) = \int_x^\infty S(u)\,du / m$ of lengths with survival $S$ and mean $m$. Step
times come from `decode_step`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import Array, Number
from steptime.physics.chip_memory import sequences_that_fit, weights_per_chip
from steptime.physics.engine import IDEAL, Engine
from steptime.physics.layout import MODEL, Layout, collect_facts, shaped, stacked
from steptime.physics.layout_rules import allowed
from steptime.physics.step import decode_step
from steptime.physics.uncertainty import REGIMES, latency_regime
from steptime.planning.steady_state import State, aggregated, mean_context, split_chunks, ttft_seen
from steptime.validation.data_quality import WRONG
from steptime.validation.disaggregated_loop import read_workload
from steptime.validation.error_summary import with_ranges
from steptime.validation.published_deployments import count_requests, find_data_set, keeps_room, most_at_once
from steptime.validation.run_table import INTERACTIVE, LIMITS, SERVER, length_spread, numbers, run_kind
from steptime.workload.workload import Workload

# Batch sizes of the search, from one sequence to all that fit.
LEVELS = 24
# Prefill tokens per step of a data-parallel rank.
CHUNKS = (1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
# 99th percentile of an exponential distribution over its mean.
TAIL = math.log(100)
# Columns that the runs of one group share.
SCENARIO_COLUMNS = (
    "model", "system", "engine", "weight_dtype", "expert_dtype", "kv_dtype", "input_tokens", "output_tokens", "input_mean",
    "output_mean", "tp", "pp", "dp", "ep", "chips", "concurrency", "requests", "scenario", "part", *LIMITS,
)  # fmt: skip
# Points of a survival curve.
POINTS = 257
BISECTIONS = 60


def predict_highest(rows: list[dict[str, str]], model: Model, system: System, engine: Engine) -> dict[str, Any]:
    """Predict equal rows under a scenario.

    Args:
        rows: Runs of one group.
        model: Model as the engine serves it.
        system: System.
        engine: Engine.

    Returns:
        Values by field of `Predictions`, for all rows or of shape (rows,).
    """
    row = rows[0]
    work, kind = read_workload(row), run_kind(row)
    layouts, why = possible_layouts(row, model, system, work, engine)
    if why:
        return {"reason": why}
    has_limits = kind in (SERVER, INTERACTIVE)
    ttft, tpot = (float(row.get(name) or "inf") if has_limits else math.inf for name in LIMITS)
    arguments: dict[str, Any] = {"max_sequences": most_at_once(row), "is_output_reserved": keeps_room(row)}
    if has_limits:
        best = highest(model, system, work, layouts, engine, ttft=ttft, tpot=tpot, **arguments)
    else:
        states = (highest(model, system, work, [layout], engine, **arguments) for layout in layouts)
        runs = [_ended(row, model, system, work, engine, state) for state in states if state]
        best = max(runs, key=lambda state: state["output_tok_s"], default={})
    if not best:
        return {"reason": "no prediction: no load meets the limits"}

    # A throughput above that of the ideal engine cannot be right.
    bound = highest(model, system, work, layouts, IDEAL, ttft=ttft, tpot=tpot) if row.get("output_tok_s") else {}
    ceiling = bound.get("bound_tok_s", math.inf)
    reasons = np.array(
        [
            f"{WRONG}faster than physics: {speed:,.0f} tok/s, the maximum is {ceiling:,.0f}" if speed > ceiling else ""
            for speed in numbers(rows, "output_tok_s")
        ],
        dtype=object,
    )

    # If all requests arrive at once, TTFT is mostly the wait for other requests.
    figures = {name: best[name] for name in ("output_tok_s", "tpot", "bound")}
    figures["ttft"] = best["ttft"] if math.isfinite(ttft) else math.nan
    return with_ranges(figures, engine, best["regime"], system) | {"reason": reasons}


def _ended(
    row: Mapping[str, str], model: Model, system: System, work: Workload, engine: Engine, state: dict[str, Any]
) -> dict[str, Any]:
    """Return a steady state with the output rate of a run that ends."""
    lengths = Lengths(mean=float(work.output_tokens), spread=length_spread(row), longest=find_data_set(row)[1])
    replica = Replica(
        model=model, system=system, layout=state["layout"], engine=engine, batch=state["batch"],
        prompt=float(work.input_tokens), lengths=lengths,
    )  # fmt: skip
    share = share_in_steady_state(row, replica, int(state["layout"].replicas), state["rate"])
    return state | {"output_tok_s": state["output_tok_s"] * share}


def share_in_steady_state(row: Mapping[str, str], replica: Replica, replicas: int, rate: float) -> float:
    """Return the steady-state time of a run's requests over the time of the run.

    The replica with the most requests ends the run.

    Args:
        row: Run.
        replica: One replica.
        replicas: Number of replicas.
        rate: Steady-state requests per second of all replicas.

    Returns:
        Share from 0 to 1.
    """

    def seconds(requests: float) -> float:
        return replica.seconds(math.ceil(requests / replicas), rate / replicas)

    requests = count_requests(row, seconds)
    return requests / rate / seconds(requests) if math.isfinite(requests) else 1.0


def possible_layouts(
    row: Mapping[str, str], model: Model, system: System, work: Workload, engine: Engine
) -> tuple[list[Layout], str]:
    """Return the layouts that a run may have used.

    Args:
        row: Run.
        model: Model.
        system: System.
        work: Mean lengths.
        engine: Engine.

    Returns:
        Layouts with their replicas, or an empty list and the reason.
    """
    pp, dp, ep = (int(float(row.get(name) or 1)) for name in ("pp", "dp", "ep"))
    chips = int(float(row.get("chips") or 0))
    tp_sizes = [int(float(row["tp"]))] if row["tp"] else [2**n for n in range(1 + int(math.log2(max(chips, 1))))]
    layouts = [
        Layout(tp=tp, pp=pp, dp=dp, ep=ep, microbatches=pp) for tp in tp_sizes if tp * pp * dp <= (chips or tp * pp * dp)
    ]
    if not layouts:
        return [], f"{WRONG}a replica has {tp_sizes[0] * pp * dp} chips, but the run has {chips}"

    # Keep layouts that divide the model and leave memory for at least one sequence.
    can = allowed(stacked(layouts), collect_facts(model, system), scopes=(MODEL,))
    layouts = [layout for layout, good in zip(layouts, can, strict=True) if good]
    arguments: dict[str, Any] = {"context": mean_context(work), "engine": engine}
    room = [layout for layout in layouts if float(sequences_that_fit(model, system, layout=layout, **arguments)) >= 1]
    if not room:
        weight_bytes = min((float(weights_per_chip(model, layout)) for layout in layouts), default=math.inf)
        capacity = system.chip.capacity / 1e9
        return (
            [],
            f"{WRONG}weights do not fit: {weight_bytes / 1e9:,.1f} GB plus KV cache and activations on chips of "
            f"{capacity:,.1f} GB",
        )
    return [replace(layout, replicas=max(1, chips // int(layout.chips))) for layout in room], ""


def highest(
    model: Model,
    system: System,
    work: Workload,
    layouts: list[Layout],
    engine: Engine,
    *,
    ttft: float = math.inf,
    tpot: float = math.inf,
    max_sequences: float = math.inf,
    is_output_reserved: bool = False,
) -> dict[str, Any]:
    """Find the steady state with the highest output rate within the limits.

    99 % of requests meet the limits. Times per token vary little between requests; TTFT varies as in `late_first_token`.

    Args:
        model: Model.
        system: System.
        work: Mean lengths.
        layouts: Layouts to search.
        engine: Engine.
        ttft: Limit of time to first token [s].
        tpot: Limit of time per output token [s].
        max_sequences: Maximum sequences of a replica.
        is_output_reserved: Whether each request reserves memory for its whole output at the start.

    Returns:
        Figures by name; {} if no load meets the limits.
    """
    layout = shaped(stacked(layouts), 2)
    context = work.input_tokens + work.output_tokens if is_output_reserved else mean_context(work)
    fit = sequences_that_fit(model, system, context=context, layout=layout, engine=engine)
    batch = np.floor(np.maximum(np.minimum(fit, max_sequences), 1.0) ** np.linspace(0, 1, LEVELS)[:, None])
    state = aggregated(model, system, work, layout=layout, batch=batch, chunk=np.array(CHUNKS), engine=engine, quick=True)
    late = late_first_token(state, work, layout, engine)
    good = (state.utilisation < 1) & (state.tpot <= tpot) & (late <= ttft)
    speed = np.where(good, state.rate * layout.replicas * work.output_tokens, -np.inf)
    best_index = np.unravel_index(np.argmax(speed), speed.shape)

    # Upper bound: the same batch if every resource overlapped perfectly.
    overlapped = np.where(good, speed * state.tpot / state.lower, 0.0)
    if not good[best_index]:
        return {}
    regime = latency_regime(1 - np.broadcast_to(state.decode.total, speed.shape)[best_index] / state.tpot[best_index])
    return {
        "output_tok_s": float(speed[best_index]),
        "bound_tok_s": float(np.max(overlapped)),
        "tpot": float(state.tpot[best_index]),
        "ttft": float(state.ttft[best_index]),
        "bound": str(np.broadcast_to(state.decode.bound, speed.shape)[best_index]),
        "regime": REGIMES[1] if regime == REGIMES[1] else REGIMES[0],
        "layout": layouts[best_index[0]],
        "batch": float(np.broadcast_to(batch, speed.shape)[best_index]),
        "rate": float(speed[best_index] / work.output_tokens),
    }


def late_first_token(state: State, work: Workload, layout: Layout, engine: Engine) -> Array:
    """Return the 99th percentile of TTFT.

    The wait has an exponential tail; the prefill itself does not vary.

    Args:
        state: Steady state.
        work: Mean lengths.
        layout: Layouts.
        engine: Engine.

    Returns:
        Seconds, with the shape of `state.ttft`.
    """
    _, chunks, _ = split_chunks(work, np.array(CHUNKS))
    served = chunks * (state.decode if state.mixed is None else state.mixed).latency
    waiting = np.maximum(state.ttft - ttft_seen(work, served, state.tpot, layout, engine), 0.0)
    late: Array = state.ttft + (TAIL - 1) * waiting
    return late


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Output lengths [tokens] with a given mean, drawn evenly within a share `spread` of the mean.

    With a `longest` output, lengths are exponential and cut off at that length.
    """

    mean: float
    spread: float = 0.0
    longest: float = 0.0

    @property
    def _is_cut(self) -> bool:
        return self.longest > self.mean * (1 + 1e-9)

    @cached_property
    def tokens(self) -> Array:
        """Numbers of tokens from 0 to the maximum, closer where most outputs end."""
        if not self._is_cut:
            return np.linspace(0.0, self.mean * (1 + self.spread), POINTS)
        shares = np.linspace(0.0, 1.0, POINTS) * -math.expm1(-self.longest / self._scale)
        ends = np.minimum(-self._scale * np.log1p(-np.minimum(shares, 1 - 1e-15)), self.longest)
        return np.unique(np.concatenate([ends, np.geomspace(self.mean / 2, self.longest, POINTS)]))

    @cached_property
    def survival(self) -> Array:
        """Share of outputs with more than `tokens`.

        >>> Lengths(mean=100.0, spread=0.5).survival[[0, 64, 128, 192, 256]].tolist()
        [1.0, 1.0, 0.75, 0.375, 0.0]
        """
        if self._is_cut:
            longer: Array = np.where(self.tokens < self.longest, np.exp(-self.tokens / self._scale), 0.0)
            return longer
        if not self.spread:
            return np.ones(POINTS)
        return np.clip((self.mean * (1 + self.spread) - self.tokens) / (2 * self.mean * self.spread), 0.0, 1.0)

    @cached_property
    def residual_survival(self) -> Array:
        """Share of requests in progress with more than `tokens` left: $S_e$.

        >>> Lengths(mean=100.0).residual_survival[[0, 128, 256]].round(3).tolist()
        [1.0, 0.5, 0.0]
        >>> long = Lengths(mean=3700.0, longest=20_000.0)
        >>> round(float(integral(long.residual_survival, long.tokens)))
        3625
        """
        if self._is_cut:
            beyond = self._scale * (np.exp(-self.tokens / self._scale) - np.exp(-self.longest / self._scale))
        else:
            least, largest = self.mean * (1 - self.spread), self.mean * (1 + self.spread)
            cut = (largest - self.tokens) ** 2 / (2 * max(largest - least, 1e-9))
            beyond = np.where(self.tokens < least, self.mean - self.tokens, cut)
        share: Array = np.clip(beyond / self.mean, 0.0, 1.0)
        return share

    @cached_property
    def generated_tokens(self) -> Array:
        """Tokens already generated by requests in progress with more than `tokens` left.

        >>> Lengths(mean=100.0).generated_tokens[[0, 128]].round(2).tolist()
        [50.0, 25.0]
        """
        residual, parts = self.residual_survival, np.diff(self.tokens)
        pieces = (residual[1:] + residual[:-1]) / 2 * parts
        beyond = np.append(np.cumsum(pieces[::-1])[::-1], 0.0)
        generated: Array = np.where(residual > 0, beyond / np.where(residual > 0, residual, 1.0), 0.0)
        return generated

    @cached_property
    def _scale(self) -> float:
        """Scale of the exponential distribution that has this mean when it is cut off."""
        low, high = self.mean / 2, self.mean
        while -high * math.expm1(-self.longest / high) < self.mean:
            high *= 2
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if -middle * math.expm1(-self.longest / middle) < self.mean else (low, middle)
        return high


def integral(values: Array, points: Array) -> float:
    """Integrate values with the trapezoidal rule.

    Args:
        values: Values, of shape (points,).
        points: Positions of the values.

    Returns:
        Integral.
    """
    return float(np.sum((values[1:] + values[:-1]) * np.diff(points)) / 2)


@dataclass(frozen=True, kw_only=True)
class Replica:
    """A replica with `batch` sequences in flight, `prompt` input tokens each, and outputs of `lengths`."""

    model: Model
    system: System
    layout: Layout
    engine: Engine
    batch: float
    prompt: float
    lengths: Lengths

    def step(self, batch: Number, generated_tokens: Number) -> Array:
        """Return the time of a decode step.

        Args:
            batch: Sequences.
            generated_tokens: Mean tokens that the sequences have generated.

        Returns:
            Seconds, with the broadcast shape of the arguments.
        """
        single_replica = replace(self.layout, replicas=1)
        arguments: dict[str, Any] = {"layout": single_replica, "engine": self.engine, "context": self.prompt + generated_tokens}
        return np.asarray(decode_step(self.model, self.system, batch=batch, **arguments).total)

    @cached_property
    def steady(self) -> float:
        """Seconds of a decode step with all slots in use and half of each output generated."""
        return float(self.step(self.batch, self.lengths.mean / 2))

    def drained(self, batch: float, share: Array, generated_tokens: Array) -> float:
        """Return the time until all sequences finish.

        Args:
            batch: Sequences in flight.
            share: Share of them with more than `lengths.tokens` left.
            generated_tokens: Tokens that these had generated when the last request started.

        Returns:
            Seconds.
        """
        # Probability that at least one sequence is left; a step takes at least the time of one sequence.
        any_left = np.where(share >= 1, 1.0, -np.expm1(batch * np.log1p(-np.minimum(share, 1 - 1e-12))))
        tokens = self.lengths.tokens
        return integral(self.step(np.maximum(batch * share, 1.0), generated_tokens + tokens) * any_left, tokens)

    @cached_property
    def end(self) -> float:
        """Seconds by which a run is longer than a steady state with the same requests."""
        lengths = self.lengths
        residual_tokens = integral(lengths.residual_survival, lengths.tokens)
        return max(
            0.0, self.drained(self.batch, lengths.residual_survival, lengths.generated_tokens) - self.steady * residual_tokens
        )

    def seconds(self, requests: float, rate: float) -> float:
        """Return the time of a run.

        If all requests have a slot, they start together, and no prefill delays them after the first one.

        Args:
            requests: Requests of the run.
            rate: Requests per second in the steady state.

        Returns:
            Seconds.
        """
        if requests > self.batch:
            return requests / rate + self.end
        decode = self.lengths.mean * self.steady / self.batch
        return requests * max(0.0, 1 / rate - decode) + self.drained(requests, self.lengths.survival, 0 * self.lengths.tokens)
