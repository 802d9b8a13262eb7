"""Finalists of a search: the candidates that are simulated, and the best of them.

A search ranks candidates by mean waits. How much longer the waits at a percentile are depends on the candidate: a prefill pool
that is nearly full has long ones. Therefore finalists come from several levels of the target (`target_levels`), and each serves
requests one by one (`simulated_rate`). The neighbours of the best one are tried too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from steptime.errors import Impossible
from steptime.number_checks import MOST_SEQUENCES
from steptime.physics.layout import Layout, stacked
from steptime.physics.speculative_step import drafted_sequences
from steptime.planning.evidence import ANY
from steptime.planning.pd_matching import replica_counts
from steptime.planning.plan_as_traffic import STEP_TOKENS
from steptime.planning.plan_problem import (
    AGGREGATED,
    DISAGGREGATED,
    Candidate,
    PlanProblem,
    Table,
    capped_occupancy,
    evaluate_state,
    runs,
    steady_state,
    uncapped_occupancy,
)
from steptime.planning.plan_search import (
    EARLIEST_SIMULATED,
    LATER,
    LEAST_CHUNK,
    LEAST_USUAL_CHUNK,
    best_of_families,
    best_of_prefill_layouts,
    chunk_sizes,
    fitting,
    ranking,
    search,
)
from steptime.planning.prefill_pool import prefill_pool
from steptime.planning.rate_curve import FAR_BEYOND, GRID, MOST_STEPS, Curve, confirmed_by, place_below, worst
from steptime.planning.session_loop import FIRST_TURNS, TURNS, SessionLoop
from steptime.planning.simulated_rate import (
    COARSE_SEQUENCES,
    CONFIRM_FACTORS,
    CONFIRM_SEEDS,
    CONFIRM_TOKENS,
    FEW_PIPELINE_TOKENS,
    FEW_REQUESTS,
    LEAST_REQUESTS,
    LIFETIMES,
    MANY_FACTOR,
    PIPELINE_FACTOR,
    TOKENS_PER_STEP,
    Deployment,
    Loop,
    Run,
)
from steptime.planning.slo_probability import effective_targets, target_levels
from steptime.planning.steady_state import (
    MOST_UTILISED,
    context_deviation,
    fresh_tokens,
    mean_context,
    seats_for,
)
from steptime.workload.workload import Slo, decode_steps

# The latest limit on TTFT that is tried, over the estimate of the earliest one.
MOST_LATE = 8.0
# Factors of the TPOT at a percentile over its mean: of long outputs in separate pools, and next to prefill chunks.
TPOT_LEVELS = (1.0, 1.2)
# Factors on the limit on TPOT for the best of each family: with few long prompts in flight, closed forms overestimate it.
FAMILY_LEVELS = (1.0, 3.0)
# Rows of a search that become finalists, of each level.
ROWS = 4
# Searches around the best finalist, and sequences in a pipeline from which there is no search.
ROUNDS = 2
# Turns of search and confirmation: the second one where the best finalist was lucky.
CHECKS = 2
MANY_SEQUENCES = 5000
# Sequences in a replica up to which more slots are tried with each chunk: closed forms of so few are least certain.
FEW_SLOTS = 8
# Share of the rate of a prefill pool that another one of its chips must have to be tried.
AS_FAST = 0.7
# Most chips of such a pool, over its chips.
MOST_LARGER = 1.5
# Most such pools, and prefill replicas among which a queue is as short as that of one pipeline.
READERS, MANY_READERS = 8, 16
# Least and largest factor on the length of a run that confirms a candidate roughly, and that of a rough run of a pipeline.
LEAST_ROUGH_FACTOR, ROUGH_FACTOR, ROUGH_PIPELINE_FACTOR = 1.5, 4.0, 0.25
# Fewest replicas of a large prefill pool, and factors on them: its chips come from the decode pool or go to it.
LARGE_POOL, POOL_FACTORS = 8, (0.87, 1.15)
# Share of the highest rate that the best finalist of a mode must have for its neighbours to be tried.
ALMOST_AS_GOOD = 0.8
# Relative gain of a larger chunk from which the next larger one is tried too.
CHUNK_GAIN = 0.002
# Output tokens of a run that confirms pools on two systems.
PAIR_TOKENS = 20_000_000
# Share of the rate that a finalist may lose to other draws.
LARGE_LOSS = 0.06
# Finalists that are confirmed in any case; further ones only if the largest gain of those would make them better.
LEAST_CHECKED = 3
# Most finalists that are confirmed with turns of sessions.
MOST_WITH_TURNS = 3
# Share of its slots that a full pool has taken.
FULL_SHARE = 0.98
# Rates that are tried until a candidate meets the limits, and after how many those are dropped that are too late when alone.
MOST_LEVELS, QUIET_LEVEL = 24, 3
# Factor on the rate of closed forms up to which a candidate is among the first ones that may serve it.
HOPEFUL = 1.3
# Largest exponent with which a figure follows the rate, from which the next rate for a candidate beyond its limits follows.
STEEPEST = 6.0
# Factor on bounds by closed forms, whose passes and steps are those of mean requests.
SPARE_BOUND = 1.1
# Longest wait for the first token at the start of a run, over the time from there to the last one.
MOST_WAITING = 2.0
# Sequences in flight for which slots are kept, over those of the candidate.
SLACK = 1.4
# Standard deviations of all contexts that the slots of a decode pool leave free in its memory.
DEVIATIONS_FREE = 1.0


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
            # Simulation compares numbers of redundant experts of the best design alone (`other_copies`).
            kinds.setdefault((candidate.design, candidate.prompts), candidate)
            if len(kinds) == (1 if case.rough else ROWS):
                break
        for candidate in kinds.values():
            usual = usual_chunk(case, candidate)
            # A lower target gives the same layout fewer slots. More slots mostly serve what fewer ones do.
            key = usual.same, usual.prompts, usual.chunk
            finalists[key] = max(finalists.get(key, usual), usual, key=lambda entry: entry.batch)
    # Candidates that closed forms may underestimate; rough searches have none.
    challengers: list[Candidate] = []
    for level in () if case.rough else levels:
        for factor in FAMILY_LEVELS:
            challengers += best_of_families(replace(case, slo=replace(level, tpot=level.tpot * factor)), tables)
        challengers += best_of_prefill_layouts(replace(case, slo=level), tables)
    for candidate in challengers:
        usual = usual_chunk(case, candidate)
        if all(usual.same != finalist.same for finalist in finalists.values()):
            finalists[usual.same, usual.prompts, usual.chunk] = usual
    return list(finalists.values())


def usual_chunk(case: PlanProblem, candidate: Candidate) -> Candidate:
    """Return a candidate with a chunk that engines have: several short prompts share one."""
    if candidate.mode != AGGREGATED or case.pinned.chunk:
        return candidate
    chunk = max(candidate.chunk, LEAST_CHUNK if case.evidence == ANY else LEAST_USUAL_CHUNK)
    is_varied = float(case.workload.input_spread) > 0
    return replace(candidate, chunk=int(2 ** math.ceil(math.log2(chunk))) if is_varied else chunk)


def simulate_finalists(case: PlanProblem, candidates: Sequence[Candidate]) -> list[Finalist]:
    """Simulate candidates and the neighbours of the best one.

    Args:
        case: Plan problem.
        candidates: Candidates.

    Returns:
        Finalists that meet the limits, the highest rate first.
    """
    finalists: dict[Candidate, Finalist | None] = {}
    checked: dict[Candidate, Finalist | None] = {}
    losses: dict[object, float] = {}
    # Rates of confirmed candidates with other draws, over their first rates.
    gains: list[float] = []
    # Their designs, and candidates whose neighbours were tried.
    designs, explored_leaders = set[object](), set[Candidate]()
    # Rate above which each candidate was sought.
    floors: dict[Candidate, float] = {}

    def expected(finalist: Finalist) -> float:
        """Return a rate; after a lucky finalist, those of its layout are expected to lose as much."""
        lost = losses.get(_design(finalist.candidate), 1.0) if finalist.candidate not in checked else 1.0
        return float(finalist.run.rate) * lost

    def ranking() -> list[Finalist]:
        return sorted((finalist for finalist in (finalists | checked).values() if finalist), key=lambda entry: -expected(entry))

    def add(candidates: Sequence[Candidate], least: float = 0.0, by_mode: bool = False) -> None:
        expected_figures(case, candidates)
        for candidate in candidates:
            leader = next((entry for entry in ranking() if not by_mode or entry.candidate.mode == candidate.mode), None)
            # Other draws may change the order of those that are almost as good.
            floors[candidate] = least or (leader.run.rate / GRID if leader else served)
            is_useful = not _is_never_filled(case, candidate, finalists)
            finalists[candidate] = simulate_candidate(case, candidate, floors[candidate]) if is_useful else None

    served = case.at_least or highest_met(case, candidates)
    if not served and not case.rough:
        candidates = sooner_readers(case, candidates)
        served = highest_met(case, candidates)
    if not served:
        return []
    add(candidates)
    for check in range(CHECKS):
        for _ in range(0 if case.rough else ROUNDS):
            leaders = _leaders(ranking())
            explored_leaders.update(leader.candidate for leader in leaders)
            # A neighbour of the best of its mode may be on the way to a better one.
            add(list(dict.fromkeys(entry for leader in leaders for entry in _similar(case, leader, finalists))), by_mode=True)
            # The neighbours of a better one are tried too.
            if _leaders(ranking()) == leaders:
                break

        # The next one is confirmed only if it served more than the best of those that are, and than the minimum rate.
        top = max((entry.run.rate for entry in checked.values() if entry), default=case.at_least)
        for finalist in ranking():
            if case.turns is not None and len(checked) >= MOST_WITH_TURNS:
                break
            # With other draws, none is taken to gain more than the largest gain of those confirmed: of designs like it, or of
            # several.
            is_known = len(gains) >= LEAST_CHECKED and (len(designs) >= LEAST_CHECKED or finalist.candidate.design in designs)
            # The best of another mode may gain what a lucky one loses.
            is_first = finalist.candidate.mode not in {candidate.mode for candidate in checked}
            gain = 1 + LARGE_LOSS if is_first else max(gains) if is_known else 1.0
            if top >= expected(finalist) * gain:
                continue
            if finalist.candidate not in checked:
                checked[finalist.candidate] = now = _confirmed(case, finalist, top)
                top = max(top, now.run.rate if now else 0.0)
                gains.append((now.run.rate if now else top) / finalist.run.rate)
                designs.add(finalist.candidate.design)
        lucky = [first for key in checked if (first := finalists[key]) and top < (1 - LARGE_LOSS) * first.run.rate]
        # The best one by other draws may have neighbours that were not tried.
        best = next((finalist for finalist in ranking() if checked.get(finalist.candidate)), None)
        has_all = best is None or (not lucky and best.candidate in explored_leaders)
        if case.rough or case.turns is not None or has_all or check == CHECKS - 1:
            break
        losses = {_design(first.candidate): top / first.run.rate for first in lucky}
        # A finalist that was worse than a lucky one may be better than the lucky one after its correction.
        add([candidate for candidate, finalist in finalists.items() if finalist is None and floors[candidate] > top], least=top)
    confirmed_ones = [finalist for finalist in ranking() if finalist.candidate in checked]
    # A rate that was not confirmed and exceeds the best one is not to be compared with it.
    below = [finalist for finalist in ranking() if finalist.candidate not in checked and finalist.run.rate <= top]
    return confirmed_ones + (below if confirmed_ones else [])


def _is_never_filled(case: PlanProblem, candidate: Candidate, finalists: Mapping[Candidate, Finalist | None]) -> bool:
    """Return whether no step fills a candidate's chunk: of two smaller ones with whole prompts, the larger gains nothing."""
    rates = sorted(
        (smaller.chunk, finalist.run.rate)
        for smaller, finalist in finalists.items()
        if finalist and fresh_tokens(case.workload) <= smaller.chunk < candidate.chunk
        and replace(smaller, chunk=candidate.chunk) == candidate
    )  # fmt: skip
    return len(rates) > 1 and rates[-1][1] <= (1 + CHUNK_GAIN) * rates[-2][1]


