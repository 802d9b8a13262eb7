"""Slots and occupancy: how many requests are in flight in the replicas of a pool.

A replica normally keeps more slots than requests ever need. Then no arrival waits for a slot, and a token is
made among one more request than the mean number in flight (`steady_state.in_flight`).

Requests queue for a slot in two cases. With few slots in all, it is better to fill them, as far as the TTFT
limit allows. Where memory has no room for spare slots, the slots that fit are all there are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from steptime.number_checks import Array, Number
from steptime.physics.chip_memory import Memory, sequences_per_group
from steptime.physics.layout import Layout
from steptime.physics.roofline import TINY
from steptime.planning.batch_queue import LEVELS, queue_share, upper_tail
from steptime.planning.plan_problem import PlanProblem
from steptime.planning.steady_state import MOST_UTILISED, SPARE_DEVIATIONS, State, in_flight, mean_context
from steptime.planning.workload import Workload

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
    max_sequences = most_seats(case.workload, state, layout)

    # With all slots taken the batch is larger, so that each step is slower than the mean step.
    slower = 1 + state.growing * np.maximum(max_sequences / batch - 1, 0.0)
    mean = state.rate * open_share * life * replicas
    busy_share, later = queued(mean, life * slower, np.maximum(max_sequences, 1.0) * replicas, state.growing, slower)
    spare = np.asarray(state.memory.fits)
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
    spread = workload.output_tokens / mean_context(workload)
    spare_deviation = SPARE_DEVIATIONS / np.sqrt(12) * spread
    root = (np.sqrt(np.square(spare_deviation) + 4 * np.maximum(room, 0.0)) - spare_deviation) / 2
    sequences: Array = np.floor(np.maximum(np.square(root), room / (1 + spread / 2)) + 1e-9) * layout.dp
    return np.clip(sequences, 0.0, MAX_SEQUENCES)


def _occupied_memory(workload: Workload, state: State, seats: Number, layout: Layout) -> Memory:
    r"""Return the memory of a chip [B] with `seats` slots taken; 0 keeps the state's.

    The $n$ sequences of a rank have at most $n O / 2$ tokens more than their mean. With many sequences the
    excess is `SPARE_DEVIATIONS` of $O \sqrt{n / 12}$.
    """
    sequences = sequences_per_group(seats, layout)
    beyond = (
        np.minimum(sequences / 2, SPARE_DEVIATIONS * np.sqrt(sequences / 12)) * workload.output_tokens / mean_context(workload)
    )
    cache = np.where(np.asarray(seats) > 0, _sequence_cache_bytes(state, layout) * (sequences + beyond), state.memory.cache)
    return replace(state.memory, cache=cache)


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
