"""Fast modes read against steptime's own front of speed and cost, and against the lecture's closed forms."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from steptime.blackboard.token_cost import batch_ratio, kv_over_weights, speed_ceiling
from steptime.number_checks import Array
from steptime.pricing.monte_carlo import interval
from steptime.pricing.open_model_market import costs_by_model
from steptime.pricing.price_estimate import Held, Reading, unknown
from steptime.pricing.price_list import STANDARD, PriceList

BASE_SPEED = 40.0  # tok/s of the standard service, where none is given
LEAST_ACTIVE = 10e9  # parameters: smaller models are not what fast modes are sold of
FAST = ("fast", "ultrafast", "priority")


@lru_cache(maxsize=1)
def fronts() -> tuple[Array, Array, Array]:
    """Return speeds [tok/s], costs by model and system over them, not a number where out of reach, and each row's model."""
    told = [(number, row) for number, systems in enumerate(costs_by_model().values()) for row in systems.values()]
    told = [(number, row) for number, row in told if float(row["active_parameters"]) >= LEAST_ACTIVE]
    rows, models = [row for _, row in told], np.array([number for number, _ in told])
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


def front_held(ratios: Array, models: Array) -> Held:
    """Return how many ratios lay in the 90 % interval of the other models."""
    held = 0
    for one in np.unique(models):
        others = ratios[models != one]
        if others.size:
            low, high = interval(others)
            held += int(np.sum((ratios[models == one] >= low) & (ratios[models == one] <= high)))
    return Held(held=held, of=len(ratios))


def fast_modes(found: PriceList, base: float = BASE_SPEED) -> list[Reading]:
    """Return what each faster service of a list says."""
    services = dict.fromkeys(line.service for line in found.rates if line.service in FAST)
    return [one for service in services for one in _fast(found, service, base)]


def _fast(found: PriceList, service: str, base: float) -> list[Reading]:
    dearer = found.of(service)[0].output / found.of(STANDARD)[0].output if found.of(STANDARD)[0].output else math.nan
    times = found.speeds.get(service, math.nan)
    name = f"{service}_mode"
    if not math.isfinite(times) or not dearer > 1:
        why = "no speed is promised for it" if dearer > 1 else "it is not dearer than standard"
        what = f"what a token of the {service} mode costs to make over standard"
        return [unknown(name, what, f"{why} (price ratio {dearer:.3g}); say --fast-speed 2.5")]
    ratios, models = dearer_at(times, base)
    if not ratios.size:
        what = f"cost of a token at {times:g} times the speed, from {base:g} tok/s, over standard"
        return [unknown(name, what, "no model of the front reaches that speed on any system")]
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
        what=f"cost of a token at {times:g} times the speed, from {base:g} tok/s, over standard",
        value=float(np.median(ratios)),
        interval=ends,
        held=front_held(ratios, models),
        reason=f"asked {dearer:.3g} times for {times:g} times the speed: {judged} ({len(ratios)} pairs of model and system, "
        "each held against the other models)",
        ideal=float(batch_ratio(dearer, times)),
        ideal_from="section 5: the batch is that many times smaller; KV over weights "
        f"{float(kv_over_weights(dearer, times)):.3g}, "
        f"ceiling {float(speed_ceiling(dearer, times)):.3g} times the speed at any price",
    )
    return [front]
