"""Serving costs: what a model's tokens cost on plausible systems, with one plan per system.

**Systems.** Candidates are systems with a contract rent on the newest lists. Of systems with the same maker and memory
bandwidth, the one with the largest scale-up domain is used, then the cheapest. At most `MAX_SYSTEMS` are used, those with the
fastest memory. Other systems are listed with a reason. A plan uses `CHIPS` chips, or one domain if that is larger. Large
mixture-of-experts models are several times more expensive on the minimum number of chips, and large sellers have more.
With chips=`USUAL` a plan uses the usual number of chips of its system, as `plan` and `compare` do by default.

**Evidence.** Layouts are of kinds that were measured or published elsewhere (`SOLD_EVIDENCE`), for every system alike. Measured
kinds alone would compare one node of one system with the rack of another.

**Mode.** The cheaper of aggregated and disaggregated serving (`MODES`), as in `plan` and `compare`: at the same number of
chips, one request costs the same in all three. Priors of margins were fitted to aggregated replicas (`CALIBRATED_MODES`),
because most hosts run engines in this mode. `TokenCost.aggregated_usd_per_request` is the corresponding cost. In disaggregated
mode, large mixture-of-experts models cost a third to a half of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
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
from steptime.number_checks import MOST_CHIPS, Number, whole_number
from steptime.planning.evidence import MEASURED, PUBLISHED
from steptime.planning.plan_problem import AGGREGATED
from steptime.planning.planner import MODES, plan
from steptime.processes import map_in_processes
from steptime.result_base import unit
from steptime.units import MILLION, count
from steptime.workload.workload import Slo, Workload

# Maximum number of systems.
MAX_SYSTEMS: Final = 8
# Eight nodes of eight chips, or about a rack. DeepSeek runs decode on 144 and prefill on 32 chips (open-infra-index).
CHIPS: Final = 64
# Value of `chips` for the number of chips that `plan` and `compare` use by default.
USUAL: Final = "usual"
HOPPER: Final = ("hgx-h100", "hgx-h200")
"""Systems for the calibration of market margins: most hosts rented these in 2024 to 2026."""

CALIBRATED_MODES: Final = (AGGREGATED,)
"""Modes of the shipped costs (`model_costs.csv`) for the fit of margin priors by `docs/fit_prices.py`."""

SOLD_EVIDENCE: Final = PUBLISHED
"""Evidence for layouts of sellers, who run separate pools and expert parallelism over several nodes."""

# Maximum age of a rent relative to the newest list; older rents belong to another market.
LISTED: Final = timedelta(days=90)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCost:
    """Cost of a model's tokens on a busy system at a given speed; rents only, as in `Plan`."""

    system: str = field(metadata=unit("", "name of the system"))
    feasible: bool = field(metadata=unit("", "whether the system can serve the model at that speed"))
    reason: str = field(default="", metadata=unit("", "why it cannot"))
    mode: str = field(default="", metadata=unit("", "serving mode of the plan: aggregated or disaggregated"))
    chips: int = field(default=0, metadata=unit("", "chips of the plan"))
    layout_text: str = field(default="", metadata=unit("", "layout as text", key="layout"))
    evidence: str = field(default="", metadata=unit("", "evidence for the layout, as in a plan"))
    ttft: float = field(default=math.nan, metadata=unit("s", "time to first token, at the 90th percentile"))
    usd_per_request: float = field(default=math.nan, metadata=unit("USD", "rent per request", key="usd_per_request"))
    usd_per_request_range: tuple[float, float] | None = field(
        default=None, metadata=unit("USD", "90 % range of the rent per request", key="usd_per_request_range")
    )
    aggregated_usd_per_request: float = field(
        default=math.nan,
        metadata=unit(
            "USD",
            "rent per request in aggregated mode, the basis of calibrated margins; null: not computed or not served",
            key="aggregated_usd_per_request",
        ),
    )
    input_usd_per_million: float = field(
        default=math.nan, metadata=unit("USD", "rent of the chip time of prefill", key="input_usd_per_million_tokens")
    )
    output_usd_per_million: float = field(
        default=math.nan, metadata=unit("USD", "rent of the chip time of decode", key="output_usd_per_million_tokens")
    )
    rent: Rent = field(default=Rent(), metadata=unit("", "rent of a chip, with kind, date and grade"))
    front: tuple[tuple[float, float], ...] = field(
        default=(), metadata=unit("", "Pareto front: speed of a user [tok/s] and USD per million output tokens", left_out=True)
    )

    def at_speed(self, speed: Number) -> Number:
        """Return the cost of the cheapest layout that reaches a speed.

        Args:
            speed: Speed of each user [tok/s].

        Returns:
            USD per million output tokens, including prefill, with the shape of `speed`; NaN if no layout reaches it.
        """
        if not self.front:
            return np.asarray(speed) * math.nan
        speeds, costs = np.array(self.front).T
        min_speed = np.asarray(speed, dtype=np.float64)[..., None]
        cheapest = np.min(np.where(speeds >= min_speed, costs, math.inf), axis=-1)
        return np.where(np.isfinite(cheapest), cheapest, math.nan)


