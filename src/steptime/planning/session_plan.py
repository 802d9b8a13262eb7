"""Plans for sessions: the hit rate of the prefix cache is a result of the plan, not an input.

A plan needs the cached share of its prompts, and the share depends on the rate of the plan: at a higher rate a tier holds
histories for a shorter time. Therefore quick plans with several shares search the one that the tiers hold at the rate of the
plan (`estimate_share`). The whole search begins with it (`whole_plan`). One pool and two pools hold unlike shares, and each
mode gets its own.

Closed forms give the hits of quick plans (`session_hits`). The whole search confirms its finalists with drawn turns, whose
histories are in real tiers (`session_loop`). It lowers their rate until the limits are met and the tiers keep the sessions in
progress, also at a slightly higher rate. The plan states what these runs show.

The HBM of a replica holds what its turns in progress leave. A history is in use until the end of its answer, and again after
the think time. Host memory and disks belong to the chips of the replica. A tier is used where a load is faster than prefill,
and no more than its bandwidth allows. A load delays the first token of its request, and not other requests. Every session stays
with its replica.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from steptime.catalog.hardware_loading import SystemLike
from steptime.errors import RangeError, UnknownName, expect
from steptime.hardware.system import MemoryTier, System
from steptime.models.model import Model, cached_token_bytes, stored_formats
from steptime.models.model_loading import ModelLike
from steptime.physics.chip_memory import cache_parts
from steptime.physics.compute_dtype import as_served
from steptime.physics.engine import anchored, model_and_system, serving_engine
from steptime.physics.uncertainty import has_range
from steptime.planning.evidence import ANY, EVIDENCE, MEASURED
from steptime.planning.plan_problem import DISAGGREGATED
from steptime.planning.plan_result import Plan, Pool
from steptime.planning.planner import MODES, plan
from steptime.planning.session_hits import Flow, SessionCache, SessionCase, TierHits, find_hits, flow_of_sessions, found_tokens
from steptime.planning.slo_probability import QUANTILES
from steptime.units import percent
from steptime.workload.sessions import PRESETS, Sessions, as_workload, held_share, mean_history, mean_turns, turn_shares
from steptime.workload.workload import Slo, Workload, decode_steps

# Most quick plans, and most plans of the whole search.
MOST_QUICK: Final = 5
MOST_WHOLE: Final = 4
# Most of them where turns of sessions confirm each, and the cached share below which no smaller one is tried.
MOST_REPLAYED, SMALL_SHARE = 2, 0.02
# Difference between two cached shares that is small, over the share that is not cached.
TOLERANCE: Final = 0.05
# Change of what tiers hold beyond the cached share, with that share: -1 where the rate stays, and less where it rises.
SLOPE: Final = -1.5
# Share of the repeated tokens that `needed_bytes` holds.
ENOUGH: Final = 0.95
TOO_SLOW = "prefill is faster than a load"
UNSETTLED = "the tiers hold fewer histories than each plan counts"

# Function that makes a plan from requests, limits and modes. The last argument has the sessions that confirm it; None asks for
# a quick plan.
Planner = Callable[[Workload, Slo, tuple[str, ...], SessionCase | None], Plan]


class Trial(NamedTuple):
    """A cached share, and by how much the tiers hold more at the rate of its plan."""

    share: float
    surplus: float


class Replica(NamedTuple):
    """What a replica that prefills gets: turns per second, KV cache per token [B], and mean prompt [tokens].

    `parts` is the number of chips among which the cache of a request is divided. `ranks` is the number of data-parallel ranks,
    each of which has its links.
    """

    rate: float
    parts: float
    ranks: int
    token_bytes: float
    prompt: float


class SessionProblem(NamedTuple):
    """What a plan for sessions is made from.

    `tiers` are those of a chip, HBM first; `capacities` [B] replace their capacities for a replica.
    """

    make_plan: Planner
    sessions: Sessions
    slo: Slo
    tiers: tuple[MemoryTier, ...]
    capacities: Mapping[str, float] | None
    model: Model

    @property
    def longest(self) -> float:
        """Longest context of the model [tokens]."""
        return float(self.model.max_context)

    def plan(self, modes: tuple[str, ...], share: float, load: float, *, quick: bool) -> Plan:
        """Return the plan with a cached share, whose limit on the first token leaves time for a load [s]."""
        slo = self.slo
        if math.isfinite(slo.ttft):
            slo = replace(slo, ttft=max(slo.ttft - load, 1e-3 * slo.ttft))
        # Without a limit on the first token, loads take no time from it.
        has_less_time = bool(load) and math.isfinite(slo.ttft)
        turns = (
            None if quick else SessionCase(self.sessions, self.capacities, self.slo.ttft - slo.ttft if has_less_time else 0.0)
        )
        return self.make_plan(as_workload(self.sessions, share, self.longest), slo, modes, turns)

    def cache(self, deployment: Plan) -> SessionCache:
        """Return what the prefix cache of a plan holds at its rate."""
        return evaluate_cache(deployment, self.sessions, self.tiers, self.capacities, model=self.model)

    def load(self, deployment: Plan, cache: SessionCache) -> float:
        """Return the load time at the percentile of a plan [s]; 0 where its first token contains loads."""
        if deployment.session_run is not None:
            return 0.0
        return cache.load_seconds * history_ratio(self.sessions, self.longest, deployment.percentile)

    def holds_nothing(self, modes: tuple[str, ...]) -> bool:
        """Whether the tiers hold no histories without limits; if they hold some, they hold more at a lower rate."""
        draft = self._replace(slo=Slo()).plan(modes, self.held_share, 0.0, quick=True)
        return draft.feasible and self.cache(draft).hit_share < SMALL_SHARE

    @property
    def held_share(self) -> float:
        """Share of prompt tokens that repeat."""
        return held_share(self.sessions, self.longest)


class Estimate(NamedTuple):
    """A cached share that quick plans found, and the load [s].

    `slope` is the change of the held share beyond the assumed share, with the assumed share. `hit_share` is the held share of
    the last plan within the limits.
    """

    share: float
    load: float
    slope: float
    hit_share: float


def plan_sessions(
    model: ModelLike,
    system: SystemLike,
    sessions: Sessions | str,
    slo: Slo | None = None,
    *,
    prefix_cache: Mapping[str, float] | None = None,
    **settings: Any,
) -> Plan:
    """Return the cheapest deployment of sessions within limits: conversations or agents, whose prompts repeat their history.

    The hit rate of the prefix cache is a result: the plan has a `session_cache`. Without numba, it rests on closed forms.

    Args:
        model: Model, or its name as for `load_model`.
        system: System, or its name as for `load_system`.
        sessions: Sessions, or "chat" or "agent".
        slo: Limits on TTFT and TPOT [s]; by default no limits.
        prefix_cache: Capacity of the prefix cache of one replica by tier [B]; by default free HBM, host memory and disks of the
            system. HBM that is not named has what running sequences leave.
        settings: Further arguments of `plan`, such as `chips` and `engine`; systems of two pools are not among them.

    Returns:
        The plan.

    Raises:
        RangeError: An argument is out of range, or the model has no KV cache that grows with tokens.
        UnknownName: There are no such sessions, or the system has no such tier.
    """
    if isinstance(sessions, str):
        if sessions not in PRESETS:
            raise UnknownName("kind of sessions", sessions, PRESETS, f"Known: {', '.join(PRESETS)}.")
        sessions = PRESETS[sessions]
    expect("sessions", sessions, Sessions, 'Sessions, such as "chat" or Sessions(turns=5, input_tokens=300, ...)')
    for name in ("prefill_system", "prefill_chips"):
        if settings.get(name) is not None:
            raise RangeError(f"{name}: histories of sessions are on one system; leave out {name}, or sessions")
    model, system = model_and_system(model, system, settings.get("engine"))
    engine, formats = serving_engine(system, settings.get("engine")), stored_formats(model)
    runs_on = anchored(engine, settings.get("anchor"), model=model.name, system=system.name, formats=formats)
    modes = settings.get("modes", MODES)
    modes = (modes,) if isinstance(modes, str) else tuple(modes)
    effects = ("alternatives", "elasticities", "diagnostics", "front")

    def make_plan(workload: Workload, limits: Slo, modes_now: tuple[str, ...], turns: SessionCase | None) -> Plan:
        changes: dict[str, Any] = {"modes": modes_now, "turns": turns}
        # A chunk has no effect on separate pools.
        if modes_now == (DISAGGREGATED,) != modes:
            changes["chunk"] = None
        if turns is None:
            changes |= dict.fromkeys(effects, False) | {"quick": True}
        return plan(model, system, workload, limits, **(settings | changes))

    return plan_turns(
        make_plan, sessions, Slo() if slo is None else slo, model=as_served(model, system, runs_on), system=system, modes=modes,
        evidence=settings.get("evidence", MEASURED) if has_range(runs_on) else ANY, capacities=prefix_cache,
    )  # fmt: skip


def plan_turns(
    make_plan: Planner,
    sessions: Sessions,
    slo: Slo,
    *,
    model: Model,
    system: System,
    modes: tuple[str, ...],
    evidence: str = ANY,
    capacities: Mapping[str, float] | None = None,
) -> Plan:
    """Return the plan whose cached share is what its own prefix cache holds.

    Args:
        make_plan: Function from requests, limits, modes and whether it is quick to a plan.
        sessions: Sessions.
        slo: Limits.
        model: Model as it is served.
        system: System.
        modes: Deployment modes.
        evidence: Evidence of layouts that is preferred, as for `plan`.
        capacities: Capacity of tiers for one replica [B], in place of those of the system; HBM that is not named has what
            running sequences leave.

    Returns:
        The plan with `session_cache`; its TTFT contains loads.

    Raises:
        RangeError: The model has no KV cache that grows with tokens.
        UnknownName: The system has no such tier.
    """
    width, tiers = cached_token_bytes(model), (system.chip.hbm, *system.tiers)
    if not width > 0:
        raise RangeError("sessions: need a KV cache that grows with tokens, got a model without one")
    names = [tier.name for tier in tiers]
    for name in capacities or {}:
        if name not in names:
            raise UnknownName("memory tier", name, names, f"Known: {', '.join(names)}.")
    case = SessionProblem(make_plan, sessions, slo, tiers, capacities, model)

    # Where the tiers hold all that repeats, the share is the same for all layouts. Otherwise one and two pools hold unlike
    # shares, and each mode gets its own.
    draft = case.plan(modes, case.held_share, 0.0, quick=True)
    together = not draft.feasible or is_small(case.cache(draft).hit_share - case.held_share, case.held_share)
    choices = (modes,) if together else tuple((mode,) for mode in modes)
    plans = [whole_plan(case, choice, estimate_share(case, choice)) for choice in choices]

    def preference(deployment: Plan) -> tuple[bool, int, float]:
        level = max(EVIDENCE.index(deployment.evidence), EVIDENCE.index(evidence))
        return deployment.feasible, -level, deployment.requests_per_second

    return replace(max(plans, key=preference), sessions=sessions)


def estimate_share(case: SessionProblem, modes: tuple[str, ...]) -> Estimate:
    """Return the cached share that the tiers hold, from quick plans.

    The share that the tiers hold falls with the cached share, because the rate rises.

    Args:
        case: Problem.
        modes: Deployment modes.

    Returns:
        The estimate.
    """
    share, load, hit_share = case.held_share, 0.0, math.nan
    low: Trial | None = None
    high: Trial | None = None
    for _ in range(MOST_QUICK):
        draft = case.plan(modes, share, load, quick=True)
        if not draft.feasible:
            # Fewer cached tokens meet no limit: look between this share and the last one with a plan.
            if high is None:
                share = 0.0 if case.holds_nothing(modes) else share
                break
            share = (share + high.share) / 2
            continue
        cache = case.cache(draft)
        load, hit_share = case.load(draft, cache), cache.hit_share
        surplus = hit_share - share
        if is_small(surplus, share):
            break
        if surplus < 0:
            high = Trial(share, surplus)
        else:
            low = Trial(share, surplus)
        share = next_share(low, high, hit_share)
    slope = SLOPE if low is None or high is None else (high.surplus - low.surplus) / (high.share - low.share)
    return Estimate(share, load, slope, hit_share)


def whole_plan(case: SessionProblem, modes: tuple[str, ...], estimate: Estimate) -> Plan:
    """Return the plan of the whole search, which may find another layout than quick plans, whose tiers hold more or less.

    A plan that turns of sessions confirmed is true with any cached share; the share only ranks layouts. Without such runs, its
    tiers hold at least the counted share.

    Args:
        case: Problem.
        modes: Deployment modes.
        estimate: Where to begin.

    Returns:
        The plan.
    """
    share, load, slope, hit_share = estimate
    before: Trial | None = None
    best: tuple[Plan, SessionCache, float] | None = None
    reason, refused_share = "", 0.0
    for turn in range(MOST_WHOLE + 1):
        deployment = case.plan(modes, share, load, quick=False)
        if not deployment.feasible:
            # The largest share that the tiers hold is nearest to the limits.
            if not reason or refused_share > hit_share:
                reason, refused_share = deployment.reason, share
            # No finalist keeps the sessions at nearly its rate: others, which count on fewer hits, have lower rates.
            if best is not None or share < SMALL_SHARE:
                break
            share = share / 2 if turn < MOST_WHOLE - 1 else 0.0
            continue
        cache = case.cache(deployment)
        surplus = cache.hit_share - share
        is_replayed = deployment.session_run is not None
        # A plan of closed forms whose tiers hold less than it counts would not deliver; one whose tiers hold more does.
        if is_replayed or surplus > 0 or is_small(surplus, share):
            load_now = case.load(deployment, cache)
            if best is None or not is_replayed or deployment.requests_per_second > best[0].requests_per_second:
                best = (deployment, cache, load_now)
        load = load if is_replayed else case.load(deployment, cache)
        last = MOST_REPLAYED if is_replayed else MOST_WHOLE
        if is_small(surplus, share) or (turn >= last - 1 and best is not None):
            break
        if before is not None and share != before.share:
            slope = (surplus - before.surplus) / (share - before.share)
        before = Trial(share, surplus)
        # The share that tiers hold does not rise with the cached share. The last plan counts what the one before held.
        following = cache.hit_share if turn == last - 1 else share - surplus / min(slope, -1.0)
        share = min(max(following, 0.0), case.held_share)
    if best is None:
        if reason:
            percentage, repetition = percent(refused_share), percent(case.held_share)
            remedy = f"; {repetition} repeat, and larger tiers (--prefix-cache) hold more of them"
            comparison = ", all that repeat" if percentage == repetition else remedy
            reason += f". The prefix cache has {percentage} of the prompt tokens{comparison}"
        return replace(deployment, feasible=False, slo=case.slo, reason=reason or UNSETTLED + _held_words(hit_share))
    return with_loads(best[0], case.slo, best[1], best[2])


def is_small(surplus: float, share: float) -> bool:
    """Return whether a difference between two cached shares hardly changes the tokens to prefill.

    Args:
        surplus: Difference.
        share: Cached share.

    Returns:
        Whether it is small.
    """
    return abs(surplus) <= TOLERANCE * (1 - share)


def _held_words(hit_share: float) -> str:
    """Say what the tiers held in the last plan that met the limits."""
    if math.isnan(hit_share):
        return ""
    return f" (of the prompt tokens, the prefix cache has {percent(hit_share)} at the rate of the last plan within the limits)"


def next_share(low: Trial | None, high: Trial | None, hit_share: float) -> float:
    """Return the next cached share to plan with: between a share that is too small and one that is too large.

    Args:
        low: Largest share of which the tiers hold more.
        high: Smallest share of which they hold less.
        hit_share: Share that the tiers held in the last plan.

    Returns:
        The share; by linear interpolation where both are known.

    >>> next_share(Trial(0.2, 0.3), Trial(0.8, -0.3), 0.5), next_share(None, Trial(0.8, -0.3), 0.5)
    (0.5, 0.5)
    """
    if low is None or high is None:
        return hit_share
    part = low.surplus / (low.surplus - high.surplus)
    # Plans change in steps: stay inside the bracket.
    return low.share + min(max(part, 0.1), 0.9) * (high.share - low.share)


def history_ratio(sessions: Sessions, longest: float, percentile: str) -> float:
    """Return the history of the request at a percentile, over the mean.

    Args:
        sessions: Sessions.
        longest: Longest context of the model [tokens].
        percentile: "mean", "p50", "p90", "p95" or "p99".

    Returns:
        Ratio; the histories contain the system prompt.
    """
    shares = turn_shares(sessions, longest)
    mean = sessions.system_prompt + mean_history(sessions, longest)
    if percentile == "mean" or not mean:
        return 1.0
    turns = int(np.searchsorted(np.cumsum(shares), QUANTILES[percentile]))
    return (min(turns, len(shares) - 1) * sessions.growth + sessions.system_prompt) / mean


def history_square_ratio(sessions: Sessions, longest: float) -> float:
    """Return the mean square of histories over the square of their mean; 1 without histories.

    Args:
        sessions: Sessions.
        longest: Longest context of the model [tokens].

    Returns:
        Ratio; the histories contain the system prompt.
    """
    shares = turn_shares(sessions, longest)
    histories = sessions.system_prompt + np.arange(len(shares)) * sessions.growth
    mean = float(shares @ histories)
    return float(shares @ histories**2) / mean**2 if mean else 1.0


def with_loads(deployment: Plan, slo: Slo, cache: SessionCache, load: float) -> Plan:
    """Return a plan with its prefix cache, and loads in the time to first token.

    Args:
        deployment: Plan without loads.
        slo: Limits.
        cache: Prefix cache of the plan.
        load: Load time at the percentile of the plan [s].

    Returns:
        The plan; it is not feasible if loads take longer than the limit allows.
    """
    ends, share = deployment.ttft_range, float(deployment.workload.cached_share)
    warnings = deployment.warnings
    if not cache.is_replayed and not is_small(cache.hit_share - share, share):
        words = (
            f"the plan counts {percent(share)} of the prompt tokens as cached, and its tiers hold {percent(cache.hit_share)}"
        )
        warnings = (f"{words}: with more in the cache, the cheapest layout is another one, whose tiers hold less", *warnings)
    mean = 0.0 if cache.is_replayed else cache.load_seconds
    deployment = replace(
        deployment, slo=slo, session_cache=cache, warnings=warnings, ttft=deployment.ttft + load,
        mean_ttft=deployment.mean_ttft + mean,
        ttft_range=None if ends is None else (ends[0] + load, ends[1] + load),
        **{
            name: replace(point, ttft=point.ttft + load)
            for name in ("ideal", "runner_up")
            if (point := getattr(deployment, name)) is not None
        },
    )  # fmt: skip
    if deployment.ttft <= slo.ttft * (1 + TOLERANCE):
        return deployment
    return replace(
        deployment,
        feasible=False,
        reason=f"loading the history of a session takes {load:.3g} s of the {slo.ttft:g} s until the first token; use faster "
        "tiers (--prefix-cache), or relax the limit",
    )


def evaluate_cache(
    deployment: Plan,
    sessions: Sessions,
    tiers: tuple[MemoryTier, ...],
    capacities: Mapping[str, float] | None,
    *,
    model: Model,
) -> SessionCache:
    """Return what the prefix cache of a plan holds at its rate: the hits of its replay with sessions where there is one.

    Args:
        deployment: A feasible plan.
        sessions: Sessions.
        tiers: Memory tiers of the system for one chip, HBM first.
        capacities: Capacity of tiers for one replica [B], or None for those of the system.
        model: Model as it is served.

    Returns:
        Hits, loads and needed bytes.
    """
    width, longest = cached_token_bytes(model), float(model.max_context)
    # Prompts are looked up where they are prefilled.
    pool, workload = deployment.pools[0], deployment.workload
    replicas, chips = int(pool.layout.replicas), int(pool.layout.chips)
    rate = deployment.requests_per_second / replicas
    # A history is in use until the end of its answer. A pool that only prefills has it until it is sent.
    is_separate = len(deployment.pools) > 1
    answer = float(decode_steps(workload, deployment.speculation)) * deployment.mean_tpot if is_separate else 0.0
    spread = float(workload.output_spread)
    flow = flow_of_sessions(sessions, rate=rate, answer=answer, answer_spread=spread, longest=longest)
    free_bytes = free_tokens(deployment, sessions.system_prompt) * width
    prefill_seconds, parts = seconds_per_prompt_token(pool, workload), float(cache_parts(model, pool.layout))

    # Capacities of one replica; a tier that is slower than prefill is left out, unless turns found their histories in it.
    run = deployment.session_run
    used: list[tuple[MemoryTier, float, str]] = []
    for place, tier in enumerate(tiers):
        size = float(tier.capacity) * chips if place else free_bytes
        if capacities is not None:
            size = min(capacities.get(tier.name, free_bytes), free_bytes) if place == 0 else capacities.get(tier.name, 0.0)
        is_slow = place > 0 and width / (float(tier.bandwidth) * parts) > prefill_seconds
        is_loaded = run is not None and run.hits.get(tier.name, 0.0) > 0
        used.append((tier, size, TOO_SLOW if is_slow and not is_loaded else ""))
    hits = find_hits([0.0 if reason else size / width for _, size, reason in used], flow)
    # Not rounded, so that shares are at most that of a cache of any size.
    prompt = sessions.system_prompt + mean_history(sessions, longest) + sessions.input_tokens
    replica = Replica(rate=rate, parts=parts, ranks=int(pool.layout.dp), token_bytes=width, prompt=prompt)
    rows = tuple(
        _tier_hits(replica, tier, size, reason, tokens=float(hits.tokens[place]), hold=float(hits.hold_seconds[place]))
        if place
        else _hbm_hits(replica, tier, size, float(hits.tokens[0]), float(hits.hold_seconds[0]))
        for place, (tier, size, reason) in enumerate(used)
    )
    load = sum(row.load_seconds for row in rows)
    wait = load_wait(rate / replica.ranks, load, history_square_ratio(sessions, longest))
    if run is not None:
        rows = tuple(replace(row, hit_share=run.hits.get(row.name, 0.0)) for row in rows)
    return SessionCache(
        sessions=sessions,
        mean_turns=mean_turns(sessions, longest),
        sessions_in_progress=_in_progress(deployment, sessions, flow),
        held_share=held_share(sessions, longest),
        hit_share=sum(row.hit_share for row in rows),
        is_replayed=run is not None,
        tiers=rows,
        load_seconds=load + wait if run is None else run.load,
        **_needed(rows, flow, width),
    )


def _hbm_hits(replica: Replica, tier: MemoryTier, size: float, tokens: float, hold: float) -> TierHits:
    """Return the hits in the memory of the chips, which need no load."""
    return TierHits(
        name=tier.name, capacity=size, hold_seconds=hold, hit_share=tokens / replica.prompt, load_seconds=0.0,
        bandwidth_share=0.0,
    )  # fmt: skip


def _tier_hits(replica: Replica, tier: MemoryTier, size: float, reason: str, *, tokens: float, hold: float) -> TierHits:
    """Return the hits of a slower tier of a replica, as far as its bandwidth goes."""
    bandwidth = float(tier.bandwidth) * replica.parts
    utilisation = replica.rate * tokens * replica.token_bytes / (bandwidth * replica.ranks)
    loaded = tokens / max(1.0, utilisation)
    share = loaded / replica.prompt
    return TierHits(
        name=tier.name, capacity=size, hold_seconds=hold, hit_share=share,
        load_seconds=loaded * replica.token_bytes / bandwidth + float(tier.latency or 0.0) * share,
        bandwidth_share=min(1.0, utilisation), why_unused=reason,
    )  # fmt: skip


def load_wait(rate: float, load: float, square_ratio: float) -> float:
    r"""Return the mean wait of a load for the loads before it on the link of a data-parallel rank.

    This is the formula of Pollaczek and Khinchine for a queue M/G/1: $W = \lambda E[L^2] / 2(1 - \lambda E[L])$. The loop has
    the same link, on which loads wait for each other (`event_loop.arrive`).

    Args:
        rate: Requests of the rank [requests/s].
        load: Mean load time [s].
        square_ratio: Mean square of load times over the square of their mean.

    Returns:
        Seconds; infinite where loads take all the time of the link.

    >>> load_wait(1.0, 0.5, 1.0), load_wait(2.0, 0.5, 1.0)
    (0.25, inf)
    """
    busy = rate * load
    return rate * square_ratio * load**2 / (2 * (1 - busy)) if busy < 1 else math.inf


def free_tokens(deployment: Plan, system_prompt: float) -> float:
    """Return the KV cache of a replica that prefills which turns in progress leave, on average.

    A turn has its prompt in use from its arrival to the end of its answer, and half of its answer on average. A pool that only
    prefills has the prompt until it is sent.

    Args:
        deployment: A feasible plan.
        system_prompt: Tokens that all sequences share, and store once.

    Returns:
        Tokens.
    """
    pool, workload = deployment.pools[0], deployment.workload
    room = float(pool.kv_tokens_per_rank) * int(pool.layout.dp)
    tokens, seconds = float(workload.input_tokens) - system_prompt, deployment.mean_ttft
    if len(deployment.pools) == 1:
        tokens += float(workload.output_tokens) / 2
        seconds += float(decode_steps(workload, deployment.speculation)) * deployment.mean_tpot
    return max(0.0, room - deployment.requests_per_second / int(pool.layout.replicas) * seconds * tokens)


def seconds_per_prompt_token(pool: Pool, workload: Workload) -> float:
    """Return the time that a replica takes to prefill a token.

    Args:
        pool: Pool that prefills.
        workload: Requests.

    Returns:
        Seconds per token.
    """
    fresh = float(workload.input_tokens) * (1 - float(workload.cached_share))
    if pool.mixed is None:
        return float(pool.step.total) / (float(pool.batch) * fresh)
    added = float(pool.mixed.total) - float(pool.step.total)
    # A chunk is at most the whole prompt, in equal parts.
    chunk = fresh / max(math.ceil(fresh / pool.chunk), 1)
    return max(added, 0.0) / (chunk * max(pool.chunks_per_mixed_step, 1.0))


def _in_progress(deployment: Plan, sessions: Sessions, flow: Flow) -> float:
    """Return the mean number of sessions between their first turn and their last answer, by Little's law."""
    answer = deployment.mean_ttft + float(decode_steps(deployment.workload, deployment.speculation)) * deployment.mean_tpot
    thinks = sessions.think_time * (1 - float(flow.shares[0]))
    return deployment.requests_per_second * (answer + thinks)


def _needed(rows: tuple[TierHits, ...], flow: Flow, width: float) -> dict[str, Any]:
    """Return the bytes that hold enough of the repeated tokens, and the last tier that is needed; none where none repeat."""
    enough = ENOUGH * found_tokens(math.inf, flow)
    if enough <= 0:
        return {"needed_bytes": 0.0, "needed_tier": ""}
    low, high = 0.0, 1.0
    while found_tokens(high, flow) < enough:
        low, high = high, 4 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if found_tokens(middle, flow) < enough else (low, middle)
    together = np.cumsum([0.0 if row.why_unused else row.capacity for row in rows])
    names = [row.name for row, total in zip(rows, together, strict=True) if total >= high * width]
    return {"needed_bytes": high * width, "needed_tier": names[0] if names else ""}
