"""Terminal view of `steptime sensitivity`: the input to measure first, ranges and swings of inputs, and a tornado chart."""

from __future__ import annotations

import math
from functools import partial

from rich.console import RenderableType
from rich.text import Text

from steptime.cli.views.widgets import Answer, Grid, footnote, ranged, section, table
from steptime.sweeps.sensitivity_result import NEGLIGIBLE_VARIANCE_SHARE, Sensitivity, Swing, written

MAX_ROWS = 12
MIN_CELLS, MAX_CELLS = 20, 72  # columns of the bars
LOW, HIGH = "▒", "█"  # parts of a bar: distinct without colour
COUNTED_UNITS = ("tokens", "sequences", "requests")
FACTORS = {"scatter": "step time / predicted step time", "chip.peak": "FLOP/s / data sheet"}  # inputs that are ratios


def sensitivity_view(sensitivity: Sensitivity, *, width: int, full: bool = False) -> RenderableType:
    """Return how far uncertain inputs swing an answer.

    Args:
        sensitivity: the answer and the swing of each input, the largest first.
        width: columns of the terminal.
        full: whether to show the source of each range, and how to measure each input.

    Returns:
        The answer.
    """
    name = sensitivity.answer.replace("_", " ").replace("usd", "USD")
    base = f"{name[0].upper()}{name[1:]}, {_subject(sensitivity)}: {written(sensitivity.base, sensitivity.unit)}"
    if sensitivity.spread is not None:
        base += " (90 %: " + " to ".join(written(end, sensitivity.unit) for end in sensitivity.spread) + ")"
    rows, minor_swings = split_swings(sensitivity)
    body = [_table(sensitivity, rows, full=full), *_tornado(sensitivity, rows, width)] if rows else []
    return Answer(
        sentence=f"{base}. {sensitivity.text}", body=[*body, footnote(_meaning(sensitivity))],
        details=[*([footnote(_minor_text(minor_swings))] if minor_swings else []), *_order(sensitivity)],
        warnings=sensitivity.notes, full_adds="source of each range, how to measure each input", full=full,
    )  # fmt: skip


def _subject(sensitivity: Sensitivity) -> str:
    """Return the question with its model and system, as far as they are fixed."""
    fixed = {key: getattr(value, "name", value) for key, value in sensitivity.fixed.items() if key in ("model", "system")}
    return " ".join([sensitivity.question, *(str(fixed[key]) for key in ("model", "system") if key in fixed)])


def _value(value: float, swing: Swing) -> str:
    """Write a value of an input with its unit; a factor on a prediction or a data sheet has an x."""
    text = written(value, swing.unit)
    if swing.unit in COUNTED_UNITS:
        return f"{text} {swing.unit}"
    return f"{text}x" if not swing.unit and swing.name in FACTORS else text


def split_swings(sensitivity: Sensitivity) -> tuple[list[Swing], list[Swing]]:
    """Return the inputs that have a row, and the others.

    Args:
        sensitivity: the swings, the largest first.

    Returns:
        Swings that matter, at most MAX_ROWS, and the remaining ones.
    """
    matter = min(len(sensitivity.mattering), MAX_ROWS)
    return list(sensitivity.swings[:matter]), list(sensitivity.swings[matter:])


def _table(sensitivity: Sensitivity, rows: list[Swing], *, full: bool) -> Grid:
    """Return a row for each input: its range, the answer at both ends, and its share of the variance."""
    variance_heads = ["First", "Total"] if sensitivity.samples else ["Variance"]
    heads = [
        "Input",
        "Value (90 % range)",
        *(["Source of the range"] if full else []),
        "Low end",
        "High end",
        *variance_heads,
    ]
    going = (len(heads) - 1,) if sensitivity.samples else ()
    grid = table(*heads, numbers=range(3 if full else 2, len(heads)), first_to_go=going)
    grid.no_wrap = (0,)
    for swing in rows:
        ends = [
            "missed" if swing.misses(side) else written(value, sensitivity.unit)
            for side, value in enumerate((swing.at_low, swing.at_high))
        ]
        value = ranged(swing.base, (swing.low, swing.high), partial(_value, swing=swing), label="")
        basis = [swing.basis.replace(" %", "\N{NO-BREAK SPACE}%")] if full else []
        grid.add_row(swing.name, value, *basis, *ends, *_shares(sensitivity, swing))
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
    """Return the swings as bars about the present answer, the largest first."""
    # inputs whose limits are missed swing to the last value that meets them
    ends = [end for swing in rows for end in swing.at_met if math.isfinite(end)]
    low, high = min([sensitivity.base, *ends]), max([sensitivity.base, *ends])
    if not high > low:
        return []
    names = min(max(len(swing.name) for swing in rows), max(12, width // 3))
    cells = max(MIN_CELLS, min(MAX_CELLS, width - names - 3))

    def cell_index(value: float) -> int:
        return max(0, min(cells - 1, round((value - low) / (high - low) * (cells - 1))))

    middle = cell_index(sensitivity.base)
    lines: list[RenderableType] = []
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
    legend = Text.assemble((LOW, "blue"), " input at its low end  ", (HIGH, "yellow"), " at its high end  │ current answer")
    if any(swing.missed for swing in rows):
        legend.append("  ! bar ends where limits are missed")
    return [section("Change of the answer, one input at a time", [*lines, legend])]


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
    return f"Smaller swings: {names}; --json and --csv have all."


def _order(sensitivity: Sensitivity) -> list[RenderableType]:
    """Return the inputs worth measuring, in order, and how each becomes known."""
    ranked = [swing for swing in sensitivity.ranked if swing.variance_explained >= NEGLIGIBLE_VARIANCE_SHARE]
    if len(ranked) < 2:
        return []
    lines = [
        f"{place}. {swing.name}, {_percent(swing.variance_explained)}{f': {swing.learn}' if swing.learn else ''}"
        for place, swing in enumerate(ranked, start=1)
    ]
    return [section("Inputs to measure, by their share of the variance", lines)]


def _meaning(sensitivity: Sensitivity) -> str:
    """Say what ranges and shares mean."""
    evens = [swing.name for swing in sensitivity.swings if swing.even]
    row_names = {swing.name for swing in split_swings(sensitivity)[0]}
    words = "".join(f" {name}: {ratio}." for name, ratio in FACTORS.items() if name in row_names)
    if evens and len(evens) < len(sensitivity.swings):
        verb = "spans" if len(evens) == 1 else "span"
        words += f" {', '.join(evens)}: the range {verb} all known values, and is no 90 % range."
    if sensitivity.samples:
        first = "First: % of the variance that knowing the input removes. Total: % that stays if all others are known."
        return f"{first} ±: 90 % range by a bootstrap of {sensitivity.samples:,} samples.{words}"
    replans = "Each row plans again at the low and the high end of its input. " if sensitivity.question == "plan" else ""
    return f"{replans}Variance: share with one input varied at a time; --sobol varies all together.{words}"
