"""Predictions of measured serving runs: times and throughput of every kind (`run_kinds`).

A closed loop keeps `concurrency` requests in flight in the whole deployment. Its nominal lengths are maxima: benchmarks draw
lengths evenly from a range that ends there, or use one length for all requests. `length_spread` is the distance of the ends of
the range from the mean, as a share of the mean. Measured means have separate columns.

TPOT has a closed form. TTFT comes from a simulation of the loop if numba is installed, because the burst at the start is a
large part of it. Without numba TTFT has a closed form too. Throughput follows from both by Little's law. Separate pools use
`disaggregated_loop`, scenarios use `max_throughput`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.util import find_spec
from operator import itemgetter
from typing import Any

import numpy as np

from steptime.catalog.acceptance_lengths import acceptance_curve
from steptime.catalog.hardware_loading import load_system
from steptime.errors import InputError
from steptime.hardware.number_formats import as_measured, software_day
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.models.model_loading import load_model
from steptime.number_checks import Array, Number
from steptime.physics.engine import TYPICAL, Engine, load_engine
from steptime.physics.kv_dtype import is_narrow, with_small_cache
from steptime.physics.layout import Layout
from steptime.physics.uncertainty import distances, factors, latency_regime, widening
from steptime.validation.closed_loop import round_time, solve_closed_loops
from steptime.validation.data_quality import Doubts
from steptime.validation.disaggregated_loop import predict_pools
from steptime.validation.error_summary import FIGURES, Predictions
from steptime.validation.max_throughput import predict_highest
from steptime.validation.published_deployments import as_launched, latent_contexts, usual_interval, with_contexts
from steptime.validation.run_table import (
    AXES,
    DRAFTED,
    LOOPS,
    MEANS,
    NUMBERS,
    POOLS,
    REQUESTS,
    SPREAD,
    count_drafts,
    length_spread,
    run_kind,
)

# Maximum rows to simulate: a loop takes some milliseconds, a closed form some microseconds.
MOST_SIMULATED = 5000
# Default requests of a run per request in flight, as benchmarks send them.
REQUESTS_PER_CLIENT = 10
# Maximum clients of a simulated loop.
MOST_CLIENTS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Measured runs that share model, formats, drafts, system and engine; arrays of shape (runs,).

    Lengths are means. concurrency and requests (of the whole run) are those of one of `replicas`. spread: spread of lengths as
    a share of the mean. drafts: speculative tokens per step; acceptance: tokens that a step yields, NaN if unknown. interval:
    decode steps between two checks for new output. prompts: whether the same chips run prefill; False for the decode pool of
    separate pools. contexts: value of `latent_contexts`.
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
    drafts: int = 0
    prompts: bool = True
    contexts: float = math.inf

    def loop(self) -> dict[str, Any]:
        """Return the arguments that the closed form and the simulation share.

        Returns:
            Values by argument.
        """
        names = ("model", "system", "layout", "concurrency", "input_tokens", "output_tokens", "spread", "drafts", "interval")
        return {name: getattr(self, name) for name in names}

    def select(self, positions: Array) -> Runs:
        """Select some of the runs.

        Args:
            positions: Positions, or booleans of shape (runs,).

        Returns:
            The selected runs.
        """
        attributes = {f.name: getattr(self, f.name) for f in fields(self)}
        layout_fields = {name: getattr(self.layout, name)[positions] for name in (*AXES, "microbatches")}
        arrays = {name: value[positions] for name, value in attributes.items() if isinstance(value, np.ndarray)}
        return Runs(**attributes | arrays | {"layout": Layout(**layout_fields)})


def grouped(
    rows: list[dict[str, str]], *, small_kv: Mapping[str, bool] | None = None, catalog: str | None = None
) -> list[Runs]:
    """Group rows of closed loops that share all but loads and lengths.

    Rows of separate pools become runs of the decode pool; Little's law gives its sequences. Rows are corrected to how they were
    launched (`published_deployments`).

    Args:
        rows: Runs.
        small_kv: Whether an engine uses an 8-bit KV cache by default, by name.
        catalog: Folder of additional catalogue entries.

    Returns:
        Groups that share model, formats, speculation, system, its software and engine.
    """
    rows = [as_launched(row) for row in rows]
    groups: dict[tuple[Any, ...], list[int]] = {}
    systems = {name: load_system(name, catalog) for name in {row["system"] for row in rows}}
    shared_cells = itemgetter("model", "system", "engine", "weight_dtype", "expert_dtype")
    for position, row in enumerate(rows):
        group_key = (*shared_cells(row), row.get("kv_dtype") or "", count_drafts(row), not row.get("decode_workers"))
        group_key = (*group_key, software_day(systems[row["system"]], row), latent_contexts(row))
        groups.setdefault(group_key, []).append(position)
    columns = _columns(rows)
    return [
        _runs(
            key,
            {n: column[index] for n, column in columns.items()},
            np.array(index),
            as_measured(systems[key[1]], rows[index[0]]),
            small_kv or {},
            catalog,
        )
        for key, index in groups.items()
    ]


def _columns(rows: list[dict[str, str]]) -> dict[str, Array]:
    """Return the numbers of rows as arrays; lengths are means, measured or of a range that ends at the nominal length."""
    cells = np.array(list(map(itemgetter(*NUMBERS), rows)), dtype=np.float64)
    columns = dict(zip(NUMBERS, np.ascontiguousarray(cells.T), strict=True))
    columns[SPREAD] = np.array(list(map(length_spread, rows)))
    columns["input_tokens"] = np.maximum(1.0, columns["input_tokens"] / (1 + columns[SPREAD]))
    columns["output_tokens"] = np.maximum(2.0, columns["output_tokens"] / (1 + columns[SPREAD]))
    for name, mean in zip(NUMBERS, MEANS, strict=False):
        mean_texts = [row.get(mean) for row in rows]
        if any(mean_texts):
            columns[name] = np.where(
                [bool(text) for text in mean_texts], [float(text or 1) for text in mean_texts], columns[name]
            )
    optional_columns = {
        name: np.array([float(row.get(name) or "nan") for row in rows]) for name in (REQUESTS, "chips", "stream_interval")
    }
    chips_per_replica = columns["tp"] * columns["pp"] * columns["dp"]

    # Clients and requests are divided evenly among the replicas.
    columns["replicas"] = np.maximum(1.0, np.floor(np.nan_to_num(optional_columns["chips"], nan=1.0) / chips_per_replica))
    columns["concurrency"] = np.maximum(1.0, columns["concurrency"] / columns["replicas"])
    usual = REQUESTS_PER_CLIENT * columns["concurrency"]
    columns[REQUESTS] = np.where(np.isnan(optional_columns[REQUESTS]), usual, optional_columns[REQUESTS] / columns["replicas"])
    if any(row.get("decode_workers") for row in rows):
        _set_decoding(columns, rows)
    untold = np.isnan(optional_columns["stream_interval"])
    usual = np.array([usual_interval(row, clients) for row, clients in zip(rows, columns["concurrency"].tolist(), strict=True)])
    columns["interval"] = np.where(untold, usual, optional_columns["stream_interval"])
    columns["acceptance"] = np.array([float(row.get("acceptance") or "nan") for row in rows])
    return columns


def _set_decoding(columns: dict[str, Array], rows: list[dict[str, str]]) -> None:
    """Set concurrency and replicas of rows of separate pools to those of the decode pool: $N = X t$."""
    speed, tpot, workers = (
        np.array([float(row.get(name) or "nan") for row in rows]) for name in ("output_tok_s", "tpot_s", "decode_workers")
    )
    pools = np.isfinite(workers)
    columns["replicas"] = np.where(pools, workers, columns["replicas"])
    decoding = np.maximum(1.0, speed * tpot / workers)
    columns["concurrency"] = np.where(pools, decoding, columns["concurrency"])


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


def _runs(
    key: tuple[Any, ...],
    columns: Mapping[str, Array],
    index: Array,
    system: System,
    small_kv: Mapping[str, bool],
    catalog: str | None,
) -> Runs:
    """Return one group; without a recorded format, its KV cache has 8 bits if the engine uses that by default (`kv_dtype`)."""
    name, _, engine, weights, experts, kv, drafts, prompts, _, contexts = key
    weights = weights or "bf16"
    model = load_model(name, weights=weights, experts=experts or weights, kv=kv, catalog=catalog)

    # Some engines use an 8-bit KV cache by default for models that compute in 8 bits or fewer.
    if not model.kv_told and small_kv.get(engine, True) and is_narrow(model, "fp4" in system.chip.peak):
        model = with_small_cache(model)
    return Runs(
        index=index,
        model=model,
        system=system,
        engine=engine,
        layout=Layout(**{n: columns[n] for n in AXES}, microbatches=columns["pp"]),
        concurrency=columns["concurrency"],
        input_tokens=columns["input_tokens"],
        output_tokens=columns["output_tokens"],
        spread=columns[SPREAD],
        requests=columns[REQUESTS],
        replicas=columns["replicas"],
        acceptance=acceptance_lengths(model, drafts, columns["acceptance"]),
        interval=columns["interval"],
        drafts=drafts,
        prompts=prompts,
        contexts=contexts,
    )


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
    engine = with_contexts(engine, runs.contexts)
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
    """
    if engine is not None:
        return engine
    try:
        return load_engine(name, catalog)
    except InputError:
        return load_engine(TYPICAL, catalog)