def _design(candidate: Candidate) -> tuple[object, ...]:
    """Return the layout and the batch of a candidate: its chunk changes little of what a rate loses with other draws."""
    return *candidate.same, candidate.batch


def _leaders(ranking: Sequence[Finalist]) -> list[Finalist]:
    """Return the best finalist of each mode that is almost as good as the best of all: its neighbours may be better."""
    best: dict[str, Finalist] = {}
    for finalist in ranking:
        best.setdefault(finalist.candidate.mode, finalist)
    return [finalist for finalist in best.values() if finalist.run.rate >= ALMOST_AS_GOOD * ranking[0].run.rate]


def _similar(case: PlanProblem, leader: Finalist, finalists: Iterable[Candidate]) -> list[Candidate]:
    """Return candidates that are like a finalist and are no finalists; none where their runs would take seconds."""
    if _is_slow(case, leader.candidate):
        return []
    similar = [*neighbours(case, leader.candidate), *with_chunks_of(case, leader.candidate, finalists)]
    similar += [*other_copies(case, leader.candidate), *other_divisions(case, leader.candidate)]
    similar += other_pairs(case, leader.candidate, finalists)
    reader = leader.candidate.prefill_layout
    # Where steps with all slots are too slow for the percentile, fewer slots may serve more.
    if reader is not None and reader.replicas >= LARGE_POOL and leader.run.binding == "speed":
        similar.append(replace(leader.candidate, batch=leader.candidate.batch / math.sqrt(2)))
    if reader is not None and _has_full_slots(case, leader):
        similar.append(replace(leader.candidate, batch=leader.candidate.batch * math.sqrt(2)))
    # A pool of other readers helps where prompts wait for it.
    if reader is not None and leader.run.binding in ("first token", "prefill rate") and reader.replicas <= MANY_READERS:
        similar += other_readers(case, leader.candidate)
    return [neighbour for neighbour in dict.fromkeys(similar) if neighbour not in finalists]


