"""Predictions of measured serving runs: times and throughput of every kind (`run_kinds`).

A closed loop keeps `concurrency` requests in flight in the whole deployment. Its nominal lengths are maxima: benchmarks draw
lengths evenly from a range that ends there, or use one length for all requests. `length_spread` is the distance of the ends of
the range from the mean, as a share of the mean. Measured means have separate columns.

TPOT has a closed form. TTFT comes from a simulation of the loop if numba is installed, because the burst at the start is a
large part of it. Without numba TTFT has a closed form too. Throughput follows from both by Little's law. Separate pools use
`disaggregated_loop`, scenarios use `max_throughput`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from operator import itemgetter
from typing import Any

import numpy as np

from steptime.catalog.acceptance_lengths import acceptance_curve
from steptime.catalog.hardware_loading import load_system
from steptime.errors import UnknownName
from steptime.hardware.number_formats import as_measured, software_day
from steptime.hardware.system import System
from steptime.models.model import Model, stored_formats
from steptime.number_checks import Array
from steptime.physics.bias_correction import Anchors, OperatingPoint
from steptime.physics.engine import IDEAL, TYPICAL, Engine, anchored, at_release, bare, load_engine, with_constants
from steptime.physics.engine_releases import GREEDY, release_bound
from steptime.physics.layout import Layout
from steptime.physics.uncertainty import distances, has_range, latency_regime, wait_regime, with_variances
from steptime.validation.closed_loop import Runs, round_time, solve_closed_loops
from steptime.validation.data_quality import Doubts
from steptime.validation.disaggregated_loop import POOL_COLUMNS, predict_pools
from steptime.validation.error_summary import FIGURES, Predictions, with_ranges
from steptime.validation.max_throughput import SCENARIO_COLUMNS, limit_to_offline, predict_highest
from steptime.validation.published_deployments import (
    as_launched,
    latent_contexts,
    launch_constants,
    prefix_hits,
    usual_interval,
)
from steptime.validation.run_table import (
    AXES,
    DISTINCT_PROMPTS,
    DRAFTED,
    LOOPS,
    MEANS,
    MEDIAN_INTERVAL,
    NUMBERS,
    OUTPUT_FORMAT,
    POOLS,
    PREFILL_SCHEDULE,
    REQUESTS,
    SAMPLING,
    STATISTIC,
    TOKEN_BUDGET,
    count_drafts,
    group_positions,
    is_static_batch,
    length_spread,
    numbers,
    run_kind,
    served_model,
)

Predictor = Callable[[list[dict[str, str]], Model, System, Engine], Mapping[str, Any]]
# Stands for an engine with a KV cache of 8 bits by default.
SMALL_CACHE = with_constants(IDEAL, {"small_kv": 1.0})
# Maximum rows to simulate: a loop takes some milliseconds, a closed form some microseconds.
MOST_SIMULATED = 5000
# Default requests of a run per request in flight, as benchmarks send them.
REQUESTS_PER_CLIENT = 10
# Maximum clients of a simulated loop.
MOST_CLIENTS = 100_000


def grouped(
    rows: list[dict[str, str]], engines: Mapping[str, Engine] | None = None, *, catalog: str | None = None
) -> list[Runs]:
    """Group rows of closed loops that share all but loads and lengths.

    Rows of separate pools become runs of the decode pool; Little's law gives its sequences. Rows are corrected to how they were
    launched (`published_deployments`).

    Args:
        rows: Runs.
        engines: Engines by name, for the default format of the KV cache; by default 8 bits (`kv_dtype`).
        catalog: Folder of additional catalogue entries.

    Returns:
        Groups that share model, formats, speculation, system, its software and engine.
    """
    rows = [as_launched(row) for row in rows]
    systems = {name: load_system(name, catalog) for name in {row["system"] for row in rows}}
    shared_cells = itemgetter("model", "system", "engine", "weight_dtype", "expert_dtype")
    releases = {name: ((engines or {}).get(name) or resolve_engine(name)).releases for name in {row["engine"] for row in rows}}
    keys = [
        (
            *shared_cells(row), row.get("kv_dtype") or "", count_drafts(row), not row.get("decode_workers"),
            software_day(systems[row["system"]], row), latent_contexts(row), launch_constants(row),
            release_bound(releases[row["engine"]], row.get("engine_version") or ""), row.get(SAMPLING), row.get(STATISTIC),
            is_static_batch(row), row.get(PREFILL_SCHEDULE), row.get(OUTPUT_FORMAT),
        )
        for row in rows
    ]  # fmt: skip
    columns = _columns(rows)
    groups = []
    for index in group_positions(keys):
        row = rows[index[0]]
        engine = row["engine"]
        system = as_measured(systems[row["system"]], row)
        model = served_model(row, system, (engines or {}).get(engine, SMALL_CACHE), catalog)
        arrays = {name: column[index] for name, column in columns.items()}
        sizes = {name: arrays.pop(name) for name in AXES}
        arrays["acceptance"] = acceptance_lengths(model, count_drafts(row), arrays["acceptance"])
        groups.append(
            Runs(
                index=index, model=model, system=system, engine=engine, layout=Layout(**sizes, microbatches=sizes["pp"]),
                drafts=count_drafts(row), prompts=not row.get("decode_workers"), contexts=latent_contexts(row),
                launch=launch_constants(row),
                version=row.get("engine_version") or "", sampling=row.get(SAMPLING) or GREEDY,
                is_median=row.get(STATISTIC) == MEDIAN_INTERVAL, is_static=is_static_batch(row),
                schedule=row.get(PREFILL_SCHEDULE) or "", **arrays,
            )
        )  # fmt: skip
    return groups


def _columns(rows: list[dict[str, str]]) -> dict[str, Array]:
    """Return the numbers of rows as arrays; lengths are means, measured or of a range that ends at the nominal length."""
    cells = np.array(list(map(itemgetter(*NUMBERS), rows)), dtype=np.float64)
    columns = dict(zip(NUMBERS, np.ascontiguousarray(cells.T), strict=True))
    spread = np.array(list(map(length_spread, rows)))
    columns["input_tokens"] = np.maximum(1.0, columns["input_tokens"] / (1 + spread))
    columns["output_tokens"] = np.maximum(2.0, columns["output_tokens"] / (1 + spread))
    for name, mean in zip(NUMBERS, MEANS, strict=False):
        measured = numbers(rows, mean)
        columns[name] = np.where(np.isnan(measured), columns[name], measured)

    # Clients and requests are divided evenly among the replicas.
    chips_per_replica = columns["tp"] * columns["pp"] * columns["dp"]
    replicas = np.maximum(1.0, np.floor(numbers(rows, "chips", 1.0) / chips_per_replica))
    concurrency = np.maximum(1.0, columns["concurrency"] / replicas)
    requests = numbers(rows, REQUESTS) / replicas
    requests = np.where(np.isnan(requests), REQUESTS_PER_CLIENT * concurrency, requests)

    # Of separate pools the decode pool counts; Little's law gives its sequences, $N = X t$.
    workers = numbers(rows, "decode_workers")
    is_pool = np.isfinite(workers)
    if is_pool.any():
        decoding = np.maximum(1.0, numbers(rows, "output_tok_s") * numbers(rows, "tpot_s") / workers)
        replicas, concurrency = np.where(is_pool, workers, replicas), np.where(is_pool, decoding, concurrency)
    usual = np.array([usual_interval(row, clients) for row, clients in zip(rows, concurrency.tolist(), strict=True)])
    interval, slots = numbers(rows, "stream_interval"), numbers(rows, "max_num_seqs")
    return columns | {
        "concurrency": concurrency, "spread": spread, "requests": requests, "replicas": replicas,
        "acceptance": numbers(rows, "acceptance"), "interval": np.where(np.isnan(interval), usual, interval),
        "slots": np.where(np.isnan(slots), np.inf, slots), "budget": numbers(rows, TOKEN_BUDGET, 0.0),
        "hits": prefix_hits(numbers(rows, DISTINCT_PROMPTS, np.inf), concurrency, requests),
    }  # fmt: skip


def acceptance_lengths(model: Model, drafts: int, acceptance: Array) -> Array:
    """Return the acceptance lengths of runs.

    Args:
        model: Model.
        drafts: Speculative tokens per step.
        acceptance: Recorded tokens that a step yields, of shape (runs,); NaN if not recorded.

    Returns:
        Tokens per step, of shape (runs,): recorded, or measured for the model's MTP layers; NaN if neither is known.
    """
    if not drafts:
        return np.ones_like(acceptance)
    tokens = acceptance_curve(model.name).tokens if model.draft else ()
    return np.where(np.isnan(acceptance), tokens[drafts - 1] if drafts <= len(tokens) else np.nan, acceptance)


def predict_runs(runs: Runs, engine: Engine) -> tuple[Array, Array, Array, Array]:
    """Predict a group of closed loops in closed form.

    Args:
        runs: Group of runs.
        engine: Engine; its constants may be arrays of shape (n, 1).

    Returns:
        TPOT [s], TTFT [s], bound and latency regime, of shape (runs,) or (n, runs).
    """
    loops = solve_closed_loops(runs, engine)
    return loops.tpot, loops.ttft, loops.decode.bound, latency_regime(1 - loops.decode_share)


def can_simulate() -> bool:
    """Check whether the simulator can run.

    Returns:
        True if numba is installed (extra `simulate`).
    """
    return find_spec("numba") is not None


def simulate_loops(runs: Runs, engine: Engine) -> Any:
    """Simulate the closed loops of a group.

    Args:
        runs: Group of runs.
        engine: Engine.

    Returns:
        Simulated loops (`ttft_fit.Loops`).
    """
    from steptime.validation.ttft_fit import closed_loops

    acceptance = np.where(np.isnan(runs.acceptance), 1.0, runs.acceptance)
    engine = runs.launched(engine)
    return closed_loops(**runs.loop(), requests=runs.requests, acceptance=acceptance, engine=engine)


def first_tokens(runs: Runs, engine: Engine) -> tuple[Array, Array]:
    """Return TTFT of a group, by simulation or, without numba, in closed form.

    Args:
        runs: Group of runs.
        engine: Engine.

    Returns:
        Mean and median TTFT [s], of shape (runs,).
    """
    if not can_simulate():
        closed_form = solve_closed_loops(runs, engine)
        return closed_form.ttft, closed_form.ttft_median
    from steptime.validation.ttft_fit import wait_constants

    loops, constants = simulate_loops(runs, engine), wait_constants(engine)
    return loops.ttft(constants), loops.ttft(constants, median=True)


def resolve_engine(name: str, *, engine: Engine | None = None, catalog: str | None = None) -> Engine:
    """Return the engine that predicts runs with an engine name.

    Args:
        name: Engine name of the runs.
        engine: Engine to use instead, if given.
        catalog: Folder of additional catalogue entries.

    Returns:
        The given engine, the engine with this name, or the typical engine.

    Raises:
        DataFileError: The file of the engine is malformed.
    """
    if engine is not None:
        return engine
    try:
        return load_engine(name, catalog)
    except UnknownName:
        return load_engine(TYPICAL, catalog)


def predict(
    rows: list[dict[str, str]],
    *,
    engine: Engine | None = None,
    anchor: Anchors | None = None,
    catalog: str | None = None,
    by_simulation: bool | None = None,
) -> Predictions:
    """Predict every row.

    Args:
        rows: Runs.
        engine: Engine for all runs; by default the engine of each run.
        anchor: Own runs that correct the predictions of their engine.
        catalog: Folder of additional catalogue entries.
        by_simulation: Whether to simulate TTFT; by default if numba is installed and there are at most `MOST_SIMULATED` rows.

    Returns:
        Predictions in the order of the rows.
    """
    rows = [as_launched(row) for row in rows]
    engines = {name: resolve_engine(name, engine=engine, catalog=catalog) for name in {row["engine"] for row in rows}}
    kinds = np.array([run_kind(row) for row in rows])
    out: dict[str, Any] = {key: np.full(len(rows), np.nan) for key in FIGURES}
    out |= {key: np.full(len(rows), "", dtype=object) for key in ("bound", "regime", "reason")}
    simulated = can_simulate() and len(rows) <= MOST_SIMULATED if by_simulation is None else by_simulation

    def predict_groups(positions: Array, columns: tuple[str, ...], predictor: Predictor) -> None:
        """Predict rows in groups with the same cells in `columns`."""
        systems = {name: load_system(name, catalog) for name in {rows[i]["system"] for i in positions}}
        keys = [
            (
                *(rows[i].get(name) or "" for name in columns), length_spread(rows[i]),
                software_day(systems[rows[i]["system"]], rows[i]), latent_contexts(rows[i]), launch_constants(rows[i]),
                rows[i].get(OUTPUT_FORMAT),
                release_bound(engines[rows[i]["engine"]].releases, rows[i].get("engine_version") or ""),
            )
            for i in positions
        ]  # fmt: skip
        for index in (positions[group] for group in group_positions(keys)):
            row = rows[index[0]]
            chosen_engine = at_release(engines[row["engine"]], row.get("engine_version") or "")
            system = as_measured(systems[row["system"]], row)
            model = served_model(row, system, chosen_engine, catalog)
            chosen_engine = _corrected(chosen_engine, anchor, model, system)
            for key, values in predictor([rows[i] for i in index], model, system, chosen_engine).items():
                out[key][index] = values

    predict_groups(np.flatnonzero(kinds == POOLS), POOL_COLUMNS, predict_pools)
    predict_groups(np.flatnonzero(~np.isin(kinds, (*LOOPS, POOLS))), SCENARIO_COLUMNS, predict_highest)
    limit_to_offline(rows, out)

    # Closed loops are predicted in larger groups: loads and lengths may differ.
    doubts = Doubts(rows)
    loops = np.flatnonzero(np.isin(kinds, LOOPS))
    for runs in grouped([rows[i] for i in loops], engines, catalog=catalog) if len(loops) else ():
        index = loops[runs.index]
        own_engine = _corrected(engines[runs.engine], anchor, runs.model, runs.system)
        for key, values in _predicted(runs, own_engine, simulated).items():
            out[key][index] = values
        doubts.look(runs, index, out["tpot"][index], engines[runs.engine])

    # Without an acceptance length, the time per token is unknown.
    for i in np.flatnonzero(kinds == DRAFTED):
        if not count_drafts(rows[i]) or not np.isfinite(out["tpot"][i]):
            out["reason"][i] = _unknown_drafts(rows[i])
            for key in FIGURES:
                out[key][i] = np.nan
    out["reason"] = np.where(out["reason"] == "", doubts.reasons(), out["reason"])
    return Predictions(**out, simulated=simulated)


def _unknown_drafts(row: Mapping[str, str]) -> str:
    """Explain why a speculative run has no prediction."""
    if not count_drafts(row):
        return f"no prediction: spec is {row['spec']}, but drafted has no number of speculative tokens per step"
    return (
        f"no prediction: the acceptance length of {count_drafts(row)} speculative tokens is not known for the model; "
        "give it in the column acceptance"
    )


def _corrected(engine: Engine, anchor: Anchors | None, model: Model, system: System) -> Engine:
    """Return the engine with the own runs of its name, if there are any."""
    if anchor is None or engine.name not in {group.engine for group in anchor.anchors}:
        return engine
    return anchored(engine, anchor, model=model.name, system=system.name, formats=stored_formats(model))


def operating_point(runs: Runs, running: Array) -> OperatingPoint:
    """Return where the times of runs are corrected by own runs.

    Args:
        runs: Group of runs.
        running: Sequences that have a slot.

    Returns:
        Layouts, loads and mean contexts, of shape (runs,).
    """
    load = np.where(np.isfinite(running), np.minimum(running, runs.concurrency), runs.concurrency)
    return OperatingPoint(layout=runs.layout, load=load, context=runs.input_tokens + runs.output_tokens / 2)


def _predicted(runs: Runs, corrected: Engine, simulated: bool) -> dict[str, Array]:
    """Return the predictions of a group of closed loops, by field of `Predictions`."""
    # Each step takes the factor of the load, so that times per token are the times without own runs times the factor.
    engine = bare(corrected)
    loop, unknown = solve_closed_loops(runs, engine), np.isnan(runs.acceptance)
    regime = latency_regime(1 - loop.decode_share)
    ttft, median = loop.ttft, loop.ttft_median
    if simulated and not runs.is_static and np.max(runs.concurrency) <= MOST_CLIENTS:
        ttft, median = (np.where(unknown, np.nan, times) for times in first_tokens(runs, engine))
    point, tpot = operating_point(runs, loop.running), loop.tpot
    if corrected.anchor is not None:
        slower = corrected.anchor.step_factor(point)
        tpot, wait = tpot * slower, slower * corrected.anchor.wait_factor(point)
        ttft, median = ttft * wait, median * wait
    rounds = np.maximum(runs.requests / runs.concurrency, 1.0)
    decoding = (runs.output_tokens - 1) * tpot
    lasting = round_time(ttft, decoding, spread=runs.spread, clients=runs.concurrency, rounds=rounds)
    speed = runs.replicas * runs.concurrency * runs.output_tokens / lasting
    # The median of the intervals between tokens is that of a decode step, since most steps have no prefill.
    token_time = tpot * loop.decode_share if runs.is_median else tpot
    waiting = wait_regime(loop.ttft, loop.prompt_seconds)
    figures = {"tpot": token_time, "ttft": ttft, "ttft_median": median, "output_tok_s": speed}
    reach = runs.input_tokens + runs.output_tokens
    flags = distances(corrected, runs.system, runs.layout, model=runs.model, drafts=bool(runs.drafts), context=reach)
    variances = time_variances(runs, engine) if has_range(engine) else None
    return with_ranges(figures, corrected, regime, waiting, runs.system, flags, variances, point) | {"bound": loop.decode.bound}


def time_variances(runs: Runs, engine: Engine) -> dict[str, Array]:
    """Return the variances of log(TPOT) and log(TTFT) of runs from the constants of an engine.

    Args:
        runs: Group of runs.
        engine: Engine.

    Returns:
        Variances by quantity, of shape (runs,).
    """

    def times(varied: Engine) -> tuple[Array, ...]:
        loop = solve_closed_loops(runs, varied)
        return loop.tpot, loop.ttft

    pairs = with_variances(times, engine, dimensions=1)
    return {name: variance for name, (_, variance) in zip(("tpot", "ttft"), pairs, strict=True)}
