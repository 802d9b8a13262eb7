r"""Estimate the covariance behind corrections by own runs: `python docs/correction_fit.py RUNS.csv ...` (four minutes).

Errors are $r = \log(\text{measured} / \text{predicted})$. The whole group (model, system, engine) of a run is left out of the
engine fit, linear around it (`group_cross_validation`). First tokens are simulated with the constants of that fit; their waits
are fitted without the group. `physics/run_covariance.py` states the covariance. Its variances and lengths maximise the
restricted likelihood. Groups differ in scale, so that each group has the weight of a multivariate Student distribution
(expectation maximisation); its degrees of freedom are those of single errors. The quantile of the 90 % range is that of runs
which one other run of their curve corrects. The script writes `data/corrections.toml` and docs/corrections.md.

References:
    Patterson and Thompson, Biometrika 58 (1971), 545-554, https://doi.org/10.1093/biomet/58.3.545 (restricted likelihood).
    Lange, Little and Taylor, JASA 84 (1989), 881-896, https://doi.org/10.1080/01621459.1989.10478852 (weights of groups).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from engine_cross_validation import (
    WAITS_DEVIATIONS,
    WAITS_USUAL,
    constants_of,
    fit,
    group_all,
    pair_weights,
    reading,
)
from fit_engines import fitted_rows
from group_cross_validation import STEP, group_labels, solve
from scipy.optimize import minimize

from steptime.number_checks import Array
from steptime.physics.engine import TYPICAL, label_values, with_constants
from steptime.physics.engine_parameters import RUN_WAITS
from steptime.physics.run_covariance import LEVELS, TRAINING, Covariance
from steptime.units import percent
from steptime.validation.closed_loop import solve_closed_loops
from steptime.validation.engine_fit import log_tpot, measured_first_tokens
from steptime.validation.predictions import predict_runs, simulate_loops
from steptime.validation.run_table import read_runs, release_label
from steptime.validation.ttft_fit import fit as fit_waits

HERE = Path(__file__).parent
TARGET = HERE.parent / "src" / "steptime" / "data" / "corrections.toml"
URL = "https://github.com/ai-dynamo/aiconfigurator"
MORE = "https://github.com/SemiAnalysisAI/InferenceX"
# Folds of groups for the scores, and passes of the weights of groups.
FOLDS, PASSES = 5, 6
# Largest logarithm of an error: larger ones are rows that do not describe their run.
LARGEST = {"tpot": 1.0, "ttft": 2.0, TRAINING: 1.0}
# Columns that rows of one layout share, in addition to the group.
LAYOUT = ("weight_dtype", "expert_dtype", "kv_dtype", "tp", "pp", "dp", "ep")


@dataclass(frozen=True)
class Errors:
    """Logarithms of measured over predicted times of rows, with what rows share (labels by level), load and context."""

    values: dict[str, Array]
    labels: dict[str, Array]
    load: Array
    context: Array


def plain(cell: object) -> str:
    """Return a cell as text; 8.0 and 8 are the same."""
    text = str(cell or "")
    try:
        return f"{float(text):g}"
    except ValueError:
        return text


def left_out_errors(rows: list[dict[str, str]]) -> Errors:
    """Return the errors of rows whose group is left out of the engine fit."""
    groups, target, first = group_all(rows), log_tpot(rows), measured_first_tokens(rows)
    of = constants_of(groups)
    start, _ = fit(groups, target, of, (of.usual, of.deviations))
    table = np.concatenate([start[None], start[None] + STEP * np.eye(len(start))])
    parts = [np.log(predict_runs(runs, of.build_engine(table, runs))[0]) for runs in groups]
    index = np.concatenate([runs.index for runs in groups])
    logs = np.concatenate([np.broadcast_to(p, (len(table), len(r.index))) for p, r in zip(parts, groups, strict=True)], 1)
    errors, slopes = logs[0] - target[index], ((logs[1:] - logs[0]) / STEP).T
    engines, names = (np.concatenate([np.full(len(r.index), one(r), object) for r in groups]) for one in (_engine, _group))
    without, tpot = {}, np.full(len(rows), np.nan)
    for name in sorted(set(names)):
        out = names == name
        engine = engines[out][0]
        mine, values = ~out & (engines == engine), solve(errors[~out], slopes[~out], start, (of.usual, of.deviations))
        if mine.any() and engine != TYPICAL:
            values = solve(errors[mine], slopes[mine], start, of.near(values))
        without[name] = values
        tpot[index[out]] = -(errors[out] + slopes[out] @ (values - start))
    load, context = np.empty(len(rows)), np.empty(len(rows))
    for runs in groups:
        running = solve_closed_loops(runs, of.build_engine(without[_group(runs)], runs)).running
        load[runs.index] = np.minimum(running, runs.concurrency)
        context[runs.index] = runs.input_tokens + runs.output_tokens / 2
    prefilling = reading(groups)
    usual = label_values(RUN_WAITS, np.exp(WAITS_USUAL))
    loops = [simulate_loops(r, with_constants(of.build_engine(without[_group(r)], r), usual)) for r in prefilling]
    ttft = np.full(len(rows), np.nan)
    for name in sorted({_group(runs) for runs in prefilling}):
        engine = next(runs.engine for runs in prefilling if _group(runs) == name)
        others = [(r, x) for r, x in zip(prefilling, loops, strict=True) if _group(r) != name]
        kept = [(r, x) for r, x in others if engine in (r.engine, TYPICAL)] or others
        training = [runs for runs, _ in kept]
        measured, weight = first.select(training), pair_weights(training, first)
        waits = fit_waits([loop for _, loop in kept], measured.seconds, measured.medians, WAITS_USUAL, WAITS_DEVIATIONS, weight)
        for runs, loop in zip(prefilling, loops, strict=True):
            if _group(runs) == name:
                seen = first.select([runs])
                predicted = np.where(seen.medians, loop.ttft(waits, median=True), loop.ttft(waits))
                ttft[runs.index] = np.log(seen.seconds / predicted)
    return Errors({"tpot": tpot, "ttft": ttft}, _labels(rows, groups), np.log2(np.maximum(load, 1)), np.log2(context))


def _engine(runs: Any) -> str:
    return str(runs.engine)


def _group(runs: Any) -> str:
    return group_labels(runs)[0]


def _labels(rows: list[dict[str, str]], groups: list[Any]) -> dict[str, Array]:
    """Return what rows share, by level, and their measured curve: same lengths as well."""
    keys: dict[str, list[tuple[str, ...]]] = {name: [()] * len(rows) for name in ("engine", "model", *LEVELS, "curve")}
    for runs in groups:
        for i in runs.index:
            row = rows[i]
            engine, model, group = runs.engine, runs.model.name, (_group(runs),)
            layout, release = (*group, *(plain(row.get(name)) for name in LAYOUT)), release_label(row)
            lengths = plain(row["input_tokens"]), plain(row["output_tokens"])
            keys["engine"][i], keys["model"][i], keys["group"][i] = (engine,), (engine, model), group
            keys["release"][i], keys["layout"][i], keys["layout_release"][i] = (*group, release), layout, (*layout, release)
            keys["curve"][i] = (*layout, release, *lengths)
    return {name: np.unique([" | ".join(key) for key in values], return_inverse=True)[1] for name, values in keys.items()}


# --- restricted likelihood ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """Runs of one group: positions, engine and model, squared distances in load and context, and equal labels by level."""

    rows: Array
    column: tuple[int, int]
    load: Array
    context: Array
    same: dict[str, Array]


def blocks_of(errors: Errors, mask: Array) -> list[Block]:
    """Return the groups of some rows."""
    blocks = []
    models = int(errors.labels["engine"].max()) + 1
    for group in np.unique(errors.labels["group"][mask]):
        rows = np.flatnonzero(mask & (errors.labels["group"] == group))
        # A load of several coordinates has the sum of their squares.
        load, context = (
            np.square(x[rows][:, None] - x[rows][None]).reshape(len(rows), len(rows), -1).sum(-1)
            for x in (errors.load, errors.context)
        )
        same = {name: errors.labels[name][rows][:, None] == errors.labels[name][rows][None] for name in LEVELS}
        column = int(errors.labels["engine"][rows[0]]), models + int(errors.labels["model"][rows[0]])
        blocks.append(Block(rows, column, load, context, same))
    return blocks


# Logarithms of the variances of engine, model, LEVELS and noise, then of the lengths in load and context [doublings].
START = np.log([0.001, 0.001, *[0.006] * len(LEVELS), 0.003, 2.0, 2.0])


def likelihood(logs: Array, blocks: list[Block], target: Array) -> tuple[float, Array]:
    """Return the negative restricted log likelihood of errors with one unknown mean, and its gradient.

    Engines and models add the same error to all runs of a group, so that a group acts on them as one observation: with D
    the covariance inside groups and Z the columns of engines and models, $K^{-1} = D^{-1} - D^{-1} Z G Z^T D^{-1}$ and
    $G = (S^{-1} + Z^T D^{-1} Z)^{-1}$ (Woodbury).
    """
    values = np.exp(logs)
    levels, noise, lengths = values[2 : 2 + len(LEVELS)], values[-3], values[-2:]
    columns = max(block.column[1] for block in blocks) + 1
    is_model = np.arange(columns) > max(block.column[0] for block in blocks)
    inner, sums, ones = np.diag(1 / np.where(is_model, values[1], values[0])), np.zeros(columns), np.zeros(columns)
    parts, total = [], 0.0
    for block in blocks:
        spread = np.exp(-block.load / (2 * lengths[0] ** 2) - block.context / (2 * lengths[1] ** 2))
        by_level = [
            size * block.same[name] * (spread if LEVELS[name] else 1.0) for name, size in zip(LEVELS, levels, strict=True)
        ]
        near = sum(part for part, name in zip(by_level, LEVELS, strict=True) if LEVELS[name])
        inverse = np.linalg.inv(sum(by_level) + noise * np.eye(len(block.rows)))
        one, data = inverse.sum(1), inverse @ target[block.rows]
        total -= 0.5 * np.linalg.slogdet(inverse)[1]
        place = list(block.column)
        inner[np.ix_(place, place)] += one.sum()
        sums[place] += data.sum()
        ones[place] += one.sum()
        parts.append((block, by_level, near, inverse, one, data))
    g = np.linalg.inv(inner)
    used = sorted({place for block in blocks for place in block.column})
    total += 0.5 * (
        np.linalg.slogdet(inner[np.ix_(used, used)])[1] + np.log(np.where(is_model, values[1], values[0])[used]).sum()
    )
    solved = []
    for block, _, _, _, one, data in parts:
        place = list(block.column)
        solved.append(
            (one - one * (g[place] @ ones).sum(), data - one * (g[place] @ sums).sum(), g[np.ix_(place, place)].sum())
        )
    whole = sum(one.sum() for one, _, _ in solved)
    mean = sum(data.sum() for _, data, _ in solved) / whole
    total += 0.5 * math.log(whole)
    gradient, engine_sums = np.zeros(len(logs)), np.zeros((3, columns))
    for (block, by_level, near, inverse, one_d, _), (one, data, shared) in zip(parts, solved, strict=True):
        residual = data - mean * one
        total += 0.5 * float((target[block.rows] - mean) @ residual)
        matrix = inverse - shared * np.outer(one_d, one_d) - np.outer(residual, residual) - np.outer(one, one) / whole
        for k, part in enumerate(by_level):
            gradient[2 + k] += 0.5 * np.sum(matrix * part)
        gradient[-3] += 0.5 * noise * np.trace(matrix)
        gradient[-2] += 0.5 * np.sum(matrix * near * block.load) / lengths[0] ** 2
        gradient[-1] += 0.5 * np.sum(matrix * near * block.context) / lengths[1] ** 2
        for place in block.column:
            engine_sums[1, place] += residual.sum()
            engine_sums[2, place] += one.sum()
    # Diagonal of Z' K^-1 Z, with Z' D^-1 Z = inner - S^-1.
    crossed = inner - np.diag(1 / np.where(is_model, values[1], values[0]))
    engine_sums[0] = np.diagonal(crossed - crossed @ g @ crossed)
    slopes = engine_sums[0] - engine_sums[1] ** 2 - engine_sums[2] ** 2 / whole
    gradient[0], gradient[1] = (0.5 * values[k] * slopes[is_model == bool(k)].sum() for k in (0, 1))
    return float(total), gradient


def estimate(errors: Errors, quantity: str, mask: Array, start: Covariance | None = None, curve: str = "curve") -> Covariance:
    """Return the covariance of one quantity, from the rows of a mask, with fewer passes from a known start."""
    mask = mask & np.isfinite(errors.values[quantity])
    blocks, limit = blocks_of(errors, mask), LARGEST[quantity]
    target = np.clip(errors.values[quantity], -limit, limit)
    # It takes longer to import than all others.
    from scipy.stats import t as student

    degrees = float(student.fit(target[mask], floc=0.0)[0])
    logs, weight = START if start is None else np.log([*start.figures().values()][: len(START)]), np.ones(len(target))
    bounds = [(-13.0, 2.0)] * (len(START) - 2) + [(-1.5, 3.0)] * 2
    for _ in range(PASSES if start is None else 2):
        logs = minimize(likelihood, logs, (blocks, target * np.sqrt(weight)), jac=True, method="L-BFGS-B", bounds=bounds).x
        covariance = _named(logs, degrees)
        for block in blocks:
            square = _square(block, covariance, target[block.rows])
            weight[block.rows] = (degrees + len(block.rows)) / (degrees + square)
    part = pairs(errors, quantity, dict.fromkeys(np.unique(errors.labels["group"][mask]).tolist(), covariance), curve)
    order = np.argsort(part.size)
    share = np.cumsum(part.weight[order]) / part.weight.sum()
    return replace(covariance, quantile=float(part.size[order][np.searchsorted(share, 0.9)]))


def _named(logs: Array, degrees: float) -> Covariance:
    values = np.exp(logs).tolist()
    names = ("engine", "model", *LEVELS, "noise", "doublings", "context_doublings")
    return Covariance(**dict(zip(names, values, strict=True)), degrees=degrees, quantile=1.0)


def inside(block: Block, covariance: Covariance) -> Array:
    """Return the covariance of the runs of one group, without noise."""
    spread = covariance.nearness(block.load, block.context)
    parts = (getattr(covariance, name) * block.same[name] * (spread if LEVELS[name] else 1.0) for name in LEVELS)
    return covariance.engine + covariance.model + sum(parts)


def _square(block: Block, covariance: Covariance, values: Array) -> float:
    """Return the squared Mahalanobis distance of the errors of a group."""
    matrix = inside(block, covariance) + covariance.noise * np.eye(len(values))
    return float(values @ np.linalg.solve(matrix, values))


# --- scores ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pairs:
    """Runs of a curve that correct another run of it.

    before, after: errors. size: absolute error after, in standard deviations. half: half of the 90 % range. doublings: distance
    in load. weight: 1 over the number of runs that correct the same run, so that runs count equally.
    """

    before: Array
    after: Array
    size: Array
    half: Array
    doublings: Array
    weight: Array


def pairs(errors: Errors, quantity: str, by_group: dict[int, Covariance], curve: str) -> Pairs:
    """Correct every run of a curve by each other run of it, one at a time."""
    found = [list(part) for part in zip(*_pairs(errors, quantity, by_group, curve), strict=True)]
    return Pairs(*(np.concatenate(part) for part in found))


def _pairs(errors: Errors, quantity: str, by_group: dict[int, Covariance], curve: str) -> Iterator[tuple[Array, ...]]:
    values = errors.values[quantity]
    for block in blocks_of(errors, np.isfinite(values) & np.isin(errors.labels["group"], list(by_group))):
        covariance = by_group[int(errors.labels["group"][block.rows[0]])]
        matrix, error = inside(block, covariance), values[block.rows]
        label_ = errors.labels[curve][block.rows]
        is_pair = (label_[:, None] == label_[None]) & ~np.eye(len(error), dtype=bool)
        given, other = np.nonzero(is_pair)
        variance = np.diagonal(matrix) + covariance.noise
        share = matrix[given, other] / variance[given]
        after = error[other] - share * error[given]
        deviation = np.sqrt(variance[other] - share * matrix[given, other])
        deviation = deviation * covariance.scale(error[given] ** 2 / variance[given], 1)
        away = np.sqrt(block.load[given, other])
        weight = 1 / is_pair.sum(0)[other]
        yield error[other], after, np.abs(after) / deviation, covariance.quantile * deviation, away, weight


def score(part: Pairs, chosen: Array) -> str:
    """Return a row of the table: pairs, errors before and after at the median and the 90th percentile, share in range."""
    weight = part.weight[chosen]

    def quantiles(logs: Array) -> str:
        size = np.abs(np.expm1(-logs[chosen]))
        order = np.argsort(size)
        share = np.cumsum(weight[order]) / weight.sum()
        return " / ".join(percent(size[order][np.searchsorted(share, q)], 1) for q in (0.5, 0.9))

    covered = np.average((np.abs(part.after) <= part.half)[chosen], weights=weight)
    wide = math.exp(2 * float(np.median(part.half[chosen])))
    return f"{chosen.sum():,} | {quantiles(part.before)} | {quantiles(part.after)} | {percent(covered)} | {wide:.2f}"


HEADING = """# Corrections by one run of the same curve

