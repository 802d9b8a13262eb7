"""A regression without physics on the measured training runs: 39 numbers of a run against the logarithm of its step time.

The comparison for docs/training.md: ridge regression, with the same runs left out as in `docs/fit_training.py`. Its strength is
the best of five for each table, which favours the regression.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steptime.hardware.number_formats import peak_rate
from steptime.number_checks import Array
from steptime.training.training_job import TrainingLayout
from steptime.training.training_runs import model_flops
from steptime.training.training_stack import decimal_year
from steptime.validation.training_run_table import TrainingRun

STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1000.0)
STACKS = ("megatron", "llm-foundry", "megatron-deepspeed", "nemo-mlperf", "maxtext", "torchtitan", "nemo")


def features(run: TrainingRun, layout: TrainingLayout) -> list[float]:
    """Return the 39 numbers of a run: logarithms of sizes, and indicators."""
    model, chip, job, x = run.model, run.system.chip, run.job, layout
    wide = peak_rate(chip.peak, ("bf16", "fp16", "fp32"))
    sizes = [
        float(model_flops(model, job, full=False)) * float(job.seq) * float(job.batch) / run.chips,
        model.depth, model.width, model.heads, model.vocabulary,
        sum(n * op.total_weights for layer, n in model.layers for op in layer.ops),
        job.seq, job.batch, run.chips, x.tp, x.pp, x.virtual_stages, x.cp, x.ep, x.dp, x.micro_batch,
        wide, peak_rate(chip.peak, job.format.arithmetic), chip.hbm.bandwidth, chip.capacity, chip.power_w,
        run.system.domains[0].link.bandwidth, run.system.scale_up.size, run.system.domains[-1].link.bandwidth,
    ]  # fmt: skip
    flags = [
        job.dtype in ("mxfp8", "nvfp4"), job.task == "lora", job.task == "sft", x.recompute == "full", x.recompute == "none",
        x.sharding == "zero3", run.experts, *(run.stack == stack for stack in STACKS),
    ]  # fmt: skip
    year = decimal_year(run.date) if run.date else 2024.5
    return [*np.log(np.maximum(np.nan_to_num(np.array(sizes, dtype=float), posinf=1.0), 1e-9)), *map(float, flags), year]


def left_out_errors(runs: Sequence[TrainingRun], layouts: Sequence[TrainingLayout], groups: Sequence[str]) -> Array:
    """Return log(predicted / measured) of each run, from a regression without its group.

    Args:
        runs: Runs.
        layouts: Layout of each run.
        groups: Group of each run.

    Returns:
        Errors, of shape (runs,), with the strength that has the smallest median error.
    """
    x = np.array([features(run, layout) for run, layout in zip(runs, layouts, strict=True)])
    y, labels = np.log([run.step or np.nan for run in runs]), np.array(groups)
    tried = []
    for strength in STRENGTHS:
        errors = np.full(len(runs), np.nan)
        for group in set(groups):
            kept = labels != group
            mean, spread = x[kept].mean(0), np.maximum(x[kept].std(0), 1e-9)
            z, center = (x[kept] - mean) / spread, y[kept].mean()
            slopes = np.linalg.solve(z.T @ z + strength * np.eye(z.shape[1]), z.T @ (y[kept] - center))
            errors[~kept] = center + np.clip((x[~kept] - mean) / spread, -5, 5) @ slopes - y[~kept]
        tried.append(errors)
    return min(tried, key=lambda errors: float(np.median(np.abs(np.expm1(errors)))))
