"""Plot of `context`: the cost of decode over the length of context, one curve per technique."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from steptime.errors import InputError
from steptime.hardware.unit_cost import usd
from steptime.picture_files import COLOURS, save_picture
from steptime.sweeps.plots import DASHES
from steptime.sweeps.tornado_plot import STYLE
from steptime.units import in_digits

if TYPE_CHECKING:
    from steptime.sweeps.context_limit_result import ContextWalls


def plot(limits: ContextWalls, path: str) -> None:
    """Write a plot of the costs to a file.

    Args:
        limits: Result of `context_walls`.
        path: File with the ending .svg, .png or .pdf.
    """
    save_picture(path, lambda: draw_figure(limits))


def draw_figure(limits: ContextWalls) -> Any:
    """Draw the costs over the length of context.

    Args:
        limits: Result of `context_walls`.

    Returns:
        A matplotlib figure.

    Raises:
        InputError: If no length meets the limits.
    """
    import matplotlib
    from matplotlib.figure import Figure

    if not any(len(lengths) for lengths, _ in limits.curves):
        raise InputError("plot: no context meets the limits, so that there is nothing to draw; relax speed or price")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.5, 5.4))
        axes = figure.subplots()
        for index, (wall, (lengths, cost)) in enumerate(zip(limits.walls, limits.curves, strict=True)):
            colour, dash = COLOURS[index % len(COLOURS)], DASHES[index // len(COLOURS) % len(DASHES)]
            name = wall.technique or "unchanged"
            axes.loglog(lengths, cost, color=colour, ls=dash, lw=2.4 if not wall.technique else 1.5, label=name)

            # A mark ends each curve at the limit of memory or time.
            if len(lengths) and math.isfinite(wall.longest):
                axes.plot(lengths[-1], cost[-1], marker="|", ms=11, mew=2, color=colour)
        if math.isfinite(limits.usd_per_million):
            axes.axhline(limits.usd_per_million, color="#888888", lw=0.8, ls=":")
            axes.annotate(
                usd(limits.usd_per_million), (axes.get_xlim()[0], limits.usd_per_million), fontsize=8, color="#666666"
            )
        if math.isfinite(limits.max_context):
            axes.axvline(limits.max_context, color="#888888", lw=0.8, ls=":")
            at_foot = (limits.max_context, axes.get_ylim()[0])
            axes.annotate(
                " maximum context of the model", at_foot, fontsize=8, color="#666666", rotation=90, va="bottom", ha="right"
            )
        axes.set_xlabel("context [tokens]")
        axes.set_ylabel("USD per million output tokens (decode only)")
        axes.grid(alpha=0.25, which="major")
        axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        speed = f"{in_digits(1 / limits.tpot, 3)} tok/s"
        title = f"{limits.model} on {limits.system}, at least {speed}; | marks the limit of memory or time"
        figure.suptitle(title, fontsize=10.5, x=0.01, ha="left")
    return figure
