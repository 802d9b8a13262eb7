"""Write docs/ablation.md, the effect of each fitted constant: `python docs/fit_ablation.py RUNS.csv ...` (some minutes).

Each constant in turn is set to its value without cost. The others are fitted again with each model left out in every engine.
"""

from __future__ import annotations

import sys
from datetime import date
from pathlib import Path

import numpy as np
from engine_cross_validation import FITTED, Constants, constants_of, fit, group_all
from fit_engines import fitted_rows

from steptime.number_checks import Array
from steptime.physics.engine_parameters import DESCRIPTIONS
from steptime.units import percent
from steptime.validation.closed_loop import Runs
from steptime.validation.engine_fit import log_tpot
from steptime.validation.predictions import predict_runs
from steptime.validation.run_table import read_runs

HERE = Path(__file__).parent
FREE = -30.0  # logarithm of an overhead that takes no time
HELD = 1e-6  # deviation of the logarithm of a constant that is not fitted
HEAD = """# Effect of each fitted constant

Error of the time per token for {runs:,} public runs. All runs of the model are left out of the fit (`docs/validation.md`).
Each row also leaves out one constant: an efficiency is set to 1 or an overhead to 0, and all others are fitted again.
Median and 90th percentile of |predicted / measured - 1|. Written by `docs/fit_ablation.py` on {day}.

| left out | unit | median / 90th percentile |
|---|---|---:|
"""


def figures(off: Array) -> str:
    """Write median and 90th percentile of |predicted / measured - 1|."""
    median, p90 = np.quantile(off, [0.5, 0.9], method="inverted_cdf")
    return f"{percent(median, 1)} / {percent(p90, 1)}"


def left_out(groups: list[Runs], target: Array, of: Constants, usual: Array, held: Array) -> Array:
    """Return log(predicted / measured) of runs of whole models left out, with prior means and factors on prior deviations."""
    errors = np.full(len(target), np.nan)
    for model in sorted({runs.model.name for runs in groups}):
        rest = [runs for runs in groups if runs.model.name != model]
        typical, _ = fit(rest, target, of, (usual, of.deviations * held))
        mean, deviation = of.near(typical)
        for name in sorted({runs.engine for runs in groups if runs.model.name == model}):
            mine = [runs for runs in rest if runs.engine == name]
            values = fit(mine, target, of, (mean, deviation * held), typical)[0] if mine else typical
            for runs in groups:
                if (runs.model.name, runs.engine) == (model, name):
                    errors[runs.index] = np.log(predict_runs(runs, of.engine(values, name))[0]) - target[runs.index]
    return errors


def main() -> None:
    """Fit with and without each constant, and write the table."""
    rows = fitted_rows([row for path in sys.argv[1:] for row in read_runs(path)[0]])
    groups = group_all(rows)
    target, of = log_tpot(rows), constants_of(groups)
    errors = left_out(groups, target, of, of.usual, np.ones(len(of.usual)))
    lines = [f"| none | | {figures(np.abs(np.expm1(errors)))} |"]
    print(*lines, sep="\n", flush=True)
    for i, name in enumerate(FITTED):
        held = np.where(np.arange(len(of.usual)) == i, HELD, 1.0)
        free = of.usual
        free[i] = FREE if name.startswith("seconds") or name == "expert_call" else 0.0
        without = figures(np.abs(np.expm1(left_out(groups, target, of, free, held))))
        lines.append(f"| `{name}` | {DESCRIPTIONS[name]['unit'] or 'share'} | {without} |")
        print(lines[-1], flush=True)
    factors = np.where(np.arange(len(of.usual)) >= len(FITTED), HELD, 1.0)
    lines.append(
        f"| factors of experts | share | {figures(np.abs(np.expm1(left_out(groups, target, of, of.usual, factors))))} |"
    )
    text = HEAD.format(runs=len(rows), day=date.today()) + "\n".join(lines) + "\n"
    (HERE / "ablation.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
