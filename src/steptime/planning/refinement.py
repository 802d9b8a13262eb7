"""Refinement: tune the batch and chunk of the best candidates, and choose one.

A search evaluates batches on a coarse grid, on which unequal candidates can tie. Each candidate is therefore
evaluated at batches around its own. The best ones are evaluated at closer batches, and the first few are
refined before one is chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from steptime.number_checks import Array, Number, as_whole, distinct
from steptime.physics.layout import Layout, shaped, stacked
from steptime.planning.pd_matching import UNKNOWN
from steptime.planning.plan_problem import (
    AGGREGATED,
    DISAGGREGATED,
    Candidate,
    Occupancy,
    PlanProblem,
    capped_occupancy,
    decoding,
    evaluate_prefill,
    evaluate_state,
    moving,
    pass_limit,
    uncapped_occupancy,
)
from steptime.planning.plan_search import AS_CHEAP, chunk_sizes, readable
from steptime.planning.prefill_pool import Prefill, first_token, prefill_pool, within_limit
from steptime.planning.slo_probability import effective_targets
from steptime.planning.steady_state import (
    MOST_LOADED,
    MOST_UTILISED,
    State,
    aggregated,
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
# Factor around the batch of a search within which the best batch is sought.
AROUND = 1.5
# Factors on the batch of a search, which estimates the load of a pool less accurately.
FAR = (*np.geomspace(0.25, 0.9, 16), 1.25, 1.3, 1.4, AROUND)
# Closer factors, since the largest batch within a limit may lie between two batches of a search.
CLOSE = np.linspace(0.96, 1.2, 13)
# Below this number of sequences per rank and micro-batch, fractional batches are tried, in steps of 1 / PARTS.
FEW_SEQUENCES, PARTS = 4, 8
# Sequences that are subtracted from a batch of several ranks.
HALF = 0.5
# From this batch on, a single rank varies by whole sequences; below it, by 1 / FINEST of the batch or 1 / PARTS.
FINEST = 128
# Includes the batch itself.
BATCH_FACTORS = np.sort([*FAR, *CLOSE])
# Whole sequences per rank around a batch that is evaluated more closely.
NEXT = np.arange(-3.0, 7.0)


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
    batches_around = _around(candidate.batch, unit)
    batch = batches_around if unit == 1 else _with_less(batches_around, unit)
    sizes = np.zeros(1, dtype=np.int64)
    if candidate.mode == AGGREGATED:
        sizes = chunk_sizes(case.workload)
        sizes = sizes[readable(case.workload, sizes, candidate.layout)]
    state = evaluate_state(case, candidate, batch[:, None], sizes[None, :])
    seats = evaluate_occupancy(case, state, candidate, batch[:, None])
    rate = decode_rate(case, state, candidate, batch[:, None], seats)
    prefill = planned_prefill(case, candidate, state.tpot)
    if prefill is not None:
        rate = np.minimum(rate, prefill_rate(case, candidate, prefill))
    occupied = in_flight(batch[:, None], candidate.layout.replicas)
    steady = (
        _load(np.moveaxis(state.tpot, 0, -1), batches_around).T * occupied <= MOST_LOADED
        if len(batches_around) > 1
        else np.True_
    )
    steady = np.logical_or(steady, seats.capped)
    is_feasible = np.logical_and(within(case, state, seats, candidate.layout, candidate.prefill_layout), steady) & (rate > 0)
    rate = np.where(is_feasible, rate, -np.inf)
    best_rate = np.max(rate)
    if not np.isfinite(best_rate):
        state = evaluate_state(case, candidate, candidate.batch, max(candidate.chunk, 1))
        return Peak(served_by(case, candidate), float(state.tpot), candidate)

    # Among equal costs, prefer the fastest, and a whole number of sequences per rank.
    as_cheap = rate >= best_rate * (1 - AS_CHEAP / 2)
    full = as_cheap & (np.arange(len(batch)) < len(batches_around))[:, None]
    i, j = np.unravel_index(int(np.argmin(np.where(full if np.any(full) else as_cheap, state.tpot, np.inf))), rate.shape)
    tuned = replace(candidate, batch=as_whole(batch[i]), chunk=int(sizes[j]))
    return Peak(float(rate[i, j]), float(np.broadcast_to(state.tpot, rate.shape)[i, j]), tuned)


def _around(middle: float, unit: int) -> Array:
    """Return the batches to evaluate around one.

    They are whole numbers of sequences per data-parallel rank and micro-batch, and fractions where these are
    few. `unit` is the number of ranks times micro-batches. A single rank varies between two whole numbers, so
    that its mean lies between them. With several ranks, the busiest one has no more than a whole number.

    >>> _around(8, 8).tolist()[:5], _around(64, 8).tolist()
    ([8.0, 9.0, 10.0, 11.0, 12.0], [40.0, 48.0, 56.0, 64.0, 72.0, 80.0, 88.0, 96.0, 104.0])
    >>> [_around(middle, 1).tolist()[:3] for middle in (8.0, 70.0, 400.0)]
    [[5.0, 5.125, 5.25], [46.0, 46.25, 46.5], [266.0, 267.0, 268.0]]
    """
    near = max(1, round(middle / unit))
    low, high = max(1, int(near / AROUND)), int(near * AROUND) + 1
    batches = np.linspace(low, high, min(256, high - low + 1)).astype(np.int64)
    parts = FINE[(low <= FINE) & (high >= FINE)] if unit == 1 else np.arange(low, min(high, FEW_SEQUENCES), 1 / PARTS)
    return unit * distinct(np.concatenate([batches, parts])).astype(np.float64)


def _with_less(batch: Array, unit: Number) -> Array:
    """Append batches with half a sequence less, which a limit may just allow.

    A single rank with one micro-batch already has fractions between its batches.

    >>> _with_less(np.array([[8.0, 16.0]]), 8).tolist(), _with_less(np.array([[8.0, 16.0]]), 1).tolist()
    ([[8.0, 16.0, 7.5, 15.5]], [[8.0, 16.0, 8.0, 16.0]])
    """
    return np.concatenate([batch, batch - np.where(np.asarray(unit) == 1, 0.0, HALF)], axis=-1)


def _load(tpot: Array, batch: Array) -> Array:
    """Return `load_shares` of the batches of the last axis.

    If `tpot` [s] includes batches from `_with_less`, they have the load of the whole ones.
    """
    load = load_shares(tpot[..., : batch.shape[-1]], batch)
    return load if tpot.shape[-1] == batch.shape[-1] else np.concatenate([load, load], axis=-1)


def _part(batch: Number) -> Number:
    """Return the spacing of batches of one rank: about a hundredth, from 1/8 to 1.

    >>> _part(np.array([1.0, 16.0, 32.0, 127.0, 128.0, 999.0])).tolist()
    [0.125, 0.125, 0.25, 0.5, 1.0, 1.0]
    """
    return np.clip(2.0 ** np.floor(np.log2(batch)) / FINEST, 1 / PARTS, 1.0)


FINE = np.concatenate([np.arange(2**n, 2 ** (n + 1), float(_part(2.0**n))) for n in range(FINEST.bit_length() - 1)])


def _about(middle: Array, unit: Array) -> Array:
    """Return a row of batches around each batch of a search.

    Near batches are as close as in `_around`, others are whole numbers. Only whole numbers can fill all slots
    (`admission`).
    """
    batches = middle / unit * BATCH_FACTORS
    near = np.where(np.isin(BATCH_FACTORS, CLOSE) & (unit == 1), _part(batches), 1.0)
    part = np.where(batches < FEW_SEQUENCES, 1 / PARTS, near)
    rounded: Array = unit * np.maximum(1, np.round(batches / part) * part)
    return rounded


def _closer(middle: Array, unit: Array) -> Array:
    """Return a row of batches that are closer to a batch than those of `_about`.

    >>> [row.tolist()[::3] for row in _closer(np.array([[64.0], [10.0]]), np.array([[8], [1]]))]
    [[40.0, 64.0, 88.0, 112.0], [9.625, 10.0, 10.375, 10.75]]
    """
    part = np.where(unit == 1, _part(middle), 1.0)
    rounded: Array = unit * np.maximum((np.round(middle / unit / part) + NEXT) * part, 1.0)
    return rounded


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
            contenders.setdefault((candidate.same, candidate.prompts), candidate)
    promise = _promising(case, contenders.values(), closer=False)
    near = [candidate for rate, candidate in promise if rate >= promise[0][0] * (1 - NEAR)][:CLOSER]
    promise = _promising(case, near, closer=True) + promise
    by_layout: dict[object, Candidate] = {}
    for _, candidate in sorted(promise, key=lambda entry: -entry[0]):
        by_layout.setdefault(candidate.same, candidate)
    finalists_found = [*map(partial(refined, case), [*by_layout.values()][:finalists])]

    # Rates within a quarter of a percent count as equal: the faster one comes first.
    enough = max(peak.rate for peak in finalists_found) * (1 - AS_CHEAP / 2)
    return sorted(finalists_found, key=lambda peak: (peak.tpot, -peak.rate) if peak.rate >= enough else (np.inf, -peak.rate))


def _promising(case: PlanProblem, candidates: Collection[Candidate], *, closer: bool) -> list[tuple[float, Candidate]]:
    """Return the highest rate of each candidate at nearby batches, the best first."""
    peaks = _peaks(case, AGGREGATED, candidates, closer=closer) + _peaks(case, DISAGGREGATED, candidates, closer=closer)
    return sorted(peaks, key=lambda peak: -peak[0])


def _peaks(case: PlanProblem, mode: str, candidates: Iterable[Candidate], *, closer: bool) -> list[tuple[float, Candidate]]:
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
    batches = _closer(middle, unit) if closer else _about(middle, unit)
    batch = _with_less(batches, unit) if closer else batches
    arguments: dict[str, Any] = {"model": case.model, "system": case.system, "workload": case.workload, "engine": case.engine}
    arguments |= {"speculation": case.speculation, "legal": True}

    # Aggregated arrays have a chunk axis, disaggregated ones have not.
    if mode == AGGREGATED:
        sizes = chunk_sizes(case.workload)
        state = aggregated(**arguments, layout=shaped(layout, 2), batch=batch[:, :, None], chunk=sizes[None, None, :])
        replicas = shaped(layout, 2).replicas
        aim = effective_targets(case, shaped(layout, 2), None, state.input_share)[1]
        seats = capped_occupancy(case, state, batch[:, :, None], shaped(layout, 2), aim)
        rate = state.rate * replicas * seats.share
        rate = np.where(readable(case.workload, sizes[None, None, :], shaped(layout, 2)), rate, 0.0)
    else:
        state = decoding(case, wide, batch)
        seats = uncapped_occupancy(state, batch, wide.replicas)
        readers = stacked(
            [candidate.prefill_layout for candidate in candidates_of_mode if candidate.prefill_layout is not None]
        )
        prompts = np.array([candidate.prompts for candidate in candidates_of_mode])
        limit = pass_limit(case, readers, layout, min(case.slo.tpot, UNKNOWN), effective_targets(case, layout, readers)[1])
        prefill = within_limit(prefill_pool(**arguments, layout=readers, prompts=prompts), limit, readers.replicas)
        can = np.minimum(prefill.rate * prefill.most_utilised, moving(case, readers).max_rate) * readers.replicas
        served = delivered(state.rate, batch, wide.replicas, moving(case, wide).max_rate)
        rate = np.minimum(served, np.asarray(can)[:, None])
    # From here, the arrays have a batch axis, and a chunk axis where aggregated; `load_shares` needs the batch axis last.
    around = shaped(layout, rate.ndim - 1)
    reading = None if mode == AGGREGATED else shaped(readers, rate.ndim - 1)
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
