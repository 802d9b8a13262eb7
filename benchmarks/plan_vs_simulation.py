"""Comparison of a plan's steady state with its simulation at the same rate.

TPOT, TTFT and cost are compared, without the warm-up and the end of the run. The simulation starts empty and draws requests of
its own, so that it shares neither the start nor the draws of a plan. `docs/replayed_plans.py` does it for 400 plans.
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
from steptime.result_base import Result, unit
from steptime.simulation.loop_state import DONE
from steptime.simulation.run_metrics import OVERLOADED, PERCENTILES, standard_error_of_mean
from steptime.simulation.simulation_result import Simulation
from steptime.simulation.simulator import simulate, user_visible_times
from steptime.units import in_digits, show

# Default minimum number of requests that count.
MIN_COUNTED_REQUESTS = 20_000
# Lifetimes of a request before the first one that counts; one lifetime follows the last. The lifetime is that below which this
# share of the requests stays: the very longest of many unequal requests is far beyond the rest.
WARM_UP_LIFETIMES, LIFETIME_SHARE = 5.0, 0.95
# Most requests of a run.
MAX_REQUESTS = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Compared(Result):
    """A plan next to its replay at the plan's rate, in a steady state.

    Ratios are replay over plan. `tpot` and `ttft` are what users see, including the engine's time before the
    queue and before the answer. `made_tpot` and `made_ttft` are those of the server. Times are means, except `tail_tpot` and
    `tail_ttft`: what users see at the percentile of the plan's limits. Errors are relative standard errors of the
    replay's means.
    """

    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tpot_ratio": unit("", "mean TPOT that users see, replay over plan"),
        "made_tpot_ratio": unit("", "mean TPOT at the server, replay over plan"),
        "ttft_ratio": unit("", "mean TTFT that users see, replay over plan"),
        "made_ttft_ratio": unit("", "mean TTFT at the server, replay over plan"),
        "tail_tpot_ratio": unit("", "TPOT that users see at the percentile, replay over plan"),
        "tail_ttft_ratio": unit("", "TTFT that users see at the percentile, replay over plan"),
        "cost_ratio": unit("", "rent per output token, replay over plan"),
    }

    rate: float = field(metadata=unit("requests/s", "request rate of plan and replay", key="requests_per_s"))
    percentile: str = field(metadata=unit("", "percentile of the plan's limits: mean, p50, p90, p95 or p99"))
    planned_tpot: float = field(metadata=unit("s", "mean time per output token of the plan"))
    tpot: float = field(metadata=unit("s", "mean time per output token that users see"))
    made_tpot: float = field(metadata=unit("s", "mean time per output token at the server"))
    tpot_error: float = field(metadata=unit("", "relative standard error of the mean at the server"))
    planned_tail_tpot: float = field(metadata=unit("s", "time per output token of the plan at the percentile"))
    tail_tpot: float = field(metadata=unit("s", "time per output token that users see at the percentile"))
    planned_ttft: float = field(metadata=unit("s", "mean time to first token of the plan"))
    ttft: float = field(metadata=unit("s", "mean time to first token that users see"))
    made_ttft: float = field(metadata=unit("s", "mean time to first token at the server"))
    ttft_error: float = field(metadata=unit("", "relative standard error of the mean at the server"))
    planned_tail_ttft: float = field(metadata=unit("s", "time to first token of the plan at the percentile"))
    tail_ttft: float = field(metadata=unit("s", "time to first token that users see at the percentile"))
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
    def tail_tpot_ratio(self) -> float:
        """TPOT that users see at the percentile, replay over plan."""
        return self.tail_tpot / self.planned_tail_tpot

    @property
    def tail_ttft_ratio(self) -> float:
        """TTFT that users see at the percentile, replay over plan."""
        return self.tail_ttft / self.planned_tail_ttft

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
            f"{self.percentile} TPOT": f"{self.tail_tpot_ratio:.3f} for users",
            f"{self.percentile} TTFT": f"{self.tail_ttft_ratio:.3f} for users",
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
    warm_up: float = WARM_UP_LIFETIMES,
) -> Compared:
    """Replay a plan at its own rate in a steady state and compare it with the plan.

    Arrivals are Poisson at exactly the plan's rate, and replicas have the plan's slots. Requests count if they come at least
    `warm_up` lifetimes after the first and one before the last.

    Args:
        plan: Feasible plan.
        model: Model, or None for the name in the plan; see `replay`.
        system: System, or None for the name in the plan.
        engine: Engine, or None for the name in the plan.
        seed: Random seed.
        requests: Minimum number of requests that count.
        route: Routing of requests to replicas; see `Policy`.
        warm_up: Lifetimes of a request before the first one that counts.

    Returns:
        The comparison.
    """
    described, machine, runs_on = load_plan_inputs(plan, model, system, engine)
    lifetime = plan.mean_ttft + plan.workload.output_tokens * plan.mean_tpot
    n = math.ceil(requests + 2 * (warm_up + 1) * lifetime * plan.requests_per_second)
    while True:
        run = _run(plan, described, machine, runs_on, min(n, MAX_REQUESTS), seed, route)
        in_window = _requests_in_window(run, warm_up)
        if in_window.sum() >= requests or n >= MAX_REQUESTS or run.answers.verdict == OVERLOADED:
            return _comparison(plan, run, in_window, runs_on)
        n *= 2


def _run(plan: Plan, model: Model, system: System, engine: Engine, n: int, seed: int, route: str) -> Simulation:
    """Return a run at the plan's rate, in which users see tokens as they are made."""
    server, has_prefill_pool = plan.pools[-1], len(plan.pools) > 1
    prompts = workload_prompts(plan.workload)
    bare = replace(engine, scheduler=replace(engine.scheduler, steps_before_answer=0.0, steps_to_balance=0.0))
    longest = longest_context(plan.workload, model)
    policy = decode_policy(server, prompts.fresh, engine, has_prefill_pool=has_prefill_pool, speculation=plan.speculation)
    traffic = workload_traffic(plan.workload, plan.requests_per_second, n, seed=seed, exact=True, longest=longest)
    return simulate(
        model,
        system,
        traffic,
        layout=server.layout,
        engine=bare,
        policy=replace(policy, route=route),
        prefill=plan.pools[0].layout if has_prefill_pool else None,
        prefill_policy=replace(prefill_policy(plan.pools[0], prompts.fresh, plan.speculation), route=route)
        if has_prefill_pool
        else None,
        prefill_system=load_prefill_system(plan),
        cached=skipped_tokens(prompts, traffic.inputs),
    )


