"""Price list: a seller's rates by service and context, cache prices and source; with checks and a reader of TOML files.

All prices are USD per million tokens. A tier applies to the whole request if its input, including cached tokens, is longer than
`above_tokens`.

The module also joins two sources of one price list. One source has priority, and the other fills its gaps. If they disagree, a
note has both prices.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar, Final

from steptime.errors import DataFileError, InputError, RangeError, UnknownName, short_repr
from steptime.hardware.rental_prices import usd
from steptime.pricing.bundled_prices import Row
from steptime.result_base import Tabular, columns_by_key, unit
from steptime.units import parse

STANDARD: Final = "standard"
PER_MILLION, PER_THOUSAND, PER_TOKEN = "USD per million tokens", "USD per thousand tokens", "USD per token"
UNITS: Final = {PER_MILLION: 1.0, PER_THOUSAND: 1e3, PER_TOKEN: 1e6}
"""Units of a list, with the factor to USD per million tokens."""

LEAST, MOST_USD = 0.01, 1000.0
"""Range of the shipped input and output prices [USD per million tokens]; a price outside has another unit."""

PRICES: Final = ("input", "output", "cache_read", "cache_write", "cache_write_long")


def price(name: str, meaning: str) -> Any:
    """Declare a price field in USD per million tokens; NaN if the list has no price.

    Args:
        name: Name of the field.
        meaning: Description of the price.

    Returns:
        Field.
    """
    return field(default=math.nan, metadata=unit("USD", meaning, key=f"{name}_usd_per_million_tokens"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """One line of a price list: the prices of a service above a context."""

    service: str = field(default=STANDARD, metadata=unit("", "service: standard, batch, flex, priority, fast, ..."))
    above_tokens: float = field(default=0.0, metadata=unit("tokens", "input length above which these rates apply"))
    input: float = price("input", "price of prompt tokens")
    output: float = price("output", "price of output tokens")
    cache_read: float = price("cache_read", "price of cached prompt tokens; null: no discount")
    cache_write: float = price("cache_write", "price of prompt tokens written to a cache with the shorter lifetime")
    cache_write_long: float = price("cache_write_long", "price of prompt tokens written to a cache with the longer lifetime")
    source: str = field(default="", metadata=unit("", "source of the line; empty: source of the list"))

    @property
    def effective_cache_read(self) -> float:
        """Price of a cached token: the input price if there is no discount."""
        return self.cache_read if math.isfinite(self.cache_read) else self.input

    def times(self, factor: float) -> Rates:
        """Multiply the rates by a factor.

        Args:
            factor: Factor.

        Returns:
            New rates.
        """
        return replace(self, **{name: getattr(self, name) * factor for name in PRICES})


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PriceList(Tabular):
    """A seller's prices of a model; as a table, one row per rate.

    hold and hold_long: lifetimes of caches written at `cache_write` and `cache_write_long` [s]; storage: USD per million tokens
    and hour; speeds: promised speed over standard, by service.
    """

    SCHEMA: ClassVar[str] = "steptime.price-list/2"

    provider: str = field(metadata=unit("", "seller"))
    model: str = field(metadata=unit("", "model id of the seller"))
    rates: tuple[Rates, ...] = field(metadata=unit("", "rates by service, then by context"))
    hold: float = field(default=math.nan, metadata=unit("s", "lifetime of a cache written at cache_write"))
    hold_long: float = field(default=math.nan, metadata=unit("s", "lifetime of a cache written at cache_write_long"))
    storage: float = field(
        default=math.nan, metadata=unit("USD", "price of cache storage", key="storage_usd_per_million_token_hours")
    )
    speeds: dict[str, float] = field(default_factory=dict, metadata=unit("", "promised speed over standard, by service"))
    longest: float = field(default=math.nan, metadata=unit("tokens", "longest context for sale"))
    price_time: str = field(default="", metadata=unit("", "day or time of the prices; empty: the newest known"))
    source: str = field(default="", metadata=unit("", "source of the list"))
    retrieval_date: str = field(default="", metadata=unit("", "day on which the source was read"))
    grade: str = field(default="reported", metadata=unit("", "reliability of the source"))
    notes: tuple[str, ...] = field(default=(), metadata=unit("", "limitations: sources that disagree, promotions, age"))

    def service_rates(self, service: str = STANDARD) -> tuple[Rates, ...]:
        """Return the rates of a service, the lowest tier first.

        Args:
            service: Service.

        Returns:
            Rates; empty for an unknown service.
        """
        return tuple(sorted((r for r in self.rates if r.service == service), key=lambda r: r.above_tokens))

    @property
    def base(self) -> Rates:
        """Standard rates of the lowest tier."""
        return self.service_rates()[0]

    @property
    def name(self) -> str:
        """Seller and model, as "seller/model"."""
        return f"{self.provider}/{self.model}"

    def scaled(self, factor: float) -> PriceList:
        """Multiply all prices by a factor.

        Args:
            factor: Factor.

        Returns:
            New price list.
        """
        return replace(self, rates=tuple(r.times(factor) for r in self.rates), storage=self.storage * factor)

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the name and the standard rates.

        Returns:
            Title, and text by tier.
        """
        rows = {}
        for line in self.service_rates():
            tier_name = f"above {line.above_tokens:,.0f} tokens" if line.above_tokens else "standard"
            rows[tier_name] = f"{usd(line.input)} in, {usd(line.output)} out per million tokens"
        return f"Price list of {self.name}" + (f", {self.price_time}" if self.price_time else ""), rows

    def columns(self) -> dict[str, Any]:
        """Return the table of rates.

        Returns:
            Columns by name, one row per rate.
        """
        return columns_by_key(Rates, self.rates)


