r"""KV price step: KV bytes per token from a price that increases above a context length, in dollars.

Above the threshold, an output token costs $\Delta P$ more because it reads $\Delta L$ more tokens of KV cache:

$$ \kappa = \frac{\Delta P}{\Delta L \, c_{byte} \, G} $$

with $c_{byte}$ the dollars per byte read and $G$ the seller's margin. Only the first step is used: later steps have other
reasons (the last steps of Alibaba are up to twelve times higher). Mean contexts below and above the step are drawn from the
range of public traces. At $G = 1$ the result is an upper bound that needs neither batch nor model size. An FP8 KV cache has
half the bytes of a BF16 cache. Estimate and bound are in BF16.

KV storage cost: break-even times of cached prompts by memory tier, and what the cache prices of a list allow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from steptime.blackboard.token_cost import break_even_hits, hold_price, hold_seconds, kv_bytes_from_step, usd_per_byte_read
from steptime.catalog.hardware_loading import load_system
from steptime.errors import UnknownName, short_repr
from steptime.number_checks import Array, positive
from steptime.pricing.bundled_prices import table
from steptime.pricing.fast_tiers import Draws, Margin, assumed
from steptime.pricing.price_estimate import Reading, unidentifiable
from steptime.pricing.price_list import STANDARD, PriceList
from steptime.pricing.serving_costs import HOPPER
from steptime.result_base import unit
from steptime.units import HOUR, MILLION, show


def usd_per_byte(share: float | Array) -> Array:
    """Return the cost of reading a byte on the calibration systems.

    Args:
        share: Share of the memory bandwidth in use; a number or an array.

    Returns:
        USD per byte, of the shape of `share` plus an axis of systems.
    """
    machines = [load_system(name) for name in HOPPER]
    rents = np.array([float(machine.rent.typical) for machine in machines])
    widths = np.array([float(machine.chip.hbm.bandwidth) for machine in machines])
    return np.asarray(usd_per_byte_read(rents, widths, np.asarray(share)[..., None]))


def has_step(price_list: PriceList) -> bool:
    """Check whether output costs more above the first threshold.

    Args:
        price_list: Price list.

    Returns:
        True with such a step.
    """
    tiers = price_list.service_rates(STANDARD)
    return len(tiers) > 1 and tiers[1].output > tiers[0].output


def drawn_bytes(price_list: PriceList, draws: Draws, random: np.random.Generator) -> Array:
    """Draw the KV bytes per token at margin 1.

    Args:
        price_list: Price list with a step.
        draws: Draws.
        random: Generator.

    Returns:
        Bytes per token of context, of shape (draws,).
    """
    tiers = price_list.service_rates(STANDARD)
    dearer = (tiers[1].output - tiers[0].output) / MILLION
    first = tiers[1].above_tokens
    end = (
        tiers[2].above_tokens / first
        if len(tiers) > 2
        else price_list.longest / first
        if math.isfinite(price_list.longest)
        else math.inf
    )

    # Contexts above the step end at the next threshold, or at the longest context for sale.
    low, high = assumed("context_above")
    below = draws.log_uniform(random, *assumed("context_below"))
    above = draws.log_uniform(random, min(low, end), min(high, end))
    dollars = draws.choice(random, usd_per_byte(1.0)) / draws.log_uniform(random, *assumed("memory_share"))
    return np.asarray(kv_bytes_from_step(dearer, (above - below) * first, dollars))


def calibrated(price_list: PriceList, margin: Margin, draws: Draws) -> tuple[Array, Array]:
    """Draw the KV bytes per token in BF16.

    Args:
        price_list: Price list with a step.
        margin: Prior of the margin.
        draws: Draws.

    Returns:
        Bytes per token with the margin prior, and at margin 1 (upper bound), of shape (draws,).
    """
    random = draws.generator()
    bytes_read = drawn_bytes(price_list, draws, random)

    # A seller with an FP8 cache reads half the bytes that a BF16 cache has.
    halves = random.random(draws.count // 2) < assumed("fp8_cache")[0]
    wide = np.where(np.concatenate([halves, halves]), 2.0, 1.0)
    return bytes_read * wide / margin.at_scores(draws.scores(random)), bytes_read * wide


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


def asked_per_hour(price_list: PriceList) -> dict[str, float]:
    """Return the storage prices of a list.

    Args:
        price_list: Price list.

    Returns:
        USD per million tokens and hour, by kind: lifetimes, storage.
    """
    base = price_list.base
    hold_prices = {}
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


def paid_per_hour(price_list: PriceList) -> dict[str, float]:
    """Return the positive storage prices of a list.

    A cache write at or below the input price contains no charge for storage.

    Args:
        price_list: Price list.

    Returns:
        USD per million tokens and hour, by kind.
    """
    return {words: value for words, value in asked_per_hour(price_list).items() if value > 0}


def cache_readings(price_list: PriceList, kv: Reading, memory: tuple[Tier, ...]) -> list[Reading]:
    """Return the estimates from the cache prices of a list.

    Args:
        price_list: Price list.
        kv: Estimate of the KV bytes per token.
        memory: Tiers.

    Returns:
        Break-even hits, storage prices, and the tiers that the prices do not exclude.
    """
    return [*_hits(price_list), *_per_hour(price_list), _tiers(price_list, kv, memory)]


def _hits(price_list: PriceList) -> list[Reading]:
    base, readings = price_list.base, []
    for name, write in (("short", base.cache_write), ("long", base.cache_write_long)):
        if not math.isfinite(write):
            continue
        quantity = f"cache hits after which a cache write with the {name} lifetime saves money"
        if base.effective_cache_read >= base.input:
            readings.append(unidentifiable(f"hits_{name}", quantity, "no discount: a cache hit costs as much as new input"))
            continue
        hits = max(0.0, float(break_even_hits(write, base.input, base.effective_cache_read)))
        reason = (
            f"write {write:g}, input {base.input:g}, hit {base.effective_cache_read:g} USD/M; "
            f"rounded up: {math.ceil(hits - 1e-12)}"
        )
        readings.append(Reading(name=f"hits_{name}", quantity=quantity, value=hits, reason=reason))
    return readings


def _per_hour(price_list: PriceList) -> list[Reading]:
    return [_hold_price(words, value) for words, value in asked_per_hour(price_list).items()]


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
            from steptime.errors import RangeError

            raise RangeError(f"--hold: must be TIER=USD per GB-hour, such as DRAM=0.0005, got {short_repr(text)}")
    return hold_costs
