"""The command `steptime lecture`."""

from typing import TYPE_CHECKING, Annotated

import typer

from steptime.cli.options import CSV, JSON, option, refuse_idle
from steptime.cli.output import check_outputs, console_of, print_json, show, write_csv

if TYPE_CHECKING:
    from steptime.lecture.lecture_content import Card

WHAT = "What to do"


def lecture(
    ctx: typer.Context,
    section: Annotated[
        int | None, typer.Argument(help="A section to play, 1 to 18; without it, all are listed.", show_default=False)
    ] = None,
    check: Annotated[
        bool, option("Compute every verdict again; exit code 1 if one differs from what is stored.", WHAT, "--check")
    ] = False,
    quiz: Annotated[bool, option("Ask the question cards; of one section where it is given.", WHAT, "--quiz")] = False,
    csv: CSV = None,
    json: JSON = False,
) -> None:
    """Play the lecture of which this is the arithmetic: sections with pictures, verdicts on every number, question cards."""
    from steptime.errors import RangeError
    from steptime.lecture.lecture_check import check as checked
    from steptime.lecture.lecture_check import contents
    from steptime.lecture.lecture_content import section as section_of

    if check and (quiz or section is not None):
        raise RangeError("--check is of the whole lecture; leave out the section and --quiz")
    if quiz and json:
        raise RangeError("--quiz asks in words; leave out --json")
    refuse_idle(ctx, {"the list or --check": (not quiz and section is None, "csv")})
    check_outputs({"--csv": csv}, ())
    if section is not None:
        section_of(section)
    if quiz:
        _quiz(section)
        return
    found = checked() if check else contents() if section is None else section_of(section)
    if csv is not None and section is None:
        write_csv(csv, found)  # type: ignore[arg-type]
    if json:
        print_json(found)
    else:
        from steptime.cli.views.lecture_view import check_view, lecture_view, section_view
        from steptime.lecture.lecture_check import Lecture, Verdicts

        console = console_of()
        if isinstance(found, Verdicts):
            show(check_view(found, console.width), console=console)
        elif isinstance(found, Lecture):
            show(lecture_view(found), console=console)
        else:
            show(section_view(found, console.width), console=console)
    raise typer.Exit(int(check and bool(found.changed)))  # type: ignore[union-attr]


def _quiz(section: int | None) -> None:
    """Ask the cards one by one: a number is judged, an empty line shows the answer, and q or the end of input ends."""
    from steptime.errors import RangeError
    from steptime.lecture.lecture_content import cards

    asked = [card for card in cards() if section in (None, card.section)]
    if not asked:
        known = sorted({card.section for card in cards()})
        raise RangeError(f"no card is of section {section}; there are some of {', '.join(map(str, known))}")
    for number, card in enumerate(asked, start=1):
        if not _ask(card, f"{number} of {len(asked)}"):
            return


def _ask(card: "Card", place: str) -> bool:
    """Ask one card and show its answer; return whether to go on."""
    from rich.text import Text

    from steptime.cli.views.lecture_view import card_view

    show(Text.assemble((f"Card {card.number} ({place}): ", "bold"), card.question), Text(f"  {card.statement.name}?"))
    try:
        given = input("> ").strip()
    except EOFError:
        return False
    if given.casefold() in ("q", "quit"):
        return False
    if given:
        show(Text(_judged(card, given)))
    console = console_of()
    show(card_view(card, console.width), Text(), console=console)
    return True


def _judged(card: "Card", given: str) -> str:
    """Say how near an answer is to what was said or computed."""
    from steptime.errors import UnitError
    from steptime.lecture.claim_verdicts import FACTOR, HOLDS, verdict
    from steptime.units import parse

    one = card.statement
    try:
        value = parse(given, one.unit if one.unit in ("s", "B") else "")
    except UnitError:
        return "Not a number; here is the answer."
    grades = {verdict([value], right, tolerance=0.1) for right in (one.said, *one.computed)}
    return "Right." if HOLDS in grades else "Near: within a factor of two." if FACTOR in grades else "No."
