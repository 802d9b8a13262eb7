"""Write docs/scoreboard.md: errors of runs that no fit has seen, by load generator, model, system, engine and release.

`python docs/scoreboard.py FOLDER`, in some minutes: the folder has the files of measured runs (`FILES`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from curve_figures import LAYOUT, LEAST_LOADS, LENGTHS, MOST_GAIN, first_token_ratios, saturation_ratios
from fit_sampling import fit_sampling
from group_cross_validation import ALL_AT_ONCE, LeftOut, large_groups, leave_out
from recorded_run_fit import read_recorded, replay

from steptime.number_checks import Array
from steptime.physics.engine import load_engine
from steptime.units import percent, percent_change, show
from steptime.validation.engine_fit import log_tpot, measured_first_tokens
from steptime.validation.predictions import predict
from steptime.validation.run_table import DRAFTED, POOLS, read_runs, run_kind

FILES = ("serving.csv", "serving_more.csv", "serving_models.csv", "serving_groups.csv")
ENERGY = "mlenergy.csv"
PAGE = Path(__file__).parent / "scoreboard.md"
HARDEST = ALL_AT_ONCE
UNKNOWN = "(not recorded)"
RECORDED = "vllm_runs"
# Fewest runs of a row of the table.
LEAST_OF_ROW = 5
HEAD = "| {first} | runs | median | p90 | bias | shape | inside 90 % |\n|---|---:|---:|---:|---:|---:|---:|"
FIRST_HEAD = """Waits are fitted without the left-out runs. Times of steps are those of all runs.

| left out | runs | median | p90 | bias | shape |
|---|---:|---:|---:|---:|---:|"""
PARTS_HEAD = """TTFT of {left}, in parts. Differences between runs of a curve separate them:

- queue: TTFT minus that of the lowest load of its curve, where the measured one at least doubles;
- prefill: slope of TTFT by prompt tokens, at the lowest load of a layout with two or more lengths of prompts;
- host and first step: the rest at the same loads, extrapolated to a prompt of no tokens.

| part | differences | median | p90 | bias |
|---|---:|---:|---:|---:|"""
PARTS = {"queue": "queue", "prefill": "prefill", "host": "host and first step"}
RECORDED_HEAD = """vLLM 0.19 recorded the queue and the prefill of each of 300 requests, which are in no fit. The shipped
engine replays them. Means:

| run | queue measured | predicted | prefill measured | predicted |
|---|---:|---:|---:|---:|"""
SATURATION = """## Saturation points

