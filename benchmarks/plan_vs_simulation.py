"""Comparison of a plan's steady state with its simulation at the same rate.

TPOT, TTFT and cost are compared, without the warm-up and the end of the run. `docs/replayed_plans.py` does it for sixty plans.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from steptime.catalog.hardware_loading import SystemLike
from steptime.hardware.rental_prices import usd_per_million
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.models.model_loading import ModelLike
from steptime.physics.engine import Engine
from steptime.planning.plan_as_traffic import (
    ROUTE,
    PoolLike,
    decode_policy,
    load_plan_inputs,
    prefill_policy,
    workload_prompts,
    workload_traffic,
)
from steptime.planning.plan_result import Plan
from steptime.result_base import Result, unit
from steptime.simulation.loop_state import DONE
from steptime.simulation.run_metrics import OVERLOADED
from steptime.simulation.scheduling_policy import MAX_NUM_SEQS, Policy
from steptime.simulation.simulation_result import Simulation
from steptime.simulation.simulator import kv_room, simulate, user_visible_times
from steptime.units import in_digits, show

# Default minimum number of requests that count.
MIN_COUNTED_REQUESTS = 20_000
# Lifetimes of a request before the first one that counts; one lifetime follows the last.
WARM_UP_LIFETIMES = 5.0
# Most requests of a run.
MAX_REQUESTS = 1_000_000
# Slots per replica over those of the plan, where memory has room.
SLOTS_FACTOR = 4
# Parts of a run whose means give the standard error.
BATCHES = 20


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Compared(Result):
    """A plan next to its replay at the plan's rate, in a steady state.

    Ratios are replay over plan. `tpot` and `ttft` are what users see, including the engine's time before the
    queue and before the answer. `made_tpot` and `made_ttft` are those of the server. Errors are relative
    standard errors of the replay's means.
    """

    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tpot_ratio": unit("", "mean TPOT that users see, replay over plan"),
        "made_tpot_ratio": unit("", "mean TPOT at the server, replay over plan"),
        "ttft_ratio": unit("", "mean TTFT that users see, replay over plan"),
        "made_ttft_ratio": unit("", "mean TTFT at the server, replay over plan"),
        "cost_ratio": unit("", "rent per output token, replay over plan"),
    }

    rate: float = field(metadata=unit("requests/s", "request rate of plan and replay", key="requests_per_s"))
    planned_tpot: float = field(metadata=unit("s", "time per output token of the plan"))
    tpot: float = field(metadata=unit("s", "mean time per output token that users see"))
    made_tpot: float = field(metadata=unit("s", "mean time per output token at the server"))
    tpot_error: float = field(metadata=unit("", "relative standard error of the mean at the server"))
    planned_ttft: float = field(metadata=unit("s", "time to first token of the plan"))
    ttft: float = field(metadata=unit("s", "mean time to first token that users see"))
    made_ttft: float = field(metadata=unit("s", "mean time to first token at the server"))
    ttft_error: float = field(metadata=unit("", "relative standard error of the mean at the server"))
    planned_cost: float = field(
        metadata=unit("USD", "planned cost per million output tokens", key="planned_usd_per_million_output_tokens")
    )
    cost: float = field(metadata=unit("USD", "cost per million output tokens delivered", key="usd_per_million_output_tokens"))
    planned_tokens_per_second: float = field(metadata=unit("tok/s", "output tokens per second of the plan"))
    tokens_per_second: float = field(metadata=unit("tok/s", "output tokens per second delivered"))
    planned_batch: float = field(metadata=unit("sequences", "planned sequences per replica"))
    batch: float = field(metadata=unit("sequences", "mean decoding sequences per replica", key="mean_batch"))
    seats: int = field(metadata=unit("", "slots per replica"))
    preemptions: int = field(metadata=unit("", "number of preemptions"))
    counted: int = field(metadata=unit("requests", "requests that count", key="requests_counted"))
    warm_up: float = field(metadata=unit("s", "duration of the warm-up"))
    window: float = field(metadata=unit("s", "duration of the arrivals that count"))
    decode_error: float = field(metadata=unit("", "mean error of the replay's decode steps, relative to the step model"))
    mixed_error: float = field(metadata=unit("", "mean error of the replay's mixed steps, relative to the step model"))
    steady: bool = field(metadata=unit("", "whether the queue did not grow"))

    @property
    def tpot_ratio(self) -> float:
        """Mean TPOT that users see, replay over plan."""
        return self.tpot / self.planned_tpot

    @property
    def made_tpot_ratio(self) -> float:
        """Mean TPOT at the server, replay over plan."""
        return self.made_tpot / self.planned_tpot

    @property
    def ttft_ratio(self) -> float:
        """Mean TTFT that users see, replay over plan."""
        return self.ttft / self.planned_ttft

    @property
    def made_ttft_ratio(self) -> float:
        """Mean TTFT at the server, replay over plan."""
        return self.made_ttft / self.planned_ttft

    @property
    def cost_ratio(self) -> float:
        """Cost per output token, replay over plan; needs no known rent."""
        return self.planned_tokens_per_second / self.tokens_per_second

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return a title and the ratios with their times.

        Returns:
            Title with rate and requests; ratios by label.
        """
        grows = "" if self.steady else "; the queue grows, so that there is no steady state"
        return f"Replay over plan at {in_digits(self.rate, 4)} requests/s, {self.counted:,} requests counted{grows}", {
            "TPOT": _show_ratio(self.planned_tpot, self.tpot, self.made_tpot, self.tpot_error),
            "TTFT": _show_ratio(self.planned_ttft, self.ttft, self.made_ttft, self.ttft_error),
            "cost": f"{self.cost_ratio:.3f}",
            "steps": f"off by {self.decode_error:.1%} (decode) and {self.mixed_error:.1%} (mixed) on average",
            "batch": f"{self.batch:,.1f} on average, {self.planned_batch:,} planned, {self.seats:,} slots",
        }


