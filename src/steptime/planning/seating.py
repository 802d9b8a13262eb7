"""How many requests are in flight in replicas with so many seats: as many as come, or those that find a seat.

Where as many seats are kept as ever are wanted, an arrival waits for none and a token is made among one more than are in flight
in the mean (`steady.in_flight`). Where there are only a few seats in all, it is better to fill them and let requests queue for
one: as many as the limit on the first token has time for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.numbers import Array, Number
from steptime.planning.candidates import Case
from steptime.planning.queueing import LEVELS, queue_share
from steptime.planning.steady import MOST_UTILISED, State, in_flight

PATIENCE = 0.25  # of the time that a request keeps its seat: longer than that nobody queues for one, limit or not


@dataclass(frozen=True, slots=True, kw_only=True)
class Seating:
    """Arrays of one shape: share of the batch in flight in the mean, mean wait for a seat [s], whether seats are the batch."""

    share: Array
    wait: Array
    capped: Array


def seated(case: Case, state: State, batch: Number, replicas: Number, ttft: Number) -> Seating:
    """Return how many requests are in flight in a pool that decodes and reads, with a limit on the first token of `ttft` [s].

    batch: sequences of a replica among which a token is made at most, or in the mean where seats are kept for more. A seat that
    is taken while its prompt is read makes no tokens: the share counts the time of decode alone.
    """
    open_share = in_flight(batch, replicas)
    life = np.nan_to_num(state.ttft + (case.workload.output_tokens - 1) * state.tpot, posinf=0.0)
    comes = np.isfinite(state.ttft)
    left = np.where(comes, ttft - np.where(comes, state.ttft, 0.0), -np.inf)
    room = np.minimum(left, PATIENCE * life)
    share, wait = filled(life, room, np.asarray(batch * replicas))
    answering = np.maximum(1.0, case.workload.output_tokens - 1) * state.tpot
    share = share * np.where(life > 0, answering / np.where(life > 0, life, 1.0), 0.0)
    capped = share > open_share
    return Seating(share=np.where(capped, share, open_share), wait=np.where(capped, wait, 0.0), capped=capped)


def filled(life: Number, room: Number, seats: Number) -> tuple[Array, Array]:
    """Return the highest share of seats that can be taken, and the wait for one [s], which is to stay within `room` [s].

    life [s] that a request keeps a seat; a queue M/D/c, at most `MOST_UTILISED`; all broadcast.

    >>> [round(float(x), 2) for x in filled(10.0, np.inf, 2)], float(filled(10.0, -1.0, 2)[0])
    ([0.9, 21.34], 0.0)
    """
    tried = np.concatenate([[0.0], MOST_UTILISED * LEVELS])
    half, seats, room = (np.asarray(x, dtype=np.float64)[..., None] for x in (np.asarray(life) / 2, seats, room))
    waits = half * queue_share(tried, seats)
    kept = np.sum(np.logical_and.accumulate(waits <= room, axis=-1), axis=-1, keepdims=True) - 1
    at, last = np.clip(kept, 0, None), len(tried) - 1
    waits = np.broadcast_to(waits, (*kept.shape[:-1], len(tried)))
    low, high = (np.take_along_axis(waits, np.minimum(at + more, last), axis=-1) for more in (0, 1))
    part = np.where(high > low, (np.minimum(room, high) - low) / np.where(high > low, high - low, 1.0), 0.0)
    part = np.where(kept < 0, 0.0, part)
    share: Array = tried[at] + part * (tried[np.minimum(at + 1, last)] - tried[at])
    wait: Array = low + part * (high - low)
    return share[..., 0], wait[..., 0]
