"""Where models stand on systems: the cheapest plan of each pair, in the order of what they cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from steptime.hardware.rental_prices import kind_and_date, kind_in_words
from steptime.hardware.system import Rent
from steptime.hardware.unit_cost import usd
from steptime.planning.plan_result import Plan
from steptime.planning.workload import Slo, Workload
from steptime.result_base import Tabular, columns_by_key, unit
from steptime.units import show

COST: Final = "usd_per_million_output_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The cheapest plan of one model on one system, or why there is none."""

    place: int = field(
        default=0, metadata=unit("", "by cost from 1, or by output per chip where no rent is known of any; 0: none of that")
    )
    tied: bool = field(default=False, metadata=unit("", "whether its range of cost overlaps with that of the cheapest"))
    model: str = field(metadata=unit("", "name of the model"))
    system: str = field(metadata=unit("", "name of the system"))
    label: str = field(default="", metadata=unit("", "what sets it apart where two have one name: as it was given"))
    vendor: str = field(metadata=unit("", "who makes the chip"))
    year: int = field(metadata=unit("", "of the chip"))
    feasible: bool = field(metadata=unit("", "whether anything meets the limits"))
    reason: str = field(default="", metadata=unit("", "why nothing does"))
    engine: str = field(default="", metadata=unit("", "name of the engine"))
    chips: int = field(default=0, metadata=unit("", "chips that are rented"))
    layout_text: str = field(default="", metadata=unit("", "layout of each pool in words", key="layout"))
    usd_per_million_output_tokens: float = field(
        default=math.nan, metadata=unit("USD", "rent of all chips over output tokens, prompts included", key=COST)
    )
    cost_range: tuple[float, float] | None = field(default=None, metadata=unit("USD", "90 % range", key=f"{COST}_range"))
    prefill_usd_per_million_tokens: float = field(
        default=math.nan, metadata=unit("USD", "rent of the chip-time that prompts take", key="prefill_usd_per_million_tokens")
    )
    decode_usd_per_million_tokens: float = field(
        default=math.nan, metadata=unit("USD", "rent of the chip-time that outputs take", key="decode_usd_per_million_tokens")
    )
    tokens_per_second_per_user: float = field(
        default=math.nan, metadata=unit("tok/s", "output that each user sees", key="tokens_per_s_per_user")
    )
    ttft: float = field(default=math.nan, metadata=unit("s", "mean time to first token"))
    tokens_per_second_per_chip: float = field(
        default=math.nan, metadata=unit("tok/s", "output over all chips", key="tokens_per_s_per_chip")
    )
    tokens_per_second_per_kilowatt: float = field(
        default=math.nan, metadata=unit("tok/s", "output for each kW that chips draw", key="tokens_per_s_per_kw")
    )
    power_basis: str = field(default="", metadata=unit("", "what that power counts in: all-in, rack, whole, chip"))
    rent: Rent = field(default=Rent(), metadata=unit("", "of a chip: its kind, term, date and grade, and where it stands"))
    runs: int = field(default=0, metadata=unit("", "measured runs on this system that the engine was fitted to"))
    rests_on: str = field(default="", metadata=unit("", "what the range rests on"))
    plan: Plan | None = field(default=None, metadata=unit("", "the plan itself", left_out=True))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Ranking(Tabular):
    """Pairs of models and systems, the cheapest first; then those without a rent, by output per chip; then without a plan.

    flips: what would turn the order of the first two round: rent, formats, engine.
    """

    SCHEMA: ClassVar[str] = "steptime.ranking/2"

    workload: Workload = field(metadata=unit("", "what is asked"))
    slo: Slo = field(metadata=unit("", "the limits"))
    standings: tuple[Standing, ...] = field(metadata=unit("", "one for each pair, the cheapest first"))
    flips: tuple[str, ...] = field(default=(), metadata=unit("", "what would flip the order of the first two, or does not"))

    @property
    def priced(self) -> tuple[Standing, ...]:
        """Those with a plan and a cost, the cheapest first."""
        return tuple(
            standing
            for standing in self.standings
            if standing.feasible and math.isfinite(standing.usd_per_million_output_tokens)
        )

    @property
    def text(self) -> str:
        """The answer in a sentence."""
        feasible = [standing for standing in self.standings if standing.feasible]
        if len(self.standings) == 1 and not feasible:
            return f"Nothing meets the limits: {self.standings[0].reason.rstrip('.')}."
        if not feasible:
            return f"Nothing meets the limits, on none of {len(self.standings)} pairs of model and system."
        first, priced = feasible[0], self.priced
        if not priced:
            return (
                f"No rent is known; {self.called(first)} gives most: {show(first.tokens_per_second_per_chip, 'tok/s')} a chip."
            )
        ties = sum(standing.tied for standing in priced[1:])
        tie_note = f"; {ties} of the {len(priced) - 1} others may be as cheap: their ranges overlap" if ties else ""
        span = "" if first.cost_range is None else f" (90 % range {usd(first.cost_range[0])} to {usd(first.cost_range[1])})"
        cost = f"{usd(first.usd_per_million_output_tokens)} per million output tokens, prompts included{span}"
        return f"{self.called(first)} is cheapest: {cost}{tie_note}."

    @property
    def notes(self) -> tuple[str, ...]:
        """What to mind about the order: rents of several kinds, and what the first rests on."""
        near = [standing for standing in self.priced if standing.tied or standing.place == 1]
        if not near:
            return ()
        first, kinds = near[0], dict.fromkeys(kind_in_words(standing.rent) for standing in near)
        notes = (
            [f"the range of {self.called(first)} rests on {first.rests_on}"]
            if first.rests_on.startswith(("no run", "runs on other"))
            else []
        )
        if len(kinds) > 1:
            notes.append(f"rents of the first ones are of several kinds ({', '.join(kinds)}); --rent KIND compares on one")
        return tuple(notes)

    def called(self, standing: Standing) -> str:
        """Return what a standing is called here: by its system, and its model where there are several."""
        several = len({row.model for row in self.standings}) > 1
        system = standing.label or standing.system
        return f"{standing.model} on {system}" if several else system

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return how many pairs there are, and the first five."""
        figures = {
            f"{standing.model} on {standing.system}": usd(standing.usd_per_million_output_tokens)
            if standing.feasible
            else standing.reason[:100]
            for standing in self.standings[:5]
        }
        return f"Ranking of {len(self.standings):,} pairs of model and system", figures

    def columns(self) -> dict[str, Any]:
        """Return a row for each pair; a rent by its kind, date and USD/s, a range by its two ends."""
        table = {
            name: values
            for name, values in columns_by_key(Standing, self.standings).items()
            if name not in ("rent", f"{COST}_range")
        }
        for end, name in enumerate((f"{COST}_low", f"{COST}_high")):
            table[name] = [math.nan if standing.cost_range is None else standing.cost_range[end] for standing in self.standings]
        table["rent_usd_per_s"] = [float(standing.rent.typical) for standing in self.standings]
        return table | {"rent": [kind_and_date(standing.rent) for standing in self.standings]}
