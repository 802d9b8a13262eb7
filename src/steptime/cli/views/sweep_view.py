"""What the terminal shows of a sweep: a table where points are few, else where each answer is least and most, and a picture."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.terminal_plots import figure, label, render_chart, room
from steptime.cli.views.widgets import Grid, facts, notes, table
from steptime.hardware.unit_cost import usd
from steptime.number_checks import Array
from steptime.sweeps.axes import Axis
from steptime.sweeps.plots import first_number, numbers, spread_out
from steptime.sweeps.sweep_result import Column, Sweep
from steptime.units import counted, in_digits, show

MAX_TABLE_POINTS = 24  # points of which each has a row
ROWS = 12
COUNTED = ("tokens", "sequences", "prompts", "requests")
SHADES = " ░▒▓█"
PREFIXED_UNITS = {"s": "s", "tok/s": "tok/s", "B": "B", "B/s": "B/s", "USD/s": "USD/s", "FLOP/s": "FLOP/s", "W": "W"}


def sweep_view(sweep: Sweep, width: int, *, brief: bool = False) -> RenderableType:
    """Return what was asked, the answers, and why some points have none."""
    over = " x ".join(f"{axis.name} ({len(axis.values):,})" for axis in sweep.axes)
    how = "together" if sweep.together else "every combination"
    title = f"{sweep.question} over {over}: {counted(sweep.points, 'point')}" + (f", {how}" if len(sweep.axes) > 1 else "")
    parts: list[RenderableType] = [Text(title, style="bold")]
    fixed_inputs = held_in_words(sweep)
    parts += [Text(f"Held: {fixed_inputs}.")] if fixed_inputs else []
    answer_names = numbers(sweep) + [name for name, column in sweep.answers.items() if not column.numeric]
    if brief:
        return Group(*parts, *refused(sweep), facts(_ends(sweep, numbers(sweep)[:1])))
    if sweep.points <= MAX_TABLE_POINTS:
        grid = _every(sweep, answer_names)
        parts += [Text(), grid]
        dropped = len(grid.columns) - len(grid.widths(width))
        parts += notes([f"{counted(dropped, 'column')} more in a wider terminal, with --out FILE or --json"]) if dropped else []
    else:
        able = len(sweep.reasons) < sweep.points
        parts += [Text(), _extremes(sweep), *picture(sweep, width)] if able else []
    banded = any(bound_name in sweep.answers for name in numbers(sweep) for bound_name in sweep.declaration.bands.get(name, ()))
    parts += [Text("In brackets: 90 % ranges.", style="bright_black")] if banded and sweep.points <= MAX_TABLE_POINTS else []
    return Group(*parts, *refused(sweep))


def held_in_words(sweep: Sweep) -> str:
    """Return what is held, as people read it."""
    return ", ".join(f"{name} {_fixed_text(sweep, name, value)}" for name, value in sweep.fixed.items())


def _fixed_text(sweep: Sweep, name: str, value: Any) -> str:
    question_input = sweep.declaration.inputs.get(name)
    return (
        written(float(value), question_input.unit if question_input else "")
        if isinstance(value, int | float)
        else str(getattr(value, "name", value))
    )


def written(value: float, unit: str, *, bare: bool = False) -> str:
    """Write a number with its unit as people read it; a rate bare where the head of its column has the unit."""
    if not math.isfinite(value):
        return "-"
    if unit == "USD":
        return usd(value)
    if unit in PREFIXED_UNITS and not (bare and unit == "tok/s"):
        return str(show(value, unit))
    number = f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else in_digits(value, 3)
    return f"{number} {unit}" if unit and not bare and unit not in COUNTED else number


def axis_value(axis: Axis, value: Any, *, bare: bool = False) -> str:
    """Write a value of an axis as people read it."""
    return written(float(value), axis.unit, bare=bare) if axis.numeric else str(value)


def _every(sweep: Sweep, names: list[str]) -> Grid:
    """Return a row for each point, ranges behind their answers."""
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
    """Return what the column of an answer is called."""
    return name.replace("tokens_per_second", "tok/s").replace("usd_per_million", "USD/M").replace("_", " ")


def _answer(sweep: Sweep, name: str, point: int) -> str:
    column = sweep.answers[name]
    value = column.values.ravel()[point]
    if not column.numeric:
        return str(value)
    text = written(float(value), column.unit, bare=True)
    low, high = (sweep.answers.get(end) for end in sweep.declaration.bands.get(name, ("", "")))
    if low is None or high is None or not math.isfinite(low.values.ravel()[point]):
        return text
    ends = [written(float(bound.values.ravel()[point]), column.unit, bare=True) for bound in (low, high)]
    return f"{text} ({ends[0]} to {ends[1]})"


def _extremes(sweep: Sweep) -> Grid:
    """Return where each answer is least and most."""
    grid = table("answer", "least", "at", "most", "at", numbers=(1, 3), first_to_go=(4, 2))
    for name in numbers(sweep):
        column = sweep.answers[name]
        flat = np.where(sweep.fits, column.values, np.nan).ravel()
        if not np.isfinite(flat).any():
            continue
        places = (int(np.nanargmin(flat)), int(np.nanargmax(np.where(np.isfinite(flat), flat, np.nan))))
        cells = [text for point in places for text in (written(float(flat[point]), column.unit), _point_text(sweep, point))]
        grid.add_row(name.replace("_", " ").replace("usd", "USD"), *cells)
    return grid


def _ends(sweep: Sweep, names: list[str]) -> list[tuple[str, str | Text]]:
    rows: list[tuple[str, str | Text]] = []
    for name in names:
        column = sweep.answers[name]
        flat = np.where(sweep.fits, column.values, np.nan).ravel()
        if np.isfinite(flat).any():
            lowest, highest = int(np.nanargmin(flat)), int(np.nanargmax(flat))
            rows.append(
                (
                    f"least {name.replace('_', ' ')}",
                    f"{written(float(flat[lowest]), column.unit)} at {_point_text(sweep, lowest)}",
                )
            )
            rows.append(
                (
                    f"most {name.replace('_', ' ')}",
                    f"{written(float(flat[highest]), column.unit)} at {_point_text(sweep, highest)}",
                )
            )
    return rows


def _point_text(sweep: Sweep, point: int) -> str:
    places: list[Any] = [point] * len(sweep.axes) if sweep.together else list(np.unravel_index(point, sweep.shape))
    return ", ".join(f"{axis.name} {axis_value(axis, axis.labels[int(i)])}" for axis, i in zip(sweep.axes, places, strict=True))


def _without_cost(sweep: Sweep) -> list[str]:
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


def refused(sweep: Sweep) -> list[RenderableType]:
    """Return how many points do not fit, how many have no answer, and why."""
    share = sweep.answers.get("memory_share")
    over = 0 if share is None else int(np.count_nonzero(share.values > 1))
    does = "does" if over == 1 else "do"
    full = f"{over:,} of {counted(sweep.points, 'point')} {does} not fit the memory of a chip (memory share above 1)"
    full += ", and least and most are of the others" if sweep.points > MAX_TABLE_POINTS and over < sweep.points else ""
    full += ": †" if sweep.points <= MAX_TABLE_POINTS else ""
    full_notes: list[RenderableType] = [*notes([full] if over else []), *notes(_without_cost(sweep))]
    if not sweep.reasons:
        return full_notes
    lines = [*full_notes, Text(), Text(f"{counted(len(sweep.reasons), 'point')} without an answer", style="bold")]
    first = {text: point for point, text in reversed(list(sweep.reasons.items()))}
    for text, count in sweep.refused_because.items():
        lines.append(Text(f"  {count:,} x {text.rstrip('.')} (first at {_point_text(sweep, first[text])})."))
    return [*lines]


def picture(sweep: Sweep, width: int, answer: str = "") -> list[RenderableType]:
    """Return a curve over the longest axis of numbers, or a map over two, of an answer; nothing where neither fits."""
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
    fixed_text = ", ".join(
        f"{sweep.axes[axis_index].name} {axis_value(sweep.axes[axis_index], sweep.axes[axis_index].labels[0])}"
        for axis_index in fixed_axes
    )
    values = sweep.column(name).values[tuple(index)]
    column = sweep.column(name)
    title = (
        f"{name.replace('_', ' ').replace('usd', 'USD')}"
        + (f" [{column.unit}]" if column.unit else "")
        + (f" at {fixed_text}" if fixed_text else "")
    )
    if len(long) == 1:
        return [Text(), Text(title, style="bold"), _curve(sweep.axes[long[0]], values, column, width)]
    if long[0] > long[1]:
        values = values.T
    return [Text(), Text(title, style="bold"), _map(sweep.axes[long[0]], sweep.axes[long[1]], values, column, width)]


def _scaled(values: Array) -> tuple[Array, bool]:
    log = spread_out(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (np.log10(values) if log else np.asarray(values, dtype=float)), log


def _curve(axis: Axis, values: Array, column: Column, width: int) -> RenderableType:
    order = np.argsort(axis.values, kind="stable")
    (x, across), (y, up) = _scaled(axis.values[order]), _scaled(values[order])
    finite = np.isfinite(y)
    chart = figure(room(width), ROWS)
    chart.set_x_limits(float(x.min()), float(max(x.max(), x.min() + 1e-9)))
    low, high = float(y[finite].min()), float(y[finite].max())
    margin = 0.05 * (high - low) or 0.05
    chart.set_y_limits(low - margin, high + margin)
    chart.x_ticks_fkt = lambda value, _: _tick(10**value if across else value)
    chart.y_ticks_fkt = lambda value, _: _tick(10**value if up else value)
    label(chart, axis.title, f"[{column.unit}]" if column.unit else "", width)
    chart.plot(x[finite], y[finite])
    return render_chart(chart)


def _tick(value: float) -> str:
    return (
        f"{value:.2e}"
        if abs(value) >= 1e6 or 0 < abs(value) < 1e-3
        else f"{value:,.3g}"
        if abs(value) < 1e3
        else f"{value:,.0f}"
    )


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
