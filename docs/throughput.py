"""Compare predictions of maximum throughput with measured ones: `python docs/throughput.py RUNS.csv ...` (one minute).

It reads rows of MLPerf's scenarios and of tables of maximum throughput, and writes throughput.md.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from steptime.catalog.hardware_loading import load_system
from steptime.number_checks import Array
from steptime.physics.uncertainty import Z90
from steptime.units import percent
from steptime.validation.error_summary import measured_figures
from steptime.validation.max_throughput import DEPLOYMENT_COLUMNS, SINGLE_COUNTS
from steptime.validation.mlperf_data_sets import DATA_SETS, find_data_set
from steptime.validation.predictions import predict
from steptime.validation.run_table import HIGHEST, INTERACTIVE, MAXIMUM, MLPERF, OFFLINE, SERVER, read_runs, run_kind
from steptime.validation.scenario_uncertainty import SCENARIO_DEVIATIONS, VENDORS, tuning

PAGE = Path(__file__).with_name("throughput.md")
GROUP = ("model", "system", "engine", "weight_dtype", "engine_version", "kind")
KINDS = (OFFLINE, SERVER, INTERACTIVE, HIGHEST)
Tuning = Callable[[Mapping[str, str]], tuple[float, float]]
# Vendor of most submissions, whose chips the table of benchmarks is of, and the fewest groups that show what another one adds.
USUAL, LEAST_GROUPS = "NVIDIA", 6


class Comparison:
    """Measured and predicted throughputs of runs.

    ratio: Logarithm of measured over predicted throughput without tuning. low, high: Logarithms of the 90 % range without
    tuning and deviations between groups.
    """

    def __init__(self, rows: list[dict[str, str]]) -> None:
        """Predict the runs; those without a prediction or that cannot be right are left out."""
        found, measured = predict(rows, by_simulation=False), measured_figures(rows, "output_tok_s")
        good = (found.reason == "") & np.isfinite(found.output_tok_s) & np.isfinite(measured)
        self.all_rows, self.left_out = rows, [found.reason[i] for i in np.flatnonzero(~good)]
        self.speeds = found.output_tok_s
        vendors = {name: load_system(name).chip.vendor for name in {rows[i]["system"] for i in np.flatnonzero(good)}}
        self.rows = [{**rows[i], "kind": run_kind(rows[i]), "vendor": vendors[rows[i]["system"]]} for i in np.flatnonzero(good)]
        used = np.array([as_shipped(row) for row in self.rows])
        speed, low, high = (getattr(found, f"output_tok_s{end}")[good] for end in ("", "_low", "_high"))
        self.ratio = np.log(measured[good] / speed) + used[:, 0]
        kinds = np.array([SCENARIO_DEVIATIONS[row["kind"]] for row in self.rows])
        added = Z90**2 * (used[:, 1] ** 2 + kinds**2)
        self.low, self.high = (np.sqrt(np.maximum(np.log(ends) ** 2 - added, 0.0)) for ends in (speed / low, high / speed))
        self.groups = np.array([" ".join(row.get(name) or "" for name in GROUP) for row in self.rows])
        counts = dict(zip(*np.unique(self.groups, return_counts=True), strict=True))
        # A group of a hundred rows counts as ten.
        self.weight = np.array([counts[name] ** -0.5 for name in self.groups])

    def mask(self, test: Callable[[Mapping[str, str]], bool]) -> Array:
        """Return which runs pass a test."""
        return np.array([test(row) for row in self.rows])

    def group_medians(self, values: Array, mask: Array) -> Array:
        """Return the median value of each group with runs in a mask."""
        return np.array([np.median(values[mask & (self.groups == name)]) for name in np.unique(self.groups[mask])])

    def errors(self, expected: Tuning, mask: Array, deviations: Mapping[str, float]) -> dict[str, float]:
        """Return error figures of runs with an expected tuning, and coverage and width of the range."""
        told = np.array([expected(row) for row in self.rows])
        off = self.ratio - told[:, 0]
        extra = Z90**2 * (told[:, 1] ** 2 + np.array([deviations[row["kind"]] for row in self.rows]) ** 2)
        low, high = np.sqrt(self.low**2 + extra), np.sqrt(self.high**2 + extra)
        size = np.abs(np.expm1(-off[mask]))
        inside = (-low <= off) & (off <= high)
        return {
            "runs": int(mask.sum()), "median": float(np.median(size)), "p90": float(np.quantile(size, 0.9)),
            "bias": float(np.expm1(-np.median(off[mask]))), "coverage": float(np.mean(inside[mask])),
            "weighted": float(np.average(inside[mask], weights=self.weight[mask])),
            "width": float(np.median(np.exp(low + high)[mask])),
        }  # fmt: skip


def as_shipped(row: Mapping[str, str]) -> tuple[float, float]:
    """Return the tuning that predictions use."""
    return tuning(row, row["vendor"])


def is_counted(row: Mapping[str, str]) -> bool:
    """Check whether a run shows tuning: Offline or Server of MLPerf's closed division."""
    is_closed = row.get("part") == MLPERF and not (row.get("note") or "").startswith("open")
    return is_closed and row["kind"] in (OFFLINE, SERVER)