def _has_full_slots(case: PlanProblem, leader: Finalist) -> bool:
    """Return whether all slots of a decode pool are taken, its steps are fast enough, and more sequences fit."""
    if leader.run.binding != "saturation":
        return False
    slots, candidate = leader.pools[-1].max_num_seqs, leader.candidate
    largest = min(case.slots, case.pinned.max_num_seqs or math.inf, _fitting_sequences(case, candidate.layout))
    return leader.run.batch >= FULL_SHARE * slots and slots < largest


def _is_slow(case: PlanProblem, candidate: Candidate) -> bool:
    """Return whether runs take seconds: a pipeline runs each step of each micro-batch."""
    is_long = FEW_REQUESTS * float(case.workload.output_tokens) > FEW_PIPELINE_TOKENS / 2
    return bool(candidate.layout.pp > 1) and (candidate.batch > MANY_SEQUENCES or is_long)


def simulate_candidate(case: PlanProblem, candidate: Candidate, least: float) -> Finalist | None:
    """Return a candidate at its highest rate within the limits.

    Args:
        case: Plan problem.
        candidate: Candidate.
        least: Rate below which none is sought [requests/s].

    Returns:
        The finalist; None where no rate above `least` meets the limits.
    """
    course = _course(case, candidate)
    # Bounds by closed forms cost less than the step times of a loop.
    if not course.rate or (least and not course.may_meet(place_below(least))) or course.loop is None:
        return None
    if not (course.meets(place_below(least)) if least else course.may_serve()):
        return None
    highest = course.curve.highest(course.limits, least or course.rate, least)
    return None if highest is None else Finalist(candidate=candidate, pools=course.pools, run=highest)


