"""The command `steptime lecture`."""

from typing import TYPE_CHECKING, Annotated

import typer

from steptime.cli.options import CSV, FULL, JSON, option, refuse_idle
from steptime.cli.output import check_outputs, make_console, print_json, show, write_csv

if TYPE_CHECKING:
    from steptime.lecture.lecture_content import Card

ACTION = "What to do"


def lecture(
    ctx: typer.Context,
    section: Annotated[
        int | None, typer.Argument(help="Section to show, 1 to 18. Without it: the list of sections.", show_default=False)
    ] = None,
    check: Annotated[
        bool,
        option(
            "Compute all verdicts again and list the numbers that do not hold; exit code 1 if a verdict changed.",
            ACTION,
            "--check",
        ),
    ] = False,
    quiz: Annotated[bool, option("Ask you the question cards, all or those of the section.", ACTION, "--quiz")] = False,
    csv: CSV = None,
    full: FULL = False,
    json: JSON = False,
) -> None:
    """Show the lecture behind the tool: sections with plots, a verdict on every number, question cards.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    from steptime.errors import RangeError
    from steptime.lecture.lecture_content import Lecture, Verdicts, contents
    from steptime.lecture.lecture_content import check as checked
    from steptime.lecture.lecture_content import section as section_of

    if check and (quiz or section is not None):
        raise RangeError("--check is of the whole lecture; leave out the section and --quiz")
    if quiz and json:
        raise RangeError("--quiz asks in words; leave out --json")
    refuse_idle(
        ctx,
        {
            "the list or --check": (not quiz and section is None, "csv"),
            "text, not --json or --quiz": (not (json or quiz), "full"),
        },
    )
    check_outputs({"--csv": csv}, ())
    if section is not None:
        section_of(section)
    if quiz:
        _quiz(section)
        return
    report = checked() if check else contents() if section is None else section_of(section)
    if csv is not None and isinstance(report, Verdicts | Lecture):
        write_csv(csv, report)
    if json:
        print_json(report)
    else:
        from steptime.cli.views.lecture_view import check_view, lecture_view, section_view

        console = make_console()
        if isinstance(report, Verdicts):
            show(check_view(report, width=console.width, full=full), console=console)
        elif isinstance(report, Lecture):
            show(lecture_view(report, full=full), console=console)
        else:
            show(section_view(report, width=console.width, full=full), console=console)
    raise typer.Exit(int(isinstance(report, Verdicts) and bool(report.changed)))


def _quiz(section: int | None) -> None:
    """Ask the cards one by one: a number is judged, an empty line shows the answer, and q or the end of input ends."""
    from steptime.errors import RangeError
    from steptime.lecture.lecture_content import cards

    section_cards = [card for card in cards() if section in (None, card.section)]
    if not section_cards:
        sections = sorted({card.section for card in cards()})
        raise RangeError(f"no card is of section {section}; there are some of {', '.join(map(str, sections))}")
    for number, card in enumerate(section_cards, start=1):
        if not _ask(card, f"{number} of {len(section_cards)}"):
            return


def _ask(card: "Card", place: str) -> bool:
    """Ask one card and show its answer; return whether to go on."""
    from rich.text import Text

    from steptime.cli.views.lecture_view import card_view

    show(Text.assemble((f"Card {card.number} ({place}): ", "bold"), card.question), Text(f"  {card.statement.name}?"))
    try:
        answer = input("> ").strip()
    except EOFError:
        return False
    if answer.casefold() in ("q", "quit"):
        return False
    if answer:
        show(Text(_judge_answer(card, answer)))
    console = make_console()
    show(card_view(card), Text(), console=console)
    return True


def _judge_answer(card: "Card", answer: str) -> str:
    """Say how near an answer is to the stated or computed number."""
    from steptime.errors import UnitError
    from steptime.lecture.lecture_content import FACTOR, HOLDS, verdict
    from steptime.units import parse

    statement = card.statement
    try:
        value = parse(answer, statement.unit if statement.unit in ("s", "B") else "")
    except UnitError:
        return "Not a number; here is the answer."
    grades = {verdict([value], right, tolerance=0.1) for right in (statement.stated, *statement.computed)}
    return "Right." if HOLDS in grades else "Near: within a factor of two." if FACTOR in grades else "No."
