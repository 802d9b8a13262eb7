"""Fits the optimism of layout searches to measured runs: `python docs/fit_search.py RUNS.csv MORE.csv`.

Searches a layout for every measured job without its layout, with constants that were fitted without all runs of its model.
The recommended layout is faster than the best measured one, because a search exploits errors and because runs are not
tuned. Writes src/steptime/data/training_search.toml and docs/search_fit.json.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from fit_training import ARCHITECTURES, traits, usable

from steptime.number_checks import Array
from steptime.training.training_evidence import is_measured_kind
from steptime.training.training_job import show_training_layout
from steptime.training.training_runs import model_flops
from steptime.training.training_search import search
from steptime.training.training_stack import DENSE, SPARSE, TYPICAL, TrainingEngine, load_stack, on_chip, training_engine
from steptime.training.training_step import step_seconds
from steptime.validation.training_run_table import AUTOMODEL, TrainingRun, read_training_runs
from steptime.validation.training_validation import Fitted, Runs, attention_kernel, fit, fits_without, resolve_layout

HERE = Path(__file__).parent
DATA = HERE.parent / "src" / "steptime" / "data" / "training_search.toml"
# Jobs whose measured layout a search would not take.
UNUSUAL = "jobs with unusual layouts, over the best rate"
# Stacks whose runs are tuned recipes, and the smallest number of chips of the headline.
TUNED = ("megatron", "nemo-mlperf")
TUNED_CHIPS = 32
# A job has batches within this factor: more sequences are more micro-batches, which hardly change the rate of a chip.
BATCHES = 2.0
# A measured layout whose pipeline is idle for more than this share of a step is a demonstration, not a choice: with four
# micro-batches per stage, from which GPipe calls its idle time negligible, it is 1/5 (arXiv 1811.06965, section 2.3).
MOST_IDLE = 1 / 5
# Words of a layout that the recipes of a stack decide without regard to speed: its search has them too.
RECIPES = {AUTOMODEL: ("recompute",)}
# Further models without a deviation, as if they were in each stack and each architecture.
PRIOR_MODELS = 3.0


def stack_of(name: str, fitted: Fitted, runs: Sequence[TrainingRun]) -> TrainingEngine:
    """Return a stack with constants fitted to runs."""
    constants = fitted.constants()
    constants["memory_efficiency"] *= float(np.exp(fitted.differs.get(("stack", "memory_efficiency", name), 0.0)))
    base = traits(name)
    chips = {}
    for chip, architecture in ARCHITECTURES.items():
        slower = fitted.differs.get(("chip", "", chip), 0.0) + fitted.differs.get(("architecture", "", architecture), 0.0)
        attention = fitted.differs.get(("kernel", "attention_efficiency", attention_kernel(name, architecture)), 0.0)
        chips[chip] = {"speed": float(np.exp(-slower)), "attention": float(np.exp(attention))}
    own = {run.system.chip.name for run in runs if name in (run.stack, "typical")}
    speeds = [float(np.exp(-fitted.differs.get(("stack", "", stack), 0.0))) for stack in (name, "typical")]
    return replace(
        base, elsewhere=load_stack(TYPICAL).elsewhere, constants=replace(base.constants, **constants), speed=speeds[0],
        chips=chips,
        fit={"systems": sorted(own), "chips": sorted({run.system.chip.name for run in runs}), "typical_speed": speeds[1],
             "until": 2026.458},
    )  # fmt: skip


def jobs_of(runs: Sequence[TrainingRun], batches: float = 1.0) -> list[list[TrainingRun]]:
    """Return the runs of each job: model, chips, length and number of sequences, format, task and stack.

    Releases of a stack are one job. batches: largest factor between the batches of a job.
    """
    groups: dict[tuple[object, ...], list[list[TrainingRun]]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: float(run.job.batch)):
        job = replace(run.job, sequence_parallel=True, fused_experts=False, overlapped_exchange=False, batch=0)
        power = str(run.system.chip.power_w)
        parts = groups[run.model.name, run.system.name, power, run.chips, job, run.stack, run.framework]
        if not parts or run.job.batch > batches * parts[-1][0].job.batch:
            parts.append([])
        parts[-1].append(run)
    return [part for parts in groups.values() for part in parts]


def seconds_per_sequence(run: TrainingRun) -> float:
    """Return the measured seconds per sequence."""
    return (run.step or np.inf) / float(run.job.batch)


def best_flops(runs: Sequence[TrainingRun]) -> dict[tuple[str, ...], float]:
    """Return the largest measured FLOP/s of a chip by model, stack, chip, format and task."""
    best: dict[tuple[str, ...], float] = defaultdict(float)
    for run in runs:
        best[family_of(run)] = max(best[family_of(run)], sequence_flops(run) / seconds_per_sequence(run) / run.chips)
    return best


def family_of(run: TrainingRun) -> tuple[str, ...]:
    """Return the model, stack, chip, format and task of a run."""
    return run.model.name, run.stack, run.system.chip.name, run.job.dtype, run.job.task


def sequence_flops(run: TrainingRun) -> float:
    """Return the model FLOPs of a sequence, with causal attention."""
    return float(model_flops(run.model, run.job, full=False)) * float(run.job.seq)


def main(paths: Sequence[str]) -> None:
    """Search, fit, write."""
    runs = [run for path in paths for run in read_training_runs(path)[0] if usable(run)]
    layouts = [resolve_layout(run, traits(run.stack)) for run in runs]
    data = Runs(runs, layouts, ARCHITECTURES)
    fits = fits_without(data, fit(data), [run.model.name for run in runs])
    jobs = jobs_of(runs, BATCHES)
    rates = best_flops(runs)
    rows = []
    for model in sorted({run.model.name for run in runs}):
        others = [run for run in runs if run.model.name != model]
        rows += [searched(job, fits[model], others, rates) for job in jobs if job[0].model.name == model]
    corrections = correct(rows)
    figures = summary(rows, corrections) | {"regret": regret_of(jobs_of(runs))}
    (HERE / "search_fit.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    DATA.write_text(toml(rows, corrections), encoding="utf-8")
    for name, table in figures["tables"].items():
        print(name, {search_name: {key: round(value, 3) for key, value in row.items()} for search_name, row in table.items()})


def searched(
    job: list[TrainingRun], fitted: Fitted, others: Sequence[TrainingRun], rates: dict[tuple[str, ...], float]
) -> dict[str, Any]:
    """Return the search of a job: logarithms of measured over predicted seconds, of three searches.

    others: runs of the fit. rates: largest FLOP/s by model, stack, chip, format and task.
    """
    best = min(job, key=seconds_per_sequence)
    engine = stack_of(best.stack, fitted, others)
    tuned = on_chip(engine, best.system, experts=best.experts, date=best.date)
    layout = resolve_layout(best, engine)
    fixed = {name: getattr(layout, name) for name in RECIPES.get(best.stack, ())}
    found = search(best.model, best.system, best.job, tuned, chips=best.chips, fixed=fixed)
    row: dict[str, Any] = {
        "id": best.id, "model": best.model.name, "stack": best.stack, "chip": best.system.chip.name, "chips": best.chips,
        "architecture": ARCHITECTURES.get(best.system.chip.name, ""), "experts": best.experts, "task": best.job.task,
    }  # fmt: skip
    own = step_seconds(best.model, best.job, best.system, tuned, layout)
    idle = float(np.asarray(own.terms.get("pipeline idle", 0.0))) / float(own.total)
    row["evident"] = bool(is_measured_kind(layout, best.job, tuned, experts=best.experts)) and idle <= MOST_IDLE
    row["seen"] = engine.has_run_on(best.system.chip.name)
    row["own"] = float(np.log(best.step / float(own.total)))
    # Logarithm of the largest rate of the family over that of this job.
    rate = sequence_flops(best) / seconds_per_sequence(best) / best.chips
    row["below"] = float(np.log(rates[family_of(best)] / rate))
    for name, choice in (("measured", found.recommended("measured")), ("any", found.recommended("any"))):
        row[name] = None if choice is None else float(np.log(best.step / choice.seconds))
        row[f"{name} layout"] = None if choice is None else show_training_layout(choice.layout)
    fastest = found.fastest()
    row["fastest"] = None if fastest is None else float(np.log(best.step / fastest[1]))
    return row


def cells_of(rows: Sequence[dict[str, Any]]) -> list[tuple[tuple[str, str, str], float]]:
    """Return the median optimism of each model by kind, stack and architecture, so that many jobs of a model count once."""
    groups: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in rows:
        if row["measured"] is not None and row["evident"] and row["seen"]:
            groups[kind_of(row), row["stack"], row["architecture"], row["model"]].append(row["measured"])
    return [(key[:3], float(np.clip(np.median(values), -0.5, 0.5))) for key, values in groups.items()]


def kind_of(row: dict[str, Any]) -> str:
    """Return whether the model of a row has experts, as text."""
    return SPARSE if row["experts"] else DENSE


def correct(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the logarithm of the optimism by kind, with deviations of stacks and architectures.

    Deviations are pulled to zero, as if `PRIOR_MODELS` further models had none (ridge regression).
    """
    cells = cells_of(rows)
    names = [(place, name) for place in range(3) for name in sorted({key[place] for key, _ in cells})]
    x = np.array([[key[place] == name for place, name in names] for key, _ in cells], dtype=float)
    y = np.array([value for _, value in cells])
    pull = np.diag([PRIOR_MODELS if place else 1e-6 for place, _ in names])
    values = np.linalg.solve(x.T @ x + pull, x.T @ y)
    found: dict[str, dict[str, float]] = {"kinds": {}, "stacks": {}, "architectures": {}}
    for (place, name), value in zip(names, values, strict=True):
        found[("kinds", "stacks", "architectures")[place]][name] = float(value)
    return found


