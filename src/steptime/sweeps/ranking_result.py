"""The result of `compare`: the cheapest plan of each pair of model and system, ordered by cost."""

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
from steptime.units import counted, show

COST: Final = "usd_per_million_output_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The cheapest plan of one model on one system, or the reason for a missing plan."""

    place: int = field(
        default=0, metadata=unit("", "place from 1 by cost, or by output per chip if no rent is known at all; 0: no place")
    )
    tied: bool = field(default=False, metadata=unit("", "whether its range of cost overlaps with the range of the cheapest"))
    model: str = field(metadata=unit("", "name of the model"))
    system: str = field(metadata=unit("", "name of the system"))
    label: str = field(default="", metadata=unit("", "name as the user wrote it, if two systems share a name"))
    vendor: str = field(metadata=unit("", "vendor of the chip"))
    year: int = field(metadata=unit("", "year of the chip"))
    feasible: bool = field(metadata=unit("", "whether a plan meets the limits"))
    reason: str = field(default="", metadata=unit("", "why no plan meets the limits"))
    engine: str = field(default="", metadata=unit("", "name of the engine"))
    chips: int = field(default=0, metadata=unit("", "number of rented chips"))
    layout_text: str = field(default="", metadata=unit("", "layout of each pool in words", key="layout"))
    usd_per_million_output_tokens: float = field(
        default=math.nan, metadata=unit("USD", "rent of all chips per million output tokens, prefill included", key=COST)
    )
    cost_range: tuple[float, float] | None = field(
        default=None, metadata=unit("USD", "90 % range of that cost", key=f"{COST}_range")
    )
    prefill_usd_per_million_tokens: float = field(
        default=math.nan,
        metadata=unit(
            "USD", "rent of the chip time for prefill, per million prompt tokens", key="prefill_usd_per_million_tokens"
        ),
    )
    decode_usd_per_million_tokens: float = field(
        default=math.nan,
        metadata=unit(
            "USD", "rent of the chip time for decode, per million output tokens", key="decode_usd_per_million_tokens"
        ),
    )
    tokens_per_second_per_user: float = field(
        default=math.nan, metadata=unit("tok/s", "output speed for each user", key="tokens_per_s_per_user")
    )
    ttft: float = field(default=math.nan, metadata=unit("s", "mean time to first token"))
    tokens_per_second_per_chip: float = field(
        default=math.nan, metadata=unit("tok/s", "output throughput per chip", key="tokens_per_s_per_chip")
    )
    tokens_per_second_per_kilowatt: float = field(
        default=math.nan, metadata=unit("tok/s", "output throughput per kW of power", key="tokens_per_s_per_kw")
    )
    power_basis: str = field(default="", metadata=unit("", "scope of that power: all-in, rack, whole, chip"))
    rent: Rent = field(default=Rent(), metadata=unit("", "rent of a chip: kind, term, date, grade and source"))
    runs: int = field(default=0, metadata=unit("", "measured runs on this system that the engine was fitted to"))
    rests_on: str = field(default="", metadata=unit("", "basis of the range"))
    plan: Plan | None = field(default=None, metadata=unit("", "the plan itself", left_out=True))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Ranking(Tabular):
    """Pairs of models and systems, the cheapest first.

    Pairs without a rent follow, ordered by output per chip, then pairs without a plan. `flips` lists changes of rent, format or
    engine that would reverse the order of the first two.
    """

    SCHEMA: ClassVar[str] = "steptime.ranking/2"

    workload: Workload = field(metadata=unit("", "requests to serve"))
    slo: Slo = field(metadata=unit("", "latency limits"))
    standings: tuple[Standing, ...] = field(metadata=unit("", "one entry per pair, the cheapest first"))
    flips: tuple[str, ...] = field(
        default=(), metadata=unit("", "changes of rent, format or engine, and whether they reverse the order of the first two")
    )

    @property
    def priced(self) -> tuple[Standing, ...]:
        """Standings with a plan and a cost, the cheapest first."""
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
            return f"No plan meets the limits: {self.standings[0].reason.rstrip('.')}."
        if not feasible:
            return f"No plan meets the limits, for {len(self.standings)} pairs of model and system."

        # Without any rent the order is by output per chip, so that no cost can be named.
        first, priced = feasible[0], self.priced
        if not priced:
            return (
                f"No rent is known. {self.called(first)} has the highest output: "
                f"{show(first.tokens_per_second_per_chip, 'tok/s')} per chip."
            )
        ties = sum(standing.tied for standing in priced[1:])
        tie_note = (
            f"; {ties} of {counted(len(priced) - 1, 'other pair')} may cost the same, since the ranges overlap" if ties else ""
        )
        span = "" if first.cost_range is None else f" (90 % range {usd(first.cost_range[0])} to {usd(first.cost_range[1])})"
        cost = f"{usd(first.usd_per_million_output_tokens)} per million output tokens, prefill included{span}"
        return f"{self.called(first)} is the cheapest: {cost}{tie_note}."

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the order: rents of several kinds, and the basis of the first range."""
        near = [standing for standing in self.priced if standing.tied or standing.place == 1]
        if not near:
            return ()
        first, kinds = near[0], dict.fromkeys(kind_in_words(standing.rent) for standing in near)
        notes = (
            [f"{self.called(first)}: {first.rests_on.replace('runs on other', 'the range comes from runs on other', 1)}"]
            if first.rests_on.startswith(("no run", "runs on other"))
            else []
        )
        if len(kinds) > 1:
            notes.append(
                f"the first rows have rents of several kinds ({', '.join(kinds)}); compare like with like by --rent contract"
            )
        return tuple(notes)

    def called(self, standing: Standing) -> str:
        """Return the name of a standing: its system, and its model if there are several.

        Args:
            standing: One entry of this ranking.

        Returns:
            The name.
        """
        several = len({row.model for row in self.standings}) > 1
        system = standing.label or standing.system
        return f"{standing.model} on {system}" if several else system

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return a title, and the cost of the first five pairs.

        Returns:
            The title, and costs or reasons in words by pair.
        """
        figures = {
            f"{standing.model} on {standing.system}": usd(standing.usd_per_million_output_tokens)
            if standing.feasible
            else standing.reason[:100]
            for standing in self.standings[:5]
        }
        return f"Ranking of {len(self.standings):,} pairs of model and system", figures

    def columns(self) -> dict[str, Any]:
        """Return one row per pair; a rent as kind, date and USD/s, a range as two columns.

        Returns:
            Columns by name, one value per pair.
        """
        table = {
            name: values
            for name, values in columns_by_key(Standing, self.standings).items()
            if name not in ("rent", f"{COST}_range")
        }
        for end, name in enumerate((f"{COST}_low", f"{COST}_high")):
            table[name] = [math.nan if standing.cost_range is None else standing.cost_range[end] for standing in self.standings]
        table["rent_usd_per_s"] = [float(standing.rent.typical) for standing in self.standings]
        return table | {"rent": [kind_and_date(standing.rent) for standing in self.standings]}
