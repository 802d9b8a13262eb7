"""A plan under random arrivals: the rate at which its limits hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from steptime.catalog.hardware_loading import SystemLike
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.models.model_loading import ModelLike
from steptime.physics.engine import Engine
from steptime.planning.plan_result import Plan
from steptime.planning.speculative_config import NONE, Speculation
from steptime.planning.workload import Slo, Workload
from steptime.result_base import Result, unit
from steptime.simulation.max_rate import meets, run_until_settled
from steptime.simulation.plan_as_traffic import (
    PoolLike,
    decode_policy,
    load_plan_inputs,
    prefill_policy,
    workload_prompts,
    workload_traffic,
)
from steptime.simulation.plan_vs_simulation import Compared, compare
from steptime.simulation.run_metrics import Answers
from steptime.simulation.simulation_result import Simulation
from steptime.simulation.simulator import simulate
from steptime.simulation.slo_check import Judged, at_percentile, judge
from steptime.units import in_digits

__all__ = ["Compared", "Replay", "compare", "replay", "replay_pools"]

LOWER = 0.9  # of the rate, where the limits do not hold
STEADY = 20.0  # lifetimes of a request over which others come, that a cost is judged by


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Replay(Result):
    """A plan under random arrivals: the run that meets the limits at `percentile`, its seats and rate, and how many tries."""

    SCHEMA: ClassVar[str] = "steptime.replay/2"
    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "reason": unit("", "why the limits do not hold; empty where they do"),
        "limits": unit("", "the last run against the limits"),
        "answers": unit("", "the figures of the last run"),
    }

    simulation: Simulation = field(metadata=unit("", "the last run", left_out=True))
    slo: Slo = field(default=Slo(), metadata=unit("", "the limits", left_out=True))
    batch: int = field(metadata=unit("sequences", "that a replica has seats for"))
    planned_batch: float = field(metadata=unit("sequences", "of the plan"))
    rate: float = field(metadata=unit("requests/s", "at which the limits hold", key="requests_per_s"))
    planned_rate: float = field(metadata=unit("requests/s", "of the plan", key="planned_requests_per_s"))
    percentile: str = field(metadata=unit("", "at which they hold: mean, p50, p90, p95 or p99"))
    good: bool = field(metadata=unit("", "whether they hold at last"))
    attempts: int = field(metadata=unit("", "rates that were tried"))

    @property
    def answers(self) -> Answers:
        """The figures of the last run."""
        return self.simulation.answers

    @property
    def limits(self) -> Judged:
        """The last run against the limits."""
        return judge(self.answers, self.slo, self.percentile)

    @property
    def reason(self) -> str:
        """Why the limits do not hold; empty where they do."""
        if self.good:
            return ""
        share = f"{self.rate / self.planned_rate:.0%} of the plan's {in_digits(self.planned_rate, 4)}"
        lowest = f"{in_digits(self.rate, 4)} requests/s ({share})"
        why = self.limits.why if not self.limits.is_met else "the run is too short to tell"
        return f"with random arrivals the limits do not hold {at_percentile(self.percentile)}, down to {lowest}: {why}"

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return batch and rate against the planned ones, and the figures of the run."""
        _, figures = self.answers.headline()
        holds = "limits hold" if self.good else "limits do not hold"
        rate = f"{in_digits(self.rate)} of {in_digits(self.planned_rate)} requests/s"
        return f"Replay: {holds} {at_percentile(self.percentile)} with {rate}", figures


def replay(
    plan: Plan,
    model: ModelLike | None = None,
    system: SystemLike | None = None,
    engine: Engine | str | None = None,
    *,
    percentile: str = "p90",
    requests: int = 4000,
    seed: int = 0,
) -> Replay:
    """Replay a plan with random arrivals, and lower its rate until its limits hold at `percentile`: `plan --simulate`.

    A plan holds the names of its model, system and engine; what was loaded from a file, stored in other formats or varied must
    be given again, and InputError says so. requests: the least.
    """
    things = load_plan_inputs(plan, model, system, engine)
    return replay_pools(
        *things[:2], plan.workload, plan.slo, plan.pools, plan.requests_per_second,
        engine=things[2], percentile=percentile, requests=requests, seed=seed, speculation=plan.speculation,
    )  # fmt: skip


def replay_pools(
    model: Model,
    system: System,
    workload: Workload,
    slo: Slo,
    pools: Sequence[PoolLike],
    rate: float,
    *,
    engine: Engine,
    percentile: str = "p90",
    requests: int = 4000,
    seed: int = 0,
    tries: int = 24,
    speculation: Speculation = NONE,
) -> Replay:
    """Replay a plan's `pools` with Poisson arrivals at `rate` [requests/s], and lower the rate until the limits hold.

    A plan keeps its limits in the mean; the rate is lowered, to LOWER of the one before, until TTFT and TPOT are within them at
    `percentile`. The seats stay those of the plan, as its launch commands have them. requests: the least.
    """
    server = pools[-1]
    prefill = pools[0].layout if len(pools) > 1 else None
    prompts = workload_prompts(workload)
    settings: dict[str, Any] = {
        "layout": server.layout,
        "engine": engine,
        "slo": slo,
        "percentile": percentile,
        "prefill": prefill,
    }
    settings |= {
        "cached": prompts.skipped,
        "prefill_policy": None if prefill is None else prefill_policy(pools[0], prompts.fresh, speculation),
    }
    settings["policy"] = decode_policy(server, prompts.fresh, has_prefill_pool=prefill is not None, speculation=speculation)
    traffic, run = partial(workload_traffic, workload, seed=seed), partial(simulate, model, system, **settings)
    now, attempts, good = rate, 0, False
    while not good and attempts < tries:
        now, attempts = rate * LOWER**attempts, attempts + 1
        last = run_until_settled(run, traffic, now, requests, STEADY)
        good = meets(last.answers, slo, percentile)
    return Replay(
        simulation=last,
        slo=slo,
        batch=server.max_num_seqs,
        planned_batch=server.batch,
        rate=now,
        planned_rate=rate,
        percentile=percentile,
        good=good,
        attempts=attempts,
    )
