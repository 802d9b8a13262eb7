"""Draws for intervals: priors with their sources, one generator from a seed, and quantiles.

A prior of a positive figure is log-normal between its 5 % and 95 % points, or the quantiles of the market where margins are
drawn from it. Margins are drawn in pairs, one as far above their middle as the other is below, each pair with the same other
draws: a wider prior then widens the interval of any seed.
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
# 95 % point of the standard normal
Z90: Final = 1.6448536269514722


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """What sellers take over the cost of a busy chip, as a prior: a median, its 90 % range, and where it is from."""

    median: float = field(metadata=unit("", "price over cost"))
    low: float = field(metadata=unit("", "5 % point"))
    high: float = field(metadata=unit("", "95 % point"))
    basis: str = field(metadata=unit("", "where it is from, and on which chips"))
    values: tuple[float, ...] = field(default=(), metadata=unit("", "of the market, ascending", left_out=True))

    def at_scores(self, normal: Array) -> Array:
        """Return margins at standard normal scores."""
        if self.values:
            shares = (np.arange(len(self.values)) + 0.5) / len(self.values)
            margins: Array = np.exp(np.interp(_share_below(normal), shares, np.log(self.values)))
            return margins
        below, above = math.log(self.median / self.low), math.log(self.high / self.median)
        spread: Array = self.median * np.exp(np.where(normal < 0, below, above) * normal / Z90)
        return spread


def _share_below(normal: Array) -> Array:
    """Return the share of a standard normal below each score, by the error function of Abramowitz and Stegun, 7.1.26."""
    x = np.abs(normal) / math.sqrt(2)
    t = 1 / (1 + 0.3275911 * x)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = series * np.exp(-x * x) / 2
    share: Array = np.where(normal < 0, tail, 1 - tail)
    return share


def market_margin() -> Margin:
    """Return the margins of the median sellers of models with open weights, on Hopper."""
    prior = table("priors")["margin"]
    low, median, high = np.quantile(prior["values"], [0.05, 0.5, 0.95]).tolist()
    basis = f"median sellers of {len(prior['values'])} models with open weights, on {prior['chips']}"
    return Margin(median=median, low=low, high=high, basis=basis, values=tuple(prior["values"]))


def read_margin(text: str | float | Margin | None) -> Margin:
    """Return a margin prior: of the market (None), one number, or a 90 % range such as "1.2..7".

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
        raise RangeError(f"a margin is price over cost, such as 2, or a 90 % range such as 1.2..7, not {short_repr(text)}")
    low, high = ends[0], ends[-1]
    if low > high:
        raise RangeError(f"margin {text} ends before it begins; say {high:g}..{low:g}")
    return Margin(median=math.sqrt(low * high), low=low, high=high, basis="as given")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """A generator and a number of draws."""

    seed: int = 0
    count: int = DRAWS

    def __post_init__(self) -> None:
        whole_number("seed", self.seed, minimum=0, maximum=LARGEST_SEED)

    def generator(self) -> np.random.Generator:
        """Return a new generator of the seed."""
        return np.random.default_rng(self.seed)

    def scores(self, random: np.random.Generator) -> Array:
        """Return standard normal scores whose second half mirrors the first, as `twice` repeats others."""
        half = random.standard_normal(self.count // 2)
        return np.concatenate([half, -half])

    def log_uniform(self, random: np.random.Generator, low: Any, high: Any) -> Array:
        """Return draws whose logarithm is uniform, the same for both halves."""
        shares = random.random(self.count // 2)
        low, high = np.broadcast_to(low, self.count // 2), np.broadcast_to(high, self.count // 2)
        return _twice(low * (high / low) ** shares)

    def choice(self, random: np.random.Generator, options: Any) -> Array:
        """Return draws of options, each as likely, the same for both halves."""
        return _twice(np.asarray(options)[random.integers(len(options), size=self.count // 2)])


def _twice(values: Array) -> Array:
    return np.concatenate([values, values])


def assumed(name: str) -> tuple[float, float]:
    """Return the ends of what readings assume of a figure."""
    assumption = next(fact for fact in table("facts")["assumed"] if fact["name"] == name)
    return float(assumption["low"]), float(assumption["high"])


def interval(values: Array) -> tuple[float, float]:
    """Return the 5 % and 95 % points."""
    low, high = np.quantile(values, [0.05, 0.95]).tolist()
    return low, high
