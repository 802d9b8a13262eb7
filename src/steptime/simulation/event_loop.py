"""The event loop: requests through continuous batching, in time per request and not per token.

Between two events (an arrival that could be seated, a completion, a chunk of a prompt, a full cache) the decode batch is
constant, and the context it reads grows by the same number each step: n steps take
$n\\,t_0 + t_1 (n C + g\\,b\\,n(n-1)/2)$ seconds. The loop jumps from event to event with that sum. The tests walk each step.

A step: decode sequences take the blocks they need (preempting the last seated of the last class where there are too few), the
prompt that is half read goes on, then waiting requests are seated in order while the token budget, the seats and the free
blocks last. That is vLLM v1's scheduler; `PREFILL_FIRST` steps either read prompts or decode, as SGLang and TensorRT-LLM do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from steptime.simulation.jit import compiled, entry, inlined
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

ROUND = 1e-9  # of an interval: a train that is this late leaves on time
FAR = 1 << 60


@compiled
def run_time(rates: Rates, b: int, context: float, gain: float, n: int) -> Any:
    """Seconds of `n` decode steps of `b` sequences whose contexts add up to `context` at first and gain `gain` a step."""
    return n * rates.decode[b] + rates.context[b] * (n * context + gain * (n * (n - 1.0) / 2.0))


@compiled
def rows_time(table: Any, before: int, rows: int) -> Any:
    """Seconds that `rows` more rows add to a pass of `before` rows; beyond the table its last slope goes on."""
    last = len(table) - 1
    low, top = min(before, last), before + rows
    if top <= last:
        return table[top] - table[low]
    return table[last] + (table[last] - table[last - 1]) * (top - last) - table[low]


@entry
def joint_factor(table: Any, b: int, rows: int) -> Any:
    """Factor on a step of `rows` prompt tokens beside `b` sequences: between the powers of two, less one, of a table."""
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
    """Seconds of a step with `rows` prompt tokens in `chunks` beside `b` decoding sequences.

    longest [tokens]: its longest chunk, and hardest [s]: the most attention of one; most [tokens] that a group reads. Chunks
    are dealt out to the groups: the one that has most works while the others wait, and experts work on the rows of all groups.
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
    """Read the next chunk of a prompt, of `max_tokens` tokens: tokens, pairs of query and key, and keys."""
    c = min(q[i].left, max(budget, 0), max_tokens)
    pairs = c * float(q[i].read) + c * (c + 1.0) / 2.0
    keys = float(q[i].read + c)
    q[i].read += c
    q[i].left -= c
    return c, pairs, keys


@compiled
def steps_until(rates: Rates, b: int, context: float, gain: float, seconds: float, max_steps: int) -> Any:
    """The least number of decode steps, at most `max_steps`, that take at least `seconds`: a quadratic, then set right."""
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
    """When the next step of replica `r` starts: now, when the next train leaves, or when a static batch stops waiting."""
    now = p.seconds[r, CLOCK]
    if rules.kind == TRAIN:
        return max(now, np.ceil(now / rules.interval - ROUND) * rules.interval)
    if rules.kind == STATIC and p.count[r, SEATS] == 0 and count_ready(q, p, rules, r, now, rules.seats) < rules.seats:
        return max(now, min(next_ready(q, p, rules, r, now), first_arrival(q, p, rules, r, now) + rules.patience))
    return now


@inlined
def waits_to_fill(q: Any, p: Replicas, rules: Rules, r: int, until: float) -> bool:
    """Whether a static batch that is not full goes on waiting for more, of what is on its way or comes from `until` on."""
    if rules.kind != STATIC or p.count[r, SEATS] > 0:
        return False
    now = p.seconds[r, CLOCK]
    leaves = first_arrival(q, p, rules, r, now) + rules.patience
    has_more = min(leaves, until, next_ready(q, p, rules, r, now)) < np.inf
    return now < leaves and has_more and count_ready(q, p, rules, r, now, rules.seats) < rules.seats


