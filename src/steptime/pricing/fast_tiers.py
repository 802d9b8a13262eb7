"""Monte Carlo draws for ranges: priors with their sources, one seeded generator, and quantiles.

The prior of a positive value is log-normal between its 5 % and 95 % points. The prior of a margin can also be the quantiles of
the market. Margins are drawn in mirrored pairs: one is as far above the median as the other is below. Both have the same other
draws, so a wider prior widens the range for any seed.

Fast tiers: their prices compared with the Pareto front of speed and cost, and with the lecture's closed forms.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import numpy as np

from steptime.blackboard.token_cost import batch_ratio, kv_over_weights, speed_ceiling
from steptime.errors import RangeError, short_repr
from steptime.number_checks import Array, whole_number
from steptime.pricing.bundled_prices import table
from steptime.pricing.open_model_market import costs_by_model
from steptime.pricing.price_estimate import Coverage, Reading, unidentifiable
from steptime.pricing.price_list import STANDARD, PriceList
from steptime.result_base import unit

DRAWS: Final = 20_000
LARGEST_SEED: Final = 2**63 - 1
# 95 % point of the standard normal distribution.
Z90: Final = 1.6448536269514722


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """Prior of a seller's margin, the price over the cost of a busy chip: median, 90 % range and source."""

    median: float = field(metadata=unit("", "median of price over cost"))
    low: float = field(metadata=unit("", "5 % point"))
    high: float = field(metadata=unit("", "95 % point"))
    basis: str = field(metadata=unit("", "source of the prior, and its chips"))
    values: tuple[float, ...] = field(default=(), metadata=unit("", "margins of the market, ascending", left_out=True))

    def at_scores(self, normal: Array) -> Array:
        """Return margins at standard normal scores.

        Args:
            normal: Scores, of shape (draws,).

        Returns:
            Margins, of shape (draws,).
        """
        if self.values:
            shares = (np.arange(len(self.values)) + 0.5) / len(self.values)
            margins: Array = np.exp(np.interp(_share_below(normal), shares, np.log(self.values)))
            return margins
        below, above = math.log(self.median / self.low), math.log(self.high / self.median)
        spread: Array = self.median * np.exp(np.where(normal < 0, below, above) * normal / Z90)
        return spread


def _share_below(normal: Array) -> Array:
    """Return the standard normal distribution function, by Abramowitz and Stegun, 7.1.26."""
    x = np.abs(normal) / math.sqrt(2)
    t = 1 / (1 + 0.3275911 * x)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = series * np.exp(-x * x) / 2
    share: Array = np.where(normal < 0, tail, 1 - tail)
    return share


def market_margin() -> Margin:
    """Return the margin prior of the market: open models on Hopper.

    Returns:
        Prior with the margins of median sellers.
    """
    prior = table("priors")["margin"]
    low, median, high = np.quantile(prior["values"], [0.05, 0.5, 0.95]).tolist()
    basis = f"median sellers of {len(prior['values'])} models with open weights, on {prior['chips']}"
    return Margin(median=median, low=low, high=high, basis=basis, values=tuple(prior["values"]))


