"""A plan under random arrivals: the batch and the rate at which its limits hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Protocol

from steptime.machines.system import System
from steptime.models.model import Model
from steptime.physics.engine import Engine
from steptime.physics.layout import Layout
from steptime.planning.workload import Slo, Workload
from steptime.results import Result, unit
from steptime.simulation.metrics import Answers
from steptime.simulation.outcome import Simulation
from steptime.simulation.policy import Policy
from steptime.simulation.rates import long_enough, meets
from steptime.simulation.run import simulate
from steptime.simulation.traffic import Lengths, open_loop

LOWER = 0.9  # of the batch, where percentiles do not hold
STEADY = 20.0  # lifetimes of a request over which others come, that a cost is judged by


class PoolLike(Protocol):
    """What a replay needs of a plan's pool."""

    @property
    def role(self) -> str:
        """What it does: serve, prefill or decode."""

    @property
    def layout(self) -> Layout:
        """The layout of a replica, and how many replicas."""

    @property
    def batch(self) -> int:
        """Sequences of a replica."""

    @property
    def chunk(self) -> int:
        """Prompt tokens of a mixed step."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Replay(Result):
    """A plan under random arrivals: the run that meets the limits at `quantile`, its batch and rate, and how many tries."""

    SCHEMA: ClassVar[str] = "steptime.replay/1"
    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {"answers": unit("", "the figures of the last run")}

    simulation: Simulation = field(metadata=unit("", "the last run", left_out=True))
    batch: int = field(metadata=unit("sequences", "at which the limits hold"))
    planned_batch: int = field(metadata=unit("sequences", "of the plan"))
    rate: float = field(metadata=unit("requests/s", "at which the limits hold", key="requests_per_s"))
    planned_rate: float = field(metadata=unit("requests/s", "of the plan", key="planned_requests_per_s"))
    quantile: str = field(metadata=unit("", "at which they hold: mean, p50, p90, p95 or p99"))
    good: bool = field(metadata=unit("", "whether they hold at last"))
    tried: int = field(metadata=unit("", "batches that were tried"))

    @property
    def answers(self) -> Answers:
        """The figures of the last run."""
        return self.simulation.answers

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return batch and rate against the planned ones, and the figures of the run."""
        _, figures = self.answers.headline()
        holds = "limits hold" if self.good else "limits do not hold"
        title = f"Replay: {holds} at {self.quantile} with batch {self.batch:,} of {self.planned_batch:,}"
        return title, {"rate": f"{self.rate:,.3g} of {self.planned_rate:,.3g} requests/s", **figures}


def replay(
    model: Model,
    system: System,
    workload: Workload,
    slo: Slo,
    pools: Sequence[PoolLike],
    rate: float,
    *,
    engine: Engine,
    quantile: str = "p90",
    requests: int = 4000,
    seed: int = 0,
    tries: int = 24,
) -> Replay:
    """Replay a plan's `pools` with Poisson arrivals at `rate` [requests/s], and lower batch and rate until the limits hold.

    A plan's rate fills its batch to the last seat, so that random arrivals queue without end; the rate is lowered together
    with the batch, to LOWER of the one before, until TTFT and TPOT are within the limits at `quantile`. A decode pool of its
    own keeps its batch: with fewer seats caches would wait for one, between the first token and the second.
    requests: the least.
    """
    server = pools[-1]
    prefill = pools[0].layout if len(pools) > 1 else None
    fresh = max(1, round(workload.input_tokens * (1 - workload.cached_share)))
    skipped = round(workload.input_tokens) - fresh
    traffic = partial(open_loop, inputs=Lengths(mean=fresh + skipped), outputs=Lengths(mean=workload.output_tokens), seed=seed)
    given: dict[str, Any] = {"layout": server.layout, "engine": engine, "slo": slo, "prefill": prefill, "cached": skipped}
    given["prefill_policy"] = None if prefill is None else _prefill_policy(pools[0], fresh)
    share, tried = 1.0, 0
    while True:
        tried += 1
        batch, now = server.batch if prefill is not None else max(1, math.floor(server.batch * share)), rate * share
        policy = _policy(server, batch, fresh, apart=prefill is not None)
        last = long_enough(partial(simulate, model, system, policy=policy, **given), traffic, now, requests, STEADY)
        good = meets(last.answers, slo, quantile)
        if good or batch == 1 or tried == tries:
            break
        share *= LOWER
    return Replay(
        simulation=last,
        batch=batch,
        planned_batch=server.batch,
        rate=now,
        planned_rate=rate,
        quantile=quantile,
        good=good,
        tried=tried,
    )


def _policy(server: PoolLike, batch: int, fresh: int, *, apart: bool) -> Policy:
    """Return the schedule of a plan's pool that decodes: seats for its batch, and for the prompts read beside it."""
    groups = int(server.layout.dp)
    return Policy(
        max_sequences=batch if apart else batch + groups * max(1, server.chunk // fresh),
        token_budget=math.ceil(batch / groups) + (2048 if apart else max(server.chunk, 1)),
    )


def _prefill_policy(pool: PoolLike, fresh: int) -> Policy:
    each = max(1, int(pool.batch) // int(pool.layout.dp))
    return Policy(max_sequences=max(1, int(pool.batch)), token_budget=each * fresh)
