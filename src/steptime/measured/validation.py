"""Predicted against measured: predicts TPOT and TTFT of serving runs, and says how far off it is.

A run is a closed loop of `concurrency` requests on one deployment. Its nominal lengths are the longest: benchmarks draw lengths
evenly from a range that ends there, or give all requests the same. `length_spread` tells which: how far lengths reach to both
sides of their mean, as a share of it. Where means are known they stand in columns of their own. TPOT is a closed form; TTFT
comes from a simulation of the loop where numba is installed, since the burst at the start is a good part of it, and else from a
closed form too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from operator import itemgetter
from typing import Any

import numpy as np

from steptime.catalog.loading import load_system
from steptime.errors import InputError
from steptime.machines.system import System
from steptime.measured.comparison import Predictions
from steptime.measured.runs import AXES, MEANS, NUMBERS, REQUESTS, SPREAD, spread_of
from steptime.models.loading import load_model
from steptime.models.model import Model
from steptime.numbers import Array
from steptime.physics.cache_format import is_narrow, with_small_cache
from steptime.physics.engine import TYPICAL, Engine, load_engine
from steptime.physics.layout import Layout
from steptime.physics.uncertainty import factors, regime_of
from steptime.planning.closed import closed_loop

MOST_SIMULATED = 5000  # rows: a loop takes some milliseconds, a closed form some microseconds
EACH = 10  # requests of a run for each in flight, unless it tells: what benchmarks send
MOST_CLIENTS = 100_000  # of a loop that is simulated


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Measured runs that share model, formats, system and engine, as arrays of shape (runs,); lengths are means.

    spread: how far lengths reach to both sides of their means, as a share. requests: of the whole run.
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


def grouped(
    rows: list[dict[str, str]], *, small_kv: Mapping[str, bool] | None = None, catalog: str | None = None
) -> list[Runs]:
    """Return the rows as groups of runs that share model, formats, system and engine."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for position, row in enumerate(rows):
        key = (row["model"], row["system"], row["engine"], row["weight_dtype"], row["expert_dtype"], row.get("kv_dtype") or "")
        groups.setdefault(key, []).append(position)
    columns = _columns(rows)
    systems = {name: load_system(name, catalog) for name in {key[1] for key in groups}}
    return [
        _runs(key, {n: of[index] for n, of in columns.items()}, np.array(index), systems[key[1]], small_kv or {}, catalog)
        for key, index in groups.items()
    ]


def _columns(rows: list[dict[str, str]]) -> dict[str, Array]:
    """Return the numbers of rows as arrays; lengths are means, the known ones or those of a range that ends at nominal ones."""
    cells = np.array(list(map(itemgetter(*NUMBERS), rows)), dtype=np.float64)
    columns = dict(zip(NUMBERS, np.ascontiguousarray(cells.T), strict=True))
    columns[SPREAD] = np.array(list(map(spread_of, rows)))
    columns["input_tokens"] = np.maximum(1.0, columns["input_tokens"] / (1 + columns[SPREAD]))
    columns["output_tokens"] = np.maximum(2.0, columns["output_tokens"] / (1 + columns[SPREAD]))
    for name, mean in zip(NUMBERS, MEANS, strict=False):
        known = [row.get(mean) for row in rows]
        if any(known):
            columns[name] = np.where([bool(text) for text in known], [float(text or 1) for text in known], columns[name])
    sent = np.array([float(row.get(REQUESTS) or "nan") for row in rows])
    columns[REQUESTS] = np.where(np.isnan(sent), EACH * columns["concurrency"], sent)
    return columns


def _runs(
    key: tuple[str, ...],
    columns: Mapping[str, Array],
    index: Array,
    system: System,
    small_kv: Mapping[str, bool],
    catalog: str | None,
) -> Runs:
    """Return one group; unless the rows name a format, its KV cache is in 8 bits where the engine keeps it so (`served`)."""
    name, _, engine, weights, experts, kv = key
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
    )


def predict_runs(runs: Runs, engine: Engine) -> tuple[Array, Array, Array, Array]:
    """Return TPOT, TTFT [s], the bound and the regime of a group; constants of the engine may be arrays of shape (n, 1)."""
    tpot, ttft, decode = closed_loop(
        runs.model,
        runs.system,
        layout=runs.layout,
        concurrency=runs.concurrency,
        input_tokens=runs.input_tokens,
        output_tokens=runs.output_tokens,
        spread=runs.spread,
        starting=np.minimum(1.0, runs.concurrency / runs.requests),
        engine=engine,
    )
    return np.asarray(tpot), np.asarray(ttft), decode.bound, regime_of(1 - decode.total / tpot)


def can_simulate() -> bool:
    """Whether the simulator can run: it is compiled by numba, which the extra `simulate` installs."""
    return find_spec("numba") is not None


def loops_of(runs: Runs, engine: Engine) -> Any:
    """Return the simulated closed loops of a group (`loops.Loops`)."""
    from steptime.measured.loops import closed_loops

    return closed_loops(
        runs.model,
        runs.system,
        layout=runs.layout,
        concurrency=runs.concurrency,
        input_tokens=runs.input_tokens,
        output_tokens=runs.output_tokens,
        spread=runs.spread,
        requests=runs.requests,
        engine=engine,
    )


def first_tokens(runs: Runs, engine: Engine) -> Array:
    """Return mean TTFT [s] of a group by simulation."""
    from steptime.measured.loops import constants_of

    ttft: Array = loops_of(runs, engine).ttft(constants_of(engine))
    return ttft


def engine_of(name: str, *, given: Engine | None = None, catalog: str | None = None) -> Engine:
    """Return the engine that predicts runs of `name`: the given one, its own file, or the typical engine."""
    if given is not None:
        return given
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
    names = sorted({row["engine"] for row in rows})
    engines = {name: engine_of(name, given=engine, catalog=catalog) for name in names}
    small = {name: bool(engines[name].room.small_kv) for name in names}
    out = {key: np.empty(len(rows)) for key in ("tpot", "tpot_low", "tpot_high", "ttft", "ttft_low", "ttft_high")}
    labels = {key: np.empty(len(rows), dtype=object) for key in ("bound", "regime")}
    simulated = can_simulate() and len(rows) <= MOST_SIMULATED if by_simulation is None else by_simulation
    for runs in grouped(rows, small_kv=small, catalog=catalog):
        of = engines[runs.engine]
        tpot, ttft, bound, regime = predict_runs(runs, of)
        if simulated and np.max(runs.concurrency) <= MOST_CLIENTS:
            ttft = first_tokens(runs, of)
        out["tpot"][runs.index], out["ttft"][runs.index] = tpot, ttft
        labels["bound"][runs.index], labels["regime"][runs.index] = bound, regime
        for name, value in (("tpot", tpot), ("ttft", ttft)):
            low, high = factors(of, name, regime, system=runs.system)
            out[f"{name}_low"][runs.index], out[f"{name}_high"][runs.index] = value * low, value * high
    return Predictions(**out, **labels, simulated=simulated)
