"""A price list as data: rates by service and context, what caches cost, where it was read; and what cannot be a list.

Prices are USD per million tokens throughout. A tier bills the whole request at its rates once the input, cached tokens among
it, is longer than `above_tokens`.

Joins two sources of one price list: one leads, what it lacks is of the other, and where they disagree both are told.

A price list of one's own: a TOML file, or its fields as a mapping.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar, Final

from steptime.errors import DataFileError, InputError, RangeError, UnknownName, short_repr
from steptime.hardware.unit_cost import usd
from steptime.pricing.bundled_prices import Row
from steptime.result_base import Tabular, columns_by_key, unit
from steptime.units import parse

STANDARD: Final = "standard"
PER_MILLION, PER_THOUSAND, PER_TOKEN = "USD per million tokens", "USD per thousand tokens", "USD per token"
UNITS: Final = {PER_MILLION: 1.0, PER_THOUSAND: 1e3, PER_TOKEN: 1e6}
"""What a list may be written in, as a factor to USD per million."""

LEAST, MOST_USD = 0.01, 1000.0
"""USD per million tokens: no price of input or output of the shipped rows is below, none above; what is, has another unit."""

PRICES: Final = ("input", "output", "cache_read", "cache_write", "cache_write_long")


def price(name: str, meaning: str) -> Any:
    """Return the field of a price in USD per million tokens, not a number where a list has none."""
    return field(default=math.nan, metadata=unit("USD", meaning, key=f"{name}_usd_per_million_tokens"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """One line of a price list: what tokens cost in a service, above a context."""

    service: str = field(default=STANDARD, metadata=unit("", "standard, batch, flex, priority, fast, ..."))
    above_tokens: float = field(default=0.0, metadata=unit("tokens", "input above which these rates hold"))
    input: float = price("input", "of prompts")
    output: float = price("output", "of outputs")
    cache_read: float = price("cache_read", "of prompts that a cache holds; null: no discount")
    cache_write: float = price("cache_write", "of prompts that a cache takes up, for its shorter lifetime")
    cache_write_long: float = price("cache_write_long", "the same, for its longer lifetime")
    source: str = field(default="", metadata=unit("", "where the line was read; empty: where the list was"))

    @property
    def effective_cache_read(self) -> float:
        """What a cached token costs: as much as a fresh one where there is no discount."""
        return self.cache_read if math.isfinite(self.cache_read) else self.input

    def times(self, factor: float) -> Rates:
        """Return the rates, each `factor` times as high."""
        return replace(self, **{name: getattr(self, name) * factor for name in PRICES})


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PriceList(Tabular):
    """What a seller asks for a model. As a table it is its rates.

    hold, hold_long: how long a cache lives that was written at `cache_write` and `cache_write_long` [s]; storage: USD for
    holding a million tokens for an hour; speeds: how many times as fast a service is promised to be, by service.
    """

    SCHEMA: ClassVar[str] = "steptime.price-list/2"

    provider: str = field(metadata=unit("", "who sells"))
    model: str = field(metadata=unit("", "id at the seller"))
    rates: tuple[Rates, ...] = field(metadata=unit("", "by service, then by context"))
    hold: float = field(default=math.nan, metadata=unit("s", "lifetime of a cache written at the shorter one's price"))
    hold_long: float = field(default=math.nan, metadata=unit("s", "lifetime of a cache written at the longer one's price"))
    storage: float = field(default=math.nan, metadata=unit("USD", "to hold a cache", key="storage_usd_per_million_token_hours"))
    speeds: dict[str, float] = field(default_factory=dict, metadata=unit("", "promised speed over standard, by service"))
    longest: float = field(default=math.nan, metadata=unit("tokens", "longest context that is sold"))
    price_time: str = field(default="", metadata=unit("", "day or time the list is of; empty: the newest known"))
    source: str = field(default="", metadata=unit("", "where it was read"))
    retrieval_date: str = field(default="", metadata=unit("", "when it was read"))
    grade: str = field(default="reported", metadata=unit("", "how far to trust it"))
    notes: tuple[str, ...] = field(default=(), metadata=unit("", "what to mind: sources that disagree, promotions, age"))

    def service_rates(self, service: str = STANDARD) -> tuple[Rates, ...]:
        """Return the rates of a service, the lowest tier first."""
        return tuple(sorted((r for r in self.rates if r.service == service), key=lambda r: r.above_tokens))

    @property
    def base(self) -> Rates:
        """The standard rates of a short prompt."""
        return self.service_rates()[0]

    @property
    def name(self) -> str:
        """Seller and model."""
        return f"{self.provider}/{self.model}"

    def scaled(self, factor: float) -> PriceList:
        """Return the list with all prices `factor` times as high."""
        return replace(self, rates=tuple(r.times(factor) for r in self.rates), storage=self.storage * factor)

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return its name and its standard rates."""
        rows = {}
        for line in self.service_rates():
            tier_name = f"above {line.above_tokens:,.0f} tokens" if line.above_tokens else "standard"
            rows[tier_name] = f"{usd(line.input)} in, {usd(line.output)} out per million tokens"
        return f"Price list of {self.name}" + (f", {self.price_time}" if self.price_time else ""), rows

    def columns(self) -> dict[str, Any]:
        """Return a row for each line."""
        return columns_by_key(Rates, self.rates)


