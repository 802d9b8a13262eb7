"""The question `train` on several systems: the cheapest run of each, or the fastest where no rent is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from steptime.errors import Impossible, InputError, LayoutError, RangeError
from steptime.hardware.rental_prices import usd as write_usd
from steptime.questions.train_question import solve
from steptime.result_base import Tabular, columns_by_key, unit
from steptime.training.training_job import show_training_layout
from steptime.units import DAY, show


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainStanding:
    """The training run of one system, or the reason why no run is possible."""

    system: str = field(metadata=unit("", "system"))
    chips: int = field(default=0, metadata=unit("", "chips; 0 without a run"))
    layout: str = field(default="", metadata=unit("", "layout"))
    step: float = field(default=math.nan, metadata=unit("s", "time of a step", key="step_s"))
    tokens_per_second_per_chip: float = field(
        default=math.nan, metadata=unit("tok/s", "tokens per second and chip", key="tokens_per_s_per_chip")
    )
    mfu: float = field(default=math.nan, metadata=unit("", "model FLOPs with causal attention over peak"))
    run: float = field(default=math.nan, metadata=unit("s", "time of the run with failures", key="run_s"))
    run_low: float = field(default=math.nan, metadata=unit("s", "lower end of its 90 % range", key="run_low_s"))
    run_high: float = field(default=math.nan, metadata=unit("s", "upper end of its 90 % range", key="run_high_s"))
    usd: float = field(default=math.nan, metadata=unit("USD", "rent of the run", key="usd"))
    usd_low: float = field(default=math.nan, metadata=unit("USD", "lower end of its 90 % range", key="usd_low"))
    usd_high: float = field(default=math.nan, metadata=unit("USD", "upper end of its 90 % range", key="usd_high"))
    missed: str = field(default="", metadata=unit("", "limits that the run misses: deadline, budget"))
    evidence: str = field(default="", metadata=unit("", "measured if runs cover the kind of layout, else any"))
    reason: str = field(default="", metadata=unit("", "why there is no run"))

    @property
    def order(self) -> tuple[bool, float, float, float]:
        """Order of the systems: those within the limits first, then by rent, by time of the run, and by tokens per chip."""
        usd, run = (value if math.isfinite(value) else math.inf for value in (self.usd, self.run))
        return bool(self.missed), usd, run, -self.tokens_per_second_per_chip if self.chips else math.inf


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainComparison(Tabular):
    """Training runs of one model on several systems, the cheapest first; as a table, one row per system."""

    SCHEMA: ClassVar[str] = "steptime.train_comparison/1"

    model: str = field(metadata=unit("", "model"))
    standings: tuple[TrainStanding, ...] = field(metadata=unit("", "one entry per system, the cheapest first"))

    @property
    def text(self) -> str:
        """The answer in a sentence."""
        first = self.standings[0]
        if not first.chips:
            return f"No system trains {self.model} within the limits."
        missed = f"Every system misses the {first.missed.replace(', ', ' or the ')}. " if first.missed else ""
        if math.isfinite(first.usd):
            rivals = [standing for standing in self.standings[1:] if bool(standing.missed) == bool(first.missed)]
            near = sum(standing.usd_low <= first.usd_high for standing in rivals)
            overlap = "range of 1 other system overlaps" if near == 1 else f"ranges of {near} other systems overlap"
            ties = f"; the {overlap} with it" if near else ""
            cost = f"{write_usd(first.usd)} (90 % range {write_usd(first.usd_low)} to {write_usd(first.usd_high)})"
            return f"{missed}{first.system} is the cheapest: {cost}, {show(first.run, 's')} on {first.chips:,} chips{ties}."
        rate = f"{first.tokens_per_second_per_chip:,.0f} tok/s per chip"
        return f"{missed}{first.system} comes first: {rate}, {show(first.step, 's')} per step on {first.chips:,} chips."

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the answer, and the layout of each system.

        Returns:
            Title, and lines by system.
        """
        return self.text, {standing.system: standing.layout or standing.reason for standing in self.standings}

    def columns(self) -> dict[str, Any]:
        """Return one row per system.

        Returns:
            Values by column name.
        """
        table = columns_by_key(TrainStanding, self.standings)
        return table | {"days": [standing.run / DAY for standing in self.standings]}


def compare_training(
    systems: Sequence[str], values: Mapping[str, Any], prepare: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
) -> TrainComparison:
    """Return the training run of a model on each of several systems.

    Args:
        systems: Names of systems, or paths.
        values: Other values of `TrainInputs` by name.
        prepare: Function from the inputs on one system to those with a corrected stack.

    Returns:
        One standing per system; one without a run has a reason.

    Raises:
        RangeError: If there is no system.
        InputError: If an input is wrong for all systems.
    """
    if not systems:
        raise RangeError("systems: needs at least one to compare, got none")
    standings, problems = [], []
    for system in dict.fromkeys(systems):
        try:
            standings.append(_standing(prepare({**values, "system": system})))
        except (Impossible, LayoutError, RangeError) as problem:
            problems.append(problem)
            standings.append(TrainStanding(system=system, reason=str(problem)))
    # What is wrong for all systems is wrong with the question.
    if len(problems) == len(standings) and all(isinstance(problem, RangeError) for problem in problems):
        raise InputError(str(problems[0]))
    return TrainComparison(model=str(values["model"]), standings=tuple(sorted(standings, key=lambda standing: standing.order)))


def _standing(values: Mapping[str, Any]) -> TrainStanding:
    training = solve(values, changes=False)
    step, run = training.step, training.run
    figures: dict[str, Any] = {}
    if run is not None:
        figures = {"run": run.seconds, "run_low": run.low, "run_high": run.high,
                   "usd": run.usd, "usd_low": run.usd_low, "usd_high": run.usd_high}  # fmt: skip
    return TrainStanding(
        system=step.system, chips=training.chips, layout=show_training_layout(step.layout), step=float(step.total),
        tokens_per_second_per_chip=float(step.tokens_per_second_per_chip), mfu=float(step.mfu_causal),
        missed=", ".join(training.missed_limits), evidence=training.evidence, **figures,
    )  # fmt: skip
