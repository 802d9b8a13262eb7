"""Pools of replicas that serve traffic: one, one for each class, or two between which caches are sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from steptime.errors import RangeError
from steptime.number_checks import whole_number
from steptime.simulation import event_loop
from steptime.simulation.loop_state import DONE, GAPS, RECORDS, Replicas, Rules, new_replicas, new_requests
from steptime.simulation.scheduling_policy import Policy
from steptime.simulation.step_time_model import Pace
from steptime.simulation.traffic import Traffic

PORTION = 50_000  # requests between two reports of progress
MAX_BYTES = 4 << 30  # of the state of all replicas


class Server(NamedTuple):
    """One pool: its schedule, the pace of its steps, and its replicas."""

    policy: Policy
    pace: Pace
    replicas: int


def max_replicas(policy: Policy) -> int:
    """Return how many replicas of a policy can be simulated: what is kept of each takes memory."""
    bytes_per_replica = 8 * (4 * RECORDS + GAPS + 4 * int(policy.max_num_seqs) + int(policy.block))
    return max(1, MAX_BYTES // bytes_per_replica)


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
    replicas = whole_number("replicas", replicas, maximum=max_replicas(policy))
    if np.any(np.diff(traffic.arrival) < 0):
        raise RangeError("requests must be in order of arrival")
    if len(pace.decode) <= policy.max_num_seqs:
        raise RangeError(
            f"the pace covers {len(pace.decode) - 1} sequences, fewer than the {policy.max_num_seqs} of the policy"
        )
    n = len(traffic)
    if int(np.max(traffic.ranks, initial=0)) >= policy.ranks:
        policy = replace(policy, ranks=1 + int(np.max(traffic.ranks)))
    rules = policy.rules(closed=traffic.clients > 0, groups=pace.groups)
    rules = rules._replace(before=pace.before, before_token=pace.before_token, extra_delay=pace.extra_delay)
    requests = new_requests(traffic.arrival, traffic.inputs, traffic.outputs, traffic.ranks, cached, load)
    pool = new_replicas(rules, replicas)
    following = np.array([n], dtype=np.int64)
    if traffic.clients:
        route, following = assign_clients(n, traffic.clients, replicas)
    elif route is None:
        least = policy.route == "least-loaded" and replicas > 1
        route = np.zeros(0, dtype=np.int64) if least else np.arange(n, dtype=np.int64) % replicas
    rates = pace.rates
    portion = n + 1 if traffic.clients else PORTION
    for begin in range(0, n + 1, portion):
        event_loop.serve(requests, pool, rules, rates, route, following, begin, begin + portion)
        if progress is not None:
            progress(min(n, begin + portion))
    return requests, rules, pool


def assign_clients(n: int, clients: int, replicas: int) -> tuple[Any, Any]:
    """Deal the clients of a closed loop of `n` requests out to replicas: the replica of each request, and who follows whom.

    Client c sends the requests c, c + clients, ...; the second array holds the first request of each replica that has no place
    at the start, and then, for each request, the next of its replica; n where there is none.

    >>> [part.tolist() for part in assign_clients(6, 3, 2)]
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


def serve_disaggregated(
    traffic: Traffic,
    first: Server,
    second: Server,
    transfer_seconds: Callable[[Any], Any],
    **settings: Any,
) -> tuple[Any, list[tuple[Rules, Replicas]]]:
    """Serve prompts on one pool and outputs on another; `transfer_seconds` gives the seconds that the caches of requests are on
    their way.

    The first token comes from the first pool. Caches do not wait for each other on the links, and a full decode pool does not
    stop the first.
    """
    prefill_traffic = replace(traffic, outputs=np.minimum(traffic.outputs, 1))
    a, a_rules, a_pool = serve(prefill_traffic, first[0], first[1], replicas=first[2], **settings)
    a["outputs"] = traffic.outputs
    go_on = np.flatnonzero((a["status"] == DONE) & (a["outputs"] > 1))
    transferred_at = a["finish"][go_on] + np.asarray(transfer_seconds(a[go_on]))
    order = np.argsort(transferred_at, kind="stable")
    go_on, transferred_at = go_on[order], transferred_at[order]
    moved = Traffic(arrival=transferred_at, inputs=a["inputs"][go_on], outputs=a["outputs"][go_on], rank=a["rank"][go_on])
    decode_pace = replace(second[1], before=0.0, before_token=0.0)  # they came in by the first pool
    b, b_rules, b_pool = serve(moved, second[0], decode_pace, replicas=second[2], cached=moved.inputs)
    a["finish"][go_on], a["preempted"][go_on], a["status"][go_on] = b["finish"], b["preempted"], b["status"]
    a["moved"][go_on], a["resumed"][go_on] = transferred_at, b["scheduled"]
    return a, [(a_rules, a_pool), (b_rules, b_pool)]


def serve_disaggregated_closed(
    traffic: Traffic,
    first: Server,
    second: Server,
    transfer_seconds: Callable[[Any], Any],
    *,
    progress: Callable[[int], None] | None = None,
    **settings: Any,
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
        a, pools = serve_disaggregated(
            part, first, second, transfer_seconds, **{k: v[: len(part)] for k, v in settings.items()}
        )
        last_token_s = a["finish"] + delays(a, first[1].extra_delay)
        ends = np.where(a["status"] == DONE, last_token_s, a["arrival"])
        next_arrival = np.concatenate([np.zeros(clients), np.sort(ends)[: n - clients]])
        if np.array_equal(next_arrival, arrival):
            return a, pools
        arrival = next_arrival
        if progress is not None:
            progress(len(arrival))
    raise ValueError(f"a closed loop of {clients} clients on two pools has not settled")


def delays(requests: Any, extra_delay: float) -> Any:
    """Return how much later users see the tokens of each request than the chips make them [s]; see `Pace.extra_delay`."""
    return extra_delay * np.nan_to_num(requests["first"] - requests["scheduled"])


def _begin(traffic: Traffic, arrival: Any) -> Traffic:
    """The first requests of a traffic, as many as have a time of arrival [s], as an open loop."""
    k = len(arrival)
    rank = traffic.rank[:k] if len(traffic.rank) else traffic.rank
    return Traffic(arrival=arrival, inputs=traffic.inputs[:k], outputs=traffic.outputs[:k], rank=rank)


def serve_tiers(
    traffic: Traffic, pools: Sequence[Server], *, progress: Callable[[int], None] | None = None
) -> tuple[Any, list[tuple[Rules, Replicas]]]:
    """Serve each class of `traffic` on a pool of its own: class k on `pools[k]` (policy, pace, replicas)."""
    if traffic.clients:
        raise RangeError("pools by class need arrivals that do not wait for answers: use a rate or a trace")
    ranks = traffic.ranks
    if int(np.max(ranks)) >= len(pools):
        raise RangeError(f"{int(np.max(ranks)) + 1} classes need as many pools, not {len(pools)}")
    requests = new_requests(traffic.arrival, traffic.inputs, traffic.outputs, ranks, 0, 0.0)
    used, replica_offset = [], 0
    for rank, (policy, pace, replicas) in enumerate(pools):
        mine = np.flatnonzero(ranks == rank)
        part = Traffic(arrival=traffic.arrival[mine], inputs=traffic.inputs[mine], outputs=traffic.outputs[mine])
        served, rules, pool = serve(part, policy, pace, replicas=replicas, progress=progress)
        served["rank"], served["replica"] = rank, served["replica"] + replica_offset
        requests[mine] = served
        used.append((rules, pool))
        replica_offset += replicas
    return requests, used
