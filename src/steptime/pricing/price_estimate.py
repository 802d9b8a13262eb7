"""What a list says of one quantity: a value with interval and bound, how often such intervals held, or why nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from steptime.pricing.bundled_prices import table
from steptime.result_base import Result, unit
from steptime.units import show


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How many intervals of this kind held the truth, on models where it is known, each left out of its own fit."""

    hits: int = field(metadata=unit("", "intervals that held the truth"))
    trials: int = field(metadata=unit("", "intervals that were tried"))

    def __str__(self) -> str:
        return f"held {self.hits} of {self.trials}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Reading(Result):
    """One quantity read from a price list.

    Not identifiable: no value and no interval, and `reason` says why; `ideal` is then still what the lecture's formula gives.
    """

    SCHEMA: ClassVar[str] = "steptime.reading/2"

    name: str = field(metadata=unit("", "name, such as kv_bytes_per_token"))
    quantity: str = field(metadata=unit("", "the quantity in words"))
    measure: str = field(default="", metadata=unit("", "unit of value, interval, bound and ideal", key="unit"))
    value: float = field(default=math.nan, metadata=unit("", "median of the draws, in that unit"))
    interval: tuple[float, float] | None = field(default=None, metadata=unit("", "90 % interval"))
    bound: float = field(default=math.nan, metadata=unit("", "what the quantity cannot be above, if the seller loses nothing"))
    bound_held: Coverage | None = field(default=None, metadata=unit("", "how often the truth lay below such bounds"))
    bits: float = field(default=math.nan, metadata=unit("", "what the list tells beyond the spread of models without it"))
    interval_held: Coverage | None = field(default=None, metadata=unit("", "how often such intervals held"))
    words: tuple[str, ...] = field(default=(), metadata=unit("", "an answer that is no number"))
    identifiable: bool = field(default=True, metadata=unit("", "whether the list says anything about it"))
    reason: str = field(default="", metadata=unit("", "why there is no value, or what it rests on"))
    ideal: float = field(default=math.nan, metadata=unit("", "by the lecture's formula, on an ideal machine"))
    ideal_from: str = field(default="", metadata=unit("", "that formula with its section and what it assumes"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the quantity and what is known of it."""
        if not self.identifiable:
            figures = {"not identifiable": self.reason[:150]}
        else:
            figures = {"value": "; ".join(self.words)[:200] or self.written(self.value)}
            if self.interval:
                figures["90 %"] = " to ".join(map(self.written, self.interval))
        if math.isfinite(self.bound):
            figures["at most"] = self.written(self.bound) + (f" (such bounds {self.bound_held})" if self.bound_held else "")
        if self.interval_held:
            figures["such intervals"] = str(self.interval_held)
        return f"Reading of {self.quantity}", figures

    @property
    def ends(self) -> str:
        """The interval in words, or the value where there is none."""
        return " to ".join(map(self.written, self.interval or (self.value,)))

    def written(self, value: float) -> str:
        """Write a figure in the unit of the reading."""
        if not math.isfinite(value):
            return "none"
        if self.measure in ("B", "s", "parameters"):
            return show(value, "" if self.measure == "parameters" else self.measure)
        return f"{value:.3g}" + (f" {self.measure}" if self.measure else "")


def unidentifiable(
    name: str, quantity: str, reason: str, *, measure: str = "", ideal: float = math.nan, ideal_from: str = ""
) -> Reading:
    """Return what is not identifiable, and why."""
    return Reading(
        name=name, quantity=quantity, measure=measure, identifiable=False, reason=reason, ideal=ideal, ideal_from=ideal_from
    )


def prior_coverage(name: str, key: str = "held") -> Coverage:
    """Return how often intervals of a prior held, or its bounds ("bound_held")."""
    prior = table("priors")[name]
    return Coverage(hits=int(prior[key]), trials=int(prior["of"]))
