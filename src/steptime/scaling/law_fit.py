"""Fits a law of the additive form to losses that were measured, with errors from bootstraps.

As Hoffmann et al. (arXiv 2203.15556, section 3.3) and Besiroglu et al. (arXiv 2404.10102) do: the Huber loss of the difference
of logarithms, minimised by L-BFGS from a grid of starts, and standard errors from resampled points. Needs scipy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, ClassVar, Final

import numpy as np

from steptime.errors import InputError, RangeError
from steptime.number_checks import Array, Number, positive
from steptime.result_base import Result, unit
from steptime.units import in_digits

DELTA: Final = 1e-3  # of the Huber loss, from which on a difference counts by its size and not its square (Hoffmann et al.)
NAMES: Final = ("A", "B", "E", "alpha", "beta")  # of the constants, in the order of what is fitted: log A, log B, log E, ...
GRID: Final = ((0, 5, 10, 15, 20, 25), (0, 5, 10, 15, 20, 25), (-1, -0.5, 0, 0.5, 1), (0.25, 0.5, 1.0), (0.25, 0.5, 1.0))
"""Starts of log A, log B, log E, alpha and beta, about as Hoffmann et al. have them (their exponents go from 0 to 2)."""
BEST_STARTS: Final = 24  # of the grid, by their Huber loss, that are followed to their minimum
FEWEST: Final = 6  # points, one more than there are constants
QUANTILES: Final = (0.05, 0.95)  # of a 90 % interval


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Refit(Result):
    """Constants fitted to points, with what bootstraps tell of their errors."""

    SCHEMA: ClassVar[str] = "steptime.refit/2"

    constants: Mapping[str, float] = field(metadata=unit("", "A, B, E, alpha and beta of L = E + A / N^alpha + B / D^beta"))
    errors: Mapping[str, float] = field(metadata=unit("", "standard errors of the constants, by bootstrap"))
    low: Mapping[str, float] = field(metadata=unit("", "the lower ends of their 90 % intervals"))
    high: Mapping[str, float] = field(metadata=unit("", "the upper ends of their 90 % intervals"))
    huber: float = field(metadata=unit("", "the Huber loss that is left, summed over the points"))
    points: int = field(metadata=unit("", "points that were fitted"))
    bootstraps: int = field(metadata=unit("", "resamples behind the errors"))
    deviations: tuple[float, ...] = field(metadata=unit("", "standard errors of log A, log B, log E, alpha and beta"))
    correlations: tuple[tuple[float, ...], ...] = field(
        metadata=unit("", "of log A, log B, log E, alpha and beta over the resamples", kind="list of lists")
    )

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the constants with their errors."""
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
    """Return the additive law of some runs: parameters, tokens and losses, one a run.

    bootstraps: how often the points are drawn anew with repetition. start: constants near the minimum, in place of the grid.
    """
    observations = [np.asarray(positive(name, np.asarray(values, dtype=float))) for name, values in
             (("parameters", params), ("tokens", tokens), ("losses", losses))]  # fmt: skip
    sizes = {values.size for values in observations}
    if len(sizes) > 1 or observations[0].ndim != 1 or observations[0].size < FEWEST:
        raise RangeError(f"a fit needs parameters, tokens and losses of the same {FEWEST} runs or more, one a run")
    logs = np.log(np.stack(observations))
    middle = logs.mean(axis=1)
    logs[:2] -= middle[:2, None]  # so that a term and its exponent are fitted apart: L-BFGS takes a tenth of the steps
    starts = _starts(logs, middle) if start is None else iter([_shifted(_of_constants(start), middle)])
    fitted, least = _least(logs, starts)
    bootstrap_fits = list(_resampled(logs, fitted, bootstraps, np.random.default_rng(seed)))
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
    """Return which points stay when the `count` of highest loss are left out, as Besiroglu et al. leave out five.

    >>> without_highest(np.array([3.0, 9.0, 2.0]), 1).tolist()
    [True, False, True]
    """
    mask = np.ones(len(losses), dtype=bool)
    mask[np.argsort(losses)[len(losses) - count :]] = False
    return mask


def huber(differences: Number, delta: Number = DELTA) -> Number:
    r"""Huber's loss: $x^2/2$ where $|x| \le \delta$, $\delta (|x| - \delta/2)$ beyond, so that outliers pull no harder.

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
    """Return the summed Huber loss over points and its gradient by log A, log B, log E, alpha and beta."""
    a, b, e, alpha, beta = fitted
    params, tokens, losses = logs
    terms = np.stack([a - alpha * params, b - beta * tokens, np.full_like(params, e)])
    top = terms.max(axis=0)
    parts = np.exp(terms - top)
    total = parts.sum(axis=0)
    difference = top + np.log(total) - losses
    pull = np.clip(difference, -DELTA, DELTA) * (parts / total)
    slope = np.array([pull[0].sum(), pull[1].sum(), pull[2].sum(), -(pull[0] @ params), -(pull[1] @ tokens)])
    return float(np.sum(huber(difference))), slope


def _shifted(fitted: Array, shift: Array) -> Array:
    """Return constants for logarithms of parameters and tokens that are smaller by `shift`."""
    a, b, e, alpha, beta = fitted
    return np.stack([a - alpha * shift[0], b - beta * shift[1], e, alpha, beta])


def _starts(logs: Array, middle: Array) -> Iterator[Array]:
    """Yield the best starts of the grid."""
    grid = _shifted(np.array(list(product(*GRID)), dtype=float).T, middle).T
    values = np.array([_value_and_slope(start, logs)[0] for start in grid])
    yield from grid[np.argsort(values)[:BEST_STARTS]]


def _least(logs: Array, starts: Iterator[Array]) -> tuple[Array, float]:
    """Return the lowest of the minima that the starts lead to, and its value."""
    minima = [_minimise(logs, start) for start in starts]
    best = min(minima, key=lambda minimum: minimum.fun)
    return np.asarray(best.x), float(best.fun)


def _minimise(logs: Array, start: Array) -> Any:
    try:
        from scipy.optimize import minimize
    except ImportError:
        raise InputError("a fit needs scipy: pip install 'steptime[calibrate]'") from None
    options = {"maxiter": 5000, "maxfun": 20_000, "ftol": 1e-14, "gtol": 1e-10, "maxcor": 20}
    return minimize(_value_and_slope, start, args=(logs,), jac=True, method="L-BFGS-B", options=options)


def _resampled(logs: Array, fitted: Array, count: int, random: np.random.Generator) -> Iterator[Array]:
    """Yield the fits to points drawn anew, each from the fit to all of them."""
    points = logs.shape[1]
    for _ in range(count):
        sample = logs[:, random.integers(0, points, points)]
        yield _minimise(sample, fitted).x
