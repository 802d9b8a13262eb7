"""The result of `sensitivity`: the swing of each input, Sobol's indices, and what to measure first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from steptime.hardware.rental_prices import usd
from steptime.picture_files import save_picture
from steptime.result_base import Tabular, columns_by_key, range_columns
from steptime.result_base import unit as of
from steptime.units import in_digits, in_span, percent, show

# Count from which it is written with a prefix.
LARGE_COUNT: Final = 1e6
# Units that are shown with a prefix, such as GB.
PREFIXED: Final = ("s", "B", "B/s", "FLOP/s", "USD/s", "W", "tok/s")
# Share of the largest swing below which an input has no row and no bar; it makes 0.1 % of the variance.
MATTERS: Final = 0.03
# Half of the range of an index from which a text shows the range too.
UNSURE: Final = 0.05
# Share of the variance below which an input is not worth a measurement.
NEGLIGIBLE_VARIANCE_SHARE: Final = 0.01


def written(value: float, unit: str) -> str:
    """Return a number with its unit, as people read it.

    Args:
        value: Number in base units.
        unit: Its unit; "" for a count, a share or a factor.

    Returns:
        Text with three digits; "-" if the number is not finite.

    >>> written(75.5e9, ""), written(0.4567, "USD"), written(0.8248, ""), written(2.5e-3, "s"), written(float("nan"), "s")
    ('75.5 B', '$0.457', '0.825', '2.50 ms', '-')
    """
    if not math.isfinite(value):
        return "-"
    if unit == "USD":
        return usd(value)
    if unit in PREFIXED:
        return str(show(value, unit))
    if not unit and abs(value) >= LARGE_COUNT:
        return str(show(value))
    number = f"{value:,.0f}" if value == int(value) and 1 <= abs(value) < 1e15 else in_digits(value, 3)
    return f"{number} {unit}" if unit and unit not in ("tokens", "sequences", "requests") else number


@dataclass(frozen=True, slots=True, kw_only=True)
class Swing:
    """One uncertain input with its range, its swing, and its share of the variance."""

    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "swing": of("", "difference of the answers at both ends, or at the last values that meet the limits")
    }

    name: str = field(metadata=of("", "name of the input"))
    description: str = field(metadata=of("", "input in words"))
    unit: str = field(default="", metadata=of("", "unit of low, base and high; empty: a count, a share or a factor"))
    low: float = field(metadata=of("", "lower end of the range"))
    base: float = field(metadata=of("", "base value of the input"))
    high: float = field(metadata=of("", "upper end of the range"))
    even: bool = field(
        default=False,
        metadata=of("", "whether all values of the range are equally likely; else the ends are the 5 % and 95 % points"),
    )
    basis: str = field(metadata=of("", "basis of the range"))
    learn: str = field(default="", metadata=of("", "how to learn the value; empty: the user knows how"))
    at_low: float = field(metadata=of("", "answer at the lower end, the other inputs at their base; null: no answer"))
    at_high: float = field(metadata=of("", "answer at the upper end"))
    reason: str = field(default="", metadata=of("", "why an end has no answer"))
    missed: str = field(
        default="",
        metadata=of(
            "", "end at which limits are missed, or met only at a multiple of the cost: low, high or both; empty: none"
        ),
    )
    feasible_range: tuple[float, float] = field(
        metadata=of("", "range within which limits are met; low to high if none is missed")
    )
    at_met: tuple[float, float] = field(metadata=of("", "answers at the ends of that range"))
    share: float = field(
        metadata=of("", "share of the variance of the logarithm of the answer within `feasible_range`, from the swings; "
                        "of the answer itself if it may be 0 or less")
    )  # fmt: skip
    first: float | None = field(
        default=None,
        metadata=of("", "Sobol's first index: share of the variance that disappears if the input is known", key="first_index"),
    )
    first_range: tuple[float, float] | None = field(
        default=None, metadata=of("", "90 % range of that index, from a bootstrap", key="first_index_range")
    )
    total: float | None = field(
        default=None,
        metadata=of(
            "", "Sobol's total index: share of the variance that remains if all other inputs are known", key="total_index"
        ),
    )
    total_range: tuple[float, float] | None = field(
        default=None, metadata=of("", "90 % range of that index, from a bootstrap", key="total_index_range")
    )

    @property
    def swing(self) -> float:
        """Difference of the answers at both ends, or at the last values within the limits."""
        return abs(self.at_met[1] - self.at_met[0])

    def misses(self, side: int) -> bool:
        """Return whether limits are missed at one end.

        Args:
            side: 0 for the low end, 1 for the high end.

        Returns:
            True if they are missed.
        """
        return self.missed in (("low", "high")[side], "both")

    @property
    def variance_explained(self) -> float:
        """Share of the variance that disappears if the input is known.

        It is the first index, or the share from the swings without indices.
        """
        return self.share if self.first is None else self.first


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Sensitivity(Tabular):
    """Swings of one answer of a question by its uncertain inputs, the largest first."""

    SCHEMA: ClassVar[str] = "steptime.sensitivity/2"
    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "text": of("", "input to measure first, in one sentence"),
        "order": of("", "inputs worth measuring, the most valuable first", kind="list of texts"),
    }

    question: str = field(metadata=of("", "name of the question"))
    meaning: str = field(metadata=of("", "question in words"))
    answer: str = field(metadata=of("", "name of the answer"))
    answer_meaning: str = field(metadata=of("", "answer in words"))
    unit: str = field(default="", metadata=of("", "unit of the answer; empty: a count or a share"))
    base: float = field(metadata=of("", "answer with every input at its base"))
    swings: tuple[Swing, ...] = field(metadata=of("", "the uncertain inputs"))
    samples: int = field(default=0, metadata=of("", "number of samples of Sobol's indices; 0: no indices"))
    seed: int = field(default=0, metadata=of("", "random seed of the samples"))
    spread: tuple[float, float] | None = field(
        default=None, metadata=of("", "interval with 90 % of the samples' answers; null: no samples")
    )
    median: float | None = field(default=None, metadata=of("", "median of the samples' answers"))
    evaluations: int = field(default=0, metadata=of("", "number of evaluated points"))
    seconds: float = field(default=0.0, metadata=of("s", "time of the analysis", key="work_s"))
    fits: bool = field(default=True, metadata=of("", "whether the base case fits the memory of a chip; true if unknown"))
    notes: tuple[str, ...] = field(default=(), metadata=of("", "notes on the result"))
    fixed: Mapping[str, Any] = field(default_factory=dict, metadata=of("", "fixed inputs", left_out=True))

    @property
    def ranked(self) -> list[Swing]:
        """Inputs by the value of knowing them, the highest first.

        Inputs without an answer at an end are left out.
        """
        measurable = [
            swing for swing in self.swings if not math.isnan(swing.swing) and (not self.samples or swing.first is not None)
        ]
        return sorted(measurable, key=lambda swing: -swing.variance_explained)

    @property
    def mattering(self) -> list[Swing]:
        """Inputs with at least `MATTERS` of the largest swing, or an unanswered end."""
        largest = max((swing.swing for swing in self.swings if not math.isnan(swing.swing)), default=0.0)
        return [swing for swing in self.swings if not swing.swing <= MATTERS * largest]

    @property
    def order(self) -> list[str]:
        """Names of the inputs worth measuring, the most valuable first."""
        return [
            swing.name
            for swing in (*self.decisive, *self.ranked)
            if swing in self.decisive or swing.variance_explained >= NEGLIGIBLE_VARIANCE_SHARE
        ]

    @property
    def decisive(self) -> list[Swing]:
        """Inputs without an answer at an end of their range."""
        return [swing for swing in self.swings if math.isnan(swing.swing)]

    @property
    def text(self) -> str:
        """The input to measure first, and the value of knowing it."""
        if self.decisive:
            first = self.decisive[0]
            how = f" How: {first.learn}." if first.learn else ""
            lead = f"{_verb(first)} {first.description} first"
            return f"{lead} ({first.name}): at one end of its range there is no answer.{how}"
        ranked = self.ranked
        if not ranked or not ranked[0].variance_explained > 0:
            return "No input changes the answer."
        first = ranked[0]
        goes = f"{'' if self.samples else 'about '}{percent(first.variance_explained)}"
        if first.first_range is not None and first.first_range[1] - first.first_range[0] > 2 * UNSURE:
            goes += f" ({percent(max(first.first_range[0], 0.0))} to {percent(min(first.first_range[1], 1.0))})"
        how = f" How: {first.learn}." if first.learn else ""
        missed = [swing.name for swing in self.swings if swing.missed]
        limits = f" At one end of {', '.join(missed)}, limits are missed." if missed else ""
        lead = f"{_verb(first)} {first.description} first"
        return f"{lead} ({first.name}): this removes {goes} of the variance.{limits}{how}"

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return a title, the answer with its range, and the input to measure first.

        Returns:
            The title, and texts by name.
        """
        figures = {self.answer: f"{in_digits(self.base, 4)} {self.unit}".rstrip()}
        if self.spread is not None:
            low, high = self.spread
            figures["90 % of samples"] = f"{in_span(low, high, 4)} {self.unit}".rstrip()
        figures["first"] = self.text
        return f"Sensitivity of {self.answer} of {self.question} to {len(self.swings)} inputs", figures

    def columns(self) -> dict[str, Any]:
        """Return one row per input, the largest swing first.

        Returns:
            Columns by name, one value per input.
        """
        table = columns_by_key(Swing, self.swings)
        for key in ("feasible_range", "at_met", "first_index_range", "total_index_range"):
            name = key.replace("index_range", "index")
            ends = range_columns(table.pop(key))
            if name in table:
                table[name] = [math.nan if value is None else value for value in table[name]]
            table[f"{name}_low"], table[f"{name}_high"] = ends
        return table

    def plot(self, path: str) -> None:
        """Write a plot of the swings to a file.

        Args:
            path: File with the ending .svg, .png or .pdf.
        """
        from steptime.sweeps.plots import draw_tornado

        save_picture(path, lambda: draw_tornado(self))


def _verb(swing: Swing) -> str:
    return "Settle" if swing.name == "rent" else "Measure"
