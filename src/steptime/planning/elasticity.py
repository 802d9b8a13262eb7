"""What stops a layout from being cheaper, and what each figure of the machine is worth."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from steptime.machines.system import System
from steptime.machines.what_if import scale, settable
from steptime.models.model import Layer, Model
from steptime.numbers import Array, Number, distinct
from steptime.physics.roofline import TINY
from steptime.planning.aims import aims_of
from steptime.planning.candidates import AGGREGATED, DISAGGREGATED, Candidate, Case, moving, state_of
from steptime.planning.matching import UNKNOWN
from steptime.planning.refine import planned_prefill, prefill_rate, seats_of
from steptime.planning.search import chunk_sizes, readable
from steptime.planning.seating import Seating
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


MACHINE = {
    "hbm_bandwidth": "chip.hbm.bandwidth",
    "hbm_capacity": "chip.hbm.capacity",
    "arithmetic": "chip.peak",
    "scale_up_bandwidth": "scale_up.bandwidth",
    "scale_out_bandwidth": "scale_out.bandwidth",
}
KV_BYTES, RENT = "kv_bytes", "rent"

IN_WORDS = {
    "hbm_bandwidth": "HBM bandwidth",
    "hbm_capacity": "HBM capacity",
    "scale_up_bandwidth": "scale-up bandwidth",
    "scale_out_bandwidth": "scale-out bandwidth",
    KV_BYTES: "KV bytes",
}


def changes_of(system: System) -> list[str]:
    """Return the figures whose worth can be asked for on this system."""
    paths = settable(system)
    needed = {name: path for name, path in MACHINE.items() if path != "chip.peak" and path not in paths}
    rented = math.isfinite(system.rent.typical) and system.rent.typical > 0
    return [*(name for name in MACHINE if name not in needed), KV_BYTES, *([RENT] if rented else [])]


def elasticities(case: Case, candidate: Candidate) -> dict[str, float]:
    r"""Return $d \log(cost) / d \log(figure)$ for each figure, the batch chosen anew under the same limits and layout.

    -0.6 means that a figure 10 % higher makes tokens about 6 % cheaper. Forward differences with a step of 10 %. The
    numbers of prefill and decode replicas are taken as divisible, so that the matching of whole replicas adds no steps.
    """
    names = changes_of(case.system)
    figures = [name for name in names if name in MACHINE]
    machines = np.log(_lowest_cost(_nudged(case, figures), candidate)).ravel()  # as it is, and each figure better in turn
    moved = dict(zip(figures, machines[1:] - machines[0], strict=True))
    larger = replace(case, model=scaled_cache(case.model, NUDGE))
    moved[KV_BYTES] = np.log(_lowest_cost(larger, candidate)) - machines[0]
    return {name: 1.0 if name == RENT else float(moved[name]) / math.log(NUDGE) for name in names}  # all is rented


def _nudged(case: Case, names: list[str]) -> Case:
    """Return a case of several machines: the one that it has, and one with each figure better, along an axis before two."""
    system = case.system
    for number, name in enumerate(names, start=1):
        factors = np.ones((len(names) + 1, 1, 1))
        factors[number] = NUDGE
        system = scale(system, MACHINE[name], factors)
    return replace(case, system=system)


def _violation(case: Case, candidate: Candidate, state: State, seats: Seating) -> Array:
    """How far a state is from its limits: the largest of value over limit, 1 on the edge."""
    tpot, ttft = aims_of(case, candidate.layout, candidate.prefill_layout, state.input_share)
    over: Array = np.maximum.reduce(
        [
            np.broadcast_to(x, state.tpot.shape)
            for x in (
                _over(state.tpot, tpot),
                _over(state.ttft + seats.wait, ttft),
                seats.memory.used / seats.memory.capacity,
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
    return unit * distinct(np.round(np.geomspace(max(1.0, middle / SPAN), max(POINTS, middle * SPAN), POINTS)))


def _lowest_cost(case: Case, candidate: Candidate) -> Array:
    """The lowest chip-seconds per request times rent, the batch continuous: the crossing of a limit is interpolated.

    One for each machine of the case.
    """
    batch = _grid(candidate)
    chunks = (
        np.array([candidate.chunk / 2, candidate.chunk, candidate.chunk * 2]) if candidate.mode == AGGREGATED else np.zeros(1)
    )
    state = state_of(case, candidate, batch[:, None], chunks[None, :])
    rent = case.system.rent.typical if np.all(np.isfinite(case.system.rent.typical)) else 1.0
    most = moving(case, candidate.layout).most if candidate.mode == DISAGGREGATED else np.inf
    seats = seats_of(case, state, candidate, batch[:, None])
    cost, over = np.broadcast_arrays(
        np.log(rent * candidate.layout.chips / np.minimum(np.maximum(state.rate * seats.share, TINY), most)),
        np.log(np.maximum(_violation(case, candidate, state, seats), TINY)),
    )
    inside = np.min(np.where(over <= 1e-9, cost, np.inf), axis=(-2, -1))
    over = np.minimum(over, 700.0)  # a queue without end is beyond every limit
    below, above = over[..., :-1, :], over[..., 1:, :]
    crossing = (below <= 0) & (above > 0) & (above < 700.0)
    step = np.where(crossing, -below / np.where(crossing, above - below, 1.0), 0.0)
    edge = np.where(crossing, cost[..., :-1, :] + step * (cost[..., 1:, :] - cost[..., :-1, :]), np.inf)
    lowest = np.minimum(inside, np.min(edge, axis=(-2, -1)))
    flat = (*lowest.shape, -1)
    nearest = np.take_along_axis(cost.reshape(flat), np.argmin(over.reshape(flat), axis=-1)[..., None], axis=-1)[..., 0]
    total: Array = np.exp(np.where(np.isfinite(lowest), lowest, nearest))
    prefill = planned_prefill(case, candidate, min(case.slo.tpot, UNKNOWN))
    if prefill is not None and candidate.prefill_layout is not None:
        each = prefill_rate(case, candidate, prefill) / candidate.prefill_layout.replicas
        total = total + (rent * candidate.prefill_layout.chips / np.maximum(each, 1e-9 * prefill.rate)).reshape(total.shape)
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
        "memory": ~np.asarray(seats_of(case, state, candidate, larger[:, None]).memory.fits),
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
