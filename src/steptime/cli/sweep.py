"""The command `steptime sweep`."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from steptime.cli.options import FULL, JSON, OUTPUT, not_empty, option, refuse_idle
from steptime.cli.output import print_result, say, wrote
from steptime.cli.question_args import read_question, report_progress, with_kept
from steptime.cli.simulate import compile_first
from steptime.errors import DataFileError, InputError, RangeError

if TYPE_CHECKING:
    from steptime.questions.declaration import Question
    from steptime.sweeps.sweep_result import Sweep

AXES, EXECUTION = "Axes", "Execution"
PLOT_OPTION = "--plot, the picture that it is drawn in"
OPTIONS = ("over", "set", "together", "answer", "out", "plot", "against", "workers", "cluster", "full", "json")
OVER = Annotated[
    list[str] | None,
    typer.Option(
        "--over",
        metavar="NAME=VALUES",
        help="An axis: batch=1:4096:log2 (doubling), context=1k,8k,64k, speed=20:80:7 (7 values), rent=1:10:20log (equal "
        "ratios), chip.hbm.bandwidth=4TB/s:32TB/s:9, system=hgx-h100,hgx-b200. Repeatable: every combination is evaluated.",
        rich_help_panel=AXES,
    ),
]
SET = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Value of an input of the question, or of a number of the system. You may also use the options of that command: "
        "--tp 8 is --set tp=8. Repeatable.",
        rich_help_panel=AXES,
    ),
]
WORDS = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="QUESTION [MODEL] [SYSTEM]",
        help="QUESTION is step, plan, simulate, or blackboard.NAME (a formula of the lecture). MODEL and SYSTEM follow, unless "
        "--over varies them.",
        show_default=False,
    ),
]
ANSWER = Annotated[
    list[str] | None,
    typer.Option(
        "--answer",
        metavar="NAME",
        help="Name of an answer to show. Repeatable.",
        show_default="the main answers",
        rich_help_panel=OUTPUT,
    ),
]
OUT = Annotated[
    list[str] | None,
    typer.Option(
        "--out",
        metavar="FILE",
        help="Write the results: .csv, .parquet, .nc (netCDF), .zarr, .xlsx (closed forms as live formulas) or .json. "
        "Repeatable. Finished plans and simulations are saved beside the first file: the same command resumes.",
        rich_help_panel=OUTPUT,
    ),
]


def sweep(
    ctx: typer.Context,
    words: WORDS = None,
    over: OVER = None,
    set_: SET = None,
    together: Annotated[
        bool, option("Step through all axes at once, instead of every combination.", AXES, "--together")
    ] = False,
    answer: ANSWER = None,
    out: OUT = None,
    plot: Annotated[
        str | None, option("Picture file (.svg, .png, .pdf) of the first --answer, or of the cost.", OUTPUT, metavar="FILE")
    ] = None,
    against: Annotated[
        str | None, option("Answer on the y axis of the picture, with the Pareto front.", OUTPUT, metavar="NAME")
    ] = None,
    workers: Annotated[int | None, option("Number of processes.", EXECUTION, metavar="N", show_default="one per core")] = None,
    cluster: Annotated[
        str | None,
        option(
            "Address of a Dask cluster that computes the points, such as tcp://127.0.0.1:8786.", EXECUTION, metavar="ADDRESS"
        ),
    ] = None,
    full: FULL = False,
    json: JSON = False,
) -> None:
    """Run one question for many values of its inputs: tables, files and pictures of the answers.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    from steptime.sweeps.axes import read_axes
    from steptime.sweeps.executor import SUFFIX, connect
    from steptime.sweeps.sweep import sweep_axes

    question, subject, settings = read_question("sweep", words or [], "--over", OPTIONS)
    refuse_idle(ctx, {"text, not --json": (not json, "full"), PLOT_OPTION: (plot is not None, "against")})
    files, answer_names = check_files(out or [], plot), _answers(question, answer or [], against)
    plotted_answer = answer[0].partition(",")[0].strip() if answer else None
    axes, fixed_inputs = read_axes(question, over or [], [*settings, *(set_ or [])], subject)
    if not axes:
        raise RangeError("a sweep needs an axis: --over NAME=VALUES, such as --over batch=1:4096:log2")
    fixed_inputs = with_kept(question, fixed_inputs, axes)
    not_empty("--cluster", cluster, "an address, such as tcp://127.0.0.1:8786")
    if question.name == "simulate":
        compile_first()
    client = None if cluster is None else connect(cluster)
    try:
        with report_progress() as progress:
            study = sweep_axes(
                question, axes, fixed_inputs, answers=answer_names, together=together, workers=workers, client=client,
                out=files[0] if files else None, progress=progress, banded=True,
            )  # fmt: skip
    except KeyboardInterrupt:
        if files and os.path.exists(files[0] + SUFFIX):
            say(f"steptime: stopped; answers are kept in {files[0]}{SUFFIX}, and the same command continues from there")
        raise
    finally:
        if client is not None:
            client.close()
    wrote_all(study, files, plot, plotted_answer, against)
    print_result(study, "sweep_view.sweep_view", json=json, full=full)
    share = study.answers.get("memory_share")
    if len(study.reasons) == study.points or (share is not None and not (share.values <= 1).any()):
        raise typer.Exit(1)


