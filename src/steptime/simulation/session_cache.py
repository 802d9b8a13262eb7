"""Sessions of a simulation: the prefix cache of their turns over memory tiers, and turns that follow their answers.

**Cache.** A look-up gives the cached leading blocks of the history of a turn.

Each replica has tiers, fastest first, with least-recently-used eviction. What a tier evicts moves to the front of the next.
Engines evict the end of a history first. The blocks of a session in a tier are therefore one segment, and counts stand for
blocks.
The system prompt of all sessions is a segment too.

A turn has its blocks to itself from its arrival to the end of its answer. They are then in no tier, and the memory of the
chips has as much less room for others. After the answer, all of them are the most recently used ones of the first tier, answers
included. This is the block pool of vLLM: blocks of running requests have references, and free ones are evicted in the order in
which they were freed (https://docs.vllm.ai/en/latest/design/prefix_caching.html).

**Turns in time.** The next turn arrives a think time after the answer before it.
The event loop serves requests with known arrivals. Therefore the turns are served again and again: each run gives the time
that every answer takes, and the next run moves the turns behind it accordingly. Answers by some time depend only on earlier
arrivals, so each run corrects at least one more turn of every session. In practice two to four runs are enough, because
answers take about as long in all of them.

In the long run turns arrive at a given rate, however long answers take. Therefore a queue that grows in one of these runs
grows without end, and the runs stop there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np

from steptime.errors import RangeError
from steptime.simulation.loop_state import DONE, compiled, entry
from steptime.simulation.run_metrics import queue_growth
from steptime.workload.traffic import Traffic

# Prefix-aware routing avoids a replica with this factor above the mean tokens.
SLACK = 1.2
# Most segments of all replicas, which take some gigabytes.
MOST_SEGMENTS = 20_000_000


def look_up_turns(
    traffic: Traffic, capacity: Any, costs: tuple[Any, ...], results: tuple[Any, ...], *, room: int, answer_share: float
) -> None:
    """Look up the turns of a traffic and those before it, and fill the arrays of results.

    Args:
        traffic: Turns of sessions.
        capacity: Capacity of each tier [blocks].
        costs: Tokens of a block, bandwidths [B/s], latencies [s], bytes of a block, and seconds per prompt token and per pair
            of tokens. Then whether routing is prefix-aware, and the number of replicas.
        results: Arrays by turn: replica, hits by tier, blocks written by tier, cached tokens, load [s], blocks that are faster
            to compute than to load; and prefill work by replica [tokens].
        room: KV cache of a replica [blocks], which turns in progress share with the first tier.
        answer_share: Share of its answer that a turn has in that memory, on average.

    Raises:
        RangeError: There are too many sessions.
    """
    both = (traffic,) if traffic.earlier is None else (traffic.earlier, traffic)
    block, replicas, tiers = costs[0], costs[-1], len(capacity)
    arrival, release, inputs, outputs, turn = (
        np.concatenate([getattr(part, name) for part in both]) for name in ("arrival", "release", "inputs", "outputs", "turn")
    )
    names, session = np.unique(traffic.turns.session[turn], return_inverse=True)
    if (segments := replicas * tiers * len(names)) > MOST_SEGMENTS:
        raise RangeError(
            f"sessions: must be at most {MOST_SEGMENTS // (replicas * tiers):,} on {replicas:,} replicas, got "
            f"{segments // (replicas * tiers):,}; use fewer requests"
        )
    # Of events at one time, a turn arrives before it ends, and ends before the next one arrives.
    kinds, numbers = np.repeat([0, 1], len(turn)), np.tile(np.arange(len(turn)), 2)
    events = np.lexsort((kinds, numbers, np.concatenate([arrival, release])))
    shared = int(traffic.turns.shared_blocks)
    owned = np.maximum((inputs + answer_share * outputs).astype(np.int64) // block - shared, 0)
    total = np.maximum((inputs + outputs) // block - shared, 0).astype(np.int64)

    # The last segment is the system prompt; after it come the ends of each list.
    links = np.full((replicas, tiers, len(names) + 3, 2), -1, dtype=np.int64)
    head, tail = len(names) + 1, len(names) + 2
    links[:, :, head, 1], links[:, :, tail, 0] = tail, head
    _serve_events(
        events, session.astype(np.int64), inputs.astype(np.int64), owned, total, shared, room, capacity,
        np.tile(capacity, (replicas, 1)), np.zeros(replicas, dtype=np.int64),
        np.zeros((replicas, len(names) + 1, tiers), dtype=np.int64), links, np.zeros((replicas, tiers), dtype=np.int64),
        *costs, *results,
    )  # fmt: skip


@compiled
def _remove(count: Any, links: Any, size: Any, r: int, s: int) -> None:
    """Remove the segments of a session from all tiers."""
    for t in range(size.shape[1]):
        if count[r, s, t] > 0:
            a, b = links[r, t, s, 0], links[r, t, s, 1]
            links[r, t, a, 1], links[r, t, b, 0] = b, a
            size[r, t] -= count[r, s, t]
            count[r, s, t] = 0


@compiled
def _to_front(count: Any, links: Any, size: Any, r: int, s: int, t: int, blocks: int) -> None:
    """Add blocks of a session to the front of a tier, where its segment in this tier is."""
    if blocks <= 0:
        return
    if count[r, s, t] == 0:
        head = links.shape[2] - 2
        b = links[r, t, head, 1]
        links[r, t, head, 1], links[r, t, s, 0], links[r, t, s, 1], links[r, t, b, 0] = s, head, b, s
    count[r, s, t] += blocks
    size[r, t] += blocks


@compiled
def _settle(count: Any, links: Any, size: Any, limits: Any, written: Any, r: int) -> None:
    """Move blocks beyond the size of a tier to the front of the next one, the oldest blocks first."""
    tiers, tail = size.shape[1], links.shape[2] - 1
    for t in range(tiers):
        while size[r, t] > limits[r, t]:
            s = links[r, t, tail, 0]
            blocks = min(count[r, s, t], size[r, t] - limits[r, t])
            count[r, s, t] -= blocks
            size[r, t] -= blocks
            if count[r, s, t] == 0:
                a = links[r, t, s, 0]
                links[r, t, a, 1], links[r, t, tail, 0] = tail, a
            if t + 1 < tiers:
                _to_front(count, links, size, r, s, t + 1, blocks)
                written[t + 1] += blocks if limits[r, t + 1] > 0 else 0


@compiled
def _cached_blocks(count: Any, r: int, s: int, shared: int) -> int:
    """Return the leading blocks of the next turn of a session that the tiers of a replica have."""
    prompt, history = 0, 0
    for t in range(count.shape[2]):
        prompt += count[r, count.shape[1] - 1, t]
        history += count[r, s, t]
    return prompt + (history if prompt == shared else 0)


@entry
def _serve_events(
    events: Any, session: Any, inputs: Any, owned: Any, total: Any, shared: int, room: int, capacity: Any, limits: Any,
    in_use: Any, count: Any, links: Any, size: Any, block: int, bandwidth: Any, latency: Any, block_bytes: float, row: float,
    pair: float, aware: bool, replicas: int, replica: Any, hits: Any, written: Any, cached: Any, load: Any, skipped: Any,
    computed_tokens: Any,
) -> None:  # fmt: skip
    """Look up every turn when it arrives, and insert its blocks when its answer ends.

    `events` are in order of time: turn i arrives with number i, and ends with number i + n. `owned` are the blocks that a turn
    has to itself on average, and `total` those after its answer. `in_use` are the blocks of all turns in progress.
    """
    n, prompt, work = len(inputs), count.shape[1] - 1, 0.0
    for e in events:
        i, ends = e % n, e >= n
        s = session[i]
        if aware and not ends:
            best, longest, fewest = 0, -1, np.inf
            for r in range(replicas):
                # An overloaded replica counts as having no hits, so that load stays balanced.
                is_free = computed_tokens[r] <= SLACK * work / replicas + block
                hit_blocks = _cached_blocks(count, r, s, shared) if is_free else 0
                if hit_blocks > longest or (hit_blocks == longest and computed_tokens[r] < fewest):
                    best, longest, fewest = r, hit_blocks, computed_tokens[r]
            replica[i] = best
        r = replica[i]

        # What turns in progress leave is room of the first tier.
        in_use[r] += -owned[i] if ends else owned[i]
        limits[r, 0] = max(0, min(capacity[0], room - in_use[r]))
        if ends:
            _to_front(count, links, size, r, s, 0, total[i])
            written[0] += max(0, total[i] - hits[i, 0]) if limits[r, 0] > 0 else 0
            _settle(count, links, size, limits, written, r)
            continue

        # A slower tier is used up to the first block that is faster to compute than to load. One token is left to compute.
        prompt_blocks, place, loads, is_slow = (inputs[i] - 1) // block, 0, 0, False
        for part in range(2):
            item = s if part else prompt
            for t in range(count.shape[2]):
                blocks = min(count[r, item, t], prompt_blocks - place)
                if blocks <= 0:
                    continue
                if t > 0 and not is_slow:
                    recompute_seconds = block * row + pair * (block * place * block + block * (block + 1) / 2)
                    first = latency[t] if loads == 0 else 0.0
                    is_slow = block_bytes / bandwidth[t] + first > recompute_seconds
                    if not is_slow:
                        load[i] += blocks * block_bytes / bandwidth[t] + first
                        loads += blocks
                if is_slow:
                    skipped[i] += blocks
                else:
                    hits[i, t] += blocks
                    cached[i] += blocks * block
                place += blocks
            # Without all of the system prompt, the history is of no use.
            if place < shared:
                break
        computed_tokens[r] += inputs[i] - cached[i]
        work += inputs[i] - cached[i]
        _remove(count, links, size, r, s)
        if shared > 0:
            _remove(count, links, size, r, prompt)
            _to_front(count, links, size, r, prompt, 0, shared)
        _settle(count, links, size, limits, written, r)


Use = TypeVar("Use")
# Most runs, and the mean change of an answer's time over the mean time between two turns below which they agree.
MOST_RUNS: Final = 8
AGREEMENT: Final = 0.03


def serve_turns(
    traffic: Traffic,
    once: Callable[[Traffic], tuple[Use, Any, int]],
    expected: Any = 0.0,
    *,
    most_runs: int = MOST_RUNS,
) -> tuple[Traffic, tuple[Use, Any]]:
    """Serve turns of sessions until their arrivals agree with the answers before them.

    Turns that are not served, before and after the run, take the mean time of those that are.

    Args:
        traffic: Drawn sessions, as `draw_sessions` gives them.
        once: Function that serves a traffic and returns what the caller needs, the finished requests, and the slots of the
            pool that prefills.
        expected: Expected time of answers [s], one for all turns or by turn.
        most_runs: Most runs.

    Returns:
        The traffic of the last run; what the caller needs, and the requests.
    """
    turns = traffic.turns
    latency = np.broadcast_to(np.asarray(expected, dtype=np.float64), turns.session.shape)
    if np.any(latency):
        traffic = turns.traffic(latency)
    outcome = once(traffic)
    for _ in range(most_runs - 1):
        _, requests, seats = outcome
        done = requests["status"] == DONE
        if not np.any(done) or queue_growth(requests["arrival"][done], requests["scheduled"][done], seats):
            break
        took = (requests["finish"] - requests["arrival"])[done]
        updated = _by_turn(took, traffic.turn[done], len(latency))
        between = float(turns.think.mean()) + float(took.mean())
        change = float(np.abs(updated - latency)[traffic.turn].mean())
        if change <= AGREEMENT * between:
            break
        # Half of a change, because long answers make the cache lose histories, and lost histories make answers long.
        latency = updated if not latency.any() else (latency + updated) / 2
        # A separate prefill pool has the blocks until they are sent.
        sent = np.fmin(requests["moved"], requests["finish"])[done] - requests["arrival"][done]
        use = latency if np.array_equal(sent, took) else np.minimum(_by_turn(sent, traffic.turn[done], len(latency)), latency)
        traffic = turns.traffic(latency, use)
        outcome = once(traffic)
    return traffic, outcome[:2]


def _by_turn(seconds: Any, turn: Any, count: int) -> Any:
    """Return times of all turns, the mean where a turn has no time [s]."""
    times = np.full(count, float(seconds.mean()))
    times[turn] = seconds
    return times
