"""Throughput under a scenario: all requests at once, the highest rate within limits, or the highest at given lengths.

MLPerf's Offline has all requests there at once; Server and Interactive have Poisson arrivals, with limits that 99 % of requests
keep; maximum throughput is what a benchmark finds over all loads. Each is the highest rate of a steady state of prompts and
outputs on the same chips (`steady.aggregated`), over batches that memory has room for and chunks of prompts; where a run does
not tell how its chips were divided, over that too. Replicas are as many as the chips have room for; `concurrency`, where it is
told, is the most that one of them may run at once, as submissions of MLPerf set it. A run whose requests are all there at its
start takes longer than a steady state would, for its last ones (`run_ends`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from steptime.catalog.hardware_loading import load_system
from steptime.hardware.software_maturity import as_measured, software_day
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.models.model_loading import load_model
from steptime.number_checks import Array
from steptime.physics.chip_memory import sequences_that_fit, weights_per_chip
from steptime.physics.engine import IDEAL, Engine
from steptime.physics.kv_dtype import as_served
from steptime.physics.layout import Layout, shaped, stacked
from steptime.physics.layout_constraints import MODEL, collect_facts
from steptime.physics.layout_rules import allowed
from steptime.physics.uncertainty import REGIMES, factors, latency_regime
from steptime.planning.steady_state import State, aggregated, mean_context, split_chunks, ttft_seen
from steptime.planning.workload import Workload
from steptime.validation.data_quality import WRONG
from steptime.validation.disaggregated_loop import workload_of
from steptime.validation.published_deployments import keeps_room, longest_of, most_at_once, requests_of
from steptime.validation.run_kinds import HIGHEST, INTERACTIVE, OFFLINE, SERVER, kind_of
from steptime.validation.run_table import LIMITS, spread_of
from steptime.validation.tail_drain import Lengths, Replica

LEVELS = 24  # batches that are tried, from one sequence to all that fit
CHUNKS = (1024.0, 2048.0, 4096.0, 8192.0, 16384.0)  # prompt tokens of an attention group in a step
TAIL = math.log(100)  # 99th percentile of an exponential tail over its mean
SHARED = (
    "model", "system", "engine", "weight_dtype", "expert_dtype", "kv_dtype", "input_tokens", "output_tokens", "input_mean",
    "output_mean", "tp", "pp", "dp", "ep", "chips", "concurrency", "requests", "part",
)  # fmt: skip


def predict_highest(
    rows: list[dict[str, str]], engines: Mapping[str, Engine], *, catalog: str | None = None
) -> dict[str, Array]:
    """Return the figures of rows under a scenario, by the name that `Predictions` has for them."""
    out: dict[str, Array] = {}
    groups: dict[tuple[str, ...], list[int]] = {}
    systems = {name: load_system(name, catalog) for name in {row["system"] for row in rows}}
    for position, row in enumerate(rows):
        limits = (row.get(name) or "" for name in LIMITS) if kind_of(row) in (SERVER, INTERACTIVE) else ()
        day = software_day(systems[row["system"]], row)
        key = (*(row.get(name) or "" for name in SHARED), str(spread_of(row)), *limits, day)
        groups.setdefault(key, []).append(position)
    for index in groups.values():
        row = rows[index[0]]
        for name, value in _predicted(row, engines[row["engine"]], catalog).items():
            empty = np.full(len(rows), "", dtype=object) if isinstance(value, str) else np.full(len(rows), np.nan)
            out.setdefault(name, empty)[index] = value
        bound = out.get("most", np.full(len(rows), np.nan))[index]
        for i in np.array(index)[bound < [float(rows[i].get("output_tok_s") or "nan") for i in index]]:
            measured, most = float(rows[i]["output_tok_s"]), out["most"][i]
            out["reason"][i] = f"{WRONG}faster than physics: {measured:,.0f} tok/s, at most {most:,.0f}"
    out.pop("most", None)
    return out


def _predicted(row: Mapping[str, str], engine: Engine, catalog: str | None) -> dict[str, Any]:
    weights, system = row["weight_dtype"] or "bf16", as_measured(load_system(row["system"], catalog), row)
    experts, kv = row["expert_dtype"] or weights, row.get("kv_dtype") or ""
    model = load_model(row["model"], weights=weights, experts=experts, kv=kv, catalog=catalog)
    model, work = as_served(model, system, engine), workload_of(row)
    layouts, why = layouts_of(row, model, system, work, engine)
    if why:
        return {"reason": why}
    ttft, tpot = (math.inf, math.inf)
    if kind_of(row) in (SERVER, INTERACTIVE):
        ttft, tpot = (float(row.get(name) or "inf") for name in LIMITS)
    most = most_at_once(row)
    whole = keeps_room(row)
    if kind_of(row) in (OFFLINE, HIGHEST):
        each = (highest(model, system, work, [layout], engine, most=most, whole=whole) for layout in layouts)
        runs = [_ended(row, model, system, work, engine, one) for one in each if one]
        found = max(runs, key=lambda one: one["output_tok_s"], default={})
    else:
        found = highest(model, system, work, layouts, engine, ttft=ttft, tpot=tpot, most=most, whole=whole)
    if not found:
        return {"reason": "no prediction: no load keeps the limits"}
    for name in ("bound_tok_s", "layout", "batch", "rate"):
        found.pop(name)
    low, high = factors(engine, "tpot", found["regime"], system=system)
    first_low, first_high = factors(engine, "ttft", found["regime"], system=system)
    if not math.isfinite(ttft):  # all requests at once wait for each other
        found["ttft"] = math.nan
    speed = found["output_tok_s"]
    bound = highest(model, system, work, layouts, IDEAL, ttft=ttft, tpot=tpot) if row.get("output_tok_s") else {}
    return found | {
        "reason": "", "most": bound.get("bound_tok_s", math.nan),
        "tpot_low": found["tpot"] * float(low), "tpot_high": found["tpot"] * float(high),
        "ttft_low": found["ttft"] * float(first_low), "ttft_high": found["ttft"] * float(first_high),
        "output_tok_s_low": speed / float(high), "output_tok_s_high": speed / float(low),
    }  # fmt: skip


def _ended(
    row: Mapping[str, str], model: Model, system: System, work: Workload, engine: Engine, found: dict[str, Any]
) -> dict[str, Any]:
    """Return a steady state with the output of a run that ends."""
    lengths = Lengths(mean=float(work.output_tokens), spread=spread_of(row), longest=longest_of(row))
    replica = Replica(
        model=model, system=system, layout=found["layout"], engine=engine, batch=found["batch"],
        prompt=float(work.input_tokens), lengths=lengths,
    )  # fmt: skip
    share = share_in_steady_state(row, replica, int(found["layout"].replicas), found["rate"])
    return found | {"output_tok_s": found["output_tok_s"] * share}


def share_in_steady_state(row: Mapping[str, str], replica: Replica, replicas: int, rate: float) -> float:
    """Return the share of a run's time that its requests would take in a steady state: `rate` a second of all replicas.

    A run lasts as long as the replica that has most of its requests.
    """

    def seconds(requests: float) -> float:
        return replica.seconds(math.ceil(requests / replicas), rate / replicas)

    requests = requests_of(row, seconds)
    return requests / rate / seconds(requests) if math.isfinite(requests) else 1.0


def layouts_of(
    row: Mapping[str, str], model: Model, system: System, work: Workload, engine: Engine
) -> tuple[list[Layout], str]:
    """Return the layouts that a run may have had, with their replicas, or why it can have had none."""
    pp, dp, ep = (int(float(row.get(name) or 1)) for name in ("pp", "dp", "ep"))
    chips = int(float(row.get("chips") or 0))
    tried = [int(float(row["tp"]))] if row["tp"] else [2**n for n in range(1 + int(math.log2(max(chips, 1))))]
    ways = [Layout(tp=tp, pp=pp, dp=dp, ep=ep, microbatches=pp) for tp in tried if tp * pp * dp <= (chips or tp * pp * dp)]
    if not ways:
        return [], f"{WRONG}a replica has {tried[0] * pp * dp} chips, and the run {chips}"
    can = allowed(stacked(ways), collect_facts(model, system), scopes=(MODEL,))
    ways = [one for one, good in zip(ways, can, strict=True) if good]
    given: dict[str, Any] = {"context": mean_context(work), "engine": engine}
    room = [one for one in ways if float(sequences_that_fit(model, system, layout=one, **given)) >= 1]
    if not room:
        held = min((float(weights_per_chip(model, one)) for one in ways), default=math.inf)
        capacity = system.chip.capacity / 1e9
        return [], f"{WRONG}weights do not fit: {held / 1e9:,.1f} GB, a cache and activations on chips of {capacity:,.1f} GB"
    return [Layout(**_fields(one), replicas=max(1, chips // int(one.chips))) for one in room], ""


def _fields(layout: Layout) -> dict[str, Any]:
    return {name: getattr(layout, name) for name in ("tp", "pp", "dp", "ep", "microbatches")}


def highest(
    model: Model,
    system: System,
    work: Workload,
    layouts: list[Layout],
    engine: Engine,
    *,
    ttft: float = math.inf,
    tpot: float = math.inf,
    most: float = math.inf,
    whole: bool = False,
) -> dict[str, Any]:
    """Return the steady state with most output tokens a second in which 99 % of requests keep the limits [s]; {} for none.

    most: sequences that a replica may run at once. whole: whether each has room for all of its output from the start.
    Times per token vary little from request to request, times to first token as `late_first_token` says.
    """
    layout = shaped(stacked(layouts), 2)
    held = work.input_tokens + work.output_tokens if whole else mean_context(work)
    fit = sequences_that_fit(model, system, context=held, layout=layout, engine=engine)
    batch = np.floor(np.maximum(np.minimum(fit, most), 1.0) ** np.linspace(0, 1, LEVELS)[:, None])
    state = aggregated(model, system, work, layout=layout, batch=batch, chunk=np.array(CHUNKS), engine=engine, quick=True)
    late = late_first_token(state, work, layout, engine)
    good = (state.utilisation < 1) & (state.tpot <= tpot) & (late <= ttft)
    speed = np.where(good, state.rate * layout.replicas * work.output_tokens, -np.inf)
    at = np.unravel_index(np.argmax(speed), speed.shape)
    overlapped = np.where(good, speed * state.tpot / state.lower, 0.0)
    if not good[at]:
        return {}
    regime = latency_regime(1 - np.broadcast_to(state.decode.total, speed.shape)[at] / state.tpot[at])
    return {
        "output_tok_s": float(speed[at]),
        "bound_tok_s": float(np.max(overlapped)),
        "tpot": float(state.tpot[at]),
        "ttft": float(state.ttft[at]),
        "bound": str(np.broadcast_to(state.decode.bound, speed.shape)[at]),
        "regime": REGIMES[1] if regime == REGIMES[1] else REGIMES[0],
        "layout": layouts[at[0]],
        "batch": float(np.broadcast_to(batch, speed.shape)[at]),
        "rate": float(speed[at] / work.output_tokens),
    }


def late_first_token(state: State, work: Workload, layout: Layout, engine: Engine) -> Array:
    """Return the time to first token [s] that 99 % of requests do not exceed: waits have an exponential tail, service none."""
    _, chunks, _ = split_chunks(work, np.array(CHUNKS))
    served = chunks * (state.decode if state.mixed is None else state.mixed).latency
    waiting = np.maximum(state.ttft - ttft_seen(work, served, state.tpot, layout, engine), 0.0)
    late: Array = state.ttft + (TAIL - 1) * waiting
    return late
