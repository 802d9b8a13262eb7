"""View of a fleet of models: its rent, its deployments, and the chips of each system."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table

from steptime.planning.model_fleet import ModelFleet
from steptime.units import in_digits


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
    table = Table(box=None, pad_edge=False)
    for name in ("Model", "System", "Deployments", "Chips", "Requests/s", "USD/h"):
        table.add_column(name, justify="left" if name in ("Model", "System", "Deployments") else "right")
    for choice in fleet.choices:
        table.add_row(
            choice.model.rpartition("/")[2],
            choice.system,
            f"{choice.deployments} x {choice.layout}",
            f"{choice.chips:,}",
            in_digits(choice.rate),
            f"${choice.usd_per_hour:,.2f}",
        )
    chips = ", ".join(f"{name}: {text}" for name, text in figures.items())
    planned, solved = in_digits(fleet.plan_seconds), in_digits(fleet.solve_seconds)
    times = f"{fleet.options} options from plans in {planned} s, solved in {solved} s."
    return Group(f"{title}.", "", table, "", f"{chips}.", times)
