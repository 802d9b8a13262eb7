"""State of the event loop: requests, replicas, rules and rates as arrays and tuples, and how its functions are compiled.

Requests are rows of `REQUEST`, and replicas rows of `Replicas`. A decoding request is not changed between its start and its
end. Each replica counts its decode steps, and the cache of a request follows from the count when it joined.

The loop consists of small functions that pass tuples of arrays, compiled by numba. By default, numba counts references to each
array in every call, and copies a hundred words for it. This takes most of the time of the loop. Therefore compiled functions do
not count references (`_nrt`). This is safe: the Python caller of an `entry` keeps its arrays alive while it runs, and compiled
functions create no arrays.

Functions that run in every step are `inlined`. Only an `entry` can be called from Python, because the wrappers of all other
functions would take a third of the compile time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from types import MethodType
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from steptime.errors import InputError, numba_missing

# An extra: names of this package import without it, and a call of the simulator says what to install.
njit: Any = None
with suppress(ModuleNotFoundError):
    njit = import_module("numba").njit

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


def inlined_entry(function: Function) -> Function:
    """Compile a function that is called from Python, and inline it in compiled functions.

    Args:
        function: Function to compile.

    Returns:
        The compiled function.
    """
    return _compiled(function, forceinline=True)


def _compiled(function: Function, **options: bool) -> Function:
    """Compile a function with numba, and cache the result on disk where possible."""
    if njit is None:
        return cast(Function, _report_missing_numba)
    settings: dict[str, Any] = {"error_model": "numpy", "nogil": True, "_nrt": False, "no_cfunc_wrapper": True, **options}
    dispatcher: Any
    try:
        dispatcher = njit(cache=True, **settings)(function)
        _load_alone(dispatcher)
    # Neither the package's folder nor the home folder is writable.
    except RuntimeError:
        dispatcher = njit(**settings)(function)
    return cast(Function, dispatcher)


def _load_alone(dispatcher: Any) -> None:
    """Let a compiled function be loaded from disk without numba's own functions, which take longer to load than it does.

    Compiled code contains all functions that are called. A function that is not on disk loads them to be compiled. Versions of
    numba without these methods load them in any case.
    """
    cache: Any = getattr(dispatcher, "_cache", None)
    if hasattr(cache, "_load_overload") and hasattr(cache, "_guard_against_spurious_io_errors"):

        def load(itself: Any, signature: Any, target: Any) -> Any:
            with itself._guard_against_spurious_io_errors():
                return itself._load_overload(signature, target)

        cache.load_overload = MethodType(load, cache)


def _report_missing_numba(*_: Any) -> None:
    raise InputError(numba_missing())


# Status of a request.
NOT_YET, WAITING, PREFILLING, DECODING, DONE, REJECTED = range(6)
# Kinds of policy.
CONTINUOUS, PREFILL_FIRST, STATIC, TRAIN = range(4)
# Columns of Replicas.count.
STEPS, DECODES, SEATS, FREE, QUEUED, LIVE, RECORDED, JOINED, NEXT_RANK, PASS = range(10)
# Columns of Replicas.seconds.
CLOCK, CONTEXT, STALL, BUSY, SEAT_SECONDS, BLOCK_SECONDS, DECODE_SECONDS, NEXT_RECORD, EVERY, TOKEN_STEPS = range(10)
# Columns of a data-parallel rank in Replicas.ranks. LINK_FREE is when its link to slower memory has no more loads [s]. The
# three before ENDS are those of the step in progress. From ENDS on, they count requests that end with a step under way, by its
# turn.
QUEUED_BY_RANK, SEATS_BY_RANK, DECODES_BY_RANK, CONTEXT_BY_RANK, LINK_FREE = range(5)
TOKENS_BY_RANK, ATTENTION_BY_RANK, CHOSEN_BY_RANK, ENDS = range(5, 9)
# Columns of further rows of Replicas.ranks: when a stage is free, and when a step under way leaves the last stage [s].
STAGE_FREE, EXIT = range(2)
# Heads in Replicas.lists; the tails are in the next column.
QUEUE, SEAT = 0, 2
# Column of Replicas.lists with the prompt in progress of a rank, or -1.
PARTIAL = 4
# Rows of the timeline of a replica; each time it is full, its resolution is halved. A row has the clock, the decoding sequences
# and the free blocks at that time, and the busy, decoding and block seconds until then.
RECORDS, RECORD_COLUMNS = 4096, 6
# Bins of the histogram of inter-token times, 1 % wide each.
GAPS = 2048
# First bin [s], and logarithm of the ratio of two neighbouring bins.
SHORTEST, WIDTH = 1e-6, 0.0102


# One row per request; times in seconds, lengths in tokens. Unknown values are NaN.
REQUEST = np.dtype(
    [
        ("arrival", "f8"),
        # Entry into the queue; the steps before it and loads from slower memory take additional time.
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
        # Time that its cache takes from slower memory. Later, in a pipeline, when its last token leaves the last stage.
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
        ("rank", "i2"),
        # Its list in a replica: one per class and data-parallel rank.
        ("line", "i4"),
        ("status", "i2"),
        # Its micro-batch in a pipeline.
        ("turn", "i2"),
    ]
)


class Replicas(NamedTuple):
    """Counts, times, queues and records of the replicas, one row each.

    `heap` sorts the decoding requests by their last step, and `residue` counts cache lengths modulo the block size. `lists`
    contains the queue and the slots of each class and data-parallel rank, and the prompt in progress of a rank. `ranks`
    contains the loads of the ranks, and times of pipeline stages. `delays` [s] contains, for each of the sequences that joined
    since the last decode step, how long the others had been stalled by then. In a pipeline it has the time of their last token.

    Each micro-batch of a pipeline has a row of `micro_batches`, a heap as `heap`, by its turn. The last row of a replica has
    the sequences that had no place in one. `sizes` counts sequences, and `steps` the decode steps of the row. `micro_residue`
    counts cache lengths modulo the block size, and `loads` the sequences and their contexts on each data-parallel rank.
    """

    count: Any
    seconds: Any
    heap: Any
    residue: Any
    lists: Any
    ranks: Any
    records: Any
    gaps: Any
    ends: Any
    delays: Any
    micro_batches: Any
    sizes: Any
    steps: Any
    micro_residue: Any
    loads: Any


class Rules(NamedTuple):
    """A scheduling policy as numbers; see `scheduling_policy.Policy`."""

    kind: int
    seats: int
    # Tokens of a data-parallel rank in a step.
    budget: int
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
    # Data-parallel ranks, and slots of each.
    groups: int = 1
    rank_seats: int = 1 << 24
    # Whether the loads of ranks, and the requests that end with a step, are counted.
    tracks: bool = False
    # Pipeline stages, and micro-batches under way in them; one stage means that all of them are one step.
    stages: int = 1
    waves: int = 1


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
    slack: Any
    least: Any
    graph_tokens: float
    query: int


# A request before its arrival.
NEW_REQUEST = np.zeros(1, dtype=REQUEST)
for _name in ("scheduled", "moved", "resumed", "first", "finish"):
    NEW_REQUEST[_name] = np.nan
for _name in ("after", "before", "replica"):
    NEW_REQUEST[_name] = -1


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
    q = np.repeat(NEW_REQUEST, len(arrival))
    q["arrival"], q["inputs"], q["outputs"], q["rank"], q["cached"], q["load"] = arrival, inputs, outputs, rank, cached, load
    return q


def new_replicas(rules: Rules, replicas: int) -> Replicas:
    """Return empty replicas.

    Args:
        rules: Scheduling rules.
        replicas: Number of replicas.

    Returns:
        The replicas.
    """
    count = np.zeros((replicas, 10), dtype=np.int64)
    count[:, FREE] = rules.blocks
    seconds = np.zeros((replicas, 10))
    seconds[:, EVERY] = 1e-3
    rows = replicas * (rules.waves + 1) if rules.stages > 1 else 1
    return Replicas(
        count=count,
        seconds=seconds,
        heap=np.zeros((replicas, rules.seats + 1), dtype=np.int64),
        residue=np.zeros((replicas, rules.block), dtype=np.int64),
        lists=np.full((replicas, rules.ranks * rules.groups, 5), -1, dtype=np.int64),
        ranks=np.zeros((replicas, rules.groups + rules.stages, ENDS + rules.waves)),
        records=np.zeros((replicas, RECORDS, RECORD_COLUMNS)),
        gaps=np.zeros((replicas, GAPS)),
        ends=np.zeros(rules.seats + 1, dtype=np.int64),
        delays=np.zeros((replicas, rules.seats + 1)),
        micro_batches=np.zeros((rows, rules.seats + 1), dtype=np.int64),
        sizes=np.zeros(rows, dtype=np.int64),
        steps=np.zeros(rows, dtype=np.int64),
        micro_residue=np.zeros((rows, rules.block), dtype=np.int64),
        loads=np.zeros((rows, rules.groups, 2)),
    )
