"""What a sensitivity found: how far each input swings an answer, its indices, and what to measure first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from steptime.hardware.unit_cost import usd
from steptime.result_base import Tabular, columns_by_key
from steptime.result_base import unit as of
from steptime.units import in_digits, show

PREFIXED: Final = ("s", "B", "B/s", "FLOP/s", "USD/s", "W", "tok/s")
MATTERS: Final = 0.03  # of the largest swing, 0.1 % of the variance: what is smaller has no row and no bar
UNSURE: Final = 0.05  # half of the range of an index from which it is told beside
NEGLIGIBLE_VARIANCE_SHARE: Final = 0.01  # of the variance: a share below is not worth a measurement


def written(value: float, unit: str) -> str:
    """Write a number with its unit as people read it.

    >>> written(0.4567, "USD"), written(4096.0, ""), written(0.8248, ""), written(2.5e-3, "s"), written(float("nan"), "s")
    ('$0.457', '4,096', '0.825', '2.50 ms', '-')
    """
    if not math.isfinite(value):
        return "-"
    if unit == "USD":
        return usd(value)
    if unit in PREFIXED:
        return str(show(value, unit))
    number = f"{value:,.0f}" if value == int(value) and 1 <= abs(value) < 1e15 else in_digits(value, 3)
    return f"{number} {unit}" if unit and unit not in ("tokens", "sequences", "requests") else number


@dataclass(frozen=True, slots=True, kw_only=True)
class Swing:
    """One unsure input: its range and what that rests on, the answer at both ends, and the shares of the variance it makes."""

    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "swing": of("", "how far apart the answers at both ends are, or where limits are still met"),
    }

    name: str = field(metadata=of("", "the input"))
    description: str = field(metadata=of("", "in words"))
    unit: str = field(default="", metadata=of("", "of low, base and high; empty: a count, a share or a factor"))
    low: float = field(metadata=of("", "lower end of its range"))
    base: float = field(metadata=of("", "what is asked with"))
    high: float = field(metadata=of("", "upper end"))
    even: bool = field(
        default=False, metadata=of("", "whether each value between is as likely; else the ends are its 5 % and 95 % points")
    )
    basis: str = field(metadata=of("", "what the range rests on"))
    learn: str = field(default="", metadata=of("", "how it becomes known; empty: as whoever asks knows"))
    at_low: float = field(metadata=of("", "the answer at the lower end, the other inputs at their base; null: none"))
    at_high: float = field(metadata=of("", "the answer at the upper end"))
    reason: str = field(default="", metadata=of("", "why an end has no answer"))
    missed: str = field(
        default="",
        metadata=of(
            "",
            "end at which limits are missed, or met at a multiple of the cost alone: low, high or both; empty: none",
        ),
    )
    feasible_range: tuple[float, float] = field(
        metadata=of("", "range within which limits are met; low to high where none is missed")
    )
    at_met: tuple[float, float] = field(metadata=of("", "the answers at its ends"))
    share: float = field(
        metadata=of("", "of the variance of the answer's logarithm within `feasible_range`, by the swings alone; "
                        "of the answer's own where it may be 0 or less")
    )  # fmt: skip
    first: float | None = field(
        default=None,
        metadata=of("", "Sobol's first index: share of the variance that goes if the input is known", key="first_index"),
    )
    first_range: tuple[float, float] | None = field(
        default=None, metadata=of("", "its 90 % range by a bootstrap", key="first_index_range")
    )
    total: float | None = field(
        default=None, metadata=of("", "Sobol's total index: share that stays if all other inputs are known", key="total_index")
    )
    total_range: tuple[float, float] | None = field(
        default=None, metadata=of("", "its 90 % range by a bootstrap", key="total_index_range")
    )

    @property
    def swing(self) -> float:
        """How far apart the answers at both ends are, or where limits are still met."""
        return abs(self.at_met[1] - self.at_met[0])

    def misses(self, side: int) -> bool:
        """Whether limits are missed at an end: 0 for the low one, 1 for the high one."""
        return self.missed in (("low", "high")[side], "both")

    @property
    def variance_explained(self) -> float:
        """Share of the variance that goes if the input is known: the first index, or by the swings where there is none."""
        return self.share if self.first is None else self.first


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Sensitivity(Tabular):
    """How far unsure inputs swing one answer of a question, the largest swing first."""

    SCHEMA: ClassVar[str] = "steptime.sensitivity/2"
    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "text": of("", "what to learn first, in a sentence"),
        "order": of("", "inputs in the order in which they are worth measuring", kind="list of texts"),
    }

    question: str = field(metadata=of("", "what was asked"))
    meaning: str = field(metadata=of("", "in words"))
    answer: str = field(metadata=of("", "the answer that is looked at"))
    answer_meaning: str = field(metadata=of("", "in words"))
    unit: str = field(default="", metadata=of("", "of the answer; empty: a count or a share"))
    base: float = field(metadata=of("", "the answer with every input at its base"))
    swings: tuple[Swing, ...] = field(metadata=of("", "the unsure inputs"))
    samples: int = field(default=0, metadata=of("", "rows that Sobol's indices rest on; 0: no indices"))
    seed: int = field(default=0, metadata=of("", "that they were drawn with"))
    spread: tuple[float, float] | None = field(
        default=None, metadata=of("", "between which 90 % of the samples' answers lie; null: no samples")
    )
    median: float | None = field(default=None, metadata=of("", "of the samples' answers"))
    evaluations: int = field(default=0, metadata=of("", "points that were asked"))
    seconds: float = field(default=0.0, metadata=of("s", "time of the work", key="work_s"))
    fits: bool = field(default=True, metadata=of("", "whether what is asked fits the memory of a chip, as far as it is told"))
    notes: tuple[str, ...] = field(default=(), metadata=of("", "what to mind"))
    fixed: Mapping[str, Any] = field(default_factory=dict, metadata=of("", "what was held", left_out=True))

    @property
    def ranked(self) -> list[Swing]:
        """The inputs by what knowing each is worth, the most first; without those that have no answer at an end."""
        measurable = [
            swing for swing in self.swings if not math.isnan(swing.swing) and (not self.samples or swing.first is not None)
        ]
        return sorted(measurable, key=lambda swing: -swing.variance_explained)

    @property
    def mattering(self) -> list[Swing]:
        """The inputs whose swing is a hundredth of the largest at least, and those that have no answer at an end."""
        largest = max((swing.swing for swing in self.swings if not math.isnan(swing.swing)), default=0.0)
        return [swing for swing in self.swings if not swing.swing <= MATTERS * largest]

    @property
    def order(self) -> list[str]:
        """Names of the inputs that are worth measuring, the first of them first."""
        return [
            swing.name
            for swing in (*self.decisive, *self.ranked)
            if swing in self.decisive or swing.variance_explained >= NEGLIGIBLE_VARIANCE_SHARE
        ]

    @property
    def decisive(self) -> list[Swing]:
        """The inputs that have no answer at an end of their range."""
        return [swing for swing in self.swings if math.isnan(swing.swing)]

    @property
    def text(self) -> str:
        """What to learn first, and what that is worth."""
        if self.decisive:
            first = self.decisive[0]
            how = f" By {first.learn}." if first.learn else ""
            lead = f"{_verb(first)} {first.description} first"
            return f"{lead} ({first.name}): at an end of its range there is no answer at all.{how}"
        ranked = self.ranked
        if not ranked or not ranked[0].variance_explained > 0:
            return "No input swings the answer."
        first = ranked[0]
        goes = f"{'' if self.samples else 'about '}{first.variance_explained:.0%}"
        if first.first_range is not None and first.first_range[1] - first.first_range[0] > 2 * UNSURE:
            goes += f" ({max(first.first_range[0], 0.0):.0%} to {min(first.first_range[1], 1.0):.0%})"
        goes = goes.replace("%", " %")
        how = f" By {first.learn}." if first.learn else ""
        missed = [swing.name for swing in self.swings if swing.missed]
        limits = f" Limits are missed at an end of {', '.join(missed)}." if missed else ""
        lead = f"{_verb(first)} {first.description} first"
        return f"{lead} ({first.name}): knowing it takes {goes} of the variance away.{limits}{how}"

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return what was asked, the answer with its range, and what to learn first."""
        figures = {self.answer: f"{in_digits(self.base, 4)} {self.unit}".rstrip()}
        if self.spread is not None:
            low, high = self.spread
            figures["90 % of samples"] = f"{in_digits(low, 4)} to {in_digits(high, 4)} {self.unit}".rstrip()
        figures["first"] = self.text
        return f"Sensitivity of {self.answer} of {self.question} to {len(self.swings)} inputs", figures

    def columns(self) -> dict[str, Any]:
        """Return a row for each input, the largest swing first."""
        table = columns_by_key(Swing, self.swings)
        for name in ("feasible_range", "at_met"):
            pairs = table.pop(name)
            table |= {f"{name}_low": [low for low, _ in pairs], f"{name}_high": [high for _, high in pairs]}
        for name in ("first_index", "total_index"):
            ends = [pair or (math.nan, math.nan) for pair in table.pop(f"{name}_range")]
            table[name] = [math.nan if value is None else value for value in table[name]]
            table |= {f"{name}_low": [low for low, _ in ends], f"{name}_high": [high for _, high in ends]}
        return table

    def plot(self, path: str) -> None:
        """Write a picture (.svg, .png or .pdf) of the swings."""
        from steptime.sweeps.tornado_plot import plot

        plot(self, path)


def _verb(swing: Swing) -> str:
    return "Settle" if swing.name == "rent" else "Measure"
