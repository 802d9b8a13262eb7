r"""The distribution of an uncertain input: low, base and high value, the basis of the range, and how to learn the value.

**Log-normal.** For most inputs the base is the median, and low and high are the 5 % and 95 % points. Each side of the range is
half of a log-normal distribution, as everywhere in steptime. With the standard normal $z$ and $Z = 1.645$

$$ x = b \, e^{w z / Z}, \qquad w = \log(b / l) \text{ below}, \quad \log(h / b) \text{ above} $$

**Uniform.** If only the ends are known, every value between them is equally likely (JCGM 100:2008, 4.3.7). This holds for rents
between dated quotes, and for ranges that the user gives.

Sobol's indices: the share of an answer's variance that each input makes by itself (first) and with others (total).

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

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from steptime.errors import InputError, install_hint
from steptime.number_checks import Array, Number
from steptime.physics.uncertainty import Z90

# Half-width of the user's forecasts of traffic, about which nothing is known: 25 % more, or 20 % less. An assumption.
ASSUMED: Final = 0.25
# Factor within which a guess is right, as for the times of an engine that was never measured (`uncertainty.WIDE`).
GUESSED: Final = 2.0

# Pairs of independent figures of one quantity, from two sources of the same grade, as in the notes of the catalogue.
# measured: shares of bandwidth and of arithmetic that GEMMs reach on B200 and on GB200, which have the same die.
# vendor: HBM of B200, of B300 and of TPU7x [TB/s].
# reported: FP4 of B300 [PFLOP/s]; all-in power of GB200, H100 and B200 [kW], of a GB300 rack [kW] and of VR200 [W].
SEEN_TWICE: Final[Mapping[str, tuple[tuple[float, float], ...]]] = {
    "measured": ((0.724, 0.741), (0.693, 0.686)),
    "vendor": ((8.0, 7.7), (8.0, 7.75), (7.38, 7.37)),
    "reported": ((13.5, 14.0), (13.5, 13.1), (1.87, 2.10), (1.37, 1.73), (1.71, 2.17), (120.0, 136.0), (1800.0, 2300.0)),
}


def half_width(pairs: Sequence[tuple[float, float]]) -> float:
    r"""Return half of the 90 % range of a figure, as a logarithm, from pairs.

    $w = Z \sqrt{\overline{d^2} / 2}$ with the difference $d$ of the logarithms of a pair, whose variance is twice that of one
    figure. Valid for differences well below 1.

    Args:
        pairs: Independent figures of the same quantity, in one unit per pair.

    Returns:
        Half-width of the logarithm.

    >>> round(half_width([(1.0, 1.1)]), 4), half_width([(8.0, 8.0)])
    (0.1109, 0.0)
    """
    differences = [math.log(a / b) for a, b in pairs]
    return Z90 * math.sqrt(math.fsum(d * d for d in differences) / len(differences) / 2)


# Half of the 90 % range of a figure by grade, as a logarithm: measured 2 %, vendor 3 %, reported and recalled 22 %, guess a
# factor of two. Recalled figures are as good as reported ones: of eleven that were looked up since, none was wrong
# (docs/models.md).
HALF_WIDTHS: Final[Mapping[str, float]] = {
    **{grade: half_width(pairs) for grade, pairs in SEEN_TWICE.items()},
    "recalled": half_width(SEEN_TWICE["reported"]),
    "guess": math.log(GUESSED),
}

# Names of the grades in texts.
GRADE_WORDS: Final[Mapping[str, str]] = {
    "measured": "measured", "vendor": "data sheet", "reported": "reported", "recalled": "recalled", "guess": "a guess",
}  # fmt: skip


def in_words(grade: str) -> str:
    """Return the basis of the range of a figure, in words.

    Args:
        grade: Grade of the source.

    Returns:
        Text with the grade and the half-width.

    >>> in_words("vendor"), in_words("guess")
    ('data sheet, 3 %', 'a guess, a factor of 2')
    """
    width = HALF_WIDTHS[grade]
    return f"{GRADE_WORDS[grade]}, " + (
        f"{math.expm1(width):.0%}".replace("%", " %") if width < 0.5 else f"a factor of {GUESSED:g}"
    )


# Inputs of a question by name, and the function that sets one of them.
InputValues = Mapping[str, Any]
Place = Callable[[InputValues, str, Any], InputValues]


def put(input_values: InputValues, name: str, value: Any) -> InputValues:
    """Return the inputs of a question with one of them set.

    Args:
        input_values: Inputs by name.
        name: Name of the input to set.
        value: Its value in base units.

    Returns:
        A copy with the new value.
    """
    return {**input_values, name: value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsure:
    """An uncertain input with its range.

    Attributes:
        name: Name of the input.
        description: Noun phrase, such as "the rent".
        unit: Unit of low, base and high.
        low: Low end of the range.
        base: Value without uncertainty.
        high: High end of the range.
        basis: Basis of the range, in words.
        learn: How to learn the value, in words.
        even: Whether every value of the range is equally likely; else the ends are the 5 % and 95 % points.
        place: Sets a value in the inputs of a question.
        minimum: Smallest possible value.
        maximum: Largest possible value.
        is_count: Whether the value is a count.
        broadcasts: Whether the value may be an array.
    """

    name: str
    description: str
    unit: str = ""
    low: float
    base: float
    high: float
    basis: str
    learn: str = ""
    even: bool = False
    place: Place = put
    minimum: float = -math.inf
    maximum: float = math.inf
    is_count: bool = False
    broadcasts: bool = True

    def checked(self, values: Number) -> Array:
        """Return values within the possible bounds; round counts.

        Args:
            values: Values in base units, of any shape.

        Returns:
            Array of the same shape.
        """
        within = np.clip(np.asarray(values, dtype=np.float64), self.minimum, self.maximum)
        return np.maximum(np.round(within), 1.0) if self.is_count else within

    @property
    def ends(self) -> tuple[float, float]:
        """Low and high value, within bounds and rounded if the input is a count."""
        low, high = self.checked(np.array([self.low, self.high])).tolist()
        return low, high

    @property
    def deviations(self) -> float:
        """Standard deviations in half of the range: 1.645, or sqrt(3) for a uniform one."""
        return math.sqrt(3.0) if self.even else Z90

    def values(self, shares: Array) -> Array:
        """Return the quantiles of the input.

        Args:
            shares: Probabilities between 0 and 1, both excluded, of any shape.

        Returns:
            Values below which these shares of all cases lie.

        >>> rent = Unsure(name="rent", description="the rent", low=1.0, base=2.0, high=3.0, basis="quotes", even=True)
        >>> rent.values(np.array([0.25, 0.5])).tolist()
        [1.5, 2.0]
        >>> rate = Unsure(name="rate", description="a rate", low=1.0, base=2.0, high=8.0, basis="guess")
        >>> rate.values(np.array([0.05, 0.5, 0.95])).round(3).tolist()
        [1.0, 2.0, 7.999]
        """
        if self.even:
            return self.checked(self.low + shares * (self.high - self.low))
        from scipy.special import ndtri

        # Each side has its own width, so that the median stays at the base.
        z = ndtri(shares) / Z90
        below, above = math.log(self.base / self.low), math.log(self.high / self.base)
        return self.checked(self.base * np.exp(np.where(z < 0, below, above) * z))


def spread(name: str, base: float, width: float | tuple[float, float], **attributes: Any) -> Unsure:
    """Return an input whose logarithm has a symmetric or two-sided 90 % range.

    Args:
        name: Name of the input.
        base: Median, in base units.
        width: Half-width of the logarithm, or the widths below and above.
        **attributes: Other fields of `Unsure`.

    Returns:
        The uncertain input.
    """
    below, above = width if isinstance(width, tuple) else (width, width)
    return Unsure(name=name, base=base, low=base * math.exp(-below), high=base * math.exp(above), **attributes)


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
