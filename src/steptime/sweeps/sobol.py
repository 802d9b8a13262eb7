r"""Sobol's indices: the share of an answer's variance that each input makes by itself (first) and with others (total).

For independent inputs $X_i$ and an answer $Y$,

$$ S_i = \frac{V[E(Y | X_i)]}{V(Y)}, \qquad T_i = 1 - \frac{V[E(Y | X_{\sim i})]}{V(Y)} $$

$S_i$ is the share of the variance that disappears on average if $X_i$ is known: the value of measuring it. $T_i$ is the share
that remains if all other inputs are known. $\sum S_i \le 1$, and $S_i \le T_i$; the difference comes from interactions.

**Sampling** (Saltelli et al. 2010, doi:10.1016/j.cpc.2009.09.018): two matrices $A$, $B$ of $N$ rows come from one scrambled
Sobol sequence in $2d$ dimensions. $A_B^{(i)}$ is $A$ with the column $i$ of $B$. This takes $N (d + 2)$ answers.

**Estimators**: first, Saltelli 2010, table 2 (b); total, Jansen 1999 (doi:10.1016/S0010-4655(98)00154-4), there (f):

$$ S_i = \frac{1}{N V} \sum_j f(B)_j \left( f(A_B^{(i)})_j - f(A)_j \right), \qquad
   T_i = \frac{1}{2 N V} \sum_j \left( f(A)_j - f(A_B^{(i)})_j \right)^2 $$

Their confidence intervals come from a bootstrap over rows (Archer, Saltelli and Sobol 1997).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from steptime.errors import InputError, install_hint
from steptime.number_checks import Array

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


def first_index(a: Array, b: Array, ab: Array, variance: float) -> Array:
    """Return the first indices.

    Args:
        a: Answers of A less the mean, of shape (samples,).
        b: Answers of B less the mean, of shape (samples,).
        ab: Answers of A with a column of B less the mean, of shape (inputs, samples).
        variance: Variance of the answers of A and B.

    Returns:
        Indices of shape (inputs,).

    >>> a, b = np.array([-1.0, 1.0, -1.0, 1.0]), np.array([-1.0, -1.0, 1.0, 1.0])
    >>> first_index(a, b, np.stack([b, a]), 1.0).tolist()
    [1.0, 0.0]
    """
    first_indices: Array = np.mean(b * (ab - a), axis=-1) / variance
    return first_indices


def total_index(a: Array, ab: Array, variance: float) -> Array:
    """Return the total indices.

    Args:
        a: Answers of A less the mean, of shape (samples,).
        ab: Answers of A with a column of B less the mean, of shape (inputs, samples).
        variance: Variance of the answers of A and B.

    Returns:
        Indices of shape (inputs,).

    >>> a, b = np.array([-1.0, 1.0, -1.0, 1.0]), np.array([-1.0, -1.0, 1.0, 1.0])
    >>> total_index(a, np.stack([b, a]), 1.0).tolist()
    [1.0, 0.0]
    """
    total_indices: Array = np.mean(np.square(a - ab), axis=-1) / 2 / variance
    return total_indices


def _both(a: Array, b: Array, ab: Array) -> tuple[Array, Array]:
    variance = float(np.var(np.concatenate([a, b])))
    if not variance > 0:
        nothing = np.zeros(len(ab))
        return nothing, nothing
    return first_index(a, b, ab, variance), total_index(a, ab, variance)


def indices(answers: Array, seed: int) -> Indices:
    """Return the indices of answers, with their confidence.

    Args:
        answers: Answers at `rows`, of shape (inputs + 2, samples).
        seed: Random seed of the bootstrap.

    Returns:
        First and total indices with 90 % ranges.
    """
    # Answers less their mean reduce the rounding error of the first index.
    mean = answers[:2].mean()
    a, b, ab = answers[0] - mean, answers[1] - mean, answers[2:] - mean
    first, total = _both(a, b, ab)
    # The bootstrap draws rows, so that the answers of one row stay together.
    draws = np.random.default_rng(seed).integers(0, len(a), (RESAMPLED, len(a)))
    bootstrap_indices = np.array([_both(a[draw], b[draw], ab[:, draw]) for draw in draws])
    ends = np.quantile(bootstrap_indices, ENDS, axis=0)
    return Indices(
        first=first,
        first_range=ends[:, 0],
        total=total,
        total_range=ends[:, 1],
        variance=float(np.var(answers[:2])),
    )