def correction_of(row: dict[str, Any], corrections: dict[str, dict[str, float]]) -> float:
    """Return the logarithm of the correction of a row; a search is never made faster."""
    parts = ("kinds", kind_of(row)), ("stacks", row["stack"]), ("architectures", row["architecture"])
    return max(sum(corrections[part].get(name, 0.0) for part, name in parts), 0.0)


def left_out_errors(rows: Sequence[dict[str, Any]]) -> Array:
    """Return the logarithm of measured over corrected seconds, with corrections fitted without the model of each row."""
    errors = np.full(len(rows), np.nan)
    for model in {row["model"] for row in rows}:
        corrections = correct([row for row in rows if row["model"] != model])
        for place, row in enumerate(rows):
            if row["model"] == model and row["measured"] is not None:
                errors[place] = row["measured"] - correction_of(row, corrections)
    return errors


def summary(rows: Sequence[dict[str, Any]], corrections: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Return the tables of docs/training.md."""
    errors = left_out_errors(rows)
    is_tuned = np.array([row["stack"] in TUNED and row["chips"] >= TUNED_CHIPS for row in rows])
    has_experts = np.array([row["experts"] for row in rows])
    # A search may not take the layout of some jobs, such as tensor parallelism over 32 chips to show its cost.
    is_usual = np.array([row["evident"] for row in rows])
    is_seen = np.array([row["seen"] for row in rows])
    is_evident = is_usual & is_seen
    # A search may be faster than a layout that was no choice, and not faster than the best rate of its model.
    below = np.array([row["below"] for row in rows])
    sets = {
        "all jobs": is_evident, "dense": is_evident & ~has_experts, "experts": is_evident & has_experts,
        "tuned recipes on 32 chips or more": is_tuned & is_evident, "of these, experts": is_tuned & has_experts & is_evident,
        "a stack that is new on the chip": is_usual & ~is_seen,
        UNUSUAL: ~is_usual,
    }  # fmt: skip
    tables = {}
    searches = {"layout as measured": "own", "fastest of all": "fastest", "measured kinds": "measured"}
    for name, members in sets.items():
        tables[name] = {
            search_name: ratios([row[key] for row, member in zip(rows, members, strict=True) if member])
            for search_name, key in searches.items()
        } | {"corrected": ratios(list((errors - below if name == UNUSUAL else errors)[members]))}
    tables[UNUSUAL]["over their layouts"] = ratios(list(errors[~is_usual]))
    return {"tables": tables, "corrections": corrections, "range": ranges(rows, errors)}


def regret_of(jobs: Sequence[list[TrainingRun]]) -> dict[str, float]:
    """Return how much of the best measured throughput the measured layout with the best prediction reaches.

    Of jobs with several layouts in one year.
    """
    shares = []
    for job in jobs:
        for year in {run.date[:4] for run in job}:
            times: dict[str, tuple[float, float]] = {}
            for run in (run for run in job if run.date[:4] == year and run.step):
                engine = training_engine(run.stack, run.system)
                layout = resolve_layout(run, engine)
                tuned = on_chip(engine, run.system, experts=run.experts, date=run.date)
                predicted = float(step_seconds(run.model, run.job, run.system, tuned, layout).total)
                name = show_training_layout(layout)
                times[name] = predicted, min(run.step or np.inf, times.get(name, (0.0, np.inf))[1])
            if len(times) > 1:
                shares.append(min(measured for _, measured in times.values()) / min(times.values())[1])
    return {"jobs": len(shares), "median": float(np.median(shares)), "p10": float(np.quantile(shares, 0.1))}


def ratios(values: Sequence[float | None]) -> dict[str, float]:
    """Return figures of predicted over measured rates."""
    ratio = np.exp([value for value in values if value is not None and np.isfinite(value)])
    low, high = np.quantile(ratio, [0.1, 0.9])
    return {"jobs": len(ratio), "median": float(np.median(ratio)), "p10": float(low), "p90": float(high),
            "worst": float(ratio.max())}  # fmt: skip


def ranges(rows: Sequence[dict[str, Any]], errors: Array) -> dict[str, float]:
    """Return the factor on corrected seconds that 95 % of the jobs of a kind are below."""
    kinds = np.array([kind_of(row) for row in rows])
    finite = np.isfinite(errors) & np.array([row["evident"] and row["seen"] for row in rows])
    return {kind: float(np.exp(np.quantile(errors[(kinds == kind) & finite], 0.95))) for kind in (DENSE, SPARSE)}


def toml(rows: Sequence[dict[str, Any]], corrections: dict[str, dict[str, float]]) -> str:
    """Return the file of corrections."""
    lines = [
        "# Logarithm of the optimism of layout searches: measured over predicted seconds of the recommended layout, by kind of",
        "# model, with deviations of stacks and chip architectures. Written by docs/fit_search.py.",
        f"jobs = {len(rows)}", f"models = {len({row['model'] for row in rows})}", "",
        "# Factor on corrected seconds that 95 % of the jobs are below, with corrections fitted without their model.", "[high]",
        *(f"{kind} = {value:.3f}" for kind, value in ranges(rows, left_out_errors(rows)).items()),
    ]  # fmt: skip
    for part, values in corrections.items():
        lines += ["", f"[{part}]", *(f"{name} = {value:.4f}" for name, value in values.items() if name)]
    lines += ["", "[chips]", *(f"{chip} = {json.dumps(name)}" for chip, name in ARCHITECTURES.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:])
