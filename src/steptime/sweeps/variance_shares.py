r"""Variance shares: how much each uncertain input contributes to the variance of an answer.

Inputs vary one at a time (tornado), or all together (Sobol).

**One at a time.** Let $\Delta_i = y(h_i) - y(l_i)$ be the swing of input $i$, while the others stay at their base. $k_i$ is the
number of standard deviations in half of its range (1.645, or $\sqrt 3$ for a uniform range). The variance of the answer is
approximately the sum over single inputs,

$$ \sigma_i = \frac{|\Delta_i|}{2 k_i}, \qquad \text{share}_i = \frac{\sigma_i^2}{\sum_j \sigma_j^2}. $$

If all answers are above 0, as for costs, times and rates, $y$ is the logarithm of the answer: products of inputs become sums.
The result is exact if $y$ is linear in independent inputs. A swing ends at a missed limit: values beyond it are another
question, and no variance.

**All together.** For independent inputs $X_i$ and an answer $Y$, Sobol's first and total indices are

$$ S_i = \frac{V[E(Y | X_i)]}{V(Y)}, \qquad T_i = 1 - \frac{V[E(Y | X_{\sim i})]}{V(Y)}. $$

$S_i$ is the share of the variance that disappears on average if $X_i$ is known: the value of measuring it. $T_i$ is the share
that remains if all other inputs are known. $\sum S_i \le 1$, and $S_i \le T_i$; the difference comes from interactions.

**Sampling** (Saltelli et al. 2010, doi:10.1016/j.cpc.2009.09.018): two matrices $A$, $B$ of $N$ rows come from one scrambled
Sobol sequence in $2d$ dimensions. $A_B^{(i)}$ is $A$ with the column $i$ of $B$. This takes $N (d + 2)$ answers.

**Estimators**: first, Saltelli 2010, table 2 (b); total, Jansen 1999 (doi:10.1016/S0010-4655(98)00154-4), there (f):

$$ S_i = \frac{1}{N V} \sum_j f(B)_j \left( f(A_B^{(i)})_j - f(A)_j \right), \qquad
   T_i = \frac{1}{2 N V} \sum_j \left( f(A)_j - f(A_B^{(i)})_j \right)^2. $$

Their confidence intervals come from a bootstrap over rows (Archer, Saltelli and Sobol 1997).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from steptime.errors import InputError, install_hint
from steptime.number_checks import Array
from steptime.sweeps.parameter_ranges import Unsure


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


# Number of bootstrap samples of the rows; the 5 % points are then within about 10 % of the width.
RESAMPLED: Final = 200
# Quantiles of the bootstrap: a 90 % interval.
ENDS: Final = (0.05, 0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class Indices:
    """First and total index of each input, with their 90 % ranges.

    Indices have the shape (inputs,), ranges the shape (2, inputs).
    """

    first: Array
    first_range: Array
    total: Array
    total_range: Array
    variance: float


def rows(samples: int, inputs: int, seed: int) -> Array:
    """Return samples of all inputs as probabilities between 0 and 1, both excluded.

    Args:
        samples: Number of rows of a matrix, a power of two.
        inputs: Number of inputs.
        seed: Random seed of the scrambling.

    Returns:
        Array of shape (inputs + 2, samples, inputs): A, B, then A with each column of B.

    Raises:
        InputError: If scipy is not installed.

    >>> matrices = rows(8, 3, 1)
    >>> matrices.shape
    (5, 8, 3)
    >>> bool(np.all(matrices[2, :, 0] == matrices[1, :, 0])), bool(np.all(matrices[2, :, 1:] == matrices[0, :, 1:]))
    (True, True)
    """
    try:
        from scipy.stats.qmc import Sobol
    except ImportError:
        raise InputError(
            f"sobol: needs scipy, which is not installed: {install_hint('calibrate')}; or leave --sobol out"
        ) from None
    sequence = Sobol(2 * inputs, scramble=True, seed=np.random.default_rng(seed)).random(samples)
    # 0 and 1 have infinite quantiles in a normal distribution.
    a, b = np.clip(sequence, 2.0**-40, 1 - 2.0**-40).reshape(samples, 2, inputs).transpose(1, 0, 2)
    matrices: Array = np.concatenate([a[None], b[None], np.repeat(a[None], inputs, axis=0)])
    for i in range(inputs):
        matrices[2 + i, :, i] = b[:, i]
    return matrices


def _first_and_total(a: Array, b: Array, ab: Array) -> tuple[Array, Array]:
    """Return the first and the total indices of shape (inputs,).

    `a` and `b` are the answers of A and B less their mean, of shape (samples,); `ab` those of A with a column of B, of shape
    (inputs, samples).
    """
    variance = float(np.var(np.concatenate([a, b])))
    if not variance > 0:
        return np.zeros(len(ab)), np.zeros(len(ab))
    return np.mean(b * (ab - a), axis=-1) / variance, np.mean(np.square(a - ab), axis=-1) / 2 / variance


def indices(answers: Array, seed: int) -> Indices:
    """Return the indices of answers, with their confidence.

    Args:
        answers: Answers at `rows`, of shape (inputs + 2, samples).
        seed: Random seed of the bootstrap.

    Returns:
        First and total indices with 90 % ranges.

    >>> a, b = np.array([-1.0, 1.0, -1.0, 1.0]), np.array([-1.0, -1.0, 1.0, 1.0])
    >>> by_first = indices(np.stack([a, b, b, a]), seed=0)
    >>> by_first.first.tolist(), by_first.total.tolist()
    ([1.0, 0.0], [1.0, 0.0])
    """
    # Answers less their mean reduce the rounding error of the first index.
    mean = answers[:2].mean()
    a, b, ab = answers[0] - mean, answers[1] - mean, answers[2:] - mean
    first, total = _first_and_total(a, b, ab)
    # The bootstrap draws rows, so that the answers of one row stay together.
    draws = np.random.default_rng(seed).integers(0, len(a), (RESAMPLED, len(a)))
    bootstrap_indices = np.array([_first_and_total(a[draw], b[draw], ab[:, draw]) for draw in draws])
    ends = np.quantile(bootstrap_indices, ENDS, axis=0)
    return Indices(
        first=first, first_range=ends[:, 0], total=total, total_range=ends[:, 1], variance=float(np.var(answers[:2]))
    )