def checked(price_list: PriceList, *, written_in: str = "") -> PriceList:
    """Check a price list.

    Args:
        price_list: Price list.
        written_in: Unit that the author of the list stated; "" if unknown. Then prices outside the market's range are an error.

    Returns:
        The same list.

    Raises:
        RangeError: The list has no standard rates, invalid prices, or tiers that do not ascend.
    """
    if not price_list.service_rates():
        raise RangeError(f"{price_list.name}: standard rates are missing; give input and output in USD per million tokens")
    for line in price_list.rates:
        _check_line(price_list.name, line, asks=not written_in)
    for service in dict.fromkeys(line.service for line in price_list.rates):
        tiers = price_list.service_rates(service)
        for low, high in pairwise(tiers):
            if high.above_tokens <= low.above_tokens:
                raise RangeError(
                    f"{price_list.name}, {service}: tiers must ascend; {short_repr(high.above_tokens)} tokens occurs twice"
                )
    for name, value in (("storage", price_list.storage), ("hold", price_list.hold), ("hold_long", price_list.hold_long)):
        if value < 0:
            raise RangeError(f"{price_list.name}: {name} must not be below 0, got {short_repr(value)}")
    return price_list


def in_order(thresholds: Iterable[float], place: str) -> None:
    """Check that the thresholds of tiers ascend in the order of a file.

    Args:
        thresholds: Thresholds [tokens].
        place: Place of the tiers, for the message.

    Raises:
        RangeError: The thresholds do not ascend.
    """
    for low, high in pairwise(thresholds):
        if not low < high:
            raise RangeError(f"{place}: tiers must ascend; {short_repr(high)} follows {short_repr(low)}")


def _check_line(name: str, line: Rates, *, asks: bool) -> None:
    tier_name = f"{name}, {line.service}" + (f" above {line.above_tokens:,.0f} tokens" if line.above_tokens else "")
    for price_name in PRICES:
        value = getattr(line, price_name)
        if price_name in ("input", "output") and math.isnan(value):
            raise RangeError(f"{tier_name}: {price_name} is missing or not a number; give it in USD per million tokens")
        if value < 0 or math.isinf(value):
            raise RangeError(
                f"{tier_name}: {price_name} must be a price of 0 or more USD per million tokens, got {short_repr(value)}"
            )
    if line.input == 0 and line.output == 0:
        raise RangeError(f"{tier_name}: input and output are 0; a free tier contains no information on costs. Give paid prices")

    # Without a stated unit, a price far from the market's is probably per token or per thousand.
    if asks:
        for price_name in ("input", "output"):
            value = getattr(line, price_name)
            if 0 < value < LEAST or value > MOST_USD:
                raise RangeError(
                    f"{tier_name}: {price_name} {value:g} is outside the prices of sellers per million tokens "
                    f"({LEAST:g} to {MOST_USD:g}); "
                    f"give the unit: unit = {PER_TOKEN!r}, {PER_THOUSAND!r} or {PER_MILLION!r}"
                )
    if line.cache_read > line.input:
        raise RangeError(
            f"{tier_name}: a cached token at {usd(line.cache_read)} is more expensive than a new one at {usd(line.input)}"
        )


# Grade of a dated row from the page of the model's maker.
DOCUMENTED = "vendor"
# Relative difference of two prices due to rounding: mistral-large-4 started at 0.68, or 0.70 in genai-prices.
NEAR = 0.05
WORDS = {"cache_read": "hits", "cache_write": "cache writes", "cache_write_long": "long cache writes"}


