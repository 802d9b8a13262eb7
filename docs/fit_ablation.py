"""Writes docs/ablation.md, what each fitted constant is worth: `python docs/fit_ablation.py RUNS.csv ...` (some minutes).

Each constant in turn is held where it costs nothing, and the others are fitted anew without each whole model in every engine.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from fit_engines import fitted_rows

from steptime.measured.calibration import BETWEEN, DEVIATIONS, NAMES, SMALL_KV, USUAL, engine_from, fit, log_tpot
from steptime.measured.runs import read_runs
from steptime.measured.validation import Runs, grouped, predict_runs
from steptime.numbers import Array
from steptime.physics.constants import DESCRIPTIONS

HERE = Path(__file__).parent
FREE = -30.0  # logarithm of an overhead that takes no time
HELD = 1e-6  # deviation of the logarithm of a constant that is not fitted
HEAD = """# What each fitted constant is worth

Error of the time per token of {runs:,} public runs of models that are left out of the fit whole (`docs/validation.md`), where
a constant is left out: held where it costs nothing, an efficiency at 1 and an overhead at 0, with all others fitted anew.
Median and 90th percentile of |predicted / measured - 1|. Written by `docs/fit_ablation.py`.

| left out | unit | median / 90th percentile |
|---|---|---:|
"""


def left_out(groups: list[Runs], target: Array, usual: Array, deviation: Array, between: Array) -> str:
    """Return median and 90th percentile of the errors on whole models left out, constants with these priors."""
    errors = np.full(len(target), np.nan)
    for model in sorted({runs.model.name for runs in groups}):
        rest = [runs for runs in groups if runs.model.name != model]
        typical, _ = fit(rest, target, usual, deviation)
        for name in sorted({runs.engine for runs in groups if runs.model.name == model}):
            mine = [runs for runs in rest if runs.engine == name]
            values = fit(mine, target, typical, between, typical)[0] if mine else typical
            for runs in groups:
                if (runs.model.name, runs.engine) == (model, name):
                    errors[runs.index] = np.log(predict_runs(runs, engine_from(values, name=name))[0]) - target[runs.index]
    off = np.abs(np.expm1(errors))
    return f"{np.median(off):.1%} / {np.quantile(off, 0.9):.1%}"


def main() -> None:
    """Fit with and without each constant, and write the table."""
    rows = fitted_rows([row for path in sys.argv[1:] for row in read_runs(path)[0]])
    groups = grouped(rows, small_kv={name: kept > 0 for name, kept in SMALL_KV.items()})
    target = log_tpot(rows)
    lines = [f"| none | | {left_out(groups, target, USUAL, DEVIATIONS, BETWEEN)} |"]
    for i, name in enumerate(NAMES):
        held = np.where(np.arange(len(NAMES)) == i, HELD, 1.0)
        free = USUAL.copy()
        free[i] = FREE if name.startswith("seconds") else 0.0
        without = left_out(groups, target, free, DEVIATIONS * held, BETWEEN * held)
        lines.append(f"| `{name}` | {DESCRIPTIONS[name]['unit'] or 'share'} | {without} |")
        print(lines[-1], flush=True)
    (HERE / "ablation.md").write_text(HEAD.format(runs=len(rows)) + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
