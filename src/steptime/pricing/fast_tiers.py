"""Fast modes read against steptime's own front of speed and cost, and against the lecture's closed forms."""

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

# tok/s of the standard service, where none is given
BASE_SPEED = 40.0
# parameters: smaller models are not what fast modes are sold of
LEAST_ACTIVE = 10e9
FAST = ("fast", "ultrafast", "priority")


@lru_cache(maxsize=1)
def fronts() -> tuple[Array, Array, Array]:
    """Return speeds [tok/s], costs by model and system over them, not a number where out of reach, and each row's model."""
    numbered_rows = [(number, row) for number, systems in enumerate(costs_by_model().values()) for row in systems.values()]
    numbered_rows = [(number, row) for number, row in numbered_rows if float(row["active_parameters"]) >= LEAST_ACTIVE]
    rows, models = [row for _, row in numbered_rows], np.array([number for number, _ in numbered_rows])
    names = [name for name in rows[0] if name.startswith("usd_at_")]
    speeds = np.array([float(name.removeprefix("usd_at_")) for name in names])
    return speeds, np.array([[float(row[name] or math.nan) for name in names] for row in rows]), models


def dearer_at(times: float, base: float = BASE_SPEED) -> tuple[Array, Array]:
    """Return what a token costs at `times` the base speed over its cost at that, and of which model each is.

    A row for each model and system; those that do not reach the speed are left out.
    """
    speeds, costs, models = fronts()
    ends = np.log([base, base * times])
    with np.errstate(invalid="ignore"):
        logs = np.array([np.interp(ends, np.log(speeds), row, left=math.nan, right=math.nan) for row in np.log(costs)])
    ratios: Array = np.exp(logs[:, 1] - logs[:, 0])
    able = np.isfinite(ratios)
    return ratios[able], models[able]


def front_coverage(ratios: Array, models: Array) -> Coverage:
    """Return how many ratios lay in the 90 % interval of the other models."""
    hits = 0
    for model in np.unique(models):
        other_ratios = ratios[models != model]
        if other_ratios.size:
            low, high = interval(other_ratios)
            hits += int(np.sum((ratios[models == model] >= low) & (ratios[models == model] <= high)))
    return Coverage(hits=hits, trials=len(ratios))


def fast_modes(price_list: PriceList, base: float = BASE_SPEED) -> list[Reading]:
    """Return what each faster service of a list says."""
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
    if not math.isfinite(times) or not dearer > 1:
        why = "no speed is promised for it" if dearer > 1 else "it is not dearer than standard"
        quantity = f"what a token of the {service} mode costs to make over standard"
        return [unidentifiable(name, quantity, f"{why} (price ratio {dearer:.3g}); say --fast-speed 2.5")]
    ratios, models = dearer_at(times, base)
    if not ratios.size:
        quantity = f"cost of a token at {times:g} times the speed, from {base:g} tok/s, over standard"
        return [unidentifiable(name, quantity, "no model of the front reaches that speed on any system")]
    ends = interval(ratios)
    judged = (
        "the price covers what speed costs on most systems"
        if dearer >= np.median(ratios)
        else "speed alone costs more on most systems: drafts, other chips or a slower standard service"
        if dearer >= ends[0]
        else "speed costs more on every system of the front"
    )
    front = Reading(
        name=name,
        quantity=f"cost of a token at {times:g} times the speed, from {base:g} tok/s, over standard",
        value=float(np.median(ratios)),
        interval=ends,
        interval_held=front_coverage(ratios, models),
        reason=f"asked {dearer:.3g} times for {times:g} times the speed: {judged} ({len(ratios)} pairs of model and system, "
        "each held against the other models)",
        ideal=float(batch_ratio(dearer, times)),
        ideal_from="section 5: the batch is that many times smaller; KV over weights "
        f"{float(kv_over_weights(dearer, times)):.3g}, "
        f"ceiling {float(speed_ceiling(dearer, times)):.3g} times the speed at any price",
    )
    return [front]