def highest_met(case: PlanProblem, candidates: Sequence[Candidate]) -> float:
    """Return a rate that some candidate serves within the limits, and hardly any serves more; 0 where none serves any.

    From the highest rate of closed forms, it falls until a candidate meets the limits. Runs that miss them stop early.

    Args:
        case: Plan problem.
        candidates: Candidates.

    Returns:
        Requests/s.
    """
    expected_figures(case, candidates)
    courses = [course for course in (_course(case, candidate) for candidate in candidates) if course.rate > 0]
    if not courses:
        return 0.0
    place = place_below(max(course.rate for course in courses))
    for level in range(MOST_LEVELS):
        for course in courses:
            is_hopeful = GRID**place <= min(HOPEFUL * course.rate, course.hoped) and course.may_meet(place)
            if not is_hopeful or course.loop is None or (level >= QUIET_LEVEL and not course.may_serve()):
                continue
            if course.meets(place):
                return GRID**place
        place -= min(1 + level, MOST_STEPS)
    return 0.0


def earliest_first_token(case: PlanProblem, modes: tuple[str, ...], layouts: list[Layout], estimate: float) -> float:
    """Return the earliest first token at the percentile that a plan gives, to the factor `EARLIEST_SIMULATED`.

    Args:
        case: Plan problem. Its limit on TPOT holds.
        modes: Modes to search.
        layouts: Layouts to search.
        estimate: About the result, by closed forms [s].

    Returns:
        A limit on TTFT that can be met [s]; the limit of the problem if that can be met, and infinity if none is found.
    """

    def is_met(limit: float) -> bool:
        slo = replace(case.limits, ttft=limit)
        levels = tuple(target_levels(case.workload, slo, case.percentile, simulated=True))
        problem = replace(case, limits=slo, slo=levels[0], levels=levels, rough=True, front=False, turns=None)
        return bool(simulate_finalists(problem, list_finalists(problem, search(problem, modes, layouts), levels)))

    low, high = case.limits.ttft, max(case.limits.ttft, estimate)
    while not is_met(high):
        if high > MOST_LATE * estimate:
            return math.inf
        low, high = high, LATER * high
    while high > EARLIEST_SIMULATED * low:
        limit = max(math.sqrt(low * high), high / LATER)
        low, high = (low, limit) if is_met(limit) else (limit, high)
    return high


class Course:
    """Runs of a candidate whose figures do not depend on limits.

    Args:
        case: Plan problem.
        candidate: Candidate.
    """

    def __init__(self, case: PlanProblem, candidate: Candidate) -> None:
        self.case = case
        self.limits = _limits(case, candidate)
        expected = expected_figures(case, [candidate])[0]
        decoding = (float(decode_steps(case.workload, case.speculation)) + 1) * expected.tpot
        # Rate of the batch of the candidate with a prefill pool that is nearly full [requests/s], and its times [s].
        self.rate = min(expected.rate, expected.prefill_rate * MOST_UTILISED) if math.isfinite(expected.tpot) else 0.0
        self.tpot, self.ttft = expected.tpot, min(expected.ttft, MOST_WAITING * decoding)
        self.prefill_share = expected.prefill_share
        if candidate.prefill_layout is not None:
            self.ttft = expected.ttft
        self.pools = simulated_pools(case, candidate)
        self.deployment = _deployment(case, self.pools)
        # A token of more sequences takes no less time, so that no rate is above this one [requests/s].
        growth = max(self.pools[-1].max_num_seqs / candidate.batch, 1.0)
        self.bound = min(expected.rate * growth, expected.prefill_rate) * SPARE_BOUND
        self.curve = Curve(self.run)
        # The lowest place of a run that missed the limits and was stopped, and the rate below which one may meet them.
        self.missed, self.hoped = math.inf, math.inf

    @cached_property
    def loop(self) -> Loop | None:
        """The loop; None where a step of the simulator leaves no room for a request."""
        lifetime = _lifetime(self.case, self.ttft, self.tpot)
        factor = ROUGH_PIPELINE_FACTOR if _is_rough_pipeline(self.case, self.pools[-1].layout) else 1.0
        try:
            return Loop(self.deployment, self.rate, lifetime, first=self.ttft, factor=factor, memo=self.case.memo)
        except Impossible:
            return None

    def run(self, place: float, **settings: bool) -> Run:
        """Return the run at a place of the grid of rates, which starts as the rate and closed forms say."""
        assert self.loop is not None
        rate = GRID**place
        tpot = self.loop.expected_tpot(rate, self.prefill_share * rate / self.rate)
        ttft = min(1.0, rate / self.rate) * self.ttft
        return self.loop.run(rate, self.limits, self.case.percentile, tpot, ttft, **settings)

    def may_meet(self, place: int) -> bool:
        """Return whether no bound and no earlier run says that a rate misses the limits."""
        return place < self.missed and GRID**place <= self.bound

    def meets(self, place: int) -> bool:
        """Return whether a rate meets the limits; runs that miss them stop early, and then are no points of the curve."""
        if not self.may_meet(place):
            return False
        if place not in self.curve.points:
            run = self.run(place, is_check=True)
            if math.isinf(run.mean_ttft):
                self.missed = place
                return False
            self.curve.points[place] = run
        ratio = worst(self.curve.points[place], self.limits)
        if 1 < ratio < math.inf:
            self.hoped = min(self.hoped, GRID**place / ratio ** (1 / STEEPEST))
        return ratio <= 1

    def may_serve(self) -> bool:
        """Return whether requests that are alone meet the limit on the first token."""
        assert self.loop is not None
        if self.rate > 0 and self.quiet_ttft > self.limits.ttft:
            self.missed = -math.inf
        return self.rate > 0 and self.missed > -math.inf

    @cached_property
    def quiet_ttft(self) -> float:
        """TTFT of requests that are alone [s]; 0 without a limit."""
        assert self.loop is not None
        return self.loop.quiet_ttft(self.case.percentile) if math.isfinite(self.limits.ttft) else 0.0


