"""Plots: a sweep (curves, maps, intervals of names, Pareto front), a sensitivity (tornado), and costs by length of context."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from steptime.errors import InputError, RangeError
from steptime.hardware.rental_prices import usd
from steptime.number_checks import Array
from steptime.pareto import pareto
from steptime.picture_files import COLOURS, GREY, STYLE
from steptime.questions.declaration import listed, lower_is_better
from steptime.sweeps.sensitivity_result import written
from steptime.units import in_digits

if TYPE_CHECKING:
    from steptime.sweeps.axes import Axis
    from steptime.sweeps.context_limit import ContextWalls
    from steptime.sweeps.sensitivity_result import Sensitivity, Swing
    from steptime.sweeps.sweep_result import Sweep

# Dashes and marks distinguish curves without colour.
DASHES: Final = ("-", "--", "-.", ":")
MARKS: Final = ("o", "s", "^", "D", "v", "P", "p", "*")
# Limits of one plot: curves, panels, points with a mark each, points from which colours ignore outliers, bars, and letters.
MOST_LINES, MOST_PANELS, FEW_MARKS, MANY_POINTS, MAX_BARS, LONGEST_TITLE = len(COLOURS), 9, 40, 10_000, 15, 90
# Colour map whose lightness rises evenly, for colour-blind readers.
MAP: Final = "cividis"
# Ratio of the largest to the smallest value from which a scale is logarithmic.
SPREAD: Final = 8.0
# Style of plots whose grid has one direction.
SMALL: Final[Any] = STYLE | {"font.size": 9, "axes.grid": False, "axes.axisbelow": True, "hatch.linewidth": 0.6}
# Points beyond memory.
FULL: Final[Any] = {"marker": "x", "ls": "", "color": "#B00000"}
# Colour of the total index.
TOTAL: Final = "#BBBBBB"
# Place of the legends of a tornado: above each panel.
ABOVE: Final[Any] = {"bbox_to_anchor": (0.0, 1.0), "ncols": 2, "fontsize": 8, "frameon": False, "borderaxespad": 0.2}


def _figure(width: float, height: float, title: str) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    figure.suptitle(title, fontsize=10.5, x=0.01, ha="left")
    return figure


def _title(question: str, fixed: Mapping[str, Any]) -> str:
    """Return the question with its fixed inputs: names of model, system and engine first."""
    names = [str(getattr(value, "name", value)) for key in ("model", "system", "engine") if (value := fixed.get(key))]
    fixed_texts = [
        f"{key} {in_digits(float(value), 4) if isinstance(value, int | float) else getattr(value, 'name', value)}"
        for key, value in fixed.items()
        if key not in ("model", "system", "engine", "catalog")
    ]
    words = f"{question}: {', '.join([*names, *fixed_texts])}" if names or fixed_texts else question
    return words if len(words) <= LONGEST_TITLE else words[: LONGEST_TITLE - 3] + "..."


# --- sweeps -------------------------------------------------------------------------------------------------------------


def draw_sweep(sweep: Sweep, *, answer: str | None = None, against: str | None = None) -> Any:
    """Draw an answer over the axes of a sweep, or against another answer.

    The longest axis is horizontal, the next gives curves or the vertical axis of a map, and a third gives panels.

    Args:
        sweep: Result of a sweep.
        answer: Answer to plot; the cost by default.
        against: Answer on the horizontal axis, in place of the axes of the sweep.

    Returns:
        A matplotlib figure.

    Raises:
        InputError: If the answer is a text, or has no values.
        RangeError: If the sweep has too many axes or values for one plot.
    """
    import matplotlib

    name = answer or first_number(sweep)
    if not sweep.column(name).numeric:
        raise InputError(f"answer: {name} is a text, which has no plot; give {listed(numbers(sweep)) or 'another answer'}")
    title = _title(sweep.question, sweep.fixed)
    with matplotlib.rc_context(STYLE):
        if against is None:
            return _over_axes(sweep, name, title)
        figure = _figure(7.5, 4.8, title)
        _front(figure.subplots(), sweep, name, against)
    return figure


def numbers(sweep: Sweep) -> list[str]:
    """Return the answers that are numbers, without the ends of ranges.

    Args:
        sweep: Result of a sweep.

    Returns:
        Names in order.
    """
    ends = {end for pair in sweep.declaration.bands.values() for end in pair}
    return [name for name, column in sweep.answers.items() if column.numeric and name not in ends]


def first_number(sweep: Sweep) -> str:
    """Return the answer that a plot shows by default: the cost if one is known.

    Args:
        sweep: Result of a sweep.

    Returns:
        Name of the answer.

    Raises:
        InputError: If no answer is a number.
    """
    names = numbers(sweep)
    if not names:
        raise InputError("plot: no answer is a number, so that there is nothing to draw; ask for another answer")
    # Without a rent, no point has a cost.
    answered = [name for name in names if np.isfinite(sweep.answers[name].values).any()] or names
    return next((name for name in answered if name.startswith("usd_per_million")), answered[0])


def _label(name: str, unit: str) -> str:
    return name.replace("_", " ").replace("usd", "USD") + (f" [{unit}]" if unit else "")


def spread_out(values: Array) -> bool:
    """Return whether values need a logarithmic scale: all above 0, and far apart.

    Args:
        values: Values of any shape.

    Returns:
        True for a logarithmic scale.
    """
    finite = values[np.isfinite(values)]
    return bool(len(finite) > 1 and finite.min() > 0 and finite.max() > SPREAD * finite.min())


def _scale(place: Any, which: str, values: Array) -> None:
    """Make an axis logarithmic if its values are spread out, and few or in about equal ratios; write plain numbers."""
    # Equal ratios lie closer together at the lower end.
    has_even_ratios = np.median(values) < 0.25 * (values.min() + values.max())
    if spread_out(values) and (len(values) <= FEW_MARKS or has_even_ratios):
        _logarithmic(place, which, values)
    else:
        getattr(place, f"{which}axis").set_major_formatter(_plainly)


def _logarithmic(place: Any, which: str, values: Array) -> None:
    """Make an axis logarithmic with plain numbers at 1, 2 and 5 of each power of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    positive = values[np.isfinite(values) & (values > 0)]
    getattr(place, f"set_{which}scale")("log")
    axis = getattr(place, f"{which}axis")
    powers = np.log10(positive.max() / positive.min()) if positive.size else 1.0
    # Numbers at 1, 2 and 5 overlap in narrow panels and over many powers of ten.
    narrow = which == "x" and len(place.figure.axes) > 1 and powers > 1
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if powers < 3 and not narrow else (1,), numticks=12))
    axis.set_major_formatter(FuncFormatter(_plainly))
    axis.set_minor_formatter(NullFormatter())


