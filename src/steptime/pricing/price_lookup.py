"""Price lookup: finds the price list of a model at a seller, and the offers of an open model at all sellers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from datetime import time as time_of_day
from typing import Any, Final

from steptime.errors import InputError, RangeError, UnknownName
from steptime.pricing import genai_prices_package
from steptime.pricing.bundled_prices import FIRST_PARTY, RESELLER, Row, closed_rows, dated_rows, match_family, open_rows, table
from steptime.pricing.price_list import STANDARD, PriceList, checked, completed, joined
from steptime.pricing.price_validity import NEWEST, base_rows, first_day, on_day, on_time, read_time, row_rates
from steptime.result_base import unit
from steptime.units import parse

# Noon of the day on which the shipped prices were collected.
_NOON: Final = datetime.combine(NEWEST, time_of_day(12), tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A seller's standard price of a model with open weights, from one source."""

    provider: str = field(metadata=unit("", "seller"))
    role: str = field(metadata=unit("", "first-party, host, hyperscaler or reseller"))
    variant: str = field(metadata=unit("", "separate product such as turbo, fast, @0528, nvfp4; empty: the model itself"))
    input: float = field(metadata=unit("USD", "price of prompt tokens", key="input_usd_per_million_tokens"))
    output: float = field(metadata=unit("USD", "price of output tokens", key="output_usd_per_million_tokens"))
    cache_read: float = field(metadata=unit("USD", "price of cached prompt tokens", key="cache_read_usd_per_million_tokens"))
    matched: str = field(default="", metadata=unit("", "model id of the seller"))
    source: str = field(default="", metadata=unit("", "source of the price"))
    retrieval_date: str = field(default="", metadata=unit("", "day on which the source was read"))
    agreeing: int = field(default=1, metadata=unit("", "number of sources with this price"))
    disagreeing: str = field(default="", metadata=unit("", "prices in other sources"))
    grade: str = field(default="reported", metadata=unit("", "reliability of the source"))

    @property
    def effective_cache_read(self) -> float:
        """Price of a cached token: the input price if there is no discount."""
        return self.cache_read if math.isfinite(self.cache_read) else self.input


def find_list(
    name: str, provider: str | None = None, price_time: str | datetime | None = None, *, update: bool = False
) -> PriceList:
    """Find the price list of a model at a seller.

    The package genai-prices has priority if it is installed. The shipped rows of the same time fill its gaps. If the two
    disagree, a note of the list has both prices.

    Args:
        name: "seller/model" such as "openai/gpt-6-sol", or a model.
        provider: Seller.
        price_time: Day or hour of the list; by default the newest.
        update: Whether to download the newest prices first.

    Returns:
        Price list.

    Raises:
        UnknownName: The seller or model is unknown.
        RangeError: No price is known at that time.
    """
    if update:
        genai_prices_package.snapshot(update=True)
    seller, model = _split(name, provider)
    time = read_time(price_time)
    price_time = time or _NOON
    listed = _from_package(seller, model, time, update=update) if genai_prices_package.installed() else None

    # Join the package with the shipped rows, then apply the rules of the day to the result.
    try:
        shipped = _from_rows(seller, model, time)
    except InputError:
        if listed is None:
            raise
        _, notes = on_time(listed.provider, listed.model, listed.rates, price_time)
        return checked(_completed(replace(listed, notes=(*listed.notes, *notes)), price_time))
    rates, notes = on_time(shipped.provider, shipped.model, shipped.rates, price_time)
    shipped = replace(shipped, rates=rates, notes=(*shipped.notes, *notes))
    return checked(
        _completed(
            shipped if listed is None else joined(listed, shipped, base_rows(shipped.provider, shipped.model, price_time)),
            price_time,
        )
    )


def _split(name: str, provider: str | None) -> tuple[str, str]:
    """Return the seller and the model; raise UnknownName for an unknown name."""
    front, _, model = name.strip().partition("/") if "/" in name else ("", "", name.strip())
    rows = closed_rows()
    sellers = {row.provider for row in (*rows, *open_rows(), *dated_rows())}
    seller = (provider or front).strip().casefold().replace("x-ai", "xai")
    if provider and front and front.casefold() not in (seller, provider.casefold()):
        model = name.strip()

    # Without a seller, a closed model belongs to its maker, and an open model to its maker if it sells the model.
    if not seller:
        having = sorted({row.provider for row in rows if row.model == model.casefold()})
        if having:
            return having[0] if len(having) == 1 else _maker(having, model), model.casefold()
        if match_family(name)[0]:
            return _open_model_maker(match_family(name)[0]), name.strip()
        raise _unknown_model(name, rows)
    if seller not in sellers:
        raise UnknownName(
            "provider", provider or front, sellers, f"Known: {len(sellers)} sellers, such as openai, anthropic, google."
        )
    return seller, model.casefold() if any(row.provider == seller for row in rows) else model


def _maker(having: list[str], model: str) -> str:
    """Return the maker of a model that several sellers offer."""
    makers = {"claude": "anthropic", "gemini": "google", "gpt": "openai", "grok": "xai", "o": "openai"}
    return next((maker for start, maker in makers.items() if model.startswith(start) and maker in having), having[0])


