"""Replay of a plan with random arrivals: the rate at which its limits are met."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from steptime.catalog.hardware_loading import SystemLike
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.models.model_loading import ModelLike
from steptime.physics.engine import Engine
from steptime.planning.plan_as_traffic import (
    PoolLike,
    decode_policy,
    load_plan_inputs,
    load_prefill_system,
    longest_context,
    prefill_policy,
    skipped_tokens,
    workload_prompts,
    workload_traffic,
)
from steptime.planning.plan_result import Plan
from steptime.planning.session_hits import SessionCache, SessionCase
from steptime.planning.session_loop import replica_cache
from steptime.result_base import Result, unit
from steptime.simulation.max_rate import meets, run_until_settled
from steptime.simulation.run_metrics import Answers, Judged, at_percentile, judge
from steptime.simulation.simulation_result import Simulation
from steptime.simulation.simulator import simulate
from steptime.units import in_digits, percent
from steptime.workload.sessions import Sessions, draw_sessions, mean_turns
from steptime.workload.traffic import Traffic
from steptime.workload.workload import NONE, Slo, Speculation, Workload

# Factor on the rate where the limits are not met, to the power of the square of the try: small steps first.
LOWER = 0.98
# Minimum duration of the arrivals, in median lifetimes of a request, for a steady state.
STEADY = 20.0
# Mean durations of a session in a replay with sessions; most turns of a first run, and of a run with figures near a limit.
REPLAY_DURATIONS, FIRST_TURNS, MOST_TURNS = 20.0, 60_000, 240_000
# Distance from a limit within which a first run does not decide: at 190 turns/s of chats, 60,000 turns have 7 % shorter waits
# and 9 % shorter times per token than 240,000, which differ by 2 % between seeds.
NEAR_LIMIT = 0.1


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Replay(Result):
    """A plan under random arrivals: the last run, its slots, rate and number of tries."""

    SCHEMA: ClassVar[str] = "steptime.replay/2"
    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "reason": unit("", "why the limits are not met; empty where they are"),
        "limits": unit("", "comparison of the last run with the limits"),
        "answers": unit("", "the figures of the last run"),
    }

    simulation: Simulation = field(metadata=unit("", "the last run", left_out=True))
    slo: Slo = field(default=Slo(), metadata=unit("", "limits", left_out=True))
    batch: int = field(metadata=unit("sequences", "slots per replica"))
    planned_batch: float = field(metadata=unit("sequences", "batch of the plan"))
    rate: float = field(metadata=unit("requests/s", "rate at which the limits are met", key="requests_per_s"))
    planned_rate: float = field(metadata=unit("requests/s", "rate of the plan", key="planned_requests_per_s"))
    percentile: str = field(metadata=unit("", "percentile of the limits: mean, p50, p90, p95 or p99"))
    good: bool = field(metadata=unit("", "whether the limits are met in the last run"))
    attempts: int = field(metadata=unit("", "number of rates tried"))

    @property
    def answers(self) -> Answers:
        """The figures of the last run."""
        return self.simulation.answers

    @property
    def limits(self) -> Judged:
        """Comparison of the last run with the limits."""
        return judge(self.answers, self.slo, self.percentile)

    @property
    def reason(self) -> str:
        """Why the limits are not met; empty where they are."""
        if self.good:
            return ""
        share = f"{percent(self.rate / self.planned_rate)} of the plan's {in_digits(self.planned_rate)} requests/s"
        lowest = f"{in_digits(self.rate)} requests/s ({share})"
        why = self.limits.why if not self.limits.is_met else "the run is too short"
        return f"with random arrivals the limits are not met {at_percentile(self.percentile)}, down to {lowest}: {why}"

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return a title and the main figures of the run.

        Returns:
            Title with the verdict and the rate; figures by label.
        """
        _, figures = self.answers.headline()
        holds = "limits are met" if self.good else "limits are not met"
        rate = f"{in_digits(self.rate)} of {in_digits(self.planned_rate)} requests/s"
        return f"Replay: {holds} {at_percentile(self.percentile)} with {rate}", figures


def replay(
    plan: Plan,
    model: ModelLike | None = None,
    system: SystemLike | None = None,
    engine: Engine | str | None = None,
    *,
    prefill_system: SystemLike | None = None,
    percentile: str | None = None,
    requests: int = 4000,
    seed: int = 0,
) -> Replay:
    """Replay a plan with random arrivals, and reduce the rate until limits are met.

    This is `plan --simulate`. A plan contains the names of its model, system and engine. A model or system
    that was loaded from a file, stored in other formats or varied must be given again; InputError says so.

    Args:
        plan: Feasible plan.
        model: Model, or None for the name in the plan.
        system: System, or None for the name in the plan.
        engine: Engine, or None for the name in the plan.
        prefill_system: System of the prefill pool, or None for the name in the plan.
        percentile: Percentile of the limits: "mean", "p50", "p90", "p95" or "p99"; by default that of the plan.
        requests: Minimum number of requests.
        seed: Random seed.

    Returns:
        The replay.
    """
    things = load_plan_inputs(plan, model, system, engine, prefill_system)
    return replay_pools(
        *things[:2], plan.workload, plan.slo, plan.pools, plan.requests_per_second,
        engine=things[2], percentile=percentile or plan.percentile, requests=requests, seed=seed, speculation=plan.speculation,
        prefill_system=load_prefill_system(plan, prefill_system), session_cache=plan.session_cache,
    )  # fmt: skip


