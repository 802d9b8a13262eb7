"""Monte Carlo draws for ranges: priors with their sources, one seeded generator, and quantiles.

The prior of a positive value is log-normal between its 5 % and 95 % points. The prior of a margin can also be the quantiles of
the market. Margins are drawn in mirrored pairs: one is as far above the median as the other is below. Both have the same other
draws, so a wider prior widens the range for any seed.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from steptime.errors import RangeError, short_repr
from steptime.number_checks import Array, whole_number
from steptime.pricing.bundled_prices import table
from steptime.result_base import unit

DRAWS: Final = 20_000
LARGEST_SEED: Final = 2**63 - 1
# 95 % point of the standard normal distribution.
Z90: Final = 1.6448536269514722


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """Prior of a seller's margin, the price over the cost of a busy chip: median, 90 % range and source."""

    median: float = field(metadata=unit("", "median of price over cost"))
    low: float = field(metadata=unit("", "5 % point"))
    high: float = field(metadata=unit("", "95 % point"))
    basis: str = field(metadata=unit("", "source of the prior, and its chips"))
    values: tuple[float, ...] = field(default=(), metadata=unit("", "margins of the market, ascending", left_out=True))

    def at_scores(self, normal: Array) -> Array:
        """Return margins at standard normal scores.

        Args:
            normal: Scores, of shape (draws,).

        Returns:
            Margins, of shape (draws,).
        """
        if self.values:
            shares = (np.arange(len(self.values)) + 0.5) / len(self.values)
            margins: Array = np.exp(np.interp(_share_below(normal), shares, np.log(self.values)))
            return margins
        below, above = math.log(self.median / self.low), math.log(self.high / self.median)
        spread: Array = self.median * np.exp(np.where(normal < 0, below, above) * normal / Z90)
        return spread


def _share_below(normal: Array) -> Array:
    """Return the standard normal distribution function, by Abramowitz and Stegun, 7.1.26."""
    x = np.abs(normal) / math.sqrt(2)
    t = 1 / (1 + 0.3275911 * x)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = series * np.exp(-x * x) / 2
    share: Array = np.where(normal < 0, tail, 1 - tail)
    return share


def market_margin() -> Margin:
    """Return the margin prior of the market: open models on Hopper.

    Returns:
        Prior with the margins of median sellers.
    """
    prior = table("priors")["margin"]
    low, median, high = np.quantile(prior["values"], [0.05, 0.5, 0.95]).tolist()
    basis = f"median sellers of {len(prior['values'])} models with open weights, on {prior['chips']}"
    return Margin(median=median, low=low, high=high, basis=basis, values=tuple(prior["values"]))


def read_margin(text: str | float | Margin | None) -> Margin:
    """Parse a margin prior.

    Args:
        text: None (market), a number, a 90 % range such as "1.2..7", or a prior.

    Returns:
        Prior.

    Raises:
        RangeError: The text has another form, or the range descends.

    >>> read_margin("1.2..7").basis, read_margin(2).high
    ('as given', 2.0)
    """
    if isinstance(text, Margin):
        return text
    if text is None:
        return market_margin()
    parts = [part.strip() for part in str(text).split("..", 1)]
    try:
        ends = [float(part) for part in parts] if all(re.fullmatch(r"[0-9.eE+-]+", part) for part in parts) else []
    except ValueError:
        ends = []
    if not ends or not all(1e-6 < end < 1e6 for end in ends):
        raise RangeError(f"margin: must be price over cost, such as 2, or a 90 % range such as 1.2..7, got {short_repr(text)}")
    low, high = ends[0], ends[-1]
    if low > high:
        raise RangeError(f"margin: the range descends, got {text}; give {high:g}..{low:g}")
    return Margin(median=math.sqrt(low * high), low=low, high=high, basis="as given")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Seed and number of random draws."""

    seed: int = 0
    count: int = DRAWS

    def __post_init__(self) -> None:
        whole_number("seed", self.seed, minimum=0, maximum=LARGEST_SEED)

    def generator(self) -> np.random.Generator:
        """Return a new generator with the seed.

        Returns:
            Generator.
        """
        return np.random.default_rng(self.seed)

    def scores(self, random: np.random.Generator) -> Array:
        """Draw standard normal scores; the second half mirrors the first.

        Args:
            random: Generator.

        Returns:
            Scores, of shape (draws,).
        """
        half = random.standard_normal(self.count // 2)
        return np.concatenate([half, -half])

    def log_uniform(self, random: np.random.Generator, low: Any, high: Any) -> Array:
        """Draw log-uniform values, the same for both halves.

        Args:
            random: Generator.
            low: Lower end; a number or an array of shape (draws / 2,).
            high: Upper end.

        Returns:
            Values, of shape (draws,).
        """
        shares = random.random(self.count // 2)
        low, high = np.broadcast_to(low, self.count // 2), np.broadcast_to(high, self.count // 2)
        return _twice(low * (high / low) ** shares)

    def choice(self, random: np.random.Generator, options: Any) -> Array:
        """Draw options with equal probability, the same for both halves.

        Args:
            random: Generator.
            options: Values, of shape (options,).

        Returns:
            Values, of shape (draws,).
        """
        return _twice(np.asarray(options)[random.integers(len(options), size=self.count // 2)])


def _twice(values: Array) -> Array:
    return np.concatenate([values, values])


def assumed(name: str) -> tuple[float, float]:
    """Return the assumed range of a value.

    Args:
        name: Name in the shipped facts.

    Returns:
        Lower and upper end.
    """
    assumption = next(fact for fact in table("facts")["assumed"] if fact["name"] == name)
    return float(assumption["low"]), float(assumption["high"])


def interval(values: Array) -> tuple[float, float]:
    """Return the 5 % and 95 % points of draws.

    Args:
        values: Draws.

    Returns:
        Lower and upper end of the 90 % range.
    """
    low, high = np.quantile(values, [0.05, 0.95]).tolist()
    return low, high
