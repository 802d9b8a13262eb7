"""Text of `steptime sweep`, `design` and `sensitivity`: extremes, tables and charts of one question over many values."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.terminal_plots import Axis as ChartAxis
from steptime.cli.views.terminal_plots import Curve, draw
from steptime.cli.views.widgets import Answer, Grid, footnote, heading, ranged, section, table
from steptime.hardware.rental_prices import usd
from steptime.number_checks import Array
from steptime.questions.declaration import WITHIN, lower_is_better
from steptime.questions.subject import ARCH
from steptime.sweeps.axes import Axis
from steptime.sweeps.design import Design, columns_in_short
from steptime.sweeps.plots import first_number, numbers, spread_out
from steptime.sweeps.sensitivity_result import NEGLIGIBLE_VARIANCE_SHARE, Sensitivity, Swing
from steptime.sweeps.sensitivity_result import written as write_input
from steptime.sweeps.sweep_result import Column, Sweep
from steptime.units import counted, in_digits, in_span, percent, request_rate, show

# Points of which each has a row, and designs of the Pareto front that are listed.
MAX_TABLE_POINTS, MAX_DESIGN_ROWS = 24, 16
# Height of a chart, in letters.
ROWS = 12
COUNTED = ("tokens", "sequences", "prompts", "requests")
SHADES = " ░▒▓█"
# Units that the head of a column has, because its numbers have no prefix.
RATES = ("tok/s", "requests/s")
# Parts of the names of answers, as people write them.
ABBREVIATIONS = {"usd": "USD", "mfu": "MFU", "ttft": "TTFT", "tpot": "TPOT", "kv": "KV", "flop": "FLOP", "flops": "FLOP/s"}
PREFIXED_UNITS = ("s", "tok/s", "B", "B/s", "USD/s", "FLOP/s", "W")
# Inputs of a tornado, and columns of its bars.
MAX_SWINGS = 12
MIN_CELLS, MAX_CELLS = 20, 72
# Parts of a bar of a tornado: distinct without colour.
LOW, HIGH = "▒", "█"
# Inputs that are ratios.
FACTORS = {"scatter": "step time / predicted step time", "chip.peak": "FLOP/s / data sheet"}
# Symbols of a scaling law and of its costs.
LAW_SYMBOLS = {
    "alpha": "exponent of the parameters in the law's loss", "beta": "exponent of its tokens",
    "eta": "training FLOP that cost as much as a served FLOP",
}  # fmt: skip


# --- sweep --------------------------------------------------------------------------------------------------------------


def sweep_view(sweep: Sweep, *, width: int) -> Answer:
    """Return the answers of a sweep.

    Args:
        sweep: Axes, answers, and reasons of points without an answer.
        width: Columns of the terminal.

    Returns:
        The answer.
    """
    joint = " with " if sweep.together else " x "
    over = joint.join(f"{counted(len(axis.values), 'value')} of {axis.name}" for axis in sweep.axes)
    conditions = f"{sweep.question}: {over}" + (f" = {counted(sweep.points, 'point')}" if len(sweep.axes) > 1 else "")
    conditions += f"; {_fixed_inputs(sweep)}." if sweep.fixed else "."
    ends = {end for pair in sweep.declaration.bands.values() for end in pair}
    is_answered = len(sweep.reasons) < sweep.points
    # Answers of no point, such as the days of a run without --tokens, would take the place of others.
    names = [name for name, column in sweep.answers.items() if name not in {*ends, "reason"} and _is_known(column)]
    charts = [chart for name in numbers(sweep) if is_answered and (chart := _chart(sweep, width, name)) is not None]
    has_ranges = any(bound in sweep.answers for name in names for bound in sweep.declaration.bands.get(name, ()))
    is_step_cost = sweep.question == "step" and "usd_per_million_tokens" in names
    cost_meaning = footnote("USD/M tokens: cost of this step only; a decode step leaves out prefill." if is_step_cost else "")
    body: list[RenderableType | None]
    # Few points are a table of all; of many only extremes and a chart say something.
    is_listed = sweep.points <= MAX_TABLE_POINTS
    if is_listed and names:
        body = [_points_table(sweep, names), footnote("(low to high): 90 % range." if has_ranges else ""), cost_meaning]
    else:
        body = [cost_meaning, *([_extremes_table(sweep), _chart(sweep, width)] if is_answered else [])]
    return Answer(
        sentence=_sweep_sentence(sweep), conditions=conditions, body=[*body, _reasons(sweep)],
        details=charts if is_listed else charts[1:], warnings=_memory_notes(sweep) + _cost_notes(sweep),
        full_adds="charts of all answers" if charts else "", files="--out FILE",
    )  # fmt: skip


def _sweep_sentence(sweep: Sweep) -> str:
    """Say where the main answer is lowest and highest."""
    name = first_number(sweep) if numbers(sweep) else ""
    ends = _extremes(sweep, name) if name else None
    if ends is None:
        return f"None of {counted(sweep.points, 'point')} has an answer."
    values, form = sweep.answers[name].values.ravel(), partial(_written, unit=sweep.answers[name].unit)
    words = _words(name)
    low, high = (ranged(values[point], _range(sweep, name, point), form) for point in ends)
    if math.isclose(values[ends[0]], values[ends[1]]):
        return f"{words[0].upper()}{words[1:]}: {low} at every point{' with an answer' if sweep.reasons else ''}."
    at_low, at_high = (_point_text(sweep, point) for point in ends)
    return f"Lowest {words}: {low} at {at_low}. Highest: {high} at {at_high}."


def _words(name: str) -> str:
    """Write the name of an answer: usd_per_million_tokens is USD per million tokens."""
    return " ".join(ABBREVIATIONS.get(word, word) for word in name.split("_"))


def _head(name: str) -> str:
    """Return the head of the column of an answer, with the unit of rates."""
    words = name.replace("tokens_per_second", "tok/s").replace("usd_per_million", "USD/M").split("_")
    return " ".join(ABBREVIATIONS.get(word, word) for word in words)


def _range(sweep: Sweep, name: str, point: int) -> tuple[float, float] | None:
    """Return the 90 % range of an answer at a point, if it has one."""
    ends = [sweep.answers.get(end) for end in sweep.declaration.bands.get(name, ())]
    low, high = (math.nan if end is None else float(end.values.ravel()[point]) for end in ends or (None, None))
    return (low, high) if math.isfinite(low) else None


def _fixed_inputs(sweep: Sweep) -> str:
    """Write the inputs that all points share."""
    texts = []
    for name, value in sweep.fixed.items():
        declared = sweep.declaration.inputs.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        number = _written(float(value), declared.unit if declared else "") if is_number else ""
        texts.append(f"{name} {number or getattr(value, 'name', value)}")
    return ", ".join(texts)


def _written(value: float, unit: str, *, bare: bool = False) -> str:
    """Write a number with its unit as people read it; `bare` if the head of the column has the unit of a rate."""
    if not math.isfinite(value):
        return "-"
    if unit == "USD":
        return usd(value)
    if unit == "requests/s" and not bare:
        return request_rate(value)
    if unit in PREFIXED_UNITS and not (bare and unit == "tok/s"):
        return str(show(value, unit))
    number = f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else in_digits(value, 3)
    return f"{number} {unit}" if unit and not bare and unit not in COUNTED else number


def _axis_value(axis: Axis, value: Any, *, bare: bool = False) -> str:
    return _written(float(value), axis.unit, bare=bare) if axis.numeric else str(value)


def _points_table(sweep: Sweep, names: list[str]) -> Grid:
    """Return a row for each point; points that exceed the memory are grey and marked †."""
    main = first_number(sweep) if numbers(sweep) else ""
    num_axes = len(sweep.axes)
    columns: list[Axis | Column] = [*sweep.axes, *(sweep.answers[name] for name in names)]
    heads = [*(f"{axis.name}, {axis.unit}" if axis.unit in RATES else axis.name for axis in sweep.axes), *map(_head, names)]
    going = [num_axes + place for place in reversed(range(len(names))) if names[place] != main]
    right = [place for place, column in enumerate(columns) if column.numeric]
    grid = table(*heads, numbers=right, first_to_go=going)
    axis_values = [values.ravel() for values in sweep.grid()]
    share = sweep.answers["memory_share"].values.ravel() if "memory_share" in sweep.answers else np.zeros(sweep.points)
    for point, is_over in enumerate(share > 1):
        cells = [_axis_value(axis, values[point], bare=True) for axis, values in zip(sweep.axes, axis_values, strict=True)]
        cells += [_answer(sweep, name, point) + (" †" if is_over and name == main else "") for name in names]
        grid.add_row(*cells, style="bright_black" if is_over else None)
    return grid


def _is_known(column: Column) -> bool:
    """Return whether some point has this answer."""
    return bool(np.isfinite(column.values).any() if column.numeric else any(column.values.ravel()))


def _answer(sweep: Sweep, name: str, point: int) -> str:
    column = sweep.answers[name]
    value = column.values.ravel()[point]
    if not column.numeric:
        return str(value)
    return ranged(value, _range(sweep, name, point), partial(_written, unit=column.unit, bare=True), label="")


def _extremes(sweep: Sweep, name: str) -> tuple[int, int] | None:
    """Return the points at which an answer is lowest and highest, among those that fit in memory."""
    # A batch beyond the memory is often the cheapest, and cannot run.
    flat = np.where(sweep.fits, sweep.answers[name].values, np.nan).ravel()
    finite = np.where(np.isfinite(flat), flat, np.nan)
    return None if np.isnan(finite).all() else (int(np.nanargmin(finite)), int(np.nanargmax(finite)))


def _extremes_table(sweep: Sweep) -> Grid:
    """Return where each answer is lowest and highest."""
    grid = table("Answer", "Lowest", "at", "Highest", "at", numbers=(1, 3), first_to_go=(4, 2))
    for name in numbers(sweep):
        values, unit = sweep.answers[name].values.ravel(), sweep.answers[name].unit
        if ends := _extremes(sweep, name):
            (low, at_low), (high, at_high) = ((_written(values[end], unit), _point_text(sweep, end)) for end in ends)
            grid.add_row(_words(name), low, at_low, high, at_high)
    return grid


def _point_text(sweep: Sweep, point: int) -> str:
    places: list[Any] = [point] * len(sweep.axes) if sweep.together else list(np.unravel_index(point, sweep.shape))
    return ", ".join(
        f"{axis.name} {_axis_value(axis, axis.labels[int(i)])}" for axis, i in zip(sweep.axes, places, strict=True)
    )


def _cost_notes(sweep: Sweep) -> list[str]:
    """Say how many points have answers but no cost, since no rent is known."""
    columns = (column for name, column in sweep.answers.items() if name.startswith("usd_per_million") and column.numeric)
    cost = next(columns, None)
    if cost is None:
        return []
    answered = np.ones(sweep.points, dtype=bool)
    answered[list(sweep.reasons)] = False
    without = int(np.count_nonzero(answered & ~np.isfinite(cost.values.ravel())))
    words = f"{counted(without, 'point')} without a cost: no rent of the system is known, and --rent 2.10 (USD/h) gives one"
    return [words] if without else []


def _memory_notes(sweep: Sweep) -> list[str]:
    """Say how many points do not fit in memory."""
    share = sweep.answers.get("memory_share")
    over = 0 if share is None else int(np.count_nonzero(share.values > 1))
    if not over:
        return []
    is_or_are, verb = ("is", "does") if over == 1 else ("are", "do")
    marked = "marked †" if sweep.points <= MAX_TABLE_POINTS else "left out of lowest and highest"
    points = f"{over:,} of {counted(sweep.points, 'point')}"
    return [f"{points} {verb} not fit in the memory of a chip, cannot run and {is_or_are} {marked}"]


def _reasons(sweep: Sweep) -> Group | None:
    """Say why points have no answer, each reason once."""
    first = {text: point for point, text in reversed(list(sweep.reasons.items()))}
    lines = [
        f"{count:,} x {text.rstrip('.')} (first at {_point_text(sweep, first[text])})."
        for text, count in sweep.refused_because.items()
    ]
    return section(f"{counted(len(sweep.reasons), 'point')} without an answer", lines)


# --- charts of a sweep --------------------------------------------------------------------------------------------------


def _chart(sweep: Sweep, width: int, answer: str = "") -> Group | None:
    """Return a curve of an answer over the longest axis of numbers, or a map over two; None where neither fits."""
    long = [place for place, axis in enumerate(sweep.axes) if axis.numeric and len(axis.values) > 3]
    long.sort(key=lambda place: -len(sweep.axes[place].values))
    name = answer or (first_number(sweep) if numbers(sweep) else "")
    if sweep.together or not long or not name or not np.isfinite(sweep.column(name).values).any():
        return None
    # Other axes stand at their first value.
    fixed_axes = {place: axis for place, axis in enumerate(sweep.axes) if place not in long[:2]}
    index = tuple(0 if place in fixed_axes else slice(None) for place in range(len(sweep.axes)))
    at_fixed = ", ".join(f"{axis.name} {_axis_value(axis, axis.labels[0])}" for axis in fixed_axes.values())
    column = sweep.column(name)
    values = column.values[index]
    axes = [sweep.axes[place] for place in long[:2]]
    if len(axes) == 1:
        picture: RenderableType = _curve(axes[0], values, column, width)
    else:
        picture = _map(axes[0], axes[1], values.T if long[0] > long[1] else values, column, width)
    return section(_words(name) + (f" at {at_fixed}" if at_fixed else ""), [picture])


def _scaled(values: Array) -> tuple[Array, bool]:
    log = spread_out(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (np.log10(values) if log else np.asarray(values, dtype=float)), log


def _curve(axis: Axis, values: Array, column: Column, width: int) -> RenderableType:
    order = np.argsort(axis.values, kind="stable")
    (x, across), (y, up) = _scaled(axis.values[order]), _scaled(values[order])
    # Points without an answer leave a gap.
    finite = np.isfinite(y)
    low, high = float(y[finite].min()), float(y[finite].max())
    margin = 0.05 * (high - low) or 0.05
    return draw(
        [Curve(x[finite], y[finite])],
        ChartAxis(axis.title, x.min(), max(x.max(), x.min() + 1e-9), partial(_tick, unit=""), across),
        ChartAxis(column.unit or "value", low - margin, high + margin, partial(_tick, unit=column.unit), up),
        width, ROWS,
    )  # fmt: skip


def _tick(value: float, unit: str) -> str:
    return _written(value, unit, bare=True).removesuffix(".00")


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
        lines.append(f"{_axis_value(second, second.values[orders[1]][j]):>12} |{row}|")
    ends = [_axis_value(first, first.values[orders[0]][i]) for i in (0, -1)]
    line = wide * len(across)
    foot = " " * 14 + ends[0] + " " * max(1, line - len(ends[0]) - len(ends[1])) + ends[1]
    finite_values = values[np.isfinite(values)]
    lowest, highest = (_written(float(extreme), column.unit) for extreme in (finite_values.min(), finite_values.max()))
    title = f"{second.title} up, {first.title} along; blank {lowest}, {SHADES[-1]} {highest}" + (
        ", ? no answer" if np.isnan(scaled).any() else ""
    )
    return Text("\n".join([*lines, foot, title]), no_wrap=True)


# --- design -------------------------------------------------------------------------------------------------------------


def design_view(design: Design, *, width: int) -> Answer:
    """Return the best design.

    Args:
        design: Designs, the front of those that no other beats, and the design as it is.
        width: Columns of the terminal.

    Returns:
        The answer.
    """
    sweep, front = design.sweep, len(design.front)
    aims = " and ".join(map(_words, design.aims))
    title = Group(
        Text(), heading(f"{counted(front, 'design')} of {sweep.points - len(sweep.reasons):,} on the Pareto front of {aims}")
    )
    listed = f"  {MAX_DESIGN_ROWS} of the {front:,} designs; --csv and --json have all."
    return Answer(
        sentence=_design_sentence(design), conditions=f"{sweep.question}, {_fixed_inputs(sweep)}." if sweep.fixed else "",
        body=[
            title, Text(listed) if front > MAX_DESIGN_ROWS else None, _design_table(design),
            _chart(sweep, width, design.aims[0]) if sweep.points > 3 else None,
        ],
        details=[_reasons(sweep)], warnings=[*_assumptions(design), *_memory_notes(sweep)],
        full_adds="designs without an answer" if sweep.reasons else "",
    )  # fmt: skip


def _design_sentence(design: Design) -> str:
    """Say which design is best, and how far it is from the design as it is."""
    aim = design.aims[0]
    column, now = design.sweep.column(aim), float(design.today.get(aim, np.nan))
    value = float(column.values.ravel()[design.best])
    text = f"Best of {counted(design.sweep.points - len(design.sweep.reasons), 'design')}: {design.called(design.best)}, with "
    text += f"{'lowest' if lower_is_better(aim) else 'highest'} {_words(aim)}: {_written(value, column.unit)}"
    # the present design may have no answer, such as a model that does not fit
    change = value / now - 1
    if np.isfinite(change):
        size = f"{percent(abs(change))} {'less' if change < 0 else 'more'} than" if abs(change) >= 0.005 else "as much as"
        text += f", {size} today ({_written(now, column.unit)})"
    text += f"; {counted(design.ties, 'other design')} {'is' if design.ties == 1 else 'are'} as good" if design.ties else ""
    return text + "."


def _design_table(design: Design) -> Grid:
    """Return a row for the design as it is, and one for each design on the front."""
    columns, axes = columns_in_short(design), design.sweep.axes
    heads = ["", *(axis.name.removeprefix(ARCH) for axis in axes), *map(_head, columns)]
    going = [len(heads) - 1 - i for i in range(len(columns) - 1)]
    grid = table(*heads, numbers=range(1, len(heads)), first_to_go=going)
    if design.today:
        now = [_figure(design, name, design.today.get(name, np.nan)) for name in columns]
        grid.add_row("today", *(_now(design, axis) for axis in axes), *now)
    axis_values = [values.ravel() for values in design.sweep.grid()]
    indices = design.front
    if len(indices) > MAX_DESIGN_ROWS:
        indices = tuple(indices[i] for i in np.linspace(0, len(indices) - 1, MAX_DESIGN_ROWS).round().astype(int))
    for index in indices:
        cells = [_axis_value(axis, values[index]) for axis, values in zip(axes, axis_values, strict=True)]
        cells += [_figure(design, name, design.sweep.answers[name].values.ravel()[index]) for name in columns]
        mark, style = ("best", "green") if index == design.best else ("", None)
        grid.add_row(mark, *cells, style=style)
    return grid


def _now(design: Design, axis: Any) -> str:
    if axis.name in design.today:
        return _axis_value(axis, design.today[axis.name])
    return "1" if axis.name.startswith("times.") else "-"


def _figure(design: Design, name: str, value: Any) -> str:
    if name.endswith("parameters"):
        return f"{in_digits(float(value) / 1e9, 4)} B" if np.isfinite(value) else "-"
    return _written(float(value), design.sweep.answers[name].unit, bare=True)


def _assumptions(design: Design) -> list[str]:
    """Return what a design is assumed to share with the present one: quality, size and rent."""
    warnings = []
    of_model = any(axis.name.startswith(ARCH) for axis in design.sweep.axes)
    if of_model and "parameters" in design.sweep.answers:
        sizes = design.sweep.answers["parameters"].values
        sizes = sizes[np.isfinite(sizes)] / 1e9
        low, high = float(sizes.min()), float(sizes.max())
        spread = high / low - 1
        same = f"all have {in_digits(low, 4)} B parameters to within {percent(max(spread, 0.001), 1)}"
        differ = f"they have {in_span(low, high, 4)} B parameters (--set arch.equal=total keeps them equal)"
        warnings.append(f"the quality of these models is not predicted: {same if spread < 0.02 else differ}")
    if WITHIN in design.sweep.fixed:
        warnings.append(f"FLOP/s shrink until the chip stays within {design.sweep.fixed[WITHIN]}; its rent stays the same")
    elif any(axis.name.startswith("times.") for axis in design.sweep.axes):
        warnings.append("the rent stays that of the present chip; --within power trades bandwidth for FLOP/s")
    return warnings


# --- sensitivity --------------------------------------------------------------------------------------------------------


def sensitivity_view(sensitivity: Sensitivity, *, width: int, full: bool) -> Answer:
    """Return how far uncertain inputs swing an answer.

    Args:
        sensitivity: The answer and the swing of each input, the largest first.
        width: Columns of the terminal.
        full: Whether to show the source of each range, and how to measure each input.

    Returns:
        The answer.
    """
    name = _words(sensitivity.answer)
    fixed = [
        getattr(sensitivity.fixed[key], "name", sensitivity.fixed[key])
        for key in ("model", "system")
        if key in sensitivity.fixed
    ]
    subject = " ".join([sensitivity.question, *map(str, fixed)])
    base = ranged(sensitivity.base, sensitivity.spread, partial(write_input, unit=sensitivity.unit))
    # Inputs beyond the rows are named in one line.
    matter = min(len(sensitivity.mattering), MAX_SWINGS)
    rows, minor = list(sensitivity.swings[:matter]), [swing.name for swing in sensitivity.swings[matter:]]
    remainder = f" and {len(minor) - 6} more" if len(minor) > 6 else ""
    smaller = f"Smaller swings: {', '.join(minor[:6])}{remainder}; --json and --csv have all."
    return Answer(
        sentence=f"{name[0].upper()}{name[1:]}, {subject}: {base}. {sensitivity.text}",
        body=[
            *([_swings_table(sensitivity, rows, full=full), _tornado(sensitivity, rows, width)] if rows else []),
            footnote(_meaning(sensitivity, rows)),
        ],
        details=[footnote(smaller if minor else ""), _order(sensitivity)],
        warnings=sensitivity.notes, full_adds="source of each range, how to measure each input",
    )  # fmt: skip


def _value(value: float, swing: Swing) -> str:
    """Write a value of an input with its unit; a factor on a prediction or a data sheet has an x."""
    text = write_input(value, swing.unit)
    if swing.unit in COUNTED:
        return f"{text} {swing.unit}"
    return f"{text}x" if not swing.unit and swing.name in FACTORS else text


def _swings_table(sensitivity: Sensitivity, rows: list[Swing], *, full: bool) -> Grid:
    """Return a row for each input: its range, the answer at both ends, and its share of the variance."""
    variance_heads = ["First", "Total"] if sensitivity.samples else ["Variance"]
    heads = ["Input", "Value (90 % range)", *(["Source of the range"] if full else []), "Low end", "High end", *variance_heads]
    going = (len(heads) - 1,) if sensitivity.samples else ()
    grid = table(*heads, numbers=range(3 if full else 2, len(heads)), first_to_go=going)
    grid.no_wrap = (0,)
    for swing in rows:
        ends = [
            "missed" if swing.misses(side) else write_input(value, sensitivity.unit)
            for side, value in enumerate((swing.at_low, swing.at_high))
        ]
        value = ranged(swing.base, (swing.low, swing.high), partial(_value, swing=swing), label="")
        basis = [swing.basis.replace(" %", "\N{NO-BREAK SPACE}%")] if full else []
        grid.add_row(swing.name, value, *basis, *ends, *_shares(sensitivity, swing))
    return grid


def _shares(sensitivity: Sensitivity, swing: Swing) -> list[str]:
    """Write the share of the variance, or Sobol's indices in per cent with half of their range."""
    if not sensitivity.samples:
        return [_percent(swing.share) if math.isfinite(swing.swing) else "-"]
    texts = []
    for value, ends in ((swing.first, swing.first_range), (swing.total, swing.total_range)):
        half = 0.0 if ends is None else 50 * (ends[1] - ends[0])
        digits = 1 if half < 2 else 0
        texts.append("-" if value is None or ends is None else f"{max(100 * value, 0.0):.{digits}f} ± {half:.{digits}f}")
    return texts


