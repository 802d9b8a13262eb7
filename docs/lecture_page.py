"""The page docs/lecture.md: sections, claims and cards with their numbers, from `data/lecture`."""

from __future__ import annotations

from collections.abc import Iterable

from steptime.lecture.lecture_content import LECTURE, WITHIN_FACTOR, Statement, between, cards, claims, format_claim, sections

HEAD = "| number | stated | computed | verdict | why |\n|---|---:|---:|---|---|"


def cell(text: str) -> str:
    """Return a text with Markdown characters escaped."""
    return text.replace("|", "\\|").replace("*", "\\*")


def row(one: Statement, *before: str) -> str:
    """Return the row of a number with a link to its source."""
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
        yield f"Limits: {cell(one.fails)}"


def page() -> str:
    """Return the page."""
    lines = [
        "# The lecture",
        "",
        f"[The math behind how LLMs are trained and served]({LECTURE}) by Reiner Pope (2026-04-29), summarized in new words",
        "and as data. Every number has the function that computes it. A number *holds* within 5 % or the tolerance of its",
        f"file. It *holds within a factor* if they differ by at most {WITHIN_FACTOR:g} times. Else it *fails*.",
        "It is *undecided* if some numbers fail and others hold, or if it needs judgement or a figure that is not public.",
        "`steptime lecture` lists the sections, `steptime lecture",
        "3` shows one with its picture, `--check` computes all verdicts again, and `--quiz` shows the cards. `steptime",
        "roofline MODEL SYSTEM` answers the blackboard's questions for a model and a system. Written by `docs/generate.py`",
        "from `src/steptime/data/lecture`.",
        *section_lines(),
        "",
        "## Predictions and claims",
        "",
        "| | claim | number | stated | computed | verdict | why |",
        "|---:|---|---|---:|---:|---|---|",
        *(row(one.statement, str(one.number), cell(one.summary)) for one in claims()),
        "",
        "## Cards",
        "",
        "[Questions](https://reiner-flashcards.vercel.app) by the host of the lecture.",
    ]
    for card in cards():
        lines += ["", f"**{card.number}. {card.question}** {cell(card.answer)} Note: {cell(card.watch)}", ""]
        lines += [HEAD, row(card.statement)]
    return "\n".join(lines) + "\n"
