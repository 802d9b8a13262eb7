"""Pipeline schedule of a training step as a text chart: one row per device, time from left to right."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Final

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.widgets import heading
from steptime.number_checks import Array
from steptime.training.schedule_timeline import IDLE, KIND_NAMES, Timeline
from steptime.training.schedules.work_order import BACKWARD, INPUT, KINDS, PAIR
from steptime.units import show

# Colours in the order of KINDS.
STYLES: Final = ("blue", "yellow", "yellow", "green", "magenta")
# Glyphs in the same order, which differ without colour too.
FILLS: Final = ("█", "▒", "▒", "░", "▓")
GAP: Final = "·"
# Maximum rows; with more devices, only the first and the last are shown.
MOST_ROWS: Final = 24
# Maximum width of the shortest piece of work, in cells.
WIDEST: Final = 8


def schedule_picture(timeline: Timeline, width: int, title: str = "") -> RenderableType:
    """Return the work of each device over time; a long step shows only its beginning and its end.

    Args:
        timeline: Start, end and kind of all work in a step.
        width: Columns of the terminal.
        title: Title above the chart.

    Returns:
        Something that a console prints.
    """
    label = len(str(timeline.devices - 1)) + 1
    room = max(20, width - label - 1)
    shortest = float((timeline.end - timeline.start).min())
    total_units = timeline.total / shortest
    # Width of the shortest piece of work if the whole step is shown.
    cells = math.floor(room / total_units)
    lines = [heading(title)] if title else []
    if cells >= 1:
        step = shortest / min(cells, WIDEST)
        count = min(room, math.ceil(timeline.total / step - 1e-9))
        lines += _rows(timeline, [(0.0, count)], step, label)
        lines.append(_axis([(0.0, timeline.total)], [count], label))
    else:
        # Two cells for the shortest piece of work: beginning and end share the width.
        step, half = shortest / 2, (room - 3) // 2
        since = timeline.total - half * step
        lines += _rows(timeline, [(0.0, half), (since, half)], step, label)
        lines.append(_axis([(0.0, half * step), (since, timeline.total)], [half, half], label))
    return Group(*lines, *_legend(timeline, width), _summary(timeline))


def _listed_devices(devices: int) -> list[int]:
    """Return the devices with a row; -1 stands for the omitted devices."""
    if devices <= MOST_ROWS:
        return list(range(devices))
    half = MOST_ROWS // 2
    return [*range(half), -1, *range(devices - half, devices)]


def _rows(timeline: Timeline, parts: list[tuple[float, int]], step: float, label: int) -> list[Text]:
    part_cells = [timeline.cells(since, step, count) for since, count in parts]
    lines = []
    for device in _listed_devices(timeline.devices):
        if device < 0:
            lines.append(Text("⋮".rjust(label - 1)))
            continue
        line = Text(f"{device}".rjust(label - 1) + " ")
        for number, cells in enumerate(part_cells):
            line.append(" … " if number else "")
            line.append_text(_row(timeline, cells[device]))
        lines.append(line)
    return lines


def _row(timeline: Timeline, cells: Array) -> Text:
    """Return the cells of a device: number of the micro-batch, then the glyph of its work."""
    line = Text()
    bounds = [0, *(np.flatnonzero(np.diff(cells)) + 1).tolist(), len(cells)]
    for low, high in pairwise(bounds):
        place, length = int(cells[low]), high - low
        if place == IDLE:
            line.append(GAP * length, style="bright_black")
            continue
        kind, micro, back = int(timeline.kind[place]), int(timeline.micro[place]), int(timeline.back_micro[place])
        number = f"{micro}" if kind != PAIR else f"{micro},{back}"
        number = number if len(number) < length else ""
        style = STYLES[kind] + (" dim" if timeline.chunk[place] else "")
        line.append(number, style=f"bold {STYLES[kind]}")
        line.append(FILLS[kind] * (length - len(number)), style=style)
    return line


def _axis(parts: list[tuple[float, float]], counts: list[int], label: int) -> Text:
    """Return the time axis: the times at both ends of each part."""
    line = " " * label
    for number, ((since, until), count) in enumerate(zip(parts, counts, strict=True)):
        line += "   " if number else ""
        first, last = show(since, "s") if since else "0", show(until, "s")
        line += first + last.rjust(max(1, count - len(first)))
    return Text(line, style="bright_black")


def _legend(timeline: Timeline, width: int) -> list[Text]:
    """Return the meaning of the glyphs."""
    kinds = [KINDS.index(kind) for kind in timeline.kinds]
    both = "backward, whole or gradients of inputs" if BACKWARD in kinds else KIND_NAMES[INPUT]
    pieces = [
        Text.assemble((f"{FILLS[kind]} ", STYLES[kind]), both if kind == INPUT else KIND_NAMES[kind])
        for kind in kinds
        if not (kind == BACKWARD and INPUT in kinds)
    ]
    if int(timeline.chunk.max()) > 0:
        pieces.append(Text.assemble(("dim", "dim"), " later parts of the model"))
    pieces.append(Text.assemble((f"{GAP} ", "bright_black"), "idle"))
    # As many pieces per line as fit the width.
    lines = [pieces[0]]
    for piece in pieces[1:]:
        if lines[-1].cell_len + 3 + piece.cell_len <= width:
            lines[-1] = Text("   ").join([lines[-1], piece])
        else:
            lines.append(piece)
    return lines


def _summary(timeline: Timeline) -> Text:
    """Return time, idle time and micro-batches in flight in one line."""
    min_idle, max_in_flight = float(timeline.idle.min()), float(timeline.in_flight.max())
    idle = (
        f"the busiest device idles {show(min_idle, 's')} ({min_idle / timeline.total:.1%})"
        if min_idle
        else "the busiest device is never idle"
    )
    flight = f"at most {max_in_flight:.4g} micro-batch{'es' if max_in_flight > 1 else ''} in flight on a device"
    return Text(f"{show(timeline.total, 's')} a step; {idle}; {flight}")
