"""Price lookup: finds the price list of a model at a seller, and the offers of an open model at all sellers.

The prices are those of a day and an hour: first prices and changes, removed tiers, promotions with an end, and peak hours.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from typing import Any, Final

from steptime.errors import InputError, RangeError, UnknownName, short_repr
from steptime.pricing import genai_prices_package
from steptime.pricing.bundled_prices import FIRST_PARTY, RESELLER, Row, closed_rows, dated_rows, match_family, open_rows, table
from steptime.pricing.price_list import PRICES, STANDARD, PriceList, Rates, checked, completed, joined, price
from steptime.result_base import unit
from steptime.units import parse

BEIJING: Final = timedelta(hours=8)
NEWEST: Final = date(2026, 11, 21)
"""The day on which the shipped rows were collected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A seller's standard price of a model with open weights, from one source."""

    provider: str = field(metadata=unit("", "seller"))
    role: str = field(metadata=unit("", "first-party, host, hyperscaler or reseller"))
    variant: str = field(metadata=unit("", "separate product such as turbo, fast, @0528, nvfp4; empty: the model itself"))
    input: float = price("input", "price of prompt tokens")
    output: float = price("output", "price of output tokens")
    cache_read: float = price("cache_read", "price of cached prompt tokens")
    matched: str = field(default="", metadata=unit("", "model id of the seller"))
    source: str = field(default="", metadata=unit("", "source of the price"))
    retrieval_date: str = field(default="", metadata=unit("", "day on which the source was read"))
    agreeing: int = field(default=1, metadata=unit("", "number of sources with this price"))
    disagreeing: str = field(default="", metadata=unit("", "prices in other sources"))
    grade: str = field(default="reported", metadata=unit("", "reliability of the source"))


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
    asked_time = read_time(price_time)
    moment = asked_time or noon(NEWEST)
    listed = _from_package(seller, model, asked_time, update=update) if genai_prices_package.installed() else None

    # Join the package with the shipped rows, then apply the rules of the day to the result.
    try:
        shipped = _on_time(_from_rows(seller, model, asked_time), moment)
    except InputError:
        if listed is None:
            raise
        price_list = replace(listed, notes=_on_time(listed, moment).notes)
    else:
        price_list = shipped if listed is None else joined(listed, shipped, _base_rows(shipped, moment))
    return checked(_completed(price_list, moment))


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
    known_names = {f"{row.provider}/{row.model}" for row in (*rows, *dated_rows())} | {row.family for row in open_rows()}
    hint = "Names of closed models are like openai/gpt-6-sol, of open ones like deepseek-v3."
    return UnknownName("model with a price", name, sorted(known_names), hint)


def _from_package(seller: str, model: str, asked_time: datetime | None, *, update: bool) -> PriceList | None:
    """Return the package's list, if it is reliable at that time.

    The package uses its first price for all earlier times, so times before the model's first row are rejected.
    """
    price_list = genai_prices_package.find(seller, model, asked_time or noon(NEWEST), update=update)
    rows = _dated(seller, model)
    # The package has peak hours without weekends; the shipped rule has both.
    is_ruled = any(_facts("hours", seller, model))
    if price_list is None or is_ruled or (asked_time is not None and rows and day_text(asked_time) < rows[0].since):
        return None
    read_date = datetime.now(UTC).date().isoformat() if update else str(NEWEST)[:7]
    return replace(price_list, price_time="" if asked_time is None else price_list.price_time, retrieval_date=read_date)


def _from_rows(seller: str, model: str, asked_time: datetime | None) -> PriceList:
    """Return the list of the shipped rows: the newest, or the dated rows of a time."""
    rows = [row for row in closed_rows() if (row.provider, row.model) == (seller, model)]
    if not rows:
        product = (seller, *match_family(model))
        rows = [row for row in open_rows() if (row.provider, row.family, row.variant) == product]
        rows = [row for row in rows if not row.service.startswith(("time", "off"))]

    # Dated rows may spell the model id with other capitals.
    ids = {row.model for row in dated_rows() if row.provider == seller and row.model.casefold() == model.casefold()}
    dated_id = next(iter(ids), model)
    dated = _dated(seller, dated_id)
    if not rows and not dated:
        raise _unknown_model(f"{seller}/{model}", [row for row in closed_rows() if row.provider == seller])
    day = day_text(asked_time or noon(NEWEST))
    if not dated or (asked_time is None and rows):
        since = min((row.since for row in rows if row.since), default="")
        if asked_time is not None and not "" < since <= day:
            reason = f"its first known price is from {since}" if since else "only its current price is known"
            raise RangeError(f"no price of {seller}/{model} is known on {day}: {reason}")
        return _listed(seller, model, rows)
    if day < dated[0].since:
        raise RangeError(f"no price of {seller}/{dated_id} is known on {day}: its first known price is from {dated[0].since}")

    # The newest dated row of each service and tier, with the cache prices of current rows.
    by_tier = {(row.service, row.above_tokens): row for row in dated if row.since <= day}
    newest_rows = [by_tier[key] for key in sorted(by_tier)]
    newest = max(newest_rows, key=lambda row: row.since)
    return PriceList(
        provider=seller,
        model=dated_id,
        rates=completed(tuple(map(_row_rates, newest_rows)), [row for row in rows if "" < row.since <= day]),
        price_time="" if asked_time is None else asked_time.strftime("%Y-%m-%dT%H:%MZ"),
        source=newest.source,
        retrieval_date=newest.since,
        grade=newest.grade,
    )


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
        provider=seller, model=model, rates=tuple(map(_row_rates, chosen_offers)), source=first.source,
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


