"""Transitions of a request: arrival, slot, prefill, decode, preemption and end."""

from __future__ import annotations

from typing import Any

import numpy as np

from steptime.simulation.loop_state import (
    BLOCK_SECONDS,
    BUSY,
    CLOCK,
    CONTEXT,
    DECODE_SECONDS,
    DECODES,
    DECODING,
    DONE,
    EVERY,
    FREE,
    GAPS,
    JOINED,
    LIVE,
    NEXT_RECORD,
    PARTIAL,
    PREFILL_FIRST,
    PREFILLING,
    QUEUE,
    QUEUED,
    RECORDED,
    RECORDS,
    REJECTED,
    SEAT,
    SEAT_SECONDS,
    SEATS,
    SHORTEST,
    STALL,
    STATIC,
    STEPS,
    TOKEN_STEPS,
    WAITING,
    WIDTH,
    Replicas,
    Rules,
    blocks_for,
    compiled,
    context_units,
    drop,
    enqueue,
    inlined,
    insert,
    push,
    remove,
    request_blocks,
    sink,
)


@compiled
def arrive(q: Any, p: Replicas, rules: Rules, r: int, i: int) -> bool:
    """Put a request into the queue of a replica, or reject it if it cannot be served.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
        i: Index of the request.

    Returns:
        True if it is in the queue, False if it is rejected.
    """
    room = q[i].inputs + q[i].outputs
    q[i].replica = r
    q[i].ready = q[i].arrival + rules.before + rules.before_token * q[i].inputs
    if (
        q[i].inputs < 1
        or q[i].outputs < 1
        or room > rules.longest
        or blocks_for(rules, room * rules.unit + (rules.growth if rules.unit > 1 else 0)) > rules.blocks
    ):
        q[i].status = REJECTED
        return False
    q[i].status = WAITING
    enqueue(q, p.lists, r, i)
    p.count[r, QUEUED] += 1
    return True


@compiled
def seat(q: Any, p: Replicas, rules: Rules, r: int, i: int) -> None:
    """Move a request from its queue to a slot and take the blocks of its prompt.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
        i: Index of the request.
    """
    remove(q, p.lists, r, QUEUE, i)
    insert(q, p.lists, r, SEAT, i, p.lists[r, q[i].rank, SEAT + 1])
    p.count[r, QUEUED] -= 1
    p.count[r, SEATS] += 1
    q[i].status = PREFILLING
    q[i].read = q[i].cached
    q[i].left = q[i].inputs + q[i].made - q[i].cached
    p.count[r, FREE] -= request_blocks(q, p, rules, r, i)
    if np.isnan(q[i].scheduled):
        q[i].scheduled = p.seconds[r, CLOCK]


@compiled
def join(q: Any, p: Replicas, rules: Rules, r: int, i: int) -> None:
    """Add a request to the decode batch after its prefill.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
        i: Index of the request.
    """
    steps = p.count[r, STEPS]
    owed = (q[i].outputs - q[i].made - 1) * rules.unit
    q[i].joined, q[i].end = steps, steps + (owed + rules.growth - 1) // rules.growth
    q[i].status = DECODING
    push(q, p.heap, r, p.count[r, LIVE], i)
    p.count[r, LIVE] += 1
    p.count[r, DECODES] += 1
    p.residue[r, (context_units(q, p, rules, r, i) - steps) % rules.block] += 1
    p.seconds[r, CONTEXT] += q[i].inputs + q[i].made + 1.0


@compiled
def leave(q: Any, p: Replicas, rules: Rules, r: int, i: int) -> None:
    """Release the slot and the blocks of a request, and its place in the decode batch.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
        i: Index of the request.
    """
    p.count[r, FREE] += request_blocks(q, p, rules, r, i)
    remove(q, p.lists, r, SEAT, i)
    p.count[r, SEATS] -= 1
    if q[i].status == DECODING:
        units = context_units(q, p, rules, r, i)
        p.count[r, DECODES] -= 1
        p.residue[r, (units - p.count[r, STEPS]) % rules.block] -= 1
        p.seconds[r, CONTEXT] -= units / rules.unit + 1.0


@compiled
def preempt(q: Any, p: Replicas, rules: Rules, r: int) -> None:
    """Preempt the last request of the lowest class, and put it first in its queue.

    Its cache is computed again.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
    """
    rank = rules.ranks - 1
    while p.lists[r, rank, SEAT + 1] < 0:
        rank -= 1
    i = p.lists[r, rank, SEAT + 1]
    output_tokens = q[i].made

    # A decoding request leaves the heap, one in prefill leaves the list of partial prompts.
    if q[i].status == DECODING:
        drop(q, p.heap, r, p.count[r, LIVE], i)
        p.count[r, LIVE] -= 1
        # Tokens made so far count as part of the prompt when the cache is computed again.
        output_tokens += 1 + rules.growth * (p.count[r, STEPS] - q[i].joined) // rules.unit
    else:
        k = 0
        while p.partials[r, k] != i:
            k += 1
        p.count[r, PARTIAL] -= 1
        for j in range(k, p.count[r, PARTIAL]):
            p.partials[r, j] = p.partials[r, j + 1]
    leave(q, p, rules, r, i)
    # Its cache came from a prefill pool and is lost.
    if q[i].cached == q[i].inputs:
        q[i].cached = 0
    q[i].made, q[i].status, q[i].load = output_tokens, WAITING, 0.0
    q[i].preempted += 1
    insert(q, p.lists, r, QUEUE, i, -1)
    p.count[r, QUEUED] += 1


