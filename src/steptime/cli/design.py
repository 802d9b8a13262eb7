"""The command `steptime design`."""

from typing import TYPE_CHECKING, Annotated

import typer

from steptime.cli.options import BRIEF, CSV, JSON, OUTPUT, option, refuse_idle
from steptime.cli.output import console_of, print_json, show, write_csv
from steptime.cli.question_args import read_question, told, with_kept
from steptime.cli.sweep import AXES, DRAWN, OUT, OVER, SET, WHERE, check_files, wrote_all
from steptime.errors import InputError, RangeError

if TYPE_CHECKING:
    from steptime.sweeps.design import Design

WORDS = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[step|plan] MODEL SYSTEM",
        help="What is asked of each design: one pass at a batch and layout of your own (step), or the cheapest deployment "
        "within limits (plan, the default).",
        show_default=False,
    ),
]
WITHIN = Annotated[
    str | None,
    option(
        "Budget of the chip, in which FLOP/s make room for what the other parts take: power, or shares of an area or a price, "
        "such as bandwidth=0.3,capacity=0.1,link=0.1.",
        AXES,
        metavar="BUDGET",
    ),
]
OWN = ("over", "set", "within", "aim", "out", "csv", "plot", "against", "workers", "brief", "json")


def design(
    ctx: typer.Context,
    words: WORDS = None,
    over: OVER = None,
    set_: SET = None,
    within: WITHIN = None,
    aim: Annotated[
        list[str] | None,
        option("Answers that count, the first most; by default cost and speed. Repeatable.", OUTPUT, metavar="NAME"),
    ] = None,
    out: OUT = None,
    csv: CSV = None,
    plot: Annotated[str | None, option("Draw the first aim over the axes.", OUTPUT, metavar="FILE")] = None,
    against: Annotated[str | None, option("Draw it against this answer, with the front.", OUTPUT, metavar="NAME")] = None,
    workers: Annotated[int | None, option("Processes of this machine; by default one a core.", WHERE, metavar="N")] = None,
    brief: BRIEF = False,
    json: JSON = False,
) -> None:
    """Find models and chips that are not built yet and that no other beats: heads, experts, depth; bandwidth against FLOP/s."""
    from steptime.sweeps.axes import read_axes
    from steptime.sweeps.design import design_of

    question, given, more = read_question("design", _question(words or []), "--over", OWN)
    refuse_idle(ctx, {"text, not --json": (not json, "brief"), DRAWN: (plot is not None, "against")})
    files = check_files(out or [], plot, csv)
    axes, held = read_axes(question, over or [], [*more, *(set_ or [])], given)
    if not axes:
        raise RangeError(
            "a design needs an axis, such as --over arch.kv_heads=1,2,4,8, --over arch.attention=grouped,latent or "
            "--over times.bandwidth=1:4:7"
        )
    held = with_kept(question, held, axes)
    aims = [part.strip() for text in aim or [] for part in text.split(",")]
    if against is not None and aims:
        aims.append(against)
    with told() as progress:
        found = design_of(
            question, axes, held, aims=aims, within=within, workers=workers, out=files[0] if files else None, progress=progress
        )
    wrote_all(found.sweep, files, plot, found.aims[0], against)
    if csv is not None:
        write_csv(csv, found)
    _print(found, brief=brief, json=json)


def _question(words: list[str]) -> list[str]:
    """Return the words with the question before model and system; a plan unless it is named."""
    plain = next((at for at, word in enumerate(words) if word.startswith("--")), len(words))
    if not plain:
        raise InputError("a design needs a model and a system; `steptime design --help` has examples")
    return words if words[0] in ("step", "plan") and plain != 2 else ["plan", *words]


def _print(found: "Design", *, brief: bool, json: bool) -> None:
    if json:
        print_json(found)
        return
    from steptime.cli.views.design_view import design_view

    console = console_of()
    show(design_view(found, console.width, brief=brief), console=console)