def checked(price_list: PriceList, *, written_in: str = "") -> PriceList:
    """Return a list that can be one; raise RangeError with the place and the mend.

    written_in: the unit that whoever gave the list stated, or "" where none was; then prices that no market has ask for it.
    """
    if not price_list.service_rates():
        raise RangeError(f"{price_list.name}: no standard rates; a list needs input and output in USD per million tokens")
    for line in price_list.rates:
        _check_line(price_list.name, line, asks=not written_in)
    for service in dict.fromkeys(line.service for line in price_list.rates):
        tiers = price_list.service_rates(service)
        for low, high in pairwise(tiers):
            if high.above_tokens <= low.above_tokens:
                raise RangeError(
                    f"{price_list.name}, {service}: tiers must ascend; {short_repr(high.above_tokens)} tokens stands twice"
                )
    for name, value in (("storage", price_list.storage), ("hold", price_list.hold), ("hold_long", price_list.hold_long)):
        if value < 0:
            raise RangeError(f"{price_list.name}: {name} must not be below 0, not {short_repr(value)}")
    return price_list


def in_order(thresholds: Iterable[float], place: str) -> None:
    """Raise RangeError where thresholds of tiers, as they stand in a file, do not ascend."""
    for low, high in pairwise(thresholds):
        if not low < high:
            raise RangeError(f"{place}: tiers must ascend; above {short_repr(high)} stands behind above {short_repr(low)}")


def _check_line(name: str, line: Rates, *, asks: bool) -> None:
    tier_name = f"{name}, {line.service}" + (f" above {line.above_tokens:,.0f} tokens" if line.above_tokens else "")
    for price_name in PRICES:
        value = getattr(line, price_name)
        if price_name in ("input", "output") and math.isnan(value):
            raise RangeError(f"{tier_name}: {price_name} is missing or not a number; a list needs it in USD per million tokens")
        if value < 0 or math.isinf(value):
            raise RangeError(
                f"{tier_name}: {price_name} must be a price of 0 or more USD per million tokens, not {short_repr(value)}"
            )
    if line.input == 0 and line.output == 0:
        raise RangeError(f"{tier_name}: free is not a price; a free tier says nothing of what tokens cost. Give the paid one")
    if asks:
        for price_name in ("input", "output"):
            value = getattr(line, price_name)
            if 0 < value < LEAST or value > MOST_USD:
                raise RangeError(
                    f"{tier_name}: {price_name} {value:g} is no price per million tokens "
                    f"that sellers ask ({LEAST:g} to {MOST_USD:g}); "
                    f"which unit is it? Say unit = {PER_TOKEN!r}, {PER_THOUSAND!r} or {PER_MILLION!r}"
                )
    if line.cache_read > line.input:
        raise RangeError(
            f"{tier_name}: a cached token at {usd(line.cache_read)} is dearer than a fresh one at {usd(line.input)}"
        )


# grade of a dated row that the maker's own page states
DOCUMENTED = "vendor"
# relative, of two prices that are one but for rounding: mistral-large-4 began at 0.68, or 0.70 in genai-prices
NEAR = 0.05
WORDS = {"cache_read": "hits", "cache_write": "cache writes", "cache_write_long": "long cache writes"}


def joined(listed: PriceList, shipped: PriceList, dated: list[Row]) -> PriceList:
    """Return the package's list and that of the shipped rows as one; dated: shipped base rates up to its time, oldest first."""
    if _token_prices(listed.base) == _token_prices(shipped.base):
        return _filled(listed, shipped)
    lead, secondary = (shipped, listed) if shipped_leads(listed, shipped, dated) else (listed, shipped)
    return replace(lead, notes=(*listed.notes, *shipped.notes, _differ(lead, secondary)))


def shipped_leads(listed: PriceList, shipped: PriceList, dated: list[Row]) -> bool:
    """Whether the shipped rows lead a package that disagrees with them.

    They do where the maker's page documents them, where the package holds a price that a newer row has replaced, and where
    it knows the model by the beginning of its name alone.
    """
    newest = dated[-1] if dated else None
    current = newest is not None and (newest.input, newest.output) == _token_prices(shipped.base)
    replaced = any(_near(row, listed.base) for row in dated[:-1])
    documented = newest is not None and newest.grade == DOCUMENTED
    return (current and (documented or replaced)) or listed.model.casefold() != shipped.model.casefold()