def predict(
    rows: list[dict[str, str]], *, engine: Engine | None = None, catalog: str | None = None, by_simulation: bool | None = None
) -> Predictions:
    """Predict every row.

    The ranges are those of left-out runs. The variance that constants add for an unusual run (`uncertainty`) would take twenty
    times as long to compute.

    Args:
        rows: Runs.
        engine: Engine for all runs; by default the engine of each run.
        catalog: Folder of additional catalogue entries.
        by_simulation: Whether to simulate TTFT; by default if numba is installed and there are at most `MOST_SIMULATED` rows.

    Returns:
        Predictions in the order of the rows.
    """
    rows = [as_launched(row) for row in rows]
    names = sorted({row["engine"] for row in rows})
    engines = {name: resolve_engine(name, engine=engine, catalog=catalog) for name in names}
    kinds = np.array([run_kind(row) for row in rows])
    out: dict[str, Any] = {key: np.full(len(rows), np.nan) for key in FIGURES}
    out |= {key: np.full(len(rows), "", dtype=object) for key in ("bound", "regime", "reason")}
    simulated = can_simulate() and len(rows) <= MOST_SIMULATED if by_simulation is None else by_simulation

    # Each kind of run has a predictor; closed loops are predicted in groups.
    doubts = Doubts(rows)
    for kind, predicted in ((POOLS, predict_pools), (None, predict_highest)):
        positions = np.flatnonzero(kinds == kind if kind else ~np.isin(kinds, (*LOOPS, POOLS)))
        if len(positions):
            for key, values in predicted([rows[i] for i in positions], engines, catalog=catalog).items():
                out[key][positions] = values
    loops = np.flatnonzero(np.isin(kinds, LOOPS))
    small = {name: bool(engines[name].room.small_kv) for name in names}
    for runs in grouped([rows[i] for i in loops], small_kv=small, catalog=catalog) if len(loops) else ():
        for key, values in _predicted(runs, engines[runs.engine], simulated).items():
            out[key][loops[runs.index]] = values
        doubts.look(runs, loops[runs.index], out["tpot"][loops[runs.index]], engines[runs.engine])

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


