"""What the terminal shows of a sweep: a table where points are few, else where each answer is least and most, and a picture."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.terminal_plots import drawn, figure, label, room
from steptime.cli.views.widgets import Grid, facts, notes, table
from steptime.hardware.unit_cost import usd
from steptime.number_checks import Array
from steptime.sweeps.axes import Axis
from steptime.sweeps.plots import first_number, numbers, spread_out
from steptime.sweeps.sweep_result import Column, Sweep
from steptime.units import counted, in_digits, show

FEW = 24  # points of which each has a row
ROWS = 12
COUNTED = ("tokens", "sequences", "prompts", "requests")
SHADES = " ░▒▓█"
SHOWN = {"s": "s", "tok/s": "tok/s", "B": "B", "B/s": "B/s", "USD/s": "USD/s", "FLOP/s": "FLOP/s", "W": "W"}


def sweep_view(found: Sweep, width: int, *, brief: bool = False) -> RenderableType:
    """Return what was asked, the answers, and why some points have none."""
    over = " x ".join(f"{axis.name} ({len(axis.values):,})" for axis in found.axes)
    how = "together" if found.together else "every combination"
    title = f"{found.question} over {over}: {counted(found.points, 'point')}" + (f", {how}" if len(found.axes) > 1 else "")
    parts: list[RenderableType] = [Text(title, style="bold")]
    held = held_in_words(found)
    parts += [Text(f"Held: {held}.")] if held else []
    shown = numbers(found) + [name for name, column in found.answers.items() if not column.numeric]
    if brief:
        return Group(*parts, *refused(found), facts(_ends(found, numbers(found)[:1])))
    if found.points <= FEW:
        made = _every(found, shown)
        parts += [Text(), made]
        dropped = len(made.columns) - len(made.widths(width))
        parts += notes([f"{counted(dropped, 'column')} more in a wider terminal, with --out FILE or --json"]) if dropped else []
    else:
        able = len(found.reasons) < found.points
        parts += [Text(), _extremes(found), *picture(found, width)] if able else []
    banded = any(one in found.answers for name in numbers(found) for one in found.asked.bands.get(name, ()))
    parts += [Text("In brackets: 90 % ranges.", style="bright_black")] if banded and found.points <= FEW else []
    return Group(*parts, *refused(found))


def held_in_words(found: Sweep) -> str:
    """Return what is held, as people read it."""
    return ", ".join(f"{name} {_held(found, name, value)}" for name, value in found.fixed.items())


def _held(found: Sweep, name: str, value: Any) -> str:
    of = found.asked.inputs.get(name)
    return (
        written(float(value), of.unit if of else "") if isinstance(value, int | float) else str(getattr(value, "name", value))
    )


def written(value: float, unit: str, *, bare: bool = False) -> str:
    """Write a number with its unit as people read it; a rate bare where the head of its column has the unit."""
    if not math.isfinite(value):
        return "-"
    if unit == "USD":
        return usd(value)
    if unit in SHOWN and not (bare and unit == "tok/s"):
        return str(show(value, unit))
    number = f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else in_digits(value, 3)
    return f"{number} {unit}" if unit and not bare and unit not in COUNTED else number


def axis_value(axis: Axis, value: Any, *, bare: bool = False) -> str:
    """Write a value of an axis as people read it."""
    return written(float(value), axis.unit, bare=bare) if axis.numeric else str(value)


def _every(found: Sweep, names: list[str]) -> Grid:
    """Return a row for each point, ranges behind their answers."""
    main = first_number(found) if numbers(found) else ""
    heads = [*(f"{axis.name} [tok/s]" if axis.unit == "tok/s" else axis.name for axis in found.axes), *map(head, names)]
    ways, count = len(found.axes), len(names)
    right = [
        *(i for i, axis in enumerate(found.axes) if axis.numeric),
        *(ways + i for i, n in enumerate(names) if found.answers[n].numeric),
    ]
    going = [ways + i for i in reversed(range(count)) if names[i] != main]
    made = table(*heads, numbers=right, first_to_go=going)
    grid = [values.ravel() for values in found.grid()]
    share = found.answers["memory_share"].values.ravel() if "memory_share" in found.answers else None
    for at in range(found.points):
        cells = [axis_value(axis, values[at], bare=True) for axis, values in zip(found.axes, grid, strict=True)]
        over = share is not None and bool(share[at] > 1)
        cells += [_answer(found, name, at) + (" †" if over and name == main else "") for name in names]
        made.add_row(*cells, style="bright_black" if over else None)
    return made


def head(name: str) -> str:
    """Return what the column of an answer is called."""
    return name.replace("tokens_per_second", "tok/s").replace("usd_per_million", "USD/M").replace("_", " ")


def _answer(found: Sweep, name: str, at: int) -> str:
    column = found.answers[name]
    value = column.values.ravel()[at]
    if not column.numeric:
        return str(value)
    text = written(float(value), column.unit, bare=True)
    low, high = (found.answers.get(end) for end in found.asked.bands.get(name, ("", "")))
    if low is None or high is None or not math.isfinite(low.values.ravel()[at]):
        return text
    ends = [written(float(one.values.ravel()[at]), column.unit, bare=True) for one in (low, high)]
    return f"{text} ({ends[0]} to {ends[1]})"


def _extremes(found: Sweep) -> Grid:
    """Return where each answer is least and most."""
    made = table("answer", "least", "at", "most", "at", numbers=(1, 3), first_to_go=(4, 2))
    for name in numbers(found):
        column = found.answers[name]
        flat = np.where(found.fits, column.values, np.nan).ravel()
        if not np.isfinite(flat).any():
            continue
        places = (int(np.nanargmin(flat)), int(np.nanargmax(np.where(np.isfinite(flat), flat, np.nan))))
        cells = [text for at in places for text in (written(float(flat[at]), column.unit), _where(found, at))]
        made.add_row(name.replace("_", " ").replace("usd", "USD"), *cells)
    return made


def _ends(found: Sweep, names: list[str]) -> list[tuple[str, str | Text]]:
    rows: list[tuple[str, str | Text]] = []
    for name in names:
        column = found.answers[name]
        flat = np.where(found.fits, column.values, np.nan).ravel()
        if np.isfinite(flat).any():
            least, most = int(np.nanargmin(flat)), int(np.nanargmax(flat))
            rows.append(
                (f"least {name.replace('_', ' ')}", f"{written(float(flat[least]), column.unit)} at {_where(found, least)}")
            )
            rows.append(
                (f"most {name.replace('_', ' ')}", f"{written(float(flat[most]), column.unit)} at {_where(found, most)}")
            )
    return rows


def _where(found: Sweep, at: int) -> str:
    places: list[Any] = [at] * len(found.axes) if found.together else list(np.unravel_index(at, found.shape))
    return ", ".join(f"{axis.name} {axis_value(axis, axis.labels[int(i)])}" for axis, i in zip(found.axes, places, strict=True))


def _without_cost(found: Sweep) -> list[str]:
    """Say how many points have answers but no cost, since no rent is known."""
    cost = next(
        (column for name, column in found.answers.items() if name.startswith("usd_per_million") and column.numeric), None
    )
    if cost is None:
        return []
    answered = np.ones(found.points, dtype=bool)
    answered[list(found.reasons)] = False
    without = int(np.count_nonzero(answered & ~np.isfinite(cost.values.ravel())))
    return (
        [f"{counted(without, 'point')} without a cost: no rent of the system is known, and --rent 2.10 (USD/h) gives one"]
        if without
        else []
    )


def refused(found: Sweep) -> list[RenderableType]:
    """Return how many points do not fit, how many have no answer, and why."""
    share = found.answers.get("memory_share")
    over = 0 if share is None else int(np.count_nonzero(share.values > 1))
    does = "does" if over == 1 else "do"
    full = f"{over:,} of {counted(found.points, 'point')} {does} not fit the memory of a chip (memory share above 1)"
    full += ", and least and most are of the others" if found.points > FEW and over < found.points else ""
    full += ": †" if found.points <= FEW else ""
    full_notes: list[RenderableType] = [*notes([full] if over else []), *notes(_without_cost(found))]
    if not found.reasons:
        return full_notes
    lines = [*full_notes, Text(), Text(f"{counted(len(found.reasons), 'point')} without an answer", style="bold")]
    first = {text: at for at, text in reversed(list(found.reasons.items()))}
    for text, count in found.refused_because.items():
        lines.append(Text(f"  {count:,} x {text.rstrip('.')} (first at {_where(found, first[text])})."))
    return [*lines]


def picture(found: Sweep, width: int, answer: str = "") -> list[RenderableType]:
    """Return a curve over the longest axis of numbers, or a map over two, of an answer; nothing where neither fits."""
    if found.together:
        return []
    long = [at for at, axis in enumerate(found.axes) if axis.numeric and len(axis.values) > 3]
    long.sort(key=lambda at: -len(found.axes[at].values))
    name = answer or (first_number(found) if numbers(found) else "")
    if not long or not name or not np.isfinite(found.column(name).values).any():
        return []
    others = [at for at in range(len(found.axes)) if at not in long[:2]]
    where: list[Any] = [slice(None)] * len(found.axes)
    for at in others:
        where[at] = 0
    held = ", ".join(f"{found.axes[at].name} {axis_value(found.axes[at], found.axes[at].labels[0])}" for at in others)
    values = found.column(name).values[tuple(where)]
    column = found.column(name)
    title = (
        f"{name.replace('_', ' ').replace('usd', 'USD')}"
        + (f" [{column.unit}]" if column.unit else "")
        + (f" at {held}" if held else "")
    )
    if len(long) == 1:
        return [Text(), Text(title, style="bold"), _curve(found.axes[long[0]], values, column, width)]
    if long[0] > long[1]:
        values = values.T
    return [Text(), Text(title, style="bold"), _map(found.axes[long[0]], found.axes[long[1]], values, column, width)]


def _scaled(values: Array) -> tuple[Array, bool]:
    log = spread_out(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (np.log10(values) if log else np.asarray(values, dtype=float)), log


def _curve(axis: Axis, values: Array, column: Column, width: int) -> RenderableType:
    order = np.argsort(axis.values, kind="stable")
    (x, across), (y, up) = _scaled(axis.values[order]), _scaled(values[order])
    known = np.isfinite(y)
    made = figure(room(width), ROWS)
    made.set_x_limits(float(x.min()), float(max(x.max(), x.min() + 1e-9)))
    low, high = float(y[known].min()), float(y[known].max())
    margin = 0.05 * (high - low) or 0.05
    made.set_y_limits(low - margin, high + margin)
    made.x_ticks_fkt = lambda value, _: _tick(10**value if across else value)
    made.y_ticks_fkt = lambda value, _: _tick(10**value if up else value)
    label(made, axis.title, f"[{column.unit}]" if column.unit else "", width)
    made.plot(x[known], y[known])
    return drawn(made)


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
    known = values[np.isfinite(values)]
    least, most = (written(float(one), column.unit) for one in (known.min(), known.max()))
    title = f"{second.title} up, {first.title} along; blank {least}, {SHADES[-1]} {most}" + (
        ", ? no answer" if np.isnan(scaled).any() else ""
    )
    return Text("\n".join([*lines, foot, title]), no_wrap=True)