def completed(lines: tuple[Rates, ...], rows: list[Row]) -> tuple[Rates, ...]:
    """Return dated rates with what present rows add to them: prices of caches of lines that cost the same."""
    return tuple(_with(line, [row for row in rows if _same(line, row.service, row.above_tokens)])[0] for line in lines)


def _filled(lead: PriceList, secondary: PriceList) -> PriceList:
    """Return a list with the lines and the prices of caches that only the other has; both cost the same at the base."""
    lines, lacked, differ = list[Rates](), dict[str, list[str]](), list[str]()
    for line in lead.rates:
        twins = [rate_line for rate_line in secondary.rates if _same(line, rate_line.service, rate_line.above_tokens)]
        completed_rates, names = _with(line, twins)
        lines.append(completed_rates)
        for name in names:
            lacked.setdefault(f"{WORDS.get(name, name)} ({twins[0].source})", []).append(line.service)
        if twins and _token_prices(twins[0]) != _token_prices(line):
            differ.append(_differ(lead, secondary, line.service, line, twins[0]))
    extra_rates = [
        rate_line
        for rate_line in secondary.rates
        if not any(_same(rate_line, line.service, line.above_tokens) for line in lead.rates)
    ]
    source_notes = [f"{name} of {', '.join(dict.fromkeys(services))}" for name, services in lacked.items()]
    source_notes += dict.fromkeys(_line_name(rate_line) for rate_line in extra_rates)
    notes = [f"not in {lead.source}, of the shipped rows: {'; '.join(source_notes)}"] if source_notes else []
    lead_only = [
        rate_line
        for rate_line in lead.service_rates()
        if rate_line.above_tokens and not any(_same(rate_line, r.service, r.above_tokens) for r in secondary.service_rates())
    ]
    differ += [
        f"{secondary.source} has no tier above {rate_line.above_tokens:,.0f} tokens, {lead.source} has"
        for rate_line in lead_only
    ]
    rates = sorted(
        (*lines, *extra_rates), key=lambda rate_line: (rate_line.service != STANDARD, rate_line.service, rate_line.above_tokens)
    )
    return replace(lead, rates=tuple(rates), notes=(*lead.notes, *secondary.notes, *differ, *notes))


def _with(line: Rates, twins: list[Rates] | list[Row]) -> tuple[Rates, list[str]]:
    """Return a line with the prices that it lacks of the first twin that costs the same, and their names."""
    for twin in twins:
        lacks = [name for name in PRICES if math.isnan(getattr(line, name)) and math.isfinite(getattr(twin, name))]
        if lacks and (twin.input, twin.output) == _token_prices(line):
            source = "; ".join(filter(None, (line.source, f"{', '.join(WORDS.get(n, n) for n in lacks)}: {twin.source}")))
            return replace(line, source=source, **{name: getattr(twin, name) for name in lacks}), lacks
    return line, []


def _same(line: Rates, service: str, above: float) -> bool:
    """Whether a line is of a service and a tier; thresholds of two sources are up to a token apart."""
    return line.service == service and abs(line.above_tokens - above) <= 1


def _line_name(line: Rates) -> str:
    above = f" above {line.above_tokens:,.0f} tokens" if line.above_tokens else ""
    return f"{line.service}{above} ({line.source})" if line.source else f"{line.service}{above}"


def _token_prices(line: Rates) -> tuple[float, float]:
    return line.input, line.output


def _near(row: Row, line: Rates) -> bool:
    return math.isclose(row.input, line.input, rel_tol=NEAR) and math.isclose(row.output, line.output, rel_tol=NEAR)


def _differ(lead: PriceList, secondary: PriceList, service: str = "", *lines: Rates) -> str:
    """Return the note of two sources that disagree, with their dates, the one that is taken first."""
    differences = [
        f"{price_list.source} of {price_list.retrieval_date} says {line.input:g}/{line.output:g}"
        for price_list, line in zip((lead, secondary), lines or (lead.base, secondary.base), strict=True)
    ]
    return f"sources disagree{f' on {service}' if service else ''}: {differences[0]} USD/M (taken), {differences[1]}"


KEYS: Final = ("provider", "model", "unit", "currency", "tiers", "services", "hold", "hold_long", "storage", "longest", *PRICES)
TIER_KEYS: Final = ("above_tokens", "service", *PRICES)
SERVICE_KEYS: Final = ("name", "speed", "above_tokens", *PRICES)
# of any figure of a list; a price or a context that is larger is none
LARGEST: Final = 1e15


