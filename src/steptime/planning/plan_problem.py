"""The problem of a plan, its candidates, tables of candidates, and the occupancy of their slots.

**Slots.** A replica normally keeps more slots than requests ever need. Then no arrival waits for a slot, and a token is
made among one more request than the mean number in flight (`steady_state.in_flight`).

Requests queue for a slot in two cases. With few slots in all, it is better to fill them, as far as the TTFT limit allows.
Where memory has no room for spare slots, the slots that fit are all there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any

import numpy as np

from steptime.hardware.rental_prices import deployment_rent
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import Array, Number
from steptime.physics.bias_correction import OperatingPoint
from steptime.physics.chip_memory import Memory, sequences_per_group
from steptime.physics.engine import Engine, ttft_factor
from steptime.physics.engine_rules import most_sequences
from steptime.physics.layout import ENGINE, NAMES, Layout, collect_facts, show_layout
from steptime.physics.layout_rules import allowed
from steptime.physics.operator_time import TINY
from steptime.planning.batch_queue import LEVELS, queue_share, upper_tail
from steptime.planning.evidence import ANY
from steptime.planning.prefill_pool import Prefill, prefill_pool, within_limit
from steptime.planning.session_hits import SessionCase
from steptime.planning.steady_state import (
    MOST_UTILISED,
    SPARE_DEVIATIONS,
    State,
    Transfer,
    aggregated,
    context_deviation,
    decode_pool,
    in_flight,
    kv_transfer,
    mean_context,
    ttft_seen,
)
from steptime.workload.workload import NONE, Slo, Speculation, Workload

# Degrees of a layout that identify it; micro-batches may differ.
_DEGREES = attrgetter(*(name for name in NAMES if name != "microbatches"))
AGGREGATED, DISAGGREGATED = "aggregated", "disaggregated"
# Smallest batch of a plan: closed forms have no rate of a single slot without a queue.
LEAST_BATCH = 1.125


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """Choices of the user that a search keeps: parallel sizes of every pool, the chunk and the slots of a replica."""

    sizes: tuple[tuple[str, int], ...] = ()
    chunk: int | None = None
    max_num_seqs: int | None = None

    @property
    def slots(self) -> float:
        """Slots of a replica; infinite where the user chose none."""
        return math.inf if self.max_num_seqs is None else self.max_num_seqs


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProblem:
    """The inputs of a plan search.

    `limits` are those at `percentile`. Means stand for them in a search: `slo` has the widest targets, and `levels` all
    from which finalists are taken (`finalists.target_levels`). Their TPOT is `slack` times the limit, and decode steps
    without prefill keep the limit itself. `evidence` is what layouts must have, and `pinned` what the
    user chose. `rough` simulates few finalists, and `at_least` [requests/s] only those that serve more.
    `symmetric_domains` means that all whole scale-up domains have the same layout, so that caches stay in
    their domain. `sure` is the probability with which the limits must be met; None means on average. `aim`
    holds factors on the targets of TPOT and TTFT. `front` also evaluates candidates that miss the limits, for
    the front of speed and cost. `diagnostics` adds the runner-up, the ideal and the binding limits. `memo`
    holds results that are needed more than once. With `prefill_system`, the prefill pool has `prefill_chips` chips of that
    system, and `chips` of `system` only decode. With `turns`, finalists are confirmed with turns of sessions.
    """

    model: Model
    system: System
    workload: Workload
    slo: Slo
    chips: int
    engine: Engine
    limits: Slo = Slo()
    percentile: str = "mean"
    levels: tuple[Slo, ...] = ()
    slack: float = 1.0
    evidence: str = ANY
    pinned: Pinned = Pinned()
    rough: bool = False
    at_least: float = 0.0
    symmetric_domains: bool = False
    sure: float | None = None
    aim: tuple[float, float] = (1.0, 1.0)
    speculation: Speculation = NONE
    front: bool = True
    diagnostics: bool = True
    prefill_system: System | None = None
    prefill_chips: int = 0
    turns: SessionCase | None = None
    memo: dict[tuple[object, ...], Any] = field(init=False, default_factory=dict, compare=False, repr=False)

    @property
    def used(self) -> int:
        """Chips that replicas may use: those of whole domains where domains are symmetric."""
        return self.chips - self.chips % int(self.system.scale_up.size) if self.symmetric_domains else self.chips

    @property
    def prefill(self) -> PlanProblem:
        """The problem of the prefill pool: this one, or that of the second system with a separate memo."""
        if self.prefill_system is None:
            return self
        key = "prefill problem", self.evidence
        if key not in self.memo:
            self.memo[key] = replace(
                self, system=self.prefill_system, chips=self.prefill_chips, prefill_system=None, prefill_chips=0
            )
        problem: PlanProblem = self.memo[key]
        return problem

    @property
    def slots(self) -> float:
        """Largest number of slots of a replica: the user's, at most those of the engine."""
        return min(self.pinned.slots, most_sequences(self.engine.name))

    @property
    def is_pair(self) -> bool:
        """Whether the pools are on two different systems."""
        return self.prefill_system is not None and self.prefill_system.name != self.system.name

    @property
    def total_chips(self) -> int:
        """Chips of both systems."""
        return self.chips + self.prefill_chips

    @property
    def rent(self) -> Number:
        """Rent of all chips [USD/s]."""
        rent = deployment_rent(self.chips, self.system.rent.typical)
        if self.prefill_system is None:
            return rent
        return rent + deployment_rent(self.prefill_chips, self.prefill_system.rent.typical)

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of all evaluations of a steady state, whose layouts the search has checked."""
        return {"engine": self.engine, "speculation": self.speculation, "legal": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to serve: decode replicas with their batch, and the prefill of prompts.

    An aggregated candidate prefills in chunks of `chunk` tokens together with decode. A disaggregated one has
    `prefill_layout.replicas` prefill replicas, which take `prompts` prompts per data-parallel rank in a pass.
    `batch` counts the sequences per replica among which a token is made. It need not be a whole number.
    """

    mode: str
    layout: Layout
    batch: float
    chunk: int = 0
    prefill_layout: Layout | None = None
    prompts: int = 0

    @property
    def text(self) -> str:
        """The candidate in one line."""
        if self.prefill_layout is None:
            return show_layout(self.layout)
        return f"prefill {show_layout(self.prefill_layout)} + decode {show_layout(self.layout)}"

    @property
    def same(self) -> tuple[object, ...]:
        """Key of candidates that differ only in batch, chunk and micro-batches."""
        return (self.mode, _DEGREES(self.layout), self.prefill_layout and _DEGREES(self.prefill_layout))

    @property
    def design(self) -> tuple[object, ...]:
        """Key of candidates that differ only in batch, chunk, micro-batches and redundant experts."""
        pools = (self.layout, self.prefill_layout)
        return (self.mode, *(pool and _DEGREES(replace(pool, redundant_experts=0)) for pool in pools))


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Candidates as columns, arrays of shape (candidates,).

    `layout` and `prefill_layout` index `layouts`, one layout of arrays (-1: none). `batch` counts sequences per
    replica, `chunk` tokens, and `prefill_prompts` prompts per data-parallel rank in a pass. `tpot` and `ttft` are
    in s, `rate` in requests/s of the whole deployment. `utilisation` is that of the prefill queue, `input_share`
    the share of the chips' time for prefill, and `memory` the used share of the capacity.
    """

    mode: str
    layouts: Layout
    layout: Any
    batch: Any
    chunk: Any
    replicas: Any
    prefill_layout: Any
    prefill_prompts: Any
    prefill_replicas: Any
    tpot: Any
    ttft: Any
    rate: Any
    utilisation: Any
    input_share: Any
    memory: Any

    def __len__(self) -> int:
        return len(self.tpot)

    def row(self, index: int) -> Candidate:
        """Return one candidate.

        Args:
            index: Row of the table.

        Returns:
            The candidate.
        """
        is_disaggregated = self.mode == DISAGGREGATED
        return Candidate(
            mode=self.mode,
            layout=_pick(self.layouts, self.layout[index], self.replicas[index]),
            batch=int(self.batch[index]),
            chunk=int(self.chunk[index]),
            prefill_layout=_pick(self.layouts, self.prefill_layout[index], self.prefill_replicas[index])
            if is_disaggregated
            else None,
            prompts=int(self.prefill_prompts[index]) if is_disaggregated else 0,
        )


def _pick(layouts: Layout, index: int, replicas: int) -> Layout:
    """Return the layout of one row, with a number of replicas."""
    return Layout(**{name: int(getattr(layouts, name)[index]) for name in NAMES} | {"replicas": int(replicas)})


COLUMNS = tuple(f.name for f in fields(Table) if f.name not in ("mode", "layouts"))


def joined(mode: str, layouts: Layout, parts: Sequence[Table]) -> Table:
    """Join tables of one mode over the same layouts.

    Args:
        mode: Mode of all parts.
        layouts: Layouts that the tables index, as one layout of arrays.
        parts: Tables to join.

    Returns:
        One table with the rows of all parts.
    """
    nothing = (np.zeros(0, dtype=np.int64),)
    columns = {name: np.concatenate([getattr(part, name) for part in parts] or nothing) for name in COLUMNS}
    return Table(mode=mode, layouts=layouts, **columns)


def evaluate_state(case: PlanProblem, candidate: Candidate, batch: Number, chunk: Number) -> State:
    """Return the steady state of one replica of a candidate.

    Args:
        case: Plan problem.
        candidate: Candidate; its own batch and chunk are not used.
        batch: Sequences per replica.
        chunk: Prompt tokens per data-parallel rank in a mixed step; has no effect on a decode pool.

    Returns:
        The steady state, in the broadcast shape of batch and chunk.
    """
    # Only single points are stored: grids differ in each call.
    if np.ndim(batch) or np.ndim(chunk):
        return steady_state(case, candidate.mode, candidate.layout, batch, chunk)
    key = candidate.mode, candidate.layout, batch, chunk
    if key not in case.memo:
        case.memo[key] = steady_state(case, candidate.mode, candidate.layout, batch, chunk)
    state: State = case.memo[key]
    return state


def steady_state(
    case: PlanProblem, mode: str, layout: Layout, batch: Number, chunk: Number = 1, *, quick: bool = False
) -> State:
    """Return the steady states of replicas that decode, and prefill too where pools are not separate.

    Args:
        case: Plan problem.
        mode: "aggregated", or "disaggregated" for a pool that only decodes.
        layout: Layouts of a replica; fields may be arrays.
        batch: Sequences per replica.
        chunk: Prompt tokens per data-parallel rank in a mixed step; has no effect on a decode pool.
        quick: Approximate the number of chunks in a mixed step, as a search does.

    Returns:
        The steady states, in the broadcast shape of the arguments.
    """
    subject = case.model, case.system, case.workload
    if mode == DISAGGREGATED:
        state = decode_pool(*subject, layout=layout, batch=batch, **case.settings)
    else:
        state = aggregated(*subject, layout=layout, batch=batch, chunk=chunk, quick=quick, **case.settings)
    # More sequences than the slots of the user or the engine never decode.
    is_beyond = np.asarray(batch) > max(case.slots, LEAST_BATCH)
    return replace(state, rate=np.where(is_beyond, 0.0, state.rate)) if np.any(is_beyond) else state


def with_evidence(case: PlanProblem, evidence: str, **changes: Any) -> PlanProblem:
    """Return a problem with another level of evidence, which shares the results that are kept: they do not depend on it.

    Args:
        case: Plan problem.
        evidence: Evidence that layouts must have.
        changes: Changes of the depth of the search.

    Returns:
        The problem.
    """
    changed: PlanProblem = replace(case, evidence=evidence, **changes)
    object.__setattr__(changed, "memo", case.memo)
    return changed


def evaluate_prefill(case: PlanProblem, candidate: Candidate, tpot: Number = 0.0, ttft: Number | None = None) -> Prefill | None:
    """Return the performance of one prefill replica of a candidate.

    Args:
        case: Plan problem.
        candidate: Candidate.
        tpot: TPOT of the decode pool [s].
        ttft: Target of the TTFT [s]; by default its limit.

    Returns:
        The prefill replica; None for an aggregated candidate.
    """
    if candidate.prefill_layout is None:
        return None
    layout, prompts = candidate.prefill_layout, candidate.prompts
    key: tuple[object, ...] = "prefill", layout, prompts
    if key not in case.memo:
        subject = case.model, case.prefill.system, case.workload
        case.memo[key] = prefill_pool(*subject, layout=layout, prompts=prompts, **case.settings)
    pool: Prefill = case.memo[key]
    limit = pass_limit(case, layout, candidate.layout, tpot, case.slo.ttft if ttft is None else ttft)
    if np.ndim(limit):
        return within_limit(pool, limit, layout.replicas)
    key = "within", layout, prompts, float(limit)
    if key not in case.memo:
        case.memo[key] = within_limit(pool, limit, layout.replicas)
    limited: Prefill = case.memo[key]
    return limited


def moving(case: PlanProblem, layout: Layout) -> Transfer:
    """Return how KV caches leave a prefill replica.

    They use the scale-up links where one domain contains all chips, or where domains are symmetric. Between two systems
    they use the slower scale-out links.

    Args:
        case: Plan problem.
        layout: Layout of the prefill replica.

    Returns:
        The transfer.
    """
    near = (case.symmetric_domains or case.used <= case.system.scale_up.size) and case.prefill_system is None
    return kv_transfer(
        case.model, case.system, case.workload, layout=layout, within_domain=bool(near), drafts=case.speculation.drafts,
        prefill_system=case.prefill_system,
    )  # fmt: skip


def pass_limit(case: PlanProblem, layout: Layout, answering: Layout, tpot: Number, ttft: Number) -> Number:
    """Return the limit on wait plus pass in a prefill pool.

    It is the target of TTFT without the other delays. The wait for links depends on the rate and is added
    later.

    Args:
        case: Plan problem.
        layout: Layout of the prefill pool.
        answering: Layout of the decode pool.
        tpot: TPOT of the decode pool [s].
        ttft: Target of the TTFT [s].

    Returns:
        Seconds from the queue to the end of the pass.
    """
    sent = moving(case, layout)
    other_delays = ttft_seen(case.workload, sent.latency + sent.moving, tpot, answering, case.engine, case.speculation)
    point = OperatingPoint(layout=answering, context=mean_context(case.workload))
    return (ttft - other_delays) / ttft_factor(case.engine, point)


def runs(case: PlanProblem, layouts: Layout, role: str) -> Array:
    """Return which layouts the engine supports in a pool of one role.

    Args:
        case: Plan problem.
        layouts: Layouts.
        role: "prefill" or "decode".

    Returns:
        Booleans with the shape of the layouts.
    """
    facts = collect_facts(case.model, case.system, chips=case.used, engine=case.engine, role=role)
    is_allowed: Array = allowed(layouts, facts, (ENGINE,))
    return is_allowed


# Slots of a replica whose model has no KV cache.
MAX_SEQUENCES = 1 << 20
# Longest wait for a slot over the time that a request keeps it. No request waits longer, with a limit or without.
PATIENCE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Occupancy of the slots of a replica: arrays of one shape.

    `share` is the mean share of the batch that is in flight. `wait` is the mean wait for a slot [s], and
    `capped` says whether requests queue for one. `max_num_seqs` counts sequences per replica. `memory` is
    that of a chip [B]. Where `capped`, all slots are taken; otherwise it has the slots of the state.
    """

    share: Array
    wait: Array
    capped: Array
    max_num_seqs: Array
    memory: Memory


def uncapped_occupancy(state: State, batch: Number, replicas: Number) -> Occupancy:
    """Return the occupancy of replicas that have a slot for every arrival.

    Args:
        state: Steady state of one replica.
        batch: Sequences per replica.
        replicas: Replicas of the pool.

    Returns:
        The occupancy; the wait is 0 s.
    """
    share = in_flight(batch, replicas)
    never = np.zeros_like(share, dtype=bool)
    return Occupancy(share=share, wait=np.zeros_like(share), capped=never, max_num_seqs=state.max_num_seqs, memory=state.memory)


def capped_occupancy(case: PlanProblem, state: State, batch: Number, layout: Layout, ttft: Number) -> Occupancy:
    """Return the occupancy of a pool that runs chunked prefill together with decode.

    A slot makes no tokens while the prompt of its request is prefilled: the share counts the time of decode
    only.

    Args:
        case: Plan problem.
        state: Steady state of one replica of `layout`.
        batch: Sequences per replica among which a token is made: a mean with spare slots, else a maximum.
        layout: Layout and number of replicas.
        ttft: Limit on the time to first token [s].

    Returns:
        The occupancy, in the broadcast shape of the arguments.
    """
    replicas, open_share = layout.replicas, in_flight(batch, layout.replicas)
    life = np.nan_to_num(state.ttft + (case.workload.output_tokens - 1) * state.tpot, posinf=0.0)
    comes = np.isfinite(state.ttft)
    room = np.minimum(np.where(comes, ttft - np.where(comes, state.ttft, 0.0), -np.inf), PATIENCE * life)

    # The wait for a slot may use what the rest of the first token leaves of its limit.
    share, wait = filled(life, room, np.asarray(batch * replicas))
    answering = np.maximum(1.0, case.workload.output_tokens - 1) * state.tpot
    share = share * np.where(life > 0, answering / np.where(life > 0, life, 1.0), 0.0)
    max_sequences = np.minimum(most_seats(case.workload, state, layout), case.slots)

    # With all slots taken the batch is larger, so that each step is slower than the mean step.
    slower = 1 + state.growing * np.maximum(max_sequences / batch - 1, 0.0)
    mean = state.rate * open_share * life * replicas
    busy_share, later = queued(mean, life * slower, np.maximum(max_sequences, 1.0) * replicas, state.growing, slower)
    spare = np.asarray(state.memory.fits) & (state.max_num_seqs <= case.slots)
    queue = ~spare & (max_sequences >= batch) & (busy_share <= MOST_UTILISED) & (later <= room)

    # Filling every slot pays only where it serves more than a pool with spare slots.
    fill = (max_sequences >= batch) & (np.mod(batch, 1) == 0) & (share > np.where(spare | queue, open_share, 0.0))
    seats = np.where(fill, batch, np.where(queue, max_sequences, state.max_num_seqs))
    return Occupancy(
        share=np.where(fill, share, open_share),
        wait=np.where(fill, wait, np.where(queue, later, 0.0)),
        capped=fill | queue,
        max_num_seqs=seats,
        memory=_occupied_memory(case.workload, state, np.where(fill | queue, seats, 0.0), layout),
    )


