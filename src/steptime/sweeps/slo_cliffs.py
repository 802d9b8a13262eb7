r"""Cliffs: the value of an input at which a limit starts to be missed.

Near a limit the cost of a plan has a cliff: the batch falls to a few sequences per chip, and then no plan meets the limit. An
end of a range counts as missed if it has no answer, or an answer worse than `BEYOND` times the base answer. A search then
halves the interval from base to end `HALVINGS` times, in logarithms if both are above 0. It returns the last value that is
not missed. Valid if the answer worsens monotonically on the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from steptime.number_checks import Array
from steptime.sweeps.input_distribution import Unsure

# Factor on the base cost from which a limit counts as missed: nobody buys such a plan. An assumption.
BEYOND: Final = 3.0
# Number of halvings of the interval.
HALVINGS: Final = 6

Evaluate = Callable[[Sequence[Unsure], Mapping[str, Array]], Array]


@dataclass(frozen=True, slots=True)
class Reach:
    """The last value that meets the limits on the way to an end, with its answer."""

    value: float
    answer: float


def is_missed(answers: Array, base: float, *, lower_is_better: bool) -> Array:
    """Return whether answers count as missed limits.

    Args:
        answers: Answers of any shape; NaN without an answer.
        base: Answer with every input at its base.
        lower_is_better: Whether a lower answer is better.

    Returns:
        Truth values of the same shape.

    >>> is_missed(np.array([0.5, 2.9, 3.1, np.nan]), 1.0, lower_is_better=True).tolist()
    [False, False, True, True]
    """
    worse = answers > base * BEYOND if lower_is_better else answers < base / BEYOND
    missed: Array = ~np.isfinite(answers) | (worse if base > 0 else False)
    return missed


def reaches(
    inputs: Sequence[Unsure], ends: Sequence[tuple[int, int]], base: float, evaluate: Evaluate, *, lower_is_better: bool
) -> dict[tuple[int, int], Reach]:
    """Return the last value that meets the limits, for each missed end.

    Args:
        inputs: The uncertain inputs.
        ends: Missed ends: position of the input, and 0 for its low or 1 for its high end.
        base: Answer with every input at its base.
        evaluate: Returns answers at values of all inputs.
        lower_is_better: Whether a lower answer is better.

    Returns:
        The value and its answer by end; the base if no other value meets the limits.
    """
    reach_by_end = {end: Reach(inputs[end[0]].base, base) for end in ends}
    missed = {(index, side): inputs[index].ends[side] for index, side in ends}
    for _ in range(HALVINGS):
        middle = {end: _middle(reach_by_end[end].value, missed[end]) for end in ends}

        # All ends are evaluated together: one point per end, with the other inputs at their base.
        points = {parameter.name: np.full(len(ends), parameter.base) for parameter in inputs}
        for row, (index, side) in enumerate(ends):
            parameter = inputs[index]
            middle[index, side] = float(parameter.checked(middle[index, side]))
            points[parameter.name][row] = middle[index, side]
        answers = evaluate(inputs, points)
        for end, answer, over in zip(ends, answers, is_missed(answers, base, lower_is_better=lower_is_better), strict=True):
            # The cliff lies before a missed middle, and behind a met one.
            if over:
                missed[end] = middle[end]
            else:
                reach_by_end[end] = Reach(middle[end], float(answer))
    return reach_by_end


def _middle(met_value: float, missed_value: float) -> float:
    return math.sqrt(met_value * missed_value) if min(met_value, missed_value) > 0 else (met_value + missed_value) / 2
