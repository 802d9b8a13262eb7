"""Runs of a deployment under sessions: turns, their prefix cache in tiers, and the loop that serves them.

A plan for sessions is confirmed with these runs. Tiers may hold little more than the sessions in progress. Then lost histories
slow prefill, longer answers keep more sessions in progress, and these lose more histories. Means do not show whether that ends.

Every session stays with its replica. Replicas that prefill and decode are therefore independent, and one of them is served.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

import numpy as np

from steptime.hardware.system import System
from steptime.models.model import Model, cached_token_bytes
from steptime.physics.layout import Layout
from steptime.planning.session_hits import SessionCase, SessionRun
from steptime.planning.simulated_rate import Deployment, Loop, Run, busy_share, joined_traffic
from steptime.simulation.prefix_cache import ANSWER_SHARE, Cache, CacheUse, cache_with_capacities, use_cache
from steptime.simulation.replica_pools import serve
from steptime.simulation.session_cache import serve_turns
from steptime.simulation.simulator import pipeline_delay_seconds, user_visible_times
from steptime.workload.sessions import draw_sessions
from steptime.workload.traffic import Traffic
from steptime.workload.workload import Slo

# Turns of a first run and of one that confirms. The second must be long: the sessions in progress must also fit when there are
# many, and tiers that lost them do not recover. As many turns fill the prefix cache before. At most that many runs follow each
# other until arrivals agree with the answers before them.
FIRST_TURNS, TURNS = 6000, 30_000
MOST_RUNS: Final = 4
# Factor on the rate of the run that confirms it from above: the histories that a surge loses must not stay lost.
SURGE: Final = 1.1


def replica_cache(turns: SessionCase, model: Model, system: System, layout: Layout) -> Cache:
    """Return the prefix cache of a replica that prefills.

    Args:
        turns: Sessions, and capacities of their prefix cache.
        model: Model as it is served.
        system: System.
        layout: Layout of the replica.

    Returns:
        Tiers, fastest first; the memory of the chips has at most what turns in progress leave.
    """
    sizes = turns.capacities
    if sizes is None:
        sizes = {tier.name: float(tier.capacity) * int(layout.chips) for tier in system.tiers}
    largest = float(system.chip.capacity) * int(layout.chips)
    sizes = {name: min(size, largest) if name == system.chip.hbm.name else size for name, size in sizes.items()}
    return cache_with_capacities(model, system, layout, sizes, free_hbm=True)


class SessionLoop(Loop):
    """Runs of one deployment with turns of sessions at any rate; else as `Loop`.

    Args:
        deployment: What serves.
        rate: Expected rate of turns of the deployment [requests/s], which gives the length of a run.
        lifetime: Expected lifetime of a request [s].
        turns: Sessions, and capacities of their prefix cache.
        count: Turns of a run.
        settings: Further arguments of `Loop`.
    """

    above = SURGE
    # The cache of a replica has the histories of all its sequences.
    most_parts = 1

    def __init__(
        self, deployment: Deployment, rate: float, lifetime: float, turns: SessionCase, count: int, **settings: Any
    ) -> None:
        super().__init__(deployment, rate, lifetime, **settings)
        self.turns = turns
        self.whole_model = deployment.model
        first, last = deployment.pools[0].layout, deployment.pools[-1].layout
        # Separate pools keep their ratio.
        self.shares = int(first.replicas) if self.reader is None else math.gcd(int(first.replicas), int(last.replicas))
        self.server = self.whole_server._replace(replicas=int(last.replicas) // self.shares)
        if self.reader is not None:
            self.readers = int(first.replicas) // self.shares
            self.reader = self.reader._replace(replicas=self.readers)
        self.share, self.read_share = 1 / self.shares, 1 / self.shares
        self.cache = replica_cache(turns, deployment.model, deployment.system, first)
        self.count = count

    def run(
        self,
        rate: float,
        slo: Slo,
        percentile: str,
        tpot: float,
        ttft: float = 0.0,
        *,
        always_decode: bool = False,  # noqa: ARG002
        is_check: bool = False,  # noqa: ARG002
    ) -> Run:
        """Serve turns at a rate.

        Args:
            rate: Rate of the whole deployment [requests/s].
            slo: Limits.
            percentile: Percentile of the limits: "mean", "p50", "p90", "p95" or "p99".
            tpot: Expected time per output token [s], which gives the sequences at the start.
            ttft: Expected time to first token [s].
            always_decode: Has no effect: the next turn needs the answer.
            is_check: Has no effect either.

        Returns:
            The figures, with what the turns found in the prefix cache.
        """
        traffic = draw_sessions(
            self.turns.sessions, rate=rate * self.read_share, requests=self.count, longest=float(self.whole_model.max_context),
            seed=self.seed,
        )  # fmt: skip
        accepted, started = self.server.policy.acceptance_length, self.started(rate, tpot)
        pool = self.reader or self.server

        def once(came: Traffic) -> tuple[tuple[CacheUse, Any], Any, int]:
            use = use_cache(
                self.cache, came, pool.pace, bytes_per_token=cached_token_bytes(self.whole_model), replicas=pool.replicas,
                dealt=replica_of_sessions(came, pool.replicas), room=float(pool.policy.kv_tokens),
                answer_share=ANSWER_SHARE if self.reader is None else 0.0,
            )  # fmt: skip
            outcome = self._serve(came, use, started)
            late = pipeline_delay_seconds(outcome[0], pool)
            visible = user_visible_times(outcome[0], self.server.pace, late, accepted)
            return (use, outcome), visible, outcome[2][0][3]

        _, ((use, outcome), _) = serve_turns(traffic, once, ttft + traffic.turns.outputs * tpot, most_runs=MOST_RUNS)
        shares = {tier.name: tier.hit_share for tier in use.by_tier}
        requests, ends, queues, busy = outcome
        run = self._figures(requests, ends, queues, busy, rate, slo, percentile)
        return replace(run, session=SessionRun(shares, float(np.mean(use.load))))

    def _serve(self, came: Traffic, use: CacheUse, started: Traffic) -> tuple[Any, ...]:
        """Return the turns after all pools, ends of the requests of the start, queues, and shares of time at work."""
        if self.reader is not None:
            settings = {"load": use.load, "route": use.route}
            requests, queue, busy = self._prefill(came, use.cached, **settings)
            requests, ends, decoded, decode_busy = self._decode(requests, started)
            return requests, ends, [queue, decoded], (busy, decode_busy)
        served, rules, replicas = serve(
            joined_traffic(started, came), self.server.policy, self.server.pace,
            cached=np.concatenate([started.inputs, use.cached]), load=np.concatenate([np.zeros(len(started)), use.load]),
        )  # fmt: skip
        requests, ends = served[len(started) :], served["finish"][: len(started)]
        queue = ("serve", requests["arrival"], requests["scheduled"], rules.seats)
        return requests, ends, [queue], (busy_share(replicas),)


def replica_of_sessions(traffic: Traffic, replicas: int) -> Any:
    """Return the replica of each turn: that of its session.

    Args:
        traffic: Turns of sessions.
        replicas: Number of replicas.

    Returns:
        Replicas of the turns before the run, and of those of the run.
    """
    parts = (traffic,) if traffic.earlier is None else (traffic.earlier, traffic)
    return traffic.turns.session[np.concatenate([part.turn for part in parts])] % replicas
