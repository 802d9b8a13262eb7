"""A plan as simulator input: its model, system, engine, requests and schedules."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np

from steptime.catalog.hardware_loading import SystemLike, resolve_system
from steptime.errors import InputError, RangeError, expect
from steptime.hardware.system import System
from steptime.models.draft_models import EAGLE3, with_draft_model
from steptime.models.model import Model
from steptime.models.model_loading import ModelLike, resolve_model
from steptime.physics.compute_dtype import as_served
from steptime.physics.engine import Engine, serving_engine
from steptime.physics.layout import Layout
from steptime.physics.speculative_step import drafted_step
from steptime.planning.plan_result import Plan, Pool
from steptime.planning.step_explanation import step_given
from steptime.simulation.scheduling_policy import Policy, engine_when_full
from steptime.units import show
from steptime.workload.traffic import Lengths, Traffic, open_loop, scaled
from steptime.workload.workload import NONE, Speculation, Workload

# Names of drafters by method; a draft model has its own name, and the model's layers need none.
DRAFTERS: Final = {"": "", "mtp": "", EAGLE3: EAGLE3}
# Relative difference up to which two step times count as equal.
SAME = 1e-6
# Routing of a replayed plan. Routers of engines choose by load: vllm-router and SGLang's gateway (their default `cache_aware`
# takes the replica with the fewest requests where loads differ), llm-d (queue depth), vLLM's balancer of data-parallel ranks.
# Sources: docs.gpustack.ai/gpustack-operator/main/docs/modules/model-deployment/routing; vllm/v1/engine/core_client.py.
ROUTE = "least-loaded"
# Slots of a prefill pool over the prompts of a pass, so that tokens limit a pass also where prompts are short.
PREFILL_SLOTS = 4
# Longest context of a drawn request [tokens], where a model states none.
LONGEST = 1 << 40
# Most times that requests are cut at the longest context, and the relative loss of a mean that is small.
MOST_CUTS, SMALL_CUT = 20, 1e-3
# Prompt tokens per step of a decode pool, for sequences that lost their cache and are computed again.
STEP_TOKENS = 2048


class PoolLike(Protocol):
    """The fields of a plan's pool that a replay needs."""

    @property
    def role(self) -> str:
        """Role: serve, prefill or decode."""

    @property
    def layout(self) -> Layout:
        """Layout of a replica, and number of replicas."""

    @property
    def batch(self) -> float:
        """Sequences per replica."""

    @property
    def max_num_seqs(self) -> int:
        """Slots per replica."""

    @property
    def queued(self) -> bool:
        """Whether requests wait for a slot."""

    @property
    def chunk(self) -> int:
        """Prompt tokens per data-parallel rank in a mixed step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """The prompts of a workload: tokens to prefill, and tokens already in the cache."""

    fresh: int
    skipped: int


def workload_prompts(workload: Workload) -> Prompts:
    """Return the whole tokens of a workload's prompts.

    Args:
        workload: Requests.

    Returns:
        Tokens to prefill, at least 1, and cached tokens.
    """
    fresh = max(1, round(workload.input_tokens * (1 - workload.cached_share)))
    return Prompts(fresh=fresh, skipped=round(workload.input_tokens) - fresh)


def skipped_tokens(prompts: Prompts, inputs: Any) -> Any:
    """Return the cached tokens of requests: the same share of each prompt.

    A token at least is left to prefill, because `workload_prompts` has at least one fresh token.

    Args:
        prompts: Prompts of mean length.
        inputs: Input tokens of each request.

    Returns:
        Tokens by request.
    """
    return prompts.skipped * inputs // (prompts.fresh + prompts.skipped)


def longest_context(workload: Workload, model: Model) -> int:
    """Return the longest context of a drawn request [tokens]: that of the model, or of mean requests where these exceed it.

    Args:
        workload: Requests.
        model: Model.

    Returns:
        Tokens.
    """
    mean = float(workload.input_tokens + workload.output_tokens)
    return int(min(max(float(model.max_context), math.ceil(mean)), LONGEST))


def within_context(inputs: Any, outputs: Any, longest: int) -> tuple[Any, Any]:
    """Shorten drawn requests that exceed the longest context, and lengthen the others so that both means stay.

    Plans count the tokens of mean requests. Without the second step the longest context would make them fewer.

    Args:
        inputs: Input tokens by request.
        outputs: Output tokens by request.
        longest: Longest context [tokens].

    Returns:
        Input and output tokens.
    """
    sides = np.asarray(inputs), np.asarray(outputs)
    tokens: tuple[Any, Any] = inputs, outputs
    factors = [1.0, 1.0]
    for _ in range(MOST_CUTS):
        lengths = [side * factor for side, factor in zip(sides, factors, strict=True)]
        share = np.minimum(1.0, longest / (lengths[0] + lengths[1]))
        if np.all(share == 1):
            break
        input_tokens, output_tokens = (np.maximum(1, np.floor(length * share)).astype(np.int64) for length in lengths)
        # Products of large factors are rounded up.
        tokens = np.maximum(1, np.minimum(input_tokens, longest - output_tokens)), output_tokens
        ratios = [float(np.mean(side) / np.mean(tokens_cut)) for side, tokens_cut in zip(sides, tokens, strict=True)]
        if max(ratios) < 1 + SMALL_CUT:
            break
        factors = [factor * ratio for factor, ratio in zip(factors, ratios, strict=True)]
    return tokens


def workload_traffic(
    workload: Workload, rate: float, n: int, *, seed: int, exact: bool = False, longest: int = LONGEST
) -> Traffic:
    """Draw requests of a workload with Poisson arrivals.

    Args:
        workload: Requests.
        rate: Request rate [requests/s].
        n: Number of requests.
        seed: Random seed.
        exact: Scale arrivals and lengths so that the sample has the requested mean rate and mean lengths.
        longest: Longest context of a request, within which lengths keep their means [tokens].

    Returns:
        The traffic.
    """
    prompts = workload_prompts(workload)
    inputs = Lengths(mean=prompts.fresh + prompts.skipped, shape="lognormal", spread=float(workload.input_spread))
    outputs = Lengths(mean=workload.output_tokens, shape="lognormal", spread=float(workload.output_spread))
    came = open_loop(rate, n, inputs, outputs, seed=seed)
    if exact:
        came = replace(came, inputs=_with_mean(came.inputs, inputs.mean), outputs=_with_mean(came.outputs, outputs.mean))
    input_tokens, output_tokens = within_context(came.inputs, came.outputs, longest)
    came = replace(came, inputs=input_tokens, outputs=output_tokens)
    return scaled(came, rate / came.rate) if exact and math.isfinite(came.rate) else came


def _with_mean(tokens: Any, mean: float) -> Any:
    return np.maximum(1, np.rint(tokens * (mean / np.mean(tokens)))).astype(np.int64)


def decode_policy(
    server: PoolLike, fresh: int, engine: Engine, *, has_prefill_pool: bool, speculation: Speculation = NONE
) -> Policy:
    """Return the schedule of a pool that decodes.

    It has the slots of the plan, additional slots for prompts in prefill, and the plan's chunk size.

    Args:
        server: Pool that decodes.
        fresh: Prompt tokens to prefill per request.
        engine: Engine, which preempts where the KV cache is full, or waits.
        has_prefill_pool: True if another pool prefills.
        speculation: Speculative tokens.

    Returns:
        The policy.
    """
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
        when_full=engine_when_full(engine),
        route=ROUTE,
    )


def prefill_policy(pool: PoolLike, fresh: int, speculation: Speculation = NONE) -> Policy:
    """Return the schedule of a prefill pool: passes with the tokens of its batch.

    Short prompts share a pass, so that it has more slots than prompts of mean length.

    Args:
        pool: Prefill pool.
        fresh: Prompt tokens to prefill per request.
        speculation: Speculative tokens, whose layers also prefill.

    Returns:
        The policy.
    """
    prompts_per_rank = max(1, int(pool.batch) // int(pool.layout.dp))
    return Policy(
        max_num_seqs=PREFILL_SLOTS * max(1, int(pool.batch)),
        max_num_batched_tokens=prompts_per_rank * fresh,
        speculative_tokens=speculation.drafts,
        route=ROUTE,
    )


def load_plan_inputs(
    plan: Plan,
    model: ModelLike | None = None,
    system: SystemLike | None = None,
    engine: Engine | str | None = None,
    prefill_system: SystemLike | None = None,
) -> tuple[Model, System, Engine]:
    """Return the model, the system and the engine of a plan.

    A plan contains only their names. An argument replaces the name.

    Args:
        plan: Feasible plan.
        model: Model, or None for the name in the plan.
        system: System, or None for the name in the plan.
        engine: Engine, or None for the name in the plan.
        prefill_system: System of the prefill pool of a plan on two systems, or None for the name in the plan.

    Returns:
        Model, system and engine.

    Raises:
        InputError: A name cannot be loaded, or the plan's steps take another time with the loaded input (other
            weight formats, other hardware figures). Give the argument then.
        RangeError: The plan is not feasible.
    """
    expect("a plan", plan, Plan, "a Plan, as st.plan gives it")
    if not plan.feasible:
        raise RangeError(f"plan: must be feasible, got one without a layout ({plan.reason}); relax its limits")
    machine = _load("system", plan.system, system, resolve_system)
    described = _load("model", plan.model, model, resolve_model)
    # A plan names what drafts; a draft model without a public id must be given with the model.
    name = DRAFTERS.get(plan.speculation.method, plan.speculation.draft_model)
    if model is None and name:
        described = with_draft_model(described, name)
    runs_on = _load("engine", plan.engine, engine, lambda name: serving_engine(machine, name))
    runs_on = runs_on if engine is not None or plan.anchor is None else replace(runs_on, anchor=plan.anchor)
    described = as_served(described, machine, runs_on)
    # A plan already warns where this is beyond the model's context.
    context_tokens = plan.workload.input_tokens + plan.workload.output_tokens
    described = replace(described, max_context=max(float(described.max_context), float(context_tokens)))
    second = load_prefill_system(plan, prefill_system)
    if model is None or system is None or engine is None or (second is not None and prefill_system is None):
        for pool in plan.pools:
            _check(plan, pool, described, second or machine if pool.role == "prefill" else machine, runs_on)
    return described, machine, runs_on


def load_prefill_system(plan: Plan, prefill_system: SystemLike | None = None) -> System | None:
    """Return the system of the prefill pool of a plan on two systems.

    Args:
        plan: Plan.
        prefill_system: That system, or None for the name in the plan.

    Returns:
        The system; None for a plan on one system.

    Raises:
        InputError: The name cannot be loaded.
        RangeError: The plan is on one system, and another one is given.
    """
    if plan.prefill_system:
        system: System = _load("prefill_system", plan.prefill_system, prefill_system, resolve_system)
        return system
    if prefill_system is not None:
        raise RangeError(f"prefill_system: the plan is on one system, {plan.system}; leave it out")
    return None


def _load(kind: str, name: str, source: Any, load: Any) -> Any:
    """Return the given source, or load the name from the plan."""
    if source is not None:
        return load(source)
    try:
        return load(name)
    except InputError as problem:
        raise InputError(f"a plan contains only the name of its {kind}: {problem} Give {kind}=") from None


def _check(plan: Plan, pool: Pool, model: Model, system: System, engine: Engine) -> None:
    """Raise InputError where a pool's step takes another time than in the plan."""
    settings = step_given(pool, plan.workload, mixed=False)
    settings.pop("query", None)
    step = drafted_step(model, system, layout=pool.layout, engine=engine, drafts=plan.speculation.drafts, **settings)
    seconds, planned_seconds = float(step.total), float(pool.step.total)
    if abs(seconds / planned_seconds - 1) > SAME:
        # As many digits as show the difference.
        pairs = ((show(seconds, "s", digits), show(planned_seconds, "s", digits)) for digits in range(3, 17))
        step_text, planned_text = next(pair for pair in pairs if pair[0] != pair[1])
        raise InputError(
            f"a plan contains only names, and {model.name} on {system.name} with engine {engine.name} differs from its inputs: "
            f"a {pool.role} step takes {step_text} instead of {planned_text}. "
            "Give model=, system= and engine="
        )
