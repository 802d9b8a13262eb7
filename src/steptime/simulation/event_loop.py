r"""The event loop: continuous batching, simulated per request and not per token.

Events are an arrival that could get a slot, a completion, a prefill chunk, and a full cache. Between two
events the decode batch is constant, and its context grows by the same number each step. Therefore $n$ steps
take $n\,t_0 + t_1 (n C + g\,b\,n(n-1)/2)$ seconds. The loop jumps from event to event with that sum. The
tests compare it with a loop over all steps.

In a step, decoding sequences first take the blocks they need. Where these are too few, the last request of
the lowest class is preempted. Then the prompt in progress continues, and waiting requests get slots in order,
as long as the token budget, slots and free blocks last. This is the scheduler of vLLM v1. `PREFILL_FIRST`
steps either prefill or decode, as in SGLang and TensorRT-LLM.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from steptime.simulation.loop_state import (
    DECODING,
    DONE,
    GAPS,
    PREFILL_FIRST,
    PREFILLING,
    QUEUE,
    RECORDS,
    REJECTED,
    SEAT,
    SHORTEST,
    STATIC,
    TRAIN,
    WAITING,
    WIDTH,
    Rates,
    Replicas,
    Rules,
    compiled,
    entry,
    inlined,
)

# Share of an interval by which a train may be late and still counts as on time.
ROUND = 1e-9
FAR = 1 << 60


# --- heap of completions, and queues ------------------------------------------------------------------------------------


@compiled
def sooner(q: Any, i: int, j: int) -> bool:
    """Whether a request ends before another; of equal ends, the first sent is sooner.

    Args:
        q: Requests.
        i: Index of the request.
        j: Index of the other request.

    Returns:
        True if request `i` is sooner.
    """
    return bool(q[i].end < q[j].end or (q[i].end == q[j].end and i < j))


@compiled
def push(q: Any, heap: Any, r: int, size: int, i: int) -> None:
    """Insert a request into the heap of a replica, by its end.

    Args:
        q: Requests.
        heap: Heaps of all replicas.
        r: Index of the replica.
        size: Size of the heap before the insertion.
        i: Index of the request.
    """
    k = size
    while k > 0:
        parent = (k - 1) >> 1
        if not sooner(q, i, heap[r, parent]):
            break
        heap[r, k] = heap[r, parent]
        k = parent
    heap[r, k] = i


@compiled
def sink(q: Any, heap: Any, r: int, size: int, k: int, i: int) -> None:
    """Place a request at or below a position of a heap.

    Args:
        q: Requests.
        heap: Heaps of all replicas.
        r: Index of the replica.
        size: Size of the heap.
        k: Position.
        i: Index of the request.
    """
    while True:
        child = 2 * k + 1
        if child >= size:
            break
        if child + 1 < size and sooner(q, heap[r, child + 1], heap[r, child]):
            child += 1
        if not sooner(q, heap[r, child], i):
            break
        heap[r, k] = heap[r, child]
        k = child
    heap[r, k] = i


@compiled
def drop(q: Any, heap: Any, r: int, size: int, i: int) -> None:
    """Remove a request from a heap at any position.

    Args:
        q: Requests.
        heap: Heaps of all replicas.
        r: Index of the replica.
        size: Size of the heap before the removal.
        i: Index of the request.
    """
    k = 0
    while heap[r, k] != i:
        k += 1
    last = heap[r, size - 1]
    if k == size - 1:
        return
    while k > 0 and sooner(q, last, heap[r, (k - 1) >> 1]):
        heap[r, k] = heap[r, (k - 1) >> 1]
        k = (k - 1) >> 1
    sink(q, heap, r, size - 1, k, last)


@compiled
def insert(q: Any, lists: Any, r: int, head: int, i: int, b: int) -> None:
    """Insert a request into a list of its class.

    Args:
        q: Requests.
        lists: Lists of all replicas.
        r: Index of the replica.
        head: QUEUE or SEAT; the tail is in the next column.
        i: Index of the request.
        b: Request in front of it; -1 inserts at the front.
    """
    rank = q[i].rank
    a = q[b].after if b >= 0 else lists[r, rank, head]
    q[i].before, q[i].after = b, a
    if b >= 0:
        q[b].after = i
    else:
        lists[r, rank, head] = i
    if a >= 0:
        q[a].before = i
    else:
        lists[r, rank, head + 1] = i


@compiled
def enqueue(q: Any, lists: Any, r: int, i: int) -> None:
    """Insert a request into the queue of its class, by the time at which it is ready.

    Args:
        q: Requests.
        lists: Lists of all replicas.
        r: Index of the replica.
        i: Index of the request.
    """
    b = lists[r, q[i].rank, QUEUE + 1]
    while b >= 0 and q[b].ready > q[i].ready:
        b = q[b].before
    insert(q, lists, r, QUEUE, i, b)


@compiled
def remove(q: Any, lists: Any, r: int, head: int, i: int) -> None:
    """Remove a request from a list of its class.

    Args:
        q: Requests.
        lists: Lists of all replicas.
        r: Index of the replica.
        head: QUEUE or SEAT.
        i: Index of the request.
    """
    rank, a, b = q[i].rank, q[i].before, q[i].after
    if a >= 0:
        q[a].after = b
    else:
        lists[r, rank, head] = b
    if b >= 0:
        q[b].before = a
    else:
        lists[r, rank, head + 1] = a


# --- cache blocks -------------------------------------------------------------------------------------------------------


@compiled
def context_units(q: Any, p: Replicas, rules: Rules, r: int, i: int) -> Any:
    """Return the context in the cache of a decoding request.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
        i: Index of the request.

    Returns:
        Units of context (`Rules.unit` per token).
    """
    return (q[i].inputs + q[i].made) * rules.unit + rules.growth * (p.state[r].steps - q[i].joined)


@compiled
def blocks_for(rules: Rules, units: int) -> Any:
    """Return the blocks that a context needs.

    Args:
        rules: Scheduling rules.
        units: Units of context.

    Returns:
        Blocks.
    """
    return (units + rules.block - 1) // rules.block


@compiled
def request_blocks(q: Any, p: Replicas, rules: Rules, r: int, i: int) -> Any:
    """Return the cache blocks of a request in a slot.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
        i: Index of the request.

    Returns:
        Blocks.
    """
    if rules.reserve:
        return blocks_for(rules, (q[i].inputs + q[i].outputs) * rules.unit)
    if q[i].status == PREFILLING:
        return blocks_for(rules, (q[i].inputs + q[i].made) * rules.unit)
    return blocks_for(rules, context_units(q, p, rules, r, i))


@inlined
def blocks_needed(p: Replicas, rules: Rules, r: int) -> Any:
    """Return the blocks that the next decode step takes.

    It takes one for each sequence whose last block is full.

    Args:
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.

    Returns:
        Blocks.
    """
    if rules.reserve or p.state[r].decodes == 0:
        return 0
    if rules.unit > 1:
        return rules.growth * p.state[r].decodes
    return p.residue[r, (-p.state[r].steps) % rules.block]


@inlined
def steps_with_room(p: Replicas, rules: Rules, r: int, max_steps: int) -> Any:
    """Return the number of decode steps that the free blocks allow.

    Args:
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
        max_steps: Largest number to return.

    Returns:
        Steps.
    """
    free, b = p.state[r].free, p.state[r].decodes
    if rules.reserve:
        return max_steps
    if rules.unit > 1:
        return min(max_steps, free // (rules.growth * b))
    if b * (max_steps // rules.block + 1) <= free:
        return max_steps
    cycles = free // b
    n, free_left, offset = cycles * rules.block, free - cycles * b, -p.state[r].steps
    while n < max_steps:
        free_left -= p.residue[r, (offset - n) % rules.block]
        if free_left < 0:
            break
        n += 1
    return min(n, max_steps)


@inlined
def take_blocks(p: Replicas, rules: Rules, r: int, n: int) -> None:
    """Take the blocks of some decode steps, before the steps are counted.

    Args:
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
        n: Number of steps.
    """
    b = p.state[r].decodes
    if rules.reserve or b == 0:
        return
    if rules.unit > 1:
        p.state[r].free -= n * rules.growth * b
        return
    block_count, offset = (n // rules.block) * b, -p.state[r].steps
    for k in range(n % rules.block):
        block_count += p.residue[r, (offset - k) % rules.block]
    p.state[r].free -= block_count


# --- transitions of a request -------------------------------------------------------------------------------------------


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
    p.state[r].queued += 1
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
    p.state[r].queued -= 1
    p.state[r].seats += 1
    q[i].status = PREFILLING
    q[i].read = q[i].cached
    q[i].left = q[i].inputs + q[i].made - q[i].cached
    p.state[r].free -= request_blocks(q, p, rules, r, i)
    if np.isnan(q[i].scheduled):
        q[i].scheduled = p.state[r].clock


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
    steps = p.state[r].steps
    owed = (q[i].outputs - q[i].made - 1) * rules.unit
    q[i].joined, q[i].end = steps, steps + (owed + rules.growth - 1) // rules.growth
    q[i].status = DECODING
    push(q, p.heap, r, p.state[r].live, i)
    p.state[r].live += 1
    p.state[r].decodes += 1
    p.residue[r, (context_units(q, p, rules, r, i) - steps) % rules.block] += 1
    p.state[r].context += q[i].inputs + q[i].made + 1.0


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
    p.state[r].free += request_blocks(q, p, rules, r, i)
    remove(q, p.lists, r, SEAT, i)
    p.state[r].seats -= 1
    if q[i].status == DECODING:
        units = context_units(q, p, rules, r, i)
        p.state[r].decodes -= 1
        p.residue[r, (units - p.state[r].steps) % rules.block] -= 1
        p.state[r].context -= units / rules.unit + 1.0


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
        drop(q, p.heap, r, p.state[r].live, i)
        p.state[r].live -= 1
        # Tokens made so far count as part of the prompt when the cache is computed again.
        output_tokens += 1 + rules.growth * (p.state[r].steps - q[i].joined) // rules.unit
    else:
        k = 0
        while p.partials[r, k] != i:
            k += 1
        p.state[r].partial -= 1
        for j in range(k, p.state[r].partial):
            p.partials[r, j] = p.partials[r, j + 1]
    leave(q, p, rules, r, i)
    # Its cache came from a prefill pool and is lost.
    if q[i].cached == q[i].inputs:
        q[i].cached = 0
    q[i].made, q[i].status, q[i].load = output_tokens, WAITING, 0.0
    q[i].preempted += 1
    insert(q, p.lists, r, QUEUE, i, -1)
    p.state[r].queued += 1


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
    q[i].finish, q[i].status = p.state[r].clock, DONE
    last_token_s = p.state[r].clock + rules.extra_delay * (q[i].first - q[i].scheduled)
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
    p.state[r].clock += seconds
    p.state[r].busy += seconds
    p.state[r].seat_seconds += seconds * p.state[r].seats
    p.state[r].block_seconds += seconds * free
    p.state[r].decode_seconds += seconds * p.state[r].live
    record(p, r)


@compiled
def idle_until(p: Replicas, r: int, time: float) -> None:
    """Advance the clock of an idle replica and its timeline.

    Args:
        p: Replicas.
        r: Index of the replica.
        time: Time [s].
    """
    p.state[r].clock = time
    record(p, r)


@inlined
def record(p: Replicas, r: int) -> None:
    """Add a row to the timeline of a replica.

    When the timeline is full, every second row is removed.

    Args:
        p: Replicas.
        r: Index of the replica.
    """
    if p.state[r].clock < p.state[r].next_record:
        return

    # Halve the resolution of a full timeline, so that its size stays fixed.
    k = p.state[r].recorded
    if k == RECORDS:
        k = RECORDS // 2
        for j in range(k):
            for column in range(p.records.shape[2]):
                p.records[r, j, column] = p.records[r, 2 * j, column]
        p.state[r].every *= 2
    p.records[r, k, 0], p.records[r, k, 1] = p.state[r].clock, p.state[r].seats
    p.records[r, k, 2], p.records[r, k, 3] = p.state[r].live, p.state[r].free
    p.state[r].recorded = k + 1
    p.state[r].next_record = p.state[r].clock + p.state[r].every


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
    b = p.state[r].live
    p.state[r].token_steps += n * b
    mean = seconds / n
    stalled = p.state[r].stall
    if stalled > 0.0:
        joined = min(p.state[r].joined, b)
        p.gaps[r, gap_bin(mean + stalled)] += b - joined
        for k in range(joined):
            p.gaps[r, gap_bin(mean + stalled - p.delays[r, k])] += 1
        n -= 1
    p.gaps[r, gap_bin(mean)] += n * b
    p.state[r].stall, p.state[r].joined = 0.0, 0


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
    while p.state[r].live > 0 and q[p.heap[r, 0]].end <= p.state[r].steps:
        i = p.heap[r, 0]
        size = p.state[r].live - 1
        sink(q, p.heap, r, size, 0, p.heap[r, size])
        p.state[r].live = size
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
    p.state[r].decodes, p.state[r].seats, p.state[r].free = 0, 0, rules.blocks
    p.state[r].context = 0.0
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
            q[i].first = p.state[r].clock
        if q[i].outputs > q[i].made + 1:
            join(q, p, rules, r, i)
            # Until the next decode step, it waits only from now on.
            p.delays[r, p.state[r].joined] = p.state[r].stall
            p.state[r].joined += rules.kind == PREFILL_FIRST
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
        if i >= 0 and q[i].ready <= p.state[r].clock:
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


# --- steps --------------------------------------------------------------------------------------------------------------


@compiled
def run_time(rates: Rates, b: int, context: float, gain: float, n: int) -> Any:
    """Return the time of several decode steps with a constant batch.

    Args:
        rates: Coefficients of the step time.
        b: Decoding sequences.
        context: Sum of their contexts at the first step [tokens].
        gain: Tokens that the sum gains per step.
        n: Number of steps.

    Returns:
        Seconds.
    """
    return n * rates.decode[b] + rates.context[b] * (n * context + gain * (n * (n - 1.0) / 2.0))


@compiled
def rows_time(table: Any, before: int, rows: int) -> Any:
    """Return the time that more rows add to a pass; its last slope continues a table.

    Args:
        table: Seconds of a pass by rows.
        before: Rows of the pass.
        rows: Additional rows.

    Returns:
        Seconds.
    """
    last = len(table) - 1
    low, top = min(before, last), before + rows
    if top <= last:
        return table[top] - table[low]
    return table[last] + (table[last] - table[last - 1]) * (top - last) - table[low]


@entry
def joint_factor(table: Any, b: int, rows: int) -> Any:
    """Return the factor on the time of a mixed step, interpolated in a table.

    The axes of the table are powers of two, minus one.

    Args:
        table: Factors by decoding sequences and by prompt tokens.
        b: Decoding sequences.
        rows: Prompt tokens in the step.

    Returns:
        Factor; 1 where the table has one row or column.
    """
    last, end = len(table) - 1, len(table[0]) - 1
    if last < 1 or end < 1:
        return 1.0
    x, y = min(np.log2(1.0 + b), float(last)), min(np.log2(1.0 + rows), float(end))
    i, j = min(int(x), last - 1), min(int(y), end - 1)
    x, y = x - i, y - j
    return (1 - x) * ((1 - y) * table[i, j] + y * table[i, j + 1]) + x * ((1 - y) * table[i + 1, j] + y * table[i + 1, j + 1])


@entry
def mixed_time(
    rates: Rates,
    b: int,
    context: float,
    rows: int,
    pairs: float,
    keys: float,
    chunks: int,
    longest: int,
    hardest: float,
    max_rank_tokens: int,
) -> Any:
    """Return the time of a step with prefill chunks and decoding sequences.

    Chunks are divided among the data-parallel ranks. The busiest rank works while the others wait, and
    experts work on the rows of all ranks.

    Args:
        rates: Coefficients of the step time.
        b: Decoding sequences.
        context: Sum of their contexts [tokens].
        rows: Prompt tokens in the step.
        pairs: Pairs of query and key in the attention of the chunks.
        keys: Keys in the attention of the chunks.
        chunks: Number of chunks.
        longest: Tokens of the longest chunk.
        hardest: Longest attention time of one chunk [s].
        max_rank_tokens: Most prompt tokens of a rank.

    Returns:
        Seconds.
    """
    seconds = run_time(rates, b, context, 0.0, 1) + rows_time(rates.rows, b, rows)
    factor = joint_factor(rates.joint, b, rows)
    attention = rates.pair * pairs + rates.key * keys
    if rates.groups == 1:
        return factor * seconds + attention + rates.chunk * chunks
    groups = rates.groups
    mean_rank_tokens, before = (rows + groups - 1) // groups, (b + groups - 1) // groups
    turns = (chunks + groups - 1) // groups
    busiest = max(longest, mean_rank_tokens, min(max_rank_tokens, (rows * turns + chunks - 1) // chunks))
    hardest = max(hardest, attention * busiest / rows)
    return factor * (seconds + rows_time(rates.rank_rows, before, busiest)) + groups * hardest + rates.chunk * chunks


@compiled
def prefill_chunk(q: Any, i: int, budget: int, max_tokens: int) -> Any:
    """Prefill the next chunk of a prompt and update the request.

    Args:
        q: Requests.
        i: Index of the request.
        budget: Tokens left in the step.
        max_tokens: Most tokens of one chunk.

    Returns:
        Tokens of the chunk, pairs of query and key, and keys.
    """
    c = min(q[i].left, max(budget, 0), max_tokens)
    pairs = c * float(q[i].read) + c * (c + 1.0) / 2.0
    keys = float(q[i].read + c)
    q[i].read += c
    q[i].left -= c
    return c, pairs, keys


@compiled
def steps_until(rates: Rates, b: int, context: float, gain: float, seconds: float, max_steps: int) -> Any:
    """Return the minimum number of decode steps that take a given time.

    A quadratic equation gives the number, which is then corrected.

    Args:
        rates: Coefficients of the step time.
        b: Decoding sequences.
        context: Sum of their contexts [tokens].
        gain: Tokens that the sum gains per step.
        seconds: Time to reach [s].
        max_steps: Largest number to return.

    Returns:
        Steps, from 1 to `max_steps`.
    """
    slope = rates.context[b] * gain
    first = rates.decode[b] + rates.context[b] * context
    if first <= 0.0:
        return max_steps
    n = int(min(seconds / first, float(max_steps)))
    if slope > 0.0:
        linear = first - slope / 2
        n = int(min(2 * seconds / (linear + np.sqrt(linear * linear + 2 * slope * max(seconds, 0.0))), float(max_steps)))
    n = max(1, min(n, max_steps))
    while n > 1 and run_time(rates, b, context, gain, n - 1) >= seconds:
        n -= 1
    while n < max_steps and run_time(rates, b, context, gain, n) < seconds:
        n += 1
    return n


@inlined
def departure(q: Any, p: Replicas, rules: Rules, r: int) -> Any:
    """Return the time at which the next step of a replica starts.

    This is now, the departure of the next train, or the end of the wait of a static batch.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.

    Returns:
        Time [s].
    """
    now = p.state[r].clock
    if rules.kind == TRAIN:
        return max(now, np.ceil(now / rules.interval - ROUND) * rules.interval)
    if rules.kind == STATIC and p.state[r].seats == 0 and count_ready(q, p, rules, r, now, rules.seats) < rules.seats:
        return max(now, min(next_ready(q, p, rules, r, now), first_arrival(q, p, rules, r, now) + rules.patience))
    return now


@inlined
def waits_to_fill(q: Any, p: Replicas, rules: Rules, r: int, until: float) -> bool:
    """Whether a static batch that is not full continues to wait for requests.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
        until: Time of the next arrival [s].

    Returns:
        True if it waits.
    """
    if rules.kind != STATIC or p.state[r].seats > 0:
        return False
    now = p.state[r].clock
    leaves = first_arrival(q, p, rules, r, now) + rules.patience
    has_more = min(leaves, until, next_ready(q, p, rules, r, now)) < np.inf
    return now < leaves and has_more and count_ready(q, p, rules, r, now, rules.seats) < rules.seats


@inlined
def run_length(q: Any, p: Replicas, rules: Rules, rates: Rates, r: int, until: float, stop: bool) -> Any:
    """Return the number of decode steps until the next possible event.

    Events are a completion, a full cache, and an arrival that could get a slot.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        rates: Coefficients of the step time.
        r: Index of the replica.
        until: Time of the next arrival [s].
        stop: True if decode must not run past `until`.

    Returns:
        Steps, at least 1.
    """
    b, context = p.state[r].decodes, p.state[r].context
    gain = b * (rules.growth / rules.unit)
    n = q[p.heap[r, 0]].end - p.state[r].steps
    n = max(1, steps_with_room(p, rules, r, n))
    if rules.kind == TRAIN and run_time(rates, b, context + gain * (n - 1.0), gain, 1) > rules.interval:
        # Late trains are timed one by one.
        return 1
    waits = p.state[r].queued > 0 and rules.ranks == 1 and next_waiting(q, p, rules, r) >= 0
    blocked = rules.kind == STATIC or p.state[r].seats == rules.seats or waits
    horizon = until if stop or not blocked else np.inf
    if not blocked and p.state[r].queued > 0:
        horizon = min(horizon, next_front_ready(q, p, rules, r, p.state[r].clock))
    if horizon == np.inf:
        return n
    away = horizon - p.state[r].clock
    if rules.kind == TRAIN:
        return min(n, max(1, int(np.ceil(away / rules.interval - ROUND))))
    return steps_until(rates, b, context, gain, away, n)


@compiled
def advance(  # noqa: PLR0912, PLR0915  one step is one piece: it shares all it counts
    q: Any, p: Replicas, rules: Rules, rates: Rates, r: int, until: float, stop: bool, following: Any
) -> None:
    """Run a replica through every step that starts before a given time.

    Where the next arrival could not get a slot, steps that only decode run past `until`, unless `stop` is
    set.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        rates: Coefficients of the step time.
        r: Index of the replica.
        until: Time [s].
        stop: True if decode must not run past `until`.
        following: Next requests of the clients of a closed loop.
    """
    static, first = rules.kind == STATIC, rules.kind == PREFILL_FIRST
    while (p.state[r].seats > 0 or p.state[r].queued > 0) and p.state[r].clock < until:
        # All requests that arrived are still on their way to the queue.
        if p.state[r].seats == 0 and next_waiting(q, p, rules, r) < 0:
            wakes = next_front_ready(q, p, rules, r, p.state[r].clock)
            if wakes >= until and until < np.inf:
                return
            idle_until(p, r, wakes)
        leaves = departure(q, p, rules, r)
        if leaves >= until and until < np.inf:
            return
        # Otherwise no more requests come that would fill the batch.
        if leaves < np.inf:
            p.state[r].clock = leaves
        if waits_to_fill(q, p, rules, r, until):
            continue

        # Plan one step: decoding sequences take their blocks first, then prompts use the rest of the budget.
        decode = not first
        pressed = False
        rows, pairs, keys, chunks, ends, load, joins = 0, 0.0, 0.0, 0, 0, 0.0, 0
        longest, hardest = 0, 0.0
        while True:
            needed_blocks = blocks_needed(p, rules, r)
            while decode and needed_blocks > p.state[r].free:
                preempt(q, p, rules, r)
                pressed = True
                needed_blocks = blocks_needed(p, rules, r)

            # The budget counts the tokens of all data-parallel ranks; decoding sequences use their share first.
            budget = min(rules.budget - (rules.query * p.state[r].decodes if decode else 0), rules.reads * rates.groups)
            if static:
                budget = FAR if p.state[r].decodes == 0 else 0
            b = p.state[r].decodes if decode else 0
            max_chunk = FAR if static else max(1, min(rules.reads, rules.chunk - rules.query * (b // rates.groups)))
            partial_count = p.state[r].partial
            # Prompts in progress come before new ones.
            p.state[r].partial = 0
            partial_index = 0
            while budget > 0 or partial_index < partial_count:
                if partial_index < partial_count:
                    i = p.partials[r, partial_index]
                    partial_index += 1
                else:
                    if pressed or p.state[r].seats >= rules.seats or (first and decode):
                        break
                    i = next_waiting(q, p, rules, r)
                    if i < 0:
                        break
                    needs = (q[i].inputs + (q[i].outputs if rules.reserve else q[i].made)) * rules.unit
                    ready = q[i].inputs + q[i].made == q[i].cached
                    needs += rules.growth if ready and not rules.reserve else 0
                    if blocks_for(rules, needs) > p.state[r].free - needed_blocks:
                        break
                    seat(q, p, rules, r, i)
                    load += q[i].load
                    if ready:
                        q[i].first = p.state[r].clock if np.isnan(q[i].first) else q[i].first
                        join(q, p, rules, r, i)
                        joins += 1
                        needed_blocks = blocks_needed(p, rules, r)
                        budget -= rules.query
                        continue
                c, scored, reach = prefill_chunk(q, i, budget, max_chunk)
                if c > 0:
                    rows += c
                    pairs += scored
                    keys += reach
                    chunks += 1
                    budget -= c
                    longest, hardest = max(longest, c), max(hardest, rates.pair * scored + rates.key * reach)
                if q[i].left > 0:
                    p.partials[r, p.state[r].partial] = i
                    p.state[r].partial += 1
                else:
                    p.ends[ends] = i
                    ends += 1
            if rows > 0 or decode:
                break
            # Prefill comes first, but there are no prompts.
            decode = True

        # Without prefill, many equal decode steps run as one jump.
        b = p.state[r].decodes if decode else 0
        gain = b * (rules.growth / rules.unit)
        n = 1
        if rows == 0:
            if b == 0:
                return
            # The next step has its own budget for the requests that wait.
            has_waiting = joins > 0 and (first or budget <= 0)
            n = 1 if pressed or load > 0.0 or has_waiting else run_length(q, p, rules, rates, r, until, stop)
            seconds = load + run_time(rates, b, p.state[r].context, gain, n)
        else:
            context = p.state[r].context if b > 0 else 0.0
            reads = FAR if static else min(rules.reads, (rules.budget + rates.groups - 1) // rates.groups)
            seconds = load + mixed_time(rates, b, context, rows, pairs, keys, chunks, longest, hardest, reads)
        if rules.kind == TRAIN:
            seconds = n * rules.interval * max(1.0, np.ceil(seconds / (n * rules.interval) - ROUND))
        free = float(p.state[r].free)
        if b > 0:
            take_blocks(p, rules, r, n)
            record_gaps(p, r, n, seconds)
            p.state[r].steps += n
            p.state[r].context += n * gain
        # Decoding sequences wait while a step only prefills.
        elif p.state[r].decodes > 0:
            p.state[r].stall += seconds
        pass_time(p, r, seconds, (free + p.state[r].free) / 2)
        # Rounding errors must not add up: the clock stays at multiples of the interval.
        if rules.kind == TRAIN:
            p.state[r].clock = np.rint(p.state[r].clock / rules.interval) * rules.interval
        if b > 0:
            complete(q, p, rules, r, following)
        if ends > 0:
            finish_prompts(q, p, rules, r, ends, following)
        if static and p.state[r].live == 0:
            clear(p, rules, r)


@compiled
def least_loaded(p: Replicas) -> int:
    """Return the replica with the fewest requests in slots and queue.

    Args:
        p: Replicas.

    Returns:
        Index of the replica; of equals the first.
    """
    best = 0
    for r in range(1, len(p.state)):
        if p.state[r].seats + p.state[r].queued < p.state[best].seats + p.state[best].queued:
            best = r
    return best


@entry
def serve(q: Any, p: Replicas, rules: Rules, rates: Rates, route: Any, following: Any, begin: int, end: int) -> None:
    """Send a range of requests to their replicas in order of arrival.

    The replicas run until the last arrival of the range, and to the end if `end` is beyond the last request.
    In a closed loop, clients stay with their replica.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        rates: Coefficients of the step time.
        route: Replica of each request; empty for the lowest load.
        following: Next request of the clients of each replica, then the successor of each request.
        begin: First request.
        end: Request after the last.
    """
    n = len(q)
    if rules.closed:
        for r in range(len(following) - len(q)):
            n = min(n, following[r])
    for i in range(begin, min(end, n + 1)):
        t = q[i].arrival if i < n else np.inf
        routed = len(route) > 0 and i < n
        low, high = (route[i], route[i] + 1) if routed else (0, len(p.state))
        for r in range(low, high):
            advance(q, p, rules, rates, r, t, rules.closed or len(route) == 0, following)
        if i < n:
            r = route[i] if routed else least_loaded(p)
            waits = p.state[r].queued > 0 and rules.kind != STATIC
            if p.state[r].seats == 0 and not waits and p.state[r].clock < t:
                idle_until(p, r, t)
            if not arrive(q, p, rules, r, i):
                send_next(q, p, rules, r, t, following)
