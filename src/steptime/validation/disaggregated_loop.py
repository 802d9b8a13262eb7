r"""Closed loops on separate pools: replicas of one pool run prefill, replicas of another pool decode.

At $X$ requests per second, the decode replicas run $N = X (O - 1) t(N)$ sequences. Prefill takes a time that grows with the
load of its pool, and KV caches move between the pools. The requests in flight are

$$ C = X \left(T_{first}(X) + (O - 1)\, t\right) $$

(Little's law). One $X$ solves this equation. The time per token $t$ is that of a decode replica at its share of $N$, with the
steps of `steady_state.decode_pool`. Prefill uses the passes of `prefill_pool.prefill_pool`. Near the maximum rate of the
prefill pool, requests queue for it, and TTFT is the rest of $C / X$.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from steptime.errors import InputError
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import Array
from steptime.physics.engine import Engine
from steptime.physics.layout import Layout, shaped
from steptime.physics.speculative_step import drafted_sequences
from steptime.physics.uncertainty import REGIMES, WAITS, distances
from steptime.planning.batch_queue import passes
from steptime.planning.prefill_pool import prefill_pool
from steptime.planning.steady_state import Transfer, decode_pool, kv_transfer, ttft_seen
from steptime.validation.closed_loop import round_time
from steptime.validation.data_quality import WRONG, faster, soonest_token, too_heavy
from steptime.validation.error_summary import with_ranges
from steptime.validation.published_deployments import (
    latent_contexts,
    launch_constants,
    pool_launch,
    with_contexts,
    with_gathering,
    with_launch,
)
from steptime.validation.run_table import AXES, MEANS, PREFILL_WAYS, count_drafts, is_drafted, length_spread, numbers
from steptime.workload.workload import NONE, Speculation, Workload, choose_speculation

# Batch sizes at which a decode replica is evaluated, from one sequence to all.
LEVELS = 16
# Factor on LEVELS if the step time jumps from one batch size to the next.
CLOSER = 8
# Bisections of the logarithm of the sequences in decode.
HALVINGS = 40
# Minimum mean sequences of a decode replica.
FEWEST = 1e-3
# Requests of a run per request in flight, as benchmarks send them.
REQUESTS_PER_CLIENT = 10
# Columns that the runs of one group share.
POOL_COLUMNS = (
    "model", "system", "engine", "weight_dtype", "expert_dtype", "kv_dtype", "drafted", "acceptance", "spec",
    "input_tokens", "output_tokens", "length_spread", *MEANS[:2],
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """Runs on separate pools that share model, system, engine, lengths and speculation; arrays of shape (runs,).

    decode and prefill: layouts with their `replicas`; concurrency: requests in flight in the whole deployment; spread: spread
    of lengths as a share of the mean; interval: decode steps between two checks for new output; slots: most sequences of
    a decode replica; prompts: prompts of a data-parallel rank in a pass of prefill, infinite for those of the engine.
    """

    model: Model
    system: System
    workload: Workload
    speculation: Speculation
    decode: Layout
    prefill: Layout
    concurrency: Array
    spread: float
    interval: Array
    slots: Array
    prompts: Array


def predict_pools(rows: list[dict[str, str]], model: Model, system: System, engine: Engine) -> dict[str, Array]:
    """Predict rows on separate pools that share all but pools and loads.

    Args:
        rows: Runs of one group.
        model: Model as the engine serves it.
        system: System.
        engine: Engine.

    Returns:
        Arrays of shape (rows,) by field of `Predictions`.
    """
    try:
        pools = build_pools(rows, model, system)
    except InputError as problem:
        return {"reason": np.full(len(rows), f"no prediction: {problem}", dtype=object)}
    engine = with_launch(with_contexts(engine, latent_contexts(rows[0])), launch_constants(rows[0]))
    launch = pool_launch(rows[0])
    prefill, engine = (with_gathering(engine, gathers) for gathers in (launch.gathers_prefill, launch.gathers_decode))
    figures = closed_pools(pools, engine, prefill)
    flags = distances(engine, system, pools.decode, pools.prefill, model=model)
    return with_ranges(figures, engine, REGIMES[0], WAITS[1], system, flags) | {"reason": collect_doubts(rows, pools, engine)}


def build_pools(rows: list[dict[str, str]], model: Model, system: System) -> Pools:
    """Convert rows that share all but pools and loads.

    Args:
        rows: Runs of one group.
        model: Model as the engine serves it.
        system: System.

    Returns:
        The runs as arrays.

    Raises:
        InputError: The acceptance length is unknown.
    """
    decode = {name: numbers(rows, name, 1.0) for name in AXES}
    prefill = {axis: numbers(rows, name, 1.0) for name, axis in PREFILL_WAYS.items()}
    work, launches = read_workload(rows[0]), [pool_launch(row) for row in rows]
    return Pools(
        model=model,
        system=system,
        workload=work,
        speculation=_read_speculation(model, rows[0]),
        decode=Layout(**decode, microbatches=decode["pp"], replicas=numbers(rows, "decode_workers", 1.0)),
        prefill=Layout(**prefill, replicas=numbers(rows, "prefill_workers", 1.0)),
        concurrency=numbers(rows, "concurrency", 1.0),
        spread=length_spread(rows[0]),
        interval=numbers(rows, "stream_interval", 1.0),
        slots=np.minimum(numbers(rows, "max_num_seqs", math.inf), [launch.slots for launch in launches]),
        prompts=np.array([launch.prompts(work.input_tokens) for launch in launches]),
    )


def read_workload(row: Mapping[str, str]) -> Workload:
    """Return the mean lengths of a run.

    Without measured means, nominal lengths are the upper end of a range.

    Args:
        row: Run.

    Returns:
        Workload with mean prompt and output tokens.
    """
    prompt, output = (
        float(row.get(mean) or float(row[f"{name}_tokens"]) / (1 + length_spread(row)))
        for name, mean in zip(("input", "output"), MEANS, strict=False)
    )
    equal = {"input_spread": 0.0, "output_spread": 0.0}
    return Workload(input_tokens=max(1.0, round(prompt)), output_tokens=max(2.0, output), **equal)


def _read_speculation(model: Model, row: Mapping[str, str]) -> Speculation:
    """Return the speculation of a run; a model without MTP layers uses a separate draft model."""
    drafts, acceptance = count_drafts(row), row.get("acceptance")
    if drafts and acceptance:
        return Speculation(drafts=drafts, acceptance=float(acceptance), source="as the run records")
    if is_drafted(row) and not drafts:
        raise InputError(f"spec is {row['spec']}, but drafted has no number of speculative tokens per step")
    return choose_speculation(model, drafts) if drafts else NONE


def collect_doubts(rows: list[dict[str, str]], pools: Pools, engine: Engine) -> Array:
    """Return the reason against each row (`data_quality`).

    Args:
        rows: Runs of one group.
        pools: The same runs as arrays.
        engine: Engine.

    Returns:
        Reasons of shape (rows,); "" where there is no doubt.
    """
    drafts, count = pools.speculation.drafts, len(rows)
    heavy = [too_heavy(pools.model, pools.system, layout, engine, drafts, count) for layout in (pools.decode, pools.prefill)]
    tpot, speed = numbers(rows, "tpot_s"), numbers(rows, "output_tok_s")

    # Little's law gives the measured batch of a decode replica.
    batch = np.fmax(np.nan_to_num(speed * tpot) / pools.decode.replicas, 1.0)
    context = pools.workload.input_tokens + pools.workload.output_tokens / 2
    soonest = soonest_token(pools.model, pools.system, pools.decode, pools.speculation, batch, context)
    counted: Array = np.asarray(pools.decode.chips * pools.decode.replicas + pools.prefill.chips * pools.prefill.replicas)
    reasons = np.full(count, "", dtype=object)
    chips = numbers(rows, "chips")
    for i in np.flatnonzero(np.isfinite(chips) & (chips != counted)):
        reasons[i] = f"{WRONG}{chips[i]:.0f} chips, but its workers have {counted[i]:.0f}"
    for i in np.flatnonzero(tpot < soonest):
        reasons[i] = faster("token", tpot[i], soonest[i], batch[i])
    for wrong in heavy:
        reasons = np.where(wrong == "", reasons, wrong)
    return reasons


def closed_pools(pools: Pools, engine: Engine, prefill_engine: Engine | None = None) -> dict[str, Array]:
    """Solve closed loops on separate pools.

    Args:
        pools: Runs of one group.
        engine: Engine of the decode pool.
        prefill_engine: Engine of the prefill pool; by default that of the decode pool.

    Returns:
        TPOT, mean and median TTFT [s], output tokens per second and the bound of decode steps, of shape (runs,).
    """
    arguments: dict[str, Any] = {"engine": engine, "speculation": pools.speculation}
    work, replicas = pools.workload, pools.decode.replicas
    max_sequences = np.maximum(np.minimum(np.minimum(_seats(pools, engine), pools.slots), pools.concurrency / replicas), 1.0)
    levels = LEVELS if math.isinf(engine.kernels.latent_contexts) else CLOSER * LEVELS
    batches = max_sequences[:, None] ** np.linspace(0, 1, levels)
    state = decode_pool(pools.model, pools.system, work, layout=shaped(pools.decode, 1), batch=batches, **arguments)
    usual = max(1.0, float(engine.scheduler.step_tokens) // work.input_tokens)
    prompts = np.where(np.isfinite(pools.prompts), pools.prompts, usual)
    arguments["engine"] = prefill_engine or engine
    reads = prefill_pool(pools.model, pools.system, work, layout=pools.prefill, prompts=prompts, **arguments)

    # KV caches move within the scale-up domain if both pools fit in it.
    near = pools.decode.chips * replicas + pools.prefill.chips * pools.prefill.replicas <= pools.system.scale_up.size
    moves = [
        kv_transfer(
            pools.model, pools.system, work, layout=pools.prefill, within_domain=inside, drafts=pools.speculation.drafts
        )
        for inside in (True, False)
    ]
    parts = ("latency", "moving", "groups")
    sent = Transfer(**{name: np.where(near, *(getattr(transfer, name) for transfer in moves)) for name in parts})

    def first(rate: Array, tpot: Array) -> Array:
        replica_rate = rate / pools.prefill.replicas
        queue = passes(replica_rate, reads.time, reads.seats, replicas=pools.prefill.replicas)
        with np.errstate(invalid="ignore"):
            prefill_seconds = queue.wait + queue.service * (1 + reads.late) + sent.seconds(replica_rate)
        return np.asarray(ttft_seen(work, prefill_seconds, tpot, pools.decode, engine, pools.speculation))

    sequences, tpot, level = _solved(pools, max_sequences, state.tpot, first)
    owed = work.output_tokens - 1
    rate = replicas * sequences / (owed * tpot)
    later = (pools.interval - 1) * tpot * pools.speculation.acceptance
    median = pools.concurrency / rate - owed * tpot + later
    queued = np.maximum(median - later - first(np.full_like(rate, 1e-9), tpot), 0.0)

    # The mean includes the burst at the start of a run; the median does not.
    burst = np.maximum(pools.concurrency / (pools.prefill.replicas * reads.rate) / 2 - queued, 0.0) / REQUESTS_PER_CLIENT
    burst = burst + engine.scheduler.seconds_to_start / REQUESTS_PER_CLIENT
    lasting = round_time(
        median + burst, owed * tpot, spread=pools.spread, clients=pools.concurrency, rounds=REQUESTS_PER_CLIENT
    )
    bound = np.take_along_axis(state.decode.bound, level[:, None], axis=1)[:, 0]
    return {
        "tpot": tpot,
        "ttft": median + burst,
        "ttft_median": median,
        "output_tok_s": pools.concurrency / lasting * work.output_tokens,
        "bound": bound.astype(object),
    }


def _seats(pools: Pools, engine: Engine) -> Array:
    """Return the slots of a decode replica; infinite if no sequence fits by this estimate, since the run was measured."""
    work = pools.workload
    context = work.input_tokens + work.output_tokens / 2
    fit = drafted_sequences(
        pools.model, pools.system, context=context, drafts=pools.speculation.drafts, layout=pools.decode, engine=engine
    )
    return np.where(np.asarray(fit) >= 1, fit, np.inf)


def _solved(
    pools: Pools, max_sequences: Array, table: Array, first: Callable[[Array, Array], Array]
) -> tuple[Array, Array, Array]:
    """Return sequences of a decode replica, their time per token [s], and the nearest level of `table`.

    max_sequences: sequences of the last level; table: time per token [s], of shape (runs, levels); first: function from rate
    [requests/s] and time per token [s] to time to first token [s].
    """
    owed, replicas = pools.workload.output_tokens - 1, pools.decode.replicas
    low, high = np.full(len(max_sequences), np.log(FEWEST)), np.log(np.minimum(max_sequences, pools.concurrency / replicas))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        tpot, _ = _between(table, np.exp(middle), max_sequences)
        rate = replicas * np.exp(middle) / (owed * tpot)
        room = rate * (first(rate, tpot) + owed * tpot) < pools.concurrency
        low, high = np.where(room, middle, low), np.where(room, high, middle)
    tpot, level = _between(table, np.exp(low), max_sequences)
    return np.exp(low), tpot, level


def _between(table: Array, sequences: Array, max_sequences: Array) -> tuple[Array, Array]:
    """Interpolate a table of levels at `sequences`, linearly in their logarithm; return the value and the nearest level."""
    share = np.log(np.maximum(sequences, 1.0)) / np.maximum(np.log(max_sequences), 1e-12)
    last = table.shape[1] - 1
    place = np.clip(share, 0.0, 1.0) * last
    lower_level = np.minimum(place.astype(np.int64), last - 1)
    before, after = (np.take_along_axis(table, level[:, None], axis=1)[:, 0] for level in (lower_level, lower_level + 1))
    return before + (place - lower_level) * (after - before), np.rint(place).astype(np.int64)
