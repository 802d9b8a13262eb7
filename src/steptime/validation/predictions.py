"""Predicted against measured: predicts times and throughput of serving runs of every kind (`kinds`).

A closed loop holds `concurrency` requests in flight in the whole deployment. Its nominal lengths are the longest: benchmarks
draw lengths evenly from a range that ends there, or give all requests the same. `length_spread` tells which: how far lengths
reach to both sides of their mean, as a share of it. Where means are known they stand in columns of their own. TPOT is a closed
form; TTFT comes from a simulation of the loop where numba is installed, since the burst at the start is a good part of it, and
else from a closed form too. Throughput follows from both by Little's law. Separate pools are those of `pools`, scenarios those
of `highest`.
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
from steptime.hardware.software_maturity import as_measured, software_day
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.models.model_loading import load_model
from steptime.number_checks import Array, Number
from steptime.physics.engine import TYPICAL, Engine, load_engine
from steptime.physics.extrapolation import distances, widening
from steptime.physics.kv_dtype import is_narrow, with_small_cache
from steptime.physics.layout import Layout
from steptime.physics.uncertainty import factors, latency_regime
from steptime.validation.closed_loop import round_time, solve_closed_loops
from steptime.validation.data_quality import Doubts
from steptime.validation.disaggregated_loop import predict_pools
from steptime.validation.error_summary import FIGURES, Predictions
from steptime.validation.max_throughput import predict_highest
from steptime.validation.published_deployments import as_launched, latent_contexts, usual_interval, with_contexts
from steptime.validation.run_kinds import DRAFTED, LOOPS, POOLS, count_drafts, run_kind
from steptime.validation.run_table import AXES, MEANS, NUMBERS, REQUESTS, SPREAD, length_spread

# rows: a loop takes some milliseconds, a closed form some microseconds
MOST_SIMULATED = 5000
# requests of a run for each in flight, unless it tells: what benchmarks send
REQUESTS_PER_CLIENT = 10
# of a loop that is simulated
MOST_CLIENTS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Measured runs that share model, formats, drafts, system and engine, as arrays of shape (runs,); lengths are means.

    concurrency and requests (of the whole run) are of one of `replicas`. spread: how far lengths reach to both sides of their
    means, as a share. drafts: tokens drafted a step; acceptance: tokens that a step yields, not a number where nobody knows.
    interval: decode steps between two looks at what is new. prompts: whether the same chips read them, or those of a pool of
    their own. contexts: of `latent_contexts`.
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
        """Return what closed loops of these runs are made of, in closed form and simulated."""
        names = ("model", "system", "layout", "concurrency", "input_tokens", "output_tokens", "spread", "drafts", "interval")
        return {name: getattr(self, name) for name in names}

    def select(self, positions: Array) -> Runs:
        """Return some of the runs, by their places or as booleans."""
        attributes = {f.name: getattr(self, f.name) for f in fields(self)}
        layout_fields = {name: getattr(self.layout, name)[positions] for name in (*AXES, "microbatches")}
        arrays = {name: value[positions] for name, value in attributes.items() if isinstance(value, np.ndarray)}
        return Runs(**attributes | arrays | {"layout": Layout(**layout_fields)})


def grouped(
    rows: list[dict[str, str]], *, small_kv: Mapping[str, bool] | None = None, catalog: str | None = None
) -> list[Runs]:
    """Return rows of closed loops as groups of runs that share model, formats, drafts, system, its software and engine.

    Rows of separate pools are runs of the pool that decodes, of as many sequences as Little's law says were in it. All are
    taken as they were launched (`launches`).
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
    """Return the numbers of rows as arrays; lengths are means, the known ones or those of a range that ends at nominal ones."""
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
    """Set concurrency and replicas of rows of separate pools to those of the pool that decodes: $N = X t$."""
    speed, tpot, workers = (
        np.array([float(row.get(name) or "nan") for row in rows]) for name in ("output_tok_s", "tpot_s", "decode_workers")
    )
    pools = np.isfinite(workers)
    columns["replicas"] = np.where(pools, workers, columns["replicas"])
    decoding = np.maximum(1.0, speed * tpot / workers)
    columns["concurrency"] = np.where(pools, decoding, columns["concurrency"])


