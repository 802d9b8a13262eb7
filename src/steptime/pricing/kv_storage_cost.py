"""KV storage cost: memory tiers, break-even times of cached prompts, and what the cache prices of a list allow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from steptime.blackboard.token_cost import break_even_hits, hold_price, hold_seconds
from steptime.errors import RangeError, UnknownName, short_repr
from steptime.number_checks import positive
from steptime.pricing.bundled_prices import table
from steptime.pricing.price_estimate import Reading, unidentifiable
from steptime.pricing.price_list import PriceList
from steptime.result_base import unit
from steptime.units import HOUR, MILLION, show

GB = 1e9
# Limitation of the estimate of memory tiers.
UNTRIED = "not testable: DeepSeek is the only seller that names its memory (disk), and it charges nothing for storage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A memory tier that can store a KV cache: the cost of storing a byte, and the time to read the whole tier."""

    name: str = field(metadata=unit("", "HBM, DRAM, flash or disk"))
    usd_per_byte_second: float = field(metadata=unit("USD", "cost of storing a byte for a second", key="usd_per_byte_s"))
    drain: float = field(metadata=unit("s", "drain time: capacity over bandwidth"))
    grade: str = field(default="guess", metadata=unit("", "reliability of the values"))
    note: str = field(default="", metadata=unit("", "source of the values"))


