"""What the event loop keeps in memory, and the small moves on it: queues, seats, the heap of completions, blocks of KV cache.

All functions here and in `loop` are compiled by numba; they take tuples of arrays. Requests are rows of `Requests`, replicas
rows of `Replicas`. A decoding request is never touched between its start and its end: each replica counts its decode steps
(`STEPS`), and what a request holds follows from the count when it joined.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from steptime.simulation.jit import compiled, inlined

NOT_YET, WAITING, PREFILLING, DECODING, DONE, REJECTED = range(6)  # status of a request
CONTINUOUS, PREFILL_FIRST, STATIC, TRAIN = range(4)  # kinds of policy
STEPS, DECODES, SEATS, FREE, QUEUED, PARTIAL, LIVE, RECORDED, JOINED = range(9)  # columns of Replicas.count
CLOCK, CONTEXT, STALL, BUSY, SEAT_SECONDS, BLOCK_SECONDS, DECODE_SECONDS, NEXT_RECORD, EVERY, TOKEN_STEPS = range(10)
QUEUE, SEAT = 0, 2  # heads in Replicas.lists; the tails are one further
RECORDS = 4096  # rows of the timeline of a replica; twice as coarse each time it is full
GAPS = 2048  # bins of the histogram of inter-token times, 1 % wide each
SHORTEST, WIDTH = 1e-6, 0.0102  # s of the first bin; logarithm of the ratio of two neighbours


# One row a request; times in seconds, lengths in tokens. What is not yet known is NaN.
REQUEST = np.dtype(
    [
        ("arrival", "f8"),
        ("ready", "f8"),  # when it is in the queue: what comes before takes time of its own
        ("scheduled", "f8"),  # when it was first seated
        ("moved", "f8"),  # when its cache came to a decode pool of its own
        ("resumed", "f8"),  # when it was first seated there
        ("first", "f8"),  # when its first token came
        ("finish", "f8"),
        ("load", "f8"),  # s that the step of its admission waits for cache from slower memory
        ("inputs", "i8"),
        ("outputs", "i8"),
        ("cached", "i8"),  # prompt tokens whose cache is there already
        ("left", "i8"),  # prompt tokens still to read
        ("read", "i8"),  # tokens in the cache while it is read
        ("made", "i8"),  # output tokens made before it joined the decode batch
        ("joined", "i8"),  # decode steps of the replica when it joined
        ("end", "i8"),  # decode steps of the replica when it ends
        ("after", "i4"),  # neighbours in a queue or in a list of seats
        ("before", "i4"),
        ("preempted", "i4"),
        ("replica", "i4"),
        ("rank", "i4"),  # class, 0 is served first
        ("status", "i4"),
    ]
)


class Replicas(NamedTuple):
    """One row a replica: counts, seconds, the heap of ends, residues of cache lengths, lists (see below) by class, records.

    delays: how long others had been held up when a sequence joined them, JOINED of them, since the last decode step [s].
    """

    count: Any
    seconds: Any
    heap: Any
    residue: Any
    lists: Any
    partials: Any  # requests whose prompts are half read, PARTIAL of them
    records: Any
    gaps: Any
    ends: Any
    delays: Any


class Rules(NamedTuple):
    """A policy as numbers; see `policy.Policy`."""

    kind: int
    seats: int
    budget: int
    chunk: int  # most tokens of one prompt in a step: what its attention group reads
    unit: int  # parts of a token that room is counted in; 1, or 64 where drafts make contexts grow by fractions
    block: int
    blocks: int
    reserve: bool
    query: int
    growth: int  # units of context that a sequence gains in a decode step
    interval: float
    patience: float
    ranks: int
    closed: bool
    longest: int
    before: float = 0.0  # s from the arrival of a request to its place in the queue
    before_token: float = 0.0  # s more for each prompt token
    kv_tokens: int = 0  # room of a replica, for messages: blocks are whole
    extra_delay: float = 0.0  # of the time from a seat to the first token, by which users see all tokens later
    reads: int = 1 << 24  # most prompt tokens of an attention group in a step


class Rates(NamedTuple):
    """Coefficients of the step time; see `pace.Pace`."""

    decode: Any
    context: Any
    rows: Any
    pair: float
    key: float
    chunk: float
    rank_rows: Any
    groups: int
    joint: Any


def new_requests(arrival: Any, inputs: Any, outputs: Any, rank: Any, cached: Any, load: Any) -> Any:
    """Return the rows of requests that wait for their arrival."""
    q = np.zeros(len(arrival), dtype=REQUEST)
    q["arrival"], q["inputs"], q["outputs"], q["rank"], q["cached"], q["load"] = arrival, inputs, outputs, rank, cached, load
    for name in ("scheduled", "moved", "resumed", "first", "finish"):
        q[name] = np.nan
    for name in ("after", "before", "replica"):
        q[name] = -1
    return q


def new_replicas(rules: Rules, replicas: int) -> Replicas:
    """Return empty replicas."""
    count = np.zeros((replicas, 9), dtype=np.int64)
    count[:, FREE] = rules.blocks
    seconds = np.zeros((replicas, 10))
    seconds[:, EVERY] = 1e-3

    return Replicas(
        count=count,
        seconds=seconds,
        heap=np.zeros((replicas, rules.seats + 1), dtype=np.int64),
        residue=np.zeros((replicas, rules.block), dtype=np.int64),
        lists=np.full((replicas, rules.ranks, 4), -1, dtype=np.int64),
        partials=np.zeros((replicas, rules.seats + 1), dtype=np.int64),
        records=np.zeros((replicas, RECORDS, 4)),
        gaps=np.zeros((replicas, GAPS)),
        ends=np.zeros(rules.seats + 1, dtype=np.int64),
        delays=np.zeros((replicas, rules.seats + 1)),
    )


@compiled
def sooner(q: Any, i: int, j: int) -> bool:
    """Whether request `i` ends before request `j`; of those that end together, the one that was sent first."""
    return bool(q[i].end < q[j].end or (q[i].end == q[j].end and i < j))


@compiled
def push(q: Any, heap: Any, r: int, size: int, i: int) -> None:
    """Put request `i` into the heap of replica `r`, of `size`, by its end."""
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
    """Place request `i` at or below position `k` of a heap of `size`."""
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
    """Take request `i` out of a heap of `size`, wherever it is."""
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
    """Put request `i` behind request `b` of a list of its class, at the front where `b` is -1.

    `head` is QUEUE or SEAT; the tail stands beside it.
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
    """Put request `i` into the queue of its class by when it is ready, behind those that are ready as early."""
    b = lists[r, q[i].rank, QUEUE + 1]
    while b >= 0 and q[b].ready > q[i].ready:
        b = q[b].before
    insert(q, lists, r, QUEUE, i, b)


