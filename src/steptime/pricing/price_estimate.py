"""Price estimate: one quantity inferred from a price list, with a range, an upper bound and their accuracy, or a reason."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from steptime.pricing.bundled_prices import table
from steptime.result_base import Result, unit
from steptime.units import show


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
