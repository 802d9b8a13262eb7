"""A logarithmic axis, of dollars unless told: where a value stands in a row of letters, and the labels below.

Pictures of curves and points, drawn with letters: each curve has a glyph of its own beside its colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from steptime.hardware.unit_cost import usd
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
        """Return the axis that holds all values, `spare` times wider at each end, beside names of so many columns."""
        name_width = min(max(map(len, names)), max_name_width, max(8, width // 3))
        values = list(values)
        cells = max(MIN_CELLS, min(width, MAX_WIDTH) - name_width - 3)
        return cls(name_width, cells, math.log10(min(values) / spare), math.log10(max(values) * spare))

    def cell_index(self, value: float) -> int:
        """Return the column of a value."""
        scale = (self.cells - 1) / max(self.high - self.low, 1e-9)
        return max(0, min(self.cells - 1, round((math.log10(value) - self.low) * scale)))

    def labels(self, write: Callable[[float], str] = usd) -> Text:
        """Return the labels of both ends, and of as many round figures between as do not touch, as `write` has them."""
        row = [" "] * (self.cells + 8)

        def put(label: str, cell: int) -> None:
            room = row[max(cell - 2, 0) : cell + len(label) + 2]
            if set(room) <= {" "} and cell + len(label) <= len(row):
                row[cell : cell + len(label)] = label

        first, last = write(10**self.low), write(10**self.high)
        put(first, 0)
        put(last, self.cells - len(last))
        for power in range(math.floor(self.low), math.ceil(self.high) + 1):
            for step in TICKS:
                value = step * 10.0**power
                if self.low < math.log10(value) < self.high:
                    put(write(value).removesuffix(".00"), self.cell_index(value))
        return Text(" " * (self.name_width + 1) + "".join(row).rstrip(), style="bright_black")


AXIS_WIDTH, NARROW = 34, 64  # columns that axis and label of a picture take, and below which labels are short
MAX_MARKED_POINTS = 40  # points that are each marked by a letter


def figure(columns: int, rows: int) -> Any:
    """Return an empty picture of so many letters."""
    import plotille

    chart = plotille.Figure()
    chart.width, chart.height, chart.origin, chart.with_colors, chart.color_mode = columns, rows, False, True, "names"
    return chart


def render_chart(chart: Any) -> Text:
    """Return a picture as text."""
    return Text.from_ansi(chart.show(legend=False))


def seconds(value: float, _: float = 0.0) -> str:
    """Write a power of ten in seconds."""
    return str(show(10**value, "s", 2))


def room(width: int) -> int:
    """Return the columns that a picture has beside its axis and its label, in tens."""
    return 10 * max(1, min(6, (width - AXIS_WIDTH) // 10))


def label(chart: Any, x: str, y: str, width: int) -> None:
    """Name the axes of a picture, by their last words where there is little room."""
    short = width < NARROW
    chart.x_label, chart.y_label = (words.split()[-1] if short else words for words in (x, y))


def _nice(value: float) -> float:
    """Round up to 1, 2, 2.5 or 5 times a power of ten."""
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if value <= m * power * 1.0001)


def front_plot(plan: Plan, width: int) -> RenderableType:
    """Return speed against throughput on the Pareto front, the chosen layout marked."""
    points = [p for p in plan.front if p.tokens_per_second_per_chip > 0]
    if len(points) < 2:
        return Text("Only one layout is on the Pareto front.")
    speed, output, rows, step = _axes(points)
    low, high = math.floor(2 * speed.min()) / 2, math.ceil(2 * speed.max() + 1e-9) / 2
    chart = figure(room(width), rows)
    chart.set_x_limits(low, high)
    chart.set_y_limits(0, rows * step)
    chart.x_ticks_fkt = lambda value, _: f"{10**value:,.0f}" if 10**value >= 9.5 else f"{10**value:.2g}"
    chart.y_ticks_fkt = lambda value, _: f"{value:,.0f}" if step >= 1 else f"{value:.3g}"
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
    return Group(caption, render_chart(chart), marks)


def _axes(points: Sequence[Point]) -> tuple[Any, Any, int, float]:
    """Return log10 of speed, output, and rows of the picture with their step."""
    speed = np.log10([p.tokens_per_second_per_user for p in points])
    output = np.array([p.tokens_per_second_per_chip for p in points])
    step = _nice(float(max(output)) / 8)
    return speed, output, math.ceil(float(max(output)) / step), step


def distribution_plot(latencies: dict[str, Any], width: int) -> RenderableType:
    """Return the share of requests within a latency [s], a curve a quantity, on a logarithmic axis."""
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
    chart.x_ticks_fkt, chart.y_ticks_fkt = seconds, lambda value, _: f"{value:.0f} %"
    label(chart, "latency", "requests", width)
    legend = Text()
    for name, curve in curves.items():
        colour, glyph = styles[name]
        chart.plot(curve, 100 * share, lc=colour)
        if glyph == "o":
            chart.scatter(curve[5::10], 100 * share[5::10], lc=colour, marker=glyph)
        legend.append(f"{glyph} {name}   ", style=colour)
    return Group(Text("Share of requests within a latency", style="bold"), render_chart(chart), legend)


def rate_plot(rates: Sequence[float], ttft: Sequence[float], quantile: str, width: int) -> RenderableType:
    """Return a quantile of TTFT [s] against the rate [requests/s], both logarithmic."""
    x, y = np.log10(rates), np.log10(np.maximum(ttft, 1e-9))
    chart = figure(max(10, min(60, width - AXIS_WIDTH)), 10)
    chart.set_x_limits(float(x.min()) - 0.05, float(x.max()) + 0.05)
    chart.set_y_limits(float(y.min()) - 0.1, float(max(y.max(), y.min() + 0.2)) + 0.1)
    chart.x_ticks_fkt, chart.y_ticks_fkt = lambda value, _: f"{10**value:.3g}", seconds
    label(chart, "requests/s", f"TTFT {quantile}", width)
    chart.plot(x, y, lc="green")
    chart.scatter(x, y, lc="green", marker="o")
    return Group(Text(f"Rate against {quantile} of TTFT", style="bold"), render_chart(chart), Text("o a rate that was tried"))


def scatter_plot(measured: Any, predicted: Any, width: int) -> RenderableType:
    """Return predicted against measured TPOT [ms] on logarithmic axes, with the diagonal."""
    x, y = np.log10(measured), np.log10(predicted)
    low = math.floor(2 * min(x.min(), y.min())) / 2
    high = math.ceil(2 * max(x.max(), y.max()) + 1e-9) / 2
    chart = figure(room(width), 16)
    chart.set_x_limits(low, high)
    chart.set_y_limits(low, high)
    chart.x_ticks_fkt = chart.y_ticks_fkt = lambda value, _: f"{10**value:,.3g}"
    label(chart, "TPOT in ms, measured", "TPOT in ms, predicted", width)
    line = np.linspace(low, high, 16)
    chart.scatter(line, line, lc="red", marker="/")
    chart.scatter(x, y, marker="o" if len(x) <= MAX_MARKED_POINTS else None)
    legend = Text(("o" if len(x) <= MAX_MARKED_POINTS else "⠿") + " a run   ").append("/ predicted as measured", style="red")
    return Group(Text("Predicted against measured", style="bold"), render_chart(chart), legend)
