"""A plan as data: the pools of replicas that serve a workload, what they deliver, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from steptime.hardware.energy import electricity_per_million, joules_per_token
from steptime.hardware.rental_prices import has_rent, kind_in_words
from steptime.hardware.system import Power, Rent
from steptime.physics.bias_correction import Anchor
from steptime.physics.chip_memory import Memory
from steptime.physics.layout import Layout, show_layout
from steptime.physics.step import Step
from steptime.picture_files import save_picture
from steptime.planning.launch_facts import Served
from steptime.planning.slo_probability import likelihood
from steptime.planning.speculative_config import NONE, Speculation
from steptime.planning.workload import Slo, Workload
from steptime.result_base import Result, Tabular, columns_by_key, unit
from steptime.svg import curve
from steptime.units import in_digits, show

PER_USER, PER_CHIP = "tokens_per_s_per_user", "tokens_per_s_per_chip"
COST, WHOLE_COST = "usd_per_million_output_tokens", "whole rent over output tokens, prompts included, per million"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Pool(Result):
    """Replicas that do one job: "serve" (both), "prefill" or "decode".

    `batch`: sequences of a replica in decode, prompts of a pass in prefill. `step` is the decode step, or the prefill pass;
    `mixed` a step with a prompt chunk, which is a `chunk_share` of all. `tokens_per_second`: what all replicas process.
    """

    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {"chips": unit("", "chips of all replicas")}

    role: str = field(metadata=unit("", "serve, prefill or decode"))
    layout: Layout = field(metadata=unit("", "how a replica is laid over chips, and how many there are"))
    batch: float = field(metadata=unit("sequences", "of a replica in decode; prompts of a pass in prefill"))
    chunk: int = field(default=0, metadata=unit("tokens", "prompt tokens that a group reads in a step beside its decode batch"))
    chunk_share: float = field(default=0.0, metadata=unit("", "share of steps with a prompt chunk"))
    chunks_per_mixed_step: float = field(
        default=0.0, metadata=unit("", "chunks that such a step has in the mean, over all groups")
    )
    max_num_seqs: int = field(metadata=unit("sequences", "that a replica has room for, above the mean in flight"))
    queued: bool = field(default=False, metadata=unit("", "whether requests wait for one of those seats"))
    step: Step = field(metadata=unit("", "the decode step, or the prefill pass"))
    mixed: Step | None = field(default=None, metadata=unit("", "a step with a prompt chunk"))
    memory: Memory = field(metadata=unit("", "of a chip"))
    tokens_per_second: float = field(metadata=unit("tok/s", "what all replicas process"))

    @property
    def chips(self) -> int:
        """Chips of all replicas."""
        return int(self.layout.chips * self.layout.replicas)

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return its job, layout, batch and step."""
        chunk = f", chunks of {self.chunk:,} tokens" if self.chunk else ""
        return f"Pool ({self.role}) of {self.chips:,} chips: {show_layout(self.layout)}, batch {self.batch:,}{chunk}", {
            "step": show(float(self.step.total), "s"),
            "rate": show(self.tokens_per_second, "tok/s"),
            "memory of a chip": f"{show(float(self.memory.used), 'B')} of {show(float(self.memory.capacity), 'B')}",
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Point(Result):
    """One layout in the plane of speed and throughput. Speeds in tok/s, cost with the whole rent on output tokens."""

    mode: str = field(metadata=unit("", "aggregated or disaggregated"))
    layout_text: str = field(metadata=unit("", "layout of each pool in words", key="layout"))
    batch: float = field(metadata=unit("sequences", "of a replica in decode"))
    tokens_per_second_per_user: float = field(metadata=unit("tok/s", "output tokens that each user sees", key=PER_USER))
    tokens_per_second_per_chip: float = field(metadata=unit("tok/s", "output tokens over all chips", key=PER_CHIP))
    usd_per_million_output_tokens: float = field(metadata=unit("USD", WHOLE_COST, key=COST))
    ttft: float = field(metadata=unit("s", "mean time to first token"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return its layout, speed, output and cost."""
        return f"Point: {self.layout_text}, batch {self.batch:,}", {
            "speed": f"{show(self.tokens_per_second_per_user, 'tok/s')} a user",
            "output": f"{show(self.tokens_per_second_per_chip, 'tok/s')} a chip",
            "cost": f"{show(self.usd_per_million_output_tokens, 'USD')} per million output tokens"
            if math.isfinite(self.usd_per_million_output_tokens)
            else "no rent known",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A choice other than the plan's, and what it would come to, estimated on layouts near the chosen one."""

    option: str = field(metadata=unit("", "what to type for it; empty: a plan has no such option"))
    words: str = field(metadata=unit("", "what it is"))
    caveat: str = field(default="", metadata=unit("", "what it hangs on"))
    saving: float = field(metadata=unit("", "share by which a token costs less; negative: it costs more"))
    usd_per_million_output_tokens: float = field(metadata=unit("USD", WHOLE_COST, key=COST))
    tokens_per_second_per_chip: float = field(metadata=unit("tok/s", "output tokens over all chips", key=PER_CHIP))
    layout_text: str = field(metadata=unit("", "layout of each pool in words", key="layout"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """What drafts do at one batch of the plan's decode layout, in steps that read no prompts."""

    batch: float = field(metadata=unit("sequences", "of a replica"))
    tpot_without: float = field(metadata=unit("s", "time per output token without drafts"))
    tpot: float = field(metadata=unit("s", "the same with them"))
    rate_without: float = field(metadata=unit("tok/s", "output tokens of a chip without drafts", key=f"{PER_CHIP}_without"))
    rate: float = field(metadata=unit("tok/s", "the same with them", key=PER_CHIP))
    speed_up: float = field(metadata=unit("", "the former time over the latter; below 1: drafts cost more than they bring"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Plan(Tabular):
    """How to serve a workload: the cheapest layout within the limits, its times and costs, and why it is not cheaper.

    Times in seconds, money in USD. Three costs: `usd_per_million_output_tokens` puts the whole rent on output tokens, prompts
    included; `prefill_usd_per_million_tokens` and `decode_usd_per_million_tokens` divide the rent by the chip-time that
    prompts and outputs take. `tpot_bounds` and `cost_bounds` reach from everything overlapped to nothing overlapped.

    `tpot_range`, `ttft_range` [s] and `cost_range` [USD per million output tokens] are the engine's 90 % ranges at the same
    layout, batch and use of the prompt queue; the ideal engine has none. `ideal`: the same layout and batch, nothing lost.
    As a table it is its `front`.
    """

    SCHEMA: ClassVar[str] = "steptime.plan/2"
    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "slo_probability": unit("", "probability that the plan meets each limit: tpot, ttft"),
        "idle_chips": unit("", "chips that are rented and in no pool"),
        "tokens_per_second_per_user": unit("tok/s", "output tokens that each user sees", key=PER_USER),
        "speed_range": unit("tok/s", "90 % range of it", key=f"{PER_USER}_range"),
        "tokens_per_second_per_chip": unit("tok/s", "output tokens over all chips, idle ones among them", key=PER_CHIP),
        "joules_per_output_token": unit("J", "power of all chips over output tokens", key="joules_per_output_token"),
        "electricity_usd_per_million_output_tokens": unit(
            "USD", "of that energy; a rent may pay for it already", key="electricity_usd_per_million_output_tokens"
        ),
    }

    feasible: bool = field(metadata=unit("", "whether anything meets the limits"))
    reason: str = field(default="", metadata=unit("", "why nothing does"))
    model: str = field(metadata=unit("", "name of the model"))
    system: str = field(metadata=unit("", "name of the system"))
    engine: str = field(metadata=unit("", "name of the engine"))
    workload: Workload = field(metadata=unit("", "what is asked"))
    slo: Slo = field(metadata=unit("", "the limits"))
    chips: int = field(metadata=unit("", "chips that are rented"))
    mode: str = field(default="", metadata=unit("", "aggregated or disaggregated"))
    layout_text: str = field(default="", metadata=unit("", "layout of each pool in words", key="layout"))
    pools: tuple[Pool, ...] = field(default=(), metadata=unit("", "replicas by job, the one that decodes last"))
    tpot: float = field(default=math.nan, metadata=unit("s", "time per output token"))
    tpot_bounds: tuple[float, float] = field(
        default=(math.nan, math.nan), metadata=unit("s", "everything overlapped, nothing overlapped")
    )
    tpot_range: tuple[float, float] | None = field(default=None, metadata=unit("s", "90 % range; null for the ideal engine"))
    ttft: float = field(default=math.nan, metadata=unit("s", "mean time to first token"))
    ttft_range: tuple[float, float] | None = field(default=None, metadata=unit("s", "90 % range"))
    utilisation: float = field(default=math.nan, metadata=unit("", "share of its capacity that the prompt queue uses"))
    requests_per_second: float = field(default=math.nan, metadata=unit("requests/s", "served by all chips"))
    concurrency: float = field(default=math.nan, metadata=unit("requests", "in flight in the whole deployment"))
    usd_per_second: float = field(default=math.nan, metadata=unit("USD/s", "rent of all chips", key="rent_usd_per_s"))
    rent: Rent = field(default=Rent(), metadata=unit("", "of a chip: its kind, term, date and grade, and where it stands"))
    power: Power = field(default=Power(), metadata=unit("", "of a chip, and what it counts in"))
    electricity: float = field(default=math.nan, metadata=unit("USD/J", "price of electricity; null: none was given"))
    usd_per_million_output_tokens: float = field(default=math.nan, metadata=unit("USD", WHOLE_COST, key=COST))
    cost_bounds: tuple[float, float] = field(
        default=(math.nan, math.nan), metadata=unit("USD", "everything overlapped, nothing overlapped", key=f"{COST}_bounds")
    )
    cost_range: tuple[float, float] | None = field(default=None, metadata=unit("USD", "90 % range", key=f"{COST}_range"))
    throughput_range: tuple[float, float] | None = field(
        default=None, metadata=unit("tok/s", "90 % range of output tokens over all chips", key=f"{PER_CHIP}_range")
    )
    prefill_usd_per_million_tokens: float = field(
        default=math.nan,
        metadata=unit(
            "USD", "rent of the chip-time that prompts take, per million of them", key="prefill_usd_per_million_tokens"
        ),
    )
    decode_usd_per_million_tokens: float = field(
        default=math.nan,
        metadata=unit(
            "USD", "rent of the chip-time that outputs take, per million of them", key="decode_usd_per_million_tokens"
        ),
    )
    usd_per_request: float = field(default=math.nan, metadata=unit("USD", "whole rent of a request", key="usd_per_request"))
    binding: tuple[str, ...] = field(default=(), metadata=unit("", "what stops the batch from growing"))
    elasticities: dict[str, float] = field(
        default_factory=dict, metadata=unit("", "d log(cost) / d log(figure): hbm_bandwidth, arithmetic, kv_bytes, rent, ...")
    )
    alternatives: tuple[Alternative, ...] = field(
        default=(), metadata=unit("", "other formats, chips, pools and drafts, what saves most first")
    )
    ideal: Point | None = field(default=None, metadata=unit("", "the same layout and batch, were nothing lost"))
    anchor: Anchor | None = field(default=None, metadata=unit("", "one's own runs that it rests on; null: none"))
    unanchored: Point | None = field(default=None, metadata=unit("", "the same layout and batch without them"))
    runner_up: Point | None = field(default=None, metadata=unit("", "the next layout by cost"))
    front: tuple[Point, ...] = field(default=(), metadata=unit("", "what no other layout beats in both, fastest first"))
    transfer_seconds: float = field(
        default=0.0, metadata=unit("s", "a request's KV cache on its way between pools", key="transfer_s")
    )
    evaluated: int = field(default=0, metadata=unit("", "layouts, batches and chunks that were tried"))
    search_seconds: float = field(default=0.0, metadata=unit("s", "time of the search", key="search_s"))
    warnings: tuple[str, ...] = field(default=(), metadata=unit("", "what to mind"))
    sure: float | None = field(
        default=None, metadata=unit("", "probability with which each limit was to be met; null: in the mean")
    )
    distance: tuple[str, ...] = field(default=(), metadata=unit("", "in which ways it is unlike what was measured"))
    interval_coverage: tuple[str, ...] = field(
        default=(), metadata=unit("", "how many measured times per token lay in their range, of runs of its kind")
    )
    why: str = field(default="", metadata=unit("", "why it is not cheaper, and what would help"))
    speculation: Speculation = field(default=NONE, metadata=unit("", "tokens drafted and accepted in a step"))
    drafted: tuple[Drafted, ...] = field(
        default=(), metadata=unit("", "what drafts do at each batch; empty without them", key="drafted_by_batch")
    )
    served: Served = field(default_factory=Served, metadata=unit("", "checkpoint, formats and hosts, for launch commands"))

    @property
    def slo_probability(self) -> dict[str, float]:
        """How likely the plan meets each of its limits, by name: tpot, ttft; only those that there are."""
        figures = {"tpot": (self.tpot, self.tpot_range), "ttft": (self.ttft, self.ttft_range)}
        limits = {name: float(getattr(self.slo, name)) for name in figures}
        return {
            name: likelihood(*figures[name], limit) for name, limit in limits.items() if math.isfinite(limit) and self.feasible
        }

    @property
    def idle_chips(self) -> int:
        """Chips that are rented and in no pool; all of them where nothing meets the limits."""
        return self.chips - sum(pool.chips for pool in self.pools)

    @property
    def tokens_per_second_per_user(self) -> float:
        """Output tokens per second that each user sees."""
        return 1 / self.tpot

    @property
    def tokens_per_second_per_chip(self) -> float:
        """Output tokens per second over all chips, idle ones among them."""
        return float(self.requests_per_second * self.workload.output_tokens / self.chips)

    @property
    def joules_per_output_token(self) -> float:
        """Joules per output token: what all chips draw over the output of all, prompts included."""
        output = self.requests_per_second * self.workload.output_tokens
        return float(joules_per_token(self.chips, self.power.watts, output))

    @property
    def electricity_usd_per_million_output_tokens(self) -> float:
        """USD of electricity per million output tokens, at the price that was given."""
        return float(electricity_per_million(self.joules_per_output_token, self.electricity))

    @property
    def speed_range(self) -> tuple[float, float] | None:
        """The 90 % range of output tokens per second that each user sees."""
        return self.tpot_range and (1 / self.tpot_range[1], 1 / self.tpot_range[0])

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return what serves what, its times and its cost, or why nothing does."""
        title = f"Plan: {self.model} on {self.chips:,} chip{'s' * (self.chips > 1)} of {self.system}, engine {self.engine}"
        if not self.feasible:
            return title, {"not possible": self.reason[:200]}
        return title, {
            "layout": f"{self.layout_text}, batch {self.pools[-1].batch:,}",
            "TPOT": _ranged(self.tpot, self.tpot_range, "s"),
            "TTFT": _ranged(self.ttft, self.ttft_range, "s"),
            "cost": _ranged(self.usd_per_million_output_tokens, self.cost_range, "USD") + " per million output tokens"
            if math.isfinite(self.usd_per_million_output_tokens)
            else "no rent known",
            **({"rent": f"{show(self.usd_per_second, 'USD/s')}, {kind_in_words(self.rent)}"} if has_rent(self.rent) else {}),
            "output": f"{in_digits(self.requests_per_second)} requests/s, "
            + f"{show(self.tokens_per_second_per_chip, 'tok/s')} a chip"
            + (f", {show(self.joules_per_output_token, 'J')} a token" if math.isfinite(self.joules_per_output_token) else ""),
        }

    def drawing(self) -> str:
        """Return the front of speed and cost with the plan on it, and the memory of a chip that decodes."""
        if not self.feasible:
            return ""
        speeds = [point.tokens_per_second_per_user for point in self.front]
        costs = [point.usd_per_million_output_tokens for point in self.front]
        chosen_point = (self.tokens_per_second_per_user, self.usd_per_million_output_tokens)
        picture = curve(speeds, costs, x_words="tok/s of a user", y_words="USD per million output tokens", point=chosen_point)
        return picture + self.pools[-1].memory.drawing()

    def plot(self, path: str) -> None:
        """Write the Pareto front as a picture.

        Args:
            path: File to write, in the format of its ending: .svg, .png or .pdf.
        """
        from steptime.planning.pareto_plot import draw_pareto_front

        save_picture(path, lambda: draw_pareto_front(self))

    def columns(self) -> dict[str, Any]:
        """Return the front, fastest first."""
        return columns_by_key(Point, self.front)


def _ranged(value: float, limits: tuple[float, float] | None, unit: str) -> str:
    return show(value, unit) + (f" (90 % {show(limits[0], unit)} to {show(limits[1], unit)})" if limits else "")


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
    runner_up = plan_.runner_up
    if runner_up is None:
        return math.nan
    if math.isfinite(plan_.usd_per_million_output_tokens):
        return runner_up.usd_per_million_output_tokens / plan_.usd_per_million_output_tokens - 1
    return plan_.tokens_per_second_per_chip / runner_up.tokens_per_second_per_chip - 1


def best_change(plan_: Plan) -> tuple[str, float] | None:
    """Return the figure whose improvement by 10 % lowers cost most, and by what share; rent, which is money itself, aside."""
    gains = {
        name: 1 - (1 / 1.1 if name == "kv_bytes" else 1.1) ** value
        for name, value in plan_.elasticities.items()
        if name != "rent"
    }
    name = max(gains, key=lambda key: gains[key], default=None)
    return (name, gains[name]) if name is not None and gains[name] > 5e-4 else None
