"""Print the error of time per token with groups left out: `python docs/group_cross_validation.py RUNS.csv ...` (two minutes).

A group is all runs of a model on a system with an engine. The fit is linear around the fit to all runs, so that leaving out
takes no new fit: constants move by a few per cent, and errors with them in proportion.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from operator import and_

import numpy as np
from engine_cross_validation import (
    LEAST_OF_GROUP,
    NOISE,
    QUEUE_USUAL,
    ROBUST,
    WAITS_DEVIATIONS,
    WAITS_USUAL,
    Constants,
    constants_of,
    fit,
    group_all,
    held_by_others,
    pair_weights,
    reading,
)
from fit_engines import fitted_rows

from steptime.number_checks import Array
from steptime.physics.engine import TYPICAL
from steptime.validation.closed_loop import Runs
from steptime.validation.engine_fit import FirstTokens, log_tpot, measured_first_tokens, with_queue, with_waits
from steptime.validation.predictions import predict_runs
from steptime.validation.run_table import read_runs
from steptime.validation.ttft_fit import Loops
from steptime.validation.ttft_fit import fit as fit_waits

# Step of a constant's logarithm for derivatives, and passes of the reweighted linear fit.
STEP, PASSES = 1e-3, 25
# What is left out with a group: positions of the labels of `labels_of`.
ALL_AT_ONCE = "models, systems and releases at once"
LEAVING_OUT = {"groups": (0,), "models": (1,), "systems": (2,), "releases": (3,), ALL_AT_ONCE: (1, 2, 3)}
# The same for first tokens.
FIRST_TOKENS = {name: kinds for name, kinds in LEAVING_OUT.items() if name != "releases"}


def solve(errors: Array, slopes: Array, start: Array, prior: tuple[Array, Array]) -> Array:
    """Return the logarithms of constants that minimise Cauchy's loss of linear errors around `start`, with a prior."""
    mean, deviation = prior
    logs = start.copy()
    for _ in range(PASSES):
        off = errors + slopes @ (logs - start)
        weight = 1 / (NOISE**2 * (1 + (off / NOISE / ROBUST) ** 2))
        matrix = (slopes * weight[:, None]).T @ slopes + np.diag(1 / deviation**2)
        logs = logs - np.linalg.solve(matrix, (slopes * weight[:, None]).T @ off + (logs - mean) / deviation**2)
    return logs


def group_labels(runs: Runs) -> tuple[str, str, str]:
    """Return group, model and system of runs."""
    names = runs.model.name, runs.system.name
    return " ".join((*names, runs.engine)), *names


def labels_of(runs: Runs, rows: list[dict[str, str]]) -> Array:
    """Return group, model, system and release of each of some runs, of shape (4, runs)."""
    releases = [f"{runs.engine} {rows[i]['engine_version']}" for i in runs.index]
    return np.array([[*group_labels(runs), release] for release in releases], dtype=object).T


def simulated(groups: list[Runs], target: Array, of: Constants, typical: Array, first: FirstTokens) -> list[Loops]:
    """Return the closed loops of groups with prefill, simulated with the engine of all runs of their engine."""
    loops: dict[int, Loops] = {}
    for name in sorted({runs.engine for runs in groups}):
        mine = [runs for runs in groups if runs.engine == name]
        logs = typical if name == TYPICAL else fit(mine, target, of, of.near(typical), typical)[0]
        prompted = reading(mine)
        engine = with_queue(of.engine(logs, name), prompted, first, QUEUE_USUAL)
        parts = with_waits(engine, prompted, first, WAITS_USUAL, WAITS_DEVIATIONS, pair_weights(prompted, first))[1]
        loops |= {id(runs): part for runs, part in zip(prompted, parts, strict=True)}
    return [loops[id(runs)] for runs in reading(groups)]


