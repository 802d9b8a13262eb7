"""Terminal view of `steptime sweep`: lowest and highest answers, a table where points are few, and a chart.

Terminal view of `steptime design`: the best design, the Pareto front next to the design as it is, and a chart.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from steptime.cli.views.terminal_plots import Ticks, figure, label, render_chart, room
from steptime.cli.views.widgets import Answer, Grid, footnote, ranged, section, table
from steptime.hardware.rental_prices import usd
from steptime.number_checks import Array
from steptime.questions.declaration import WITHIN, lower_is_better
from steptime.questions.subject import ARCH
from steptime.sweeps.axes import Axis
from steptime.sweeps.design import Design, columns_in_short
from steptime.sweeps.plots import first_number, numbers, spread_out
from steptime.sweeps.sweep_result import Column, Sweep
from steptime.units import counted, in_digits, show

MAX_TABLE_POINTS = 24  # points of which each has a row
ROWS = 12
COUNTED = ("tokens", "sequences", "prompts", "requests")
SHADES = " ░▒▓█"
PREFIXED_UNITS = {"s": "s", "tok/s": "tok/s", "B": "B", "B/s": "B/s", "USD/s": "USD/s", "FLOP/s": "FLOP/s", "W": "W"}


def sweep_view(sweep: Sweep, *, width: int, full: bool = False) -> RenderableType:
    """Return the answers of a sweep.

    Args:
        sweep: axes, answers, and reasons of points without an answer.
        width: columns of the terminal.
        full: whether to show extremes and charts of every answer.

    Returns:
        The answer.
    """
    joint = " with " if sweep.together else " x "
    over = joint.join(f"{counted(len(axis.values), 'value')} of {axis.name}" for axis in sweep.axes)
    conditions = f"{sweep.question}: {over}" + (f" = {counted(sweep.points, 'point')}" if len(sweep.axes) > 1 else "")
    conditions += f"; {fixed_text(sweep)}." if sweep.fixed else "."
    names = numbers(sweep) + [name for name, column in sweep.answers.items() if not column.numeric]
    answered = len(sweep.reasons) < sweep.points
    # few points are a table of all; of many only extremes and a chart say something
    is_listed = sweep.points <= MAX_TABLE_POINTS
    charts = [chart for name in numbers(sweep) if answered for chart in picture(sweep, width, name)]
    body: list[RenderableType] = [_points_table(sweep, names)] if is_listed else []
    if is_listed and any(bound in sweep.answers for name in names for bound in sweep.declaration.bands.get(name, ())):
        body.append(footnote("(low to high): 90 % range."))
    if sweep.question == "step" and "usd_per_million_tokens" in sweep.answers:
        body.append(footnote("USD/M tokens: cost of this step only; a decode step leaves out prefill."))
    if not is_listed and answered:
        body += [_extremes_table(sweep), *picture(sweep, width)]
    return Answer(
        sentence=_sentence(sweep), conditions=conditions, body=[*body, *reason_section(sweep)],
        details=charts if is_listed else charts[1:], warnings=memory_notes(sweep) + _cost_notes(sweep),
        full_adds="charts of all answers" if charts else "", files="--out FILE", full=full,
    )  # fmt: skip


def _sentence(sweep: Sweep) -> str:
    """Say where the main answer is lowest and highest."""
    name = first_number(sweep) if numbers(sweep) else ""
    ends = _extremes(sweep, name) if name else None
    if ends is None:
        return f"None of {counted(sweep.points, 'point')} has an answer."
    column, name_text = sweep.answers[name], words(name)
    (low, at_low), (high, at_high) = ((_with_range(sweep, name, point), _point_text(sweep, point)) for point in ends)
    values = column.values.ravel()
    if math.isclose(values[ends[0]], values[ends[1]]):
        return f"{name_text[0].upper()}{name_text[1:]}: {low} at every point."
    return f"Lowest {name_text}: {low} at {at_low}. Highest: {high} at {at_high}."


def words(name: str) -> str:
    """Write the name of an answer.

    Args:
        name: its name, such as usd_per_million_tokens.

    Returns:
        Words, such as USD per million tokens.
    """
    return name.replace("_", " ").replace("usd", "USD")


def _with_range(sweep: Sweep, name: str, point: int) -> str:
    """Write an answer with its unit and its 90 % range."""
    write = partial(written, unit=sweep.answers[name].unit)
    return ranged(float(sweep.answers[name].values.ravel()[point]), _range(sweep, name, point), write)


def _range(sweep: Sweep, name: str, point: int) -> tuple[float, float] | None:
    """Return the 90 % range of an answer at a point, if it has one."""
    low, high = (sweep.answers.get(end) for end in sweep.declaration.bands.get(name, ("", "")))
    if low is None or high is None or not math.isfinite(low.values.ravel()[point]):
        return None
    return float(low.values.ravel()[point]), float(high.values.ravel()[point])


def fixed_text(sweep: Sweep) -> str:
    """Write the inputs that all points share.

    Args:
        sweep: the sweep.

    Returns:
        Names with values, with commas between.
    """
    return ", ".join(f"{name} {_fixed_text(sweep, name, value)}" for name, value in sweep.fixed.items())


def _fixed_text(sweep: Sweep, name: str, value: Any) -> str:
    question_input = sweep.declaration.inputs.get(name)
    return (
        written(float(value), question_input.unit if question_input else "")
        if isinstance(value, int | float)
        else str(getattr(value, "name", value))
    )


def written(value: float, unit: str, *, bare: bool = False) -> str:
    """Write a number with its unit as people read it.

    Args:
        value: the number in SI units.
        unit: its unit.
        bare: whether the head of the column has the unit of a rate.

    Returns:
        Three digits and the unit; a dash for no number.
    """
    if not math.isfinite(value):
        return "-"
    if unit == "USD":
        return usd(value)
    if unit in PREFIXED_UNITS and not (bare and unit == "tok/s"):
        return str(show(value, unit))
    number = f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else in_digits(value, 3)
    return f"{number} {unit}" if unit and not bare and unit not in COUNTED else number


def axis_value(axis: Axis, value: Any, *, bare: bool = False) -> str:
    """Write a value of an axis as people read it.

    Args:
        axis: the axis.
        value: a number or a name.
        bare: whether the head of the column has the unit.

    Returns:
        The text.
    """
    return written(float(value), axis.unit, bare=bare) if axis.numeric else str(value)


def _points_table(sweep: Sweep, names: list[str]) -> Grid:
    """Return a row for each point; points that exceed the memory are grey and marked †."""
    main = first_number(sweep) if numbers(sweep) else ""
    heads = [*(f"{axis.name} [tok/s]" if axis.unit == "tok/s" else axis.name for axis in sweep.axes), *map(head, names)]
    num_axes, count = len(sweep.axes), len(names)
    right = [
        *(i for i, axis in enumerate(sweep.axes) if axis.numeric),
        *(num_axes + i for i, n in enumerate(names) if sweep.answers[n].numeric),
    ]
    going = [num_axes + i for i in reversed(range(count)) if names[i] != main]
    points_grid = table(*heads, numbers=right, first_to_go=going)
    grid = [values.ravel() for values in sweep.grid()]
    share = sweep.answers["memory_share"].values.ravel() if "memory_share" in sweep.answers else None
    for point in range(sweep.points):
        cells = [axis_value(axis, values[point], bare=True) for axis, values in zip(sweep.axes, grid, strict=True)]
        over = share is not None and bool(share[point] > 1)
        cells += [_answer(sweep, name, point) + (" †" if over and name == main else "") for name in names]
        points_grid.add_row(*cells, style="bright_black" if over else None)
    return points_grid


def head(name: str) -> str:
    """Return the head of the column of an answer.

    Args:
        name: name of the answer.

    Returns:
        Words with the unit of rates.
    """
    return name.replace("tokens_per_second", "tok/s").replace("usd_per_million", "USD/M").replace("_", " ")


def _answer(sweep: Sweep, name: str, point: int) -> str:
    column = sweep.answers[name]
    value = column.values.ravel()[point]
    if not column.numeric:
        return str(value)
    return ranged(float(value), _range(sweep, name, point), partial(written, unit=column.unit, bare=True), label="")


def _extremes(sweep: Sweep, name: str) -> tuple[int, int] | None:
    """Return the points at which an answer is lowest and highest, among those that fit in memory."""
    # a batch beyond the memory is often the cheapest, and cannot run
    flat = np.where(sweep.fits, sweep.answers[name].values, np.nan).ravel()
    finite = np.where(np.isfinite(flat), flat, np.nan)
    return None if np.isnan(finite).all() else (int(np.nanargmin(finite)), int(np.nanargmax(finite)))


def _extremes_table(sweep: Sweep) -> Grid:
    """Return where each answer is lowest and highest."""
    grid = table("Answer", "Lowest", "at", "Highest", "at", numbers=(1, 3), first_to_go=(4, 2))
    for name in numbers(sweep):
        ends = _extremes(sweep, name)
        if ends is not None:
            values, unit = sweep.answers[name].values.ravel(), sweep.answers[name].unit
            cells = [text for point in ends for text in (written(float(values[point]), unit), _point_text(sweep, point))]
            grid.add_row(words(name), *cells)
    return grid


def _point_text(sweep: Sweep, point: int) -> str:
    places: list[Any] = [point] * len(sweep.axes) if sweep.together else list(np.unravel_index(point, sweep.shape))
    return ", ".join(f"{axis.name} {axis_value(axis, axis.labels[int(i)])}" for axis, i in zip(sweep.axes, places, strict=True))


def _cost_notes(sweep: Sweep) -> list[str]:
    """Say how many points have answers but no cost, since no rent is known."""
    cost = next(
        (column for name, column in sweep.answers.items() if name.startswith("usd_per_million") and column.numeric), None
    )
    if cost is None:
        return []
    answered = np.ones(sweep.points, dtype=bool)
    answered[list(sweep.reasons)] = False
    without = int(np.count_nonzero(answered & ~np.isfinite(cost.values.ravel())))
    return (
        [f"{counted(without, 'point')} without a cost: no rent of the system is known, and --rent 2.10 (USD/h) gives one"]
        if without
        else []
    )


def memory_notes(sweep: Sweep) -> list[str]:
    """Say how many points do not fit in memory.

    Args:
        sweep: the sweep.

    Returns:
        One text, or none where all points fit.
    """
    share = sweep.answers.get("memory_share")
    over = 0 if share is None else int(np.count_nonzero(share.values > 1))
    if not over:
        return []
    verb_be = "is" if over == 1 else "are"
    marked = f"{verb_be} {'marked †' if sweep.points <= MAX_TABLE_POINTS else 'left out of lowest and highest'}"
    verb = "does" if over == 1 else "do"
    return [f"{over:,} of {counted(sweep.points, 'point')} {verb} not fit in the memory of a chip, cannot run and {marked}"]


def reason_section(sweep: Sweep) -> list[RenderableType]:
    """Say why points have no answer, each reason once.

    Args:
        sweep: the sweep.

    Returns:
        One part, or nothing where each point has an answer.
    """
    first = {text: point for point, text in reversed(list(sweep.reasons.items()))}
    lines = [
        f"{count:,} x {text.rstrip('.')} (first at {_point_text(sweep, first[text])})."
        for text, count in sweep.refused_because.items()
    ]
    return [section(f"{counted(len(sweep.reasons), 'point')} without an answer", lines)] if lines else []


def picture(sweep: Sweep, width: int, answer: str = "") -> list[RenderableType]:
    """Return a chart of an answer.

    Args:
        sweep: the sweep.
        width: columns of the terminal.
        answer: name of the answer; by default the main one.

    Returns:
        A curve over the longest axis of numbers, or a map over two; nothing where neither fits.
    """
    if sweep.together:
        return []
    long = [axis_index for axis_index, axis in enumerate(sweep.axes) if axis.numeric and len(axis.values) > 3]
    long.sort(key=lambda axis_index: -len(sweep.axes[axis_index].values))
    name = answer or (first_number(sweep) if numbers(sweep) else "")
    if not long or not name or not np.isfinite(sweep.column(name).values).any():
        return []
    fixed_axes = [axis_index for axis_index in range(len(sweep.axes)) if axis_index not in long[:2]]
    index: list[Any] = [slice(None)] * len(sweep.axes)
    for axis_index in fixed_axes:
        index[axis_index] = 0
    at_fixed = ", ".join(
        f"{sweep.axes[axis_index].name} {axis_value(sweep.axes[axis_index], sweep.axes[axis_index].labels[0])}"
        for axis_index in fixed_axes
    )
    column = sweep.column(name)
    values = column.values[tuple(index)]
    title = words(name) + (f" at {at_fixed}" if at_fixed else "")
    if len(long) == 1:
        return [section(title, [_curve(sweep.axes[long[0]], values, column, width)])]
    if long[0] > long[1]:
        values = values.T
    return [section(title, [_map(sweep.axes[long[0]], sweep.axes[long[1]], values, column, width)])]


def _scaled(values: Array) -> tuple[Array, bool]:
    log = spread_out(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (np.log10(values) if log else np.asarray(values, dtype=float)), log


def _curve(axis: Axis, values: Array, column: Column, width: int) -> RenderableType:
    order = np.argsort(axis.values, kind="stable")
    (x, across), (y, up) = _scaled(axis.values[order]), _scaled(values[order])
    # points without an answer leave a gap
    finite = np.isfinite(y)
    chart = figure(room(width), ROWS)
    chart.set_x_limits(float(x.min()), float(max(x.max(), x.min() + 1e-9)))
    low, high = float(y[finite].min()), float(y[finite].max())
    margin = 0.05 * (high - low) or 0.05
    chart.set_y_limits(low - margin, high + margin)
    label(chart, axis.title, column.unit or "value", width)
    chart.plot(x[finite], y[finite])
    write_x, write_y = (partial(_tick, unit=unit) for unit in ("", column.unit))
    return render_chart(chart, Ticks(write_x, log=across), Ticks(write_y, log=up))


def _tick(value: float, unit: str) -> str:
    return written(value, unit, bare=True).removesuffix(".00")


def _map(first: Axis, second: Axis, values: Array, column: Column, width: int) -> RenderableType:
    """Return a map in shades: the first axis along the line, the second up."""
    columns = max(10, min(60, width - 20))
    orders = [np.argsort(axis.values, kind="stable") for axis in (first, second)]
    scaled, _ = _scaled(values[np.ix_(*orders)])
    across = np.unique(np.linspace(0, scaled.shape[0] - 1, min(columns, scaled.shape[0])).round().astype(int))
    up = np.unique(np.linspace(0, scaled.shape[1] - 1, min(ROWS, scaled.shape[1])).round().astype(int))
    low, high = np.nanmin(scaled[np.isfinite(scaled)]), np.nanmax(scaled[np.isfinite(scaled)])
    wide = max(1, columns // len(across))
    lines = []
    for j in reversed(up):
        cells = scaled[across, j]
        levels = np.where(np.isfinite(cells), np.floor(4.999 * (cells - low) / max(high - low, 1e-12)), -1).astype(int)
        row = "".join(("?" if level < 0 else SHADES[level]) * wide for level in levels)
        lines.append(f"{axis_value(second, second.values[orders[1]][j]):>12} |{row}|")
    ends = [axis_value(first, first.values[orders[0]][i]) for i in (0, -1)]
    line = wide * len(across)
    foot = " " * 14 + ends[0] + " " * max(1, line - len(ends[0]) - len(ends[1])) + ends[1]
    finite_values = values[np.isfinite(values)]
    lowest, highest = (written(float(extreme), column.unit) for extreme in (finite_values.min(), finite_values.max()))
    title = f"{second.title} up, {first.title} along; blank {lowest}, {SHADES[-1]} {highest}" + (
        ", ? no answer" if np.isnan(scaled).any() else ""
    )
    return Text("\n".join([*lines, foot, title]), no_wrap=True)


MAX_DESIGN_ROWS = 16


def design_view(design: Design, *, width: int, full: bool = False) -> RenderableType:
    """Return the best design.

    Args:
        design: designs, the front of those that no other beats, and the design as it is.
        width: columns of the terminal.
        full: whether to show all charts and designs without an answer.

    Returns:
        The answer.
    """
    sweep = design.sweep
    charts = picture(sweep, width, design.aims[0]) if sweep.points > 3 else []
    aims = " and ".join(map(words, design.aims))
    title = f"{counted(len(design.front), 'design')} of {sweep.points:,} on the Pareto front of {aims}"
    rows = [f"{MAX_DESIGN_ROWS} of the {len(design.front):,} designs; --csv and --json have all."]
    return Answer(
        sentence=_design_sentence(design), conditions=f"{sweep.question}, {fixed_text(sweep)}." if sweep.fixed else "",
        body=[section(title, rows if len(design.front) > MAX_DESIGN_ROWS else []), _design_table(design), *charts],
        details=reason_section(sweep), warnings=[*_assumptions(design), *memory_notes(sweep)],
        full_adds="designs without an answer" if sweep.reasons else "", full=full,
    )  # fmt: skip


def _design_sentence(design: Design) -> str:
    """Say which design is best, and how far it is from the design as it is."""
    aim = design.aims[0]
    column, now = design.sweep.column(aim), float(design.today.get(aim, np.nan))
    value = float(column.values.ravel()[design.best])
    text = f"Best of {counted(design.sweep.points - len(design.sweep.reasons), 'design')}: {design.called(design.best)}, with "
    text += f"{'lowest' if lower_is_better(aim) else 'highest'} {words(aim)}: {written(value, column.unit)}"
    # the present design may have no answer, such as a model that does not fit
    change = value / now - 1
    if np.isfinite(change):
        size = f"{abs(change):.0%} {'less' if change < 0 else 'more'} than" if abs(change) >= 0.005 else "as much as"
        text += f", {size} today ({written(now, column.unit)})"
    text += f"; {counted(design.ties, 'other design')} {'is' if design.ties == 1 else 'are'} as good" if design.ties else ""
    return text + "."


def _design_table(design: Design) -> Grid:
    """Return a row for the design as it is, and one for each design on the front."""
    columns = columns_in_short(design)
    axes = design.sweep.axes
    heads = ["", *(axis.name.removeprefix(ARCH) for axis in axes), *map(head, columns)]
    going = [len(heads) - 1 - i for i in range(len(columns) - 1)]
    front_grid = table(*heads, numbers=range(1, len(heads)), first_to_go=going)
    if design.today:
        now = [_figure(design, name, design.today.get(name, np.nan)) for name in columns]
        front_grid.add_row("today", *(_now(design, axis) for axis in axes), *now)
    grid = [values.ravel() for values in design.sweep.grid()]
    indices = design.front
    if len(indices) > MAX_DESIGN_ROWS:
        indices = tuple(indices[i] for i in np.linspace(0, len(indices) - 1, MAX_DESIGN_ROWS).round().astype(int))
    for index in indices:
        axis_cells = [axis_value(axis, values[index]) for axis, values in zip(axes, grid, strict=True)]
        cells = [_figure(design, name, design.sweep.answers[name].values.ravel()[index]) for name in columns]
        front_grid.add_row(
            "best" if index == design.best else "", *axis_cells, *cells, style="green" if index == design.best else None
        )
    return front_grid


def _now(design: Design, axis: Any) -> str:
    if axis.name in design.today:
        return axis_value(axis, design.today[axis.name])
    return "1" if axis.name.startswith("times.") else "-"


def _figure(design: Design, name: str, value: Any) -> str:
    if name.endswith("parameters"):
        return f"{in_digits(float(value) / 1e9, 4)} B" if np.isfinite(value) else "-"
    return written(float(value), design.sweep.answers[name].unit, bare=True)


def _assumptions(design: Design) -> list[str]:
    """Return what a design is assumed to share with the present one: quality, size and rent."""
    warnings = []
    of_model = any(axis.name.startswith(ARCH) for axis in design.sweep.axes)
    if of_model and "parameters" in design.sweep.answers:
        sizes = design.sweep.answers["parameters"].values
        sizes = sizes[np.isfinite(sizes)] / 1e9
        low, high = float(sizes.min()), float(sizes.max())
        spread = high / low - 1
        same = f"all have {in_digits(low, 4)} B parameters to within {max(spread, 0.001):.1%}"
        differ = f"they have {in_digits(low, 4)} to {in_digits(high, 4)} B parameters (--set arch.equal=total keeps them equal)"
        warnings.append(f"the quality of these models is not predicted: {same if spread < 0.02 else differ}")
    if WITHIN in design.sweep.fixed:
        warnings.append(f"FLOP/s shrink until the chip stays within {design.sweep.fixed[WITHIN]}; its rent stays the same")
    elif any(axis.name.startswith("times.") for axis in design.sweep.axes):
        warnings.append("the rent stays that of the present chip; --within power trades bandwidth for FLOP/s")
    return warnings
