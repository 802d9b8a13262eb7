"""Charts of the terminal, drawn with letters: round ticks, a glyph for each curve, and bars on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from steptime.hardware.rental_prices import usd
from steptime.planning.plan_result import Plan, Point
from steptime.units import show

MIN_CELLS, MAX_WIDTH = 20, 100  # columns of the axis at least, and of the picture at most
TICKS = (1, 2, 5)


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
            names: what stands at the left of each line.
            values: values above 0.
            width: columns of the terminal.
            max_name_width: columns that names may take.
            spare: factor by which the axis is wider at each end.

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
            value: a value above 0.

        Returns:
            Its column, from 0.
        """
        scale = (self.cells - 1) / max(self.high - self.low, 1e-9)
        return max(0, min(self.cells - 1, round((math.log10(value) - self.low) * scale)))

    def labels(self, write: Callable[[float], str] = usd) -> Text:
        """Return the line of round labels below the axis, as many as do not touch.

        Args:
            write: writes a value with its unit.

        Returns:
            Labels at 1, 2 or 5 times powers of ten; both ends where the axis holds fewer than two of those.
        """
        values = round_ticks(self.low, self.high, log=True)
        ends = [10**self.low, 10**self.high] if len(values) < 2 else []
        row = _label_row([(self.cell_index(value), write(value).removesuffix(".00")) for value in [*ends, *values]], self.cells)
        return Text(" " * (self.name_width + 1) + row, style="bright_black")


@dataclass(frozen=True)
class Ticks:
    """How an axis of a chart is labelled.

    Attributes:
        write: writes a value with its unit.
        log: whether positions on the axis are decimal logarithms of values.
    """

    write: Callable[[float], str]
    log: bool = True


def round_ticks(low: float, high: float, *, log: bool, max_ticks: int = 9) -> list[float]:
    """Return round values between two positions of an axis.

    Args:
        low: first position: a value, or its decimal logarithm.
        high: last position.
        log: whether positions are logarithms.
        max_ticks: number of values that fit.

    Returns:
        1, 2 and 5 times powers of ten, or only powers of ten where those are too many; on an axis of values, multiples of such.

    >>> round_ticks(0.0, 2.0, log=True)
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]
    >>> round_ticks(0.0, 100.0, log=False)
    [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    """
    if log:
        # a narrow axis has no two such values: it is labelled like one of values
        for steps in (TICKS, (1, 5), (1,)):
            powers = range(math.floor(low), math.ceil(high) + 1)
            values = [step * 10.0**power for power in powers for step in steps]
            inside = [value for value in values if low - 1e-9 <= math.log10(value) <= high + 1e-9]
            if len(inside) <= max_ticks:
                break
        # an axis of many powers of ten keeps every second or third of them
        inside = inside[:: math.ceil(len(inside) / max_ticks)] if len(inside) > max_ticks else inside
        return inside if len(inside) > 1 else round_ticks(10**low, 10**high, log=False, max_ticks=5)
    step = _nice((high - low) / 6) if high > low else 1.0
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _label_row(labels: Iterable[tuple[int, str]], cells: int) -> str:
    """Return labels at their columns, without those that would touch one before them."""
    row = [" "] * (cells + 8)
    for cell, text in labels:
        room = row[max(cell - 2, 0) : cell + len(text) + 2]
        if set(room) <= {" "} and cell + len(text) <= len(row):
            row[cell : cell + len(text)] = text
    return "".join(row).rstrip()


AXIS_WIDTH, NARROW = 34, 64  # columns of axis and label of a picture; terminal width below which labels are short
MAX_MARKED_POINTS = 40  # points that are each marked by a letter


def figure(columns: int, rows: int) -> Any:
    """Return an empty picture.

    Args:
        columns: width in letters.
        rows: height in letters.

    Returns:
        A figure of plotille.
    """
    import plotille

    chart = plotille.Figure()
    chart.width, chart.height, chart.origin, chart.with_colors, chart.color_mode = columns, rows, False, True, "names"
    return chart


