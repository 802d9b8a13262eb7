"""What the terminal shows of a search for the highest rate: the answer, latency against rate, and what was tried."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.text import Text

from steptime.simulation.limits import at
from steptime.simulation.metrics import OVERLOADED
from steptime.simulation.rates import HighestRate, RatePoint
from steptime.terminal.views.plots import rate_plot
from steptime.terminal.views.widgets import Grid, table
from steptime.units import counted, in_digits, show


def rate_view(found: HighestRate, width: int, limited: bool = True) -> RenderableType:
    """Return the search for the highest rate: a plot of latency against rate, and the points."""
    parts: list[RenderableType] = [rate_answer(found, limited), Text()]
    drawn = [p for p in found.points if math.isfinite(p.ttft) and p.rate > 0]
    if len({p.rate for p in drawn}) > 1:
        by_rate = sorted(drawn, key=lambda p: p.rate)
        parts.append(rate_plot([p.rate for p in by_rate], [p.ttft for p in by_rate], found.quantile, width))
    return Group(*parts, _tried(found))


def rate_answer(found: HighestRate, limited: bool = True) -> Text:
    """Say which rate is the highest within the limits, or without any the highest that is kept up with."""
    where = at(found.quantile)
    if not limited and found.rate:
        most = (
            f"{found.clients:,} clients of a closed loop"
            if found.clients is not None
            else f"{in_digits(found.rate, 4)} requests/s"
        )
        told = " at most, where the queue does not grow yet; no limits were given: add --speed or --ttft for yours."
        return Text.assemble((most, "bold green"), told)
    if not found.rate:
        why = next((p.why for p in found.points if p.why), "")
        none = "no number of clients is" if found.clients is not None else "no rate is"
        said = Text(f"{none} within the limits" + (f": {why}" if why else "") + f", {where}.", style="bold red")
        if found.points:
            least = found.points[0]
            times = f"first tokens after {show(least.ttft, 's')} and {show(least.tpot, 's')} a token"
            said.append(f" The lowest tried, {in_digits(least.rate, 3)} requests/s, has {times}, {where}.", style="not bold")
        return said
    rate = f"{in_digits(found.rate, 4)} requests/s"
    if found.clients is not None:
        best = f"{counted(found.clients, 'client')} of a closed loop are the most within the limits, {where}"
        return Text.assemble((f"{best}.", "bold green"), f" They bring {rate}: each asks again when its answer ends.")
    said = Text(f"{rate} is the highest rate within the limits, {where}.", style="bold green")
    if found.scale is not None:
        said.append(
            f" The trace is played {in_digits(found.scale)} times as fast, its lengths and bursts kept.", style="not bold"
        )
    if found.cut_short:
        said.append(
            " More may hold: played faster, it lasts too short a time to tell."
            if found.scale is not None
            else " More may hold: at higher rates the runs are too short to tell.",
            style="not bold",
        )
    return said


def _tried(found: HighestRate) -> Grid:
    """Return a row for each rate that was tried."""
    what = "Clients" if found.clients is not None else "Played" if found.scale is not None else ""
    heads = ("Requests/s", f"TTFT {found.quantile}", f"TPOT {found.quantile}", "")
    shown = table(*([what] if what else []), *heads, numbers=range(len(heads) - (not what)))
    for p in found.points:
        verdict = p.verdict if p.good or p.verdict == OVERLOADED else f"{p.verdict}, {p.why or 'limits not met'}"
        shown.add_row(*_load(p), in_digits(p.rate, 4), _time(p.ttft), _time(p.tpot), verdict)
    return shown


def _load(point: RatePoint) -> list[str]:
    """Return the clients of a point, or how many times as fast a trace was played; nothing for a rate that was drawn."""
    if point.clients is not None:
        return [f"{point.clients:,}"]
    return [] if point.scale is None else [f"x {point.scale:.3g}"]


def _time(value: float) -> str:
    return "-" if math.isnan(value) else show(value, "s")
