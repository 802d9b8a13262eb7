"""Predicted against measured: reads serving runs, predicts TPOT and TTFT of each, and says how far off it is.

A run is a closed loop of `concurrency` requests on one deployment. Nominal lengths are upper bounds: benchmarks draw lengths
from a range below them, `LENGTH_SHARE` of nominal on average. TPOT is a closed form; TTFT comes from a simulation of the loop
where numba is installed, since the burst at the start is a good part of it, and else from a closed form too.
"""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterable
from collections.abc import Mapping as MappingABC
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from steptime.architectures.hf import load_model
from steptime.catalog import load_system
from steptime.engine import Engine, load_engine
from steptime.errors import DataFileError, InputError
from steptime.formats import number_format
from steptime.hardware import Number, System
from steptime.mapping import Mapping
from steptime.model import Model
from steptime.serving import closed_loop

LENGTH_SHARE = 0.9  # mean of lengths drawn evenly from 0.8 to 1.0 of nominal, as serving benchmarks do
DRAWN = re.compile(r"\d{4}_\d\d_\d\d|.*cfg")  # ids of runs whose lengths are drawn evenly from 0.8 to 1.0 of nominal
SPREADS = (0.2, 0.02)  # how far below nominal lengths reach: drawn, or fixed but for the tokeniser's way with random text
NUMBERS = ("input_tokens", "output_tokens", "concurrency", "tp", "pp", "dp", "ep")
COLUMNS = ("id", "model", "system", "engine", *NUMBERS, "weight_dtype", "expert_dtype")
MEASURED = ("ttft_s", "tpot_s")
TYPICAL = "typical"  # the engine that stands for one that is not known
WIDE = (0.5, 2.0)  # of an engine without a fit
REGIMES = ("decode", "mixed")  # most of the time goes to decode, or a good part to others' prompts
PREFILL_SHARE = 0.15  # of a token's time from which a run is "mixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Measured runs that share model, formats, system and engine, as arrays of shape (runs,).

    input_tokens, output_tokens: means; longest: the nominal ones; spread: how far below these lengths reach, as a share.
    """

    index: Number
    model: Model
    system: System
    engine: str
    mapping: Mapping
    concurrency: Number
    input_tokens: Number
    output_tokens: Number
    longest: tuple[Number, Number]
    spread: Number


def read_runs(path: str | os.PathLike[str], *, skip_bad: bool = False) -> tuple[list[dict[str, str]], list[str]]:
    """Return the rows of a CSV of runs, and what was wrong with those that were left out.

    Raises DataFileError, with the line, for missing columns and for a bad row unless `skip_bad`.
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise DataFileError(path, f"lacks the columns {', '.join(missing)}", 1)
            rows, problems = [], []
            for row in reader:
                problem = _problem(row)
                if problem and not skip_bad:
                    raise DataFileError(path, f"{problem}; --skip-bad leaves such rows out", reader.line_num)
                if problem:
                    problems.append(f"line {reader.line_num}: {problem}")
                else:
                    rows.append(row)
    except OSError as error:
        raise DataFileError(path, error.strerror or str(error)) from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataFileError(path, f"is not a CSV file: {error}") from None
    if not rows:
        raise DataFileError(path, "has no runs" + (f": {problems[0]}" if problems else ""))
    return rows, problems


def _problem(row: MappingABC[str, str]) -> str:
    for name in NUMBERS:
        try:
            value = float(row[name])
        except (TypeError, ValueError):
            return f"{name} is {row[name]!r}, not a number"
        if not (math.isfinite(value) and value >= 1 and value == int(value)):
            return f"{name} must be a whole number of at least 1, not {row[name]!r}"
    for name in MEASURED:
        if row.get(name):
            try:
                good = 0 < float(row[name]) < math.inf
            except ValueError:
                good = False
            if not good:
                return f"{name} must be a time greater than 0, not {row[name]!r}"
    return _unknown(row["model"], row["system"], row["weight_dtype"], row["expert_dtype"])


@lru_cache(maxsize=4096)
def _unknown(model: str, system: str, weights: str, experts: str) -> str:
    try:
        load_system(system)
        load_model(model)
        number_format(weights or "bf16")
        number_format(experts or "bf16")
    except InputError as problem:
        return str(problem)
    return ""


