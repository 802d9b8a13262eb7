"""The command `steptime sensitivity`."""

from typing import Annotated

import typer

from steptime.cli.options import CSV, FULL, JSON, OUTPUT, count, option, refuse_idle
from steptime.cli.output import check_outputs, print_result, say, wrote
from steptime.cli.question_args import read_question, report_progress, with_kept
from steptime.cli.simulate import compile_first
from steptime.errors import DataFileError, InputError, RangeError, short_repr

INPUTS, INDICES = "Uncertain inputs", "Sobol's indices"
OPTIONS = ("of", "vary", "set", "sobol", "samples", "seed", "workers", "plot", "csv", "full", "json")
WORDS = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="QUESTION [MODEL] [SYSTEM]",
        help="QUESTION is step or plan, whose ranges are known, or simulate or blackboard.NAME, which need --vary.",
        show_default=False,
    ),
]
VARY = Annotated[
    list[str] | None,
    typer.Option(
        "--vary",
        metavar="NAME=LOW:HIGH",
        help="Range with a uniform distribution: context=1k:16k, rent=1.5:3, chip.hbm.bandwidth=7TB/s:8TB/s, "
        "memory_efficiency=0.7:0.9 (of the engine). Repeatable. It adds a range, or replaces the known range of that input.",
        rich_help_panel=INPUTS,
    ),
]
SET = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Value of an input of the question, or of a number of the system. You may also use the options of that command: "
        "--tp 8 is --set tp=8. Repeatable.",
        rich_help_panel=INPUTS,
    ),
]


def sensitivity(
    ctx: typer.Context,
    words: WORDS = None,
    answer: Annotated[
        str | None, option("Name of the answer.", OUTPUT, "--of", metavar="ANSWER", show_default="the cost")
    ] = None,
    vary: VARY = None,
    set_: SET = None,
    sobol: Annotated[
        bool, option("Variance shares with all inputs varied together: Sobol's first and total indices.", INDICES, "--sobol")
    ] = False,
    samples: Annotated[
        int | None,
        count("--samples", "Samples, a power of two.", INDICES, show_default="4,096, or fewer if that takes over 2 minutes"),
    ] = None,
    seed: Annotated[int, option("Seed of the samples.", INDICES, metavar="S")] = 0,
    workers: Annotated[int | None, option("Number of processes.", INDICES, metavar="N", show_default="one per core")] = None,
    plot: Annotated[str | None, option("Picture file (.svg, .png, .pdf) of the tornado chart.", OUTPUT, metavar="FILE")] = None,
    csv: CSV = None,
    full: FULL = False,
    json: JSON = False,
) -> None:
    """Find which uncertain input changes an answer most, and which to measure first.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    from steptime.sweeps.axes import read_axes
    from steptime.sweeps.sensitivity import compute_sensitivity

    question, subject, settings = read_question("sensitivity", words or [], "--vary", OPTIONS)
    refuse_idle(ctx, {"text, not --json": (not json, "full")})
    check_outputs({"--csv": csv}, subject.values())
    _check_picture(plot, csv)
    ranges = [_range(text) for text in vary or []]
    _, fixed_inputs = read_axes(question, [], [*settings, *(set_ or [])], subject)
    fixed_inputs = with_kept(question, fixed_inputs)
    if question.name == "simulate":
        compile_first()
    with report_progress() as progress:
        study = compute_sensitivity(
            question, fixed_inputs, answer=answer, ranges=ranges, sobol=sobol, samples=samples, seed=seed, workers=workers,
            progress=progress, announce=lambda message: say(f"steptime: {message}"),
        )  # fmt: skip
    if plot is not None:
        study.plot(plot)
        wrote(plot, "the tornado")
    print_result(study, "sensitivity_view.sensitivity_view", csv=csv, json=json, full=full)
    if not study.fits:
        raise typer.Exit(1)


def _range(text: str) -> tuple[str, str]:
    name, equals, values = text.partition("=")
    if not equals or not name.strip() or not values.strip():
        raise RangeError(f"{short_repr(text)} is not NAME=LOW:HIGH, such as context=1k:16k")
    return name.strip(), values.strip()


def _check_picture(plot: str | None, csv: str | None) -> None:
    """Raise InputError, before the work, for a picture that cannot be written."""
    import os

    from steptime.picture_files import PICTURES

    if plot is None:
        return
    if not plot.casefold().endswith(PICTURES):
        raise InputError(f"--plot writes a picture, {', '.join(PICTURES)}, not {plot}")
    place = os.path.dirname(os.path.realpath(plot))
    if not os.path.isdir(place) or os.path.isdir(plot):
        raise DataFileError(
            plot, "cannot be written: " + ("is a folder" if os.path.isdir(plot) else "its folder does not exist")
        )
    if not os.access(place, os.W_OK):
        raise DataFileError(plot, "cannot be written: permission denied")
    if csv is not None and os.path.realpath(csv) == os.path.realpath(plot):
        raise InputError("two files have one name; give each its own")