def acceptance_lengths(model: Model, drafts: int, acceptance: Array) -> Array:
    """Return the tokens that a step of `drafts` yields: as told, or as measured of the model's own layers that draft.

    Not a number where neither is known.
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
    """Return one group; unless the rows name a format, its KV cache is in 8 bits where the engine keeps it so (`served`)."""
    name, _, engine, weights, experts, kv, drafts, prompts, _, contexts = key
    weights = weights or "bf16"
    model = load_model(name, weights=weights, experts=experts or weights, kv=kv, catalog=catalog)
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
    """Return TPOT, TTFT [s], the bound and the regime of a group; constants of the engine may be arrays of shape (n, 1)."""
    loops = solve_closed_loops(runs, engine)
    return loops.tpot, loops.ttft, loops.decode.bound, latency_regime(1 - loops.decode_share)


def can_simulate() -> bool:
    """Whether the simulator can run: it is compiled by numba, which the extra `simulate` installs."""
    return find_spec("numba") is not None


def simulate_loops(runs: Runs, engine: Engine) -> Any:
    """Return the simulated closed loops of a group (`loops.Loops`)."""
    from steptime.validation.ttft_fit import closed_loops

    acceptance = np.where(np.isnan(runs.acceptance), 1.0, runs.acceptance)
    engine = with_contexts(engine, runs.contexts)
    return closed_loops(**runs.loop(), requests=runs.requests, acceptance=acceptance, engine=engine)


def first_tokens(runs: Runs, engine: Engine) -> tuple[Array, Array]:
    """Return mean and median TTFT [s] of a group by simulation, in closed form where numba is not installed."""
    if not can_simulate():
        closed_form = solve_closed_loops(runs, engine)
        return closed_form.ttft, closed_form.ttft_median
    from steptime.validation.ttft_fit import wait_constants

    loops, constants = simulate_loops(runs, engine), wait_constants(engine)
    return loops.ttft(constants), loops.ttft(constants, median=True)


def resolve_engine(name: str, *, engine: Engine | None = None, catalog: str | None = None) -> Engine:
    """Return the engine that predicts runs of `name`: the given one, its own file, or the typical engine."""
    if engine is not None:
        return engine
    try:
        return load_engine(name, catalog)
    except InputError:
        return load_engine(TYPICAL, catalog)


def predict(
    rows: list[dict[str, str]], *, engine: Engine | None = None, catalog: str | None = None, by_simulation: bool | None = None
) -> Predictions:
    """Return predictions for every row, in their order.

    by_simulation: whether TTFT comes from simulated loops; by default where it can, for up to `MOST_SIMULATED` rows.
    Intervals are those of left-out runs: what constants add for an unusual run (`uncertainty`) would cost twenty times as much.
    """
    rows = [as_launched(row) for row in rows]
    names = sorted({row["engine"] for row in rows})
    engines = {name: resolve_engine(name, engine=engine, catalog=catalog) for name in names}
    kinds = np.array([run_kind(row) for row in rows])
    out: dict[str, Any] = {key: np.full(len(rows), np.nan) for key in FIGURES}
    out |= {key: np.full(len(rows), "", dtype=object) for key in ("bound", "regime", "reason")}
    simulated = can_simulate() and len(rows) <= MOST_SIMULATED if by_simulation is None else by_simulation
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
    for i in np.flatnonzero(kinds == DRAFTED):
        if not count_drafts(rows[i]) or not np.isfinite(out["tpot"][i]):
            out["reason"][i] = _unknown_drafts(rows[i])
            for key in FIGURES:
                out[key][i] = np.nan
    out["reason"] = np.where(out["reason"] == "", doubts.reasons(), out["reason"])
    return Predictions(**out, simulated=simulated)


def _unknown_drafts(row: Mapping[str, str]) -> str:
    """Say why a drafted run has no prediction."""
    if not count_drafts(row):
        return f"no prediction: spec is {row['spec']}, and drafted does not tell how many tokens a step"
    return f"no prediction: how many of {count_drafts(row)} drafts the model accepts was not measured; acceptance tells"


def _predicted(runs: Runs, engine: Engine, simulated: bool) -> dict[str, Array]:
    """Return the figures of a group of closed loops by the name that `Predictions` has for them."""
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
    """Return the ends of 90 % ranges of times and throughput, by name: throughput is as sure as the time per token.

    wider: by how much distance from what was measured widens them, in logarithms.
    """
    ends: dict[str, Array] = {}
    for name in ("tpot", "ttft"):
        low, high = factors(engine, name, regime, system=system, wider=wider)
        ends |= {f"{name}_low": figures[name] * low, f"{name}_high": figures[name] * high}
    low, high = factors(engine, "tpot", regime, system=system, wider=wider)
    return ends | {"output_tok_s_low": figures["output_tok_s"] / high, "output_tok_s_high": figures["output_tok_s"] / low}
