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
    CLOCK,
    CONTEXT,
    DECODES,
    FREE,
    LIVE,
    PARTIAL,
    PREFILL_FIRST,
    QUEUED,
    SEATS,
    STALL,
    STATIC,
    STEPS,
    TRAIN,
    Rates,
    Replicas,
    Rules,
    blocks_for,
    blocks_needed,
    compiled,
    entry,
    inlined,
    steps_with_room,
    take_blocks,
)
from steptime.simulation.request_transitions import (
    arrive,
    clear,
    complete,
    count_ready,
    finish_prompts,
    first_arrival,
    idle_until,
    join,
    next_front_ready,
    next_ready,
    next_waiting,
    pass_time,
    preempt,
    record_gaps,
    seat,
    send_next,
)

# Share of an interval by which a train may be late and still counts as on time.
ROUND = 1e-9
FAR = 1 << 60


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
    b, context = p.count[r, DECODES], p.seconds[r, CONTEXT]
    gain = b * (rules.growth / rules.unit)
    n = q[p.heap[r, 0]].end - p.count[r, STEPS]
    n = max(1, steps_with_room(p, rules, r, n))
    if rules.kind == TRAIN and run_time(rates, b, context + gain * (n - 1.0), gain, 1) > rules.interval:
        # Late trains are timed one by one.
        return 1
    waits = p.count[r, QUEUED] > 0 and rules.ranks == 1 and next_waiting(q, p, rules, r) >= 0
    blocked = rules.kind == STATIC or p.count[r, SEATS] == rules.seats or waits
    horizon = until if stop or not blocked else np.inf
    if not blocked and p.count[r, QUEUED] > 0:
        horizon = min(horizon, next_front_ready(q, p, rules, r, p.seconds[r, CLOCK]))
    if horizon == np.inf:
        return n
    away = horizon - p.seconds[r, CLOCK]
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
    while (p.count[r, SEATS] > 0 or p.count[r, QUEUED] > 0) and p.seconds[r, CLOCK] < until:
        # All requests that arrived are still on their way to the queue.
        if p.count[r, SEATS] == 0 and next_waiting(q, p, rules, r) < 0:
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
        rows, pairs, keys, chunks, ends, load, joins = 0, 0.0, 0.0, 0, 0, 0.0, 0
        longest, hardest = 0, 0.0
        while True:
            needed_blocks = blocks_needed(p, rules, r)
            while decode and needed_blocks > p.count[r, FREE]:
                preempt(q, p, rules, r)
                pressed = True
                needed_blocks = blocks_needed(p, rules, r)

            # The budget counts the tokens of all data-parallel ranks; decoding sequences use their share first.
            budget = min(rules.budget - (rules.query * p.count[r, DECODES] if decode else 0), rules.reads * rates.groups)
            if static:
                budget = FAR if p.count[r, DECODES] == 0 else 0
            b = p.count[r, DECODES] if decode else 0
            max_chunk = FAR if static else max(1, min(rules.reads, rules.chunk - rules.query * (b // rates.groups)))
            partial_count = p.count[r, PARTIAL]
            # Prompts in progress come before new ones.
            p.count[r, PARTIAL] = 0
            partial_index = 0
            while budget > 0 or partial_index < partial_count:
                if partial_index < partial_count:
                    i = p.partials[r, partial_index]
                    partial_index += 1
                else:
                    if pressed or p.count[r, SEATS] >= rules.seats or (first and decode):
                        break
                    i = next_waiting(q, p, rules, r)
                    if i < 0:
                        break
                    needs = (q[i].inputs + (q[i].outputs if rules.reserve else q[i].made)) * rules.unit
                    ready = q[i].inputs + q[i].made == q[i].cached
                    needs += rules.growth if ready and not rules.reserve else 0
                    if blocks_for(rules, needs) > p.count[r, FREE] - needed_blocks:
                        break
                    seat(q, p, rules, r, i)
                    load += q[i].load
                    if ready:
                        q[i].first = p.seconds[r, CLOCK] if np.isnan(q[i].first) else q[i].first
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
                    p.partials[r, p.count[r, PARTIAL]] = i
                    p.count[r, PARTIAL] += 1
                else:
                    p.ends[ends] = i
                    ends += 1
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
            has_waiting = joins > 0 and (first or budget <= 0)
            n = 1 if pressed or load > 0.0 or has_waiting else run_length(q, p, rules, rates, r, until, stop)
            seconds = load + run_time(rates, b, p.seconds[r, CONTEXT], gain, n)
        else:
            context = p.seconds[r, CONTEXT] if b > 0 else 0.0
            reads = FAR if static else min(rules.reads, (rules.budget + rates.groups - 1) // rates.groups)
            seconds = load + mixed_time(rates, b, context, rows, pairs, keys, chunks, longest, hardest, reads)
        if rules.kind == TRAIN:
            seconds = n * rules.interval * max(1.0, np.ceil(seconds / (n * rules.interval) - ROUND))
        free = float(p.count[r, FREE])
        if b > 0:
            take_blocks(p, rules, r, n)
            record_gaps(p, r, n, seconds)
            p.count[r, STEPS] += n
            p.seconds[r, CONTEXT] += n * gain
        # Decoding sequences wait while a step only prefills.
        elif p.count[r, DECODES] > 0:
            p.seconds[r, STALL] += seconds
        pass_time(p, r, seconds, (free + p.count[r, FREE]) / 2)
        # Rounding errors must not add up: the clock stays at multiples of the interval.
        if rules.kind == TRAIN:
            p.seconds[r, CLOCK] = np.rint(p.seconds[r, CLOCK] / rules.interval) * rules.interval
        if b > 0:
            complete(q, p, rules, r, following)
        if ends > 0:
            finish_prompts(q, p, rules, r, ends, following)
        if static and p.count[r, LIVE] == 0:
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
    for r in range(1, len(p.count)):
        if p.count[r, SEATS] + p.count[r, QUEUED] < p.count[best, SEATS] + p.count[best, QUEUED]:
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
        low, high = (route[i], route[i] + 1) if routed else (0, len(p.count))
        for r in range(low, high):
            advance(q, p, rules, rates, r, t, rules.closed or len(route) == 0, following)
        if i < n:
            r = route[i] if routed else least_loaded(p)
            waits = p.count[r, QUEUED] > 0 and rules.kind != STATIC
            if p.count[r, SEATS] == 0 and not waits and p.seconds[r, CLOCK] < t:
                idle_until(p, r, t)
            if not arrive(q, p, rules, r, i):
                send_next(q, p, rules, r, t, following)
