"""A plan as data: the pools of replicas that serve a workload, what they deliver, and how sure that is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from steptime.physics.layout import Layout
from steptime.physics.memory import Memory
from steptime.physics.step import Step
from steptime.planning.workload import Slo, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Replicas that do one job: "serve" (both), "prefill" or "decode".

    `batch`: sequences of a replica in decode, prompts of a pass in prefill. `step` is the decode step, or the prefill pass;
    `mixed` a step with a prompt chunk, which is a `chunk_share` of all. `tokens_per_second`: what all replicas process.
    """

    role: str
    layout: Layout
    batch: int
    chunk: int = 0
    chunk_share: float = 0.0
    step: Step
    mixed: Step | None = None
    memory: Memory
    tokens_per_second: float

    @property
    def chips(self) -> int:
        """Chips of all replicas."""
        return int(self.layout.chips * self.layout.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One layout in the plane of speed and throughput. Speeds in tok/s, cost with the whole rent on output tokens."""

    mode: str
    layout_text: str
    batch: int
    tokens_per_second_per_user: float
    tokens_per_second_per_chip: float
    usd_per_million_output_tokens: float
    ttft: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How to serve a workload: the cheapest layout within the limits, its times and costs, and why it is not cheaper.

    Times in seconds, money in USD. `usd_per_million_output_tokens` carries the whole rent; `usd_per_million_input` and
    `usd_per_million_output` divide it by the chip-time that prefill and decode take. `interval` and
    `tpot_interval` are bounds: from everything overlapped to nothing overlapped.

    `tpot_range`, `ttft_range` [s] and `cost_range` [USD per million output tokens] are the engine's 90 % ranges at the same
    layout, batch and use of the prompt queue; the ideal engine has none. `ideal`: the same layout and batch, nothing lost.
    """

    DERIVED: ClassVar[tuple[str, ...]] = (
        "tokens_per_second_per_user",
        "tokens_per_second_per_chip",
        "speed_range",
        "throughput_range",
    )

    feasible: bool
    reason: str = ""
    model: str
    system: str
    engine: str
    workload: Workload
    slo: Slo
    chips: int
    mode: str = ""
    layout_text: str = ""
    pools: tuple[Pool, ...] = ()
    tpot: float = math.nan
    tpot_interval: tuple[float, float] = (math.nan, math.nan)
    tpot_range: tuple[float, float] | None = None
    ttft: float = math.nan
    ttft_range: tuple[float, float] | None = None
    utilisation: float = math.nan
    requests_per_second: float = math.nan
    concurrency: float = math.nan
    usd_per_second: float = math.nan
    usd_per_million_output_tokens: float = math.nan
    interval: tuple[float, float] = (math.nan, math.nan)
    cost_range: tuple[float, float] | None = None
    usd_per_million_input: float = math.nan
    usd_per_million_output: float = math.nan
    usd_per_request: float = math.nan
    binding: tuple[str, ...] = ()
    elasticities: dict[str, float] = field(default_factory=dict)
    ideal: Point | None = None
    runner_up: Point | None = None
    front: tuple[Point, ...] = ()
    transfer_seconds: float = 0.0
    evaluated: int = 0
    search_seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    why: str = ""

    @property
    def tokens_per_second_per_user(self) -> float:
        """Output tokens per second that each user sees."""
        return 1 / self.tpot

    @property
    def tokens_per_second_per_chip(self) -> float:
        """Output tokens per second over all chips, idle ones among them."""
        return float(self.requests_per_second * self.workload.output_tokens / self.chips)

    @property
    def speed_range(self) -> tuple[float, float] | None:
        """The 90 % range of output tokens per second that each user sees."""
        return self.tpot_range and (1 / self.tpot_range[1], 1 / self.tpot_range[0])

    @property
    def throughput_range(self) -> tuple[float, float] | None:
        """The 90 % range of output tokens per second over all chips: the same rent buys more or fewer of them."""
        if self.cost_range is None:
            return None
        low, high = (self.usd_per_million_output_tokens / cost for cost in self.cost_range[::-1])
        return self.tokens_per_second_per_chip * low, self.tokens_per_second_per_chip * high


def mean_resources(pool: Pool) -> dict[str, float]:
    """Return the seconds of a pool's mean step by resource: steps with and without a prompt chunk, as often as they come."""
    return _mean(pool, "resources")


def mean_terms(pool: Pool) -> dict[str, float]:
    """Return the seconds of a pool's mean step by term."""
    return _mean(pool, "terms")


def _mean(pool: Pool, name: str) -> dict[str, float]:
    plain, mixed = getattr(pool.step, name), getattr(pool.mixed or pool.step, name)
    share = pool.chunk_share
    keys = dict.fromkeys((*plain, *mixed))
    return {key: float((1 - share) * plain.get(key, 0.0) + share * mixed.get(key, 0.0)) for key in keys}


def cost_changes(plan_: Plan) -> dict[str, float]:
    """Return by what share the cost changes for 10 % more of each figure."""
    return {name: 1.1**value - 1 for name, value in plan_.elasticities.items()}


def chosen_point(plan_: Plan) -> Point:
    """Return the plan itself as a point of the plane of speed and throughput."""
    return Point(
        mode=plan_.mode,
        layout_text=plan_.layout_text,
        batch=plan_.pools[-1].batch,
        tokens_per_second_per_user=plan_.tokens_per_second_per_user,
        tokens_per_second_per_chip=plan_.tokens_per_second_per_chip,
        usd_per_million_output_tokens=plan_.usd_per_million_output_tokens,
        ttft=plan_.ttft,
    )


def runner_up_dearer(plan_: Plan) -> float:
    """Return by what share a token of the runner-up costs more; of output for each chip where no rent is known."""
    other = plan_.runner_up
    if other is None:
        return math.nan
    if math.isfinite(plan_.usd_per_million_output_tokens):
        return other.usd_per_million_output_tokens / plan_.usd_per_million_output_tokens - 1
    return plan_.tokens_per_second_per_chip / other.tokens_per_second_per_chip - 1


def best_change(plan_: Plan) -> tuple[str, float] | None:
    """Return the figure whose improvement by 10 % lowers cost most, and by what share; rent, which is money itself, aside."""
    worth = {
        name: 1 - (1 / 1.1 if name == "KV bytes" else 1.1) ** value
        for name, value in plan_.elasticities.items()
        if name != "rent"
    }
    name = max(worth, key=lambda key: worth[key], default=None)
    return (name, worth[name]) if name is not None and worth[name] > 5e-4 else None
