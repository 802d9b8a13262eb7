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
    ATTENTION_BY_RANK,
    BLOCK_SECONDS,
    BUSY,
    CHOSEN_BY_RANK,
    CLOCK,
    CONTEXT,
    CONTEXT_BY_RANK,
    DECODE_SECONDS,
    DECODES,
    DECODES_BY_RANK,
    DECODING,
    DONE,
    ENDS,
    EVERY,
    EXIT,
    FREE,
    GAPS,
    JOINED,
    LINK_FREE,
    LIVE,
    NEXT_RANK,
    NEXT_RECORD,
    PARTIAL,
    PASS,
    PREFILL_FIRST,
    PREFILLING,
    QUEUE,
    QUEUED,
    QUEUED_BY_RANK,
    RECORDED,
    RECORDS,
    REJECTED,
    SEAT,
    SEAT_SECONDS,
    SEATS,
    SEATS_BY_RANK,
    SHORTEST,
    STAGE_FREE,
    STALL,
    STATIC,
    STEPS,
    TOKEN_STEPS,
    TOKENS_BY_RANK,
    TRAIN,
    WAITING,
    WIDTH,
    Rates,
    Replicas,
    Rules,
    compiled,
    entry,
    inlined,
    inlined_entry,
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
    """Insert a request into a list of its class and data-parallel rank.

    Args:
        q: Requests.
        lists: Lists of all replicas.
        r: Index of the replica.
        head: QUEUE or SEAT; the tail is in the next column.
        i: Index of the request.
        b: Request in front of it; -1 inserts at the front.
    """
    line = q[i].line
    a = q[b].after if b >= 0 else lists[r, line, head]
    q[i].before, q[i].after = b, a
    if b >= 0:
        q[b].after = i
    else:
        lists[r, line, head] = i
    if a >= 0:
        q[a].before = i
    else:
        lists[r, line, head + 1] = i


@compiled
def enqueue(q: Any, lists: Any, r: int, i: int) -> None:
    """Insert a request into the queue of its class and rank, by the time at which it is ready.

    Args:
        q: Requests.
        lists: Lists of all replicas.
        r: Index of the replica.
        i: Index of the request.
    """
    b = lists[r, q[i].line, QUEUE + 1]
    while b >= 0 and q[b].ready > q[i].ready:
        b = q[b].before
    insert(q, lists, r, QUEUE, i, b)


