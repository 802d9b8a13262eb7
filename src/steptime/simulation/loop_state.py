"""Compilation of the event loop with numba.

The loop consists of small functions that pass tuples of arrays. By default, numba counts references to each
array in every call, and copies a hundred words for it. This takes most of the time of the loop. Therefore
compiled functions do not count references (`_nrt`). This is safe: the Python caller of an `entry` keeps its
arrays alive while it runs, and compiled functions create no arrays.

Functions that run in every step are `inlined`. Only an `entry` can be called from Python, because the
wrappers of all other functions would take a third of the compile time.

State of the event loop: queues, slots, heap of completions, KV cache blocks.

Numba compiles all functions here and in `event_loop`. They take tuples of arrays. Requests are rows of
`REQUEST`, replicas rows of `Replicas`. A decoding request is not changed between its start and its end. Each
replica counts its decode steps (`STEPS`), and the cache of a request follows from the count when it joined.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def entry(function: Function) -> Function:
    """Compile a function that is called from Python.

    Args:
        function: Function to compile.

    Returns:
        The compiled function.
    """
    return _compiled(function)


def compiled(function: Function) -> Function:
    """Compile a function that only compiled functions call.

    Args:
        function: Function to compile.

    Returns:
        The compiled function.
    """
    return _compiled(function, no_cpython_wrapper=True)


def inlined(function: Function) -> Function:
    """Compile a function that only compiled functions call, and inline it there.

    Args:
        function: Function to compile.

    Returns:
        The compiled function.
    """
    return _compiled(function, no_cpython_wrapper=True, forceinline=True)


def _compiled(function: Function, **options: bool) -> Function:
    """Compile a function with numba, and cache the result on disk where possible."""
    settings: dict[str, Any] = {"error_model": "numpy", "nogil": True, "_nrt": False, "no_cfunc_wrapper": True, **options}
    dispatcher: Any
    try:
        dispatcher = njit(cache=True, **settings)(function)
    # Neither the package's folder nor the home folder is writable.
    except RuntimeError:
        dispatcher = njit(**settings)(function)
    return cast(Function, dispatcher)


# Status of a request.
NOT_YET, WAITING, PREFILLING, DECODING, DONE, REJECTED = range(6)
# Kinds of policy.
CONTINUOUS, PREFILL_FIRST, STATIC, TRAIN = range(4)
# Columns of Replicas.count.
STEPS, DECODES, SEATS, FREE, QUEUED, PARTIAL, LIVE, RECORDED, JOINED = range(9)
# Columns of Replicas.seconds.
CLOCK, CONTEXT, STALL, BUSY, SEAT_SECONDS, BLOCK_SECONDS, DECODE_SECONDS, NEXT_RECORD, EVERY, TOKEN_STEPS = range(10)
# Heads in Replicas.lists; the tails are in the next column.
QUEUE, SEAT = 0, 2
# Rows of the timeline of a replica; each time it is full, its resolution is halved.
RECORDS = 4096
# Bins of the histogram of inter-token times, 1 % wide each.
GAPS = 2048
# First bin [s], and logarithm of the ratio of two neighbouring bins.
SHORTEST, WIDTH = 1e-6, 0.0102


# One row per request; times in seconds, lengths in tokens. Unknown values are NaN.
REQUEST = np.dtype(
    [
        ("arrival", "f8"),
        # Entry into the queue; the steps before it take additional time.
        ("ready", "f8"),
        # First slot.
        ("scheduled", "f8"),
        # Arrival of the KV cache at a separate decode pool.
        ("moved", "f8"),
        # First slot in the decode pool.
        ("resumed", "f8"),
        # First token.
        ("first", "f8"),
        ("finish", "f8"),
        # Time for which the step of its admission waits for cache from slower memory.
        ("load", "f8"),
        ("inputs", "i8"),
        ("outputs", "i8"),
        # Prompt tokens that are already in the cache.
        ("cached", "i8"),
        # Prompt tokens that are not yet prefilled.
        ("left", "i8"),
        # Tokens in the cache during prefill.
        ("read", "i8"),
        # Output tokens made before it joined the decode batch.
        ("made", "i8"),
        # Decode steps of the replica when it joined.
        ("joined", "i8"),
        # Decode steps of the replica when it ends.
        ("end", "i8"),
        # Neighbours in a queue or in the list of slots.
        ("after", "i4"),
        ("before", "i4"),
        ("preempted", "i4"),
        ("replica", "i4"),
        # Class of priority; 0 is served first.
        ("rank", "i4"),
        ("status", "i4"),
    ]
)


class Replicas(NamedTuple):
    """Counts, times, queues and records of the replicas, one row each.

    `heap` sorts the decoding requests by their last step, and `residue` counts cache lengths modulo the block
    size. `lists` contains the queue and the slots of each class. `partials` contains the PARTIAL requests
    whose prefill is not complete. `delays` [s] contains, for each of the JOINED sequences that joined since
    the last decode step, how long the others had been stalled by then.
    """

    count: Any
    seconds: Any
    heap: Any
    residue: Any
    lists: Any
    # Requests whose prompts are partly prefilled.
    partials: Any
    records: Any
    gaps: Any
    ends: Any
    delays: Any


class Rules(NamedTuple):
    """A scheduling policy as numbers; see `scheduling_policy.Policy`."""

    kind: int
    seats: int
    budget: int
    # Most prompt tokens of one request in a step; they run on its data-parallel rank.
    chunk: int
    # Parts of a token in which cache room is counted: 1, or 64 where speculative tokens make contexts grow by fractions.
    unit: int
    block: int
    blocks: int
    reserve: bool
    query: int
    # Units of context that a sequence gains in a decode step.
    growth: int
    interval: float
    patience: float
    ranks: int
    closed: bool
    longest: int
    # Time from the arrival of a request to its place in the queue [s].
    before: float = 0.0
    # Additional time per prompt token [s].
    before_token: float = 0.0
    # Cache of a replica [tokens] for messages; blocks are rounded.
    kv_tokens: int = 0
    # Share of the time from a slot to the first token by which users see all tokens later.
    extra_delay: float = 0.0
    # Most prompt tokens of a data-parallel rank in a step.
    reads: int = 1 << 24


class Rates(NamedTuple):
    """Coefficients of the step time; see `step_time_model.Pace`."""

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
    """Return rows of `REQUEST` that wait for their arrival.

    Args:
        arrival: Time of arrival [s].
        inputs: Input tokens.
        outputs: Output tokens.
        rank: Class of priority; 0 is served first.
        cached: Input tokens that are already in the cache.
        load: Time to load the cache from slower memory [s].

    Returns:
        One row per request.
    """
    q = np.zeros(len(arrival), dtype=REQUEST)
    q["arrival"], q["inputs"], q["outputs"], q["rank"], q["cached"], q["load"] = arrival, inputs, outputs, rank, cached, load
    for name in ("scheduled", "moved", "resumed", "first", "finish"):
        q[name] = np.nan
    for name in ("after", "before", "replica"):
        q[name] = -1
    return q


def new_replicas(rules: Rules, replicas: int) -> Replicas:
    """Return empty replicas.

    Args:
        rules: Scheduling rules.
        replicas: Number of replicas.

    Returns:
        The replicas.
    """
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
    if rules.reserve or p.count[r, DECODES] == 0:
        return 0
    if rules.unit > 1:
        return rules.growth * p.count[r, DECODES]
    return p.residue[r, (-p.count[r, STEPS]) % rules.block]


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
