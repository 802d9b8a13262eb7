"""What to mind of a model's sellers: who is not in the median, where sources disagree, who copies whom.

A model at all its sellers: what they ask, what its tokens cost on plausible systems, and the margin between.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from steptime.catalog.hardware_loading import quotes
from steptime.errors import InputError, RangeError, UnknownName, short_repr
from steptime.hardware.rental_prices import RENTED
from steptime.hardware.system import System
from steptime.hardware.unit_cost import usd
from steptime.models.model import active_parameters, cache_bytes_read, total_parameters
from steptime.models.model_loading import load_model
from steptime.number_checks import positive
from steptime.planning.planner import MODES
from steptime.planning.workload import Workload, limits
from steptime.pricing.bundled_prices import FIRST_PARTY, RESELLER, closed_rows, dated_rows, open_rows
from steptime.pricing.kv_storage_cost import Hold, holds, tiers
from steptime.pricing.model_names import match_family, spelled
from steptime.pricing.open_model_market import CURRENT, LEAST_SELLERS, mean_of_hopper
from steptime.pricing.price_estimate import prior_coverage
from steptime.pricing.price_lookup import Offer, find_offers
from steptime.pricing.price_validity import NEWEST, read_time
from steptime.pricing.serving_costs import TokenCost, cheapest, plausible, scaled, token_costs
from steptime.result_base import Tabular, columns_by_key, unit
from steptime.units import MILLION, counted

if TYPE_CHECKING:
    from steptime.pricing.price_lookup import Offer


# sellers that a note names, where there may be dozens
MAX_NAMED_SELLERS = 3


def market_caveats(market: Market) -> list[str]:
    """Return what to mind of a market: who is not in the median, where sources disagree, how far a margin goes."""
    notes = [] if market.provider else uncounted(market)
    differ = {
        f"{offer.provider} {offer.variant}".strip(): offer.disagreeing.replace(";", ", ")
        for offer in market.offers
        if offer.disagreeing
    }
    if differ:
        examples = [f"{name} ({disagreeing} elsewhere)" for name, disagreeing in sorted(differ.items())[:MAX_NAMED_SELLERS]]
        remainder = f" and {len(differ) - MAX_NAMED_SELLERS} more" if len(differ) > MAX_NAMED_SELLERS else ""
        notes.append(
            f"sources disagree on {', '.join(examples)}{remainder}: what most of them say is taken, "
            "and --csv FILE has what others say"
        )
    offers = [market.offers[index] for index in market.sold]
    if len(offers) < LEAST_SELLERS and not market.provider:
        seller_words = (
            f"{counted(len(offers), 'seller')} of the present market is" if len(offers) == 1 else f"{len(offers)} sellers are"
        )
        notes.append(f"{seller_words} no market: margins of fewer than {LEAST_SELLERS} are in no calibration")
    makers = [offer for offer in offers if offer.role == FIRST_PARTY]
    hosts = [offer for offer in offers if offer.role != FIRST_PARTY]
    same = [offer for offer in hosts if any(_has_same_price(offer, maker) for maker in makers)]
    if same:
        notes.append(
            f"{len(same)} of {counted(len(hosts), 'host')} ask what the maker asks; sellers copy one another, so that "
            "they are far fewer independent draws"
        )
    coverage = prior_coverage("margin")
    notes.append(
        f"in aggregated mode on Hopper, {coverage.hits} of {coverage.trials} models with at least {LEAST_SELLERS} "
        "sellers have margins of 0.5 to 10: priors of margins are fitted on that cost"
    )
    notes.append("margin is price over the cost of a busy chip: 30 to 60 % of the day (reported) leave 0.3 to 0.6 of it")
    return notes


def uncounted(market: Market) -> list[str]:
    """Return the note of sellers that are shown and are not in the median, each by the first reason that holds."""
    inside = {market.offers[index].provider for index in market.counted}
    reasons: dict[str, set[str]] = {
        "resell it": set(),
        "sell another variant alone": set(),
        "were last read before June 2026": set(),
    }
    resells, other_variants, old = reasons.values()
    for name in {offer.provider for offer in market.offers} - inside:
        mine = [offer for offer in market.offers if offer.provider == name]
        same = [offer for offer in mine if offer.variant == market.variant]
        kind = resells if all(offer.role == RESELLER for offer in mine) else old if same else other_variants
        kind.add(name)
    reason_clauses = [f"{len(names)} {why} ({', '.join(sorted(names))})" for why, names in reasons.items() if names]
    return [f"shown, and not in the median: {'; '.join(reason_clauses)}"] if reason_clauses else []


def _has_same_price(offer: Offer, other_offer: Offer) -> bool:
    """Whether two offers are the same to 1 %."""
    return math.isclose(offer.input, other_offer.input, rel_tol=0.01) and math.isclose(
        offer.output, other_offer.output, rel_tol=0.01
    )


# tokens of context at which bytes of a cache are told for holding it
FAR = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """A request: tokens of its prompt and answer, and the share of the prompt that a cache holds."""

    input_tokens: float = field(default=4096, metadata=unit("tokens", "of a prompt"))
    output_tokens: float = field(default=1024, metadata=unit("tokens", "of an answer"))
    cached_share: float = field(default=0.0, metadata=unit("", "share of the prompt that a cache holds"))

    def price(self, input_: float, output: float, cache_read: float) -> float:
        """USD that such a request is sold for, at prices in USD per million."""
        cached = self.input_tokens * self.cached_share
        return ((self.input_tokens - cached) * input_ + cached * cache_read + self.output_tokens * output) / MILLION

    def workload(self) -> Workload:
        """Return it as a plan takes it."""
        return Workload(input_tokens=self.input_tokens, output_tokens=self.output_tokens, cached_share=self.cached_share)


def read_mix(text: str) -> Mix:
    """Read a request as "4096:1024:0.5": prompt, answer, cached share.

    >>> read_mix("4k:1k").input_tokens
    4000.0
    """
    from steptime.units import count

    parts = text.split(":")
    try:
        if not 2 <= len(parts) <= 3:
            raise ValueError
        share = float(parts[2]) if len(parts) == 3 else 0.0
        mix = Mix(
            input_tokens=float(count(parts[0], "--mix")), output_tokens=float(count(parts[1], "--mix")), cached_share=share
        )
    except ValueError:
        raise RangeError(f"--mix takes prompt, answer and cached share as 4096:1024:0.5, not {short_repr(text)}") from None
    mix.workload()
    return mix


@dataclass(frozen=True, slots=True, kw_only=True)
class Margins:
    """What sellers take over the cost of a request on one system: price over cost of a busy chip."""

    system: str = field(metadata=unit("", "name of the system, or hopper: the geometric mean of H100 and H200"))
    median: float = field(metadata=unit("", "of the median seller"))
    aggregated: float = field(
        default=math.nan, metadata=unit("", "of the median seller over the cost in aggregated mode, as margins are calibrated")
    )
    range: tuple[float, float] = field(metadata=unit("", "its 90 % range, by the cost's"))
    lowest: float = field(metadata=unit("", "of the cheapest seller"))
    highest: float = field(metadata=unit("", "of the dearest one"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Market(Tabular):
    """A model at its sellers. As a table it is its offers, a row each, with the margin on the cheapest system."""

    SCHEMA: ClassVar[str] = "steptime.prices/2"

    model: str = field(metadata=unit("", "name of the model in the catalogue"))
    family: str = field(metadata=unit("", "what price rows call it"))
    variant: str = field(default="", metadata=unit("", "product of it that is told of: @0324, turbo; empty: the model itself"))
    provider: str = field(default="", metadata=unit("", "the one seller that was asked for; empty: all"))
    weights: str = field(metadata=unit("", "format that hosts keep it in; native: as its config says"))
    mix: Mix = field(metadata=unit("", "the request that is told of"))
    speed: float = field(metadata=unit("tok/s", "of each user"))
    price_time: str = field(default="", metadata=unit("", "day that was asked for; empty: the newest known"))
    offers: tuple[Offer, ...] = field(metadata=unit("", "the cheapest first, resellers last"))
    prices: tuple[float, ...] = field(metadata=unit("USD", "of the request at each offer", key="usd_per_request"))
    costs: tuple[TokenCost, ...] = field(metadata=unit("", "on plausible systems"))
    margins: tuple[Margins, ...] = field(metadata=unit("", "on each system that serves it"))
    left_out: dict[str, str] = field(metadata=unit("", "systems that were not planned for, with the reason"))
    holds: tuple[Hold, ...] = field(default=(), metadata=unit("", "tiers of memory for its cache"))
    active: float = field(default=math.nan, metadata=unit("", "active parameters", key="active_parameters"))
    total: float = field(default=math.nan, metadata=unit("", "total parameters", key="total_parameters"))
    kv_bytes: float = field(default=math.nan, metadata=unit("B", "of cache a token, at 32k tokens", key="kv_bytes_per_token"))
    notes: tuple[str, ...] = field(default=(), metadata=unit("", "what to mind"))

    @property
    def sold(self) -> tuple[int, ...]:
        """Places of the offers that count: of this product and the present market, no resellers, one of each seller.

        Of a seller's prices that sources disagree on it is the one that most of them tell.
        """
        index_by_provider: dict[str, int] = {}
        for index, offer in sorted(
            enumerate(self.offers), key=lambda indexed_offer: (-indexed_offer[1].agreeing, self.prices[indexed_offer[0]])
        ):
            if offer.variant == self.variant and offer.role != RESELLER and (self.price_time or offer.retrieval_date > CURRENT):
                index_by_provider.setdefault(offer.provider, index)
        return tuple(sorted(index_by_provider.values()))

    @property
    def counted(self) -> tuple[int, ...]:
        """Places of the offers that the median is of: those that count, or where there are none all of the product."""
        same = tuple(index for index, offer in enumerate(self.offers) if offer.variant == self.variant)
        return self.sold or same or tuple(range(len(self.offers)))

    @property
    def median_price(self) -> float:
        """USD of a request at the median seller."""
        return float(np.median([self.prices[index] for index in self.counted]))

    @property
    def product(self) -> str:
        """What is told of: the family, and its variant where one is asked for."""
        return f"{self.family} {self.variant}".strip()

    @property
    def who(self) -> str:
        """Who sells it: those that the median is of, in words."""
        if self.provider:
            variants = {self.offers[index].variant for index in self.counted} - {self.variant}
            variant_words = (
                f" as {' and '.join(sorted(variant or 'the model itself' for variant in variants))} alone" if variants else ""
            )
            return f"{self.provider} sells {self.product}{variant_words}"
        if self.sold:
            return f"{self.product} is sold by {counted(len(self.sold), 'seller')}"
        providers = {self.offers[index].provider for index in self.counted}
        why = (
            "resellers alone"
            if all(self.offers[index].role == RESELLER for index in self.counted)
            else "no seller that was read since June 2026"
        )
        return f"{self.product} is sold by {why} ({', '.join(sorted(providers)[:3])})"

    @property
    def best(self) -> TokenCost | None:
        """Where a request costs least."""
        return cheapest(self.costs)

    @property
    def text(self) -> str:
        """The answer in a sentence."""
        sellers = self.who
        request_price = (
            f"a request of {self.mix.input_tokens:,.0f} in and {self.mix.output_tokens:,.0f} out costs {usd(self.median_price)}"
        )
        if len(self.counted) > 1:
            request_price += " at the median one"
        best = self.best
        if best is None:
            return f"{sellers}; {request_price}, and no plausible system serves it at {self.speed:g} tok/s."
        margins = {margin.system: margin for margin in self.margins}
        comparisons = [
            f"{margins[best.system].median:.1f} times its cost on {best.system} ({usd(best.usd_per_request)}, {best.mode})"
        ]
        if "hopper" in margins:
            margin = margins["hopper"]
            comparisons.append(f"{margin.median:.1f} times ({margin.range[0]:.1f} to {margin.range[1]:.1f}) on Hopper")
        text = f"{sellers}; {request_price}, {' and '.join(comparisons)}."
        if (
            "hopper" in margins
            and math.isfinite(margin.aggregated)
            and not math.isclose(margin.aggregated, margin.median, rel_tol=0.05)
        ):
            text += f" In aggregated mode it is {margin.aggregated:.1f} times the cost on Hopper."
        return text

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the sentence and the cheapest offers."""
        first = sorted(self.counted, key=lambda index: self.prices[index])[:5]
        title = f"Prices of {self.product} at {counted(len(first), 'seller')} of {len(self.counted)}"
        return title, {self.offers[index].provider: f"{usd(self.prices[index])} a request" for index in first}

    def columns(self) -> dict[str, Any]:
        """Return a row for each offer."""
        best = self.best
        cost = math.nan if best is None else best.usd_per_request
        columns = columns_by_key(Offer, self.offers) | {"usd_per_request": list(self.prices)}
        return columns | {
            "margin": [price / cost for price in self.prices],
            "margin_on": ["" if best is None else best.system] * len(self.prices),
        }


