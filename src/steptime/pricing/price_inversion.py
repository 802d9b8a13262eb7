"""Size estimates from a price list: active and total parameters, and KV bytes per token from a price step over context.

Price inversion: infers model size, KV bytes and cache storage from one price list, and lists what cannot be inferred.

Quantities that cannot be inferred were tested on models with known values, and the inference failed. Rank correlations and
shares refer to models with open weights at 91 sellers (`docs/fit_prices.py`). Each estimate also has the result of the
lecture's formula for an ideal machine that sells at cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar

import numpy as np

from steptime.blackboard.token_cost import active_from_input, decode_utilisation, kv_bytes_from_step, kv_bytes_from_tier
from steptime.errors import RangeError, expect
from steptime.number_checks import positive
from steptime.pricing.bundled_prices import match_family, table
from steptime.pricing.fast_tiers import BASE_SPEED, DRAWS, FAST, Z90, Draws, Margin, fast_modes, interval, read_margin
from steptime.pricing.kv_storage_cost import Tier, cache_readings, calibrated, has_step, tiers, usd_per_byte
from steptime.pricing.lecture_inversion import Ideal, IdealReading, read_ideal
from steptime.pricing.open_model_market import known_figures
from steptime.pricing.price_estimate import Reading, prior_coverage, unidentifiable
from steptime.pricing.price_list import PER_MILLION, PriceList, checked, list_from
from steptime.pricing.price_lookup import find_list
from steptime.pricing.prior_calibration import HALF_BUSY
from steptime.pricing.serving_costs import HOPPER
from steptime.result_base import Tabular, columns_by_key, unit
from steptime.units import MILLION

# Machine of the lecture in FP8: balance R, and bytes per weight.
BALANCE, WEIGHT_BYTES = 300.0, 1.0
# Share of memory bandwidth, for values without draws.
MEMORY_SHARE = 0.77


def information_bits(name: str) -> float:
    """Return the information in the prices about a quantity.

    Args:
        name: Name of the prior.

    Returns:
        log2 of the spread without prices over the scatter with them [bits], at least 0.
    """
    prior = table("priors")[name]
    return max(0.0, math.log2(prior["spread"] / prior["scatter"]))


def size(price_list: PriceList, which: str, quantity: str) -> Reading:
    """Estimate active or total parameters by a fit to open models.

    Args:
        price_list: Price list.
        which: "active" or "total".
        quantity: Description of the quantity.

    Returns:
        Estimate with a 90 % range; active parameters also have an upper bound.
    """
    base, fit = price_list.base, table("priors")[which]
    if not (base.input > 0 and base.output > 0):
        return unidentifiable(f"{which}_parameters", quantity, "a price of 0 contains no information", measure="parameters")
    constant, power_in, power_out = fit["log10"]
    centre = constant + power_in * math.log10(base.input) + power_out * math.log10(base.output)
    half = Z90 * fit["scatter"]

    # Upper bound: the seller spends the whole input price on arithmetic.
    bound = math.nan
    if which == "active":
        bound = float(active_from_input(base.input / MILLION, table("priors")["dollars"]["usd_per_flop"]))
    return Reading(
        name=f"{which}_parameters",
        quantity=quantity,
        measure="parameters",
        value=10**centre,
        interval=(10 ** (centre - half), 10 ** (centre + half)),
        bound=bound,
        bound_held=prior_coverage(which, "bound_held") if which == "active" else None,
        bits=information_bits(which),
        interval_held=prior_coverage(which),
        reason=(
            "median of models with open weights at that input price"
            if which == "active"
            else f"fit to models with open weights: input price to the power {power_in:.2g}, output price {power_out:.2g}"
        )
        + (
            f"; at the bound, arithmetic at {HALF_BUSY:.0%} of FP8 peak costs the whole input price".replace("%", " %")
            if which == "active"
            else ""
        ),
    )


def kv_bytes(price_list: PriceList, margin: Margin, draws: Draws, active: float, balance: float = BALANCE) -> Reading:
    """Estimate KV bytes per token from the first step of output prices.

    Args:
        price_list: Price list.
        margin: Prior of the margin.
        draws: Draws.
        active: Active parameters, for the lecture's formula.
        balance: Machine balance R, for the lecture's formula.

    Returns:
        Estimate with a 90 % range and an upper bound; without a value if there is no step.
    """
    name, quantity = "kv_bytes_per_token", "KV bytes per token"
    tiers = price_list.service_rates()
    if not has_step(price_list):
        rising = len(tiers) > 1 and tiers[1].input > tiers[0].input
        why = (
            "only the input price increases at the step, and prefill is compute-bound"
            if rising
            else "the list has no price step"
        )
        return unidentifiable(
            name, quantity, f"{why}; KV bytes can only be inferred from output prices that increase with context", measure="B"
        )

    # The lecture's formula, the draws, and one value at margin 1 for comparison.
    ideal = float(kv_bytes_from_tier(active, tiers[1].above_tokens, balance, WEIGHT_BYTES))
    values, bounds = calibrated(price_list, margin, draws)
    at_one = float(
        kv_bytes_from_step(
            (tiers[1].output - tiers[0].output) / MILLION, tiers[1].above_tokens, float(usd_per_byte(MEMORY_SHARE)[0])
        )
    )

    # KV reads belong to decode, so a steeper input price has another reason.
    rises = tiers[1].input / tiers[0].input > tiers[1].output / tiers[0].output if tiers[0].input and tiers[0].output else False
    steeper = "; the input price increases more than the output price, which KV reads do not explain" if rises else ""
    return Reading(
        name=name,
        quantity=quantity,
        measure="B",
        value=float(np.median(values)),
        interval=interval(values),
        bound=float(np.quantile(bounds, 0.95)),
        bound_held=prior_coverage("step", "bound_held"),
        bits=information_bits("step"),
        interval_held=prior_coverage("step") if margin.values else None,
        reason=f"output costs {tiers[1].output - tiers[0].output:g} USD/M more above {tiers[1].above_tokens:,.0f} tokens. "
        f"Price / cost: {margin.median:.2g} ({margin.low:.2g} to {margin.high:.2g}; {margin.basis}). At exactly "
        f"{tiers[1].above_tokens:,.0f} tokens and price / cost of 1, the value is {at_one / 1e3:,.0f} kB. The upper bound "
        f"assumes price / cost of at least 1 and USD per byte of {' and '.join(HOPPER)}. Range and bound are in BF16{steeper}",
        ideal=ideal,
        ideal_from=f"section 13: memory time equals compute time at the threshold; "
        f"{active / 1e9:,.0f} B active, R = {balance:g}",
    )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PriceReading(Tabular):
    """A price list and the estimates from it; as a table, one row per estimate."""

    SCHEMA: ClassVar[str] = "steptime.price-reading/2"

    list: PriceList = field(metadata=unit("", "price list"))
    readings: tuple[Reading, ...] = field(metadata=unit("", "estimates; quantities that are not identifiable are last"))
    ideal: IdealReading = field(metadata=unit("", "the lecture's estimates, on an ideal machine"))
    margin: Margin = field(metadata=unit("", "assumed margin of the seller over cost"))
    memory: tuple[Tier, ...] = field(metadata=unit("", "memory tiers for a KV cache, with storage costs"))
    true_values: dict[str, float] = field(
        default_factory=dict,
        metadata=unit("", "known values of a model with open weights, by name of the estimate; KV bytes in BF16"),
    )
    seed: int = field(metadata=unit("", "random seed of the draws"))
    draws: int = field(metadata=unit("", "number of draws"))

    def __getitem__(self, name: str) -> Reading:
        readings = {reading.name: reading for reading in self.readings}
        if name not in readings:
            from steptime.errors import UnknownName

            raise UnknownName("estimate", name, readings, f"Known: {', '.join(readings)}.")
        return readings[name]

    @property
    def text(self) -> str:
        """The answer in a few sentences."""
        active, kv = self["active_parameters"], self["kv_bytes_per_token"]
        size_claims = []
        if active.identifiable and active.interval:
            size_claims.append(f"{active.ends} active parameters")
        if kv.identifiable and kv.interval:
            size_claims.append(f"{kv.ends} of KV cache per token in BF16")
        summary = " and ".join(size_claims) + " (90 % ranges)" if size_claims else "nothing about the model's size"
        sentences = [f"The prices of {self.list.name} imply {summary}."]
        if math.isfinite(kv.bound):
            sentences.append(
                f"The KV cache has at most {kv.written(kv.bound)} per token (such bounds were {kv.bound_held} known models)."
            )
        blind = sum(not reading.identifiable for reading in self.readings)
        sentences.append(f"{blind} of {len(self.readings)} quantities are not identifiable.")
        return " ".join(sentences)

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the list and the estimates of the model's size.

        Returns:
            Title, and text by quantity.
        """
        names = ("active_parameters", "total_parameters", "kv_bytes_per_token")
        figures = {
            reading.quantity: reading.ends if reading.identifiable else "not identifiable"
            for reading in map(self.__getitem__, names)
        }
        blind = sum(not reading.identifiable for reading in self.readings)
        return f"Estimates from the prices of {self.list.name}", figures | {
            "not identifiable": f"{blind} of {len(self.readings)}"
        }

    def columns(self) -> dict[str, Any]:
        """Return the table of estimates; a range has two columns.

        Returns:
            Columns by name, one row per estimate.
        """
        columns = {
            name: values
            for name, values in columns_by_key(Reading, self.readings).items()
            if name not in ("interval", "interval_held", "words")
        }
        for end, name in enumerate(("low", "high")):
            columns[name] = [math.nan if reading.interval is None else reading.interval[end] for reading in self.readings]
        columns["interval_held"] = [str(reading.interval_held or "") for reading in self.readings]
        return columns | {"words": ["; ".join(reading.words) for reading in self.readings]}


