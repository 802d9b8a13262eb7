"""Predicted against measured: predicts TPOT and TTFT of serving runs, and says how far off it is.

A run is a closed loop of `concurrency` requests on one deployment. Its nominal lengths are the longest: benchmarks draw lengths
evenly from a range that ends there, or give all requests the same. `length_spread` tells which: how far lengths reach to both
sides of their mean, as a share of it. Where means are known they stand in columns of their own. TPOT is a closed form; TTFT
comes from a simulation of the loop where numba is installed, since the burst at the start is a good part of it, and else from a
closed form too.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from operator import itemgetter
from typing import Any

import numpy as np

from steptime.catalog.loading import load_system
from steptime.errors import InputError
from steptime.machines.formats import number_format
from steptime.machines.system import System
from steptime.measured.runs import AXES, MEANS, NUMBERS, REQUESTS, SPREAD, spread_of
from steptime.models.loading import load_model
from steptime.models.model import Model
from steptime.numbers import Number
from steptime.physics.engine import TYPICAL, Engine, load_engine
from steptime.physics.layout import Layout
from steptime.physics.uncertainty import factors, regime_of
from steptime.planning.steady import closed_loop

MOST_SIMULATED = 5000  # rows: a loop takes some milliseconds, a closed form some microseconds
EACH = 10  # requests of a run for each in flight, unless it tells: what benchmarks send
MOST_CLIENTS = 100_000  # of a loop that is simulated


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Measured runs that share model, formats, system and engine, as arrays of shape (runs,); lengths are means.

    spread: how far lengths reach to both sides of their means, as a share. requests: of the whole run.
    """

    index: Number
    model: Model
    system: System
    engine: str
    layout: Layout
    concurrency: Number
    input_tokens: Number
    output_tokens: Number
    spread: Number
    requests: Number


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


def _columns(rows: list[dict[str, str]]) -> dict[str, Number]:
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


def _narrow(weights: str, experts: str, system: System) -> bool:
    """Whether a model is computed in 8 bits or fewer: where its experts alone have 4, on chips with arithmetic for them."""
    if number_format(weights).bytes < 1.5:
        return True
    return number_format(experts).bytes < 1 and "fp4" in system.chip.peak


