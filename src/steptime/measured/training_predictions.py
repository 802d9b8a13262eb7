"""What steptime says of measured training runs: seconds of a step with a 90 % range, memory, whether it fits, and why not, if
so."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from steptime.atomic_files import temporary_file
from steptime.errors import InputError
from steptime.measured.training_runs import LEAST_RECOMPUTED, TrainingRun
from steptime.safe_text import safe_cell
from steptime.training.engine import TrainingEngine, on_chip, training_engine
from steptime.training.layout import WAYS, TrainingLayout
from steptime.training.memory import TrainingMemory, training_memory
from steptime.training.range import range_of
from steptime.training.search import search
from steptime.training.step import step_seconds
from steptime.units import show

COLUMNS: Final = (
    "id", "step_s", "step_low_s", "step_high_s", "tokens_per_s_per_chip", "peak_memory_gib", "fits", "bound", "reason",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """A run as predicted: step, low, high [s], peak [B] as the row's own peak is counted; reason where there is none."""

    run: TrainingRun | None
    id: str
    layout: TrainingLayout | None = None
    step: float = np.nan
    low: float = np.nan
    high: float = np.nan
    peak: float = np.nan
    fits: bool | None = None
    bound: str = ""
    reason: str = ""

    @property
    def off(self) -> float:
        """Logarithm of the predicted over the measured step."""
        measured = None if self.run is None else self.run.step
        return float(np.log(self.step / measured)) if measured else np.nan


def layout_of(run: TrainingRun, engine: TrainingEngine) -> TrainingLayout:
    """Return the layout of a run, with what it does not record: recomputation of a dense model, or all of the mapping.

    Raises InputError where no layout of its chips fits.
    """
    if run.layout is None:
        found = search(run.model, run.system, run.job, engine, chips=run.chips, fixed={"virtual_stages": 1})
        best = (found.fastest() or found.fastest(fitting=False)) if found.count else None
        if best is None:
            raise InputError(f"no mapping divides {run.job.batch} sequences on {run.chips} chips")
        return best[0]
    layout = run.layout
    if run.open and not run.experts:
        tried = [replace(layout, recompute=recompute) for recompute in LEAST_RECOMPUTED]
        layout = next((one for one in tried if bool(memory_of(run, engine, one).fits)), tried[-1])
    if run.any_order:  # interleaved as far as its layers can be dealt out
        known = {
            name: getattr(layout, name)
            for name in (*WAYS, "sharding", "sharding_group", "recompute")
            if name != "virtual_stages"
        }
        found = search(run.model, run.system, run.job, engine, chips=run.chips, fixed=known)
        best = found.fastest(fitting=False) if found.count else None
        layout = layout if best is None else best[0]
    return layout


def memory_of(run: TrainingRun, engine: TrainingEngine, layout: TrainingLayout) -> TrainingMemory:
    """Return the memory of a run."""
    each = max(run.job.batch / (layout.dp * layout.micro_batch), 1.0)
    return training_memory(run.model, run.job, run.system, engine, layout, microbatches=each)


def predict_training(run: TrainingRun | str, *, name: str = "", engine: TrainingEngine | None = None) -> Predicted:
    """Return the prediction of a run; of one that could not be read, the reason."""
    if isinstance(run, str):
        return Predicted(run=None, id=name, reason=run)
    used = training_engine(run.stack, run.system) if engine is None else engine
    if run.dropped:
        return Predicted(run=run, id=run.id, reason="tokens were dropped: the work of the step is not known")
    try:
        layout = layout_of(run, used)
    except InputError as error:
        return Predicted(run=run, id=run.id, reason=str(error))
    tuned, slower = on_chip(used, run.system, experts=run.experts, date=run.date)
    found = step_seconds(run.model, run.job, run.system, tuned, layout, slower=slower)
    memory = memory_of(run, used, layout)
    step = float(found.total)
    low, high = range_of(used, run.system, experts=run.experts)
    peak, fits = float(memory.allocated), bool(memory.fits)
    if run.driver:  # what an allocator holds beside, as far as there is room
        shown = peak * (1 + used.cached) + float(memory.reserved)
        peak = min(shown, float(memory.capacity)) if fits else shown
    terms = {name: float(np.sum(value)) for name, value in found.terms.items()}
    return Predicted(
        run=run, id=run.id, layout=layout, step=step, low=step * low, high=step * high, peak=peak, fits=fits,
        bound=max(terms, key=lambda term: terms[term]),
        reason="" if fits else f"needs {show(float(memory.used), 'B')} of the {show(float(memory.capacity), 'B')} of a chip",
    )  # fmt: skip


def rows_of(found: Sequence[Predicted]) -> list[dict[str, Any]]:
    """Return a row for each prediction, none left out; empty where there is no figure."""

    def shown(value: float) -> float | str:
        return value if np.isfinite(value) else ""

    rows = []
    for one in found:
        run = one.run
        rate = run.job.batch * run.job.seq / one.step / run.chips if run is not None and np.isfinite(one.step) else np.nan
        fits = "" if one.fits is None else str(one.fits).lower()
        figures = map(shown, (one.step, one.low, one.high, float(rate), one.peak / 2**30))
        rows.append(dict(zip(COLUMNS, (one.id, *figures, fits, one.bound, one.reason), strict=True)))
    return rows


def write_training_predictions(path: str | os.PathLike[str], found: Sequence[Predicted]) -> None:
    """Write a row for each run."""
    with temporary_file(path) as place, place.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: safe_cell(value) for name, value in row.items()} for row in rows_of(found))