def read_prices(
    prices: PriceList | Mapping[str, Any] | str,
    *,
    provider: str | None = None,
    price_time: str | datetime | None = None,
    margin: str | float | Margin | None = None,
    speed: float = BASE_SPEED,
    fast_speed: float | None = None,
    hold: Mapping[str, float] | None = None,
    ideal: Ideal | None = None,
    seed: int = 0,
    draws: int = DRAWS,
    update: bool = False,
) -> PriceReading:
    """Infer the size of a model and its cache storage from a price list.

    Args:
        prices: Seller's model such as "openai/gpt-6-sol", fields of a list, or a `PriceList`.
        provider: Seller of the model.
        price_time: Day or hour of the list.
        margin: Price over cost, as a number or a 90 % range "1.2..7"; by default that of the host market.
        speed: Speed of the standard service [tok/s].
        fast_speed: Speed of the faster services over standard, for services without a promised speed.
        hold: Storage cost by memory tier [USD per GB-hour].
        ideal: Machine and model size of the lecture's formulas.
        seed: Random seed.
        draws: Number of draws.
        update: Whether to download the newest prices first (extra `[prices]`).

    Returns:
        Estimates with 90 % ranges.

    Raises:
        RangeError: A value is out of range.

    >>> read_prices({"input": 2, "output": 10})["kv_bytes_per_token"].identifiable
    False
    """
    if isinstance(prices, str):
        price_list = find_list(prices, provider, price_time, update=update)
    elif isinstance(prices, Mapping):
        price_list = list_from(prices)
    else:
        expect("a price list", prices, PriceList, "a name, fields such as {'input': 2, 'output': 10}, or a PriceList")
        price_list = checked(prices, written_in=PER_MILLION)
    if fast_speed is not None:
        times = positive("fast speed", fast_speed)
        if times <= 1:
            raise RangeError(f"fast speed: must be above 1, the speed of the standard service, got {times:g}")
        services = {line.service for line in price_list.rates} & set(FAST)
        price_list = replace(price_list, speeds={**price_list.speeds, **dict.fromkeys(services, times)})

    # Draws come in mirrored pairs, so their number is even.
    sampler = Draws(seed=seed, count=max(2, draws - draws % 2))
    prior, memory, ideal_machine = read_margin(margin), tiers(hold), ideal or Ideal()
    kv = kv_bytes(price_list, prior, sampler, ideal_machine.active, ideal_machine.balance)

    # Estimates first; quantities that no list determines are last.
    readings = [
        size(price_list, "active", "active parameters"),
        size(price_list, "total", "total parameters"),
        kv,
        *fast_modes(price_list, positive("speed", speed, "tok/s")),
        *cache_readings(price_list, kv, memory),
        *not_identifiable(price_list),
    ]
    return PriceReading(
        list=price_list, readings=tuple(readings), ideal=read_ideal(price_list, ideal_machine), margin=prior, memory=memory,
        true_values=known_figures(match_family(price_list.model)[0]), seed=seed,
        draws=sampler.count,
    )  # fmt: skip


