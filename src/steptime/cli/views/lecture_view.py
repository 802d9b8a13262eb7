"""What the terminal shows of the lecture: its list, a section with its picture, verdicts, and the board of a real pair."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.terminal_plots import figure, label, render_chart, room
from steptime.cli.views.widgets import Grid, facts, heading, notes, table
from steptime.lecture.claim_verdicts import FACTOR, FAILS, HOLDS, UNDECIDED
from steptime.lecture.lecture_check import Lecture, Row, Verdicts
from steptime.lecture.lecture_content import Card, Picture, Section, Statement
from steptime.lecture.pair_roofline import Answer, Roofline
from steptime.units import in_digits, show

COLOURS = {HOLDS: "green", FACTOR: "yellow", FAILS: "red", UNDECIDED: "magenta"}
WIDE = 100  # columns from which reasons and closed forms have a column of their own
SHORT = {"tokens": "tok", "sequences": "seq", "parameters": ""}
CURVES = (("a", "green"), ("b", "red"), ("c", "cyan"), ("d", "yellow"))


def lecture_view(lecture: Lecture) -> RenderableType:
    """Return the sections with how many of their numbers hold."""
    grid = table("", "Section", "Formula", "Holds", numbers=(0, 3), first_to_go=(2,))
    for section in lecture.sections:
        hold_count = sum(verdict == HOLDS for verdict in section.verdicts)
        grid.add_row(str(section.number), section.title, section.formula, f"{hold_count} of {len(section.verdicts)}")
    return Group(
        Text("The math behind how LLMs are trained and served, Reiner Pope, 2026-04-29; in words of our own"),
        grid,
        Text("`steptime lecture 3` plays a section; --check computes all verdicts again; --quiz asks.", style="bright_black"),
    )


def section_view(section: Section, width: int) -> RenderableType:
    """Return a section: what was said, its formula, picture and numbers, and where it fails."""
    return Group(
        heading(f"{section.number}. {section.title}"), Text(section.summary), Text(),
        Text(section.formula, style="bold cyan"), facts(section.symbols.items()),
        *picture_view(section.picture, width),
        numbers_view(section.statements, width),
        Text.assemble(("Where it fails: ", "bold yellow"), section.fails),
    )  # fmt: skip


def numbers_view(statements: Sequence[Statement], width: int) -> Grid:
    """Return numbers as they were said and as they are computed, with verdicts and reasons, below one another if narrow."""
    wide = width >= WIDE
    grid = table("Number", "Said", "Computed", "Verdict", *(["Why"] if wide else []), numbers=(1, 2))
    for statement in statements:
        values, why = statement.computed, [statement.reason] if wide else []
        name = Text(statement.name) if wide else Text.assemble(statement.name, (f": {statement.reason}", "bright_black"))
        computed = between(min(values), max(values), statement.unit)
        grid.add_row(
            name,
            format_claim(statement.stated, statement.relation, statement.unit),
            computed,
            Text(statement.computed_verdict, style=COLOURS[statement.computed_verdict]),
            *why,
        )
    return grid


def format_claim(value: float, relation: str, unit: str) -> str:
    """Write a number that was said.

    >>> format_claim(2400, "about", ""), format_claim(1, "at least", ""), format_claim(0.02, "about", "s")
    ('2,400', '>= 1', '20.0 ms')
    """
    return {"about": "", "at least": ">= ", "at most": "<= "}[relation] + written(value, unit)


def written(value: float, unit: str) -> str:
    """Write a number with its unit, small counts in full."""
    if math.isinf(value):
        return "none"
    if unit in ("s", "B"):
        return show(value, unit)
    text = f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else show(value) if abs(value) >= 1e6 else f"{value:.3g}"
    return f"{text} {SHORT.get(unit, unit)}".rstrip()


def between(low: float, high: float, unit: str) -> str:
    """Write a number, or the range of several, the unit once where it is one.

    >>> between(0.013, 0.043, "s"), between(5.0, 5.0, "")
    ('13.0 to 43.0 ms', '5')
    """
    first, last = written(low, unit), written(high, unit)
    if first == last:
        return first
    ends = [text.partition(" ")[2] for text in (first, last)]
    return f"{first.partition(' ')[0] if ends[0] == ends[1] else first} to {last}"


def picture_view(picture: Picture, width: int) -> list[RenderableType]:
    """Return the curves of a section with their letters."""
    x, curves = picture.points()
    across = x if picture.linear else np.log10(x)
    every = np.concatenate(list(curves.values()))
    steep = float(every.max()) > 20 * max(float(every.min()), 1e-300) > 0
    low, high = float(every.min()), float(every.max())
    chart = figure(room(width), 11)
    chart.set_x_limits(float(across.min()), float(across.max()))
    if steep:
        chart.set_y_limits(math.log10(low) - 0.1, math.log10(high) + 0.1)
    else:
        chart.set_y_limits(min(0.0, low) if low < high / 2 else 0.9 * low, high * 1.05)
    chart.x_ticks_fkt = lambda value, _: tick(value if picture.linear else 10**value, picture.unit)
    chart.y_ticks_fkt = lambda value, _: tick(10**value if steep else value, picture.result_unit)
    label(chart, picture.label, picture.result, width)
    legend = Text()
    for (letter, colour), (name, values) in zip(CURVES, curves.items(), strict=False):
        y = np.log10(values) if steep else values
        chart.plot(across, y, lc=colour)
        chart.scatter(across[5::10], y[5::10], lc=colour, marker=letter)
        legend.append(f"{letter} {name}   ", style=colour)
    return [Text(picture.title, style="bold"), render_chart(chart), legend]


def tick(value: float, unit: str) -> str:
    """Write a number at an axis."""
    return show(value, unit, 2) if unit else in_digits(value) if abs(value) < 1e6 else show(value, "", 2)


def check_view(verdicts: Verdicts, width: int) -> RenderableType:
    """Return every number with its verdict."""
    title, counts = verdicts.headline()
    wide = width >= WIDE
    parts: list[RenderableType] = []
    for kind in dict.fromkeys(row.place.partition(" ")[0] for row in verdicts.rows):
        heads = (kind.capitalize(), "Number", "Said", "Computed", "Verdict", *(["Why"] if wide else []))
        grid = table(*heads, numbers=(0, 2, 3))
        for row in verdicts.rows:
            if row.place.startswith(kind):
                grid.add_row(row.place.partition(" ")[2], row.name, *_row(row), *([row.reason] if wide else []))
        parts.append(grid)
    checks = sum(row.check > 0 for row in verdicts.rows)
    return Group(Text(title), facts([*counts.items(), ("acceptance checks among them", str(checks))]), *parts)


def _row(row: Row) -> tuple[str | Text, ...]:
    verdict = Text(row.verdict, style=COLOURS[row.verdict])
    if row.changed:
        verdict.append(f" (stored: {row.stored})", style="bold red")
    return written(row.stated, row.unit), between(row.low, row.high, row.unit), verdict


def card_view(card: Card, width: int) -> RenderableType:
    """Return the answer of a card."""
    return Group(
        Text(card.answer, style="green"),
        numbers_view([card.statement], width),
        Text.assemble(("Mind: ", "bold yellow"), card.watch, f" (section {card.section})"),
    )


def roofline_view(roofline: Roofline, width: int) -> RenderableType:
    """Return the board's questions for a pair: spoken, closed form and full model side by side."""
    wide = width >= WIDE
    heads = ("", "Question", *(["Closed form"] if wide else []), "Spoken", "Closed form here" if wide else "Here", "Full model")
    grid = table(*heads, numbers=(0, *range(len(heads) - 3, len(heads))), first_to_go=(0,))
    section = 0
    for answer in roofline.answers:
        formula = [answer.formula] if wide else []
        grid.add_row(str(answer.section) if answer.section != section else "", answer.name, *formula, *_columns(answer))
        section = answer.section
    return Group(
        Text(
            f"The board for {roofline.model} ({show(roofline.total)} parameters, {show(roofline.active)} active) on "
            f"{roofline.chips} chips of {roofline.system} at {roofline.context:,} tokens; full model: engine {roofline.engine}"
        ),
        grid,
        *notes(roofline.notes),
    )


def _columns(answer: Answer) -> tuple[str, str, str]:
    spoken, closed, full = (_value(value, answer.unit) for value in (answer.spoken, answer.closed, answer.full))
    return spoken, closed, full


def _value(value: float, unit: str) -> str:
    """Write an answer; nothing where there is none.

    >>> _value(0.0842, "USD/Mtok"), _value(1.5, "x"), _value(math.inf, "x"), _value(math.nan, "s")
    ('$0.0842/Mtok', '1.50x', 'none', '')
    """
    if math.isnan(value) or math.isinf(value):
        return "" if math.isnan(value) else "none"
    if unit == "USD/Mtok":
        return f"${value:,.3g}/Mtok"
    if unit == "x":
        return f"{value:,.2f}x" if value < 100 else f"{value:,.0f}x"
    return written(value, unit)
