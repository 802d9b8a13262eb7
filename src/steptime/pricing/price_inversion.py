"""Reads one price list backward: what it says of the model and the machine behind it, and what it cannot say.

What a price list does not tell, whatever it says: readings that were tried on models whose truth is known, and failed.

Rank correlations and shares are of models with open weights at 91 sellers (`docs/fit_prices.py`). Beside each stands what the
lecture's formula would give on an ideal machine that sells at cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar

from steptime.blackboard.price_signals import decode_utilisation
from steptime.errors import RangeError, expect
from steptime.number_checks import positive
from steptime.pricing.bundled_prices import table
from steptime.pricing.fast_tiers import BASE_SPEED, FAST, fast_modes
from steptime.pricing.kv_storage_cost import Tier, cache_readings, tiers
from steptime.pricing.lecture_inversion import Ideal, IdealReading, read_ideal
from steptime.pricing.model_names import match_family
from steptime.pricing.monte_carlo import DRAWS, Draws, Margin, read_margin
from steptime.pricing.open_model_market import known_figures
from steptime.pricing.price_estimate import Reading, unidentifiable
from steptime.pricing.price_list import PER_MILLION, PriceList, checked, list_from
from steptime.pricing.price_lookup import find_list
from steptime.pricing.size_estimates import kv_bytes, size
from steptime.result_base import Tabular, columns_by_key, unit


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PriceReading(Tabular):
    """A price list and all that was read from it. As a table it is its readings."""

    SCHEMA: ClassVar[str] = "steptime.price-reading/2"

    list: PriceList = field(metadata=unit("", "what was read"))
    readings: tuple[Reading, ...] = field(metadata=unit("", "what holds first, then what is not identifiable"))
    ideal: IdealReading = field(metadata=unit("", "the lecture's own reading, on an ideal machine"))
    margin: Margin = field(metadata=unit("", "what the seller is taken to take over cost"))
    memory: tuple[Tier, ...] = field(metadata=unit("", "tiers that a cache may lie in, with what holding costs"))
    true_values: dict[str, float] = field(
        default_factory=dict,
        metadata=unit("", "of a model with open weights, by reading; KV bytes as read in BF16"),
    )
    seed: int = field(metadata=unit("", "of the draws"))
    draws: int = field(metadata=unit("", "how many"))

    def __getitem__(self, name: str) -> Reading:
        readings = {reading.name: reading for reading in self.readings}
        if name not in readings:
            from steptime.errors import UnknownName

            raise UnknownName("reading", name, readings, f"There are {', '.join(readings)}.")
        return readings[name]

    @property
    def text(self) -> str:
        """The answer in a sentence."""
        active, kv = self["active_parameters"], self["kv_bytes_per_token"]
        size_claims = []
        if active.identifiable and active.interval:
            size_claims.append(f"{active.ends} active parameters")
        if kv.identifiable and kv.interval:
            size_claims.append(
                f"{kv.ends} of KV cache a token in BF16 (at most {kv.written(kv.bound)}; such bounds {kv.bound_held})"
            )
        blind = sum(not reading.identifiable for reading in self.readings)
        summary = " and ".join(size_claims) or "nothing of the model's size"
        return f"{self.list.name} says {summary} (90 %); {blind} of {len(self.readings)} readings are not identifiable."

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return whose list it is, and its readings of the model's size."""
        names = ("active_parameters", "total_parameters", "kv_bytes_per_token")
        figures = {
            reading.quantity: reading.ends if reading.identifiable else "not identifiable"
            for reading in map(self.__getitem__, names)
        }
        blind = sum(not reading.identifiable for reading in self.readings)
        return f"Prices of {self.list.name}, read backward", figures | {"not identifiable": f"{blind} of {len(self.readings)}"}

    def columns(self) -> dict[str, Any]:
        """Return a row for each reading, an interval by its two ends."""
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
    """Return what a price list says: of a seller's model such as "openai/gpt-6-sol", of the fields of a list, or a PriceList.

    price_time: the day or hour of the list. margin: price over cost as a number or a 90 % range "1.2..7",
    instead of the host market's.
    speed: of the standard service [tok/s], fast_speed: how many times as fast the faster ones are, where no speed is promised.
    hold: USD per GB-hour by tier of memory. ideal: machine and size for the lecture's formulas. Intervals are of `draws`
    draws by one generator of `seed`. update: fetch the newest prices first (extra `[prices]`, and a network).

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
            raise RangeError(f"a fast mode is faster than the usual one: its speed must be above 1 times, not {times:g}")
        services = {line.service for line in price_list.rates} & set(FAST)
        price_list = replace(price_list, speeds={**price_list.speeds, **dict.fromkeys(services, times)})
    sampler = Draws(seed=seed, count=max(2, draws - draws % 2))
    prior, memory, ideal_machine = read_margin(margin), tiers(hold), ideal or Ideal()
    kv = kv_bytes(price_list, prior, sampler, ideal_machine.active, ideal_machine.balance)
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
    """Return the readings that do not hold, each with its reason."""
    base, tiers, facts = price_list.base, price_list.service_rates(), table("priors")["blind"]
    ratio = base.output / base.input if base.input > 0 else math.nan
    return [
        unidentifiable(
            "memory_bound_share",
            "share of decode that waits for memory, from output over input price",
            f"the ratio is convention: over {facts['models']} known models it ranks with the computed one by "
            f"{facts['ratio_rank']:.2f} at the median of {facts['ratio_systems']} systems ({facts['ratio_rank_low']:.2f} on "
            f"{facts['ratio_rank_low_on']}, {facts['ratio_rank_high']:.2f} on {facts['ratio_rank_high_on']}); "
            f"{facts['at_four']} stand at exactly 4",
            ideal=1 - 1 / ratio if ratio >= 1 else math.nan,
            ideal_from="section 14: 1 - 1/r"
            + (f" with r = {ratio:.3g}, MFU of decode {_mfu(ratio):.2g}" if ratio >= 1 else ""),
        ),
        unidentifiable(
            "kv_bytes_from_levels",
            "KV bytes per token from price levels alone",
            f"a regression on input and output price explains {100 * facts['levels_r2']:.0f} % of it",
            measure="B",
        ),
        unidentifiable(
            "kv_bytes_from_hit",
            "KV bytes per token from the price of a cache hit",
            f"hits are sold at 0.1, 0.2 or 0.5 of input: of {facts['hits']} prices input explains "
            f"{100 * facts['hit_r2']:.0f} % of the price of a hit, and KV bytes beside it {100 * facts['hit_kv_r2']:.0f} %"
            + (
                f"; here {base.effective_cache_read / base.input:.3g} of input"
                if base.input > 0 and math.isfinite(base.cache_read)
                else ""
            ),
            measure="B",
        ),
        unidentifiable(
            "tier_multiplier",
            "context or architecture from the multiple of a tier",
            f"above {facts['step_above']:,} tokens {facts['step_models']} known models of one seller ask "
            f"x{facts['step_low']:.2g} to x{facts['step_high']:.2g}, where their bytes are up to "
            f"{facts['step_bytes_apart']:.2g} times apart (rank correlation {facts['step_rank']:.2f}), and "
            "three labs ask for the same x2 and x1.5"
            + (f"; here x{tiers[1].output / tiers[0].output:.3g}" if len(tiers) > 1 and tiers[0].output else ""),
        ),
    ]


def _mfu(ratio: float) -> float:
    return float(decode_utilisation(ratio))