def plausible(catalog: str | None = None, max_systems: int = MAX_SYSTEMS) -> tuple[list[System], dict[str, str]]:
    """Select the systems that a host may rent.

    Args:
        catalog: Folder of additional catalogue entries.
        max_systems: Maximum number of systems.

    Returns:
        Systems with the fastest memory, and the reason for each other system by name.
    """
    # Load only systems whose chip has a contract rent on a list.
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

    # Systems of one maker with equal memory bandwidth have similar costs; keep one of them.
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
        excluded |= {machine.name: f"same memory bandwidth as {first.name}" for machine in duplicates}
    selected.sort(key=lambda machine: -float(machine.chip.hbm.bandwidth))
    excluded |= {machine.name: f"{max_systems} other systems have faster memory" for machine in selected[max_systems:]}
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
    chips: int | str | None = None,
    evidence: str = SOLD_EVIDENCE,
) -> TokenCost:
    """Compute the cost of a model's tokens on a system.

    Args:
        system: System with its rent.
        model: Model.
        workload: Request.
        slo: Limits of its times.
        engine: Name of the serving engine; by default that of the system.
        modes: Serving modes; the plan uses the cheapest.
        front: Whether to compute the cost at other speeds.
        aggregated: Whether to compute the cost in aggregated mode and measured layouts if the cheapest plan has others.
        chips: Chips of the plan, as in `plan_chips`.
        evidence: Layouts to prefer, as in `plan`.

    Returns:
        Cost with the mode, chips and layout of its plan, or the reason why the system cannot serve the model.
    """
    shared_fields: dict[str, Any] = {"system": system.name, "rent": system.rent}
    searched = partial(
        plan,
        model,
        system,
        workload,
        slo,
        chips=plan_chips(system, chips),
        engine=engine,
        alternatives=False,
        elasticities=False,
        diagnostics=False,
    )
    try:
        best_plan = searched(modes=modes, front=front, evidence=evidence)
    except InputError as problem:
        return TokenCost(feasible=False, reason=str(problem).rstrip("."), **shared_fields)
    if not best_plan.feasible:
        return TokenCost(feasible=False, reason=best_plan.reason.rstrip("."), chips=best_plan.chips, **shared_fields)
    per_request = float(workload.output_tokens) / MILLION
    ends = best_plan.cost_range

    # Margins are calibrated in aggregated mode, so a second plan may be necessary.
    same = best_plan
    if aggregated and (best_plan.mode, best_plan.evidence) != (AGGREGATED, MEASURED):
        same = searched(modes=CALIBRATED_MODES, front=False, evidence=MEASURED)
    return TokenCost(
        feasible=True,
        mode=best_plan.mode,
        aggregated_usd_per_request=same.usd_per_request if same.feasible and same.mode == AGGREGATED else math.nan,
        chips=best_plan.chips,
        layout_text=best_plan.layout_text,
        evidence=best_plan.evidence,
        ttft=best_plan.ttft,
        usd_per_request=best_plan.usd_per_million_output_tokens * per_request,
        usd_per_request_range=None if ends is None else (ends[0] * per_request, ends[1] * per_request),
        input_usd_per_million=best_plan.prefill_usd_per_million_tokens,
        output_usd_per_million=best_plan.decode_usd_per_million_tokens,
        front=tuple((p.tokens_per_second_per_user, p.usd_per_million_output_tokens) for p in best_plan.front),
        **shared_fields,
    )


