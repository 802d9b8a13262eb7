"""What the terminal shows of a sensitivity: what to learn first, the inputs with their ranges, and their swings as bars."""

from __future__ import annotations

import math
from functools import partial

from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.widgets import Grid, notes, ranged, table
from steptime.sweeps.sensitivity_result import NEGLIGIBLE_VARIANCE_SHARE, Sensitivity, Swing, written

MAX_ROWS = 12  # rows
ROOMY = 110  # columns from which ranges and what they rest on have columns of their own
LEAST, WIDEST = 20, 72  # columns of the bars
LOW, HIGH = "▒", "█"  # parts of a bar: told apart without colour


def sensitivity_view(sensitivity: Sensitivity, width: int, *, brief: bool = False) -> RenderableType:
    """Return the answer, what to learn first, a row and a bar for each input that matters, and what to mind."""
    name = sensitivity.answer.replace("_", " ")
    title = f"{sensitivity.question}: {name} {written(sensitivity.base, sensitivity.unit)}"
    if sensitivity.spread is not None:
        low, high = (written(end, sensitivity.unit) for end in sensitivity.spread)
        title += f" as asked; 90 % of {sensitivity.samples:,} samples from {low} to {high}"
    parts: list[RenderableType] = [Text(sensitivity.text, style="bold"), *notes(sensitivity.notes), Text(f"{title}.")]
    if brief:
        return Group(*parts)
    rows, minor_swings = split_swings(sensitivity)
    if rows:
        parts += [Text(), _table(sensitivity, rows, width), *_tornado(sensitivity, rows, width)]
    if minor_swings:
        parts.append(Text(_minor_text(minor_swings), style="bright_black"))
    return Group(*parts, *_order(sensitivity), Text(_meaning(sensitivity), style="bright_black"))


def split_swings(sensitivity: Sensitivity) -> tuple[list[Swing], list[Swing]]:
    """Return the inputs that have a row, and those that hardly matter."""
    matter = min(len(sensitivity.mattering), MAX_ROWS)
    return list(sensitivity.swings[:matter]), list(sensitivity.swings[matter:])


def _table(sensitivity: Sensitivity, rows: list[Swing], width: int) -> Grid:
    """Return a row for each input: its range, what that rests on, the answer at both ends, and its share of the variance."""
    variance_heads = ["First", "Total"] if sensitivity.samples else ["Variance"]
    wide = width >= ROOMY
    input_heads = ["As asked (range)", "Rests on"] if wide else ["As asked (range), what it rests on"]
    heads = ["Input", *input_heads, "At low", "At high", *variance_heads]
    grid = table(
        *heads, numbers=range(1 + len(input_heads), len(heads)), first_to_go=(len(heads) - 1,) if sensitivity.samples else ()
    )
    grid.no_wrap = (0,)
    for swing in rows:
        ends = [
            "missed" if swing.misses(side) else written(value, sensitivity.unit)
            for side, value in enumerate((swing.at_low, swing.at_high))
        ]
        value = ranged(swing.base, (swing.low, swing.high), partial(written, unit=swing.unit))
        basis = swing.basis.replace(" %", "\N{NO-BREAK SPACE}%")
        cells = [value, basis] if wide else [f"{value}: {basis}"]
        grid.add_row(swing.name, *cells, *ends, *_shares(sensitivity, swing))
    return grid


def _shares(sensitivity: Sensitivity, swing: Swing) -> list[str]:
    if not sensitivity.samples:
        return [_percent(swing.share) if math.isfinite(swing.swing) else "-"]
    pairs = ((swing.first, swing.first_range), (swing.total, swing.total_range))
    return ["-" if value is None or ends is None else _sure(100 * value, 50 * (ends[1] - ends[0])) for value, ends in pairs]


def _sure(value: float, half: float) -> str:
    """Write per cents with half of their range, to a tenth where that is below 2."""
    digits = 1 if half < 2 else 0
    return f"{max(value, 0.0):.{digits}f} ± {half:.{digits}f}"


def _percent(share: float) -> str:
    return f"{max(share, 0.0):.1%}" if share < 0.0995 else f"{share:.0%}"