def queued(mean: Number, life: Number, seats: Number, growing: Number, slower: Number) -> tuple[Array, Array]:
    """Return the share of slots in use and the wait, where replicas share their chips.

    The number in flight has the variance `mean` / (1 - `growing`). Beyond the last slot its distribution
    falls by the factor `busy_share` per request. Waits are half of those with exponential lifetimes, because
    lifetimes are almost equal.

    Args:
        mean: Mean requests in flight if there were a slot for each.
        life: Time that a request keeps its slot when all slots are taken [s].
        seats: Slots of the pool.
        growing: Share of a step that grows with the batch.
        slower: Step time with all slots taken over the mean step time.

    Returns:
        The share of slots in use if all steps were slow, and the mean wait for a slot [s].
    """
    busy_share = np.minimum(mean * slower / seats, 1.0)
    free_share = np.maximum(1 - busy_share, 1e-9)
    deviation = np.sqrt(np.maximum(mean / np.maximum(1 - growing, 0.05), TINY))
    below = np.clip((seats - mean) / deviation, -6.0, 30.0)
    full = np.exp(-np.square(below) / 2) / np.sqrt(2 * np.pi) / deviation / free_share
    waits = full / (full + 1 - upper_tail(below))
    return busy_share, waits * life / (2 * seats * free_share)