def _is_rough_pipeline(case: PlanProblem, layout: Layout) -> bool:
    return case.rough and int(layout.pp) > 1


def _course(case: PlanProblem, candidate: Candidate) -> Course:
    """Return the runs of a candidate, which are kept."""
    # Rough runs of pipelines are shorter.
    key = "course", candidate, _is_rough_pipeline(case, candidate.layout)
    if key not in case.memo:
        case.memo[key] = Course(case, candidate)
    course: Course = case.memo[key]
    return course


def _deployment(case: PlanProblem, pools: tuple[SimulatedPool, ...]) -> Deployment:
    """Return some pools with the subject of a problem."""
    return Deployment(
        model=case.model,
        system=case.system,
        prefill_system=case.prefill_system,
        engine=case.engine,
        workload=case.workload,
        pools=pools,
        speculation=case.speculation,
    )


def _lifetime(case: PlanProblem, ttft: float, tpot: float) -> float:
    """Return the mean time of a request from its arrival to its last token [s]."""
    tokens = float(decode_steps(case.workload, case.speculation)) * float(case.speculation.acceptance)
    return ttft + tokens * tpot


def _limits(case: PlanProblem, candidate: Candidate) -> Slo:
    """Return the limits of a candidate: those asked for, or lower ones for a probability."""
    if case.sure is None:
        return case.limits
    state = evaluate_state(case, candidate, candidate.batch, max(candidate.chunk, 1))
    tpot, ttft = effective_targets(
        replace(case, slo=case.limits), candidate.layout, candidate.prefill_layout, state.input_share
    )
    return Slo(ttft=float(ttft), tpot=float(tpot))


def _confirmed(case: PlanProblem, finalist: Finalist, least: float) -> Finalist | None:
    """Return a finalist with a longer run on other draws; None where they confirm no rate above `least` [requests/s]."""
    candidate, course = finalist.candidate, _course(case, finalist.candidate)
    limits, start = course.limits, course.curve
    if case.turns is not None:
        # The search leaves time for loads, which runs with sessions contain. Short runs find where a long one begins.
        limits = replace(limits, ttft=limits.ttft + case.turns.load)
        for count, seeds in ((FIRST_TURNS, CONFIRM_SEEDS[:1]), (TURNS, CONFIRM_SEEDS)):
            lifetime = _lifetime(case, finalist.run.mean_ttft, finalist.run.mean_tpot)
            sessions = [
                SessionLoop(course.deployment, finalist.run.rate, lifetime, case.turns, count, memo=case.memo, seed=seed)
                for seed in seeds
            ]
            start = confirmed_by(sessions, limits, case.percentile, start)
            run = start.highest(limits, finalist.run.rate, least)
            if run is None:
                return None
            finalist = replace(finalist, run=run)
        return finalist
    in_flight = course.rate * (course.ttft + float(case.workload.output_tokens) * course.tpot)
    # Where no chips can be moved to a prefill pool, it is often nearly saturated, and its queue settles slowly.
    tokens = CONFIRM_TOKENS if case.prefill_system is None else PAIR_TOKENS
    # A run has at least this number of requests; long prompts then take most of its time.
    requests, reading = LIFETIMES * in_flight, float(case.workload.input_tokens) / TOKENS_PER_STEP
    work = requests * float(case.workload.output_tokens) + max(requests, LEAST_REQUESTS) * reading
    factor, is_pipeline = tokens / work, int(candidate.layout.pp) > 1
    has_many = in_flight > COARSE_SEQUENCES * int(candidate.layout.replicas)
    least_factor = PIPELINE_FACTOR if is_pipeline else MANY_FACTOR if has_many else CONFIRM_FACTORS[0]
    most_factor = CONFIRM_FACTORS[1]
    if case.rough:
        least_factor = min(least_factor, LEAST_ROUGH_FACTOR)
        most_factor = ROUGH_FACTOR
        if is_pipeline:
            least_factor = most_factor = 2 * ROUGH_PIPELINE_FACTOR
    factor = float(np.clip(factor, least_factor, most_factor))
    seeds = CONFIRM_SEEDS[:1] if case.rough else CONFIRM_SEEDS
    settings: dict[str, Any] = {"first": course.ttft, "memo": case.memo, "factor": factor}
    lifetime = _lifetime(case, course.ttft, course.tpot)
    loops = [Loop(course.deployment, course.rate, lifetime, seed=seed, **settings) for seed in seeds]
    # Runs of pipelines are long, and a rough search mostly asks whether more than the minimum rate is served.
    first = least if case.rough and least and is_pipeline else finalist.run.rate
    # A rough search that no other plan is compared with does not ask how far a rate beyond the limits is beyond them.
    far = 1.0 if case.rough and not case.at_least else FAR_BEYOND
    now = confirmed_by(loops, limits, case.percentile, start, far).highest(limits, first, least)
    return None if now is None or now.rate <= least else replace(finalist, run=now)


