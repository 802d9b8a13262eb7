"""Price list: a seller's rates by service and context, cache prices and source; with checks and a reader of TOML files.

All prices are USD per million tokens. A tier applies to the whole request if its input, including cached tokens, is longer than
`above_tokens`.

The module also joins two sources of one price list. One source has priority, and the other fills its gaps. If they disagree, a
note has both prices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, TypeVar

from steptime.catalog.data_files import read_file
from steptime.errors import DataFileError, InputError, RangeError, UnknownName, short_repr
from steptime.hardware.rental_prices import usd
from steptime.pricing.bundled_prices import Row
from steptime.result_base import Tabular, unit
from steptime.units import parse

if TYPE_CHECKING:
    from steptime.pricing.price_lookup import Offer

TokenPrices: TypeAlias = "Rates | Row | Offer"
PricesT = TypeVar("PricesT", "Rates", Row)

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
    def name(self) -> str:
        """Service and tier."""
        return self.service + (f" above {self.above_tokens:,.0f} tokens" if self.above_tokens else "")

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
    ROWS: ClassVar[tuple[str, type]] = ("rates", Rates)

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
        rows = {
            # Tiers of the standard service need no other name.
            line.name.removeprefix("standard "): f"{usd(line.input)} in, {usd(line.output)} out per million tokens"
            for line in self.service_rates()
        }
        return f"Price list of {self.name}" + (f", {self.price_time}" if self.price_time else ""), rows


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
        _check_line(f"{price_list.name}, {line.name}", line, is_unit_known=bool(written_in))
    for service in dict.fromkeys(line.service for line in price_list.rates):
        thresholds = [line.above_tokens for line in price_list.service_rates(service)]
        for low, high in pairwise(thresholds):
            if high <= low:
                raise RangeError(f"{price_list.name}, {service}: tiers must ascend; {short_repr(high)} tokens occurs twice")
    for name in ("storage", "hold", "hold_long"):
        if getattr(price_list, name) < 0:
            raise RangeError(f"{price_list.name}: {name} must not be below 0, got {short_repr(getattr(price_list, name))}")
    return price_list


def _check_line(place: str, line: Rates, *, is_unit_known: bool) -> None:
    token_prices = {"input": line.input, "output": line.output}
    for price_name in PRICES:
        value = getattr(line, price_name)
        if price_name in token_prices and math.isnan(value):
            raise RangeError(f"{place}: {price_name} is missing or not a number; give it in USD per million tokens")
        if value < 0 or math.isinf(value):
            raise RangeError(
                f"{place}: {price_name} must be a price of 0 or more USD per million tokens, got {short_repr(value)}"
            )
    if line.input == 0 and line.output == 0:
        raise RangeError(f"{place}: input and output are 0; a free tier contains no information on costs. Give paid prices")

    # Without a stated unit, a price far from the market's is probably per token or per thousand.
    for price_name, value in token_prices.items():
        if not is_unit_known and (0 < value < LEAST or value > MOST_USD):
            raise RangeError(
                f"{place}: {price_name} {value:g} is outside the prices of sellers per million tokens "
                f"({LEAST:g} to {MOST_USD:g}); "
                f"give the unit: unit = {PER_TOKEN!r}, {PER_THOUSAND!r} or {PER_MILLION!r}"
            )
    if line.cache_read > line.input:
        raise RangeError(
            f"{place}: a cached token at {usd(line.cache_read)} is more expensive than a new one at {usd(line.input)}"
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
    if have_same_prices(listed.base, shipped.base):
        return _filled(listed, shipped)
    # Base prices differ, so the lists may be from different days and are not mixed.
    lead, secondary = (shipped, listed) if shipped_leads(listed, shipped, dated) else (listed, shipped)
    difference = _difference(lead, lead.base, secondary, secondary.base)
    return replace(lead, notes=(*listed.notes, *shipped.notes, f"sources disagree: {difference}"))


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
    if listed.model.casefold() != shipped.model.casefold():
        return True
    if not dated or not have_same_prices(dated[-1], shipped.base):
        return False
    is_documented = dated[-1].grade == DOCUMENTED
    return is_documented or any(have_same_prices(row, listed.base, rel_tol=NEAR) for row in dated[:-1])


def completed(lines: tuple[Rates, ...], rows: list[Row]) -> tuple[Rates, ...]:
    """Add the cache prices of current rows to dated rates.

    Args:
        lines: Dated rates.
        rows: Current rows.

    Returns:
        Rates; a rate gets cache prices from a row with equal input and output prices.
    """
    return tuple(_with(line, _same_tier(line, rows))[0] for line in lines)


def have_same_prices(first: TokenPrices, second: TokenPrices, rel_tol: float = 0.0) -> bool:
    """Check whether two offers have the same input and output prices.

    Args:
        first: Offer.
        second: Other offer.
        rel_tol: Relative difference that counts as equal.

    Returns:
        True for equal prices.
    """
    pairs = (first.input, second.input), (first.output, second.output)
    return all(math.isclose(*pair, rel_tol=rel_tol) for pair in pairs)


def _filled(lead: PriceList, secondary: PriceList) -> PriceList:
    """Return the first list with the lines and cache prices that only the second has; both have equal base prices."""
    lines, gaps, differences = list[Rates](), dict[str, list[str]](), list[str]()
    for line in lead.rates:
        # Lines with equal input and output prices are the same offer, so the cache prices may be added.
        twins = _same_tier(line, secondary.rates)
        completed_rates, names = _with(line, twins)
        lines.append(completed_rates)
        for name in names:
            gaps.setdefault(f"{WORDS.get(name, name)} ({twins[0].source})", []).append(line.service)
        if twins and not have_same_prices(line, twins[0]):
            differences.append(f"sources disagree on {line.service}: {_difference(lead, line, secondary, twins[0])}")

    # Tiers that only one source has are a disagreement, not a gap.
    differences += [
        f"{secondary.source} has no tier above {line.above_tokens:,.0f} tokens, {lead.source} has"
        for line in lead.service_rates()
        if line.above_tokens and not _same_tier(line, secondary.rates)
    ]
    extra_rates = [line for line in secondary.rates if not _same_tier(line, lead.rates)]
    source_notes = [f"{name} for {', '.join(dict.fromkeys(services))}" for name, services in gaps.items()]
    source_notes += dict.fromkeys(line.name + (f" ({line.source})" if line.source else "") for line in extra_rates)
    notes = [f"prices that {lead.source} lacks come from steptime's own table: {'; '.join(source_notes)}"]
    rates = sorted((*lines, *extra_rates), key=lambda line: (line.service != STANDARD, line.service, line.above_tokens))
    all_notes = (*lead.notes, *secondary.notes, *differences, *(notes if source_notes else ()))
    return replace(lead, rates=tuple(rates), notes=all_notes)


def _with(line: Rates, twins: list[PricesT]) -> tuple[Rates, list[str]]:
    """Return a line with prices added from the first twin with equal input and output prices, and the names of these prices."""
    for twin in twins:
        lacks = [name for name in PRICES if math.isnan(getattr(line, name)) and math.isfinite(getattr(twin, name))]
        if lacks and have_same_prices(line, twin):
            source = "; ".join(filter(None, (line.source, f"{', '.join(WORDS.get(n, n) for n in lacks)}: {twin.source}")))
            return replace(line, source=source, **{name: getattr(twin, name) for name in lacks}), lacks
    return line, []


def _same_tier(line: Rates, offers: Iterable[PricesT]) -> list[PricesT]:
    """Return the offers with the service and tier of a line; thresholds of two sources may differ by one token."""
    return [o for o in offers if o.service == line.service and abs(o.above_tokens - line.above_tokens) <= 1]


def _difference(lead: PriceList, line: Rates, secondary: PriceList, other_line: Rates) -> str:
    """Return the prices of two sources that disagree, with their dates; the source in use is first."""
    texts = [
        f"{price_list.source} of {price_list.retrieval_date} says {rates.input:g}/{rates.output:g}"
        for price_list, rates in ((lead, line), (secondary, other_line))
    ]
    return f"{texts[0]} USD/M (used), {texts[1]}"


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
    data = read_file(Path(path))
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
    standard_tiers = [tier for tier in tiers if tier.get("service", STANDARD) == STANDARD]
    for low, high in pairwise(_amount(tier, "above_tokens", "tiers") for tier in standard_tiers):
        if not low < high:
            raise RangeError(f"tiers: tiers must ascend; {short_repr(high)} follows {short_repr(low)}")
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