@compiled
def remove(q: Any, lists: Any, r: int, head: int, i: int) -> None:
    """Take request `i` out of a list of its class."""
    rank, a, b = q[i].rank, q[i].before, q[i].after
    if a >= 0:
        q[a].after = b
    else:
        lists[r, rank, head] = b
    if b >= 0:
        q[b].before = a
    else:
        lists[r, rank, head + 1] = a


@compiled
def context_units(q: Any, p: Replicas, rules: Rules, r: int, i: int) -> Any:
    """Units of context whose cache a decoding request holds."""
    return (q[i].inputs + q[i].made) * rules.unit + rules.growth * (p.count[r, STEPS] - q[i].joined)


@compiled
def blocks_for(rules: Rules, units: int) -> Any:
    """Blocks that hold `units` of context."""
    return (units + rules.block - 1) // rules.block


@compiled
def request_blocks(q: Any, p: Replicas, rules: Rules, r: int, i: int) -> Any:
    """Blocks of cache that a seated request holds."""
    if rules.reserve:
        return blocks_for(rules, (q[i].inputs + q[i].outputs) * rules.unit)
    if q[i].status == PREFILLING:
        return blocks_for(rules, (q[i].inputs + q[i].made) * rules.unit)
    return blocks_for(rules, context_units(q, p, rules, r, i))


@inlined
def blocks_needed(p: Replicas, rules: Rules, r: int) -> Any:
    """Blocks that the next decode step takes: one for each sequence whose last block is full."""
    if rules.reserve or p.count[r, DECODES] == 0:
        return 0
    if rules.unit > 1:
        return rules.growth * p.count[r, DECODES]
    return p.residue[r, (-p.count[r, STEPS]) % rules.block]


@inlined
def steps_with_room(p: Replicas, rules: Rules, r: int, max_steps: int) -> Any:
    """How many decode steps, at most `max_steps`, the free blocks allow."""
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
    """Take the blocks of `n` decode steps, before the steps are counted."""
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