def not_identifiable(price_list: PriceList) -> list[Reading]:
    """Return the quantities that a price list does not determine.

    Args:
        price_list: Price list.

    Returns:
        Estimates without a value, with reasons.
    """
    base, tiers, facts = price_list.base, price_list.service_rates(), table("priors")["blind"]
    ratio = base.output / base.input if base.input > 0 else math.nan

    # The evidence comes from models with open weights, whose size is known.
    return [
        unidentifiable(
            "memory_bound_share",
            "memory-bound share of decode, from output price over input price",
            f"the price ratio is a convention: for {facts['models']} known models, its rank correlation with the computed "
            f"ratio is {facts['ratio_rank']:.2f} at the median of {facts['ratio_systems']} systems "
            f"({facts['ratio_rank_low']:.2f} on {facts['ratio_rank_low_on']}, "
            f"{facts['ratio_rank_high']:.2f} on {facts['ratio_rank_high_on']}); "
            f"{facts['at_four']} models have a ratio of exactly 4",
            ideal=1 - 1 / ratio if ratio >= 1 else math.nan,
            ideal_from="section 14: 1 - 1/r"
            + (f" with r = {ratio:.3g}, MFU of decode {_mfu(ratio):.2g}" if ratio >= 1 else ""),
        ),
        unidentifiable(
            "kv_bytes_from_levels",
            "KV bytes per token, from input and output price only",
            f"a regression on input and output price explains {100 * facts['levels_r2']:.0f} % of the variance",
            measure="B",
        ),
        unidentifiable(
            "kv_bytes_from_hit",
            "KV bytes per token, from the price of a cache hit",
            f"sellers charge 0.1, 0.2 or 0.5 times the input price: for {facts['hits']} prices, the input price explains "
            f"{100 * facts['hit_r2']:.0f} % of the variance, and input price plus KV bytes {100 * facts['hit_kv_r2']:.0f} %"
            + (
                f"; this list charges {base.effective_cache_read / base.input:.3g} times the input price"
                if base.input > 0 and math.isfinite(base.cache_read)
                else ""
            ),
            measure="B",
        ),
        unidentifiable(
            "tier_multiplier",
            "context or architecture, from the price factor of a context tier",
            f"above {facts['step_above']:,} tokens, {facts['step_models']} known models of one seller have factors of "
            f"{facts['step_low']:.2g} to {facts['step_high']:.2g}, but their KV bytes differ by up to "
            f"{facts['step_bytes_apart']:.2g} times (rank correlation {facts['step_rank']:.2f}); "
            "three labs use the same factors 2 and 1.5"
            + (f"; this list has {tiers[1].output / tiers[0].output:.3g}" if len(tiers) > 1 and tiers[0].output else ""),
        ),
    ]


def _mfu(ratio: float) -> float:
    return float(decode_utilisation(ratio))
