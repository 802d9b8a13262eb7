"""View of a fleet of models: its rent, its deployments, their limits, their hours, and the chips of each system."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from rich.console import Group
from rich.table import Table

from steptime.planning.model_fleet import FleetChoice, ModelFleet
from steptime.units import counted, in_digits, percent, show
from steptime.workload.day_profile import HOURS


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
    table = _table("Model", "System", "Deployments", **{"Chips": True, "Requests/s": True, "USD/h": True, "90 % range": True})
    limits = _table("Model", "System", "Deployments", **{"Tokens/s": True, "First token": True, "Meets limits": True})
    for choice in fleet.choices:
        low, high = choice.usd_range or (math.nan, math.nan)
        # Both tables call a row alike.
        row = (_short(choice.model), choice.system, _deployments(choice))
        table.add_row(
            *row,
            f"{choice.chips:,}",
            in_digits(choice.rate),
            f"{choice.usd_per_hour:,.2f}",
            f"{low:,.2f} to {high:,.2f}" if choice.usd_range else "none",
        )
        speed = in_digits(choice.speed) + ("" if choice.speed_limit is None else f" ≥ {in_digits(choice.speed_limit)}")
        first = show(choice.ttft, "s") + (f" ≤ {show(choice.ttft_limit, 's')}" if math.isfinite(choice.ttft_limit) else "")
        chance = f"{percent(choice.probability)} at {choice.percentile}" if math.isfinite(choice.probability) else "no limit"
        limits.add_row(*row, speed, first, chance)
    chips = ", ".join(f"{name}: {text}" for name, text in figures.items())
    planned, solved = in_digits(fleet.plan_seconds), in_digits(fleet.solve_seconds)
    times = f"{counted(fleet.options, 'option')}, {fleet.planned:,} of them planned, in {planned} s; solved in {solved} s."
    note = (
        "Requests/s: capacity. Tokens/s: output of each user. Meets limits: probability of meeting the hardest limit, at this "
        "percentile of requests."
    )
    used = f"Chips in use{' in the busiest hour' if fleet.on_demand_chip_hours else ''}: {chips}."
    return Group(f"{title}.", "", table, "", limits, "", note, *_day(fleet), used, *_ranges(fleet), times)


def _table(*texts: str, **right: bool) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in texts:
        table.add_column(name, overflow="fold")
    # Numbers stay whole on narrow screens; names are wrapped instead.
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _layout(choice: FleetChoice) -> str:
    """Return the layout in words: x2 is 2 replicas of one chip."""
    text = choice.layout
    return f"{text[1:]} replicas" if text.startswith("x") and text[1:].isdigit() else text


def _deployments(choice: FleetChoice) -> str:
    """Return the number of deployments and their layout; replicas of one chip count one by one."""
    replicas = choice.layout[1:] if choice.layout.startswith("x") else ""
    if replicas.isdigit():
        return f"{choice.deployments * int(replicas):,} x one chip"
    return f"{choice.deployments:,} x {choice.layout}"


def _short(model: str) -> str:
    return model.rpartition("/")[2]


def _day(fleet: ModelFleet) -> list[str]:
    """Return the deployments by hour, and the chips reserved and on demand; nothing without a day profile."""
    if not fleet.on_demand_chip_hours:
        return []
    width = 1 + max(2, *(len(str(max(choice.by_hour))) for choice in fleet.choices))
    lines = ["", "Deployments by hour, from 0 to 23 h:", _hours(range(HOURS), width)]
    for choice in fleet.choices:
        lines += [f"{_short(choice.model)} on {choice.system}, {_layout(choice)}:", _hours(choice.by_hour, width)]
    lines.append("")
    for system, reserved, extra in zip(fleet.systems, fleet.reserved_chips, fleet.on_demand_chip_hours, strict=True):
        if reserved or extra:
            rent = f"{counted(reserved, 'chip')} reserved at ${system.usd_per_chip_hour:,.2f} per hour"
            rent += f", {extra:,.0f} chip-hours a day on demand at ${system.on_demand:,.2f} per hour" if extra else ""
            lines.append(f"{system.name}: {rent}.")
    if math.isfinite(fleet.separate_usd_per_hour):
        saving = 1 - fleet.usd_per_hour / fleet.separate_usd_per_hour
        lines.append(
            f"Chips for the peak of each model, reserved all day, cost ${fleet.separate_usd_per_hour:,.2f} per hour: this plan "
            f"saves {percent(saving)}."
        )
    else:
        lines.append("There are too few chips to reserve the peak of each model separately.")
    if fleet.gap > 1e-4:
        lines.append(f"The lowest rent may be up to {percent(fleet.gap, 1)} lower; the search stopped there.")
    return lines


def _hours(counts: Iterable[int], width: int) -> str:
    return "".join(f"{count:{width}d}" for count in counts)


def _ranges(fleet: ModelFleet) -> list[str]:
    """Return how the ranges of the rows add; nothing without ranges."""
    if fleet.usd_range_together is None:
        return []
    low, high = fleet.usd_range_together
    return [f"Range if all rows are off in the same way: ${low:,.2f} to ${high:,.2f} per hour."]
