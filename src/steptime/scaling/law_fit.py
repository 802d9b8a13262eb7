"""Fit of an additive scaling law to measured losses, with bootstrap errors.

The method is that of Hoffmann et al. (arXiv 2203.15556, section 3.3) and Besiroglu et al. (arXiv 2404.10102). It minimizes
the Huber loss of the difference of logarithms by L-BFGS from a grid of starts. Standard errors come from resampled points.
It needs scipy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, ClassVar, Final

import numpy as np

from steptime.errors import InputError, RangeError, install_hint
from steptime.number_checks import Array, Number, positive
from steptime.result_base import Result, unit
from steptime.units import in_digits

# Threshold of the Huber loss between its quadratic and its linear part (Hoffmann et al.).
DELTA: Final = 1e-3
# Constants, in the order of the fitted values log A, log B, log E, alpha, beta.
NAMES: Final = ("A", "B", "E", "alpha", "beta")
GRID: Final = ((0, 5, 10, 15, 20, 25), (0, 5, 10, 15, 20, 25), (-1, -0.5, 0, 0.5, 1), (0.25, 0.5, 1.0), (0.25, 0.5, 1.0))
"""Starts of log A, log B, log E, alpha and beta, similar to Hoffmann et al. (their exponents go from 0 to 2)."""
# Starts of the grid with the smallest Huber loss, from which the fit runs.
BEST_STARTS: Final = 24
# Smallest number of points, one more than constants.
FEWEST: Final = 6
# Ends of a 90 % interval.
QUANTILES: Final = (0.05, 0.95)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Refit(Result):
    """Constants fitted to points, with bootstrap errors."""

    SCHEMA: ClassVar[str] = "steptime.refit/2"

    constants: Mapping[str, float] = field(metadata=unit("", "A, B, E, alpha and beta of L = E + A / N^alpha + B / D^beta"))
    errors: Mapping[str, float] = field(metadata=unit("", "standard errors of the constants, by bootstrap"))
    low: Mapping[str, float] = field(metadata=unit("", "lower ends of the 90 % intervals"))
    high: Mapping[str, float] = field(metadata=unit("", "upper ends of the 90 % intervals"))
    huber: float = field(metadata=unit("", "Huber loss at the minimum, summed over the points"))
    points: int = field(metadata=unit("", "fitted points"))
    bootstraps: int = field(metadata=unit("", "bootstrap resamples"))
    deviations: tuple[float, ...] = field(metadata=unit("", "standard errors of log A, log B, log E, alpha and beta"))
    correlations: tuple[tuple[float, ...], ...] = field(
        metadata=unit("", "correlations of log A, log B, log E, alpha and beta over the resamples", kind="list of lists")
    )

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the number of points, and the constants with their errors.

        Returns:
            Title, and lines by constant.
        """
        title = f"Refit: {self.points} points, {self.bootstraps} resamples"
        return title, {
            name: in_digits(value, 4) + (f" ± {in_digits(self.errors[name], 2)}" if self.bootstraps else "")
            for name, value in self.constants.items()
        }


def refit(
    params: Array,
    tokens: Array,
    losses: Array,
    *,
    bootstraps: int = 200,
    seed: int = 0,
    start: Mapping[str, float] | None = None,
) -> Refit:
    """Return the additive law that fits measured runs best.

    Args:
        params: Parameters, one value per run.
        tokens: Training tokens, one value per run.
        losses: Losses [nats per token], one value per run.
        bootstraps: Number of resamples of the points, with replacement.
        seed: Random seed of the resamples.
        start: Constants near the minimum, instead of the grid of starts.

    Returns:
        Constants with standard errors and 90 % intervals.

    Raises:
        RangeError: If the arrays differ in length or have too few runs.
        InputError: If scipy is not installed.
    """
    observations = [np.asarray(positive(name, np.asarray(values, dtype=float))) for name, values in
             (("parameters", params), ("tokens", tokens), ("losses", losses))]  # fmt: skip
    sizes = {values.size for values in observations}
    if len(sizes) > 1 or observations[0].ndim != 1 or observations[0].size < FEWEST:
        raise RangeError(
            f"params, tokens, losses: a fit needs the same {FEWEST} runs or more, one value per run, "
            f"got {', '.join(str(values.shape) for values in observations)}"
        )
    logs = np.log(np.stack(observations))
    middle = logs.mean(axis=1)
    # Centered logarithms decouple each scale from its exponent: L-BFGS takes a tenth of the steps.
    logs[:2] -= middle[:2, None]
    starts = _starts(logs, middle) if start is None else iter([_shifted(_of_constants(start), middle)])
    fitted, least = _least(logs, starts)
    bootstrap_fits = list(_resampled(logs, fitted, bootstraps, np.random.default_rng(seed)))

    # Shift the constants back to the original parameters and tokens.
    estimate = _shifted(fitted, -middle)
    bootstrap_estimates = _shifted(np.array(bootstrap_fits).reshape(bootstraps, len(NAMES)).T, -middle).T
    every = _constants(bootstrap_estimates.T)
    ends = {name: np.quantile(values, QUANTILES) if bootstraps else np.full(2, np.nan) for name, values in every.items()}
    return Refit(
        constants={name: float(value) for name, value in _constants(estimate).items()},
        errors={name: float(np.std(values, ddof=1)) if bootstraps > 1 else np.nan for name, values in every.items()},
        low={name: float(pair[0]) for name, pair in ends.items()},
        high={name: float(pair[1]) for name, pair in ends.items()},
        huber=least,
        points=observations[0].size,
        bootstraps=bootstraps,
        deviations=tuple(np.std(bootstrap_estimates, axis=0, ddof=1).tolist()) if bootstraps > 1 else (),
        correlations=tuple(map(tuple, np.corrcoef(bootstrap_estimates.T).tolist())) if bootstraps > len(NAMES) else (),
    )