@compiled
def finish(q: Any, p: Replicas, rules: Rules, r: int, i: int, following: Any) -> None:
    """Complete a request.

    In a closed loop, its client sends the next request when it has received the last token.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
        i: Index of the request.
        following: Next requests of the clients of a closed loop.
    """
    q[i].finish, q[i].status = p.seconds[r, CLOCK], DONE
    last_token_s = p.seconds[r, CLOCK] + rules.extra_delay * (q[i].first - q[i].scheduled)
    send_next(q, p, rules, r, last_token_s, following)


@compiled
def send_next(q: Any, p: Replicas, rules: Rules, r: int, now: float, following: Any) -> None:
    """Send the next request of a client of a closed loop to its replica.

    If the request is rejected, the client sends the one after it.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
        now: Time of arrival [s].
        following: Next requests of the clients of a closed loop.
    """
    while rules.closed and following[r] < len(q):
        k = following[r]
        following[r] = following[len(following) - len(q) + k]
        q[k].arrival = now
        if arrive(q, p, rules, r, k):
            break


@inlined
def pass_time(p: Replicas, r: int, seconds: float, free: float) -> None:
    """Advance the clock of a replica, its time-weighted counts and its timeline.

    Args:
        p: Replicas.
        r: Index of the replica.
        seconds: Busy time [s].
        free: Mean number of free blocks.
    """
    p.seconds[r, CLOCK] += seconds
    p.seconds[r, BUSY] += seconds
    p.seconds[r, SEAT_SECONDS] += seconds * p.count[r, SEATS]
    p.seconds[r, BLOCK_SECONDS] += seconds * free
    p.seconds[r, DECODE_SECONDS] += seconds * p.count[r, LIVE]
    record(p, r)


@compiled
def idle_until(p: Replicas, r: int, time: float) -> None:
    """Advance the clock of an idle replica and its timeline.

    Args:
        p: Replicas.
        r: Index of the replica.
        time: Time [s].
    """
    p.seconds[r, CLOCK] = time
    record(p, r)


@inlined
def record(p: Replicas, r: int) -> None:
    """Add a row to the timeline of a replica.

    When the timeline is full, every second row is removed.

    Args:
        p: Replicas.
        r: Index of the replica.
    """
    if p.seconds[r, CLOCK] < p.seconds[r, NEXT_RECORD]:
        return

    # Halve the resolution of a full timeline, so that its size stays fixed.
    k = p.count[r, RECORDED]
    if k == RECORDS:
        k = RECORDS // 2
        for j in range(k):
            for column in range(p.records.shape[2]):
                p.records[r, j, column] = p.records[r, 2 * j, column]
        p.seconds[r, EVERY] *= 2
    p.records[r, k, 0], p.records[r, k, 1] = p.seconds[r, CLOCK], p.count[r, SEATS]
    p.records[r, k, 2], p.records[r, k, 3] = p.count[r, LIVE], p.count[r, FREE]
    p.count[r, RECORDED] = k + 1
    p.seconds[r, NEXT_RECORD] = p.seconds[r, CLOCK] + p.seconds[r, EVERY]


@inlined
def record_gaps(p: Replicas, r: int, n: int, seconds: float) -> None:
    """Count the inter-token times of several decode steps.

    Prefill may have delayed the first step. A sequence that joined during the delay waited only for a part of
    it.

    Args:
        p: Replicas.
        r: Index of the replica.
        n: Number of steps.
        seconds: Time of all steps [s].
    """
    b = p.count[r, LIVE]
    p.seconds[r, TOKEN_STEPS] += n * b
    mean = seconds / n
    stalled = p.seconds[r, STALL]
    if stalled > 0.0:
        joined = min(p.count[r, JOINED], b)
        p.gaps[r, gap_bin(mean + stalled)] += b - joined
        for k in range(joined):
            p.gaps[r, gap_bin(mean + stalled - p.delays[r, k])] += 1
        n -= 1
    p.gaps[r, gap_bin(mean)] += n * b
    p.seconds[r, STALL], p.count[r, JOINED] = 0.0, 0