def most_seats(workload: Workload, state: State, layout: Layout) -> Array:
    """Return the largest number of sequences that fit in a replica at one time.

    Args:
        workload: Requests.
        state: Steady state of one replica; its memory gives the room.
        layout: Layout of a replica.

    Returns:
        Sequences per replica, a whole number from 0 to `MAX_SEQUENCES`.
    """
    memory = state.memory
    sequence_bytes = np.asarray(_sequence_cache_bytes(state, layout))
    free = memory.capacity - memory.used + memory.cache
    room = np.where(sequence_bytes > 0, free / np.where(sequence_bytes > 0, sequence_bytes, 1.0), MAX_SEQUENCES)
    spare_deviation = SPARE_DEVIATIONS * context_deviation(workload) / mean_context(workload)
    root = (np.sqrt(np.square(spare_deviation) + 4 * np.maximum(room, 0.0)) - spare_deviation) / 2
    # Equal requests have no more than their whole output above the mean.
    bounded = room / (1 + workload.output_tokens / mean_context(workload) / 2) * is_equal(workload)
    sequences: Array = np.floor(np.maximum(np.square(root), bounded) + 1e-9) * layout.dp
    return np.clip(sequences, 0.0, MAX_SEQUENCES)


def _occupied_memory(workload: Workload, state: State, seats: Number, layout: Layout) -> Memory:
    r"""Return the memory of a chip [B] with `seats` slots taken; 0 keeps the state's.

    The $n$ sequences of a rank have `SPARE_DEVIATIONS` of $s \sqrt n$ tokens more than their mean, with the standard
    deviation $s$ of a context. Equal requests have at most $n O / 2$ more.
    """
    sequences = sequences_per_group(seats, layout)
    most_tokens = np.where(is_equal(workload), sequences / 2 * workload.output_tokens, np.inf)
    beyond = np.minimum(most_tokens, SPARE_DEVIATIONS * np.sqrt(sequences) * context_deviation(workload)) / mean_context(
        workload
    )
    cache = np.where(np.asarray(seats) > 0, _sequence_cache_bytes(state, layout) * (sequences + beyond), state.memory.cache)
    return replace(state.memory, cache=cache)


