r"""One input at a time: how far an answer goes where one input is at its low or high value and the others at their base.

With the swing $\Delta_i = y(h_i) - y(l_i)$ of input $i$ and the standard deviations $k_i$ that half of its range has (1.645, or
$\sqrt 3$ for an even range), the answer's variance is about the sum of those that single inputs make,

$$ \sigma_i = \frac{|\Delta_i|}{2 k_i}, \qquad \text{share}_i = \frac{\sigma_i^2}{\sum_j \sigma_j^2} $$

with the answer's logarithm for $y$ where all answers are above 0, as costs, times and rates are: products of inputs are then
sums. Exact where $y$ is linear in independent inputs. A swing ends where a limit is missed (`cliffs`): what lies beyond is no
variance, but another question. Products and thresholds are what Sobol's indices are for (`sobol`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from steptime.number_checks import Array
from steptime.sweeps.input_distribution import Unsure


def points(inputs: Sequence[Unsure]) -> dict[str, Array]:
    """Return the values to ask with, by input: all at their base first, then each at its low and at its high value.

    >>> parameter = Unsure(name="a", description="a", low=1.0, base=2.0, high=3.0, basis="")
    >>> points([parameter])["a"].tolist()
    [2.0, 1.0, 3.0]
    """
    columns = {}
    for position, parameter in enumerate(inputs):
        column = np.full(1 + 2 * len(inputs), parameter.base)
        column[1 + 2 * position : 3 + 2 * position] = parameter.ends
        columns[parameter.name] = column
    return columns


def logged(*answers: Array) -> tuple[Array, ...]:
    """Return the logarithms of answers, or the answers themselves where one is not above 0.

    >>> logged(np.array([1.0, np.e]))[0].tolist(), logged(np.array([-1.0, 2.0]))[0].tolist()
    ([0.0, 1.0], [-1.0, 2.0])
    """
    if any(np.any(answer <= 0) for answer in answers):
        return answers
    return tuple(np.log(answer) for answer in answers)


def deviations(low: Array, high: Array, halves: Array) -> Array:
    """Standard deviation of an answer that each input makes alone: low, high: answers; halves: deviations in half a range.

    NaN where an end has no answer.

    >>> deviations(np.array([1.0]), np.array([4.29]), np.array([1.645])).round(6).tolist()
    [1.0]
    """
    deviation: Array = np.abs(high - low) / 2 / halves
    return deviation


def shares(sigmas: Array) -> Array:
    """Share of the sum of variances that each standard deviation has; what is not known has none.

    >>> shares(np.array([3.0, 4.0, np.nan])).tolist()
    [0.36, 0.64, 0.0]
    """
    squares = np.square(np.nan_to_num(sigmas))
    total = squares.sum()
    share: Array = squares / total if total > 0 else squares
    return share


def correlated(signed: Mapping[str, float], names: Sequence[str], covariance: Array) -> float:
    r"""Variance that correlated inputs make together over the sum of what each makes by itself: $s^T R s / s^T s$.

    signed: the answer's change with each input by its own standard deviation, with its sign; covariance: of the inputs `names`.
    1 where they are independent, or make no difference.

    >>> correlated({"a": 1.0, "b": 1.0}, ["a", "b"], np.array([[1.0, -0.5], [-0.5, 1.0]]))
    0.5
    """
    s = np.array([signed.get(name, 0.0) for name in names])
    root = np.sqrt(np.diagonal(covariance))
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = np.nan_to_num(covariance / np.outer(root, root))
    independent_variance = float(s @ s)
    return float(s @ correlation @ s) / independent_variance if independent_variance > 0 else 1.0