def _tornado(sensitivity: Sensitivity, rows: list[Swing], width: int) -> list[RenderableType]:
    """Return the swings as bars about the answer as asked, the largest first."""
    ends = [end for swing in rows for end in swing.at_met if math.isfinite(end)]
    low, high = min([sensitivity.base, *ends]), max([sensitivity.base, *ends])
    if not high > low:
        return []
    names = min(max(len(swing.name) for swing in rows), max(12, width // 3))
    cells = max(LEAST, min(WIDEST, width - names - 3))

    def cell_index(value: float) -> int:
        return max(0, min(cells - 1, round((value - low) / (high - low) * (cells - 1))))

    middle = cell_index(sensitivity.base)
    lines: list[RenderableType] = [Text(), Text(f"{sensitivity.answer.replace('_', ' ')}, one input at a time", style="bold")]
    for swing in rows:
        row = Text(swing.name[:names].rjust(names) + " ")
        glyphs = [(" ", "")] * cells
        for end, glyph, colour in zip(swing.at_met, (LOW, HIGH), ("blue", "yellow"), strict=True):
            if math.isfinite(end):
                first, last = sorted((middle, cell_index(end)))
                for cell in range(first, last + 1):
                    if cell != middle:
                        glyphs[cell] = (glyph, colour)
        glyphs[middle] = ("│", "bold")
        for glyph, colour in glyphs:
            row.append(glyph, style=colour)
        if swing.missed or not math.isfinite(swing.swing):
            row.append(" !")
        lines.append(row)
    lines.append(_axis(sensitivity, names, cells, low, high, middle))
    legend = Text.assemble((LOW, "blue"), " input at its low  ", (HIGH, "yellow"), " at its high  │ as asked")
    if any(swing.missed for swing in rows):
        legend.append("  ! ends where limits are missed")
    return [*lines, legend]


def _axis(sensitivity: Sensitivity, names: int, cells: int, low: float, high: float, middle: int) -> Text:
    """Return the labels of both ends and of the answer as asked, as far as they do not touch."""
    row = [" "] * cells
    first, last, base = (written(value, sensitivity.unit) for value in (low, high, sensitivity.base))
    row[: len(first)] = first
    row[cells - len(last) :] = last
    start = max(0, middle - len(base) // 2)
    if set(row[max(0, start - 2) : start + len(base) + 2]) <= {" "} and start + len(base) <= cells:
        row[start : start + len(base)] = base
    return Text(" " * (names + 1) + "".join(row).rstrip(), style="bright_black")


def _minor_text(swings: list[Swing]) -> str:
    names = ", ".join(swing.name for swing in swings[:6]) + (f" and {len(swings) - 6} more" if len(swings) > 6 else "")
    return f"Less swing: {names}; --json and --csv have all."


def _order(sensitivity: Sensitivity) -> list[RenderableType]:
    """Return what is worth measuring, the first first, and how each becomes known."""
    ranked_swings = [swing for swing in sensitivity.ranked if swing.variance_explained >= NEGLIGIBLE_VARIANCE_SHARE]
    if len(ranked_swings) < 2:
        return []
    lines: list[RenderableType] = [Text(), Text("What is worth measuring, by the variance that goes", style="bold")]
    for place, swing in enumerate(ranked_swings, start=1):
        how = f": {swing.learn}" if swing.learn else ""
        lines.append(Text(f"  {place}. {swing.name}, {_percent(swing.variance_explained)}{how}"))
    return [*lines, Text()]


def _meaning(sensitivity: Sensitivity) -> str:
    words = []
    evens = [swing.name for swing in sensitivity.swings if swing.even]
    if len(evens) < len(sensitivity.swings):
        words.append("Ranges hold 90 % of what an input may be" + (", but for even ones, which hold all." if evens else "."))
    if sensitivity.samples:
        words.append(
            f"First: % of the variance that goes if the input is known; total: % that stays if all others are; ± 90 % by a "
            f"bootstrap of {sensitivity.samples:,} samples."
        )
    else:
        words.append("Variance: share by swings alone, as if the answer were a product; --sobol does without that.")
    return " ".join(words)