def round_means(compared: Comparison, mask: Array) -> dict[str, dict[str, float]]:
    """Return log ratios by benchmark and round: medians over groups in a mask, on chips of the usual vendor."""
    counted = mask & compared.mask(lambda row: is_counted(row) and row["vendor"] == USUAL)
    versions = np.array([row["engine_version"] for row in compared.rows])
    benchmarks = np.array([benchmark_of(row) for row in compared.rows])
    table: dict[str, dict[str, float]] = {}
    for data_set in DATA_SETS:
        runs = counted & (benchmarks == data_set.name)
        table[data_set.name] = {
            name: float(np.median(compared.group_medians(compared.ratio, runs & (versions == name))))
            for name in sorted(set(versions[runs]))
        }
    return table


def vendor_ratios(compared: Comparison, table: Mapping[str, Mapping[str, float]], mask: Array) -> dict[str, float]:
    """Return the log ratios of other vendors to the usual one: medians over groups of runs in a mask."""
    expected = tuning_from(table, {})
    off = compared.ratio - np.array([expected(row)[0] for row in compared.rows])
    found = {}
    for vendor in sorted({row["vendor"] for row in compared.rows} - {USUAL}):
        medians = compared.group_medians(
            off, mask & compared.mask(lambda row, vendor=vendor: is_counted(row) and row["vendor"] == vendor)
        )
        if len(medians) >= LEAST_GROUPS:
            found[vendor] = float(np.median(medians))
    return found


def benchmark_of(row: Mapping[str, str]) -> str:
    """Return the benchmark of a run, or the model of another run."""
    data_set = find_data_set(row)
    return row["model"] if data_set is None else data_set.name


def tuning_from(table: Mapping[str, Mapping[str, float]], vendors: Mapping[str, float]) -> Tuning:
    """Return the tuning that benchmarks and vendors show.

    Args:
        table: Log ratios by benchmark and round.
        vendors: Log ratios of vendors to the usual one.
    """
    first_rounds = {data_set.name: data_set.first_round for data_set in DATA_SETS}
    first = [mean for name, means in table.items() for when, mean in means.items() if when == first_rounds[name]]
    later = {name: [mean for when, mean in means.items() if when != first_rounds[name]] for name, means in table.items()}
    return lambda row: tuning(row, row["vendor"], later, float(np.mean(first)) if first else 0.0, vendors)


def calibrated(compared: Comparison, expected: Tuning, mask: Array) -> dict[str, float]:
    """Return the deviations between groups with which nine in ten runs are in the range, groups weighted, by kind."""
    out = {}
    for kind in KINDS:
        runs = mask & compared.mask(lambda row, kind=kind: row["kind"] == kind)
        low, high = 0.0, 1.0
        for _ in range(20):
            middle = (low + high) / 2
            is_wide = runs.any() and compared.errors(expected, runs, dict.fromkeys(KINDS, middle))["weighted"] >= 0.9
            low, high = (low, middle) if is_wide else (middle, high)
        out[kind] = high
    return out


