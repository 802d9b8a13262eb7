"""Plots of a sweep: curves with ranges, maps of two axes, intervals of names, and the Pareto front of two answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from steptime.errors import InputError, RangeError
from steptime.number_checks import Array
from steptime.picture_files import COLOURS, STYLE, save_picture
from steptime.questions.declaration import listed, lower_is_better
from steptime.units import in_digits

if TYPE_CHECKING:
    from steptime.sweeps.axes import Axis
    from steptime.sweeps.sweep_result import Column, Sweep

# Dashes and marks distinguish curves without colour.
DASHES: Final = ("-", "--", "-.", ":")
MARKS: Final = ("o", "s", "^", "D", "v", "P", "p", "*")
# Limits of one plot: curves, panels, points with a mark each, and points from which colours ignore outliers.
MOST_LINES, MOST_PANELS, FEW_MARKS, MANY_POINTS = len(COLOURS), 9, 40, 10_000
# Colour map whose lightness rises evenly, for colour-blind readers.
MAP: Final = "cividis"
# Ratio of the largest to the smallest value from which a scale is logarithmic.
SPREAD: Final = 8.0


def plot(sweep: Sweep, path: str, *, answer: str | None = None, against: str | None = None) -> None:
    """Write a plot of an answer over the axes to a file.

    The longest axis is horizontal, the next gives curves or the vertical axis of a map, and a third gives panels.

    Args:
        sweep: Result of a sweep.
        path: File with the ending .svg, .png or .pdf.
        answer: Answer to plot; the cost by default.
        against: Answer on the horizontal axis, in place of the axes of the sweep.
    """
    save_picture(path, lambda: draw_figure(sweep, answer=answer, against=against))


def draw_figure(sweep: Sweep, *, answer: str | None = None, against: str | None = None) -> Any:
    """Draw an answer over the axes of a sweep, or against another answer.

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
    from matplotlib.figure import Figure

    name = answer or first_number(sweep)
    column = sweep.column(name)
    if not column.numeric:
        raise InputError(f"answer: {name} is a text, which has no plot; give {listed(numbers(sweep)) or 'another answer'}")
    with matplotlib.rc_context(STYLE):
        if against is not None:
            figure = Figure(figsize=(7.5, 4.8))
            _front(figure.subplots(), sweep, name, against)
        else:
            figure = _over_axes(Figure, sweep, name)
        figure.suptitle(_title(sweep), fontsize=11, x=0.01, ha="left")
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
    """Return the answer that a plot shows by default: the cost if there is one.

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
    return next((name for name in names if name.startswith("usd_per_million")), names[0])


def _title(sweep: Sweep) -> str:
    names = [str(getattr(value, "name", value)) for key in ("model", "system", "engine") if (value := sweep.fixed.get(key))]
    fixed_texts = [
        f"{key} {in_digits(float(value), 4) if isinstance(value, int | float) else value}"
        for key, value in sweep.fixed.items()
        if key not in ("model", "system", "engine", "catalog")
    ]
    words = f"{sweep.question}: " + ", ".join([*names, *fixed_texts]) if names or fixed_texts else sweep.question
    return words if len(words) <= 90 else words[:87] + "..."


def _label(name: str, column: Column) -> str:
    return f"{name.replace('_', ' ').replace('usd', 'USD')}" + (f" [{column.unit}]" if column.unit else "")


def spread_out(values: Array) -> bool:
    """Return whether values need a logarithmic scale: all above 0, and far apart.

    Args:
        values: Values of any shape.

    Returns:
        True for a logarithmic scale.
    """
    finite = values[np.isfinite(values)]
    return bool(len(finite) > 1 and finite.min() > 0 and finite.max() > SPREAD * finite.min())


def _axis_log(axis: Axis) -> bool:
    return bool(axis.numeric and spread_out(axis.values) and (len(axis.values) <= FEW_MARKS or _even_ratios(axis.values)))


def _scale(place: Any, which: str, axis: Axis) -> None:
    """Make an axis logarithmic if its values are spread out; write plain numbers."""
    if _axis_log(axis):
        _logarithmic(place, which, axis.values)
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


def _even_ratios(values: Array) -> bool:
    """Return whether values lie closer together at the lower end, as equal ratios do."""
    return bool(np.median(values) < 0.25 * (values.min() + values.max()))


def _over_axes(make: Any, sweep: Sweep, name: str) -> Any:
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
    panels = len(sweep.axes[order[2]].values) if len(order) == 3 else 1
    wide = min(panels, 3)
    figure = make(figsize=(7.5 if panels == 1 else 4.2 * wide, 4.8 if panels == 1 else 3.6 * -(-panels // wide)))
    axes = figure.subplots(-(-panels // wide), wide, squeeze=False, sharex=True, sharey=True).ravel()

    # The last row of panels may not be full.
    for place in axes[panels:]:
        place.set_visible(False)
    for index in range(max(0, panels - wide), panels):
        axes[index].tick_params(labelbottom=True)
    for index in range(panels):
        selection: list[Any] = [slice(None) if position in order[:2] else 0 for position in range(len(sweep.axes))]
        if len(order) == 3:
            selection[order[2]] = index
            third = sweep.axes[order[2]]
            axes[index].set_title(f"{third.name} {_value(third, index)} {third.unit}".rstrip(), fontsize=10)
        _panel(figure, axes[index], sweep, name, order[:2], tuple(selection))
        if index % wide:
            axes[index].set_ylabel("")
        if index < panels - wide:
            axes[index].set_xlabel("")
    return figure


def _panel(figure: Any, place: Any, sweep: Sweep, name: str, order: list[int], selection: tuple[Any, ...]) -> None:
    """Draw one panel: a map of two long axes, curves, or intervals of names."""
    first = sweep.axes[order[0]]
    if first.numeric:
        _scale(place, "x", first)
    second = sweep.axes[order[1]] if len(order) > 1 else None
    if second is not None and second.numeric and len(second.values) > MOST_LINES:
        _map(figure, place, sweep, name, order, selection)
    elif second is not None and len(second.values) > MOST_LINES:
        raise RangeError(f"plot: at most {MOST_LINES} curves, got {len(second.values)} values of {second.name}; give fewer")
    else:
        _curves(place, sweep, name, order, selection)


def _value(axis: Axis, index: int) -> str:
    value = axis.labels[index]
    return (
        f"{value:,}"
        if axis.numeric and axis.values.dtype.kind in "iu"
        else in_digits(float(value), 4)
        if axis.numeric
        else value
    )


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
            place.plot(
                x[over],
                values[over, curve],
                "x",
                color="#B00000",
                ms=5,
                label="memory full" if curve == values.shape[1] - 1 else None,
            )
        if banded:
            place.fill_between(x[rising], low[rising, curve], high[rising, curve], color=colour, alpha=0.13, lw=0)  # type: ignore[index]
    if not first.numeric:
        place.set_xticks(
            x, [str(tick) for tick in first.labels], rotation=30 if len(x) > 4 else 0, ha="right" if len(x) > 4 else "center"
        )
    else:
        place.set_xlabel(first.title)
    if spread_out(values):
        _logarithmic(place, "y", values)
    place.set_ylabel(_label(name, sweep.column(name)) + ("\n90 % range shaded" if banded_at_all and first.numeric else ""))
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
    _scale(place, "y", second)
    mesh = place.pcolormesh(x, y, values, norm=norm, cmap=MAP, shading="nearest", rasterized=True)
    outside = "both" if finite.size > MANY_POINTS else "neither"
    bar = figure.colorbar(mesh, ax=place, extend=outside, format=_plainly if log else None)
    bar.set_label(_label(name, sweep.column(name)))

    # Contour lines need two values on each axis.
    if min(values.shape) > 1:
        levels = (LogLocator(subs=(1, 2, 5)) if log else MaxNLocator(8)).tick_values(*ends)
        lines = place.contour(x, y, values, levels=levels, colors="white", linewidths=0.7)
        place.clabel(lines, fmt=lambda value: in_digits(float(value), 3), fontsize=8)
    _full(place, sweep, order, selection, (x, y), rising)
    place.set_xlabel(first.title)
    place.set_ylabel(second.title)
    place.grid(False)


def _full(
    place: Any,
    sweep: Sweep,
    order: list[int],
    selection: tuple[Any, ...],
    coordinates: tuple[Array, Array],
    rising: list[Array],
) -> None:
    """Draw the line where the memory of a chip is full, if it crosses the map."""
    if "memory_share" not in sweep.answers:
        return
    share = _part(sweep, "memory_share", order, selection).T[np.ix_(rising[1], rising[0])]
    finite = share[np.isfinite(share)]
    if finite.size and finite.min() < 1 < finite.max() and min(share.shape) > 1:
        line = place.contour(*coordinates, share, levels=[1.0], colors="#D55E00", linewidths=1.8, linestyles="--")
        place.clabel(line, fmt=lambda _: "memory full", fontsize=8)


def _front(place: Any, sweep: Sweep, name: str, against: str) -> None:
    """Draw one answer against another, one dot per point, with their Pareto front."""
    from steptime.pareto import pareto

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
        place.plot(
            x[members],
            y[members],
            MARKS[index % len(MARKS)],
            color=COLOURS[index % len(COLOURS)],
            ms=4,
            alpha=0.7,
            label=_group_label(groups, group),
            ls="",
        )
    if full.any():
        place.plot(x[full], y[full], "x", color="#B00000", ms=4, alpha=0.5, label="memory full", zorder=0)
    best = pareto(_better(against) * x[valid], _better(name) * y[valid])
    ordered = np.argsort(x[valid][best])
    place.plot(x[valid][best][ordered], y[valid][best][ordered], "-", color="#444444", lw=1, label="Pareto front", zorder=0)
    for values, which in ((x[valid], "x"), (y[valid], "y")):
        if spread_out(values):
            _logarithmic(place, which, values)
    place.set_xlabel(_label(against, across))
    place.set_ylabel(_label(name, up))
    place.legend(fontsize=8)


def _group_label(axis: Axis | None, value: Any) -> str | None:
    """Return the legend of the points of one value of an axis."""
    if axis is None:
        return None
    return f"{axis.name} {in_digits(float(value), 4)} {axis.unit}".rstrip() if axis.numeric else str(value)


def _better(name: str) -> float:
    return -1.0 if lower_is_better(name) else 1.0
