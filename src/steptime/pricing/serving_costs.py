"""What tokens cost on plausible systems: one plan each, taken once.

**Which systems.** Of those rented by contract on the newest lists, one for each maker and memory bandwidth of a chip (the one
with the largest domain of fast links, then the cheapest), those whose memory reads fastest first, at most `MOST`. Others are
named with the reason. A plan is for `CHIPS` chips, or one domain if that is more: large mixtures of experts are several times
dearer on the few that just hold them, and those who sell to many have more.

**Which mode.** The cheaper of aggregated and disaggregated serving (`MODES`), as `plan` and `compare` search, so that one
request costs the same in all three. Priors of margins were fitted on aggregated replicas (`CALIBRATED_MODES`), as most hosts
run engines: `TokenCost.aggregated_usd_per_request` is the cost that they go with. Disaggregated, large mixtures of experts
cost a third to a half of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from steptime.catalog.data_files import files, read_file
from steptime.catalog.hardware_loading import load_system, quotes
from steptime.errors import InputError
from steptime.hardware.system import Rent, System
from steptime.models.model import Model
from steptime.number_checks import Number
from steptime.planning.plan_problem import AGGREGATED
from steptime.planning.planner import MODES, plan
from steptime.planning.workload import Slo, Workload
from steptime.processes import map_in_processes
from steptime.result_base import unit
from steptime.units import MILLION

# systems that are planned for
MAX_SYSTEMS: Final = 8
# eight boxes of eight, or near a rack: DeepSeek decodes on 144 and reads prompts on 32 (open-infra-index)
CHIPS: Final = 64
HOPPER: Final = ("hgx-h100", "hgx-h200")
"""Systems that margins of the market are calibrated on: what most hosts of the rows rented in 2024 to 2026."""

CALIBRATED_MODES: Final = (AGGREGATED,)
"""Modes of the shipped costs (`model_costs.csv`) that priors of margins were fitted on, by `docs/fit_prices.py`."""

# rents older than the newest list by more are not of the same market
LISTED: Final = timedelta(days=90)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCost:
    """What a model's tokens cost on a system that is busy at the speed asked for: rents alone, as `Plan` counts them."""

    system: str = field(metadata=unit("", "name of the system"))
    feasible: bool = field(metadata=unit("", "whether it serves the model at that speed"))
    reason: str = field(default="", metadata=unit("", "why it does not"))
    mode: str = field(default="", metadata=unit("", "aggregated or disaggregated, of the plan"))
    chips: int = field(default=0, metadata=unit("", "chips of the plan"))
    layout_text: str = field(default="", metadata=unit("", "layout in words", key="layout"))
    usd_per_request: float = field(default=math.nan, metadata=unit("USD", "rent of one request", key="usd_per_request"))
    usd_per_request_range: tuple[float, float] | None = field(
        default=None, metadata=unit("USD", "90 % range", key="usd_per_request_range")
    )
    aggregated_usd_per_request: float = field(
        default=math.nan,
        metadata=unit(
            "USD",
            "rent of one request in aggregated mode, which margins are calibrated on; null: not computed, or not served",
            key="aggregated_usd_per_request",
        ),
    )
    input_usd_per_million: float = field(
        default=math.nan, metadata=unit("USD", "rent of the chip-time of prompts", key="input_usd_per_million_tokens")
    )
    output_usd_per_million: float = field(
        default=math.nan, metadata=unit("USD", "rent of the chip-time of outputs", key="output_usd_per_million_tokens")
    )
    rent: Rent = field(default=Rent(), metadata=unit("", "of a chip: its kind, date and grade"))
    front: tuple[tuple[float, float], ...] = field(
        default=(), metadata=unit("", "speed of a user [tok/s] with USD per million output tokens", left_out=True)
    )

    def at_speed(self, speed: Number) -> Number:
        """USD per million output tokens, prompts included, of the cheapest layout of the front that gives `speed` [tok/s]."""
        if not self.front:
            return np.asarray(speed) * math.nan
        speeds, costs = np.array(self.front).T
        min_speed = np.asarray(speed, dtype=np.float64)[..., None]
        cheapest = np.min(np.where(speeds >= min_speed, costs, math.inf), axis=-1)
        return np.where(np.isfinite(cheapest), cheapest, math.nan)


def plausible(catalog: str | None = None, max_systems: int = MAX_SYSTEMS) -> tuple[list[System], dict[str, str]]:
    """Return the systems that a host may rent, and why others are left out, by name."""
    offered: dict[str, set[str]] = {}
    for quote, _, _ in quotes(catalog):
        offered.setdefault(quote.chip, set()).add(quote.kind)
    excluded: dict[str, str] = {}
    machines = []
    for name, path in files("systems", catalog).items():
        kinds = offered.get(_chip_name(path), set())
        if "contract" in kinds:
            machines.append(load_system(name, catalog))
        else:
            excluded[name] = "no contract on the newest lists" if kinds else "no rent is known"
    newest = max(
        (date.fromisoformat(machine.rent.date) for machine in machines if machine.rent.kind == "contract"), default=date.max
    )
    groups: dict[tuple[str, float], list[System]] = {}
    for machine in machines:
        if machine.rent.kind != "contract" or date.fromisoformat(machine.rent.date) < newest - LISTED:
            excluded[machine.name] = "no contract on the newest lists"
        else:
            groups.setdefault((machine.chip.vendor, float(machine.chip.hbm.bandwidth)), []).append(machine)
    selected = []
    for group in groups.values():
        first, *duplicates = sorted(group, key=lambda machine: (-machine.scale_up.size, float(machine.rent.typical)))
        selected.append(first)
        excluded |= {machine.name: f"its memory is as fast as that of {first.name}" for machine in duplicates}
    selected.sort(key=lambda machine: -float(machine.chip.hbm.bandwidth))
    excluded |= {machine.name: f"{max_systems} others have faster memory" for machine in selected[max_systems:]}
    return selected[:max_systems], excluded


