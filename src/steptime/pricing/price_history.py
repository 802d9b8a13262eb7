"""Price history: dated prices of a model, with GPU rents on the same days."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import date
from typing import ClassVar

from steptime.catalog.hardware_loading import load_system
from steptime.errors import InputError, short_repr
from steptime.number_checks import positive
from steptime.pricing.bundled_prices import Row, dated_rows, match_family, open_rows
from steptime.pricing.market import Mix, family_named, read_mix, rent_on
from steptime.pricing.price_lookup import find_list
from steptime.pricing.serving_costs import HOPPER, mean_of_hopper, token_costs
from steptime.result_base import Tabular, unit
from steptime.units import counted, show
from steptime.workload.workload import limits

# Chip of the rents: the chip with the most dated lists.
CHIP = "h100"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dated:
    """A price that starts on a day, and the rent on that day."""

    day: str = field(metadata=unit("", "first day of the price"))
    provider: str = field(metadata=unit("", "seller"))
    model: str = field(metadata=unit("", "model id of the seller"))
    input: float = field(metadata=unit("USD", "price of prompt tokens", key="input_usd_per_million_tokens"))
    output: float = field(metadata=unit("USD", "price of output tokens", key="output_usd_per_million_tokens"))
    usd_per_request: float = field(metadata=unit("USD", "price of the request", key="usd_per_request"))
    rent: float = field(default=math.nan, metadata=unit("USD/s", "rent of an H100 on the newest list up to that day"))
    rent_listed: str = field(default="", metadata=unit("", "day of the rent list"))
    margin: float = field(default=math.nan, metadata=unit("", "price over cost on Hopper at that rent; null if unknown"))
    source: str = field(default="", metadata=unit("", "source of the price and of its day"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PriceHistory(Tabular):
    """Dated prices of a model, the oldest first; as a table, one row per price."""

    SCHEMA: ClassVar[str] = "steptime.price-history/2"
    ROWS: ClassVar[tuple[str, type]] = ("rows", Dated)

    name: str = field(metadata=unit("", "name of the model"))
    rows: tuple[Dated, ...] = field(metadata=unit("", "prices, the oldest first"))
    notes: tuple[str, ...] = field(default=(), metadata=unit("", "limitations"))

    @property
    def text(self) -> str:
        """The answer in one sentence."""
        first, last = self.rows[0], self.rows[-1]
        # A change is a new price of the same model at the same seller, not a lower price of another seller.
        changed = [b.usd_per_request / a.usd_per_request for a, b in self._pairs() if b.usd_per_request != a.usd_per_request]
        dated, changes = counted(len(self.rows), "dated price"), counted(len(changed), "change")
        sentence = f"{self.name} has {dated} from {first.day} to {last.day}, {changes}"
        if changed:
            ends = sorted({f"x{min(changed):.2g}", f"x{max(changed):.2g}"}, reverse=min(changed) > max(changed))
            sentence += f" ({' to '.join(ends)})"
        if math.isfinite(first.rent) and math.isfinite(last.rent):
            sentence += f"; an H100 rented for {show(first.rent, 'USD/s')} then and {show(last.rent, 'USD/s')} at the end"
        return sentence + "."

    def _pairs(self) -> list[tuple[Dated, Dated]]:
        """Return consecutive prices of one model id at one seller."""
        newest: dict[tuple[str, str], Dated] = {}
        pairs = []
        for row in self.rows:
            before = newest.get((row.provider, row.model))
            if before is not None:
                pairs.append((before, row))
            newest[row.provider, row.model] = row
        return pairs

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the model and its last five prices.

        Returns:
            Title, and text by day and seller.
        """
        return f"Prices of {self.name} over time", {
            f"{r.day} {r.provider}": f"{r.input:g} in, {r.output:g} out USD/M" for r in self.rows[-5:]
        }


def price_history(
    model: str, *, provider: str | None = None, speed: float = 40.0, mix: Mix | str | None = None, catalog: str | None = None
) -> PriceHistory:
    """Return the dated prices of a model.

    Args:
        model: Model with open weights, or a seller's model such as "openai/o3".
        provider: Only this seller.
        speed: Speed of each user for the cost [tok/s].
        mix: Request, as "4096:1024:0.5" or a `Mix`.
        catalog: Folder of additional catalogue entries.

    Returns:
        Prices with rents and margins.

    Raises:
        InputError: No dated price is known.
    """
    request = read_mix(mix)
    family, _ = match_family(model)
    if family:
        # Raises for a variant that nobody sells.
        family_named(model)
        rows = [row for row in dated_rows() if row.family == family]
    else:
        listed = find_list(model, provider)
        rows = [r for r in dated_rows() if (r.provider, r.model.casefold()) == (listed.provider, listed.model.casefold())]
        family = listed.name
    rows = [row for row in rows if row.service == "standard" and not row.above_tokens]
    rows = [row for row in rows if provider is None or row.provider == provider]
    if not rows:
        have = sorted({row.provider for row in dated_rows() if row.family == family})
        elsewhere = f" at {short_repr(provider)}; sellers with dated prices: {', '.join(have)}" if have else ""
        raise InputError(f"no dated price of {family} is known{elsewhere}")
    cost = _cost(family, request, speed, catalog) if any(row.family == family for row in open_rows()) else math.nan
    now = float(load_system(HOPPER[0], catalog).rent.typical)
    dated_prices = tuple(_dated(row, request, cost, now, catalog) for row in rows)

    # A cost is known for models with open weights only; it scales with the rent of the day.
    notes = ["rents before the first dated list are unknown, so margins before it are missing"] if any(
        not math.isfinite(dated_price.rent) for dated_price in dated_prices
    ) else []  # fmt: skip
    if math.isfinite(cost):
        notes.append(
            "margins use the cost of a current engine, in the cheaper of aggregated and disaggregated mode, at the rent of the "
            "day; engines of that day were slower"
        )
    return PriceHistory(name=family, rows=dated_prices, notes=tuple(notes))


def _cost(family: str, mix: Mix, speed: float, catalog: str | None) -> float:
    """Return the cost of the request on Hopper at current rents [USD]."""
    machines = [load_system(name, catalog) for name in HOPPER]
    slo = limits(speed=positive("--speed", speed, "tok/s"))
    costs = token_costs(family_named(family).load(catalog), machines, mix.workload(), slo, front=False)
    return mean_of_hopper({cost.system: cost.usd_per_request for cost in costs if cost.feasible})


def _dated(row: Row, mix: Mix, cost: float, now: float, catalog: str | None) -> Dated:
    price = mix.price(row)
    rent, listed = rent_on(CHIP, date.fromisoformat(row.since), catalog)
    return Dated(
        day=row.since, provider=row.provider, model=row.model, input=row.input, output=row.output, usd_per_request=price,
        rent=rent, rent_listed=listed if math.isfinite(rent) else "", margin=price / (cost * rent / now),
        source=f"{row.source}, {row.grade}",
    )  # fmt: skip
