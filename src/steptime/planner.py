"""The best way to serve a model on a system: the cheapest layout within the limits, what binds, and what would help.

`plan` searches every legal mapping, batch and chunk size, aggregated and disaggregated (`search`), keeps what meets the limits,
refines the cheapest, and asks of each figure of the machine how much cheaper a token would be if it were better
(`sensitivity`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from steptime.catalog import check_positive
from steptime.cost import usd_per_million
from steptime.engine import IDEAL, Engine, load_engine
from steptime.errors import InputError, RangeError
from steptime.frontier import pareto
from steptime.hardware import System
from steptime.mapping import Mapping, legal
from steptime.memory import Memory, weights_per_chip
from steptime.model import Model, weight_bytes
from steptime.search import (
    AGGREGATED,
    DISAGGREGATED,
    Case,
    Layout,
    Table,
    fitting,
    matched_rate,
    prefill_of,
    ranked,
    refined,
    row,
    search_aggregated,
    search_disaggregated,
    state_of,
)
from steptime.sensitivity import binding, elasticities
from steptime.serving import Prefill, State, first_token, transfer_seconds
from steptime.step import Step
from steptime.units import show
from steptime.workload import Slo, Workload

MODES = (AGGREGATED, DISAGGREGATED)


class DoesNotFit(InputError):
    """The model does not fit the chips: by how much, and what would hold it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Replicas that do one job: "serve" (both), "prefill" or "decode".

    `batch`: sequences of a replica in decode, prompts of a pass in prefill. `step` is the decode step, or the prefill pass;
    `mixed` a step with a prompt chunk, which is a `chunk_share` of all. `tokens_per_second`: what all replicas process.
    """

    role: str
    mapping: Mapping
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
        return int(self.mapping.chips * self.mapping.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One layout in the plane of speed and throughput. Speeds in tok/s, cost with the whole rent on output tokens."""

    mode: str
    layout: str
    batch: int
    tokens_per_second_per_user: float
    tokens_per_second_per_chip: float
    usd_per_million_output_tokens: float
    ttft: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How to serve a workload: the cheapest layout within the limits, its times and costs, and why it is not cheaper.

    Times in seconds, money in USD. `usd_per_million_output_tokens` carries the whole rent; `usd_per_million_input` and
    `usd_per_million_output` divide it by the chip-time that prefill and decode take. `interval`: the range of the first, from
    everything overlapped to nothing overlapped.
    """

    feasible: bool
    reason: str = ""
    model: str
    system: str
    engine: str
    workload: Workload
    slo: Slo
    chips: int
    mode: str = ""
    layout: str = ""
    pools: tuple[Pool, ...] = ()
    tpot: float = math.nan
    tpot_interval: tuple[float, float] = (math.nan, math.nan)
    ttft: float = math.nan
    utilisation: float = math.nan
    requests_per_second: float = math.nan
    concurrency: float = math.nan
    usd_per_second: float = math.nan
    usd_per_million_output_tokens: float = math.nan
    interval: tuple[float, float] = (math.nan, math.nan)
    usd_per_million_input: float = math.nan
    usd_per_million_output: float = math.nan
    usd_per_request: float = math.nan
    binding: tuple[str, ...] = ()
    elasticities: dict[str, float] = field(default_factory=dict)
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


def plan(
    model: Model,
    system: System,
    workload: Workload,
    slo: Slo | None = None,
    *,
    chips: int | None = None,
    engine: Engine | str = IDEAL,
    modes: tuple[str, ...] = MODES,
) -> Plan:
    """Return the cheapest way to serve `workload` within `slo` on `chips` chips (by default one scale-up domain).

    Raises DoesNotFit where the weights do not fit the chips in any mapping. Limits that nothing meets are an answer: a Plan
    with `feasible=False` and the reason.
    """
    started = time.perf_counter()
    chips = system.chips if chips is None else chips
    check_positive(chips=chips)
    if not modes or set(modes) - set(MODES):
        raise RangeError(f"mode must be {' or '.join(MODES)}, not {', '.join(modes)}")
    case = Case(model=model, system=system, workload=workload, slo=slo or Slo(), chips=chips, engine=load_engine(engine))
    mappings = fitting(case)
    if not mappings:
        raise DoesNotFit(_does_not_fit(case))
    tables = _search(case, modes, mappings)
    common = Plan(
        feasible=False,
        model=model.name,
        system=system.name,
        engine=case.engine.name,
        workload=workload,
        slo=case.slo,
        chips=chips,
        usd_per_second=float(case.rent),
        front=_front(case, tables),
        evaluated=sum(len(table) for table in tables),
        warnings=_warnings(case),
    )
    candidates = ranked(case, tables)
    if not candidates:
        return replace(common, reason=_unreachable(case, modes, mappings), search_seconds=time.perf_counter() - started)
    layout = refined(case, candidates[0])
    second = next((other for other in candidates[1:] if other.same != layout.same), None)
    found = replace(
        common,
        feasible=True,
        binding=binding(case, layout),
        elasticities=elasticities(case, layout),
        runner_up=_point(case, refined(case, second)) if second else None,
        **_delivered(case, layout),
    )
    return replace(found, why=_why(case, found), search_seconds=time.perf_counter() - started)


def _search(case: Case, modes: tuple[str, ...], mappings: list[Mapping]) -> list[Table]:
    tables = [search_aggregated(case, mappings)] if AGGREGATED in modes else []
    return [*tables, search_disaggregated(case, mappings)] if DISAGGREGATED in modes else tables


# --- what a layout delivers ---------------------------------------------------------------------------------------------


def _delivered(case: Case, layout: Layout) -> dict[str, Any]:
    state = state_of(case, layout, layout.batch, max(layout.chunk, 1))
    prefill = prefill_of(case, layout)
    rate, utilisation = matched_rate(layout, state, prefill)
    pools = _pools(case, layout, state, prefill, rate)
    workload = case.workload
    output_rate, input_rate = rate * workload.output_tokens, rate * workload.input_tokens
    share = _input_share(pools, state)
    whole = usd_per_million(case.rent, output_rate)
    served = state.rate * layout.mapping.replicas
    return {
        "mode": layout.mode,
        "layout": layout.text,
        "pools": pools,
        "tpot": float(state.tpot),
        "tpot_interval": (float(state.lower), float(state.upper)),
        "ttft": float(state.ttft if prefill is None else first_token(prefill, utilisation, case.engine)),
        "utilisation": float(utilisation),
        "requests_per_second": float(rate),
        "concurrency": float(layout.batch * layout.mapping.replicas * rate / served),
        "usd_per_million_output_tokens": float(whole),
        "interval": (float(whole * _bound(state, prefill, "lower")), float(whole * _bound(state, prefill, "upper"))),
        "usd_per_million_input": float(usd_per_million(case.rent * share, input_rate)),
        "usd_per_million_output": float(usd_per_million(case.rent * (1 - share), output_rate)),
        "usd_per_request": float(case.rent / rate),
        "transfer_seconds": _transfer(case, layout),
    }


def _bound(state: State, prefill: Prefill | None, name: str) -> float:
    """The bound of the slower pool's time over its estimate."""
    ratio = float(getattr(state, name) / state.tpot)
    return ratio if prefill is None else (ratio + float(getattr(prefill.step, name) / prefill.seconds)) / 2