def slots_memory(state: State, slots: Number, layout: Layout) -> Memory:
    """Return the memory of a chip with all slots of a replica taken at the mean context.

    An engine allocates no more KV cache than it has room for: further sequences wait or are preempted.

    Args:
        state: Steady state of one replica of `layout`.
        slots: Slots per replica.
        layout: Layout of a replica.

    Returns:
        The bytes by part, at most the capacity.
    """
    cache = _sequence_cache_bytes(state, layout) * sequences_per_group(slots, layout)
    return replace(state.memory, cache=np.minimum(cache, np.maximum(state.memory.cache_room, 0.0)))


def kv_cache_tokens(memory: Memory, tokens: Number) -> float:
    """Return the tokens of KV cache that fit on the chips of one data-parallel rank.

    Args:
        memory: Memory of a chip.
        tokens: Tokens of the rank that take the cache in `memory`.

    Returns:
        Tokens; infinite for a model without a KV cache.
    """
    cache = float(memory.cache)
    return float(tokens * memory.cache_room / cache) if cache > 0 else math.inf


def is_equal(workload: Workload) -> Array:
    """Return whether all requests have the same lengths.

    Args:
        workload: Requests.

    Returns:
        Booleans.
    """
    equal: Array = (np.asarray(workload.input_spread) == 0) & (np.asarray(workload.output_spread) == 0)
    return equal


