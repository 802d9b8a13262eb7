"""The picture of contexts: what decode costs against the length of context, a curve for each technique."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from steptime.errors import InputError
from steptime.hardware.unit_cost import usd
from steptime.picture_files import save_picture
from steptime.sweeps.plots import COLOURS, DASHES
from steptime.sweeps.tornado_plot import STYLE
from steptime.units import in_digits

if TYPE_CHECKING:
    from steptime.sweeps.context_limit_result import ContextWalls


def plot(found: ContextWalls, path: str) -> None:
    """Write a picture of the costs by its ending: .svg, .png or .pdf."""
    save_picture(path, lambda: drawn(found))


def drawn(found: ContextWalls) -> Any:
    """Return the picture as a matplotlib figure."""
    import matplotlib
    from matplotlib.figure import Figure

    if not any(len(lengths) for lengths, _ in found.curves):
        raise InputError("no length of context meets the limit, and there is nothing to draw")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.5, 5.4))
        axes = figure.subplots()
        for at, (one, (lengths, cost)) in enumerate(zip(found.walls, found.curves, strict=True)):
            colour, dash = COLOURS[at % len(COLOURS)], DASHES[at // len(COLOURS) % len(DASHES)]
            name = one.technique or "as it is"
            axes.loglog(lengths, cost, color=colour, ls=dash, lw=2.4 if not one.technique else 1.5, label=name)
            if len(lengths) and math.isfinite(one.longest):
                axes.plot(lengths[-1], cost[-1], marker="|", ms=11, mew=2, color=colour)
        if math.isfinite(found.usd_per_million):
            axes.axhline(found.usd_per_million, color="#888888", lw=0.8, ls=":")
            axes.annotate(usd(found.usd_per_million), (axes.get_xlim()[0], found.usd_per_million), fontsize=8, color="#666666")
        if math.isfinite(found.max_context):
            axes.axvline(found.max_context, color="#888888", lw=0.8, ls=":")
            at_foot = (found.max_context, axes.get_ylim()[0])
            axes.annotate(" the model's longest", at_foot, fontsize=8, color="#666666", rotation=90, va="bottom", ha="right")
        axes.set_xlabel("context [tokens]")
        axes.set_ylabel("USD per million output tokens, decode alone")
        axes.grid(alpha=0.25, which="major")
        axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        speed = f"{in_digits(1 / found.tpot, 3)} tok/s"
        title = f"{found.model} on {found.system}, at least {speed}; | where memory or time end it"
        figure.suptitle(title, fontsize=10.5, x=0.01, ha="left")
    return figure
