r"""Closed loops of separate pools: prompts are read by replicas of one pool, tokens made by those of another.

With $X$ requests a second, decode replicas hold $N = X (O - 1) t(N)$ sequences, prompts take a time that grows with the load of
their pool, caches move between the two, and all requests in flight are

$$ C = X \left(T_{first}(X) + (O - 1)\, t\right) $$

(Little's law), which one $X$ solves. The time per token $t$ is that of a decode replica at its share of $N$, the steps those of
`steady.decode_pool`; prompts are read in the passes of `steady.prefill_pool`. Near the highest rate of the pool that reads,
requests queue for it, and the first token is what is left of $C / X$.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from steptime.catalog.hardware_loading import load_system
from steptime.errors import InputError
from steptime.hardware.software_maturity import as_measured, software_day
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.models.model_loading import load_model
from steptime.number_checks import Array
from steptime.physics.engine import Engine
from steptime.physics.extrapolation import distances, widening
from steptime.physics.kv_dtype import as_served
from steptime.physics.layout import Layout, shaped
from steptime.physics.speculative_step import drafted_sequences
from steptime.physics.uncertainty import REGIMES, factors
from steptime.planning.batch_queue import passes
from steptime.planning.prefill_pool import prefill_pool
from steptime.planning.speculative_config import NONE, Speculation, choose_speculation
from steptime.planning.steady_state import Transfer, decode_pool, kv_transfer, ttft_seen
from steptime.planning.workload import Workload
from steptime.validation.closed_loop import round_time
from steptime.validation.data_quality import WRONG, faster, soonest_token, too_heavy
from steptime.validation.published_deployments import latent_contexts, with_contexts
from steptime.validation.run_kinds import PREFILL_WAYS, count_drafts, is_drafted
from steptime.validation.run_table import AXES, MEANS, length_spread

# batches at which a decode replica is looked at, from one sequence to all
LEVELS = 16
# times as many, where steps jump from one to the next
CLOSER = 8
# of the logarithm of the sequences in decode
HALVINGS = 40
# sequences of a decode replica, in the mean
FEWEST = 1e-3
# requests of a run for each in flight, as of closed loops that benchmarks send
REQUESTS_PER_CLIENT = 10
SHARED = ("model", "system", "engine", "weight_dtype", "expert_dtype", "kv_dtype", "drafted", "acceptance", "spec")
LENGTHS = ("input_tokens", "output_tokens", "length_spread", *MEANS[:2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """Runs on separate pools that share model, system, engine, lengths and drafts; arrays of shape (runs,).

    decode and prefill: layouts with their `replicas`; concurrency of the whole; spread: how far lengths reach to both sides of
    their means, as a share; interval [decode steps] between two looks at what is new.
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


def predict_pools(rows: list[dict[str, str]], engines: Mapping[str, Engine], *, catalog: str | None = None) -> dict[str, Array]:
    """Return the figures of rows on separate pools, by the name that `Predictions` has for them."""
    out: dict[str, Array] = {}
    groups: dict[tuple[str, ...], list[int]] = {}
    systems = {name: load_system(name, catalog) for name in {row["system"] for row in rows}}
    for position, row in enumerate(rows):
        cells = (row.get(name) or "" for name in (*SHARED, *LENGTHS))
        key = (*cells, str(length_spread(row)), software_day(systems[row["system"]], row), str(latent_contexts(row)))
        groups.setdefault(key, []).append(position)
    for index in groups.values():
        group_rows = [rows[i] for i in index]
        engine = with_contexts(engines[group_rows[0]["engine"]], latent_contexts(group_rows[0]))
        for name, values in _predicted(group_rows, engine, catalog).items():
            empty = "" if values.dtype == object else np.nan
            out.setdefault(name, np.full(len(rows), empty, dtype=values.dtype))[index] = values
    return out


def build_pools(rows: list[dict[str, str]], engine: Engine, catalog: str | None = None) -> Pools:
    """Return rows that share all but their pools and loads. Raises InputError where nobody knows what drafts bring."""
    row = rows[0]
    weights, system = row["weight_dtype"] or "bf16", as_measured(load_system(row["system"], catalog), row)
    kv = row.get("kv_dtype") or ""
    model = load_model(row["model"], weights=weights, experts=row["expert_dtype"] or weights, kv=kv, catalog=catalog)

    def numbers(name: str, usual: str = "1") -> Array:
        return np.array([float(row.get(name) or usual) for row in rows])

    decode = {name: numbers(name) for name in AXES}
    prefill = {axis: numbers(name) for name, axis in PREFILL_WAYS.items()}
    return Pools(
        model=as_served(model, system, engine),
        system=system,
        workload=read_workload(row),
        speculation=_read_speculation(model, row),
        decode=Layout(**decode, microbatches=decode["pp"], replicas=numbers("decode_workers")),
        prefill=Layout(**prefill, replicas=numbers("prefill_workers")),
        concurrency=numbers("concurrency"),
        spread=length_spread(row),
        interval=numbers("stream_interval"),
    )


def read_workload(row: Mapping[str, str]) -> Workload:
    """Return the mean lengths of a run: those known, or of a range that ends at the nominal ones."""
    prompt, output = (
        float(row.get(mean) or float(row[f"{name}_tokens"]) / (1 + length_spread(row)))
        for name, mean in zip(("input", "output"), MEANS, strict=False)
    )
    return Workload(input_tokens=max(1.0, round(prompt)), output_tokens=max(2.0, output))