def read_margin(text: str | float | Margin | None) -> Margin:
    """Parse a margin prior.

    Args:
        text: None (market), a number, a 90 % range such as "1.2..7", or a prior.

    Returns:
        Prior.

    Raises:
        RangeError: The text has another form, or the range descends.

    >>> read_margin("1.2..7").basis, read_margin(2).high
    ('as given', 2.0)
    """
    if isinstance(text, Margin):
        return text
    if text is None:
        return market_margin()
    parts = [part.strip() for part in str(text).split("..", 1)]
    try:
        ends = [float(part) for part in parts] if all(re.fullmatch(r"[0-9.eE+-]+", part) for part in parts) else []
    except ValueError:
        ends = []
    if not ends or not all(1e-6 < end < 1e6 for end in ends):
        raise RangeError(f"margin: must be price over cost, such as 2, or a 90 % range such as 1.2..7, got {short_repr(text)}")
    low, high = ends[0], ends[-1]
    if low > high:
        raise RangeError(f"margin: the range descends, got {text}; give {high:g}..{low:g}")
    return Margin(median=math.sqrt(low * high), low=low, high=high, basis="as given")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Seed and number of random draws."""

    seed: int = 0
    count: int = DRAWS

    def __post_init__(self) -> None:
        whole_number("seed", self.seed, minimum=0, maximum=LARGEST_SEED)

    def generator(self) -> np.random.Generator:
        """Return a new generator with the seed.

        Returns:
            Generator.
        """
        return np.random.default_rng(self.seed)

    def scores(self, random: np.random.Generator) -> Array:
        """Draw standard normal scores; the second half mirrors the first.

        Args:
            random: Generator.

        Returns:
            Scores, of shape (draws,).
        """
        half = random.standard_normal(self.count // 2)
        return np.concatenate([half, -half])

    def log_uniform(self, random: np.random.Generator, low: Any, high: Any) -> Array:
        """Draw log-uniform values, the same for both halves.

        Args:
            random: Generator.
            low: Lower end; a number or an array of shape (draws / 2,).
            high: Upper end.

        Returns:
            Values, of shape (draws,).
        """
        shares = random.random(self.count // 2)
        low, high = np.broadcast_to(low, self.count // 2), np.broadcast_to(high, self.count // 2)
        return _twice(low * (high / low) ** shares)

    def choice(self, random: np.random.Generator, options: Any) -> Array:
        """Draw options with equal probability, the same for both halves.

        Args:
            random: Generator.
            options: Values, of shape (options,).

        Returns:
            Values, of shape (draws,).
        """
        return _twice(np.asarray(options)[random.integers(len(options), size=self.count // 2)])


def _twice(values: Array) -> Array:
    return np.concatenate([values, values])


def assumed(name: str) -> tuple[float, float]:
    """Return the assumed range of a value.

    Args:
        name: Name in the shipped facts.

    Returns:
        Lower and upper end.
    """
    assumption = next(fact for fact in table("facts")["assumed"] if fact["name"] == name)
    return float(assumption["low"]), float(assumption["high"])


def interval(values: Array) -> tuple[float, float]:
    """Return the 5 % and 95 % points of draws.

    Args:
        values: Draws.

    Returns:
        Lower and upper end of the 90 % range.
    """
    low, high = np.quantile(values, [0.05, 0.95]).tolist()
    return low, high


# Default speed of the standard service [tok/s].
BASE_SPEED = 40.0
# Minimum active parameters: sellers have no fast mode of smaller models.
LEAST_ACTIVE = 10e9
FAST = ("fast", "ultrafast", "priority")


@lru_cache(maxsize=1)
def fronts() -> tuple[Array, Array, Array]:
    """Return the Pareto fronts of speed and cost of large models.

    Returns:
        Speeds [tok/s], of shape (speeds,); costs, of shape (rows, speeds), NaN if a system does not reach the speed; and the
        number of the model of each row.
    """
    numbered_rows = [(number, row) for number, systems in enumerate(costs_by_model().values()) for row in systems.values()]
    numbered_rows = [(number, row) for number, row in numbered_rows if float(row["active_parameters"]) >= LEAST_ACTIVE]
    rows, models = [row for _, row in numbered_rows], np.array([number for number, _ in numbered_rows])
    names = [name for name in rows[0] if name.startswith("usd_at_")]
    speeds = np.array([float(name.removeprefix("usd_at_")) for name in names])
    return speeds, np.array([[float(row[name] or math.nan) for name in names] for row in rows]), models


def dearer_at(times: float, base: float = BASE_SPEED) -> tuple[Array, Array]:
    """Return the cost ratio of tokens at a higher speed.

    Args:
        times: Speed over the base speed.
        base: Base speed [tok/s].

    Returns:
        Cost at the higher speed over cost at the base speed, and the number of the model, one per model and system that reach
        it.
    """
    speeds, costs, models = fronts()

    # Speeds and costs span orders of magnitude, so interpolate in logarithms.
    ends = np.log([base, base * times])
    with np.errstate(invalid="ignore"):
        logs = np.array([np.interp(ends, np.log(speeds), row, left=math.nan, right=math.nan) for row in np.log(costs)])
    ratios: Array = np.exp(logs[:, 1] - logs[:, 0])
    able = np.isfinite(ratios)
    return ratios[able], models[able]


def front_coverage(ratios: Array, models: Array) -> Coverage:
    """Count ratios inside the 90 % range of the other models.

    Args:
        ratios: Cost ratios.
        models: Number of the model of each ratio.

    Returns:
        Coverage of cross-validation.
    """
    hits = 0
    for model in np.unique(models):
        other_ratios = ratios[models != model]
        if other_ratios.size:
            low, high = interval(other_ratios)
            hits += int(np.sum((ratios[models == model] >= low) & (ratios[models == model] <= high)))
    return Coverage(hits=hits, trials=len(ratios))


def fast_modes(price_list: PriceList, base: float = BASE_SPEED) -> list[Reading]:
    """Return the estimates from each faster service of a price list.

    Args:
        price_list: Price list.
        base: Speed of the standard service [tok/s].

    Returns:
        One estimate per service.
    """
    services = dict.fromkeys(line.service for line in price_list.rates if line.service in FAST)
    return [reading for service in services for reading in _fast(price_list, service, base)]


def _fast(price_list: PriceList, service: str, base: float) -> list[Reading]:
    dearer = (
        price_list.service_rates(service)[0].output / price_list.service_rates(STANDARD)[0].output
        if price_list.service_rates(STANDARD)[0].output
        else math.nan
    )
    times = price_list.speeds.get(service, math.nan)
    name = f"{service}_mode"

    # Without a promised speed, or at the price of the standard service, the list contains no information.
    if not math.isfinite(times) or not dearer > 1:
        why = "the seller promises no speed" if dearer > 1 else "it is not more expensive than standard"
        quantity = f"cost of a token in the {service} mode over standard"
        return [unidentifiable(name, quantity, f"{why} (price ratio {dearer:.3g}); give its speed as --fast-speed 2.5")]
    ratios, models = dearer_at(times, base)
    if not ratios.size:
        quantity = f"cost of a token at {times:g} times the speed, from {base:g} tok/s, over standard"
        return [unidentifiable(name, quantity, "no known model reaches that speed on any system")]
    ends = interval(ratios)
    judged = (
        "the price covers the cost of the speed on most systems"
        if dearer >= np.median(ratios)
        else "this speed costs more on most systems: the seller may use speculative tokens, other chips or a slower standard"
        if dearer >= ends[0]
        else "this speed costs more on every system"
    )
    front = Reading(
        name=name,
        quantity=f"cost of a token at {times:g} times the speed, from {base:g} tok/s, over standard",
        value=float(np.median(ratios)),
        interval=ends,
        interval_held=front_coverage(ratios, models),
        reason=f"the price is {dearer:.3g} times standard for {times:g} times the speed: {judged} "
        f"({len(ratios)} pairs of model and system, each compared with the other models)",
        ideal=float(batch_ratio(dearer, times)),
        ideal_from="section 5: the batch is smaller by this factor; KV bytes over weight bytes "
        f"{float(kv_over_weights(dearer, times)):.3g}, "
        f"ceiling {float(speed_ceiling(dearer, times)):.3g} times the speed at any price",
    )
    return [front]
