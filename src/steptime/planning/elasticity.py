"""Elasticity of the cost: what limits a layout, and what faster parts would save."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np

from steptime.hardware.system import System
from steptime.hardware.what_if import scale, settable
from steptime.models.model import Layer, Model, changed_drafter
from steptime.planning.plan_problem import AGGREGATED, Candidate, PlanProblem, evaluate_state, moving
from steptime.planning.plan_search import chunk_sizes, readable
from steptime.planning.refinement import best, decode_rate, evaluate_occupancy, planned_prefill, prefill_rate, served_by
from steptime.planning.slo_probability import effective_targets
from steptime.planning.steady_state import MOST_UTILISED, State

# Factor by which a figure is improved to measure its effect on the cost.
NUDGE = 1.1
# Larger factors on the batch, at which a limit is sought that no smaller factor breaks.
FURTHER = (1.25, 1.5, 2.0)
# Candidates of a search, best first, that may become the best on the better machine.
LOOKED_AT = 64
# Relative difference of two equal rates that are computed in two ways.
ROUNDING = 1e-12
# Relative gain below which a larger batch does not pay.
MIN_GAIN = 0.005


def scaled_cache(model: Model, factor: float) -> Model:
    """Return the model with its KV bytes per token multiplied by a factor.

    Args:
        model: Model.
        factor: Factor on the KV bytes per token.

    Returns:
        The changed model.
    """

    def changed(layer: Layer) -> Layer:
        return replace(layer, attention=tuple(replace(a, kv_bytes=a.kv_bytes * factor) for a in layer.attention))

    layers, draft = (tuple((changed(layer), n) for layer, n in part) for part in (model.layers, model.draft))
    drafter = changed_drafter(model, lambda small: scaled_cache(small, factor))
    return replace(model, layers=layers, draft=draft, drafter=drafter)


MACHINE = {
    "hbm_bandwidth": "chip.hbm.bandwidth",
    "hbm_capacity": "chip.hbm.capacity",
    "arithmetic": "chip.peak",
    "scale_up_bandwidth": "scale_up.bandwidth",
    "scale_out_bandwidth": "scale_out.bandwidth",
}
KV_BYTES, RENT = "kv_bytes", "rent"

IN_WORDS = {
    "arithmetic": "FLOP/s",
    "hbm_bandwidth": "HBM bandwidth",
    "hbm_capacity": "HBM capacity",
    "scale_up_bandwidth": "scale-up bandwidth",
    "scale_out_bandwidth": "scale-out bandwidth",
    KV_BYTES: "KV bytes",
}


def elastic_figures(system: System) -> list[str]:
    """List the figures of a system that have an elasticity.

    Args:
        system: System.

    Returns:
        Names, such as "hbm_bandwidth"; "rent" only where a rent is known.
    """
    paths = settable(system)
    needed = {name: path for name, path in MACHINE.items() if path != "chip.peak" and path not in paths}
    rented = math.isfinite(system.rent.typical) and system.rent.typical > 0
    return [*(name for name in MACHINE if name not in needed), KV_BYTES, *([RENT] if rented else [])]


def relaxed(case: PlanProblem) -> PlanProblem:
    """Return the problem with limits that are wider by the factor `NUDGE`.

    A machine that is `NUDGE` times as good can meet its limits with a candidate that just misses them here.

    Args:
        case: Plan problem.

    Returns:
        The problem with wider limits.
    """
    return replace(case, slo=replace(case.slo, tpot=case.slo.tpot * NUDGE, ttft=case.slo.ttft * NUDGE))


def elasticities(case: PlanProblem, finalists: Sequence[Candidate], candidates: Iterable[Candidate] = ()) -> dict[str, float]:
    """Return d log(cost) / d log(figure) for each figure, at the same limits.

    -0.6 means that a figure 10 % higher makes tokens about 6 % cheaper. The finalists of a plan and the first
    of `candidates` are tuned on a machine that is 10 % better in one figure. For KV bytes, this is 10 %
    fewer. The best of them gives the elasticity.

    Args:
        case: Plan problem.
        finalists: Finalists of the plan, best first.
        candidates: Other candidates of the search with limits a tenth wider, best first.

    Returns:
        Elasticity by figure.
    """
    return {name: find() for name, find in worths(case, finalists, candidates).items()}


def worths(
    case: PlanProblem, finalists: Sequence[Candidate], candidates: Iterable[Candidate] = ()
) -> dict[str, Callable[[], float]]:
    """Return a function for each of the `elasticities`, which can run in parallel.

    Args:
        case: Plan problem.
        finalists: Finalists of the plan, best first.
        candidates: Other candidates of the search, best first.

    Returns:
        A function without arguments by figure; it returns the elasticity.
    """
    before = max(served_by(case, candidate) for candidate in finalists)
    near = list({candidate.same: candidate for candidate in (*islice(candidates, LOOKED_AT), *finalists)}.values())

    def figure_elasticity(better: PlanProblem) -> float:
        after = max(served_by(better, finalists[0]), best(better, near, finalists=1)[0].rate)
        return math.log(before / after) / math.log(NUDGE) if after > before * (1 + ROUNDING) else 0.0

    def evaluate_figure(name: str) -> float:
        if name == RENT:
            # The whole cost is rent.
            return 1.0
        if name == KV_BYTES:
            return -figure_elasticity(replace(case, model=scaled_cache(case.model, 1 / NUDGE)))
        if name == "scale_out_bandwidth" and case.used <= case.system.scale_up.size:
            # No traffic leaves the scale-up domain.
            return 0.0
        return figure_elasticity(replace(case, system=scale(case.system, MACHINE[name], NUDGE)))

    return {name: partial(evaluate_figure, name) for name in elastic_figures(case.system)}


def binding(case: PlanProblem, candidate: Candidate) -> tuple[str, ...]:
    """Return the limits that a larger batch would break.

    The names are "speed", "first token", "memory" and "prompt queue". "prefill rate" and "transfer rate" mean
    that the prefill pool or its links are full. With a separate prefill pool, "first token" means that the
    queue of this pool would be too long. "saturation" means that a batch 10 % larger would save less than half
    a percent, with limits or without.

    Args:
        case: Plan problem.
        candidate: Candidate with its batch.

    Returns:
        One name or several.
    """
    unit = int(candidate.layout.dp * candidate.layout.microbatches)
    larger_units = [math.ceil(candidate.batch * factor / unit - 1e-9) for factor in (NUDGE, *FURTHER)]
    larger = unit * np.array([candidate.batch // unit + 1, *larger_units])
    sizes = (
        chunk_sizes(case.workload, case.evidence, case.pinned.chunk)
        if candidate.mode == AGGREGATED
        else np.ones(1, dtype=np.int64)
    )
    sizes = sizes[readable(case.workload, sizes, candidate.layout)]
    now = evaluate_state(case, candidate, candidate.batch, max(candidate.chunk, 1))

    # A prefill pool or its links can be the bottleneck, and then a larger decode batch changes nothing.
    prefill_limit, limit_names = _prefill_limit(case, candidate, now)
    rate_now = decode_rate(case, now, candidate, candidate.batch, evaluate_occupancy(case, now, candidate, candidate.batch))
    if prefill_limit <= rate_now:
        return limit_names
    state = evaluate_state(case, candidate, larger[:, None], sizes[None, :])
    seats = evaluate_occupancy(case, state, candidate, larger[:, None])
    rate = decode_rate(case, state, candidate, larger[:, None], seats)
    stable = state.utilisation <= MOST_UTILISED

    # The second of the larger batches is `NUDGE` times as large.
    stable_rate = np.where(stable[1], state.rate[1], 0.0)
    if not np.any(stable[1]):
        return ("prompt queue",)
    if np.max(stable_rate) < now.rate * (1 + MIN_GAIN):
        faster = np.max(np.where(np.isfinite(state.tpot[1]), state.rate[1], 0.0)) >= now.rate * (1 + MIN_GAIN)
        return ("prompt queue",) if faster else ("saturation",)
    tpot, ttft = effective_targets(case, candidate.layout, candidate.prefill_layout, state.input_share)

    # A batch without memory for spare slots fits, but its requests wait for slots and its rate can fall.
    is_crowded = ~np.asarray(state.memory.fits) & (rate <= rate_now)
    broken = {
        "speed": stable & (state.tpot > tpot),
        "first token": stable & (state.ttft > ttft),
        "memory": ~np.asarray(seats.memory.fits) | is_crowded,
        "prompt queue": ~stable,
    }
    broken |= {name: np.asarray(broken.get(name, False) | (rate > prefill_limit)) for name in limit_names}

    # The chunk of the plan shows the binding limit; the chunk with the highest rate decides where the plan's breaks nothing.
    own_chunk = np.flatnonzero((sizes == candidate.chunk) & stable[1])
    for chunk in (*own_chunk.tolist(), int(np.argmax(stable_rate))):
        # The first batch that breaks a limit decides: the next one, then larger ones.
        for step in range(len(larger)):
            names = tuple(name for name, value in broken.items() if np.broadcast_to(value, state.rate.shape)[step, chunk])
            if names:
                return names
    return ("saturation",)


def _prefill_limit(case: PlanProblem, candidate: Candidate, state: State) -> tuple[float, tuple[str, ...]]:
    """Return the highest rate [requests/s] that the prefill pool and the links allow, and the limits that set it.

    The limits are "first token", "prefill rate" or "transfer rate". Without a prefill pool, the rate is infinite.
    """
    prefill = planned_prefill(case, candidate, state.tpot)
    if prefill is None or candidate.prefill_layout is None:
        return math.inf, ()
    accepted_rate = float(moving(case, candidate.layout).max_rate * candidate.layout.replicas)
    rate = min(float(prefill_rate(case, candidate, prefill)), accepted_rate)
    if rate < float(prefill.rate * prefill.most_utilised * candidate.prefill_layout.replicas):
        return rate, ("transfer rate",)

    # The limit on the TTFT can allow less utilization than a plan would otherwise have.
    used_share = float(prefill.most_utilised) / MOST_UTILISED
    if used_share >= 1 - ROUNDING:
        return rate, ("prefill rate",)
    return rate, ("first token",) if used_share < 1 - MIN_GAIN else ("first token", "prefill rate")