def _input_share(pools: tuple[Pool, ...], state: State) -> float:
    """Share of the rent that input tokens bear: of the chips' time, or of the chips."""
    if len(pools) == 1:
        return float(state.input_share)
    return pools[0].chips / (pools[0].chips + pools[1].chips)


def _pools(case: Case, layout: Layout, state: State, prefill: Prefill | None, rate: Any) -> tuple[Pool, ...]:
    workload = case.workload
    server = Pool(
        role="serve" if prefill is None else "decode",
        mapping=layout.mapping,
        batch=layout.batch,
        chunk=layout.chunk,
        chunk_share=float(state.utilisation),
        step=state.decode,
        mixed=state.mixed,
        memory=state.memory,
        tokens_per_second=float(rate * workload.output_tokens),
    )
    if prefill is None or layout.prefill_mapping is None:
        return (server,)
    first = Pool(
        role="prefill",
        mapping=layout.prefill_mapping,
        batch=int(prefill.seats),
        step=prefill.step,
        memory=prefill.memory,
        tokens_per_second=float(rate * workload.input_tokens),
    )
    return first, server


def _transfer(case: Case, layout: Layout) -> float:
    if layout.prefill_mapping is None:
        return 0.0
    near = case.chips <= case.system.scale_up.size
    return float(
        transfer_seconds(
            case.model, case.system, case.workload, sender_chips=layout.prefill_mapping.group, within_domain=bool(near)
        )
    )