@compiled
def remove(q: Any, lists: Any, r: int, head: int, i: int) -> None:
    """Remove a request from a list of its class and data-parallel rank.

    Args:
        q: Requests.
        lists: Lists of all replicas.
        r: Index of the replica.
        head: QUEUE or SEAT.
        i: Index of the request.
    """
    line, a, b = q[i].line, q[i].before, q[i].after
    if a >= 0:
        q[a].after = b
    else:
        lists[r, line, head] = b
    if b >= 0:
        q[b].before = a
    else:
        lists[r, line, head + 1] = a


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
    return (q[i].inputs + q[i].made) * rules.unit + rules.growth * (p.count[r, STEPS] - q[i].joined)


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
def step_blocks(rules: Rules, residue: Any, row: int, b: int, steps: int) -> Any:
    """Return the blocks that sequences which decode together take in their next step.

    Args:
        rules: Scheduling rules.
        residue: Counts of cache lengths modulo the block size, of replicas or micro-batches.
        row: Row of the sequences.
        b: Number of sequences.
        steps: Decode steps of the row so far.

    Returns:
        Blocks.
    """
    if rules.reserve or b == 0:
        return 0
    return rules.growth * b if rules.unit > 1 else residue[row, (-steps) % rules.block]


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
    return step_blocks(rules, p.residue, r, p.count[r, DECODES], p.count[r, STEPS])


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
    free, b = p.count[r, FREE], p.count[r, DECODES]
    if rules.reserve:
        return max_steps
    if rules.unit > 1:
        return min(max_steps, free // (rules.growth * b))
    if b * (max_steps // rules.block + 1) <= free:
        return max_steps
    cycles = free // b
    n, free_left, offset = cycles * rules.block, free - cycles * b, -p.count[r, STEPS]
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
    b = p.count[r, DECODES]
    if rules.reserve or b == 0:
        return
    if rules.unit > 1:
        p.count[r, FREE] -= n * rules.growth * b
        return
    block_count, offset = (n // rules.block) * b, -p.count[r, STEPS]
    for k in range(n % rules.block):
        block_count += p.residue[r, (offset - k) % rules.block]
    p.count[r, FREE] -= block_count


# --- transitions of a request -------------------------------------------------------------------------------------------


@compiled
def arrive(q: Any, p: Replicas, rules: Rules, r: int, i: int) -> bool:
    """Put a request into the queue of a replica, or reject it if it cannot be served.

    Before its place in the queue, its cache is loaded from slower memory, while other requests run. Each data-parallel rank has
    one link, on which loads wait for each other. In vLLM such a request is in the state WAITING_FOR_REMOTE_KVS, and the
    scheduler goes on with the next one (`Scheduler.schedule`).

    References:
        https://github.com/vllm-project/vllm/blob/main/vllm/v1/core/sched/scheduler.py
        https://blog.vllm.ai/2026/01/08/kv-offloading-connector.html

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
        or blocks_for(rules, room * rules.unit + (rules.growth if rules.unit > 1 else 0)) > rules.blocks // rules.groups
    ):
        q[i].status = REJECTED
        return False
    q[i].status = WAITING
    q[i].line, group = q[i].rank, 0
    if rules.tracks:
        group = least_loaded_rank(p, rules, r, q[i].arrival)
        q[i].line = q[i].rank * rules.groups + group
        p.ranks[r, group, QUEUED_BY_RANK] += 1
    if q[i].load > 0.0:
        q[i].ready = max(q[i].ready, p.ranks[r, group, LINK_FREE]) + q[i].load
        p.ranks[r, group, LINK_FREE] = q[i].ready
    enqueue(q, p.lists, r, i)
    p.count[r, QUEUED] += 1
    return True


@inlined
def ending(p: Replicas, rules: Rules, r: int, g: int, now: float) -> float:
    """Return the requests of a data-parallel rank that end with a step under way.

    They have left their slot in the simulation, but not yet at this time.

    Args:
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
        g: Index of the rank.
        now: Time [s].

    Returns:
        Requests.
    """
    n = 0.0
    for k in range(rules.waves):
        if p.ranks[r, rules.groups + k, EXIT] > now:
            n += p.ranks[r, g, ENDS + k]
    return n


@compiled
def least_loaded_rank(p: Replicas, rules: Rules, r: int, now: float) -> int:
    """Return the data-parallel rank for a new request.

    It has the lowest score of 4 per waiting request and 1 per request in a slot, as the load balancer of vLLM. Of
    equals, it is the next one in turn.

    Args:
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
        now: Time of arrival [s].

    Returns:
        Index of the rank.
    """
    best, lowest = 0, np.inf
    first = p.count[r, NEXT_RANK] % rules.groups
    for k in range(rules.groups):
        # A remainder for each rank would take much of the time.
        g = first + k if first + k < rules.groups else first + k - rules.groups
        score = 4 * p.ranks[r, g, QUEUED_BY_RANK] + p.ranks[r, g, SEATS_BY_RANK] + ending(p, rules, r, g, now)
        if score < lowest:
            best, lowest = g, score
    p.count[r, NEXT_RANK] = best + 1
    return best


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
    insert(q, p.lists, r, SEAT, i, p.lists[r, q[i].line, SEAT + 1])
    p.count[r, QUEUED] -= 1
    p.count[r, SEATS] += 1
    if rules.tracks:
        p.ranks[r, q[i].line % rules.groups, QUEUED_BY_RANK] -= 1
        p.ranks[r, q[i].line % rules.groups, SEATS_BY_RANK] += 1
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
    if rules.stages > 1:
        q[i].load = p.seconds[r, CLOCK]
        enter_micro_batch(q, p, rules, r, p.count[r, PASS], i)
    else:
        push(q, p.heap, r, p.count[r, LIVE], i)
        p.residue[r, (context_units(q, p, rules, r, i) - steps) % rules.block] += 1
    p.count[r, LIVE] += 1
    p.count[r, DECODES] += 1
    p.seconds[r, CONTEXT] += q[i].inputs + q[i].made + 1.0
    if rules.tracks:
        p.ranks[r, q[i].line % rules.groups, DECODES_BY_RANK] += 1
        p.ranks[r, q[i].line % rules.groups, CONTEXT_BY_RANK] += q[i].inputs + q[i].made + 1.0


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
    units = 0
    if q[i].status == DECODING:
        units = context_units(q, p, rules, r, i)
        p.count[r, DECODES] -= 1
        if rules.stages == 1:
            p.residue[r, (units - p.count[r, STEPS]) % rules.block] -= 1
        p.seconds[r, CONTEXT] -= units / rules.unit + 1.0
    if rules.tracks:
        group = q[i].line % rules.groups
        p.ranks[r, group, SEATS_BY_RANK] -= 1
        if q[i].status == DECODING:
            p.ranks[r, group, DECODES_BY_RANK] -= 1
            p.ranks[r, group, CONTEXT_BY_RANK] -= units / rules.unit + 1.0


@inlined
def count_in_micro_batch(q: Any, p: Replicas, rules: Rules, row: int, i: int, units: int, sign: int) -> None:
    """Add a sequence to the counts of a micro-batch of a pipeline, or subtract it.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        row: Row of the micro-batch.
        i: Index of the request.
        units: Units of its cache (`context_units`) while it has its own counts of steps.
        sign: 1 or -1.
    """
    group = q[i].line % rules.groups
    p.sizes[row] += sign
    p.micro_residue[row, (units - p.steps[row]) % rules.block] += sign
    p.loads[row, group, 0] += sign
    p.loads[row, group, 1] += sign * (units / rules.unit + 1.0)


@compiled
def enter_micro_batch(q: Any, p: Replicas, rules: Rules, r: int, turn: int, i: int) -> None:
    """Add a sequence to a micro-batch of a pipeline, which then counts its steps.

    It waits for the next step since `load`: until then its micro-batch lists this time among the delays.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
        turn: Turn of the micro-batch.
        i: Index of the request.
    """
    row = r * (rules.waves + 1) + turn
    q[i].turn = turn
    count_in_micro_batch(q, p, rules, row, i, context_units(q, p, rules, r, i), 1)
    q[i].joined += p.steps[row]
    q[i].end += p.steps[row]
    push(q, p.micro_batches, row, p.sizes[row] - 1, i)
    p.delays[r, p.count[r, JOINED]] = q[i].load
    p.count[r, JOINED] += 1


@inlined
def leave_micro_batch(q: Any, p: Replicas, rules: Rules, r: int, i: int) -> None:
    """Take a sequence out of the counts of its micro-batch of a pipeline, and give it its own.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
        i: Index of the request, which is no longer in the heap of the micro-batch.
    """
    row = r * (rules.waves + 1) + q[i].turn
    q[i].joined -= p.steps[row]
    q[i].end -= p.steps[row]
    count_in_micro_batch(q, p, rules, row, i, context_units(q, p, rules, r, i), -1)


@compiled
def empty_micro_batch(q: Any, p: Replicas, rules: Rules, r: int, turn: int, target_turn: int) -> None:
    """Move the sequences of a micro-batch of a pipeline, which has left the last stage, to another one.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
        turn: Turn of the micro-batch.
        target_turn: Turn of the other one.
    """
    row = r * (rules.waves + 1) + turn
    while p.sizes[row] > 0:
        i = p.micro_batches[row, p.sizes[row] - 1]
        leave_micro_batch(q, p, rules, r, i)
        if turn < rules.waves:
            q[i].load = max(q[i].load, p.ranks[r, rules.groups + turn, EXIT])
        enter_micro_batch(q, p, rules, r, target_turn, i)


@compiled
def preempt(q: Any, p: Replicas, rules: Rules, r: int) -> None:
    """Preempt the last request of the lowest class, and put it first in its queue.

    Its cache is computed again. With several data-parallel ranks it is on the rank with the most requests.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
    """
    i = -1
    for rank in range(rules.ranks - 1, -1, -1):
        most_seats = -1.0
        for g in range(rules.groups):
            last = p.lists[r, rank * rules.groups + g, SEAT + 1]
            if last >= 0 and p.ranks[r, g, SEATS_BY_RANK] > most_seats:
                i, most_seats = last, p.ranks[r, g, SEATS_BY_RANK]
        if i >= 0:
            break
    group = q[i].line % rules.groups
    output_tokens = q[i].made

    # A decoding request leaves the heap; one in prefill is no longer the partial prompt of its rank.
    if q[i].status == DECODING:
        if rules.stages == 1:
            drop(q, p.heap, r, p.count[r, LIVE], i)
            p.count[r, LIVE] -= 1
        else:
            row = r * (rules.waves + 1) + q[i].turn
            drop(q, p.micro_batches, row, p.sizes[row], i)
            leave_micro_batch(q, p, rules, r, i)
        # Tokens made so far count as part of the prompt when the cache is computed again.
        output_tokens += 1 + rules.growth * (p.count[r, STEPS] - q[i].joined) // rules.unit
    else:
        p.lists[r, group, PARTIAL] = -1
    leave(q, p, rules, r, i)
    # Its cache came from a prefill pool and is lost.
    if q[i].cached == q[i].inputs:
        q[i].cached = 0
    q[i].made, q[i].status, q[i].load = output_tokens, WAITING, 0.0
    q[i].preempted += 1
    insert(q, p.lists, r, QUEUE, i, -1)
    p.count[r, QUEUED] += 1
    if rules.tracks:
        p.ranks[r, group, QUEUED_BY_RANK] += 1


@compiled
def finish(q: Any, p: Replicas, rules: Rules, r: int, i: int, now: float, following: Any) -> None:
    """Complete a request.

    In a closed loop, its client sends the next request when it has received the last token.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
        i: Index of the request.
        now: Time of its last token [s].
        following: Next requests of the clients of a closed loop.
    """
    q[i].finish, q[i].status = now, DONE
    last_token_s = now + rules.extra_delay * (q[i].first - q[i].scheduled)
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
    p.records[r, k, 0], p.records[r, k, 1], p.records[r, k, 2] = p.seconds[r, CLOCK], p.count[r, LIVE], p.count[r, FREE]
    p.records[r, k, 3], p.records[r, k, 4] = p.seconds[r, BUSY], p.seconds[r, DECODE_SECONDS]
    p.records[r, k, 5] = p.seconds[r, BLOCK_SECONDS]
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
        if rules.tracks:
            p.ranks[r, q[i].line % rules.groups, ENDS + p.count[r, PASS]] += 1
        finish(q, p, rules, r, i, p.seconds[r, CLOCK], following)


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
    for line in range(rules.ranks * rules.groups):
        p.lists[r, line, SEAT], p.lists[r, line, SEAT + 1] = -1, -1
    for g in range(rules.groups):
        p.ranks[r, g, SEATS_BY_RANK], p.ranks[r, g, DECODES_BY_RANK], p.ranks[r, g, CONTEXT_BY_RANK] = 0.0, 0.0, 0.0


@inlined
def finish_prompts(q: Any, p: Replicas, rules: Rules, r: int, ends: int, now: float, following: Any) -> None:
    """Give requests their next token after prefill; unfinished ones start to decode.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
        ends: Number of requests in `Replicas.ends`.
        now: Time at which their prompts have left the last stage [s].
        following: Next requests of the clients of a closed loop.
    """
    for k in range(ends):
        i = p.ends[k]
        if np.isnan(q[i].first):
            q[i].first = now
        if q[i].outputs > q[i].made + 1:
            join(q, p, rules, r, i)
            # Until the next decode step, it waits only from now on.
            p.delays[r, p.count[r, JOINED]] = p.seconds[r, STALL]
            p.count[r, JOINED] += rules.kind == PREFILL_FIRST and rules.stages == 1
        elif rules.kind == STATIC:
            finish(q, p, rules, r, i, now, following)
        else:
            leave(q, p, rules, r, i)
            if rules.tracks:
                p.ranks[r, q[i].line % rules.groups, ENDS + p.count[r, PASS]] += 1
            finish(q, p, rules, r, i, now, following)


@inlined
def next_waiting(q: Any, p: Replicas, rules: Rules, r: int, group: int) -> int:
    """Return the next request of a data-parallel rank to serve.

    It is the first one in the queue of the highest class whose first request is ready.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
        group: Index of the rank.

    Returns:
        Index of the request; -1 if no request is ready.
    """
    for rank in range(rules.ranks):
        i = p.lists[r, rank * rules.groups + group, QUEUE]
        if i >= 0 and q[i].ready <= p.seconds[r, CLOCK]:
            return int(i)
    return -1


@inlined
def has_ready(q: Any, p: Replicas, rules: Rules, r: int) -> bool:
    """Whether a request is ready in the queue of any data-parallel rank.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.

    Returns:
        True if one is ready.
    """
    for line in range(rules.ranks * rules.groups):
        i = p.lists[r, line, QUEUE]
        if i >= 0 and q[i].ready <= p.seconds[r, CLOCK]:
            return True
    return False


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
    for line in range(rules.ranks * rules.groups):
        i = p.lists[r, line, QUEUE]
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
    for line in range(rules.ranks * rules.groups):
        i = p.lists[r, line, QUEUE]
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
    for line in range(rules.ranks * rules.groups):
        i = p.lists[r, line, QUEUE]
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
    for line in range(rules.ranks * rules.groups):
        i = p.lists[r, line, QUEUE]
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


@inlined
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


@inlined_entry
def joint_factor(table: Any, b: int, rows: int) -> Any:
    """Return the factor on the time of a mixed step, or its slack [s], interpolated in a table.

    The axes of the table are powers of two, minus one.

    Args:
        table: Factors or seconds by decoding sequences and by prompt tokens.
        b: Decoding sequences.
        rows: Prompt tokens in the step.

    Returns:
        Interpolated value; the first one where the table has one row or column.
    """
    last, end = len(table) - 1, len(table[0]) - 1
    if last < 1 or end < 1:
        return table[0, 0]
    x, y = min(np.log2(1.0 + b), float(last)), min(np.log2(1.0 + rows), float(end))
    i, j = min(int(x), last - 1), min(int(y), end - 1)
    x, y = x - i, y - j
    return (1 - x) * ((1 - y) * table[i, j] + y * table[i, j + 1]) + x * ((1 - y) * table[i + 1, j] + y * table[i + 1, j + 1])


@inlined
def launch_seconds(rates: Rates, b: int, sequences: int, rows: int) -> Any:
    """Return the minimum time of a step with prompts, whose kernels the host launches.

    Args:
        rates: Coefficients of the step time.
        b: Decoding sequences.
        sequences: Those of a data-parallel rank.
        rows: Prompt tokens of the rank with the most.

    Returns:
        Seconds; 0 without prompts, and for a step that runs as CUDA graphs.
    """
    if rows == 0 or rates.query * sequences + rows <= rates.graph_tokens:
        return 0.0
    return rates.least[min(b, len(rates.least) - 1)]


@compiled
def single_rank_time(rates: Rates, b: int, context: float, rows: int, attention: float, chunks: int) -> Any:
    """Return the time of a step with prefill chunks and decoding sequences on one data-parallel rank.

    Args:
        rates: Coefficients of the step time.
        b: Decoding sequences.
        context: Sum of their contexts [tokens].
        rows: Prompt tokens in the step.
        attention: Time of the attention of all chunks [s].
        chunks: Number of chunks.

    Returns:
        Seconds.
    """
    seconds = run_time(rates, b, context, 0.0, 1) + rows_time(rates.rows, b, rows)
    if len(rates.slack) > 1:
        attention = max(attention - joint_factor(rates.slack, b, rows), 0.0)
    seconds = joint_factor(rates.joint, b, rows) * seconds + attention + rates.chunk * chunks
    return max(seconds, launch_seconds(rates, b, b, rows))


@inlined_entry
def mixed_time(
    p: Replicas,
    rates: Rates,
    r: int,
    b: int,
    context: float,
    column: int,
    rows: int,
    attention: float,
    chunks: int,
    waves: int,
) -> Any:
    """Return the time of a step with prefill chunks and decoding sequences.

    Each chunk belongs to a data-parallel rank. The rank with the most work sets the time of all, and experts work on
    the rows of all ranks. With `waves` > 1 the step is one of as many equal ones under way in a pipeline. The
    result is the time of all of them.

    Args:
        p: Replicas, with the prompt tokens and the attention of each rank in the step.
        rates: Coefficients of the step time.
        r: Index of the replica.
        b: Decoding sequences.
        context: Sum of their contexts [tokens].
        column: Column of `Replicas.ranks` with the contexts of each rank.
        rows: Prompt tokens in the step.
        attention: Time of the attention of all chunks [s].
        chunks: Number of chunks.
        waves: Equal steps under way in a pipeline.

    Returns:
        Seconds.
    """
    b, context, rows, chunks = waves * b, waves * context, waves * rows, waves * chunks
    factor, slack = joint_factor(rates.joint, b, rows) if rows > 0 else 1.0, joint_factor(rates.slack, b, rows)
    # A micro-batch may have more than its share of the sequences. Step times rise only where all micro-batches get one more.
    last = len(rates.decode) - 1
    k, groups, stair = min(b, last), rates.groups, min(waves, last)
    base = rates.decode[k] + (b - k) * (rates.decode[last] - rates.decode[last - stair]) / stair
    if groups == 1:
        seconds = base + rates.context[k] * context + rows_time(rates.rows, b, rows)
        seconds = factor * seconds + max(waves * attention - slack, 0.0) + rates.chunk * chunks
        return max(seconds, launch_seconds(rates, b, b, rows))
    before, busiest, most_tokens = (b + groups - 1) // groups, 0.0, 0
    for g in range(groups):
        rank = max(waves * groups * p.ranks[r, g, ATTENTION_BY_RANK] - slack, 0.0)
        tokens = waves * int(p.ranks[r, g, TOKENS_BY_RANK])
        most_tokens = max(most_tokens, tokens)
        rank += factor * (rows_time(rates.rank_rows, before, tokens) if tokens > 0 else 0.0)
        if context > 0.0:
            rank += factor * rates.context[k] * groups * waves * p.ranks[r, g, column]
        busiest = max(busiest, rank)
    seconds = factor * (base + rows_time(rates.rows, b, rows)) + busiest + rates.chunk * chunks
    return max(seconds, launch_seconds(rates, b, before, most_tokens))


@inlined
def decode_context(p: Replicas, rules: Rules, r: int) -> Any:
    """Return the context of a decode step, and what a step adds to it.

    With several data-parallel ranks, it is that of all ranks if each had the context of the one with the most.

    Args:
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.

    Returns:
        Tokens of all sequences, and tokens per step.
    """
    growth = rules.growth / rules.unit
    if rules.groups == 1:
        return p.seconds[r, CONTEXT], growth * p.count[r, DECODES]
    longest_rank = 0
    for g in range(1, rules.groups):
        if p.ranks[r, g, CONTEXT_BY_RANK] > p.ranks[r, longest_rank, CONTEXT_BY_RANK]:
            longest_rank = g
    return rules.groups * p.ranks[r, longest_rank, CONTEXT_BY_RANK], growth * rules.groups * p.ranks[
        r, longest_rank, DECODES_BY_RANK
    ]


@inlined
def leave_pipeline(p: Replicas, rules: Rules, r: int, seconds: float) -> Any:
    """Send a micro-batch through the stages of a pipeline, and return when it leaves the last one.

    It waits before each stage until the micro-batch in front has left the stage.

    Args:
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
        seconds: Time in one stage [s].

    Returns:
        Time [s].
    """
    moment = p.seconds[r, CLOCK]
    for k in range(rules.stages):
        moment = max(moment, p.ranks[r, rules.groups + k, STAGE_FREE]) + seconds
        p.ranks[r, rules.groups + k, STAGE_FREE] = moment
    return moment


@inlined
def next_exit(p: Replicas, rules: Rules, r: int) -> float:
    """Return when the next micro-batch leaves a pipeline.

    Args:
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.

    Returns:
        Time [s]; infinite if none is under way.
    """
    earliest = np.inf
    for k in range(rules.waves):
        if p.seconds[r, CLOCK] < p.ranks[r, rules.groups + k, EXIT] < earliest:
            earliest = p.ranks[r, rules.groups + k, EXIT]
    return earliest


@compiled
def prefill_chunk(q: Any, i: int, budget: int) -> Any:
    """Prefill the next chunk of a prompt and update the request.

    Args:
        q: Requests.
        i: Index of the request.
        budget: Tokens left in the step.

    Returns:
        Tokens of the chunk, pairs of query and key, and keys.
    """
    c = min(q[i].left, budget)
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
    now = p.seconds[r, CLOCK]
    if rules.kind == TRAIN:
        return max(now, np.ceil(now / rules.interval - ROUND) * rules.interval)
    if rules.kind == STATIC and p.count[r, SEATS] == 0 and count_ready(q, p, rules, r, now, rules.seats) < rules.seats:
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
    if rules.kind != STATIC or p.count[r, SEATS] > 0:
        return False
    now = p.seconds[r, CLOCK]
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
    b = p.count[r, DECODES]
    context, gain = decode_context(p, rules, r)
    n = q[p.heap[r, 0]].end - p.count[r, STEPS]
    n = max(1, steps_with_room(p, rules, r, n))
    if rules.kind == TRAIN and run_time(rates, b, context + gain * (n - 1.0), gain, 1) > rules.interval:
        # Late trains are timed one by one.
        return 1
    waits = p.count[r, QUEUED] > 0 and rules.ranks * rules.groups == 1 and next_waiting(q, p, rules, r, 0) >= 0
    is_full = p.count[r, SEATS] == rules.seats and rules.groups == 1
    blocked = rules.kind == STATIC or is_full or waits
    horizon = until if stop or not blocked else np.inf
    if not blocked and p.count[r, QUEUED] > 0:
        horizon = min(horizon, next_front_ready(q, p, rules, r, p.seconds[r, CLOCK]))
    if horizon == np.inf:
        return n
    away = horizon - p.seconds[r, CLOCK]
    if rules.kind == TRAIN:
        return min(n, max(1, int(np.ceil(away / rules.interval - ROUND))))
    return steps_until(rates, b, context, gain, away, n)


@inlined
def prefill_rank(
    q: Any, p: Replicas, rules: Rules, rates: Rates, r: int, g: int, budget: int, needed_blocks: int, ends: int, admits: bool
) -> Any:
    """Choose the prompts of a data-parallel rank in the next step, and give slots to waiting requests.

    The prompt in progress comes before new ones. Prompts that end are added to `Replicas.ends`.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        rates: Coefficients of the step time.
        r: Index of the replica.
        g: Index of the rank.
        budget: Tokens for prompts.
        needed_blocks: Blocks that decoding sequences take in the step.
        ends: Number of prompts in `Replicas.ends`.
        admits: Whether waiting requests get slots.

    Returns:
        Tokens left, blocks needed, prompt tokens, their attention [s], chunks, prompts in `Replicas.ends`, and requests that
        start to decode.
    """
    rows, attention, chunks, joins, admitted = 0, 0.0, 0, 0, 0
    # Each rank has its part of the cache: a long prompt waits for its own rank only.
    rank_units = rules.blocks // rules.groups * rules.block
    seats = rules.seats - p.count[r, SEATS]
    if rules.groups * rules.stages > 1:
        seats = min(seats, rules.rank_seats - int(p.ranks[r, g, SEATS_BY_RANK]))
        seats -= int(ending(p, rules, r, g, p.seconds[r, CLOCK]))
    i = p.lists[r, g, PARTIAL]
    while budget > 0:
        if i < 0:
            if not admits or seats <= 0:
                break
            i = next_waiting(q, p, rules, r, g)
            if i < 0:
                break
            needs = (q[i].inputs + (q[i].outputs if rules.reserve else q[i].made)) * rules.unit
            ready = q[i].inputs + q[i].made == q[i].cached
            needs += rules.growth if ready and not rules.reserve else 0
            blocks = blocks_for(rules, needs)
            if blocks > p.count[r, FREE] - needed_blocks:
                break
            if rules.groups > 1:
                units = p.ranks[r, g, CONTEXT_BY_RANK] * rules.unit + admitted
                if units > 0 and units + needs > rank_units:
                    break
                admitted += needs
            seat(q, p, rules, r, i)
            seats -= 1
            if ready:
                q[i].first = p.seconds[r, CLOCK] if np.isnan(q[i].first) else q[i].first
                join(q, p, rules, r, i)
                needed_blocks += 0 if rules.reserve else blocks - blocks_for(rules, needs - rules.growth)
                i = -1
                joins += 1
                budget -= rules.query
                continue
        c, scored, reach = prefill_chunk(q, i, budget)
        rows += c
        attention += rates.pair * scored + rates.key * reach
        chunks += 1
        budget -= c
        p.lists[r, g, PARTIAL] = i
        if q[i].left == 0:
            p.ends[ends] = i
            ends += 1
            p.lists[r, g, PARTIAL] = -1
        i = -1
    if rules.groups > 1:
        p.ranks[r, g, TOKENS_BY_RANK], p.ranks[r, g, ATTENTION_BY_RANK] = rows, attention
    return budget, needed_blocks, rows, attention, chunks, ends, joins


@inlined
def choose_decodes(q: Any, p: Replicas, rules: Rules, r: int) -> Any:
    """Choose the sequences that decode in the next micro-batch of a pipeline, within the tokens of each rank.

    Those whose last token is still under way cannot. The others move to the micro-batch of this turn, and those without a
    place to the last row of the micro-batches.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.

    Returns:
        Blocks that the chosen sequences take.
    """
    turn, first_row = p.count[r, PASS], r * (rules.waves + 1)
    p.count[r, JOINED] = 0
    for g in range(rules.groups):
        p.ranks[r, g, ENDS + turn] = 0
    for other_turn in range(rules.waves):
        if (
            other_turn != turn
            and p.sizes[first_row + other_turn] > 0
            and p.ranks[r, rules.groups + other_turn, EXIT] <= p.seconds[r, CLOCK]
        ):
            empty_micro_batch(q, p, rules, r, other_turn, turn)
    if p.sizes[first_row + rules.waves] > 0:
        give_up_places(q, p, rules, r)
        empty_micro_batch(q, p, rules, r, rules.waves, turn)
    has_places = True
    for g in range(rules.groups):
        has_places = has_places and rules.query * p.loads[first_row + turn, g, 0] <= rules.budget
    return chosen_blocks(p, rules, r) if has_places else choose_in_order(q, p, rules, r)


@inlined
def chosen_blocks(p: Replicas, rules: Rules, r: int) -> Any:
    """Return the blocks that the micro-batch of this turn of a pipeline takes.

    Args:
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.

    Returns:
        Blocks.
    """
    row = r * (rules.waves + 1) + p.count[r, PASS]
    return step_blocks(rules, p.micro_residue, row, p.sizes[row], p.steps[row])


@compiled
def choose_in_order(q: Any, p: Replicas, rules: Rules, r: int) -> Any:
    """Choose the sequences of the next micro-batch as `choose_decodes`, where not all of them have a place.

    The first in a slot come first.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.

    Returns:
        Blocks that the chosen sequences take.
    """
    row, overflow_row, overflow_count = r * (rules.waves + 1) + p.count[r, PASS], (r + 1) * (rules.waves + 1) - 1, 0
    give_up_places(q, p, rules, r)
    for g in range(rules.groups):
        for rank in range(rules.ranks):
            i = p.lists[r, rank * rules.groups + g, SEAT]
            while i >= 0:
                if q[i].status == DECODING and q[i].turn == rules.waves:
                    if rules.query * (p.loads[row, g, 0] + 1) <= rules.budget:
                        leave_micro_batch(q, p, rules, r, i)
                        enter_micro_batch(q, p, rules, r, p.count[r, PASS], i)
                    else:
                        p.micro_batches[overflow_row, overflow_count] = i
                        overflow_count += 1
                i = q[i].after
    return chosen_blocks(p, rules, r)


@compiled
def give_up_places(q: Any, p: Replicas, rules: Rules, r: int) -> None:
    """Move the sequences of this turn of a pipeline to those without a place in a micro-batch.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
    """
    p.count[r, JOINED] = 0
    empty_micro_batch(q, p, rules, r, p.count[r, PASS], rules.waves)
    # Each of them now has its own time of its last token.
    p.ranks[r, rules.groups + p.count[r, PASS], EXIT] = 0.0
    p.count[r, JOINED] = 0


@compiled
def advance_pipeline(q: Any, p: Replicas, rules: Rules, rates: Rates, r: int, until: float, following: Any) -> None:
    """Schedule the micro-batches of a pipeline before a given time.

    Each one has the sequences that are not under way, and prompts. It is in one stage at a time. As many are under way as there
    are stages. The clock is that of the scheduler, which does not wait for the first stage: micro-batches wait in front of it.
    If sequences of several micro-batches were scheduled together after such a wait, they would stay together, and the others
    would be empty. The next chunk of a prompt follows the last one without a wait. This is the scheduler of vLLM v1, which
    fills its queue of batches before it takes results (`step_with_batch_queue`).

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        rates: Coefficients of the step time.
        r: Index of the replica.
        until: Time [s].
        following: Next requests of the clients of a closed loop.
    """
    first = rules.kind == PREFILL_FIRST
    while (p.count[r, SEATS] > 0 or p.count[r, QUEUED] > 0) and p.seconds[r, CLOCK] < until:
        # The oldest micro-batch must have left the last stage.
        turn = (p.count[r, PASS] + 1) % rules.waves
        begins = max(p.seconds[r, CLOCK], p.ranks[r, rules.groups + turn, EXIT])
        if begins >= until and until < np.inf:
            return
        p.seconds[r, CLOCK] = begins
        p.count[r, PASS] = turn

        # Choose the micro-batch as `advance` does: decoding sequences first, then prompts.
        needed_blocks, pressed = choose_decodes(q, p, rules, r), False
        while not first and needed_blocks > p.count[r, FREE]:
            preempt(q, p, rules, r)
            pressed = True
            needed_blocks = choose_in_order(q, p, rules, r)
        row = r * (rules.waves + 1) + turn
        rows, attention, chunks, ends, joins = 0, 0.0, 0, 0, 0
        for g in range(rules.groups):
            if rules.groups > 1:
                p.ranks[r, g, TOKENS_BY_RANK] = p.ranks[r, g, ATTENTION_BY_RANK] = 0.0
            if p.count[r, QUEUED] == 0 and p.lists[r, g, PARTIAL] < 0:
                continue
            budget = min(rules.budget - (0 if first else rules.query * int(p.loads[row, g, 0])), rules.reads)
            _, needed_blocks, c, work, n, ends, k = prefill_rank(
                q, p, rules, rates, r, g, budget, needed_blocks, ends, not pressed
            )
            rows, attention, chunks, joins = rows + c, attention + work, chunks + n, joins + k
        if first and rows > 0:
            give_up_places(q, p, rules, r)
        elif first and joins == 0:
            while needed_blocks > p.count[r, FREE]:
                preempt(q, p, rules, r)
                needed_blocks = choose_in_order(q, p, rules, r)

        # Without work, wait for a micro-batch that leaves the pipeline or a request that enters the queue.
        b = p.count[r, LIVE] = p.sizes[row]
        if rows == 0 and b == 0:
            p.count[r, PASS] = (turn - 1) % rules.waves
            wakes = min(next_exit(p, rules, r), next_front_ready(q, p, rules, r, p.seconds[r, CLOCK]))
            if wakes >= until or wakes == np.inf:
                return
            idle_until(p, r, wakes)
            continue
        context = 0.0
        for g in range(rules.groups):
            p.ranks[r, g, CHOSEN_BY_RANK] = p.loads[row, g, 1]
            context += p.loads[row, g, 1]
        seconds = mixed_time(p, rates, r, b, context, CHOSEN_BY_RANK, rows, attention, chunks, rules.waves) / rules.stages
        latest, last = leave_pipeline(p, rules, r, seconds), p.ranks[r, rules.groups + turn, EXIT]
        p.ranks[r, rules.groups + turn, EXIT] = latest
        p.count[r, LIVE] = p.count[r, DECODES]
        begins = p.seconds[r, CLOCK]
        pass_time(p, r, seconds, float(p.count[r, FREE]))
        p.seconds[r, CLOCK] = begins

        # The tokens of the micro-batch are known when it leaves the last stage.
        decode_micro_batch(q, p, rules, r, last, latest, following)
        if ends > 0:
            finish_prompts(q, p, rules, r, ends, latest, following)
    if until == np.inf:
        p.seconds[r, CLOCK] = max(p.seconds[r, CLOCK], p.ranks[r, rules.groups, STAGE_FREE])


@inlined
def decode_micro_batch(q: Any, p: Replicas, rules: Rules, r: int, last: float, now: float, following: Any) -> None:
    """Give the sequences of the micro-batch of this turn of a pipeline the tokens of one decode step.

    Args:
        q: Requests.
        p: Replicas.
        rules: Scheduling rules.
        r: Index of the replica.
        last: Time at which the micro-batch left the last stage before [s].
        now: Time at which it leaves the last stage [s].
        following: Next requests of the clients of a closed loop.
    """
    growth, row = rules.growth / rules.unit, r * (rules.waves + 1) + p.count[r, PASS]
    b = p.sizes[row]
    p.count[r, FREE] -= chosen_blocks(p, rules, r)
    if b > p.count[r, JOINED]:
        p.gaps[r, gap_bin(now - last)] += b - p.count[r, JOINED]
    for k in range(p.count[r, JOINED]):
        p.gaps[r, gap_bin(now - p.delays[r, k])] += 1
    p.count[r, JOINED] = 0
    p.seconds[r, TOKEN_STEPS] += b
    p.seconds[r, CONTEXT] += growth * b
    for g in range(rules.groups):
        p.ranks[r, g, CONTEXT_BY_RANK] += growth * p.loads[row, g, 0]
        p.loads[row, g, 1] += growth * p.loads[row, g, 0]
    p.steps[row] += 1
    while p.sizes[row] > 0 and q[p.micro_batches[row, 0]].end <= p.steps[row]:
        i = p.micro_batches[row, 0]
        sink(q, p.micro_batches, row, p.sizes[row] - 1, 0, p.micro_batches[row, p.sizes[row] - 1])
        leave_micro_batch(q, p, rules, r, i)
        leave(q, p, rules, r, i)
        p.ranks[r, q[i].line % rules.groups, ENDS + p.count[r, PASS]] += 1
        finish(q, p, rules, r, i, now, following)


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
    while (p.count[r, SEATS] > 0 or p.count[r, QUEUED] > 0) and p.seconds[r, CLOCK] < until:
        # All requests that arrived are still on their way to the queue.
        if p.count[r, SEATS] == 0 and not has_ready(q, p, rules, r):
            wakes = next_front_ready(q, p, rules, r, p.seconds[r, CLOCK])
            if wakes >= until and until < np.inf:
                return
            idle_until(p, r, wakes)
        leaves = departure(q, p, rules, r)
        if leaves >= until and until < np.inf:
            return
        # Otherwise no more requests come that would fill the batch.
        if leaves < np.inf:
            p.seconds[r, CLOCK] = leaves
        if waits_to_fill(q, p, rules, r, until):
            continue

        # Plan one step: decoding sequences take their blocks first, then prompts use the rest of the budget.
        decode = not first
        pressed = False
        if rules.tracks:
            for g in range(rules.groups):
                p.ranks[r, g, ENDS] = 0
        rows, attention, chunks, ends, joins = 0, 0.0, 0, 0, 0
        is_spent = False
        while True:
            needed_blocks = blocks_needed(p, rules, r)
            while decode and needed_blocks > p.count[r, FREE]:
                preempt(q, p, rules, r)
                pressed = True
                needed_blocks = blocks_needed(p, rules, r)

            # Each data-parallel rank has its own budget; its decoding sequences use their share first.
            for g in range(rules.groups):
                if rules.groups > 1:
                    p.ranks[r, g, TOKENS_BY_RANK] = p.ranks[r, g, ATTENTION_BY_RANK] = 0.0
                if p.count[r, QUEUED] == 0 and p.lists[r, g, PARTIAL] < 0:
                    continue
                budget = rules.budget
                if decode:
                    budget -= rules.query * (p.count[r, DECODES] if rules.groups == 1 else int(p.ranks[r, g, DECODES_BY_RANK]))
                budget = min(budget, rules.reads)
                if static:
                    budget = FAR if p.count[r, DECODES] == 0 else 0
                budget, needed_blocks, c, work, n, ends, k = prefill_rank(
                    q, p, rules, rates, r, g, budget, needed_blocks, ends, not pressed and not (first and decode)
                )
                rows, attention, chunks, joins = rows + c, attention + work, chunks + n, joins + k
                is_spent = is_spent or budget <= 0
            if rows > 0 or decode:
                break
            # Prefill comes first, but there are no prompts.
            decode = True

        # Without prefill, many equal decode steps run as one jump.
        b = p.count[r, DECODES] if decode else 0
        gain = b * (rules.growth / rules.unit)
        n = 1
        if rows == 0:
            if b == 0:
                return
            # The next step has its own budget for the requests that wait.
            has_waiting = joins > 0 and (first or is_spent)
            n = 1 if pressed or has_waiting else run_length(q, p, rules, rates, r, until, stop)
            context, longest_gain = decode_context(p, rules, r)
            seconds = run_time(rates, b, context, longest_gain, n)
        else:
            context = p.seconds[r, CONTEXT] if b > 0 else 0.0
            if rules.groups == 1:
                seconds = single_rank_time(rates, b, context, rows, attention, chunks)
            else:
                seconds = mixed_time(p, rates, r, b, context, CONTEXT_BY_RANK, rows, attention, chunks, 1)
        if rules.kind == TRAIN:
            seconds = n * rules.interval * max(1.0, np.ceil(seconds / (n * rules.interval) - ROUND))
        free = float(p.count[r, FREE])
        if b > 0:
            take_blocks(p, rules, r, n)
            record_gaps(p, r, n, seconds)
            p.count[r, STEPS] += n
            p.seconds[r, CONTEXT] += n * gain
            if rules.groups > 1:
                for g in range(rules.groups):
                    p.ranks[r, g, CONTEXT_BY_RANK] += n * p.ranks[r, g, DECODES_BY_RANK] * (rules.growth / rules.unit)
        # Decoding sequences wait while a step only prefills.
        elif p.count[r, DECODES] > 0:
            p.seconds[r, STALL] += seconds
        pass_time(p, r, seconds, (free + p.count[r, FREE]) / 2)
        # Rounding errors must not add up: the clock stays at multiples of the interval.
        if rules.kind == TRAIN:
            p.seconds[r, CLOCK] = np.rint(p.seconds[r, CLOCK] / rules.interval) * rules.interval
        if rules.tracks:
            p.ranks[r, rules.groups, EXIT] = p.seconds[r, CLOCK]
        if b > 0:
            complete(q, p, rules, r, following)
        if ends > 0:
            finish_prompts(q, p, rules, r, ends, p.seconds[r, CLOCK], following)
        if static and p.count[r, LIVE] == 0:
            clear(p, rules, r)


@compiled
def least_loaded(p: Replicas, rules: Rules, begin: int, now: float) -> int:
    """Return the replica with the fewest requests in slots and queue.

    Args:
        p: Replicas.
        rules: Scheduling rules.
        begin: Replica to look at first.
        now: Time [s].

    Returns:
        Index of the replica; of equals the next one in turn.
    """
    best, lowest = 0, np.inf
    first = begin % len(p.count)
    for k in range(len(p.count)):
        r = first + k if first + k < len(p.count) else first + k - len(p.count)
        load = float(p.count[r, SEATS] + p.count[r, QUEUED])
        if rules.tracks:
            for g in range(rules.groups):
                load += ending(p, rules, r, g, now)
        if load < lowest:
            best, lowest = r, load
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
        low, high = (route[i], route[i] + 1) if routed else (0, len(p.count))
        for r in range(low, high):
            # A call costs more than to see that there is nothing to do.
            if p.seconds[r, CLOCK] < t and (p.count[r, SEATS] > 0 or p.count[r, QUEUED] > 0):
                advance(q, p, rules, rates, r, t, rules.closed or len(route) == 0, following)
        if i < n:
            r = route[i] if routed else least_loaded(p, rules, i, t)
            waits = p.count[r, QUEUED] > 0 and rules.kind != STATIC
            if p.count[r, SEATS] == 0 and not waits and p.seconds[r, CLOCK] < t:
                idle_until(p, r, t)
            if not arrive(q, p, rules, r, i):
                send_next(q, p, rules, r, t, following)


@entry
def serve_pipeline(q: Any, p: Replicas, rules: Rules, rates: Rates, route: Any, following: Any, begin: int, end: int) -> None:
    """Send a range of requests to replicas whose pipelines run micro-batch by micro-batch; else as `serve`.

    It is separate, because code that `serve` shares with another caller is compiled to slower code.

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
        low, high = (route[i], route[i] + 1) if routed else (0, len(p.count))
        for r in range(low, high):
            advance_pipeline(q, p, rules, rates, r, t, following)
        if i < n:
            r = route[i] if routed else least_loaded(p, rules, i, t)
            if p.count[r, SEATS] == 0 and p.count[r, QUEUED] == 0 and p.seconds[r, CLOCK] < t:
                idle_until(p, r, t)
            if not arrive(q, p, rules, r, i):
                send_next(q, p, rules, r, t, following)
