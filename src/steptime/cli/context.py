"""The command `steptime context`.

The command `steptime design`.
"""

from typing import Annotated

import typer

from steptime.cli.budget import check_picture
from steptime.cli.options import CSV, FULL, JSON, OUTPUT, SubjectChanges, grouped, option, refuse_idle
from steptime.cli.output import check_outputs, patience, print_result, wrote
from steptime.cli.question_args import read_question, report_progress, with_kept
from steptime.cli.sweep import AXES, EXECUTION, OUT, OVER, PLOT_OPTION, SET, check_files, wrote_all
from steptime.errors import InputError, RangeError
from steptime.sweeps.context_limit import CONTEXT, ContextInputs, solve


@grouped
def context(
    ctx: typer.Context,
    inputs: ContextInputs,
    changes: SubjectChanges,
    plot: Annotated[
        str | None,
        option("PNG, SVG or PDF file with cost against length of context, by technique.", OUTPUT, metavar="FILE"),
    ] = None,
    csv: CSV = None,
    full: FULL = False,
    json: JSON = False,
) -> None:
    """Find the longest context for a speed and a price, and the effect of windows, latents or selection.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    refuse_idle(ctx, {"text, not --json": (not json, "full")})
    check_outputs({"--csv": csv, "--plot": plot}, changes.files(vars(inputs)))
    if plot is not None:
        check_picture(plot)
    values = changes.values(ctx, ContextInputs)
    with patience("Trying layouts and batches for each length of context ..."):
        walls = solve(values)
    if plot is not None:
        walls.plot(plot)
        wrote(plot, "the picture of costs by length")
    print_result(walls, "context_view.contexts_view", csv=csv, json=json, summary=CONTEXT.read_result, full=full)
    if walls.reason:
        raise typer.Exit(1)


WORDS = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[step|plan] MODEL SYSTEM",
        help="Question for each design: one pass at a given batch and layout (step), or the cheapest deployment within "
        "limits (plan, the default).",
        show_default=False,
    ),
]
WITHIN = Annotated[
    str | None,
    option(
        "Fixed budget of the chip: more bandwidth, capacity or links cost FLOP/s. Value: power, or the share of each part of "
        "an area or a price, such as bandwidth=0.3,capacity=0.1,link=0.1.",
        AXES,
        metavar="BUDGET",
    ),
]
OPTIONS = ("over", "set", "within", "aim", "out", "csv", "plot", "against", "workers", "full", "json")


def design(
    ctx: typer.Context,
    words: WORDS = None,
    over: OVER = None,
    set_: SET = None,
    within: WITHIN = None,
    aim: Annotated[
        list[str] | None,
        option(
            "Aim of the search, the most important first. Repeatable.", OUTPUT, metavar="NAME", show_default="cost and speed"
        ),
    ] = None,
    out: OUT = None,
    csv: CSV = None,
    plot: Annotated[
        str | None, option("Picture file (.svg, .png, .pdf) of the first aim over the axes.", OUTPUT, metavar="FILE")
    ] = None,
    against: Annotated[
        str | None, option("Answer on the y axis of the picture, with the Pareto front.", OUTPUT, metavar="NAME")
    ] = None,
    workers: Annotated[int | None, option("Number of processes.", EXECUTION, metavar="N", show_default="one per core")] = None,
    full: FULL = False,
    json: JSON = False,
) -> None:
    """Search models and chips that do not exist yet: heads, experts, depth; bandwidth against FLOP/s.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    from steptime.sweeps.axes import read_axes
    from steptime.sweeps.design import compare_designs

    question, subject, settings = read_question("design", _question(words or []), "--over", OPTIONS)
    refuse_idle(ctx, {"text, not --json": (not json, "full"), PLOT_OPTION: (plot is not None, "against")})
    files = check_files(out or [], plot, csv)
    axes, fixed_inputs = read_axes(question, over or [], [*settings, *(set_ or [])], subject)
    if not axes:
        raise RangeError(
            "a design needs an axis, such as --over arch.kv_heads=1,2,4,8, --over arch.attention=grouped,latent or "
            "--over times.bandwidth=1:4:7"
        )
    fixed_inputs = with_kept(question, fixed_inputs, axes)
    aims = [part.strip() for text in aim or [] for part in text.split(",")]
    if against is not None and aims:
        aims.append(against)
    with report_progress() as progress:
        study = compare_designs(
            question, axes, fixed_inputs, aims=aims, within=within, workers=workers, out=files[0] if files else None,
            progress=progress,
        )  # fmt: skip
    wrote_all(study.sweep, files, plot, study.aims[0], against)
    print_result(study, "sweep_view.design_view", csv=csv, json=json, full=full)


def _question(words: list[str]) -> list[str]:
    """Return the words with the question before model and system; a plan unless it is named."""
    plain = next((index for index, word in enumerate(words) if word.startswith("--")), len(words))
    if not plain:
        raise InputError("a design needs a model and a system; `steptime design --help` has examples")
    return words if words[0] in ("step", "plan") and plain != 2 else ["plan", *words]