def _runs(
    key: tuple[str, ...],
    columns: Mapping[str, Number],
    index: Number,
    system: System,
    small_kv: Mapping[str, bool],
    catalog: str | None,
) -> Runs:
    """Return one group; its KV cache is in 8 bits, unless the rows name a format, where the engine keeps it so."""
    name, _, engine, weights, experts, kv = key
    weights = weights or "bf16"
    kv = kv or ("fp8" if small_kv.get(engine, True) and _narrow(weights, experts or weights, system) else "bf16")
    return Runs(
        index=index,
        model=load_model(name, weights=weights, experts=experts or weights, kv=kv, catalog=catalog),
        system=system,
        engine=engine,
        layout=Layout(**{n: columns[n] for n in AXES}, microbatches=columns["pp"]),
        concurrency=columns["concurrency"],
        input_tokens=columns["input_tokens"],
        output_tokens=columns["output_tokens"],
        spread=columns[SPREAD],
        requests=columns[REQUESTS],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """Predicted times of runs [s] with 90 % intervals, what binds their decode steps, and the regime each is in.

    simulated: whether TTFT comes from simulated loops, or (without numba) from a closed form.
    """

    tpot: Number
    tpot_low: Number
    tpot_high: Number
    ttft: Number
    ttft_low: Number
    ttft_high: Number
    bound: Number
    regime: Number
    simulated: bool


def predict_runs(runs: Runs, engine: Engine) -> tuple[Number, Number, Number, Number]:
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
    return tpot, ttft, decode.bound, regime_of(1 - decode.total / tpot)


def can_simulate() -> bool:
    """Whether the simulator can run: it is compiled by numba, which the extra `simulate` installs."""
    return find_spec("numba") is not None


def loops_of(runs: Runs, engine: Engine) -> Any:
    """Return the simulated closed loops of a group (`simulate.first_token.Loops`)."""
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


def first_tokens(runs: Runs, engine: Engine) -> Number:
    """Return mean TTFT [s] of a group by simulation."""
    from steptime.measured.loops import constants_of

    return loops_of(runs, engine).ttft(constants_of(engine))


def engine_of(name: str, *, given: Engine | None = None, catalog: str | None = None) -> Engine:
    """Return the engine that predicts runs of `name`: the given one, its own file, or the typical engine."""
    if given is not None:
        return given
    try:
        return load_engine(name, catalog)
    except InputError:
        return load_engine(TYPICAL, catalog)


def predict(
    rows: list[dict[str, str]], *, engine: Engine | None = None, catalog: str | None = None, simulate: bool | None = None
) -> Predictions:
    """Return predictions for every row, in their order.

    simulate: whether TTFT comes from simulated loops; by default where it can, for up to `MOST_SIMULATED` rows.
    Intervals are those of left-out runs: what constants add for an unusual run (`uncertainty`) would cost twenty times as much.
    """
    names = sorted({row["engine"] for row in rows})
    engines = {name: engine_of(name, given=engine, catalog=catalog) for name in names}
    small = {name: bool(engines[name].small_kv) for name in names}
    out = {key: np.empty(len(rows)) for key in ("tpot", "tpot_low", "tpot_high", "ttft", "ttft_low", "ttft_high")}
    labels = {key: np.empty(len(rows), dtype=object) for key in ("bound", "regime")}
    simulated = can_simulate() and len(rows) <= MOST_SIMULATED if simulate is None else simulate
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


# --- how far off --------------------------------------------------------------------------------------------------------


def errors(measured: Number, predicted: Number, low: Number, high: Number) -> dict[str, float]:
    """Return error figures: median, mean and 90th percentile of |predicted/measured - 1|, bias, within 25 %, coverage."""
    off = predicted / measured - 1
    return {
        "runs": len(off),
        "median": float(np.median(np.abs(off))),
        "mean": float(np.mean(np.abs(off))),
        "p90": float(np.quantile(np.abs(off), 0.9)),
        "bias": float(np.median(off)),
        "within_25": float(np.mean(np.abs(off) <= 0.25)),
        "coverage": float(np.mean((measured >= low) & (measured <= high))),
    }


BY = ("model", "system", "engine", "weight_dtype", "concurrency", "bound")


def report(rows: list[dict[str, str]], predictions: Predictions) -> dict[str, Any]:
    """Return error tables of all runs with a measured time, and by each of `BY`."""
    tables: dict[str, Any] = {}
    for name in ("tpot", "ttft"):
        known = np.array([bool(row.get(f"{name}_s")) for row in rows])
        if not known.any():
            continue
        measured = np.array([float(row[f"{name}_s"]) if row.get(f"{name}_s") else math.nan for row in rows])
        columns = [getattr(predictions, key) for key in (name, f"{name}_low", f"{name}_high")]

        def of(chosen: Number, measured: Number = measured, columns: list[Number] = columns) -> dict[str, float]:
            return errors(measured[chosen], *(column[chosen] for column in columns))

        tables[name] = {"all": of(known), "by": {}}
        for key in BY:
            labels = _labels(rows, predictions, key)
            values = dict.fromkeys(labels[known])
            tables[name]["by"][key] = {str(value): of(known & (labels == value)) for value in sorted(values, key=_order)}
    return tables


def _labels(rows: Iterable[Mapping[str, str]], predictions: Predictions, key: str) -> Number:
    if key == "bound":
        return predictions.bound
    return np.array([row[key] for row in rows], dtype=object)


def _order(value: str) -> tuple[float, str]:
    return (float(value), "") if str(value).replace(".", "", 1).isdigit() else (math.inf, str(value))


def write_predictions(path: str | os.PathLike[str], rows: list[dict[str, str]], predictions: Predictions) -> None:
    """Write id, tpot_s, tpot_low_s, tpot_high_s, ttft_s, ttft_low_s, ttft_high_s, bound of every row as CSV."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        times = ("tpot", "tpot_low", "tpot_high", "ttft", "ttft_low", "ttft_high")
        writer.writerow(["id", *(f"{name}_s" for name in times), "bound"])
        columns = [map("{:.6g}".format, getattr(predictions, name).tolist()) for name in times]
        writer.writerows(zip((row["id"] for row in rows), *columns, predictions.bound.tolist(), strict=True))