def _open_model_maker(family: str) -> str:
    """Return the maker of an open model if it sells the model; else raise InputError with the sellers."""
    rows = [row for row in open_rows() if row.family == family]
    makers = [row.provider for row in rows if row.role == FIRST_PARTY]
    if not makers:
        sellers = ", ".join(sorted({row.provider for row in rows}))
        raise InputError(f"the maker of {family} does not sell it: choose a seller with --provider NAME, one of {sellers}")
    return makers[0]


def _unknown_model(name: str, rows: Iterable[Row]) -> UnknownName:
    known_names = {f"{row.provider}/{row.model}" for row in rows} | {row.family for row in open_rows()}
    known_names |= {f"{row.provider}/{row.model}" for row in dated_rows()}
    return UnknownName(
        "model with a price",
        name,
        known_names,
        "Names of closed models are like openai/gpt-6-sol, of open ones like deepseek-v3.",
    )


def _from_package(seller: str, model: str, time: datetime | None, *, update: bool) -> PriceList | None:
    """Return the package's list, if it is reliable at that time.

    The package uses its first price for all earlier times, so times before the model's first row are rejected.
    """
    price_list = genai_prices_package.find(seller, model, time or _NOON, update=update)
    first = first_day(seller, model)
    if price_list is None or (time is not None and first and time.date() < date.fromisoformat(first)):
        return None
    ruled = any(fact["provider"] == seller and model in fact["models"] for fact in table("facts")["hours"])
    # The package has peak hours without weekends; the shipped rule has both.
    if ruled:
        return None
    read_date = datetime.now(UTC).date().isoformat() if update else str(NEWEST)[:7]
    return replace(price_list, price_time="" if time is None else price_list.price_time, retrieval_date=read_date)


def _from_rows(seller: str, model: str, time: datetime | None) -> PriceList:
    """Return the list of the shipped rows: the newest, or the dated rows of a time."""
    rows = [row for row in closed_rows() if (row.provider, row.model) == (seller, model)]
    rows = rows or _open_at(seller, model)

    # Dated rows may spell the model id with other capitals.
    ids = {row.model for row in dated_rows() if row.provider == seller and row.model.casefold() == model.casefold()}
    dated = next(iter(ids), model)
    first = first_day(seller, dated)
    if not rows and not first:
        raise _unknown_model(f"{seller}/{model}", [row for row in closed_rows() if row.provider == seller])
    if (time is None and rows) or (time is not None and not first):
        since = min((row.since for row in rows if row.since), default="")
        if time is not None and (not since or time.date() < date.fromisoformat(since)):
            reason = f"its first known price is from {since}" if since else "only its current price is known"
            raise RangeError(f"no price of {seller}/{model} is known on {time.date()}: {reason}")
        return _listed(seller, model, rows)
    price_time = time or _NOON
    rates, newest = on_day(seller, dated, price_time)
    if newest is None:
        raise RangeError(f"no price of {seller}/{dated} is known on {price_time.date()}: its first known price is from {first}")
    rates = completed(rates, [row for row in rows if row.since and date.fromisoformat(row.since) <= price_time.date()])
    return PriceList(
        provider=seller, model=dated, rates=rates, price_time="" if time is None else price_time.strftime("%Y-%m-%dT%H:%MZ"),
        source=newest.source, retrieval_date=newest.since, grade=newest.grade,
    )  # fmt: skip


def _open_at(seller: str, model: str) -> list[Row]:
    family, variant = match_family(model)
    rows = [row for row in open_rows() if (row.family, row.variant, row.provider) == (family, variant, seller)]
    return [row for row in rows if not row.service.startswith(("time", "off"))]