def _predicted(runs: Runs, engine: Engine, simulated: bool) -> dict[str, Array]:
    """Return the predictions of a group of closed loops, by field of `Predictions`."""
    loop, unknown = solve_closed_loops(runs, engine), np.isnan(runs.acceptance)
    regime = latency_regime(1 - loop.decode_share)
    ttft, median = loop.ttft, loop.ttft_median
    if simulated and np.max(runs.concurrency) <= MOST_CLIENTS:
        ttft, median = (np.where(unknown, np.nan, times) for times in first_tokens(runs, engine))
    rounds = np.maximum(runs.requests / runs.concurrency, 1.0)
    decoding = (runs.output_tokens - 1) * loop.tpot
    lasting = round_time(ttft, decoding, spread=runs.spread, clients=runs.concurrency, rounds=rounds)
    speed = runs.replicas * runs.concurrency * runs.output_tokens / lasting
    figures = {"tpot": loop.tpot, "ttft": ttft, "ttft_median": median, "output_tok_s": speed}
    wider = widening(distances(engine, runs.system, runs.layout, drafts=bool(runs.drafts)))
    return figures | spans(figures, engine, regime, runs.system, wider) | {"bound": loop.decode.bound, "regime": regime}


def spans(
    figures: Mapping[str, Array],
    engine: Engine,
    regime: Array | str,
    system: System,
    wider: tuple[Number, Number] = (0.0, 0.0),
) -> dict[str, Array]:
    """Return the ends of the 90 % ranges of times and throughput.

    Throughput has the relative range of TPOT.

    Args:
        figures: Predicted values by name.
        engine: Engine.
        regime: Latency regime.
        system: System.
        wider: Logarithms that widen the range below and above, for runs unlike those of the fit.

    Returns:
        Lower and upper ends by name.
    """
    ends: dict[str, Array] = {}
    for name in ("tpot", "ttft"):
        low, high = factors(engine, name, regime, system=system, wider=wider)
        ends |= {f"{name}_low": figures[name] * low, f"{name}_high": figures[name] * high}
    low, high = factors(engine, "tpot", regime, system=system, wider=wider)
    return ends | {"output_tok_s_low": figures["output_tok_s"] / high, "output_tok_s_high": figures["output_tok_s"] / low}
