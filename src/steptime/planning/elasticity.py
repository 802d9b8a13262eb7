"""What stops a layout from being cheaper, and what each figure of the machine is worth."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from steptime.machines.system import System
from steptime.machines.what_if import scale, settable
from steptime.models.model import Layer, Model
from steptime.numbers import Array, Number
from steptime.planning.aims import aims_of
from steptime.planning.candidates import AGGREGATED, DISAGGREGATED, Candidate, Case, moving, state_of
from steptime.planning.refine import planned_prefill, prefill_rate, seats_of
from steptime.planning.search import UNKNOWN, chunk_sizes, readable
from steptime.planning.steady import MOST_UTILISED, State

NUDGE = 1.1  # how much better a figure is made to see what it is worth
SPAN = 3.0  # how far around the chosen batch the best one is looked for
POINTS = 97
WORTH = 0.005  # a gain below this is none


def scaled_cache(model: Model, factor: float) -> Model:
    """Return the model with `factor` times the KV bytes per token."""

    def changed(layer: Layer) -> Layer:
        return replace(layer, attention=tuple(replace(a, kv_bytes=a.kv_bytes * factor) for a in layer.attention))

    layers, draft = (tuple((changed(layer), n) for layer, n in part) for part in (model.layers, model.draft))
    return replace(model, layers=layers, draft=draft)


def _machine(path: str) -> Callable[[Case, float], Case]:
    def changed(case: Case, factor: float) -> Case:
        return replace(case, system=scale(case.system, path, factor))

    return changed


MACHINE = {
    "hbm_bandwidth": "chip.hbm.bandwidth",
    "hbm_capacity": "chip.hbm.capacity",
    "arithmetic": "chip.peak",
    "scale_up_bandwidth": "scale_up.bandwidth",
    "scale_out_bandwidth": "scale_out.bandwidth",
}
CHANGES: dict[str, Callable[[Case, float], Case]] = {
    **{name: _machine(path) for name, path in MACHINE.items()},
    "kv_bytes": lambda case, factor: replace(case, model=scaled_cache(case.model, factor)),
    "rent": _machine("rent"),
}


IN_WORDS = {
    "hbm_bandwidth": "HBM bandwidth",
    "hbm_capacity": "HBM capacity",
    "scale_up_bandwidth": "scale-up bandwidth",
    "scale_out_bandwidth": "scale-out bandwidth",
    "kv_bytes": "KV bytes",
}


def changes_of(system: System) -> list[str]:
    """Return the figures whose worth can be asked for on this system."""
    paths = settable(system)
    needed = {name: path for name, path in MACHINE.items() if path != "chip.peak" and path not in paths}
    rented = math.isfinite(system.rent.typical) and system.rent.typical > 0
    return [name for name in CHANGES if name not in needed and (name != "rent" or rented)]


def elasticities(case: Case, candidate: Candidate) -> dict[str, float]:
    r"""Return $d \log(cost) / d \log(figure)$ for each figure, the batch chosen anew under the same limits and layout.

    -0.6 means that a figure 10 % higher makes tokens about 6 % cheaper. Forward differences with a step of 10 %. The
    numbers of prefill and decode replicas are taken as divisible, so that the matching of whole replicas adds no steps.
    """
    base = math.log(_lowest_cost(case, candidate))
    return {
        name: (math.log(_lowest_cost(CHANGES[name](case, NUDGE), candidate)) - base) / math.log(NUDGE)
        for name in changes_of(case.system)
    }


def _violation(case: Case, candidate: Candidate, state: State) -> Array:
    """How far a state is from its limits: the largest of value over limit, 1 on the edge."""
    tpot, ttft = aims_of(case, candidate.layout, candidate.prefill_layout, state.input_share)
    over: Array = np.maximum.reduce(
        [
            np.broadcast_to(x, state.tpot.shape)
            for x in (
                _over(state.tpot, tpot),
                _over(state.ttft, ttft),
                state.memory.used / state.memory.capacity,
                state.utilisation / MOST_UTILISED,
            )
        ]
    )
    return over


def _over(value: Number, limit: Number) -> Number:
    """Value over limit; no limit is never near."""
    return value / limit if np.all(np.isfinite(limit)) else np.zeros_like(value)


def _grid(candidate: Candidate) -> Array:
    unit = candidate.layout.dp * candidate.layout.microbatches
    middle = max(1.0, candidate.batch / unit)
    return unit * np.unique(np.round(np.geomspace(max(1.0, middle / SPAN), max(POINTS, middle * SPAN), POINTS)))


def _lowest_cost(case: Case, candidate: Candidate) -> float:
    """The lowest chip-seconds per request times rent, the batch continuous: the crossing of a limit is interpolated."""
    batch = _grid(candidate)
    chunks = (
        np.array([candidate.chunk / 2, candidate.chunk, candidate.chunk * 2]) if candidate.mode == AGGREGATED else np.zeros(1)
    )
    state = state_of(case, candidate, batch[:, None], chunks[None, :])
    rent = case.system.rent.typical if math.isfinite(case.system.rent.typical) else 1.0
    most = moving(case, candidate.layout).most if candidate.mode == DISAGGREGATED else np.inf
    cost = np.log(rent * candidate.layout.chips / np.minimum(state.rate, most))
    over = np.log(np.maximum(_violation(case, candidate, state), 1e-300))
    inside = np.where(over <= 1e-9, cost, np.inf)
    over = np.minimum(over, 700.0)  # a queue without end is beyond every limit
    crossing = (over[:-1] <= 0) & (over[1:] > 0) & (over[1:] < 700.0)
    step = np.where(crossing, -over[:-1] / np.where(crossing, over[1:] - over[:-1], 1.0), 0.0)
    edge = np.where(crossing, cost[:-1] + step * (cost[1:] - cost[:-1]), np.inf)
    lowest = min(float(np.min(inside)), float(np.min(edge)))
    if not math.isfinite(lowest):
        lowest = float(cost.ravel()[np.argmin(over)])
    total = math.exp(lowest)
    prefill = planned_prefill(case, candidate, min(case.slo.tpot, UNKNOWN))
    if prefill is not None and candidate.prefill_layout is not None:
        each = float(prefill_rate(case, candidate, prefill)) / candidate.prefill_layout.replicas
        total += float(rent * candidate.prefill_layout.chips / max(each, 1e-9 * float(prefill.rate)))
    return total


def binding(case: Case, candidate: Candidate) -> tuple[str, ...]:
    """Return what stops the batch from growing: the limits that a larger batch would break.

    "speed", "first token", "memory", "prompt queue"; "prefill rate" and "transfer rate", where a prefill pool or the links out
    of it take no more; and "saturation", where a batch 10 % larger would be cheaper by less than half a percent, limits or not.
    """
    unit = int(candidate.layout.dp * candidate.layout.microbatches)
    larger = unit * np.array([candidate.batch // unit + 1, math.ceil(candidate.batch * NUDGE / unit)])
    sizes = chunk_sizes(case.workload) if candidate.mode == AGGREGATED else np.ones(1, dtype=np.int64)
    sizes = sizes[readable(case.workload, sizes, candidate.layout)]
    now = state_of(case, candidate, candidate.batch, max(candidate.chunk, 1))
    limited = _prefill_limits(case, candidate, now)
    if limited:
        return (limited,)
    state = state_of(case, candidate, larger[:, None], sizes[None, :])
    stable = state.utilisation <= MOST_UTILISED
    if not np.any(stable[-1]):
        return ("prompt queue",)
    if np.max(np.where(stable[-1], state.rate[-1], 0.0)) < now.rate * (1 + WORTH):
        faster = np.max(np.where(np.isfinite(state.tpot[-1]), state.rate[-1], 0.0)) >= now.rate * (1 + WORTH)
        return ("prompt queue",) if faster else ("saturation",)
    tpot, ttft = aims_of(case, candidate.layout, candidate.prefill_layout, state.input_share)
    broken = {
        "speed": state.tpot > tpot,
        "first token": state.ttft > ttft,
        "memory": ~np.asarray(state.memory.fits),
    }
    best = int(np.argmax(np.where(stable[-1], state.rate[-1], 0.0)))
    for step in range(len(larger)):
        names = tuple(name for name, value in broken.items() if np.broadcast_to(value, state.rate.shape)[step, best])
        if names:
            return names
    return ("saturation",)


def _prefill_limits(case: Case, candidate: Candidate, state: State) -> str:
    """Return what takes no more requests than decode in `state` could serve: a prefill pool, its links, or "" for neither."""
    prefill = planned_prefill(case, candidate, state.tpot)
    if prefill is None or candidate.prefill_layout is None:
        return ""
    can = prefill_rate(case, candidate, prefill)
    takes = moving(case, candidate.layout).most * candidate.layout.replicas
    if min(can, takes) > state.rate * candidate.layout.replicas * seats_of(case, state, candidate, candidate.batch).share:
        return ""
    reads = prefill.rate * prefill.most_utilised * candidate.prefill_layout.replicas
    return "transfer rate" if min(can, takes) < reads else "prefill rate"
