"""The event loop gives the times of the plain one-step-at-a-time schedule, and loses nothing.

Data-parallel ranks and pipelines are compared with `reference`, in test_reference.py.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st_

pytest.importorskip("numba", reason="the simulator needs the extra 'simulate'")

from steptime.simulation import event_loop
from steptime.simulation.loop_state import DONE, REJECTED, Rates, new_replicas, new_requests
from steptime.simulation.replica_pools import assign_clients
from steptime.simulation.scheduling_policy import Policy
from tests.conftest import examples
from tests.simulation import reference_loop

TICK = 2.0**-20  # s; times that are multiples of it add up without rounding


def rates(seats, *, decode=40, each=3, context=1, row=4, pair=0, key=0, tick=TICK, groups=1):
    b = np.arange(seats + 1)
    return Rates(
        np.where(b > 0, decode + each * b, 0) * 64.0 * tick,
        np.full(seats + 1, context * tick / 64),
        np.where(np.arange(600) > 0, 30 + row * np.arange(600), 0) * 64.0 * tick,
        pair * tick / 2,
        key * tick,
        5 * tick,
        np.where(np.arange(600) > 0, 20 + 2 * row * np.arange(600), 0) * 64.0 * tick,
        groups,
        np.ones((1, 1)),
        np.zeros((1, 1)),
        np.zeros(1),
        0.0,
        1,
    )


def run(policy, coefficients, requests, clients=0, before=(0.0, 0.0, 0.0)):
    rules = rules_of(policy, coefficients.groups, clients, before)
    replicas = new_replicas(rules, 1)
    n = len(requests)
    following = assign_clients(n, clients, 1)[1] if clients else np.array([n])
    event_loop.serve(requests, replicas, rules, coefficients, np.zeros(n, dtype=np.int64), following, 0, n + 1)
    return replicas


def rules_of(policy, groups, clients, before):
    return policy.rules(closed=clients > 0, groups=groups)._replace(
        before=before[0], before_token=before[1], extra_delay=before[2]
    )


LENGTH = st_.integers(1, 70)
BEFORE = st_.tuples(st_.sampled_from([0, 0, 700, 40_000]), st_.sampled_from([0, 60]), st_.sampled_from([0, 0, 0.5, 3]))
REQUEST = st_.tuples(st_.integers(0, 9000), LENGTH, LENGTH, st_.integers(0, 2), st_.integers(0, 60))
POLICIES = st_.builds(
    lambda kind, seats, budget, room, block, full, interval, patience, drafts, ranks, chunk: Policy(
        kind=kind, max_num_seqs=seats, max_num_batched_tokens=budget, chunk=chunk, kv_tokens=room, block=block, when_full=full,
        ranks=ranks, interval=interval * 64 * TICK, patience=patience, acceptance_length=drafts[0],
        speculative_tokens=drafts[1],
    ),
    st_.sampled_from(["continuous", "prefill-first", "static", "train"]),
    st_.integers(1, 9),
    st_.integers(1, 80),
    st_.sampled_from([math.inf, 90, 150, 300, 700]),
    st_.sampled_from([1, 4, 16]),
    st_.sampled_from(["recompute", "recompute", "queue"]),
    st_.integers(20, 200),
    st_.sampled_from([0.0, 0.0, 3000 * TICK, math.inf]),
    st_.sampled_from([(1, 0), (1, 0), (1.5, 2), (2.25, 3)]),
    st_.sampled_from([1, 1, 3]),
    st_.sampled_from([math.inf, math.inf, 1, 7, 30]),
)  # fmt: skip
COEFFICIENTS = st_.tuples(
    st_.integers(1, 90),
    st_.integers(0, 5),
    st_.integers(0, 3),
    st_.integers(0, 6),
    st_.integers(0, 2),
    st_.just(1),
)


def made(rows, ranks=3, *, ready=False, tick=TICK):
    rows = sorted(rows)
    arrival = [r[0] * 16 * tick for r in rows]
    inputs, outputs = [r[1] for r in rows], [r[2] for r in rows]
    cached = [min(r[4], r[1] - 1) if not ready or r[4] % 2 else r[1] for r in rows]
    outputs = [max(2, o) if c == i else o for o, c, i in zip(outputs, cached, inputs, strict=True)]
    load = [r[4] * tick if r[4] % 3 == 0 else 0.0 for r in rows]
    return new_requests(arrival, inputs, outputs, [min(r[3], ranks - 1) for r in rows], cached, load)


def same(policy, numbers, requests, clients=0, tolerance=0.0, tick=TICK, before=(0, 0, 0)):
    before = (before[0] * 16 * tick, before[1] * 16 * tick, float(before[2]))
    decode, each, context, row, pair, groups = numbers
    coefficients = rates(
        policy.max_num_seqs, decode=decode, each=each, context=context, row=row, pair=pair, key=pair, tick=tick, groups=groups
    )
    rules = rules_of(policy, groups, clients, before)
    expected = reference_loop.serve(requests.copy(), rules, coefficients, clients=clients)
    run(policy, coefficients, requests, clients, before)
    for name in ("arrival", "scheduled", "first", "finish", "preempted"):
        want = [getattr(job, name) for job in expected if name != "arrival" or not math.isnan(job.finish)]
        got = requests[name] if name != "arrival" else requests[name][requests["status"] == DONE]
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=0, err_msg=f"{name} {policy}")
    assert set(requests["status"]) <= {DONE, REJECTED}


@examples(150)
@given(POLICIES, COEFFICIENTS, st_.lists(REQUEST, min_size=1, max_size=25), st_.booleans(), BEFORE)
def test_same_times_to_the_last_bit(policy, numbers, rows, ready, before):
    same(policy, numbers, made(rows, policy.ranks, ready=ready), before=before)


@examples(100)
@given(POLICIES, COEFFICIENTS, st_.lists(REQUEST, min_size=1, max_size=25), st_.integers(1, 12), BEFORE)
def test_same_times_in_a_closed_loop(policy, numbers, rows, clients, before):
    requests = made(rows, policy.ranks)
    requests["arrival"] = 0.0
    same(policy, numbers, requests, clients=clients, before=before)


@examples(60)
@given(POLICIES, COEFFICIENTS, st_.lists(REQUEST, min_size=1, max_size=25))
def test_same_times_with_rounding(policy, numbers, rows):
    same(policy, numbers, made(rows, policy.ranks, tick=math.pi * 1e-7), tolerance=1e-9, tick=math.pi * 1e-7)
