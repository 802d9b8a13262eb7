"""Price estimate: one quantity inferred from a price list, with a range, an upper bound and their accuracy, or a reason.

Ranges come from random draws. The prior of a positive value is log-normal between its 5 % and 95 % points. The prior of a
margin can also be the quantiles of the market.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np

from steptime.errors import RangeError, short_repr
from steptime.number_checks import Array
from steptime.pricing.bundled_prices import table
from steptime.result_base import Result, unit
from steptime.units import show

# 95 % point of the standard normal distribution.
Z90: Final = 1.6448536269514722


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Number of correct ranges or bounds in cross-validation on models with known values."""

    hits: int = field(metadata=unit("", "ranges or bounds that were correct"))
    trials: int = field(metadata=unit("", "ranges or bounds that were tested"))

    def __str__(self) -> str:
        return f"correct in {self.hits} of {self.trials}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Reading(Result):
    """One quantity inferred from a price list.

    If the quantity is not identifiable, there is no value and no range, and `reason` explains why. `ideal` still has the result
    of the lecture's formula.
    """

    SCHEMA: ClassVar[str] = "steptime.reading/2"

    name: str = field(metadata=unit("", "name, such as kv_bytes_per_token"))
    quantity: str = field(metadata=unit("", "description of the quantity"))
    measure: str = field(default="", metadata=unit("", "unit of value, interval, bound and ideal", key="unit"))
    value: float = field(default=math.nan, metadata=unit("", "median of the draws"))
    interval: tuple[float, float] | None = field(default=None, metadata=unit("", "90 % range"))
    bound: float = field(default=math.nan, metadata=unit("", "upper bound, if the seller sells at cost or above"))
    bound_held: Coverage | None = field(default=None, metadata=unit("", "accuracy of such bounds on known models"))
    bits: float = field(
        default=math.nan, metadata=unit("", "information in the prices: log2 of the spread without over with them")
    )
    interval_held: Coverage | None = field(default=None, metadata=unit("", "accuracy of such ranges on known models"))
    words: tuple[str, ...] = field(default=(), metadata=unit("", "answer in words, if it is not a number"))
    identifiable: bool = field(default=True, metadata=unit("", "whether the list contains information about the quantity"))
    reason: str = field(default="", metadata=unit("", "why there is no value, or the basis of the value"))
    ideal: float = field(default=math.nan, metadata=unit("", "result of the lecture's formula, on an ideal machine"))
    ideal_from: str = field(default="", metadata=unit("", "formula of the lecture with its section and assumptions"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the quantity and its estimate.

        Returns:
            Title, and text by label.
        """
        if not self.identifiable:
            figures = {"not identifiable": self.reason[:150]}
        else:
            figures = {"value": "; ".join(self.words)[:200] or self.written(self.value)}
            if self.interval:
                figures["90 %"] = " to ".join(map(self.written, self.interval))
        if math.isfinite(self.bound):
            figures["at most"] = self.written(self.bound) + (
                f" (such bounds were {self.bound_held} known models)" if self.bound_held else ""
            )
        if self.interval_held:
            figures["such ranges"] = f"{self.interval_held} known models"
        return f"Estimate of {self.quantity}", figures

    @property
    def ends(self) -> str:
        """The range as text, or the value without a range."""
        return " to ".join(map(self.written, self.interval or (self.value,)))

    def written(self, value: float) -> str:
        """Format a value in the unit of the estimate.

        Args:
            value: Value.

        Returns:
            Text; "none" for NaN.
        """
        if not math.isfinite(value):
            return "none"
        if self.measure in ("B", "s", "parameters"):
            return show(value, "" if self.measure == "parameters" else self.measure)
        return f"{value:.3g}" + (f" {self.measure}" if self.measure else "")


def unidentifiable(
    name: str, quantity: str, reason: str, *, measure: str = "", ideal: float = math.nan, ideal_from: str = ""
) -> Reading:
    """Return an estimate without a value.

    Args:
        name: Name of the quantity.
        quantity: Description of the quantity.
        reason: Why it is not identifiable.
        measure: Unit.
        ideal: Result of the lecture's formula.
        ideal_from: Formula of the lecture with its section.

    Returns:
        Estimate.
    """
    return Reading(
        name=name, quantity=quantity, measure=measure, identifiable=False, reason=reason, ideal=ideal, ideal_from=ideal_from
    )


def prior_coverage(name: str, key: str = "held") -> Coverage:
    """Return the accuracy of the ranges or bounds of a prior.

    Args:
        name: Name of the prior.
        key: "held" for ranges, "bound_held" for bounds.

    Returns:
        Coverage.
    """
    prior = table("priors")[name]
    return Coverage(hits=int(prior[key]), trials=int(prior["of"]))


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


def read_margin(text: str | float | Margin | None) -> Margin:
    """Parse a margin prior.

    Args:
        text: None (median sellers of open models on Hopper), a number, a 90 % range such as "1.2..7", or a prior.

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
        prior = table("priors")["margin"]
        low, median, high = np.quantile(prior["values"], [0.05, 0.5, 0.95]).tolist()
        basis = f"median sellers of {len(prior['values'])} models with open weights, on {prior['chips']}"
        return Margin(median=median, low=low, high=high, basis=basis, values=tuple(prior["values"]))
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