def _point(case: Case, layout: Layout) -> Point:
    found = _delivered(case, layout)
    return Point(
        mode=layout.mode,
        layout=layout.text,
        batch=layout.batch,
        tokens_per_second_per_user=1 / found["tpot"],
        tokens_per_second_per_chip=float(found["requests_per_second"] * case.workload.output_tokens / case.chips),
        usd_per_million_output_tokens=found["usd_per_million_output_tokens"],
        ttft=found["ttft"],
    )


def _front(case: Case, tables: list[Table]) -> tuple[Point, ...]:
    """Return the layouts that no other beats in speed for the user and throughput, fastest first, whatever the speed limit."""
    speeds, rates, starts = [], [], [0]
    for table in tables:
        good = (table.ttft <= case.slo.ttft) & (table.memory <= 1) & (table.rate > 0)
        speeds.append(np.where(good, 1 / table.tpot, np.nan))
        rates.append(table.rate)
        starts.append(starts[-1] + len(table))
    speed, rate = np.concatenate(speeds), np.concatenate(rates)
    points = []
    for position in pareto(speed, rate):
        number = int(np.searchsorted(starts, position, side="right")) - 1
        index = int(position) - starts[number]
        throughput = rate[position] * case.workload.output_tokens
        points.append(
            Point(
                mode=tables[number].mode,
                layout=row(tables[number], index).text,
                batch=int(tables[number].batch[index]),
                tokens_per_second_per_user=float(speed[position]),
                tokens_per_second_per_chip=float(throughput / case.chips),
                usd_per_million_output_tokens=float(usd_per_million(case.rent, throughput)),
                ttft=float(tables[number].ttft[index]),
            )
        )
    return tuple(points)


# --- saying why ---------------------------------------------------------------------------------------------------------

STOPS = {
    "speed": "a larger batch would make each token slower than {tpot}",
    "first token": "a larger batch would delay the first token beyond {ttft}",
    "memory": "the memory of a chip is full",
    "prompt queue": "prompts already arrive almost as fast as chunks can read them",
    "prefill rate": "the prefill pool takes no more requests",
    "saturation": "a larger batch would cost the same per token, since enough sequences share the weights already",
}
WAITS = {
    "compute": "multiplies",
    "weights": "streams weights",
    "kv": "streams KV cache",
    "activations": "moves activations",
    "scale-up": "waits for the scale-up network",
    "pod": "waits for the pod network",
    "scale-out": "waits for the scale-out network",
    "latency": "waits for messages to arrive",
    "overhead": "waits for the engine's overhead",
}
BETTER = {"KV bytes": "10 % fewer KV bytes per token", "rent": "10 % lower rent"}


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


def best_change(plan_: Plan) -> tuple[str, float] | None:
    """Return the figure whose improvement by 10 % lowers cost most, and by what share; rent, which is money itself, aside."""
    worth = {
        name: 1 - (1 / 1.1 if name == "KV bytes" else 1.1) ** value
        for name, value in plan_.elasticities.items()
        if name != "rent"
    }
    name = max(worth, key=lambda key: worth[key], default=None)
    return (name, worth[name]) if name is not None and worth[name] > 5e-4 else None


def _why(case: Case, found: Plan) -> str:
    server = found.pools[-1]
    resources = mean_resources(server)
    total = sum(resources.values())
    leading = sorted(resources, key=lambda name: -resources[name])[:2]
    shares = " and ".join(
        f"{WAITS.get(name, name)} for {resources[name] / total:.0%}" for name in leading if resources[name] > 0.05 * total
    )
    stops = " and ".join(
        STOPS[name].format(tpot=show(case.slo.tpot, "s"), ttft=show(case.slo.ttft, "s")) for name in found.binding
    )
    step = "step" if server.role == "serve" else "decode step"
    text = f"It cannot be cheaper because {stops}. A {step} {shares} of its time."
    change = best_change(found)
    if change is None:
        return text + " No single figure of the machine, 10 % better, would lower the cost."
    name, saving = change
    return text + f" {BETTER.get(name, f'10 % more {name}')} would help most: {saving:.1%} cheaper."