class Expected(NamedTuple):
    """What closed forms say of a candidate with its batch, as numbers.

    `rate` [requests/s] is that of all decode replicas. `prefill_rate` is that of prefill pools that are never idle: infinite
    without them, and 0 where their prompts do not fit. `tpot` and `ttft` are in s; with a prefill pool, `ttft` is the
    time of a pass. `prefill_share` is the share of the time of decode replicas for prefill. `growing` is the share of a step
    that grows with the batch. `slots` are those of a replica, and `capped`
    says whether requests wait for them.
    """

    rate: float
    prefill_rate: float
    tpot: float
    ttft: float
    prefill_share: float
    growing: float
    slots: int
    capped: bool


def expected_figures(case: PlanProblem, candidates: Iterable[Candidate]) -> list[Expected]:
    """Return what closed forms say of candidates. All of them are evaluated at once, and kept.

    Args:
        case: Plan problem.
        candidates: Candidates.

    Returns:
        Figures in the same order.
    """
    listed = list(candidates)
    for mode in (AGGREGATED, DISAGGREGATED):
        new = [
            candidate
            for candidate in dict.fromkeys(listed)
            if candidate.mode == mode and _key(case, candidate) not in case.memo
        ]
        if new:
            keys = [_key(case, candidate) for candidate in new]
            case.memo.update(zip(keys, _evaluated(case, mode, new), strict=True))
    return [case.memo[_key(case, candidate)] for candidate in listed]


def _key(case: PlanProblem, candidate: Candidate) -> tuple[object, ...]:
    return "expected", candidate, case.slo


def _evaluated(case: PlanProblem, mode: str, candidates: Sequence[Candidate]) -> Iterator[Expected]:
    """Yield what closed forms say of candidates of one mode."""
    layout = stacked([candidate.layout for candidate in candidates])
    batch = np.array([candidate.batch for candidate in candidates], dtype=np.float64)
    chunk = np.array([max(candidate.chunk, 1) for candidate in candidates])
    state = steady_state(case, mode, layout, batch, chunk)
    rate, prefill_rate, ttft = state.rate * layout.replicas, np.full(len(batch), np.inf), state.ttft
    if mode == AGGREGATED:
        aim = effective_targets(case, layout, None, state.input_share)[1]
        seats = capped_occupancy(case, state, batch, layout, aim)
    else:
        seats = uncapped_occupancy(state, batch, layout.replicas)
        readers = stacked([candidate.prefill_layout for candidate in candidates if candidate.prefill_layout is not None])
        prompts = np.array([candidate.prompts for candidate in candidates])
        pool = prefill_pool(case.model, case.prefill.system, case.workload, layout=readers, prompts=prompts, **case.settings)
        prefill_rate = np.where(pool.memory.fits, pool.rate * readers.replicas, 0.0)
        ttft = pool.step.total * (1 + pool.late)
    columns = (
        rate, prefill_rate, state.tpot, ttft, state.input_share, state.growing, seats.max_num_seqs, seats.capped,
    )  # fmt: skip
    rows = zip(*(np.broadcast_to(column, batch.shape).tolist() for column in columns), strict=True)
    yield from (Expected._make((*row[:6], int(row[6]), row[7])) for row in rows)


def simulated_pools(case: PlanProblem, candidate: Candidate) -> tuple[SimulatedPool, ...]:
    """Return the pools of a candidate, with slots for more sequences than its mean.

    Args:
        case: Plan problem.
        candidate: Candidate.

    Returns:
        Pools; the one that decodes is the last.
    """
    expected = expected_figures(case, [candidate])[0]
    slots = expected.slots
    if not expected.capped:
        slots = max(slots, int(seats_for(case.workload, SLACK * candidate.batch, expected.growing)))
    # Sequences beyond the memory of a decode pool would be preempted again and again; they wait in place of that.
    if candidate.prefill_layout is not None:
        slots = min(slots, max(_fitting_sequences(case, candidate.layout), math.ceil(candidate.batch)))
    is_short, slots = slots > case.slots, case.pinned.max_num_seqs or int(min(slots, case.slots))
    server = SimulatedPool(
        role="serve" if candidate.prefill_layout is None else "decode", layout=candidate.layout, batch=candidate.batch,
        max_num_seqs=slots, queued=expected.capped or is_short or bool(case.pinned.max_num_seqs), chunk=candidate.chunk,
    )  # fmt: skip
    if candidate.prefill_layout is None:
        return (server,)
    prompts = int(candidate.prompts * candidate.prefill_layout.dp)
    return SimulatedPool(role="prefill", layout=candidate.prefill_layout, batch=prompts, max_num_seqs=prompts), server


def _fitting_sequences(case: PlanProblem, layout: Layout) -> int:
    r"""Return the sequences that fit in the memory of a replica, also when their contexts are long; they are kept.

    $N$ contexts with the mean $L$ and the standard deviation $s$ take up to $N L + k s \sqrt N$ tokens, with
    $k$ = `DEVIATIONS_FREE`.
    """
    key = "fitting", layout
    if key not in case.memo:
        mean_tokens, spare_tokens = (
            float(mean_context(case.workload)),
            DEVIATIONS_FREE * float(context_deviation(case.workload)),
        )
        mean_sequences = drafted_sequences(
            case.model, case.system, context=mean_tokens, drafts=case.speculation.drafts, layout=layout, engine=case.engine,
            step_tokens=STEP_TOKENS,
        )  # fmt: skip
        count = min(max(float(np.asarray(mean_sequences)), 0.0), float(MOST_SEQUENCES))
        case.memo[key] = int(
            ((math.sqrt(spare_tokens**2 + 4 * mean_tokens**2 * count) - spare_tokens) / (2 * mean_tokens)) ** 2
        )
    sequences: int = case.memo[key]
    return sequences