def _answers(question: "Question", answers: list[str], against: str | None) -> tuple[str, ...]:
    names = [name.strip() for text in answers for name in text.split(",")]
    if against is not None:
        names = [*(names or question.shows), against]
    if names and "memory_share" in question.answers:
        names.append("memory_share")  # else the cheapest point may not fit in memory
    return tuple(dict.fromkeys(names))


def check_files(out: list[str], plot: str | None, csv: str | None = None) -> list[str]:
    """Check the files of results before the work.

    Args:
        out: files of tables.
        plot: file of the picture.
        csv: file of the table as CSV.

    Returns:
        The files of tables.

    Raises:
        InputError: if one cannot be written.
    """
    from steptime.picture_files import PICTURES
    from steptime.sweeps.export import ending

    pictures = [name for name in out if name.casefold().endswith(PICTURES)]
    if pictures:
        raise InputError(f"{pictures[0]} is a picture: --plot draws it, and --out writes tables")
    if plot is not None and not plot.casefold().endswith(PICTURES):
        raise InputError(
            f"--plot writes a picture, {', '.join(PICTURES)}, not {plot or 'a file without a name'}; --out writes tables"
        )
    paths = [*out, *(name for name in (plot, csv) if name is not None)]
    for name in paths:
        if name != csv:
            ending(name)
        place = os.path.dirname(os.path.realpath(name))
        if not os.path.isdir(place):
            raise DataFileError(name, "cannot be written: its folder does not exist")
        if not os.access(place, os.W_OK) or (os.path.isfile(name) and not os.access(name, os.W_OK)):
            raise DataFileError(name, "cannot be written: permission denied")
        if os.path.isfile(name) and not _is_sweep_file(name):
            raise DataFileError(name, "holds something else than a sweep writes; give another name, or remove it")
        if os.path.isdir(name) and not (name.endswith(".zarr") and os.path.exists(os.path.join(name, ".zgroup"))):
            raise DataFileError(name, "is a folder; give the results another name")
    if len(set(paths)) < len(paths):
        raise InputError("two files have one name; give each its own")
    return out


def _is_sweep_file(name: str) -> bool:
    """Whether a file may be an older one of a sweep: of a table or of JSON, by its beginning; of others, by its ending."""
    if not name.casefold().endswith((".csv", ".json")):
        return True
    with open(name, "rb") as file:
        begins = file.read(4096)
    if name.casefold().endswith(".json"):
        return not begins.strip() or b"steptime.sweep/" in begins
    return not begins.strip() or b"," in begins.partition(b"\n")[0]


def wrote_all(study: "Sweep", files: list[str], plot: str | None, answer: str | None, against: str | None) -> None:
    """Write the files after the first, and the picture.

    Args:
        study: the sweep.
        files: files of tables; the first is written already.
        plot: file of the picture.
        answer: answer in the picture.
        against: answer on the other axis.
    """
    for name in files[1:]:
        study.save(name)
    for name in files:
        wrote(name, f"{study.points:,} point{'s' * (study.points > 1)}")
    if plot is not None:
        study.plot(plot, answer=answer, against=against)
        wrote(plot, "the picture")
