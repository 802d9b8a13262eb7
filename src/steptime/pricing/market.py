"""Market of an open model: prices at all sellers, token costs on plausible systems, and margins, with their limitations."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import Any, ClassVar, NamedTuple

import numpy as np

from steptime.catalog.hardware_loading import quotes
from steptime.errors import InputError, RangeError, UnknownName, did_you_mean, short_repr
from steptime.hardware.rental_prices import RENTED, usd
from steptime.hardware.system import System
from steptime.models.model import Model, active_parameters, cache_bytes_read, total_parameters
from steptime.models.model_loading import load_model
from steptime.number_checks import positive
from steptime.planning.plan_messages import trained_context_warning
from steptime.planning.planner import MODES
from steptime.pricing.bundled_prices import (
    FIRST_PARTY,
    RESELLER,
    Row,
    closed_rows,
    dated_rows,
    match_family,
    open_rows,
    spelled,
)
from steptime.pricing.kv_storage_cost import Hold, holds, tiers
from steptime.pricing.price_estimate import assumed, prior_coverage
from steptime.pricing.price_list import have_same_prices
from steptime.pricing.price_lookup import NEWEST, Offer, find_offers, read_time
from steptime.pricing.serving_costs import (
    HOPPER,
    SOLD_EVIDENCE,
    USUAL,
    TokenCost,
    cheapest,
    mean_of_hopper,
    plausible,
    read_chips,
    scaled,
    token_costs,
)
from steptime.result_base import Tabular, columns_by_key, unit
from steptime.units import MILLION, count, counted
from steptime.workload.workload import Workload, limits

# Rows collected after this month belong to the current market.
CURRENT = "2026-06"
# Minimum number of sellers of a model in calibrations.
LEAST_SELLERS = 3
# Maximum number of sellers that a note names.
MAX_NAMED_SELLERS = 3
# Weight format of hosts that serve a checkpoint as it is.
NATIVE = "native"


def market_caveats(market: Market) -> list[str]:
    """Return the limitations of a market.

    They cover sellers outside the median, sources that disagree, and the accuracy of margins.

    Args:
        market: Market.

    Returns:
        Notes.
    """
    notes = [] if market.provider else uncounted(market)
    differ = {f"{offer.provider} {offer.variant}".strip() for offer in market.offers if offer.disagreeing}
    if differ:
        names = sorted(differ)[:MAX_NAMED_SELLERS] + ["others"] * (len(differ) > MAX_NAMED_SELLERS)
        notes.append(f"price sources disagree on {', '.join(names)}; the price in most sources is used, and --csv FILE has all")
    offers = [market.offers[index] for index in market.sold]
    if len(offers) < LEAST_SELLERS and not market.provider:
        seller_words = f"only {counted(len(offers), 'seller')} in the current market"
        notes.append(f"{seller_words}: calibrations use models with at least {LEAST_SELLERS}")

    # Equal prices are not independent evidence of a market price.
    makers = [offer for offer in offers if offer.role == FIRST_PARTY]
    hosts = [offer for offer in offers if offer.role != FIRST_PARTY]
    same = [offer for offer in hosts if any(have_same_prices(offer, maker, rel_tol=0.01) for maker in makers)]
    if same:
        notes.append(
            f"{len(same)} of {counted(len(hosts), 'host')} have the maker's price; sellers copy each other, so "
            "there are far fewer independent prices"
        )
    coverage = prior_coverage("margin")
    notes.append(
        f"for {coverage.hits} of {coverage.trials} open models, price / cost in aggregated mode on H100 and H200 is 0.5 to 10; "
        "--read uses these ratios"
    )
    notes.append(_load_note(market))
    return notes


def _load_note(market: Market) -> str:
    """Return price / cost at the reported utilization, since the cost assumes chips that are always busy."""
    low, high = assumed("utilisation")
    span = f"{100 * low:.0f} to {100 * high:.0f} % of the day"
    ratios = {margin.system: margin.median for margin in system_margins(market)} if market.costs else {}
    best = market.best
    if best is None or best.system not in ratios:
        return (
            f"costs assume chips that are always busy; real chips are busy {span} (reported), so multiply price / cost by that"
        )
    places = {best.system: best.system} | ({"hopper": market.hopper_words} if "hopper" in ratios else {})
    lines = " and ".join(f"{low * ratios[key]:.1f} to {high * ratios[key]:.1f} on {name}" for key, name in places.items())
    return f"full load is chips that are always busy; at the reported {span}, price / cost is {lines}"


def uncounted(market: Market) -> list[str]:
    """Return the note on sellers outside the median, with the first reason.

    Args:
        market: Market.

    Returns:
        List with at most one note.
    """
    # Each seller gets the first reason that applies.
    inside = {market.offers[index].provider for index in market.counted}
    reasons: dict[str, set[str]] = {
        "with the role reseller": set(),
        "with another variant only": set(),
        "without a price since June 2026": set(),
    }
    resells, other_variants, old = reasons.values()
    for name in {offer.provider for offer in market.offers} - inside:
        mine = [offer for offer in market.offers if offer.provider == name]
        same = [offer for offer in mine if offer.variant == market.variant]
        kind = resells if all(offer.role == RESELLER for offer in mine) else old if same else other_variants
        kind.add(name)
    reason_clauses = [f"{len(names)} {why} ({', '.join(sorted(names))})" for why, names in reasons.items() if names]
    return [f"sellers outside the median: {'; '.join(reason_clauses)}"] if reason_clauses else []


# Context at which KV bytes per token are computed for storage [tokens].
FAR = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """A request: prompt tokens, output tokens, and the share of the prompt in a cache."""

    input_tokens: float = field(default=4096, metadata=unit("tokens", "prompt length"))
    output_tokens: float = field(default=1024, metadata=unit("tokens", "output length"))
    cached_share: float = field(default=0.0, metadata=unit("", "share of the prompt that is in a cache"))

    def price(self, offer: Offer | Row) -> float:
        """Return the price of the request.

        Args:
            offer: Prices of a seller; without a discount, cached input costs as much as input.

        Returns:
            USD.
        """
        cached = self.input_tokens * self.cached_share
        cache_read = offer.cache_read if math.isfinite(offer.cache_read) else offer.input
        new_input = (self.input_tokens - cached) * offer.input
        return (new_input + cached * cache_read + self.output_tokens * offer.output) / MILLION

    def workload(self) -> Workload:
        """Return the request as a workload.

        Returns:
            Workload.
        """
        return Workload(input_tokens=self.input_tokens, output_tokens=self.output_tokens, cached_share=self.cached_share)


def read_mix(text: str | Mix | None) -> Mix:
    """Parse a request such as "4096:1024:0.5": prompt, output, cached share.

    Args:
        text: Text, a request, or None for the default request.

    Returns:
        Request.

    Raises:
        RangeError: The text has another form, or a value is out of range.

    >>> read_mix("4k:1k").input_tokens
    4000.0
    """
    if not isinstance(text, str):
        return text or Mix()
    parts = text.split(":")
    try:
        if not 2 <= len(parts) <= 3:
            raise ValueError
        tokens = [float(count(part, "--mix")) for part in parts[:2]]
        mix = Mix(input_tokens=tokens[0], output_tokens=tokens[1], cached_share=float(parts[2]) if parts[2:] else 0.0)
    except ValueError:
        raise RangeError(
            f"--mix: must be prompt, output and cached share such as 4096:1024:0.5, got {short_repr(text)}"
        ) from None
    mix.workload()
    return mix


@dataclass(frozen=True, slots=True, kw_only=True)
class Margins:
    """Margins of sellers on one system: price of a request over its cost on a busy chip."""

    system: str = field(metadata=unit("", "name of the system, or hopper: the geometric mean of H100 and H200, or one of them"))
    median: float = field(metadata=unit("", "margin of the median seller"))
    aggregated: float = field(
        default=math.nan, metadata=unit("", "margin of the median seller over the cost in aggregated mode, as in calibrations")
    )
    range: tuple[float, float] = field(metadata=unit("", "90 % range of the median, from the range of the cost"))
    lowest: float = field(metadata=unit("", "margin of the cheapest seller"))
    highest: float = field(metadata=unit("", "margin of the most expensive seller"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Market(Tabular):
    """A model at its sellers; as a table, one row per offer, with the margin on the cheapest system."""

    SCHEMA: ClassVar[str] = "steptime.prices/2"

    model: str = field(metadata=unit("", "name of the model in the catalogue"))
    family: str = field(metadata=unit("", "name of the model in price rows"))
    variant: str = field(default="", metadata=unit("", "variant such as @0324 or turbo; empty: the model itself"))
    provider: str = field(default="", metadata=unit("", "the only seller; empty: all sellers"))
    weights: str = field(metadata=unit("", "weight format of hosts; native: as in the config"))
    chips: str = field(
        default="", metadata=unit("", "chips of each plan as asked: a number or usual; empty: 64, or one domain if larger")
    )
    evidence: str = field(default=SOLD_EVIDENCE, metadata=unit("", "evidence that layouts must have, as in a plan"))
    mix: Mix = field(metadata=unit("", "request"))
    speed: float = field(metadata=unit("tok/s", "speed of each user"))
    ttft: float = field(default=math.inf, metadata=unit("s", "limit on the time to first token; null: none"))
    price_time: str = field(default="", metadata=unit("", "day of the prices; empty: the newest known"))
    offers: tuple[Offer, ...] = field(metadata=unit("", "offers, the cheapest first, resellers last"))
    prices: tuple[float, ...] = field(metadata=unit("USD", "price of the request at each offer", key="usd_per_request"))
    costs: tuple[TokenCost, ...] = field(metadata=unit("", "costs on plausible systems"))
    margins: tuple[Margins, ...] = field(metadata=unit("", "margins on each system that serves the model"))
    left_out: dict[str, str] = field(metadata=unit("", "systems without a plan, with the reason"))
    holds: tuple[Hold, ...] = field(default=(), metadata=unit("", "memory tiers for the KV cache"))
    active: float = field(default=math.nan, metadata=unit("", "active parameters", key="active_parameters"))
    total: float = field(default=math.nan, metadata=unit("", "total parameters", key="total_parameters"))
    kv_bytes: float = field(default=math.nan, metadata=unit("B", "KV bytes per token at 32k tokens", key="kv_bytes_per_token"))
    notes: tuple[str, ...] = field(default=(), metadata=unit("", "limitations"))

    @property
    def sold(self) -> tuple[int, ...]:
        """Positions of the offers of this product in the current market, without resellers, one per seller.

        If sources disagree on a seller's price, the price in most sources counts.
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
        """Positions of the offers in the median: those in `sold`, else all offers of the product, else all offers."""
        same = tuple(index for index, offer in enumerate(self.offers) if offer.variant == self.variant)
        return self.sold or same or tuple(range(len(self.offers)))

    @property
    def median_price(self) -> float:
        """Price of a request at the median seller [USD]."""
        return float(np.median([self.prices[index] for index in self.counted]))

    @property
    def product(self) -> str:
        """Family and variant."""
        return f"{self.family} {self.variant}".strip()

    @property
    def who(self) -> str:
        """Sellers in the median, as text."""
        if self.provider:
            variants = {self.offers[index].variant for index in self.counted} - {self.variant}
            variant_words = (
                f" only as {' and '.join(sorted(variant or 'the model itself' for variant in variants))}" if variants else ""
            )
            return f"{self.provider} offers {self.product}{variant_words}"
        if self.sold:
            verb = "offers" if len(self.sold) == 1 else "offer"
            return f"{counted(len(self.sold), 'seller')} {verb} {self.product}"
        providers = {self.offers[index].provider for index in self.counted}
        why = (
            f"Only resellers offer {self.product}"
            if all(self.offers[index].role == RESELLER for index in self.counted)
            else f"No seller of {self.product} has a price since June 2026"
        )
        return f"{why} ({', '.join(sorted(providers)[:3])})"

    @property
    def hopper_words(self) -> str:
        """Systems of the margin on Hopper, as text: one of the two may not serve the model."""
        served = {cost.system for cost in self.costs if cost.feasible}
        names = [name for name in HOPPER if name in served]
        return "H100 and H200" if len(names) > 1 else ", ".join(names)

    @property
    def best(self) -> TokenCost | None:
        """Lowest cost of a request on a system."""
        return cheapest(self.costs)

    @property
    def text(self) -> str:
        """The answer in a few sentences."""
        sellers = self.who
        request_price = (
            f"a request of {self.mix.input_tokens:,.0f} input and {self.mix.output_tokens:,.0f} output tokens "
            f"costs {usd(self.median_price)}"
        )
        if len(self.counted) > 1:
            request_price += " at the median seller"
        best = self.best

        if best is None:
            return f"{sellers}; {request_price}; no plausible system serves the model at {self.speed:g} tok/s."
        margins = {margin.system: margin for margin in self.margins}
        comparisons = [
            f"{margins[best.system].median:.1f} times its cost on {best.system} ({usd(best.usd_per_request)}, {best.mode})"
        ]
        if "hopper" in margins:
            margin = margins["hopper"]
            comparisons.append(f"{margin.median:.1f} times ({margin.range[0]:.1f} to {margin.range[1]:.1f}) on Hopper")

        # The mode changes the margin, so mention the calibrated mode if it differs.
        text = f"{sellers}; {request_price}, {' and '.join(comparisons)}."
        if (
            "hopper" in margins
            and math.isfinite(margin.aggregated)
            and not math.isclose(margin.aggregated, margin.median, rel_tol=0.05)
        ):
            text += f" The price is {margin.aggregated:.1f} times the cost on Hopper in aggregated mode."
        return text

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the product and its cheapest offers.

        Returns:
            Title, and price by seller.
        """
        first = sorted(self.counted, key=lambda index: self.prices[index])[:5]
        title = f"Prices of {self.product} at {counted(len(first), 'seller')} of {len(self.counted)}"
        return title, {self.offers[index].provider: f"{usd(self.prices[index])} per request" for index in first}

    def columns(self) -> dict[str, Any]:
        """Return the table of offers.

        Returns:
            Columns by name, one row per offer.
        """
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
    ttft: float | None = None,
    mix: Mix | str | None = None,
    mode: tuple[str, ...] = MODES,
    hold: dict[str, float] | None = None,
    chips: int | str | None = None,
    evidence: str = SOLD_EVIDENCE,
    catalog: str | None = None,
    update: bool = False,
) -> Market:
    """Compare the prices of an open model at all sellers with its token costs.

    The costs come from one plan per plausible system (`serving_costs`), including the cost in aggregated mode.

    Args:
        model: Model with open weights.
        provider: Only this seller.
        price_time: Day of prices and rents; by default the newest.
        speed: Speed of each user [tok/s].
        ttft: Limit on the time to first token [s]; None: no limit.
        mix: Request, as "4096:1024:0.5" or a `Mix`.
        mode: Serving modes, aggregated or disaggregated; each plan uses the cheaper.
        hold: Storage cost by memory tier [USD per GB-hour].
        chips: Chips of each plan: a number, or "usual" for the default of `plan`; by default 64, or one scale-up domain if
            that is larger.
        evidence: Layouts to prefer, as in `plan`.
        catalog: Folder of additional catalogue entries.
        update: Whether to download the newest prices first.

    Returns:
        Offers, costs and margins.

    Raises:
        InputError: No seller of the model is known.
    """
    product = family_named(model)
    family = product.family
    request = read_mix(mix)

    # Offers at the time of the prices; a seller filter applies after the note on undated sellers.
    offers = find_offers(family, price_time, update=update)
    if not offers:
        raise InputError(f"no seller of {family} is known")
    dated = [] if price_time is None else _date_caveats(offers, find_offers(family), read_time(price_time))
    if provider is not None:
        offers = offers_of_seller(offers, provider, family)

    # Costs of the same request on each plausible system, at the rents of that time.
    loaded = product.load(catalog)
    machines, excluded_systems = plausible(catalog)
    slo = limits(speed=positive("--speed", speed, "tok/s"), ttft=ttft)
    if chips is not None and chips != USUAL:
        chips = read_chips(chips)
    options: dict[str, Any] = {"modes": mode, "front": False, "aggregated": True, "chips": chips, "evidence": evidence}
    costs = list(token_costs(loaded, machines, request.workload(), slo, **options))
    costs, rent_notes = _at_rents(costs, machines, read_time(price_time), catalog)
    prices = tuple(request.price(offer) for offer in offers)
    bytes_ = float(cache_bytes_read(loaded, float(FAR))) / FAR
    best = cheapest(costs)
    market = Market(
        model=loaded.name, family=family, variant=product.variant, provider=offers[0].provider if provider else "",
        weights=product.weights, chips="" if chips is None else str(chips), evidence=evidence, mix=request,
        speed=speed, ttft=slo.ttft, price_time="" if price_time is None else str(price_time),
        offers=offers, prices=prices, costs=tuple(costs), margins=(), left_out=excluded_systems,
        active=active_parameters(loaded), total=total_parameters(loaded), kv_bytes=bytes_,
    )  # fmt: skip

    # Storage of a KV cache competes with a new prefill and is paid for by cache hits.
    remake = math.nan if best is None else min(c.input_usd_per_million for c in costs if c.feasible)
    cache_read_prices = [offers[index].cache_read for index in market.sold if math.isfinite(offers[index].cache_read)]
    cache_holds = holds(bytes_, remake, float(np.median(cache_read_prices)) if cache_read_prices else math.nan, tiers(hold))
    return replace(
        market,
        margins=tuple(system_margins(market)),
        holds=cache_holds,
        notes=(*product_caveats(product, loaded, request), *dated, *rent_notes, *market_caveats(market)),
    )


def product_caveats(product: SoldModel, model: Model, request: Mix) -> list[str]:
    """Return the limitations of a product's costs: another model's, and requests beyond its context.

    Args:
        product: Model as sellers offer it.
        model: Model whose costs are computed.
        request: Request.

    Returns:
        Notes.
    """
    notes = []
    if match_family(product.catalogue)[0] != product.family:
        notes.append(f"costs are those of {model.name}, the closest model in the catalogue to {product.family}")
    too_long = trained_context_warning(request.input_tokens + request.output_tokens, model.max_context)
    return [*notes, too_long] if too_long else notes


def _date_caveats(offers: Iterable[Offer], now: Iterable[Offer], price_time: datetime | None) -> list[str]:
    """Return the limitations of offers of a day: sellers without dates, and a day after the collection."""
    notes = []
    undated = sorted({offer.provider for offer in now} - {offer.provider for offer in offers})
    if undated:
        notes.append(
            f"{counted(len(undated), 'current seller')} left out ({', '.join(undated)}): "
            "the prices have no dates, or start later"
        )
    if price_time is not None and price_time.date() > NEWEST:
        notes.append(f"prices are those of {NEWEST}, the day of collection, {(price_time.date() - NEWEST).days} days earlier")
    return notes


class SoldModel(NamedTuple):
    """A model with open weights as sellers offer it; an empty variant is the model itself."""

    family: str
    weights: str
    catalogue: str
    variant: str = ""

    def load(self, catalog: str | None) -> Model:
        """Load the model in the weight format of most hosts.

        Args:
            catalog: Folder of additional catalogue entries.

        Returns:
            Model.
        """
        return load_model(self.catalogue, weights="fp8" if self.weights == "fp8" else "", catalog=catalog)


def family_named(model: str) -> SoldModel:
    """Return the family, weight format, catalogue model and variant of a name.

    Args:
        model: Model name.

    Returns:
        Model as sellers offer it.

    Raises:
        UnknownName: The model is unknown.
        InputError: Nobody sells the model or the variant, or its weights are closed.
    """
    family, variant = match_family(model)
    rows = [row for row in open_rows() if row.family == family]
    if rows:
        # The date in the name is that of the only release, so it is not a variant.
        if variant == spelled(rows[0].catalogue)[1]:
            variant = ""
        known_variants = {row.variant for row in rows}
        known_variants |= {match_family(row.model)[1] for row in dated_rows() if row.family == family}
        if variant not in known_variants:
            other_variants = ", ".join(sorted(known_variants - {""})) or "none"
            raise InputError(
                f"no seller of the variant {variant} of {family} is known; it is a separate product from {family}; "
                f"variants for sale: {other_variants}"
            )
        return SoldModel(family, rows[0].weights, rows[0].catalogue, variant)
    names = sorted({row.family for row in open_rows()})

    # The name is not an open model with a price: find out why, for a useful message.
    closed = next(
        (row for row in closed_rows() if model.strip().casefold() in (row.model, f"{row.provider}/{row.model}")), None
    )
    if closed is not None:
        raise InputError(
            f"{closed.provider}/{closed.model} has closed weights, so its serving cost is not known; "
            f"estimate its size from its prices: prices {closed.provider}/{closed.model} --read"
        )
    try:
        loaded = load_model(model)
    except InputError:
        raise UnknownName(
            "model with a price", model, names, "Closed models need the name of their seller and --read: openai/gpt-6-sol."
        ) from None
    family, _ = match_family(loaded.name)
    rows = [row for row in open_rows() if row.family == family]
    if not rows:
        near = " or ".join(did_you_mean(loaded.name.rpartition("/")[2], names))
        raise InputError(
            f"{loaded.name} is in the catalogue, but no seller of it is known"
            + (f"; similar models for sale: {near}" if near else "")
        )
    return SoldModel(family, rows[0].weights, rows[0].catalogue)


def offers_of_seller(offers: tuple[Offer, ...], provider: str, family: str) -> tuple[Offer, ...]:
    """Return the offers of one seller.

    Args:
        offers: Offers of a model.
        provider: Seller.
        family: Name of the model, for the message.

    Returns:
        Its offers.

    Raises:
        UnknownName: The seller has none.
    """
    seller_offers = tuple(offer for offer in offers if offer.provider == provider.strip().casefold())
    if not seller_offers:
        sellers = sorted({offer.provider for offer in offers})
        raise UnknownName(f"seller of {family}", provider, sellers, f"Sellers: {', '.join(sellers)}.")
    return seller_offers


def system_margins(market: Market) -> list[Margins]:
    """Return the margins on Hopper, then on each system.

    Args:
        market: Market.

    Returns:
        Margins; systems that cannot serve the model are missing.
    """
    prices = [market.prices[index] for index in market.counted]
    feasible = sorted((cost for cost in market.costs if cost.feasible), key=lambda cost: cost.usd_per_request)

    # Cost of a request by system, with the ends of its range, and in aggregated mode.
    figures = {
        cost.system: (cost.usd_per_request, *(cost.usd_per_request_range or (cost.usd_per_request,) * 2),
                      cost.aggregated_usd_per_request)
        for cost in feasible
    }  # fmt: skip
    hopper = [mean_of_hopper({name: values[position] for name, values in figures.items()}) for position in range(4)]

    # The range of the margin comes from the cost; prices are exact.
    middle = float(np.median(prices))
    return [
        Margins(
            system=name,
            median=middle / cost,
            aggregated=middle / aggregated,
            range=(middle / high, middle / low),
            lowest=min(prices) / cost,
            highest=max(prices) / cost,
        )
        for name, (cost, low, high, aggregated) in {"hopper": hopper, **figures}.items()
        if math.isfinite(cost)
    ]


def rent_on(chip: str, day: date, catalog: str | None = None) -> tuple[float, str]:
    """Return the newest rent of a chip up to a day.

    Args:
        chip: Chip name.
        day: Day.
        catalog: Folder of additional catalogue entries.

    Returns:
        Rent [USD/s] and its date; NaN and the first date before the first rent.
    """
    mine = [(d, figure.value) for quote, d, figure in quotes(catalog) if quote.chip == chip and quote.kind in RENTED]
    known_rents = sorted((d, value) for d, value in mine if date.fromisoformat(d) <= day)
    if not known_rents:
        return math.nan, min((d for d, _ in mine), default="")

    # Several lists may have the same date; their median is the rent of that day.
    last = known_rents[-1][0]
    return float(np.median([value for d, value in known_rents if d == last])), last


def _at_rents(
    costs: list[TokenCost], machines: list[System], time: datetime | None, catalog: str | None
) -> tuple[list[TokenCost], list[str]]:
    """Return costs at the rents of a day; without a rent on that day, the cost is unchanged and a note added."""
    if time is None:
        return costs, []
    rescaled_costs, notes = [], []
    for cost, machine in zip(costs, machines, strict=True):
        rent, _ = rent_on(machine.chip.name, time.date(), catalog)
        if math.isfinite(rent):
            rescaled_costs.append(scaled(cost, rent / float(machine.rent.typical)))
        else:
            rescaled_costs.append(cost)
            notes.append(f"no rent of {machine.chip.name} is known on {time.date()}; the rent of {machine.rent.date} is used")
    return rescaled_costs, notes
