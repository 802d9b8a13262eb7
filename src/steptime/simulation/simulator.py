"""The simulator: a model on a system under traffic, with latencies and cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from steptime.catalog.hardware_loading import SystemLike, resolve_system
from steptime.errors import Impossible, RangeError
from steptime.hardware.rental_prices import deployment_rent
from steptime.hardware.system import System, slower_link
from steptime.hardware.what_if import is_single
from steptime.models.model import Model, cached_token_bytes, stored_formats
from steptime.models.model_loading import ModelLike
from steptime.number_checks import MOST_CHIPS, positive, single, whole_number
from steptime.physics.bias_correction import Anchor, Anchors
from steptime.physics.compute_dtype import as_served
from steptime.physics.engine import IDEAL, Engine, anchored, at_workload, model_and_system, serving_engine
from steptime.physics.layout import NAMES, Layout, check_ways
from steptime.physics.layout_rules import check_rules
from steptime.physics.layout_space import stays_inside
from steptime.physics.speculative_step import cache_moved, drafted_sequences
from steptime.simulation.autoscaler import Autoscaler, Scaled, account, serve_autoscaled
from steptime.simulation.loop_state import DONE, Replicas, Rules
from steptime.simulation.prefix_cache import ANSWER_SHARE, Cache, CacheUse, use_cache
from steptime.simulation.replica_pools import (
    Server,
    assign_clients,
    delays,
    serve,
    serve_disaggregated,
    serve_disaggregated_closed,
    serve_tiers,
)
from steptime.simulation.run_metrics import DEFAULT_PERCENTILE, answers, check_percentile, judge, timeline
from steptime.simulation.scheduling_policy import Policy
from steptime.simulation.session_cache import serve_turns
from steptime.simulation.simulation_result import Simulation
from steptime.simulation.step_time_model import Pace, sample_pace, slowed
from steptime.workload.traffic import Traffic, checked
from steptime.workload.workload import Slo

# Contexts at which decode steps are sampled, requests from which they come, and their places in an output.
FREQUENT_CONTEXTS, CONTEXT_REQUESTS, OUTPUT_PLACES = 5, 8192, (1 / 6, 1 / 2, 5 / 6)


def user_visible_times(requests: Any, pace: Pace, late: Any = 0.0, accepted: float = 1.0) -> Any:
    """Return finished requests with the times that their users see.

    The first token waits for the pipeline, for the transfer of the cache, and for `pace.answer` decode steps.
    The tokens of these steps arrive together with it, and the last token has no such delay. All tokens are
    later by the delay that measured runs show for the first one (`pace.extra_delay`).

    Args:
        requests: Finished requests, rows of `REQUEST`.
        pace: Step times.
        late: Time from the last pass to the end of the prompt in a pipeline [s], by request.
        accepted: Tokens per decode step and sequence.

    Returns:
        Rows of `REQUEST`.
    """
    later = requests.copy()
    later["first"], later["finish"] = visible_first_and_last(requests, pace, late, accepted)
    return later


def visible_first_and_last(requests: Any, pace: Pace, late: Any = 0.0, accepted: float = 1.0) -> tuple[Any, Any]:
    """Return the times of the first and the last token that users see; see `user_visible_times`.

    Args:
        requests: Finished requests, rows of `REQUEST`.
        pace: Step times.
        late: Time from the last pass to the end of the prompt in a pipeline [s], by request.
        accepted: Tokens per decode step and sequence.

    Returns:
        Two arrays [s].
    """
    # Separate columns: numpy is slow with those inside of rows.
    moved, resumed, first, finish = (requests[name].copy() for name in ("moved", "resumed", "first", "finish"))
    if not pace.extra_delay and not pace.answer and not np.any(late) and np.all(np.isnan(moved)):
        return first, finish
    owed = requests["outputs"] - 1
    seconds_per_token = (finish - np.where(np.isnan(resumed), first, resumed)) / np.maximum(owed, 1)
    first = np.fmax(first + late, moved)
    first += np.where(requests["status"] == DONE, np.minimum(pace.answer * accepted, owed) * seconds_per_token, 0.0)
    delay = delays(requests, pace.extra_delay) if pace.extra_delay else 0.0
    return first + delay, np.fmax(finish, first) + delay


def pipeline_delay_seconds(requests: Any, reader: Server) -> Any:
    """Return the time from the last pass to the end of the prompt in a pipeline.

    The passes of a prompt with several chunks are taken as equally long.

    Args:
        requests: Finished requests, rows of `REQUEST`.
        reader: Pool that prefills.

    Returns:
        Seconds by request.
    """
    if not reader.pace.late:
        return 0.0
    fresh = requests["inputs"] - requests["cached"]
    chunk = min(reader.policy.chunk, reader.policy.max_num_batched_tokens)
    passes = np.maximum(np.ceil(fresh / chunk), 1)
    took = np.where(requests["status"] == DONE, requests["first"] - requests["scheduled"], 0.0)
    return reader.pace.late * np.nan_to_num(took) / passes


def kv_room(
    model: Model, system: System, *, layout: Layout, engine: Engine, context: float, step_tokens: int, drafts: int = 0
) -> float:
    """Return the tokens of context that fit in the KV cache of a replica.

    Args:
        model: Model.
        system: System.
        layout: Layout of the replica.
        engine: Engine.
        context: Mean context of a sequence [tokens].
        step_tokens: Tokens of a data-parallel rank in a step.
        drafts: Speculative tokens, whose layers take room.

    Returns:
        Tokens.
    """
    tokens = step_tokens / layout.microbatches
    settings: dict[str, Any] = {"layout": layout, "engine": engine, "step_tokens": tokens}
    fits = drafted_sequences(model, system, context=context, drafts=drafts, **settings, is_integer=False)
    sequences_per_rank = float(fits) / layout.dp
    return float(max(0.0, sequences_per_rank) * layout.dp * context)


def simulate(
    model: ModelLike,
    system: SystemLike,
    traffic: Traffic,
    *,
    layout: Layout | None = None,
    engine: Engine | str | None = None,
    policy: Policy | None = None,
    slo: Slo | tuple[Slo, ...] | None = None,
    percentile: str = DEFAULT_PERCENTILE,
    prefill: Layout | None = None,
    prefill_policy: Policy | None = None,
    prefill_system: SystemLike | None = None,
    cache: Cache | None = None,
    cached: Any = 0,
    fast: Policy | None = None,
    fast_replicas: int = 0,
    slowness: float = 1.0,
    anchor: Anchors | Anchor | None = None,
    autoscaler: Autoscaler | None = None,
    progress: Callable[[int], None] | None = None,
) -> Simulation:
    """Simulate a deployment under traffic and return what its users see.

    With `prefill`, separate replicas prefill the prompts. Each KV cache then moves over the links of the
    data-parallel rank that made it. These are scale-up links where both pools are in one domain.

    Args:
        model: Model, or its name as for `load_model`.
        system: System, or its name as for `load_system`.
        traffic: Requests.
        layout: Layout of a replica and number of replicas.
        engine: Engine or its name; by default as for `plan`.
        policy: Schedule; its `kv_tokens` are by default the room of the chips.
        slo: Limits, or limits by class.
        percentile: Percentile of the limits: "mean", "p50", "p90", "p95" or "p99".
        prefill: Layout of separate prefill replicas.
        prefill_policy: Schedule of the prefill pool.
        prefill_system: System of the prefill pool, if it is another one. KV caches then move over the slower of both
            scale-out networks.
        cache: Prefix cache of each replica that prefills.
        cached: Prompt tokens that are already in the cache, without `cache`: of every request, or by request.
        fast: Schedule of a separate pool for class 0.
        fast_replicas: Additional replicas of that pool.
        slowness: Factor on every predicted step time.
        anchor: Your own runs, as for `plan`.
        autoscaler: Starts and stops replicas with the load; the layout then has no number of replicas.
        progress: Function called with the number of requests served.

    Returns:
        The finished run.

    Raises:
        Impossible: The weights leave no room for any request.
        RangeError: Arguments are arrays, out of range, or cannot be combined.
        LayoutError: A layout breaks a rule.
    """
    model, system = model_and_system(model, system, engine)
    layout, policy, slo, percentile = layout or Layout(), policy or Policy(), slo or Slo(), check_percentile(percentile)
    runs_on = anchored(
        serving_engine(system, engine), anchor, model=model.name, system=system.name, formats=stored_formats(model)
    )
    traffic = checked(traffic)
    if autoscaler is not None:
        combined = {"prefill": prefill, "cache": cache, "fast_replicas": fast_replicas, "sessions": traffic.turns}
        _check_autoscaled(combined)
        layout = replace(layout, replicas=autoscaler.maximum)
    model = as_served(model, system, runs_on)
    fast_replicas = _check_counts(
        cached, fast_replicas, slowness, traffic, has_prefill_or_cache=prefill is not None or cache is not None
    )

    # Each pool gets a policy that fits its memory, and sampled step times.
    second_system = _second_system(prefill_system, prefill)
    _check_pools(model, system, layout, prefill, fast_replicas, second_system)
    fresh = float(np.mean(traffic.inputs - (0 if cached is None else cached)))
    pool = partial(pool_server, model, system, runs_on, traffic, slowness=slowness, prompt_tokens=fresh)
    server = reader = pool(layout, policy, int(layout.replicas))
    if prefill is not None:
        # A prefill pool has its own KV room and no decode, so that its steps are always chunks.
        default_prefill_policy = replace(server.policy, kv_tokens=math.inf, kind="continuous")
        reader = pool_server(
            model, second_system or system, runs_on, traffic, prefill, prefill_policy or default_prefill_policy,
            int(prefill.replicas), slowness=slowness, prompt_tokens=fresh,
        )  # fmt: skip
    quick = pool(layout, fast or server.policy, fast_replicas) if fast_replicas else None

    # Serve the requests, then add the delays that users see.
    chips = _chips(layout, prefill, fast_replicas)
    sent = transfer_seconds(
        model, system, layout, prefill, reader, drafts=server.policy.speculative_tokens, prefill_system=second_system
    )

    def once(came: Traffic) -> tuple[Any, Any, int]:
        use = None if cache is None else _use_prefix_cache(cache, came, model, reader, decodes=prefill is None)
        served, pools = _serve_pools(came, server, reader, quick, use, cached, progress, sent=sent)
        late = pipeline_delay_seconds(served, reader)
        rules, first = pools[0]
        visible = user_visible_times(served, server.pace, late, server.policy.acceptance_length)
        return (use, pools), visible, rules.seats * len(first.count)

    if autoscaler is not None:
        return _autoscaled(
            autoscaler, traffic, server, slo=slo, percentile=percentile, cached=cached, layout=layout, model=model.name,
            system=system, engine=runs_on,
        )  # fmt: skip
    traffic, ((use, pools), requests) = (traffic, once(traffic)[:2]) if traffic.turns is None else serve_turns(traffic, once)
    prefill_chips = 0 if second_system is None else chips - _chips(layout, None, fast_replicas)
    rent = deployment_rent(chips - prefill_chips, system.rent.typical)
    rent += 0.0 if second_system is None else deployment_rent(prefill_chips, second_system.rent.typical)
    figures = answers(traffic, requests, pools, slo=slo, usd_per_second=float(rent))
    return Simulation(
        model=model.name,
        system=system.name,
        engine=runs_on.name,
        layout=layout,
        limits=judge(figures, slo, percentile) if _limited(slo) else None,
        answers=figures,
        requests=requests,
        timeline=timeline(requests, pools),
        traffic=traffic,
        policy=server.policy,
        pace=server.pace,
        replicas=server.replicas,
        chips=chips,
        cache=use,
        prefill_replicas=0 if prefill is None else int(prefill.replicas),
        prefill_system="" if second_system is None else second_system.name,
        fast_replicas=fast_replicas,
        limited=_limited(slo),
        rent=system.rent,
        anchor=runs_on.anchor,
    )


def _check_autoscaled(combined: dict[str, Any]) -> None:
    """Raise RangeError for what an autoscaler cannot be combined with."""
    if conflicts := [name for name, value in combined.items() if value]:
        raise RangeError(f"autoscale: cannot be combined with {conflicts[0]}; leave one of the two out")


def _autoscaled(
    autoscaler: Autoscaler,
    traffic: Traffic,
    server: Server,
    *,
    slo: Slo | tuple[Slo, ...],
    percentile: str,
    cached: Any,
    layout: Layout,
    model: str,
    system: System,
    engine: Engine,
) -> Simulation:
    """Return the run of replicas that start and stop with the load, and a fixed fleet of its most replicas."""
    cached = (
        np.clip(np.asarray(cached, dtype=np.int64), 0, np.maximum(np.asarray(traffic.inputs) - 1, 0)) if np.any(cached) else 0
    )
    policy, pace = server.policy, server.pace

    def user_answers(run: Any, rules: Rules, pool: Replicas, usd_per_second: float) -> tuple[Any, Any]:
        visible = user_visible_times(run, pace, pipeline_delay_seconds(run, server), policy.acceptance_length)
        return visible, answers(traffic, visible, [(rules, pool)], slo=slo, usd_per_second=usd_per_second)

    rent = float(deployment_rent(int(layout.chips), system.rent.typical))
    run: Scaled = serve_autoscaled(traffic, policy, pace, autoscaler, cached=cached)
    is_fixed = autoscaler.minimum == autoscaler.maximum
    span = max(float(traffic.arrival[-1]), 1e-12)
    mean_replicas = autoscaler.minimum if is_fixed else run.rented_seconds / span
    mean_rent = float(deployment_rent(int(layout.chips) * mean_replicas, system.rent.typical))
    requests, figures = user_answers(run.requests, run.rules, run.pool, mean_rent)
    largest = int(run.line[:, 1].max())
    fixed = serve(traffic, policy, pace, replicas=largest, cached=cached)
    _, fixed_figures = user_answers(*fixed, rent * largest)
    scaling = account(
        autoscaler, run, fixed_figures.within_limits, usd_per_replica_second=rent, fixed_ttft=fixed_figures.ttft.p90,
        fixed_tpot=fixed_figures.tpot.p90,
    )  # fmt: skip
    line = timeline(requests, [(run.rules, run.pool)])
    if not is_fixed:
        # Shares of rented time and room, not of all places for replicas.
        figures = replace(figures, utilisation=scaling.busy_share, pool_utilisation=(scaling.busy_share,))
        rented = np.interp(line["seconds"], scaling.times, scaling.rented)
        line = {**line, "kv": line["kv"] * len(run.pool.count) / np.maximum(rented, 1)}
    return Simulation(
        model=model,
        system=system.name,
        engine=engine.name,
        layout=replace(layout, replicas=largest),
        limits=judge(figures, slo, percentile) if _limited(slo) else None,
        answers=figures,
        requests=requests,
        timeline=line,
        traffic=traffic,
        policy=policy,
        pace=pace,
        replicas=largest,
        chips=int(layout.chips) * largest,
        limited=_limited(slo),
        rent=system.rent,
        anchor=engine.anchor,
        scaling=scaling,
    )


def pool_server(
    model: Model,
    system: System,
    engine: Engine,
    traffic: Traffic,
    layout: Layout,
    policy: Policy,
    replicas: int,
    *,
    slowness: float = 1.0,
    prompt_tokens: float | None = None,
    check: bool = True,
    has_mixed_steps: bool = True,
) -> Server:
    """Return a pool of replicas, whose policy has the room of the chips.

    Args:
        model: Model.
        system: System.
        engine: Engine.
        traffic: Requests, whose lengths give the range of the step times.
        layout: Layout of a replica, which is already checked.
        policy: Schedule.
        replicas: Number of replicas.
        slowness: Factor on every predicted step time.
        prompt_tokens: Mean prompt tokens to prefill per request; by default those of the traffic, without a prefix cache.
        check: Whether to compute the errors of the sampled step times.
        has_mixed_steps: See `sample_pace`.

    Returns:
        The pool.
    """
    # Corrections by own runs take the clients of a closed loop and the mean context of the traffic.
    clients = traffic.clients / replicas if traffic.clients else None
    context = _mean_context(traffic, model)
    engine = at_workload(engine, clients, context)
    fitted = _fitted(model, system, layout, engine, policy, context)
    sampled = sample_pace(
        model, system, layout=layout, engine=engine, max_num_seqs=fitted.max_num_seqs,
        max_num_batched_tokens=min(fitted.max_num_batched_tokens, 1 << 16),
        contexts=_contexts(traffic, float(model.max_context)), query=fitted.speculative_tokens + 1, check=check,
        frequent_contexts=_frequent_contexts(traffic, float(model.max_context)),
        prompt_tokens=max(1.0, float(np.mean(traffic.inputs)) if prompt_tokens is None else prompt_tokens),
        has_mixed_steps=has_mixed_steps, legal=True,
    )  # fmt: skip
    pace = slowed(sampled, slowness)
    # The ideal engine divides every step evenly over the micro-batches; others schedule each micro-batch.
    if layout.pp > 1 and engine.name != IDEAL.name and fitted.kind in ("continuous", "prefill-first"):
        pace = replace(pace, stages=int(layout.pp), waves=int(min(layout.pp, layout.microbatches)), late=0.0)
    return Server(fitted, pace, replicas)


def _serve_pools(
    traffic: Traffic,
    server: Server,
    reader: Server,
    quick: Server | None,
    use: CacheUse | None,
    cached: Any,
    progress: Callable[[int], None] | None,
    *,
    sent: Callable[[Any], Any] | None,
) -> tuple[Any, list[tuple[Rules, Replicas]]]:
    """Return the requests and the pools that served them.

    There is one pool, one per class (with `quick`), or two with the transfer times `sent`.
    """
    if quick is not None:
        return serve_tiers(traffic, [quick, server], progress=progress)
    settings: dict[str, Any] = (
        {"cached": np.clip(np.asarray(cached, dtype=np.int64), 0, np.maximum(np.asarray(traffic.inputs) - 1, 0))}
        if np.any(cached)
        else {}
    )
    if use is not None:
        settings = {"cached": use.cached, "load": use.load, "route": use.route}
    if sent is None:
        requests, rules, pool = serve(
            traffic, server.policy, server.pace, replicas=server.replicas, progress=progress, **settings
        )
        return requests, [(rules, pool)]
    if traffic.clients:
        return serve_disaggregated_closed(traffic, reader, server, sent, progress=progress, **settings)
    return serve_disaggregated(traffic, reader, server, sent, **settings)


def _chips(layout: Layout, prefill: Layout | None, fast_replicas: int) -> int:
    """Return the chips of all pools."""
    readers = 0 if prefill is None else prefill.chips * prefill.replicas
    return int(layout.chips * (layout.replicas + fast_replicas) + readers)


def transfer_seconds(
    model: Model,
    system: System,
    layout: Layout,
    prefill: Layout | None,
    reader: Server,
    *,
    drafts: int,
    prefill_system: System | None = None,
) -> Callable[[Any], Any] | None:
    """Return the time that the cache of a request takes from its last pass to the pool that decodes.

    Args:
        model: Model.
        system: System.
        layout: Layout of the pool that decodes.
        prefill: Layout of the prefill pool, or None.
        reader: The prefill pool.
        drafts: Speculative tokens, whose layers also have a cache.
        prefill_system: System of the prefill pool, if it is another one; the slower of both scale-out links then counts.

    Returns:
        Function from requests to seconds; None without a prefill pool.
    """
    if prefill is None:
        return None
    pools = ((int(pool.chips), int(pool.replicas)) for pool in (layout, prefill))
    if prefill_system is None:
        link = (system.scale_up if stays_inside(system.scale_up.size, *pools) else system.scale_out).link
    else:
        link = slower_link(system.scale_out.link, prefill_system.scale_out.link)
    bandwidth = link.bandwidth * prefill.group * prefill.pp

    def sent(requests: Any) -> Any:
        moving = cache_moved(model, requests["inputs"].astype(np.float64), drafts) / bandwidth
        return pipeline_delay_seconds(requests, reader) + link.latency + moving

    return sent


def _check_counts(cached: Any, fast_replicas: int, slowness: float, traffic: Traffic, *, has_prefill_or_cache: bool) -> int:
    """Return the replicas of the fast pool as a whole number; raise RangeError for invalid counts and combinations."""
    if np.ndim(cached) == 0:
        whole_number("cached", cached, minimum=0)
    elif np.shape(cached) != np.shape(traffic.inputs) or np.any(np.asarray(cached) < 0):
        raise RangeError(f"cached: must be one number of tokens, at least 0, or one for each of {len(traffic):,} requests")
    single(fast_replicas=fast_replicas, slowness=slowness)
    positive("slowness", slowness, minimum=1e-6, maximum=1e6)
    quick = whole_number("fast replicas", fast_replicas, minimum=0, maximum=MOST_CHIPS)
    if quick and has_prefill_or_cache:
        raise RangeError("fast_replicas: cannot be combined with a separate prefill pool or a prefix cache")
    return quick


def _second_system(prefill_system: SystemLike | None, prefill: Layout | None) -> System | None:
    """Return the system of the prefill pool, if it is another one."""
    if prefill_system is None:
        return None
    if prefill is None:
        raise RangeError("prefill_system: needs separate prefill replicas; give their layout too (prefill)")
    return resolve_system(prefill_system)


def _check_pools(
    model: Model, system: System, layout: Layout, prefill: Layout | None, fast_replicas: int, second: System | None = None
) -> None:
    """Check that pools are single, small enough for their system, and legal."""
    if second is not None and prefill is not None:
        _check_pools(model, system, layout, None, fast_replicas)
        _check_pools(model, second, prefill, None, 0)
        return
    both = [check_ways(pool) for pool in (layout, prefill) if pool is not None]
    if not is_single(system) or any(np.ndim(getattr(pool, name)) for pool in both for name in NAMES):
        raise RangeError("a simulation takes one system and one layout, got arrays; give single numbers")
    chips = _chips(layout, prefill, fast_replicas)
    if chips > system.scale_out.size:
        has = f"at most {system.scale_out.size:,}, because {system.name} has no network beyond them"
        raise RangeError(f"chips: must be {has}, got {chips:,}")
    for pool in both:
        check_rules(pool, model, system)


def _limited(slo: Slo | tuple[Slo, ...]) -> bool:
    """Whether any class has a limit."""
    return any(math.isfinite(x) for s in (slo if isinstance(slo, tuple) else (slo,)) for x in (s.ttft, s.tpot))


def _use_prefix_cache(cache: Cache, traffic: Traffic, model: Model, reader: Server, *, decodes: bool) -> CacheUse:
    """Return what a prefix cache saves the pool that prefills; `decodes` says whether it decodes too."""
    policy, pace, replicas = reader
    if policy.route == "least-loaded" or (traffic.clients and policy.route == "prefix-aware"):
        raise RangeError(
            f"cache: cannot be combined with {policy.route} routing" + (" in a closed loop" if traffic.clients else "")
        )
    replica_by_client = assign_clients(len(traffic), traffic.clients, replicas)[0] if traffic.clients else None
    return use_cache(
        cache, traffic, pace, bytes_per_token=cached_token_bytes(model), replicas=replicas, route=policy.route,
        dealt=replica_by_client, room=float(policy.kv_tokens), answer_share=ANSWER_SHARE if decodes else 0.0,
    )  # fmt: skip


def _contexts(traffic: Traffic, longest: float) -> tuple[float, float]:
    inputs, outputs = (np.clip(x, 1, longest) for x in (traffic.inputs, traffic.outputs))
    return float(np.percentile(inputs, 5)), float(np.percentile(inputs + outputs, 95))


def _frequent_contexts(traffic: Traffic, longest: float) -> Any:
    """Return contexts of decoding sequences, each the mean over an equal share of the decoded tokens, the shortest first."""
    step = max(1, len(traffic.inputs) // CONTEXT_REQUESTS)
    inputs, outputs = (np.clip(x[::step], 1, longest) for x in (traffic.inputs, traffic.outputs))
    contexts = np.concatenate([inputs + place * outputs for place in OUTPUT_PLACES])
    order = np.argsort(contexts, kind="stable")
    # A request decodes for as long as its output.
    weights = np.tile(outputs, len(OUTPUT_PLACES))[order]
    tokens, products = (np.append(0.0, np.cumsum(values)) for values in (weights, weights * contexts[order]))
    ends = np.interp(np.linspace(0.0, tokens[-1], FREQUENT_CONTEXTS + 1), tokens, products)
    means = np.diff(ends) * (FREQUENT_CONTEXTS / tokens[-1])
    # A line needs contexts that differ.
    return means + np.linspace(-0.5, 0.5, FREQUENT_CONTEXTS)


def _mean_context(traffic: Traffic, model: Model) -> float:
    """Return the mean context of a decoding sequence [tokens]; longer requests than the model's limit are rejected."""
    short = np.clip(np.stack([traffic.inputs, traffic.outputs]), 1, model.max_context)
    return float(np.mean(short[0]) + np.mean(short[1]) / 2)


def _fitted(model: Model, system: System, layout: Layout, engine: Engine, policy: Policy, context: float) -> Policy:
    """Return the policy with the KV room of the chips and the model's context limit."""
    policy = replace(policy, max_context=min(policy.max_context, float(model.max_context)))
    if math.isfinite(policy.kv_tokens):
        return policy
    room = kv_room(
        model,
        system,
        layout=layout,
        engine=engine,
        context=context,
        step_tokens=policy.max_num_batched_tokens,
        drafts=policy.speculative_tokens,
    )
    if room < 1:
        raise Impossible(
            f"the weights of {model.name} leave no room for a request of {context:,.0f} tokens on {int(layout.chips)} x "
            f"{system.chip.name}; use more chips (--tp), or smaller weights"
        )
    return replace(policy, kv_tokens=room)