def survey_prices(
    model: str,
    *,
    provider: str | None = None,
    price_time: str | datetime | None = None,
    speed: float = 40.0,
    mix: Mix | str | None = None,
    mode: tuple[str, ...] = MODES,
    hold: dict[str, float] | None = None,
    catalog: str | None = None,
    update: bool = False,
) -> Market:
    """Return a model with open weights at all its sellers, with what its tokens cost and the margin between.

    provider: one seller alone. price_time: the day of prices and rents. speed [tok/s] of each user; mix: the request:
    "4096:1024:0.5". mode: aggregated, disaggregated or both, of which the cheaper is taken as in `plan`. Costs are a plan on
    each plausible system (`costs`); each has the cost in aggregated mode with it.
    """
    family, weights, catalogue, variant = family_named(model)
    request = read_mix(mix) if isinstance(mix, str) else mix or Mix()
    offers = find_offers(family, price_time, update=update)
    if not offers:
        raise InputError(f"no seller is known of {family}")
    dated = [] if price_time is None else _date_caveats(offers, find_offers(family), read_time(price_time))
    if provider is not None:
        offers = _of_seller(offers, provider, family)
    loaded = load_model(catalogue, weights="fp8" if weights == "fp8" else "", catalog=catalog)
    machines, excluded_systems = plausible(catalog)
    slo = limits(speed=positive("--speed", speed, "tok/s"))
    costs = list(token_costs(loaded, machines, request.workload(), slo, modes=mode, front=False, aggregated=True))
    notes = [] if weights == "native" else ["weights are taken to be in FP8, as most hosts keep them"]
    costs, rent_notes = _at_rents(costs, machines, read_time(price_time), catalog)
    prices = tuple(request.price(offer.input, offer.output, offer.effective_cache_read) for offer in offers)
    bytes_ = float(cache_bytes_read(loaded, float(FAR))) / FAR
    best = cheapest(costs)
    market = Market(
        model=loaded.name, family=family, variant=variant, provider=offers[0].provider if provider else "",
        weights=weights, mix=request, speed=speed, price_time="" if price_time is None else str(price_time),
        offers=offers, prices=prices, costs=tuple(costs), margins=(), left_out=excluded_systems,
        active=active_parameters(loaded), total=total_parameters(loaded), kv_bytes=bytes_,
    )  # fmt: skip
    remake = math.nan if best is None else min(c.input_usd_per_million for c in costs if c.feasible)
    cache_read_prices = [offers[index].cache_read for index in market.sold if math.isfinite(offers[index].cache_read)]
    cache_holds = holds(bytes_, remake, float(np.median(cache_read_prices)) if cache_read_prices else math.nan, tiers(hold))
    return replace(
        market,
        margins=tuple(system_margins(market)),
        holds=cache_holds,
        notes=(*notes, *dated, *rent_notes, *market_caveats(market)),
    )


