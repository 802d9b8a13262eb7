r"""Hits of a prefix cache under sessions, in closed form: which share of the prompt tokens a tier of some size still has.

A cache with least-recently-used eviction holds the tokens that were used in the last $T$ seconds. $T$ is such that they fill
its capacity (Che's approximation: H. Che, Y. Tung, Z. Wang, Hierarchical Web Caching Systems, IEEE JSAC 20(7), 2002,
https://doi.org/10.1109/JSAC.2002.801752; why it is accurate: C. Fricker, P. Robert, J. Roberts,
https://arxiv.org/abs/1202.3974). Here an item is the history of a session. It is used when a turn arrives, with all tokens up
to the end of its answer, and again after the interval $R$: the answer, and the think time.

Turns arrive at the rate $\lambda$ per second. The share $p_k$ of them are turn $k$ of a session, which then has $s_k$ tokens.
Another turn follows with the probability $c_k$. In an interval of $T$ seconds, other sessions use on average

$$N(T) = S (1 - e^{-\lambda T}) + \lambda \sum_k p_k s_k \left(T - c_k \int_0^T P(R < a)\,da\right)$$

tokens, where $S$ is the system prompt, which every turn uses. Sessions start at random, so that the number of those sessions
is a Poisson number: the variance has $s_k^2$ in place of $s_k$. Few long sessions therefore do not hit all or nothing, as they
would with the mean alone. Engines evict the end of a history first. So a turn with $h$ tokens of history finds
$\min(h, C - N(R))$ of them in a cache of $C$ tokens, if that is positive.

Tiers are filled one after another: a tier has what left the tiers before it, so that the first $j$ tiers together are one
list with their capacities added.

A plan for sessions reports these hits by tier, with the cost of loading them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from steptime.result_base import unit
from steptime.workload.sessions import Sessions, turn_shares

# Quantiles that stand for the times of answers and for exponential times, points of a normal distribution, and steps of a
# bisection.
ANSWERS, QUANTILES, POINTS, BISECTIONS = 32, 256, 15, 200
# Longest time for which a cache holds something [s].
LONGEST_HOLD: Final = 1e12


class Hits(NamedTuple):
    """Hits of the tiers of one replica, fastest first: arrays with one entry per tier.

    `hold_seconds` is the time for which this tier and those before it hold used tokens. `tokens` are mean tokens per
    request that are found in the tier.
    """

    hold_seconds: Any
    tokens: Any


class Flow(NamedTuple):
    """Turns that arrive at one replica.

    `rate` is in requests/s. `answers` are equally likely times from the use of a history to the end of the answer [s].
    `shares` are those of first, second, ... turns.
    """

    sessions: Sessions
    rate: float
    answers: Any
    shares: Any


def flow_of_sessions(
    sessions: Sessions, *, rate: float, answer: float, answer_spread: float = 0.0, longest: float = math.inf
) -> Flow:
    """Return the turns that arrive at one replica, on which each session stays.

    Args:
        sessions: Sessions.
        rate: Turns per second of the replica [requests/s].
        answer: Mean time from the use of a history to the end of the answer [s].
        answer_spread: Standard deviation of that time over its mean.
        longest: Longest context of the model [tokens].

    Returns:
        The turns.
    """
    return Flow(sessions, rate, answer_quantiles(answer, answer_spread), turn_shares(sessions, longest))


def answer_quantiles(mean: float, spread: float) -> Any:
    """Return equally likely times of an answer, which are log-normal.

    Args:
        mean: Mean time [s].
        spread: Standard deviation over the mean.

    Returns:
        Times [s] with this mean.
    """
    from statistics import NormalDist

    if mean == 0 or spread == 0:
        return np.array([mean])
    sigma = math.sqrt(math.log1p(spread**2))
    levels = (np.arange(ANSWERS) + 0.5) / ANSWERS
    times = np.exp(sigma * np.array([NormalDist().inv_cdf(float(level)) for level in levels]))
    return mean * times / times.mean()


def tokens_used_within(seconds: Any, flow: Flow) -> tuple[Any, Any]:
    """Return the mean and the standard deviation of the different tokens that the turns of an interval use.

    Args:
        seconds: Lengths of intervals [s].
        flow: Turns.

    Returns:
        Two arrays of the shape of `seconds` [tokens].
    """
    sessions, shares = flow.sessions, flow.shares
    seconds = np.asarray(seconds, dtype=np.float64)
    turns = np.arange(1, len(shares) + 1)
    sizes = turns * sessions.growth
    variance = (sessions.input_spread * sessions.input_tokens) ** 2 + (sessions.output_spread * sessions.output_tokens) ** 2
    squares = sizes**2 + turns * variance
    # No turn follows the last one that fits the context.
    follows = np.append(shares[1:] / shares[:-1], 0.0)
    waited = np.maximum(seconds[..., None] - flow.answers, 0.0)
    thought = sessions.think_time
    reused = np.mean(waited + thought * np.expm1(-waited / thought) if thought else waited, axis=-1)
    mean = flow.rate * (float(shares @ sizes) * seconds - float(shares @ (sizes * follows)) * reused)
    square = flow.rate * (float(shares @ squares) * seconds - float(shares @ (squares * follows)) * reused)
    return sessions.system_prompt * -np.expm1(-flow.rate * seconds) + mean, np.sqrt(np.maximum(square, 0.0))


def hold_seconds(capacity: float, flow: Flow) -> float:
    """Return the time for which a cache holds used tokens, on average.

    Args:
        capacity: Tokens that fit.
        flow: Turns.

    Returns:
        Seconds; infinite for an infinite capacity.
    """
    if capacity <= 0:
        return 0.0
    if not math.isfinite(capacity):
        return math.inf
    low, high = 0.0, LONGEST_HOLD
    for _ in range(BISECTIONS):
        middle = math.sqrt(low * high) if low > 0 else high * 1e-3
        if float(tokens_used_within(middle, flow)[0]) <= capacity:
            low = middle
        else:
            high = middle
        if high <= low * (1 + 1e-9) or high < 1e-9:
            break
    return low


def _exponential_quantiles(mean: float) -> Any:
    """Return equally likely times with an exponential distribution [s]."""
    times = -np.log1p(-(np.arange(QUANTILES) + 0.5) / QUANTILES)
    return mean * times / times.mean()


def _tokens_left(capacity: float, seconds: Any, flow: Flow) -> Any:
    """Return the tokens that other sessions leave of a capacity after some seconds, at the points of a normal distribution."""
    nodes, _ = np.polynomial.hermite_e.hermegauss(POINTS)
    mean, deviation = tokens_used_within(seconds, flow)
    return np.maximum(capacity - mean[..., None] - deviation[..., None] * nodes, 0.0)


def found_tokens(capacity: float, flow: Flow) -> float:
    """Return the mean tokens of a prompt that a cache has.

    Args:
        capacity: Tokens that fit.
        flow: Turns.

    Returns:
        Tokens per request, of the system prompt and of the history.
    """
    if capacity <= 0:
        return 0.0
    sessions, shares = flow.sessions, flow.shares
    histories = np.arange(len(shares)) * sessions.growth
    if not math.isfinite(capacity):
        return float(sessions.system_prompt + shares @ histories)
    _, weights = np.polynomial.hermite_e.hermegauss(POINTS)
    weights = weights / weights.sum()
    # Mean over turns of min(history, x) is linear between the histories.
    beyond = np.append(np.cumsum(shares[::-1])[::-1][1:], 0.0)
    mean_found = np.concatenate([[0.0], np.cumsum(beyond[:-1])]) * sessions.growth
    intervals = (flow.answers[:, None] + _exponential_quantiles(sessions.think_time)).ravel()
    private = np.interp(_tokens_left(capacity, intervals, flow), histories, mean_found) @ weights
    # The system prompt is used by each turn of any session.
    shared = np.minimum(_tokens_left(capacity, _exponential_quantiles(1 / flow.rate), flow), sessions.system_prompt) @ weights
    return float(private.mean() + shared.mean())


def find_hits(capacities: Any, flow: Flow) -> Hits:
    """Return the hits of the tiers of one replica.

    Args:
        capacities: Tokens that fit each tier, fastest first.
        flow: Turns.

    Returns:
        Hits by tier.
    """
    together = np.cumsum(np.asarray(capacities, dtype=np.float64))
    tokens = np.array([found_tokens(float(capacity), flow) for capacity in together])
    holds = np.array([hold_seconds(float(capacity), flow) for capacity in together])
    return Hits(hold_seconds=holds, tokens=np.diff(tokens, prepend=0.0))


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