def _requests_in_window(run: Simulation, warm_up: float) -> Any:
    """Return which requests count: those after the warm-up, except at the end.

    Where the queue grows, there may be none. Then the later half counts, and the state is not steady.
    """
    q = run.requests
    done = q["status"] == DONE
    took = float(np.quantile((q["finish"] - q["arrival"])[done], LIFETIME_SHARE)) if done.any() else 0.0
    first, last = float(q["arrival"][0]), float(q["arrival"][-1])
    in_window = done & (q["arrival"] >= first + warm_up * took) & (q["arrival"] <= last - took)
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
    seen_tpots, seen_ttfts = _tpot(observed), observed["first"] - observed["arrival"]
    return Compared(
        rate=plan.requests_per_second,
        percentile=plan.percentile,
        planned_tpot=plan.mean_tpot,
        tpot=float(np.mean(seen_tpots)),
        planned_tail_tpot=plan.tpot,
        tail_tpot=_at(seen_tpots, plan.percentile),
        made_tpot=float(np.mean(tpots)),
        tpot_error=standard_error_of_mean(tpots),
        planned_ttft=plan.mean_ttft,
        ttft=float(np.mean(seen_ttfts)),
        planned_tail_ttft=plan.ttft,
        tail_ttft=_at(seen_ttfts, plan.percentile),
        made_ttft=float(np.mean(ttfts)),
        ttft_error=standard_error_of_mean(ttfts),
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


def _at(values: Any, percentile: str) -> float:
    return float(np.mean(values) if percentile == "mean" else np.quantile(values, PERCENTILES[percentile]))


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
