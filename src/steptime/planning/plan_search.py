"""Search over every legal layout and batch for the candidates of a deployment.

`search` evaluates all promising candidates as arrays and returns them as tables. `refinement.refined` tunes the batch of
one candidate. `smallest_system` is what a person would rent for a model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from steptime.hardware.rental_prices import has_rent
from steptime.hardware.system import System
from steptime.models.model import Model, weight_bytes
from steptime.number_checks import Array, Number, distinct
from steptime.physics.chip_memory import activations_per_chip, cache_per_sequence, reserved_per_chip, weights_per_chip
from steptime.physics.engine import engine_for
from steptime.physics.layout import Layout, collect_facts, select_layouts, shaped, stacked, unstacked
from steptime.physics.layout_rules import reasons
from steptime.physics.layout_space import legal_table, not_tried
from steptime.planning.batch_grids import batch_grid
from steptime.planning.evidence import ANY, MEASURED, layout_evidence
from steptime.planning.pd_matching import search_disaggregated
from steptime.planning.plan_problem import (
    AGGREGATED,
    DISAGGREGATED,
    Candidate,
    PlanProblem,
    Table,
    capped_occupancy,
    joined,
    most_seats,
    steady_state,
)
from steptime.planning.slo_probability import effective_targets
from steptime.planning.steady_state import (
    MOST_LOADED,
    MOST_UTILISED,
    State,
    fresh_tokens,
    in_flight,
    load_shares,
)
from steptime.units import show
from steptime.workload.workload import Slo, Workload, decode_steps

# Smallest and largest chunk to try [tokens]: smaller ones take as long, and engines allow no larger ones by default.
LEAST_CHUNK, LARGEST_CHUNK = 128, 16384
# Smallest chunk in published runs [tokens].
LEAST_USUAL_CHUNK = 512
# Relative difference below which costs count as equal.
AS_CHEAP = 0.005
# Candidates with this share of the highest decode-only rate are evaluated first.
FIRST = 0.9
# Candidates are skipped where an evaluated rate exceeds their decode-only rate by this share.
OUTDONE = 0.02
# Share of the highest rate below which no candidate becomes the best: tuning gains at most a factor of 1.5.
PROMISING = 0.6
# The same for the best of a family of layouts, which closed forms may underestimate more.
HOPEFUL = 0.4


def fitting(case: PlanProblem) -> list[Layout]:
    """List the legal layouts that the engine can run and whose weights fit.

    Args:
        case: Plan problem.

    Returns:
        Layouts of one replica.
    """
    key = "fitting", case.evidence
    if key not in case.memo:
        table = _lawful_table(case)
        case.memo[key] = unstacked(select_layouts(table, _have_room(case, table)))
    return [*case.memo[key]]


def lawful(case: PlanProblem) -> list[Layout]:
    """List the legal layouts that the engine can run, whether weights fit or not.

    Args:
        case: Plan problem.

    Returns:
        Layouts of one replica.
    """
    return unstacked(_lawful_table(case))


def _lawful_table(case: PlanProblem) -> Layout:
    """Return the layouts of `lawful` as one layout with fields of shape (layouts,)."""
    key = ("legal",)
    if key not in case.memo:
        case.memo[key] = legal_table(case.model, case.system, case.used, engine=case.engine)
    table: Layout = case.memo[key]
    for name, size in case.pinned.sizes:
        table = select_layouts(table, getattr(table, name) == size)
    if case.evidence == ANY:
        return table
    measured, published = layout_evidence(table, case.engine, case.system)
    return select_layouts(table, measured if case.evidence == MEASURED else published)


def _have_room(case: PlanProblem, table: Layout) -> Array:
    """Return whether the weights of layouts leave room on a chip."""
    has_room: Array = np.broadcast_to(weights_per_chip(case.model, table) < prefill_room(case, table), np.shape(table.tp))
    return has_room


def held_by(case: PlanProblem, layouts: list[Layout]) -> list[Layout]:
    """List the layouts whose weights leave room on a chip.

    Args:
        case: Plan problem.
        layouts: Layouts to filter.

    Returns:
        Layouts that fit.
    """
    if not layouts:
        return []
    return [layout for layout, is_held in zip(layouts, _have_room(case, stacked(layouts)), strict=True) if is_held]


def absent_because(case: PlanProblem, layout: Layout) -> list[str]:
    """List the reasons why a layout is not in the search.

    The reasons are rules, memory, or degrees that are not tried. Only the axes of one replica count, because
    the search takes as many replicas as fit.

    Args:
        case: Plan problem.
        layout: Layout.

    Returns:
        Reasons; empty where the layout is in the search.
    """
    facts = collect_facts(case.model, case.system, chips=case.chips, engine=case.engine)
    broken = reasons(layout, facts)
    if broken:
        return broken
    weights, room = float(weights_per_chip(case.model, layout)), float(prefill_room(case, layout))
    if weights >= room:
        return [f"its weights take {show(weights, 'B')} of a chip, which has {show(room, 'B')}"]
    untried = not_tried(layout, facts, case.chips)
    return [untried] if untried else []


def prefill_room(case: PlanProblem, layout: Layout) -> Number:
    """Return the bytes of a chip for weights, cache and activations.

    Args:
        case: Plan problem.
        layout: Layout; fields may be arrays.

    Returns:
        Bytes per chip.
    """
    return case.system.chip.capacity * case.engine.room.memory_share - reserved_per_chip(case.engine, case.system, layout)


def is_small_chunk(workload: Workload, chunk: int) -> bool:
    """Return whether no published run has prefill chunks as small as these.

    Args:
        workload: Requests.
        chunk: Prompt tokens per data-parallel rank in a mixed step; 0: no chunks.

    Returns:
        True or false.

    >>> [is_small_chunk(Workload(input_tokens=tokens, output_tokens=1), 256) for tokens in (200, 2048)]
    [False, True]
    """
    return 0 < chunk < min(LEAST_USUAL_CHUNK, fresh_tokens(workload))


def chunk_sizes(workload: Workload, evidence: str = ANY, chunk: int | None = None) -> Array:
    """Return the prefill chunk sizes to try: powers of two as engines have them, and one whole prompt.

    Args:
        workload: Requests.
        evidence: Evidence that layouts must have; nobody has published runs with small chunks.
        chunk: The only chunk to try [tokens], if the user has chosen it.

    Returns:
        Tokens per chunk, in increasing order.

    >>> chunk_sizes(Workload(input_tokens=1000, output_tokens=1)).tolist()
    [128, 256, 512, 1000, 1024, 2048, 4096, 8192, 16384]
    >>> chunk_sizes(Workload(input_tokens=60, output_tokens=1)).tolist()[:2]
    [60, 128]
    """
    if chunk is not None:
        return np.array([chunk], dtype=np.int64)
    fresh = fresh_tokens(workload)
    least = LEAST_CHUNK if evidence == ANY else LEAST_USUAL_CHUNK
    powers = 2.0 ** np.arange(np.log2(least), np.log2(LARGEST_CHUNK) + 1)
    return distinct(np.append(powers, min(fresh, LARGEST_CHUNK))).astype(np.int64)


def readable(workload: Workload, sizes: Array, layout: Layout) -> Array:
    """Whether prefill chunks are worth trying in a layout.

    Several prompts in one chunk are tried only with one data-parallel rank. With several ranks, the busiest
    would often have two prompts where the mean has one, and all ranks would wait for it.

    Args:
        workload: Requests.
        sizes: Chunk sizes [tokens].
        layout: Layouts.

    Returns:
        Booleans, in the broadcast shape.
    """
    is_readable: Array = (sizes <= fresh_tokens(workload)) | (np.asarray(layout.dp) == 1)
    return is_readable


def search(case: PlanProblem, modes: tuple[str, ...], layouts: list[Layout]) -> list[Table]:
    """Evaluate the candidates of all requested modes.

    Args:
        case: Plan problem.
        modes: Modes to search.
        layouts: Layouts of one replica.

    Returns:
        One table per mode.
    """
    # Fitted runs have one pool.
    modes = tuple(mode for mode in modes if mode == AGGREGATED or case.evidence != MEASURED)
    if not modes or not layouts:
        return []
    # A second system has other prefill layouts.
    prefill_layouts = layouts if case.prefill_system is None else fitting(case.prefill)
    if not prefill_layouts:
        return []
    table = stacked(layouts)
    wide = shaped(table, 1)
    decode = steady_state(case, DISAGGREGATED, wide, batch_grid(wide))
    prefill_table = None if case.prefill_system is None else stacked(prefill_layouts)
    disaggregated = search_disaggregated(case, table, decode, prefill_table) if DISAGGREGATED in modes else None
    if AGGREGATED not in modes:
        return [disaggregated] if disaggregated is not None else []
    together = search_aggregated(case, table, decode, disaggregated if case.sure is None else None)
    return [together] if disaggregated is None else [together, disaggregated]


def search_aggregated(case: PlanProblem, table: Layout, decode: State, disaggregated: Table | None = None) -> Table:
    """Evaluate layouts, batches and chunks where decode and prefill share the chips.

    Chunks are not evaluated where a disaggregated candidate is as fast and serves as many requests as the
    layout would without any prefill.

    Args:
        case: Plan problem.
        table: Layouts of one replica, as one layout of arrays.
        decode: Steady states of decode pools, with the batches of `batch_grid`.
        disaggregated: Disaggregated candidates, if that mode is searched.

    Returns:
        The aggregated candidates.
    """
    workload = case.workload
    wide = shaped(table, 1)
    sequences = batch_grid(wide)
    new = np.diff(sequences, axis=1, prepend=0) > 0
    sizes = chunk_sizes(workload, case.evidence, case.pinned.chunk)
    taken_up = in_flight(sequences, wide.replicas)
    work = sequences * taken_up * fresh_tokens(workload) / (decode_steps(workload, case.speculation) * wide.dp)
    # With one sequence in flight, no other request waits for its prefill.
    is_single = sequences * wide.replicas <= 1

    # The prefill tokens per step must fit the largest chunk, and not be negligible for the smallest.
    stable = ((work < MOST_UTILISED * sizes[-1]) & (work > 1e-4 * sizes[0])) | is_single
    load = load_shares(decode.tpot, sequences)
    roomy = decode.memory.fits & (load * taken_up <= MOST_LOADED)
    # Requests may queue for slots where memory has no room for spare ones.
    queued = most_seats(workload, decode, wide) >= sequences
    hopeful = (roomy | queued) & new & stable
    if not case.front and case.sure is None:
        # Prefill chunks can only make a token slower, so that slack is for them alone.
        hopeful &= decode.tpot <= case.slo.tpot / case.slack * (1 + 1e-9)
    rate = np.asarray(decode.rate * wide.replicas)
    if disaggregated is not None:
        hopeful &= ~_outdone(case, disaggregated, decode.tpot, rate)
    # With a probability, the targets differ between candidates, so that rates do not rule candidates out.
    if case.sure is not None:
        return _read_beside(case, table, sequences, decode, load, hopeful)

    # Evaluate the most promising candidates first: their rates rule out most of the others.
    first = hopeful & (rate >= FIRST * _highest(decode.tpot, rate, hopeful))
    table_found = _read_beside(case, table, sequences, decode, load, first)
    remaining = hopeful & ~first & ~_outdone(case, table_found, decode.tpot, rate * (1 + OUTDONE))
    return joined(AGGREGATED, table, [table_found, _read_beside(case, table, sequences, decode, load, remaining)])


def _highest(tpot: Array, rate: Array, among: Array) -> Array:
    """Return the highest rate among candidates that are at least as fast; 0 if none."""
    order = np.argsort(tpot[among])
    # The last entry serves candidates with no faster one.
    running_maximum = np.append(np.maximum.accumulate(rate[among][order]), 0.0)
    highest: Array = running_maximum[np.searchsorted(tpot[among][order], tpot, side="right") - 1]
    return highest


def _read_beside(case: PlanProblem, table: Layout, sequences: Array, decode: State, load: Array, selection: Array) -> Table:
    """Evaluate some layouts and batches with every prefill chunk size.

    `selection` has the shape (layouts, batches).
    """
    workload, sizes = case.workload, chunk_sizes(case.workload, case.evidence, case.pinned.chunk)
    m, b = np.nonzero(selection)
    batch, layouts_taken = sequences[m, b], select_layouts(table, m[:, None])
    taken_up = in_flight(batch, np.asarray(table.replicas)[m])[:, None]

    # All layouts, batches and chunk sizes of the selection are evaluated in one call.
    state = steady_state(case, AGGREGATED, layouts_taken, batch[:, None], sizes[None, :], quick=True)
    loaded = _load(state, np.asarray(decode.tpot[m, b])[:, None], load[m, b][:, None], np.asarray(layouts_taken.dp))
    loaded = loaded * taken_up

    # A candidate is feasible with spare slots or with a queue for slots; both need memory and a stable prefill queue.
    aim = effective_targets(case, layouts_taken, None, state.input_share)[1]
    seats = capped_occupancy(case, state, batch[:, None], layouts_taken, aim)
    is_feasible = readable(workload, sizes[None, :], layouts_taken) & ((loaded <= MOST_LOADED) | seats.capped)
    is_feasible &= (state.utilisation < MOST_UTILISED) & np.isfinite(state.ttft) & seats.memory.fits

    # Only feasible candidates become rows of the table.
    i, j = np.nonzero(is_feasible)
    replicas = np.asarray(table.replicas)[m[i]]
    memory = np.asarray(seats.memory.used / seats.memory.capacity)
    none = np.zeros(len(i), dtype=np.int64)
    return Table(
        mode=AGGREGATED,
        layouts=table,
        layout=m[i],
        batch=batch[i],
        chunk=sizes[j],
        replicas=replicas,
        prefill_layout=none - 1,
        prefill_prompts=none,
        prefill_replicas=none,
        tpot=state.tpot[i, j],
        ttft=(state.ttft + seats.wait)[i, j],
        rate=(state.rate * seats.share)[i, j] * replicas,
        utilisation=state.utilisation[i, j],
        input_share=state.input_share[i, j],
        memory=memory[i, j],
    )


def _outdone(case: PlanProblem, disaggregated: Table, tpot: Array, rate: Array) -> Array:
    """Whether a disaggregated candidate is as fast and serves as many requests.

    The disaggregated candidate must be within the limit on TTFT. `tpot` is in s, `rate` in requests/s.
    """
    good = np.nonzero((disaggregated.ttft <= case.slo.ttft) & (disaggregated.memory <= 1) & (disaggregated.rate > 0))[0]
    if not len(good):
        return np.zeros(tpot.shape, dtype=bool)
    order = good[np.argsort(disaggregated.tpot[good])]
    # The last entry serves candidates with no faster one.
    running_maximum = np.append(np.maximum.accumulate(disaggregated.rate[order]), -np.inf)
    outdone: Array = running_maximum[np.searchsorted(disaggregated.tpot[order], tpot, side="right") - 1] >= rate
    return outdone


def _load(state: State, decode: Array, loaded: Array, groups: Array) -> Array:
    """Return the approximate load of a pool that decodes and prefills.

    `loaded` is its load with decode only. The time that chunks add to a token grows with the batch. With
    several data-parallel ranks it grows as long as more chunks make more mixed steps.
    """
    reads = state.chunks_per_mixed_step * (1 - state.decode_only_share)
    growing = np.clip(reads * state.decode_only_share / np.maximum(1 - state.decode_only_share, 1e-12), 0.0, 1.0)
    growing = np.where((state.chunks_per_mixed_step > 1) & (groups > 1), growing, 1.0)
    load: Array = (loaded * decode + growing * (state.tpot - decode)) / state.tpot
    return load


def ranked(case: PlanProblem, tables: list[Table], limit: int = 400) -> list[Candidate]:
    """Return the candidates within the limits, cheapest first.

    Costs are sorted in steps of half a percent. Within a step, the fastest comes first.

    Args:
        case: Plan problem.
        tables: Tables of candidates.
        limit: Largest number of candidates per table.

    Returns:
        Sorted candidates.
    """
    return list(ranking(case, tables, limit))


def best_of_families(case: PlanProblem, tables: Sequence[Table]) -> list[Candidate]:
    """Return the aggregated candidate with the highest rate of each family that is within the limits.

    Families differ in whether they have pipeline stages, data-parallel ranks and several replicas. Closed forms of decode next
    to prefill compare layouts of one family better than families.

    Args:
        case: Plan problem.
        tables: Tables of candidates.

    Returns:
        Candidates, highest rate first.
    """

    def family(table: Table, rows: Array) -> Array:
        layouts = select_layouts(table.layouts, table.layout[rows])
        numbers: Array = 4 * (layouts.pp > 1) + 2 * (layouts.dp > 1) + (table.replicas[rows] > 1)
        return numbers

    return _best_of_groups(case, tables, AGGREGATED, family)


def best_of_prefill_layouts(case: PlanProblem, tables: Sequence[Table]) -> list[Candidate]:
    """Return the disaggregated candidate with the highest rate of each prefill layout that is within the limits.

    Mean waits for a prefill pool do not show its waits at a percentile, which pools of other layouts may keep shorter.

    Args:
        case: Plan problem.
        tables: Tables of candidates.

    Returns:
        Candidates, highest rate first.
    """
    return _best_of_groups(case, tables, DISAGGREGATED, lambda table, rows: table.prefill_layout[rows])


def _best_of_groups(
    case: PlanProblem, tables: Sequence[Table], mode: str, find_groups: Callable[[Table, Array], Array]
) -> list[Candidate]:
    """Return the candidate of a mode with the highest rate of each group that is within the limits, highest rate first."""
    entries: list[tuple[float, int, int]] = []
    for number, table in enumerate(tables):
        if table.mode != mode:
            continue
        rows = rows_within(case, table)
        group = find_groups(table, rows)
        order = np.lexsort((-table.rate[rows], group))
        firsts = order[np.unique(group[order], return_index=True)[1]] if len(rows) else order
        entries += [(float(table.rate[rows[i]]), number, int(rows[i])) for i in firsts]
    entries.sort(reverse=True)
    return [tables[number].row(index) for rate, number, index in entries if rate >= HOPEFUL * entries[0][0]]


def rows_within(case: PlanProblem, table: Table) -> Array:
    """Return the rows of a table within the limits.

    Args:
        case: Plan problem.
        table: Table of candidates.

    Returns:
        Indices.
    """
    tpot, ttft = _aims(case, table)
    return np.nonzero((table.tpot <= tpot) & (table.ttft <= ttft) & (table.memory <= 1) & (table.rate > 0))[0]


def ranking(case: PlanProblem, tables: list[Table], limit: int = 400) -> Iterator[Candidate]:
    """Yield the candidates within the limits, as `ranked` lists them.

    Args:
        case: Plan problem.
        tables: Tables of candidates.
        limit: Largest number of candidates per table.

    Yields:
        Candidates, cheapest first.
    """
    good = [rows_within(case, table) for table in tables]
    highest = max((float(np.max(table.rate[rows])) for table, rows in zip(tables, good, strict=True) if len(rows)), default=1.0)
    entries: list[tuple[int, float, int, int]] = []
    for number, (table, selection) in enumerate(zip(tables, good, strict=True)):
        rows = selection[table.rate[selection] >= PROMISING * highest]
        steps = np.floor(np.log(highest / table.rate[rows]) / AS_CHEAP).astype(np.int64)
        order = np.lexsort((table.tpot[rows], steps))[:limit]
        entries += [(int(steps[i]), float(table.tpot[rows[i]]), number, int(rows[i])) for i in order]
    for _, _, number, index in sorted(entries):
        yield tables[number].row(index)


def _aims(case: PlanProblem, table: Table) -> tuple[Number, Number]:
    """Return the targets of TPOT and TTFT [s] of each row."""
    decoding = select_layouts(table.layouts, table.layout)
    if table.mode == AGGREGATED:
        return effective_targets(case, decoding, None, table.input_share)
    return effective_targets(case, decoding, select_layouts(table.layouts, table.prefill_layout))


# Prefill tokens of a step.
STEP_PROMPT_TOKENS: Final = 256
# The earliest first token that a refusal names is known to this factor: by closed forms, and by simulations. The last is the
# step between limits that are tried first.
EARLIEST: Final = 1.04
EARLIEST_SIMULATED: Final = 1.06
LATER: Final = 1.25
# Tokens of the request that must fit in addition to the weights, or the model's context where that is shorter.
REQUEST: Final = 8192


def smallest_system(model: Model, systems: Iterable[System]) -> tuple[System, int] | None:
    """Return the cheapest system on which a model and one request fit.

    A request of 8,192 tokens (or of the model's context) must fit in addition to the weights. The layout must
    be one that the system's usual engine runs. Chips are powers of two up to the usual deployment. Systems
    without a known rent come last, sorted by chips and then by memory.

    Args:
        model: Model.
        systems: Systems to compare.

    Returns:
        The system and the number of chips; None where no system is large enough.
    """
    need = weight_bytes(model)
    tries = ((_order(system, chips), system, chips) for system in systems for chips in _counts(system))
    for _, system, chips in sorted(tries, key=lambda entry: entry[0]):
        if chips * system.chip.capacity > need and _holds(model, system, chips):
            return system, chips
    return None


def _counts(system: System) -> Iterator[int]:
    yield from (2**n for n in range(system.chips.bit_length()) if 2**n < system.chips)
    yield system.chips


def _order(system: System, chips: int) -> tuple[float, ...]:
    """Return the sort key: rent, chips, memory, bandwidth; no known rent sorts last."""
    rent = chips * float(system.rent.typical) if has_rent(system.rent) else math.inf
    return rent, chips, chips * float(system.chip.capacity), -float(system.chip.hbm.bandwidth)


def _holds(model: Model, system: System, chips: int) -> bool:
    """Whether some layout leaves room for a request and the prefill tokens of a step."""
    context = min(REQUEST, model.max_context)
    request = Workload(input_tokens=1, output_tokens=1)
    case = PlanProblem(model=model, system=system, workload=request, slo=Slo(), chips=chips, engine=engine_for(system, None))
    layouts = fitting(case)
    if not layouts:
        return False
    table = stacked(layouts)
    bytes_besides_weights = cache_per_sequence(model, context, table) + activations_per_chip(model, STEP_PROMPT_TOKENS, table)
    return bool(np.any(weights_per_chip(model, table) + bytes_besides_weights <= prefill_room(case, table)))