def replay_pools(
    model: Model,
    system: System,
    workload: Workload,
    slo: Slo,
    pools: Sequence[PoolLike],
    rate: float,
    *,
    engine: Engine,
    percentile: str = "p90",
    requests: int = 4000,
    seed: int = 0,
    tries: int = 12,
    speculation: Speculation = NONE,
    prefill_system: System | None = None,
    session_cache: SessionCache | None = None,
) -> Replay:
    """Replay the pools of a plan with Poisson arrivals; those of a plan for sessions with turns and their tiers.

    Tries lower the rate, by 2 % at first and then faster, until TTFT and TPOT are within the limits at `percentile`. The
    slots stay those of the plan, as in its launch commands.

    Args:
        model: Model.
        system: System.
        workload: Requests.
        slo: Limits.
        pools: Pools of the plan; the decode pool is the last.
        rate: First request rate [requests/s].
        engine: Engine.
        percentile: Percentile of the limits: "mean", "p50", "p90", "p95" or "p99".
        requests: Minimum number of requests.
        seed: Random seed.
        tries: Most rates to try.
        speculation: Speculative tokens.
        prefill_system: System of the prefill pool, if it is another one.
        session_cache: Sessions and prefix cache of the plan; None: each request stands alone, with its cached share.

    Returns:
        The replay.
    """
    server = pools[-1]
    prefill = pools[0].layout if len(pools) > 1 else None
    prompts = workload_prompts(workload)
    settings: dict[str, Any] = {
        "layout": server.layout,
        "engine": engine,
        "slo": slo,
        "percentile": percentile,
        "prefill": prefill,
        "prefill_system": prefill_system,
        # Without a prefill pool it has no effect.
        "prefill_policy": prefill_policy(pools[0], prompts.fresh, speculation),
    }
    settings["policy"] = decode_policy(
        server, prompts.fresh, engine, has_prefill_pool=prefill is not None, speculation=speculation
    )

    # Reduce the rate geometrically until a settled run meets the limits.
    traffic = partial(workload_traffic, workload, seed=seed, longest=longest_context(workload, model))

    def run(sample: Traffic) -> Simulation:
        return simulate(model, system, sample, cached=skipped_tokens(prompts, sample.inputs), **settings)

    once = partial(run_until_settled, run, traffic, requests=requests, lifetimes=STEADY)
    if session_cache is not None:
        settings["cache"] = replica_cache(planned_sessions(session_cache), model, system, pools[0].layout)
        # Turns go where their history is.
        reader = "policy" if prefill is None else "prefill_policy"
        settings[reader] = replace(settings[reader], route="prefix-aware")
        once = partial(_serve_sessions, session_cache.sessions, model, system, requests, seed, settings)

    now, attempts, good = rate, 0, False
    while not good and attempts < tries:
        now, attempts = rate * LOWER**attempts**2, attempts + 1
        last = once(rate=now)
        good = meets(last.answers, slo, percentile)
    return Replay(
        simulation=last,
        slo=slo,
        batch=server.max_num_seqs,
        planned_batch=server.batch,
        rate=now,
        planned_rate=rate,
        percentile=percentile,
        good=good,
        attempts=attempts,
    )


def planned_sessions(cache: SessionCache) -> SessionCase:
    """Return the sessions of a plan, and the capacities of their prefix cache.

    Args:
        cache: Prefix cache of a plan.

    Returns:
        Sessions and capacities by tier; a tier that the plan does not use has none.
    """
    return SessionCase(cache.sessions, {tier.name: tier.capacity for tier in cache.tiers if not tier.why_unused})


def _serve_sessions(
    sessions: Sessions, model: Model, system: System, requests: int, seed: int, settings: dict[str, Any], *, rate: float
) -> Simulation:
    """Serve turns of sessions at a rate, for several durations of a session; at high rates for fewer, if no limit is near."""
    longest = float(model.max_context)
    seconds = REPLAY_DURATIONS * mean_turns(sessions, longest) * sessions.think_time
    turns = max(requests, rate * seconds)
    for max_turns in (FIRST_TURNS, MOST_TURNS):
        traffic = draw_sessions(sessions, rate=rate, requests=int(min(turns, max_turns)), longest=longest, seed=seed)
        run = simulate(model, system, traffic, **settings)
        if turns <= max_turns or not is_near_limit(judge(run.answers, settings["slo"], settings["percentile"])):
            break
    return run


def is_near_limit(judged: Judged) -> bool:
    """Whether a figure of a run is so close to its limit that another run may be on the other side.

    Args:
        judged: Figures of the run, and their limits.

    Returns:
        True or false; false for a figure without a limit.
    """
    pairs = (judged.ttft, judged.ttft_limit), (judged.tpot, judged.tpot_limit)
    return any(abs(value / limit - 1) <= NEAR_LIMIT for value, limit in pairs if math.isfinite(limit))
