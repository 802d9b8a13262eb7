"""Anchors (`physics.bias_correction`) from a user's training runs, which correct later `train` answers.

A run is a row of a CSV of training runs that `validate` accepts, with a measured step. It corrects answers of its own stack,
and of the stack `typical`, whose constants are those of all stacks together. Stored runs are in the folder of the serving runs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from steptime.errors import DataFileError, InputError
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.physics.bias_correction import Anchor, Anchors, MeasuredRun, select_anchor
from steptime.questions.train_question import bind_train
from steptime.training.training_correction import SHARED_DEGREES, layout_settings, own_correction
from steptime.training.training_stack import IDEAL, TYPICAL, TrainingEngine, load_stack
from steptime.validation.training_run_table import TrainingRun, read_training_runs
from steptime.validation.training_validation import (
    Predicted,
    TrainingValidation,
    predict_training,
    step_errors,
    summarize_training,
    validate_training,
)
from steptime.validation.user_calibration import (
    anchors_of_files,
    as_lasting_rows,
    kept_files,
    note_skipped,
    own_path,
    store_rows,
)


def load_training_anchors(
    path: str | os.PathLike[str],
    *,
    engine: TrainingEngine | None = None,
    source: str = "",
    is_stored: bool = False,
    skip_bad: bool = True,
    catalog: str | None = None,
) -> Anchors:
    """Compare a user's training runs with predictions.

    Args:
        path: CSV file of training runs.
        engine: Stack of the question; only runs that correct it count. By default the stack of each run.
        source: Name of the source; by default that of the file.
        is_stored: Whether the runs are stored by `steptime anchors`.
        skip_bad: Whether to leave out rows that cannot be read instead of raising.
        catalog: Folder of additional catalogue entries.

    Returns:
        One anchor per model, system and stack.

    Raises:
        InputError: A row cannot be read and `skip_bad` is False, or no run is usable.
    """
    runs, rows = read_training_runs(path, catalog=catalog)
    return _compared(path, runs, rows, engine=engine, source=source, is_stored=is_stored, skip_bad=skip_bad)


def _compared(
    path: str | os.PathLike[str],
    runs: Sequence[TrainingRun | str],
    rows: Sequence[Mapping[str, str]],
    *,
    engine: TrainingEngine | None = None,
    source: str = "",
    is_stored: bool = False,
    skip_bad: bool = True,
) -> Anchors:
    """Return the anchors of the runs and rows of a file, as `load_training_anchors` does."""
    source = source or os.path.basename(path)
    bad = [(place, run) for place, run in enumerate(runs) if isinstance(run, str)]
    if bad and not skip_bad:
        raise DataFileError(path, f"{bad[0][1].rstrip('.')}; --skip-bad leaves such rows out", bad[0][0] + 2)
    left_out = [f"{rows[place].get('id') or f'line {place + 2}'}: {reason}" for place, reason in bad]
    readable = [run for run in runs if isinstance(run, TrainingRun)]
    matching_runs = [run for run in readable if engine is None or engine.name in (run.stack, TYPICAL)]
    if readable and not matching_runs:
        stacks = ", ".join(sorted({run.stack for run in readable}))
        raise InputError(f"{source}: has runs of {stacks}, which do not correct the stack {engine and engine.name}")
    predictions = [predict_training(run, engine=engine) for run in matching_runs]
    left_out += [f"{p.id}: {p.reason or 'it has no step time'}" for p in predictions if not math.isfinite(p.off)]
    groups: dict[tuple[str, str, str], list[Predicted]] = {}
    for p, run in zip(predictions, matching_runs, strict=True):
        if math.isfinite(p.off):
            groups.setdefault((run.model.name, run.system.name, engine.name if engine else run.stack), []).append(p)
    if not groups:
        raise InputError(f"{source}: no usable run: {next(iter(left_out), 'the file has no row')}")
    anchors = [_anchor(members, group, source, is_stored) for group, members in groups.items()]
    anchors[0] = replace(anchors[0], left_out=tuple(left_out))
    return Anchors(source=source, anchors=tuple(anchors))


def _anchor(predictions: Iterable[Predicted], group: tuple[str, str, str], source: str, is_stored: bool) -> Anchor:
    """Return the anchor of the runs of one model, system and stack."""
    members = list(predictions)
    measured = [_measured_run(p) for p in members]
    outside = [p.id for p in members if not p.low <= p.measured <= p.high]
    return Anchor(
        source=source, is_stored=is_stored, model=group[0], system=group[1], engine=group[2], measured=tuple(measured),
        outside_range=tuple(outside),
        explanations=tuple(f"Run {name}: check its layout, recomputation and stack." for name in outside),
    )  # fmt: skip


def _measured_run(p: Predicted) -> MeasuredRun:
    """Return a run with its measured over predicted step."""
    assert p.run is not None
    assert p.layout is not None
    degrees: dict[str, Any] = {name: int(getattr(p.layout, name)) for name in SHARED_DEGREES}
    return MeasuredRun(
        name=p.id, model=p.run.model.name, system=p.run.system.name, formats=layout_settings(p.run.job, p.layout), **degrees,
        chips=float(p.run.chips), load=float(p.run.job.batch), context=float(p.run.job.seq), training_step=p.measured / p.step,
    )  # fmt: skip


def validate_with_own_runs(
    path: str | os.PathLike[str], anchor: str | os.PathLike[str], *, engine: str | None = None, catalog: str | None = None
) -> TrainingValidation:
    """Predict every row of a file of training runs, corrected by your own runs.

    No run corrects itself: where it is among your own runs, it is left out of its correction, and so are its copies.

    Args:
        path: CSV file of the runs that are predicted.
        anchor: CSV file of the runs that correct them; it may be the same file.
        engine: Training stack for the runs of both files; by default that of each run.
        catalog: Folder of additional catalogue entries.

    Returns:
        Corrected predictions and their errors, and the errors before the correction.

    Raises:
        InputError: The stack is the ideal one, no row of the file has a prediction, or no own run corrects one.
    """
    if engine is not None and load_stack(engine, catalog).name == IDEAL.name:
        raise InputError("engine: ideal is a bound, which no run corrects; leave engine (--engine) or anchor (--anchor) out")
    validation = validate_training(path, engine=engine, catalog=catalog)
    if len(validation.unanswered) == validation.runs:
        raise InputError(f"{os.path.basename(path)}: has no run to correct: {validation.unanswered[0]}")
    own_runs, rows = read_training_runs(anchor, catalog=catalog, stack=engine)
    anchors: dict[str, Anchors] = {}
    problems = []
    stacks = {p.run.stack: load_stack(p.run.stack, catalog) for p in validation.predictions if p.run}
    for name, stack in stacks.items():
        # A stack may be named by a path or an alias.
        stack_runs = [
            replace(run, stack=stack.name) if isinstance(run, TrainingRun) and run.stack == name else run for run in own_runs
        ]
        try:
            anchors[name] = _compared(anchor, stack_runs, rows, engine=stack)
        except InputError as problem:
            problems.append(problem)
    if problems and not anchors:
        raise problems[0]
    pairs = [(p, _corrected(p, stacks, anchors)) for p in validation.predictions]
    changed = [(p, corrected) for p, corrected in pairs if corrected is not p]
    if not changed:
        words = f"corrects no run of {os.path.basename(path)}, since no run corrects itself; add another run of its stack"
        raise InputError(f"{os.path.basename(anchor)}: {words}")
    answer = replace(summarize_training([corrected for _, corrected in pairs]), source=os.path.basename(anchor))
    measured = [pair for pair in changed if math.isfinite(pair[0].off)]
    if not measured:
        return answer
    before_and_after = [step_errors(predictions) for predictions in zip(*measured, strict=True)]
    return replace(answer, before=before_and_after[0], after=before_and_after[1])


def _corrected(p: Predicted, stacks: Mapping[str, TrainingEngine], anchors: Mapping[str, Anchors]) -> Predicted:
    """Return a prediction that the own runs of its stack correct; the same one where there are none but itself."""
    if p.run is None or p.layout is None or p.run.stack not in anchors or not math.isfinite(p.step):
        return p
    stack = stacks[p.run.stack]
    anchor = _bind(anchors[p.run.stack], p.run.model, p.run.system, stack)
    itself = replace(_measured_run(p), name="")
    other_runs = tuple(run for run in anchor.measured if replace(run, name="") != itself)
    if not other_runs:
        return p
    low, high = p.low / p.step, p.high / p.step
    correction = own_correction(
        replace(stack, anchor=replace(anchor, measured=other_runs)), p.run.job, p.layout, low=low, high=high
    )
    step = p.step * correction.factor
    return replace(p, step=step, low=step * correction.low, high=step * correction.high, own_factor=correction.factor)


def with_own_runs(values: Mapping[str, Any], path: str | None = None) -> dict[str, Any]:
    """Return the inputs of `train` with a stack that the user's runs correct.

    Args:
        values: Values of `TrainInputs` by name, and figures of the machine by path.
        path: CSV file of training runs; by default the stored runs.

    Returns:
        The inputs, unchanged where no run corrects the stack.

    Raises:
        InputError: The file has no usable run.
    """
    catalog = values.get("catalog")
    run_files = kept_files(catalog, training=True) if path is None else {}
    if path is None and not run_files:
        return dict(values)
    _, model, system, stack = bind_train(values)
    anchor = _kept_anchor(run_files, model, system, stack, catalog)
    if path is not None:
        anchor = _bind(load_training_anchors(path, engine=stack, catalog=catalog), model, system, stack)
    return dict(values) if anchor is None else {**values, "engine": replace(stack, anchor=anchor)}


def _bind(anchors: Anchors, model: Model, system: System, stack: TrainingEngine) -> Anchor:
    return select_anchor(anchors, model=model.name, system=system.name, engine=stack.name)


def _kept_anchor(
    run_files: Mapping[str, Path], model: Model, system: System, stack: TrainingEngine, catalog: str | None
) -> Anchor | None:
    """Return the anchor of the stored runs that correct a stack; None without one. A bound is not corrected."""
    groups: list[Anchor] = []
    if stack.name == IDEAL.name:
        return None
    for name, path in run_files.items():
        try:
            groups += load_training_anchors(path, engine=stack, source=name, is_stored=True, catalog=catalog).anchors
        except DataFileError as problem:
            note_skipped(path, problem)
        except InputError:
            # The runs of this set are of other stacks.
            continue
    return _bind(Anchors(source="stored runs", anchors=tuple(groups)), model, system, stack) if groups else None


def kept_training_anchors(catalog: str | None = None) -> tuple[Anchor, ...]:
    """Return the anchors of all stored training runs.

    Args:
        catalog: Folder of additional catalogue entries.

    Returns:
        Anchors in the order of the files.
    """

    def load(name: str, path: Path) -> Anchors:
        return load_training_anchors(path, source=name, is_stored=True, catalog=catalog)

    return anchors_of_files(kept_files(catalog, training=True), load)


def keep_training(path: str, *, name: str = "", skip_bad: bool = False, catalog: str | None = None) -> tuple[Path, Anchors]:
    """Store training runs for later answers of `train`.

    Args:
        path: CSV file of training runs.
        name: Name of the set; by default that of the file.
        skip_bad: Whether to leave out rows that cannot be read instead of raising.
        catalog: Folder of additional catalogue entries.

    Returns:
        Path of the stored file, and its anchors.

    Raises:
        InputError: The name is invalid or in use, a row is invalid, or no run is usable.
    """
    target = own_path(name or Path(path).stem, catalog)
    runs, rows = read_training_runs(path, catalog=catalog)
    anchors = _compared(path, runs, rows, source=target.stem, is_stored=True, skip_bad=skip_bad)
    usable = [row for row, run in zip(rows, runs, strict=True) if isinstance(run, TrainingRun)]
    store_rows(target, list(rows[0]), as_lasting_rows(usable, Path(path).parent))
    return target, anchors