def left_out(compared: Comparison, mask: Array, label: Callable[[Mapping[str, str]], str]) -> Tuning:
    """Return the tuning of each run that the runs of other labels in a mask show."""
    expected = {}
    for name in {label(row) for row in compared.rows}:
        others = mask & compared.mask(lambda row, name=name: label(row) != name)
        table = round_means(compared, others)
        expected[name] = tuning_from(table, vendor_ratios(compared, table, others))
    return lambda row: expected[label(row)](row)


def server_above_offline(compared: Comparison) -> tuple[int, int]:
    """Return the deployments with Offline and Server, and those whose Server is predicted above Offline."""
    offline: dict[Any, float] = {}
    pairs = above = 0
    keys = [tuple(row.get(name) or "" for name in DEPLOYMENT_COLUMNS) for row in compared.all_rows]
    for row, key, speed in zip(compared.all_rows, keys, compared.speeds, strict=True):
        if run_kind(row) == OFFLINE and np.isfinite(speed):
            offline[key] = min(speed, offline.get(key, np.inf))
    for row, key, speed in zip(compared.all_rows, keys, compared.speeds, strict=True):
        if run_kind(row) in (SERVER, INTERACTIVE) and key in offline and np.isfinite(speed):
            pairs, above = pairs + 1, above + (speed > offline[key] * (1 + 1e-9))
    return pairs, above


HEADER = """| | runs | median error | 90th percentile | bias | in the 90 % range | the same, groups weighted | high/low |
|---|---|---|---|---|---|---|---|"""
TITLE = """# Maximum throughput

<!-- Written by docs/throughput.py; edit that file. -->

This page compares predictions with the output tokens per second of MLPerf's Offline, Server and Interactive scenarios, and of
tables of maximum throughput. The predictions have no fit to these runs other than the tuning below. `python docs/throughput.py
RUNS.csv ...` makes this page in a minute. The bias is that of the median prediction: below zero, predictions are too slow. The
last column but one weights each group of a model, system, engine, format, round and scenario as if a hundred runs were ten.
"""
TEXT = """
- **Left out.** The first line takes all estimates (tuning, deviations between groups, other vendors against NVIDIA) from the
  first of the two rounds, and scores the second. Deviations between groups are those of whole systems left out in the first
  round: of its benchmarks, only the newest ones of the second round are unknown. The second line takes them
  from whole benchmarks left out. The third line predicts each benchmark with the tuning of the others.
- **What was seen before.** The rows of both rounds were looked at when the structure was chosen: first and later rounds,
  batches and layouts that are not stated, prompts of gpt-oss-120b. No row of a later round was. Lengths of outputs, durations
  and the distance from limits come from logs of the first round.
- **A layout that is not stated** is not the best of all. It is replicas of one chip {single} where that is best. Else it is
  the best size, half of it or twice of it. A table of maximum throughput does not state how experts are divided:
  data-parallel attention has half of the weight.
- **Ranges** add to the range of a closed loop: tuning of the benchmark, deviation between groups, layouts, and half of the
  loss at the end of a run of unknown length (`validation/scenario_uncertainty.py`).
- **Server above Offline.** {pairs} runs within limits have an Offline run of the same deployment. {above} of them are
  predicted above it: a file with both takes the prediction of Offline as the limit of the others.
- **Left without a prediction or refused:** {refused}.
"""


def line(title: str, errors: Mapping[str, float]) -> str:
    """Format error figures as a line of a table."""
    cells = (percent(errors[name]) for name in ("median", "p90", "bias", "coverage", "weighted"))
    return f"| {title} | {errors['runs']:,} | {' | '.join(cells)} | {errors['width']:.2f} |"


def no_tuning(row: Mapping[str, str]) -> tuple[float, float]:
    """Return the tuning of a run of which nothing is known but its engine."""
    return 0.0, 0.0 * len(row)


def by_label(compared: Comparison, label: Callable[[Mapping[str, str]], str], expected: Tuning) -> list[str]:
    """Return a line for each value of a label of MLPerf's runs and tables."""
    labels = np.array([label(row) for row in compared.rows])
    return [line(name, compared.errors(expected, labels == name, SCENARIO_DEVIATIONS)) for name in sorted(set(labels))]


