"""How many requests are in flight in replicas with so many seats: as many as come, or those that find a seat.

Where as many seats are kept as ever are wanted, an arrival waits for none and a token is made among one more than are in
flight in the mean (`steady.in_flight`). Requests queue for a seat in two cases: where there are only a few seats in all it is
better to fill them, as far as the limit on the first token has time for; and where memory holds no more, they are all there is.
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

MAX_SEQUENCES = 1 << 20  # seats: as many as a model without a cache has
PATIENCE = 0.25  # of the time that a request keeps its seat: longer than that nobody queues for one, limit or not


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Arrays of one shape: share of the batch in flight in the mean, mean wait for a seat [s], whether requests queue for one.

    max_num_seqs [sequences of a replica]; memory of a chip with all of them taken, or with as many in flight as leave them spare [B].
    """

    share: Array
    wait: Array
    capped: Array
    max_num_seqs: Array
    memory: Memory


def uncapped_occupancy(state: State, batch: Number, replicas: Number) -> Occupancy:
    """Return what is in flight in pools that keep seats for all who come."""
    share = in_flight(batch, replicas)
    never = np.zeros_like(share, dtype=bool)
    return Occupancy(share=share, wait=np.zeros_like(share), capped=never, max_num_seqs=state.max_num_seqs, memory=state.memory)


def capped_occupancy(case: PlanProblem, state: State, batch: Number, layout: Layout, ttft: Number) -> Occupancy:
    """Return how many requests are in flight in a pool that decodes and reads, with a limit on the first token of `ttft` [s].

    batch: sequences of a replica of `layout` among which a token is made: in the mean where there are more seats, at most where
    there are no more. A seat that is taken while its prompt is read makes no tokens: the share counts the time of decode alone.
    """
    replicas, open_share = layout.replicas, in_flight(batch, layout.replicas)
    life = np.nan_to_num(state.ttft + (case.workload.output_tokens - 1) * state.tpot, posinf=0.0)
    comes = np.isfinite(state.ttft)
    room = np.minimum(np.where(comes, ttft - np.where(comes, state.ttft, 0.0), -np.inf), PATIENCE * life)
    share, wait = filled(life, room, np.asarray(batch * replicas))
    answering = np.maximum(1.0, case.workload.output_tokens - 1) * state.tpot
    share = share * np.where(life > 0, answering / np.where(life > 0, life, 1.0), 0.0)
    max_sequences = most_seats(case.workload, state, layout)
    slower = 1 + state.growing * np.maximum(max_sequences / batch - 1, 0.0)  # where all seats are taken
    mean = state.rate * open_share * life * replicas
    busy_share, later = queued(mean, life * slower, np.maximum(max_sequences, 1.0) * replicas, state.growing, slower)
    spare = np.asarray(state.memory.fits)
    queue = ~spare & (max_sequences >= batch) & (busy_share <= MOST_UTILISED) & (later <= room)
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
    r"""Return the share of seats that would be taken were all slow, and the wait for one [s], in pools that share their chips.

    mean: requests in flight were there seats for all, whose number has the variance `mean` / (1 - `growing`); life [s] of those
    in flight where all `seats` are taken, `slower` than in the mean. Beyond the last seat the number falls off by the share
    `busy_share` each, and waits are half of those of exponential lives, since lives are alike.
    """
    busy_share = np.minimum(mean * slower / seats, 1.0)
    free_share = np.maximum(1 - busy_share, 1e-9)
    deviation = np.sqrt(np.maximum(mean / np.maximum(1 - growing, 0.05), TINY))
    below = np.clip((seats - mean) / deviation, -6.0, 30.0)
    full = np.exp(-np.square(below) / 2) / np.sqrt(2 * np.pi) / deviation / free_share
    waits = full / (full + 1 - upper_tail(below))
    return busy_share, waits * life / (2 * seats * free_share)


def most_seats(workload: Workload, state: State, layout: Layout) -> Array:
    """Return how many sequences of a replica find room where all seats are taken."""
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
    r"""Return the memory of a chip [B] with so many `seats` taken, or that of the state where there are none.

    A group's $n$ sequences have at most $n O / 2$ tokens more than in the mean, and where they are many, `SPARE_DEVIATIONS` of
    $O \sqrt{n / 12}$.
    """
    sequences = sequences_per_group(seats, layout)
    beyond = (
        np.minimum(sequences / 2, SPARE_DEVIATIONS * np.sqrt(sequences / 12)) * workload.output_tokens / mean_context(workload)
    )
    cache = np.where(np.asarray(seats) > 0, _sequence_cache_bytes(state, layout) * (sequences + beyond), state.memory.cache)
    return replace(state.memory, cache=cache)


def _sequence_cache_bytes(state: State, layout: Layout) -> Number:
    """Bytes of cache of a sequence at the mean context, on the fullest chip."""
    return state.memory.cache / np.maximum(sequences_per_group(state.max_num_seqs, layout), 1)


def filled(life: Number, room: Number, seats: Number) -> tuple[Array, Array]:
    """Return the highest share of seats that can be taken, and the wait for one [s], which is to stay within `room` [s].

    life [s] that a request keeps a seat; a queue M/D/c, at most `MOST_UTILISED`; all broadcast.

    >>> [round(float(x), 2) for x in filled(10.0, np.inf, 2)], float(filled(10.0, -1.0, 2)[0])
    ([0.9, 21.34], 0.0)
    """
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