def _listed(seller: str, model: str, rows: list[Row]) -> PriceList:
    """Return rows as a list: for each service and tier the row with the most sources; other prices become notes."""
    best: dict[tuple[str, float], Row] = {}
    for row in sorted(rows, key=lambda row: (-row.agreeing, row.source)):
        # Sources differ by one token in thresholds such as 200,000 and 199,999.
        near = next((key for key in best if key[0] == row.service and 0 < abs(key[1] - row.above_tokens) <= 1), None)
        best.setdefault(near or (row.service, row.above_tokens), row)
    # A threshold in few sources is probably an error if more sources have the same prices at another one.
    best = {key: row for key, row in best.items() if not _outvoted(key, best)}
    chosen_offers = [best[key] for key in sorted(best)]
    first = best.get((STANDARD, 0.0), chosen_offers[0])
    notes = [f"other sources have {row.disagreeing} USD/M" for row in chosen_offers if row.disagreeing]
    return PriceList(
        provider=seller, model=model, rates=tuple(map(row_rates, chosen_offers)), source=first.source,
        retrieval_date=first.retrieval_date, grade=first.grade, notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip


def _outvoted(key: tuple[str, float], best: Mapping[tuple[str, float], Row]) -> bool:
    """Check whether more sources have the same prices at another threshold."""
    row = best[key]
    return any(
        other_key != key and other_key[0] == key[0] and key[1] > 0 and (offer.input, offer.output) == (row.input, row.output)
        and offer.agreeing > row.agreeing
        for other_key, offer in best.items()
    )  # fmt: skip


def _completed(price_list: PriceList, price_time: datetime) -> PriceList:
    """Return a list with values that only the shipped facts contain: lifetimes, storage, promised speeds, and a note on age."""
    # Price lists contain neither lifetimes of caches nor promised speeds.
    facts, notes = table("facts"), list[str]()
    life: Mapping[str, Any] = next(
        (cache_fact for cache_fact in facts["caches"] if cache_fact["provider"] == price_list.provider), {}
    )
    storage = next(
        (o["usd"] for o in facts["storage"] if o["provider"] == price_list.provider and price_list.model in o["models"]),
        math.nan,
    )
    speeds = {
        o["service"]: float(o["times"])
        for o in facts["speeds"]
        if o["provider"] == price_list.provider and price_list.model in o["models"]
    }
    if price_time.date() > NEWEST:
        notes.append(f"prices were collected on {NEWEST}, {(price_time.date() - NEWEST).days} days before")
    return replace(
        price_list,
        hold=parse(life["hold"], "s") if "hold" in life else math.nan,
        hold_long=parse(life["hold_long"], "s") if "hold_long" in life else math.nan,
        storage=storage,
        speeds=speeds | price_list.speeds,
        notes=(*price_list.notes, *notes),
    )


# --- models with open weights ------------------------------------------------------------------------------------------


def find_offers(family: str, price_time: str | datetime | None = None, *, update: bool = False) -> tuple[Offer, ...]:
    """Find the standard offers of an open model at all sellers.

    Args:
        family: Family of the model.
        price_time: Day or hour of the prices; by default the newest.
        update: Whether to download the newest prices first.

    Returns:
        Offers of the shipped rows, and those of the package that differ; the cheapest first, resellers last.

    Raises:
        RangeError: No price is known at that time.
    """
    time = read_time(price_time)
    if update:
        genai_prices_package.snapshot(update=True)
    offers = [_offer(row) for row in open_rows() if _standard(row, family)] if time is None else _dated_offers(family, time)

    # The package has no start dates, so it counts only for the month of the collection and later.
    if genai_prices_package.installed() and (time is None or time.date() >= NEWEST.replace(day=1)):
        offers += _package_offers(family, time, offers, update=update)
    return tuple(sorted(offers, key=lambda offer: (offer.role == RESELLER, offer.input + offer.output, offer.provider)))


def _standard(row: Row, family: str) -> bool:
    return row.family == family and row.service == STANDARD and not row.above_tokens and row.input + row.output > 0


def _offer(row: Row) -> Offer:
    return Offer(
        provider=row.provider, role=row.role, variant=row.variant, input=row.input, output=row.output,
        cache_read=row.cache_read, source=row.source, retrieval_date=row.retrieval_date, agreeing=row.agreeing,
        disagreeing=row.disagreeing, grade=row.grade,
    )  # fmt: skip


def _dated_offers(family: str, time: datetime) -> list[Offer]:
    """Return the newest dated row of each seller up to a time; raise RangeError before the first."""
    newest: dict[tuple[str, str], Row] = {}
    rows = [row for row in dated_rows() if row.family == family and row.service == STANDARD and not row.above_tokens]
    for row in rows:
        if date.fromisoformat(row.since) <= time.date():
            newest[row.provider, row.model] = row

    # Never use a later price for an earlier day.
    if not newest:
        reason = f"its first known price is from {rows[0].since}" if rows else "it has no dated prices"
        raise RangeError(f"no price of {family} is known on {time.date()}: {reason}; leave --date out for the newest")
    roles = {row.provider: row.role for row in open_rows()}
    return [
        Offer(
            provider=row.provider,
            role=roles.get(row.provider, "host"),
            variant=match_family(row.model)[1],
            input=row.input,
            output=row.output,
            cache_read=row.cache_read,
            matched=row.model,
            source=row.source,
            retrieval_date=row.since,
            grade=row.grade,
        )
        for row in newest.values()
    ]


def _package_offers(family: str, time: datetime | None, have: list[Offer], *, update: bool) -> list[Offer]:
    price_time = time or _NOON
    roles = {row.provider: row.role for row in open_rows()}
    known_offers = {(offer.provider, offer.variant, offer.input, offer.output) for offer in have}
    other_offers = []

    # Offers that the shipped rows already contain are not repeated.
    for variant, listed in genai_prices_package.find_family(family, price_time, update=update):
        base = listed.base
        if (listed.provider, variant, base.input, base.output) in known_offers:
            continue
        role = roles.get(listed.provider, RESELLER if listed.provider.startswith("huggingface") else "host")
        other_offers.append(
            Offer(
                provider=listed.provider,
                role=role,
                variant=variant,
                input=base.input,
                output=base.output,
                cache_read=base.cache_read,
                matched=listed.model,
                source=listed.source,
                retrieval_date=str(NEWEST)[:7],
            )
        )
    return other_offers
