"""A plan as the simulator serves it: its model, system and engine, its requests, and the schedules of its pools."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Protocol

from steptime.catalog.hardware_loading import SystemLike, resolve_system
from steptime.errors import InputError, RangeError, expect
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.models.model_loading import ModelLike, resolve_model
from steptime.physics.engine import Engine, engine_for
from steptime.physics.kv_dtype import as_served
from steptime.physics.layout import Layout
from steptime.physics.speculative_step import drafted_step
from steptime.planning.plan_result import Plan, Pool
from steptime.planning.speculative_config import NONE, Speculation
from steptime.planning.step_explanation import step_given
from steptime.planning.workload import Workload
from steptime.simulation.scheduling_policy import Policy
from steptime.simulation.traffic import Lengths, Traffic, open_loop, scaled
from steptime.units import show

SAME = 1e-6  # relative difference of two steps that are the same
STEP_TOKENS = 2048  # that a decode pool may read in a step, where a sequence lost its cache and is computed again


class PoolLike(Protocol):
    """What a replay needs of a plan's pool."""

    @property
    def role(self) -> str:
        """What it does: serve, prefill or decode."""

    @property
    def layout(self) -> Layout:
        """The layout of a replica, and how many replicas."""

    @property
    def batch(self) -> float:
        """Sequences of a replica."""

    @property
    def max_num_seqs(self) -> int:
        """Sequences that a replica has room for."""

    @property
    def queued(self) -> bool:
        """Whether requests wait for one of those seats."""

    @property
    def chunk(self) -> int:
        """Prompt tokens of a mixed step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """The prompts of a workload: tokens that are read, and tokens whose cache is there already."""

    fresh: int
    skipped: int


def workload_prompts(workload: Workload) -> Prompts:
    """Return the whole tokens of a workload's prompts, at least one of them fresh."""
    fresh = max(1, round(workload.input_tokens * (1 - workload.cached_share)))
    return Prompts(fresh=fresh, skipped=round(workload.input_tokens) - fresh)


def workload_traffic(workload: Workload, rate: float, n: int, *, seed: int, exact: bool = False) -> Traffic:
    """Return `n` requests of a workload that come at random at `rate` [requests/s].

    exact: their own mean rate is `rate`, whatever the sample drawn.
    """
    prompts = workload_prompts(workload)
    inputs, outputs = Lengths(mean=prompts.fresh + prompts.skipped), Lengths(mean=workload.output_tokens)
    came = open_loop(rate, n, inputs, outputs, seed=seed)
    return scaled(came, rate / came.rate) if exact and math.isfinite(came.rate) else came


def decode_policy(server: PoolLike, fresh: int, *, has_prefill_pool: bool, speculation: Speculation = NONE) -> Policy:
    """Return the schedule of a pool that decodes: its seats, those of prompts that are read beside it, and its chunk."""
    groups = int(server.layout.dp)
    chunk = max(server.chunk, 1)
    prefill_slots = 0 if has_prefill_pool or server.queued else groups * max(1, server.chunk // fresh)
    return Policy(
        max_num_seqs=server.max_num_seqs + prefill_slots,
        max_num_batched_tokens=math.ceil(server.max_num_seqs / groups) * (speculation.drafts + 1)
        + (STEP_TOKENS if has_prefill_pool else chunk),
        chunk=math.inf if has_prefill_pool else float(chunk),
        speculative_tokens=speculation.drafts,
        acceptance_length=speculation.acceptance,
    )


def prefill_policy(pool: PoolLike, fresh: int, speculation: Speculation = NONE) -> Policy:
    """Return the schedule of a pool that only reads prompts: a pass of its batch at a time, through draft layers too."""
    prompts_per_rank = max(1, int(pool.batch) // int(pool.layout.dp))
    return Policy(
        max_num_seqs=max(1, int(pool.batch)),
        max_num_batched_tokens=prompts_per_rank * fresh,
        speculative_tokens=speculation.drafts,
    )


def load_plan_inputs(
    plan: Plan, model: ModelLike | None = None, system: SystemLike | None = None, engine: Engine | str | None = None
) -> tuple[Model, System, Engine]:
    """Return the model, the system and the engine that a plan was made of: those given, else those of the names it holds.

    A plan holds names only. Raises InputError where a name loads nothing, or loads something with which the plan's own steps
    take another time (other formats of weights, a machine with other figures): it has to be given then. Raises RangeError for a
    plan of nothing.
    """
    expect("a plan", plan, Plan, "a Plan, as st.plan gives it")
    if not plan.feasible:
        raise RangeError(f"there is nothing to replay: the plan is not possible ({plan.reason})")
    machine = _load("system", plan.system, system, resolve_system)
    described = _load("model", plan.model, model, resolve_model)
    runs_on = _load("engine", plan.engine, engine, lambda name: engine_for(machine, name))
    runs_on = runs_on if engine is not None or plan.anchor is None else replace(runs_on, anchor=plan.anchor)
    described = as_served(described, machine, runs_on)
    context_tokens = (
        plan.workload.input_tokens + plan.workload.output_tokens
    )  # a plan warns where that is beyond the model's context
    described = replace(described, max_context=max(float(described.max_context), float(context_tokens)))
    if model is None or system is None or engine is None:
        for pool in plan.pools:
            _check(plan, pool, described, machine, runs_on)
    return described, machine, runs_on


def _load(kind: str, name: str, source: Any, load: Any) -> Any:
    """Return what is given, or what the name in a plan stands for."""
    if source is not None:
        return load(source)
    try:
        return load(name)
    except InputError as problem:
        raise InputError(f"a plan holds the name of its {kind} only: {problem} Give {kind}=") from None


def _check(plan: Plan, pool: Pool, model: Model, system: System, engine: Engine) -> None:
    """Raise InputError where a pool's step takes another time with what was loaded than the plan says."""
    settings = step_given(pool, plan.workload, mixed=False)
    settings.pop("query", None)
    step = drafted_step(model, system, layout=pool.layout, engine=engine, drafts=plan.speculation.drafts, **settings)
    seconds, planned_seconds = float(step.total), float(pool.step.total)
    if abs(seconds / planned_seconds - 1) > SAME:
        raise InputError(
            f"a plan holds names only, and {model.name} on {system.name} with engine {engine.name} is not what it was made of: "
            f"a {pool.role} step takes {show(seconds, 's')} instead of {show(planned_seconds, 's')}. "
            "Give model=, system= and engine="
        )
