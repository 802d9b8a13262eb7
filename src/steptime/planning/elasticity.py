"""What stops a layout from being cheaper, and what each figure of the machine is worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np

from steptime.hardware.system import System
from steptime.hardware.what_if import scale, settable
from steptime.models.model import Layer, Model
from steptime.planning.plan_problem import AGGREGATED, Candidate, PlanProblem, evaluate_state, moving
from steptime.planning.plan_search import chunk_sizes, readable
from steptime.planning.refinement import best, evaluate_occupancy, planned_prefill, prefill_rate, served_by
from steptime.planning.slo_probability import effective_targets
from steptime.planning.steady_state import MOST_UTILISED, State

NUDGE = 1.1  # how much better a figure is made to see what it is worth
LOOKED_AT = 64  # candidates, the best of a search first, that may be the best where a figure is better
ROUNDING = 1e-12  # of a rate that is found in two ways
MIN_GAIN = 0.005  # a gain below this is none


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


def elastic_figures(system: System) -> list[str]:
    """Return the figures whose worth can be asked for on this system."""
    paths = settable(system)
    needed = {name: path for name, path in MACHINE.items() if path != "chip.peak" and path not in paths}
    rented = math.isfinite(system.rent.typical) and system.rent.typical > 0
    return [*(name for name in MACHINE if name not in needed), KV_BYTES, *([RENT] if rented else [])]


def relaxed(case: PlanProblem) -> PlanProblem:
    """Return the case with limits that a machine `NUDGE` as good keeps where this one just misses its own."""
    return replace(case, slo=replace(case.slo, tpot=case.slo.tpot * NUDGE, ttft=case.slo.ttft * NUDGE))


def elasticities(case: PlanProblem, finalists: Sequence[Candidate], candidates: Iterable[Candidate] = ()) -> dict[str, float]:
    r"""Return $d \log(cost) / d \log(figure)$ for each figure, planned anew under the same limits.

    -0.6 means that a figure 10 % higher makes tokens about 6 % cheaper. The finalists of a plan, and those of `candidates` that
    come first (within limits a tenth wider), are given the batches that serve most on a machine that is 10 % better in that
    figure alone (with 10 % fewer KV bytes); the best of them is what it is worth.
    """
    return {name: find() for name, find in worths(case, finalists, candidates).items()}


def worths(
    case: PlanProblem, finalists: Sequence[Candidate], candidates: Iterable[Candidate] = ()
) -> dict[str, Callable[[], float]]:
    """Return what finds each of the `elasticities`: they do not wait for one another."""
    before = max(served_by(case, candidate) for candidate in finalists)
    near = list({candidate.same: candidate for candidate in (*islice(candidates, LOOKED_AT), *finalists)}.values())

    def figure_elasticity(better: PlanProblem) -> float:
        after = max(served_by(better, finalists[0]), best(better, near, finalists=1)[0].rate)
        return math.log(before / after) / math.log(NUDGE) if after > before * (1 + ROUNDING) else 0.0

    def evaluate_figure(name: str) -> float:
        if name == RENT:
            return 1.0  # all is rented
        if name == KV_BYTES:
            return -figure_elasticity(replace(case, model=scaled_cache(case.model, 1 / NUDGE)))
        if name == "scale_out_bandwidth" and case.used <= case.system.scale_up.size:
            return 0.0  # nothing leaves the domain
        return figure_elasticity(replace(case, system=scale(case.system, MACHINE[name], NUDGE)))

    return {name: partial(evaluate_figure, name) for name in elastic_figures(case.system)}


def binding(case: PlanProblem, candidate: Candidate) -> tuple[str, ...]:
    """Return what stops the batch from growing: the limits that a larger batch would break.

    "speed", "first token", "memory", "prompt queue"; "prefill rate" and "transfer rate", where a prefill pool or the links out
    of it take no more; and "saturation", where a batch 10 % larger would be cheaper by less than half a percent, limits or not.
    """
    unit = int(candidate.layout.dp * candidate.layout.microbatches)
    larger = unit * np.array([candidate.batch // unit + 1, math.ceil(candidate.batch * NUDGE / unit)])
    sizes = chunk_sizes(case.workload) if candidate.mode == AGGREGATED else np.ones(1, dtype=np.int64)
    sizes = sizes[readable(case.workload, sizes, candidate.layout)]
    now = evaluate_state(case, candidate, candidate.batch, max(candidate.chunk, 1))
    limited = _prefill_limits(case, candidate, now)
    if limited:
        return (limited,)
    state = evaluate_state(case, candidate, larger[:, None], sizes[None, :])
    stable = state.utilisation <= MOST_UTILISED
    if not np.any(stable[-1]):
        return ("prompt queue",)
    if np.max(np.where(stable[-1], state.rate[-1], 0.0)) < now.rate * (1 + MIN_GAIN):
        faster = np.max(np.where(np.isfinite(state.tpot[-1]), state.rate[-1], 0.0)) >= now.rate * (1 + MIN_GAIN)
        return ("prompt queue",) if faster else ("saturation",)
    tpot, ttft = effective_targets(case, candidate.layout, candidate.prefill_layout, state.input_share)
    broken = {
        "speed": state.tpot > tpot,
        "first token": state.ttft > ttft,
        "memory": ~np.asarray(evaluate_occupancy(case, state, candidate, larger[:, None]).memory.fits),
    }
    best = int(np.argmax(np.where(stable[-1], state.rate[-1], 0.0)))
    for step in range(len(larger)):
        names = tuple(name for name, value in broken.items() if np.broadcast_to(value, state.rate.shape)[step, best])
        if names:
            return names
    return ("saturation",)


def _prefill_limits(case: PlanProblem, candidate: Candidate, state: State) -> str:
    """Return what takes no more requests than decode in `state` could serve: a prefill pool, its links, or "" for neither."""
    prefill = planned_prefill(case, candidate, state.tpot)
    if prefill is None or candidate.prefill_layout is None:
        return ""
    can = prefill_rate(case, candidate, prefill)
    takes = moving(case, candidate.layout).max_rate * candidate.layout.replicas
    if (
        min(can, takes)
        > state.rate * candidate.layout.replicas * evaluate_occupancy(case, state, candidate, candidate.batch).share
    ):
        return ""
    reads = prefill.rate * prefill.most_utilised * candidate.prefill_layout.replicas
    return "transfer rate" if min(can, takes) < reads else "prefill rate"