def _show_ratio(planned: float, observed: float, generated: float, error: float) -> str:
    times = f"{show(observed, 's')} instead of {show(planned, 's')}"
    return f"{observed / planned:.3f} for users ({times}), {generated / planned:.3f} at the server, ± {error:.1%}"


def compare(
    plan: Plan,
    model: ModelLike | None = None,
    system: SystemLike | None = None,
    engine: Engine | str | None = None,
    *,
    seed: int = 0,
    requests: int = MIN_COUNTED_REQUESTS,
    route: str = ROUTE,
) -> Compared:
    """Replay a plan at its own rate in a steady state and compare it with the plan.

    Arrivals are Poisson at exactly the plan's rate. The batch is not limited to that of the plan: a replica
    has SLOTS_FACTOR times as many slots where its memory has room. Requests count if they come at least
    WARM_UP_LIFETIMES lifetimes after the first and one before the last. A lifetime is the longest of the run.

    Args:
        plan: Feasible plan.
        model: Model, or None for the name in the plan; see `replay`.
        system: System, or None for the name in the plan.
        engine: Engine, or None for the name in the plan.
        seed: Random seed.
        requests: Minimum number of requests that count.
        route: Routing of requests to replicas; see `Policy`.

    Returns:
        The comparison.
    """
    described, machine, runs_on = load_plan_inputs(plan, model, system, engine)
    lifetime = plan.ttft + plan.workload.output_tokens * plan.tpot
    n = math.ceil(requests + 2 * (WARM_UP_LIFETIMES + 1) * lifetime * plan.requests_per_second)
    while True:
        run = _run(plan, described, machine, runs_on, min(n, MAX_REQUESTS), seed, route)
        in_window = _requests_in_window(run)
        if in_window.sum() >= requests or n >= MAX_REQUESTS or run.answers.verdict == OVERLOADED:
            return _comparison(plan, run, in_window, runs_on)
        n *= 2


def _run(plan: Plan, model: Model, system: System, engine: Engine, n: int, seed: int, route: str) -> Simulation:
    """Return a run at the plan's rate, in which users see tokens as they are made."""
    server, has_prefill_pool = plan.pools[-1], len(plan.pools) > 1
    prompts = workload_prompts(plan.workload)
    bare = replace(engine, scheduler=replace(engine.scheduler, steps_before_answer=0.0, steps_to_balance=0.0))
    return simulate(
        model,
        system,
        workload_traffic(plan.workload, plan.requests_per_second, n, seed=seed, exact=True),
        layout=server.layout,
        engine=bare,
        policy=replace(
            _policy_with_spare_slots(server, plan, model, system, engine, has_prefill_pool=has_prefill_pool), route=route
        ),
        prefill=plan.pools[0].layout if has_prefill_pool else None,
        prefill_policy=replace(prefill_policy(plan.pools[0], prompts.fresh, plan.speculation), route=route)
        if has_prefill_pool
        else None,
        cached=prompts.skipped,
    )


def _policy_with_spare_slots(
    server: PoolLike, plan: Plan, model: Model, system: System, engine: Engine, *, has_prefill_pool: bool
) -> Policy:
    """Return the schedule of the decode pool with more slots than the plan.

    A data-parallel rank prefills the plan's chunk with any batch. A separate decode pool keeps no room for
    prefill.
    """
    workload, drafts = plan.workload, plan.speculation.drafts
    usual = decode_policy(
        server, workload_prompts(workload).fresh, has_prefill_pool=has_prefill_pool, speculation=plan.speculation
    )
    if server.queued:
        return usual
    context = workload.input_tokens + workload.output_tokens / 2
    tokens = math.ceil(server.batch / server.layout.dp) if has_prefill_pool else usual.max_num_batched_tokens
    settings: dict[str, Any] = {"layout": server.layout, "engine": engine, "context": context, "drafts": drafts}
    room = kv_room(model, system, step_tokens=int(tokens), **settings)
    seats = min(
        SLOTS_FACTOR * usual.max_num_seqs, max(usual.max_num_seqs, math.ceil(room / workload.input_tokens)), MAX_NUM_SEQS
    )
    extra_per_rank = math.ceil(seats / server.layout.dp) - math.ceil(server.max_num_seqs / server.layout.dp)
    budget = usual.max_num_batched_tokens + extra_per_rank * (drafts + 1)
    return replace(usual, max_num_seqs=int(seats), kv_tokens=max(room, 1.0), max_num_batched_tokens=budget)


