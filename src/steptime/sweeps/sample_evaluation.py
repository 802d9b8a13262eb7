"""Evaluate a question at many values of its uncertain inputs, as arrays or point by point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from steptime.number_checks import Array
from steptime.questions.declaration import Question
from steptime.sweeps.axes import Axis
from steptime.sweeps.executor import Progress, run
from steptime.sweeps.input_distribution import Unsure
from steptime.sweeps.point_grid import Job

# Points per evaluation of arrays: they stay in a core's cache.
AT_ONCE: Final = 2**15


def varied(question: Question, inputs: Sequence[Unsure]) -> Question:
    """Return a question that takes values of uncertain inputs by their names.

    Args:
        question: The question.
        inputs: The uncertain inputs, each of which sets its value in its own place.

    Returns:
        The question with a different `ask`.
    """
    return replace(
        question,
        ask=partial(_placed, question, tuple(inputs)),
        vectorised=question.vectorised and all(parameter.broadcasts for parameter in inputs),
    )


def _placed(
    question: Question, inputs: tuple[Unsure, ...], input_values: Mapping[str, Any], answer_names: frozenset[str]
) -> dict[str, Any]:
    length = max((np.size(input_values[parameter.name]) for parameter in inputs), default=1)
    parts = [slice(first, first + AT_ONCE) for first in range(0, length, AT_ONCE)]
    part_inputs = [dict(_put(inputs, input_values, part)) for part in parts]
    answers = [question.ask(values, answer_names) for values in part_inputs]
    if len(answers) == 1:
        return dict(answers[0])
    sizes = [min(AT_ONCE, length - part.start) for part in parts]
    return {
        name: np.concatenate([np.broadcast_to(part[name], (size,)) for part, size in zip(answers, sizes, strict=True)])
        for name in answers[0]
    }


def _put(inputs: Sequence[Unsure], input_values: Mapping[str, Any], part: slice) -> Mapping[str, Any]:
    """Return the inputs of the question with one part of the points set."""
    values = {parameter.name: input_values[parameter.name] for parameter in inputs}
    # A value may belong inside another input, such as a constant inside the engine.
    question_inputs: Mapping[str, Any] = {name: value for name, value in input_values.items() if name not in values}
    for parameter in inputs:
        value = values[parameter.name]
        if isinstance(value, np.ndarray) and value.ndim:
            value = value[part]
        elif parameter.is_count:
            value = int(value)
        question_inputs = parameter.place(question_inputs, parameter.name, value)
    return question_inputs


def answers_at(
    question: Question,
    input_values: Mapping[str, Any],
    inputs: Sequence[Unsure],
    points: Mapping[str, Array],
    answer: str,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> tuple[Array, dict[int, str]]:
    """Return one answer at many points.

    Args:
        question: The question.
        input_values: Inputs that do not vary, by name.
        inputs: The uncertain inputs.
        points: Values by input, all of shape (points,).
        answer: Name of the answer.
        workers: Processes of this machine; None: all cores if that is safe and faster.
        progress: Called with the points done and the number of points.

    Returns:
        Answers of shape (points,), NaN if a point has none, and the reasons of these points.
    """
    axes = tuple(
        Axis(
            name=parameter.name,
            unit=parameter.unit,
            meaning=parameter.description,
            values=points[parameter.name],
            broadcasts=parameter.broadcasts,
        )
        for parameter in inputs
    )

    # All inputs advance together: one point per position of their values.
    names = {parameter.name for parameter in inputs}
    fixed = {name: value for name, value in input_values.items() if name not in names}
    job = Job(question=varied(question, inputs), axes=axes, fixed=fixed, answer_names=frozenset({answer}), together=True)
    gathered = run(job, workers=workers, progress=progress)
    values = gathered.arrays.get(answer)
    if values is None or values.dtype == object:
        return np.full(job.points, np.nan), gathered.reasons
    return values, gathered.reasons