def _chip_name(path: Path) -> str:
    """Return the name of the chip in a system's file."""
    chip = read_file(path).get("chip", "")
    return str(chip.get("name", "")) if isinstance(chip, dict) else str(chip)


def plan_chips(system: System, chips: int | str | None = None) -> int:
    """Return the number of chips of a plan.

    Args:
        system: System.
        chips: A number, `USUAL` for the usual number of the system, or None.

    Returns:
        By default `CHIPS` in whole scale-up domains, or one domain if that is larger.

    Raises:
        RangeError: The text is not a number of chips.
    """
    if chips == USUAL:
        return int(system.chips)
    if chips is not None:
        return read_chips(chips)
    domain = int(min(system.scale_up.size, system.chips))
    return int(min(domain * max(1, CHIPS // domain), system.scale_out.size))


def read_chips(chips: int | str) -> int:
    """Return a number of chips.

    Args:
        chips: A number, or text such as "64".

    Returns:
        The number.

    Raises:
        RangeError: It is not a whole number of chips.
    """
    return whole_number("chips", count(chips, "chips") if isinstance(chips, str) else chips, maximum=MOST_CHIPS)


def token_costs(
    model: Model,
    systems: Sequence[System],
    workload: Workload,
    slo: Slo,
    engine: str | None = None,
    modes: tuple[str, ...] = MODES,
    front: bool = True,
    aggregated: bool = False,
    chips: int | str | None = None,
    evidence: str = SOLD_EVIDENCE,
) -> tuple[TokenCost, ...]:
    """Compute the cost of a model's tokens on several systems, in parallel.

    Args:
        model: Model.
        systems: Systems with rents.
        workload: Request.
        slo: Limits of its times.
        engine: Name of the serving engine; by default that of each system.
        modes: Serving modes; each plan uses the cheapest.
        front: Whether to compute the cost at other speeds.
        aggregated: Whether to compute the cost in aggregated mode as well.
        chips: Chips of each plan, as in `plan_chips`.
        evidence: Layouts to prefer, as in `plan`.

    Returns:
        Costs in the order of the systems (`cost_on`).
    """
    work = partial(
        cost_on, model=model, workload=workload, slo=slo, engine=engine, modes=modes, front=front, aggregated=aggregated,
        chips=chips, evidence=evidence,
    )  # fmt: skip
    return tuple(map_in_processes(work, systems))


def cheapest(costs: Iterable[TokenCost]) -> TokenCost | None:
    """Return the lowest cost of a request.

    Args:
        costs: Costs.

    Returns:
        The cheapest feasible one; None without any.
    """
    able = [cost for cost in costs if cost.feasible and math.isfinite(cost.usd_per_request)]
    return min(able, key=lambda cost: cost.usd_per_request, default=None)


def mean_of_hopper(costs: Mapping[str, float]) -> float:
    """Return the geometric mean of costs on Hopper.

    Args:
        costs: Costs by system.

    Returns:
        Mean of the known costs on `HOPPER`; NaN without any.
    """
    known_costs = [costs[name] for name in HOPPER if math.isfinite(costs.get(name, math.nan))]
    return math.exp(math.fsum(map(math.log, known_costs)) / len(known_costs)) if known_costs else math.nan


def scaled(cost: TokenCost, factor: float) -> TokenCost:
    """Return a cost at another rent; all its values are proportional to the rent.

    Args:
        cost: Cost.
        factor: New rent over old rent.

    Returns:
        New cost.
    """
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