def joined(listed: PriceList, shipped: PriceList, dated: list[Row]) -> PriceList:
    """Join the package's price list with that of the shipped rows.

    Args:
        listed: List of the package.
        shipped: List of the shipped rows.
        dated: Shipped base rates up to the time of the list, the oldest first.

    Returns:
        One list, with notes on differences.
    """
    if _token_prices(listed.base) == _token_prices(shipped.base):
        return _filled(listed, shipped)
    # Base prices differ, so the lists may be from different days and are not mixed.
    lead, secondary = (shipped, listed) if shipped_leads(listed, shipped, dated) else (listed, shipped)
    return replace(lead, notes=(*listed.notes, *shipped.notes, _differ(lead, secondary)))


def shipped_leads(listed: PriceList, shipped: PriceList, dated: list[Row]) -> bool:
    """Decide whether shipped rows have priority over a package that disagrees.

    They have priority in three cases: the maker's page documents them; the package has a price that a newer row replaced; or
    the package found the model only by the beginning of its name.

    Args:
        listed: List of the package.
        shipped: List of the shipped rows.
        dated: Shipped base rates up to the time of the list, the oldest first.

    Returns:
        True if the shipped rows have priority.
    """
    newest = dated[-1] if dated else None
    current = newest is not None and (newest.input, newest.output) == _token_prices(shipped.base)
    replaced = any(_near(row, listed.base) for row in dated[:-1])
    documented = newest is not None and newest.grade == DOCUMENTED
    return (current and (documented or replaced)) or listed.model.casefold() != shipped.model.casefold()


def completed(lines: tuple[Rates, ...], rows: list[Row]) -> tuple[Rates, ...]:
    """Add the cache prices of current rows to dated rates.

    Args:
        lines: Dated rates.
        rows: Current rows.

    Returns:
        Rates; a rate gets cache prices from a row with equal input and output prices.
    """
    return tuple(_with(line, [row for row in rows if _same(line, row.service, row.above_tokens)])[0] for line in lines)


def _filled(lead: PriceList, secondary: PriceList) -> PriceList:
    """Return the first list with the lines and cache prices that only the second has; both have equal base prices."""
    lines, lacked, differ = list[Rates](), dict[str, list[str]](), list[str]()
    for line in lead.rates:
        # Lines with equal input and output prices are the same offer, so the cache prices may be added.
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
    source_notes = [f"{name} for {', '.join(dict.fromkeys(services))}" for name, services in lacked.items()]
    source_notes += dict.fromkeys(_line_name(rate_line) for rate_line in extra_rates)
    notes = (
        [f"prices that {lead.source} lacks come from steptime's own table: {'; '.join(source_notes)}"] if source_notes else []
    )

    # Tiers that only one source has are a disagreement, not a gap.
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
    """Return a line with prices added from the first row with equal input and output prices, and the names of these prices."""
    for twin in twins:
        lacks = [name for name in PRICES if math.isnan(getattr(line, name)) and math.isfinite(getattr(twin, name))]
        if lacks and (twin.input, twin.output) == _token_prices(line):
            source = "; ".join(filter(None, (line.source, f"{', '.join(WORDS.get(n, n) for n in lacks)}: {twin.source}")))
            return replace(line, source=source, **{name: getattr(twin, name) for name in lacks}), lacks
    return line, []


def _same(line: Rates, service: str, above: float) -> bool:
    """Check whether a line has a service and a tier; thresholds of two sources may differ by one token."""
    return line.service == service and abs(line.above_tokens - above) <= 1


def _line_name(line: Rates) -> str:
    above = f" above {line.above_tokens:,.0f} tokens" if line.above_tokens else ""
    return f"{line.service}{above} ({line.source})" if line.source else f"{line.service}{above}"


def _token_prices(line: Rates) -> tuple[float, float]:
    return line.input, line.output


def _near(row: Row, line: Rates) -> bool:
    return math.isclose(row.input, line.input, rel_tol=NEAR) and math.isclose(row.output, line.output, rel_tol=NEAR)


def _differ(lead: PriceList, secondary: PriceList, service: str = "", *lines: Rates) -> str:
    """Return the note on two sources that disagree, with their dates; the source in use is first."""
    differences = [
        f"{price_list.source} of {price_list.retrieval_date} says {line.input:g}/{line.output:g}"
        for price_list, line in zip((lead, secondary), lines or (lead.base, secondary.base), strict=True)
    ]
    return f"sources disagree{f' on {service}' if service else ''}: {differences[0]} USD/M (used), {differences[1]}"


KEYS: Final = ("provider", "model", "unit", "currency", "tiers", "services", "hold", "hold_long", "storage", "longest", *PRICES)
TIER_KEYS: Final = ("above_tokens", "service", *PRICES)
SERVICE_KEYS: Final = ("name", "speed", "above_tokens", *PRICES)
# Maximum of any value of a list.
LARGEST: Final = 1e15