def tiers(hold_costs: Mapping[str, float] | None = None) -> tuple[Tier, ...]:
    """Return the memory tiers, the closest to the chip first.

    Args:
        hold_costs: Storage cost [USD per GB-hour] by tier name, instead of the shipped cost.

    Returns:
        Tiers.

    Raises:
        UnknownName: A tier is unknown.
    """
    rows = table("facts")["memory"]
    names = {str(row["name"]).casefold(): str(row["name"]) for row in rows}
    user_costs = {}
    for name, value in (hold_costs or {}).items():
        if name.casefold() not in names:
            raise UnknownName("tier of memory", name, names.values(), f"Known: {', '.join(names.values())}.")
        user_costs[names[name.casefold()]] = positive(f"storage cost of {name}", value, "USD per GB-hour")
    return tuple(
        Tier(
            name=row["name"],
            usd_per_byte_second=user_costs.get(row["name"], row["usd_per_gb_hour"]) / GB / HOUR,
            drain=row["drain_seconds"],
            grade="given" if row["name"] in user_costs else row["grade"],
            note=row["note"],
        )
        for row in rows
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A memory tier for the KV cache of a model: storage cost and break-even times."""

    tier: str = field(metadata=unit("", "HBM, DRAM, flash or disk"))
    usd_per_mtok_hour: float = field(
        metadata=unit("USD", "cost of storing a million tokens for an hour", key="usd_per_million_token_hours")
    )
    break_even: float = field(default=math.nan, metadata=unit("s", "storage time above which a new prefill is cheaper"))
    hit_pays: float = field(
        default=math.nan, metadata=unit("s", "storage time that the price of one cache hit covers at margin 1")
    )
    drain: float = field(metadata=unit("s", "time to read the whole tier"))
    grade: str = field(metadata=unit("", "reliability of the storage cost"))


def holds(
    kv_bytes_per_token: float, remake_usd_per_million: float, read_usd_per_million: float, memory: tuple[Tier, ...]
) -> tuple[Hold, ...]:
    """Compute the storage cost and break-even times of each tier.

    Args:
        kv_bytes_per_token: KV bytes per token.
        remake_usd_per_million: Cost of a new prefill [USD per million tokens], or NaN.
        read_usd_per_million: Price of a cache hit [USD per million tokens], or NaN.
        memory: Tiers.

    Returns:
        One entry per tier.
    """
    return tuple(
        Hold(
            tier=tier.name,
            usd_per_mtok_hour=kv_bytes_per_token * tier.usd_per_byte_second * HOUR * MILLION,
            break_even=float(hold_seconds(remake_usd_per_million / MILLION, kv_bytes_per_token, tier.usd_per_byte_second)),
            hit_pays=float(hold_seconds(read_usd_per_million / MILLION, kv_bytes_per_token, tier.usd_per_byte_second)),
            drain=tier.drain,
            grade=tier.grade,
        )
        for tier in memory
    )


def paid_per_hour(price_list: PriceList) -> dict[str, float]:
    """Return the positive storage prices of a list.

    A cache write at or below the input price contains no charge for storage.

    Args:
        price_list: Price list.

    Returns:
        USD per million tokens and hour, by kind: lifetimes, storage.
    """
    return {words: value for words, value in _storage_prices(price_list).items() if value > 0}


def _storage_prices(price_list: PriceList) -> dict[str, float]:
    """Return the storage prices of a list by kind [USD per million tokens and hour]; 0 or less: a write has no surcharge."""
    base, hold_prices = price_list.base, {}
    for words, write, hold in (
        ("short", base.cache_write, price_list.hold),
        ("long", base.cache_write_long, price_list.hold_long),
    ):
        # The surcharge of a write over input, divided by the lifetime, is a price of storage.
        if math.isfinite(write) and math.isfinite(hold) and hold > 0:
            hold_prices[f"{words} lifetime, {show(hold, 's')}"] = float(hold_price(write, base.input, hold)) * HOUR
    if math.isfinite(price_list.storage):
        hold_prices["storage"] = price_list.storage
    return hold_prices


def cache_readings(price_list: PriceList, kv: Reading, memory: tuple[Tier, ...]) -> list[Reading]:
    """Return the estimates from the cache prices of a list.

    Args:
        price_list: Price list.
        kv: Estimate of the KV bytes per token.
        memory: Tiers.

    Returns:
        Break-even hits, storage prices, and the tiers that the prices do not exclude.
    """
    hold_prices = [_hold_price(words, value) for words, value in _storage_prices(price_list).items()]
    return [*_hits(price_list), *hold_prices, _tiers(price_list, kv, memory)]


def _hits(price_list: PriceList) -> list[Reading]:
    base, readings = price_list.base, []
    for name, write in (("short", base.cache_write), ("long", base.cache_write_long)):
        if not math.isfinite(write):
            continue
        quantity = f"cache hits after which a cache write with the {name} lifetime saves money"
        hit_price = base.effective_cache_read
        if hit_price >= base.input:
            readings.append(unidentifiable(f"hits_{name}", quantity, "no discount: a cache hit costs as much as new input"))
            continue
        hits = max(0.0, float(break_even_hits(write, base.input, hit_price)))
        reason = f"write {write:g}, input {base.input:g}, hit {hit_price:g} USD/M; rounded up: {math.ceil(hits - 1e-12)}"
        readings.append(Reading(name=f"hits_{name}", quantity=quantity, value=hits, reason=reason))
    return readings


def _hold_price(words: str, value: float) -> Reading:
    name = "hold_price" if words == "storage" else f"hold_price_{words.partition(' ')[0]}"
    quantity = f"price of cache storage ({words})"
    if value < 0:
        why = "a cache write costs less than new input, so its price contains no storage; hits pay for storage, or nothing does"
        return unidentifiable(name, quantity, why, measure="USD/Mtok-h")
    reason = "the list has a storage price" if words == "storage" else "write price minus input price, over the lifetime"
    return Reading(name=name, quantity=quantity, measure="USD/Mtok-h", value=value, reason=reason)


def _tiers(price_list: PriceList, kv: Reading, memory: tuple[Tier, ...]) -> Reading:
    """Return the maximum bytes per token in each tier at the storage price, and the tiers that this does not exclude."""
    name, quantity = "memory_tiers", "memory tiers that the cache prices do not exclude"
    hold_prices = paid_per_hour(price_list)
    if not hold_prices:
        why = "the list charges nothing for cache storage: no write price above input with a lifetime, and no storage price"
        return unidentifiable(name, quantity, why)
    least = kv.interval[0] if kv.interval else math.nan
    tier_lines = []
    for words, value in hold_prices.items():
        life = {"short": price_list.hold, "long": price_list.hold_long}.get(words.partition(" ")[0], math.inf)
        able = []
        for tier in memory:
            # A tier is excluded if storage costs more than its price, or if reading it takes longer than the lifetime.
            max_bytes = value / MILLION / (tier.usd_per_byte_second * HOUR)
            if tier.drain <= life and not max_bytes < least:
                able.append(f"{tier.name} (up to {show(max_bytes, 'B')} per token)")
        tier_lines.append(f"{words}: {', '.join(able) or 'none'}")
    basis = (
        f"at price / cost of 1, for at least {show(least, 'B')} per token"
        if math.isfinite(least)
        else "at price / cost of 1; the KV bytes per token are not known"
    )
    return Reading(name=name, quantity=quantity, words=tuple(tier_lines), reason=f"{basis}; {UNTRIED}")


def read_holds(texts: list[str] | None) -> dict[str, float]:
    """Parse storage costs from texts such as "DRAM=0.0005".

    Args:
        texts: Texts of the option --hold, in USD per GB-hour.

    Returns:
        USD per GB-hour, by tier.

    Raises:
        RangeError: A text has another form.
    """
    hold_costs = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        try:
            hold_costs[name.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise RangeError(f"--hold: must be TIER=USD per GB-hour, such as DRAM=0.0005, got {short_repr(text)}")
    return hold_costs
