"""Finalists of a search: the candidates that are simulated, and the best of them.

A search ranks candidates by mean waits. How much longer the waits at a percentile are depends on the candidate: a prefill pool
that is nearly full has long ones. Therefore finalists come from several levels of the target (`target_levels`), each serves
requests one by one (`simulated_rate`), and the neighbours of the best one are tried too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from steptime.errors import Impossible
from steptime.physics.layout import Layout
from steptime.physics.layout_space import pairs
from steptime.planning.plan_problem import AGGREGATED, Candidate, PlanProblem, Table, evaluate_prefill, evaluate_state
from steptime.planning.plan_search import chunk_sizes, ranking, readable
from steptime.planning.refinement import evaluate_occupancy, first_token_of, matched_rate
from steptime.planning.simulated_rate import (
    ACCURACY,
    CONFIRM_FACTORS,
    CONFIRM_SEEDS,
    CONFIRM_TOKENS,
    LIFETIMES,
    Deployment,
    Loop,
    Run,
    confirmed,
    highest_rate,
)
from steptime.planning.slo_probability import effective_targets
from steptime.planning.steady_state import seats_for
from steptime.workload.workload import Slo, decode_steps

# Factors of the TPOT at a percentile over its mean: of long outputs in separate pools, and beside prefill chunks.
TPOT_LEVELS = (1.0, 1.2)
# Rows of a search that become finalists, of each level.
ROWS = 4
# Searches around the best finalist, and sequences in a pipeline from which there are none.
ROUNDS = 2
MANY_SEQUENCES = 5000
# Share of the rate that a finalist may lose to other draws.
LARGE_LOSS = 0.06
# Sequences in flight for which slots are kept, over those of the candidate.
SLACK = 1.4


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPool:
    """A pool as the simulator needs it; see `plan_result.Pool`."""

    role: str
    layout: Layout
    batch: float
    max_num_seqs: int
    queued: bool = False
    chunk: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """A candidate with its pools, and its run at the highest rate within the limits."""

    candidate: Candidate
    pools: tuple[SimulatedPool, ...]
    run: Run


def list_finalists(case: PlanProblem, tables: Sequence[Table], levels: Sequence[Slo]) -> list[Candidate]:
    """Return the best candidates of each level of the targets, without repetitions.

    Args:
        case: Plan problem.
        tables: Tables of a search.
        levels: Targets.

    Returns:
        Candidates.
    """
    finalists: dict[object, Candidate] = {}
    for level, part in product(levels, TPOT_LEVELS):
        kinds: dict[object, Candidate] = {}
        for candidate in ranking(replace(case, slo=replace(level, tpot=level.tpot / part)), list(tables)):
            kinds.setdefault((candidate.same, candidate.prompts), candidate)
            if len(kinds) == (1 if case.rough else ROWS):
                break
        for key, candidate in kinds.items():
            finalists.setdefault((key, candidate.chunk), candidate)
    return list(finalists.values())


def simulate_finalists(case: PlanProblem, candidates: Sequence[Candidate]) -> list[Finalist]:
    """Simulate candidates and the neighbours of the best one.

    Args:
        case: Plan problem.
        candidates: Candidates.

    Returns:
        Finalists that meet the limits, the highest rate first.
    """
    finalists: dict[Candidate, Finalist | None] = {}

    def best() -> Finalist | None:
        return max(
            (finalist for finalist in finalists.values() if finalist), key=lambda finalist: finalist.run.rate, default=None
        )

    def add(candidate: Candidate) -> None:
        leader = best()
        finalists[candidate] = simulate_candidate(case, candidate, leader.run.rate if leader else case.at_least)

    for candidate in candidates:
        add(candidate)
    for _ in range(0 if case.rough else ROUNDS):
        leader = best()
        if leader is None or _is_slow(leader.candidate):
            break
        for neighbour in [neighbour for neighbour in neighbours(case, leader.candidate) if neighbour not in finalists]:
            add(neighbour)
        if best() is leader:
            break
    ranking = sorted((finalist for finalist in finalists.values() if finalist), key=lambda finalist: -finalist.run.rate)

    # All have served the same draws, so that what they lose by other draws is alike: the next one is confirmed only if
    # the last one lost much, or was not confirmed at all.
    checked: list[Finalist] = []
    for finalist in ranking:
        if any(entry.run.rate >= (1 - LARGE_LOSS) * finalist.run.rate for entry in checked):
            break
        now = _confirmed(case, finalist)
        checked += [] if now is None else [now]
    checked.sort(key=lambda finalist: -finalist.run.rate)
    names = {finalist.candidate for finalist in checked}
    return checked + [finalist for finalist in ranking if checked and finalist.candidate not in names]


def _is_slow(candidate: Candidate) -> bool:
    """Return whether a run takes seconds: pipelines count the steps of each sequence."""
    return bool(candidate.layout.pp > 1) and candidate.batch > MANY_SEQUENCES


def simulate_candidate(case: PlanProblem, candidate: Candidate, least: float) -> Finalist | None:
    """Return a candidate at its highest rate within the limits.

    Args:
        case: Plan problem.
        candidate: Candidate.
        least: Rate that it must exceed [requests/s].

    Returns:
        The finalist; None where no rate above `least` meets the limits.
    """
    state = evaluate_state(case, candidate, candidate.batch, max(candidate.chunk, 1))
    prefill = evaluate_prefill(case, candidate, state.tpot)
    rate, utilisation = (float(x) for x in matched_rate(case, candidate, state, prefill))
    ttft = float(first_token_of(case, candidate, state, prefill, utilisation))
    if not rate > 0 or not math.isfinite(ttft):
        return None
    pools, tpot = simulated_pools(case, candidate), float(state.tpot)
    try:
        loop = _loop(case, pools, max(rate, least), ttft, tpot)
    except Impossible:
        # The step of the simulator leaves no room for a request.
        return None
    run = highest_rate(loop, _limits(case, candidate), case.percentile, rate, tpot, ttft, least=least * (1 + ACCURACY))
    return None if run is None else Finalist(candidate=candidate, pools=pools, run=run)


def _loop(case: PlanProblem, pools: tuple[SimulatedPool, ...], rate: float, ttft: float, tpot: float, **settings: Any) -> Loop:
    """Return the loop of some pools, given their expected rate and times."""
    deployment = Deployment(
        model=case.model,
        system=case.system,
        engine=case.engine,
        workload=case.workload,
        pools=pools,
        speculation=case.speculation,
    )
    tokens = float(decode_steps(case.workload, case.speculation)) * float(case.speculation.acceptance)
    return Loop(deployment, rate, min(ttft, case.limits.ttft) + tokens * tpot, memo=case.memo, **settings)


def _limits(case: PlanProblem, candidate: Candidate) -> Slo:
    """Return the limits of a candidate: those asked for, or lower ones for a probability."""
    state = evaluate_state(case, candidate, candidate.batch, max(candidate.chunk, 1))
    tpot, ttft = effective_targets(
        replace(case, slo=case.limits), candidate.layout, candidate.prefill_layout, state.input_share
    )
    return Slo(ttft=float(ttft), tpot=float(tpot))


def _confirmed(case: PlanProblem, finalist: Finalist) -> Finalist | None:
    """Return a finalist with a longer run on other draws; None where they do not confirm it."""
    run = finalist.run
    in_flight = run.rate * (run.mean_ttft + float(case.workload.output_tokens) * run.mean_tpot)
    factor = CONFIRM_TOKENS / (LIFETIMES * in_flight * float(case.workload.output_tokens))
    loops = [
        _loop(
            case,
            finalist.pools,
            run.rate,
            run.mean_ttft,
            run.mean_tpot,
            seed=seed,
            factor=float(np.clip(factor, *CONFIRM_FACTORS)),
        )
        for seed in CONFIRM_SEEDS
    ]
    now = confirmed(loops, run, _limits(case, finalist.candidate), case.percentile)
    return None if now is None else replace(finalist, run=now)


def simulated_pools(case: PlanProblem, candidate: Candidate) -> tuple[SimulatedPool, ...]:
    """Return the pools of a candidate, with slots for more sequences than its mean.

    Args:
        case: Plan problem.
        candidate: Candidate.

    Returns:
        Pools; the one that decodes is the last.
    """
    state = evaluate_state(case, candidate, candidate.batch, max(candidate.chunk, 1))
    seats = evaluate_occupancy(case, state, candidate, candidate.batch)
    slots = int(seats.max_num_seqs)
    if not seats.capped:
        slots = max(slots, int(seats_for(case.workload, SLACK * candidate.batch, state.growing)))
    slots = case.pinned.max_num_seqs or slots
    server = SimulatedPool(
        role="serve" if candidate.prefill_layout is None else "decode", layout=candidate.layout, batch=candidate.batch,
        max_num_seqs=slots, queued=bool(seats.capped) or bool(case.pinned.max_num_seqs), chunk=candidate.chunk,
    )  # fmt: skip
    if candidate.prefill_layout is None:
        return (server,)
    prompts = int(candidate.prompts * candidate.prefill_layout.dp)
    return SimulatedPool(role="prefill", layout=candidate.prefill_layout, batch=prompts, max_num_seqs=prompts), server


def neighbours(case: PlanProblem, candidate: Candidate) -> Iterator[Candidate]:
    """Yield candidates that differ in one respect: another chunk, half or twice the prompts of a pass, a replica more or less.

    Args:
        case: Plan problem.
        candidate: Candidate.

    Yields:
        Candidates.
    """
    if candidate.mode == AGGREGATED:
        sizes = chunk_sizes(case.workload, case.evidence, case.pinned.chunk)
        allowed = [int(size) for size in sizes if readable(case.workload, size, candidate.layout)]
        place = allowed.index(candidate.chunk) if candidate.chunk in allowed else 0
        # Mean waits say little about the best chunk where few sequences decode: a prompt read at once is one long step.
        for index in sorted(range(len(allowed)), key=lambda position: abs(position - place)):
            if index != place:
                yield replace(candidate, chunk=allowed[index])
        return
    reader = candidate.prefill_layout
    assert reader is not None
    for prompts in {max(1, candidate.prompts // 2), candidate.prompts * 2} - {candidate.prompts}:
        yield replace(candidate, prompts=prompts)
    domain = float(case.system.scale_up.size)
    domains = case.used // int(domain) if case.symmetric_domains else 1
    counts, replicas = pairs(domain, case.used // domains, int(reader.chips), int(candidate.layout.chips))
    choices = [(int(count) * domains, int(decoders) * domains) for count, decoders in zip(counts, replicas, strict=True)]
    current = int(np.argmin([abs(count - int(reader.replicas)) for count, _ in choices])) if choices else 0
    for near in (current - 1, current + 1):
        if 0 <= near < len(choices):
            count, decoders = choices[near]
            yield replace(
                candidate, prefill_layout=replace(reader, replicas=count), layout=replace(candidate.layout, replicas=decoders)
            )