def read_list(path: str) -> PriceList:
    """Return a list of a TOML file: prices, `[[tiers]]` with `above_tokens`, `[[services]]` with `name`, `speed` and prices."""
    try:
        with open(path, "rb") as file:
            data = tomllib.load(file)
    except OSError as problem:
        raise DataFileError(path, f"cannot be read: {problem.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise DataFileError(path, f"is no TOML: {problem}") from None
    try:
        return list_from(data)
    except InputError as problem:
        raise DataFileError(path, str(problem)) from None


def list_from(data: Mapping[str, Any]) -> PriceList:
    """Return a list of the fields of such a file.

    >>> list_from({"input": 2, "output": 10}).base.output
    10.0
    """
    _check_keys(data, KEYS, "a price list")
    written = str(data.get("unit", ""))
    if written and written not in UNITS:
        raise UnknownName("unit of prices", written, UNITS, f"Known: {', '.join(UNITS)}.")
    if str(data.get("currency", "USD")).upper() != "USD":
        raise RangeError(f"prices are in USD here, not {short_repr(data['currency'])}; give them in USD")
    factor = UNITS.get(written, UNITS[PER_MILLION])
    tiers, services = _tables(data, "tiers", TIER_KEYS), _tables(data, "services", SERVICE_KEYS)
    in_order(
        [_amount(service, "above_tokens", "tiers") for service in tiers if service.get("service", STANDARD) == STANDARD],
        "tiers",
    )
    lines = [_line(data, factor, STANDARD)]
    lines += [_line(service, factor, str(service.get("service", STANDARD))) for service in tiers]
    for service in services:
        if not isinstance(service.get("name"), str) or service["name"] == STANDARD:
            raise RangeError("services: each needs a name, such as fast or batch; the standard prices stand above")
        lines.append(_line(service, factor, service["name"]))
    longest = _amount(data, "longest", "longest")
    if longest <= max(line.above_tokens for line in lines):
        raise RangeError(
            f"longest: {short_repr(longest)} tokens are not above the last tier; it is the longest context that is sold"
        )
    price_list = PriceList(
        provider=str(data.get("provider", "own")),
        model=str(data.get("model", "model")),
        rates=tuple(lines),
        hold=_seconds(data, "hold"),
        hold_long=_seconds(data, "hold_long"),
        storage=_amount(data, "storage", "storage"),
        longest=longest,
        speeds={service["name"]: _speed(service) for service in services if "speed" in service},
        source="given",
        grade="given",
    )
    return checked(price_list, written_in=written)


def _check_keys(data: Mapping[str, Any], keys: Sequence[str], section: str) -> None:
    for name in data:
        if name not in keys:
            raise UnknownName(f"key of {section}", name, keys)


def _tables(data: Mapping[str, Any], name: str, keys: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the tables of a name; none where it is not given."""
    entries = data.get(name, ())
    if not isinstance(entries, list | tuple) or not all(isinstance(entry, Mapping) for entry in entries):
        raise RangeError(f"{name} is a list of tables, [[{name}]], not {short_repr(entries)}")
    for entry in entries:
        _check_keys(entry, keys, name)
    return list(entries)


def _amount(data: Mapping[str, Any], name: str, place: str) -> float:
    """Return a figure; not a number where it is not given."""
    if name not in data:
        return math.nan
    value = data[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RangeError(f"{place}: {name} is a number, not {short_repr(value)}")
    if not 0 <= value <= LARGEST:
        raise RangeError(f"{place}: {name} must be 0 or more, and at most {LARGEST:g}, not {short_repr(value)}")
    return float(value)


def _seconds(data: Mapping[str, Any], name: str) -> float:
    """Return a lifetime, written as "5 min"."""
    if name not in data:
        return math.nan
    value = data[name]
    seconds = parse(value, "s") if isinstance(value, str) else _amount(data, name, name)
    if not 0 < seconds <= LARGEST:
        raise RangeError(f"{name}: a cache lives for longer than 0 s, such as '5 min', not {short_repr(value)}")
    return seconds


def _speed(service: Mapping[str, Any]) -> float:
    value = _amount(service, "speed", f"services, {service['name']}")
    if not value > 0:
        raise RangeError(
            f"services, {service['name']}: speed is how many times as fast as standard, such as 2.5, not {short_repr(value)}"
        )
    return value


def _line(data: Mapping[str, Any], factor: float, service: str) -> Rates:
    prices: dict[str, Any] = {}
    for name in (name for name in PRICES if name in data):
        value = data[name]
        if isinstance(value, float) and math.isnan(value):
            raise RangeError(
                f"{service}: {name} is {short_repr(value)}, not a number; leave the key out where the list has none"
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > LARGEST:
            raise RangeError(f"{name} is a number of USD per million tokens, not {short_repr(value)}")
        prices[name] = float(value) * factor
    above = _amount(data, "above_tokens", service)
    return Rates(service=service, above_tokens=0.0 if math.isnan(above) else above, **prices)