def _read_speculation(model: Model, row: Mapping[str, str]) -> Speculation:
    """Return what a run drafts; a model without layers of its own that draft takes drafts that come from elsewhere."""
    drafts, acceptance = count_drafts(row), row.get("acceptance")
    if drafts and acceptance:
        return Speculation(drafts=drafts, acceptance=float(acceptance), source="as the run tells")
    if is_drafted(row) and not drafts:
        raise InputError(f"spec is {row['spec']}, and drafted does not tell how many tokens a step")
    return choose_speculation(model, drafts) if drafts else NONE


def _predicted(rows: list[dict[str, str]], engine: Engine, catalog: str | None) -> dict[str, Array]:
    try:
        pools = build_pools(rows, engine, catalog)
    except InputError as problem:
        return {"reason": np.full(len(rows), f"no prediction: {problem}", dtype=object)}
    figures = closed_pools(pools, engine)
    flags = distances(engine, pools.system, pools.decode, pools.prefill)
    low, high = factors(engine, "tpot", REGIMES[0], system=pools.system, wider=widening(flags))
    first_low, first_high = factors(engine, "ttft", REGIMES[0], system=pools.system, wider=widening(flags, "ttft"))
    speed, tpot, ttft = (figures[name] for name in ("output_tok_s", "tpot", "ttft"))
    return figures | {
        "tpot_low": tpot * low, "tpot_high": tpot * high, "ttft_low": ttft * first_low, "ttft_high": ttft * first_high,
        "output_tok_s_low": speed / high, "output_tok_s_high": speed / low,
        "regime": np.full(len(rows), REGIMES[0], dtype=object),
        "reason": collect_doubts(rows, pools, engine),
    }  # fmt: skip


def collect_doubts(rows: list[dict[str, str]], pools: Pools, engine: Engine) -> Array:
    """Return what speaks against each row, "" for nothing (`doubts`)."""
    drafts, count = pools.speculation.drafts, len(rows)
    heavy = [too_heavy(pools.model, pools.system, layout, engine, drafts, count) for layout in (pools.decode, pools.prefill)]
    tpot, speed = (np.array([float(row.get(name) or "nan") for row in rows]) for name in ("tpot_s", "output_tok_s"))
    # Little's law
    batch = np.fmax(np.nan_to_num(speed * tpot) / pools.decode.replicas, 1.0)
    context = pools.workload.input_tokens + pools.workload.output_tokens / 2
    soonest = soonest_token(pools.model, pools.system, pools.decode, pools.speculation, batch, context)
    reasons = np.array([_odd_chips(row, pools, i) for i, row in enumerate(rows)], dtype=object)
    for i in np.flatnonzero(tpot < soonest):
        reasons[i] = faster("token", tpot[i], soonest[i], batch[i])
    for wrong in heavy:
        reasons = np.where(wrong == "", reasons, wrong)
    return reasons


def _odd_chips(row: Mapping[str, str], pools: Pools, index: int) -> str:
    """Say where the chips of a run are not those of its workers."""
    counted = sum(float(np.asarray(layout.chips * layout.replicas)[index]) for layout in (pools.decode, pools.prefill))
    stated_chips = float(row.get("chips") or counted)
    return "" if stated_chips == counted else f"{WRONG}{stated_chips:.0f} chips, but its workers have {counted:.0f}"


def closed_pools(pools: Pools, engine: Engine) -> dict[str, Array]:
    """Return TPOT, mean and median TTFT [s], output tokens a second and what binds decode steps, arrays of shape (runs,)."""
    arguments: dict[str, Any] = {"engine": engine, "speculation": pools.speculation}
    work, replicas = pools.workload, pools.decode.replicas
    max_sequences = np.maximum(np.minimum(_seats(pools, engine), pools.concurrency / replicas), 1.0)
    levels = LEVELS if math.isinf(engine.kernels.latent_contexts) else CLOSER * LEVELS
    batches = max_sequences[:, None] ** np.linspace(0, 1, levels)
    state = decode_pool(pools.model, pools.system, work, layout=shaped(pools.decode, 1), batch=batches, **arguments)
    prompts = max(1.0, float(engine.scheduler.step_tokens) // work.input_tokens)
    reads = prefill_pool(pools.model, pools.system, work, layout=pools.prefill, prompts=prompts, **arguments)
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
    """Return how many sequences a decode replica holds; without end where it has room for none, since the run was made."""
    work = pools.workload
    context = work.input_tokens + work.output_tokens / 2
    fit = drafted_sequences(
        pools.model, pools.system, context=context, drafts=pools.speculation.drafts, layout=pools.decode, engine=engine
    )
    return np.where(np.asarray(fit) >= 1, fit, np.inf)


def _solved(
    pools: Pools, max_sequences: Array, table: Array, first: Callable[[Array, Array], Array]
) -> tuple[Array, Array, Array]:
    """Return sequences of a decode replica, the time per token [s] among them, and the nearest of the levels of `table`.

    max_sequences: sequences that the last level stands for; table: time per token [s], of shape (runs, levels); first: the
    time to first token [s] at a rate [requests/s] and a time per token.
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
    """Return what a table of levels says of so many sequences, at least one, on lines in their logarithm; and the nearest."""
    share = np.log(np.maximum(sequences, 1.0)) / np.maximum(np.log(max_sequences), 1e-12)
    last = table.shape[1] - 1
    place = np.clip(share, 0.0, 1.0) * last
    lower_level = np.minimum(place.astype(np.int64), last - 1)
    before, after = (np.take_along_axis(table, level[:, None], axis=1)[:, 0] for level in (lower_level, lower_level + 1))
    return before + (place - lower_level) * (after - before), np.rint(place).astype(np.int64)