A closed loop with $N$ clients has two bounds of its throughput: $N$ times the throughput per client at the lowest load, and the
highest throughput. They meet at the saturation point $N^*$ ([Denning and Buzen 1978](https://doi.org/10.1145/356733.356735)).
With more clients, requests wait for each other. A curve
saturates if its last doubling of clients adds less than {gain}: {curves} of {all} curves of {least} loads or more. The others
have no measured saturation point. Throughput follows from both times by Little's law. Left out: {left}.

| figure | curves | median | p90 | bias |
|---|---:|---:|---:|---:|"""
INTRO = """# Scoreboard

Time per output token of {runs:,} public runs that no fit has seen: the runs of a group (model, system, engine) are predicted
by constants fitted without its model, its system and its release, all at once. The 90 % range is that of the groups of other
models. Written by `docs/scoreboard.py` in some minutes.

**What is not known.** The structure of the model was chosen with these rows in view, so a new kind of model can be worse.
Before the expert kernels were read from timings, five groups that nobody had looked at were 13.9 % off at the median. One run
in ten was 28.8 % off or more, and a range of 90 % held 74 % of them. State-space models, RWKV, BitNet and contexts above 16,000
tokens have few runs or none: their ranges are wider, by the prior deviations of the constants that they need. Runs with prefix
caches are not known.

Median and p90: of |predicted / measured - 1|. Bias: median of predicted / measured - 1, with its sign. Shape: median distance
of an error from the median error of its curve (one layout and length, {least} loads or more).
"""


def shape_error(errors: Array, rows: Sequence[dict[str, str]]) -> float:
    """Return the median distance of errors from the median of their curve; NaN without curves."""
    # Real outputs end where they end, so that a task stands for its lengths.
    keys = np.array([" ".join(row[name] for name in (*LAYOUT, *(("task",) if row.get("task") else LENGTHS))) for row in rows])
    distances = []
    for key in set(keys):
        curve = errors[keys == key]
        if len(curve) >= LEAST_LOADS:
            distances.append(np.abs(np.expm1(curve - np.median(curve))))
    return float(np.median(np.concatenate(distances))) if distances else float("nan")


def line(label: str, errors: Array, inside: Array, rows: Sequence[dict[str, str]]) -> str:
    """Return a row of the table."""
    off, shape = np.expm1(errors), shape_error(errors, rows)
    shape_words = "" if np.isnan(shape) else percent(shape, 1)
    return f"| {label} | {len(off):,} | {quantiles(off)} | {shape_words} | {percent(inside.mean())} |"


def quantiles(off: Array) -> str:
    """Return the median and 90th percentile of errors without their sign, and the bias."""
    median, p90 = np.quantile(np.abs(off), (0.5, 0.9))
    return f"{percent(median, 1)} | {percent(p90, 1)} | {percent_change(np.median(off))}"


def measured_and_predicted(left: LeftOut) -> tuple[Array, Array]:
    """Return measured and predicted TTFT and TPOT [s] of the hardest leaving-out, each of shape (2, runs)."""
    pairs = measured_first_tokens(left.rows).seconds, np.exp(log_tpot(left.rows))
    errors = left.first_tokens[HARDEST], left.errors[HARDEST]
    ttft, tpot = (np.stack([seconds, seconds * np.exp(off)]) for seconds, off in zip(pairs, errors, strict=True))
    return ttft, tpot


def ratio_line(label: str, ratios: Array) -> str:
    """Return a row of predicted over measured figures."""
    return f"| {label} | {len(ratios):,} | {quantiles(ratios - 1)} |"


def curve_tables(left: LeftOut, folder: Path) -> list[str]:
    """Return the tables of the parts of first tokens and of saturation points."""
    ttft, tpot = measured_and_predicted(left)
    parts = first_token_ratios(left.rows, ttft)
    lines = ["", PARTS_HEAD.format(left=HARDEST), *(ratio_line(words, parts[part]) for part, words in PARTS.items())]
    lines += ["", RECORDED_HEAD]
    engine = load_engine("vllm")
    for run in read_recorded(folder / RECORDED):
        found, arrival = replay(run, engine), np.asarray(run.traffic.arrival)
        pairs = run.scheduled - run.queued, found["scheduled"] - arrival, run.first - run.scheduled
        means = [show(float(np.mean(seconds)), "s") for seconds in (*pairs, found["first"] - found["scheduled"])]
        lines.append(f"| {run.model.name}, {run.system.name} | {' | '.join(means)} |")
    ratios, count = saturation_ratios(left.rows, ttft, tpot)
    words = {"gain": percent(MOST_GAIN), "curves": len(ratios), "all": count, "least": LEAST_LOADS, "left": HARDEST}
    lines += ["", SATURATION.format(**words)]
    return [*lines, ratio_line("saturation point: clients", ratios[:, 0]), ratio_line("highest throughput", ratios[:, 1])]


def table(title: str, first: str, left: LeftOut, label: Callable[[dict[str, str]], str]) -> list[str]:
    """Return a table of the hardest leaving-out by label."""
    labels = np.array([label(row) for row in left.rows])
    errors, inside = left.errors[HARDEST], left.inside[HARDEST]
    lines = ["", f"## {title}", "", HEAD.format(first=first)]
    for name in sorted(set(labels)):
        place = labels == name
        if place.sum() >= LEAST_OF_ROW:
            lines.append(
                line(name, errors[place], inside[place], [row for row, at in zip(left.rows, place, strict=True) if at])
            )
    return lines


def predicted(rows: list[dict[str, str]]) -> tuple[Array, Array, list[dict[str, str]]]:
    """Return errors, whether ranges hold, and the runs, of runs with a prediction and without doubt."""
    told = predict(rows, by_simulation=False)
    measured = np.array([float(row.get("tpot_s") or "nan") for row in rows])
    known = np.isfinite(measured) & np.isfinite(told.tpot) & (told.reason == "")
    inside = (measured >= told.tpot_low) & (measured <= told.tpot_high)
    return np.log(told.tpot / measured)[known], inside[known], [row for row, at in zip(rows, known, strict=True) if at]


def main() -> None:
    """Leave out, predict the kinds that are in no fit, and write the page."""
    folder = Path(sys.argv[1])
    paths = [str(folder / name) for name in FILES]
    left = leave_out(paths)
    lines = [INTRO.format(runs=len(left.rows), least=LEAST_LOADS)]
    lines += [
        "## What is left out",
        "",
        HEAD.format(first="left out").replace("inside 90 % |", "inside 90 % | of a group | width |"),
    ]
    lines[-1] = lines[-1].removesuffix("|") + "|---:|---:|"
    for name, errors in left.errors.items():
        inside = left.inside[name]
        share = np.mean([inside[left.labels[0] == group].mean() for group in large_groups(left.labels)])
        lines.append(f"{line(name, errors, inside, left.rows)} {percent(share)} | {left.widths[name]:.2f} |")
    lines += ["", "## First tokens", "", FIRST_HEAD]
    for name, errors in left.first_tokens.items():
        known = np.isfinite(errors)
        shape = shape_error(errors[known], [row for row, at in zip(left.rows, known, strict=True) if at])
        lines.append(f"| {name} | {known.sum():,} | {quantiles(np.expm1(errors[known]))} | {percent(shape, 1)} |")
    lines += curve_tables(left, folder)
    lines += ["", "## Load generators and kinds", "", HEAD.format(first="runs")]
    lines.append(line("greedy closed loops, left out as above", left.errors[HARDEST], left.inside[HARDEST], left.rows))
    energy = fit_sampling(str(folder / ENERGY))
    told = predict(energy.rows, by_simulation=False)
    ends = np.log([told.tpot_low / told.tpot, told.tpot_high / told.tpot])
    inside = (-energy.left_out >= ends[0]) & (-energy.left_out <= ends[1])
    title = "ML.ENERGY: real prompts and ends, top-p; models left out of its three constants"
    lines.append(line(title, energy.left_out, inside, energy.rows))
    every = [row for path in paths for row in read_runs(path)[0]]
    for kind, title in ((DRAFTED, "speculative tokens, in no fit"), (POOLS, "separate pools, two constants fitted to them")):
        lines.append(line(title, *predicted([row for row in every if run_kind(row) == kind and row.get("tpot_s")])))
    lines += table("Models", "model", left, lambda row: row["model"].rpartition("/")[2])
    lines += table("Systems", "system", left, lambda row: row["system"])
    lines += table(
        "Engines and releases", "release", left, lambda row: f"{row['engine']} {row['engine_version'] or '(not recorded)'}"
    )
    lines += table("Groups", "group", left, lambda row: f"{row['model'].rpartition('/')[2]}, {row['system']}, {row['engine']}")
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
