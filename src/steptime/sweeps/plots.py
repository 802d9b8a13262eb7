"""Pictures of a sweep: curves with their ranges, maps of two axes, intervals of names, and the front of two answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from steptime.errors import InputError, RangeError
from steptime.number_checks import Array
from steptime.picture_files import save_picture
from steptime.questions.declaration import listed
from steptime.sweeps.question_inputs import lower_is_better
from steptime.units import in_digits

if TYPE_CHECKING:
    from steptime.sweeps.axes import Axis
    from steptime.sweeps.sweep_result import Column, Sweep

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
"""Okabe and Ito's, told apart by the colour-blind (https://jfly.uni-koeln.de/color/); its yellow is too light for a line."""
DASHES: Final = ("-", "--", "-.", ":")
MARKS: Final = ("o", "s", "^", "D", "v", "P", "p", "*")
MOST_LINES, MOST_PANELS, FEW_MARKS, MANY = len(COLOURS), 9, 40, 10_000
MAP: Final = "cividis"  # rises evenly in lightness, for all eyes
SPREAD: Final = 8.0  # times the least value from which a scale is logarithmic


def plot(sweep: Sweep, path: str, *, answer: str | None = None, against: str | None = None) -> None:
    """Write a picture of an answer over the axes: the longest along the page, the next as curves or up a map, one as panels."""
    save_picture(path, lambda: drawn(sweep, answer=answer, against=against))


def drawn(sweep: Sweep, *, answer: str | None = None, against: str | None = None) -> Any:
    """Return the picture as a matplotlib figure."""
    import matplotlib
    from matplotlib.figure import Figure

    name = answer or first_number(sweep)
    column = sweep.column(name)
    if not column.numeric:
        raise InputError(
            f"{name} is a text, and no picture is drawn of it; --answer takes {listed(numbers(sweep)) or 'another'}"
        )
    with matplotlib.rc_context(
        {"font.size": 10, "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False,
         "svg.fonttype": "none", "figure.constrained_layout.use": True, "svg.hashsalt": "steptime"}
    ):  # fmt: skip
        if against is not None:
            figure = Figure(figsize=(7.5, 4.8))
            _front(figure.subplots(), sweep, name, against)
        else:
            figure = _over_axes(Figure, sweep, name)
        figure.suptitle(_title(sweep), fontsize=11, x=0.01, ha="left")
    return figure


def numbers(sweep: Sweep) -> list[str]:
    """Return the answers that are numbers, ends of ranges left out."""
    ends = {end for pair in sweep.asked.bands.values() for end in pair}
    return [name for name, column in sweep.answers.items() if column.numeric and name not in ends]


def first_number(sweep: Sweep) -> str:
    """Return the answer that a picture is of, unless another is asked for: the cost where there is one."""
    known = numbers(sweep)
    if not known:
        raise InputError("no answer is a number, and no picture can be drawn")
    return next((name for name in known if name.startswith("usd_per_million")), known[0])


def _title(sweep: Sweep) -> str:
    names = [str(getattr(value, "name", value)) for key in ("model", "system", "engine") if (value := sweep.fixed.get(key))]
    held = [
        f"{key} {in_digits(float(value), 4) if isinstance(value, int | float) else value}"
        for key, value in sweep.fixed.items()
        if key not in ("model", "system", "engine", "catalog")
    ]
    words = f"{sweep.question}: " + ", ".join([*names, *held]) if names or held else sweep.question
    return words if len(words) <= 90 else words[:87] + "..."


def _label(name: str, column: Column) -> str:
    return f"{name.replace('_', ' ').replace('usd', 'USD')}" + (f" [{column.unit}]" if column.unit else "")


def spread_out(values: Array) -> bool:
    """Whether values are drawn on a logarithmic scale: all above zero, and far apart."""
    known = values[np.isfinite(values)]
    return bool(len(known) > 1 and known.min() > 0 and known.max() > SPREAD * known.min())