def _date_caveats(offers: Iterable[Offer], now: Iterable[Offer], price_time: datetime | None) -> list[str]:
    """Return what is to be minded of offers of a day, beside those of now: prices without dates, and a day yet to come."""
    notes = []
    undated = sorted({offer.provider for offer in now} - {offer.provider for offer in offers})
    if undated:
        notes.append(
            f"{counted(len(undated), 'seller')} that sell it now ({', '.join(undated)}) are left out: their prices have no "
            "dates, or began later"
        )
    if price_time is not None and price_time.date() > NEWEST:
        notes.append(
            f"prices were collected on {NEWEST}, {(price_time.date() - NEWEST).days} days before, and are those of then"
        )
    return notes


class SoldModel(NamedTuple):
    """A model with open weights as sellers have it; variant: "" is the model itself."""

    family: str
    weights: str
    catalogue: str
    variant: str = ""


def family_named(model: str) -> SoldModel:
    """Return the family that a name means, the format of its weights, its model in the catalogue, and which product it is.

    Raises UnknownName with the nearest; InputError for a model of the catalogue, or a variant, that nobody sells.
    """
    family, variant = match_family(model)
    rows = [row for row in open_rows() if row.family == family]
    if rows:
        # its only release
        if variant == spelled(rows[0].catalogue)[1]:
            variant = ""
        known_variants = {row.variant for row in rows}
        known_variants |= {match_family(row.model)[1] for row in dated_rows() if row.family == family}
        if variant not in known_variants:
            other_variants = ", ".join(sorted(known_variants - {""})) or "none"
            raise InputError(
                f"no seller of the variant {variant} of {family} is known, and it is another product than {family} itself; "
                f"variants that are sold: {other_variants}"
            )
        return SoldModel(family, rows[0].weights, rows[0].catalogue, variant)
    names = sorted({row.family for row in open_rows()})
    closed = next(
        (row for row in closed_rows() if model.strip().casefold() in (row.model, f"{row.provider}/{row.model}")), None
    )
    if closed is not None:
        raise InputError(
            f"{closed.provider}/{closed.model} is sold by its maker, and what it costs to serve is not known: read its list "
            f"backward, prices {closed.provider}/{closed.model} --read"
        )
    try:
        loaded = load_model(model)
    except InputError:
        raise UnknownName(
            "model with a price", model, names, "Closed models are named with their seller, and --read: openai/gpt-6-sol."
        ) from None
    family, _ = match_family(loaded.name)
    rows = [row for row in open_rows() if row.family == family]
    if not rows:
        from steptime.errors import did_you_mean

        near = " or ".join(did_you_mean(loaded.name.rpartition("/")[2], names))
        raise InputError(
            f"{loaded.name} is in the catalogue, and no seller of it is known" + (f"; sold are {near}" if near else "")
        )
    return SoldModel(family, rows[0].weights, rows[0].catalogue)