def render_chart(chart: Any, x: Ticks | None = None, y: Ticks | None = None) -> Text:
    """Return a picture as text.

    Args:
        chart: figure of plotille, with limits of both axes.
        x: how the horizontal axis is labelled; None: as plotille does.
        y: how the vertical axis is labelled.

    Returns:
        The lines of the picture.
    """
    if y is not None:
        ticks = [(math.log10(value) if y.log else value, value) for value in round_ticks(*chart.y_limits(), log=y.log)]
        # plotille asks for the label of each line of the picture: one that holds no round value has none
        chart.y_ticks_fkt = lambda low, high: next((y.write(value) for place, value in ticks if low <= place < high), "")
    if x is None:
        return Text.from_ansi(chart.show(legend=False))
    chart.x_ticks_fkt = lambda *_: ""
    low, high = chart.x_limits()
    cells = chart.width
    labels = []
    for value in round_ticks(low, high, log=x.log, max_ticks=max(3, cells // 8)):
        position = ((math.log10(value) if x.log else value) - low) / max(high - low, 1e-12)
        labels.append((min(cells, round(position * cells)), x.write(value)))
    # plotille labels every tenth column: its two last lines are replaced
    *picture, _, _ = chart.show(legend=False).rstrip("\n").split("\n")
    marks = "".join("|" if cell in dict(labels) else "-" for cell in range(cells + 1))
    axis = f"{'-' * 11}|-{marks}-> ({chart.x_label})"
    return Text.from_ansi("\n".join([*picture, axis, f"{'':11}| {_label_row(labels, cells)}"]))


def seconds(value: float) -> str:
    """Write a time at an axis.

    Args:
        value: time [s].

    Returns:
        Two digits with the unit.
    """
    return str(show(value, "s", 2))


def plain(value: float) -> str:
    """Write a number at an axis.

    Args:
        value: the number.

    Returns:
        Two digits, with a prefix from a thousand on.
    """
    return f"{value:g}" if value < 1000 else str(show(value, "", 2))


def room(width: int) -> int:
    """Return the columns that a picture has next to its axis and its label.

    Args:
        width: columns of the terminal.

    Returns:
        A multiple of ten.
    """
    return 10 * max(1, min(6, (width - AXIS_WIDTH) // 10))


def label(chart: Any, x: str, y: str, width: int) -> None:
    """Name the axes of a picture, by their last words on a narrow terminal.

    Args:
        chart: figure of plotille.
        x: name of the horizontal axis.
        y: name of the vertical axis.
        width: columns of the terminal.
    """
    short = width < NARROW
    chart.x_label, chart.y_label = (words.split()[-1] if short else words for words in (x, y))


def _nice(value: float) -> float:
    """Round up to 1, 2, 2.5 or 5 times a power of ten."""
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if value <= m * power * 1.0001)


def front_plot(plan: Plan, width: int) -> RenderableType:
    """Return speed against throughput on the Pareto front, with the chosen layout marked.

    Args:
        plan: the plan.
        width: columns of the terminal.

    Returns:
        Title, picture and legend.
    """
    points = [p for p in plan.front if p.tokens_per_second_per_chip > 0]
    if len(points) < 2:
        return Text("Only one layout is on the Pareto front.")
    speed, output, rows, step = _axes(points)
    low, high = math.floor(2 * speed.min()) / 2, math.ceil(2 * speed.max() + 1e-9) / 2
    chart = figure(room(width), rows)
    chart.set_x_limits(low, high)
    chart.set_y_limits(0, rows * step)
    label(chart, "tok/s per user", "tok/s per chip", width)
    chart.plot(speed, output)
    marks = Text()
    if plan.feasible:
        chart.scatter([math.log10(plan.tokens_per_second_per_user)], [plan.tokens_per_second_per_chip], lc="green", marker="◆")
        best = "the cheapest layout" if math.isfinite(plan.usd_per_second) else "the layout of most output"
        marks.append(f"◆ {best}   ", style="green")
    if math.isfinite(plan.slo.tpot) and low < -math.log10(plan.slo.tpot) < high:
        limit = -math.log10(plan.slo.tpot)
        chart.plot([limit, limit], [0, rows * step], lc="red")
        marks.append("│ the speed asked for", style="red")
    caption = Text("Pareto front: output of each chip against speed for each user [tok/s]", style="bold")
    return Group(caption, render_chart(chart, Ticks(plain), Ticks("{:,g}".format, log=False)), marks)


def _axes(points: Sequence[Point]) -> tuple[Any, Any, int, float]:
    """Return log10 of speed, output, and rows of the picture with their step."""
    speed = np.log10([p.tokens_per_second_per_user for p in points])
    output = np.array([p.tokens_per_second_per_chip for p in points])
    step = _nice(float(max(output)) / 8)
    return speed, output, math.ceil(float(max(output)) / step), step


def distribution_plot(latencies: dict[str, Any], width: int) -> RenderableType:
    """Return the share of requests within a latency, a curve for each quantity, on a logarithmic axis.

    Args:
        latencies: samples [s] by quantity: TTFT, TPOT.
        width: columns of the terminal.

    Returns:
        Title, picture and legend.
    """
    styles = {"TTFT": ("green", "━"), "TPOT": ("cyan", "o")}
    share = np.linspace(0.0, 1.0, 101)
    samples = {name: values for name, values in latencies.items() if np.any(values > 0)}
    curves = {name: np.log10(np.maximum(np.quantile(values, share), 1e-9)) for name, values in samples.items()}
    if not curves:
        return Text()
    low = min(math.log10(np.quantile(values[values > 0], 0.01)) for values in samples.values())
    high = max(curve[-1] for curve in curves.values())
    chart = figure(max(10, min(60, width - AXIS_WIDTH)), 10)
    chart.set_x_limits(float(low) - 0.05, float(max(high, low + 0.1)) + 0.05)
    chart.set_y_limits(0, 100)
    label(chart, "latency", "requests", width)
    legend = Text()
    for name, curve in curves.items():
        colour, glyph = styles[name]
        chart.plot(curve, 100 * share, lc=colour)
        if glyph == "o":
            chart.scatter(curve[5::10], 100 * share[5::10], lc=colour, marker=glyph)
        legend.append(f"{glyph} {name}   ", style=colour)
    picture = render_chart(chart, Ticks(seconds), Ticks("{:.0f} %".format, log=False))
    return Group(Text("Share of requests within a latency", style="bold"), picture, legend)


def rate_plot(rates: Sequence[float], ttft: Sequence[float], quantile: str, width: int) -> RenderableType:
    """Return a quantile of TTFT against the request rate, both logarithmic.

    Args:
        rates: rates [requests/s].
        ttft: quantile of TTFT at each rate [s].
        quantile: its name, such as p99.
        width: columns of the terminal.

    Returns:
        Title, picture and legend.
    """
    x, y = np.log10(rates), np.log10(np.maximum(ttft, 1e-9))
    chart = figure(max(10, min(60, width - AXIS_WIDTH)), 10)
    chart.set_x_limits(float(x.min()) - 0.05, float(x.max()) + 0.05)
    chart.set_y_limits(float(y.min()) - 0.1, float(max(y.max(), y.min() + 0.2)) + 0.1)
    label(chart, "requests/s", f"TTFT {quantile}", width)
    chart.plot(x, y, lc="green")
    chart.scatter(x, y, lc="green", marker="o")
    picture = render_chart(chart, Ticks(plain), Ticks(seconds))
    return Group(Text(f"Rate against {quantile} of TTFT", style="bold"), picture, Text("o a rate that was tried"))


def scatter_plot(measured: Any, predicted: Any, width: int) -> RenderableType:
    """Return predicted against measured TPOT on logarithmic axes, with the diagonal.

    Args:
        measured: measured TPOT of each run [ms].
        predicted: predicted TPOT of each run [ms].
        width: columns of the terminal.

    Returns:
        Title, picture and legend.
    """
    x, y = np.log10(measured), np.log10(predicted)
    low = math.floor(2 * min(x.min(), y.min())) / 2
    high = math.ceil(2 * max(x.max(), y.max()) + 1e-9) / 2
    chart = figure(room(width), 16)
    chart.set_x_limits(low, high)
    chart.set_y_limits(low, high)
    label(chart, "TPOT in ms, measured", "TPOT in ms, predicted", width)
    line = np.linspace(low, high, 16)
    chart.scatter(line, line, lc="red", marker="/")
    chart.scatter(x, y, marker="o" if len(x) <= MAX_MARKED_POINTS else None)
    legend = Text(("o" if len(x) <= MAX_MARKED_POINTS else "⠿") + " a run   ").append("/ predicted as measured", style="red")
    return Group(Text("Predicted against measured", style="bold"), render_chart(chart, Ticks(plain), Ticks(plain)), legend)