def read_list(path: str) -> PriceList:
    """Read a price list from a TOML file.

    The file has prices, `[[tiers]]` with `above_tokens`, and `[[services]]` with `name`, `speed` and prices.

    Args:
        path: TOML file.

    Returns:
        Price list.

    Raises:
        DataFileError: The file cannot be read, is not TOML, or is not a valid list.
    """
    try:
        with open(path, "rb") as file:
            data = tomllib.load(file)
    except OSError as problem:
        raise DataFileError(path, f"cannot be read: {problem.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise DataFileError(path, f"is not valid TOML: {problem}") from None
    try:
        return list_from(data)
    except InputError as problem:
        raise DataFileError(path, str(problem)) from None


def list_from(data: Mapping[str, Any]) -> PriceList:
    """Build a price list from the fields of a TOML file.

    Args:
        data: Fields of the file.

    Returns:
        Price list.

    Raises:
        UnknownName: A key or unit is unknown.
        RangeError: A value is invalid.

    >>> list_from({"input": 2, "output": 10}).base.output
    10.0
    """
    _check_keys(data, KEYS, "a price list")
    written = str(data.get("unit", ""))
    if written and written not in UNITS:
        raise UnknownName("unit of prices", written, UNITS, f"Known: {', '.join(UNITS)}.")
    if str(data.get("currency", "USD")).upper() != "USD":
        raise RangeError(f"currency: must be USD, got {short_repr(data['currency'])}; convert the prices")

    # Convert all prices to USD per million tokens here, so that the rest of the package has one unit.
    factor = UNITS.get(written, UNITS[PER_MILLION])

    # Standard rates first, then context tiers, then services, each of which may have its own prices.
    tiers, services = _tables(data, "tiers", TIER_KEYS), _tables(data, "services", SERVICE_KEYS)
    in_order(
        [_amount(service, "above_tokens", "tiers") for service in tiers if service.get("service", STANDARD) == STANDARD],
        "tiers",
    )
    lines = [_line(data, factor, STANDARD)]
    lines += [_line(service, factor, str(service.get("service", STANDARD))) for service in tiers]
    for service in services:
        if not isinstance(service.get("name"), str) or service["name"] == STANDARD:
            raise RangeError(
                "services: each needs a name, such as fast or batch; standard prices belong to the top of the file"
            )
        lines.append(_line(service, factor, service["name"]))
    longest = _amount(data, "longest", "longest")
    if longest <= max(line.above_tokens for line in lines):
        raise RangeError(
            f"longest: must be above the last tier, got {short_repr(longest)} tokens; give the longest context for sale"
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
    """Return the tables with a name; empty if missing."""
    entries = data.get(name, ())
    if not isinstance(entries, list | tuple) or not all(isinstance(entry, Mapping) for entry in entries):
        raise RangeError(f"{name}: must be a list of tables, [[{name}]], got {short_repr(entries)}")
    for entry in entries:
        _check_keys(entry, keys, name)
    return list(entries)


def _amount(data: Mapping[str, Any], name: str, place: str) -> float:
    """Return a number; NaN if it is missing."""
    if name not in data:
        return math.nan
    value = data[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RangeError(f"{place}: {name} must be a number, got {short_repr(value)}")
    if not 0 <= value <= LARGEST:
        raise RangeError(f"{place}: {name} must be 0 or more, and at most {LARGEST:g}, got {short_repr(value)}")
    return float(value)


def _seconds(data: Mapping[str, Any], name: str) -> float:
    """Return a lifetime in seconds, from a text such as "5 min"."""
    if name not in data:
        return math.nan
    value = data[name]
    seconds = parse(value, "s") if isinstance(value, str) else _amount(data, name, name)
    if not 0 < seconds <= LARGEST:
        raise RangeError(f"{name}: the lifetime of a cache must be above 0 s, such as '5 min', got {short_repr(value)}")
    return seconds


def _speed(service: Mapping[str, Any]) -> float:
    value = _amount(service, "speed", f"services, {service['name']}")
    if not value > 0:
        raise RangeError(
            f"services, {service['name']}: speed must be a factor over standard above 0, such as 2.5, got {short_repr(value)}"
        )
    return value


def _line(data: Mapping[str, Any], factor: float, service: str) -> Rates:
    prices: dict[str, Any] = {}
    for name in (name for name in PRICES if name in data):
        value = data[name]
        if isinstance(value, float) and math.isnan(value):
            raise RangeError(
                f"{service}: {name} is {short_repr(value)}, not a number; leave the key out if the list has no price"
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > LARGEST:
            raise RangeError(f"{name}: must be a number of USD per million tokens, got {short_repr(value)}")
        prices[name] = float(value) * factor
    above = _amount(data, "above_tokens", service)
    return Rates(service=service, above_tokens=0.0 if math.isnan(above) else above, **prices)