def _of_seller(offers: tuple[Offer, ...], provider: str, family: str) -> tuple[Offer, ...]:
    seller_offers = tuple(offer for offer in offers if offer.provider == provider.strip().casefold())
    if not seller_offers:
        sellers = sorted({offer.provider for offer in offers})
        raise UnknownName(f"seller of {family}", provider, sellers, f"It is sold by {', '.join(sellers)}.")
    return seller_offers


def system_margins(market: Market) -> list[Margins]:
    """Return the margins on Hopper, then on each system."""
    prices = [market.prices[index] for index in market.counted]
    able = [token_cost for token_cost in market.costs if token_cost.feasible]
    costs = {token_cost.system: token_cost.usd_per_request for token_cost in able}
    ends = {token_cost.system: token_cost.usd_per_request_range or (token_cost.usd_per_request,) * 2 for token_cost in able}
    aggregated_costs = {
        token_cost.system: token_cost.aggregated_usd_per_request
        for token_cost in able
        if math.isfinite(token_cost.aggregated_usd_per_request)
    }
    aggregated_costs["hopper"] = mean_of_hopper(aggregated_costs)
    rows = [("hopper", mean_of_hopper(costs), tuple(mean_of_hopper({k: v[end] for k, v in ends.items()}) for end in (0, 1)))]
    rows += [
        (token_cost.system, token_cost.usd_per_request, ends[token_cost.system])
        for token_cost in sorted(able, key=lambda token_cost: token_cost.usd_per_request)
    ]
    middle = float(np.median(prices))
    return [
        Margins(
            system=name,
            median=middle / cost,
            aggregated=middle / aggregated_costs.get(name, math.nan),
            range=(middle / both[1], middle / both[0]),
            lowest=min(prices) / cost,
            highest=max(prices) / cost,
        )
        for name, cost, both in rows
        if math.isfinite(cost)
    ]


