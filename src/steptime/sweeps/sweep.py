"""Evaluate one question over many values of its inputs: `sweep`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from steptime.errors import InputError, RangeError, UnknownName, expect
from steptime.questions.declaration import COUNT, Question
from steptime.questions.registry import find_input, find_question, plain_name
from steptime.questions.step_question import with_layout
from steptime.sweeps.axes import Axis, check_needs, check_texts, in_base_units, made_axis, read_held
from steptime.sweeps.executor import Journal, Progress, run
from steptime.sweeps.point_grid import Job
from steptime.sweeps.question_inputs import check_points
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
    fixed_inputs = in_base_units(declaration, {plain_name(declaration, name): value for name, value in fixed.items()})
    axis_values = in_base_units(declaration, {plain_name(declaration, name): values for name, values in axes.items()})

    # The first system of an axis stands for all: its figures are the inputs of the sweep.
    known_inputs = {**fixed_inputs, **({"system": _first(axis_values["system"])} if "system" in axis_values else {})}
    check_texts(declaration, {name: values for name, values in axis_values.items() if isinstance(values, str)}, known_inputs)
    grid_axes = [
        made_axis(name, _values(values), find_input(declaration, name, known_inputs)) for name, values in axis_values.items()
    ]
    fixed_inputs = read_held(declaration, fixed_inputs, known_inputs)
    for name, value in fixed_inputs.items():
        spec = find_input(declaration, name, known_inputs)
        if spec.kind == COUNT and isinstance(value, int | float | np.number) and not isinstance(value, bool):
            fixed_inputs[name] = made_axis(name, [value], spec).values[0]
    return sweep_axes(
        declaration,
        grid_axes,
        fixed_inputs,
        answers=answers,
        together=together,
        workers=workers,
        client=client,
        out=out,
        progress=progress,
    )


def _values(values: Any) -> Any:
    if values is None or isinstance(values, Mapping):
        raise InputError(f"axes: an axis needs values, such as [1, 64], got {values!r}")
    return values if isinstance(values, str | np.ndarray) else list(np.atleast_1d(values) if np.isscalar(values) else values)


def _first(values: Any) -> Any:
    if isinstance(values, str):
        return values.partition(",")[0].strip()
    several = list(values) if isinstance(values, Sequence) else [values]
    return several[0] if several else None


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
    if workers is not None and (not isinstance(workers, int) or workers < 1):
        raise RangeError(f"workers: must be a whole number of at least 1, got {workers}")
    if together and len({len(axis.values) for axis in axes}) > 1:
        lengths = ", ".join(f"{axis.name} {len(axis.values):,}" for axis in axes)
        raise RangeError(f"axes: must have one length to advance together, got {lengths}")
    answer_names = select_answers(question, tuple(answers))
    job = Job(question=question, axes=tuple(axes), fixed=fixed, answer_names=frozenset(answer_names), together=together)
    check_points(job.shape, question.seconds)
    if (not answers if banded is None else banded) and job.points <= BANDED:
        answer_names = with_bands(question, answer_names)
        job = Job(question=question, axes=tuple(axes), fixed=fixed, answer_names=frozenset(answer_names), together=together)

    # A log costs time for each region: questions that take arrays are faster without one.
    slow = out is not None and not any(job.inner)
    journal = Journal(out, job) if out is not None and slow else None
    try:
        gathered = run(job, workers=workers, client=client, journal=journal, progress=progress)
    except BaseException:
        if journal is not None:
            journal.close(finished=not journal.kept)
        raise

    # A sweep without any answer is an error, and its log is of no use.
    if len(gathered.reasons) == job.points and not gathered.arrays:
        if journal is not None:
            journal.close(finished=True)
        reasons = list(dict.fromkeys(gathered.reasons.values()))
        raise InputError(f"every point is refused{'; the first reason' if len(reasons) > 1 else ''}: {reasons[0]}")
    sweep_table = Sweep(
        question=question.name,
        meaning=question.meaning,
        axes=tuple(axes),
        fixed=dict(fixed),
        answers=answer_columns(question, gathered.arrays, answer_names),
        reasons=gathered.reasons,
        together=together,
        seconds=time.perf_counter() - started,
        declaration=question,
    )
    if out is not None:
        sweep_table.save(out)
    if journal is not None:
        journal.close(finished=True)
    return sweep_table


def select_answers(question: Question, answers: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the answers to show.

    Args:
        question: The question.
        answers: Names that the caller chose; empty for the main ones.

    Returns:
        Names in order.

    Raises:
        UnknownName: If an answer does not exist.
    """
    for name in answers:
        if question.answers and name not in question.answers:
            raise UnknownName(f"answer of {question.name}", name, question.answers, f"It has {', '.join(question.answers)}.")
    return answers or question.shows


def with_bands(question: Question, answer_names: tuple[str, ...]) -> tuple[str, ...]:
    """Return answers, each followed by the ends of its 90 % range if it has one.

    Args:
        question: The question.
        answer_names: Names of the answers.

    Returns:
        Names in order, each once.
    """
    names: list[str] = []
    for name in answer_names:
        names += [name, *(question.bands.get(name, ()))]
    return tuple(dict.fromkeys(names))
