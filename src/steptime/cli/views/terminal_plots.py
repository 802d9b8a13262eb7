"""Charts of the terminal, drawn with letters: curves with round ticks and a glyph each, and bars on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Group
from rich.text import Text

from steptime.hardware.rental_prices import usd
from steptime.units import show

# Columns of the axis at least, and of the picture at most.
MIN_CELLS, MAX_WIDTH = 20, 100
TICKS = (1, 2, 5)
# Columns of the vertical axis and its label; width of the terminal below which labels are short.
AXIS_WIDTH, NARROW = 34, 64


@dataclass(frozen=True)
class LogScale:
    """Names in `name_width` columns, then `cells` columns from 10^low to 10^high."""

    name_width: int
    cells: int
    low: float
    high: float

    @classmethod
    def fit(
        cls, names: Sequence[str], values: Iterable[float], width: int, *, max_name_width: int, spare: float = 1.0
    ) -> LogScale:
        """Return the axis that holds all values.

        Args:
            names: What stands at the left of each line.
            values: Values above 0.
            width: Columns of the terminal.
            max_name_width: Columns that names may take.
            spare: Factor by which the axis is wider at each end.

        Returns:
            The axis.
        """
        name_width = min(max(map(len, names)), max_name_width, max(8, width // 3))
        values = list(values)
        cells = max(MIN_CELLS, min(width, MAX_WIDTH) - name_width - 3)
        return cls(name_width, cells, math.log10(min(values) / spare), math.log10(max(values) * spare))

    def cell_index(self, value: float) -> int:
        """Return the column of a value.

        Args:
            value: A value above 0.

        Returns:
            Its column, from 0; the first or the last for a value beyond the axis.
        """
        if not 0 < value < math.inf:
            return 0 if value <= 0 else self.cells - 1
        scale = (self.cells - 1) / max(self.high - self.low, 1e-9)
        return max(0, min(self.cells - 1, round((math.log10(value) - self.low) * scale)))

    def line(self, name: str, strokes: Iterable[tuple[float, float, str]], colour: str) -> Text:
        """Return a line of the picture: a name, then strokes and marks.

        Args:
            name: What stands at the left.
            strokes: First value, last value and glyph of each stroke; later strokes cover earlier ones.
            colour: Style of the strokes.

        Returns:
            The line.
        """
        row = [" "] * self.cells
        for first, last, glyph in strokes:
            start, end = self.cell_index(first), self.cell_index(last) + 1
            row[start:end] = [glyph] * (end - start)
        return Text.assemble(name[: self.name_width].rjust(self.name_width), " ", ("".join(row), colour))

    def labels(self, write: Callable[[float], str] = usd) -> Text:
        """Return the line of round labels below the axis, as many as do not touch.

        Args:
            write: Writes a value with its unit.

        Returns:
            Labels at 1, 2 or 5 times powers of ten; both ends where the axis holds fewer than two of those.
        """
        values = round_ticks(self.low, self.high, log=True)
        ends = [10**self.low, 10**self.high] if len(values) < 2 else []
        row = label_row([(self.cell_index(value), write(value).removesuffix(".00")) for value in [*ends, *values]], self.cells)
        return Text(" " * (self.name_width + 1) + row, style="bright_black")


def round_ticks(low: float, high: float, *, log: bool, max_ticks: int = 9) -> list[float]:
    """Return round values between two positions of an axis.

    Args:
        low: First position: a value, or its decimal logarithm.
        high: Last position.
        log: Whether positions are logarithms.
        max_ticks: Number of values that fit.

    Returns:
        1, 2 and 5 times powers of ten, or only powers of ten where those are too many; on an axis of values, multiples of such.

    >>> round_ticks(0.0, 2.0, log=True)
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]
    >>> round_ticks(0.0, 100.0, log=False)
    [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    """
    if log:
        # A narrow axis has no two such values: it is labelled like one of values.
        for steps in (TICKS, (1, 5), (1,)):
            powers = range(math.floor(low), math.ceil(high) + 1)
            values = [step * 10.0**power for power in powers for step in steps]
            inside = [value for value in values if low - 1e-9 <= math.log10(value) <= high + 1e-9]
            if len(inside) <= max_ticks:
                break
        # An axis of many powers of ten keeps every second or third of them.
        inside = inside[:: math.ceil(len(inside) / max_ticks)] if len(inside) > max_ticks else inside
        return inside if len(inside) > 1 else round_ticks(10**low, 10**high, log=False, max_ticks=5)
    step = nice((high - low) / 6) if high > low else 1.0
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def label_row(labels: Iterable[tuple[int, str]], cells: int) -> str:
    """Return labels at their columns, without those that would touch one before them.

    Args:
        labels: Column and text of each label, the most important first.
        cells: Columns of the axis.

    Returns:
        One line.
    """
    row = [" "] * (cells + 8)
    for cell, text in labels:
        room = row[max(cell - 2, 0) : cell + len(text) + 2]
        if set(room) <= {" "} and cell + len(text) <= len(row):
            row[cell : cell + len(text)] = text
    return "".join(row).rstrip()


def nice(value: float) -> float:
    """Round up to 1, 2, 2.5 or 5 times a power of ten.

    Args:
        value: A value above 0.

    Returns:
        The round value.
    """
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if value <= m * power * 1.0001)


def seconds(value: float) -> str:
    """Write a time at an axis.

    Args:
        value: Time [s].

    Returns:
        Two digits with the unit.
    """
    return str(show(value, "s", 2))


def plain(value: float) -> str:
    """Write a number at an axis.

    Args:
        value: The number.

    Returns:
        Two digits, with a prefix from a thousand on.
    """
    return f"{value:g}" if value < 1000 else str(show(value, "", 2))


@dataclass(frozen=True)
class Axis:
    """An axis of a chart.

    Attributes:
        title: Its name; on a narrow terminal its last word.
        low: First position: a value, or its decimal logarithm.
        high: Last position.
        write: Writes a value with its unit.
        log: Whether positions are decimal logarithms of values.
    """

    title: str
    low: float
    high: float
    write: Callable[[float], str] = plain
    log: bool = True


@dataclass(frozen=True)
class Curve:
    """Points of a chart, at positions of its axes.

    Attributes:
        x: Positions along the horizontal axis.
        y: Positions along the vertical axis.
        name: Words of the legend; empty without an entry.
        colour: Colour; empty for that of the terminal.
        mark: Letter at some points, which distinguishes curves without colour.
        marked: First point with the letter, and the step to the next one.
        has_line: Whether a line joins the points.
        glyph: Letter of the legend, if it is not the mark.
    """

    x: Any
    y: Any
    name: str = ""
    colour: str = ""
    mark: str | None = ""
    marked: tuple[int, int] = (0, 1)
    has_line: bool = True
    glyph: str = ""


def draw(curves: Sequence[Curve], x: Axis, y: Axis, width: int, rows: int = 10, title: str = "") -> Group:
    """Return a chart of curves with its legend.

    Args:
        curves: The curves; later ones cover earlier ones.
        x: The horizontal axis.
        y: The vertical axis.
        width: Columns of the terminal.
        rows: Height of the chart, in letters.
        title: Title above the chart.

    Returns:
        Title, picture and legend.
    """
    import plotille

    chart = plotille.Figure()
    chart.width, chart.height = 10 * max(1, min(6, (width - AXIS_WIDTH) // 10)), rows
    chart.origin, chart.with_colors, chart.color_mode = False, True, "names"
    chart.set_x_limits(float(x.low), float(x.high))
    chart.set_y_limits(float(y.low), float(y.high))
    chart.x_label, chart.y_label = (axis.title.split()[-1] if width < NARROW else axis.title for axis in (x, y))
    legend = Text()
    for curve in curves:
        if curve.has_line:
            chart.plot(curve.x, curve.y, lc=curve.colour or None)
        if curve.mark != "":
            first, every = curve.marked
            chart.scatter(curve.x[first::every], curve.y[first::every], lc=curve.colour or None, marker=curve.mark)
        if curve.name:
            legend.append(f"{curve.glyph or curve.mark} {curve.name}   ", style=curve.colour)
    parts = [Text(title, style="bold")] if title else []
    return Group(*parts, _with_ticks(chart, x, y), *([legend] if legend else []))


def _with_ticks(chart: Any, x: Axis, y: Axis) -> Text:
    """Return the lines of a picture with round values at both axes."""
    ticks = [(math.log10(value) if y.log else value, value) for value in round_ticks(y.low, y.high, log=y.log)]
    # plotille asks for the label of each line of the picture: one that holds no round value has none.
    chart.y_ticks_fkt = lambda low, high: next((y.write(value) for place, value in ticks if low <= place < high), "")
    chart.x_ticks_fkt = lambda *_: ""
    cells, labels = chart.width, []
    for value in round_ticks(x.low, x.high, log=x.log, max_ticks=max(3, cells // 8)):
        position = ((math.log10(value) if x.log else value) - x.low) / max(x.high - x.low, 1e-12)
        labels.append((min(cells, round(position * cells)), x.write(value)))
    # plotille labels every tenth column: its two last lines are replaced.
    *picture, _, _ = chart.show(legend=False).rstrip("\n").split("\n")
    marks = "".join("|" if cell in dict(labels) else "-" for cell in range(cells + 1))
    axis = f"{'-' * 11}|-{marks}-> ({chart.x_label})"
    return Text.from_ansi("\n".join([*picture, axis, f"{'':11}| {label_row(labels, cells)}"]))


def log10(values: Any, least: float = 1e-9) -> Any:
    """Return the positions of values on a logarithmic axis.

    Args:
        values: Numbers.
        least: Value below which numbers have its position.

    Returns:
        Decimal logarithms.
    """
    return np.log10(np.maximum(values, least))
