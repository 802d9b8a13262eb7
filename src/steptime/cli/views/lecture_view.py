"""Terminal views of `steptime lecture` and `steptime roofline`: sections, verdicts on numbers, and a real model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.terminal_plots import Ticks, figure, label, render_chart, room
from steptime.cli.views.widgets import Answer, Grid, footnote, section, table
from steptime.hardware.rental_prices import usd
from steptime.lecture.lecture_content import (
    FACTOR,
    FAILS,
    HOLDS,
    UNDECIDED,
    Card,
    Lecture,
    Picture,
    Row,
    Section,
    Statement,
    Verdicts,
)
from steptime.lecture.pair_roofline import Answer as BoardAnswer
from steptime.lecture.pair_roofline import Roofline
from steptime.units import counted, show

COLOURS = {HOLDS: "green", FACTOR: "yellow", FAILS: "red", UNDECIDED: "magenta"}
WIDE = 100  # columns from which reasons and closed forms have a column
SHORT = {"tokens": "tok", "sequences": "seq", "parameters": ""}
CURVES = (("a", "green"), ("b", "red"), ("c", "cyan"), ("d", "yellow"))
# What the quantities of a roofline are called on the terminal; others keep their names.
QUANTITIES = {
    "R as stored": "R, mean of stored formats",
    "sparsity": "sparsity (total/active)",
    "B*, cache left out": "B* (best batch), no cache",
    "L*, the knee": "L*: KV reads = arithmetic",
    "floor of a step": "shortest step",
    "drain of the memory": "time to read all HBM",
    "mean wait of trains": "arrival to pass end, mean",
    "worst wait of trains": "arrival to pass end, max",
    "batch that is cheapest": "cheapest batch",
    "greatest speed": "highest speed",
    "links inside over outside": "scale-up/scale-out speed",
    "experts over two racks": "expert slowdown, 2 racks",
    "pipeline hidden from 1": "pipeline hidden if >= 1",
}


def lecture_view(lecture: Lecture, *, full: bool = False) -> RenderableType:
    """Return the sections with the number of their claims that hold.

    Args:
        lecture: the sections.
        full: whether to show the formula of each.

    Returns:
        The answer.
    """
    grid = table("", "Section", "Numbers that hold", *(["Formula"] if full else []), numbers=(0, 2))
    verdicts = [verdict for part in lecture.sections for verdict in part.verdicts]
    for part in lecture.sections:
        claims = f"{part.verdicts.count(HOLDS)} of {len(part.verdicts)}"
        grid.add_row(str(part.number), part.title, claims, *([part.formula] if full else []))
    return Answer(
        sentence=f"{verdicts.count(HOLDS)} of {len(verdicts)} numbers of the lecture hold. `steptime lecture --check` lists "
        "the others, `steptime lecture 3` shows a section, `steptime lecture --quiz` asks you questions.",
        conditions="The texts paraphrase the lecture \"The math behind how LLMs are trained and served\" by Reiner Pope, "
        "2026-04-29.", body=[grid],
        full_adds="formulas", full=full,
    )  # fmt: skip


def section_view(part: Section, *, width: int, full: bool = False) -> RenderableType:
    """Return a section.

    Args:
        part: its claims, formula and picture.
        width: columns of the terminal.
        full: whether to show the meaning of symbols, and the reason of each verdict.

    Returns:
        The answer.
    """
    inexact = [statement for statement in part.statements if statement.computed_verdict != HOLDS]
    num_holding = len(part.statements) - len(inexact)
    exceptions = "; ".join(map(_exception, inexact))
    symbols = "; ".join(f"{symbol}: {meaning}" for symbol, meaning in part.symbols.items())
    return Answer(
        sentence=f"{part.number}. {part.title}: {num_holding} of {counted(len(part.statements), 'number')} hold."
        + (f" Exceptions: {exceptions}." if inexact else ""),
        conditions=part.summary,
        body=[
            footnote(f"Formula: {part.formula}. {symbols}."), numbers_view(part.statements, full=full),
            *picture_view(part.picture, width),
        ],
        warnings=[f"limits of the lecture: {part.fails}"],
        full_adds="reason of each verdict", files="", full=full,
    )  # fmt: skip


def _exception(statement: Statement) -> str:
    """Return the stated value of a number and its computed value."""
    stated = format_claim(statement.stated, statement.relation, statement.unit)
    values = statement.computed
    return f"{statement.name} (stated {stated}, computed {between(min(values), max(values), statement.unit)})"


def _verdict(verdict: str, values: Sequence[float], stated: float) -> Text:
    """Write a verdict; where a number holds within a factor, that factor."""
    ratios = [max(value / stated, stated / value) for value in values if value * stated > 0]
    words = f"off by {max(ratios):.2g}x" if verdict == FACTOR and ratios else verdict
    return Text(words, style=COLOURS[verdict])


def numbers_view(statements: Sequence[Statement], *, full: bool = True) -> Grid:
    """Return numbers as they were said and as they are computed, with verdicts.

    Args:
        statements: the numbers.
        full: whether to show reasons.

    Returns:
        A row for each.
    """
    grid = table("Number", "Stated", "Computed", "Verdict", numbers=(1, 2))
    for statement in statements:
        values, verdict = statement.computed, statement.computed_verdict
        why = (f": {statement.reason}", "bright_black") if full else ""
        grid.add_row(
            Text.assemble(statement.name, why), format_claim(statement.stated, statement.relation, statement.unit),
            between(min(values), max(values), statement.unit), _verdict(verdict, values, statement.stated),
        )  # fmt: skip
    return grid


def format_claim(value: float, relation: str, unit: str) -> str:
    """Write a number of the lecture.

    Args:
        value: the number.
        relation: about, at least or at most.
        unit: its unit.

    Returns:
        The number with its relation and unit.

    >>> format_claim(2400, "about", ""), format_claim(1, "at least", ""), format_claim(0.02, "about", "s")
    ('2,400', '>= 1', '20.0 ms')
    """
    return {"about": "", "at least": ">= ", "at most": "<= "}[relation] + written(value, unit)


def written(value: float, unit: str) -> str:
    """Write a number with its unit, small counts in full.

    Args:
        value: the number.
        unit: its unit.

    Returns:
        Three digits and the unit; none for an infinite number.
    """
    if math.isinf(value):
        return "none"
    if unit in ("s", "B"):
        return show(value, unit)
    text = f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else show(value) if abs(value) >= 1e6 else f"{value:.3g}"
    return f"{text} {SHORT.get(unit, unit)}".rstrip()


def between(low: float, high: float, unit: str) -> str:
    """Write a number, or the range of several, with their common unit once.

    Args:
        low: the smallest.
        high: the largest.
        unit: their unit.

    Returns:
        One number or a range.

    >>> between(0.013, 0.043, "s"), between(5.0, 5.0, "")
    ('13.0 to 43.0 ms', '5')
    """
    first, last = written(low, unit), written(high, unit)
    if first == last:
        return first
    ends = [text.partition(" ")[2] for text in (first, last)]
    return f"{first.partition(' ')[0] if ends[0] == ends[1] else first} to {last}"


def picture_view(picture: Picture, width: int) -> list[RenderableType]:
    """Return the curves of a section with their letters.

    Args:
        picture: the curves.
        width: columns of the terminal.

    Returns:
        One chart with its legend.
    """
    x, curves = picture.points()
    across = x if picture.linear else np.log10(x)
    every = np.concatenate(list(curves.values()))
    steep = float(every.max()) > 20 * max(float(every.min()), 1e-300) > 0
    low, high = float(every.min()), float(every.max())
    chart = figure(room(width), 8)
    chart.set_x_limits(float(across.min()), float(across.max()))
    if steep:
        chart.set_y_limits(math.log10(low) - 0.1, math.log10(high) + 0.1)
    else:
        chart.set_y_limits(min(0.0, low) if low < high / 2 else 0.9 * low, high * 1.05)
    label(chart, picture.label, picture.result, width)
    legend = Text()
    for (letter, colour), (name, values) in zip(CURVES, curves.items(), strict=False):
        y = np.log10(values) if steep else values
        chart.plot(across, y, lc=colour)
        chart.scatter(across[5::10], y[5::10], lc=colour, marker=letter)
        legend.append(f"{letter} {name}   ", style=colour)
    x_ticks = Ticks(partial(tick, unit=picture.unit), log=not picture.linear)
    chart_text = render_chart(chart, x_ticks, Ticks(partial(tick, unit=picture.result_unit), log=steep))
    return [section(picture.title, [chart_text, legend])]


def tick(value: float, unit: str) -> str:
    """Write a number at an axis.

    Args:
        value: the number.
        unit: its unit.

    Returns:
        Two digits with the unit.
    """
    return show(value, unit, 2) if unit else f"{value:,g}" if abs(value) < 1e6 else show(value, "", 2)


def check_view(verdicts: Verdicts, *, width: int, full: bool = False) -> RenderableType:
    """Return the verdicts on all numbers.

    Args:
        verdicts: a row for each number.
        width: columns of the terminal.
        full: whether to show numbers that hold as well.

    Returns:
        The answer.
    """
    _, counts = verdicts.headline()
    summary = ", ".join(f"{count} {name}" for name, count in counts.items()).replace("holds", "hold").replace("fails", "fail")
    wide = full and width >= WIDE
    rows = [row for row in verdicts.rows if full or row.changed or row.verdict != HOLDS]
    # changed verdicts are the reason for the exit code, so they stand first
    rows.sort(key=lambda row: not row.changed)
    kinds = dict.fromkeys(row.place.partition(" ")[0] for row in rows)
    grids = {kind: table(kind.capitalize(), "Number", "Stated", "Computed", "Verdict", *(["Why"] if wide else []),
                         numbers=(0, 2, 3)) for kind in kinds}  # fmt: skip
    for row in rows:
        kind, _, number = row.place.partition(" ")
        grids[kind].add_row(number, row.name, *_row(row), *([row.reason] if wide else []))
    checks = sum(row.check > 0 for row in verdicts.rows)
    return Answer(
        sentence=f"{counted(len(verdicts.rows), 'number')} of the lecture: {summary}. "
        f"{counted(len(verdicts.changed), 'verdict')} changed since the stored ones.",
        conditions=f"{checks} of them are acceptance checks." + ("" if full else " Numbers that do not hold:"),
        body=list(grids.values()), full_adds="all numbers", full=full,
    )  # fmt: skip


def _row(row: Row) -> tuple[str | Text, ...]:
    verdict = _verdict(row.verdict, (row.low, row.high), row.stated)
    if row.changed:
        verdict.append(f" (stored: {row.stored})", style="bold red")
    return written(row.stated, row.unit), between(row.low, row.high, row.unit), verdict


def card_view(card: Card) -> RenderableType:
    """Return the answer of a card.

    Args:
        card: a question with its answer.

    Returns:
        The answer, its number, and what to mind.
    """
    watch = Text.assemble(("Mind: ", "bold yellow"), card.watch, f" (section {card.section})")
    return Group(Text(card.answer, style="green"), numbers_view([card.statement]), watch)


def roofline_view(roofline: Roofline, *, width: int, full: bool = False) -> RenderableType:
    """Return the questions of the blackboard for a model on a system.

    Args:
        roofline: answers of the lecture, of closed forms and of the full model.
        width: columns of the terminal.
        full: whether to show the closed forms themselves, and all warnings.

    Returns:
        The answer.
    """
    wide = full and width >= WIDE
    heads = ("Section", "Quantity", "Lecture", "Closed form", "Full model", *(["Formula"] if wide else []))
    grid = table(*heads, numbers=(0, 2, 3, 4))
    number = 0
    for answer in sorted(roofline.answers, key=lambda answer: answer.section):
        formula = [answer.formula] if wide else []
        name = QUANTITIES.get(answer.name, answer.name)
        grid.add_row(str(answer.section) if answer.section != number else "", name, *_columns(answer), *formula)
        number = answer.section
    # the board has several costs; the lowest of the full model is the headline
    costs = [answer for answer in roofline.answers if answer.unit == "USD/Mtok" and math.isfinite(answer.full)]
    subject = f"{roofline.model.rpartition('/')[2]} on {counted(roofline.chips, 'chip')} of {roofline.system}"
    sentence = f"{subject} at {roofline.context:,} tokens of context."
    if costs:
        best = min(costs, key=lambda answer: answer.full)
        sentence = f"Decode of {subject} costs {usd(best.full)} per million output tokens at the cheapest batch. "
        sentence += f"The lecture's closed form gives {usd(best.closed)}."
    active = "" if roofline.active > 0.995 * roofline.total else f", {show(roofline.active)} active"
    conditions = f"Context {roofline.context:,} tokens, no prefill; {show(roofline.total)} parameters{active}; engine "
    conditions += f"{roofline.engine}."
    legend = "Section: of the lecture. Price and speed: relative to the cheapest batch. The full model "
    legend += "doubles batches, so two speeds can have one price. The lecture infers L* from a price."
    if any(math.isinf(answer.closed) for answer in roofline.answers):
        legend += " none: no batch."
    return Answer(
        sentence=sentence, conditions=conditions, body=[grid, footnote(legend)], warnings=roofline.notes,
        full_adds="formulas" if width >= WIDE else "formulas if 100 columns wide", full=full,
    )  # fmt: skip


def _columns(answer: BoardAnswer) -> tuple[str, str, str]:
    spoken, closed, full = (_value(value, answer.unit) for value in (answer.spoken, answer.closed, answer.full))
    return spoken, closed, full


def _value(value: float, unit: str) -> str:
    """Write an answer; nothing where it is missing.

    >>> _value(0.0842, "USD/Mtok"), _value(1.5, "x"), _value(math.inf, "x"), _value(math.nan, "s")
    ('$0.0842/Mtok', '1.50x', 'none', '')
    """
    if math.isnan(value) or math.isinf(value):
        return "" if math.isnan(value) else "none"
    if unit == "USD/Mtok":
        return f"${value:,.3g}/Mtok"
    if unit == "x":
        return f"{value:#.3g}x" if value < 100 else f"{value:,.0f}x"
    return written(value, unit)
