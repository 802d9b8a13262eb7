"""Caches: how long holding pays by tier of memory, what a list's prices for it allow, and when remaking is cheaper."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from steptime.blackboard.cache_tiers import break_even_hits, hold_price, hold_seconds
from steptime.errors import UnknownName, short_repr
from steptime.number_checks import positive
from steptime.pricing.bundled_prices import table
from steptime.pricing.price_estimate import Reading, unidentifiable
from steptime.pricing.price_list import PriceList
from steptime.result_base import unit
from steptime.units import HOUR, MILLION, show

GB = 1e9
UNTRIED = "how often this holds is not known: the one seller that tells its memory (DeepSeek, disk) asks nothing for holding"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A memory that a cache may lie in: what a byte costs to hold, and how long reading all of it takes."""

    name: str = field(metadata=unit("", "HBM, DRAM, flash or disk"))
    usd_per_byte_second: float = field(metadata=unit("USD", "to hold a byte for a second", key="usd_per_byte_s"))
    drain: float = field(metadata=unit("s", "capacity over bandwidth"))
    grade: str = field(default="guess", metadata=unit("", "how far to trust them"))
    note: str = field(default="", metadata=unit("", "where they are from"))


def tiers(hold_costs: Mapping[str, float] | None = None) -> tuple[Tier, ...]:
    """Return the tiers, nearest first; `hold_costs` replaces what holding costs [USD per GB and hour], by name."""
    rows = table("facts")["memory"]
    names = {str(row["name"]).casefold(): str(row["name"]) for row in rows}
    user_costs = {}
    for name, value in (hold_costs or {}).items():
        if name.casefold() not in names:
            raise UnknownName("tier of memory", name, names.values(), f"Known: {', '.join(names.values())}.")
        user_costs[names[name.casefold()]] = positive(f"what holding in {name} costs", value, "USD per GB-hour")
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
    """One tier for the cache of a model: until when holding is cheaper than remaking, and what prices pay for."""

    tier: str = field(metadata=unit("", "HBM, DRAM, flash or disk"))
    usd_per_mtok_hour: float = field(metadata=unit("USD", "to hold a million tokens", key="usd_per_million_token_hours"))
    break_even: float = field(default=math.nan, metadata=unit("s", "after which making the tokens again is cheaper"))
    hit_pays: float = field(default=math.nan, metadata=unit("s", "of holding that one hit pays at margin 1"))
    drain: float = field(metadata=unit("s", "in which all of the tier can be read"))
    grade: str = field(metadata=unit("", "how far to trust what holding costs"))


def holds(
    kv_bytes_per_token: float, remake_usd_per_million: float, read_usd_per_million: float, memory: tuple[Tier, ...]
) -> tuple[Hold, ...]:
    """Return each tier for a model of known bytes: remake and read are USD per million tokens, or not a number."""
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


def asked_per_hour(price_list: PriceList) -> dict[str, float]:
    """Return what a list asks for holding, in USD per million tokens and hour, by how it asks: lifetimes, storage."""
    base = price_list.base
    hold_prices = {}
    for words, write, hold in (
        ("short", base.cache_write, price_list.hold),
        ("long", base.cache_write_long, price_list.hold_long),
    ):
        if math.isfinite(write) and math.isfinite(hold) and hold > 0:
            hold_prices[f"{words} lifetime, {show(hold, 's')}"] = float(hold_price(write, base.input, hold)) * HOUR
    if math.isfinite(price_list.storage):
        hold_prices["storage"] = price_list.storage
    return hold_prices


def paid_per_hour(price_list: PriceList) -> dict[str, float]:
    """Return what a list asks for holding where it asks for any: a write at or below the input price asks for none."""
    return {words: value for words, value in asked_per_hour(price_list).items() if value > 0}


def cache_readings(price_list: PriceList, kv: Reading, memory: tuple[Tier, ...]) -> list[Reading]:
    """Return what prices of caches say: hits to break even, dollars an hour, and tiers that are not excluded."""
    return [*_hits(price_list), *_per_hour(price_list), _tiers(price_list, kv, memory)]


def _hits(price_list: PriceList) -> list[Reading]:
    base, readings = price_list.base, []
    for name, write in (("short", base.cache_write), ("long", base.cache_write_long)):
        if not math.isfinite(write):
            continue
        quantity = f"hits after which a cache of the {name} lifetime pays its buyer"
        if base.effective_cache_read >= base.input:
            readings.append(
                unidentifiable(f"hits_{name}", quantity, "a hit costs as much as fresh input: no discount, so no hit pays")
            )
            continue
        hits = max(0.0, float(break_even_hits(write, base.input, base.effective_cache_read)))
        reason = f"write {write:g}, input {base.input:g}, hit {base.effective_cache_read:g} USD/M; whole hits: {math.ceil(hits - 1e-12)}"
        readings.append(Reading(name=f"hits_{name}", quantity=quantity, value=hits, reason=reason))
    return readings


def _per_hour(price_list: PriceList) -> list[Reading]:
    return [_hold_price(words, value) for words, value in asked_per_hour(price_list).items()]


def _hold_price(words: str, value: float) -> Reading:
    name = "hold_price" if words == "storage" else f"hold_price_{words.partition(' ')[0]}"
    quantity = f"what holding is paid with ({words})"
    if value < 0:
        why = "a write costs less than fresh input, so that its price holds none of holding: it is paid with the hits, or not"
        return unidentifiable(name, quantity, why, measure="USD/Mtok-h")
    reason = "storage is a price of its own" if words == "storage" else "write above input, over the lifetime"
    return Reading(name=name, quantity=quantity, measure="USD/Mtok-h", value=value, reason=reason)


def _tiers(price_list: PriceList, kv: Reading, memory: tuple[Tier, ...]) -> Reading:
    """Return the bytes a token that each tier could hold for what is asked, and the tiers that this does not exclude."""
    name, quantity = "memory_tiers", "tiers of memory that prices of caches do not exclude"
    hold_prices = paid_per_hour(price_list)
    if not hold_prices:
        why = "the list asks nothing for holding a cache: no write price above input with a lifetime, and no storage"
        return unidentifiable(name, quantity, why)
    least = kv.interval[0] if kv.interval else math.nan
    tier_lines = []
    for words, value in hold_prices.items():
        life = {"short": price_list.hold, "long": price_list.hold_long}.get(words.partition(" ")[0], math.inf)
        able = []
        for tier in memory:
            max_bytes = value / MILLION / (tier.usd_per_byte_second * HOUR)
            if tier.drain <= life and not max_bytes < least:
                able.append(f"{tier.name} (up to {show(max_bytes, 'B')} a token)")
        tier_lines.append(f"{words}: {', '.join(able) or 'none'}")
    basis = (
        f"at margin 1, for at least {show(least, 'B')} a token"
        if math.isfinite(least)
        else "at margin 1; bytes a token are not known"
    )
    return Reading(name=name, quantity=quantity, words=tuple(tier_lines), reason=f"{basis}; {UNTRIED}")


def read_holds(texts: list[str] | None) -> dict[str, float]:
    """Read what holding costs, as "DRAM=0.0005" in USD per GB-hour."""
    hold_costs = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        try:
            hold_costs[name.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals:
            from steptime.errors import RangeError

            raise RangeError(f"--hold takes TIER=USD per GB-hour, such as DRAM=0.0005, not {short_repr(text)}")
    return hold_costs
