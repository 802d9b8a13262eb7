"""How far predictions are from measurements: errors of all runs, and by model, system, engine and what binds."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steptime.numbers import Array
from steptime.results import Tabular, in_words, unit
from steptime.units import show

TIMES = ("tpot", "tpot_low", "tpot_high", "ttft", "ttft_low", "ttft_high")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Predictions(Tabular):
    """Predicted times of runs [s] with 90 % intervals, what binds their decode steps, and the regime each is in.

    simulated: whether TTFT comes from simulated loops, or (without numba) from a closed form. Arrays of shape (runs,).
    """

    tpot: Array = field(metadata=unit("s", "time per output token after the first"))
    tpot_low: Array = field(metadata=unit("s", "lower end of its 90 % interval"))
    tpot_high: Array = field(metadata=unit("s", "upper end of its 90 % interval"))
    ttft: Array = field(metadata=unit("s", "time to first token"))
    ttft_low: Array = field(metadata=unit("s", "lower end of its 90 % interval"))
    ttft_high: Array = field(metadata=unit("s", "upper end of its 90 % interval"))
    bound: Array = field(metadata=unit("", "resource that takes the largest part of a decode step"))
    regime: Array = field(metadata=unit("", "decode or mixed"))
    simulated: bool = field(metadata=unit("", "whether TTFT comes from simulated loops"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return how many runs there are, and the range of their times."""
        found = {name.upper(): in_words(getattr(self, name), lambda value: show(value, "s")) for name in ("tpot", "ttft")}
        return f"Predictions of {len(self.tpot):,} runs", found

    def columns(self) -> dict[str, Any]:
        """Return a row for each run."""
        return {f"{name}_s": getattr(self, name) for name in TIMES} | {"bound": self.bound, "regime": self.regime}


def errors(measured: Array, predicted: Array, low: Array, high: Array) -> dict[str, float]:
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


def report(rows: Sequence[Mapping[str, str]], predictions: Predictions) -> dict[str, Any]:
    """Return error tables of all runs with a measured time, and by each of `BY`."""
    tables: dict[str, Any] = {}
    for name in ("tpot", "ttft"):
        known = np.array([bool(row.get(f"{name}_s")) for row in rows])
        if not known.any():
            continue
        measured = np.array([float(row[f"{name}_s"]) if row.get(f"{name}_s") else math.nan for row in rows])
        columns = [getattr(predictions, key) for key in (name, f"{name}_low", f"{name}_high")]

        def of(chosen: Array, measured: Array = measured, columns: list[Array] = columns) -> dict[str, float]:
            return errors(measured[chosen], *(column[chosen] for column in columns))

        tables[name] = {"all": of(known), "by": {}}
        for key in BY:
            labels = _labels(rows, predictions, key)
            values = dict.fromkeys(labels[known])
            tables[name]["by"][key] = {str(value): of(known & (labels == value)) for value in sorted(values, key=_order)}
    return tables


def _labels(rows: Iterable[Mapping[str, str]], predictions: Predictions, key: str) -> Array:
    if key == "bound":
        return predictions.bound
    return np.array([row[key] for row in rows], dtype=object)


def _order(value: str) -> tuple[float, str]:
    return (float(value), "") if str(value).replace(".", "", 1).isdigit() else (math.inf, str(value))


def write_predictions(path: str | os.PathLike[str], rows: Sequence[Mapping[str, str]], predictions: Predictions) -> None:
    """Write id, tpot_s, tpot_low_s, tpot_high_s, ttft_s, ttft_low_s, ttft_high_s, bound of every row as CSV."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", *(f"{name}_s" for name in TIMES), "bound"])
        columns = [map("{:.6g}".format, getattr(predictions, name).tolist()) for name in TIMES]
        writer.writerows(zip((row["id"] for row in rows), *columns, predictions.bound.tolist(), strict=True))
