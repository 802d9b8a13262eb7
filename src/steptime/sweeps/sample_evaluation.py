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
        vectorised=question.vectorised and all(one.broadcasts for one in inputs),
    )


def _placed(question: Question, inputs: tuple[Unsure, ...], given: Mapping[str, Any], wanted: frozenset[str]) -> dict[str, Any]:
    length = max((np.size(given[one.name]) for one in inputs), default=1)
    parts = [slice(first, first + AT_ONCE) for first in range(0, length, AT_ONCE)]
    asked = [dict(_put(inputs, given, part)) for part in parts]
    answers = [question.ask(one, wanted) for one in asked]
    if len(answers) == 1:
        return dict(answers[0])
    sizes = [min(AT_ONCE, length - part.start) for part in parts]
    return {
        name: np.concatenate([np.broadcast_to(part[name], (size,)) for part, size in zip(answers, sizes, strict=True)])
        for name in answers[0]
    }


def _put(inputs: Sequence[Unsure], given: Mapping[str, Any], part: slice) -> Mapping[str, Any]:
    """Return what the question is asked with: the values of one part of the points in their places."""
    values = {one.name: given[one.name] for one in inputs}
    asked: Mapping[str, Any] = {name: value for name, value in given.items() if name not in values}
    for one in inputs:
        value = values[one.name]
        if isinstance(value, np.ndarray) and value.ndim:
            value = value[part]
        elif one.whole:
            value = int(value)
        asked = one.place(asked, one.name, value)
    return asked


def answers_at(
    question: Question,
    given: Mapping[str, Any],
    inputs: Sequence[Unsure],
    points: Mapping[str, Array],
    answer: str,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> tuple[Array, dict[int, str]]:
    """Return an answer at every point, NaN where there is none, and the reasons of those.

    given: what the question is asked with otherwise. points: values by input, all of one length.
    """
    axes = tuple(
        Axis(name=one.name, unit=one.unit, meaning=one.what, values=points[one.name], broadcasts=one.broadcasts)
        for one in inputs
    )
    names = {one.name for one in inputs}
    held = {name: value for name, value in given.items() if name not in names}
    job = Job(question=varied(question, inputs), axes=axes, fixed=held, wanted=frozenset({answer}), together=True)
    gathered = run(job, workers=workers, progress=progress)
    found = gathered.arrays.get(answer)
    if found is None or found.dtype == object:
        return np.full(job.points, np.nan), gathered.reasons
    return found, gathered.reasons