def without_highest(losses: Array, count: int = 5) -> Array:
    """Return a mask that leaves out the points of highest loss.

    Besiroglu et al. leave out five.

    Args:
        losses: Losses of the points.
        count: Points to leave out.

    Returns:
        True for each point that stays.

    >>> without_highest(np.array([3.0, 9.0, 2.0]), 1).tolist()
    [True, False, True]
    """
    mask = np.ones(len(losses), dtype=bool)
    mask[np.argsort(losses)[len(losses) - count :]] = False
    return mask


def huber(differences: Number, delta: Number = DELTA) -> Number:
    r"""Return the Huber loss, which limits the pull of outliers.

    It is $x^2/2$ where $|x| \le \delta$, and $\delta (|x| - \delta/2)$ beyond.

    Args:
        differences: Differences $x$.
        delta: Threshold $\delta$.

    Returns:
        Loss, with the shape of `differences`.

    >>> float(huber(0.5, 1.0)), float(huber(-3.0, 1.0))
    (0.125, 2.5)
    """
    size = np.abs(differences)
    return np.where(size <= delta, size**2 / 2, delta * (size - delta / 2))


def _constants(fitted: Array) -> dict[str, Array]:
    return dict(zip(NAMES, (*np.exp(fitted[:3]), *fitted[3:]), strict=True))


def _of_constants(constants: Mapping[str, float]) -> Array:
    return np.array([*np.log([constants[name] for name in NAMES[:3]]), *(constants[name] for name in NAMES[3:])])


def _value_and_slope(fitted: Array, logs: Array) -> tuple[float, Array]:
    """Return the summed Huber loss over points and its gradient."""
    a, b, e, alpha, beta = fitted
    params, tokens, losses = logs
    terms = np.stack([a - alpha * params, b - beta * tokens, np.full_like(params, e)])
    top = terms.max(axis=0)
    parts = np.exp(terms - top)
    total = parts.sum(axis=0)
    # Log-sum-exp of the three terms, without overflow.
    difference = top + np.log(total) - losses
    pull = np.clip(difference, -DELTA, DELTA) * (parts / total)
    slope = np.array([pull[0].sum(), pull[1].sum(), pull[2].sum(), -(pull[0] @ params), -(pull[1] @ tokens)])
    return float(np.sum(huber(difference))), slope


def _shifted(fitted: Array, shift: Array) -> Array:
    """Return the constants for logarithms that are smaller by `shift`."""
    a, b, e, alpha, beta = fitted
    return np.stack([a - alpha * shift[0], b - beta * shift[1], e, alpha, beta])


def _starts(logs: Array, middle: Array) -> Iterator[Array]:
    """Yield the best starts of the grid."""
    grid = _shifted(np.array(list(product(*GRID)), dtype=float).T, middle).T
    values = np.array([_value_and_slope(start, logs)[0] for start in grid])
    yield from grid[np.argsort(values)[:BEST_STARTS]]


def _least(logs: Array, starts: Iterator[Array]) -> tuple[Array, float]:
    """Return the lowest minimum over all starts, and its value."""
    minima = [_minimise(logs, start) for start in starts]
    best = min(minima, key=lambda minimum: minimum.fun)
    return np.asarray(best.x), float(best.fun)


def _minimise(logs: Array, start: Array) -> Any:
    try:
        from scipy.optimize import minimize
    except ImportError:
        raise InputError(f"a fit needs scipy: {install_hint('calibrate')}") from None
    options = {"maxiter": 5000, "maxfun": 20_000, "ftol": 1e-14, "gtol": 1e-10, "maxcor": 20}
    return minimize(_value_and_slope, start, args=(logs,), jac=True, method="L-BFGS-B", options=options)


def _resampled(logs: Array, fitted: Array, count: int, random: np.random.Generator) -> Iterator[Array]:
    """Yield the fits to resampled points, each started from the fit to all points."""
    points = logs.shape[1]
    for _ in range(count):
        sample = logs[:, random.integers(0, points, points)]
        yield _minimise(sample, fitted).x
