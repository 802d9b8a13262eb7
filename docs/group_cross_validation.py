"""Print the error of time per token with groups left out: `python docs/group_cross_validation.py RUNS.csv ...` (two minutes).

A group is all runs of a model on a system with an engine. The fit is linear around the fit to all runs, so that leaving out
takes no new fit: constants move by a few per cent, and errors with them in proportion.
"""

from __future__ import annotations

import sys

import numpy as np
from engine_cross_validation import FITTED, NOISE, ROBUST, constants_of, fit, group_all
from fit_engines import fitted_rows

from steptime.number_checks import Array
from steptime.physics.engine import TYPICAL
from steptime.validation.closed_loop import Runs
from steptime.validation.engine_fit import log_tpot
from steptime.validation.predictions import predict_runs
from steptime.validation.run_table import read_runs

# Step of a constant's logarithm for derivatives, and passes of the reweighted linear fit.
STEP, PASSES = 1e-3, 25


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


def label(runs: Runs, by: str) -> str:
    """Return the group, model or system of runs."""
    names = {"model": runs.model.name, "system": runs.system.name}
    return names.get(by) or " ".join((*names.values(), runs.engine))


def main() -> None:
    """Fit once, leave out each group, model and system, and print the errors."""
    rows = fitted_rows([row for path in sys.argv[1:] for row in read_runs(path)[0]])
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
    of_group = np.concatenate([np.full(len(runs.index), label(runs, "group"), dtype=object) for runs in groups])
    print(f"{len(rows):,} runs, {len(set(of_group))} groups, {len(FITTED)} constants and {len(of.kinds)} factors of experts")
    for by in ("group", "model", "system"):
        labels = np.concatenate([np.full(len(runs.index), label(runs, by), dtype=object) for runs in groups])
        left = np.full(len(rows), np.nan)
        for name in sorted(set(labels)):
            out = labels == name
            typical = solve(errors[~out], slopes[~out], start, (of.usual, of.deviations))
            for engine in sorted(set(engines[out])):
                mine, logs = ~out & (engines == engine), typical
                if mine.any() and engine != TYPICAL:
                    logs = solve(errors[mine], slopes[mine], start, of.near(typical))
                place = out & (engines == engine)
                left[place] = errors[place] + slopes[place] @ (logs - start)
        size = np.abs(np.expm1(left))
        of_medians = np.mean([abs(np.median(left[of_group == name])) for name in set(of_group)])
        print(f"{by}s left out: {np.median(size):.1%} / {np.quantile(size, 0.9):.1%}, median of a group {of_medians:.1%}")


if __name__ == "__main__":
    main()