def cost_on(
    system: System,
    *,
    model: Model,
    workload: Workload,
    slo: Slo,
    engine: str | None = None,
    modes: tuple[str, ...] = MODES,
    front: bool = True,
    aggregated: bool = False,
) -> TokenCost:
    """Return what a model's tokens cost on a system, or why it does not serve them.

    Args:
        system: The machine, with its rent.
        model: The model.
        workload: The request.
        slo: Limits of its times.
        engine: Name of the serving engine; by default that of the system.
        modes: Modes of serving among which the cheapest is taken.
        front: Whether the cost at other speeds is computed too.
        aggregated: Whether the cost in aggregated mode is computed where the cheapest plan is disaggregated.

    Returns:
        The cost, with the mode, chips and layout of its plan.
    """
    shared_fields: dict[str, Any] = {"system": system.name, "rent": system.rent}
    searched = partial(
        plan,
        model,
        system,
        workload,
        slo,
        chips=plan_chips(system),
        engine=engine,
        alternatives=False,
        elasticities=False,
        diagnostics=False,
    )
    try:
        best_plan = searched(modes=modes, front=front)
    except InputError as problem:
        return TokenCost(feasible=False, reason=str(problem).rstrip("."), **shared_fields)
    if not best_plan.feasible:
        return TokenCost(feasible=False, reason=best_plan.reason.rstrip("."), chips=best_plan.chips, **shared_fields)
    per_request = float(workload.output_tokens) / MILLION
    ends = best_plan.cost_range
    same = best_plan
    if aggregated and best_plan.mode != AGGREGATED:
        same = searched(modes=CALIBRATED_MODES, front=False)
    return TokenCost(
        feasible=True,
        mode=best_plan.mode,
        aggregated_usd_per_request=same.usd_per_request if same.feasible and same.mode == AGGREGATED else math.nan,
        chips=best_plan.chips,
        layout_text=best_plan.layout_text,
        usd_per_request=best_plan.usd_per_million_output_tokens * per_request,
        usd_per_request_range=None if ends is None else (ends[0] * per_request, ends[1] * per_request),
        input_usd_per_million=best_plan.prefill_usd_per_million_tokens,
        output_usd_per_million=best_plan.decode_usd_per_million_tokens,
        front=tuple((p.tokens_per_second_per_user, p.usd_per_million_output_tokens) for p in best_plan.front),
        **shared_fields,
    )


def _chip_name(path: Path) -> str:
    """Return the name of the chip of a system's file."""
    chip = read_file(path).get("chip", "")
    return str(chip.get("name", "")) if isinstance(chip, dict) else str(chip)


def plan_chips(system: System) -> int:
    """Return how many chips of a system a plan is for: whole domains, `CHIPS` or one domain if that is more."""
    domain = int(min(system.scale_up.size, system.chips))
    return int(min(domain * max(1, CHIPS // domain), system.scale_out.size))


def token_costs(
    model: Model,
    systems: Sequence[System],
    workload: Workload,
    slo: Slo,
    engine: str | None = None,
    modes: tuple[str, ...] = MODES,
    front: bool = True,
    aggregated: bool = False,
) -> tuple[TokenCost, ...]:
    """Return what a model's tokens cost on each of some systems, in their order; see `cost_on`."""
    work = partial(
        cost_on, model=model, workload=workload, slo=slo, engine=engine, modes=modes, front=front, aggregated=aggregated
    )
    return tuple(map_in_processes(work, systems))


def cheapest(costs: Iterable[TokenCost]) -> TokenCost | None:
    """Return the cost that is least, of those that there are."""
    able = [cost for cost in costs if cost.feasible and math.isfinite(cost.usd_per_request)]
    return min(able, key=lambda cost: cost.usd_per_request, default=None)


def scaled(cost: TokenCost, factor: float) -> TokenCost:
    """Return a cost at another rent: `factor` times as high. All figures of it are proportional to the rent."""
    ends = cost.usd_per_request_range
    return replace(
        cost,
        usd_per_request=cost.usd_per_request * factor,
        aggregated_usd_per_request=cost.aggregated_usd_per_request * factor,
        usd_per_request_range=None if ends is None else (ends[0] * factor, ends[1] * factor),
        input_usd_per_million=cost.input_usd_per_million * factor,
        output_usd_per_million=cost.output_usd_per_million * factor,
        front=tuple((speed, usd * factor) for speed, usd in cost.front),
    )