Errors of rows whose group (model, system, engine) is left out of the engine fit, by a linear estimate. A
curve has the same model, system, engine, release, formats, layout and lengths; its loads differ. A release is a version, or
the month of an unknown version. Each run of a curve corrects every other run of it, one at a time. Runs count equally. The
covariance is estimated without the fold of groups that is scored (five folds). Errors are |predicted / measured - 1|, at the
median / 90th percentile. *In range*: measured values inside the 90 % range after the correction. *High/low*: its upper end
over its lower end, at the median. Written by `docs/correction_fit.py` with `data/corrections.toml`.

| quantity | other runs | pairs | before | after one run | in range | high/low |
|---|---|---:|---:|---:|---:|---:|"""


def page(errors: Errors, by_fold: dict[str, dict[int, Covariance]]) -> str:
    """Return docs/corrections.md."""
    lines = [HEADING]
    names = {"tpot": "time per token", "ttft": "first token"}
    curves = {"curve": "", "layout": ", any release and lengths of the same layout"}
    for quantity, name in names.items():
        for curve, words in curves.items():
            part = pairs(errors, quantity, by_fold[quantity], curve)
            is_near = part.doublings <= 1 + 1e-4
            lines.append(f"| {name} | within a doubling of the load{words} | {score(part, is_near)} |")
            lines.append(f"| {name} | all loads{words} | {score(part, np.ones_like(is_near))} |")
    return "\n".join(lines) + "\n"


def data_file(found: dict[str, Covariance], rows: int, groups: int) -> str:
    """Return data/corrections.toml."""
    note = f"{rows:,} public serving runs in {groups} groups, each group left out of the engine fit"
    source = {"url": URL, "more": MORE, "grade": "measured", "note": note}
    return "\n".join(data_lines(found, source, "correction_fit")) + "\n"


def data_lines(found: dict[str, Covariance], source: dict[str, str], script: str) -> list[str]:
    """Return the lines of a data file of covariances by quantity."""
    title = f"# Variances of log(measured / predicted), written by docs/{script}.py; physics/run_covariance.py states them."
    lines = [title, "[source]", *(f'{name} = "{value}"' for name, value in source.items())]
    for quantity, covariance in found.items():
        lines += ["", f"[{quantity}]", *(f"{name} = {value:.4g}" for name, value in covariance.figures().items())]
    return lines


def main() -> None:
    """Estimate, score in folds of groups, and write the data file and the page."""
    rows = fitted_rows([row for path in sys.argv[1:] for row in read_runs(path)[0]])
    errors = left_out_errors(rows)
    groups = errors.labels["group"]
    fold = np.random.default_rng(0).permutation(int(groups.max()) + 1) % FOLDS
    found, by_fold = {}, {}
    for quantity in errors.values:
        found[quantity] = estimate(errors, quantity, np.ones(len(rows), dtype=bool))
        without = [estimate(errors, quantity, fold[groups] != k, found[quantity]) for k in range(FOLDS)]
        by_fold[quantity] = {group: without[k] for group, k in enumerate(fold)}
        print(quantity, {name: f"{value:.4g}" for name, value in found[quantity].figures().items()}, flush=True)
    TARGET.write_text(data_file(found, len(rows), int(groups.max()) + 1), encoding="utf-8")
    text = page(errors, by_fold)
    (HERE / "corrections.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