def rent_on(chip: str, day: date, catalog: str | None = None) -> tuple[float, str]:
    """Return the newest rent of a chip up to a day [USD/s], with its date; not a number before the first."""
    mine = [(d, figure.value) for quote, d, figure in quotes(catalog) if quote.chip == chip and quote.kind in RENTED]
    known_rents = sorted((d, value) for d, value in mine if date.fromisoformat(d) <= day)
    if not known_rents:
        return math.nan, min((d for d, _ in mine), default="")
    last = known_rents[-1][0]
    return float(np.median([value for d, value in known_rents if d == last])), last


def _at_rents(
    costs: list[TokenCost], machines: list[System], time: datetime | None, catalog: str | None
) -> tuple[list[TokenCost], list[str]]:
    """Return costs at the rents of a day; where none is known then, at the first."""
    if time is None:
        return costs, []
    rescaled_costs, notes = [], []
    for cost, machine in zip(costs, machines, strict=True):
        rent, _ = rent_on(machine.chip.name, time.date(), catalog)
        if math.isfinite(rent):
            rescaled_costs.append(scaled(cost, rent / float(machine.rent.typical)))
        else:
            rescaled_costs.append(cost)
            notes.append(f"no rent of {machine.chip.name} is known on {time.date()}; that of {machine.rent.date} stands for it")
    return rescaled_costs, notes
