r"""Price inversion: infers model size, KV bytes and cache storage from one price list, and lists what cannot be inferred.

Quantities that cannot be inferred were tested on models with known values, and the inference failed. Rank correlations and
shares refer to models with open weights at 91 sellers (`docs/fit_prices.py`). Each estimate also has the result of the
lecture's formula for an ideal machine that sells at cost.

**KV bytes per token.** Above a threshold, an output token costs $\Delta P$ more because it reads $\Delta L$ more tokens of KV
cache:

$$ \kappa = \frac{\Delta P}{\Delta L \, c_{byte} \, G} $$

with $c_{byte}$ the dollars per byte read and $G$ the seller's margin. Only the first step is used: later steps have other
reasons (the last steps of Alibaba are up to twelve times higher). Mean contexts below and above the step are drawn from the
range of public traces. At $G = 1$ the result is an upper bound that needs neither batch nor model size. An FP8 KV cache has
half the bytes of a BF16 cache. Estimate and bound are in BF16.

**Fast modes.** Their prices are compared with the Pareto front of speed and cost of known models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, ClassVar, Final

import numpy as np

from steptime.blackboard.token_cost import (
    active_from_input,
    batch_ratio,
    break_even_hits,
    break_even_hold,
    decode_utilisation,
    joint_balanced_context,
    joint_batch_ratio,
    kv_bytes_from_step,
    kv_bytes_from_tier,
    kv_over_weights,
    ratio_below_step,
    speed_ceiling,
    usd_per_byte_read,
)
from steptime.catalog.hardware_loading import load_system
from steptime.errors import RangeError, UnknownName, expect
from steptime.number_checks import Array, positive, whole_number
from steptime.pricing.bundled_prices import costs_by_model, match_family, open_rows, table
from steptime.pricing.kv_storage_cost import Tier, cache_readings, tiers
from steptime.pricing.price_estimate import (
    Z90,
    Coverage,
    Margin,
    Reading,
    assumed,
    interval,
    prior_coverage,
    read_margin,
    unidentifiable,
)
from steptime.pricing.price_list import PER_MILLION, PriceList, checked, list_from
from steptime.pricing.price_lookup import find_list
from steptime.pricing.serving_costs import HOPPER
from steptime.result_base import Result, Tabular, columns_by_key, unit
from steptime.units import MILLION, in_span, percent, show


@dataclass(frozen=True, slots=True, kw_only=True)
class Ideal:
    """Machine and model size of the lecture's formulas."""

    balance: float = field(default=300.0, metadata=unit("", "R: multiplies per second x bytes per weight / bandwidth"))
    active: float = field(default=100e9, metadata=unit("", "active parameters", key="active_parameters"))
    weight_bytes: float = field(default=1.0, metadata=unit("B", "bytes per weight"))
    drain: float = field(default=0.020, metadata=unit("s", "drain time of HBM"))
    short: float = field(default=20e3, metadata=unit("tokens", "usual context below the price step"))
    long: float = field(default=400e3, metadata=unit("tokens", "usual context above the price step"))

    def __post_init__(self) -> None:
        for name in ("balance", "active", "weight_bytes", "drain", "short", "long"):
            positive(name, getattr(self, name))
        if self.short >= self.long:
            raise RangeError(
                f"the short context ({self.short:,.0f} tokens) must be below the long one ({self.long:,.0f}): "
                "the price step is between them"
            )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class IdealReading(Result):
    """The lecture's estimates from a price list; NaN where the list lacks a price."""

    ideal: Ideal = field(metadata=unit("", "given machine and model size"))
    ratio: float = field(default=math.nan, metadata=unit("", "output price over input price"))
    decode_utilisation: float = field(
        default=math.nan, metadata=unit("", "section 14: MFU of decode over that of prefill, 1/r")
    )
    threshold: float = field(default=math.nan, metadata=unit("tokens", "context of the first step"))
    kv_bytes: float = field(
        default=math.nan, metadata=unit("B", "section 13: KV bytes per token if the threshold is L*", key="kv_bytes_per_token")
    )
    ratio_left: float = field(
        default=math.nan, metadata=unit("", "section 13: maximum output price over input price at the short context")
    )
    consistent: bool = field(default=True, metadata=unit("", "whether the separate estimates of sections 13 and 14 agree"))
    balanced: float = field(default=math.nan, metadata=unit("tokens", "joint estimate: context L*"))
    joint_kv_bytes: float = field(
        default=math.nan, metadata=unit("B", "joint estimate: KV bytes per token", key="joint_kv_bytes_per_token")
    )
    joint_batch: float = field(default=math.nan, metadata=unit("", "joint estimate: best batch over batch, B*/B"))
    hbm_break_even: float = field(
        default=math.nan, metadata=unit("s", "section 15: storage time in HBM above which a new prefill is cheaper, drain x L*")
    )
    hits: tuple[float, ...] = field(default=(), metadata=unit("", "section 15: break-even hits of each write price"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the estimates.

        Returns:
            Title, and text by label.
        """
        figures = {"MFU of decode (14)": f"{self.decode_utilisation:.2g} by r = {self.ratio:.3g}"}
        if math.isfinite(self.kv_bytes):
            figures["KV bytes (13)"] = f"{self.kv_bytes:,.1f} B per token by L* = {self.threshold:,.0f}"
            figures["break-even storage in HBM (15)"] = show(self.hbm_break_even, "s")
            figures["13 and 14 together"] = (
                f"L* {self.balanced:,.0f}, {self.joint_kv_bytes:,.0f} B per token, B*/B {self.joint_batch:.3g}"
            )
            figures["separately"] = "consistent" if self.consistent else f"inconsistent: 13 limits r to {self.ratio_left:.2g}"
        if self.hits:
            figures["break-even hits (15)"] = " and ".join(f"{hit_count:.2f}" for hit_count in self.hits)
        return "The lecture's estimates, on an ideal machine", figures


def read_ideal(price_list: PriceList, ideal: Ideal) -> IdealReading:
    """Compute the lecture's estimates from a price list.

    Args:
        price_list: Price list.
        ideal: Machine and model size.

    Returns:
        Estimates.
    """
    base, tiers = price_list.base, price_list.service_rates()
    ratio = base.output / base.input if base.input > 0 else math.nan
    figures: dict[str, float] = {"ratio": ratio, "decode_utilisation": float(decode_utilisation(ratio))}
    consistent = True

    # Sections 13 and 14 need a step of the output price over context.
    if len(tiers) > 1 and tiers[1].output > tiers[0].output > 0 and math.isfinite(ratio):
        threshold, multiple = tiers[1].above_tokens, tiers[1].output / tiers[0].output
        ratio_left = float(ratio_below_step(threshold, ideal.short))
        joint = float(joint_balanced_context(ratio, multiple, ideal.short, ideal.long))
        figures |= {
            "threshold": threshold,
            "kv_bytes": float(kv_bytes_from_tier(ideal.active, threshold, ideal.balance, ideal.weight_bytes)),
            "ratio_left": ratio_left,
            "balanced": joint,
            "joint_kv_bytes": float(kv_bytes_from_tier(ideal.active, joint, ideal.balance, ideal.weight_bytes)),
            "joint_batch": float(joint_batch_ratio(ratio, multiple, ideal.short, ideal.long)),
            "hbm_break_even": float(break_even_hold(ideal.drain, threshold)),
        }
        consistent = ratio <= ratio_left
    writes = [price for price in (base.cache_write, base.cache_write_long) if math.isfinite(price)]
    hits = (
        tuple(float(break_even_hits(write, base.input, base.effective_cache_read)) for write in writes)
        if base.effective_cache_read < base.input
        else ()
    )
    return IdealReading(ideal=ideal, consistent=consistent, hits=hits, **figures)


DRAWS: Final = 20_000
LARGEST_SEED: Final = 2**63 - 1
# Share of memory bandwidth, for values without draws.
MEMORY_SHARE = 0.77
# Share of the peak FP8 rate in DeepSeek's prefill (reported); other sources report up to 0.60.
HALF_BUSY: Final = 0.45
# Smallest step of output prices, as a share of the price. Lists have at most six digits; less is rounding.
LEAST_STEP: Final = 1e-6
# Default speed of the standard service [tok/s].
BASE_SPEED = 40.0
# Minimum active parameters: sellers have no fast mode of smaller models.
LEAST_ACTIVE = 10e9
FAST = ("fast", "ultrafast", "priority")


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
    whole_number("seed", seed, minimum=0, maximum=LARGEST_SEED)
    draws = max(2, draws - draws % 2)
    prior, memory, ideal_machine = read_margin(margin), tiers(hold), ideal or Ideal()
    kv = kv_bytes(price_list, prior, ideal_machine, seed, draws)

    # Estimates first; quantities that no list determines are last.
    fast_services = dict.fromkeys(line.service for line in price_list.rates if line.service in FAST)
    base_speed = positive("speed", speed, "tok/s")
    readings = [
        size(price_list, "active"),
        size(price_list, "total"),
        kv,
        *(fast_mode(price_list, service, base_speed) for service in fast_services),
        *cache_readings(price_list, kv, memory),
        *not_identifiable(price_list),
    ]
    return PriceReading(
        list=price_list, readings=tuple(readings), ideal=read_ideal(price_list, ideal_machine), margin=prior, memory=memory,
        true_values=_known_figures(match_family(price_list.model)[0]), seed=seed, draws=draws,
    )  # fmt: skip


def _known_figures(family: str) -> dict[str, float]:
    """Return parameters and KV bytes of a model with open weights, by name of the estimate; empty for an unknown family."""
    row = next((row for row in open_rows() if row.family == family), None)
    costs = costs_by_model().get((row.catalogue, row.weights)) if row is not None else None
    if not costs:
        return {}
    figures = next(iter(costs.values()))
    columns = ("active_parameters", "total_parameters", "kv_bytes_read_per_token")
    names = ("active_parameters", "total_parameters", "kv_bytes_per_token")
    return {name: float(figures[column]) for name, column in zip(names, columns, strict=True)}


def information_bits(name: str) -> float:
    """Return the information in the prices about a quantity.

    Args:
        name: Name of the prior.

    Returns:
        log2 of the spread without prices over the scatter with them [bits], at least 0.
    """
    prior = table("priors")[name]
    return max(0.0, math.log2(prior["spread"] / prior["scatter"]))


def size(price_list: PriceList, which: str) -> Reading:
    """Estimate active or total parameters by a fit to open models.

    Args:
        price_list: Price list.
        which: "active" or "total".

    Returns:
        Estimate with a 90 % range; active parameters also have an upper bound.
    """
    base, priors = price_list.base, table("priors")
    name, quantity = f"{which}_parameters", f"{which} parameters"
    if not (base.input > 0 and base.output > 0):
        return unidentifiable(name, quantity, "a price of 0 contains no information", measure="parameters")
    constant, power_in, power_out = priors[which]["log10"]
    centre = constant + power_in * math.log10(base.input) + power_out * math.log10(base.output)
    half = Z90 * priors[which]["scatter"]
    estimate = Reading(
        name=name,
        quantity=quantity,
        measure="parameters",
        value=10**centre,
        interval=(10 ** (centre - half), 10 ** (centre + half)),
        bits=information_bits(which),
        interval_held=prior_coverage(which),
        reason=f"fit to models with open weights: input price to the power {power_in:.2g}, output price {power_out:.2g}",
    )
    if which == "total":
        return estimate

    # Upper bound: the seller spends the whole input price on arithmetic.
    return replace(
        estimate,
        bound=float(active_from_input(base.input / MILLION, priors["dollars"]["usd_per_flop"])),
        bound_held=prior_coverage(which, "bound_held"),
        reason="median of models with open weights at that input price; at the bound, arithmetic at "
        f"{percent(HALF_BUSY)} of FP8 peak costs the whole input price",
    )


def kv_bytes(price_list: PriceList, margin: Margin, ideal: Ideal, seed: int, draws: int) -> Reading:
    """Estimate KV bytes per token from the first step of output prices.

    Args:
        price_list: Price list.
        margin: Prior of the margin.
        ideal: Machine and model size of the lecture's formula.
        seed: Random seed.
        draws: Number of draws, even.

    Returns:
        Estimate with a 90 % range and an upper bound; without a value if there is no step.
    """
    name, quantity = "kv_bytes_per_token", "KV bytes per token"
    tiers = price_list.service_rates()
    if len(tiers) < 2 or tiers[1].output <= tiers[0].output * (1 + LEAST_STEP):
        why = "the list has no price step"
        if len(tiers) > 1 and tiers[1].input > tiers[0].input:
            why = "only the input price increases at the step, and prefill is compute-bound"
        why += "; KV bytes can only be inferred from output prices that increase with context"
        return unidentifiable(name, quantity, why, measure="B")

    # The draws, and one value at margin 1 for comparison.
    low, high = tiers[:2]
    values, bounds = calibrated(price_list, margin, seed, draws)
    step_usd = (high.output - low.output) / MILLION
    at_one = float(kv_bytes_from_step(step_usd, high.above_tokens, _usd_per_byte()[0] / MEMORY_SHARE))

    # KV reads belong to decode, so a steeper input price has another reason.
    rises = low.input and low.output and high.input / low.input > high.output / low.output
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
        reason=f"output costs {high.output - low.output:g} USD/M more above {high.above_tokens:,.0f} tokens. "
        f"Price / cost: {margin.median:.2g} ({in_span(margin.low, margin.high, 2)}; {margin.basis}). At exactly "
        f"{high.above_tokens:,.0f} tokens and price / cost of 1, the value is {at_one / 1e3:,.0f} kB. The upper bound "
        f"assumes price / cost of at least 1 and USD per byte of {' and '.join(HOPPER)}. Range and bound are in BF16{steeper}",
        # One byte per weight, as the lecture's machine has.
        ideal=float(kv_bytes_from_tier(ideal.active, high.above_tokens, ideal.balance, 1.0)),
        ideal_from=f"section 13: memory time equals compute time at the threshold; "
        f"{ideal.active / 1e9:,.0f} B active, R = {ideal.balance:g}",
    )


def _usd_per_byte() -> Array:
    """Return the cost of reading a byte at full bandwidth on each calibration system [USD]."""
    machines = [load_system(name) for name in HOPPER]
    rents, widths = np.array([(machine.rent.typical, machine.chip.hbm.bandwidth) for machine in machines], dtype=float).T
    return np.asarray(usd_per_byte_read(rents, widths))


def calibrated(price_list: PriceList, margin: Margin, seed: int = 0, draws: int = DRAWS) -> tuple[Array, Array]:
    """Draw the KV bytes per token in BF16.

    Margins are drawn in mirrored pairs: one is as far above the median as the other is below. Both have the same other draws,
    so a wider prior widens the range for any seed.

    Args:
        price_list: Price list with a step.
        margin: Prior of the margin.
        seed: Random seed.
        draws: Number of draws, even.

    Returns:
        Bytes per token with the margin prior, and at margin 1 (upper bound), of shape (draws,).
    """
    random, pairs = np.random.default_rng(seed), draws // 2

    def log_uniform(low: float, high: float) -> Array:
        return np.asarray(low * (high / low) ** random.random(pairs))

    # Contexts above the step end at the next threshold, or at the longest context for sale.
    low, high, *further = price_list.service_rates()
    end = further[0].above_tokens if further else price_list.longest
    end = end / high.above_tokens if math.isfinite(end) else math.inf
    below = log_uniform(*assumed("context_below"))
    above = log_uniform(*(min(bound, end) for bound in assumed("context_above")))
    usd_per_byte = _usd_per_byte()[random.integers(len(HOPPER), size=pairs)] / log_uniform(*assumed("memory_share"))
    bytes_read = kv_bytes_from_step((high.output - low.output) / MILLION, (above - below) * high.above_tokens, usd_per_byte)

    # A seller with an FP8 cache reads half the bytes that a BF16 cache has.
    bytes_read = bytes_read * np.where(random.random(pairs) < assumed("fp8_cache")[0], 2.0, 1.0)
    scores = random.standard_normal(pairs)
    bounds = np.tile(bytes_read, 2)
    return bounds / margin.at_scores(np.concatenate([scores, -scores])), bounds


@lru_cache(maxsize=1)
def fronts() -> tuple[Array, Array, Array]:
    """Return the Pareto fronts of speed and cost of large models.

    Returns:
        Speeds [tok/s], of shape (speeds,); costs, of shape (rows, speeds), NaN if a system does not reach the speed; and the
        number of the model of each row.
    """
    numbered_rows = [(number, row) for number, systems in enumerate(costs_by_model().values()) for row in systems.values()]
    numbered_rows = [(number, row) for number, row in numbered_rows if float(row["active_parameters"]) >= LEAST_ACTIVE]
    names = [name for name in numbered_rows[0][1] if name.startswith("usd_at_")]
    speeds = np.array([float(name.removeprefix("usd_at_")) for name in names])
    costs = np.array([[float(row[name] or math.nan) for name in names] for _, row in numbered_rows])
    return speeds, costs, np.array([number for number, _ in numbered_rows])


def cost_ratios_at_speed(times: float, base: float) -> tuple[Array, Coverage]:
    """Return the cost ratio of tokens at a higher speed.

    Args:
        times: Speed over the base speed.
        base: Base speed [tok/s].

    Returns:
        Cost at the higher speed over cost at the base speed, one per model and system that reach it; and the number of ratios
        inside the 90 % range of the other models.
    """
    speeds, costs, models = fronts()

    # Speeds and costs span orders of magnitude, so interpolate in logarithms.
    ends = np.log([base, base * times])
    logs = np.array([np.interp(ends, np.log(speeds), row, left=math.nan, right=math.nan) for row in np.log(costs)])
    ratios = np.exp(logs[:, 1] - logs[:, 0])
    models, ratios = models[np.isfinite(ratios)], ratios[np.isfinite(ratios)]
    hits = 0
    for model in np.unique(models):
        is_mine = models == model
        if not is_mine.all():
            low, high = interval(ratios[~is_mine])
            hits += int(np.sum((ratios[is_mine] >= low) & (ratios[is_mine] <= high)))
    return ratios, Coverage(hits=hits, trials=len(ratios))


def fast_mode(price_list: PriceList, service: str, base: float) -> Reading:
    """Return the estimate from a faster service of a price list.

    Args:
        price_list: Price list.
        service: Faster service.
        base: Speed of the standard service [tok/s].

    Returns:
        Cost of its speed on known models, compared with its price.
    """
    standard_output = price_list.base.output
    price_ratio = price_list.service_rates(service)[0].output / standard_output if standard_output else math.nan
    times, name = price_list.speeds.get(service, math.nan), f"{service}_mode"

    # Without a promised speed, or at the price of the standard service, the list contains no information.
    if not math.isfinite(times) or not price_ratio > 1:
        why = "the seller promises no speed" if price_ratio > 1 else "it is not more expensive than standard"
        quantity = f"cost of a token in the {service} mode over standard"
        return unidentifiable(name, quantity, f"{why} (price ratio {price_ratio:.3g}); give its speed as --fast-speed 2.5")
    quantity = f"cost of a token at {times:g} times the speed, from {base:g} tok/s, over standard"
    ratios, coverage = cost_ratios_at_speed(times, base)
    if not ratios.size:
        return unidentifiable(name, quantity, "no known model reaches that speed on any system")
    ends = interval(ratios)
    judged = "this speed costs more on every system"
    if price_ratio >= np.median(ratios):
        judged = "the price covers the cost of the speed on most systems"
    elif price_ratio >= ends[0]:
        judged = (
            "this speed costs more on most systems: the seller may use speculative tokens, other chips or a slower standard"
        )
    return Reading(
        name=name,
        quantity=quantity,
        value=float(np.median(ratios)),
        interval=ends,
        interval_held=coverage,
        reason=f"the price is {price_ratio:.3g} times standard for {times:g} times the speed: {judged} "
        f"({len(ratios)} pairs of model and system, each compared with the other models)",
        ideal=float(batch_ratio(price_ratio, times)),
        ideal_from="section 5: the batch is smaller by this factor; KV bytes over weight bytes "
        f"{float(kv_over_weights(price_ratio, times)):.3g}, "
        f"ceiling {float(speed_ceiling(price_ratio, times)):.3g} times the speed at any price",
    )


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
            + (f" with r = {ratio:.3g}, MFU of decode {float(decode_utilisation(ratio)):.2g}" if ratio >= 1 else ""),
        ),
        unidentifiable(
            "kv_bytes_from_levels",
            "KV bytes per token, from input and output price only",
            f"a regression on input and output price explains {percent(facts['levels_r2'])} of the variance",
            measure="B",
        ),
        unidentifiable(
            "kv_bytes_from_hit",
            "KV bytes per token, from the price of a cache hit",
            f"sellers charge 0.1, 0.2 or 0.5 times the input price: for {facts['hits']} prices, the input price explains "
            f"{percent(facts['hit_r2'])} of the variance, and input price plus KV bytes {percent(facts['hit_kv_r2'])}"
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
            f"{in_span(facts['step_low'], facts['step_high'], 2)}, but their KV bytes differ by up to "
            f"{facts['step_bytes_apart']:.2g} times (rank correlation {facts['step_rank']:.2f}); "
            "three labs use the same factors 2 and 1.5"
            + (f"; this list has {tiers[1].output / tiers[0].output:.3g}" if len(tiers) > 1 and tiers[0].output else ""),
        ),
    ]