def _percent(share: float) -> str:
    return percent(max(share, 0.0), 1) if share < 0.0995 else percent(share)


def _tornado(sensitivity: Sensitivity, rows: list[Swing], width: int) -> Group | None:
    """Return the swings as bars about the present answer, the largest first."""
    # Inputs whose limits are missed swing to the last value that meets them.
    ends = [end for swing in rows for end in swing.at_met if math.isfinite(end)]
    low, high = min([sensitivity.base, *ends]), max([sensitivity.base, *ends])
    if not high > low:
        return None
    names = min(max(len(swing.name) for swing in rows), max(12, width // 3))
    cells = max(MIN_CELLS, min(MAX_CELLS, width - names - 3))

    def cell_index(value: float) -> int:
        return max(0, min(cells - 1, round((value - low) / (high - low) * (cells - 1))))

    middle = cell_index(sensitivity.base)
    lines: list[RenderableType] = []
    for swing in rows:
        glyphs = [(" ", "")] * cells
        for end, glyph, colour in zip(swing.at_met, (LOW, HIGH), ("blue", "yellow"), strict=True):
            if math.isfinite(end):
                first, last = sorted((middle, cell_index(end)))
                glyphs[first : last + 1] = [(glyph, colour)] * (last + 1 - first)
        glyphs[middle] = ("│", "bold")
        mark = " !" if swing.missed or not math.isfinite(swing.swing) else ""
        lines.append(Text.assemble(swing.name[:names].rjust(names), " ", *glyphs, mark))
    lines.append(_tornado_axis(sensitivity, names, cells, low, high, middle))
    legend = Text.assemble((LOW, "blue"), " input at its low end  ", (HIGH, "yellow"), " at its high end  │ current answer")
    if any(swing.missed for swing in rows):
        legend.append("  ! bar ends where limits are missed")
    return section("Change of the answer, one input at a time", [*lines, legend])


def _tornado_axis(sensitivity: Sensitivity, names: int, cells: int, low: float, high: float, middle: int) -> Text:
    """Return the labels of both ends and of the answer as asked, as far as they do not touch."""
    row = [" "] * cells
    first, last, base = (write_input(value, sensitivity.unit) for value in (low, high, sensitivity.base))
    row[: len(first)] = first
    row[cells - len(last) :] = last
    start = max(0, middle - len(base) // 2)
    if set(row[max(0, start - 2) : start + len(base) + 2]) <= {" "} and start + len(base) <= cells:
        row[start : start + len(base)] = base
    return Text(" " * (names + 1) + "".join(row).rstrip(), style="bright_black")


def _order(sensitivity: Sensitivity) -> Group | None:
    """Return the inputs worth measuring, in order, and how each becomes known."""
    ranked = [swing for swing in sensitivity.ranked if swing.variance_explained >= NEGLIGIBLE_VARIANCE_SHARE]
    lines = [
        f"{place}. {swing.name}, {_percent(swing.variance_explained)}{f': {swing.learn}' if swing.learn else ''}"
        for place, swing in enumerate(ranked, start=1)
    ]
    return section("Inputs to measure, by their share of the variance", lines if len(lines) > 1 else [])


def _meaning(sensitivity: Sensitivity, rows: list[Swing]) -> str:
    """Say what ranges and shares mean."""
    row_names = {swing.name for swing in rows}
    evens = [swing.name for swing in rows if swing.even]
    words = "".join(f" {name}: {ratio}." for name, ratio in FACTORS.items() if name in row_names)
    if evens and len(evens) < len(sensitivity.swings):
        words += f" {', '.join(evens)}: all values from the low to the high end, not a 90 % range."
    if sensitivity.samples:
        first = "First: % of the variance that knowing the input removes. Total: % that stays if all others are known."
        return f"{first} ±: 90 % range by a bootstrap of {sensitivity.samples:,} samples.{words}"
    ranked = [swing for swing in sensitivity.ranked if swing.name in row_names]
    if ranked and rows[0] is not ranked[0]:
        words = f" Rows: largest swing first; {ranked[0].name} has the largest share of the variance.{words}"
    symbols = [f"{name}: {meaning}" for name, meaning in LAW_SYMBOLS.items() if name in row_names]
    words += f" {'; '.join(symbols)}." if symbols else ""
    replans = "Each row plans again at the low and the high end of its input. " if sensitivity.question == "plan" else ""
    return f"{replans}Variance: share with one input varied at a time; --sobol varies all together.{words}"