def neighbours(case: PlanProblem, candidate: Candidate) -> Iterator[Candidate]:
    """Yield candidates that differ in one respect.

    It is another chunk, twice as many slots, half or twice the prompts of a pass, or a replica more or less. Where slots are
    few, it is also another chunk with twice as many.

    Args:
        case: Plan problem.
        candidate: Candidate.

    Yields:
        Candidates.
    """
    if candidate.mode == AGGREGATED:
        sizes = chunk_sizes(case.workload, case.evidence, case.pinned.chunk)
        allowed = list(dict.fromkeys(usual_chunk(case, replace(candidate, chunk=int(size))).chunk for size in sizes))
        place = allowed.index(candidate.chunk) if candidate.chunk in allowed else 0
        # Mean waits say little about the best chunk where few sequences decode: a prompt read at once is one long step.
        nearest = [allowed[index] for index in sorted(range(len(allowed)), key=lambda position: abs(position - place))]
        yield from (replace(candidate, chunk=chunk) for chunk in nearest if chunk != candidate.chunk)
        chunks = nearest if candidate.batch <= FEW_SLOTS else [candidate.chunk]
        yield from (replace(candidate, chunk=chunk, batch=2 * candidate.batch) for chunk in chunks)
        return
    reader = candidate.prefill_layout
    assert reader is not None
    for prompts in {max(1, candidate.prompts // 2), candidate.prompts * 2} - {candidate.prompts}:
        yield replace(candidate, prompts=prompts)
    if case.prefill_system is not None:
        return
    choices = _divisions(case, reader, candidate.layout)
    counts = np.array([count for count, _ in choices], dtype=np.float64)
    current = int(np.argmin(np.abs(counts - reader.replicas))) if choices else 0
    # Steps of one replica are too small for large pools.
    factors = POOL_FACTORS if choices and reader.replicas >= LARGE_POOL else ()
    wider = [int(np.argmin(np.abs(counts - factor * reader.replicas))) for factor in factors]
    places = dict.fromkeys((current - 1, current + 1, *wider))
    yield from (_with_pools(candidate, reader, *choices[place]) for place in places if 0 <= place < len(choices))


def _divisions(case: PlanProblem, reader: Layout, decoder: Layout) -> list[tuple[int, int]]:
    """Return the numbers of prefill and decode replicas that fit together, the fewest prefill replicas first."""
    domains = case.used // int(case.system.scale_up.size) if case.symmetric_domains else 1
    counts, replicas = replica_counts(case, int(reader.chips), int(decoder.chips))
    return [(int(count) * domains, int(decoders) * domains) for count, decoders in zip(counts, replicas, strict=True)]


def _with_pools(candidate: Candidate, reader: Layout, readers: int, decoders: int) -> Candidate:
    """Return a candidate with another prefill layout, and other numbers of replicas."""
    return replace(
        candidate, prefill_layout=replace(reader, replicas=readers), layout=replace(candidate.layout, replicas=decoders)
    )


def with_chunks_of(case: PlanProblem, leader: Candidate, candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    """Yield other aggregated layouts with the chunk of the best one, and with the smallest chunk.

    Args:
        case: Plan problem.
        leader: Best candidate.
        candidates: Candidates.

    Yields:
        Candidates.
    """
    if case.pinned.chunk:
        return
    chunks = dict.fromkeys(usual_chunk(case, replace(leader, mode=AGGREGATED, chunk=size)).chunk for size in (1, leader.chunk))
    layouts = {
        candidate.same: candidate for candidate in candidates if candidate.mode == AGGREGATED and candidate.same != leader.same
    }
    yield from (replace(candidate, chunk=chunk) for candidate in layouts.values() for chunk in chunks)


def other_pairs(case: PlanProblem, leader: Candidate, candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    """Yield candidates with the prefill pool of the best one, in any micro-batches, and the decode pools of all.

    A search keeps few prefill layouts for each decode layout, by mean waits. Chips that another decode pool leaves prefill.

    Args:
        case: Plan problem.
        leader: Best candidate.
        candidates: Candidates.

    Yields:
        Candidates.
    """
    reader = leader.prefill_layout
    if reader is None or case.prefill_system is not None:
        return
    same_axes = {"microbatches": reader.microbatches, "replicas": reader.replicas}
    readers = [layout for layout in fitting(case.prefill) if replace(layout, **same_axes) == reader]
    decoders = {pair.layout: pair.batch for pair in candidates if pair.prefill_layout is not None}
    for layout, batch in decoders.items():
        count = max((count for count, replicas in _divisions(case, reader, layout) if replicas == layout.replicas), default=0)
        for proposal in readers if count else ():
            # Each micro-batch keeps its prompts.
            prompts = max(1, leader.prompts * int(proposal.microbatches) // int(reader.microbatches))
            prefill_layout = replace(proposal, replicas=count)
            yield replace(leader, layout=layout, batch=batch, prefill_layout=prefill_layout, prompts=prompts)


def other_readers(case: PlanProblem, candidate: Candidate) -> Iterator[Candidate]:
    """Yield candidates whose prefill pool divides its chips, or about as many, in another way.

    Mean waits do not show that one queue in front of a pipeline keeps the longest waits shorter than several queues do.

    Args:
        case: Plan problem.
        candidate: Candidate with a prefill pool.

    Yields:
        Candidates.
    """
    reader = candidate.prefill_layout
    assert reader is not None
    chips = int(reader.chips * reader.replicas)
    # Each layout with the number of replicas that comes closest to the chips of the pool: few sizes divide them.
    layouts: list[Layout] = []
    pools: list[Candidate] = []
    for layout in fitting(case.prefill):
        size = int(layout.chips)
        divisions = [counts for counts in _divisions(case, layout, candidate.layout) if counts[0] * size <= MOST_LARGER * chips]
        if divisions:
            readers, decoders = min(divisions, key=lambda counts: abs(counts[0] * size - chips))
            layouts.append(replace(layout, replicas=readers))
            pools.append(_with_pools(candidate, layout, readers, decoders))
    table = stacked([*layouts, reader])
    pool = prefill_pool(
        case.model, case.prefill.system, case.workload, layout=table, prompts=candidate.prompts, **case.settings
    )
    rates = np.where(pool.memory.fits & runs(case.prefill, table, "prefill"), pool.rate * table.replicas, 0.0)
    fast = [index for index in np.argsort(-rates[:-1]) if rates[index] >= AS_FAST * rates[-1]]
    # Of layouts that differ only in redundant experts, the fastest.
    designs: dict[Layout, Candidate] = {}
    for index in fast:
        designs.setdefault(replace(layouts[index], redundant_experts=0), pools[index])
    yield from [variant for variant in designs.values() if variant.prefill_layout != reader][:READERS]


def sooner_readers(case: PlanProblem, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates with prefill pools that read a lone prompt sooner than those of any candidate.

    A search prefers pools that read many prompts. Where the first token of a lone request is late, those that read a prompt on
    several chips may still be in time.

    Args:
        case: Plan problem.
        candidates: Candidates that all miss the limits.

    Returns:
        Candidates, the soonest first.
    """
    readers = {candidate: candidate.prefill_layout for candidate in candidates if candidate.prefill_layout is not None}
    if not readers or math.isinf(case.limits.ttft):
        return []
    layouts = fitting(case.prefill)
    table = stacked([*layouts, *readers.values()])
    pool = prefill_pool(case.model, case.prefill.system, case.workload, layout=table, prompts=1, **case.settings)
    seconds = np.where(pool.memory.fits & runs(case.prefill, table, "prefill"), pool.time.first * (1 + pool.late), math.inf)
    soonest = np.min(seconds[len(layouts) :])
    # The first decode layout that leaves room for the prefill pool.
    designs: dict[Layout, Candidate] = {}
    for index in np.argsort(seconds[: len(layouts)]):
        layout = layouts[index]
        divided = ((pair, counts) for pair in readers for counts in _divisions(case, layout, pair.layout))
        pair, counts = next(divided, (None, (0, 0)))
        if seconds[index] >= soonest or len(designs) == READERS:
            break
        if pair is not None:
            sooner = replace(_with_pools(pair, layout, *counts), prompts=1)
            designs.setdefault(replace(layout, redundant_experts=0), sooner)
    return list(designs.values())


def other_copies(case: PlanProblem, candidate: Candidate) -> Iterator[Candidate]:
    """Yield candidates with another number of redundant experts in one pool, or with its experts divided in another way.

    Closed forms have almost the same time for experts in slices on all chips and for whole experts, which load chips unequally.

    Args:
        case: Plan problem.
        candidate: Candidate.

    Yields:
        Candidates.
    """
    for name, problem in (("layout", case), ("prefill_layout", case.prefill)):
        layout = getattr(candidate, name)
        if layout is None:
            continue
        for proposal in fitting(problem):
            # Copies of another division are tried once it is the best one.
            is_other_division = int(proposal.ep) != int(layout.ep) and int(proposal.redundant_experts)
            if is_other_division or (proposal.tp, proposal.pp, proposal.dp) != (layout.tp, layout.pp, layout.dp):
                continue
            variant = replace(layout, ep=proposal.ep, redundant_experts=proposal.redundant_experts)
            if variant == replace(proposal, replicas=layout.replicas) and variant != layout:
                yield replace(candidate, **{name: variant})


def other_divisions(case: PlanProblem, candidate: Candidate) -> Iterator[Candidate]:
    """Yield aggregated candidates of twice the replicas with half the data-parallel ranks, or the reverse, and any copies.

    Closed forms do not show how much redundant experts gain, so that they compare large replicas with small ones badly.

    Args:
        case: Plan problem.
        candidate: Candidate.

    Yields:
        Candidates.
    """
    layout = candidate.layout
    if candidate.mode != AGGREGATED or int(layout.ep) == 1:
        return
    for proposal in fitting(case):
        is_half, is_double = _is_double(proposal, layout), _is_double(layout, proposal)
        if is_half or is_double:
            batch = max(candidate.batch / 2, 1.0) if is_half else 2 * candidate.batch
            replicas = case.used // int(proposal.chips)
            yield replace(candidate, layout=replace(proposal, replicas=replicas), batch=batch)


def _is_double(half: Layout, double: Layout) -> bool:
    """Return whether a layout has twice the data-parallel ranks and groups of experts, apart from replicas and copies."""
    if 2 * half.dp != double.dp or 2 * half.ep != double.ep:
        return False
    changed = {"replicas": double.replicas, "redundant_experts": double.redundant_experts}
    return replace(half, dp=2 * half.dp, ep=2 * half.ep, **changed) == double
