"""Price validity: the prices that apply on a day and at an hour.

It covers first prices and changes, removed tiers, promotions with an end, and peak hours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final

from steptime.errors import RangeError, short_repr
from steptime.pricing.bundled_prices import Row, dated_rows, table
from steptime.pricing.price_list import PRICES, STANDARD, Rates

BEIJING: Final = timedelta(hours=8)
NEWEST: Final = date(2026, 11, 21)
"""The day on which the shipped rows were collected."""


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
        return datetime.combine(text, time(12), tzinfo=UTC)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise RangeError(
            f"--date: must be a day such as 2026-03-01, or an hour such as 2026-11-20T02:00Z, got {short_repr(text)}"
        ) from None
    if re.fullmatch(r"\d{4}-?\d{2}-?\d{2}", text.strip()):
        moment = moment.replace(hour=12)
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def row_rates(row: Row) -> Rates:
    """Convert a row to rates.

    Args:
        row: Shipped row.

    Returns:
        Rates.
    """
    source = f"{row.source}, {row.retrieval_date}"
    return Rates(
        service=row.service, above_tokens=row.above_tokens, source=source, **{name: getattr(row, name) for name in PRICES}
    )


def on_day(provider: str, model: str, price_time: datetime) -> tuple[tuple[Rates, ...], Row | None]:
    """Return the newest dated rates up to a time.

    Args:
        provider: Seller.
        model: Model id of the seller.
        price_time: Time.

    Returns:
        Rates by service and tier, and the newest row; empty and None before the first row.
    """
    newest: dict[tuple[str, float], Row] = {}
    for row in dated_rows():
        if row.provider == provider and row.model == model and date.fromisoformat(row.since) <= price_time.date():
            newest[row.service, row.above_tokens] = row
    rows = [newest[key] for key in sorted(newest)]
    return tuple(map(row_rates, rows)), max(rows, key=lambda row: row.since, default=None)


def base_rows(provider: str, model: str, price_time: datetime) -> list[Row]:
    """Return the dated standard rows of a model up to a time, without tiers.

    Args:
        provider: Seller.
        model: Model id of the seller.
        price_time: Time.

    Returns:
        Rows, the oldest first.
    """
    mine = [row for row in dated_rows() if (row.provider, row.model) == (provider, model)]
    base = [row for row in mine if row.service == STANDARD and not row.above_tokens]
    return [row for row in base if date.fromisoformat(row.since) <= price_time.date()]


def first_day(provider: str, model: str) -> str:
    """Return the day of the first dated row of a model.

    Args:
        provider: Seller.
        model: Model id of the seller.

    Returns:
        Day as text; "" without a dated row.
    """
    return next((row.since for row in dated_rows() if row.provider == provider and row.model == model), "")


def _facts(kind: str, provider: str, model: str) -> Iterable[Mapping[str, Any]]:
    return (fact for fact in table("facts").get(kind, ()) if fact["provider"] == provider and model in fact["models"])


def on_time(provider: str, model: str, rates: tuple[Rates, ...], price_time: datetime) -> tuple[tuple[Rates, ...], list[str]]:
    """Apply the shipped facts of a time to rates.

    The facts are removed tiers, promotions with an end, and peak hours.

    Args:
        provider: Seller.
        model: Model id of the seller.
        rates: Rates.
        price_time: Time.

    Returns:
        Rates, and notes.
    """
    notes = []
    for fact in _facts("dropped", provider, model):
        if price_time.date() >= date.fromisoformat(fact["date"]) and any(r.above_tokens == fact["above_tokens"] for r in rates):
            rates = tuple(r for r in rates if r.above_tokens != fact["above_tokens"])
            notes.append(f"{fact['note']} ({fact['date']})")
    for fact in _facts("changes", provider, model):
        if price_time.date() >= date.fromisoformat(fact["from"]):
            rates = tuple(_changed(r, fact) for r in rates)
            notes.append(f"{fact['note']}; these are the prices since {fact['from']}")
        else:
            notes.append(f"{fact['note']}; from {fact['from']}: {fact['input']:g} in, {fact['output']:g} out USD/M")
    for fact in _facts("hours", provider, model):
        if price_time.date() >= date.fromisoformat(fact["from"]):
            times, words = _hour(fact, price_time)
            rates = tuple(r.times(times) if r.service == "standard" else r for r in rates)
            notes.append(words)
    return rates, notes


def _changed(rates: Rates, change: Mapping[str, Any]) -> Rates:
    """Return the rates after a change: standard rates as recorded, others in proportion to input."""
    if rates.service == "standard" and not rates.above_tokens:
        return replace(rates, **{name: change[name] for name in PRICES if name in change})
    return rates.times(2.0 if rates.service == "batch" else 1.0)


def _hour(rule: Mapping[str, Any], price_time: datetime) -> tuple[float, str]:
    """Return the factor on the off-peak price at a time, and its reason."""
    # Weekends follow the calendar of Beijing; the hours are in UTC.
    spans = " and ".join(rule["peak"])
    weekend = (price_time + BEIJING).weekday() >= 5 and price_time.date() >= date.fromisoformat(rule["weekends_from"])
    for span in rule["peak"]:
        start, end = (time.fromisoformat(end) for end in span.split("-"))
        if start <= price_time.time() < end and not weekend:
            return float(
                rule["times"]
            ), f"peak: {rule['times']:g} times the off-peak price at {spans} UTC on weekdays in Beijing"
    return 1.0, f"off-peak price; {rule['times']:g} times as expensive at {spans} UTC on weekdays in Beijing" + (
        " (a weekend)" if weekend else ""
    )
