"""Refinement: tune the batch and chunk of the best candidates, and choose one.

A search evaluates batches on a coarse grid, on which unequal candidates can tie. Each candidate is therefore
evaluated at batches around its own. The best ones are evaluated at closer batches, and the first few are
refined before one is chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from steptime.number_checks import Array, Number, as_whole
from steptime.physics.layout import Layout, shaped, stacked
from steptime.planning.batch_grids import batches_around, closer_batches, nearby_batches, with_less
from steptime.planning.plan_problem import (
    AGGREGATED,
    DISAGGREGATED,
    Candidate,
    Occupancy,
    PlanProblem,
    capped_occupancy,
    evaluate_prefill,
    evaluate_state,
    moving,
    pass_limit,
    steady_state,
    uncapped_occupancy,
)
from steptime.planning.plan_search import AS_CHEAP, chunk_sizes, readable
from steptime.planning.prefill_pool import Prefill, first_token, prefill_pool, within_limit
from steptime.planning.slo_probability import effective_targets
from steptime.planning.steady_state import (
    MOST_LOADED,
    MOST_UTILISED,
    State,
    delivered,
    in_flight,
    load_shares,
    ttft_seen,
)

# Candidates of a search that are evaluated at nearby batches.
CONTENDERS = 64
# Candidates that are refined.
FINALISTS = 3
# Most candidates that are evaluated at closer batches, and how near to the best rate they must be.
CLOSER, NEAR = 16, 0.03


def within(case: PlanProblem, state: State, seats: Occupancy, layout: Layout, reader: Layout | None) -> Number:
    """Whether a state meets its targets and fits in memory.

    Args:
        case: Plan problem.
        state: Steady state.
        seats: Occupancy of its slots.
        layout: Layout of the replica that decodes.
        reader: Layout of a separate prefill pool, or None.

    Returns:
        Booleans, in the broadcast shape.
    """
    tpot, ttft = effective_targets(case, layout, reader, state.input_share)
    return (state.tpot <= tpot) & (state.ttft + seats.wait <= ttft) & seats.memory.fits & (state.utilisation <= MOST_UTILISED)


class Peak(NamedTuple):
    """The highest request rate [1/s] of a candidate, its TPOT [s], and the candidate.

    The candidate has the batch and the chunk of that rate.
    """

    rate: float
    tpot: float
    candidate: Candidate


def refined(case: PlanProblem, candidate: Candidate) -> Peak:
    """Tune the batch and the chunk of a candidate for the highest request rate.

    Of batches whose cost is equal within a quarter of a percent, the fastest one is taken. `best` does the
    same for layouts.

    Args:
        case: Plan problem.
        candidate: Candidate.

    Returns:
        The tuned candidate; the given one where no batch meets the limits.
    """
    unit = int(candidate.layout.dp * candidate.layout.microbatches)
    whole_batches = batches_around(candidate.batch, unit)
    batch = whole_batches if unit == 1 else with_less(whole_batches, unit)
    sizes = np.zeros(1, dtype=np.int64)
    if candidate.mode == AGGREGATED:
        sizes = chunk_sizes(case.workload, case.evidence, case.pinned.chunk)
        sizes = sizes[readable(case.workload, sizes, candidate.layout)]
    state = evaluate_state(case, candidate, batch[:, None], sizes[None, :])
    seats = evaluate_occupancy(case, state, candidate, batch[:, None])
    rate = decode_rate(case, state, candidate, batch[:, None], seats)
    prefill = planned_prefill(case, candidate, state.tpot)
    if prefill is not None:
        rate = np.minimum(rate, prefill_rate(case, candidate, prefill))
    occupied = in_flight(batch[:, None], candidate.layout.replicas)
    load = _load(np.moveaxis(state.tpot, 0, -1), whole_batches).T
    steady = np.logical_or(load * occupied <= MOST_LOADED, seats.capped)
    is_feasible = np.logical_and(within(case, state, seats, candidate.layout, candidate.prefill_layout), steady) & (rate > 0)
    rate = np.where(is_feasible, rate, -np.inf)
    best_rate = np.max(rate)
    if not np.isfinite(best_rate):
        state = evaluate_state(case, candidate, candidate.batch, max(candidate.chunk, 1))
        return Peak(served_by(case, candidate), float(state.tpot), candidate)

    # Among equal costs, prefer the fastest, and a whole number of sequences per rank.
    as_cheap = rate >= best_rate * (1 - AS_CHEAP / 2)
    full = as_cheap & (np.arange(len(batch)) < len(whole_batches))[:, None]
    i, j = np.unravel_index(int(np.argmin(np.where(full if np.any(full) else as_cheap, state.tpot, np.inf))), rate.shape)
    tuned = replace(candidate, batch=as_whole(batch[i]), chunk=int(sizes[j]))
    return Peak(float(rate[i, j]), float(np.broadcast_to(state.tpot, rate.shape)[i, j]), tuned)


def _load(tpot: Array, batch: Array) -> Array:
    """Return `load_shares` of the batches of the last axis.

    If `tpot` [s] includes batches from `with_less`, they have the load of the whole ones.
    """
    load = load_shares(tpot[..., : batch.shape[-1]], batch)
    return load if tpot.shape[-1] == batch.shape[-1] else np.concatenate([load, load], axis=-1)


def planned_prefill(case: PlanProblem, candidate: Candidate, tpot: Number) -> Prefill | None:
    """Return the prefill pool of a candidate at the utilization that its TTFT allows.

    Args:
        case: Plan problem.
        candidate: Candidate.
        tpot: TPOT of the decode pool [s].

    Returns:
        The prefill replica; None for an aggregated candidate.
    """
    reader = candidate.prefill_layout
    return evaluate_prefill(
        case, candidate, tpot, None if reader is None else effective_targets(case, candidate.layout, reader)[1]
    )


def evaluate_occupancy(case: PlanProblem, state: State, candidate: Candidate, batch: Number) -> Occupancy:
    """Return the occupancy of the slots of a candidate's decode replicas.

    Args:
        case: Plan problem.
        state: Steady state of one replica.
        candidate: Candidate.
        batch: Sequences per replica.

    Returns:
        The occupancy.
    """
    replicas = candidate.layout.replicas
    if candidate.mode == DISAGGREGATED:
        return uncapped_occupancy(state, batch, replicas)
    return capped_occupancy(
        case, state, batch, candidate.layout, effective_targets(case, candidate.layout, None, state.input_share)[1]
    )


def decode_rate(case: PlanProblem, state: State, candidate: Candidate, batch: Number, seats: Occupancy) -> Number:
    """Return the request rate of all decode replicas.

    Args:
        case: Plan problem.
        state: Steady state of one replica.
        candidate: Candidate.
        batch: Sequences per replica.
        seats: Occupancy of the slots.

    Returns:
        Requests/s.
    """
    layout = candidate.layout
    if candidate.mode == DISAGGREGATED:
        return delivered(state.rate, batch, layout.replicas, moving(case, layout).max_rate)
    rate: Number = state.rate * layout.replicas * seats.share
    return rate


def prefill_rate(case: PlanProblem, candidate: Candidate, prefill: Prefill) -> Number:
    """Return the highest request rate of all prefill replicas within the TTFT target.

    The rate of the links that send KV caches also limits it.

    Args:
        case: Plan problem.
        candidate: Disaggregated candidate.
        prefill: Its prefill replica.

    Returns:
        Requests/s.
    """
    assert candidate.prefill_layout is not None
    rate_per_pool = np.minimum(prefill.rate * prefill.most_utilised, moving(case, candidate.prefill_layout).max_rate)
    rate: Number = rate_per_pool * candidate.prefill_layout.replicas
    return rate


def matched_rate(case: PlanProblem, candidate: Candidate, state: State, prefill: Prefill | None) -> tuple[Number, Number]:
    """Return the request rate of a deployment and its prefill queue utilization.

    Args:
        case: Plan problem.
        candidate: Candidate.
        state: Steady state of one decode replica.
        prefill: Its prefill replica, or None.

    Returns:
        Requests/s, and the utilization [share].
    """
    rate = decode_rate(case, state, candidate, candidate.batch, evaluate_occupancy(case, state, candidate, candidate.batch))
    if prefill is None or candidate.prefill_layout is None:
        return rate, state.utilisation
    rate = np.minimum(rate, prefill_rate(case, candidate, prefill))
    return rate, rate / (prefill.rate * candidate.prefill_layout.replicas)


def served_by(case: PlanProblem, candidate: Candidate) -> float:
    """Return the request rate of a candidate.

    Args:
        case: Plan problem.
        candidate: Candidate with its batch and chunk.

    Returns:
        Requests/s.
    """
    state = evaluate_state(case, candidate, candidate.batch, max(candidate.chunk, 1))
    return float(matched_rate(case, candidate, state, planned_prefill(case, candidate, state.tpot))[0])


def first_token_of(
    case: PlanProblem, candidate: Candidate, state: State, prefill: Prefill | None, utilisation: Number
) -> Number:
    """Return the mean TTFT of a candidate.

    Args:
        case: Plan problem.
        candidate: Candidate.
        state: Steady state of one decode replica.
        prefill: Its prefill replica; None for an aggregated candidate.
        utilisation: Utilization of the prefill pool [share].

    Returns:
        Seconds.
    """
    layout = candidate.prefill_layout
    if prefill is None or layout is None:
        return state.ttft + evaluate_occupancy(case, state, candidate, candidate.batch).wait
    sent = moving(case, layout).seconds(utilisation * prefill.rate)
    return ttft_seen(
        case.workload, first_token(prefill, utilisation, layout.replicas) + sent, state.tpot, candidate.layout, case.engine,
        case.speculation,
    )  # fmt: skip


def best(case: PlanProblem, candidates: list[Candidate], finalists: int = FINALISTS) -> list[Peak]:
    """Refine the most promising candidates that differ in more than batch and chunk.

    Of candidates whose cost is equal within a quarter of a percent, the fastest comes first.

    Args:
        case: Plan problem.
        candidates: Candidates of a search, best first.
        finalists: Number of candidates to refine.

    Returns:
        Refined candidates, best first.
    """

    # One contender per layout and number of prompts: the first is the best of its batches.
    contenders: dict[object, Candidate] = {}
    for candidate in candidates:
        if len(contenders) < CONTENDERS:
            contenders.setdefault(_pools(candidate), candidate)
    prefill_rates = _prefill_rates(case, contenders.values())
    promise = _promising(case, contenders.values(), prefill_rates, closer=False)
    near = [candidate for rate, candidate in promise if rate >= promise[0][0] * (1 - NEAR)][:CLOSER]
    promise = _promising(case, near, prefill_rates, closer=True) + promise
    by_layout: dict[object, Candidate] = {}
    for _, candidate in sorted(promise, key=lambda entry: -entry[0]):
        by_layout.setdefault(candidate.same, candidate)
    finalists_found = [*map(partial(refined, case), [*by_layout.values()][:finalists])]

    # Rates within a quarter of a percent count as equal: the faster one comes first.
    enough = max(peak.rate for peak in finalists_found) * (1 - AS_CHEAP / 2)
    return sorted(finalists_found, key=lambda peak: (peak.tpot, -peak.rate) if peak.rate >= enough else (np.inf, -peak.rate))


def _pools(candidate: Candidate) -> tuple[object, ...]:
    """Return the key of candidates that differ only in batch, chunk and micro-batches."""
    return candidate.same, candidate.prompts


def _prefill_rates(case: PlanProblem, candidates: Iterable[Candidate]) -> dict[tuple[object, ...], float]:
    """Return the highest rate [requests/s] of the prefill pools and their links, by `_pools`."""
    disaggregated = [candidate for candidate in candidates if candidate.prefill_layout is not None]
    if not disaggregated:
        return {}
    layout, readers = stacked([candidate.layout for candidate in disaggregated]), _readers(disaggregated)
    prompts, batch = (np.array([getattr(candidate, name) for candidate in disaggregated]) for name in ("prompts", "batch"))
    tpot = steady_state(case, DISAGGREGATED, layout, batch).tpot
    limit = pass_limit(case, readers, layout, tpot, effective_targets(case, layout, readers)[1])
    pool = prefill_pool(case.model, case.prefill.system, case.workload, layout=readers, prompts=prompts, **case.settings)
    prefill = within_limit(pool, limit, readers.replicas)
    rates = np.minimum(prefill.rate * prefill.most_utilised, moving(case, readers).max_rate) * readers.replicas
    return dict(zip(map(_pools, disaggregated), np.asarray(rates).tolist(), strict=True))


def _readers(candidates: Iterable[Candidate]) -> Layout:
    """Return the layouts of the prefill pools as one layout of arrays."""
    return stacked([candidate.prefill_layout for candidate in candidates if candidate.prefill_layout is not None])


def _promising(
    case: PlanProblem, candidates: Collection[Candidate], prefill_rates: Mapping[tuple[object, ...], float], *, closer: bool
) -> list[tuple[float, Candidate]]:
    """Return the highest rate of each candidate at nearby batches, the best first."""
    peaks = []
    for mode in (AGGREGATED, DISAGGREGATED):
        peaks += _peaks(case, mode, candidates, prefill_rates, closer=closer)
    return sorted(peaks, key=lambda peak: -peak[0])


def _peaks(
    case: PlanProblem,
    mode: str,
    candidates: Iterable[Candidate],
    prefill_rates: Mapping[tuple[object, ...], float],
    *,
    closer: bool,
) -> list[tuple[float, Candidate]]:
    """Return the highest rate of each candidate of a mode at nearby batches.

    Aggregated candidates are evaluated with every chunk size. All candidates share one evaluation.
    """
    candidates_of_mode = [candidate for candidate in candidates if candidate.mode == mode]
    if not candidates_of_mode:
        return []
    layout = stacked([candidate.layout for candidate in candidates_of_mode])
    wide = shaped(layout, 1)
    unit = np.asarray(wide.dp * wide.microbatches)
    middle = np.array([candidate.batch for candidate in candidates_of_mode], dtype=np.float64)[:, None]
    batches = closer_batches(middle, unit) if closer else nearby_batches(middle, unit)
    batch = with_less(batches, unit) if closer else batches

    # Aggregated arrays have a chunk axis, disaggregated ones have not.
    if mode == AGGREGATED:
        sizes = chunk_sizes(case.workload, case.evidence, case.pinned.chunk)
        state = steady_state(case, mode, shaped(layout, 2), batch[:, :, None], sizes[None, None, :])
        replicas = shaped(layout, 2).replicas
        aim = effective_targets(case, shaped(layout, 2), None, state.input_share)[1]
        seats = capped_occupancy(case, state, batch[:, :, None], shaped(layout, 2), aim)
        rate = state.rate * replicas * seats.share
        rate = np.where(readable(case.workload, sizes[None, None, :], shaped(layout, 2)), rate, 0.0)
    else:
        state = steady_state(case, mode, wide, batch)
        seats = uncapped_occupancy(state, batch, wide.replicas)
        served = delivered(state.rate, batch, wide.replicas, moving(case, wide).max_rate)
        rate = np.minimum(served, np.array([prefill_rates[_pools(candidate)] for candidate in candidates_of_mode])[:, None])
    # From here, the arrays have a batch axis, and a chunk axis where aggregated; `load_shares` needs the batch axis last.
    around = shaped(layout, rate.ndim - 1)
    reading = None if mode == AGGREGATED else shaped(_readers(candidates_of_mode), rate.ndim - 1)
    tpot = state.tpot if mode == DISAGGREGATED else np.moveaxis(state.tpot, 1, -1)
    load = _load(tpot, batches if mode == DISAGGREGATED else batches[:, None, :])
    load = load if mode == DISAGGREGATED else np.moveaxis(load, -1, 1)
    occupied = in_flight(batch, wide.replicas)
    steady = load * (occupied if mode == DISAGGREGATED else occupied[:, :, None]) <= MOST_LOADED
    steady = np.logical_or(steady, seats.capped)
    rate = np.where(np.logical_and(within(case, state, seats, around, reading), steady), rate, 0.0)

    # The best chunk per batch, then the best batch per candidate.
    by_batch = rate if mode == DISAGGREGATED else np.max(rate, axis=2)
    top = np.argmax(by_batch, axis=1)
    rows = np.arange(len(candidates_of_mode))
    peaks = zip(
        by_batch[rows, top].tolist(),
        np.broadcast_to(batch, by_batch.shape)[rows, top].tolist(),
        candidates_of_mode,
        strict=True,
    )
    return [(peak, replace(candidate, batch=as_whole(best_batch))) for peak, best_batch, candidate in peaks]
