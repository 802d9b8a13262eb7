"""Plot of a sensitivity: swings as bars around the base answer, and shares of the variance next to them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from steptime.errors import InputError
from steptime.picture_files import COLOURS, save_picture
from steptime.sweeps.sensitivity_result import written
from steptime.units import in_digits

if TYPE_CHECKING:
    from steptime.sweeps.sensitivity_result import Sensitivity, Swing

# Largest number of bars.
MAX_BARS: Final = 15
# Colour of the total index.
TOTAL: Final = "#BBBBBB"
STYLE: Final[Any] = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "svg.fonttype": "none",
    "figure.constrained_layout.use": True, "svg.hashsalt": "steptime", "hatch.linewidth": 0.6,
}  # fmt: skip

# Place of the legends: above each panel.
ABOVE: Final[Any] = {"bbox_to_anchor": (0.0, 1.0), "ncols": 2, "fontsize": 8, "frameon": False, "borderaxespad": 0.2}


def plot(analysis: Sensitivity, path: str) -> None:
    """Write a plot of the swings to a file.

    Args:
        analysis: Result of `sensitivity`.
        path: File with the ending .svg, .png or .pdf.
    """
    save_picture(path, lambda: draw_figure(analysis))


def draw_figure(analysis: Sensitivity) -> Any:
    """Draw the swings and the shares of the variance.

    Args:
        analysis: Result of `sensitivity`.

    Returns:
        A matplotlib figure.

    Raises:
        InputError: If no input changes the answer.
    """
    import matplotlib
    from matplotlib.figure import Figure

    bars = analysis.mattering[:MAX_BARS]
    if not bars:
        raise InputError("plot: no input changes the answer, so that there is nothing to draw; give wider ranges")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.5, 1.6 + 0.34 * len(bars)))
        swings, share_axes = figure.subplots(1, 2, sharey=True, width_ratios=(3, 1))
        _swings(swings, analysis, bars)
        _shares(share_axes, analysis, bars)
        figure.suptitle(_title(analysis), fontsize=10.5, x=0.01, ha="left")
    return figure


def _title(analysis: Sensitivity) -> str:
    names = [str(getattr(value, "name", value)) for key in ("model", "system") if (value := analysis.fixed.get(key))]
    fixed_texts = [
        f"{key} {in_digits(float(value), 4) if isinstance(value, int | float) else getattr(value, 'name', value)}"
        for key, value in analysis.fixed.items()
        if key not in ("model", "system", "catalog")
    ]
    words = f"{analysis.question}: {', '.join([*names, *fixed_texts])}" if names or fixed_texts else analysis.question
    return words if len(words) <= 100 else words[:97] + "..."


def _swings(place: Any, analysis: Sensitivity, bars: list[Swing]) -> None:
    """Draw one bar per input, from its answer at the low end to that at the high end."""
    from matplotlib.patches import Patch

    for row, bar in enumerate(bars):
        # Hatching distinguishes the two ends without colour.
        for end, colour, hatch, value, side in (
            (bar.at_met[0], COLOURS[0], "", bar.feasible_range[0], bar.at_met[1]),
            (bar.at_met[1], COLOURS[4], "////", bar.feasible_range[1], bar.at_met[0]),
        ):  # fmt: skip
            if not math.isfinite(end):
                continue
            place.barh(
                row, end - analysis.base, left=analysis.base, height=0.62, color=colour, hatch=hatch, edgecolor="white", lw=0
            )

            # The value of the input stands outside its bar.
            outward = end > analysis.base if end != analysis.base else side <= analysis.base
            place.annotate(
                written(value, bar.unit), (end, row), xytext=(3 if outward else -3, 0), textcoords="offset points",
                fontsize=7, va="center", ha="left" if outward else "right", color="#444444",
            )  # fmt: skip
    place.axvline(analysis.base, color="black", lw=0.9)
    place.set_yticks(range(len(bars)), [bar.name for bar in bars])
    place.invert_yaxis()
    place.margins(x=0.17)
    place.grid(axis="x", alpha=0.3)
    place.set_xlabel(
        f"{analysis.answer.replace('_', ' ').replace('usd', 'USD')}" + (f" [{analysis.unit}]" if analysis.unit else "")
        + f"; base {written(analysis.base, analysis.unit)}"
    )  # fmt: skip
    low = Patch(color=COLOURS[0], label="input at its low")
    high = Patch(facecolor=COLOURS[4], hatch="////", edgecolor="white", lw=0, label="input at its high")
    place.legend(handles=[low, high], loc="lower left", **ABOVE)


def _shares(place: Any, analysis: Sensitivity, bars: list[Swing]) -> None:
    """Draw the shares of the variance: both indices, or shares from the swings."""
    rows = range(len(bars))
    if not analysis.samples:
        place.barh(rows, [100 * bar.share for bar in bars], height=0.62, color=COLOURS[2])
        place.set_xlabel("% of the variance")
    else:
        # First and total index of an input lie side by side, each with its 90 % range.
        for offset, name, colour in ((-0.17, "first", COLOURS[2]), (0.17, "total", TOTAL)):
            values = [100 * (getattr(bar, name) or 0.0) for bar in bars]
            ends = [getattr(bar, f"{name}_range") or (0.0, 0.0) for bar in bars]
            errors = [
                [max(value - 100 * end[0], 0.0) for value, end in zip(values, ends, strict=True)],
                [max(100 * end[1] - value, 0.0) for value, end in zip(values, ends, strict=True)],
            ]
            place.barh([row + offset for row in rows], values, height=0.32, color=colour, xerr=errors, label=name,
                       error_kw={"lw": 0.8, "ecolor": "#333333"})  # fmt: skip
        place.legend(loc="lower left", **ABOVE)
        place.set_xlabel("% of the variance")
    place.grid(axis="x", alpha=0.3)
    place.set_xlim(left=0)
    place.tick_params(axis="y", length=0)