def first_token_errors(
    groups: list[Runs], loops: list[Loops], first: FirstTokens, kinds: tuple[int, ...], rows: list[dict[str, str]]
) -> Array:
    """Return log(predicted / measured) of TTFT by index, without groups of runs that share a label (kinds of `labels_of`)."""
    errors, prompted = np.full(len(rows), np.nan), reading(groups)
    labels = [tuple(frozenset(labels_of(runs, rows)[kind]) for kind in kinds) for runs in prompted]
    for name in dict.fromkeys(labels):
        for engine in sorted({runs.engine for runs, own in zip(prompted, labels, strict=True) if own == name}):
            pairs = [
                (runs, loop)
                for runs, loop, own in zip(prompted, loops, labels, strict=True)
                if not any(map(and_, own, name)) and engine in (runs.engine, TYPICAL)
            ]
            training = [runs for runs, _ in pairs]
            told, weight = first.select(training), pair_weights(training, first)
            of_pairs = [loop for _, loop in pairs]
            waits = fit_waits(of_pairs, told.seconds, told.medians, WAITS_USUAL, WAITS_DEVIATIONS, weight)
            for runs, loop, own in zip(prompted, loops, labels, strict=True):
                if own == name and runs.engine == engine:
                    seen = first.select([runs])
                    predicted = np.where(seen.medians, loop.ttft(waits, median=True), loop.ttft(waits))
                    errors[runs.index] = np.log(predicted / seen.seconds)
    return errors


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Errors of runs that were left out of a fit.

    rows: the runs; labels: their group, model, system and release, of shape (4, runs); errors: log(predicted / measured) by
    what was left out; inside: whether the 90 % range that follows from the groups of other models holds the run; widths: ratio
    of its ends, by the kind of data that was left out; first_tokens: errors of TTFT by what was left out (`FIRST_TOKENS`);
    waits are fitted without it, and steps are those of all runs.
    """

    rows: list[dict[str, str]]
    labels: Array
    errors: dict[str, Array]
    inside: dict[str, Array]
    widths: dict[str, float]
    first_tokens: dict[str, Array]


def leave_out(paths: Sequence[str]) -> LeftOut:
    """Fit once, and leave out each group, model, system and release, alone and together.

    Args:
        paths: CSV files of runs.

    Returns:
        The errors.
    """
    rows = fitted_rows([row for path in paths for row in read_runs(path)[0]])
    groups, target = group_all(rows), log_tpot(rows)
    of = constants_of(groups)
    start, _ = fit(groups, target, of, (of.usual, of.deviations))
    table = np.concatenate([start[None], start[None] + STEP * np.eye(len(start))])
    times = [np.log(predict_runs(runs, of.build_engine(table, runs))[0]) for runs in groups]
    index = np.concatenate([runs.index for runs in groups])
    off = np.concatenate(
        [np.broadcast_to(part, (len(table), len(runs.index))) for part, runs in zip(times, groups, strict=True)], 1
    )
    errors, slopes = off[0] - target[index], ((off[1:] - off[0]) / STEP).T
    engines = np.concatenate([np.full(len(runs.index), runs.engine) for runs in groups])
    labels = np.concatenate([labels_of(runs, rows) for runs in groups], 1)
    in_order = [rows[i] for i in index]
    by_name, inside, widths = {}, {}, {}
    for name, kinds in LEAVING_OUT.items():
        left = np.full(len(rows), np.nan)
        for group in sorted(set(labels[0])):
            place = labels[0] == group
            out = np.any([np.isin(labels[kind], list(set(labels[kind][place]))) for kind in kinds], axis=0)
            typical = solve(errors[~out], slopes[~out], start, (of.usual, of.deviations))
            engine = engines[place][0]
            mine, logs = ~out & (engines == engine), typical
            if mine.any() and engine != TYPICAL:
                logs = solve(errors[mine], slopes[mine], start, of.near(typical))
            left[place] = errors[place] + slopes[place] @ (logs - start)
        by_name[name] = left
        inside[name], widths[name] = held_by_others(left, labels[1], in_order)
    first = measured_first_tokens(rows)
    loops = simulated(groups, target, of, start, first)
    late = {name: first_token_errors(groups, loops, first, kinds, rows)[index] for name, kinds in FIRST_TOKENS.items()}
    return LeftOut(in_order, labels, by_name, inside, widths, late)


def large_groups(labels: Array) -> list[str]:
    """Return the groups that count in a range."""
    return [group for group in sorted(set(labels[0])) if np.sum(labels[0] == group) >= LEAST_OF_GROUP]


def main() -> None:
    """Print the errors."""
    left = leave_out(sys.argv[1:])
    print(f"{len(left.rows):,} runs, {len(set(left.labels[0]))} groups")
    for name, errors in left.errors.items():
        inside, groups = left.inside[name], sorted(set(left.labels[0]))
        off = np.mean([abs(np.median(errors[left.labels[0] == group])) for group in groups])
        share = np.mean([inside[left.labels[0] == group].mean() for group in large_groups(left.labels)])
        size = np.abs(np.expm1(errors))
        text = f"{name} left out: {np.median(size):.1%} / {np.quantile(size, 0.9):.1%}, median of a group {off:.1%}; range of "
        held_words = f"holds {inside.mean():.0%} of runs and {share:.0%} of a group"
        print(f"{text}other models {held_words}, width {left.widths[name]:.2f}")
    for name, errors in left.first_tokens.items():
        size = np.abs(np.expm1(errors[np.isfinite(errors)]))
        print(f"first tokens, {name} left out: {np.median(size):.1%} / {np.quantile(size, 0.9):.1%}")


if __name__ == "__main__":
    main()
