"""The command `steptime validate`: compare predictions with measured runs."""

import os
from typing import Annotated

import typer

from steptime.cli.calibrate import FILES, SKIP, RunSettings, training_file, validate_training_file
from steptime.cli.options import CATALOG, CSV, FULL, JSON, grouped, not_empty, refuse_idle
from steptime.cli.output import check_outputs, make_console, patience, print_json, show, write_csv, writing, wrote
from steptime.errors import RangeError


@grouped
def validate(
    ctx: typer.Context,
    run_settings: RunSettings,
    files: Annotated[list[str] | None, typer.Argument(metavar="FILE...", help=FILES, show_default=False)] = None,
    predictions: Annotated[
        str | None,
        typer.Option(
            metavar="OUT.csv",
            help="Write predicted times and throughput with 90 % intervals of every row, or the reason why it is missing.",
        ),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="Engine for every row (ideal: the bound); by default the engine of the row.")
    ] = None,
    skip_bad: SKIP = False,
    columns: Annotated[bool, typer.Option("--columns", help="List the columns of the file and exit.")] = False,
    catalog: CATALOG = None,
    csv: CSV = None,
    full: FULL = False,
    json: JSON = False,
) -> None:
    """Compare predictions with measured serving or training runs: error, bias, coverage of the ranges.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    from steptime.cli.views.validation_view import columns_view, validation_view
    from steptime.validation.error_summary import write_predictions
    from steptime.validation.validate_api import validate as hold

    refuse_idle(ctx, {"text, not --json": (not json, "full")})
    if columns:
        if files or predictions or engine or csv or json:
            raise RangeError("--columns stands alone: it lists the columns and reads no file")
        show(columns_view())
        return
    if not files:
        raise RangeError("give a CSV file of runs (--columns lists its columns) or result JSON of vLLM or SGLang")
    not_empty("--engine", engine, "the name of an engine")
    if training_file(files):
        validate_training_file(files[0], predictions, engine, catalog, csv, json=json)
        return
    check_outputs({"--predictions": predictions, "--csv": csv}, [*files, engine or "", run_settings.model, run_settings.system])
    with patience(f"reading and predicting the runs of {', '.join(files[:3])}{' ...' if len(files) > 3 else ''}"):
        validation = hold(files, engine=engine, skip_bad=skip_bad, catalog=catalog, **run_settings.arguments())
    if predictions:
        existed = os.path.exists(predictions)
        with writing(predictions):
            write_predictions(predictions, validation.rows, validation.predictions)
        wrote(predictions, f"times of {validation.runs:,} runs in s and tok/s, with 90 % ranges", replaced=existed)
    if csv is not None:
        write_csv(csv, validation)
    if json:
        print_json(validation)
        return
    console = make_console()
    show(
        validation_view(
            list(validation.rows),
            validation.predictions,
            validation.tables,
            list(validation.left_out),
            console.width,
            scripted=validation.scripted,
            unread=validation.unread,
            full=full,
        ),
        console=console,
    )
