"""Evaluate one question over many values of its inputs: `sweep`."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Final

from steptime.errors import InputError, RangeError, expect
from steptime.questions.declaration import Question
from steptime.questions.registry import find_question
from steptime.questions.step_question import with_layout
from steptime.sweeps.axes import Axis, check_needs, check_points, grid_shape, read_inputs
from steptime.sweeps.executor import Journal, Progress, run
from steptime.sweeps.point_grid import Job
from steptime.sweeps.sweep_result import Sweep, answer_columns

# Largest number of points whose ranges come without a request.
BANDED: Final = 20_000


def sweep(
    question: Question | str | Callable[..., Any],
    axes: Mapping[str, Any],
    *,
    answers: Iterable[str] = (),
    together: bool = False,
    vectorised: bool = False,
    workers: int | None = None,
    client: Any = None,
    out: str | None = None,
    progress: Progress | None = None,
    **fixed: Any,
) -> Sweep:
    """Evaluate a question over all combinations of the values of its axes.

    A refused point, such as a layout that does not divide the model, has a reason and no answer.

    Args:
        question: "step", "plan", "simulate", "blackboard.NAME", the function of steptime (`st.plan`), or a Python function that
            takes keywords and returns a number or a dict.
        axes: Values by input name, in base units or as texts ("1k:128k:log2", "4TB/s:32TB/s:9"). Figures of the machine
            ("chip.hbm.bandwidth") are inputs too.
        answers: Names of the answers; the main ones by default.
        together: Whether the axes advance together, one point per position; else every combination is a point.
        vectorised: Whether a Python function takes arrays.
        workers: Processes of this machine; by default all cores if that is safe and faster.
        client: Client of a Dask cluster, in place of processes.
        out: File of results (`export.ending` lists the endings). A log next to it keeps the answers while the sweep runs, and a
            stopped sweep continues from there.
        progress: Called with the points done and the number of points.
        **fixed: Other inputs; names with a dot as **{"chip.hbm.bandwidth": 8e12}. A bare rent is in USD per chip-hour.

    Returns:
        Answers as labelled arrays over the axes.

    Raises:
        InputError: If an input is wrong for all points, or every point is refused for the same reason.

    >>> table = sweep("blackboard.drain_seconds", {"bandwidth": [1e12, 4e12]}, capacity=80e9)
    >>> table.answers["drain_seconds"].values.tolist()
    [0.08, 0.02]
    """
    declaration = find_question(question, vectorised=vectorised)
    expect("axes", axes, Mapping, 'a dict of values by input, such as {"batch": [1, 64]}')
    grid_axes, fixed_inputs = read_inputs(declaration, axes, fixed, together=together)
    return sweep_axes(
        declaration, grid_axes, fixed_inputs, answers=answers, together=together, workers=workers, client=client, out=out,
        progress=progress,
    )  # fmt: skip


def sweep_axes(
    question: Question,
    axes: Sequence[Axis],
    fixed: Mapping[str, Any],
    *,
    answers: Iterable[str] = (),
    together: bool = False,
    workers: int | None = None,
    client: Any = None,
    out: str | None = None,
    progress: Progress | None = None,
    banded: bool | None = None,
) -> Sweep:
    """Evaluate a question over axes that are already read.

    Args:
        question: Declaration of the question.
        axes: Axes of the sweep.
        fixed: Fixed inputs by name, in base units.
        answers: Names of the answers; the main ones by default.
        together: Whether the axes advance together.
        workers: Processes of this machine.
        client: Client of a Dask cluster.
        out: File of results.
        progress: Called with the points done and the number of points.
        banded: Whether 90 % ranges come with the answers; by default only if the answers are not chosen.

    Returns:
        Answers as labelled arrays over the axes.

    Raises:
        InputError: If there is no axis, an input is missing, or every point is refused.
        RangeError: If the axes have different lengths and advance together, or there are too many points.
    """
    started = time.perf_counter()
    if not axes:
        raise InputError("axes: a sweep needs an axis, which is an input with its values; give one, such as batch=1:64:log2")
    check_needs(question, axes, fixed)
    fixed = with_layout(question, fixed, axes)
    if together and len({len(axis.values) for axis in axes}) > 1:
        lengths = ", ".join(f"{axis.name} {len(axis.values):,}" for axis in axes)
        raise RangeError(f"axes: must have one length to advance together, got {lengths}")
    choice = tuple(answers)
    input_names = [*(axis.name for axis in axes), *(name for name, value in fixed.items() if value is not None)]
    answer_names = choice or question.default_answers(input_names)
    for name in answer_names:
        question.check_answer(name)
    check_points(grid_shape(axes, together=together), question.seconds)
    job = Job(question=question, axes=tuple(axes), fixed=fixed, answer_names=frozenset(answer_names), together=together)
    if (not choice if banded is None else banded) and job.points <= BANDED:
        # Each answer is followed by the ends of its 90 % range if it has one.
        with_ends = [(name, *question.bands.get(name, ())) for name in answer_names]
        answer_names = tuple(dict.fromkeys(itertools.chain.from_iterable(with_ends)))
        job = replace(job, answer_names=frozenset(answer_names))

    # A log costs time for each region: questions that take arrays are faster without one.
    logs = out is not None and not any(job.inner)
    with Journal(out, job) if out is not None and logs else nullcontext() as journal:
        gathered = run(job, workers=workers, client=client, journal=journal, progress=progress)
        sweep_table = Sweep(
            question=question.name,
            meaning=question.meaning,
            axes=job.axes,
            fixed=dict(fixed),
            answers=answer_columns(question, gathered.arrays, answer_names),
            reasons=gathered.reasons,
            together=together,
            seconds=time.perf_counter() - started,
            declaration=question,
        )
        is_answered = bool(gathered.arrays) or len(gathered.reasons) < job.points
        if out is not None and is_answered:
            sweep_table.save(out)

    # A sweep without any answer is an error.
    if not is_answered:
        reasons = list(dict.fromkeys(gathered.reasons.values()))
        raise InputError(f"every point is refused{'; the first reason' if len(reasons) > 1 else ''}: {reasons[0]}")
    return sweep_table
