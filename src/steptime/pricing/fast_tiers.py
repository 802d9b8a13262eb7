"""Fast tiers: their prices compared with the Pareto front of speed and cost, and with the lecture's closed forms."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from steptime.blackboard.token_cost import batch_ratio, kv_over_weights, speed_ceiling
from steptime.number_checks import Array
from steptime.pricing.monte_carlo import interval
from steptime.pricing.open_model_market import costs_by_model
from steptime.pricing.price_estimate import Coverage, Reading, unidentifiable
from steptime.pricing.price_list import STANDARD, PriceList

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
