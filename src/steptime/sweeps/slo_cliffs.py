r"""Cliffs: where an input on its way to an end of its range makes a limit be missed.

Near a limit the cost of a plan has a cliff: the batch falls to a few sequences a chip, and then no plan meets the limit. An
end counts as missed where there is no answer, or where the answer is worse than `BEYOND` times that at the base. The last value
that is not missed is found by halving the interval from base to end `HALVINGS` times, in logarithms where both are above 0.
Valid where the answer worsens monotonically on the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from steptime.number_checks import Array
from steptime.sweeps.input_distribution import Unsure

BEYOND: Final = 3.0
"""Times the cost as asked above which a limit counts as missed: nobody buys such a plan. An assumption."""
HALVINGS: Final = 6

Evaluate = Callable[[Sequence[Unsure], Mapping[str, Array]], Array]


@dataclass(frozen=True, slots=True)
class Reach:
    """The last value of an input that meets the limits on the way to an end, with its answer."""

    value: float
    answer: float


def is_missed(answers: Array, base: float, *, lower_is_better: bool) -> Array:
    """Return where answers count as missed limits.

    >>> is_missed(np.array([0.5, 2.9, 3.1, np.nan]), 1.0, lower_is_better=True).tolist()
    [False, False, True, True]
    """
    worse = answers > base * BEYOND if lower_is_better else answers < base / BEYOND
    missed: Array = ~np.isfinite(answers) | (worse if base > 0 else False)
    return missed


def reaches(
    inputs: Sequence[Unsure], ends: Sequence[tuple[int, int]], base: float, evaluate: Evaluate, *, lower_is_better: bool
) -> dict[tuple[int, int], Reach]:
    """Return the last value that meets the limits, of each missed end.

    Args:
        inputs: The unsure inputs.
        ends: Missed ends: position of the input, and 0 for its low or 1 for its high end.
        base: Answer with every input at its base.
        evaluate: Answers at values of all inputs.
        lower_is_better: Whether less of the answer is better.

    Returns:
        The value and its answer by end; the base where no other value meets the limits.
    """
    reach_by_end = {end: Reach(inputs[end[0]].base, base) for end in ends}
    missed = {(index, side): inputs[index].ends[side] for index, side in ends}
    for _ in range(HALVINGS):
        middle = {end: _middle(reach_by_end[end].value, missed[end]) for end in ends}
        points = {parameter.name: np.full(len(ends), parameter.base) for parameter in inputs}
        for row, (index, side) in enumerate(ends):
            parameter = inputs[index]
            middle[index, side] = float(parameter.checked(middle[index, side]))
            points[parameter.name][row] = middle[index, side]
        answers = evaluate(inputs, points)
        for end, answer, over in zip(ends, answers, is_missed(answers, base, lower_is_better=lower_is_better), strict=True):
            if over:
                missed[end] = middle[end]
            else:
                reach_by_end[end] = Reach(middle[end], float(answer))
    return reach_by_end


def _middle(met_value: float, missed_value: float) -> float:
    return math.sqrt(met_value * missed_value) if min(met_value, missed_value) > 0 else (met_value + missed_value) / 2