def grouped(rows: list[dict[str, str]], *, small_kv: MappingABC[str, bool] | None = None) -> list[Runs]:
    """Return the rows as groups of runs that share model, formats, system and engine."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for position, row in enumerate(rows):
        key = tuple(row[name] for name in ("model", "system", "engine", "weight_dtype", "expert_dtype"))
        groups.setdefault(key, []).append(position)
    return [_runs(rows, key, index, small_kv or {}) for key, index in groups.items()]


def _runs(rows: list[dict[str, str]], key: tuple[str, ...], index: list[int], small_kv: MappingABC[str, bool]) -> Runs:
    name, system, engine, weights, experts = key
    weights = weights or "bf16"
    narrow = small_kv.get(engine, True) and number_format(weights).bytes < 1.5
    columns = {n: np.array([float(rows[i][n]) for i in index]) for n in NUMBERS}
    stages = columns["pp"]
    return Runs(
        index=np.array(index),
        model=load_model(name, weights=weights, experts=experts or weights, kv="fp8" if narrow else "bf16"),
        system=load_system(system),
        engine=engine,
        mapping=Mapping(**{n: columns[n] for n in ("tp", "pp", "dp", "ep")}, microbatches=stages),
        concurrency=columns["concurrency"],
        input_tokens=np.maximum(1.0, LENGTH_SHARE * columns["input_tokens"]),
        output_tokens=np.maximum(2.0, LENGTH_SHARE * columns["output_tokens"]),
        longest=(columns["input_tokens"], columns["output_tokens"]),
        spread=np.array([SPREADS[0] if DRAWN.match(rows[i]["id"]) else SPREADS[1] for i in index]),
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
        mapping=runs.mapping,
        concurrency=runs.concurrency,
        input_tokens=runs.input_tokens,
        output_tokens=runs.output_tokens,
        engine=engine,
    )
    regime = np.where(1 - decode.total / tpot > PREFILL_SHARE, REGIMES[1], REGIMES[0])
    return tpot, ttft, decode.bound, regime


def can_simulate() -> bool:
    """Whether the simulator can run: it is compiled by numba, which the extra `simulate` installs."""
    return find_spec("numba") is not None


def loops_of(runs: Runs, engine: Engine) -> Any:
    """Return the simulated closed loops of a group (`simulate.first_token.Loops`)."""
    from steptime.simulate.first_token import closed_loops

    return closed_loops(
        runs.model,
        runs.system,
        mapping=runs.mapping,
        concurrency=runs.concurrency,
        input_tokens=runs.longest[0],
        output_tokens=runs.longest[1],
        spread=runs.spread,
        engine=engine,
    )


def first_tokens(runs: Runs, engine: Engine) -> Number:
    """Return mean TTFT [s] of a group by simulation."""
    from steptime.simulate.first_token import constants_of

    return loops_of(runs, engine).ttft(constants_of(engine))


def engine_of(name: str, *, given: Engine | None = None, catalog: str | None = None) -> Engine:
    """Return the engine that predicts runs of `name`: the given one, its own file, or the typical engine."""
    if given is not None:
        return given
    try:
        return load_engine(name, catalog)
    except InputError:
        return load_engine(TYPICAL, catalog)


def predict(rows: list[dict[str, str]], *, engine: Engine | None = None, catalog: str | None = None) -> Predictions:
    """Return predictions for every row, in their order."""
    names = sorted({row["engine"] for row in rows})
    engines = {name: engine_of(name, given=engine, catalog=catalog) for name in names}
    small = {name: bool(engines[name].small_kv) for name in names}
    out = {key: np.empty(len(rows)) for key in ("tpot", "tpot_low", "tpot_high", "ttft", "ttft_low", "ttft_high")}
    labels = {key: np.empty(len(rows), dtype=object) for key in ("bound", "regime")}
    simulated = can_simulate()
    for runs in grouped(rows, small_kv=small):
        of = engines[runs.engine]
        tpot, ttft, bound, regime = predict_runs(runs, of)
        if simulated:
            ttft = first_tokens(runs, of)
        out["tpot"][runs.index], out["ttft"][runs.index] = tpot, ttft
        labels["bound"][runs.index], labels["regime"][runs.index] = bound, regime
        for name, value in (("tpot", tpot), ("ttft", ttft)):
            low, high = interval(of, name, regime)
            out[f"{name}_low"][runs.index], out[f"{name}_high"][runs.index] = value * low, value * high
    return Predictions(**out, **labels, simulated=simulated)


def interval(engine: Engine, name: str, regime: Number) -> tuple[Number, Number]:
    """Return the factors of the 90 % interval of "tpot" or "ttft" by regime: 5th and 95th percentile of left-out errors."""
    table = engine.fit.get("interval", {}).get(name, {})
    low, high = (np.array([table.get(r, WIDE)[side] for r in np.asarray(regime).ravel()]) for side in (0, 1))
    return low.reshape(np.shape(regime)), high.reshape(np.shape(regime))


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


def _labels(rows: Iterable[MappingABC[str, str]], predictions: Predictions, key: str) -> Number:
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
        for position, row in enumerate(rows):
            writer.writerow(
                [row["id"], *(f"{getattr(predictions, n)[position]:.6g}" for n in times), predictions.bound[position]]
            )
