r"""One input at a time: the change of an answer if one input takes its low or high value, and the others their base.

Let $\Delta_i = y(h_i) - y(l_i)$ be the swing of input $i$, and $k_i$ the standard deviations in half of its range (1.645, or
$\sqrt 3$ for a uniform range). The variance of the answer is approximately the sum over single inputs,

$$ \sigma_i = \frac{|\Delta_i|}{2 k_i}, \qquad \text{share}_i = \frac{\sigma_i^2}{\sum_j \sigma_j^2} $$

If all answers are above 0, as for costs, times and rates, $y$ is the logarithm of the answer: products of inputs become sums.
The result is exact if $y$ is linear in independent inputs. A swing ends at a missed limit (`slo_cliffs`): values beyond it are
another question, and no variance. For products and thresholds use Sobol's indices (`sobol`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from steptime.number_checks import Array
from steptime.sweeps.input_distribution import Unsure


def points(inputs: Sequence[Unsure]) -> dict[str, Array]:
    """Return the values of all inputs at all points of the analysis.

    Args:
        inputs: The uncertain inputs.

    Returns:
        Values by input, of shape (1 + 2 inputs,): all inputs at their base, then each at its low and its high value.

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
    """Return the logarithms of answers; the answers themselves if one is not above 0.

    Args:
        *answers: Arrays of any shape.

    Returns:
        Arrays of the same shapes.

    >>> logged(np.array([1.0, np.e]))[0].tolist(), logged(np.array([-1.0, 2.0]))[0].tolist()
    ([0.0, 1.0], [-1.0, 2.0])
    """
    if any(np.any(answer <= 0) for answer in answers):
        return answers
    return tuple(np.log(answer) for answer in answers)


def deviations(low: Array, high: Array, halves: Array) -> Array:
    """Return the standard deviation of an answer that each input makes by itself.

    Args:
        low: Answers at the low ends, of shape (inputs,).
        high: Answers at the high ends, of shape (inputs,).
        halves: Standard deviations in half of each range, of shape (inputs,).

    Returns:
        Standard deviations of shape (inputs,); NaN if an end has no answer.

    >>> deviations(np.array([1.0]), np.array([4.29]), np.array([1.645])).round(6).tolist()
    [1.0]
    """
    deviation: Array = np.abs(high - low) / 2 / halves
    return deviation


def shares(sigmas: Array) -> Array:
    """Return the share of each standard deviation in the sum of variances.

    Args:
        sigmas: Standard deviations of shape (inputs,); NaN if unknown.

    Returns:
        Shares of shape (inputs,); 0 for NaN.

    >>> shares(np.array([3.0, 4.0, np.nan])).tolist()
    [0.36, 0.64, 0.0]
    """
    squares = np.square(np.nan_to_num(sigmas))
    total = squares.sum()
    share: Array = squares / total if total > 0 else squares
    return share


def correlated(signed: Mapping[str, float], names: Sequence[str], covariance: Array) -> float:
    r"""Return the variance of correlated inputs, divided by that of independent ones.

    The ratio is $s^T R s / s^T s$ with the correlations $R$.

    Args:
        signed: Change of the answer per standard deviation of each input, with its sign.
        names: Names of the rows of `covariance`.
        covariance: Covariance of the inputs, of shape (names, names).

    Returns:
        The ratio; 1 if the inputs are independent, or have no effect.

    >>> correlated({"a": 1.0, "b": 1.0}, ["a", "b"], np.array([[1.0, -0.5], [-0.5, 1.0]]))
    0.5
    """
    s = np.array([signed.get(name, 0.0) for name in names])
    root = np.sqrt(np.diagonal(covariance))
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = np.nan_to_num(covariance / np.outer(root, root))
    independent_variance = float(s @ s)
    return float(s @ correlation @ s) / independent_variance if independent_variance > 0 else 1.0