def _sequence_cache_bytes(state: State, layout: Layout) -> Number:
    """Return the cache of one sequence at the mean context on the fullest chip [B]."""
    return state.memory.cache / np.maximum(sequences_per_group(state.max_num_seqs, layout), 1)


def filled(life: Number, room: Number, seats: Number) -> tuple[Array, Array]:
    """Return the highest share of slots in use that keeps the wait within a limit.

    The queue is M/D/c, with a utilization of at most `MOST_UTILISED`. All arguments broadcast.

    Args:
        life: Time that a request keeps its slot [s].
        room: Longest mean wait for a slot [s].
        seats: Slots of the pool.

    Returns:
        The share of slots in use, and the mean wait for a slot [s].

    >>> [round(float(x), 2) for x in filled(10.0, np.inf, 2)], float(filled(10.0, -1.0, 2)[0])
    ([0.9, 21.34], 0.0)
    """

    # The wait rises with utilization: interpolate between the last level within the limit and the next.
    utilisations = np.concatenate([[0.0], MOST_UTILISED * LEVELS])
    half, seats, room = (np.asarray(x, dtype=np.float64)[..., None] for x in (np.asarray(life) / 2, seats, room))
    waits = half * queue_share(utilisations, seats)
    last_kept = np.sum(np.logical_and.accumulate(waits <= room, axis=-1), axis=-1, keepdims=True) - 1
    index, last = np.clip(last_kept, 0, None), len(utilisations) - 1
    waits = np.broadcast_to(waits, (*last_kept.shape[:-1], len(utilisations)))
    low, high = (np.take_along_axis(waits, np.minimum(index + offset, last), axis=-1) for offset in (0, 1))
    part = np.where(high > low, (np.minimum(room, high) - low) / np.where(high > low, high - low, 1.0), 0.0)
    part = np.where(last_kept < 0, 0.0, part)
    share: Array = utilisations[index] + part * (utilisations[np.minimum(index + 1, last)] - utilisations[index])
    wait: Array = low + part * (high - low)
    return share[..., 0], wait[..., 0]
