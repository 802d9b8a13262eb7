"""A plan's steady state held against its replay at the same rate: TPOT, TTFT and cost, warm-up and end left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from steptime.catalog.hardware_loading import SystemLike
from steptime.hardware.system import System
from steptime.hardware.unit_cost import usd_per_million
from steptime.models.model import Model
from steptime.models.model_loading import ModelLike
from steptime.physics.engine import Engine
from steptime.planning.plan_result import Plan
from steptime.result_base import Result, unit
from steptime.simulation.loop_state import DONE
from steptime.simulation.plan_as_traffic import (
    PoolLike,
    decode_policy,
    load_plan_inputs,
    prefill_policy,
    workload_prompts,
    workload_traffic,
)
from steptime.simulation.run_metrics import OVERLOADED
from steptime.simulation.scheduling_policy import MAX_NUM_SEQS, Policy
from steptime.simulation.simulation_result import Simulation
from steptime.simulation.simulator import kv_room, simulate, user_visible_times
from steptime.units import in_digits, show

MIN_COUNTED_REQUESTS = 20_000  # requests that are counted unless told
WARM_UP_LIFETIMES = 5.0  # lifetimes of a request that are left out before the counted ones; one comes after them
MAX_REQUESTS = 1_000_000  # requests of a run
SLOTS_FACTOR = 4  # times the plan's batch, of a replica, where its memory holds so many
BATCHES = 20  # parts of a run whose means tell how sure its mean is


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Compared(Result):
    """A plan beside its replay at the plan's own rate, in a steady state; ratios are those of the replay over the plan.

    `tpot` and `ttft` are what users see, with what an engine adds before the queue and before the answer; `made_tpot` and
    `made_ttft` are the tokens as the server makes them. Errors are relative standard errors of the replay's means.
    """

    SCHEMA: ClassVar[str] = "steptime.compared/2"
    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tpot_ratio": unit("", "mean TPOT that users see, replay over plan"),
        "made_tpot_ratio": unit("", "mean TPOT as tokens are made, replay over plan"),
        "ttft_ratio": unit("", "mean TTFT that users see, replay over plan"),
        "made_ttft_ratio": unit("", "mean TTFT as tokens are made, replay over plan"),
        "cost_ratio": unit("", "rent over output tokens delivered, replay over plan"),
    }

    rate: float = field(metadata=unit("requests/s", "of the plan, at which requests came", key="requests_per_s"))
    planned_tpot: float = field(metadata=unit("s", "of the plan"))
    tpot: float = field(metadata=unit("s", "mean that users see"))
    made_tpot: float = field(metadata=unit("s", "mean as tokens are made"))
    tpot_error: float = field(metadata=unit("", "relative standard error of the mean as tokens are made"))
    planned_ttft: float = field(metadata=unit("s", "of the plan"))
    ttft: float = field(metadata=unit("s", "mean that users see"))
    made_ttft: float = field(metadata=unit("s", "mean until the first token is made"))
    ttft_error: float = field(metadata=unit("", "relative standard error of the mean as tokens are made"))
    planned_cost: float = field(metadata=unit("USD", "of a million output tokens", key="planned_usd_per_million_output_tokens"))
    cost: float = field(metadata=unit("USD", "of a million that were delivered", key="usd_per_million_output_tokens"))
    planned_tokens_per_second: float = field(metadata=unit("tok/s", "output of the plan"))
    tokens_per_second: float = field(metadata=unit("tok/s", "output that was delivered"))
    planned_batch: float = field(metadata=unit("sequences", "of a replica"))
    batch: float = field(metadata=unit("sequences", "mean of a replica that decode", key="mean_batch"))
    seats: int = field(metadata=unit("", "of a replica"))
    preemptions: int = field(metadata=unit("", "times that a sequence lost its room"))
    counted: int = field(metadata=unit("requests", "that came between warm-up and end", key="requests_counted"))
    warm_up: float = field(metadata=unit("s", "left out at the start"))
    window: float = field(metadata=unit("s", "in which the counted ones came"))
    decode_error: float = field(metadata=unit("", "mean error of the replay's decode steps against those they stand for"))
    mixed_error: float = field(metadata=unit("", "the same of its steps with prompts"))
    steady: bool = field(metadata=unit("", "whether the queue did not grow"))

    @property
    def tpot_ratio(self) -> float:
        """Mean TPOT that users see, replay over plan."""
        return self.tpot / self.planned_tpot

    @property
    def made_tpot_ratio(self) -> float:
        """Mean TPOT as tokens are made, replay over plan."""
        return self.made_tpot / self.planned_tpot

    @property
    def ttft_ratio(self) -> float:
        """Mean TTFT that users see, replay over plan."""
        return self.ttft / self.planned_ttft

    @property
    def made_ttft_ratio(self) -> float:
        """Mean TTFT as tokens are made, replay over plan."""
        return self.made_ttft / self.planned_ttft

    @property
    def cost_ratio(self) -> float:
        """Rent over output tokens delivered, replay over plan; of the tokens alone where no rent is known."""
        return self.planned_tokens_per_second / self.tokens_per_second

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the ratios, and what they were taken from."""
        grows = "" if self.steady else "; the queue grows, so that no time is steady"
        return f"Replay over plan at {in_digits(self.rate, 4)} requests/s, {self.counted:,} requests counted{grows}", {
            "TPOT": _show_ratio(self.planned_tpot, self.tpot, self.made_tpot, self.tpot_error),
            "TTFT": _show_ratio(self.planned_ttft, self.ttft, self.made_ttft, self.ttft_error),
            "cost": f"{self.cost_ratio:.3f}",
            "steps": f"off by {self.decode_error:.1%} (decode) and {self.mixed_error:.1%} (mixed) in the mean",
            "batch": f"{self.batch:,.1f} in the mean, {self.planned_batch:,} planned, {self.seats:,} seats",
        }


