"""Price lists of the package genai-prices (extra `[prices]`), imported when used: offline unless `update` is asked."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from steptime.errors import InputError
from steptime.pricing.model_names import match_family
from steptime.pricing.price_list import STANDARD, PriceList, Rates

# package -> shipped
NAMES: Final = {"x-ai": "xai", "zhipuai": "zhipuai", "huggingface_fireworks-ai": "huggingface_fireworks"}
FIELDS: Final = {
    "input": "input_mtok", "output": "output_mtok", "cache_read": "cache_read_mtok", "cache_write": "cache_write_mtok",
    "cache_write_long": "cache_write_1h_mtok",
}  # fmt: skip


def installed() -> bool:
    """Whether the package is there."""
    return importlib.util.find_spec("genai_prices") is not None


def snapshot(*, update: bool = False) -> Any:
    """Return the prices that the package holds; fetched anew where `update` asks for it, which is the only use of a network."""
    if not installed():
        raise InputError("prices of the day need genai-prices: pip install 'steptime[prices]'; the shipped rows do without")
    if update:
        return _fetched()
    from genai_prices import data_snapshot

    return data_snapshot.get_snapshot()


@lru_cache(maxsize=1)
def _fetched() -> Any:
    """Return the newest prices, fetched once."""
    from genai_prices import UpdatePrices

    try:
        snapshot = UpdatePrices().fetch()
    # whatever the network does
    except Exception as problem:
        raise InputError(f"--update could not fetch prices: {problem}; leave it out for those that are installed") from None
    if snapshot is None:
        raise InputError("--update found no prices; leave it out for those that are installed")
    return snapshot


def version() -> str:
    """Return name and version of the package."""
    from importlib.metadata import version as of

    return f"genai-prices {of('genai-prices')}"


def find(provider: str, model: str, price_time: datetime, *, update: bool = False) -> PriceList | None:
    """Return the list of a model at a seller at a time, by the package's own matching; None where it has none.

    A match that the normaliser tells to be another model (the package matches beginnings of names) is none.
    """
    seller_names = {package for package, ours in NAMES.items() if ours == provider} | {provider}
    for seller in snapshot(update=update).providers:
        if seller.id in seller_names:
            package_model = seller.find_model(model)
            if package_model is None or (
                match_family(package_model.id)[0] and match_family(package_model.id) != match_family(model)
            ):
                return None
            return build_price_list(seller, package_model, price_time)
    return None


def find_family(family: str, price_time: datetime, *, update: bool = False) -> Iterator[tuple[str, PriceList]]:
    """Yield the lists of a model with open weights at all sellers of the package, each with its variant."""
    for seller in snapshot(update=update).providers:
        for model in seller.models:
            name, variant = match_family(model.id)
            if name == family and (price_list := build_price_list(seller, model, price_time)) is not None:
                yield variant, price_list


def build_price_list(seller: Any, model: Any, price_time: datetime) -> PriceList | None:
    """Return what the package says of a model at a time; None for what is not sold by the token, or free."""
    rates = _tiers(STANDARD, model.get_prices(price_time))
    for variant in model.price_variants or ():
        service = next(iter(variant.when.values()), "")
        holds = variant.constraint is None or variant.constraint.active(price_time)
        if holds and service != "default" and not any(line.service == service for line in rates):
            rates += _tiers(service, variant.prices)
    if not any(line.service == STANDARD and line.input + line.output > 0 for line in rates):
        return None
    return PriceList(
        provider=NAMES.get(seller.id, seller.id),
        model=model.id,
        rates=tuple(rates),
        longest=float(model.context_window or math.nan),
        price_time=price_time.strftime("%Y-%m-%dT%H:%MZ"),
        source=version(),
        notes=(f"matched {model.id}",),
    )


def _tiers(service: str, prices: Any) -> list[Rates]:
    """Return the rates of a service by context; a price that has no tiers is the same in all."""
    price_by_field: Mapping[str, Any] = {name: getattr(prices, attribute, None) for name, attribute in FIELDS.items()}
    if price_by_field["input"] is None or price_by_field["output"] is None:
        return []
    starts = sorted({0, *(tier.start for price in price_by_field.values() for tier in getattr(price, "tiers", ()) or ())})
    blank = Rates(service=service)
    return [replace(blank, above_tokens=float(start), **_rates_above(price_by_field, start)) for start in starts]


def _rates_above(price_by_field: Mapping[str, Any], start: int) -> dict[str, Any]:
    """Return all prices above a context."""
    return {name: _rate_above(price, start) for name, price in price_by_field.items()}


def _rate_above(price: Any, start: int) -> float:
    """Return a price above a context [USD per million]; not a number where there is none."""
    if price is None:
        return math.nan
    if not hasattr(price, "tiers"):
        return float(price)
    rate = price.base
    for tier in price.tiers:
        if tier.start <= start:
            rate = tier.price
    return float(rate)
