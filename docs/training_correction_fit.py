r"""Estimate the covariance behind corrections of training steps: `python docs/training_correction_fit.py RUNS.csv ...`.

Errors are $r = \log(\text{measured} / \text{predicted})$ of step times. The whole group (model, system, stack) of a run is left
out of the fit of the stacks, linear around it (`fit_training.left_out`). The estimate is that of `correction_fit`. The distance
in load is that in sequences per step and in chips. The script writes `data/training_corrections.toml` and
docs/training_corrections.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from correction_fit import FOLDS, Errors, data_lines, estimate, pairs, score
from fit_training import ARCHITECTURES, left_out, traits, usable

from steptime.physics.run_covariance import LEVELS, TRAINING
from steptime.training.training_correction import SHARED_DEGREES, layout_settings
from steptime.training.training_job import TrainingLayout
from steptime.validation.training_run_table import TrainingRun, read_training_runs
from steptime.validation.training_validation import Runs, fit, resolve_layout

HERE = Path(__file__).parent
TARGET = HERE.parent / "src" / "steptime" / "data" / "training_corrections.toml"
URL = "https://github.com/NVIDIA-NeMo/Megatron-Bridge"
HEADING = """# Corrections of a training step by one run of the same group

Errors of public training runs whose group (model, system, stack) is left out of the fit of the stacks, by a linear estimate. A
curve has the same format and layout as well. Each run corrects every other run of its group or curve, one at a time.
Runs count equally. The covariance is estimated without the fold of groups that is scored (five folds). Errors are
|predicted / measured - 1|, at the median / 90th percentile. *In range*: measured values inside the 90 % range after the
correction. *High/low*: its upper end over its lower end, at the median. Written by `docs/training_correction_fit.py` with
`data/training_corrections.toml`.

| other runs | pairs | before | after one run | in range | high/low |
|---|---:|---:|---:|---:|---:|"""


def group(run: TrainingRun) -> str:
    """Return the group of a run: model, system and stack."""
    return f"{run.model.name} | {run.system.name} | {run.stack}"


def labels(runs: list[TrainingRun], layouts: list[TrainingLayout], versions: list[str]) -> dict[str, np.ndarray]:
    """Return what runs share, by level of the covariance."""
    groups = [group(run) for run in runs]
    degrees = [
        (layout_settings(run.job, x), *(int(getattr(x, name)) for name in SHARED_DEGREES))
        for run, x in zip(runs, layouts, strict=True)
    ]
    keys = {
        "engine": [run.stack for run in runs],
        "model": [f"{run.stack} | {run.model.name}" for run in runs],
        "group": groups,
        "release": list(zip(groups, versions, strict=True)),
        "layout": list(zip(groups, degrees, strict=True)),
        "layout_release": list(zip(groups, degrees, versions, strict=True)),
    }
    assert {"engine", "model", *LEVELS} == set(keys)
    return {name: np.unique([repr(key) for key in values], return_inverse=True)[1] for name, values in keys.items()}


def main() -> None:
    """Estimate, score in folds of groups, and write the data file and the page."""
    read = [pair for path in sys.argv[1:] for pair in zip(*read_training_runs(path), strict=True) if usable(pair[0])]
    runs, versions = [run for run, _ in read], [row.get("framework_version", "") for _, row in read]
    layouts = [resolve_layout(run, traits(run.stack)) for run in runs]
    data = Runs(runs, layouts, ARCHITECTURES)
    errors = Errors(
        {TRAINING: -left_out(data, group, fit(data))},
        labels(runs, layouts, versions),
        np.log2([(float(run.job.batch), float(run.chips)) for run in runs]),
        np.log2([float(run.job.seq) for run in runs]),
    )
    of = errors.labels["group"]
    count = int(of.max()) + 1
    fold = np.random.default_rng(0).permutation(count) % FOLDS
    found = estimate(errors, TRAINING, np.ones(len(runs), dtype=bool), curve="group")
    without = [estimate(errors, TRAINING, fold[of] != k, found, curve="group") for k in range(FOLDS)]
    by_group = {place: without[k] for place, k in enumerate(fold)}
    lines = [HEADING]
    for curve, words in (("layout", "same format and layout"), ("group", "all of the group")):
        part = pairs(errors, TRAINING, by_group, curve)
        is_near = part.doublings <= 1 + 1e-4
        lines.append(f"| {words}, within a doubling of sequences and chips | {score(part, is_near)} |")
        lines.append(f"| {words} | {score(part, np.ones_like(is_near))} |")
    note = f"{len(runs):,} public training runs in {count} groups, each group left out of the fit of the stacks"
    source = {"url": URL, "grade": "measured", "note": note}
    lines_of_data = data_lines({TRAINING: found}, source, "training_correction_fit")
    TARGET.write_text("\n".join(lines_of_data) + "\n", encoding="utf-8")
    (HERE / "training_corrections.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