@inlined
def run_length(q: Any, p: Replicas, rules: Rules, rates: Rates, r: int, until: float, stop: bool) -> Any:
    """How many decode steps pass before anything can happen: a completion, a full cache, or an arrival that could be seated."""
    b, context = p.count[r, DECODES], p.seconds[r, CONTEXT]
    gain = b * (rules.growth / rules.unit)
    n = q[p.heap[r, 0]].end - p.count[r, STEPS]
    n = max(1, steps_with_room(p, rules, r, n))
    if rules.kind == TRAIN and run_time(rates, b, context + gain * (n - 1.0), gain, 1) > rules.interval:
        return 1  # late trains are timed one by one
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
    """Run replica `r` through every step that starts before `until` [s].

    Where the next arrival could not be seated anyway, pure decode runs past `until`, unless it must `stop` there.
    """
    static, first = rules.kind == STATIC, rules.kind == PREFILL_FIRST
    while (p.count[r, SEATS] > 0 or p.count[r, QUEUED] > 0) and p.seconds[r, CLOCK] < until:
        if p.count[r, SEATS] == 0 and next_waiting(q, p, rules, r) < 0:  # all that came is still on its way to the queue
            wakes = next_front_ready(q, p, rules, r, p.seconds[r, CLOCK])
            if wakes >= until and until < np.inf:
                return
            idle_until(p, r, wakes)
        leaves = departure(q, p, rules, r)
        if leaves >= until and until < np.inf:
            return
        if leaves < np.inf:  # else nothing more comes that would fill the batch
            p.seconds[r, CLOCK] = leaves
        if waits_to_fill(q, p, rules, r, until):
            continue
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
            budget = min(rules.budget - (rules.query * p.count[r, DECODES] if decode else 0), rules.reads * rates.groups)
            if static:
                budget = FAR if p.count[r, DECODES] == 0 else 0
            b = p.count[r, DECODES] if decode else 0
            max_chunk = FAR if static else max(1, min(rules.reads, rules.chunk - rules.query * (b // rates.groups)))
            partial_count = p.count[r, PARTIAL]
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
            decode = True  # prefill first, and there is nothing to read
        b = p.count[r, DECODES] if decode else 0
        gain = b * (rules.growth / rules.unit)
        n = 1
        if rows == 0:
            if b == 0:
                return
            has_waiting = joins > 0 and (first or budget <= 0)  # the next step has a budget of its own for those that wait
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
        elif p.count[r, DECODES] > 0:
            p.seconds[r, STALL] += seconds
        pass_time(p, r, seconds, (free + p.count[r, FREE]) / 2)
        if rules.kind == TRAIN:  # sums of intervals are multiples of it, whatever their rounding
            p.seconds[r, CLOCK] = np.rint(p.seconds[r, CLOCK] / rules.interval) * rules.interval
        if b > 0:
            complete(q, p, rules, r, following)
        if ends > 0:
            finish_prompts(q, p, rules, r, ends, following)
        if static and p.count[r, LIVE] == 0:
            clear(p, rules, r)


@compiled
def least_loaded(p: Replicas) -> int:
    """The replica with the fewest requests seated and queued, the first of equals."""
    best = 0
    for r in range(1, len(p.count)):
        if p.count[r, SEATS] + p.count[r, QUEUED] < p.count[best, SEATS] + p.count[best, QUEUED]:
            best = r
    return best


@entry
def serve(q: Any, p: Replicas, rules: Rules, rates: Rates, route: Any, following: Any, begin: int, end: int) -> None:
    """Send requests `begin` to `end` in order of arrival to their replicas; run until all is served where `end` is beyond the
    last.

    `route` names the replica of each, or is empty for the least loaded. In a closed loop clients stay with their replica, and
    `following` holds the next request that the clients of each replica send, and after it the one that follows each request.
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
