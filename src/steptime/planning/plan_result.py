"""A plan as data: the pools that serve a workload, their performance and ranges."""

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
from steptime.physics.uncertainty import SEPARATE_POOLS
from steptime.picture_files import save_picture
from steptime.planning.fleet import Fleet
from steptime.planning.launch_facts import Served
from steptime.planning.session_hits import SessionCache, SessionRun
from steptime.planning.slo_probability import likelihood
from steptime.result_base import Result, Tabular, columns_by_key, unit
from steptime.svg import curve
from steptime.units import counted, in_digits, show
from steptime.workload.sessions import Sessions
from steptime.workload.workload import NONE, Slo, Speculation, Workload

PER_USER, PER_CHIP = "tokens_per_s_per_user", "tokens_per_s_per_chip"
COST, WHOLE_COST = "usd_per_million_output_tokens", "whole rent per million output tokens, including the rent for prefill"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Pool(Result):
    """Replicas that do one job: "serve" (prefill and decode), "prefill" or "decode".

    `batch` counts sequences per replica in decode, and prompts per pass in prefill. `step` is the decode step
    or the prefill pass. `mixed` is a step with a prefill chunk; its share of all steps is `chunk_share`.
    """

    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {"chips": unit("", "chips of all replicas")}

    role: str = field(metadata=unit("", "serve, prefill or decode"))
    layout: Layout = field(metadata=unit("", "layout of a replica, and number of replicas"))
    batch: float = field(metadata=unit("sequences", "sequences per replica in decode; prompts per pass in prefill"))
    chunk: int = field(default=0, metadata=unit("tokens", "prompt tokens per data-parallel rank in a mixed step"))
    chunk_share: float = field(default=0.0, metadata=unit("", "share of steps with a prefill chunk"))
    chunks_per_mixed_step: float = field(
        default=0.0, metadata=unit("", "mean number of chunks in such a step, over all data-parallel ranks")
    )
    max_num_seqs: int = field(metadata=unit("sequences", "slots per replica, more than the mean in flight"))
    kv_tokens_per_rank: float = field(
        default=math.inf,
        metadata=unit("tokens", "room of the KV cache of a data-parallel rank; null: not known", key="kv_tokens_per_rank"),
    )
    queued: bool = field(default=False, metadata=unit("", "whether requests wait for a slot"))
    step: Step = field(metadata=unit("", "the decode step, or the prefill pass"))
    mixed: Step | None = field(default=None, metadata=unit("", "a step with a prefill chunk"))
    memory: Memory = field(metadata=unit("", "memory per chip with all slots taken at the mean context, or full"))
    tokens_per_second: float = field(metadata=unit("tok/s", "tokens that all replicas process"))

    @property
    def chips(self) -> int:
        """Chips of all replicas."""
        return int(self.layout.chips * self.layout.replicas)

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return a title and the main figures of the pool.

        Returns:
            Title with role, layout and batch; figures by label.
        """
        chunk = f", chunks of {self.chunk:,} tokens" if self.chunk else ""
        return f"Pool ({self.role}) of {self.chips:,} chips: {show_layout(self.layout)}, batch {self.batch:,}{chunk}", {
            "step": show(float(self.step.total), "s"),
            "rate": show(self.tokens_per_second, "tok/s"),
            "memory per chip": f"{show(float(self.memory.used), 'B')} of {show(float(self.memory.capacity), 'B')}",
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Point(Result):
    """One layout in the plane of speed and throughput.

    Speeds are in tok/s. The cost divides the whole rent by the output tokens.
    """

    mode: str = field(metadata=unit("", "aggregated or disaggregated"))
    layout_text: str = field(metadata=unit("", "layout of each pool in words", key="layout"))
    batch: float = field(metadata=unit("sequences", "sequences per replica in decode"))
    tokens_per_second_per_user: float = field(metadata=unit("tok/s", "output tokens per second of each user", key=PER_USER))
    tokens_per_second_per_chip: float = field(metadata=unit("tok/s", "output over all chips", key=PER_CHIP))
    usd_per_million_output_tokens: float = field(metadata=unit("USD", WHOLE_COST, key=COST))
    ttft: float = field(metadata=unit("s", "time to first token, at the percentile of the plan"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return a title and the main figures of the point.

        Returns:
            Title with layout and batch; figures by label.
        """
        return f"Point: {self.layout_text}, batch {self.batch:,}", {
            "speed": f"{show(self.tokens_per_second_per_user, 'tok/s')} per user",
            "output": f"{show(self.tokens_per_second_per_chip, 'tok/s')} per chip",
            "cost": f"{show(self.usd_per_million_output_tokens, 'USD')} per million output tokens"
            if math.isfinite(self.usd_per_million_output_tokens)
            else "no rent known",
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PlanEnergy(Result):
    """Power of a deployment at the load of its plan, and energy, electricity and carbon per output token."""

    chip_watts: float = field(
        metadata=unit("W", "mean power of a chip at this load, without host, network and cooling", key="chip_power_w")
    )
    total_watts: float = field(metadata=unit("W", "power of all chips with the power around them", key="total_power_w"))
    joules: float = field(metadata=unit("J", "energy of all chips per output token", key="joules_per_output_token"))
    joules_range: tuple[float, float] | None = field(
        default=None,
        metadata=unit(
            "J",
            "90 % range: throughput and coefficients of power; null for the ideal engine",
            key="joules_per_output_token_range",
        ),
    )
    tokens_per_second_per_megawatt: float = field(
        metadata=unit("tok/s", "output tokens per second of a megawatt", key="tokens_per_s_per_megawatt")
    )
    rent_per_megawatt_hour: float = field(
        metadata=unit("USD", "rent of a megawatt of chips per hour; null: not known", key="rent_usd_per_megawatt_hour")
    )
    electricity_usd: float = field(
        default=math.nan,
        metadata=unit(
            "USD", "electricity per million output tokens; null: no price", key="electricity_usd_per_million_output_tokens"
        ),
    )
    carbon_grams: float = field(
        default=math.nan,
        metadata=unit("g", "CO2 per million output tokens; null: no grid", key="carbon_grams_per_million_output_tokens"),
    )
    carbon: float = field(default=math.nan, metadata=unit("g/kWh", "CO2 of a kWh of the grid; null: no grid"))
    coefficients: str = field(default="", metadata=unit("", "chips whose measured power gave the coefficients"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return power and energy.

        Returns:
            Title, and text by label.
        """
        return "Energy of a plan", {
            "power": show(self.total_watts, "W"), "energy per output token": show(self.joules, "J"),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """An alternative to a choice of the plan, and its estimated effect.

    The estimate comes from layouts near the chosen one.
    """

    option: str = field(metadata=unit("", "command-line option; empty: no such option"))
    words: str = field(metadata=unit("", "description"))
    caveat: str = field(default="", metadata=unit("", "condition under which it applies"))
    saving: float = field(metadata=unit("", "relative saving per token; negative: it costs more"))
    usd_per_million_output_tokens: float = field(metadata=unit("USD", WHOLE_COST, key=COST))
    tokens_per_second_per_chip: float = field(metadata=unit("tok/s", "output over all chips", key=PER_CHIP))
    layout_text: str = field(metadata=unit("", "layout of each pool in words", key="layout"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """Effect of speculative tokens at one batch, in steps without prefill chunks."""

    batch: float = field(metadata=unit("sequences", "sequences per replica"))
    tpot_without: float = field(metadata=unit("s", "time per output token without speculative tokens"))
    tpot: float = field(metadata=unit("s", "time per output token with speculative tokens"))
    rate_without: float = field(metadata=unit("tok/s", "output per chip without speculative tokens", key=f"{PER_CHIP}_without"))
    rate: float = field(metadata=unit("tok/s", "output per chip with speculative tokens", key=PER_CHIP))
    speed_up: float = field(metadata=unit("", "ratio of the two times; below 1: speculative tokens cost more than they save"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleSystem:
    """The cheapest deployment of the same requests on one of two systems, for about the same rent."""

    system: str = field(metadata=unit("", "name of the system"))
    chips: int = field(metadata=unit("", "chips in whole hosts for about the same rent; without a rent, as many chips"))
    usd_per_second: float = field(default=math.nan, metadata=unit("USD/s", "rent of these chips", key="rent_usd_per_s"))
    reason: str = field(default="", metadata=unit("", "why no layout meets the limits; empty where one does"))
    layout_text: str = field(default="", metadata=unit("", "layout of each pool in words", key="layout"))
    requests_per_second: float = field(default=math.nan, metadata=unit("requests/s", "request rate of the whole deployment"))
    usd_per_million_output_tokens: float = field(default=math.nan, metadata=unit("USD", WHOLE_COST, key=COST))
    tokens_per_second_per_chip: float = field(default=math.nan, metadata=unit("tok/s", "output over all chips", key=PER_CHIP))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Plan(Tabular):
    """A deployment plan: the cheapest layout within the limits, its times and costs.

    Times are in seconds, money in USD. There are three costs. `usd_per_million_output_tokens` divides the
    whole rent by the output tokens. `prefill_usd_per_million_tokens` and `decode_usd_per_million_tokens`
    divide the rent by the chip-time of prefill and decode. `tpot_bounds` and `cost_bounds` reach from full
    overlap to no overlap.

    `tpot_range` [s], `ttft_range` [s] and `cost_range` [USD per million output tokens] are 90 % ranges. They
    apply to the same layout, batch and utilization of the prefill queue. The ideal engine has no ranges.
    `ideal` is the same layout and batch without losses. As a table, a plan is its `front`.

    With `prefill_system`, `chips` of `system` decode and `prefill_chips` of that system prefill.
    """

    SCHEMA: ClassVar[str] = "steptime.plan/2"
    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "slo_probability": unit("", "probability that the plan meets each limit: tpot, ttft"),
        "idle_chips": unit("", "rented chips that are in no pool"),
        "tokens_per_second_per_user": unit("tok/s", "output tokens per second of each user", key=PER_USER),
        "speed_range": unit("tok/s", "90 % range of the speed", key=f"{PER_USER}_range"),
        "tokens_per_second_per_chip": unit("tok/s", "output over all chips, including idle ones", key=PER_CHIP),
        "joules_per_output_token": unit(
            "J",
            "energy of all chips per output token, at their limit; energy has it at the load of the plan",
            key="joules_per_output_token",
        ),
        "electricity_usd_per_million_output_tokens": unit(
            "USD", "cost of that energy; the rent may already include it", key="electricity_usd_per_million_output_tokens"
        ),
    }

    feasible: bool = field(metadata=unit("", "whether any layout meets the limits"))
    reason: str = field(default="", metadata=unit("", "why no layout meets the limits"))
    model: str = field(metadata=unit("", "name of the model"))
    system: str = field(metadata=unit("", "name of the system"))
    engine: str = field(metadata=unit("", "name of the engine"))
    workload: Workload = field(metadata=unit("", "the requests"))
    slo: Slo = field(metadata=unit("", "the limits"))
    chips: int = field(metadata=unit("", "rented chips of the system"))
    prefill_system: str = field(default="", metadata=unit("", "name of the system of the prefill pool; empty: the same system"))
    prefill_chips: int = field(
        default=0, metadata=unit("", "rented chips of the system of the prefill pool; 0: the same system")
    )
    mode: str = field(default="", metadata=unit("", "aggregated or disaggregated"))
    layout_text: str = field(default="", metadata=unit("", "layout of each pool in words", key="layout"))
    pools: tuple[Pool, ...] = field(default=(), metadata=unit("", "pools by role; the decode pool is the last"))
    percentile: str = field(
        default="mean", metadata=unit("", "percentile of requests that meets the limits: mean, p50, p90, ...")
    )
    evidence: str = field(
        default="any", metadata=unit("", "evidence for layouts of this kind: measured, published, or any for all layouts")
    )
    tpot: float = field(default=math.nan, metadata=unit("s", "time per output token, at the percentile"))
    mean_tpot: float = field(default=math.nan, metadata=unit("s", "mean time per output token"))
    tpot_bounds: tuple[float, float] = field(
        default=(math.nan, math.nan), metadata=unit("s", "bounds: full overlap, no overlap")
    )
    tpot_range: tuple[float, float] | None = field(default=None, metadata=unit("s", "90 % range; null for the ideal engine"))
    ttft: float = field(default=math.nan, metadata=unit("s", "time to first token, at the percentile"))
    mean_ttft: float = field(default=math.nan, metadata=unit("s", "mean time to first token"))
    ttft_range: tuple[float, float] | None = field(default=None, metadata=unit("s", "90 % range"))
    utilisation: float = field(default=math.nan, metadata=unit("", "utilization of the prefill queue"))
    requests_per_second: float = field(default=math.nan, metadata=unit("requests/s", "request rate of the whole deployment"))
    concurrency: float = field(default=math.nan, metadata=unit("requests", "mean requests in flight in the whole deployment"))
    usd_per_second: float = field(default=math.nan, metadata=unit("USD/s", "rent of all chips", key="rent_usd_per_s"))
    rent: Rent = field(default=Rent(), metadata=unit("", "rent per chip: kind, term, date, grade and source"))
    prefill_rent: Rent | None = field(
        default=None, metadata=unit("", "rent per chip of the system of the prefill pool; null: the same system")
    )
    power: Power = field(default=Power(), metadata=unit("", "power per chip, and its scope"))
    prefill_power: Power | None = field(
        default=None, metadata=unit("", "power per chip of the system of the prefill pool; null: the same system")
    )
    electricity: float = field(default=math.nan, metadata=unit("USD/J", "price of electricity; null: not given"))
    usd_per_million_output_tokens: float = field(default=math.nan, metadata=unit("USD", WHOLE_COST, key=COST))
    cost_bounds: tuple[float, float] = field(
        default=(math.nan, math.nan), metadata=unit("USD", "bounds: full overlap, no overlap", key=f"{COST}_bounds")
    )
    cost_range: tuple[float, float] | None = field(default=None, metadata=unit("USD", "90 % range", key=f"{COST}_range"))
    throughput_range: tuple[float, float] | None = field(
        default=None, metadata=unit("tok/s", "90 % range of output tokens per second over all chips", key=f"{PER_CHIP}_range")
    )
    range_shares: dict[str, dict[str, float]] = field(
        default_factory=dict,
        metadata=unit("share", "what the upper halves of the ranges of cost, speed and first token are made of", left_out=True),
    )
    prefill_usd_per_million_tokens: float = field(
        default=math.nan,
        metadata=unit("USD", "rent of the prefill chip-time per million input tokens", key="prefill_usd_per_million_tokens"),
    )
    decode_usd_per_million_tokens: float = field(
        default=math.nan,
        metadata=unit("USD", "rent of the decode chip-time per million output tokens", key="decode_usd_per_million_tokens"),
    )
    usd_per_request: float = field(default=math.nan, metadata=unit("USD", "whole rent per request", key="usd_per_request"))
    binding: tuple[str, ...] = field(default=(), metadata=unit("", "limits that a larger batch would break"))
    elasticities: dict[str, float] = field(
        default_factory=dict, metadata=unit("", "d log(cost) / d log(figure): hbm_bandwidth, arithmetic, kv_bytes, rent, ...")
    )
    alternatives: tuple[Alternative, ...] = field(
        default=(), metadata=unit("", "other formats, chips, pools and speculative tokens, largest saving first")
    )
    ideal: Point | None = field(default=None, metadata=unit("", "the same layout and batch without losses"))
    anchor: Anchor | None = field(default=None, metadata=unit("", "your own runs that correct the times; null: no such runs"))
    unanchored: Point | None = field(default=None, metadata=unit("", "the same layout and batch without your own runs"))
    unmeasured: Point | None = field(
        default=None, metadata=unit("", "the cheapest layout of all kinds (evidence any), if it is cheaper")
    )
    free: Point | None = field(
        default=None, metadata=unit("", "the cheapest layout of all, where the user chose a part of the layout")
    )
    single_systems: tuple[SingleSystem, ...] = field(
        default=(), metadata=unit("", "the same requests on each of two systems alone; empty for a plan on one system")
    )
    fleet: Fleet | None = field(default=None, metadata=unit("", "hosts for a rate of requests; null: no rate was given"))
    sessions: Sessions | None = field(
        default=None, metadata=unit("", "sessions whose turns are the requests; null: requests stand alone", left_out=True)
    )
    session_run: SessionRun | None = field(
        default=None, metadata=unit("", "what turns of sessions found when the plan was confirmed", left_out=True)
    )
    session_cache: SessionCache | None = field(
        default=None, metadata=unit("", "prefix cache that holds histories of sessions; null: the cached share is an input")
    )
    energy: PlanEnergy | None = field(
        default=None, metadata=unit("", "power, energy and carbon at the load of the plan; null: the power is not known")
    )
    runner_up: Point | None = field(default=None, metadata=unit("", "the second cheapest layout"))
    front: tuple[Point, ...] = field(default=(), metadata=unit("", "Pareto front of speed and throughput, fastest first"))
    transfer_seconds: float = field(
        default=0.0, metadata=unit("s", "transfer time of a request's KV cache between pools", key="transfer_s")
    )
    evaluated: int = field(default=0, metadata=unit("", "evaluated combinations of layout, batch and chunk"))
    search_seconds: float = field(default=0.0, metadata=unit("s", "duration of the search", key="search_s"))
    warnings: tuple[str, ...] = field(default=(), metadata=unit("", "warnings"))
    sure: float | None = field(default=None, metadata=unit("", "required probability of meeting each limit; null: on average"))
    distance: tuple[str, ...] = field(default=(), metadata=unit("", "ways in which the plan differs from measured runs"))
    interval_coverage: tuple[str, ...] = field(
        default=(), metadata=unit("", "how many measured times per token were inside their range, for runs of this kind")
    )
    why: str = field(default="", metadata=unit("", "why the plan is not cheaper, and what would help"))
    speculation: Speculation = field(default=NONE, metadata=unit("", "speculative tokens and acceptance length"))
    drafted: tuple[Drafted, ...] = field(
        default=(), metadata=unit("", "effect of speculative tokens at each batch; empty without them", key="drafted_by_batch")
    )
    served: Served = field(default_factory=Served, metadata=unit("", "checkpoint, formats and hosts, for launch commands"))
    prefill_served: Served | None = field(
        default=None, metadata=unit("", "those of the system of the prefill pool; null: the same system")
    )

    @property
    def slo_probability(self) -> dict[str, float]:
        """Probability that the plan meets each of its limits, by name: tpot, ttft."""
        limits = {name: float(getattr(self.slo, name)) for name in ("tpot", "ttft")}
        return {
            name: likelihood(*median_and_range(self, name), limit)
            for name, limit in limits.items() if math.isfinite(limit) and self.feasible
        }  # fmt: skip

    @property
    def total_chips(self) -> int:
        """Rented chips of both systems."""
        return self.chips + self.prefill_chips

    @property
    def idle_chips(self) -> int:
        """Rented chips that are in no pool; all chips where no layout meets the limits."""
        return self.total_chips - sum(pool.chips for pool in self.pools)

    @property
    def tokens_per_second_per_user(self) -> float:
        """Output tokens per second of each user."""
        return 1 / self.tpot

    @property
    def tokens_per_second_per_chip(self) -> float:
        """Output tokens per second over all chips, including idle ones."""
        return float(self.requests_per_second * self.workload.output_tokens / self.total_chips)

    @property
    def joules_per_output_token(self) -> float:
        """Energy of all chips over all output tokens, including prefill [J/token]."""
        output = self.requests_per_second * self.workload.output_tokens
        joules = float(joules_per_token(self.chips, self.power.watts, output))
        if self.prefill_power is None:
            return joules
        return joules + float(joules_per_token(self.prefill_chips, self.prefill_power.watts, output))

    @property
    def is_pair(self) -> bool:
        """Whether the pools are on two different systems."""
        return self.prefill_system not in ("", self.system)

    def served_by(self, role: str) -> Served:
        """Return the facts that launch commands of a pool need.

        Args:
            role: Role of the pool.

        Returns:
            Those of the system of the pool.
        """
        return self.prefill_served if role == "prefill" and self.prefill_served is not None else self.served

    @property
    def machines_text(self) -> str:
        """The chips and the system, or those of both pools."""
        if not self.prefill_system:
            return f"{counted(self.chips, 'chip')} of {self.system}"
        if not self.is_pair:
            pools = f"{self.prefill_chips:,} for prefill, {self.chips:,} for decode"
            return f"{counted(self.total_chips, 'chip')} of {self.system} ({pools})"
        prefill = f"{counted(self.prefill_chips, 'chip')} of {self.prefill_system} for prefill"
        return f"{prefill} and {counted(self.chips, 'chip')} of {self.system} for decode"

    @property
    def electricity_usd_per_million_output_tokens(self) -> float:
        """USD of electricity per million output tokens, at the price of the plan."""
        return float(electricity_per_million(self.joules_per_output_token, self.electricity))

    @property
    def speed_range(self) -> tuple[float, float] | None:
        """The 90 % range of output tokens per second of each user."""
        return self.tpot_range and (1 / self.tpot_range[1], 1 / self.tpot_range[0])

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return a title and the main figures of the plan.

        Returns:
            Title with model, chips and engine; figures by label, or the reason where no layout meets the
            limits.
        """
        title = f"Plan: {self.model} on {self.machines_text}, engine {self.engine}"
        title += ", a pair without published runs" * self.is_pair
        if not self.feasible:
            return title, {"not possible": self.reason[:200]}
        return title, {
            "layout": f"{self.layout_text}, batch {self.pools[-1].batch:,}",
            "TPOT": _ranged(self.tpot, self.tpot_range, "s"),
            "TTFT": _ranged(self.ttft, self.ttft_range, "s"),
            "cost": _ranged(self.usd_per_million_output_tokens, self.cost_range, "USD") + " per million output tokens"
            if math.isfinite(self.usd_per_million_output_tokens)
            else "no rent known",
            **({"rent": f"{show(self.usd_per_second, 'USD/s')}, {self.rent_kinds}"} if has_rent(self.rent) else {}),
            "output": f"{in_digits(self.requests_per_second)} requests/s, "
            + f"{show(self.tokens_per_second_per_chip, 'tok/s')} per chip"
            + (f", {show(self.joules_per_output_token, 'J')} per token" if math.isfinite(self.joules_per_output_token) else ""),
        }

    @property
    def rent_kinds(self) -> str:
        """The kind of the rent, or those of both systems."""
        if self.prefill_rent is None:
            return kind_in_words(self.rent)
        return f"{kind_in_words(self.rent)} ({self.system}), {kind_in_words(self.prefill_rent)} ({self.prefill_system})"

    def drawing(self) -> str:
        """Draw the front with the plan on it, and the memory of a decode chip.

        Returns:
            SVG text; empty where no layout meets the limits.
        """
        if not self.feasible:
            return ""
        speeds = [point.tokens_per_second_per_user for point in self.front]
        costs = [point.usd_per_million_output_tokens for point in self.front]
        chosen_point = (self.tokens_per_second_per_user, self.usd_per_million_output_tokens)
        picture = curve(speeds, costs, x_words="tok/s per user", y_words="USD per million output tokens", point=chosen_point)
        return picture + self.pools[-1].memory.drawing()

    def plot(self, path: str) -> None:
        """Write the Pareto front as a picture.

        Args:
            path: File to write, in the format of its ending: .svg, .png or .pdf.
        """
        from steptime.planning.pareto_plot import draw_pareto_front

        save_picture(path, lambda: draw_pareto_front(self))

    def columns(self) -> dict[str, Any]:
        """Return the front as columns, fastest first.

        Returns:
            A column per field of `Point`.
        """
        return columns_by_key(Point, self.front)


def _ranged(value: float, limits: tuple[float, float] | None, unit: str) -> str:
    """Show a value with its 90 % range."""
    return show(value, unit) + (f" (90 % {show(limits[0], unit)} to {show(limits[1], unit)})" if limits else "")


def mean_resources(pool: Pool) -> dict[str, float]:
    """Return the mean step of a pool by resource.

    Steps with and without a prefill chunk are weighted by their shares.

    Args:
        pool: Pool of a plan.

    Returns:
        Seconds by resource.
    """
    return _mean(pool, "resources")


def mean_terms(pool: Pool) -> dict[str, float]:
    """Return the mean step of a pool by term.

    Args:
        pool: Pool of a plan.

    Returns:
        Seconds by term.
    """
    return _mean(pool, "terms")


def _mean(pool: Pool, name: str) -> dict[str, float]:
    plain, mixed = getattr(pool.step, name), getattr(pool.mixed or pool.step, name)
    share = pool.chunk_share
    keys = dict.fromkeys((*plain, *mixed))
    return {key: float((1 - share) * plain.get(key, 0.0) + share * mixed.get(key, 0.0)) for key in keys}


def cost_changes(plan_: Plan) -> dict[str, float]:
    """Return the relative change of the cost for 10 % more of each figure.

    Args:
        plan_: Plan with its elasticities.

    Returns:
        Relative change by figure; negative where the cost falls.
    """
    return {name: 1.1**value - 1 for name, value in plan_.elasticities.items()}


def chosen_point(plan_: Plan) -> Point:
    """Return the plan itself as a point in the plane of speed and throughput.

    Args:
        plan_: Feasible plan.

    Returns:
        The point.
    """
    return Point(
        mode=plan_.mode,
        layout_text=plan_.layout_text,
        batch=plan_.pools[-1].batch,
        tokens_per_second_per_user=plan_.tokens_per_second_per_user,
        tokens_per_second_per_chip=plan_.tokens_per_second_per_chip,
        usd_per_million_output_tokens=plan_.usd_per_million_output_tokens,
        ttft=plan_.ttft,
    )


def median_and_range(plan_: Plan, name: str) -> tuple[float, tuple[float, float] | None]:
    """Return the median of what runs of the kind of a plan measure, and the 90 % range.

    Args:
        plan_: Feasible plan.
        name: "tpot" or "ttft".

    Returns:
        Seconds: the figure itself, except for first tokens of separate pools, which were later than predicted; None if the
        plan has no ranges.
    """
    is_later = name == "ttft" and SEPARATE_POOLS.words in plan_.distance
    return getattr(plan_, name) * (SEPARATE_POOLS.delay if is_later else 1.0), getattr(plan_, f"{name}_range")


def runner_up_dearer(plan_: Plan) -> float:
    """Return the relative extra cost per token of the runner-up.

    Without a known rent, it compares the output per chip.

    Args:
        plan_: Plan.

    Returns:
        Relative extra cost; NaN without a runner-up.
    """
    runner_up = plan_.runner_up
    if runner_up is None:
        return math.nan
    if math.isfinite(plan_.usd_per_million_output_tokens):
        return runner_up.usd_per_million_output_tokens / plan_.usd_per_million_output_tokens - 1
    return plan_.tokens_per_second_per_chip / runner_up.tokens_per_second_per_chip - 1


def best_change(plan_: Plan) -> tuple[str, float] | None:
    """Return the figure whose improvement by 10 % saves most, except the rent.

    Args:
        plan_: Plan with its elasticities.

    Returns:
        Name and relative saving; None where no figure saves more than 0.05 %.
    """
    gains = {
        name: 1 - (1 / 1.1 if name == "kv_bytes" else 1.1) ** value
        for name, value in plan_.elasticities.items()
        if name != "rent"
    }
    name = max(gains, key=lambda key: gains[key], default=None)
    return (name, gains[name]) if name is not None and gains[name] > 5e-4 else None
