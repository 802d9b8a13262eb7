r"""Maximum throughput under a scenario: all requests at once, the best rate within limits, or the best at fixed lengths.

In MLPerf's Offline scenario all requests are present at the start. Server and Interactive have Poisson arrivals, and 99 % of
requests must meet the limits. Maximum throughput is the best result of a benchmark over all loads. Each is the highest rate of
a steady state with prefill and decode on the same chips (`steady_state.aggregated`). The search covers batch sizes that fit in
memory and prefill chunk sizes. Output lengths are those of the data set (`mlperf_data_sets`). The number of replicas is the
number that fits on the chips. `concurrency`, if present, is the maximum batch of a replica, as MLPerf submissions set it.
Otherwise the maximum is the usual one (`most_at_once`).

**Layout.** A layout that is not stated is the expected one and not the best: the geometric mean over likely tensor-parallel
sizes (`layout_weights`) and divisions of experts (`expert_layouts`).

**Limits.** The 99th percentile of the time per token depends on the requests in flight. It also depends on the steps with
prefill that a request meets (`late_token_time`). Runs within limits are at most as fast as runs of the same deployment with
all requests at once.

**Tail.** A run that starts with all its requests takes longer than a steady state, because its last requests finish with fewer
and fewer others. While requests wait for slots, a replica delivers its steady-state rate. After that, of the $B$ sequences in
flight, $B\,S_e(x)$ remain $x$ tokens later. $S_e$ is the share of requests in progress with more than $x$ tokens left. Steps
with fewer sequences take almost the same time. A run of $n$ requests at $r$ per second therefore takes

$$ T = n / r + \int_0^\infty t(B\,S_e(x))\,dx - t(B) \int_0^\infty S_e(x)\,dx $$

where $t$ is the time of a step. Sequences with more than $x$ tokens left have generated $\int_x^\infty S_e / S_e(x)$ tokens
when the last request starts, and $x$ more since then.

For example, outputs of DeepSeek-R1 have 3,700 tokens on average and 20,000 at most. In MLPerf v5.1 the last tenth of the
requests took a third of a run of 52 minutes (nine logs).

Source: renewal theory (residual life), `output_lengths`. Step times come from `decode_step`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np

from steptime.catalog.acceptance_lengths import acceptance_curve
from steptime.hardware.system import System
from steptime.models.draft_models import EAGLE3, with_draft_model
from steptime.models.model import Model
from steptime.number_checks import Array, Number
from steptime.physics.chip_memory import sequences_that_fit, weights_per_chip
from steptime.physics.engine import IDEAL, Engine
from steptime.physics.layout import MODEL, Layout, collect_facts, shaped, stacked
from steptime.physics.layout_rules import allowed
from steptime.physics.step import decode_step
from steptime.physics.uncertainty import FEW_RUNS, REGIMES, WAITS, distances, latency_regime
from steptime.planning.steady_state import MOST_LOADED, State, aggregated, mean_context, split_chunks, ttft_seen
from steptime.validation.data_quality import WRONG
from steptime.validation.disaggregated_loop import read_workload
from steptime.validation.error_summary import SPEEDS, measured_figures, with_ranges
from steptime.validation.mlperf_data_sets import allowed_drafts, find_data_set
from steptime.validation.output_lengths import Lengths, integral
from steptime.validation.published_deployments import count_requests, keeps_room, most_at_once
from steptime.validation.run_table import HIGHEST, INTERACTIVE, LIMITS, MLPERF, OFFLINE, SERVER, length_spread, run_kind
from steptime.validation.scenario_uncertainty import scenario_distances, tuning
from steptime.workload.draft_acceptance import estimate_acceptance
from steptime.workload.workload import NONE, Speculation, Workload

# Batch sizes of the search, from one sequence to all that fit.
LEVELS = 24
# Prefill tokens per step of a data-parallel rank.
CHUNKS = (1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
# 99th percentile of an exponential distribution over its mean.
TAIL = math.log(100)
# 99th percentile of a normal distribution, in standard deviations.
NORMAL_TAIL = NormalDist().inv_cdf(0.99)
# Variance of an average over one relaxation time, over the variance of the value: 2 / e.
AVERAGED_VARIANCE = 2 / math.e
# The 99th percentile that is closest to its limit, over that limit: median of eight benchmarks of MLPerf v5.1 (0.82 to 0.97;
# 222 logs mlperf_log_summary.txt of github.com/mlcommons/inference_results_v5.1).
USED_LIMIT = 0.9
# Numbers of runs by the tensor-parallel size over that of the highest predicted rate, as a power of two.
SINGLE_COUNTS = {0: 31.0, 1: 1.0}
LARGER_COUNTS = {-1: 4.0, 0: 4.0, 1: 7.0}
# Lowest rate of such a run over the highest of all layouts.
LEAST_SHARE = 0.5
# Columns that the runs of one group share.
SCENARIO_COLUMNS = (
    "model", "system", "engine", "weight_dtype", "expert_dtype", "kv_dtype", "input_tokens", "output_tokens", "input_mean",
    "output_mean", "tp", "pp", "dp", "ep", "chips", "concurrency", "requests", "scenario", "part", "engine_version", *LIMITS,
)  # fmt: skip
# Columns that the runs of one deployment of a round share.
DEPLOYMENT_COLUMNS = (
    "part", "model", "system", "engine", "engine_version", "weight_dtype", "expert_dtype", "kv_dtype", "chips", "note",
)  # fmt: skip


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
    if allowed_drafts(row) and not model.draft:
        model = with_draft_model(model, EAGLE3)
    work, lengths = scenario_workload(row)
    possible, why = possible_layouts(row, model, system, work, engine)
    if why:
        return {"reason": why}
    runs = [
        [(_faster_run(row, model, system, work, lengths, option, engine), share) for option, share in options]
        for options in (expert_layouts(row, layout, model, system) for layout in possible)
    ]
    runs = [[(run, share) for run, share in options if run] for options in runs]
    speeds = np.array([geometric_mean(*_column(options, "output_tok_s")) for options in runs])
    if not speeds.any():
        return {"reason": "no prediction: no load meets the limits"}
    weights = layout_weights(speeds, possible[0].tp == 1)

    # A throughput above that of the ideal engine cannot be right.
    measured = measured_figures(rows, "output_tok_s")
    ceiling = math.inf
    if np.isfinite(measured).any():
        ttft, tpot = scenario_limits(row)
        bounds = [
            highest(model, system, work, possible, IDEAL, ttft=ttft, tpot=tpot, speculation=choice)
            for choice in _speculations(row, model)
        ]
        ceiling = max(bound.get("bound_tok_s", math.inf) for bound in bounds)
    reasons = np.array(
        [
            f"{WRONG}faster than physics: {speed:,.0f} tok/s, the maximum is {ceiling:,.0f}" if speed > ceiling else ""
            for speed in measured
        ],
        dtype=object,
    )

    # If all requests arrive at once, TTFT is mostly the wait for other requests.
    likely = [
        (run, weight * share / sum(share for _, share in options))
        for options, weight in zip(runs, weights, strict=True)
        for run, share in options
        if weight
    ]
    shares = _column(likely, "tpot")[1]
    figures: dict[str, Any] = {name: geometric_mean(*_column(likely, name)) for name in ("output_tok_s", "tpot", "ttft")}
    figures["ttft"] = figures["ttft"] if math.isfinite(scenario_limits(row)[0]) else math.nan
    typical = likely[int(np.argmax(shares))][0]
    figures["bound"] = typical["bound"]
    figures["output_tok_s"] *= math.exp(tuning(row, system.chip.vendor)[0])
    # The deviations between groups of submissions contain those of systems with few fitted runs.
    flags = (
        *(
            (distance, applies)
            for distance, applies in distances(engine, system, typical["layout"], drafts=bool(allowed_drafts(row)))
            if distance is not FEW_RUNS
        ),
        *scenario_distances(row, [run["output_tok_s"] for run, _ in likely], shares, typical["end_loss"]),
    )
    return with_ranges(figures, engine, typical["regime"], WAITS[1], system, flags) | {"reason": reasons}


def limit_to_offline(rows: Sequence[Mapping[str, str]], figures: Mapping[str, Array]) -> None:
    """Reduce throughputs within limits to those of the same deployment with all requests present at the start.

    Rows of one deployment may have different columns, such as a layout that only one of them states.

    Args:
        rows: Runs.
        figures: Predictions by name, of shape (runs,), changed in place.
    """
    ceilings: dict[tuple[str, ...], float] = {}
    keys = [tuple(row.get(name) or "" for name in DEPLOYMENT_COLUMNS) for row in rows]
    for row, key, speed in zip(rows, keys, figures["output_tok_s"], strict=True):
        if run_kind(row) == OFFLINE and math.isfinite(speed):
            ceilings[key] = min(speed, ceilings.get(key, math.inf))
    for i, (row, key) in enumerate(zip(rows, keys, strict=True)):
        if run_kind(row) in (SERVER, INTERACTIVE) and figures["output_tok_s"][i] > (ceiling := ceilings.get(key, math.inf)):
            factor = ceiling / figures["output_tok_s"][i]
            for name in SPEEDS:
                figures[name][i] *= factor


def _column(runs: Sequence[tuple[dict[str, Any], float]], name: str) -> tuple[list[float], Array]:
    """Return one figure of runs, and their weights."""
    return [run[name] for run, _ in runs], np.array([share for _, share in runs])


def scenario_workload(row: Mapping[str, str]) -> tuple[Workload, Lengths]:
    """Return the requests of a run, with the lengths of its data set if that is known.

    Args:
        row: Run.

    Returns:
        Mean lengths with the variation of outputs, and the distribution of outputs.
    """
    work, data_set = read_workload(row), find_data_set(row)
    if data_set is None:
        return work, Lengths(mean=float(work.output_tokens), spread=length_spread(row))
    lengths = Lengths(mean=float(work.output_tokens), deviation=data_set.deviation, longest=data_set.longest)
    prompt = work.input_tokens if row.get("input_mean") or not data_set.prompt_tokens else data_set.prompt_tokens
    return replace(work, input_tokens=prompt, output_spread=lengths.variation), lengths


def scenario_limits(row: Mapping[str, str]) -> tuple[float, float]:
    """Return the TTFT and TPOT that 99 % of a run's requests stay below.

    A submission keeps a distance from its limits (`USED_LIMIT`), as a run beyond them is invalid.

    Args:
        row: Run.

    Returns:
        Seconds; inf without a limit.
    """
    if run_kind(row) not in (SERVER, INTERACTIVE):
        return math.inf, math.inf
    ttft, tpot = (float(row.get(name) or "inf") for name in LIMITS)
    used = USED_LIMIT if row.get("part") == MLPERF else 1.0
    return used * ttft, used * tpot


def drafted(row: Mapping[str, str], model: Model) -> Speculation:
    """Return the speculative tokens of a run, with the measured acceptance length of the model.

    Args:
        row: Run.
        model: Model.

    Returns:
        Speculation; none if the scenario does not allow it.
    """
    drafts = allowed_drafts(row)
    if drafts and model.drafter is not None:
        return Speculation(drafts=drafts, acceptance=estimate_acceptance(model, drafts).length)
    tokens = acceptance_curve(model.name).tokens if drafts and model.draft else ()
    return Speculation(drafts=drafts, acceptance=tokens[drafts - 1]) if 0 < drafts <= len(tokens) else NONE


def _speculations(row: Mapping[str, str], model: Model) -> tuple[Speculation, ...]:
    """Return what a submission may choose from: the speculative tokens that the rules allow, or none."""
    return tuple(dict.fromkeys((drafted(row, model), NONE)))


def _faster_run(
    row: Mapping[str, str], model: Model, system: System, work: Workload, lengths: Lengths, layout: Layout, engine: Engine
) -> dict[str, Any]:
    """Return the highest rate of a run with or without the speculative tokens that the rules allow."""
    runs = [best_run(row, model, system, work, lengths, layout, engine, choice) for choice in _speculations(row, model)]
    return max(runs, key=lambda run: run.get("output_tok_s", 0.0))


def best_run(
    row: Mapping[str, str],
    model: Model,
    system: System,
    work: Workload,
    lengths: Lengths,
    layout: Layout,
    engine: Engine,
    speculation: Speculation = NONE,
) -> dict[str, Any]:
    """Find the highest output rate of a run with one layout.

    A run with random arrivals within limits is at most as fast as one whose requests are all present at the start.

    Args:
        row: Run.
        model: Model.
        system: System.
        work: Mean lengths.
        lengths: Output lengths.
        layout: Layout with its replicas.
        engine: Engine.
        speculation: Speculative tokens.

    Returns:
        Figures by name as from `highest`; {} if no load meets the limits.
    """
    # The limit of the columns is that of their layout.
    ranks = int(layout.dp) / int(float(row.get("dp") or 1))
    arguments: dict[str, Any] = {
        "max_sequences": most_at_once(row) * ranks, "is_output_reserved": keeps_room(row), "speculation": speculation,
    }  # fmt: skip
    state = highest(model, system, work, [layout], engine, **arguments)
    if not state:
        return {}
    replica = Replica(
        model=model, system=system, layout=layout, engine=engine, batch=state["batch"], prompt=float(work.input_tokens),
        lengths=lengths,
    )  # fmt: skip
    share = share_in_steady_state(row, replica, int(layout.replicas), state["rate"])
    ended = state["output_tok_s"] * share
    ttft, tpot = scenario_limits(row)
    if math.isinf(ttft) and math.isinf(tpot):
        return state | {"output_tok_s": ended, "end_loss": 1 - share}
    limited = highest(model, system, work, [layout], engine, ttft=ttft, tpot=tpot, **arguments)
    if not limited:
        # Some layouts meet the limits without the usual distance from them, with one sequence per rank.
        arguments["max_sequences"] = ranks
        limited = highest(model, system, work, [layout], engine, ttft=ttft / USED_LIMIT, tpot=tpot / USED_LIMIT, **arguments)
    return limited and limited | {"output_tok_s": min(limited["output_tok_s"], ended), "end_loss": 0.0}


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
    requests = count_requests(row, rate)
    if math.isinf(requests):
        return 1.0
    return requests / rate / replica.seconds(math.ceil(requests / replicas), rate / replicas)


def geometric_mean(values: Sequence[float], weights: Array | None = None) -> float:
    """Return the weighted geometric mean of positive values; 0 without values.

    >>> round(geometric_mean([1.0, 4.0]), 9), round(geometric_mean([1.0, 4.0], np.array([3.0, 1.0])), 3)
    (2.0, 1.414)
    """
    return math.exp(float(np.average(np.log(values), weights=weights))) if values else 0.0


def layout_weights(speeds: Array, is_single: bool = True) -> Array:
    """Return how likely a run used each tensor-parallel size.

    The weights are counts over 45 models, systems and scenarios of MLPerf v5.1 and v6.0 with a stated layout. Where replicas of
    one chip have the highest predicted rate, all 30 ran that (`SINGLE_COUNTS`, with one more for each size). Where a larger
    size has it, 4 ran half of that size, 4 that size and 7 twice that size (`LARGER_COUNTS`): submitters leave more room for
    the KV cache. None had less than `LEAST_SHARE` of the highest rate.

    Args:
        speeds: Output rates by doubling tensor parallelism [tok/s]; 0 where no load meets the limits.
        is_single: Whether the first size is one.

    Returns:
        Weights with the sum 1.

    >>> layout_weights(np.array([3.0, 4.0, 3.0, 1.0])).round(2).tolist(), layout_weights(np.array([1.0])).tolist()
    ([0.27, 0.27, 0.47, 0.0], [1.0])
    """
    best = int(np.argmax(speeds))
    weights = np.zeros(len(speeds))
    for step, number in (SINGLE_COUNTS if best == 0 and is_single else LARGER_COUNTS).items():
        if 0 <= best + step < len(speeds) and speeds[best + step] >= LEAST_SHARE * speeds[best]:
            weights[best + step] = number
    share: Array = weights / weights.sum()
    return share


def expert_layouts(row: Mapping[str, str], layout: Layout, model: Model, system: System) -> list[tuple[Layout, float]]:
    """Return how a run may have divided experts and attention over the same chips, with weights.

    A mixture of experts runs with tensor parallelism only, with expert parallelism, or with data-parallel attention as well.
    Tables of maximum throughput and rows without a layout do not say which. Data-parallel attention avoids the all-reduce and
    has room for larger batches. MLPerf's submissions of DeepSeek-R1 on eight chips use it (inference_results_v5.1,
    closed/*/configs/*/Offline/deepseek-r1.py, enable_attention_dp). It gets half of the weight, as the other two together.

    Args:
        row: Run.
        layout: Layout of its columns.
        model: Model.
        system: System.

    Returns:
        Layouts of as many chips, with weights.
    """
    tp = int(layout.tp)
    is_stated = bool(row["tp"]) and run_kind(row) != HIGHEST
    if is_stated or tp == 1 or not model.routed or layout.dp > 1 or layout.ep > 1:
        return [(layout, 1.0)]
    options = [layout, replace(layout, ep=tp), replace(layout, tp=1, dp=tp, ep=tp)]
    can = allowed(stacked(options), collect_facts(model, system), scopes=(MODEL,))
    return [(option, 2.0 if option.dp > 1 else 1.0) for option, good in zip(options, can, strict=True) if good]


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
    speculation: Speculation = NONE,
) -> dict[str, Any]:
    """Find the steady state with the highest output rate within the limits.

    99 % of requests meet the limits (`late_token_time`, `late_first_token`).

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
        speculation: Speculative tokens.

    Returns:
        Figures by name; {} if no load meets the limits.
    """
    layout = shaped(stacked(layouts), 2)
    context = work.input_tokens + work.output_tokens if is_output_reserved else mean_context(work)
    fit = sequences_that_fit(model, system, context=context, layout=layout, engine=engine)
    levels = np.floor(np.maximum(np.minimum(fit, max_sequences), 1.0) ** np.linspace(0, 1, LEVELS)[:, None])
    limits = {"ttft": ttft, "tpot": tpot}
    best = _best_state(model, system, work, layouts, levels, engine, speculation, **limits)
    if not best or math.isinf(min(ttft, tpot)):
        return best

    # Limits end between two batch sizes: search there again.
    larger = levels[levels > best["batch"]]
    if not larger.size:
        return best
    between = np.unique(np.floor(np.linspace(best["batch"], np.min(larger), LEVELS)))[None, :, None]
    finer = _best_state(model, system, work, [best["layout"]], between, engine, speculation, **limits)
    bound = max(best["bound_tok_s"], finer.get("bound_tok_s", 0.0))
    return max(best, finer or best, key=lambda state: state["output_tok_s"]) | {"bound_tok_s": bound}


def _best_state(
    model: Model,
    system: System,
    work: Workload,
    layouts: list[Layout],
    batch: Array,
    engine: Engine,
    speculation: Speculation,
    *,
    ttft: float,
    tpot: float,
) -> dict[str, Any]:
    """Return the figures of the state with the highest output rate within the limits; {} if none meets them.

    Batches have the shape (layouts, sizes, 1).
    """
    layout = shaped(stacked(layouts), 2)
    state = aggregated(
        model, system, work, layout=layout, batch=batch, chunk=np.array(CHUNKS), engine=engine, speculation=speculation,
        quick=True,
    )  # fmt: skip
    late = late_first_token(state, work, layout, engine)
    good = (state.utilisation < 1) & (late_token_time(state, work, batch) <= tpot) & (late <= ttft)
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


def late_token_time(state: State, work: Workload, batch: Number) -> Array:
    r"""Return the 99th percentile of a request's time per token.

    A request of $O$ tokens meets a Poisson number of steps with prefill. With the share $q$ of such steps, each longer by
    $\Delta$, the time per token has the standard deviation $\Delta \sqrt{q / O}$. The number in flight varies too. With the
    share $g$ of a step that grows with the batch, its variance is $B / (1 - g)$ (`seats_for`): that of a processor-sharing
    queue. It persists for about the life of a request, so that an average over one life has $2 / e$ of the variance.

    Args:
        state: Steady state.
        work: Mean lengths.
        batch: Sequences per replica.

    Returns:
        Seconds, with the shape of `state.tpot`.
    """
    mixed = state.decode.total if state.mixed is None else state.mixed.total
    growing = np.clip(state.growing, 0.0, MOST_LOADED)
    variance = (mixed - state.decode.total) ** 2 * (1 - state.decode_only_share) / work.output_tokens
    variance = variance + AVERAGED_VARIANCE * (state.tpot * growing) ** 2 / (batch * (1 - growing))
    late: Array = state.tpot + NORMAL_TAIL * np.sqrt(variance)
    return late


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
