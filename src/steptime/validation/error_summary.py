"""Error summary: errors of predictions against measurements, for all runs and by model, system, engine and bound."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steptime.atomic_files import temporary_file
from steptime.errors import safe_cell
from steptime.hardware.system import System
from steptime.number_checks import Array
from steptime.physics.bias_correction import USUAL, OperatingPoint
from steptime.physics.engine import Engine
from steptime.physics.uncertainty import Distance, factors, widening
from steptime.result_base import Tabular, in_words, unit
from steptime.units import show
from steptime.validation.run_table import kind_label, numbers

TIMES = ("tpot", "tpot_low", "tpot_high", "ttft", "ttft_low", "ttft_high")
SPEEDS = ("output_tok_s", "output_tok_s_low", "output_tok_s_high")
FIGURES = (*TIMES, "ttft_median", *SPEEDS)
MEASURED = {"tpot": "tpot_s", "ttft": "ttft_s", "ttft_median": "ttft_median_s", "output_tok_s": "output_tok_s"}
"""Quantities of the error tables, and the column of a run with the measured value."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Predictions(Tabular):
    """Predicted times [s] and throughputs [tok/s] of runs with 90 % ranges.

    Arrays have the shape (runs,) and are NaN where a kind of run has no such figure. simulated: whether TTFT comes from
    simulated loops, or from a closed form (without numba).
    """

    tpot: Array = field(metadata=unit("s", "time per output token after the first"))
    tpot_low: Array = field(metadata=unit("s", "lower end of the 90 % range of TPOT"))
    tpot_high: Array = field(metadata=unit("s", "upper end of the 90 % range of TPOT"))
    ttft: Array = field(metadata=unit("s", "mean time to first token"))
    ttft_low: Array = field(metadata=unit("s", "lower end of the 90 % range of TTFT"))
    ttft_high: Array = field(metadata=unit("s", "upper end of the 90 % range of TTFT"))
    ttft_median: Array = field(metadata=unit("s", "median time to first token"))
    output_tok_s: Array = field(metadata=unit("tok/s", "output tokens of the whole deployment", key="output_tok_s"))
    output_tok_s_low: Array = field(metadata=unit("tok/s", "lower end of its 90 % range", key="output_tok_s_low"))
    output_tok_s_high: Array = field(metadata=unit("tok/s", "upper end of its 90 % range", key="output_tok_s_high"))
    bound: Array = field(metadata=unit("", "resource with the largest share of a decode step"))
    regime: Array = field(metadata=unit("", "latency regime: decode or mixed"))
    reason: Array = field(
        metadata=unit("", "why the run has no prediction, cannot be right or is in doubt; empty if none of these")
    )
    simulated: bool = field(metadata=unit("", "whether TTFT comes from simulated loops"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the number of runs and the ranges of their times.

        Returns:
            Title, and text by quantity.
        """
        ranges = {name.upper(): in_words(getattr(self, name), lambda value: show(value, "s")) for name in ("tpot", "ttft")}
        return f"Predictions of {len(self.tpot):,} runs", ranges

    def columns(self) -> dict[str, Any]:
        """Return the table of predictions, one row per run.

        Returns:
            Arrays of shape (runs,) by column.
        """
        times = {f"{name}_s": getattr(self, name) for name in (*TIMES, "ttft_median")}
        speeds = {name: getattr(self, name) for name in SPEEDS}
        return times | speeds | {"bound": self.bound, "regime": self.regime, "reason": self.reason}


def with_ranges(
    figures: Mapping[str, Any],
    engine: Engine,
    regime: Array | str,
    waiting: Array | str,
    system: System,
    flags: Iterable[tuple[Distance, Array]] = (),
    variances: Mapping[str, Array] | None = None,
    point: OperatingPoint = USUAL,
) -> dict[str, Any]:
    """Add the ends of the 90 % ranges of times and throughput, and the regime.

    Throughput has the relative range of TPOT.

    Args:
        figures: Predicted values by name.
        engine: Engine.
        regime: Latency regime.
        waiting: Regime of first tokens.
        system: System.
        flags: Differences of the runs from those of the fit, which widen the ranges.
        variances: Variances of the logarithms of times from the engine's constants; None for those of the fitted runs.
        point: Layout, load and context, for the correction by own runs.

    Returns:
        Figures, and lower and upper ends by name.
    """
    (low, high), (ttft_low, ttft_high) = (
        factors(
            engine, name, kind, variance=(variances or {}).get(name), system=system, wider=widening(flags, name), point=point
        )
        for name, kind in (("tpot", regime), ("ttft", waiting))
    )
    tpot, ttft, speed = (figures[name] for name in ("tpot", "ttft", "output_tok_s"))
    return dict(figures) | {
        "tpot_low": tpot * low, "tpot_high": tpot * high, "ttft_low": ttft * ttft_low, "ttft_high": ttft * ttft_high,
        "output_tok_s_low": speed / high, "output_tok_s_high": speed / low, "regime": regime,
    }  # fmt: skip


def errors(measured: Array, predicted: Array, low: Array, high: Array) -> dict[str, float]:
    """Compute error figures of predictions.

    Args:
        measured: Measured values, of shape (runs,).
        predicted: Predicted values.
        low: Lower ends of the 90 % range; all NaN without a range.
        high: Upper ends of the 90 % range.

    Returns:
        Number of runs; median, mean and 90th percentile of |predicted/measured - 1|; bias (median); share within 25 %; coverage
        (share inside the range, NaN without a range).
    """
    off = predicted / measured - 1
    inside = np.nan if np.isnan(low).all() else np.mean((measured >= low) & (measured <= high))
    return {
        "runs": len(off),
        "median": float(np.median(np.abs(off))),
        "mean": float(np.mean(np.abs(off))),
        "p90": float(np.quantile(np.abs(off), 0.9)),
        "bias": float(np.median(off)),
        "within_25": float(np.mean(np.abs(off) <= 0.25)),
        "coverage": float(inside),
    }


GROUPINGS = ("kind", "model", "system", "engine", "weight_dtype", "concurrency", "bound")


def report(rows: Sequence[Mapping[str, str]], predictions: Predictions) -> dict[str, Any]:
    """Summarize errors of all runs, and by each of `GROUPINGS`.

    Runs with a reason (`Predictions.reason`) are left out.

    Args:
        rows: Runs.
        predictions: Predictions of the same runs.

    Returns:
        Error tables by quantity: `all`, and `by` grouping and value.
    """
    tables: dict[str, Any] = {}
    good, nothing = predictions.reason == "", np.full(len(rows), np.nan)
    for name in MEASURED:
        measured = measured_figures(rows, name)
        predicted = getattr(predictions, name)
        has_both = good & np.isfinite(measured) & np.isfinite(predicted)
        if not has_both.any():
            continue
        low, high = (getattr(predictions, f"{name}_{end}", nothing) for end in ("low", "high"))

        def error_figures(mask: Array, columns: tuple[Array, ...] = (measured, predicted, low, high)) -> dict[str, float]:
            return errors(*(column[mask] for column in columns))

        # One table for all runs and one per value of each grouping, such as each model.
        tables[name] = {"all": error_figures(has_both), "by": {}}
        for key in GROUPINGS:
            labels = _labels(rows, predictions, key)
            values = dict.fromkeys(labels[has_both])
            tables[name]["by"][key] = {
                str(value): error_figures(has_both & (labels == value)) for value in sorted(values, key=_order)
            }
    return tables


def measured_figures(rows: Sequence[Mapping[str, str]], name: str) -> Array:
    """Return the measured values of one quantity.

    If a run has total tokens per second only, the mean lengths give the share of output tokens.

    Args:
        rows: Runs.
        name: Quantity of `MEASURED`.

    Returns:
        Seconds or tokens per second, of shape (runs,); NaN if missing.
    """
    figures = numbers(rows, MEASURED[name])
    if name != "output_tok_s":
        return figures
    lengths = [[float(row.get(f"{kind}_mean") or row[f"{kind}_tokens"]) for row in rows] for kind in ("input", "output")]
    prompt, output = np.array(lengths)
    return np.where(np.isnan(figures), output / (prompt + output) * numbers(rows, "total_tok_s"), figures)


def _labels(rows: Iterable[Mapping[str, str]], predictions: Predictions, key: str) -> Array:
    if key == "bound":
        return predictions.bound
    if key == "kind":
        return np.array([kind_label(row) for row in rows], dtype=object)
    return np.array([row[key].removesuffix(".0") for row in rows], dtype=object)


def _order(value: str) -> tuple[float, str]:
    return (float(value), "") if str(value).replace(".", "", 1).isdigit() else (math.inf, str(value))


def write_predictions(path: str | os.PathLike[str], rows: Sequence[Mapping[str, str]], predictions: Predictions) -> None:
    """Write predictions as CSV, one line per row.

    Args:
        path: File to write.
        rows: Runs.
        predictions: Predictions of the same runs; cells without a value stay empty.
    """
    table = {name: values for name, values in predictions.columns().items() if name != "regime"}
    with temporary_file(path) as place, place.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", *table])
        columns = [map(safe_cell, values) if values.dtype == object else _texts(values) for values in table.values()]
        writer.writerows(zip((safe_cell(row["id"]) for row in rows), *columns, strict=True))


def _texts(values: Array) -> Iterable[str]:
    """Format numbers with six digits, and NaN as an empty text."""
    texts = map("{:.6g}".format, values.tolist())
    return ("" if text == "nan" else text for text in texts) if np.isnan(values).any() else texts