def _show_ratio(planned: float, observed: float, generated: float, error: float) -> str:
    times = f"{show(observed, 's')} for {show(planned, 's')}"
    return f"{observed / planned:.3f} seen ({times}), {generated / planned:.3f} as made, ± {error:.1%}"


def compare(
    plan: Plan,
    model: ModelLike | None = None,
    system: SystemLike | None = None,
    engine: Engine | str | None = None,
    *,
    seed: int = 0,
    requests: int = MIN_COUNTED_REQUESTS,
    route: str = "round-robin",
) -> Compared:
    """Replay a plan's pools at its own rate in a steady state, and return mean TPOT, TTFT and cost beside the plan's.

    Arrivals are Poisson at exactly the plan's rate. Its batch is a mean of sequences in flight and no cap: a replica has SEATS
    times as many seats where its memory holds them, and the batch finds itself. Only requests count that come WARM lifetimes
    after the first, and one before the last, so that others come as long as they are served; at least `requests` of them. A
    lifetime is the longest that any request of the run took. `route`: of `Policy`.
    model, system and engine may be left out where the names in the plan stand for them, as for `replay`.
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
    """Return a run of `n` requests at the plan's rate, with tokens seen when they are made."""
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
    """Return the schedule of the pool that decodes, with seats above the plan's batch and the room that its chips have.

    A group reads the plan's chunk beside whatever batch it finds. A decode pool of its own keeps no room to read.
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
    """Return which requests count: those after the warm-up that were served while others kept coming.

    Where the queue grows there may be none: the later half of all then, of a state that is not steady.
    """
    q = run.requests
    took = float(np.max(q["finish"] - q["arrival"], where=q["status"] == DONE, initial=0.0))
    first, last = float(q["arrival"][0]), float(q["arrival"][-1])
    done = q["status"] == DONE
    in_window = done & (q["arrival"] >= first + WARM_UP_LIFETIMES * took) & (q["arrival"] <= last - took)
    return in_window if in_window.any() else done & (q["arrival"] >= (first + last) / 2)


def _comparison(plan: Plan, run: Simulation, in_window: Any, engine: Engine) -> Compared:
    """Return the figures of the chosen requests beside the plan's."""
    q = run.requests
    groups = int(plan.pools[-1].layout.dp)
    answer = float(engine.scheduler.steps_before_answer) + (float(engine.scheduler.steps_to_balance) if groups > 1 else 0.0)
    observed = user_visible_times(q, replace(run.pace, answer=answer), accepted=plan.speculation.acceptance)[in_window]
    generated = q[in_window]
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
    """Return the standard error of a mean over it, by the means of parts that are long enough to be told apart."""
    if len(values) < 2 * BATCHES:
        return math.nan
    means = np.array([part.mean() for part in np.array_split(values, BATCHES)])
    return float(means.std(ddof=1) / math.sqrt(BATCHES) / means.mean())


def _tpot(q: Any) -> Any:
    several = q[q["outputs"] > 1]
    return (several["finish"] - several["first"]) / (several["outputs"] - 1)


def _decode_start(q: Any) -> Any:
    """When requests began to decode [s]: with their first token, or when a decode pool of its own seated them."""
    return np.where(np.isnan(q["resumed"]), q["first"], q["resumed"])


def _tokens_generated_by(q: Any, time: float) -> float:
    """Return the output tokens that were made by a time [s]: the first, and the others evenly until the end."""
    done = q[q["status"] == DONE]
    began = _decode_start(done)
    span = np.maximum(done["finish"] - began, 1e-12)
    further = np.clip((time - began) / span, 0.0, 1.0) * (done["outputs"] - 1)
    return float(np.sum(done["first"] <= time) + np.sum(further))


def _decode_sequence_seconds(q: Any, begin: float, end: float) -> float:
    """Return the sequence seconds of decode between two times [s]."""
    done = q[q["status"] == DONE]
    return float(np.sum(np.maximum(np.minimum(done["finish"], end) - np.maximum(_decode_start(done), begin), 0.0)))
