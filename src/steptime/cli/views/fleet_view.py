"""View of a fleet of models: its rent, its deployments, their limits, their hours, and the chips of each system."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Group
from rich.table import Table

from steptime.planning.model_fleet import FleetChoice, ModelFleet
from steptime.units import in_digits, show


def fleet_view(fleet: ModelFleet) -> Any:
    """Return a fleet as text and tables.

    Args:
        fleet: The fleet.

    Returns:
        An object that rich prints.
    """
    title, figures = fleet.headline()
    if not fleet.feasible:
        return title
    table = _table(
        "Model", "System", "Deployments", Chips=True, **{"Requests/s": True, "USD per hour": True, "90 % range": True}
    )
    for choice in fleet.choices:
        low, high = choice.usd_range or (math.nan, math.nan)
        table.add_row(
            _short(choice.model),
            choice.system,
            f"{choice.deployments} x {choice.layout}",
            f"{choice.chips:,}",
            in_digits(choice.rate),
            f"${choice.usd_per_hour:,.2f}",
            f"${low:,.2f} to ${high:,.2f}" if choice.usd_range else "none",
        )
    limits = _table(
        "Model", "System", **{"Speed per user": True, "First token": True, "Percentile": True, "Meets the limits": True}
    )
    for choice in fleet.choices:
        speed, first = (
            _against(choice.speed, choice.speed_limit, "tok/s", "≥"),
            _against(choice.ttft, choice.ttft_limit, "s", "≤"),
        )
        chance = f"{choice.probability:.0%} sure" if math.isfinite(choice.probability) else "no limit"
        limits.add_row(_short(choice.model), choice.system, speed, first, choice.percentile, chance)
    chips = ", ".join(f"{name}: {text}" for name, text in figures.items())
    planned, solved = in_digits(fleet.plan_seconds), in_digits(fleet.solve_seconds)
    times = f"{fleet.options} options from plans in {planned} s, solved in {solved} s."
    return Group(f"{title}.", "", table, "", limits, "", *_day(fleet), f"{chips}.", *_ranges(fleet), times)


def _table(*texts: str, **right: bool) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in texts:
        table.add_column(name)
    for name in right:
        table.add_column(name, justify="right")
    return table


def _short(model: str) -> str:
    return model.rpartition("/")[2]


def _against(value: float, limit: float | None, dimension: str, sign: str) -> str:
    """Return a figure with its limit."""
    text = show(value, dimension)
    return text if limit is None or not math.isfinite(limit) else f"{text} {sign} {show(limit, dimension)}"


def _day(fleet: ModelFleet) -> list[str]:
    """Return the deployments by hour, and what is reserved and on demand; nothing without a day profile."""
    if not fleet.on_demand_chip_hours:
        return []
    lines = ["Deployments by hour, 0 to 23 h:", *(_hours(choice) for choice in fleet.choices), ""]
    for system, reserved, extra in zip(fleet.systems, fleet.reserved_chips, fleet.on_demand_chip_hours, strict=True):
        if reserved or extra:
            rent = f"{reserved:,} reserved at ${system.usd_per_chip_hour:,.2f} per hour"
            rent += f", {extra:,.0f} chip-hours a day on demand at ${system.on_demand:,.2f}" if extra else ""
            lines.append(f"{system.name}: {rent}.")
    if math.isfinite(fleet.separate_usd_per_hour):
        saving = 1 - fleet.usd_per_hour / fleet.separate_usd_per_hour
        lines.append(
            f"With chips of its own for the peak of each model: ${fleet.separate_usd_per_hour:,.2f} per hour; "
            f"sharing saves {saving:.0%}."
        )
    else:
        lines.append("There are too few chips to reserve the peak of each model separately.")
    if fleet.gap > 1e-4:
        lines.append(f"The lowest rent may be up to {fleet.gap:.1%} lower; the search stopped there.")
    return lines


def _hours(choice: FleetChoice) -> str:
    counts = " ".join(str(count) for count in choice.by_hour)
    return f"  {_short(choice.model)} on {choice.system}: {counts}"


def _ranges(fleet: ModelFleet) -> list[str]:
    """Return how the ranges of the rows add; nothing without ranges."""
    if fleet.usd_range_together is None:
        return []
    low, high = fleet.usd_range_together
    return [f"Range if all rows are off in the same way: ${low:,.2f} to ${high:,.2f} per hour."]
