"""What the terminal shows of the lecture: its list, a section with its picture, verdicts, and the board of a real pair."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.terminal_plots import drawn, figure, label, room
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


def lecture_view(found: Lecture) -> RenderableType:
    """Return the sections with how many of their numbers hold."""
    made = table("", "Section", "Formula", "Holds", numbers=(0, 3), first_to_go=(2,))
    for one in found.sections:
        held = sum(verdict == HOLDS for verdict in one.verdicts)
        made.add_row(str(one.number), one.title, one.formula, f"{held} of {len(one.verdicts)}")
    return Group(
        Text("The math behind how LLMs are trained and served, Reiner Pope, 2026-04-29; in words of our own"),
        made,
        Text("`steptime lecture 3` plays a section; --check computes all verdicts again; --quiz asks.", style="bright_black"),
    )


def section_view(one: Section, width: int) -> RenderableType:
    """Return a section: what was said, its formula, picture and numbers, and where it fails."""
    return Group(
        heading(f"{one.number}. {one.title}"), Text(one.said), Text(),
        Text(one.formula, style="bold cyan"), facts(one.symbols.items()),
        *picture_view(one.picture, width),
        numbers_view(one.statements, width),
        Text.assemble(("Where it fails: ", "bold yellow"), one.fails),
    )  # fmt: skip


def numbers_view(statements: Sequence[Statement], width: int) -> Grid:
    """Return numbers as they were said and as they are computed, with verdicts and reasons, below one another if narrow."""
    wide = width >= WIDE
    made = table("Number", "Said", "Computed", "Verdict", *(["Why"] if wide else []), numbers=(1, 2))
    for one in statements:
        values, why = one.computed, [one.reason] if wide else []
        name = Text(one.name) if wide else Text.assemble(one.name, (f": {one.reason}", "bright_black"))
        computed = between(min(values), max(values), one.unit)
        made.add_row(name, said(one.said, one.relation, one.unit), computed, Text(one.found, style=COLOURS[one.found]), *why)
    return made


def said(value: float, relation: str, unit: str) -> str:
    """Write a number that was said.

    >>> said(2400, "about", ""), said(1, "at least", ""), said(0.02, "about", "s")
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
    made = figure(room(width), 11)
    made.set_x_limits(float(across.min()), float(across.max()))
    if steep:
        made.set_y_limits(math.log10(low) - 0.1, math.log10(high) + 0.1)
    else:
        made.set_y_limits(min(0.0, low) if low < high / 2 else 0.9 * low, high * 1.05)
    made.x_ticks_fkt = lambda value, _: tick(value if picture.linear else 10**value, picture.unit)
    made.y_ticks_fkt = lambda value, _: tick(10**value if steep else value, picture.result_unit)
    label(made, picture.label, picture.result, width)
    legend = Text()
    for (letter, colour), (name, values) in zip(CURVES, curves.items(), strict=False):
        y = np.log10(values) if steep else values
        made.plot(across, y, lc=colour)
        made.scatter(across[5::10], y[5::10], lc=colour, marker=letter)
        legend.append(f"{letter} {name}   ", style=colour)
    return [Text(picture.title, style="bold"), drawn(made), legend]


def tick(value: float, unit: str) -> str:
    """Write a number at an axis."""
    return show(value, unit, 2) if unit else in_digits(value) if abs(value) < 1e6 else show(value, "", 2)


def check_view(found: Verdicts, width: int) -> RenderableType:
    """Return every number with its verdict."""
    title, counts = found.headline()
    wide = width >= WIDE
    parts: list[RenderableType] = []
    for kind in dict.fromkeys(row.place.partition(" ")[0] for row in found.rows):
        heads = (kind.capitalize(), "Number", "Said", "Computed", "Verdict", *(["Why"] if wide else []))
        made = table(*heads, numbers=(0, 2, 3))
        for row in found.rows:
            if row.place.startswith(kind):
                made.add_row(row.place.partition(" ")[2], row.name, *_row(row), *([row.reason] if wide else []))
        parts.append(made)
    checks = sum(row.check > 0 for row in found.rows)
    return Group(Text(title), facts([*counts.items(), ("acceptance checks among them", str(checks))]), *parts)


def _row(row: Row) -> tuple[str | Text, ...]:
    verdict = Text(row.verdict, style=COLOURS[row.verdict])
    if row.changed:
        verdict.append(f" (stored: {row.stored})", style="bold red")
    return written(row.said, row.unit), between(row.low, row.high, row.unit), verdict


def card_view(card: Card, width: int) -> RenderableType:
    """Return the answer of a card."""
    return Group(
        Text(card.answer, style="green"),
        numbers_view([card.statement], width),
        Text.assemble(("Mind: ", "bold yellow"), card.watch, f" (section {card.section})"),
    )


def roofline_view(found: Roofline, width: int) -> RenderableType:
    """Return the board's questions for a pair: spoken, closed form and full model side by side."""
    wide = width >= WIDE
    heads = ("", "Question", *(["Closed form"] if wide else []), "Spoken", "Closed form here" if wide else "Here", "Full model")
    made = table(*heads, numbers=(0, *range(len(heads) - 3, len(heads))), first_to_go=(0,))
    section = 0
    for one in found.answers:
        formula = [one.formula] if wide else []
        made.add_row(str(one.section) if one.section != section else "", one.name, *formula, *_columns(one))
        section = one.section
    return Group(
        Text(
            f"The board for {found.model} ({show(found.total)} parameters, {show(found.active)} active) on {found.chips} "
            f"chips of {found.system} at {found.context:,} tokens; full model: engine {found.engine}"
        ),
        made,
        *notes(found.notes),
    )


def _columns(one: Answer) -> tuple[str, str, str]:
    spoken, closed, full = (_value(value, one.unit) for value in (one.spoken, one.closed, one.full))
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
