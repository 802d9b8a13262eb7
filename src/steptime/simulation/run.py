"""A model on a system under traffic: pace, policy and loop joined."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from steptime.catalog.loading import SystemLike, system_of
from steptime.errors import RangeError
from steptime.machines.money import rent_of
from steptime.machines.system import System
from steptime.models.loading import ModelLike, model_of
from steptime.models.model import Model, cache_bytes
from steptime.physics.engine import Engine, engine_for
from steptime.physics.layout import Layout
from steptime.physics.memory import sequences_that_fit
from steptime.physics.rules import check
from steptime.planning.workload import Slo
from steptime.simulation import loop
from steptime.simulation.metrics import answers, timeline
from steptime.simulation.outcome import Simulation
from steptime.simulation.pace import Pace, pace_of, slowed
from steptime.simulation.policy import Policy
from steptime.simulation.prefix_cache import Cache, CacheUse, use_cache
from steptime.simulation.state import DONE, Replicas, Rules, new_replicas, new_requests
from steptime.simulation.traffic import Traffic

PORTION = 50_000  # requests between two reports of progress


def serve(
    traffic: Traffic,
    policy: Policy,
    pace: Pace,
    *,
    replicas: int = 1,
    cached: Any = 0,
    load: Any = 0.0,
    route: Any = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[Any, Rules, Replicas]:
    """Serve traffic on `replicas` of a pool whose steps take `pace`; return the requests, the rules and the replicas.

    cached [prompt tokens already there] and load [s] by request. `route` names the replica of each request; the clients of a
    closed loop are dealt out in turn and stay with their replica.
    """
    if replicas < 1:
        raise RangeError(f"replicas must be at least 1, not {replicas}")
    if np.any(np.diff(traffic.arrival) < 0):
        raise RangeError("requests must be in order of arrival")
    if len(pace.decode) <= policy.max_sequences:
        raise RangeError(
            f"the pace covers {len(pace.decode) - 1} sequences, fewer than the {policy.max_sequences} of the policy"
        )
    n = len(traffic)
    if int(np.max(traffic.ranks, initial=0)) >= policy.ranks:
        policy = replace(policy, ranks=1 + int(np.max(traffic.ranks)))
    rules = policy.rules(closed=traffic.clients > 0, groups=pace.groups)
    rules = rules._replace(before=pace.before, before_token=pace.before_token)
    requests = new_requests(traffic.arrival, traffic.inputs, traffic.outputs, traffic.ranks, cached, load)
    pool = new_replicas(rules, replicas)
    following = np.array([n], dtype=np.int64)
    if traffic.clients:
        route, following = dealt(n, traffic.clients, replicas)
    elif route is None:
        least = policy.route == "least-loaded" and replicas > 1
        route = np.zeros(0, dtype=np.int64) if least else np.arange(n, dtype=np.int64) % replicas
    rates = pace.rates
    portion = n + 1 if traffic.clients else PORTION
    for begin in range(0, n + 1, portion):
        loop.serve(requests, pool, rules, rates, route, following, begin, begin + portion)
        if progress is not None:
            progress(min(n, begin + portion))
    return requests, rules, pool


def dealt(n: int, clients: int, replicas: int) -> tuple[Any, Any]:
    """Deal the clients of a closed loop of `n` requests out to replicas: the replica of each request, and who follows whom.

    Client c sends the requests c, c + clients, ...; the second array holds the first request of each replica that has no place
    at the start, and then, for each request, the next of its replica; n where there is none.

    >>> [part.tolist() for part in dealt(6, 3, 2)]
    [[0, 1, 0, 0, 1, 0], [3, 4, 6, 6, 6, 5, 6, 6]]
    """
    used = min(replicas, clients)
    route = np.arange(n, dtype=np.int64) % clients % used
    following = np.full(used + n, n, dtype=np.int64)
    order = clients + np.argsort(route[clients:], kind="stable")  # by replica
    replica, first = np.unique(route[order], return_index=True)
    following[used + order[:-1]] = order[1:]
    following[used + order[first[1:] - 1]] = n  # the last of each replica but the last, whose end is n already
    following[replica] = order[first]
    return route, following


def as_seen(requests: Any, pace: Pace) -> Any:
    """Return finished requests as their users see them: the first token `pace.answer` of its own decode steps late.

    The tokens after it come with it, and the last is not late: what is sent in groups is sent at the end in any case.
    """
    if not pace.answer:
        return requests
    later, owed = requests.copy(), requests["outputs"] - 1
    began = np.where(np.isnan(requests["resumed"]), requests["first"], requests["resumed"])
    each = (requests["finish"] - began) / np.maximum(owed, 1)
    later["first"] += np.where(requests["status"] == DONE, np.minimum(pace.answer, owed) * each, 0.0)
    return later


def kv_room(model: Model, system: System, *, layout: Layout, engine: Engine, context: float, step_tokens: int) -> float:
    """Tokens of context that a replica holds, with sequences of `context`, that reads `step_tokens` a group in a step."""
    tokens = step_tokens / layout.microbatches
    fits = sequences_that_fit(model, system, context=context, layout=layout, engine=engine, step_tokens=tokens)
    each = float(fits) / layout.dp
    return float(max(0.0, each) * layout.dp * context)


def simulate(
    model: ModelLike,
    system: SystemLike,
    traffic: Traffic,
    *,
    layout: Layout | None = None,
    engine: Engine | str | None = None,
    policy: Policy | None = None,
    slo: Slo | tuple[Slo, ...] | None = None,
    prefill: Layout | None = None,
    prefill_policy: Policy | None = None,
    cache: Cache | None = None,
    cached: int = 0,
    fast: Policy | None = None,
    fast_replicas: int = 0,
    slowness: float = 1.0,
    progress: Callable[[int], None] | None = None,
) -> Simulation:
    """Serve `traffic` with `layout.replicas` replicas of the model, and say what its users see.

    model and system may be named, as for `load_model` and `load_system`.
    With `prefill`, prompts are read by `prefill.replicas` replicas of their own, and their KV cache is sent on over the links
    of the group that made it (scale-up where both pools are in one domain). `policy.kv_tokens` is taken from the memory of the
    chips unless given. cached: prompt tokens of every request that need not be read, where no `cache` says which. fast: with
    `fast_replicas` more replicas, the policy of a pool for class 0 alone. slo: limits, or those of each class.
    slowness: over what the engine predicts of every step. Raises RangeError where the weights leave no room for any request.
    """
    model, system = model_of(model), system_of(system)
    layout, policy, slo = layout or Layout(), policy or Policy(), slo or Slo()
    runs_on = engine_for(system, engine)
    for one in filter(None, (layout, prefill)):
        check(one, model, system)
    policy = _fitted(model, system, layout, runs_on, policy, traffic)
    chips = int(layout.chips * layout.replicas)
    pace = slowed(_pace(model, system, layout, runs_on, policy, traffic), slowness)
    server = (policy, pace, int(layout.replicas))
    reader = server
    if prefill is not None:
        first = prefill_policy or replace(policy, kv_tokens=math.inf, kind="continuous")
        first = _fitted(model, system, prefill, runs_on, first, traffic)
        reader = (first, slowed(_pace(model, system, prefill, runs_on, first, traffic), slowness), int(prefill.replicas))
        chips += int(prefill.chips * prefill.replicas)
    use = None
    given: dict[str, Any] = {"cached": np.clip(cached, 0, np.maximum(np.asarray(traffic.inputs) - 1, 0))} if cached else {}
    if cache is not None:
        use = _cached(cache, traffic, model, reader)
        given = {"cached": use.cached, "load": use.load, "route": use.route}
    if fast_replicas:
        if prefill is not None or cache is not None:
            raise RangeError("a pool for the fast class goes with neither separate prefill nor a prefix cache")
        chips += fast_replicas * int(layout.chips)
        quick = _fitted(model, system, layout, runs_on, fast or policy, traffic)
        fast_pace = slowed(_pace(model, system, layout, runs_on, quick, traffic), slowness)
        requests, pools = serve_tiers(traffic, [(quick, fast_pace, fast_replicas), server], progress=progress)
    elif prefill is None:
        requests, rules, pool = serve(traffic, policy, pace, replicas=server[2], progress=progress, **given)
        pools = [(rules, pool)]
    else:
        near = chips <= system.scale_up.size
        link = (system.scale_up if near else system.scale_out).link

        cached_bytes = partial(cache_bytes, model)
        links = link.bandwidth * prefill.group

        def sent(tokens: Any) -> Any:
            return link.latency + cached_bytes(tokens) / links

        if traffic.clients:
            requests, pools = serve_apart_closed(traffic, reader, server, sent, progress=progress, **given)
        else:
            requests, pools = serve_apart(traffic, reader, server, sent, **given)
    requests = as_seen(requests, pace)
    rent = float(rent_of(chips, system.rent.typical))
    return Simulation(
        model=model.name,
        system=system.name,
        engine=runs_on.name,
        layout=layout,
        answers=answers(traffic, requests, pools, slo=slo, usd_per_second=rent),
        requests=requests,
        timeline=timeline(requests, pools),
        traffic=traffic,
        policy=policy,
        pace=pace,
        replicas=server[2],
        chips=chips,
        cache=use,
        prefill_replicas=0 if prefill is None else int(prefill.replicas),
        fast_replicas=fast_replicas,
        limited=any(math.isfinite(x) for s in (slo if isinstance(slo, tuple) else (slo,)) for x in (s.ttft, s.tpot)),
    )


def serve_apart(
    traffic: Traffic,
    first: tuple[Policy, Pace, int],
    second: tuple[Policy, Pace, int],
    sent: Callable[[Any], Any],
    **given: Any,
) -> tuple[Any, list[tuple[Rules, Replicas]]]:
    """Serve prompts on one pool and outputs on another; `sent` gives the seconds that a cache of some tokens is on its way.

    The first token comes from the first pool. Caches do not wait for each other on the links, and a full decode pool does not
    stop the first.
    """
    reading = replace(traffic, outputs=np.minimum(traffic.outputs, 1))
    a, a_rules, a_pool = serve(reading, first[0], first[1], replicas=first[2], **given)
    a["outputs"] = traffic.outputs
    go_on = np.flatnonzero((a["status"] == DONE) & (a["outputs"] > 1))
    there = a["finish"][go_on] + np.asarray(sent(a["inputs"][go_on].astype(np.float64)))
    order = np.argsort(there, kind="stable")
    go_on, there = go_on[order], there[order]
    moved = Traffic(arrival=there, inputs=a["inputs"][go_on], outputs=a["outputs"][go_on], rank=a["rank"][go_on])
    decode_pace = replace(second[1], before=0.0, before_token=0.0)  # they came in by the first pool
    b, b_rules, b_pool = serve(moved, second[0], decode_pace, replicas=second[2], cached=moved.inputs)
    a["finish"][go_on], a["preempted"][go_on], a["status"][go_on] = b["finish"], b["preempted"], b["status"]
    a["moved"][go_on], a["resumed"][go_on] = there, b["scheduled"]
    return a, [(a_rules, a_pool), (b_rules, b_pool)]


def serve_apart_closed(
    traffic: Traffic,
    first: tuple[Policy, Pace, int],
    second: tuple[Policy, Pace, int],
    sent: Callable[[Any], Any],
    *,
    progress: Callable[[int], None] | None = None,
    **given: Any,
) -> tuple[Any, list[tuple[Rules, Replicas]]]:
    """Serve a closed loop on two pools: each of `traffic.clients` asks again when an answer of the second pool ends.

    The first requests of the clients run alone; where their answers end, others are sent, and both pools run again, until no
    arrival moves. What ends by a time depends only on what came before it: each round sets right at least one more end, in
    practice a generation of them. Raises RangeError for static batches that wait for more without end.
    """
    if any(policy.kind == "static" and math.isinf(policy.patience) for policy, _, _ in (first, second)):
        raise RangeError("static batches that wait to fill without end do not go with clients of separate pools")
    n, clients = len(traffic), min(traffic.clients, len(traffic))
    arrival = np.zeros(clients)
    for _ in range(n + 2):
        part = _begin(traffic, arrival)
        a, pools = serve_apart(part, first, second, sent, **{k: v[: len(part)] for k, v in given.items()})
        ends = np.where(a["status"] == DONE, a["finish"], a["arrival"])
        again = np.concatenate([np.zeros(clients), np.sort(ends)[: n - clients]])
        if np.array_equal(again, arrival):
            return a, pools
        arrival = again
        if progress is not None:
            progress(len(arrival))
    raise ValueError(f"a closed loop of {clients} clients on two pools has not settled")


def _begin(traffic: Traffic, arrival: Any) -> Traffic:
    """The first requests of a traffic, as many as have a time of arrival [s], as an open loop."""
    k = len(arrival)
    rank = traffic.rank[:k] if len(traffic.rank) else traffic.rank
    return Traffic(arrival=arrival, inputs=traffic.inputs[:k], outputs=traffic.outputs[:k], rank=rank)


def serve_tiers(
    traffic: Traffic, pools: list[tuple[Policy, Pace, int]], *, progress: Callable[[int], None] | None = None
) -> tuple[Any, list[tuple[Rules, Replicas]]]:
    """Serve each class of `traffic` on a pool of its own: class k on `pools[k]` (policy, pace, replicas)."""
    if traffic.clients:
        raise RangeError("pools by class need arrivals that do not wait for answers: use a rate or a trace")
    ranks = traffic.ranks
    if int(np.max(ranks)) >= len(pools):
        raise RangeError(f"{int(np.max(ranks)) + 1} classes need as many pools, not {len(pools)}")
    whole = new_requests(traffic.arrival, traffic.inputs, traffic.outputs, ranks, 0, 0.0)
    used, before = [], 0
    for rank, (policy, pace, replicas) in enumerate(pools):
        mine = np.flatnonzero(ranks == rank)
        part = Traffic(arrival=traffic.arrival[mine], inputs=traffic.inputs[mine], outputs=traffic.outputs[mine])
        found, rules, pool = serve(part, policy, pace, replicas=replicas, progress=progress)
        found["rank"], found["replica"] = rank, found["replica"] + before
        whole[mine] = found
        used.append((rules, pool))
        before += replicas
    return whole, used


def _cached(cache: Cache, traffic: Traffic, model: Model, reader: tuple[Policy, Pace, int]) -> CacheUse:
    """What a prefix cache saves the pool that reads prompts."""
    policy, pace, replicas = reader
    if policy.route == "least-loaded" or (traffic.clients and policy.route == "prefix-aware"):
        raise RangeError(
            f"a prefix cache does not go with {policy.route} routing" + (" in a closed loop" if traffic.clients else "")
        )
    per_token = float(cache_bytes(model, 1 << 14) - cache_bytes(model, 1 << 13)) / (1 << 13)
    given = dealt(len(traffic), traffic.clients, replicas)[0] if traffic.clients else None
    return use_cache(cache, traffic, pace, bytes_per_token=per_token, replicas=replicas, route=policy.route, dealt=given)


def _contexts(traffic: Traffic, longest: float) -> tuple[float, float]:
    inputs, outputs = (np.clip(x, 1, longest) for x in (traffic.inputs, traffic.outputs))
    return float(np.percentile(inputs, 5)), float(np.percentile(inputs + outputs, 95))


def _pace(model: Model, system: System, layout: Layout, engine: Engine, policy: Policy, traffic: Traffic) -> Pace:
    return pace_of(
        model,
        system,
        layout=layout,
        engine=engine,
        max_sequences=policy.max_sequences,
        token_budget=min(policy.token_budget, 1 << 16),
        contexts=_contexts(traffic, float(model.max_context)),
        query=policy.drafted + 1,
    )


def _fitted(model: Model, system: System, layout: Layout, engine: Engine, policy: Policy, traffic: Traffic) -> Policy:
    """Return the policy with the room that the chips have, and no longer contexts than the model's."""
    policy = replace(policy, max_context=min(policy.max_context, float(model.max_context)))
    if math.isfinite(policy.kv_tokens):
        return policy
    short = np.clip(np.stack([traffic.inputs, traffic.outputs]), 1, model.max_context)  # longer ones are rejected
    context = float(np.mean(short[0]) + np.mean(short[1]) / 2)
    room = kv_room(model, system, layout=layout, engine=engine, context=context, step_tokens=policy.token_budget)
    if room < 1:
        raise RangeError(
            f"the weights of {model.name} leave no room for a request of {context:,.0f} tokens on {int(layout.chips)} x "
            f"{system.chip.name}; use more chips (--tp), or smaller weights"
        )
    return replace(policy, kv_tokens=room)