@compiled
def gap_bin(seconds: float) -> int:
    """Return the bin of an inter-token time in the histogram.

    Args:
        seconds: Inter-token time [s].

    Returns:
        Index of the bin.
    """
    return min(GAPS - 1, max(0, int(np.log(max(seconds, SHORTEST) / SHORTEST) / WIDTH)))


@inlined
def complete(q: Any, p: Replicas, rules: Rules, r: int, following: Any) -> None:
    """Complete every decoding request whose last step is done.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
        following: Next requests of the clients of a closed loop.
    """
    while p.count[r, LIVE] > 0 and q[p.heap[r, 0]].end <= p.count[r, STEPS]:
        i = p.heap[r, 0]
        size = p.count[r, LIVE] - 1
        sink(q, p.heap, r, size, 0, p.heap[r, size])
        p.count[r, LIVE] = size
        if rules.kind != STATIC:
            leave(q, p, rules, r, i)
        finish(q, p, rules, r, i, following)


@compiled
def clear(p: Replicas, rules: Rules, r: int) -> None:
    """Empty the slots of a static batch that is done.

    Args:
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
    """
    p.count[r, DECODES], p.count[r, SEATS], p.count[r, FREE] = 0, 0, rules.blocks
    p.seconds[r, CONTEXT] = 0.0
    for k in range(rules.block):
        p.residue[r, k] = 0
    for rank in range(rules.ranks):
        p.lists[r, rank, SEAT], p.lists[r, rank, SEAT + 1] = -1, -1


@inlined
def finish_prompts(q: Any, p: Replicas, rules: Rules, r: int, ends: int, following: Any) -> None:
    """Give requests their next token after prefill; unfinished ones start to decode.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
        ends: Number of requests in `Replicas.ends`.
        following: Next requests of the clients of a closed loop.
    """
    for k in range(ends):
        i = p.ends[k]
        if np.isnan(q[i].first):
            q[i].first = p.seconds[r, CLOCK]
        if q[i].outputs > q[i].made + 1:
            join(q, p, rules, r, i)
            # Until the next decode step, it waits only from now on.
            p.delays[r, p.count[r, JOINED]] = p.seconds[r, STALL]
            p.count[r, JOINED] += rules.kind == PREFILL_FIRST
        elif rules.kind == STATIC:
            finish(q, p, rules, r, i, following)
        else:
            leave(q, p, rules, r, i)
            finish(q, p, rules, r, i, following)


@inlined
def next_waiting(q: Any, p: Replicas, rules: Rules, r: int) -> int:
    """Return the next request to serve.

    It is the first one in the queue of the highest class whose first request is ready.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.

    Returns:
        Index of the request; -1 if no request is ready.
    """
    for rank in range(rules.ranks):
        i = p.lists[r, rank, QUEUE]
        if i >= 0 and q[i].ready <= p.seconds[r, CLOCK]:
            return int(i)
    return -1


@compiled
def next_front_ready(q: Any, p: Replicas, rules: Rules, r: int, after: float) -> Any:
    """Return when the next first request of a class becomes ready.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
        after: Requests that are ready by this time [s] do not count.

    Returns:
        Time [s]; infinite if there is no such request.
    """
    earliest = np.inf
    for rank in range(rules.ranks):
        i = p.lists[r, rank, QUEUE]
        if i >= 0 and after < q[i].ready < earliest:
            earliest = q[i].ready
    return earliest


@compiled
def count_ready(q: Any, p: Replicas, rules: Rules, r: int, now: float, max_count: int) -> int:
    """Return the number of requests that are ready in the queue.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
        now: Time [s].
        max_count: Largest number to return.

    Returns:
        Requests.
    """
    n = 0
    for rank in range(rules.ranks):
        i = p.lists[r, rank, QUEUE]
        while i >= 0 and n < max_count and q[i].ready <= now:
            n += 1
            i = q[i].after
    return n


@compiled
def next_ready(q: Any, p: Replicas, rules: Rules, r: int, after: float) -> Any:
    """Return when the next request becomes ready.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
        after: Requests that are ready by this time [s] do not count.

    Returns:
        Time [s]; infinite if there is no such request.
    """
    earliest = np.inf
    for rank in range(rules.ranks):
        i = p.lists[r, rank, QUEUE]
        while i >= 0 and q[i].ready <= after:
            i = q[i].after
        if i >= 0:
            earliest = min(earliest, q[i].ready)
    return earliest


@compiled
def first_arrival(q: Any, p: Replicas, rules: Rules, r: int, now: float) -> float:
    """Return the earliest arrival among the first ready requests of the classes.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
        now: Time [s].

    Returns:
        Time [s]; infinite if no request is ready.
    """
    earliest = np.inf
    for rank in range(rules.ranks):
        i = p.lists[r, rank, QUEUE]
        if i >= 0 and q[i].ready <= now:
            earliest = min(earliest, q[i].arrival)
    return earliest