def _axis_log(axis: Axis) -> bool:
    return bool(axis.numeric and spread_out(axis.values) and (len(axis.values) <= FEW_MARKS or _even_ratios(axis.values)))


def _scale(place: Any, which: str, axis: Axis) -> None:
    """Make an axis logarithmic where its values are, with plain numbers beside it in any case."""
    if _axis_log(axis):
        _logarithmic(place, which, axis.values)
    else:
        getattr(place, f"{which}axis").set_major_formatter(_plainly)


def _logarithmic(place: Any, which: str, values: Array) -> None:
    """Make an axis logarithmic, with plain numbers beside it: 1, 2 and 5 of each power of ten where there are few powers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    known = values[np.isfinite(values) & (values > 0)]
    getattr(place, f"set_{which}scale")("log")
    axis = getattr(place, f"{which}axis")
    powers = np.log10(known.max() / known.min()) if known.size else 1.0
    narrow = which == "x" and len(place.figure.axes) > 1 and powers > 1
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if powers < 3 and not narrow else (1,), numticks=12))
    axis.set_major_formatter(FuncFormatter(_plainly))
    axis.set_minor_formatter(NullFormatter())


def _plainly(value: float, _: Any = None) -> str:
    return f"{value:.3g}" if not 1e-4 <= abs(value) < 1e7 and value else in_digits(float(value), 3)


def _even_ratios(values: Array) -> bool:
    """Whether values lie closer at the lower end, as those of equal ratios do."""
    return bool(np.median(values) < 0.25 * (values.min() + values.max()))


def _over_axes(make: Any, sweep: Sweep, name: str) -> Any:
    """Return the picture of an answer over one, two or three axes."""
    if sweep.together:
        raise RangeError("axes that go together have no picture over them; --against ANSWER draws one answer over another")
    order = sorted(range(len(sweep.axes)), key=lambda at: (not sweep.axes[at].numeric, -len(sweep.axes[at].values)))
    order = [at for at in order if len(sweep.axes[at].values) > 1] or order[:1]
    if len(order) > 3 or (len(order) == 3 and len(sweep.axes[order[2]].values) > MOST_PANELS):
        raise RangeError(
            f"a picture has three axes at most, the third with {MOST_PANELS} values at most; fix some of "
            f"{listed(axis.name for axis in sweep.axes)}"
        )
    panels = len(sweep.axes[order[2]].values) if len(order) == 3 else 1
    wide = min(panels, 3)
    figure = make(figsize=(7.5 if panels == 1 else 4.2 * wide, 4.8 if panels == 1 else 3.6 * -(-panels // wide)))
    axes = figure.subplots(-(-panels // wide), wide, squeeze=False, sharex=True, sharey=True).ravel()
    for place in axes[panels:]:
        place.set_visible(False)
    for at in range(max(0, panels - wide), panels):
        axes[at].tick_params(labelbottom=True)
    for at in range(panels):
        where: list[Any] = [slice(None) if position in order[:2] else 0 for position in range(len(sweep.axes))]
        if len(order) == 3:
            where[order[2]] = at
            third = sweep.axes[order[2]]
            axes[at].set_title(f"{third.name} {_value(third, at)} {third.unit}".rstrip(), fontsize=10)
        _panel(figure, axes[at], sweep, name, order[:2], tuple(where))
        if at % wide:
            axes[at].set_ylabel("")
        if at < panels - wide:
            axes[at].set_xlabel("")
    return figure


def _panel(figure: Any, place: Any, sweep: Sweep, name: str, order: list[int], where: tuple[Any, ...]) -> None:
    """Draw one panel: a map of two long axes of numbers, curves over one, or intervals of names."""
    first = sweep.axes[order[0]]
    if first.numeric:
        _scale(place, "x", first)
    second = sweep.axes[order[1]] if len(order) > 1 else None
    if second is not None and second.numeric and len(second.values) > MOST_LINES:
        _map(figure, place, sweep, name, order, where)
    elif second is not None and len(second.values) > MOST_LINES:
        raise RangeError(f"{second.name} has {len(second.values)} values, and a picture {MOST_LINES} curves at most")
    else:
        _curves(place, sweep, name, order, where)


def _value(axis: Axis, at: int) -> str:
    value = axis.labels[at]
    return (
        f"{value:,}"
        if axis.numeric and axis.values.dtype.kind in "iu"
        else in_digits(float(value), 4)
        if axis.numeric
        else value
    )


def _part(sweep: Sweep, name: str, order: list[int], where: tuple[Any, ...]) -> Array:
    """Return an answer in one panel: the first axis first."""
    values = sweep.column(name).values[where]
    return np.asarray(values if len(order) == 1 or order[0] < order[1] else values.T)


def _curves(place: Any, sweep: Sweep, name: str, order: list[int], where: tuple[Any, ...]) -> None:
    first = sweep.axes[order[0]]
    values = _part(sweep, name, order, where).reshape(len(first.values), -1)
    low, high = (
        _part(sweep, end, order, where).reshape(values.shape) if end in sweep.answers else None
        for end in sweep.asked.bands.get(name, ("", ""))
    )
    held = "memory_share" in sweep.answers
    share = _part(sweep, "memory_share", order, where).reshape(values.shape) if held else None
    x = first.values if first.numeric else np.arange(len(first.values))
    banded_at_all = low is not None and len(x) > 1 and bool(np.isfinite(low).any())
    rising = np.argsort(x, kind="stable")
    for at in range(values.shape[1]):
        colour, mark = COLOURS[at % len(COLOURS)], MARKS[at % len(MARKS)]
        told = _value(sweep.axes[order[1]], at) if len(order) > 1 else None
        banded = low is not None and high is not None and bool(np.isfinite(low[:, at]).any())
        if not first.numeric:
            beside = x + 0.16 * (at - (values.shape[1] - 1) / 2)
            if banded:
                place.vlines(beside, low[:, at], high[:, at], color=colour, alpha=0.5, lw=4)  # type: ignore[index]
            place.plot(beside, values[:, at], mark, color=colour, label=told)
            continue
        shown = mark if len(x) <= FEW_MARKS else None
        place.plot(x[rising], values[rising, at], DASHES[at % 4], color=colour, marker=shown, ms=4, label=told)
        if share is not None and (share[:, at] > 1).any():
            over = share[:, at] > 1
            place.plot(
                x[over],
                values[over, at],
                "x",
                color="#B00000",
                ms=5,
                label="memory full" if at == values.shape[1] - 1 else None,
            )
        if banded:
            place.fill_between(x[rising], low[rising, at], high[rising, at], color=colour, alpha=0.13, lw=0)  # type: ignore[index]
    if not first.numeric:
        place.set_xticks(
            x, [str(one) for one in first.labels], rotation=30 if len(x) > 4 else 0, ha="right" if len(x) > 4 else "center"
        )
    else:
        place.set_xlabel(first.title)
    if spread_out(values):
        _logarithmic(place, "y", values)
    place.set_ylabel(_label(name, sweep.column(name)) + ("\n90 % range shaded" if banded_at_all and first.numeric else ""))
    if place.get_legend_handles_labels()[0]:
        place.legend(title=sweep.axes[order[1]].title if len(order) > 1 else None, fontsize=8, title_fontsize=8, framealpha=0.8)


def _map(figure: Any, place: Any, sweep: Sweep, name: str, order: list[int], where: tuple[Any, ...]) -> None:
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.ticker import LogLocator, MaxNLocator

    first, second = (sweep.axes[at] for at in order)
    values = np.ma.masked_invalid(_part(sweep, name, order, where).T.astype(np.float64))
    whole = sweep.column(name).values
    known = whole[np.isfinite(whole)]
    if not known.size:
        raise InputError(f"{name} has no value at any point")
    log = spread_out(known)
    ends = np.quantile(known, (0.002, 0.998)) if known.size > MANY else (known.min(), known.max())
    norm = (LogNorm if log else Normalize)(*ends)
    rising = [np.argsort(axis.values, kind="stable") for axis in (first, second)]
    values = values[np.ix_(rising[1], rising[0])]
    x, y = first.values[rising[0]], second.values[rising[1]]
    _scale(place, "y", second)
    drawn = place.pcolormesh(x, y, values, norm=norm, cmap=MAP, shading="nearest", rasterized=True)
    outside = "both" if known.size > MANY else "neither"
    bar = figure.colorbar(drawn, ax=place, extend=outside, format=_plainly if log else None)
    bar.set_label(_label(name, sweep.column(name)))
    if min(values.shape) > 1:
        levels = (LogLocator(subs=(1, 2, 5)) if log else MaxNLocator(8)).tick_values(*ends)
        lines = place.contour(x, y, values, levels=levels, colors="white", linewidths=0.7)
        place.clabel(lines, fmt=lambda value: in_digits(float(value), 3), fontsize=8)
    _full(place, sweep, order, where, (x, y), rising)
    place.set_xlabel(first.title)
    place.set_ylabel(second.title)
    place.grid(False)


def _full(
    place: Any, sweep: Sweep, order: list[int], where: tuple[Any, ...], at: tuple[Array, Array], rising: list[Array]
) -> None:
    """Draw where the memory of a chip is full, if the answers tell and it is on the map."""
    if "memory_share" not in sweep.answers:
        return
    share = _part(sweep, "memory_share", order, where).T[np.ix_(rising[1], rising[0])]
    known = share[np.isfinite(share)]
    if known.size and known.min() < 1 < known.max() and min(share.shape) > 1:
        line = place.contour(*at, share, levels=[1.0], colors="#D55E00", linewidths=1.8, linestyles="--")
        place.clabel(line, fmt=lambda _: "memory full", fontsize=8)


def _front(place: Any, sweep: Sweep, name: str, against: str) -> None:
    """Draw one answer against another, a dot a point, and the front that no other point beats in both."""
    from steptime.pareto import pareto

    across, up = sweep.column(against), sweep.column(name)
    if not across.numeric:
        raise InputError(f"{against} is a text; --against takes {listed(numbers(sweep))}")
    x, y = across.values.ravel().astype(float), up.values.ravel().astype(float)
    known = np.isfinite(x) & np.isfinite(y)
    full = known & ~sweep.fits.ravel()
    known &= sweep.fits.ravel()
    if not known.any():
        raise InputError(f"no point that fits has both {name} and {against}")
    few = [axis for axis in sweep.axes if 1 < len(axis.values) <= MOST_LINES and not sweep.together]
    groups = min(few, key=lambda axis: (axis.numeric, len(axis.values)), default=None)
    labels = sweep.grid()[sweep.axes.index(groups)].ravel() if groups else np.full(x.shape, "")
    for at, one in enumerate(dict.fromkeys(labels)):
        some = known & (labels == one)
        place.plot(
            x[some],
            y[some],
            MARKS[at % len(MARKS)],
            color=COLOURS[at % len(COLOURS)],
            ms=4,
            alpha=0.7,
            label=_named(groups, one),
            ls="",
        )
    if full.any():
        place.plot(x[full], y[full], "x", color="#B00000", ms=4, alpha=0.5, label="memory full", zorder=0)
    best = pareto(_better(against) * x[known], _better(name) * y[known])
    ordered = np.argsort(x[known][best])
    place.plot(
        x[known][best][ordered], y[known][best][ordered], "-", color="#444444", lw=1, label="what no other beats", zorder=0
    )
    for values, which in ((x[known], "x"), (y[known], "y")):
        if spread_out(values):
            _logarithmic(place, which, values)
    place.set_xlabel(_label(against, across))
    place.set_ylabel(_label(name, up))
    place.legend(fontsize=8)


def _named(axis: Axis | None, value: Any) -> str | None:
    """Return what points of one value of an axis are called."""
    if axis is None:
        return None
    return f"{axis.name} {in_digits(float(value), 4)} {axis.unit}".rstrip() if axis.numeric else str(value)


def _better(name: str) -> float:
    return -1.0 if lower_is_better(name) else 1.0