def _plainly(value: float, _: Any = None) -> str:
    return f"{value:.3g}" if not 1e-4 <= abs(value) < 1e7 and value else in_digits(float(value), 3)


def _over_axes(sweep: Sweep, name: str, title: str) -> Any:
    """Draw an answer over one, two or three axes."""
    if sweep.together:
        raise RangeError("plot: axes that advance together have no plot over them; give --against ANSWER to plot two answers")
    order = sorted(range(len(sweep.axes)), key=lambda index: (not sweep.axes[index].numeric, -len(sweep.axes[index].values)))

    # Axes with one value need no place in the plot.
    order = [index for index in order if len(sweep.axes[index].values) > 1] or order[:1]
    if len(order) > 3 or (len(order) == 3 and len(sweep.axes[order[2]].values) > MOST_PANELS):
        raise RangeError(
            f"plot: at most three axes, the third with at most {MOST_PANELS} values; fix some of "
            f"{listed(axis.name for axis in sweep.axes)}"
        )
    third = sweep.axes[order[2]] if len(order) == 3 else None
    panels = 1 if third is None else len(third.values)
    columns = min(panels, 3)
    rows = -(-panels // columns)
    figure = _figure(7.5, 4.8, title) if panels == 1 else _figure(4.2 * columns, 3.6 * rows, title)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    for index, place in enumerate(axes):
        # The last row of panels may not be full.
        if index >= panels:
            place.set_visible(False)
            continue
        selection: list[Any] = [slice(None) if position in order[:2] else 0 for position in range(len(sweep.axes))]
        if third is not None:
            selection[order[2]] = index
            place.set_title(f"{third.name} {_value(third, index)} {third.unit}".rstrip(), fontsize=10)
        _panel(figure, place, sweep, name, order[:2], tuple(selection))
        if index % columns:
            place.set_ylabel("")
        if index < panels - columns:
            place.set_xlabel("")
        else:
            place.tick_params(labelbottom=True)
    return figure


def _panel(figure: Any, place: Any, sweep: Sweep, name: str, order: list[int], selection: tuple[Any, ...]) -> None:
    """Draw one panel: a map of two long axes, curves, or intervals of names."""
    first = sweep.axes[order[0]]
    if first.numeric:
        _scale(place, "x", first.values)
    second = sweep.axes[order[1]] if len(order) > 1 else None
    if second is not None and second.numeric and len(second.values) > MOST_LINES:
        _map(figure, place, sweep, name, order, selection)
    elif second is not None and len(second.values) > MOST_LINES:
        raise RangeError(f"plot: at most {MOST_LINES} curves, got {len(second.values)} values of {second.name}; give fewer")
    else:
        _curves(place, sweep, name, order, selection)


def _value(axis: Axis, index: int) -> str:
    value = axis.labels[index]
    if not axis.numeric:
        return str(value)
    return f"{value:,}" if axis.values.dtype.kind in "iu" else in_digits(float(value), 4)


def _part(sweep: Sweep, name: str, order: list[int], selection: tuple[Any, ...]) -> Array:
    """Return the values of an answer in one panel; the first dimension is the x axis."""
    values = sweep.column(name).values[selection]
    return np.asarray(values if len(order) == 1 or order[0] < order[1] else values.T)


def _curves(place: Any, sweep: Sweep, name: str, order: list[int], selection: tuple[Any, ...]) -> None:
    first = sweep.axes[order[0]]
    values = _part(sweep, name, order, selection).reshape(len(first.values), -1)
    low, high = (
        _part(sweep, end, order, selection).reshape(values.shape) if end in sweep.answers else None
        for end in sweep.declaration.bands.get(name, ("", ""))
    )
    has_memory = "memory_share" in sweep.answers
    share = _part(sweep, "memory_share", order, selection).reshape(values.shape) if has_memory else None
    x = first.values if first.numeric else np.arange(len(first.values))

    # The legend mentions ranges only if at least one is drawn.
    banded_at_all = low is not None and len(x) > 1 and bool(np.isfinite(low).any())
    rising = np.argsort(x, kind="stable")
    for curve in range(values.shape[1]):
        colour, mark = COLOURS[curve % len(COLOURS)], MARKS[curve % len(MARKS)]
        curve_label = _value(sweep.axes[order[1]], curve) if len(order) > 1 else None
        banded = low is not None and high is not None and bool(np.isfinite(low[:, curve]).any())
        if not first.numeric:
            # Intervals of several curves lie side by side at each name.
            shifted = x + 0.16 * (curve - (values.shape[1] - 1) / 2)
            if banded:
                place.vlines(shifted, low[:, curve], high[:, curve], color=colour, alpha=0.5, lw=4)  # type: ignore[index]
            place.plot(shifted, values[:, curve], mark, color=colour, label=curve_label)
            continue
        marker = mark if len(x) <= FEW_MARKS else None
        place.plot(x[rising], values[rising, curve], DASHES[curve % 4], color=colour, marker=marker, ms=4, label=curve_label)

        # Points beyond memory stay on the curve, with a red cross.
        if share is not None and (share[:, curve] > 1).any():
            over = share[:, curve] > 1
            full_label = "memory full" if curve == values.shape[1] - 1 else None
            place.plot(x[over], values[over, curve], **FULL, ms=5, label=full_label)
        if banded:
            place.fill_between(x[rising], low[rising, curve], high[rising, curve], color=colour, alpha=0.13, lw=0)  # type: ignore[index]
    if not first.numeric:
        turned = {"rotation": 30, "ha": "right"} if len(x) > 4 else {}
        place.set_xticks(x, [str(tick) for tick in first.labels], **turned)
    else:
        place.set_xlabel(first.title)
    if spread_out(values):
        _logarithmic(place, "y", values)
    place.set_ylabel(_label(name, sweep.column(name).unit) + ("\n90 % range shaded" if banded_at_all and first.numeric else ""))
    if place.get_legend_handles_labels()[0]:
        place.legend(title=sweep.axes[order[1]].title if len(order) > 1 else None, fontsize=8, title_fontsize=8, framealpha=0.8)


def _map(figure: Any, place: Any, sweep: Sweep, name: str, order: list[int], selection: tuple[Any, ...]) -> None:
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.ticker import LogLocator, MaxNLocator

    first, second = (sweep.axes[index] for index in order)
    values = np.ma.masked_invalid(_part(sweep, name, order, selection).T.astype(np.float64))
    all_values = sweep.column(name).values
    finite = all_values[np.isfinite(all_values)]
    if not finite.size:
        raise InputError(f"answer: {name} has no value at any point; plot another answer")
    log = spread_out(finite)

    # Among many points a few outliers would take the whole colour scale.
    ends = np.quantile(finite, (0.002, 0.998)) if finite.size > MANY_POINTS else (finite.min(), finite.max())
    norm = (LogNorm if log else Normalize)(*ends)
    rising = [np.argsort(axis.values, kind="stable") for axis in (first, second)]
    values = values[np.ix_(rising[1], rising[0])]
    x, y = first.values[rising[0]], second.values[rising[1]]
    _scale(place, "y", second.values)
    mesh = place.pcolormesh(x, y, values, norm=norm, cmap=MAP, shading="nearest", rasterized=True)
    outside = "both" if finite.size > MANY_POINTS else "neither"
    bar = figure.colorbar(mesh, ax=place, extend=outside, format=_plainly if log else None)
    bar.set_label(_label(name, sweep.column(name).unit))

    # Contour lines need two values on each axis.
    if min(values.shape) > 1:
        levels = (LogLocator(subs=(1, 2, 5)) if log else MaxNLocator(8)).tick_values(*ends)
        lines = place.contour(x, y, values, levels=levels, colors="white", linewidths=0.7)
        place.clabel(lines, fmt=lambda value: in_digits(float(value), 3), fontsize=8)
    if "memory_share" in sweep.answers:
        share = _part(sweep, "memory_share", order, selection).T[np.ix_(rising[1], rising[0])]
        finite = share[np.isfinite(share)]
        # The line where the memory of a chip is full, if it crosses the map.
        if finite.size and finite.min() < 1 < finite.max() and min(share.shape) > 1:
            line = place.contour(x, y, share, levels=[1.0], colors="#D55E00", linewidths=1.8, linestyles="--")
            place.clabel(line, fmt=lambda _: "memory full", fontsize=8)
    place.set_xlabel(first.title)
    place.set_ylabel(second.title)
    place.grid(False)


def _front(place: Any, sweep: Sweep, name: str, against: str) -> None:
    """Draw one answer against another, one dot per point, with their Pareto front."""
    across, up = sweep.column(against), sweep.column(name)
    if not across.numeric:
        raise InputError(f"against: {against} is a text; give {listed(numbers(sweep))}")
    x, y = across.values.ravel().astype(float), up.values.ravel().astype(float)
    valid = np.isfinite(x) & np.isfinite(y)
    full = valid & ~sweep.fits.ravel()
    valid &= sweep.fits.ravel()
    if not valid.any():
        raise InputError(f"plot: no point that fits in memory has both {name} and {against}; plot other answers")

    # Colours show the shortest axis, names before numbers.
    short_axes = [axis for axis in sweep.axes if 1 < len(axis.values) <= MOST_LINES and not sweep.together]
    groups = min(short_axes, key=lambda axis: (axis.numeric, len(axis.values)), default=None)
    labels = sweep.grid()[sweep.axes.index(groups)].ravel() if groups else np.full(x.shape, "")
    for index, group in enumerate(dict.fromkeys(labels)):
        members = valid & (labels == group)
        mark, colour = MARKS[index % len(MARKS)], COLOURS[index % len(COLOURS)]
        place.plot(x[members], y[members], mark, color=colour, ms=4, alpha=0.7, label=_group_label(groups, group), ls="")
    if full.any():
        place.plot(x[full], y[full], **FULL, ms=4, alpha=0.5, label="memory full", zorder=0)
    signs = [-1.0 if lower_is_better(aim) else 1.0 for aim in (against, name)]
    best = pareto(signs[0] * x[valid], signs[1] * y[valid])
    ordered = np.argsort(x[valid][best])
    place.plot(x[valid][best][ordered], y[valid][best][ordered], "-", color="#444444", lw=1, label="Pareto front", zorder=0)
    for values, which in ((x[valid], "x"), (y[valid], "y")):
        if spread_out(values):
            _logarithmic(place, which, values)
    place.set_xlabel(_label(against, across.unit))
    place.set_ylabel(_label(name, up.unit))
    place.legend(fontsize=8)


def _group_label(axis: Axis | None, value: Any) -> str | None:
    """Return the legend of the points of one value of an axis."""
    if axis is None:
        return None
    return f"{axis.name} {in_digits(float(value), 4)} {axis.unit}".rstrip() if axis.numeric else str(value)


# --- tornado ------------------------------------------------------------------------------------------------------------


def draw_tornado(analysis: Sensitivity) -> Any:
    """Draw the swings and the shares of the variance.

    Args:
        analysis: Result of `sensitivity`.

    Returns:
        A matplotlib figure.

    Raises:
        InputError: If no input changes the answer.
    """
    import matplotlib

    bars = analysis.mattering[:MAX_BARS]
    if not bars:
        raise InputError("plot: no input changes the answer, so that there is nothing to draw; give wider ranges")
    with matplotlib.rc_context(SMALL):
        figure = _figure(9.5, 1.6 + 0.34 * len(bars), _title(analysis.question, analysis.fixed))
        swing_axes, share_axes = figure.subplots(1, 2, sharey=True, width_ratios=(3, 1))
        _swings(swing_axes, analysis, bars)
        _shares(share_axes, analysis, bars)
    return figure


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
    place.set_xlabel(f"{_label(analysis.answer, analysis.unit)}; base {written(analysis.base, analysis.unit)}")
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


# --- costs by length of context -----------------------------------------------------------------------------------------


def draw_contexts(limits: ContextWalls) -> Any:
    """Draw the costs over the length of context.

    Args:
        limits: Result of `context_walls`.

    Returns:
        A matplotlib figure.

    Raises:
        InputError: If no length meets the limits.
    """
    import matplotlib

    if not any(len(lengths) for lengths, _ in limits.curves):
        raise InputError("plot: no context meets the limits, so that there is nothing to draw; relax speed or price")
    speed = f"{in_digits(1 / limits.tpot, 3)} tok/s"
    title = f"{limits.model} on {limits.system}, at least {speed}; | marks the limit of memory or time"
    with matplotlib.rc_context(SMALL):
        figure = _figure(9.5, 5.4, title)
        axes = figure.subplots()
        for index, (wall, (lengths, cost)) in enumerate(zip(limits.walls, limits.curves, strict=True)):
            colour, dash = COLOURS[index % len(COLOURS)], DASHES[index // len(COLOURS) % len(DASHES)]
            name = wall.technique or "unchanged"
            axes.loglog(lengths, cost, color=colour, ls=dash, lw=2.4 if not wall.technique else 1.5, label=name)

            # A mark ends each curve at the limit of memory or time.
            if len(lengths) and math.isfinite(wall.longest):
                axes.plot(lengths[-1], cost[-1], marker="|", ms=11, mew=2, color=colour)
        if math.isfinite(limits.usd_per_million):
            axes.axhline(limits.usd_per_million, color=GREY, lw=0.8, ls=":")
            axes.annotate(
                usd(limits.usd_per_million), (axes.get_xlim()[0], limits.usd_per_million), fontsize=8, color="#666666"
            )
        if math.isfinite(limits.max_context):
            axes.axvline(limits.max_context, color=GREY, lw=0.8, ls=":")
            at_foot = (limits.max_context, axes.get_ylim()[0])
            axes.annotate(
                " maximum context of the model", at_foot, fontsize=8, color="#666666", rotation=90, va="bottom", ha="right"
            )
        axes.set_xlabel("context [tokens]")
        axes.set_ylabel("USD per million output tokens (decode only)")
        axes.grid(alpha=0.25, which="major")
        axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure
