"""A question asked at many values of its unsure inputs: arrays at once where it takes them, else points, in processes."""

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

AT_ONCE: Final = 2**15  # points of arrays that stay in a core's cache, and are evaluated without threads


def varied(question: Question, inputs: Sequence[Unsure]) -> Question:
    """Return the question that is asked with values of unsure inputs by their names, wherever they have their place."""
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
    """Return what the question is asked with: the values of one part of the points in their places."""
    values = {parameter.name: input_values[parameter.name] for parameter in inputs}
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
    """Return an answer at every point, NaN where there is none, and the reasons of those.

    input_values: what the question is asked with otherwise. points: values by input, all of one length.
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
    names = {parameter.name for parameter in inputs}
    fixed = {name: value for name, value in input_values.items() if name not in names}
    job = Job(question=varied(question, inputs), axes=axes, fixed=fixed, answer_names=frozenset({answer}), together=True)
    gathered = run(job, workers=workers, progress=progress)
    values = gathered.arrays.get(answer)
    if values is None or values.dtype == object:
        return np.full(job.points, np.nan), gathered.reasons
    return values, gathered.reasons
