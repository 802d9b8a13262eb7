"""Maximum throughput under a scenario: all requests at once, the highest rate within limits, or the highest at given lengths.

In MLPerf's Offline scenario all requests are present at the start. Server and Interactive have Poisson arrivals, and 99 % of
requests must meet the limits. Maximum throughput is the best result of a benchmark over all loads. Each is the highest rate of
a steady state with prefill and decode on the same chips (`steady_state.aggregated`). The search covers batch sizes that fit in
memory and prefill chunk sizes. If a run has no layout, it covers layouts too.

The number of replicas is the number that fits on the chips. `concurrency`, if present, is the maximum batch of a replica, as
MLPerf submissions set it. A run that starts with all its requests takes longer than a steady state, because of its tail
(`tail_drain`).
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
from steptime.validation.disaggregated_loop import read_workload
from steptime.validation.published_deployments import count_requests, keeps_room, longest_output, most_at_once
from steptime.validation.run_kinds import HIGHEST, INTERACTIVE, OFFLINE, SERVER, run_kind
from steptime.validation.run_table import LIMITS, length_spread
from steptime.validation.tail_drain import Lengths, Replica

# Batch sizes of the search, from one sequence to all that fit.
LEVELS = 24
# Prefill tokens per step of a data-parallel rank.
CHUNKS = (1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
# 99th percentile of an exponential distribution over its mean.
TAIL = math.log(100)
SHARED = (
    "model", "system", "engine", "weight_dtype", "expert_dtype", "kv_dtype", "input_tokens", "output_tokens", "input_mean",
    "output_mean", "tp", "pp", "dp", "ep", "chips", "concurrency", "requests", "part",
)  # fmt: skip


def predict_highest(
    rows: list[dict[str, str]], engines: Mapping[str, Engine], *, catalog: str | None = None
) -> dict[str, Array]:
    """Predict rows under a scenario.

    Args:
        rows: Runs.
        engines: Engines by name.
        catalog: Folder of additional catalogue entries.

    Returns:
        Arrays of shape (rows,) by field of `Predictions`.
    """
    out: dict[str, Array] = {}
    groups: dict[tuple[str, ...], list[int]] = {}
    systems = {name: load_system(name, catalog) for name in {row["system"] for row in rows}}
    for position, row in enumerate(rows):
        limits = (row.get(name) or "" for name in LIMITS) if run_kind(row) in (SERVER, INTERACTIVE) else ()
        day = software_day(systems[row["system"]], row)
        key = (*(row.get(name) or "" for name in SHARED), str(length_spread(row)), *limits, day)
        groups.setdefault(key, []).append(position)
    for index in groups.values():
        row = rows[index[0]]
        for name, value in _predicted(row, engines[row["engine"]], catalog).items():
            empty = np.full(len(rows), "", dtype=object) if isinstance(value, str) else np.full(len(rows), np.nan)
            out.setdefault(name, empty)[index] = value

        # A throughput above that of the ideal engine cannot be right.
        bound = out.get("most", np.full(len(rows), np.nan))[index]
        for i in np.array(index)[bound < [float(rows[i].get("output_tok_s") or "nan") for i in index]]:
            measured, ceiling = float(rows[i]["output_tok_s"]), out["most"][i]
            out["reason"][i] = f"{WRONG}faster than physics: {measured:,.0f} tok/s, the maximum is {ceiling:,.0f}"
    out.pop("most", None)
    return out


def _predicted(row: Mapping[str, str], engine: Engine, catalog: str | None) -> dict[str, Any]:
    weights, system = row["weight_dtype"] or "bf16", as_measured(load_system(row["system"], catalog), row)
    experts, kv = row["expert_dtype"] or weights, row.get("kv_dtype") or ""
    model = load_model(row["model"], weights=weights, experts=experts, kv=kv, catalog=catalog)
    model, work = as_served(model, system, engine), read_workload(row)
    layouts, why = possible_layouts(row, model, system, work, engine)
    if why:
        return {"reason": why}
    ttft, tpot = (math.inf, math.inf)
    if run_kind(row) in (SERVER, INTERACTIVE):
        ttft, tpot = (float(row.get(name) or "inf") for name in LIMITS)
    max_sequences = most_at_once(row)
    is_output_reserved = keeps_room(row)
    if run_kind(row) in (OFFLINE, HIGHEST):
        states = (
            highest(model, system, work, [layout], engine, max_sequences=max_sequences, is_output_reserved=is_output_reserved)
            for layout in layouts
        )
        runs = [_ended(row, model, system, work, engine, state) for state in states if state]
        best = max(runs, key=lambda state: state["output_tok_s"], default={})
    else:
        best = highest(
            model,
            system,
            work,
            layouts,
            engine,
            ttft=ttft,
            tpot=tpot,
            max_sequences=max_sequences,
            is_output_reserved=is_output_reserved,
        )
    if not best:
        return {"reason": "no prediction: no load meets the limits"}
    for name in ("bound_tok_s", "layout", "batch", "rate"):
        best.pop(name)
    low, high = factors(engine, "tpot", best["regime"], system=system)
    first_low, first_high = factors(engine, "ttft", best["regime"], system=system)

    # If all requests arrive at once, TTFT is mostly the wait for other requests.
    if not math.isfinite(ttft):
        best["ttft"] = math.nan
    speed = best["output_tok_s"]
    bound = highest(model, system, work, layouts, IDEAL, ttft=ttft, tpot=tpot) if row.get("output_tok_s") else {}
    return best | {
        "reason": "", "most": bound.get("bound_tok_s", math.nan),
        "tpot_low": best["tpot"] * float(low), "tpot_high": best["tpot"] * float(high),
        "ttft_low": best["ttft"] * float(first_low), "ttft_high": best["ttft"] * float(first_high),
        "output_tok_s_low": speed / float(high), "output_tok_s_high": speed / float(low),
    }  # fmt: skip


def _ended(
    row: Mapping[str, str], model: Model, system: System, work: Workload, engine: Engine, state: dict[str, Any]
) -> dict[str, Any]:
    """Return a steady state with the output rate of a run that ends."""
    lengths = Lengths(mean=float(work.output_tokens), spread=length_spread(row), longest=longest_output(row))
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
    return [Layout(**_fields(layout), replicas=max(1, chips // int(layout.chips))) for layout in room], ""


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
