"""Plans against the best of all layouts, chunks and pools, each simulated: what the search of `steptime plan` misses.

`python benchmarks/exhaustive_plans.py [COUNT [FIRST]]` draws COUNT small questions (30) as `docs/replayed_plans.py` does. It
prints the cost of each plan over that of the best candidate of an exhaustive simulation, in some ten minutes on two cores.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

from replayed_plans import Question, question

from steptime.catalog.hardware_loading import resolve_system
from steptime.errors import Impossible
from steptime.models.model_loading import resolve_model
from steptime.physics.layout_space import pairs
from steptime.planning import planner
from steptime.planning.finalists import _confirmed, simulate_candidate
from steptime.planning.pd_matching import LARGEST_PASS
from steptime.planning.plan_problem import (
    AGGREGATED,
    DISAGGREGATED,
    Candidate,
    PlanProblem,
    evaluate_prefill,
    evaluate_state,
    runs,
    steady_state,
)
from steptime.planning.plan_search import chunk_sizes, fitting
from steptime.planning.steady_state import fresh_tokens

COUNT, FIRST, LARGEST_CHIPS, MOST_CANDIDATES = 30, 5000, 8, 4000
# Factors of the limit on TPOT at which the closed forms choose the slots of a candidate.
SLOT_LEVELS = (1.0, 1.5)
# Best candidates that are confirmed on other draws, as a plan's are.
CONFIRMED = 12


def problem(asked: Question) -> PlanProblem:
    """Return the problem of a question, over layouts of any evidence."""
    model, system = resolve_model(asked.model), resolve_system(asked.system)
    case = planner._make_problem(model, system, asked.workload, asked.slo, asked.percentile, asked.chips, None, None)
    return replace(case, front=False)


def decode_batches(case: PlanProblem, candidate: Candidate) -> Iterator[float]:
    """Yield the largest batches of a candidate within memory and each level of the limit on TPOT."""
    unit = candidate.layout.dp * candidate.layout.microbatches
    grid = unit * 2.0 ** np.arange(0, 13, 0.5)
    state = steady_state(case, candidate.mode, candidate.layout, grid, max(candidate.chunk, 1))
    batches = set()
    for level in SLOT_LEVELS:
        good = np.nonzero(state.memory.fits & (state.tpot <= level * case.limits.tpot))[0]
        batches.add(float(grid[good[-1]]) if len(good) else float(grid[0]))
    yield from sorted(batches)


def candidates(case: PlanProblem, modes: tuple[str, ...]) -> Iterator[Candidate]:
    """Yield every layout with every chunk, and every pair of pools with every number of prompts in a pass."""
    layouts = [replace(layout, replicas=case.chips // int(layout.chips)) for layout in fitting(case)]
    if AGGREGATED in modes:
        for layout in layouts:
            for chunk in chunk_sizes(case.workload):
                base = Candidate(mode=AGGREGATED, layout=layout, batch=1, chunk=int(chunk))
                yield from (replace(base, batch=batch) for batch in decode_batches(case, base))
    if DISAGGREGATED not in modes:
        return
    largest = max(1.0, LARGEST_PASS // fresh_tokens(case.workload))
    for reader in layouts:
        if not runs(case, reader, "prefill"):
            continue
        for decoder in layouts:
            if not runs(case, decoder, "decode"):
                continue
            shared = pairs(float(case.system.scale_up.size), case.chips, int(reader.chips), int(decoder.chips))
            for readers, decoders in zip(*shared, strict=True):
                for prompts in 2 ** np.arange(0, 1 + int(np.log2(largest))):
                    base = Candidate(
                        mode=DISAGGREGATED, batch=1, prompts=int(prompts),
                        layout=replace(decoder, replicas=int(decoders)), prefill_layout=replace(reader, replicas=int(readers)),
                    )  # fmt: skip
                    yield from (replace(base, batch=batch) for batch in decode_batches(case, base))


def fits(case: PlanProblem, candidate: Candidate) -> bool:
    """Return whether closed forms give the candidate memory for its sequences and prompts."""
    state = evaluate_state(case, candidate, candidate.batch, max(candidate.chunk, 1))
    prefill = evaluate_prefill(case, candidate, state.tpot)
    return bool(state.memory.fits) and (prefill is None or bool(prefill.memory.fits))


def exhaustive(number: int) -> tuple[int, Question, Any, float, str, int, float] | None:
    """Return a question, its plan, and the rate and text of the best of all candidates; None where it is not small."""
    asked = question(0, number)
    if asked.chips > LARGEST_CHIPS:
        return None
    case = problem(asked)
    listed = list(candidates(case, asked.mode))
    if not 2 < len(listed) <= MOST_CANDIDATES:
        return None
    plan = asked.answer(evidence="any")
    started, tops = time.perf_counter(), list[Any]()
    for candidate in listed:
        if not fits(case, candidate):
            continue
        # The best ones are kept; a candidate that serves less than the last of them is not.
        least = tops[-1].run.rate if len(tops) == CONFIRMED else 0.0
        try:
            finalist = simulate_candidate(case, candidate, least)
        except Impossible:
            continue
        if finalist is not None:
            tops = sorted([*tops, finalist], key=lambda top: -top.run.rate)[:CONFIRMED]
    best, text = 0.0, "nothing"
    for top in tops:
        if top.run.rate <= best:
            break
        now = _confirmed(case, top, best)
        if now is not None and now.run.rate > best:
            c = now.candidate
            best, text = now.run.rate, f"{c.text} chunk {c.chunk} prompts {c.prompts} batch {c.batch:g}"
    return number, asked, plan, best, text, len(listed), time.perf_counter() - started


def main(count: int = COUNT, first: int = FIRST) -> None:
    """Print each question's cost over the exhaustive best, and the summary."""
    ratios: list[float] = []
    with ProcessPoolExecutor(2) as pool:
        jobs = [pool.submit(exhaustive, number) for number in range(first, first + 12 * count)]
        for job in as_completed(jobs):
            row = job.result() if not job.cancelled() else None
            if row is None:
                continue
            number, asked, plan, rate, text, tried, seconds = row
            planned = plan.requests_per_second if plan.feasible else 0.0
            if not planned and not rate:
                continue
            ratios.append(rate / planned if planned else float("inf"))
            load, pools = asked.workload, [(pool.chunk, pool.max_num_seqs) for pool in plan.pools] if planned else ""
            print(
                f"{number} {asked.model} {asked.chips} x {asked.system} {load.input_tokens}/{load.output_tokens} "
                f"cached {load.cached_share:.2f} spread {load.input_spread:g}/{load.output_spread:g} {asked.percentile}: "
                f"{ratios[-1] - 1:+.1%}; plan {plan.layout_text if planned else 'none'} "
                f"{pools}; best of {tried}: {text} ({seconds:.0f} s)",
                flush=True,
            )
            if len(ratios) == count:
                # Questions that are still under way may take many minutes.
                for process in list(pool._processes.values()):
                    process.terminate()
                break
    above = np.array(ratios) - 1
    print(f"{len(above)} questions: plan dearer by {np.median(above):+.1%} at the median, {above.max():+.1%} at worst")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
