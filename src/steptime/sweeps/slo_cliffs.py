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
    met = {end: Reach(inputs[end[0]].base, base) for end in ends}
    missed = {(at, side): inputs[at].ends[side] for at, side in ends}
    for _ in range(HALVINGS):
        middle = {end: _middle(met[end].value, missed[end]) for end in ends}
        points = {one.name: np.full(len(ends), one.base) for one in inputs}
        for row, (at, side) in enumerate(ends):
            one = inputs[at]
            middle[at, side] = float(one.checked(middle[at, side]))
            points[one.name][row] = middle[at, side]
        answers = evaluate(inputs, points)
        for end, answer, over in zip(ends, answers, is_missed(answers, base, lower_is_better=lower_is_better), strict=True):
            if over:
                missed[end] = middle[end]
            else:
                met[end] = Reach(middle[end], float(answer))
    return met


def _middle(one: float, other: float) -> float:
    return math.sqrt(one * other) if min(one, other) > 0 else (one + other) / 2
