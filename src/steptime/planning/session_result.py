"""Result of a plan for sessions: the content of each tier of a replica's prefix cache, and the cost of loading it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from steptime.result_base import unit
from steptime.workload.sessions import Sessions


class SessionCase(NamedTuple):
    """Sessions with which a plan is confirmed, and their prefix cache.

    `capacities` [B] by tier replace those of the system for a replica. The search leaves `load` of the limit on the first token
    [s] for loads.
    """

    sessions: Sessions
    capacities: Mapping[str, float] | None = None
    load: float = 0.0


class SessionRun(NamedTuple):
    """What turns of sessions found in a run: share of all prompt tokens by tier, and mean load time per request [s]."""

    hits: Mapping[str, float]
    load: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TierHits:
    """One tier of the prefix cache of a replica."""

    name: str = field(metadata=unit("", "name of the tier"))
    capacity: float = field(metadata=unit("B", "capacity for one replica; of HBM, what running sequences leave"))
    hold_seconds: float = field(
        metadata=unit("s", "time for which this tier and those before it hold a history; null: without end", key="hold_s")
    )
    hit_share: float = field(metadata=unit("", "share of all prompt tokens that are found in the tier"))
    load_seconds: float = field(metadata=unit("s", "mean load time per request", key="load_s"))
    bandwidth_share: float = field(metadata=unit("", "share of the tier's bandwidth that loads take"))
    why_unused: str = field(default="", metadata=unit("", "why the tier is not used; empty: it is used"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCache:
    """The prefix cache of a plan for sessions."""

    sessions: Sessions = field(metadata=unit("", "turns and tokens of sessions"))
    mean_turns: float = field(metadata=unit("", "mean turns of a session, which the context of the model may end"))
    sessions_in_progress: float = field(
        metadata=unit("sessions", "mean sessions between their first turn and their last answer")
    )
    held_share: float = field(metadata=unit("", "share of prompt tokens that a cache of any size would have"))
    hit_share: float = field(metadata=unit("", "share of prompt tokens that the tiers have at the rate of the plan"))
    is_replayed: bool = field(
        metadata=unit("", "whether hits, loads and latencies are those of turns served one by one, else those of closed forms")
    )
    tiers: tuple[TierHits, ...] = field(metadata=unit("", "tiers of one replica, fastest first"))
    load_seconds: float = field(metadata=unit("s", "mean load time per request, which the first token contains", key="load_s"))
    needed_bytes: float = field(
        metadata=unit("B", "bytes of a replica that hold 95 % of the tokens that repeat", key="needed_bytes")
    )
    needed_tier: str = field(metadata=unit("", "last tier that is needed for it; empty: all tiers together are too small"))