def main() -> None:
    """Compare, estimate the tuning with rounds and benchmarks left out, and write the page."""
    parts = (MLPERF, MAXIMUM)
    rows = [row for path in sys.argv[1:] for row in read_runs(path, skip_bad=True)[0] if row.get("part") in parts]
    compared = Comparison(rows)
    mlperf = compared.mask(lambda row: row.get("part") == MLPERF)
    table = round_means(compared, mlperf)
    *earlier, last = sorted({name for means in table.values() for name in means})
    newest = mlperf & compared.mask(lambda row: row["engine_version"] == last)

    # Estimates of the earlier rounds, and of all with each benchmark left out. The earlier rounds know the benchmark of most
    # runs and not their system, so that their deviation between groups is that of whole systems left out.
    early_table = round_means(compared, mlperf & ~newest)
    early = tuning_from(early_table, vendor_ratios(compared, early_table, mlperf & ~newest))
    others = left_out(compared, mlperf, benchmark_of)
    early_deviations, wide_deviations = (
        calibrated(compared, left_out(compared, mlperf & ~newest, label), mlperf & ~newest)
        for label in (lambda row: row["system"], benchmark_of)
    )
    deviations = calibrated(compared, others, np.ones(len(compared.rows), dtype=bool))
    lines = (
        (f"MLPerf {last}, estimates of {', '.join(earlier)} only", early, newest, {**deviations, **early_deviations}),
        ("the same, ranges from whole benchmarks left out", early, newest, {**deviations, **wide_deviations}),
        ("MLPerf, whole benchmarks left out", others, mlperf, SCENARIO_DEVIATIONS),
        ("MLPerf, without tuning", no_tuning, mlperf, SCENARIO_DEVIATIONS),
        ("MLPerf, as shipped", as_shipped, mlperf, SCENARIO_DEVIATIONS),
        ("tables of maximum throughput", as_shipped, ~mlperf, SCENARIO_DEVIATIONS),
    )
    pairs, above = server_above_offline(compared)
    refused = Counter(
        reason.split(":")[0] + (" (faster than physics)" if "physics" in reason else "") for reason in compared.left_out
    )
    page = [TITLE, HEADER, *(line(title, compared.errors(*rest)) for title, *rest in lines)]
    page.append("\nBy scenario, with whole benchmarks left out:\n\n" + HEADER)
    page += by_label(compared, lambda row: row["kind"], others)
    page.append("\nBy benchmark or model, with whole benchmarks left out:\n\n" + HEADER)
    page += by_label(compared, benchmark_of, others)
    page.append("\nBy system, with whole benchmarks left out:\n\n" + HEADER)
    page += by_label(compared, lambda row: row["system"], others)
    page.append(
        TEXT.format(
            single=f"{SINGLE_COUNTS[0]:.0f} of {sum(SINGLE_COUNTS.values()):.0f} times", pairs=pairs, above=above,
            refused=", ".join(f"{count} {name}" for name, count in refused.items()) or "none",
        )
    )  # fmt: skip
    page.append(
        "Tuning, log ratio of measured to predicted throughput by round (deviations between groups with which nine in ten runs"
    )
    figures = ", ".join(f"{kind} {deviations[kind]:.2f}" for kind in KINDS)
    page.append(
        f"are in the range: {figures}; shipped " + ", ".join(f"{SCENARIO_DEVIATIONS[kind]:.2f}" for kind in KINDS) + "):\n"
    )
    vendors = ", ".join(f"{name} {ratio:+.2f}" for name, ratio in vendor_ratios(compared, table, mlperf).items())
    shipped = ", ".join(f"{name} {ratio:+.2f}" for name, ratio in VENDORS.items())
    page.append(f"Chips of {USUAL}; log ratio of other vendors to it: {vendors} (shipped {shipped}).\n")
    page.append("| benchmark | " + " | ".join((*earlier, last)) + " |\n|---|" + "---|" * (len(earlier) + 1))
    for name, means in table.items():
        page.append(
            f"| {name} | " + " | ".join(f"{means[when]:+.2f}" if when in means else "" for when in (*earlier, last)) + " |"
        )
    PAGE.write_text("\n".join(page) + "\n")
    print(PAGE.read_text())


if __name__ == "__main__":
    main()
