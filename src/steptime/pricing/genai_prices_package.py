"""Price lists of the package genai-prices (extra `[prices]`): imported on use, and offline except with `update`."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from steptime.errors import InputError, install_hint
from steptime.pricing.bundled_prices import match_family
from steptime.pricing.price_list import STANDARD, PriceList, Rates

# Provider names of the package, and the shipped names.
NAMES: Final = {"x-ai": "xai", "zhipuai": "zhipuai", "huggingface_fireworks-ai": "huggingface_fireworks"}
FIELDS: Final = {
    "input": "input_mtok", "output": "output_mtok", "cache_read": "cache_read_mtok", "cache_write": "cache_write_mtok",
    "cache_write_long": "cache_write_1h_mtok",
}  # fmt: skip


def installed() -> bool:
    """Check whether genai-prices is installed.

    Returns:
        True if it can be imported.
    """
    return importlib.util.find_spec("genai_prices") is not None


def snapshot(*, update: bool = False) -> Any:
    """Return the prices of the package.

    Args:
        update: Whether to download the newest prices. This is the only use of a network.

    Returns:
        Snapshot of the package.

    Raises:
        InputError: The package is not installed, or the download fails.
    """
    if not installed():
        raise InputError(f"current prices need genai-prices: {install_hint('prices')}; the shipped prices do not need it")
    if update:
        return _fetched()
    from genai_prices import data_snapshot

    return data_snapshot.get_snapshot()


@lru_cache(maxsize=1)
def _fetched() -> Any:
    """Download the newest prices once."""
    from genai_prices import UpdatePrices

    try:
        snapshot = UpdatePrices().fetch()
    # A download can fail in many ways; the user needs one message.
    except Exception as problem:
        raise InputError(f"--update could not fetch prices: {problem}; leave it out to use the installed prices") from None
    if snapshot is None:
        raise InputError("--update found no prices; leave it out to use the installed prices")
    return snapshot


def version() -> str:
    """Return the name and version of the package.

    Returns:
        Text such as "genai-prices 0.1".
    """
    from importlib.metadata import version as of

    return f"genai-prices {of('genai-prices')}"


def find(provider: str, model: str, price_time: datetime, *, update: bool = False) -> PriceList | None:
    """Find the price list of a seller's model.

    The package matches names by their beginning. A match with another model is rejected.

    Args:
        provider: Seller.
        model: Model name.
        price_time: Time of the prices.
        update: Whether to download the newest prices.

    Returns:
        Price list, or None.
    """
    seller_names = {package for package, ours in NAMES.items() if ours == provider} | {provider}
    for seller in snapshot(update=update).providers:
        if seller.id in seller_names:
            # The package matches the beginning of a name: glm-4.5 would match glm-4.5-air.
            package_model = seller.find_model(model)
            if package_model is None or (
                match_family(package_model.id)[0] and match_family(package_model.id) != match_family(model)
            ):
                return None
            return build_price_list(seller, package_model, price_time)
    return None


def find_family(family: str, price_time: datetime, *, update: bool = False) -> Iterator[tuple[str, PriceList]]:
    """Find the price lists of an open model at all sellers.

    Args:
        family: Family of the model.
        price_time: Time of the prices.
        update: Whether to download the newest prices.

    Yields:
        Variant and price list.
    """
    for seller in snapshot(update=update).providers:
        for model in seller.models:
            name, variant = match_family(model.id)
            if name == family and (price_list := build_price_list(seller, model, price_time)) is not None:
                yield variant, price_list


def build_price_list(seller: Any, model: Any, price_time: datetime) -> PriceList | None:
    """Convert a model of the package to a price list.

    Args:
        seller: Provider of the package.
        model: Model of the package.
        price_time: Time of the prices.

    Returns:
        Price list; None for a free model, or a model that is not sold by tokens.
    """
    rates = _tiers(STANDARD, model.get_prices(price_time))

    # Variants are services such as batch; only those that apply at the time count.
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
    """Return the rates of a service by context; a price without tiers is the same in all tiers."""
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
    """Return the price above a context [USD per million tokens]; NaN without a price."""
    if price is None:
        return math.nan
    if not hasattr(price, "tiers"):
        return float(price)
    rate = price.base
    for tier in price.tiers:
        if tier.start <= start:
            rate = tier.price
    return float(rate)
