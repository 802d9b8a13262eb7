"""Text of `steptime lecture` and `steptime roofline`: sections, verdicts on numbers, and a real model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.terminal_plots import Axis, Curve, draw
from steptime.cli.views.widgets import Answer, Grid, footnote, listing, section
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
    between,
    format_claim,
    written,
)
from steptime.lecture.pair_roofline import Roofline
from steptime.units import counted, show

COLOURS = {HOLDS: "green", FACTOR: "yellow", FAILS: "red", UNDECIDED: "magenta"}
# Columns from which reasons and closed forms have a column.
WIDE = 100
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


def lecture_view(lecture: Lecture, *, full: bool) -> Answer:
    """Return the sections with the number of their claims that hold.

    Args:
        lecture: The sections.
        full: Whether to show the formula of each.

    Returns:
        The answer.
    """
    grid = listing(
        ": {number} | Section: {title} | Numbers that hold: {claims}" + (" | Formula: {formula}" if full else ""),
        lecture.sections, numbers=(0, 2), claims=lambda part: f"{part.verdicts.count(HOLDS)} of {len(part.verdicts)}",
    )  # fmt: skip
    verdicts = [verdict for part in lecture.sections for verdict in part.verdicts]
    counts = Counter(verdicts)
    return Answer(
        sentence=f"{counted(len(verdicts), 'number')} in {counted(len(lecture.sections), 'section')}: {_counts(counts)}. "
        "`steptime lecture 3` shows a section, `steptime lecture --quiz` asks you questions. `steptime lecture --check` "
        "computes all numbers again, with those of the predictions and of the quiz.",
        conditions="The texts paraphrase the lecture \"The math behind how LLMs are trained and served\" by Reiner Pope, "
        "2026-04-29.", body=[grid],
        full_adds="formulas",
    )  # fmt: skip


def section_view(part: Section, *, width: int, full: bool) -> Answer:
    """Return a section.

    Args:
        part: Its claims, formula and picture.
        width: Columns of the terminal.
        full: Whether to show the meaning of symbols, and the reason of each verdict.

    Returns:
        The answer.
    """
    inexact = [statement for statement in part.statements if statement.computed_verdict != HOLDS]
    exceptions = "; ".join(f"{s.name} (stated {_stated(s)}, computed {_computed(s)})" for s in inexact)
    symbols = "; ".join(f"{symbol}: {meaning}" for symbol, meaning in part.symbols.items())
    count = f"{len(part.statements) - len(inexact)} of {counted(len(part.statements), 'number')} hold."
    return Answer(
        sentence=f"{part.number}. {part.title}: {count}" + (f" Exceptions: {exceptions}." if inexact else ""),
        conditions=part.summary,
        body=[
            footnote(f"Formula: {part.formula}. {symbols}."),
            numbers_table(part.statements, full=full),
            _chart(part.picture, width),
        ],
        warnings=[f"limits of the lecture: {part.fails}"],
        full_adds="reason of each verdict",
        files="",
    )


def _stated(statement: Statement) -> str:
    return format_claim(statement.stated, statement.relation, statement.unit)


def _computed(statement: Statement) -> str:
    return between(min(statement.computed), max(statement.computed), statement.unit)


def _counts(counts: Mapping[str, int]) -> str:
    """Write the number of each verdict, in their order."""
    plurals = {HOLDS: "hold", FACTOR: "hold within a factor", FAILS: "fail", UNDECIDED: "are undecided"}
    singulars = {FAILS: FAILS, HOLDS: HOLDS, FACTOR: FACTOR, UNDECIDED: "is undecided"}
    return ", ".join(
        f"{counts[name]} {singulars[name] if counts[name] == 1 else words}"
        for name, words in plurals.items()
        if counts.get(name)
    )


def _verdict(verdict: str, values: Sequence[float], stated: float) -> Text:
    """Write a verdict; where a number holds within a factor, that factor."""
    ratios = [max(value / stated, stated / value) for value in values if value * stated > 0]
    words = f"holds within {max(ratios):.2g}x" if verdict == FACTOR and ratios else verdict
    return Text(words, style=COLOURS[verdict])


def numbers_table(statements: Sequence[Statement], *, full: bool = True) -> Grid:
    """Return numbers as they were said and as they are computed, with verdicts.

    Args:
        statements: The numbers.
        full: Whether to show reasons.

    Returns:
        A row for each.
    """
    return listing(
        "Number: {name} | Stated: {said} | Computed: {found} | Verdict: {verdict}", statements, numbers=(1, 2),
        name=lambda s: Text.assemble(s.name, (f": {s.reason}", "bright_black")) if full else s.name,
        said=_stated, found=_computed, verdict=lambda s: _verdict(s.computed_verdict, s.computed, s.stated),
    )  # fmt: skip


def _chart(picture: Picture, width: int) -> Group | None:
    """Return the curves of a section with their letters."""
    x, values = picture.points()
    across = x if picture.linear else np.log10(x)
    every = np.concatenate(list(values.values()))
    low, high = float(every.min()), float(every.max())
    steep = high > 20 * max(low, 1e-300) > 0
    curves = [
        Curve(across, np.log10(y) if steep else y, name, colour, letter, (5, 10))
        for (letter, colour), (name, y) in zip(CURVES, values.items(), strict=False)
    ]
    if steep:
        low, high = math.log10(low) - 0.1, math.log10(high) + 0.1
    else:
        low, high = min(0.0, low) if low < high / 2 else 0.9 * low, high * 1.05
    x_axis = Axis(picture.label, across.min(), across.max(), partial(_tick, unit=picture.unit), log=not picture.linear)
    y_axis = Axis(picture.result, low, high, partial(_tick, unit=picture.result_unit), log=steep)
    return section(picture.title, [draw(curves, x_axis, y_axis, width, 8)])


def _tick(value: float, unit: str) -> str:
    return show(value, unit, 2) if unit else f"{value:,g}" if abs(value) < 1e6 else show(value, "", 2)


def check_view(verdicts: Verdicts, *, width: int, full: bool) -> Answer:
    """Return the verdicts on all numbers.

    Args:
        verdicts: A row for each number.
        width: Columns of the terminal.
        full: Whether to show numbers that hold as well.

    Returns:
        The answer.
    """
    counts = Counter(row.verdict for row in verdicts.rows)
    rows = [row for row in verdicts.rows if full or row.changed or row.verdict != HOLDS]
    # Changed verdicts are the reason for the exit code, so they stand first.
    rows.sort(key=lambda row: not row.changed)

    def verdict(row: Row) -> Text:
        stored = f" (stored: {row.stored})" if row.changed else ""
        return _verdict(row.verdict, (row.low, row.high), row.stated).append(stored, style="bold red")

    grids = [
        listing(
            kind.capitalize() + ": {number} | Number: {name} | Stated: {said} | Computed: {found} | Verdict: {verdict}"
            + (" | Why: {reason}" if full and width >= WIDE else ""),
            [row for row in rows if row.place.partition(" ")[0] == kind], numbers=(0, 2, 3),
            number=lambda row: row.place.partition(" ")[2], said=lambda row: format_claim(row.stated, row.relation, row.unit),
            found=lambda row: between(row.low, row.high, row.unit), verdict=verdict,
        )
        for kind in dict.fromkeys(row.place.partition(" ")[0] for row in rows)
    ]  # fmt: skip
    kinds = Counter(row.place.partition(" ")[0] for row in verdicts.rows)
    places = ", ".join(f"{count} of {kind}s" for kind, count in kinds.items())
    checks = sum(row.check > 0 for row in verdicts.rows)
    inexact = Counter(row.place.partition(" ")[0] for row in rows)
    parts = [f"{count} of {kind}s" for kind, count in inexact.items()]
    listed = f" {counted(len(rows), 'number')} {'does' if len(rows) == 1 else 'do'} not hold: {', '.join(parts)}. "
    listed += f"The list has those of {next(iter(inexact), '')}s first."
    return Answer(
        sentence=f"{counted(len(verdicts.rows), 'number')}, {places}: {_counts(counts)}. "
        f"{counted(len(verdicts.changed), 'verdict')} changed since the stored ones.",
        conditions=f"{checks} of them are acceptance checks." + (listed if rows and not full else ""),
        body=grids, full_adds="all numbers",
    )  # fmt: skip


def card_view(card: Card) -> RenderableType:
    """Return the answer of a card.

    Args:
        card: A question with its answer.

    Returns:
        The answer, its number, and what to mind.
    """
    watch = Text.assemble(("Mind: ", "bold yellow"), card.watch, f" (section {card.section})")
    return Group(Text(card.answer, style="green"), numbers_table([card.statement]), watch)


def roofline_view(roofline: Roofline, *, width: int, full: bool) -> Answer:
    """Return the questions of the blackboard for a model on a system.

    Args:
        roofline: Answers of the lecture, of closed forms and of the full model.
        width: Columns of the terminal.
        full: Whether to show the closed forms themselves, and all warnings.

    Returns:
        The answer.
    """
    answers = sorted(roofline.answers, key=lambda answer: answer.section)
    first_answers = {answer.section: answer for answer in reversed(answers)}
    grid = listing(
        "Section: {part} | Quantity: {name} | Lecture: {said} | Closed form: {form} | Full model: {computed}"
        + (" | Formula: {formula}" if full and width >= WIDE else ""),
        answers, numbers=(0, 2, 3, 4), name=lambda answer: QUANTITIES.get(answer.name, answer.name),
        part=lambda answer: str(answer.section) if answer is first_answers[answer.section] else "",
        said=lambda answer: _value(answer.spoken, answer.unit), form=lambda answer: _value(answer.closed, answer.unit),
        computed=lambda answer: _value(answer.full, answer.unit),
    )  # fmt: skip
    # The board has several costs; the lowest of the full model is the headline.
    costs = [answer for answer in answers if answer.unit == "USD/Mtok" and math.isfinite(answer.full)]
    subject = f"{roofline.model.rpartition('/')[2]} on {counted(roofline.chips, 'chip')} of {roofline.system}"
    sentence = f"{subject} at {roofline.context:,} tokens of context."
    if costs:
        best = min(costs, key=lambda answer: answer.full)
        sentence = f"Decode of {subject} costs {usd(best.full)} per million output tokens at its "
        sentence += (
            f"cheapest batch, {roofline['batch that is cheapest'].full:,.0f} sequences. The lecture's closed form gives "
        )
        sentence += f"{usd(best.closed)}."
    active = "" if roofline.active > 0.995 * roofline.total else f", {show(roofline.active)} active"
    conditions = f"Context {roofline.context:,} tokens, no prefill; {show(roofline.total)} parameters{active}; cache in "
    conditions += f"{roofline.kv_format}; engine "
    legend = "Section: of the lecture. Price and speed: relative to the cheapest batch. The full model "
    legend += "doubles batches, so two speeds can have one price. The lecture infers L* from a price. "
    legend += f"Batches: sequences on all {counted(roofline.chips, 'chip')}."
    legend += " none: no batch." if any(math.isinf(answer.closed) for answer in answers) else ""
    return Answer(
        sentence=sentence, conditions=f"{conditions}{roofline.engine}.", body=[grid, footnote(legend)],
        warnings=roofline.notes, full_adds="formulas" if width >= WIDE else "formulas if 100 columns wide",
    )  # fmt: skip


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
