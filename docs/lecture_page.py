"""The page docs/lecture.md: sections, claims and cards with their numbers, from `data/lecture`."""

from __future__ import annotations

from collections.abc import Iterable

from steptime.cli.views.lecture_view import between, format_claim
from steptime.lecture.lecture_content import LECTURE, Statement, cards, claims, sections

HEAD = "| number | said | computed | verdict | why |\n|---|---:|---:|---|---|"


def cell(text: str) -> str:
    """Return a text as it may stand in a table or a paragraph."""
    return text.replace("|", "\\|").replace("*", "\\*")


def row(one: Statement, *before: str) -> str:
    """Return the row of a number, its source linked."""
    values = one.computed
    name = cell(one.name) + (f" (check {one.check})" if one.check else "")
    why = cell(one.reason) + ("" if one.source == LECTURE else f" ([source]({one.source}))")
    figures = format_claim(one.stated, one.relation, one.unit), between(min(values), max(values), one.unit)
    return "| " + " | ".join([*before, name, *figures, one.computed_verdict, why]) + " |"


def section_lines() -> Iterable[str]:
    """Yield the sections."""
    for one in sections():
        symbols = "; ".join(f"`{name}` {meaning}" for name, meaning in one.symbols.items())
        yield from ("", f"## {one.number}. {one.title}", "", cell(one.summary), "", f"    {one.formula}", "", f"{symbols}.", "")
        yield from (HEAD, *(row(statement) for statement in one.statements), "")
        yield f"Where it fails: {cell(one.fails)}"


def page() -> str:
    """Return the page."""
    lines = [
        "# The lecture",
        "",
        f"[The math behind how LLMs are trained and served]({LECTURE}) by Reiner Pope (2026-04-29), in words of our",
        "own and as data: every number is tied to the function that computes it. A number *holds* within 5 % or the tolerance",
        "that its file states, *holds within a factor* of two or of what is stated, else it *fails*; *undecided* is what rival",
        "laws or figures answer differently, or what no public figure decides. `steptime lecture` lists the sections,",
        "`steptime lecture 3` plays one with its picture, `--check` computes all verdicts again, `--quiz` asks the cards;",
        "`steptime roofline MODEL SYSTEM` asks the board's questions of a real pair. Written by `docs/generate.py` from",
        "`src/steptime/data/lecture`.",
        *section_lines(),
        "",
        "## Predictions and claims",
        "",
        "| | claim | number | said | computed | verdict | why |",
        "|---:|---|---|---:|---:|---|---|",
        *(row(one.statement, str(one.number), cell(one.summary)) for one in claims()),
        "",
        "## Cards",
        "",
        "[Questions](https://reiner-flashcards.vercel.app) that the lecture's host wrote for remembering it.",
    ]
    for card in cards():
        lines += ["", f"**{card.number}. {card.question}** {cell(card.answer)} Mind: {cell(card.watch)}", ""]
        lines += [HEAD, row(card.statement)]
    return "\n".join(lines) + "\n"