def _warnings(case: Case) -> tuple[str, ...]:
    warnings = []
    reach = case.workload.input_tokens + case.workload.output_tokens
    if reach > case.model.max_context:
        warnings.append(f"requests of {reach:,.0f} tokens exceed the model's context of {case.model.max_context:,.0f}")
    rent = case.system.rent
    if not math.isfinite(rent.typical):
        warnings.append(rent.note)
    elif rent.grade in ("recalled", "guess"):
        warnings.append(
            f"the rent of {show(rent.typical, 'USD/s')} is a {rent.grade} figure; give yours with --set rent='2 USD/h'"
        )
    return (*warnings, *case.model.notes)


def _unreachable(case: Case, modes: tuple[str, ...], mappings: list[Mapping]) -> str:
    """Say which limit nothing meets, and how near the best comes to it, each limit taken alone."""
    tables = _search(replace(case, slo=Slo()), modes, mappings)
    tpot = np.concatenate([t.tpot for t in tables])
    ttft = np.concatenate([t.ttft for t in tables])
    fits = np.concatenate([(t.memory <= 1) & (t.rate > 0) for t in tables])
    if not np.any(fits):
        return (
            f"the {show(weight_bytes(case.model), 'B')} of weights fit {case.chips} chips, but leave no room for a request of "
            f"{case.workload.input_tokens + case.workload.output_tokens:,.0f} tokens; use more chips"
        )
    fastest, soonest = float(np.min(tpot[fits])), float(np.min(ttft[fits]))
    speed, first = show(1 / case.slo.tpot, "tok/s"), show(case.slo.ttft, "s")
    if fastest > case.slo.tpot:
        return (
            f"no layout on {case.chips} chips reaches {speed} per user; the fastest gives {show(1 / fastest, 'tok/s')}. "
            "Use more or faster chips, smaller weights (--weights), or ask for less"
        )
    in_time = _search(replace(case, slo=Slo(ttft=case.slo.ttft)), modes, mappings)
    if not any(np.any((t.ttft <= case.slo.ttft) & (t.memory <= 1) & (t.rate > 0)) for t in in_time):
        return (
            f"no layout on {case.chips} chips gives a first token within {first}; the soonest at full load is "
            f"{show(soonest, 's')}. Use more chips, a shorter prompt, or a prefix cache (--cached)"
        )
    with_speed = show(float(np.min(ttft[fits & (tpot <= case.slo.tpot)])), "s")
    return (
        f"each limit can be met, but not both: at {speed} per user the soonest first token comes after {with_speed}, "
        f"not {first}. Use more chips, or relax one"
    )


def _does_not_fit(case: Case) -> str:
    """Say by how much the weights are too large for the chips, and how many chips of this kind would hold them."""
    capacity = case.system.chip.hbm.capacity * case.engine.memory_share - case.engine.reserved_bytes
    need, have = weight_bytes(case.model), case.chips * capacity
    message = (
        f"{case.model.name} does not fit {case.chips} x {case.system.chip.name}: its weights take {show(need, 'B')}, "
        f"the chips hold {show(have, 'B')}"
    )
    if need > have:
        message += f", {show(need - have, 'B')} too little"
    else:
        least = min((float(weights_per_chip(case.model, m)) for m in legal(case.model, case.system, case.chips)), default=need)
        message += f"; the best mapping puts {show(least, 'B')} on a chip of {show(capacity, 'B')}"
    least = math.ceil(need / capacity)
    domain = min(case.system.scale_up.size, 4096)
    tries = sorted(
        {
            least,
            least + least % 2,
            8 * math.ceil(least / 8),
            domain * math.ceil(least / domain),
            2 ** math.ceil(math.log2(least)),
        }
    )
    more = next((n for n in tries if case.chips < n <= 4096 and fitting(replace(case, chips=n))), None)
    if more:
        message += f". With --chips {more} it would fit"
    return message


def smallest_system(model: Model, systems: Iterable[System]) -> System | None:
    """Return the system with the least memory whose usual deployment holds the weights of `model` in some mapping."""
    by_memory = sorted(systems, key=lambda system: system.chips * system.chip.hbm.capacity)
    anything = Workload(input_tokens=1, output_tokens=1)
    for system in by_memory:
        case = Case(model=model, system=system, workload=anything, slo=Slo(), chips=system.chips, engine=IDEAL)
        if system.chips * system.chip.hbm.capacity >= weight_bytes(model) and fitting(case):
            return system
    return None