def _requests_in_window(run: Simulation) -> Any:
    """Return which requests count: those after the warm-up, except at the end.

    Where the queue grows, there may be none. Then the later half counts, and the state is not steady.
    """
    q = run.requests
    took = float(np.max(q["finish"] - q["arrival"], where=q["status"] == DONE, initial=0.0))
    first, last = float(q["arrival"][0]), float(q["arrival"][-1])
    done = q["status"] == DONE
    in_window = done & (q["arrival"] >= first + WARM_UP_LIFETIMES * took) & (q["arrival"] <= last - took)
    return in_window if in_window.any() else done & (q["arrival"] >= (first + last) / 2)


def _comparison(plan: Plan, run: Simulation, in_window: Any, engine: Engine) -> Compared:
    """Return the figures of the counted requests next to those of the plan."""
    # The engine's delays before the answer are added here, because the run shows tokens as they are made.
    q = run.requests
    groups = int(plan.pools[-1].layout.dp)
    answer = float(engine.scheduler.steps_before_answer) + (float(engine.scheduler.steps_to_balance) if groups > 1 else 0.0)
    observed = user_visible_times(q, replace(run.pace, answer=answer), accepted=plan.speculation.acceptance)[in_window]
    generated = q[in_window]

    # Throughput counts the tokens of all requests in the window of the counted arrivals.
    begin, end = float(generated["arrival"][0]), float(generated["arrival"][-1])
    window = end - begin
    tokens = (_tokens_generated_by(q, end) - _tokens_generated_by(q, begin)) / window
    replicas = int(plan.pools[-1].layout.replicas)
    tpots, ttfts = _tpot(generated), generated["first"] - generated["arrival"]
    return Compared(
        rate=plan.requests_per_second,
        planned_tpot=plan.tpot,
        tpot=float(np.mean(_tpot(observed))),
        made_tpot=float(np.mean(tpots)),
        tpot_error=_error(tpots),
        planned_ttft=plan.ttft,
        ttft=float(np.mean(observed["first"] - observed["arrival"])),
        made_ttft=float(np.mean(ttfts)),
        ttft_error=_error(ttfts),
        planned_cost=plan.usd_per_million_output_tokens,
        cost=float(usd_per_million(plan.usd_per_second, tokens)),
        planned_tokens_per_second=plan.requests_per_second * float(plan.workload.output_tokens),
        tokens_per_second=tokens,
        planned_batch=plan.pools[-1].batch,
        batch=_decode_sequence_seconds(q, begin, end) / window / replicas,
        seats=run.policy.max_num_seqs,
        preemptions=run.answers.preemptions,
        counted=len(generated),
        warm_up=begin - float(q["arrival"][0]),
        window=window,
        decode_error=run.pace.decode_error,
        mixed_error=run.pace.mixed_error,
        steady=run.answers.verdict != OVERLOADED,
    )


def _error(values: Any) -> float:
    """Return the relative standard error of a mean, from the means of its parts."""
    if len(values) < 2 * BATCHES:
        return math.nan
    means = np.array([part.mean() for part in np.array_split(values, BATCHES)])
    return float(means.std(ddof=1) / math.sqrt(BATCHES) / means.mean())


def _tpot(q: Any) -> Any:
    several = q[q["outputs"] > 1]
    return (several["finish"] - several["first"]) / (several["outputs"] - 1)


def _decode_start(q: Any) -> Any:
    """Return when requests began to decode [s].

    This is their first token, or their slot in a separate decode pool.
    """
    return np.where(np.isnan(q["resumed"]), q["first"], q["resumed"])


def _tokens_generated_by(q: Any, time: float) -> float:
    """Return the output tokens made by a time [s], spread evenly after the first."""
    done = q[q["status"] == DONE]
    began = _decode_start(done)
    span = np.maximum(done["finish"] - began, 1e-12)
    further = np.clip((time - began) / span, 0.0, 1.0) * (done["outputs"] - 1)
    return float(np.sum(done["first"] <= time) + np.sum(further))


def _decode_sequence_seconds(q: Any, begin: float, end: float) -> float:
    """Return the sequence-seconds of decode between two times [s]."""
    done = q[q["status"] == DONE]
    return float(np.sum(np.maximum(np.minimum(done["finish"], end) - np.maximum(_decode_start(done), begin), 0.0)))
