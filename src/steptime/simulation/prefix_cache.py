"""Prefix cache over memory tiers: which leading blocks of a prompt are cached.

Blocks are identified by hash. Each replica has tiers, fastest first, with least-recently-used eviction. A
block that a request uses or makes moves to the front of the first tier. A block that a tier evicts moves to
the front of the next tier, and the last tier discards it. A block of a slower tier is loaded where that is
faster than computing it again.

Requests are looked up in order of arrival. A block counts as cached from the arrival of the request that
makes it. This is too early by the wait and prefill of that request.

Turns of sessions are in `session_cache`.

Each chip loads its part of the cache of a request. Loads of a request run tier by tier. The request waits for them, while
others go on (`event_loop.arrive`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steptime.errors import RangeError, UnknownName
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import LONGEST, at_least_zero, positive, single
from steptime.physics.chip_memory import cache_parts
from steptime.physics.layout import Layout
from steptime.result_base import Result, unit
from steptime.simulation.loop_state import compiled, entry
from steptime.simulation.session_cache import SLACK, look_up_turns
from steptime.simulation.step_time_model import Pace
from steptime.units import percent, show
from steptime.workload.traffic import Traffic

LEFT_OUT = unit("", "", left_out=True)
# Blocks of all replicas, which take some gigabytes.
MAX_BLOCKS = 200_000_000
# Tier of a block that no tier has.
NO_TIER = -1
# Share of its answer that a turn has in memory on average, while it decodes.
ANSWER_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A memory tier for cached blocks of one replica.

    `capacity` is in B. `bandwidth` [B/s] is that at which all chips together load the cache of one request, and `latency` that
    of a load [s].
    """

    name: str
    capacity: float
    bandwidth: float
    latency: float = 0.0

    def __post_init__(self) -> None:
        single(capacity=self.capacity, bandwidth=self.bandwidth, latency=self.latency)
        at_least_zero(f"tier {self.name}: capacity", self.capacity, "B")
        positive(f"tier {self.name}: bandwidth", self.bandwidth, "B/s", minimum=1)
        at_least_zero(f"tier {self.name}: latency", self.latency, "s", maximum=LONGEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """Tiers of a prefix cache, fastest first.

    The first tier is the memory of the chips, which needs no load.
    """

    tiers: tuple[Tier, ...]

    def __post_init__(self) -> None:
        if not self.tiers:
            raise RangeError("tiers: a prefix cache needs at least one tier, got none")


def cache_with_capacities(
    model: Model, system: System, layout: Layout, capacities: Mapping[str, float], *, free_hbm: bool = False
) -> Cache:
    """Return the prefix cache of a replica with given capacities.

    The order is that of the system, and the bandwidth that of the chips among which the cache of a request is divided. The
    memory of the chips comes first, because only there a block is usable without a load.

    Args:
        model: Model as it is served.
        system: System with memory tiers.
        layout: Layout of a replica.
        capacities: Capacity by tier [B].
        free_hbm: Whether the memory of the chips, where it has no capacity, has what running sequences leave; else 0.

    Returns:
        The cache.

    Raises:
        UnknownName: The system has no such tier.
        RangeError: The capacity is larger than the memory of the replica's chips.
    """
    hbm = system.chip.hbm
    tiers = {tier.name: tier for tier in (hbm, *system.tiers)}
    for name in capacities:
        if name not in tiers:
            raise UnknownName("memory tier", name, tiers, f"Known: {', '.join(tiers)}.")
    max_bytes = float(system.chip.capacity) * int(layout.chips)
    sizes = {hbm.name: max_bytes if free_hbm else 0.0} | dict(capacities)
    parts = float(cache_parts(model, layout))
    if sizes[hbm.name] > max_bytes:
        raise RangeError(
            f"{hbm.name}: must be at most {show(max_bytes, 'B')}, the memory of a replica, got {show(sizes[hbm.name], 'B')}"
        )
    return Cache(
        tiers=tuple(
            Tier(name=name, capacity=sizes[name], bandwidth=parts * float(tier.bandwidth), latency=float(tier.latency or 0.0))
            for name, tier in tiers.items()
            if name in sizes
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TierUse:
    """Use of one tier of a prefix cache, in all replicas."""

    name: str = field(metadata=unit("", "name of the tier"))
    hit_tokens: int = field(metadata=unit("tokens", "tokens found in the tier"))
    hit_share: float = field(metadata=unit("", "share of all prompt tokens that were found in the tier"))
    bytes_read: float = field(metadata=unit("", "bytes loaded from the tier"))
    bytes_written: float = field(metadata=unit("", "bytes written to the tier"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CacheUse(Result):
    """Use of a prefix cache: by request and by tier.

    By request: `cached` tokens, `load` time [s] and `route`. By tier: hit tokens, bytes read and bytes
    written. `hit_rate` is the share of prompt tokens that were not computed. `recomputed` counts the tokens
    found in a tier that is too slow for a load.
    """

    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {"by_tier": unit("", "use of each tier, fastest first", key="tiers")}

    cached: Any = field(metadata=LEFT_OUT)
    load: Any = field(metadata=LEFT_OUT)
    route: Any = field(metadata=LEFT_OUT)
    tiers: tuple[str, ...] = field(metadata=LEFT_OUT)
    hit_tokens: Any = field(metadata=LEFT_OUT)
    bytes_read: Any = field(metadata=LEFT_OUT)
    bytes_written: Any = field(metadata=LEFT_OUT)
    hit_rate: float = field(metadata=unit("", "share of prompt tokens that were not computed"))
    recomputed: int = field(metadata=unit("tokens", "tokens found in a tier that is too slow for a load"))
    prompt_tokens: int = field(metadata=LEFT_OUT)

    @property
    def by_tier(self) -> tuple[TierUse, ...]:
        """Use of each tier, fastest first."""
        rows = zip(self.tiers, self.hit_tokens, self.bytes_read, self.bytes_written, strict=True)
        return tuple(
            TierUse(
                name=name, hit_tokens=hits, hit_share=float(hits) / self.prompt_tokens, bytes_read=loaded, bytes_written=stored
            )
            for name, hits, loaded, stored in rows
        )

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return a title and the hits by tier.

        Returns:
            Title with the hit rate; hit tokens by tier.
        """
        hits = {tier.name: f"{tier.hit_tokens:,} tokens found" for tier in self.by_tier}
        return f"Prefix cache: {percent(self.hit_rate, 1)} of prompt tokens not computed", hits


def use_cache(
    cache: Cache,
    traffic: Traffic,
    pace: Pace,
    *,
    bytes_per_token: float,
    replicas: int = 1,
    route: str = "round-robin",
    dealt: Any = None,
    room: float = np.inf,
    answer_share: float = ANSWER_SHARE,
) -> CacheUse:
    """Return what the cache saves each request of a traffic with block hashes.

    Args:
        cache: Tiers of one replica.
        traffic: Traffic with block hashes.
        pace: Step times, for the cost of computing a block again.
        bytes_per_token: KV cache per token [B].
        replicas: Number of replicas.
        route: "round-robin" or "prefix-aware".
        dealt: Replica of each request, where it is fixed.
        room: KV cache of a replica [tokens], which turns of sessions share with the first tier.
        answer_share: Share of its answer that a turn has in that memory, on average.

    Returns:
        The use of the cache.

    Raises:
        RangeError: The traffic has no block hashes, the model has no KV cache, or there are too many blocks.
    """
    if not len(traffic.starts) and traffic.turns is None:
        raise RangeError(
            "traffic: a prefix cache needs block hashes, got none; use a trace with hash_ids, or shared prefixes (--prefixes)"
        )
    block_bytes = bytes_per_token * traffic.block_tokens
    if not block_bytes > 0:
        raise RangeError("model: a prefix cache needs a KV cache that grows with tokens, got a model without one")

    # Blocks are numbered from 0, so that the compiled loop can use arrays instead of a dictionary.
    capacity = np.array([min(int(tier.capacity // block_bytes), 1 << 40) for tier in cache.tiers], dtype=np.int64)
    costs = (
        traffic.block_tokens, np.array([float(t.bandwidth) for t in cache.tiers]),
        np.array([float(t.latency) for t in cache.tiers]), block_bytes,
        float(pace.rows[-1] - pace.rows[0]) / (len(pace.rows) - 1), pace.pair, route == "prefix-aware", replicas,
    )  # fmt: skip
    n, tiers, earlier = len(traffic), len(cache.tiers), traffic.earlier
    count = n + (0 if earlier is None else len(earlier))
    cached, load, skipped = np.zeros(count, dtype=np.int64), np.zeros(count), np.zeros(count, dtype=np.int64)
    hits, written = np.zeros((count, tiers), dtype=np.int64), np.zeros(tiers, dtype=np.int64)
    replica = np.arange(count, dtype=np.int64) % replicas if dealt is None else np.array(dealt, dtype=np.int64)
    results = replica, hits, written, cached, load, skipped, np.zeros(replicas)
    if traffic.turns is None:
        ids, names = _numbered(traffic.blocks)
        _check_block_count(replicas, names)
        state = _empty_tiers(replicas, names, tiers)
        _look_up_requests(ids, np.asarray(traffic.starts), np.asarray(traffic.inputs), capacity, *costs, *state, *results)
    else:
        blocks = min(int(room // traffic.block_tokens), 1 << 40) if np.isfinite(room) else 1 << 40
        look_up_turns(traffic, capacity, costs, results, room=blocks, answer_share=answer_share)
    # Turns before the run fill the tiers; what they find does not count.
    cached, load, skipped = cached[count - n :], load[count - n :], skipped[count - n :]
    replica, hits = replica[count - n :], hits[count - n :]

    # The compiled loop has filled the arrays in place.
    tokens = hits.sum(axis=0) * traffic.block_tokens
    return CacheUse(
        cached=cached,
        load=load,
        route=replica,
        tiers=tuple(tier.name for tier in cache.tiers),
        hit_tokens=tokens,
        bytes_read=tokens * bytes_per_token,
        bytes_written=written * block_bytes,
        hit_rate=float(cached.sum() / max(1, traffic.inputs.sum())),
        recomputed=int(skipped.sum()) * traffic.block_tokens,
        prompt_tokens=int(max(1, traffic.inputs.sum())),
    )


def _numbered(blocks: Any) -> tuple[Any, int]:
    """Return blocks numbered from 0, and how many numbers there are; numbers without wide gaps stay as they are."""
    blocks = np.asarray(blocks, dtype=np.int64)
    if len(blocks) and blocks.min() >= 0 and blocks.max() < len(blocks):
        return blocks, int(blocks.max()) + 1
    names, ids = np.unique(blocks, return_inverse=True)
    return ids.astype(np.int64), len(names)


def _empty_tiers(replicas: int, blocks: int, tiers: int) -> tuple[Any, Any, Any]:
    """Return the tier of each block (-1: none), the neighbours in its list, and the sizes of the lists, which are empty."""
    links = np.full((replicas, blocks + 2 * tiers, 2), -1, dtype=np.int64)
    heads = blocks + 2 * np.arange(tiers)
    links[:, heads, 1], links[:, heads + 1, 0] = heads + 1, heads
    return np.full((replicas, blocks), NO_TIER, dtype=np.int64), links, np.zeros((replicas, tiers), dtype=np.int64)


def _check_block_count(replicas: int, blocks: int) -> None:
    """Raise RangeError where all replicas have more blocks than memory allows."""
    if replicas * blocks > MAX_BLOCKS:
        raise RangeError(
            f"blocks: must be at most {MAX_BLOCKS:,} in all, got {blocks:,} on {replicas:,} replicas; use fewer requests"
        )


@compiled
def _unlink(links: Any, r: int, k: int) -> None:
    a, b = links[r, k, 0], links[r, k, 1]
    links[r, a, 1], links[r, b, 0] = b, a


@compiled
def _to_front(links: Any, r: int, head: int, k: int) -> None:
    b = links[r, head, 1]
    links[r, head, 1], links[r, k, 0], links[r, k, 1], links[r, b, 0] = k, head, b, k


@compiled
def _insert_block(
    block_tier: Any, links: Any, size: Any, capacity: Any, written: Any, r: int, k: int, tier: int, first: int
) -> None:
    """Insert a block at the front of a tier; evicted blocks move to the next tier."""
    while tier < len(capacity):
        head = first + 2 * tier
        if capacity[tier] > 0:
            _to_front(links, r, head, k)
            block_tier[r, k] = tier
            size[r, tier] += 1
            written[tier] += 1
            if size[r, tier] <= capacity[tier]:
                return
            k = links[r, head + 1, 0]
            _unlink(links, r, k)
            size[r, tier] -= 1
        block_tier[r, k] = NO_TIER
        tier += 1


@entry
def _look_up_requests(
    ids: Any, starts: Any, inputs: Any, capacity: Any, block: int, bandwidth: Any, latency: Any, block_bytes: float,
    row: float, pair: float, aware: bool, replicas: int, block_tier: Any, links: Any, size: Any, replica: Any, hits: Any,
    written: Any, cached: Any, load: Any, skipped: Any, computed_tokens: Any,
) -> None:  # fmt: skip
    """Look up every request and insert its blocks.

    `computed_tokens` [tokens] is the prefill work of each replica.
    """
    first, total = block_tier.shape[1], 0.0
    for i in range(len(inputs)):
        low, high = starts[i], starts[i + 1]
        if aware:
            best, longest, fewest = 0, -1, np.inf
            for r in range(replicas):
                k = low
                while k < high and block_tier[r, ids[k]] >= 0:
                    k += 1
                # An overloaded replica counts as having no hits, so that load stays balanced.
                hit_blocks = k - low if computed_tokens[r] <= SLACK * total / replicas + block else 0
                if hit_blocks > longest or (hit_blocks == longest and computed_tokens[r] < fewest):
                    best, longest, fewest = r, hit_blocks, computed_tokens[r]
            replica[i] = best
        r = replica[i]

        # A slower tier is used up to the first block that is faster to compute than to load.
        k, loads = low, 0
        while k < high and block_tier[r, ids[k]] >= 0 and (k - low + 1) * block < inputs[i]:
            t = block_tier[r, ids[k]]
            if t > 0:
                recompute_seconds = block * row + pair * (block * (k - low) * block + block * (block + 1) / 2)
                needs = block_bytes / bandwidth[t] + (latency[t] if loads == 0 else 0.0)
                if needs > recompute_seconds:
                    break
                load[i] += needs
                loads += 1
            hits[i, t] += 1
            k += 1
        cached[i] = (k - low) * block
        while k < high and block_tier[r, ids[k]] >= 0 and (k - low + 1) * block < inputs[i]:
            skipped[i] += 1
            k += 1
        computed_tokens[r] += inputs[i] - cached[i]
        total += inputs[i] - cached[i]
        # In reverse order, so that the first block is the most recently used and is evicted last.
        for k in range(high - 1, low - 1, -1):
            t = block_tier[r, ids[k]]
            if t >= 0:
                _unlink(links, r, ids[k])
                size[r, t] -= 1
                written[0] -= t == 0
            _insert_block(block_tier, links, size, capacity, written, r, ids[k], 0, first)