def _completed(price_list: PriceList, moment: datetime) -> PriceList:
    """Return a list with values that only the shipped facts contain: lifetimes, storage, promised speeds, and a note on age."""
    seller, model = price_list.provider, price_list.model
    life: Mapping[str, Any] = next((fact for fact in table("facts")["caches"] if fact["provider"] == seller), {})
    lifetimes: dict[str, Any] = {name: parse(life[name], "s") for name in ("hold", "hold_long") if name in life}
    age = (moment.date() - NEWEST).days
    return replace(
        price_list,
        **lifetimes,
        storage=next((fact["usd"] for fact in _facts("storage", seller, model)), math.nan),
        speeds={fact["service"]: float(fact["times"]) for fact in _facts("speeds", seller, model)} | price_list.speeds,
        notes=(*price_list.notes, *([f"prices were collected on {NEWEST}, {age} days before"] if age > 0 else [])),
    )


# --- prices of a day and an hour ---------------------------------------------------------------------------------------


def read_time(text: str | date | datetime | None) -> datetime | None:
    """Parse a day (at noon) or a day and hour, in UTC.

    Args:
        text: ISO text, date, time, or None.

    Returns:
        Time with a time zone; None for None.

    Raises:
        RangeError: The text is not a day or time.

    >>> read_time("2026-03-01"), read_time("2026-11-20T02:00Z").hour
    (datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.timezone.utc), 2)
    """
    if text is None or isinstance(text, datetime):
        return text if text is None or text.tzinfo else text.replace(tzinfo=UTC)
    if isinstance(text, date):
        return noon(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise RangeError(
            f"--date: must be a day such as 2026-03-01, or an hour such as 2026-11-20T02:00Z, got {short_repr(text)}"
        ) from None
    if re.fullmatch(r"\d{4}-?\d{2}-?\d{2}", text.strip()):
        moment = moment.replace(hour=12)
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def noon(day: date) -> datetime:
    """Return noon of a day in UTC.

    Args:
        day: Day.

    Returns:
        Time.
    """
    return datetime.combine(day, time_of_day(12), tzinfo=UTC)


def day_text(moment: datetime) -> str:
    """Return the day of a time as ISO text, which sorts by time like the days of the rows.

    Args:
        moment: Time.

    Returns:
        Text such as "2026-03-01".
    """
    return moment.date().isoformat()


def _row_rates(row: Row) -> Rates:
    prices = {name: getattr(row, name) for name in PRICES}
    return Rates(service=row.service, above_tokens=row.above_tokens, source=f"{row.source}, {row.retrieval_date}", **prices)


def _dated(provider: str, model: str) -> list[Row]:
    """Return the dated rows of a model, the oldest first."""
    return [row for row in dated_rows() if (row.provider, row.model) == (provider, model)]


def _base_rows(price_list: PriceList, moment: datetime) -> list[Row]:
    """Return the dated standard rows of a model up to a time, without tiers, the oldest first."""
    rows = [row for row in _dated(price_list.provider, price_list.model) if row.since <= day_text(moment)]
    return [row for row in rows if row.service == STANDARD and not row.above_tokens]


def _facts(kind: str, provider: str, model: str) -> Iterator[Mapping[str, Any]]:
    return (fact for fact in table("facts").get(kind, ()) if fact["provider"] == provider and model in fact["models"])


def _on_time(price_list: PriceList, moment: datetime) -> PriceList:
    """Apply the shipped facts of a time to a list: removed tiers, promotions with an end, and peak hours."""
    rates, notes, day = price_list.rates, list(price_list.notes), day_text(moment)
    product = price_list.provider, price_list.model
    for fact in _facts("dropped", *product):
        if day >= fact["date"] and any(r.above_tokens == fact["above_tokens"] for r in rates):
            rates = tuple(r for r in rates if r.above_tokens != fact["above_tokens"])
            notes.append(f"{fact['note']} ({fact['date']})")
    for fact in _facts("changes", *product):
        if day >= fact["from"]:
            rates = tuple(_changed(r, fact) for r in rates)
            notes.append(f"{fact['note']}; these are the prices since {fact['from']}")
        else:
            notes.append(f"{fact['note']}; from {fact['from']}: {fact['input']:g} in, {fact['output']:g} out USD/M")
    for fact in _facts("hours", *product):
        if day >= fact["from"]:
            times, words = _hour(fact, moment)
            rates = tuple(r.times(times) if r.service == STANDARD else r for r in rates)
            notes.append(words)
    return replace(price_list, rates=rates, notes=tuple(notes))


def _changed(rates: Rates, change: Mapping[str, Any]) -> Rates:
    """Return the rates after a change: standard rates as recorded, others in proportion to input."""
    if rates.service == STANDARD and not rates.above_tokens:
        return replace(rates, **{name: change[name] for name in PRICES if name in change})
    return rates.times(2.0 if rates.service == "batch" else 1.0)


def _hour(rule: Mapping[str, Any], moment: datetime) -> tuple[float, str]:
    """Return the factor on the off-peak price at a time, and its reason."""
    # Weekends follow the calendar of Beijing; the hours are in UTC.
    hours = f"at {' and '.join(rule['peak'])} UTC on weekdays in Beijing"
    is_weekend = (moment + BEIJING).weekday() >= 5 and day_text(moment) >= rule["weekends_from"]
    for span in rule["peak"]:
        start, end = map(time_of_day.fromisoformat, span.split("-"))
        if start <= moment.time() < end and not is_weekend:
            return float(rule["times"]), f"peak: {rule['times']:g} times the off-peak price {hours}"
    reason = f"off-peak price; {rule['times']:g} times as expensive {hours}"
    return 1.0, reason + (" (a weekend)" if is_weekend else "")


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
    asked_time = read_time(price_time)
    if update:
        genai_prices_package.snapshot(update=True)
    if asked_time is None:
        offers = [_offer(row) for row in open_rows() if _is_standard(row, family) and row.input + row.output > 0]
    else:
        offers = _dated_offers(family, day_text(asked_time))

    # The package has no start dates, so it counts only for the month of the collection and later.
    if genai_prices_package.installed() and (asked_time is None or asked_time.date() >= NEWEST.replace(day=1)):
        offers += _package_offers(family, asked_time or noon(NEWEST), offers, update=update)
    return tuple(sorted(offers, key=lambda offer: (offer.role == RESELLER, offer.input + offer.output, offer.provider)))


def _is_standard(row: Row, family: str) -> bool:
    return row.family == family and row.service == STANDARD and not row.above_tokens


def _offer(row: Row, **changes: Any) -> Offer:
    """Return the offer of a row."""
    names = (offer_field.name for offer_field in fields(Offer) if offer_field.name != "matched")
    return Offer(**({name: getattr(row, name) for name in names} | changes))


def _dated_offers(family: str, day: str) -> list[Offer]:
    """Return the newest dated row of each seller up to a day; raise RangeError before the first."""
    rows = [row for row in dated_rows() if _is_standard(row, family)]
    newest = {(row.provider, row.model): row for row in rows if row.since <= day}

    # Never use a later price for an earlier day.
    if not newest:
        reason = f"its first known price is from {rows[0].since}" if rows else "it has no dated prices"
        raise RangeError(f"no price of {family} is known on {day}: {reason}; leave --date out for the newest")
    roles = {row.provider: row.role for row in open_rows()}
    return [
        _offer(row, role=roles.get(row.provider, "host"), variant=match_family(row.model)[1], matched=row.model)
        for row in newest.values()
    ]


def _package_offers(family: str, moment: datetime, shipped: list[Offer], *, update: bool) -> list[Offer]:
    """Return the offers of the package that the shipped rows do not contain."""
    roles = {row.provider: row.role for row in open_rows()}
    known_offers = {(offer.provider, offer.variant, offer.input, offer.output) for offer in shipped}
    package_offers = []
    for variant, listed in genai_prices_package.find_family(family, moment, update=update):
        base, seller = listed.base, listed.provider
        if (seller, variant, base.input, base.output) not in known_offers:
            package_offers.append(
                Offer(
                    provider=seller, role=roles.get(seller, RESELLER if seller.startswith("huggingface") else "host"),
                    variant=variant, input=base.input, output=base.output, cache_read=base.cache_read, matched=listed.model,
                    source=listed.source, retrieval_date=str(NEWEST)[:7],
                )
            )  # fmt: skip
    return package_offers
