"""What the terminal shows of a sensitivity: what to learn first, the inputs with their ranges, and their swings as bars."""

from __future__ import annotations

import math
from functools import partial

from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.widgets import Grid, notes, ranged, table
from steptime.sweeps.sensitivity_result import WORTH, Sensitivity, Swing, written

MOST = 12  # rows
ROOMY = 110  # columns from which ranges and what they rest on have columns of their own
LEAST, WIDEST = 20, 72  # columns of the bars
LOW, HIGH = "▒", "█"  # parts of a bar: told apart without colour


def sensitivity_view(found: Sensitivity, width: int, *, brief: bool = False) -> RenderableType:
    """Return the answer, what to learn first, a row and a bar for each input that matters, and what to mind."""
    name = found.answer.replace("_", " ")
    title = f"{found.question}: {name} {written(found.base, found.unit)}"
    if found.spread is not None:
        low, high = (written(end, found.unit) for end in found.spread)
        title += f" as asked; 90 % of {found.samples:,} samples from {low} to {high}"
    parts: list[RenderableType] = [Text(found.text, style="bold"), *notes(found.notes), Text(f"{title}.")]
    if brief:
        return Group(*parts)
    rows, rest = shown(found)
    if rows:
        parts += [Text(), _table(found, rows, width), *_tornado(found, rows, width)]
    if rest:
        parts.append(Text(_rest(rest), style="bright_black"))
    return Group(*parts, *_order(found), Text(_meaning(found), style="bright_black"))


def shown(found: Sensitivity) -> tuple[list[Swing], list[Swing]]:
    """Return the inputs that have a row, and those that hardly matter."""
    matter = min(len(found.mattering), MOST)
    return list(found.swings[:matter]), list(found.swings[matter:])


def _table(found: Sensitivity, rows: list[Swing], width: int) -> Grid:
    """Return a row for each input: its range, what that rests on, the answer at both ends, and its share of the variance."""
    worth = ["First", "Total"] if found.samples else ["Variance"]
    wide = width >= ROOMY
    told = ["As asked (range)", "Rests on"] if wide else ["As asked (range), what it rests on"]
    heads = ["Input", *told, "At low", "At high", *worth]
    made = table(*heads, numbers=range(1 + len(told), len(heads)), first_to_go=(len(heads) - 1,) if found.samples else ())
    made.whole = (0,)
    for one in rows:
        ends = [
            "missed" if one.misses(side) else written(value, found.unit) for side, value in enumerate((one.at_low, one.at_high))
        ]
        value = ranged(one.base, (one.low, one.high), partial(written, unit=one.unit))
        basis = one.basis.replace(" %", "\N{NO-BREAK SPACE}%")
        cells = [value, basis] if wide else [f"{value}: {basis}"]
        made.add_row(one.name, *cells, *ends, *_shares(found, one))
    return made


def _shares(found: Sensitivity, one: Swing) -> list[str]:
    if not found.samples:
        return [_percent(one.share) if math.isfinite(one.swing) else "-"]
    pairs = ((one.first, one.first_range), (one.total, one.total_range))
    return ["-" if value is None or ends is None else _sure(100 * value, 50 * (ends[1] - ends[0])) for value, ends in pairs]


def _sure(value: float, half: float) -> str:
    """Write per cents with half of their range, to a tenth where that is below 2."""
    digits = 1 if half < 2 else 0
    return f"{max(value, 0.0):.{digits}f} ± {half:.{digits}f}"


def _percent(share: float) -> str:
    return f"{max(share, 0.0):.1%}" if share < 0.0995 else f"{share:.0%}"


def _tornado(found: Sensitivity, rows: list[Swing], width: int) -> list[RenderableType]:
    """Return the swings as bars about the answer as asked, the largest first."""
    ends = [end for one in rows for end in one.at_met if math.isfinite(end)]
    low, high = min([found.base, *ends]), max([found.base, *ends])
    if not high > low:
        return []
    names = min(max(len(one.name) for one in rows), max(12, width // 3))
    cells = max(LEAST, min(WIDEST, width - names - 3))

    def at(value: float) -> int:
        return max(0, min(cells - 1, round((value - low) / (high - low) * (cells - 1))))

    middle = at(found.base)
    lines: list[RenderableType] = [Text(), Text(f"{found.answer.replace('_', ' ')}, one input at a time", style="bold")]
    for one in rows:
        row = Text(one.name[:names].rjust(names) + " ")
        glyphs = [(" ", "")] * cells
        for end, glyph, colour in zip(one.at_met, (LOW, HIGH), ("blue", "yellow"), strict=True):
            if math.isfinite(end):
                first, last = sorted((middle, at(end)))
                for cell in range(first, last + 1):
                    if cell != middle:
                        glyphs[cell] = (glyph, colour)
        glyphs[middle] = ("│", "bold")
        for glyph, colour in glyphs:
            row.append(glyph, style=colour)
        if one.missed or not math.isfinite(one.swing):
            row.append(" !")
        lines.append(row)
    lines.append(_axis(found, names, cells, low, high, middle))
    legend = Text.assemble((LOW, "blue"), " input at its low  ", (HIGH, "yellow"), " at its high  │ as asked")
    if any(one.missed for one in rows):
        legend.append("  ! ends where limits are missed")
    return [*lines, legend]


def _axis(found: Sensitivity, names: int, cells: int, low: float, high: float, middle: int) -> Text:
    """Return the labels of both ends and of the answer as asked, as far as they do not touch."""
    row = [" "] * cells
    first, last, base = (written(value, found.unit) for value in (low, high, found.base))
    row[: len(first)] = first
    row[cells - len(last) :] = last
    start = max(0, middle - len(base) // 2)
    if set(row[max(0, start - 2) : start + len(base) + 2]) <= {" "} and start + len(base) <= cells:
        row[start : start + len(base)] = base
    return Text(" " * (names + 1) + "".join(row).rstrip(), style="bright_black")


def _rest(rest: list[Swing]) -> str:
    few = ", ".join(one.name for one in rest[:6]) + (f" and {len(rest) - 6} more" if len(rest) > 6 else "")
    return f"Less swing: {few}; --json and --csv have all."


def _order(found: Sensitivity) -> list[RenderableType]:
    """Return what is worth measuring, the first first, and how each becomes known."""
    worth = [one for one in found.ranked if one.worth >= WORTH]
    if len(worth) < 2:
        return []
    lines: list[RenderableType] = [Text(), Text("What is worth measuring, by the variance that goes", style="bold")]
    for place, one in enumerate(worth, start=1):
        how = f": {one.learn}" if one.learn else ""
        lines.append(Text(f"  {place}. {one.name}, {_percent(one.worth)}{how}"))
    return [*lines, Text()]


def _meaning(found: Sensitivity) -> str:
    words = []
    evens = [one.name for one in found.swings if one.even]
    if len(evens) < len(found.swings):
        words.append("Ranges hold 90 % of what an input may be" + (", but for even ones, which hold all." if evens else "."))
    if found.samples:
        words.append(
            f"First: % of the variance that goes if the input is known; total: % that stays if all others are; ± 90 % by a "
            f"bootstrap of {found.samples:,} samples."
        )
    else:
        words.append("Variance: share by swings alone, as if the answer were a product; --sobol does without that.")
    return " ".join(words)
