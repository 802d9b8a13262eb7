"""Replica pools that serve traffic: one, one per class, or prefill plus decode."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from steptime.errors import RangeError
from steptime.number_checks import whole_number
from steptime.simulation import event_loop
from steptime.simulation.loop_state import DONE, GAPS, RECORD_COLUMNS, RECORDS, Replicas, Rules, new_replicas, new_requests
from steptime.simulation.scheduling_policy import Policy
from steptime.simulation.step_time_model import Pace
from steptime.workload.traffic import Traffic

# Requests between two reports of progress.
PORTION = 50_000
# Calls of a function that may stop a run.
CHECKS = 10
# Memory for the state of all replicas [B].
MAX_BYTES = 4 << 30


class Server(NamedTuple):
    """One pool: its schedule, the step times, and the number of replicas."""

    policy: Policy
    pace: Pace
    replicas: int


def max_replicas(policy: Policy) -> int:
    """Return the largest number of replicas that can be simulated in memory.

    Args:
        policy: Scheduling policy.

    Returns:
        Replicas.
    """
    bytes_per_replica = 8 * (RECORD_COLUMNS * RECORDS + GAPS + 4 * int(policy.max_num_seqs) + int(policy.block))
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
    stop: Callable[[Any], bool] | None = None,
) -> tuple[Any, Rules, Replicas]:
    """Serve traffic on one pool of replicas.

    In a closed loop, clients are assigned to replicas in turn and stay there.

    Args:
        traffic: Traffic.
        policy: Scheduling policy.
        pace: Step times.
        replicas: Number of replicas.
        cached: Prompt tokens already in the cache, by request.
        load: Time to load them [s], by request.
        route: Replica of each request; by default that of the policy.
        progress: Function called with the number of requests served.
        stop: Function of the requests, called several times. Where it returns true, the others are not served.

    Returns:
        The requests, the rules and the replicas.

    Raises:
        RangeError: Requests are not in order, or the step times cover too few sequences.
    """
    replicas = whole_number("replicas", replicas, maximum=max_replicas(policy))
    if np.any(np.diff(traffic.arrival) < 0):
        raise RangeError("arrival: requests must be in order of arrival, got times that decrease; sort them")
    if len(pace.decode) <= policy.max_num_seqs:
        raise RangeError(f"pace: must cover max_num_seqs = {policy.max_num_seqs} sequences, got {len(pace.decode) - 1}")
    n = len(traffic)
    if int(np.max(traffic.ranks, initial=0)) >= policy.ranks:
        policy = replace(policy, ranks=1 + int(np.max(traffic.ranks)))

    # Pool and requests are arrays that the compiled loop changes in place.
    rules = policy.rules(closed=traffic.clients > 0, groups=pace.groups, stages=pace.stages, waves=pace.waves)
    rules = rules._replace(before=pace.before, before_token=pace.before_token, extra_delay=pace.extra_delay)
    requests = new_requests(traffic.arrival, traffic.inputs, traffic.outputs, traffic.ranks, cached, load)
    pool = new_replicas(rules, replicas)
    following = np.array([n], dtype=np.int64)
    if traffic.clients:
        route, following = assign_clients(n, traffic.clients, replicas)
    elif route is None:
        least = policy.route == "least-loaded" and replicas > 1
        route = np.zeros(0, dtype=np.int64) if least else np.arange(n, dtype=np.int64) % replicas
        if policy.route == "random":
            route = np.random.default_rng(n).integers(0, replicas, n)

    # Portions allow reports of progress; a closed loop has no portions, because clients continue across them.
    rates, run = pace.rates, event_loop.serve_pipeline if rules.stages > 1 else event_loop.serve
    portion = n + 1 if traffic.clients else PORTION if stop is None else n // CHECKS + 1
    for begin in range(0, n + 1, portion):
        run(requests, pool, rules, rates, route, following, begin, begin + portion)
        if progress is not None:
            progress(min(n, begin + portion))
        if stop is not None and stop(requests):
            break
    return requests, rules, pool


def assign_clients(n: int, clients: int, replicas: int) -> tuple[Any, Any]:
    """Assign the clients of a closed loop to replicas.

    Client c sends the requests c, c + clients, ... The second array starts with the first request of each
    replica that does not arrive at the start. Then it has, for each request, the next one of its replica; n
    means none.

    Args:
        n: Number of requests.
        clients: Number of clients.
        replicas: Number of replicas.

    Returns:
        The replica of each request, and the order of requests.

    >>> [part.tolist() for part in assign_clients(6, 3, 2)]
    [[0, 1, 0, 0, 1, 0], [3, 4, 6, 6, 6, 5, 6, 6]]
    """
    used = min(replicas, clients)
    route = np.arange(n, dtype=np.int64) % clients % used
    following = np.full(used + n, n, dtype=np.int64)
    # Sorted by replica.
    order = clients + np.argsort(route[clients:], kind="stable")
    replica, first = np.unique(route[order], return_index=True)
    following[used + order[:-1]] = order[1:]
    # The last request of each replica has no successor; that of the last replica is n already.
    following[used + order[first[1:] - 1]] = n
    following[replica] = order[first]
    return route, following


def serve_disaggregated(
    traffic: Traffic,
    first: Server,
    second: Server,
    transfer_seconds: Callable[[Any], Any],
    **settings: Any,
) -> tuple[Any, list[tuple[Rules, Replicas]]]:
    """Serve prefill on one pool and decode on another.

    The first token comes from the prefill pool. Caches do not wait for each other on the links, and a full
    decode pool does not stop the prefill pool.

    Args:
        traffic: Open-loop traffic.
        first: Prefill pool.
        second: Decode pool.
        transfer_seconds: Function from requests to the transfer times of their caches [s].
        settings: Arguments of `serve` for the prefill pool.

    Returns:
        The requests, and the rules and replicas of each pool.
    """
    prefill_traffic = replace(traffic, outputs=np.minimum(traffic.outputs, 1))
    a, a_rules, a_pool = serve(prefill_traffic, first[0], first[1], replicas=first[2], **settings)
    a["outputs"] = traffic.outputs

    # Requests with more than one token continue in the decode pool, when their caches have arrived.
    go_on = np.flatnonzero((a["status"] == DONE) & (a["outputs"] > 1))
    transferred_at = a["finish"][go_on] + np.asarray(transfer_seconds(a[go_on]))
    order = np.argsort(transferred_at, kind="stable")
    go_on, transferred_at = go_on[order], transferred_at[order]
    moved = Traffic(arrival=transferred_at, inputs=a["inputs"][go_on], outputs=a["outputs"][go_on], rank=a["rank"][go_on])
    # The requests already waited before the queue of the prefill pool.
    decode_pace = replace(second[1], before=0.0, before_token=0.0)
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
    """Serve a closed loop on a prefill and a decode pool.

    A client sends its next request when the decode pool completes its answer. Both pools run again and again
    with the arrivals of the last run, until no arrival changes. The ends by some time depend only on earlier
    arrivals. Each run therefore corrects at least one more end; in practice it corrects one request of every
    client.

    Args:
        traffic: Closed-loop traffic.
        first: Prefill pool.
        second: Decode pool.
        transfer_seconds: Function from requests to the transfer times of their caches [s].
        progress: Function called with the number of requests of the run.
        settings: Arguments of `serve` for the prefill pool.

    Returns:
        The requests, and the rules and replicas of each pool.

    Raises:
        RangeError: A static batch would wait without end.
    """
    if any(policy.kind == "static" and math.isinf(policy.patience) for policy, _, _ in (first, second)):
        raise RangeError("patience: must be finite for static batches of closed-loop clients on separate pools, got inf")
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
    raise ValueError(f"a closed loop of {clients} clients on two pools did not converge")


def delays(requests: Any, extra_delay: float) -> Any:
    """Return how much later users see tokens than the server makes them.

    Args:
        requests: Rows of `REQUEST`.
        extra_delay: See `Pace.extra_delay`.

    Returns:
        Seconds by request.
    """
    return extra_delay * np.nan_to_num(requests["first"] - requests["scheduled"])


def _begin(traffic: Traffic, arrival: Any) -> Traffic:
    """Return the first requests of a traffic as an open loop with these arrivals [s]."""
    k = len(arrival)
    rank = traffic.rank[:k] if len(traffic.rank) else traffic.rank
    return Traffic(arrival=arrival, inputs=traffic.inputs[:k], outputs=traffic.outputs[:k], rank=rank)


def serve_tiers(
    traffic: Traffic, pools: Sequence[Server], *, progress: Callable[[int], None] | None = None
) -> tuple[Any, list[tuple[Rules, Replicas]]]:
    """Serve each class of a traffic on its own pool: class k on `pools[k]`.

    Args:
        traffic: Open-loop traffic with classes.
        pools: One pool per class.
        progress: Function called with the number of requests served.

    Returns:
        The requests, and the rules and replicas of each pool.

    Raises:
        RangeError: The traffic is a closed loop, or there are too few pools.
    """
    if traffic.clients:
        raise RangeError("traffic: pools per class need an open loop, got a closed loop; use a rate or a trace")
    ranks = traffic.ranks
    if int(np.max(ranks)) >= len(pools):
        raise RangeError(f"pools: must be one per class, {int(np.max(ranks)) + 1}, got {len(pools)}")
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
