"""Plans against the step-by-step engine of `reference`, which serves a plan's rate in place of the event loop.

Only the times of steps and transfers come from the package. Of the questions of docs/replayed_plans.md those count whose
requests take plain Python less than a minute: few tokens in all, and a cache with room.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba", reason="the simulator needs the extra 'simulate'")

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from benchmarks import plan_vs_simulation
from replayed_plans import off, question

from steptime.errors import InputError
from steptime.simulation import replica_pools, simulator
from steptime.simulation.loop_state import DONE
from tests.simulation import reference, reference_loop
from tests.simulation.reference import Engine
from tests.simulation.test_replayed_plans import MEDIAN, MOST, WORST

PLANS, COUNTED, MOST_TOKENS, MOST_REPLICAS, MOST_RANKS = 40, 1500, 2_500_000, 40, 32
loop_serve = replica_pools.serve


class TightCacheError(Exception):
    """A request was preempted or is longer than the cache of a rank: the reference preempts by rank, and refuses nothing."""


def seconds_of(rates, rules):
    """The time of a step in a stage, from the tables of a pool."""

    def seconds(batches):
        n, groups = rules.waves, rates.groups
        b, rows = n * sum(len(batch.contexts) for batch in batches), n * sum(c for batch in batches for c, _ in batch.chunks)
        last = len(rates.decode) - 1
        k = min(b, last)
        base = rates.decode[k] + (b - k) * (rates.decode[last] - rates.decode[last - 1])
        factor = reference_loop._joint(rates.joint, b, rows) if rows else 1.0
        slack = joint_seconds(rates.slack, b, rows)
        busiest, chunks = 0.0, 0
        for batch in batches:
            context, tokens = n * sum(batch.contexts), n * sum(c for c, _ in batch.chunks)
            attention = n * sum(
                rates.pair * (c * before + c * (c + 1) / 2) + rates.key * (before + c) for c, before in batch.chunks
            )
            chunks += n * len(batch.chunks)
            own = max(groups * attention - slack, 0.0) + factor * rates.context[k] * groups * context
            if groups > 1 and tokens:
                own += factor * reference_loop._added(rates.rank_rows, -(-b // groups), tokens)
            busiest = max(busiest, own)
        shared = reference_loop._added(rates.rows, b, rows) if rows else 0.0
        return (factor * (base + shared) + busiest + rates.chunk * chunks) / rules.stages

    return seconds


def joint_seconds(table, b, rows):
    """A table of seconds at powers of two, less one."""
    return float(table[0, 0]) if 1 in table.shape else reference_loop._joint(table, b, rows)


def step_by_step(traffic, policy, pace, *, replicas=1, cached=0, **more):
    """The signature of `replica_pools.serve`: its requests with the times of the reference."""
    served, rules, pool = loop_serve(traffic, policy, pace, replicas=replicas, cached=cached, **more)
    if served["preempted"].max(initial=0) or np.any(served["status"] != DONE):
        raise TightCacheError
    engines = [
        Engine(
            seconds_of(pace.rates, rules), seats=rules.rank_seats * rules.groups, budget=rules.budget, chunk=rules.reads,
            ranks=rules.groups, stages=rules.stages,
        )
        for _ in range(replicas)
    ]  # fmt: skip
    ready = traffic.arrival + pace.before + pace.before_token * traffic.inputs
    cached = np.broadcast_to(cached, len(traffic))
    requests = [
        reference.Request(float(t), int(i), int(o), int(c), made=int(c == i))
        for t, i, o, c in zip(ready, traffic.inputs, traffic.outputs, cached, strict=True)
    ]
    order = np.argsort(ready, kind="stable")
    router = reference.least_loaded if policy.route == "least-loaded" else reference.round_robin
    reference.serve([requests[i] for i in order], engines, router)
    served["finish"] = [r.finish for r in requests]
    prompts = cached < traffic.inputs
    served["first"][prompts] = np.array([r.first for r in requests])[prompts]
    assert np.all(np.isfinite(served["finish"]))
    return served, rules, pool


def compared_step_by_step(number, monkeypatch):
    """Return a plan's errors against the reference, or None where it is too large for plain Python."""
    asked = question(0, number)
    try:
        plan = asked.answer()
    except InputError:
        return None
    if not plan.feasible or plan.speculation.drafts:
        return None
    lifetime = plan.mean_ttft + plan.workload.output_tokens * plan.mean_tpot
    count = COUNTED + 12 * lifetime * plan.requests_per_second
    pools = [pool.layout for pool in plan.pools]
    if count * asked.workload.output_tokens > MOST_TOKENS or max(int(pool.replicas) for pool in pools) > MOST_REPLICAS:
        return None
    if max(int(pool.dp) for pool in pools) > MOST_RANKS or any(1 < pool.pp != pool.microbatches for pool in pools):
        return None
    monkeypatch.setattr(replica_pools, "serve", step_by_step)
    monkeypatch.setattr(simulator, "serve", step_by_step)
    try:
        return plan, plan_vs_simulation.compare(plan, requests=COUNTED, seed=number + 9000)
    except TightCacheError:
        return None
    finally:
        monkeypatch.undo()


@pytest.mark.slow
def test_plans_are_what_a_step_by_step_engine_finds(monkeypatch):
    """The first questions that plain Python can serve; the limits are those of the replays."""
    table, number = [], 0
    while len(table) < PLANS:
        row = compared_step_by_step(number, monkeypatch)
        if row is not None:
            plan, compared = row
            table.append(np.abs(off(compared)))
            print(number, plan.layout_text, [f"{x:+.1%}" for x in off(compared)], flush=True)
        number += 1
    assert np.all(np.median(table, axis=0) <= MEDIAN)
    assert np.all(np.quantile(table, 0.95, axis=0) <= MOST)
    assert np.all(np.max(table, axis=0) <= WORST)
